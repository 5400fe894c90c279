/* test_row_block.c - a contraction and what follows it row by row as one kernel of a CPU: where that is so and where not, and
 * why; values by the interpreter against the reference evaluator for sizes of all kinds; and the same bits as without.
 *
 * Labels: random */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/api.h"
#include "support/plan_run.h"

typedef enum kind { SOFTMAX, NORM, LOSS, MLP, ATTENTION, FREE, HALF, N_KINDS } kind;
static const char *const kinds[] = { "softmax", "norm", "loss", "mlp", "attention", "free", "half" };

static val input(graph *g, const char *name, tn_dtype t, int rank, const int64_t *dims) {
    return graph_add(g, &(spec){ .op = OP_input, .dtype = (uint8_t)t, .name = name, .rank = rank, .dims = dims });
}
static val row_sum(graph *g, op_code op, val x) {
    const node *n = graph_get(g, x);
    int64_t dims[TN_MAX_RANK];
    int rank = n->rank;
    memcpy(dims, n->dims, sizeof dims);
    return graph_broadcast(g, graph_reduce(g, op, x, 1ull << (rank - 1)), rank, dims);
}
static val softmax(graph *g, val x) {
    val e = graph_unary(g, OP_exp, graph_binary(g, OP_sub, x, row_sum(g, OP_reduce_max, x)));
    return graph_binary(g, OP_div, e, row_sum(g, OP_sum, e));
}
/* Parameters do not change in a run; FREE ones are inputs. */
static val product(graph *g, val x, const char *name, int64_t k, int64_t n, bool free) {
    int64_t dims[] = { k, n };
    tn_dtype t = (tn_dtype)graph_get(g, x)->dtype;
    val w = free ? input(g, name, t, 2, dims)
                 : graph_add(g, &(spec){ .op = OP_state, .dtype = (uint8_t)t, .name = name, .rank = 2, .dims = dims });
    return graph_dot(g, x, w, NULL, NULL, 0, (int64_t[]){ 1 }, (int64_t[]){ 0 }, 1);
}
static val relu(graph *g, val x) { return graph_binary(g, OP_max, x, graph_unary(g, OP_neg, graph_unary(g, OP_abs, x))); }

static graph *make(arena *a, kind what, int64_t m, int64_t n, int64_t k) {
    graph *g = graph_make(a, kinds[what]);
    int64_t dx[] = { m, k }, heads[] = { 2, m, k }, keys[] = { 2, n, k };
    val y = 0;
    if (what == ATTENTION) {
        val q = input(g, "q", TN_F32, 3, heads), key = input(g, "k", TN_F32, 3, keys), v = input(g, "v", TN_F32, 3, keys);
        val s = graph_dot(g, q, key, (int64_t[]){ 0 }, (int64_t[]){ 0 }, 1, (int64_t[]){ 2 }, (int64_t[]){ 2 }, 1);
        y = graph_dot(g, softmax(g, s), v, (int64_t[]){ 0 }, (int64_t[]){ 0 }, 1, (int64_t[]){ 2 }, (int64_t[]){ 1 }, 1);
    } else {
        val x = input(g, "x", what == HALF ? TN_BF16 : TN_F32, 2, dx);
        if (what == MLP) x = relu(g, product(g, x, "w0", k, k, false));
        y = product(g, x, "w", k, n, what == FREE);
        if (what == NORM) {
            val c = graph_binary(g, OP_sub, y, row_sum(g, OP_sum, y));
            y = graph_binary(g, OP_mul, c, row_sum(g, OP_sum, graph_binary(g, OP_mul, c, c)));
        } else if (what == LOSS) {
            val c = graph_binary(g, OP_sub, y, row_sum(g, OP_reduce_max, y));
            c = graph_binary(g, OP_sub, c, graph_unary(g, OP_log, row_sum(g, OP_sum, graph_unary(g, OP_exp, c))));
            y = graph_reduce(g, OP_sum, graph_binary(g, OP_mul, c, input(g, "t", TN_F32, 2, (int64_t[]){ m, n })), 2);
        } else {
            y = softmax(g, relu(g, y));
        }
    }
    graph_output(g, "y", y);
    return g;
}

static target a_target(int threads) {
    return (target){ .vector_bytes = 32, .n_vector_regs = 16, .threads = threads, .l1_bytes = 32 << 10, .l2_bytes = 1 << 20 };
}

static plan *plan_of(arena *a, graph *g, int fusion, const target *t) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = fusion, o.check = 1;
    return pipeline_run(g, a, &o, t);
}

