/* Epolls inside epolls, and epolls that poll, ppoll, select and pselect are asked about. */
#include "case.h"
#include "events.h"

/* What select says of a descriptor. */
static int selected(int fd, int ms)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct timeval span = {ms / 1000, ms % 1000 * 1000};
    return OK(select(fd + 1, &set, NULL, NULL, &span));
}

/* What all calls that look say of an epoll that must be readable or not. */
static void looks(int set, bool readable)
{
    struct timespec none = {0, 0};
    struct pollfd one = {set, POLLIN | POLLRDNORM | POLLOUT, 0};
    fd_set read;
    EQUAL(ready(set, POLLIN, 0), readable ? POLLIN : 0);
    EQUAL(ppoll(&one, 1, &none, NULL), readable);
    EQUAL(one.revents, readable ? POLLIN | POLLRDNORM : 0);
    EQUAL(selected(set, 0), readable);
    FD_ZERO(&read);
    FD_SET(set, &read);
    EQUAL(pselect(set + 1, &read, NULL, NULL, &none, NULL), readable);
}

CASE(readable_while_a_socket_is_unread)
{
    struct pair two = pair();
    int inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0));
    watch(inner, two.server, EPOLLIN);
    watch(outer, inner, EPOLLIN);
    looks(inner, false);
    for (int round = 0; round < 50; round++) {
        put(two.client, 2 * round, 2);
        EVENT(one_event(outer, 5000), EPOLLIN);
        looks(inner, true);
        looks(outer, true);
        EVENT(one_event(outer, 0), EPOLLIN);
        get(two.server, 2 * round, 1);
        EVENT(one_event(outer, 0), EPOLLIN);
        if (round % 2) EVENT(one_event(inner, 0), EPOLLIN);
        get(two.server, 2 * round + 1, 1);
        looks(inner, false);
        looks(outer, false);
        EVENT(one_event(outer, 0), 0);
        EVENT(one_event(inner, 0), 0);
    }
}

CASE(an_edge_of_the_inner_set_is_used_up_by_its_report)
{
    struct pair two = pair();
    int inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0));
    watch(outer, inner, EPOLLIN);
    watch(inner, two.server, EPOLLIN | EPOLLET);
    for (int round = 0; round < 20; round++) {
        put(two.client, round, 1);
        EVENT(one_event(outer, 5000), EPOLLIN);
        EVENT(one_event(outer, 0), EPOLLIN);
        EVENT(one_event(inner, 0), EPOLLIN);
        EVENT(one_event(outer, 0), 0); /* unread, but told */
        looks(inner, false);
    }
}

CASE(a_shot_of_the_inner_set)
{
    struct pair two = pair();
    int inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0));
    watch(inner, two.server, EPOLLIN | EPOLLONESHOT);
    watch(outer, inner, EPOLLIN);
    put(two.client, 0, 1);
    EVENT(one_event(outer, 5000), EPOLLIN);
    EVENT(one_event(inner, 0), EPOLLIN);
    put(two.client, 1, 1);
    EVENT(one_event(outer, 50), 0);
    looks(inner, false);
    OK(change(inner, EPOLL_CTL_MOD, two.server, EPOLLIN | EPOLLONESHOT, 1));
    EVENT(one_event(outer, 0), EPOLLIN);
    looks(inner, true);
}

CASE(edges_of_the_outer_registration)
{
    struct pair two = pair();
    int inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0));
    watch(inner, two.server, EPOLLIN);
    watch(outer, inner, EPOLLIN | EPOLLET);
    EVENT(one_event(outer, 20), 0);
    for (int round = 0; round < 20; round++) {
        put(two.client, round, 1); /* an edge each, whether or not the set was drained */
        EVENT(one_event(outer, 5000), EPOLLIN);
        EVENT(one_event(outer, 10), 0);
        looks(inner, true);
        EVENT(one_event(outer, 0), 0);
    }
    OK(change(outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLET, 1));
    EVENT(one_event(outer, 0), EPOLLIN);
    EVENT(one_event(outer, 10), 0);
    get(two.server, 0, 20);
    OK(change(outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLET, 1));
    EVENT(one_event(outer, 10), 0);
}

