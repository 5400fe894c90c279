/* reduce_split.c - a reduction of many elements to few results becomes two: partial results of fixed chunks, then those.
 *
 * In: sum, prod, reduce_max, reduce_min of at least 2^16 elements to fewer than 64. Out: a reduction with enough results to
 * share among threads, and a small one. The chunks follow from the shape alone, so the result does not depend on the number of
 * threads. [order] for sum and prod, whose error becomes smaller; max and min are exact. Partial sums of f16 and bf16 stay in
 * f32. */
#include <math.h>

#include "pass/rewrite.h"

enum { CHUNK = 4096, MIN_PARTS = 16, MAX_PARTS = 1024 };

/* The longest run of reduced axes (unit axes in between do not matter): first and end axis. */
static int64_t find_run(const node *x, uint64_t axes, int *out_first, int *out_end) {
    int64_t best = 0;
    for (int i = 0; i < x->rank; i++) {
        if (!mask_has(axes, i)) continue;
        int64_t size = 1;
        int k = i;
        for (; k < x->rank && (mask_has(axes, k) || x->dims[k] == 1); k++) size *= x->dims[k];
        if (size > best) {
            best = size;
            *out_first = i;
            *out_end = k;
        }
    }
    return best;
}

/* What may be added to the elements without changing the result; false when the pad's double cannot say it. */
static bool identity_of(op_code op, tn_dtype t, double *out) {
    double low = t == TN_I8 ? -128 : t == TN_I32 ? -0x1p31 : 0, high = t == TN_I8 ? 127 : t == TN_I32 ? 0x1p31 - 1 : 255;
    bool is_float = dtype_is_float(t);
    *out = op == OP_sum          ? 0
           : op == OP_prod       ? 1
           : op == OP_reduce_max ? (is_float ? -INFINITY : low)
                                 : (is_float ? INFINITY : high);
    return op == OP_sum || op == OP_prod || is_float || t == TN_I8 || t == TN_I32 || t == TN_U8;
}

/* Elements of one chunk: a divisor of size near the wanted one when there is any. */
static int64_t choose_chunk(int64_t size, int64_t parts) {
    int64_t wanted = (size + parts - 1) / parts;
    for (int64_t d = 0; d <= wanted / 2; d++) {
        if (size % (wanted + d) == 0) return wanted + d;
        if (size % (wanted - d) == 0) return wanted - d;
    }
    return wanted;
}

/* x with axes [first, end) as one axis, padded to parts * chunk, as two axes. */
static val cut(graph *g, val v, int first, int end, int64_t size, int64_t chunk, double identity) {
    node x = *graph_get(g, v);
    int64_t dims[TN_MAX_RANK + 1], before[TN_MAX_RANK] = { 0 }, after[TN_MAX_RANK] = { 0 }, parts = (size + chunk - 1) / chunk;
    int rank = 0;
    for (int i = 0; i < first; i++) dims[rank++] = x.dims[i];
    dims[rank++] = size;
    for (int i = end; i < x.rank; i++) dims[rank++] = x.dims[i];
    if (parts * chunk != size) {
        after[first] = parts * chunk - size;
        v = graph_pad(g, graph_reshape(g, v, rank, dims), before, after, identity);
    }
    memmove(dims + first + 2, dims + first + 1, (size_t)(rank - first - 1) * sizeof *dims);
    dims[first] = parts;
    dims[first + 1] = chunk;
    return graph_reshape(g, v, rank + 1, dims);
}

static val split(graph *g, val v, arena *scratch) {
    (void)scratch;
    node n = *graph_get(g, v);
    if (op_get(n.op)->cls != CL_REDUCE || !splits_large_reduce(g, n.in[0], (uint64_t)n.attr[0])) return 0;
    node x = *graph_get(g, n.in[0]);
    uint64_t axes = (uint64_t)n.attr[0], inner = 0;
    int first = 0, end = 0;
    double identity;
    int64_t size = find_run(&x, axes, &first, &end), total = 1;
    for (int i = 0; i < x.rank; i++) total *= mask_has(axes, i) ? x.dims[i] : 1;
    int64_t parts = total / CHUNK < MIN_PARTS ? MIN_PARTS : total / CHUNK > MAX_PARTS ? MAX_PARTS : total / CHUNK;
    int64_t chunk = choose_chunk(size, parts < size ? parts : size);
    bool can_pad = identity_of(n.op, n.dtype, &identity);
    if (chunk >= size || (size % chunk != 0 && !can_pad) || x.rank - (end - first) + 2 > TN_MAX_RANK) return 0;

    bool is_half = (n.dtype == TN_F16 || n.dtype == TN_BF16) && (n.op == OP_sum || n.op == OP_prod);
    val c = cut(g, is_half ? graph_cast(g, n.in[0], TN_F32) : n.in[0], first, end, size, chunk, identity);
    for (int i = 0; i < x.rank; i++) /* axes of c: before the run, parts, chunk, after the run */
        if (mask_has(axes, i) && (i < first || i >= end)) inner |= UINT64_C(1) << (i < first ? i : i - end + first + 2);
    val partial = graph_reduce(g, n.op, c, inner | UINT64_C(1) << (first + 1));
    val r = graph_reduce(g, n.op, partial, UINT64_C(1) << first);
    return graph_reshape(g, graph_cast(g, r, n.dtype), n.rank, n.dims);
}

bool pass_reduce_split(graph *g, arena *scratch) { return rewrite_each(g, scratch, split); }
