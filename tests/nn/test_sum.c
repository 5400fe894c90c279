/* test_sum.c - sums by policy, in compiled programs: errors within what each policy promises, over odd shapes and all axes, the
 * same bits for any number of threads, infinities and NaN, nothing to add, gradients. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"

#include "tenon/tenon_nn.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const tn_nn_sum_policy policies[] = { TN_NN_SUM_PLAIN, TN_NN_SUM_F64, TN_NN_SUM_PAIRWISE, TN_NN_SUM_COMPENSATED };

typedef struct result {
    float *y, *dx;
    int64_t n; /* of y */
    tn_program_stats stats;
} result;

static result run(tn_ctx *ctx, const float *x, tn_shape s, const int64_t *axes, int n_axes, tn_nn_sum_policy policy,
                  int threads, bool gradient) {
    tn_graph *g = tn_graph_new(ctx, "sum");
    tn_tensor in = tn_input(g, "x", TN_F32, s), y = tn_nn_sum(in, axes, n_axes, 0, policy);
    tn_shape out = tn_tensor_shape(y);
    result r = { .n = 1 };
    int64_t n = 1;
    for (int i = 0; i < out.rank; i++) r.n *= out.dim[i];
    for (int i = 0; i < s.rank; i++) n *= s.dim[i];
    tn_output(y, "y");
    if (gradient) {
        tn_tensor all = tn_sum(y, NULL, -1, 0), dx;
        assert_int_equal(tn_grad(all, &in, 1, &dx), TN_OK);
        tn_output(dx, "dx");
    }
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *session;
    o.threads = threads;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &session)) fail_msg("%s", tn_ctx_error(ctx));
    r.y = test_calloc((size_t)r.n + 1, sizeof *r.y), r.dx = test_calloc((size_t)n + 1, sizeof *r.dx);
    assert_int_equal(tn_session_bind(session, tn_session_slot(session, "x"), (void *)x), TN_OK);
    assert_int_equal(tn_session_bind(session, tn_session_slot(session, "y"), r.y), TN_OK);
    if (gradient) assert_int_equal(tn_session_bind(session, tn_session_slot(session, "dx"), r.dx), TN_OK);
    if (tn_session_run(session)) fail_msg("%s", tn_ctx_error(ctx));
    tn_program_get_stats(p, &r.stats);
    tn_session_free(session), tn_program_free(p), tn_graph_free(g);
    return r;
}
static void drop(result *r) { test_free(r->y), test_free(r->dx); }

/* x as f32[outer, n, inner], summed over the middle: like every run of axes. */
typedef struct job {
    tn_shape s;
    int64_t axes[3];
    int n_axes;
    int64_t outer, n, inner;
} job;

static double allowed(tn_nn_sum_policy p, int64_t n, double sum, double sizes) {
    double eps = FLT_EPSILON / 2, last = 1.001 * eps * fabs(sum);
    return p == TN_NN_SUM_PLAIN      ? (double)n * eps * sizes
           : p == TN_NN_SUM_PAIRWISE ? last + (log2((double)n) + 4) * eps * sizes
                                     : last + 4 * (double)n * eps * eps * sizes;
}

