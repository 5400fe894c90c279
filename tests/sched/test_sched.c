/* test_sched.c - layers (net_*.tn) and graphs that once were scheduled, tiled or placed wrongly: tests/sched/<name>.tn, at
 * every fusion level, with and without passes, for machines of every vector width.
 *
 * Labels: long */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>

#include "support/plan_run.h"

static const char *read_text(arena *a, const char *path, size_t *out_n) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s: cannot be read", path);
    char *text = arena_alloc(a, 1 << 20);
    *out_n = fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    return text;
}

/* Kernels of the plan read back from their text, and have no problems then either. */
static void check_texts(arena *a, const char *name, const graph *g, int fusion) {
    char text[4096];
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = plan_target((uint64_t)fusion);
    o.fusion = fusion;
    const plan *p = pipeline_run(g, a, &o, &t);
    sched_opts s = { .fusion = fusion, .local_bytes = MACHINE_LOCAL_BYTES, .t = &t };
    if (!plan_texts_agree(p, a, text, sizeof text) || !plan_walks_agree(p->g, a, s, text, sizeof text))
        fail_msg("%s, fusion %d: %s", name, fusion, text);
}

static int run_file(arena *a, const char *name) {
    size_t n;
    int runs = 0;
    const char *path = arena_printf(a, "%s/sched/%s", TESTS_DIR, name), *text = read_text(a, path, &n);
    graph *g = graph_parse(a, text, n, path);
    for (int fusion = 0; fusion < 4; fusion++) check_texts(a, name, g, fusion);
    for (uint64_t seed = 0; seed < 4; seed++) {
        reference r = reference_make(g, a, seed);
        for (int fusion = 0; fusion < 4; fusion++)
            for (int no_passes = 0; no_passes < 2; no_passes++, runs++) {
                plan_config c = { .seed = seed, .fusion = fusion, .no_passes = no_passes, .t = plan_target(seed) };
                if (!plan_config_agrees(g, &r, &c))
                    fail_msg("%s, seed %d, fusion %d, no_passes %d: %s", name, (int)seed, fusion, no_passes, c.text);
            }
    }
    return runs;
}

ARENA_TEST(test_files) {
    DIR *d = opendir(TESTS_DIR "/sched");
    assert_non_null(d);
    int files = 0, runs = 0;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        size_t n = strlen(e->d_name);
        if (n < 4 || strcmp(e->d_name + n - 3, ".tn")) continue;
        runs += run_file(a, e->d_name);
        files++;
    }
    closedir(d);
    assert_true(files > 0);
    printf("%d graphs, %d plans\n", files, runs);
}

/* A convolution by Winograd's way: a transform, the contractions, the way back with what follows; where the image is no whole
 * number of tiles, its cut as well. Backward: the same for both gradients, which share the transform of what comes from behind;
 * the overlapping tiles of the image's gradient are added by a kernel, and its border is cut by one. Work on the image before
 * its transform, which reads each element four times, is done once. */
ARENA_TEST(test_winograd) {
    static const struct {
        const char *name;
        int kernels;
        op_code first; /* kernel's result */
    } files[] = { { "net_winograd.tn", 3, OP_NIL },
                  { "net_winograd_odd.tn", 4, OP_NIL },
                  { "net_winograd_backward.tn", 9, OP_NIL },
                  { "net_winograd_norm.tn", 4, OP_max },
                  { "net_winograd_relu.tn", 4, OP_max } };
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        size_t n;
        const char *path = arena_printf(a, "%s/sched/%s", TESTS_DIR, files[i].name), *text = read_text(a, path, &n);
        graph *g = graph_parse(a, text, n, path);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = plan_target(0);
        o.fusion = 3;
        plan *p = pipeline_run(g, a, &o, &t);
        assert_int_equal(p->kernels.n, files[i].kernels);
        if (files[i].first) assert_int_equal(graph_get(p->g, p->kernels.at[0].root)->op, files[i].first);
    }
}

/* Kernels that take parts of equal width of the same rows become one. */
ARENA_TEST(test_parts_of_rows) {
    size_t n;
    const char *path = TESTS_DIR "/sched/parts_of_rows.tn", *text = read_text(a, path, &n);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = plan_target(0);
    o.fusion = 3;
    plan *p = pipeline_run(graph_parse(a, text, n, path), a, &o, &t);
    assert_int_equal(p->kernels.n, 2);
}

/* Rows that are gathered and scaled are computed where a scatter adds them; not when they are of its own base, which then could
 * not be written in place, nor numbers one by one, which have no vectors. */
