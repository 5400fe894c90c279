/* bound.c - error bounds of a whole graph: bound_graph of support.h.
 *
 * Every element carries e, such that a correct kernel's value lies within e of the evaluator's. Elementwise ops are evaluated
 * at the corners of their operands' intervals, which also catches comparisons and roundings that may go either way; ops that
 * are sums or products of their operands carry e through the same op, applied to magnitudes (in a graph of one node, in
 * double). */
#include "support/support.h"

#include <float.h>
#include <math.h>

typedef struct bounds {
    const graph *g;
    arena *a;
    const eval_value *values;
    double **err;
} bounds;

/* Half a unit in the last place, relative. */
static double unit_of(tn_dtype t) { return dtype_roundoff(t); }
/* Of the arithmetic: half types compute in f32. The evaluator's own rounding counts too when it is no better. */
static double unit_inside(tn_dtype t) { return t == TN_F64 ? 0x1p-52 : dtype_is_float(t) ? 0x1p-24 : 0; }
/* Absolute error of a result that underflows or is flushed to zero. */
static double tiny_of(tn_dtype t) {
    if (!dtype_is_float(t)) return 0;
    double normal = dtype_smallest_normal(t);
    return normal > FLT_MIN ? normal * 2 * dtype_roundoff(t) : normal;
}
static double largest_of(tn_dtype t) { return dtype_info(dtype_is_float(t) ? t : TN_F32)->hi; }

/* Error of a computed value: e carried in, plus `ulps` units of the arithmetic, plus the rounding when stored. */
static double with_rounding(tn_dtype t, double value, double e, double ulps) {
    if (!dtype_is_float(t)) return e;
    double size = fabs(value) + e;
    if (isnan(e) || (size > largest_of(t) && !isinf(value))) return INFINITY;
    if (!isfinite(value)) return e > 0 ? INFINITY : 0;
    return ulps == 0 ? e : e + size * (2 * ulps * unit_inside(t) + unit_of(t)) + tiny_of(t);
}

static double magnitude(eval_value x, int64_t i) { return x.f ? fabs(x.f[i]) : fabs((double)x.i[i]); }

/* ---- elementwise ---- */

static double element_at(op_code op, tn_dtype t, bool float_operands, double x, double y, double z) {
    if (dtype_is_float(t)) return eval_element_float(op, x, y, z);
    if (float_operands) return (double)eval_element_compare(op, x, y);
    return (double)(eval_element_int(op, TN_I64, (int64_t)x, (int64_t)y, (int64_t)z)); /* bool: exact in double */
}

/* The three places of an operand that are tried: the value and both ends; a doubtful bool may be either. */
static int places_of(tn_dtype t, double v, double e, double *out) {
    out[0] = v;
    if (e == 0) return 1;
    out[1] = t == TN_BOOL ? 1 - v : v - e;
    out[2] = v + e;
    return t == TN_BOOL ? 2 : 3;
}

static double deviation(const node *n, bool float_operands, const tn_dtype *t, const double *v, const double *e) {
    double p[3][3], worst = 0;
    int k[3];
    for (int j = 0; j < 3; j++) k[j] = places_of(t[j], v[j], e[j], p[j]);
    double centre = element_at(n->op, n->dtype, float_operands, v[0], v[1], v[2]);
    for (int q = 1; q < k[0] * k[1] * k[2]; q++) {
        double at = element_at(n->op, n->dtype, float_operands, p[0][q % k[0]], p[1][q / k[0] % k[1]], p[2][q / k[0] / k[1]]);
        if (isnan(at) && isnan(centre)) continue;
        if (at == centre) continue;
        double off = fabs(at - centre);
        if (isnan(off)) return INFINITY;
        if (off > worst) worst = off;
    }
    return worst;
}

