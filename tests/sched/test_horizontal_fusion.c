/* test_horizontal_fusion.c - kernels for a GPU that do not need each other are one launch: how many there are, values by the
 * interpreter, thread by thread, against the reference evaluator; what must not be joined is not; and the checks find groups
 * that are dealt wrongly.
 *
 * Labels: random long */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "emit/emit.h"
#include "sched/fusion.h"
#include "support/plan_run.h"

/* Groups of up to 128; large enough for nothing here to fill it. */
static target a_target(bool apart) {
    return (target){ .kind = TARGET_GPU,
                     .vector_bytes = 16,
                     .n_vector_regs = 32,
                     .threads = 1,
                     .l1_bytes = 32 << 10,
                     .l2_bytes = 1 << 20,
                     .block_threads = 128,
                     .shared_bytes = 32 << 10,
                     .resident_threads = 64 << 10,
                     .local_barriers = apart };
}

static graph *products(arena *a, int64_t m, int64_t n, int64_t k, bool needs) {
    str s;
    str_init(&s, a);
    str_addf(&s, "graph @two(x f32[%lld,%lld], a f32[%lld,%lld], b f32[%lld,%lld]) {\n", (long long)m, (long long)k,
             (long long)k, (long long)n, (long long)(needs ? n : k), (long long)n);
    str_addf(&s, " %%1 = dot x, a f32[%lld,%lld]\n %%2 = dot %s, b f32[%lld,%lld]\n return %%1 as \"y\", %%2 as \"z\"\n}",
             (long long)m, (long long)n, needs ? "%1" : "x", (long long)m, (long long)n);
    return graph_parse(a, s.s, s.n, "two");
}

/* What an optimiser does to its parameters, of all sizes. */
static graph *updates(arena *a, const int64_t *sizes, int n) {
    str s;
    str_init(&s, a);
    str_add(&s, "graph @updates(");
    for (int i = 0; i < n; i++)
        str_addf(&s, "%sg%d f32[%lld], state w%d f32[%lld]", i ? ", " : "", i, (long long)sizes[i], i, (long long)sizes[i]);
    str_add(&s, ") {\n");
    for (int i = 0; i < n; i++) {
        str_addf(&s, " %%%d = mul g%d, 0.125 f32[%lld]\n", 2 * i + 1, i, (long long)sizes[i]);
        str_addf(&s, " %%%d = sub w%d, %%%d f32[%lld]\n", 2 * i + 2, i, 2 * i + 1, (long long)sizes[i]);
    }
    str_add(&s, " return");
    for (int i = 0; i < n; i++) str_addf(&s, "%s %%%d -> w%d", i ? "," : "", 2 * i + 2, i);
    str_add(&s, "\n}");
    return graph_parse(a, s.s, s.n, "updates");
}

static plan *plan_of(arena *a, graph *g, int fusion, bool apart) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = a_target(apart);
    o.fusion = fusion, o.check = 1;
    return pipeline_run(g, a, &o, &t);
}

static int n_joined(const plan *p) {
    int n = 0;
    for (int i = 0; i < p->kernels.n; i++) n += strstr(p->kernels.at[i].k->name, "_beside") != NULL;
    return n;
}

static void check(arena *a, graph *g, const char *what) {
    char text[4096];
    for (uint64_t seed = 0; seed < 2; seed++) {
        plan_config c = { .seed = seed, .fusion = 3, .t = a_target(true) };
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("%s: %s", what, c.text);
    }
    if (!plan_texts_agree(plan_of(a, g, 3, true), a, text, sizeof text)) fail_msg("%s: %s", what, text);
}

ARENA_TEST(test_products) {
    static const int64_t sizes[][3] = { { 32, 48, 64 },  { 64, 64, 64 },   { 33, 17, 40 }, { 1, 50, 30 },
                                        { 70, 130, 24 }, { 128, 128, 64 }, { 96, 192, 40 } };
    int joined = 0;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        graph *g = products(a, sizes[i][0], sizes[i][1], sizes[i][2], false);
        plan *p = plan_of(a, g, 3, true);
        assert_int_equal(p->kernels.n, 1);
        assert_int_equal(plan_of(a, g, 2, true)->kernels.n, 2);
        joined += n_joined(p);
        check(a, g, "two products");
        assert_int_equal(n_joined(plan_of(a, products(a, sizes[i][0], sizes[i][1], sizes[i][2], true), 3, true)), 0);
    }
    assert_true(joined >= 2); /* the others are a chain row by row */
}

