/* activation.c - activations and the softmax family. In: float tensors. Out: compositions of builders that stay finite wherever
 * the exact result is, in value and in gradient. */
#include "nn.h"

#include <math.h>

/* Selections, not tn_max and tn_min, which would share the gradient where x is lo or hi: it is 0 there. NaN stays NaN. */
static tn_tensor clip(tn_tensor x, double lo, double hi) {
    tn_tensor from = nn_scalar(x, lo), to = nn_scalar(x, hi), y = tn_select(tn_le(x, from), from, x);
    return tn_select(tn_le(to, y), to, y);
}

tn_tensor tn_nn_gelu(tn_tensor x) {
    return tn_mul(tn_mul_scalar(x, 0.5), tn_add_scalar(tn_erf(tn_mul_scalar(x, 0.7071067811865476)), 1));
}

/* tanh is +-1 long before x * x is 100, and its slope 0: beyond, the square must not overflow, or the gradient 0 * inf would be
 * NaN. Epilogues of contractions compute value and gradient for each element, so it is written in few operations: the gradient
 * of a selection is one more, that of tn_min, which shares between equal operands, four; and nothing multiplies the argument of
 * tanh by a constant of its own. */
tn_tensor tn_nn_gelu_tanh(tn_tensor x) {
    tn_tensor half = tn_mul_scalar(x, 0.5), square = tn_mul(x, x), most = nn_scalar(x, 100);
    tn_tensor bounded = tn_select(tn_lt(square, most), square, most);
    tn_tensor slope = tn_add_scalar(tn_mul_scalar(bounded, 0.7978845608028654 * 0.044715), 0.7978845608028654);
    return tn_add(tn_mul(half, tn_tanh(tn_mul(x, slope))), half);
}

tn_tensor tn_nn_silu(tn_tensor x) { return tn_mul(x, tn_sigmoid(x)); }

/* The exponential sees x where x <= 0 only: the branch that is not taken must not overflow, or its gradient 0 * inf would be
 * NaN. At 0 the derivative is that of the exponential: alpha. */
tn_tensor tn_nn_elu(tn_tensor x, double alpha) {
    tn_tensor zero = nn_scalar(x, 0), above = tn_lt(zero, x);
    return tn_select(above, x, tn_mul_scalar(tn_expm1(tn_select(above, zero, x)), alpha));
}

tn_tensor tn_nn_selu(tn_tensor x) { return tn_mul_scalar(tn_nn_elu(x, 1.6732632423543772), 1.0507009873554805); }
tn_tensor tn_nn_leaky_relu(tn_tensor x, double slope) {
    return tn_select(tn_lt(nn_scalar(x, 0), x), x, tn_mul_scalar(x, slope));
}
tn_tensor tn_nn_relu6(tn_tensor x) { return clip(x, 0, 6); }
tn_tensor tn_nn_softplus(tn_tensor x) { return tn_softplus(x); }
tn_tensor tn_nn_log_sigmoid(tn_tensor x) { return tn_neg(tn_nn_softplus(tn_neg(x))); }
tn_tensor tn_nn_softsign(tn_tensor x) { return tn_div(x, tn_add_scalar(tn_abs(x), 1)); }
tn_tensor tn_nn_mish(tn_tensor x) { return tn_mul(x, tn_tanh(tn_nn_softplus(x))); }
tn_tensor tn_nn_hard_tanh(tn_tensor x) { return clip(x, -1, 1); }
tn_tensor tn_nn_hard_sigmoid(tn_tensor x) { return clip(tn_add_scalar(tn_mul_scalar(x, 1.0 / 6), 0.5), 0, 1); }
tn_tensor tn_nn_hard_swish(tn_tensor x) { return tn_mul(x, tn_nn_hard_sigmoid(x)); }

/* x minus its maximum along axis. The result of the softmax family does not depend on what is subtracted, so no gradient needs
 * to flow through the maximum. */
static tn_tensor shifted(tn_tensor x, const char *fn, int axis, int64_t *out_axis) {
    tn_shape s;
    int a = 0;
    if (!nn_check(x, fn, 1, &s) || !nn_axis(x, fn, axis, &a)) return (tn_tensor){ x.graph, 0 };
    *out_axis = a;
    return tn_sub(x, tn_stop_gradient(tn_reduce_max(x, out_axis, 1, 1)));
}

tn_tensor tn_nn_softmax(tn_tensor x, int axis) {
    int64_t a = 0;
    tn_tensor e = tn_exp(shifted(x, "tn_nn_softmax", axis, &a));
    tn_tensor sum = nn_row_sum(e, a, 1);
    return tn_mul(e, tn_cast(tn_div(nn_scalar(sum, 1), sum), tn_tensor_dtype(x))); /* one division a row, not one an element */
}

tn_tensor tn_nn_log_softmax(tn_tensor x, int axis) {
    int64_t a = 0;
    tn_tensor d = shifted(x, "tn_nn_log_softmax", axis, &a);
    return tn_sub(d, tn_cast(tn_log(nn_row_sum(tn_exp(d), a, 1)), tn_tensor_dtype(x)));
}

static double largest(tn_dtype t) {
    return t == TN_F64 ? 0x1.fffffffffffffp1023 : t == TN_F32 ? 0x1.fffffep127 : t == TN_F16 ? 65504 : 0x1.fep127;
}

tn_tensor tn_nn_logsumexp(tn_tensor x, int axis, int keep) {
    tn_shape s;
    int at = 0;
    if (!nn_check(x, "tn_nn_logsumexp", 1, &s) || !nn_axis(x, "tn_nn_logsumexp", axis, &at)) return (tn_tensor){ x.graph, 0 };
    int64_t a = at;
    /* An infinite maximum must not be subtracted from itself, which would be NaN. With the largest number in its place exp
     * gives infinity for it, and 0 for what is finite, as it should; below all -inf it gives 0. */
    tn_tensor m = tn_stop_gradient(tn_reduce_max(x, &a, 1, 1)), most = nn_scalar(x, largest(tn_tensor_dtype(x)));
    m = tn_max(tn_min(m, most), tn_neg(most));
    tn_tensor y = tn_add(tn_cast(tn_log(nn_row_sum(tn_exp(tn_sub(x, m)), a, 1)), tn_tensor_dtype(x)), m);
    if (keep) return y;
    for (int i = at; i + 1 < s.rank; i++) s.dim[i] = s.dim[i + 1];
    s.rank--;
    return tn_reshape(y, s);
}
