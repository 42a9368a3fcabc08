/* What the wire shows of options and flags: urgent pointers, time to live, time limits; a kernel is the other end. */
#include "case.h"

static unsigned char pattern_at(long at)
{
    unsigned char byte;
    fill_pattern(&byte, at, 1);
    return byte;
}

static int at_mark(int fd)
{
    return OK(sockatmark(fd));
}

WIRE(an_urgent_byte_of_the_peer_is_out_of_band)
{
    long slot;
    int fd = joined(&slot), count = -1;
    unsigned char byte = 0;
    FAILS(recv(fd, &byte, 1, MSG_OOB), EINVAL);
    PEER("send", slot, 3);
    PEER("urge", slot, 5);
    EQUAL(ready(fd, POLLPRI, 5000), POLLPRI);
    OK(ioctl(fd, FIONREAD, &count));
    EQUAL(count, 7);
    EQUAL(at_mark(fd), 0);
    EQUAL(recv(fd, &byte, 1, MSG_OOB), 1);
    EQUAL(byte, pattern_at(7));
    FAILS(recv(fd, &byte, 1, MSG_OOB), EINVAL);
    get(fd, 0, 7);
    EQUAL(at_mark(fd), 1);
    PEER("send", slot, 4);
    get(fd, 8, 4);
    EQUAL(at_mark(fd), 0);
}

WIRE(an_urgent_byte_of_the_peer_is_in_line)
{
    long slot;
    int fd = joined(&slot), on = 1;
    OK(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    PEER("urge", slot, 5);
    EQUAL(ready(fd, POLLPRI, 5000), POLLPRI);
    get(fd, 0, 4);
    EQUAL(at_mark(fd), 1);
    get(fd, 4, 1);
    EQUAL(at_mark(fd), 0);
}

WIRE(our_urgent_byte_reaches_the_peer)
{
    long slot;
    int fd = joined(&slot);
    unsigned char bytes[6];
    fill_pattern(bytes, 0, 6);
    EQUAL(send(fd, bytes, 6, MSG_OOB), 6);
    EQUAL(PEER("mark", slot, 0), pattern_at(5));
    PEER("recv", slot, 5);
}

static atomic_int urged;

static void note(int signal)
{
    urged += signal == SIGURG;
}

WIRE(an_urgent_byte_signals_the_owner)
{
    long slot;
    int fd = joined(&slot);
    struct sigaction action = {.sa_handler = note};
    OK(sigaction(SIGURG, &action, NULL));
    OK(fcntl(fd, F_SETOWN, getpid()));
    PEER("urge", slot, 1);
    for (int n = 0; n < 1000 && !urged; n++) pause_ms(10);
    EQUAL(urged, 1);
}

WIRE(the_time_to_live_is_on_the_wire)
{
    long slot;
    int fd = joined(&slot), ttl = 40, queued = -1;
    unsigned char bytes[20];
    fill_pattern(bytes, 0, 20);
    OK(setsockopt(fd, IPPROTO_IP, IP_TTL, &ttl, sizeof ttl));
    PEER("near", slot, 40);
    EQUAL(send(fd, bytes, 10, 0), 10);
    PEER("recv", slot, 10);
    PEER("near", slot, 41);
    EQUAL(send(fd, bytes + 10, 10, 0), 10);
    pause_ms(100);
    OK(ioctl(fd, TIOCOUTQ, &queued));
    EQUAL(queued, 10);
    PEER("near", slot, 0);
    PEER("recv", slot, 10);
}

WIRE(a_peer_that_is_too_far_away_is_not_heard)
{
    long slot;
    int fd = joined(&slot), least = 255;
    OK(setsockopt(fd, IPPROTO_IP, IP_MINTTL, &least, sizeof least));
    PEER("send", slot, 3);
    EQUAL(ready(fd, POLLIN, 100), 0);
    least = 0;
    OK(setsockopt(fd, IPPROTO_IP, IP_MINTTL, &least, sizeof least));
    get(fd, 0, 3);
}

WIRE(keep_alive_probes_find_a_silent_peer)
{
    long slot;
    int fd = joined(&slot), on = 1, two = 2;
    OK(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
    OK(setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &on, sizeof on));
    OK(setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &on, sizeof on));
    OK(setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &two, sizeof two));
    PEER("near", slot, 255);
    long begin = now_ms();
    EQUAL(ready(fd, POLLERR, 20000) & POLLERR, POLLERR);
    CHECK(now_ms() - begin >= 2500);
}
