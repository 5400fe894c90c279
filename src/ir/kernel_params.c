/* kernel_params.c - kernels whose sizes are parameters: the kernel for given values of the dims, and the check for all of them.
 *
 * In: a kernel with a table of parameters. Out: a literal kernel; problems, one a line. The check proves of every access that
 * its index is inside its buffer for all values of the dims (ext_prove.c), by the ranges of the loops around it and its masks.
 * Everything else that kernel_check looks at does not depend on the values, or is looked at for two choices of them. Scratch
 * lives in the kernel's arena. */
#include "ir/kernel.h"

#include "ir/kernel_walk.h"

/* ---- the kernel for given values ---- */

static affine affine_at(affine x, const int64_t *rows, arena *a) {
    kterm *t = ARENA_ARRAY(a, kterm, x.n + 1);
    int n = 0;
    for (int i = 0; i < x.n; i++)
        if (ext_of(x.t[i].coef, rows)) t[n++] = (kterm){ x.t[i].var, ext_of(x.t[i].coef, rows) };
    return (affine){ ext_of(x.base, rows), n, t };
}

static void bind_ins(kins *in, const int64_t *rows, arena *a) {
    in->lo = ext_of(in->lo, rows), in->hi = ext_of(in->hi, rows);
    in->idx = affine_at(in->idx, rows, a);
    if (in->dyn) in->dyn_stride = ext_of(in->dyn_stride, rows), in->dyn_n = ext_of(in->dyn_n, rows);
    if (in->op == K_LOOP) in->n_blocks = ext_of(in->n_blocks, rows), in->first_block = ext_of(in->first_block, rows);
    for (int m = 0; m < in->n_mask; m++)
        in->mask[m] = (kmask){ affine_at(in->mask[m].e, rows, a), ext_of(in->mask[m].lo, rows), ext_of(in->mask[m].hi, rows) };
}

kernel *kernel_at(const kernel *k, const int64_t *dims, arena *a) {
    kernel *o = kernel_clone(k, a);
    str why;
    if (!k->params) return o;
    str_init(&why, a);
    int64_t *rows = ARENA_ARRAY(a, int64_t, k->params->at.n + 1);
    if (!exts_at(k->params, dims, rows, &why)) guard_fail(a->gd, TN_ERR_INVAL, "kernel %s: %s", k->name, why.s);
    for (int b = 0; b < o->bufs.n; b++) o->bufs.at[b].elems = ext_of(o->bufs.at[b].elems, rows);
    o->grid_blocks = ext_of(o->grid_blocks, rows);
    for (int v = 0; v < o->vars.n; v++) o->vars.at[v].extent = ext_of(o->vars.at[v].extent, rows);
    for (int i = 1; i < o->ins.n; i++) bind_ins(&o->ins.at[i], rows, a);
    o->params = NULL;
    return o;
}

const kernel *kernel_at_most(const kernel *k, arena *a) {
    if (!k->params) return k;
    int64_t *dims = ARENA_ARRAY(a, int64_t, k->params->n_dims + 1);
    for (int i = 0; i < k->params->n_dims; i++) dims[i] = ext_hi(k->params, exts_dim(k->params, i));
    return kernel_at(k, dims, a);
}

/* The rows of k->params that the text of the kernel has. */
static void mark_row(bool *used, ext e) {
    if (!ext_is_lit(e)) used[ext_index(e)] = true;
}
static void mark_affine(bool *used, affine x) {
    mark_row(used, x.base);
    for (int i = 0; i < x.n; i++) mark_row(used, x.t[i].coef);
}

/* Sums and products cost a thread less than being given them does. */
static bool is_computed(const exts *t, int i) {
    const ext_row *r = &t->at.at[i];
    bool fits = r->op == EXT_ADD || r->op == EXT_MUL;
    for (int o = 0; o < 2 && fits; o++) {
        ext x = o ? r->b : r->a;
        fits = ext_lo(t, x) >= INT32_MIN && ext_hi(t, x) <= INT32_MAX;
    }
    return fits;
}

