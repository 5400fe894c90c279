/* test_gpu.c - kernels in the form of a GPU: random graphs, half of them differentiated, run thread by thread by the
 * interpreter against the reference evaluator, for small and large groups and grids; their texts read back; what the checker
 * must find.
 *
 * Labels: random long
 * TENON_FUZZ_SEEDS: twice as many as graphs (default 120); TENON_FUZZ_FIRST: the first seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "recipe/recipe.h"
#include "loop/gpu_access.h"
#include "support/plan_run.h"

static bool fails(graph *g, void *ud) { return !plan_config_agrees(g, NULL, ud); }

static target gpu_target(uint64_t seed) {
    static const int grid_blocks[] = { 8, 32, 64, 16, 256 }, clusters[] = { 0, 8, 2, 0, 4 }, buffers[] = { 0, 16, 256 };
    static const int64_t grids[] = { 64, 1 << 17, 512 };
    return (target){ .kind = TARGET_GPU,
                     .vector_bytes = 16,
                     .n_vector_regs = seed % 7 < 3 ? 32 : 64,
                     .threads = 1,
                     .l1_bytes = 32 << 10,
                     .l2_bytes = 1 << 20,
                     .block_threads = grid_blocks[seed % 5],
                     .max_block_threads = seed % 6 < 2 ? 0 : grid_blocks[seed % 5] * (seed % 6 == 2 ? 1 : 4),
                     .shared_bytes = seed % 3 ? 48 << 10 : 3 << 10,
                     .resident_threads = grids[seed / 4 % 3],
                     .buffers = buffers[seed / 7 % 3],
                     .cluster = clusters[seed / 3 % 5],
                     .clusters = (int)(seed / 11 % 3) * 8 };
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
    uint64_t first, n = (fuzz_seeds(120, &first) + 1) / 2; /* at four fusion levels each */
    for (uint64_t seed = first; seed < first + n; seed++) run_seed(seed, &bad, &runs, &differentiated);
    printf("count: GPU form by the interpreter: %llu random graphs, %d with gradients, %d plans, %d failed\n",
           (unsigned long long)n, differentiated, runs, bad);
    assert_int_equal(bad, 0);
}

/* Graphs that were wrong once, on targets as above. */
static void test_reduced(void **state) {
    (void)state;
    static const char *const graphs[] = {
        /* rows of local memory under masks are no one loop */
        "graph @g(x i32[7,7,7,1], c bool[7,7,7,1]) {\n %1 = or x, x i32[7,7,7,1]\n"
        " %2 = window %1 (axis=0 size=1 stride=1 dilation=1) (axis=2 size=2 stride=1 dilation=1) i32[7,7,6,1,1,2]\n"
        " %3 = fold %2 (axis=0 size=1 stride=1 dilation=1) (axis=2 size=2 stride=1 dilation=1) i32[7,7,7,1]\n"
        " %4 = mod %1, %3 i32[7,7,7,1]\n %5 = select c, %3, x i32[7,7,7,1]\n return %5 as \"y\", %4 as \"z\"\n}",
        /* a thread's share of a sum over values of 16 bits that are in no memory */
        "graph @g(x bf16[5,8,33,3,3]) {\n %1 = iota axis=2 bf16[3,33,8]\n"
        " %2 = dot %1, x batch=[2,0]x[1,3] contract=[1]x[2] bf16[8,3,5,3]\n return %2 as \"y\"\n}",
        "graph @g(x f16[33,17]) {\n %1 = iota axis=0 f16[5,33]\n %2 = dot %1, x contract=[1]x[0] f16[5,17]\n return %2 as "
        "\"y\"\n}",
        /* what is copied before numbers are added to it is copied by other threads */
        "graph @g(x i64[8], y f32[1,4,1,16], z f32[1,8,1,16]) {\n %1 = scatter_add y, x, z axis=1 f32[1,4,1,16]\n"
        " return %1 as \"out\"\n}",
        /* a loop of contractions in which a mask follows the loop's variable */
        "graph @g(s i32[5,3], x f32[1,8,2,1], y i32[5,3], z f32[1,15], b f32[5,15], a f32[5,3]) {\n"
        " %1 = fold x (axis=0 size=2 stride=2 dilation=2) (axis=1 size=1 stride=2 dilation=2) f32[3,15]\n"
        " %2 = reshape z f32[15]\n %3 = dot a, b contract=[0]x[0] f32[3,15]\n %4 = add %1, %3 f32[3,15]\n"
        " return y as \"w\", %4 as \"p\", %2 as \"q\"\n}",
    };
    for (size_t i = 0; i < COUNT_OF(graphs); i++)
        for (uint64_t seed = 0; seed < 12; seed++) {
            arena a;
            guard gd;
            arena_init(&a, mem_libc(), &gd);
            if (!GUARD_TRY(&gd)) fail_msg("graph %zu: %s", i, gd.err.text);
            graph *g = graph_parse(&a, graphs[i], strlen(graphs[i]), "t");
            reference r = reference_make(g, &a, seed);
            for (int way = 0; way < 8; way++) {
                plan_config c = { .seed = seed, .fusion = way / 2, .no_passes = way % 2, .t = gpu_target(seed) };
                if (!plan_config_agrees(g, &r, &c))
                    fail_msg("graph %zu, seed %d, fusion %d: %s", i, (int)seed, way / 2, c.text);
            }
            arena_fini(&a);
        }
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

/* Two clusters of two groups of four threads. */
#define CLUSTERS                                                                                                               \
    "kernel @k(b0 in f32[16], b1 out f32[16], b2 distributed f32[8]) tiled blocks 4 threads 4 cluster 2 {\n"                   \
    "  var g = 2\n  var m = 2\n  var i = 4\n  var s = 3\n  loop g = 0 .. 2 step 1 blocks\n    loop m = 0 .. 2 step 1 blocks\n"

/* b2 lies where b1 does. */
#define LATE(body)                                                                                                             \
    "kernel @k(b0 in f32[8], b1 shared f32[8], b2 shared f32[8] late) tiled blocks 1 threads 8 {\n var i = 8\n var s = 2\n"    \
    " loop i = 0 .. 8 step 1 block-threads\n %2 = load b0[i]  f32\n" body " end\n}"

/* Two by two tiles of rows * columns, four rows apart each. */
#define TILES(g, h, row, columns, elems, mask)                                                                                 \
    "kernel @k(b0 out f32[" elems "]) tiled blocks 4 threads 4 {\n var g = 2 var h = 2 var i = 4 var s = " columns             \
    "\n %1 = const 1  f32\n loop g = 0 .. 2 step 1 blocks\n loop h = 0 .. 2 step 1 blocks\n"                                   \
    " loop i = 0 .. 4 step 1 block-threads\n loop s = 0 .. " columns " step 1\n"                                               \
    " store b0[" g "*g + " h "*h + " row "*i + s], %1" mask "  f32\n end\n end\n end\n end\n}"

/* Thread blocks with tiles of a matrix that nobody could go through element by element, also of rows that the last tile is too
 * wide for. */
static void test_large(void **state) {
    (void)state;
    static const char *const good[] = {
        "kernel @k(b0 out f32[1099511627776]) tiled blocks 268435456 threads 4 {\n"
        " var g = 16384 var h = 16384 var i = 4 var s = 64\n %1 = const 1  f32\n"
        " loop g = 0 .. 16384 step 1 blocks\n loop h = 0 .. 16384 step 1 blocks\n"
        " loop i = 0 .. 4 step 1 block-threads\n loop s = 0 .. 64 step 1\n"
        " store b0[67108864*g + 64*h + 16777216*i + s], %1  f32\n end\n end\n end\n end\n}",
        "kernel @k(b0 out f32[65536196672]) tiled blocks 256016384 threads 4 {\n"
        " var g = 16384 var h = 15626 var i = 4 var s = 16\n %1 = const 1  f32\n"
        " loop g = 0 .. 16384 step 1 blocks\n loop h = 0 .. 15626 step 1 blocks\n"
        " loop i = 0 .. 4 step 1 block-threads\n loop s = 0 .. 16 step 1\n"
        " store b0[4000012*g + 64*h + 1000003*i + 4*s] step 1, %1 where 0 <= 64*h + 4*s step 1 < 1000003  f32x4\n"
        " end\n end\n end\n end\n}",
    };
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        arena a;
        guard gd;
        str out;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
        str_init(&out, &a);
        if (kernel_check(kernel_parse(&a, good[i], strlen(good[i]), "t"), &out)) fail_msg("%s", out.s);
        arena_fini(&a);
    }
}

