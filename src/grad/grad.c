/* grad.c - reverse mode. In: a graph whose ids are in topological order, a scalar float loss, the values to differentiate by.
 * Out: new nodes behind the old ones; old nodes stay as they are. Assumes that operands have smaller ids than their users, as
 * the builders and graph_compact leave them. Everything is allocated from the graph's arena.
 *
 * A value is active when it is float and depends on one of xs through operands that carry a gradient. Walking the nodes
 * backwards from the loss, each active node with an adjoint hands one contribution to each active operand; contributions are
 * added in the order of the walk, so the result does not depend on anything but the graph. Values of int and bool type carry no
 * gradient: a comparison, a rounding or a cast to integers is constant almost everywhere, so its derivative is 0. A position
 * (argmax, argmin) has no derivative that anyone could mean: casting it, or what is computed from it in integers, back to float
 * is an error; using it as an index or in a comparison is not. Bodies of control flow: control.c. */
#include "grad/walk.h"

/* ---- elementwise: the grad columns of ops.def ------------------------------------------------------------------------ */

/* The columns are evaluated on a small stack, because C leaves the order of a call's arguments open and node ids must be
 * the same with every compiler. */
typedef struct rule {
    graph *g;
    val x, y, z, o, grad;
    val stack[16];
    int n;
} rule;

static void rule_push(rule *r, val v) { r->stack[r->n++] = v; }

static val rule_unary(rule *r, op_code op) { return graph_unary(r->g, op, r->stack[--r->n]); }

static val rule_binary(rule *r, op_code op) {
    r->n -= 2;
    return graph_binary(r->g, op, r->stack[r->n], r->stack[r->n + 1]);
}

static val rule_select(rule *r) {
    r->n -= 3;
    return graph_select(r->g, r->stack[r->n], r->stack[r->n + 1], r->stack[r->n + 2]);
}

#define G r->grad
#define X r->x
#define Y r->y
#define Z r->z
#define O r->o
#define K(c) graph_splat_like(r->g, r->grad, c)
#define UN(op, a) (rule_push(r, a), rule_unary(r, op))
#define BIN(op, a, b) (rule_push(r, a), rule_push(r, b), rule_binary(r, op))
#define SELECT(a, b, c) (rule_push(r, a), rule_push(r, b), rule_push(r, c), rule_select(r))
#define NEG(a) UN(OP_neg, a)
#define SIGN(a) UN(OP_sign, a)
#define FLOOR(a) UN(OP_floor, a)
#define SQRT(a) UN(OP_sqrt, a)
#define EXP(a) UN(OP_exp, a)
#define LOG(a) UN(OP_log, a)
#define SIN(a) UN(OP_sin, a)
#define COS(a) UN(OP_cos, a)
#define SINH(a) UN(OP_sinh, a)
#define COSH(a) UN(OP_cosh, a)
#define SIGMOID(a) UN(OP_sigmoid, a)
#define ADD(a, b) BIN(OP_add, a, b)
#define SUB(a, b) BIN(OP_sub, a, b)
#define MUL(a, b) BIN(OP_mul, a, b)
#define DIV(a, b) BIN(OP_div, a, b)
#define POW(a, b) BIN(OP_pow, a, b)
#define LT(a, b) BIN(OP_lt, a, b)
#define EQ(a, b) BIN(OP_eq, a, b)
/* Operands with one of these two never get here: see slot_kind. */
#define ZERO 0
#define NOGRAD 0

static val rule_apply(rule *r, op_code op, int slot) {
    switch (op) {
#define UNARY(name, cls, expr, flops, ulp, lo, hi, gx, doc)                                                                    \
    case OP_##name:                                                                                                            \
        return gx;
#define BINARY(name, cls, expr, flops, ulp, lo, hi, gx, gy, doc)                                                               \
    case OP_##name:                                                                                                            \
        return slot == 0 ? (gx) : (gy);
#define TERNARY(name, cls, expr, flops, ulp, lo, hi, gx, gy, gz, doc)                                                          \
    case OP_##name:                                                                                                            \
        return slot == 0 ? (gx) : slot == 1 ? (gy) : (gz);
#define OP(name, ...)
#include "ir/ops.def"
    default:
        return 0;
    }
}

