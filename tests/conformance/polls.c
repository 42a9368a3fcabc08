/* poll, ppoll, select, pselect: odd sets, time-outs, masks, and the fortified forms of these calls and of the reads. */
#include "case.h"
#include "events.h"

WIRE(poll_with_mask_0)
{
    long slot;
    int fd = joined(&slot);
    PEER("send", slot, 3);
    EQUAL(ready(fd, POLLIN, 5000), POLLIN);
    long begin = now_us();
    EQUAL(ready(fd, 0, 50), 0);
    CHECK(now_us() - begin >= 50000);
    PEER("reset", slot, 0);
    EQUAL(ready(fd, 0, 5000), POLLERR | POLLHUP);
}

WIRE(poll_bits)
{
    long slot;
    int fd = joined(&slot);
    EQUAL(ready(fd, POLLIN | POLLOUT | POLLRDHUP, 1000), POLLOUT);
    EQUAL(ready(fd, POLLIN | POLLPRI, 20), 0);
    PEER("send", slot, 1);
    EQUAL(ready(fd, POLLIN | POLLRDHUP, 5000), POLLIN);
    EQUAL(ready(fd, POLLRDNORM | POLLWRNORM, 0), POLLRDNORM | POLLWRNORM);
    PEER("close", slot, 0);
    EQUAL(ready(fd, POLLRDHUP, 5000), POLLRDHUP);
    EQUAL(ready(fd, POLLIN | POLLRDHUP, 0), POLLIN | POLLRDHUP);
}

CASE(poll_skips_negative_and_marks_closed_ones)
{
    struct pair two = pair();
    int ends[2];
    OK(pipe(ends));
    int closed = OK(dup(two.client));
    OK(close(closed));
    struct pollfd all[] = {{-1, POLLIN, 9}, {closed, POLLIN, 9}, {two.server, POLLIN, 9}, {ends[0], POLLIN, 9}, {two.server, POLLOUT, 9}};
    EQUAL(poll(all, 5, 1000), 2);
    EQUAL(all[0].revents, 0);
    EQUAL(all[1].revents, POLLNVAL);
    EQUAL(all[2].revents, 0);
    EQUAL(all[3].revents, 0);
    EQUAL(all[4].revents, POLLOUT);
    put(two.client, 0, 1);
    EQUAL(write(ends[1], "x", 1), 1);
    EQUAL(ready(two.server, POLLIN, 5000), POLLIN);
    EQUAL(poll(all, 5, 0), 4);
    EQUAL(all[2].revents, POLLIN);
    EQUAL(all[3].revents, POLLIN);
    struct pollfd negative = {-5, POLLIN, 9};
    EQUAL(poll(&negative, 1, 10), 0);
    EQUAL(negative.revents, 0);
}

CASE(empty_sets_are_a_sleep)
{
    struct pair two = pair();
    long begin = now_us();
    EQUAL(poll(NULL, 0, 50), 0);
    CHECK(now_us() - begin >= 50000);
    begin = now_us();
    struct timeval some = {0, 50000};
    EQUAL(select(0, NULL, NULL, NULL, &some), 0);
    CHECK(now_us() - begin >= 50000);
    begin = now_us();
    struct timespec same = {0, 50000000};
    EQUAL(ppoll(NULL, 0, &same, NULL), 0);
    EQUAL(pselect(0, NULL, NULL, NULL, &same, NULL), 0);
    CHECK(now_us() - begin >= 100000);
    EQUAL(ready(two.server, POLLIN, 0), 0);
}

CASE(time_outs_with_sockets_are_never_early)
{
    struct pair two = pair();
    for (int ms = 10; ms <= 30; ms += 20) {
        long begin = now_us();
        EQUAL(ready(two.server, POLLIN, ms), 0);
        CHECK(now_us() - begin >= ms * 1000L);
        fd_set set;
        FD_ZERO(&set);
        FD_SET(two.server, &set);
        struct timeval some = {0, ms * 1000};
        begin = now_us();
        EQUAL(select(two.server + 1, &set, NULL, NULL, &some), 0);
        CHECK(now_us() - begin >= ms * 1000L);
        CHECK(!FD_ISSET(two.server, &set));
        EQUAL(some.tv_sec * 1000000 + some.tv_usec, 0); /* Linux writes back what is left */
    }
}

