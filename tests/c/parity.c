// Says what the socket calls answer, one line a question. Run twice, on the kernel and on the stack: the lines must be equal.
// Usage: parity ADDRESS. Ports and times are never printed.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <linux/sockios.h>

static const char *address;

#define SAY(...) (printf(__VA_ARGS__), printf("\n"), fflush(stdout))
// The result, and the errno when it failed.
#define ASK(call) do { errno = 0; long r_ = (long)(call); if (r_ < 0) SAY("%s = -1 %s", #call, strerrorname_np(errno)); else SAY("%s = %ld", #call, r_); } while (0)
// Only whether it worked: the number itself may differ.
#define OK(call) do { errno = 0; long r_ = (long)(call); if (r_ < 0) SAY("%s = -1 %s", #call, strerrorname_np(errno)); else SAY("%s ok", #call); } while (0)

static struct sockaddr_in at(int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &a.sin_addr);
    return a;
}

static int port_of(int fd) {
    struct sockaddr_in a; socklen_t n = sizeof a;
    if (getsockname(fd, (void *)&a, &n)) return -1;
    return ntohs(a.sin_port);
}

static int listener(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in a = at(0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (void *)&a, sizeof a) || listen(fd, 16)) { perror("listener"); exit(1); }
    return fd;
}

static void pair(int *client, int *server) {
    int l = listener();
    struct sockaddr_in a = at(port_of(l));
    *client = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(*client, (void *)&a, sizeof a)) { perror("connect"); exit(1); }
    *server = accept(l, NULL, NULL);
    if (*server < 0) { perror("accept"); exit(1); }
    close(l);
}

static int ready(int fd, int events, int ms) {
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, ms);
    return n > 0 ? p.revents : n;
}

static void names(void) {
    int l = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = at(0), b; socklen_t n = sizeof b;
    ASK(bind(l, (void *)&a, sizeof a));
    ASK(bind(l, (void *)&a, sizeof a));
    ASK(listen(l, 4));
    ASK(listen(l, 8));
    a = at(port_of(l));
    SAY("port %d", a.sin_port != 0);
    int c = socket(AF_INET, SOCK_STREAM, 0);
    ASK(getpeername(c, (void *)&b, &n));
    ASK(connect(c, (void *)&a, sizeof a));
    ASK(connect(c, (void *)&a, sizeof a));
    n = sizeof b;
    int s = accept(l, (void *)&b, &n);
    SAY("accept %d len %d peer %d", s >= 0, n, ntohs(b.sin_port) == port_of(c));
    n = 4; memset(&b, 9, sizeof b);
    ASK(getpeername(c, (void *)&b, &n));
    SAY("cut len %d family %d", n, b.sin_family);
    n = sizeof b;
    ASK(getsockname(s, (void *)&b, &n));
    SAY("same %d", !memcmp(&b.sin_addr, &a.sin_addr, 4) && b.sin_port == a.sin_port);
    ASK(getsockname(s, NULL, &n));
    ASK(getsockname(s, (void *)&b, NULL));
    ASK(listen(c, 1));
    ASK(accept(c, NULL, NULL));
    ASK(bind(c, (void *)&a, sizeof a));
    ASK(send(c, "hello", 5, 0));
    char buf[64];
    ASK(recv(s, buf, sizeof buf, 0));
    ASK(shutdown(c, SHUT_WR));
    ASK(recv(s, buf, sizeof buf, 0));
    ASK(send(c, "x", 1, MSG_NOSIGNAL));
    ASK(send(s, "back", 4, 0));
    ASK(recv(c, buf, 4, MSG_WAITALL | MSG_PEEK));
    ASK(recv(c, buf, sizeof buf, 0));
    ASK(shutdown(s, 7));
    ASK(shutdown(l, SHUT_RD));
    ASK(accept(l, NULL, NULL));
    close(c); close(s); close(l);
    ASK(recv(c, buf, 1, 0));
}