static bool says(const plan *p, bool fused, const char *reason) {
    for (int i = 0; i < p->decisions.n; i++)
        if (p->decisions.at[i].fused == fused && strstr(p->decisions.at[i].reason, reason)) return true;
    return false;
}

static bool has_block(const plan *p) {
    for (int i = 0; i < p->kernels.n; i++)
        for (kvar v = 0; v < p->kernels.at[i].k->vars.n; v++)
            if (p->kernels.at[i].k->vars.at[v].block) return true;
    return false;
}

/* One kernel at level 3 and not at level 2, whatever the sums are; and no row of what lies between is in the plan. */
ARENA_TEST(test_counts) {
    static const struct {
        kind what;
        int64_t m, n, k;
        int threads, two, three;
    } cases[] = {
        { SOFTMAX, 16, 16, 16, 1, 2, 1 },     { SOFTMAX, 32, 64, 128, 1, 2, 1 },  { SOFTMAX, 256, 256, 256, 1, 2, 1 },
        { SOFTMAX, 256, 256, 256, 2, 2, 1 },  { SOFTMAX, 997, 96, 64, 1, 2, 1 },  { SOFTMAX, 1, 64, 64, 1, 2, 1 },
        { NORM, 100, 64, 64, 1, 2, 1 },       { LOSS, 64, 10, 64, 1, 2, 1 },      { MLP, 64, 64, 64, 1, 3, 1 },
        { MLP, 64, 64, 64, 2, 3, 1 },         { ATTENTION, 64, 64, 16, 1, 3, 1 }, { FREE, 32, 32, 32, 1, 2, 1 },
        { ATTENTION, 256, 300, 64, 2, 3, 1 }, { FREE, 1024, 256, 256, 1, 2, 1 },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        graph *g = make(a, cases[i].what, cases[i].m, cases[i].n, cases[i].k);
        target t = a_target(cases[i].threads);
        plan *two = plan_of(a, g, 2, &t), *three = plan_of(a, g, 3, &t);
        if (two->kernels.n != cases[i].two || three->kernels.n != cases[i].three)
            fail_msg("%s %d x %d x %d: %d kernels at level 2, %d at level 3", kinds[cases[i].what], (int)cases[i].m,
                     (int)cases[i].n, (int)cases[i].k, two->kernels.n, three->kernels.n);
        assert_true(says(three, true, "a block of rows goes through both"));
        assert_false(has_block(two));
        assert_true(has_block(three));
        assert_true(three->temp_bytes == 0 && two->temp_bytes > 0);
    }
}

/* An operand that all blocks read alike is packed before the loop over blocks, and the copy is what they read. */
ARENA_TEST(test_packs_once) {
    target t = a_target(1);
    plan *p = plan_of(a, make(a, ATTENTION, 256, 300, 64), 3, &t);
    const kernel *k = p->kernels.at[0].k;
    int packed = -1, before = 0, inside = 0;
    bool block = false;
    assert_int_equal(p->kernels.n, 1);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        block |= in->op == K_LOOP && k->vars.at[in->var].block;
        if (in->op == K_STORE && !block) packed = in->buf, before++;
        inside += in->op == K_LOAD && block && in->buf == packed;
    }
    assert_true(before > 0 && inside > 0);
    assert_int_equal(k->bufs.at[packed].kind, KB_LOCAL);
    assert_true(k->bufs.at[packed].elems >= 300 * 64 && k->bufs.at[packed].elems < 400 * 64);
}