/* Whether tiles of random sizes and places touch each other is found, whether it is proven or gone through. */
static void test_tiles_apart(void **state) {
    (void)state;
    static const char form[] =
        "kernel @k(b0 out f32[1000]) tiled blocks 6 threads 4 {\n var g = 2 var h = 3 var i = 4 var s = 9\n"
        " %%1 = const 1  f32\n loop g = 0 .. 2 step 1 blocks\n loop h = 0 .. 3 step 1 blocks\n"
        " loop i = 0 .. 4 step 1 block-threads\n loop s = 0 .. %d step 1\n store b0[%d*g + %d*h + "
        "%d*i + s + %d], %%1 where %d <= %d*h + s < %d  f32\n end\n end\n end\n end\n}";
    rng r = rng_make(77);
    int n_clashes = 0;
    for (int n = 0; n < 2000; n++) {
        int row = (int)rng_between(&r, 4, 26), h = (int)rng_between(&r, 1, 9), columns = (int)rng_between(&r, 1, 9),
            g = (int)rng_between(&r, 3, 5) * row + (rng_chance(&r, 0.2) ? 1 : 0), base = (int)rng_between(&r, 0, 40),
            lo = (int)rng_below(&r, 2), hi = rng_chance(&r, 0.5) ? row : 1000, owner[1000] = { 0 }, clash = 0;
        for (int b = 0; b < 6; b++)
            for (int i = 0; i < 4; i++)
                for (int x = 0; x < columns; x++) {
                    int at = g * (b / 3) + h * (b % 3) + row * i + x + base, column = h * (b % 3) + x;
                    if (column < lo || column >= hi) continue;
                    clash |= owner[at] && owner[at] != b + 1;
                    owner[at] = b + 1;
                }
        arena a;
        guard gd;
        str out;
        char text[512];
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
        str_init(&out, &a);
        snprintf(text, sizeof text, form, columns, g, h, row, base, lo, h, hi);
        if ((kernel_check(kernel_parse(&a, text, strlen(text), "t"), &out) != 0) != (clash != 0))
            fail_msg("%s: %s %s", text, clash ? "not found" : "found", out.s);
        n_clashes += clash;
        arena_fini(&a);
    }
    assert_in_range(n_clashes, 200, 1800);
}