static void arguments(void) {
    int c, s, p[2]; char buf[8]; socklen_t n; struct sockaddr_in b;
    pair(&c, &s);
    int l = listener();
    if (pipe(p)) exit(1);
    struct sockaddr_in a = at(port_of(l));
    int other = socket(AF_INET, SOCK_STREAM, 0);
    ASK(bind(other, (void *)&a, sizeof a));
    ASK(bind(other, (void *)&a, 3));
    ASK(connect(other, (void *)&a, 3));
    ASK(bind(other, NULL, sizeof a));
    ASK(connect(other, NULL, sizeof a));
    ASK(accept(-1, NULL, NULL));
    ASK(accept(p[0], NULL, NULL));
    ASK(accept4(l, NULL, NULL, 1));
    ASK(accept(other, NULL, NULL));
    ASK(listen(p[0], 1));
    ASK(recv(p[0], buf, 1, 0));
    ASK(recv(c, NULL, 4, MSG_DONTWAIT));
    ASK(send(c, NULL, 4, 0));
    ASK(send(c, NULL, 0, 0));
    ASK(recv(c, buf, 0, MSG_DONTWAIT));
    ASK(read(c, buf, 0));
    ASK(read(c, NULL, 0));
    ASK(recv(l, buf, 1, 0));
    ASK(send(l, buf, 1, MSG_NOSIGNAL));
    ASK(getpeername(l, (void *)&b, &n));
    ASK(readv(c, NULL, 1));
    struct iovec v[2] = {{buf, 4}, {NULL, 0}};
    ASK(readv(c, v, -1));
    ASK(writev(c, v, 1025));
    ASK(writev(c, v, 2));
    ASK(readv(s, v, 2));
    ASK(sendmsg(c, NULL, 0));
    ASK(recv(c, buf, 1, MSG_OOB));
    ASK(recv(c, buf, 1, MSG_DONTWAIT | MSG_ERRQUEUE));
    ASK(lseek(c, 0, SEEK_SET));
    ASK(ftruncate(c, 0));
    ASK(epoll_ctl(c, EPOLL_CTL_ADD, s, NULL));
    ASK(epoll_wait(c, NULL, 1, 0));
    ASK(epoll_wait(-1, NULL, 1, 0));
    close(c); close(s); close(l); close(other); close(p[0]); close(p[1]);
}