void kernel_used_rows(const kernel *k, bool *used, bool *given) {
    const exts *t = k->params;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && in->par == PAR_GRID_THREADS)
            mark_row(used, k->grid_blocks); /* how far apart its threads go on */
        mark_row(used, in->lo), mark_row(used, in->hi), mark_affine(used, in->idx);
        if (in->dyn) mark_row(used, in->dyn_stride), mark_row(used, in->dyn_n);
        if (in->op == K_LOOP) mark_row(used, in->n_blocks), mark_row(used, in->first_block);
        for (int m = 0; m < in->n_mask; m++)
            mark_row(used, in->mask[m].lo), mark_row(used, in->mask[m].hi), mark_affine(used, in->mask[m].e);
    }
    for (int i = t->at.n - 1; i >= 0; i--) {
        given[i] = used[i] && !is_computed(t, i);
        if (used[i] && !given[i]) mark_row(used, t->at.at[i].a), mark_row(used, t->at.at[i].b);
    }
}

static bool affine_has_params(affine x) {
    bool has = !ext_is_lit(x.base);
    for (int i = 0; i < x.n; i++) has |= !ext_is_lit(x.t[i].coef);
    return has;
}

bool kernel_has_params(const kernel *k) {
    bool has = false;
    for (int b = 0; b < k->bufs.n; b++) has |= !ext_is_lit(k->bufs.at[b].elems);
    for (kvar v = 0; v < k->vars.n; v++) has |= !ext_is_lit(k->vars.at[v].extent);
    for (int i = 1; i < k->ins.n && !has; i++) {
        const kins *in = &k->ins.at[i];
        has = !ext_is_lit(in->lo) || !ext_is_lit(in->hi) || affine_has_params(in->idx) ||
              (in->dyn && (!ext_is_lit(in->dyn_stride) || !ext_is_lit(in->dyn_n)));
        for (int m = 0; m < in->n_mask; m++)
            has |= affine_has_params(in->mask[m].e) || !ext_is_lit(in->mask[m].lo) || !ext_is_lit(in->mask[m].hi);
    }
    return has;
}

/* ---- the check for all values ---- */

typedef struct prover {
    const kernel *k;
    exts *t; /* a copy, which what is proven adds to */
    str *out;
    int n;
    int *open;          /* scratch */
    bool masked;        /* sums of variables that masks bound count as one, .. */
    int first;          /* .. of equally many variables this mask's before others' */
    const kmask *fixed; /* unless NULL: a mask of no variable, .. */
    ext by;             /* .. of whose expression each access has so many */
    bool wide; /* loops go through the whole extents of their variables: tiles, and what is left of them, are then alike */
} prover;

static void problem(prover *p, int r, const char *what) {
    str_addf(p->out, "kernel %s, %%%d: ", p->k->name, r);
    str_add(p->out, what);
    str_add(p->out, "\n");
    p->n++;
}

static void check_loop(prover *p, int r) {
    const kins *in = &p->k->ins.at[r];
    if (in->var < 0 || in->var >= p->k->vars.n) return; /* kernel_check says so */
    ext extent = p->k->vars.at[in->var].extent;
    if (ext_lo(p->t, in->lo) < 0) problem(p, r, "the loop may begin below 0");
    if (!ext_never_less(p->t, extent, in->hi)) problem(p, r, "the loop may run outside its variable's extent");
    bool apart = in->step > 1 && (ext_divisor(p->t, in->hi) % in->step || ext_divisor(p->t, in->lo) % in->step);
    if (apart && ext_divisor(p->t, ext_sub(p->t, in->hi, in->lo)) % in->step)
        problem(p, r, "the last step may end behind the loop");
}

typedef struct range {
    ext lo, hi; /* both included */
} range;

/* Of a loop's variable where the masks hold: those of the variable alone narrow it. */
static range range_of(prover *p, const kins *in, const kins *loop) {
    range r = { loop->lo, ext_add(p->t, loop->hi, -loop->step) };
    if (p->wide) r = (range){ 0, ext_add(p->t, p->k->vars.at[loop->var].extent, -loop->step) };
    for (int m = 0; m < in->n_mask; m++) {
        const kmask *x = &in->mask[m];
        ext way = x->e.n == 1 && x->e.t[0].var == loop->var ? x->e.t[0].coef : 0;
        if (way == 0 || !ext_is_lit(way) || in->mask_lane[m] != 0) continue;
        ext lo = ext_sub(p->t, x->lo, x->e.base), hi = ext_add(p->t, ext_sub(p->t, x->hi, x->e.base), -1);
        if (way < 0) {
            ext top = ext_mul(p->t, lo, -1);
            lo = ext_mul(p->t, hi, -1), hi = top, way = -way;
        }
        lo = ext_ceil_div(p->t, lo, way), hi = ext_floor_div(p->t, hi, way);
        if (ext_never_less(p->t, lo, r.lo)) r.lo = lo;
        if (ext_never_less(p->t, r.hi, hi)) r.hi = hi;
    }
    return r;
}

