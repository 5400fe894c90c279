/* scan.c - running sums, products and extremes as parallel scans (tenon_index.h).
 *
 * In: a tensor and an axis. Out: blocks of BLOCK elements, in each of which an element is combined with those before it through
 * windows that begin before the block; the totals of blocks are scanned in turn, each without itself, and what stands before a
 * block is combined with its elements (Blelloch, Prefix Sums and Their Applications, 1990). No element is combined with one
 * behind it, so that a NaN or an infinity stays where it belongs. src/pass/wide_scans.c makes larger blocks of it for GPUs. */
#include "nn.h"

#include "tenon/tenon_index.h"

#include <math.h>

enum { BLOCK = 16, SIDE_BY_SIDE = 8, MANY = 1 << 14, VERY_MANY = 1 << 18, MANY_TOTALS = 1 << 10 };

typedef struct scan {
    tn_scan_mode mode;
    tn_scatter_mode identity;
    tn_tensor (*reduce)(tn_tensor, const int64_t *, int, int);
    tn_tensor (*combine)(tn_tensor, tn_tensor);
} scan;

static const scan kinds[] = { { TN_SCAN_SUM, TN_SCATTER_ADD, tn_sum, tn_add },
                              { TN_SCAN_PROD, TN_SCATTER_MUL, tn_prod, tn_mul },
                              { TN_SCAN_MAX, TN_SCATTER_MAX, tn_reduce_max, tn_max },
                              { TN_SCAN_MIN, TN_SCATTER_MIN, tn_reduce_min, tn_min } };

double nn_identity(tn_dtype t, tn_scatter_mode mode) {
    const tn_dtype_info *i = tn_dtype_get_info(t);
    bool is_float = i->kind == TN_KIND_FLOAT;
    double low = is_float ? -INFINITY : i->lo, high = is_float ? INFINITY : i->hi;
    return mode == TN_SCATTER_MUL ? 1 : mode == TN_SCATTER_MAX ? low : mode == TN_SCATTER_MIN ? high : 0;
}
tn_tensor nn_complement(tn_tensor x) { return tn_sub(nn_scalar(x, -1), x); }

static tn_tensor edged(tn_tensor x, const scan *k, int axis, int64_t before, int64_t after) {
    int64_t b[TN_MAX_RANK] = { 0 }, a[TN_MAX_RANK] = { 0 };
    b[axis] = before, a[axis] = after;
    if (!before && !after) return x;
    return tn_pad(x, b, a, tn_tensor_shape(x).rank, nn_identity(tn_tensor_dtype(x), k->identity));
}
static tn_tensor first(tn_tensor x, int axis, int64_t n) {
    tn_shape s = tn_tensor_shape(x);
    int64_t start[TN_MAX_RANK] = { 0 };
    if (s.rank < 0 || s.dim[axis] == n) return x;
    s.dim[axis] = n;
    return tn_slice(x, start, s.dim, NULL, s.rank);
}

/* Each element of the last axis but one of x [outer,blocks,size,inner] with those before it in its block, or only these:
 * through windows that move by one, or, where too few elements lie side by side for vectors of them, through all of the block
 * and a mask. */
static tn_tensor within_blocks(tn_tensor x, const scan *k, int64_t size, bool before) {
    tn_shape s = tn_tensor_shape(x);
    int64_t axis = 2, one = 1, last = 4;
    if (s.rank < 0) return x;
    if (s.dim[3] >= SIDE_BY_SIDE)
        return k->reduce(
            tn_window(edged(before ? first(x, 2, size - 1) : x, k, 2, size - 1 + before, 0), &axis, &size, &one, &one, 1),
            &last, 1, 0);
    tn_tensor to = tn_iota(x.graph, TN_I32, TN_DIMS(size, size, 1), 0),
              at = tn_iota(x.graph, TN_I32, TN_DIMS(size, size, 1), 1);
    tn_tensor all = tn_reshape(x, TN_DIMS(nn_times(x.graph, s.dim[0], s.dim[1]), 1, size, s.dim[3]));
    all = tn_select(before ? tn_lt(at, to) : tn_le(at, to), all, nn_scalar(x, nn_identity(tn_tensor_dtype(x), k->identity)));
    return tn_reshape(k->reduce(all, &axis, 1, 0), s);
}

/* How many elements the n of an axis become, a multiple of: blocks of BLOCK blocks are whole, too, of which larger ones can be
 * made. Where n needs no more elements to be blocks it gets none; totals are few. */