static void epolls(void) {
    int e = epoll_create1(EPOLL_CLOEXEC), f = epoll_create(1), p[2], c, s;
    struct epoll_event ev = {.events = EPOLLIN}, out[8]; char buf[64];
    if (pipe(p)) exit(1);
    int n = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    ev.data.u64 = 0;
    ev.events = EPOLLIN | EPOLLOUT;
    ASK(epoll_ctl(e, EPOLL_CTL_ADD, n, &ev));
    ASK(epoll_wait(e, out, 8, 0));
    int l = listener();
    struct sockaddr_in a = at(port_of(l));
    errno = 0;
    int r = connect(n, (void *)&a, sizeof a);
    SAY("connect %d", r == 0 || errno == EINPROGRESS);
    ASK(epoll_wait(e, out, 8, 3000));
    SAY("events %x data %llx", out[0].events, (unsigned long long)out[0].data.u64);
    s = accept(l, NULL, NULL);
    c = n;
    ev.events = EPOLLIN; ev.data.u64 = UINT64_MAX;
    ASK(epoll_ctl(e, EPOLL_CTL_ADD, c, &ev));
    ASK(epoll_ctl(e, EPOLL_CTL_MOD, c, &ev));
    ASK(epoll_ctl(f, EPOLL_CTL_MOD, c, &ev));
    ASK(epoll_ctl(f, EPOLL_CTL_DEL, c, NULL));
    ASK(epoll_ctl(f, EPOLL_CTL_ADD, c, NULL));
    ASK(epoll_ctl(f, 9, c, &ev));
    ASK(epoll_ctl(f, EPOLL_CTL_ADD, c, &ev));
    ASK(epoll_ctl(-1, EPOLL_CTL_ADD, c, &ev));
    ASK(epoll_ctl(f, EPOLL_CTL_ADD, 600, &ev));
    ASK(epoll_wait(e, out, 0, 0));
    ASK(epoll_wait(e, out, 8, 20));
    write(s, "abc", 3);
    ASK(epoll_wait(e, out, 8, 3000));
    SAY("level %x %llx", out[0].events, (unsigned long long)out[0].data.u64);
    ASK(epoll_wait(f, out, 8, 3000));
    ASK(epoll_wait(e, out, 8, 0));
    ev.data.u64 = 5;
    ASK(epoll_ctl(e, EPOLL_CTL_ADD, p[0], &ev));
    write(p[1], "x", 1);
    ASK(epoll_wait(e, out, 8, 3000));
    ASK(epoll_wait(e, out, 1, 3000));
    ASK(epoll_ctl(e, EPOLL_CTL_DEL, p[0], NULL));
    ev.events = EPOLLIN | EPOLLET; ev.data.u64 = 6;
    ASK(epoll_ctl(e, EPOLL_CTL_MOD, c, &ev));
    ASK(epoll_wait(e, out, 8, 3000));
    ASK(epoll_wait(e, out, 8, 20));
    write(s, "d", 1);
    ASK(epoll_wait(e, out, 8, 3000));
    ASK(epoll_wait(e, out, 8, 20));
    ev.events = EPOLLIN | EPOLLONESHOT;
    ASK(epoll_ctl(e, EPOLL_CTL_MOD, c, &ev));
    ASK(epoll_wait(e, out, 8, 3000));
    ASK(epoll_wait(e, out, 8, 20));
    SAY("poll after one-shot %x", ready(c, POLLIN, 0));
    ASK(epoll_ctl(e, EPOLL_CTL_MOD, c, &ev));
    ASK(epoll_wait(e, out, 8, 3000));
    ASK(recv(c, buf, sizeof buf, 0));
    ASK(recv(c, buf, sizeof buf, 0));
    ev.events = EPOLLIN | EPOLLRDHUP;
    ASK(epoll_ctl(e, EPOLL_CTL_MOD, c, &ev));
    shutdown(s, SHUT_WR);
    ASK(epoll_wait(e, out, 8, 3000));
    SAY("fin %x", out[0].events);
    shutdown(c, SHUT_WR);
    ASK(epoll_wait(e, out, 8, 3000));
    SAY("both %x", out[0].events);
    int d = dup(c);
    close(c);
    ASK(epoll_wait(e, out, 8, 3000));
    ASK(epoll_ctl(e, EPOLL_CTL_DEL, d, NULL));
    close(d);
    ASK(epoll_wait(e, out, 8, 20));
    struct timespec t = {0, 1000000};
    ASK(epoll_pwait2(e, out, 8, &t, NULL));
    close(s); close(l); close(e); close(f); close(p[0]); close(p[1]);
}

