/* Sockets and epolls that live on in a program that is executed: inetd, socket activation, a binary that executes its successor.
 *
 * The program executes itself as `PROGRAM part NAME ADDRESS PORT NUMBER...`; a part ends with status 0, or says on stderr why
 * not.
 */
#include "case.h"
#include "events.h"
#include <spawn.h>
#include <sys/syscall.h>

extern char **environ;

enum { WORDS = 12 };

/* The words of a part. */
static char **words(const char *name, int count, const int *numbers)
{
    static char *list[WORDS], text[WORDS][24];
    CHECK(count < WORDS - 6);
    list[0] = "part-of-executing";
    list[1] = "part";
    list[2] = (char *)name;
    list[3] = (char *)own;
    snprintf(text[0], sizeof text[0], "%d", port);
    list[4] = text[0];
    for (int n = 0; n < count; n++) {
        snprintf(text[n + 1], sizeof text[0], "%d", numbers[n]);
        list[5 + n] = text[n + 1];
    }
    list[5 + count] = NULL;
    return list;
}

#define WORDS_OF(name, ...) words(name, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__})

static const char *myself(void)
{
    static char path[512];
    ssize_t size = OK(readlink("/proc/self/exe", path, sizeof path - 1));
    path[size] = 0;
    return path;
}

static void become(const char *name, int number)
{
    execv(myself(), WORDS_OF(name, number));
    FAIL("execv: %s", errno_name(errno));
}

static void ends_well(pid_t child)
{
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
}

/* --- the parts --- */

/* Bytes 0 to 99 come, some of them before exec; it sends as many. */
static void part_echo(int fd)
{
    struct sockaddr_in name;
    socklen_t size = sizeof name;
    OK(getpeername(fd, (struct sockaddr *)&name, &size));
    EQUAL(size, sizeof name);
    EQUAL(so_error(fd), 0);
    get(fd, 0, 100);
    put(fd, 0, 100);
    OK(close(fd));
}

static void part_serve(int listener)
{
    int on = 0;
    socklen_t size = sizeof on;
    OK(getsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &on, &size));
    EQUAL(on, 1);
    for (int n = 0; n < 2; n++) {
        int fd = OK(accept(listener, NULL, NULL));
        get(fd, 0, 10);
        put(fd, 0, 10);
        OK(close(fd));
    }
}

/* A connection is registered edge-triggered with 7 as its data, a pipe with 8. */
static void part_epoll(int epoll)
{
    struct epoll_event events[4];
    EQUAL(epoll_wait(epoll, events, 4, 10000), 1);
    EQUAL(events[0].data.u64, 7);
    EVENT(events[0].events, EPOLLIN);
    EQUAL(epoll_wait(epoll, events, 4, 0), 0);
    put(3, 0, 1); /* the peer answers */
    EQUAL(epoll_wait(epoll, events, 4, 10000), 1);
    EQUAL(events[0].data.u64, 7);
    get(3, 0, 2);
    EQUAL(write(5, "x", 1), 1);
    EQUAL(epoll_wait(epoll, events, 4, 10000), 1);
    EQUAL(events[0].data.u64, 8);
    OK(change(epoll, EPOLL_CTL_DEL, 3, 0, 0));
}

/* Executes itself until its number is 0, and hands a stream on that never stops. */
static void part_relay(int times)
{
    unsigned char part[4096];
    long *done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, 4, 0);
    CHECK(done != MAP_FAILED);
    for (long n = 0; times == 0 || n < 20; n++) {
        int got = OK(recv(3, part, sizeof part, 0));
        if (got == 0) break;
        CHECK(is_pattern(part, *done, got));
        *done += got;
    }
    if (times > 0) become("relay", times - 1);
    put(3, 0, 1);
}

/* Bound before exec, listened on behind it. */
static void part_listen(int fd)
{
    OK(listen(fd, 4));
    put(1, 0, 1);
    int one = OK(accept(fd, NULL, NULL));
    get(one, 0, 10);
    put(one, 0, 10);
}

