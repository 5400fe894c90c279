/* test_gradcheck.c - grad_build against central differences in double, evaluated by eval_graph on f64 graphs.
 *
 * Every elementwise op of ops.def and every other differentiable op is taken through N_SAMPLES shapes and views (rank 0, zero
 * size, odd sizes, broadcast, strided, reversed, permuted, windows), first and second order. A sample that sits on a kink
 * (found by comparing differences of two step sizes, so by the function alone) is drawn again.
 *
 * Labels: long */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "eval/eval.h"
#include "grad/grad.h"
#include "ir/region.h"

#include <math.h>
#include <stdio.h>

enum { N_SAMPLES = 10, MAX_IN = 8 };

/* Of cmocka's own, any two numbers are equal when one of them is NaN. */
static void assert_near(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) fail_msg("%.17g; expected %.17g", got, want);
}

typedef struct check {
    arena a;
    guard gd;
    graph *g;
    uint64_t rng;
    eval_value in[MAX_IN]; /* values of g->inputs */
    bool kink;             /* the last check met one */
    const char *what;
    int n_checks, n_redrawn;
    double worst;
} check;

static uint64_t next(check *c) {
    c->rng = c->rng * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = c->rng ^ c->rng >> 32;
    return x * 0x9e3779b97f4a7c15u >> 16;
}
static int64_t below(check *c, int64_t n) { return (int64_t)(next(c) % (uint64_t)n); }
static double uniform(check *c, double lo, double hi) {
    return lo + (hi - lo) * ((double)(next(c) >> 8 & 0xffffff) / 16777216.0);
}

/* ---- building -------------------------------------------------------------------------------------------------------- */

static val input_of(check *c, tn_dtype t, int rank, const int64_t *dims) {
    assert_true(c->g->inputs.n < MAX_IN);
    int k = c->g->inputs.n;
    return graph_add(c->g,
                     &(spec){ .op = OP_input, .dtype = t, .rank = rank, .dims = dims, .name = arena_printf(&c->a, "x%d", k) });
}

/* An f64 input of random values. */
static val input(check *c, int rank, const int64_t *dims, double lo, double hi) {
    int k = c->g->inputs.n;
    val v = input_of(c, TN_F64, rank, dims);
    int64_t n = graph_elems(c->g, v);
    c->in[k] = (eval_value){ .f = ARENA_ARRAY(&c->a, double, n + 1) };
    for (int64_t i = 0; i < n; i++) c->in[k].f[i] = uniform(c, lo, hi);
    return v;
}

static val input_int(check *c, tn_dtype t, int rank, const int64_t *dims, int64_t lo, int64_t hi) {
    int k = c->g->inputs.n;
    val v = input_of(c, t, rank, dims);
    int64_t n = graph_elems(c->g, v);
    c->in[k] = (eval_value){ .i = ARENA_ARRAY(&c->a, int64_t, n + 1) };
    for (int64_t i = 0; i < n; i++) c->in[k].i[i] = lo + below(c, hi - lo + 1);
    return v;
}

#define DIMS(...)                                                                                                              \
    (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / 8), (const int64_t[]) { __VA_ARGS__ }
#define LIST(...) ((const int64_t[]){ __VA_ARGS__ })

/* Sample s as a value of one shape for every k, reached through a different view for each k. */
static val operand(check *c, int s, int k, double lo, double hi) {
    graph *g = c->g;
    switch (s) {
    case 0:
        return input(c, DIMS(3, 5), lo, hi);
    case 1:
        return input(c, 0, NULL, lo, hi);
    case 2:
        return input(c, DIMS(0, 3), lo, hi);
    case 3: /* broadcast along another axis each */
        return graph_broadcast(g,
                               k == 0   ? input(c, DIMS(1, 4), lo, hi)
                               : k == 1 ? input(c, DIMS(3, 1), lo, hi)
                                        : input(c, DIMS(1), lo, hi),
                               2, LIST(3, 4));
    case 4: /* strided slice */
        return graph_slice(g, input(c, DIMS(7, 5 + k), lo, hi), LIST(k % 2, 1), LIST(3, 2), LIST(2, 2));
    case 5:
        return graph_permute(g, k % 2 ? input(c, DIMS(4, 3, 2), lo, hi) : input(c, DIMS(2, 4, 3), lo, hi),
                             k % 2 ? LIST(2, 0, 1) : LIST(0, 1, 2));
    case 6:
        return graph_flip(g, input(c, DIMS(3, 3), lo, hi), k == 0 ? 1 : k == 1 ? 3 : 2);
    case 7:
        return k == 1 ? graph_reshape(g, input(c, DIMS(7), lo, hi), 3, LIST(1, 7, 1)) : input(c, DIMS(1, 7, 1), lo, hi);
    case 8:
        return k == 0 ? graph_window(g, input(c, DIMS(7), lo, hi), &(window_axis){ 0, 3, 2, 1 }, 1)
                      : input(c, DIMS(3, 3), lo, hi);
    default: /* one input read at three places */ {
        val x = input(c, DIMS(2, 3), lo, hi);
        return graph_concat(g, (val[]){ x, graph_flip(g, x, 2), x }, 3, k == 0 ? 0 : 0);
    }
    }
}

static val total(graph *g, val y) {
    val s = graph_reduce(g, OP_sum, y, ((uint64_t)1 << graph_get(g, y)->rank) - 1);
    return graph_reshape(g, s, 0, NULL);
}

/* sum(y * w) with constant random weights: tells every element of y from every other. */
static val weighted(check *c, val y) {
    graph *g = c->g;
    const node n = *graph_get(g, y);
    int64_t k = graph_elems(g, y);
    double *w = ARENA_ARRAY(&c->a, double, k + 1);
    for (int64_t i = 0; i < k; i++) w[i] = uniform(c, 0.5, 1.5) * (below(c, 2) ? 1 : -1);
    return total(g, graph_binary(g, OP_mul, y, graph_const(g, TN_F64, n.rank, n.dims, w)));
}

