/* test_transpose.c - permutations that turn what they read, of every size of element and on shapes with and without tails:
 * every byte in its place, in one and two threads. */
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

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_permutations) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
