/* epoll: level, edge and one-shot reports, EPOLLOUT, mixed sets, time-outs and masks of the waits. */
#include "case.h"
#include "events.h"

WIRE(level_triggered_while_unread)
{
    long slot;
    int fd = joined(&slot), epoll = OK(epoll_create1(0));
    watch(epoll, fd, EPOLLIN);
    EVENT(one_event(epoll, 0), 0);
    PEER("send", slot, 10);
    EVENT(one_event(epoll, 5000), EPOLLIN);
    EVENT(one_event(epoll, 0), EPOLLIN);
    get(fd, 0, 4);
    EVENT(one_event(epoll, 0), EPOLLIN);
    get(fd, 4, 6);
    EVENT(one_event(epoll, 20), 0);
}

WIRE(an_edge_per_arrival_with_the_full_mask)
{
    long slot;
    int fd = joined(&slot), epoll = OK(epoll_create1(0));
    watch(epoll, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    EVENT(one_event(epoll, 1000), EPOLLOUT);
    EVENT(one_event(epoll, 20), 0);
    PEER("send", slot, 10);
    EVENT(one_event(epoll, 5000), EPOLLIN | EPOLLOUT);
    EVENT(one_event(epoll, 20), 0);
    PEER("send", slot, 10); /* unread bytes before it do not hide the new ones */
    EVENT(one_event(epoll, 5000), EPOLLIN | EPOLLOUT);
    get(fd, 0, 20);
    EVENT(one_event(epoll, 20), 0);
    PEER("shut", slot, SHUT_WR);
    EVENT(one_event(epoll, 5000), EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    EVENT(one_event(epoll, 20), 0);
}

WIRE(mod_reports_an_old_edge_again)
{
    long slot;
    int fd = joined(&slot), epoll = OK(epoll_create1(0));
    watch(epoll, fd, EPOLLIN | EPOLLET);
    PEER("send", slot, 10);
    EVENT(one_event(epoll, 5000), EPOLLIN);
    EVENT(one_event(epoll, 0), 0);
    OK(change(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 1));
    EVENT(one_event(epoll, 0), EPOLLIN);
}

WIRE(one_shot_until_armed_again)
{
    long slot;
    int fd = joined(&slot), epoll = OK(epoll_create1(0));
    watch(epoll, fd, EPOLLIN | EPOLLONESHOT);
    PEER("send", slot, 10);
    EVENT(one_event(epoll, 5000), EPOLLIN);
    PEER("send", slot, 10);
    EVENT(one_event(epoll, 50), 0);
    EQUAL(ready(fd, POLLIN, 0), POLLIN); /* the other calls do not see the shot */
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct timeval none = {0, 0};
    EQUAL(select(fd + 1, &set, NULL, NULL, &none), 1);
    PEER("reset", slot, 0);
    EVENT(one_event(epoll, 50), 0); /* not even ERR and HUP */
    OK(change(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 1));
    EVENT(one_event(epoll, 0), EPOLLIN | EPOLLERR | EPOLLHUP);
}

WIRE(only_out_then_only_in)
{
    long slot;
    int fd = joined(&slot), epoll = OK(epoll_create1(0));
    watch(epoll, fd, EPOLLOUT);
    EVENT(one_event(epoll, 0), EPOLLOUT);
    PEER("send", slot, 5);
    EQUAL(ready(fd, POLLIN, 5000), POLLIN);
    EVENT(one_event(epoll, 0), EPOLLOUT);
    OK(change(epoll, EPOLL_CTL_MOD, fd, EPOLLIN, 1));
    EVENT(one_event(epoll, 0), EPOLLIN);
    get(fd, 0, 5);
    EVENT(one_event(epoll, 20), 0);
    OK(change(epoll, EPOLL_CTL_MOD, fd, 0, 1));
    PEER("send", slot, 5);
    EQUAL(ready(fd, POLLIN, 5000), POLLIN);
    EVENT(one_event(epoll, 20), 0);
}

WIRE(a_full_buffer_has_no_out_until_the_peer_reads)
{
    long slot;
    int fd = joined(&slot), level = OK(epoll_create1(0)), edge = OK(epoll_create1(0));
    nonblocking(fd);
    long sent = fill(fd);
    watch(level, fd, EPOLLOUT);
    watch(edge, fd, EPOLLOUT | EPOLLET);
    EVENT(one_event(level, 0), 0);
    EVENT(one_event(edge, 50), 0);
    PEER("recv", slot, sent);
    EVENT(one_event(level, 5000), EPOLLOUT);
    EVENT(one_event(edge, 5000), EPOLLOUT);
    EVENT(one_event(edge, 100), 0); /* once */
    EVENT(one_event(level, 0), EPOLLOUT);
}

WIRE(a_short_write_alone_brings_an_edge)
{
    static unsigned char bytes[16 << 20];
    fill_pattern(bytes, 0, sizeof bytes);
    long slot;
    int fd = joined(&slot), epoll = OK(epoll_create1(0));
    nonblocking(fd);
    watch(epoll, fd, EPOLLOUT | EPOLLET);
    EVENT(one_event(epoll, 0), EPOLLOUT);
    long sent = OK(send(fd, bytes, sizeof bytes, 0));
    CHECK(sent < (long)sizeof bytes);
    PEER("recv", slot, sent); /* and no second send that says EAGAIN */
    EVENT(one_event(epoll, 5000), EPOLLOUT);
}

CASE(kernel_descriptors_and_sockets_in_one)
{
    int listener = listener_at(port, 4), epoll = OK(epoll_create1(0)), ends[2];
    struct pair two = pair_by(listener, port);
    OK(pipe(ends));
    sigset_t usr;
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR1);
    OK(sigprocmask(SIG_BLOCK, &usr, NULL));
    int count = OK(eventfd(0, 0)), timer = OK(timerfd_create(CLOCK_MONOTONIC, 0)), signals = OK(signalfd(-1, &usr, 0));
    int all[] = {ends[0], count, timer, signals, two.server, two.client, listener};
    for (int n = 0; n < 7; n++) OK(change(epoll, EPOLL_CTL_ADD, all[n], EPOLLIN, (uint64_t)n));
    EVENT(one_event(epoll, 20), 0);
    uint64_t one = 1;
    struct itimerspec soon = {.it_value = {0, 1000000}};
    EQUAL(write(ends[1], "x", 1), 1);
    EQUAL(write(count, &one, 8), 8);
    OK(timerfd_settime(timer, 0, &soon, NULL));
    OK(raise(SIGUSR1));
    put(two.client, 0, 3);
    put(two.server, 0, 3);
    int late = dial(port);
    unsigned seen = 0;
    for (long end = now_ms() + 5000; seen != 0x7f && now_ms() < end;) {
        struct epoll_event events[16];
        int got = OK(epoll_wait(epoll, events, 16, 1000));
        unsigned now = 0;
        for (int n = 0; n < got; n++) {
            EQUAL(events[n].events, EPOLLIN);
            CHECK(events[n].data.u64 < 7);
            CHECK(!(now & 1u << events[n].data.u64)); /* never twice in one result */
            now |= 1u << events[n].data.u64;
        }
        seen |= now;
    }
    EQUAL(seen, 0x7f);
    OK(close(late));
}

CASE(one_socket_in_two_sets)
{
    struct pair two = pair();
    int first = OK(epoll_create1(0)), second = OK(epoll_create(1));
    watch(first, two.server, EPOLLIN);
    watch(second, two.server, EPOLLIN | EPOLLET);
    put(two.client, 0, 3);
    EVENT(one_event(first, 1000), EPOLLIN);
    EVENT(one_event(second, 1000), EPOLLIN);
    OK(change(first, EPOLL_CTL_DEL, two.server, 0, 0));
    put(two.client, 3, 3);
    EVENT(one_event(second, 1000), EPOLLIN);
    EVENT(one_event(first, 0), 0);
}

CASE(any_user_data_comes_back)
{
    struct pair two = pair();
    uint64_t values[] = {0, UINT64_MAX, (uint64_t)(int64_t)-1 << 32, 0x8000000000000000u, 0xffffffffu};
    put(two.client, 0, 1);
    int epoll = OK(epoll_create1(0));
    for (int n = 0; n < 5; n++) {
        struct epoll_event event;
        OK(change(epoll, n ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, two.server, EPOLLIN, values[n]));
        EQUAL(epoll_wait(epoll, &event, 1, 1000), 1);
        CHECK(event.data.u64 == values[n]);
    }
}

CASE(few_slots_are_shared_fairly)
{
    int listener = listener_at(port, 16), epoll = OK(epoll_create1(0));
    for (int n = 0; n < 10; n++) {
        struct pair two = pair_by(listener, port);
        OK(change(epoll, EPOLL_CTL_ADD, two.server, EPOLLIN, (uint64_t)n));
        put(two.client, 0, 1);
        EQUAL(ready(two.server, POLLIN, 5000), POLLIN);
    }
    unsigned seen = 0;
    for (int turn = 0; turn < 4; turn++) {
        struct epoll_event events[3];
        int got = OK(epoll_wait(epoll, events, 3, 1000));
        EQUAL(got, 3); /* level-triggered and unread: there is always more */
        for (int n = 0; n < got; n++) seen |= 1u << events[n].data.u64;
    }
    EQUAL(seen, 0x3ff);
}

CASE(time_outs_are_never_early)
{
    struct pair two = pair();
    int epoll = OK(epoll_create1(0));
    watch(epoll, two.server, EPOLLIN);
    for (int ms = 0; ms <= 40; ms += 20) {
        long begin = now_us();
        EVENT(one_event(epoll, ms), 0);
        CHECK(now_us() - begin >= ms * 1000L);
    }
}

static atomic_int handled;
static void count_signal(int number)
{
    (void)number;
    handled++;
}

static void handle(int number, int flags)
{
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = flags};
    OK(sigaction(number, &action, NULL));
}

