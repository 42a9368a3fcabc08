// What only a stack beside the kernel can show. Usage: stack ADDRESS CASE; exits 0 when all is well, else says what is not.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

static const char *address;

static struct sockaddr_in at(const char *ip, int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, ip, &a.sin_addr);
    return a;
}

static int port_of(int fd) {
    struct sockaddr_in a; socklen_t n = sizeof a;
    MUST(!getsockname(fd, (void *)&a, &n));
    return ntohs(a.sin_port);
}

static int bound(const char *ip) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = at(ip, 0);
    MUST(!bind(fd, (void *)&a, sizeof a));
    return fd;
}

static int dial(const char *ip, int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = at(ip, port);
    MUST(!connect(fd, (void *)&a, sizeof a));
    return fd;
}

// A wildcard listener, in an epoll since before it was bound, gets clients from both sides; no descriptor comes twice.
static void merged(void) {
    int e = epoll_create1(0), l = socket(AF_INET, SOCK_STREAM, 0), seen = 0;
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = 42}, out[8];
    MUST(!epoll_ctl(e, EPOLL_CTL_ADD, l, &ev));
    struct sockaddr_in a = at("0.0.0.0", 0);
    MUST(!bind(l, (void *)&a, sizeof a));
    MUST(!listen(l, 8));
    MUST(!fcntl(l, F_SETFL, O_NONBLOCK));
    MUST(accept(l, NULL, NULL) < 0 && errno == EAGAIN);
    int c[2] = {dial(address, port_of(l)), dial("127.0.0.1", port_of(l))};
    for (int i = 0; i < 2; i++) MUST(write(c[i], i ? "k" : "s", 1) == 1);
    while (seen != 3) {
        int n = epoll_wait(e, out, 8, 5000);
        MUST(n == 1 && out[0].data.u64 == 42);
        struct sockaddr_in peer; socklen_t len = sizeof peer; int s;
        while ((s = accept4(l, (void *)&peer, &len, SOCK_CLOEXEC)) >= 0) {
            char b;
            MUST(read(s, &b, 1) == 1);
            int kernel = ntohl(peer.sin_addr.s_addr) == 0x7f000001;
            MUST(b == (kernel ? 'k' : 's'));
            MUST(fcntl(s, F_GETFD) == FD_CLOEXEC && !(fcntl(s, F_GETFL) & O_NONBLOCK));
            seen |= kernel ? 2 : 1;
            close(s);
        }
        MUST(errno == EAGAIN);
    }
    MUST(epoll_wait(e, out, 8, 50) == 0);
    struct pollfd p = {.fd = l, .events = POLLIN};
    MUST(poll(&p, 1, 0) == 0);
    int again = dial("127.0.0.1", port_of(l));
    MUST(poll(&p, 1, 5000) == 1 && p.revents == POLLIN);
    MUST(!fcntl(l, F_SETFL, 0));
    int s = accept(l, NULL, NULL);
    MUST(s >= 0);
    int later = dial(address, port_of(l));
    s = accept(l, NULL, NULL);
    MUST(s >= 0);
    close(again); close(later);
}

// A listener made before the fork serves when the parent is gone (nginx: daemon on, master_process off).
static void orphan(void) {
    int l = bound(address), ends[2];
    MUST(!listen(l, 8));
    MUST(!pipe(ends));
    if (fork() == 0) {
        if (fork() == 0) {
            close(ends[1]);
            char b;
            int s = accept(l, NULL, NULL);
            while (s >= 0 && read(s, &b, 1) == 1) if (write(s, &b, 1) != 1) _exit(1);
            _exit(0);
        }
        _exit(0);
    }
    int port = port_of(l), status;
    close(l);
    MUST(wait(&status) > 0 && status == 0);
    // Only the grandchild holds the listener now.
    int c = dial(address, port);
    char b = 0;
    MUST(write(c, "g", 1) == 1 && read(c, &b, 1) == 1 && b == 'g');
    MUST(wait(&status) < 0 && errno == ECHILD);
    close(c);
}

static void *blocked(void *arg) {
    char b;
    errno = 0;
    long n = recv(*(int *)arg, &b, 1, 0);
    return (void *)(long)(n < 0 ? errno : 0);
}

// The host dies: reset and hung up at once, for sleepers too. "ready" on stdout asks for the kill.
static void lost(void) {
    int l = bound(address), e = epoll_create1(0);
    MUST(!listen(l, 8));
    int c = dial(address, port_of(l)), s = accept(l, NULL, NULL), d = dial(address, port_of(l));
    MUST(s >= 0);
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = s}, out[8];
    MUST(!epoll_ctl(e, EPOLL_CTL_ADD, s, &ev));
    pthread_t thread; void *answer;
    pthread_create(&thread, NULL, blocked, &d);
    printf("ready\n"); fflush(stdout);
    MUST(epoll_wait(e, out, 8, 10000) == 1);
    MUST((out[0].events & (EPOLLHUP | EPOLLERR)) == (EPOLLHUP | EPOLLERR));
    pthread_join(thread, &answer);
    MUST((long)answer == ECONNRESET);
    char b;
    MUST(recv(c, &b, 1, 0) < 0 && errno == ECONNRESET);
    MUST(send(c, &b, 1, MSG_NOSIGNAL) < 0 && errno == EPIPE);
    struct pollfd p = {.fd = s};
    MUST(poll(&p, 1, 0) == 1 && p.revents & POLLHUP);
    close(s); close(c); close(d); close(l); close(e);
    // A second later another host can be had.
    sleep(2);
    l = bound(address);
    MUST(!listen(l, 8));
    c = dial(address, port_of(l));
    s = accept(l, NULL, NULL);
    MUST(write(c, "x", 1) == 1 && read(s, &b, 1) == 1);
}

