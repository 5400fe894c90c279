/* ir_compare.c - one computed tensor against its op in double on the operands that were computed: is the difference explained
 * by rounding?
 *
 * The op is evaluated as a graph of its own whose inputs are the operands. How far a right f32 (f64, f16, bf16) result may be
 * off is found by evaluating again: with operands moved by a few roundings (elementwise ops; a fused kernel may not have
 * rounded them), or with their absolute values (sums of products, where errors scale with the sum of magnitudes).
 *
 * A control op is evaluated with its bodies. What the roundings in them can change is estimated by evaluating them again and
 * again with each result moved at random within its own op's bound (stochastic arithmetic: Vignes, 1993). Where that takes
 * another branch or number of iterations, the values of both are right. */
#include "api/api.h"
#include "tenon/tenon_ir.h"

#include "eval/eval_control.h"
#include "ir/region.h"

#include <math.h>

enum { MOVED_RUNS = 8 };
static const double MOVED_SLACK = 8; /* times the largest change seen in as many runs */

typedef struct comparison {
    tn_ctx *ctx;
    const graph *ir;
    val x, v;   /* the value; its op: of a proj the one that it projects */
    int result; /* of a control op: which of its results is x; -1: another op */
    const void *const *operands;
    const void *got;
    tn_ir_difference *out;
    guard gd;
    arena arena;
    graph *one;     /* another op alone */
    val one_v;      /* its value there */
    eval_value *in; /* its operands */
    uint64_t random;
} comparison;

static void load_operands(comparison *c) {
    const node *n = graph_get(c->ir, c->v);
    c->in = ARENA_ARRAY(&c->arena, eval_value, n->n_in + 1);
    for (int k = 0; k < n->n_in; k++) c->in[k] = eval_load(c->ir, &c->arena, n->in[k], c->operands[k]);
}

static void build_one(comparison *c) {
    const node *n = graph_get(c->ir, c->v);
    c->one = graph_make(&c->arena, "one");
    val *in = ARENA_ARRAY(&c->arena, val, n->n_in + 1);
    for (int k = 0; k < n->n_in; k++) {
        const node *o = graph_get(c->ir, n->in[k]);
        spec s = { .op = OP_input,
                   .dtype = (tn_dtype)o->dtype,
                   .rank = o->rank,
                   .dims = o->dims,
                   .name = arena_printf(&c->arena, "x%d", k) };
        in[k] = graph_add(c->one, &s);
    }
    spec s = graph_spec(c->ir, c->v);
    s.in = in, s.region = 0;
    c->one_v = graph_add(c->one, &s);
}

static eval_value evaluate(comparison *c, const eval_value *in) { return eval_graph(c->one, &c->arena, in)[c->one_v]; }

static double number(eval_value v, int64_t i) { return v.f ? v.f[i] : (double)v.i[i]; }

/* A copy of operand k (all float operands when k < 0) with every element x replaced by x * factor, or |x| when factor is 0. */
static eval_value *changed(comparison *c, int which, double factor) {
    int n_in = graph_get(c->ir, c->v)->n_in;
    eval_value *in = ARENA_ARRAY(&c->arena, eval_value, n_in + 1);
    for (int k = 0; k < n_in; k++) {
        in[k] = c->in[k];
        if (!in[k].f || (which >= 0 && which != k)) continue;
        int64_t n = graph_elems(c->ir, graph_get(c->ir, c->v)->in[k]);
        double *f = ARENA_ARRAY(&c->arena, double, n + 1);
        for (int64_t i = 0; i < n; i++) f[i] = factor != 0 ? in[k].f[i] * factor : fabs(in[k].f[i]);
        in[k].f = f;
    }
    return in;
}

/* Elementwise: what a rounding or two of each operand can change. */
static void bound_by_moving(comparison *c, eval_value want, double *bound, int64_t count) {
    const node *n = graph_get(c->ir, c->v);
    for (int k = 0; k < n->n_in; k++) {
        tn_dtype t = (tn_dtype)graph_get(c->ir, n->in[k])->dtype;
        if (!dtype_is_float(t)) continue;
        for (int sign = -1; sign <= 1; sign += 2) {
            eval_value moved = evaluate(c, changed(c, k, 1 + sign * 4 * dtype_roundoff(t)));
            for (int64_t i = 0; i < count; i++) {
                double d = fabs(number(moved, i) - number(want, i));
                if (d > 0) bound[i] += sign < 0 ? d : d / 2; /* NaN adds nothing */
            }
        }
    }
}

