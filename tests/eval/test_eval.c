/* test_eval.c - known answers of the reference evaluator: every op against values worked out apart from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/support.h"
#include "ir/region.h"

#include <math.h>
#include <stdio.h>

#define D(...) ((const double[]){ __VA_ARGS__ })

/* A constant array given in doubles. */
static val array(graph *g, tn_dtype t, tn_shape s, const double *x) {
    int64_t count = 1;
    for (int d = 0; d < s.rank; d++) count *= s.dim[d];
    void *data = arena_alloc(g->a, (size_t)count * dtype_size(t) + 1);
    for (int64_t i = 0; i < count; i++) {
        if (dtype_is_float(t))
            dtype_store(t, data, i, x[i]);
        else
            dtype_store_int(t, data, i, (int64_t)x[i]);
    }
    return graph_const(g, t, s.rank, s.dim, data);
}
static val vec(graph *g, tn_dtype t, int64_t n, const double *x) { return array(g, t, TN_DIMS(n), x); }

static eval_value value_of(graph *g, val v) { return eval_graph(g, g->a, NULL)[v]; }

/* v has exactly this type and these values; tol is relative, 0 = equal with signs of zeros and NaNs. */
static void expect_near(graph *g, val v, tn_dtype t, tn_shape s, const double *want, double tol) {
    const node *n = graph_get(g, v);
    assert_int_equal(n->dtype, t);
    assert_int_equal(n->rank, s.rank);
    for (int d = 0; d < s.rank; d++) assert_int_equal(n->dims[d], s.dim[d]);
    eval_value x = value_of(g, v);
    for (int64_t i = 0; i < graph_elems(g, v); i++) {
        double got = x.f ? x.f[i] : (double)x.i[i];
        bool same = (isnan(got) && isnan(want[i])) || (got == want[i] && signbit(got) == signbit(want[i]));
        if (!same && !(fabs(got - want[i]) <= tol * fabs(want[i])))
            fail_msg("%s, element %lld: got %.17g, expected %.17g", op_get(n->op)->name, (long long)i, got, want[i]);
    }
}
static void expect(graph *g, val v, tn_dtype t, tn_shape s, const double *want) { expect_near(g, v, t, s, want, 0); }

/* ---- elementwise ---- */

ARENA_TEST(unary_floats) {
    static const struct {
        op_code op;
        double x, y;
    } rows[] = {
        { OP_neg, 2.5, -2.5 },
        { OP_neg, 0.0, -0.0 },
        { OP_abs, -3, 3 },
        { OP_abs, -0.0, 0 },
        { OP_sign, -7, -1 },
        { OP_sign, 7, 1 },
        { OP_sign, 0, 0 },
        { OP_sign, -0.0, -0.0 },
        { OP_sign, NAN, NAN },
        { OP_floor, -1.5, -2 },
        { OP_ceil, -1.5, -1 },
        { OP_round, 2.5, 2 },
        { OP_round, 3.5, 4 },
        { OP_round, -0.5, -0.0 },
        { OP_sqrt, 2, 1.41421356237309505 },
        { OP_sqrt, -1, NAN },
        { OP_rsqrt, 4, 0.5 },
        { OP_rsqrt, 0, INFINITY },
        { OP_exp, 1, 2.71828182845904524 },
        { OP_exp, -INFINITY, 0 },
        { OP_log, 10, 2.30258509299404568 },
        { OP_log, 0, -INFINITY },
        { OP_log, -1, NAN },
        { OP_log1p, 1e-10, 9.9999999995e-11 },
        { OP_expm1, 1e-10, 1.00000000005e-10 },
        { OP_sin, 1, 0.841470984807896507 },
        { OP_cos, 1, 0.540302305868139717 },
        { OP_tan, 1, 1.55740772465490223 },
        { OP_asin, 0.5, 0.523598775598298873 },
        { OP_acos, 0.5, 1.04719755119659775 },
        { OP_atan, 1, 0.785398163397448310 },
        { OP_sinh, 1, 1.17520119364380146 },
        { OP_cosh, 1, 1.54308063481524378 },
        { OP_tanh, 1, 0.761594155955764888 },
        { OP_tanh, INFINITY, 1 },
        { OP_asinh, 1, 0.881373587019543025 },
        { OP_acosh, 2, 1.31695789692481671 },
        { OP_atanh, 0.5, 0.549306144334054846 },
        { OP_erf, 1, 0.842700792949714869 },
        { OP_stop_gradient, -0.0, -0.0 },
    };
    for (size_t k = 0; k < COUNT_OF(rows); k++) {
        graph *g = graph_make(a, "t");
        val x = array(g, TN_F64, TN_SCALAR, &rows[k].x);
        expect_near(g, graph_unary(g, rows[k].op, x), TN_F64, TN_SCALAR, &rows[k].y, 4e-16);
    }
}