/* Each kernel has one problem, which is found. */
static void test_problems(void **state) {
    (void)state;
    static const struct {
        const char *text, *problem;
    } bad[] = {
        { "kernel @k(b0 out f32[8]) tiled blocks 2 threads 4 {\n var i = 4\n %1 = const 1  f32\n loop i = 0 .. 4 step 1 "
          "block-threads\n"
          " store b0[i], %1  f32\n end\n}",
          "written by all thread blocks" },
        { "kernel @k(b0 out f32[8]) tiled blocks 2 threads 4 {\n var g = 2 var i = 4\n %1 = const 1  f32\n loop g = 0 .. 2 "
          "step 1 "
          "blocks\n"
          " loop i = 0 .. 4 step 1 block-threads\n store b0[g + i], %1  f32\n end\n end\n}",
          "two thread blocks touch" },
        { "kernel @k(b0 out f32[16]) tiled blocks 4 threads 4 {\n var g = 2 var h = 2 var i = 4\n %1 = const 1  f32\n"
          " loop g = 0 .. 2 step 1 blocks\n loop h = 0 .. 2 step 1 blocks\n loop i = 0 .. 4 step 1 block-threads\n"
          " store b0[8*g + 3*h + i], %1  f32\n end\n end\n end\n}",
          "two thread blocks touch" }, /* nearer to each other than threads reach */
        { "kernel @k(b0 out f32[16]) tiled blocks 4 threads 4 {\n var g = 2 var h = 2 var i = 4\n %1 = const 1  f32\n"
          " loop g = 0 .. 2 step 1 blocks\n loop h = 0 .. 2 step 1 blocks\n loop i = 0 .. 4 step 1 block-threads\n"
          " store b0[4*g + 4*h + i], %1  f32\n end\n end\n end\n}",
          "two thread blocks touch" }, /* two variables come to the same */
        { "kernel @k(b0 out f32[16]) tiled blocks 2 threads 4 {\n var g = 2 var i = 4\n %1 = const 1  f32\n"
          " loop g = 0 .. 2 step 1 blocks\n loop i = 0 .. 4 step 1 block-threads\n store b0[4*g + i], %1  f32\n"
          " store b0[4*g + i + 1], %1  f32\n end\n end\n}",
          "two thread blocks touch" }, /* each store by itself keeps them apart */
        { "kernel @k(b0 inout f32[16]) tiled blocks 2 threads 4 {\n var g = 2 var i = 4\n loop g = 0 .. 2 step 1 blocks\n"
          " loop i = 0 .. 4 step 1 block-threads\n %3 = load b0[2*g + i]  f32\n store b0[4*g + i], %3  f32\n end\n end\n}",
          "two thread blocks touch" },                                         /* what is read goes in other steps */
        { TILES("64", "8", "16", "9", "136", ""), "two thread blocks touch" }, /* columns of the next tile */
        { TILES("64", "8", "16", "9", "136", " where 0 <= 8*h + s < 16"), "two thread blocks touch" },
        { TILES("48", "8", "16", "8", "136", ""), "two thread blocks touch" }, /* rows */
        { TILES("60", "8", "15", "8", "136", ""), "two thread blocks touch" }, /* the first column of the next row */
        { "kernel @k(b0 out f32[8]) tiled blocks 3 threads 4 {\n var g = 2 var i = 4\n %1 = const 1  f32\n loop g = 0 .. 2 "
          "step 1 "
          "blocks\n"
          " loop i = 0 .. 4 step 1 block-threads\n store b0[4*g + i], %1  f32\n end\n end\n}",
          "2 iterations for 3 thread blocks" },
        { "kernel @k(b0 out f32[8]) tiled blocks 1 threads 4 {\n var i = 8\n loop i = 0 .. 8 step 1 block-threads\n barrier\n "
          "end\n}",
          "a barrier in a loop bound to the threads" },
        { "kernel @k(b0 out f32[8]) tiled blocks 1 threads 4 {\n var i = 4 var g = 1\n loop i = 0 .. 4 step 1 block-threads\n"
          " loop g = 0 .. 1 step 1 grid-threads\n end\n end\n}",
          "not outermost" },
        { "kernel @k(b0 out f32[8]) tiled blocks 1 threads 4 {\n var i = 2 var j = 4\n %1 = const 1  f32\n loop i = 0 .. 2 "
          "step 1 "
          "grid-threads\n"
          " loop j = 0 .. 4 step 1 grid-threads\n store b0[4*i + j], %1  f32\n end\n %6 = const 2  f32\n end\n}",
          "not perfect" },
        { "kernel @k(b0 out f32[8]) tiled blocks 1 threads 3 {\n}", "blocks of 3 threads" },
        { "kernel @k(b0 inout f32[8]) tiled blocks 2 threads 4 {\n var g = 2\n %1 = const 1  f32\n %2 = const 3  i32\n"
          " loop g = 0 .. 2 step 1 blocks\n scatter b0[3*g + %2*1 of 4] += %1  f32\n end\n}",
          "two thread blocks touch" },
        { "kernel @k(b0 out f32[8]) tiled blocks 1 threads 4 {\n var i = 2\n %1 = const 1  i32\n loop i = 0 .. 2 step 1 if %1\n"
          " barrier\n end\n}",
          "not all threads run" },
        { "kernel @k(b0 out f32[8]) tiled blocks 1 threads 4 {\n var i = 2\n %1 = const 1  i32\n"
          " loop i = 0 .. 2 step 1 block-threads if %1\n end\n}",
          "a condition of a loop that is dealt" },
        { "kernel @k(b0 out f32[8]) tiled blocks 1 threads 4 {\n var i = 2\n %1 = const 1  f32\n loop i = 0 .. 2 step 1 if %1\n"
          " end\n}",
          "condition %1 is f32" },
        { "kernel @k(b0 out f32[8]) tiled {\n barrier\n}", "a barrier in a kernel without threads" },
        { "kernel @k(b0 in f32[8]) tiled blocks 1 threads 4 {\n %1 = load b0[0]  f32\n %2 = block-reduce %1, %1 argmax on f32  "
          "i64\n}",
          "operand %1 is f32" },
        { "kernel @k(b0 in f32[8]) tiled blocks 1 threads 4 {\n %1 = load b0[0] unmasked  f32\n}",
          "unmasked, and there is no mask" },
        { "kernel @k(b0 in f32[8]) tiled blocks 1 threads 4 {\n %1 = load b0[0]  f32\n %2 = neg %1 approximate  f32\n}",
          "approximate neg of f32 is the same" },
        { "kernel @k(b0 in f64[8]) tiled blocks 1 threads 4 {\n %1 = load b0[0]  f64\n %2 = exp %1 approximate  f64\n}",
          "approximate exp of f64 is the same" },
        { "kernel @k() tiled blocks 1 threads 4 {\n %1 = acc add 0  f32\n %2 = const 1  f32\n update %1 set %2  f32\n}",
          "accumulator %1 is of add, updated by set" },
        { "kernel @k() tiled blocks 1 threads 4 {\n %1 = acc set 0  f32\n %2 = const 1  f32\n update %1 add %2  f32\n}",
          "accumulator %1 is of set, updated by add" },
        { "kernel @k() tiled blocks 1 threads 4 {\n %1 = acc set 0  f32\n %2 = const 1  i32\n update %1 set %2  f32\n}",
          "operand %2 is i32" },
        { "kernel @k(b0 in f32[8]) tiled {\n %1 = load b0[0] rematerialised  f32\n}", "rematerialised, not for a GPU" },
        { "kernel @k() tiled blocks 3 threads 4 cluster 2 {\n}", "3 thread blocks in clusters of 2" },
        { "kernel @k(b0 distributed f32[8]) tiled blocks 2 threads 4 {\n}", "b0 is of a cluster, and there is none" },
        { "kernel @k() tiled blocks 2 threads 4 {\n barrier cluster\n}", "a cluster barrier without a cluster" },
        { CLUSTERS
          " loop i = 0 .. 4 step 1 block-threads\n %4 = load b0[8*g + 4*m + i]  f32\n store b2[4*m + i], %4  f32\n end\n "
          "barrier\n"
          " loop i = 0 .. 4 step 1 block-threads\n %9 = load b2[-4*m - i + 7]  f32\n store b1[8*g + 4*m + i], %9  f32\n end\n"
          " barrier cluster\n end\n end\n}",
          "b2 is read before the cluster has met" },
        { CLUSTERS
          " loop s = 0 .. 3 step 1\n"
          " loop i = 0 .. 4 step 1 block-threads\n %5 = load b0[8*g + 4*m + i]  f32\n store b2[4*m + i], %5  f32\n end\n"
          " barrier cluster\n"
          " loop i = 0 .. 4 step 1 block-threads\n %10 = load b2[-4*m - i + 7]  f32\n store b1[8*g + 4*m + i], %10  f32\n end\n"
          " end\n end\n end\n}",
          "b2 is written before the cluster has met" },
        { CLUSTERS " loop i = 0 .. 4 step 1 block-threads\n %4 = load b0[8*g + 4*m + i]  f32\n store b2[4*m + i], %4  f32\n "
                   "end\n end\n end\n}",
          "a thread block may end before another has written its copy of b2" },
        { CLUSTERS
          " loop s = 0 .. 3 step 1\n"
          " loop i = 0 .. 4 step 1 block-threads\n %5 = load b0[8*g + 4*m + i]  f32\n store b2[4*m + i], %5 async  f32\n end\n"
          " barrier mbarrier b2\n"
          " loop i = 0 .. 4 step 1 block-threads\n %10 = load b2[-4*m - i + 7]  f32\n store b1[8*g + 4*m + i], %10  f32\n end\n"
          " barrier\n end\n end\n end\n}",
          "b2 is written before the cluster has met" },
        { CLUSTERS
          " loop i = 0 .. 4 step 1 block-threads\n %4 = load b0[8*g + 4*m + i]  f32\n store b2[4*m + i], %4 async  f32\n end\n"
          " barrier cluster\n"
          " loop i = 0 .. 4 step 1 block-threads\n %9 = load b2[-4*m - i + 7]  f32\n store b1[8*g + 4*m + i], %9  f32\n end\n"
          " end\n end\n}",
          "b2 is read before the cluster has met" },
        { CLUSTERS " barrier mbarrier b1\n end\n end\n}", "b1 is of no cluster" },
        { LATE(" store b1[i], %2  f32\n store b2[i], %2  f32\n"), "b2 and what lies in the same place are needed at a time" },
        { LATE(" store b1[i], %2  f32\n barrier\n store b2[i], %2  f32\n %6 = load b1[i]  f32\n"),
          "b1 and what lies in the same place are needed at a time" },
        { LATE(" loop s = 0 .. 2 step 1\n store b1[i], %2  f32\n barrier\n store b2[i], %2  f32\n barrier\n end\n"),
          "b2 and what lies in the same place are needed at a time" },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        arena a;
        guard gd;
        str out;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
        str_init(&out, &a);
        if (!kernel_check(kernel_parse(&a, bad[i].text, strlen(bad[i].text), "t"), &out))
            fail_msg("nothing is found in %s", bad[i].text);
        if (!strstr(out.s, bad[i].problem)) fail_msg("%s: not in: %s", bad[i].problem, out.s);
        arena_fini(&a);
    }
}

