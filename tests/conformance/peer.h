/* The peer of the WIRE cases: a process, beside us or at the other end of the wire, that does what lines tell it.
 * A command is `NUMBER OPERATION A B [HOST]`, its answer `NUMBER VALUE ERRNO`. */
#ifndef KNET_PEER_H
#define KNET_PEER_H

/* The peer's own memory. */
struct link {
    int fd;
    long sent, received;
};
static struct link links[64];
static int peer_listener = -1;

/* One byte at a time, so that whoever reads next on this descriptor misses nothing. */
SOME bool read_line(int fd, char *into, size_t size)
{
    size_t used = 0;
    while (used + 1 < size) {
        ssize_t got = read(fd, into + used, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        if (into[used] == '\n') break;
        used++;
    }
    into[used] = 0;
    return true;
}

static long new_link(int fd)
{
    for (int n = 0; fd >= 0 && n < 64; n++)
        if (links[n].fd < 0) {
            links[n] = (struct link){fd, 0, 0};
            return n;
        }
    return -1;
}

static bool waits(int fd, short events)
{
    struct pollfd one = {fd, events, 0};
    if (poll(&one, 1, 10000) > 0) return true;
    errno = ETIMEDOUT;
    return false;
}

static long peer_receives(struct link *this, long count)
{
    static unsigned char part[65536];
    while (count > 0) {
        if (!waits(this->fd, POLLIN)) return -1;
        long got = recv(this->fd, part, (size_t)(count < (long)sizeof part ? count : (long)sizeof part), MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN) continue;
        if (got <= 0) return errno = got ? errno : ENODATA, -1;
        if (!is_pattern(part, this->received, got)) return errno = EBADMSG, -1;
        this->received += got, count -= got;
    }
    return 0;
}

static long peer_sends(struct link *this, long count)
{
    static unsigned char part[65536];
    while (count > 0) {
        if (!waits(this->fd, POLLOUT)) return -1;
        long size = count < (long)sizeof part ? count : (long)sizeof part;
        fill_pattern(part, this->sent, size);
        long more = send(this->fd, part, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (more < 0 && errno == EAGAIN) continue;
        if (more < 0) return -1;
        this->sent += more, count -= more;
    }
    return 0;
}

/* The bytes until the end of the stream. */
static long peer_reads_to_end(struct link *this)
{
    static unsigned char part[65536];
    long total = 0;
    for (;;) {
        if (!waits(this->fd, POLLIN)) return -1;
        long got = recv(this->fd, part, sizeof part, MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN) continue;
        if (got <= 0) return got ? -1 : total;
        if (!is_pattern(part, this->received, got)) return errno = EBADMSG, -1;
        this->received += got, total += got;
    }
}

/* Bytes of which the last one is urgent. */
static long peer_urges(struct link *this, long count)
{
    unsigned char part[256];
    fill_pattern(part, this->sent, count);
    if (send(this->fd, part, (size_t)count, MSG_OOB | MSG_NOSIGNAL) != count) return -1;
    this->sent += count;
    return 0;
}

/* The urgent byte. */
static long peer_marked(struct link *this)
{
    unsigned char byte;
    if (!waits(this->fd, POLLPRI) || recv(this->fd, &byte, 1, MSG_OOB) != 1) return -1;
    return byte;
}

static long peer_does(const char *what, long a, long b, const char *host)
{
    struct link *this = a >= 0 && a < 64 ? &links[a] : &links[0];
    int on = 1;
    struct linger now = {1, 0};
    if (strcmp(what, "listen") == 0) { /* BACKLOG PORT */
        if (peer_listener >= 0) close(peer_listener);
        peer_listener = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(peer_listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (try_bind(peer_listener, address, (int)b) < 0) return -1;
        return listen(peer_listener, (int)a);
    }
    if (strcmp(what, "unlisten") == 0) {
        int listener = peer_listener;
        peer_listener = -1;
        return close(listener);
    }
    if (strcmp(what, "accept") == 0) return waits(peer_listener, POLLIN) ? new_link(accept(peer_listener, NULL, NULL)) : -1;
    if (strcmp(what, "dial") == 0) { /* PORT - HOST */
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (try_connect(fd, host, (int)a) == 0) return new_link(fd);
        int error = errno;
        close(fd);
        return errno = error, -1;
    }
    if (strcmp(what, "send") == 0) return peer_sends(this, b);
    if (strcmp(what, "recv") == 0) return peer_receives(this, b);
    if (strcmp(what, "urge") == 0) return peer_urges(this, b);
    if (strcmp(what, "mark") == 0) return peer_marked(this);
    if (strcmp(what, "near") == 0) { /* LINK TTL: only packets that come with so much */
        int least = (int)b;
        return setsockopt(this->fd, IPPROTO_IP, IP_MINTTL, &least, sizeof least);
    }
    if (strcmp(what, "exchange") == 0) return exchange(this->fd, b);
    if (strcmp(what, "end") == 0) return peer_reads_to_end(this);
    if (strcmp(what, "shut") == 0) return shutdown(this->fd, (int)b);
    if (strcmp(what, "pause") == 0) return pause_ms(a), 0;
    if (strcmp(what, "close") == 0 || strcmp(what, "reset") == 0) {
        int fd = this->fd;
        if (*what == 'r' && setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) < 0) return -1;
        this->fd = -1;
        return close(fd);
    }
    if (strcmp(what, "forget") == 0) {
        for (int n = 0; n < 64; n++)
            if (links[n].fd >= 0) close(links[n].fd), links[n].fd = -1;
        if (peer_listener >= 0) close(peer_listener), peer_listener = -1;
        return 0;
    }
    return errno = ENOSYS, -1;
}

SOME int peer_main(int in, int out)
{
    char line[160], what[16], host[64];
    long number, a, b;
    for (int n = 0; n < 64; n++) links[n].fd = -1;
    while (read_line(in, line, sizeof line)) {
        host[0] = 0;
        if (sscanf(line, "%ld %15s %ld %ld %63s", &number, what, &a, &b, host) < 4) return 65;
        errno = 0;
        long value = peer_does(what, a, b, host);
        dprintf(out, "%ld %ld %d\n", number, value, value < 0 ? errno : 0);
    }
    return 0;
}

/* Our side. begin() does not wait for the answer, so that both ends can work at once; end_of() does. */
SOME long peer_begin(const char *what, long a, long b)
{
    long number = atomic_fetch_add(&shared->words, 1);
    CHECK(dprintf(to_peer, to_peer == 1 ? "peer %ld %s %ld %ld %s\n" : "%ld %s %ld %ld %s\n", number, what, a, b, own) > 0);
    return number;
}

SOME long peer_end(long number)
{
    char line[160];
    long got, value;
    int error;
    do {
        if (!read_line(from_peer, line, sizeof line)) FAIL("the peer is gone");
        if (sscanf(line, "%ld %ld %d", &got, &value, &error) != 3) FAIL("the peer says '%s'", line);
    } while (got != number); /* older ones are answers to a case that gave up */
    errno = error;
    return value;
}

SOME long peer_ask(const char *what, long a, long b)
{
    return peer_end(peer_begin(what, a, b));
}

#define PEER(what, a, b)                                                                                      \
    ({                                                                                                        \
        long peer_ = peer_ask(what, a, b);                                                                    \
        if (peer_ < 0) FAIL("the peer's %s: %s", what, errno_name(errno));                                    \
        peer_;                                                                                                \
    })
#define PEER_END(number)                                                                                      \
    do {                                                                                                      \
        if (peer_end(number) < 0) FAIL("the peer: %s", errno_name(errno));                                    \
    } while (0)

static void fork_peer(void)
{
    int there[2], back[2];
    OK(pipe(there));
    OK(pipe(back));
    if (OK(fork()) == 0) {
        close(there[1]);
        close(back[0]);
        _exit(peer_main(there[0], back[1]));
    }
    OK(close(there[0]));
    OK(close(back[1]));
    to_peer = there[1], from_peer = back[0];
}

/* A connection with the peer, made by the side that the run asks for. */
SOME int joined(long *slot)
{
    int fd;
    if (passive) {
        int listener = listener_at(port, 16);
        long call = peer_begin("dial", port, 0);
        fd = take(listener);
        *slot = peer_end(call);
        if (*slot < 0) FAIL("the peer's connect: %s", errno_name(errno));
        OK(close(listener));
    } else {
        PEER("listen", 16, port);
        fd = tcp(0);
        OK(try_connect(fd, address, port));
        *slot = PEER("accept", 0, 0);
        atomic_fetch_add(&shared->connections, 1);
    }
    return fd;
}

#endif
