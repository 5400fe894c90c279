/* test_shared_program.c - two threads, each with sessions of its own of the same programs, run them on different data: every
 * result is that of double precision, errors stay with the session that made them, and the thread that owns the context may
 * build and compile meanwhile.
 *
 * Labels: threads */
#include "tenon/tenon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "support/support.h"

enum { RUNS = 200, ROWS = 65, COLUMNS = 33 };

/* y = exp(-|x w|) summed over rows, n = number of runs so far: a matmul, a chain, a reduction and a state. Exact enough in
 * double here. */
static tn_graph *make_graph(tn_ctx *ctx, const float *w) {
    tn_graph *g = tn_graph_new(ctx, "shared");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(ROWS, COLUMNS));
    tn_tensor n = tn_state(g, "n", TN_I64, TN_SCALAR, NULL);
    tn_tensor h = tn_matmul(x, tn_const(g, TN_F32, TN_DIMS(COLUMNS, 5), w));
    tn_output(tn_sum(tn_exp(tn_neg(tn_abs(h))), TN_INTS(0), 0), "y");
    tn_output(h, "h");
    tn_output(tn_add_scalar(n, 1), "count");
    tn_assign(n, tn_add_scalar(n, 1));
    return g;
}

typedef struct worker {
    tn_program *const *programs;
    int n_programs;
    const float *w;
    uint64_t seed;
    char wrong[256]; /* the first thing that was, or empty */
} worker;

static bool check(worker *k, const float *x, const float *y, const float *h) {
    double sum[5] = { 0 };
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < 5; c++) {
            double v = 0;
            for (int i = 0; i < COLUMNS; i++) v += (double)x[r * COLUMNS + i] * k->w[i * 5 + c];
            if (!(fabs(v - h[r * 5 + c]) <= 1e-4))
                return snprintf(k->wrong, sizeof k->wrong, "h[%d,%d] is %g, expected %g", r, c, (double)h[r * 5 + c], v), false;
            sum[c] += exp(-fabs(v));
        }
    for (int c = 0; c < 5; c++)
        if (!(fabs(sum[c] - y[c]) <= 1e-3))
            return snprintf(k->wrong, sizeof k->wrong, "y[%d] is %g, expected %g", c, (double)y[c], sum[c]), false;
    return true;
}

/* Every third run asks for nonsense first: both threads fail at the same time, and each must find its own text. */
static bool fail_on_purpose(worker *k, tn_session *s, int run) {
    char expected[64];
    int slot = 100 + (int)k->seed * 1000 + run;
    snprintf(expected, sizeof expected, "slot %d of 4", slot);
    if (tn_session_bind(s, slot, NULL) == TN_ERR_INVAL && strstr(tn_session_error(s), expected)) return true;
    snprintf(k->wrong, sizeof k->wrong, "run %d: error text \"%.100s\"", run, tn_session_error(s));
    return false;
}

static void *work(void *arg) {
    worker *k = arg;
    tn_session *s[8] = { NULL };
    float x[ROWS * COLUMNS], y[5], h[ROWS * 5];
    rng r = rng_make(k->seed);
    for (int i = 0; i < k->n_programs; i++)
        if (tn_session_new(k->programs[i], &s[i])) snprintf(k->wrong, sizeof k->wrong, "tn_session_new failed");
    for (int run = 0; run < RUNS && !*k->wrong; run++) {
        tn_session *now = s[run % k->n_programs];
        int64_t count = 0;
        fill_random(&r, TN_F32, x, ROWS * COLUMNS, -1, 1);
        if (run % 3 == 0 && !fail_on_purpose(k, now, run)) break;
        if (tn_run(now, TN_BIND({ "x", x }, { "y", y }, { "h", h }, { "count", &count })))
            snprintf(k->wrong, sizeof k->wrong, "run %d: %.200s", run, tn_session_error(now));
        else if (count != run / k->n_programs + 1)
            snprintf(k->wrong, sizeof k->wrong, "run %d: the state counts %lld", run, (long long)count);
        else
            check(k, x, y, h);
    }
    for (int i = 0; i < k->n_programs; i++) tn_session_free(s[i]);
    return NULL;
}

