/* pairs_innermost.c - a contraction of bf16 over several axes ends with one that comes out in pairs: processors add the
 * products of two neighbours at once, which have to lie side by side in the operand without lanes.
 *
 * In: a dot of bf16 with a constant, contracted along several axes, the last of which is short or odd, such as the taps of a
 * convolution whose channels stand before them. Out: the same with the longest even one last, and the constant in that order.
 * [order] of additions. */
#include "pass/rewrite.h"

enum { MOST_TAPS = 5 };

/* Of the axes that operand x is contracted along the one that is to be the last; -1: they stay. */
static int best_last(const node *x, const int64_t *axes, int n) {
    int best = -1;
    if (n < 2 || (x->dims[axes[n - 1]] % 2 == 0 && x->dims[axes[n - 1]] > MOST_TAPS)) return -1;
    for (int i = 0; i < n - 1; i++) {
        int64_t dim = x->dims[axes[i]];
        if (dim % 2 == 0 && dim > MOST_TAPS && (best < 0 || dim > x->dims[axes[best]])) best = i;
    }
    return best;
}

static val rewrite(graph *g, val v, arena *scratch) {
    const node d = *graph_get(g, v);
    if (d.op != OP_dot || d.dtype != TN_BF16) return 0;
    int nb = (int)d.attr[0], nc = (int)d.attr[1];
    for (int side = 0; side < 2; side++) {
        const node w = *graph_get(g, d.in[side]);
        const int64_t *own = d.attr + 2 + 2 * nb + side * nc, *others = d.attr + 2 + 2 * nb + !side * nc;
        int last = best_last(&w, own, nc), n = 0;
        if (w.op != OP_const || w.splat || last < 0) continue;
        int64_t perm[TN_MAX_RANK], at[TN_MAX_RANK], axes[2][TN_MAX_RANK], batch[2][TN_MAX_RANK];
        uint64_t contracted = 0;
        for (int i = 0; i < nc; i++) contracted |= UINT64_C(1) << own[i];
        for (int i = 0; i < w.rank; i++)
            if (!mask_has(contracted, i)) perm[n++] = i;
        for (int i = 0; i < nc; i++) {
            int from = i == nc - 1 ? last : i + (i >= last);
            axes[side][i] = n, axes[!side][i] = others[from];
            perm[n++] = own[from];
        }
        for (int i = 0; i < w.rank; i++) at[perm[i]] = i;
        for (int i = 0; i < nb; i++)
            batch[!side][i] = d.attr[2 + !side * nb + i], batch[side][i] = at[d.attr[2 + side * nb + i]];
        val in[2] = { d.in[0], d.in[1] };
        in[side] = permute_known(g, d.in[side], perm, scratch);
        return graph_dot(g, in[0], in[1], batch[0], batch[1], nb, axes[0], axes[1], nc);
    }
    return 0;
}

bool pass_pairs_innermost(graph *g, arena *scratch) { return rewrite_each(g, scratch, rewrite); }
