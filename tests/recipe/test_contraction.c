/* test_contraction.c - register tiles, tails, staged panels and stretched contractions: matmul + bias + ReLU on shapes that
 * reach every path, and convolutions with their gradients, in one and two threads, against double precision.
 *
 * Labels: long */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/support.h"
#include "tenon/tenon_nn.h"

/* In one thread and in two: the same bits, near the exact result. */
static void check_shape(tn_ctx *ctx, int m, int n, int k, int transposed) {
    rng r = rng_make((uint64_t)m * 1000003 + (uint64_t)n * 1009 + (uint64_t)k);
    float *x = malloc(sizeof(float) * (size_t)(m * k)), *w = malloc(sizeof(float) * (size_t)(k * n)),
          *b = malloc(sizeof(float) * (size_t)n);
    float *y[2];
    for (int two = 0; two < 2; two++) {
        y[two] = malloc(sizeof(float) * (size_t)(m * n));
        for (int i = 0; i < m * n; i++) y[two][i] = NAN;
    }
    fill_random(&r, TN_F32, x, m * k, -1, 1);
    fill_random(&r, TN_F32, w, k * n, -1, 1);
    fill_random(&r, TN_F32, b, n, -1, 1);
    tn_graph *g = tn_graph_new(ctx, "contraction");
    tn_tensor tx = tn_input(g, "x", TN_F32, TN_DIMS(m, k)), tb = tn_input(g, "b", TN_F32, TN_DIMS(n));
    tn_tensor tw =
        transposed ? tn_transpose(tn_input(g, "w", TN_F32, TN_DIMS(n, k)), 0, 1) : tn_input(g, "w", TN_F32, TN_DIMS(k, n));
    tn_output(tn_relu(tn_add(tn_matmul(tx, tw), tb)), "y");
    for (int two = 0; two < 2; two++) {
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.threads = 1 + two, o.check = 1;
        tn_program *p;
        tn_session *s;
        if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
        assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "w", w }, { "b", b }, { "y", y[two] })), TN_OK);
        tn_session_free(s), tn_program_free(p);
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = b[j], scale = fabs(b[j]);
            for (int t = 0; t < k; t++) {
                double p1 = (double)x[i * k + t] * (transposed ? w[j * k + t] : w[t * n + j]);
                sum += p1, scale += fabs(p1);
            }
            double want = sum > 0 ? sum : 0, bound = 0x1p-23 * scale * (sqrt(k) + 4), got = y[0][i * n + j];
            if (!(fabs(got - want) <= bound))
                fail_msg("%dx%dx%d%s: y[%d,%d] = %g, want %g +- %g", m, n, k, transposed ? " transposed" : "", i, j, got, want,
                         bound);
        }
    if (memcmp(y[0], y[1], sizeof(float) * (size_t)(m * n)) != 0)
        fail_msg("%dx%dx%d%s: one thread and two differ", m, n, k, transposed ? " transposed" : "");
    tn_graph_free(g);
    free(x), free(w), free(b), free(y[0]), free(y[1]);
}

static void test_shapes(void **state) {
    (void)state;
    static const int shapes[][3] = { { 1, 1, 1 },        { 1, 17, 33 },    { 7, 13, 5 },      { 16, 16, 16 },
                                     { 31, 33, 65 },     { 64, 128, 64 },  { 53, 131, 70 },   { 100, 256, 90 },
                                     { 67, 135, 520 },   { 1, 300, 520 },  { 1, 1001, 83 },   { 5, 610, 530 },
                                     { 4099, 30, 700 },  { 8, 520, 401 },  { 97, 200, 1100 }, { 128, 192, 513 },
                                     { 200, 144, 2050 }, { 64, 173, 300 }, { 45, 77, 2600 },  { 33, 250, 4100 },
                                     { 70, 24, 3000 },   { 36, 23, 5000 }, { 41, 127, 1500 } };
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int transposed = 0; transposed < 2; transposed++)
            check_shape(ctx, shapes[i][0], shapes[i][1], shapes[i][2], transposed);
    tn_ctx_free(ctx);
    printf("count: %zu contractions\n", 2 * COUNT_OF(shapes));
}

typedef struct conv {
    int n, h, w, ci, co, kernel, stride, threads;
} conv;

static double near(const float *got, const double *want, const double *scale, int64_t count, double terms) {
    double worst = 0; /* error over its bound */
    for (int64_t i = 0; i < count; i++) {
        double r = fabs(got[i] - want[i]) / (0x1p-23 * scale[i] * (sqrt(terms) + 4) + 1e-30);
        if (!(r <= worst)) worst = r;
    }
    return worst;
}

