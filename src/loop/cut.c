/* cut.c - implementation of cut.h. All memory is of the scalar kernel's arena; sizes that are computed here are more rows of
 * its table.
 *
 * Where distances in memory are given by a run, too, the kernel for most rows has distances of its own: larger than any run's,
 * so that no two loops walk memory as one, and divisible by no higher power of two, so that no vector is taken for aligned.
 * What a schedule makes of an index is then written back: a coefficient is a multiple of the largest distance below it. */
#include "loop/cut.h"
#include "ir/kernel_walk.h"
#include "loop/build.h"
#include "loop/gpu_bind.h"

enum { MOST_LEVELS = 6, MOST_HI = 1 << 28 };

/* A coordinate of a buffer of which a run gives the distance of neighbours, or how many there are. */
typedef struct level {
    int64_t apart; /* in the literal kernel */
    ext coef, n;
    bool sum;   /* it is summed over */
    bool whole; /* the index itself */
} level;
typedef struct levels { /* of a buffer: the largest distance first */
    int n;
    level at[MOST_LEVELS];
} levels;
typedef struct cutter {
    const kernel *k;
    int64_t *apart; /* [rows of the table] what distances are made of in the literal kernel */
    levels *of;     /* [bufs] */
    int64_t *last;  /* [vars of what is cut] the largest value of each */
    int *open;      /* scratch: [instructions] */
    bool spread;    /* distances are given by a run, too */
} cutter;

static int64_t power_from(int64_t n) {
    int64_t p = 1;
    while (p < n) p *= 2;
    return p;
}

static int64_t most_of(const cutter *c, ext e) {
    return c->spread ? power_from(ext_hi(c->k->params, e)) : ext_hi(c->k->params, e);
}

static bool is_global(const kernel *k, const kins *in) { return kernel_touches(in) && !kbuf_is_local(&k->bufs.at[in->buf]); }

static bool add_level(levels *x, level l) {
    int i = 0;
    while (i < x->n && x->at[i].apart > l.apart) i++;
    if (i < x->n && x->at[i].apart == l.apart) {
        x->at[i].sum |= l.sum;
        return x->at[i].coef == l.coef && x->at[i].n == l.n;
    }
    if (x->n == MOST_LEVELS) return false;
    memmove(&x->at[i + 1], &x->at[i], sizeof(level) * (size_t)(x->n - i));
    x->at[i] = l, x->n++;
    return true;
}

static bool add_levels(cutter *c, const kins *in) {
    const kernel *k = c->k;
    for (int i = 0; i < in->idx.n; i++) {
        const kvar_info *v = &k->vars.at[in->idx.t[i].var];
        ext coef = in->idx.t[i].coef;
        if (ext_is_lit(coef) && ext_is_lit(v->extent)) continue;
        int64_t apart = ext_of(coef, c->apart);
        if (apart < 1 || (!ext_is_lit(coef) && ext_divisor(k->params, coef) % (apart & -apart))) return false;
        if (!add_level(&c->of[in->buf], (level){ .apart = apart, .coef = coef, .n = v->extent, .sum = v->reduce }))
            return false;
    }
    return true;
}

/* Rows that fill a buffer, one after the other, end with it: whatever lies inside of one needs no coordinates. */
static void join_rows(const cutter *c, int buf) {
    level *l = &c->of[buf].at[0];
    ext elems = c->k->bufs.at[buf].elems;
    if (c->spread || c->of[buf].n != 1 || ext_mul(c->k->params, l->n, l->coef) != elems) return;
    *l = (level){ .apart = 1, .coef = 1, .n = elems, .sum = l->sum, .whole = true };
}

/* What is no level of the access lies below all of them. */
static bool rest_is_below(const cutter *c, const kins *in) {
    const levels *x = &c->of[in->buf];
    int64_t reach = in->idx.base;
    if (!x->n || x->at[0].whole) return true;
    if (!ext_is_lit(reach) || reach < 0) return false;
    for (int i = 0; i < in->idx.n; i++) {
        const kvar_info *v = &c->k->vars.at[in->idx.t[i].var];
        ext coef = in->idx.t[i].coef;
        if (!ext_is_lit(coef) || !ext_is_lit(v->extent)) continue;
        if (coef < 0) return false;
        reach += coef * (v->extent - 1);
    }
    return reach < x->at[x->n - 1].apart;
}

