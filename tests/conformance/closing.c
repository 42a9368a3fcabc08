/* The end of connections: FIN, half-close, reset, linger, unread bytes, EPIPE and SIGPIPE, end of the process. */
#include "case.h"

static atomic_int pipes;
static void count_pipe(int number)
{
    (void)number;
    pipes++;
}

static void count_sigpipe(void)
{
    struct sigaction action = {.sa_handler = count_pipe};
    OK(sigaction(SIGPIPE, &action, NULL));
}

WIRE(half_close_keeps_the_other_way)
{
    long slot;
    int fd = joined(&slot);
    put(fd, 0, 1000);
    OK(shutdown(fd, SHUT_WR));
    EQUAL(PEER("end", slot, 0), 1000);
    PEER("send", slot, 1000);
    get(fd, 0, 1000);
    PEER("close", slot, 0);
    end_of_stream(fd);
    end_of_stream(fd);
}

WIRE(the_peer_ends_first_and_still_gets_everything)
{
    long slot;
    int fd = joined(&slot);
    PEER("shut", slot, SHUT_WR);
    end_of_stream(fd);
    long reads = peer_begin("end", slot, 0);
    put(fd, 0, 1 << 20);
    OK(close(fd));
    EQUAL(peer_end(reads), 1 << 20);
}

WIRE(close_delivers_what_is_queued)
{
    long slot;
    int fd = joined(&slot);
    nonblocking(fd);
    long sent = fill(fd);
    OK(close(fd));
    EQUAL(PEER("end", slot, 0), sent);
}

WIRE(shutdown_of_writing_is_epipe_and_sigpipe)
{
    long slot;
    int fd = joined(&slot);
    count_sigpipe();
    OK(shutdown(fd, SHUT_WR));
    FAILS(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    EQUAL(pipes, 0);
    FAILS(send(fd, "x", 1, 0), EPIPE);
    EQUAL(pipes, 1);
    FAILS(write(fd, "x", 1), EPIPE);
    EQUAL(pipes, 2);
    OK(shutdown(fd, SHUT_WR));
    PEER("send", slot, 4);
    get(fd, 0, 4);
}

WIRE(shutdown_of_reading_is_an_end)
{
    long slot;
    int fd = joined(&slot);
    PEER("send", slot, 4);
    EQUAL(ready(fd, POLLIN, 5000), POLLIN);
    OK(shutdown(fd, SHUT_RD));
    get(fd, 0, 4); /* what was there can still be read */
    end_of_stream(fd);
    put(fd, 0, 4);
    PEER("recv", slot, 4);
}

WIRE(shutdown_twice_and_wrongly)
{
    long slot;
    int fd = joined(&slot);
    FAILS(shutdown(fd, 3), EINVAL);
    FAILS(shutdown(fd, -1), EINVAL);
    OK(shutdown(fd, SHUT_RDWR));
    EQUAL(PEER("end", slot, 0), 0);
    FAILS(shutdown(tcp(0), SHUT_RDWR), ENOTCONN);
    FAILS(shutdown(-1, SHUT_RDWR), EBADF);
}

WIRE(linger_0_resets_the_peer)
{
    long slot;
    int fd = joined(&slot);
    reset(fd);
    FAILS(peer_ask("end", slot, 0), ECONNRESET);
}

WIRE(linger_waits_for_the_bytes)
{
    long slot;
    int fd = joined(&slot);
    struct linger some = {1, 10}, got;
    socklen_t size = sizeof got;
    OK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &some, sizeof some));
    OK(getsockopt(fd, SOL_SOCKET, SO_LINGER, &got, &size));
    CHECK(got.l_onoff == 1 && got.l_linger == 10);
    long reads = peer_begin("end", slot, 0);
    put(fd, 0, 100000);
    OK(close(fd));
    EQUAL(peer_end(reads), 100000);
}

WIRE(linger_does_not_wait_with_unread_bytes)
{
    long slot;
    int fd = joined(&slot);
    struct linger some = {1, 60}; /* longer than the case may last */
    OK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &some, sizeof some));
    PEER("send", slot, 10);
    EQUAL(ready(fd, POLLIN, 5000), POLLIN);
    OK(close(fd));
    FAILS(peer_ask("end", slot, 0), ECONNRESET);
}

