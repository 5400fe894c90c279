/* view_merge.c - sequences of movement ops collapse, movement that moves nothing goes away.
 *
 * In: any graph. Out: chains in the canonical order of passes.def: slice and pad first, then flip, permute, reshape of unit
 * axes, expand last. Each adjacent pair is either merged or exchanged towards that order, so a chain of k ops settles in O(k^2)
 * steps. All rules are exact: the same elements, placed once instead of twice. */
#include "pass/rewrite.h"

typedef int64_t dims_t[TN_MAX_RANK];

static bool is_identity_perm(const node *n) {
    for (int i = 0; i < n->rank; i++)
        if (n->attr[i] != i) return false;
    return true;
}

/* ---- slice --------------------------------------------------------------------------------------------------------------- */

static val slice_slice(graph *g, const node *n, const node *x) {
    dims_t start, step;
    for (int i = 0; i < n->rank; i++) {
        start[i] = x->attr[i] + n->attr[i] * x->attr[n->rank + i];
        step[i] = n->dims[i] == 1 ? 1 : x->attr[n->rank + i] * n->attr[n->rank + i];
    }
    return graph_slice(g, x->in[0], start, n->dims, step);
}

/* The part of the border that is left: a splat when nothing else is, a smaller pad of a smaller slice otherwise. */
static val slice_pad(graph *g, const node *n, const node *x) {
    node s = *graph_get(g, x->in[0]);
    dims_t start, count, before, after;
    for (int i = 0; i < n->rank; i++) {
        int64_t first = n->attr[i], last = first + n->dims[i], low = x->attr[i], high = low + s.dims[i];
        bool is_inside = first >= low && first + (n->dims[i] - 1) * n->attr[n->rank + i] < high;
        if (n->attr[n->rank + i] != 1 && !is_inside) return 0;
        if (is_inside) last = high;
        int64_t from = first > low ? first : low, to = last < high ? last : high;
        if (to <= from) return graph_splat(g, n->dtype, n->rank, n->dims, x->imm);
        start[i] = from - low;
        count[i] = is_inside ? n->dims[i] : to - from;
        before[i] = is_inside ? 0 : from - first;
        after[i] = is_inside ? 0 : last - to;
    }
    return graph_pad(g, graph_slice(g, x->in[0], start, count, n->attr + n->rank), before, after, x->imm);
}

static val slice_expand(graph *g, const node *n, const node *x) {
    node s = *graph_get(g, x->in[0]);
    dims_t start, count, step;
    for (int i = 0; i < n->rank; i++) {
        bool is_repeated = s.dims[i] == 1;
        start[i] = is_repeated ? 0 : n->attr[i];
        count[i] = is_repeated ? 1 : n->dims[i];
        step[i] = is_repeated ? 1 : n->attr[n->rank + i];
    }
    return graph_expand(g, graph_slice(g, x->in[0], start, count, step), n->dims);
}

static val slice_permute(graph *g, const node *n, const node *x) {
    dims_t start, count, step;
    for (int i = 0; i < n->rank; i++) {
        start[x->attr[i]] = n->attr[i];
        count[x->attr[i]] = n->dims[i];
        step[x->attr[i]] = n->attr[n->rank + i];
    }
    return graph_permute(g, graph_slice(g, x->in[0], start, count, step), x->attr);
}

static val slice_flip(graph *g, const node *n, const node *x) {
    dims_t start;
    for (int i = 0; i < n->rank; i++) {
        int64_t last = n->attr[i] + (n->dims[i] - 1) * n->attr[n->rank + i];
        start[i] = mask_has((uint64_t)x->attr[0], i) ? x->dims[i] - 1 - last : n->attr[i];
    }
    return graph_flip(g, graph_slice(g, x->in[0], start, n->dims, n->attr + n->rank), (uint64_t)x->attr[0]);
}

/* Through a reshape that only adds and drops unit axes, unless a unit axis itself is sliced away. */
static val slice_reshape(graph *g, const node *n, const node *x) {
    node s = *graph_get(g, x->in[0]);
    int map[TN_MAX_RANK];
    dims_t start = { 0 }, count, step;
    if (!unit_reshape(&s, x, map)) return 0;
    for (int i = 0; i < s.rank; i++) count[i] = step[i] = 1;
    for (int i = 0; i < n->rank; i++) {
        if (map[i] < 0 && n->dims[i] != 1) return 0;
        if (map[i] < 0) continue;
        start[map[i]] = n->attr[i];
        count[map[i]] = n->dims[i];
        step[map[i]] = n->attr[n->rank + i];
    }
    return graph_reshape(g, graph_slice(g, x->in[0], start, count, step), n->rank, n->dims);
}

