/* test_compose.c - builders that are a few ops (src/api/compose.c) and names (src/api/names.c): values of immediate graphs
 * against the C library and loops written here, shapes, gradients, states that are given again, scopes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"

#include "tenon/tenon_nn.h"

#include <math.h>

enum { MOST = 4096 };

typedef struct world {
    tn_ctx *ctx;
    tn_graph *g;
} world;
static world world_new(bool immediate) {
    world w = { .ctx = test_ctx() };
    w.g = immediate ? tn_graph_immediate(w.ctx, "now") : tn_graph_new(w.ctx, "later");
    assert_non_null(w.g);
    return w;
}
static void world_free(world *w) {
    if (tn_graph_status(w->g)) fail_msg("%s", tn_ctx_error(w->ctx));
    tn_graph_free(w->g);
    tn_ctx_free(w->ctx);
}

/* The elements of a tensor as doubles. */
static int64_t values(tn_tensor x, double *out) {
    static int64_t data[MOST];
    size_t bytes = tn_tensor_bytes(x);
    tn_dtype t = tn_tensor_dtype(x);
    assert_true(bytes <= sizeof data);
    if (!x.id || tn_tensor_read(x, data, bytes)) fail_msg("%s", tn_ctx_error(tn_graph_ctx(x.graph)));
    int64_t n = (int64_t)(bytes / tn_dtype_size(t));
    for (int64_t i = 0; i < n; i++) out[i] = dtype_is_float(t) ? dtype_load(t, data, i) : (double)dtype_load_int(t, data, i);
    return n;
}
/* Equal bits but for NaN, zeros of one sign for floats. */
static void expect(tn_tensor x, const double *want, int64_t n) {
    double got[MOST];
    assert_int_equal(values(x, got), n);
    for (int64_t i = 0; i < n; i++) {
        bool same = isnan(want[i]) ? isnan(got[i]) : got[i] == want[i];
        if (dtype_is_float(tn_tensor_dtype(x)) && want[i] == 0) same = same && !signbit(got[i]) == !signbit(want[i]);
        if (!same) fail_msg("element %d is %.17g, not %.17g", (int)i, got[i], want[i]);
    }
}
#define EXPECT(x, ...) expect(x, (const double[]){ __VA_ARGS__ }, (int64_t)(sizeof((double[]){ __VA_ARGS__ }) / sizeof(double)))
#define F64(g, ...) tn_const(g, TN_F64, TN_DIMS(sizeof((double[]){ __VA_ARGS__ }) / 8), (double[]){ __VA_ARGS__ })

static void test_scalars(void **state) {
    (void)state;
    world w = world_new(true);
    tn_tensor x = F64(w.g, -3, -0.0, 2.5, INFINITY), i = tn_const(w.g, TN_I32, TN_DIMS(3), (int32_t[]){ -7, 0, 9 });
    EXPECT(tn_sub_scalar(x, 1), -4, -1, 1.5, INFINITY);
    EXPECT(tn_div_scalar(x, -2), 1.5, 0, -1.25, -INFINITY);
    EXPECT(tn_pow_scalar(x, 2), 9, 0, 6.25, INFINITY);
    EXPECT(tn_max_scalar(x, 1), 1, 1, 2.5, INFINITY);
    EXPECT(tn_min_scalar(x, 1), -3, -0.0, 1, 1);
    EXPECT(tn_sub_scalar(i, 2), -9, -2, 7);
    EXPECT(tn_div_scalar(i, 2), -3, 0, 4);
    EXPECT(tn_max_scalar(i, 1), 1, 1, 9);
    EXPECT(tn_min_scalar(i, 1), -7, 0, 1);
    world_free(&w);
}

static void test_bounds(void **state) {
    (void)state;
    world w = world_new(true);
    tn_tensor x = F64(w.g, -INFINITY, -3, -1, -0.0, 0.5, 2, 7, INFINITY, NAN), d[1];
    EXPECT(tn_clamp(x, -1, 2), -1, -1, -1, -0.0, 0.5, 2, 2, 2, NAN);
    EXPECT(tn_clamp(x, -INFINITY, 2), -INFINITY, -3, -1, -0.0, 0.5, 2, 2, 2, NAN);
    EXPECT(tn_clamp(tn_const(w.g, TN_U8, TN_DIMS(3), (uint8_t[]){ 0, 7, 255 }), 3, 9), 3, 7, 9);
    assert_int_equal(tn_grad(tn_sum(tn_clamp(x, -1, 2), TN_ALL_AXES, 0), &x, 1, d), TN_OK);
    EXPECT(d[0], 0, 0, 1, 1, 1, 1, 0, 0, 1);
    world_free(&w);
}

