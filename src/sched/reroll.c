/* reroll.c - layers that repeat become a loop: contractions of a row that follow each other and differ only in where their
 * weights lie, at constant distances, are written once. The text of a chain, and what it costs to compile, then depend on the
 * layers that differ, not on how many there are.
 *
 * Where rows are a cluster's, the first layer reads a copy of its row, and so is one of the loop's: its threads would have
 * waited for memory at each row of theirs.
 *
 * In: the kernel of a chain in scalar form. Out: the same with such loops, and the same results bit by bit. The bound of a
 * ReLU, where not all layers have one, comes from a table: max with -inf changes nothing. */
#include "loop/build.h"
#include "sched/vertical_fusion.h"
#include "recipe/columns.h"

#include <math.h>

enum { MAX_PERIOD = 4 /* layers of an iteration */, WORTH = 4 /* layers that need not be written */ };

typedef struct layer {
    row_contraction c;
    int bound; /* instruction: a constant, whose max or min with what the layer has computed is the next one; or 0 */
} layer;
typedef struct run { /* layers [first, first + period * times) */
    int first, period, times;
    int bound[MAX_PERIOD]; /* the first layer at that place with a bound, or -1 */
} run;
typedef struct roller {
    plan *p;
    kernel *k;
    VEC(kins) old;
    VEC(layer) layers;
    VEC(run) runs;
} roller;
typedef struct copied { /* the row of the first layer: how it is loaded, how it is loaded of a copy, and along what */
    kins from, to;
    kvar step;
    int load; /* of the two of a sum */
} copied;

/* Instructions of a layer are numbered without the bound and from 1 on, so that layers with and without one compare; the value
 * after it has the number of the one before. */
static int length(const layer *x) { return x->c.end - x->c.loop + 1 - (x->bound ? 2 : 0); }
static const kins *at(const roller *w, const layer *x, int number) {
    int i = x->c.loop + number - 1;
    return &w->old.at[i + (x->bound && i >= x->bound ? 2 : 0)];
}
static const kins *limit_of(const roller *w, const layer *x) { return &w->old.at[x->bound + 1]; }
static reg value_of(const roller *w, const layer *x) {
    const kins *limit = limit_of(w, x);
    return (int)limit->a == x->bound ? limit->b : limit->a;
}
static int number_of(const roller *w, const layer *x, reg r) {
    if (r == 0) return 0;
    if (x->bound && (int)r == x->bound + 1) r = value_of(w, x);
    return (int)r - x->c.loop + 1 - (x->bound && (int)r > x->bound ? 2 : 0);
}

static void find_bound(const roller *w, layer *x) {
    for (int i = x->c.last + 1; i + 1 < x->c.end; i++) {
        const kins *in = &w->old.at[i], *limit = in + 1;
        if (in->op != K_CONST || in->dtype != TN_F32 || limit->op != K_ALU || !build_takes(limit, (reg)i)) continue;
        if ((limit->alu != OP_max && limit->alu != OP_min) || limit->a == limit->b) continue;
        x->bound = i;
        for (int j = i + 2; j < x->c.end; j++)
            if (build_takes(&w->old.at[j], (reg)i) || build_takes(&w->old.at[j], value_of(w, x))) x->bound = 0;
        if (x->bound) return;
    }
}

static kvar var_in(const roller *w, const layer *x, const layer *y, kvar v) { /* a variable of x, in y */
    if (v == w->old.at[x->c.loop].var) return w->old.at[y->c.loop].var;
    return v == w->old.at[x->c.inner].var ? w->old.at[y->c.inner].var : v;
}

static bool same_place(const roller *w, const layer *x, const layer *y, const kins *a, const kins *b) {
    bool memory = a->op == K_LOAD || a->op == K_STORE, moves = memory && w->k->bufs.at[a->buf].kind == KB_IN;
    if (a->idx.n != b->idx.n || (!moves && a->idx.base != b->idx.base)) return false;
    for (int i = 0; i < a->idx.n; i++)
        if (affine_coef(b->idx, var_in(w, x, y, a->idx.t[i].var)) != a->idx.t[i].coef) return false;
    return true;
}

/* The same but for the places of what is only read, and for bounds. */
static bool same(const roller *w, const layer *x, const layer *y) {
    if (length(x) != length(y)) return false;
    for (int i = 1; i <= length(x); i++) {
        const kins *a = at(w, x, i), *b = at(w, y, i);
        if (a->op != b->op || a->alu != b->alu || a->dtype != b->dtype || a->src != b->src || a->buf != b->buf) return false;
        if (a->dyn || b->dyn || a->n_mask || b->n_mask || a->lo != b->lo || a->hi != b->hi) return false;
        if (memcmp(&a->imm, &b->imm, sizeof a->imm) || a->imm_int != b->imm_int || !same_place(w, x, y, a, b)) return false;
        if (number_of(w, x, a->a) != number_of(w, y, b->a) || number_of(w, x, a->b) != number_of(w, y, b->b) ||
            number_of(w, x, a->c) != number_of(w, y, b->c))
            return false;
    }
    return true;
}

