/* wide_scans.c - running sums in blocks of blocks become running sums in larger blocks, which a thread block makes at once
 * (loop/scan_rows.c).
 *
 * In: running sums, products, maxima or minima as nn/scan.c composes them: within blocks of w neighbours by a mask (k <= i, or
 * k < i), each block begun with what stands before it, which is a running sum of the totals of blocks. Out: where the totals
 * are scanned in blocks of u, blocks of w * u, a power of two up to MOST; and so with what is left. A mask of w * u has as many
 * terms as its square, of which the step leaves all but one an element out: for GPUs alone. [order] for sums and products. */
#include "pass/rewrite.h"

#include <math.h>

enum { LEAST = 32, MOST = 4096 };

typedef struct running { /* in blocks of w of x, as it lies */
    val x, none, start;  /* none: what a mask leaves; start: what each block begins with, 0: nothing */
    int64_t w;
    op_code op, join;
    bool before; /* without the element itself */
} running;

static val core(const graph *g, val v) {
    while (graph_get(g, v)->op == OP_reshape) v = graph_get(g, v)->in[0];
    return v;
}
/* The same elements in the same order: casts are where elements are few. */
static bool is_same(const graph *g, val x, val y) {
    for (;;) {
        const node *a = graph_get(g, x = core(g, x)), *b = graph_get(g, y = core(g, y));
        if (x == y) return true;
        if (a->op != OP_cast || b->op != OP_cast || a->dtype != b->dtype) return false;
        x = a->in[0], y = b->in[0];
    }
}
static int64_t count(const graph *g, val v) {
    int64_t n = 1;
    for (int i = 0; i < graph_get(g, v)->rank; i++) n *= graph_get(g, v)->dims[i];
    return n;
}
static int last_axis(const node *n) { /* of more than one element; -1: there is none */
    int i = n->rank - 1;
    while (i >= 0 && n->dims[i] == 1) i--;
    return i;
}

/* v[.., k] is only that of the block: what was expanded, where the last axis of v is what repeats. */
static val repeated(const graph *g, val v) {
    const node *e = graph_get(g, v = core(g, v)), *in = graph_get(g, e->in[0]);
    int axis = last_axis(e);
    if (e->op != OP_expand || axis < 0 || count(g, e->in[0]) * e->dims[axis] != count(g, v) || in->dims[axis] != 1) return 0;
    return e->in[0];
}

/* A reduction of neighbours, w of them or (0) any number. */
static bool is_total(const graph *g, const node *n, int64_t w) {
    if (op_get(n->op)->cls != CL_REDUCE || n->attr[0] & (n->attr[0] - 1)) return false;
    const node *in = graph_get(g, n->in[0]);
    int axis = last_axis(in);
    return axis >= 0 && n->attr[0] == (int64_t)1 << axis && (w == 0 || in->dims[axis] == w);
}

/* A comparison of two axes that leaves the last axis k up to the one before, i. */
static bool is_mask(const graph *g, val v, int64_t w, bool *before) {
    const node *n = graph_get(g, v);
    if (n->op == OP_expand) v = n->in[0];
    const node *c = graph_get(g, core(g, v)), *shape = graph_get(g, v);
    bool turned = c->op == OP_ge || c->op == OP_gt;
    *before = c->op == OP_lt || c->op == OP_gt;
    if (!turned && !*before && c->op != OP_le) return false;
    const node *k = graph_get(g, c->in[turned]), *i = graph_get(g, c->in[!turned]);
    int axis = last_axis(c), last = last_axis(shape);
    return k->op == OP_iota && i->op == OP_iota && axis >= 1 && last >= 1 && k->attr[0] == axis && i->attr[0] == axis - 1 &&
           c->dims[axis] == w && c->dims[axis - 1] == w && shape->dims[last] == w && shape->dims[last - 1] == w &&
           count(g, v) == w * w;
}