static void test_rounding(void **state) {
    (void)state;
    world w = world_new(true);
    rng r = rng_make(5);
    double x[203], away[203], whole[203];
    for (int i = 0; i < 203; i++) {
        x[i] = i < 40 ? (i - 20) * 0.5 : rng_range(&r, -1, 1) * exp2((double)rng_between(&r, -4, 60));
        if (i == 40) x[i] = INFINITY;
        if (i == 41) x[i] = NAN;
        if (i == 42) x[i] = -0.0;
        if (i == 43) x[i] = 0.49999999999999994;
        away[i] = round(x[i]), whole[i] = trunc(x[i]);
    }
    tn_tensor t = tn_const(w.g, TN_F64, TN_DIMS(203), x);
    expect(tn_round_away(t), away, 203);
    expect(tn_trunc(t), whole, 203);
    for (int i = 0; i < 203; i++) x[i] = (float)x[i], away[i] = roundf((float)x[i]), whole[i] = truncf((float)x[i]);
    t = tn_cast(tn_const(w.g, TN_F64, TN_DIMS(203), x), TN_F32);
    expect(tn_round_away(t), away, 203);
    expect(tn_trunc(t), whole, 203);
    world_free(&w);
}

static int64_t wrap(tn_dtype t, int64_t v) {
    return t == TN_I8 ? (int8_t)v : t == TN_U8 ? (uint8_t)v : t == TN_I32 ? (int32_t)v : v;
}

/* All pairs of awkward and random integers, of each dtype. */
static void test_integer_division(void **state) {
    (void)state;
    static const tn_dtype types[] = { TN_I8, TN_U8, TN_I32, TN_I64 };
    world w = world_new(true);
    rng r = rng_make(6);
    for (int k = 0; k < 4; k++) {
        enum { N = 23 };
        int64_t v[N] = { 0, 1, -1, 2, -2, 7, -7, 127, -128, INT32_MAX, INT32_MIN, 3, -3 };
        char data[N * 8];
        double div[N * N], rest[N * N];
        tn_dtype t = types[k];
        for (int i = 0; i < N; i++) {
            if (i > 12) v[i] = rng_between(&r, -1000000, 1000000) >> rng_below(&r, 20);
            dtype_store_int(t, data, i, v[i] = wrap(t, v[i]));
        }
        for (int i = 0; i < N * N; i++) {
            int64_t x = v[i / N], y = v[i % N], q = y ? x / y : 0, m = y ? x % y : 0;
            rest[i] = (double)m;
            div[i] = (double)wrap(t, q - (m != 0 && (m < 0) != (y < 0)));
        }
        tn_tensor x = tn_const(w.g, t, TN_DIMS(N, 1), data), y = tn_const(w.g, t, TN_DIMS(N), data);
        expect(tn_floor_div(x, y), div, N * N);
        expect(tn_fmod(x, y), rest, N * N);
    }
    world_free(&w);
}

