/* test_column_sums.c - sums over all rows that are made where a kernel has the rows: gradients of a norm, for a GPU, by the
 * interpreter, thread by thread, against double; which kernels there are; what is left alone.
 *
 * Labels: random */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "grad/grad.h"
#include "support/plan_run.h"

static val input(graph *g, const char *name, tn_dtype t, int rank, const int64_t *dims) {
    return graph_add(g, &(spec){ .op = OP_input, .dtype = (uint8_t)t, .name = name, .rank = rank, .dims = dims });
}
static val like(graph *g, val x, double c) { return graph_splat_like(g, x, c); }

/* The mean of the last axis, as wide as x. */
static val mean(graph *g, val x, const int64_t *dims) {
    val s = graph_reduce(g, OP_sum, x, 4);
    return graph_expand(g, graph_binary(g, OP_div, s, like(g, s, (double)dims[2])), dims);
}

/* A norm of x + b, and its gradients: of x, which other sums of rows need, too, of weights and of both biases. */
static graph *make(arena *a, tn_dtype t, const int64_t *dims) {
    graph *g = graph_make(a, "norm");
    int64_t row[] = { 1, 1, dims[2] };
    val x[] = { input(g, "x", t, 3, dims), input(g, "b", t, 3, row), input(g, "w", t, 3, row), input(g, "c", t, 3, row) };
    val given = input(g, "g", t, 3, dims), d[4];
    val h = graph_binary(g, OP_add, x[0], graph_expand(g, x[1], dims));
    val from = graph_binary(g, OP_sub, h, mean(g, h, dims));
    val square = mean(g, graph_binary(g, OP_mul, from, from), dims);
    val y = graph_binary(g, OP_mul, from, graph_unary(g, OP_rsqrt, graph_binary(g, OP_add, square, like(g, square, 0.01))));
    y = graph_binary(g, OP_add, graph_binary(g, OP_mul, y, graph_expand(g, x[2], dims)), graph_expand(g, x[3], dims));
    val loss = graph_reduce(g, OP_sum, graph_binary(g, OP_mul, y, given), 7);
    grad_build(g, graph_reshape(g, loss, 0, NULL), x, 4, d);
    graph_output(g, "dx", d[0]), graph_output(g, "db", d[1]), graph_output(g, "dw", d[2]), graph_output(g, "dc", d[3]);
    return g;
}

static plan *plan_of(arena *a, graph *g, int64_t threads) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = target_common_gpu();
    t.resident_threads = threads;
    o.fusion = 3, o.check = 1;
    return pipeline_run(g, a, &o, &t);
}

/* Kernels that go by blocks of rows. */
static int count(const plan *p) {
    int n = 0;
    for (int i = 0; i < p->kernels.n; i++) n += strstr(p->kernels.at[i].k->name, "_sums") != NULL;
    return n;
}

ARENA_TEST(test_values) {
    uint64_t first, rounds = fuzz_seeds(2000, &first) / 200, seed = first + 5;
    int found = 0;
    if (rounds < 4) rounds = 4;
    for (uint64_t round = 0; round < rounds; round++) {
        int64_t n[3];
        for (int i = 0; i < 3; i++) seed = seed * 6364136223846793005ull + 1442695040888963407ull, n[i] = (int64_t)(seed >> 33);
        const int64_t dims[] = { 1 + n[0] % 3, 96 + 32 * (n[1] % 3), 64 + 32 * (n[2] % 9) };
        tn_dtype t = round % 2 ? TN_BF16 : TN_F32;
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        graph *g = make(&own, t, dims), *exact = make(&own, TN_F32, dims);
        sample in = sample_make(g, &own, round);
        eval_value *want = eval_graph(exact, &own, in.values);
        plan *p = plan_of(&own, g, 1 << 10);
        found += count(p);
        eval_memory *m = eval_memory_make(p, &own);
        for (int i = 0; i < g->inputs.n; i++)
            memcpy(m->io[plan_io(p, graph_get(g, g->inputs.at[i])->name, false)], in.data[i], in.bytes[i]);
        eval_plan(p, m, &own);
        for (int o = 0; o < g->outputs.n; o++) {
            const void *got = m->io[plan_io(p, g->outputs.at[o].name, true)];
            const double *y = want[exact->outputs.at[o].v].f, bound = t == TN_BF16 ? 0x1p-5 : 0x1p-15;
            int64_t all = graph_elems(g, g->outputs.at[o].v);
            double square = 0;
            for (int64_t i = 0; i < all; i++) square += y[i] * y[i] / (double)all;
            for (int64_t i = 0; i < all; i++)
                if (!(fabs(dtype_load(t, got, i) - y[i]) < bound * (sqrt(square) + fabs(y[i]))))
                    fail_msg("round %d, %d x %d x %d: %s[%d] is %g, expected %g", (int)round, (int)dims[0], (int)dims[1],
                             (int)dims[2], g->outputs.at[o].name, (int)i, dtype_load(t, got, i), y[i]);
        }
        arena_fini(&own);
    }
    printf("%d of %d kernels of rows make sums\n", found, (int)rounds); /* else the sums became one kernel first */
    assert_true(3 * found >= (int)rounds);
}

/* Few rows; a number of them without blocks; rows that are too long for registers. */
ARENA_TEST(test_left_alone) {
    static const int64_t dims[][3] = { { 1, 8, 64 }, { 1, 257, 64 }, { 1, 128, 1 << 16 } };
    for (size_t i = 0; i < COUNT_OF(dims); i++) assert_int_equal(count(plan_of(a, make(a, TN_F32, dims[i]), 1 << 10)), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_values), cmocka_unit_test(test_left_alone) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
