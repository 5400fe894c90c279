/* op_map.c - elementwise ops. */
#include "import.h"

#include <math.h>

void onnx_op_unary(onnx_call *c) {
    (void)onnx_attr_find(c, "consumed_inputs"); /* of the first operator set: a hint */
    onnx_put(c, 0, onnx_wrap(c->row->build.unary(onnx_t(c, 0)), onnx_elem(c, 0)), ELEM_NONE);
}

/* Before operator set 7 the second operand broadcasts only when asked to, from an axis of the first on. */
static tn_tensor old_broadcast(onnx_call *c, tn_tensor a, tn_tensor b) {
    tn_shape sa = tn_tensor_shape(a), sb = tn_tensor_shape(b), s = { .rank = sa.rank };
    int64_t broadcast = onnx_attr_int(c, "broadcast", 0), axis = onnx_attr_int(c, "axis", sa.rank - sb.rank);
    if (c->opset >= 7 || !broadcast) return b;
    if (axis < 0) axis += sa.rank;
    if (axis < 0 || axis + sb.rank > sa.rank) onnx_refuse(c, "axis %lld for rank %d in %d", (long long)axis, sb.rank, sa.rank);
    for (int i = 0; i < sa.rank; i++) s.dim[i] = i >= axis && i < axis + sb.rank ? sb.dim[i - axis] : 1;
    return tn_reshape(b, s);
}

static void check_equal_types(onnx_call *c) {
    for (int i = 1; i < c->n_in; i++)
        if (onnx_has(c, i) && onnx_elem(c, i) != onnx_elem(c, 0))
            onnx_refuse(c, "operands of %s and %s", onnx_elem_name(onnx_elem(c, 0)), onnx_elem_name(onnx_elem(c, i)));
}

void onnx_op_binary(onnx_call *c) {
    check_equal_types(c);
    if (c->opset < 7) (void)onnx_attr_find(c, "consumed_inputs");
    tn_tensor a = onnx_t(c, 0), b = old_broadcast(c, a, onnx_t(c, 1)), y;
    y = c->row->build.binary(a, b);
    bool same = tn_tensor_dtype(y) == tn_tensor_dtype(a);
    onnx_put(c, 0, same ? onnx_wrap(y, onnx_elem(c, 0)) : y, ELEM_NONE);
}

/* ---- types ---- */

static void cast_to(onnx_call *c, int to) {
    tn_dtype t = onnx_elem_dtype(to);
    int from = onnx_elem(c, 0);
    if (from == ELEM_STRING || to == ELEM_STRING) {
        onnx_cast_text(c, to);
        return;
    }
    if (onnx_minifloat_of(to)) {
        bool saturate = onnx_attr_int(c, "saturate", 1);
        if (!onnx_attr_is(c, "round_mode", "up", "up")) onnx_refuse(c, "attribute round_mode");
        onnx_put(c, 0, onnx_round_to(tn_cast(onnx_t(c, 0), TN_F32), to, saturate), to);
        return;
    }
    if (onnx_elem_wraps(to) && onnx_elem_bytes(to, 8) < 8) {
        onnx_put(c, 0, onnx_wrap(tn_cast(onnx_wrap(tn_cast(onnx_t(c, 0), TN_I32), to), t), to), to);
        return;
    }
    if (t == TN_N_DTYPES) onnx_refuse(c, "a cast to %s", onnx_elem_name(to));
    onnx_put(c, 0, onnx_wrap(tn_cast(onnx_t(c, 0), t), to), to);
}
void onnx_op_cast(onnx_call *c) {
    (void)onnx_attr_find(c, "saturate");   /* of types of 8 bits */
    (void)onnx_attr_find(c, "round_mode"); /* the same */
    if (c->opset < 6) onnx_refuse(c, "operator set %d", c->opset);
    int64_t to = onnx_attr_need_int(c, "to");
    if (to <= 0 || to >= ELEM_N) onnx_refuse(c, "a cast to type %lld", (long long)to);
    cast_to(c, (int)to);
}
void onnx_op_cast_like(onnx_call *c) {
    (void)onnx_attr_find(c, "saturate");
    cast_to(c, onnx_elem(c, 1));
}
/* The same bits as another type: of what is known. */
void onnx_op_bit_cast(onnx_call *c) {
    int64_t to = onnx_attr_need_int(c, "to");
    int from = onnx_elem(c, 0);
    bool same = to > 0 && to < ELEM_N && onnx_elem_bytes(from, 8) == onnx_elem_bytes((int)to, 8) && to != ELEM_STRING;
    if (!same || from == ELEM_STRING) onnx_refuse(c, "%s as type %lld", onnx_elem_name(from), (long long)to);
    if (onnx_elem_widened(from) || onnx_elem_widened((int)to) || onnx_elem_dtype((int)to) == TN_N_DTYPES)
        onnx_refuse(c, "%s as %s", onnx_elem_name(from), onnx_elem_name((int)to));
    const uint8_t *data = onnx_known(c, 0, "operand");
    for (int64_t i = 0; to == ELEM_BOOL && i < c->in[0]->n; i++)
        if (data[i] > 1) onnx_refuse(c, "%d as bool", data[i]);
    onnx_put_known(c, 0, (int)to, onnx_shape(c, 0), data);
}
void onnx_op_identity(onnx_call *c) { onnx_put_val(c, 0, onnx_in(c, 0)); }

