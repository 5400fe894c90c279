/* conv_grad.c - the backward-data convolution in its classic form.
 *
 * A convolution is a dot of window(x) with weights, so the gradient by x arrives as fold(dot(dy, w)): an intermediate with one
 * element for every window offset (nine times x for 3x3), which is then added up. With stride 1 and offsets k in [0, K)
 *
 * - out[h] = sum over k, c of dy[h - k * d, c] * w[k, c] = sum over j, c of dyp[h + j * d, c] * w[K - 1 - j, c]
 *
 * where dyp is dy with (K - 1) * d zeros at both ends: a dot over window(pad(dy)) with flipped weights, and no intermediate.
 *
 * In: fold of a dot, seen through permute and reshape of unit axes, whose position axes are free axes of one operand and whose
 * offset axes are free axes of the other. Out: that dot. [order] of additions; where a weight is infinite or NaN, its product
 * with the border's zeros makes NaN of elements near the border that the fold left alone. Other strides are left to fold_lower.
 */
#include "pass/rewrite.h"

typedef struct dot_axis { /* what an axis of a dot's result is */
    int side, axis;       /* operand and its axis; side -1 for batch */
} dot_axis;

typedef struct match {
    node dot, fold;
    int n;                                            /* windows */
    int side_p, side_w;                               /* the operands with positions and with offsets */
    int64_t p_axis[TN_MAX_RANK], w_axis[TN_MAX_RANK]; /* of each window in its operand */
    int origin[TN_MAX_RANK];    /* axis of the dot's result that axis i of the fold's operand is, -1 = unit axis */
    dot_axis axis[TN_MAX_RANK]; /* of the dot's result */
} match;

static void list_dot_axes(const graph *g, const node *d, dot_axis *out) {
    int nb = (int)d->attr[0], nc = (int)d->attr[1], n = nb;
    for (int i = 0; i < nb; i++) out[i] = (dot_axis){ -1, i };
    for (int s = 0; s < 2; s++) {
        uint64_t bound = 0;
        for (int i = 0; i < nb; i++) bound |= UINT64_C(1) << d->attr[2 + s * nb + i];
        for (int i = 0; i < nc; i++) bound |= UINT64_C(1) << d->attr[2 + 2 * nb + s * nc + i];
        for (int i = 0; i < graph_get(g, d->in[s])->rank; i++)
            if (!mask_has(bound, i)) out[n++] = (dot_axis){ s, i };
    }
}

/* Follows permutes and unit reshapes from v to a dot that nothing else reads, keeping track of the axes. */
static bool find_dot(const graph *g, val v, match *m) {
    for (int i = 0; i < graph_get(g, v)->rank; i++) m->origin[i] = i;
    int rank = graph_get(g, v)->rank, map[TN_MAX_RANK];
    for (;;) {
        const node *n = graph_get(g, v);
        if (!graph_used_once(g, v)) return false;
        if (n->op == OP_dot) {
            m->dot = *n;
            return true;
        }
        if (n->op != OP_permute && n->op != OP_reshape) return false;
        if (n->op == OP_reshape && !unit_reshape(graph_get(g, n->in[0]), n, map)) return false;
        for (int i = 0; i < rank; i++) {
            if (m->origin[i] < 0) continue;
            m->origin[i] = n->op == OP_permute ? (int)n->attr[m->origin[i]] : map[m->origin[i]];
        }
        v = n->in[0];
    }
}

static bool find_match(const graph *g, match *m) {
    if (!find_dot(g, m->fold.in[0], m)) return false;
    m->n = (int)m->fold.attr[0];
    m->side_p = m->side_w = -1;
    list_dot_axes(g, &m->dot, m->axis);
    for (int i = 0; i < m->n; i++) {
        const int64_t *w = m->fold.attr + 1 + 4 * i;
        int p = m->origin[w[0]], o = m->origin[m->fold.rank + i];
        if (w[2] != 1 || p < 0 || o < 0 || m->axis[p].side < 0 || m->axis[o].side < 0) return false;
        if (m->axis[p].side == m->axis[o].side || (i > 0 && m->axis[p].side != m->side_p)) return false;
        m->side_p = m->axis[p].side;
        m->side_w = m->axis[o].side;
        m->p_axis[i] = m->axis[p].axis;
        m->w_axis[i] = m->axis[o].axis;
    }
    return graph_get(g, m->dot.in[m->side_p])->rank + m->n <= TN_MAX_RANK;
}

