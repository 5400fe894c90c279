/* window.c - windows (convolution, pooling) that overlap along a row: neighbours share what they load. In: scalar form. */
#include "loop/loop.h"

enum { LEAST_ROWS = 4 /* that share what a window loads */ };

/* How far windows next to each other along v are apart, in taps of w; 0: they share none. */
static double taps_apart(const kernel *k, const kins *x, kvar w, kvar v) {
    int64_t along = affine_coef(x->idx, w), next = affine_coef(x->idx, v);
    if (along <= 0 || next <= 0 || (along % next && next % along) || next >= along * k->vars.at[w].extent) return 0;
    return (double)next / (double)along;
}

kvar loop_slides_along(const kernel *k, const kins *x, const kins *weight, kvar w) {
    kvar best = -1;
    double best_apart = 0;
    if (x->op != K_LOAD || weight->op != K_LOAD || x->dyn || weight->dyn || weight->n_mask) return -1;
    if (k->vars.at[w].extent < 2 || k->vars.at[w].extent > LOOP_MOST_TAPS) return -1;
    for (kvar v = 0; v < k->vars.n; v++) {
        double d = taps_apart(k, x, w, v);
        if (!k->vars.at[v].row || affine_coef(weight->idx, v) || d == 0 || k->vars.at[v].extent < LEAST_ROWS) continue;
        if (d < 1) d = 1 / d; /* the nearest to one tap */
        if (best < 0 || d < best_apart) best = v, best_apart = d;
    }
    return best;
}

int loop_sliding_rows(int64_t m) { /* tiles of one size where that is possible */
    for (int mr = LOOP_SLIDING; mr > LOOP_SLIDING / 2; mr--)
        if (m % mr == 0) return mr;
    return m < LOOP_SLIDING ? (int)m : LOOP_SLIDING;
}
