/* test_types.c - types that are held in others: small floats and integers, uint64, strings, against plain C. */
#include "onnx_models.h"

#include <math.h>

enum { U8 = 2, I8 = 3, U64 = 13, BOOL = 9, STRING = 8 };

/* ---- small floats ---- */

typedef struct small_float {
    int elem, exponent_bits, mantissa_bits, bias, nan_low,
        nan_high; /* bits from .. to that are NaN, sign taken off; low > high: none */
    int inf;      /* bits of infinity, or -1 */
    bool fnuz;
} small_float;
static const small_float small_floats[] = {
    { 17, 4, 3, 7, 127, 127, -1, false }, { 18, 4, 3, 8, 128, 127, -1, true }, { 19, 5, 2, 15, 125, 127, 124, false },
    { 20, 5, 2, 16, 128, 127, -1, true }, { 23, 2, 1, 1, 8, 7, -1, false },
};
static double decode(const small_float *f, int bits) {
    int width = f->exponent_bits + f->mantissa_bits, size = bits & ((1 << width) - 1), sign = bits >> width & 1;
    double one = pow(2, -f->mantissa_bits), v;
    if (f->fnuz && sign && !size) return NAN;
    if (size >= f->nan_low && size <= f->nan_high) return NAN;
    if (size == f->inf) return sign ? -INFINITY : INFINITY;
    int e = size >> f->mantissa_bits, m = size & ((1 << f->mantissa_bits) - 1);
    v = e ? pow(2, e - f->bias) * (1 + m * one) : pow(2, 1 - f->bias) * m * one;
    return sign ? -v : v;
}

static void test_small_floats(void **state) {
    (void)state;
    enum { N = 700 };
    uint64_t seed = 3;
    for (size_t t = 0; t < sizeof small_floats / sizeof *small_floats; t++) {
        const small_float *f = &small_floats[t];
        int n = 1 << (1 + f->exponent_bits + f->mantissa_bits), packed = n < 256;
        uint8_t all[256];
        float y[256], x[N], z[N];
        for (int i = 0; i < n; i++) all[i] = (uint8_t)i;
        for (int i = 0; packed && i < n / 2; i++) all[i] = (uint8_t)(2 * i | (2 * i + 1) << 4);
        array w = { "w", f->elem, 1, { n }, all, (size_t)(packed ? n / 2 : n), true, false };
        assert_int_equal(run_model(NODES("Cast w -> y ; to:i=1"), &w, 1, 25, "y", F32, TN_F32, y, sizeof y), n);
        for (int i = 0; i < n; i++) {
            double want = decode(f, i);
            if (!((double)y[i] == want || (isnan(y[i]) && isnan(want))))
                fail_msg("type %d bits %d: %g", f->elem, i, (double)y[i]);
        }
        for (int i = 0; i < N; i++) { /* values, halfway between values, and others */
            double a = decode(f, rnd_below(&seed, n / 2 - 4)), b = decode(f, rnd_below(&seed, n / 2 - 4));
            x[i] = (float)(i % 3 == 0 ? a : i % 3 == 1 ? (a + b) / 2 : a + (b - a) * rnd_below(&seed, 997) / 997.0);
            if (rnd_below(&seed, 2)) x[i] = -x[i];
        }
        char cast[64];
        snprintf(cast, sizeof cast, "Cast x -> h ; to:i=%d", f->elem);
        array in = { "x", F32, 1, { N }, x, sizeof x, false, false };
        assert_int_equal(run_model(NODES(cast, "Cast h -> z ; to:i=1"), &in, 1, 25, "z", F32, TN_F32, z, sizeof z), N);
        for (int i = 0; i < N; i++) {
            double best = INFINITY;
            bool even = false;
            for (int b = 0; b < n; b++) {
                double v = decode(f, b), far = fabs(v - (double)x[i]);
                if (isfinite(v) && far < best) best = far;
            }
            for (int b = 0; b < n; b++)
                if (decode(f, b) == (double)z[i]) even = !(b & 1);
            bool tie = false;
            for (int b = 0; b < n && !tie; b++) tie = decode(f, b) != (double)z[i] && fabs(decode(f, b) - (double)x[i]) == best;
            if (fabs((double)z[i] - (double)x[i]) != best || (tie && !even))
                fail_msg("type %d: %.9g became %.9g", f->elem, (double)x[i], (double)z[i]);
        }
        float wide[4] = { 1e9f, -INFINITY, NAN, 0 }, cut[4],
              most =
                  (float)decode(f, n / 2 - 1 - (f->nan_low <= f->nan_high ? f->nan_high - f->nan_low + 1 + (f->inf >= 0) : 0));
        array extreme = { "x", F32, 1, { 4 }, wide, sizeof wide, false, false };
        run_model(NODES(cast, "Cast h -> z ; to:i=1"), &extreme, 1, 25, "z", F32, TN_F32, cut, sizeof cut);
        assert_true(cut[0] == most && cut[1] == -most && (isnan(cut[2]) || packed) && cut[3] == 0);
    }
}

