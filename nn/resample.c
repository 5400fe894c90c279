/* resample.c - images of other sizes: weighted sums of elements along an axis, interpolation, adaptive pools.
 *
 * In: an image and sizes. Out: for each axis a few gathers whose places and weights are constants; where a run gives a size,
 * they are calculated in each run, by the same arithmetic. A place that a position does not need has weight 0 and is one that
 * it does need, so that nothing else comes in. Memory of places and weights is the context's while they are made. */
#include "nn.h"

#include <math.h>
#include <string.h>

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
    tn_tensor all = tn_const(x.graph, TN_I64, TN_DIMS(nn_most(x.graph, n)), at);
    return tn_gather(x, n < 0 ? tn_slice_axis(all, 0, 0, n, 1) : all, axis);
}

/* How many positions an axis becomes, of which each element has as many: 0 where that is no whole number. */
static int64_t whole_times(tn_graph *g, int64_t in, int64_t out) {
    enum { MOST_TIMES = 16 };
    if (in >= 0 && out >= 0) return in > 0 && out % in == 0 ? out / in : 0;
    for (int64_t k = 1; k <= MOST_TIMES; k++)
        if (nn_times(g, in, k) == out) return k;
    return 0;
}

/* Each element so many times: no gather, which goes element by element. */
static tn_tensor repeated(tn_tensor x, int axis, int64_t times) {
    tn_shape s = tn_tensor_shape(x), wide = s;
    memmove(wide.dim + axis + 2, wide.dim + axis + 1, sizeof wide.dim[0] * (size_t)(s.rank - axis - 1));
    wide.rank++, wide.dim[axis + 1] = 1;
    x = tn_reshape(x, wide);
    wide.dim[axis + 1] = times, s.dim[axis] = nn_times(x.graph, s.dim[axis], times);
    return tn_reshape(tn_expand(x, wide), s);
}