static bool has_literal_bounds(const kmask *x) { return ext_is_lit(x->e.base) && ext_is_lit(x->lo) && ext_is_lit(x->hi); }

/* Whether the masks that are numbers let a lane through. */
static bool has_lane(const kins *in, int lane) {
    for (int m = 0; m < in->n_mask; m++) {
        const kmask *x = &in->mask[m];
        int64_t at = x->e.base + lane * in->mask_lane[m];
        if (x->e.n == 0 && has_literal_bounds(x) && (at < x->lo || at >= x->hi)) return false;
    }
    return true;
}

/* Multiples of what divides the expression's coefficients. */
static range multiples_in(const affine *e, range v) {
    int64_t by = 0;
    for (int i = 0; i < e->n; i++)
        for (int64_t x = ext_is_lit(e->t[i].coef) ? e->t[i].coef : 1, r; x; x = r) r = by % x, by = x;
    by = by < 0 ? -by : by;
    if (by < 2 || !ext_is_lit(v.lo) || !ext_is_lit(v.hi) || v.lo < 0 || v.hi < 0) return v;
    return (range){ (v.lo + by - 1) / by * by, v.hi / by * by };
}

/* Another mask of the same sum says more: it bounds each lane. */
static bool bounds_lanes_elsewhere(const kins *in, int m) {
    const kmask *x = &in->mask[m];
    bool found = false;
    for (int j = 0; j < in->n_mask && in->lanes > 1 && !in->mask_lane[m]; j++) {
        const kmask *y = &in->mask[j];
        found |= in->mask_lane[j] && in->lane_stride % in->mask_lane[j] == 0 &&
                 affine_equal((affine){ x->e.base, y->e.n, y->e.t }, x->e);
    }
    return found;
}

/* Takes c times the expression of a mask, which has all its variables, out of the index: that adds c times what it can be. */
static void take_masked(prover *p, kins *in, range *out) {
    for (int turn = 0; turn < in->n_mask * (p->k->vars.n + 1); turn++) { /* sums of many variables first */
        int m = (turn + p->first) % in->n_mask;
        const kmask *x = &in->mask[m];
        if (x->e.n != p->k->vars.n - turn / in->n_mask || (x->e.n == 0 && has_literal_bounds(x))) continue;
        if (bounds_lanes_elsewhere(in, m)) continue;
        int64_t lane = in->lanes > 1 ? in->mask_lane[m] : 0;
        ext c = lane && in->lane_stride % lane == 0 ? in->lane_stride / lane : 0;
        ext way = x->e.n ? x->e.t[0].coef : 1;
        bool down = ext_is_lit(way) && way < 0;
        if (way == 0) continue;
        if (x->e.n && !ext_divides(p->t, affine_coef(in->idx, x->e.t[0].var), down ? -way : way, &c)) continue;
        if (down) c = ext_mul(p->t, c, -1);
        bool up = ext_lo(p->t, c) >= 0;
        if (c == 0 || (!up && ext_hi(p->t, c) > 0) || (lane && !ext_is_lit(c))) continue;
        affine rest = in->idx;
        bool whole = true;
        for (int i = 0; i < x->e.n; i++) {
            whole = whole && affine_coef(rest, x->e.t[i].var) == ext_mul(p->t, c, x->e.t[i].coef);
            rest = affine_without(p->k->a, rest, x->e.t[i].var);
        }
        if (!whole) continue;
        in->idx = rest;
        in->lane_stride -= lane ? c * lane : 0;
        range v = { ext_sub(p->t, x->lo, x->e.base), ext_add(p->t, ext_sub(p->t, x->hi, x->e.base), -1) };
        for (int j = 0; j < in->n_mask; j++) { /* of the same sum: the narrowest */
            const kmask *y = &in->mask[j];
            if (!affine_equal((affine){ x->e.base, y->e.n, y->e.t }, x->e) || in->mask_lane[j] != in->mask_lane[m]) continue;
            ext lo = ext_sub(p->t, y->lo, y->e.base), hi = ext_add(p->t, ext_sub(p->t, y->hi, y->e.base), -1);
            v.lo = ext_never_less(p->t, lo, v.lo) ? lo : ext_never_less(p->t, v.lo, lo) ? v.lo : ext_max(p->t, v.lo, lo);
            v.hi = ext_never_less(p->t, v.hi, hi) ? hi : ext_never_less(p->t, hi, v.hi) ? v.hi : ext_min(p->t, v.hi, hi);
        }
        v = multiples_in(&x->e, v);
        out->lo = ext_add(p->t, out->lo, ext_mul(p->t, c, up ? v.lo : v.hi));
        out->hi = ext_add(p->t, out->hi, ext_mul(p->t, c, up ? v.hi : v.lo));
    }
}

