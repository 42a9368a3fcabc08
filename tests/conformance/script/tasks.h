/* Calls in another thread or process, and signals. */
#ifndef KNET_TASKS_H
#define KNET_TASKS_H

#include "state.h"
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

static void perform(struct call *this);

/* One call in a thread of its own. */
static struct {
    struct call call;
    pthread_t thread;
    atomic_int done, cleaned;
    bool runs;
} task;

static void count_clean_up(void *unused)
{
    (void)unused;
    task.cleaned++;
}

static void *task_main(void *unused)
{
    pthread_cleanup_push(count_clean_up, NULL);
    perform(&task.call);
    pthread_cleanup_pop(0);
    task.done = 1;
    return unused;
}

static void without_first_word(struct call *into, struct call *from)
{
    into->count = from->count - 1;
    memcpy(into->words, from->words + 1, sizeof *into->words * (size_t)into->count);
    into->answer[0] = 0;
}

static void op_bg(struct call *this) /* CALL...: begins; it has 20 ms to block */
{
    static char kept[WORDS][64];
    without_first_word(&task.call, this);
    for (int n = 0; n < task.call.count; n++) {
        snprintf(kept[n], 64, "%s", task.call.words[n]);
        task.call.words[n] = kept[n];
    }
    task.done = task.cleaned = 0;
    task.runs = pthread_create(&task.thread, NULL, task_main, NULL) == 0;
    pause_us(20000);
    say_text(this, task.done ? "ended" : "blocked");
}

static void op_busy(struct call *this)
{
    pause_us(20000);
    say_text(this, task.done ? "ended" : "blocked");
}

static void op_join(struct call *this) /* what the call answered */
{
    if (!task.runs) {
        say_text(this, "no task");
        return;
    }
    pthread_join(task.thread, NULL);
    task.runs = false;
    say_text(this, task.call.answer);
}

static void op_cancel(struct call *this)
{
    void *result = NULL;
    pthread_cancel(task.thread);
    pthread_join(task.thread, &result);
    task.runs = false;
    snprintf(this->answer, ANSWER, "%s, %d handler", result == PTHREAD_CANCELED ? "cancelled" : "ended", task.cleaned);
}

static void op_child(struct call *this) /* CALL... in a forked child: its answer */
{
    struct call *there = mmap(NULL, sizeof *there, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    without_first_word(there, this);
    pid_t child = fork();
    if (child == 0) {
        perform(there);
        _exit(0);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status))
        snprintf(this->answer, ANSWER, "signal %d", WTERMSIG(status));
    else
        say_text(this, there->answer);
    munmap(there, sizeof *there);
}

static atomic_int caught[65], caught_fd[65], caught_code[65];

static void count_signal(int number, siginfo_t *info, void *context)
{
    (void)context;
    caught_fd[number] = info->si_fd;
    caught_code[number] = info->si_code;
    caught[number]++;
}

static int signal_of(const char *name)
{
    return is(name, "PIPE") ? SIGPIPE : is(name, "ALRM") ? SIGALRM : is(name, "USR1") ? SIGUSR1 : is(name, "IO") ? SIGIO : is(name, "URG") ? SIGURG : atoi(name);
}

static void op_handle(struct call *this) /* SIGNAL [RESTART]: counted by a handler */
{
    struct sigaction action = {.sa_sigaction = count_signal, .sa_flags = SA_SIGINFO | (is(word(this, 2, ""), "RESTART") ? SA_RESTART : 0)};
    say(this, sigaction(signal_of(needed(this, 1)), &action, NULL));
}

static void op_caught(struct call *this) /* SIGNAL: how often so far */
{
    say(this, caught[signal_of(needed(this, 1))]);
}

static void op_about(struct call *this) /* SIGNAL: what the last one said, if it was about a descriptor */
{
    int number = signal_of(needed(this, 1));
    if (caught_code[number] == POLL_IN)
        snprintf(this->answer, ANSWER, "fd %d", caught_fd[number]);
    else
        say_text(this, caught[number] ? "no descriptor" : "none");
}

static void op_kill(struct call *this) /* SIGNAL: to the task's thread */
{
    say(this, pthread_kill(task.thread, signal_of(needed(this, 1))));
}

static void op_alarm(struct call *this) /* MS: SIGALRM, once */
{
    struct itimerval once = {{0, 0}, {number(this, 1, 0) / 1000, number(this, 1, 0) % 1000 * 1000}};
    say(this, setitimer(ITIMER_REAL, &once, NULL));
}

static void op_pause(struct call *this) /* MS */
{
    pause_us(number(this, 1, 1) * 1000);
    say_text(this, "ok");
}

static void op_lasts(struct call *this) /* LEAST MOST CALL...: its answer, and whether it took so many ms */
{
    struct call inner;
    without_first_word(&inner, this);
    inner.count -= 2;
    memmove(inner.words, inner.words + 2, sizeof *inner.words * (size_t)inner.count);
    long begin = now_us();
    perform(&inner);
    long took = now_us() - begin;
    snprintf(this->answer, ANSWER, "%.300s%s", inner.answer, took < number(this, 1, 0) * 1000 ? ", early" : took > number(this, 2, 0) * 1000 ? ", late" : "");
}

#endif
