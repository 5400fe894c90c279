/* peel.c - where the masks of loads hold: a loop is cut into pieces so that inside most of them every mask is known, and the
 * tiled form has masked loads at the border only, or none.
 *
 * In: the scalar form with roles, and ranges of the variables of open loops. Out: the ends of the pieces. A mask is known when
 * interval arithmetic over the ranges decides it; nothing is ever read that a mask forbids. */
#include "loop/loop.h"
#include "loop/peel.h"

enum { MOST_SINGLE = 4, MOST_BODY = 160 };

static int64_t floor_div(int64_t x, int64_t y) { return x / y - (x % y != 0 && (x < 0) != (y < 0)); }
static int64_t ceil_div(int64_t x, int64_t y) { return -floor_div(-x, y); }

static kspan span_of(affine x, const kspan *spans, kvar without) {
    kspan r = { x.base, x.base };
    for (int i = 0; i < x.n; i++) {
        kspan s = spans[x.t[i].var];
        int64_t c = x.t[i].coef;
        if (x.t[i].var == without) continue;
        r.lo += c * (c > 0 ? s.lo : s.hi);
        r.hi += c * (c > 0 ? s.hi : s.lo);
    }
    return r;
}

int loop_mask_known(const kmask *m, int64_t lane_stride, int lanes, const kspan *spans) {
    kspan r = span_of(m->e, spans, -1);
    int64_t across = lane_stride * (lanes - 1);
    r.lo += across < 0 ? across : 0;
    r.hi += across > 0 ? across : 0;
    if (r.lo >= m->lo && r.hi < m->hi) return 1;
    return r.hi < m->lo || r.lo >= m->hi ? -1 : 0;
}

static void add_cut(kcuts *c, int64_t at) {
    if (c->n == MAX_CUTS) {
        c->full = true;
        return;
    }
    int i = c->n;
    while (i > 0 && c->at[i - 1] >= at) i--;
    if (i < c->n && c->at[i] == at) return;
    memmove(&c->at[i + 1], &c->at[i], sizeof *c->at * (size_t)(c->n - i));
    c->at[i] = at;
    c->n++;
}

/* Cuts at the ends of [from, to); all steps of it on their own when they are few. */
static void cut_border(kcuts *c, int64_t from, int64_t to, int64_t step, bool single) {
    if (from >= to) return;
    add_cut(c, from), add_cut(c, to);
    if (single && (to - from + step - 1) / step <= MOST_SINGLE)
        for (int64_t x = from; x < to; x += step) add_cut(c, x);
}

/* The mask holds for all values of the other variables where v is in [a, b]. */
static void cut_for_mask(kcuts *c, const kmask *m, kvar v, const kspan *spans, int64_t lo, int64_t hi, int64_t step,
                         bool lanes) {
    int64_t coef = affine_coef(m->e, v);
    if (coef == 0) return;
    kspan rest = span_of(m->e, spans, v);
    int64_t least = m->lo - rest.lo, most = m->hi - 1 - rest.hi;
    int64_t a = coef > 0 ? ceil_div(least, coef) : ceil_div(most, coef);
    int64_t b = coef > 0 ? floor_div(most, coef) : floor_div(least, coef);
    if (a < lo) a = lo;
    if (b > hi - 1) b = hi - 1;
    if (a > b || (a == lo && b == hi - 1)) return;
    if (lanes && rest.lo == rest.hi && b - a >= step) { /* vectors begin and end at the border: no lane is checked by itself */
        add_cut(c, lo), add_cut(c, a), add_cut(c, b + 1), add_cut(c, hi);
        return;
    }
    int64_t from = lo + ceil_div(a - lo, step) * step, to = b == hi - 1 ? hi : lo + floor_div(b + 1 - lo, step) * step;
    if (from >= to) { /* no tile is free of the border: each on its own knows its masks */
        cut_border(c, lo, hi, step, true);
        return;
    }
    bool exact = rest.lo == rest.hi && step == 1; /* then it holds nowhere else */
    cut_border(c, lo, from, step, !exact);
    cut_border(c, to, hi, step, !exact);
}