CASE(a_shot_of_the_outer_registration)
{
    struct pair two = pair();
    int inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0));
    watch(inner, two.server, EPOLLIN);
    watch(outer, inner, EPOLLIN | EPOLLONESHOT);
    put(two.client, 0, 1);
    EVENT(one_event(outer, 5000), EPOLLIN);
    EVENT(one_event(outer, 0), 0);
    put(two.client, 1, 1);
    EVENT(one_event(outer, 30), 0);
    looks(inner, true);
    OK(change(outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLONESHOT, 1));
    EVENT(one_event(outer, 0), EPOLLIN);
}

CASE(a_socket_that_is_ready_when_the_set_is_added)
{
    struct pair two = pair();
    int inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0)), edges = OK(epoll_create1(0));
    watch(inner, two.server, EPOLLIN);
    put(two.client, 0, 1);
    EVENT(one_event(inner, 5000), EPOLLIN);
    watch(outer, inner, EPOLLIN);
    watch(edges, inner, EPOLLIN | EPOLLET);
    EVENT(one_event(outer, 0), EPOLLIN);
    EVENT(one_event(edges, 0), EPOLLIN);
    EVENT(one_event(edges, 0), 0);
    OK(epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL));
    EVENT(one_event(outer, 0), 0);
    watch(outer, inner, EPOLLIN);
    EVENT(one_event(outer, 0), EPOLLIN);
}

CASE(a_socket_that_is_added_when_the_set_is_nested)
{
    int inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0));
    watch(outer, inner, EPOLLIN | EPOLLET);
    looks(inner, false);
    struct pair two = pair();
    put(two.client, 0, 1);
    EQUAL(ready(two.server, POLLIN, 5000), POLLIN);
    watch(inner, two.server, EPOLLIN);
    EVENT(one_event(outer, 0), EPOLLIN);
    EVENT(one_event(outer, 10), 0);
    looks(inner, true);
    OK(epoll_ctl(inner, EPOLL_CTL_DEL, two.server, NULL));
    looks(inner, false);
    watch(inner, two.server, EPOLLOUT);
    EVENT(one_event(outer, 0), EPOLLIN);
    OK(change(inner, EPOLL_CTL_MOD, two.server, EPOLLRDHUP, 1));
    looks(inner, false);
    OK(shutdown(two.client, SHUT_WR));
    EVENT(one_event(outer, 5000), EPOLLIN);
    EVENT(one_event(inner, 0), EPOLLRDHUP);
    OK(close(two.server));
    looks(inner, false);
}

CASE(sets_five_deep_and_a_loop)
{
    struct pair two = pair();
    int sets[5];
    for (int n = 0; n < 5; n++) sets[n] = OK(epoll_create1(0));
    watch(sets[0], two.server, EPOLLIN);
    for (int n = 0; n < 4; n++) watch(sets[n + 1], sets[n], EPOLLIN);
    FAILS(change(sets[0], EPOLL_CTL_ADD, sets[4], EPOLLIN, 0), ELOOP);
    FAILS(change(sets[0], EPOLL_CTL_ADD, sets[0], EPOLLIN, 0), EINVAL);
    FAILS(change(sets[1], EPOLL_CTL_ADD, sets[0], EPOLLIN, 0), EEXIST);
    int over = OK(epoll_create1(0));
    FAILS(change(over, EPOLL_CTL_ADD, sets[4], EPOLLIN, 0), ELOOP);
    for (int n = 0; n < 5; n++) looks(sets[n], false);
    put(two.client, 0, 1);
    EVENT(one_event(sets[4], 5000), EPOLLIN);
    for (int n = 0; n < 5; n++) looks(sets[n], true);
    get(two.server, 0, 1);
    for (int n = 0; n < 5; n++) looks(sets[n], false);
    EVENT(one_event(sets[4], 0), 0);
}