static void polls(void) {
    int c, s; char big[65536] = {0};
    pair(&c, &s);
    SAY("out %x", ready(c, POLLIN | POLLOUT, 0));
    SAY("none %x", ready(c, 0, 20));
    fcntl(c, F_SETFL, O_NONBLOCK);
    long total = 0, n;
    while ((n = write(c, big, sizeof big)) > 0) total += n;
    while (usleep(50000), (n = write(c, big, sizeof big)) > 0) total += n;
    SAY("full %s %d", strerrorname_np(errno), total > 65536);
    SAY("not writable %x", ready(c, POLLOUT, 20));
    struct timeval tv = {0, 20000};
    fd_set r, w; FD_ZERO(&r); FD_ZERO(&w); FD_SET(c, &r); FD_SET(c, &w);
    ASK(select(c + 1, &r, &w, NULL, &tv));
    SAY("left %d", tv.tv_sec == 0 && tv.tv_usec == 0);
    while (total > 0 && (n = read(s, big, sizeof big)) > 0) total -= n;
    SAY("drained %ld", total);
    SAY("writable %x", ready(c, POLLOUT, 3000));
    write(s, "x", 1);
    FD_ZERO(&r); FD_ZERO(&w); FD_SET(c, &r); FD_SET(c, &w); FD_SET(s, &r);
    ready(c, POLLIN, 3000);
    ASK(select((c > s ? c : s) + 1, &r, &w, NULL, NULL));
    SAY("r %d w %d s %d", FD_ISSET(c, &r) != 0, FD_ISSET(c, &w) != 0, FD_ISSET(s, &r) != 0);
    struct pollfd p[3] = {{c, POLLIN, 0}, {-1, POLLIN, 0}, {999, POLLIN, 0}};
    ASK(poll(p, 3, 0));
    SAY("%x %x %x", p[0].revents, p[1].revents, p[2].revents);
    ASK(poll(NULL, 0, 10));
    struct linger on = {1, 0};
    setsockopt(s, SOL_SOCKET, SO_LINGER, &on, sizeof on);
    close(s);
    while (!(ready(c, 0, 100) & POLLHUP)) {}
    SAY("reset %x", ready(c, POLLIN | POLLOUT | POLLRDHUP, 0));
    ASK(send(c, "x", 1, MSG_NOSIGNAL));
    ASK(send(c, "x", 1, MSG_NOSIGNAL));
    ASK(recv(c, big, 1, 0));
    close(c);
    int l = listener();
    struct sockaddr_in a = at(port_of(l));
    close(l);
    c = socket(AF_INET, SOCK_STREAM, 0);
    ASK(connect(c, (void *)&a, sizeof a));
    close(c);
    c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    errno = 0;
    n = connect(c, (void *)&a, sizeof a);
    SAY("refused later %d", errno == EINPROGRESS || errno == ECONNREFUSED);
    if (errno == EINPROGRESS) {
        int e = 0; socklen_t len = sizeof e;
        ready(c, POLLOUT, 3000);
        getsockopt(c, SOL_SOCKET, SO_ERROR, &e, &len);
        n = e == ECONNREFUSED ? -1 : 0;
    }
    SAY("refused %ld", n);
    close(c);
}

static void show(int fd, const char *what, int level, int name) {
    int v = -7; socklen_t n = sizeof v; errno = 0;
    int r = getsockopt(fd, level, name, &v, &n);
    SAY("%s %d %s %d len %d", what, r, r ? strerrorname_np(errno) : "", r ? 0 : v, n);
}

static void options(void) {
    int c, s, v; socklen_t n;
    pair(&c, &s);
    int fds[2] = {c, s};
    for (int i = 0; i < 2; i++) {
        int fd = fds[i];
        show(fd, "type", SOL_SOCKET, SO_TYPE);
        show(fd, "domain", SOL_SOCKET, SO_DOMAIN);
        show(fd, "protocol", SOL_SOCKET, SO_PROTOCOL);
        show(fd, "error", SOL_SOCKET, SO_ERROR);
        show(fd, "acceptconn", SOL_SOCKET, SO_ACCEPTCONN);
        show(fd, "nodelay", IPPROTO_TCP, TCP_NODELAY);
        v = 1; ASK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &v, sizeof v));
        show(fd, "nodelay", IPPROTO_TCP, TCP_NODELAY);
        v = 77; ASK(setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &v, sizeof v));
        show(fd, "keepidle", IPPROTO_TCP, TCP_KEEPIDLE);
        v = 0; ASK(setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &v, sizeof v));
        v = 1; ASK(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &v, sizeof v));
        show(fd, "keepalive", SOL_SOCKET, SO_KEEPALIVE);
        v = 30000; ASK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &v, sizeof v));
        show(fd, "rcvbuf", SOL_SOCKET, SO_RCVBUF);
        ASK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &v, 2));
        ASK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, NULL, 4));
        ASK(setsockopt(fd, SOL_SOCKET, 9999, &v, sizeof v));
        ASK(setsockopt(fd, 9999, 1, &v, sizeof v));
        n = sizeof v; ASK(getsockopt(fd, SOL_SOCKET, 9999, &v, &n));
        n = sizeof v; ASK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, NULL, &n));
        ASK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &v, NULL));
        n = -1; ASK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &v, &n));
        struct linger lin = {1, 3}, got = {0}; n = sizeof got;
        ASK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &lin, sizeof lin));
        ASK(getsockopt(fd, SOL_SOCKET, SO_LINGER, &got, &n));
        SAY("linger %d %d %d", got.l_onoff, got.l_linger, n);
        lin.l_onoff = 0;
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &lin, sizeof lin);
        struct timeval tv = {0, 60000}, back = {0}; n = sizeof back; char b;
        ASK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv));
        ASK(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &back, &n));
        SAY("timeo %ld %ld %d", (long)back.tv_sec, (long)back.tv_usec, n);
        ASK(recv(fd, &b, 1, 0));
        struct tcp_info info; n = sizeof info; memset(&info, 0, sizeof info);
        int r = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n);
        SAY("info %d state %d mss %d", r, info.tcpi_state, info.tcpi_snd_mss > 0);
    }
    close(c); close(s);
    int l = listener();
    show(l, "acceptconn", SOL_SOCKET, SO_ACCEPTCONN);
    show(l, "reuse", SOL_SOCKET, SO_REUSEADDR);
    close(l);
}