#undef G
#undef X
#undef Y
#undef Z
#undef O
#undef K
#undef ZERO
#undef NOGRAD

/* The same columns as text, to know which operands carry a gradient before any node is built. */
static const char *const rule_text[N_OPS][3] = {
#define UNARY(name, cls, expr, flops, ulp, lo, hi, gx, doc) [OP_##name] = { #gx },
#define BINARY(name, cls, expr, flops, ulp, lo, hi, gx, gy, doc) [OP_##name] = { #gx, #gy },
#define TERNARY(name, cls, expr, flops, ulp, lo, hi, gx, gy, gz, doc) [OP_##name] = { #gx, #gy, #gz },
#define OP(name, ...)
#include "ir/ops.def"
};

typedef enum slot_kind { SLOT_FLOWS, SLOT_ZERO, SLOT_NONE } slot_kind;

static slot_kind slot_kind_of(op_code op, int slot) {
    switch (op_get(op)->cls) {
    case CL_ARG:
    case CL_SOURCE:
    case CL_RANDOM:
        return SLOT_ZERO;
    case CL_CTRL:
        return op == OP_while ? SLOT_NONE : slot == 0 && op != OP_proj ? SLOT_ZERO : SLOT_FLOWS;
    default:
        break;
    }
    if (op == OP_bitcast || (op == OP_again && slot)) return SLOT_ZERO;
    if (!op_is_elementwise(op) || slot >= 3) return SLOT_FLOWS;
    const char *text = rule_text[op][slot];
    return strcmp(text, "ZERO") == 0 ? SLOT_ZERO : strcmp(text, "NOGRAD") == 0 ? SLOT_NONE : SLOT_FLOWS;
}

NORETURN static void no_gradient(graph *g, val v) {
    const node *n = graph_get(g, v);
    if (n->op == OP_proj) n = graph_get(g, v = n->in[0]);
    guard_fail(g->a->gd, TN_ERR_UNSUPPORTED, "grad: no gradient is defined through %s %%%u%s%s%s%s%s%s", op_get(n->op)->name, v,
               n->name ? " (" : "", n->name ? n->name : "", n->name ? ")" : "", n->where ? " at " : "",
               n->where ? n->where : "", n->op == OP_while ? ": a loop needs a bound on its iterations (tn_while, most)" : "");
}

/* ---- one rule a class ------------------------------------------------------------------------------------------------ */

static ext product(const graph *g, const ext *dims, int from, int to) {
    ext p = 1;
    for (int i = from; i < to; i++) p = ext_mul(g->params, p, dims[i]);
    return p;
}

/* A size as integers like x. */
static val size_like(graph *g, val x, ext size) {
    const node n = *graph_get(g, x);
    int64_t ones[TN_MAX_RANK];
    if (ext_is_lit(size)) return graph_splat_like(g, x, (double)size);
    for (int i = 0; i < n.rank; i++) ones[i] = 1;
    return graph_expand(g, graph_reshape(g, graph_size(g, (tn_dtype)n.dtype, size), n.rank, ones), n.dims);
}

/* x shifted by k along the last axis of [m, n], with ones moving in. */
static val shift_ones(graph *g, val x, ext m, ext n, int64_t k) {
    if (!ext_is_lit(n)) { /* which may be less than k */
        val wide = graph_pad(g, x, (int64_t[]){ 0, k }, (int64_t[]){ 0, 0 }, 1.0);
        return graph_slice(g, wide, (int64_t[]){ 0, 0 }, (int64_t[]){ m, n }, (int64_t[]){ 1, 1 });
    }
    val kept = graph_slice(g, x, (int64_t[]){ 0, 0 }, (int64_t[]){ m, n - k }, (int64_t[]){ 1, 1 });
    return graph_pad(g, kept, (int64_t[]){ 0, k }, (int64_t[]){ 0, 0 }, 1.0);
}

/* Element i becomes the product of elements 0 .. i-1 of its row, in log2(n) steps. */
static val products_before(graph *g, val x, ext m, ext n) {
    val p = shift_ones(g, x, m, n, 1);
    for (int64_t k = 1; k < graph_dim_most(g, n); k *= 2) p = graph_binary(g, OP_mul, p, shift_ones(g, p, m, n, k));
    return p;
}

