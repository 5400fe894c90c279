/* rivals.c - other programs for the same work (bench/rivals), run as child processes.
 *
 * A rival is `DIR/start NAME THREADS`, limited to the first THREADS CPUs of this process. It reads lines and answers each with
 * one (docs/bench.md): it makes a work ready and checks its own result against double precision, then runs it so and so often
 * and says how many seconds that took. A rival that does not run is stopped (SIGSTOP): its idle threads may spin, and would
 * take the processor from the others. What cannot be started is named in the report with its reason. */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const rival_names[MAX_RIVALS + 1] = { "ort",    "openvino", "jax",    "torch", "torch_compile",
                                                  "onednn", "openblas", "openmp", "numpy", NULL };

enum { LINE = 4096, MAX_WORKS = 64, START_SECONDS = 120, WORK_SECONDS = 600 };

typedef struct rival {
    const char *name;
    pid_t pid; /* 0 = not there */
    int to, from;
    char note[256]; /* version, or why it is not there */
    size_t n_held;
    char held[LINE]; /* read, but not yet asked for */
} rival;

typedef struct rival_work {
    struct rivals *all;
    rival *who;
    int id;
} rival_work;

struct rivals {
    cli *c;
    int threads, n, n_works, next_id;
    cpu_set_t cpus; /* of this process at first */
    rival at[MAX_RIVALS];
    rival_work work[MAX_WORKS];
};

static void end(rival *r, const char *why) {
    if (!r->pid) return;
    kill(-r->pid, SIGKILL);
    kill(-r->pid, SIGCONT);
    waitpid(r->pid, NULL, 0);
    close(r->to);
    close(r->from);
    r->pid = 0;
    snprintf(r->note, sizeof r->note, "%.200s", why);
}

/* The next line without its end; false at the end of the stream or of patience. */
static bool read_line(rival *r, char *out, int seconds) {
    double until = cli_seconds() + seconds;
    for (;;) {
        char *nl = memchr(r->held, '\n', r->n_held);
        if (nl) {
            size_t n = (size_t)(nl - r->held);
            memcpy(out, r->held, n);
            out[n] = 0;
            r->n_held -= n + 1;
            memmove(r->held, nl + 1, r->n_held);
            return true;
        }
        int left = (int)((until - cli_seconds()) * 1000);
        struct pollfd p = { r->from, POLLIN, 0 };
        if (r->n_held == sizeof r->held - 1 || left <= 0 || poll(&p, 1, left) <= 0) return false;
        ssize_t got = read(r->from, r->held + r->n_held, sizeof r->held - 1 - r->n_held);
        if (got <= 0) return false;
        r->n_held += (size_t)got;
    }
}

/* One line there, one line back. */
static bool ask(rival *r, const char *question, char *answer, int seconds) {
    char line[LINE];
    if (!r->pid) return false;
    int n = snprintf(line, sizeof line, "%s\n", question);
    if (n >= (int)sizeof line) return false;
    kill(-r->pid, SIGCONT);
    bool ok = write(r->to, line, (size_t)n) == n && read_line(r, answer, seconds);
    if (ok)
        kill(-r->pid, SIGSTOP);
    else
        end(r, "stopped answering");
    return ok;
}

static void limit_cpus(const cpu_set_t *have, int threads) {
    cpu_set_t some;
    CPU_ZERO(&some);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&some) < threads; i++) {
        if (CPU_ISSET(i, have)) CPU_SET(i, &some);
    }
    sched_setaffinity(0, sizeof some, &some);
}

/* A rival's own chatter is shown with --verbose only. */
static void silence(const cli *c) {
    int null = c->verbose ? -1 : open("/dev/null", O_WRONLY);
    if (null >= 0) dup2(null, 2);
}

static void start(cli *c, rival *r, const char *path, int threads, const cpu_set_t *have) {
    int to[2], from[2];
    char count[16];
    snprintf(count, sizeof count, "%d", threads);
    if (pipe(to) || pipe(from)) cli_fail(c, "cannot make pipes: %s", strerror(errno));
    pid_t pid = fork();
    if (pid < 0) cli_fail(c, "cannot start a process: %s", strerror(errno));
    if (!pid) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a stopped process would outlive us */
        dup2(to[0], 0);
        dup2(from[1], 1);
        silence(c);
        for (int fd = 3; fd < 1024; fd++) close(fd);
        limit_cpus(have, threads);
        execl(path, path, r->name, count, (char *)NULL);
        dprintf(1, "absent cannot run %s: %s\n", path, strerror(errno));
        _exit(127);
    }
    setpgid(pid, pid);
    close(to[0]);
    close(from[1]);
    r->pid = pid;
    r->to = to[1];
    r->from = from[0];
}