static void part_closed(int fd)
{
    FAILS(fcntl(fd, F_GETFD), EBADF);
}

static void part_stdio(int unused)
{
    (void)unused;
    unsigned char bytes[100];
    long done = 0;
    while (done < 100) {
        int got = OK(read(0, bytes + done, (size_t)(100 - done)));
        CHECK(got > 0);
        done += got;
    }
    CHECK(is_pattern(bytes, 0, 100));
    EQUAL(write(1, bytes, 100), 100);
}

/* Through a shell and once more. */
static void part_again(int fd)
{
    execv(myself(), WORDS_OF("echo", fd));
    FAIL("execv: %s", errno_name(errno));
}

static void part_accept_there(int listener)
{
    struct sockaddr_in name;
    socklen_t size = sizeof name;
    OK(getsockname(listener, (struct sockaddr *)&name, &size));
    EQUAL(ntohs(name.sin_port), port);
    pid_t child = OK(fork());
    if (child == 0) {
        int fd = OK(accept(listener, NULL, NULL));
        part_echo(fd);
        _exit(0);
    }
    ends_well(child);
}

static void part_blocking(int fd)
{
    EQUAL(OK(fcntl(fd, F_GETFL)) & O_NONBLOCK, O_NONBLOCK);
    int on = 0;
    socklen_t size = sizeof on;
    OK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &size));
    CHECK(on != 0);
    char byte;
    FAILS(recv(fd, &byte, 1, 0), EAGAIN);
    put(fd, 0, 1);
}

static int receive(int over)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control};
    EQUAL(recvmsg(over, &message, 0), 1);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    CHECK(head && head->cmsg_type == SCM_RIGHTS);
    int fd;
    memcpy(&fd, CMSG_DATA(head), sizeof fd);
    return fd;
}

static void pass(int over, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    char byte = 'p';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    EQUAL(sendmsg(over, &message, 0), 1);
}

/* A program with epolls of its own gets a connection, and later a listener. */
static void part_receive(int over)
{
    int first = OK(epoll_create1(0)), second = OK(epoll_create1(0)), way[2], undecided = tcp(0);
    OK(pipe(way));
    OK(change(first, EPOLL_CTL_ADD, way[0], EPOLLIN, 5));
    OK(change(second, EPOLL_CTL_ADD, over, EPOLLIN, 6));
    OK(change(second, EPOLL_CTL_ADD, undecided, EPOLLOUT, 9));
    struct epoll_event events[4];
    EQUAL(epoll_wait(second, events, 4, 10000) > 0, 1);
    int fd = receive(over);
    OK(change(first, EPOLL_CTL_ADD, fd, EPOLLIN, 7));
    EQUAL(epoll_wait(first, events, 4, 10000), 1);
    EQUAL(events[0].data.u64, 7);
    get(fd, 0, 100);
    put(fd, 0, 100);
    EQUAL(epoll_wait(first, events, 4, 0), 0);
    EQUAL(write(way[1], "x", 1), 1);
    EQUAL(epoll_wait(first, events, 4, 10000), 1);
    EQUAL(events[0].data.u64, 5);
    int listener = receive(over);
    OK(change(second, EPOLL_CTL_DEL, over, 0, 0));
    OK(change(second, EPOLL_CTL_ADD, listener, EPOLLIN, 8));
    OK(try_bind(undecided, own, port + 1));
    OK(listen(undecided, 4));
    OK(change(second, EPOLL_CTL_MOD, undecided, EPOLLIN, 10));
    put(over, 0, 1);
    for (int n = 0; n < 2; n++) {
        EQUAL(epoll_wait(second, events, 4, 10000), 1);
        EQUAL(events[0].data.u64, n ? 10 : 8);
        int one = OK(accept(n ? undecided : listener, NULL, NULL));
        get(one, 0, 10);
        put(one, 0, 10);
        OK(close(one));
    }
    OK(close(fd));
}

