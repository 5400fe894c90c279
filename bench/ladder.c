/* ladder.c - `tenon bench ladder WORK`: the same work from the naive loop to generated code, every rung checked and timed
 * in turns. */
#include "bench.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SIZES = 16, MAX_RUNGS = 16 };

typedef struct entry { /* one rung at one size */
    ladder_problem p;
    const ladder_rung *rung;
    const char *work; /* what the reference computes */
    tn_graph *graph;
    tn_program *program;
    tn_session *session;
    double compile_us;
    cli *c;
} entry;

static void run_hand(void *ud, int64_t times) {
    entry *e = ud;
    for (int64_t i = 0; i < times; i++) {
        e->rung->run(&e->p);
        __asm__ volatile("" ::: "memory"); /* every run happens */
    }
}
static void run_generated(void *ud, int64_t times) {
    entry *e = ud;
    for (int64_t i = 0; i < times; i++) {
        if (tn_session_run(e->session)) cli_fail(e->c, "%s", tn_ctx_error(e->c->ctx));
    }
}

/* The graph of the generated rung; w and b are states that get the values of the other rungs. */
static tn_graph *build(cli *c, const char *work, const ladder_problem *p) {
    tn_graph *g = tn_graph_new(cli_ctx(c), work);
    bool linear = !!strcmp(work, "relu") && !!strcmp(work, "softmax");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(p->m, linear ? p->k : p->n)), y = x;
    if (linear) {
        tn_tensor w = tn_state(g, "w", TN_F32, TN_DIMS(p->k, p->n), p->w), b = tn_state(g, "b", TN_F32, TN_DIMS(p->n), p->b);
        y = tn_add(tn_matmul(x, w), b);
    }
    if (strcmp(work, "softmax")) y = tn_relu(y);
    if (!strcmp(work, "softmax") || strstr(work, "+softmax")) {
        tn_tensor e = tn_exp(tn_sub(y, tn_reduce_max(y, TN_INTS(-1), 1)));
        y = tn_div(e, tn_sum(e, TN_INTS(-1), 1));
    }
    tn_output(y, "y");
    return g;
}

static void compile_rung(cli *c, entry *e, int threads) {
    e->graph = build(c, e->work, &e->p);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = threads;
    o.fusion = (int)cli_int(c, "fusion", -1, -1, 3);
    o.no_cache = 1; /* so that compile_us is what compiling costs */
    cli_need(c, tn_compile(e->graph, &o, &e->program));
    cli_need(c, tn_session_new(e->program, &e->session));
    tn_program_stats s;
    tn_program_get_stats(e->program, &s);
    e->compile_us = s.compile_seconds * 1e6;
    cli_need(c, tn_session_bind(e->session, tn_session_slot(e->session, "x"), (void *)e->p.x));
    cli_need(c, tn_session_bind(e->session, tn_session_slot(e->session, "y"), e->p.y));
}

static float *random_floats(int64_t n, double scale, uint64_t *seed) {
    float *x = buffer_new((size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) x[i] = (float)(scale * (2 * random_unit(seed) - 1));
    return x;
}

/* Every element of the rung's result against the double reference. */
static void check(cli *c, entry *e, bench_row *r, const double *want, const double *bound) {
    if (cli_flag(c, "plant-error")) e->p.y[0] += 1;
    int64_t n = e->p.m * e->p.n;
    bool finite = row_error(r, e->p.y, want, n);
    r->err_bound = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)e->p.y[i] - want[i]);
        r->err_bound = fmax(r->err_bound, bound[i]);
        if (finite && d <= bound[i]) continue;
        cli_fail(c, "rung %s at size %lld: element %lld is %.9g, exactly %.17g, off by %g where %g is allowed", e->rung->name,
                 (long long)e->p.n, (long long)i, (double)e->p.y[i], want[i], d, bound[i]);
    }
}

static const char *reference_work(const char *work, const char *rung) {
    if (strcmp(work, "fused")) return work;
    return strstr(rung, "softmax") ? "linear+relu+softmax" : "linear+relu";
}

typedef struct data {
    float *x, *w, *b, *scratch;
} data;

