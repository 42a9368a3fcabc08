/* Short forms of the epoll calls for the cases. */
#ifndef KNET_EVENTS_H
#define KNET_EVENTS_H

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

SOME int change(int epoll, int how, int fd, unsigned events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(epoll, how, fd, &event);
}

SOME void watch(int epoll, int fd, unsigned events)
{
    OK(change(epoll, EPOLL_CTL_ADD, fd, events, (uint64_t)fd));
}

/* The mask of the one event that comes within ms, 0 if none does. */
SOME unsigned one_event(int epoll, int ms)
{
    struct epoll_event events[8];
    int count = OK(epoll_wait(epoll, events, 8, ms));
    CHECK(count <= 1);
    return count ? events[0].events : 0;
}

SOME void mask_text(char *into, size_t size, unsigned mask)
{
    snprintf(into, size, "0x%x%s%s%s%s%s", mask, mask & EPOLLIN ? " IN" : "", mask & EPOLLOUT ? " OUT" : "",
             mask & EPOLLRDHUP ? " RDHUP" : "", mask & EPOLLERR ? " ERR" : "", mask & EPOLLHUP ? " HUP" : "");
}

#define EVENT(call, mask)                                                                                     \
    do {                                                                                                      \
        unsigned got_ = (call), want_ = (mask);                                                               \
        char is_[64], not_[64];                                                                               \
        mask_text(is_, sizeof is_, got_);                                                                     \
        mask_text(not_, sizeof not_, want_);                                                                  \
        if (got_ != want_) FAIL("%s is %s, not %s", #call, is_, not_);                                        \
    } while (0)

/* What a new level-triggered registration reports, once it has become `mask` (5 s at most) and stays so. */
SOME unsigned settled(int fd, unsigned asked, unsigned mask)
{
    int epoll = OK(epoll_create1(0));
    watch(epoll, fd, asked);
    unsigned got;
    long end = now_ms() + 5000;
    do {
        got = one_event(epoll, 0);
        if (got != mask) pause_ms(1);
    } while (got != mask && now_ms() < end);
    if (got == mask) {
        pause_ms(20);
        got = one_event(epoll, 0);
    }
    OK(close(epoll));
    return got;
}

#endif
