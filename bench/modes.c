/* modes.c - `tenon bench modes`: one random network, run in every mode, with the kernel cache and without it, timed in
 * turns, outputs compared element by element.
 *
 * Equal work inside every timer: the input is bound, the network runs, the output is there. With the cache a variant is
 * compiled before its timer starts; compilation and the transfer of parameters are measured apart. Without it a variant
 * compiles every kernel inside its timer: once a run, or in loop mode once a call of many steps. `naive` is immediate mode
 * without the cache. With another device than the CPU every variant runs on both, and rows "crossover" have the size from which
 * the device stays faster. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_LIST = 16,
    MAX_VARIANTS = 40, /* four modes, of which two have four fusion levels, with and without the cache, on two devices */
    MAX_ROWS = 4096,
    LOOP_STEPS = 100 /* of a call that compiles; fewer where they take more than LOOP_SECONDS */
};
static const double LOOP_SECONDS = 2;

typedef struct variant { /* one mode at one fusion level, with the kernel cache or without */
    cli *c;
    const char *mode;
    tn_compile_opts opts;
    char *label, *when; /* when: it is compiled */
    int64_t steps;      /* of a call */
    tn_graph *graph;
    tn_program *program;
    tn_session *session;
    float *x, *y;
    double compile_us, transfer_us;
} variant;

typedef struct plan { /* what the command line asks for */
    int64_t depths[MAX_LIST], sizes[MAX_LIST], batches[MAX_LIST], fusions[MAX_LIST];
    int n_depths, n_sizes, n_batches, n_fusions, n_modes, threads;
    char *modes[MAX_LIST];
    bool cache[2]; /* off, on */
    char **when;   /* texts of the rows */
    int n_when;
    const char *device;
    double seconds;
    uint64_t seed;
} plan;

static void need(const variant *v, tn_status s) {
    if (s) cli_fail(v->c, "%s: %s: %s", v->label, tn_status_name(s), tn_ctx_error(v->c->ctx));
}

static void bind(variant *v, tn_session *s) {
    need(v, tn_session_bind(s, tn_session_slot(s, "x"), v->x));
    need(v, tn_session_bind(s, tn_session_slot(s, "y"), v->y));
}

static void run_session(void *ud, int64_t times) {
    variant *v = ud;
    for (int64_t i = 0; i < times; i++) need(v, tn_session_run(v->session));
}
static bool is_loop(const variant *v) { return v->opts.mode == TN_MODE_LOOP; }

/* All steps in one call; each reads x and writes y, as a run does. */
static void run_steps(variant *v, tn_session *s, int64_t steps) {
    tn_binding ring = { "x", v->x };
    need(v, tn_run_n(s, steps, &ring, 1, 1));
}
static void run_loop(void *ud, int64_t times) {
    variant *v = ud;
    run_steps(v, v->session, times);
}
/* Every kernel is compiled again: for every run, or for all `times` steps of a call. */
static void run_anew(void *ud, int64_t times) {
    variant *v = ud;
    for (int64_t i = 0; i < times; i += is_loop(v) ? times : 1) {
        tn_program *p;
        tn_session *s;
        need(v, tn_compile(v->graph, &v->opts, &p));
        need(v, tn_session_new(p, &s));
        bind(v, s);
        if (is_loop(v))
            run_steps(v, s, times);
        else
            need(v, tn_session_run(s));
        tn_session_free(s);
        tn_program_free(p);
    }
}
enum { DEVICE_STEPS = 128 /* of a call: many, so that they may overlap and the transfers round them hardly count */ };

/* Seconds to hand every parameter of the session over once more, and the input: what a device with memory of its own would wait
 * for. */
static double transfer_seconds(variant *v, size_t x_bytes) {
    double best = INFINITY;
    int n = tn_session_n_states(v->session);
    float *input = cli_alloc(x_bytes);
    for (int round = 0; round < 3; round++) {
        double spent = 0;
        for (int i = 0; i < n; i++) {
            const char *name;
            tn_dtype t;
            tn_shape s;
            need(v, tn_session_state(v->session, i, &name, &t, &s));
            value p = value_new(t, s);
            need(v, tn_session_get(v->session, name, p.data, p.bytes));
            double start = cli_seconds();
            need(v, tn_session_set(v->session, name, p.data, p.bytes));
            spent += cli_seconds() - start;
            value_free(&p);
        }
        double start = cli_seconds();
        memcpy(input, v->x, x_bytes);
        __asm__ volatile("" ::: "memory");
        spent += cli_seconds() - start;
        if (spent < best) best = spent;
    }
    free(input);
    return best;
}

