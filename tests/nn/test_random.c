/* test_random.c - distributions of tenon_nn.h: means, variances and shares of compiled programs against closed forms, within
 * six standard errors of samples that are the same in every run; what must hold of each sample holds of all; other counters and
 * streams give other samples. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"

#include "tenon/tenon_nn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1 << 16 };

typedef struct world {
    tn_ctx *ctx;
    tn_graph *g;
    tn_tensor counter;
} world;
static world world_new(void) {
    world w = { .ctx = test_ctx() };
    w.g = tn_graph_new(w.ctx, "random");
    w.counter = tn_input(w.g, "counter", TN_I64, TN_SCALAR);
    return w;
}

/* The values of x, compiled, for a counter; freed by the caller. */
static void *sample_of(world *w, tn_tensor x, int64_t counter) {
    tn_program *p;
    tn_session *s;
    void *data = calloc(tn_tensor_bytes(x) + 1, 1);
    tn_output(x, "x");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.device = test_device();
    if (tn_compile(w->g, &o, &p)) fail_msg("%s", tn_ctx_error(w->ctx));
    if (tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(w->ctx));
    if (tn_run(s, TN_BIND({ "counter", &counter }, { "x", data }))) fail_msg("%s", tn_ctx_error(w->ctx));
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(w->g);
    tn_ctx_free(w->ctx);
    return data;
}

/* Mean and variance of n values; fourth: the fourth central moment, for the error of the variance. */
static void expect_moments(const char *what, const float *x, int64_t n, double mean, double variance, double fourth) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i];
    for (int64_t i = 0; i < n; i++) squares += pow((double)x[i] - mean, 2);
    sum /= (double)n, squares /= (double)n;
    if (!(fabs(sum - mean) <= 6 * sqrt(variance / (double)n) + 1e-7 * fabs(mean)))
        fail_msg("%s: mean %g, not %g", what, sum, mean);
    double error = 6 * sqrt((fourth - variance * variance) / (double)n);
    if (!(fabs(squares - variance) <= error)) fail_msg("%s: variance %g, not %g", what, squares, variance);
}
static void expect_share(const char *what, int64_t hits, int64_t n, double p) {
    double got = (double)hits / (double)n;
    if (!(fabs(got - p) <= 6 * sqrt(p * (1 - p) / (double)n) + 1e-6)) fail_msg("%s: share %g, not %g", what, got, p);
}

static void test_exponential(void **state) {
    (void)state;
    world w = world_new();
    float *x = sample_of(&w, tn_nn_random_exponential(w.counter, 3, TN_DIMS(N)), 5);
    int64_t above = 0;
    for (int i = 0; i < N; i++) assert_true(x[i] >= 0 && isfinite(x[i])), above += x[i] > 2;
    expect_moments("exponential", x, N, 1, 1, 9);
    expect_share("exponential", above, N, exp(-2));
    free(x);
    w = world_new();
    x = sample_of(&w, tn_nn_random_gumbel(w.counter, 3, TN_DIMS(N)), 5);
    double v = M_PI * M_PI / 6;
    for (int i = 0; i < N; i++) assert_true(isfinite(x[i]));
    expect_moments("gumbel", x, N, 0.5772156649015329, v, 5.4 * v * v);
    free(x);
}

static double density(double x) { return exp(-x * x / 2) / sqrt(2 * M_PI); }
static double below(double x) { return erfc(-x / sqrt(2)) / 2; }

static void test_truncated_normal(void **state) {
    (void)state;
    static const double bounds[][2] = {
        { -2, 2 }, { -1, 3 }, { 0.5, 0.75 }, { 2, 4 }, { -INFINITY, 0 }, { -INFINITY, INFINITY }
    };
    for (int k = 0; k < 6; k++) {
        world w = world_new();
        double lo = bounds[k][0], hi = bounds[k][1], z = below(hi) - below(lo);
        float *x = sample_of(&w, tn_nn_random_truncated_normal(w.counter, 8, TN_DIMS(N), lo, hi), 2);
        for (int i = 0; i < N; i++) assert_true((double)x[i] >= lo && (double)x[i] <= hi);
        double a = isinf(lo) ? 0 : lo * density(lo), b = isinf(hi) ? 0 : hi * density(hi),
               mean = (density(lo) - density(hi)) / z;
        double variance = 1 + (a - b) / z - mean * mean;
        expect_moments("truncated normal", x, N, mean, variance, 3 * variance * variance + variance * variance);
        free(x);
    }
}

