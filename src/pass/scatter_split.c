/* scatter_split.c - many adds to few places become pieces of the adds, each with sums of its own, and the sum of those; few are
 * added to what their sums would be added to.
 *
 * In: scatter_add of 2^14 elements or more whose places are few beside its adds. Out: a scatter_add with the pieces as batch
 * axis, and a sum over it: something to share among threads where one add waits for the other. The pieces follow from the shape
 * alone, so the result does not depend on the number of threads. [order] for floats; integers are exact. Sums of f16 and bf16
 * stay in f32. */
#include "pass/rewrite.h"

enum {
    MIN_ELEMS = 1 << 14,
    MIN_PIECE = 1 << 11 /* elements of the adds */,
    MIN_PIECES = 4,
    MAX_PIECES = 768 /* many threads share them evenly */,
    MOST_SUMS = 1 << 18 /* side by side: more do not make it faster */,
    SHARE = 4 /* the adds are so many times as much as the pieces' sums */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t choose_pieces(int64_t adds, int64_t places, int64_t columns) {
    int64_t wanted = least(least(adds / (SHARE * places), adds * columns / MIN_PIECE), least(MOST_SUMS / columns, MAX_PIECES));
    for (int64_t p = wanted; p >= MIN_PIECES && p > wanted / 2; p--)
        if (adds % p == 0) return p;
    return wanted;
}

/* The adds as pieces of so many; more of them, that go nowhere, where the last piece has fewer. */
static val cut(graph *g, val v, int64_t adds, int64_t pieces, int64_t chunk, int64_t columns, double other) {
    int64_t before[2] = { 0 }, after[2] = { pieces * chunk - adds, 0 };
    int rank = columns ? 2 : 1;
    v = graph_reshape(g, v, rank, (int64_t[]){ adds, columns });
    if (after[0]) v = graph_pad(g, v, before, after, other);
    return graph_reshape(g, v, rank + 1, (int64_t[]){ pieces, chunk, columns });
}

static val split(graph *g, val v, arena *scratch) {
    (void)scratch;
    node n = *graph_get(g, v);
    if (n.op != OP_scatter_add || n.attr[1]) return 0;
    int axis = (int)n.attr[0];
    int64_t places = n.dims[axis], columns = 1, adds = graph_elems(g, n.in[1]);
    for (int i = 0; i < n.rank; i++) {
        if (i < axis && n.dims[i] != 1) return 0;
        if (i > axis) columns *= n.dims[i];
    }
    if (places == 0 || columns == 0 || graph_elems(g, n.in[2]) < MIN_ELEMS) return 0;
    int64_t pieces = choose_pieces(adds, places, columns);
    if (pieces < MIN_PIECES) return 0;
    int64_t chunk = (adds + pieces - 1) / pieces;
    tn_dtype t = dtype_is_narrow_float(n.dtype) ? TN_F32 : n.dtype;
    val index = cut(g, n.in[1], adds, pieces, chunk, 0, -1),
        x = cut(g, graph_cast(g, n.in[2], t), adds, pieces, chunk, columns, 0);
    val sums = graph_scatter_add(g, zeros(g, t, 3, (int64_t[]){ pieces, places, columns }), index, x, 1, 1);
    val all = graph_reshape(g, graph_reduce(g, OP_sum, sums, 1), n.rank, n.dims);
    if (splat_is(g, n.in[0], 0)) return graph_cast(g, all, n.dtype);
    return graph_cast(g, graph_binary(g, OP_add, graph_cast(g, n.in[0], t), all), n.dtype);
}

/* What few adds to nothing are added to, they are added to at once: it is neither stored nor read again. */
static val add_at_once(graph *g, val v, arena *scratch) {
    node n = *graph_get(g, v);
    for (int i = 0; i < 2 && n.op == OP_add; i++) {
        node s = *graph_get(g, n.in[i]);
        if (s.op == OP_scatter_add && splat_is(g, s.in[0], 0) && graph_used_once(g, n.in[i]) && n.in[0] != n.in[1])
            return graph_scatter_add(g, n.in[1 - i], s.in[1], s.in[2], (int)s.attr[0], (int)s.attr[1]);
    }
    return split(g, v, scratch);
}

bool pass_scatter_split(graph *g, arena *scratch) { return rewrite_each(g, scratch, add_at_once); }
