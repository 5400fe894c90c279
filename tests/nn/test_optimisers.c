/* test_optimisers.c - optimisers with given gradients, clipping, accumulation, loss scaling, running means and rates: several
 * compiled steps against loops written by hand in double. */
#include "tenon/tenon_nn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"
#include <math.h>
#include <string.h>

enum { ROWS = 5, COLUMNS = 3, N = ROWS * COLUMNS, STEPS = 6 };
static tn_ctx *ctx;

static void need(tn_status s) {
    if (s) fail_msg("%s: %s", tn_status_name(s), tn_ctx_error(ctx));
}

/* ---- a matrix w[5,3] and a vector b[3] under an optimiser, with gradients from outside ---- */

typedef struct training {
    tn_graph *g;
    tn_tensor p[2], d[2]; /* w, b and their gradients */
    tn_program *program;
    tn_session *s;
    double w[N], b[COLUMNS], dw[N], db[COLUMNS];
} training;

static training begin(void) {
    training t = { .g = tn_graph_new(ctx, "train") };
    rng r = rng_make(3);
    for (int i = 0; i < N; i++) t.w[i] = rng_range(&r, -1, 1);
    for (int i = 0; i < COLUMNS; i++) t.b[i] = rng_range(&r, -1, 1);
    t.p[0] = tn_param(t.g, "w", TN_F64, TN_DIMS(ROWS, COLUMNS), t.w);
    t.p[1] = tn_param(t.g, "b", TN_F64, TN_DIMS(COLUMNS), t.b);
    t.d[0] = tn_input(t.g, "dw", TN_F64, TN_DIMS(ROWS, COLUMNS));
    t.d[1] = tn_input(t.g, "db", TN_F64, TN_DIMS(COLUMNS));
    return t;
}
static tn_nn_optim_opts with(const training *t, tn_nn_optim_opts o) {
    o.params = t->p, o.grads = t->d;
    if (!o.n_params) o.n_params = 2;
    return o;
}
static void compile(training *t) {
    need(tn_compile(t->g, NULL, &t->program));
    need(tn_session_new(t->program, &t->s));
}
static void step(training *t, int i) {
    rng r = rng_make(100 + (uint64_t)i);
    for (int k = 0; k < N; k++) t->dw[k] = rng_range(&r, -1, 1);
    for (int k = 0; k < COLUMNS; k++) t->db[k] = rng_range(&r, -1, 1);
    need(tn_run(t->s, TN_BIND({ "dw", t->dw }, { "db", t->db })));
}
static void expect(training *t, const char *name, const double *want, int n, double tol) {
    double got[N];
    need(tn_session_get(t->s, name, got, (size_t)n * sizeof *got));
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= tol * (1 + fabs(want[i]))))
            fail_msg("%s[%d]: %.17g, not %.17g", name, i, got[i], want[i]);
}
static void end(training *t) { tn_session_free(t->s), tn_program_free(t->program), tn_graph_free(t->g); }

typedef struct memory { /* of the loop by hand, for one parameter */
    double m[N], v[N], row[ROWS], column[COLUMNS];
} memory;
typedef void (*rule)(double *p, const double *d, int rows, memory *x, int t); /* rows 1: the vector */

static void follow(void (*optimiser)(tn_tensor, tn_nn_optim_opts), tn_nn_optim_opts o, rule by_hand) {
    training t = begin();
    static memory w, b;
    memset(&w, 0, sizeof w), memset(&b, 0, sizeof b);
    optimiser(t.d[0], with(&t, o));
    compile(&t);
    for (int i = 1; i <= STEPS; i++) {
        step(&t, i);
        by_hand(t.w, t.dw, ROWS, &w, i);
        expect(&t, "w", t.w, N, 1e-12);
        if (o.n_params != 1) by_hand(t.b, t.db, 1, &b, i);
        expect(&t, "b", t.b, COLUMNS, 1e-12);
    }
    end(&t);
}

