/* op_quant.c - quantised ops: whole numbers less their zero points, contracted in i32, scaled, rounded and clamped. */
#include "windows.h"

/* Operand i (a number, or one for each index of axis) so that it broadcasts beside a tensor of that rank. */
static tn_tensor beside(onnx_call *c, int i, int rank, int axis) {
    tn_shape s = onnx_shape(c, i), wide = { .rank = rank };
    if (onnx_count_of(s) == 1) return tn_reshape(onnx_t(c, i), TN_SCALAR);
    if (s.rank != 1 || axis < 0 || axis >= rank) onnx_refuse(c, "scales or zero points of rank %d", s.rank);
    for (int k = 0; k < rank; k++) wide.dim[k] = k == axis ? s.dim[0] : 1;
    return tn_reshape(onnx_t(c, i), wide);
}

static void range_of(onnx_call *c, int elem, double *lo, double *hi) {
    switch (elem) {
    case ELEM_U8:
        *lo = 0, *hi = 255;
        break;
    case ELEM_I8:
        *lo = -128, *hi = 127;
        break;
    case ELEM_U16:
        *lo = 0, *hi = 65535;
        break;
    case ELEM_I16:
        *lo = -32768, *hi = 32767;
        break;
    case ELEM_U4:
    case ELEM_I4:
    case ELEM_U2:
    case ELEM_I2: {
        double half = elem == ELEM_U4 || elem == ELEM_I4 ? 8 : 2;
        bool is_signed = elem == ELEM_I4 || elem == ELEM_I2;
        *lo = is_signed ? -half : 0, *hi = is_signed ? half - 1 : 2 * half - 1;
        break;
    }
    default:
        onnx_refuse(c, "quantised to %s", onnx_elem_name(elem));
    }
}
/* y f32, already divided by the scale: rounded, moved by the zero point (f32), clamped. */
static tn_tensor quantise(onnx_call *c, tn_tensor y, tn_tensor zero, int elem) {
    double lo, hi;
    range_of(c, elem, &lo, &hi);
    y = tn_round(y);
    if (zero.graph) y = tn_add(y, zero);
    return tn_cast(tn_min(tn_max(y, onnx_scalar(y, lo)), onnx_scalar(y, hi)), onnx_elem_dtype(elem));
}
static tn_tensor zero_at(onnx_call *c, int i, int rank, int axis) {
    return onnx_has(c, i) ? tn_cast(beside(c, i, rank, axis), TN_F32) : (tn_tensor){ .graph = NULL };
}

static int axis_of(onnx_call *c, int scale) {
    int64_t axis = onnx_attr_int(c, "axis", 1);
    return onnx_count_of(onnx_shape(c, scale)) == 1 ? 0 : onnx_axis(c, axis, onnx_rank(c, 0));
}
/* Operand i as f32 beside the first; with blocks, each of its elements stands for so many along axis. */
static tn_tensor spread(onnx_call *c, int i, int axis) {
    tn_shape x = onnx_shape(c, 0), s = onnx_shape(c, i);
    int64_t block = onnx_attr_int(c, "block_size", 0), start[TN_MAX_RANK] = { 0 };
    if (!block || onnx_count_of(s) == 1) return tn_cast(beside(c, i, x.rank, axis), TN_F32);
    for (int k = 0; k < x.rank; k++)
        if (s.rank != x.rank || block < 1 || s.dim[k] != (k == axis ? (x.dim[k] + block - 1) / block : x.dim[k]))
            onnx_refuse(c, "its blocks");
    return tn_slice(tn_nn_repeat(tn_cast(onnx_t(c, i), TN_F32), block, axis), start, x.dim, NULL, x.rank);
}
void onnx_op_quantize_linear(onnx_call *c) {
    int axis = axis_of(c, 1);
    int64_t to = onnx_attr_int(c, "output_dtype", 0);
    int elem = onnx_has(c, 2) ? onnx_elem(c, 2) : to ? (int)to : ELEM_U8;
    (void)onnx_attr_int(c, "saturate", 1);
    if (onnx_elem(c, 0) != ELEM_F32 && onnx_elem(c, 0) != ELEM_I32 && onnx_elem(c, 0) != ELEM_F16)
        onnx_refuse(c, "%s", onnx_elem_name(onnx_elem(c, 0)));
    (void)onnx_attr_int(c, "precision", 0); /* f32 at the least */
    tn_tensor y = tn_div(tn_cast(onnx_t(c, 0), TN_F32), spread(c, 1, axis));
    tn_tensor zero = onnx_has(c, 2) ? spread(c, 2, axis) : (tn_tensor){ .graph = NULL };
    if (onnx_minifloat_of(elem)) {
        y = onnx_round_to(zero.graph ? tn_add(y, zero) : y, elem, onnx_attr_int(c, "saturate", 1));
        onnx_put(c, 0, y, elem);
        return;
    }
    onnx_put(c, 0, quantise(c, y, zero, elem), elem);
}
void onnx_op_dequantize_linear(onnx_call *c) {
    int axis = axis_of(c, 1), to = onnx_elem(c, 1), given = (int)onnx_attr_int(c, "output_dtype", 0);
    if (given && given != ELEM_F32 && given != ELEM_F16 && given != ELEM_BF16) onnx_refuse(c, "attribute output_dtype");
    if (onnx_has(c, 2) && onnx_elem(c, 2) != onnx_elem(c, 0)) onnx_refuse(c, "a zero point of another type");
    if (onnx_minifloat_of(to) && !given) onnx_refuse(c, "scales of %s", onnx_elem_name(to));
    bool blocks = onnx_attr_int(c, "block_size", 0) && onnx_count_of(onnx_shape(c, 1)) > 1;
    tn_tensor x;
    if (onnx_elem(c, 0) == ELEM_STRING || onnx_elem(c, 0) == ELEM_U64 || onnx_elem(c, 0) == ELEM_U32)
        onnx_refuse(c, "its type");
    if (onnx_minifloat_of(onnx_elem(c, 0)) || blocks) {
        x = tn_cast(onnx_t(c, 0), TN_F32);
        if (onnx_has(c, 2)) x = tn_sub(x, spread(c, 2, axis));
    } else {
        x = tn_cast(onnx_less_zero_point(c, 0, 2, axis), TN_F32);
    }
    if (given) to = given;
    onnx_put(c, 0, tn_cast(tn_mul(x, spread(c, 1, axis)), onnx_elem_dtype(to)), to);
    bool bytes = onnx_elem(c, 0) == ELEM_U8 || onnx_elem(c, 0) == ELEM_I8, single = onnx_count_of(onnx_shape(c, 1)) == 1;
    if (!bytes || blocks || to != ELEM_F32 || onnx_elem(c, 1) != ELEM_F32 || c->folding) return;
    onnx_steps *steps = ONNX_NEW(c->im->env, onnx_steps, 1);
    *steps = (onnx_steps){ .whole = onnx_less_zero_point(c, 0, 2, axis),
                           .scale = single ? tn_reshape(onnx_t(c, 1), TN_SCALAR) : onnx_t(c, 1),
                           .axis = single ? -1 : axis,
                           .data = onnx_narrow_data(c, 0, 2),
                           .elem = onnx_elem(c, 0) };
    if (onnx_known_zero(c, 2, &steps->zero)) steps->bytes = tn_cast(onnx_t(c, 0), TN_I32);
    if (onnx_rank(c, 0) > 2 && onnx_in(c, 0)->data && (single || axis == 0)) steps->filters = onnx_filters(c, 0, 2);
    c->out[0]->steps = steps;
}