static void test_float_division(void **state) {
    (void)state;
    world w = world_new(true);
    rng r = rng_make(7);
    double x[300], y[300], rest[300], div[300];
    for (int i = 0; i < 300; i++) {
        x[i] = i % 3 ? rng_range(&r, -40, 40) : (double)rng_between(&r, -20, 20);
        y[i] = i % 3 ? rng_range(&r, 0.5, 4) * (i % 2 ? -1 : 1) : (double)rng_between(&r, 1, 7) * (i % 2 ? 1 : -1);
        rest[i] = fmod(x[i], y[i]);
        double down = rest[i] != 0 && (rest[i] < 0) != (y[i] < 0) ? rest[i] + y[i] : rest[i];
        div[i] = rint((x[i] - down) / y[i]);
    }
    x[0] = -0.0, y[0] = 3, rest[0] = -0.0, div[0] = 0;
    x[1] = 5, y[1] = INFINITY, rest[1] = 5, div[1] = 0;
    x[2] = INFINITY, y[2] = 2, rest[2] = NAN, div[2] = NAN;
    x[3] = 1, y[3] = 0, rest[3] = NAN, div[3] = INFINITY;
    tn_tensor tx = tn_const(w.g, TN_F64, TN_DIMS(300), x), ty = tn_const(w.g, TN_F64, TN_DIMS(300), y), d[2];
    expect(tn_fmod(tx, ty), rest, 300);
    double got[MOST];
    values(tn_floor_div(tx, ty), got);
    for (int i = 0; i < 300; i++)
        if (!(got[i] == div[i] || (isnan(got[i]) && isnan(div[i])))) fail_msg("%.17g // %.17g is %.17g", x[i], y[i], got[i]);
    tn_tensor p = F64(w.g, 7.5, -7.5), q = F64(w.g, 2, 2);
    assert_int_equal(tn_grad(tn_sum(tn_fmod(p, q), TN_ALL_AXES, 0), (tn_tensor[]){ p, q }, 2, d), TN_OK);
    EXPECT(d[0], 1, 1);
    EXPECT(d[1], -3, 3);
    world_free(&w);
}

static void test_classes(void **state) {
    (void)state;
    world w = world_new(true);
    for (int t = TN_F32; t <= TN_BF16; t++) {
        tn_tensor x = tn_cast(F64(w.g, NAN, INFINITY, -INFINITY, 0, -2, 1e-5), (tn_dtype)t);
        EXPECT(tn_is_nan(x), 1, 0, 0, 0, 0, 0);
        EXPECT(tn_is_inf(x), 0, 1, 1, 0, 0, 0);
        EXPECT(tn_is_finite(x), 0, 0, 0, 1, 1, 1);
    }
    tn_tensor i = tn_const(w.g, TN_I64, TN_DIMS(2), (int64_t[]){ INT64_MIN, 3 });
    EXPECT(tn_is_nan(i), 0, 0);
    EXPECT(tn_is_inf(i), 0, 0);
    EXPECT(tn_is_finite(i), 1, 1);
    world_free(&w);
}

static void test_triangles(void **state) {
    (void)state;
    static const int64_t diagonals[] = { 0, 1, -1, 3, -5, 100, INT64_MAX, INT64_MIN };
    static const int64_t sizes[][2] = { { 4, 4 }, { 3, 5 }, { 5, 3 }, { 1, 7 }, { 2, 0 } };
    world w = world_new(true);
    for (int s = 0; s < 5; s++)
        for (int k = 0; k < 8; k++) {
            int64_t rows = sizes[s][0], columns = sizes[s][1], n = 2 * rows * columns;
            tn_tensor x = tn_add_scalar(tn_iota(w.g, TN_I32, TN_DIMS(2, rows, columns), 2), 1);
            double lower[70], upper[70];
            for (int64_t e = 0; e < n; e++) {
                int64_t j = e % columns, i = e / columns % rows;
                lower[e] = j - i <= diagonals[k] ? (double)(j + 1) : 0, upper[e] = j - i >= diagonals[k] ? (double)(j + 1) : 0;
            }
            expect(tn_tril(x, diagonals[k]), lower, n);
            expect(tn_triu(x, diagonals[k]), upper, n);
        }
    EXPECT(tn_triu(tn_full(w.g, TN_BOOL, TN_DIMS(2, 2), 1), 1), 0, 1, 0, 0);
    world_free(&w);
}

static void test_one_hot(void **state) {
    (void)state;
    world w = world_new(true);
    tn_tensor i = tn_const(w.g, TN_I32, TN_DIMS(2, 2), (int32_t[]){ 0, 2, -1, 3 });
    EXPECT(tn_one_hot(i, 3, TN_F16), 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0);
    EXPECT(tn_one_hot(tn_const(w.g, TN_U8, TN_DIMS(1), (uint8_t[]){ 1 }), 3, TN_BOOL), 0, 1, 0);
    assert_int_equal(tn_tensor_shape(tn_one_hot(i, 0, TN_I8)).dim[2], 0);
    world_free(&w);
}

