/* Two processes read one descriptor, one of them is killed at random and replaced: no byte is read twice, none hangs. */
#include "case.h"

enum { CHUNK = 4096 };
#define STREAM_MAX (512L << 20)

/* What the readers share: a bit for each byte of the stream that somebody has read. */
static atomic_uchar *seen;
static atomic_long *count;

/* The stream is a row of four-byte numbers, seven bits in a byte, the first byte marked: any seven bytes tell their place. */
static unsigned char stream(long position)
{
    long number = position / 4;
    int which = (int)(position % 4);
    return (unsigned char)((number >> (7 * (3 - which)) & 127) | (which == 0 ? 128 : 0));
}

static void marks(const unsigned char *bytes, long got)
{
    long first = 0;
    while (first < got && !(bytes[first] & 128)) first++;
    if (first + 4 > got) FAIL("a chunk of %ld bytes tells no place", got);
    long number = 0;
    for (int n = 0; n < 4; n++) number = number << 7 | (bytes[first + n] & 127);
    long from = number * 4 - first;
    CHECK(from >= 0 && from + got <= STREAM_MAX);
    for (long n = 0; n < got; n++) {
        if (bytes[n] != stream(from + n)) FAIL("byte %ld is wrong", from + n);
        unsigned bit = 1u << ((from + n) % 8);
        if (atomic_fetch_or(&seen[(from + n) / 8], (unsigned char)bit) & bit) FAIL("byte %ld is read twice", from + n);
    }
    *count += got;
}

static pid_t reader(int fd, int other)
{
    pid_t child = OK(fork());
    if (child == 0) {
        unsigned char bytes[CHUNK];
        long got;
        OK(close(other));
        while ((got = OK(recv(fd, bytes, CHUNK, 0))) > 0) marks(bytes, got);
        _exit(0);
    }
    return child;
}

static pid_t writer(int fd, int other, int stop, atomic_long *sent)
{
    pid_t child = OK(fork());
    if (child == 0) {
        static unsigned char bytes[16384];
        OK(close(other));
        while (!ready(stop, POLLIN, 1) && *sent < STREAM_MAX) {
            for (int n = 0; n < (int)sizeof bytes; n++) bytes[n] = stream(*sent + n);
            EQUAL(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
            *sent += (long)sizeof bytes;
        }
        _exit(0);
    }
    return child;
}

CASE_FOR(a_reader_is_killed_at_random_and_replaced, 120)
{
    int rounds = long_run() ? 1000 : 50, stop[2];
    unsigned seed = (unsigned)getpid();
    dprintf(1, "# seed %u\n", seed);
    seen = mmap(NULL, STREAM_MAX / 8 + 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(seen != MAP_FAILED);
    count = (atomic_long *)((char *)seen + STREAM_MAX / 8);
    atomic_long *sent = count + 1;
    OK(pipe(stop));
    struct pair two = pair();
    pid_t source = writer(two.client, two.server, stop[0], sent), readers[2];
    OK(close(two.client));
    for (int n = 0; n < 2; n++) readers[n] = reader(two.server, stop[1]);
    for (int round = 0; round < rounds; round++) {
        int victim = rand_r(&seed) % 2;
        struct timespec nap = {0, 200000 + rand_r(&seed) % 5000000};
        nanosleep(&nap, NULL);
        OK(kill(readers[victim], SIGKILL));
        EQUAL(waitpid(readers[victim], NULL, 0), readers[victim]);
        CHECK(!shared->failed);
        long before = *count;
        if (round % 10 == 9) /* the other one goes on reading, alone */
            for (long end = now_ms() + 5000; *count == before;)
                if (now_ms() > end) FAIL("round %d: the other reader hangs", round);
        readers[victim] = reader(two.server, stop[1]);
    }
    CHECK(write(stop[1], "x", 1) == 1);
    ends_well(source);
    OK(close(two.server));
    for (int n = 0; n < 2; n++) ends_well(readers[n]);
    CHECK(*count <= *sent);
    long lost = *sent - *count; /* what the killed ones had read and not told */
    if (lost > (long)rounds * CHUNK) FAIL("%ld of %ld bytes are lost in %d rounds", lost, (long)*sent, rounds);
}
