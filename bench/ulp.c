/* ulp.c - `tenon bench ulp`: how exact the elementwise functions of f32 are, over a sample of all bit patterns or all of
 * them, and how fast. Exact values are the C library's in double precision, whose own error does not show here. */
#include "bench.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1 << 15, MAX_WORKERS = 64 };

typedef struct work {
    const char *name; /* of the op, or of something that is only timed */
    tn_tensor (*one)(tn_tensor x);
    tn_tensor (*two)(tn_tensor x, tn_tensor y);
    double (*exact)(double x), (*exact_two)(double x, double y);
    double lo, hi; /* arguments of the timing */
} work;

static double exact_rsqrt(double x) { return 1 / sqrt(x); }
static double exact_mod(double x, double y) { /* a zero has the sign of the divisor, too */
    double r = fmod(x, y);
    if (r == 0) return copysign(0.0, y);
    return (r < 0) != (y < 0) ? r + y : r;
}
static tn_tensor to_half(tn_tensor x) { return tn_cast(x, TN_F16); }
static tn_tensor from_half(tn_tensor x) { return tn_cast(x, TN_F32); }
static tn_tensor drawn(tn_tensor counter) { return tn_random_uniform(counter, 7, TN_DIMS(BLOCK)); }

static const work works[] = {
    { "sqrt", tn_sqrt, NULL, sqrt, NULL, 0, 9 },        { "rsqrt", tn_rsqrt, NULL, exact_rsqrt, NULL, 0.1, 9 },
    { "exp", tn_exp, NULL, exp, NULL, -10, 10 },        { "expm1", tn_expm1, NULL, expm1, NULL, -4, 4 },
    { "log", tn_log, NULL, log, NULL, 0.01, 9 },        { "log1p", tn_log1p, NULL, log1p, NULL, -0.9, 4 },
    { "sin", tn_sin, NULL, sin, NULL, -6, 6 },          { "cos", tn_cos, NULL, cos, NULL, -6, 6 },
    { "tan", tn_tan, NULL, tan, NULL, -6, 6 },          { "asin", tn_asin, NULL, asin, NULL, -1, 1 },
    { "acos", tn_acos, NULL, acos, NULL, -1, 1 },       { "atan", tn_atan, NULL, atan, NULL, -4, 4 },
    { "sinh", tn_sinh, NULL, sinh, NULL, -4, 4 },       { "cosh", tn_cosh, NULL, cosh, NULL, -4, 4 },
    { "tanh", tn_tanh, NULL, tanh, NULL, -4, 4 },       { "asinh", tn_asinh, NULL, asinh, NULL, -4, 4 },
    { "acosh", tn_acosh, NULL, acosh, NULL, 1, 9 },     { "atanh", tn_atanh, NULL, atanh, NULL, -1, 1 },
    { "exp2", tn_exp2, NULL, exp2, NULL, -10, 10 },     { "log2", tn_log2, NULL, log2, NULL, 0.01, 9 },
    { "erfc", tn_erfc, NULL, erfc, NULL, -3, 9 },       { "atan2", NULL, tn_atan2, NULL, atan2, 0.1, 4 },
    { "hypot", NULL, tn_hypot, NULL, hypot, 0.1, 4 },   { "trunc", tn_trunc, NULL, trunc, NULL, -40, 40 },
    { "erf", tn_erf, NULL, erf, NULL, -3, 3 },          { "pow", NULL, tn_pow, NULL, pow, 0.1, 4 },
    { "mod", NULL, tn_mod, NULL, exact_mod, 0.1, 40 },  { "random", drawn, NULL, NULL, NULL, 0, 0 },
    { "f32 to f16", to_half, NULL, NULL, NULL, -4, 4 }, { "f16 to f32", from_half, NULL, NULL, NULL, -4, 4 },
};

typedef struct subject { /* one function, compiled for blocks */
    cli *c;
    const work *w;
    double bound;
    tn_program *program;
} subject;
typedef struct lane { /* a session with its buffers */
    tn_session *session;
    void *x, *y, *z; /* z: the result */
} lane;

static subject subject_new(cli *c, const work *w) {
    subject s = { .c = c, .w = w, .bound = -1 };
    for (int i = 0; i < tn_ir_n_ops(); i++) {
        tn_ir_op op;
        if (!tn_ir_get_op(i, &op) && !strcmp(op.name, w->name)) s.bound = op.ulp;
    }
    tn_graph *g = tn_graph_new(cli_ctx(c), w->name);
    if (!g) cli_fail(c, "out of memory");
    bool draws = w->one == drawn;
    tn_shape shape = { draws ? 0 : 1, { BLOCK } };
    tn_tensor x = tn_input(g, "x", draws ? TN_I64 : w->one == from_half ? TN_F16 : TN_F32, shape);
    tn_output(w->one ? w->one(x) : w->two(x, tn_input(g, "y", TN_F32, TN_DIMS(BLOCK))), "z");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = 1;
    cli_need(c, tn_compile(g, &o, &s.program));
    tn_graph_free(g);
    return s;
}

