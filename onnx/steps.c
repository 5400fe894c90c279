/* steps.c - quantised operands as whole numbers: what quantised ops and contractions of dequantised values share. */
#include "import.h"

/* Operand i less the zero point in operand `zero` (a number, or one for each index of `axis`), as i32. */
tn_tensor onnx_less_zero_point(onnx_call *c, int i, int zero, int axis) {
    tn_tensor x = tn_cast(onnx_t(c, i), TN_I32);
    if (!onnx_has(c, zero)) return x;
    tn_shape z = onnx_shape(c, zero), s = { .rank = onnx_rank(c, i) };
    tn_tensor point = tn_cast(onnx_t(c, zero), TN_I32);
    if (onnx_elem(c, zero) != onnx_elem(c, i)) onnx_refuse(c, "a zero point of another type");
    if (onnx_count_of(z) == 1) return tn_sub(x, tn_reshape(point, TN_SCALAR));
    if (z.rank != 1 || axis >= s.rank) onnx_refuse(c, "zero points of rank %d", z.rank);
    for (int k = 0; k < s.rank; k++) s.dim[k] = k == axis ? z.dim[0] : 1;
    return tn_sub(x, tn_reshape(point, s));
}

bool onnx_as_steps(onnx_call *c, int a, int b, int axis, int64_t terms, tn_tensor *out_a, tn_tensor *out_b,
                   tn_tensor *out_scale) {
    const onnx_steps *x = onnx_in(c, a)->steps, *w = onnx_in(c, b)->steps;
    if (!x || !w || c->folding || x->axis >= 0 || (w->axis >= 0 && w->axis != axis) || terms > INT32_MAX / (255 * 255))
        return false;
    *out_a = x->whole, *out_b = w->whole, *out_scale = tn_mul(x->scale, w->scale);
    return true;
}