CASE(select_with_sets_of_several)
{
    int listener = listener_at(port, 8);
    struct pair first = pair_by(listener, port), second = pair_by(listener, port);
    put(first.client, 0, 1);
    EQUAL(ready(first.server, POLLIN, 5000), POLLIN);
    fd_set in, out, odd;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&odd);
    int all[] = {listener, first.client, first.server, second.client, second.server}, most = 0;
    for (int n = 0; n < 5; n++) {
        FD_SET(all[n], &in);
        FD_SET(all[n], &odd);
        if (all[n] > most) most = all[n];
    }
    FD_SET(second.client, &out);
    EQUAL(select(most + 1, &in, &out, &odd, NULL), 2);
    for (int n = 0; n < 5; n++) {
        EQUAL(!!FD_ISSET(all[n], &in), all[n] == first.server);
        EQUAL(!!FD_ISSET(all[n], &out), all[n] == second.client);
        EQUAL(!!FD_ISSET(all[n], &odd), 0);
    }
    OK(shutdown(second.client, SHUT_WR));
    FD_ZERO(&in);
    FD_SET(second.server, &in);
    FD_SET(second.client, &in);
    EQUAL(select(most + 1, &in, NULL, NULL, NULL), 1);
    CHECK(FD_ISSET(second.server, &in));
    OK(close(second.client));
    FD_SET(second.client, &in);
    FAILS(select(most + 1, &in, NULL, NULL, NULL), EBADF);
    FAILS(select(-1, &in, NULL, NULL, NULL), EINVAL);
}

static atomic_int handled;
static void count_signal(int number)
{
    (void)number;
    handled++;
}

CASE(ppoll_and_pselect_swap_the_signal_mask)
{
    struct pair two = pair();
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = SA_RESTART};
    OK(sigaction(SIGUSR1, &action, NULL));
    sigset_t usr, none;
    sigemptyset(&none);
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR1);
    OK(sigprocmask(SIG_BLOCK, &usr, NULL));
    struct pollfd one = {two.server, POLLIN, 0};
    struct timespec some = {0, 10000000}, much = {5, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(two.server, &set);
    OK(raise(SIGUSR1));
    EQUAL(ppoll(&one, 1, &some, &usr), 0);
    EQUAL(some.tv_nsec, 10000000); /* unlike the bare system call */
    EQUAL(handled, 0);
    FAILS(ppoll(&one, 1, &much, &none), EINTR);
    EQUAL(handled, 1);
    OK(raise(SIGUSR1));
    FAILS(pselect(two.server + 1, &set, NULL, NULL, &much, &none), EINTR);
    EQUAL(handled, 2);
    put(two.client, 0, 1);
    EQUAL(ppoll(&one, 1, &much, &none), 1);
    FD_SET(two.server, &set);
    EQUAL(pselect(two.server + 1, &set, NULL, NULL, &much, &none), 1);
    struct timespec wrong = {0, -1};
    FAILS(ppoll(&one, 1, &wrong, NULL), EINVAL);
}

CASE(poll_sees_a_listener)
{
    int listener = listener_at(port, 4);
    EQUAL(ready(listener, POLLIN | POLLOUT, 20), 0);
    int client = dial(port);
    EQUAL(ready(listener, POLLIN | POLLOUT, 5000), POLLIN);
    take(listener);
    EQUAL(ready(listener, POLLIN, 20), 0);
    EQUAL(ready(tcp(0), POLLIN | POLLOUT, 0), POLLOUT | POLLHUP);
    OK(close(client));
}

/* Sizes that the compiler does not know make it call __poll_chk, __ppoll_chk, __read_chk, __recv_chk, __recvfrom_chk. */
static volatile size_t five = 5, one_entry = 1;

WIRE(fortified_calls)
{
    long slot;
    int fd = joined(&slot);
    unsigned char bytes[8];
    struct pollfd entries[2] = {{fd, POLLIN, 0}, {-1, 0, 0}};
    struct timespec much = {5, 0};
    struct sockaddr_in from;
    socklen_t size = sizeof from;
    PEER("send", slot, 15);
    EQUAL(poll(entries, one_entry, 5000), 1);
    EQUAL(ppoll(entries, one_entry, &much, NULL), 1);
    EQUAL(entries[0].revents, POLLIN);
    EQUAL(read(fd, bytes, five), 5);
    CHECK(is_pattern(bytes, 0, 5));
    EQUAL(recv(fd, bytes, five, 0), 5);
    CHECK(is_pattern(bytes, 5, 5));
    EQUAL(recvfrom(fd, bytes, five, 0, (struct sockaddr *)&from, &size), 5);
    CHECK(is_pattern(bytes, 10, 5));
    FAILS(recv(fd, bytes, five, MSG_DONTWAIT), EAGAIN);
    nonblocking(fd);
    FAILS(read(fd, bytes, five), EAGAIN);
    EQUAL(poll(entries, one_entry, 20), 0);
}
