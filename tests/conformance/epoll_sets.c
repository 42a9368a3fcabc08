/* epoll: what may be registered and when, errors, descriptors that are dup'ed, closed or reused, fork, threads. */
#include "case.h"
#include "events.h"

CASE(errors_of_epoll_ctl)
{
    struct pair two = pair();
    int epoll = OK(epoll_create1(0)), fd = two.server, file = OK(open("/etc/passwd", O_RDONLY)), gone = OK(dup(fd));
    OK(close(gone));
    FAILS(change(epoll, EPOLL_CTL_MOD, fd, EPOLLIN, 0), ENOENT);
    FAILS(change(epoll, EPOLL_CTL_DEL, fd, EPOLLIN, 0), ENOENT);
    OK(change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN, 0));
    FAILS(change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN, 0), EEXIST);
    FAILS(change(epoll, EPOLL_CTL_ADD, gone, EPOLLIN, 0), EBADF);
    FAILS(change(epoll, EPOLL_CTL_ADD, -1, EPOLLIN, 0), EBADF);
    FAILS(change(-1, EPOLL_CTL_ADD, fd, EPOLLIN, 0), EBADF);
    FAILS(change(gone, EPOLL_CTL_ADD, fd, EPOLLIN, 0), EBADF);
    FAILS(change(fd, EPOLL_CTL_ADD, two.client, EPOLLIN, 0), EINVAL);
    FAILS(change(epoll, EPOLL_CTL_ADD, epoll, EPOLLIN, 0), EINVAL);
    FAILS(change(epoll, 77, fd, EPOLLIN, 0), EINVAL);
    FAILS(change(epoll, EPOLL_CTL_ADD, file, EPOLLIN, 0), EPERM);
    FAILS(change(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLEXCLUSIVE, 0), EINVAL);
    OK(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL));
    OK(change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE, 0));
    FAILS(change(epoll, EPOLL_CTL_MOD, fd, EPOLLIN, 0), EINVAL);
    FAILS(change(epoll, EPOLL_CTL_ADD, two.client, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 0), EINVAL);
}

CASE(errors_of_the_waits)
{
    volatile int minus_one = -1; /* the compiler refuses a constant */
    struct pair two = pair();
    struct epoll_event events[4];
    int epoll = OK(epoll_create1(EPOLL_CLOEXEC));
    EQUAL(fcntl(epoll, F_GETFD), FD_CLOEXEC);
    watch(epoll, two.server, EPOLLIN);
    FAILS(epoll_wait(epoll, events, 0, 0), EINVAL);
    FAILS(epoll_wait(epoll, events, minus_one, 0), EINVAL);
    FAILS(epoll_wait(-1, events, 4, 0), EBADF);
    FAILS(epoll_wait(two.server, events, 4, 0), EINVAL);
    OK(close(epoll));
    FAILS(epoll_wait(epoll, events, 4, 0), EBADF);
    FAILS(epoll_create(0), EINVAL);
    FAILS(epoll_create1(1), EINVAL);
    EQUAL(fcntl(OK(epoll_create(5)), F_GETFD), 0);
}

CASE(no_place_for_events)
{
    struct pair two = pair();
    int epoll = OK(epoll_create1(0));
    struct epoll_event *volatile nowhere = NULL; /* the compiler refuses a constant */
    watch(epoll, two.server, EPOLLIN | EPOLLET);
    EQUAL(epoll_wait(epoll, nowhere, 4, 20), 0);
    put(two.client, 0, 1);
    FAILS(epoll_wait(epoll, nowhere, 4, 5000), EFAULT);
    FAILS(epoll_wait(epoll, nowhere, 4, 0), EFAULT);
    EVENT(one_event(epoll, 0), EPOLLIN); /* nobody was told of it */
    EQUAL(epoll_wait(epoll, nowhere, 4, 0), 0);
}

