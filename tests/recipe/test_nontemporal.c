/* test_nontemporal.c - results that are larger than the caches: written past them where whole lines are, in machines with small
 * caches by the interpreter; on this machine with buffers that begin with a line and ones that do not, in one and two threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/plan_run.h"

static void check_form(const char *text, bool past) {
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    graph *g = graph_parse(&a, text, strlen(text), "test");
    reference r = reference_make(g, &a, 5);
    for (uint64_t seed = 0; seed < 8; seed++) {
        char why_not[512];
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = plan_target(seed);
        int n = 0;
        t.l2_bytes = 64, o.fusion = 3, o.check = 1;
        plan *p = pipeline_run(g, &a, &o, &t);
        for (int k = 0; k < p->kernels.n; k++)
            for (int i = 1; i < p->kernels.at[k].k->ins.n; i++) {
                const kins *in = &p->kernels.at[k].k->ins.at[i];
                n += in->op == K_STORE && in->mode == STORE_NONTEMPORAL;
            }
        if (past != (n > 0)) fail_msg("seed %d: %d stores go past the caches in\n%s", (int)seed, n, text);
        if (!plan_agrees(p, &r, &a, why_not, sizeof why_not) || !plan_texts_agree(p, &a, why_not, sizeof why_not))
            fail_msg("seed %d: %s\n%s", (int)seed, why_not, text);
    }
    arena_fini(&a);
}

static void test_forms(void **state) {
    (void)state;
    check_form("graph @g(x f32[40,64]) {\n  %1 = neg x\n  return %1 as \"y\"\n}\n", true);
    check_form("graph @g(x f64[40,64]) {\n  %1 = sum x axes=[1] f64[40,1]\n  %2 = expand %1 f64[40,64]\n  %3 = sub x, %2\n"
               "  return %3 as \"y\"\n}\n",
               true);
    check_form("graph @g(x f32[40,61]) {\n  %1 = sum x axes=[1] f32[40,1]\n  %2 = expand %1 f32[40,61]\n  %3 = sub x, %2\n"
               "  return %3 as \"y\"\n}\n",
               false); /* rows begin within lines */
    check_form("graph @g(x f32[64,64]) {\n  %1 = sum x axes=[1] f32[64,1]\n  return %1 as \"y\"\n}\n", false); /* few */
    check_form("graph @g(x f32[64,64], i i32[9], u f32[9,64]) {\n  %1 = scatter_add x, i, u axis=0 f32[64,64]\n  return %1 as "
               "\"y\"\n}\n",
               false);
}

enum { ROWS = 4096, COLS = 4096 }; /* 64 MiB: more than 24 times any second-level cache, read and written */

static void run(tn_ctx *ctx, bool transposed, int threads, float *x, float *y) {
    tn_graph *g = tn_graph_new(ctx, "past");
    tn_tensor in = tn_input(g, "x", TN_F32, TN_DIMS(ROWS, COLS));
    tn_output(tn_neg(transposed ? tn_transpose(in, 0, 1) : in), "y");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *s;
    o.threads = threads;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    memset(y, 0xee, sizeof *y * ROWS * COLS);
    assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "y", y })), TN_OK);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < COLS; j++)
            if (y[i * COLS + j] != -x[transposed ? j * ROWS + i : i * COLS + j])
                fail_msg("%s, %d threads: y[%d,%d] is wrong", transposed ? "turned" : "plain", threads, (int)i, (int)j);
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
}

static void test_buffers(void **state) {
    (void)state;
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    size_t bytes = sizeof(float) * ROWS * COLS;
    char *x = malloc(bytes), *y = malloc(bytes + 128);
    float *values = (float *)x;
    for (int64_t i = 0; i < (int64_t)ROWS * COLS; i++) values[i] = (float)(i * 7 % 16777213);
    char *line = y + (64 - (uintptr_t)y % 64);
    for (int i = 0; i < 8; i++) run(ctx, i & 1, 1 + (i >> 1 & 1), values, (float *)(void *)(line + (i & 4 ? 4 : 0)));
    free(x), free(y);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_forms), cmocka_unit_test(test_buffers) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