ARENA_TEST(binary_floats) {
    static const struct {
        op_code op;
        double x, y, z;
    } rows[] = {
        { OP_add, 1.5, 2, 3.5 },    { OP_sub, 1, 4, -3 },    { OP_mul, -2, 3, -6 },   { OP_div, 1, 4, 0.25 },
        { OP_div, 1, 0, INFINITY }, { OP_div, 0, 0, NAN },   { OP_pow, 2, 10, 1024 }, { OP_pow, -8, 0.5, NAN },
        { OP_pow, 0, 0, 1 },        { OP_mod, 7, 3, 1 },     { OP_mod, -7, 3, 2 },    { OP_mod, 7, -3, -2 },
        { OP_mod, -7, -3, -1 },     { OP_mod, 5.5, 2, 1.5 }, { OP_mod, 6, -3, -0.0 }, { OP_mod, 1, 0, NAN },
        { OP_max, 1, 2, 2 },        { OP_max, NAN, 1, NAN }, { OP_max, 1, NAN, NAN }, { OP_max, -INFINITY, -3, -3 },
        { OP_min, 1, 2, 1 },        { OP_min, NAN, 1, NAN }, { OP_min, 1, NAN, NAN },
    };
    for (size_t k = 0; k < COUNT_OF(rows); k++) {
        graph *g = graph_make(a, "t");
        val x = array(g, TN_F32, TN_SCALAR, &rows[k].x), y = array(g, TN_F32, TN_SCALAR, &rows[k].y);
        expect(g, graph_binary(g, rows[k].op, x, y), TN_F32, TN_SCALAR, &rows[k].z);
    }
}

ARENA_TEST(comparisons) {
    graph *g = graph_make(a, "t");
    val x = vec(g, TN_F32, 4, D(1, 2, 3, NAN)), y = vec(g, TN_F32, 4, D(2, 2, 2, NAN));
    expect(g, graph_binary(g, OP_lt, x, y), TN_BOOL, TN_DIMS(4), D(1, 0, 0, 0));
    expect(g, graph_binary(g, OP_le, x, y), TN_BOOL, TN_DIMS(4), D(1, 1, 0, 0));
    expect(g, graph_binary(g, OP_gt, x, y), TN_BOOL, TN_DIMS(4), D(0, 0, 1, 0));
    expect(g, graph_binary(g, OP_ge, x, y), TN_BOOL, TN_DIMS(4), D(0, 1, 1, 0));
    expect(g, graph_binary(g, OP_eq, x, y), TN_BOOL, TN_DIMS(4), D(0, 1, 0, 0));
    expect(g, graph_binary(g, OP_ne, x, y), TN_BOOL, TN_DIMS(4), D(1, 0, 1, 1));
    val i = vec(g, TN_I64, 3, D(-1, 0, 5)), j = vec(g, TN_I64, 3, D(0, 0, 0)), m = vec(g, TN_BOOL, 3, D(1, 0, 1));
    expect(g, graph_binary(g, OP_lt, i, j), TN_BOOL, TN_DIMS(3), D(1, 0, 0));
    expect(g, graph_binary(g, OP_ge, i, j), TN_BOOL, TN_DIMS(3), D(0, 1, 1));
    expect(g, graph_select(g, m, i, j), TN_I64, TN_DIMS(3), D(-1, 0, 5));
    expect(g, graph_select(g, vec(g, TN_BOOL, 4, D(1, 0, 0, 1)), x, y), TN_F32, TN_DIMS(4), D(1, 2, 2, NAN));
    expect(g, graph_select(g, m, m, graph_unary(g, OP_not, m)), TN_BOOL, TN_DIMS(3), D(1, 1, 1));
}

ARENA_TEST(integers_wrap_and_divide) {
    graph *g = graph_make(a, "t");
    val x = vec(g, TN_I8, 4, D(127, -128, 100, -5)), y = vec(g, TN_I8, 4, D(1, -1, 3, 0));
    expect(g, graph_binary(g, OP_add, x, y), TN_I8, TN_DIMS(4), D(-128, 127, 103, -5));
    expect(g, graph_binary(g, OP_mul, x, y), TN_I8, TN_DIMS(4), D(127, -128, 44, 0));
    expect(g, graph_binary(g, OP_div, x, y), TN_I8, TN_DIMS(4), D(127, -128, 33, 0));
    expect(g, graph_binary(g, OP_mod, x, y), TN_I8, TN_DIMS(4), D(0, 0, 1, 0));
    expect(g, graph_unary(g, OP_neg, x), TN_I8, TN_DIMS(4), D(-127, -128, -100, 5));
    expect(g, graph_unary(g, OP_abs, x), TN_I8, TN_DIMS(4), D(127, -128, 100, 5));
    expect(g, graph_unary(g, OP_sign, x), TN_I8, TN_DIMS(4), D(1, -1, 1, -1));
    val u = vec(g, TN_U8, 3, D(255, 0, 7)), w = vec(g, TN_U8, 3, D(1, 1, 3));
    expect(g, graph_binary(g, OP_add, u, w), TN_U8, TN_DIMS(3), D(0, 1, 10));
    expect(g, graph_binary(g, OP_sub, u, w), TN_U8, TN_DIMS(3), D(254, 255, 4));
    expect(g, graph_unary(g, OP_neg, w), TN_U8, TN_DIMS(3), D(255, 255, 253));
    expect(g, graph_binary(g, OP_lt, u, w), TN_BOOL, TN_DIMS(3), D(0, 1, 0));
    val p = vec(g, TN_I32, 5, D(-7, 7, -7, 7, 2147483647)), q = vec(g, TN_I32, 5, D(2, -2, -2, 2, 2));
    expect(g, graph_binary(g, OP_div, p, q), TN_I32, TN_DIMS(5), D(-3, -3, 3, 3, 1073741823));
    expect(g, graph_binary(g, OP_mod, p, q), TN_I32, TN_DIMS(5), D(1, -1, -1, 1, 1));
    expect(g, graph_binary(g, OP_add, p, q), TN_I32, TN_DIMS(5), D(-5, 5, -9, 9, -2147483647));
    expect(g, graph_binary(g, OP_max, p, q), TN_I32, TN_DIMS(5), D(2, 7, -2, 7, 2147483647));
    expect(g, graph_binary(g, OP_min, p, q), TN_I32, TN_DIMS(5), D(-7, -2, -7, 2, 2));
    int64_t low = INT64_MIN, minus = -1;
    val l = graph_const(g, TN_I64, 0, NULL, &low), o = graph_const(g, TN_I64, 0, NULL, &minus);
    assert_int_equal(value_of(g, graph_binary(g, OP_div, l, o)).i[0], INT64_MIN);
    assert_int_equal(value_of(g, graph_binary(g, OP_mod, l, o)).i[0], 0);
    assert_int_equal(value_of(g, graph_binary(g, OP_add, l, o)).i[0], INT64_MAX);
    assert_int_equal(value_of(g, graph_unary(g, OP_neg, l)).i[0], INT64_MIN);
    assert_int_equal(value_of(g, graph_unary(g, OP_abs, l)).i[0], INT64_MIN);
}

