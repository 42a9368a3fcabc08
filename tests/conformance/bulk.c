/* Much data: 16 MiB both ways at once, odd sizes, many parts, a thread for each way. */
#include "case.h"
#include <sys/sendfile.h>
#include <sys/uio.h>

#define MUCH (16L << 20)

WIRE(both_ways_at_once)
{
    long slot;
    int fd = joined(&slot);
    long call = peer_begin("exchange", slot, MUCH);
    if (exchange(fd, MUCH) < 0) FAIL("our side: %s", errno_name(errno));
    PEER_END(call);
    OK(shutdown(fd, SHUT_WR));
    EQUAL(PEER("end", slot, 0), 0);
    PEER("close", slot, 0);
    end_of_stream(fd);
}

WIRE(odd_sizes_with_every_kind_of_write)
{
    long slot, sent = 0;
    int fd = joined(&slot);
    static unsigned char bytes[200000];
    unsigned seed = 20240907;
    dprintf(1, "# seed %u\n", seed);
    long reads = peer_begin("recv", slot, MUCH);
    while (sent < MUCH) {
        long size = 1 + rand_r(&seed) % (long)sizeof bytes;
        if (rand_r(&seed) % 2) size = 1 + size % 3000;
        if (size > MUCH - sent) size = MUCH - sent;
        fill_pattern(bytes, sent, size);
        size_t cut = (size_t)(rand_r(&seed) % size);
        struct iovec parts[] = {{bytes, cut}, {bytes + cut, (size_t)size - cut}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        int more = rand_r(&seed) % 3;
        /* A blocking write takes all. */
        EQUAL(more == 0 ? write(fd, bytes, (size_t)size) : more == 1 ? writev(fd, parts, 2) : sendmsg(fd, &message, 0), size);
        sent += size;
    }
    PEER_END(reads);
}

WIRE(a_slow_reader_gets_everything)
{
    long slot;
    int fd = joined(&slot);
    long sends = peer_begin("send", slot, 4 << 20), closes = peer_begin("close", slot, 0);
    for (long got = 0; got < 4 << 20;) {
        long part = got < 20000 ? 1000 : 256 << 10;
        if (part > (4 << 20) - got) part = (4 << 20) - got;
        get(fd, got, part);
        got += part;
        pause_ms(1);
    }
    PEER_END(sends);
    PEER_END(closes);
    end_of_stream(fd);
}

WIRE(a_file_by_sendfile)
{
    long slot, size = 3 << 20;
    int fd = joined(&slot), file = OK(memfd_create("file", 0));
    static unsigned char bytes[3 << 20];
    fill_pattern(bytes, 0, size);
    EQUAL(write(file, bytes, (size_t)size), size);
    long reads = peer_begin("recv", slot, size);
    off_t from = 0;
    while (from < size) CHECK(OK(sendfile(fd, file, &from, (size_t)(size - from))) > 0);
    PEER_END(reads);
    OK(lseek(file, 0, SEEK_SET));
    EQUAL(sendfile(fd, file, NULL, 0), 0);
    EQUAL(lseek(file, 0, SEEK_CUR), 0);
}

static void *sends_much(void *fd)
{
    put(*(int *)fd, 0, MUCH);
    return NULL;
}

static void *receives_much(void *fd)
{
    get(*(int *)fd, 0, MUCH);
    return NULL;
}

CASE(a_thread_for_each_way)
{
    struct pair two = pair();
    pthread_t threads[4];
    THREAD(pthread_create(&threads[0], NULL, sends_much, &two.client));
    THREAD(pthread_create(&threads[1], NULL, receives_much, &two.client));
    THREAD(pthread_create(&threads[2], NULL, sends_much, &two.server));
    THREAD(pthread_create(&threads[3], NULL, receives_much, &two.server));
    for (int n = 0; n < 4; n++) THREAD(pthread_join(threads[n], NULL));
}
