/* resample.c - images of other sizes: weighted sums of elements along an axis, interpolation, adaptive pools.
 *
 * In: an image and sizes that are numbers. Out: for each axis a few gathers whose places and weights are constants. A place
 * that a position does not need has weight 0 and is one that it does need, so that nothing else comes in. Memory of places and
 * weights is the context's while they are made. */
#include "nn.h"

#include <math.h>

typedef struct taps { /* [n_taps * n]: tap k of position i is k * n + i */
    tn_ctx *ctx;
    int64_t n, n_taps, *at;
    double *weight;
} taps;

static bool taps_open(tn_graph *g, int64_t n, int64_t n_taps, taps *t) {
    int64_t all = 0;
    *t = (taps){ tn_graph_ctx(g), n, n_taps, NULL, NULL };
    if (!__builtin_mul_overflow(n, n_taps, &all) && all < INT64_MAX / 32) {
        t->at = tn_ctx_realloc(t->ctx, NULL, 0, (size_t)(all + 1) * sizeof *t->at);
        t->weight = tn_ctx_realloc(t->ctx, NULL, 0, (size_t)(all + 1) * sizeof *t->weight);
    }
    if (t->at && t->weight) return true;
    nn_fail(g, TN_ERR_NOMEM, "out of memory: %lld places of %lld positions", (long long)n_taps, (long long)n);
    return false;
}
static void taps_close(taps *t) {
    size_t all = (size_t)(t->n * t->n_taps) + 1;
    if (t->at) tn_ctx_realloc(t->ctx, t->at, all * sizeof *t->at, 0);
    if (t->weight) tn_ctx_realloc(t->ctx, t->weight, all * sizeof *t->weight, 0);
}

static tn_tensor tap(tn_tensor x, int axis, int64_t n, const int64_t *at) {
    return tn_gather(x, tn_const(x.graph, TN_I64, TN_DIMS(n), at), axis);
}

tn_tensor tn_nn_resample(tn_tensor x, int axis, int64_t n, int n_taps, const int64_t *at, const double *weight) {
    static const char fn[] = "tn_nn_resample";
    tn_shape s;
    int a = 0;
    if (!nn_check(x, fn, 1, &s) || !nn_axis(x, fn, axis, &a)) return (tn_tensor){ x.graph, 0 };
    if (n < 0 || n_taps < 1 || !at)
        return nn_fail(x.graph, TN_ERR_INVAL, "%s: %lld positions of %d places", fn, (long long)n, n_taps);
    for (int64_t i = 0; i < n * n_taps; i++)
        if (at[i] < 0 || at[i] >= s.dim[a])
            return nn_fail(x.graph, TN_ERR_SHAPE, "%s: place %lld of an axis of size %lld", fn, (long long)at[i],
                           (long long)s.dim[a]);
    tn_shape along = { .rank = s.rank };
    for (int i = 0; i < s.rank; i++) along.dim[i] = i == a ? n : 1;
    tn_dtype t = tn_tensor_dtype(x), inside = t == TN_F16 || t == TN_BF16 ? TN_F32 : t;
    tn_tensor y = { x.graph, 0 }, wide = weight ? tn_cast(x, inside) : x;
    for (int k = 0; k < n_taps; k++) {
        tn_tensor part = tap(wide, a, n, at + k * n);
        if (weight) part = tn_mul(part, tn_cast(tn_const(x.graph, TN_F64, along, weight + k * n), inside));
        y = k ? tn_add(y, part) : part;
    }
    return tn_cast(y, t);
}

/* ---- interpolation ---- */