/* A value that is zero behind the end of loop v: loaded there. */
static bool is_loaded_along(const kernel *k, reg r, kvar v) {
    while (k->ins.at[r].op == K_CAST) r = k->ins.at[r].a;
    return k->ins.at[r].op == K_LOAD && is_global(k, &k->ins.at[r]) && affine_coef(k->ins.at[r].idx, v) != 0;
}

/* What stands in loops whose iterations a run gives does nothing behind their ends: it adds zeros, and stores nothing. */
static bool ends_in_zeros(const cutter *c, int i) {
    const kernel *k = c->k;
    const kins *in = &k->ins.at[i];
    bool stores = (in->op == K_STORE || in->op == K_SCATTER) && !kbuf_is_local(&k->bufs.at[in->buf]);
    if (in->op == K_SCATTER) return false;
    int *open = c->open, n = kernel_open_loops(k, (reg)i, open);
    for (int l = 0; l < n; l++) {
        kvar v = k->ins.at[open[l]].var;
        bool sum = k->vars.at[v].reduce;
        if (ext_is_lit(k->vars.at[v].extent)) continue;
        if (stores && (sum || !affine_coef(in->idx, v))) return false;
        if (!sum || (in->op != K_UPD && in->op != K_ARGUPD)) continue;
        if (in->op != K_UPD || in->alu != OP_dot || !is_loaded_along(k, in->a, v) || !is_loaded_along(k, in->b, v))
            return false;
    }
    return true;
}

static bool affine_is_lit(affine x) {
    bool lit = ext_is_lit(x.base);
    for (int i = 0; i < x.n; i++) lit &= ext_is_lit(x.t[i].coef);
    return lit;
}

/* Whether the scalar kernel's instruction is one that can be cut. */
static bool is_known(cutter *c, int i) {
    const kernel *k = c->k;
    const kins *in = &k->ins.at[i];
    if (in->op == K_LOOP) {
        bool run = !ext_is_lit(in->hi);
        return in->lo == 0 && in->hi == k->vars.at[in->var].extent && (!run || ext_hi(k->params, in->hi) <= MOST_HI);
    }
    for (int m = 0; m < in->n_mask; m++)
        if (!affine_is_lit(in->mask[m].e) || !ext_is_lit(in->mask[m].lo) || !ext_is_lit(in->mask[m].hi)) return false;
    if (in->dyn && !ext_is_lit(in->dyn_stride)) return false;
    if (!is_global(k, in)) return affine_is_lit(in->idx) && ends_in_zeros(c, i);
    c->spread |= !affine_is_lit(in->idx);
    return ends_in_zeros(c, i);
}

/* Distances: of an odd multiple of what divides a dim, above all extents. */
static void find_distances(cutter *c) {
    const exts *t = c->k->params;
    exts *wide = exts_clone(t, c->k->a);
    int64_t *dims = ARENA_ARRAY(c->k->a, int64_t, t->n_dims + 1);
    for (int i = 0; i < wide->at.n; i++) {
        ext_row *r = &wide->at.at[i];
        if (r->op != EXT_DIM) continue;
        dims[r->number] = r->hi;
        if (!c->spread) continue;
        int64_t times = 2 * power_from(r->hi) / r->divisor + 1;
        dims[r->number] = r->hi = (times + !(times % 2)) * r->divisor;
    }
    c->apart = ARENA_ARRAY(c->k->a, int64_t, t->at.n + 1);
    if (!exts_at(wide, dims, c->apart, NULL)) c->apart = NULL;
}

static bool cutter_make(cutter *c, const kernel *k) {
    *c = (cutter){ .k = k, .of = ARENA_ARRAY(k->a, levels, k->bufs.n + 1), .open = ARENA_ARRAY(k->a, int, k->ins.n) };
    if (!gpu_outer_loops(k)) return false;
    for (int i = 0; i < k->params->n_dims; i++)
        if (ext_hi(k->params, exts_dim(k->params, i)) > MOST_HI) return false;
    for (int b = 0; b < k->bufs.n; b++)
        if (kbuf_is_local(&k->bufs.at[b]) && !ext_is_lit(k->bufs.at[b].elems)) return false;
    for (int i = 1; i < k->ins.n; i++)
        if (!is_known(c, i)) return false;
    find_distances(c);
    for (int i = 1; i < k->ins.n && c->apart; i++)
        if (is_global(k, &k->ins.at[i]) && !add_levels(c, &k->ins.at[i])) return false;
    for (int b = 0; b < k->bufs.n && c->apart; b++) join_rows(c, b);
    for (int i = 1; i < k->ins.n && c->apart; i++)
        if (is_global(k, &k->ins.at[i]) && !rest_is_below(c, &k->ins.at[i])) return false;
    return c->apart;
}

