/* test_transpose.c - permutations that turn what they read, of every size of element and on shapes with and without tails:
 * every byte in its place, in one and two threads; and arithmetic on elements that lie apart, whose lanes are gathered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/support.h"

static void check(tn_ctx *ctx, tn_dtype t, const int64_t *dims, const int *perm, int threads) {
    size_t size = tn_dtype_size(t), n = (size_t)(dims[0] * dims[1] * dims[2]);
    unsigned char *x = malloc(n * size), *y = malloc(n * size);
    rng r = rng_make((uint64_t)n);
    fill_random(&r, t, x, (int64_t)n, -100, 100);
    tn_graph *g = tn_graph_new(ctx, "turn");
    tn_tensor in = tn_input(g, "x", t, TN_DIMS(dims[0], dims[1], dims[2]));
    tn_output(tn_permute(in, TN_INTS(perm[0], perm[1], perm[2])), "y");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = threads, o.check = 1;
    tn_program *p;
    tn_session *s;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "y", y })), TN_OK);
    int64_t stride[3] = { dims[1] * dims[2], dims[2], 1 }, at = 0;
    for (int64_t a = 0; a < dims[perm[0]]; a++)
        for (int64_t b = 0; b < dims[perm[1]]; b++)
            for (int64_t c = 0; c < dims[perm[2]]; c++, at++) {
                int64_t from = a * stride[perm[0]] + b * stride[perm[1]] + c * stride[perm[2]];
                if (memcmp(y + (size_t)at * size, x + (size_t)from * size, size))
                    fail_msg("%s[%d,%d,%d] permuted by %d,%d,%d: element %d is wrong", tn_dtype_name(t), (int)dims[0],
                             (int)dims[1], (int)dims[2], perm[0], perm[1], perm[2], (int)at);
            }
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
    free(x), free(y);
}

static void test_permutations(void **state) {
    (void)state;
    static const int64_t shapes[][3] = { { 1, 64, 48 }, { 3, 33, 70 },   { 2, 8, 200 },
                                         { 20, 16, 9 }, { 1, 300, 130 }, { 1, 520, 64 } };
    static const int perms[][3] = { { 0, 2, 1 }, { 2, 1, 0 }, { 1, 0, 2 }, { 2, 0, 1 } };
    static const tn_dtype dtypes[] = { TN_F32, TN_F64, TN_I64, TN_U8, TN_I32, TN_BF16, TN_F16, TN_I8 };
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    int n = 0;
    for (size_t d = 0; d < COUNT_OF(dtypes); d++)
        for (size_t i = 0; i < COUNT_OF(shapes); i++, n++)
            check(ctx, dtypes[d], shapes[i], perms[(d + i) % COUNT_OF(perms)], 1 + (int)(i % 2));
    tn_ctx_free(ctx);
    printf("count: %d permutations compared byte by byte\n", n);
}

enum { CHANNELS = 24, HIGH = 10, WIDE = 6 };

/* Element (i, j) of all 2 x 2 squares of x[CHANNELS,HIGH,WIDE], channels last. */
static tn_tensor corner(tn_tensor x, int i, int j) {
    tn_tensor part = tn_slice(x, (int64_t[]){ 0, i, j }, (int64_t[]){ CHANNELS, HIGH, WIDE }, (int64_t[]){ 1, 2, 2 }, 3);
    return tn_permute(part, TN_INTS(1, 2, 0));
}

static void test_gathered(void **state) {
    (void)state;
    static float x[CHANNELS * HIGH * WIDE], y[CHANNELS * HIGH / 2 * WIDE / 2];
    rng r = rng_make(7);
    fill_random(&r, TN_F32, x, CHANNELS * HIGH * WIDE, -2, 2);
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    tn_graph *g = tn_graph_new(ctx, "squares");
    tn_tensor in = tn_input(g, "x", TN_F32, TN_DIMS(CHANNELS, HIGH, WIDE));
    tn_tensor a = corner(in, 0, 0), b = corner(in, 0, 1), c = corner(in, 1, 0), d = corner(in, 1, 1);
    tn_output(tn_sub(tn_mul(tn_sub(a, b), tn_add(c, d)), tn_mul(tn_sub(a, d), tn_add(b, c))), "y");
    tn_program *p;
    tn_session *s;
    char *steps;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.check = 1;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_program_text(p, "schedule", &steps), TN_OK);
    if (!strstr(steps, "vectorize i2")) fail_msg("no lanes along the channels: %s", steps);
    assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "y", y })), TN_OK);
    for (int i = 0; i < HIGH / 2; i++)
        for (int j = 0; j < WIDE / 2; j++)
            for (int k = 0; k < CHANNELS; k++) {
                const float *at = x + (k * HIGH + 2 * i) * WIDE + 2 * j;
                double va = (double)at[0], vb = (double)at[1], vc = (double)at[WIDE], vd = (double)at[WIDE + 1],
                       want = (va - vb) * (vc + vd) - (va - vd) * (vb + vc),
                       off = (double)y[(i * (WIDE / 2) + j) * CHANNELS + k] - want;
                assert_true(off < 1e-5 && off > -1e-5);
            }
    tn_string_free(ctx, steps), tn_session_free(s), tn_program_free(p), tn_graph_free(g), tn_ctx_free(ctx);
}