ARENA_TEST(bits_and_logic) {
    graph *g = graph_make(a, "t");
    val x = vec(g, TN_I32, 3, D(12, -1, 5)), y = vec(g, TN_I32, 3, D(10, 6, 0));
    expect(g, graph_binary(g, OP_and, x, y), TN_I32, TN_DIMS(3), D(8, 6, 0));
    expect(g, graph_binary(g, OP_or, x, y), TN_I32, TN_DIMS(3), D(14, -1, 5));
    expect(g, graph_binary(g, OP_xor, x, y), TN_I32, TN_DIMS(3), D(6, -7, 5));
    val p = vec(g, TN_BOOL, 4, D(0, 0, 1, 1)), q = vec(g, TN_BOOL, 4, D(0, 1, 0, 1));
    expect(g, graph_binary(g, OP_and, p, q), TN_BOOL, TN_DIMS(4), D(0, 0, 0, 1));
    expect(g, graph_binary(g, OP_or, p, q), TN_BOOL, TN_DIMS(4), D(0, 1, 1, 1));
    expect(g, graph_binary(g, OP_xor, p, q), TN_BOOL, TN_DIMS(4), D(0, 1, 1, 0));
    expect(g, graph_unary(g, OP_not, p), TN_BOOL, TN_DIMS(4), D(1, 1, 0, 0));
}

ARENA_TEST(casts) {
    graph *g = graph_make(a, "t");
    val x = vec(g, TN_F64, 7, D(1.9, -1.9, 300, -300, NAN, INFINITY, -0.0));
    expect(g, graph_cast(g, x, TN_I8), TN_I8, TN_DIMS(7), D(1, -1, 127, -128, 0, 127, 0));
    expect(g, graph_cast(g, x, TN_U8), TN_U8, TN_DIMS(7), D(1, 0, 255, 0, 0, 255, 0));
    expect(g, graph_cast(g, x, TN_BOOL), TN_BOOL, TN_DIMS(7), D(1, 1, 1, 1, 1, 1, 0));
    expect(g, graph_cast(g, vec(g, TN_F64, 2, D(3e9, -3e9)), TN_I32), TN_I32, TN_DIMS(2), D(2147483647, -2147483648.0));
    assert_int_equal(value_of(g, graph_cast(g, vec(g, TN_F64, 1, D(1e30)), TN_I64)).i[0], INT64_MAX);
    expect(g, graph_cast(g, vec(g, TN_I32, 3, D(300, -1, 256)), TN_U8), TN_U8, TN_DIMS(3), D(44, 255, 0));
    expect(g, graph_cast(g, vec(g, TN_I32, 3, D(0, -1, 256)), TN_BOOL), TN_BOOL, TN_DIMS(3), D(0, 1, 1));
    expect(g, graph_cast(g, vec(g, TN_BOOL, 2, D(0, 1)), TN_F16), TN_F16, TN_DIMS(2), D(0, 1));
    val y = vec(g, TN_F64, 4, D(0.1, 2049, 1e6, 16777217));
    expect(g, graph_cast(g, y, TN_F32), TN_F32, TN_DIMS(4), D(0.100000001490116119, 2049, 1e6, 16777216));
    expect(g, graph_cast(g, y, TN_F16), TN_F16, TN_DIMS(4), D(0.0999755859375, 2048, INFINITY, INFINITY));
    expect(g, graph_cast(g, y, TN_BF16), TN_BF16, TN_DIMS(4), D(0.10009765625, 2048, 999424, 16777216));
    expect(g, graph_cast(g, vec(g, TN_I64, 1, D(16777217)), TN_F32), TN_F32, TN_DIMS(1), D(16777216));
}

/* ---- reductions ---- */

