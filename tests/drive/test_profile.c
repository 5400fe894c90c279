/* test_profile.c - tn_session_profile on every device that is here: one row a kernel, rounds are runs like any other, and
 * whatever cannot be profiled is refused with a reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tenon/tenon.h"

/* y = relu(x w) and a counter of runs: several kernels below fusion 3. */
static tn_graph *counting(tn_ctx *ctx) {
    static const float zero = 0;
    tn_graph *g = tn_graph_new(ctx, "counting");
    tn_tensor x = tn_input(g, "x", TN_F32, (tn_shape){ 2, { 5, 7 } }), w = tn_input(g, "w", TN_F32, (tn_shape){ 2, { 7, 3 } });
    tn_tensor n = tn_state(g, "n", TN_F32, (tn_shape){ 0 }, &zero);
    tn_assign(n, tn_add_scalar(n, 1));
    tn_output(tn_relu(tn_matmul(x, w)), "y");
    assert_int_equal(tn_graph_status(g), TN_OK);
    return g;
}

static void fill(float *x, int n, unsigned seed) {
    for (int i = 0; i < n; i++) seed = seed * 1664525u + 1013904223u, x[i] = (float)(seed >> 8) / (1 << 23) - 1;
}

static void check_rows(const tn_profile *p, const tn_program *prog, bool timed) {
    tn_profile_summary s;
    tn_program_stats stats;
    tn_profile_get_summary(p, &s);
    tn_program_get_stats(prog, &stats);
    assert_int_equal(s.kernels, stats.kernels);
    assert_true(s.rounds >= 5);
    assert_true(s.run_us >= 0 && (!timed || s.run_us > 0));
    double sum = 0, last = 0;
    uint64_t read = 0, written = 0, flops = 0;
    for (int i = 0; i < s.kernels; i++) {
        tn_profiled_kernel k;
        assert_int_equal(tn_profile_kernel(p, i, &k), TN_OK);
        assert_true(k.name && k.name[0]);
        assert_true(k.best_us <= k.median_us && k.begin_us >= last && k.end_us >= k.begin_us);
        assert_true(!timed || k.best_us > 0);
        last = k.end_us, sum += k.median_us;
        read += k.bytes_read, written += k.bytes_written, flops += k.flops;
    }
    assert_true(sum > s.kernels_us * 0.999999 - 1e-9 && sum < s.kernels_us * 1.000001 + 1e-9);
    assert_true(read == stats.bytes_read && written == stats.bytes_written && flops == stats.flops);
    tn_profiled_kernel k;
    assert_int_equal(tn_profile_kernel(p, s.kernels, &k), TN_ERR_INVAL);
    assert_int_equal(tn_profile_kernel(p, -1, &k), TN_ERR_INVAL);
    assert_int_equal(tn_profile_kernel(p, 0, NULL), TN_ERR_INVAL);
}

/* Kernels that run again and again: what works in place does so as often. */
static void check_repeated(tn_session *s, const tn_program *p, bool timed) {
    tn_profile *report = (void *)1;
    tn_profile_summary sum;
    float before = 0, after = 0;
    assert_int_equal(tn_session_profile_repeated(s, 0, 0, &report), TN_ERR_INVAL);
    assert_int_equal(tn_session_profile_repeated(s, 0, 2, &report), TN_ERR_INVAL);
    assert_non_null(strstr(tn_session_error(s), "each kernel 2 seconds"));
    assert_int_equal(tn_session_profile_repeated(s, 0, 1e-3, NULL), TN_ERR_INVAL);
    assert_int_equal(tn_session_profile_repeated(NULL, 0, 1e-3, &report), TN_ERR_INVAL);
    assert_int_equal(tn_session_get(s, "n", &before, sizeof before), TN_OK);
    assert_int_equal(tn_session_profile_repeated(s, 0, 1e-3, &report), TN_OK);
    assert_int_equal(tn_session_get(s, "n", &after, sizeof after), TN_OK);
    check_rows(report, p, timed);
    tn_profile_get_summary(report, &sum);
    if (timed) assert_true(after - before >= (float)(3 + 2 * sum.rounds)); /* and with more than one repeat, more */
    tn_profile_free(report);
}

static void profile_on(tn_ctx *ctx, const char *device, tn_mode mode, int fusion) {
    tn_graph *g = counting(ctx);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.device = device, o.mode = mode, o.fusion = fusion;
    tn_program *p;
    tn_session *s;
    assert_int_equal(tn_compile(g, &o, &p), TN_OK);
    assert_int_equal(tn_session_new(p, &s), TN_OK);
    float x[35], w[21], y[15], want[15], n = 0;
    fill(x, 35, 1), fill(w, 21, 2);
    tn_profile *report = (void *)1;
    assert_int_equal(tn_session_profile(s, 0, &report), TN_ERR_INVAL);
    assert_non_null(strstr(tn_session_error(s), "\"x\" (140 bytes) is not bound"));
    assert_null(report);
    assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "w", w }, { "y", want })), TN_OK);
    assert_int_equal(tn_session_profile(s, 0, &report), TN_ERR_INVAL); /* those were of that call */
    assert_int_equal(tn_session_bind(s, tn_session_slot(s, "x"), x), TN_OK);
    assert_int_equal(tn_session_bind(s, tn_session_slot(s, "w"), w), TN_OK);
    assert_int_equal(tn_session_bind(s, tn_session_slot(s, "y"), y), TN_OK);
    memset(y, 0xff, sizeof y);
    assert_int_equal(tn_session_profile(s, -1, &report), TN_ERR_INVAL);
    assert_int_equal(tn_session_profile(s, 0, NULL), TN_ERR_INVAL);
    assert_int_equal(tn_session_profile(s, 0, &report), TN_OK);
    check_rows(report, p, strcmp(device, "null") != 0);
    tn_profile_summary sum;
    tn_profile_get_summary(report, &sum);
    assert_int_equal(tn_session_get(s, "n", &n, sizeof n), TN_OK);
    if (strcmp(device, "null")) {
        assert_memory_equal(y, want, sizeof y);
        assert_true(n == (float)(1 + 2 * (sum.rounds + 1))); /* each round and the warm-up: a run, and one with clocks */
    }
    tn_profile_free(report);
    check_repeated(s, p, strcmp(device, "null") != 0);
    if (strcmp(device, "null")) assert_memory_equal(y, want, sizeof y);
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
}