/* Within blocks alone. */
static bool match_blocks(const graph *g, val v, running *r) {
    const node *n = graph_get(g, v = core(g, v));
    if (!is_total(g, n, 0)) return false;
    const node *s = graph_get(g, n->in[0]);
    int k = last_axis(s);
    if (s->op != OP_select || k < 1) return false;
    int64_t w = s->dims[k];
    const node *e = graph_get(g, s->in[1]);
    if (w < 2 || s->dims[k - 1] != w || !is_splat(g, s->in[2]) || e->op != OP_expand || !is_mask(g, s->in[0], w, &r->before))
        return false;
    const node *x = graph_get(g, e->in[0]);
    if (x->dims[k] != w || x->dims[k - 1] != 1 || count(g, e->in[0]) * w != count(g, n->in[0])) return false;
    bool adds = n->op == OP_sum;
    const tn_dtype_info *t = dtype_info((tn_dtype)n->dtype);
    double low = t->kind == TN_KIND_FLOAT ? -INFINITY : t->lo, high = t->kind == TN_KIND_FLOAT ? INFINITY : t->hi;
    if (!splat_is(g, s->in[2], adds ? 0 : n->op == OP_prod ? 1 : n->op == OP_reduce_max ? low : high)) return false;
    r->x = core(g, e->in[0]), r->none = s->in[2], r->w = w, r->start = 0, r->op = n->op;
    r->join = adds ? OP_add : n->op == OP_prod ? OP_mul : n->op == OP_reduce_max ? OP_max : OP_min;
    return true;
}

static bool match(const graph *g, val v, running *r) {
    const node *n = graph_get(g, v = core(g, v));
    if (match_blocks(g, v, r)) return true;
    for (int side = 0; side < 2 && op_get(n->op)->cls == CL_NUM && n->n_in == 2; side++)
        if (match_blocks(g, n->in[side], r) && n->op == r->join && (r->start = repeated(g, n->in[!side])) != 0)
            return count(g, r->start) * r->w == count(g, v);
    return false;
}

/* What the blocks of x begin with, scanned in blocks of their totals. */
static bool match_start(const graph *g, val x, const running *r, running *next) {
    if (!r->start || !match(g, r->start, next) || !next->before || next->op != r->op) return false;
    const node *total = graph_get(g, next->x);
    return total->op == r->op && is_total(g, total, r->w) && is_same(g, total->in[0], x);
}

/* r in larger blocks, of x, which has the same value as r.x; 0: there are none, and it is r.x. */
static val widen(graph *g, running r, val x) {
    running next;
    val last = r.x; /* whose totals are scanned next */
    int64_t total = r.w, n = count(g, x), was = r.w;
    bool more = match_start(g, last, &r, &next);
    for (; more && next.w * total <= MOST && (next.w & (next.w - 1)) == 0; more = match_start(g, last, &r, &next))
        total *= next.w, last = next.x, r.w = next.w, r.start = next.start;
    if ((total == was || total < LEAST) && core(g, x) == r.x) return 0;
    int64_t blocks = n / total, dims[3] = { blocks, total, total }, one[3] = { 1, total, total };
    if (more) {
        val totals = graph_reduce(g, r.op, graph_reshape(g, x, 2, (int64_t[]){ blocks, total }), 1 << 1);
        r.start = widen(g, next, totals);
    }
    val i = graph_iota(g, TN_I32, 3, one, 1), k = graph_iota(g, TN_I32, 3, one, 2);
    val mask = graph_expand(g, graph_binary(g, r.before ? OP_lt : OP_le, k, i), dims);
    val terms = graph_expand(g, graph_reshape(g, x, 3, (int64_t[]){ blocks, 1, total }), dims);
    val y = graph_reduce(g, r.op, graph_select(g, mask, terms, splat_resize(g, r.none, 3, dims)), 1 << 2);
    if (!r.start) return y;
    val start = graph_expand(g, graph_reshape(g, r.start, 3, (int64_t[]){ blocks, 1, 1 }), (int64_t[]){ blocks, total, 1 });
    return graph_binary(g, r.join, start, y);
}

static val rule(graph *g, val v, arena *scratch) {
    (void)scratch;
    running r;
    node n = *graph_get(g, v);
    if (n.op == OP_reshape || !match(g, v, &r) || r.before) return 0;
    val y = widen(g, r, r.x);
    return y ? graph_reshape(g, y, n.rank, n.dims) : 0;
}

bool pass_wide_scans(graph *g, arena *scratch) { return rewrite_each(g, scratch, rule); }