static int64_t unit_of(int64_t n, bool totals) {
    int64_t most = n > VERY_MANY ? BLOCK * BLOCK * BLOCK : n > (totals ? MANY_TOTALS : MANY) ? BLOCK * BLOCK : BLOCK;
    return !totals && n % BLOCK == 0 && n % most != 0 ? BLOCK : most;
}

/* x [outer,n,inner]; before: each element gets what stands before it; unit: of n, 0: any. */
static tn_tensor scan_middle(tn_tensor x, const scan *k, int64_t unit, bool before) {
    tn_shape s = tn_tensor_shape(x);
    if (s.rank < 0 || s.dim[1] <= 1) return x;
    int64_t n = s.dim[1], axis = 2;
    if (n <= BLOCK) return tn_reshape(within_blocks(tn_reshape(x, TN_DIMS(s.dim[0], 1, n, s.dim[2])), k, n, before), s);
    if (unit <= 1) unit = unit_of(n, before);
    int64_t whole = (n / unit + (n % unit != 0)) * unit, blocks = whole / BLOCK;
    x = tn_reshape(edged(x, k, 1, 0, whole - n), TN_DIMS(s.dim[0], blocks, BLOCK, s.dim[2]));
    tn_tensor totals = tn_reshape(k->reduce(x, &axis, 1, 0), TN_DIMS(s.dim[0], blocks, s.dim[2]));
    tn_tensor start = tn_reshape(scan_middle(totals, k, unit / BLOCK, true), TN_DIMS(s.dim[0], blocks, 1, s.dim[2]));
    tn_tensor y = k->combine(start, within_blocks(x, k, BLOCK, before));
    return first(tn_reshape(y, TN_DIMS(s.dim[0], whole, s.dim[2])), 1, n);
}

static tn_tensor scan_axis(tn_tensor x, int axis, const scan *k, tn_cumulative_opts opts) {
    tn_shape s = tn_tensor_shape(x), flat = { 3, { 1, s.dim[axis], 1 } };
    int64_t a = axis, n = s.dim[axis], most = nn_most(x.graph, n);
    if (n < 0) { /* a run gives the size: up to the most that it may be, behind what there is */
        bool reverse = opts.reverse != 0;
        opts.reverse = 0;
        x = edged(reverse ? tn_flip(x, &a, 1) : x, k, axis, 0, nn_plus(x.graph, nn_times(x.graph, n, -1), most));
        x = first(scan_axis(x, axis, k, opts), axis, n);
        return reverse ? tn_flip(x, &a, 1) : x;
    }
    if (k->mode == TN_SCAN_MIN && tn_tensor_dtype(x) == TN_I64)
        return nn_complement(scan_axis(nn_complement(x), axis, &kinds[TN_SCAN_MAX], opts));
    for (int i = 0; i < s.rank; i++)
        if (i != axis) flat.dim[i < axis ? 0 : 2] = nn_times(x.graph, flat.dim[i < axis ? 0 : 2], s.dim[i]);
    if (opts.reverse) x = tn_flip(x, &a, 1);
    if (opts.exclusive && s.dim[axis] > 0) x = edged(first(x, axis, s.dim[axis] - 1), k, axis, 1, 0);
    x = tn_reshape(scan_middle(tn_reshape(x, flat), k, 0, false), s);
    return opts.reverse ? tn_flip(x, &a, 1) : x;
}

static tn_tensor cumulative(tn_tensor x, const char *fn, int axis, tn_scan_mode mode, tn_cumulative_opts opts) {
    int a = 0;
    tn_dtype t = tn_tensor_dtype(x);
    if (!nn_axis(x, fn, axis, &a)) return (tn_tensor){ x.graph, 0 };
    if ((unsigned)mode > TN_SCAN_MIN) return nn_fail(x.graph, TN_ERR_INVAL, "%s: there is no mode %d", fn, (int)mode);
    bool half = t == TN_F16 || t == TN_BF16;
    tn_tensor y = scan_axis(half ? tn_cast(x, TN_F32) : x, a, &kinds[mode], opts);
    return half ? tn_cast(y, t) : y;
}
tn_tensor tn_cumulative(tn_tensor x, int axis, tn_scan_mode mode, tn_cumulative_opts opts) {
    return cumulative(x, "tn_cumulative", axis, mode, opts);
}
tn_tensor tn_nn_cumsum(tn_tensor x, int axis) {
    return cumulative(x, "tn_nn_cumsum", axis, TN_SCAN_SUM, (tn_cumulative_opts){ 0 });
}
tn_tensor tn_nn_cumprod(tn_tensor x, int axis) {
    return cumulative(x, "tn_nn_cumprod", axis, TN_SCAN_PROD, (tn_cumulative_opts){ 0 });
}
