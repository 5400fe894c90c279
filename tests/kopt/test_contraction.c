/* test_contraction.c - register tiles, tails, staged panels and stretched contractions: matmul + bias + ReLU on shapes that
 * reach every path, in one and two threads, against double precision. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/support.h"

static void check_shape(tn_ctx *ctx, int m, int n, int k, int transposed, int threads) {
    rng r = rng_make((uint64_t)(m * 1000003 + n * 1009 + k));
    float *x = malloc(sizeof(float) * (size_t)(m * k)), *w = malloc(sizeof(float) * (size_t)(k * n)),
          *b = malloc(sizeof(float) * (size_t)n);
    float *y = malloc(sizeof(float) * (size_t)(m * n));
    fill_random(&r, TN_F32, x, m * k, -1, 1);
    fill_random(&r, TN_F32, w, k * n, -1, 1);
    fill_random(&r, TN_F32, b, n, -1, 1);
    for (int i = 0; i < m * n; i++) y[i] = NAN;
    tn_graph *g = tn_graph_new(ctx, "contraction");
    tn_tensor tx = tn_input(g, "x", TN_F32, TN_DIMS(m, k)), tb = tn_input(g, "b", TN_F32, TN_DIMS(n));
    tn_tensor tw =
        transposed ? tn_transpose(tn_input(g, "w", TN_F32, TN_DIMS(n, k)), 0, 1) : tn_input(g, "w", TN_F32, TN_DIMS(k, n));
    tn_output(tn_relu(tn_add(tn_matmul(tx, tw), tb)), "y");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = threads, o.check = 1;
    tn_program *p;
    tn_session *s;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "w", w }, { "b", b }, { "y", y })), TN_OK);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = b[j], scale = fabs(b[j]);
            for (int t = 0; t < k; t++) {
                double p1 = (double)x[i * k + t] * (transposed ? w[j * k + t] : w[t * n + j]);
                sum += p1, scale += fabs(p1);
            }
            double want = sum > 0 ? sum : 0, bound = 0x1p-23 * scale * (sqrt(k) + 4);
            if (!(fabs(y[i * n + j] - want) <= bound))
                fail_msg("%dx%dx%d%s, %d threads: y[%d,%d] = %g, want %g +- %g", m, n, k, transposed ? " transposed" : "",
                         threads, i, j, (double)y[i * n + j], want, bound);
        }
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
    free(x), free(w), free(b), free(y);
}

static void test_shapes(void **state) {
    (void)state;
    static const int shapes[][3] = { { 1, 1, 1 },      { 1, 17, 33 },     { 7, 13, 5 },      { 16, 16, 16 },
                                     { 31, 33, 65 },   { 64, 128, 64 },   { 53, 131, 70 },   { 100, 256, 90 },
                                     { 67, 135, 520 }, { 97, 200, 1100 }, { 128, 192, 513 }, { 200, 144, 2050 } };
    tn_config cfg = { .struct_size = sizeof cfg };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int transposed = 0; transposed < 2; transposed++)
            check_shape(ctx, shapes[i][0], shapes[i][1], shapes[i][2], transposed, 1 + (int)(i + (size_t)transposed) % 2);
    tn_ctx_free(ctx);
    printf("count: %zu contractions\n", 2 * COUNT_OF(shapes));
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_shapes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
