/* test_gpu_tiles.c - whatever tiles tuning tries for a contraction on a GPU, the bits are the same: every candidate and
 * choices of random numbers, for products as they are and transposed, batched ones, convolutions and long sums with few results
 * (which several threads share), run thread by thread by the interpreter. Choices that fit are really used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "recipe/recipe.h"
#include "support/plan_run.h"

enum { MOST = 40 };

static const char *const graphs[] = {
    "graph @product(x f32[131,70], w f32[70,100]) {\n %1 = dot x, w f32[131,100]\n %2 = max %1, 0.0 f32[131,100]\n return %2 "
    "as "
    "\"y\"\n}",
    "graph @turned(x f32[64,70], w f32[33,64]) {\n %1 = dot x, w contract=[0]x[1] f32[70,33]\n return %1 as \"y\"\n}",
    "graph @batched(x f64[2,65,40], w f64[2,40,72]) {\n %1 = dot x, w batch=[0]x[0] contract=[2]x[1] f64[2,65,72]\n"
    " return %1 as \"y\"\n}",
    "graph @taps(x f32[2,130,16], w f32[3,16,64]) {\n %1 = window x (axis=1 size=3) f32[2,128,16,3]\n"
    " %2 = dot %1, w contract=[3,2]x[0,1] f32[2,128,64]\n return %2 as \"y\"\n}",
    "graph @shared(x f32[16,640], w f32[640,16]) {\n %1 = dot x, w f32[16,16]\n return %1 as \"y\"\n}",
};

static target a_target(int64_t grid) {
    target t = target_common_gpu();
    t.resident_threads = grid;
    t.tuning_seed = 7;
    return t;
}

static eval_memory *run(const plan *p, const reference *r, arena *a) {
    eval_memory *m = eval_memory_make(p, a);
    for (int i = 0; i < r->g->inputs.n; i++)
        memcpy(m->io[plan_io(p, graph_get(r->g, r->g->inputs.at[i])->name, false)], r->in.data[i], r->in.bytes[i]);
    eval_plan(p, m, a);
    return m;
}

static plan *compile(const graph *g, arena *a, target t, const ktuned *choice) {
    ktuning table = { choice, 1 };
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 3, o.check = 1;
    if (choice) t.tuning = &table;
    return pipeline_run(g, a, &o, &t);
}

/* How many of the choices make another kernel than the model's. */
static int try_all(const reference *r, arena *a, target t, const gpu_tile *all, int n) {
    plan *model = compile(r->g, a, t, NULL);
    assert_int_equal(model->kernels.n, 1);
    const kernel *scalar = model->kernels.at[0].scalar;
    const eval_memory *want = run(model, r, a);
    int out = plan_io(model, "y", true), others = 0;
    for (int i = 0; i < n; i++) {
        ktuned e = { kernel_hash(scalar, t.tuning_seed), recipe_tile_text(all[i], a) };
        plan *p = compile(r->g, a, t, &e);
        const eval_memory *got = run(p, r, a);
        if (memcmp(want->io[out], got->io[out], (size_t)model->io.at[out].bytes))
            fail_msg("@%s, grid %d: other bits with %s", r->g->name, (int)t.resident_threads, e.schedule);
        others += !kernel_equal(p->kernels.at[0].k, model->kernels.at[0].k);
    }
    return others;
}

