/* op_matmul.c - contractions without windows. */
#include "import.h"

static void check_same(onnx_call *c) {
    for (int i = 1; i < c->n_in; i++)
        if (c->in[i] && onnx_elem(c, i) != onnx_elem(c, 0)) onnx_refuse(c, "operands of several types");
}

/* Sums of whole numbers, one row of results the last axis, without what the zero point adds, as f32. */
static tn_tensor less_zero(tn_tensor sums, onnx_zero zero) {
    return tn_cast(zero.less.graph ? tn_sub(sums, zero.less) : sums, TN_F32);
}

void onnx_op_matmul(onnx_call *c) {
    check_same(c);
    int ra = onnx_rank(c, 0), rb = onnx_rank(c, 1);
    if (ra < 1 || rb < 1) onnx_refuse(c, "a scalar");
    tn_tensor a, b, scale;
    onnx_zero zero;
    if (rb == 2 && onnx_as_steps(c, 0, 1, 1, onnx_shape(c, 0).dim[ra - 1], &a, &b, &scale, &zero))
        onnx_put(c, 0, tn_mul(less_zero(tn_matmul(a, b), zero), scale), ELEM_F32);
    else
        onnx_put(c, 0, tn_matmul(onnx_t(c, 0), onnx_t(c, 1)), ELEM_NONE);
}

void onnx_op_gemm(onnx_call *c) {
    check_same(c);
    double alpha = onnx_attr_float(c, "alpha", 1), beta = onnx_attr_float(c, "beta", 1);
    bool ta = onnx_attr_int(c, "transA", 0), tb = onnx_attr_int(c, "transB", 0);
    (void)onnx_attr_int(c, "broadcast", 0); /* before operator set 7; from then on always */
    if (onnx_rank(c, 0) != 2 || onnx_rank(c, 1) != 2)
        onnx_refuse(c, "operands of rank %d and %d", onnx_rank(c, 0), onnx_rank(c, 1));
    int64_t last_a = ta ? 0 : 1, last_b = tb ? 1 : 0;
    tn_tensor a = onnx_t(c, 0), b = onnx_t(c, 1), scale, y;
    onnx_zero zero;
    if (onnx_as_steps(c, 0, 1, tb ? 0 : 1, onnx_shape(c, 0).dim[last_a], &a, &b, &scale, &zero))
        y = tn_mul(less_zero(tn_dot(a, b, NULL, NULL, 0, &last_a, &last_b, 1), zero), scale);
    else
        y = tn_dot(a, b, NULL, NULL, 0, &last_a, &last_b, 1);
    if (alpha != 1) y = tn_mul_scalar(y, alpha);
    if (onnx_has(c, 2) && beta != 0) y = tn_add(y, beta != 1 ? tn_mul_scalar(onnx_t(c, 2), beta) : onnx_t(c, 2));
    onnx_put(c, 0, y, ELEM_NONE);
}

/* ---- whole numbers with zero points ---- */

void onnx_op_matmul_integer(onnx_call *c) {
    int ra = onnx_rank(c, 0), rb = onnx_rank(c, 1);
    if (ra < 2 || rb < 2) onnx_refuse(c, "operands of rank %d and %d", ra, rb);
    onnx_put(c, 0, tn_matmul(onnx_less_zero_point(c, 0, 2, ra - 2), onnx_less_zero_point(c, 1, 3, rb - 1)), ELEM_I32);
}

/* ---- Einsum ---- */

void onnx_op_einsum(onnx_call *c) {
    const onnx_attr *a = onnx_attr_find(c, "equation");
    if (!a || a->type != ATTR_STRING || memchr(a->s.at, 0, a->s.n)) onnx_refuse(c, "its equation");
    char *spec = ONNX_NEW(c->im->env, char, a->s.n + 1);
    tn_tensor *xs = ONNX_NEW(c->im->env, tn_tensor, c->n_in);
    memcpy(spec, a->s.at, a->s.n);
    check_same(c);
    for (int i = 0; i < c->n_in; i++) xs[i] = onnx_t(c, i);
    onnx_put(c, 0, tn_einsum(spec, xs, c->n_in), ELEM_NONE);
}