CASE(pwait_swaps_the_signal_mask)
{
    struct pair two = pair();
    int epoll = OK(epoll_create1(0));
    watch(epoll, two.server, EPOLLIN);
    handle(SIGUSR1, SA_RESTART);
    sigset_t usr, none, before;
    sigemptyset(&none);
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR1);
    OK(sigprocmask(SIG_BLOCK, &usr, NULL));
    OK(raise(SIGUSR1));
    struct epoll_event event;
    EQUAL(epoll_pwait(epoll, &event, 1, 10, &usr), 0);
    EQUAL(epoll_pwait(epoll, &event, 1, 10, NULL), 0);
    EQUAL(handled, 0);
    FAILS(epoll_pwait(epoll, &event, 1, 5000, &none), EINTR);
    EQUAL(handled, 1);
    OK(sigprocmask(SIG_SETMASK, NULL, &before));
    EQUAL(sigismember(&before, SIGUSR1), 1);
    put(two.client, 0, 1);
    EQUAL(epoll_pwait(epoll, &event, 1, 5000, &none), 1);
}

CASE(pwait2_takes_nanoseconds)
{
    struct pair two = pair();
    int epoll = OK(epoll_create1(0));
    watch(epoll, two.server, EPOLLIN);
    struct epoll_event event;
    struct timespec some = {0, 20000000}, none = {0, 0}, wrong = {0, 1000000000};
    long begin = now_us();
    EQUAL(epoll_pwait2(epoll, &event, 1, &some, NULL), 0);
    CHECK(now_us() - begin >= 20000);
    EQUAL(epoll_pwait2(epoll, &event, 1, &none, NULL), 0);
    FAILS(epoll_pwait2(epoll, &event, 1, &wrong, NULL), EINVAL);
    put(two.client, 0, 1);
    EQUAL(epoll_pwait2(epoll, &event, 1, NULL, NULL), 1);
    EQUAL(event.events, EPOLLIN);
}

