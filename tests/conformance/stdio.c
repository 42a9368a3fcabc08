/* Streams of the C library on sockets. */
#include "case.h"

static void hears(int fd, const char *text)
{
    char part[4096];
    size_t want = strlen(text), got = 0;
    CHECK(want < sizeof part);
    while (got < want) {
        int more = OK(recv(fd, part + got, want - got, 0));
        CHECK(more > 0);
        got += (size_t)more;
    }
    part[got] = 0;
    if (strcmp(part, text) != 0) FAIL("heard \"%s\", not \"%s\"", part, text);
}

static void says(int fd, const char *text)
{
    EQUAL(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

CASE(a_stream_to_read_and_one_to_write)
{
    struct pair two = pair();
    char line[100];
    FILE *in = fdopen(two.server, "r"), *out = fdopen(OK(dup(two.server)), "w");
    CHECK(in && out);
    EQUAL(fileno(in), two.server);
    EQUAL(fileno_unlocked(out), two.server == 3 ? 5 : fileno(out));
    says(two.client, "GET / HTTP/1.0\r\nHost: x\r\n\r\nrest");
    CHECK(fgets(line, sizeof line, in) == line);
    CHECK(strcmp(line, "GET / HTTP/1.0\r\n") == 0);
    CHECK(fgets(line, sizeof line, in) == line);
    CHECK(fgets(line, sizeof line, in) == line);
    CHECK(strcmp(line, "\r\n") == 0);
    EQUAL(fgetc(in), 'r');
    EQUAL(fread(line, 1, 3, in), 3);
    EQUAL(fprintf(out, "HTTP/1.0 %d %s\r\n", 200, "fine"), 19);
    EQUAL(fputs("\r\n", out) >= 0, 1);
    quiet(two.client); /* it is buffered */
    EQUAL(fflush(out), 0);
    hears(two.client, "HTTP/1.0 200 fine\r\n\r\n");
    EQUAL(fclose(out), 0);
    quiet(two.client); /* the other number is open */
    OK(shutdown(two.client, SHUT_WR));
    EQUAL(fgetc(in), EOF);
    CHECK(feof(in) && !ferror(in));
    EQUAL(fclose(in), 0);
    end_of_stream(two.client);
    FAILS(fcntl(two.server, F_GETFD), EBADF);
}

CASE(what_is_buffered_is_sent_by_fclose)
{
    struct pair two = pair();
    FILE *both = fdopen(two.server, "r+");
    CHECK(both);
    EQUAL(fputs("last words", both) >= 0, 1);
    EQUAL(fclose(both), 0);
    hears(two.client, "last words");
    end_of_stream(two.client);
}

CASE(what_is_buffered_is_sent_by_exit)
{
    struct pair two = pair();
    pid_t child = OK(fork());
    if (child == 0) {
        FILE *out = fdopen(two.server, "w");
        CHECK(out);
        fputs("bye", out);
        exit(0);
    }
    OK(close(two.server));
    hears(two.client, "bye");
    end_of_stream(two.client);
}

CASE(unbuffered_and_by_line)
{
    struct pair two = pair();
    FILE *out = fdopen(two.server, "w");
    CHECK(out);
    EQUAL(setvbuf(out, NULL, _IOLBF, 0), 0);
    fputs("a line\nand", out);
    hears(two.client, "a line\n");
    EQUAL(fflush(out), 0);
    hears(two.client, "and");
    EQUAL(setvbuf(out, NULL, _IONBF, 0), 0);
    fputc('x', out);
    hears(two.client, "x");
    EQUAL(fclose(out), 0);
}

CASE(a_large_text_through_a_small_buffer)
{
    struct pair two = pair();
    enum { LINES = 60000 };
    pid_t child = OK(fork());
    if (child == 0) {
        FILE *out = fdopen(two.server, "w");
        CHECK(out);
        for (int n = 0; n < LINES; n++) CHECK(fprintf(out, "line %d\n", n) > 0);
        EQUAL(fclose(out), 0);
        _exit(0);
    }
    OK(close(two.server));
    FILE *in = fdopen(two.client, "r");
    CHECK(in);
    for (int n = 0; n < LINES; n++) {
        int number = -1;
        EQUAL(fscanf(in, "line %d\n", &number), 1);
        EQUAL(number, n);
    }
    EQUAL(fgetc(in), EOF);
    EQUAL(fclose(in), 0);
}

CASE(errors_of_streams)
{
    struct pair two = pair();
    FILE *in = fdopen(two.server, "r");
    CHECK(in);
    CHECK(fdopen(-1, "r") == NULL && errno == EBADF);
    CHECK(fdopen(two.client, "z") == NULL && errno == EINVAL);
    FAILS(fseek(in, 0, SEEK_SET), ESPIPE);
    FAILS(ftell(in), ESPIPE);
    EQUAL(fputc('x', in), EOF); /* it only reads */
    CHECK(ferror(in));
    clearerr(in);
    nonblocking(two.server);
    errno = 0;
    EQUAL(fgetc(in), EOF);
    CHECK(ferror(in));
    clearerr(in);
    says(two.client, "x");
    EQUAL(ready(two.server, POLLIN, 5000), POLLIN);
    EQUAL(fgetc(in), 'x');
    OK(close(two.client));
    signal(SIGPIPE, SIG_IGN);
    FILE *out = fdopen(OK(dup(two.server)), "w");
    CHECK(out);
    for (int n = 0; n < 50; n++) {
        fputs("into nothing", out);
        if (fflush(out) != 0) break;
        pause_ms(5);
    }
    CHECK(ferror(out));
    fclose(out);
    EQUAL(fclose(in), 0);
}

static void lists(int fd, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    CHECK(vdprintf(fd, format, list) > 0);
    va_end(list);
}

CASE(formatted_text_to_a_number)
{
    struct pair two = pair();
    EQUAL(dprintf(two.server, "plain"), 5);
    hears(two.client, "plain");
    EQUAL(dprintf(two.server, "%d %s %c %ld %u %x %d", 1, "two", '3', 4L, 5u, 6, 7), 15);
    hears(two.client, "1 two 3 4 5 6 7");
    CHECK(dprintf(two.server, "%.2f %.1f %g %g %g %g %g %g %g %d", 1.25, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10) == 25);
    hears(two.client, "1.25 2.5 3 4 5 6 7 8 9 10");
    lists(two.server, "%s-%d-%.1f", "list", 8, 0.5);
    hears(two.client, "list-8-0.5");
    char big[3000];
    memset(big, 'b', sizeof big - 1);
    big[sizeof big - 1] = 0;
    EQUAL(dprintf(two.server, "%s", big), 2999);
    hears(two.client, big);
    EQUAL(dprintf(two.server, "%s", ""), 0);
    FILE *file = tmpfile();
    CHECK(file);
    EQUAL(dprintf(fileno(file), "%s %d %.1f", "a file", 1, 2.0), 12); /* others are libc's */
    FAILS(dprintf(-1, "x"), EBADF);
    EQUAL(fclose(file), 0);
}

CASE(a_stream_that_gets_another_file)
{
    struct pair two = pair();
    FILE *stream = fdopen(two.server, "r+");
    CHECK(stream);
    fputs("before", stream);
    stream = freopen("/dev/null", "w", stream);
    CHECK(stream);
    EQUAL(fileno(stream), two.server);
    hears(two.client, "before");
    end_of_stream(two.client); /* its number is a file's now */
    EQUAL(fputs("nowhere", stream) >= 0, 1);
    EQUAL(fflush(stream), 0);
    FAILS(send(two.server, "x", 1, 0), ENOTSOCK);
    stream = freopen("/etc/passwd", "r", stream);
    CHECK(stream);
    EQUAL(fileno(stream), two.server);
    char line[100];
    CHECK(fgets(line, sizeof line, stream));
    EQUAL(fseek(stream, 0, SEEK_SET), 0);
    EQUAL(ftell(stream), 0);
    EQUAL(fgetc(stream), line[0]);
    EQUAL(fputc('x', stream), EOF);
    EQUAL(fclose(stream), 0);
    FAILS(fcntl(two.server, F_GETFD), EBADF);
}

CASE(a_stream_that_cannot_get_another_file)
{
    struct pair two = pair();
    FILE *stream = fdopen(two.server, "w");
    CHECK(stream);
    fputs("before", stream);
    CHECK(freopen("/no/such/folder/file", "r", stream) == NULL && errno == ENOENT);
    hears(two.client, "before");
    end_of_stream(two.client);
    FAILS(fcntl(two.server, F_GETFD), EBADF);
}

CASE(a_stream_made_before_the_socket_is_connected)
{
    int listener = listener_at(port, 4), fd = tcp(0);
    FILE *both = fdopen(fd, "r+");
    CHECK(both);
    OK(try_connect(fd, own, port));
    int server = take(listener);
    fputs("hello", both);
    EQUAL(fflush(both), 0);
    hears(server, "hello");
    says(server, "there\n");
    char line[20];
    CHECK(fgets(line, sizeof line, both));
    CHECK(strcmp(line, "there\n") == 0);
    EQUAL(fclose(both), 0);
    end_of_stream(server);
}

CASE(streams_that_come_and_go)
{
    int listener = listener_at(port, 16);
    for (int n = 0; n < 1500; n++) {
        struct pair two = pair_by(listener, port);
        FILE *stream = fdopen(two.server, "r+");
        CHECK(stream);
        EQUAL(fprintf(stream, "%d\n", n) > 0, 1);
        EQUAL(fclose(stream), 0);
        if (n % 100 == 0) {
            char text[10];
            snprintf(text, sizeof text, "%d\n", n);
            hears(two.client, text);
            end_of_stream(two.client);
        }
        reset(two.client);
    }
}
