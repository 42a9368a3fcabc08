/* Every call that returns a new descriptor: a number that was closed behind the library's back is a new thing then. */
#include "case.h"
#include <grp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

/* Flags that the compiler does not know: open and its kin become their checked twins. */
static volatile int unknown = O_RDONLY;
static const char *const file = "/etc/passwd";

static int by_open(void) { return open(file, O_RDONLY); }
static int by_open_checked(void) { return open(file, unknown); }
static int by_open64(void) { return open64(file, O_RDONLY); }
static int by_open64_checked(void) { return open64(file, unknown); }
static int by_openat(void) { return openat(AT_FDCWD, file, O_RDONLY); }
static int by_openat_checked(void) { return openat(AT_FDCWD, file, unknown); }
static int by_openat64(void) { return openat64(AT_FDCWD, file, O_RDONLY); }
static int by_openat64_checked(void) { return openat64(AT_FDCWD, file, unknown); }
static int by_creat(void) { return creat("/dev/null", 0600); }
static int by_creat64(void) { return creat64("/dev/null", 0600); }
static int by_fopen(void)
{
    FILE *stream = fopen(file, "r");
    return stream ? fileno(stream) : -1;
}
static int by_fopen64(void)
{
    FILE *stream = fopen64(file, "r");
    return stream ? fileno(stream) : -1;
}
static int by_pipe(void)
{
    int ends[2];
    return pipe(ends) ? -1 : ends[0];
}
static int by_pipe2(void)
{
    int ends[2];
    return pipe2(ends, O_CLOEXEC) ? -1 : ends[0];
}
static int by_eventfd(void) { return eventfd(0, 0); }
static int by_timerfd(void) { return timerfd_create(CLOCK_MONOTONIC, 0); }
static int by_signalfd(void)
{
    sigset_t none;
    sigemptyset(&none);
    return signalfd(-1, &none, 0);
}
static int by_inotify(void) { return inotify_init(); }
static int by_inotify1(void) { return inotify_init1(IN_CLOEXEC); }
static int by_memfd(void) { return memfd_create("numbers", 0); }
static int by_epoll(void) { return epoll_create(1); }
static int by_epoll1(void) { return epoll_create1(0); }
static int by_dup(void) { return dup(0); }
static int by_dupfd(void) { return fcntl(0, F_DUPFD, 0); }
static int by_dupfd_cloexec(void) { return fcntl(0, F_DUPFD_CLOEXEC, 0); }
static int by_socketpair(void)
{
    int ends[2];
    return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) ? -1 : ends[0];
}
static int by_socket(void) { return socket(AF_INET, SOCK_STREAM, 0); }
static int by_datagram_socket(void) { return socket(AF_INET, SOCK_DGRAM, 0); }

struct maker {
    const char *name;
    int (*make)(void);
    bool is_socket;
};
#define MAKER(name) {#name, name, false}
static const struct maker makers[] = {
    MAKER(by_open), MAKER(by_open_checked), MAKER(by_open64), MAKER(by_open64_checked), MAKER(by_openat),
    MAKER(by_openat_checked), MAKER(by_openat64), MAKER(by_openat64_checked), MAKER(by_creat), MAKER(by_creat64),
    MAKER(by_fopen), MAKER(by_fopen64), MAKER(by_pipe), MAKER(by_pipe2), MAKER(by_eventfd), MAKER(by_timerfd),
    MAKER(by_signalfd), MAKER(by_inotify), MAKER(by_inotify1), MAKER(by_memfd), MAKER(by_epoll), MAKER(by_epoll1),
    MAKER(by_dup), MAKER(by_dupfd), MAKER(by_dupfd_cloexec), {"by_socketpair", by_socketpair, true},
    {"by_socket", by_socket, true}, {"by_datagram_socket", by_datagram_socket, true},
};

/* Takes every free number below `fd`. */
static void fill_below(int fd)
{
    int filler;
    do filler = OK(open("/dev/null", O_RDONLY));
    while (filler < fd);
    OK(close(filler));
}

CASE_FOR(a_new_descriptor_is_never_the_socket_that_had_its_number, 40)
{
    for (size_t n = 0; n < sizeof makers / sizeof *makers; n++) {
        struct pair two = pair();
        fill_below(two.server);
        put(two.server, 0, 10);
        get(two.client, 0, 10);
        EQUAL(syscall(SYS_close, two.server), 0);
        int made = OK(makers[n].make());
        if (made != two.server) FAIL("%s gave %d, not %d", makers[n].name, made, two.server);
        struct sockaddr_in name;
        socklen_t size = sizeof name;
        if (!makers[n].is_socket) {
            FAILS(getsockname(made, (struct sockaddr *)&name, &size), ENOTSOCK);
            FAILS(send(made, "x", 1, 0), ENOTSOCK);
        } else if (makers[n].make != by_socketpair) {
            FAILS(getpeername(made, (struct sockaddr *)&name, &size), ENOTCONN);
        }
        end_of_stream(two.client);
        OK(close(two.client));
        OK(close(made));
    }
}

