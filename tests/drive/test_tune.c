/* test_tune.c - tn_tune from end to end: what it reports, what it keeps and where, that later programs of this and of other
 * contexts use it with the same bits, that wrong arguments and a want of memory are errors and no more.
 *
 * Labels: slow */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "run/run.h"
#include "rt/tuning.h"
#include "support/support.h"
#include "tenon/tenon_nn.h"

enum { ROWS = 48, COLUMNS = 80, DEPTH = 96 };

static tn_graph *network(tn_ctx *ctx) {
    tn_graph *g = tn_graph_new(ctx, "net");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(ROWS, DEPTH)), w = tn_input(g, "w", TN_F32, TN_DIMS(DEPTH, COLUMNS));
    tn_tensor y = tn_relu(tn_matmul(x, w));
    tn_tensor total = tn_state(g, "total", TN_F32, TN_DIMS(ROWS, COLUMNS), NULL);
    tn_assign(total, tn_add(tn_mul_scalar(total, 0.5), y));
    tn_output(tn_nn_softmax(y, -1), "p");
    return g;
}

static void run(tn_ctx *ctx, tn_graph *g, float *p, float *total, bool *out_tuned) {
    static float x[ROWS * DEPTH], w[DEPTH * COLUMNS];
    tn_program *program;
    tn_session *s;
    rng r = rng_make(4);
    fill_random(&r, TN_F32, x, ROWS * DEPTH, -1, 1), fill_random(&r, TN_F32, w, DEPTH * COLUMNS, -1, 1);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = 1, o.check = 1;
    if (tn_compile(g, &o, &program) || tn_session_new(program, &s)) fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 0; i < 2; i++) assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "w", w }, { "p", p })), TN_OK);
    assert_int_equal(tn_session_get(s, "total", total, sizeof(float) * ROWS * COLUMNS), TN_OK);
    *out_tuned = false;
    for (int i = 0; i < program->plan->kernels.n; i++)
        *out_tuned |= program->plan->kernels.at[i].tuned && strcmp(program->plan->kernels.at[i].tuned, "recipe") != 0;
    tn_session_free(s), tn_program_free(program);
}

static int n_calls;
static int count_calls(void *ud, double done, const char *kernel) {
    assert_true(done >= 0 && done <= 1);
    assert_non_null(kernel);
    n_calls++;
    return ud != NULL;
}

static tn_tuning *tune(tn_ctx *ctx, tn_graph *g, bool dry, void *stop) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = 1;
    tn_tuning *t;
    tn_tune_opts opts = { sizeof opts, fuzz_by_c() ? 8 : 1, dry, count_calls, stop };
    if (tn_tune(g, &o, &opts, &t)) fail_msg("%s", tn_ctx_error(ctx));
    return t;
}

/* All that was measured: in order of time, each choice once, one of them the model's and one the kernel's. */
static void check_ways(const tn_tuning *t, int which, const tn_tuned_kernel *k) {
    tn_tuned_variant w, before;
    int models = 0, taken = 0;
    for (int i = 0; i <= k->candidates; i++) {
        assert_int_equal(tn_tuning_variant(t, which, i, &w), TN_OK);
        assert_true(w.us > 0 && w.schedule && w.form);
        if (i) assert_true(w.us >= before.us && strcmp(w.schedule, before.schedule));
        models += w.model, taken += w.taken;
        before = w;
    }
    assert_int_equal(models, 1);
    assert_int_equal(taken, 1);
    assert_int_equal(tn_tuning_variant(t, which, k->candidates + 1, &w), TN_ERR_INVAL);
    assert_int_equal(tn_tuning_variant(t, which, -1, &w), TN_ERR_INVAL);
    assert_int_equal(tn_tuning_variant(t, which, 0, NULL), TN_ERR_INVAL);
}