static bool same_bound(const roller *w, const layer *x, const layer *y) {
    return x->bound - x->c.loop == y->bound - y->c.loop && limit_of(w, x)->alu == limit_of(w, y)->alu &&
           number_of(w, x, value_of(w, x)) == number_of(w, y, value_of(w, y));
}

static int64_t step_of(const roller *w, const run *r, int place, int number) { /* from iteration to iteration */
    const layer *x = &w->layers.at[r->first + place];
    return at(w, x + r->period, number)->idx.base - at(w, x, number)->idx.base;
}

/* Whether layers [first + period * times, ... + period) are another iteration. */
static bool goes_on(const roller *w, run *r) {
    for (int i = 0; i < r->period; i++) {
        int n = r->first + r->period * r->times + i;
        const layer *x = &w->layers.at[r->first + i], *y = &w->layers.at[n];
        if (n >= w->layers.n || (n > r->first && y->c.loop != y[-1].c.end + 1) || !same(w, x, y)) return false;
        for (int j = 1; j <= length(x) && r->times > 0; j++)
            if (at(w, y, j)->idx.base - at(w, x, j)->idx.base != r->times * step_of(w, r, i, j)) return false;
        if (!y->bound) continue;
        if (r->bound[i] >= 0 && !same_bound(w, &w->layers.at[r->bound[i]], y)) return false;
        if (r->bound[i] < 0) r->bound[i] = n;
    }
    return true;
}

static int saved(const run *r) { return r->period * (r->times - 1); }

static run longest(const roller *w, int first) {
    run best = { .first = first, .period = 1, .times = 1 };
    for (int period = 1; period <= MAX_PERIOD; period++) {
        run r = { .first = first, .period = period, .bound = { -1, -1, -1, -1 } }, grown = r;
        while (goes_on(w, &grown)) grown.times++, r = grown;
        if (saved(&r) > saved(&best)) best = r;
    }
    return best;
}

/* ---- writing ---- */

/* One bound for each layer of the run: a constant of the graph; returns the kernel's buffer. */
static int make_table(const roller *w, const run *r) {
    plan *p = w->p;
    int64_t n = r->period * r->times;
    float *x = ARENA_ARRAY(p->a, float, n);
    for (int i = 0; i < n; i++) {
        const layer *l = &w->layers.at[r->first + i];
        int first = r->bound[i % r->period];
        bool max = first >= 0 && limit_of(w, &w->layers.at[first])->alu == OP_max;
        x[i] = l->bound ? (float)w->old.at[l->bound].imm : max ? -INFINITY : INFINITY;
    }
    pbuf b = { .kind = PB_CONST, .dtype = TN_F32, .elems = n, .slot = SLOT_CONST, .inplace_of = -1, .io = -1 };
    b.bytes = n * (int64_t)sizeof *x, b.node = graph_const(p->g, TN_F32, 1, &n, x);
    VEC_PUSH(p->a, &p->bufs, b);
    return kernel_buf(
        w->k, (kbuf){ .dtype = TN_F32, .kind = KB_IN, .fixed = true, .node = b.node, .elems = n, .plan_buf = p->bufs.n - 1 });
}

/* The first operand is the bound: of a zero and its negative, the same one is taken as with a constant. */
static void write_bound(roller *w, const run *r, int place, int table, kvar v, reg *to) {
    arena *a = w->k->a;
    const layer *x = &w->layers.at[r->bound[place]];
    kins limit = *limit_of(w, x), load = { .op = K_LOAD, .dtype = TN_F32, .src = TN_F32, .buf = (uint16_t)table };
    int value = number_of(w, x, value_of(w, x));
    load.idx = affine_offset(affine_scale(a, affine_var(a, v), r->period), place);
    limit.a = kernel_push(w->k, load), limit.b = to[value];
    to[value] = kernel_push(w->k, limit);
}

static void write_layer(roller *w, const run *r, int place, int table, kvar v) {
    const layer *x = &w->layers.at[r->first + place], *bounded = r->bound[place] < 0 ? NULL : &w->layers.at[r->bound[place]];
    arena *a = w->k->a;
    reg *to = ARENA_ARRAY(a, reg, length(x) + 2);
    for (int i = 1; i <= length(x); i++) {
        kins in = *at(w, x, i);
        if (bounded && i == bounded->bound - bounded->c.loop + 1) write_bound(w, r, place, table, v, to);
        in.a = to[number_of(w, x, in.a)], in.b = to[number_of(w, x, in.b)], in.c = to[number_of(w, x, in.c)];
        in.idx = affine_add(a, in.idx, affine_scale(a, affine_var(a, v), step_of(w, r, place, i)));
        to[i] = kernel_push(w->k, in);
    }
}