/* Product of the others in the reduced axes: built without a division, so zeros need no cases and every higher derivative is
 * right. */
static val products_of_others(graph *g, const node *reduce) {
    val x = reduce->in[0];
    uint64_t axes = (uint64_t)reduce->attr[0];
    const node n = *graph_get(g, x);
    int64_t perm[TN_MAX_RANK], inverse[TN_MAX_RANK], moved[TN_MAX_RANK];
    int at = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n.rank; i++)
            if ((int)(axes >> i & 1) == pass) perm[at++] = i;
    for (int i = 0; i < n.rank; i++) {
        inverse[perm[i]] = i;
        moved[i] = n.dims[perm[i]];
    }
    int n_kept = n.rank;
    for (int i = 0; i < n.rank; i++) n_kept -= (int)(axes >> i & 1);
    ext rows = product(g, moved, 0, n_kept);
    ext cols = product(g, moved, n_kept, n.rank);
    if (rows == 0 || graph_dim_most(g, cols) <= 1) return graph_splat_like(g, x, 1.0);
    val flat = graph_reshape(g, graph_permute(g, x, perm), 2, (int64_t[]){ rows, cols });
    val before = products_before(g, flat, rows, cols);
    val after = graph_flip(g, products_before(g, graph_flip(g, flat, 2), rows, cols), 2);
    val others = graph_binary(g, OP_mul, before, after);
    return graph_permute(g, graph_reshape(g, others, n.rank, moved), inverse);
}

static val grad_reduce(graph *g, const node *n, val o, val G) {
    val x = n->in[0];
    const int64_t *dims = graph_get(g, x)->dims;
    val spread = graph_expand(g, G, dims);
    if (n->op == OP_sum) return spread;
    if (n->op == OP_prod) return graph_binary(g, OP_mul, spread, products_of_others(g, n));
    /* The largest elements share the gradient equally. */
    val hit = graph_binary(g, OP_eq, x, graph_expand(g, o, dims));
    val count = graph_reduce(g, OP_sum, graph_cast(g, hit, n->dtype), (uint64_t)n->attr[0]);
    val share = graph_expand(g, graph_binary(g, OP_div, G, count), dims);
    return graph_select(g, hit, share, graph_splat_like(g, share, 0.0));
}

/* Puts `step - 1` zeros behind every element along axis: reshape to [.., d, 1, ..], pad, reshape back. */
static val dilate(graph *g, val x, int axis, int64_t step) {
    const node n = *graph_get(g, x);
    ext rows = product(g, n.dims, 0, axis), cols = product(g, n.dims, axis + 1, n.rank), dims[TN_MAX_RANK];
    val y = graph_reshape(g, x, 4, (int64_t[]){ rows, n.dims[axis], 1, cols });
    y = graph_pad(g, y, (int64_t[]){ 0, 0, 0, 0 }, (int64_t[]){ 0, 0, step - 1, 0 }, 0.0);
    for (int i = 0; i < n.rank; i++) dims[i] = n.dims[i];
    dims[axis] = ext_mul(g->params, dims[axis], step);
    return graph_reshape(g, y, n.rank, dims);
}

static val grad_slice(graph *g, const node *n, val G) {
    const node x = *graph_get(g, n->in[0]);
    const int64_t *start = n->attr, *step = n->attr + n->rank;
    int64_t zero[TN_MAX_RANK] = { 0 }, one[TN_MAX_RANK], keep[TN_MAX_RANK], after[TN_MAX_RANK];
    for (int i = 0; i < n->rank; i++)
        if (step[i] > 1) G = dilate(g, G, i, step[i]);
    for (int i = 0; i < n->rank; i++) {
        /* The zeros behind the last element may reach past the end: cut them. */
        ext have = ext_mul(g->params, n->dims[i], step[i] > 1 ? step[i] : 1), room = ext_sub(g->params, x.dims[i], start[i]);
        one[i] = 1;
        bool all = ext_never_less(g->params, room, have);
        keep[i] = all ? have : room;
        after[i] = ext_sub(g->params, room, keep[i]);
    }
    return graph_pad(g, graph_slice(g, G, zero, keep, one), start, after, 0.0);
}

