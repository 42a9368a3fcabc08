/* What a running case has: names for descriptors, the answer under construction, the bytes that were sent. */
#ifndef KNET_STATE_H
#define KNET_STATE_H

#include "words.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { NAMES = 96, ANSWER = 400, WORDS = 20 };
static struct {
    char name[16];
    int fd;
} names[NAMES];
static const char *own_text;
static int base_port;
static int settle_us = 1000;
static atomic_uint sent_bytes; /* every byte that is sent has a value of its own, modulo 256 */

/* The words of a line, and where its answer goes. */
struct call {
    int count;
    char *words[WORDS];
    char answer[ANSWER];
};

static long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void pause_us(long us)
{
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    while (nanosleep(&left, &left) < 0 && errno == EINTR) {
    }
}

static const char *word(struct call *this, int n, const char *otherwise)
{
    return n < this->count ? this->words[n] : otherwise;
}

static const char *needed(struct call *this, int n)
{
    if (n < this->count) return this->words[n];
    fprintf(stderr, "script: '%s' needs %d words\n", this->words[0], n);
    exit(70);
}

static long number(struct call *this, int n, long otherwise)
{
    return n < this->count ? strtol(this->words[n], NULL, 0) : otherwise;
}

static int index_of(const char *name)
{
    int n = 0;
    while (n < NAMES && names[n].name[0] && strcmp(names[n].name, name) != 0) n++;
    return n;
}

/* A name's descriptor, or the number that is written there; -1 for a name that was never given. */
static int fd_of(const char *name)
{
    char *end;
    long fd = strtol(name, &end, 10);
    if (!*end) return (int)fd;
    int n = index_of(name);
    return n < NAMES && names[n].name[0] ? names[n].fd : -1;
}

static void name_it(const char *name, int fd)
{
    int n = index_of(name);
    if (n == NAMES || strlen(name) >= sizeof names[n].name) {
        fprintf(stderr, "script: no room for the name '%s'\n", name);
        exit(70);
    }
    strcpy(names[n].name, name);
    names[n].fd = fd;
}

/* The answer of most calls: a number, or -1 and the errno. */
static void say(struct call *this, long value)
{
    int error = errno;
    if (value == -1)
        snprintf(this->answer, ANSWER, "-1 %s", errno_text(error));
    else
        snprintf(this->answer, ANSWER, "%ld", value);
}

static void say_text(struct call *this, const char *text)
{
    snprintf(this->answer, ANSWER, "%s", text);
}

/* Of a call that makes a descriptor: named, its number told. */
static void say_new(struct call *this, const char *name, int fd)
{
    say(this, fd);
    name_it(name, fd);
}

/* own:P, own:P+3, any:0, lo:@L (the port of L), far:9, unspec, null, short, six. */
struct address {
    struct sockaddr_storage there;
    const struct sockaddr *at;
    socklen_t size;
};

static int port_of(int fd)
{
    struct sockaddr_in name = {0};
    socklen_t size = sizeof name;
    int before = errno;
    if (getsockname(fd, (struct sockaddr *)&name, &size) < 0) name.sin_port = 0;
    errno = before;
    return ntohs(name.sin_port);
}

static struct address *address_of(const char *text, struct address *into)
{
    struct sockaddr_in name = {.sin_family = AF_INET};
    char host[32] = "";
    const char *colon = strchr(text, ':'), *port = colon ? colon + 1 : "0";
    snprintf(host, sizeof host, "%.*s", colon ? (int)(colon - text) : (int)strlen(text), text);
    const char *numeric = strcmp(host, "own") == 0 ? own_text : strcmp(host, "lo") == 0 ? "127.0.0.1" : strcmp(host, "far") == 0 ? "192.0.2.1"
                        : strcmp(host, "multi") == 0 ? "224.0.0.9" : strcmp(host, "all") == 0 ? "255.255.255.255" : "0.0.0.0";
    inet_pton(AF_INET, numeric, &name.sin_addr);
    int value = *port == '@' ? port_of(fd_of(port + 1)) : *port == 'P' ? base_port + atoi(port[1] == '+' ? port + 2 : "0") : atoi(port);
    name.sin_port = htons((uint16_t)value);
    if (strcmp(host, "unspec") == 0) name.sin_family = AF_UNSPEC;
    if (strcmp(host, "local") == 0) name.sin_family = AF_UNIX;
    memset(into, 0, sizeof *into);
    memcpy(&into->there, &name, sizeof name);
    into->at = (struct sockaddr *)&into->there;
    into->size = sizeof name;
    if (strcmp(host, "six") == 0) into->there.ss_family = AF_INET6, into->size = sizeof(struct sockaddr_in6);
    if (strcmp(host, "null") == 0) into->at = NULL;
    if (strcmp(host, "short") == 0) into->size = 3;
    if (strcmp(host, "long") == 0) into->size = sizeof into->there;
    if (strcmp(host, "huge") == 0) into->size = 4000;
    if (strcmp(host, "fault") == 0) into->at = (struct sockaddr *)16;
    return into;
}

static void address_text(const struct sockaddr_in *name, char *out, size_t size)
{
    char host[INET_ADDRSTRLEN], port[16];
    inet_ntop(AF_INET, &name->sin_addr, host, sizeof host);
    const char *known = strcmp(host, own_text) == 0 ? "own" : strcmp(host, "127.0.0.1") == 0 ? "lo" : strcmp(host, "0.0.0.0") == 0 ? "any" : host;
    int value = ntohs(name->sin_port), distance = value - base_port;
    if (value == 0)
        snprintf(port, sizeof port, "0");
    else if (distance == 0)
        snprintf(port, sizeof port, "P");
    else if (distance > 0 && distance < 8)
        snprintf(port, sizeof port, "P+%d", distance);
    else
        snprintf(port, sizeof port, "some");
    snprintf(out, size, "%s:%s%s", known, port, name->sin_family == AF_INET ? "" : " of another family");
}

/* Bytes as they are sent and as they are described: 5 3-7, or what is wrong with them. */
static void new_bytes(unsigned char *into, long count)
{
    unsigned from = sent_bytes;
    for (long n = 0; n < count; n++) into[n] = (unsigned char)(from + (unsigned)n);
}

static void say_bytes(struct call *this, const unsigned char *bytes, long got)
{
    say(this, got);
    if (got <= 0) return;
    bool row = true, untouched = true;
    unsigned hash = 2166136261u;
    for (long n = 0; n < got; n++) {
        row &= bytes[n] == (unsigned char)(bytes[0] + n);
        untouched &= bytes[n] == 0xee;
        hash = (hash ^ bytes[n]) * 16777619u;
    }
    char *rest = strchr(this->answer, 0);
    if (untouched && got > 1)
        snprintf(rest, 40, " untouched");
    else if (row)
        snprintf(rest, 40, " %d-%d", bytes[0], bytes[got - 1]);
    else
        snprintf(rest, 40, " mixed %08x", hash);
}

#endif
