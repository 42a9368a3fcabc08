/* bind and connect: every way to fail, non-blocking connects, names before and after, shutdown on the way. */
#include "case.h"
#include <sys/epoll.h>

/* A listener on our address that answers no further SYN; natively and under the shim a connect to it hangs. */
static int deaf(void)
{
    int listener = listener_at(port, 0);
    dial(port);
    EQUAL(ready(listener, POLLIN, 5000), POLLIN);
    return listener;
}

WIRE_ONCE(refused)
{
    for (int n = 0; n < 3; n++) {
        int fd = tcp(0);
        FAILS(try_connect(fd, address, port), ECONNREFUSED);
        EQUAL(so_error(fd), 0);
        FAILS(try_connect(fd, address, port), ECONNREFUSED);
        OK(close(fd));
    }
    int fd = tcp(0);
    FAILS(try_connect(fd, address, port), ECONNREFUSED);
    PEER("listen", 4, port);
    OK(try_connect(fd, address, port)); /* the same socket may try again */
    atomic_fetch_add(&shared->connections, 1);
    PEER("accept", 0, 0);
}

WIRE_ONCE(the_peers_connect_is_refused)
{
    FAILS(peer_ask("dial", port, 0), ECONNREFUSED);
    int listener = listener_at(port, 4);
    OK(close(listener));
    FAILS(peer_ask("dial", port, 0), ECONNREFUSED);
    int bound = tcp(0), on = 1;
    OK(setsockopt(bound, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on)); /* for the TIME-WAIT of a run before */
    OK(try_bind(bound, own, port));
    FAILS(peer_ask("dial", port, 0), ECONNREFUSED);
}

WIRE_ONCE(in_progress_then_connected)
{
    PEER("listen", 4, port);
    int fd = tcp(SOCK_NONBLOCK);
    FAILS(try_connect(fd, address, port), EINPROGRESS);
    EQUAL(ready(fd, POLLOUT, 5000), POLLOUT);
    EQUAL(so_error(fd), 0);
    OK(try_connect(fd, address, port)); /* tells the result once */
    FAILS(try_connect(fd, address, port), EISCONN);
    long slot = PEER("accept", 0, 0);
    put(fd, 0, 5);
    PEER("recv", slot, 5);
    atomic_fetch_add(&shared->connections, 1);
}

WIRE_ONCE(in_progress_then_refused)
{
    int fd = tcp(SOCK_NONBLOCK);
    FAILS(try_connect(fd, address, port), EINPROGRESS);
    EQUAL(ready(fd, POLLOUT, 5000), POLLOUT | POLLERR | POLLHUP);
    FAILS(try_connect(fd, address, port), ECONNREFUSED);
    EQUAL(so_error(fd), 0);
    int other = tcp(SOCK_NONBLOCK);
    char byte;
    FAILS(try_connect(other, address, port), EINPROGRESS);
    EQUAL(ready(other, POLLOUT, 5000), POLLOUT | POLLERR | POLLHUP);
    FAILS(recv(other, &byte, 1, 0), ECONNREFUSED);
}

WIRE_ONCE(the_error_that_somebody_took_is_econnaborted)
{
    int fd = tcp(SOCK_NONBLOCK);
    char byte;
    FAILS(try_connect(fd, address, port), EINPROGRESS);
    EQUAL(ready(fd, POLLOUT, 5000), POLLOUT | POLLERR | POLLHUP);
    EQUAL(so_error(fd), ECONNREFUSED);
    EQUAL(ready(fd, POLLOUT, 0), POLLOUT | POLLHUP);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    FAILS(try_connect(fd, address, port), ECONNABORTED);
    EQUAL(ready(fd, POLLIN | POLLOUT | POLLRDHUP, 0), POLLOUT | POLLHUP);
    FAILS(recv(fd, &byte, 1, 0), ENOTCONN);
    FAILS(shutdown(fd, SHUT_RDWR), ENOTCONN);
    FAILS(try_connect(fd, address, port), EINPROGRESS); /* and may try again */
    EQUAL(ready(fd, POLLOUT, 5000), POLLOUT | POLLERR | POLLHUP);
    FAILS(try_connect(fd, address, port), ECONNREFUSED);
}

