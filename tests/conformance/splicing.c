/* splice between pipes and sockets; tee, vmsplice and sendfile with a socket where none is taken. */
#include "case.h"
#include <sys/sendfile.h>
#include <sys/uio.h>

enum { PIPE = 65536 };

static void make_pipe(int ends[2], int flags)
{
    OK(pipe2(ends, flags));
}

/* The bytes [from, from + count) of the pattern, out of a pipe. */
static void from_pipe(int fd, long from, long count)
{
    unsigned char part[4096];
    while (count > 0) {
        int got = OK(read(fd, part, (size_t)(count < (long)sizeof part ? count : (long)sizeof part)));
        CHECK(got > 0);
        if (!is_pattern(part, from, got)) FAIL("wrong bytes in [%ld, %ld)", from, from + got);
        from += got, count -= got;
    }
}

static void into_pipe(int fd, long from, long count)
{
    unsigned char part[4096];
    while (count > 0) {
        long size = count < (long)sizeof part ? count : (long)sizeof part;
        fill_pattern(part, from, size);
        int put = OK(write(fd, part, (size_t)size));
        from += put, count -= put;
    }
}

CASE(from_a_socket_into_a_pipe)
{
    struct pair two = pair();
    int ends[2];
    make_pipe(ends, 0);
    put(two.client, 0, 1000);
    EQUAL(ready(two.server, POLLIN, 5000), POLLIN);
    EQUAL(splice(two.server, NULL, ends[1], NULL, 400, 0), 400);
    EQUAL(splice(two.server, NULL, ends[1], NULL, 5000, 0), 600);
    from_pipe(ends[0], 0, 1000);
    nonblocking(two.server);
    FAILS(splice(two.server, NULL, ends[1], NULL, 5000, SPLICE_F_NONBLOCK), EAGAIN);
    EQUAL(splice(two.server, NULL, ends[1], NULL, 0, 0), 0);
    OK(shutdown(two.client, SHUT_WR));
    EQUAL(ready(two.server, POLLIN, 5000), POLLIN);
    EQUAL(splice(two.server, NULL, ends[1], NULL, 5000, 0), 0);
}

CASE(from_a_pipe_into_a_socket)
{
    struct pair two = pair();
    int ends[2];
    make_pipe(ends, 0);
    into_pipe(ends[1], 0, 3000);
    EQUAL(splice(ends[0], NULL, two.server, NULL, 1000, 0), 1000);
    EQUAL(splice(ends[0], NULL, two.server, NULL, 5000, SPLICE_F_MORE), 2000);
    get(two.client, 0, 3000);
    FAILS(splice(ends[0], NULL, two.server, NULL, 5000, SPLICE_F_NONBLOCK), EAGAIN);
    OK(close(ends[1]));
    EQUAL(splice(ends[0], NULL, two.server, NULL, 5000, 0), 0);
}

CASE(what_cannot_be_spliced)
{
    struct pair two = pair();
    int ends[2], file = OK(open("/etc/passwd", O_RDONLY));
    off64_t at = 0;
    make_pipe(ends, 0);
    into_pipe(ends[1], 0, 10);
    FAILS(splice(two.server, NULL, two.client, NULL, 10, 0), EINVAL);
    FAILS(splice(file, NULL, two.server, NULL, 10, 0), EINVAL);
    FAILS(splice(ends[0], NULL, two.server, NULL, 10, 0x100), EINVAL);
    FAILS(splice(ends[0], &at, two.server, NULL, 10, 0), ESPIPE);
    FAILS(splice(ends[0], NULL, two.server, &at, 10, 0), EINVAL);
    FAILS(splice(two.server, NULL, ends[1], &at, 10, 0), ESPIPE);
    FAILS(splice(two.server, &at, ends[1], NULL, 10, 0), EINVAL);
    FAILS(splice(-1, NULL, two.server, NULL, 10, 0), EBADF);
    FAILS(splice(two.server, NULL, -1, NULL, 10, 0), EBADF);
    FAILS(tee(ends[0], two.server, 10, 0), EINVAL);
    FAILS(tee(two.server, ends[1], 10, 0), EINVAL);
    struct iovec part = {&at, sizeof at};
    FAILS(vmsplice(two.server, &part, 1, 0), EBADF);
    FAILS(sendfile(two.client, two.server, NULL, 10), EINVAL);
    from_pipe(ends[0], 0, 10); /* nothing of it is lost */
}

CASE(broken_ends)
{
    struct pair two = pair();
    int ends[2], gone[2];
    signal(SIGPIPE, SIG_IGN);
    make_pipe(ends, 0);
    make_pipe(gone, 0);
    put(two.client, 0, 10);
    EQUAL(ready(two.server, POLLIN, 5000), POLLIN);
    OK(close(gone[0]));
    FAILS(splice(two.server, NULL, gone[1], NULL, 10, 0), EPIPE);
    get(two.server, 0, 10);
    OK(shutdown(two.server, SHUT_WR));
    into_pipe(ends[1], 0, 10);
    FAILS(splice(ends[0], NULL, two.server, NULL, 10, 0), EPIPE);
}