/* A device with memory of its own: tiles of a product, measured as whole programs; with states, which go on from run to run. */
static void test_on_a_device(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "product");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(64, 32)), w = tn_input(g, "w", TN_F32, TN_DIMS(32, 64));
    tn_tensor n = tn_state(g, "n", TN_F32, TN_DIMS(64, 64), NULL), y = tn_matmul(x, w);
    tn_assign(n, tn_add(n, y));
    tn_output(y, "y");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.device = "opencl";
    tn_tune_opts opts = { .struct_size = sizeof opts, .seconds = 2 };
    tn_tuning *t = NULL;
    tn_status st = tn_tune(g, &o, &opts, &t);
    if (st == TN_ERR_DEVICE || st == TN_ERR_UNSUPPORTED) {
        printf("no OpenCL here: %s\n", tn_ctx_error(ctx));
        tn_graph_free(g), tn_ctx_free(ctx);
        skip();
    }
    if (st) fail_msg("%s", tn_ctx_error(ctx));
    tn_tuning_summary s;
    tn_tuning_get_summary(t, &s);
    int most = 0;
    for (int i = 0; i < s.kernels; i++) {
        tn_tuned_kernel k;
        assert_int_equal(tn_tuning_kernel(t, i, &k), TN_OK);
        check_ways(t, i, &k);
        most = k.candidates > most ? k.candidates : most;
    }
    assert_true(most > 0);
    tn_tuning_free(t), tn_graph_free(g), tn_ctx_free(ctx);
    printf("count: %d tiles measured on an OpenCL device\n", most);
}

static void test_from_end_to_end(void **state) {
    (void)state;
    static float p[3][ROWS * COLUMNS], total[3][ROWS * COLUMNS];
    char dir[] = "/tmp/tune-test-XXXXXX", command[128];
    assert_non_null(mkdtemp(dir));
    tn_config cfg = test_config();
    cfg.cache_dir = dir;
    tn_ctx *ctx = tn_ctx_new(&cfg);
    tn_graph *g = network(ctx);
    bool tuned;
    run(ctx, g, p[0], total[0], &tuned);
    assert_false(tuned);

    tn_tuning_summary s;
    tn_cache_stats c;
    tn_tuning *t = tune(ctx, g, true, NULL);
    tn_tuning_get_summary(t, &s);
    assert_int_equal(s.kept, 0);
    assert_int_equal(tn_cache_get_stats(ctx, &c), TN_OK);
    assert_int_equal(c.tuned, 0);
    tn_tuning_free(t);

    n_calls = 0;
    t = tune(ctx, g, false, NULL);
    tn_tuning_get_summary(t, &s);
    assert_true(n_calls > 0 && s.kernels >= 1 && s.seconds > 0 && s.before_us > 0 && s.after_us > 0);
    int measured = 0, changed = 0;
    for (int i = 0; i < s.kernels; i++) {
        tn_tuned_kernel k;
        assert_int_equal(tn_tuning_kernel(t, i, &k), TN_OK);
        assert_true(k.name && k.schedule && k.launches >= 1);
        assert_true(k.after_us <= k.before_us);
        measured += k.candidates > 0, changed += k.changed;
        if (!k.changed) assert_true(k.after_us == k.before_us);
        check_ways(t, i, &k);
    }
    assert_true(measured > 0);
    assert_int_equal(changed, s.changed);
    tn_tuned_kernel k;
    assert_int_equal(tn_tuning_kernel(t, s.kernels, &k), TN_ERR_INVAL);
    assert_int_equal(tn_tuning_kernel(t, -1, &k), TN_ERR_INVAL);
    tn_tuning_free(t);
    if (s.kept) { /* on a disturbed machine it may find that nothing is worth it */
        assert_int_equal(tn_cache_get_stats(ctx, &c), TN_OK);
        assert_int_equal(c.tuned, measured);
    }
    run(ctx, g, p[1], total[1], &tuned);
    assert_int_equal(tuned, s.kept && s.changed);
    assert_memory_equal(p[0], p[1], sizeof p[0]);
    assert_memory_equal(total[0], total[1], sizeof total[0]);

    tn_ctx *other = tn_ctx_new(&cfg); /* as another process would */
    tn_graph *h = network(other);
    run(other, h, p[2], total[2], &tuned);
    assert_int_equal(tuned, s.kept && s.changed);
    assert_memory_equal(p[0], p[2], sizeof p[0]);
    assert_memory_equal(total[0], total[2], sizeof total[0]);
    uint64_t removed;
    assert_int_equal(tn_cache_prune_tuning(other, &removed), TN_OK);
    assert_int_equal(removed, s.kept ? measured : 0);
    run(other, h, p[2], total[2], &tuned);
    assert_false(tuned);
    tn_graph_free(h), tn_ctx_free(other), tn_graph_free(g), tn_ctx_free(ctx);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
    printf("count: %d kernels measured, %d changed\n", measured, changed);
}

