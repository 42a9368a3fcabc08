/* Many threads on one descriptor: whole records, blocked calls and close, cancellation, hand-over, churn. */
#include "case.h"
#include "events.h"

enum { WRITERS = 8, RECORD_MAX = 4000 };
#define RECORDS_TOTAL (4L << 20)

static int common;

/* Linux keeps a send() together only while there is room, so the writers stay below the buffer. */
enum { ROOM = 128 << 10 };
static atomic_long unread;

/* A record is one send(): length, writer, then bytes that follow from both. */
static void *writes_records(void *argument)
{
    unsigned writer = (unsigned)(uintptr_t)argument, seed = writer * 7919 + 1, count = 0;
    unsigned char record[RECORD_MAX];
    for (long sent = 0; sent < RECORDS_TOTAL / WRITERS; count++) {
        unsigned size = 8 + (unsigned)rand_r(&seed) % (RECORD_MAX - 8);
        uint16_t head[4] = {(uint16_t)size, (uint16_t)writer, (uint16_t)count, 0};
        memcpy(record, head, 8);
        memset(record + 8, (int)(writer * 31 + count), size - 8);
        while (atomic_fetch_add(&unread, size) + size > ROOM) {
            atomic_fetch_sub(&unread, size);
            sched_yield();
        }
        EQUAL(send(common, record, size, MSG_NOSIGNAL), size);
        sent += size;
    }
    return NULL;
}

CASE_FOR(eight_writers_of_records_on_one_descriptor, 60)
{
    struct pair two = pair();
    int size_asked = 4 * ROOM;
    OK(setsockopt(two.client, SOL_SOCKET, SO_SNDBUF, &size_asked, sizeof size_asked));
    common = two.client;
    pthread_t threads[WRITERS];
    for (uintptr_t n = 0; n < WRITERS; n++) THREAD(pthread_create(&threads[n], NULL, writes_records, (void *)n));
    unsigned counts[WRITERS] = {0};
    long total[WRITERS] = {0};
    int open = WRITERS;
    unsigned char record[RECORD_MAX];
    while (open > 0) {
        uint16_t head[4];
        EQUAL(recv(two.server, head, 8, MSG_WAITALL), 8);
        CHECK(head[0] >= 8 && head[0] < RECORD_MAX && head[1] < WRITERS);
        unsigned writer = head[1], size = head[0] - 8u;
        EQUAL(head[2], counts[writer] & 0xffff);
        if (size) EQUAL(recv(two.server, record, size, MSG_WAITALL), size);
        for (unsigned n = 0; n < size; n++) EQUAL(record[n], (writer * 31 + counts[writer]) & 0xff);
        counts[writer]++;
        unread -= head[0];
        total[writer] += head[0];
        if (total[writer] >= RECORDS_TOTAL / WRITERS) open--;
    }
    for (int n = 0; n < WRITERS; n++) THREAD(pthread_join(threads[n], NULL));
    quiet(two.server);
}

static void *writes_its_byte(void *argument)
{
    static unsigned char bytes[WRITERS][60000];
    uintptr_t writer = (uintptr_t)argument;
    memset(bytes[writer], (int)writer, sizeof bytes[writer]);
    for (int n = 0; n < 20; n++) EQUAL(send(common, bytes[writer], sizeof bytes[writer], MSG_NOSIGNAL), sizeof bytes[writer]);
    return NULL;
}

CASE_FOR(eight_writers_against_a_full_buffer, 60)
{
    struct pair two = pair();
    common = two.client;
    pthread_t threads[WRITERS];
    for (uintptr_t n = 0; n < WRITERS; n++) THREAD(pthread_create(&threads[n], NULL, writes_its_byte, (void *)n));
    pause_ms(50); /* full by now, all of them wait */
    static unsigned char bytes[50000];
    long counts[WRITERS] = {0}, left = WRITERS * 20 * 60000L;
    while (left > 0) {
        int got = OK(recv(two.server, bytes, sizeof bytes, 0));
        CHECK(got > 0);
        for (int n = 0; n < got; n++) {
            CHECK(bytes[n] < WRITERS);
            counts[bytes[n]]++;
        }
        left -= got;
    }
    for (int n = 0; n < WRITERS; n++) {
        THREAD(pthread_join(threads[n], NULL));
        EQUAL(counts[n], 20 * 60000);
    }
    quiet(two.server);
}