static void sgd_rule(double *p, const double *d, int rows, memory *x, int t) {
    (void)t;
    for (int i = 0; i < rows * COLUMNS; i++) {
        x->m[i] = 0.9 * x->m[i] + d[i];
        p[i] = p[i] * (1 - 0.1 * (rows > 1 ? 0.05 : 0)) - 0.1 * x->m[i]; /* vectors do not decay */
    }
}
static void adam_rule(double *p, const double *d, int rows, memory *x, int t) { /* beta1 is 0 */
    for (int i = 0; i < rows * COLUMNS; i++) {
        x->v[i] = 0.9 * x->v[i] + 0.1 * d[i] * d[i];
        p[i] -= 0.02 * d[i] / (sqrt(x->v[i] / (1 - pow(0.9, t))) + 1e-8);
    }
}
static void rmsprop_rule(double *p, const double *d, int rows, memory *x, int t) {
    (void)t;
    for (int i = 0; i < rows * COLUMNS; i++) {
        double g = d[i] + 0.1 * p[i];
        x->v[i] = 0.99 * x->v[i] + 0.01 * g * g;
        x->m[i] = 0.5 * x->m[i] + g / (sqrt(x->v[i]) + 1e-8);
        p[i] -= 0.01 * x->m[i];
    }
}
static void adagrad_rule(double *p, const double *d, int rows, memory *x, int t) {
    (void)t;
    for (int i = 0; i < rows * COLUMNS; i++) {
        x->v[i] += d[i] * d[i];
        p[i] -= 0.01 * d[i] / (sqrt(x->v[i]) + 1e-10);
    }
}
static void lion_rule(double *p, const double *d, int rows, memory *x, int t) {
    (void)t;
    for (int i = 0; i < rows * COLUMNS; i++) {
        double c = 0.9 * x->m[i] + 0.1 * d[i];
        p[i] = p[i] * (1 - 0.01 * 0.2) - 0.01 * (c > 0 ? 1 : c < 0 ? -1 : 0);
        x->m[i] = 0.99 * x->m[i] + 0.01 * d[i];
    }
}
static double norm_of(const double *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}
static void lamb_rule(double *p, const double *d, int rows, memory *x, int t) {
    double r[N];
    int n = rows * COLUMNS;
    for (int i = 0; i < n; i++) {
        x->m[i] = 0.9 * x->m[i] + 0.1 * d[i];
        x->v[i] = 0.999 * x->v[i] + 0.001 * d[i] * d[i];
        r[i] = x->m[i] / (1 - pow(0.9, t)) / (sqrt(x->v[i] / (1 - pow(0.999, t))) + 1e-6) + 0.1 * p[i];
    }
    double rate = 0.02 * norm_of(p, n) / norm_of(r, n);
    for (int i = 0; i < n; i++) p[i] -= rate * r[i];
}
static void adafactor_rule(double *p, const double *d, int rows, memory *x, int t) {
    int n = rows * COLUMNS;
    double share = pow(t, -0.8), u[N], mean = 0, eps = 0x1p-23;
    for (int i = 0; i < n && rows == 1; i++) x->v[i] += (d[i] * d[i] - x->v[i]) * share;
    for (int r = 0; r < rows && rows > 1; r++) {
        double sum = 0;
        for (int c = 0; c < COLUMNS; c++) sum += d[r * COLUMNS + c] * d[r * COLUMNS + c] / COLUMNS;
        x->row[r] += (sum - x->row[r]) * share;
        mean += x->row[r] / rows;
    }
    for (int c = 0; c < COLUMNS && rows > 1; c++) {
        double sum = 0;
        for (int r = 0; r < rows; r++) sum += d[r * COLUMNS + c] * d[r * COLUMNS + c] / rows;
        x->column[c] += (sum - x->column[c]) * share;
    }
    for (int i = 0; i < n; i++) {
        double v = rows > 1 ? x->row[i / COLUMNS] * x->column[i % COLUMNS] / fmax(mean, eps) : x->v[i];
        u[i] = d[i] / sqrt(fmax(v, eps * eps));
    }
    double rate = fmax(norm_of(p, n) / sqrt(n), 1e-3) * fmin(0.3, 1 / sqrt(t)) / fmax(norm_of(u, n) / sqrt(n), 1);
    for (int i = 0; i < n; i++) p[i] = p[i] * (1 - 0.3 * 0.1) - rate * u[i];
}
static void muon_rule(double *p, const double *d, int rows, memory *x, int t) {
    double y[N], next[N];
    (void)t;
    for (int i = 0; i < N; i++) {
        x->m[i] = 0.95 * x->m[i] + d[i];
        y[i] = d[i] + 0.95 * x->m[i];
    }
    double norm = norm_of(y, N) + 1e-7;
    for (int i = 0; i < N; i++) y[i] /= norm;
    for (int k = 0; k < 5; k++) { /* y = 3.4445 y + y (-4.775 A + 2.0315 A^2), A = y^T y, since the matrix is tall */
        double a[COLUMNS][COLUMNS] = { 0 }, b[COLUMNS][COLUMNS];
        for (int i = 0; i < COLUMNS; i++)
            for (int j = 0; j < COLUMNS; j++)
                for (int r = 0; r < rows; r++) a[i][j] += y[r * COLUMNS + i] * y[r * COLUMNS + j];
        for (int i = 0; i < COLUMNS; i++)
            for (int j = 0; j < COLUMNS; j++) {
                b[i][j] = -4.7750 * a[i][j];
                for (int l = 0; l < COLUMNS; l++) b[i][j] += 2.0315 * a[i][l] * a[l][j];
            }
        for (int i = 0; i < N; i++) {
            next[i] = 3.4445 * y[i];
            for (int j = 0; j < COLUMNS; j++) next[i] += y[i / COLUMNS * COLUMNS + j] * b[j][i % COLUMNS];
        }
        memcpy(y, next, sizeof y);
    }
    for (int i = 0; i < N; i++) p[i] = p[i] * (1 - 0.02 * 0.1) - 0.02 * sqrt((double)ROWS / COLUMNS) * y[i];
}

