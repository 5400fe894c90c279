/* test_unread.c - what nothing reads is not stored: random elementwise graphs whose values have several readers, against the
 * evaluator, for CPUs and GPUs; no temporary is written that nothing reads, and where one kernel is left there are none.
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

static graph *random_graph(arena *a, rng *r) {
    static const op_code ops[] = { OP_add, OP_sub, OP_max, OP_min };
    int64_t dims[2] = { rng_between(r, 1, 5), rng_between(r, 1, 40) };
    graph *g = graph_make(a, "shared");
    val v[24];
    int n = 0;
    for (; n < 2; n++)
        v[n] = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .name = n ? "y" : "x", .rank = 2, .dims = dims });
    for (int end = (int)rng_between(r, 4, 12); n < end; n++)
        v[n] = rng_chance(r, 0.4) ? graph_unary(g, OP_tanh, v[rng_below(r, n)])
                                  : graph_binary(g, ops[rng_below(r, 4)], v[rng_below(r, n)], v[n - 1]);
    if (rng_chance(r, 0.3)) v[n] = graph_reduce(g, OP_sum, v[rng_below(r, n)], 2), n++;
    graph_output(g, "a", v[n - 1]);
    graph_output(g, "b", graph_unary(g, OP_neg, v[n - 2]));
    graph_output(g, "c", graph_unary(g, OP_abs, v[n - 3]));
    graph_compact(g);
    return g;
}

static bool is_read(const plan *p, int32_t buf) {
    for (int i = 0; i < p->kernels.n; i++)
        for (int b = 0; b < p->kernels.at[i].k->bufs.n; b++)
            if (p->kernels.at[i].args[b].buf == buf && p->kernels.at[i].k->bufs.at[b].kind != KB_OUT) return true;
    return false;
}

ARENA_TEST(test_random) {
    uint64_t first, n = fuzz_seeds(300, &first);
    int alone = 0;
    for (uint64_t seed = first; seed < first + n; seed++) {
        arena own;
        arena_child(&own, a);
        rng r = rng_make(seed);
        graph *g = random_graph(&own, &r);
        plan_config c = { .seed = seed, .fusion = 3, .t = plan_target(1 + (int)(seed % 3)) };
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("seed %llu: %s", (unsigned long long)seed, c.text);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3;
        plan *p = pipeline_run(g, &own, &o, &c.t);
        for (int b = 0; b < p->bufs.n; b++)
            if (p->bufs.at[b].kind == PB_TEMP && p->bufs.at[b].bytes && p->kernels.n == 1 && !is_read(p, b))
                fail_msg("seed %llu: temporary b%d is written, and nothing reads it", (unsigned long long)seed, b);
        alone += p->kernels.n == 1;
        arena_fini(&own);
    }
    assert_true(alone > 0);
    printf("count: %llu random graphs of values with several readers, %d of them one kernel\n", (unsigned long long)n, alone);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