/* What the ends do not show: operands whose reach holds a turning point or a pole of the op. */
static double within_reach(op_code op, const double *v, const double *e) {
    if (op == OP_sin || op == OP_cos) return fmin(2, e[0]);
    if (op == OP_tan) { /* a pole between the ends: another branch on each side */
        double pole = 0.5 * 3.14159265358979323846;
        return floor((v[0] - e[0]) / pole * 0.5 + 0.5) != floor((v[0] + e[0]) / pole * 0.5 + 0.5) ? INFINITY : 0;
    }
    return op == OP_div && e[1] >= fabs(v[1]) && e[1] > 0 ? INFINITY : 0;
}

/* A quotient within reach of a whole number lets the remainder jump by the divisor. */
static double mod_jump(const double *v, const double *e, double unit) {
    double q = v[0] / v[1], reach = (fabs(q) + 1) * 8 * unit + (e[0] + fabs(q) * e[1]) / fabs(v[1]);
    return fabs(q - rint(q)) <= reach ? fabs(v[1]) + e[1] : 0;
}

static void bound_elementwise(bounds *b, const node *n, int64_t count, eval_value value, double *out) {
    const op_info *info = op_get(n->op);
    bool float_operands = dtype_is_float(graph_get(b->g, n->in[0])->dtype);
    for (int64_t i = 0; i < count; i++) {
        double v[3] = { 0 }, e[3] = { 0 };
        tn_dtype t[3] = { TN_F32, TN_F32, TN_F32 };
        bool doubtful_int = false;
        for (int j = 0; j < n->n_in; j++) {
            eval_value x = b->values[n->in[j]];
            t[j] = graph_get(b->g, n->in[j])->dtype;
            v[j] = x.f ? x.f[i] : (double)x.i[i];
            e[j] = b->err[n->in[j]][i];
            doubtful_int |= dtype_is_int(t[j]) && e[j] > 0;
        }
        double d = 0;
        if (e[0] > 0 || e[1] > 0 || e[2] > 0) {
            if (doubtful_int)
                d = INFINITY;
            else if (info->cls == CL_CMP && float_operands)
                d = fabs(v[0] - v[1]) <= e[0] + e[1] ? 1 : 0;
            else
                d = fmax(deviation(n, float_operands, t, v, e), float_operands ? within_reach(n->op, v, e) : 0);
        }
        if (n->op == OP_mod && value.f)
            d += mod_jump(v, e, unit_inside(n->dtype)) + (fabs(v[0]) + fabs(v[1])) * 4 * unit_inside(n->dtype);
        out[i] = value.f ? with_rounding(n->dtype, value.f[i], d, info->ulp) : d;
        if (n->dtype == TN_BOOL && out[i] > 0) out[i] = 1;
    }
}

static void bound_cast(bounds *b, const node *n, int64_t count, eval_value value, double *out) {
    const double *e = b->err[n->in[0]];
    eval_value x = b->values[n->in[0]];
    for (int64_t i = 0; i < count; i++) {
        if (value.f) {
            out[i] = with_rounding(n->dtype, value.f[i], e[i] + unit_of(n->dtype) * magnitude(x, i), 0.5);
        } else if (e[i] == 0) {
            out[i] = 0;
        } else if (x.f && isfinite(e[i])) {
            int64_t lo = dtype_cast_to_int(n->dtype, x.f[i] - e[i]), hi = dtype_cast_to_int(n->dtype, x.f[i] + e[i]);
            out[i] = lo == hi && lo == value.i[i] ? 0 : fabs((double)hi - (double)lo) + 1;
        } else {
            out[i] = n->dtype == TN_BOOL ? 1 : INFINITY;
        }
    }
}

/* ---- ops carried through themselves ---- */

