/* test_contrib.c - ops of ONNX Runtime and of ai.onnx.ml, and LRN, against plain loops in double precision. */
#include "onnx_models.h"

#include <math.h>

enum { U8 = 2, I8 = 3 };
enum { N = 3, C = 8 };

static double gelu(double x) { return x / 2 * (1 + erf(x / sqrt(2))); }
static double fast_gelu(double x) { return x / 2 * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
static double quick_gelu(double x) { return x / (1 + exp(-(double)1.702f * x)); }

static void test_activations(void **state) {
    (void)state;
    static const struct {
        const char *node;
        double (*f)(double);
        bool bias;
    } cases[] = { { "com.microsoft.Gelu x -> y", gelu, false },
                  { "com.microsoft.BiasGelu x b -> y", gelu, true },
                  { "com.microsoft.FastGelu x -> y", fast_gelu, false },
                  { "com.microsoft.FastGelu x b -> y", fast_gelu, true },
                  { "com.microsoft.QuickGelu x -> y", quick_gelu, false } };
    uint64_t seed = 1;
    float x[N * C], b[C], y[N * C];
    double want[N * C];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fill(&seed, x, N * C), fill(&seed, b, C);
        for (int k = 0; k < N * C; k++) want[k] = cases[i].f((double)x[k] + (cases[i].bias ? (double)b[k % C] : 0));
        array in[] = { { "x", F32, 2, { N, C }, x, 0, false, false }, { "b", F32, 1, { C }, b, 0, false, false } };
        run_model(NODES(cases[i].node), in, cases[i].bias ? 2 : 1, 17, "y", F32, TN_F32, y, sizeof y);
        assert_near(y, want, N * C, 1e-5, cases[i].node);
    }
}

static void test_norms(void **state) {
    (void)state;
    static const struct {
        const char *node;
        bool skip, centred, shift, bias;
    } cases[] = { { "SimplifiedLayerNormalization x g -> y ; epsilon:f=0.25", false, false, false, false },
                  { "com.microsoft.SkipSimplifiedLayerNormalization x s g -> y ; epsilon:f=0.25", true, false, false, false },
                  { "com.microsoft.SkipSimplifiedLayerNormalization x s g c -> y ; epsilon:f=0.25", true, false, false, true },
                  { "com.microsoft.SkipLayerNormalization x s g -> y ; epsilon:f=0.25", true, true, false, false },
                  { "com.microsoft.SkipLayerNormalization x s g b c -> y ; epsilon:f=0.25", true, true, true, true } };
    uint64_t seed = 2;
    float x[N * C], s[N * C], g[C], b[C], c[C], y[N * C];
    double want[N * C], v[C];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fill(&seed, x, N * C), fill(&seed, s, N * C), fill(&seed, g, C), fill(&seed, b, C), fill(&seed, c, C);
        for (int r = 0; r < N; r++) {
            double mean = 0, square = 0;
            for (int k = 0; k < C; k++) {
                v[k] = (double)x[r * C + k] + (cases[i].skip ? (double)s[r * C + k] : 0) + (cases[i].bias ? (double)c[k] : 0);
                mean += v[k] / C;
            }
            for (int k = 0; k < C; k++) v[k] -= cases[i].centred ? mean : 0, square += v[k] * v[k] / C;
            for (int k = 0; k < C; k++)
                want[r * C + k] = v[k] / sqrt(square + 0.25) * (double)g[k] + (cases[i].shift ? (double)b[k] : 0);
        }
        array in[] = { { "x", F32, 2, { N, C }, x, 0, false, false },
                       { "s", F32, 2, { N, C }, s, 0, false, false },
                       { "g", F32, 1, { C }, g, 0, false, false },
                       { "b", F32, 1, { C }, b, 0, false, false },
                       { "c", F32, 1, { C }, c, 0, false, false } };
        run_model(NODES(cases[i].node), in, 5, 17, "y", F32, TN_F32, y, sizeof y);
        assert_near(y, want, N * C, 2e-5, cases[i].node);
    }
}

