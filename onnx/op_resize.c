/* op_resize.c - Resize and Upsample: along each axis a weighted sum of a few gathers, whose places and weights are known. */
#include "import.h"

#include <math.h>

typedef struct resize {
    tn_shape in, out;
    double scale[TN_MAX_RANK], length[TN_MAX_RANK], roi[2 * TN_MAX_RANK]; /* length: of the result, before it is rounded down */
    double a, extrapolation;
    bool cubic, linear, exclude, crop, by_length[TN_MAX_RANK]; /* by_length: a run gives the size, and places depend on it */
} resize;

static double place(onnx_call *c, const resize *r, int axis, double x) {
    double n = (double)r->in.dim[axis], m = r->length[axis], s = r->scale[axis];
    const char *standard = c->opset < 11 ? "asymmetric" : "half_pixel";
#define MODE(word) onnx_attr_is(c, "coordinate_transformation_mode", standard, word)
    if (!r->linear && !r->cubic) { /* which of two is nearer depends on the last bit: float, as ONNX's reference and runtimes */
        float near = (float)x, by = (float)s;
        if (MODE("half_pixel") || (MODE("pytorch_half_pixel") && m > 1)) return (double)((near + 0.5f) / by - 0.5f);
        if (MODE("asymmetric")) return (double)(near / by);
        if (MODE("tf_half_pixel_for_nn")) return (double)((near + 0.5f) / by);
    }
    if (MODE("half_pixel")) return (x + 0.5) / s - 0.5;
    if (MODE("half_pixel_symmetric")) return n / 2 * (1 - (double)r->out.dim[axis] / (s * n)) + (x + 0.5) / s - 0.5;
    if (MODE("pytorch_half_pixel")) return m > 1 ? (x + 0.5) / s - 0.5 : 0;
    if (MODE("align_corners")) return m > 1 ? x * (n - 1) / (m - 1) : 0;
    if (MODE("asymmetric")) return x / s;
    if (MODE("tf_half_pixel_for_nn")) return (x + 0.5) / s;
    if (!r->crop) onnx_refuse(c, "attribute coordinate_transformation_mode");
#undef MODE
    double from = r->roi[axis], to = r->roi[axis + r->in.rank];
    return m > 1 ? from * (n - 1) + x * (to - from) * (n - 1) / (m - 1) : 0.5 * (from + to) * (n - 1);
}

static double nearest(onnx_call *c, double x) {
    const char *standard = c->opset < 11 ? "floor" : "round_prefer_floor";
    if (onnx_attr_is(c, "nearest_mode", standard, "round_prefer_floor")) return ceil(x - 0.5);
    if (onnx_attr_is(c, "nearest_mode", standard, "round_prefer_ceil")) return floor(x + 0.5);
    if (onnx_attr_is(c, "nearest_mode", standard, "floor")) return floor(x);
    if (onnx_attr_is(c, "nearest_mode", standard, "ceil")) return ceil(x);
    onnx_refuse(c, "attribute nearest_mode");
}

/* Keys' cubic: weights of the elements at -1, 0, 1, 2 from the place before, f after which the result lies. */
static void cubic_weights(double a, double f, double w[4]) {
    for (int i = 0; i < 4; i++) {
        double d = fabs(f - (i - 1));
        w[i] = d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
    }
}

typedef struct taps { /* tap k of position i is k * positions + i */
    int n;
    int64_t positions, *at;
    double *weight;
    bool *outside, any_outside;
} taps;

static void taps_at(onnx_call *c, const resize *r, int axis, int64_t i, taps *t) {
    double x = place(c, r, axis, (double)i), base = t->n == 1 ? nearest(c, x) : floor(x), w[4] = { 1 }, sum = 0;
    int64_t n = r->in.dim[axis], first = (int64_t)base - (t->n == 4);
    if (t->n == 2) w[0] = 1 - (x - base), w[1] = x - base;
    if (t->n == 4) cubic_weights(r->a, x - base, w);
    for (int k = 0; k < t->n; k++) {
        int64_t at = first + k;
        if (r->exclude && t->n > 1 && (at < 0 || at >= n)) w[k] = 0;
        sum += w[k];
        t->at[k * t->positions + i] = at < 0 ? 0 : at >= n ? n - 1 : at;
    }
    for (int k = 0; k < t->n; k++) t->weight[k * t->positions + i] = r->exclude && sum != 0 ? w[k] / sum : w[k];
    t->outside[i] = r->crop && (x < 0 || x > (double)(n - 1));
    t->any_outside |= t->outside[i];
}

