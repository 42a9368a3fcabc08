/* Names of flags, options and errnos, both ways. */
#ifndef KNET_WORDS_H
#define KNET_WORDS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

struct word {
    const char *name;
    long value;
};

#define W(name) {#name, name}
static const struct word socket_flags[] = {{"NONBLOCK", SOCK_NONBLOCK}, {"CLOEXEC", SOCK_CLOEXEC}, {NULL, 0}};
static const struct word file_flags[] = {{"NONBLOCK", O_NONBLOCK}, {"APPEND", O_APPEND}, {"ASYNC", O_ASYNC}, {"RDWR", O_RDWR}, {"CLOEXEC", O_CLOEXEC}, {"DIRECT", O_DIRECT}, {NULL, 0}};
static const struct word message_flags[] = {
    {"OOB", MSG_OOB}, {"PEEK", MSG_PEEK}, {"DONTROUTE", MSG_DONTROUTE}, {"CTRUNC", MSG_CTRUNC}, {"TRUNC", MSG_TRUNC},
    {"DONTWAIT", MSG_DONTWAIT}, {"EOR", MSG_EOR}, {"WAITALL", MSG_WAITALL}, {"CONFIRM", MSG_CONFIRM}, {"NOSIGNAL", MSG_NOSIGNAL},
    {"ERRQUEUE", MSG_ERRQUEUE}, {"MORE", MSG_MORE}, {"WAITFORONE", MSG_WAITFORONE}, {"ZEROCOPY", 0x4000000}, {"FASTOPEN", 0x20000000},
    {"CMSG_CLOEXEC", MSG_CMSG_CLOEXEC}, {"SYN", MSG_SYN}, {"RST", MSG_RST}, {"FIN", MSG_FIN}, {NULL, 0}};
static const struct word poll_bits[] = {{"IN", POLLIN}, {"PRI", POLLPRI}, {"OUT", POLLOUT}, {"RDHUP", POLLRDHUP}, {"ERR", POLLERR},
    {"HUP", POLLHUP}, {"NVAL", POLLNVAL}, {"RDNORM", POLLRDNORM}, {"RDBAND", POLLRDBAND}, {"WRNORM", POLLWRNORM}, {"WRBAND", POLLWRBAND}, {NULL, 0}};
static const struct word epoll_bits[] = {{"IN", EPOLLIN}, {"PRI", EPOLLPRI}, {"OUT", EPOLLOUT}, {"RDHUP", EPOLLRDHUP}, {"ERR", EPOLLERR},
    {"HUP", EPOLLHUP}, {"RDNORM", EPOLLRDNORM}, {"RDBAND", EPOLLRDBAND}, {"WRNORM", EPOLLWRNORM}, {"WRBAND", EPOLLWRBAND}, {"ET", EPOLLET}, {"ONESHOT", EPOLLONESHOT},
    {"EXCLUSIVE", EPOLLEXCLUSIVE}, {"WAKEUP", EPOLLWAKEUP}, {NULL, 0}};
static const struct word hows[] = {{"RD", SHUT_RD}, {"WR", SHUT_WR}, {"RDWR", SHUT_RDWR}, {NULL, 0}};
static const struct word epoll_ops[] = {{"ADD", EPOLL_CTL_ADD}, {"MOD", EPOLL_CTL_MOD}, {"DEL", EPOLL_CTL_DEL}, {NULL, 0}};
static const struct word fcntls[] = {W(F_GETFD), W(F_SETFD), W(F_GETFL), W(F_SETFL), W(F_GETOWN), W(F_SETOWN), W(F_GETSIG), W(F_SETSIG), W(F_DUPFD), W(F_DUPFD_CLOEXEC),
    W(F_GETLEASE), W(F_GETPIPE_SZ), W(F_GET_SEALS), {NULL, 0}};
static const struct word ioctls[] = {W(FIONREAD), W(FIONBIO), W(FIOASYNC), W(SIOCATMARK), W(SIOCOUTQ), W(SIOCINQ), W(SIOCOUTQNSD), W(FIOCLEX), W(FIONCLEX), W(SIOCGPGRP), W(SIOCSPGRP), W(FIOSETOWN), W(FIOGETOWN), {"TCGETS", 0x5401}, {"TIOCGWINSZ", 0x5413}, {"UNKNOWN", 0x1234}, {NULL, 0}};

/* A|B, a number, or 0 for none; ends the program on a word that is in no table. */
static long flags_of(const struct word *table, const char *text)
{
    long value = 0;
    char copy[128];
    snprintf(copy, sizeof copy, "%s", text);
    for (char *rest = copy, *part; (part = strsep(&rest, "|"));) {
        const struct word *this = table;
        while (this->name && strcmp(this->name, part) != 0) this++;
        char *end;
        long number = strtol(part, &end, 0);
        if (!this->name && (*end || !*part)) {
            fprintf(stderr, "script: no flag '%s'\n", part);
            exit(70);
        }
        value |= this->name ? this->value : number;
    }
    return value;
}

