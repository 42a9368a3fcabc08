/* listen and accept: flags and addresses, order, backlog, descriptors that run out, a listener that closes. */
#include "case.h"
#include <sys/resource.h>

CASE(accept4_sets_its_flags)
{
    int listener = listener_at(port, 4);
    for (int flags = 0; flags < 4; flags++) {
        int client = dial(port), asked = (flags & 1 ? SOCK_NONBLOCK : 0) | (flags & 2 ? SOCK_CLOEXEC : 0);
        int fd = OK(accept4(listener, NULL, NULL, asked));
        EQUAL(OK(fcntl(fd, F_GETFL)), O_RDWR | (flags & 1 ? O_NONBLOCK : 0));
        EQUAL(OK(fcntl(fd, F_GETFD)), flags & 2 ? FD_CLOEXEC : 0);
        OK(close(fd));
        OK(close(client));
        atomic_fetch_add(&shared->connections, 1);
    }
    FAILS(accept4(listener, NULL, NULL, 1), EINVAL);
}

CASE(a_listeners_flags_are_not_inherited)
{
    int listener = listener_at(port, 4);
    nonblocking(listener);
    OK(fcntl(listener, F_SETFD, FD_CLOEXEC));
    dial(port);
    EQUAL(ready(listener, POLLIN, 5000), POLLIN);
    int fd = take(listener);
    EQUAL(fcntl(fd, F_GETFL), O_RDWR);
    EQUAL(fcntl(fd, F_GETFD), 0);
}

