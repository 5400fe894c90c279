/* sum.c - `tenon bench sum`: a long sum of f32 by different ways of rounding, as plain C loops and as graphs: the error
 * against the exact sum, and the time. The numbers: 0.1 so many times; random ones; ones that alternate in sign and nearly
 * cancel. */
#include "suite.h"
#include "tenon/tenon_nn.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct exact_sum {
    double sum, sizes; /* of the numbers; of their absolute values */
} exact_sum;

typedef struct way {
    const char *name;
    float (*plain)(const float *x, int64_t n); /* or a graph: */
    tn_nn_sum_policy policy;
    double roundings, steps_of_log; /* of eps times the sizes: roundings + steps_of_log * log2(n), or n; 0 and 0: compensated */
    bool each;                      /* .. times n */
} way;

static float one_by_one(const float *x, int64_t n) {
    float s = 0;
    for (int64_t i = 0; i < n; i++) {
        s += x[i];
        __asm__ volatile("" : "+x"(s)); /* in this order */
    }
    return s;
}
static float pairwise(const float *x, int64_t n) {
    enum { SHORT = 64 };
    return n <= SHORT ? one_by_one(x, n) : pairwise(x, n / 2) + pairwise(x + n / 2, n - n / 2);
}
static float kahan(const float *x, int64_t n) {
    float s = 0, c = 0;
    for (int64_t i = 0; i < n; i++) {
        float y = x[i] - c, t = s + y;
        c = (t - s) - y;
        s = t;
    }
    return s;
}
static float in_f64(const float *x, int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; i++) {
        s += (double)x[i];
        __asm__ volatile("" : "+x"(s));
    }
    return (float)s;
}

static const way ways[] = {
    { "C, one after the other", one_by_one, TN_NN_SUM_PLAIN, 1, 0, true },
    { "C, pairwise", pairwise, TN_NN_SUM_PLAIN, 64, 1, false },
    { "C, Kahan", kahan, TN_NN_SUM_PLAIN, 2, 0, false },
    { "C, f64", in_f64, TN_NN_SUM_PLAIN, 0, 0, false },
    { "graph", NULL, TN_NN_SUM_PLAIN, 1, 0, true },
    { "graph, f64", NULL, TN_NN_SUM_F64, 0, 0, false },
    { "graph, pairwise", NULL, TN_NN_SUM_PAIRWISE, 1, 1, false },
    { "graph, compensated", NULL, TN_NN_SUM_COMPENSATED, 0, 0, false },
};

/* Of every way: what Higham's book has for it; and half a place for the last rounding. */
static double bound_of(const way *w, const exact_sum *e, int64_t n) {
    double eps = FLT_EPSILON / 2, steps = w->each ? (double)n : w->roundings + w->steps_of_log * log2((double)n + 1);
    return 1.01 * steps * eps * e->sizes + eps * fabs(e->sum) + 4 * (double)n * eps * eps * e->sizes;
}

typedef struct job {
    cli *c;
    const way *w;
    const float *x;
    int64_t n;
    float y;
    tn_graph *graph;
    tn_program *program;
    tn_session *session;
} job;

static void run_plain(void *ud, int64_t times) {
    job *j = ud;
    for (int64_t i = 0; i < times; i++) {
        j->y = j->w->plain(j->x, j->n);
        __asm__ volatile("" ::: "memory");
    }
}
static void run_graph(void *ud, int64_t times) {
    job *j = ud;
    for (int64_t i = 0; i < times; i++) cli_need(j->c, tn_session_run(j->session));
}
static double clock_device(void *ud, int64_t times) {
    job *j = ud;
    tn_binding ring = { "x", (void *)j->x };
    return device_seconds(j->c, j->session, &ring, 1, times);
}

static void compile_job(job *j, const suite *s, int threads) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = threads;
    if (s->device) o.device = s->device, o.mode = TN_MODE_LOOP;
    j->graph = tn_graph_new(cli_ctx(j->c), "sum");
    tn_output(tn_nn_sum(tn_input(j->graph, "x", TN_F32, TN_DIMS(j->n)), NULL, -1, 0, j->w->policy), "y");
    cli_need(j->c, tn_compile(j->graph, &o, &j->program));
    cli_need(j->c, tn_session_new(j->program, &j->session));
    cli_need(j->c, tn_session_bind(j->session, tn_session_slot(j->session, "x"), (void *)j->x));
    cli_need(j->c, tn_session_bind(j->session, tn_session_slot(j->session, "y"), &j->y));
}