/* Powers of positive numbers by roots, and as they are. */
static void test_lrn(void **state) {
    (void)state;
    static const struct {
        const char *node;
        double alpha, beta, bias;
    } cases[] = { { "LRN x -> y ; size:i=3 ; alpha:f=0.5", 0.5, 0.75, 1 },
                  { "LRN x -> y ; size:i=3 ; alpha:f=0.5 ; beta:f=0.5 ; bias:f=2", 0.5, 0.5, 2 },
                  { "LRN x -> y ; size:i=3 ; alpha:f=-0.5 ; bias:f=4", -0.5, 0.75, 4 } };
    uint64_t seed = 9;
    float x[N * C], y[N * C];
    double want[N * C];
    fill(&seed, x, N * C);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int k = 0; k < N * C; k++) {
            double sum = 0;
            for (int n = k - 1; n <= k + 1; n++)
                if (n >= 0 && n / C == k / C) sum += (double)x[n] * (double)x[n];
            want[k] = (double)x[k] / pow(cases[i].bias + cases[i].alpha / 3 * sum, cases[i].beta);
        }
        array in[] = { { "x", F32, 4, { N, C, 1, 1 }, x, 0, false, false } };
        run_model(NODES(cases[i].node), in, 1, 13, "y", F32, TN_F32, y, sizeof y);
        assert_near(y, want, N * C, 1e-5, cases[i].node);
    }
}

static void test_products(void **state) {
    (void)state;
    enum { K = 40, M = 5, BLOCK = 16, BLOCKS = 3 };
    uint64_t seed = 3;
    float x[N * K], scale[M * BLOCKS], y[N * M], a[K * N], b[M * K];
    uint8_t w[M * BLOCKS * BLOCK / 2], zero[M * 2];
    double want[N * M];
    fill(&seed, x, N * K), fill(&seed, a, K * N), fill(&seed, b, M * K);
    for (size_t i = 0; i < sizeof w; i++) w[i] = (uint8_t)rnd(&seed);
    for (size_t i = 0; i < sizeof zero; i++) zero[i] = (uint8_t)rnd(&seed);
    for (int i = 0; i < M * BLOCKS; i++) scale[i] = (float)(1 + rnd_below(&seed, 9)) / 16;
    for (int points = 0; points < 2; points++) {
        for (int i = 0; i < N * M; i++) {
            want[i] = 0;
            for (int k = 0; k < K; k++) {
                int m = i % M, block = m * BLOCKS + k / BLOCK, q = w[block * BLOCK / 2 + k % BLOCK / 2] >> k % 2 * 4 & 15;
                int z = points ? zero[m * 2 + k / BLOCK / 2] >> k / BLOCK % 2 * 4 & 15 : 8;
                want[i] += (double)x[i / M * K + k] * (q - z) * (double)scale[block];
            }
        }
        array in[] = { { "x", F32, 2, { N, K }, x, 0, false, false },
                       { "w", U8, 3, { M, BLOCKS, BLOCK / 2 }, w, sizeof w, true, false },
                       { "s", F32, 1, { M * BLOCKS }, scale, sizeof scale, true, false },
                       { "z", U8, 1, { M * 2 }, zero, sizeof zero, true, false } };
        const char *node = points ? "com.microsoft.MatMulNBits x w s z -> y ; K:i=40 ; N:i=5 ; bits:i=4 ; block_size:i=16"
                                  : "com.microsoft.MatMulNBits x w s -> y ; K:i=40 ; N:i=5 ; bits:i=4 ; block_size:i=16";
        run_model(NODES(node), in, 4, 17, "y", F32, TN_F32, y, sizeof y);
        assert_near(y, want, N * M, 1e-3, node);
    }
    for (int i = 0; i < N * M; i++) {
        want[i] = 0;
        for (int k = 0; k < K; k++) want[i] += 0.5 * (double)a[k * N + i / M] * (double)b[i % M * K + k];
    }
    array in[] = { { "a", F32, 2, { K, N }, a, 0, false, false }, { "b", F32, 2, { M, K }, b, 0, false, false } };
    run_model(NODES("com.microsoft.FusedMatMul a b -> y ; transA:i=1 ; transB:i=1 ; alpha:f=0.5"), in, 2, 17, "y", F32, TN_F32,
              y, sizeof y);
    assert_near(y, want, N * M, 1e-4, "FusedMatMul");
}