ARENA_TEST(reductions) {
    graph *g = graph_make(a, "t");
    val x = array(g, TN_F32, TN_DIMS(2, 3), D(1, -2, 3, 4, 5, -6));
    expect(g, graph_reduce(g, OP_sum, x, 1), TN_F32, TN_DIMS(1, 3), D(5, 3, -3));
    expect(g, graph_reduce(g, OP_sum, x, 2), TN_F32, TN_DIMS(2, 1), D(2, 3));
    expect(g, graph_reduce(g, OP_sum, x, 3), TN_F32, TN_DIMS(1, 1), D(5));
    expect(g, graph_reduce(g, OP_prod, x, 2), TN_F32, TN_DIMS(2, 1), D(-6, -120));
    expect(g, graph_reduce(g, OP_reduce_max, x, 1), TN_F32, TN_DIMS(1, 3), D(4, 5, 3));
    expect(g, graph_reduce(g, OP_reduce_min, x, 2), TN_F32, TN_DIMS(2, 1), D(-2, -6));
    val y = array(g, TN_F32, TN_DIMS(3, 2), D(NAN, 1, 2, INFINITY, -INFINITY, INFINITY));
    expect(g, graph_reduce(g, OP_reduce_max, y, 2), TN_F32, TN_DIMS(3, 1), D(NAN, INFINITY, INFINITY));
    expect(g, graph_reduce(g, OP_reduce_min, y, 1), TN_F32, TN_DIMS(1, 2), D(NAN, 1));
    expect(g, graph_reduce(g, OP_sum, y, 2), TN_F32, TN_DIMS(3, 1), D(NAN, INFINITY, NAN));
    val i = array(g, TN_I8, TN_DIMS(1, 3), D(100, 100, 2));
    expect(g, graph_reduce(g, OP_sum, i, 2), TN_I8, TN_DIMS(1, 1), D(-54));
    expect(g, graph_reduce(g, OP_prod, i, 2), TN_I8, TN_DIMS(1, 1), D(32));
    expect(g, graph_reduce(g, OP_reduce_max, i, 2), TN_I8, TN_DIMS(1, 1), D(100));
    val z = array(g, TN_F64, TN_DIMS(2, 0), D(0));
    expect(g, graph_reduce(g, OP_sum, z, 2), TN_F64, TN_DIMS(2, 1), D(0, 0));
    expect(g, graph_reduce(g, OP_prod, z, 2), TN_F64, TN_DIMS(2, 1), D(1, 1));
    expect(g, graph_reduce(g, OP_reduce_max, z, 2), TN_F64, TN_DIMS(2, 1), D(-INFINITY, -INFINITY));
    expect(g, graph_reduce(g, OP_reduce_min, z, 2), TN_F64, TN_DIMS(2, 1), D(INFINITY, INFINITY));
    expect(g, graph_reduce(g, OP_sum, z, 1), TN_F64, TN_DIMS(1, 0), D(0));
    val e = array(g, TN_I32, TN_DIMS(0), D(0));
    expect(g, graph_reduce(g, OP_reduce_max, e, 1), TN_I32, TN_DIMS(1), D(-2147483648.0));
    expect(g, graph_reduce(g, OP_reduce_min, e, 1), TN_I32, TN_DIMS(1), D(2147483647));
}

ARENA_TEST(arguments_of_extremes) {
    graph *g = graph_make(a, "t");
    val x = array(g, TN_F32, TN_DIMS(2, 4), D(1, 5, 5, -2, NAN, 7, NAN, -2));
    expect(g, graph_arg(g, OP_argmax, x, 1), TN_I64, TN_DIMS(2, 1), D(1, 0));
    expect(g, graph_arg(g, OP_argmin, x, 1), TN_I64, TN_DIMS(2, 1), D(3, 0));
    expect(g, graph_arg(g, OP_argmax, x, 0), TN_I64, TN_DIMS(1, 4), D(1, 1, 1, 0));
    expect(g, graph_arg(g, OP_argmin, x, 0), TN_I64, TN_DIMS(1, 4), D(1, 0, 1, 0));
    val i = array(g, TN_U8, TN_DIMS(3), D(9, 200, 200));
    expect(g, graph_arg(g, OP_argmax, i, 0), TN_I64, TN_DIMS(1), D(1));
    expect(g, graph_arg(g, OP_argmin, i, 0), TN_I64, TN_DIMS(1), D(0));
}

/* ---- movement ---- */

ARENA_TEST(movement) {
    graph *g = graph_make(a, "t");
    val x = array(g, TN_F32, TN_DIMS(2, 3), D(1, 2, 3, 4, 5, 6));
    expect(g, graph_reshape(g, x, 2, (int64_t[]){ 3, 2 }), TN_F32, TN_DIMS(3, 2), D(1, 2, 3, 4, 5, 6));
    expect(g, graph_permute(g, x, (int64_t[]){ 1, 0 }), TN_F32, TN_DIMS(3, 2), D(1, 4, 2, 5, 3, 6));
    val y = array(g, TN_I32, TN_DIMS(2, 1, 3), D(1, 2, 3, 4, 5, 6));
    expect(g, graph_permute(g, y, (int64_t[]){ 2, 0, 1 }), TN_I32, TN_DIMS(3, 2, 1), D(1, 4, 2, 5, 3, 6));
    expect(g, graph_expand(g, y, (int64_t[]){ 2, 2, 3 }), TN_I32, TN_DIMS(2, 2, 3), D(1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6));
    expect(g, graph_pad(g, x, (int64_t[]){ 1, 0 }, (int64_t[]){ 0, 2 }, -1), TN_F32, TN_DIMS(3, 5),
           D(-1, -1, -1, -1, -1, 1, 2, 3, -1, -1, 4, 5, 6, -1, -1));
    expect(g, graph_pad(g, vec(g, TN_U8, 1, D(7)), (int64_t[]){ 1 }, (int64_t[]){ 1 }, 3), TN_U8, TN_DIMS(3), D(3, 7, 3));
    expect(g, graph_slice(g, x, (int64_t[]){ 1, 0 }, (int64_t[]){ 1, 2 }, (int64_t[]){ 1, 2 }), TN_F32, TN_DIMS(1, 2), D(4, 6));
    expect(g, graph_slice(g, x, (int64_t[]){ 0, 1 }, (int64_t[]){ 2, 0 }, (int64_t[]){ 1, 1 }), TN_F32, TN_DIMS(2, 0), D(0));
    expect(g, graph_flip(g, x, 2), TN_F32, TN_DIMS(2, 3), D(3, 2, 1, 6, 5, 4));
    expect(g, graph_flip(g, x, 3), TN_F32, TN_DIMS(2, 3), D(6, 5, 4, 3, 2, 1));
    val empty = array(g, TN_F32, TN_DIMS(0, 3), D(0));
    expect(g, graph_pad(g, empty, (int64_t[]){ 1, 0 }, (int64_t[]){ 0, 0 }, 2), TN_F32, TN_DIMS(1, 3), D(2, 2, 2));
    expect(g, graph_permute(g, empty, (int64_t[]){ 1, 0 }), TN_F32, TN_DIMS(3, 0), D(0));
    val b = graph_broadcast(g, vec(g, TN_F32, 3, D(1, 2, 3)), 2, (int64_t[]){ 2, 3 });
    expect(g, graph_binary(g, OP_add, x, b), TN_F32, TN_DIMS(2, 3), D(2, 4, 6, 5, 7, 9));
    val s = array(g, TN_F32, TN_SCALAR, D(5));
    expect(g, graph_reshape(g, s, 3, (int64_t[]){ 1, 1, 1 }), TN_F32, TN_DIMS(1, 1, 1), D(5));
    expect(g, graph_broadcast(g, s, 2, (int64_t[]){ 1, 2 }), TN_F32, TN_DIMS(1, 2), D(5, 5));
}