/* The least and the largest element of an access; false where a coefficient may have either sign. */
static bool index_range(prover *p, const kins *access, int n_open, range *out) {
    kins own = *access, *in = &own;
    *out = (range){ in->idx.base, in->idx.base };
    if (p->fixed) {
        ext rest = ext_sub(p->t, in->idx.base, ext_mul(p->t, p->fixed->e.base, p->by));
        out->lo = ext_add(p->t, rest, ext_mul(p->t, p->fixed->lo, p->by));
        out->hi = ext_add(p->t, rest, ext_mul(p->t, ext_add(p->t, p->fixed->hi, -1), p->by));
    }
    if (p->masked) take_masked(p, in, out);
    bool local = !p->k->tiled && p->k->bufs.at[in->buf].kind == KB_LOCAL; /* row variables only number copies */
    int first = 0, last = in->lanes - 1;
    for (; first < last && !has_lane(in, first); first++) {
    }
    for (; first < last && !has_lane(in, last); last--) {
    }
    out->lo = ext_add(p->t, out->lo, first * in->lane_stride), out->hi = ext_add(p->t, out->hi, first * in->lane_stride);
    int64_t along = (last - first) * in->lane_stride, packed = in->packed ? (in->packed - 1) * in->packed_stride : 0;
    bool reaches = in->dyn && ext_hi(p->t, in->dyn_n) > 0; /* where dyn_n is 0, nothing is touched */
    ext step[] = { along, packed, reaches ? ext_mul(p->t, ext_add(p->t, in->dyn_n, -1), in->dyn_stride) : 0 };
    for (int i = 0; i < in->idx.n; i++) {
        const kins *loop = NULL;
        ext c = in->idx.t[i].coef;
        for (int l = 0; l < n_open; l++)
            if (p->k->ins.at[p->open[l]].var == in->idx.t[i].var) loop = &p->k->ins.at[p->open[l]];
        if (!loop) return true; /* kernel_check says so */
        if (local && p->k->vars.at[loop->var].row) continue;
        bool up = ext_lo(p->t, c) >= 0;
        if (!up && ext_hi(p->t, c) > 0) return false;
        range v = range_of(p, in, loop);
        out->lo = ext_add(p->t, out->lo, ext_mul(p->t, c, up ? v.lo : v.hi));
        out->hi = ext_add(p->t, out->hi, ext_mul(p->t, c, up ? v.hi : v.lo));
    }
    for (int i = 0; i < 3; i++)
        if (ext_is_lit(step[i]) && step[i] < 0)
            out->lo = ext_add(p->t, out->lo, step[i]);
        else
            out->hi = ext_add(p->t, out->hi, step[i]);
    return true;
}

/* One mask says that no lane goes beyond the buffer. */
static bool is_masked(const prover *p, const kins *in) {
    for (int m = 0; m < in->n_mask && !in->dyn && !in->packed; m++) {
        const kmask *x = &in->mask[m];
        bool lanes = in->lanes == 1 || in->mask_lane[m] == in->lane_stride;
        if (lanes && affine_equal(x->e, in->idx) && ext_lo(p->t, x->lo) >= 0 &&
            ext_never_less(p->t, p->k->bufs.at[in->buf].elems, x->hi))
            return true;
    }
    return false;
}

