/* test_optim.c - optimisers: five steps through the evaluator against traces written by hand in double, on a linear regression
 * with fresh data every step, whose gradient is known in closed form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"

#include "tenon/tenon_nn.h"

#include "drive/objects.h"
#include "eval/eval.h"

#include <math.h>
#include <stdio.h>

enum { STEPS = 5, ROWS = 7, IN = 3, N_PARAMS = IN + 1, MAX_IN = 24 };

typedef struct env {
    tn_ctx *ctx;
    tn_graph *g;
    graph *ir;
    arena a;
    guard gd;
    uint64_t rng;
    eval_value in[MAX_IN];
} env;

static double uniform(env *e, double lo, double hi) {
    e->rng = e->rng * 6364136223846793005u + 1442695040888963407u;
    return lo + (hi - lo) * ((double)((e->rng ^ e->rng >> 29) * 0x9e3779b97f4a7c15u >> 40) / 16777216.0);
}

static int find_source(env *e, const char *name) {
    for (int k = 0; k < e->ir->inputs.n; k++)
        if (!strcmp(graph_get(e->ir, e->ir->inputs.at[k])->name, name)) return k;
    fail_msg("no input or state %s", name);
    return -1;
}

/* Values of all states at the start of the first run. */
static void load_states(env *e) {
    for (int k = 0; k < e->ir->inputs.n; k++) {
        val v = e->ir->inputs.at[k];
        const node *n = graph_get(e->ir, v);
        int64_t count = graph_elems(e->ir, v);
        double *f = ARENA_ARRAY(&e->a, double, count + 1);
        int64_t *i = ARENA_ARRAY(&e->a, int64_t, count + 1);
        bool is_float = dtype_is_float((tn_dtype)n->dtype);
        for (int64_t j = 0; j < count && n->data && is_float; j++) f[j] = dtype_load((tn_dtype)n->dtype, n->data, j);
        e->in[k] = is_float ? (eval_value){ .f = f } : (eval_value){ .i = i };
    }
}

/* One run: evaluates everything, then gives the states their new values. Returns the loss. */
static double run(env *e, tn_tensor loss) {
    if (tn_graph_status(e->g)) fail_msg("%s", tn_ctx_error(e->ctx));
    if (!GUARD_TRY(&e->gd)) fail_msg("%s", e->gd.err.text);
    eval_value *v = eval_graph(e->ir, &e->a, e->in);
    for (int i = 0; i < e->ir->outputs.n; i++) {
        const output *o = &e->ir->outputs.at[i];
        for (int k = 0; o->state && k < e->ir->inputs.n; k++)
            if (e->ir->inputs.at[k] == o->state) e->in[k] = v[o->v];
    }
    return v[loss.id].f[0];
}

/* loss = mean((x w + b - t)^2); p is w[0..IN), b. */
static double reference_gradient(const double *x, const double *t, const double *p, double *d) {
    double loss = 0;
    memset(d, 0, N_PARAMS * sizeof *d);
    for (int r = 0; r < ROWS; r++) {
        double y = p[IN] - t[r];
        for (int i = 0; i < IN; i++) y += x[r * IN + i] * p[i];
        for (int i = 0; i < IN; i++) d[i] += 2 * y * x[r * IN + i] / ROWS;
        d[IN] += 2 * y / ROWS;
        loss += y * y / ROWS;
    }
    return loss;
}

/* A trace's rule: changes p[0..N_PARAMS) by the gradient d at step t = 1, 2, ...; m and v are its memory. */
typedef void (*rule)(double *p, const double *d, double *m, double *v, int t);
typedef void (*train)(tn_tensor loss);