/* float8e4m3fn and float8e5m2 are held as they are; what is beyond their range is NaN or infinite when that is asked for. */
static void test_held_floats(void **state) {
    (void)state;
    static const struct {
        int elem;
        tn_dtype held;
        uint8_t beyond, cut;
    } types[] = { { 17, TN_F8E4M3, 0x7f, 0x7e }, { 19, TN_F8E5M2, 0x7c, 0x7b } };
    float x[6] = { 1, 1e9f, -1e9f, INFINITY, -0.5f, 0 }, back[6];
    array in = { "x", F32, 2, { 2, 3 }, x, sizeof x, false, false };
    for (int t = 0; t < 2; t++)
        for (int saturate = 0; saturate < 2; saturate++) {
            uint8_t top = saturate ? types[t].cut : types[t].beyond, y[6], one = t ? 0x3c : 0x38, half = t ? 0xb8 : 0xb0;
            char node[64];
            snprintf(node, sizeof node, "Cast x -> h ; to:i=%d ; saturate:i=%d", types[t].elem, saturate);
            run_model(NODES(node, "Transpose h -> t", "Concat t t -> d ; axis:i=0", "Slice d from to -> y"),
                      (array[]){ in,
                                 { "from", I64, 1, { 1 }, (int64_t[]){ 3 }, 8, true, false },
                                 { "to", I64, 1, { 1 }, (int64_t[]){ 6 }, 8, true, false } },
                      3, 25, "y", types[t].elem, types[t].held, y, sizeof y);
            for (int i = 0; i < 6; i++) {
                int k = i % 2 * 3 + i / 2;
                uint8_t bits = k == 0 ? one : k == 2 ? (uint8_t)(top | 0x80) : k == 4 ? half : k == 5 ? 0 : top;
                bool nan = types[t].held == TN_F8E4M3 && (bits & 0x7f) == 0x7f; /* of either sign */
                if (nan ? (y[i] & 0x7f) != 0x7f : y[i] != bits)
                    fail_msg("type %d [%d]: %#x, expected %#x", types[t].elem, k, y[i], bits);
            }
            array held = { "h", types[t].elem, 1, { 6 }, y, sizeof y, false, false };
            run_model(NODES("Cast h -> z ; to:i=1"), &held, 1, 25, "z", F32, TN_F32, back, sizeof back);
            assert_true(back[0] == 1 && back[3] == -0.5f &&
                        (saturate ? back[2] == (t ? 57344 : 448)
                         : t      ? isinf(back[2])
                                  : isnan(back[2])));
        }
}

/* ---- integers of 4 and 2 bits: packed, low bits first ---- */

