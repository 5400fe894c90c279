/* zero_point.c - quantized operands of a contraction without their zero points: dot(x - c, w) = dot(x, w) - c sum(w).
 *
 * In: any graph. Out: contractions of i32 whose operands are bytes, widened, and nothing else: kernels multiply those four at a
 * time. The sums over the other operand are made once for all rows that share them, so there have to be enough. Exact: integers
 * wrap around. */
#include "pass/rewrite.h"

enum { LEAST_ROWS = 16 };

typedef struct side { /* one operand of a contraction */
    int64_t batch[TN_MAX_RANK], contract[TN_MAX_RANK], free[TN_MAX_RANK];
    int nb, nc, nf;
} side;

static side side_of(const graph *g, const node *d, int s) {
    side x = { .nb = (int)d->attr[0], .nc = (int)d->attr[1] };
    uint64_t bound = 0;
    for (int i = 0; i < x.nb; i++) bound |= UINT64_C(1) << (x.batch[i] = d->attr[2 + s * x.nb + i]);
    for (int i = 0; i < x.nc; i++) bound |= UINT64_C(1) << (x.contract[i] = d->attr[2 + 2 * x.nb + s * x.nc + i]);
    for (int i = 0; i < graph_get(g, d->in[s])->rank; i++)
        if (!mask_has(bound, i)) x.free[x.nf++] = i;
    return x;
}

/* Bytes, widened, and a constant added or subtracted. */
static bool has_zero_point(const graph *g, val v) {
    const node *n = graph_get(g, v);
    if ((n->op != OP_sub && n->op != OP_add) || !is_splat(g, n->in[1]) || graph_get(g, n->in[0])->op != OP_cast) return false;
    tn_dtype t = graph_get(g, graph_get(g, n->in[0])->in[0])->dtype;
    return t == TN_I8 || t == TN_U8;
}

/* The sums of v along the contraction, as they lie in the result of d; s: which operand v is. */
static val sums_of(graph *g, const node *d, val v, const side *x, const side *other, int s) {
    int64_t perm[TN_MAX_RANK], dims[TN_MAX_RANK];
    uint64_t axes = 0;
    int n = 0, rank = 0;
    for (int i = 0; i < x->nc; i++) axes |= UINT64_C(1) << x->contract[i];
    for (int i = 0; i < x->nb; i++) perm[n++] = x->batch[i], dims[rank] = d->dims[rank], rank++;
    for (int i = 0; i < x->nc; i++) perm[n++] = x->contract[i];
    for (int i = 0; i < x->nf; i++) perm[n++] = x->free[i];
    for (int k = 0; k < 2; k++) /* the free axes of operand 0, then of 1 */
        for (int i = 0; i < (k == s ? x : other)->nf; i++) dims[rank] = k == s ? d->dims[rank] : 1, rank++;
    return graph_reshape(g, graph_permute(g, graph_reduce(g, OP_sum, v, axes), perm), rank, dims);
}

static val rewrite(graph *g, val v, arena *scratch) {
    (void)scratch;
    node d = *graph_get(g, v);
    if (d.op != OP_dot || d.dtype != TN_I32) return 0;
    side x[2] = { side_of(g, &d, 0), side_of(g, &d, 1) };
    for (int s = 0; s < 2; s++) {
        int64_t rows = 1;
        for (int i = 0; i < x[s].nf; i++) rows *= graph_get(g, d.in[s])->dims[x[s].free[i]];
        if (rows < LEAST_ROWS || !has_zero_point(g, d.in[s])) continue;
        node p = *graph_get(g, d.in[s]);
        val in[2] = { s == 0 ? p.in[0] : d.in[0], s == 1 ? p.in[0] : d.in[1] };
        val sums = sums_of(g, &d, d.in[1 - s], &x[1 - s], &x[s], 1 - s);
        sums = graph_binary(g, OP_mul, sums, splat_resize(g, p.in[1], graph_get(g, sums)->rank, graph_get(g, sums)->dims));
        return graph_binary(g, p.op, remake(g, &d, in, d.rank, d.dims), graph_expand(g, sums, d.dims));
    }
    return 0;
}

bool pass_zero_point(graph *g, arena *scratch) { return rewrite_each(g, scratch, rewrite); }