/* Convolution and its gradients by input and weights, for a random weighting of the result. */
static void check_conv(tn_ctx *ctx, conv c) {
    int pad = c.kernel / 2, oh = (c.h + 2 * pad - c.kernel) / c.stride + 1, ow = (c.w + 2 * pad - c.kernel) / c.stride + 1;
    int64_t nx = (int64_t)c.n * c.h * c.w * c.ci, nw = (int64_t)c.kernel * c.kernel * c.ci * c.co,
            ny = (int64_t)c.n * oh * ow * c.co;
    rng r = rng_make((uint64_t)(nx + 7 * nw));
    float *x = malloc(sizeof(float) * (size_t)nx), *w = malloc(sizeof(float) * (size_t)nw),
          *g = malloc(sizeof(float) * (size_t)ny), *y = malloc(sizeof(float) * (size_t)ny),
          *dx = malloc(sizeof(float) * (size_t)nx), *dw = malloc(sizeof(float) * (size_t)nw);
    double *want[3], *scale[3];
    int64_t counts[3] = { ny, nx, nw };
    for (int i = 0; i < 3; i++)
        want[i] = calloc((size_t)counts[i], sizeof(double)), scale[i] = calloc((size_t)counts[i], sizeof(double));
    fill_random(&r, TN_F32, x, nx, -1, 1), fill_random(&r, TN_F32, w, nw, -1, 1), fill_random(&r, TN_F32, g, ny, -1, 1);
    for (int64_t i = 0; i < ny * c.kernel * c.kernel * c.ci; i++) {
        int64_t at = i, ci = at % c.ci, kx = (at /= c.ci) % c.kernel, ky = (at /= c.kernel) % c.kernel, o = at / c.kernel,
                ox = o / c.co % ow, oy = o / c.co / ow % oh, image = o / c.co / ow / oh;
        int64_t ix = ox * c.stride + kx - pad, iy = oy * c.stride + ky - pad;
        if (ix < 0 || ix >= c.w || iy < 0 || iy >= c.h) continue;
        int64_t ax = ((image * c.h + iy) * c.w + ix) * c.ci + ci, aw = ((ky * c.kernel + kx) * c.ci + ci) * c.co + o % c.co;
        double p[3] = { (double)x[ax] * w[aw], (double)g[o] * w[aw], (double)g[o] * x[ax] };
        int64_t to[3] = { o, ax, aw };
        for (int k = 0; k < 3; k++) want[k][to[k]] += p[k], scale[k][to[k]] += fabs(p[k]);
    }
    tn_graph *graph = tn_graph_new(ctx, "conv");
    tn_tensor tx = tn_input(graph, "x", TN_F32, TN_DIMS(c.n, c.h, c.w, c.ci)),
              tg = tn_input(graph, "g", TN_F32, TN_DIMS(c.n, oh, ow, c.co));
    tn_tensor ty = tn_nn_conv2d(tx,
                                (tn_nn_conv_opts){ .out_channels = c.co,
                                                   .kernel = { c.kernel, c.kernel },
                                                   .stride = { c.stride, c.stride },
                                                   .padding = { pad, pad },
                                                   .no_bias = 1 },
                                "c");
    tn_tensor by[2] = { tx, tn_graph_param(graph, 0) }, d[2];
    assert_int_equal(tn_grad(tn_sum(tn_mul(ty, tg), TN_INTS(0, 1, 2, 3), 0), by, 2, d), TN_OK);
    tn_output(ty, "y"), tn_output(d[0], "dx"), tn_output(d[1], "dw");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = c.threads, o.check = 1;
    tn_program *p;
    tn_session *s;
    if (tn_compile(graph, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_session_set(s, "c/w", w, sizeof(float) * (size_t)nw), TN_OK);
    assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "g", g }, { "y", y }, { "dx", dx }, { "dw", dw })), TN_OK);
    double worst[3] = { near(y, want[0], scale[0], ny, c.kernel * c.kernel * c.ci),
                        near(dx, want[1], scale[1], nx, c.kernel * c.kernel * c.co),
                        near(dw, want[2], scale[2], nw, c.n * oh * ow) };
    for (int i = 0; i < 3; i++)
        if (!(worst[i] <= 1))
            fail_msg("%dx%dx%dx%d -> %d, kernel %d, stride %d, %d threads: %s is off by %g bounds", c.n, c.h, c.w, c.ci, c.co,
                     c.kernel, c.stride, c.threads, (const char *[]){ "y", "dx", "dw" }[i], worst[i]);
    tn_session_free(s), tn_program_free(p), tn_graph_free(graph);
    free(x), free(w), free(g), free(y), free(dx), free(dw);
    for (int i = 0; i < 3; i++) free(want[i]), free(scale[i]);
}

