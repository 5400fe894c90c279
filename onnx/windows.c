/* windows.c - kernel, strides, padding and dilations, by ONNX's rules; a convolution as a contraction over a view of windows.
 */
#include "windows.h"

static void read_list(onnx_call *c, const char *name, int n, int64_t fallback, int64_t least, int64_t *out) {
    int given;
    const int64_t *v = onnx_attr_ints(c, name, &given);
    if (v && given != n) onnx_refuse(c, "%s has %d numbers, expected %d", name, given, n);
    for (int i = 0; i < n; i++) {
        out[i] = v ? v[i] : fallback;
        if (out[i] < least || out[i] > INT32_MAX) onnx_refuse(c, "%s is %lld", name, (long long)out[i]);
    }
}

/* Of an image: bytes of it are the first operand then. ResNet-50's 3 x 3 layers of 7 x 7 positions, one core of a Zen 4 with
 * VNNI, take 0.62 ms each so, the other way round 0.73. */
enum { FEW_POSITIONS = 64 };

static int64_t reach(const onnx_windows *w, int i) { return (w->kernel[i] - 1) * w->dilation[i] + 1; }

/* SAME: as many positions as the axis divided by the stride, rounded up. */
static void pad_same(onnx_call *c, onnx_windows *w, bool upper) {
    for (int i = 0; i < w->n; i++) {
        if (onnx_is_dim(w->in[i])) onnx_refuse(c, "padding that depends on a size that a run gives");
        int64_t total = ((w->in[i] + w->stride[i] - 1) / w->stride[i] - 1) * w->stride[i] + reach(w, i) - w->in[i];
        if (total < 0) total = 0;
        w->before[i] = upper ? total / 2 : total - total / 2;
        w->after[i] = total - w->before[i];
    }
}

void onnx_windows_read(onnx_call *c, tn_shape x, const int64_t *kernel, onnx_windows *w) {
    int64_t pads[2 * TN_MAX_RANK] = { 0 };
    *w = (onnx_windows){ .n = x.rank - 2 };
    if (x.rank < 3 || x.rank + w->n > TN_MAX_RANK) onnx_refuse(c, "an operand of rank %d", x.rank);
    read_list(c, "kernel_shape", w->n, 1, 1, w->kernel);
    if (!kernel && !onnx_attr_find(c, "kernel_shape")) onnx_refuse(c, "attribute kernel_shape is missing");
    read_list(c, "strides", w->n, 1, 1, w->stride);
    read_list(c, "dilations", w->n, 1, 1, w->dilation);
    read_list(c, "pads", 2 * w->n, 0, 0, pads);
    for (int i = 0; i < w->n; i++) {
        if (kernel && onnx_attr_find(c, "kernel_shape") && w->kernel[i] != kernel[i])
            onnx_refuse(c, "kernel_shape is not that of the weights");
        if (kernel) w->kernel[i] = kernel[i];
        w->in[i] = x.dim[i + 2], w->axis[i] = i + 2, w->before[i] = pads[i], w->after[i] = pads[i + w->n];
    }
    if (onnx_attr_is(c, "auto_pad", "NOTSET", "SAME_UPPER") || onnx_attr_is(c, "auto_pad", "NOTSET", "SAME_LOWER"))
        pad_same(c, w, onnx_attr_is(c, "auto_pad", "NOTSET", "SAME_UPPER"));
    else if (onnx_attr_is(c, "auto_pad", "NOTSET", "VALID"))
        memset(w->before, 0, sizeof w->before), memset(w->after, 0, sizeof w->after);
    else if (!onnx_attr_is(c, "auto_pad", "NOTSET", "NOTSET"))
        onnx_refuse(c, "attribute auto_pad");
    bool up = onnx_attr_int(c, "ceil_mode", 0);
    for (int i = 0; i < w->n; i++) {
        int64_t room = onnx_dim(c, '+', w->in[i], w->before[i] + w->after[i] - reach(w, i)), lo, hi;
        onnx_dim_range(c, room, &lo, &hi);
        if (onnx_is_dim(room)) {
            if (lo < 0 || up)
                onnx_refuse(c, up ? "attribute ceil_mode along a size that a run gives" : "an axis may be too short");
            w->out[i] = onnx_dim(c, '+', onnx_dim(c, '/', room, w->stride[i]), 1);
            continue;
        }
        if (room < 0) onnx_refuse(c, "windows of %lld in an axis of %lld", (long long)reach(w, i), (long long)w->in[i]);
        w->out[i] = (room + (up ? w->stride[i] - 1 : 0)) / w->stride[i] + 1;
        if (up && (w->out[i] - 1) * w->stride[i] >= w->in[i] + w->before[i]) w->out[i]--; /* none begins past the operand */
    }
}

