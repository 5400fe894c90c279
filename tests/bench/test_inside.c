/* test_inside.c - what benchmarks measure inside the library: empty regions of its threads, kernels written by hand, bytes that
 * caches bring. */
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

/* What memory gives can be said by hand: each element once; with two rows of a matrix that has more than all caches hold, each
 * again in every run, and with one that fits nothing. */
static void bytes_are_counted(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = 1;
    for (int large = 0; large < 2; large++) {
        const int64_t n = large ? 1 << 20 : 1 << 12;
        tn_graph *g = tn_graph_new(ctx, "g");
        tn_program *p;
        inside_bytes b;
        tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(n)), i = tn_input(g, "i", TN_I32, TN_DIMS(5));
        tn_output(tn_neg(x), "y");
        tn_output(tn_gather(x, i, 0), "z");
        assert_int_equal(tn_compile(g, &o, &p), TN_OK);
        int counted = 0, refused = 0;
        for (int k = 0; k < 2; k++) {
            tn_status code = inside_replay(p, k, 2 << 20, &b);
            if (code == TN_ERR_UNSUPPORTED) {
                assert_non_null(strstr(tn_ctx_error(ctx), "values decide"));
                refused++;
                continue;
            }
            assert_int_equal(code, TN_OK);
            counted++;
            assert_true(b.counted[0] == 8.0 * (double)n && b.predicted[0] == b.counted[0]);
            assert_true(b.cold_counted == 8.0 * (double)n);
            assert_true(b.counted[3] == (large ? 8.0 * (double)n : 0));
            assert_true(large || b.counted[1] == 0 || b.counted[2] == 0);
        }
        assert_true(counted == 1 && refused == 1);
        assert_int_equal(inside_replay(p, 2, 0, &b), TN_ERR_INVAL);
        assert_int_equal(inside_replay(p, 0, 0, NULL), TN_ERR_INVAL);
        assert_int_equal(inside_replay(NULL, 0, 0, &b), TN_ERR_INVAL);
        tn_program_free(p);
        tn_graph_free(g);
    }
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(empty_regions_are_timed), cmocka_unit_test(wrong_kernels_are_refused),
                                        cmocka_unit_test(bytes_are_counted) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