kernel *loop_most(const kernel *k) {
    cutter c;
    if (!cutter_make(&c, k)) return NULL;
    kernel *o = kernel_clone(k, k->a);
    for (int b = 0; b < o->bufs.n; b++) o->bufs.at[b].elems = ext_of(o->bufs.at[b].elems, c.apart);
    for (kvar v = 0; v < o->vars.n; v++)
        if (!ext_is_lit(o->vars.at[v].extent)) o->vars.at[v].extent = most_of(&c, o->vars.at[v].extent);
    for (int i = 1; i < o->ins.n; i++) {
        kins *in = &o->ins.at[i];
        if (in->op == K_LOOP) in->hi = o->vars.at[in->var].extent;
        if (in->dyn) in->dyn_n = ext_of(in->dyn_n, c.apart);
        kterm *t = arena_copy(k->a, in->idx.t, sizeof(kterm) * (size_t)in->idx.n);
        for (int j = 0; j < in->idx.n; j++) t[j].coef = ext_of(t[j].coef, c.apart);
        in->idx.t = t;
    }
    o->params = NULL;
    return o;
}

/* ---- what a schedule made of it, cut ---- */

typedef struct places { /* an index by coordinates: [levels] of the buffer, and what lies below all of them */
    affine at[MOST_LEVELS + 1];
    int64_t lane[MOST_LEVELS + 1];
} places;

static int level_of(const levels *x, int64_t distance) {
    int l = 0;
    while (l < x->n && x->at[l].apart > distance) l++;
    return l;
}

static int64_t apart_at(const levels *x, int l) { return l < x->n ? x->at[l].apart : 1; }

/* Without variables whose only value is zero. */
static affine without_zeros(const cutter *c, affine e) {
    for (int i = e.n - 1; i >= 0; i--)
        if (!c->last[e.t[i].var]) e = affine_without(c->k->a, e, e.t[i].var);
    return e;
}

/* A mask may say more of a coordinate than its loops. */
static void narrow(const cutter *c, const kins *in, const places *p, int n, int64_t *most) {
    for (int m = 0; m < in->n_mask; m++) {
        affine e = without_zeros(c, in->mask[m].e);
        for (int l = 0; l <= n; l++)
            if (affine_equal(e, p->at[l]) && in->mask_lane[m] == p->lane[l] && in->mask[m].hi - 1 < most[l])
                most[l] = in->mask[m].hi - 1;
    }
}

/* False where the index is none of coordinates, or one of them reaches into the next one. */
static bool find_places(const cutter *c, const kernel *o, const levels *x, const kins *in, places *p) {
    int64_t most[MOST_LEVELS + 1] = { 0 }, base = in->idx.base, reach = 0;
    *p = (places){ { in->idx }, { in->lane_stride } };
    if (x->n && x->at[0].whole) return true;
    *p = (places){ 0 };
    if (base < 0 || in->lane_stride < 0) return false;
    for (int l = 0; l <= x->n; l++) most[l] = base / apart_at(x, l), p->at[l] = affine_const(most[l]), base %= apart_at(x, l);
    for (int i = 0; i < in->idx.n; i++) {
        int64_t coef = in->idx.t[i].coef;
        int l = level_of(x, coef);
        if (!c->last[in->idx.t[i].var]) continue;
        if (coef < 0 || coef % apart_at(x, l)) return false;
        most[l] += coef / apart_at(x, l) * c->last[in->idx.t[i].var];
        p->at[l] = build_plus(o->a, p->at[l], affine_var(o->a, in->idx.t[i].var), coef / apart_at(x, l));
    }
    if (in->lanes > 1 && in->lane_stride) {
        int l = level_of(x, in->lane_stride);
        p->lane[l] = in->lane_stride / apart_at(x, l), most[l] += (in->lanes - 1) * p->lane[l];
        if (in->lane_stride % apart_at(x, l) || (l < x->n && !ext_is_lit(x->at[l].coef))) return false;
    }
    narrow(c, in, p, x->n, most);
    for (int l = x->n; l > 0; l--) {
        reach += most[l] * apart_at(x, l);
        if (reach >= x->at[l - 1].apart) return false;
    }
    return true;
}