static void make_ready(variant *v, const float *x, int64_t count) {
    v->x = buffer_new((size_t)count * sizeof(float));
    v->y = buffer_new((size_t)count * sizeof(float));
    memcpy(v->x, x, (size_t)count * sizeof(float));
    double start = cli_seconds();
    need(v, tn_compile(v->graph, &v->opts, &v->program));
    v->compile_us = (cli_seconds() - start) * 1e6;
    need(v, tn_session_new(v->program, &v->session));
    bind(v, v->session);
    v->steps = 1;
    if (is_loop(v) && v->opts.no_cache) {
        run_loop(v, 1); /* a device's first run takes longer than those after it */
        start = cli_seconds();
        run_loop(v, 1);
        double fit = LOOP_SECONDS / (cli_seconds() - start + 1e-9);
        v->steps = fit < 1 ? 1 : fit < LOOP_STEPS ? (int64_t)fit : LOOP_STEPS;
    }
    v->when = !v->opts.no_cache ? cli_format("compiled before")
              : is_loop(v)      ? cli_format("compiled in each call of %lld", (long long)v->steps)
                                : cli_format("compiled in each run");
    v->transfer_us = transfer_seconds(v, (size_t)count * sizeof(float)) * 1e6;
}

static bool has_fusion(const char *mode) { return !strcmp(mode, "compiled") || !strcmp(mode, "loop"); }

static variant make_variant(cli *c, const plan *p, const char *mode, int fusion, bool cache, const char *device) {
    variant v = { .c = c, .mode = mode, .opts = TN_COMPILE_DEFAULTS };
    v.opts.mode = cli_mode(c, mode);
    v.opts.fusion = fusion;
    v.opts.no_cache = !cache;
    v.opts.threads = p->threads;
    v.opts.device = device;
    if (v.opts.mode == TN_MODE_IMMEDIATE && !cache) v.mode = "naive";
    char level[16] = "";
    if (has_fusion(mode)) snprintf(level, sizeof level, ", fusion %d", fusion);
    v.label = cli_format("%s%s%s, %s", v.mode, level, cache || !strcmp(v.mode, "naive") ? "" : ", no cache", device);
    return v;
}

/* "naive" is one that "immediate" may have brought already. */
static int add_variant(variant *out, int n, variant v) {
    for (int i = 0; i < n; i++) {
        if (strcmp(out[i].label, v.label)) continue;
        free(v.label);
        return n;
    }
    out[n] = v;
    return n + 1;
}

static int add_variants(cli *c, const plan *p, const char *device, variant *out) {
    int n = 0;
    for (int i = 0; i < p->n_modes; i++) {
        const char *mode = p->modes[i];
        bool naive = !strcmp(mode, "naive");
        for (int cache = 0; cache < 2; cache++) {
            if (naive ? cache : !p->cache[cache]) continue;
            for (int f = 0; f < (has_fusion(mode) ? p->n_fusions : 1); f++) {
                int fusion = has_fusion(mode) ? (int)p->fusions[f] : 0;
                n = add_variant(out, n, make_variant(c, p, naive ? "immediate" : mode, fusion, cache, device));
            }
        }
    }
    return n;
}

/* Those of the device, then the same on the CPU. */
static int make_variants(cli *c, const plan *p, variant *out) {
    int n = add_variants(c, p, p->device, out);
    return strcmp(p->device, "cpu") ? n + add_variants(c, p, "cpu", out + n) : n;
}

/* How far f32 may be from double at the end of a network of this depth: every layer adds about the error of one contraction,
 * softmax turns an error of its argument into a relative one. Results are at most 1. */
static double error_bound(int64_t depth, int64_t size) { return 4 * (double)depth * sqrt((double)size + 1) * 0x1p-24; }

static void compare(variant *v, bench_row *r, const double *want, int64_t n, double bound) {
    if (cli_flag(v->c, "plant-error")) v->y[n / 2] += 1;
    bool finite = row_error(r, v->y, want, n);
    r->err_bound = bound;
    if (finite && r->max_abs_err <= bound) return;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)v->y[i] - want[i]);
        if (d <= bound) continue;
        cli_fail(v->c, "%s, depth %lld, size %lld, batch %lld: element %lld is %.9g, in double %.17g; %g is allowed", v->label,
                 (long long)r->depth, (long long)r->size, (long long)r->batch, (long long)i, (double)v->y[i], want[i], bound);
    }
}