CASE(options_of_a_listener_are_inherited)
{
    int listener = listener_at(port, 4), on = 1, got = 0;
    socklen_t size = sizeof got;
    OK(setsockopt(listener, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
    OK(setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    struct pair two = pair_by(listener, port);
    OK(getsockopt(two.server, SOL_SOCKET, SO_KEEPALIVE, &got, &size));
    EQUAL(got, 1);
    OK(getsockopt(two.server, IPPROTO_TCP, TCP_NODELAY, &got, &size));
    EQUAL(got, 1);
    OK(getsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &got, &size));
    EQUAL(got, 1);
    OK(getsockopt(two.server, SOL_SOCKET, SO_ACCEPTCONN, &got, &size));
    EQUAL(got, 0);
}

CASE(lengths_of_the_address)
{
    int listener = listener_at(port, 8), sizes[] = {0, 4, 16, 200};
    for (int n = 0; n < 4; n++) {
        int client = dial(port);
        union {
            struct sockaddr_in name;
            unsigned char bytes[200];
        } out;
        struct sockaddr_in name;
        memset(&out, 0xee, sizeof out);
        socklen_t size = (socklen_t)sizes[n], other = sizeof name;
        OK(accept(listener, (struct sockaddr *)&out, &size));
        EQUAL(size, 16);
        OK(getsockname(client, (struct sockaddr *)&name, &other));
        size_t written = sizes[n] < 16 ? (size_t)sizes[n] : 16;
        CHECK(memcmp(&out, &name, written) == 0);
        for (size_t after = written; after < 200; after++) EQUAL(out.bytes[after], 0xee);
        OK(close(client));
        atomic_fetch_add(&shared->connections, 1);
    }
    dial(port);
    socklen_t size = (socklen_t)-1;
    struct sockaddr_in name;
    FAILS(accept(listener, (struct sockaddr *)&name, &size), EINVAL);
}

CASE(the_order_is_kept)
{
    int listener = listener_at(port, 16), clients[10];
    for (int n = 0; n < 10; n++) {
        clients[n] = dial(port);
        put(clients[n], n, 1);
    }
    for (int n = 0; n < 10; n++) get(take(listener), n, 1);
}

CASE(errors_of_accept)
{
    int listener = listener_at(port, 4), file = OK(open("/etc/passwd", O_RDONLY));
    struct timeval some = {0, 50000};
    FAILS(accept(-1, NULL, NULL), EBADF);
    FAILS(accept(file, NULL, NULL), ENOTSOCK);
    FAILS(accept(tcp(0), NULL, NULL), EINVAL);
    struct pair two = pair_by(listener, port);
    FAILS(accept(two.client, NULL, NULL), EINVAL);
    FAILS(accept(two.server, NULL, NULL), EINVAL);
    OK(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &some, sizeof some));
    long begin = now_ms();
    FAILS(accept(listener, NULL, NULL), EAGAIN);
    CHECK(now_ms() - begin >= 40);
    nonblocking(listener);
    FAILS(accept(listener, NULL, NULL), EAGAIN);
    char byte;
    FAILS(recv(listener, &byte, 1, 0), ENOTCONN);
    FAILS(send(listener, &byte, 1, MSG_NOSIGNAL), EPIPE);
}

CASE(errors_of_listen)
{
    struct pair two = pair();
    FAILS(listen(-1, 5), EBADF);
    FAILS(listen(two.client, 5), EINVAL);
    FAILS(listen(two.server, 5), EINVAL);
    FAILS(listen(OK(open("/etc/passwd", O_RDONLY)), 5), ENOTSOCK);
    FAILS(listen(OK(socket(AF_INET, SOCK_DGRAM, 0)), 5), EOPNOTSUPP);
}

static void *serves_1000(void *listener)
{
    for (int n = 0; n < 1000; n++) {
        int fd = take(*(int *)listener);
        put(fd, 0, 1);
        OK(close(fd));
    }
    return NULL;
}

CASE_FOR(a_burst_of_1000_with_a_backlog_of_511, 60)
{
    int listener = listener_at(port, 511), clients[1000];
    pthread_t server;
    THREAD(pthread_create(&server, NULL, serves_1000, &listener));
    for (int n = 0; n < 1000; n++) {
        clients[n] = tcp(SOCK_NONBLOCK);
        FAILS(try_connect(clients[n], own, port), EINPROGRESS);
    }
    for (int n = 0; n < 1000; n++) {
        EQUAL(ready(clients[n], POLLOUT, 30000) & (POLLOUT | POLLERR), POLLOUT);
        EQUAL(so_error(clients[n]), 0);
        OK(fcntl(clients[n], F_SETFL, 0));
        get(clients[n], 0, 1);
        end_of_stream(clients[n]);
    }
    THREAD(pthread_join(server, NULL));
}

CASE(connections_over_the_backlog_come_later)
{
    int listener = listener_at(port, 2), clients[8], done = 0;
    for (int n = 0; n < 8; n++) {
        clients[n] = tcp(SOCK_NONBLOCK);
        FAILS(try_connect(clients[n], own, port), EINPROGRESS);
    }
    for (long end = now_ms() + 700; done < 3 && now_ms() < end;) /* before a SYN is sent again */
        for (int n = done = 0; n < 8; n++) done += (ready(clients[n], POLLOUT, 0) & POLLOUT) != 0;
    pause_ms(50);
    for (int n = done = 0; n < 8; n++) done += (ready(clients[n], POLLOUT, 0) & POLLOUT) != 0;
    EQUAL(done, 3); /* Linux: one more than the backlog */
    for (int n = 0; n < 4; n++) take(listener); /* the fourth by a SYN sent again */
}

CASE(listening_again_changes_the_backlog)
{
    int listener = listener_at(port, 0), clients[20];
    OK(listen(listener, 64));
    for (int n = 0; n < 20; n++) clients[n] = tcp(SOCK_NONBLOCK);
    for (int n = 0; n < 20; n++) FAILS(try_connect(clients[n], own, port), EINPROGRESS);
    pause_ms(200);
    for (int n = 0; n < 20; n++) EQUAL(ready(clients[n], POLLOUT, 500), POLLOUT);
    for (int n = 0; n < 20; n++) take(listener);
}

CASE(closing_a_listener_resets_what_is_queued)
{
    int listener = listener_at(port, 8), clients[3];
    char byte;
    for (int n = 0; n < 3; n++) clients[n] = dial(port);
    pause_ms(20);
    OK(close(listener));
    for (int n = 0; n < 3; n++) {
        EQUAL(ready(clients[n], 0, 5000), POLLERR | POLLHUP);
        FAILS(recv(clients[n], &byte, 1, 0), ECONNRESET);
    }
    FAILS(try_connect(tcp(0), own, port), ECONNREFUSED);
}

CASE(aborted_before_accept)
{
    int listener = listener_at(port, 128), live;
    for (int n = 0; n < 100; n++) reset(dial(port));
    live = dial(port);
    put(live, 0, 5);
    for (int n = 0;; n++) {
        CHECK(n <= 100);
        int fd = take(listener);
        char byte;
        errno = 0;
        long got = recv(fd, &byte, 1, 0);
        if (got == 1) break;
        CHECK(got == -1 && errno == ECONNRESET);
        OK(close(fd));
    }
}

CASE(out_of_descriptors_keeps_it_queued)
{
    int listener = listener_at(port, 4), client = dial(port), next = OK(dup(0));
    struct rlimit limit;
    OK(getrlimit(RLIMIT_NOFILE, &limit));
    OK(close(next));
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = (rlim_t)next;
    EQUAL(ready(listener, POLLIN, 5000), POLLIN);
    OK(setrlimit(RLIMIT_NOFILE, &limit));
    FAILS(accept(listener, NULL, NULL), EMFILE);
    FAILS(socket(AF_INET, SOCK_STREAM, 0), EMFILE);
    limit.rlim_cur = before;
    OK(setrlimit(RLIMIT_NOFILE, &limit));
    int fd = take(listener);
    put(fd, 0, 3);
    get(client, 0, 3);
}

struct blocked {
    int listener;
    long got;
    int error;
};

static void *accepts(void *argument)
{
    struct blocked *this = argument;
    this->got = accept(this->listener, NULL, NULL);
    this->error = errno;
    return NULL;
}

CASE(shutdown_ends_a_blocked_accept)
{
    struct blocked this = {listener_at(port, 4), 0, 0};
    pthread_t thread;
    THREAD(pthread_create(&thread, NULL, accepts, &this));
    pause_ms(30);
    OK(shutdown(this.listener, SHUT_RD));
    THREAD(pthread_join(thread, NULL));
    CHECK(this.got == -1 && this.error == EINVAL);
    FAILS(try_connect(tcp(0), own, port), ECONNREFUSED);
    OK(listen(this.listener, 4)); /* it may listen again */
    pair_by(this.listener, port);
}

CASE(a_shut_listener_is_a_socket_that_was_never_connected)
{
    int listener = listener_at(port, 4), copy = OK(dup(listener)), waiting = dial(port);
    EQUAL(ready(listener, POLLIN, 5000), POLLIN);
    OK(shutdown(listener, SHUT_WR)); /* nothing */
    EQUAL(ready(copy, POLLIN, 0), POLLIN);
    OK(shutdown(listener, SHUT_RDWR));
    FAILS(accept(copy, NULL, NULL), EINVAL);
    EQUAL(ready(copy, POLLIN | POLLOUT | POLLRDHUP, 1000), POLLOUT | POLLHUP);
    EQUAL(so_error(copy), 0);
    char byte;
    FAILS(recv(copy, &byte, 1, 0), ENOTCONN);
    FAILS(shutdown(copy, SHUT_RD), ENOTCONN);
    FAILS(recv(waiting, &byte, 1, 0), ECONNRESET);
    OK(listen(copy, 4));
    pair_by(listener, port); /* both numbers are the listener again */
    pair_by(copy, port);
}

CASE(listen_without_bind_takes_a_port)
{
    int listener = tcp(0);
    OK(listen(listener, 4));
    struct sockaddr_in name;
    socklen_t size = sizeof name;
    OK(getsockname(listener, (struct sockaddr *)&name, &size));
    EQUAL(name.sin_addr.s_addr, 0);
    CHECK(name.sin_port != 0);
    pair_by(listener, ntohs(name.sin_port));
}

CASE(a_wildcard_listener_answers_on_loopback_and_on_our_address)
{
    int listener = tcp(0), on = 1;
    OK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    OK(try_bind(listener, "0.0.0.0", port));
    OK(listen(listener, 16));
    for (int n = 0; n < 10; n++) {
        const char *where = n % 2 ? "127.0.0.1" : own;
        int client = tcp(0);
        OK(try_connect(client, where, port));
        EQUAL(ready(listener, POLLIN, 5000), POLLIN);
        struct sockaddr_in name;
        socklen_t size = sizeof name;
        int fd = OK(accept(listener, NULL, NULL));
        OK(getsockname(fd, (struct sockaddr *)&name, &size));
        EQUAL(name.sin_addr.s_addr, at(where, port).sin_addr.s_addr);
        put(client, 0, 10);
        get(fd, 0, 10);
        if (n % 2 == 0) atomic_fetch_add(&shared->connections, 1);
    }
}

CASE(a_closed_listener_frees_its_port_at_once)
{
    for (int n = 0; n < 300; n++) {
        OK(close(listener_at(port, 4)));
        if (n % 10 == 0) {
            int client = tcp(0);
            FAILS(try_connect(client, own, port), ECONNREFUSED);
            OK(close(client));
        }
    }
}