/* ---- checking -------------------------------------------------------------------------------------------------------- */

static double loss_at(check *c, val loss) {
    arena scratch;
    arena_init(&scratch, mem_libc(), &c->gd);
    double v = eval_graph(c->g, &scratch, c->in)[loss].f[0];
    arena_fini(&scratch);
    return v;
}

/* Fourth-order central difference. */
static double difference(check *c, val loss, double *x, double h) {
    double at = *x, f[4];
    for (int i = 0; i < 4; i++) {
        *x = at + (i < 2 ? i - 2 : i - 1) * h;
        f[i] = loss_at(c, loss);
    }
    *x = at;
    return (8 * (f[2] - f[1]) - (f[3] - f[0])) / (12 * h);
}

typedef struct numeric {
    double *d; /* [elements of all float inputs] */
    int64_t n;
} numeric;

static numeric differences(check *c, val loss) {
    numeric r = { 0 };
    graph *g = c->g;
    for (int k = 0; k < g->inputs.n; k++)
        if (c->in[k].f) r.n += graph_elems(g, g->inputs.at[k]);
    r.d = ARENA_ARRAY(&c->a, double, r.n + 1);
    r.n = 0;
    for (int k = 0; k < g->inputs.n; k++)
        for (int64_t i = 0; c->in[k].f && i < graph_elems(g, g->inputs.at[k]); i++) {
            double d = difference(c, loss, &c->in[k].f[i], 4e-4), d2 = difference(c, loss, &c->in[k].f[i], 2e-4);
            if (!(fabs(d - d2) <= 2e-6 * (1 + fabs(d)))) c->kink = true;
            r.d[r.n++] = d2;
        }
    return r;
}

/* Gradients of loss by all float inputs, compared with differences; then of a random sum of them, down to `order`. */
static void check_loss(check *c, val loss, int order) {
    graph *g = c->g;
    numeric want = differences(c, loss);
    if (c->kink) return;
    val xs[MAX_IN], dx[MAX_IN];
    int n = 0;
    for (int k = 0; k < g->inputs.n; k++)
        if (c->in[k].f) xs[n++] = g->inputs.at[k];
    grad_build(g, loss, xs, n, dx);
    eval_value *v = eval_graph(g, &c->a, c->in);
    int64_t at = 0;
    for (int k = 0; k < n; k++) {
        assert_true(graph_same_shape(g, xs[k], dx[k]));
        assert_int_equal(graph_get(g, dx[k])->dtype, TN_F64);
        for (int64_t i = 0; i < graph_elems(g, xs[k]); i++, at++) {
            double err = fabs(v[dx[k]].f[i] - want.d[at]) / (1 + fabs(want.d[at]));
            if (!(err <= 5e-6))
                fail_msg("%s, order %d: d/dx%d[%lld] is %.12g, differences give %.12g", c->what, order, k, (long long)i,
                         v[dx[k]].f[i], want.d[at]);
            if (err > c->worst) c->worst = err;
        }
    }
    c->n_checks++;
    if (order < 2) return;
    val next_loss = 0;
    for (int k = 0; k < n; k++) {
        val part = weighted(c, dx[k]);
        next_loss = next_loss ? graph_binary(g, OP_add, next_loss, part) : part;
    }
    check_loss(c, next_loss, order - 1);
}

typedef val (*build_case)(check *c, int sample);

static void open_graph(check *c) {
    arena_init(&c->a, mem_libc(), &c->gd);
    memset(c->in, 0, sizeof c->in);
    c->g = graph_make(&c->a, "check");
    c->kink = false;
}

static void run_guarded(check *c, build_case build, int sample, int order) {
    if (GUARD_TRY(&c->gd)) {
        open_graph(c);
        check_loss(c, weighted(c, build(c, sample)), order);
    } else
        fail_msg("%s, sample %d: %s", c->what, sample, c->gd.err.text);
    arena_fini(&c->a);
}

static void run_samples(check *c, const char *what, build_case build, int order) {
    for (int s = 0; s < N_SAMPLES; s++) {
        c->what = what;
        int tries = 0;
        do run_guarded(c, build, s, order);
        while (c->kink && ++tries < 8);
        c->n_redrawn += tries;
        if (c->kink) fail_msg("%s, sample %d: no smooth point found in 8 draws", what, s);
    }
}

/* ---- elementwise ops, from the table --------------------------------------------------------------------------------- */

typedef struct elementwise {
    check c; /* first: the case below finds its op behind the check */
    op_code op;
} elementwise;

static val build_elementwise(check *c, int s) {
    op_code op = ((elementwise *)c)->op;
    const op_info *info = op_get(op);
    if (op == OP_select) {
        val y = operand(c, s, 0, info->lo, info->hi), z = operand(c, s, 1, info->lo, info->hi);
        const node n = *graph_get(c->g, y);
        return graph_select(c->g, input_int(c, TN_BOOL, n.rank, n.dims, 0, 1), y, z);
    }
    val x = operand(c, s, 0, info->lo, info->hi);
    return info->arity == 1 ? graph_unary(c->g, op, x) : graph_binary(c->g, op, x, operand(c, s, 1, info->lo, info->hi));
}

static void test_elementwise(void **state) {
    (void)state;
    elementwise e = { .c = { .rng = 11 } };
    int n_ops = 0;
    for (int op = 1; op < N_OPS; op++) {
        op_class cls = op_get((op_code)op)->cls;
        if ((cls != CL_FLT && cls != CL_NUM && cls != CL_ANY) || op == OP_stop_gradient || op == OP_straight_through)
            continue; /* not what differences say */
        e.op = (op_code)op;
        run_samples(&e.c, op_get((op_code)op)->name, build_elementwise, 2);
        n_ops++;
    }
    printf("count: gradients of elementwise ops: %d ops, %d gradients checked, %d samples drawn again, worst error %.1e\n",
           n_ops, e.c.n_checks, e.c.n_redrawn, e.c.worst);
    assert_true(n_ops >= 30);
    assert_true(e.c.n_checks >= n_ops * N_SAMPLES * 2);
    assert_true(e.c.n_redrawn * 10 <= n_ops * N_SAMPLES);
}

