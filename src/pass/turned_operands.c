/* turned_operands.c - an operand of a contraction with sizes of a run lies in memory with its columns side by side: literal
 * sizes would be copied into panels as they are read (loop/pack.c), which takes none of a run. Vectors run along the columns
 * then, not along a short sum, whose lanes had to be added up for each result.
 *
 * In: a dot of floats whose right operand is summed along its last axis, that is short, and read for several rows, as the keys
 * of attention are; or is a view of such. Out: the same of the operand permuted, in memory. Where a softmax of these scores is
 * all that is needed, and it weighs rows, columns become a multiple of a vector, or a fixed few: no row has a rest. Those
 * behind the last have the score -inf and the weight 0. Contractions across a batch become one for each of its entries, and
 * their sum. Exact but for the order of sums, which is the target's. */
#include "pass/rewrite.h"

#include <math.h>

enum {
    SHORT = 128 /* terms, at most */,
    MANY = 8 /* rows, at least */,
    COLUMNS = 16 /* at least, of a vector */,
    WIDENED = 8 /* columns, at least, that become so many */,
    MOST_WORK = 48 /* nodes of a softmax */,
    EACH = 16 /* terms of one entry of a batch, at least */,
    PARTS = 16 << 20 /* bytes of all their sums, at most */
};

static bool is_many(const graph *g, const node *x, uint64_t skipped) {
    int64_t most = 1;
    for (int i = 0; i < x->rank && most < MANY; i++)
        if (!mask_has(skipped, i)) most *= graph_dim_most(g, x->dims[i]);
    return most >= MANY;
}

typedef struct product { /* of operands a and b, the latter summed along its last axis */
    val a, b;
    int64_t axes[2][TN_MAX_RANK], contracted;
    int n, column; /* of batch axes; the last axis of b that is a result's */
} product;

/* Entries [from, from + count) along the first batch axis. */
static val part(graph *g, val x, int64_t axis, ext from, ext count) {
    int64_t start[TN_MAX_RANK] = { 0 }, n[TN_MAX_RANK], step[TN_MAX_RANK];
    const node *of = graph_get(g, x);
    for (int i = 0; i < of->rank; i++) n[i] = of->dims[i], step[i] = 1;
    start[axis] = from, n[axis] = count;
    return graph_slice(g, x, start, n, step);
}

static val plain(graph *g, const product *x, val a, val b) {
    return graph_dot(g, a, b, x->axes[0], x->axes[1], x->n, &x->contracted, &(int64_t){ graph_get(g, b)->rank - 1 }, 1);
}

/* With zeros behind the last axis, if any. */
static val widened(graph *g, val x, ext more) {
    const node n = *graph_get(g, x);
    int64_t dims[TN_MAX_RANK];
    for (int i = 0; i < n.rank; i++) dims[i] = n.dims[i];
    if (more == 0) return x;
    dims[n.rank - 1] = more;
    return graph_concat(g, (val[]){ x, zeros(g, (tn_dtype)n.dtype, n.rank, dims) }, 2, n.rank - 1);
}

static val turned(graph *g, const product *x, val a, val b, ext more) {
    int64_t perm[TN_MAX_RANK], axes[TN_MAX_RANK];
    int rank = graph_get(g, b)->rank, n = 0;
    for (int i = 0; i < rank - 1; i++)
        if (i != x->column) perm[n++] = i;
    perm[n++] = rank - 1, perm[n++] = x->column;
    for (int i = 0; i < x->n; i++) axes[i] = x->axes[1][i] - (x->axes[1][i] > x->column);
    b = graph_unary(g, OP_stop_gradient, graph_permute(g, b, perm)); /* which a kernel computes */
    return graph_dot(g, a, widened(g, b, more), x->axes[0], axes, x->n, &x->contracted, &(int64_t){ rank - 2 }, 1);
}

