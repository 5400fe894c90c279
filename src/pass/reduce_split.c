/* reduce_split.c - a reduction of many elements to few results becomes two: partial results of fixed chunks, then those.
 *
 * In: sum, prod, reduce_max, reduce_min of at least 2^16 elements to fewer than 64. Out: a reduction with enough results to
 * share among threads, and a small one; where no chunk divides, what is left behind the last whole one is reduced by itself.
 * The chunks follow from the shape alone, so the result does not depend on the number of threads. [order] for sum and prod,
 * whose error becomes smaller; max and min are exact. Partial sums of f16 and bf16 stay in f32. */
#include "pass/rewrite.h"

enum { CHUNK = 4096, MIN_PARTS = 16, MAX_PARTS = 1024, OF_RUN = 1024 /* elements of a part of as many as a run has */ };

/* At least 2^16 elements behind each of fewer than 64 results: one result a thread would leave most cores idle. Along one axis
 * there may be as many as a run says: at most. */
bool splits_large_reduce(const graph *g, val x, uint64_t axes) {
    const node *n = graph_get(g, x);
    int64_t kept = 1, reduced = 1, of_run = 0;
    for (int i = 0; i < n->rank; i++) {
        bool lit = ext_is_lit(n->dims[i]);
        if (!lit && (of_run || !mask_has(axes, i))) return false;
        if (!lit)
            of_run = ext_hi(g->params, n->dims[i]);
        else if (mask_has(axes, i))
            reduced *= n->dims[i];
        else
            kept *= n->dims[i];
    }
    if (of_run) reduced *= of_run < 1 << 16 ? of_run : 1 << 16;
    return reduced >= 1 << 16 && kept > 0 && kept < 64;
}

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

/* Elements of one chunk: a divisor of size near the wanted one when there is any. */
static int64_t choose_chunk(int64_t size, int64_t parts) {
    int64_t wanted = (size + parts - 1) / parts;
    for (int64_t d = 0; d <= wanted / 2; d++) {
        if (size % (wanted + d) == 0) return wanted + d;
        if (size % (wanted - d) == 0) return wanted - d;
    }
    return wanted;
}

/* x with axes [first, end) as one axis (chunk 0), or as two: parts, chunk. */
static val cut(graph *g, val v, int first, int end, int64_t size, int64_t chunk) {
    node x = *graph_get(g, v);
    int64_t dims[TN_MAX_RANK + 1];
    int rank = 0;
    for (int i = 0; i < first; i++) dims[rank++] = x.dims[i];
    dims[rank++] = chunk ? size / chunk : size;
    if (chunk) dims[rank++] = chunk;
    for (int i = end; i < x.rank; i++) dims[rank++] = x.dims[i];
    return graph_reshape(g, v, rank, dims);
}

/* Elements [from, from + count) of an axis. */
static val part(graph *g, val v, int axis, int64_t from, int64_t count) {
    node x = *graph_get(g, v);
    int64_t start[TN_MAX_RANK] = { 0 }, counts[TN_MAX_RANK];
    for (int i = 0; i < x.rank; i++) counts[i] = x.dims[i];
    start[axis] = from, counts[axis] = count;
    return graph_slice(g, v, start, counts, NULL);
}

static op_code joins(op_code op) {
    return op == OP_sum ? OP_add : op == OP_prod ? OP_mul : op == OP_reduce_max ? OP_max : OP_min;
}

