/* Bytes in and out by every call that moves them, and the same calls with bad addresses. */
#ifndef KNET_TRANSFERS_H
#define KNET_TRANSFERS_H

#include "state.h"
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

enum { ROOM = 1 << 16 };

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

static long transmit(int fd, unsigned char *bytes, size_t size, int flags, const char *how)
{
    struct iovec parts[2] = {{bytes, size / 2}, {bytes + size / 2, size - size / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct mmsghdr several[2] = {{message, 0}, {message, 0}};
    struct address there;
    if (is(how, "write")) return write(fd, bytes, size);
    if (is(how, "writev")) return writev(fd, parts, 2);
    if (is(how, "pwrite")) return pwrite(fd, bytes, size, 0);
    if (is(how, "pwritev")) return pwritev(fd, parts, 2, 0);
    if (is(how, "pwritev64v2")) return pwritev64v2(fd, parts, 2, -1, flags);
    if (is(how, "pwritev2")) return pwritev2(fd, parts, 2, -1, flags);
    if (is(how, "sendto")) return sendto(fd, bytes, size, flags, NULL, 0);
    if (is(how, "sendmsg")) return sendmsg(fd, &message, flags);
    if (is(how, "sendmmsg")) return sendmmsg(fd, several, 1, (unsigned)flags) == 1 ? (long)several[0].msg_len : -1;
    if (is(how, "send")) return send(fd, bytes, size, flags);
    address_of(how, &there); /* an address that the connection does not need */
    return sendto(fd, bytes, size, flags, there.at, there.size);
}

static void op_send(struct call *this) /* NAME SIZE [FLAGS] [CALL or ADDRESS] */
{
    static __thread unsigned char bytes[ROOM];
    long size = number(this, 2, 1);
    new_bytes(bytes, size < ROOM ? size : ROOM);
    long sent = transmit(fd_of(needed(this, 1)), bytes, (size_t)size, (int)flags_of(message_flags, word(this, 3, "0")), word(this, 4, "send"));
    if (sent > 0) atomic_fetch_add(&sent_bytes, (unsigned)sent);
    say(this, sent);
}

static void op_print(struct call *this) /* NAME TEXT: by dprintf */
{
    say(this, dprintf(fd_of(needed(this, 1)), "%s", needed(this, 2)));
}

static long receive(int fd, unsigned char *bytes, size_t size, int flags, const char *how)
{
    struct iovec parts[2] = {{bytes, size / 2}, {bytes + size / 2, size - size / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct mmsghdr several[2] = {{message, 0}, {message, 0}};
    struct timespec none = {0, 0};
    if (is(how, "read")) return read(fd, bytes, size);
    if (is(how, "readv")) return readv(fd, parts, 2);
    if (is(how, "pread")) return pread(fd, bytes, size, 0);
    if (is(how, "preadv")) return preadv(fd, parts, 2, 0);
    if (is(how, "preadv64v2")) return preadv64v2(fd, parts, 2, -1, flags);
    if (is(how, "preadv2")) return preadv2(fd, parts, 2, -1, flags);
    if (is(how, "recvfrom")) return recvfrom(fd, bytes, size, flags, NULL, NULL);
    if (is(how, "recvmsg")) return recvmsg(fd, &message, flags);
    if (is(how, "recvmmsg")) return recvmmsg(fd, several, 1, flags, NULL) == 1 ? (long)several[0].msg_len : -1;
    if (is(how, "recvmmsg0")) return recvmmsg(fd, several, 1, flags, &none) == 1 ? (long)several[0].msg_len : -1;
    if (is(how, "null")) return recv(fd, NULL, size, flags);
    return recv(fd, bytes, size, flags);
}

static void op_recv(struct call *this) /* NAME SIZE [FLAGS] [CALL] */
{
    static __thread unsigned char bytes[ROOM];
    memset(bytes, 0xee, sizeof bytes);
    long size = number(this, 2, 1);
    long got = receive(fd_of(needed(this, 1)), bytes, (size_t)size, (int)flags_of(message_flags, word(this, 3, "0")), word(this, 4, "recv"));
    if (is(word(this, 4, ""), "null"))
        say(this, got);
    else
        say_bytes(this, bytes, got);
}

static void op_message(struct call *this) /* NAME SIZE [FLAGS]: recvmsg with every out field set to something */
{
    unsigned char bytes[4096], control[256];
    struct sockaddr_in name = {.sin_family = 77};
    struct iovec part = {bytes, (size_t)number(this, 2, 1)};
    struct msghdr message = {&name, sizeof name, &part, 1, control, sizeof control, 0xff};
    long got = recvmsg(fd_of(needed(this, 1)), &message, (int)flags_of(message_flags, word(this, 3, "0")));
    say(this, got);
    if (got < 0) return;
    char flags[64];
    flags_text(message_flags, message.msg_flags, flags, sizeof flags);
    sprintf(strchr(this->answer, 0), " name %d control %zu flags %s", message.msg_namelen, message.msg_controllen, flags);
}

static void op_batch(struct call *this) /* NAME send|recv COUNT SIZE [FLAGS]: several messages in one call */
{
    static unsigned char bytes[8][256];
    struct mmsghdr all[8];
    struct iovec parts[8];
    long count = number(this, 3, 2), size = number(this, 4, 1);
    bool sends = is(needed(this, 2), "send");
    for (int n = 0; n < 8; n++) {
        parts[n] = (struct iovec){bytes[n], (size_t)size};
        all[n] = (struct mmsghdr){{.msg_iov = &parts[n], .msg_iovlen = 1}, 0};
        if (sends) new_bytes(bytes[n], size);
    }
    int flags = (int)flags_of(message_flags, word(this, 5, "0")), fd = fd_of(this->words[1]);
    int done = sends ? sendmmsg(fd, all, (unsigned)count, (unsigned)flags) : recvmmsg(fd, all, (unsigned)count, flags, NULL);
    say(this, done);
    for (int n = 0; n < done; n++) sprintf(strchr(this->answer, 0), " %u", all[n].msg_len);
}

static void op_sendfile(struct call *this) /* NAME FILE SIZE [OFFSET]: tells the offset after it */
{
    off_t offset = number(this, 4, 0);
    long sent = sendfile(fd_of(needed(this, 1)), fd_of(needed(this, 2)), this->count > 4 ? &offset : NULL, (size_t)number(this, 3, 1));
    say(this, sent);
    if (sent >= 0 && this->count > 4) sprintf(strchr(this->answer, 0), " to %ld", (long)offset);
}

/* NAME SIZE [LEAST]: reads and forgets, whatever it is; LEAST bytes, sent one by one, have two seconds to come */
static void op_skip(struct call *this)
{
    static unsigned char bytes[ROOM];
    int fd = fd_of(needed(this, 1)), there = 0;
    for (int n = 0; n < 400 && ioctl(fd, FIONREAD, &there) == 0 && there < number(this, 3, 0); n++) pause_us(5000);
    say(this, recv(fd, bytes, (size_t)number(this, 2, ROOM), MSG_DONTWAIT));
}

/* Until nothing more goes in, and until all of that has come out: how much it is differs. */
static atomic_long filled;

static void op_fill(struct call *this) /* NAME [MOST]: with it only whether more went in */
{
    static unsigned char bytes[16384];
    int fd = fd_of(needed(this, 1));
    long more, idle = 0, total = 0, quiet = 100000 + 2L * settle_us; /* us without a byte */
    int queued = 0, before = 0;
    do {
        more = send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        bool full = more < 0 && errno == EAGAIN;
        if (full) pause_us(5000), idle += 5000;
        /* What is acknowledged makes room a moment later. */
        if (more > 0) total += more, idle = 0;
        if (full && ioctl(fd, TIOCOUTQ, &queued) == 0 && queued != before) before = queued, idle = 0;
        if (full) errno = EAGAIN;
    } while (total < 64 << 20 && (more > 0 || (errno == EAGAIN && idle < quiet)));
    atomic_fetch_add(&filled, total);
    if (this->count > 2)
        say_text(this, total > number(this, 2, 0) ? "more" : "no more");
    else
        say(this, more);
}

static void op_drain(struct call *this) /* NAME */
{
    static unsigned char bytes[ROOM];
    int fd = fd_of(needed(this, 1));
    long left = atomic_exchange(&filled, 0), more;
    struct pollfd one = {fd, POLLIN, 0};
    while (left > 0) {
        if (poll(&one, 1, 3000) <= 0) break;
        more = recv(fd, bytes, left < ROOM ? (size_t)left : ROOM, MSG_DONTWAIT);
        if (more < 0 && errno == EAGAIN) continue;
        if (more < 0) {
            say(this, more);
            return;
        }
        if (more == 0) break;
        left -= more;
    }
    say_text(this, left ? "some" : "all");
}

/* Calls with a pointer to nowhere. */
static void op_fault(struct call *this) /* CALL NAME [beyond|unmapped]: in the first page, in the kernel's half, or where nothing is */
{
    const char *how = needed(this, 1);
    int fd = fd_of(needed(this, 2)), value = 4;
    const char *where = word(this, 3, "");
    void *volatile nowhere = is(where, "beyond")     ? (void *)0xffff800000000010
                             : is(where, "unmapped") ? mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                                     : (void *)16;
    struct iovec part = {nowhere, 4};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1}, lost = {.msg_iov = nowhere, .msg_iovlen = 1};
    char bytes[8] = "";
    socklen_t size = sizeof value;
    struct iovec good = {bytes, 4};
    struct epoll_event events[4];
    struct pollfd one = {fd, POLLIN, 0};
    struct timeval soon = {0, 0};
    struct timespec now = {0, 0};
    socklen_t less = (socklen_t)-1;
    long result = is(how, "send") ? send(fd, nowhere, 4, MSG_NOSIGNAL)
                  : is(how, "write") ? write(fd, nowhere, 4)
                  : is(how, "writev") ? writev(fd, &part, 1)
                  : is(how, "writev_list") ? writev(fd, nowhere, 1)
                  : is(how, "sendto_address") ? sendto(fd, bytes, 4, 0, nowhere, 16)
                  : is(how, "sendmsg") ? sendmsg(fd, &message, 0)
                  : is(how, "sendmsg_list") ? sendmsg(fd, &lost, 0)
                  : is(how, "sendmsg_header") ? sendmsg(fd, nowhere, 0)
                  : is(how, "sendmmsg") ? sendmmsg(fd, nowhere, 1, 0)
                  : is(how, "recv") ? recv(fd, nowhere, 4, MSG_DONTWAIT)
                  : is(how, "read") ? read(fd, nowhere, 4)
                  : is(how, "readv") ? readv(fd, &part, 1)
                  : is(how, "readv_list") ? readv(fd, nowhere, 1)
                  : is(how, "recvfrom_address") ? recvfrom(fd, bytes, 4, MSG_DONTWAIT, nowhere, &size)
                  : is(how, "recvfrom_length") ? recvfrom(fd, bytes, 4, MSG_DONTWAIT, (struct sockaddr *)bytes, nowhere)
                  : is(how, "recvmsg") ? recvmsg(fd, &message, MSG_DONTWAIT)
                  : is(how, "recvmsg_list") ? recvmsg(fd, &lost, MSG_DONTWAIT)
                  : is(how, "recvmsg_header") ? recvmsg(fd, nowhere, MSG_DONTWAIT)
                  : is(how, "accept_address") ? accept(fd, nowhere, &size)
                  : is(how, "accept_length") ? accept(fd, (struct sockaddr *)bytes, nowhere)
                  : is(how, "getsockname") ? getsockname(fd, nowhere, &size)
                  : is(how, "getsockname_length") ? getsockname(fd, (struct sockaddr *)bytes, nowhere)
                  : is(how, "getpeername") ? getpeername(fd, nowhere, &size)
                  : is(how, "getsockopt") ? getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, nowhere, &size)
                  : is(how, "getsockopt_length") ? getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, nowhere)
                  : is(how, "getsockopt_info") ? getsockopt(fd, IPPROTO_TCP, TCP_INFO, nowhere, &size)
                  : is(how, "setsockopt") ? setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, nowhere, 4)
                  : is(how, "setsockopt_tcp") ? setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, nowhere, 4)
                  : is(how, "fionread") ? ioctl(fd, FIONREAD, nowhere)
                  : is(how, "fionbio") ? ioctl(fd, FIONBIO, nowhere)
                  : is(how, "bind") ? bind(fd, nowhere, 16)
                  : is(how, "connect") ? connect(fd, nowhere, 16)
                  : is(how, "epoll_ctl") ? epoll_ctl(fd, EPOLL_CTL_ADD, fd_of(needed(this, 3)), nowhere)
                  : is(how, "epoll_wait") ? epoll_wait(fd, nowhere, 4, 0)
                  : is(how, "epoll_pwait_mask") ? epoll_pwait(fd, events, 4, 0, nowhere)
                  : is(how, "poll") ? poll(nowhere, 1, 0)
                  : is(how, "select") ? select(fd + 1, nowhere, NULL, NULL, &soon)
                  : is(how, "recvfrom_null_length") ? recvfrom(fd, bytes, 4, MSG_DONTWAIT, (struct sockaddr *)bytes, NULL)
                  : is(how, "recvfrom_negative_length") ? recvfrom(fd, bytes, 4, MSG_DONTWAIT, (struct sockaddr *)bytes, &less)
                  : is(how, "accept_negative_length") ? accept(fd, (struct sockaddr *)bytes, &less)
                  : is(how, "sendto_long_address") ? sendto(fd, bytes, 4, 0, (struct sockaddr *)bytes, 129)
                  : is(how, "ppoll_mask") ? ppoll(&one, 1, &now, nowhere)
                  : is(how, "sendfile_offset") ? sendfile(fd, 0, nowhere, 4)
                  : is(how, "preadv") ? preadv(fd, &good, 1, 0)
                                      : (fprintf(stderr, "script: no fault '%s'\n", how), exit(70), 0);
    say(this, result);
}

