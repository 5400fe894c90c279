/* env.h - what the tests of layers share: a graph of f64 inputs with random values, evaluated by the reference evaluator;
 * gradients against central differences. */
#ifndef TN_TESTS_NN_ENV_H
#define TN_TESTS_NN_ENV_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"

#include "tenon/tenon_ir.h"
#include "tenon/tenon_nn.h"

#include "drive/objects.h"
#include "eval/eval.h"

#include <math.h>
#include <stdio.h>

enum { MAX_IN = 32, MAX_ELEMS = 4096 };

typedef struct env {
    tn_ctx *ctx;
    tn_graph *g;
    graph *ir;
    arena a;
    guard gd;
    uint64_t rng;
    eval_value in[MAX_IN]; /* of ir->inputs */
    int n_checked;
} env;

static inline double uniform(env *e, double lo, double hi) {
    e->rng = e->rng * 6364136223846793005u + 1442695040888963407u;
    return lo + (hi - lo) * ((double)((e->rng ^ e->rng >> 29) * 0x9e3779b97f4a7c15u >> 40) / 16777216.0);
}

static inline int setup(void **state) {
    env *e = test_calloc(1, sizeof *e);
    e->ctx = test_ctx();
    e->rng = 77;
    arena_init(&e->a, mem_libc(), &e->gd);
    *state = e;
    return 0;
}
static inline int teardown(void **state) {
    env *e = *state;
    tn_graph_free(e->g);
    tn_ctx_free(e->ctx);
    arena_fini(&e->a);
    test_free(e);
    return 0;
}

static inline void open_graph(env *e) {
    tn_graph_free(e->g);
    e->g = tn_graph_new(e->ctx, "nn");
    e->ir = e->g->ir;
    memset(e->in, 0, sizeof e->in);
}
static inline void expect_ok(env *e) {
    if (tn_graph_status(e->g)) fail_msg("%s", tn_ctx_error(e->ctx));
}

/* An f64 input of random values in [lo, hi). */
static inline tn_tensor random_input(env *e, tn_shape s, double lo, double hi) {
    char name[16];
    int k = e->ir->inputs.n;
    snprintf(name, sizeof name, "in%d", k);
    tn_tensor x = tn_input(e->g, name, TN_F64, s);
    expect_ok(e);
    int64_t n = graph_elems(e->ir, x.id);
    e->in[k].f = ARENA_ARRAY(&e->a, double, n + 1);
    for (int64_t i = 0; i < n; i++) e->in[k].f[i] = uniform(e, lo, hi);
    return x;
}
static inline tn_tensor random_labels(env *e, tn_dtype t, tn_shape s, int64_t n_classes) {
    char name[16];
    int k = e->ir->inputs.n;
    snprintf(name, sizeof name, "in%d", k);
    tn_tensor x = tn_input(e->g, name, t, s);
    expect_ok(e);
    int64_t n = graph_elems(e->ir, x.id);
    e->in[k].i = ARENA_ARRAY(&e->a, int64_t, n + 1);
    for (int64_t i = 0; i < n; i++) e->in[k].i[i] = (int64_t)uniform(e, 0, (double)n_classes);
    return x;
}

static inline int find_source(env *e, const char *name) {
    for (int k = 0; k < e->ir->inputs.n; k++)
        if (!strcmp(graph_get(e->ir, e->ir->inputs.at[k])->name, name)) return k;
    fail_msg("no input or state %s", name);
    return -1;
}
static inline double *values_of(env *e, const char *name) { return e->in[find_source(e, name)].f; }
static inline tn_tensor source(env *e, const char *name) { return (tn_tensor){ e->g, e->ir->inputs.at[find_source(e, name)] }; }