static void expect_shape(tn_tensor x, tn_shape s) {
    tn_shape got = tn_tensor_shape(x);
    assert_int_equal(got.rank, s.rank);
    for (int i = 0; i < s.rank; i++) assert_int_equal(got.dim[i], s.dim[i]);
}
static void test_shapes(void **state) {
    (void)state;
    world w = world_new(true);
    tn_tensor x = tn_reshape(tn_iota(w.g, TN_F32, TN_DIMS(6), 0), TN_DIMS(1, 2, 1, 3));
    expect_shape(tn_squeeze(x, TN_ALL_AXES), TN_DIMS(2, 3));
    expect_shape(tn_squeeze(x, TN_INTS(-2)), TN_DIMS(1, 2, 3));
    expect_shape(tn_squeeze(x, TN_INTS(0, 2)), TN_DIMS(2, 3));
    expect_shape(tn_unsqueeze(x, TN_INTS(-1, 0)), TN_DIMS(1, 1, 2, 1, 3, 1));
    expect_shape(tn_unsqueeze(tn_full(w.g, TN_I8, TN_SCALAR, 1), TN_INTS(0)), TN_DIMS(1));
    EXPECT(tn_slice_axis(x, -1, 1, TN_END, 1), 1, 2, 4, 5);
    EXPECT(tn_slice_axis(x, 1, 1, 2, 1), 3, 4, 5);
    EXPECT(tn_slice_axis(x, 3, 0, -1, 2), 0, 3);
    expect_shape(tn_slice_axis(x, 3, 2, 2, 1), TN_DIMS(1, 2, 1, 0));
    world_free(&w);
    w = world_new(false); /* symbolic sizes */
    int64_t n = tn_dim(w.g, "n", 4, 64, 1);
    x = tn_input(w.g, "x", TN_F32, TN_DIMS(n, 1, 5));
    expect_shape(tn_squeeze(x, TN_ALL_AXES), TN_DIMS(n, 5));
    expect_shape(tn_slice_axis(x, 0, 1, TN_END, 1), TN_DIMS(tn_dim_add(w.g, n, -1), 1, 5));
    world_free(&w);
}

/* ---- bits ---- */

static void test_bits(void **state) {
    (void)state;
    static const tn_dtype types[] = { TN_I8, TN_U8, TN_I32, TN_I64 };
    world w = world_new(true);
    rng r = rng_make(8);
    for (int k = 0; k < 4; k++) {
        enum { N = 150 };
        tn_dtype t = types[k];
        int bits = 8 * (int)tn_dtype_size(t);
        int64_t v[N], by[N];
        char data[N * 8], places[N * 8];
        double turned[N], count[N], zeros[N], left[N], right[N];
        for (int i = 0; i < N; i++) {
            v[i] = wrap(t, i < 6 ? (int64_t[]){ 0, 1, -1, INT64_MIN, INT64_MAX, 0x80 }[i]
                                 : (int64_t)(rng_next(&r) >> rng_below(&r, 64)));
            by[i] = i % 2 ? rng_below(&r, bits) : rng_between(&r, -2, 70);
            if (t == TN_U8 && by[i] < 0) by[i] = 255;
            dtype_store_int(t, data, i, v[i]), dtype_store_int(t, places, i, by[i]);
            uint64_t u = (uint64_t)v[i] << (64 - bits); /* at the top */
            turned[i] = (double)wrap(t, ~v[i]), count[i] = (double)__builtin_popcountll(u),
            zeros[i] = u ? __builtin_clzll(u) : bits;
            bool far = by[i] < 0 || by[i] >= bits;
            left[i] = far ? 0 : (double)wrap(t, (int64_t)((uint64_t)v[i] << by[i]));
            right[i] = (double)(far ? (v[i] < 0 ? -1 : 0) : v[i] >> by[i]);
        }
        tn_tensor x = tn_const(w.g, t, TN_DIMS(N), data), y = tn_const(w.g, t, TN_DIMS(N), places);
        expect(tn_bit_not(x), turned, N);
        expect(tn_popcount(x), count, N);
        expect(tn_clz(x), zeros, N);
        expect(tn_shift_left(x, y), left, N);
        expect(tn_shift_right(x, y), right, N);
    }
    EXPECT(tn_bit_not(tn_full(w.g, TN_BOOL, TN_DIMS(2), 1)), 0, 0);
    world_free(&w);
}

/* ---- special functions ---- */

