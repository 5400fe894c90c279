/* test_extremes.c - activations, losses and their gradients where numbers on the way overflow, by compiled programs against
 * double: over every number of f16 and bf16, over powers of two of f32, and softmax and its family over rows with infinities
 * and NaN.
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

/* ---- functions of one number ---- */

static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static double relu(double x) { return x > 0 ? x : 0; }
static double d_relu(double x) { return x > 0; }
static double d_sigmoid(double x) { return sigmoid(x) * sigmoid(-x); }
static double d_tanh(double x) { return 4 * d_sigmoid(2 * x); }
static double silu(double x) { return x * sigmoid(x); }
static double d_silu(double x) { return sigmoid(x) + x * d_sigmoid(x); }
static double log_sigmoid(double x) { return -softplus(-x); }
static double d_log_sigmoid(double x) { return sigmoid(-x); }
static double gelu(double x) { return x * 0.5 * erfc(-x * 0.70710678118654752); }
static double d_gelu(double x) { return 0.5 * erfc(-x * 0.70710678118654752) + x * 0.39894228040143268 * exp(-x * x / 2); }
static double cubic(double x) { return 2 * 0.7978845608028654 * (x + 0.044715 * x * x * x); } /* 1 + tanh(c) = 2 sigmoid(2 c) */
static double gelu_tanh(double x) { return x * sigmoid(cubic(x)); }
static double d_gelu_tanh(double x) {
    if (fabs(x) > 50) return x > 0;
    return sigmoid(cubic(x)) + x * d_sigmoid(cubic(x)) * 2 * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}
static double mish(double x) { return x * tanh(softplus(x)); }
static double d_mish(double x) {
    double t = tanh(softplus(x));
    return t + x * (1 - t * t) * sigmoid(x);
}
static double elu(double x) { return x > 0 ? x : expm1(x); }
static double d_elu(double x) { return x > 0 ? 1 : exp(x); }
static double selu(double x) { return 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * expm1(x)); }
static double d_selu(double x) { return 1.0507009873554805 * (x > 0 ? 1 : 1.6732632423543772 * exp(x)); }
static double leaky(double x) { return x > 0 ? x : x / 128; }
static double d_leaky(double x) { return x > 0 ? 1 : 1.0 / 128; }
static double relu6(double x) { return fmin(relu(x), 6); }
static double d_relu6(double x) { return x > 0 && x < 6; }
static double hard_tanh(double x) { return fmax(-1, fmin(x, 1)); }
static double d_hard_tanh(double x) { return fabs(x) < 1; }
static double hard_sigmoid(double x) { return fmax(0, fmin(x / 6 + 0.5, 1)); }
static double d_hard_sigmoid(double x) { return fabs(x) < 3 ? 1.0 / 6 : 0; }
static double hard_swish(double x) { return x * hard_sigmoid(x); }
static double d_hard_swish(double x) { return x > 3 ? 1 : x < -3 ? 0 : x / 3 + 0.5; }
static double softsign(double x) { return x / (1 + fabs(x)); }
static double d_softsign(double x) { return 1 / (1 + fabs(x)) / (1 + fabs(x)); }

static tn_tensor build_elu(tn_tensor x) { return tn_nn_elu(x, 1); }
static tn_tensor build_leaky(tn_tensor x) { return tn_nn_leaky_relu(x, 1.0 / 128); }

/* Softmax and its family over rows of x and 0 are functions of x. */
static tn_tensor beside_zero(tn_tensor x) {
    int64_t n = tn_tensor_shape(x).dim[0];
    tn_tensor column = tn_reshape(x, TN_DIMS(n, 1)), zero = tn_full(x.graph, tn_tensor_dtype(x), TN_DIMS(n, 1), 0);
    return tn_concat((const tn_tensor[]){ column, zero }, 2, 1);
}
static tn_tensor first_of(tn_tensor rows) {
    int64_t n = tn_tensor_shape(rows).dim[0];
    return tn_reshape(tn_slice(rows, (const int64_t[]){ 0, 0 }, (const int64_t[]){ n, 1 }, NULL, 2), TN_DIMS(n));
}
static tn_tensor build_softmax(tn_tensor x) { return first_of(tn_nn_softmax(beside_zero(x), 1)); }
static tn_tensor build_log_softmax(tn_tensor x) { return first_of(tn_nn_log_softmax(beside_zero(x), 1)); }
static tn_tensor build_logsumexp(tn_tensor x) { return tn_nn_logsumexp(beside_zero(x), 1, 0); }

