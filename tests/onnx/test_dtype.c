/* test_dtype.c - models whose contractions are in 16 bits (tn_graph_contract_in): a convolution is the sum in double precision
 * of its rounded operands, rounded; a network is near that of f32; inputs and outputs stay f32, weights are kept in 16 bits,
 * quantised ones as they are. What cannot be is refused. */
#include "onnx_models.h"
#include "tenon/tenon_ir.h"

#include <math.h>

enum { MOST = 1 << 14 };

static double rounded(float x, tn_dtype t) { /* f32: as it is */
    if (t == TN_F32) return (double)x;
    int bits = t == TN_BF16 ? 8 : 11, e;
    double m = frexp((double)x, &e);
    return ldexp(rint(ldexp(m, bits)), e - bits);
}

/* Of the model's graph in that type; plain sums, as of a convolution's rounded operands. */
static tn_graph *import(tn_ctx *ctx, const bytes *b, tn_dtype t) {
    tn_onnx_opts o = TN_ONNX_DEFAULTS;
    tn_onnx_model *m;
    tn_graph *g;
    o.plain_convolutions = 1;
    if (tn_onnx_parse(ctx, b->at, b->n, "model", NULL, &m) || tn_onnx_import(m, &o, &g)) fail_msg("%s", tn_ctx_error(ctx));
    tn_onnx_model_free(m);
    if (t != TN_F32 && tn_graph_contract_in(g, t)) fail_msg("%s", tn_ctx_error(ctx));
    return g;
}