/* ---- activations ---- */

static tn_tensor zero(tn_tensor x) { return onnx_scalar(x, 0); }
static tn_tensor clamp(tn_tensor x, double lo, double hi) { return tn_min(tn_max(x, onnx_scalar(x, lo)), onnx_scalar(x, hi)); }

void onnx_op_celu(onnx_call *c) {
    tn_tensor x = onnx_t(c, 0);
    double alpha = onnx_attr_float(c, "alpha", 1);
    tn_tensor below = tn_mul_scalar(tn_expm1(tn_mul_scalar(x, 1 / alpha)), alpha);
    onnx_put(c, 0, tn_add(tn_max(x, zero(x)), tn_min(below, zero(x))), ELEM_NONE);
}
void onnx_op_elu(onnx_call *c) { onnx_put(c, 0, tn_nn_elu(onnx_t(c, 0), onnx_attr_float(c, "alpha", 1)), ELEM_NONE); }
void onnx_op_gelu(onnx_call *c) {
    bool tanh_form = onnx_attr_is(c, "approximate", "none", "tanh");
    if (!tanh_form && !onnx_attr_is(c, "approximate", "none", "none")) onnx_refuse(c, "attribute approximate");
    onnx_put(c, 0, tanh_form ? tn_nn_gelu_tanh(onnx_t(c, 0)) : tn_nn_gelu(onnx_t(c, 0)), ELEM_NONE);
}
void onnx_op_hard_sigmoid(onnx_call *c) {
    tn_tensor x = onnx_t(c, 0);
    x = tn_add_scalar(tn_mul_scalar(x, onnx_attr_float(c, "alpha", 0.2)), onnx_attr_float(c, "beta", 0.5));
    onnx_put(c, 0, clamp(x, 0, 1), ELEM_NONE);
}
void onnx_op_leaky_relu(onnx_call *c) {
    onnx_put(c, 0, tn_nn_leaky_relu(onnx_t(c, 0), onnx_attr_float(c, "alpha", (double)0.01f)), ELEM_NONE);
}
void onnx_op_prelu(onnx_call *c) {
    tn_tensor x = onnx_t(c, 0), slope = onnx_t(c, 1);
    tn_shape s = tn_tensor_shape(x), w = tn_tensor_shape(slope), channels = { .rank = s.rank };
    if (c->opset < 7 && w.rank == 1 && s.rank > 1) { /* one a channel */
        for (int i = 0; i < s.rank; i++) channels.dim[i] = i == 1 ? w.dim[0] : 1;
        slope = tn_reshape(slope, channels);
    }
    onnx_put(c, 0, tn_select(tn_lt(x, zero(x)), tn_mul(x, slope), x), ELEM_NONE);
}
void onnx_op_selu(onnx_call *c) {
    tn_tensor x = onnx_t(c, 0);
    double alpha = onnx_attr_float(c, "alpha", 1.67326319217681884765625),
           gamma = onnx_attr_float(c, "gamma", 1.05070102214813232421875);
    tn_tensor below = tn_mul_scalar(tn_expm1(tn_min(x, zero(x))), alpha);
    onnx_put(c, 0, tn_mul_scalar(tn_select(tn_lt(zero(x), x), x, below), gamma), ELEM_NONE);
}
void onnx_op_shrink(onnx_call *c) {
    tn_tensor x = onnx_t(c, 0);
    double lambda = onnx_attr_float(c, "lambd", 0.5), bias = onnx_attr_float(c, "bias", 0);
    tn_tensor high = tn_select(tn_gt(x, onnx_scalar(x, lambda)), tn_add_scalar(x, -bias), zero(x));
    onnx_put(c, 0, tn_select(tn_lt(x, onnx_scalar(x, -lambda)), tn_add_scalar(x, bias), high), ELEM_NONE);
}
void onnx_op_swish(onnx_call *c) {
    tn_tensor x = onnx_t(c, 0);
    onnx_put(c, 0, tn_mul(x, tn_sigmoid(tn_mul_scalar(x, onnx_attr_float(c, "alpha", 1)))), ELEM_NONE);
}
void onnx_op_swi_glu(onnx_call *c) {
    tn_tensor a = onnx_accurate(onnx_t(c, 0)), b = onnx_accurate(onnx_t(c, 1));
    check_equal_types(c);
    tn_tensor y = tn_mul(tn_mul(a, tn_sigmoid(tn_mul_scalar(a, onnx_attr_float(c, "alpha", 1)))), b);
    onnx_put(c, 0, tn_cast(y, onnx_elem_dtype(onnx_elem(c, 0))), ELEM_NONE);
}
void onnx_op_thresholded_relu(onnx_call *c) {
    tn_tensor x = onnx_t(c, 0);
    onnx_put(c, 0, tn_select(tn_gt(x, onnx_scalar(x, onnx_attr_float(c, "alpha", 1))), x, zero(x)), ELEM_NONE);
}