static void test_categorical(void **state) {
    (void)state;
    static const float logits[2][4] = { { 0, 1, -1, 0.5f }, { 3, -INFINITY, 3, 0 } };
    for (int replace = 0; replace < 2; replace++) {
        world w = world_new();
        tn_tensor x = tn_expand(tn_const(w.g, TN_F32, TN_DIMS(1, 2, 4), logits), TN_DIMS(N / 16, 2, 4));
        int64_t *y = sample_of(&w, tn_nn_random_categorical(x, 3, replace, w.counter, 11), 1), first[2][4] = { { 0 } };
        for (int i = 0; i < N / 16 * 2; i++) {
            const int64_t *draw = y + 3 * i;
            for (int k = 0; k < 3; k++) {
                assert_in_range(draw[k], 0, 3);
                if (replace || k == 0) first[i % 2][draw[k]]++;
                for (int j = 0; j < k && !replace; j++) assert_int_not_equal(draw[j], draw[k]);
            }
        }
        int64_t n = N / 16 * (replace ? 3 : 1);
        for (int r = 0; r < 2; r++) {
            double sum = 0;
            for (int c = 0; c < 4; c++) sum += exp((double)logits[r][c]);
            for (int c = 0; c < 4; c++) expect_share("categorical", first[r][c], n, exp((double)logits[r][c]) / sum);
        }
        assert_int_equal(first[1][1], 0);
        free(y);
    }
}

static int by_value(const void *x, const void *y) { return *(const int64_t *)x < *(const int64_t *)y ? -1 : 1; }
static void test_permutation(void **state) {
    (void)state;
    enum { M = 3000 };
    int64_t *before = NULL;
    for (int64_t counter = 0; counter < 3; counter++) {
        world w = world_new();
        int64_t *y = sample_of(&w, tn_nn_random_permutation(w.counter, 4, M), counter), kept = 0, same = 0;
        double along = 0;
        for (int i = 0; i < M; i++) kept += y[i] == i, same += before && before[i] == y[i], along += (double)i * (double)y[i];
        assert_true(kept < 12 && same < 12); /* one each, on average */
        double mean = (M - 1) / 2.0, spread = (M * (double)M - 1) / 12;
        assert_true(fabs(along / M - mean * mean) < 6 * spread / sqrt(M));
        free(before);
        before = malloc(sizeof *y * M);
        memcpy(before, y, sizeof *y * M);
        qsort(y, M, sizeof *y, by_value);
        for (int i = 0; i < M; i++) assert_int_equal(y[i], i);
        free(y);
    }
    free(before);
}

static void test_gamma(void **state) {
    (void)state;
    static const double shapes[] = { 0.05, 0.5, 1, 2.5, 40, 1e5 };
    for (int k = 0; k < 6; k++) {
        world w = world_new();
        double a = shapes[k];
        float *x = sample_of(&w, tn_nn_random_gamma(tn_full(w.g, TN_F32, TN_DIMS(N), a), w.counter, 21), 9);
        for (int i = 0; i < N; i++) assert_true(x[i] >= 0 && isfinite(x[i]));
        expect_moments("gamma", x, N, (double)(float)a, a, 3 * a * a + 6 * a);
        free(x);
    }
    world w = world_new(); /* shape 1 is the exponential distribution */
    float *x = sample_of(&w, tn_nn_random_gamma(tn_full(w.g, TN_F32, TN_DIMS(N), 1), w.counter, 22), 9);
    int64_t above = 0, above_3 = 0;
    for (int i = 0; i < N; i++) above += x[i] > 1, above_3 += x[i] > 3;
    expect_share("gamma", above, N, exp(-1));
    expect_share("gamma", above_3, N, exp(-3));
    free(x);
}

static void test_beta(void **state) {
    (void)state;
    static const double shapes[][2] = { { 2, 3 }, { 0.5, 0.5 }, { 1, 1 }, { 30, 2 }, { 0.001, 0.003 } };
    for (int k = 0; k < 5; k++) {
        world w = world_new();
        double a = shapes[k][0], b = shapes[k][1], n = a + b, mean = a / n, v = a * b / (n * n * (n + 1));
        tn_tensor ta = tn_full(w.g, TN_F32, TN_DIMS(N / 256, 1), a), tb = tn_full(w.g, TN_F32, TN_DIMS(256), b);
        float *x = sample_of(&w, tn_nn_random_beta(ta, tb, w.counter, 30), 4);
        double kurtosis = 6 * ((a - b) * (a - b) * (n + 1) - a * b * (n + 2)) / (a * b * (n + 2) * (n + 3));
        for (int i = 0; i < N; i++) assert_true(x[i] >= 0 && x[i] <= 1);
        expect_moments("beta", x, N, mean, v, v * v * (kurtosis + 3));
        free(x);
    }
}

static void test_poisson(void **state) {
    (void)state;
    static const double rates[] = { 0, 0.3, 4, 9.5, 10, 14, 300, 20000 };
    for (int k = 0; k < 8; k++) {
        world w = world_new();
        double r = rates[k];
        float *x = sample_of(&w, tn_nn_random_poisson(tn_full(w.g, TN_F32, TN_DIMS(N), r), w.counter, 40), 6);
        for (int i = 0; i < N; i++) assert_true(x[i] >= 0 && x[i] == rintf(x[i]));
        expect_moments("poisson", x, N, (double)(float)r, r, 3 * r * r + r);
        for (int64_t value = 0; value < 40 && r < 20; value++) {
            int64_t hits = 0;
            for (int i = 0; i < N; i++) hits += x[i] == (float)value;
            expect_share("poisson", hits, N, r > 0 ? exp((double)value * log(r) - r - lgamma((double)value + 1)) : value == 0);
        }
        free(x);
    }
}

