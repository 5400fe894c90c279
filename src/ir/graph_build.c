/* graph_build.c - the shorthands of graph.h: specs written out, all through graph_add. A shorthand that would change nothing
 * returns its operand. */
#include "ir/graph.h"

#include <math.h>

static const node *operand(const graph *g, val v) {
    if (v == 0 || v >= (val)g->nodes.n) guard_fail(g->a->gd, TN_ERR_INTERNAL, "operand %%%u does not exist", v);
    return graph_get(g, v);
}
static val add_in(graph *g, op_code op, const val *in, int n_in, const int64_t *attr, int n_attr) {
    return graph_add(g, &(spec){ .op = op, .in = in, .n_in = n_in, .attr = attr, .n_attr = n_attr });
}

val graph_unary(graph *g, op_code op, val x) { return add_in(g, op, &x, 1, NULL, 0); }
val graph_binary(graph *g, op_code op, val x, val y) { return add_in(g, op, (val[]){ x, y }, 2, NULL, 0); }
val graph_select(graph *g, val c, val x, val y) { return add_in(g, OP_select, (val[]){ c, x, y }, 3, NULL, 0); }

static val splat_in(graph *g, int region_id, tn_dtype t, int rank, const int64_t *dims, double value) {
    spec s = { .op = OP_const, .dtype = t, .rank = rank, .dims = dims, .splat = true, .imm = value, .region = region_id };
    if ((unsigned)t < TN_N_DTYPES && !dtype_is_float(t)) s.imm_int = dtype_cast_to_int(t, value);
    return graph_add(g, &s);
}
val graph_splat(graph *g, tn_dtype t, int rank, const int64_t *dims, double value) {
    return splat_in(g, 0, t, rank, dims, value);
}
val graph_splat_like(graph *g, val x, double value) {
    const node *n = operand(g, x);
    return splat_in(g, n->region, (tn_dtype)n->dtype, n->rank, n->dims, value);
}
val graph_const(graph *g, tn_dtype t, int rank, const int64_t *dims, const void *data) {
    val v = graph_add(g, &(spec){ .op = OP_const, .dtype = t, .rank = rank, .dims = dims, .data = data });
    if (data) graph_get(g, v)->data = arena_copy(g->a, data, (size_t)graph_elems(g, v) * dtype_size(t));
    return v;
}
val graph_cast(graph *g, val x, tn_dtype t) {
    if (operand(g, x)->dtype == t) return x;
    return graph_add(g, &(spec){ .op = OP_cast, .dtype = t, .in = &x, .n_in = 1 });
}
val graph_bitcast(graph *g, val x, tn_dtype t) {
    if (operand(g, x)->dtype == t) return x;
    return graph_add(g, &(spec){ .op = OP_bitcast, .dtype = t, .in = &x, .n_in = 1 });
}
val graph_reduce(graph *g, op_code op, val x, uint64_t axes) {
    int64_t attr = (int64_t)axes;
    operand(g, x);
    return axes ? add_in(g, op, &x, 1, &attr, 1) : x;
}
val graph_arg(graph *g, op_code op, val x, int axis) { return add_in(g, op, &x, 1, &(int64_t){ axis }, 1); }

static bool has_dims(const node *n, int rank, const int64_t *dims) {
    return n->rank == rank && (!rank || !memcmp(n->dims, dims, (size_t)rank * sizeof *dims));
}
val graph_reshape(graph *g, val x, int rank, const int64_t *dims) {
    if (has_dims(operand(g, x), rank, dims)) return x;
    return graph_add(g, &(spec){ .op = OP_reshape, .in = &x, .n_in = 1, .rank = rank, .dims = dims });
}
val graph_permute(graph *g, val x, const int64_t *perm) {
    const node *n = operand(g, x);
    for (int i = 0; i < n->rank; i++)
        if (perm[i] != i) return add_in(g, OP_permute, &x, 1, perm, n->rank);
    return x;
}
val graph_expand(graph *g, val x, const int64_t *dims) {
    const node *n = operand(g, x);
    if (has_dims(n, n->rank, dims)) return x;
    return graph_add(g, &(spec){ .op = OP_expand, .in = &x, .n_in = 1, .rank = n->rank, .dims = dims });
}
val graph_broadcast(graph *g, val x, int rank, const int64_t *dims) {
    const node *n = operand(g, x);
    if (rank < n->rank || rank > TN_MAX_RANK)
        guard_fail(g->a->gd, TN_ERR_SHAPE, "broadcast(%s): cannot become %s", graph_shape_text(g, g->a, x),
                   rank < 0 || rank > TN_MAX_RANK ? "an array of that rank" : graph_dims_text(g, g->a, rank, dims));
    int64_t ones[TN_MAX_RANK];
    for (int i = 0; i < rank; i++) ones[i] = i < rank - n->rank ? 1 : n->dims[i - (rank - n->rank)];
    return graph_expand(g, graph_reshape(g, x, rank, ones), dims);
}
val graph_pad(graph *g, val x, const int64_t *before, const int64_t *after, double value) {
    const node *n = operand(g, x);
    int64_t attr[2 * TN_MAX_RANK];
    bool any = false;
    for (int i = 0; i < n->rank; i++) {
        attr[i] = before[i], attr[n->rank + i] = after[i];
        any |= before[i] || after[i];
    }
    if (!any) return x;
    return graph_add(g, &(spec){ .op = OP_pad, .in = &x, .n_in = 1, .attr = attr, .n_attr = 2 * n->rank, .imm = value });
}
val graph_slice(graph *g, val x, const int64_t *start, const int64_t *count, const int64_t *step) {
    const node *n = operand(g, x);
    int64_t attr[2 * TN_MAX_RANK];
    bool any = false;
    for (int i = 0; i < n->rank; i++) {
        attr[i] = start[i], attr[n->rank + i] = step ? step[i] : 1;
        any |= attr[i] || attr[n->rank + i] != 1 || count[i] != n->dims[i];
    }
    if (!any) return x;
    return graph_add(
        g, &(spec){ .op = OP_slice, .in = &x, .n_in = 1, .rank = n->rank, .dims = count, .attr = attr, .n_attr = 2 * n->rank });
}
val graph_flip(graph *g, val x, uint64_t axes) {
    int64_t attr = (int64_t)axes;
    operand(g, x);
    return axes ? add_in(g, OP_flip, &x, 1, &attr, 1) : x;
}