static void windows_of(const node *n, window_axis *w) {
    for (int64_t i = 0; i < n->attr[0]; i++) memcpy(&w[i], n->attr + 1 + 4 * i, sizeof *w);
}

static val grad_move(graph *g, const node *n, val G) {
    const node x = *graph_get(g, n->in[0]);
    int64_t a[TN_MAX_RANK], one[TN_MAX_RANK];
    window_axis w[TN_MAX_RANK];
    uint64_t axes = 0;
    for (int i = 0; i < n->rank; i++) one[i] = 1;
    switch (n->op) {
    case OP_reshape:
        return graph_reshape(g, G, x.rank, x.dims);
    case OP_permute:
        for (int i = 0; i < n->rank; i++) a[n->attr[i]] = i;
        return graph_permute(g, G, a);
    case OP_expand:
        for (int i = 0; i < n->rank; i++)
            if (x.dims[i] != n->dims[i]) axes |= (uint64_t)1 << i;
        return graph_reduce(g, OP_sum, G, axes);
    case OP_pad:
        return graph_slice(g, G, n->attr, x.dims, one);
    case OP_slice:
        return grad_slice(g, n, G);
    case OP_flip:
        return graph_flip(g, G, (uint64_t)n->attr[0]);
    case OP_again:
        return G;
    default: /* window */
        windows_of(n, w);
        return graph_fold(g, G, w, (int)n->attr[0], x.dims);
    }
}

static val grad_fold(graph *g, const node *n, val G) {
    window_axis w[TN_MAX_RANK];
    windows_of(n, w);
    return graph_window(g, G, w, (int)n->attr[0]);
}

static val grad_concat(graph *g, const node *n, int slot, val G) {
    int axis = (int)n->attr[0];
    int64_t start[TN_MAX_RANK] = { 0 }, step[TN_MAX_RANK];
    for (int i = 0; i < n->rank; i++) step[i] = 1;
    for (int i = 0; i < slot; i++) start[axis] = ext_add(g->params, start[axis], graph_get(g, n->in[i])->dims[axis]);
    return graph_slice(g, G, start, graph_get(g, n->in[slot])->dims, step);
}

/* Axes of an operand of rank `rank` that are in neither list. */
static int free_axes(int rank, const int64_t *batch, int64_t nb, const int64_t *contract, int64_t nc, int64_t *out) {
    uint64_t used = 0;
    int n = 0;
    for (int64_t i = 0; i < nb; i++) used |= (uint64_t)1 << batch[i];
    for (int64_t i = 0; i < nc; i++) used |= (uint64_t)1 << contract[i];
    for (int i = 0; i < rank; i++)
        if (!(used >> i & 1)) out[n++] = i;
    return n;
}

/* Place in sorted order of contract[i] among contract[0..nc). */
static int64_t rank_of(const int64_t *contract, int64_t nc, int64_t i) {
    int64_t r = 0;
    for (int64_t k = 0; k < nc; k++) r += contract[k] < contract[i];
    return r;
}

/* The result of the forward dot has axes: batch, free of a, free of b. The gradient by a contracts it with b over b's free axes
 * and leaves batch, free of a, contracted axes (in b's order); by b it contracts a with it and leaves batch, contracted axes
 * (in a's order), free of b. Both orders are the natural ones of a matmul; a permutation restores any other. */