/* Whether v is such a product; of floats whose sizes a run gives. */
static bool find_product(const graph *g, val v, product *x) {
    const node *d = graph_get(g, v);
    if (d->op != OP_dot || d->attr[0] < 1 || d->attr[1] != 1 || !touches_dims(g, v)) return false;
    if (d->dtype != TN_F32 && d->dtype != TN_F64) return false;
    *x = (product){
        .a = d->in[0], .b = d->in[1], .n = (int)d->attr[0], .column = -1, .contracted = d->attr[2 + 2 * d->attr[0]]
    };
    const node *a = graph_get(g, x->a), *b = graph_get(g, x->b);
    uint64_t own = UINT64_C(1) << (b->rank - 1), others = UINT64_C(1) << x->contracted;
    for (int i = 0; i < x->n; i++) {
        x->axes[0][i] = d->attr[2 + i], x->axes[1][i] = d->attr[2 + x->n + i];
        others |= UINT64_C(1) << x->axes[0][i], own |= UINT64_C(1) << x->axes[1][i];
    }
    for (int i = 0; i < b->rank; i++)
        if (!mask_has(own, i)) x->column = i;
    if (x->column < 0 || d->attr[3 + 2 * x->n] != b->rank - 1 || op_get((op_code)b->op)->cls == CL_SOURCE) return false;
    if (graph_dim_most(g, b->dims[b->rank - 1]) > SHORT || graph_dim_most(g, b->dims[x->column]) < COLUMNS) return false;
    return is_many(g, a, others) && !(a->op == OP_slice && b->op == OP_slice); /* such as the part that this leaves */
}

/* How many of the batches come first, and how many behind them: the latter none where a run has fewer columns than so many,
 * else all. */
static bool cut(exts *t, ext all, ext columns, int64_t least, ext *rest, ext *n) {
    *n = ext_lo(t, columns) >= least ? all : ext_mul(t, all, ext_min(t, ext_floor_div(t, columns, least), 1));
    *rest = ext_sub(t, all, *n);
    return ext_is_size(t, *rest);
}

static val rewrite(graph *g, val v, arena *scratch) {
    product x;
    ext rest, n;
    (void)scratch;
    if (!find_product(g, v, &x)) return 0;
    if (!cut(g->params, graph_get(g, x.a)->dims[x.axes[0][0]], graph_get(g, x.b)->dims[x.column], COLUMNS, &rest, &n)) return 0;
    if (rest == 0) return turned(g, &x, x.a, x.b, 0);
    val parts[2] = { plain(g, &x, part(g, x.a, x.axes[0][0], 0, rest), part(g, x.b, x.axes[1][0], 0, rest)),
                     turned(g, &x, part(g, x.a, x.axes[0][0], rest, n), part(g, x.b, x.axes[1][0], rest, n), 0) };
    return graph_concat(g, parts, 2, 0);
}

/* Whether neighbours along the last axis of view v are none in memory. */
static bool is_turned_view(const graph *g, val v) {
    for (const node *n = graph_get(g, v); n->op == OP_permute || n->op == OP_reshape; n = graph_get(g, n->in[0])) {
        const node *x = graph_get(g, n->in[0]);
        if (n->op == OP_permute && n->attr[n->rank - 1] != n->rank - 1) return true;
        if (n->op == OP_reshape && (x->rank < 1 || x->dims[x->rank - 1] != n->dims[n->rank - 1])) return false;
    }
    return false;
}

/* The same where the operand is turned already, as a view: it is put in memory so. */
static val rewrite_view(graph *g, val v, arena *scratch) {
    const node d = *graph_get(g, v);
    (void)scratch;
    if (d.op != OP_dot || d.attr[0] < 1 || d.attr[1] != 1 || !touches_dims(g, v)) return 0;
    if (d.dtype != TN_F32 && d.dtype != TN_F64) return 0;
    int n = (int)d.attr[0];
    const int64_t *batch[2] = { &d.attr[2], &d.attr[2 + n] }, sum[2] = { d.attr[2 + 2 * n], d.attr[3 + 2 * n] };
    const node *a = graph_get(g, d.in[0]), *b = graph_get(g, d.in[1]);
    uint64_t others = UINT64_C(1) << sum[0];
    for (int i = 0; i < n; i++) {
        others |= UINT64_C(1) << batch[0][i];
        if (batch[1][i] == b->rank - 1) return 0;
    }
    if (sum[1] == b->rank - 1 || !is_turned_view(g, d.in[1]) || !is_many(g, a, others)) return 0;
    if (graph_dim_most(g, b->dims[sum[1]]) > SHORT || graph_dim_most(g, b->dims[b->rank - 1]) < COLUMNS) return 0;
    return graph_dot(g, d.in[0], graph_unary(g, OP_stop_gradient, d.in[1]), batch[0], batch[1], n, &sum[0], &sum[1], 1);
}

