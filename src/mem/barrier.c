/* barrier.c - where the threads of a run must meet: before a kernel that touches memory which another thread may have touched
 * since the last meeting, unless both only read. Layers that split their rows alike need no meeting between them.
 *
 * In: tiled kernels, buffers with their places. Out: pkernel.barrier, right for runs with exactly `threads` threads or one. */
#include "mem/mem.h"

typedef struct access { /* bytes of one slot that a kernel reads or writes, by thread */
    int slot;
    int64_t lo, hi;
    bool write, owned;    /* owned: thread t touches only [bound[t], bound[t + 1]) of it */
    const int64_t *bound; /* [1 .. threads - 1]; the ends are lo and hi */
} access;

typedef struct span { /* the accesses since the last meeting */
    plan *p;
    int threads;
    VEC(access) at;
} span;

static const kins *loop_of(const kernel *k, reg r, kvar v) {
    int depth = 0;
    for (reg i = r; i-- > 1;) {
        if (k->ins.at[i].op == K_END) depth++;
        if (k->ins.at[i].op != K_LOOP) continue;
        if (depth > 0)
            depth--;
        else if (k->ins.at[i].var == v)
            return &k->ins.at[i];
    }
    return NULL;
}

/* Smallest and largest element of an iteration of the parallel loop, counted from coefficient * its variable. */
static void range_inside(const kernel *k, reg r, int64_t *out_lo, int64_t *out_hi) {
    const kins *in = &k->ins.at[r];
    int64_t lo = in->idx.base, hi = lo, across = in->lane_stride * (in->lanes - 1);
    for (int i = 0; i < in->idx.n; i++) {
        kterm t = in->idx.t[i];
        if (t.var == k->par_var) continue;
        const kins *loop = loop_of(k, r, t.var);
        int64_t first = loop ? loop->lo : 0, last = loop ? loop->hi - loop->step : 0;
        if (loop && last < first) last = first;
        lo += t.coef * (t.coef > 0 ? first : last);
        hi += t.coef * (t.coef > 0 ? last : first);
    }
    *out_lo = lo + (across < 0 ? across : 0);
    *out_hi = hi + (across > 0 ? across : 0);
}

static access access_of(span *g, const pkernel *pk, reg r) {
    const kernel *k = pk->k;
    const kins *in = &k->ins.at[r];
    const pbuf *b = &g->p->bufs.at[pk->args[in->buf].buf];
    access x = { .slot = b->slot, .lo = b->offset, .hi = b->offset + b->bytes, .write = in->op != K_LOAD };
    int64_t *bound = ARENA_ARRAY(g->p->a, int64_t, g->threads + 1), size = (int64_t)dtype_size((tn_dtype)b->dtype);
    x.bound = bound;
    if (k->par_var < 0) { /* thread 0 does all of it */
        x.owned = true;
        for (int t = 1; t < g->threads; t++) bound[t] = INT64_MAX;
        return x;
    }
    const kins *loop = loop_of(k, r, k->par_var);
    int64_t coef = affine_coef(in->idx, k->par_var), lo, hi;
    if (!loop || !loop->par || in->dyn || coef <= 0) return x;
    range_inside(k, r, &lo, &hi);
    int64_t extent = k->vars.at[k->par_var].extent, step = loop->step, steps = (loop->hi - loop->lo) / step;
    if (loop->par == PAR_LAST) { /* the rest, after the last whole step: the last thread's */
        step = 0;
        for (reg i = 1; i < (reg)k->ins.n; i++)
            if (k->ins.at[i].op == K_LOOP && k->ins.at[i].par == PAR_THREADS) step = k->ins.at[i].step;
        if (step == 0 || loop->lo % step) return x;
        steps = loop->lo / step;
        x.owned = lo >= 0 && hi < coef * (extent - loop->lo);
    } else {
        x.owned = loop->lo == 0 && lo >= 0 && hi < coef * step;
    }
    for (int t = 1; t < g->threads; t++) bound[t] = b->offset + coef * size * step * (steps * t / g->threads);
    return x;
}

static bool same_owners(const span *g, const access *x, const access *y) {
    for (int t = 1; t < g->threads; t++)
        if (x->bound[t] != y->bound[t]) return false;
    return x->owned && y->owned;
}

static bool conflicts(const span *g, const access *x) {
    for (int i = 0; i < g->at.n; i++) {
        const access *y = &g->at.at[i];
        if (x->slot != y->slot || x->lo >= y->hi || y->lo >= x->hi || (!x->write && !y->write)) continue;
        if (!same_owners(g, x, y)) return true;
    }
    return false;
}

void mem_barriers(plan *p, int threads) {
    span g = { .p = p, .threads = threads };
    for (int i = 0; i < p->kernels.n; i++) {
        pkernel *pk = &p->kernels.at[i];
        VEC(access) own = { 0 };
        pk->barrier = false;
        for (reg r = 1; r < (reg)pk->k->ins.n; r++) {
            const kins *in = &pk->k->ins.at[r];
            if (in->op != K_LOAD && in->op != K_STORE && in->op != K_SCATTER) continue;
            if (pk->args[in->buf].buf < 0) continue;
            access x = access_of(&g, pk, r);
            bool known = false;
            for (int j = 0; j < own.n && !known; j++)
                known = own.at[j].slot == x.slot && own.at[j].lo == x.lo && own.at[j].hi == x.hi &&
                        own.at[j].write == x.write && own.at[j].owned == x.owned && same_owners(&g, &own.at[j], &x);
            if (known) continue;
            VEC_PUSH(p->a, &own, x);
            pk->barrier |= threads > 1 && conflicts(&g, &x);
        }
        if (pk->barrier) g.at.n = 0;
        for (int j = 0; j < own.n; j++) VEC_PUSH(p->a, &g.at, own.at[j]);
    }
}
