/* Making, naming and ending sockets; options, flags and other properties of descriptors. */
#ifndef KNET_SOCKETS_H
#define KNET_SOCKETS_H

#include "state.h"
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

static void op_tcp(struct call *this) /* NAME [FLAGS] */
{
    say_new(this, needed(this, 1), socket(AF_INET, SOCK_STREAM | (int)flags_of(socket_flags, word(this, 2, "0")), 0));
}

static void op_socket(struct call *this) /* NAME FAMILY TYPE PROTOCOL, as numbers */
{
    say_new(this, needed(this, 1), socket((int)number(this, 2, AF_INET), (int)number(this, 3, SOCK_STREAM), (int)number(this, 4, 0)));
}

static void op_socketpair(struct call *this) /* A B FAMILY TYPE */
{
    int ends[2] = {-1, -1};
    say(this, socketpair((int)number(this, 3, AF_UNIX), (int)number(this, 4, SOCK_STREAM), 0, ends));
    name_it(needed(this, 1), ends[0]);
    name_it(needed(this, 2), ends[1]);
}

static void op_open(struct call *this) /* NAME file|null|event|timer|epoll|path */
{
    const char *kind = needed(this, 2);
    int fd = strcmp(kind, "file") == 0    ? open("/etc/passwd", O_RDONLY)
             : strcmp(kind, "null") == 0  ? open("/dev/null", O_RDWR)
             : strcmp(kind, "event") == 0 ? eventfd(0, EFD_NONBLOCK)
             : strcmp(kind, "timer") == 0 ? timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)
                                          : open(kind, O_RDONLY);
    say_new(this, needed(this, 1), fd);
}

static void op_pipe(struct call *this) /* READ WRITE */
{
    int ends[2] = {-1, -1};
    say(this, pipe(ends));
    name_it(needed(this, 1), ends[0]);
    name_it(needed(this, 2), ends[1]);
}

static void op_bind(struct call *this) /* NAME ADDRESS */
{
    struct address there;
    address_of(needed(this, 2), &there);
    say(this, bind(fd_of(word(this, 1, "")), there.at, there.size));
}

static void op_listen(struct call *this) /* NAME [BACKLOG] */
{
    say(this, listen(fd_of(needed(this, 1)), (int)number(this, 2, 16)));
}

static void op_connect(struct call *this) /* NAME ADDRESS */
{
    struct address there;
    address_of(needed(this, 2), &there);
    say(this, connect(fd_of(word(this, 1, "")), there.at, there.size));
}

static const char *failed; /* the part of a larger step that did not work */

static int listener_on(const char *where, int backlog)
{
    struct address here;
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    address_of(where, &here);
    failed = "socket";
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0) return -1;
    failed = "bind";
    if (bind(fd, here.at, here.size) < 0) return -1;
    failed = "listen";
    if (listen(fd, backlog) < 0) return -1;
    failed = "connect";
    return fd;
}

static void op_listener(struct call *this) /* NAME [ADDRESS] [BACKLOG]: socket, SO_REUSEADDR, bind, listen */
{
    say_new(this, needed(this, 1), listener_on(word(this, 2, "own:P"), (int)number(this, 3, 16)));
}

static void op_dial(struct call *this) /* NAME [ADDRESS]: socket, connect */
{
    struct address there;
    address_of(word(this, 2, "own:P"), &there);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, there.at, there.size) < 0) {
        int error = errno;
        close(fd);
        fd = -1, errno = error;
    }
    say_new(this, needed(this, 1), fd);
}

static void op_accept(struct call *this) /* NEW LISTENER [FLAGS]: accept4 when there are flags */
{
    int fd = fd_of(needed(this, 2));
    say_new(this, word(this, 1, ""), this->count > 3 ? accept4(fd, NULL, NULL, (int)flags_of(socket_flags, this->words[3])) : accept(fd, NULL, NULL));
}

static void op_accept_name(struct call *this) /* NEW LISTENER [LENGTH]: with the peer's address */
{
    struct sockaddr_in name = {0};
    socklen_t size = (socklen_t)number(this, 3, sizeof name);
    int fd = accept(fd_of(needed(this, 2)), (struct sockaddr *)&name, &size);
    say_new(this, word(this, 1, ""), fd);
    if (fd >= 0 && size == sizeof name && number(this, 3, sizeof name) == sizeof name) address_text(&name, strchr(strcat(this->answer, " "), 0), 40);
    if (fd >= 0) sprintf(strchr(this->answer, 0), " len %d", size);
}