/* Losses: their slope alone, times the number of elements. */
static tn_tensor build_cross_entropy(tn_tensor x) {
    return tn_nn_cross_entropy(beside_zero(x), tn_full(x.graph, TN_I32, tn_tensor_shape(x), 1));
}
static tn_tensor like(tn_tensor x, double value) { return tn_full(x.graph, tn_tensor_dtype(x), tn_tensor_shape(x), value); }
static tn_tensor build_bce0(tn_tensor x) { return tn_nn_bce_with_logits(x, like(x, 0)); }
static tn_tensor build_bce(tn_tensor x) { return tn_nn_bce_with_logits(x, like(x, 0.25)); }
static tn_tensor build_bce1(tn_tensor x) { return tn_nn_bce_with_logits(x, like(x, 1)); }
static tn_tensor build_huber(tn_tensor x) { return tn_nn_huber(x, like(x, 0), 1); }
static tn_tensor build_l1(tn_tensor x) { return tn_nn_l1(x, like(x, 0)); }
static double d_bce(double x) { return sigmoid(x) - 0.25; }
static double d_bce1(double x) { return -sigmoid(-x); }
static double d_l1(double x) { return (x > 0) - (x < 0); }

typedef struct function {
    const char *name;
    tn_tensor (*build)(tn_tensor x);
    double (*value)(double x), (*slope)(double x); /* value NULL: a loss */
    bool ends; /* right at infinities, too; the others are inf * 0 or inf - inf at one of them, as everywhere */
    int ulps;
    double cancels; /* up to there it is a difference of numbers up to 0.5 (softsign: beyond it of 1 / |x|) */
    double near;    /* absolute error near 1, in units of 2^-24: what 1 + erf and 1 - O lose of a small result */
    double kink;    /* where a rounded number may be on the other side */
} function;
static const function functions[] = {
    { "relu", (tn_relu), relu, d_relu, true, 2, 0, 0, 0 },
    { "sigmoid", (tn_sigmoid), sigmoid, d_sigmoid, true, 2, 0, 2, 0 },
    { "tanh", (tn_tanh), tanh, d_tanh, true, 2, 0, 2, 0 },
    { "softplus", (tn_softplus), softplus, sigmoid, true, 2, 0, 2, 0 },
    { "log_sigmoid", tn_nn_log_sigmoid, log_sigmoid, d_log_sigmoid, true, 2, 0, 2, 0 },
    { "silu", tn_nn_silu, silu, d_silu, false, 2, 0, 2, 0 },
    { "elu", build_elu, elu, d_elu, true, 2, 0, 2, 0 },
    { "selu", tn_nn_selu, selu, d_selu, true, 3, 0, 2, 0 },
    { "leaky_relu", build_leaky, leaky, d_leaky, true, 2, 0, 0, 0 },
    { "relu6", tn_nn_relu6, relu6, d_relu6, true, 0, 0, 0, 0 },
    { "hard_tanh", tn_nn_hard_tanh, hard_tanh, d_hard_tanh, true, 0, 0, 0, 0 },
    { "hard_sigmoid", tn_nn_hard_sigmoid, hard_sigmoid, d_hard_sigmoid, true, 2, 4, 0, 3 },
    { "hard_swish", tn_nn_hard_swish, hard_swish, d_hard_swish, false, 3, 4, 0, 3 },
    { "softsign", tn_nn_softsign, softsign, d_softsign, false, 3, 4, 0, 0 },
    { "gelu", tn_nn_gelu, gelu, d_gelu, false, 2, 4, 4, 0 },
    { "gelu_tanh", tn_nn_gelu_tanh, gelu_tanh, d_gelu_tanh, false, 4, 4, 4, 0 },
    { "mish", tn_nn_mish, mish, d_mish, false, 2, 0, 4, 0 },
    { "softmax", build_softmax, sigmoid, d_sigmoid, false, 3, 16, 2, 0 },
    { "log_softmax", build_log_softmax, log_sigmoid, d_log_sigmoid, false, 3, 16, 2, 0 },
    { "logsumexp", build_logsumexp, softplus, sigmoid, false, 3, 16, 2, 0 },
    { "cross_entropy", build_cross_entropy, NULL, sigmoid, false, 3, 0, 2, 0 },
    { "bce_with_logits of 0", build_bce0, NULL, sigmoid, false, 3, 0, 2, 0 },
    { "bce_with_logits of 1/4", build_bce, NULL, d_bce, false, 3, 4, 2, 0 },
    { "bce_with_logits of 1", build_bce1, NULL, d_bce1, false, 3, 0, 2, 0 },
    { "huber", build_huber, NULL, hard_tanh, false, 3, 0, 0, 0 },
    { "l1", build_l1, NULL, d_l1, true, 2, 0, 0, 0 },
};

