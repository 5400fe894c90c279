/* dot_batch.c - batch axes of a contraction that need not be ones.
 *
 * In: any graph. Out: contractions with fewer batch axes, which are larger and reuse their operands better:
 *
 * - b is only repeated along a batch axis (a layer on [B,T,C], broadcast matmul): the axis becomes a free axis of a. Exact;
 * done when the result's axes keep their order.
 * - the result is summed over a batch axis (the gradient of such weights): the axis is contracted. [order] of additions. */
#include "pass/rewrite.h"

typedef struct lists {
    int64_t batch[2][TN_MAX_RANK], contract[2][TN_MAX_RANK];
    int nb, nc;
} lists;

static lists lists_of(const node *d) {
    lists l = { .nb = (int)d->attr[0], .nc = (int)d->attr[1] };
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < l.nb; i++) l.batch[s][i] = d->attr[2 + s * l.nb + i];
        for (int i = 0; i < l.nc; i++) l.contract[s][i] = d->attr[2 + 2 * l.nb + s * l.nc + i];
    }
    return l;
}

static void drop_batch(lists *l, int i) {
    l->nb--;
    for (int s = 0; s < 2; s++) memmove(&l->batch[s][i], &l->batch[s][i + 1], (size_t)(l->nb - i) * sizeof l->batch[s][0]);
}

static val add_dot(graph *g, val a, val b, const lists *l) {
    return graph_dot(g, a, b, l->batch[0], l->batch[1], l->nb, l->contract[0], l->contract[1], l->nc);
}

/* The last batch axis becomes the first free axis of a, so all result axes stay where they are. */
static val unbatch(graph *g, const node *d) {
    lists l = lists_of(d);
    node e = *graph_get(g, d->in[1]);
    if (l.nb == 0 || e.op != OP_expand) return 0;
    int64_t axis_a = l.batch[0][l.nb - 1], axis_b = l.batch[1][l.nb - 1], dims[TN_MAX_RANK];
    if (graph_get(g, e.in[0])->dims[axis_b] != 1 || e.dims[axis_b] == 1) return 0;
    uint64_t bound = 0;
    for (int i = 0; i < l.nb; i++) bound |= UINT64_C(1) << l.batch[0][i];
    for (int i = 0; i < l.nc; i++) bound |= UINT64_C(1) << l.contract[0][i];
    for (int64_t i = 0; i < axis_a; i++)
        if (!mask_has(bound, (int)i)) return 0;

    int rank = 0;
    memcpy(dims, e.dims, e.rank * sizeof *dims);
    dims[axis_b] = 1;
    val b = graph_expand(g, e.in[0], dims);
    for (int i = 0; i < e.rank; i++)
        if (i != axis_b) dims[rank++] = e.dims[i];
    b = graph_reshape(g, b, rank, dims);
    drop_batch(&l, l.nb - 1);
    for (int i = 0; i < l.nb; i++) l.batch[1][i] -= l.batch[1][i] > axis_b;
    for (int i = 0; i < l.nc; i++) l.contract[1][i] -= l.contract[1][i] > axis_b;
    return add_dot(g, d->in[0], b, &l);
}

/* sum over batch axes of dot(a, b) -> dot that contracts them too, other axes summed as before. */
static val contract_summed(graph *g, const node *n) {
    node d = *graph_get(g, n->in[0]);
    if (d.op != OP_dot || !graph_used_once(g, n->in[0])) return 0;
    lists l = lists_of(&d);
    uint64_t axes = (uint64_t)n->attr[0], left = 0;
    int n_old = l.nb, rank = 0;
    for (int i = n_old - 1; i >= 0; i--) {
        if (!mask_has(axes, i)) continue;
        for (int s = 0; s < 2; s++) l.contract[s][l.nc] = l.batch[s][i];
        l.nc++;
        drop_batch(&l, i);
    }
    if (l.nb == n_old) return 0;
    for (int i = 0; i < d.rank; i++) { /* what is left of the sum, over the axes of the new dot */
        if (i < n_old && mask_has(axes, i)) continue;
        if (mask_has(axes, i)) left |= UINT64_C(1) << rank;
        rank++;
    }
    return graph_reshape(g, graph_reduce(g, OP_sum, add_dot(g, d.in[0], d.in[1], &l), left), n->rank, n->dims);
}

static val rewrite(graph *g, val v, arena *scratch) {
    (void)scratch;
    node n = *graph_get(g, v);
    if (n.op == OP_dot) return unbatch(g, &n);
    return n.op == OP_sum ? contract_summed(g, &n) : 0;
}

bool pass_dot_batch(graph *g, arena *scratch) { return rewrite_each(g, scratch, rewrite); }
