/* poll, select and epoll. */
#ifndef KNET_WAITS_H
#define KNET_WAITS_H

#include "state.h"
#include <sys/select.h>

static void op_poll(struct call *this) /* NAME BITS [MS] */
{
    struct pollfd one = {fd_of(needed(this, 1)), (short)flags_of(poll_bits, needed(this, 2)), 0};
    int result = poll(&one, 1, (int)number(this, 3, 0));
    if (result < 0)
        say(this, result);
    else if (result == 0)
        say_text(this, "none");
    else
        flags_text(poll_bits, one.revents, this->answer, ANSWER);
}

static void op_polls(struct call *this) /* NAME=BITS... [MS] */
{
    struct pollfd all[WORDS];
    char texts[WORDS][64];
    int count = 0, ms = 0;
    for (int n = 1; n < this->count; n++) {
        snprintf(texts[count], 64, "%s", this->words[n]);
        char *bits = strchr(texts[count], '=');
        if (!bits) {
            ms = atoi(texts[count]);
            continue;
        }
        *bits = 0;
        all[count] = (struct pollfd){fd_of(texts[count]), (short)flags_of(poll_bits, bits + 1), 0};
        count++;
    }
    int result = poll(all, (nfds_t)count, ms);
    say(this, result);
    for (int n = 0; n < count && result > 0; n++)
        if (all[n].revents) {
            sprintf(strchr(this->answer, 0), " %s=", texts[n]);
            flags_text(poll_bits, all[n].revents, strchr(this->answer, 0), 64);
        }
}

static void op_select(struct call *this) /* NAME r|w|x... [MS] */
{
    int fd = fd_of(needed(this, 1));
    const char *asked = needed(this, 2);
    fd_set sets[3];
    struct timeval span = {number(this, 3, 0) / 1000, number(this, 3, 0) % 1000 * 1000};
    for (int n = 0; n < 3; n++) {
        FD_ZERO(&sets[n]);
        if (fd >= 0 && strchr(asked, "rwx"[n])) FD_SET(fd, &sets[n]);
    }
    int result = select(fd + 1, &sets[0], &sets[1], &sets[2], &span);
    say(this, result);
    for (int n = 0; n < 3 && result > 0; n++)
        if (FD_ISSET(fd, &sets[n])) sprintf(strchr(this->answer, 0), " %c", "rwx"[n]);
}

static void op_epoll(struct call *this) /* NAME [FLAGS] */
{
    say_new(this, needed(this, 1), epoll_create1(this->count > 2 ? (int)flags_of(file_flags, this->words[2]) : 0));
}

static void op_ctl(struct call *this) /* EPOLL ADD|MOD|DEL NAME [BITS]: events carry the name */
{
    const char *name = needed(this, 3);
    struct epoll_event event = {.events = (unsigned)flags_of(epoll_bits, word(this, 4, "0")), .data.u64 = (uint64_t)index_of(name)};
    say(this, epoll_ctl(fd_of(needed(this, 1)), (int)flags_of(epoll_ops, needed(this, 2)), fd_of(name), &event));
}

static int by_data(const void *a, const void *b)
{
    const struct epoll_event *one = a, *other = b;
    return one->data.u64 < other->data.u64 ? -1 : one->data.u64 > other->data.u64;
}

static void op_wait(struct call *this) /* EPOLL [MOST] [MS] */
{
    struct epoll_event events[16] = {0};
    int got = epoll_wait(fd_of(needed(this, 1)), events, (int)number(this, 2, 16), (int)number(this, 3, 0));
    if (got < 0) {
        say(this, got);
        return;
    }
    say_text(this, got ? "" : "none");
    qsort(events, (size_t)got, sizeof *events, by_data);
    for (int n = 0; n < got; n++) {
        sprintf(strchr(this->answer, 0), "%s%s=", n ? " " : "", events[n].data.u64 < NAMES ? names[events[n].data.u64].name : "?");
        flags_text(epoll_bits, events[n].events, strchr(this->answer, 0), 64);
    }
}

#endif