WIRE(unread_bytes_at_close_reset_the_peer)
{
    long slot;
    int fd = joined(&slot);
    PEER("send", slot, 10);
    EQUAL(ready(fd, POLLIN, 5000), POLLIN);
    OK(close(fd));
    FAILS(peer_ask("end", slot, 0), ECONNRESET);
}

WIRE(what_was_sent_arrives_before_linger_0_resets)
{
    long slot;
    int fd = joined(&slot);
    put(fd, 0, 1000);
    reset(fd);
    PEER("recv", slot, 1000);
    FAILS(peer_ask("end", slot, 0), ECONNRESET);
}

WIRE(what_was_sent_arrives_before_unread_bytes_reset)
{
    long slot;
    int fd = joined(&slot);
    PEER("send", slot, 10);
    EQUAL(ready(fd, POLLIN, 5000), POLLIN);
    put(fd, 0, 1000);
    OK(close(fd));
    PEER("recv", slot, 1000);
    FAILS(peer_ask("end", slot, 0), ECONNRESET);
}

WIRE(a_reset_is_told_once)
{
    long slot;
    int fd = joined(&slot);
    char byte;
    count_sigpipe();
    PEER("reset", slot, 0);
    EQUAL(ready(fd, 0, 5000), POLLERR | POLLHUP);
    FAILS(recv(fd, &byte, 1, 0), ECONNRESET);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    EQUAL(so_error(fd), 0);
    FAILS(send(fd, &byte, 1, 0), EPIPE);
    EQUAL(pipes, 1);
    FAILS(shutdown(fd, SHUT_RDWR), ENOTCONN);
    struct sockaddr_in name;
    socklen_t size = sizeof name;
    FAILS(getpeername(fd, (struct sockaddr *)&name, &size), ENOTCONN);
}

WIRE(a_reset_is_told_to_the_sender)
{
    long slot;
    int fd = joined(&slot);
    count_sigpipe();
    PEER("reset", slot, 0);
    EQUAL(ready(fd, 0, 5000), POLLERR | POLLHUP);
    FAILS(send(fd, "x", 1, 0), ECONNRESET);
    EQUAL(pipes, 0);
    FAILS(send(fd, "x", 1, 0), EPIPE);
    EQUAL(pipes, 1);
}

WIRE(so_error_takes_the_reset)
{
    long slot;
    int fd = joined(&slot);
    char byte;
    PEER("reset", slot, 0);
    EQUAL(ready(fd, 0, 5000), POLLERR | POLLHUP);
    EQUAL(so_error(fd), ECONNRESET);
    EQUAL(so_error(fd), 0);
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

WIRE(a_reset_ends_a_blocked_receive)
{
    long slot;
    int fd = joined(&slot);
    char byte;
    long rest = peer_begin("pause", 30, 0), resets = peer_begin("reset", slot, 0);
    FAILS(recv(fd, &byte, 1, 0), ECONNRESET);
    PEER_END(rest);
    PEER_END(resets);
}

WIRE(bytes_to_a_closed_peer_are_answered_with_a_reset)
{
    long slot;
    int fd = joined(&slot);
    PEER("close", slot, 0);
    end_of_stream(fd);
    EQUAL(send(fd, "x", 1, MSG_NOSIGNAL), 1);
    EQUAL(ready(fd, 0, 5000) & POLLHUP, POLLHUP);
    FAILS(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
}

/* A child sends what fits, tells how much, and ends in the given way: all of it arrives, then the end. */
static void dies(int how)
{
    long slot;
    int fd = joined(&slot), tells[2];
    OK(pipe(tells));
    pid_t child = OK(fork());
    if (child == 0) {
        nonblocking(fd);
        static unsigned char bytes[1 << 20];
        fill_pattern(bytes, 0, sizeof bytes);
        long sent = OK(send(fd, bytes, sizeof bytes, 0));
        CHECK(write(tells[1], &sent, sizeof sent) == sizeof sent);
        if (how == 0) _exit(0);
        raise(how);
        pause_ms(5000);
    }
    OK(close(fd));
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    CHECK(how ? WIFSIGNALED(status) && WTERMSIG(status) == how : status == 0);
    long sent;
    CHECK(read(tells[0], &sent, sizeof sent) == sizeof sent);
    EQUAL(PEER("end", slot, 0), sent);
}

WIRE(queued_bytes_survive__exit) { dies(0); }
WIRE(queued_bytes_survive_sigterm) { dies(SIGTERM); }
WIRE(queued_bytes_survive_kill_9) { dies(SIGKILL); }