/* The op of n applied to double arrays in place of its float operands; integer operands (indices) stay. */
static double *apply(bounds *b, const node *n, op_code op, const eval_value *operands) {
    graph *g = graph_make(b->a, "bound");
    val *in = ARENA_ARRAY(b->a, val, n->n_in);
    for (int j = 0; j < n->n_in; j++) {
        const node *x = graph_get(b->g, n->in[j]);
        spec s = { .op = OP_input, .dtype = operands[j].f ? TN_F64 : (tn_dtype)x->dtype, .rank = x->rank, .dims = x->dims };
        s.name = arena_printf(b->a, "x%d", j);
        in[j] = graph_add(g, &s);
    }
    spec s = { .op = op, .in = in, .n_in = n->n_in, .rank = n->rank, .dims = n->dims, .attr = n->attr, .n_attr = n->n_attr };
    val v = graph_add(g, &s);
    return eval_graph(g, b->a, operands)[v].f;
}

/* Operand j as magnitudes, as errors, or as magnitude plus error. */
enum { MAGNITUDE = 1, ERROR = 2 };
static eval_value operand_array(bounds *b, const node *n, int j, int what) {
    val x = n->in[j];
    int64_t count = graph_elems(b->g, x);
    eval_value out = { .f = ARENA_ARRAY(b->a, double, count + 1) };
    for (int64_t i = 0; i < count; i++) {
        if (what & MAGNITUDE) out.f[i] += magnitude(b->values[x], i);
        if (what & ERROR) out.f[i] += b->err[x][i];
    }
    return out;
}

static double *apply_to(bounds *b, const node *n, op_code op, int what) {
    eval_value x[3] = { { 0 } };
    eval_value *operands = n->n_in <= 3 ? x : ARENA_ARRAY(b->a, eval_value, n->n_in);
    for (int j = 0; j < n->n_in; j++) {
        op_class cls = op_get((op_code)n->op)->cls;
        bool is_index = j == 1 && (cls == CL_GATHER || cls == CL_SCATTER);
        operands[j] = is_index ? b->values[n->in[j]] : operand_array(b, n, j, what);
    }
    return apply(b, n, op, operands);
}

/* Sums of n_terms products: dot, sum, fold, scatter_add. For |x| + e the op gives size + error; the error is the difference,
 * computed apart to keep small errors visible. */
static void bound_sum(bounds *b, const node *n, int64_t count, eval_value value, double n_terms, double *out) {
    double *size = apply_to(b, n, n->op, MAGNITUDE), *e;
    if (n->op == OP_dot) {
        eval_value ma = operand_array(b, n, 0, MAGNITUDE), ea = operand_array(b, n, 0, ERROR);
        eval_value mb = operand_array(b, n, 1, MAGNITUDE | ERROR), eb = operand_array(b, n, 1, ERROR);
        e = apply(b, n, n->op, (eval_value[]){ ea, mb });
        double *rest = apply(b, n, n->op, (eval_value[]){ ma, eb });
        for (int64_t i = 0; i < count; i++) e[i] += rest[i];
    } else {
        e = apply_to(b, n, n->op, ERROR);
    }
    for (int64_t i = 0; i < count; i++) {
        if (!value.f) {
            out[i] = e[i] > 0 || isnan(e[i]) ? INFINITY : 0;
            continue;
        }
        double carried = e[i] + (n_terms + 1) * unit_inside(n->dtype) * size[i];
        out[i] = with_rounding(n->dtype, value.f[i], carried, 0.5);
    }
}

static double terms_of(const bounds *b, const node *n) {
    double terms = 1;
    const node *x = graph_get(b->g, n->in[0]);
    if (n->op == OP_sum) {
        for (int d = 0; d < x->rank; d++)
            if ((uint64_t)n->attr[0] >> d & 1) terms *= (double)x->dims[d];
        return terms;
    }
    if (n->op == OP_dot) {
        const int64_t *contract = n->attr + 2 + 2 * n->attr[0];
        for (int k = 0; k < (int)n->attr[1]; k++) terms *= (double)x->dims[contract[k]];
        return terms + 1;
    }
    if (n->op == OP_scatter_add) return (double)graph_elems(b->g, n->in[1]) + 1;
    for (int k = 0; k < (int)n->attr[0]; k++) terms *= (double)n->attr[1 + 4 * k + 1]; /* fold: once a window offset */
    return terms + 1;
}

