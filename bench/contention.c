/* contention.c - `tenon bench contention`: networks with one thread and with all, alone, beside a program that keeps a
 * processor busy, and as several sessions at a time.
 *
 * The busy program is a child of this one that loops, and is stopped (SIGSTOP) but for the samples that want it. A sample lasts
 * some time slices of the system. Sessions have a thread of the host each; their time is that of one run of all. */
#include "suite.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_SESSIONS = 4, MAX_SIZES = 8, DEPTH = 16, BATCH = 64, WAYS = 6 };

typedef struct client { /* a session, on a thread of its own where there are several */
    cli *c;
    tn_session *session;
    float *y;
    int64_t times;
    tn_status code;
} client;

typedef struct way { /* one thing that is timed */
    cli *c;
    pid_t busy; /* 0: nothing runs beside */
    client *at; /* [n] */
    int n;
    stats_case *rival; /* instead */
} way;

static void *client_main(void *arg) {
    client *k = arg;
    for (int64_t i = 0; i < k->times && !k->code; i++) k->code = tn_session_run(k->session);
    return NULL;
}

/* Seconds of so many runs, by all sessions together. */
static double run_clients(const way *w, int64_t times) {
    pthread_t threads[MOST_SESSIONS];
    int64_t each = (times + w->n - 1) / w->n;
    double start = cli_seconds();
    for (int i = 0; i < w->n; i++) {
        w->at[i].times = each;
        if (w->n > 1 && pthread_create(&threads[i], NULL, client_main, &w->at[i])) cli_fail(w->c, "cannot start a thread");
    }
    if (w->n == 1) client_main(w->at);
    for (int i = 0; i < w->n && w->n > 1; i++) pthread_join(threads[i], NULL);
    double spent = cli_seconds() - start;
    for (int i = 0; i < w->n; i++)
        if (w->at[i].code) cli_fail(w->c, "%s", tn_session_error(w->at[i].session));
    return spent * (double)times / (double)(each * w->n);
}
static double run_way(void *ud, int64_t times) {
    way *w = ud;
    if (w->busy) kill(w->busy, SIGCONT);
    double spent = w->rival ? w->rival->clock(w->rival->ud, times) : run_clients(w, times);
    if (w->busy) kill(w->busy, SIGSTOP);
    return spent;
}

/* A stopped program that loops when it may. */
static pid_t start_busy(cli *c) {
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) cli_fail(c, "cannot start a process: %s", strerror(errno));
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a stopped process would outlive us */
        if (getppid() != parent) _exit(0);
        raise(SIGSTOP);
        for (volatile unsigned n = 0;;) n++;
    }
    waitpid(pid, NULL, WUNTRACED);
    return pid;
}
static void end_busy(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* ---- a network ---- */

typedef struct network {
    int64_t size;
    tn_graph *graph;
    tn_program *one, *all; /* with one thread, with all */
    float *x;
    const double *want;
    int64_t n;
    double bound;
    client single, many[MOST_SESSIONS];
} network;

static void open_client(cli *c, const network *net, tn_program *p, client *k) {
    *k = (client){ .c = c, .y = buffer_new((size_t)net->n * sizeof(float)) };
    memset(k->y, 0xff, (size_t)net->n * sizeof(float)); /* NaN: a run that writes nothing is seen */
    cli_need(c, tn_session_new(p, &k->session));
    cli_need(c, tn_session_bind(k->session, tn_session_slot(k->session, "x"), net->x));
    cli_need(c, tn_session_bind(k->session, tn_session_slot(k->session, "y"), k->y));
    cli_need(c, tn_session_run(k->session));
}
static void close_client(client *k) {
    tn_session_free(k->session);
    buffer_free(k->y);
}

static void check(cli *c, const network *net, const client *k, bench_row *r) {
    if (cli_flag(c, "plant-error")) k->y[net->n / 2] += 1;
    bool finite = row_error(r, k->y, net->want, net->n);
    r->err_bound = net->bound;
    if (!finite || !(r->max_abs_err <= net->bound))
        cli_fail(c, "contention, size %lld: an element is %g away from double precision; %g is allowed", (long long)net->size,
                 r->max_abs_err, net->bound);
}

static tn_program *compile(cli *c, tn_graph *g, int threads) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    o.threads = threads;
    cli_need(c, tn_compile(g, &o, &p));
    return p;
}

static bench_row row_of(const char *name, const char *variant, int64_t threads, const stats *s, double flops) {
    bench_row r = row_empty();
    r.work = "contention";
    r.name = name;
    r.variant = variant;
    r.threads = threads;
    r.batch = BATCH;
    row_time(&r, s, flops, (rate){ 0 });
    return r;
}

/* Some time slices. */
static int64_t runs_of_sample(const suite *s, double once) {
    double sample = fmin(fmax(s->seconds / 3, 0.002), 0.1);
    return once < sample ? (int64_t)(sample / once) + 1 : 1;
}