/* ---- the other classes ----------------------------------------------------------------------------------------------- */

/* Every case ends in this, so that second derivatives are not zero. */
static val squared(check *c, val x) { return graph_binary(c->g, OP_mul, x, x); }

static uint64_t some_axes(check *c, val x, bool only_full) {
    const node *n = graph_get(c->g, x);
    uint64_t axes = 0;
    for (int i = 0; i < n->rank; i++)
        if (below(c, 3) && (n->dims[i] > 0 || !only_full)) axes |= (uint64_t)1 << i;
    return axes;
}

static val build_sum(check *c, int s) {
    val x = operand(c, s, 0, -2, 2);
    return squared(c, graph_reduce(c->g, OP_sum, squared(c, x), some_axes(c, x, false)));
}
static val build_prod(check *c, int s) {
    val x = operand(c, s, 0, -2, 2);
    for (int64_t i = 0; s % 3 != 1 && i < graph_elems(c->g, c->g->inputs.at[0]); i += 2 + s % 3) c->in[0].f[i] = 0;
    return graph_reduce(c->g, OP_prod, x, some_axes(c, x, false));
}
static val build_prod_all(check *c, int s) {
    val x = input(c, 3, LIST(1 + s % 2, 1 + s % 3, 1 + s % 4), 0.5, 2);
    for (int64_t i = 0; i < s % 3; i++) c->in[0].f[below(c, graph_elems(c->g, x))] = 0;
    return graph_reduce(c->g, OP_prod, x, 7);
}
static val build_reduce_max(check *c, int s) {
    val x = operand(c, s == 9 ? 0 : s, 0, -4, 4);
    return squared(c, graph_reduce(c->g, OP_reduce_max, squared(c, x), some_axes(c, x, true)));
}
static val build_reduce_min(check *c, int s) {
    val x = operand(c, s == 9 ? 0 : s, 0, -4, 4);
    return squared(c, graph_reduce(c->g, OP_reduce_min, squared(c, x), some_axes(c, x, true)));
}
static val build_reshape(check *c, int s) {
    val x = operand(c, s, 0, -2, 2);
    int64_t n = graph_elems(c->g, x);
    return squared(c, graph_reshape(c->g, x, 3, LIST(n % 2 ? n : n / 2, 1, n % 2 ? 1 : 2)));
}
static val build_permute(check *c, int s) {
    val x = operand(c, s, 0, -2, 2);
    int64_t perm[TN_MAX_RANK];
    int rank = graph_get(c->g, x)->rank;
    for (int i = 0; i < rank; i++) {
        int64_t k = below(c, i + 1);
        perm[i] = perm[k];
        perm[k] = i;
    }
    return squared(c, graph_permute(c->g, x, perm));
}
static val build_expand(check *c, int s) {
    int64_t dims[4], to[4];
    int rank = s % 5;
    for (int i = 0; i < rank; i++) {
        to[i] = s == 7 ? i : 1 + below(c, 3);
        dims[i] = below(c, 2) ? 1 : to[i];
    }
    return squared(c, graph_expand(c->g, input(c, rank, dims, -2, 2), to));
}
static val build_pad(check *c, int s) {
    val x = operand(c, s, 0, -2, 2);
    int64_t before[TN_MAX_RANK], after[TN_MAX_RANK];
    for (int i = 0; i < graph_get(c->g, x)->rank; i++) before[i] = below(c, 3), after[i] = below(c, 3);
    return squared(c, graph_pad(c->g, x, before, after, 1.5));
}
static val build_slice(check *c, int s) {
    val x = operand(c, s, 0, -2, 2);
    const node n = *graph_get(c->g, x);
    int64_t start[TN_MAX_RANK], count[TN_MAX_RANK], step[TN_MAX_RANK];
    for (int i = 0; i < n.rank; i++) {
        start[i] = n.dims[i] ? below(c, n.dims[i]) : 0;
        step[i] = 1 + below(c, 3);
        int64_t most = n.dims[i] ? (n.dims[i] - start[i] - 1) / step[i] + 1 : 0;
        count[i] = below(c, most + 1);
        if (s % 4 && most) count[i] = most;
    }
    return squared(c, graph_slice(c->g, x, start, count, step));
}
static val build_flip(check *c, int s) {
    val x = operand(c, s, 0, -2, 2);
    return squared(c, graph_flip(c->g, x, some_axes(c, x, false)));
}

static val build_again(check *c, int s) {
    val x = operand(c, s, 0, -2, 2);
    return squared(c, graph_again(c->g, squared(c, x), operand(c, s, 1, -2, 2)));
}