CASE(added_before_bind_and_listen)
{
    int fd = tcp(0), epoll = OK(epoll_create1(0)), on = 1;
    watch(epoll, fd, EPOLLIN | EPOLLOUT);
    EVENT(one_event(epoll, 0), EPOLLOUT | EPOLLHUP);
    OK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    OK(try_bind(fd, own, port));
    OK(listen(fd, 4));
    EVENT(one_event(epoll, 20), 0);
    int client = dial(port);
    EVENT(one_event(epoll, 5000), EPOLLIN);
    take(fd);
    EVENT(one_event(epoll, 20), 0);
    OK(close(client));
}

WIRE_ONCE(added_before_connect)
{
    PEER("listen", 4, port);
    int fd = tcp(SOCK_NONBLOCK), epoll = OK(epoll_create1(0));
    watch(epoll, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    EVENT(one_event(epoll, 0), EPOLLOUT | EPOLLHUP);
    FAILS(try_connect(fd, address, port), EINPROGRESS);
    long slot = PEER("accept", 0, 0);
    EVENT(one_event(epoll, 5000), EPOLLOUT);
    EQUAL(so_error(fd), 0);
    PEER("send", slot, 3);
    EQUAL(ready(fd, POLLIN, 5000), POLLIN);
    EVENT(one_event(epoll, 0), EPOLLIN | EPOLLOUT);
    atomic_fetch_add(&shared->connections, 1);
}

CASE(one_dup_closed_keeps_the_registration_the_last_ends_it)
{
    struct pair two = pair();
    int epoll = OK(epoll_create1(0)), other = OK(dup(two.server));
    OK(change(epoll, EPOLL_CTL_ADD, two.server, EPOLLIN, 7));
    OK(close(two.server));
    put(two.client, 0, 3);
    struct epoll_event event;
    EQUAL(epoll_wait(epoll, &event, 1, 5000), 1);
    EQUAL(event.data.u64, 7);
    OK(close(other));
    EVENT(one_event(epoll, 50), 0);
}

CASE(two_numbers_of_one_socket_are_two_registrations)
{
    struct pair two = pair();
    int epoll = OK(epoll_create1(0)), other = OK(dup(two.server));
    watch(epoll, two.server, EPOLLIN);
    watch(epoll, other, EPOLLIN);
    put(two.client, 0, 3);
    EQUAL(ready(other, POLLIN, 5000), POLLIN);
    struct epoll_event events[4];
    EQUAL(epoll_wait(epoll, events, 4, 0), 2);
    OK(epoll_ctl(epoll, EPOLL_CTL_DEL, two.server, NULL));
    EQUAL(epoll_wait(epoll, events, 4, 0), 1);
    EQUAL(events[0].data.fd, other);
}

CASE(a_reused_number_is_a_new_registration)
{
    int listener = listener_at(port, 4), epoll = OK(epoll_create1(0));
    struct pair first = pair_by(listener, port);
    watch(epoll, first.server, EPOLLIN);
    put(first.client, 0, 3);
    EVENT(one_event(epoll, 5000), EPOLLIN);
    OK(close(first.server));
    int client = dial(port);
    CHECK(client == first.server); /* the lowest free number */
    FAILS(change(epoll, EPOLL_CTL_MOD, client, EPOLLIN, 1), ENOENT);
    OK(change(epoll, EPOLL_CTL_ADD, client, EPOLLIN, 1));
    EVENT(one_event(epoll, 20), 0);
    int server = take(listener);
    put(server, 0, 1);
    EVENT(one_event(epoll, 5000), EPOLLIN);
}

CASE(the_number_of_a_set_is_dup_able)
{
    struct pair two = pair();
    int epoll = OK(epoll_create1(0)), other = OK(fcntl(epoll, F_DUPFD, 50));
    watch(other, two.server, EPOLLIN);
    FAILS(change(epoll, EPOLL_CTL_ADD, two.server, EPOLLIN, 0), EEXIST);
    OK(close(epoll));
    put(two.client, 0, 1);
    EVENT(one_event(other, 5000), EPOLLIN);
}

static int fresh, its_set;

static void *adds_it(void *unused)
{
    (void)unused;
    watch(its_set, fresh, EPOLLIN);
    return NULL;
}

CASE(a_socket_that_is_added_while_another_thread_makes_it_listen)
{
    for (int round = 0; round < 40; round++) {
        int on = 1;
        fresh = tcp(0);
        its_set = OK(epoll_create1(0));
        OK(setsockopt(fresh, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
        OK(try_bind(fresh, own, port));
        pthread_t adder;
        THREAD(pthread_create(&adder, NULL, adds_it, NULL));
        for (int n = 0; n < round * 100; n++) atomic_fetch_add(&shared->connections, 0);
        OK(listen(fresh, 4));
        THREAD(pthread_join(adder, NULL));
        int client = dial(port);
        EVENT(one_event(its_set, 5000), EPOLLIN);
        OK(close(take(fresh)));
        EVENT(one_event(its_set, 0), 0);
        reset(client);
        OK(close(fresh));
        OK(close(its_set));
    }
}

CASE(a_set_in_a_set_and_in_poll)
{
    struct pair two = pair();
    int inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0));
    watch(inner, two.server, EPOLLIN);
    watch(outer, inner, EPOLLIN);
    EVENT(one_event(outer, 20), 0);
    EQUAL(ready(inner, POLLIN, 20), 0);
    put(two.client, 0, 1);
    EVENT(one_event(outer, 5000), EPOLLIN);
    EQUAL(ready(inner, POLLIN, 5000), POLLIN);
    EVENT(one_event(inner, 0), EPOLLIN);
    get(two.server, 0, 1);
    EVENT(one_event(outer, 20), 0);
}

CASE(a_set_made_before_fork_works_in_the_child)
{
    int epoll = OK(epoll_create1(0)), listener = listener_at(port, 4);
    struct pair two = pair_by(listener, port);
    watch(epoll, two.server, EPOLLIN);
    pid_t child = OK(fork());
    if (child == 0) {
        watch(epoll, listener, EPOLLIN);
        for (int seen = 0; seen != 3;) {
            struct epoll_event event;
            EQUAL(epoll_wait(epoll, &event, 1, 5000), 1);
            if (event.data.fd == listener) {
                watch(epoll, take(listener), EPOLLIN);
                seen |= 1;
            } else if (event.data.fd == two.server) {
                get(two.server, 0, 5);
                seen |= 2;
            } else {
                FAIL("an event of descriptor %d", event.data.fd);
            }
        }
        _exit(0);
    }
    int late = dial(port);
    put(two.client, 0, 5);
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
    EVENT(one_event(epoll, 20), 0); /* the listener, added in the child, is in the parent's set too, but idle */
    int last = dial(port);
    EVENT(one_event(epoll, 5000), EPOLLIN);
    OK(close(last));
    OK(close(late));
}

struct waiting {
    int epoll;
    unsigned got;
    atomic_int started;
};

static void *wait_for_ever(void *argument)
{
    struct waiting *this = argument;
    this->started = 1;
    this->got = one_event(this->epoll, 10000);
    return NULL;
}

/* A thread waits for ever while `what` happens: 0 ADD of a readable socket, 1 MOD, 2 bytes arrive, 3 ADD, then bytes. */
static void wakes(int what)
{
    struct pair two = pair();
    struct waiting this = {.epoll = OK(epoll_create1(0))};
    pthread_t thread;
    if (what == 1) watch(this.epoll, two.server, 0);
    if (what == 2) watch(this.epoll, two.server, EPOLLIN);
    if (what < 2) {
        put(two.client, 0, 1);
        EQUAL(ready(two.server, POLLIN, 5000), POLLIN);
    }
    THREAD(pthread_create(&thread, NULL, wait_for_ever, &this));
    while (!this.started) pause_ms(1);
    pause_ms(20);
    if (what == 0 || what == 3) watch(this.epoll, two.server, EPOLLIN);
    if (what == 1) OK(change(this.epoll, EPOLL_CTL_MOD, two.server, EPOLLIN, 1));
    if (what >= 2) put(two.client, 0, 1);
    THREAD(pthread_join(thread, NULL));
    EVENT(this.got, EPOLLIN);
}

CASE(adding_a_readable_socket_wakes_a_waiter) { wakes(0); }
CASE(changing_a_mask_wakes_a_waiter) { wakes(1); }
CASE(arriving_bytes_wake_a_waiter) { wakes(2); }
CASE(a_socket_added_during_the_wait_wakes_it_later) { wakes(3); }

CASE(a_wildcard_listener_is_reported_once)
{
    int listener = tcp(0), epoll = OK(epoll_create1(0)), on = 1;
    OK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    OK(try_bind(listener, "0.0.0.0", port));
    watch(epoll, listener, EPOLLIN);
    OK(listen(listener, 16));
    EVENT(one_event(epoll, 20), 0);
    int here = dial(port), there = tcp(0);
    OK(try_connect(there, "127.0.0.1", port));
    pause_ms(20);
    for (int n = 0; n < 2; n++) { /* ready on both sides, or on one of them */
        struct epoll_event events[4];
        EQUAL(epoll_wait(epoll, events, 4, 5000), 1);
        EQUAL(events[0].events, EPOLLIN);
        EQUAL(events[0].data.fd, listener);
        OK(accept(listener, NULL, NULL));
    }
    EVENT(one_event(epoll, 20), 0);
    atomic_fetch_add(&shared->connections, 1);
    OK(close(here));
}

CASE(silent_after_many_came_and_went)
{
    int listener = listener_at(port, 16), epoll = OK(epoll_create1(0));
    for (int n = 0; n < 300; n++) {
        struct pair two = pair_by(listener, port);
        watch(epoll, two.server, n % 2 ? EPOLLIN : EPOLLIN | EPOLLET);
        put(two.client, 0, 1);
        EVENT(one_event(epoll, 5000), EPOLLIN);
        OK(close(two.client));
        OK(close(two.server));
    }
    long begin = now_us();
    EVENT(one_event(epoll, 100), 0);
    CHECK(now_us() - begin >= 100000);
}

enum { WORKERS = 8, SOCKETS = 32, ROUNDS = 50 };
static atomic_int answers;

static void *worker(void *argument)
{
    int epoll = *(int *)argument;
    struct epoll_event event;
    while (answers < SOCKETS * ROUNDS) {
        if (OK(epoll_wait(epoll, &event, 1, 50)) == 0) continue;
        char byte;
        int fd = event.data.fd;
        EQUAL(event.events, EPOLLIN);
        EQUAL(recv(fd, &byte, 1, MSG_DONTWAIT), 1); /* no other thread has it */
        answers++;
        EQUAL(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
        OK(change(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, (uint64_t)fd));
    }
    return NULL;
}

CASE(eight_threads_share_a_set_of_one_shots)
{
    int listener = listener_at(port, SOCKETS), epoll = OK(epoll_create1(0)), clients[SOCKETS];
    pthread_t threads[WORKERS];
    for (int n = 0; n < SOCKETS; n++) {
        struct pair two = pair_by(listener, port);
        clients[n] = two.client;
        watch(epoll, two.server, EPOLLIN | EPOLLONESHOT);
    }
    for (int n = 0; n < WORKERS; n++) THREAD(pthread_create(&threads[n], NULL, worker, &epoll));
    for (int round = 0; round < ROUNDS; round++) {
        for (int n = 0; n < SOCKETS; n++) EQUAL(send(clients[n], &(char){(char)n}, 1, 0), 1);
        for (int n = 0; n < SOCKETS; n++) {
            char byte;
            EQUAL(recv(clients[n], &byte, 1, 0), 1);
            EQUAL(byte, n);
        }
    }
    for (int n = 0; n < WORKERS; n++) THREAD(pthread_join(threads[n], NULL));
    EQUAL(answers, SOCKETS * ROUNDS);
}