static lane lane_new(const subject *s) {
    size_t n = BLOCK * sizeof(float);
    lane l = { NULL, buffer_new(n), buffer_new(n), buffer_new(n) };
    cli_need(s->c, tn_session_new(s->program, &l.session));
    void *const data[] = { l.x, l.y, l.z };
    for (int i = 0; i < 3; i++) {
        int slot = tn_session_slot(l.session, (const char[]){ "xyz"[i], 0 });
        if (slot >= 0) cli_need(s->c, tn_session_bind(l.session, slot, data[i]));
    }
    return l;
}
static void lane_free(lane *l) {
    tn_session_free(l->session);
    buffer_free(l->x);
    buffer_free(l->y);
    buffer_free(l->z);
}

/* ---- errors ---- */

/* |got - want| in units of the last place of an f32 near want; infinity counts as 2^128, the value after the largest. A NaN on
 * one side only, or a zero of the wrong sign, is an infinite error. */
static double ulps(float got, double want) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (want == 0 && got == 0) return !signbit(want) == !signbit(got) ? 0 : INFINITY;
    double g = isinf(got) ? copysign(0x1p128, (double)got) : (double)got;
    double w = fabs(want) > 0x1p128 ? copysign(0x1p128, want) : want, error = fabs(g - w);
    if (error == 0) return 0;
    int e;
    frexp(w, &e); /* w = m 2^e with m in [1/2, 1) */
    return ldexp(error, 24 - (e < -125 ? -125 : e > 128 ? 128 : e));
}

static float from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

typedef struct job { /* of one thread: arguments from .. to - 1, which are every stride-th bit pattern, or random pairs */
    const subject *s;
    lane l;
    int64_t from, to;
    uint64_t stride, seed;
    bool spoil;
    _Atomic int64_t *done;
    progress *bar;
    int64_t total;
    double worst, at[2];
    tn_status status;
    pthread_t thread;
} job;

static void fill(job *j, int64_t from, int n) {
    float *x = j->l.x, *y = j->l.y;
    if (j->s->w->one) {
        for (int i = 0; i < n; i++) x[i] = from_bits((uint32_t)((uint64_t)(from + i) * j->stride));
        return;
    }
    for (int i = 0; i < n;
         i++) { /* pairs: any bits, numbers around 1, or whole numbers, whose powers and remainders are finite */
        uint64_t r = random_next(&j->seed), q = random_next(&j->seed);
        int kind = (int)(q >> 60) & 3;
        x[i] = from_bits((uint32_t)r), y[i] = from_bits((uint32_t)(r >> 32));
        if (kind == 0) continue;
        double a = random_unit(&j->seed), b = random_unit(&j->seed);
        x[i] = (float)exp((2 * a - 1) * (kind == 1 ? 1 : 20));
        y[i] = (float)((2 * b - 1) * (kind == 1 ? 120 : 4));
        if (kind == 3) x[i] = (float)(int)(40 * a - 20), y[i] = (float)(int)(20 * b - 10);
    }
}

static void *check(void *ud) {
    job *j = ud;
    const float *x = j->l.x, *y = j->l.y;
    const work *w = j->s->w;
    for (int64_t at = j->from; at < j->to && !j->status; at += BLOCK) {
        int n = (int)(j->to - at < BLOCK ? j->to - at : BLOCK);
        float *z = j->l.z;
        fill(j, at, n);
        j->status = tn_session_run(j->l.session);
        if (j->spoil && at == 0) z[n / 2] = 1e30f;
        for (int i = 0; i < n; i++) {
            double e = ulps(z[i], w->exact ? w->exact((double)x[i]) : w->exact_two((double)x[i], (double)y[i]));
            if (e > j->worst) j->worst = e, j->at[0] = (double)x[i], j->at[1] = (double)y[i];
        }
        int64_t done = atomic_fetch_add(j->done, n) + n;
        if (j->bar) progress_step(j->bar, done * 1000 / j->total, j->s->w->name);
    }
    return NULL;
}

static void measure_errors(const subject *s, bench_row *row, int64_t total, uint64_t stride, int threads, uint64_t seed) {
    job *jobs = cli_alloc(sizeof(job) * (size_t)threads);
    _Atomic int64_t done = 0;
    progress bar = progress_begin(s->c, "arguments (thousandths)", 1000);
    for (int t = 0; t < threads; t++) {
        int64_t blocks = (total + BLOCK - 1) / BLOCK;
        jobs[t] =
            (job){ .s = s, .l = lane_new(s), .stride = stride, .seed = seed + (uint64_t)t, .done = &done, .total = total };
        jobs[t].from = blocks * t / threads * BLOCK;
        jobs[t].to = t + 1 < threads ? blocks * (t + 1) / threads * BLOCK : total;
        jobs[t].bar = t ? NULL : &bar;
        jobs[t].spoil = cli_flag(s->c, "plant-error");
    }
    for (int t = 1; t < threads; t++)
        if (pthread_create(&jobs[t].thread, NULL, check, &jobs[t])) cli_fail(s->c, "cannot start %d threads", threads);
    check(&jobs[0]);
    row->max_ulp = 0;
    row->inputs = total;
    row->ulp_bound = s->bound;
    const job *worst = &jobs[0];
    for (int t = 0; t < threads; t++) {
        if (t) pthread_join(jobs[t].thread, NULL);
        if (jobs[t].status) cli_fail(s->c, "%s: %s", s->w->name, tn_session_error(jobs[t].l.session));
        if (jobs[t].worst > worst->worst) worst = &jobs[t];
        lane_free(&jobs[t].l);
    }
    progress_end(&bar);
    row->max_ulp = worst->worst;
    row->worst = s->w->one ? cli_format("%.9g", worst->at[0]) : cli_format("%.9g %.9g", worst->at[0], worst->at[1]);
    free(jobs);
}

