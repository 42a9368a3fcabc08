/* fork, exec and their kin: who holds a socket, who serves, what happens when somebody dies. */
#include "case.h"
#include <spawn.h>

static void echoes_once(int fd)
{
    char bytes[100];
    int got = OK(recv(fd, bytes, sizeof bytes, 0));
    EQUAL(send(fd, bytes, (size_t)got, MSG_NOSIGNAL), got);
    OK(close(fd));
}

static void asks(int number)
{
    int fd = dial(number);
    put(fd, 0, 50);
    get(fd, 0, 50);
    end_of_stream(fd);
    OK(close(fd));
}

CASE(a_listener_serves_in_the_child_when_the_parent_is_gone)
{
    pid_t parent = OK(fork());
    if (parent == 0) {
        int listener = listener_at(port, 8);
        if (OK(fork()) == 0) {
            pause_ms(50); /* the parent is gone */
            for (int n = 0; n < 10; n++) echoes_once(take(listener));
            _exit(0);
        }
        _exit(0);
    }
    ends_well(parent);
    for (int n = 0; n < 10; n++) asks(port);
}

CASE(closing_the_parents_listener_leaves_the_childs)
{
    int listener = listener_at(port, 8);
    pid_t child = OK(fork());
    if (child == 0) {
        for (int n = 0; n < 5; n++) echoes_once(take(listener));
        _exit(0);
    }
    OK(close(listener));
    for (int n = 0; n < 5; n++) asks(port);
    ends_well(child);
    /* The last holder is gone: refused, though the end of a process may be seen a moment after wait() told it. */
    for (int n = 0; n < 100 && try_connect(tcp(0), own, port) == 0; n++) pause_ms(10);
    FAILS(try_connect(tcp(0), own, port), ECONNREFUSED);
}

CASE(three_processes_accept_from_one_listener)
{
    int listener = listener_at(port, 64);
    pid_t children[3];
    for (int n = 0; n < 3; n++)
        if ((children[n] = OK(fork())) == 0) {
            for (;;) {
                int fd = OK(accept(listener, NULL, NULL));
                atomic_fetch_add(&shared->connections, 1);
                char byte;
                if (OK(recv(fd, &byte, 1, MSG_PEEK)) == 0) _exit(0); /* told to end */
                echoes_once(fd);
            }
        }
    for (int n = 0; n < 60; n++) asks(port);
    for (int n = 0; n < 3; n++) OK(close(dial(port)));
    for (int n = 0; n < 3; n++) ends_well(children[n]);
}

CASE(a_listener_shut_and_listening_again_is_still_the_childs)
{
    int listener = listener_at(port, 8);
    OK(close(dial(port)));
    OK(close(take(listener)));
    OK(shutdown(listener, SHUT_RD));
    pid_t child = OK(fork());
    if (child == 0) {
        while (ready(listener, POLLIN, 1000) != POLLIN) pause_ms(5); /* shut: HUP */
        echoes_once(take(listener));
        _exit(0);
    }
    OK(listen(listener, 8));
    asks(port);
    ends_well(child);
    pid_t again = OK(fork());
    if (again == 0) {
        OK(shutdown(listener, SHUT_RD));
        OK(listen(listener, 8));
        _exit(0);
    }
    ends_well(again);
    int fd = dial(port);
    OK(close(take(listener)));
    end_of_stream(fd);
}

CASE(the_child_keeps_an_accepted_socket)
{
    struct pair two = pair();
    pid_t child = OK(fork());
    if (child == 0) {
        OK(close(two.client));
        get(two.server, 0, 1000);
        put(two.server, 0, 1000);
        _exit(0);
    }
    OK(close(two.server));
    quiet(two.client);
    put(two.client, 0, 1000);
    get(two.client, 0, 1000);
    end_of_stream(two.client);
    ends_well(child);
}

CASE(a_dead_child_is_not_the_last_holder)
{
    struct pair two = pair();
    pid_t child = OK(fork());
    if (child == 0) {
        OK(close(two.client));
        pause_ms(10000);
        _exit(1);
    }
    pause_ms(20);
    OK(kill(child, SIGKILL));
    EQUAL(waitpid(child, NULL, 0), child);
    quiet(two.client);
    put(two.server, 0, 10);
    get(two.client, 0, 10);
    OK(close(two.server));
    end_of_stream(two.client);
}

CASE(a_killed_last_holder_ends_the_connection)
{
    struct pair two = pair();
    pid_t child = OK(fork());
    if (child == 0) {
        OK(close(two.client));
        put(two.server, 0, 10);
        pause_ms(10000);
        _exit(1);
    }
    OK(close(two.server));
    get(two.client, 0, 10);
    quiet(two.client);
    OK(kill(child, SIGKILL));
    EQUAL(waitpid(child, NULL, 0), child);
    end_of_stream(two.client);
}

CASE(a_killed_holder_of_unread_bytes_resets)
{
    struct pair two = pair();
    char byte;
    put(two.client, 0, 10);
    EQUAL(ready(two.server, POLLIN, 5000), POLLIN);
    pid_t child = OK(fork());
    if (child == 0) {
        OK(close(two.client));
        pause_ms(10000);
        _exit(1);
    }
    OK(close(two.server));
    quiet(two.client);
    OK(kill(child, SIGKILL));
    EQUAL(waitpid(child, NULL, 0), child);
    EQUAL(ready(two.client, 0, 5000), POLLERR | POLLHUP);
    FAILS(recv(two.client, &byte, 1, 0), ECONNRESET);
}

