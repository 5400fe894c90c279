/* compose.c - builders that are a few ops each: what users look for by name and no device needs a rule for.
 *
 * In: tensors of one graph, broadcast like NumPy where there are two. Out: compositions, exact where nothing else is said. */
#include "api/compose.h"

#include <math.h>

static bool is_float(graph *g, val x) {
    tn_dtype t = dtype_of(g, x);
    if (t == TN_BOOL) FAIL(g, TN_ERR_DTYPE, "bool is no number");
    return dtype_is_float(t);
}

/* ---- bounds and rounding ---- */

typedef struct clamp_args {
    double lo, hi;
} clamp_args;
/* Selections: a NaN stays, and the gradient at a bound is 1. */
static val build_clamp(graph *g, const val *in, void *args) {
    const clamp_args *a = args;
    if (!(a->lo <= a->hi)) FAIL(g, TN_ERR_INVAL, "%g and %g are no bounds", a->lo, a->hi);
    val lo = api_scalar_like(g, in[0], a->lo), hi = api_scalar_like(g, in[0], a->hi);
    val x = choose(g, two(g, OP_lt, in[0], lo), lo, in[0]);
    return choose(g, two(g, OP_lt, hi, x), hi, x);
}
tn_tensor tn_clamp(tn_tensor x, double lo, double hi) {
    return api_build(NULL, ONE("tn_clamp", x), build_clamp, &(clamp_args){ lo, hi });
}

static val build_round_away(graph *g, const val *in, void *args) {
    (void)args;
    val whole = one(g, OP_trunc, in[0]), rest = one(g, OP_abs, two(g, OP_sub, in[0], whole));
    val up = two(g, OP_le, graph_splat_like(g, rest, 0.5), rest);
    return choose(g, up, two(g, OP_add, whole, one(g, OP_sign, in[0])), whole);
}
tn_tensor tn_round_away(tn_tensor x) { return api_build(NULL, ONE("tn_round_away", x), build_round_away, NULL); }

/* ---- division ---- */

/* Integers: the truncated quotient is one too high where there is a rest and the signs differ. Floats: x less its remainder is
 * a multiple of y; the quotient is whole but for rounding. */
static val build_floor_div(graph *g, const val *in, void *args) {
    (void)args;
    val x = in[0], y = in[1];
    if (is_float(g, x)) {
        val whole = one(g, OP_round, two(g, OP_div, two(g, OP_sub, x, two(g, OP_mod, x, y)), y));
        return choose(g, with(g, OP_eq, y, 0), two(g, OP_div, x, y), whole);
    }
    val q = two(g, OP_div, x, y);
    if (dtype_is_unsigned(dtype_of(g, x))) return q;
    val rest = with(g, OP_ne, two(g, OP_mod, x, y), 0);
    val differ = two(g, OP_xor, with(g, OP_lt, x, 0), with(g, OP_lt, y, 0));
    return choose(g, two(g, OP_and, rest, differ), with(g, OP_sub, q, 1), q);
}
tn_tensor tn_floor_div(tn_tensor x, tn_tensor y) { return api_build(NULL, TWO("tn_floor_div", x, y), build_floor_div, NULL); }

static val build_fmod(graph *g, const val *in, void *args) {
    (void)args;
    val x = in[0], y = in[1];
    if (is_float(g, x)) return two(g, OP_mul, one(g, OP_sign, x), two(g, OP_mod, one(g, OP_abs, x), one(g, OP_abs, y)));
    if (dtype_is_unsigned(dtype_of(g, x))) return two(g, OP_mod, x, y);
    val rest = two(g, OP_sub, x, two(g, OP_mul, two(g, OP_div, x, y), y));
    return choose(g, with(g, OP_eq, y, 0), graph_splat_like(g, y, 0), rest);
}
tn_tensor tn_fmod(tn_tensor x, tn_tensor y) { return api_build(NULL, TWO("tn_fmod", x, y), build_fmod, NULL); }

/* ---- bits of integers ---- */