__attribute__((constructor)) static void part(int count, char **list)
{
    static const struct {
        const char *name;
        void (*run)(int);
    } parts[] = {{"echo", part_echo},   {"serve", part_serve},   {"epoll", part_epoll}, {"relay", part_relay},
                 {"listen", part_listen}, {"closed", part_closed}, {"stdio", part_stdio}, {"again", part_again},
                 {"accept", part_accept_there}, {"flags", part_blocking}, {"receive", part_receive}};
    if (count < 6 || strcmp(list[1], "part") != 0) return;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    own = address = list[3];
    port = atoi(list[4]);
    for (size_t n = 0; n < sizeof parts / sizeof *parts; n++) {
        if (strcmp(parts[n].name, list[2]) != 0) continue;
        pid_t child = fork(); /* to say why it failed */
        if (child == 0) {
            parts[n].run(atoi(list[5]));
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        if (status) fprintf(stderr, "part %s: %s\n", list[2], shared->why);
        _exit(status ? 1 : 0);
    }
    _exit(2);
}

/* --- the cases --- */

typedef void how(int fd);

static void by_execv(int fd)
{
    execv(myself(), WORDS_OF("echo", fd));
}

static void by_execve(int fd)
{
    execve(myself(), WORDS_OF("echo", fd), environ);
}

static void by_execvp(int fd)
{
    execvp(myself(), WORDS_OF("echo", fd));
}

static void by_execvpe(int fd)
{
    execvpe(myself(), WORDS_OF("echo", fd), environ);
}

static void by_fexecve(int fd)
{
    fexecve(OK(open(myself(), O_RDONLY | O_CLOEXEC)), WORDS_OF("echo", fd), environ);
}

static void by_execveat(int fd)
{
    execveat(OK(open("/", O_PATH | O_CLOEXEC)), myself() + 1, WORDS_OF("echo", fd), environ, 0);
}

static void by_execl(int fd)
{
    char **list = WORDS_OF("echo", fd);
    execl(myself(), list[0], list[1], list[2], list[3], list[4], list[5], NULL);
}

static void by_execlp(int fd)
{
    char **list = WORDS_OF("echo", fd);
    execlp(myself(), list[0], list[1], list[2], list[3], list[4], list[5], NULL);
}

static void by_execle(int fd)
{
    char **list = WORDS_OF("echo", fd);
    execle(myself(), list[0], list[1], list[2], list[3], list[4], list[5], NULL, environ);
}

/* A cleared environment, as nginx gives its successor. */
static void by_empty_environment(int fd)
{
    execve(myself(), WORDS_OF("echo", fd), (char *[]){"TZ=UTC", NULL});
}

static void by_shell(int fd)
{
    char command[700];
    snprintf(command, sizeof command, "exec '%s' part again %s %d %d", myself(), own, port, fd);
    execl("/bin/sh", "sh", "-c", command, NULL);
}

/* The connection is only the child's when it executes, and has bytes then. */
static void lives_on(how *exec)
{
    int go[2];
    struct pair two = pair();
    OK(pipe(go));
    pid_t child = OK(fork());
    if (child == 0) {
        char byte;
        OK(close(two.client));
        OK(close(go[1]));
        EQUAL(read(go[0], &byte, 1), 1);
        exec(two.server);
        FAIL("exec: %s", errno_name(errno));
    }
    OK(close(two.server));
    put(two.client, 0, 60);
    EQUAL(write(go[1], "g", 1), 1);
    put(two.client, 60, 40);
    get(two.client, 0, 100);
    end_of_stream(two.client);
    ends_well(child);
}

CASE(execv_hands_a_connection_over) { lives_on(by_execv); }
CASE(execve_hands_a_connection_over) { lives_on(by_execve); }
CASE(execvp_hands_a_connection_over) { lives_on(by_execvp); }
CASE(execvpe_hands_a_connection_over) { lives_on(by_execvpe); }
CASE(fexecve_hands_a_connection_over) { lives_on(by_fexecve); }
CASE(execveat_hands_a_connection_over) { lives_on(by_execveat); }
CASE(execl_hands_a_connection_over) { lives_on(by_execl); }
CASE(execlp_hands_a_connection_over) { lives_on(by_execlp); }
CASE(execle_hands_a_connection_over) { lives_on(by_execle); }
CASE(a_cleared_environment_hands_a_connection_over) { lives_on(by_empty_environment); }
CASE(a_shell_hands_a_connection_over) { lives_on(by_shell); }

CASE(a_listener_is_handed_over_with_its_queue)
{
    int listener = listener_at(port, 4);
    int before = dial(port); /* waits in the queue */
    put(before, 0, 5);
    pid_t child = OK(fork());
    if (child == 0) {
        OK(close(before));
        become("serve", listener);
    }
    OK(close(listener));
    put(before, 5, 5);
    get(before, 0, 10);
    int behind = dial(port);
    put(behind, 0, 10);
    get(behind, 0, 10);
    ends_well(child);
    atomic_fetch_add(&shared->connections, 2);
    for (long end = now_ms() + 10000;;) { /* nobody has it any more, a moment after the process */
        int late = tcp(0);
        if (try_connect(late, own, port) < 0) {
            CHECK(errno == ECONNREFUSED);
            break;
        }
        CHECK(now_ms() < end);
        OK(close(late));
        pause_ms(5);
    }
}

CASE(an_epoll_is_handed_over_with_what_it_watches)
{
    int way[2];
    struct pair two = pair();
    pid_t child = OK(fork());
    if (child == 0) {
        OK(close(two.client));
        OK(dup2(two.server, 100));
        OK(dup2(100, 3));
        OK(close(100));
        OK(pipe(way));
        OK(dup2(way[0], 4) < 0 ? -1 : dup2(way[1], 105));
        OK(dup2(105, 5));
        int epoll = OK(epoll_create1(0));
        OK(change(epoll, EPOLL_CTL_ADD, 3, EPOLLIN | EPOLLET, 7));
        OK(change(epoll, EPOLL_CTL_ADD, 4, EPOLLIN, 8));
        become("epoll", epoll);
    }
    OK(close(two.server));
    put(two.client, 0, 1);
    get(two.client, 0, 1);
    put(two.client, 1, 1);
    ends_well(child);
}

CASE(close_on_exec_closes)
{
    struct pair two = pair();
    OK(fcntl(two.server, F_SETFD, FD_CLOEXEC));
    pid_t child = OK(fork());
    if (child == 0) {
        OK(close(two.client));
        become("closed", two.server);
    }
    OK(close(two.server));
    end_of_stream(two.client);
    ends_well(child);
}

CASE(flags_and_options_are_handed_over)
{
    struct pair two = pair();
    int on = 1;
    OK(setsockopt(two.server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    nonblocking(two.server);
    pid_t child = OK(fork());
    if (child == 0) {
        OK(close(two.client));
        become("flags", two.server);
    }
    get(two.client, 0, 1);
    ends_well(child);
}

CASE(exec_that_fails_changes_nothing)
{
    struct pair two = pair();
    for (int n = 0; n < 20; n++) {
        FAILS(execv("/nowhere", WORDS_OF("echo", two.server)), ENOENT);
        FAILS(execv("/proc/self/maps", WORDS_OF("echo", two.server)), EACCES);
    }
    put(two.client, 0, 10);
    get(two.server, 0, 10);
    put(two.server, 0, 10);
    get(two.client, 0, 10);
    OK(close(two.server));
    end_of_stream(two.client);
}

CASE_FOR(a_stream_goes_on_through_many_programs, 60)
{
    struct pair two = pair();
    int memory = OK(memfd_create("done", 0));
    OK(ftruncate(memory, 4096));
    enum { TIMES = 5 };
    pid_t child = OK(fork());
    if (child == 0) {
        OK(close(two.client));
        OK(dup2(memory, 104));
        OK(dup2(two.server, 103));
        OK(dup2(103, 3));
        OK(dup2(104, 4));
        for (int fd = 5; fd < 120; fd++) close(fd);
        become("relay", TIMES);
    }
    OK(close(two.server));
    put(two.client, 0, 1500000);
    OK(shutdown(two.client, SHUT_WR));
    get(two.client, 0, 1);
    ends_well(child);
    long *done = mmap(NULL, 4096, PROT_READ, MAP_SHARED, memory, 0);
    EQUAL(*done, 1500000);
}

/* What inetd and its kin do: the connection becomes 0 and 1. */
static void inetd(pid_t (*start)(int fd))
{
    struct pair two = pair();
    pid_t child = start(two.server);
    OK(close(two.server));
    put(two.client, 0, 100);
    get(two.client, 0, 100);
    end_of_stream(two.client);
    ends_well(child);
}

static pid_t by_fork(int fd)
{
    pid_t child = OK(fork());
    if (child == 0) {
        dup2(fd, 0);
        dup2(fd, 1);
        for (int other = 3; other < 100; other++) close(other);
        become("stdio", 0);
    }
    return child;
}

static pid_t by_vfork(int fd)
{
    const char *path = myself();
    char **list = WORDS_OF("stdio", 0);
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 0);
        dup2(0, 1);
        close(fd);
        execv(path, list);
        _exit(99);
    }
    return OK(child);
}

static pid_t by_spawn(int fd)
{
    pid_t child;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    THREAD(posix_spawn_file_actions_adddup2(&actions, fd, 0));
    THREAD(posix_spawn_file_actions_adddup2(&actions, fd, 1));
    THREAD(posix_spawn_file_actions_addclose(&actions, fd));
    THREAD(posix_spawn(&child, myself(), &actions, NULL, WORDS_OF("stdio", 0), environ));
    posix_spawn_file_actions_destroy(&actions);
    return child;
}

static pid_t by_spawnp(int fd)
{
    pid_t child;
    posix_spawn_file_actions_t actions;
    OK(fcntl(fd, F_SETFD, FD_CLOEXEC)); /* only its copies are inherited */
    posix_spawn_file_actions_init(&actions);
    THREAD(posix_spawn_file_actions_adddup2(&actions, fd, 0));
    THREAD(posix_spawn_file_actions_adddup2(&actions, fd, 1));
    THREAD(posix_spawnp(&child, myself(), &actions, NULL, WORDS_OF("stdio", 0), environ));
    posix_spawn_file_actions_destroy(&actions);
    return child;
}

CASE(inetd_by_fork) { inetd(by_fork); }
CASE(inetd_by_vfork) { inetd(by_vfork); }
CASE(inetd_by_posix_spawn) { inetd(by_spawn); }
CASE(inetd_by_posix_spawnp) { inetd(by_spawnp); }

CASE(two_connections_by_vfork_are_not_mixed_up)
{
    int listener = listener_at(port, 4);
    struct pair one = pair_by(listener, port), other = pair_by(listener, port);
    const char *path = myself();
    for (int n = 0; n < 2; n++) {
        int fd = n ? other.server : one.server;
        char **list = WORDS_OF("stdio", 0);
        pid_t child = vfork();
        if (child == 0) {
            dup2(fd, 0);
            dup2(fd, 1);
            close(one.server);
            close(other.server);
            execv(path, list);
            _exit(99);
        }
        OK(child);
        int client = n ? other.client : one.client;
        put(client, 0, 100);
        get(client, 0, 100);
        ends_well(child);
    }
    put(one.server, 100, 10); /* the parent has them still */
    get(one.client, 100, 10);
    OK(close(other.server));
    end_of_stream(other.client);
}

CASE(a_listener_is_inherited_by_posix_spawn)
{
    int listener = listener_at(port, 4);
    pid_t child;
    THREAD(posix_spawn(&child, myself(), NULL, NULL, WORDS_OF("serve", listener), environ));
    OK(close(listener));
    for (int n = 0; n < 2; n++) {
        int client = dial(port);
        put(client, 0, 10);
        get(client, 0, 10);
    }
    ends_well(child);
    atomic_fetch_add(&shared->connections, 2);
}

CASE(the_executed_program_forks)
{
    int listener = listener_at(port, 4);
    pid_t child = OK(fork());
    if (child == 0) become("accept", listener);
    OK(close(listener));
    int client = dial(port);
    put(client, 0, 100);
    get(client, 0, 100);
    ends_well(child);
    atomic_fetch_add(&shared->connections, 1);
}

CASE(a_bound_socket_listens_behind_exec)
{
    int told[2], fd = tcp(0), on = 1;
    OK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    OK(try_bind(fd, own, port));
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, told));
    pid_t child = OK(fork());
    if (child == 0) {
        OK(dup2(told[1], 1));
        become("listen", fd);
    }
    OK(close(fd));
    get(told[0], 0, 1);
    int client = dial(port);
    put(client, 0, 10);
    get(client, 0, 10);
    ends_well(child);
    atomic_fetch_add(&shared->connections, 1);
}