ARENA_TEST(windows) {
    graph *g = graph_make(a, "t");
    val x = vec(g, TN_F32, 7, D(0, 1, 2, 3, 4, 5, 6));
    window_axis w = { 0, 3, 2, 1 }, dilated = { 0, 2, 1, 3 };
    expect(g, graph_window(g, x, &w, 1), TN_F32, TN_DIMS(3, 3), D(0, 1, 2, 2, 3, 4, 4, 5, 6));
    expect(g, graph_window(g, x, &dilated, 1), TN_F32, TN_DIMS(4, 2), D(0, 3, 1, 4, 2, 5, 3, 6));
    val y = array(g, TN_F32, TN_DIMS(2, 3), D(1, 2, 3, 4, 5, 6));
    window_axis both[2] = { { 1, 2, 1, 1 }, { 0, 2, 1, 1 } }; /* window offsets in the order given: columns, then rows */
    expect(g, graph_window(g, y, both, 2), TN_F32, TN_DIMS(1, 2, 2, 2), D(1, 4, 2, 5, 2, 5, 3, 6));
    val ones = graph_splat(g, TN_F32, 2, (int64_t[]){ 3, 3 }, 1);
    expect(g, graph_fold(g, ones, &w, 1, (int64_t[]){ 7 }), TN_F32, TN_DIMS(7), D(1, 1, 2, 1, 2, 1, 1));
    expect(g, graph_fold(g, ones, &w, 1, (int64_t[]){ 8 }), TN_F32, TN_DIMS(8), D(1, 1, 2, 1, 2, 1, 1, 0));
    val ints = graph_splat(g, TN_I8, 2, (int64_t[]){ 3, 3 }, 100);
    expect(g, graph_fold(g, ints, &w, 1, (int64_t[]){ 7 }), TN_I8, TN_DIMS(7), D(100, 100, -56, 100, -56, 100, 100));
}

/* <window(x), y> = <x, fold(y)> for random axes, strides and dilations. */
ARENA_TEST(fold_is_the_adjoint_of_window) {
    for (uint64_t seed = 0; seed < 40; seed++) {
        rng r = rng_make(seed);
        graph *g = graph_make(a, "t");
        int64_t dims[3] = { rng_between(&r, 1, 3), rng_between(&r, 3, 9), rng_between(&r, 3, 9) };
        window_axis w[2] = { { 2, rng_between(&r, 1, 2), rng_between(&r, 1, 3), rng_between(&r, 1, 2) },
                             { 1, rng_between(&r, 1, 3), rng_between(&r, 1, 3), 1 } };
        int n = 1 + (int)rng_below(&r, 2);
        double *data = ARENA_ARRAY(a, double, 243);
        fill_random(&r, TN_F64, data, dims[0] * dims[1] * dims[2], -1, 1);
        val x = graph_const(g, TN_F64, 3, dims, data), wx = graph_window(g, x, w, n);
        node wn = *graph_get(g, wx);
        double *y_data = ARENA_ARRAY(a, double, graph_elems(g, wx));
        fill_random(&r, TN_F64, y_data, graph_elems(g, wx), -1, 1);
        val y = graph_const(g, TN_F64, wn.rank, wn.dims, y_data), fy = graph_fold(g, y, w, n, dims);
        eval_value *v = eval_graph(g, a, NULL);
        double left = 0, right = 0;
        for (int64_t i = 0; i < graph_elems(g, y); i++) left += v[wx].f[i] * v[y].f[i];
        for (int64_t i = 0; i < graph_elems(g, x); i++) right += v[x].f[i] * v[fy].f[i];
        assert_true(fabs(left - right) <= 1e-12);
        assert_true(left != 0);
    }
}