/* ---- times ---- */

static void run_lane(void *ud, int64_t times) {
    const lane *l = ud;
    for (int64_t i = 0; i < times; i++)
        if (tn_session_run(l->session)) return;
}

static void measure_times(cli *c, const subject *s, bench_row *rows, int n, double seconds, uint64_t seed) {
    lane *l = cli_alloc(sizeof(lane) * (size_t)n);
    stats_case *cases = cli_alloc(sizeof(stats_case) * (size_t)(n + 1));
    for (int i = 0; i < n; i++) {
        const work *w = s[i].w;
        l[i] = lane_new(&s[i]);
        float *x = l[i].x, *y = l[i].y;
        for (int k = 0; k < BLOCK; k++) {
            x[k] = (float)(w->lo + (w->hi - w->lo) * random_unit(&seed));
            y[k] = (float)(w->lo + (w->hi - w->lo) * random_unit(&seed));
            if (w->one == from_half) ((uint16_t *)l[i].x)[k] = (uint16_t)(random_next(&seed) % 0x7c00);
        }
        cases[i] = (stats_case){ .run = run_lane, .ud = &l[i], .label = w->name };
    }
    probe *copy = probe_new(PROBE_COPY, 1, 2 * BLOCK * sizeof(float));
    cases[n] = probe_case(copy, "copy");
    progress bar = progress_begin(c, "times", n);
    stats_measure(cases, n + 1, seconds, &bar);
    progress_end(&bar);
    rate bandwidth = stats_rate(&cases[n].result, probe_work(copy));
    for (int i = 0; i < n; i++) {
        const work *w = s[i].w;
        double bytes = w->two ? 12 : w->one == drawn ? 4 : w->one == to_half || w->one == from_half ? 6 : 8;
        row_time(&rows[i], &cases[i].result, 0, (rate){ 0 });
        row_bandwidth(&rows[i], &cases[i].result, bytes * BLOCK, bandwidth);
        rows[i].us_per_million = rows[i].median_us * 1e6 / BLOCK;
        lane_free(&l[i]);
    }
    probe_free(copy);
    free(cases);
    free(l);
}

/* ---- the command ---- */

int bench_ulp(cli *c) {
    char *words[COUNT_OF(works)];
    const char *list = cli_text(c, "functions", NULL);
    int n_words = list ? cli_words(c, list, words, COUNT_OF(words)) : 0, n = 0, bad = 0;
    bool all = cli_flag(c, "all");
    int64_t samples = cli_int(c, "samples", 1 << 20, 1, 1ll << 32);
    double seconds = cli_number(c, "seconds", 0.3, 0, 1e4);
    uint64_t seed = (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX);
    ceiling m = ceiling_measure((int)cli_int(c, "threads", 0, 0, 256));
    int threads = (int)cli_int(c, "threads", 0, 0, 256);
    if (threads == 0) threads = m.cores;
    if (threads > MAX_WORKERS) threads = MAX_WORKERS;
    subject subjects[COUNT_OF(works)];
    bench_row rows[COUNT_OF(works)];
    for (size_t i = 0; i < COUNT_OF(works); i++) {
        bool wanted = n_words == 0;
        for (int k = 0; k < n_words; k++) wanted |= !strcmp(words[k], works[i].name);
        if (!wanted) continue;
        subjects[n] = subject_new(c, &works[i]);
        rows[n] = row_empty();
        rows[n].work = "ulp", rows[n].name = works[i].name, rows[n].threads = 1;
        n++;
    }
    if (n < n_words || !n) cli_usage(c, "--functions: some of '%s' do not exist", list);
    for (int i = 0; i < n; i++) {
        if (!subjects[i].w->exact && !subjects[i].w->exact_two) continue;
        bool every = all && subjects[i].w->one; /* an odd stride meets every exponent */
        int64_t total = every ? 1ll << 32 : samples;
        measure_errors(&subjects[i], &rows[i], total, every ? 1 : (uint64_t)((1ll << 32) / samples) | 1, threads, seed);
        bad += !(rows[i].max_ulp <= rows[i].ulp_bound);
    }
    measure_times(c, subjects, rows, n, seconds, seed);
    rows_report(c, "bench ulp", NULL, &m, NULL, rows, n);
    for (int i = 0; i < n; i++) {
        free((void *)(uintptr_t)rows[i].worst);
        tn_program_free(subjects[i].program);
    }
    if (bad) cli_fail(c, "%d of %d functions are further from the exact value than their bound", bad, n);
    return CLI_OK;
}