/* Equal arguments give equal samples, others others; halves and f64 as parameters; sizes of 0; what is wrong. */
static float of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A value between the neighbours lo and lo + 2^16 of bf16, by its bits: the upper one comes as often as the value is near it.
 */
static void test_round_stochastic(void **state) {
    (void)state;
    static const uint32_t bits[] = {
        0x3f800000, 0x3f800001, 0x3f804000, 0x3f80ffff, 0x3fffc000, /* 1; between 1 and its neighbour; up to 2 */
        0xbf812345, 0xc2f78000, 0x00001234, 0x80008000,             /* below 0; denormal */
        0x7f7f8000,                                                 /* the largest finite one, or infinity */
        0x7f800000, 0xff800000, 0x00000000, 0x80000000,             /* infinities, zeros */
    };
    for (int i = 0; i < (int)(sizeof bits / sizeof *bits); i++) {
        world w = world_new();
        tn_tensor in = tn_cast(tn_full(w.g, TN_I32, TN_DIMS(N), (double)(int32_t)bits[i]), TN_I32);
        tn_tensor y = tn_nn_round_stochastic(tn_bitcast(in, TN_F32), w.counter, 60 + i);
        if (tn_tensor_dtype(y) != TN_BF16) fail_msg("%s", tn_ctx_error(w.ctx));
        uint16_t *x = sample_of(&w, y, 3);
        uint32_t lo = bits[i] >> 16, part = bits[i] & 0xffff;
        int64_t upper = 0;
        for (int64_t k = 0; k < N; k++) {
            if (x[k] != lo && (!part || x[k] != lo + 1)) fail_msg("%08x gave %04x", bits[i], x[k]);
            upper += x[k] != lo;
        }
        expect_share("round_stochastic", upper, N, part / 65536.0);
        free(x);
    }
    world w = world_new();
    uint16_t *x = sample_of(&w, tn_nn_round_stochastic(tn_full(w.g, TN_F32, TN_DIMS(N), NAN), w.counter, 1), 3);
    for (int64_t k = 0; k < N; k++) assert_true(isnan((double)of_bits((uint32_t)x[k] << 16)));
    free(x);
    w = world_new();
    assert_int_equal(tn_nn_round_stochastic(tn_full(w.g, TN_F64, TN_DIMS(3), 1), w.counter, 1).id, 0);
    assert_non_null(strstr(tn_ctx_error(w.ctx), "expected f32"));
    tn_graph_free(w.g), tn_ctx_free(w.ctx);
}

static void test_arguments(void **state) {
    (void)state;
    float *x[4];
    for (int k = 0; k < 4; k++) {
        world w = world_new();
        tn_tensor a = tn_full(w.g, k ? TN_F64 : TN_F16, TN_DIMS(64), 2);
        x[k] = sample_of(&w, tn_nn_random_gamma(a, w.counter, k == 2 ? 2 : 1), k == 3 ? 8 : 7);
    }
    assert_memory_equal(x[0], x[1], 64 * sizeof(float));
    assert_memory_not_equal(x[1], x[2], 64 * sizeof(float));
    assert_memory_not_equal(x[1], x[3], 64 * sizeof(float));
    for (int k = 0; k < 4; k++) free(x[k]);
    world w = world_new();
    assert_int_equal(tn_tensor_shape(tn_nn_random_poisson(tn_full(w.g, TN_F32, TN_DIMS(0, 3), 2), w.counter, 1)).dim[0], 0);
    assert_int_equal(tn_tensor_shape(tn_nn_random_permutation(w.counter, 1, 0)).dim[0], 0);
    assert_int_equal(tn_graph_status(w.g), TN_OK);
    tn_nn_random_categorical(tn_full(w.g, TN_F32, TN_DIMS(3), 1), 4, 0, w.counter, 1);
    assert_int_equal(tn_graph_status(w.g), TN_ERR_INVAL);
    assert_non_null(strstr(tn_ctx_error(w.ctx), "4 draws of 3 classes"));
    tn_graph_free(w.g);
    w.g = tn_graph_new(w.ctx, "w");
    w.counter = tn_input(w.g, "counter", TN_I64, TN_SCALAR);
    tn_nn_random_truncated_normal(w.counter, 1, TN_DIMS(3), 2, 2);
    assert_int_equal(tn_graph_status(w.g), TN_ERR_INVAL);
    tn_graph_free(w.g);
    tn_ctx_free(w.ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exponential), cmocka_unit_test(test_truncated_normal),
        cmocka_unit_test(test_categorical), cmocka_unit_test(test_permutation),
        cmocka_unit_test(test_gamma),       cmocka_unit_test(test_beta),
        cmocka_unit_test(test_poisson),     cmocka_unit_test(test_round_stochastic),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
