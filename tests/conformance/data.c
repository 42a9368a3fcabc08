/* Bytes through every call: blocking and not, peek, wait for all, flags, end of the stream, time-outs, FIONREAD. */
#include "case.h"
#include <sys/uio.h>

enum { CALLS = 5 };

/* Receives up to `size` bytes by the call of this number. */
static long receive(int call, int fd, unsigned char *into, size_t size)
{
    struct iovec parts[2] = {{into, size / 2}, {into + size / 2, size - size / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    switch (call) {
    case 0: return recv(fd, into, size, 0);
    case 1: return read(fd, into, size);
    case 2: return readv(fd, parts, 2);
    case 3: return recvmsg(fd, &message, 0);
    default: return recvfrom(fd, into, size, 0, NULL, NULL);
    }
}

static long transmit(int call, int fd, unsigned char *from, size_t size)
{
    struct iovec parts[2] = {{from, size / 2}, {from + size / 2, size - size / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    switch (call) {
    case 0: return send(fd, from, size, 0);
    case 1: return write(fd, from, size);
    case 2: return writev(fd, parts, 2);
    case 3: return sendmsg(fd, &message, 0);
    default: return sendto(fd, from, size, 0, NULL, 0);
    }
}

WIRE(every_call_sends_and_receives)
{
    long slot;
    int fd = joined(&slot);
    for (int call = 0; call < CALLS; call++) {
        unsigned char bytes[101];
        fill_pattern(bytes, 101 * call, 101);
        EQUAL(transmit(call, fd, bytes, 101), 101);
        PEER("recv", slot, 101);
        PEER("send", slot, 101);
        EQUAL(ready(fd, POLLIN, 5000), POLLIN);
        long got = receive(call, fd, bytes, 101);
        CHECK(got > 0);
        while (got < 101) got += OK(receive(call, fd, bytes + got, 101 - (size_t)got));
        CHECK(is_pattern(bytes, 101 * call, 101));
    }
}

WIRE(a_blocked_receive_gets_what_arrives)
{
    long slot;
    int fd = joined(&slot);
    for (int call = 0; call < CALLS; call++) {
        unsigned char bytes[64];
        long rest = peer_begin("pause", 30, 0), sends = peer_begin("send", slot, 8);
        long got = receive(call, fd, bytes, 64);
        CHECK(got > 0);
        PEER_END(rest);
        PEER_END(sends);
        while (got < 8) got += OK(receive(call, fd, bytes + got, 64 - (size_t)got));
        CHECK(got == 8 && is_pattern(bytes, 8 * call, 8));
    }
}

WIRE(empty_is_eagain_and_the_end_is_0_for_ever)
{
    long slot;
    int fd = joined(&slot);
    unsigned char bytes[64];
    nonblocking(fd);
    for (int call = 0; call < CALLS; call++) FAILS(receive(call, fd, bytes, 64), EAGAIN);
    PEER("send", slot, 10);
    PEER("shut", slot, SHUT_WR);
    EQUAL(ready(fd, POLLRDHUP, 5000), POLLRDHUP);
    get(fd, 0, 10);
    for (int turn = 0; turn < 3; turn++)
        for (int call = 0; call < CALLS; call++) EQUAL(receive(call, fd, bytes, 64), 0);
    for (int call = 0; call < CALLS; call++) EQUAL(transmit(call, fd, bytes, 4), 4);
}

WIRE(a_full_buffer_is_eagain_for_every_call)
{
    long slot;
    int fd = joined(&slot);
    nonblocking(fd);
    long sent = fill(fd);
    unsigned char bytes[64];
    for (int call = 0; call < CALLS; call++) FAILS(transmit(call, fd, bytes, 64), EAGAIN);
    OK(fcntl(fd, F_SETFL, OK(fcntl(fd, F_GETFL)) & ~O_NONBLOCK));
    FAILS(send(fd, bytes, 64, MSG_DONTWAIT), EAGAIN);
    PEER("recv", slot, sent);
}

WIRE(a_new_connection_takes_64_kib_at_once)
{
    long slot, first;
    int fd = joined(&slot);
    static unsigned char bytes[64 << 10];
    fill_pattern(bytes, 0, sizeof bytes);
    first = send(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    EQUAL(first, (long)sizeof bytes);
    PEER("recv", slot, first);
}

WIRE(a_blocked_send_ends_when_the_peer_reads)
{
    long slot;
    int fd = joined(&slot);
    long rest = peer_begin("pause", 30, 0), reads = peer_begin("recv", slot, 8 << 20);
    put(fd, 0, 8 << 20);
    PEER_END(rest);
    PEER_END(reads);
}

WIRE(peek_leaves_the_bytes)
{
    long slot;
    int fd = joined(&slot);
    unsigned char bytes[16];
    PEER("send", slot, 10);
    EQUAL(recv(fd, bytes, 4, MSG_PEEK), 4);
    CHECK(is_pattern(bytes, 0, 4));
    EQUAL(recv(fd, bytes, 10, MSG_PEEK | MSG_WAITALL), 10);
    CHECK(is_pattern(bytes, 0, 10));
    EQUAL(recv(fd, bytes, 16, MSG_DONTWAIT), 10);
    CHECK(is_pattern(bytes, 0, 10));
    FAILS(recv(fd, bytes, 16, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
    PEER("shut", slot, SHUT_WR);
    EQUAL(recv(fd, bytes, 16, MSG_PEEK), 0);
    EQUAL(recv(fd, bytes, 16, MSG_PEEK), 0);
}

WIRE(wait_for_all)
{
    long slot;
    int fd = joined(&slot);
    unsigned char bytes[32];
    PEER("send", slot, 5);
    long rest = peer_begin("pause", 50, 0), sends = peer_begin("send", slot, 5);
    EQUAL(recv(fd, bytes, 10, MSG_WAITALL), 10);
    CHECK(is_pattern(bytes, 0, 10));
    PEER_END(rest);
    PEER_END(sends);
    PEER("send", slot, 5);
    EQUAL(ready(fd, POLLIN, 5000), POLLIN);
    EQUAL(recv(fd, bytes, 10, MSG_WAITALL | MSG_DONTWAIT), 5);
    PEER("send", slot, 5);
    PEER("shut", slot, SHUT_WR);
    EQUAL(recv(fd, bytes, 10, MSG_WAITALL), 5);
    EQUAL(recv(fd, bytes, 10, MSG_WAITALL), 0);
}

WIRE(trunc_drops_the_bytes_unseen)
{
    long slot;
    int fd = joined(&slot);
    unsigned char bytes[16] = {0};
    PEER("send", slot, 10);
    EQUAL(ready(fd, POLLIN, 5000), POLLIN);
    EQUAL(recv(fd, bytes, 4, MSG_TRUNC), 4);
    EQUAL(bytes[1] | bytes[2] | bytes[3], 0);
    EQUAL(recv(fd, NULL, 2, MSG_TRUNC), 2);
    get(fd, 6, 4);
}

WIRE(flags_of_send)
{
    long slot;
    int fd = joined(&slot), flags[] = {MSG_NOSIGNAL, MSG_DONTWAIT, MSG_EOR, MSG_CONFIRM, MSG_DONTROUTE, MSG_CMSG_CLOEXEC, MSG_WAITALL, MSG_TRUNC, MSG_PEEK};
    unsigned char byte;
    for (int n = 0; n < (int)(sizeof flags / sizeof *flags); n++) {
        fill_pattern(&byte, n, 1);
        EQUAL(send(fd, &byte, 1, flags[n]), 1);
    }
    PEER("recv", slot, sizeof flags / sizeof *flags);
}

WIRE(more_is_sent_with_the_next_bytes_or_soon)
{
    long slot;
    int fd = joined(&slot);
    unsigned char bytes[10];
    fill_pattern(bytes, 0, 10);
    EQUAL(send(fd, bytes, 5, MSG_MORE), 5);
    EQUAL(send(fd, bytes + 5, 5, 0), 5);
    PEER("recv", slot, 10);
    fill_pattern(bytes, 10, 10);
    EQUAL(send(fd, bytes, 10, MSG_MORE), 10);
    PEER("recv", slot, 10); /* Linux waits 200 ms for more */
}

WIRE(flags_of_recv)
{
    long slot;
    int fd = joined(&slot), flags[] = {MSG_NOSIGNAL, MSG_DONTWAIT, MSG_CMSG_CLOEXEC, MSG_EOR, MSG_CONFIRM, MSG_DONTROUTE};
    unsigned char byte;
    FAILS(recv(fd, &byte, 1, MSG_OOB), EINVAL);
    FAILS(recv(fd, &byte, 1, MSG_ERRQUEUE), EAGAIN);
    PEER("send", slot, 20);
    EQUAL(ready(fd, POLLIN, 5000), POLLIN);
    for (int n = 0; n < (int)(sizeof flags / sizeof *flags); n++) {
        EQUAL(recv(fd, &byte, 1, flags[n]), 1);
        CHECK(is_pattern(&byte, n, 1));
    }
    FAILS(recv(fd, &byte, 1, MSG_OOB), EINVAL);
}

WIRE(nothing_to_transfer)
{
    long slot;
    int fd = joined(&slot);
    unsigned char byte;
    EQUAL(read(fd, &byte, 0), 0);
    EQUAL(send(fd, &byte, 0, 0), 0);
    EQUAL(write(fd, &byte, 0), 0);
    EQUAL(writev(fd, NULL, 0), 0);
    EQUAL(readv(fd, NULL, 0), 0);
    FAILS(recv(fd, &byte, 0, MSG_DONTWAIT), EAGAIN);
    PEER("send", slot, 1);
    EQUAL(ready(fd, POLLIN, 5000), POLLIN);
    EQUAL(recv(fd, &byte, 0, 0), 0);
    get(fd, 0, 1);
}

WIRE(a_low_water_mark_beyond_the_buffer_is_cut)
{
    long slot;
    int fd = joined(&slot), marks[] = {1 << 30, -1};
    for (int n = 0; n < 2; n++) {
        OK(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &marks[n], sizeof marks[n]));
        long sends = peer_begin("send", slot, 16 << 20);
        EQUAL(ready(fd, POLLIN, 9000), POLLIN);
        get(fd, (long)n << 24, 16 << 20);
        PEER_END(sends);
    }
}

WIRE(time_outs_of_receive_and_send)
{
    long slot;
    int fd = joined(&slot);
    unsigned char bytes[4096] = {0};
    struct timeval some = {0, 60000}, got;
    socklen_t size = sizeof got;
    OK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &some, sizeof some));
    OK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &some, sizeof some));
    OK(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &got, &size));
    CHECK(got.tv_sec == 0 && got.tv_usec >= 60000 && got.tv_usec < 70000); /* in ticks */
    long begin = now_ms();
    FAILS(recv(fd, bytes, 8, 0), EAGAIN);
    CHECK(now_ms() - begin >= 50);
    PEER("send", slot, 3);
    EQUAL(recv(fd, bytes, 8, MSG_WAITALL), 3);
    long sent;
    begin = now_ms();
    while ((sent = send(fd, bytes, sizeof bytes, MSG_NOSIGNAL)) > 0)
        if (now_ms() - begin > 15000) FAIL("send goes on for 15 s with nobody reading");
    EQUAL(sent, -1);
    begin = now_ms();
    FAILS(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), EAGAIN);
    CHECK(now_ms() - begin >= 50);
}

WIRE(fionread_counts_the_unread)
{
    long slot;
    int fd = joined(&slot), count = -1;
    OK(ioctl(fd, FIONREAD, &count));
    EQUAL(count, 0);
    PEER("send", slot, 10);
    EQUAL(ready(fd, POLLIN, 5000), POLLIN);
    OK(ioctl(fd, FIONREAD, &count));
    EQUAL(count, 10);
    get(fd, 0, 4);
    OK(ioctl(fd, FIONREAD, &count));
    EQUAL(count, 6);
    PEER("shut", slot, SHUT_WR);
    EQUAL(ready(fd, POLLRDHUP, 5000), POLLRDHUP);
    OK(ioctl(fd, FIONREAD, &count));
    EQUAL(count, 6);
    get(fd, 4, 6);
    OK(ioctl(fd, FIONREAD, &count));
    EQUAL(count, 0);
}
