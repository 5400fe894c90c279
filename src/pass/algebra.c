/* algebra.c - identities of elementwise ops, reductions and selections.
 *
 * In: any graph. Out: the same values with less work, constants as right operands, lt and le for gt and ge. Every rule is exact
 * for all values including NaN, infinities and the sign of zero, except where its comment says what changes:
 *
 * - [order] a reduction adds its elements in another order (the documented reassociation tolerance)
 * - [zero] a zero result may have the other sign
 * - [round] the result is rounded once, where the original may be off by the ulp bound of ops.def
 *
 * Not done because inexact for floats: x + 0 (-0 becomes 0), x * 0 (NaN), x - x, (x + a) + b, x / c for general c, not(x < y).
 */
#include <math.h>

#include "pass/rewrite.h"

static const node *get(const graph *g, val v) { return graph_get(g, v); }
static bool is_op(const graph *g, val v, op_code op) { return get(g, v)->op == op; }

static val bool_splat(graph *g, const node *n, bool value) {
    return graph_add(
        g, &(spec){ .op = OP_const, .dtype = TN_BOOL, .rank = n->rank, .dims = n->dims, .splat = true, .imm_int = value });
}

static bool is_all_ones(const graph *g, val v) {
    tn_dtype t = get(g, v)->dtype;
    return !dtype_is_float(t) && t != TN_U64 && splat_is(g, v, dtype_is_unsigned(t) || t == TN_BOOL ? dtype_info(t)->hi : -1);
}

static bool is_power_of_two(double c) {
    int e;
    return frexp(fabs(c), &e) == 0.5 && e >= -125 && e <= 125;
}

/* ---- one operand --------------------------------------------------------------------------------------------------------- */

static val unary_rules(graph *g, const node *n) {
    val x = n->in[0];
    const node *a = get(g, x);
    bool is_integer = a->n_in > 0 && !dtype_is_float(get(g, a->in[0])->dtype);
    switch (n->op) {
    case OP_stop_gradient:
        return x; /* gradients are built before passes run */
    case OP_neg:
        if (a->op == OP_neg) return a->in[0];
        return 0;
    case OP_abs:
        if (a->op == OP_abs) return x;
        return a->op == OP_neg ? graph_unary(g, OP_abs, a->in[0]) : 0;
    case OP_floor:
    case OP_ceil:
    case OP_round:
    case OP_trunc:
        return a->op == OP_floor || a->op == OP_ceil || a->op == OP_round || a->op == OP_trunc ? x : 0; /* whole numbers stay */
    case OP_sign:
        return a->op == OP_sign ? x : 0;
    case OP_relu: /* one form for both, which differ in their gradients alone. [zero] */
        return graph_binary(g, OP_max, x, graph_splat_like(g, x, 0));
    case OP_not:
        if (a->op == OP_not) return a->in[0];
        if (a->op == OP_eq) return graph_binary(g, OP_ne, a->in[0], a->in[1]);
        if (a->op == OP_ne) return graph_binary(g, OP_eq, a->in[0], a->in[1]);
        if (a->op == OP_lt && is_integer) return graph_binary(g, OP_le, a->in[1], a->in[0]); /* not for floats: NaN */
        return a->op == OP_le && is_integer ? graph_binary(g, OP_lt, a->in[1], a->in[0]) : 0;
    default:
        return 0;
    }
}

/* ---- two operands -------------------------------------------------------------------------------------------------------- */

static val add_rules(graph *g, const node *n, bool is_float) {
    val x = n->in[0], y = n->in[1];
    if (splat_is(g, y, is_float ? -0.0 : 0.0)) return x;
    if (is_op(g, y, OP_neg))
        return graph_binary(g, OP_sub, x, get(g, y)->in[0]); /* a sum with -y is defined as the difference */
    if (is_op(g, x, OP_neg)) return graph_binary(g, OP_sub, y, get(g, x)->in[0]);
    if (!is_float && is_op(g, x, OP_add) && is_splat(g, y) && is_splat(g, get(g, x)->in[1])) /* integers wrap: associative */
        return graph_binary(g, OP_add, get(g, x)->in[0], graph_binary(g, OP_add, get(g, x)->in[1], y));
    return 0;
}

static val sub_rules(graph *g, const node *n, bool is_float) {
    val x = n->in[0], y = n->in[1];
    if (splat_is(g, y, 0.0)) return x; /* -0 - 0 is -0 */
    if (splat_is(g, x, is_float ? -0.0 : 0.0)) return graph_unary(g, OP_neg, y);
    if (is_op(g, y, OP_neg)) return graph_binary(g, OP_add, x, get(g, y)->in[0]);
    if (!is_float && x == y) return zeros(g, n->dtype, n->rank, n->dims);
    return 0;
}