int graph_n_read(const node *n) { return n->op == OP_again ? 1 : n->n_in; }

int graph_again_slot(const graph *g, const node *n) {
    int best = -1, rank = 0;
    for (int i = 0; i < graph_n_read(n); i++) {
        const node *x = graph_get(g, n->in[i]);
        bool source = op_get((op_code)x->op)->cls == CL_SOURCE, table = i == 0 && op_get((op_code)n->op)->cls == CL_GATHER;
        int r = x->op == OP_const && x->splat ? 0 : table ? 1 : source ? 2 : 3;
        if (r > rank) best = i, rank = r;
    }
    return best;
}

val graph_again(graph *g, val x, val after) { return add_in(g, OP_again, (val[]){ x, after }, 2, NULL, 0); }

/* n, n x (axis, size, stride, dilation); returns the number of values. */
static int window_attr(graph *g, const window_axis *w, int n, int64_t *out /* [1 + 4 * TN_MAX_RANK] */) {
    if (n < 0 || n > TN_MAX_RANK) guard_fail(g->a->gd, TN_ERR_SHAPE, "a window over %d axes; at most %d", n, TN_MAX_RANK);
    *out++ = n;
    for (int i = 0; i < n; i++) {
        *out++ = w[i].axis;
        *out++ = w[i].size;
        *out++ = w[i].stride;
        *out++ = w[i].dilation;
    }
    return 1 + 4 * n;
}
val graph_window(graph *g, val x, const window_axis *w, int n) {
    int64_t attr[1 + 4 * TN_MAX_RANK];
    operand(g, x);
    if (n == 0) return x;
    int n_attr = window_attr(g, w, n, attr);
    return add_in(g, OP_window, &x, 1, attr, n_attr);
}
val graph_fold(graph *g, val x, const window_axis *w, int n, const int64_t *dims) {
    const node *o = operand(g, x);
    int64_t attr[1 + 4 * TN_MAX_RANK];
    if (n == 0) return x;
    int n_attr = window_attr(g, w, n, attr);
    return graph_add(
        g, &(spec){ .op = OP_fold, .in = &x, .n_in = 1, .rank = o->rank - n, .dims = dims, .attr = attr, .n_attr = n_attr });
}
val graph_concat(graph *g, const val *xs, int n, int axis) {
    if (n == 1) return operand(g, xs[0]), xs[0];
    return add_in(g, OP_concat, xs, n, &(int64_t){ axis }, 1);
}
val graph_dot(graph *g, val a, val b, const int64_t *batch_a, const int64_t *batch_b, int nb, const int64_t *contract_a,
              const int64_t *contract_b, int nc) {
    int64_t attr[2 + 4 * TN_MAX_RANK], *p = attr;
    if (nb < 0 || nc < 0 || nb > TN_MAX_RANK || nc > TN_MAX_RANK)
        guard_fail(g->a->gd, TN_ERR_SHAPE, "dot with %d batch axes and %d contracted axes; at most %d", nb, nc, TN_MAX_RANK);
    *p++ = nb, *p++ = nc;
    for (int i = 0; i < nb; i++) *p++ = batch_a[i];
    for (int i = 0; i < nb; i++) *p++ = batch_b[i];
    for (int i = 0; i < nc; i++) *p++ = contract_a[i];
    for (int i = 0; i < nc; i++) *p++ = contract_b[i];
    return add_in(g, OP_dot, (val[]){ a, b }, 2, attr, (int)(p - attr));
}
val graph_gather(graph *g, val x, val index, int axis) {
    return add_in(g, OP_gather, (val[]){ x, index }, 2, &(int64_t){ axis }, 1);
}
val graph_scatter(graph *g, op_code op, val base, val index, val updates, int axis, int batch) {
    return add_in(g, op, (val[]){ base, index, updates }, 3, (int64_t[]){ axis, batch }, 2);
}
val graph_scatter_add(graph *g, val base, val index, val updates, int axis, int batch) {
    return graph_scatter(g, OP_scatter_add, base, index, updates, axis, batch);
}
val graph_iota(graph *g, tn_dtype t, int rank, const int64_t *dims, int axis) {
    return graph_add(g,
                     &(spec){ .op = OP_iota, .dtype = t, .rank = rank, .dims = dims, .attr = &(int64_t){ axis }, .n_attr = 1 });
}
val graph_size(graph *g, tn_dtype t, ext size) {
    if (ext_is_lit(size)) return graph_splat(g, t, 0, NULL, (double)size);
    ext places = ext_add(g->params, size, 1); /* 0 .. size, of which the last is taken: exact, unlike a sum of ones */
    val last = graph_slice(g, graph_iota(g, t, 1, &places, 0), &size, (int64_t[]){ 1 }, (int64_t[]){ 1 });
    return graph_reshape(g, last, 0, NULL);
}
