/* test_gpu_tiles.c - whatever tiles tuning tries for a contraction on a GPU, the bits are the same: every candidate and
 * schedules with random numbers, for products as they are and transposed, batched ones, convolutions and long sums with few
 * results (which several threads share), run thread by thread by the interpreter. Choices that fit are really used.
 *
 * Labels: long */
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

typedef struct tile { /* rows and columns of a thread, threads along both, steps of a K block */
    int rows, columns, down, across, steps;
} tile;

/* The schedule with another tile: its bind steps name the rows. */
static const char *with_tile(const schedule *model, tile x, arena *a) {
    const char *row[2] = { NULL, NULL };
    str out;
    str_init(&out, a);
    for (int i = 0, n = 0; i < model->steps.n; i++)
        if (model->steps.at[i].op == STEP_bind && n < 2) row[n++] = model->steps.at[i].arg[0].word;
    for (int i = 0; i < model->steps.n; i++) {
        const loop_step *s = &model->steps.at[i];
        if (s->op == STEP_unroll_jam || (s->op == STEP_bind && s->arg[0].word != row[0])) continue;
        if (out.n) str_add(&out, "; ");
        if (s->op == STEP_bind)
            str_addf(&out, "unroll_jam %s %d; unroll_jam %s %d; bind %s %d; bind %s %d", row[0], x.rows, row[1], x.columns,
                     row[0], x.down, row[1], x.across);
        else if (s->op == STEP_pack_shared)
            str_addf(&out, "pack_shared %s %d", s->arg[0].word, x.steps);
        else
            step_print(s, &out);
    }
    return out.s;
}

/* How many of the schedules make another kernel than the model's. */
static int try_all(const reference *r, arena *a, target t, const char *const *all, int n) {
    plan *model = compile(r->g, a, t, NULL);
    assert_int_equal(model->kernels.n, 1);
    const kernel *scalar = model->kernels.at[0].scalar;
    const eval_memory *want = run(model, r, a);
    int out = plan_io(model, "y", true), others = 0;
    for (int i = 0; i < n; i++) {
        ktuned e = { kernel_hash(scalar, t.tuning_seed), all[i] };
        plan *p = compile(r->g, a, t, &e);
        const eval_memory *got = run(p, r, a);
        if (memcmp(want->io[out], got->io[out], (size_t)model->io.at[out].bytes))
            fail_msg("@%s, grid %d: other bits with %s", r->g->name, (int)t.resident_threads, e.schedule);
        bool other = !kernel_equal(p->kernels.at[0].k, model->kernels.at[0].k);
        if (other && p->kernels.at[0].ignored) fail_msg("@%s: \"%s\" is ignored and heeded", r->g->name, e.schedule);
        others += other;
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
            const char *all[MOST];
            recipe_candidate found[MOST];
            int n = recipe_candidates(model->kernels.at[0].scalar, &t, NULL, &a, found, MOST);
            int worth = recipe_rank(&t, &a, found, n);
            assert_true(worth <= n && (n == 0 || found[0].ns > 0));
            for (int k = 1; k < n; k++) assert_true(found[k].ns >= found[k - 1].ns);
            for (int k = 0; k < n; k++) all[k] = found[k].text;
            if (n > 10) n = 10;
            assert_int_equal(try_all(&ref, &a, t, all, n), n);
            tried += n;
            for (int k = 0; k < 12; k++) { /* mostly such as fit */
                int p = (int)rng_below(&r, 6);
                tile x = { 1 << rng_below(&r, k == 2 ? 8 : 4), 1 << rng_below(&r, 4), k ? 1 << p : 255, 1 << (6 - p),
                           k == 1 ? 65536 : 8 << rng_below(&r, 4) };
                all[k] = with_tile(model->kernels.at[0].schedule, x, &a);
            }
            random += try_all(&ref, &a, t, all, 12);
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
    static const tile tiles[] = { { 16, 8, 4, 16, 8 }, { 8, 16, 8, 8, 8 }, { 16, 8, 4, 16, 16 } };
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
        const char *all[COUNT_OF(tiles)];
        const plan *model = compile(g, &a, a_target(1024), NULL);
        for (size_t k = 0; k < COUNT_OF(tiles); k++) all[k] = with_tile(model->kernels.at[0].schedule, tiles[k], &a);
        others += try_all(&ref, &a, a_target(1024), all, COUNT_OF(all));
        arena_fini(&a);
    }
    printf("count: %d large tiles with the model's bits\n", others);
    assert_true(others >= 40);
}

/* Texts that are no schedule, need more than the device has, or leave the order of sums are ignored, with the reason. */
static void test_ignored(void **state) {
    (void)state;
    static const char *const texts[][2] = {
        { "gpu_tile 8 8 8 8 8", "there is no step" },
        { "bind_grid 64; hoist; dce", "may change the order" },
        { "bind i0 8; bind i1 8; split_k k2 2; pack_shared k2 16; tile; hoist; dce", "may change the order" },
        { "unroll_jam i0 4; unroll_jam i1 4; bind i0 32; bind i1 32; pack_shared k2 64; tile; hoist; dce",
          "bytes of shared memory a thread block; the device has 49152" },
        { "unroll_jam i0 16; unroll_jam i1 16; bind i0 8; bind i1 8; pack_shared k2 16; tile; hoist; dce", "the limit is 128" },
        { "bind i0 8; bind i1 8; tile; hoist; dce", "do not come through shared memory" },
    };
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    target t = a_target(1024);
    graph *g = graph_parse(&a, graphs[0], strlen(graphs[0]), "t");
    plan *model = compile(g, &a, t, NULL);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        ktuned e = { kernel_hash(model->kernels.at[0].scalar, t.tuning_seed), texts[i][0] };
        plan *p = compile(g, &a, t, &e);
        if (!p->kernels.at[0].ignored || !strstr(p->kernels.at[0].ignored, texts[i][1]))
            fail_msg("\"%s\": %s", texts[i][0], p->kernels.at[0].ignored ? p->kernels.at[0].ignored : "no reason");
        assert_true(kernel_equal(p->kernels.at[0].k, model->kernels.at[0].k));
    }
    arena_fini(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_ignored), cmocka_unit_test(test_same_bits),
                                        cmocka_unit_test(test_large_tiles) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