/* Products that make parts of one array, as the gradients of queries, keys and values do, are one launch; who reads it all
 * comes behind them. */
ARENA_TEST(test_parts) {
    static const char text[] =
        "graph @parts(s f32[4,2,64,64], p f32[4,2,64,64], q f32[4,2,64,32], k f32[4,2,64,32], g f32[4,2,64,32]) {\n"
        " %1 = dot s, k batch=[0,1]x[0,1] contract=[3]x[2] f32[4,2,64,32]\n"
        " %2 = dot s, q batch=[0,1]x[0,1] contract=[2]x[2] f32[4,2,64,32]\n"
        " %3 = dot p, g batch=[0,1]x[0,1] contract=[2]x[2] f32[4,2,64,32]\n"
        " %4 = permute %1 perm=[0,2,1,3] f32[4,64,2,32]\n"
        " %5 = permute %2 perm=[0,2,1,3] f32[4,64,2,32]\n"
        " %6 = permute %3 perm=[0,2,1,3] f32[4,64,2,32]\n"
        " %7 = concat %4, %5, %6 axis=2 f32[4,64,6,32]\n"
        " %8 = dot %7, %7 contract=[0,1]x[0,1] f32[6,32,6,32]\n"
        " return %7 as \"all\", %8 as \"z\"\n"
        "}";
    graph *g = graph_parse(a, text, sizeof text - 1, "parts");
    plan *p = plan_of(a, g, 3, true);
    assert_int_equal(p->kernels.n, 2);
    assert_int_equal(n_joined(p), 1);
    assert_int_equal(plan_of(a, g, 2, true)->kernels.n, 4);
    check(a, g, "parts of an array");
}

/* Rows that a run gives: each product has as many thread blocks as its rows need, which those of the next one follow. */
ARENA_TEST(test_sizes_of_a_run) {
    static const char text[] = "graph @qkv<rows 1..4096>(x f32[rows,64], q f32[64,64], k f32[64,64], v f32[64,128]) {\n"
                               " %1 = dot x, q f32[rows,64]\n %2 = dot x, k f32[rows,64]\n %3 = dot x, v f32[rows,128]\n"
                               " return %1 as \"a\", %2 as \"b\", %3 as \"c\"\n}";
    char why[4096];
    plan *p = plan_of(a, graph_parse(a, text, sizeof text - 1, "qkv"), 3, true);
    assert_int_equal(p->kernels.n, 1);
    assert_int_equal(n_joined(p), 1);
    if (!plan_texts_agree(p, a, why, sizeof why)) fail_msg("%s", why);
    for (int64_t rows = 1; rows <= 4096; rows = rows * 7 + 3) {
        const kernel *k = kernel_at(p->kernels.at[0].k, &rows, a);
        int64_t all = 0, nests = 0;
        for (int i = 1; i < k->ins.n; i++) {
            const kins *in = &k->ins.at[i];
            if (in->op != K_LOOP || in->par != PAR_BLOCKS || k->ins.at[i - 1].op == K_LOOP) continue;
            assert_int_equal(in->first_block, all);
            all += in->n_blocks, nests++;
        }
        assert_int_equal(nests, 3);
        assert_int_equal(k->grid_blocks, all);
    }
}

/* All parameters in one launch, the small ones beside the large. */
ARENA_TEST(test_updates) {
    static const int64_t sizes[] = { 1, 7, 128, 1000, 4096, 33, 5000, 2, 129, 640 };
    for (int apart = 0; apart < 2; apart++) {
        graph *g = updates(a, sizes, COUNT_OF(sizes));
        plan *p = plan_of(a, g, 3, apart), *two = plan_of(a, g, 2, apart);
        assert_int_equal(p->kernels.n,
                         apart ? 1 : 2); /* of a few small ones vertical_fusion.c made one group's work, which meets */
        assert_int_equal(two->kernels.n, COUNT_OF(sizes));
        assert_int_equal(n_joined(two), 0);
        bool said = false;
        for (int i = 0; i < p->decisions.n; i++)
            said |= !!strstr(p->decisions.at[i].reason, "each has thread blocks of its own");
        assert_true(said);
        check(a, g, "updates");
    }
}

static int count(const char *text, const char *word) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at++) n++;
    return n;
}