ARENA_TEST(test_updates_of_scatter) {
    static const struct {
        const char *text;
        int kernels;
    } graphs[] = {
        { "graph @g(x f32[9,20], v f32[30,1], b f32[7,20], r i32[30], c i32[30]) {\n %1 = gather x, c axis=0 f32[30,20]\n"
          " %2 = expand v f32[30,20]\n %3 = mul %1, %2 f32[30,20]\n %4 = scatter_add b, r, %3 axis=0 f32[7,20]\n"
          " return %4 as \"y\"\n}",
          1 },
        { "graph @g(v f32[30,1], b f32[7,20], r i32[30], c i32[30]) {\n %1 = gather b, c axis=0 f32[30,20]\n"
          " %2 = expand v f32[30,20]\n %3 = mul %1, %2 f32[30,20]\n %4 = scatter_add b, r, %3 axis=0 f32[7,20]\n"
          " return %4 as \"y\"\n}",
          2 },
        { "graph @g(x f32[180], b f32[7,20], r i32[30], c i32[30]) {\n %1 = neg x f32[180]\n %2 = reshape %1 f32[9,20]\n"
          " %3 = gather %2, c axis=0 f32[30,20]\n %4 = neg %3 f32[30,20]\n %5 = scatter_add b, r, %4 axis=0 f32[7,20]\n"
          " return %5 as \"y\"\n}",
          2 }, /* the table is in memory */
        { "graph @g(x f32[9], v f32[30], b f32[7], r i32[30], c i32[30]) {\n %1 = gather x, c axis=0 f32[30]\n"
          " %2 = mul %1, v f32[30]\n %3 = scatter_add b, r, %2 axis=0 f32[7]\n return %3 as \"y\"\n}",
          2 },
    };
    for (size_t i = 0; i < COUNT_OF(graphs); i++) {
        graph *g = graph_parse(a, graphs[i].text, strlen(graphs[i].text), "updates");
        for (uint64_t seed = 0; seed < 8; seed++) {
            plan_config c = { .seed = seed, .fusion = 2 + (int)(seed & 1), .t = plan_target(seed) };
            if (!plan_config_agrees(g, NULL, &c)) fail_msg("graph %zu: %s", i, c.text);
        }
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = plan_target(0);
        o.fusion = 2;
        assert_int_equal(pipeline_run(g, a, &o, &t)->kernels.n, graphs[i].kernels);
    }
}

/* What follows a contraction element by element is done with its result where the loops that read it go over it several times,
 * and so could not have the contraction; a reader that could has both. */
ARENA_TEST(test_after_contraction) {
    static const struct {
        const char *text;
        int kernels;
        op_code first;
    } graphs[] = {
        { "graph @g(x f32[40,32], w f32[32,48], b f32[40,48]) {\n %1 = dot x, w contract=[1]x[0] f32[40,48]\n"
          " %2 = add %1, b f32[40,48]\n %3 = reduce_max %2 axes=[1] f32[40,1]\n %4 = expand %3 f32[40,48]\n"
          " %5 = sub %2, %4 f32[40,48]\n return %5 as \"y\"\n}",
          2, OP_add },
        { "graph @g(x f32[40,32], w f32[32,48], b f32[40,48]) {\n %1 = dot x, w contract=[1]x[0] f32[40,48]\n"
          " %2 = add %1, b f32[40,48]\n %3 = reduce_max %2 axes=[1] f32[40,1]\n return %3 as \"y\"\n}",
          1, OP_reduce_max },
        /* narrower than the contraction: not wider */
        { "graph @g(x bf16[40,32], w bf16[32,48]) {\n %1 = dot x, w contract=[1]x[0] bf16[40,48]\n"
          " %2 = cast %1 f32[40,48]\n %3 = reduce_max %2 axes=[1] f32[40,1]\n %4 = expand %3 f32[40,48]\n"
          " %5 = sub %2, %4 f32[40,48]\n return %5 as \"y\"\n}",
          2, OP_dot },
    };
    for (size_t i = 0; i < COUNT_OF(graphs); i++) {
        graph *g = graph_parse(a, graphs[i].text, strlen(graphs[i].text), "after");
        for (uint64_t seed = 0; seed < 4; seed++) {
            plan_config c = { .seed = seed, .fusion = 3, .t = plan_target(seed) };
            if (!plan_config_agrees(g, NULL, &c)) fail_msg("graph %zu: %s", i, c.text);
        }
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = plan_target(0);
        o.fusion = 2; /* at level 3 blocks of rows go through both kernels */
        plan *p = pipeline_run(g, a, &o, &t);
        assert_int_equal(p->kernels.n, graphs[i].kernels);
        assert_int_equal(graph_get(p->g, p->kernels.at[0].root)->op, graphs[i].first);
    }
}

