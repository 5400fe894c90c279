/* recompute_weights.c - attention's gradients compute the weights again, instead of keeping them: for machines whose matrix
 * units make scores faster than memory brings them.
 *
 * In: a graph in which several contractions take what is computed of one power e[i,j] = exp(s[i,j] - ..) of scores s = q k: the
 * result o = (e r) v and the gradients of q, k, v. Out: the result as it was; every other one has scores and powers of its own,
 * computed in f32 of q, k and numbers of the rows, whose axes are ordered as it goes through them: rows, then what it sums
 * over. Each is then one kernel (sched/attention_fusion.c), and no square of positions is ever stored.
 *
 * A sum over all keys that a gradient needs first, sum_j (g v)[i,j] e[i,j], is sum_d g[i,d] o[i,d] / r[i]: the same products in
 * another order. [order] Numbers of rows stay f32 between the kernels. cse would undo it: it runs behind the standard list. */
#include "pass/rewrite.h"

enum {
    MOST_DEPTH = 64 /* of products */,
    MOST_WORK = 512 /* operands of elementwise work on scores, each as often as it is read */,
    MOST_READERS = 8,
    MOST_FACTORS = 8,
    MOST_FEATURES = 128 /* of a head */,
    PIECE = 8 /* features that are copied at once */,
    FEW = 64 /* positions: fewer are not worth it */
};

typedef struct reader { /* a contraction that takes elementwise work on the powers, x = in[side] */
    val dot, power;
    int side, axis, n_dots; /* axis: of x, that is summed over; n_dots: contractions that x is computed from */
    int n_seen;             /* operands of that work */
} reader;

typedef struct work {
    graph *g;
    arena *a;
    VEC(reader) readers;
} work;

static const node *at(const work *w, val v) { return graph_get(w->g, v); }
static bool is_narrow(tn_dtype t) { return t == TN_F16 || t == TN_BF16; }
static bool is_work(const node *n) { return op_is_elementwise((op_code)n->op) || n->op == OP_cast; }

/* ---- contractions ---- */

typedef struct sides { /* of a contraction with batch axes, one free axis a side, and one that is summed over */
    int64_t batch[2][TN_MAX_RANK], contract[2], free[2];
    int n;
} sides;

static bool find_sides(const work *w, val v, sides *out) {
    const node *d = at(w, v);
    if (d->op != OP_dot || !is_narrow((tn_dtype)d->dtype) || d->attr[1] != 1) return false;
    int n = out->n = (int)d->attr[0];
    for (int x = 0; x < 2; x++) {
        const node *in = at(w, d->in[x]);
        uint64_t taken = 0;
        if (in->rank != n + 2 || in->dtype != d->dtype) return false;
        for (int i = 0; i < n; i++) out->batch[x][i] = d->attr[2 + x * n + i], taken |= 1ull << out->batch[x][i];
        out->contract[x] = d->attr[2 + 2 * n + x], taken |= 1ull << out->contract[x];
        for (int i = 0; i < in->rank; i++)
            if (!mask_has(taken, i)) out->free[x] = i;
    }
    return true;
}

static bool is_long(const work *w, ext n) { return (ext_is_lit(n) ? n : ext_hi(w->g->params, n)) >= FEW; }
static bool is_head(ext n) { return n > 0 && n <= MOST_FEATURES && n % PIECE == 0; }

/* Scores, or what is like them: each a sum over the features of a head. */
static bool is_scores(const work *w, val v) {
    sides s;
    return find_sides(w, v, &s) && is_head(at(w, at(w, v)->in[0])->dims[s.contract[0]]);
}

/* ---- which contractions read powers ---- */

/* Whether v is elementwise work on scores: fills the one power in it and counts contractions. */
static bool find_power(const work *w, val v, reader *r) {
    const node *n = at(w, v);
    if (++r->n_seen > MOST_WORK) return false;
    if (n->op == OP_dot) return r->n_dots++, is_scores(w, v);
    if (!is_work(n)) return true;
    if (n->op == OP_exp) {
        if (r->power && r->power != v) return false;
        r->power = v;
    }
    for (int i = 0; i < n->n_in; i++)
        if (!find_power(w, n->in[i], r)) return false;
    return true;
}

