/* fold_lower.c - op fold (the adjoint of window) in terms of movement and addition, one window axis at a time.
 *
 * In: fold nodes. Out: none are left outside regions; the scheduler relies on it. For one axis with H elements, P positions and
 * K offsets, out[h] is the sum over k of x[p, k] where p * stride + k * dilation = h:
 *
 * - stride >= K, dilation 1: no two windows overlap. Pad K to stride, put it beside p, merge the two, cut or pad to H.
 * - stride > 1, dilation 1: the K offsets are blocks of `stride`, of which no two overlap: block q moves q positions, the
 * blocks are added, and each position's sum lies beside it. No zeros are put between.
 * - few offsets: K shifted copies of x[:, k], spread by the stride and padded to H, are added.
 * - many offsets: the same shift for all k at once. Rows of H + dilation elements, read as rows of H, move right by dilation
 *   from row to row; then one sum over k.
 *
 * Exact up to the order of additions, which is ascending k in all of them, and to a zero's sign. f16 and bf16 add in f32. */
#include "pass/rewrite.h"

enum { FEW = 16 };

typedef struct fold_axis {
    int at;                      /* the position axis; the offset axis is the last */
    ext h, p;                    /* elements of the result, positions .. */
    int64_t k, stride, dilation; /* .. and offsets */
} fold_axis;

typedef int64_t dims_t[TN_MAX_RANK + 2];

static val pad_axis(graph *g, val x, int axis, ext before, ext after) {
    dims_t low = { 0 }, high = { 0 };
    low[axis] = before;
    high[axis] = after;
    return before == 0 && after == 0 ? x : graph_pad(g, x, low, high, 0);
}

static val slice_axis(graph *g, val x, int axis, int64_t first, ext count) {
    node n = *graph_get(g, x);
    if (first == 0 && count == n.dims[axis]) return x;
    dims_t start = { 0 }, step, counts;
    for (int i = 0; i < n.rank; i++) {
        counts[i] = n.dims[i];
        step[i] = 1;
    }
    start[axis] = first;
    counts[axis] = count;
    return graph_slice(g, x, start, counts, step);
}

/* Cuts or pads the end of an axis to size; by what a run says: pads enough, then cuts. */
static val fit_axis(graph *g, val x, int axis, ext size) {
    ext now = graph_get(g, x)->dims[axis];
    if (ext_is_lit(now) && ext_is_lit(size))
        return now > size ? slice_axis(g, x, axis, 0, size) : pad_axis(g, x, axis, 0, size - now);
    if (!ext_never_less(g->params, now, size)) x = pad_axis(g, x, axis, 0, size);
    return slice_axis(g, x, axis, 0, size);
}

/* Replaces axes [axis, axis + n_old) by n_new axes of the given sizes. */
static val regroup(graph *g, val x, int axis, int n_old, const ext *size, int n_new) {
    node n = *graph_get(g, x);
    dims_t dims;
    int rank = 0;
    for (int i = 0; i < axis; i++) dims[rank++] = n.dims[i];
    for (int i = 0; i < n_new; i++) dims[rank++] = size[i];
    for (int i = axis + n_old; i < n.rank; i++) dims[rank++] = n.dims[i];
    return graph_reshape(g, x, rank, dims);
}

/* stride - 1 zeros between neighbours along the axis: p elements become (p - 1) * stride + 1, or, of a run, p * stride. */
static val dilate(graph *g, val x, int axis, int64_t stride) {
    ext p = graph_get(g, x)->dims[axis];
    if (stride == 1 || (ext_is_lit(p) && p <= 1)) return x;
    x = pad_axis(g, regroup(g, x, axis, 1, (ext[]){ p, 1 }, 2), axis + 1, 0, stride - 1);
    x = regroup(g, x, axis, 2, (ext[]){ ext_mul(g->params, p, stride) }, 1);
    return ext_is_lit(p) ? slice_axis(g, x, axis, 0, (p - 1) * stride + 1) : x;
}

static val move_last_after(graph *g, val x, int axis) {
    int rank = graph_get(g, x)->rank;
    dims_t perm;
    for (int i = 0, k = 0; i < rank - 1; i++) {
        perm[k++] = i;
        if (i == axis) perm[k++] = rank - 1;
    }
    return graph_permute(g, x, perm);
}