static tn_tensor resize_axis(onnx_call *c, const resize *r, int axis, tn_tensor x) {
    taps t = { .n = r->cubic ? 4 : r->linear ? 2 : 1, .positions = r->out.dim[axis] };
    int64_t m = t.positions, dims[TN_MAX_RANK];
    if (m > 1 << 20) onnx_refuse(c, "%lld elements along an axis", (long long)m);
    if (r->in.dim[axis] < 1) onnx_refuse(c, "an empty axis");
    t.at = ONNX_NEW(c->im->env, int64_t, t.n * m + 1), t.weight = ONNX_NEW(c->im->env, double, t.n *m + 1);
    t.outside = ONNX_NEW(c->im->env, bool, m + 1);
    for (int64_t i = 0; i < m; i++) taps_at(c, r, axis, i, &t);
    for (int i = 0; i < r->in.rank; i++) dims[i] = i == axis ? m : 1;
    tn_tensor y = tn_nn_resample(x, axis, m, t.n, t.at, t.n > 1 ? t.weight : NULL);
    tn_shape along = onnx_dims(dims, r->in.rank);
    if (t.any_outside) y = tn_select(tn_const(c->g, TN_BOOL, along, t.outside), onnx_scalar(y, r->extrapolation), y);
    return y;
}

/* ---- along an axis whose size a run gives ---- */

/* Places and weights of the positions that the largest size has; each run has the first of them. A place behind the end of a
 * run's axis is its last element, as a gather takes it. */
static tn_tensor resize_open_axis(onnx_call *c, const resize *r, int axis, tn_tensor x) {
    taps t = { .n = r->cubic ? 4 : r->linear ? 2 : 1 };
    int64_t lo, most, out = r->out.dim[axis], in;
    onnx_dim_range(c, r->in.dim[axis], &lo, &in), onnx_dim_range(c, out, &lo, &most);
    if (most > 1 << 20) onnx_refuse(c, "up to %lld elements along axis %d, whose size a run gives", (long long)most, axis);
    int64_t *at = ONNX_NEW(c->im->env, int64_t, t.n * most + 1);
    double *weight = ONNX_NEW(c->im->env, double, t.n *most + 1);
    for (int64_t i = 0; i < most; i++) {
        double p = place(c, r, axis, (double)i), base = t.n == 1 ? nearest(c, p) : floor(p), w[4] = { 1 };
        if (t.n == 2) w[0] = 1 - (p - base), w[1] = p - base;
        if (t.n == 4) cubic_weights(r->a, p - base, w);
        for (int k = 0; k < t.n; k++) {
            int64_t from = (int64_t)base - (t.n == 4) + k;
            at[k * most + i] = from < 0 ? 0 : from < in ? from : in - 1, weight[k * most + i] = w[k];
        }
    }
    return tn_nn_resample(x, axis, out, t.n, at, t.n > 1 ? weight : NULL);
}

static bool is_mode(onnx_call *c, const char *word) {
    return onnx_attr_is(c, "coordinate_transformation_mode", c->opset < 11 ? "asymmetric" : "half_pixel", word);
}

/* As `place` in f64, where it depends on how long the axis is. */
static tn_tensor places_of_run(onnx_call *c, const resize *r, int axis) {
    tn_tensor x = tn_iota(c->g, TN_F64, TN_DIMS(r->out.dim[axis]), 0);
    tn_tensor n = tn_cast(tn_dim_value(c->g, r->in.dim[axis]), TN_F64), m = tn_mul_scalar(n, r->scale[axis]);
    if (is_mode(c, "align_corners")) {
        x = tn_div(tn_mul(x, tn_add_scalar(n, -1)), tn_add_scalar(m, -1));
        return tn_select(tn_gt(m, onnx_scalar(m, 1)), x, onnx_scalar(x, 0));
    }
    tn_tensor share = tn_div(tn_cast(tn_dim_value(c->g, r->out.dim[axis]), TN_F64), m), one = onnx_scalar(x, 1);
    x = tn_div(tn_add_scalar(x, 0.5), onnx_scalar(x, r->scale[axis]));
    return tn_add_scalar(tn_add(tn_mul(tn_mul_scalar(n, 0.5), tn_sub(one, share)), x), -0.5); /* rounded as there */
}
static tn_tensor nearest_of_run(onnx_call *c, tn_tensor x) {
    if (nearest(c, 0.5) == 0) return nearest(c, 0.75) == 1 ? tn_ceil(tn_add_scalar(x, -0.5)) : tn_floor(x);
    return nearest(c, 0.25) == 0 ? tn_floor(tn_add_scalar(x, 0.5)) : tn_ceil(x);
}
static tn_tensor resize_by_length(onnx_call *c, const resize *r, int axis, tn_tensor x) {
    tn_tensor at = places_of_run(c, r, axis), from = r->linear ? tn_floor(at) : nearest_of_run(c, at),
              first = tn_cast(from, TN_I64);
    tn_tensor y = tn_gather(x, first, axis);
    if (!r->linear) return y;
    tn_shape along = { .rank = r->in.rank };
    for (int i = 0; i < along.rank; i++) along.dim[i] = i == axis ? r->out.dim[axis] : 1;
    tn_tensor after = tn_reshape(tn_sub(at, from), along), before = tn_sub(onnx_scalar(after, 1), after);
    tn_tensor next = tn_gather(x, tn_add_scalar(first, 1), axis);
    return tn_add(tn_mul(y, tn_cast(before, tn_tensor_dtype(x))), tn_mul(next, tn_cast(after, tn_tensor_dtype(x))));
}