static void flags_text(const struct word *table, long value, char *out, size_t size)
{
    size_t used = 0;
    if (!value) snprintf(out, size, "0");
    for (; table->name; table++)
        if (table->value && (value & table->value) == table->value) {
            used += (size_t)snprintf(out + used, size - used, "%s%s", used ? "|" : "", table->name);
            value &= ~table->value;
        }
    if (value) snprintf(out + used, size - used, "%s0x%lx", used ? "|" : "", value);
}

enum form { NUMBER, SPAN, LINGER, TEXT, BYTES };
struct option_name {
    const char *name;
    int level, number;
    enum form form;
};
#define O(level, name, form) {#name, level, name, form}
#ifndef SO_RESERVE_MEM
#define SO_RESERVE_MEM 73
#endif
#ifndef SO_TXREHASH
#define SO_TXREHASH 74
#endif
#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif
#ifndef SO_PREFER_BUSY_POLL
#define SO_PREFER_BUSY_POLL 69
#endif
static const struct option_name options[] = {
    O(SOL_SOCKET, SO_DEBUG, NUMBER), O(SOL_SOCKET, SO_REUSEADDR, NUMBER), O(SOL_SOCKET, SO_TYPE, NUMBER), O(SOL_SOCKET, SO_ERROR, NUMBER),
    O(SOL_SOCKET, SO_DONTROUTE, NUMBER), O(SOL_SOCKET, SO_BROADCAST, NUMBER), O(SOL_SOCKET, SO_SNDBUF, NUMBER), O(SOL_SOCKET, SO_RCVBUF, NUMBER),
    O(SOL_SOCKET, SO_SNDBUFFORCE, NUMBER), O(SOL_SOCKET, SO_RCVBUFFORCE, NUMBER), O(SOL_SOCKET, SO_KEEPALIVE, NUMBER), O(SOL_SOCKET, SO_OOBINLINE, NUMBER),
    O(SOL_SOCKET, SO_NO_CHECK, NUMBER), O(SOL_SOCKET, SO_PRIORITY, NUMBER), O(SOL_SOCKET, SO_LINGER, LINGER), O(SOL_SOCKET, SO_REUSEPORT, NUMBER),
    O(SOL_SOCKET, SO_PASSCRED, NUMBER), O(SOL_SOCKET, SO_PEERCRED, BYTES), O(SOL_SOCKET, SO_RCVLOWAT, NUMBER), O(SOL_SOCKET, SO_SNDLOWAT, NUMBER),
    O(SOL_SOCKET, SO_RCVTIMEO, SPAN), O(SOL_SOCKET, SO_SNDTIMEO, SPAN), O(SOL_SOCKET, SO_BINDTODEVICE, TEXT), O(SOL_SOCKET, SO_ATTACH_FILTER, BYTES),
    O(SOL_SOCKET, SO_DETACH_FILTER, NUMBER), O(SOL_SOCKET, SO_PEERNAME, BYTES), O(SOL_SOCKET, SO_TIMESTAMP, NUMBER), O(SOL_SOCKET, SO_ACCEPTCONN, NUMBER),
    O(SOL_SOCKET, SO_PEERSEC, BYTES), O(SOL_SOCKET, SO_PASSSEC, NUMBER), O(SOL_SOCKET, SO_TIMESTAMPNS, NUMBER), O(SOL_SOCKET, SO_MARK, NUMBER),
    O(SOL_SOCKET, SO_TIMESTAMPING, NUMBER), O(SOL_SOCKET, SO_PROTOCOL, NUMBER), O(SOL_SOCKET, SO_DOMAIN, NUMBER), O(SOL_SOCKET, SO_RXQ_OVFL, NUMBER),
    O(SOL_SOCKET, SO_WIFI_STATUS, NUMBER), O(SOL_SOCKET, SO_PEEK_OFF, NUMBER), O(SOL_SOCKET, SO_NOFCS, NUMBER), O(SOL_SOCKET, SO_LOCK_FILTER, NUMBER),
    O(SOL_SOCKET, SO_SELECT_ERR_QUEUE, NUMBER), O(SOL_SOCKET, SO_BUSY_POLL, NUMBER), O(SOL_SOCKET, SO_MAX_PACING_RATE, NUMBER), O(SOL_SOCKET, SO_INCOMING_CPU, NUMBER),
    O(SOL_SOCKET, SO_CNX_ADVICE, NUMBER), O(SOL_SOCKET, SO_MEMINFO, BYTES), O(SOL_SOCKET, SO_INCOMING_NAPI_ID, NUMBER), O(SOL_SOCKET, SO_COOKIE, BYTES),
    O(SOL_SOCKET, SO_PEERGROUPS, BYTES), O(SOL_SOCKET, SO_ZEROCOPY, NUMBER), O(SOL_SOCKET, SO_TXTIME, BYTES), O(SOL_SOCKET, SO_BINDTOIFINDEX, NUMBER),
    O(SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, NUMBER), O(SOL_SOCKET, SO_PREFER_BUSY_POLL, NUMBER), O(SOL_SOCKET, SO_NETNS_COOKIE, BYTES), O(SOL_SOCKET, SO_BUF_LOCK, NUMBER),
    O(SOL_SOCKET, SO_RESERVE_MEM, NUMBER), O(SOL_SOCKET, SO_TXREHASH, NUMBER), {"SO_UNKNOWN", SOL_SOCKET, 9999, NUMBER},
    O(IPPROTO_TCP, TCP_NODELAY, NUMBER), O(IPPROTO_TCP, TCP_MAXSEG, NUMBER), O(IPPROTO_TCP, TCP_CORK, NUMBER), O(IPPROTO_TCP, TCP_KEEPIDLE, NUMBER),
    O(IPPROTO_TCP, TCP_KEEPINTVL, NUMBER), O(IPPROTO_TCP, TCP_KEEPCNT, NUMBER), O(IPPROTO_TCP, TCP_SYNCNT, NUMBER), O(IPPROTO_TCP, TCP_LINGER2, NUMBER),
    O(IPPROTO_TCP, TCP_DEFER_ACCEPT, NUMBER), O(IPPROTO_TCP, TCP_WINDOW_CLAMP, NUMBER), O(IPPROTO_TCP, TCP_INFO, BYTES), O(IPPROTO_TCP, TCP_QUICKACK, NUMBER),
    O(IPPROTO_TCP, TCP_CONGESTION, TEXT), O(IPPROTO_TCP, TCP_MD5SIG, BYTES), O(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, NUMBER), O(IPPROTO_TCP, TCP_THIN_DUPACK, NUMBER),
    O(IPPROTO_TCP, TCP_USER_TIMEOUT, NUMBER), O(IPPROTO_TCP, TCP_REPAIR, NUMBER), O(IPPROTO_TCP, TCP_FASTOPEN, NUMBER), O(IPPROTO_TCP, TCP_TIMESTAMP, NUMBER),
    O(IPPROTO_TCP, TCP_NOTSENT_LOWAT, NUMBER), O(IPPROTO_TCP, TCP_CC_INFO, BYTES), O(IPPROTO_TCP, TCP_SAVE_SYN, NUMBER), O(IPPROTO_TCP, TCP_SAVED_SYN, BYTES),
    O(IPPROTO_TCP, TCP_FASTOPEN_CONNECT, NUMBER), O(IPPROTO_TCP, TCP_ULP, TEXT), O(IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, NUMBER), O(IPPROTO_TCP, TCP_INQ, NUMBER),
    O(IPPROTO_TCP, TCP_TX_DELAY, NUMBER), {"TCP_UNKNOWN", IPPROTO_TCP, 9999, NUMBER},
    O(IPPROTO_IP, IP_TOS, NUMBER), O(IPPROTO_IP, IP_TTL, NUMBER), O(IPPROTO_IP, IP_OPTIONS, BYTES), O(IPPROTO_IP, IP_RECVOPTS, NUMBER), O(IPPROTO_IP, IP_PKTINFO, NUMBER),
    O(IPPROTO_IP, IP_MTU_DISCOVER, NUMBER), O(IPPROTO_IP, IP_RECVERR, NUMBER), O(IPPROTO_IP, IP_RECVTTL, NUMBER), O(IPPROTO_IP, IP_RECVTOS, NUMBER), O(IPPROTO_IP, IP_MTU, NUMBER),
    O(IPPROTO_IP, IP_FREEBIND, NUMBER), O(IPPROTO_IP, IP_TRANSPARENT, NUMBER), O(IPPROTO_IP, IP_MINTTL, NUMBER), O(IPPROTO_IP, IP_NODEFRAG, NUMBER),
    O(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, NUMBER), O(IPPROTO_IP, IP_MULTICAST_TTL, NUMBER), O(IPPROTO_IP, IP_MULTICAST_LOOP, NUMBER), O(IPPROTO_IP, IP_UNICAST_IF, NUMBER),
    {"IP_UNKNOWN", IPPROTO_IP, 9999, NUMBER}, {"IPV6_V6ONLY", IPPROTO_IPV6, 26, NUMBER}, {"NO_LEVEL", 9999, 1, NUMBER}, {NULL, 0, 0, NUMBER}};

static const struct option_name *option_of(const char *name)
{
    for (const struct option_name *this = options; this->name; this++)
        if (strcmp(this->name, name) == 0) return this;
    fprintf(stderr, "script: no option '%s'\n", name);
    exit(70);
}

static const char *errno_text(int error)
{
    const char *name = error ? strerrorname_np(error) : "no errno";
    return name ? name : "an unknown errno";
}

#endif