/* One mask never holds. */
static bool is_never(prover *p, const kins *in, int n_open) {
    for (int m = 0; m < in->n_mask; m++) {
        const kmask *x = &in->mask[m];
        kins e = { .op = K_LOAD, .buf = in->buf, .idx = x->e, .lanes = in->lanes, .lane_stride = in->mask_lane[m] };
        range r;
        e.mask = in->mask, e.mask_lane = in->mask_lane, e.n_mask = in->n_mask;
        if (!index_range(p, &e, n_open, &r)) continue;
        if (ext_never_less(p->t, r.lo, x->hi) || ext_never_less(p->t, ext_add(p->t, x->lo, -1), r.hi)) return true;
    }
    return false;
}

static bool is_inside(prover *p, const kins *in, int n_open, bool wide, range *x) {
    p->wide = wide;
    bool known = index_range(p, in, n_open, x);
    p->wide = false;
    ext last = ext_add(p->t, p->k->bufs.at[in->buf].elems, -1);
    return known && ext_never_less(p->t, x->lo, 0) && ext_never_less(p->t, last, x->hi);
}

/* By mask p->fixed, which has no variables: p->by times its expression goes out of the index's base, as often its bounds come
 * in. That holds for any number from 0 on; `part` of the base, which is there `times` over, its terms and factors say which
 * ones may help. */
static bool is_inside_by(prover *p, const kins *in, int n_open, ext part, int64_t times) {
    const ext_row *r = ext_is_lit(part) ? NULL : exts_row(p->t, part);
    range x;
    if (r && (r->op == EXT_ADD || r->op == EXT_MUL)) {
        ext of[2] = { r->a, r->b }; /* the table may move */
        bool sum = r->op == EXT_ADD;
        for (int i = 0; i < 2; i++) { /* of a product: what is beside it may be the rest of the expression */
            int64_t more = times, other = ext_is_lit(of[!i]) && of[!i] ? of[!i] : 1;
            if (!sum && __builtin_mul_overflow(times, other < 0 ? -other : other, &more)) return false;
            if (is_inside_by(p, in, n_open, of[i], more)) return true;
            p->by = ext_mul(p->t, ext_is_lit(of[i]) && of[i] < 0 ? -of[i] : of[i], times);
            if (!sum && ext_lo(p->t, p->by) >= 0 && is_inside(p, in, n_open, false, &x)) return true;
        }
    }
    if (!p->fixed->e.base || !ext_divides(p->t, part, p->fixed->e.base, &p->by) || ext_lo(p->t, p->by) < 0) return false;
    p->by = ext_mul(p->t, p->by, times);
    return is_inside(p, in, n_open, false, &x);
}

static ext without_number(exts *t, ext e) {
    const ext_row *r = ext_is_lit(e) ? NULL : exts_row(t, e);
    ext by = r && r->op == EXT_MUL && ext_is_lit(r->b) ? r->b : 1, sum = by == 1 ? e : r->a;
    const ext_row *s = ext_is_lit(sum) ? NULL : exts_row(t, sum);
    return s && s->op == EXT_ADD && ext_is_lit(s->b) ? ext_mul(t, s->a, by) : e;
}

/* x is never below 0, or as often less what a mask leaves, which is not, as x has what that has of dims. */
static bool never_below_by(prover *p, ext x, const ext *room) {
    bool proven = ext_never_less(p->t, x, 0);
    for (int i = 0; i < 2 && !proven; i++) {
        ext times;
        proven = ext_never_less(p->t, ext_sub(p->t, x, room[i]), 0) ||
                 (ext_divides(p->t, without_number(p->t, x), without_number(p->t, room[i]), &times) &&
                  ext_lo(p->t, times) > 1 && ext_never_less(p->t, ext_sub(p->t, x, ext_mul(p->t, room[i], times)), 0));
    }
    return proven;
}

/* A mask without variables holds: what it says of dims makes a place that has nothing to do with it one of the buffer. */
static bool is_there_where(prover *p, const kins *in, int n_open, const kmask *m) {
    range x;
    ext room[] = { ext_sub(p->t, m->e.base, m->lo), ext_add(p->t, ext_sub(p->t, m->hi, m->e.base), -1) };
    ext last = ext_add(p->t, p->k->bufs.at[in->buf].elems, -1);
    return index_range(p, in, n_open, &x) && never_below_by(p, x.lo, room) &&
           never_below_by(p, ext_sub(p->t, last, x.hi), room);
}

