/* op_roi.c - regions and grids of images: RoiAlign, AffineGrid, Col2Im, CenterCropPad, and caches that are written into. */
#include "import.h"

/* ---- RoiAlign: samples between the elements of each region's bins ---- */

typedef struct axis_sample { /* along one axis, for each region and sample */
    tn_tensor low, high;     /* i64[R,P]: the neighbours */
    tn_tensor near, far;     /* f[R,P]: their weights, 0 outside */
} axis_sample;

typedef struct roi {
    tn_tensor boxes; /* f[R,4]: x1 y1 x2 y2 */
    int64_t n, samples;
    double scale;
    bool half_pixel;
} roi;

static tn_tensor column(tn_tensor x, int64_t k, int64_t n) {
    int64_t start[] = { 0, k }, stop[] = { n, k + 1 };
    return tn_slice(x, start, stop, NULL, 2);
}
static axis_sample sample_axis(onnx_call *c, const roi *r, int64_t first, int64_t bins, int64_t size) {
    axis_sample s;
    double move = r->half_pixel ? -0.5 : 0;
    tn_tensor from = tn_add_scalar(tn_mul_scalar(column(r->boxes, first, r->n), r->scale), move);
    tn_tensor to = tn_add_scalar(tn_mul_scalar(column(r->boxes, first + 2, r->n), r->scale), move), length = tn_sub(to, from);
    if (!r->half_pixel) length = tn_max(length, onnx_scalar(length, 1));
    tn_tensor step = tn_mul_scalar(length, 1 / (double)(bins * r->samples));
    tn_tensor place = tn_iota(c->g, tn_tensor_dtype(from), TN_DIMS(r->n, bins * r->samples), 1);
    tn_tensor at = tn_add(from, tn_mul(step, tn_add_scalar(place, 0.5))), zero = onnx_scalar(at, 0);
    tn_tensor in = tn_and(tn_ge(at, onnx_scalar(at, -1)), tn_le(at, onnx_scalar(at, (double)size)));
    tn_tensor top = onnx_scalar(at, (double)(size - 1));
    at = tn_min(tn_max(at, zero), top);
    tn_tensor low = tn_floor(at), part = tn_sub(at, low);
    s.low = tn_cast(low, TN_I64), s.high = tn_cast(tn_min(tn_add_scalar(low, 1), top), TN_I64);
    s.near = tn_select(in, tn_sub(onnx_scalar(part, 1), part), zero), s.far = tn_select(in, part, zero);
    return s;
}
static tn_tensor crossed(tn_tensor y, tn_tensor x, tn_tensor (*f)(tn_tensor, tn_tensor)) {
    tn_shape a = tn_tensor_shape(y), b = tn_tensor_shape(x);
    return f(tn_reshape(y, TN_DIMS(a.dim[0], a.dim[1], 1)), tn_reshape(x, TN_DIMS(b.dim[0], 1, b.dim[1])));
}

void onnx_op_roi_align(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0), b = onnx_shape(c, 1);
    bool most = onnx_attr_is(c, "mode", "avg", "max");
    int64_t ph = onnx_attr_int(c, "output_height", 1), pw = onnx_attr_int(c, "output_width", 1);
    roi r = { .n = b.dim[0],
              .samples = onnx_attr_int(c, "sampling_ratio", 0),
              .scale = onnx_attr_float(c, "spatial_scale", 1) };
    const char *fallback = c->opset < 16 ? "output_half_pixel" : "half_pixel";
    r.half_pixel = onnx_attr_is(c, "coordinate_transformation_mode", fallback, "half_pixel");
    if (!r.half_pixel && !onnx_attr_is(c, "coordinate_transformation_mode", fallback, "output_half_pixel"))
        onnx_refuse(c, "attribute coordinate_transformation_mode");
    if (!most && !onnx_attr_is(c, "mode", "avg", "avg")) onnx_refuse(c, "attribute mode");
    if (r.samples < 1 || r.samples > 64)
        onnx_refuse(c, "sampling_ratio %lld: as many samples as a region is large", (long long)r.samples);
    if (s.rank != 4 || b.rank != 2 || b.dim[1] != 4 || onnx_count_of(onnx_shape(c, 2)) != r.n || ph < 1 || pw < 1 ||
        ph > 4096 || pw > 4096)
        onnx_refuse(c, "its shapes");
    r.boxes = onnx_accurate(onnx_t(c, 1));
    tn_tensor x = onnx_accurate(onnx_t(c, 0)), v[4], sum = { .graph = NULL };
    x = tn_reshape(tn_permute(x, TN_INTS(0, 2, 3, 1)), TN_DIMS(s.dim[0] * s.dim[2] * s.dim[3], s.dim[1]));
    axis_sample sy = sample_axis(c, &r, 1, ph, s.dim[2]), sx = sample_axis(c, &r, 0, pw, s.dim[3]);
    tn_tensor batch = tn_reshape(tn_cast(onnx_t(c, 2), TN_I64), TN_DIMS(r.n, 1));
    for (int i = 0; i < 4; i++) {
        tn_tensor row = tn_add(tn_mul_scalar(batch, (double)s.dim[2]), i / 2 ? sy.high : sy.low);
        tn_tensor at = crossed(tn_mul_scalar(row, (double)s.dim[3]), i % 2 ? sx.high : sx.low, (tn_add));
        tn_tensor w = crossed(i / 2 ? sy.far : sy.near, i % 2 ? sx.far : sx.near, (tn_mul));
        w = tn_reshape(w, TN_DIMS(r.n, ph * r.samples, pw * r.samples, 1));
        v[i] = tn_mul(tn_gather(x, at, 0), tn_cast(w, tn_tensor_dtype(x)));
        sum = !i ? v[0] : most ? tn_max(sum, v[i]) : tn_add(sum, v[i]);
    }
    tn_tensor y = tn_reshape(sum, TN_DIMS(r.n, ph, r.samples, pw, r.samples, s.dim[1]));
    y = most ? tn_reduce_max(y, TN_INTS(2, 4), 0) : tn_mean(y, TN_INTS(2, 4), 0);
    onnx_put(c, 0, tn_cast(tn_permute(y, TN_INTS(0, 3, 1, 2)), onnx_elem_dtype(onnx_elem(c, 0))), ELEM_NONE);
}