static void near(tn_tensor x, const double *want, int64_t n, double absolute, double relative) {
    double got[MOST];
    assert_int_equal(values(x, got), n);
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == want[i] || (isnan(got[i]) && isnan(want[i]))) continue;
        if (!(fabs(got[i] - want[i]) <= absolute + relative * fabs(want[i])))
            fail_msg("element %d is %.17g, not %.17g", (int)i, got[i], want[i]);
    }
}

/* Arguments on both sides of the seams at 1/2 and 8, far out, and negative ones; digamma by central differences of the C
 * library's lgamma, whose recurrence it must obey, too. */
static void test_gamma(void **state) {
    (void)state;
    world w = world_new(true);
    enum { N = 240 };
    rng r = rng_make(9);
    double x[N], lg[N], one_up[N], slope[N];
    for (int i = 0; i < N; i++) {
        x[i] = i < 80 ? rng_range(&r, 0.01, 9) : i < 160 ? exp(rng_range(&r, -30, 200)) : rng_range(&r, -30, 0);
        if (i >= 160 && fabs(x[i] - rint(x[i])) < 0.05) x[i] -= 0.1;
        lg[i] = lgamma(x[i]), one_up[i] = x[i] + 1;
    }
    tn_tensor tx = tn_const(w.g, TN_F64, TN_DIMS(N), x), d[1], dd[1];
    near(tn_lgamma(tx), lg, N, 4e-14, 4e-14);
    double low[MOST], high[MOST];
    values(tn_digamma(tx), low);
    values(tn_digamma(tn_const(w.g, TN_F64, TN_DIMS(N), one_up)), high);
    for (int i = 0; i < N; i++)
        if (fabs(x[i]) > 1e-3 && fabs(x[i]) < 1e6)
            assert_true(fabs(high[i] - low[i] - 1 / x[i]) <= 1e-12 * (1 + fabs(1 / x[i]) + fabs(low[i])));
    EXPECT(tn_is_finite(tx), [0 ... N - 1] = 1);
    near(tn_digamma(F64(w.g, 1, 0.5, 10, 1e8)),
         (double[]){ -0.57721566490153286, -1.9635100260214235, 2.2517525890667211, 18.420680738952367 }, 4, 1e-14, 1e-14);
    near(tn_lgamma(F64(w.g, 0, -3, INFINITY, NAN)), (double[]){ INFINITY, INFINITY, INFINITY, NAN }, 4, 0, 0);
    assert_int_equal(tn_grad(tn_sum(tn_lgamma(tx), TN_ALL_AXES, 0), &tx, 1, d), TN_OK);
    near(d[0], low, N, 1e-12, 1e-12);
    tn_tensor p = F64(w.g, 0.3, 1, 2.5, 20, -1.5);
    assert_int_equal(tn_grad(tn_sum(tn_digamma(p), TN_ALL_AXES, 0), &p, 1, dd), TN_OK);
    for (int i = 0; i < 5; i++) {
        double at = (double[]){ 0.3, 1, 2.5, 20, -1.5 }[i],
               sum = 0; /* trigamma(x): sum of (x + k)^-2, the rest by Euler and Maclaurin */
        for (int k = 0; k < 1000; k++) sum += 1 / ((at + k) * (at + k));
        double z = at + 1000;
        slope[i] = sum + 1 / z + 1 / (2 * z * z) + 1 / (6 * z * z * z);
    }
    near(dd[0], slope, 5, 1e-12, 1e-12);
    for (int i = 0; i < 80; i++) x[i] = (double)(float)x[i], lg[i] = lgamma(x[i]);
    near(tn_lgamma(tn_cast(tn_const(w.g, TN_F64, TN_DIMS(80), x), TN_F32)), lg, 80, 1e-13, 1.2e-7);
    world_free(&w);
}