rivals *rivals_open(cli *c, int threads) {
    if (!cli_flag(c, "rivals")) return NULL;
    rivals *all = cli_alloc(sizeof *all);
    all->c = c;
    all->threads = threads;
    if (sched_getaffinity(0, sizeof all->cpus, &all->cpus)) cli_fail(c, "cannot ask for the CPUs: %s", strerror(errno));
    signal(SIGPIPE, SIG_IGN);
    char *path = cli_format("%s/start", cli_text(c, "rivals-dir", "bench/rivals"));
    char *only[MAX_RIVALS];
    int n_only = cli_text(c, "rivals-only", NULL) ? cli_words(c, cli_text(c, "rivals-only", NULL), only, MAX_RIVALS) : 0;
    for (int i = 0; rival_names[i]; i++) {
        rival *r = &all->at[all->n++];
        r->name = rival_names[i];
        bool wanted = !n_only;
        for (int k = 0; k < n_only; k++) wanted |= !strcmp(only[k], r->name);
        if (wanted)
            start(c, r, path, threads, &all->cpus);
        else
            snprintf(r->note, sizeof r->note, "not asked for");
    }
    for (int i = 0; i < all->n; i++) {
        rival *r = &all->at[i];
        char line[LINE];
        if (!r->pid) continue;
        if (!read_line(r, line, START_SECONDS)) {
            end(r, "did not start");
            continue;
        }
        if (strncmp(line, "ready ", 6)) {
            end(r, strncmp(line, "absent ", 7) ? line : line + 7);
            continue;
        }
        snprintf(r->note, sizeof r->note, "%.200s", line + 6);
        kill(-r->pid, SIGSTOP);
    }
    for (int k = 0; k < n_only; k++) free(only[k]);
    free(path);
    return all;
}

static double run_there(void *ud, int64_t times) {
    rival_work *w = ud;
    char question[64], answer[LINE];
    double seconds;
    snprintf(question, sizeof question, "run %d %lld", w->id, (long long)times);
    if (ask(w->who, question, answer, WORK_SECONDS) && sscanf(answer, "t %lf", &seconds) == 1 && seconds > 0) return seconds;
    cli_note(w->all->c, "%s failed while it was timed: %s", w->who->name, w->who->pid ? answer : w->who->note);
    return -1;
}

int rivals_prepare(rivals *r, const char *work, stats_case *out, int *which) {
    int n = 0;
    for (int i = 0; i < r->n && r->n_works < MAX_WORKS; i++) {
        char question[LINE], answer[LINE] = "";
        if (!r->at[i].pid) continue;
        int id = r->next_id++;
        bool fits = snprintf(question, sizeof question, "case %d %s", id, work) < LINE - 1;
        bool ok = fits && ask(&r->at[i], question, answer, WORK_SECONDS) && !strncmp(answer, "ok", 2);
        if (!ok) {
            if (strncmp(answer, "no -", 4)) /* "-": it never does such work */
                cli_note(r->c, "%s does not do '%s': %s", r->at[i].name, work, r->at[i].pid ? answer : r->at[i].note);
            continue;
        }
        rival_work *w = &r->work[r->n_works++];
        *w = (rival_work){ r, &r->at[i], id };
        which[n] = i;
        out[n++] = (stats_case){ .clock = run_there, .ud = w, .label = r->at[i].name };
    }
    return n;
}

void rivals_same_cpus(const rivals *r, bool on) {
    if (r && on) limit_cpus(&r->cpus, r->threads);
    if (r && !on) sched_setaffinity(0, sizeof r->cpus, &r->cpus);
}

void rivals_forget(rivals *r) {
    char question[64], answer[LINE];
    for (int i = 0; i < r->n_works; i++) {
        snprintf(question, sizeof question, "free %d", r->work[i].id);
        ask(r->work[i].who, question, answer, WORK_SECONDS);
    }
    r->n_works = 0;
}

void rivals_json(json *j, const rivals *r) {
    if (!r) return;
    for (int there = 1; there >= 0; there--) {
        json_line(j, there ? "rivals" : "rivals_absent");
        for (int i = 0; i < r->n; i++) {
            if (!!r->at[i].pid == there) json_text(j, r->at[i].name, r->at[i].note);
        }
        json_end(j);
    }
}

void rivals_print(FILE *f, const rivals *r) {
    if (!r) return;
    for (int i = 0; i < r->n; i++)
        fprintf(f, "%s%s%s: %s", i ? "; " : "rivals: ", r->at[i].name, r->at[i].pid ? "" : " (absent)", r->at[i].note);
    fputc('\n', f);
}

void rivals_close(rivals *r) {
    if (!r) return;
    for (int i = 0; i < r->n; i++) end(&r->at[i], "");
    free(r);
}
