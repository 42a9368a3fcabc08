/* SO_REUSEPORT: several listeners at one address and port. */
#include "case.h"
#include "events.h"

enum { MEMBERS = 4 };

static int sharing(const char *host, int number, int backlog)
{
    int fd = tcp(0), on = 1;
    OK(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on));
    OK(try_bind(fd, host, number));
    OK(listen(fd, backlog));
    return fd;
}

/* Accepts what waits at the listener; how many. */
static int drain(int listener, bool answer)
{
    int count = 0;
    for (;; count++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0) break;
        atomic_fetch_add(&shared->connections, 1);
        if (answer) EQUAL(send(fd, "x", 1, MSG_NOSIGNAL), 1);
        OK(close(fd));
    }
    CHECK(errno == EAGAIN);
    return count;
}

CASE(all_of_them_must_have_it)
{
    int on = 1, off = 0, first = tcp(0), second = tcp(0);
    OK(setsockopt(first, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on));
    OK(setsockopt(first, SOL_SOCKET, SO_REUSEADDR, &off, sizeof off));
    OK(try_bind(first, own, port));
    OK(listen(first, 4));
    FAILS(try_bind(second, own, port), EADDRINUSE);
    OK(setsockopt(second, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    FAILS(try_bind(second, own, port), EADDRINUSE);
    OK(setsockopt(second, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on));
    OK(try_bind(second, own, port));
    OK(listen(second, 4));
    int value = 0;
    socklen_t size = sizeof value;
    OK(getsockopt(first, SOL_SOCKET, SO_REUSEPORT, &value, &size));
    EQUAL(value, 1);
}

CASE(connections_are_spread_over_the_group)
{
    int group[MEMBERS], clients[80], counts[MEMBERS], total = 0;
    for (int n = 0; n < MEMBERS; n++) {
        group[n] = sharing(own, port, 128);
        nonblocking(group[n]);
    }
    for (int n = 0; n < 80; n++) clients[n] = dial(port);
    pause_ms(50);
    for (int n = 0; n < MEMBERS; n++) total += counts[n] = drain(group[n], true);
    EQUAL(total, 80);
    for (int n = 0; n < MEMBERS; n++)
        if (counts[n] < 5) FAIL("listener %d got %d of 80 connections", n, counts[n]);
    for (int n = 0; n < 80; n++) {
        char byte;
        EQUAL(recv(clients[n], &byte, 1, 0), 1);
        EQUAL(recv(clients[n], &byte, 1, 0), 0);
    }
}

CASE(each_of_the_group_is_told_of_its_own)
{
    int epoll = OK(epoll_create1(0)), group[MEMBERS];
    for (int n = 0; n < MEMBERS; n++) {
        group[n] = sharing(own, port, 16);
        nonblocking(group[n]);
        watch(epoll, group[n], EPOLLIN);
    }
    for (int n = 0; n < 40; n++) {
        int client = dial(port);
        struct epoll_event event;
        EQUAL(epoll_wait(epoll, &event, 1, 5000), 1);
        EQUAL(event.events, EPOLLIN);
        EQUAL(drain(event.data.fd, false), 1);
        EVENT(one_event(epoll, 0), 0);
        OK(close(client));
    }
}

CASE(a_closed_one_leaves_and_its_queue_is_reset)
{
    int group[MEMBERS], clients[40], resets = 0, taken = 0;
    for (int n = 0; n < MEMBERS; n++) {
        group[n] = sharing(own, port, 64);
        nonblocking(group[n]);
    }
    for (int n = 0; n < 40; n++) clients[n] = dial(port);
    pause_ms(50);
    OK(close(group[1]));
    for (int n = 0; n < MEMBERS; n++)
        if (n != 1) taken += drain(group[n], true);
    CHECK(taken > 0 && taken < 40);
    for (int n = 0; n < 40; n++) {
        char byte;
        ssize_t got = recv(clients[n], &byte, 1, 0);
        if (got < 0) {
            CHECK(errno == ECONNRESET);
            resets++;
        } else {
            EQUAL(got, 1);
        }
    }
    EQUAL(resets, 40 - taken);
    for (int n = 0; n < 40; n++) OK(close(dial(port)));
    pause_ms(50);
    taken = 0;
    for (int n = 0; n < MEMBERS; n++)
        if (n != 1) taken += drain(group[n], false);
    EQUAL(taken, 40); /* nobody is sent to the one that is gone */
}

CASE(the_last_one_frees_the_port)
{
    int group[MEMBERS], probe = tcp(0);
    for (int n = 0; n < MEMBERS; n++) group[n] = sharing(own, port, 4);
    for (int n = 0; n < MEMBERS; n++) {
        int client = dial(port);
        reset(client);
        OK(close(group[n]));
    }
    FAILS(try_connect(probe, own, port), ECONNREFUSED);
    OK(close(listener_at(port, 4)));
}

CASE(an_address_goes_before_every_address)
{
    int every = sharing("0.0.0.0", port, 64), exact = sharing(own, port, 64);
    nonblocking(every);
    nonblocking(exact);
    for (int n = 0; n < 10; n++) OK(close(dial(port)));
    pause_ms(50);
    EQUAL(drain(every, false), 0);
    EQUAL(drain(exact, false), 10);
    OK(close(exact));
    for (int n = 0; n < 10; n++) OK(close(dial(port)));
    pause_ms(50);
    EQUAL(drain(every, false), 10);
}

/* As a server that makes a listener for each worker and forks them. */
CASE(a_listener_for_each_worker)
{
    int group[MEMBERS], status;
    pid_t workers[MEMBERS];
    for (int n = 0; n < MEMBERS; n++) group[n] = sharing(own, port, 64);
    for (int n = 0; n < MEMBERS; n++) {
        workers[n] = OK(fork());
        if (workers[n] > 0) continue;
        for (int other = 0; other < MEMBERS; other++)
            if (other != n) OK(close(group[other]));
        for (;;) {
            int fd = take(group[n]);
            char byte;
            if (recv(fd, &byte, 1, 0) == 1 && byte == 'q') _exit(n);
            byte = (char)n;
            EQUAL(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
            OK(close(fd));
        }
    }
    for (int n = 0; n < MEMBERS; n++) OK(close(group[n]));
    int counts[MEMBERS] = {0};
    for (int n = 0; n < 60; n++) {
        int fd = dial(port);
        char byte;
        EQUAL(send(fd, "x", 1, 0), 1);
        EQUAL(recv(fd, &byte, 1, 0), 1);
        CHECK(byte >= 0 && byte < MEMBERS);
        counts[(int)byte]++;
        OK(close(fd));
    }
    for (int n = 0; n < MEMBERS; n++) CHECK(counts[n] > 2);
    OK(kill(workers[2], SIGKILL)); /* the others take over what it would have got */
    EQUAL(waitpid(workers[2], &status, 0), workers[2]);
    pause_ms(100);
    for (int n = 0; n < 40; n++) {
        int fd = dial(port);
        char byte;
        EQUAL(send(fd, "x", 1, 0), 1);
        EQUAL(recv(fd, &byte, 1, 0), 1);
        CHECK(byte != 2);
        OK(close(fd));
    }
    for (int n = 0; n < MEMBERS; n++)
        if (n != 2) OK(kill(workers[n], SIGKILL));
}

/* Programs that know nothing of each other. */
CASE(processes_of_no_common_parent_socket)
{
    int to_us[2];
    OK(pipe(to_us));
    for (int n = 0; n < 2; n++)
        if (OK(fork()) == 0) {
            char byte = (char)n;
            int listener = sharing(own, port, 64);
            EQUAL(write(to_us[1], "l", 1), 1);
            for (;;) {
                int fd = take(listener);
                EQUAL(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
                OK(close(fd));
            }
        }
    char byte;
    for (int n = 0; n < 2; n++) EQUAL(read(to_us[0], &byte, 1), 1);
    int counts[2] = {0};
    for (int n = 0; n < 40; n++) {
        int fd = dial(port);
        EQUAL(recv(fd, &byte, 1, 0), 1);
        CHECK(byte == 0 || byte == 1);
        counts[(int)byte]++;
        OK(close(fd));
    }
    CHECK(counts[0] > 3 && counts[1] > 3);
}
