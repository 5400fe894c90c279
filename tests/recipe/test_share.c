/* test_share.c - contractions among many threads: a machine of 16 is given work for all of them, by columns where the columns
 * are a parameter's, and the bits are those of one thread. Plans only: made for machines that need not be there, interpreted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "recipe/recipe.h"
#include "support/plan_run.h"

static target a_target(int vector_bytes, int threads) {
    return (target){ .vector_bytes = vector_bytes,
                     .n_vector_regs = vector_bytes == 64 ? 32 : 16,
                     .threads = threads,
                     .l1_bytes = 32 << 10,
                     .l2_bytes = 1 << 20 };
}

static plan *make(const char *text, const target *t, arena *a) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 3, o.check = 1;
    return pipeline_run(graph_parse(a, text, strlen(text), "test"), a, &o, t);
}

static const kins *dealt_loop(const kernel *k) {
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_LOOP && k->ins.at[i].par == PAR_THREADS) return &k->ins.at[i];
    return NULL;
}

/* The coefficient of the loop that is dealt out in the place of a result; 0: there is no such loop. */
static int64_t dealt_stride(const kernel *k) {
    const kins *loop = dealt_loop(k);
    for (int i = 1; loop && i < k->ins.n; i++)
        if (k->ins.at[i].op == K_STORE && k->bufs.at[k->ins.at[i].buf].kind != KB_LOCAL)
            return affine_coef(k->ins.at[i].idx, loop->var);
    return 0;
}

static const char layer[] = "graph @layer(x f32[64,784], w f32[784,512]) {\n"
                            "  %1 = dot x, w contract=[1]x[0] f32[64,512]\n  return %1 as \"y\"\n}\n";
static const char update[] = "graph @update(x f32[64,784], dy f32[64,512], w f32[784,512]) {\n"
                             "  %1 = dot x, dy contract=[0]x[0] f32[784,512]\n  %2 = sub w, %1 f32[784,512]\n"
                             "  return %2 as \"y\"\n}\n";

static const char across[] = "graph @across(dy f32[64,512], w f32[512,512]) {\n"
                             "  %1 = dot dy, w contract=[1]x[1] f32[64,512]\n  return %1 as \"y\"\n}\n";

static void test_even(void **state) {
    (void)state;
    static const char *const texts[] = { layer, update, across };
    static const int threads[] = { 2, 4, 8, 16 };
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        for (size_t n = 0; n < COUNT_OF(threads); n++) {
            target t = a_target(64, threads[n]);
            plan *p = make(texts[i], &t, &a);
            assert_int_equal(p->kernels.n, 1);
            const kernel *k = p->kernels.at[0].k;
            const kins *loop = dealt_loop(k);
            if (!loop) fail_msg("graph %d: one thread of %d does all of it", (int)i, threads[n]);
            double balance = loop_balance((loop->hi - loop->lo) / loop->step, 0, threads[n]);
            if (balance < 0.95) fail_msg("graph %d: %d threads are busy for %g of the time", (int)i, threads[n], balance);
            if (dealt_stride(k) >= 512) fail_msg("graph %d: %d threads share out rows", (int)i, threads[n]);
        }
    arena_fini(&a);
}

/* The same bits for every number of threads, also where that changes the tile. */
static void test_bits(void **state) {
    (void)state;
    static const int64_t shapes[][3] = { { 8, 160, 40 }, { 33, 65, 37 }, { 64, 128, 9 }, { 5, 300, 70 }, { 40, 24, 50 } };
    int plans = 0, others = 0;
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int transposed = 0; transposed < 2; transposed++) {
            arena a;
            guard gd;
            arena_init(&a, mem_libc(), &gd);
            if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
            long long m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
            const char *text = arena_printf(&a,
                                            "graph @g(x f32[%lld,%lld], w f32[%lld,%lld]) {\n  %%1 = dot x, w "
                                            "contract=[1]x[%d] f32[%lld,%lld]\n  return %%1 as \"y\"\n}\n",
                                            m, k, transposed ? n : k, transposed ? k : n, transposed, m, n);
            reference r = reference_make(graph_parse(&a, text, strlen(text), "test"), &a, 7 + i);
            for (int vector = 32; vector <= 64; vector *= 2) {
                const void *first = NULL;
                krole role = { 0 };
                for (int threads = 1; threads <= 16; threads += threads < 4 ? 1 : 4, plans++) {
                    char why_not[512];
                    target t = a_target(vector, threads);
                    plan *p = make(text, &t, &a);
                    if (!plan_agrees(p, &r, &a, why_not, sizeof why_not))
                        fail_msg("%lldx%lldx%lld, %d threads: %s", m, n, k, threads, why_not);
                    eval_memory *memory = eval_memory_make(p, &a);
                    for (int in = 0; in < 2; in++)
                        memcpy(memory->io[plan_io(p, in ? "w" : "x", false)], r.in.data[in], r.in.bytes[in]);
                    eval_plan(p, memory, &a);
                    const void *y = memory->io[plan_io(p, "y", true)];
                    if (!first) first = y, role = p->kernels.at[0].k->vars.at[1].role;
                    others += role.unroll != p->kernels.at[0].k->vars.at[1].role.unroll;
                    if (memcmp(first, y, sizeof(float) * (size_t)(m * n)) != 0)
                        fail_msg("%lldx%lldx%lld, turned %d: %d threads give other bits than one", m, n, k, transposed,
                                 threads);
                }
            }
            arena_fini(&a);
        }
    assert_true(others > 0); /* else this shows nothing */
    printf("count: %d plans of contractions for up to 16 threads\n", plans);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_even), cmocka_unit_test(test_bits) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