/* By a mask that compares dims with each other. */
static bool is_inside_where(prover *p, const kins *in, int n_open) {
    bool inside = false;
    for (int turn = 0; turn < 2 * in->n_mask && !inside; turn++) { /* at last with all others, too */
        int m = turn % in->n_mask;
        range x;
        p->fixed = &in->mask[m], p->by = 1, p->masked = turn >= in->n_mask;
        if (p->fixed->e.n || in->mask_lane[m] || has_literal_bounds(p->fixed)) continue;
        inside = is_inside(p, in, n_open, false, &x) || is_inside_by(p, in, n_open, in->idx.base, 1);
        for (int i = 0; i < in->idx.n && !inside; i++) /* or as the places of an axis beside it say, which is so long */
            inside = ext_divides(p->t, in->idx.t[i].coef, p->fixed->hi, &p->by) && ext_lo(p->t, p->by) >= 0 &&
                     is_inside(p, in, n_open, false, &x);
    }
    p->fixed = NULL, p->masked = false;
    for (int m = 0; m < in->n_mask && !inside; m++)
        inside = !in->mask[m].e.n && !in->mask_lane[m] && !has_literal_bounds(&in->mask[m]) &&
                 is_there_where(p, in, n_open, &in->mask[m]);
    return inside;
}

static bool is_proven(prover *p, int r) {
    const kins *in = &p->k->ins.at[r];
    if (is_masked(p, in)) return true;
    int n_open = kernel_open_loops(p->k, (reg)r, p->open);
    range x;
    bool inside = false;
    p->masked = true;
    for (p->first = 0; p->first < in->n_mask && !inside; p->first++) inside = is_inside(p, in, n_open, false, &x);
    p->masked = false, p->first = 0;
    return inside || is_inside(p, in, n_open, true, &x) || is_inside(p, in, n_open, false, &x) || is_never(p, in, n_open) ||
           is_inside_where(p, in, n_open);
}

static void check_access(prover *p, int r) {
    const kins *in = &p->k->ins.at[r];
    range x;
    if (is_proven(p, r)) return;
    if (!index_range(p, in, kernel_open_loops(p->k, (reg)r, p->open), &x)) {
        problem(p, r, "a coefficient may have either sign");
        return;
    }
    str text;
    str_init(&text, p->k->a);
    str_addf(&text, "touches elements of b%d from ", in->buf);
    ext_print(p->t, x.lo, false, &text);
    str_add(&text, " to ");
    ext_print(p->t, x.hi, false, &text);
    str_add(&text, ", which are not proven to be among its ");
    ext_print(p->t, p->k->bufs.at[in->buf].elems, false, &text);
    problem(p, r, text.s);
}

/* The loop that threads share around instruction r, or NULL. */
static const kins *shared_loop(const prover *p, int n_open) {
    for (int l = 0; l < n_open; l++)
        if (p->k->ins.at[p->open[l]].par) return &p->k->ins.at[p->open[l]];
    return NULL;
}

/* The ends of accesses that are not known to be inside of another one's: those that differ by a number are one. */
typedef VEC(ext) ends;
static void add_end(prover *p, ends *x, ext e, bool least) {
    for (int i = 0; i < x->n; i++) {
        ext d = ext_sub(p->t, e, x->at[i]);
        if (!ext_is_lit(d)) continue;
        if (least ? d < 0 : d > 0) x->at[i] = e;
        return;
    }
    VEC_PUSH(p->k->a, x, e);
}

/* As index_range, with the iterations of the given loop as they are. */
static bool range_around(prover *p, const kins *access, const kins *loop, int n_open, bool wide, range *out) {
    kins in = *access;
    ext c = affine_coef(in.idx, loop->var);
    in.idx = affine_without(p->k->a, in.idx, loop->var);
    p->wide = wide;
    bool known = ext_lo(p->t, c) >= 0 && index_range(p, &in, n_open, out);
    p->wide = false;
    out->lo = ext_add(p->t, out->lo, ext_mul(p->t, c, loop->lo));
    out->hi = ext_add(p->t, out->hi, ext_mul(p->t, c, ext_add(p->t, loop->hi, -loop->step)));
    return known;
}