static void check(const job *j, const exact_sum *e, const char *numbers, bench_row *r) {
    float y = j->y + (cli_flag(j->c, "plant-error") ? (float)e->sizes : 0);
    r->err_bound = bound_of(j->w, e, j->n);
    row_error(r, &y, &e->sum, 1);
    if (!(r->max_abs_err <= r->err_bound))
        cli_fail(j->c, "sum of %lld %s, %s: %.9g, exactly %.17g: off by %g where %g is allowed", (long long)j->n, numbers,
                 j->w->name, (double)y, e->sum, r->max_abs_err, r->err_bound);
}

static void measure(suite *s, const char *numbers, const float *x, const exact_sum *e, int64_t n, int threads, bool plain) {
    job jobs[COUNT_OF(ways)];
    stats_case at[COUNT_OF(ways) + 1];
    int used = 0;
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        if ((ways[i].plain && !plain) || !suite_wants(s, ways[i].name)) continue;
        job *j = &jobs[used];
        *j = (job){ .c = s->c, .w = &ways[i], .x = x, .n = n };
        if (!ways[i].plain) compile_job(j, s, threads);
        at[used] = (stats_case){ .run = ways[i].plain ? run_plain : run_graph, .ud = j, .label = ways[i].name };
        at[used].run(j, 1);
        if (s->device && !ways[i].plain) at[used].run = NULL, at[used].clock = clock_device;
        used++;
    }
    if (!used) return;
    size_t bytes = (size_t)n * sizeof *x < 1 << 16 ? 1 << 16 : (size_t)n * sizeof *x;
    probe *read = s->device ? NULL : probe_new(PROBE_READ, threads, bytes < 256 << 20 ? bytes : 256 << 20);
    if (read) at[used] = probe_case(read, "read");
    char label[96];
    snprintf(label, sizeof label, "sum of %lld, %s, %d thread%s", (long long)n, numbers, threads, threads > 1 ? "s" : "");
    suite_measure(s, label, at, used + (read != NULL), s->seconds);
    rate best = { 0, 0 };
    if (read) best = stats_rate(&at[used].result, probe_work(read));
    for (int i = 0; i < used; i++) {
        bench_row r = row_empty();
        r.work = numbers;
        r.name = jobs[i].w->name;
        r.size = n;
        r.threads = jobs[i].w->plain ? 1 : threads;
        r.device = s->device;
        check(&jobs[i], e, numbers, &r);
        row_time(&r, &at[i].result, 0, (rate){ 0, 0 });
        row_bandwidth(&r, &at[i].result, (double)n * 4, jobs[i].w->plain && threads > 1 ? (rate){ 0, 0 } : best);
        suite_add(s, r);
        tn_session_free(jobs[i].session);
        tn_program_free(jobs[i].program);
        tn_graph_free(jobs[i].graph);
    }
    probe_free(read);
}

static float number(int kind, int64_t i, uint64_t *seed) {
    if (kind == 0) return 0.1f;
    double u = random_unit(seed);
    return (float)(kind == 1 ? u : i % 2 ? -1e4 + u : 1e4 + u); /* what is left of a pair is about as large as u */
}

int bench_sum(cli *c) {
    static const char *const kinds[] = { "0.1", "random", "alternating" };
    suite s = suite_begin(c, "bench sum");
    int64_t sizes[16];
    int n_sizes = cli_ints(c, "sizes", "10000,1000000,100000000", sizes, COUNT_OF(sizes), 1, 1 << 28);
    for (int i = 0; i < n_sizes; i++) {
        int64_t n = sizes[i];
        float *x = buffer_new((size_t)n * sizeof *x);
        for (int kind = 0; kind < (int)COUNT_OF(kinds); kind++) {
            uint64_t seed = s.seed;
            long double sum = 0, size = 0; /* with 64 bits: far below a place of what is looked for */
            for (int64_t k = 0; k < n; k++) {
                x[k] = number(kind, k, &seed);
                sum += (long double)x[k], size += (long double)fabsf(x[k]);
            }
            exact_sum e = { (double)sum, (double)size };
            for (int t = 0; t < s.n_threads; t++) measure(&s, kinds[kind], x, &e, n, (int)s.threads[t], t == 0);
        }
        buffer_free(x);
    }
    suite_report(&s);
    suite_end(&s);
    return CLI_OK;
}