/* Fewer positions of a window, all offsets -> a window over fewer elements. */
static val slice_window(graph *g, const node *n, const node *x) {
    node s = *graph_get(g, x->in[0]);
    window_axis w[TN_MAX_RANK];
    dims_t start, count, step;
    for (int i = 0; i < n->rank; i++)
        if (i >= s.rank && n->dims[i] != x->dims[i]) return 0;
    memcpy(start, n->attr, s.rank * sizeof *start);
    memcpy(count, n->dims, s.rank * sizeof *count);
    memcpy(step, n->attr + n->rank, s.rank * sizeof *step);
    for (int i = 0; i < (int)x->attr[0]; i++) {
        const int64_t *a = x->attr + 1 + 4 * i;
        w[i] = (window_axis){ a[0], a[1], count[a[0]] == 1 ? 1 : a[2] * step[a[0]], a[3] };
        start[a[0]] *= a[2];
        count[a[0]] = (count[a[0]] - 1) * w[i].stride + (a[1] - 1) * a[3] + 1;
        step[a[0]] = 1;
    }
    return graph_window(g, graph_slice(g, x->in[0], start, count, step), w, (int)x->attr[0]);
}

static val slice_rules(graph *g, const node *n, const node *x) {
    bool is_whole = true, is_empty = false;
    for (int i = 0; i < n->rank; i++) {
        is_whole = is_whole && n->dims[i] == x->dims[i];
        is_empty = is_empty || n->dims[i] == 0;
    }
    if (is_whole) return n->in[0];
    if (is_empty) return 0; /* dce's business; a start may lie outside */
    switch (x->op) {
    case OP_slice:
        return slice_slice(g, n, x);
    case OP_pad:
        return slice_pad(g, n, x);
    case OP_expand:
        return slice_expand(g, n, x);
    case OP_permute:
        return slice_permute(g, n, x);
    case OP_flip:
        return slice_flip(g, n, x);
    case OP_reshape:
        return slice_reshape(g, n, x);
    case OP_window:
        return slice_window(g, n, x);
    default:
        return 0;
    }
}

/* ---- pad ----------------------------------------------------------------------------------------------------------------- */

static bool pads_nothing(const node *n) {
    for (int i = 0; i < 2 * n->rank; i++)
        if (n->attr[i] != 0) return false;
    return true;
}

static val pad_rules(graph *g, const node *n, const node *x) {
    dims_t before = { 0 }, after = { 0 }, dims;
    if (pads_nothing(n)) return n->in[0];
    if (x->op == OP_pad && memcmp(&x->imm, &n->imm, sizeof n->imm) == 0) {
        for (int i = 0; i < n->rank; i++) {
            before[i] = x->attr[i] + n->attr[i];
            after[i] = x->attr[n->rank + i] + n->attr[n->rank + i];
        }
        return graph_pad(g, x->in[0], before, after, n->imm);
    }
    if (x->op == OP_permute) {
        for (int i = 0; i < n->rank; i++) {
            before[x->attr[i]] = n->attr[i];
            after[x->attr[i]] = n->attr[n->rank + i];
        }
        return graph_permute(g, graph_pad(g, x->in[0], before, after, n->imm), x->attr);
    }
    if (x->op == OP_expand) { /* as long as no repeated axis gets a border */
        node s = *graph_get(g, x->in[0]);
        for (int i = 0; i < n->rank; i++) {
            bool is_padded = n->attr[i] != 0 || n->attr[n->rank + i] != 0;
            if (is_padded && s.dims[i] != x->dims[i]) return 0;
            dims[i] = n->dims[i];
        }
        return graph_expand(g, graph_pad(g, x->in[0], n->attr, n->attr + n->rank, n->imm), dims);
    }
    if (x->op == OP_reshape) {
        node s = *graph_get(g, x->in[0]);
        int map[TN_MAX_RANK];
        if (!unit_reshape(&s, x, map)) return 0;
        for (int i = 0; i < n->rank; i++) {
            if (map[i] < 0 && (n->attr[i] != 0 || n->attr[n->rank + i] != 0)) return 0;
            if (map[i] < 0) continue;
            before[map[i]] = n->attr[i];
            after[map[i]] = n->attr[n->rank + i];
        }
        return graph_reshape(g, graph_pad(g, x->in[0], before, after, n->imm), n->rank, n->dims);
    }
    return 0;
}

/* ---- flip ---------------------------------------------------------------------------------------------------------------- */

static val flip_rules(graph *g, const node *n, const node *x) {
    uint64_t axes = (uint64_t)n->attr[0], moved = 0;
    for (int i = 0; i < n->rank; i++)
        if (n->dims[i] > 1 && mask_has(axes, i)) moved |= UINT64_C(1) << i;
    if (moved != axes) return graph_flip(g, n->in[0], moved); /* an axis of one element reads the same both ways */
    if (x->op == OP_flip) return graph_flip(g, x->in[0], axes ^ (uint64_t)x->attr[0]);
    if (x->op == OP_permute) {
        moved = 0;
        for (int i = 0; i < n->rank; i++)
            if (mask_has(axes, i)) moved |= UINT64_C(1) << x->attr[i];
        return graph_permute(g, graph_flip(g, x->in[0], moved), x->attr);
    }
    if (x->op == OP_expand) {
        node s = *graph_get(g, x->in[0]);
        for (int i = 0; i < n->rank; i++)
            if (s.dims[i] == 1) moved &= ~(UINT64_C(1) << i);
        return graph_expand(g, graph_flip(g, x->in[0], moved), x->dims);
    }
    if (x->op == OP_reshape) {
        node s = *graph_get(g, x->in[0]);
        int map[TN_MAX_RANK];
        if (!unit_reshape(&s, x, map)) return 0;
        moved = 0;
        for (int i = 0; i < n->rank; i++)
            if (mask_has(axes, i) && map[i] >= 0) moved |= UINT64_C(1) << map[i];
        return graph_reshape(g, graph_flip(g, x->in[0], moved), n->rank, n->dims);
    }
    return 0;
}