/* ---- softmax ---- */

typedef struct softmax {
    product of;
    val scores, x, power, weights; /* x: of scores, element by element; power = exp(x - max x) */
    ext all, columns;              /* sizes of their first and last axis */
} softmax;

typedef struct share { /* batches [from, from + count) */
    graph *g;
    const softmax *s;
    ext from, count, columns;
    struct {
        val v, own;
        int first, last;
    } made[MOST_WORK];
    int n;
} share;

static void note(share *w, val v, val own, int first, int last) {
    if (w->n == MOST_WORK) return;
    w->made[w->n].v = v, w->made[w->n].own = own;
    w->made[w->n].first = first, w->made[w->n++].last = last;
}

static val fit(share *w, val v, int first, int last);

static val fit_node(share *w, val v, int first, int last) {
    graph *g = w->g;
    const node n = *graph_get(g, v);
    int64_t dims[TN_MAX_RANK];
    int map[TN_MAX_RANK];
    val in[4] = { 0 };
    bool part_of = first >= 0 && n.dims[first] == w->s->all, wide = last >= 0 && n.dims[last] == w->s->columns;
    for (int i = 0; i < n.rank; i++) dims[i] = n.dims[i];
    if (part_of) dims[first] = w->count;
    if (wide) dims[last] = w->columns;
    if (!part_of && !wide) return v;
    if (is_splat(g, v)) return splat_resize(g, v, n.rank, dims);
    if (n.op == OP_iota && !(part_of && n.attr[0] == first))
        return graph_iota(g, (tn_dtype)n.dtype, n.rank, dims, (int)n.attr[0]);
    if (op_is_elementwise((op_code)n.op) || n.op == OP_cast) {
        for (int i = 0; i < n.n_in; i++)
            if (!(in[i] = fit(w, n.in[i], first, last))) return 0;
        return remake(g, &n, in, n.rank, dims);
    }
    if ((n.op == OP_reduce_max && n.in[0] == w->s->x) || (n.op == OP_sum && n.in[0] == w->s->power)) {
        if (n.attr[0] != INT64_C(1) << last || !(in[0] = fit(w, n.in[0], first, last))) return 0;
        return graph_reduce(g, (op_code)n.op, in[0], (uint64_t)n.attr[0]);
    }
    if (n.op == OP_expand) return (in[0] = fit(w, n.in[0], first, last)) ? graph_expand(g, in[0], dims) : 0;
    if (n.op == OP_reshape && unit_reshape(graph_get(g, n.in[0]), &n, map) && !(part_of && map[first] < 0)) {
        in[0] = fit(w, n.in[0], part_of ? map[first] : -1, wide ? map[last] : -1);
        return in[0] ? graph_reshape(g, in[0], n.rank, dims) : 0;
    }
    return wide ? 0 : part(g, v, first, w->from, w->count);
}

/* v of these batches alone, and of as many columns, whose axes are given (-1: it has none); 0: there is no such value. */
static val fit(share *w, val v, int first, int last) {
    for (int i = 0; i < w->n; i++)
        if (w->made[i].v == v && w->made[i].first == first && w->made[i].last == last) return w->made[i].own;
    val own = w->n < MOST_WORK ? fit_node(w, v, first, last) : 0;
    if (own) note(w, v, own, first, last);
    return own;
}

/* -inf behind the columns that there are. */
static val without_rest(graph *g, val x, ext columns, ext more) {
    const node n = *graph_get(g, x);
    int64_t ones[TN_MAX_RANK], none[TN_MAX_RANK] = { 0 }, after[TN_MAX_RANK] = { 0 };
    for (int i = 0; i < n.rank; i++) ones[i] = 1;
    ones[n.rank - 1] = columns, after[n.rank - 1] = more;
    val there = graph_expand(g, graph_pad(g, graph_splat(g, TN_BOOL, n.rank, ones, 1), none, after, 0), n.dims);
    return graph_select(g, there, x, graph_splat_like(g, x, -INFINITY));
}