void loop_peel_cuts(const kernel *k, int loop, int end, int64_t step, const kspan *open, kcuts *out) {
    const kins *in = &k->ins.at[loop];
    *out = (kcuts){ 0 };
    if (in->hi <= in->lo || end - loop > MOST_BODY || (step > 1 && k->vars.at[in->var].reduce)) return;
    bool any = false;
    for (int i = loop; i < end && !any; i++) any = k->ins.at[i].op == K_LOAD && k->ins.at[i].n_mask;
    if (!any) return;
    kspan *spans = arena_copy(k->a, open, sizeof *open * (size_t)k->vars.n);
    for (int i = loop; i < end; i++) {
        const kins *x = &k->ins.at[i];
        if (x->op == K_LOOP) spans[x->var] = (kspan){ x->lo, x->hi - 1 };
        for (int m = 0; x->op == K_LOAD && m < x->n_mask; m++)
            cut_for_mask(out, &x->mask[m], in->var, spans, in->lo, in->hi, step, k->vars.at[in->var].role.lanes > 1);
    }
    if (out->n) add_cut(out, in->lo), add_cut(out, in->hi);
    if (out->full) out->n = 0;
}

int loop_peel_main(const kcuts *c) {
    int most = 0;
    for (int i = 0; i + 1 < c->n; i++)
        if (c->at[i + 1] - c->at[i] > c->at[most + 1] - c->at[most]) most = i;
    return most;
}

bool loop_peel_shared(const kcuts *c, int64_t step) {
    int main = loop_peel_main(c);
    for (int i = 0; i + 1 < c->n; i++)
        if (i != main && c->at[i + 1] - c->at[i] > step) return false;
    return c->n > 0;
}

/* Whether one loop over v leaves in local memory what another one reads. */
static bool loops_share_memory(const kernel *k, kvar v) {
    int depth = 0, around = 0, loops = 0; /* of the loop over v, where one is open */
    int *first = ARENA_ARRAY(k->a, int, k->bufs.n + 1);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && ++depth && !around && in->var == v) around = depth, loops++;
        if (in->op == K_END && depth-- == around) around = 0;
        if (!around || (in->op != K_STORE && in->op != K_LOAD) || k->bufs.at[in->buf].kind != KB_LOCAL) continue;
        if (first[in->buf] && first[in->buf] != loops) return true;
        first[in->buf] = loops;
    }
    return false;
}

bool loop_peel_alike(const kernel *k, kvar v) {
    int64_t step = (int64_t)k->vars.at[v].role.unroll * k->vars.at[v].role.lanes;
    kcuts first = { 0 }, cuts;
    bool any = false;
    if (!loops_share_memory(k, v)) return true;
    kspan *spans = ARENA_ARRAY(k->a, kspan, k->vars.n);
    for (kvar x = 0; x < k->vars.n; x++) spans[x] = (kspan){ 0, k->vars.at[x].extent - 1 };
    for (int i = 1; i < k->ins.n; i++) {
        if (k->ins.at[i].op != K_LOOP || k->ins.at[i].var != v || k->ins.at[i].par != PAR_SERIAL) continue;
        loop_peel_cuts(k, i, kernel_loop_end(k, i), step, spans, &cuts);
        if (any && (cuts.n != first.n || memcmp(cuts.at, first.at, sizeof *cuts.at * (size_t)cuts.n) != 0)) return false;
        first = cuts, any = true;
    }
    return true;
}

/* Steps of loop v that are pieces of one thread, where threads share it. */
static int64_t steps_apart(const kernel *k, kvar v, int64_t step) {
    bool any = false;
    int loop = 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && in->var == v) loop = i;
        for (int m = 0; in->op == K_LOAD && m < in->n_mask; m++) any |= affine_coef(in->mask[m].e, v) != 0;
    }
    if (!any || !loop) return 0;
    kspan *spans = ARENA_ARRAY(k->a, kspan, k->vars.n);
    for (kvar x = 0; x < k->vars.n; x++) spans[x] = (kspan){ 0, k->vars.at[x].extent - 1 };
    kcuts cuts;
    loop_peel_cuts(k, loop, kernel_loop_end(k, loop), step, spans, &cuts);
    int main = loop_peel_main(&cuts);
    if (!loop_peel_shared(&cuts, step)) return 0;
    return (k->vars.at[v].extent - (cuts.at[main + 1] - cuts.at[main])) / step;
}