/* ---- permute ------------------------------------------------------------------------------------------------------------- */

/* permute(reshape that adds or drops unit axes) -> reshape(permute): permutes come to lie side by side. */
static val permute_reshape(graph *g, const node *n, const node *x) {
    node s = *graph_get(g, x->in[0]);
    int map[TN_MAX_RANK], k = 0;
    dims_t perm;
    if (!unit_reshape(&s, x, map)) return 0;
    bool used[TN_MAX_RANK] = { false };
    for (int i = 0; i < n->rank; i++) {
        if (map[n->attr[i]] < 0) continue;
        perm[k++] = map[n->attr[i]];
        used[map[n->attr[i]]] = true;
    }
    for (int i = 0; i < s.rank; i++)
        if (!used[i]) perm[k++] = i;
    return graph_reshape(g, graph_permute(g, x->in[0], perm), n->rank, n->dims);
}

static val permute_rules(graph *g, const node *n, const node *x) {
    if (is_identity_perm(n)) return n->in[0];
    if (x->op == OP_permute) {
        dims_t perm;
        for (int i = 0; i < n->rank; i++) perm[i] = x->attr[n->attr[i]];
        return graph_permute(g, x->in[0], perm);
    }
    int64_t last = -1;
    bool is_ordered = true; /* only unit axes move: the elements keep their order in memory */
    for (int i = 0; i < n->rank; i++) {
        if (n->dims[i] == 1) continue;
        is_ordered = is_ordered && n->attr[i] > last;
        last = n->attr[i];
    }
    if (is_ordered) return graph_reshape(g, n->in[0], n->rank, n->dims);
    if (x->op == OP_expand) {
        val p = graph_permute(g, x->in[0], n->attr);
        return graph_expand(g, p, n->dims);
    }
    return x->op == OP_reshape ? permute_reshape(g, n, x) : 0;
}

/* ---- reshape, expand ----------------------------------------------------------------------------------------------------- */

static val reshape_rules(graph *g, const node *n, const node *x) {
    if (same_dims(n->rank, n->dims, x->rank, x->dims)) return n->in[0];
    if (x->op == OP_reshape) return graph_reshape(g, x->in[0], n->rank, n->dims);
    int map[TN_MAX_RANK];
    if (x->op != OP_expand || !unit_reshape(x, n, map)) return 0;
    /* expand, then add or drop unit axes -> the other way round */
    node s = *graph_get(g, x->in[0]);
    dims_t dims;
    for (int i = 0; i < n->rank; i++) dims[i] = map[i] < 0 ? 1 : s.dims[map[i]];
    return graph_expand(g, graph_reshape(g, x->in[0], n->rank, dims), n->dims);
}

static val expand_rules(graph *g, const node *n, const node *x) {
    if (same_dims(n->rank, n->dims, x->rank, x->dims)) return n->in[0];
    return x->op == OP_expand ? graph_expand(g, x->in[0], n->dims) : 0;
}

/* A window of one element with stride 1 is the axis itself: its offset axis of size 1 is added by a reshape. */
static val window_rules(graph *g, const node *n) {
    window_axis w[TN_MAX_RANK];
    int n_left = 0, n_all = (int)n->attr[0];
    for (int i = 0; i < n_all; i++) {
        const int64_t *a = n->attr + 1 + 4 * i;
        if (a[1] != 1 || a[2] != 1) w[n_left++] = (window_axis){ a[0], a[1], a[2], a[3] };
    }
    if (n_left == n_all) return 0;
    val x = n_left == 0 ? n->in[0] : graph_window(g, n->in[0], w, n_left);
    return graph_reshape(g, x, n->rank, n->dims);
}

static val rewrite(graph *g, val v, arena *scratch) {
    (void)scratch;
    node n = *graph_get(g, v);
    bool by_number = n.op != OP_permute && n.op != OP_reshape && n.op != OP_expand;
    if (!op_is_move(n.op) || (by_number && touches_dims(g, v))) return 0;
    node x = *graph_get(g, n.in[0]);
    switch (n.op) {
    case OP_slice:
        return slice_rules(g, &n, &x);
    case OP_pad:
        return pad_rules(g, &n, &x);
    case OP_flip:
        return flip_rules(g, &n, &x);
    case OP_permute:
        return permute_rules(g, &n, &x);
    case OP_reshape:
        return reshape_rules(g, &n, &x);
    case OP_expand:
        return expand_rules(g, &n, &x);
    case OP_window:
        return window_rules(g, &n);
    default:
        return 0;
    }
}

bool pass_view_merge(graph *g, arena *scratch) { return rewrite_dims(g, scratch, rewrite); }
