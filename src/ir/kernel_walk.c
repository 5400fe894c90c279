/* kernel_walk.c - enumerates the iterations around an instruction. In: a kernel whose loops are closed. Out: calls of the
 * caller's function. Scratch lives in the kernel's arena. Only loops that the index or a mask uses are enumerated: the others
 * repeat the same elements. */
#include "ir/kernel_walk.h"

enum { ENDS = 4 }; /* iterations kept at each end of a loop that is cut */

typedef struct axis {
    kvar var;
    int64_t lo, step, n;
    int64_t by; /* change of the index from iteration to iteration */
    bool cut;
} axis;

typedef struct walker {
    const kernel *k;
    const kins *in;
    axis *axes;
    int n;
    int64_t *var;
    int64_t *mask_by; /* [axes][n_mask] changes of the masks' expressions */
    int64_t *mask;    /* [axes + 1][n_mask] their values around each axis */
    walk_fn fn;
    void *ud;
} walker;

static bool affine_uses(const kernel *k, const kins *in, kvar v) {
    if (affine_coef(in->idx, v) && (k->tiled || k->bufs.at[in->buf].kind != KB_LOCAL || !k->vars.at[v].row)) return true;
    for (int m = 0; m < in->n_mask; m++)
        if (affine_coef(in->mask[m].e, v)) return true;
    return false;
}

static int64_t coefficient(const walker *w, affine x, kvar v, bool local) {
    return local && w->k->vars.at[v].row ? 0 : affine_coef(x, v);
}

static int64_t value(const walker *w, affine x, bool local) {
    int64_t at = x.base;
    for (int i = 0; i < x.n; i++) at += coefficient(w, x, x.t[i].var, local) * w->var[x.t[i].var];
    return at;
}

static void visit_lanes(walker *w, int64_t at) {
    const kins *in = w->in;
    const int64_t *mask = w->mask + w->n * in->n_mask;
    for (int l = 0; l < in->lanes; l++) {
        bool holds = true;
        for (int m = 0; m < in->n_mask && holds; m++) {
            int64_t e = mask[m] + l * in->mask_lane[m];
            holds = in->mask[m].lo <= e && e < in->mask[m].hi;
        }
        for (int p = 0; holds && p < (in->packed ? in->packed : 1); p++)
            w->fn(&(visit_at){ w->var, at + l * in->lane_stride + p * in->packed_stride }, w->ud);
    }
}

static void visit_axis(walker *w, int d, int64_t at) {
    if (d == w->n) {
        visit_lanes(w, at);
        return;
    }
    const axis *x = &w->axes[d];
    int masks = w->in->n_mask;
    for (int64_t i = 0; i < x->n; i++) {
        if (x->cut && i == ENDS) i = x->n - ENDS;
        w->var[x->var] = x->lo + i * x->step;
        for (int m = 0; m < masks; m++) w->mask[(d + 1) * masks + m] = w->mask[d * masks + m] + i * w->mask_by[d * masks + m];
        visit_axis(w, d + 1, at + i * x->by);
    }
}

/* What the index and the masks are before the first iteration, and how they change. */
static int64_t start(walker *w) {
    const kins *in = w->in;
    bool local = !w->k->tiled && w->k->bufs.at[in->buf].kind == KB_LOCAL;
    w->mask = ARENA_ARRAY(w->k->a, int64_t, (w->n + 1) * in->n_mask + 1);
    w->mask_by = ARENA_ARRAY(w->k->a, int64_t, w->n * in->n_mask + 1);
    for (int m = 0; m < in->n_mask; m++) w->mask[m] = value(w, in->mask[m].e, false);
    for (int d = 0; d < w->n; d++) {
        axis *x = &w->axes[d];
        x->by = coefficient(w, in->idx, x->var, local) * x->step;
        for (int m = 0; m < in->n_mask; m++) w->mask_by[d * in->n_mask + m] = affine_coef(in->mask[m].e, x->var) * x->step;
    }
    return value(w, in->idx, local);
}

static double iterations(const walker *w) {
    double n = w->in->lanes * (w->in->packed ? w->in->packed : 1);
    for (int i = 0; i < w->n; i++) n *= w->axes[i].cut ? 2 * ENDS : (double)w->axes[i].n;
    return n;
}

bool kernel_walk(const kernel *k, reg r, const int *open, int n_open, walk_fn fn, void *ud) {
    const kins *in = &k->ins.at[r];
    walker w = { .k = k, .in = in, .fn = fn, .ud = ud };
    w.axes = ARENA_ARRAY(k->a, axis, n_open + 1);
    w.var = ARENA_ARRAY(k->a, int64_t, k->vars.n + 1);
    for (int i = 0; i < n_open; i++) {
        const kins *loop = &k->ins.at[open[i]];
        int64_t n = loop->hi <= loop->lo ? 0 : loop->par == PAR_LAST ? 1 : (loop->hi - loop->lo + loop->step - 1) / loop->step;
        if (n == 0) return true;
        w.var[loop->var] = loop->lo;
        if (n > 1 && affine_uses(k, in, loop->var)) w.axes[w.n++] = (axis){ loop->var, loop->lo, loop->step, n, 0, false };
    }
    bool whole = true;
    while (iterations(&w) > WALK_BUDGET) { /* the longest first */
        int longest = -1;
        for (int i = 0; i < w.n; i++)
            if (!w.axes[i].cut && w.axes[i].n > 2 * ENDS && (longest < 0 || w.axes[i].n > w.axes[longest].n)) longest = i;
        if (longest < 0) break;
        w.axes[longest].cut = true;
        whole = false;
    }
    visit_axis(&w, 0, start(&w));
    return whole;
}

int kernel_open_loops(const kernel *k, reg r, int *out) {
    int n = 0;
    for (reg i = 1; i < r; i++) {
        if (k->ins.at[i].op == K_LOOP) out[n++] = (int)i;
        if (k->ins.at[i].op == K_END && n > 0) n--;
    }
    return n;
}