/* The longest sum behind one element of the result. */
static double n_terms(const graph *g, val v) {
    const node *n = graph_get(g, v);
    double result = (double)graph_elems(g, v), terms = 1;
    switch (op_get((op_code)n->op)->cls) {
    case CL_REDUCE:
        return (double)graph_elems(g, n->in[0]) / fmax(result, 1);
    case CL_DOT: {
        const node *a = graph_get(g, n->in[0]);
        int nb = (int)n->attr[0], nc = (int)n->attr[1];
        for (int k = 0; k < nc; k++) terms *= (double)a->dims[n->attr[2 + 2 * nb + k]];
        return terms;
    }
    case CL_FOLD:
        for (int64_t k = 0; k < n->attr[0]; k++) terms *= (double)n->attr[1 + 4 * k + 1];
        return terms;
    default: /* scatters: every update may meet in one place */
        return (double)graph_elems(g, n->in[1]) + 1;
    }
}

static bool is_elementwise(const node *n) {
    return op_is_elementwise((op_code)n->op) || op_get((op_code)n->op)->cls == CL_CAST;
}

/* What op v may be off, of operands that are right: added to bound[count]. size: of sums the sum of absolute terms. */
static void add_rounding(const graph *g, val v, eval_value want, eval_value size, int64_t count, double *bound) {
    const node *n = graph_get(g, v);
    tn_dtype t = (tn_dtype)n->dtype;
    const op_info *o = op_get((op_code)n->op);
    double u = dtype_roundoff(t);
    if (!dtype_is_float(t) || o->cls == CL_SOURCE || o->cls == CL_RANDOM) return;
    if (eval_is_sum(n)) {
        double inner = t == TN_F64 ? u : 0x1p-24; /* halves accumulate in f32 */
        for (int64_t i = 0; i < count; i++)
            bound[i] += ((n_terms(g, v) + 4) * inner + 4 * u) * number(size, i) + 2 * u * dtype_smallest_normal(t);
        return;
    }
    bool elementwise = is_elementwise(n);
    double factor = n->op == OP_prod || n->op == OP_scatter_mul ? 2 * n_terms(g, v) + 2 : elementwise ? 2 * o->ulp + 2 : 2;
    double floor = elementwise && o->ulp > 0.5 ? dtype_smallest_normal(t) : 0; /* approximations may flush what is below */
    for (int64_t i = 0; i < count; i++) {
        double w = fabs(number(want, i));
        if (isfinite(w)) bound[i] += factor * u * w + fmax(floor, 2 * u * dtype_smallest_normal(t));
    }
}

static double *bounds(comparison *c, eval_value want, int64_t count) {
    const node *n = graph_get(c->ir, c->v);
    double *bound = ARENA_ARRAY(&c->arena, double, count + 1);
    if (is_elementwise(n)) bound_by_moving(c, want, bound, count);
    bool sum = eval_is_sum(n) && dtype_is_float((tn_dtype)n->dtype);
    add_rounding(c->ir, c->v, want, sum ? evaluate(c, changed(c, -1, 0)) : want, count, bound);
    return bound;
}

/* ---- control ops ---- */

/* Whether a number is one that rounding to t leaves alone. Every double is an f64: one that an f32 holds, too, has hardly been
 * rounded. */
static bool is_exact(tn_dtype t, double x) {
    uint64_t cell = 0;
    if (t == TN_F64) t = TN_F32;
    dtype_store(t, &cell, 0, x);
    return dtype_load(t, &cell, 0) == x;
}

static double random_sign(comparison *c) { /* in [-1, 1) */
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)c->random * 0x1p-63;
}

/* Moves what an op of a body gives, but for numbers that it must give exactly: those that its dtype holds, of ops that are
 * rounded correctly. */
static void move_value(void *ud, const graph *g, val v, eval_value out, eval_value size) {
    comparison *c = ud;
    const node *n = graph_get(g, v);
    tn_dtype t = (tn_dtype)n->dtype;
    bool rounded = !is_elementwise(n) || op_get((op_code)n->op)->ulp <= 0.5;
    int64_t count = graph_elems(g, v);
    double *bound = ARENA_ARRAY(&c->arena, double, count + 1);
    add_rounding(g, v, out, size, count, bound);
    for (int64_t i = 0; i < count; i++) {
        if (rounded && is_exact(t, out.f[i]) && (!size.f || is_exact(t, size.f[i]))) continue;
        if (isfinite(out.f[i])) out.f[i] += random_sign(c) * bound[i];
    }
}