enum { WAITERS = 6 };

/* The cases below wait in processes or threads that hold up their answer until all have had their chance. */
struct watcher {
    int epoll, got;
    atomic_int asleep;
};

static void *waits_once(void *argument)
{
    struct watcher *this = argument;
    struct epoll_event events[4];
    this->asleep = 1;
    this->got = epoll_wait(this->epoll, events, 4, 400);
    return NULL;
}

/* Of WAITERS threads, each on its epoll, how many are told of one connection. */
static int told(struct watcher *all, int listener)
{
    pthread_t threads[WAITERS];
    int count = 0;
    for (int n = 0; n < WAITERS; n++) {
        all[n].asleep = 0;
        THREAD(pthread_create(&threads[n], NULL, waits_once, &all[n]));
    }
    for (int n = 0; n < WAITERS; n++)
        while (!all[n].asleep) pause_ms(1);
    pause_ms(50);
    int client = dial(port);
    for (int n = 0; n < WAITERS; n++) {
        THREAD(pthread_join(threads[n], NULL));
        CHECK(all[n].got >= 0);
        count += all[n].got;
    }
    OK(close(take(listener)));
    OK(close(client));
    return count;
}

CASE(exclusive_wakes_one_and_not_all)
{
    int listener = listener_at(port, 16);
    struct watcher all[WAITERS] = {0};
    for (int n = 0; n < WAITERS; n++) {
        all[n].epoll = OK(epoll_create1(0));
        watch(all[n].epoll, listener, EPOLLIN | EPOLLEXCLUSIVE);
    }
    for (int round = 0; round < 4; round++) {
        int count = told(all, listener);
        CHECK(count >= 1 && count < WAITERS);
    }
    /* Without EPOLLEXCLUSIVE all of them are told. */
    for (int n = 0; n < WAITERS; n++) {
        OK(epoll_ctl(all[n].epoll, EPOLL_CTL_DEL, listener, NULL));
        watch(all[n].epoll, listener, EPOLLIN);
    }
    EQUAL(told(all, listener), WAITERS);
}