static atomic_long received;

static void *hammers(void *argument)
{
    (void)argument;
    unsigned char bytes[64];
    for (;;) {
        long got = recv(common, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got == 0) return NULL;
        if (got < 0 && errno != EAGAIN) FAIL("recv is -1 (%s)", errno_name(errno));
        if (got > 0) received += got;
        else sched_yield();
    }
}

CASE(two_threads_hammer_a_non_blocking_recv)
{
    struct pair two = pair();
    common = two.server;
    pthread_t threads[2];
    for (int n = 0; n < 2; n++) THREAD(pthread_create(&threads[n], NULL, hammers, NULL));
    for (int n = 0; n < 2000; n++) {
        put(two.client, n * 100, 100);
        if (n % 50 == 0) pause_ms(1);
    }
    OK(shutdown(two.client, SHUT_WR));
    for (int n = 0; n < 2; n++) THREAD(pthread_join(threads[n], NULL));
    EQUAL(received, 200000);
}

struct blocked {
    int fd, epoll;
    atomic_int started;
    long got;
    int error;
};

static void *blocks_in_recv(void *argument)
{
    struct blocked *this = argument;
    unsigned char bytes[64];
    this->started = 1;
    this->got = recv(this->fd, bytes, sizeof bytes, 0);
    this->error = errno;
    return NULL;
}

static void *blocks_in_accept(void *argument)
{
    struct blocked *this = argument;
    this->started = 1;
    this->got = accept(this->fd, NULL, NULL);
    this->error = errno;
    return NULL;
}

static void *blocks_in_epoll(void *argument)
{
    struct blocked *this = argument;
    struct epoll_event event;
    this->started = 1;
    this->got = epoll_wait(this->epoll, &event, 1, -1);
    this->error = errno;
    return NULL;
}

static void *blocks_in_poll(void *argument)
{
    struct blocked *this = argument;
    struct pollfd one = {this->fd, POLLIN, 0};
    this->started = 1;
    this->got = poll(&one, 1, -1);
    this->error = errno;
    return NULL;
}

static pthread_t start(struct blocked *this, void *(*run)(void *))
{
    pthread_t thread;
    THREAD(pthread_create(&thread, NULL, run, this));
    while (!this->started) pause_ms(1);
    pause_ms(30);
    return thread;
}

CASE(close_leaves_a_blocked_recv_to_its_bytes)
{
    struct pair two = pair();
    struct blocked this = {.fd = two.server};
    pthread_t thread = start(&this, blocks_in_recv);
    OK(close(two.server));
    quiet(two.client); /* Linux: the call in progress holds the socket */
    put(two.client, 0, 5);
    THREAD(pthread_join(thread, NULL));
    EQUAL(this.got, 5);
    end_of_stream(two.client);
}

CASE(dup2_leaves_a_blocked_recv_to_its_bytes)
{
    struct pair two = pair();
    struct blocked this = {.fd = two.server};
    pthread_t thread = start(&this, blocks_in_recv);
    EQUAL(dup2(OK(open("/dev/null", O_RDWR)), two.server), two.server);
    put(two.client, 0, 5);
    THREAD(pthread_join(thread, NULL));
    EQUAL(this.got, 5);
    char byte;
    EQUAL(read(two.server, &byte, 1), 0); /* /dev/null by now */
    end_of_stream(two.client);
}

