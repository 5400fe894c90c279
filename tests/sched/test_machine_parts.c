/* test_machine_parts.c - kernels that nobody waits for are scheduled for part of a GPU whose launches overlap, and equal ones
 * that are waited for for all of it, whichever come first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sched/fusion.h"
#include "support/plan_run.h"

enum { BESIDE = 4, FEW = 2, LINKS = 12 };

/* A chain of products, of which each needs the one before, and equal ones of inputs, which nobody reads. */
static graph *products(arena *a, bool chain_first, int n, int beside) {
    str s;
    str_init(&s, a);
    str_addf(&s, "graph @products(x f32[768,%d], w f32[%d,%d], u f32[%d,%d]", n, n, n, n, n);
    for (int i = 0; i < beside; i++) str_addf(&s, ", a%d f32[768,%d]", i, n);
    str_add(&s, ") {\n %c0 = dot x, w");
    str_addf(&s, " f32[768,%d]\n", n);
    for (int half = 0; half < 2; half++)
        if ((half == 0) == chain_first)
            for (int i = 1; i < LINKS; i++) str_addf(&s, " %%c%d = dot %%c%d, w f32[768,%d]\n", i, i - 1, n);
        else
            for (int i = 0; i < beside; i++) str_addf(&s, " %%b%d = dot a%d, u f32[768,%d]\n", i, i, n);
    str_addf(&s, " return %%c%d as \"c\"", LINKS - 1);
    for (int i = 0; i < beside; i++) str_addf(&s, ", %%b%d as \"b%d\"", i, i);
    str_add(&s, "\n}");
    return graph_parse(a, s.s, s.n, "products");
}

static plan *plan_of(arena *a, graph *g, bool overlaps, int fusion) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = target_common_gpu();
    t.machine = machine_row("h200"), t.resident_threads = 132 << 10, t.shared_most = 227 << 10, t.overlaps = overlaps;
    o.fusion = fusion, o.check = 1;
    return pipeline_run(g, a, &o, &t);
}

ARENA_TEST(test_equal_kernels) {
    for (int chain_first = 0; chain_first < 2; chain_first++) {
        graph *g = products(a, chain_first, 512, BESIDE);
        plan *p = plan_of(a, g, true, 2), *alone = plan_of(a, g, false, 2);
        assert_int_equal(p->kernels.n, BESIDE + LINKS); /* each product is a launch */
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

/* Those that nobody waits for are launches with others where they do not take long, else one by themselves. */
ARENA_TEST(test_launches) {
    for (int chain_first = 0; chain_first < 2; chain_first++)
        for (int small = 0; small < 2; small++) {
            const plan *p = plan_of(a, products(a, chain_first, small ? 128 : 512, small ? FEW : BESIDE), true, 3);
            int mixed = 0;
            for (int i = 0; i < p->kernels.n; i++) {
                bool outputs = false, links = false;
                for (int b = 0; b < p->kernels.at[i].k->bufs.n; b++) {
                    const pbuf *buf = p->kernels.at[i].args[b].buf < 0 ? NULL : &p->bufs.at[p->kernels.at[i].args[b].buf];
                    if (buf && p->kernels.at[i].k->bufs.at[b].kind == KB_OUT)
                        *(buf->kind == PB_TEMP ? &links : &outputs) = true;
                }
                mixed += outputs && links;
            }
            printf("%d launches, %d with both\n", p->kernels.n, mixed);
            assert_int_equal(mixed > 0, small);
            assert_true(p->kernels.n <= LINKS + 1);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_equal_kernels), cmocka_unit_test(test_launches) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