static void test_optimisers(void **state) {
    (void)state;
    follow(tn_nn_sgd, (tn_nn_optim_opts){ .lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .decoupled = 1, .decay_rank = 2 },
           sgd_rule);
    follow(tn_nn_adam, (tn_nn_optim_opts){ .lr = 0.02, .beta1 = TN_NN_ZERO, .beta2 = 0.9 }, adam_rule);
    follow(tn_nn_rmsprop, (tn_nn_optim_opts){ .momentum = 0.5, .weight_decay = 0.1 }, rmsprop_rule);
    follow(tn_nn_adagrad, (tn_nn_optim_opts){ 0 }, adagrad_rule);
    follow(tn_nn_lion, (tn_nn_optim_opts){ .lr = 0.01, .weight_decay = 0.2 }, lion_rule);
    follow(tn_nn_lamb, (tn_nn_optim_opts){ .lr = 0.02, .weight_decay = 0.1 }, lamb_rule);
    follow(tn_nn_adafactor, (tn_nn_optim_opts){ .lr = 0.3, .weight_decay = 0.1 }, adafactor_rule);
    follow(tn_nn_muon, (tn_nn_optim_opts){ .nesterov = 1, .weight_decay = 0.1, .n_params = 1 }, muon_rule);
}

/* ---- bf16 states, rounded at random ---- */

