/* move_sink.c - movement into readers: one direction for movement ops around elementwise ops and reductions.
 *
 * In: any graph. Out: reshape, permute and flip below elementwise ops whose operands all move alike, and below reductions;
 * expand below elementwise ops as far as no element is computed twice; slice above an elementwise op that nothing else reads.
 * Elementwise ops become neighbours, and each computes no more elements than before. Exact, but for reductions: [order] of
 * their elements. Splat operands move along for nothing. No rule makes movement rise that another lets sink, so the pass
 * settles. */
#include "pass/rewrite.h"

static bool is_sinking(op_code op) { return op == OP_reshape || op == OP_permute || op == OP_flip; }

/* f(m(x), m(y), splat) -> m(f(x, y, splat)) for the same movement m of equal shapes. */
static val sink_movement(graph *g, const node *n, arena *scratch) {
    val first = 0;
    for (int i = 0; i < n->n_in; i++) {
        const node *m = graph_get(g, n->in[i]);
        if (is_splat(g, n->in[i])) continue;
        if (!is_sinking(m->op)) return 0;
        if (first == 0) first = n->in[i];
        const node *f = graph_get(g, first), *x = graph_get(g, m->in[0]), *y = graph_get(g, f->in[0]);
        if (m->op != f->op || !same_attr(m, f) || !same_dims(x->rank, x->dims, y->rank, y->dims)) return 0;
    }
    if (first == 0) return 0;
    node move = *graph_get(g, first), source = *graph_get(g, move.in[0]);
    val *in = ARENA_ARRAY(scratch, val, n->n_in);
    for (int i = 0; i < n->n_in; i++)
        in[i] = is_splat(g, n->in[i]) ? splat_resize(g, n->in[i], source.rank, source.dims) : graph_get(g, n->in[i])->in[0];
    val f = remake(g, n, in, source.rank, source.dims);
    return remake(g, &move, &f, n->rank, n->dims);
}

/* f(expand(x), expand(y), splat) -> expand(f(x', y', splat)), x' and y' expanded only to what they have in common. */
static val sink_expand(graph *g, const node *n, val v, arena *scratch) {
    int64_t common[TN_MAX_RANK], elems = 1;
    bool has_expand = false;
    for (int k = 0; k < n->rank; k++) common[k] = 1;
    for (int i = 0; i < n->n_in; i++) {
        if (is_splat(g, n->in[i])) continue;
        const node *e = graph_get(g, n->in[i]);
        if (e->op != OP_expand) return 0;
        has_expand = true;
        for (int k = 0; k < n->rank; k++)
            if (graph_get(g, e->in[0])->dims[k] != 1) common[k] = n->dims[k];
    }
    for (int k = 0; k < n->rank; k++) elems *= graph_dim_most(g, common[k]);
    if (!has_expand || elems >= graph_elems(g, v)) return 0;
    val *in = ARENA_ARRAY(scratch, val, n->n_in);
    for (int i = 0; i < n->n_in; i++)
        in[i] = is_splat(g, n->in[i]) ? splat_resize(g, n->in[i], n->rank, common)
                                      : graph_expand(g, graph_get(g, n->in[i])->in[0], common);
    return graph_expand(g, remake(g, n, in, n->rank, common), n->dims);
}

/* slice(dot(a, b)) -> dot of slices: batch axes are cut from both, each free axis from its operand. */
static val slice_dot(graph *g, const node *n, const node *d) {
    int nb = (int)d->attr[0], nc = (int)d->attr[1], at = nb;
    val in[2];
    for (int s = 0; s < 2; s++) {
        node x = *graph_get(g, d->in[s]);
        int64_t start[TN_MAX_RANK] = { 0 }, count[TN_MAX_RANK], step[TN_MAX_RANK];
        int from[TN_MAX_RANK]; /* axis of the result, -1 = contracted */
        for (int i = 0; i < x.rank; i++) from[i] = -2;
        for (int i = 0; i < nb; i++) from[d->attr[2 + s * nb + i]] = i;
        for (int i = 0; i < nc; i++) from[d->attr[2 + 2 * nb + s * nc + i]] = -1;
        for (int i = 0; i < x.rank; i++) {
            if (from[i] == -2) from[i] = at++;
            start[i] = from[i] < 0 ? 0 : n->attr[from[i]];
            count[i] = from[i] < 0 ? x.dims[i] : n->dims[from[i]];
            step[i] = from[i] < 0 ? 1 : n->attr[n->rank + from[i]];
        }
        in[s] = graph_slice(g, d->in[s], start, count, step);
    }
    const int64_t *contract = d->attr + 2 + 2 * nb;
    return graph_dot(g, in[0], in[1], d->attr + 2, d->attr + 2 + nb, nb, contract, contract + nc, nc);
}

/* slice(reduce(x)) -> reduce(slice(x)): reduced axes have one element, which stays a whole axis of x. */
static val slice_reduce(graph *g, const node *n, const node *r) {
    node x = *graph_get(g, r->in[0]);
    int64_t start[TN_MAX_RANK], count[TN_MAX_RANK], step[TN_MAX_RANK];
    for (int i = 0; i < x.rank; i++) {
        bool is_reduced = mask_has((uint64_t)r->attr[0], i);
        if (is_reduced && n->dims[i] != 1) return 0;
        start[i] = is_reduced ? 0 : n->attr[i];
        count[i] = is_reduced ? x.dims[i] : n->dims[i];
        step[i] = is_reduced ? 1 : n->attr[n->rank + i];
    }
    return graph_reduce(g, r->op, graph_slice(g, r->in[0], start, count, step), (uint64_t)r->attr[0]);
}