static bool find_reader(const work *w, val v, int side, reader *out) {
    sides s;
    const node *d = at(w, v);
    reader r = { .dot = v, .side = side };
    if (!find_sides(w, v, &s) || !is_work(at(w, d->in[side])) || !find_power(w, d->in[side], &r)) return false;
    const node *x = at(w, d->in[side]), *other = at(w, d->in[!side]);
    for (int i = 0; i < s.n; i++)
        if (s.batch[side][i] != i) return false;
    r.axis = (int)s.contract[side];
    *out = r;
    return r.power && r.n_dots && is_long(w, x->dims[s.n]) && is_long(w, x->dims[s.n + 1]) &&
           is_head(other->dims[s.free[!side]]);
}

/* ---- factors ---- */

typedef struct factors {
    val at[MOST_FACTORS];
    bool under[MOST_FACTORS]; /* divides */
    int n;
    bool minus;
} factors;

/* v as a product. */
static bool find_factors(const work *w, val v, bool under, factors *f, int depth) {
    const node *n = at(w, v);
    if (depth > MOST_DEPTH) return false;
    if (n->op == OP_cast && dtype_is_float(at(w, n->in[0])->dtype)) return find_factors(w, n->in[0], under, f, depth + 1);
    if (n->op == OP_neg) return f->minus = !f->minus, find_factors(w, n->in[0], under, f, depth + 1);
    if (n->op == OP_mul || n->op == OP_div)
        return find_factors(w, n->in[0], under, f, depth + 1) &&
               find_factors(w, n->in[1], under != (n->op == OP_div), f, depth + 1);
    if (f->n == MOST_FACTORS) return false;
    f->at[f->n] = v, f->under[f->n++] = under;
    return true;
}

static bool is_row(const work *w, val v, int axis) {
    const node *n = at(w, v);
    return n->op == OP_expand && at(w, n->in[0])->dims[axis] == 1;
}

/* A number of each row, in f32: as it was before it was rounded. */
static val widen(work *w, val v) {
    const node *n = at(w, v);
    if (n->op == OP_cast && at(w, n->in[0])->dtype == TN_F32) return n->in[0];
    return graph_cast(w->g, v, TN_F32);
}

/* The row's factors of f but for those in skip[], multiplied onto x; inverse: by their inverses. */
static val multiply_rows(work *w, val x, const factors *f, const val skip[2], bool inverse) {
    for (int i = 0; i < f->n; i++) {
        if (f->at[i] == skip[0] || f->at[i] == skip[1]) continue;
        val row = is_splat(w->g, f->at[i]) ? graph_splat_like(w->g, x, at(w, f->at[i])->imm) : widen(w, at(w, f->at[i])->in[0]);
        x = graph_binary(w->g, f->under[i] != inverse ? OP_div : OP_mul, x, row);
    }
    return f->minus ? graph_unary(w->g, OP_neg, x) : x;
}

/* One of them is v, once, and not below; all but v and `other` are numbers of rows. */
static bool holds(const work *w, const factors *f, val v, val other, int axis) {
    int found = 0;
    for (int i = 0; i < f->n; i++) {
        if (f->at[i] == v || f->at[i] == other) {
            found += f->at[i] == v;
            if (f->under[i]) return false;
        } else if (!is_row(w, f->at[i], axis) && !is_splat(w->g, f->at[i])) {
            return false;
        }
    }
    return found == 1;
}

/* ---- sums over all keys ---- */

/* sum_j of (g v)[i,j] e[i,j] times numbers of rows, by o = (e r) v; 0: it is none. */
static val sum_by_result(work *w, val sum, const reader *o, const sides *os) {
    graph *g = w->g;
    const node *n = at(w, sum);
    factors f = { .n = 0 }, of = { .n = 0 };
    val dot = 0;
    sides s;
    if (n->op != OP_sum || n->attr[0] != 1ll << o->axis || o->axis != n->rank - 1) return 0;
    if (!find_factors(w, n->in[0], false, &f, 0) || !find_factors(w, at(w, o->dot)->in[o->side], false, &of, 0)) return 0;
    for (int i = 0; i < f.n; i++)
        if (at(w, f.at[i])->op == OP_dot) dot = f.at[i];
    if (!dot || !find_sides(w, dot, &s) || !holds(w, &f, o->power, dot, o->axis) || !holds(w, &f, dot, o->power, o->axis) ||
        !holds(w, &of, o->power, o->power, o->axis))
        return 0;
    /* g is free along the rows, and v is what the result is computed from, in the same way */
    const node *d = at(w, dot);
    if (d->in[1] != at(w, o->dot)->in[!o->side] || s.n != os->n || s.free[1] != os->contract[!o->side] ||
        memcmp(s.batch[1], os->batch[!o->side], sizeof *s.batch[1] * (size_t)s.n))
        return 0;
    int64_t perm[TN_MAX_RANK];
    for (int i = 0; i < s.n; i++) perm[i] = s.batch[0][i];
    perm[s.n] = s.free[0], perm[s.n + 1] = s.contract[0];
    val gradient = graph_permute(g, graph_cast(g, d->in[0], TN_F32), perm), result = graph_cast(g, o->dot, TN_F32);
    if (o->side) return 0;
    val x = graph_reduce(g, OP_sum, graph_binary(g, OP_mul, gradient, result), 1ull << (s.n + 1));
    x = multiply_rows(w, x, &f, (val[]){ o->power, dot }, false);
    return multiply_rows(w, x, &of, (val[]){ o->power, o->power }, true);
}