CASE(close_leaves_a_blocked_accept_to_its_connection)
{
    struct blocked this = {.fd = listener_at(port, 4)};
    pthread_t thread = start(&this, blocks_in_accept);
    OK(close(this.fd));
    int client = dial(port); /* Linux: the call in progress holds the listener */
    THREAD(pthread_join(thread, NULL));
    CHECK(this.got >= 0);
    atomic_fetch_add(&shared->connections, 1);
    put(client, 0, 5);
    get((int)this.got, 0, 5);
    FAILS(try_connect(tcp(0), own, port), ECONNREFUSED);
}

CASE(shutdown_ends_a_blocked_recv)
{
    struct pair two = pair();
    struct blocked this = {.fd = two.server};
    pthread_t thread = start(&this, blocks_in_recv);
    OK(shutdown(two.server, SHUT_RD));
    THREAD(pthread_join(thread, NULL));
    EQUAL(this.got, 0);
}

CASE(close_of_a_polled_socket_does_no_harm)
{
    int listener = listener_at(port, 4);
    struct pair two = pair_by(listener, port);
    struct blocked this = {.fd = two.server};
    pthread_t thread = start(&this, blocks_in_poll);
    OK(close(two.server));
    OK(close(two.client)); /* the FIN ends the wait, or, with the socket gone for good, nothing does */
    pause_ms(50);
    struct pair more = pair_by(listener, port);
    put(more.client, 0, 10);
    get(more.server, 0, 10);
    pthread_cancel(thread);
    THREAD(pthread_join(thread, NULL));
}

/* The thread is cancelled inside the call; the process and its sockets go on. */
static void cancelled(void *(*run)(void *))
{
    int listener = listener_at(port, 4);
    struct pair two = pair_by(listener, port);
    for (int n = 0; n < 20; n++) {
        struct blocked this = {.fd = run == blocks_in_accept ? listener : two.server, .epoll = OK(epoll_create1(0))};
        watch(this.epoll, two.server, EPOLLIN);
        pthread_t thread;
        void *result;
        THREAD(pthread_create(&thread, NULL, run, &this));
        if (n % 2) {
            while (!this.started) pause_ms(1);
            pause_ms(5);
        }
        THREAD(pthread_cancel(thread));
        THREAD(pthread_join(thread, &result));
        CHECK(result == PTHREAD_CANCELED);
        OK(close(this.epoll));
        put(two.client, 10 * n, 10);
        get(two.server, 10 * n, 10);
    }
    pair_by(listener, port);
}

CASE(cancel_in_recv) { cancelled(blocks_in_recv); }
CASE(cancel_in_accept) { cancelled(blocks_in_accept); }
CASE(cancel_in_epoll_wait) { cancelled(blocks_in_epoll); }
CASE(cancel_in_poll) { cancelled(blocks_in_poll); }

static void *sends_for_ever(void *argument)
{
    static unsigned char bytes[65536];
    struct blocked *this = argument;
    this->started = 1;
    while (send(this->fd, bytes, sizeof bytes, MSG_NOSIGNAL) > 0) {
    }
    return NULL;
}

CASE(cancel_in_send)
{
    struct pair two = pair();
    struct blocked this = {.fd = two.client};
    pthread_t thread = start(&this, sends_for_ever);
    pause_ms(100);
    void *result;
    THREAD(pthread_cancel(thread));
    THREAD(pthread_join(thread, &result));
    CHECK(result == PTHREAD_CANCELED);
    OK(close(two.client));
    static unsigned char bytes[65536];
    while (OK(recv(two.server, bytes, sizeof bytes, 0)) > 0) {
    }
}

static atomic_int dialled;

static void *dials_and_closes(void *argument)
{
    (void)argument;
    for (int n = 0; n < 20; n++) {
        int fd = dial(port);
        put(fd, 0, 1);
        end_of_stream(fd);
        OK(close(fd));
        dialled++;
    }
    return NULL;
}

static atomic_bool over;

static void *dups_and_closes(void *argument)
{
    (void)argument;
    while (!over) {
        int fd = tcp(0), other = OK(dup(fd));
        OK(close(fd));
        OK(close(other));
        sched_yield();
    }
    return NULL;
}