/* One or two windows over the axes of x. */
static int some_windows(check *c, val x, window_axis *w) {
    const node n = *graph_get(c->g, x);
    int k = 0;
    for (int i = n.rank - 1; i >= 0 && k < 2; i--) {
        if (n.dims[i] < 2) continue;
        w[k].axis = i;
        w[k].dilation = 1 + below(c, 2);
        w[k].size = 1 + below(c, (n.dims[i] - 1) / w[k].dilation + 1);
        w[k].stride = 1 + below(c, 3);
        k++;
    }
    return k;
}
static val build_window(check *c, int s) {
    window_axis w[2];
    val x = s < 3 ? input(c, 3, LIST(1 + s, 5 - s, 4 + s), -2, 2) : operand(c, s, 0, -2, 2);
    int k = some_windows(c, x, w);
    return squared(c, k ? graph_window(c->g, squared(c, x), w, k) : x);
}
static val build_fold(check *c, int s) {
    window_axis w[2];
    val like = graph_splat(c->g, TN_F64, 3, LIST(s == 5 ? 0 : 1 + s % 2, 3 + s % 3, 5), 0);
    int k = some_windows(c, like, w);
    const node shape = *graph_get(c->g, graph_window(c->g, like, w, k));
    val x = input(c, shape.rank, shape.dims, -2, 2);
    return squared(c, graph_fold(c->g, squared(c, x), w, k, graph_get(c->g, like)->dims));
}
static val build_concat(check *c, int s) {
    val xs[3];
    int64_t dims[3] = { 2, 1 + s % 3, s == 4 ? 0 : 2 };
    int axis = s % 3, n = 1 + s % 3;
    for (int i = 0; i < n; i++) {
        dims[axis] = below(c, 4);
        xs[i] = squared(c, input(c, 3, dims, -2, 2));
    }
    return squared(c, graph_concat(c->g, xs, n, axis));
}

/* A dot with its axes in any order: batch, contracted and free axes are dealt out at random places of both operands. */
static val build_dot(check *c, int s) {
    int nb = s % 3, nc = (s / 2) % 3, n_axes[2];
    int64_t size[2][6], dims[2][6], batch[2][3], contract[2][3];
    int64_t shared[6];
    for (int i = 0; i < nb + nc; i++) shared[i] = s == 7 ? i % 2 : 1 + below(c, 3);
    for (int k = 0; k < 2; k++) {
        int place[6], rank = nb + nc + (int)below(c, 3);
        for (int i = 0; i < rank; i++) {
            int j = (int)below(c, i + 1);
            place[i] = place[j];
            place[j] = i;
        }
        for (int i = 0; i < rank; i++) {
            size[k][i] = i < nb + nc ? shared[i] : 1 + below(c, 3);
            dims[k][place[i]] = size[k][i];
            if (i < nb) batch[k][i] = place[i];
            if (i >= nb && i < nb + nc) contract[k][i - nb] = place[i];
        }
        n_axes[k] = rank;
    }
    val a = input(c, n_axes[0], dims[0], -2, 2), b = input(c, n_axes[1], dims[1], -2, 2);
    val y = graph_dot(c->g, a, b, batch[0], batch[1], nb, contract[0], contract[1], nc);
    return s % 2 ? squared(c, y) : y;
}

static val build_gather(check *c, int s) {
    int64_t dims[3] = { 3, s == 6 ? 0 : 2, 2 }, index_dims[2] = { 2, s == 5 ? 0 : 3 };
    int axis = s == 6 ? 0 : s % 3;
    val x = input(c, 3, dims, -2, 2);
    val index = input_int(c, s % 2 ? TN_I32 : TN_I64, s % 3, index_dims, -2, 4);
    return squared(c, graph_gather(c->g, squared(c, x), index, axis));
}
static val scattered(check *c, int s, op_code op) {
    int64_t dims[3] = { 3, s == 6 ? 0 : 2, 2 }, index_dims[2] = { 2, s == 5 ? 0 : 3 }, u[4];
    int axis = s == 6 ? 0 : s % 3, rank = 0;
    for (int i = 0; i < 3; i++) {
        if (i != axis) u[rank++] = dims[i];
        for (int k = 0; i == axis && k < s % 3; k++) u[rank++] = index_dims[k];
    }
    if (s >= 7) dims[axis] = 0; /* no index is in range */
    val base = input(c, 3, dims, -2, 2);
    val index = input_int(c, s % 2 ? TN_I32 : TN_I64, s % 3, index_dims, -2, 4), updates = input(c, rank, u, -2, 2);
    return squared(c, graph_scatter(c->g, op, squared(c, base), index, squared(c, updates), axis, 0));
}
static val build_scatter(check *c, int s) { return scattered(c, s, OP_scatter_add); }
static val build_scatter_set(check *c, int s) { return scattered(c, s, OP_scatter_set); }
static val build_scatter_mul(check *c, int s) { return scattered(c, s, OP_scatter_mul); }
static val build_scatter_max(check *c, int s) { return scattered(c, s, OP_scatter_max); }
static val build_scatter_min(check *c, int s) { return scattered(c, s, OP_scatter_min); }

/* Compositions. */
static val build_log_softmax(check *c, int s) {
    val x = operand(c, s == 1 ? 0 : s, 0, -3, 3);
    graph *g = c->g;
    const node n = *graph_get(g, x);
    uint64_t last = (uint64_t)1 << (n.rank - 1);
    val shifted = graph_binary(g, OP_sub, x, graph_expand(g, graph_reduce(g, OP_reduce_max, x, last), n.dims));
    val sum = graph_reduce(g, OP_sum, graph_unary(g, OP_exp, shifted), last);
    val y = graph_binary(g, OP_sub, shifted, graph_expand(g, graph_unary(g, OP_log, sum), n.dims));
    return graph_binary(g, OP_mul, y, graph_unary(g, OP_exp, y));
}
static val build_conv(check *c, int s) {
    int64_t h = 3 + s % 3, w = 3 + s % 2, ci = 1 + s % 2, co = 1 + s % 3;
    window_axis win[2] = { { 1, 2, 1 + s % 2, 1 }, { 2, 2, 1, 1 + s % 2 } };
    val x = input(c, DIMS(2, h, w, ci), -2, 2), k = input(c, DIMS(2, 2, ci, co), -2, 2);
    val y = graph_dot(c->g, graph_window(c->g, x, win, 2), k, NULL, NULL, 0, LIST(4, 5, 3), LIST(0, 1, 2), 3);
    return graph_unary(c->g, OP_tanh, y);
}
static val build_attention(check *c, int s) {
    int64_t b = 1 + s % 2, t = 1 + s % 3, d = 2;
    graph *g = c->g;
    val q = input(c, DIMS(b, t, d), -1, 1), k = input(c, DIMS(b, t, d), -1, 1), v = input(c, DIMS(b, t, d), -1, 1);
    val p = graph_unary(g, OP_exp, graph_dot(g, q, k, LIST(0), LIST(0), 1, LIST(2), LIST(2), 1));
    const node n = *graph_get(g, p);
    p = graph_binary(g, OP_div, p, graph_expand(g, graph_reduce(g, OP_sum, p, 4), n.dims));
    return graph_dot(g, p, v, LIST(0), LIST(0), 1, LIST(2), LIST(1), 1);
}