/* What was summed up over the powers, of all values up to `last`. */
static void replace_sums(work *w, const reader *o, val last) {
    sides os;
    if (!find_sides(w, o->dot, &os)) return;
    for (val v = 1; v <= last; v++) {
        if (!graph_is_read(w->g, v) || at(w, v)->op != OP_sum) continue;
        val x = sum_by_result(w, v, o, &os);
        if (!x) continue;
        for (uint32_t u = at(w, v)->first_use, next; u; u = next) { /* who wants f32 gets it */
            val user = w->g->uses.at[u - 1].user;
            next = w->g->uses.at[u - 1].next;
            if (at(w, user)->op == OP_cast && at(w, user)->dtype == TN_F32) graph_replace(w->g, user, x);
        }
        graph_replace(w->g, v, graph_cast(w->g, x, (tn_dtype)at(w, v)->dtype));
    }
}

/* ---- once more ---- */

typedef struct copier {
    work *w;
    int rank;
    bool turned; /* the last two axes change places */
    bool renews; /* what combines values along the last axis takes the copies instead */
    val *of;     /* [n] what values became */
    val n;
} copier;

static val turn(copier *c, val v) {
    int64_t perm[TN_MAX_RANK];
    for (int i = 0; i < c->rank; i++) perm[i] = i;
    perm[c->rank - 2] = c->rank - 1, perm[c->rank - 1] = c->rank - 2;
    return c->turned ? graph_permute(c->w->g, v, perm) : v;
}

static val to_f32(copier *c, val v) { return dtype_is_float(at(c->w, v)->dtype) ? graph_cast(c->w->g, v, TN_F32) : v; }

static val copy_dot(copier *c, val v) {
    const node d = *at(c->w, v);
    sides s;
    if (!find_sides(c->w, v, &s)) return v;
    int a = c->turned, b = !a;
    val x = graph_dot(c->w->g, d.in[a], d.in[b], s.batch[a], s.batch[b], s.n, &s.contract[a], &s.contract[b], 1);
    return to_f32(c, x);
}

static val copy_leaf(copier *c, val v) {
    graph *g = c->w->g;
    const node n = *at(c->w, v);
    int64_t dims[TN_MAX_RANK];
    for (int i = 0; i < n.rank; i++) dims[i] = n.dims[i];
    if (c->turned) dims[n.rank - 1] = n.dims[n.rank - 2], dims[n.rank - 2] = n.dims[n.rank - 1];
    if (is_splat(g, v)) return to_f32(c, splat_resize(g, v, n.rank, dims));
    if (is_row(c->w, v, n.rank - 1) || is_row(c->w, v, n.rank - 2)) {
        val row = dtype_is_float(n.dtype) ? widen(c->w, n.in[0]) : n.in[0];
        return graph_expand(g, turn(c, row), dims);
    }
    return turn(c, to_f32(c, v));
}

/* Sums and maxima of v along the last axis become those of x, its copy. */
static void renew(copier *c, val v, val x) {
    graph *g = c->w->g;
    val users[MOST_READERS];
    int n = 0;
    for (uint32_t u = graph_get(g, v)->first_use; u; u = g->uses.at[u - 1].next)
        if (n < MOST_READERS) users[n++] = g->uses.at[u - 1].user;
    for (int i = 0; i < n; i++) {
        const node user = *graph_get(g, users[i]);
        if (user.op == OP_cast && user.dtype == TN_F32 && users[i] < c->n && !c->of[users[i]]) renew(c, users[i], x);
        if ((user.op == OP_sum || user.op == OP_reduce_max) && user.attr[0] == 1ll << (c->rank - 1) && users[i] < c->n)
            graph_replace(g, users[i], graph_cast(g, graph_reduce(g, (op_code)user.op, x, (uint64_t)user.attr[0]), user.dtype));
    }
}