static val fold_apart(graph *g, val x, const fold_axis *f) {
    x = pad_axis(g, x, graph_get(g, x)->rank - 1, 0, f->stride - f->k);
    x = move_last_after(g, x, f->at);
    x = regroup(g, x, f->at, 2, (ext[]){ ext_mul(g->params, f->p, f->stride) }, 1);
    return fit_axis(g, x, f->at, f->h);
}

static val fold_blocks(graph *g, val x, const fold_axis *f) {
    int last = graph_get(g, x)->rank - 1;
    int64_t blocks = (f->k + f->stride - 1) / f->stride;
    val total = 0;
    x = pad_axis(g, x, last, 0, blocks * f->stride - f->k);
    for (int64_t q = 0; q < blocks; q++) {
        val part = move_last_after(g, slice_axis(g, x, last, q * f->stride, f->stride), f->at);
        part = pad_axis(g, part, f->at, q, blocks - 1 - q);
        total = total ? graph_binary(g, OP_add, total, part) : part;
    }
    ext all = ext_mul(g->params, ext_add(g->params, f->p, blocks - 1), f->stride);
    return fit_axis(g, regroup(g, total, f->at, 2, &all, 1), f->at, f->h);
}

static val fold_few(graph *g, val x, const fold_axis *f) {
    val total = 0;
    int last = graph_get(g, x)->rank - 1;
    for (int64_t k = 0; k < f->k; k++) {
        val part = regroup(g, slice_axis(g, x, last, k, 1), last, 1, NULL, 0);
        part = dilate(g, part, f->at, f->stride);
        int64_t shift = k * f->dilation, size = graph_get(g, part)->dims[f->at];
        part = ext_is_lit(f->h) ? pad_axis(g, part, f->at, shift, f->h - shift - size)
                                : fit_axis(g, pad_axis(g, part, f->at, shift, 0), f->at, f->h);
        total = total ? graph_binary(g, OP_add, total, part) : part;
    }
    return total;
}

/* x[.., p, .., k] -> [.., k, p', ..]: row k starts at k * (H + dilation), which is column k * dilation of row k in rows of H.
 */
static val fold_many(graph *g, val x, const fold_axis *f) {
    int at = f->at, rank = graph_get(g, x)->rank;
    dims_t perm;
    for (int i = 0, j = 0; i < rank - 1; i++) {
        if (i == at) perm[j++] = rank - 1;
        perm[j++] = i;
    }
    x = dilate(g, graph_permute(g, x, perm), at + 1, f->stride);
    ext row = ext_add(g->params, f->h, f->dilation);
    x = fit_axis(g, x, at + 1, row);
    x = regroup(g, x, at, 2, (ext[]){ ext_mul(g->params, row, f->k) }, 1);
    x = slice_axis(g, x, at, 0, ext_mul(g->params, f->h, f->k));
    x = regroup(g, x, at, 1, (ext[]){ f->k, f->h }, 2);
    return regroup(g, graph_reduce(g, OP_sum, x, UINT64_C(1) << at), at, 2, &f->h, 1);
}

static val lower(graph *g, val v, arena *scratch) {
    (void)scratch;
    node n = *graph_get(g, v);
    if (n.op != OP_fold) return 0;
    bool is_half = dtype_is_narrow_float(n.dtype);
    val x = is_half ? graph_cast(g, n.in[0], TN_F32) : n.in[0];
    if (graph_elems(g, x) == 0) return zeros(g, n.dtype, n.rank, n.dims);
    for (int i = (int)n.attr[0] - 1; i >= 0; i--) {
        const int64_t *w = n.attr + 1 + 4 * i;
        fold_axis f = {
            .at = (int)w[0], .h = n.dims[w[0]], .p = graph_get(g, x)->dims[w[0]], .k = w[1], .stride = w[2], .dilation = w[3]
        };
        if (f.p == 1) f.stride = f.k; /* one window: the stride says nothing and may be huge */
        bool is_apart = f.stride >= f.k && (f.dilation == 1 || f.k == 1);
        bool is_few =
            f.k <= FEW || graph_get(g, x)->rank == TN_MAX_RANK; /* fold_many spreads strides before it drops the offsets */
        bool is_blocks = f.stride > 1 && f.dilation == 1 && f.k <= FEW * f.stride;
        x = is_apart    ? fold_apart(g, x, &f)
            : is_blocks ? fold_blocks(g, x, &f)
            : is_few    ? fold_few(g, x, &f)
                        : fold_many(g, x, &f);
    }
    return graph_cast(g, x, n.dtype);
}

bool pass_fold_lower(graph *g, arena *scratch) { return rewrite_dims(g, scratch, lower); }
