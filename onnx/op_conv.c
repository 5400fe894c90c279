/* op_conv.c - convolutions, channels first. */
#include "windows.h"

static tn_tensor add_bias(onnx_call *c, tn_tensor y) {
    tn_shape s = { .rank = tn_tensor_shape(y).rank };
    if (!onnx_has(c, 2)) return y;
    for (int i = 0; i < s.rank; i++) s.dim[i] = 1;
    s.dim[1] = onnx_count_of(onnx_shape(c, 2));
    return tn_add(y, tn_reshape(onnx_t(c, 2), s));
}
static void check_ranks(onnx_call *c) {
    if (onnx_rank(c, 0) != onnx_rank(c, 1)) onnx_refuse(c, "weights of rank %d for rank %d", onnx_rank(c, 1), onnx_rank(c, 0));
}

void onnx_op_conv(onnx_call *c) {
    onnx_windows w;
    check_ranks(c);
    onnx_windows_read(c, onnx_shape(c, 0), onnx_shape(c, 1).dim + 2, &w);
    tn_shape s = onnx_shape(c, 1), channels = { .rank = s.rank };
    tn_tensor x, weights, scale, y;
    int64_t groups = onnx_attr_int(c, "group", 1), terms = s.dim[0] > 0 ? onnx_count_of(s) / s.dim[0] : 0;
    if (onnx_as_steps(c, 0, 1, 0, terms, &x, &weights, &scale)) {
        for (int i = 0; i < s.rank; i++) channels.dim[i] = i == 1 ? s.dim[0] : 1;
        if (tn_tensor_shape(scale).rank == 1) scale = tn_reshape(scale, channels);
        y = tn_mul(tn_cast(onnx_convolve(c, x, weights, &w, groups), TN_F32), scale);
    } else {
        y = onnx_convolve(c, onnx_t(c, 0), onnx_t(c, 1), &w, groups);
    }
    onnx_put(c, 0, add_bias(c, y), ELEM_NONE);
}
void onnx_op_conv_integer(onnx_call *c) {
    onnx_windows w;
    check_ranks(c);
    onnx_windows_read(c, onnx_shape(c, 0), onnx_shape(c, 1).dim + 2, &w);
    tn_tensor x = onnx_less_zero_point(c, 0, 2, TN_MAX_RANK), weights = onnx_less_zero_point(c, 1, 3, 0);
    onnx_put(c, 0, onnx_convolve(c, x, weights, &w, onnx_attr_int(c, "group", 1)), ELEM_I32);
}

/* ---- transposed: the operand spread out by its strides, convolved with the flipped kernel ---- */

static tn_tensor spread(tn_tensor x, int axis, int64_t stride) {
    tn_shape s = tn_tensor_shape(x), wide = s;
    int64_t before[TN_MAX_RANK] = { 0 }, after[TN_MAX_RANK] = { 0 }, start[TN_MAX_RANK] = { 0 };
    if (s.rank < 0 || stride == 1 || s.dim[axis] == 0) return x;
    for (int i = s.rank; i > axis + 1; i--) wide.dim[i] = wide.dim[i - 1];
    wide.dim[axis + 1] = 1, wide.rank++;
    after[axis + 1] = stride - 1;
    x = tn_pad(tn_reshape(x, wide), before, after, wide.rank, 0);
    s.dim[axis] *= stride;
    x = tn_reshape(x, s);
    s.dim[axis] -= stride - 1; /* no zeros after the last */
    return tn_slice(x, start, s.dim, NULL, s.rank);
}

/* Weights [C,O/G,..] of the transposed form as those of the plain one: [O,C/G,..], flipped. */
static tn_tensor turn_weights(onnx_call *c, int64_t groups, int n) {
    tn_shape s = onnx_shape(c, 1), parts = s, out = s;
    int64_t axes[TN_MAX_RANK], perm[TN_MAX_RANK];
    if (groups < 1 || s.dim[0] % groups || s.rank + 1 > TN_MAX_RANK) onnx_refuse(c, "%lld groups", (long long)groups);
    for (int i = 0; i < n; i++) axes[i] = i + 2, parts.dim[i + 3] = s.dim[i + 2];
    parts.rank++;
    parts.dim[0] = groups, parts.dim[1] = s.dim[0] / groups, parts.dim[2] = s.dim[1];
    for (int i = 0; i < parts.rank; i++) perm[i] = i == 1 ? 2 : i == 2 ? 1 : i;
    out.dim[0] = groups * s.dim[1], out.dim[1] = s.dim[0] / groups;
    return tn_reshape(tn_permute(tn_reshape(tn_flip(onnx_t(c, 1), axes, n), parts), perm, parts.rank), out);
}