tn_tensor onnx_windows_of(tn_tensor x, const onnx_windows *w, double value) {
    int64_t before[TN_MAX_RANK] = { 0 }, after[TN_MAX_RANK] = { 0 };
    bool any = false;
    for (int i = 0; i < w->n; i++) {
        int64_t end =
            onnx_is_dim(w->in[i]) ? w->after[i] : (w->out[i] - 1) * w->stride[i] + reach(w, i) - w->before[i] - w->in[i];
        before[i + 2] = w->before[i], after[i + 2] = end > 0 ? end : 0;
        any |= before[i + 2] || after[i + 2];
    }
    if (any) x = tn_pad(x, before, after, w->n + 2, value);
    return tn_window(x, w->axis, w->kernel, w->stride, w->dilation, w->n);
}

tn_tensor onnx_convolve(onnx_call *c, tn_tensor x, tn_tensor weights, const onnx_windows *w, int64_t groups, double pad) {
    tn_shape s = tn_tensor_shape(weights), xs = tn_tensor_shape(x), v, y = { .rank = w->n + 2 };
    int64_t from_x[TN_MAX_RANK], from_w[TN_MAX_RANK], perm[TN_MAX_RANK];
    int n = w->n;
    bool grouped = groups > 1, last = tn_tensor_dtype(weights) == TN_I32 && !w->by_taps; /* filters */
    if (s.rank < 0 || xs.rank < 0) return s.rank < 0 ? weights : x;
    int64_t channels = s.dim[last ? n + 1 : 1];
    if (groups < 1 || xs.dim[1] != channels * groups || s.dim[0] % groups)
        onnx_refuse(c, "%lld groups of %lld channels, weights for %lld", (long long)groups, (long long)xs.dim[1],
                    (long long)channels);
    tn_tensor view = onnx_windows_of(x, w, pad);
    v = tn_tensor_shape(view);
    if (v.rank < 0) return view;
    if (grouped) { /* [N,G,C/G,..P..,..K..] and [G,O/G,C/G,..K..] or [G,O/G,..K..,C/G]: one for each group */
        memmove(v.dim + 2, v.dim + 1, sizeof v.dim[0] * (size_t)(v.rank - 1));
        v.rank++, v.dim[1] = groups, v.dim[2] = channels;
        view = tn_reshape(view, v);
        memmove(s.dim + 1, s.dim, sizeof s.dim[0] * (size_t)s.rank);
        s.rank++, s.dim[0] = groups, s.dim[1] /= groups;
        weights = tn_reshape(weights, s);
    }
    for (int i = 0; i <= n; i++) { /* in the order in which the weights have them */
        int tap = last ? i : i - 1;
        from_w[i] = 1 + i + grouped, from_x[i] = i == (last ? n : 0) ? 1 + grouped : 2 + grouped + n + tap;
    }
    int64_t batch_x = 1, batch_w = 0;
    bool dense = true; /* positions next to each other lie next to each other in the operand: they can be the vectors */
    int64_t positions = 1, taps = 1;
    for (int i = 0; i < n; i++)
        dense &= w->stride[i] == 1 || last || w->by_taps || onnx_is_dim(w->out[i]), /* which a pass copies so */
            positions = onnx_is_dim(w->out[i]) || positions > FEW_POSITIONS ? FEW_POSITIONS : positions * w->out[i],
            taps *= w->kernel[i];
    if (last && groups == 1 && positions < FEW_POSITIONS && taps > 1) dense = false;
    tn_tensor out = dense ? tn_dot(weights, view, &batch_w, &batch_x, grouped, from_w, from_x, n + 1)
                          : tn_dot(view, weights, &batch_x, &batch_w, grouped, from_x, from_w, n + 1);
    int at = 0; /* dense: [G,] O/G, N, ..P..; else [G,] N, ..P.., O/G */
    perm[at++] = grouped + dense;
    if (grouped) perm[at++] = 0;
    perm[at++] = dense ? grouped : n + 1 + grouped;
    for (int i = 0; i < n; i++) perm[at++] = i + 1 + dense + grouped;
    y.dim[0] = xs.dim[0], y.dim[1] = groups * s.dim[grouped];
    for (int i = 0; i < n; i++) y.dim[i + 2] = w->out[i];
    return tn_reshape(tn_permute(out, perm, at), y);
}
