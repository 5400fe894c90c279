/* test_sample.c - which token is drawn: frequencies against softmax, what top_k and top_p leave out, seeds, mistakes. */
#include "tenon/tenon_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"
#include <math.h>
#include <string.h>

enum { N = 6, DRAWS = 40000 };
static tn_ctx *ctx;
static const float logits[N] = { 1, -INFINITY, 2, 0.5f, 2, -1 };

/* Draws often; share[i] must be the share of each token. */
static void expect(tn_text_sample_opts o, const double *share) {
    int seen[N] = { 0 };
    uint64_t random = 5;
    for (int i = 0; i < DRAWS; i++) {
        int32_t id;
        assert_int_equal(tn_text_sample(ctx, logits, N, &o, &random, &id), TN_OK);
        assert_in_range(id, 0, N - 1);
        seen[id]++;
    }
    for (int i = 0; i < N; i++) {
        double got = (double)seen[i] / DRAWS, sigma = sqrt(share[i] * (1 - share[i]) / DRAWS);
        if (!(fabs(got - share[i]) <= 5 * sigma)) fail_msg("token %d: %.4f of the draws, not %.4f", i, got, share[i]);
    }
}
static void shares(double heat, unsigned kept, double *share) {
    double sum = 0;
    for (int i = 0; i < N; i++) sum += share[i] = kept >> i & 1 ? exp((double)logits[i] / heat) : 0;
    for (int i = 0; i < N; i++) share[i] /= sum;
}
static void test_shares(void **state) {
    (void)state;
    static const struct {
        tn_text_sample_opts o;
        unsigned kept; /* bit i: token i */
    } cases[] = {
        { { .temperature = 1 }, 63 },
        { { .temperature = 0.5 }, 63 },
        { { .temperature = 1, .top_k = 3 }, 1 << 2 | 1 << 4 | 1 << 0 },
        { { .temperature = 1, .top_k = 1 }, 1 << 2 }, /* of equals the one with the lower id */
        { { .temperature = 1, .top_k = 100 }, 63 },
        { { .temperature = 1, .top_p = 0.75 }, 1 << 2 | 1 << 4 }, /* 0.379 + 0.379 */
        { { .temperature = 1, .top_p = 0.76 }, 1 << 2 | 1 << 4 | 1 << 0 },
        { { .temperature = 1, .top_p = 0.01 }, 1 << 2 },
        { { .temperature = 1, .top_k = 3, .top_p = 0.85 }, 1 << 2 | 1 << 4 | 1 << 0 }, /* 0.42 + 0.42 of the three */
        { { .temperature = 1, .top_k = 3, .top_p = 0.84 }, 1 << 2 | 1 << 4 },
        { { .temperature = 0 }, 1 << 2 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double share[N];
        shares(cases[i].o.temperature > 0 ? cases[i].o.temperature : 1, cases[i].kept, share);
        expect(cases[i].o, share);
    }
}

/* A large vocabulary: what top_k keeps are the k largest. */
static void test_large(void **state) {
    (void)state;
    enum { MANY = 50257, K = 40 };
    float *x = test_calloc(MANY, sizeof *x);
    rng r = rng_make(8);
    for (int i = 0; i < MANY; i++) x[i] = (float)rng_range(&r, -3, 3);
    uint64_t random = 1;
    for (int i = 0; i < 200; i++) {
        int32_t id;
        int above = 0;
        assert_int_equal(tn_text_sample(ctx, x, MANY, &(tn_text_sample_opts){ .temperature = 1, .top_k = K }, &random, &id),
                         TN_OK);
        for (int k = 0; k < MANY; k++) above += x[k] > x[id];
        assert_true(above < K);
    }
    test_free(x);
}

static void test_seeds(void **state) {
    (void)state;
    int differ = 0;
    for (int i = 0; i < 50; i++) {
        uint64_t a = (uint64_t)i, b = (uint64_t)i, c = (uint64_t)i + 1000;
        int32_t first, same, other;
        tn_text_sample_opts o = { .temperature = 1 };
        assert_int_equal(tn_text_sample(ctx, logits, N, &o, &a, &first), TN_OK);
        assert_int_equal(tn_text_sample(ctx, logits, N, &o, &b, &same), TN_OK);
        assert_int_equal(tn_text_sample(ctx, logits, N, &o, &c, &other), TN_OK);
        assert_true(first == same && a == b);
        differ += first != other;
    }
    assert_true(differ > 10);
}

static void test_wrong(void **state) {
    (void)state;
    uint64_t random = 1;
    int32_t id;
    float bad[N];
    memcpy(bad, logits, sizeof bad);
    bad[3] = NAN;
    assert_int_equal(tn_text_sample(ctx, bad, N, &(tn_text_sample_opts){ 0 }, &random, &id), TN_ERR_INVAL);
    assert_non_null(strstr(tn_ctx_error(ctx), "logit 3 is"));
    assert_int_equal(tn_text_sample(ctx, logits, N, &(tn_text_sample_opts){ .top_p = 1.5 }, &random, &id), TN_ERR_INVAL);
    assert_int_equal(tn_text_sample(ctx, logits, 0, &(tn_text_sample_opts){ 0 }, &random, &id), TN_ERR_INVAL);
    for (int i = 0; i < N; i++) bad[i] = -INFINITY;
    assert_int_equal(tn_text_sample(ctx, bad, N, &(tn_text_sample_opts){ .temperature = 1 }, &random, &id), TN_OK);
}

static int open_ctx(void **state) {
    (void)state;
    return !(ctx = test_ctx());
}
static int close_ctx(void **state) {
    (void)state;
    tn_ctx_free(ctx);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_shares), cmocka_unit_test(test_large),
                                        cmocka_unit_test(test_seeds), cmocka_unit_test(test_wrong) };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