/* What the context's own thread does meanwhile: it fails, and its text is its own. */
static void keep_failing(tn_ctx *ctx) {
    for (int i = 0; i < 50; i++) {
        char name[32];
        tn_program *p = NULL;
        snprintf(name, sizeof name, "empty%d", i);
        tn_graph *g = tn_graph_new(ctx, name);
        assert_int_equal(tn_compile(g, NULL, &p), TN_ERR_INVAL);
        assert_non_null(strstr(tn_ctx_error(ctx), name));
        tn_graph_free(g);
    }
}

static void share(const tn_compile_opts *opts, int n_opts) {
    tn_ctx *ctx = test_ctx();
    float w[COLUMNS * 5];
    rng r = rng_make(99);
    fill_random(&r, TN_F32, w, COLUMNS * 5, -1, 1);
    tn_graph *g = make_graph(ctx, w);
    tn_program *programs[8] = { NULL };
    for (int i = 0; i < n_opts; i++)
        if (tn_compile(g, &opts[i], &programs[i])) fail_msg("%s", tn_ctx_error(ctx));
    tn_graph_free(g);
    worker k[2] = { { .programs = programs, .n_programs = n_opts, .w = w, .seed = 1 },
                    { .programs = programs, .n_programs = n_opts, .w = w, .seed = 2 } };
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, &k[i]), 0);
    keep_failing(ctx);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 2; i++)
        if (*k[i].wrong) fail_msg("thread %d: %s", i, k[i].wrong);
    assert_non_null(strstr(tn_ctx_error(ctx), "empty49"));
    for (int i = 0; i < n_opts; i++) tn_program_free(programs[i]);
    tn_ctx_free(ctx);
}

static tn_compile_opts with(tn_mode mode, int threads) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = mode, o.threads = threads;
    return o;
}
static void test_compiled(void **state) {
    (void)state;
    share((const tn_compile_opts[]){ with(TN_MODE_COMPILED, 1) }, 1);
}
static void test_two_threads_each(void **state) {
    (void)state;
    share((const tn_compile_opts[]){ with(TN_MODE_COMPILED, 2) }, 1);
}
static void test_all_modes(void **state) {
    (void)state;
    share((const tn_compile_opts[]){ with(TN_MODE_COMPILED, 1), with(TN_MODE_GRAPH, 2), with(TN_MODE_LOOP, 2),
                                     with(TN_MODE_IMMEDIATE, 1) },
          4);
}

/* On the context's thread a session's error is also the context's; on another it is not. */
static void *fail_elsewhere(void *arg) {
    tn_session *s = arg;
    float x[1] = { 0 };
    if (tn_run(s, TN_BIND({ "elsewhere", x })) == TN_ERR_INVAL && strstr(tn_session_error(s), "elsewhere")) return s;
    return NULL;
}
static void test_whose_error(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    const float w[COLUMNS * 5] = { 0 };
    float x[1] = { 0 };
    tn_graph *g = make_graph(ctx, w);
    tn_program *p;
    tn_session *s = NULL;
    assert_int_equal(tn_compile(g, NULL, &p), TN_OK);
    assert_int_equal(tn_session_new(p, &s), TN_OK);
    assert_string_equal(tn_session_error(s), "no error");
    assert_string_equal(tn_session_error(NULL), "no session");
    assert_int_equal(tn_run(s, TN_BIND({ "here", x })), TN_ERR_INVAL);
    assert_non_null(strstr(tn_session_error(s), "\"here\""));
    assert_string_equal(tn_ctx_error(ctx), tn_session_error(s));
    pthread_t t;
    void *right;
    assert_int_equal(pthread_create(&t, NULL, fail_elsewhere, s), 0);
    assert_int_equal(pthread_join(t, &right), 0);
    assert_ptr_equal(right, s);
    assert_non_null(strstr(tn_ctx_error(ctx), "\"here\""));
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_compiled), cmocka_unit_test(test_two_threads_each),
                                        cmocka_unit_test(test_all_modes), cmocka_unit_test(test_whose_error) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