/* An axis of the run: other axes first; else whole parts of it, of which there may be none, and what is left. */
static val split_of_run(graph *g, const node *n, val in, int axis) {
    node x = *graph_get(g, in);
    uint64_t own = UINT64_C(1) << axis, others = 0;
    int64_t dims[TN_MAX_RANK];
    for (int i = 0; i < x.rank; i++)
        if (i != axis && mask_has((uint64_t)n->attr[0], i) && x.dims[i] != 1) others |= UINT64_C(1) << i;
    if (others) return graph_reduce(g, n->op, graph_reduce(g, n->op, in, others), (uint64_t)n->attr[0] & ~others);
    if (x.rank == TN_MAX_RANK || ext_hi(g->params, x.dims[axis]) < 2 * OF_RUN) return 0;
    ext size = x.dims[axis], parts = ext_floor_div(g->params, size, OF_RUN), whole = ext_mul(g->params, parts, OF_RUN),
        left = ext_min(g->params, ext_sub(g->params, size, whole), OF_RUN - 1);
    for (int i = 0, to = 0; i < x.rank; i++) {
        dims[to++] = i == axis ? parts : x.dims[i];
        if (i == axis) dims[to++] = OF_RUN;
    }
    val parted = graph_reshape(g, part(g, in, axis, 0, whole), x.rank + 1, dims);
    val all = graph_reduce(g, n->op, graph_reduce(g, n->op, parted, own << 1), own);
    val rest = graph_reduce(g, n->op, part(g, in, axis, whole, left), own);
    node shape = *graph_get(g, rest);
    return graph_binary(g, joins(n->op), graph_reshape(g, all, shape.rank, shape.dims), rest);
}

static val split(graph *g, val v, arena *scratch) {
    (void)scratch;
    node n = *graph_get(g, v);
    if (op_get(n.op)->cls != CL_REDUCE || !splits_large_reduce(g, n.in[0], (uint64_t)n.attr[0])) return 0;
    for (int i = 0; i < graph_get(g, n.in[0])->rank; i++) {
        if (ext_is_lit(graph_get(g, n.in[0])->dims[i])) continue;
        bool narrow = dtype_is_narrow_float(n.dtype) && (n.op == OP_sum || n.op == OP_prod);
        val r = split_of_run(g, &n, narrow ? graph_cast(g, n.in[0], TN_F32) : n.in[0], i);
        return r ? graph_cast(g, r, n.dtype) : 0;
    }
    node x = *graph_get(g, n.in[0]);
    uint64_t axes = (uint64_t)n.attr[0], others = 0, inner = 0;
    int first = 0, end = 0;
    int64_t size = find_run(&x, axes, &first, &end), total = 1;
    for (int i = 0; i < x.rank; i++) total *= mask_has(axes, i) ? x.dims[i] : 1;
    int64_t parts = total / CHUNK < MIN_PARTS ? MIN_PARTS : total / CHUNK > MAX_PARTS ? MAX_PARTS : total / CHUNK;
    int64_t chunk = choose_chunk(size, parts < size ? parts : size), whole = size / chunk * chunk;
    if (chunk >= size || x.rank - (end - first) + 2 > TN_MAX_RANK) return 0;

    bool is_half = dtype_is_narrow_float(n.dtype) && (n.op == OP_sum || n.op == OP_prod);
    val in = is_half ? graph_cast(g, n.in[0], TN_F32) : n.in[0], flat = 0;
    if (whole < size) flat = cut(g, in, first, end, size, 0);
    val parted =
        flat ? cut(g, part(g, flat, first, 0, whole), first, first + 1, whole, chunk) : cut(g, in, first, end, size, chunk);
    for (int i = 0; i < x.rank; i++) { /* axes before the run, the run, after it; in `inner` the run is two: parts, chunk */
        if (!mask_has(axes, i) || (i >= first && i < end)) continue;
        others |= UINT64_C(1) << (i < first ? i : i - end + first + 1);
        inner |= UINT64_C(1) << (i < first ? i : i - end + first + 2);
    }
    val partial = graph_reduce(g, n.op, parted, inner | UINT64_C(1) << (first + 1));
    val r = graph_reduce(g, n.op, partial, UINT64_C(1) << first);
    if (flat) { /* masks in the chunks would cost more than what is left by itself */
        val rest = graph_reduce(g, n.op, part(g, flat, first, whole, size - whole), others | UINT64_C(1) << first);
        node shape = *graph_get(g, rest);
        r = graph_binary(g, joins(n.op), graph_reshape(g, r, shape.rank, shape.dims), rest);
    }
    return graph_reshape(g, graph_cast(g, r, n.dtype), n.rank, n.dims);
}

bool pass_reduce_split(graph *g, arena *scratch) { return rewrite_dims(g, scratch, split); }