/* Each thread loads a number for the next iteration: y is x. Without the update in the loop it is not. */
static void test_carried(void **state) {
    (void)state;
    static const char text[] = "kernel @k(b0 in f32[16], b1 out f32[16]) tiled blocks 1 threads 4 {\n"
                               "  var t = 4\n"
                               "  var s = 3\n"
                               "  loop t = 0 .. 4 step 1 block-threads\n"
                               "    %2 = acc set 0.0  f32\n"
                               "    %3 = load b0[t]  f32\n"
                               "    update %2 set %3  f32\n"
                               "    loop s = 0 .. 3 step 1\n"
                               "      store b1[t + 4*s], %2  f32\n"
                               "      %7 = load b0[t + 4*s + 4]  f32\n"
                               "      update %2 set %7  f32\n"
                               "    end\n"
                               "    store b1[t + 12], %2  f32\n"
                               "  end\n"
                               "}\n";
    enum { UPDATE = 8 };
    arena a;
    guard gd;
    str out;
    float x[16], y[16] = { 0 };
    rng r = rng_make((uint64_t)(now_seconds() * 1e6));
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    str_init(&out, &a);
    kernel *k = kernel_parse(&a, text, sizeof text - 1, "t"), *other = kernel_clone(k, &a);
    if (kernel_check(k, &out)) fail_msg("%s", out.s);
    kernel_print(k, &out);
    assert_string_equal(out.s, text);
    for (int i = 0; i < 16; i++) x[i] = (float)rng_between(&r, 1, 1000) + (float)(i * 1000);
    unsigned char *base[] = { (unsigned char *)x, (unsigned char *)y, NULL, NULL };
    eval_kernel(k, base, &a);
    assert_memory_equal(x, y, sizeof x);
    other->ins.at[UPDATE].a = 3;
    eval_kernel(other, base, &a);
    assert_memory_not_equal(x, y, sizeof x);
    arena_fini(&a);
}

/* Groups of a cluster turn their rows round: what one writes, the other reads. */
static void turn_round(const char *text) {
    arena a;
    guard gd;
    str out;
    float x[16], y[16] = { 0 };
    rng r = rng_make((uint64_t)(now_seconds() * 1e6));
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    str_init(&out, &a);
    kernel *k = kernel_parse(&a, text, strlen(text), "t");
    if (kernel_check(k, &out)) fail_msg("%s", out.s);
    kernel_print(k, &out);
    assert_string_equal(out.s, text);
    kernel *other = kernel_clone(k, &a);
    assert_true(kernel_equal(k, other));
    other->cluster = 4;
    assert_false(kernel_equal(k, other));
    assert_int_not_equal(kernel_hash(k, 0), kernel_hash(other, 0));
    for (int i = 0; i < 16; i++) x[i] = (float)rng_between(&r, -1000, 1000);
    unsigned char *base[] = { (unsigned char *)x, (unsigned char *)y, NULL, NULL };
    eval_kernel(k, base, &a);
    for (int i = 0; i < 16; i++) assert_true(y[i] == x[i / 8 * 8 + 7 - i % 8]);
    arena_fini(&a);
}

static void test_clusters(void **state) {
    (void)state;
    turn_round(CLUSTERS "      loop s = 0 .. 3 step 1\n"
                        "        loop i = 0 .. 4 step 1 block-threads\n"
                        "          %5 = load b0[8*g + 4*m + i]  f32\n"
                        "          store b2[4*m + i], %5  f32\n"
                        "        end\n"
                        "        barrier cluster\n"
                        "        loop i = 0 .. 4 step 1 block-threads\n"
                        "          %10 = load b2[-4*m - i + 7]  f32\n"
                        "          store b1[8*g + 4*m + i], %10  f32\n"
                        "        end\n"
                        "        barrier cluster\n"
                        "      end\n    end\n  end\n}\n");
    turn_round("kernel @k(b0 in f32[16], b1 out f32[16], b2 distributed f32[8], b3 distributed f32[8]) tiled blocks 4 threads "
               "4 cluster 2 {\n"
               "  var g = 2\n  var m = 2\n  var i = 4\n  var s = 3\n  loop g = 0 .. 2 step 1 blocks\n"
               "    loop m = 0 .. 2 step 1 blocks\n"
               "      loop s = 0 .. 3 step 1\n"
               "        loop i = 0 .. 4 step 1 block-threads\n"
               "          %5 = load b0[8*g + 4*m + i]  f32\n"
               "          store b2[4*m + i], %5 async  f32\n"
               "        end\n"
               "        barrier mbarrier b2\n"
               "        loop i = 0 .. 4 step 1 block-threads\n"
               "          %10 = load b2[-4*m - i + 7]  f32\n"
               "          store b1[8*g + 4*m + i], %10  f32\n"
               "        end\n"
               "        barrier\n"
               "        loop i = 0 .. 4 step 1 block-threads\n"
               "          %15 = load b0[8*g + 4*m + i]  f32\n"
               "          store b3[4*m + i], %15 async  f32\n"
               "        end\n"
               "        barrier mbarrier b3\n"
               "      end\n    end\n  end\n}\n");
}

/* Fewer elements than the buffer has are written: the wait would have no end. */
static void test_never_full(void **state) {
    (void)state;
    static const char text[] =
        CLUSTERS " loop i = 0 .. 4 step 1 block-threads\n %4 = load b0[8*g + 4*m + i]  f32\n"
                 " store b2[4*m + i], %4 where 0 <= i < 3 async  f32\n end\n barrier mbarrier b2\n end\n end\n}";
    arena a;
    guard gd;
    float x[16] = { 0 }, y[16];
    arena_init(&a, mem_libc(), &gd);
    if (GUARD_TRY(&gd)) {
        unsigned char *base[] = { (unsigned char *)x, (unsigned char *)y, NULL };
        eval_kernel(kernel_parse(&a, text, strlen(text), "t"), base, &a);
        fail();
    }
    assert_non_null(strstr(gd.err.text, "waited for: 6 of 8"));
    arena_fini(&a);
}