static void measure(suite *s, network *net, const char *name, double flops, const char *spec, pid_t busy) {
    cli *c = s->c;
    int which = s->n_threads - 1, all = (int)s->threads[which], ids[MAX_RIVALS], n_rivals = 0;
    enum { QUIET_ONE, QUIET_ALL, BUSY_ONE, BUSY_ALL, TWO, FOUR };
    static const char *const variants[WAYS] = { "quiet",      "quiet",     "one busy program", "one busy program",
                                                "2 sessions", "4 sessions" };
    way w[WAYS + 2 * MAX_RIVALS] = { [QUIET_ONE] = { c, 0, &net->single, 1, NULL },
                                     [QUIET_ALL] = { c, 0, net->many, 1, NULL },
                                     [BUSY_ONE] = { c, busy, &net->single, 1, NULL },
                                     [BUSY_ALL] = { c, busy, net->many, 1, NULL },
                                     [TWO] = { c, 0, net->many, 2, NULL },
                                     [FOUR] = { c, 0, net->many, 4, NULL } };
    stats_case cases[WAYS + 2 * MAX_RIVALS], theirs[MAX_RIVALS];
    int64_t least = runs_of_sample(s, fmin(run_way(&w[QUIET_ONE], 4), run_way(&w[QUIET_ONE], 4)) / 4);
    rivals *rival = suite_rivals(s, which);
    progress bar = progress_begin(c, name, WAYS);
    if (rival) n_rivals = rivals_prepare(rival, spec, theirs, ids);
    for (int i = 0; i < WAYS; i++)
        cases[i] = (stats_case){ .clock = run_way, .ud = &w[i], .label = variants[i], .least = least };
    for (int i = 0; i < n_rivals; i++)
        for (int loaded = 0; loaded < 2; loaded++) {
            int at = WAYS + loaded * n_rivals + i;
            w[at] = (way){ .c = c, .busy = loaded ? busy : 0, .rival = &theirs[i] };
            cases[at] = (stats_case){ .clock = run_way, .ud = &w[at], .label = theirs[i].label, .least = least };
        }
    rivals_same_cpus(rival, true);
    stats_measure(cases, WAYS + 2 * n_rivals, s->seconds, &bar);
    rivals_same_cpus(rival, false);
    progress_end(&bar);
    for (int i = 0; i < WAYS; i++) {
        const stats *t = &cases[i].result;
        bool one = i == QUIET_ONE || i == BUSY_ONE, sessions = i >= TWO;
        bench_row r = row_of(name, variants[i], one ? 1 : all, t, flops);
        for (int k = 0; k < w[i].n; k++) check(c, net, &w[i].at[k], &r);
        r.size = net->size;
        if (!sessions) r.one_thread_ratio = t->median / cases[i < BUSY_ONE ? QUIET_ONE : BUSY_ONE].result.median;
        if (i == BUSY_ONE || i == BUSY_ALL) r.quiet_ratio = t->median / cases[i - BUSY_ONE].result.median;
        if (sessions) r.one_session_ratio = cases[QUIET_ALL].result.median / t->median;
        if (i == QUIET_ALL || i == BUSY_ALL) row_rivals(&r, &cases[WAYS + (i == BUSY_ALL ? n_rivals : 0)], ids, n_rivals);
        suite_add(s, r);
    }
    if (rival) rivals_forget(rival);
}

static void measure_network(suite *s, int64_t size, pid_t busy) {
    cli *c = s->c;
    const char *name = suite_text(s, "%d layers of %lld", DEPTH, (long long)size);
    if (!suite_wants(s, name)) return;
    int64_t linears, relus;
    network net = { .size = size, .n = size * BATCH, .bound = 4 * DEPTH * sqrt((double)size + 1) * 0x1p-24 };
    net.graph = model_mlp(c, DEPTH, size, BATCH, s->seed, &linears, &relus);
    uint64_t seed = s->seed;
    net.x = case_floats(net.n, 1.7, &seed);
    tn_ir_eval *eval;
    tn_tensor y;
    cli_need(c, tn_ir_evaluate(net.graph, TN_BIND({ "x", net.x }), &eval));
    cli_need(c, tn_ir_get_output(net.graph, 0, NULL, &y, NULL));
    net.want = tn_ir_eval_values(eval, y, &net.n);
    net.one = compile(c, net.graph, 1), net.all = compile(c, net.graph, (int)s->threads[s->n_threads - 1]);
    open_client(c, &net, net.one, &net.single);
    for (int i = 0; i < MOST_SESSIONS; i++) open_client(c, &net, net.all, &net.many[i]);
    char *layers = model_mlp_layers(DEPTH, s->seed);
    char *spec = cli_format("mlp size=%lld batch=%d layers=%s", (long long)size, BATCH, layers);
    double elements = (double)net.n, flops = elements * ((2.0 * (double)size + 1) * (double)linears + (double)relus + 5);
    measure(s, &net, name, flops, spec, busy);
    close_client(&net.single);
    for (int i = 0; i < MOST_SESSIONS; i++) close_client(&net.many[i]);
    tn_program_free(net.one), tn_program_free(net.all);
    tn_ir_eval_free(eval);
    tn_graph_free(net.graph);
    buffer_free(net.x);
    free(layers), free(spec);
}

static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    snprintf(buffer, n, "%s, %d thread%s", r->variant, (int)r->threads, r->threads == 1 ? "" : "s");
    return buffer;
}
static double x_of(const bench_row *r) { return (double)r->size; }
static double y_of(const bench_row *r) { return r->median_us; }

int bench_contention(cli *c) {
    suite s = suite_begin(c, "bench contention");
    if (s.device) cli_usage(c, "contention is measured on the CPU");
    int64_t sizes[MAX_SIZES];
    int n = cli_ints(c, "sizes", "64,256", sizes, MAX_SIZES, 1, 2048);
    pid_t busy = start_busy(c);
    for (int i = 0; i < n; i++) measure_network(&s, sizes[i], busy);
    end_busy(busy);
    suite_report(&s);
    rows_plot(c,
              &(chart){ .title = "Networks beside other work",
                        .x_label = "width",
                        .x_of = x_of,
                        .panel = { { "microseconds (median)", line_of, y_of } } },
              s.rows, s.n_rows);
    suite_end(&s);
    return CLI_OK;
}
