/* build.c - see build.h. */
#include "loop/build.h"

kvar build_loop(kernel *o, const char *name, int64_t n, kpar par) {
    kvar v = kernel_var(o, name, n, false, false);
    kernel_push(o, (kins){ .op = K_LOOP, .var = v, .hi = n, .step = 1, .par = (uint8_t)par });
    return v;
}

void build_ends(kernel *o, int n) {
    for (int i = 0; i < n; i++) kernel_push(o, (kins){ .op = K_END });
}

void build_barrier(kernel *o) { kernel_push(o, (kins){ .op = K_BARRIER }); }

reg build_halves(kernel *o, reg *v, int n, uint8_t op, uint8_t dtype, val of) {
    for (n /= 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) {
            kins both = { .op = K_ALU, .alu = op, .dtype = dtype, .src = dtype, .a = v[i], .b = v[i + n], .node = of };
            both.lanes = o->ins.at[v[i]].lanes;
            v[i] = kernel_push(o, both);
        }
    return v[0];
}

static void own_masks(arena *a, kins *in) {
    if (in->n_mask) in->mask = arena_copy(a, in->mask, sizeof(kmask) * (size_t)in->n_mask);
}

void build_set_var(arena *a, kins *in, kvar v, affine value) {
    own_masks(a, in);
    in->idx = affine_set_var(a, in->idx, v, value);
    for (int m = 0; m < in->n_mask; m++) in->mask[m].e = affine_set_var(a, in->mask[m].e, v, value);
}

static affine renamed(arena *a, affine x, const kvar *to) {
    affine y = affine_const(x.base);
    for (int i = 0; i < x.n; i++) y = build_plus(a, y, affine_var(a, to[x.t[i].var]), x.t[i].coef);
    return y;
}

void build_rename(arena *a, kins *in, const kvar *to) {
    own_masks(a, in);
    in->idx = renamed(a, in->idx, to);
    for (int m = 0; m < in->n_mask; m++) in->mask[m].e = renamed(a, in->mask[m].e, to);
}

void build_mask(arena *a, kins *in, affine e, int64_t lo, int64_t hi) {
    int n = in->n_mask;
    kmask *mask = ARENA_ARRAY(a, kmask, n + 1);
    int64_t *lane = ARENA_ARRAY(a, int64_t, n + 1);
    for (int m = 0; m < n; m++) mask[m] = in->mask[m], lane[m] = in->mask_lane ? in->mask_lane[m] : 0;
    mask[n] = (kmask){ e, lo, hi };
    in->mask = mask, in->mask_lane = lane, in->n_mask = n + 1;
}

void build_mark_needed(const kernel *k, int end, bool *needed) {
    for (int i = end - 1; i > 0; i--) {
        const kins *in = &k->ins.at[i];
        if (needed[i]) needed[in->a] = needed[in->b] = needed[in->c] = needed[in->dyn] = true;
    }
    needed[0] = false;
}