CASE(exclusive_with_nobody_asleep_is_found_later)
{
    int listener = listener_at(port, 16), first = OK(epoll_create1(0)), second = OK(epoll_create1(0));
    watch(first, listener, EPOLLIN | EPOLLEXCLUSIVE);
    watch(second, listener, EPOLLIN | EPOLLEXCLUSIVE);
    int client = dial(port);
    EQUAL(ready(listener, POLLIN, 5000), POLLIN);
    EVENT(one_event(first, 0), EPOLLIN);
    EVENT(one_event(second, 0), EPOLLIN);
    OK(close(take(listener)));
    EVENT(one_event(first, 0), 0);
    EVENT(one_event(second, 0), 0);
    OK(close(client));
}

CASE(one_of_the_threads_that_share_a_set_is_woken)
{
    int listener = listener_at(port, 16), epoll = OK(epoll_create1(0));
    struct watcher all[WAITERS] = {0};
    watch(epoll, listener, EPOLLIN | EPOLLET);
    for (int n = 0; n < WAITERS; n++) all[n].epoll = epoll;
    for (int round = 0; round < 4; round++) EQUAL(told(all, listener), 1);
}

/* Of two workers with sets of their own one is stopped: the other takes all that comes. */
CASE(exclusive_workers_of_whom_one_is_stopped)
{
    int listener = listener_at(port, 64);
    pid_t workers[2];
    nonblocking(listener);
    for (int n = 0; n < 2; n++) {
        workers[n] = OK(fork());
        if (workers[n] > 0) continue;
        int epoll = OK(epoll_create1(0));
        watch(epoll, listener, EPOLLIN | EPOLLEXCLUSIVE);
        for (;;) {
            struct epoll_event event;
            if (epoll_wait(epoll, &event, 1, -1) < 0 && errno == EINTR) continue;
            int fd = accept(listener, NULL, NULL);
            if (fd < 0) continue;
            atomic_fetch_add(&shared->connections, 1);
            char who = (char)n;
            EQUAL(send(fd, &who, 1, MSG_NOSIGNAL), 1);
            OK(close(fd));
        }
    }
    pause_ms(100);
    for (int round = 0; round < 6; round++) {
        OK(kill(workers[round % 2], SIGSTOP));
        EQUAL(waitpid(workers[round % 2], NULL, WUNTRACED), workers[round % 2]);
        for (int n = 0; n < 4; n++) {
            char who;
            int fd = dial(port);
            EQUAL(ready(fd, POLLIN, 2000), POLLIN);
            EQUAL(recv(fd, &who, 1, 0), 1);
            EQUAL(who, 1 - round % 2);
            OK(close(fd));
        }
        OK(kill(workers[round % 2], SIGCONT));
        pause_ms(20);
    }
    for (int n = 0; n < 2; n++) {
        OK(kill(workers[n], SIGKILL));
        EQUAL(waitpid(workers[n], NULL, 0), workers[n]);
    }
}

/* Workers that accept from one listener, each with its own set; one is killed while it sleeps. */
CASE(exclusive_workers_of_whom_one_is_killed)
{
    int listener = listener_at(port, 64), status;
    pid_t workers[4];
    nonblocking(listener);
    for (int n = 0; n < 4; n++) {
        workers[n] = OK(fork());
        if (workers[n] > 0) continue;
        int epoll = OK(epoll_create1(0));
        watch(epoll, listener, EPOLLIN | EPOLLEXCLUSIVE);
        for (;;) {
            struct epoll_event event;
            OK(epoll_wait(epoll, &event, 1, -1));
            int fd = accept(listener, NULL, NULL);
            if (fd < 0) continue;
            atomic_fetch_add(&shared->connections, 1);
            EQUAL(send(fd, "x", 1, MSG_NOSIGNAL), 1);
            OK(close(fd));
        }
    }
    for (int n = 0; n < 60; n++) {
        if (n % 20 == 19) {
            OK(kill(workers[n / 20], SIGKILL));
            EQUAL(waitpid(workers[n / 20], &status, 0), workers[n / 20]);
        }
        int fd = dial(port);
        char byte;
        EQUAL(ready(fd, POLLIN, 5000), POLLIN);
        EQUAL(recv(fd, &byte, 1, 0), 1);
        OK(close(fd));
    }
    OK(kill(workers[3], SIGKILL));
}