/* The dot v of the weights for batches [from, from + count): they have so many columns, and `more` behind them. */
static val weigh(graph *g, val v, const softmax *s, ext from, ext count, ext columns, ext more) {
    const node d = *graph_get(g, v);
    const product *x = &s->of;
    int n = (int)d.attr[0], last = graph_get(g, s->x)->rank - 1, i = 0;
    share w = { .g = g, .s = s, .from = from, .count = count, .columns = ext_add(g->params, columns, more) };
    val a = part(g, x->a, x->axes[0][0], from, count), b = part(g, x->b, x->axes[1][0], from, count);
    if (columns == s->columns)
        note(&w, s->scores, turned(g, x, a, b, more), 0, last);
    else
        note(&w, s->scores, widened(g, plain(g, x, a, part(g, b, x->column, 0, columns)), more), 0, last);
    val all = fit(&w, s->x, 0, last);
    if (!all) return 0;
    while (w.made[i].v != s->x) i++;
    w.made[i].own = without_rest(g, all, columns, more);
    val weights = fit(&w, s->weights, 0, last);
    if (!weights) return 0;
    for (i = 0; d.attr[2 + i] != 0;) i++;
    b = part(g, part(g, d.in[1], d.attr[2 + n + i], from, count), d.attr[3 + 2 * n], 0, columns);
    return graph_dot(g, part(g, weights, last, 0, columns), b, &d.attr[2], &d.attr[2 + n], n, &d.attr[2 + 2 * n],
                     &d.attr[3 + 2 * n], 1);
}

/* The product that all of v is computed of, element by element. */
static val find_scores(const graph *g, val v, int depth) {
    const node *n = graph_get(g, v);
    val found = n->op == OP_dot ? v : 0;
    if (op_is_elementwise((op_code)n->op) && depth > 0)
        for (int i = 0; i < n->n_in && !found; i++) found = find_scores(g, n->in[i], depth - 1);
    return found;
}

static bool find_softmax(const graph *g, val weights, softmax *s) {
    const node *p = graph_get(g, weights);
    *s = (softmax){ .weights = weights };
    if ((p->op != OP_mul && p->op != OP_div) || !graph_used_once(g, weights)) return false;
    for (int i = 0; i < 2 && !s->power; i++)
        if (graph_get(g, p->in[i])->op == OP_exp) s->power = p->in[i];
    const node *less = s->power ? graph_get(g, graph_get(g, s->power)->in[0]) : p;
    if (less->op != OP_sub || graph_get(g, less->in[1])->op != OP_expand) return false;
    const node *max = graph_get(g, graph_get(g, less->in[1])->in[0]);
    s->x = less->in[0];
    if (max->op != OP_reduce_max || max->in[0] != s->x || graph_n_uses(g, s->x) != 2 || graph_n_uses(g, s->power) != 2)
        return false;
    s->scores = find_scores(g, s->x, 8);
    return s->scores && find_product(g, s->scores, &s->of);
}

/* Both parts along an axis, in memory as the only reader of v has it: a product of rows finds them one after the other. */
static val concat_as_read(graph *g, val v, val *parts, int axis) {
    const node n = *graph_get(g, v), reader = *graph_get(g, n.first_use ? g->uses.at[n.first_use - 1].user : v);
    int64_t back[TN_MAX_RANK];
    if (reader.op != OP_permute || !graph_used_once(g, v)) return graph_concat(g, parts, 2, axis);
    for (int i = 0; i < n.rank; i++) back[reader.attr[i]] = i;
    for (int i = 0; i < 2; i++) parts[i] = graph_permute(g, parts[i], reader.attr);
    return graph_permute(g, graph_concat(g, parts, 2, (int)back[axis]), back);
}