static void test_devices(void **state) {
    (void)state;
    tn_config cfg = { .struct_size = sizeof cfg };
    tn_config_from_env(&cfg);
    tn_ctx *ctx = tn_ctx_new(&cfg);
    for (int i = 0; i < tn_device_count(); i++) {
        tn_device_info info;
        tn_status code = tn_device_get_info(ctx, i, &info);
        if (code == TN_ERR_DEVICE) {
            printf("skipped: device %s: %s\n", info.name, tn_ctx_error(ctx));
            continue;
        }
        assert_int_equal(code, TN_OK);
        profile_on(ctx, info.name, TN_MODE_GRAPH, 0);
        profile_on(ctx, info.name, TN_MODE_COMPILED, 1);
        profile_on(ctx, info.name, TN_MODE_LOOP, 3);
    }
    tn_ctx_free(ctx);
}

static void test_refused(void **state) {
    (void)state;
    tn_config cfg = { .struct_size = sizeof cfg };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    tn_graph *g = counting(ctx);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = TN_MODE_IMMEDIATE;
    tn_program *p;
    tn_session *s;
    tn_profile *report;
    float x[35] = { 0 }, w[21] = { 0 };
    assert_int_equal(tn_compile(g, &o, &p), TN_OK);
    assert_int_equal(tn_session_new(p, &s), TN_OK);
    assert_int_equal(tn_session_bind(s, tn_session_slot(s, "x"), x), TN_OK);
    assert_int_equal(tn_session_bind(s, tn_session_slot(s, "w"), w), TN_OK);
    assert_int_equal(tn_session_run(s), TN_OK);
    assert_int_equal(tn_session_profile(s, 0, &report), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_ctx_error(ctx), "mode graph instead"));
    assert_null(report);
    assert_int_equal(tn_session_profile(NULL, 0, &report), TN_ERR_INVAL);
    assert_int_equal(tn_profile_kernel(NULL, 0, NULL), TN_ERR_INVAL);
    tn_span span;
    int n = 7;
    assert_int_equal(tn_run_n_spans(s, 1, TN_BIND({ "x", x }, { "w", w }), 1, &span, 1, &n), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_session_error(s), "the device cpu does not tell"));
    assert_int_equal(n, 0);
    assert_int_equal(tn_run_n_spans(s, 1, TN_BIND({ "x", x }, { "w", w }), 1, &span, 0, &n), TN_ERR_INVAL);
    assert_int_equal(tn_run_n_spans(s, 1, TN_BIND({ "x", x }, { "w", w }), 1, NULL, 1, &n), TN_ERR_INVAL);
    assert_int_equal(tn_run_n_spans(NULL, 1, NULL, 0, 1, &span, 1, &n), TN_ERR_INVAL);
    tn_profile_summary sum = { .rounds = 1 };
    tn_profile_get_summary(NULL, &sum);
    assert_int_equal(sum.rounds, 0);
    tn_profile_free(NULL);
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* Every allocation of a profile fails in turn. */
typedef struct failing {
    int64_t left; /* allocations that still succeed; < 0 = all do */
} failing;
static void *failing_realloc(void *ud, void *ptr, size_t old_size, size_t new_size) {
    failing *f = ud;
    (void)old_size;
    if (new_size == 0) return free(ptr), NULL;
    if (f->left == 0) return NULL;
    if (f->left > 0) f->left--;
    return realloc(ptr, new_size);
}

static void test_out_of_memory(void **state) {
    (void)state;
    failing f = { -1 };
    tn_config cfg = { .struct_size = sizeof cfg, .realloc = failing_realloc, .realloc_ud = &f };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    tn_graph *g = counting(ctx);
    tn_program *p;
    tn_session *s;
    float x[35] = { 0 }, w[21] = { 0 };
    assert_int_equal(tn_compile(g, NULL, &p), TN_OK);
    assert_int_equal(tn_session_new(p, &s), TN_OK);
    assert_int_equal(tn_session_bind(s, tn_session_slot(s, "x"), x), TN_OK);
    assert_int_equal(tn_session_bind(s, tn_session_slot(s, "w"), w), TN_OK);
    assert_int_equal(tn_session_run(s), TN_OK);
    int64_t failed = 0;
    for (;; failed++) {
        tn_profile *report;
        f.left = failed;
        tn_status code = tn_session_profile(s, 0, &report);
        f.left = -1;
        if (code == TN_OK) {
            tn_profile_free(report);
            break;
        }
        assert_int_equal(code, TN_ERR_NOMEM);
        assert_null(report);
        assert_true(failed < 100);
    }
    assert_true(failed >= 6);
    assert_int_equal(tn_session_run(s), TN_OK);
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