tn_tensor tn_nn_resample(tn_tensor x, int axis, int64_t n, int n_taps, const int64_t *at, const double *weight) {
    static const char fn[] = "tn_nn_resample";
    tn_shape s = tn_tensor_shape(x);
    int a = 0;
    if ((weight && !nn_check(x, fn, 1, &s)) || !nn_axis(x, fn, axis, &a)) return (tn_tensor){ x.graph, 0 };
    if (!nn_is_size(n) || n_taps < 1 || !at)
        return nn_fail(x.graph, TN_ERR_INVAL, "%s: %lld positions of %d places", fn, (long long)n, n_taps);
    int64_t most = nn_most(x.graph, n), size = nn_most(x.graph, s.dim[a]), times = whole_times(x.graph, s.dim[a], n);
    bool repeats = n_taps == 1 && !weight && times > 0 && s.rank < TN_MAX_RANK;
    for (int64_t i = 0; i < most * n_taps; i++) {
        if (at[i] < 0 || at[i] >= size)
            return nn_fail(x.graph, TN_ERR_SHAPE, "%s: place %lld of an axis of size %lld", fn, (long long)at[i],
                           (long long)size);
        repeats = repeats && at[i] == i / times;
    }
    if (repeats) return repeated(x, a, times);
    tn_shape along = { .rank = s.rank };
    for (int i = 0; i < s.rank; i++) along.dim[i] = i == a ? most : 1;
    tn_dtype t = tn_tensor_dtype(x), inside = t == TN_F16 || t == TN_BF16 ? TN_F32 : t;
    tn_tensor y = { x.graph, 0 }, wide = weight ? tn_cast(x, inside) : x;
    for (int k = 0; k < n_taps; k++) {
        tn_tensor part = tap(wide, a, n, at + k * most);
        if (weight) {
            tn_tensor by = tn_const(x.graph, TN_F64, along, weight + k * most);
            part = tn_mul(part, tn_cast(n < 0 ? tn_slice_axis(by, a, 0, n, 1) : by, inside));
        }
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

/* ---- sizes that a run gives ---- */

/* `place` of every position, f64[out]. */
static tn_tensor places(const resize *r, tn_graph *g) {
    tn_tensor i = tn_iota(g, TN_F64, TN_DIMS(r->out), 0), in = nn_size_like(i, r->in), out = nn_size_like(i, r->out);
    if (r->o.align_corners) {
        tn_tensor last = tn_add_scalar(out, -1), x = tn_div(tn_mul(i, tn_add_scalar(in, -1)), last);
        return tn_select(tn_gt(last, nn_scalar(i, 0)), x, nn_scalar(i, 0));
    }
    if (r->o.mode == TN_NN_NEAREST) return tn_mul(i, tn_div(in, out));
    tn_tensor x = tn_mul(tn_add_scalar(i, 0.5), tn_div(in, out));
    return r->o.mode == TN_NN_NEAREST_EXACT ? x : tn_add_scalar(x, -0.5);
}
static tn_tensor part_of_filter(const resize *r, tn_tensor d) {
    const double a = -0.75;
    d = tn_abs(d);
    tn_tensor one = nn_scalar(d, 1), zero = nn_scalar(d, 0);
    if (r->o.mode == TN_NN_LINEAR) return tn_max(tn_sub(one, d), zero);
    tn_tensor inner = tn_mul(tn_add_scalar(tn_mul_scalar(d, a + 2), -(a + 3)), tn_mul(d, d));
    tn_tensor outer = tn_mul(tn_add_scalar(tn_mul(tn_add_scalar(tn_mul_scalar(d, a), -5 * a), d), 8 * a), d);
    outer = tn_select(tn_lt(d, nn_scalar(d, 2)), tn_add_scalar(outer, -4 * a), zero);
    return tn_select(tn_le(d, one), tn_add_scalar(inner, 1), outer);
}
static tn_tensor resize_open_axis(tn_tensor x, int axis, int64_t out, const tn_nn_interpolate_opts *o) {
    resize r = { *o, tn_tensor_shape(x).dim[axis], out, 0, 1 };
    bool nearest = o->mode == TN_NN_NEAREST || o->mode == TN_NN_NEAREST_EXACT;
    int64_t times = nearest && !o->align_corners ? whole_times(x.graph, r.in, out) : 0;
    if (times) { /* places that all sizes have */
        taps t;
        tn_tensor y = { x.graph, 0 };
        r.scale = 1 / (double)times, r.in = nn_most(x.graph, r.in);
        if (taps_open(x.graph, nn_most(x.graph, out), 1, &t)) {
            fill_nearest(&r, &t);
            y = tn_nn_resample(x, axis, out, 1, t.at, NULL);
        }
        taps_close(&t);
        return y;
    }
    tn_tensor at = places(&r, x.graph), y = { x.graph, 0 };
    if (nearest) return tn_gather(x, tn_cast(tn_floor(o->align_corners ? tn_add_scalar(at, 0.5) : at), TN_I64), axis);
    tn_dtype t = tn_tensor_dtype(x), inside = t == TN_F16 || t == TN_BF16 ? TN_F32 : t;
    tn_shape along = { .rank = tn_tensor_shape(x).rank };
    for (int i = 0; i < along.rank; i++) along.dim[i] = i == axis ? out : 1;
    int n_taps = o->mode == TN_NN_CUBIC ? 4 : 2;
    tn_tensor first = tn_ceil(tn_add_scalar(at, -n_taps / 2)), wide = tn_cast(x, inside);
    for (int k = 0; k < n_taps; k++) { /* a gather takes the last element for places behind the border */
        tn_tensor from = tn_add_scalar(first, k), weight = part_of_filter(&r, tn_sub(from, at));
        tn_tensor part = tn_mul(tn_gather(wide, tn_cast(from, TN_I64), axis), tn_cast(tn_reshape(weight, along), inside));
        y = k ? tn_add(y, part) : part;
    }
    return tn_cast(y, t);
}

/* [N,..image..,C]; out: one size for each axis of the image, a 0 repeats the one before. */
static bool check_image(tn_tensor x, const char *fn, const int64_t *given, int64_t out[3]) {
    tn_shape s;
    if (!nn_check(x, fn, 3, &s)) return false;
    for (int i = 0; i < 3; i++) out[i] = given[i] || !i ? given[i] : out[i - 1];
    for (int i = 0; i < s.rank - 2; i++) {
        char from[64] = "?", to[64] = "?";
        if (s.rank <= 5 && nn_least(x.graph, s.dim[i + 1]) >= 1 && nn_least(x.graph, out[i]) >= 1 &&
            nn_most(x.graph, out[i]) <= 1 << 20)
            continue;
        tn_dim_text(x.graph, s.dim[i + 1], from, sizeof from);
        if (i < 3) tn_dim_text(x.graph, out[i], to, sizeof to);
        nn_fail(x.graph, TN_ERR_SHAPE, "%s: rank %d, image axis %d of size %s to %s; sizes are 1 to 1,048,576", fn, s.rank, i,
                from, to);
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
        if (in == out[i]) continue;
        if (in > 0 && out[i] > 0)
            x = resize_axis(x, i + 1, out[i], &o);
        else if (!o.antialias)
            x = resize_open_axis(x, i + 1, out[i], &o);
        else
            x = nn_fail(x.graph, TN_ERR_UNSUPPORTED, "%s: antialiasing along image axis %d, whose size a run gives", fn, i);
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
/* Where a run gives the size: each position looks at all elements for its own. */
static tn_tensor pool_open_axis(tn_tensor x, int axis, int64_t out, bool max) {
    enum { MOST = 64 };
    tn_shape along = tn_tensor_shape(x);
    tn_tensor parts[MOST];
    if (out < 0 || out > MOST)
        return nn_fail(x.graph, TN_ERR_UNSUPPORTED, "an adaptive pool along image axis %d, whose size a run gives, to %s",
                       axis - 1, out < 0 ? "a size that a run gives" : "more than 64");
    for (int i = 0; i < along.rank; i++) along.dim[i] = i == axis ? along.dim[i] : 1;
    tn_tensor at = tn_iota(x.graph, TN_I64, along, axis), in = tn_dim_value(x.graph, along.dim[axis]);
    tn_tensor all = nn_scalar(in, (double)out);
    for (int64_t i = 0; i < out; i++) {
        tn_tensor from = tn_floor_div(tn_mul_scalar(in, (double)i), all);
        tn_tensor to = tn_floor_div(tn_add_scalar(tn_mul_scalar(in, (double)i + 1), (double)out - 1), all);
        tn_tensor mine = tn_and(tn_ge(at, from), tn_lt(at, to));
        tn_tensor y = out == 1 ? x : tn_select(mine, x, nn_scalar(x, max ? -INFINITY : 0));
        y = max ? tn_reduce_max(y, TN_INTS(axis), 1) : nn_row_sum(y, axis, 1);
        parts[i] = max ? y : tn_cast(tn_div(y, tn_cast(tn_sub(to, from), tn_tensor_dtype(y))), tn_tensor_dtype(x));
    }
    return tn_concat(parts, (int)out, axis);
}
static tn_tensor adaptive_pool(tn_tensor x, const int64_t *given, const char *fn, bool max) {
    int64_t out[3];
    if (!check_image(x, fn, given, out)) return (tn_tensor){ x.graph, 0 };
    int n = tn_tensor_shape(x).rank - 2;
    for (int i = 0; i < n && tn_tensor_shape(x).rank > 0; i++) {
        int64_t in = tn_tensor_shape(x).dim[i + 1];
        if (in == out[i]) continue;
        x = in > 0 && out[i] > 0 ? pool_axis(x, i + 1, out[i], max) : pool_open_axis(x, i + 1, out[i], max);
    }
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