static void expect_trace(env *e, tn_dtype dtype, double tol, train add, rule step) {
    tn_graph_free(e->g);
    e->g = tn_graph_new(e->ctx, "train");
    e->ir = e->g->ir;
    tn_tensor x = tn_input(e->g, "x", dtype, TN_DIMS(ROWS, IN)), t = tn_input(e->g, "t", dtype, TN_DIMS(ROWS, 1));
    tn_tensor loss = tn_nn_mse(tn_nn_linear(x, 1, "fc"), t);
    add(loss);
    if (tn_graph_status(e->g)) fail_msg("%s", tn_ctx_error(e->ctx));
    load_states(e);
    int w = find_source(e, "fc/w"), b = find_source(e, "fc/b");
    double p[N_PARAMS], d[N_PARAMS], m[N_PARAMS] = { 0 }, v[N_PARAMS] = { 0 };
    for (int i = 0; i < IN; i++) p[i] = e->in[w].f[i];
    p[IN] = e->in[b].f[0];
    for (int s = 1; s <= STEPS; s++) {
        for (int i = 0; i < ROWS * IN; i++) e->in[0].f[i] = uniform(e, -2, 2);
        for (int i = 0; i < ROWS; i++) e->in[1].f[i] = uniform(e, -2, 2);
        double want = reference_gradient(e->in[0].f, e->in[1].f, p, d), got = run(e, loss);
        assert_true(fabs(got - want) <= tol * (1 + want));
        step(p, d, m, v, s);
        for (int i = 0; i < N_PARAMS; i++) {
            double now = i < IN ? e->in[w].f[i] : e->in[b].f[0];
            if (!(fabs(now - p[i]) <= tol * (1 + fabs(p[i]))))
                fail_msg("step %d, parameter %d: %.15g, expected %.15g", s, i, now, p[i]);
        }
    }
}

static void sgd(tn_tensor loss) { tn_nn_sgd(loss, (tn_nn_sgd_opts){ .lr = 0.05 }); }
static void sgd_rule(double *p, const double *d, double *m, double *v, int t) {
    (void)m, (void)v, (void)t;
    for (int i = 0; i < N_PARAMS; i++) p[i] -= 0.05 * d[i];
}
static void momentum(tn_tensor loss) { tn_nn_sgd(loss, (tn_nn_sgd_opts){ .lr = 0.05, .momentum = 0.9, .weight_decay = 0.1 }); }
static void momentum_rule(double *p, const double *d, double *m, double *v, int t) {
    (void)v, (void)t;
    for (int i = 0; i < N_PARAMS; i++) {
        m[i] = 0.9 * m[i] + d[i] + 0.1 * p[i];
        p[i] -= 0.05 * m[i];
    }
}
static void nesterov(tn_tensor loss) { tn_nn_sgd(loss, (tn_nn_sgd_opts){ .momentum = 0.8, .nesterov = 1 }); }
static void nesterov_rule(double *p, const double *d, double *m, double *v, int t) {
    (void)v, (void)t;
    for (int i = 0; i < N_PARAMS; i++) {
        m[i] = 0.8 * m[i] + d[i];
        p[i] -= 0.01 * (d[i] + 0.8 * m[i]);
    }
}
static void test_sgd(void **state) {
    expect_trace(*state, TN_F64, 1e-13, sgd, sgd_rule);
    expect_trace(*state, TN_F64, 1e-13, momentum, momentum_rule);
    expect_trace(*state, TN_F64, 1e-13, nesterov, nesterov_rule);
}