/* What 32 threads touch together: counted by hand. */
static void test_accesses(void **state) {
    (void)state;
    static const struct {
        const char *body;
        gpu_access want;
    } cases[] = {
        { "loop i = 0 .. 64 step 1 grid-threads\n %2 = load b0[i]  f32\n store b1[i], %2  f32\n end", { 0, 0, 0, 32, 128, 4 } },
        { "loop i = 0 .. 64 step 1 grid-threads\n %2 = load b0[64*i]  f32\n store b1[i], %2  f32\n end",
          { 0, 0, 0, 32, 128, 32 } },
        { "loop i = 0 .. 64 step 1 grid-threads\n %2 = load b0[i + 4]  f32\n store b1[i], %2  f32\n end",
          { 0, 0, 0, 32, 128, 5 } },
        { "loop i = 0 .. 64 step 1 grid-threads\n %2 = load b0[7]  f32\n store b1[i], %2  f32\n end", { 0, 0, 0, 32, 4, 1 } },
        { "loop i = 0 .. 64 step 1 grid-threads\n %2 = load b0[4095 - i]  f32\n store b1[i], %2  f32\n end",
          { 0, 0, 0, 32, 128, 4 } },
        { "loop i = 0 .. 8 step 1 grid-threads\n loop j = 0 .. 8 step 1 grid-threads\n %3 = load b0[i + 64*j]  f32\n store "
          "b1[8*i + j], %3  "
          "f32\n end\n end",
          { 0, 0, 0, 32, 128, 8 } },
        { "loop j = 0 .. 4 step 1 block-threads\n loop i = 3 .. 9 step 1\n %3 = load b0[i + 64*j]  f32\n store b1[8*i + j], %3 "
          " f32\n end\n end",
          { 0, 0, 0, 4, 16, 4 } },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        arena a;
        guard gd;
        gpu_access *at;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("case %zu: %s", i, gd.err.text);
        const char *text =
            arena_printf(&a,
                         "kernel @k(b0 in f32[4096], b1 out f32[4096]) tiled blocks 1 threads 64 {\n var i = 64 var j = "
                         "8\n %s\n}",
                         cases[i].body);
        assert_int_equal(gpu_accesses(kernel_parse(&a, text, strlen(text), "t"), &a, &at), 2);
        const gpu_access *w = &cases[i].want;
        if (at[0].buf != 0 || at[0].store || at[0].indexed || at[0].threads != w->threads || at[0].bytes != w->bytes ||
            at[0].sectors != w->sectors)
            fail_msg("case %zu: %d threads, %d bytes, %d sectors", i, at[0].threads, at[0].bytes, at[0].sectors);
        assert_true(at[1].buf == 1 && at[1].store);
        arena_fini(&a);
    }
}

/* Threads that do not all come to a barrier are found by the interpreter, too. */
static void test_parting(void **state) {
    (void)state;
    static const char text[] = "kernel @k(b0 out f32[8]) tiled blocks 1 threads 4 {\n var i = 2\n loop i = 0 .. 2 step 1 "
                               "block-threads\n barrier\n end\n}";
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

/* A contraction with what comes before and behind it, in any layout; `half`: operands of 16 bits. */
static graph *product(arena *a, rng *r, int64_t m, int64_t k, int64_t n, bool half) {
    static const int64_t swap[] = { 1, 0 }, ca[] = { 1 }, cb[] = { 0 };
    graph *g = graph_make(a, "product");
    bool tx = rng_chance(r, 0.5), ty = rng_chance(r, 0.5);
    tn_dtype t = half ? TN_BF16 : TN_F32;
    val x = graph_add(
        g, &(spec){ .op = OP_input, .dtype = t, .name = "x", .rank = 2, .dims = (int64_t[]){ tx ? k : m, tx ? m : k } });
    val y = graph_add(
        g, &(spec){ .op = OP_input, .dtype = t, .name = "y", .rank = 2, .dims = (int64_t[]){ ty ? n : k, ty ? k : n } });
    val b = graph_add(g, &(spec){ .op = OP_input, .dtype = t, .name = "b", .rank = 1, .dims = &n });
    if (rng_chance(r, 0.5)) x = graph_unary(g, OP_cos, x); /* not 0 where its operand is */
    if (rng_chance(r, 0.5)) y = graph_unary(g, OP_cos, y);
    if (tx) x = graph_permute(g, x, swap);
    if (ty) y = graph_permute(g, y, swap);
    val v = graph_dot(g, x, y, NULL, NULL, 0, ca, cb, 1);
    if (rng_chance(r, 0.5)) v = graph_binary(g, OP_add, v, graph_broadcast(g, b, 2, (int64_t[]){ m, n }));
    if (rng_chance(r, 0.5)) v = graph_binary(g, OP_max, v, graph_splat_like(g, v, 0.1));
    if (rng_chance(r, 0.3)) v = graph_permute(g, v, swap);
    graph_output(g, "out", v);
    graph_compact(g);
    return g;
}

typedef struct tile_kind { /* what a tiled kernel makes use of */
    bool tiled, wide, double_buffer, early, carried, split_k;
} tile_kind;

static tile_kind kind_of(const kernel *k) {
    tile_kind t = { 0 };
    int n = 0, barriers = 0, depth = 0, serial = 0;
    for (int b = 0; b < k->bufs.n; b++) n += k->bufs.at[b].kind == KB_SHARED;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        depth += (in->op == K_LOOP) - (in->op == K_END);
        barriers += in->op == K_BARRIER;
        serial += in->op == K_BARRIER && i > 1 && k->ins.at[i - 1].op == K_STORE;
        t.early |= in->op == K_LOAD && in->mode == LOAD_UNMASKED;
        t.carried |= in->op == K_ACC && in->alu == OP_NIL;
        t.wide |= in->op == K_LOAD && in->lanes >= 2 && k->bufs.at[in->buf].kind == KB_IN && kernel_aligned(k, in, in->lanes);
    }
    t.tiled = n >= 2, t.split_k = n == 3, t.double_buffer = n >= 2 && barriers - t.split_k == 2 && serial - t.split_k == 2;
    return t;
}

static void test_tiles(void **state) {
    (void)state;
    static const int64_t sizes[][3] = { { 64, 64, 64 },   { 65, 17, 33 },  { 33, 129, 70 }, { 40, 1, 40 },
                                        { 100, 16, 31 },  { 31, 47, 100 }, { 128, 33, 64 }, { 128, 64, 128 },
                                        { 64, 144, 192 }, { 16, 200, 16 }, { 8, 512, 12 },  { 60, 76, 68 } };
    uint64_t seed = (uint64_t)now_seconds() ^ 0x9e3779b9u;
    rng r = rng_make(seed);
    int tiled = 0, all = 0, wide = 0, double_buffer = 0, early = 0, carried = 0, split_k = 0;
    for (size_t i = 0; i < COUNT_OF(sizes) * 4; i++) {
        arena a;
        guard gd;
        char text[4096];
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s", (unsigned long long)seed, gd.err.text);
        const int64_t *s = sizes[i / 4];
        graph *g = product(&a, &r, s[0], s[1], s[2], i % 4 == 3);
        plan_config c = { .seed = seed + i, .fusion = 3, .t = gpu_target(i) };
        c.t.resident_threads = i % 3 ? 64 : 1 << 17, c.t.shared_bytes = 32 << 10;
        if (i % 2) c.t.block_threads = 256;
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("seed %llu, case %zu: %s", (unsigned long long)seed, i, c.text);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        plan *p = pipeline_run(g, &a, &o, &c.t);
        if (!plan_texts_agree(p, &a, text, sizeof text)) fail_msg("case %zu: %s", i, text);
        for (int k = 0; k < p->kernels.n; k++) {
            tile_kind t = kind_of(p->kernels.at[k].k);
            tiled += t.tiled, wide += t.wide, double_buffer += t.double_buffer, early += t.early, carried += t.carried,
                split_k += t.split_k;
        }
        all += 1;
        arena_fini(&a);
    }
    printf("%d contractions, %d in tiles, %d with wide loads, %d with two blocks, %d with early loads, %d that carry loads on, "
           "%d with partial tiles\n",
           all, tiled, wide, double_buffer, early, carried, split_k);
    assert_true(tiled >= all / 2);
    assert_true(wide > 2 && double_buffer > 2 && early > 0 && carried > 2 && split_k > 2);
}