/* ---- arithmetic ---- */

void onnx_op_clip(onnx_call *c) {
    tn_tensor x = onnx_t(c, 0);
    check_equal_types(c);
    (void)onnx_attr_find(c, "consumed_inputs");
    if (c->opset < 11) {
        if (onnx_attr_find(c, "min")) x = tn_max(x, onnx_scalar(x, onnx_attr_float(c, "min", 0)));
        if (onnx_attr_find(c, "max")) x = tn_min(x, onnx_scalar(x, onnx_attr_float(c, "max", 0)));
    }
    if (onnx_has(c, 1)) x = tn_max(x, tn_reshape(onnx_t(c, 1), TN_SCALAR));
    if (onnx_has(c, 2)) x = tn_min(x, tn_reshape(onnx_t(c, 2), TN_SCALAR));
    onnx_put(c, 0, x, ELEM_NONE);
}

/* In evaluation it does nothing; random numbers in training are not those of any other program, so they are refused. */
void onnx_op_dropout(onnx_call *c) {
    double ratio = onnx_attr_float(c, "ratio", 0.5);
    (void)onnx_attr_int(c, "seed", 0);
    (void)onnx_attr_find(c, "consumed_inputs");
    bool training = c->opset < 7 ? !onnx_attr_int(c, "is_test", 0) : onnx_has(c, 2) && onnx_known_int(c, 2, "training mode");
    int n;
    if (training && onnx_has(c, 1)) ratio = onnx_known_floats(c, 1, "ratio", &n)[0];
    if (training && ratio != 0) onnx_refuse(c, "random elements in training");
    onnx_put_val(c, 0, onnx_in(c, 0));
    if (!onnx_wants(c, 1)) return;
    bool is_bool = c->opset >= 10;
    tn_tensor ones = tn_full(c->g, is_bool ? TN_BOOL : onnx_elem_dtype(onnx_elem(c, 0)), onnx_shape(c, 0), 1);
    onnx_put(c, 1, ones, is_bool ? ELEM_BOOL : ELEM_NONE);
}

void onnx_op_is_inf(onnx_call *c) {
    tn_tensor x = onnx_t(c, 0), no = tn_full(c->g, TN_BOOL, onnx_shape(c, 0), 0);
    bool up = onnx_attr_int(c, "detect_positive", 1), down = onnx_attr_int(c, "detect_negative", 1);
    tn_tensor yes = up ? tn_eq(x, onnx_scalar(x, INFINITY)) : no;
    onnx_put(c, 0, down ? tn_or(yes, tn_eq(x, onnx_scalar(x, -INFINITY))) : yes, ELEM_BOOL);
}
void onnx_op_is_nan(onnx_call *c) { onnx_put(c, 0, tn_is_nan(onnx_t(c, 0)), ELEM_BOOL); }