enum { MANY = 4096 };
static double of_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}
static double mean_of_ones(tn_tensor (*grad)(tn_graph *), int stochastic, int steps, double lr) {
    static uint16_t p[MANY];
    for (int i = 0; i < MANY; i++) p[i] = 0x3f80;
    tn_graph *g = tn_graph_new(ctx, "bf16");
    tn_tensor w = tn_param(g, "w", TN_BF16, TN_DIMS(MANY), p), d = grad(g);
    tn_nn_sgd(d, (tn_nn_optim_opts){ .params = &w, .grads = &d, .n_params = 1, .lr = lr, .stochastic = stochastic });
    tn_program *program;
    tn_session *s;
    need(tn_compile(g, NULL, &program));
    need(tn_session_new(program, &s));
    for (int i = 0; i < steps; i++) need(tn_run(s, NULL, 0));
    need(tn_session_get(s, "w", p, sizeof p));
    tn_session_free(s), tn_program_free(program), tn_graph_free(g);
    double sum = 0;
    for (int i = 0; i < MANY; i++) sum += of_bf16(p[i]) / MANY;
    return sum;
}
static tn_tensor ones(tn_graph *g) { return tn_full(g, TN_BF16, TN_DIMS(MANY), 1); }

/* Steps of 2^-12 below 1, where the spacing of bf16 is 2^-8: to nearest, nothing ever happens; at random, the mean goes down as
 * it should. A step goes down with chance 1/16: the variance of a parameter is that of 64 of them, about (64/16) 2^-16. */
static void test_small_steps(void **state) {
    (void)state;
    assert_true(mean_of_ones(ones, 0, 64, 0x1p-12) == 1);
    double mean = mean_of_ones(ones, 1, 64, 0x1p-12), error = 6 * sqrt(4 * 0x1p-16 / MANY);
    if (!(fabs(mean - (1 - 64 * 0x1p-12)) < error)) fail_msg("mean %g, not %g", mean, 1 - 64 * 0x1p-12);
}

static uint16_t down(double x) { /* the neighbour of bf16 towards 0 */
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* AdamW, with decay and a condition: each state is one of the two neighbours of what double computes from the states before. */
static void test_stochastic_adam(void **state) {
    (void)state;
    static uint16_t before[3][MANY], after[3][MANY];
    static float d[MANY];
    static const char *const names[] = { "w", "w/adam/m", "w/adam/v" };
    rng r = rng_make(9);
    for (int i = 0; i < MANY; i++)
        before[0][i] = down(rng_range(&r, 0.5, 2) * (i % 2 ? 1 : -1)), d[i] = (float)rng_range(&r, -1, 1);
    tn_graph *g = tn_graph_new(ctx, "adam");
    tn_tensor w = tn_param(g, "w", TN_BF16, TN_DIMS(MANY), before[0]), dw = tn_input(g, "d", TN_F32, TN_DIMS(MANY));
    tn_tensor when = tn_ne(tn_input(g, "when", TN_I32, TN_SCALAR), tn_full(g, TN_I32, TN_SCALAR, 0));
    tn_nn_adam(dw, (tn_nn_optim_opts){ .params = &w,
                                       .grads = &dw,
                                       .n_params = 1,
                                       .lr = 0.01,
                                       .weight_decay = 0.1,
                                       .decoupled = 1,
                                       .when = when,
                                       .stochastic = 1 });
    tn_program *program;
    tn_session *s;
    need(tn_compile(g, NULL, &program));
    need(tn_session_new(program, &s));
    int upper = 0, steps = 0;
    for (int run = 0; run < 4; run++) {
        int32_t flag = run != 2;
        need(tn_run(s, TN_BIND({ "d", d }, { "when", &flag })));
        for (int k = 0; k < 3; k++) need(tn_session_get(s, names[k], after[k], sizeof after[k]));
        steps += flag;
        for (int i = 0; i < MANY; i++) {
            double p = of_bf16(before[0][i]), m = of_bf16(before[1][i]), v = of_bf16(before[2][i]), x = (double)d[i];
            double want[3] = { p, 0.9 * m + 0.1 * x, 0.999 * v + 0.001 * x * x };
            double root = sqrt(want[2] / (1 - pow(0.999, steps))), rate = 0.01 / (1 - pow(0.9, steps));
            want[0] = p * (1 - 0.01 * 0.1) - rate * want[1] / (root + 1e-8);
            for (int k = 0; k < 3; k++) {
                double got = of_bf16(after[k][i]), lo = of_bf16(down(want[k])), hi = of_bf16((uint16_t)(down(want[k]) + 1));
                double slack = 1e-5 * fabs(want[k]); /* f32 may end at the other side of a number of bf16 */
                if (!flag && after[k][i] != before[k][i]) fail_msg("run %d: %s[%d] changed", run, names[k], i);
                if (flag && !(fabs(got - lo) <= slack || fabs(got - hi) <= slack || fabs(got - want[k]) <= slack))
                    fail_msg("run %d: %s[%d] is %g, neither %g nor %g", run, names[k], i, got, lo, hi);
                upper += flag && fabs(got - hi) <= slack;
            }
        }
        memcpy(before, after, sizeof before);
    }
    assert_true(upper > 3 * 3 * MANY * 0.4 && upper < 3 * 3 * MANY * 0.6);
    tn_session_free(s), tn_program_free(program), tn_graph_free(g);
}

/* The others accept it too, and store bf16. */
static void test_stochastic_others(void **state) {
    (void)state;
    void (*const all[])(tn_tensor, tn_nn_optim_opts) = { tn_nn_sgd,  tn_nn_rmsprop, tn_nn_adagrad, tn_nn_adafactor,
                                                         tn_nn_lion, tn_nn_lamb,    tn_nn_muon };
    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++) {
        uint16_t w0[N], w1[N], again[N];
        float d[N];
        for (int k = 0; k < N; k++) w0[k] = 0x3f80, d[k] = (float)(k % 5 - 2) / 8;
        for (int round = 0; round < 2; round++) {
            tn_graph *g = tn_graph_new(ctx, "any");
            tn_tensor w = tn_param(g, "w", TN_BF16, TN_DIMS(ROWS, COLUMNS), w0),
                      dw = tn_input(g, "d", TN_F32, TN_DIMS(ROWS, COLUMNS));
            all[i](dw, (tn_nn_optim_opts){ .params = &w, .grads = &dw, .n_params = 1, .momentum = 0.5, .stochastic = 1 });
            tn_program *program;
            tn_session *s;
            need(tn_compile(g, NULL, &program));
            need(tn_session_new(program, &s));
            for (int run = 0; run < 8; run++) need(tn_run(s, TN_BIND({ "d", d })));
            need(tn_session_get(s, "w", round ? again : w1, sizeof w1));
            tn_session_free(s), tn_program_free(program), tn_graph_free(g);
        }
        if (memcmp(w1, again, sizeof w1)) fail_msg("optimiser %d: other bits in a second session", i);
        if (!memcmp(w0, w1, sizeof w1)) fail_msg("optimiser %d: nothing was learned", i);
    }
}

