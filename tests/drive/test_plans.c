/* test_plans.c - random graphs, half of them differentiated, as plans run by the interpreter of kernels, against the reference evaluator: the
 * bulk test of scheduling, tiling and memory planning. No compiler is needed, so thousands of graphs take minutes.
 *
 * Labels: random
 * TENON_FUZZ_SEEDS: how many graphs (default 300); TENON_FUZZ_FIRST: the first seed. A failure is reduced and printed as a .tn text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/plan_run.h"

static bool fails(graph *g, void *ud) { return !plan_config_agrees(g, NULL, ud); }

typedef struct tally {
    int runs, bad, differentiated;
} tally;

static void report(graph *g, arena *a, plan_config *c) {
    fprintf(stderr, "seed %llu, fusion %d, no_passes %d: %s\n", (unsigned long long)c->seed, c->fusion, c->no_passes, c->text);
    if (getenv("TENON_FUZZ_NO_REDUCE")) return;
    reduce_and_print(g, a, fails, c);
    fprintf(stderr, "  after reduction: %s\n", c->text);
}

/* The graph of a seed; every second one with gradients where it has any. */
static graph *graph_of(arena *a, uint64_t seed, tally *t) {
    guard gd, *outer = a->gd;
    graph *g = randgraph(a, seed, NULL), *d = graph_clone(g, a, false, NULL);
    if (seed % 2 == 0) return g;
    a->gd = &gd;
    bool ok = GUARD_TRY(&gd) && differentiate(d, a);
    a->gd = outer;
    t->differentiated += ok;
    return ok ? d : graph_clone(g, a, false, NULL);
}

static void run_seed(uint64_t seed, tally *t) {
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (GUARD_TRY(&gd)) {
        graph *g = graph_of(&a, seed, t);
        reference r = reference_make(g, &a, seed);
        for (int fusion = 0; fusion < 4; fusion++) {
            plan_config c = { .seed = seed, .fusion = fusion, .no_passes = (seed / 2 + (uint64_t)fusion) % 2, .t = plan_target(seed / 2) };
            t->runs++;
            if (plan_config_agrees(g, &r, &c)) continue;
            t->bad++;
            report(g, &a, &c);
        }
    } else {
        t->bad++;
        fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed, gd.err.text);
    }
    arena_fini(&a);
}

static void test_random_graphs(void **state) {
    (void)state;
    tally t = { 0 };
    uint64_t first, n = fuzz_seeds(300, &first);
    double start = now_seconds();
    for (uint64_t seed = first; seed < first + n; seed++) run_seed(seed, &t);
    printf("%llu random graphs, %d with gradients, %d plans, %d failed, %.1f s\n", (unsigned long long)n, t.differentiated, t.runs, t.bad, now_seconds() - start);
    assert_int_equal(t.bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random_graphs) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