/* ---- control flow ---- */

static val param(graph *g, int r, tn_dtype t, int rank, const int64_t *dims) {
    int64_t at = g->regions.at[r].n_params;
    return graph_add(g,
                     &(spec){ .op = OP_param, .dtype = t, .rank = rank, .dims = dims, .attr = &at, .n_attr = 1, .region = r });
}
static val result_k(graph *g, val op, int64_t k) {
    return graph_add(g, &(spec){ .op = OP_proj, .in = &op, .n_in = 1, .attr = &k, .n_attr = 1 });
}
static val positive(graph *g, val x /* f64[2] */) { /* whether its first element is */
    val first = graph_reshape(g, graph_slice(g, x, LIST(0), LIST(1), LIST(1)), 0, NULL);
    return graph_binary(g, OP_lt, graph_splat_like(g, first, 0.1), first);
}

/* x y when x begins with a positive number, else sin x and y. */
static val choice(graph *g, val x, val y) {
    int64_t r[2];
    for (int k = 0; k < 2; k++) {
        r[k] = graph_region(g, NULL);
        val a = param(g, (int)r[k], TN_F64, 1, LIST(2)), b = param(g, (int)r[k], TN_F64, 1, LIST(2));
        graph_region_result(g, (int)r[k], k ? graph_unary(g, OP_sin, a) : graph_binary(g, OP_mul, a, b));
        graph_region_result(g, (int)r[k], k ? b : graph_binary(g, OP_mul, b, graph_binary(g, OP_mul, a, a)));
    }
    val op = graph_add(g, &(spec){ .op = OP_if, .in = (val[]){ positive(g, x), x, y }, .n_in = 3, .attr = r, .n_attr = 2 });
    return graph_binary(g, OP_add, op, result_k(g, op, 1));
}
static val build_if(check *c, int s) {
    (void)s;
    val x = input(c, DIMS(2), -1, 1), y = input(c, DIMS(2), -1, 1);
    return choice(c->g, graph_binary(c->g, OP_mul, x, y), y);
}

typedef struct loop { /* a scan of h' = tanh(h w + x_t), y = h' x_t; with more inside of it */
    bool reverse, cond, nested, choice, recompute;
    int64_t count, length; /* count < 0: an input says how many */
} loop;
static val build_loop(check *c, loop o) {
    graph *g = c->g;
    val n = graph_splat(g, TN_I64, 0, NULL, (double)o.count);
    if (o.count < 0) n = input_int(c, TN_I64, 0, NULL, 0, o.length);
    val h0 = input(c, DIMS(2), -1, 1), x = input(c, 2, LIST(o.length, 2), -1, 1), w = input(c, DIMS(2, 2), -1, 1);
    int64_t r[2] = { graph_region(g, NULL), 0 };
    for (int k = 0; k <= o.cond; k++) {
        if (k) r[1] = graph_region(g, NULL);
        val i = param(g, (int)r[k], TN_I64, 0, NULL), h = param(g, (int)r[k], TN_F64, 1, LIST(2)),
            t = param(g, (int)r[k], TN_F64, 1, LIST(2)), u = param(g, (int)r[k], TN_F64, 2, LIST(2, 2));
        if (k) {
            graph_region_result(g, (int)r[1], graph_binary(g, OP_lt, i, graph_splat_like(g, i, 2)));
            continue;
        }
        val a = graph_dot(g, h, u, NULL, NULL, 0, LIST(0), LIST(0), 1);
        val next_h = graph_unary(g, OP_tanh, graph_binary(g, OP_add, a, t));
        if (o.choice) next_h = choice(g, next_h, t);
        if (o.nested) { /* a loop over the rows of w, from h */
            int64_t q = graph_region(g, NULL);
            val p = param(g, (int)q, TN_F64, 1, LIST(2)), row = param(g, (int)q, TN_F64, 1, LIST(2)),
                by = param(g, (int)q, TN_F64, 1, LIST(2));
            val sum = graph_reshape(g, graph_expand(g, graph_reduce(g, OP_sum, graph_binary(g, OP_mul, p, row), 1), LIST(2)), 1,
                                    LIST(2));
            graph_region_result(g, (int)q, graph_binary(g, OP_add, graph_unary(g, OP_sin, sum), by));
            graph_region_result(g, (int)q, graph_binary(g, OP_mul, p, p));
            val two = graph_add(
                g, &(spec){ .op = OP_const, .dtype = TN_I64, .splat = true, .imm = 2, .imm_int = 2, .region = (int)r[0] });
            val op = graph_add(g, &(spec){ .op = OP_scan,
                                           .in = (val[]){ two, next_h, u, t },
                                           .n_in = 4,
                                           .attr = LIST(q, 0, 1, 1, 2, 1, 0),
                                           .n_attr = 7 });
            val rows = graph_reduce(g, OP_sum, result_k(g, op, 1), 1);
            next_h = graph_binary(g, OP_add, op, graph_reshape(g, rows, 1, LIST(2)));
        }
        graph_region_result(g, (int)r[0], graph_binary(g, OP_add, i, graph_splat_like(g, i, 1)));
        graph_region_result(g, (int)r[0], next_h);
        graph_region_result(g, (int)r[0], graph_binary(g, OP_mul, next_h, t));
    }
    val zero = graph_splat(g, TN_I64, 0, NULL, 0);
    val op = graph_add(g, &(spec){ .op = OP_scan,
                                   .in = (val[]){ n, zero, h0, x, w },
                                   .n_in = 5,
                                   .attr = LIST(r[0], r[1], 2, 1, o.length, o.reverse, o.recompute),
                                   .n_attr = 7 });
    val ys = graph_reduce(g, OP_sum, graph_binary(g, OP_mul, result_k(g, op, 2), x), 1);
    return graph_binary(g, OP_add, result_k(g, op, 1), graph_reshape(g, ys, 1, LIST(2)));
}
static val build_scan(check *c, int s) {
    return build_loop(c, (loop){ .count = 3, .length = 3, .reverse = s & 1, .recompute = s & 2 });
}
static val build_counted(check *c, int s) {
    return build_loop(c, (loop){ .count = s % 3 ? -1 : 2, .length = 4, .reverse = s & 1 });
}
static val build_while(check *c, int s) { return build_loop(c, (loop){ .count = s % 4, .length = 3, .cond = true }); }
static val build_scan_if(check *c, int s) {
    return build_loop(c, (loop){ .count = 2, .length = 2, .choice = true, .recompute = s & 1 });
}
static val build_scan_scan(check *c, int s) {
    return build_loop(c, (loop){ .count = 2, .length = 2, .nested = true, .reverse = s & 1, .recompute = s & 2 });
}