/* The size times scale, rounded down: as any float is a whole number over a power of two, that is arithmetic of dims. */
static void scale_open_axis(onnx_call *c, resize *r, int axis, double scale) {
    double p = scale;
    int64_t q = 1, lo, hi, in = r->in.dim[axis];
    while (p != floor(p) && q < 1 << 30) p *= 2, q *= 2;
    if (!(scale > 0) || p != floor(p) || p > 0x1p40) onnx_refuse(c, "scale %g of axis %d, whose size a run gives", scale, axis);
    onnx_dim_range(c, in, &lo, &hi);
    r->out.dim[axis] = onnx_dim(c, '/', onnx_dim(c, '*', in, (int64_t)p), q);
    r->scale[axis] = scale, r->length[axis] = (double)lo * scale;
    r->by_length[axis] = is_mode(c, "align_corners") || is_mode(c, "half_pixel_symmetric");
    if (r->crop || (is_mode(c, "pytorch_half_pixel") && r->length[axis] <= 1) || (r->by_length[axis] && r->cubic))
        onnx_refuse(c, "attribute coordinate_transformation_mode, of axis %d, whose size a run gives", axis);
    if (r->exclude && (r->linear || r->cubic))
        onnx_refuse(c, "attribute exclude_outside, of axis %d, whose size a run gives", axis);
}
/* How often `size` has the axis's own: 0, where that is another number in each run. */
static double times_open_axis(onnx_call *c, const resize *r, int axis, int64_t size) {
    enum { MOST_TIMES = 16 };
    for (int k = 1; k <= MOST_TIMES && onnx_is_dim(size); k++)
        if (onnx_dim(c, '*', r->in.dim[axis], k) == size) return k;
    return 0;
}

static void read_mode(onnx_call *c, resize *r) {
    r->linear = onnx_attr_is(c, "mode", "nearest", "linear") || onnx_attr_is(c, "mode", "nearest", "bilinear");
    r->cubic = onnx_attr_is(c, "mode", "nearest", "cubic");
    if (!r->linear && !r->cubic && !onnx_attr_is(c, "mode", "nearest", "nearest")) onnx_refuse(c, "attribute mode");
    r->a = onnx_attr_float(c, "cubic_coeff_a", -0.75);
    r->exclude = onnx_attr_int(c, "exclude_outside", 0);
    r->extrapolation = onnx_attr_float(c, "extrapolation_value", 0);
    r->crop = onnx_attr_is(c, "coordinate_transformation_mode", "", "tf_crop_and_resize");
    (void)onnx_attr_find(c, "nearest_mode");
    if (onnx_attr_int(c, "antialias", 0)) onnx_refuse(c, "antialias");
    if (!onnx_attr_is(c, "keep_aspect_ratio_policy", "stretch", "stretch")) onnx_refuse(c, "keep_aspect_ratio_policy");
    if ((r->linear || r->cubic) && !onnx_is_float(onnx_elem(c, 0))) onnx_refuse(c, "interpolation of whole numbers");
}

/* Numbers of operand i for the axes that the attribute `axes` names (all, where it is not given). */
static int per_axis(onnx_call *c, int i, const char *what, int rank, int64_t *axes, double **out) {
    int n, n_axes;
    const int64_t *named = onnx_attr_ints(c, "axes", &n_axes);
    *out = NULL;
    if (!named) n_axes = rank;
    for (int k = 0; k < n_axes && k < TN_MAX_RANK; k++) axes[k] = named ? onnx_axis(c, named[k], rank) : k;
    if (!onnx_has(c, i)) return n_axes;
    double *v;
    if (onnx_in(c, i)->sizes) { /* a size that stays is -1 */
        const int64_t *sizes = onnx_sizes(c, i, what, &n);
        v = ONNX_NEW(c->im->env, double, n + 1);
        for (int k = 0; k < n && n == n_axes; k++)
            v[k] = onnx_is_dim(sizes[k]) && sizes[k] == onnx_shape(c, 0).dim[axes[k]] ? -1 : (double)sizes[k];
    } else {
        v = onnx_known_floats(c, i, what, &n);
    }
    if (!n) return n_axes; /* empty: not given */
    if (n != n_axes * (!strcmp(what, "region") + 1)) onnx_refuse(c, "its %s has %d numbers", what, n);
    *out = v;
    return n_axes;
}

