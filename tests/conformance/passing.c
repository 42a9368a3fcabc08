/* Sockets in messages from one process of a family to another (SCM_RIGHTS). */
#include "case.h"
#include "events.h"
#include "rights.h"

CASE(a_connection_goes_to_the_child)
{
    int way[2], listener = listener_at(port, 4);
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, way));
    pid_t child = OK(fork());
    if (child == 0) {
        OK(close(way[0]));
        int fd;
        EQUAL(receive(way[1], &fd, 1, MSG_CMSG_CLOEXEC), 1);
        EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
        struct sockaddr_in name;
        socklen_t size = sizeof name;
        OK(getpeername(fd, (struct sockaddr *)&name, &size));
        get(fd, 0, 100);
        put(fd, 0, 100);
        int epoll = OK(epoll_create1(0));
        watch(epoll, fd, EPOLLIN);
        EVENT(one_event(epoll, 5000), EPOLLIN);
        get(fd, 100, 1);
        OK(close(fd));
        _exit(0);
    }
    struct pair two = pair_by(listener, port); /* made behind the fork */
    put(two.client, 0, 60);
    EQUAL(pass(way[0], &two.server, 1), 1);
    OK(close(two.server));
    put(two.client, 60, 40);
    get(two.client, 0, 100);
    pause_ms(10);
    put(two.client, 100, 1);
    end_of_stream(two.client);
    ends_well(child);
}

CASE(both_keep_it)
{
    int way[2], listener = listener_at(port, 4);
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, way));
    pid_t child = OK(fork());
    if (child == 0) {
        int fd;
        EQUAL(receive(way[1], &fd, 1, 0), 1);
        EQUAL(fcntl(fd, F_GETFD), 0);
        put(fd, 0, 10);
        _exit(0);
    }
    struct pair two = pair_by(listener, port);
    EQUAL(pass(way[0], &two.server, 1), 1);
    get(two.client, 0, 10);
    ends_well(child);
    put(two.server, 10, 10);
    get(two.client, 10, 10);
    OK(close(two.server));
    end_of_stream(two.client);
}

CASE(a_listener_goes_to_the_child)
{
    int way[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, way));
    struct pair first = pair(); /* the family is attached before it forks */
    pid_t child = OK(fork());
    if (child == 0) {
        int listener;
        EQUAL(receive(way[1], &listener, 1, 0), 1);
        int fd = take(listener);
        get(fd, 0, 10);
        put(fd, 0, 10);
        _exit(0);
    }
    int listener = listener_at(port + 100, 4);
    EQUAL(pass(way[0], &listener, 1), 1);
    OK(close(listener));
    int client = dial(port + 100);
    put(client, 0, 10);
    get(client, 0, 10);
    ends_well(child);
    OK(close(first.client));
}

CASE(a_message_that_nobody_reads)
{
    int way[2];
    struct pair two = pair();
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, way));
    EQUAL(pass(way[0], &two.server, 1), 1);
    OK(close(two.server));
    put(two.client, 0, 10);
    quiet(two.client); /* it is under way */
    OK(close(way[0]));
    OK(close(way[1]));
    char byte;
    FAILS(recv(two.client, &byte, 1, 0), ECONNRESET); /* unread bytes */
}

CASE(the_sender_ends_before_it_is_read)
{
    int way[2], listener = listener_at(port, 4);
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, way));
    int client = dial(port);
    pid_t child = OK(fork());
    if (child == 0) {
        int fd = take(listener);
        EQUAL(pass(way[0], &fd, 1), 1);
        _exit(0);
    }
    ends_well(child);
    pause_ms(50);
    put(client, 0, 10);
    int fd;
    EQUAL(receive(way[1], &fd, 1, 0), 1);
    get(fd, 0, 10);
    put(fd, 0, 10);
    get(client, 0, 10);
    OK(close(fd));
    end_of_stream(client);
}

CASE(several_in_one_message_and_others_among_them)
{
    int way[2], listener = listener_at(port, 8), clients[3], fds[MANY];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, way));
    for (int n = 0; n < 3; n++) clients[n] = dial(port);
    fds[0] = take(listener);
    fds[1] = OK(open("/etc/passwd", O_RDONLY));
    fds[2] = take(listener);
    fds[3] = way[0];
    fds[4] = take(listener);
    EQUAL(pass(way[0], fds, MANY), 1);
    for (int n = 0; n < MANY; n++)
        if (n != 3) OK(close(fds[n]));
    int got[MANY];
    EQUAL(receive(way[1], got, MANY, 0), MANY);
    char byte;
    EQUAL(read(got[1], &byte, 1), 1);
    EQUAL(write(got[3], "x", 1), 1);
    EQUAL(read(way[1], &byte, 1), 1);
    for (int n = 0; n < 3; n++) {
        put(got[2 * n], n, 5);
        get(clients[n], n, 5);
        OK(close(got[2 * n]));
        end_of_stream(clients[n]);
    }
}

CASE(messages_of_one_call)
{
    int way[2];
    struct pair two = pair();
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}}, got = {.bytes = {0}};
    char text[4] = "abc";
    struct iovec parts[2] = {{text, 1}, {text + 1, 2}};
    struct mmsghdr both[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}},
                              {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control}}};
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, way));
    struct cmsghdr *head = CMSG_FIRSTHDR(&both[1].msg_hdr);
    *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(head), &two.server, sizeof(int));
    EQUAL(sendmmsg(way[0], both, 2, 0), 2);
    EQUAL(both[0].msg_len, 1);
    EQUAL(both[1].msg_len, 2);
    OK(close(two.server));
    both[1].msg_hdr.msg_control = got.bytes;
    EQUAL(recvmmsg(way[1], both, 2, 0, NULL), 2);
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&both[1].msg_hdr)), sizeof fd);
    put(fd, 0, 10);
    get(two.client, 0, 10);
    OK(close(fd));
    end_of_stream(two.client);
}

CASE(one_accepts_and_others_serve)
{
    enum { WORKERS = 3, REQUESTS = 60 };
    int ways[WORKERS][2], listener = listener_at(port, 64);
    pid_t workers[WORKERS];
    for (int n = 0; n < WORKERS; n++) {
        OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ways[n]));
        workers[n] = OK(fork());
        if (workers[n] == 0) {
            for (int m = 0; m <= n; m++) OK(close(ways[m][0]));
            OK(close(listener));
            for (int fd; receive(ways[n][1], &fd, 1, 0) == 1;) {
                char text[2] = {0, (char)n};
                EQUAL(recv(fd, text, 1, 0), 1);
                EQUAL(send(fd, text, 2, MSG_NOSIGNAL), 2);
                OK(close(fd));
            }
            _exit(0);
        }
        OK(close(ways[n][1]));
    }
    for (int n = 0; n < REQUESTS; n++) {
        int client = dial(port), fd = take(listener);
        char byte = (char)n, answer[2];
        EQUAL(pass(ways[n % WORKERS][0], &fd, 1), 1);
        OK(close(fd));
        EQUAL(send(client, &byte, 1, 0), 1);
        EQUAL(recv(client, answer, 2, MSG_WAITALL), 2);
        EQUAL(answer[0], byte);
        EQUAL(answer[1], n % WORKERS);
        end_of_stream(client);
        OK(close(client));
    }
    for (int n = 0; n < WORKERS; n++) OK(close(ways[n][0]));
    for (int n = 0; n < WORKERS; n++) ends_well(workers[n]);
}