static void test_inverse_error_function(void **state) {
    (void)state;
    world w = world_new(true);
    enum { N = 200 };
    rng r = rng_make(10);
    double x[N], y[N], slope[N], bend[N];
    for (int i = 0; i < N; i++) {
        y[i] = i < 100 ? rng_range(&r, -5.8, 5.8) : rng_range(&r, -1, 1) * exp(rng_range(&r, -40, 0));
        x[i] = erf(y[i]);
        slope[i] = sqrt(M_PI) / 2 * exp(y[i] * y[i]), bend[i] = 2 * y[i] * slope[i] * slope[i];
    }
    tn_tensor tx = tn_const(w.g, TN_F64, TN_DIMS(N), x), d[1], dd[1];
    double got[MOST];
    values(tn_erfinv(tx), got);
    for (int i = 0; i < N; i++) {
        double off = fabs(x[i]) < 0.5 ? fabs(erf(got[i]) - x[i]) / fabs(x[i])
                                      : fabs(erfc(fabs(got[i])) - (1 - fabs(x[i]))) / (1 - fabs(x[i]));
        if (fabs(x[i]) < 1 && !(off <= 1e-13 * (1 + y[i] * y[i]))) fail_msg("erf of %.17g is not %.17g: %g", got[i], x[i], off);
        if (fabs(y[i]) > 2) x[i] = 0, y[i] = 0, slope[i] = sqrt(M_PI) / 2, bend[i] = 0;
    }
    tx = tn_const(w.g, TN_F64, TN_DIMS(N), x);
    near(tn_erfinv(tx), y, N, 1e-300, 1e-13);
    assert_int_equal(tn_grad(tn_sum(tn_erfinv(tx), TN_ALL_AXES, 0), &tx, 1, d), TN_OK);
    near(d[0], slope, N, 0, 1e-11);
    assert_int_equal(tn_grad(tn_sum(d[0], TN_ALL_AXES, 0), &tx, 1, dd), TN_OK);
    near(dd[0], bend, N, 1e-12, 1e-10);
    EXPECT(tn_erfinv(F64(w.g, -1, 1, 0, 1.5, NAN)), -INFINITY, INFINITY, 0, NAN, NAN);
    for (int i = 0; i < N; i++) x[i] = (float)(i * 2 - 199) / 200, y[i] = 0;
    values(tn_erfinv(tn_const(w.g, TN_F64, TN_DIMS(N), x)), y);
    near(tn_erfinv(tn_cast(tn_const(w.g, TN_F64, TN_DIMS(N), x), TN_F32)), y, N, 0, 5e-7);
    EXPECT(tn_log10(F64(w.g, 1, 0, -1)), 0, -INFINITY, NAN);
    near(tn_log10(F64(w.g, 1000, 0.01, 7)), (double[]){ 3, -2, log10(7) }, 3, 0, 4e-16);
    world_free(&w);
}

/* ---- names ---- */

static void test_scopes(void **state) {
    (void)state;
    world w = world_new(false);
    tn_tensor x = tn_input(w.g, "x", TN_F32, TN_DIMS(2, 3)), h = x;
    assert_string_equal(tn_graph_scope(w.g), "");
    for (int i = 0; i < 3; i++) {
        tn_graph_push(w.g, "layer%d", i);
        tn_graph_push(w.g, "inner");
        h = tn_label(tn_nn_linear(h, 3, "fc"), "out");
        tn_graph_pop(w.g);
        tn_graph_pop(w.g);
    }
    tn_output(h, "y");
    assert_string_equal(tn_tensor_name(tn_graph_param(w.g, 2)), "layer1/inner/fc/w");
    assert_int_equal(tn_graph_find(w.g, "layer1/inner/fc/w").id, tn_graph_param(w.g, 2).id);
    assert_int_equal(tn_graph_find(w.g, "x").id, x.id);
    assert_int_equal(tn_graph_find(w.g, "y").id, h.id);
    assert_int_equal(tn_graph_find(w.g, "layer2/inner/out").id, h.id);
    assert_int_equal(tn_graph_find(w.g, "layer3").id, 0);
    assert_int_equal(tn_graph_status(w.g), TN_OK);
    tn_graph_pop(w.g);
    assert_int_equal(tn_graph_status(w.g), TN_ERR_INVAL);
    assert_non_null(strstr(tn_ctx_error(w.ctx), "no scope"));
    tn_graph_free(w.g);
    w.g = tn_graph_new(w.ctx, "w");
    for (int i = 0; i < 70 && !tn_graph_status(w.g); i++) tn_graph_push(w.g, "%s%d", "quite-long-name-of-a-scope", i);
    assert_int_equal(tn_graph_status(w.g), TN_ERR_INVAL);
    tn_graph_free(w.g);
    w.g = NULL;
    tn_graph_push(NULL, "x");
    tn_graph_pop(NULL);
    assert_int_equal(tn_graph_reuse(NULL, 1), 0);
    assert_int_equal(tn_graph_find(NULL, "x").id, 0);
    w.g = tn_graph_new(w.ctx, "w");
    world_free(&w);
}