/* All rungs of one size: made ready, run once and checked, timed, checked again. */
static void measure_size(cli *c, const char *work, const ladder_rung *rungs, int n, int64_t size, const ceiling *m,
                         bench_row *rows, uint64_t seed) {
    double seconds = cli_number(c, "seconds", 0.3, 0.001, 3600);
    int threads = (int)cli_int(c, "threads", 1, 0, 256);
    if (!threads) threads = m->cores;
    size_t count = (size_t)(size * size);
    data d = { random_floats(size * size, 1.7, &seed), random_floats(size * size, sqrt(3.0 / (double)size), &seed),
               random_floats(size, 0.1, &seed), buffer_new(count * 4) };
    double *want = cli_alloc(count * sizeof(double)), *bound = cli_alloc(count * sizeof(double));
    entry *e = cli_alloc(sizeof(entry) * MAX_RUNGS);
    stats_case *cases = cli_alloc(sizeof(stats_case) * (MAX_RUNGS + 2));
    const char *wanted = "";
    char *label = cli_format("%s %lld", work, (long long)size);
    progress bar = progress_begin(c, label, n);
    for (int i = 0; i < n; i++) {
        progress_step(&bar, i, "checking"); /* the naive rung takes seconds */
        e[i] = (entry){ .rung = &rungs[i], .work = reference_work(work, rungs[i].name), .c = c };
        e[i].p = (ladder_problem){ size, size, size, d.x, d.w, d.b, buffer_new(count * 4), d.scratch };
        memcpy(e[i].p.y, d.x, count * 4); /* the operand of the in-place rungs; the others overwrite it */
        if (!rungs[i].run) compile_rung(c, &e[i], threads);
        cases[i] = (stats_case){ rungs[i].run ? run_hand : run_generated, .ud = &e[i], .label = rungs[i].name };
        cases[i].run(&e[i], 1);
        rows[i] = row_empty();
        if (strcmp(wanted, e[i].work)) ladder_reference(wanted = e[i].work, &e[i].p, want, bound);
        check(c, &e[i], &rows[i], want, bound);
    }
    int counts[] = { 1, threads }, n_peaks = threads > 1 ? 2 : 1;
    probe *fma[2];
    rate peaks[2];
    for (int i = 0; i < n_peaks; i++) cases[n + i] = probe_case(fma[i] = probe_new(PROBE_FMA, counts[i], 0), "peak");
    stats_measure(cases, n + n_peaks, seconds, &bar);
    progress_end(&bar);
    for (int i = 0; i < n_peaks; i++) {
        peaks[i] = stats_rate(&cases[n + i].result, probe_work(fma[i]));
        probe_free(fma[i]);
    }
    for (int i = 0; i < n; i++) {
        int used = rungs[i].run ? 1 : threads; /* hand-written rungs are single-threaded */
        if (strcmp(wanted, e[i].work)) ladder_reference(wanted = e[i].work, &e[i].p, want, bound);
        check(c, &e[i], &rows[i], want, bound);
        rows[i].work = work;
        rows[i].rung = rungs[i].name;
        rows[i].size = size;
        rows[i].threads = used;
        row_time(&rows[i], &cases[i].result, ladder_flops(e[i].work, &e[i].p), peaks[used > 1]);
        if (e[i].program) {
            tn_program_stats s;
            tn_program_get_stats(e[i].program, &s);
            rows[i].mode = "compiled";
            rows[i].compile_us = e[i].compile_us;
            rows[i].kernels = s.kernels;
            rows[i].bytes_read = (int64_t)s.bytes_read;
            rows[i].bytes_written = (int64_t)s.bytes_written;
        }
        tn_session_free(e[i].session);
        tn_program_free(e[i].program);
        tn_graph_free(e[i].graph);
        buffer_free(e[i].p.y);
    }
    free(label);
    free(e);
    free(cases);
    free(want);
    free(bound);
    buffer_free(d.x);
    buffer_free(d.w);
    buffer_free(d.b);
    buffer_free(d.scratch);
}

/* One line a rung over the sizes. */
static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    (void)buffer;
    (void)n;
    return r->rung;
}
static double size_of_row(const bench_row *r) { return (double)r->size; }
static double gflops_of_row(const bench_row *r) { return r->gflops; }

int bench_ladder(cli *c, const char *work) {
    const char *device = cli_device(c);
    if (strcmp(device, "cpu")) return bench_device_ladder(c, work, device);
    int n_rungs;
    const ladder_rung *rungs = ladder_rungs(work, &n_rungs);
    if (!rungs) cli_usage(c, "there is no ladder %s (matmul, relu, softmax, fused)", work);
    int64_t sizes[MAX_SIZES];
    int n_sizes = cli_ints(c, "sizes", "64-1024*2", sizes, MAX_SIZES, 1, 8192);
    uint64_t seed = (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX);
    cli_note(c, "measuring the machine");
    ceiling m = ceiling_measure((int)cli_int(c, "threads", 1, 0, 256));
    bench_row *rows = cli_alloc(sizeof(bench_row) * (size_t)(n_rungs * n_sizes));
    for (int s = 0; s < n_sizes; s++)
        measure_size(c, work, rungs, n_rungs, sizes[s], &m, rows + s * n_rungs, seed + (uint64_t)s);
    char *command = cli_format("bench ladder %s", work);
    rows_report(c, command, NULL, &m, NULL, rows, n_rungs * n_sizes);
    char *title = cli_format("Ladder: %s, from naive to generated", work);
    rows_plot(c,
              &(chart){ .title = title,
                        .x_label = "size n (matrices n x n)",
                        .x_of = size_of_row,
                        .panel = { { "GFLOP/s", line_of, gflops_of_row } } },
              rows, n_rungs * n_sizes);
    free(title);
    free(command);
    free(rows);
    return CLI_OK;
}