/* The network in double by plain loops, for sizes that take the reference evaluator minutes. */
static double *network_double(const variant *v, const char *layers, const float *input, int64_t size, int64_t batch) {
    size_t count = (size_t)(size * batch);
    double *x = cli_alloc(count * sizeof(double)), *y = cli_alloc(count * sizeof(double));
    float *w = cli_alloc((size_t)(size * size) * sizeof(float)), *b = cli_alloc((size_t)size * sizeof(float));
    for (size_t i = 0; i < count; i++) x[i] = (double)input[i];
    for (int l = 0; layers[l]; l++) {
        if (layers[l] == 'R') {
            for (size_t i = 0; i < count; i++) x[i] = x[i] > 0 ? x[i] : 0;
            continue;
        }
        char *w_name = cli_format("linear%d.weight", l), *b_name = cli_format("linear%d.bias", l);
        need(v, tn_session_get(v->session, w_name, w, (size_t)(size * size) * sizeof(float)));
        need(v, tn_session_get(v->session, b_name, b, (size_t)size * sizeof(float)));
        for (size_t i = 0; i < count; i++) y[i] = (double)b[i % (size_t)size];
        product_double(x, w, batch, size, size, y);
        double *t = x;
        x = y;
        y = t;
        free(w_name);
        free(b_name);
    }
    for (double *row = x; row < x + count; row += size) {
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < size; j++) top = fmax(top, row[j]);
        for (int64_t j = 0; j < size; j++) sum += row[j] = exp(row[j] - top);
        for (int64_t j = 0; j < size; j++) row[j] /= sum;
    }
    free(y);
    free(w);
    free(b);
    return x;
}

static double network_flops(int64_t size, int64_t batch, int64_t linears, int64_t relus) {
    double elements = (double)size * (double)batch;
    return elements * ((2.0 * (double)size + 1) * (double)linears + (double)relus + 5);
}

/* device: NULL where there is only one. */
static void fill_row(bench_row *r, const variant *v, const char *device, const stats *s, double flops, rate peak) {
    tn_program_stats facts;
    tn_program_get_stats(v->program, &facts);
    r->work = "mlp";
    r->mode = v->mode;
    r->device = device;
    r->cache = v->opts.no_cache ? "off" : "on";
    r->fusion = v->opts.fusion;
    r->threads = facts.threads;
    r->compile_us = v->compile_us;
    r->transfer_us = v->transfer_us;
    r->kernels = facts.kernels;
    r->bytes_read = (int64_t)facts.bytes_read;
    r->bytes_written = (int64_t)facts.bytes_written;
    if (!facts.kernels) r->kernels = r->bytes_read = r->bytes_written = -1; /* immediate programs do not count them */
    row_time(r, s, flops, peak);
}

/* A text that lives as long as the rows; frees the one given. */
static const char *keep_text(plan *p, char *text) {
    for (int i = 0; i < p->n_when; i++) {
        if (strcmp(p->when[i], text)) continue;
        free(text);
        return p->when[i];
    }
    char **more = cli_alloc(sizeof(char *) * (size_t)(p->n_when + 1));
    if (p->n_when) memcpy(more, p->when, sizeof(char *) * (size_t)p->n_when);
    free(p->when);
    p->when = more;
    return p->when[p->n_when++] = text;
}