static val mul_rules(graph *g, const node *n, bool is_float) {
    val x = n->in[0], y = n->in[1];
    if (splat_is(g, y, 1.0)) return x;
    if (splat_is(g, y, -1.0)) return graph_unary(g, OP_neg, x);
    if (is_op(g, x, OP_neg) && is_op(g, y, OP_neg)) return graph_binary(g, OP_mul, get(g, x)->in[0], get(g, y)->in[0]);
    if (is_op(g, x, OP_neg) && is_splat(g, y)) return graph_binary(g, OP_mul, get(g, x)->in[0], graph_unary(g, OP_neg, y));
    if (is_float) return 0;
    if (splat_is(g, y, 0.0)) return y;
    if (is_op(g, x, OP_mul) && is_splat(g, y) && is_splat(g, get(g, x)->in[1]))
        return graph_binary(g, OP_mul, get(g, x)->in[0], graph_binary(g, OP_mul, get(g, x)->in[1], y));
    return 0;
}

static val div_rules(graph *g, const node *n, bool is_float) {
    val x = n->in[0], y = n->in[1];
    double c;
    if (splat_is(g, y, 1.0)) return x;
    if (!is_float) return 0;
    if (is_op(g, x, OP_neg) && is_op(g, y, OP_neg)) return graph_binary(g, OP_div, get(g, x)->in[0], get(g, y)->in[0]);
    /* 1 / sqrt(y) is the definition of rsqrt */
    if (splat_is(g, x, 1.0) && is_op(g, y, OP_sqrt)) return graph_unary(g, OP_rsqrt, get(g, y)->in[0]);
    /* The inverse of a power of two is exact, and so is the product wherever the quotient is. */
    if ((n->dtype == TN_F32 || n->dtype == TN_F64) && is_splat(g, y) && graph_splat_value(g, y, &c) && is_power_of_two(c))
        return graph_binary(g, OP_mul, x, graph_splat_like(g, y, 1 / c));
    return 0;
}

static val pow_rules(graph *g, const node *n) {
    val x = n->in[0], y = n->in[1];
    if (splat_is(g, y, 1.0)) return x;
    if (splat_is(g, y, 0.0) || splat_is(g, y, -0.0)) return graph_splat_like(g, x, 1);      /* of NaN too */
    if (splat_is(g, y, 2.0)) return graph_binary(g, OP_mul, x, x);                          /* [round] */
    if (splat_is(g, y, -1.0)) return graph_binary(g, OP_div, graph_splat_like(g, x, 1), x); /* [round] */
    return 0;
}

/* max(max(x, c), d) -> max(x, max(c, d)): a NaN anywhere gives NaN both ways. [zero] for c = 0, d = -0 */
static val extremum_rules(graph *g, const node *n) {
    val x = n->in[0], y = n->in[1];
    if (x == y) return x;
    if (!is_op(g, x, n->op)) return 0;
    val inner = get(g, x)->in[1];
    if (inner == y || get(g, x)->in[0] == y || splat_same(g, inner, y)) return x;
    return is_splat(g, y) && is_splat(g, inner) ? graph_binary(g, n->op, get(g, x)->in[0], graph_binary(g, n->op, inner, y))
                                                : 0;
}

static val bit_rules(graph *g, const node *n) {
    val x = n->in[0], y = n->in[1];
    if (x == y) return n->op == OP_xor ? zeros(g, n->dtype, n->rank, n->dims) : x;
    bool is_zero = splat_is(g, y, 0.0), is_ones = is_splat(g, y) && is_all_ones(g, y);
    if (n->op == OP_and) return is_zero ? y : is_ones ? x : 0;
    if (n->op == OP_or) return is_zero ? x : is_ones ? y : 0;
    if (is_zero) return x;
    return is_ones && n->dtype == TN_BOOL ? graph_unary(g, OP_not, x) : 0;
}

static val compare_rules(graph *g, const node *n) {
    val x = n->in[0], y = n->in[1];
    bool is_float = dtype_is_float(get(g, x)->dtype);
    if (n->op == OP_gt) return graph_binary(g, OP_lt, y, x);
    if (n->op == OP_ge) return graph_binary(g, OP_le, y, x);
    if (x != y) return 0;
    if (n->op == OP_lt) return bool_splat(g, n, false); /* of NaN too */
    return is_float ? 0 : bool_splat(g, n, n->op != OP_ne);
}

static bool is_commutative(op_code op) {
    return op == OP_add || op == OP_mul || op == OP_max || op == OP_min || op == OP_and || op == OP_or || op == OP_xor ||
           op == OP_eq || op == OP_ne;
}

static val binary_rules(graph *g, const node *n) {
    bool is_float = dtype_is_float(n->dtype);
    if (is_commutative(n->op) && is_op(g, n->in[0], OP_const) && !is_op(g, n->in[1], OP_const))
        return graph_binary(g, n->op, n->in[1], n->in[0]); /* [zero] for max and min of 0 and -0 */
    switch (n->op) {
    case OP_add:
        return add_rules(g, n, is_float);
    case OP_sub:
        return sub_rules(g, n, is_float);
    case OP_mul:
        return mul_rules(g, n, is_float);
    case OP_div:
        return div_rules(g, n, is_float);
    case OP_pow:
        return pow_rules(g, n);
    case OP_straight_through:
        return n->in[1]; /* gradients are built before passes run */
    case OP_max:
    case OP_min:
        return extremum_rules(g, n);
    case OP_and:
    case OP_or:
    case OP_xor:
        return bit_rules(g, n);
    case OP_lt:
    case OP_le:
    case OP_gt:
    case OP_ge:
    case OP_eq:
    case OP_ne:
        return compare_rules(g, n);
    default:
        return 0;
    }
}