CASE_FOR(thirty_two_threads_dial_and_close, 60)
{
    int listener = listener_at(port, 64);
    pthread_t threads[32], churn;
    THREAD(pthread_create(&churn, NULL, dups_and_closes, NULL));
    for (int n = 0; n < 32; n++) THREAD(pthread_create(&threads[n], NULL, dials_and_closes, NULL));
    for (int n = 0; n < 640; n++) {
        int fd = take(listener);
        get(fd, 0, 1);
        OK(close(fd));
    }
    for (int n = 0; n < 32; n++) THREAD(pthread_join(threads[n], NULL));
    over = true;
    THREAD(pthread_join(churn, NULL));
    EQUAL(dialled, 640);
}

static int second_set;

static void *serves_the_second_set(void *argument)
{
    (void)argument;
    for (int left = 300; left > 0;) {
        struct epoll_event events[8];
        int got = OK(epoll_wait(second_set, events, 8, 10000));
        CHECK(got > 0);
        for (int n = 0; n < got; n++) {
            int fd = events[n].data.fd;
            char byte;
            EQUAL(recv(fd, &byte, 1, MSG_DONTWAIT), 1);
            EQUAL(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
            OK(close(fd));
            left--;
        }
    }
    return NULL;
}

CASE(one_thread_accepts_another_serves)
{
    int listener = listener_at(port, 16);
    second_set = OK(epoll_create1(0));
    pthread_t server;
    THREAD(pthread_create(&server, NULL, serves_the_second_set, NULL));
    for (int n = 0; n < 300; n++) {
        struct pair two = pair_by(listener, port);
        watch(second_set, two.server, EPOLLIN);
        put(two.client, 0, 1);
        get(two.client, 0, 1);
        end_of_stream(two.client);
        OK(close(two.client));
    }
    THREAD(pthread_join(server, NULL));
}

static void *one_connection(void *argument)
{
    int fd = dial(port);
    put(fd, 0, 1);
    get(fd, 0, 1);
    OK(close(fd));
    return argument;
}

CASE(threads_come_and_go)
{
    int listener = listener_at(port, 16);
    for (int n = 0; n < 300; n++) {
        pthread_t thread;
        THREAD(pthread_create(&thread, NULL, one_connection, NULL));
        int fd = take(listener);
        get(fd, 0, 1);
        put(fd, 0, 1);
        THREAD(pthread_join(thread, NULL));
        OK(close(fd));
    }
}

static struct pair watched;
static int stops;
static atomic_bool over;
static pthread_t waits_long, waits_shortly;

static void *waits_for_the_kernel(void *unused)
{
    int epoll = OK(epoll_create1(0));
    watch(epoll, watched.server, EPOLLIN);
    watch(epoll, stops, EPOLLIN);
    while (!over) {
        struct epoll_event event;
        OK(epoll_wait(epoll, &event, 1, -1));
    }
    return unused;
}

static void *waits_for_a_time_out(void *unused)
{
    int epoll = OK(epoll_create1(0));
    watch(epoll, watched.server, EPOLLIN);
    while (!over) {
        struct epoll_event event;
        OK(epoll_wait(epoll, &event, 1, 20));
    }
    return unused;
}

static void joins_them(void)
{
    pause_ms(600); /* behind whatever else runs at the end */
    over = true;
    EQUAL(write(stops, &(uint64_t){1}, 8), 8);
    THREAD(pthread_join(waits_long, NULL));
    THREAD(pthread_join(waits_shortly, NULL));
}

/* A destructor or exit handler that ends the program's threads in good order. */
CASE(an_exit_handler_joins_threads_that_wait)
{
    pid_t child = OK(fork());
    if (child == 0) {
        atexit(joins_them); /* before there is a socket: it runs last */
        watched = pair();
        stops = OK(eventfd(0, 0));
        THREAD(pthread_create(&waits_long, NULL, waits_for_the_kernel, NULL));
        THREAD(pthread_create(&waits_shortly, NULL, waits_for_a_time_out, NULL));
        pause_ms(50);
        exit(0);
    }
    ends_well(child);
}
