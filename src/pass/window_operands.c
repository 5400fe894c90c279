/* window_operands.c - what a convolution with strides reads lies in memory tap by tap (im2col), where a run gives how long the
 * image is: literal sizes would be copied into panels as they are read (loop/pack.c), which takes none of a run, and vectors
 * run along positions, which strides set apart.
 *
 * In: a dot of floats, one operand of which is windows with strides over the last axis of an image. Out: the same of these
 * windows with the terms before the positions, in memory: neighbouring positions lie side by side, and rows of them one behind
 * the other. Exact but for the order of sums, which is the target's. */
#include "pass/rewrite.h"

enum {
    REUSES = 4, /* rows of the other operand, at least */
    TIMES = 4   /* the image and the result together, at most */
};

static int position_of(const node *w, int axis) { /* the number in the list of w's windows, or -1 */
    for (int i = 0; i < w->attr[0]; i++)
        if (w->attr[1 + 4 * i] == axis) return i;
    return -1;
}

static int64_t most_elems(const graph *g, const node *x, uint64_t skipped) {
    int64_t n = 1;
    for (int i = 0; i < x->rank; i++)
        if (!mask_has(skipped, i)) n *= graph_dim_most(g, x->dims[i]);
    return n;
}

static val rewrite(graph *g, val v, arena *scratch) {
    const node d = *graph_get(g, v);
    (void)scratch;
    if (d.op != OP_dot || (d.dtype != TN_F32 && d.dtype != TN_F64) || !touches_dims(g, v)) return 0;
    int side = graph_get(g, d.in[1])->op == OP_window, nb = (int)d.attr[0], nc = (int)d.attr[1];
    const node w = *graph_get(g, d.in[side]), other = *graph_get(g, d.in[!side]);
    if (w.op != OP_window || other.op == OP_window) return 0;
    const int64_t *batch[2] = { d.attr + 2, d.attr + 2 + nb }, *terms[2] = { d.attr + 2 + 2 * nb, d.attr + 2 + 2 * nb + nc };
    uint64_t taken[2] = { 0 };
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < nb; i++) taken[s] |= UINT64_C(1) << batch[s][i];
        for (int i = 0; i < nc; i++) taken[s] |= UINT64_C(1) << terms[s][i];
    }
    const node image = *graph_get(g, w.in[0]);
    int last = image.rank - 1, first = w.rank, at = position_of(&w, last);
    if (at < 0 || w.attr[4 * at + 3] < 2 || ext_is_lit(w.dims[last])) return 0;
    for (int i = 0; i < image.rank; i++)
        if (position_of(&w, i) >= 0 && mask_has(taken[side], i)) return 0;
    for (int i = image.rank - 1; i >= 0; i--)
        if (position_of(&w, i) >= 0) first = i;
    for (int i = image.rank; i < w.rank; i++)
        if (!mask_has(taken[side], i)) return 0; /* results of each tap */
    if (most_elems(g, &other, taken[!side]) < REUSES ||
        graph_elems(g, d.in[side]) / TIMES > graph_elems(g, w.in[0]) + graph_elems(g, v))
        return 0;
    int64_t perm[TN_MAX_RANK], to[TN_MAX_RANK] = { 0 }, axes[2][TN_MAX_RANK];
    int n = 0;
    for (int i = 0; i < first; i++)
        if (!mask_has(taken[side], i)) perm[n++] = i;
    for (int i = 0; i < nb; i++) perm[n++] = batch[side][i];
    for (int i = 0; i < nc; i++) perm[n++] = terms[side][i];
    for (int i = first; i < image.rank; i++)
        if (!mask_has(taken[side], i)) perm[n++] = i;
    for (int i = 0; i < n; i++) to[perm[i]] = i;
    for (int i = 0; i < nb; i++) axes[0][i] = to[batch[side][i]];
    for (int i = 0; i < nc; i++) axes[1][i] = to[terms[side][i]];
    window_axis windows[TN_MAX_RANK];
    for (int i = 0; i < w.attr[0]; i++)
        windows[i] = (window_axis){ w.attr[1 + 4 * i], w.attr[2 + 4 * i], w.attr[3 + 4 * i], w.attr[4 + 4 * i] };
    val x = graph_permute(g, graph_window(g, w.in[0], windows, (int)w.attr[0]), perm);
    x = graph_unary(g, OP_stop_gradient, x); /* which a kernel computes */
    val y = graph_dot(g, d.in[!side], x, batch[!side], axes[0], nb, terms[!side], axes[1], nc);
    if (side) return y;
    int rows = other.rank - nb - nc, columns = w.rank - nb - nc; /* free axes of either; they come after the batch */
    for (int i = 0; i < d.rank; i++) perm[i] = i < nb ? i : i < nb + columns ? i + rows : i - columns;
    return graph_permute(g, y, perm);
}

bool pass_window_operands(graph *g, arena *scratch) { return g->params && rewrite_dims(g, scratch, rewrite); }
