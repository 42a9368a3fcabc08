/* Descriptor numbers: dup and its kin, flags, close_range, closefrom, numbers reused behind our back, no leaks. */
#include "case.h"
#include <dirent.h>
#include <sys/syscall.h>

static void pass(int from, int to)
{
    put(from, 0, 10);
    get(to, 0, 10);
}

CASE(a_dup_is_the_same_socket)
{
    struct pair two = pair();
    int other = OK(dup(two.server));
    CHECK(other != two.server);
    pass(other, two.client);
    pass(two.client, other);
    OK(close(two.server));
    pass(two.client, other);
    pass(other, two.client);
    quiet(two.client); /* no FIN yet */
    OK(close(other));
    end_of_stream(two.client);
}

CASE(dup2_over_a_socket_closes_it)
{
    int listener = listener_at(port, 4);
    struct pair first = pair_by(listener, port), second = pair_by(listener, port);
    EQUAL(dup2(second.server, first.server), first.server);
    end_of_stream(first.client);
    pass(second.client, first.server);
    OK(close(second.server));
    pass(first.server, second.client);
    EQUAL(dup2(first.server, first.server), first.server);
    pass(first.server, second.client);
}

CASE(dup2_to_a_number_that_is_free_and_over_other_kinds)
{
    struct pair two = pair();
    int file = OK(open("/etc/passwd", O_RDONLY));
    EQUAL(dup2(two.server, 200), 200);
    pass(200, two.client);
    EQUAL(dup2(two.server, file), file);
    pass(file, two.client);
    int other = OK(open("/etc/passwd", O_RDONLY)), ends[2];
    EQUAL(dup2(other, 200), 200); /* a file over a socket */
    char word[5] = "";
    EQUAL(read(200, word, 4), 4);
    EQUAL(strcmp(word, "root"), 0);
    OK(pipe(ends));
    EQUAL(dup2(ends[1], file), file);
    EQUAL(write(file, "x", 1), 1);
    EQUAL(read(ends[0], word, 4), 1);
    pass(two.server, two.client);
    FAILS(dup2(-1, 5), EBADF);
    FAILS(dup2(two.server, -1), EBADF);
    FAILS(dup2(two.server, 10000000), EBADF);
    FAILS(dup(-1), EBADF);
}

CASE(dup3_and_its_flags)
{
    struct pair two = pair();
    EQUAL(dup3(two.server, 201, O_CLOEXEC), 201);
    EQUAL(fcntl(201, F_GETFD), FD_CLOEXEC);
    EQUAL(fcntl(two.server, F_GETFD), 0);
    pass(201, two.client);
    FAILS(dup3(two.server, two.server, 0), EINVAL);
    FAILS(dup3(two.server, 201, O_NONBLOCK), EINVAL);
    EQUAL(dup3(two.server, 201, 0), 201);
    EQUAL(fcntl(201, F_GETFD), 0);
    pass(two.client, 201);
}

CASE(dupfd_from_a_number_on)
{
    struct pair two = pair();
    int other = OK(fcntl(two.server, F_DUPFD, 300)), closing = OK(fcntl(two.server, F_DUPFD_CLOEXEC, 300));
    EQUAL(other, 300);
    EQUAL(closing, 301);
    EQUAL(fcntl(other, F_GETFD), 0);
    EQUAL(fcntl(closing, F_GETFD), FD_CLOEXEC);
    pass(closing, two.client);
    OK(close(two.server));
    OK(close(other));
    pass(two.client, closing);
    FAILS(fcntl(closing, F_DUPFD, -1), EINVAL);
}

CASE(status_flags_are_shared_by_dups)
{
    struct pair two = pair();
    int other = OK(dup(two.server)), on = 1, off = 0;
    char byte;
    EQUAL(fcntl(other, F_GETFL), O_RDWR);
    OK(fcntl(two.server, F_SETFL, O_NONBLOCK));
    EQUAL(fcntl(other, F_GETFL), O_RDWR | O_NONBLOCK);
    FAILS(recv(other, &byte, 1, 0), EAGAIN);
    OK(ioctl(other, FIONBIO, &off));
    EQUAL(fcntl(two.server, F_GETFL), O_RDWR);
    OK(ioctl(two.server, FIONBIO, &on));
    EQUAL(fcntl(other, F_GETFL), O_RDWR | O_NONBLOCK);
    FAILS(read(other, &byte, 1), EAGAIN);
    OK(fcntl(other, F_SETFD, FD_CLOEXEC)); /* but this one is the number's own */
    EQUAL(fcntl(two.server, F_GETFD), 0);
    EQUAL(fcntl(other, F_GETFD), FD_CLOEXEC);
    OK(fcntl(other, F_SETFD, 0));
    EQUAL(fcntl(other, F_GETFD), 0);
    FAILS(fcntl(other, 9999), EINVAL);
}

