/* test_extremes.c - activations and their gradients over every number of f16 and bf16, by compiled programs against double: no
 * overflow on the way may show in the result.
 *
 * The bound of a value is some ULPs of the storage dtype, to which every op rounds, plus what an f32 sum of numbers of the size
 * of x rounds off; infinities and NaN have their limits where the function has one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ir/dtype.h"
#include "support/support.h"
#include "tenon/tenon_nn.h"

#include <math.h>

enum { ALL = 65536 };

static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static double relu(double x) { return x > 0 ? x : 0; }
static double d_relu(double x) { return x > 0; }
static double d_sigmoid(double x) { return sigmoid(x) * sigmoid(-x); }
static double silu(double x) { return x * sigmoid(x); }
static double d_silu(double x) { return sigmoid(x) + x * d_sigmoid(x); }
static double log_sigmoid(double x) { return -softplus(-x); }
static double d_log_sigmoid(double x) { return sigmoid(-x); }
static double gelu(double x) { return x * 0.5 * erfc(-x * 0.70710678118654752); }
static double d_gelu(double x) { return 0.5 * erfc(-x * 0.70710678118654752) + x * 0.39894228040143268 * exp(-x * x / 2); }
static double mish(double x) { return x * tanh(softplus(x)); }
static double d_mish(double x) {
    double t = tanh(softplus(x));
    return t + x * (1 - t * t) * sigmoid(x);
}
static double elu(double x) { return x > 0 ? x : expm1(x); }
static double d_elu(double x) { return x > 0 ? 1 : exp(x); }
static tn_tensor build_elu(tn_tensor x) { return tn_nn_elu(x, 1); }

typedef struct function {
    const char *name;
    tn_tensor (*build)(tn_tensor x);
    double (*value)(double x), (*slope)(double x);
    bool ends; /* right at infinities, too; the others are inf * 0 at one of them, as everywhere */
    int ulps;
    bool cancels; /* near 0 it is a difference of numbers up to 0.5 */
    double near;  /* absolute error near 1, in units of 2^-24: what 1 + erf and 1 - O lose of a small result */
} function;
static const function functions[] = {
    { "relu", (tn_relu), relu, d_relu, true, 2, false, 0 },
    { "sigmoid", (tn_sigmoid), sigmoid, d_sigmoid, true, 2, false, 2 },
    { "softplus", (tn_softplus), softplus, sigmoid, true, 2, false, 2 },
    { "log_sigmoid", tn_nn_log_sigmoid, log_sigmoid, d_log_sigmoid, true, 2, false, 2 },
    { "silu", tn_nn_silu, silu, d_silu, false, 2, false, 2 },
    { "elu", build_elu, elu, d_elu, true, 2, false, 2 },
    { "gelu", tn_nn_gelu, gelu, d_gelu, false, 2, true, 4 },
    { "mish", tn_nn_mish, mish, d_mish, false, 2, false, 4 },
};

static double ulp_of(tn_dtype t, double want) {
    int e = 0, digits = t == TN_F16 ? 11 : 8, least = t == TN_F16 ? -24 : -133;
    frexp(want, &e);
    return ldexp(1, e - digits < least ? least : e - digits);
}

static int check(const function *f, tn_dtype t, const char *what, double (*ref)(double), const uint16_t *x,
                 const uint16_t *got) {
    int bad = 0;
    for (int i = 0; i < ALL; i++) {
        double v = dtype_load(t, x, i), want = ref(v), g = dtype_load(t, got, i);
        if (!f->ends && isinf(v)) continue;
        if (isnan(v) ? isnan(g) || f->slope == ref : g == want) continue;
        double largest = t == TN_F16 ? 65504 : 0x1.fep127, a = fabs(v);
        if (isinf(g) && fabs(want) >= largest && signbit(g) == signbit(want)) continue;
        double bound = f->ulps * ulp_of(t, f->cancels && a < 4 ? fmax(fabs(want), 0.5) : want) +
                       f->near * 0x1p-24 * (f->ends ? 1 : fmax(1, fmin(a, 16))) + 0x1p-126;
        if (fabs(g - want) <= bound) continue;
        if (!bad++) print_message("%s of %s: %s at %.9g is %.9g, not %.9g\n", f->name, tn_dtype_name(t), what, v, g, want);
    }
    return bad;
}

static void test_functions(void **state) {
    (void)state;
    static uint16_t x[ALL], y[ALL], d[ALL];
    int bad = 0;
    for (int i = 0; i < ALL; i++) x[i] = (uint16_t)i;
    for (size_t k = 0; k < COUNT_OF(functions); k++)
        for (tn_dtype t = TN_F16; t <= TN_BF16; t++) {
            tn_ctx *ctx = tn_ctx_new(NULL);
            tn_graph *g = tn_graph_new(ctx, functions[k].name);
            tn_tensor in = tn_input(g, "x", t, TN_DIMS(ALL)), out = functions[k].build(in), slope;
            tn_output(out, "y");
            if (tn_grad(tn_sum(tn_cast(out, TN_F32), TN_ALL_AXES, 0), &in, 1, &slope)) fail_msg("%s", tn_ctx_error(ctx));
            tn_output(slope, "d");
            tn_program *p;
            tn_session *s;
            if (tn_compile(g, NULL, &p) || tn_session_new(p, &s) || tn_run(s, TN_BIND({ "x", x }, { "y", y }, { "d", d })))
                fail_msg("%s", tn_ctx_error(ctx));
            bad += check(&functions[k], t, "the value", functions[k].value, x, y);
            bad += check(&functions[k], t, "the slope", functions[k].slope, x, d);
            tn_session_free(s);
            tn_program_free(p);
            tn_graph_free(g);
            tn_ctx_free(ctx);
        }
    assert_int_equal(bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_functions) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