/* Initial values and dropout depend on the whole name. */
static void test_scopes_tell_apart(void **state) {
    (void)state;
    world w = world_new(true);
    tn_tensor x = tn_full(w.g, TN_F32, TN_DIMS(4, 16), 1), at = tn_full(w.g, TN_I64, TN_SCALAR, 3);
    double v[5][64];
    for (int i = 0; i < 2; i++) {
        tn_graph_push(w.g, "s%d", i);
        values(tn_nn_linear(x, 16, "fc"), v[i]);
        values(tn_nn_dropout(x, 0.5, at, "drop"), v[2 + i]);
        tn_graph_pop(w.g);
    }
    values(tn_nn_linear(x, 16, "s0/fc2"), v[4]);
    assert_true(memcmp(v[0], v[1], sizeof v[0]) && memcmp(v[2], v[3], sizeof v[0]) && memcmp(v[0], v[4], sizeof v[0]));
    tn_graph *g = tn_graph_immediate(w.ctx, "flat"); /* a scope is nothing but a longer name */
    values(tn_nn_linear(tn_full(g, TN_F32, TN_DIMS(4, 16), 1), 16, "s0/fc"), v[4]);
    assert_memory_equal(v[0], v[4], sizeof v[0]);
    tn_graph_free(g);
    world_free(&w);
}

static void test_reuse(void **state) {
    (void)state;
    for (int now = 0; now < 2; now++) {
        world w = world_new(now);
        tn_tensor x = tn_full(w.g, TN_F32, TN_DIMS(2, 3), 1), y = tn_full(w.g, TN_F32, TN_DIMS(5, 3), 2);
        tn_tensor a = tn_nn_linear(x, 4, "twin");
        assert_int_equal(tn_graph_reuse(w.g, 1), 0);
        assert_int_equal(tn_graph_reuse(w.g, -1), 1);
        tn_tensor b = tn_nn_linear(y, 4, "twin"), p = tn_state(w.g, "twin/w", TN_F32, TN_DIMS(3, 4), NULL);
        assert_int_equal(tn_graph_n_params(w.g), 2);
        assert_int_equal(p.id, tn_graph_param(w.g, 0).id);
        tn_assign(p, tn_mul_scalar(p, 2));
        if (now) {
            double va[8], vb[20], bias[4];
            values(a, va), values(b, vb), values(tn_graph_find(w.g, "twin/b"), bias);
            for (int i = 0; i < 20; i++) assert_true(fabs(vb[i] - (2 * va[i % 4] - bias[i % 4])) < 1e-5);
        }
        assert_int_equal(tn_graph_status(w.g), TN_OK);
        tn_nn_linear(y, 5, "twin"); /* another shape */
        assert_int_equal(tn_graph_status(w.g), TN_ERR_INVAL);
        assert_non_null(strstr(tn_ctx_error(w.ctx), "taken"));
        tn_graph_free(w.g);
        w.g = tn_graph_new(w.ctx, "w");
        tn_param(w.g, "p", TN_F32, TN_SCALAR, NULL);
        tn_graph_reuse(w.g, 1);
        assert_int_equal(tn_graph_reuse(w.g, 0), 1);
        tn_param(w.g, "p", TN_F32, TN_SCALAR, NULL);
        assert_int_equal(tn_graph_status(w.g), TN_ERR_INVAL);
        tn_graph_free(w.g);
        w.g = tn_graph_new(w.ctx, "w");
        world_free(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalars),        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_rounding),       cmocka_unit_test(test_integer_division),
        cmocka_unit_test(test_float_division), cmocka_unit_test(test_classes),
        cmocka_unit_test(test_triangles),      cmocka_unit_test(test_one_hot),
        cmocka_unit_test(test_shapes),         cmocka_unit_test(test_bits),
        cmocka_unit_test(test_gamma),          cmocka_unit_test(test_inverse_error_function),
        cmocka_unit_test(test_scopes),         cmocka_unit_test(test_scopes_tell_apart),
        cmocka_unit_test(test_reuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
