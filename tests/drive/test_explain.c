/* test_explain.c - the model of explain: whatever one kernel makes and another one reads has a reason for which they are two,
 * on the CPU and on GPUs, at each fusion level, for random graphs with gradients and for control flow.
 *
 * Labels: random */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "drive/explain.h"
#include "machine/machine.h"
#include "support/plan_run.h"

static int check_edges(const plan *p, const machine *m, arena *a, const char *what) {
    explain x = { .plan = p };
    explain_reasons r = explain_list_reasons(p, a);
    explain_find_edges(&x, &r, m, a);
    for (int i = 0; i < x.n_edges; i++) {
        const explain_edge *e = &x.edges[i];
        if (e->decision < 0 || p->decisions.at[e->decision].fused || !p->decisions.at[e->decision].reason[0])
            fail_msg("%s: kernel %d %s reads %%%u %s of kernel %d %s, and nothing says why", what, e->to,
                     p->kernels.at[e->to].k->name, e->value, plan_op_name((op_code)graph_get(p->g, e->value)->op), e->from,
                     p->kernels.at[e->from].k->name);
        assert_true(e->from < e->to && e->bytes >= 0 && e->ns >= 0);
    }
    return x.n_edges;
}

/* At each level, for the CPU and for a GPU as most are. */
static int check_graph(const graph *g, arena *a, uint64_t seed, bool gpu_too, const char *what) {
    int n = 0;
    for (int fusion = 0; fusion < 4; fusion++) {
        for (int gpu = 0; gpu < 1 + gpu_too; gpu++) {
            tn_compile_opts o = TN_COMPILE_DEFAULTS;
            target t = gpu ? target_common_gpu() : plan_target(seed);
            machine m = machine_of(&t);
            o.fusion = fusion;
            n += check_edges(pipeline_run(g, a, &o, &t), &m, a,
                             arena_printf(a, "%s, fusion %d, %s", what, fusion, gpu ? "GPU" : "CPU"));
        }
    }
    return n;
}

static void test_random(void **state) {
    (void)state;
    int edges = 0, differentiated = 0;
    uint64_t first, n = fuzz_seeds(100, &first);
    for (uint64_t seed = first; seed < first + n; seed++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %d: %s", (int)seed, gd.err.text);
        graph *g = randcase(&a, seed, &differentiated);
        edges += check_graph(g, &a, seed, true, arena_printf(&a, "seed %d", (int)seed));
        arena_fini(&a);
    }
    printf("count: %d edges between kernels of random graphs have a reason\n", edges);
    assert_true(edges > (int)n);
}

ARENA_TEST(test_control) {
    static const char text[] = "graph @loop(n i64[], x f32[6]) {\n"
                               "  region @c(%ci i64[], %cx f32[6]) {\n    %c1 = gt %ci, 0 bool[]\n    return %c1\n  }\n"
                               "  region @b(%bi i64[], %bx f32[6]) {\n    %b1 = sub %bi, 1 i64[]\n    %b2 = exp %bx f32[6]\n"
                               "    %b3 = sum %b2 axes=[0] f32[1]\n    %b4 = expand %b3 f32[6]\n    %b5 = div %b2, %b4 "
                               "f32[6]\n    return %b1, %b5\n  }\n"
                               "  %1 = sin x f32[6]\n  %2 = while n, %1 cond=@c body=@b i64[]\n  %3 = proj %2 index=1 f32[6]\n"
                               "  %4 = cos %3 f32[6]\n  return %4 as \"y\"\n}\n";
    graph *g = graph_parse(a, text, sizeof text - 1, "loop");
    assert_true(check_graph(g, a, 1, false, "a while") > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random), cmocka_unit_test(test_control) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