static void op_pair(struct call *this) /* CLIENT SERVER [ADDRESS]: a connection, its listener closed again */
{
    struct address there;
    const char *where = word(this, 3, "own:P");
    int listener = listener_on(where, 1), client = socket(AF_INET, SOCK_STREAM, 0), server = -1;
    address_of(where, &there);
    if (listener >= 0 && client >= 0 && connect(client, there.at, there.size) == 0) server = accept(listener, NULL, NULL);
    int error = errno;
    close(listener);
    name_it(needed(this, 1), client);
    name_it(needed(this, 2), server);
    errno = error;
    if (server < 0)
        snprintf(this->answer, ANSWER, "%s -1 %s", failed, errno_text(error));
    else
        say_text(this, "ok");
}

static void op_shutdown(struct call *this) /* NAME HOW */
{
    say(this, shutdown(fd_of(needed(this, 1)), (int)flags_of(hows, needed(this, 2))));
}

static void op_close(struct call *this) /* NAME */
{
    say(this, close(fd_of(needed(this, 1))));
}

static void op_rawclose(struct call *this) /* NAME: behind the back of libc */
{
    say(this, syscall(SYS_close, fd_of(needed(this, 1))));
}

static void op_reset(struct call *this) /* NAME: SO_LINGER 0, close */
{
    struct linger now = {1, 0};
    int fd = fd_of(needed(this, 1)), result = setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    say(this, result < 0 ? result : close(fd));
}

static void op_closerange(struct call *this) /* FIRST LAST [FLAGS] */
{
    say(this, close_range((unsigned)fd_of(needed(this, 1)), (unsigned)fd_of(needed(this, 2)), (int)number(this, 3, 0)));
}

static void op_dup(struct call *this) /* NEW OLD */
{
    say_new(this, needed(this, 1), dup(fd_of(needed(this, 2))));
}

static void op_dup2(struct call *this) /* OLD NAME-OR-NUMBER: that name is the target and stays it */
{
    say(this, dup2(fd_of(needed(this, 1)), fd_of(needed(this, 2))));
}

static void op_dup3(struct call *this) /* OLD NAME-OR-NUMBER [FLAGS] */
{
    say(this, dup3(fd_of(needed(this, 1)), fd_of(needed(this, 2)), (int)flags_of(file_flags, word(this, 3, "0"))));
}

static void op_dupfd(struct call *this) /* NEW OLD LEAST [F_DUPFD_CLOEXEC] */
{
    say_new(this, needed(this, 1), fcntl(fd_of(needed(this, 2)), (int)flags_of(fcntls, word(this, 4, "F_DUPFD")), (int)number(this, 3, 0)));
}

static void op_fcntl(struct call *this) /* NAME COMMAND [ARGUMENT] */
{
    int fd = fd_of(needed(this, 1)), command = (int)flags_of(fcntls, needed(this, 2));
    bool file = command == F_GETFL || command == F_SETFL;
    const char *text = word(this, 3, "0");
    long argument = strcmp(text, "self") == 0 ? getpid() : flags_of(file_flags, text), result = fcntl(fd, command, argument);
    if (command == F_GETOWN && result == getpid())
        say_text(this, "self");
    else if (file && result >= 0 && command == F_GETFL)
        flags_text(file_flags, result, this->answer, ANSWER);
    else
        say(this, result);
}

static void op_ioctl(struct call *this) /* NAME REQUEST [VALUE] */
{
    int value = (int)number(this, 3, -7), result;
    if (this->count > 3 && strcmp(this->words[3], "self") == 0) value = getpid();
    unsigned long request = (unsigned long)flags_of(ioctls, needed(this, 2));
    result = ioctl(fd_of(word(this, 1, "")), request, &value);
    say(this, result);
    if (result >= 0 && this->count <= 3) snprintf(this->answer, ANSWER, value == getpid() ? "self" : "%d", value);
}

static void op_fstat(struct call *this) /* NAME: the kind of file */
{
    struct stat what;
    int result = fstat(fd_of(needed(this, 1)), &what);
    if (result < 0)
        say(this, result);
    else
        say_text(this, S_ISSOCK(what.st_mode) ? "socket" : S_ISFIFO(what.st_mode) ? "pipe" : S_ISREG(what.st_mode) ? "file" : "other");
}

static void op_isfdtype(struct call *this) /* NAME */
{
    say(this, isfdtype(fd_of(needed(this, 1)), S_IFSOCK));
}

static void op_sockatmark(struct call *this) /* NAME */
{
    say(this, sockatmark(fd_of(needed(this, 1))));
}

typedef int naming(int, struct sockaddr *restrict, socklen_t *restrict);
static void name_by(struct call *this, naming *ask)
{
    struct sockaddr_in name;
    memset(&name, 0xee, sizeof name);
    socklen_t room = (socklen_t)number(this, 2, sizeof name), size = room;
    int result = ask(fd_of(needed(this, 1)), (struct sockaddr *)&name, &size);
    if (result < 0)
        say(this, result);
    else if (room == sizeof name && size == sizeof name)
        address_text(&name, this->answer, ANSWER);
    else
        snprintf(this->answer, ANSWER, "len %d, the port %s", size, name.sin_port == 0xeeee ? "untouched" : "there");
}