/* slice(f(x, y)) -> f(slice(x), slice(y)) when nothing else needs the rest of f. */
static val raise_slice(graph *g, const node *n, val v, arena *scratch) {
    node f = *graph_get(g, n->in[0]);
    bool is_reduce = op_get(f.op)->cls == CL_REDUCE;
    if (!(f.op == OP_dot || is_reduce || op_is_elementwise(f.op))) return 0;
    if (graph_elems(g, v) >= graph_elems(g, n->in[0]) || !graph_used_once(g, n->in[0])) return 0;
    if (f.op == OP_dot) return slice_dot(g, n, &f);
    if (is_reduce) return slice_reduce(g, n, &f);
    val *in = ARENA_ARRAY(scratch, val, f.n_in);
    for (int i = 0; i < f.n_in; i++)
        in[i] = is_splat(g, f.in[i]) ? splat_resize(g, f.in[i], n->rank, n->dims)
                                     : graph_slice(g, f.in[i], n->attr, n->dims, n->attr + n->rank);
    return remake(g, &f, in, n->rank, n->dims);
}

/* ---- reductions ---------------------------------------------------------------------------------------------------------- */

static val reduce_permute(graph *g, const node *n, const node *p) {
    uint64_t axes = 0;
    for (int i = 0; i < n->rank; i++)
        if (mask_has((uint64_t)n->attr[0], i)) axes |= UINT64_C(1) << p->attr[i];
    return graph_permute(g, graph_reduce(g, n->op, p->in[0], axes), p->attr);
}

/* Axes that the reduction keeps can be repeated afterwards. */
static val reduce_expand(graph *g, const node *n, const node *e) {
    node s = *graph_get(g, e->in[0]);
    int64_t dims[TN_MAX_RANK];
    bool is_smaller = false;
    for (int i = 0; i < n->rank; i++) {
        bool is_reduced = mask_has((uint64_t)n->attr[0], i);
        dims[i] = is_reduced ? e->dims[i] : s.dims[i];
        is_smaller = is_smaller || dims[i] != e->dims[i];
    }
    if (!is_smaller) return 0;
    return graph_expand(g, graph_reduce(g, n->op, graph_expand(g, e->in[0], dims), (uint64_t)n->attr[0]), n->dims);
}

static val reduce_flip(graph *g, const node *n, const node *f) {
    uint64_t axes = (uint64_t)n->attr[0];
    return graph_flip(g, graph_reduce(g, n->op, f->in[0], axes), (uint64_t)f->attr[0] & ~axes);
}

/* Splits a reshape into the shortest runs of axes with equal element counts, [*i, *i_end) of x and [*j, *j_end) of y. */
static bool next_run(const node *x, const node *y, int *i_end, int *j_end) {
    int i = *i_end, j = *j_end;
    if (i == x->rank && j == y->rank) return false;
    int64_t p = i < x->rank ? x->dims[i++] : 1, q = j < y->rank ? y->dims[j++] : 1;
    while (p != q) {
        if (p < q)
            p *= x->dims[i++];
        else
            q *= y->dims[j++];
    }
    *i_end = i;
    *j_end = j;
    return true;
}

/* reduce(reshape(x)) -> reshape(reduce(x)) when the reshape keeps reduced and kept axes apart. */
static val reduce_reshape(graph *g, const node *n, val v, const node *r) {
    node x = *graph_get(g, r->in[0]);
    if (graph_elems(g, n->in[0]) == 0 || touches_dims(g, n->in[0])) return 0;
    uint64_t axes = 0;
    int i = 0, j = 0, i_end = 0, j_end = 0;
    (void)v;
    while (next_run(&x, r, &i_end, &j_end)) {
        int n_reduced = 0, n_kept = 0;
        for (; j < j_end; j++) {
            if (r->dims[j] == 1) continue; /* a unit axis may count as either */
            if (mask_has((uint64_t)n->attr[0], j))
                n_reduced++;
            else
                n_kept++;
        }
        if (n_reduced > 0 && n_kept > 0) return 0;
        for (; i < i_end; i++)
            if (n_reduced > 0) axes |= UINT64_C(1) << i;
    }
    return graph_reshape(g, graph_reduce(g, n->op, r->in[0], axes), n->rank, n->dims);
}

static val reduce_rules(graph *g, const node *n, val v) {
    node m = *graph_get(g, n->in[0]);
    if (m.n_in == 0 || splits_large_reduce(g, n->in[0], (uint64_t)n->attr[0])) return 0;
    switch (m.op) {
    case OP_permute:
        return reduce_permute(g, n, &m);
    case OP_expand:
        return reduce_expand(g, n, &m);
    case OP_flip:
        return reduce_flip(g, n, &m);
    case OP_reshape:
        return reduce_reshape(g, n, v, &m);
    default:
        return 0;
    }
}

static val rewrite(graph *g, val v, arena *scratch) {
    node n = *graph_get(g, v);
    if (n.op == OP_slice) return touches_dims(g, v) ? 0 : raise_slice(g, &n, v, scratch);
    if (op_get(n.op)->cls == CL_REDUCE) return reduce_rules(g, &n, v);
    if (!op_is_elementwise(n.op)) return 0;
    val r = sink_movement(g, &n, scratch);
    return r ? r : sink_expand(g, &n, v, scratch);
}

bool pass_move_sink(graph *g, arena *scratch) { return rewrite_dims(g, scratch, rewrite); }