tn_tensor onnx_dynamic_quantise(onnx_call *c, tn_tensor x, tn_tensor *out_scale, tn_tensor *out_zero) {
    tn_tensor zero = onnx_scalar(x, 0), full = onnx_scalar(x, 255);
    if (onnx_elem(c, 0) != ELEM_F32) onnx_refuse(c, "%s", onnx_elem_name(onnx_elem(c, 0)));
    tn_tensor lo = tn_min(tn_reduce_min(x, TN_ALL_AXES, 0), zero), hi = tn_max(tn_reduce_max(x, TN_ALL_AXES, 0), zero);
    tn_tensor scale = tn_div(tn_sub(hi, lo), full), point = tn_round(tn_max(tn_min(tn_div(tn_neg(lo), scale), full), zero));
    *out_scale = scale, *out_zero = point;
    return tn_min(tn_max(tn_add(tn_round(tn_div(x, scale)), point), zero), full);
}
void onnx_op_dynamic_quantize_linear(onnx_call *c) {
    tn_tensor scale, point, y = onnx_dynamic_quantise(c, onnx_t(c, 0), &scale, &point);
    onnx_put(c, 0, tn_cast(y, TN_U8), ELEM_U8);
    onnx_put(c, 1, scale, ELEM_F32);
    onnx_put(c, 2, tn_cast(point, TN_U8), ELEM_U8);
}

static void requantise(onnx_call *c, tn_tensor sums, tn_tensor scale_a, tn_tensor scale_b, int out_scale) {
    tn_tensor scale =
        tn_div(tn_mul(tn_cast(scale_a, TN_F32), tn_cast(scale_b, TN_F32)), tn_cast(beside(c, out_scale, 0, 0), TN_F32));
    int elem = onnx_elem(c, out_scale + 1);
    onnx_put(c, 0, quantise(c, tn_mul(tn_cast(sums, TN_F32), scale), zero_at(c, out_scale + 1, 0, 0), elem), elem);
}
void onnx_op_qlinear_matmul(onnx_call *c) {
    int ra = onnx_rank(c, 0), rb = onnx_rank(c, 3), r = ra > rb ? ra : rb;
    if (ra < 2 || rb < 2) onnx_refuse(c, "operands of rank %d and %d", ra, rb);
    tn_tensor y = tn_matmul(onnx_less_zero_point(c, 0, 2, ra - 2), onnx_less_zero_point(c, 3, 5, rb - 1));
    requantise(c, y, beside(c, 1, r, r - 2), beside(c, 4, r, r - 1), 6);
}
void onnx_op_qlinear_conv(onnx_call *c) {
    onnx_windows w;
    int rank = onnx_rank(c, 0);
    if (rank != onnx_rank(c, 3)) onnx_refuse(c, "weights of rank %d for rank %d", onnx_rank(c, 3), rank);
    onnx_windows_read(c, onnx_shape(c, 0), onnx_shape(c, 3).dim + 2, &w);
    tn_tensor x = onnx_less_zero_point(c, 0, 2, 1), weights = onnx_filters(c, 3, 5);
    tn_tensor y = onnx_convolve(c, x, weights, &w, onnx_attr_int(c, "group", 1), 0);
    if (onnx_has(c, 8)) y = tn_add(y, beside(c, 8, rank, 1));
    requantise(c, y, beside(c, 1, rank, 1), beside(c, 4, rank, 1), 6);
}
