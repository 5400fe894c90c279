/* pool.c - fractional max pooling. In: an image and how many positions it is to have. Out: for each axis a gather of the
 * elements of every window, and their maximum: the maximum of a rectangle is that of its rows' maxima. Shorter windows have
 * their last element more than once, which shares its gradient with itself. */
#include "nn.h"

#include <math.h>

/* Graham's sequence, from 0 to size; u in [1/4, 3/4) from the seed and the axis. */
static int64_t border_of(int64_t i, int64_t size, int64_t out, uint64_t seed, int axis) {
    uint64_t z = (seed * 3 + (uint64_t)axis + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    double u = 0.25 + 0.5 * (double)((z ^ z >> 31) >> 11) * 0x1p-53, a = (double)size / (double)out;
    return i == 0 ? 0 : i == out ? size : (int64_t)ceil(a * ((double)i + u)) - (int64_t)ceil(a * u);
}

typedef struct windows { /* of one axis */
    const int64_t *border;
    int64_t size, out, most; /* most: elements of the longest window */
    uint64_t seed;
    int axis, more;
} windows;

static int64_t border_at(const windows *w, int64_t i) {
    return w->border ? w->border[i] : border_of(i, w->size, w->out, w->seed, w->axis);
}
static int64_t end_of(const windows *w, int64_t i) {
    int64_t end = border_at(w, i + 1) + w->more;
    return end < w->size ? end : w->size;
}

static bool check_windows(windows *w, tn_graph *g) {
    static const char name[] = "tn_nn_fractional_max_pool";
    if (w->size < 0) {
        nn_fail(g, TN_ERR_SHAPE, "%s: a run gives the size of axis %d: expected a number", name, w->axis);
        return false;
    }
    if (w->size < 1 || w->out < 1 || w->out > w->size || w->out > INT32_MAX) {
        nn_fail(g, TN_ERR_SHAPE, "%s: %lld positions along axis %d of size %lld", name, (long long)w->out, w->axis,
                (long long)w->size);
        return false;
    }
    if (border_at(w, 0) != 0 || border_at(w, w->out) != w->size) {
        nn_fail(g, TN_ERR_SHAPE, "%s: the borders of axis %d go from %lld to %lld, not from 0 to %lld", name, w->axis,
                (long long)border_at(w, 0), (long long)border_at(w, w->out), (long long)w->size);
        return false;
    }
    for (int64_t i = 0; i < w->out; i++) {
        int64_t from = border_at(w, i), n = end_of(w, i) - from;
        if (border_at(w, i + 1) <= from) {
            nn_fail(g, TN_ERR_SHAPE, "%s: border %lld of axis %d is %lld, after %lld", name, (long long)(i + 1), w->axis,
                    (long long)border_at(w, i + 1), (long long)from);
            return false;
        }
        if (n > w->most) w->most = n;
    }
    return true;
}

/* Axis w->axis of x: the maximum of each window. */
static tn_tensor pool_axis(tn_tensor x, windows *w) {
    if (!check_windows(w, x.graph)) return (tn_tensor){ x.graph, 0 };
    if (tn_tensor_shape(x).rank >= TN_MAX_RANK)
        return nn_fail(x.graph, TN_ERR_SHAPE, "tn_nn_fractional_max_pool: rank %d", tn_tensor_shape(x).rank);
    tn_tensor best = { x.graph, 0 };
    size_t bytes = (size_t)w->out * sizeof(int64_t);
    int64_t *at = tn_ctx_realloc(tn_graph_ctx(x.graph), NULL, 0, bytes);
    if (!at) return nn_fail(x.graph, TN_ERR_NOMEM, "out of memory: windows of %lld positions", (long long)w->out);
    for (int64_t tap = 0; tap < w->most; tap++) {
        for (int64_t i = 0; i < w->out; i++) {
            int64_t k = border_at(w, i) + tap, last = end_of(w, i) - 1;
            at[i] = k < last ? k : last;
        }
        tn_tensor y = tn_gather(x, tn_const(x.graph, TN_I64, TN_DIMS(w->out), at), w->axis);
        best = tap ? tn_max(best, y) : y;
    }
    tn_ctx_realloc(tn_graph_ctx(x.graph), at, bytes, 0);
    return best;
}

tn_tensor tn_nn_fractional_max_pool(tn_tensor x, tn_nn_fractional_pool_opts opts) {
    tn_shape s;
    if (!nn_check(x, "tn_nn_fractional_max_pool", 3, &s)) return (tn_tensor){ x.graph, 0 };
    if (s.rank > 5) return nn_fail(x.graph, TN_ERR_SHAPE, "tn_nn_fractional_max_pool: rank %d is more than 5", s.rank);
    for (int k = 0; k < s.rank - 2 && tn_tensor_shape(x).rank >= 0; k++) {
        windows w = { opts.border[k], s.dim[k + 1], opts.out[k], 0, opts.seed, k + 1, opts.overlapping != 0 };
        x = pool_axis(x, &w);
    }
    return x;
}