static void write_run(roller *w, const run *r) {
    int table = -1;
    for (int i = 0; i < r->period; i++)
        if (r->bound[i] >= 0 && table < 0) table = make_table(w, r);
    kvar v = kernel_var(w->k, "l", r->times, false, true); /* of no row, and one iteration after the other */
    build_open(w->k, v, 0, r->times, PAR_SERIAL);
    for (int i = 0; i < r->period; i++) write_layer(w, r, i, table, v);
    build_ends(w->k, 1);
}

/* ---- the first layer ---- */

static bool touches(const roller *w, int from, int to, int buf) {
    for (int i = from; i < to; i++) {
        const kins *in = &w->old.at[i];
        if (kernel_touches(in) && in->buf == buf) return true;
    }
    return false;
}

/* The first layer reads its row where the kernel's caller has put it, later ones where a layer has: it is one of them when the
 * row is copied there first. Then its load is as theirs, *out as it was, and true; the copy is still to be written. */
static bool read_as_later(roller *w, copied *out) {
    layer *x = w->layers.at;
    for (int period = 1; period <= MAX_PERIOD && period < w->layers.n; period++)
        for (int l = 0; l < 2; l++) {
            const layer *y = &w->layers.at[period];
            kins *own = &w->old.at[x->c.load[l]];
            const kins *later = &w->old.at[y->c.load[l]];
            if (w->k->bufs.at[own->buf].kind != KB_IN || w->k->bufs.at[later->buf].kind != KB_LOCAL) continue;
            if (touches(w, 1, x->c.end, later->buf) || affine_coef(own->idx, w->old.at[x->c.loop].var)) continue;
            *out = (copied){ *own, *own, w->old.at[x->c.inner].var, l };
            out->to.buf = later->buf, out->to.src = later->src, out->to.idx = affine_const(later->idx.base);
            for (int i = 0; i < later->idx.n; i++) {
                affine term =
                    affine_scale(w->k->a, affine_var(w->k->a, var_in(w, y, x, later->idx.t[i].var)), later->idx.t[i].coef);
                out->to.idx = affine_add(w->k->a, out->to.idx, term);
            }
            *own = out->to;
            if (own->dtype == later->dtype && same(w, x, y)) return true;
            *own = out->from;
        }
    return false;
}

static void write_copy(roller *w, const copied *x) {
    int64_t n = w->k->vars.at[x->step].extent;
    kvar v = build_loop(w->k, "x", n, PAR_SERIAL);
    affine at = affine_var(w->k->a, v);
    kins load = x->from, store = { .op = K_STORE, .dtype = x->to.src, .buf = x->to.buf };
    load.idx = affine_set_var(w->k->a, load.idx, x->step, at), store.idx = affine_set_var(w->k->a, x->to.idx, x->step, at);
    store.a = kernel_push(w->k, load);
    kernel_push(w->k, store);
    build_ends(w->k, 1);
}

static void find_runs(roller *w) {
    w->runs.n = 0;
    for (int i = 0; i < w->layers.n; i++) {
        run r = longest(w, i);
        if (saved(&r) < WORTH) continue;
        VEC_PUSH(w->k->a, &w->runs, r);
        i += r.period * r.times - 1;
    }
}

void vertical_reroll(plan *p, kernel *k, int n_rows, bool copies) {
    roller w = { .p = p, .k = k };
    copied row = { .step = -1 };
    for (int i = 1 + n_rows; i < k->ins.n - n_rows; i++) {
        layer x = { .bound = 0 };
        if (k->ins.at[i].op != K_LOOP) continue;
        if (row_contraction_find(k, n_rows, i, &x.c)) VEC_PUSH(k->a, &w.layers, x);
        i = kernel_loop_end(k, i);
    }
    w.old.at = k->ins.at, w.old.n = k->ins.n;
    for (int i = 0; i < w.layers.n; i++) find_bound(&w, &w.layers.at[i]);
    copies = copies && read_as_later(&w, &row);
    find_runs(&w);
    if (copies && (!w.runs.n || w.runs.at[0].first > 0)) {
        w.old.at[w.layers.at[0].c.load[row.load]] = row.from, copies = false;
        find_runs(&w);
    }
    if (!w.runs.n) return;
    reg *to = ARENA_ARRAY(k->a, reg, k->ins.n);
    k->ins.at = NULL, k->ins.n = k->ins.cap = 0;
    VEC_PUSH(k->a, &k->ins, (kins){ 0 });
    for (int i = 1, n = 0; i < w.old.n; i++) {
        kins in = w.old.at[i];
        if (n < w.runs.n && i == w.layers.at[w.runs.at[n].first].c.loop) {
            const run *r = &w.runs.at[n++];
            if (copies && n == 1) write_copy(&w, &row);
            write_run(&w, r);
            i = w.layers.at[r->first + r->period * r->times - 1].c.end;
            continue;
        }
        build_operands(&in, to);
        to[i] = kernel_push(k, in);
    }
}