static void bound_reduce(bounds *b, const node *n, int64_t count, eval_value value, double *out) {
    if (n->op == OP_prod) {
        double *size = apply_to(b, n, OP_prod, MAGNITUDE), *reach = apply_to(b, n, OP_prod, MAGNITUDE | ERROR);
        double terms = (double)graph_elems(b->g, n->in[0]);
        for (int64_t i = 0; i < count; i++) {
            double e = reach[i] - size[i] + (dtype_is_float(n->dtype) ? terms * unit_inside(n->dtype) * reach[i] : 0);
            out[i] = value.f ? with_rounding(n->dtype, value.f[i], e, 0.5) : e > 0 ? INFINITY : 0;
        }
        return;
    }
    double *e = apply_to(b, n, OP_reduce_max, ERROR);
    for (int64_t i = 0; i < count; i++) out[i] = e[i] > 0 ? (n->dtype == TN_BOOL ? 1 : e[i]) : 0; /* an empty maximum is -inf */
}

/* The index is certain when no rival comes within reach of the best. */
static void bound_arg(bounds *b, const node *n, eval_value value, double *out) {
    const node *x = graph_get(b->g, n->in[0]);
    eval_value xv = b->values[n->in[0]];
    const double *e = b->err[n->in[0]];
    int axis = (int)n->attr[0];
    int64_t outer = 1, inner = 1, size = x->dims[axis];
    for (int d = 0; d < axis; d++) outer *= x->dims[d];
    for (int d = axis + 1; d < x->rank; d++) inner *= x->dims[d];
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t i = 0; i < inner; i++) {
            int64_t base = o * size * inner + i, best = base + value.i[o * inner + i] * inner;
            bool doubt = false;
            for (int64_t k = 0; k < size && xv.f; k++) {
                int64_t j = base + k * inner;
                double reach = e[j] + e[best];
                doubt |= j != best && reach > 0 && !(fabs(xv.f[j] - xv.f[best]) > reach);
            }
            for (int64_t k = 0; k < size && !xv.f; k++) doubt |= e[base + k * inner] > 0;
            out[o * inner + i] = doubt ? INFINITY : 0;
        }
    }
}

static double most_error(const bounds *b, val v) {
    double most = 0;
    for (int64_t k = 0; k < graph_elems(b->g, v); k++) most = fmax(most, isnan(b->err[v][k]) ? INFINITY : b->err[v][k]);
    return most;
}
/* An extreme is off by no more than what it is one of. */
static void bound_scattered_extreme(const bounds *b, const node *n, int64_t count, double *out) {
    double most = fmax(most_error(b, n->in[0]), most_error(b, n->in[2]));
    for (int64_t i = 0; i < count; i++) out[i] = most;
}
/* Of exact factors: a rounding each. */
static void bound_scattered_product(const bounds *b, const node *n, int64_t count, eval_value value, double *out) {
    bool exact = most_error(b, n->in[0]) + most_error(b, n->in[2]) == 0;
    double terms = (double)graph_elems(b->g, n->in[1]) + 1;
    for (int64_t i = 0; i < count; i++) {
        out[i] = !exact ? INFINITY : 0;
        if (exact && value.f)
            out[i] = with_rounding(n->dtype, value.f[i], terms * unit_inside(n->dtype) * fabs(value.f[i]), 0.5);
    }
}