static void test_structural(void **state) {
    (void)state;
    static const struct {
        const char *name;
        build_case build;
    } cases[] = { { "sum", build_sum },
                  { "prod", build_prod },
                  { "prod of all", build_prod_all },
                  { "reduce_max", build_reduce_max },
                  { "reduce_min", build_reduce_min },
                  { "reshape", build_reshape },
                  { "permute", build_permute },
                  { "expand", build_expand },
                  { "pad", build_pad },
                  { "slice", build_slice },
                  { "flip", build_flip },
                  { "again", build_again },
                  { "window", build_window },
                  { "fold", build_fold },
                  { "concat", build_concat },
                  { "dot", build_dot },
                  { "gather", build_gather },
                  { "scatter_add", build_scatter },
                  { "scatter_set", build_scatter_set },
                  { "scatter_mul", build_scatter_mul },
                  { "scatter_max", build_scatter_max },
                  { "scatter_min", build_scatter_min },
                  { "log_softmax", build_log_softmax },
                  { "convolution", build_conv },
                  { "attention", build_attention },
                  { "if", build_if },
                  { "scan", build_scan },
                  { "scan with a count", build_counted },
                  { "while with a bound", build_while },
                  { "if in scan", build_scan_if },
                  { "scan in scan", build_scan_scan } };
    check c = { .rng = 23 };
    int before, rounds = 2;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        for (int r = 0; r < rounds; r++) {
            before = c.n_checks;
            run_samples(&c, cases[i].name, cases[i].build, 2);
            assert_true(c.n_checks - before >= 2 * N_SAMPLES);
        }
    printf("count: gradients of other ops and compositions: %d cases, %d gradients checked, %d samples drawn again, worst "
           "error %.1e\n",
           (int)COUNT_OF(cases), c.n_checks, c.n_redrawn, c.worst);
    assert_true(c.n_redrawn * 5 <= (int)COUNT_OF(cases) * N_SAMPLES * rounds);
}

/* ---- exact values ---------------------------------------------------------------------------------------------------- */

static void with_graph(void (*test)(check *c)) {
    check c = { .rng = 5, .what = "exact" };
    if (GUARD_TRY(&c.gd)) {
        open_graph(&c);
        test(&c);
    } else
        fail_msg("%s", c.gd.err.text);
    arena_fini(&c.a);
}

static eval_value gradient(check *c, val loss, val x) {
    val d;
    grad_build(c->g, loss, &x, 1, &d);
    return eval_graph(c->g, &c->a, c->in)[d];
}

static void check_ties(check *c) {
    graph *g = c->g;
    val x = input(c, DIMS(5), 0, 1), y = input(c, DIMS(5), 0, 1);
    for (int i = 0; i < 5; i++) c->in[0].f[i] = (double[]){ 2, 1, 2, 0, 2 }[i], c->in[1].f[i] = (double[]){ 2, 0, 3, 0, 1 }[i];
    eval_value d = gradient(c, total(g, graph_reduce(g, OP_reduce_max, x, 1)), x);
    for (int i = 0; i < 5; i++) assert_near(d.f[i], ((double[]){ 1 / 3., 0, 1 / 3., 0, 1 / 3. }[i]), 1e-15);
    d = gradient(c, total(g, graph_binary(g, OP_max, x, y)), x);
    for (int i = 0; i < 5; i++) assert_near(d.f[i], ((double[]){ 0.5, 1, 0, 0.5, 1 }[i]), 0);
    d = gradient(c, total(g, graph_binary(g, OP_min, x, y)), y);
    for (int i = 0; i < 5; i++) assert_near(d.f[i], ((double[]){ 0.5, 1, 0, 0.5, 1 }[i]), 0);
}
static void test_ties(void **state) {
    (void)state;
    with_graph(check_ties);
}