CASE(an_accepted_socket_of_loopback_takes_a_stale_number)
{
    int listener = OK(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in local = at("127.0.0.1", 0);
    socklen_t size = sizeof local;
    OK(bind(listener, (struct sockaddr *)&local, sizeof local));
    OK(listen(listener, 4));
    OK(getsockname(listener, (struct sockaddr *)&local, &size));
    for (int turn = 0; turn < 2; turn++) {
        int out = OK(socket(AF_INET, SOCK_STREAM, 0));
        OK(connect(out, (struct sockaddr *)&local, sizeof local));
        struct pair two = pair();
        fill_below(two.server);
        EQUAL(syscall(SYS_close, two.server), 0);
        int made = OK(turn ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : accept(listener, NULL, NULL));
        EQUAL(made, two.server);
        put(made, 0, 10);
        get(out, 0, 10);
        end_of_stream(two.client);
        OK(close(made));
        OK(close(out));
        OK(close(two.client));
    }
}

/* The identity and limits of the process, set to what they are: a socket made before can still be routed. */
CASE(a_socket_made_before_set_id_calls_listens_and_connects)
{
    int listener = tcp(0), out = tcp(0), on = 1;
    OK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    struct rlimit limit;
    OK(getrlimit(RLIMIT_NOFILE, &limit));
    OK(setrlimit(RLIMIT_NOFILE, &limit));
    OK(setrlimit64(RLIMIT_NOFILE, (struct rlimit64 *)&limit));
    OK(prlimit(0, RLIMIT_NOFILE, &limit, NULL));
    OK(prlimit64(0, RLIMIT_NOFILE, (struct rlimit64 *)&limit, NULL));
    OK(setgid(getgid()));
    OK(setegid(getegid()));
    OK(setregid(getgid(), getegid()));
    OK(setresgid(getgid(), getegid(), getegid()));
    OK(setuid(getuid()));
    OK(seteuid(geteuid()));
    OK(setreuid(getuid(), geteuid()));
    OK(setresuid(getuid(), geteuid(), geteuid()));
    gid_t groups[64];
    int count = OK(getgroups(64, groups));
    if (geteuid() == 0) {
        OK(initgroups("root", getgid()));
        OK(setgroups((size_t)count, groups));
        OK(chroot("/"));
    } else {
        FAILS(setgroups((size_t)count, groups), EPERM);
        FAILS(chroot("/"), EPERM);
    }
    OK(try_bind(listener, own, port));
    OK(listen(listener, 4));
    OK(try_connect(out, own, port));
    int in = take(listener);
    put(in, 0, 1000);
    get(out, 0, 1000);
}

CASE(many_messages_in_one_call)
{
    struct pair two = pair();
    char first[] = "one", second[] = "three", got[16] = "";
    struct iovec out[2] = {{first, 3}, {second, 5}}, in = {got, 8};
    struct mmsghdr sent[2] = {{{.msg_iov = out, .msg_iovlen = 1}, 0}, {{.msg_iov = out + 1, .msg_iovlen = 1}, 0}};
    EQUAL(sendmmsg(two.server, sent, 2, 0), 2);
    EQUAL(sent[0].msg_len, 3);
    EQUAL(sent[1].msg_len, 5);
    struct mmsghdr received = {{.msg_iov = &in, .msg_iovlen = 1}, 0};
    EQUAL(recvmmsg(two.client, &received, 1, MSG_WAITALL, NULL), 1);
    EQUAL(received.msg_len, 8);
    EQUAL(memcmp(got, "onethree", 8), 0);
    nonblocking(two.client);
    FAILS(recvmmsg(two.client, &received, 1, 0, NULL), EAGAIN);
    FAILS(sendmmsg(-1, sent, 2, 0), EBADF);
}

CASE(a_file_is_sent_by_sendfile64_from_an_offset)
{
    struct pair two = pair();
    int source = OK(memfd_create("source", 0));
    unsigned char bytes[5000];
    fill_pattern(bytes, 0, sizeof bytes);
    EQUAL(write(source, bytes, sizeof bytes), sizeof bytes);
    off64_t offset = 1000;
    EQUAL(sendfile64(two.server, source, &offset, 3000), 3000);
    EQUAL(offset, 4000);
    get(two.client, 1000, 3000);
    EQUAL(lseek(source, 0, SEEK_SET), 0);
    EQUAL(sendfile64(two.server, source, NULL, 100), 100);
    get(two.client, 0, 100);
    EQUAL(lseek(source, 0, SEEK_CUR), 100);
}