CASE(flags_given_at_birth)
{
    int fd = tcp(SOCK_NONBLOCK | SOCK_CLOEXEC);
    EQUAL(fcntl(fd, F_GETFL), O_RDWR | O_NONBLOCK);
    EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    int listener = listener_at(port, 4);
    FAILS(try_connect(fd, own, port), EINPROGRESS);
    EQUAL(ready(fd, POLLOUT, 5000), POLLOUT);
    EQUAL(fcntl(fd, F_GETFL), O_RDWR | O_NONBLOCK);
    EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    take(listener);
    struct stat what;
    OK(fstat(fd, &what));
    CHECK(S_ISSOCK(what.st_mode));
}

CASE(a_closed_number_is_ebadf_for_every_call)
{
    struct pair two = pair();
    int fd = two.server, value = 0;
    char byte = 0;
    struct sockaddr_in name = at(own, port);
    socklen_t size = sizeof name;
    OK(close(fd));
    FAILS(close(fd), EBADF);
    FAILS(recv(fd, &byte, 1, 0), EBADF);
    FAILS(send(fd, &byte, 1, 0), EBADF);
    FAILS(read(fd, &byte, 1), EBADF);
    FAILS(write(fd, &byte, 1), EBADF);
    FAILS(bind(fd, (struct sockaddr *)&name, size), EBADF);
    FAILS(listen(fd, 1), EBADF);
    FAILS(accept(fd, NULL, NULL), EBADF);
    FAILS(connect(fd, (struct sockaddr *)&name, size), EBADF);
    FAILS(shutdown(fd, SHUT_RDWR), EBADF);
    FAILS(getsockname(fd, (struct sockaddr *)&name, &size), EBADF);
    FAILS(getpeername(fd, (struct sockaddr *)&name, &size), EBADF);
    size = sizeof value;
    FAILS(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &size), EBADF);
    FAILS(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, size), EBADF);
    FAILS(fcntl(fd, F_GETFL), EBADF);
    FAILS(ioctl(fd, FIONREAD, &value), EBADF);
    FAILS(dup(fd), EBADF);
    end_of_stream(two.client);
}

CASE(close_range_closes_sockets)
{
    int listener = listener_at(port, 8);
    struct pair all[3];
    for (int n = 0; n < 3; n++) {
        all[n] = pair_by(listener, port);
        EQUAL(dup2(all[n].server, 400 + n), 400 + n);
        OK(close(all[n].server));
    }
    OK(close_range(400, 401, 0));
    end_of_stream(all[0].client);
    end_of_stream(all[1].client);
    pass(402, all[2].client);
    OK(close_range(402, 402, CLOSE_RANGE_CLOEXEC));
    EQUAL(fcntl(402, F_GETFD), FD_CLOEXEC);
    pass(402, all[2].client);
    FAILS(close_range(402, 401, 0), EINVAL);
    OK(close_range(402, ~0u, 0));
    end_of_stream(all[2].client);
}

CASE(closefrom_closes_sockets)
{
    struct pair two = pair();
    EQUAL(dup2(two.server, 500), 500);
    OK(close(two.server));
    closefrom(450);
    end_of_stream(two.client);
    FAILS(fcntl(500, F_GETFL), EBADF);
    struct pair more = pair(); /* and new ones can be made */
    pass(more.client, more.server);
    closefrom(3);
    more = pair();
    pass(more.server, more.client);
}

CASE(a_number_closed_by_fclose_and_reused)
{
    int listener = listener_at(port, 8);
    for (int n = 0; n < 20; n++) {
        FILE *file = fopen("/etc/passwd", "r");
        CHECK(file);
        int number = fileno(file);
        EQUAL(fclose(file), 0);
        int client = dial(port), server;
        EQUAL(client, number);
        server = take(listener);
        pass(client, server);
        FILE *stream = fdopen(client, "r+"); /* glibc closes it without calling close() */
        CHECK(stream);
        EQUAL(fclose(stream), 0);
        end_of_stream(server);
        OK(close(server));
        int again = dial(port);
        EQUAL(again, number);
        server = take(listener);
        pass(again, server);
        pass(server, again);
        OK(close(again));
        OK(close(server));
    }
}