ARENA_TEST(concat) {
    graph *g = graph_make(a, "t");
    val x = array(g, TN_F32, TN_DIMS(2, 1), D(1, 2)), y = array(g, TN_F32, TN_DIMS(2, 2), D(3, 4, 5, 6));
    val z = array(g, TN_F32, TN_DIMS(2, 0), D(0));
    expect(g, graph_concat(g, (val[]){ x, z, y }, 3, 1), TN_F32, TN_DIMS(2, 3), D(1, 3, 4, 2, 5, 6));
    expect(g, graph_concat(g, (val[]){ y, y }, 2, 0), TN_F32, TN_DIMS(4, 2), D(3, 4, 5, 6, 3, 4, 5, 6));
}

/* ---- contraction, indexed access ---- */

ARENA_TEST(dots) {
    graph *g = graph_make(a, "t");
    val x = array(g, TN_F32, TN_DIMS(2, 3), D(1, 2, 3, 4, 5, 6)), y = array(g, TN_F32, TN_DIMS(3, 2), D(1, 0, 0, 1, 2, 2));
    int64_t zero = 0, one = 1, two = 2;
    expect(g, graph_dot(g, x, y, NULL, NULL, 0, &one, &zero, 1), TN_F32, TN_DIMS(2, 2), D(7, 8, 16, 17));
    expect(g, graph_dot(g, x, y, NULL, NULL, 0, &zero, &one, 1), TN_F32, TN_DIMS(3, 3), D(1, 4, 10, 2, 5, 14, 3, 6, 18));
    /* batch axis last in a, first in b: out[n, i, j] = sum_k a[k, i, n] b[n, j, k] */
    val p = array(g, TN_I32, TN_DIMS(2, 1, 2), D(1, 2, 3, 4)),
        q = array(g, TN_I32, TN_DIMS(2, 2, 2), D(1, 1, 0, 2, 5, 6, 7, 8));
    expect(g, graph_dot(g, p, q, &two, &zero, 1, &zero, &two, 1), TN_I32, TN_DIMS(2, 1, 2), D(4, 6, 34, 46));
    /* nothing contracted: an outer product; two axes contracted: a scalar */
    val u = vec(g, TN_F32, 2, D(2, 3)), v = vec(g, TN_F32, 3, D(1, 10, 100));
    expect(g, graph_dot(g, u, v, NULL, NULL, 0, NULL, NULL, 0), TN_F32, TN_DIMS(2, 3), D(2, 20, 200, 3, 30, 300));
    expect(g, graph_dot(g, x, y, NULL, NULL, 0, (int64_t[]){ 0, 1 }, (int64_t[]){ 1, 0 }, 2), TN_F32, TN_SCALAR, D(24));
    /* a sum of no terms */
    val e = array(g, TN_F32, TN_DIMS(2, 0), D(0)), f = array(g, TN_F32, TN_DIMS(0, 3), D(0));
    expect(g, graph_dot(g, e, f, NULL, NULL, 0, &one, &zero, 1), TN_F32, TN_DIMS(2, 3), D(0, 0, 0, 0, 0, 0));
    val i8 = vec(g, TN_I8, 2, D(100, 100)), j8 = vec(g, TN_I8, 2, D(2, 1));
    expect(g, graph_dot(g, i8, j8, NULL, NULL, 0, &zero, &zero, 1), TN_I8, TN_SCALAR, D(44));
}

ARENA_TEST(gather_and_scatter) {
    graph *g = graph_make(a, "t");
    val x = array(g, TN_F32, TN_DIMS(3, 2), D(1, 2, 3, 4, 5, 6));
    val index = array(g, TN_I64, TN_DIMS(2, 2), D(2, 0, -5, 9));
    expect(g, graph_gather(g, x, index, 0), TN_F32, TN_DIMS(2, 2, 2), D(5, 6, 1, 2, 1, 2, 5, 6));
    expect(g, graph_gather(g, x, array(g, TN_I32, TN_SCALAR, D(1)), 1), TN_F32, TN_DIMS(3), D(2, 4, 6));
    val three = vec(g, TN_I32, 3, D(1, 1, 0));
    expect(g, graph_gather(g, x, three, 1), TN_F32, TN_DIMS(3, 3), D(2, 2, 1, 4, 4, 3, 6, 6, 5));
    val updates = array(g, TN_F32, TN_DIMS(4, 2), D(10, 20, 30, 40, 50, 60, 70, 80));
    val rows = vec(g, TN_I64, 4, D(2, 2, -1, 3));
    expect(g, graph_scatter_add(g, x, rows, updates, 0, 0), TN_F32, TN_DIMS(3, 2), D(1, 2, 3, 4, 45, 66));
    expect(g, graph_scatter(g, OP_scatter_set, x, rows, updates, 0, 0), TN_F32, TN_DIMS(3, 2), D(1, 2, 3, 4, 30, 40));
    val columns = array(g, TN_F32, TN_DIMS(3, 3), D(1, 1, 1, 2, 2, 2, 3, 3, 3));
    expect(g, graph_scatter_add(g, x, three, columns, 1, 0), TN_F32, TN_DIMS(3, 2), D(2, 4, 5, 8, 8, 12));
    val bytes = vec(g, TN_U8, 2, D(250, 0)), more = vec(g, TN_U8, 3, D(4, 5, 6)), at = vec(g, TN_I32, 3, D(0, 0, 1));
    expect(g, graph_scatter_add(g, bytes, at, more, 0, 0), TN_U8, TN_DIMS(2), D(3, 6));
    val each = array(g, TN_I64, TN_DIMS(3, 2), D(1, 1, 0, 7, 1, 0)),
        once = array(g, TN_F32, TN_DIMS(3, 2), D(10, 20, 30, 40, 50, 60));
    expect(g, graph_scatter_add(g, x, each, once, 1, 1), TN_F32, TN_DIMS(3, 2), D(1, 32, 33, 4, 65, 56));
    val none = array(g, TN_F32, TN_DIMS(0, 2), D(0)), no_rows = vec(g, TN_I64, 0, D(0));
    expect(g, graph_scatter_add(g, x, no_rows, none, 0, 0), TN_F32, TN_DIMS(3, 2), D(1, 2, 3, 4, 5, 6));
    expect(g, graph_gather(g, x, no_rows, 0), TN_F32, TN_DIMS(0, 2), D(0));
}