static void numbers(void) {
    int c, s; char buf[64]; struct stat *none = NULL; (void)none;
    pair(&c, &s);
    SAY("dense %d %d", c < 20, s < 20);
    SAY("flags %x %x", fcntl(c, F_GETFL), fcntl(s, F_GETFL));
    SAY("fd flags %d %d", fcntl(c, F_GETFD), fcntl(s, F_GETFD));
    ASK(fcntl(s, F_SETFL, O_NONBLOCK));
    SAY("flags %x", fcntl(s, F_GETFL));
    ASK(recv(s, buf, 1, 0));
    int v = 0; ASK(ioctl(s, FIONBIO, &v));
    SAY("flags %x", fcntl(s, F_GETFL));
    v = 1; ASK(ioctl(s, FIONBIO, &v));
    int d = dup(s), e = fcntl(s, F_DUPFD, 50), g = fcntl(s, F_DUPFD_CLOEXEC, 60);
    SAY("dup %d %d %d", d > 0, e, g);
    SAY("shared %x cloexec %d", fcntl(d, F_GETFL), fcntl(g, F_GETFD));
    ASK(dup2(s, 70));
    ASK(dup3(s, 71, O_CLOEXEC));
    ASK(dup3(s, s, 0));
    ASK(dup2(s, s));
    ASK(dup2(-1, 72));
    close(s); close(d); close(e);
    write(c, "abcdef", 6);
    ready(70, POLLIN, 3000);
    v = 0; ASK(ioctl(70, FIONREAD, &v)); SAY("fionread %d", v);
    ASK(ioctl(70, FIONREAD, NULL));
    v = 9; ASK(ioctl(70, SIOCATMARK, &v)); SAY("mark %d", v);
    ASK(read(71, buf, 2));
    ASK(close_range(60, 70, 0));
    ASK(read(60, buf, 1));
    ASK(read(71, buf, 2));
    // Closed behind our back and used for something else: never the old socket.
    syscall(SYS_close, 71);
    int p[2]; if (pipe(p)) exit(1);
    syscall(SYS_dup3, p[0], 71, 0);
    int q = eventfd(0, 0); close(q);
    syscall(SYS_close, 71);
    ASK(fcntl(p[0], F_DUPFD, 71));
    ASK(send(71, "x", 1, 0));
    close(71);
    // Nobody holds the connection any more.
    for (int i = 0; i < 100 && !(ready(c, POLLRDHUP, 50) & (POLLRDHUP | POLLHUP)); i++) {}
    SAY("over %d", (ready(c, POLLRDHUP, 0) & (POLLRDHUP | POLLHUP)) != 0);
    close(c); close(p[0]); close(p[1]);
    int l = listener();
    struct sockaddr_in a = at(port_of(l));
    c = socket(AF_INET, SOCK_STREAM, 0);
    connect(c, (void *)&a, sizeof a);
    ready(l, POLLIN, 3000);
    struct rlimit old, low;
    getrlimit(RLIMIT_NOFILE, &old);
    low = old; low.rlim_cur = (l > c ? l : c) + 1;
    setrlimit(RLIMIT_NOFILE, &low);
    ASK(accept(l, NULL, NULL));
    setrlimit(RLIMIT_NOFILE, &old);
    OK(s = accept4(l, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    SAY("flags %x %d", fcntl(s, F_GETFL), fcntl(s, F_GETFD));
    ASK(recv(s, buf, 1, 0));
    closefrom(3);
    ASK(recv(s, buf, 1, 0));
    OK(socket(AF_INET, SOCK_STREAM, 0));
    closefrom(3);
}

static void transfers(void) {
    int c, s; char a[8] = "abcdefg", b[16]; socklen_t n; struct sockaddr_in peer;
    pair(&c, &s);
    struct iovec v[2] = {{a, 3}, {a + 3, 4}}, w[2] = {{b, 5}, {b + 5, 5}};
    ASK(writev(c, v, 2));
    ASK(recv(s, b, 7, MSG_WAITALL | MSG_PEEK));
    ASK(readv(s, w, 2));
    SAY("%.7s", b);
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2}, g = {.msg_iov = w, .msg_iovlen = 2, .msg_name = &peer, .msg_namelen = sizeof peer, .msg_flags = 77};
    ASK(sendmsg(c, &m, 0));
    ready(s, POLLIN, 3000);
    ASK(recvmsg(s, &g, 0));
    SAY("name %d control %zu flags %x", g.msg_namelen, g.msg_controllen, g.msg_flags);
    ASK(sendto(c, "hello", 5, 0, NULL, 0));
    n = sizeof peer;
    ready(s, POLLIN, 3000);
    ASK(recvfrom(s, b, 2, 0, (void *)&peer, &n));
    SAY("from len %d", n);
    ASK(recv(s, NULL, 1, MSG_DONTWAIT));
    ASK(recv(s, b, 0, MSG_DONTWAIT));
    ASK(recv(s, NULL, 2, MSG_TRUNC));
    ASK(recv(s, b, 9, MSG_DONTWAIT));
    ASK(recv(s, b, 9, MSG_DONTWAIT));
    ASK(__builtin_object_size(b, 0) ? read(-1, b, 1) : 0);
    struct mmsghdr mm[2] = {{.msg_hdr = m}, {.msg_hdr = m}};
    ASK(sendmmsg(c, mm, 2, 0));
    SAY("%u %u", mm[0].msg_len, mm[1].msg_len);
    ASK(recv(s, b, 14, MSG_WAITALL));
    FILE *t = tmpfile();
    char page[5000]; memset(page, 'p', sizeof page);
    fwrite(page, 1, sizeof page, t); fflush(t);
    off_t o = 1000;
    ASK(sendfile(c, fileno(t), &o, 3000)); SAY("offset %ld", (long)o);
    lseek(fileno(t), 4000, SEEK_SET);
    ASK(sendfile(c, fileno(t), NULL, 9000)); SAY("position %ld", (long)lseek(fileno(t), 0, SEEK_CUR));
    ASK(recv(s, page, 4000, MSG_WAITALL));
    ASK(sendfile(c, -1, NULL, 1));
    fclose(t);
    struct timeval tv = {0, 50000};
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    ASK(recv(s, b, 9, 0));
    close(c);
    ASK(recv(s, b, 9, 0));
    close(s);
}

static volatile int caught;
static void on(int sig) { caught = sig; }

static void signals(void) {
    int c, s; char b[4];
    struct sigaction act = {.sa_handler = on};
    sigaction(SIGPIPE, &act, NULL);
    sigaction(SIGALRM, &act, NULL);
    pair(&c, &s);
    shutdown(c, SHUT_WR);
    caught = 0; ASK(send(c, "x", 1, MSG_NOSIGNAL)); SAY("signal %d", caught);
    caught = 0; ASK(write(c, "x", 1)); SAY("signal %d", caught);
    ualarm(100000, 0);
    ASK(recv(c, b, 1, 0));
    ualarm(100000, 0);
    ASK(poll(&(struct pollfd){.fd = c, .events = POLLIN}, 1, -1));
    int e = epoll_create1(0); struct epoll_event ev = {.events = EPOLLIN};
    epoll_ctl(e, EPOLL_CTL_ADD, c, &ev);
    ualarm(100000, 0);
    ASK(epoll_wait(e, &ev, 1, -1));
    sigset_t none, alarm_only; sigemptyset(&none); sigemptyset(&alarm_only); sigaddset(&alarm_only, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarm_only, NULL);
    raise(SIGALRM);
    caught = 0;
    ASK(epoll_pwait(e, &ev, 1, 1000, &none));
    SAY("signal %d", caught);
    sigprocmask(SIG_UNBLOCK, &alarm_only, NULL);
    close(e); close(c); close(s);
    signal(SIGPIPE, SIG_DFL);
}

static void *echo(void *arg) {
    int l = *(int *)arg; char buf[4096]; long n;
    int s = accept(l, NULL, NULL);
    while ((n = read(s, buf, sizeof buf)) > 0) {
        for (long done = 0; done < n;) done += write(s, buf + done, n - done);
    }
    close(s);
    return NULL;
}

static void many(void) {
    int l = listener(); pthread_t t[8]; int c[8];
    struct sockaddr_in a = at(port_of(l));
    for (int i = 0; i < 8; i++) pthread_create(&t[i], NULL, echo, &l);
    for (int i = 0; i < 8; i++) {
        c[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(c[i], (void *)&a, sizeof a)) SAY("connect %s", strerrorname_np(errno));
    }
    unsigned char out[10000], in[10000]; int good = 0;
    for (unsigned i = 0; i < sizeof out; i++) out[i] = i * 7;
    for (int i = 0; i < 8; i++) {
        memset(in, 0, sizeof in);
        if (write(c[i], out, sizeof out) == (long)sizeof out && recv(c[i], in, sizeof in, MSG_WAITALL) == (long)sizeof in) good += !memcmp(in, out, sizeof in);
        close(c[i]);
    }
    for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
    SAY("echoed %d", good);
    close(l);
}

static void forks(void) {
    int l = listener(), c, s, status; char b[32];
    struct sockaddr_in a = at(port_of(l));
    pid_t child = fork();
    if (!child) {
        s = accept(l, NULL, NULL);
        long n = read(s, b, sizeof b);
        write(s, b, n);
        _exit(n);
    }
    close(l);
    c = socket(AF_INET, SOCK_STREAM, 0);
    ASK(connect(c, (void *)&a, sizeof a));
    ASK(write(c, "to the child", 12));
    ASK(recv(c, b, 12, MSG_WAITALL));
    waitpid(child, &status, 0);
    SAY("child %d", WEXITSTATUS(status));
    ASK(recv(c, b, 12, 0));
    close(c);
    pair(&c, &s);
    child = fork();
    if (!child) { write(s, "from the child", 14); _exit(0); }
    close(s);
    waitpid(child, &status, 0);
    ASK(recv(c, b, 14, MSG_WAITALL));
    ASK(recv(c, b, 14, 0));
    close(c);
    // A vfork child closes numbers of its own table only.
    pair(&c, &s);
    child = vfork();
    if (!child) { close(c); close(s); _exit(0); }
    waitpid(child, &status, 0);
    ASK(write(c, "still", 5));
    ASK(recv(s, b, 5, MSG_WAITALL));
    ASK(waitpid(-1, &status, WNOHANG));
    close(c); close(s);
}

int main(int count, char **args) {
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"names", names}, {"arguments", arguments}, {"epolls", epolls}, {"polls", polls}, {"options", options},
        {"transfers", transfers}, {"signals", signals}, {"many", many}, {"forks", forks}, {"numbers", numbers},
    };
    if (count != 3) return 2;
    address = args[1];
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!strcmp(args[2], cases[i].name)) { cases[i].run(); SAY("end"); return 0; }
    }
    return 2;
}