static void bound_gather_scatter(bounds *b, const node *n, int64_t count, eval_value value, double *out) {
    int64_t n_index = graph_elems(b->g, n->in[1]);
    for (int64_t k = 0; k < n_index; k++) {
        if (b->err[n->in[1]][k] == 0) continue;
        for (int64_t i = 0; i < count; i++) out[i] = INFINITY;
        return;
    }
    if (n->op == OP_scatter_add)
        bound_sum(b, n, count, value, terms_of(b, n), out);
    else if (n->op == OP_scatter_mul)
        bound_scattered_product(b, n, count, value, out);
    else if (n->op == OP_scatter_max || n->op == OP_scatter_min)
        bound_scattered_extreme(b, n, count, out);
    else
        memcpy(out, apply_to(b, n, n->op, ERROR), (size_t)count * sizeof *out);
}

/* ---- the graph ---- */

static void bound_node(bounds *b, val v);

static void bound_ctrl(bounds *b, val v, const node *n, int64_t count, double *out) {
    if (n->op == OP_if && b->err[n->in[0]][0] == 0) { /* the values of the branch taken are still in the table */
        const region *r = &b->g->regions.at[n->attr[b->values[n->in[0]].i[0] != 0 ? 0 : 1]];
        for (int k = 0; k < r->n_params; k++) b->err[r->params[k]] = b->err[n->in[1 + k]];
        for (int u = 1; u < b->g->nodes.n; u++)
            if (b->g->nodes.at[u].region == (uint16_t)(r - b->g->regions.at) && b->g->nodes.at[u].op != OP_param)
                bound_node(b, (val)u);
        if (r->n_results > 0) b->err[v] = b->err[r->results[0]];
        return;
    }
    const node *op = n->op == OP_proj ? graph_get(b->g, n->in[0]) : n;
    if (n->op == OP_proj && op->op == OP_if && b->err[op->in[0]][0] == 0) {
        const region *r = &b->g->regions.at[op->attr[b->values[op->in[0]].i[0] != 0 ? 0 : 1]];
        b->err[v] = b->err[r->results[n->attr[0]]];
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        if (op->op == OP_if)
            out[i] = INFINITY;
        else if (b->values[v].f)
            out[i] = 4096 * (unit_inside(n->dtype) + unit_of(n->dtype)) * (1 + fabs(b->values[v].f[i]));
    }
}

static void bound_node(bounds *b, val v) {
    const node *n = graph_get(b->g, v);
    int64_t count = graph_elems(b->g, v);
    eval_value value = b->values[v];
    double *out = b->err[v] = ARENA_ARRAY(b->a, double, count + 1);
    switch (op_get(n->op)->cls) {
    case CL_SOURCE:
    case CL_RANDOM:
        break; /* exact; the counter of random is an integer */
    case CL_CAST:
        bound_cast(b, n, count, value, out);
        break;
    case CL_REDUCE:
        if (n->op == OP_sum)
            bound_sum(b, n, count, value, terms_of(b, n), out);
        else
            bound_reduce(b, n, count, value, out);
        break;
    case CL_ARG:
        bound_arg(b, n, value, out);
        break;
    case CL_MOVE:
    case CL_JOIN:
        memcpy(out, apply_to(b, n, n->op, ERROR), (size_t)count * sizeof *out);
        break;
    case CL_DOT:
    case CL_FOLD:
        bound_sum(b, n, count, value, terms_of(b, n), out);
        break;
    case CL_GATHER:
    case CL_SCATTER:
        bound_gather_scatter(b, n, count, value, out);
        break;
    case CL_CTRL:
        bound_ctrl(b, v, n, count, out);
        break;
    default:
        bound_elementwise(b, n, count, value, out);
        break;
    }
    for (int64_t i = 0; b->err[v] == out && i < count; i++)
        if (isnan(out[i])) out[i] = INFINITY;
}

double **bound_graph(const graph *g, arena *a, const eval_value *values) {
    bounds b = { g, a, values, ARENA_ARRAY(a, double *, g->nodes.n) };
    for (int v = 1; v < g->nodes.n; v++)
        if (g->nodes.at[v].region == 0) bound_node(&b, (val)v);
    return b.err;
}