/* The level of a load that is summed over and has as many elements as a run says; -1: it has none. */
static int sum_level(const cutter *c, const kins *in) {
    int found = -1;
    for (int l = 0; l < c->of[in->buf].n; l++)
        if (c->of[in->buf].at[l].sum && !ext_is_lit(c->of[in->buf].at[l].n)) found = l;
    return found;
}

/* What is summed over is zero behind its end, wherever it lies. */
static bool is_cut(const cutter *c, const kernel *o, const kins *in) {
    if (in->op == K_PREFETCH && !c->spread) return false;
    return !ext_is_lit(o->bufs.at[in->buf].elems) || (c->spread && c->of[in->buf].n) || sum_level(c, in) >= 0;
}

static bool find_access(const cutter *c, const kernel *o, const kins *in, places *p) {
    if (!is_cut(c, o, in)) return true;
    if (in->dyn && c->of[in->buf].n) return false; /* a table's rows are chosen, of whole ones */
    return (in->op == K_LOAD || in->op == K_STORE) && !in->packed && find_places(c, o, &c->of[in->buf], in, p);
}

/* How many iterations of the loop at `head` reach what a store writes; its own number where one has to do them all. */
static ext reached(const cutter *c, const kernel *o, const places *at, int head) {
    const kins *loop = &o->ins.at[head];
    ext most = 0;
    for (int i = head + 1, end = kernel_loop_end(o, head); i < end; i++) {
        const kins *in = &o->ins.at[i];
        if (in->op != K_STORE || !is_global(o, in)) continue;
        ext n = 0;
        bool up = in->idx.base >= 0 && in->lane_stride >= 0;
        for (int t = 0; t < in->idx.n; t++) up &= in->idx.t[t].coef > 0;
        for (int l = 0; l < c->of[in->buf].n && up; l++) {
            int64_t coef = affine_coef(at[i].at[l], loop->var);
            if (coef > 0) n = n ? loop->hi : ext_ceil_div(o->params, c->of[in->buf].at[l].n, coef);
        }
        if (!n) return loop->hi;
        most = most ? ext_max(o->params, most, n) : n;
    }
    return most && loop->lo == 0 ? ext_min(o->params, most, loop->hi) : loop->hi;
}

typedef struct sum_loop { /* loads `each` more elements of a sum in each iteration, `ahead` of what it adds */
    int head, end;
    int64_t each, ahead;
    ext n; /* of the sum */
} sum_loop;

/* Whether a load of elements that are summed over is one of the loop's, or of those before it. */
static bool is_in_order(const cutter *c, const kernel *o, const places *p, int i, sum_loop *s) {
    const kins *in = &o->ins.at[i], *loop = &o->ins.at[s->head];
    int l = sum_level(c, in);
    bool inside = i > s->head && i < s->end;
    if (l < 0) return !inside || (in->op == K_LOAD && !gpu_uses(in, loop->var));
    affine x = p->at[l];
    int64_t each = affine_coef(x, loop->var) * loop->step, least = x.base, most = x.base + (in->lanes - 1) * p->lane[l];
    for (int t = 0; t < x.n; t++)
        if (x.t[t].var != loop->var) most += x.t[t].coef * c->last[x.t[t].var];
    if (!inside) return i < s->head && !each && most < s->ahead * s->each;
    if (each < 1 || (s->each && (each != s->each || c->of[in->buf].at[l].n != s->n || least / each != s->ahead))) return false;
    s->each = each, s->n = c->of[in->buf].at[l].n, s->ahead = least / each;
    return in->op == K_LOAD && most < (s->ahead + 1) * each;
}

/* How many iterations of the loop at `head` load what there is: what else it would load are zeros. All of them are alike but
 * for the places of their loads, so that with fewer of them those before the loop, and what follows it, still fit. */