/* Integer products: the first operand quantised by its own range, or given so. */
static void test_quantised(void **state) {
    (void)state;
    enum { K = 12, M = 5 };
    uint64_t seed = 4;
    float x[N * K], y[N * M], scale = 0.02f, by = 0.03f;
    uint8_t q[N * K], zero = 120;
    int8_t w[K * M], point = 3;
    double want[N * M], lo = 0, hi = 0;
    fill(&seed, x, N * K);
    for (int i = 0; i < N * K; i++) q[i] = (uint8_t)rnd(&seed), lo = fmin(lo, (double)x[i]), hi = fmax(hi, (double)x[i]);
    for (int i = 0; i < K * M; i++) w[i] = (int8_t)rnd(&seed);
    double step = (double)(((float)hi - (float)lo) / 255), middle = nearbyint(-lo / step);
    for (int dynamic = 0; dynamic < 2; dynamic++) {
        for (int i = 0; i < N * M; i++) {
            double sum = 0;
            for (int k = 0; k < K; k++) {
                double v = nearbyint((double)x[i / M * K + k] / step) + middle;
                v = dynamic ? fmin(fmax(v, 0), 255) - middle : q[i / M * K + k] - zero;
                sum += v * (w[k * M + i % M] - point);
            }
            want[i] = sum * (dynamic ? step : (double)scale) * (double)by;
        }
        array in[] = { { "x", F32, 2, { N, K }, x, 0, false, false },      { "q", U8, 2, { N, K }, q, 0, false, false },
                       { "w", I8, 2, { K, M }, w, sizeof w, true, false }, { "s", F32, 0, { 0 }, &scale, 4, true, false },
                       { "t", F32, 0, { 0 }, &by, 4, true, false },        { "z", U8, 0, { 0 }, &zero, 1, true, false },
                       { "p", I8, 0, { 0 }, &point, 1, true, false } };
        const char *node = dynamic ? "com.microsoft.DynamicQuantizeMatMul x w t p -> y"
                                   : "com.microsoft.MatMulIntegerToFloat q w s t z p -> y";
        run_model(NODES(node), in, 7, 17, "y", F32, TN_F32, y, sizeof y);
        assert_near(y, want, N * M, dynamic ? 0.05 : 1e-4, node); /* one step where a quotient lies between two */
    }
}

/* Contractions of what DequantizeLinear made are sums of integers, exact, times both scales: bit for bit. */
static void test_dequantised(void **state) {
    (void)state;
    enum { K = 700, M = 6, T = 4, O = 3, S = 5, I = 4 };
    uint64_t seed = 14;
    static uint8_t q[T * K], image[I * S * S];
    static int8_t w[K * M], filters[O * I * 9];
    float scale = 0.0123f, by[M], channels[O], y[T * M], z[O * 9];
    uint8_t zero = 131;
    double want[T * M], conv[O * 9];
    for (int i = 0; i < T * K; i++) q[i] = (uint8_t)rnd(&seed);
    for (int i = 0; i < K * M; i++) w[i] = (int8_t)rnd(&seed);
    for (int i = 0; i < I * S * S; i++) image[i] = (uint8_t)rnd(&seed);
    for (int i = 0; i < O * I * 9; i++) filters[i] = (int8_t)rnd(&seed);
    for (int i = 0; i < M; i++) by[i] = (float)(1 + rnd_below(&seed, 999)) / 7777;
    for (int i = 0; i < O; i++) channels[i] = (float)(1 + rnd_below(&seed, 999)) / 7777;
    for (int i = 0; i < T * M; i++) {
        int32_t sum = 0;
        for (int k = 0; k < K; k++) sum += (q[i / M * K + k] - zero) * w[k * M + i % M];
        want[i] = (double)((float)sum * (scale * by[i % M]));
    }
    array in[] = { { "q", U8, 2, { T, K }, q, 0, false, false },
                   { "w", I8, 2, { K, M }, w, sizeof w, true, false },
                   { "s", F32, 0, { 0 }, &scale, 4, true, false },
                   { "b", F32, 1, { M }, by, sizeof by, true, false },
                   { "z", U8, 0, { 0 }, &zero, 1, true, false } };
    static const char *const products[] = { "MatMul x v -> y", "Gemm x v -> y" };
    for (int i = 0; i < 2; i++) {
        run_model(NODES("DequantizeLinear q s z -> x", "DequantizeLinear w b -> v ; axis:i=1", products[i]), in, 5, 17, "y",
                  F32, TN_F32, y, sizeof y);
        assert_near(y, want, T * M, 0, products[i]);
    }
    for (int i = 0; i < O * 9; i++) {
        int32_t sum = 0;
        for (int k = 0; k < I * 9; k++)
            sum += (image[(k / 9 * S + i % 9 / 3 + k % 9 / 3) * S + i % 3 + k % 3] - zero) * filters[i / 9 * I * 9 + k];
        conv[i] = (double)((float)sum * (scale * channels[i / 9]));
    }
    array layers[] = { { "q", U8, 4, { 1, I, S, S }, image, 0, false, false },
                       { "w", I8, 4, { O, I, 3, 3 }, filters, sizeof filters, true, false },
                       { "s", F32, 0, { 0 }, &scale, 4, true, false },
                       { "b", F32, 1, { O }, channels, sizeof channels, true, false },
                       { "z", U8, 0, { 0 }, &zero, 1, true, false } };
    run_model(NODES("DequantizeLinear q s z -> x", "DequantizeLinear w b -> v ; axis:i=0", "Conv x v -> y"), layers, 5, 17, "y",
              F32, TN_F32, z, sizeof z);
    assert_near(z, conv, O * 9, 0, "Conv");
}

