/* A transport that costs nothing, preloaded into redis-server: what a request takes Redis itself.
 *
 * STUB_CLIENTS connections are accepted, which are ends of socket pairs, so that everything else that Redis asks of them works.
 * Each epoll_wait says that up to STUB_BATCH of them are readable, read gives the next request of redis-benchmark (SET, then GET,
 * keys drawn from 100000), write swallows the answer. After STUB_WARM requests and STUB_REQUESTS more of each kind it prints one
 * line of JSON on descriptor 1, CPU nanoseconds a request, and ends the program. Linked with nothing but libc.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1024, KEYS = 100000 };

static int listener = -1;
static int fds[MOST];
static char is_ours[65536];
static int accepted, next_ready;
static unsigned long served, answered;
static unsigned seed = 1;
static long began;

static int clients, batch;
static unsigned long warm, each;

static int number(const char *name, int usual) {
    const char *text = getenv(name);
    return text ? atoi(text) : usual;
}

__attribute__((constructor)) static void read_settings(void) {
    clients = number("STUB_CLIENTS", 50);
    clients = clients < MOST ? clients : MOST;
    batch = number("STUB_BATCH", 16);
    warm = (unsigned long)number("STUB_WARM", 20000);
    each = (unsigned long)number("STUB_REQUESTS", 100000);
}

static int ours(int fd) {
    return fd >= 0 && fd < (int)sizeof is_ours && is_ours[fd];
}

static long cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

static void finish(void) {
    static long set_ns;
    if (answered == warm) {
        began = cpu_ns();
    } else if (answered == warm + each) {
        set_ns = cpu_ns() - began;
        began = cpu_ns();
    } else if (answered == warm + 2 * each) {
        dprintf(1, "{\"SET\": %.1f, \"GET\": %.1f}\n", (double)set_ns / (double)each, (double)(cpu_ns() - began) / (double)each);
        _exit(0);
    }
}

int listen(int fd, int backlog) {
    listener = fd;
    return (int)syscall(SYS_listen, fd, backlog);
}

int accept4(int fd, struct sockaddr *address, socklen_t *len, int flags) {
    int pair[2];
    if (fd != listener || accepted >= clients) {
        errno = EAGAIN;
        return -1;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) {
        return -1;
    }
    (void)flags;
    if (address && len && *len >= sizeof(sa_family_t)) {
        memset(address, 0, *len);
        address->sa_family = AF_INET;
        *len = 16;
    }
    if (pair[0] < (int)sizeof is_ours) {
        is_ours[pair[0]] = 1;
    }
    fds[accepted++] = pair[0];
    return pair[0];
}

int accept(int fd, struct sockaddr *address, socklen_t *len) {
    return accept4(fd, address, len, 0);
}

static void ready(struct epoll_event *event, int fd) {
    event->events = EPOLLIN;
    /* As Redis registers it; nobody else's program is run with this. */
    event->data.u64 = 0;
    event->data.fd = fd;
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout) {
    int count = 0;
    if (listener < 0) {
        return (int)syscall(SYS_epoll_pwait, epoll, events, most, timeout, NULL, 8);
    }
    if (accepted < clients) {
        ready(events, listener);
        return 1;
    }
    while (count < batch && count < most && count < accepted) {
        ready(&events[count++], fds[next_ready]);
        next_ready = (next_ready + 1) % accepted;
    }
    return count;
}

/* A request with its key's digits drawn anew: what it costs to make one is not Redis'. */
static size_t request(char *to, size_t room) {
    static char set[] = "*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000000\r\n$3\r\nxxx\r\n";
    static char get[] = "*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000000\r\n";
    int sets = served++ < warm + each;
    char *text = sets ? set : get;
    size_t len = sets ? sizeof set - 1 : sizeof get - 1;
    /* The digits end where `key:` and twelve of them do, behind 18 bytes of header. */
    char *digit = text + 18 + 4 + 12;
    seed = seed * 1103515245u + 12345u;
    for (unsigned key = (seed >> 8) % KEYS, at = 0; at < 5; at++, key /= 10) {
        *--digit = (char)('0' + key % 10);
    }
    if (len > room) {
        return 0;
    }
    memcpy(to, text, len);
    return len;
}

ssize_t read(int fd, void *to, size_t room) {
    return ours(fd) ? (ssize_t)request(to, room) : syscall(SYS_read, fd, to, room);
}

ssize_t __read_chk(int fd, void *to, size_t room, size_t size) {
    return read(fd, to, room < size ? room : size);
}

ssize_t write(int fd, const void *from, size_t len) {
    if (!ours(fd)) {
        return syscall(SYS_write, fd, from, len);
    }
    answered++;
    finish();
    return (ssize_t)len;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    ssize_t len = 0;
    if (!ours(fd)) {
        return syscall(SYS_writev, fd, parts, count);
    }
    for (int at = 0; at < count; at++) {
        len += (ssize_t)parts[at].iov_len;
    }
    answered++;
    finish();
    return len;
}