double loop_balance_of(const kernel *k, kvar v, int64_t step, int threads) {
    int64_t extent = k->vars.at[v].extent, apart = steps_apart(k, v, step);
    return loop_balance(extent / step - apart, (double)apart + (double)(extent % step) / (double)step, threads);
}

/* ---- checks of values ---- */

/* All values of an integer register in any lane, where they are known. */
static bool span_of_reg(const kernel *k, reg r, const kspan *spans, kspan *out) {
    const kins *in = &k->ins.at[r];
    if (in->dtype != TN_I32 || (in->op != K_CONST && in->op != K_INDEX)) return false;
    *out = in->op == K_CONST ? (kspan){ in->imm_int, in->imm_int } : span_of(in->idx, spans, -1);
    int64_t across = in->op == K_INDEX ? in->lane_stride * (in->lanes - 1) : 0;
    out->lo += across < 0 ? across : 0, out->hi += across > 0 ? across : 0;
    return out->lo >= INT32_MIN && out->hi <= INT32_MAX;
}

/* 1: the comparison always holds, -1: it never does, 0: neither is known. */
static int comparison_known(const kernel *k, const kins *in, const kspan *spans) {
    kspan a, b;
    bool equal = in->alu == OP_le;
    if ((in->alu != OP_lt && !equal) || !span_of_reg(k, in->a, spans, &a) || !span_of_reg(k, in->b, spans, &b)) return 0;
    if (equal ? a.hi <= b.lo : a.hi < b.lo) return 1;
    return (equal ? a.lo > b.hi : a.lo >= b.hi) ? -1 : 0;
}

static reg chosen(const kernel *k, const kins *in, const int8_t *known) { /* what an instruction is another name of, or 0 */
    if (in->op != K_ALU || (in->alu != OP_and && in->alu != OP_select)) return 0;
    int a = known[in->a], b = in->alu == OP_and ? known[in->b] : 0;
    reg r = in->alu == OP_select ? a > 0 ? in->b : a < 0 ? in->c : 0 : a > 0 ? in->b : b > 0 ? in->a : 0;
    const kins *x = &k->ins.at[r];
    return r && x->op != K_ACC && x->dtype == in->dtype && (in->alu == OP_and || x->lanes == in->lanes) ? r : 0;
}

void loop_fold_checks(kernel *k) {
    kspan *spans = ARENA_ARRAY(k->a, kspan, k->vars.n + 1);
    int8_t *known = ARENA_ARRAY(k->a, int8_t, k->ins.n);
    reg *as = ARENA_ARRAY(k->a, reg, k->ins.n);
    bool any = false;
    for (kvar v = 0; v < k->vars.n; v++) spans[v] = (kspan){ 0, k->vars.at[v].extent - 1 };
    for (int i = 1; i < k->ins.n; i++) {
        kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) spans[in->var] = (kspan){ in->lo, in->hi - 1 };
        reg *operand[] = { &in->a, &in->b, &in->c, &in->dyn };
        for (int o = 0; o < (int)COUNT_OF(operand); o++) *operand[o] = as[*operand[o]];
        as[i] = (reg)i;
        if (in->op == K_ALU && in->dtype == TN_I32) known[i] = (int8_t)comparison_known(k, in, spans);
        if (in->op == K_ALU && in->alu == OP_and && (known[in->a] < 0 || known[in->b] < 0)) known[i] = -1;
        if (in->op == K_ALU && in->alu == OP_and && known[in->a] > 0 && known[in->b] > 0) known[i] = 1;
        reg r = chosen(k, in, known);
        if (r) as[i] = r, any = true;
    }
    if (any) loop_sweep(k);
}