/* All variants of one network. Returns the number of rows written. */
static int measure_network(cli *c, plan *p, int64_t depth, int64_t size, int64_t batch, const ceiling *m, rivals *rival,
                           bench_row *rows) {
    variant v[MAX_VARIANTS];
    stats_case cases[MAX_VARIANTS + 1 + MAX_RIVALS];
    int n = make_variants(c, p, v);
    int64_t linears, relus, count = size * batch;
    tn_graph *g = model_mlp(c, depth, size, batch, p->seed, &linears, &relus);
    float *x = cli_alloc((size_t)count * sizeof(float));
    uint64_t seed = p->seed + 77;
    for (int64_t i = 0; i < count; i++) x[i] = (float)random_gauss(&seed);

    char *label = cli_format("depth %lld size %lld batch %lld", (long long)depth, (long long)size, (long long)batch);
    progress bar = progress_begin(c, label, n);
    progress_step(&bar, 0, "double-precision evaluation");
    char *layers = model_mlp_layers(depth, p->seed);
    tn_ir_eval *eval = NULL;
    int64_t n_want = count;
    double *own = NULL;
    const double *want = NULL;
    cli_ctx(c);
    if (network_flops(size, batch, linears, relus) < 1e9) {
        cli_need(c, tn_ir_evaluate(g, TN_BIND({ "x", x }), &eval));
        tn_tensor y;
        cli_need(c, tn_ir_get_output(g, 0, NULL, &y, NULL));
        want = tn_ir_eval_values(eval, y, &n_want);
    }
    double bound = error_bound(depth, size);

    for (int i = 0; i < n; i++) {
        progress_step(&bar, i, v[i].label);
        v[i].graph = g;
        make_ready(&v[i], x, count);
        if (!want) want = own = network_double(&v[i], layers, x, size, batch);
        bool anew = v[i].opts.no_cache;
        cases[i] = (stats_case){ anew ? run_anew : is_loop(&v[i]) ? run_loop : run_session, .ud = &v[i], .label = v[i].label };
        if (is_loop(&v[i])) cases[i].least = anew ? v[i].steps : strcmp(v[i].opts.device, "cpu") ? DEVICE_STEPS : 0;
        rows[i] = row_empty();
        rows[i].depth = depth;
        rows[i].size = size;
        rows[i].batch = batch;
        memset(v[i].y, 0xff, (size_t)count * sizeof(float)); /* NaN: a run that writes nothing is seen */
        cases[i].slow = anew;
        if (anew) continue; /* its timed runs are checked, and are few */
        cases[i].run(&v[i], 1);
        compare(&v[i], &rows[i], want, n_want, bound);
    }
    probe *fma = probe_new(PROBE_FMA, p->threads ? p->threads : m->cores, 0);
    cases[n] = probe_case(fma, "peak");
    int which[MAX_RIVALS], n_rivals = 0;
    if (rival) {
        progress_step(&bar, n, "rivals get ready");
        char *spec = cli_format("mlp size=%lld batch=%lld layers=%s", (long long)size, (long long)batch, layers);
        n_rivals = rivals_prepare(rival, spec, cases + n + 1, which);
        free(spec);
    }
    stats_measure(cases, n + 1 + n_rivals, p->seconds, &bar);
    progress_end(&bar);
    rate peak = stats_rate(&cases[n].result, probe_work(fma));
    probe_free(fma);
    for (int i = 0; i < n; i++) {
        compare(&v[i], &rows[i], want, n_want, bound); /* the timed runs' result */
        rows[i].variant = keep_text(p, v[i].when);
        fill_row(&rows[i], &v[i], strcmp(p->device, "cpu") ? v[i].opts.device : NULL, &cases[i].result,
                 network_flops(size, batch, linears, relus), strcmp(v[i].opts.device, "cpu") ? (rate){ 0 } : peak);
        row_rivals(&rows[i], &cases[n + 1], which, n_rivals);
        tn_session_free(v[i].session);
        tn_program_free(v[i].program);
        buffer_free(v[i].x);
        buffer_free(v[i].y);
        free(v[i].label);
    }
    if (rival) rivals_forget(rival);
    tn_ir_eval_free(eval);
    free(own);
    free(layers);
    tn_graph_free(g);
    free(label);
    free(x);
    return n;
}

static void read_cache(cli *c, plan *p) {
    const char *list = cli_text(c, "cache", "on,off");
    char *words[MAX_LIST];
    int n = cli_words(c, list, words, MAX_LIST);
    for (int i = 0; i < n; i++) {
        bool on = !strcmp(words[i], "on");
        if (!on && strcmp(words[i], "off")) cli_usage(c, "--cache: '%s' is not on or off", words[i]);
        p->cache[on] = true;
        free(words[i]);
    }
}

static plan read_plan(cli *c) {
    plan p = { .device = cli_device(c) };
    p.n_depths = cli_ints(c, "depths", "64", p.depths, MAX_LIST, 2, 100000);
    p.n_sizes = cli_ints(c, "sizes", "4-256*2", p.sizes, MAX_LIST, 1, 16384);
    const char *batch = cli_text(c, "batch", "size");
    if (!strcmp(batch, "size"))
        p.n_batches = 1, p.batches[0] = 0;
    else
        p.n_batches = cli_ints(c, "batch", NULL, p.batches, MAX_LIST, 1, 1 << 20);
    p.n_fusions = cli_ints(c, "fusion", "0,3", p.fusions, MAX_LIST, 0, 3);
    read_cache(c, &p);
    p.n_modes = cli_words(c, cli_text(c, "modes", "naive,immediate,graph,compiled,loop"), p.modes, MAX_LIST);
    for (int i = 0; i < p.n_modes; i++) {
        if (strcmp(p.modes[i], "naive")) cli_mode(c, p.modes[i]); /* names are right before anything long starts */
    }
    p.threads = (int)cli_int(c, "threads", 0, 0, 256);
    p.seconds = cli_number(c, "seconds", 0.3, 0.001, 3600);
    p.seed = (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX);
    return p;
}