static val select_rules(graph *g, const node *n) {
    val c = n->in[0], x = n->in[1], y = n->in[2];
    if (x == y || splat_is(g, c, 1)) return x;
    if (splat_is(g, c, 0)) return y;
    if (is_op(g, c, OP_not)) return graph_select(g, get(g, c)->in[0], y, x);
    if (n->dtype == TN_BOOL && splat_is(g, x, 1) && splat_is(g, y, 0)) return c;
    if (n->dtype == TN_BOOL && splat_is(g, x, 0) && splat_is(g, y, 1)) return graph_unary(g, OP_not, c);
    /* x <= k ? k : x is max(x, k), and k <= x ? k : x is min(x, k): of NaN, too */
    const node *le = get(g, c);
    if (le->op == OP_le && is_splat(g, x) && le->in[0] == y && splat_same(g, le->in[1], x))
        return graph_binary(g, OP_max, y, x);
    if (le->op == OP_le && is_splat(g, x) && le->in[1] == y && splat_same(g, le->in[0], x))
        return graph_binary(g, OP_min, y, x);
    /* select(c, select(c, a, b), y) -> select(c, a, y), and the same on the other side */
    if (is_op(g, x, OP_select) && get(g, x)->in[0] == c) return graph_select(g, c, get(g, x)->in[1], y);
    if (is_op(g, y, OP_select) && get(g, y)->in[0] == c) return graph_select(g, c, x, get(g, y)->in[2]);
    return 0;
}

/* ---- reductions ---------------------------------------------------------------------------------------------------------- */

/* A reduction of equal elements along expanded axes. max and min of equals is the one; a sum of k equals is a product [order]:
 * it is the same real number, rounded once. f16 and bf16 cannot hold k, so they are left alone; products of k equals too. */
static val reduce_expanded(graph *g, const node *n, uint64_t axes) {
    node e = *get(g, n->in[0]), s = *get(g, e.in[0]);
    uint64_t gone = 0;
    int64_t k = 1;
    for (int i = 0; i < e.rank; i++) {
        if (!mask_has(axes, i) || s.dims[i] != 1 || e.dims[i] < 2) continue;
        gone |= UINT64_C(1) << i;
        k *= e.dims[i];
    }
    bool is_extremum = n->op == OP_reduce_max || n->op == OP_reduce_min;
    bool counts = n->op == OP_sum && k < 1 << 24 && dtype_size((tn_dtype)n->dtype) >= 4;
    if (gone == 0 || !(is_extremum || counts)) return 0;
    int64_t dims[TN_MAX_RANK];
    for (int i = 0; i < e.rank; i++) dims[i] = mask_has(gone, i) ? 1 : e.dims[i];
    val x = graph_reduce(g, n->op, graph_expand(g, e.in[0], dims), axes & ~gone);
    return is_extremum ? x : graph_binary(g, OP_mul, x, graph_splat_like(g, x, (double)k));
}

static val reduce_rules(graph *g, const node *n) {
    val x = n->in[0];
    node a = *get(g, x);
    uint64_t axes = (uint64_t)n->attr[0], units = 0;
    for (int i = 0; i < a.rank; i++)
        if (a.dims[i] == 1) units |= UINT64_C(1) << i;
    if (axes & units || axes == 0) return graph_reduce(g, n->op, x, axes & ~units); /* one element is its own reduction */
    uint64_t both = axes | (a.op == n->op ? (uint64_t)a.attr[0] : 0);
    if (a.op == n->op && !splits_large_reduce(g, a.in[0], both)) return graph_reduce(g, n->op, a.in[0], both); /* [order] */
    return a.op == OP_expand ? reduce_expanded(g, n, axes) : 0;
}

static val rewrite(graph *g, val v, arena *scratch) {
    (void)scratch;
    node n = *get(g, v);
    op_class cls = op_get(n.op)->cls;
    if (cls == CL_REDUCE) return reduce_rules(g, &n);
    if (cls == CL_ARG) return get(g, n.in[0])->dims[n.attr[0]] == 1 ? zeros(g, n.dtype, n.rank, n.dims) : 0;
    if (!op_is_elementwise(n.op)) return 0;
    return n.n_in == 1 ? unary_rules(g, &n) : n.n_in == 2 ? binary_rules(g, &n) : select_rules(g, &n);
}

bool pass_algebra(graph *g, arena *scratch) { return rewrite_dims(g, scratch, rewrite); }