static void adam_rule_with(double *p, const double *d, double *m, double *v, int t, double lr, double b1, double b2, double l2,
                           double decay) {
    for (int i = 0; i < N_PARAMS; i++) {
        double g = d[i] + l2 * p[i];
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        p[i] -= lr * decay * p[i];
        p[i] -= lr * (m[i] / (1 - pow(b1, t))) / (sqrt(v[i] / (1 - pow(b2, t))) + 1e-8);
    }
}
static void adam(tn_tensor loss) { tn_nn_adam(loss, (tn_nn_adam_opts){ 0 }); }
static void adam_rule(double *p, const double *d, double *m, double *v, int t) {
    adam_rule_with(p, d, m, v, t, 1e-3, 0.9, 0.999, 0, 0);
}
static void adam_l2(tn_tensor loss) {
    tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1 });
}
static void adam_l2_rule(double *p, const double *d, double *m, double *v, int t) {
    adam_rule_with(p, d, m, v, t, 0.02, 0.8, 0.95, 0.1, 0);
}
static void adamw(tn_tensor loss) { tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 0.02, .weight_decay = 0.1, .decoupled = 1 }); }
static void adamw_rule(double *p, const double *d, double *m, double *v, int t) {
    adam_rule_with(p, d, m, v, t, 0.02, 0.9, 0.999, 0, 0.1);
}
/* The rate halves every step. */
static void adam_schedule(tn_tensor loss) {
    tn_tensor t = tn_cast(tn_nn_counter(loss.graph, "epoch"), TN_F64);
    tn_nn_adam(loss, (tn_nn_adam_opts){ .rate = tn_mul_scalar(tn_pow(tn_full(loss.graph, TN_F64, TN_SCALAR, 0.5), t), 0.1) });
}
static void adam_schedule_rule(double *p, const double *d, double *m, double *v, int t) {
    adam_rule_with(p, d, m, v, t, 0.1 * pow(0.5, t - 1), 0.9, 0.999, 0, 0);
}
static void test_adam(void **state) {
    expect_trace(*state, TN_F64, 1e-12, adam, adam_rule);
    expect_trace(*state, TN_F64, 1e-12, adam_l2, adam_l2_rule);
    expect_trace(*state, TN_F64, 1e-12, adamw, adamw_rule);
    expect_trace(*state, TN_F64, 1e-12, adam_schedule, adam_schedule_rule);
    expect_trace(*state, TN_F32, 1e-7, adamw, adamw_rule);     /* constants rounded to f32 */
    expect_trace(*state, TN_F16, 5e-3, adam_l2, adam_l2_rule); /* f32 parameters under f16 inputs */
    env *e = *state;
    assert_int_equal(e->in[find_source(e, "adam/step")].i[0], STEPS);
    assert_int_equal(graph_get(e->ir, e->ir->inputs.at[find_source(e, "fc/w/adam/m")])->dtype, TN_F32);
}

/* A list of parameters trains those alone; two optimisers share one graph under two names. */
static void test_some_params(void **state) {
    env *e = *state;
    tn_graph_free(e->g);
    e->g = tn_graph_new(e->ctx, "some");
    e->ir = e->g->ir;
    tn_tensor x = tn_input(e->g, "x", TN_F64, TN_DIMS(2, 3)), y = tn_nn_linear(tn_nn_linear(x, 3, "a"), 1, "b");
    tn_tensor loss = tn_mean(tn_mul(y, y), TN_ALL_AXES, 0), p[4];
    assert_int_equal(tn_graph_n_params(e->g), 4);
    for (int i = 0; i < 4; i++) p[i] = tn_graph_param(e->g, i);
    assert_string_equal(tn_tensor_name(p[2]), "b/w");
    tn_nn_sgd(loss, (tn_nn_sgd_opts){ .lr = 0.1, .momentum = 0.5, .params = p, .n_params = 1, .name = "first" });
    tn_nn_sgd(loss, (tn_nn_sgd_opts){ .lr = 0.1, .momentum = 0.5, .params = p + 2, .n_params = 1, .name = "second" });
    load_states(e);
    for (int i = 0; i < 6; i++) e->in[0].f[i] = uniform(e, 0.5, 1);
    eval_value before[MAX_IN];
    memcpy(before, e->in, sizeof before);
    double first = run(e, loss), second = run(e, loss);
    assert_true(second < first);
    static const char *const names[] = { "a/w", "a/b", "b/w", "b/b" };
    for (int i = 0; i < 4; i++) {
        int k = find_source(e, names[i]);
        assert_int_equal(before[k].f[0] != e->in[k].f[0], i == 0 || i == 2);
    }
    find_source(e, "a/w/first/m");
    find_source(e, "b/w/second/m");
}

static int setup(void **state) {
    env *e = test_calloc(1, sizeof *e);
    e->ctx = test_ctx();
    e->rng = 31;
    arena_init(&e->a, mem_libc(), &e->gd);
    *state = e;
    return 0;
}
static int teardown(void **state) {
    env *e = *state;
    tn_graph_free(e->g);
    tn_ctx_free(e->ctx);
    arena_fini(&e->a);
    test_free(e);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_sgd), cmocka_unit_test(test_adam),
                                        cmocka_unit_test(test_some_params) };
    return cmocka_run_group_tests(tests, setup, teardown);
}