/* Elementwise work that reads across what it writes, or sums over rows. */
static graph *across(arena *a, rng *r, int64_t m, int64_t n, bool sums) {
    static const int64_t swap[] = { 1, 0 };
    static const tn_dtype types[] = { TN_F32, TN_F32, TN_BF16, TN_F64, TN_I32 };
    graph *g = graph_make(a, "across");
    tn_dtype t = types[rng_below(r, COUNT_OF(types))];
    val x = graph_add(g, &(spec){ .op = OP_input, .dtype = t, .name = "x", .rank = 2, .dims = (int64_t[]){ m, n } });
    val y = graph_add(g, &(spec){ .op = OP_input, .dtype = t, .name = "y", .rank = 2, .dims = (int64_t[]){ n, m } });
    if (dtype_is_float(t) && rng_chance(r, 0.5)) x = graph_unary(g, OP_cos, x); /* not 0 where its operand is */
    if (sums) {
        static const op_code ops[] = { OP_sum, OP_reduce_max, OP_reduce_min };
        x = graph_reduce(g, ops[rng_below(r, COUNT_OF(ops))], x, 1);
        if (rng_chance(r, 0.5)) x = graph_binary(g, OP_mul, x, graph_splat_like(g, x, 2));
    } else {
        x = graph_permute(g, x, swap);
        if (rng_chance(r, 0.6)) x = graph_binary(g, OP_sub, x, y);
    }
    graph_output(g, "out", x);
    graph_compact(g);
    return g;
}

static void test_across(void **state) {
    (void)state;
    static const int64_t sizes[] = { 64, 65, 100, 128, 33, 48, 260, 1, 0 };
    uint64_t seed = (uint64_t)now_seconds() ^ 0x5bd1e995u;
    rng r = rng_make(seed);
    int fast = 0, all = 0;
    for (int i = 0; i < 60; i++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s", (unsigned long long)seed, gd.err.text);
        int64_t m = sizes[rng_below(&r, COUNT_OF(sizes))], n = sizes[rng_below(&r, COUNT_OF(sizes))];
        plan_config c = { .seed = seed + (uint64_t)i, .fusion = 3, .t = gpu_target(i) };
        c.t.block_threads = i % 4 ? 256 : 64, c.t.resident_threads = i % 3 ? 4096 : 64, c.t.shared_bytes = 48 << 10;
        graph *g = across(&a, &r, m, n, i % 2);
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("seed %llu, case %d: %s", (unsigned long long)seed, i, c.text);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        plan *p = pipeline_run(g, &a, &o, &c.t);
        for (int k = 0; k < p->kernels.n; k++)
            for (int b = 0; b < p->kernels.at[k].k->bufs.n; b++) fast += p->kernels.at[k].k->bufs.at[b].kind == KB_SHARED;
        all++;
        arena_fini(&a);
    }
    printf("%d turned or summed over rows, %d through shared memory\n", all, fast);
    assert_true(fast >= all / 4);
}

/* Softmax, or a norm: rows of elementwise work and sums over them. */
static graph *rows_of(arena *a, tn_dtype t, int64_t rows, int64_t n, bool norm) {
    graph *g = graph_make(a, "rows");
    int64_t dims[] = { rows, n };
    val x = graph_add(g, &(spec){ .op = OP_input, .dtype = t, .name = "x", .rank = 2, .dims = dims });
    val top = graph_reduce(g, norm ? OP_sum : OP_reduce_max, x, 2);
    if (norm) top = graph_binary(g, OP_mul, top, graph_splat_like(g, top, 1.0 / (double)(n ? n : 1)));
    val d = graph_binary(g, OP_sub, x, graph_expand(g, top, dims));
    val e = norm ? d : graph_unary(g, OP_exp, d);
    val sum = graph_reduce(g, OP_sum, norm ? graph_binary(g, OP_mul, d, d) : e, 2);
    if (norm) sum = graph_binary(g, OP_add, sum, graph_splat_like(g, sum, 1));
    graph_output(g, "out", graph_binary(g, OP_div, e, graph_expand(g, sum, dims)));
    graph_compact(g);
    return g;
}

/* Rows that are whole vectors of all threads stay in registers: nothing of them is in the memory of the group, and threads meet
 * for the sums alone. Long ones are a cluster's, or held two numbers of 16 bits in a register. */