CASE(kernel_descriptors_beside_a_socket_in_a_nested_set)
{
    struct pair two = pair();
    int inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0)), ends[2];
    OK(pipe(ends));
    watch(inner, two.server, EPOLLIN);
    watch(inner, ends[0], EPOLLIN);
    watch(outer, inner, EPOLLIN);
    for (int round = 0; round < 10; round++) {
        char byte;
        EQUAL(write(ends[1], "x", 1), 1);
        EVENT(one_event(outer, 5000), EPOLLIN);
        put(two.client, round, 1);
        EQUAL(ready(two.server, POLLIN, 5000), POLLIN);
        struct epoll_event events[4];
        EQUAL(epoll_wait(inner, events, 4, 0), 2);
        unsigned seen = 0; /* room for one: both come in turn */
        for (int n = 0; n < 8; n++) {
            EQUAL(epoll_wait(inner, events, 1, 0), 1);
            CHECK(events[0].data.fd == two.server || events[0].data.fd == ends[0]);
            seen |= events[0].data.fd == two.server ? 1 : 2;
        }
        EQUAL(seen, 3);
        get(two.server, round, 1);
        looks(inner, true);
        EVENT(one_event(inner, 0), EPOLLIN);
        EQUAL(read(ends[0], &byte, 1), 1);
        looks(inner, false);
        EVENT(one_event(outer, 0), 0);
    }
}

struct sleeper {
    int set, how;
    long got;
    atomic_int started;
};

static void *sleeps(void *argument)
{
    struct sleeper *this = argument;
    this->started = 1;
    this->got = this->how == 0 ? (long)one_event(this->set, 10000)
                : this->how == 1 ? ready(this->set, POLLIN, 10000)
                                 : selected(this->set, 10000);
    return NULL;
}

CASE(who_waits_for_a_nested_set_is_woken)
{
    for (int how = 0; how < 3; how++) {
        struct pair two = pair();
        int inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0));
        watch(inner, two.server, EPOLLIN);
        watch(outer, inner, EPOLLIN);
        for (int round = 0; round < 20; round++) {
            struct sleeper one = {.set = how == 0 ? outer : inner, .how = how};
            pthread_t thread;
            THREAD(pthread_create(&thread, NULL, sleeps, &one));
            while (!one.started) pause_ms(1);
            if (round % 4 == 0) pause_ms(10);
            put(two.client, round, 1);
            THREAD(pthread_join(thread, NULL));
            EQUAL(one.got, 1);
            get(two.server, round, 1);
        }
    }
}

CASE(what_nobody_asked_for_wakes_nobody)
{
    struct pair two = pair();
    int inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0));
    watch(inner, two.server, EPOLLRDHUP);
    watch(outer, inner, EPOLLIN);
    looks(inner, false);
    for (int round = 0; round < 5; round++) {
        put(two.client, round, 1);
        EQUAL(ready(two.server, POLLIN, 5000), POLLIN);
        long begin = now_us();
        EVENT(one_event(outer, 40), 0);
        CHECK(now_us() - begin >= 40000);
        begin = now_us();
        EQUAL(ready(inner, POLLIN, 40), 0);
        CHECK(now_us() - begin >= 40000);
        begin = now_us();
        EQUAL(selected(inner, 40), 0);
        CHECK(now_us() - begin >= 40000);
    }
}

CASE(a_nested_set_and_a_socket_in_one_poll)
{
    struct pair two = pair(), more = pair_by(listener_at(port + 100, 4), port + 100);
    int inner = OK(epoll_create1(0));
    watch(inner, two.server, EPOLLIN);
    struct pollfd list[] = {{more.server, POLLIN, 0}, {inner, POLLIN, 0}};
    EQUAL(poll(list, 2, 20), 0);
    put(two.client, 0, 1);
    EQUAL(poll(list, 2, 5000), 1);
    EQUAL(list[0].revents, 0);
    EQUAL(list[1].revents, POLLIN);
    put(more.client, 0, 1);
    EQUAL(ready(more.server, POLLIN, 5000), POLLIN);
    EQUAL(poll(list, 2, 0), 2);
    get(two.server, 0, 1);
    EQUAL(poll(list, 2, 5000), 1);
    EQUAL(list[0].revents, POLLIN);
    EQUAL(list[1].revents, 0);
}

CASE(a_nested_set_over_fork)
{
    struct pair two = pair();
    int inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0)), ends[2];
    OK(pipe(ends));
    watch(inner, two.server, EPOLLIN);
    watch(outer, inner, EPOLLIN);
    pid_t child = OK(fork());
    if (child == 0) {
        for (int round = 0; round < 10; round++) {
            EVENT(one_event(outer, 5000), EPOLLIN);
            looks(inner, true);
            get(two.server, round, 1);
            looks(inner, false);
            EVENT(one_event(outer, 0), 0);
            EQUAL(write(ends[1], "x", 1), 1);
        }
        put(two.server, 0, 1);
        _exit(0);
    }
    for (int round = 0; round < 10; round++) {
        char byte;
        put(two.client, round, 1);
        EQUAL(read(ends[0], &byte, 1), 1);
        looks(inner, false);
    }
    get(two.client, 0, 1);
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
    put(two.client, 10, 1);
    EVENT(one_event(outer, 5000), EPOLLIN);
    get(two.server, 10, 1);
    looks(inner, false);
}

