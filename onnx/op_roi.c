/* op_roi.c - regions and grids of images: RoiAlign, AffineGrid, Col2Im, CenterCropPad, and caches that are written into. */
#include "import.h"

/* ---- RoiAlign ---- */

void onnx_op_roi_align(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0), b = onnx_shape(c, 1);
    int64_t samples = onnx_attr_int(c, "sampling_ratio", 0);
    tn_nn_roi_opts o = { .out = { onnx_attr_int(c, "output_height", 1), onnx_attr_int(c, "output_width", 1) },
                         .scale = onnx_attr_float(c, "spatial_scale", 1),
                         .max = onnx_attr_is(c, "mode", "avg", "max") };
    const char *fallback = c->opset < 16 ? "output_half_pixel" : "half_pixel";
    o.half_pixel = onnx_attr_is(c, "coordinate_transformation_mode", fallback, "half_pixel");
    if (!o.half_pixel && !onnx_attr_is(c, "coordinate_transformation_mode", fallback, "output_half_pixel"))
        onnx_refuse(c, "attribute coordinate_transformation_mode");
    if (!o.max && !onnx_attr_is(c, "mode", "avg", "avg")) onnx_refuse(c, "attribute mode");
    if (samples < 1 || samples > 64)
        onnx_refuse(c, "sampling_ratio %lld: as many samples as a region is large", (long long)samples);
    o.samples = (int)samples;
    if (s.rank != 4 || b.rank != 2 || b.dim[1] != 4 || onnx_count_of(onnx_shape(c, 2)) != b.dim[0] || o.scale == 0)
        onnx_refuse(c, "its shapes or its scale");
    tn_tensor batch = tn_reshape(onnx_t(c, 2), TN_DIMS(b.dim[0]));
    tn_tensor y = tn_nn_roi_align(tn_permute(onnx_t(c, 0), TN_INTS(0, 2, 3, 1)), onnx_t(c, 1), batch, o);
    onnx_put(c, 0, tn_permute(y, TN_INTS(0, 3, 1, 2)), ELEM_NONE);
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
    tn_shape parts = { .rank = 2 * n + 2 };
    int64_t perm[TN_MAX_RANK] = { 0, 1 }, axes[TN_MAX_RANK], start[TN_MAX_RANK] = { 0 };
    parts.dim[0] = whole.dim[0] = out.dim[0] = s.dim[0], parts.dim[1] = whole.dim[1] = out.dim[1] = s.dim[1] / kernel;
    for (int i = 0; i < n; i++) {
        parts.dim[i + 2] = block[i], parts.dim[i + n + 2] = positions[i], axes[i] = i + 2;
        perm[i + 2] = i + n + 2, perm[i + n + 2] = i + 2;
        start[i + 2] = pads[i], out.dim[i + 2] += pads[i];
    }
    tn_tensor x = tn_permute(tn_reshape(onnx_t(c, 0), parts), perm, parts.rank);
    onnx_put(c, 0, tn_slice(tn_fold(x, axes, block, stride, dilation, n, whole), start, out.dim, NULL, n + 2), ELEM_NONE);
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