static void variadic(onnx_call *c, tn_tensor (*f)(tn_tensor, tn_tensor), bool mean) {
    check_equal_types(c);
    (void)onnx_attr_find(c, "consumed_inputs");
    tn_tensor y = onnx_t(c, 0);
    for (int i = 1; i < c->n_in; i++) y = f(y, onnx_t(c, i));
    onnx_put(c, 0, mean ? tn_div(y, onnx_scalar(y, c->n_in)) : y, ELEM_NONE);
}
void onnx_op_max(onnx_call *c) { variadic(c, (tn_max), false); }
void onnx_op_min(onnx_call *c) { variadic(c, (tn_min), false); }
void onnx_op_sum(onnx_call *c) { variadic(c, (tn_add), false); }
void onnx_op_mean(onnx_call *c) { variadic(c, (tn_add), true); }

void onnx_op_mod(onnx_call *c) {
    check_equal_types(c);
    tn_tensor a = onnx_t(c, 0), b = onnx_t(c, 1);
    onnx_put(c, 0, onnx_attr_int(c, "fmod", 0) ? tn_fmod(a, b) : tn_mod(a, b), ELEM_NONE);
}

/* Whole numbers by squaring, which wraps around as products do. */
static tn_tensor pow_int(onnx_call *c, tn_tensor x, tn_tensor e) {
    tn_tensor y = tn_full(c->g, tn_tensor_dtype(x), TN_SCALAR, 1), half = onnx_scalar(e, 2);
    for (int bit = 0; bit < 6; bit++) {
        y = tn_select(tn_ne(tn_mod(e, half), zero(e)), tn_mul(y, x), y);
        e = tn_div(e, half);
        x = tn_mul(x, x);
    }
    return y;
}
void onnx_op_pow(onnx_call *c) {
    tn_tensor a = onnx_t(c, 0), b = old_broadcast(c, onnx_t(c, 0), onnx_t(c, 1)), y;
    int base = onnx_elem(c, 0), exponent = onnx_elem(c, 1);
    if (base == ELEM_BOOL || exponent == ELEM_BOOL) onnx_refuse(c, "operands of bool");
    if (onnx_elem_widened(base) || (onnx_elem_widened(exponent) && !onnx_is_float(base)))
        onnx_refuse(c, "operands of %s and %s", onnx_elem_name(base), onnx_elem_name(exponent));
    if (onnx_is_float(base))
        y = tn_pow(a, tn_cast(b, tn_tensor_dtype(a)));
    else if (onnx_is_float(exponent))
        y = tn_cast(tn_pow(tn_cast(a, TN_F64), tn_cast(b, TN_F64)), tn_tensor_dtype(a));
    else
        y = pow_int(c, a, b);
    onnx_put(c, 0, y, ELEM_NONE);
}

void onnx_op_reciprocal(onnx_call *c) {
    tn_tensor x = onnx_t(c, 0);
    (void)onnx_attr_find(c, "consumed_inputs");
    onnx_put(c, 0, tn_div(onnx_scalar(x, 1), x), ELEM_NONE);
}
void onnx_op_where(onnx_call *c) {
    if (onnx_elem(c, 1) != onnx_elem(c, 2)) onnx_refuse(c, "operands of two types");
    onnx_put(c, 0, tn_select(onnx_t(c, 0), onnx_t(c, 1), onnx_t(c, 2)), onnx_elem(c, 1));
}

/* ---- bits ---- */

void onnx_op_bitwise_not(onnx_call *c) { onnx_put(c, 0, onnx_wrap(tn_bit_not(onnx_t(c, 0)), onnx_elem(c, 0)), ELEM_NONE); }

/* What a type of fewer bits shifts out is above the bits that it keeps of the held one. */
void onnx_op_bit_shift(onnx_call *c) {
    int elem = onnx_elem(c, 0);
    bool left = onnx_attr_is(c, "direction", "", "LEFT");
    check_equal_types(c);
    if (!left && !onnx_attr_is(c, "direction", "", "RIGHT")) onnx_refuse(c, "attribute direction");
    if (elem == ELEM_BOOL || onnx_is_float(elem)) onnx_refuse(c, "operands of %s", onnx_elem_name(elem));
    tn_tensor x = onnx_t(c, 0), by = onnx_t(c, 1);
    tn_tensor y = left ? tn_shift_left(x, by) : tn_shift_right(x, by);
    onnx_put(c, 0, onnx_wrap(y, elem), ELEM_NONE);
}
