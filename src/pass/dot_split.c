/* dot_split.c - a long contraction with few results becomes several short ones, and their sum: for machines that share out
 * results, of which there would be too few.
 *
 * In: any graph. Out: a contraction of at least MIN_STEPS steps whose results make few tiles has another batch axis, a part of
 * one of its contracted axes, and is summed over it. The parts follow from the shape alone. [order] for floats; integers are
 * exact. f16 and bf16, whose sums would be rounded between, are left alone (dot_split_half.c has them where matrix units are),
 * and so are vectors times a matrix: those wait for memory, not for each other. dot_batch would undo it, so it is none of the
 * standard list: whoever compiles for such a machine runs it last. */
#include "pass/rewrite.h"

enum {
    MIN_STEPS = 1024 /* of the contraction */,
    MIN_PART = 256 /* steps of a part */,
    MIN_SIDE = 16 /* rows, and columns, of the result */,
    TILE = 64 /* rows, and columns, that are shared out at once */,
    FEW_TILES = 128,
    WANTED_TILES = 512 /* on an H200 between 256 and 1024 differ by less than 15 % */,
    MIN_WORK = 1 << 25 /* multiply-adds: below, one more kernel costs more than it brings */
};

dot_sizes dot_sizes_of(const graph *g, const node *d) {
    dot_sizes s = { 1, 1, { 1, 1 } };
    int nb = (int)d->attr[0], nc = (int)d->attr[1];
    for (int x = 0; x < 2; x++) {
        const node *in = graph_get(g, d->in[x]);
        int64_t batch = 1, steps = 1, all = 1;
        for (int i = 0; i < nb; i++) batch *= in->dims[d->attr[2 + x * nb + i]];
        for (int i = 0; i < nc; i++) steps *= in->dims[d->attr[2 + 2 * nb + x * nc + i]];
        for (int i = 0; i < in->rank; i++) all *= in->dims[i];
        s.batch = batch, s.steps = steps, s.side[x] = all ? all / (batch * steps) : 0;
    }
    return s;
}

static int64_t tiles_along(int64_t n) { return (n + TILE - 1) / TILE; }
int64_t dot_tiles(const dot_sizes *s) { return s->batch * tiles_along(s->side[0]) * tiles_along(s->side[1]); }

/* In how many parts; 0: as it is. */
static int64_t wanted_parts(const dot_sizes *s) {
    if (s->steps < MIN_STEPS || s->side[0] < MIN_SIDE || s->side[1] < MIN_SIDE) return 0;
    int64_t tiles = dot_tiles(s);
    if (tiles > FEW_TILES || s->steps < MIN_WORK / (s->batch * s->side[0] * s->side[1])) return 0;
    int64_t most = s->steps / MIN_PART, wanted = WANTED_TILES / tiles;
    return wanted < most ? wanted : most;
}

int64_t dot_divisor(int64_t n, int64_t most) {
    int64_t p = most < n ? most : n;
    while (n % p) p--;
    return p;
}

/* Axis i of v as two axes. */
static val cut(graph *g, val v, int axis, int64_t parts) {
    node n = *graph_get(g, v);
    int64_t dims[TN_MAX_RANK + 1];
    memcpy(dims, n.dims, (size_t)n.rank * sizeof *dims);
    memmove(dims + axis + 1, dims + axis, (size_t)(n.rank - axis) * sizeof *dims);
    dims[axis] = parts, dims[axis + 1] /= parts;
    return graph_reshape(g, v, n.rank + 1, dims);
}

bool dot_spreads(const graph *g, val v) {
    while (graph_get(g, v)->op == OP_reshape) v = graph_get(g, v)->in[0];
    return graph_get(g, v)->op == OP_expand;
}

/* The operand is a softmax that nothing else needs, of what another contraction made: attention, which is one kernel where its
 * contractions stay whole (sched/attention_fusion.c). */
static bool is_softmax(const graph *g, val v) {
    bool power = false;
    for (int depth = 0; depth < 12; depth++) {
        const node *n = graph_get(g, v);
        if (n->op == OP_dot) return power;
        if (!power && n->op != OP_exp && graph_n_uses(g, v) > 1) return false;
        power |= n->op == OP_exp;
        bool scaled = (n->op == OP_mul || n->op == OP_div) && (power || dot_spreads(g, n->in[1]));
        if (n->op == OP_select)
            v = n->in[1];
        else if (n->op == OP_exp || n->op == OP_cast || n->op == OP_reshape || n->op == OP_sub || n->op == OP_add || scaled)
            v = n->in[0];
        else
            return false;
    }
    return false;
}

static bool takes_softmax(const graph *g, const node *d) { return is_softmax(g, d->in[0]) || is_softmax(g, d->in[1]); }

bool dot_may_split(const graph *g, const node *d) {
    return d->op == OP_dot && d->rank < TN_MAX_RANK && graph_get(g, d->in[0])->rank < TN_MAX_RANK &&
           graph_get(g, d->in[1])->rank < TN_MAX_RANK && !takes_softmax(g, d);
}

val dot_in_parts(graph *g, val v, int which, int64_t parts, tn_dtype t) {
    node d = *graph_get(g, v);
    int nb = (int)d.attr[0], nc = (int)d.attr[1];
    int64_t batch[2][TN_MAX_RANK], contract[2][TN_MAX_RANK];
    val in[2];
    for (int x = 0; x < 2; x++) {
        int64_t axis = d.attr[2 + 2 * nb + x * nc + which];
        for (int i = 0; i < nb; i++) batch[x][i + 1] = d.attr[2 + x * nb + i] + (d.attr[2 + x * nb + i] > axis);
        for (int i = 0; i < nc; i++)
            contract[x][i] = d.attr[2 + 2 * nb + x * nc + i] + (d.attr[2 + 2 * nb + x * nc + i] >= axis);
        batch[x][0] = axis;
        in[x] = graph_cast(g, cut(g, d.in[x], (int)axis, parts), t);
    }
    return graph_dot(g, in[0], in[1], batch[0], batch[1], nb + 1, contract[0], contract[1], nc);
}

static val split(graph *g, val v, arena *scratch) {
    (void)scratch;
    node d = *graph_get(g, v);
    if (!dot_may_split(g, &d) || dtype_is_narrow_float(d.dtype)) return 0;
    dot_sizes s = dot_sizes_of(g, &d);
    int nb = (int)d.attr[0], nc = (int)d.attr[1], which = -1;
    int64_t most = wanted_parts(&s), parts = 1;
    for (int i = 0; i < nc && most > 1; i++) {
        int64_t p = dot_divisor(graph_get(g, d.in[0])->dims[d.attr[2 + 2 * nb + i]], most);
        if (p > parts) parts = p, which = i;
    }
    if (parts < 2) return 0;
    val sums = dot_in_parts(g, v, which, parts, (tn_dtype)graph_get(g, d.in[0])->dtype);
    return graph_reshape(g, graph_reduce(g, OP_sum, sums, 1), d.rank, d.dims);
}

bool pass_dot_split(graph *g, arena *scratch) { return rewrite_each(g, scratch, split); }