static double ulp_of(tn_dtype t, double want) {
    int e = 0, digits = t == TN_F32 ? 24 : t == TN_F16 ? 11 : 8, least = t == TN_F32 ? -149 : t == TN_F16 ? -24 : -133;
    frexp(want, &e);
    return ldexp(1, e - digits < least ? least : e - digits);
}

static int check(const function *f, tn_dtype t, const char *what, double (*ref)(double), const void *x, const void *got, int n,
                 double scale) {
    int bad = 0;
    for (int i = 0; i < n; i++) {
        double v = dtype_load(t, x, i), want = ref(v) * scale, g = dtype_load(t, got, i), a = fabs(v);
        if ((!f->ends && isinf(v)) || (f->kink && fabs(a - f->kink) < 0.05)) continue;
        if (isnan(v) ? isnan(g) || f->slope == ref : g == want) continue;
        double largest = t == TN_F32 ? 0x1.fffffep127 : t == TN_F16 ? 65504 : 0x1.fep127;
        if (isinf(g) && fabs(want) >= largest && signbit(g) == signbit(want)) continue;
        double size = a < f->cancels ? 0.5 : ref == d_softsign ? 1 / a : 0;
        double bound =
            f->ulps * ulp_of(t, fmax(fabs(want), size)) + f->near * 0x1p-24 * (f->ends ? 1 : fmax(1, fmin(a, 16))) + 0x1p-126;
        if (fabs(g - want) <= bound) continue;
        if (!bad++) print_message("%s of %s: %s at %.9g is %.9g, not %.9g\n", f->name, tn_dtype_name(t), what, v, g, want);
    }
    return bad;
}

/* A loss is a mean, whose gradient is multiplied by half the number of elements: all of it is no number of f16. */
static int check_function(const function *f, tn_dtype t, const void *x, int n) {
    static char y[4 * ALL], d[4 * ALL];
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, f->name);
    tn_tensor in = tn_input(g, "x", t, TN_DIMS(n)), out = f->build(in), slope;
    if (f->value) tn_output(out, "y");
    tn_tensor sum = f->value ? tn_sum(tn_cast(out, TN_F32), TN_ALL_AXES, 0) : tn_mul_scalar(out, n / 2);
    if (tn_grad(sum, &in, 1, &slope)) fail_msg("%s: %s", f->name, tn_ctx_error(ctx));
    tn_output(slope, "d");
    tn_program *p;
    tn_session *s;
    const tn_binding all[] = { { "x", (void *)(uintptr_t)x }, { "d", d }, { "y", y } };
    if (tn_compile(g, NULL, &p) || tn_session_new(p, &s) || tn_run(s, all, f->value ? 3 : 2))
        fail_msg("%s: %s", f->name, tn_ctx_error(ctx));
    int bad = f->value ? check(f, t, "the value", f->value, x, y, n, 1) : 0;
    bad += check(f, t, "the slope", f->slope, x, d, n, f->value ? 1 : 0.5);
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
    return bad;
}

