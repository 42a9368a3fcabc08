/* What the program of executing.c does when it is executed.
 *
 * It executes itself as `PROGRAM part NAME ADDRESS PORT NUMBER...`; a part ends with status 0, or says on stderr why not.
 */
#ifndef KNET_EXECUTING_PARTS_H
#define KNET_EXECUTING_PARTS_H

#include "case.h"
#include "events.h"
#include "rights.h"
#include <sys/syscall.h>

extern char **environ;

enum { WORDS = 12 };

/* The words of a part. */
static char **words(const char *name, int count, const int *numbers)
{
    static char *list[WORDS], text[WORDS][24];
    CHECK(count < WORDS - 6);
    list[0] = "part-of-executing";
    list[1] = "part";
    list[2] = (char *)name;
    list[3] = (char *)own;
    snprintf(text[0], sizeof text[0], "%d", port);
    list[4] = text[0];
    for (int n = 0; n < count; n++) {
        snprintf(text[n + 1], sizeof text[0], "%d", numbers[n]);
        list[5 + n] = text[n + 1];
    }
    list[5 + count] = NULL;
    return list;
}

#define WORDS_OF(name, ...) words(name, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__})

static const char *myself(void)
{
    static char path[512];
    ssize_t size = OK(readlink("/proc/self/exe", path, sizeof path - 1));
    path[size] = 0;
    return path;
}

static void become(const char *name, int number)
{
    execv(myself(), WORDS_OF(name, number));
    FAIL("execv: %s", errno_name(errno));
}

/* A child that does the part. */
static pid_t started(const char *name, int number)
{
    pid_t child = OK(fork());
    if (child == 0) become(name, number);
    return child;
}

/* Bytes 0 to 99 come, some of them before exec; it sends as many. */
static void part_echo(int fd)
{
    struct sockaddr_in name;
    socklen_t size = sizeof name;
    OK(getpeername(fd, (struct sockaddr *)&name, &size));
    EQUAL(size, sizeof name);
    EQUAL(so_error(fd), 0);
    echo(fd, 100);
    OK(close(fd));
}

static void part_serve(int listener)
{
    int on = 0;
    socklen_t size = sizeof on;
    OK(getsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &on, &size));
    EQUAL(on, 1);
    for (int n = 0; n < 2; n++) {
        int fd = OK(accept(listener, NULL, NULL));
        echo(fd, 10);
        OK(close(fd));
    }
}

/* A connection is registered edge-triggered with 7 as its data, a pipe with 8. */
static void part_epoll(int epoll)
{
    struct epoll_event events[4];
    EQUAL(epoll_wait(epoll, events, 4, 10000), 1);
    EQUAL(events[0].data.u64, 7);
    EVENT(events[0].events, EPOLLIN);
    EQUAL(epoll_wait(epoll, events, 4, 0), 0);
    put(3, 0, 1); /* the peer answers */
    EQUAL(epoll_wait(epoll, events, 4, 10000), 1);
    EQUAL(events[0].data.u64, 7);
    get(3, 0, 2);
    EQUAL(write(5, "x", 1), 1);
    EQUAL(epoll_wait(epoll, events, 4, 10000), 1);
    EQUAL(events[0].data.u64, 8);
    OK(change(epoll, EPOLL_CTL_DEL, 3, 0, 0));
}

/* Executes itself until its number is 0, and hands a stream on that never stops. */
static void part_relay(int times)
{
    unsigned char part[4096];
    long *done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, 4, 0);
    CHECK(done != MAP_FAILED);
    for (long n = 0; times == 0 || n < 20; n++) {
        int got = OK(recv(3, part, sizeof part, 0));
        if (got == 0) break;
        CHECK(is_pattern(part, *done, got));
        *done += got;
    }
    if (times > 0) become("relay", times - 1);
    put(3, 0, 1);
}

/* Bound before exec, listened on behind it. */
static void part_listen(int fd)
{
    OK(listen(fd, 4));
    put(1, 0, 1);
    int one = OK(accept(fd, NULL, NULL));
    echo(one, 10);
}

static void part_closed(int fd)
{
    FAILS(fcntl(fd, F_GETFD), EBADF);
}