static void read_sizes(onnx_call *c, resize *r, int scales_at) {
    int64_t axes[TN_MAX_RANK];
    double *scales, *sizes = NULL, *region = NULL;
    int n = per_axis(c, scales_at, "scales", r->in.rank, axes, &scales);
    if (scales_at == 2) (void)per_axis(c, 3, "sizes", r->in.rank, axes, &sizes);
    if (r->crop) (void)per_axis(c, 1, "region", r->in.rank, axes, &region);
    if (!scales == !sizes) onnx_refuse(c, "scales or sizes: one of them");
    if (r->crop && !region) onnx_refuse(c, "its region is missing");
    for (int i = 0; i < r->in.rank; i++) r->scale[i] = 1, r->length[i] = (double)r->in.dim[i], r->roi[i + r->in.rank] = 1;
    r->out = r->in;
    for (int k = 0; k < n; k++) {
        int64_t i = axes[k];
        if (onnx_is_dim(r->in.dim[i])) {
            double scale = !sizes           ? scales[k]
                           : sizes[k] == -1 ? 1
                                            : times_open_axis(c, r, (int)i, onnx_sizes(c, 3, "sizes", &(int){ 0 })[k]);
            if (scale <= 0)
                onnx_refuse(c, "axis %d has a size that a run gives, and is no whole number of times as long then", (int)i);
            if (scale != 1) scale_open_axis(c, r, (int)i, scale);
            continue;
        }
        double size = sizes ? sizes[k] : floor((double)r->in.dim[i] * scales[k]);
        if (!(size >= 0 && size < 1 << 30)) onnx_refuse(c, "%g elements along axis %d", size, (int)i);
        r->out.dim[i] = (int64_t)size;
        r->length[i] = sizes ? size : (double)r->in.dim[i] * scales[k];
        r->scale[i] = sizes ? size / (double)r->in.dim[i] : scales[k];
        if (region) r->roi[i] = region[k], r->roi[i + r->in.rank] = region[k + n];
    }
}

static void resize_all(onnx_call *c, resize *r) {
    tn_tensor x = onnx_accurate(onnx_t(c, 0));
    for (int i = 0; i < r->in.rank; i++)
        if (r->scale[i] != 1 || r->in.dim[i] != r->out.dim[i] || r->roi[i] != 0 || r->roi[i + r->in.rank] != 1)
            x = r->by_length[i]             ? resize_by_length(c, r, i, x)
                : onnx_is_dim(r->in.dim[i]) ? resize_open_axis(c, r, i, x)
                                            : resize_axis(c, r, i, x);
    onnx_put(c, 0, tn_cast(x, onnx_elem_dtype(onnx_elem(c, 0))), ELEM_NONE);
}

void onnx_op_resize(onnx_call *c) {
    resize r = { .in = onnx_shape(c, 0) };
    read_mode(c, &r);
    read_sizes(c, &r, c->opset < 11 ? 1 : 2);
    resize_all(c, &r);
}
void onnx_op_upsample(onnx_call *c) {
    resize r = { .in = onnx_shape(c, 0) };
    read_mode(c, &r);
    const onnx_attr *a = onnx_attr_find(c, "scales");
    if (c->opset >= 9) {
        read_sizes(c, &r, 1);
    } else {
        if (!a || a->type != ATTR_FLOATS || a->n != r.in.rank) onnx_refuse(c, "attribute scales");
        r.out = r.in;
        for (int i = 0; i < r.in.rank; i++) {
            r.scale[i] = 1, r.roi[i + r.in.rank] = 1;
            if (onnx_is_dim(r.in.dim[i]) && a->floats[i] != 1) scale_open_axis(c, &r, i, (double)a->floats[i]);
            if (onnx_is_dim(r.in.dim[i])) continue;
            double size = floor((double)r.in.dim[i] * (double)a->floats[i]);
            if (!(size >= 0 && size < 1 << 30)) onnx_refuse(c, "%g elements along axis %d", size, i);
            r.scale[i] = (double)a->floats[i], r.length[i] = size, r.out.dim[i] = (int64_t)size, r.roi[i + r.in.rank] = 1;
        }
    }
    resize_all(c, &r);
}
