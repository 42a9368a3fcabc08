/* The frame of the conformance programs: named cases, each in a process of its own, one result line each.
 *
 *   PROGRAM both ADDRESS PORT [CASE...]          both ends in here: servers on ADDRESS, ports from PORT up
 *   PROGRAM client ADDRESS PORT OWN [CASE...]    the cases that need only a peer, which is at ADDRESS and is reached
 *                                                by lines on stdout (commands) and stdin (answers); we listen on OWN
 *   PROGRAM server ADDRESS PORT                  is that peer: commands on stdin, answers on stdout
 *
 * Prints `ok NAME` or `not ok NAME: why`, at its end `connections N` (made and accepted); exit status = failures.
 * The third case that hangs is the last one that is run.
 */
#ifndef KNET_CASE_H
#define KNET_CASE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SOME __attribute__((unused)) static

/* What the frame, the case and all processes that the case forks have in common. */
struct shared {
    atomic_int failed;
    atomic_long connections;
    atomic_long words; /* numbers the commands to the peer */
    char why[400];
};
static struct shared *shared;
static const char *address, *own;
static int port;      /* of the running case */
static bool passive;  /* in a WIRE case: the peer connects to us */
static int to_peer = -1, from_peer = -1;
static int hangs; /* cases that had to be killed */

__attribute__((noreturn, format(printf, 3, 4), unused)) static void fail_at(const char *file, int line, const char *format, ...)
{
    if (atomic_exchange(&shared->failed, 1) == 0) {
        const char *base = strrchr(file, '/');
        int used = snprintf(shared->why, sizeof shared->why, "%s:%d: ", base ? base + 1 : file, line);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(shared->why + used, sizeof shared->why - (size_t)used, format, arguments);
        va_end(arguments);
    }
    _exit(1);
}

SOME const char *errno_name(int error)
{
    const char *name = error ? strerrorname_np(error) : "no error";
    return name ? name : "an unknown errno";
}

#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(what)                          \
    do {                                     \
        if (!(what)) FAIL("not %s", #what);  \
    } while (0)
/* The call gives exactly this value. */
#define EQUAL(call, value)                                                                                    \
    do {                                                                                                      \
        errno = 0;                                                                                            \
        long got_ = (long)(call), want_ = (long)(value);                                                      \
        if (got_ != want_) FAIL("%s is %ld (%s), not %ld", #call, got_, errno_name(errno), want_);            \
    } while (0)
/* The call gives -1 and this errno. */
#define FAILS(call, error)                                                                                    \
    do {                                                                                                      \
        errno = 0;                                                                                            \
        long got_ = (long)(call);                                                                             \
        int errno_ = errno;                                                                                   \
        if (got_ != -1 || errno_ != (error))                                                                  \
            FAIL("%s is %ld (%s), not -1 (%s)", #call, got_, errno_name(errno_), #error);                     \
    } while (0)
/* The call succeeds; its value. */
#define OK(call)                                                                                              \
    ({                                                                                                        \
        errno = 0;                                                                                            \
        long got_ = (long)(call);                                                                             \
        if (got_ < 0) FAIL("%s is %ld (%s)", #call, got_, errno_name(errno));                                 \
        (int)got_;                                                                                            \
    })
/* pthread calls give the errno themselves. */
#define THREAD(call)                                                        \
    do {                                                                    \
        int error_ = (call);                                                \
        if (error_) FAIL("%s gives %s", #call, errno_name(error_));         \
    } while (0)

enum { HANGS_MAX = 3 };
enum kind { LOCAL, WIRE_BOTH, WIRE_ONE };
struct named {
    const char *name;
    void (*run)(void);
    enum kind kind;
    int seconds;
    struct named *next;
};
static struct named *first_case, **last_case = &first_case;

#define CASE_(name_, kind_, seconds_)                                                                         \
    static void case_##name_(void);                                                                           \
    __attribute__((constructor)) static void add_##name_(void)                                                \
    {                                                                                                         \
        static struct named this = {#name_, case_##name_, kind_, seconds_, NULL};                             \
        *last_case = &this;                                                                                   \
        last_case = &this.next;                                                                               \
    }                                                                                                         \
    static void case_##name_(void)
/* A case with both ends in our hands; one with a peer, run with either side connecting; one with a peer, run once. */
#define CASE(name) CASE_(name, LOCAL, 20)
#define CASE_FOR(name, seconds) CASE_(name, LOCAL, seconds)
#define WIRE(name) CASE_(name, WIRE_BOTH, 20)
#define WIRE_ONCE(name) CASE_(name, WIRE_ONE, 20)

SOME long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

SOME long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

SOME void pause_ms(long ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) < 0 && errno == EINTR) {
    }
}

SOME bool long_run(void)
{
    const char *word = getenv("KNET_TEST_LONG");
    return word && strcmp(word, "1") == 0;
}

#include "net.h"
#include "peer.h"

static void run_one(struct named *this, const char *way)
{
    char name[96];
    snprintf(name, sizeof name, "%s%s%s", this->name, *way ? "_" : "", way);
    shared->failed = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0);
        if (this->kind != LOCAL && to_peer < 0) fork_peer();
        this->run();
        _exit(0);
    }
    setpgid(child, child);
    long end = now_ms() + 1000L * this->seconds;
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (now_ms() > end) {
            kill(-child, SIGKILL);
            waitpid(child, &status, 0);
            hangs++;
            if (!atomic_exchange(&shared->failed, 1))
                snprintf(shared->why, sizeof shared->why, "still running after %d s", this->seconds);
        }
        struct timespec nap = {0, 500000};
        nanosleep(&nap, NULL);
        if (shared->failed && now_ms() + 1000 < end) end = now_ms() + 1000; /* a forked part has failed */
    }
    kill(-child, SIGKILL); /* what the case has forked */
    if (to_peer >= 0) peer_ask("forget", 0, 0);
    if (!shared->failed && status) {
        shared->failed = 1;
        snprintf(shared->why, sizeof shared->why, WIFSIGNALED(status) ? "ended by signal %d" : "exit status %d",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    if (shared->failed)
        printf("not ok %s: %s\n", name, shared->why);
    else
        printf("ok %s\n", name);
    fflush(stdout);
}

int main(int count, char **words)
{
    bool client = count > 4 && strcmp(words[1], "client") == 0;
    if (count < 4 || (!client && strcmp(words[1], "both") != 0 && strcmp(words[1], "server") != 0)) {
        fprintf(stderr, "usage: %s both ADDRESS PORT [CASE...] | client ADDRESS PORT OWN [CASE...] | server ADDRESS PORT\n", words[0]);
        return 64;
    }
    address = words[2];
    port = atoi(words[3]);
    own = client ? words[4] : address;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 71;
    if (strcmp(words[1], "server") == 0) return peer_main(0, 1);
    char **wanted = words + (client ? 5 : 4);
    int failures = 0;
    if (client) to_peer = 1, from_peer = 0;
    for (struct named *this = first_case; this; this = this->next) {
        bool chosen = !*wanted;
        for (char **word = wanted; *word; word++) chosen |= strcmp(*word, this->name) == 0;
        if (!chosen || (client && this->kind == LOCAL)) continue;
        for (int way = 0; way < (this->kind == WIRE_BOTH ? 2 : 1); way++) {
            passive = way == 0;
            run_one(this, this->kind != WIRE_BOTH ? "" : passive ? "accepting" : "connecting");
            failures += shared->failed;
            port++;
            if (hangs == HANGS_MAX) goto end;
        }
    }
end:
    printf("connections %ld\n", (long)shared->connections);
    return failures > 99 ? 99 : failures;
}

#endif