static double *control_bounds(comparison *c, eval_value want, int64_t count) {
    double *bound = ARENA_ARRAY(&c->arena, double, count + 1);
    tn_dtype t = (tn_dtype)graph_get(c->ir, c->x)->dtype;
    for (int run = 0; run < MOVED_RUNS; run++) {
        eval_value moved = eval_control(c->ir, &c->arena, c->v, c->in, move_value, c)[c->result];
        for (int64_t i = 0; i < count; i++) {
            double d = fabs(number(moved, i) - number(want, i));
            if (d * MOVED_SLACK > bound[i]) bound[i] = d * MOVED_SLACK; /* NaN adds nothing */
        }
    }
    for (int64_t i = 0; i < count; i++) {
        double w = fabs(number(want, i));
        if (isfinite(w) && !is_exact(t, w)) bound[i] += dtype_roundoff(t) * w + dtype_smallest_normal(t) * dtype_roundoff(t);
    }
    return bound;
}

/* 0 when they agree; beyond 1 the bound is missed. */
static double badness(double got, double want, double bound, tn_dtype t) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (got == want) return 0;
    if (isinf(got) && dtype_is_float(t))
        return signbit(got) == signbit(want) && fabs(want) + bound >= dtype_info(t)->hi ? 0 : INFINITY;
    double d = fabs(got - want);
    return bound > 0 ? d / bound : INFINITY;
}

static void compare_guarded(void *arg) {
    comparison *c = arg;
    tn_dtype t = (tn_dtype)graph_get(c->ir, c->x)->dtype;
    int64_t count = graph_elems(c->ir, c->x);
    bool control = c->result >= 0;
    load_operands(c);
    if (!control) build_one(c);
    eval_value got = eval_load(c->ir, &c->arena, c->x, c->got);
    eval_value want = control ? eval_control(c->ir, &c->arena, c->v, c->in, NULL, NULL)[c->result] : evaluate(c, c->in);
    double *bound = control ? control_bounds(c, want, count) : bounds(c, want, count), worst = -1;
    *c->out = (tn_ir_difference){ .ok = 1, .index = -1 };
    for (int64_t i = 0; i < count; i++) {
        double g = number(got, i), w = number(want, i), bad = badness(g, w, bound[i], t);
        double d = bad == 0 ? (g == w || !isfinite(g) ? 0 : fabs(g - w)) : fabs(g - w); /* both overflow, or are NaN: alike */
        if (d > c->out->max_abs) c->out->max_abs = d;
        if (bad <= worst) continue;
        worst = bad;
        c->out->ok = bad <= 1;
        c->out->index = i;
        c->out->got = g;
        c->out->want = w;
        c->out->bound = bound[i];
    }
}

tn_status tn_ir_compare(tn_graph *g, tn_tensor x, const void *const *operands, const void *got,
                        tn_ir_difference *out_difference) {
    if (!g) return TN_ERR_INVAL;
    if (g->err.code) return api_report(g->ctx, &g->err);
    if (x.graph != g || !x.id || x.id >= (uint32_t)g->ir->nodes.n || !got || !out_difference)
        return err_set(&g->ctx->err, TN_ERR_INVAL, "tn_ir_compare: x is no tensor of the graph, or an argument is NULL");
    const node *n = graph_get(g->ir, x.id);
    comparison c = { .ctx = g->ctx, .ir = g->ir, .x = x.id, .v = x.id, .result = -1, .operands = operands, .got = got };
    c.out = out_difference;
    if (n->op == OP_proj) c.v = n->in[0], c.result = (int)n->attr[0], n = graph_get(g->ir, c.v);
    if (node_regions(n) && c.result < 0) c.result = 0;
    if (n->op == OP_input || n->op == OP_state || n->op == OP_param)
        return err_set(&g->ctx->err, TN_ERR_UNSUPPORTED, "tn_ir_compare: %s computes nothing that could be compared",
                       op_get((op_code)n->op)->name);
    for (int k = 0; k < n->n_in; k++) {
        if (!operands || !operands[k]) return err_set(&g->ctx->err, TN_ERR_INVAL, "tn_ir_compare: operand %d is NULL", k);
    }
    arena_init(&c.arena, g->ctx->mem, &c.gd);
    tn_status code = api_try(&c.gd, compare_guarded, &c);
    if (code) api_report(g->ctx, &c.gd.err);
    arena_fini(&c.arena);
    return code;
}
