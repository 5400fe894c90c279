/* test_gpu.c - kernels in the form of a GPU: random graphs, half of them differentiated, run thread by thread by the
 * interpreter against the reference evaluator, for small and large groups and grids; their texts read back; what the checker
 * must find.
 *
 * Labels: random
 * TENON_FUZZ_SEEDS: how many graphs (default 120); TENON_FUZZ_FIRST: the first seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/plan_run.h"

static bool fails(graph *g, void *ud) { return !plan_config_agrees(g, NULL, ud); }

static target gpu_target(uint64_t seed) {
    static const int groups[] = { 8, 32, 64, 16 };
    static const int64_t grids[] = { 64, 1 << 17, 512 };
    return (target){ .kind = TARGET_GPU,
                     .vector_bytes = 16,
                     .n_vector_regs = 32,
                     .threads = 1,
                     .l1_bytes = 32 << 10,
                     .l2_bytes = 1 << 20,
                     .group = groups[seed % 4],
                     .group_bytes = seed % 3 ? 32 << 10 : 3 << 10,
                     .grid = grids[seed / 4 % 3] };
}

static void run_seed(uint64_t seed, int *bad, int *runs, int *differentiated) {
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (GUARD_TRY(&gd)) {
        graph *g = randcase(&a, seed, differentiated);
        reference r = reference_make(g, &a, seed);
        for (int fusion = 0; fusion < 4; fusion++) {
            plan_config c = { .seed = seed,
                              .fusion = fusion,
                              .no_passes = (seed + (uint64_t)fusion) % 2,
                              .t = gpu_target(seed + (uint64_t)fusion * 5) };
            ++*runs;
            if (plan_config_agrees(g, &r, &c)) continue;
            ++*bad;
            fprintf(stderr, "seed %llu, fusion %d, no_passes %d: %s\n", (unsigned long long)seed, fusion, c.no_passes, c.text);
            if (getenv("TENON_FUZZ_NO_REDUCE")) continue;
            reduce_and_print(g, &a, fails, &c);
            fprintf(stderr, "  after reduction: %s\n", c.text);
        }
    } else {
        ++*bad;
        fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed, gd.err.text);
    }
    arena_fini(&a);
}

static void test_random_graphs(void **state) {
    (void)state;
    int bad = 0, runs = 0, differentiated = 0;
    uint64_t first, n = fuzz_seeds(120, &first);
    for (uint64_t seed = first; seed < first + n; seed++) run_seed(seed, &bad, &runs, &differentiated);
    printf("count: GPU form by the interpreter: %llu random graphs, %d with gradients, %d plans, %d failed\n",
           (unsigned long long)n, differentiated, runs, bad);
    assert_int_equal(bad, 0);
}

static void test_texts(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        arena a;
        guard gd;
        int differentiated;
        char text[4096];
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %d: %s", (int)seed, gd.err.text);
        graph *g = randcase(&a, seed, &differentiated);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = gpu_target(seed);
        o.fusion = (int)(seed % 4);
        if (!plan_texts_agree(pipeline_run(g, &a, &o, &t), &a, text, sizeof text)) fail_msg("seed %d: %s", (int)seed, text);
        arena_fini(&a);
    }
}

/* Each kernel has one problem, which is found. */
static void test_problems(void **state) {
    (void)state;
    static const struct {
        const char *text, *problem;
    } bad[] = {
        { "kernel @k(b0 out f32[8]) tiled groups 2 of 4 {\n var i = 4\n %1 = const 1  f32\n loop i = 0 .. 4 step 1 local\n"
          " store b0[i], %1  f32\n end\n}",
          "written by all groups" },
        { "kernel @k(b0 out f32[8]) tiled groups 2 of 4 {\n var g = 2 var i = 4\n %1 = const 1  f32\n loop g = 0 .. 2 step 1 "
          "groups\n"
          " loop i = 0 .. 4 step 1 local\n store b0[g + i], %1  f32\n end\n end\n}",
          "two groups meet" },
        { "kernel @k(b0 out f32[8]) tiled groups 3 of 4 {\n var g = 2 var i = 4\n %1 = const 1  f32\n loop g = 0 .. 2 step 1 "
          "groups\n"
          " loop i = 0 .. 4 step 1 local\n store b0[4*g + i], %1  f32\n end\n end\n}",
          "2 iterations for 3 groups" },
        { "kernel @k(b0 out f32[8]) tiled groups 1 of 4 {\n var i = 8\n loop i = 0 .. 8 step 1 local\n barrier\n end\n}",
          "threads meet in a loop that is dealt" },
        { "kernel @k(b0 out f32[8]) tiled groups 1 of 4 {\n var i = 4 var g = 1\n loop i = 0 .. 4 step 1 local\n"
          " loop g = 0 .. 1 step 1 grid\n end\n end\n}",
          "not outermost" },
        { "kernel @k(b0 out f32[8]) tiled groups 1 of 4 {\n var i = 2 var j = 4\n %1 = const 1  f32\n loop i = 0 .. 2 step 1 "
          "grid\n"
          " loop j = 0 .. 4 step 1 grid\n store b0[4*i + j], %1  f32\n end\n %6 = const 2  f32\n end\n}",
          "not perfect" },
        { "kernel @k(b0 out f32[8]) tiled groups 1 of 3 {\n}", "groups of 3 threads" },
        { "kernel @k(b0 out f32[8]) tiled {\n barrier\n}", "threads meet in a kernel that has none" },
        { "kernel @k(b0 in f32[8]) tiled groups 1 of 4 {\n %1 = load b0[0]  f32\n %2 = group %1, %1 argmax on f32  i64\n}",
          "index %1 is f32" },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        arena a;
        guard gd;
        str out;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
        str_init(&out, &a);
        assert_int_not_equal(kernel_check(kernel_parse(&a, bad[i].text, strlen(bad[i].text), "t"), &out), 0);
        if (!strstr(out.s, bad[i].problem)) fail_msg("%s: not in: %s", bad[i].problem, out.s);
        arena_fini(&a);
    }
}

/* Threads that do not all come to a barrier are found by the interpreter, too. */
static void test_parting(void **state) {
    (void)state;
    static const char text[] =
        "kernel @k(b0 out f32[8]) tiled groups 1 of 4 {\n var i = 2\n loop i = 0 .. 2 step 1 local\n barrier\n end\n}";
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (GUARD_TRY(&gd)) {
        float out[8];
        unsigned char *base[] = { (unsigned char *)out };
        eval_kernel(kernel_parse(&a, text, strlen(text), "t"), base, &a);
        fail_msg("ran");
    }
    assert_non_null(strstr(gd.err.text, "only some threads come here"));
    arena_fini(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_problems), cmocka_unit_test(test_parting),
                                        cmocka_unit_test(test_texts), cmocka_unit_test(test_random_graphs) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