/* ---- sources ---- */

static void check_philox(const uint32_t *ctr, const uint32_t *key, const uint32_t *want) {
    uint32_t got[4];
    philox4x32(ctr, key, got);
    assert_memory_equal(got, want, sizeof got);
}

ARENA_TEST(random_numbers) {
    /* known answers of Salmon et al. */
    check_philox((uint32_t[4]){ 0 }, (uint32_t[2]){ 0 }, (uint32_t[4]){ 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 });
    check_philox((uint32_t[4]){ ~0u, ~0u, ~0u, ~0u }, (uint32_t[2]){ ~0u, ~0u },
                 (uint32_t[4]){ 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd });
    graph *g = graph_make(a, "t");
    val zero = array(g, TN_I64, TN_SCALAR, D(0)), big = array(g, TN_I64, TN_SCALAR, D(4294967301.0)); /* 2^32 + 5 */
    int64_t stream = 0, other = 7, dims[2] = { 30, 40 };
    spec s = {
        .op = OP_random, .dtype = TN_F32, .in = &zero, .n_in = 1, .rank = 2, .dims = dims, .attr = &stream, .n_attr = 1
    };
    val x = graph_add(g, &s);
    s.in = &big, s.attr = &other;
    val y = graph_add(g, &s);
    eval_value *v = eval_graph(g, a, NULL);
    assert_true(v[x].f[0] == (double)(0x6627e8d5u >> 8) / 16777216.0);
    uint32_t words[4];
    philox4x32((uint32_t[4]){ 41, 0, 7, 0 }, (uint32_t[2]){ 5, 1 }, words); /* element 41, stream 7, counter 2^32 + 5 */
    assert_true(v[y].f[41] == (double)(words[0] >> 8) / 16777216.0);
    double mean = 0, square = 0;
    for (int i = 0; i < 1200; i++) {
        assert_true(v[y].f[i] >= 0 && v[y].f[i] < 1);
        mean += v[y].f[i] / 1200, square += v[y].f[i] * v[y].f[i] / 1200;
    }
    assert_true(fabs(mean - 0.5) < 0.042 && fabs(square - 1.0 / 3) < 0.044); /* 5 sigma */
}

ARENA_TEST(sources) {
    graph *g = graph_make(a, "t");
    expect(g, graph_iota(g, TN_I32, 2, (int64_t[]){ 2, 3 }, 1), TN_I32, TN_DIMS(2, 3), D(0, 1, 2, 0, 1, 2));
    expect(g, graph_iota(g, TN_F32, 2, (int64_t[]){ 2, 3 }, 0), TN_F32, TN_DIMS(2, 3), D(0, 0, 0, 1, 1, 1));
    expect(g, graph_splat(g, TN_F32, 1, (int64_t[]){ 2 }, 0.1), TN_F32, TN_DIMS(2),
           D(0.100000001490116119, 0.100000001490116119));
    expect(g, graph_splat(g, TN_U8, 1, (int64_t[]){ 2 }, 9), TN_U8, TN_DIMS(2), D(9, 9));
    double init[2] = { 3, 4 };
    int64_t two = 2;
    spec in = { .op = OP_input, .dtype = TN_F32, .rank = 1, .dims = &two, .name = "x" };
    spec st = { .op = OP_state, .dtype = TN_F64, .rank = 1, .dims = &two, .data = init, .name = "s" };
    spec zs = { .op = OP_state, .dtype = TN_I32, .rank = 1, .dims = &two, .name = "z" };
    val x = graph_add(g, &in), s = graph_add(g, &st), z = graph_add(g, &zs), y = graph_unary(g, OP_neg, x);
    float data[2] = { 1.5f, -2 };
    eval_value values[3] = { eval_load(g, a, x, data), { 0 }, { 0 } };
    eval_value *v = eval_graph(g, a, values);
    assert_true(v[y].f[0] == -1.5 && v[y].f[1] == 2);
    assert_true(v[s].f[0] == 3 && v[s].f[1] == 4 && v[z].i[0] == 0 && v[z].i[1] == 0);
    double seven[2] = { 7, 8 };
    values[1] = (eval_value){ .f = seven };
    v = eval_graph(g, a, values);
    assert_true(v[s].f[0] == 7 && v[s].f[1] == 8);
    float out[2];
    eval_store(g, y, v[y], out);
    assert_true(out[0] == -1.5f && out[1] == 2.0f);
}

static void missing_input(arena *a, void *ud) {
    (void)ud;
    graph *g = graph_make(a, "t");
    spec in = { .op = OP_input, .dtype = TN_F32, .name = "speed" };
    graph_add(g, &in);
    eval_graph(g, a, NULL);
}

static void reports_missing_inputs(void **state) {
    (void)state;
    err e;
    assert_int_equal(with_arena(missing_input, NULL, &e), TN_ERR_INVAL);
    assert_non_null(strstr(e.text, "speed"));
}