static void op_sockname(struct call *this) /* NAME [LENGTH] */
{
    name_by(this, getsockname);
}

static void op_peername(struct call *this) /* NAME [LENGTH] */
{
    name_by(this, getpeername);
}

static void op_set(struct call *this) /* NAME OPTION VALUE [LENGTH] */
{
    const struct option_name *what = option_of(needed(this, 2));
    const char *text = needed(this, 3);
    const char *comma = strchr(text, ',');
    int32_t numbers[2] = {(int32_t)strtol(text, NULL, 0), comma ? (int32_t)strtol(comma + 1, NULL, 0) : 0};
    int64_t span[2] = {numbers[0], numbers[1]};
    const void *value = what->form == SPAN ? (const void *)span : what->form == TEXT ? (const void *)(strcmp(text, "\"\"") ? text : "") : (const void *)numbers;
    long size = what->form == SPAN ? 16 : what->form == LINGER ? 8 : what->form == TEXT ? (long)strlen(value) : 4;
    say(this, setsockopt(fd_of(this->words[1]), what->level, what->number, strcmp(text, "null") ? value : NULL, (socklen_t)number(this, 4, size)));
}

static void op_info(struct call *this) /* NAME: what of TCP_INFO does not hang on the path */
{
    /* <netinet/tcp.h> has the first fields only. */
    struct { struct tcp_info first; uint64_t pacing, most, acked, received; uint32_t sent, came, unsent; } all;
    socklen_t size = sizeof all;
    memset(&all, 0, sizeof all);
    int result = getsockopt(fd_of(needed(this, 1)), IPPROTO_TCP, TCP_INFO, &all, &size);
    say(this, result);
    if (result == 0)
        sprintf(strchr(this->answer, 0), " state %d unacked %u again %u received %llu unsent %u", all.first.tcpi_state, all.first.tcpi_unacked,
                all.first.tcpi_total_retrans, (unsigned long long)all.received, all.unsent);
}

static void op_counts(struct call *this) /* NAME: what of TCP_INFO counts, and is the same on every path */
{
    union { struct tcp_info first; unsigned char bytes[512]; uint32_t words[128]; uint64_t doubles[64]; } all;
    socklen_t size = sizeof all;
    memset(&all, 0, sizeof all);
    int result = getsockopt(fd_of(needed(this, 1)), IPPROTO_TCP, TCP_INFO, &all, &size);
    say(this, result);
    if (result == 0) /* struct tcp_info of <linux/tcp.h>: segments with bytes in and out, bytes sent, again; a smallest round trip, a peer's window */
        sprintf(strchr(this->answer, 0), " came %u left %u sent %llu again %llu rtt %s window %s scale %s most %s loss %u %u %u", all.words[152 / 4], all.words[156 / 4],
                (unsigned long long)all.doubles[200 / 8], (unsigned long long)all.doubles[208 / 8],
                all.words[148 / 4] == UINT32_MAX ? "none" : all.words[148 / 4] > 0 ? "some" : "0", all.words[228 / 4] ? "some" : "none",
                all.bytes[5] & 4 ? "some" : "none", all.doubles[112 / 8] == UINT64_MAX ? "none" : "some", all.bytes[1], all.bytes[2], all.bytes[4]);
}

static void op_segments(struct call *this) /* NAME: segments sent and received, of a connection that is quiet */
{
    union { struct tcp_info first; uint32_t words[128]; } all;
    socklen_t size = sizeof all;
    memset(&all, 0, sizeof all);
    int result = getsockopt(fd_of(needed(this, 1)), IPPROTO_TCP, TCP_INFO, &all, &size);
    say(this, result);
    if (result == 0) sprintf(strchr(this->answer, 0), " out %u in %u", all.words[136 / 4], all.words[140 / 4]);
}

