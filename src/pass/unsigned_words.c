/* unsigned_words.c - what depends on the sign of u32 and u64 by ops of i32 and i64: kernels have registers with a sign alone.
 *
 * In: any graph. Out: no comparison, division, extremum, shift to the right nor conversion of u32 or u64 that kernels would
 * read with a sign; the scheduler relies on it. Everything else has the same bits either way. Exact. */
#include "pass/rewrite.h"

static bool is_word(tn_dtype t) { return t == TN_U32 || t == TN_U64; }
static tn_dtype type_of(const graph *g, val x) { return (tn_dtype)graph_get(g, x)->dtype; }
static val with(graph *g, op_code op, val x, double y) { return graph_binary(g, op, x, graph_splat_like(g, x, y)); }
static val as_signed(graph *g, val x) { return graph_bitcast(g, x, type_of(g, x) == TN_U32 ? TN_I32 : TN_I64); }
/* The highest bit flipped: the order of numbers with a sign. */
static val flip(graph *g, val x) { return with(g, OP_xor, x, type_of(g, x) == TN_I32 ? -0x1p31 : -0x1p63); }
static val flipped(graph *g, val x) { return flip(g, as_signed(g, x)); }
static val unflipped(graph *g, val x, tn_dtype t) { return graph_bitcast(g, flip(g, x), t); }
/* u32 as i64, by value; u64 by its bits. */
static val wide(graph *g, val x) {
    if (type_of(g, x) == TN_U64) return as_signed(g, x);
    return with(g, OP_and, graph_cast(g, as_signed(g, x), TN_I64), 0x1p32 - 1);
}
static val half(graph *g, val x) {
    return flip(g, graph_binary(g, OP_or, with(g, OP_shift_right, x, 1), graph_splat_like(g, x, -0x1p63)));
}

static val from_float(graph *g, val x, tn_dtype t) {
    if (dtype_is_narrow_float(type_of(g, x))) x = graph_cast(g, x, TN_F32);
    val least = graph_cast(g, with(g, OP_max, x, 0), TN_I64); /* NaN gives 0 */
    if (t == TN_U32) return graph_bitcast(g, graph_cast(g, with(g, OP_min, least, 0x1p32 - 1), TN_I32), t);
    val top = flip(g, graph_cast(g, with(g, OP_sub, x, 0x1p63), TN_I64));
    return graph_bitcast(g, graph_select(g, graph_binary(g, OP_le, graph_splat_like(g, x, 0x1p63), x), top, least), t);
}
/* The half with the last bit kept rounds as the whole does. */
static val to_float(graph *g, val x, tn_dtype t) {
    tn_dtype inner = t == TN_F64 ? t : TN_F32;
    val w = wide(g, x), r = graph_cast(g, w, inner);
    if (type_of(g, x) == TN_U64) {
        val odd = graph_cast(g, graph_binary(g, OP_or, half(g, w), with(g, OP_and, w, 1)), inner);
        r = graph_select(g, with(g, OP_lt, w, 0), graph_binary(g, OP_add, odd, odd), r);
    }
    return graph_cast(g, r, t);
}
static val convert(graph *g, val x, tn_dtype t) {
    tn_dtype from = type_of(g, x);
    if (!is_word(from))
        return dtype_is_float(from) ? from_float(g, x, t)
                                    : graph_bitcast(g, graph_cast(g, x, t == TN_U32 ? TN_I32 : TN_I64), t);
    if (dtype_is_float(t)) return to_float(g, x, t);
    if (is_word(t)) return graph_bitcast(g, graph_cast(g, wide(g, x), t == TN_U32 ? TN_I32 : TN_I64), t);
    return graph_cast(g, dtype_size(t) == 8 ? wide(g, x) : as_signed(g, x), t);
}

/* Hacker's Delight, 9-3: by half of the dividend the quotient is right or one too low; a divisor from 2^63 on goes once or not.
 */