/* Three forms of one attention: [2,T,8] in two heads, keys of the second batch masked from the third on. */
static void test_heads(void **state) {
    (void)state;
    enum { B = 2, T = 4, H = 2, D = 4, F = H * D };
    uint64_t seed = 6;
    static float q[B * T * F], k[B * T * F], v[B * T * F], y[B * T * F];
    int32_t mask[B * T], lengths[B] = { 4, 2 };
    double want[B * T * F];
    fill(&seed, q, B * T * F), fill(&seed, k, B * T * F), fill(&seed, v, B * T * F);
    for (int i = 0; i < B * T; i++) mask[i] = i % T < lengths[i / T];
    for (int causal = 0; causal < 2; causal++) {
        for (int i = 0; i < B * T * H; i++) {
            int b = i / (T * H), t = i / H % T, h = i % H;
            double p[T], sum = 0;
            for (int j = 0; j < T; j++) {
                double score = 0;
                for (int d = 0; d < D; d++)
                    score += (double)q[((b * T + t) * H + h) * D + d] * (double)k[((b * T + j) * H + h) * D + d] / 2;
                p[j] = j < lengths[b] && (!causal || j <= t) ? exp(score) : 0, sum += p[j];
            }
            for (int d = 0; d < D; d++) {
                double out = 0;
                for (int j = 0; j < T; j++) out += p[j] / sum * (double)v[((b * T + j) * H + h) * D + d];
                want[i * D + d] = out;
            }
        }
        static float all[B * T * 3 * F], eye[3 * F * 3 * F], zeros[3 * F];
        for (int i = 0; i < B * T; i++) {
            memcpy(all + i * 3 * F, q + i * F, F * 4), memcpy(all + i * 3 * F + F, k + i * F, F * 4);
            memcpy(all + i * 3 * F + 2 * F, v + i * F, F * 4);
        }
        for (int i = 0; i < 3 * F; i++) eye[i * 3 * F + i] = 1;
        array in[] = {
            { "q", F32, 3, { B, T, F }, q, 0, false, false },        { "k", F32, 3, { B, T, F }, k, 0, false, false },
            { "v", F32, 3, { B, T, F }, v, 0, false, false },        { "m", I32, 2, { B, T }, mask, 0, false, false },
            { "n", I32, 1, { B }, lengths, 0, false, false },        { "x", F32, 3, { B, T, 3 * F }, all, 0, false, false },
            { "w", F32, 2, { 3 * F, 3 * F }, eye, 0, false, false }, { "z", F32, 1, { 3 * F }, zeros, 0, false, false }
        };
        static const char *const nodes[] = {
            "com.microsoft.MultiHeadAttention q k v _ m -> y ; num_heads:i=2 ; unidirectional:i=%d ; mask_filter_value:f=-1e30",
            "com.microsoft.MultiHeadAttention q k v _ n -> y ; num_heads:i=2 ; unidirectional:i=%d ; mask_filter_value:f=-1e30",
            "com.microsoft.Attention x w z m -> y ; num_heads:i=2 ; unidirectional:i=%d ; mask_filter_value:f=-1e30",
        };
        for (int i = 0; i < 3; i++) {
            char node[160];
            snprintf(node, sizeof node, nodes[i], causal); /* NOLINT: formats of this table */
            run_model(NODES(node), in, 8, 17, "y", F32, TN_F32, y, sizeof y);
            assert_near(y, want, B * T * F, 2e-5, node);
        }
    }
}

/* ---- ai.onnx.ml ---- */