CASE(a_set_that_the_child_alone_nests)
{
    struct pair two = pair();
    int inner = OK(epoll_create1(0));
    watch(inner, two.server, EPOLLIN);
    pid_t child = OK(fork());
    if (child == 0) {
        int outer = OK(epoll_create1(0));
        watch(outer, inner, EPOLLIN);
        EVENT(one_event(outer, 10), 0);
        put(two.server, 0, 1);
        EVENT(one_event(outer, 5000), EPOLLIN);
        _exit(0);
    }
    get(two.client, 0, 1);
    put(two.client, 0, 1);
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
    EVENT(one_event(inner, 5000), EPOLLIN);
    get(two.server, 0, 1);
    EVENT(one_event(inner, 20), 0);
    put(two.client, 1, 1);
    EVENT(one_event(inner, 5000), EPOLLIN);
}

CASE(sets_that_come_and_go)
{
    struct pair two = pair();
    int outer = OK(epoll_create1(0));
    for (int round = 0; round < 400; round++) {
        int inner = OK(epoll_create1(0));
        watch(inner, two.server, EPOLLIN);
        watch(outer, inner, EPOLLIN);
        if (round % 8 == 0) {
            put(two.client, round / 8, 1);
            EVENT(one_event(outer, 5000), EPOLLIN);
            get(two.server, round / 8, 1);
        }
        EVENT(one_event(outer, 0), 0);
        if (round % 3 == 0) OK(epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL));
        OK(close(inner));
    }
    int last = OK(dup(outer));
    CHECK(last < 40); /* nothing is left behind */
}

CASE(a_set_that_is_nested_no_more)
{
    struct pair two = pair();
    int inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0));
    watch(inner, two.server, EPOLLIN);
    for (int round = 0; round < 10; round++) {
        watch(outer, inner, EPOLLIN);
        put(two.client, 2 * round, 1);
        EVENT(one_event(outer, 5000), EPOLLIN);
        OK(epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL));
        EVENT(one_event(outer, 0), 0);
        EVENT(one_event(inner, 0), EPOLLIN);
        get(two.server, 2 * round, 1);
        EVENT(one_event(inner, 10), 0);
        put(two.client, 2 * round + 1, 1);
        EVENT(one_event(inner, 5000), EPOLLIN);
        get(two.server, 2 * round + 1, 1);
    }
}

enum { ROUNDS_OF_THREADS = 3000 };
static int the_socket;
static atomic_long read_bytes;

/* Collects from the inner set when the outer one says so. */
static void *collects(void *argument)
{
    int *sets = argument;
    while (read_bytes < ROUNDS_OF_THREADS) {
        struct epoll_event event;
        if (OK(epoll_wait(sets[1], &event, 1, 200)) == 0) continue;
        if (OK(epoll_wait(sets[0], &event, 1, 0)) == 0) continue;
        char byte;
        if (recv(the_socket, &byte, 1, MSG_DONTWAIT) == 1) read_bytes++;
    }
    return NULL;
}

CASE(threads_that_share_a_nested_set)
{
    struct pair two = pair();
    int sets[2] = {OK(epoll_create1(0)), OK(epoll_create1(0))};
    the_socket = two.server;
    watch(sets[0], two.server, EPOLLIN);
    watch(sets[1], sets[0], EPOLLIN);
    pthread_t threads[4];
    for (int n = 0; n < 4; n++) THREAD(pthread_create(&threads[n], NULL, collects, sets));
    for (int n = 0; n < ROUNDS_OF_THREADS; n++) {
        EQUAL(send(two.client, "x", 1, 0), 1);
        if (n % 3 == 0)
            while (read_bytes < n - 8) pause_ms(0);
    }
    for (int n = 0; n < 4; n++) THREAD(pthread_join(threads[n], NULL));
    EQUAL(read_bytes, ROUNDS_OF_THREADS);
}