/* x^y at x = 0, where 0 * infinity stood in the rule: x^0 is 1 everywhere, 0^y is 0 for y > 0. */
static void check_power(check *c) {
    graph *g = c->g;
    val x = input(c, DIMS(4), 0, 1), y = input(c, DIMS(4), 0, 1);
    for (int i = 0; i < 4; i++) c->in[0].f[i] = (double[]){ 0, 0, 0, 2 }[i], c->in[1].f[i] = (double[]){ 0, 1, 3, 0 }[i];
    val loss = total(g, graph_binary(g, OP_pow, x, y));
    eval_value d = gradient(c, loss, x);
    for (int i = 0; i < 4; i++) assert_near(d.f[i], ((double[]){ 0, 1, 0, 0 }[i]), 0);
    d = gradient(c, loss, y);
    for (int i = 1; i < 4; i++) assert_near(d.f[i], ((double[]){ 0, 0, 0, log(2) }[i]), 1e-15);
    val line = total(g, graph_binary(g, OP_pow, x, graph_splat_like(g, x, 1))), slope;
    grad_build(g, line, &x, 1, &slope);
    d = gradient(c, total(g, slope), x); /* of x^1, twice */
    for (int i = 0; i < 4; i++) assert_near(d.f[i], 0, 0);
    grad_build(g, loss, &x, 1, &slope);
    d = gradient(c, total(g, slope), x); /* of x^0, x^1, x^3 and 2^0, twice */
    for (int i = 0; i < 4; i++) assert_near(d.f[i], 0, 0);
}
static void test_power(void **state) {
    (void)state;
    with_graph(check_power);
}

/* Int and bool results, and ops that are constant almost everywhere, end the path without an error; so do positions that choose
 * or are compared. */
static void check_no_flow(check *c) {
    graph *g = c->g;
    val x = input(c, DIMS(4), -3, 3), y = input(c, DIMS(4), -3, 3);
    val zeros[5], unused = input(c, DIMS(2, 0), 0, 1);
    zeros[0] = graph_unary(g, OP_stop_gradient, squared(c, x));
    zeros[1] = graph_cast(g, graph_binary(g, OP_lt, x, y), TN_F64);
    zeros[2] = graph_cast(g, graph_cast(g, x, TN_I32), TN_F64);
    val at = graph_expand(g, graph_arg(g, OP_argmax, x, 0), LIST(4));
    zeros[3] = graph_cast(g, graph_binary(g, OP_eq, at, graph_splat_like(g, at, 2)), TN_F64);
    zeros[4] = graph_select(g, graph_unary(g, OP_not, graph_binary(g, OP_le, x, y)), graph_unary(g, OP_floor, x),
                            graph_unary(g, OP_sign, x));
    val sum = squared(c, y), xs[4] = { x, y, unused, 0 }, dx[4];
    for (int i = 0; i < 5; i++) sum = graph_binary(g, OP_add, sum, zeros[i]);
    val loss = total(g, sum);
    xs[3] = loss;
    grad_build(g, loss, xs, 4, dx);
    eval_value *v = eval_graph(g, &c->a, c->in);
    for (int i = 0; i < 4; i++) {
        assert_near(v[dx[0]].f[i], 0, 0);
        assert_near(v[dx[1]].f[i], 2 * c->in[1].f[i], 1e-14);
    }
    assert_true(graph_same_shape(g, dx[2], unused));
    assert_near(v[dx[3]].f[0], 1, 0);
}
static void test_no_flow(void **state) {
    (void)state;
    with_graph(check_no_flow);
}

/* Gradient with respect to a value in the middle, together with one upstream of it. */
static void check_middle(check *c) {
    graph *g = c->g;
    val x = input(c, DIMS(3), 0.5, 2), mid = squared(c, x), loss = total(g, graph_binary(g, OP_mul, mid, x));
    val xs[2] = { mid, x }, dx[2];
    grad_build(g, loss, xs, 2, dx);
    eval_value *v = eval_graph(g, &c->a, c->in);
    for (int i = 0; i < 3; i++) {
        double a = c->in[0].f[i];
        assert_near(v[dx[0]].f[i], a, 1e-14);
        assert_near(v[dx[1]].f[i], 3 * a * a, 1e-13);
    }
}
static void test_middle(void **state) {
    (void)state;
    with_graph(check_middle);
}

/* A cast between floats passes the gradient on in the operand's dtype: d/dx of (x rounded)^2 is 2 (x rounded). */
static void check_cast(check *c) {
    static const struct {
        tn_dtype t;
        double eps;
    } types[] = { { TN_F64, 1e-16 }, { TN_F32, 6e-8 }, { TN_F16, 5e-4 }, { TN_BF16, 4e-3 } };
    graph *g = c->g;
    for (int s = 0; s < 2; s++)
        for (size_t t = 0; t < COUNT_OF(types); t++) {
            int k = g->inputs.n;
            val x = input(c, t % 2 ? 2 : 0, LIST(3, 2 + s), -2, 2);
            val y = graph_cast(g, squared(c, graph_cast(g, x, types[t].t)), TN_F64), dx;
            val loss = total(g, y);
            grad_build(g, loss, &x, 1, &dx);
            assert_int_equal(graph_get(g, dx)->dtype, TN_F64);
            eval_value *v = eval_graph(g, &c->a, c->in);
            for (int64_t i = 0; i < graph_elems(g, x); i++) assert_near(v[dx].f[i], 2 * c->in[k].f[i], types[t].eps * 8);
        }
}
static void test_cast(void **state) {
    (void)state;
    with_graph(check_cast);
}

/* Fan-in is added up in the order of the walk: the same graph gives the same nodes. */
static void check_deterministic(check *c) {
    graph *g = c->g, *h;
    val x = input(c, DIMS(3), 0.5, 2), sum = x, dx;
    for (int i = 0; i < 5; i++) sum = graph_binary(g, i % 2 ? OP_pow : OP_mul, sum, graph_unary(g, OP_atan, x));
    val loss = total(g, sum);
    h = graph_clone(g, &c->a, true, NULL);
    grad_build(g, loss, &x, 1, &dx);
    val hx = h->inputs.at[0], hd;
    grad_build(h, loss, &hx, 1, &hd);
    assert_int_equal(g->nodes.n, h->nodes.n);
    assert_int_equal(dx, hd);
    for (val v = 1; v < (val)g->nodes.n; v++) {
        assert_int_equal(graph_get(g, v)->op, graph_get(h, v)->op);
        for (int i = 0; i < graph_get(g, v)->n_in; i++) assert_int_equal(graph_get(g, v)->in[i], graph_get(h, v)->in[i]);
    }
}
static void test_deterministic(void **state) {
    (void)state;
    with_graph(check_deterministic);
}