static atomic_int pipe_signals;

static void on_sigpipe(int number)
{
    (void)number;
    pipe_signals++;
}

CASE(a_broken_pipe_raises_the_signal)
{
    struct pair two = pair();
    int gone[2], ends[2];
    signal(SIGPIPE, on_sigpipe);
    make_pipe(gone, 0);
    make_pipe(ends, 0);
    put(two.client, 0, 10);
    EQUAL(ready(two.server, POLLIN, 5000), POLLIN);
    OK(close(gone[0]));
    FAILS(splice(two.server, NULL, gone[1], NULL, 10, 0), EPIPE);
    EQUAL(pipe_signals, 1);
    OK(shutdown(two.server, SHUT_WR));
    into_pipe(ends[1], 0, 10);
    FAILS(splice(ends[0], NULL, two.server, NULL, 10, 0), EPIPE);
    CHECK(pipe_signals == 2 || pipe_signals == 1); /* it depends on the kernel's age for a socket */
}

CASE(a_full_pipe_leaves_the_bytes_in_the_socket)
{
    struct pair two = pair();
    int ends[2];
    long moved = 0;
    make_pipe(ends, O_NONBLOCK);
    put(two.client, 0, 2 * PIPE);
    pause_ms(50);
    nonblocking(two.server);
    for (;;) {
        ssize_t got = splice(two.server, NULL, ends[1], NULL, 2 * PIPE, SPLICE_F_NONBLOCK);
        if (got < 0) break;
        moved += got;
    }
    CHECK(errno == EAGAIN && moved > 0 && moved <= 2 * PIPE);
    OK(fcntl(two.server, F_SETFL, 0));
    from_pipe(ends[0], 0, moved);
    get(two.server, moved, 2 * PIPE - moved);
}

CASE(a_full_socket_leaves_the_bytes_in_the_pipe)
{
    struct pair two = pair();
    int ends[2];
    make_pipe(ends, 0);
    nonblocking(two.server);
    long sent = fill(two.server), moved = 0;
    into_pipe(ends[1], sent, 20000);
    for (;;) {
        ssize_t got = splice(ends[0], NULL, two.server, NULL, 20000, SPLICE_F_NONBLOCK);
        if (got < 0) break;
        moved += got;
        CHECK(moved <= 20000);
        if (moved == 20000) break;
    }
    CHECK(moved == 20000 || errno == EAGAIN);
    get(two.client, 0, sent + moved);
    from_pipe(ends[0], sent + moved, 20000 - moved);
}

/* A proxy: everything that one connection says goes to the other through a pipe. */
CASE(a_proxy_of_eight_megabytes)
{
    enum { ALL = 8 << 20 };
    struct pair in = pair(), out = pair_by(listener_at(port + 100, 4), port + 100);
    int ends[2];
    make_pipe(ends, 0);
    pid_t source = OK(fork());
    if (source == 0) {
        put(in.client, 0, ALL);
        OK(shutdown(in.client, SHUT_WR));
        _exit(0);
    }
    pid_t sink = OK(fork());
    if (sink == 0) {
        OK(close(out.server));
        get(out.client, 0, ALL);
        end_of_stream(out.client);
        _exit(0);
    }
    long moved = 0;
    for (;;) {
        int got = OK(splice(in.server, NULL, ends[1], NULL, PIPE, SPLICE_F_MOVE | SPLICE_F_MORE));
        if (got == 0) break;
        moved += got;
        while (got > 0) got -= OK(splice(ends[0], NULL, out.server, NULL, (size_t)got, SPLICE_F_MOVE));
    }
    EQUAL(moved, ALL);
    OK(shutdown(out.server, SHUT_WR));
    int status;
    EQUAL(waitpid(source, &status, 0), source);
    EQUAL(status, 0);
    EQUAL(waitpid(sink, &status, 0), sink);
    EQUAL(status, 0);
}

static int one_pipe[2], one_socket;

static void *writes_late(void *how)
{
    pause_ms(30);
    if (how)
        into_pipe(one_pipe[1], 0, 5);
    else
        put(one_socket, 0, 5);
    return NULL;
}

CASE(it_waits_for_either_end)
{
    struct pair two = pair();
    pthread_t thread;
    make_pipe(one_pipe, 0);
    one_socket = two.client;
    THREAD(pthread_create(&thread, NULL, writes_late, NULL));
    EQUAL(splice(two.server, NULL, one_pipe[1], NULL, 100, 0), 5);
    THREAD(pthread_join(thread, NULL));
    from_pipe(one_pipe[0], 0, 5);
    THREAD(pthread_create(&thread, NULL, writes_late, one_pipe));
    EQUAL(splice(one_pipe[0], NULL, two.server, NULL, 100, 0), 5);
    THREAD(pthread_join(thread, NULL));
    get(two.client, 0, 5);
}