static double triangle(double d) { return d < 1 ? 1 - d : 0; }
/* Keys, IEEE Trans. ASSP 29, 1981 */
static double cubic(double a, double d) {
    return d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

typedef struct resize {
    tn_nn_interpolate_opts o;
    int64_t in, out;
    double scale, stretch; /* input elements a position; how much wider than 1 the filter is */
} resize;

static double place(const resize *r, int64_t i) {
    if (r->o.align_corners) return r->out > 1 ? (double)i * (double)(r->in - 1) / (double)(r->out - 1) : 0;
    return ((double)i + 0.5) * r->scale - 0.5;
}
static double filter(const resize *r, double d) {
    d = fabs(d) / r->stretch;
    return r->o.mode == TN_NN_LINEAR ? triangle(d) : cubic(r->o.antialias ? -0.5 : -0.75, d);
}
static int64_t within(int64_t at, int64_t n) { return at < 0 ? 0 : at >= n ? n - 1 : at; }

/* Elements behind the border repeat it; antialiasing filters leave them out, and their weights add up to 1. */
static void fill_filter(const resize *r, taps *t) {
    for (int64_t i = 0; i < t->n; i++) {
        double x = place(r, i), sum = 0;
        int64_t first = (int64_t)ceil(x - (double)t->n_taps / 2);
        for (int64_t k = 0; k < t->n_taps; k++) {
            int64_t at = first + k;
            double w = filter(r, (double)at - x);
            if (r->o.antialias && (at < 0 || at >= r->in)) w = 0;
            t->at[k * t->n + i] = within(at, r->in), t->weight[k * t->n + i] = w, sum += w;
        }
        for (int64_t k = 0; k < t->n_taps && r->o.antialias && sum != 0; k++) t->weight[k * t->n + i] /= sum;
    }
}
static void fill_nearest(const resize *r, taps *t) {
    for (int64_t i = 0; i < t->n; i++) {
        double x = r->o.align_corners                 ? floor(place(r, i) + 0.5)
                   : r->o.mode == TN_NN_NEAREST_EXACT ? floor(((double)i + 0.5) * r->scale)
                                                      : floor((double)i * r->scale);
        t->at[i] = within((int64_t)x, r->in);
    }
}

static tn_tensor resize_axis(tn_tensor x, int axis, int64_t out, const tn_nn_interpolate_opts *o) {
    resize r = { *o, tn_tensor_shape(x).dim[axis], out, 0, 1 };
    bool nearest = o->mode == TN_NN_NEAREST || o->mode == TN_NN_NEAREST_EXACT;
    r.scale = (double)r.in / (double)out;
    if (o->antialias && r.scale > 1) r.stretch = r.scale;
    double reach = (o->mode == TN_NN_CUBIC ? 4 : 2) * r.stretch;
    taps t;
    tn_tensor y = { x.graph, 0 };
    if (taps_open(x.graph, out, nearest ? 1 : (int64_t)ceil(reach) + (r.stretch > 1), &t)) {
        if (nearest)
            fill_nearest(&r, &t);
        else
            fill_filter(&r, &t);
        y = tn_nn_resample(x, axis, out, (int)t.n_taps, t.at, nearest ? NULL : t.weight);
    }
    taps_close(&t);
    return y;
}

/* [N,..image..,C] with numbers as sizes; out: one for each axis of the image, a 0 repeats the one before. */
static bool check_image(tn_tensor x, const char *fn, const int64_t *given, int64_t out[3]) {
    tn_shape s;
    if (!nn_check(x, fn, 3, &s)) return false;
    for (int i = 0; i < 3; i++) out[i] = given[i] || !i ? given[i] : out[i - 1];
    for (int i = 0; i < s.rank - 2; i++) {
        if (s.rank <= 5 && s.dim[i + 1] >= 1 && out[i] >= 1 && out[i] <= 1 << 20) continue;
        nn_fail(x.graph, TN_ERR_SHAPE, "%s: rank %d, image axis %d of size %lld to %lld", fn, s.rank, i,
                (long long)s.dim[i + 1], (long long)(i < 3 ? out[i] : 0));
        return false;
    }
    return true;
}

tn_tensor tn_nn_interpolate(tn_tensor x, tn_nn_interpolate_opts o) {
    static const char fn[] = "tn_nn_interpolate";
    int64_t out[3];
    if ((unsigned)o.mode > TN_NN_CUBIC || (o.antialias && o.mode < TN_NN_LINEAR))
        return nn_fail(x.graph, TN_ERR_INVAL, "%s: mode %d%s", fn, (int)o.mode, o.antialias ? " with antialiasing" : "");
    if (!check_image(x, fn, o.out, out)) return (tn_tensor){ x.graph, 0 };
    int n = tn_tensor_shape(x).rank - 2;
    for (int i = 0; i < n && tn_tensor_shape(x).rank > 0; i++) {
        int64_t in = tn_tensor_shape(x).dim[i + 1];
        if (in != out[i]) x = resize_axis(x, i + 1, out[i], &o);
    }
    return x;
}

/* ---- adaptive pools ---- */

/* Position i has the elements from floor(i in / out) to ceil((i + 1) in / out). */
static tn_tensor pool_axis(tn_tensor x, int axis, int64_t out, bool max) {
    int64_t in = tn_tensor_shape(x).dim[axis], most = 0;
    tn_tensor y = { x.graph, 0 };
    taps t;
    for (int64_t i = 0; i < out; i++) {
        int64_t n = ((i + 1) * in + out - 1) / out - i * in / out;
        if (n > most) most = n;
    }
    if (taps_open(x.graph, out, most, &t)) {
        for (int64_t k = 0; k < most; k++)
            for (int64_t i = 0; i < out; i++) {
                int64_t from = i * in / out, n = ((i + 1) * in + out - 1) / out - from;
                t.at[k * out + i] = from + (k < n ? k : n - 1), t.weight[k * out + i] = k < n ? 1 / (double)n : 0;
            }
        if (!max) y = tn_nn_resample(x, axis, out, (int)most, t.at, t.weight);
        for (int64_t k = 0; k < most && max; k++) {
            tn_tensor part = tap(x, axis, out, t.at + k * out);
            y = k ? tn_max(y, part) : part;
        }
    }
    taps_close(&t);
    return y;
}
static tn_tensor adaptive_pool(tn_tensor x, const int64_t *given, const char *fn, bool max) {
    int64_t out[3];
    if (!check_image(x, fn, given, out)) return (tn_tensor){ x.graph, 0 };
    int n = tn_tensor_shape(x).rank - 2;
    for (int i = 0; i < n && tn_tensor_shape(x).rank > 0; i++) x = pool_axis(x, i + 1, out[i], max);
    return x;
}
tn_tensor tn_nn_adaptive_avg_pool(tn_tensor x, const int64_t out[3]) {
    return out ? adaptive_pool(x, out, "tn_nn_adaptive_avg_pool", false)
               : nn_fail(x.graph, TN_ERR_INVAL, "tn_nn_adaptive_avg_pool: out is NULL");
}
tn_tensor tn_nn_adaptive_max_pool(tn_tensor x, const int64_t out[3]) {
    return out ? adaptive_pool(x, out, "tn_nn_adaptive_max_pool", true)
               : nn_fail(x.graph, TN_ERR_INVAL, "tn_nn_adaptive_max_pool: out is NULL");
}
