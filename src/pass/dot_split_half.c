/* dot_split_half.c - a long contraction of f16 or bf16 with few results becomes several short ones, whose sums of f32 are
 * added: for machines with matrix units, whose tiles would leave most of them idle.
 *
 * In: any graph. Out: a contraction of many steps whose results make few tiles has parts of its outermost contracted axis as
 * another batch axis: so the steps of a part lie in memory as they did. A part may be parted once more. The parts are added one
 * after the other, in f32, and the sum is rounded once, so it is what the whole one would have rounded, in another order
 * [order]. They are slices that are added, not a reduction: what comes behind reads them where it needs them, also across a
 * border. So it can leave out rows: those of a convolution go on across the ends of an image's lines. */
#include "pass/rewrite.h"

enum {
    MIN_STEPS = 512 /* of the contraction */,
    MIN_PART = 192 /* steps of a part */,
    MIN_SIDE = 16 /* rows, and columns, of the result */,
    TILE = 64 /* rows that a thread block has at least */,
    FEW_TILES = 64 /* of a convolution, whose lines leave rows of tiles empty; a product has fewer */,
    WANTED_TILES = 256,
    MOST_ADDED = 16 /* parts; more are a reduction */,
    MOST_DEPTH = 6 /* of elementwise work on an operand */
};

/* Operand x lies in memory in 16 bits; not what is rounded as it is copied, since a tile has all rows that read it
 * (sched/analyse.c). */
static bool is_half(const graph *g, const node *d, const dot_sizes *s, int x) {
    const node *n = graph_get(g, d->in[x]);
    while (n->op == OP_reshape) n = graph_get(g, n->in[0]);
    bool half = dtype_is_narrow_float(n->dtype),
         from = n->op == OP_cast && dtype_is_narrow_float(graph_get(g, n->in[0])->dtype);
    return half ? n->op != OP_cast || from || s->side[!x] > TILE : from;
}

/* v is computed from exp(scores - a number of their row): weights of attention, or their gradient. Their contractions stay
 * whole, so that attention is one kernel (sched/attention_fusion.c). dot_may_split knows the weights alone. */
static bool is_of_weights(const graph *g, val v, int depth) {
    const node *n = graph_get(g, v);
    if (depth == 0) return false;
    if (n->op == OP_exp) {
        const node *x = graph_get(g, n->in[0]);
        while (x->op == OP_cast || x->op == OP_reshape) x = graph_get(g, x->in[0]);
        return x->op == OP_sub && dot_spreads(g, x->in[1]);
    }
    if (n->op == OP_cast || n->op == OP_reshape) return is_of_weights(g, n->in[0], depth);
    bool either = n->op == OP_mul || n->op == OP_div || n->op == OP_sub || n->op == OP_add || n->op == OP_select;
    int first = n->op == OP_select; /* not its condition */
    return either && (is_of_weights(g, n->in[first], depth - 1) || is_of_weights(g, n->in[first + 1], depth - 1));
}

static int64_t wanted_parts(const graph *g, const node *d, const dot_sizes *s) {
    /* Of 64 full tiles two parts are no gain: 512 x 512 x 512 took 3.23 us on an H200, whole 3.12. */
    bool convolution = graph_get(g, d->in[0])->op == OP_window;
    int64_t tiles = dot_tiles(s) + !convolution;
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

/* A convolution in steps of 1 over a border, whose lines are shorter than a tile: its positions go on behind the end of a line,
 * so that tiles have rows of several. Nobody reads what those behind the end are. (14 x 14 results make 4 tiles for 14.) */
static val flat(graph *g, const node *d, dot_sizes s) {
    node w = *graph_get(g, d->in[0]);
    if (d->rank != 4 || d->attr[0] || d->attr[1] != 3 || w.op != OP_window || w.attr[0] != 2 || !graph_used_once(g, d->in[0]))
        return 0;
    const int64_t *of = w.attr + 1, *along = w.attr + 5; /* axis, size, stride, dilation: of lines, and along one */
    node x = *graph_get(g, w.in[0]);
    if (x.op != OP_pad || x.rank != 4 || of[0] != 1 || along[0] != 2 || of[2] != 1 || along[2] != 1) return 0;
    int64_t n = x.dims[0], lines = x.dims[1], line = x.dims[2], steps[3],
            more = (of[1] - 1) * of[3] * line + (along[1] - 1) * along[3], rows = n * lines * line - more;
    s.side[0] = rows;
    if (w.dims[2] >= TILE || (rows + TILE - 1) / TILE >= n * w.dims[1] || wanted_parts(g, d, &s) < 2) return 0;
    for (int i = 0; i < 3; i++) {
        if (d->attr[2 + i] < 3) return 0; /* no offset, and no channel */
        steps[i] = d->attr[2 + i] - 1;
    }
    val y = graph_reshape(g, w.in[0], 3, (int64_t[]){ 1, rows + more, x.dims[3] });
    y = graph_window(g, y, &(window_axis){ 1, of[1], 1, of[3] * line }, 1);
    y = graph_window(g, y, &(window_axis){ 1, along[1], 1, along[3] }, 1);
    y = graph_dot(g, y, d->in[1], NULL, NULL, 0, steps, d->attr + 5, 3);
    y = graph_pad(g, y, (int64_t[]){ 0, 0, 0 }, (int64_t[]){ 0, more, 0 }, 0);
    y = graph_reshape(g, y, 4, (int64_t[]){ n, lines, line, d->dims[3] });
    return graph_slice(g, y, (int64_t[]){ 0, 0, 0, 0 }, d->dims, NULL);
}

static val split(graph *g, val v, arena *scratch) {
    (void)scratch;
    node d = *graph_get(g, v);
    if ((d.dtype != TN_F32 && !dtype_is_narrow_float(d.dtype)) || !dot_may_split(g, &d)) return 0;
    dot_sizes s = dot_sizes_of(g, &d);
    for (int x = 0; x < 2; x++)
        if (!is_half(g, &d, &s, x) || is_of_weights(g, d.in[x], MOST_DEPTH)) return 0;
    int nb = (int)d.attr[0], nc = (int)d.attr[1], which = -1;
    int64_t most = wanted_parts(g, &d, &s), outermost = TN_MAX_RANK;
    for (int i = 0; i < nc && most > 1; i++) {
        int64_t axis = d.attr[2 + 2 * nb + nc + i];
        if (axis < outermost && dot_divisor(graph_get(g, d.in[1])->dims[axis], most) > 1) outermost = axis, which = i;
    }
    val y = which < 0 ? 0 : flat(g, &d, s);
    if (which < 0 || y) return y;
    int64_t parts = dot_divisor(graph_get(g, d.in[1])->dims[outermost], most);
    val sums = dot_in_parts(g, v, which, parts, TN_F32);
    return graph_cast(g, graph_reshape(g, add_parts(g, sums), d.rank, d.dims), d.dtype);
}

bool pass_dot_split_half(graph *g, arena *scratch) { return rewrite_each(g, scratch, split); }