static val grad_dot(graph *g, const node *n, int slot, val G) {
    int64_t nb = n->attr[0], nc = n->attr[1];
    const int64_t *batch[2] = { n->attr + 2, n->attr + 2 + nb };
    const int64_t *contract[2] = { n->attr + 2 + 2 * nb, n->attr + 2 + 2 * nb + nc };
    int64_t free[2][TN_MAX_RANK], result_batch[TN_MAX_RANK], result_free[TN_MAX_RANK], perm[TN_MAX_RANK];
    int n_free[2], other = 1 - slot;
    for (int k = 0; k < 2; k++) n_free[k] = free_axes(graph_get(g, n->in[k])->rank, batch[k], nb, contract[k], nc, free[k]);
    for (int64_t i = 0; i < nb; i++) result_batch[i] = i;
    for (int i = 0; i < n_free[other]; i++) result_free[i] = nb + (other ? n_free[0] : 0) + i;
    val d = slot == 0 ? graph_dot(g, G, n->in[1], result_batch, batch[1], (int)nb, result_free, free[1], n_free[1])
                      : graph_dot(g, n->in[0], G, batch[0], result_batch, (int)nb, free[0], result_free, n_free[0]);
    int64_t at_free = nb + (slot == 0 ? 0 : nc), at_contract = nb + (slot == 0 ? n_free[0] : 0);
    for (int64_t i = 0; i < nb; i++) perm[batch[slot][i]] = i;
    for (int i = 0; i < n_free[slot]; i++) perm[free[slot][i]] = at_free + i;
    for (int64_t i = 0; i < nc; i++) perm[contract[slot][i]] = at_contract + rank_of(contract[other], nc, i);
    return graph_permute(g, d, perm);
}

/* gather clamps its indices where scatter_add skips the ones out of range: the gradient goes where the value came from. */
static val grad_gather(graph *g, const node *n, val G) {
    val x = n->in[0], index = n->in[1];
    int axis = (int)n->attr[0];
    ext size = graph_get(g, x)->dims[axis];
    val last = ext_is_lit(size) ? graph_splat_like(g, index, (double)(size - 1))
                                : graph_binary(g, OP_sub, size_like(g, index, size), graph_splat_like(g, index, 1.0));
    val inside = graph_binary(g, OP_max, graph_binary(g, OP_min, index, last), graph_splat_like(g, index, 0.0));
    return graph_scatter_add(g, graph_splat_like(g, x, 0.0), inside, G, axis, 0);
}

/* bool, of the index's shape: its places exist, and for scatter_set those whose update is the last one there. */
static val used_updates(graph *g, const node *n) {
    val index = n->in[1];
    const node ix = *graph_get(g, index);
    val low = graph_binary(g, OP_le, graph_splat_like(g, index, 0.0), index);
    val high = graph_binary(g, OP_lt, index, size_like(g, index, n->dims[n->attr[0]]));
    val used = graph_binary(g, OP_and, low, high);
    if (n->op != OP_scatter_set || ix.rank == 0 || n->dims[n->attr[0]] == 0) return used;
    ext elems = graph_elems_ext(g, index);
    val number = graph_reshape(g, graph_iota(g, TN_I64, 1, &elems, 0), ix.rank, ix.dims);
    val last = graph_scatter(g, OP_scatter_set, graph_splat(g, TN_I64, 1, &n->dims[n->attr[0]], 0), index, number, 0, 0);
    return graph_binary(g, OP_and, used, graph_binary(g, OP_eq, graph_gather(g, last, index, 0), number));
}

static val or_zero(graph *g, val mask, val x) { return graph_select(g, mask, x, graph_splat_like(g, x, 0.0)); }

/* For each element of the updates, what x has where it goes; 0 where it goes nowhere, or does not stay. */
static val at_updates(graph *g, const node *n, val x) {
    const node ix = *graph_get(g, n->in[1]), up = *graph_get(g, n->in[2]);
    int axis = (int)n->attr[0];
    int64_t dims[TN_MAX_RANK];
    for (int i = 0; i < up.rank; i++) dims[i] = i >= axis && i < axis + ix.rank ? up.dims[i] : 1;
    val used = graph_reshape(g, used_updates(g, n), up.rank, dims);
    return or_zero(g, graph_expand(g, used, up.dims), graph_gather(g, x, n->in[1], axis));
}
static val scattered_like(graph *g, const node *n, op_code op, val base, val updates) {
    return graph_scatter(g, op, base, n->in[1], updates, (int)n->attr[0], 0);
}