static void test_convolutions(void **state) {
    (void)state;
    static const conv convs[] = { { 1, 14, 14, 40, 56, 3, 1, 1 }, { 2, 9, 13, 33, 24, 3, 1, 2 }, { 1, 16, 12, 24, 48, 5, 1, 2 },
                                  { 1, 15, 17, 20, 64, 3, 2, 1 }, { 3, 7, 7, 130, 72, 3, 1, 2 }, { 1, 30, 31, 48, 40, 1, 1, 1 },
                                  { 1, 60, 58, 16, 48, 3, 1, 2 }, { 2, 8, 8, 1, 16, 3, 1, 1 },   { 2, 9, 11, 19, 16, 3, 1, 2 },
                                  { 1, 13, 10, 12, 8, 5, 2, 2 },  { 3, 6, 7, 16, 7, 3, 1, 2 } };
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    for (size_t i = 0; i < COUNT_OF(convs); i++) check_conv(ctx, convs[i]);
    tn_ctx_free(ctx);
    printf("count: %zu convolutions with both gradients\n", COUNT_OF(convs));
}

/* Two threads share the work: every kernel has a loop that is dealt out in at least two steps. An operand that lies across
 * goes through registers in squares, by the thread that needs it. */
static void check_shared(tn_ctx *ctx, const char *text, bool transposed) {
    tn_graph *g = tn_graph_parse(ctx, text, strlen(text), "shared.tn");
    tn_program *p;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    char *code;
    int shared = 0;
    o.threads = 2;
    if (!g || tn_compile(g, &o, &p)) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_program_text(p, "kernels", &code), TN_OK);
    for (const char *at = code; (at = strstr(at, "loop ")); at++) {
        long long from, to, step;
        int n = 0;
        if (sscanf(at, "loop %*s = %lld .. %lld step %lld parallel%n", &from, &to, &step, &n) == 3 && n && to > from + step)
            shared++;
    }
    if (!shared) fail_msg("one thread does all of it:\n%s", code);
    const char *panels = strstr(code, "loop nb");
    if (transposed && !(strstr(code, " zip ") && panels && strstr(panels, "parallel") < strchr(panels, '\n')))
        fail_msg("both threads turn all of it, or one element after the other:\n%s", code);
    tn_string_free(ctx, code);
    tn_program_free(p), tn_graph_free(g);
}

static void test_shared(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool transposed;
    } graphs[] = {
        { "graph @one_panel(x f32[32,512], w f32[512,64]) {\n"
          "  %1 = dot x, w contract=[1]x[0] f32[32,64]\n"
          "  return %1 as \"y\"\n}" },
        { "graph @conv(x f32[32,10,10,16], w f32[3,3,16,32]) {\n"
          "  %1 = window x (axis=1 size=3 stride=1 dilation=1) (axis=2 size=3 stride=1 dilation=1) f32[32,8,8,16,3,3]\n"
          "  %2 = dot %1, w contract=[3,4,5]x[2,0,1] f32[32,8,8,32]\n"
          "  return %2 as \"y\"\n}" },
        { "graph @by_input(x f32[32,10,10,32], w f32[3,3,16,32]) {\n"
          "  %1 = window x (axis=1 size=3 stride=1 dilation=1) (axis=2 size=3 stride=1 dilation=1) f32[32,8,8,32,3,3]\n"
          "  %2 = dot %1, w contract=[3,4,5]x[3,0,1] f32[32,8,8,16]\n"
          "  return %2 as \"y\"\n}" },
        { "graph @turned(x f32[64,512], w f32[512,512]) {\n"
          "  %1 = dot x, w contract=[1]x[1] f32[64,512]\n"
          "  return %1 as \"y\"\n}",
          true },
    };
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    for (size_t i = 0; i < COUNT_OF(graphs); i++) check_shared(ctx, graphs[i].text, graphs[i].transposed);
    tn_ctx_free(ctx);
}