static void test_small_integers(void **state) {
    (void)state;
    static const struct { int elem, bits, is_signed; } types[] = { { 21, 4, 0 }, { 22, 4, 1 }, { 25, 2, 0 }, { 26, 2, 1 } };
    uint8_t raw[8] = { 0x1f, 0x80, 0x7e, 0xa5, 0x3c, 0xd2, 0x96, 0x4b };
    float y[32], scale = 0.5f;
    for (int t = 0; t < 4; t++) {
        int per = 8 / types[t].bits, n = 8 * per - 1, mask = (1 << types[t].bits) - 1; /* the last is not there */
        array in[] = { { "w", types[t].elem, 1, { n }, raw, 8, true, false }, { "s", F32, 0, { 0 }, &scale, 4, true, false } };
        assert_int_equal(run_model(NODES("DequantizeLinear w s -> y"), in, 2, 25, "y", F32, TN_F32, y, sizeof y), n);
        for (int i = 0; i < n; i++) {
            int v = raw[i / per] >> (i % per * types[t].bits) & mask;
            if (types[t].is_signed && v > mask / 2) v -= mask + 1;
            assert_true(y[i] == (float)v * 0.5f);
        }
    }
    float x[24], scales[12], want, lo, hi; /* blocks of two along the last axis */
    uint64_t seed = 8;
    for (int i = 0; i < 24; i++) x[i] = (float)(rnd_below(&seed, 4000) - 2000) / 100;
    for (int i = 0; i < 12; i++) scales[i] = (float)(1 + rnd_below(&seed, 8)) / 4;
    array in[] = { { "x", F32, 2, { 6, 4 }, x, sizeof x, false, false },
                   { "s", F32, 2, { 6, 2 }, scales, sizeof scales, false, false } };
    for (int t = 0; t < 4; t++) {
        char node[96];
        float q[24];
        snprintf(node, sizeof node, "QuantizeLinear x s -> q ; block_size:i=2 ; axis:i=1 ; output_dtype:i=%d", types[t].elem);
        run_model(NODES(node, "Cast q -> y ; to:i=1"), in, 2, 25, "y", F32, TN_F32, q, sizeof q);
        lo = types[t].is_signed ? -(float)(1 << (types[t].bits - 1)) : 0, hi = lo + (float)((1 << types[t].bits) - 1);
        for (int i = 0; i < 24; i++) {
            want = nearbyintf(x[i] / scales[i / 2]);
            want = want < lo ? lo : want > hi ? hi : want;
            if (q[i] != want)
                fail_msg("type %d [%d]: %g is %g, expected %g", types[t].elem, i, (double)x[i], (double)q[i], (double)want);
        }
    }
}

/* ---- uint64, and shifts ---- */

static void test_unsigned(void **state) {
    (void)state;
    enum { N = 240 };
    uint64_t seed = 17, a[N], b[N], y[N];
    for (int i = 0; i < N; i++) {
        a[i] = rnd(&seed) >> rnd_below(&seed, 64), b[i] = rnd(&seed) >> rnd_below(&seed, 64);
        if (i % 7 == 0) b[i] = a[i];
        if (!b[i]) b[i] = 1;
    }
    array in[] = { { "a", U64, 1, { N }, a, sizeof a, false, false }, { "b", U64, 1, { N }, b, sizeof b, false, false } };
    run_model(NODES("Div a b -> y"), in, 2, 14, "y", U64, TN_U64, y, sizeof y);
    for (int i = 0; i < N; i++) assert_true(y[i] == a[i] / b[i]);
    run_model(NODES("Mod a b -> y"), in, 2, 14, "y", U64, TN_U64, y, sizeof y);
    for (int i = 0; i < N; i++) assert_true(y[i] == a[i] % b[i]);
    uint8_t less[N];
    run_model(NODES("Less a b -> y"), in, 2, 14, "y", BOOL, TN_BOOL, less, sizeof less);
    for (int i = 0; i < N; i++) assert_true(less[i] == (a[i] < b[i]));
    run_model(NODES("GreaterOrEqual a b -> y"), in, 2, 16, "y", BOOL, TN_BOOL, less, sizeof less);
    for (int i = 0; i < N; i++) assert_true(less[i] == (a[i] >= b[i]));
    int64_t by[N], shifted[N];
    for (int i = 0; i < N; i++) by[i] = rnd_below(&seed, 66) - 1;
    array shift[] = { { "a", I64, 1, { N }, a, sizeof a, false, false }, { "b", I64, 1, { N }, by, sizeof by, false, false } };
    run_model(NODES("BitShift a b -> y ; direction:s=RIGHT"), shift, 2, 28, "y", I64, TN_I64, shifted, sizeof shifted);
    for (int i = 0; i < N; i++) {
        int64_t v = (int64_t)a[i];
        assert_true(shifted[i] == (by[i] < 0 || by[i] > 63 ? (v < 0 ? -1 : 0) : v >> by[i]));
    }
}

/* ---- strings ---- */

