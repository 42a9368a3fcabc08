/* Performs scripts of socket calls and tells what each call answers, one script after the other or several at once.
 *
 *   script ADDRESS PORT [--settle US] [--jobs N] <SCRIPTS
 *   script ADDRESS PORT anchor      listens until stdin ends, so that the host of a run stays
 *
 * A script is a line `case NAME` and the lines behind it, each a call with its words and, behind a tab, the answer that is
 * expected (or nothing). Each case is a process of its own with eight ports. Printed for each: `case NAME`, a line
 * `NUMBER ANSWER` for each call, and `end`, `hang` or `signal N`. A call that only looks is repeated for up to 3 s until it
 * answers as expected, so that nothing depends on how fast the bytes travel.
 */
#include "words.h"
#include "state.h"
#include "sockets.h"
#include "transfers.h"
#include "waits.h"
#include "tasks.h"

/* What a call may do when its answer is not the expected one: LOOKS is repeated, WAITS while it answers nothing. */
enum habit { ACTS, LOOKS, WAITS };
static const struct {
    const char *name;
    void (*run)(struct call *);
    enum habit habit;
} ops[] = {
    {"tcp", op_tcp, ACTS}, {"socket", op_socket, ACTS}, {"socketpair", op_socketpair, ACTS}, {"open", op_open, ACTS}, {"pipe", op_pipe, ACTS},
    {"bind", op_bind, ACTS}, {"listen", op_listen, ACTS}, {"connect", op_connect, ACTS}, {"listener", op_listener, ACTS}, {"dial", op_dial, ACTS},
    {"accept", op_accept, WAITS}, {"accept_name", op_accept_name, WAITS}, {"pair", op_pair, ACTS}, {"shutdown", op_shutdown, ACTS},
    {"close", op_close, ACTS}, {"rawclose", op_rawclose, ACTS}, {"reset", op_reset, ACTS}, {"closerange", op_closerange, ACTS}, {"dup", op_dup, ACTS}, {"dup2", op_dup2, ACTS},
    {"dup3", op_dup3, ACTS}, {"dupfd", op_dupfd, ACTS}, {"fcntl", op_fcntl, ACTS}, {"ioctl", op_ioctl, LOOKS}, {"fstat", op_fstat, ACTS},
    {"isfdtype", op_isfdtype, ACTS}, {"sockatmark", op_sockatmark, ACTS}, {"sockname", op_sockname, ACTS}, {"peername", op_peername, LOOKS},
    {"set", op_set, ACTS}, {"get", op_get, WAITS}, {"info", op_info, LOOKS}, {"counts", op_counts, LOOKS}, {"segments", op_segments, LOOKS}, {"syn", op_syn, ACTS}, {"positive", op_positive, LOOKS}, {"tcpinfo", op_tcpinfo, LOOKS}, {"cpu", op_cpu, LOOKS}, {"exhaust", op_exhaust, ACTS}, {"send", op_send, ACTS}, {"print", op_print, ACTS},
    {"recv", op_recv, WAITS}, {"message", op_message, WAITS}, {"batch", op_batch, ACTS}, {"sendfile", op_sendfile, ACTS}, {"skip", op_skip, WAITS},
    {"fill", op_fill, ACTS}, {"drain", op_drain, ACTS}, {"fault", op_fault, WAITS}, {"parts", op_parts, WAITS}, {"mixed", op_mixed, WAITS}, {"poll", op_poll, LOOKS},
    {"polls", op_polls, LOOKS}, {"select", op_select, LOOKS}, {"epoll", op_epoll, ACTS}, {"ctl", op_ctl, ACTS}, {"wait", op_wait, WAITS},
    {"bg", op_bg, ACTS}, {"busy", op_busy, LOOKS}, {"join", op_join, ACTS}, {"cancel", op_cancel, ACTS}, {"child", op_child, ACTS},
    {"handle", op_handle, ACTS}, {"caught", op_caught, LOOKS}, {"about", op_about, LOOKS}, {"kill", op_kill, ACTS}, {"alarm", op_alarm, ACTS}, {"pause", op_pause, ACTS}, {"lasts", op_lasts, ACTS}};

static int op_of(const char *name)
{
    for (size_t n = 0; n < sizeof ops / sizeof *ops; n++)
        if (is(ops[n].name, name)) return (int)n;
    fprintf(stderr, "script: no call '%s'\n", name);
    exit(70);
}

static void perform(struct call *this)
{
    errno = 0;
    ops[op_of(needed(this, 0))].run(this);
}

/* Nothing yet: what the next moment may change. */
static bool is_empty(const char *answer)
{
    return is(answer, "none") || is(answer, "-1 EAGAIN") || is(answer, "0");
}

