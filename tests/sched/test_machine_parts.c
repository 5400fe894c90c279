/* test_machine_parts.c - kernels that nobody waits for are scheduled for part of a GPU whose launches overlap, and equal ones
 * that are waited for for all of it, whichever come first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sched/fusion.h"
#include "support/plan_run.h"

enum { BESIDE = 4, LINKS = 12 };

/* A chain of products, of which each needs the one before, and equal ones of inputs, which nobody reads. */
static graph *products(arena *a, bool chain_first) {
    str s;
    str_init(&s, a);
    str_add(&s, "graph @products(x f32[768,512], w f32[512,512]");
    for (int i = 0; i < BESIDE; i++) str_addf(&s, ", a%d f32[768,512]", i);
    str_add(&s, ") {\n");
    for (int half = 0; half < 2; half++)
        if ((half == 0) == chain_first)
            for (int i = 0; i < LINKS; i++) {
                str_addf(&s, i ? " %%c%d = dot %%c%d, w f32[768,512]\n" : " %%c%d = dot x, w f32[768,512]\n", i, i - 1);
            }
        else
            for (int i = 0; i < BESIDE; i++) str_addf(&s, " %%b%d = dot a%d, w f32[768,512]\n", i, i);
    str_addf(&s, " return %%c%d as \"c\"", LINKS - 1);
    for (int i = 0; i < BESIDE; i++) str_addf(&s, ", %%b%d as \"b%d\"", i, i);
    str_add(&s, "\n}");
    return graph_parse(a, s.s, s.n, "products");
}

static plan *plan_of(arena *a, bool chain_first, bool overlaps) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = target_common_gpu();
    t.machine = machine_row("h200"), t.resident_threads = 132 << 10, t.shared_most = 227 << 10, t.overlaps = overlaps;
    o.fusion = 2, o.check = 1; /* each product is a launch */
    plan *p = pipeline_run(products(a, chain_first), a, &o, &t);
    assert_int_equal(p->kernels.n, BESIDE + LINKS);
    return p;
}

ARENA_TEST(test_equal_kernels) {
    for (int chain_first = 0; chain_first < 2; chain_first++) {
        plan *p = plan_of(a, chain_first, true), *alone = plan_of(a, chain_first, false);
        int64_t all = alone->kernels.at[0].k->grid_blocks, n_beside = 0;
        for (int i = 0; i < BESIDE + LINKS; i++) {
            const pkernel *pk = &p->kernels.at[i];
            bool beside = pk->k->grid_blocks < all;
            assert_int_equal(alone->kernels.at[i].code, 0);
            if (!beside) assert_int_equal(pk->k->grid_blocks, all);
            assert_int_equal(p->kernels.at[pk->code].k->grid_blocks, pk->k->grid_blocks);
            n_beside += beside;
        }
        printf("%d of %d products for a part of the machine\n", (int)n_beside, BESIDE + LINKS);
        assert_true(n_beside >= BESIDE && n_beside <= BESIDE + 1); /* nobody waits for the last of the chain, either */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_equal_kernels) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