static void part_stdio(int unused)
{
    (void)unused;
    unsigned char bytes[100];
    long done = 0;
    while (done < 100) {
        int got = OK(read(0, bytes + done, (size_t)(100 - done)));
        CHECK(got > 0);
        done += got;
    }
    CHECK(is_pattern(bytes, 0, 100));
    EQUAL(write(1, bytes, 100), 100);
}

/* Through a shell and once more. */
static void part_again(int fd)
{
    execv(myself(), WORDS_OF("echo", fd));
    FAIL("execv: %s", errno_name(errno));
}

static void part_accept_there(int listener)
{
    struct sockaddr_in name;
    socklen_t size = sizeof name;
    OK(getsockname(listener, (struct sockaddr *)&name, &size));
    EQUAL(ntohs(name.sin_port), port);
    pid_t child = OK(fork());
    if (child == 0) {
        int fd = OK(accept(listener, NULL, NULL));
        part_echo(fd);
        _exit(0);
    }
    ends_well(child);
}

static void part_blocking(int fd)
{
    EQUAL(OK(fcntl(fd, F_GETFL)) & O_NONBLOCK, O_NONBLOCK);
    int on = 0;
    socklen_t size = sizeof on;
    OK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &size));
    CHECK(on != 0);
    char byte;
    FAILS(recv(fd, &byte, 1, 0), EAGAIN);
    put(fd, 0, 1);
}

/* A program with epolls of its own gets a connection, and later a listener. */
static void part_receive(int over)
{
    int first = OK(epoll_create1(0)), second = OK(epoll_create1(0)), way[2], undecided = tcp(0);
    OK(pipe(way));
    OK(change(first, EPOLL_CTL_ADD, way[0], EPOLLIN, 5));
    OK(change(second, EPOLL_CTL_ADD, over, EPOLLIN, 6));
    OK(change(second, EPOLL_CTL_ADD, undecided, EPOLLOUT, 9));
    struct epoll_event events[4];
    EQUAL(epoll_wait(second, events, 4, 10000) > 0, 1);
    int fd, listener;
    EQUAL(receive(over, &fd, 1, 0), 1);
    OK(change(first, EPOLL_CTL_ADD, fd, EPOLLIN, 7));
    EQUAL(epoll_wait(first, events, 4, 10000), 1);
    EQUAL(events[0].data.u64, 7);
    echo(fd, 100);
    EQUAL(epoll_wait(first, events, 4, 0), 0);
    EQUAL(write(way[1], "x", 1), 1);
    EQUAL(epoll_wait(first, events, 4, 10000), 1);
    EQUAL(events[0].data.u64, 5);
    EQUAL(receive(over, &listener, 1, 0), 1);
    OK(change(second, EPOLL_CTL_DEL, over, 0, 0));
    OK(change(second, EPOLL_CTL_ADD, listener, EPOLLIN, 8));
    OK(try_bind(undecided, own, port + 1));
    OK(listen(undecided, 4));
    OK(change(second, EPOLL_CTL_MOD, undecided, EPOLLIN, 10));
    put(over, 0, 1);
    for (int n = 0; n < 2; n++) {
        EQUAL(epoll_wait(second, events, 4, 10000), 1);
        EQUAL(events[0].data.u64, n ? 10 : 8);
        int one = OK(accept(n ? undecided : listener, NULL, NULL));
        echo(one, 10);
        OK(close(one));
    }
    OK(close(fd));
}

__attribute__((constructor)) static void part(int count, char **list)
{
    static const struct {
        const char *name;
        void (*run)(int);
    } parts[] = {{"echo", part_echo},   {"serve", part_serve},   {"epoll", part_epoll}, {"relay", part_relay},
                 {"listen", part_listen}, {"closed", part_closed}, {"stdio", part_stdio}, {"again", part_again},
                 {"accept", part_accept_there}, {"flags", part_blocking}, {"receive", part_receive}};
    if (count < 6 || strcmp(list[1], "part") != 0) return;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    own = address = list[3];
    port = atoi(list[4]);
    for (size_t n = 0; n < sizeof parts / sizeof *parts; n++) {
        if (strcmp(parts[n].name, list[2]) != 0) continue;
        pid_t child = fork(); /* to say why it failed */
        if (child == 0) {
            parts[n].run(atoi(list[5]));
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        if (status) fprintf(stderr, "part %s: %s\n", list[2], shared->why);
        _exit(status ? 1 : 0);
    }
    _exit(2);
}

#endif
