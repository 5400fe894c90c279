/* test_ctx.c - contexts: configuration, names, the environment, devices. */
#include "drive/objects.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

static void test_context(void **state) {
    (void)state;
    assert_string_equal(tn_version(), "0.1.0");
    assert_string_equal(tn_status_name(TN_OK), "TN_OK");
    assert_string_equal(tn_status_name(TN_ERR_SHAPE), "TN_ERR_SHAPE");
    assert_string_equal(tn_status_name(TN_ERR_INTERNAL), "TN_ERR_INTERNAL");
    assert_non_null(tn_status_name((tn_status)99));
    assert_string_equal(tn_dtype_name(TN_BF16), "bf16");
    assert_string_equal(tn_dtype_name((tn_dtype)-1), "?");
    assert_int_equal(tn_dtype_size(TN_I64), 8);
    assert_int_equal(tn_dtype_size(TN_N_DTYPES), 0);
    char dir[] = "/tmp/x";
    tn_config cfg = { .struct_size = sizeof cfg, .cache_dir = dir, .cache_subdir = "a/b", .compiler = "gcc", .cache_bytes = 5 };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    dir[0] = 'z'; /* strings were copied */
    assert_string_equal(ctx->cache_dir, "/tmp/x/a/b");
    assert_string_equal(ctx->compiler, "gcc");
    assert_true(ctx->cache_bytes == 5 && ctx->cache_memory == (uint64_t)64 << 20);
    assert_int_equal(tn_ctx_status(ctx), TN_OK);
    assert_non_null(tn_ctx_error(ctx));
    tn_graph *g = tn_graph_new(ctx, NULL);
    assert_int_equal(tn_graph_fail(g, TN_ERR_UNSUPPORTED, "layer: no").id, 0);
    assert_int_equal(tn_graph_status(g), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_ctx_error(ctx), "layer: no"));
    tn_graph_fail(g, TN_ERR_SHAPE, "second");
    assert_int_equal(tn_graph_status(g), TN_ERR_UNSUPPORTED);
    tn_graph_free(g);
    void *p = tn_ctx_realloc(ctx, NULL, 0, 10);
    assert_non_null(p);
    assert_null(tn_ctx_realloc(ctx, p, 10, 0));
    tn_ctx_free(ctx);
    cfg.struct_size = offsetof(tn_config, cache_dir); /* a caller of an older version: the rest is not read */
    ctx = tn_ctx_new(&cfg);
    assert_null(ctx->cache_dir);
    assert_string_equal(ctx->compiler, "cc");
    tn_ctx_free(ctx);
}
static void test_devices(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    device *a, *b, *c;
    err e = { 0 };
    if (ctx_device(ctx, "null", 0, &a, &e) || ctx_device(ctx, "null", 3, &b, &e) || ctx_device(ctx, "null", 0, &c, &e))
        fail_msg("%s", e.text);
    assert_ptr_equal(a, c);
    assert_ptr_not_equal(a, b);
    assert_int_equal(ctx->n_devices, 2);
    assert_int_equal(ctx_device(ctx, "abacus", 0, &c, &e), TN_ERR_INVAL);
    assert_string_equal(e.text, "there is no device \"abacus\"; there are: cpu cuda opencl null");
    assert_int_equal(ctx_device(ctx, "null", -1, &c, &e), TN_ERR_INVAL);
    tn_ctx_free(ctx);
}
static void test_environment(void **state) {
    (void)state;
    tn_config cfg;
    setenv("TENON_CACHE_DIR", "/c", 1);
    setenv("TENON_CACHE_BYTES", "3M", 1);
    setenv("TENON_CC", "clang", 1);
    tn_config_from_env(&cfg);
    assert_int_equal(cfg.struct_size, sizeof cfg);
    assert_string_equal(cfg.cache_dir, "/c");
    assert_null(cfg.cache_subdir);
    assert_true(cfg.cache_bytes == 3 << 20);
    assert_string_equal(cfg.compiler, "clang");
    unsetenv("TENON_CACHE_DIR");
    setenv("XDG_CACHE_HOME", "/x", 1);
    setenv("TENON_CACHE_BYTES", "12x", 1);
    tn_config_from_env(&cfg);
    assert_string_equal(cfg.cache_dir, "/x");
    assert_string_equal(cfg.cache_subdir, "tenon");
    assert_true(cfg.cache_bytes == 0);
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", "/h", 1);
    tn_config_from_env(&cfg);
    assert_string_equal(cfg.cache_dir, "/h");
    assert_string_equal(cfg.cache_subdir, ".cache/tenon");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    unsetenv("TENON_CC");
    unsetenv("TENON_CACHE_BYTES");
    tn_config_from_env(&cfg);
    assert_null(cfg.cache_dir);
    assert_null(cfg.compiler);
    tn_config_from_env(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_context), cmocka_unit_test(test_environment),
                                        cmocka_unit_test(test_devices) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