/* A dot of weights that a softmax makes: in parts by batch, for the columns of a run may be too few for a vector. */
static val rewrite_softmax(graph *g, val v, arena *scratch) {
    const node d = *graph_get(g, v);
    softmax s;
    int first = 0;
    (void)scratch;
    if (d.op != OP_dot || d.attr[1] != 1 || !find_softmax(g, d.in[0], &s)) return 0;
    const node x = *graph_get(g, s.scores);
    exts *t = g->params;
    s.all = x.dims[0], s.columns = x.dims[x.rank - 1];
    while (first < d.attr[0] && d.attr[2 + first] != 0) first++;
    if (ext_is_lit(s.columns) || first == d.attr[0] || d.attr[2 + 2 * d.attr[0]] != x.rank - 1) return 0;
    ext more = ext_sub(t, ext_mul(t, ext_ceil_div(t, s.columns, COLUMNS), COLUMNS), s.columns);
    ext few = ext_min(t, s.columns, WIDENED - 1), n, rest;
    if (!cut(t, s.all, s.columns, WIDENED, &rest, &n) || !ext_is_size(t, more)) return 0;
    val wide = weigh(g, v, &s, rest, n, s.columns, more);
    if (!wide || rest == 0) return wide;
    val parts[2] = { weigh(g, v, &s, 0, rest, few, ext_sub(t, WIDENED, few)), wide };
    return concat_as_read(g, v, parts, first);
}

/* ---- sums over a batch ---- */

static bool has(const int64_t *axes, int n, int64_t axis) {
    for (int i = 0; i < n; i++)
        if (axes[i] == axis) return true;
    return false;
}

/* A dot that sums over a batch of the run and over positions, as the gradient of a convolution's weights does: one for each
 * entry of the batch has literal sizes inside, is copied into panels, and so has its vectors along columns. Their sum is then
 * little work. */
static val rewrite_batch(graph *g, val v, arena *scratch) {
    const node d = *graph_get(g, v);
    (void)scratch;
    if (d.op != OP_dot || (d.dtype != TN_F32 && d.dtype != TN_F64)) return 0;
    int n = (int)d.attr[0], n_sums = (int)d.attr[1], batch = -1, rest = 0;
    const int64_t *of[2] = { &d.attr[2], &d.attr[2 + n] }, *sums[2] = { &d.attr[2 + 2 * n], &d.attr[2 + 2 * n + n_sums] };
    int64_t axes[2][TN_MAX_RANK], left[2][TN_MAX_RANK];
    double terms = 1, bytes = (double)dtype_size((tn_dtype)d.dtype);
    const node a = *graph_get(g, d.in[0]), b = *graph_get(g, d.in[1]);
    for (int i = 0; i < n_sums; i++) {
        ext size = a.dims[sums[0][i]];
        if (ext_is_lit(size)) {
            terms *= (double)size, left[0][rest] = sums[0][i], left[1][rest++] = sums[1][i];
            continue;
        }
        if (batch >= 0) return 0;
        batch = i, bytes *= (double)graph_dim_most(g, size);
    }
    for (int i = 0; i < d.rank; i++) {
        if (!ext_is_lit(d.dims[i])) return 0;
        bytes *= (double)d.dims[i];
    }
    bool along = has(left[0], rest, a.rank - 1) || has(left[1], rest, b.rank - 1); /* columns do not lie side by side */
    if (batch < 0 || !along || terms < EACH || bytes > PARTS || n + 1 > TN_MAX_RANK || d.rank + 1 > TN_MAX_RANK) return 0;
    for (int k = 0; k < 2; k++) {
        axes[k][0] = sums[k][batch];
        for (int i = 0; i < n; i++) axes[k][i + 1] = of[k][i];
    }
    val each = graph_dot(g, d.in[0], d.in[1], axes[0], axes[1], n + 1, left[0], left[1], rest);
    return graph_reshape(g, graph_reduce(g, OP_sum, each, 1), d.rank, d.dims);
}

bool pass_turned_operands(graph *g, arena *scratch) {
    if (!g->params) return false; /* all sizes are literals */
    bool batches = rewrite_dims(g, scratch, rewrite_batch), softmaxes = rewrite_dims(g, scratch, rewrite_softmax);
    bool views = rewrite_dims(g, scratch, rewrite_view);
    return rewrite_dims(g, scratch, rewrite) || views || softmaxes || batches;
}