static void perform_until(struct call *this, const char *expected)
{
    enum habit habit = ops[op_of(needed(this, 0))].habit;
    long end = now_us() + 3000000;
    for (;;) {
        perform(this);
        if (!expected || is(this->answer, expected) || habit == ACTS || now_us() > end) break;
        if (habit == WAITS && !is_empty(this->answer)) break;
        pause_us(1000);
    }
    /* What sends must arrive before the next call; what only looks changes nothing. */
    if (habit == ACTS) pause_us(settle_us);
}

enum { CASES = 20000, ANSWERS = 1 << 15, JOBS = 32, SECONDS = 12 };
static struct {
    char *name, *lines;
} cases[CASES];
static int case_count;

/* What a running case tells its parent. */
struct slot {
    atomic_int used;
    char text[ANSWERS];
};
static struct slot *slots;
static struct {
    pid_t pid;
    long end;
    int what;
} running[JOBS];

static void tell(struct slot *slot, int line, const char *answer)
{
    int used = slot->used;
    used += snprintf(slot->text + used, (size_t)(ANSWERS - used), "%d %s\n", line, answer);
    slot->used = used < ANSWERS ? used : ANSWERS - 1;
}

static void run_case(struct slot *slot, char *lines)
{
    int count = 0;
    for (char *line; (line = strsep(&lines, "\n"));) {
        static struct call this;
        char *expected = strchr(line, '\t');
        if (expected) *expected++ = 0;
        this.count = 0;
        this.answer[0] = 0;
        for (char *part; this.count < WORDS && (part = strsep(&line, " "));)
            if (*part) this.words[this.count++] = part;
        if (this.count == 0) continue;
        perform_until(&this, expected && *expected ? expected : NULL);
        tell(slot, ++count, this.answer);
    }
}

static void start_case(int job, int what)
{
    memset(&slots[job], 0, sizeof slots[job]);
    fflush(stdout);
    running[job].what = what;
    running[job].end = now_us() + SECONDS * 1000000L;
    running[job].pid = fork();
    if (running[job].pid == 0) {
        setpgid(0, 0);
        base_port += what % 1400 * 8;
        run_case(&slots[job], cases[what].lines);
        _exit(0);
    }
    setpgid(running[job].pid, running[job].pid);
}

/* Whether the job has ended; its answers are printed then. */
static bool end_case(int job)
{
    int status = 0;
    pid_t pid = running[job].pid;
    bool late = now_us() > running[job].end;
    if (late) kill(-pid, SIGKILL);
    if (waitpid(pid, &status, late ? 0 : WNOHANG) == 0) return false;
    kill(-pid, SIGKILL); /* what the case has forked */
    printf("case %s\n%s", cases[running[job].what].name, slots[job].text);
    if (late)
        printf("hang\n");
    else if (WIFSIGNALED(status))
        printf("signal %d\n", WTERMSIG(status));
    else
        printf("end\n");
    running[job].pid = 0;
    return true;
}

static void read_cases(void)
{
    size_t room = 1 << 20, used = 0, got;
    char *text = malloc(room);
    while (text && (got = fread(text + used, 1, room - used - 1, stdin)) > 0)
        if ((used += got) + 1 == room) text = realloc(text, room *= 2);
    if (!text) exit(71);
    text[used] = 0;
    for (char *line, *rest = text; (line = strsep(&rest, "\n"));) {
        if (strncmp(line, "case ", 5) != 0) {
            if (case_count && rest) rest[-1] = '\n'; /* lines of a case stay together */
            continue;
        }
        if (case_count) line[-1] = 0;
        if (case_count == CASES) exit(71);
        cases[case_count].name = line + 5;
        cases[case_count++].lines = rest ? rest : strchr(line, 0);
    }
}

int main(int count, char **words)
{
    int jobs = 1;
    if (count < 3) return fprintf(stderr, "usage: %s ADDRESS PORT [--settle US] [--jobs N] <SCRIPTS\n", words[0]), 64;
    own_text = words[1];
    base_port = atoi(words[2]);
    if (count == 4 && is(words[3], "anchor")) {
        if (listener_on("own:P", 1) < 0) return 71;
        printf("ready\n");
        fflush(stdout);
        return getchar() == EOF ? 0 : 1;
    }
    for (int n = 3; n + 1 < count; n += 2) {
        if (is(words[n], "--settle")) settle_us = atoi(words[n + 1]);
        if (is(words[n], "--jobs")) jobs = atoi(words[n + 1]);
    }
    jobs = jobs < 1 ? 1 : jobs > JOBS ? JOBS : jobs;
    read_cases();
    slots = mmap(NULL, sizeof *slots * JOBS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (slots == MAP_FAILED) return 71;
    for (int next = 0, left = case_count; left > 0;) {
        for (int job = 0; job < jobs; job++) {
            if (running[job].pid && end_case(job)) left--;
            if (!running[job].pid && next < case_count) start_case(job, next++);
        }
        pause_us(500);
    }
    return 0;
}