/* What the transposed form cuts off at both ends of axis i. */
static void cut_ends(onnx_call *c, onnx_windows *w, int i, int64_t extra, const int64_t *shape) {
    int64_t full = (w->in[i] - 1) * w->stride[i] + (w->kernel[i] - 1) * w->dilation[i] + 1 + extra;
    bool upper = onnx_attr_is(c, "auto_pad", "NOTSET", "SAME_UPPER"),
         lower = onnx_attr_is(c, "auto_pad", "NOTSET", "SAME_LOWER");
    int64_t want = shape ? shape[i] : upper || lower ? w->in[i] * w->stride[i] : -1;
    if (want >= 0) {
        int64_t total = full - want;
        w->before[i] = upper ? total / 2 : total - total / 2;
        if (total < 0) w->before[i] = 0; /* zeros come in at the end */
        w->after[i] = total - w->before[i];
    }
    w->out[i] = full - w->before[i] - w->after[i];
    if (w->out[i] < 1) onnx_refuse(c, "no result along axis %d", i + 2);
}

static void read_transposed(onnx_call *c, onnx_windows *w, int64_t *extra) {
    tn_shape big = onnx_shape(c, 0);
    int n_shape, n_extra;
    for (int i = 2; i < big.rank; i++) big.dim[i] = INT32_MAX; /* windows need not fit in the operand */
    check_ranks(c);
    onnx_windows_read(c, big, onnx_shape(c, 1).dim + 2, w);
    const int64_t *shape = onnx_attr_ints(c, "output_shape", &n_shape), *given = onnx_attr_ints(c, "output_padding", &n_extra);
    if (shape && n_shape == w->n + 2) shape += 2, n_shape -= 2;
    if ((shape && n_shape != w->n) || (given && n_extra != w->n)) onnx_refuse(c, "output_shape or output_padding");
    if (!onnx_attr_is(c, "auto_pad", "NOTSET", "NOTSET"))
        memset(w->before, 0, sizeof w->before), memset(w->after, 0, sizeof w->after);
    for (int i = 0; i < w->n; i++) {
        w->in[i] = onnx_shape(c, 0).dim[i + 2];
        extra[i] = given ? given[i] : 0;
        if (w->in[i] < 1 || extra[i] < 0) onnx_refuse(c, "an empty axis");
        cut_ends(c, w, i, extra[i], shape);
    }
}

void onnx_op_conv_transpose(onnx_call *c) {
    onnx_windows w;
    int64_t extra[TN_MAX_RANK], groups = onnx_attr_int(c, "group", 1);
    read_transposed(c, &w, extra);
    tn_tensor x = onnx_t(c, 0), weights = turn_weights(c, groups, w.n);
    int rank = w.n + 2;
    int64_t before[TN_MAX_RANK] = { 0 }, after[TN_MAX_RANK] = { 0 }, start[TN_MAX_RANK] = { 0 };
    for (int i = 0; i < w.n; i++) {
        int64_t edge = (w.kernel[i] - 1) * w.dilation[i];
        x = spread(x, i + 2, w.stride[i]);
        before[i + 2] = edge, after[i + 2] = edge + extra[i];
        w.in[i] = (w.in[i] - 1) * w.stride[i] + 1 + 2 * edge + extra[i];
        start[i + 2] = w.before[i];
        w.stride[i] = 1, w.before[i] = w.after[i] = 0;
    }
    tn_shape stop = onnx_shape(c, 0), cut = { .rank = rank };
    int64_t more[TN_MAX_RANK] = { 0 }, none[TN_MAX_RANK] = { 0 };
    for (int i = 0; i < w.n; i++) {
        cut.dim[i + 2] = start[i + 2] + w.out[i];
        w.out[i] = w.in[i] - (w.kernel[i] - 1) * w.dilation[i];
        if (cut.dim[i + 2] > w.out[i]) more[i + 2] = cut.dim[i + 2] - w.out[i];
    }
    tn_tensor y = onnx_convolve(c, tn_pad(x, before, after, rank, 0), weights, &w, groups);
    cut.dim[0] = stop.dim[0], cut.dim[1] = onnx_shape(c, 1).dim[1] * groups;
    y = tn_slice(tn_pad(y, none, more, rank, 0), start, cut.dim, NULL, rank);
    onnx_put(c, 0, add_bias(c, y), ELEM_NONE);
}