static void *adder(void *arg) {
    int *fds = arg;
    usleep(100000);
    int l = bound(address);
    MUST(!listen(l, 8));
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = l};
    MUST(!epoll_ctl(fds[0], EPOLL_CTL_ADD, l, &ev));
    dial(address, port_of(l));
    return NULL;
}

// A thread that waits on an epoll since before this process was attached is woken by what another thread adds.
static void early(void) {
    int e = epoll_create1(0), ends[2];
    MUST(!pipe(ends));
    struct epoll_event ev = {.events = EPOLLIN}, out[4];
    MUST(!epoll_ctl(e, EPOLL_CTL_ADD, ends[0], &ev));
    pthread_t thread;
    pthread_create(&thread, NULL, adder, &e);
    MUST(epoll_wait(e, out, 4, 10000) == 1);
    pthread_join(thread, NULL);
}

// A cancelled thread unwinds out of a wait, and what it waited on still works.
static void cancelled(void) {
    int l = bound(address);
    MUST(!listen(l, 8));
    int c = dial(address, port_of(l)), s = accept(l, NULL, NULL);
    pthread_t thread; void *answer;
    pthread_create(&thread, NULL, blocked, &s);
    usleep(100000);
    pthread_cancel(thread);
    MUST(!pthread_join(thread, &answer) && answer == PTHREAD_CANCELED);
    char b;
    MUST(write(c, "y", 1) == 1 && read(s, &b, 1) == 1 && b == 'y');
}

static volatile int wrote;
static int handed;
static void handler(int sig) { (void)sig; if (write(handed, "h", 1) == 1) wrote++; }

// A timer whose handler writes to the socket that main is writing to: nothing is lost, nothing hangs.
static void nested(void) {
    int l = bound(address);
    MUST(!listen(l, 8));
    handed = dial(address, port_of(l));
    int s = accept(l, NULL, NULL), ends[2];
    MUST(!pipe(ends));
    pid_t reader = fork();
    if (!reader) {
        close(handed);
        long main_bytes = 0, handler_bytes = 0, n; char b[4096];
        while ((n = read(s, b, sizeof b)) > 0)
            for (long i = 0; i < n; i++) { if (b[i] == 'm') main_bytes++; else if (b[i] == 'h') handler_bytes++; else _exit(3); }
        long counts[2] = {main_bytes, handler_bytes};
        MUST(write(ends[1], counts, sizeof counts) == sizeof counts);
        _exit(0);
    }
    close(s);
    struct sigaction act = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &act, NULL);
    ualarm(1000, 500);
    static char m[700]; long total = 0;
    memset(m, 'm', sizeof m);
    for (int i = 0; i < 3000; i++) { long n = write(handed, m, sizeof m); MUST(n > 0); total += n; }
    ualarm(0, 0);
    int sent = wrote;
    close(handed);
    long counts[2];
    MUST(read(ends[0], counts, sizeof counts) == sizeof counts);
    MUST(counts[0] == total && counts[1] == sent && sent > 10);
}

// A child made by a raw clone holds nothing: what it closes stays with its parent. Its own socket is undisturbed.
static void raw(void) {
    int l = bound(address), status;
    MUST(!listen(l, 8));
    int c = dial(address, port_of(l)), s = accept(l, NULL, NULL);
    long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!child) {
        close(c); close(s); close(l);
        int u = socket(AF_INET, SOCK_STREAM, 0);
        syscall(SYS_exit_group, u < 0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    char b;
    MUST(write(c, "r", 1) == 1 && read(s, &b, 1) == 1 && b == 'r');
    struct pollfd p = {.fd = s, .events = POLLIN | POLLRDHUP};
    MUST(poll(&p, 1, 50) == 0);
    close(dial(address, port_of(l)));
}

// A socket that goes through a socketpair is the same one at its other end; one that was closed meanwhile lives on there.
static void handed_over(void) {
    int l = bound(address), ends[2], listens = 0, there = -1;
    socklen_t len = sizeof listens;
    MUST(!listen(l, 8));
    MUST(!socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    char space[CMSG_SPACE(sizeof(int))] = {0}, b = 'x';
    struct iovec v = {&b, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *item = CMSG_FIRSTHDR(&m);
    item->cmsg_level = SOL_SOCKET; item->cmsg_type = SCM_RIGHTS; item->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(item), &l, sizeof l);
    MUST(sendmsg(ends[0], &m, 0) == 1);
    MUST(!close(l));
    memset(space, 0, sizeof space);
    MUST(recvmsg(ends[1], &m, 0) == 1);
    memcpy(&there, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof there);
    MUST(!getsockopt(there, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) && listens == 1);
    MUST(!close(there));
}

int main(int count, char **args) {
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"merged", merged}, {"orphan", orphan}, {"lost", lost}, {"early", early}, {"cancelled", cancelled}, {"nested", nested}, {"raw", raw}, {"handed_over", handed_over},
    };
    if (count != 3) return 2;
    address = args[1];
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(args[2], cases[i].name)) { cases[i].run(); return 0; }
    return 2;
}
