/* test_inplace.c - scatters over what dies in them: random shapes, axes, indices that repeat or are out of range, against the
 * evaluator, for CPUs and GPUs; where the base is read later it has to stay. In place nothing of the base moves.
 *
 * Labels: random
 * TENON_FUZZ_SEEDS: how many graphs (default 300); TENON_FUZZ_FIRST: the first seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/plan_run.h"

typedef enum variant { ASSIGNED, READ_AFTER, OLD_IS_OUTPUT, OLD_IS_READ_AFTER, OVER_A_VALUE, TWICE, N_VARIANTS } variant;

static val input_of(graph *g, op_code op, tn_dtype t, const char *name, int rank, const int64_t *dims) {
    return graph_add(g, &(spec){ .op = op, .dtype = t, .name = name, .rank = rank, .dims = dims });
}

typedef struct places { /* what is written where */
    op_code op;
    val index;
    int axis, rank;
    int64_t dims[TN_MAX_RANK], n_index;
    tn_dtype t;
} places;

static val written(graph *g, const places *p, val base, const char *name) {
    int64_t dims[TN_MAX_RANK];
    for (int i = 0; i < p->rank; i++) dims[i] = i == p->axis ? p->n_index : p->dims[i];
    return graph_scatter(g, p->op, base, p->index, input_of(g, OP_input, p->t, name, p->rank, dims), p->axis, 0);
}

static graph *random_graph(arena *a, rng *r, variant v, places *p) {
    static const tn_dtype types[] = { TN_F32, TN_I32, TN_F64, TN_BF16, TN_U8 };
    graph *g = graph_make(a, "scattered");
    *p = (places){ .op = rng_chance(r, 0.6) ? OP_scatter_set : OP_scatter_add, .rank = (int)rng_between(r, 1, 4) };
    p->t = types[rng_below(r, p->op == OP_scatter_add ? 3 : 5)]; /* sums of halves are made in f32: not in place */
    p->axis = (int)rng_below(r, p->rank), p->n_index = rng_between(r, 0, 4);
    for (int i = 0; i < p->rank; i++) p->dims[i] = rng_between(r, 1, i == p->axis ? 40 : 9);
    p->index = graph_add(
        g, &(spec){ .op = OP_iota, .dtype = TN_I64, .rank = 1, .dims = &p->n_index, .attr = (int64_t[]){ 0 }, .n_attr = 1 });
    p->index = graph_binary(g, OP_mul, p->index, graph_splat_like(g, p->index, (double)rng_below(r, 9)));
    p->index = graph_binary(g, OP_sub, p->index, graph_splat_like(g, p->index, (double)rng_below(r, 3)));
    bool over = v == OVER_A_VALUE;
    val base = input_of(g, over ? OP_input : OP_state, p->t, "x", p->rank, p->dims), old = base;
    if (over) base = graph_binary(g, OP_add, base, base), graph_output(g, "sum", graph_reduce(g, OP_reduce_max, base, 1));
    val y = written(g, p, base, "u");
    if (v == TWICE) y = written(g, p, y, "w");
    if (over)
        graph_output(g, "y", graph_unary(g, OP_neg, y));
    else
        graph_assign(g, base, y);
    if (v == READ_AFTER) graph_output(g, "sum", graph_reduce(g, OP_reduce_max, y, (1u << p->rank) - 1));
    if (v == OLD_IS_OUTPUT) graph_output(g, "old", old);
    if (v == OLD_IS_READ_AFTER) {
        val top = graph_reduce(g, OP_reduce_max, y, (1u << p->rank) - 1);
        graph_output(g, "old", graph_binary(g, OP_max, old, graph_expand(g, top, p->dims)));
    }
    graph_compact(g);
    return g;
}

/* The kernel of the scatter has no nest that copies, and no memory of the state's size waits beside it. A state of one element
 * has no nest. */
static void expect_in_place(const plan *p, uint64_t seed, variant v) {
    for (int i = 0; i < p->kernels.n; i++) {
        const kernel *k = p->kernels.at[i].k;
        for (int j = 1; j < k->ins.n; j++) {
            if (k->ins.at[j].op != K_SCATTER || k->bufs.at[k->ins.at[j].buf].elems == 1) continue;
            for (int l = 1; l < k->ins.n; l++)
                if ((k->ins.at[l].op == K_LOAD || k->ins.at[l].op == K_STORE) && k->ins.at[l].buf == k->ins.at[j].buf)
                    fail_msg("seed %llu: kernel %s of variant %d copies", (unsigned long long)seed, k->name, (int)v);
            assert_int_equal(k->bufs.at[k->ins.at[j].buf].kind, KB_INOUT);
        }
    }
}