/* In the text of such a launch thread blocks find their part by halves, and equal parts are written once. */
ARENA_TEST(test_text) {
    static const int64_t sizes[] = { 640, 4096, 640, 640, 33, 640, 129, 4096, 640 };
    for (int language = 0; language < 2; language++) {
        str text;
        str_init(&text, a);
        plan *p = plan_of(a, updates(a, sizes, COUNT_OF(sizes)), 3, true);
        assert_int_equal(p->kernels.n, 1);
        emit_gpu(p, language ? GPU_CUDA : GPU_OPENCL, &text);
        assert_int_equal(count(text.s, "if (group < "), 3); /* of four kinds */
        assert_int_equal(count(text.s, "const int which = "), 2);
        assert_int_equal(count(text.s, "which == 3 ? "), 2); /* a gradient and a weight of five */
    }
}

/* Those of matrices and of vectors of as many numbers as one has rows: no thread block of the rows updates the vector's numbers
 * behind them, one after the other. */
ARENA_TEST(test_updates_of_rows) {
    static const char text[] = "graph @updates(g f32[128,512], h f32[128], state w f32[128,512], state m f32[128,512], state v "
                               "f32[128], state n f32[128]) {\n"
                               " %1 = mul m, 0.9 f32[128,512]\n"
                               " %2 = add %1, g f32[128,512]\n"
                               " %3 = mul %2, 0.125 f32[128,512]\n"
                               " %4 = sub w, %3 f32[128,512]\n"
                               " %5 = mul n, 0.9 f32[128]\n"
                               " %6 = add %5, h f32[128]\n"
                               " %7 = mul %6, 0.125 f32[128]\n"
                               " %8 = sub v, %7 f32[128]\n"
                               " return %2 -> m, %4 -> w, %6 -> n, %8 -> v\n"
                               "}";
    target t = target_common_gpu();
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 3, o.check = 1;
    graph *g = graph_parse(a, text, sizeof text - 1, "updates");
    plan *p = pipeline_run(g, a, &o, &t);
    assert_int_equal(p->kernels.n, 1);
    for (int i = 1; i < p->kernels.at[0].k->ins.n; i++) assert_true(p->kernels.at[0].k->ins.at[i].op != K_BARRIER);
    check(a, g, "updates of rows");
}

/* Random graphs: whatever is joined computes the same. */
ARENA_TEST(test_random) {
    int joined = 0;
    for (uint64_t seed = 0; seed < 90; seed++) {
        arena own;
        int differentiated;
        arena_init(&own, mem_libc(), a->gd);
        graph *g = randcase(&own, seed, &differentiated);
        plan_config c = { .seed = seed, .fusion = 3, .t = a_target(true) };
        joined += n_joined(plan_of(&own, g, 3, true));
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("seed %d: %s", (int)seed, c.text);
        arena_fini(&own);
    }
    printf("%d launches of several kernels\n", joined);
    assert_true(joined > 5);
}

/* Defects that the check must find: groups of one kernel dealt to another, to groups that are not there, or too few of them. */
ARENA_TEST(test_planted) {
    static const int64_t sizes[] = { 500, 300, 700 };
    plan *p = plan_of(a, updates(a, sizes, COUNT_OF(sizes)), 3, true);
    graph *g = products(a, 64, 64, 64, false);
    plan *q = plan_of(a, g, 3, true);
    int found = 0, planted = 0;
    for (int which = 0; which < 2; which++) {
        const kernel *k = (which ? q : p)->kernels.at[0].k;
        for (int i = 1; i < k->ins.n; i++) {
            if (k->ins.at[i].op != K_LOOP || !k->ins.at[i].dyn_n) continue;
            for (int defect = 0; defect < 3; defect++) {
                kernel *bad = kernel_clone(k, a);
                str out;
                str_init(&out, a);
                if (defect == 0) bad->ins.at[i].first_block = -1;
                if (defect == 1) bad->ins.at[i].first_block = k->grid_blocks;
                if (defect == 2) bad->ins.at[i].dyn_n = k->grid_blocks + 1;
                planted++, found += kernel_check(bad, &out) > 0;
            }
            kernel *bad = kernel_clone(k, a); /* two kernels write one buffer */
            str out;
            str_init(&out, a);
            int last = -1;
            for (int j = 1; j < bad->ins.n; j++) {
                kins *in = &bad->ins.at[j];
                if (in->op != K_STORE || kbuf_is_local(&bad->bufs.at[in->buf])) continue;
                if (last >= 0 && in->buf != last && bad->bufs.at[last].elems >= bad->bufs.at[in->buf].elems)
                    in->buf = (uint16_t)last;
                if (last < 0) last = in->buf;
            }
            planted++, found += kernel_check(bad, &out) > 0;
        }
    }
    assert_true(planted > 8);
    assert_int_equal(found, planted);
}

