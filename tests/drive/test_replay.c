/* test_replay.c - bytes counted in simulated caches: exact where the answer can be worked out by hand; one kernel as a plan of
 * one; why something is not counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "drive/replay.h"
#include "support/plan_run.h"

enum { L2 = 1 << 20, L3 = 8 << 20 };

static machine small_machine(const target *t) {
    machine m = machine_of(t);
    m.level[LEVEL_L1].bytes = 32 << 10, m.level[LEVEL_L2].bytes = L2, m.level[LEVEL_L3].bytes = L3;
    return m;
}

static plan *plan_of(const char *text, arena *a, target *t, int threads) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    *t = plan_target(2);
    o.threads = threads, t->threads = threads;
    return pipeline_run(graph_parse(a, text, strlen(text), "text"), a, &o, t);
}

/* Read once and written once: 4 n bytes each, and each line of both comes from where all of it has room. What no cache has room
 * for is written past them. */
static void check_map(arena *a, int64_t n, int threads, machine_level from) {
    target t;
    plan *p = plan_of(arena_printf(a, "graph @g(x f32[%lld]) {\n  %%1 = neg x f32[%lld]\n  return %%1 as \"y\"\n}\n",
                                   (long long)n, (long long)n),
                      a, &t, threads);
    machine m = small_machine(&t);
    replay_bytes r[8], again[8];
    assert_int_equal(p->kernels.n, 1);
    replay_plan(p, &m, threads, a, r);
    assert_null(r[0].unknown);
    assert_true(r[0].counted[LEVEL_L1] == 8.0 * (double)n);
    for (int l = LEVEL_L2; l < MACHINE_LEVELS; l++) {
        double want = l > (int)from ? 0 : (from == LEVEL_MEMORY && l < LEVEL_MEMORY ? 4.0 : 8.0) * (double)n;
        if (r[0].counted[l] < 0.99 * want || r[0].counted[l] > 1.01 * want)
            fail_msg("%lld elements, %d threads, level %d: %g bytes, not %g", (long long)n, threads, l, r[0].counted[l], want);
    }
    replay_plan(p, &m, threads, a, again);
    assert_memory_equal(r[0].counted, again[0].counted, sizeof r[0].counted);
    double cold;
    if (threads > 1) return;
    replay_kernel(p->kernels.at[0].k, &m, a, again, &cold);
    assert_true(r[0].counted[LEVEL_L1] == again[0].counted[LEVEL_L1]);
    assert_true(r[0].counted[LEVEL_MEMORY] == again[0].counted[LEVEL_MEMORY] && cold >= 0.99 * 8.0 * (double)n);
}

ARENA_TEST(test_map) {
    check_map(a, 2048, 1, LEVEL_L1);
    check_map(a, 32 << 10, 1, LEVEL_L2);
    check_map(a, 512 << 10, 1, LEVEL_L3);
    check_map(a, 4 << 20, 1, LEVEL_MEMORY);
    check_map(a, 200 << 10, 1, LEVEL_L3);
    check_map(a, 200 << 10, 2, LEVEL_L2); /* each has half of it, which is near */
}

ARENA_TEST(test_why_not) {
    target t;
    replay_bytes r[8];
    plan *p =
        plan_of("graph @g(x f32[100,8], i i32[5]) {\n  %1 = gather x, i axis=0 f32[5,8]\n  return %1 as \"y\"\n}\n", a, &t, 1);
    machine m = small_machine(&t);
    replay_plan(p, &m, 1, a, r);
    assert_string_equal(r[0].unknown, "values decide what it touches");
    p = plan_of("graph @g(x f32[8], a f32[2000,2000], b f32[2000,2000]) {\n  %1 = exp x f32[8]\n"
                "  %2 = dot a, b contract=[1]x[0] f32[2000,2000]\n  return %1 as \"y\", %2 as \"z\"\n}\n",
                a, &t, 1);
    replay_plan(p, &m, 1, a, r);
    int counted = 0;
    for (int i = 0; i < p->kernels.n; i++) {
        counted += !r[i].unknown;
        if (r[i].unknown) assert_string_equal(r[i].unknown, "counting it takes too long");
    }
    assert_int_equal(counted, p->kernels.n - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_map), cmocka_unit_test(test_why_not) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