/* ---- AffineGrid ---- */

void onnx_op_affine_grid(onnx_call *c) {
    int rank;
    const int64_t *size = onnx_known_ints(c, 1, "size", &rank);
    bool align = onnx_attr_int(c, "align_corners", 0);
    tn_shape t = onnx_shape(c, 0), image = { .rank = rank - 2 }, out = { .rank = rank };
    int n = rank - 2;
    if ((n != 2 && n != 3) || t.rank != 3 || t.dim[1] != n || t.dim[2] != n + 1 || t.dim[0] != size[0])
        onnx_refuse(c, "its shapes");
    tn_tensor theta = onnx_accurate(onnx_t(c, 0)), axes[4];
    for (int i = 0; i < n; i++) image.dim[i] = out.dim[i + 1] = size[i + 2];
    for (int i = 0; i < n; i++) { /* x first */
        double count = (double)image.dim[n - 1 - i], step = 2 / (align ? count - 1 : count);
        tn_tensor v = tn_iota(c->g, tn_tensor_dtype(theta), image, n - 1 - i);
        if (image.dim[n - 1 - i] < 1 || (align && count < 2)) onnx_refuse(c, "an axis of %g", count);
        axes[i] = tn_add_scalar(tn_mul_scalar(v, step), align ? -1 : step / 2 - 1);
    }
    axes[n] = tn_full(c->g, tn_tensor_dtype(theta), image, 1);
    tn_tensor grid = tn_reshape(tn_nn_stack(axes, n + 1, -1), TN_DIMS(onnx_count_of(image), n + 1));
    tn_tensor y = tn_dot(theta, grid, NULL, NULL, 0, &(int64_t){ 2 }, &(int64_t){ 1 }, 1); /* [N,n,points] */
    out.dim[0] = size[0], out.dim[rank - 1] = n;
    onnx_put(c, 0, tn_cast(tn_reshape(tn_permute(y, TN_INTS(0, 2, 1)), out), onnx_elem_dtype(onnx_elem(c, 0))), ELEM_NONE);
}

/* ---- Col2Im: blocks added back to where they were ---- */