static val quotient(graph *g, val x, val y) {
    val a = wide(g, x), b = wide(g, y), q = graph_binary(g, OP_div, half(g, a), b);
    q = graph_binary(g, OP_add, q, q);
    val rest = graph_binary(g, OP_sub, a, graph_binary(g, OP_mul, q, b));
    val more = graph_cast(g, graph_binary(g, OP_le, flip(g, b), flip(g, rest)), TN_I64);
    val once = graph_cast(g, graph_binary(g, OP_le, flip(g, b), flip(g, a)), TN_I64);
    q = graph_select(g, with(g, OP_lt, b, 0), once, graph_binary(g, OP_add, q, more));
    return graph_select(g, with(g, OP_eq, b, 0), graph_splat_like(g, b, 0), q);
}
static val divide(graph *g, op_code op, val x, val y) {
    tn_dtype t = type_of(g, x);
    if (t == TN_U32) return graph_bitcast(g, graph_cast(g, graph_binary(g, op, wide(g, x), wide(g, y)), TN_I32), t);
    val a = wide(g, x), b = wide(g, y), q = quotient(g, x, y);
    if (op == OP_div) return graph_bitcast(g, q, t);
    val rest = graph_binary(g, OP_sub, a, graph_binary(g, OP_mul, q, b));
    return graph_bitcast(g, graph_select(g, with(g, OP_eq, b, 0), graph_splat_like(g, b, 0), rest), t);
}
static val shift_right(graph *g, val x, val y) {
    tn_dtype t = type_of(g, x);
    val a = wide(g, x), b = wide(g, y);
    if (t == TN_U32) return graph_bitcast(g, graph_cast(g, graph_binary(g, OP_shift_right, a, b), TN_I32), t);
    val r = graph_binary(g, OP_shift_right, half(g, a), with(g, OP_sub, b, 1));
    return graph_bitcast(g, graph_select(g, with(g, OP_eq, b, 0), a, r), t);
}

static val rewritten(graph *g, val v) {
    const node n = *graph_get(g, v);
    if (n.n_in == 0) return 0;
    const val x = n.in[0], y = n.n_in > 1 ? n.in[1] : 0;
    tn_dtype t = type_of(g, x);
    if (n.op == OP_cast && (is_word(t) || is_word((tn_dtype)n.dtype))) return convert(g, x, (tn_dtype)n.dtype);
    if (!is_word(t)) return 0;
    switch (n.op) {
    case OP_lt:
    case OP_le:
    case OP_gt:
    case OP_ge:
        return graph_binary(g, n.op, flipped(g, x), flipped(g, y));
    case OP_max:
    case OP_min:
        return unflipped(g, graph_binary(g, n.op, flipped(g, x), flipped(g, y)), t);
    case OP_reduce_max:
    case OP_reduce_min:
        return n.attr[0] ? unflipped(g, graph_reduce(g, n.op, flipped(g, x), (uint64_t)n.attr[0]), t) : x;
    case OP_argmax:
    case OP_argmin:
        return graph_arg(g, n.op, flipped(g, x), (int)n.attr[0]);
    case OP_scatter_max:
    case OP_scatter_min:
        return unflipped(g, graph_scatter(g, n.op, flipped(g, x), y, flipped(g, n.in[2]), (int)n.attr[0], (int)n.attr[1]), t);
    case OP_abs:
    case OP_relu:
        return x;
    case OP_sign: {
        val s = as_signed(g, x);
        return graph_bitcast(g, graph_cast(g, with(g, OP_ne, s, 0), type_of(g, s)), t);
    }
    case OP_div:
    case OP_mod:
        return divide(g, n.op, x, y);
    case OP_shift_right:
        return shift_right(g, x, y);
    default:
        return 0;
    }
}

bool pass_unsigned_words(graph *g, arena *scratch) {
    bool changed = false;
    int n_nodes = g->nodes.n;
    (void)scratch;
    for (val v = 1; v < (val)n_nodes; v++) {
        if (graph_get(g, v)->op == OP_NIL || !graph_is_read(g, v)) continue;
        val r = rewritten(g, v);
        if (!r) continue;
        graph_replace(g, v, r);
        changed = true;
    }
    return changed;
}