/* ---- errors ---------------------------------------------------------------------------------------------------------- */

static tn_status failure(check *c, val loss, const val *xs, int n) {
    guard outer = c->gd;
    val dx[MAX_IN];
    tn_status code = TN_OK;
    if (GUARD_TRY(&c->gd))
        grad_build(c->g, loss, xs, n, dx);
    else
        code = c->gd.err.code;
    memcpy(c->gd.env, outer.env, sizeof outer.env);
    return code;
}

/* A while without a bound has no gradient: an error that names op, label and place, but only where one must flow through. */
static void check_control(check *c) {
    graph *g = c->g;
    val x = input(c, DIMS(3), 0, 1), y = input(c, DIMS(3), 0, 1);
    int64_t r[2] = { graph_region(g, NULL), graph_region(g, NULL) };
    for (int k = 0; k < 2; k++) {
        val p = param(g, (int)r[k], TN_F64, 1, LIST(3));
        graph_region_result(g, (int)r[k],
                            k ? p
                              : graph_add(g, &(spec){ .op = OP_const, .dtype = TN_BOOL, .splat = true, .region = (int)r[k] }));
    }
    g->here = "model.c:17";
    val loop = graph_add(g, &(spec){ .op = OP_while, .in = &x, .n_in = 1, .attr = r, .n_attr = 2, .name = "gate" });
    val result = result_k(g, loop, 0);
    g->here = NULL;
    val loss = total(g, graph_binary(g, OP_mul, result, y));
    assert_int_equal(failure(c, loss, &y, 1), TN_OK);
    assert_int_equal(failure(c, loss, &x, 1), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(c->gd.err.text, "through while %"));
    assert_non_null(strstr(c->gd.err.text, "(gate) at model.c:17"));
    assert_non_null(strstr(c->gd.err.text, "bound"));
    assert_int_equal(failure(c, total(g, graph_unary(g, OP_stop_gradient, result)), &x, 1), TN_OK);
}
static void test_control(void **state) {
    (void)state;
    with_graph(check_control);
}

/* A position as a number of the loss is an error that names it; as an index it chooses whose gradient flows. */
static void check_positions(check *c) {
    graph *g = c->g;
    val x = input(c, DIMS(3), 0, 1);
    for (int i = 0; i < 3; i++) c->in[0].f[i] = (double[]){ 1, 5, 2 }[i];
    g->here = "model.c:18";
    val at = graph_arg(g, OP_argmax, x, 0);
    g->here = NULL;
    val number = graph_cast(g, graph_binary(g, OP_add, at, graph_splat_like(g, at, 1)), TN_F64);
    assert_int_equal(failure(c, total(g, graph_binary(g, OP_mul, number, graph_slice(g, x, LIST(0), LIST(1), LIST(1)))), &x, 1),
                     TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(c->gd.err.text, "through argmax %"));
    assert_non_null(strstr(c->gd.err.text, "at model.c:18"));
    assert_int_equal(failure(c, total(g, graph_unary(g, OP_stop_gradient, number)), &x, 1), TN_OK);
    eval_value d = gradient(c, total(g, graph_gather(g, x, at, 0)), x);
    for (int i = 0; i < 3; i++) assert_near(d.f[i], i == 1, 0);
}
static void test_positions(void **state) {
    (void)state;
    with_graph(check_positions);
}

static void check_arguments(check *c) {
    graph *g = c->g;
    val x = input(c, DIMS(3), 0, 1), k = input_int(c, TN_I32, 0, NULL, 0, 1);
    assert_int_equal(failure(c, x, &x, 1), TN_ERR_SHAPE);
    assert_int_equal(failure(c, k, &x, 1), TN_ERR_DTYPE);
    assert_int_equal(failure(c, total(g, x), (val[]){ x, k }, 2), TN_ERR_DTYPE);
    assert_non_null(strstr(c->gd.err.text, "value 1 is i32[]"));
    assert_int_equal(failure(c, total(g, x), NULL, 0), TN_OK);
}
static void test_arguments(void **state) {
    (void)state;
    with_graph(check_arguments);
}

/* Every operand that the table marks NOGRAD belongs to an op that gives bool or integers, or is itself bool: none of them can
 * lie on a float path. */
static void test_nograd_rows(void **state) {
    (void)state;
    static const struct {
        const char *name;
        op_class cls;
        bool first; /* its first operand is NOGRAD */
    } rows[] = {
#define UNARY(name, cls, expr, flops, ulp, lo, hi, gx, doc) { #name, CL_##cls, #gx[0] == 'N' && #gx[1] == 'O' },
#define BINARY(name, cls, expr, flops, ulp, lo, hi, gx, gy, doc) { #name, CL_##cls, #gx[0] == 'N' && #gx[1] == 'O' },
#define TERNARY(name, cls, expr, flops, ulp, lo, hi, gx, gy, gz, doc) { #name, CL_##cls, #gx[0] == 'N' && #gx[1] == 'O' },
#define OP(name, ...)
#include "ir/ops.def"
    };
    int n = 0;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (!rows[i].first) continue;
        n++;
        assert_true(rows[i].cls == CL_BIT || rows[i].cls == CL_INT || rows[i].cls == CL_LOG || rows[i].cls == CL_CMP ||
                    !strcmp(rows[i].name, "select"));
    }
    assert_int_equal(n, 13);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elementwise), cmocka_unit_test(test_structural),    cmocka_unit_test(test_ties),
        cmocka_unit_test(test_power),       cmocka_unit_test(test_no_flow),       cmocka_unit_test(test_middle),
        cmocka_unit_test(test_cast),        cmocka_unit_test(test_deterministic), cmocka_unit_test(test_control),
        cmocka_unit_test(test_arguments),   cmocka_unit_test(test_nograd_rows),   cmocka_unit_test(test_positions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