/* What one thread alone does behind the loop that all share begins behind what that touches. */
static bool is_behind(prover *p, int b, bool wide) {
    ends shared = { 0 }, last = { 0 };
    for (int r = 1; r < p->k->ins.n; r++) {
        const kins *in = &p->k->ins.at[r];
        range x;
        if (!kernel_touches(in) || in->buf != b || in->op == K_PREFETCH) continue;
        int n_open = kernel_open_loops(p->k, (reg)r, p->open);
        const kins *loop = shared_loop(p, n_open);
        if (!loop || !range_around(p, in, loop, n_open, wide, &x)) return false;
        if (loop->par == PAR_LAST)
            add_end(p, &last, x.lo, true);
        else
            add_end(p, &shared, x.hi, false);
    }
    for (int i = 0; i < last.n; i++)
        for (int j = 0; j < shared.n; j++)
            if (!ext_never_less(p->t, last.at[i], ext_add(p->t, shared.at[j], 1))) return false;
    return true;
}

/* All accesses to b by the loop that threads share: the ends of their indices without its variable, whose coefficient, which
 * all have, is *coef. */
static bool rest_ends(prover *p, int b, ends *lo, ends *hi, ext *coef, int64_t *step) {
    for (int r = 1; r < p->k->ins.n; r++) {
        kins in = p->k->ins.at[r];
        if (!kernel_touches(&in) || in.buf != b || in.op == K_PREFETCH) continue;
        int n_open = kernel_open_loops(p->k, (reg)r, p->open);
        const kins *loop = shared_loop(p, n_open);
        if (!loop || in.dyn) return false;
        if (loop->par == PAR_LAST) continue;
        ext c = affine_coef(in.idx, loop->var);
        range x;
        in.idx = affine_without(p->k->a, in.idx, loop->var);
        if (c == 0 || (lo->n && c != *coef) || !index_range(p, &in, n_open, &x)) return false;
        add_end(p, lo, x.lo, true), add_end(p, hi, x.hi, false);
        *coef = c, *step = loop->step;
    }
    return lo->n > 0;
}

/* Iterations are further apart than anything that one of them touches. */
static bool is_apart(prover *p, int b, bool wide) {
    ends lo = { 0 }, hi = { 0 };
    ext coef = 0;
    int64_t step = 1;
    p->wide = wide;
    bool apart = rest_ends(p, b, &lo, &hi, &coef, &step);
    p->wide = false;
    for (int i = 0; apart && i < lo.n; i++)
        for (int j = 0; apart && j < hi.n; j++)
            apart = ext_never_less(p->t, ext_mul(p->t, coef, step), ext_add(p->t, ext_sub(p->t, hi.at[j], lo.at[i]), 1));
    return apart;
}

static void check_races(prover *p, int b) {
    bool written = false;
    for (int r = 1; r < p->k->ins.n; r++) {
        const kins *in = &p->k->ins.at[r];
        written = written || ((in->op == K_STORE || in->op == K_SCATTER) && in->buf == b);
    }
    if (!written || kbuf_is_local(&p->k->bufs.at[b])) return;
    if ((is_apart(p, b, true) && is_behind(p, b, true)) || (is_apart(p, b, false) && is_behind(p, b, false))) return;
    problem(p, 0, arena_printf(p->k->a, "iterations of the parallel loop are not proven to touch other elements of b%d", b));
}

/* The kernel where each dim has its least value, or one a little above: what does not depend on the values shows there. */
static int check_sample(const kernel *k, int64_t above, str *out) {
    int64_t *dims = ARENA_ARRAY(k->a, int64_t, k->params->n_dims + 1), at = 0;
    for (int i = 0; i < k->params->at.n; i++) {
        const ext_row *r = &k->params->at.at[i];
        if (r->op != EXT_DIM) continue;
        at = r->lo > INT64_MAX - above * r->divisor ? r->lo : r->lo + above * r->divisor;
        dims[r->number] = at < r->hi ? at : r->hi;
    }
    str why;
    str_init(&why, k->a);
    if (exts_at(k->params, dims, ARENA_ARRAY(k->a, int64_t, k->params->at.n + 1), &why))
        return kernel_check_literal(kernel_at(k, dims, k->a), out);
    str_addf(out, "kernel %s, %%0: %s\n", k->name, why.s);
    return 1;
}