static val copy(copier *c, val v) {
    val in[4] = { 0 };
    const node n = *at(c->w, v);
    if (v < c->n && c->of[v]) return c->of[v];
    val x = 0;
    if (n.op == OP_dot) {
        x = copy_dot(c, v);
    } else if (!is_work(&n) || n.n_in > 4) {
        x = copy_leaf(c, v);
    } else {
        for (int i = 0; i < n.n_in; i++) in[i] = copy(c, n.in[i]);
        if (n.op == OP_cast)
            x = graph_cast(c->w->g, in[0], dtype_is_float(n.dtype) ? TN_F32 : (tn_dtype)n.dtype);
        else
            x = graph_add(c->w->g, &(spec){ .op = (op_code)n.op, .in = in, .n_in = n.n_in, .region = n.region });
    }
    if (v < c->n) c->of[v] = x;
    if (c->renews && v < c->n && dtype_is_float(n.dtype)) renew(c, v, x);
    return x;
}

/* The contraction with a copy of what it reads; renews: see copier. */
static void recompute(work *w, const reader *r, bool renews) {
    graph *g = w->g;
    sides s;
    const node d = *at(w, r->dot);
    if (!find_sides(w, r->dot, &s)) return;
    int other = !r->side;
    val last = (val)g->nodes.n;
    copier c = {
        .w = w, .rank = s.n + 2, .turned = r->axis == s.n, .renews = renews, .of = ARENA_ARRAY(w->a, val, last), .n = last
    };
    val x = graph_cast(g, copy(&c, d.in[r->side]), (tn_dtype)at(w, d.in[r->side])->dtype);
    int64_t batch[TN_MAX_RANK], steps = s.n + 1;
    for (int i = 0; i < s.n; i++) batch[i] = i;
    val y = graph_dot(g, x, d.in[other], batch, s.batch[other], s.n, &steps, &s.contract[other], 1);
    c.turned = r->side == 1;
    graph_replace(g, r->dot, turn(&c, y));
}

/* The result, o = (e r) v: the only one that sums over what the scores' powers were summed over, of these scores alone. */
static const reader *find_result(const work *w, val power) {
    const reader *found = NULL;
    for (int i = 0; i < w->readers.n; i++) {
        const reader *r = &w->readers.at[i];
        if (r->power != power || r->n_dots != 1 || r->side || r->axis != at(w, power)->rank - 1) continue;
        if (found) return NULL;
        found = r;
    }
    return found;
}

bool pass_recompute_weights(graph *g, arena *scratch) {
    work w = { .g = g, .a = scratch };
    val last = (val)g->nodes.n - 1;
    bool changed = false;
    for (val v = 1; v <= last; v++) {
        reader r;
        if (graph_get(g, v)->op != OP_dot || !graph_is_read(g, v) || graph_get(g, v)->region) continue;
        for (int side = 0; side < 2; side++)
            if (find_reader(&w, v, side, &r)) VEC_PUSH(scratch, &w.readers, r);
    }
    for (int i = 0; i < w.readers.n; i++) {
        const reader *r = &w.readers.at[i], *result = find_result(&w, r->power);
        int n = 0;
        for (int j = 0; j < w.readers.n; j++) n += w.readers.at[j].power == r->power;
        if (!result || result != r || n < 2 || n > MOST_READERS) continue;
        replace_sums(&w, result, last);
        recompute(&w, result, true);
        for (int j = 0; j < w.readers.n; j++)
            if (j != i && w.readers.at[j].power == r->power) recompute(&w, &w.readers.at[j], false);
        changed = true;
    }
    return changed;
}

void recompute_weights_taken(const graph *g, bool *taken) {
    work w = { .g = (graph *)(uintptr_t)g };
    for (val v = 1; v < (val)g->nodes.n; v++) {
        reader r;
        if (graph_get(g, v)->op != OP_dot) continue;
        for (int side = 0; side < 2; side++) {
            if (!find_reader(&w, v, side, &r)) continue;
            val x = graph_get(g, v)->in[side];
            taken[x] = true;
            if (graph_get(g, x)->op == OP_cast) taken[graph_get(g, x)->in[0]] = true;
        }
    }
}