/* Equal ones share. */
static val grad_scatter_extreme(graph *g, const node *n, val o, int slot, val G) {
    tn_dtype t = (tn_dtype)n->dtype;
    val mine = graph_binary(g, OP_eq, n->in[2], at_updates(g, n, o)), base = graph_binary(g, OP_eq, n->in[0], o);
    val equal = scattered_like(g, n, OP_scatter_add, graph_cast(g, base, t), graph_cast(g, mine, t));
    val share = graph_binary(g, OP_div, G, graph_binary(g, OP_max, equal, graph_splat_like(g, equal, 1.0)));
    return slot == 0 ? or_zero(g, base, share) : or_zero(g, mine, at_updates(g, n, share));
}

/* The product of all others: of those that are not 0, where at most the element itself is 0. */
static val grad_scatter_mul(graph *g, const node *n, int slot, val G) {
    tn_dtype t = (tn_dtype)n->dtype;
    val x[2] = { n->in[0], n->in[2] }, zero[2], rest[2];
    int which = slot ? 1 : 0;
    for (int i = 0; i < 2; i++) {
        zero[i] = graph_binary(g, OP_eq, x[i], graph_splat_like(g, x[i], 0.0));
        rest[i] = graph_select(g, zero[i], graph_splat_like(g, x[i], 1.0), x[i]);
    }
    val product = scattered_like(g, n, OP_scatter_mul, rest[0], rest[1]);
    val zeros = scattered_like(g, n, OP_scatter_add, graph_cast(g, zero[0], t), graph_cast(g, zero[1], t));
    if (slot) product = at_updates(g, n, product), zeros = at_updates(g, n, zeros), G = at_updates(g, n, G);
    val others = graph_binary(g, OP_sub, zeros, graph_cast(g, zero[which], t));
    val d = graph_binary(g, OP_mul, G, graph_binary(g, OP_div, product, rest[which]));
    return or_zero(g, graph_binary(g, OP_eq, others, graph_splat_like(g, others, 0.0)), d);
}

static val grad_scatter(graph *g, const node *n, val o, int slot, val G) {
    const node up = *graph_get(g, n->in[2]);
    if (slot == 0 && n->op == OP_scatter_add) return G;
    if (n->attr[1])
        guard_fail(g->a->gd, TN_ERR_UNSUPPORTED, "%s with batch=%lld has no gradient: the compiler makes it after gradients",
                   op_get((op_code)n->op)->name, (long long)n->attr[1]);
    if (n->dims[n->attr[0]] == 0 || graph_elems(g, n->in[1]) == 0) return slot ? graph_splat_like(g, n->in[2], 0.0) : G;
    if (n->op == OP_scatter_mul) return grad_scatter_mul(g, n, slot, G);
    if (n->op == OP_scatter_max || n->op == OP_scatter_min) return grad_scatter_extreme(g, n, o, slot, G);
    if (slot == 0) return scattered_like(g, n, OP_scatter_set, G, graph_splat(g, n->dtype, up.rank, up.dims, 0));
    return at_updates(g, n, G);
}

static val grad_elementwise(graph *g, const node *n, val o, int slot, val G) {
    rule r = { .g = g, .o = o, .grad = G, .x = n->in[0] };
    if (n->n_in > 1) r.y = n->in[1];
    if (n->n_in > 2) r.z = n->in[2];
    return rule_apply(&r, n->op, slot);
}

/* The contribution of node o with adjoint G to its operand `slot`. */
static val grad_operand(graph *g, const node *n, val o, int slot, val G) {
    switch (op_get(n->op)->cls) {
    case CL_CAST:
        return graph_cast(g, G, graph_get(g, n->in[0])->dtype);
    case CL_REDUCE:
        return grad_reduce(g, n, o, G);
    case CL_MOVE:
        return grad_move(g, n, G);
    case CL_FOLD:
        return grad_fold(g, n, G);
    case CL_JOIN:
        return grad_concat(g, n, slot, G);
    case CL_DOT:
        return grad_dot(g, n, slot, G);
    case CL_GATHER:
        return grad_gather(g, n, G);
    case CL_SCATTER:
        return grad_scatter(g, n, o, slot, G);
    default:
        return grad_elementwise(g, n, o, slot, G);
    }
}

/* ---- the walk -------------------------------------------------------------------------------------------------------- */