/* Without a directory the context alone remembers; a caller that has seen enough stops the search. */
static void test_in_memory(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = network(ctx);
    n_calls = 0;
    int enough = 1;
    tn_tuning *t = tune(ctx, g, false, &enough);
    assert_int_equal(n_calls, 1);
    tn_tuning_free(t);
    tn_cache_stats c;
    assert_int_equal(tn_cache_get_stats(ctx, &c), TN_OK);
    assert_int_equal(c.tuned, 0);
    assert_int_equal(tn_cache_prune_tuning(ctx, NULL), TN_OK);
    tn_graph_free(g), tn_ctx_free(ctx);
}

static void test_wrong_calls(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = network(ctx), *empty = tn_graph_new(ctx, "empty");
    tn_tuning *t = NULL;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_tune_opts opts = { .struct_size = sizeof opts, .seconds = 0.01 };
    assert_int_equal(tn_tune(NULL, &o, &opts, &t), TN_ERR_INVAL);
    assert_int_equal(tn_tune(g, &o, &opts, NULL), TN_ERR_INVAL);
    assert_int_equal(tn_tune(empty, &o, &opts, &t), TN_ERR_INVAL);
    opts.seconds = -1;
    assert_int_equal(tn_tune(g, &o, &opts, &t), TN_ERR_INVAL);
    opts.seconds = 0.01, opts.struct_size = 4096;
    assert_int_equal(tn_tune(g, &o, &opts, &t), TN_ERR_INVAL);
    opts.struct_size = sizeof opts, o.device = "null";
    assert_int_equal(tn_tune(g, &o, &opts, &t), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_ctx_error(ctx), "tn_tune: device \"null\""));
    o.device = "cpu", o.mode = TN_MODE_IMMEDIATE;
    assert_int_equal(tn_tune(g, &o, &opts, &t), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_ctx_error(ctx), "tn_tune: mode immediate"));
    assert_null(t);
    assert_int_equal(tn_cache_prune_tuning(NULL, NULL), TN_ERR_INVAL);
    tn_tuning_free(NULL);
    tn_tuning_summary s;
    tn_tuning_get_summary(NULL, &s);
    assert_int_equal(s.kernels, 0);
    tn_graph_free(g), tn_graph_free(empty), tn_ctx_free(ctx);
}

/* ---- memory that refuses ---- */

typedef struct refusal {
    int64_t live, calls, at;
} refusal;
static void *refuse(void *ud, void *ptr, size_t old_size, size_t new_size) {
    refusal *f = ud;
    if (new_size == 0) {
        f->live -= (int64_t)old_size;
        free(ptr);
        return NULL;
    }
    if (++f->calls == f->at) return NULL;
    void *p = realloc(ptr, new_size);
    f->live += (int64_t)new_size - (int64_t)old_size;
    return p;
}

static void test_memory(void **state) {
    (void)state;
    if (fuzz_by_c()) skip(); /* hundreds of runs of the C compiler */
    refusal f = { 0 };
    tn_config cfg = test_config();
    cfg.realloc = refuse, cfg.realloc_ud = &f;
    int refused = 0;
    for (int64_t at = 1, step = 1;; at += step) {
        f = (refusal){ 0 };
        tn_ctx *ctx = tn_ctx_new(&cfg);
        tn_graph *g = network(ctx);
        tn_tuning *t = NULL;
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.threads = 1;
        tn_tune_opts opts = { .struct_size = sizeof opts, .seconds = 0.02 };
        f.calls = 0, f.at = at;
        tn_status st = tn_tune(g, &o, &opts, &t);
        bool through = f.calls < at;
        f.at = 0;
        if (st && st != TN_ERR_NOMEM) fail_msg("allocation %lld: %s", (long long)at, tn_ctx_error(ctx));
        refused += st == TN_ERR_NOMEM;
        tn_tuning_free(t), tn_graph_free(g), tn_ctx_free(ctx);
        assert_int_equal(f.live, 0);
        if (through) break;
        if (at > 150) step = 7;
        if (at > 1200) step = 101;
    }
    assert_true(refused > 50);
    printf("count: %d allocations refused\n", refused);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_from_end_to_end), cmocka_unit_test(test_in_memory),
                                        cmocka_unit_test(test_on_a_device), cmocka_unit_test(test_wrong_calls),
                                        cmocka_unit_test(test_memory) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
