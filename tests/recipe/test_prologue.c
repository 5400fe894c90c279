/* test_prologue.c - elementwise work on an operand of a contraction that reads it few times: weights of 8 bits are dequantised
 * as they are loaded, in one kernel, which reads a byte a weight; values by the interpreter against the reference evaluator.
 *
 * Labels: random */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "api/api.h"
#include "support/plan_run.h"

/* relu(x dequantised(w) + b): a scale a column of the result, or one a term of its sums. turned: w is n x k. */
static graph *make(arena *a, int64_t m, int64_t k, int64_t n, bool turned, bool by_column) {
    int64_t dw[] = { turned ? n : k, turned ? k : n }, one[] = { dw[0], 1 }, other[] = { 1, dw[1] };
    const int64_t *ds = turned == by_column ? one : other;
    graph *g = graph_make(a, "dequantised");
    val x = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .name = "x", .rank = 2, .dims = (int64_t[]){ m, k } });
    val w = graph_add(g, &(spec){ .op = OP_state, .dtype = TN_I8, .name = "w", .rank = 2, .dims = dw });
    val s = graph_add(g, &(spec){ .op = OP_state, .dtype = TN_F32, .name = "s", .rank = 2, .dims = ds });
    val b = graph_add(g, &(spec){ .op = OP_state, .dtype = TN_F32, .name = "b", .rank = 2, .dims = (int64_t[]){ 1, n } });
    val d = graph_binary(g, OP_mul, graph_cast(g, w, TN_F32), graph_broadcast(g, s, 2, dw));
    val y = graph_dot(g, x, d, NULL, NULL, 0, (int64_t[]){ 1 }, (int64_t[]){ turned }, 1);
    y = graph_binary(g, OP_add, y, graph_broadcast(g, b, 2, (int64_t[]){ m, n }));
    graph_output(g, "y", graph_binary(g, OP_max, y, graph_splat_like(g, y, 0)));
    return g;
}

static target a_target(int threads) {
    return (target){ .vector_bytes = 32, .n_vector_regs = 16, .threads = threads, .l1_bytes = 32 << 10, .l2_bytes = 1 << 20 };
}
static plan *plan_of(arena *a, graph *g, const target *t) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 3, o.check = 1;
    return pipeline_run(g, a, &o, t);
}

ARENA_TEST(test_one_kernel) {
    for (int i = 0; i < 4; i++) {
        target t = a_target(1 + i % 2);
        plan *one = plan_of(a, make(a, 1, 512, 512, i & 1, i & 2), &t),
             *many = plan_of(a, make(a, 64, 512, 512, i & 1, i & 2), &t);
        assert_int_equal(one->kernels.n, 1);
        assert_true(one->temp_bytes == 0);
        assert_true(one->kernels.at[0].k->bytes_read < 512 * 512 + 4 * 4 * 512);
        assert_int_equal(many->kernels.n, 2); /* each tile would dequantise again */
    }
}

ARENA_TEST(test_values) {
    static const int64_t sizes[][3] = { { 1, 300, 257 }, { 1, 64, 64 },  { 2, 129, 100 },
                                        { 3, 70, 130 },  { 4, 128, 96 }, { 5, 80, 80 } };
    for (int round = 0; round < 24; round++) {
        const int64_t *size = sizes[(size_t)round % COUNT_OF(sizes)];
        graph *g = make(a, size[0], size[1], size[2], round / 6 & 1, round / 12 & 1);
        plan_config c = { .seed = (uint64_t)round, .fusion = 3, .t = a_target(1 + round % 3) };
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("%d x %d x %d: %s", (int)size[0], (int)size[1], (int)size[2], c.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_one_kernel), cmocka_unit_test(test_values) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
