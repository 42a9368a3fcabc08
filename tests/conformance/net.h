/* Sockets and bytes for the cases: addresses, listeners, connected pairs, the pattern that every transfer carries. */
#ifndef KNET_NET_H
#define KNET_NET_H

SOME struct sockaddr_in at(const char *host, int number)
{
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number)};
    if (inet_pton(AF_INET, host, &there.sin_addr) != 1) FAIL("%s is no address", host);
    return there;
}

SOME int tcp(int flags)
{
    return OK(socket(AF_INET, SOCK_STREAM | flags, 0));
}

SOME int try_connect(int fd, const char *host, int number)
{
    struct sockaddr_in there = at(host, number);
    return connect(fd, (struct sockaddr *)&there, sizeof there);
}

SOME int try_bind(int fd, const char *host, int number)
{
    struct sockaddr_in here = at(host, number);
    return bind(fd, (struct sockaddr *)&here, sizeof here);
}

SOME int listener_at(int number, int backlog)
{
    int fd = tcp(0), on = 1;
    OK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    OK(try_bind(fd, own, number));
    OK(listen(fd, backlog));
    return fd;
}

SOME int dial(int number)
{
    int fd = tcp(0);
    OK(try_connect(fd, own, number));
    return fd;
}

SOME int take(int listener)
{
    int fd = OK(accept(listener, NULL, NULL));
    atomic_fetch_add(&shared->connections, 1);
    return fd;
}

/* A connected pair: the client's end and the accepted one. */
struct pair {
    int client, server;
};

SOME struct pair pair_by(int listener, int number)
{
    struct pair ends;
    ends.client = dial(number);
    ends.server = take(listener);
    return ends;
}

SOME struct pair pair(void)
{
    int listener = listener_at(port, 16);
    struct pair ends = pair_by(listener, port);
    OK(close(listener));
    return ends;
}

SOME void nonblocking(int fd)
{
    OK(fcntl(fd, F_SETFL, OK(fcntl(fd, F_GETFL)) | O_NONBLOCK));
}

SOME int so_error(int fd)
{
    int error = -1;
    socklen_t size = sizeof error;
    OK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size));
    return error;
}

/* SO_LINGER 0: close sends a reset. */
SOME void reset(int fd)
{
    struct linger now = {1, 0};
    OK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    OK(close(fd));
}

SOME short ready(int fd, short events, int ms)
{
    struct pollfd one = {fd, events, 0};
    OK(poll(&one, 1, ms));
    return one.revents;
}

SOME unsigned char pattern(long position)
{
    return (unsigned char)(position * 131 + (position >> 8) * 7 + (position >> 16));
}

SOME void fill_pattern(unsigned char *into, long from, long count)
{
    for (long n = 0; n < count; n++) into[n] = pattern(from + n);
}

SOME bool is_pattern(const unsigned char *bytes, long from, long count)
{
    for (long n = 0; n < count; n++)
        if (bytes[n] != pattern(from + n)) return false;
    return true;
}

/* Sends the bytes [from, from + count) of the pattern. */
SOME void put(int fd, long from, long count)
{
    unsigned char part[16384];
    while (count > 0) {
        long size = count < (long)sizeof part ? count : (long)sizeof part;
        fill_pattern(part, from, size);
        int sent = OK(send(fd, part, (size_t)size, MSG_NOSIGNAL));
        CHECK(sent > 0);
        from += sent, count -= sent;
    }
}

/* Receives exactly the bytes [from, from + count) of the pattern. */
SOME void get(int fd, long from, long count)
{
    unsigned char part[16384];
    while (count > 0) {
        int got = OK(recv(fd, part, (size_t)(count < (long)sizeof part ? count : (long)sizeof part), 0));
        if (got == 0) FAIL("end of the stream, %ld bytes are missing", count);
        if (!is_pattern(part, from, got)) FAIL("wrong bytes in [%ld, %ld)", from, from + got);
        from += got, count -= got;
    }
}

SOME void end_of_stream(int fd)
{
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

/* Nothing to read now, nor soon. */
SOME void quiet(int fd)
{
    EQUAL(ready(fd, POLLIN, 30), 0);
    char byte;
    FAILS(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
}

/* Sends until neither our buffer nor the peer's takes more; the number of bytes sent. fd is non-blocking. */
SOME long fill(int fd)
{
    unsigned char part[16384];
    long sent = 0, more;
    int settled = 0; /* the buffers of both ends and the wire need a while for it, and a busy machine longer */
    while (settled < 4) {
        bool moved = false;
        do {
            fill_pattern(part, sent, sizeof part);
            more = send(fd, part, sizeof part, MSG_NOSIGNAL);
            if (more < 0 && errno != EAGAIN) FAIL("send is -1 (%s), not EAGAIN", errno_name(errno));
            if (more > 0) sent += more, moved = true;
            if (sent > 256L << 20) FAIL("256 MiB fit into the buffers");
        } while (more > 0);
        settled = ready(fd, POLLOUT, 40) || moved ? 0 : settled + 1;
    }
    return sent;
}

/* Sends and receives `count` bytes of the pattern at the same time; fd may be blocking. 0, or -1 with errno. */
SOME int exchange(int fd, long count)
{
    unsigned char part[65536];
    long sent = 0, received = 0;
    while (sent < count || received < count) {
        struct pollfd one = {fd, (short)((sent < count ? POLLOUT : 0) | (received < count ? POLLIN : 0)), 0};
        if (poll(&one, 1, 15000) <= 0) return errno = ETIMEDOUT, -1;
        if (one.revents & POLLOUT) {
            long size = count - sent < (long)sizeof part ? count - sent : (long)sizeof part;
            fill_pattern(part, sent, size);
            long more = send(fd, part, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (more < 0 && errno != EAGAIN) return -1;
            if (more > 0) sent += more;
        }
        if (one.revents & (POLLIN | POLLERR | POLLHUP)) {
            long more = recv(fd, part, sizeof part, MSG_DONTWAIT);
            if (more == 0) return errno = ENODATA, -1;
            if (more < 0 && errno != EAGAIN) return -1;
            if (more > 0 && (received + more > count || !is_pattern(part, received, more))) return errno = EBADMSG, -1;
            if (more > 0) received += more;
        }
    }
    return 0;
}

/* The child ends with status 0. */
SOME void ends_well(pid_t child)
{
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
}

/* Sends the pattern and gets it back. */
SOME void echoed(int fd, long count)
{
    put(fd, 0, count);
    get(fd, 0, count);
}

/* Gets the pattern and sends it back. */
SOME void echo(int fd, long count)
{
    get(fd, 0, count);
    put(fd, 0, count);
}

#endif