/* Products on matrix units beside each other and beside other work: each reads the shared memory that it has written. */
static void test_matrix_units(void **st) {
    (void)st;
    static const char *const text =
        "graph @g(x bf16[256,512], a bf16[512,256], b bf16[512,128], c f32[256,256]) {\n"
        " %1 = cast x f32[256,512]\n %2 = cast a f32[512,256]\n %3 = cast b f32[512,128]\n"
        " %4 = dot %1, %2 contract=[1]x[0] f32[256,256]\n %5 = dot %1, %3 contract=[1]x[0] f32[256,128]\n"
        " %6 = add %4, c f32[256,256]\n return %6 as \"y\", %5 as \"z\"\n}";
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    target t = target_common_gpu();
    t.shared_most = 227 << 10, t.matrix_units = true, t.machine = machine_find("sm_90", true);
    graph *g = graph_parse(&a, text, strlen(text), "products");
    plan_config c = { .seed = (uint64_t)(now_seconds() * 1e6), .fusion = 3, .t = t };
    if (!plan_config_agrees(g, NULL, &c)) fail_msg("seed %llu: %s", (unsigned long long)c.seed, c.text);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 3;
    plan *p = pipeline_run(g, &a, &o, &t);
    int most = 0; /* products in one kernel */
    for (int i = 0; i < p->kernels.n; i++) {
        const kernel *k = p->kernels.at[i].k;
        int sums = 0;
        bool *seen = ARENA_ARRAY(&a, bool, k->ins.n);
        for (int j = 1; j < k->ins.n; j++)
            if (k->ins.at[j].op == K_MMA && !seen[k->ins.at[j].c]) sums++, seen[k->ins.at[j].c] = true;
        if (sums > most) most = sums;
    }
    assert_int_equal(most, 2);
    arena_fini(&a);
}

/* Kernels beside each other share the memory of thread blocks: what they have together, a thread block has. Tiles of many
 * sizes. */
static void test_shared_memory(void **st) {
    (void)st;
    static const int64_t n[][3] = { { 16384, 3072, 768 }, { 1024, 16384, 1024 }, { 768, 16384, 768 }, { 768, 16384, 2304 },
                                    { 1024, 1024, 3072 }, { 1024, 1024, 1536 },  { 1536, 1024, 1536 } };
    enum { PRODUCTS = COUNT_OF(n) };
    arena a;
    guard gd;
    str text;
    int beside = 0;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    target t = target_common_gpu();
    t.shared_most = 227 << 10, t.resident_threads = 132 << 10, t.matrix_units = true, t.machine = machine_find("sm_90", true);
    str_init(&text, &a);
    str_add(&text, "graph @g(");
    for (int i = 0; i < PRODUCTS; i++)
        str_addf(&text, "%sx%d bf16[%lld,%lld], w%d bf16[%lld,%lld]", i ? ", " : "", i, (long long)n[i][0], (long long)n[i][1],
                 i, (long long)n[i][1], (long long)n[i][2]);
    str_add(&text, ") {\n");
    for (int i = 0; i < PRODUCTS; i++)
        str_addf(&text, " %%%d = dot x%d, w%d bf16[%lld,%lld]\n", i + 1, i, i, (long long)n[i][0], (long long)n[i][2]);
    for (int i = 0; i < PRODUCTS; i++) str_addf(&text, "%s %%%d as \"y%d\"", i ? "," : " return", i + 1, i);
    str_add(&text, "\n}");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 3;
    plan *p = pipeline_run(graph_parse(&a, text.s, strlen(text.s), "products"), &a, &o, &t);
    for (int i = 0; i < p->kernels.n; i++) {
        const kernel *k = p->kernels.at[i].k;
        beside += strstr(k->name, "_beside") != NULL;
        if (kernel_shared_bytes(k) > t.shared_most)
            fail_msg("@%s: %lld bytes of shared memory", k->name, (long long)kernel_shared_bytes(k));
    }
    assert_true(beside > 0);
    arena_fini(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_sizes_of_a_run), cmocka_unit_test(test_products),
                                        cmocka_unit_test(test_parts),          cmocka_unit_test(test_updates),
                                        cmocka_unit_test(test_text),           cmocka_unit_test(test_updates_of_rows),
                                        cmocka_unit_test(test_random),         cmocka_unit_test(test_planted),
                                        cmocka_unit_test(test_matrix_units),   cmocka_unit_test(test_shared_memory) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
