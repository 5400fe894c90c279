/* permute_cancel.c - permutes that cancel each other through elementwise ops, and permutes that a contraction can absorb.
 *
 * In: any graph. Out: fewer permutes. All rules are exact: the same products are added in the same order; a * b commutes. */
#include "pass/rewrite.h"

static bool is_inverse(const node *p, const node *q) {
    for (int i = 0; i < p->rank; i++)
        if (q->attr[p->attr[i]] != i) return false;
    return true;
}

/* permute(f(permute(x), y)) -> f(x, permute(y)) for inverse permutes, when fewer are left than there were. */
static val cancel(graph *g, const node *p, arena *scratch) {
    node f = *graph_get(g, p->in[0]);
    if (!op_is_elementwise(f.op) || !graph_used_once(g, p->in[0])) return 0;
    int n_gone = 0, n_new = 0;
    for (int i = 0; i < f.n_in; i++) {
        const node *q = graph_get(g, f.in[i]);
        if (q->op == OP_permute && is_inverse(p, q))
            n_gone++;
        else if (q->op != OP_permute && !is_splat(g, f.in[i]))
            n_new++; /* another permute merges with the new one */
    }
    if (n_gone == 0 || n_new > n_gone) return 0;
    val *in = ARENA_ARRAY(scratch, val, f.n_in);
    for (int i = 0; i < f.n_in; i++) {
        const node *q = graph_get(g, f.in[i]);
        if (is_splat(g, f.in[i]))
            in[i] = splat_resize(g, f.in[i], p->rank, p->dims);
        else if (q->op == OP_permute && is_inverse(p, q))
            in[i] = q->in[0];
        else
            in[i] = graph_permute(g, f.in[i], p->attr);
    }
    return remake(g, &f, in, p->rank, p->dims);
}

/* ---- dot ----------------------------------------------------------------------------------------------------------------- */

typedef struct dot_axes {
    int nb, nc;
    const int64_t *batch[2], *contract[2]; /* of operands a and b */
} dot_axes;

static dot_axes dot_of(const node *n) {
    dot_axes d = { .nb = (int)n->attr[0], .nc = (int)n->attr[1] };
    d.batch[0] = n->attr + 2;
    d.batch[1] = d.batch[0] + d.nb;
    d.contract[0] = d.batch[1] + d.nb;
    d.contract[1] = d.contract[0] + d.nc;
    return d;
}

/* The free axes of one operand, in order. */
static int free_axes(const dot_axes *d, int side, int rank, int64_t out[TN_MAX_RANK]) {
    uint64_t bound = 0;
    int n = 0;
    for (int i = 0; i < d->nb; i++) bound |= UINT64_C(1) << d->batch[side][i];
    for (int i = 0; i < d->nc; i++) bound |= UINT64_C(1) << d->contract[side][i];
    for (int i = 0; i < rank; i++)
        if (!mask_has(bound, i)) out[n++] = i;
    return n;
}

/* dot(permute(x), b) -> dot(x, b) under x's numbers of the axes, when x's free axes are in the same order. */
static val absorb_operand(graph *g, const node *n, int side) {
    node p = *graph_get(g, n->in[side]);
    if (p.op != OP_permute) return 0;
    dot_axes d = dot_of(n);
    int64_t free[TN_MAX_RANK], batch[2][TN_MAX_RANK], contract[2][TN_MAX_RANK];
    int n_free = free_axes(&d, side, p.rank, free);
    for (int i = 1; i < n_free; i++)
        if (p.attr[free[i]] < p.attr[free[i - 1]]) return 0;
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < d.nb; i++) batch[s][i] = s == side ? p.attr[d.batch[s][i]] : d.batch[s][i];
        for (int i = 0; i < d.nc; i++) contract[s][i] = s == side ? p.attr[d.contract[s][i]] : d.contract[s][i];
    }
    val in[2] = { n->in[0], n->in[1] };
    in[side] = p.in[0];
    return graph_dot(g, in[0], in[1], batch[0], batch[1], d.nb, contract[0], contract[1], d.nc);
}

/* permute(dot(a, b)) -> dot(b, a), or dot(a, b) with its batch axes in another order, when that is the order asked for. */
static val absorb_result(graph *g, const node *p) {
    node n = *graph_get(g, p->in[0]);
    if (n.op != OP_dot || !graph_used_once(g, p->in[0])) return 0;
    dot_axes d = dot_of(&n);
    int64_t free[TN_MAX_RANK], batch[2][TN_MAX_RANK];
    int n_a = free_axes(&d, 0, graph_get(g, n.in[0])->rank, free), n_b = n.rank - d.nb - n_a;
    for (int i = 0; i < d.nb; i++) {
        if (p->attr[i] >= d.nb) return 0;
        for (int s = 0; s < 2; s++) batch[s][i] = d.batch[s][p->attr[i]];
    }
    bool same = true, swapped = true;
    for (int i = 0; i < n_a + n_b; i++) {
        same = same && p->attr[d.nb + i] == d.nb + i;
        swapped = swapped && p->attr[d.nb + i] == d.nb + (i < n_b ? n_a + i : i - n_b);
    }
    if (same) return graph_dot(g, n.in[0], n.in[1], batch[0], batch[1], d.nb, d.contract[0], d.contract[1], d.nc);
    if (swapped) return graph_dot(g, n.in[1], n.in[0], batch[1], batch[0], d.nb, d.contract[1], d.contract[0], d.nc);
    return 0;
}

static val rewrite(graph *g, val v, arena *scratch) {
    node n = *graph_get(g, v);
    if (n.op == OP_permute) {
        val r = cancel(g, &n, scratch);
        return r ? r : absorb_result(g, &n);
    }
    if (n.op != OP_dot) return 0;
    val r = absorb_operand(g, &n, 0);
    return r ? r : absorb_operand(g, &n, 1);
}

bool pass_permute_cancel(graph *g, arena *scratch) { return rewrite_dims(g, scratch, rewrite); }