static val build_bit_not(graph *g, const val *in, void *args) {
    (void)args;
    tn_dtype t = dtype_of(g, in[0]);
    if (t == TN_BOOL) return one(g, OP_not, in[0]);
    if (dtype_is_float(t)) FAIL(g, TN_ERR_DTYPE, "%s has no bits to flip", dtype_name(t));
    int64_t ones = -1, dims[TN_MAX_RANK];
    node n = *graph_get(g, in[0]);
    val c = graph_const(g, t, 0, NULL, &ones);
    memcpy(dims, n.dims, sizeof(int64_t) * (size_t)n.rank);
    return two(g, OP_xor, in[0], graph_broadcast(g, c, n.rank, dims));
}
tn_tensor tn_bit_not(tn_tensor x) { return api_build(NULL, ONE("tn_bit_not", x), build_bit_not, NULL); }

/* Integers of 32 bits at least, the bits of narrower ones at the bottom. */
static val as_word(graph *g, val x) {
    tn_dtype t = dtype_of(g, x);
    if (t == TN_BOOL || dtype_is_float(t)) FAIL(g, TN_ERR_DTYPE, "%s has no bits to count", dtype_name(t));
    val w = dtype_size(t) == 8 ? graph_cast(g, x, TN_I64) : graph_cast(g, x, TN_I32);
    return dtype_size(t) < 4 && !dtype_is_unsigned(t) ? with(g, OP_and, w, t == TN_I8 ? 255 : 65535) : w;
}
static val word_like(graph *g, val x, uint64_t bits) { /* repeated in the upper half */
    bool is_wide = dtype_of(g, x) == TN_I64;
    int64_t wide = (int64_t)(bits << 32 | bits), dims[TN_MAX_RANK];
    int32_t narrow = (int32_t)bits;
    node n = *graph_get(g, x);
    val c = graph_const(g, (tn_dtype)n.dtype, 0, NULL, is_wide ? (const void *)&wide : &narrow);
    memcpy(dims, n.dims, sizeof(int64_t) * (size_t)n.rank);
    return graph_broadcast(g, c, n.rank, dims);
}
/* Sums of pairs, of fours, of bytes, and all bytes by a product (Warren, Hacker's Delight, 5-1). What an arithmetic shift
 * brings in at the top is masked away. */
static val count_bits(graph *g, val x) {
    val low = word_like(g, x, 0x33333333);
    x = two(g, OP_sub, x, two(g, OP_and, with(g, OP_shift_right, x, 1), word_like(g, x, 0x55555555)));
    x = two(g, OP_add, two(g, OP_and, x, low), two(g, OP_and, with(g, OP_shift_right, x, 2), low));
    x = two(g, OP_and, two(g, OP_add, x, with(g, OP_shift_right, x, 4)), word_like(g, x, 0x0f0f0f0f));
    return with(g, OP_shift_right, two(g, OP_mul, x, word_like(g, x, 0x01010101)), dtype_of(g, x) == TN_I64 ? 56 : 24);
}
static val build_popcount(graph *g, const val *in, void *args) {
    (void)args;
    return graph_cast(g, count_bits(g, as_word(g, in[0])), dtype_of(g, in[0]));
}
tn_tensor tn_popcount(tn_tensor x) { return api_build(NULL, ONE("tn_popcount", x), build_popcount, NULL); }

/* The highest bit is copied to all below it; what is left are the zeros above. */
static val build_clz(graph *g, const val *in, void *args) {
    (void)args;
    int bits = 8 * (int)dtype_size(dtype_of(g, in[0]));
    val x = as_word(g, in[0]);
    for (int k = 1; k < bits; k *= 2) x = two(g, OP_or, x, with(g, OP_shift_right, x, k));
    val count = count_bits(g, x);
    return graph_cast(g, two(g, OP_sub, graph_splat_like(g, count, bits), count), dtype_of(g, in[0]));
}
tn_tensor tn_clz(tn_tensor x) { return api_build(NULL, ONE("tn_clz", x), build_clz, NULL); }

/* ---- classes of floats; integers are finite ---- */