static void test_linear(void **state) {
    (void)state;
    float x[6] = { 1, 2, 3, -1, 0.5f, 4 }, y[4];
    int64_t label[2];
    array in = { "x", F32, 2, { 2, 3 }, x, 0, false, false };
    const char *node = "ai.onnx.ml.LinearRegressor x -> y ; coefficients:v=1,2,3,-1,0,0.5 ; intercepts:v=0.25,-1 ; targets:i=2";
    run_model(NODES(node), &in, 1, 17, "y", F32, TN_F32, y, sizeof y);
    static const double want[] = { 14.25, -0.5, 12.25, 2 };
    assert_near(y, want, 4, 1e-5, node);
    node =
        "ai.onnx.ml.LinearClassifier x -> y p ; coefficients:v=1,2,3,-1,0,5 ; intercepts:v=0.25,-1 ; classlabels_ints:l=7,9 ; "
        "post_transform:s=SOFTMAX";
    assert_int_equal(run_model(NODES(node), &in, 1, 17, "y", I64, TN_I64, label, sizeof label), 2);
    assert_true(label[0] == 7 && label[1] == 9);
    run_model(NODES(node), &in, 1, 17, "p", F32, TN_F32, y, sizeof y);
    assert_true(fabs((double)y[0] + (double)y[1] - 1) < 1e-6 && y[0] > y[1] && y[2] < y[3]);
}

static void test_features(void **state) {
    (void)state;
    float x[6] = { 1, -2, 3, NAN, 0.5f, 4 }, y[24];
    int64_t keys[4] = { 4, 1, 9, 3 };
    array in = { "x", F32, 2, { 2, 3 }, x, 0, false, false }, ids = { "i", I64, 1, { 4 }, keys, 0, false, false };
    static const double imputed[] = { 1, -2, 3, 7, 0.5, 4 }, scaled[] = { 0, -6, 4 }, taken[] = { 3, 1, 4, 7 },
                        coded[] = { -2, 0.25, -2, 0.5 }, hot[] = { 0, 0, 1, 0, 0, 0, 0, 1 }, over[] = { 1, 0, 1, 1, 0, 1 };
    run_model(NODES("ai.onnx.ml.Imputer x -> y ; imputed_value_floats:v=7,8,9 ; replaced_value_float:f=nan"), &in, 1, 17, "y",
              F32, TN_F32, y, sizeof y);
    assert_near(y, imputed, 6, 0, "Imputer");
    run_model(NODES("ai.onnx.ml.Scaler x -> y ; offset:v=1,1,1 ; scale:v=1,2,2"), &in, 1, 17, "y", F32, TN_F32, y, sizeof y);
    assert_near(y, scaled, 3, 0, "Scaler");
    run_model(NODES("ai.onnx.ml.Imputer x -> z ; imputed_value_floats:v=7 ; replaced_value_float:f=nan",
                    "ai.onnx.ml.Binarizer z -> y ; threshold:f=0.5"),
              &in, 1, 17, "y", F32, TN_F32, y, sizeof y);
    assert_near(y, over, 6, 0, "Binarizer");
    int64_t at[2] = { 2, 0 };
    array two[] = { { "x", F32, 2, { 2, 3 }, x, 0, false, false }, { "a", I64, 1, { 2 }, at, 0, false, false } };
    run_model(NODES("ai.onnx.ml.Imputer x -> z ; imputed_value_floats:v=7 ; replaced_value_float:f=nan",
                    "ai.onnx.ml.ArrayFeatureExtractor z a -> y"),
              two, 2, 17, "y", F32, TN_F32, y, sizeof y);
    assert_near(y, taken, 4, 0, "ArrayFeatureExtractor");
    run_model(NODES("ai.onnx.ml.LabelEncoder i -> y ; keys_int64s:l=1,3 ; values_floats:v=0.25,0.5 ; default_float:f=-2"), &ids,
              1, 17, "y", F32, TN_F32, y, sizeof y);
    assert_near(y, coded, 4, 0, "LabelEncoder");
    run_model(NODES("ai.onnx.ml.OneHotEncoder i -> y ; cats_int64s:l=1,3"), &ids, 1, 17, "y", F32, TN_F32, y, sizeof y);
    assert_near(y, hot, 8, 0, "OneHotEncoder");
    float plain[6] = { 3, 4, 0, 0, -1, 1 };
    array flat = { "x", F32, 2, { 2, 3 }, plain, 0, false, false };
    static const double l2[] = { 0.6, 0.8, 0, 0, -0.7071067811865475, 0.7071067811865475 },
                        l1[] = { 3 / 7.0, 4 / 7.0, 0, 0, -0.5, 0.5 };
    run_model(NODES("ai.onnx.ml.Normalizer x -> y ; norm:s=L2"), &flat, 1, 17, "y", F32, TN_F32, y, sizeof y);
    assert_near(y, l2, 6, 1e-6, "Normalizer L2");
    run_model(NODES("ai.onnx.ml.Normalizer x -> y ; norm:s=L1"), &flat, 1, 17, "y", F32, TN_F32, y, sizeof y);
    assert_near(y, l1, 6, 1e-6, "Normalizer L1");
}