/* A contraction and the means of its windows are one kernel while an operand is near; two large ones are packed and read in
 * tiles, in a kernel of their own. */
ARENA_TEST(test_windows_of_contraction) {
    static const int sizes[2][3] = { { 16, 64, 1 }, { 128, 512, 2 } };
    for (int i = 0; i < 2; i++) {
        const int m = sizes[i][0], c = sizes[i][1];
        char *text = arena_printf(a,
                                  "graph @g(w f32[%d,%d], x f32[%d,12,12]) {\n %%1 = dot w, x contract=[1]x[0] f32[%d,12,12]\n"
                                  " %%2 = window %%1 (axis=1 size=2 stride=2 dilation=1) (axis=2 size=2 stride=2 dilation=1)\n"
                                  " %%3 = sum %%2 axes=[3,4]\n return %%3 as \"y\"\n}",
                                  m, c, c, m);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = plan_target(0);
        o.fusion = 2;
        assert_int_equal(pipeline_run(graph_parse(a, text, strlen(text), "windows"), a, &o, &t)->kernels.n, sizes[i][2]);
    }
}

/* Thousands of elementwise ops in a row, as a loop written out gives them: several kernels, since deciding what joins one takes
 * the square of its size (as one kernel, 6000 ops took half a minute). */
/* Parts of a concat that are made from the same values are results of one kernel, also where concats stand in concats and the
 * whole has another shape; parts that have nothing in common are not, nor those of another shape. */
ARENA_TEST(test_concat_parts) {
    static const struct {
        const char *text;
        int kernels;
    } graphs[] = {
        { "graph @g(x f32[3,5,16], y f32[3,5,16]) {\n %1 = exp x\n %2 = add %1, y\n %3 = sub %1, y\n"
          " %4 = concat %2, %3 axis=0\n return %4 as \"z\"\n}",
          1 },
        { "graph @g(x f32[3,1,5,1,16], y f32[3,1,5,1,16]) {\n %1 = exp x\n %2 = add %1, y\n %3 = sub %1, y\n %4 = mul %2, y\n"
          " %5 = mul %3, y\n %6 = concat %2, %3 axis=3\n %7 = concat %4, %5 axis=3\n %8 = concat %6, %7 axis=1\n"
          " %9 = reshape %8 f32[6,10,16]\n return %9 as \"z\"\n}",
          1 },
        { "graph @g(x f32[3,5,16], y f32[3,5,16]) {\n %1 = exp x\n %2 = cos y\n %3 = concat %1, %2 axis=0\n return %3 as "
          "\"z\"\n}",
          2 },
        { "graph @g(x f32[3,5,16]) {\n %1 = exp x\n %2 = slice %1 start=[0,0,0] step=[1,1,1] f32[2,5,16]\n"
          " %3 = concat %1, %2 axis=0\n return %3 as \"z\"\n}",
          3 },
        /* the smaller concat is a result, too */
        { "graph @g(x f32[3,5,16], y f32[3,5,16]) {\n %1 = exp x\n %2 = add %1, y\n %3 = sub %1, y\n %4 = concat %2, %3 "
          "axis=1\n"
          " %5 = concat %4, %4 axis=0\n return %4 as \"w\", %5 as \"z\"\n}",
          2 },
    };
    for (size_t i = 0; i < COUNT_OF(graphs); i++) {
        graph *g = graph_parse(a, graphs[i].text, strlen(graphs[i].text), "parts");
        for (uint64_t seed = 0; seed < 8; seed++) {
            plan_config c = { .seed = seed, .fusion = (int)(seed % 4), .no_passes = seed > 4, .t = plan_target(seed) };
            if (!plan_config_agrees(g, NULL, &c)) fail_msg("graph %zu: %s", i, c.text);
        }
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = plan_target(0);
        o.fusion = 3;
        assert_int_equal(pipeline_run(g, a, &o, &t)->kernels.n, graphs[i].kernels);
    }
}

/* A padded image that a contraction goes across, position by position 1 KiB apart, has a line more behind each position; one
 * whose positions are not so far apart, or that is read along them, has not. */