/* system(3) and popen(3) make children that inherit, and have no use for it. */
CASE(a_shell_command_leaves_the_sockets_alone)
{
    struct pair two = pair();
    int listener = listener_at(port + 100, 4);
    for (int n = 0; n < 5; n++) EQUAL(system("exit 3"), 3 << 8);
    FILE *lines = popen("echo 1", "r");
    CHECK(lines != NULL);
    EQUAL(fgetc(lines), '1');
    EQUAL(pclose(lines), 0);
    put(two.client, 0, 10);
    get(two.server, 0, 10);
    struct pair more = pair_by(listener, port + 100);
    put(more.client, 0, 10);
    get(more.server, 0, 10);
    OK(close(two.server));
    end_of_stream(two.client);
}

CASE(signals_and_waits_work_in_the_executed_program)
{
    int listener = listener_at(port, 4);
    pid_t child = OK(fork());
    if (child == 0) become("serve", listener);
    OK(close(listener));
    pause_ms(20); /* it is waiting in accept by now, or not */
    for (int n = 0; n < 2; n++) {
        int client = dial(port);
        pause_ms(20);
        put(client, 0, 10);
        get(client, 0, 10);
    }
    ends_well(child);
    atomic_fetch_add(&shared->connections, 2);
}

/* The receiver was executed before we had a socket: it is another program. */
CASE(sockets_go_to_another_program)
{
    int way[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, way));
    pid_t child = OK(fork());
    if (child == 0) {
        OK(close(way[0]));
        become("receive", way[1]);
    }
    OK(close(way[1]));
    int mine = OK(epoll_create1(0)), other = OK(epoll_create1(0));
    struct pair two = pair();
    watch(mine, two.client, EPOLLIN);
    watch(other, two.server, EPOLLIN | EPOLLET);
    pass(way[0], two.server);
    put(two.client, 0, 100);
    get(two.client, 0, 100);
    int listener = listener_at(port, 4);
    watch(other, listener, EPOLLIN);
    pass(way[0], listener);
    get(way[0], 0, 1);
    OK(close(listener));
    for (int n = 0; n < 2; n++) {
        int client = dial(port + n);
        put(client, 0, 10);
        get(client, 0, 10);
        end_of_stream(client);
    }
    OK(close(two.server)); /* in no epoll any more, once the other program has closed it too */
    EVENT(one_event(mine, 10000), EPOLLIN);
    end_of_stream(two.client);
    ends_well(child);
    atomic_fetch_add(&shared->connections, 2);
}