static void test_rows(void **state) {
    (void)state;
    static const int64_t sizes[] = { 2048, 1024, 512, 4096, 8192, 384, 256, 100, 33, 1, 0, 4096, 6144 };
    static const tn_dtype types[] = { TN_F32, TN_BF16, TN_F16, TN_F64 };
    uint64_t seed = (uint64_t)now_seconds() ^ 0x9e3779b9u;
    rng r = rng_make(seed);
    int held = 0, long_rows = 0, clusters = 0, fetches = 0, packed = 0;
    for (int i = 0; i < 90; i++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s", (unsigned long long)seed, gd.err.text);
        plan_config c = { .seed = seed + (uint64_t)i, .fusion = 3, .t = gpu_target(i) };
        c.t.block_threads = i % 4 ? 32 : 64, c.t.resident_threads = i % 3 ? 64 : 4096, c.t.max_block_threads = i % 5 ? 256 : 0;
        c.t.shared_bytes = i % 3 ? 48 << 10 : 3 << 10; /* no room for long rows: computed again */
        bool too_long = i % 9 == 4;                    /* for a group */
        if (too_long) c.t.max_block_threads = 64;
        bool twice = i % 9 == 7; /* as long as groups have for themselves */
        if (twice) c.t.max_block_threads = 256, c.t.shared_bytes = 3 << 10, c.t.resident_threads = 512;
        c.t.cluster = too_long || i % 7 > 3 ? 2 << i % 3 : 0, c.t.clusters = 15;
        int64_t n = too_long ? 8192 : twice ? 6144 + i % 2 * 2048 : sizes[rng_below(&r, COUNT_OF(sizes))];
        graph *g = rows_of(&a, types[i % 4], 1 + rng_below(&r, 20), n, i / 4 % 2);
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("seed %llu, case %d: %s", (unsigned long long)seed, i, c.text);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3;
        plan *p = pipeline_run(g, &a, &o, &c.t);
        const kernel *k = p->kernels.at[p->kernels.n - 1].k;
        bool own = false, shared = false;
        for (int b = 0; b < k->bufs.n; b++)
            own |= k->bufs.at[b].kind == KB_LOCAL && k->bufs.at[b].elems > 0,
                shared |= k->bufs.at[b].kind == KB_SHARED && k->bufs.at[b].elems > 0;
        assert_false(own && shared);
        bool back = false; /* a sum of 16 bits that is computed again from memory, where the row is held packed */
        for (int j = 1; j < k->ins.n; j++) back |= k->ins.at[j].op == K_LOAD && k->bufs.at[k->ins.at[j].buf].kind == KB_INOUT;
        assert_false(back && dtype_size(types[i % 4]) != 2);
        for (int j = 1; j < k->ins.n && own && !back; j++)
            assert_true(k->ins.at[j].op != K_BARRIER || (k->cluster && k->ins.at[j].mode == BARRIER_MBARRIER));
        for (int j = 1; j < k->ins.n; j++) fetches += k->ins.at[j].op == K_PREFETCH;
        bool anew = false;
        for (int j = 1; j < k->ins.n; j++) anew |= k->ins.at[j].op == K_LOAD && k->ins.at[j].mode == LOAD_REMATERIALISED;
        int ahead = 0; /* all of a packed row is under way first, then the next row */
        for (int j = 1; j < k->ins.n && anew; j++) {
            const kins *in = &k->ins.at[j];
            assert_true(in->op != K_PREFETCH || ahead);
            if (in->op != K_LOAD) continue;
            assert_true(in->mode != LOAD_REMATERIALISED || k->bufs.at[in->buf].kind == KB_LOCAL);
            if (in->mode != LOAD_HOISTED) continue;
            assert_true(in[1].op == K_STORE && in[2].op == K_END && k->bufs.at[in[1].buf].kind == KB_LOCAL);
            ahead++;
        }
        assert_true(!anew || dtype_size(types[i % 4]) == 2);
        assert_int_equal(ahead, anew);
        packed += anew;
        held += own, long_rows += k->block_threads > c.t.block_threads, clusters += k->cluster > 0;
        arena_fini(&a);
    }
    printf(
        "90 of rows, %d with a value's part of a row in registers, %d with long rows in larger groups, %d by clusters, %d with "
        "two numbers in a register\n",
        held, long_rows, clusters, packed);
    assert_true(held > 5 && long_rows > 0 && clusters > 0 && fetches > 1);
}

/* x[before.., places, after..] with `adds` values added, an index in ten out of range. */
static graph *scattered(arena *a, op_code op, tn_dtype t, tn_dtype ti, int64_t before, int64_t places, int64_t after,
                        int64_t adds, op_code base) {
    graph *g = graph_make(a, "scattered");
    int64_t dims[] = { before, places, after }, dims_u[] = { before, adds, after };
    val x = graph_splat(g, t, 3, dims, 0),
        i = graph_add(g,
                      &(spec){ .op = OP_iota, .dtype = ti, .rank = 1, .dims = &adds, .attr = (int64_t[]){ 0 }, .n_attr = 1 });
    if (base) x = graph_add(g, &(spec){ .op = base, .dtype = t, .name = "x", .rank = 3, .dims = dims });
    val u = graph_add(g, &(spec){ .op = OP_input, .dtype = t, .name = "u", .rank = 3, .dims = dims_u });
    i = graph_binary(g, OP_mul, i, graph_splat_like(g, i, 7919));
    i = graph_binary(g, OP_mod, i, graph_splat_like(g, i, (double)(places + (places + 9) / 10)));
    val y = graph_scatter(g, op, x, i, u, 1, 0);
    if (base == OP_state)
        graph_assign(g, x, y);
    else
        graph_output(g, "out", y);
    graph_compact(g);
    return g;
}

/* Both forms of a scatter: few places and many, one column and many, ranges and blocks that end early, adds that do. */
static void test_scatter(void **state) {
    (void)state;
    enum { N = 240, MOST_ADDS = 50000 };
    static const int64_t places[] = { 3, 40, 129, 1000, 1, 64, 517 }, after[] = { 1, 3, 40, 1, 130, 260, 8, 0 },
                         adds[] = { 100, 700, 1, 33, 2100, 256, 0 };
    static const tn_dtype types[] = { TN_F32, TN_I32, TN_F64, TN_U8, TN_F32, TN_I64, TN_BF16 };
    uint64_t seed = (uint64_t)now_seconds() ^ 0x85ebca6bu;
    rng r = rng_make(seed);
    int private = 0, searched = 0, runs = 0;
    for (int i = 0; i < N; i++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %llu, case %d: %s", (unsigned long long)seed, i, gd.err.text);
        plan_config c = { .seed = seed + (uint64_t)i, .fusion = 3, .no_passes = i % 3 == 0, .t = gpu_target(i) };
        if (i % 4) c.t.block_threads = 128, c.t.shared_bytes = 48 << 10, c.t.resident_threads = i % 8 > 4 ? 4096 : 1 << 15;
        int64_t rows = adds[rng_below(&r, COUNT_OF(adds))], columns;
        do columns = after[rng_below(&r, COUNT_OF(after))];
        while (rows * columns > MOST_ADDS);
        graph *g = scattered(&a, i % 11 > 7 ? OP_scatter_set : OP_scatter_add, types[i % 7], i % 5 ? TN_I32 : TN_I64,
                             i % 13 == 7 ? 0
                             : i % 6     ? 1
                                         : 2,
                             places[rng_below(&r, COUNT_OF(places))], columns, rows,
                             i % 4 == 3 ? OP_state
                             : i % 2    ? OP_input
                                        : OP_NIL);
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("seed %llu, case %d: %s", (unsigned long long)seed, i, c.text);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3;
        plan *p = pipeline_run(g, &a, &o, &c.t);
        for (int j = 0; j < p->kernels.n; j++, runs++) {
            const kernel *k = p->kernels.at[j].k;
            bool own = false, search = false;
            for (int n = 1; n < k->ins.n; n++) {
                own |= k->ins.at[n].op == K_SCATTER && k->bufs.at[k->ins.at[n].buf].kind == KB_SHARED;
                search |= k->ins.at[n].op == K_LOOP && k->ins.at[n].a;
            }
            private += own, searched += search;
        }
        arena_fini(&a);
    }
    printf("%d scatters, %d with sums of each thread, %d that search for their adds\n", N, private, searched);
    assert_true(private > 20 && searched > 20);
}