static void test_scatters(void **state) {
    (void)state;
    uint64_t first, seeds = fuzz_seeds(300, &first);
    int in_place = 0;
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s", (unsigned long long)seed, gd.err.text);
        rng r = rng_make(seed);
        variant v = (variant)(seed % N_VARIANTS);
        places at;
        graph *g = random_graph(&a, &r, v, &at);
        plan_config c = { .seed = seed, .fusion = (int)rng_below(&r, 4), .t = plan_target(seed) };
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("seed %llu, variant %d: %s", (unsigned long long)seed, (int)v, c.text);
        if (v == ASSIGNED || v == READ_AFTER) {
            tn_compile_opts o = TN_COMPILE_DEFAULTS;
            o.fusion = c.fusion;
            expect_in_place(pipeline_run(g, &a, &o, &c.t), seed, v);
            in_place++;
        }
        c.t = (target){
            .kind = TARGET_GPU, .block_threads = 64, .shared_bytes = 16 << 10, .resident_threads = 4096, .vector_bytes = 16
        };
        if (!plan_config_agrees(g, NULL, &c))
            fail_msg("seed %llu, variant %d, GPU: %s", (unsigned long long)seed, (int)v, c.text);
        arena_fini(&a);
    }
    printf("count: %llu scatters over states and values, %d of them in place\n", (unsigned long long)seeds, in_place);
}

/* A row of a cache: what moves does not depend on the cache's size. */
ARENA_TEST(test_cache_traffic) {
    uint64_t moved[2] = { 0 };
    for (int n = 0; n < 2; n++) {
        graph *g = graph_make(a, "cache");
        int64_t dims[] = { 4, n ? 4096 : 64, 16 }, row[] = { 4, 1, 16 };
        val cache = input_of(g, OP_state, TN_F32, "cache", 3, dims), x = input_of(g, OP_input, TN_F32, "x", 3, row);
        val at = graph_reshape(g, input_of(g, OP_input, TN_I64, "at", 0, NULL), 1, (int64_t[]){ 1 });
        graph_assign(g, cache, graph_scatter(g, OP_scatter_set, cache, at, x, 1, 0));
        graph_compact(g);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = plan_target(3);
        const plan *p = pipeline_run(g, a, &o, &t);
        for (int i = 0; i < p->kernels.n; i++) moved[n] += p->kernels.at[i].k->bytes_written + p->kernels.at[i].k->bytes_read;
        assert_true(p->temp_bytes <= 1024);
    }
    assert_int_equal(moved[0], moved[1]);
    assert_true(moved[1] < 2048);
}

/* Whether %5 is, over %1, which the reduction reads, too. needs: %5 is made of the reduction's result. */
static bool written_over(arena *a, bool needs, int n, target t) {
    str s;
    str_init(&s, a);
    str_addf(&s,
             "graph @g(x f32[8,%d], z f32[8,%d]) {\n %%1 = exp x f32[8,%d]\n %%2 = reduce_max %%1 axes=[0,1] f32[1,1]\n"
             " %%3 = exp %%2 f32[1,1]\n %%4 = expand %%3 f32[8,%d]\n %%5 = mul %%1, %s f32[8,%d]\n %%6 = sin %%5 f32[8,%d]\n"
             " %%7 = add %%3, %%3 f32[1,1]\n return %%6 as \"y\", %%7 as \"most\"\n}",
             n, n, n, n, needs ? "%4" : "z", n, n);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 0;
    const plan *p = pipeline_run(graph_parse(a, s.s, s.n, "g"), a, &o, &t);
    for (int b = 0; b < p->bufs.n; b++)
        if (p->bufs.at[b].elems == 8 * n && p->bufs.at[b].kind == PB_TEMP && p->bufs.at[b].inplace_of >= 0) return true;
    return false;
}

/* A small result of a GPU stands in a place of its own where it would have to wait for what reads the operand, too. */
ARENA_TEST(test_others_read) {
    target gpu = {
        .kind = TARGET_GPU, .block_threads = 64, .shared_bytes = 16 << 10, .resident_threads = 4096, .vector_bytes = 16
    };
    for (int needs = 0; needs < 2; needs++) {
        assert_true(written_over(a, needs, 100, plan_target(3)));
        assert_int_equal(written_over(a, needs, 100, gpu), needs);
        assert_true(written_over(a, needs, 1000, gpu));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_scatters), cmocka_unit_test(test_cache_traffic),
                                        cmocka_unit_test(test_others_read) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