/* Messages of parts, with some that lie nowhere: 3,n4/5 is a part of 3 bytes and one of 4 in the first page, then a message of 5
 * bytes; k is in the kernel's half, x a message of more parts than there may be. */
enum { MESSAGES = 8, PIECES = 16 };
static int lay(char *text, unsigned char *bytes, struct iovec parts[MESSAGES][PIECES], struct mmsghdr *all)
{
    int count = 0;
    memset(all, 0, sizeof *all * MESSAGES);
    for (char *message; count < MESSAGES && (message = strsep(&text, "/")); count++) {
        struct msghdr *head = &all[count].msg_hdr;
        head->msg_iov = parts[count];
        if (*message == 'x') {
            head->msg_iovlen = 2000;
            continue;
        }
        for (char *part; head->msg_iovlen < PIECES && (part = strsep(&message, ","));) {
            bool first = *part == 'n', kernel = *part == 'k';
            size_t size = strtoul(part + (first || kernel), NULL, 10);
            void *place = first ? (void *)16 : kernel ? (void *)0xffff800000000010 : (void *)bytes;
            parts[count][head->msg_iovlen++] = (struct iovec){place, size};
            if (!first && !kernel) bytes += size;
        }
    }
    return count;
}

static void op_mixed(struct call *this) /* NAME CALL MESSAGES [FLAGS] */
{
    static unsigned char bytes[1 << 19];
    struct iovec parts[MESSAGES][PIECES];
    struct mmsghdr all[MESSAGES];
    char text[64];
    const char *how = needed(this, 2);
    snprintf(text, sizeof text, "%s", needed(this, 3));
    int count = lay(text, bytes, parts, all), fd = fd_of(this->words[1]), flags = (int)flags_of(message_flags, word(this, 4, "0"));
    int size = (int)all[0].msg_hdr.msg_iovlen;
    bool sends = is(how, "writev") || is(how, "sendmsg") || is(how, "sendmmsg") || is(how, "pwritev2");
    if (sends)
        new_bytes(bytes, sizeof bytes);
    else
        memset(bytes, 0xee, sizeof bytes);
    long moved = is(how, "writev") ? writev(fd, parts[0], size)
                 : is(how, "readv") ? readv(fd, parts[0], size)
                 : is(how, "pwritev2") ? pwritev2(fd, parts[0], size, -1, 0)
                 : is(how, "preadv2") ? preadv2(fd, parts[0], size, -1, 0)
                 : is(how, "sendmsg") ? sendmsg(fd, &all[0].msg_hdr, flags)
                 : is(how, "recvmsg") ? recvmsg(fd, &all[0].msg_hdr, flags)
                 : is(how, "sendmmsg") ? sendmmsg(fd, all, (unsigned)count, (unsigned)flags)
                                       : recvmmsg(fd, all, (unsigned)count, flags, NULL);
    bool several = is(how, "sendmmsg") || is(how, "recvmmsg");
    long total = several ? 0 : moved;
    for (int n = 0; several && n < moved; n++) total += all[n].msg_len;
    if (sends && total > 0) atomic_fetch_add(&sent_bytes, (unsigned)total);
    if (sends || moved <= 0)
        say(this, moved);
    else
        say_bytes(this, bytes, total);
    for (int n = 0; several && n < moved; n++) sprintf(strchr(this->answer, 0), " %u", all[n].msg_len);
}

static void op_parts(struct call *this) /* NAME writev|readv|sendmsg|recvmsg COUNT: that many parts of one byte */
{
    static unsigned char bytes[2048];
    static struct iovec parts[2048];
    const char *how = needed(this, 2);
    long count = number(this, 3, 1);
    new_bytes(bytes, sizeof bytes);
    for (int n = 0; n < 2048; n++) parts[n] = (struct iovec){bytes + n, 1};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    int fd = fd_of(this->words[1]);
    bool sends = is(how, "writev") || is(how, "sendmsg");
    if (!sends) memset(bytes, 0xee, sizeof bytes);
    long moved = is(how, "writev") ? writev(fd, parts, (int)count) : is(how, "readv") ? readv(fd, parts, (int)count)
                 : is(how, "sendmsg") ? sendmsg(fd, &message, 0) : recvmsg(fd, &message, MSG_DONTWAIT);
    if (sends && moved > 0) atomic_fetch_add(&sent_bytes, (unsigned)moved);
    if (sends)
        say(this, moved);
    else
        say_bytes(this, bytes, moved);
}

#endif