static void test_functions(void **state) {
    (void)state;
    static uint16_t x[ALL];
    int bad = 0;
    for (int i = 0; i < ALL; i++) x[i] = (uint16_t)i;
    for (size_t k = 0; k < COUNT_OF(functions); k++)
        for (tn_dtype t = TN_F16; t <= TN_BF16; t++) bad += check_function(&functions[k], t, x, ALL);
    assert_int_equal(bad, 0);
}

/* Four numbers between powers of two that follow each other, of both signs. */
static void test_functions_of_f32(void **state) {
    (void)state;
    static float x[4096];
    int n = 0, bad = 0;
    for (int e = -149; e < 128; e++)
        for (int k = 0; k < 8; k++) x[n++] = (k % 2 ? -1 : 1) * ldexpf(1 + 0.25f * (float)(k / 2), e);
    for (; n < 4096; n++) x[n] = n % 2 ? INFINITY : -INFINITY;
    for (size_t k = 0; k < COUNT_OF(functions); k++) bad += check_function(&functions[k], TN_F32, x, n);
    assert_int_equal(bad, 0);
}

/* ---- rows with infinities and NaN, as PyTorch has them ---- */

enum { CHOICES = 6, ROWS = CHOICES * CHOICES * CHOICES, WIDEST = 40 };

/* In double, straight from the definitions: the greatest number is subtracted, and only a logsumexp asks whether it is finite.
 */
typedef struct expected {
    double softmax[WIDEST], log_softmax[WIDEST], logsumexp;
    double d_softmax[WIDEST], d_log_softmax[WIDEST], d_logsumexp[WIDEST];
} expected;

static double weight(int i) { return i % 3 == 0 ? 1 : i % 3 == 1 ? -2 : 0.5; }

static void expect_row(const double *x, int n, expected *out) {
    double m = -INFINITY, sum = 0, dot = 0, weights = 0;
    for (int i = 0; i < n; i++) m = isnan(m) || isnan(x[i]) ? NAN : fmax(m, x[i]);
    for (int i = 0; i < n; i++) sum += exp(x[i] - m);
    for (int i = 0; i < n; i++) {
        out->softmax[i] = exp(x[i] - m) / sum;
        out->log_softmax[i] = x[i] - m - log(sum);
        dot += weight(i) * out->softmax[i], weights += weight(i);
    }
    for (int i = 0; i < n; i++) {
        out->d_softmax[i] = out->softmax[i] * (weight(i) - dot);
        out->d_log_softmax[i] = weight(i) - exp(out->log_softmax[i]) * weights;
    }
    out->logsumexp = isinf(m) ? m : m + log(sum);
    for (int i = 0; i < n; i++) out->d_logsumexp[i] = isinf(m) ? exp(x[i] - m) : out->softmax[i];
}

static double eps_of(tn_dtype t) { return t == TN_F64 ? 0x1p-52 : t == TN_F32 ? 0x1p-23 : t == TN_F16 ? 0x1p-10 : 0x1p-7; }

static int compare_row(const char *what, tn_dtype t, const double *x, const void *got, int at, const double *want, int n) {
    for (int i = 0; i < n; i++) {
        double g = dtype_load(t, got, at + i);
        if (isnan(want[i]) ? isnan(g) : g == want[i] || fabs(g - want[i]) <= 8 * eps_of(t) * fmax(1, fabs(want[i]))) continue;
        print_message("%s of %s: [%g, %g, %g] gives %g at %d, not %g\n", what, tn_dtype_name(t), x[0], x[1], x[2], g, i,
                      want[i]);
        return 1;
    }
    return 0;
}