static ext summed(const cutter *c, const kernel *o, const places *at, int head) {
    const kins *loop = &o->ins.at[head];
    sum_loop s = { .head = head, .end = kernel_loop_end(o, head) };
    for (int i = head + 1; i < s.end; i++) {
        if (is_global(o, &o->ins.at[i]) ? !is_in_order(c, o, &at[i], i, &s) : gpu_uses(&o->ins.at[i], loop->var))
            return loop->hi;
    }
    for (int i = 1; i < o->ins.n && s.each; i++)
        if (is_global(o, &o->ins.at[i]) && !is_in_order(c, o, &at[i], i, &s)) return loop->hi;
    if (!s.each) return loop->hi;
    ext n = ext_sub(o->params, ext_ceil_div(o->params, s.n, s.each), s.ahead);
    return ext_min(o->params, ext_mul(o->params, s.ahead ? ext_max(o->params, n, 0) : n, loop->step), loop->hi);
}

/* The nests of the grid end with the last row. */
static void cut_grid(const cutter *c, kernel *o, const places *at) {
    ext blocks = 0;
    int nests = 0, of_blocks = 0;
    for (int i = 1; i < o->ins.n; i++) {
        kpar par = (kpar)o->ins.at[i].par;
        if (o->ins.at[i].op != K_LOOP) continue;
        if (par == PAR_GRID_THREADS || par == PAR_BLOCKS) nests++, of_blocks += par == PAR_BLOCKS;
        i = kernel_loop_end(o, i);
    }
    if (o->cluster || !nests || (of_blocks && nests > 1)) return;
    for (int i = 1; i < o->ins.n; i++) {
        kins *in = &o->ins.at[i];
        if (in->op != K_LOOP) continue;
        int end = kernel_loop_end(o, i);
        ext n = 0;
        for (int l = kernel_nest(o, (reg)i) - 1; l >= 0; l--) {
            if (in->par == PAR_GRID_THREADS || in->par == PAR_BLOCKS) in[l].hi = reached(c, o, at, i + l);
            ext own = ext_sub(o->params, in[l].hi, in[l].lo);
            n = l == kernel_nest(o, (reg)i) - 1 ? own : ext_mul(o->params, n, own);
        }
        if (in->par == PAR_GRID_THREADS) n = ext_ceil_div(o->params, n, o->block_threads);
        blocks = blocks ? ext_max(o->params, blocks, n) : n;
        i = end;
    }
    o->grid_blocks = of_blocks ? blocks : ext_min(o->params, blocks, o->grid_blocks);
}

/* A variable that all its loops go through has the scalar kernel's extent; steps may have left the last ones out. One of thread
 * blocks has as many values as are left of them where distances are a run's, too: its accesses are proven with these. */
static void find_extents(const cutter *c, kernel *o) {
    const kernel *k = c->k;
    for (int i = 1; i < o->ins.n && c->spread; i++) {
        const kins *in = &o->ins.at[i];
        int loops = 0;
        for (int j = 1; j < o->ins.n; j++) loops += o->ins.at[j].op == K_LOOP && o->ins.at[j].var == in->var;
        if (in->op == K_LOOP && in->par == PAR_BLOCKS && in->var >= k->vars.n && loops == 1)
            o->vars.at[in->var].extent = in->hi;
    }
    for (kvar v = 0; v < k->vars.n && v < o->vars.n; v++) {
        ext n = k->vars.at[v].extent;
        for (int i = 1; i < o->ins.n; i++)
            if (o->ins.at[i].op == K_LOOP && o->ins.at[i].var == v && o->ins.at[i].hi != n) n = o->vars.at[v].extent;
        o->vars.at[v].extent = n;
    }
}

/* The coordinate is a loop's variable, which ends with it. */
static bool ends_with(const kernel *o, affine coordinate, ext n) {
    bool ends = coordinate.n == 1 && coordinate.t[0].coef == 1 && coordinate.base == 0;
    for (int i = 1; i < o->ins.n && ends; i++)
        if (o->ins.at[i].op == K_LOOP && o->ins.at[i].var == coordinate.t[0].var) ends = o->ins.at[i].hi == n;
    return ends;
}

static void bound(kernel *o, kins *in, affine e, int64_t lane, ext n) {
    build_mask(o->a, in, e, 0, n, 0);
    if (in->op == K_LOAD && in->mode == LOAD_UNMASKED) in->mode = LOAD_HOISTED; /* it is zero behind the bound */
    in->mask_lane[in->n_mask - 1] = in->lanes > 1 ? lane : 0;
}

