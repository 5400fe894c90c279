/* test_inside.c - what benchmarks measure inside the library: empty regions of its threads, and kernels written by hand. */
#include "bench/inside/inside.h"
#include "support/support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void empty_regions_are_timed(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    double seconds = -1;
    for (int threads = 1; threads <= 3; threads++) {
        for (int barriers = 0; barriers < 3; barriers++) {
            seconds = -1;
            assert_int_equal(inside_region(ctx, threads, 5, barriers, &seconds), TN_OK);
            assert_true(seconds >= 0 && seconds < 60);
        }
    }
    assert_int_equal(inside_region(ctx, 0, 0, 0, &seconds), TN_OK);
    assert_int_equal(inside_region(NULL, 1, 1, 0, &seconds), TN_ERR_INVAL);
    assert_int_equal(inside_region(ctx, -1, 1, 0, &seconds), TN_ERR_INVAL);
    assert_int_equal(inside_region(ctx, 100000, 1, 0, &seconds), TN_ERR_INVAL);
    assert_int_equal(inside_region(ctx, 1, -1, 0, &seconds), TN_ERR_INVAL);
    assert_int_equal(inside_region(ctx, 1, 1, -1, &seconds), TN_ERR_INVAL);
    assert_int_equal(inside_region(ctx, 1, 1, 0, NULL), TN_ERR_INVAL);
    assert_non_null(strstr(tn_ctx_error(ctx), "inside_region"));
    tn_ctx_free(ctx);
}

/* Kernels that run need a GPU: tenon bench has those. */
static void wrong_kernels_are_refused(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    size_t bytes[] = { 16, 32 };
    inside_kernels *k;
    assert_int_equal(inside_kernels_new(ctx, "cpu", "", bytes, 2, &k), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_ctx_error(ctx), "kernels by hand"));
    assert_int_equal(inside_kernels_new(NULL, "cpu", "", bytes, 2, &k), TN_ERR_INVAL);
    assert_int_equal(inside_kernels_new(ctx, "cpu", NULL, bytes, 2, &k), TN_ERR_INVAL);
    assert_int_equal(inside_kernels_new(ctx, "cpu", "", bytes, 17, &k), TN_ERR_INVAL);
    assert_int_equal(inside_kernels_new(ctx, "cpu", "", NULL, 1, &k), TN_ERR_INVAL);
    assert_int_equal(inside_kernels_launch(NULL, "f", 1, 1), TN_ERR_INVAL);
    assert_int_equal(inside_kernels_run(NULL, 1), TN_ERR_INVAL);
    inside_kernels_free(NULL);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(empty_regions_are_timed),
                                        cmocka_unit_test(wrong_kernels_are_refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