static void test_same_bits(void **state) {
    (void)state;
    int tried = 0, random = 0;
    rng r = rng_make(5);
    for (size_t i = 0; i < COUNT_OF(graphs); i++)
        for (int big = 0; big < 2; big++) {
            arena a;
            guard gd;
            arena_init(&a, mem_libc(), &gd);
            if (!GUARD_TRY(&gd)) fail_msg("graph %d: %s", (int)i, gd.err.text);
            target t = a_target(big ? 128 << 10 : 2048);
            graph *g = graph_parse(&a, graphs[i], strlen(graphs[i]), "t");
            reference ref = reference_make(g, &a, i);
            plan *model = compile(g, &a, t, NULL);
            gpu_tile all[MOST];
            recipe_candidate found[MOST];
            int n = recipe_candidates(model->kernels.at[0].scalar, &t, NULL, &a, found, MOST);
            int worth = recipe_rank(&t, &a, found, n);
            assert_true(worth <= n && (n == 0 || found[0].ns > 0));
            for (int k = 1; k < n; k++) assert_true(found[k].ns >= found[k - 1].ns);
            for (int k = 0; k < n; k++) assert_true(recipe_tile_read(found[k].text, &all[k]));
            if (n > 10) n = 10;
            assert_int_equal(try_all(&ref, &a, t, all, n), n);
            tried += n;
            for (int k = 0; k < 6; k++) { /* mostly such as fit */
                int p = (int)rng_below(&r, 6);
                all[k] = (gpu_tile){ .rows = (uint8_t)(1 << rng_below(&r, k == 2 ? 8 : 4)),
                                     .columns = (uint8_t)(1 << rng_below(&r, 4)),
                                     .down = (uint8_t)(k ? 1 << p : 255),
                                     .across = (uint8_t)(1 << (6 - p)),
                                     .steps = (uint16_t)(k == 1 ? 65535 : 8 << rng_below(&r, 4)) };
            }
            random += try_all(&ref, &a, t, all, 6);
            arena_fini(&a);
        }
    printf("count: tiles of contractions on GPUs: %d candidates and %d other choices with the model's bits\n", tried, random);
    assert_true(tried >= 30 && random >= 5);
}

/* Tiles of 128 sums a thread, of one block to six, the last one whole or not; operands as they are are loaded two blocks ahead,
 * those that are cast one. */
static void test_large_tiles(void **state) {
    (void)state;
    static const int steps[] = { 8, 13, 16, 24, 30, 32, 40, 48, 16 * 3, 16 * 5 };
    static const char *const forms[] = {
        "graph @large(x f32[70,%d], w f32[%d,136]) {\n %%1 = dot x, w f32[70,136]\n return %%1 as \"y\"\n}",
        "graph @cast(x bf16[70,%d], w f32[%d,136]) {\n %%1 = cast x f32[70,%d]\n"
        " %%2 = dot %%1, w f32[70,136]\n return %%2 as \"y\"\n}"
    };
    static const gpu_tile all[] = { { 16, 8, 4, 16, 8 }, { 8, 16, 8, 8, 8 }, { 16, 8, 4, 16, 16 } };
    int others = 0;
    for (size_t i = 0; i < COUNT_OF(steps) * COUNT_OF(forms); i++) {
        arena a;
        guard gd;
        char text[300];
        int n = steps[i / COUNT_OF(forms)];
        snprintf(text, sizeof text, forms[i % COUNT_OF(forms)], n, n, n);
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s: %s", text, gd.err.text);
        graph *g = graph_parse(&a, text, strlen(text), "t");
        reference ref = reference_make(g, &a, i);
        others += try_all(&ref, &a, a_target(1024), all, COUNT_OF(all));
        arena_fini(&a);
    }
    printf("count: %d large tiles with the model's bits\n", others);
    assert_true(others >= 40);
}

static void test_texts(void **state) {
    (void)state;
    static const char *const bad[] = { "",
                                       "gpu_tile",
                                       "gpu_tile 1 2 3 4",
                                       "gpu_tile 1 2 3 4 5 6",
                                       "gpu_tile 256 2 3 4 5",
                                       "gpu_tile 1 2 3 4 65536",
                                       "gpu_tile  1 2 3 4 5",
                                       "gpu_tile 1 2 3 4 5 ",
                                       "gpu_tiles 1 2 3 4 5",
                                       "gpu_tile -1 2 3 4 5",
                                       "gpu_tile 99999999999 2 3 4 5" };
    gpu_tile x;
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (recipe_tile_read(bad[i], &x)) fail_msg("\"%s\" is taken", bad[i]);
    assert_true(recipe_tile_read("gpu_tile 255 2 3 4 65535", &x));
    assert_true(x.rows == 255 && x.columns == 2 && x.down == 3 && x.across == 4 && x.steps == 65535);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_texts), cmocka_unit_test(test_same_bits),
                                        cmocka_unit_test(test_large_tiles) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