static tn_tensor weighted(tn_tensor y, tn_tensor w) { return tn_sum(tn_mul(y, w), TN_ALL_AXES, 0); }

static int check_rows(tn_dtype t, int width) {
    static const char *const names[] = { "softmax", "log_softmax", "logsumexp" }, *const slope_names[] = {
        "the slope of softmax", "the slope of log_softmax", "the slope of logsumexp"
    };
    static double x[ROWS][WIDEST], w[WIDEST];
    static char in[ROWS * WIDEST * 8], ws[WIDEST * 8], y[3][ROWS * WIDEST * 8], d[3][ROWS * WIDEST * 8];
    const double choice[CHOICES] = { INFINITY, -INFINITY, NAN, 1, -2, 60000 };
    int bad = 0;
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < width; k++) { /* a row's numbers are the first three, and nothing */
            x[i][k] = k == 0   ? choice[i % CHOICES]
                      : k == 1 ? choice[i / CHOICES % CHOICES]
                      : k == 2 ? choice[i / CHOICES / CHOICES]
                               : -INFINITY;
            dtype_store(t, in, i * width + k, x[i][k]);
            x[i][k] = dtype_load(t, in, i * width + k);
        }
    for (int k = 0; k < width; k++) w[k] = weight(k), dtype_store(t, ws, k, w[k]);
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "rows");
    tn_tensor rows = tn_input(g, "x", t, TN_DIMS(ROWS, width)), weights = tn_input(g, "w", t, TN_DIMS(1, width));
    tn_tensor results[] = { tn_nn_softmax(rows, 1), tn_nn_log_softmax(rows, 1), tn_nn_logsumexp(rows, -1, 0) };
    tn_binding all[8] = { { "x", in }, { "w", ws } };
    static const char *const outs[] = { "y0", "y1", "y2" }, *const slopes[] = { "d0", "d1", "d2" };
    for (int k = 0; k < 3; k++) {
        tn_tensor slope, loss = k < 2 ? weighted(results[k], weights) : tn_sum(results[k], TN_ALL_AXES, 0);
        if (tn_grad(loss, &rows, 1, &slope)) fail_msg("%s", tn_ctx_error(ctx));
        tn_output(results[k], outs[k]), tn_output(slope, slopes[k]);
        all[2 + k] = (tn_binding){ outs[k], y[k] }, all[5 + k] = (tn_binding){ slopes[k], d[k] };
    }
    tn_program *p;
    tn_session *s;
    if (tn_compile(g, NULL, &p) || tn_session_new(p, &s) || tn_run(s, all, 8)) fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 0; i < ROWS; i++) {
        expected e;
        expect_row(x[i], width, &e);
        const double *value[] = { e.softmax, e.log_softmax, &e.logsumexp },
                     *slope[] = { e.d_softmax, e.d_log_softmax, e.d_logsumexp };
        for (int k = 0; k < 3; k++) {
            int n = k < 2 ? width : 1;
            bad += compare_row(names[k], t, x[i], y[k], i * n, value[k], n);
            bad += compare_row(slope_names[k], t, x[i], d[k], i * width, slope[k], width);
        }
    }
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
    return bad;
}