/* One line a variant over sizes, or over depths where several depths share one size. */
static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    int used = snprintf(buffer, n, has_fusion(r->mode) ? "%s, fusion %d" : "%s", r->mode, (int)r->fusion);
    if (!strcmp(r->cache, "off") && strcmp(r->mode, "naive")) used += snprintf(buffer + used, n - (size_t)used, ", no cache");
    if (r->device) snprintf(buffer + used, n - (size_t)used, ", %s", r->device);
    return buffer;
}
static double size_of_row(const bench_row *r) { return (double)r->size; }
static double depth_of_row(const bench_row *r) { return (double)r->depth; }
static double median_of_row(const bench_row *r) { return r->median_us; }

/* The size from which each variant of the device stays faster than its twin on the CPU, none if it never is. rows: by depth,
 * size, batch and variant. Returns the number of rows written behind them. */
static int add_crossovers(const plan *p, bench_row *rows, int n) {
    int n_cases = p->n_depths * p->n_sizes * p->n_batches, n_variants = n / n_cases, half = n_variants / 2, added = 0;
    if (!strcmp(p->device, "cpu")) return 0;
    for (int d = 0; d < p->n_depths; d++)
        for (int b = 0; b < p->n_batches; b++)
            for (int v = 0; v < half; v++) {
                bench_row *out = &rows[n + added++];
                *out = row_empty();
                for (int s = p->n_sizes - 1; s >= 0; s--) {
                    const bench_row *r = &rows[((d * p->n_sizes + s) * p->n_batches + b) * n_variants + v];
                    out->mode = r->mode, out->cache = r->cache, out->fusion = r->fusion, out->depth = r->depth,
                    out->device = r->device;
                    if (r->median_us >= r[half].median_us) break;
                    out->size = r->size, out->batch = r->batch;
                }
                out->work = "crossover";
            }
    return added;
}

int bench_modes(cli *c) {
    static const char note[] =
        "cache off (no cache, naive): every kernel is compiled again inside the timer, in each run, or in "
        "each call of many steps of loop mode";
    plan p = read_plan(c);
    cli_note(c, "measuring the machine");
    ceiling m = ceiling_measure(p.threads);
    rivals *rival = rivals_open(c, p.threads ? p.threads : m.cores);
    rivals_same_cpus(rival, true);
    bench_row *rows = cli_alloc(sizeof(bench_row) * 2 * MAX_ROWS); /* crossovers are fewer than rows */
    int n = 0;
    for (int d = 0; d < p.n_depths; d++) {
        for (int s = 0; s < p.n_sizes; s++) {
            for (int b = 0; b < p.n_batches; b++) {
                if (n + MAX_VARIANTS > MAX_ROWS) cli_usage(c, "more than %d rows", MAX_ROWS);
                int64_t batch = p.batches[b] ? p.batches[b] : p.sizes[s];
                n += measure_network(c, &p, p.depths[d], p.sizes[s], batch, &m, rival, rows + n);
            }
        }
    }
    n += add_crossovers(&p, rows, n);
    rows_report(c, "bench modes", note, &m, rival, rows, n);
    bool by_depth = p.n_sizes == 1 && p.n_depths > 1;
    rows_plot(c,
              &(chart){ .title = "Random Linear/ReLU networks ending in softmax, by mode",
                        .note = note,
                        .x_label = by_depth ? "depth (nodes)" : "size (width of a layer)",
                        .x_of = by_depth ? depth_of_row : size_of_row,
                        .panel = { { "microseconds a run (median)", line_of, median_of_row } } },
              rows, n);
    free(rows);
    rivals_close(rival);
    for (int i = 0; i < p.n_modes; i++) free(p.modes[i]);
    for (int i = 0; i < p.n_when; i++) free(p.when[i]);
    free(p.when);
    return CLI_OK;
}