static tn_status import_strings(tn_ctx *ctx, const char *const *nodes, int n, int elem, const int64_t *dims, tn_onnx_model **m,
                                const char *const *texts, int n_texts, tn_graph **g) {
    static bytes b; /* outlives the model */
    static int64_t numbers[8];
    array in = { "x", STRING, 1, { dims[0] }, NULL, 0, false, false };
    b = model_of(nodes, n, &in, 1, 20, "y", elem);
    assert_int_equal(tn_onnx_parse(ctx, b.at, b.n, "strings", NULL, m), TN_OK);
    for (int i = 0; i < n_texts; i++) assert_int_equal(tn_onnx_text_add(*m, texts[i], &numbers[i]), TN_OK);
    tn_onnx_value v = { "x", TN_I64, TN_DIMS(n_texts), numbers };
    tn_onnx_opts o = TN_ONNX_DEFAULTS;
    o.values = &v, o.n_values = 1;
    return tn_onnx_import(*m, &o, g);
}
static void expect_strings(const char *const *nodes, int n, const char *const *texts, int n_texts, const char *const *want,
                           int n_want) {
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_onnx_model *m;
    tn_graph *g;
    tn_program *p;
    tn_session *s;
    int64_t y[16];
    if (import_strings(ctx, nodes, n, STRING, (int64_t[]){ n_texts }, &m, texts, n_texts, &g))
        fail_msg("%s", tn_ctx_error(ctx));
    tn_tensor out;
    assert_int_equal(tn_compile(g, NULL, &p), TN_OK);
    assert_int_equal(tn_session_new(p, &s), TN_OK);
    bool bound = tn_session_slot(s, "x") >= 0;
    int64_t x[8];
    for (int i = 0; i < n_texts; i++) assert_int_equal(tn_onnx_text_add(m, texts[i], &x[i]), TN_OK);
    assert_int_equal(bound ? tn_run(s, TN_BIND({ "x", x }, { "y", y })) : tn_run(s, TN_BIND({ "y", y })), TN_OK);
    for (int i = 0; i < n_want; i++) assert_string_equal(tn_onnx_text(m, y[i]), want[i]);
    (void)out;
    tn_session_free(s), tn_program_free(p), tn_graph_free(g), tn_onnx_model_free(m), tn_ctx_free(ctx);
}
#define TEXTS(...) (const char *const[]){ __VA_ARGS__ }, (int)(sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(char *))

static void test_strings(void **state) {
    (void)state;
    expect_strings(NODES("StringNormalizer x -> y ; stopwords:t=mon,wed ; case_change_action:s=UPPER"),
                   TEXTS("Mon", "tue", "wed"), TEXTS("TUE"));
    expect_strings(NODES("StringNormalizer x -> y ; stopwords:t=mon ; is_case_sensitive:i=1"), TEXTS("Mon", "mon", "tue"),
                   TEXTS("Mon", "tue"));
    expect_strings(NODES("StringNormalizer x -> y ; stopwords:t=mon"), TEXTS("mon", "mon"), TEXTS(""));
    expect_strings(NODES("StringConcat x x -> y"), TEXTS("a", "", "bc"), TEXTS("aa", "", "bcbc"));
    expect_strings(NODES("StringSplit x -> y n ; delimiter:s=-"), TEXTS("a--b", "c"), TEXTS("a", "", "b", "c", "", ""));
    expect_strings(NODES("StringSplit x -> y n ; maxsplit:i=1"), TEXTS("  a b  c ", "d"), TEXTS("a", "b  c", "d", ""));
    expect_strings(NODES("Identity x -> z", "Concat z x -> y ; axis:i=0"), TEXTS("p", "q"), TEXTS("p", "q", "p", "q"));
    expect_strings(NODES("Cast x -> z ; to:i=11", "Cast z -> y ; to:i=8"), TEXTS("1.50", "1e20", "-0.000001", "100000", "NaN"),
                   TEXTS("1.5", "1e+20", "-1e-06", "100000.0", "nan"));
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_onnx_model *m;
    tn_graph *g;
    tn_status s = import_strings(ctx, NODES("Cast x -> y ; to:i=1"), F32, (int64_t[]){ 1 }, &m, TEXTS("1.5x"), &g);
    assert_fails(ctx, s, TN_ERR_UNSUPPORTED, "'1.5x' is no number", "text that is no number");
    tn_onnx_model_free(m);
    s = import_strings(ctx, NODES("Add x x -> y"), STRING, (int64_t[]){ 1 }, &m, TEXTS("a"), &g);
    assert_fails(ctx, s, TN_ERR_UNSUPPORTED, "operands of string", "a sum of strings");
    assert_null(tn_onnx_text(m, -1)), assert_null(tn_onnx_text(m, 1 << 20));
    tn_onnx_model_free(m), tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_floats), cmocka_unit_test(test_held_floats), cmocka_unit_test(test_small_integers),
        cmocka_unit_test(test_unsigned),     cmocka_unit_test(test_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