/* CUDA has cheaper functions for what will be rounded to 16 bits, and only for that; the unit of tanh for bf16. */
ARENA_TEST(test_approximate) {
    static const char *const ops[] = { "exp", "tanh" };
    static const char *const modes[] = { "", " approximate", " coarse" }, *const functions[][3] = {
        { "op_exp_f32x1", "approximate_exp", "approximate_exp" }, { "op_tanh_f32x1", "approximate_tanh", "coarse_tanh" }
    };
    for (int i = 0; i < 6; i++) {
        const char *text = arena_printf(a,
                                        "kernel @k(b0 in f32[8], b1 out f32[8]) tiled blocks 1 threads 8 {\n var i = 8\n"
                                        " loop i = 0 .. 8 step 1 block-threads\n %%2 = load b0[i]  f32\n"
                                        " %%3 = %s %%2%s  f32\n store b1[i], %%3  f32\n end\n}",
                                        ops[i / 3], modes[i % 3]);
        plan p = { .a = a };
        VEC_PUSH(a, &p.kernels, (pkernel){ .k = kernel_parse(a, text, strlen(text), "t") });
        str cuda;
        str_init(&cuda, a);
        emit_gpu(&p, GPU_CUDA, &cuda);
        assert_non_null(strstr(cuda.s, arena_printf(a, "= %s(", functions[i / 3][i % 3])));
    }
}

/* There a sum that will be rounded to 16 bits takes a product unrounded, whichever operand it is; others round both. */
ARENA_TEST(test_contracted) {
    static const char *const sums[][2] = {
        { "add %2, %3", "= v2 + v3;" },
        { "sub %3, %2", "= v3 - v2;" },
        { "add %2, %3 approximate", "= __fmaf_rn(v2, v2, v2);" },
        { "add %3, %2 coarse", "= __fmaf_rn(v2, v2, v2);" },
        { "sub %2, %3 approximate", "= __fmaf_rn(-v2, v2, v2);" },
        { "sub %3, %2 coarse", "= __fmaf_rn(v2, v2, -v2);" },
        { "sub %2, %2 coarse", "= v2 - v2;" },
        { "mul %3, %3  f32\n %5 = add %3, %4 coarse", "= __fmaf_rn(v3, v3, v3);" },
        { "mul %3, %3  f32\n %5 = add %4, %3 coarse", "= __fmaf_rn(v3, v3, v3);" },
    };
    for (size_t i = 0; i < COUNT_OF(sums); i++) {
        const char *text =
            arena_printf(a,
                         "kernel @k(b0 in f32[8], b1 out f32[8]) tiled blocks 1 threads 8 {\n var i = 8\n"
                         " loop i = 0 .. 8 step 1 block-threads\n %%2 = load b0[i]  f32\n %%3 = mul %%2, %%2  f32\n"
                         " %%4 = %s  f32\n store b1[i], %%%d  f32\n end\n}",
                         sums[i][0], i < 7 ? 4 : 5);
        plan p = { .a = a };
        VEC_PUSH(a, &p.kernels, (pkernel){ .k = kernel_parse(a, text, strlen(text), "t") });
        str cuda;
        str_init(&cuda, a);
        emit_gpu(&p, GPU_CUDA, &cuda);
        assert_non_null(strstr(cuda.s, sums[i][1]));
    }
}

/* A sum of selects that all but one element leave +0 asks where that element is; any other sum goes through all. */
ARENA_TEST(test_only_element) {
    static const struct {
        const char *otherwise, *begins, *condition, *picked, *update;
        bool asks;
    } cases[] = { { "0.0", "add 0.0", "eq %5, %2", "%6, %7, %1", "", true },
                  { "0.0", "add 0.0", "eq %2, %5", "%6, %7, %1", "", true },
                  { "1.0", "add 0.0", "eq %5, %2", "%6, %7, %1", "", false },
                  { "-0.0", "add 0.0", "eq %5, %2", "%6, %7, %1", "", false },
                  { "0.0", "add -0.0", "eq %5, %2", "%6, %7, %1", "", false },
                  { "0.0", "add 0.0", "lt %5, %2", "%6, %7, %1", "", false },
                  { "0.0", "add 0.0", "eq %5, %2", "%6, %1, %7", "", false },
                  { "0.0", "add 0.0", "eq %5, %2", "%6, %7, %1", " update %3 add %9  f32\n", false },
                  { "0.0", "add 0.0", "eq %5, %2", "%6, %7, %1", " store b0[8*i] step 1, %7  f32x8\n", false } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *text = arena_printf(
            a,
            "kernel @k(b0 inout f32[64], b1 in i32[1], b2 out f32[8]) tiled blocks 1 threads 8 {\n var i = 8\n"
            " %%1 = const %s  f32\n %%2 = load b1[0]  i32\n %%3 = acc %s  f32\n loop i = 0 .. 8 step 1 block-threads\n"
            " %%5 = index 8*i step 1  i32x8\n %%6 = %s  i32x8\n %%7 = load b0[8*i] step 1  f32x8\n"
            " %%8 = select %s  f32x8\n %%9 = lane-reduce %%8 add of 8 lanes  f32\n update %%3 add %%9  f32\n%s end\n"
            " loop i = 0 .. 8 step 1 block-threads\n store b2[i], %%3  f32\n end\n}",
            cases[i].otherwise, cases[i].begins, cases[i].condition, cases[i].picked, cases[i].update);
        plan p = { .a = a };
        VEC_PUSH(a, &p.kernels, (pkernel){ .k = kernel_parse(a, text, strlen(text), "t") });
        str cuda;
        str_init(&cuda, a);
        emit_gpu(&p, GPU_CUDA, &cuda);
        assert_int_equal(cases[i].asks, strstr(cuda.s, "if ((u32x1)v2 - (u32x1)(i0 * 8) < 8u) {") != NULL);
    }
}

/* Rows whose length a run gives are thread blocks, as long literal ones are; short ones are threads. */
ARENA_TEST(test_rows_of_a_run) {
    static const char *const texts[] = {
        "graph @g<n 1..4096>(x f32[64,n]) {\n %1 = sum x axes=[1] f32[64,1]\n return %1 as \"y\"\n}",
        "graph @g<n 1..2>(x f32[4096,n]) {\n %1 = sum x axes=[1] f32[4096,1]\n return %1 as \"y\"\n}"
    };
    for (int i = 0; i < 2; i++) {
        target t = target_common_gpu();
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        const plan *p = pipeline_run(graph_parse(a, texts[i], strlen(texts[i]), "g"), a, &o, &t);
        const kernel *k = p->kernels.at[0].k;
        bool reduces = false;
        for (int j = 1; j < k->ins.n; j++) reduces |= k->ins.at[j].op == K_BLOCK_REDUCE;
        assert_int_equal(p->kernels.n, 1);
        assert_non_null(k->params);
        assert_int_equal(reduces, i == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_problems),      cmocka_unit_test(test_large),        cmocka_unit_test(test_tiles_apart),
        cmocka_unit_test(test_tiles),         cmocka_unit_test(test_approximate),  cmocka_unit_test(test_contracted),
        cmocka_unit_test(test_rows_of_a_run), cmocka_unit_test(test_clusters),     cmocka_unit_test(test_carried),
        cmocka_unit_test(test_never_full),    cmocka_unit_test(test_accesses),     cmocka_unit_test(test_parting),
        cmocka_unit_test(test_reduced),       cmocka_unit_test(test_texts),        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_across),        cmocka_unit_test(test_rows),         cmocka_unit_test(test_scatter),
        cmocka_unit_test(test_only_element),  cmocka_unit_test(test_random_graphs)
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