/* A picture with channels last gets channels first and a frame: inside the frame it is turned square by square. */
static void test_framed(void **state) {
    (void)state;
    enum { SIDE = 27, BAND = 37, MAPS = 41, ALL = (SIDE + 2) * (BAND + 3) };
    static float x[SIDE * BAND * MAPS], bias[MAPS], y[MAPS * ALL];
    rng r = rng_make(9);
    fill_random(&r, TN_F32, x, SIDE * BAND * MAPS, -2, 2), fill_random(&r, TN_F32, bias, MAPS, -2, 2);
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    for (int threads = 1; threads <= 2; threads++) {
        tn_graph *g = tn_graph_new(ctx, "frame");
        tn_tensor in = tn_input(g, "x", TN_F32, TN_DIMS(SIDE, BAND, MAPS)), b = tn_input(g, "b", TN_F32, TN_DIMS(MAPS, 1, 1)),
                  inside = tn_relu(tn_add(tn_permute(in, TN_INTS(2, 0, 1)), b));
        tn_output(tn_pad(inside, (int64_t[]){ 0, 1, 1 }, (int64_t[]){ 0, 1, 2 }, 3, 0.5), "y");
        tn_program *p;
        tn_session *s;
        char *code;
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.check = 1, o.threads = threads;
        if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
        assert_int_equal(tn_program_text(p, "kernels", &code), TN_OK);
        if (!strstr(code, "zip")) fail_msg("read element by element: %s", code);
        assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "b", bias }, { "y", y })), TN_OK);
        for (int i = 0; i < MAPS * ALL; i++) {
            int map = i / ALL, row = i % ALL / (BAND + 3) - 1, column = i % (BAND + 3) - 1;
            float want = 0.5f;
            if (row >= 0 && row < SIDE && column >= 0 && column < BAND) {
                want = x[(row * BAND + column) * MAPS + map] + bias[map];
                want = want > 0 ? want : 0;
            }
            if (!(y[i] == want))
                fail_msg("map %d, row %d, column %d: %g, not %g", map, row, column, (double)y[i], (double)want);
        }
        tn_string_free(ctx, code), tn_session_free(s), tn_program_free(p), tn_graph_free(g);
    }
    tn_ctx_free(ctx);
}

/* The largest of windows of an image with channels last, kept with channels first: rows along which they are read are
 * innermost. */
static void test_pool(void **state) {
    (void)state;
    enum { SIDE = 17, OUT = 8, MAPS = 24 };
    static float x[SIDE * SIDE * MAPS], y[MAPS * OUT * OUT];
    rng r = rng_make(8);
    fill_random(&r, TN_F32, x, SIDE * SIDE * MAPS, -2, 2);
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    for (int threads = 1; threads <= 2; threads++) {
        tn_graph *g = tn_graph_new(ctx, "pool");
        tn_tensor in = tn_input(g, "x", TN_F32, TN_DIMS(SIDE, SIDE, MAPS));
        tn_tensor w = tn_window(in, (int64_t[]){ 0, 1 }, (int64_t[]){ 3, 3 }, (int64_t[]){ 2, 2 }, (int64_t[]){ 1, 1 },
                                2); /* [.., 3, 3] */
        tn_output(tn_permute(tn_reduce_max(w, TN_INTS(3, 4), 0), TN_INTS(2, 0, 1)), "y");
        tn_program *p;
        tn_session *s;
        char *steps;
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.check = 1, o.threads = threads;
        if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
        assert_int_equal(tn_program_text(p, "schedule", &steps), TN_OK);
        if (!strstr(steps, "reorder i1 i2 i0")) fail_msg("%s", steps);
        assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "y", y })), TN_OK);
        for (int i = 0; i < MAPS * OUT * OUT; i++) {
            float most = -9;
            for (int k = 0; k < 9; k++) {
                int row = 2 * (i / OUT % OUT) + k / 3, column = 2 * (i % OUT) + k % 3;
                float v = x[(row * SIDE + column) * MAPS + i / (OUT * OUT)];
                most = v > most ? v : most;
            }
            assert_true(y[i] == most);
        }
        tn_string_free(ctx, steps), tn_session_free(s), tn_program_free(p), tn_graph_free(g);
    }
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_permutations), cmocka_unit_test(test_gathered),
                                        cmocka_unit_test(test_framed), cmocka_unit_test(test_pool) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