static void op_syn(struct call *this) /* NAME [LENGTH]: TCP_SAVED_SYN: which headers it has, and whether the ports are the connection's */
{
    unsigned char bytes[256] = {0};
    socklen_t size = (socklen_t)number(this, 2, sizeof bytes);
    int fd = fd_of(needed(this, 1)), result = getsockopt(fd, IPPROTO_TCP, TCP_SAVED_SYN, bytes, &size);
    say(this, result);
    if (result < 0) {
        sprintf(strchr(this->answer, 0), " len %s", size >= 40 ? "some" : size ? "few" : "0");
        return;
    }
    if (size == 0) {
        say_text(this, "nothing");
        return;
    }
    unsigned char *ip = bytes[12] == 8 && bytes[13] == 0 && bytes[14] == 0x45 ? bytes + 14 : bytes, *tcp = ip + 20;
    struct sockaddr_in name = {0}, peer = {0};
    socklen_t length = sizeof name;
    getsockname(fd, (struct sockaddr *)&name, &length);
    length = sizeof peer;
    getpeername(fd, (struct sockaddr *)&peer, &length);
    int whole = ip - bytes + 20 + (tcp[12] >> 4) * 4 == (int)size && ip[0] == 0x45 && ip[9] == 6;
    int ends = !memcmp(tcp, &peer.sin_port, 2) && !memcmp(tcp + 2, &name.sin_port, 2) && !memcmp(ip + 12, &peer.sin_addr, 4) && !memcmp(ip + 16, &name.sin_addr, 4);
    snprintf(this->answer, ANSWER, "%s headers %s of %s flags %02x", ip == bytes ? "two" : "three", whole ? "whole" : "cut", ends ? "us" : "others", tcp[13]);
}

static void op_get(struct call *this) /* NAME OPTION [LENGTH] */
{
    union {
        int32_t numbers[2];
        int64_t span[2];
        char text[64];
        unsigned char bytes[512];
    } value;
    memset(&value, 0xee, sizeof value);
    const struct option_name *what = option_of(needed(this, 2));
    socklen_t usual = what->form == SPAN ? 16 : what->form == LINGER ? 8 : what->form == TEXT ? 64 : what->form == BYTES ? 512 : 4;
    socklen_t size = (socklen_t)number(this, 3, usual);
    int result = getsockopt(fd_of(this->words[1]), what->level, what->number, &value, &size);
    if (result < 0) {
        say(this, result);
        return;
    }
    if (what->form == TEXT)
        snprintf(this->answer, ANSWER, "'%.*s' len %d", (int)strnlen(value.text, size), value.text, size);
    else if (what->form == BYTES)
        snprintf(this->answer, ANSWER, "len %d", size);
    else if (what->form == SPAN && size == 16)
        snprintf(this->answer, ANSWER, "%ld,%ld", (long)value.span[0], (long)value.span[1]);
    else if (what->form == LINGER && size == 8)
        snprintf(this->answer, ANSWER, "%d,%d", value.numbers[0], value.numbers[1]);
    else if (what->number == SO_ERROR && what->level == SOL_SOCKET && size == 4 && value.numbers[0])
        say_text(this, errno_text(value.numbers[0]));
    else if (size == 4)
        snprintf(this->answer, ANSWER, "%d", value.numbers[0]);
    else
        snprintf(this->answer, ANSWER, "len %d, first byte %02x", size, value.bytes[0]);
}

/* Of what differs from machine to machine: only whether it is above 0. */
static void op_positive(struct call *this) /* NAME OPTION */
{
    const struct option_name *what = option_of(needed(this, 2));
    int value = 0;
    socklen_t size = sizeof value;
    int result = getsockopt(fd_of(this->words[1]), what->level, what->number, &value, &size);
    if (result < 0)
        say(this, result);
    else
        say_text(this, value > 0 ? "yes" : "no");
}

/* Opens files until there is no number left, or all but some: those are closed again. */
static void op_exhaust(struct call *this) /* [LEFT] */
{
    struct rlimit most;
    int last = -1, fd;
    getrlimit(RLIMIT_NOFILE, &most);
    most.rlim_cur = 300;
    setrlimit(RLIMIT_NOFILE, &most);
    while ((fd = open("/dev/null", O_RDONLY)) >= 0) last = fd;
    int error = errno;
    for (long left = number(this, 1, 0); left > 0; left--) close(last--);
    say_text(this, errno_text(error));
}

static void op_cpu(struct call *this) /* NAME: whether SO_INCOMING_CPU says one of ours */
{
    int value = -2;
    socklen_t size = sizeof value;
    int result = getsockopt(fd_of(needed(this, 1)), SOL_SOCKET, SO_INCOMING_CPU, &value, &size);
    if (result < 0)
        say(this, result);
    else
        say_text(this, value >= 0 && value < sysconf(_SC_NPROCESSORS_CONF) ? "one" : value == -1 ? "none" : "wrong");
}

static void op_tcpinfo(struct call *this) /* NAME: the state */
{
    static const char *const states[] = {"0", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT", "LAST_ACK", "LISTEN", "CLOSING"};
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    int result = getsockopt(fd_of(needed(this, 1)), IPPROTO_TCP, TCP_INFO, &info, &size);
    if (result < 0)
        say(this, result);
    else
        say_text(this, info.tcpi_state < 12 ? states[info.tcpi_state] : "?");
}

#endif
