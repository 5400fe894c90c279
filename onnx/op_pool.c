/* op_pool.c - pools, channels first: reductions over a view of windows. */
#include "windows.h"

#include <math.h>

static void put_back(onnx_call *c, tn_tensor y) { onnx_put(c, 0, tn_cast(y, onnx_elem_dtype(onnx_elem(c, 0))), ELEM_NONE); }
static void offsets(const onnx_windows *w, int64_t *axes) {
    for (int i = 0; i < w->n; i++) axes[i] = 2 + w->n + i;
}

/* Where the first largest element of each window lies in the flattened operand. best: its number in the window. */
static tn_tensor places(onnx_call *c, const onnx_windows *w, tn_tensor best, bool column_major) {
    tn_shape s = tn_tensor_shape(best), x = onnx_shape(c, 0);
    int64_t inside = 1, image = 1;
    tn_tensor at = tn_full(c->g, TN_I64, s, 0);
    for (int i = 0; i < w->n; i++) image *= w->in[i];
    int64_t stride = column_major ? 1 : image;
    for (int k = 0; k < w->n; k++) inside *= w->kernel[k];
    for (int i = 0; i < w->n; i++) {
        inside /= w->kernel[i];
        if (!column_major) stride /= w->in[i];
        tn_tensor offset = tn_mod(tn_div(best, onnx_scalar(best, (double)inside)), onnx_scalar(best, (double)w->kernel[i]));
        tn_tensor begin =
            tn_add_scalar(tn_mul_scalar(tn_iota(c->g, TN_I64, s, i + 2), (double)w->stride[i]), (double)-w->before[i]);
        tn_tensor k = tn_add(begin, tn_mul_scalar(offset, (double)w->dilation[i]));
        at = tn_add(at, tn_mul_scalar(k, (double)stride));
        if (column_major) stride *= w->in[i];
    }
    at = tn_add(at, tn_mul_scalar(tn_iota(c->g, TN_I64, s, 1), (double)image));
    return tn_add(at, tn_mul_scalar(tn_iota(c->g, TN_I64, s, 0), (double)(image * x.dim[1])));
}

void onnx_op_max_pool(onnx_call *c) {
    onnx_windows w;
    int64_t axes[TN_MAX_RANK], taps = 1;
    int elem = onnx_elem(c, 0);
    onnx_windows_read(c, onnx_shape(c, 0), NULL, &w);
    bool column_major = onnx_attr_int(c, "storage_order", 0);
    offsets(&w, axes);
    tn_tensor x = onnx_t(c, 0), view = onnx_windows_of(x, &w, elem == ELEM_U8 ? 0 : elem == ELEM_I8 ? -128 : -INFINITY);
    onnx_put(c, 0, tn_reduce_max(view, axes, w.n, 0), ELEM_NONE);
    if (!onnx_wants(c, 1)) return;
    if (onnx_is_open(onnx_shape(c, 0))) onnx_refuse(c, "indices in an image of a size that a run gives");
    if (!onnx_is_float(elem)) onnx_refuse(c, "indices of whole numbers");
    tn_shape flat = tn_tensor_shape(view);
    for (int i = 0; i < w.n; i++) taps *= w.kernel[i];
    flat.rank = w.n + 3, flat.dim[w.n + 2] = taps;
    onnx_put(c, 1, places(c, &w, tn_argmax(tn_reshape(view, flat), w.n + 2, 0), column_major), ELEM_I64);
}

/* How many elements each window along an axis has: those of the operand, or (padding counts) up to the end of the padding. */
static tn_tensor counts(onnx_call *c, const onnx_windows *w, int i, bool padding) {
    bool whole = padding || (!w->before[i] && !w->after[i]); /* all windows have as many */
    float taps = (float)w->kernel[i];
    if (onnx_is_dim(w->in[i]) && !whole) onnx_refuse(c, "padding along a size that a run gives");
    if (onnx_is_dim(w->in[i])) return tn_const(c->g, TN_F32, TN_SCALAR, &taps);
    float *n = ONNX_NEW(c->im->env, float, w->out[i]);
    int64_t lo = padding ? -w->before[i] : 0, hi = w->in[i] + (padding ? w->after[i] : 0), dims[TN_MAX_RANK];
    for (int64_t p = 0; p < w->out[i]; p++)
        for (int64_t k = 0; k < w->kernel[i]; k++) {
            int64_t at = p * w->stride[i] - w->before[i] + k * w->dilation[i];
            n[p] += at >= lo && at < hi;
        }
    for (int k = 0; k < w->n + 2; k++) dims[k] = k == i + 2 ? w->out[i] : 1;
    return tn_const(c->g, TN_F32, onnx_dims(dims, w->n + 2), n);
}
void onnx_op_average_pool(onnx_call *c) {
    onnx_windows w;
    int64_t axes[TN_MAX_RANK];
    onnx_windows_read(c, onnx_shape(c, 0), NULL, &w);
    offsets(&w, axes);
    tn_tensor x = onnx_accurate(onnx_t(c, 0)), y = tn_sum(onnx_windows_of(x, &w, 0), axes, w.n, 0);
    bool padding = onnx_attr_int(c, "count_include_pad", 0);
    tn_tensor n = counts(c, &w, 0, padding);
    for (int i = 1; i < w.n; i++) n = tn_mul(n, counts(c, &w, i, padding));
    put_back(c, tn_div(y, tn_cast(n, tn_tensor_dtype(y))));
}

static tn_tensor power_sum(tn_tensor x, const int64_t *axes, int n, int keep, double p) {
    tn_tensor a = tn_abs(x), s = tn_sum(p == 1 ? a : p == 2 ? tn_mul(a, a) : tn_pow(a, onnx_scalar(a, p)), axes, n, keep);
    return p == 1 ? s : p == 2 ? tn_sqrt(s) : tn_pow(s, onnx_scalar(s, 1 / p));
}
void onnx_op_lp_pool(onnx_call *c) {
    onnx_windows w;
    int64_t axes[TN_MAX_RANK];
    double p = c->opset < 2 ? onnx_attr_float(c, "p", 2) : (double)onnx_attr_int(c, "p", 2);
    onnx_windows_read(c, onnx_shape(c, 0), NULL, &w);
    offsets(&w, axes);
    put_back(c, power_sum(onnx_windows_of(onnx_accurate(onnx_t(c, 0)), &w, 0), axes, w.n, 0, p));
}

/* ---- over the whole image ---- */

static int image_axes(onnx_call *c, int64_t *axes) {
    int rank = onnx_rank(c, 0);
    if (rank < 3) onnx_refuse(c, "an operand of rank %d", rank);
    for (int i = 2; i < rank; i++) axes[i - 2] = i;
    return rank - 2;
}
void onnx_op_global_average_pool(onnx_call *c) {
    int64_t axes[TN_MAX_RANK];
    int n = image_axes(c, axes);
    put_back(c, tn_mean(onnx_accurate(onnx_t(c, 0)), axes, n, 1));
}
void onnx_op_global_max_pool(onnx_call *c) {
    int64_t axes[TN_MAX_RANK];
    int n = image_axes(c, axes);
    onnx_put(c, 0, tn_reduce_max(onnx_t(c, 0), axes, n, 1), ELEM_NONE);
}
void onnx_op_global_lp_pool(onnx_call *c) {
    int64_t axes[TN_MAX_RANK];
    int n = image_axes(c, axes);
    double p = c->opset < 2 ? onnx_attr_float(c, "p", 2) : (double)onnx_attr_int(c, "p", 2);
    put_back(c, power_sum(onnx_accurate(onnx_t(c, 0)), axes, n, 1, p));
}
