/* Signals: EINTR with and without SA_RESTART, handlers that use or close sockets, a 5 kHz timer beside a writer. */
#include "case.h"
#include "events.h"
#include <sys/time.h>

static atomic_int handled;
static int in_handler = -1;

static void counts(int number)
{
    (void)number;
    handled++;
}

static void handle(int number, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    OK(sigaction(number, &action, NULL));
}

/* SIGALRM after ms and again every ms, so that one that comes before the call does not leave it alone for ever. */
static void alarm_in(long ms)
{
    struct itimerval every = {{ms / 1000, ms % 1000 * 1000}, {ms / 1000, ms % 1000 * 1000}};
    OK(setitimer(ITIMER_REAL, &every, NULL));
}

static pid_t sends_later(int fd, long ms)
{
    pid_t child = OK(fork());
    if (child == 0) {
        pause_ms(ms);
        put(fd, 0, 5);
        _exit(0);
    }
    return child;
}

CASE(without_restart_a_signal_ends_the_call)
{
    int listener = listener_at(port, 4);
    struct pair two = pair_by(listener, port);
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    handle(SIGALRM, counts, 0);
    alarm_in(30);
    FAILS(recv(two.server, &byte, 1, 0), EINTR);
    alarm_in(30);
    FAILS(read(two.server, &byte, 1), EINTR);
    alarm_in(30);
    FAILS(recvmsg(two.server, &message, 0), EINTR);
    alarm_in(30);
    FAILS(accept(listener, NULL, NULL), EINTR);
    alarm_in(0); /* off */
    nonblocking(two.client);
    fill(two.client);
    OK(fcntl(two.client, F_SETFL, 0));
    static char many[65536];
    alarm_in(30);
    FAILS(send(two.client, many, sizeof many, 0), EINTR);
    CHECK(handled >= 5);
}

CASE(with_restart_the_call_goes_on)
{
    int listener = listener_at(port, 4);
    struct pair two = pair_by(listener, port);
    handle(SIGALRM, counts, SA_RESTART);
    sends_later(two.client, 80);
    alarm_in(30);
    get(two.server, 0, 5);
    CHECK(handled >= 1);
    int before = handled;
    if (OK(fork()) == 0) {
        pause_ms(80);
        dial(port);
        pause_ms(1000);
        _exit(0);
    }
    alarm_in(30);
    take(listener);
    CHECK(handled > before);
}

CASE(the_waits_are_never_restarted)
{
    struct pair two = pair();
    int epoll = OK(epoll_create1(0));
    struct epoll_event event;
    struct timeval some = {5, 0};
    struct timespec same = {5, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(two.server, &set);
    watch(epoll, two.server, EPOLLIN);
    handle(SIGALRM, counts, SA_RESTART);
    struct pollfd one = {two.server, POLLIN, 0};
    alarm_in(30);
    FAILS(epoll_wait(epoll, &event, 1, 5000), EINTR);
    alarm_in(30);
    FAILS(epoll_wait(epoll, &event, 1, -1), EINTR);
    alarm_in(30);
    FAILS(poll(&one, 1, -1), EINTR);
    alarm_in(30);
    FAILS(ppoll(&one, 1, &same, NULL), EINTR);
    alarm_in(30);
    FAILS(select(two.server + 1, &set, NULL, NULL, &some), EINTR);
    alarm_in(30);
    FAILS(pselect(two.server + 1, &set, NULL, NULL, &same, NULL), EINTR);
    OK(setsockopt(two.server, SOL_SOCKET, SO_RCVTIMEO, &some, sizeof some));
    char byte;
    alarm_in(30);
    FAILS(recv(two.server, &byte, 1, 0), EINTR); /* nor is a receive with a time-out */
    CHECK(handled >= 7);
}

CASE(a_signal_in_the_middle_gives_what_came)
{
    struct pair two = pair();
    unsigned char bytes[100];
    handle(SIGALRM, counts, 0);
    put(two.client, 0, 10);
    EQUAL(ready(two.server, POLLIN, 5000), POLLIN);
    alarm_in(50);
    EQUAL(recv(two.server, bytes, 100, MSG_WAITALL), 10);
    CHECK(handled >= 1);
}

static void closes(int number)
{
    (void)number;
    int before = errno;
    if (in_handler >= 0) close(in_handler);
    in_handler = -1;
    errno = before;
}

CASE(a_handler_closes_the_listener)
{
    int listener = in_handler = listener_at(port, 4);
    handle(SIGALRM, closes, 0);
    alarm_in(30);
    EQUAL(accept(listener, NULL, NULL), -1);
    CHECK(errno == EINTR || errno == EBADF); /* closed during the call, or before it */
    in_handler = listener = listener_at(port + 100, 4);
    handle(SIGALRM, closes, SA_RESTART);
    alarm_in(30);
    FAILS(accept(listener, NULL, NULL), EBADF);
}

static void answers(int number)
{
    (void)number;
    int before = errno;
    if (send(in_handler, "h", 1, MSG_NOSIGNAL) == 1) handled++;
    errno = before;
}

CASE(a_handler_sends_while_its_thread_receives)
{
    struct pair two = pair();
    in_handler = two.server;
    handle(SIGALRM, answers, SA_RESTART);
    sends_later(two.client, 80);
    alarm_in(30);
    get(two.server, 0, 5);
    char byte;
    EQUAL(recv(two.client, &byte, 1, 0), 1);
    EQUAL(byte, 'h');
}

CASE(handlers_run_in_the_threads_of_the_program)
{
    struct pair two = pair();
    handle(SIGUSR1, counts, 0);
    sigset_t usr;
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR1);
    OK(sigprocmask(SIG_BLOCK, &usr, NULL));
    for (int n = 0; n < 50; n++) {
        OK(kill(getpid(), SIGUSR1)); /* a thread that had it open would take it */
        put(two.client, n, 1);
        get(two.server, n, 1);
    }
    EQUAL(handled, 0);
    OK(sigprocmask(SIG_UNBLOCK, &usr, NULL));
    EQUAL(handled, 1);
}