static val build_dot(graph *g, const match *m) {
    int nb = (int)m->dot.attr[0], nc = (int)m->dot.attr[1];
    int rank_p = graph_get(g, m->dot.in[m->side_p])->rank;
    int64_t border[TN_MAX_RANK] = { 0 }, contract[2][TN_MAX_RANK];
    window_axis w[TN_MAX_RANK];
    uint64_t flipped = 0;
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < nc; i++) contract[s][i] = m->dot.attr[2 + 2 * nb + s * nc + i];
    for (int i = 0; i < m->n; i++) {
        const int64_t *a = m->fold.attr + 1 + 4 * i;
        w[i] = (window_axis){ m->p_axis[i], a[1], 1, a[3] };
        border[m->p_axis[i]] = (a[1] - 1) * a[3];
        flipped |= UINT64_C(1) << m->w_axis[i];
        contract[m->side_p][nc + i] = rank_p + i;
        contract[m->side_w][nc + i] = m->w_axis[i];
    }
    val in[2];
    in[m->side_p] = graph_window(g, graph_pad(g, m->dot.in[m->side_p], border, border, 0), w, m->n);
    in[m->side_w] = graph_flip(g, m->dot.in[m->side_w], flipped);
    return graph_dot(g, in[0], in[1], m->dot.attr + 2, m->dot.attr + 2 + nb, nb, contract[0], contract[1], nc + m->n);
}

/* The new dot has the old one's axes without the offsets: puts them into the fold's order. */
static val order_axes(graph *g, const match *m, val d) {
    int now[TN_MAX_RANK] = { 0 }, rank = 0, n_perm = 0;
    int64_t perm[TN_MAX_RANK];
    bool used[TN_MAX_RANK] = { false };
    for (int i = 0; i < m->dot.rank; i++) {
        bool is_offset = false;
        for (int k = 0; k < m->n; k++) is_offset = is_offset || m->origin[m->fold.rank + k] == i;
        now[i] = is_offset ? -1 : rank++;
    }
    for (int i = 0; i < m->fold.rank; i++) {
        if (m->origin[i] < 0) continue;
        perm[n_perm++] = now[m->origin[i]];
        used[now[m->origin[i]]] = true;
    }
    for (int i = 0; i < rank; i++) /* unit axes of the dot that a reshape had dropped */
        if (!used[i]) perm[n_perm++] = i;
    return graph_reshape(g, graph_permute(g, d, perm), m->fold.rank, m->fold.dims);
}

/* A window of one element with stride 1 moves nothing: its offset axis of size 1 goes. */
static val drop_unit_windows(graph *g, const node *n) {
    node x = *graph_get(g, n->in[0]);
    window_axis w[TN_MAX_RANK];
    int n_left = 0, rank = n->rank;
    int64_t dims[TN_MAX_RANK];
    memcpy(dims, x.dims, x.rank * sizeof *dims);
    for (int i = 0; i < (int)n->attr[0]; i++) {
        const int64_t *a = n->attr + 1 + 4 * i;
        if (a[1] == 1 && a[2] == 1) continue;
        w[n_left++] = (window_axis){ a[0], a[1], a[2], a[3] };
        dims[rank++] = a[1];
    }
    if (n_left == (int)n->attr[0]) return 0;
    val r = graph_reshape(g, n->in[0], rank, dims);
    return n_left == 0 ? r : graph_fold(g, r, w, n_left, n->dims);
}

static val rewrite(graph *g, val v, arena *scratch) {
    (void)scratch;
    match m = { .fold = *graph_get(g, v) };
    if (m.fold.op != OP_fold) return 0;
    val r = drop_unit_windows(g, &m.fold);
    if (r || !find_match(g, &m)) return r;
    return order_axes(g, &m, build_dot(g, &m));
}

bool pass_conv_grad(graph *g, arena *scratch) { return rewrite_each(g, scratch, rewrite); }
