/* dot_split_half.c - a long contraction of f16 or bf16 with few results becomes several short ones, whose sums of f32 are
 * added: for machines with matrix units, whose tiles would leave most of them idle.
 *
 * In: any graph. Out: a contraction of many steps whose results make few tiles has parts of its outermost contracted axis as
 * another batch axis: so the steps of a part lie in memory as they did. A part may be parted once more. The parts are added one
 * after the other, in f32, and the sum is rounded once, so it is what the whole one would have rounded, in another order
 * [order]. They are slices that are added, not a reduction: what comes behind reads them where it needs them, also across a
 * border. */
#include "pass/rewrite.h"

enum {
    MIN_STEPS = 1024 /* of the contraction: 16 K blocks, 3 us on an H200 */,
    MIN_PART = 256 /* steps of a part */,
    MIN_SIDE = 16 /* rows, and columns, of the result */,
    FEW_TILES = 32,
    WANTED_TILES = 128,
    MOST_ADDED = 16 /* parts; more are a reduction */
};

static bool is_half(const graph *g, val v) {
    while (graph_get(g, v)->op == OP_cast) v = graph_get(g, v)->in[0];
    return dtype_is_narrow_float(graph_get(g, v)->dtype);
}

static int64_t wanted_parts(const dot_sizes *s) {
    int64_t tiles = dot_tiles(s);
    if (s->steps < MIN_STEPS || s->side[0] < MIN_SIDE || s->side[1] < MIN_SIDE || tiles > FEW_TILES) return 1;
    int64_t most = s->steps / MIN_PART, wanted = WANTED_TILES / tiles;
    return wanted < most ? wanted : most;
}

static val add_parts(graph *g, val sums) {
    node n = *graph_get(g, sums);
    int64_t from[TN_MAX_RANK] = { 0 }, counts[TN_MAX_RANK], parts = n.dims[0];
    if (parts > MOST_ADDED) return graph_reduce(g, OP_sum, sums, 1);
    memcpy(counts, n.dims, (size_t)n.rank * sizeof *counts);
    counts[0] = 1;
    val sum = graph_slice(g, sums, from, counts, NULL);
    for (from[0] = 1; from[0] < parts; from[0]++) sum = graph_binary(g, OP_add, sum, graph_slice(g, sums, from, counts, NULL));
    return sum;
}

static val split(graph *g, val v, arena *scratch) {
    (void)scratch;
    node d = *graph_get(g, v);
    if ((d.dtype != TN_F32 && !dtype_is_narrow_float(d.dtype)) || !dot_may_split(g, &d) || !is_half(g, d.in[0]) ||
        !is_half(g, d.in[1]))
        return 0;
    dot_sizes s = dot_sizes_of(g, &d);
    int nb = (int)d.attr[0], nc = (int)d.attr[1], which = -1;
    int64_t most = wanted_parts(&s), outermost = TN_MAX_RANK;
    for (int i = 0; i < nc && most > 1; i++) {
        int64_t axis = d.attr[2 + 2 * nb + nc + i];
        if (axis < outermost && dot_divisor(graph_get(g, d.in[1])->dims[axis], most) > 1) outermost = axis, which = i;
    }
    if (which < 0) return 0;
    int64_t parts = dot_divisor(graph_get(g, d.in[1])->dims[outermost], most);
    val sums = dot_in_parts(g, v, which, parts, TN_F32);
    return graph_cast(g, graph_reshape(g, add_parts(g, sums), d.rank, d.dims), d.dtype);
}

bool pass_dot_split_half(graph *g, arena *scratch) { return rewrite_each(g, scratch, split); }