/* ---- gradients ---- */

static void test_clip(void **state) {
    (void)state;
    training t = begin();
    tn_tensor norms = tn_nn_norms(t.d, 2), norm = tn_nn_clip_norm(t.d, 2, 1.5);
    tn_output(norms, "norms"), tn_output(norm, "norm");
    tn_nn_clip_value(t.d + 1, 1, 0.125);
    tn_output(t.d[0], "w'"), tn_output(t.d[1], "b'");
    compile(&t);
    float each[2], all;
    double w[N], b[COLUMNS], by[] = { 1, 0.01, 0 };
    for (int k = 0; k < 3; k++) { /* clipped, not, and all zeros */
        rng r = rng_make(4);
        for (int i = 0; i < N; i++) t.dw[i] = by[k] * rng_range(&r, -2, 2);
        for (int i = 0; i < COLUMNS; i++) t.db[i] = by[k] * rng_range(&r, -2, 2);
        need(tn_run(t.s,
                    TN_BIND({ "dw", t.dw }, { "db", t.db }, { "norms", each }, { "norm", &all }, { "w'", w }, { "b'", b })));
        double nw = norm_of(t.dw, N), nb = norm_of(t.db, COLUMNS), total = sqrt(nw * nw + nb * nb),
               scale = fmin(1, 1.5 / total);
        if (!total) scale = 1;
        assert_true(fabs((double)each[0] - nw) < 1e-5 && fabs((double)each[1] - nb) < 1e-5 && fabs((double)all - total) < 1e-5);
        assert_true(k || scale < 0.5);
        for (int i = 0; i < N; i++) assert_true(fabs(w[i] - scale * t.dw[i]) < 1e-6);
        for (int i = 0; i < COLUMNS; i++) assert_true(fabs(b[i] - fmax(-0.125, fmin(0.125, scale * t.db[i]))) < 1e-6);
    }
    end(&t);
}