/* Whether an access is by literals alone, in loops of which each stays within a literal extent. */
static bool is_literal(const kernel *k, const kins *in) {
    bool literal = ext_is_lit(k->bufs.at[in->buf].elems) && !affine_has_params(in->idx);
    literal = literal && (!in->dyn || (ext_is_lit(in->dyn_stride) && ext_is_lit(in->dyn_n)));
    for (int m = 0; m < in->n_mask; m++)
        literal = literal && !affine_has_params(in->mask[m].e) && ext_is_lit(in->mask[m].lo) && ext_is_lit(in->mask[m].hi);
    for (int i = 0; i < in->idx.n; i++) literal = literal && ext_is_lit(k->vars.at[in->idx.t[i].var].extent);
    return literal;
}

/* A kernel for GPUs whose loops go through the extents of their variables, which are literals: no other values reach further,
 * in buffers that are as large as any values make them. */
static int check_widest(const kernel *k, str *out) {
    kernel *o = (kernel *)(uintptr_t)kernel_at_most(k, k->a); /* its own */
    bool widened = false;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOOP || ext_is_lit(in->hi) || !ext_is_lit(k->vars.at[in->var].extent)) continue;
        o->ins.at[i].hi = k->vars.at[in->var].extent;
        widened |= in->par == PAR_BLOCKS;
    }
    for (int b = 0; b < k->bufs.n; b++) o->bufs.at[b].elems = ext_hi(k->params, k->bufs.at[b].elems);
    int64_t all = 0;
    for (int i = 1; i < k->ins.n && widened; i++) {
        kins *nest = &o->ins.at[i];
        if (nest->op != K_LOOP) continue;
        int64_t n = nest->par == PAR_BLOCKS ? kernel_nest_size(o, (reg)i) : nest->n_blocks;
        if (nest->n_blocks)
            nest->n_blocks = n, nest->first_block = all, o->grid_blocks = all += n;
        else if (nest->par == PAR_BLOCKS)
            o->grid_blocks = n;
        i = kernel_loop_end(k, i);
    }
    return kernel_check_literal(o, out);
}

static prover prover_make(const kernel *k, str *out) {
    return (prover){ .k = k, .t = exts_clone(k->params, k->a), .out = out, .open = ARENA_ARRAY(k->a, int, k->ins.n) };
}

static bool has_to_be_proven(const kernel *k, int r) {
    kop op = (kop)k->ins.at[r].op;
    return (op == K_LOAD || op == K_STORE || op == K_SCATTER) && !(k->block_threads && is_literal(k, &k->ins.at[r]));
}

void kernel_mark_unproven(const kernel *k, bool *out) {
    prover p = prover_make(k, NULL);
    for (int r = 1; r < k->ins.n; r++) out[r] = has_to_be_proven(k, r) && !is_proven(&p, r);
    for (int r = 1; r < k->ins.n && p.t->problem; r++)
        out[r] = has_to_be_proven(k, r); /* numbers that do not fit prove nothing */
}

int kernel_check(const kernel *k, str *out) {
    if (!k->params) return kernel_check_literal(k, out);
    prover p = prover_make(k, out);
    for (int b = 0; b < k->bufs.n; b++)
        if (!ext_is_size(p.t, k->bufs.at[b].elems)) problem(&p, 0, "a buffer may have less than no elements");
    p.n += p.n ? 0 : check_sample(k, 0, out);
    p.n += p.n ? 0 : check_sample(k, 2, out);
    p.n += p.n || !k->block_threads ? 0 : check_widest(k, out);
    for (int r = 1; r < k->ins.n && !p.n; r++) {
        if (k->ins.at[r].op == K_LOOP) check_loop(&p, r);
        if (has_to_be_proven(k, r)) check_access(&p, r);
    }
    for (int b = 0; b < k->bufs.n && k->tiled && k->par_var >= 0 && !p.n; b++) check_races(&p, b);
    if (p.t->problem && !p.n) problem(&p, 0, p.t->problem);
    return p.n;
}