/* The number, its copies and its place in an epoll survive a failed attempt. */
WIRE_ONCE(a_second_attempt_is_the_same_socket)
{
    int fd = tcp(SOCK_NONBLOCK), copy = OK(dup(fd)), set = OK(epoll_create1(0));
    struct epoll_event wanted = {.events = EPOLLIN | EPOLLOUT, .data.u32 = 7}, event;
    OK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted));
    for (int n = 0; n < 3; n++) {
        FAILS(try_connect(fd, address, port), EINPROGRESS);
        EQUAL(epoll_wait(set, &event, 1, 5000), 1);
        CHECK(event.events & EPOLLERR && event.data.u32 == 7);
        FAILS(try_connect(copy, address, port), ECONNREFUSED);
    }
    PEER("listen", 4, port);
    FAILS(try_connect(copy, address, port), EINPROGRESS);
    EQUAL(ready(fd, POLLOUT, 5000), POLLOUT);
    EQUAL(epoll_wait(set, &event, 1, 5000), 1);
    CHECK(event.events == EPOLLOUT && event.data.u32 == 7);
    OK(try_connect(fd, address, port));
    FAILS(try_connect(copy, address, port), EISCONN);
    atomic_fetch_add(&shared->connections, 1);
    long slot = PEER("accept", 0, 0);
    put(copy, 0, 5);
    PEER("recv", slot, 5);
    PEER("send", slot, 9);
    EQUAL(ready(copy, POLLIN, 5000), POLLIN);
    EQUAL(epoll_wait(set, &event, 1, 5000), 1);
    CHECK(event.events & EPOLLIN);
    get(fd, 0, 9);
}

WIRE_ONCE(connected_already)
{
    PEER("listen", 4, port);
    int fd = tcp(0);
    OK(try_connect(fd, address, port));
    FAILS(try_connect(fd, address, port), EISCONN);
    FAILS(try_connect(fd, address, port + 1), EISCONN);
    FAILS(try_bind(fd, own, 0), EINVAL);
    FAILS(listen(fd, 1), EINVAL);
    PEER("accept", 0, 0); /* or the listener's end and the last ACK may come together */
    atomic_fetch_add(&shared->connections, 1);
}

CASE(a_connect_that_is_on_its_way)
{
    deaf();
    int fd = tcp(SOCK_NONBLOCK);
    char byte;
    FAILS(try_connect(fd, own, port), EINPROGRESS);
    FAILS(try_connect(fd, own, port), EALREADY);
    EQUAL(ready(fd, POLLIN | POLLOUT, 50), 0);
    FAILS(recv(fd, &byte, 1, 0), EAGAIN);
    FAILS(send(fd, &byte, 1, 0), EAGAIN);
    EQUAL(so_error(fd), 0);
    struct sockaddr_in name;
    socklen_t size = sizeof name;
    FAILS(getpeername(fd, (struct sockaddr *)&name, &size), ENOTCONN);
    OK(getsockname(fd, (struct sockaddr *)&name, &size));
    CHECK(name.sin_port != 0);
    EQUAL(name.sin_addr.s_addr, at(own, 0).sin_addr.s_addr);
}

CASE(shutdown_of_a_connect_on_its_way)
{
    deaf();
    int fd = tcp(SOCK_NONBLOCK);
    FAILS(try_connect(fd, own, port), EINPROGRESS);
    OK(shutdown(fd, SHUT_RDWR));
    EQUAL(ready(fd, POLLIN | POLLOUT, 1000), POLLOUT | POLLHUP | POLLERR);
    EQUAL(so_error(fd), ECONNRESET);
    char byte;
    FAILS(recv(fd, &byte, 1, 0), ENOTCONN);
    FAILS(send(fd, &byte, 1, MSG_NOSIGNAL), EPIPE);
    FAILS(shutdown(fd, SHUT_RDWR), ENOTCONN);
    FAILS(try_connect(fd, own, port), EINPROGRESS); /* it may try again */
}

CASE(close_of_a_connect_on_its_way)
{
    int listener = deaf();
    for (int n = 0; n < 20; n++) {
        int fd = tcp(SOCK_NONBLOCK);
        FAILS(try_connect(fd, own, port), EINPROGRESS);
        OK(close(fd));
    }
    take(listener);
}

CASE(a_send_time_out_ends_a_blocking_connect)
{
    deaf();
    int fd = tcp(0);
    struct timeval some = {0, 60000};
    OK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &some, sizeof some));
    long begin = now_ms();
    FAILS(try_connect(fd, own, port), EINPROGRESS);
    CHECK(now_ms() - begin >= 50);
}

CASE(bind_to_port_0_gives_one)
{
    int fd = tcp(0), ports[20];
    struct sockaddr_in name;
    socklen_t size = sizeof name;
    OK(getsockname(fd, (struct sockaddr *)&name, &size));
    CHECK(name.sin_family == AF_INET && name.sin_port == 0 && name.sin_addr.s_addr == 0);
    FAILS(getpeername(fd, (struct sockaddr *)&name, &size), ENOTCONN);
    for (int n = 0; n < 20; n++) {
        fd = tcp(0);
        OK(try_bind(fd, own, 0));
        OK(getsockname(fd, (struct sockaddr *)&name, &size));
        EQUAL(name.sin_addr.s_addr, at(own, 0).sin_addr.s_addr);
        ports[n] = ntohs(name.sin_port);
        CHECK(ports[n] != 0);
        for (int other = 0; other < n; other++) CHECK(ports[n] != ports[other]);
    }
    OK(listen(fd, 4));
    pair_by(fd, ports[19]);
}