static void read_all(onnx_call *c, const char *name, int n, int64_t fallback, int64_t *out) {
    int given;
    const int64_t *v = onnx_attr_ints(c, name, &given);
    if (v && given != n) onnx_refuse(c, "%s has %d numbers, expected %d", name, given, n);
    for (int i = 0; i < n; i++) {
        out[i] = v ? v[i] : fallback;
        if (out[i] < fallback || out[i] > INT32_MAX) onnx_refuse(c, "%s is %lld", name, (long long)out[i]);
    }
}
void onnx_op_col2_im(onnx_call *c) {
    int n, n_block;
    const int64_t *image = onnx_known_ints(c, 1, "image shape", &n), *block = onnx_known_ints(c, 2, "block shape", &n_block);
    int64_t stride[TN_MAX_RANK], dilation[TN_MAX_RANK], pads[2 * TN_MAX_RANK], positions[TN_MAX_RANK], blocks = 1, kernel = 1,
                                                                                                       padded = 1;
    tn_shape s = onnx_shape(c, 0), whole = { .rank = n + 2 }, out = { .rank = n + 2 };
    if (n != n_block || n < 1 || n > 4 || s.rank != 3) onnx_refuse(c, "its shapes");
    read_all(c, "strides", n, 1, stride), read_all(c, "dilations", n, 1, dilation), read_all(c, "pads", 2 * n, 0, pads);
    for (int i = 0; i < n; i++) {
        if (image[i] < 1 || image[i] > 1 << 20 || block[i] < 1 || block[i] > 1 << 20) onnx_refuse(c, "its shapes");
        whole.dim[i + 2] = image[i] + pads[i] + pads[n + i], out.dim[i + 2] = image[i];
        positions[i] = (whole.dim[i + 2] - (block[i] - 1) * dilation[i] - 1) / stride[i] + 1;
        if (positions[i] < 1) onnx_refuse(c, "no block");
        blocks *= positions[i], kernel *= block[i], padded *= whole.dim[i + 2];
        if (padded > 1 << 28 || kernel > 1 << 20) onnx_refuse(c, "its shapes");
    }
    if (s.dim[1] % kernel || s.dim[2] != blocks)
        onnx_refuse(c, "%lld blocks, expected %lld", (long long)s.dim[2], (long long)blocks);
    int64_t total = kernel * blocks, *at = ONNX_NEW(c->im->env, int64_t, total + 1), channels = s.dim[1] / kernel;
    for (int64_t i = 0; i < total; i++) { /* where element i of a channel belongs */
        int64_t k = i / blocks, p = i % blocks, unit = 1;
        for (int a = n - 1; a >= 0; k /= block[a], p /= positions[a], unit *= whole.dim[a + 2], a--)
            at[i] += (p % positions[a] * stride[a] + k % block[a] * dilation[a]) * unit;
    }
    tn_tensor x = tn_permute(tn_reshape(onnx_t(c, 0), TN_DIMS(s.dim[0] * channels, total)), TN_INTS(1, 0));
    tn_tensor y = tn_scatter_add(tn_full(c->g, tn_tensor_dtype(x), TN_DIMS(padded, s.dim[0] * channels), 0),
                                 onnx_ints_const(c, at, (int)total), x, 0);
    whole.dim[0] = out.dim[0] = s.dim[0], whole.dim[1] = out.dim[1] = channels;
    int64_t start[TN_MAX_RANK] = { 0 };
    for (int i = 0; i < n; i++) start[i + 2] = pads[i], out.dim[i + 2] += pads[i];
    onnx_put(c, 0, tn_slice(tn_reshape(tn_permute(y, TN_INTS(1, 0)), whole), start, out.dim, NULL, n + 2), ELEM_NONE);
}

/* ---- CenterCropPad ---- */

void onnx_op_center_crop_pad(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0), stop = s;
    int n, n_axes;
    const int64_t *size = onnx_known_ints(c, 1, "shape", &n), *axes = onnx_attr_ints(c, "axes", &n_axes);
    int64_t start[TN_MAX_RANK] = { 0 }, before[TN_MAX_RANK] = { 0 }, after[TN_MAX_RANK] = { 0 };
    if (n != (axes ? n_axes : s.rank)) onnx_refuse(c, "%d sizes", n);
    for (int i = 0; i < n; i++) {
        int a = axes ? onnx_axis(c, axes[i], s.rank) : i;
        int64_t more = size[i] - s.dim[a];
        if (size[i] < 0 || size[i] > INT32_MAX) onnx_refuse(c, "a size of %lld", (long long)size[i]);
        if (more < 0) start[a] = -more / 2, stop.dim[a] = start[a] + size[i];
        if (more > 0) before[a] = more / 2, after[a] = more - more / 2;
    }
    onnx_put(c, 0, tn_pad(tn_slice(onnx_t(c, 0), start, stop.dim, NULL, s.rank), before, after, s.rank, 0), ELEM_NONE);
}

/* ---- TensorScatter: an update written into a cache along one axis, from a place of its own in each batch ---- */

void onnx_op_tensor_scatter(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0), u = onnx_shape(c, 1), lead = { .rank = s.rank };
    int axis = onnx_axis(c, onnx_attr_int(c, "axis", -2), s.rank);
    bool circular = onnx_attr_is(c, "mode", "linear", "circular");
    if (!circular && !onnx_attr_is(c, "mode", "linear", "linear")) onnx_refuse(c, "attribute mode");
    if (u.rank != s.rank || axis == 0 || onnx_elem(c, 0) != onnx_elem(c, 1)) onnx_refuse(c, "its operands");
    for (int i = 0; i < s.rank; i++)
        if (i == axis ? u.dim[i] > s.dim[i] : u.dim[i] != s.dim[i]) onnx_refuse(c, "its shapes");
    for (int i = 0; i < s.rank; i++) lead.dim[i] = i ? 1 : s.dim[0];
    tn_tensor from = onnx_has(c, 2) ? tn_reshape(tn_cast(onnx_t(c, 2), TN_I64), lead) : tn_full(c->g, TN_I64, lead, 0);
    tn_shape flat = s;
    for (int i = 0; i < s.rank; i++)
        if (i != axis && i) flat.dim[i] = 1;
    tn_tensor at = tn_sub(tn_iota(c->g, TN_I64, flat, axis), from); /* which row of the update each place takes */
    if (circular) at = tn_mod(at, onnx_scalar(at, (double)s.dim[axis]));
    tn_tensor hit = tn_and(tn_ge(at, onnx_scalar(at, 0)), tn_lt(at, onnx_scalar(at, (double)u.dim[axis])));
    if (!u.dim[axis]) {
        onnx_put_val(c, 0, onnx_in(c, 0));
        return;
    }
    tn_tensor rows = onnx_take_along(c, onnx_t(c, 1), tn_expand(at, s), axis);
    onnx_put(c, 0, tn_select(hit, rows, onnx_t(c, 0)), ELEM_NONE);
}