/* ---- regions ---- */

static val add_param(graph *g, int r, tn_dtype t) {
    int64_t index = g->regions.at[r].n_params;
    spec s = { .op = OP_param, .dtype = t, .attr = &index, .n_attr = 1, .region = r };
    return graph_add(g, &s);
}
static val add_ctrl(graph *g, op_code op, int64_t r0, int64_t r1, const val *in, int n_in) {
    int64_t attr[2] = { r0, r1 };
    spec s = { .op = op, .in = in, .n_in = n_in, .attr = attr, .n_attr = 2, .region = graph_get(g, in[0])->region };
    return graph_add(g, &s);
}
static val add_proj(graph *g, val x, int64_t index) {
    spec s = { .op = OP_proj, .in = &x, .n_in = 1, .attr = &index, .n_attr = 1 };
    return graph_add(g, &s);
}
static val const_in(graph *g, int r, tn_dtype t, double v) {
    spec s = { .op = OP_const, .dtype = t, .splat = true, .imm = v, .imm_int = (int64_t)v, .region = r };
    return graph_add(g, &s);
}

/* while (n < limit) { n = n + step; f = f * n } */
static val factorial(graph *g, double limit, double step) {
    int cond = graph_region(g, "cond"), body = graph_region(g, "body");
    val n = add_param(g, cond, TN_I64);
    add_param(g, cond, TN_I64);
    graph_region_result(g, cond, graph_binary(g, OP_lt, n, const_in(g, cond, TN_I64, limit)));
    val m = add_param(g, body, TN_I64), f = add_param(g, body, TN_I64);
    val next = graph_binary(g, OP_add, m, const_in(g, body, TN_I64, step));
    graph_region_result(g, body, next);
    graph_region_result(g, body, graph_binary(g, OP_mul, f, next));
    val start[2] = { array(g, TN_I64, TN_SCALAR, D(0)), array(g, TN_I64, TN_SCALAR, D(1)) };
    return add_ctrl(g, OP_while, cond, body, start, 2);
}

ARENA_TEST(regions) {
    graph *g = graph_make(a, "t");
    val loop = factorial(g, 6, 1), last = add_proj(g, loop, 0), product = add_proj(g, loop, 1);
    int yes = graph_region(g, "yes"), no = graph_region(g, "no");
    graph_region_result(g, yes, graph_unary(g, OP_neg, add_param(g, yes, TN_I64)));
    graph_region_result(g, no, graph_unary(g, OP_abs, add_param(g, no, TN_I64)));
    val t = array(g, TN_BOOL, TN_SCALAR, D(1)), f = array(g, TN_BOOL, TN_SCALAR, D(0));
    val when = add_proj(g, add_ctrl(g, OP_if, yes, no, (val[]){ t, product }, 2), 0);
    val unless = add_proj(g, add_ctrl(g, OP_if, yes, no, (val[]){ f, product }, 2), 0);
    eval_value *v = eval_graph(g, a, NULL);
    assert_int_equal(v[last].i[0], 6);
    assert_int_equal(v[product].i[0], 720);
    assert_int_equal(v[when].i[0], -720);
    assert_int_equal(v[unless].i[0], 720);
}

/* The branch not taken contains a loop that would never end. */
ARENA_TEST(only_the_taken_branch_runs) {
    graph *g = graph_make(a, "t");
    int yes = graph_region(g, "yes"), no = graph_region(g, "no"), cond = graph_region(g, "cond"),
        body = graph_region(g, "body");
    val c = add_param(g, cond, TN_F32);
    graph_region_result(g, cond, graph_binary(g, OP_eq, c, c));
    graph_region_result(g, body, add_param(g, body, TN_F32));
    graph_region_result(g, yes, graph_unary(g, OP_sqrt, add_param(g, yes, TN_F32)));
    val p = add_param(g, no, TN_F32);
    graph_region_result(g, no, add_ctrl(g, OP_while, cond, body, &p, 1));
    val x = add_ctrl(g, OP_if, yes, no, (val[]){ array(g, TN_BOOL, TN_SCALAR, D(1)), array(g, TN_F32, TN_SCALAR, D(9)) }, 2);
    assert_true(value_of(g, x).f[0] == 3);
}

static void endless(arena *a, void *ud) {
    (void)ud;
    graph *g = graph_make(a, "t");
    factorial(g, 6, 0);
    eval_graph(g, a, NULL);
}

static void stops_endless_loops(void **state) {
    (void)state;
    err e;
    assert_int_equal(with_arena(endless, NULL, &e), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "while"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary_floats),
        cmocka_unit_test(binary_floats),
        cmocka_unit_test(comparisons),
        cmocka_unit_test(integers_wrap_and_divide),
        cmocka_unit_test(bits_and_logic),
        cmocka_unit_test(casts),
        cmocka_unit_test(reductions),
        cmocka_unit_test(arguments_of_extremes),
        cmocka_unit_test(movement),
        cmocka_unit_test(windows),
        cmocka_unit_test(fold_is_the_adjoint_of_window),
        cmocka_unit_test(concat),
        cmocka_unit_test(dots),
        cmocka_unit_test(gather_and_scatter),
        cmocka_unit_test(random_numbers),
        cmocka_unit_test(sources),
        cmocka_unit_test(reports_missing_inputs),
        cmocka_unit_test(regions),
        cmocka_unit_test(only_the_taken_branch_runs),
        cmocka_unit_test(stops_endless_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