CASE(errors_of_bind)
{
    int first = tcp(0), second = tcp(0);
    OK(try_bind(first, own, port));
    FAILS(try_bind(second, own, port), EADDRINUSE);
    FAILS(try_bind(second, "0.0.0.0", port), EADDRINUSE);
    FAILS(try_bind(second, "203.0.113.77", port), EADDRNOTAVAIL);
    FAILS(try_bind(first, own, port + 1), EINVAL);
    struct sockaddr_in name = at(own, port + 1);
    FAILS(bind(second, (struct sockaddr *)&name, 4), EINVAL);
    FAILS(bind(-1, (struct sockaddr *)&name, sizeof name), EBADF);
    name.sin_family = AF_INET6;
    FAILS(bind(second, (struct sockaddr *)&name, sizeof name), EAFNOSUPPORT);
    OK(try_bind(second, own, 0)); /* none of this has spoiled it */
    OK(listen(first, 1));
    int third = tcp(0), on = 1;
    FAILS(try_bind(third, own, port), EADDRINUSE);
    OK(setsockopt(third, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    FAILS(try_bind(third, own, port), EADDRINUSE);
    OK(close(first));
    OK(try_bind(third, own, port));
}

CASE(errors_of_connect)
{
    int fd = tcp(0), file = OK(open("/etc/passwd", O_RDONLY)), listener = listener_at(port, 4);
    struct sockaddr_in there = at(own, port);
    FAILS(connect(-1, (struct sockaddr *)&there, sizeof there), EBADF);
    FAILS(connect(file, (struct sockaddr *)&there, sizeof there), ENOTSOCK);
    FAILS(connect(fd, (struct sockaddr *)&there, 4), EINVAL);
    FAILS(connect(listener, (struct sockaddr *)&there, sizeof there), EISCONN);
    there.sin_family = AF_INET6;
    FAILS(connect(fd, (struct sockaddr *)&there, sizeof there), EAFNOSUPPORT);
    OK(try_connect(fd, own, port));
}

CASE(not_connected)
{
    int fd = tcp(0);
    char byte;
    FAILS(recv(fd, &byte, 1, 0), ENOTCONN);
    FAILS(read(fd, &byte, 1), ENOTCONN);
    FAILS(send(fd, &byte, 1, MSG_NOSIGNAL), EPIPE);
    FAILS(shutdown(fd, SHUT_WR), ENOTCONN);
    EQUAL(so_error(fd), 0);
}

WIRE_ONCE(the_source_that_was_bound)
{
    PEER("listen", 8, port);
    int fds[2];
    for (int n = 0; n < 2; n++) {
        struct sockaddr_in name;
        socklen_t size = sizeof name;
        int on = 1;
        fds[n] = tcp(0);
        OK(setsockopt(fds[n], SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
        OK(try_bind(fds[n], own, port + 150 + n));
        OK(try_connect(fds[n], address, port));
        OK(getsockname(fds[n], (struct sockaddr *)&name, &size));
        EQUAL(ntohs(name.sin_port), port + 150 + n);
        atomic_fetch_add(&shared->connections, 1);
    }
    for (int n = 0; n < 2; n++) {
        long slot = PEER("accept", 0, 0);
        EQUAL(slot, n);
        PEER("send", slot, 10 + n);
    }
    for (int n = 0; n < 2; n++) {
        PEER("shut", n, SHUT_WR);
        get(fds[n], 0, 10 + n);
        end_of_stream(fds[n]);
        reset(fds[n]); /* no TIME-WAIT, so that another run may bind the same ports */
    }
}

CASE(many_processes_dial_and_close)
{
    int listener = listener_at(port, 64);
    for (int n = 0; n < 8; n++) {
        if (OK(fork()) == 0) {
            for (int turn = 0; turn < 25; turn++) {
                int fd = dial(port);
                put(fd, 0, 1);
                end_of_stream(fd);
                OK(close(fd));
            }
            _exit(0);
        }
    }
    for (int n = 0; n < 200; n++) {
        int fd = take(listener);
        get(fd, 0, 1);
        OK(close(fd));
    }
    for (int n = 0; n < 8; n++) {
        int status;
        OK(wait(&status));
        EQUAL(status, 0);
    }
}

CASE(loopback_and_our_address_are_two_places)
{
    int here = listener_at(port, 4), there = tcp(0), on = 1;
    bool same = strcmp(own, "127.0.0.1") == 0;
    OK(setsockopt(there, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    OK(try_bind(there, same ? "127.0.0.2" : "127.0.0.1", port));
    OK(listen(there, 4));
    int client = tcp(0);
    OK(try_connect(client, same ? "127.0.0.2" : "127.0.0.1", port));
    EQUAL(ready(here, POLLIN, 50), 0);
    int fd = OK(accept(there, NULL, NULL));
    put(client, 0, 100);
    get(fd, 0, 100);
    struct pair two = pair_by(here, port);
    put(two.client, 0, 100);
    get(two.server, 0, 100);
}

static int unspecified(int fd)
{
    struct sockaddr nothing = {.sa_family = AF_UNSPEC};
    return connect(fd, &nothing, sizeof nothing);
}

CASE(dissolved_and_connected_again)
{
    int listener = listener_at(port, 8), fd = tcp(0), other = OK(dup(fd));
    struct sockaddr_in name;
    socklen_t size = sizeof name;
    OK(unspecified(fd)); /* of a socket that was never connected */
    for (int round = 0; round < 5; round++) {
        OK(try_connect(fd, own, port));
        int server = take(listener);
        put(fd, 0, 100);
        get(server, 0, 50);
        put(server, 0, 10);
        EQUAL(ready(fd, POLLIN, 5000), POLLIN);
        OK(unspecified(round % 2 ? fd : other));
        get(server, 50, 50);
        char byte;
        FAILS(recv(server, &byte, 1, 0), ECONNRESET);
        so_error(fd); /* Linux has a pending error here */
        FAILS(getpeername(fd, (struct sockaddr *)&name, &size), ENOTCONN);
        FAILS(recv(fd, &byte, 1, MSG_DONTWAIT), ENOTCONN);
        FAILS(send(other, &byte, 1, MSG_NOSIGNAL), EPIPE);
        EQUAL(ready(fd, POLLIN | POLLOUT, 0), POLLOUT | POLLHUP);
        OK(close(server));
    }
    OK(unspecified(fd));
}

CASE(dissolved_and_made_a_listener)
{
    int listener = listener_at(port, 8), fd = tcp(0), on = 1;
    OK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    OK(try_connect(fd, own, port));
    int server = take(listener);
    OK(unspecified(fd));
    OK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    OK(try_bind(fd, own, port + 100));
    OK(listen(fd, 4));
    struct pair two = pair_by(fd, port + 100);
    put(two.client, 0, 5);
    get(two.server, 0, 5);
    int value = 0;
    socklen_t size = sizeof value;
    OK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &size));
    EQUAL(value, 1);
    OK(unspecified(fd)); /* a listener ends to listen */
    FAILS(try_connect(tcp(0), own, port + 100), ECONNREFUSED);
    put(two.server, 0, 5); /* what it has accepted goes on */
    get(two.client, 0, 5);
    OK(close(server));
}

CASE(an_accepted_one_dissolved_and_connected)
{
    int listener = listener_at(port, 8);
    struct pair two = pair_by(listener, port);
    nonblocking(two.server);
    OK(unspecified(two.server));
    char byte;
    FAILS(recv(two.client, &byte, 1, 0), ECONNRESET);
    FAILS(try_connect(two.server, own, port), EINPROGRESS);
    int again = take(listener);
    EQUAL(ready(two.server, POLLOUT, 5000), POLLOUT);
    put(two.server, 0, 20);
    get(again, 0, 20);
}

CASE(a_dissolved_socket_stays_in_its_sets)
{
    int listener = listener_at(port, 8), fd = tcp(SOCK_NONBLOCK), set = OK(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};
    OK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    for (int round = 0; round < 3; round++) {
        FAILS(try_connect(fd, own, port), EINPROGRESS);
        int server = take(listener);
        EQUAL(ready(fd, POLLOUT, 5000), POLLOUT);
        EQUAL(epoll_wait(set, &event, 1, 0), 0);
        put(server, 0, 3);
        EQUAL(epoll_wait(set, &event, 1, 5000), 1);
        CHECK(event.events == EPOLLIN && event.data.u64 == 77);
        OK(unspecified(fd));
        so_error(fd);
        EQUAL(epoll_wait(set, &event, 1, 0), 1);
        CHECK(event.events == EPOLLHUP && event.data.u64 == 77);
        OK(close(server));
    }
    OK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    EQUAL(epoll_wait(set, &event, 1, 0), 0);
}