static void test_accumulate(void **state) {
    (void)state;
    training t = begin();
    tn_tensor due = tn_nn_accumulate(t.d, 2, 3, "sum");
    tn_nn_adam(due, with(&t, (tn_nn_optim_opts){ .lr = 0.02, .beta1 = TN_NN_ZERO, .beta2 = 0.9, .when = due }));
    compile(&t);
    static memory w;
    memset(&w, 0, sizeof w);
    double mean[N] = { 0 };
    for (int i = 1; i <= 7; i++) {
        step(&t, i);
        for (int k = 0; k < N; k++) mean[k] += t.dw[k] / 3;
        if (i % 3 == 0) {
            adam_rule(t.w, mean, ROWS, &w, i / 3);
            memset(mean, 0, sizeof mean);
        }
        expect(&t, "w", t.w, N, 1e-12);
    }
    int64_t steps;
    need(tn_session_get(t.s, "adam/step", &steps, sizeof steps));
    assert_int_equal(steps, 2);
    end(&t);
}

/* Runs with an infinite or undefined gradient are left out and halve the scale; two good ones behind each other double it. */
static void test_loss_scale(void **state) {
    (void)state;
    training t = begin();
    tn_tensor scale = tn_nn_loss_scale(t.g, 8, "scale"), fine = tn_nn_unscale(scale, t.d, 2, 2);
    tn_nn_sgd(fine, with(&t, (tn_nn_optim_opts){ .lr = 1, .when = fine }));
    compile(&t);
    const double bad[] = { 0, 0, INFINITY, 0, NAN, -INFINITY, 0, 0, 0 };
    const float scales[] = { 8, 16, 8, 8, 4, 2, 2, 4, 4 };
    float now = 8;
    int64_t skipped = 0, counted;
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        for (int k = 0; k < N; k++) t.dw[k] = k;
        for (int k = 0; k < COLUMNS; k++) t.db[k] = 1;
        if (bad[i] != 0) t.db[1] = bad[i], skipped++;
        need(tn_run(t.s, TN_BIND({ "dw", t.dw }, { "db", t.db })));
        for (int k = 0; k < N && bad[i] == 0; k++) t.w[k] -= k / (double)now;
        expect(&t, "w", t.w, N, 1e-12);
        need(tn_session_get(t.s, "scale", &now, sizeof now));
        need(tn_session_get(t.s, "scale/skipped", &counted, sizeof counted));
        if (now != scales[i] || counted != skipped) fail_msg("run %d: scale %g, %d skipped", i, (double)now, (int)counted);
    }
    end(&t);
}

static void test_ema(void **state) {
    (void)state;
    training t = begin();
    tn_nn_ema(t.p, 2, 0.75, "mean");
    tn_nn_sgd(t.d[0], with(&t, (tn_nn_optim_opts){ .lr = 0.5 }));
    compile(&t);
    double mean[N];
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < N; k++) mean[k] = i ? 0.75 * mean[k] + 0.25 * t.w[k] : t.w[k];
        step(&t, i);
        for (int k = 0; k < N; k++) t.w[k] -= 0.5 * t.dw[k];
        expect(&t, "w/mean", mean, N, 1e-12);
    }
    end(&t);
}

/* ---- rates ---- */

