/* steps.c - quantised operands as whole numbers: what quantised ops and contractions of dequantised values share. */
#include "import.h"

/* Operand i, bytes [O,C,..K..], as [O,..K..,C]: neighbours along the channels are multiplied four at a time. A constant is put
 * in that order here, since no kernel copies constants once for all. */
static tn_tensor channels_last(onnx_call *c, int i) {
    const onnx_val *v = onnx_in(c, i);
    int64_t perm[TN_MAX_RANK], taps = 1;
    tn_shape s = onnx_shape(c, i), last = s;
    for (int k = 0; k < s.rank; k++) perm[k] = !k ? 0 : k == s.rank - 1 ? 1 : k + 1, last.dim[k] = s.dim[perm[k]];
    for (int k = 2; k < s.rank; k++) taps *= s.dim[k];
    int64_t n = onnx_count_of(s), channels = s.dim[1];
    if (!v->data || !n || tn_dtype_size(onnx_elem_dtype(v->elem)) != 1) return tn_permute(onnx_t(c, i), perm, s.rank);
    char *to = ONNX_NEW(c->im->env, char, n);
    const char *from = v->data;
    int64_t filter = channels * taps;
    for (int64_t o = 0; o < n; o += filter) /* a filter at a time: it stays in the nearest cache */
        for (int64_t tap = 0; tap < taps; tap++)
            for (int64_t k = 0; k < channels; k++) to[o + tap * channels + k] = from[o + k * taps + tap];
    return tn_const(c->g, onnx_elem_dtype(v->elem), last, to);
}

/* Whether all zero points are known to be 0. */
static bool is_zero(const onnx_val *v) {
    if (!v->data || tn_dtype_size(onnx_elem_dtype(v->elem)) != 1) return false;
    for (int64_t i = 0; i < onnx_count_of(v->shape); i++)
        if (((const char *)v->data)[i]) return false;
    return true;
}

/* Operand i less the zero point in operand `zero` (a number, or one for each index of `axis`), as i32. */
static tn_tensor less_zero_point(onnx_call *c, tn_tensor bytes, int i, int zero, int axis) {
    tn_tensor x = tn_cast(bytes, TN_I32);
    if (!onnx_has(c, zero)) return x;
    if (onnx_elem(c, zero) != onnx_elem(c, i)) onnx_refuse(c, "a zero point of another type");
    tn_shape z = onnx_shape(c, zero), s = { .rank = onnx_rank(c, i) };
    tn_tensor point = tn_cast(onnx_t(c, zero), TN_I32);
    bool none = is_zero(onnx_in(c, zero)); /* bytes, widened and nothing else, stay narrow */
    if (onnx_count_of(z) == 1 && none) return x;
    if (onnx_count_of(z) == 1) return tn_sub(x, tn_reshape(point, TN_SCALAR));
    if (z.rank != 1 || axis >= s.rank) onnx_refuse(c, "zero points of rank %d", z.rank);
    for (int k = 0; k < s.rank; k++) s.dim[k] = k == axis ? z.dim[0] : 1;
    if (none && z.dim[0] == onnx_shape(c, i).dim[axis]) return x;
    return tn_sub(x, tn_reshape(point, s));
}
tn_tensor onnx_less_zero_point(onnx_call *c, int i, int zero, int axis) {
    return less_zero_point(c, onnx_t(c, i), i, zero, axis);
}
tn_tensor onnx_filters(onnx_call *c, int i, int zero) { return less_zero_point(c, channels_last(c, i), i, zero, 0); }

bool onnx_known_zero(onnx_call *c, int i, int *out) {
    const onnx_val *v = onnx_has(c, i) ? onnx_in(c, i) : NULL;
    if (v && (!v->data || onnx_count_of(v->shape) != 1 || tn_dtype_size(onnx_elem_dtype(v->elem)) != 1)) return false;
    *out = !v ? 0 : v->elem == ELEM_U8 ? *(const uint8_t *)v->data : *(const int8_t *)v->data;
    return true;
}
const void *onnx_narrow_data(onnx_call *c, int i, int zero) {
    const onnx_val *v = onnx_in(c, i);
    return !onnx_has(c, zero) || is_zero(onnx_in(c, zero)) ? v->data : NULL;
}

/* z times the sum of what each index of `axis` has in the weights, as i32. */
static tn_tensor zero_times(onnx_call *c, int z, const onnx_steps *w, tn_shape s, int axis) {
    int64_t n = onnx_count_of(s), inner = 1, columns = s.dim[axis];
    int32_t *sums = ONNX_NEW(c->im->env, int32_t, columns + 1);
    for (int k = axis + 1; k < s.rank; k++) inner *= s.dim[k];
    memset(sums, 0, sizeof *sums * (size_t)columns);
    const uint8_t *plain = w->data;
    const int8_t *with_sign = w->data;
    for (int64_t at = 0; at < n;) /* no division for each byte */
        for (int64_t column = 0; column < columns; column++) {
            int32_t sum = 0;
            for (int64_t k = 0; k < inner; k++, at++) sum += w->elem == ELEM_U8 ? plain[at] : with_sign[at];
            sums[column] += z * sum;
        }
    return tn_const(c->g, TN_I32, (tn_shape){ .rank = 1, .dim = { columns } }, sums);
}

bool onnx_as_steps(onnx_call *c, int a, int b, int axis, int64_t terms, tn_tensor *out_a, tn_tensor *out_b,
                   tn_tensor *out_scale, onnx_zero *out_zero) {
    const onnx_steps *x = onnx_in(c, a)->steps, *w = onnx_in(c, b)->steps;
    bool filters = w && onnx_rank(c, b) > 2;
    *out_zero = (onnx_zero){ 0 };
    if (!x || !w || (filters && !w->filters.graph)) return false;
    if (c->folding || terms < 0 || x->axis >= 0 || (w->axis >= 0 && w->axis != axis) || terms > INT32_MAX / (255 * 255))
        return false;
    *out_a = x->whole, *out_b = filters ? w->filters : w->whole, *out_scale = tn_mul(x->scale, w->scale);
    if (x->zero && x->bytes.graph && w->data)
        *out_a = x->bytes, *out_zero = (onnx_zero){ x->zero, zero_times(c, x->zero, w, onnx_shape(c, b), axis) };
    return true;
}