/* With no more columns than lanes, a multiply-add needs a load of its own, unless neighbours share them. */
static void test_slides(void **state) {
    (void)state;
    const char *text =
        "graph @few_channels(x f32[2,10,10,32], w f32[3,3,32,8]) {\n"
        "  %1 = window x (axis=1 size=3 stride=1 dilation=1) (axis=2 size=3 stride=1 dilation=1) f32[2,8,8,32,3,3]\n"
        "  %2 = dot %1, w contract=[3,4,5]x[2,0,1] f32[2,8,8,8]\n"
        "  return %2 as \"y\"\n}";
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    tn_graph *g = tn_graph_parse(ctx, text, strlen(text), "slides.tn");
    tn_program *p;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    char *code;
    if (!g || tn_compile(g, &o, &p)) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_program_text(p, "kernels", &code), TN_OK);
    int loads = 0, adds = 0;
    for (const char *at = code; (at = strstr(at, " = load ")); at++) loads++;
    for (const char *at = code; (at = strstr(at, " fma ")); at++) adds++;
    if (strstr(code, "f32x8") && loads * 10 > adds * 6) fail_msg("%d loads for %d multiply-adds:\n%s", loads, adds, code);
    tn_string_free(ctx, code);
    tn_program_free(p), tn_graph_free(g), tn_ctx_free(ctx);
}

/* The rows of a register tile are those of a batch, which stay inside where panels are packed. */
static void test_unrolled_batch(void **state) {
    (void)state;
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    for (int size = 7; size <= 28; size *= 2) {
        tn_graph *g = tn_graph_new(ctx, "conv");
        tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(32, size, size, 64));
        tn_nn_conv_opts opts = { .out_channels = 128, .kernel = { 3, 3 }, .padding = { 1, 1 } };
        tn_output(tn_relu(tn_nn_conv2d(x, opts, "c")), "y");
        tn_program *p;
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.threads = 1, o.check = 1;
        if (tn_compile(g, &o, &p)) fail_msg("%s", tn_ctx_error(ctx));
        tn_program_free(p), tn_graph_free(g);
    }
    tn_ctx_free(ctx);
}

/* What AVX2 does with a graph, as steps. */
static char *steps_of(const char *text) {
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = "avx2" };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    tn_graph *g = tn_graph_parse(ctx, text, strlen(text), "steps.tn");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    char *own = NULL, *steps;
    o.threads = 1;
    if (!g || tn_compile(g, &o, &p)) {
        print_message("skipped: %s\n", tn_ctx_error(ctx)); /* another processor */
    } else {
        assert_int_equal(tn_program_text(p, "schedule", &steps), TN_OK);
        own = strdup(steps);
        tn_string_free(ctx, steps), tn_program_free(p);
    }
    if (g) tn_graph_free(g);
    tn_ctx_free(ctx);
    return own;
}

/* Rows 4 KiB apart, of which a first-level cache holds 8 or 12 lines: a tile has no more of them. */
static void test_crowded_rows(void **state) {
    (void)state;
    char *steps = steps_of("graph @rows(w f32[256,1024], x f32[1024,14,14]) {\n"
                           "  %1 = slice x start=[0,0,0] step=[1,2,2] f32[1024,7,7]\n"
                           "  %2 = dot w, %1 contract=[1]x[0] f32[256,7,7]\n"
                           "  return %2 as \"y\"\n}");
    const char *unroll = steps ? strstr(steps, "unroll_jam i0 ") : NULL;
    if (steps && (!unroll || atoi(unroll + 14) > 12)) fail_msg("%s", steps);
    free(steps);
}

/* A factor of each channel, read once for all positions, does not make the channels the lanes: positions lie closer. */
static void test_pool_of_channels(void **state) {
    (void)state;
    char *steps = steps_of("graph @pool(x f32[16,57,57], s f32[16]) {\n"
                           "  %1 = reshape s f32[16,1,1]\n"
                           "  %2 = expand %1 f32[16,57,57]\n"
                           "  %3 = mul x, %2 f32[16,57,57]\n"
                           "  %4 = window %3 (axis=1 size=3 stride=2 dilation=1) (axis=2 size=3 stride=2 dilation=1) "
                           "f32[16,28,28,3,3]\n"
                           "  %5 = reduce_max %4 axes=[3,4] f32[16,28,28,1,1]\n"
                           "  return %5 as \"y\"\n}");
    if (steps && !strstr(steps, "vectorize i2 8")) fail_msg("%s", steps);
    free(steps);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_shapes),          cmocka_unit_test(test_convolutions),
                                        cmocka_unit_test(test_shared),          cmocka_unit_test(test_slides),
                                        cmocka_unit_test(test_unrolled_batch),  cmocka_unit_test(test_crowded_rows),
                                        cmocka_unit_test(test_pool_of_channels) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