static void test_rates(void **state) {
    (void)state;
    tn_graph *g = tn_graph_new(ctx, "rates");
    tn_tensor t = tn_nn_counter(g, "runs");
    tn_output(tn_nn_rate_cosine(t, 0.5, 0.1, 3, 11), "cosine");
    tn_output(tn_nn_rate_steps(t, 2, 0.5, 4), "steps");
    tn_output(tn_nn_rate_one_cycle(t, 3, 10), "cycle");
    tn_output(tn_nn_rate_warmup(tn_nn_rate_steps(t, 1, 0.5, 4), t, 5), "warmup");
    tn_program *p;
    tn_session *s;
    need(tn_compile(g, NULL, &p));
    need(tn_session_new(p, &s));
    double pi = acos(-1);
    for (int i = 0; i < 14; i++) {
        double cosine, steps, cycle, warmup, want[4];
        need(tn_run(s, TN_BIND({ "cosine", &cosine }, { "steps", &steps }, { "cycle", &cycle }, { "warmup", &warmup })));
        want[0] = i < 3 ? 0.5 * (i + 1) / 3 : 0.1 + 0.4 * (1 + cos(pi * fmin(1, (i - 3) / 8.0))) / 2;
        want[1] = 2 * pow(0.5, i / 4);
        double top = 2, last = 9, low = 3.0 / 25, end_rate = low / 1e4; /* as PyTorch's OneCycleLR(max_lr=3, total_steps=10) */
        want[2] = i <= top ? low + (3 - low) * (1 - cos(pi * i / top)) / 2
                           : end_rate + (3 - end_rate) * (1 + cos(pi * fmin(1, (i - top) / (last - top)))) / 2;
        want[3] = pow(0.5, i / 4) * fmin(1, (i + 1) / 5.0);
        double got[] = { cosine, steps, cycle, warmup };
        for (int k = 0; k < 4; k++)
            if (!(fabs(got[k] - want[k]) < 1e-12)) fail_msg("run %d, rate %d: %.15g, not %.15g", i, k, got[k], want[k]);
    }
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
}

/* ---- mistakes ---- */

static void test_wrong(void **state) {
    (void)state;
    static const char *const words[] = {
        "rank 1; matrices alone", "has another shape", "expected when bool[]",      "2 parameters",
        "norm above 0",           "1 run or more",     "state of tn_nn_loss_scale", "fewer than all"
    };
    for (int i = 0; i < (int)(sizeof words / sizeof *words); i++) {
        training t = begin();
        tn_nn_optim_opts o = with(&t, (tn_nn_optim_opts){ 0 });
        tn_tensor turned[] = { t.d[1], t.d[0] };
        if (i == 0) tn_nn_muon(t.d[0], o);
        if (i == 1) o.grads = turned, tn_nn_sgd(t.d[0], o);
        if (i == 2) o.when = t.d[0], tn_nn_sgd(t.d[0], o);
        if (i == 3) o.params = NULL, o.n_params = 1, tn_nn_sgd(t.d[0], o);
        if (i == 4) tn_nn_clip_norm(t.d, 2, 0);
        if (i == 5) tn_nn_accumulate(t.d, 2, 0, "sum");
        if (i == 6) tn_nn_unscale(t.d[0], t.d, 2, -1);
        if (i == 7) tn_nn_rate_cosine(tn_nn_counter(t.g, "c"), 1, 0, 5, 5);
        if (!strstr(tn_ctx_error(ctx), words[i])) fail_msg("\"%s\" is not in: %s", words[i], tn_ctx_error(ctx));
        tn_graph_free(t.g);
    }
}

static int open_ctx(void **state) {
    (void)state;
    return !(ctx = test_ctx());
}
static int close_ctx(void **state) {
    (void)state;
    tn_ctx_free(ctx);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_optimisers),
                                        cmocka_unit_test(test_clip),
                                        cmocka_unit_test(test_accumulate),
                                        cmocka_unit_test(test_loss_scale),
                                        cmocka_unit_test(test_ema),
                                        cmocka_unit_test(test_rates),
                                        cmocka_unit_test(test_small_steps),
                                        cmocka_unit_test(test_stochastic_adam),
                                        cmocka_unit_test(test_stochastic_others),
                                        cmocka_unit_test(test_wrong) };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