/* States start from their initial values, float ones moved by up to `move`, so that scales of 1 and shifts of 0 show. */
static inline void load_states(env *e, double move) {
    for (int k = 0; k < e->ir->inputs.n; k++) {
        val v = e->ir->inputs.at[k];
        const node *n = graph_get(e->ir, v);
        if (n->op != OP_state || e->in[k].f || e->in[k].i) continue;
        int64_t count = graph_elems(e->ir, v);
        double *f = ARENA_ARRAY(&e->a, double, count + 1);
        int64_t *i = ARENA_ARRAY(&e->a, int64_t, count + 1);
        for (int64_t j = 0; j < count && n->data; j++) {
            if (dtype_is_float((tn_dtype)n->dtype))
                f[j] = dtype_load((tn_dtype)n->dtype, n->data, j);
            else
                i[j] = dtype_load_int((tn_dtype)n->dtype, n->data, j);
        }
        for (int64_t j = 0; j < count; j++) f[j] += uniform(e, -move, move);
        e->in[k] = dtype_is_float((tn_dtype)n->dtype) ? (eval_value){ .f = f } : (eval_value){ .i = i };
    }
}

static inline eval_value *evaluate(env *e, arena *a) {
    expect_ok(e);
    if (GUARD_TRY(&e->gd)) return eval_graph(e->ir, a, e->in);
    fail_msg("%s", e->gd.err.text);
    return NULL;
}
static inline const double *value_of(env *e, tn_tensor x) { return evaluate(e, &e->a)[x.id].f; }
static inline int64_t elems(env *e, tn_tensor x) { return graph_elems(e->ir, x.id); }

static inline void expect_near(const char *what, int64_t i, double got, double want, double tol) {
    if (got == want || (isnan(got) && isnan(want))) return;
    if (!(fabs(got - want) <= tol * (1 + fabs(want))))
        fail_msg("%s[%lld] is %.15g, expected %.15g", what, (long long)i, got, want);
}

static inline double sum_at(env *e, tn_tensor loss) {
    arena scratch;
    arena_init(&scratch, mem_libc(), &e->gd);
    double v = evaluate(e, &scratch)[loss.id].f[0];
    arena_fini(&scratch);
    return v;
}

/* Gradients of a random weighting of y by every float input and parameter. */
static inline void expect_gradients(env *e, const char *what, tn_tensor y) {
    tn_shape s = tn_tensor_shape(y);
    int64_t n = elems(e, y);
    double *w = ARENA_ARRAY(&e->a, double, n + 1), *want[MAX_IN];
    for (int64_t i = 0; i < n; i++) w[i] = uniform(e, 0.5, 1.5);
    tn_tensor loss = tn_sum(tn_mul(y, tn_const(e->g, TN_F64, s, w)), TN_ALL_AXES, 0), xs[MAX_IN], dx[MAX_IN];
    expect_ok(e);
    int k = 0;
    for (int j = 0; j < e->ir->inputs.n; j++) {
        if (!e->in[j].f) continue;
        xs[k] = (tn_tensor){ e->g, e->ir->inputs.at[j] };
        want[k] = ARENA_ARRAY(&e->a, double, elems(e, xs[k]) + 1);
        for (int64_t i = 0; i < elems(e, xs[k]); i++) {
            double *x = &e->in[j].f[i], at = *x, h = 1e-5, hi, lo;
            *x = at + h;
            hi = sum_at(e, loss);
            *x = at - h;
            lo = sum_at(e, loss);
            *x = at;
            want[k][i] = (hi - lo) / (2 * h);
        }
        k++;
    }
    if (tn_grad(loss, xs, k, dx)) fail_msg("%s: %s", what, tn_ctx_error(e->ctx));
    eval_value *v = evaluate(e, &e->a);
    for (int j = 0; j < k; j++)
        for (int64_t i = 0; i < elems(e, xs[j]); i++) {
            char text[128];
            snprintf(text, sizeof text, "gradient of %s by %s", what, tn_tensor_name(xs[j]));
            expect_near(text, i, v[dx[j].id].f[i], want[j][i], 1e-6);
        }
    e->n_checked++;
}

static inline void expect_shape(tn_tensor x, tn_shape want) {
    tn_shape s = tn_tensor_shape(x);
    assert_int_equal(s.rank, want.rank);
    for (int i = 0; i < s.rank; i++) assert_int_equal(s.dim[i], want.dim[i]);
}

static inline void expect_values(env *e, const char *what, tn_tensor y, const double *want) {
    const double *got = value_of(e, y);
    for (int64_t i = 0; i < elems(e, y); i++) expect_near(what, i, got[i], want[i], 1e-12);
    e->n_checked++;
}

#endif