/* A row at a time: its loss is the mean over one row. */
static int check_losses(tn_dtype t, int width) {
    const double choice[CHOICES] = { INFINITY, -INFINITY, NAN, 1, -2, 60000 };
    char in[WIDEST * 8], y[8], d[WIDEST * 8];
    int32_t label;
    int bad = 0;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "loss");
    tn_tensor row = tn_input(g, "x", t, TN_DIMS(1, width));
    tn_tensor loss = tn_nn_cross_entropy(row, tn_input(g, "label", TN_I32, TN_DIMS(1))), slope;
    if (tn_grad(loss, &row, 1, &slope)) fail_msg("%s", tn_ctx_error(ctx));
    tn_output(loss, "y"), tn_output(slope, "d");
    tn_program *p;
    tn_session *s;
    if (tn_compile(g, NULL, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 0; i < 3 * ROWS; i++) {
        double x[WIDEST], want[WIDEST];
        const int pick[3] = { i % CHOICES, i / CHOICES % CHOICES, i / CHOICES / CHOICES % CHOICES };
        for (int k = 0; k < width; k++) {
            dtype_store(t, in, k, k < 3 ? choice[pick[k]] : -INFINITY);
            x[k] = dtype_load(t, in, k);
        }
        label = i / ROWS;
        if (tn_run(s, TN_BIND({ "x", in }, { "label", &label }, { "y", y }, { "d", d }))) fail_msg("%s", tn_ctx_error(ctx));
        expected e;
        expect_row(x, width, &e);
        double value = -e.log_softmax[label];
        for (int k = 0; k < width; k++) want[k] = exp(e.log_softmax[k]) - (k == label);
        bad += compare_row("cross_entropy", t, x, y, 0, &value, 1);
        bad += compare_row("the slope of cross_entropy", t, x, d, 0, want, width);
    }
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
    return bad;
}

static void test_rows_with_infinities(void **state) {
    (void)state;
    int bad = 0;
    for (tn_dtype t = TN_F32; t <= TN_BF16; t++)
        for (int wide = 0; wide < 2; wide++) bad += check_rows(t, wide ? WIDEST : 3) + check_losses(t, wide ? WIDEST : 3);
    assert_int_equal(bad, 0);
}

static void expect_within(double got, double want, double error) {
    if (!(fabs(got - want) <= error)) fail_msg("%.9g, not %.9g", got, want);
}

/* A row of more elements than the largest f16. */
static void test_rows_of_many(void **state) {
    (void)state;
    enum { MANY = 131072 };
    static uint16_t x[MANY], y[MANY], d[MANY];
    for (tn_dtype t = TN_F16; t <= TN_BF16; t++) {
        tn_ctx *ctx = test_ctx();
        tn_graph *g = tn_graph_new(ctx, "many");
        tn_tensor row = tn_input(g, "x", t, TN_DIMS(1, MANY)), slope, label = tn_full(g, TN_I32, TN_DIMS(1), 5);
        tn_tensor loss = tn_nn_cross_entropy(row, label);
        if (tn_grad(loss, &row, 1, &slope)) fail_msg("%s", tn_ctx_error(ctx));
        tn_output(loss, "loss"), tn_output(slope, "d"), tn_output(tn_nn_softmax(row, 1), "y");
        tn_output(tn_nn_logsumexp(row, 1, 0), "lse"), tn_output(tn_nn_log_softmax(row, 1), "log");
        tn_program *p;
        tn_session *s;
        static uint16_t loss_bits, lse, logs[MANY];
        if (tn_compile(g, NULL, &p) || tn_session_new(p, &s) ||
            tn_run(s, TN_BIND({ "x", x }, { "loss", &loss_bits }, { "d", d }, { "y", y }, { "lse", &lse }, { "log", logs })))
            fail_msg("%s", tn_ctx_error(ctx));
        double want = log(MANY), ulp = 16 * eps_of(t) / 2;
        expect_within(dtype_load(t, &loss_bits, 0), want, ulp);
        expect_within(dtype_load(t, &lse, 0), want, ulp);
        expect_within(dtype_load(t, logs, MANY - 1), -want, ulp);
        expect_within(dtype_load(t, y, MANY - 1), 1.0 / MANY, 0x1p-24);
        expect_within(dtype_load(t, d, MANY - 1), 1.0 / MANY, 0x1p-24);
        expect_within(dtype_load(t, d, 5), -1, eps_of(t));
        tn_session_free(s);
        tn_program_free(p);
        tn_graph_free(g);
        tn_ctx_free(ctx);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_functions), cmocka_unit_test(test_functions_of_f32),
                                        cmocka_unit_test(test_rows_with_infinities), cmocka_unit_test(test_rows_of_many) };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