/* Of an integer node, or of the cast of one to float. An index only chooses: what it chooses has no position from it. */
static val position_of(const grad_ctx *c, val v) {
    const node *n = graph_get(c->g, v);
    op_class cls = op_get(n->op)->cls;
    if (cls == CL_ARG) return c->active[n->in[0]] ? v : 0;
    if (n->dtype == TN_BOOL || (dtype_is_float(n->dtype) && cls != CL_CAST)) return 0;
    for (int i = 0; i < n->n_in; i++) {
        bool index = i == 1 && (cls == CL_GATHER || cls == CL_SCATTER);
        if (!index && c->position[n->in[i]]) return c->position[n->in[i]];
    }
    return 0;
}

void grad_mark(grad_ctx *c) {
    for (val v = 1; v < c->end; v++) {
        const node *nd = graph_get(c->g, v);
        if (nd->region != c->region) continue;
        c->position[v] = position_of(c, v);
        if (c->position[v] && dtype_is_float(nd->dtype)) c->active[v] = 1; /* so that visit meets it */
        /* ops with regions have several results: they count as active whatever the dtype of the first one is. */
        bool carries = (dtype_is_float(nd->dtype) && dtype_info((tn_dtype)nd->dtype)->arithmetic) ||
                       (op_get(nd->op)->cls == CL_CTRL && nd->op != OP_proj);
        for (int i = 0; i < nd->n_in && !c->active[v] && carries; i++)
            c->active[v] = c->active[nd->in[i]] && slot_kind_of(nd->op, i) != SLOT_ZERO;
    }
}

static void visit(grad_ctx *c, val v) {
    graph *g = c->g;
    const node n = *graph_get(g, v);
    if (c->position[v]) no_gradient(g, c->position[v]);
    g->here = n.where; /* errors in a rule and the new nodes point to the op that they come from */
    if (grad_visit_control(c, v)) return;
    node again = n;
    val o = v;
    grad_visit_checkpoint(c, &again, &o);
    for (int slot = 0; slot < n.n_in; slot++) {
        val x = n.in[slot];
        if (!c->active[x]) continue;
        slot_kind kind = slot_kind_of(n.op, slot);
        if (kind == SLOT_ZERO) continue;
        if (kind == SLOT_NONE) no_gradient(g, v);
        grad_add(c, x, grad_operand(g, &again, o, slot, c->adj[v]));
    }
}

void grad_walk(grad_ctx *c) {
    int around = c->g->current;
    c->g->current = c->region; /* of sources that rules make, such as the places of an iota */
    for (val v = c->end - 1; v > 0; v--)
        if (graph_get(c->g, v)->region == c->region && (c->adj[v] || c->results[v])) visit(c, v);
    c->g->current = around;
}

static void check_arguments(graph *g, val loss, const val *xs, int n) {
    const node *l = graph_get(g, loss);
    if (!dtype_is_float(l->dtype) || l->rank != 0)
        guard_fail(g->a->gd, dtype_is_float(l->dtype) ? TN_ERR_SHAPE : TN_ERR_DTYPE,
                   "grad: the loss must be a float scalar, but is %s", graph_shape_text(g, g->a, loss));
    for (int i = 0; i < n; i++)
        if (!dtype_is_float(graph_get(g, xs[i])->dtype))
            guard_fail(g->a->gd, TN_ERR_DTYPE, "grad: only float values have a gradient, but value %d is %s", i,
                       graph_shape_text(g, g->a, xs[i]));
}

void grad_build(graph *g, val loss, const val *xs, int n, val *out) {
    check_arguments(g, loss, xs, n);
    const char *here = g->here;
    grad_ctx c = grad_context(g, graph_get(g, loss)->region, loss + 1, grad_mark, grad_walk);
    for (int i = 0; i < n; i++)
        if (xs[i] <= loss) c.active[xs[i]] = 1;
    grad_mark(&c);
    if (c.active[loss]) c.adj[loss] = graph_splat_like(g, loss, 1.0);
    grad_walk(&c);
    g->here = here;
    for (int i = 0; i < n; i++) {
        val d = xs[i] <= loss ? c.adj[xs[i]] : 0;
        out[i] = d ? d : graph_splat_like(g, xs[i], 0.0);
    }
}