/* Of a table, of which loop_most has said that it is as long as it can be. */
static void cut_table(const cutter *c, kins *in) {
    for (int i = 1; i < c->k->ins.n && in->dyn; i++) {
        const kins *x = &c->k->ins.at[i];
        bool same = x->dyn && x->buf == in->buf && x->dyn_stride == in->dyn_stride && ext_of(x->dyn_n, c->apart) == in->dyn_n;
        if (same) in->dyn_n = x->dyn_n;
        if (same) return;
    }
}

/* The access by the run's distances, bounded by its numbers. inside: it is in its buffer without that. */
static void cut_access(const cutter *c, kernel *o, int i, const places *p, bool inside) {
    kins *in = &o->ins.at[i];
    const levels *x = &c->of[in->buf];
    if (!is_cut(c, o, in)) return;
    if (c->spread) in->idx = p->at[x->n];
    for (int l = 0; l < x->n && c->spread; l++)
        in->idx = affine_add_params(o->a, o->params, in->idx, affine_scale_params(o->a, o->params, p->at[l], x->at[l].coef));
    for (int m = 0; m < in->n_mask && c->spread; m++) in->mask[m].e = without_zeros(c, in->mask[m].e);
    if (in->op == K_LOAD && !in->n_mask) in->imm = 0, in->imm_int = 0;
    for (int l = 0; l < x->n; l++) {
        if (ext_is_lit(x->at[l].n) || (x->at[l].whole ? inside : ends_with(o, p->at[l], x->at[l].n))) continue;
        bound(o, in, p->at[l], p->lane[l], x->at[l].n);
    }
}

kernel *loop_cut(const kernel *k, const kernel *made) {
    cutter c;
    if (!cutter_make(&c, k)) return NULL;
    kernel *o = kernel_clone(made, k->a);
    places *at = ARENA_ARRAY(k->a, places, o->ins.n);
    c.last = ARENA_ARRAY(k->a, int64_t, o->vars.n + 1);
    for (int i = 1; i < o->ins.n; i++) {
        const kins *in = &o->ins.at[i];
        if (in->op == K_LOOP && in->hi - in->step > c.last[in->var]) c.last[in->var] = in->hi - in->step;
    }
    o->params = k->params;
    for (int b = 0; b < k->bufs.n; b++)
        if (!kbuf_is_local(&o->bufs.at[b])) o->bufs.at[b].elems = k->bufs.at[b].elems;
    for (int i = 1; i < o->ins.n; i++)
        if (is_global(o, &o->ins.at[i]) && !find_access(&c, o, &o->ins.at[i], &at[i])) return NULL;
    cut_grid(&c, o, at);
    for (int i = 1; i < o->ins.n; i++) {
        kins *in = &o->ins.at[i];
        if (in->op == K_LOOP && in->par == PAR_SERIAL && in->lo == 0) in->hi = summed(&c, o, at, i);
    }
    find_extents(&c, o);
    for (int i = 1; i < o->ins.n; i++) cut_table(&c, &o->ins.at[i]);
    bool *unproven = ARENA_ARRAY(k->a, bool, o->ins.n);
    if (!c.spread) kernel_mark_unproven(o, unproven);
    for (int i = 1; i < o->ins.n; i++)
        if (is_global(o, &o->ins.at[i])) cut_access(&c, o, i, &at[i], !unproven[i]);
    kernel_mark_unproven(o, unproven);
    for (int i = 1; i < o->ins.n; i++)
        if (unproven[i])
            bound(o, &o->ins.at[i], o->ins.at[i].idx, o->ins.at[i].lane_stride, o->bufs.at[o->ins.at[i].buf].elems);
    return o;
}

/* ---- all others ---- */

kernel *loop_bind_params(const kernel *k, int block_threads, int64_t threads) {
    kernel *o = gpu_compacted(kernel_clone(k, k->a));
    int n_outer = gpu_outer_loops(o);
    if (!n_outer) build_around(o, kernel_var(o, "one", 1, false, false), 1), n_outer = 1;
    ext n = 1;
    for (int i = 1; i <= n_outer; i++) {
        kins *in = &o->ins.at[i];
        in->par = PAR_GRID_THREADS;
        n = ext_mul(o->params, n, ext_sub(o->params, in->hi, in->lo));
    }
    int64_t most = threads / block_threads;
    o->grid_blocks = ext_min(o->params, ext_ceil_div(o->params, n, block_threads), most < 1 ? 1 : most);
    o->block_threads = block_threads, o->par_var = -1, o->tiled = true;
    return o;
}