CASE(every_signal_is_the_programs)
{
    pair();
    for (int number = 1; number <= SIGRTMAX; number++) {
        struct sigaction action;
        if (number == 32 || number == 33) continue; /* glibc's own */
        EQUAL(sigaction(number, NULL, &action), 0);
        if (number == SIGKILL || number == SIGSTOP) {
            struct sigaction wanted = {.sa_handler = counts};
            FAILS(sigaction(number, &wanted, NULL), EINVAL);
        } else {
            CHECK(action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN);
            handle(number, counts, SA_RESTART);
        }
    }
}

/* Main writes 0 to 127 in turn, the handler 128 to 255 in turn, into one socket; the reader finds both complete. */
static unsigned by_handler;

static void interferes(int number)
{
    (void)number;
    int before = errno;
    unsigned char byte = (unsigned char)(128 + by_handler % 128);
    if (write(in_handler, &byte, 1) == 1) by_handler++;
    errno = before;
}

static void reads_both(int fd, int tells)
{
    static unsigned char bytes[65536];
    unsigned long found[2] = {0, 0};
    int got;
    while ((got = OK(recv(fd, bytes, sizeof bytes, 0))) > 0)
        for (int n = 0; n < got; n++) {
            int who = bytes[n] >> 7;
            EQUAL(bytes[n] & 127, found[who] % 128);
            found[who]++;
        }
    CHECK(write(tells, found, sizeof found) == sizeof found);
}

CASE_FOR(a_5_khz_timer_writes_where_main_writes, 90)
{
    long ms = long_run() ? 60000 : 3000;
    struct pair two = pair();
    int tells[2];
    OK(pipe(tells));
    pid_t reader = OK(fork());
    if (reader == 0) {
        OK(close(two.client));
        reads_both(two.server, tells[1]);
        _exit(0);
    }
    OK(close(two.server));
    in_handler = two.client;
    handle(SIGALRM, interferes, SA_RESTART);
    struct itimerval fast = {{0, 200}, {0, 200}}, off = {{0, 0}, {0, 0}};
    unsigned long found[2], written = 0;
    unsigned seed = 4711;
    unsigned char bytes[3000];
    OK(setitimer(ITIMER_REAL, &fast, NULL));
    for (long end = now_ms() + ms; now_ms() < end;) {
        size_t size = 1 + (size_t)rand_r(&seed) % sizeof bytes;
        for (size_t n = 0; n < size; n++) bytes[n] = (unsigned char)((written + n) % 128);
        for (size_t done = 0; done < size;) {
            long more = write(two.client, bytes + done, size - done);
            if (more < 0 && errno != EINTR) FAIL("write is -1 (%s)", errno_name(errno));
            if (more > 0) done += (size_t)more;
        }
        written += size;
    }
    OK(setitimer(ITIMER_REAL, &off, NULL));
    OK(close(two.client));
    long size;
    while ((size = read(tells[0], found, sizeof found)) < 0 && errno == EINTR) {
    }
    EQUAL(size, sizeof found);
    EQUAL(found[0], written);
    EQUAL(found[1], by_handler);
    CHECK(by_handler > 0);
}
