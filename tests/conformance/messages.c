/* sendmsg, recvmsg, readv, writev, addresses of sendto and recvfrom: what goes in, what comes out, limits. */
#include "case.h"
#include <limits.h>
#include <sys/uio.h>

WIRE(recvmsg_resets_its_out_fields)
{
    long slot;
    int fd = joined(&slot);
    char bytes[16], control[256];
    struct sockaddr_in name = {.sin_family = 77};
    struct iovec part = {bytes, 16};
    for (int turn = 0; turn < 2; turn++) { /* with bytes, and at the end of the stream */
        struct msghdr message = {&name, sizeof name, &part, 1, control, 256, 0xff};
        turn ? PEER("shut", slot, SHUT_WR) : PEER("send", slot, 10);
        EQUAL(recvmsg(fd, &message, 0), turn ? 0 : 10);
        EQUAL(message.msg_flags, 0);
        EQUAL(message.msg_controllen, 0);
        EQUAL(message.msg_namelen, 0);
    }
    EQUAL(name.sin_family, 77);
}

WIRE(recvfrom_gives_no_address)
{
    long slot;
    int fd = joined(&slot);
    char bytes[16];
    struct sockaddr_in name = {.sin_family = 77};
    socklen_t size = sizeof name;
    PEER("send", slot, 10);
    CHECK(recvfrom(fd, bytes, 16, 0, (struct sockaddr *)&name, &size) > 0);
    EQUAL(size, 0);
    EQUAL(name.sin_family, 77);
}

WIRE(sendto_ignores_the_address)
{
    long slot;
    int fd = joined(&slot);
    unsigned char bytes[10];
    struct sockaddr_in elsewhere = at("192.0.2.1", 9);
    fill_pattern(bytes, 0, 10);
    EQUAL(sendto(fd, bytes, 10, 0, (struct sockaddr *)&elsewhere, sizeof elsewhere), 10);
    PEER("recv", slot, 10);
}

WIRE(many_parts)
{
    long slot;
    int fd = joined(&slot);
    static unsigned char bytes[IOV_MAX];
    static struct iovec parts[IOV_MAX + 1];
    fill_pattern(bytes, 0, IOV_MAX);
    for (int n = 0; n < IOV_MAX; n++) parts[n] = (struct iovec){bytes + n, 1};
    EQUAL(writev(fd, parts, IOV_MAX), IOV_MAX);
    PEER("recv", slot, IOV_MAX);
    PEER("send", slot, IOV_MAX);
    int count = 0;
    for (long end = now_ms() + 5000; count < IOV_MAX && now_ms() < end;) OK(ioctl(fd, FIONREAD, &count));
    memset(bytes, 0, sizeof bytes);
    EQUAL(readv(fd, parts, IOV_MAX), IOV_MAX);
    CHECK(is_pattern(bytes, 0, IOV_MAX));
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = IOV_MAX + 1};
    FAILS(writev(fd, parts, IOV_MAX + 1), EINVAL);
    FAILS(readv(fd, parts, IOV_MAX + 1), EINVAL);
    FAILS(sendmsg(fd, &message, 0), EMSGSIZE);
    FAILS(recvmsg(fd, &message, MSG_DONTWAIT), EMSGSIZE);
    volatile int minus_one = -1; /* the compiler refuses a constant */
    FAILS(writev(fd, parts, minus_one), EINVAL);
}

WIRE(empty_parts_among_full_ones)
{
    long slot;
    int fd = joined(&slot);
    unsigned char bytes[12];
    fill_pattern(bytes, 0, 12);
    struct iovec parts[] = {{NULL, 0}, {bytes, 5}, {bytes + 5, 0}, {bytes + 5, 7}, {NULL, 0}};
    EQUAL(writev(fd, parts, 5), 12);
    PEER("recv", slot, 12);
    PEER("send", slot, 12);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 5};
    memset(bytes, 0, 12);
    EQUAL(recvmsg(fd, &message, MSG_WAITALL), 12);
    CHECK(is_pattern(bytes, 0, 12));
}

WIRE(readv_is_short_when_there_is_less)
{
    long slot;
    int fd = joined(&slot);
    unsigned char bytes[20];
    struct iovec parts[] = {{bytes, 3}, {bytes + 3, 17}};
    PEER("send", slot, 10);
    EQUAL(ready(fd, POLLIN, 5000), POLLIN);
    EQUAL(readv(fd, parts, 2), 10);
    CHECK(is_pattern(bytes, 0, 10));
}

CASE(names_of_both_ends)
{
    int listener = listener_at(port, 4);
    struct pair two = pair_by(listener, port);
    struct sockaddr_in a = {0}, b = {0};
    socklen_t size = sizeof a;
    OK(getsockname(two.client, (struct sockaddr *)&a, &size));
    EQUAL(size, sizeof a);
    OK(getpeername(two.server, (struct sockaddr *)&b, &size));
    CHECK(memcmp(&a, &b, sizeof a) == 0);
    OK(getsockname(two.server, (struct sockaddr *)&a, &size));
    OK(getpeername(two.client, (struct sockaddr *)&b, &size));
    CHECK(memcmp(&a, &b, sizeof a) == 0);
    struct sockaddr_in here = at(own, port);
    CHECK(a.sin_family == AF_INET && a.sin_port == here.sin_port && a.sin_addr.s_addr == here.sin_addr.s_addr);
    size = 4; /* cut, and the true length told */
    memset(&a, 0xff, sizeof a);
    OK(getsockname(two.client, (struct sockaddr *)&a, &size));
    EQUAL(size, sizeof a);
    EQUAL(a.sin_addr.s_addr, 0xffffffff);
    size = (socklen_t)-1;
    FAILS(getsockname(two.client, (struct sockaddr *)&a, &size), EINVAL);
    size = sizeof a;
    FAILS(getpeername(listener, (struct sockaddr *)&a, &size), ENOTCONN);
}