/* Two trees: x0 <= 1 ? (x1 < 0 ? 1 : 2) : 4, and x1 > 0.5 ? 10 : 20, whose first branch also takes what is no number. */
static void test_trees(void **state) {
    (void)state;
    enum { ROWS = 40 };
    uint64_t seed = 12;
    float x[ROWS * 2], y[ROWS];
    double want[ROWS];
    for (int i = 0; i < ROWS * 2; i++) x[i] = (float)(rnd_below(&seed, 9) - 4) / 2;
    x[7] = NAN;
    for (int i = 0; i < ROWS; i++) {
        double a = (double)x[2 * i], b = (double)x[2 * i + 1];
        want[i] = (a <= 1 ? (b < 0 ? 1 : 2) : 4) + (b > 0.5 || isnan(b) ? 10 : 20) + 0.5;
    }
    array in = { "x", F32, 2, { ROWS, 2 }, x, 0, false, false };
    run_model(
        NODES("ai.onnx.ml.TreeEnsembleRegressor x -> y ; n_targets:i=1 ; base_values:v=0.5 ; nodes_treeids:l=0,0,0,0,0,1,1,1 ; "
              "nodes_nodeids:l=0,1,2,3,4,0,1,2 ; nodes_featureids:l=0,1,0,0,0,1,0,0 ; nodes_values:v=1,0,0,0,0,0.5,0,0 ; "
              "nodes_truenodeids:l=1,2,0,0,0,1,0,0 ; nodes_falsenodeids:l=4,3,0,0,0,2,0,0 ; "
              "nodes_modes:t=BRANCH_LEQ,BRANCH_LT,LEAF,LEAF,LEAF,BRANCH_GT,LEAF,LEAF ; "
              "nodes_missing_value_tracks_true:l=0,0,0,0,0,1,0,0 ; target_treeids:l=0,0,0,1,1 ; target_nodeids:l=2,3,4,1,2 ; "
              "target_ids:l=0,0,0,0,0 ; target_weights:v=1,2,4,10,20"),
        &in, 1, 17, "y", F32, TN_F32, y, sizeof y);
    assert_near(y, want, ROWS, 0, "TreeEnsembleRegressor");
    tn_ctx *ctx = tn_ctx_new(NULL); /* a node that is its own child */
    static const char *const circle[] = {
        "ai.onnx.ml.TreeEnsembleRegressor x -> y ; nodes_treeids:l=0 ; nodes_nodeids:l=0 ; nodes_featureids:l=0 ; "
        "nodes_values:v=1 ; nodes_truenodeids:l=0 ; nodes_falsenodeids:l=0 ; nodes_modes:t=BRANCH_LEQ ; "
        "target_treeids:l=0 ; target_nodeids:l=0 ; target_ids:l=0 ; target_weights:v=1"
    };
    bytes b = model_of(circle, 1, &in, 1, 17, "y", F32);
    tn_onnx_model *m;
    tn_graph *g;
    assert_int_equal(tn_onnx_parse(ctx, b.at, b.n, "circle", NULL, &m), TN_OK);
    assert_fails(ctx, tn_onnx_import(m, NULL, &g), TN_ERR_UNSUPPORTED, "are no trees", "a circle of nodes");
    tn_onnx_model_free(m), tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_activations), cmocka_unit_test(test_norms),     cmocka_unit_test(test_lrn),
        cmocka_unit_test(test_products),    cmocka_unit_test(test_quantised), cmocka_unit_test(test_dequantised),
        cmocka_unit_test(test_heads),       cmocka_unit_test(test_linear),    cmocka_unit_test(test_features),
        cmocka_unit_test(test_trees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