CASE(parent_and_child_take_turns)
{
    struct pair two = pair();
    for (int n = 0; n < 50; n++) {
        pid_t child = OK(fork());
        if (child == 0) {
            put(two.client, 100 * n, 50);
            get(two.server, 100 * n, 50);
            _exit(0);
        }
        ends_well(child);
        put(two.client, 100 * n + 50, 50);
        get(two.server, 100 * n + 50, 50);
    }
}

CASE(sockets_made_in_the_child_are_its_own)
{
    struct pair two = pair();
    pid_t child = OK(fork());
    if (child == 0) {
        port += 100;
        struct pair more = pair();
        put(more.client, 0, 100);
        get(more.server, 0, 100);
        put(two.server, 0, 100);
        _exit(0);
    }
    get(two.client, 0, 100);
    ends_well(child);
    put(two.client, 0, 5);
    get(two.server, 0, 5);
}

CASE(cloexec_sockets_end_at_exec_others_do_not_hinder)
{
    struct pair two = pair();
    int ends[2];
    OK(pipe(ends));
    OK(fcntl(two.server, F_SETFD, FD_CLOEXEC));
    OK(fcntl(two.client, F_SETFD, FD_CLOEXEC));
    pid_t child = OK(fork());
    if (child == 0) {
        OK(dup2(ends[1], 1));
        execl("/bin/sh", "sh", "-c", "echo here; exec sleep 10", NULL);
        FAIL("exec: %s", errno_name(errno));
    }
    char bytes[8];
    EQUAL(read(ends[0], bytes, 5), 5);
    put(two.client, 0, 5);
    get(two.server, 0, 5);
    OK(close(two.server));
    end_of_stream(two.client); /* though the program that was exec'ed lives */
    OK(kill(child, SIGKILL));
    EQUAL(waitpid(child, NULL, 0), child);
}

extern char **environ;

CASE(spawn_popen_system_and_vfork_with_open_sockets)
{
    int listener = listener_at(port, 4);
    struct pair two = pair_by(listener, port);
    char *words[] = {"sh", "-c", "exit 7", NULL}, line[16];
    for (int n = 0; n < 10; n++) {
        int status;
        pid_t child;
        EQUAL(posix_spawn(&child, "/bin/sh", NULL, NULL, words, environ), 0);
        EQUAL(waitpid(child, &status, 0), child);
        EQUAL(WEXITSTATUS(status), 7);
        EQUAL(WEXITSTATUS(system("exit 3")), 3);
        FILE *out = popen("echo word", "r");
        CHECK(out && fgets(line, sizeof line, out));
        EQUAL(strcmp(line, "word\n"), 0);
        EQUAL(pclose(out), 0);
        child = vfork();
        if (child == 0) {
            execv("/bin/sh", words);
            _exit(1);
        }
        EQUAL(waitpid(child, &status, 0), child);
        EQUAL(WEXITSTATUS(status), 7);
        put(two.client, 10 * n, 10);
        get(two.server, 10 * n, 10);
        quiet(two.server);
    }
    pair_by(listener, port);
    FAILS(waitpid(-1, NULL, WNOHANG), ECHILD); /* no child that we do not know */
}

CASE(wait_sees_no_child_of_ours)
{
    struct pair two = pair();
    put(two.client, 0, 1);
    get(two.server, 0, 1);
    FAILS(wait(NULL), ECHILD);
    FAILS(waitpid(-1, NULL, WNOHANG), ECHILD);
}

CASE(a_daemon_listens)
{
    int tells[2];
    OK(pipe(tells));
    pid_t child = OK(fork());
    if (child == 0) {
        OK(daemon(0, 0));
        alarm(15); /* it is out of our process group */
        int listener = listener_at(port, 4);
        CHECK(write(tells[1], "x", 1) == 1);
        echoes_once(take(listener));
        _exit(0);
    }
    ends_well(child);
    char byte;
    EQUAL(read(tells[0], &byte, 1), 1);
    asks(port);
}

CASE(a_listener_made_before_daemon_serves_after_it)
{
    pid_t child = OK(fork());
    if (child == 0) {
        int listener = listener_at(port, 8);
        OK(daemon(0, 0));
        alarm(15);
        for (int n = 0; n < 5; n++) echoes_once(take(listener));
        _exit(0);
    }
    ends_well(child);
    for (int n = 0; n < 5; n++) asks(port);
}

CASE(two_forks_deep)
{
    int listener = listener_at(port, 4);
    struct pair two = pair_by(listener, port);
    pid_t child = OK(fork());
    if (child == 0) {
        pid_t grandchild = OK(fork());
        if (grandchild == 0) {
            put(two.server, 0, 10);
            echoes_once(take(listener));
            _exit(0);
        }
        OK(close(listener));
        ends_well(grandchild);
        put(two.server, 10, 10);
        _exit(0);
    }
    get(two.client, 0, 10);
    asks(port);
    get(two.client, 10, 10);
    ends_well(child);
}
