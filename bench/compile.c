/* compile.c - `tenon bench compile`: from the first call of a builder to a session that is ready to run, cold: a new
 * context each time, without a cache on disk; beside it what it may take. Each result is run once and checked against the
 * reference evaluator. */
#include "suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct compiled {
    const char *name, *spec, *rival;
    tn_mode mode;
    double tolerance;
    double budget_us; /* what it may take, by design */
    cli *c;
    int threads;
    tn_graph *graph; /* of the last run */
    tn_program *program;
    tn_session *session;
} compiled;

static const compiled works[] = {
    { .name = "one kernel",
      .spec = "@matmul:64x64x64",
      .rival = "compile what=kernel",
      .mode = TN_MODE_COMPILED,
      .tolerance = 1e-5,
      .budget_us = 50 },
    { .name = "course network, depth 64",
      .spec = "@mlp:64x64x64",
      .rival = "compile what=course",
      .mode = TN_MODE_COMPILED,
      .tolerance = 1e-4,
      .budget_us = 5000 },
    { .name = "digits training graph",
      .spec = "@digits-train:32",
      .rival = "compile what=digits",
      .mode = TN_MODE_LOOP,
      .tolerance = 1e-4,
      .budget_us = 10000 },
};

static void drop(compiled *k) {
    tn_session_free(k->session);
    tn_program_free(k->program);
    tn_graph_free(k->graph);
    tn_ctx_free(k->c->ctx);
    k->c->ctx = NULL;
}

/* The context is made outside the timer. c->ctx, which the model builders use, is this work's from here on. */
static double build_once(compiled *k, uint64_t seed) {
    tn_config cfg = { .struct_size = sizeof cfg };
    tn_config_from_env(&cfg);
    cfg.cache_dir = NULL;
    k->c->ctx = tn_ctx_new(&cfg);
    if (!k->c->ctx) cli_fail(k->c, "out of memory");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = k->mode;
    o.threads = k->threads;
    double start = cli_seconds();
    k->graph = model_open(k->c, k->spec, seed);
    cli_need(k->c, tn_compile(k->graph, &o, &k->program));
    cli_need(k->c, tn_session_new(k->program, &k->session));
    return cli_seconds() - start;
}

static double clock_build(void *ud, int64_t times) {
    compiled *k = ud;
    double spent = 0;
    for (int64_t i = 0; i < times; i++) {
        spent += build_once(k, 1);
        drop(k);
    }
    return spent;
}

/* One more build, whose outputs must be right. */
static void check(compiled *k, bench_row *r) {
    build_once(k, 1);
    tn_program_stats facts;
    tn_program_get_stats(k->program, &facts);
    r->kernels = facts.kernels;
    ports io = ports_new(k->c, k->program);
    bool quiet = k->c->quiet; /* that the inputs are random goes without saying */
    k->c->quiet = true;
    ports_fill(k->c, &io, k->graph, 1);
    k->c->quiet = quiet;
    ports_poison(&io);
    tn_binding in[SUITE_MAX_PORTS];
    int n_in = 0;
    for (int i = 0; i < io.n; i++) {
        if (io.kind[i] == 'i' && n_in < SUITE_MAX_PORTS) in[n_in++] = (tn_binding){ io.name[i], io.value[i].data };
    }
    tn_ir_eval *e;
    cli_need(k->c, tn_ir_evaluate(k->graph, in, n_in, &e));
    ports_bind(k->c, k->session, &io);
    cli_need(k->c, k->mode == TN_MODE_LOOP ? tn_run_n(k->session, 1, in, n_in, 1) : tn_session_run(k->session));
    for (int i = 0; i < tn_ir_n_outputs(k->graph); i++) {
        const char *name;
        tn_tensor y, state;
        cli_need(k->c, tn_ir_get_output(k->graph, i, &name, &y, &state));
        if (state.id) continue;
        int64_t n;
        const double *want = tn_ir_eval_values(e, y, &n);
        float *got = io.value[ports_find(&io, name)].data;
        if (cli_flag(k->c, "plant-error")) got[0] += 1;
        row_error(r, got, want, n);
        double top = 0;
        for (int64_t j = 0; j < n; j++) top = fmax(top, fabs(want[j]));
        r->err_bound = k->tolerance * top;
        if (!(r->max_abs_err <= r->err_bound))
            cli_fail(k->c, "%s: %s is off by %g, %g is allowed", k->name, name, r->max_abs_err, r->err_bound);
    }
    tn_ir_eval_free(e);
    ports_free(&io);
    drop(k);
}

static void measure(suite *s, const compiled *work, int which) {
    if (!suite_wants(s, work->name)) return;
    compiled k = *work;
    stats_case at[1 + MAX_RIVALS];
    int rival[MAX_RIVALS], n = 1;
    bench_row r = row_empty();
    k.c = s->c;
    k.threads = (int)s->threads[which];
    r.work = "compile";
    r.name = k.name;
    r.mode = cli_mode_name(k.mode);
    r.threads = k.threads;
    rivals *others = suite_rivals(s, which);
    rivals_same_cpus(others, true);
    progress bar = progress_begin(s->c, k.name, 1);
    check(&k, &r);
    double first = clock_build(&k, 1);
    at[0] = (stats_case){ .clock = clock_build, .ud = &k, .label = k.name, .slow = first > 0.02 };
    if (others) n += rivals_prepare(others, k.rival, at + 1, rival);
    for (int i = 1; i < n; i++) at[i].slow = true;
    stats_measure(at, n, s->seconds, &bar);
    progress_end(&bar);
    row_time(&r, &at[0].result, 0, (rate){ 0, 0 });
    r.budget_us = k.budget_us, r.budget_ratio = k.budget_us / r.median_us;
    row_rivals(&r, at + 1, rival, n - 1);
    suite_add(s, r);
    if (others) rivals_forget(others);
    rivals_same_cpus(others, false);
}

static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    (void)buffer;
    (void)n;
    return r->variant ? r->variant : r->name;
}
static double x_of(const bench_row *r) { return (double)(r->variant ? r->size : r->threads); }
static double y_of(const bench_row *r) { return r->median_us; }

int bench_compile(cli *c) {
    suite s = suite_begin(c, "bench compile");
    if (c->ctx) tn_ctx_free(c->ctx);
    c->ctx = NULL;
    int n = s.device ? 0 : cli_text(c, "threads", NULL) ? s.n_threads : 1; /* compiling does not depend on it */
    if (s.device) bench_device_compile(&s);
    for (int t = 0; t < n; t++) {
        for (size_t i = 0; i < COUNT_OF(works); i++) measure(&s, &works[i], t);
    }
    suite_report(&s);
    rows_plot(c,
              &(chart){ .title = s.device ? "From a graph to a program" : "From the first builder to ready",
                        .x_label = s.device ? "size" : "threads",
                        .x_of = x_of,
                        .panel = { { "microseconds (median)", line_of, y_of } } },
              s.rows, s.n_rows);
    suite_end(&s);
    return CLI_OK;
}