CASE(a_number_closed_by_a_raw_call_and_reused)
{
    int listener = listener_at(port, 4), ends[2];
    struct pair two = pair_by(listener, port);
    int number = two.server;
    EQUAL(syscall(SYS_close, number), 0);
    OK(pipe(ends));
    EQUAL(ends[0], number);
    end_of_stream(two.client); /* at the latest now: nobody can see a raw close */
    EQUAL(write(ends[1], "ab", 2), 2);
    char bytes[4];
    EQUAL(read(number, bytes, 4), 2); /* the pipe, not the old socket */
    FAILS(send(number, "x", 1, 0), ENOTSOCK);
    OK(close(number));
    OK(close(ends[1]));
    two = pair_by(listener, port);
    number = two.server;
    EQUAL(syscall(SYS_close, number), 0);
    int file = OK(open("/etc/passwd", O_RDONLY));
    EQUAL(file, number);
    EQUAL(read(file, bytes, 4), 4);
    EQUAL(memcmp(bytes, "root", 4), 0);
}

static int numbers_in_use(void)
{
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder);
    int count = 0;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

CASE(a_thousand_cycles_leave_nothing)
{
    int listener = listener_at(port, 16), before = 0;
    for (int n = 0; n < 1000; n++) {
        struct pair two = pair_by(listener, port);
        int other = OK(dup(two.client));
        OK(close(two.client));
        OK(close(tcp(0)));
        if (n % 2) pass(other, two.server);
        OK(close(other));
        OK(close(two.server));
        if (n == 20) before = numbers_in_use(); /* our own descriptors are there by now */
    }
    EQUAL(numbers_in_use(), before);
}

static int lowest_free(void)
{
    int number = OK(dup(0));
    OK(close(number));
    return number;
}

CASE(numbers_are_the_lowest_free_ones)
{
    int first = lowest_free(), listener = listener_at(port, 128), last = listener;
    EQUAL(listener, first);
    for (int n = 0; n < 200; n++) {
        int next = lowest_free(), client = dial(port);
        EQUAL(client, next);
        next = lowest_free();
        last = take(listener);
        EQUAL(last, next);
    }
    CHECK(last < 1024); /* select() works with all of them */
    OK(close(first + 1));
    EQUAL(tcp(0), first + 1);
}

CASE(sockopts_in_every_state)
{
    int fd = tcp(0), value = 0, on = 1, kinds[] = {SO_KEEPALIVE, SO_REUSEADDR, SO_RCVBUF, SO_SNDBUF};
    socklen_t size = sizeof value;
    OK(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &size));
    EQUAL(value, SOCK_STREAM);
    OK(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &size));
    EQUAL(value, AF_INET);
    FAILS(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, 1), EINVAL);
    FAILS(setsockopt(fd, SOL_SOCKET, 9999, &on, sizeof on), ENOPROTOOPT);
    FAILS(getsockopt(fd, IPPROTO_TCP, 9999, &value, &size), ENOPROTOOPT);
    int segment = 1400;
    OK(setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment));
    int listener = listener_at(port, 4);
    OK(setsockopt(listener, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment));
    struct pair two = pair_by(listener, port), dead = pair_by(listener, port);
    reset(dead.client);
    EQUAL(ready(dead.server, 0, 5000), POLLERR | POLLHUP);
    int all[] = {fd, listener, two.client, two.server, dead.server};
    for (int n = 0; n < 5; n++) {
        for (int kind = 0; kind < 4; kind++) {
            int asked = kind < 2 ? 1 : 65536;
            OK(setsockopt(all[n], SOL_SOCKET, kinds[kind], &asked, sizeof asked));
            OK(getsockopt(all[n], SOL_SOCKET, kinds[kind], &value, &size));
            EQUAL(value, kind < 2 ? 1 : 131072); /* Linux doubles it */
        }
        OK(setsockopt(all[n], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
        OK(getsockopt(all[n], IPPROTO_TCP, TCP_NODELAY, &value, &size));
        EQUAL(value, 1);
        int seconds = 77;
        OK(setsockopt(all[n], IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds));
        OK(getsockopt(all[n], IPPROTO_TCP, TCP_KEEPIDLE, &value, &size));
        EQUAL(value, 77);
        OK(setsockopt(all[n], IPPROTO_IP, IP_RECVERR, &on, sizeof on));
    }
    pass(two.client, two.server);
}