ARENA_TEST(test_far_positions) {
    static const struct {
        int channels, out;
        bool along;
        int64_t elems;
    } cases[] = { { 256, 72, false, 64 * 272 }, { 240, 72, false, 64 * 240 }, { 256, 72, true, 64 * 256 } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int c = cases[i].channels, n = cases[i].out;
        const char *text =
            arena_printf(a,
                         "graph @g(x f32[1,6,6,%d], w f32[%s%d]) {\n"
                         " %%1 = pad x before=[0,1,1,0] after=[0,1,1,0] value=0.5 f32[1,8,8,%d]\n"
                         " %%2 = window %%1 (axis=1 size=3 stride=1) (axis=2 size=3 stride=1) f32[1,6,6,%d,3,3]\n"
                         " %%3 = dot %%2, w %s\n return %%3 as \"y\"\n}",
                         c, cases[i].along ? arena_printf(a, "3,3,%d,", c) : "1,6,6,", n, c, c,
                         cases[i].along ? "contract=[4,5,3]x[0,1,2]" : "contract=[0,1,2]x[0,1,2]");
        graph *g = graph_parse(a, text, strlen(text), "far");
        plan_config config = { .seed = i, .fusion = 3, .t = plan_target(i) };
        if (!plan_config_agrees(g, NULL, &config)) fail_msg("case %zu: %s", i, config.text);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = plan_target(0);
        o.fusion = 3;
        plan *p = pipeline_run(g, a, &o, &t);
        assert_int_equal(p->kernels.n, 2);
        int64_t largest = 0;
        for (int b = 0; b < p->bufs.n; b++)
            if (p->bufs.at[b].kind == PB_TEMP && p->bufs.at[b].bytes > largest) largest = p->bufs.at[b].bytes;
        assert_int_equal(largest, cases[i].elems * 4);
    }
}

ARENA_TEST(test_long_chain) {
    enum { OPS = 3000 };
    graph *g = graph_make(a, "chain");
    val x = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .name = "x", .rank = 1, .dims = (int64_t[]){ 3 } }), v = x;
    for (int i = 0; i < OPS; i++) v = i % 3 ? graph_unary(g, OP_sin, v) : graph_binary(g, OP_add, v, x);
    graph_output(g, "y", v);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = plan_target(0);
    const plan *p = pipeline_run(g, a, &o, &t);
    assert_true(p->kernels.n >= OPS / 1100 && p->kernels.n <= 8);
    plan_config c = { .seed = 1, .fusion = 3, .t = t };
    if (!plan_config_agrees(g, NULL, &c)) fail_msg("%s", c.text);
}

/* A function is coarse by the dtype of its result, alone or fused: so what it gives does not depend on what is fused. */
ARENA_TEST(test_coarse) {
    const char *text = "graph @g(x bf16[8,64], y f32[8,64], z f16[64]) {\n %1 = exp x bf16[8,64]\n %2 = cast %1 f32[8,64]\n"
                       " %3 = exp y f32[8,64]\n %4 = add %2, %3 f32[8,64]\n %5 = cast %4 bf16[8,64]\n %6 = log z f16[64]\n"
                       " %7 = sqrt %6 f16[64]\n return %5 as \"a\", %7 as \"b\"\n}";
    graph *g = graph_parse(a, text, strlen(text), "coarse");
    target targets[] = { plan_target(0), target_common_gpu() };
    for (size_t t = 0; t < COUNT_OF(targets); t++)
        for (int fusion = 0; fusion < 4; fusion++) {
            tn_compile_opts o = TN_COMPILE_DEFAULTS;
            bool seen[3] = { false };
            o.fusion = fusion;
            const plan *p = pipeline_run(g, a, &o, &targets[t]);
            for (int i = 0; i < p->kernels.n; i++)
                for (int j = 1; j < p->kernels.at[i].k->ins.n; j++) {
                    const kins *in = &p->kernels.at[i].k->ins.at[j];
                    if (in->op != K_ALU) continue;
                    tn_dtype of = (tn_dtype)graph_get(p->g, in->node)->dtype;
                    bool function = in->alu == OP_exp || in->alu == OP_log;
                    assert_int_equal(in->mode, !op_is_approximable((op_code)in->alu) || in->alu == OP_sqrt || of == TN_F32
                                                   ? ALU_PLAIN
                                               : of == TN_BF16 ? ALU_COARSE
                                                               : ALU_APPROXIMATE);
                    seen[of == TN_F32 ? 0 : of == TN_F16 ? 1 : 2] |= function;
                }
            assert_true(seen[0] && seen[1] && seen[2]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_files),
                                        cmocka_unit_test(test_long_chain),
                                        cmocka_unit_test(test_parts_of_rows),
                                        cmocka_unit_test(test_updates_of_scatter),
                                        cmocka_unit_test(test_after_contraction),
                                        cmocka_unit_test(test_concat_parts),
                                        cmocka_unit_test(test_winograd),
                                        cmocka_unit_test(test_coarse),
                                        cmocka_unit_test(test_far_positions),
                                        cmocka_unit_test(test_windows_of_contraction) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