static void test_errors(void **state) {
    (void)state;
    static const job jobs[] = {
        { TN_DIMS(1), { 0 }, 1, 1, 1, 1 },
        { TN_DIMS(7), { 0 }, 1, 1, 7, 1 },
        { TN_DIMS(8), { 0 }, 1, 1, 8, 1 },
        { TN_DIMS(4099), { -1 }, 1, 1, 4099, 1 },
        { TN_DIMS(1 << 17), { 0 }, 1, 1, 1 << 17, 1 },
        { TN_DIMS(5, 513), { 1 }, 1, 5, 513, 1 },
        { TN_DIMS(513, 5), { 0 }, 1, 1, 513, 5 },
        { TN_DIMS(3, 9, 11, 4), { 1, 2 }, 2, 3, 99, 4 },
        { TN_DIMS(2, 65, 3), { 1 }, 1, 2, 65, 3 },
        { TN_DIMS(6, 7, 10), { 0, 1, 2 }, 3, 1, 420, 1 },
    };
    tn_ctx *ctx = test_ctx();
    int checked = 0, plain_is_worse = 0;
    for (size_t k = 0; k < COUNT_OF(jobs); k++) {
        const job *j = &jobs[k];
        int64_t all = j->outer * j->n * j->inner, results = j->outer * j->inner;
        float *x = test_calloc((size_t)all, sizeof *x);
        double *want = test_calloc((size_t)results, sizeof *want), *sizes = test_calloc((size_t)results, sizeof *sizes);
        rng r = rng_make(k + 1);
        fill_random(&r, TN_F32, x, all, -1, 1);
        for (int64_t i = 0; i < all; i++) x[i] += i / j->inner % 2 ? -1000 : 1000; /* nearly cancel, two and two */
        for (int64_t i = 0; i < all; i++) {
            int64_t at = i / (j->n * j->inner) * j->inner + i % j->inner;
            want[at] += (double)x[i], sizes[at] += fabs((double)x[i]); /* exact: f64 has 29 bits more */
        }
        for (size_t p = 0; p < COUNT_OF(policies); p++) {
            result one = run(ctx, x, j->s, j->axes, j->n_axes, policies[p], 1, false);
            result two = run(ctx, x, j->s, j->axes, j->n_axes, policies[p], 2, true);
            assert_int_equal(one.n, results);
            assert_memory_equal(one.y, two.y, (size_t)results * sizeof *x);
            for (int64_t i = 0; i < results; i++) {
                double off = fabs((double)one.y[i] - want[i]);
                if (!(off <= allowed(policies[p], j->n, want[i], sizes[i])))
                    fail_msg("job %d, policy %d, element %d: %.9g instead of %.17g", (int)k, (int)policies[p], (int)i,
                             (double)one.y[i], want[i]);
                plain_is_worse +=
                    policies[p] == TN_NN_SUM_PLAIN && off > allowed(TN_NN_SUM_COMPENSATED, j->n, want[i], sizes[i]);
                checked++;
            }
            for (int64_t i = 0; i < all; i++) assert_true(two.dx[i] == 1);
            drop(&one), drop(&two);
        }
        test_free(x), test_free(want), test_free(sizes);
    }
    assert_true(plain_is_worse > 0); /* else the numbers would show nothing */
    printf("count: %d sums by policy, within their bounds; %d plain ones are not that exact\n", checked, plain_is_worse);
    tn_ctx_free(ctx);
}

static void test_special(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    float x[100];
    for (size_t p = 0; p < COUNT_OF(policies); p++)
        for (int way = 0; way < 4; way++) {
            for (int i = 0; i < 100; i++) x[i] = (float)i;
            if (way == 0) x[17] = INFINITY;
            if (way == 1) x[99] = -INFINITY;
            if (way == 2) x[0] = NAN;
            if (way == 3) x[3] = INFINITY, x[80] = -INFINITY;
            result r = run(ctx, x, TN_DIMS(100), NULL, -1, policies[p], 1, false);
            if (way < 2)
                assert_true(r.y[0] == (way ? -INFINITY : INFINITY));
            else
                assert_true(isnan(r.y[0]));
            drop(&r);
            result none = run(ctx, x, TN_DIMS(3, 0), (int64_t[]){ 1 }, 1, policies[p], 1, false);
            assert_int_equal(none.n, 3);
            for (int i = 0; i < 3; i++) assert_true(none.y[i] == 0);
            drop(&none);
        }
    tn_ctx_free(ctx);
}

/* No array in f64: the casts are part of the one kernel that sums. */
static void test_traffic(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    float *x = test_calloc(64 * 1000, sizeof *x);
    result r = run(ctx, x, TN_DIMS(64, 1000), (int64_t[]){ 1 }, 1, TN_NN_SUM_F64, 1, false);
    assert_int_equal(r.stats.kernels, 1);
    assert_int_equal(r.stats.arena_bytes, 0);
    assert_int_equal(r.stats.bytes_read, 64 * 1000 * 4);
    drop(&r), test_free(x);
    tn_graph *g = tn_graph_new(ctx, "sum");
    tn_tensor i = tn_input(g, "i", TN_I32, TN_DIMS(4)), bad;
    assert_int_equal(tn_tensor_dtype(tn_nn_sum(i, NULL, -1, 0, TN_NN_SUM_COMPENSATED)), TN_I32);
    bad = tn_nn_sum(i, NULL, -1, 0, (tn_nn_sum_policy)9);
    assert_int_equal(tn_graph_status(g), TN_ERR_INVAL);
    assert_int_equal(bad.id, 0);
    tn_graph_free(g), tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_errors), cmocka_unit_test(test_special),
                                        cmocka_unit_test(test_traffic) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
