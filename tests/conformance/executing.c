/* Sockets and epolls that live on in a program that is executed: inetd, socket activation, a binary that executes its successor.
 * What the executed program does is in executing_parts.h.
 */
#include "case.h"
#include "events.h"
#include "executing_parts.h"
#include <sys/resource.h>

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
    echoed(behind, 10);
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
    echoed(two.client, 1);
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
    echo(two.server, 10);
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
    echoed(two.client, 100);
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

static void closes_a_range(void)
{
    close_range(3, ~0u, 0);
}

static void closes_each(void)
{
    for (int fd = 3; fd < 2000; fd++) close(fd);
}

/* As Python's subprocess: nothing but the input and the output is to be inherited. */
static pid_t by_vfork_without(int fd, void (*rest)(void))
{
    const char *path = myself();
    char **list = WORDS_OF("stdio", 0);
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 0);
        dup2(0, 1);
        rest();
        execv(path, list);
        _exit(99);
    }
    return OK(child);
}

static pid_t by_vfork_closing(int fd) { return by_vfork_without(fd, closes_a_range); }
static pid_t by_vfork_closing_each(int fd) { return by_vfork_without(fd, closes_each); }

static pid_t by_spawn_closing(int fd)
{
    pid_t child;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    THREAD(posix_spawn_file_actions_adddup2(&actions, fd, 0));
    THREAD(posix_spawn_file_actions_adddup2(&actions, fd, 1));
    THREAD(posix_spawn_file_actions_addclosefrom_np(&actions, 3));
    THREAD(posix_spawn(&child, myself(), &actions, NULL, WORDS_OF("stdio", 0), environ));
    posix_spawn_file_actions_destroy(&actions);
    return child;
}

CASE(inetd_by_fork) { inetd(by_fork); }
CASE(inetd_by_vfork) { inetd(by_vfork); }
CASE(inetd_by_posix_spawn) { inetd(by_spawn); }
CASE(inetd_by_posix_spawnp) { inetd(by_spawnp); }
CASE(inetd_by_vfork_and_close_range) { inetd(by_vfork_closing); }
CASE(inetd_by_vfork_that_closes_each_number) { inetd(by_vfork_closing_each); }
CASE(inetd_by_posix_spawn_that_closes_the_rest) { inetd(by_spawn_closing); }

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
        echoed(client, 100);
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
        echoed(client, 10);
    }
    ends_well(child);
    atomic_fetch_add(&shared->connections, 2);
}

CASE(the_executed_program_forks)
{
    int listener = listener_at(port, 4);
    pid_t child = started("accept", listener);
    OK(close(listener));
    int client = dial(port);
    echoed(client, 100);
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
    echoed(client, 10);
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
    pid_t child = started("serve", listener);
    OK(close(listener));
    pause_ms(20); /* it is waiting in accept by now, or not */
    for (int n = 0; n < 2; n++) {
        int client = dial(port);
        pause_ms(20);
        echoed(client, 10);
    }
    ends_well(child);
    atomic_fetch_add(&shared->connections, 2);
}

CASE(connections_of_the_program_before_go_to_the_right_child)
{
    int listener = listener_at(port, 4);
    struct pair one = pair_by(listener, port), other = pair_by(listener, port);
    pid_t child = OK(fork());
    if (child == 0) {
        OK(dup2(one.server, 50));
        OK(dup2(other.server, 51));
        OK(close(one.client));
        OK(close(other.client));
        become("start one", 50);
    }
    OK(close(one.server));
    OK(close(other.server));
    echoed(one.client, 100);
    echoed(other.client, 100);
    end_of_stream(one.client);
    end_of_stream(other.client);
    ends_well(child);
}

CASE(an_eventfd_stays_one_in_a_spawned_program)
{
    struct pair two = pair();
    int epoll = OK(epoll_create1(0)), event = OK(eventfd(7, 0));
    OK(dup2(event, 50));
    OK(dup2(two.server, 51));
    OK(dup2(epoll, 52));
    OK(change(52, EPOLL_CTL_ADD, 51, EPOLLIN, 0));
    pid_t child;
    THREAD(posix_spawn(&child, myself(), NULL, NULL, WORDS_OF("eventfd", 50), environ));
    echoed(two.client, 100);
    ends_well(child);
}

/* More than there are places for: what a program held for the ones that it started ends with them. */
CASE_FOR(many_started_programs_leave_no_epoll_behind, 60)
{
    for (int n = 0; n < 300; n++) {
        int epoll = OK(epoll_create1(EPOLL_CLOEXEC)); /* no child takes it over */
        pid_t child;
        THREAD(posix_spawn(&child, "/bin/true", NULL, NULL, (char *[]){"true", NULL}, environ));
        OK(close(epoll));
        ends_well(child);
    }
    int epoll = OK(epoll_create1(0));
    struct pair two = pair();
    watch(epoll, two.server, EPOLLIN);
    put(two.client, 0, 1);
    EVENT(one_event(epoll, 10000), EPOLLIN);
}

/* Its environment has no room for what we would add. */
CASE(a_program_without_the_library_inherits_nothing_of_it)
{
    static char preload[4000] = "LD_PRELOAD=/nowhere/";
    memset(preload + strlen(preload), 'x', 3000);
    struct pair two = pair();
    pid_t child = OK(fork());
    if (child == 0) {
        OK(dup2(OK(open("/dev/null", O_WRONLY)), 2)); /* the loader's complaint */
        execve(myself(), WORDS_OF("few", two.server), (char *[]){preload, NULL});
        FAIL("execve: %s", errno_name(errno));
    }
    ends_well(child);
}

/* LimitFSIZE= of a service: what we make for ourselves is not the program's to pay for by SIGXFSZ. */
static void works_with_files_of(rlim_t bytes)
{
    struct rlimit limit;
    OK(getrlimit(RLIMIT_FSIZE, &limit));
    limit.rlim_cur = bytes;
    pid_t child = OK(fork());
    if (child == 0) {
        OK(setrlimit(RLIMIT_FSIZE, &limit));
        struct pair two = pair();
        atomic_fetch_sub(&shared->connections, 1); /* a host inside has the limit too, and stays out of it */
        int epoll = OK(epoll_create1(0));
        watch(epoll, two.server, EPOLLIN);
        put(two.client, 0, 1);
        EVENT(one_event(epoll, 10000), EPOLLIN);
        pid_t started_one;
        THREAD(posix_spawn(&started_one, "/bin/true", NULL, NULL, (char *[]){"true", NULL}, environ));
        ends_well(started_one);
        get(two.server, 0, 1);
        _exit(0);
    }
    ends_well(child);
}

CASE(a_small_file_size_limit_ends_nobody) { works_with_files_of(100000); }
CASE(no_room_in_any_file_ends_nobody) { works_with_files_of(0); }

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
    EQUAL(pass(way[0], &two.server, 1), 1);
    echoed(two.client, 100);
    int listener = listener_at(port, 4);
    watch(other, listener, EPOLLIN);
    EQUAL(pass(way[0], &listener, 1), 1);
    get(way[0], 0, 1);
    OK(close(listener));
    for (int n = 0; n < 2; n++) {
        int client = dial(port + n);
        echoed(client, 10);
        end_of_stream(client);
    }
    OK(close(two.server)); /* in no epoll any more, once the other program has closed it too */
    EVENT(one_event(mine, 10000), EPOLLIN);
    end_of_stream(two.client);
    ends_well(child);
    atomic_fetch_add(&shared->connections, 2);
}