static void run(tn_ctx *ctx, const bytes *b, tn_dtype t, const float *x, float *y) {
    tn_graph *g = import(ctx, b, t);
    tn_program *p;
    tn_session *s;
    assert_int_equal(tn_tensor_dtype(tn_graph_find(g, "x")), TN_F32);
    assert_int_equal(tn_tensor_dtype(tn_graph_find(g, "y")), TN_F32);
    if (tn_compile(g, NULL, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    if (tn_run(s, TN_BIND({ "x", (void *)(uintptr_t)x }, { "y", y }))) fail_msg("%s", tn_session_error(s));
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
}

static void test_convolutions(void **state) {
    (void)state;
    static const struct {
        int in, out, side, kernel, stride, groups;
    } cases[] = { { 16, 9, 9, 3, 1, 1 }, { 6, 5, 14, 3, 2, 1 },  { 13, 7, 8, 3, 1, 1 }, { 3, 8, 15, 5, 2, 1 },
                  { 40, 6, 7, 1, 1, 1 }, { 12, 12, 9, 3, 1, 2 }, { 8, 8, 11, 3, 1, 8 }, { 32, 33, 16, 2, 1, 1 } };
    static const tn_dtype types[] = { TN_BF16, TN_F16 };
    static float x[MOST], w[MOST], y[MOST];
    tn_ctx *ctx = tn_ctx_new(NULL);
    uint64_t seed = 7;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        int in = cases[i / 2].in, out = cases[i / 2].out, n = cases[i / 2].side, k = cases[i / 2].kernel,
            step = cases[i / 2].stride, groups = cases[i / 2].groups, rows = in / groups, pad = k / 2,
            size = (n + 2 * pad - k) / step + 1;
        tn_dtype t = types[i % 2];
        char node[128];
        fill(&seed, x, MOST), fill(&seed, w, MOST);
        sprintf(node, "Conv x w -> y ; pads:l=%d,%d,%d,%d ; strides:l=%d,%d ; group:i=%d", pad, pad, pad, pad, step, step,
                groups);
        bytes b =
            model_of(NODES(node),
                     ARRAYS({ "x", F32, 4, { 1, in, n, n }, x, sizeof(float) * (size_t)(in * n * n), false, false },
                            { "w", F32, 4, { out, rows, k, k }, w, sizeof(float) * (size_t)(out * rows * k * k), true, false }),
                     17, "y", F32);
        run(ctx, &b, t, x, y);
        if (rows == 1) t = TN_F32; /* depthwise: as it was */
        for (int at = 0; at < out * size * size; at++) {
            int o = at / size / size, row = at / size % size * step - pad, column = at % size * step - pad;
            double sum = 0, terms = 0;
            for (int c = 0; c < rows; c++)
                for (int dy = 0; dy < k; dy++)
                    for (int dx = 0; dx < k; dx++) {
                        int r = row + dy, q = column + dx;
                        if (r < 0 || q < 0 || r >= n || q >= n) continue;
                        double a = rounded(x[((o / (out / groups) * rows + c) * n + r) * n + q], t) *
                                   rounded(w[((o * rows + c) * k + dy) * k + dx], t);
                        sum += a, terms += fabs(a);
                    }
            double bound = fabs(sum) * (t == TN_BF16 ? 0x1p-8 : t == TN_F16 ? 0x1p-11 : 0) + terms * 1e-6;
            if (!(fabs((double)y[at] - sum) <= bound))
                fail_msg("case %zu, element %d is %.9g, expected %.9g within %g", i, at, (double)y[at], sum, bound);
        }
    }
    tn_ctx_free(ctx);
}

static void test_network(void **state) {
    (void)state;
    enum { C = 12, N = 12, CLASSES = 7 };
    static float x[2 * 3 * N * N], first[C * 3 * 9], second[C * C * 9], bias[C], last[CLASSES * C], y[3][2 * CLASSES];
    tn_ctx *ctx = tn_ctx_new(NULL);
    uint64_t seed = 11;
    fill(&seed, x, 2 * 3 * N * N), fill(&seed, first, C * 3 * 9), fill(&seed, second, C * C * 9), fill(&seed, bias, C);
    fill(&seed, last, CLASSES * C);
    for (int i = 0; i < C * C * 9; i++) second[i] *= 0.1f;
    bytes b =
        model_of(NODES("Conv x a b -> 1 ; pads:l=1,1,1,1", "Relu 1 -> 2", "MaxPool 2 -> 3 ; kernel_shape:l=2,2 ; strides:l=2,2",
                       "Conv 3 c b -> 4 ; pads:l=1,1,1,1", "Add 4 3 -> 5", "Relu 5 -> 6", "Concat 6 3 -> 7 ; axis:i=0",
                       "GlobalAveragePool 7 -> 8", "Flatten 8 -> 9", "Gemm 9 d -> 10 ; transB:i=1",
                       "Softmax 10 -> 11 ; axis:i=1", "Slice 11 zero two -> y"),
                 ARRAYS({ "x", F32, 4, { 2, 3, N, N }, x, sizeof x, false, false },
                        { "a", F32, 4, { C, 3, 3, 3 }, first, sizeof first, true, false },
                        { "b", F32, 1, { C }, bias, sizeof bias, true, false },
                        { "c", F32, 4, { C, C, 3, 3 }, second, sizeof second, true, false },
                        { "d", F32, 2, { CLASSES, C }, last, sizeof last, true, false },
                        { "zero", 7, 1, { 1 }, (int64_t[]){ 0 }, 8, true, false },
                        { "two", 7, 1, { 1 }, (int64_t[]){ 2 }, 8, true, false }),
                 17, "y", F32);
    run(ctx, &b, TN_F32, x, y[0]), run(ctx, &b, TN_BF16, x, y[1]), run(ctx, &b, TN_F16, x, y[2]);
    for (int i = 0; i < 2 * CLASSES; i++) {
        assert_true(fabs((double)(y[1][i] - y[0][i])) < 4e-2);
        assert_true(fabs((double)(y[2][i] - y[0][i])) < 5e-3);
    }
    assert_true(memcmp(y[0], y[1], sizeof *y) != 0 && memcmp(y[0], y[2], sizeof *y) != 0);
    tn_graph *g = import(ctx, &b, TN_BF16);
    int n_weights = 0;
    for (int i = 0; i < tn_ir_n_values(g); i++) {
        tn_ir_value v;
        assert_int_equal(tn_ir_get_value(g, i, &v), TN_OK);
        if (!strcmp(v.op, "const") && v.shape.rank > 1 && v.dtype == TN_BF16) n_weights++;
        if (!strcmp(v.op, "dot")) assert_int_equal(v.dtype, TN_BF16);
    }
    assert_int_equal(n_weights, 3);
    tn_graph_free(g), tn_ctx_free(ctx);
}

static void test_refusals(void **state) {
    (void)state;
    static const tn_dtype others[] = { TN_I8, TN_F32, TN_F64, TN_F8E4M3, TN_N_DTYPES };
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_graph *g = tn_graph_new(ctx, "g");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(3, 4)), y = tn_input(g, "z", TN_F32, TN_DIMS(4, 2));
    tn_output(tn_matmul(x, y), "y");
    int n = tn_ir_n_values(g);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_fails(ctx, tn_graph_contract_in(g, others[i]), TN_ERR_DTYPE, "bf16 or f16", "another type");
    assert_int_equal(tn_ir_n_values(g), n);
    tn_add(x, y);
    assert_int_equal(tn_graph_contract_in(g, TN_BF16), TN_ERR_SHAPE);
    tn_graph_free(g);
    g = tn_graph_immediate(ctx, "now");
    assert_fails(ctx, tn_graph_contract_in(g, TN_BF16), TN_ERR_UNSUPPORTED, "immediate", "an immediate graph");
    tn_graph_free(g), tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_convolutions), cmocka_unit_test(test_network),
                                        cmocka_unit_test(test_refusals) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
