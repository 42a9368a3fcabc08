/* An echo server of a few connections that waits in one of three ways: by libc's poll, by epoll without libc, or by io_uring
 * without any library. usage: waits ADDRESS PORT poll|epoll|io_uring CONNECTIONS */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void must(long result, const char *what)
{
    if (result >= 0) return;
    printf("%s: %s\n", what, strerror(errno));
    exit(3);
}

/* Past libc, as Rust's linux_raw back ends and Go do it. */
#define RAW(name, number)                                                                                     \
    static long name(long a, long b, long c, long d, long e, long f)                                          \
    {                                                                                                         \
        long result;                                                                                          \
        register long r10 __asm__("r10") = d;                                                                 \
        register long r8 __asm__("r8") = e;                                                                   \
        register long r9 __asm__("r9") = f;                                                                   \
        __asm__ volatile("syscall"                                                                            \
                         : "=a"(result)                                                                       \
                         : "a"((long)(number)), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)            \
                         : "rcx", "r11", "memory");                                                           \
        if (result < 0 && result > -4096) {                                                                   \
            errno = (int)-result;                                                                             \
            return -1;                                                                                        \
        }                                                                                                     \
        return result;                                                                                        \
    }
/* Another number, of getpid, leaves a program without that way of waiting. */
#ifndef EPOLL_WAIT
#define EPOLL_WAIT SYS_epoll_pwait
#endif
#ifndef URING_ENTER
#define URING_ENTER SYS_io_uring_enter
#endif
RAW(raw_epoll_create, SYS_epoll_create1)
RAW(raw_epoll_ctl, SYS_epoll_ctl)
RAW(raw_epoll_wait, EPOLL_WAIT)
RAW(raw_uring_setup, SYS_io_uring_setup)
RAW(raw_uring_enter, URING_ENTER)

/* Echoes until the peer ends; `ready` waits until fd can be read. */
static void echo(int listener, int connections, void (*ready)(int fd))
{
    while (connections-- > 0) {
        ready(listener);
        int peer = accept(listener, NULL, NULL);
        must(peer, "accept");
        char bytes[4096];
        long count;
        while (ready(peer), (count = recv(peer, bytes, sizeof bytes, 0)) > 0) must(send(peer, bytes, (size_t)count, 0), "send");
        close(peer);
    }
}

static void by_poll(int fd)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    must(poll(&entry, 1, -1), "poll");
}

static void by_epoll(int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    long epoll = raw_epoll_create(0, 0, 0, 0, 0, 0);
    must(epoll, "epoll_create1");
    must(raw_epoll_ctl(epoll, EPOLL_CTL_ADD, fd, (long)&event, 0, 0), "epoll_ctl");
    must(raw_epoll_wait(epoll, (long)&event, 1, -1, 0, 8), "epoll_pwait");
    close((int)epoll);
}

static struct ring {
    long fd;
    unsigned *tail, *mask, *array, *done_head, *done_mask;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *done;
} ring;

static void make_ring(void)
{
    struct io_uring_params how = {0};
    ring.fd = raw_uring_setup(8, (long)&how, 0, 0, 0, 0);
    must(ring.fd, "io_uring_setup");
    int rights = PROT_READ | PROT_WRITE;
    size_t size = how.sq_off.array + how.sq_entries * sizeof(unsigned);
    size_t done_size = how.cq_off.cqes + how.cq_entries * sizeof(struct io_uring_cqe);
    char *queue = mmap(NULL, size, rights, MAP_SHARED, (int)ring.fd, IORING_OFF_SQ_RING);
    char *done = mmap(NULL, done_size, rights, MAP_SHARED, (int)ring.fd, IORING_OFF_CQ_RING);
    size = how.sq_entries * sizeof(struct io_uring_sqe);
    ring.entries = mmap(NULL, size, rights, MAP_SHARED, (int)ring.fd, IORING_OFF_SQES);
    if (queue == MAP_FAILED || done == MAP_FAILED || ring.entries == MAP_FAILED) must(-1, "mmap");
    ring.tail = (unsigned *)(queue + how.sq_off.tail);
    ring.mask = (unsigned *)(queue + how.sq_off.ring_mask);
    ring.array = (unsigned *)(queue + how.sq_off.array);
    ring.done_head = (unsigned *)(done + how.cq_off.head);
    ring.done_mask = (unsigned *)(done + how.cq_off.ring_mask);
    ring.done = (struct io_uring_cqe *)(done + how.cq_off.cqes);
}

/* One operation from its submission to its end. */
static long perform(int operation, int fd, void *place, unsigned count)
{
    unsigned at = *ring.tail & *ring.mask;
    memset(&ring.entries[at], 0, sizeof ring.entries[at]);
    ring.entries[at].opcode = (unsigned char)operation;
    ring.entries[at].fd = fd;
    ring.entries[at].addr = (unsigned long)place;
    ring.entries[at].len = count;
    ring.array[at] = at;
    __atomic_store_n(ring.tail, *ring.tail + 1, __ATOMIC_RELEASE);
    must(raw_uring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0), "io_uring_enter");
    int result = ring.done[*ring.done_head & *ring.done_mask].res;
    __atomic_store_n(ring.done_head, *ring.done_head + 1, __ATOMIC_RELEASE);
    errno = result < 0 ? -result : 0;
    must(result, "io_uring");
    return result;
}

static void echo_by_ring(int listener, int connections)
{
    make_ring();
    while (connections-- > 0) {
        int peer = (int)perform(IORING_OP_ACCEPT, listener, NULL, 0);
        char bytes[4096];
        long count;
        while ((count = perform(IORING_OP_RECV, peer, bytes, sizeof bytes)) > 0) perform(IORING_OP_SEND, peer, bytes, (unsigned)count);
        close(peer);
    }
}

int main(int words, char **word)
{
    if (words != 5) return 64;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(word[2]))};
    inet_pton(AF_INET, word[1], &here.sin_addr);
    setvbuf(stdout, NULL, _IOLBF, 0);
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1, connections = atoi(word[4]);
    must(listener, "socket");
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    must(bind(listener, (struct sockaddr *)&here, sizeof here), "bind");
    must(listen(listener, 16), "listen");
    puts("listening");
    if (strcmp(word[3], "io_uring") == 0) echo_by_ring(listener, connections);
    else echo(listener, connections, strcmp(word[3], "epoll") == 0 ? by_epoll : by_poll);
    puts("done");
    return 0;
}