static val build_is_nan(graph *g, const val *in, void *args) {
    (void)args;
    return two(g, OP_ne, in[0], in[0]);
}
static val build_is_inf(graph *g, const val *in, void *args) {
    (void)args;
    if (!is_float(g, in[0])) return two(g, OP_ne, in[0], in[0]);
    return with(g, OP_eq, one(g, OP_abs, in[0]), INFINITY);
}
static val build_is_finite(graph *g, const val *in, void *args) {
    (void)args;
    if (!is_float(g, in[0])) return two(g, OP_eq, in[0], in[0]);
    return with(g, OP_lt, one(g, OP_abs, in[0]), INFINITY);
}
tn_tensor tn_is_nan(tn_tensor x) { return api_build(NULL, ONE("tn_is_nan", x), build_is_nan, NULL); }
tn_tensor tn_is_inf(tn_tensor x) { return api_build(NULL, ONE("tn_is_inf", x), build_is_inf, NULL); }
tn_tensor tn_is_finite(tn_tensor x) { return api_build(NULL, ONE("tn_is_finite", x), build_is_finite, NULL); }

/* ---- masks ---- */

typedef struct triangle_args {
    int64_t diagonal;
    bool upper;
} triangle_args;
/* Element (i, j) of a matrix stays where j - i is at most (at least) the diagonal. */
static val build_triangle(graph *g, const val *in, void *args) {
    const triangle_args *a = args;
    node n = *graph_get(g, in[0]);
    if (n.rank < 2) FAIL(g, TN_ERR_SHAPE, "rank %d has no matrices", n.rank);
    int64_t most = (int64_t)1 << 40, d = a->diagonal > most ? most : a->diagonal < -most ? -most : a->diagonal;
    val i = graph_iota(g, TN_I64, n.rank, n.dims, n.rank - 2), j = graph_iota(g, TN_I64, n.rank, n.dims, n.rank - 1);
    val border = with(g, OP_add, i, (double)d);
    val stays = a->upper ? two(g, OP_le, border, j) : two(g, OP_le, j, border);
    return choose(g, stays, in[0], graph_splat_like(g, in[0], 0));
}
tn_tensor tn_tril(tn_tensor x, int64_t diagonal) {
    return api_build(NULL, ONE("tn_tril", x), build_triangle, &(triangle_args){ diagonal, false });
}
tn_tensor tn_triu(tn_tensor x, int64_t diagonal) {
    return api_build(NULL, ONE("tn_triu", x), build_triangle, &(triangle_args){ diagonal, true });
}

typedef struct one_hot_args {
    int64_t depth;
    tn_dtype t;
} one_hot_args;
static val build_one_hot(graph *g, const val *in, void *args) {
    const one_hot_args *a = args;
    node n = *graph_get(g, in[0]);
    int64_t dims[TN_MAX_RANK];
    if (n.dtype == TN_BOOL || dtype_is_float((tn_dtype)n.dtype))
        FAIL(g, TN_ERR_DTYPE, "the index is %s, must be an integer", dtype_name((tn_dtype)n.dtype));
    if ((unsigned)a->t >= TN_N_DTYPES) FAIL(g, TN_ERR_INVAL, "%d is not a dtype", (int)a->t);
    if (n.rank == TN_MAX_RANK || !graph_is_dim(g, a->depth))
        FAIL(g, TN_ERR_SHAPE, "the depth is %lld, the index of rank %d", (long long)a->depth, n.rank);
    memcpy(dims, n.dims, sizeof(int64_t) * (size_t)n.rank);
    dims[n.rank] = 1;
    val index = graph_reshape(g, graph_cast(g, in[0], TN_I64), n.rank + 1, dims);
    dims[n.rank] = a->depth;
    return graph_cast(g, two(g, OP_eq, index, graph_iota(g, TN_I64, n.rank + 1, dims, n.rank)), a->t);
}
tn_tensor tn_one_hot(tn_tensor index, int64_t depth, tn_dtype t) {
    return api_build(NULL, ONE("tn_one_hot", index), build_one_hot, &(one_hot_args){ depth, t });
}
