/* The bits IN, OUT, RDHUP, ERR and HUP, as epoll and poll show them, through the life of a connection. */
#include "case.h"
#include "events.h"

#define ALL (EPOLLIN | EPOLLOUT | EPOLLRDHUP)
#define SETTLES(fd, asked, mask)                       \
    do {                                               \
        unsigned events = settled(fd, asked, mask);    \
        EVENT(events, mask);                           \
    } while (0)

WIRE(idle_is_out)
{
    long slot;
    int fd = joined(&slot);
    SETTLES(fd, ALL, EPOLLOUT);
    SETTLES(fd, EPOLLIN, 0);
    SETTLES(fd, 0, 0);
}

WIRE(the_peers_fin_is_in_and_rdhup)
{
    long slot;
    int fd = joined(&slot);
    PEER("shut", slot, SHUT_WR);
    SETTLES(fd, ALL, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    SETTLES(fd, EPOLLIN, EPOLLIN); /* RDHUP for those who ask */
    SETTLES(fd, 0, 0);
    end_of_stream(fd);
    SETTLES(fd, ALL, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

WIRE(the_peers_close_is_not_hup)
{
    long slot;
    int fd = joined(&slot);
    PEER("close", slot, 0);
    SETTLES(fd, ALL, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

WIRE(our_half_close_is_out_only)
{
    long slot;
    int fd = joined(&slot);
    OK(shutdown(fd, SHUT_WR));
    SETTLES(fd, ALL, EPOLLOUT);
}

WIRE(our_shutdown_of_reading_is_in_and_rdhup)
{
    long slot;
    int fd = joined(&slot);
    OK(shutdown(fd, SHUT_RD));
    SETTLES(fd, ALL, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

WIRE(both_ended_is_hup)
{
    long slot;
    int fd = joined(&slot);
    PEER("shut", slot, SHUT_WR);
    SETTLES(fd, ALL, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    OK(shutdown(fd, SHUT_WR));
    SETTLES(fd, ALL, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP);
    SETTLES(fd, EPOLLIN, EPOLLIN | EPOLLHUP);
    SETTLES(fd, 0, EPOLLHUP);
}

WIRE(we_end_first_then_the_peer_closes)
{
    long slot;
    int fd = joined(&slot);
    OK(shutdown(fd, SHUT_WR));
    PEER("end", slot, 0);
    PEER("close", slot, 0);
    SETTLES(fd, ALL, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP);
    end_of_stream(fd);
}

WIRE(our_shutdown_of_both_is_hup)
{
    long slot;
    int fd = joined(&slot);
    OK(shutdown(fd, SHUT_RDWR));
    SETTLES(fd, ALL, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP);
}

WIRE(a_reset_is_everything)
{
    long slot;
    int fd = joined(&slot);
    PEER("reset", slot, 0);
    SETTLES(fd, ALL, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLERR | EPOLLHUP);
    SETTLES(fd, 0, EPOLLERR | EPOLLHUP);
    EQUAL(so_error(fd), ECONNRESET);
    SETTLES(fd, ALL, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP); /* ERR is gone with the error */
}

WIRE(a_reset_wakes_a_set_with_no_interest)
{
    long slot;
    int fd = joined(&slot), epoll = OK(epoll_create1(0));
    watch(epoll, fd, EPOLLET);
    EVENT(one_event(epoll, 20), 0);
    PEER("reset", slot, 0);
    EVENT(one_event(epoll, 5000), EPOLLERR | EPOLLHUP);
}

WIRE_ONCE(a_refused_connect_is_everything)
{
    int fd = tcp(SOCK_NONBLOCK);
    FAILS(try_connect(fd, address, port), EINPROGRESS);
    SETTLES(fd, ALL, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLERR | EPOLLHUP);
    EQUAL(so_error(fd), ECONNREFUSED);
    EQUAL(so_error(fd), 0);
}

CASE(a_listener_is_in_only)
{
    int listener = listener_at(port, 4);
    SETTLES(listener, ALL, 0);
    int client = dial(port);
    SETTLES(listener, ALL, EPOLLIN);
    OK(close(client));
    SETTLES(listener, ALL, EPOLLIN); /* it stays in the queue */
    take(listener);
    SETTLES(listener, ALL, 0);
}

CASE(a_new_socket_is_out_and_hup)
{
    SETTLES(tcp(0), ALL, EPOLLOUT | EPOLLHUP);
    SETTLES(tcp(0), 0, EPOLLHUP);
}