/* Where it would take longer, it is not done, and explain says why. */
ARENA_TEST(test_reasons) {
    static const struct {
        kind what;
        int64_t m, n, k;
        int threads;
        const char *reason;
    } cases[] = {
        { SOFTMAX, 8, 40000, 8, 1, "does not fit the first caches" },
        { SOFTMAX, 1024, 1024, 1024, 1, "would read again what does not fit the second cache" },
        { SOFTMAX, 3, 256, 256, 2, "threads could not share its few rows evenly" },
        { FREE, 60, 1024, 64, 1, "would copy an operand again" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        target t = a_target(cases[i].threads);
        plan *p = plan_of(a, make(a, cases[i].what, cases[i].m, cases[i].n, cases[i].k), 3, &t);
        assert_false(has_block(p));
        if (!says(p, false, cases[i].reason)) fail_msg("nothing says: %s", cases[i].reason);
    }
    static const char *const kept = "graph @g(x f32[32,8], w f32[8,16]) {\n %1 = dot x, w f32[32,16]\n"
                                    " %2 = reduce_max %1 axes=[1] f32[32,1]\n %3 = expand %2 f32[32,16]\n"
                                    " %4 = sub %1, %3 f32[32,16]\n return %4 as \"y\", %1 as \"z\"\n}";
    target t = a_target(1);
    plan *p = plan_of(a, graph_parse(a, kept, strlen(kept), "kept"), 3, &t);
    assert_false(has_block(p));
    assert_true(says(p, false, "what lies between them is needed elsewhere, too"));
}

static int64_t pick(uint64_t *seed, int64_t most) {
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return 1 + (int64_t)((*seed >> 33) % (uint64_t)most);
}

/* Sizes of all kinds, machines with caches that hold next to nothing: against the evaluator, in its bounds. */
ARENA_TEST(test_values) {
    int joined = 0, all = 0;
    uint64_t seed = 1;
    for (int round = 0; round < 120; round++, all++) {
        kind what = (kind)(round % N_KINDS);
        int64_t m = pick(&seed, round % 3 ? 40 : 150), n = pick(&seed, 70), k = pick(&seed, 40);
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        graph *g = make(&own, what, m, n, k);
        plan_config c = { .seed = (uint64_t)round,
                          .fusion = 3,
                          .t = round % 2 ? plan_target(seed >> 20) : a_target(1 + round % 3) };
        joined += has_block(plan_of(&own, g, 3, &c.t));
        if (!plan_texts_agree(plan_of(&own, g, 3, &c.t), &own, c.text, sizeof c.text)) fail_msg("%s", c.text);
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("%s %d x %d x %d: %s", kinds[what], (int)m, (int)n, (int)k, c.text);
        arena_fini(&own);
    }
    printf("%d of %d graphs by blocks\n", joined, all);
    assert_true(joined * 2 > all);
}

/* ---- bits ---- */

static void run(tn_ctx *ctx, graph *g, const sample *in, int fusion, int threads, unsigned char *out, int *out_kernels) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *s;
    tn_program_stats stats;
    o.fusion = fusion, o.threads = threads;
    if (drive_compile(ctx, g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    tn_program_get_stats(p, &stats);
    *out_kernels = stats.kernels;
    for (int i = 0; i < p->n_io; i++) {
        void *where = out;
        for (int k = 0; k < g->inputs.n && !p->io[i].is_output; k++)
            if (!strcmp(graph_get(g, g->inputs.at[k])->name, p->io[i].name)) where = in->data[k];
        if (tn_session_bind(s, i, where)) fail_msg("%s", tn_ctx_error(ctx));
    }
    if (tn_session_run(s)) fail_msg("%s", tn_ctx_error(ctx));
    tn_session_free(s);
    tn_program_free(p);
}

/* Levels 2 and 3, one thread and two: every bit. */
ARENA_TEST(test_bits) {
    int fewer = 0, rounds = fuzz_by_c() ? 2 * N_KINDS : 60;
    uint64_t seed = 7;
    for (int round = 0; round < rounds; round++) {
        kind what = (kind)(round % N_KINDS);
        int64_t m = pick(&seed, round % 4 ? 70 : 400), n = pick(&seed, round % 5 ? 80 : 600), k = pick(&seed, 90);
        tn_ctx *ctx = test_ctx();
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        graph *g = make(&own, what, m, n, k);
        sample in = sample_make(g, &own, (uint64_t)round);
        size_t bytes =
            (size_t)graph_elems(g, g->outputs.at[0].v) * dtype_size((tn_dtype)graph_get(g, g->outputs.at[0].v)->dtype);
        unsigned char *want = arena_alloc(&own, bytes), *got = arena_alloc(&own, bytes);
        int two, three;
        run(ctx, g, &in, 2, 1, want, &two);
        for (int threads = 1; threads < 4; threads++) {
            run(ctx, g, &in, 3, threads, got, &three);
            if (threads == 1) fewer += three < two;
            if (memcmp(want, got, bytes))
                fail_msg("%s %d x %d x %d, %d threads: other bits than at level 2", kinds[what], (int)m, (int)n, (int)k,
                         threads);
        }
        tn_ctx_free(ctx);
        arena_fini(&own);
    }
    printf("%d of %d graphs have fewer kernels\n", fewer, rounds);
    assert_true(2 * fewer > rounds);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_counts), cmocka_unit_test(test_reasons),
                                        cmocka_unit_test(test_packs_once), cmocka_unit_test(test_values),
                                        cmocka_unit_test(test_bits) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
