/* test_gpu_maps.c - elementwise kernels for GPUs through the interpreter against the reference evaluator: they go in vectors,
 * and what is left over of large odd sizes is dealt one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "recipe/recipe.h"
#include "support/plan_run.h"

static void test_maps(void **state) {
    (void)state;
    static const int64_t sizes[][2] = { { 1021, 1 }, { 33, 1009 }, { 1024, 1 }, { 7, 147 }, { 32769, 1 }, { 515, 64 } };
    static const tn_dtype types[] = { TN_F32, TN_BF16, TN_F64, TN_I32 };
    uint64_t seed = (uint64_t)now_seconds() ^ 0x2545f491u;
    for (size_t i = 0; i < COUNT_OF(sizes) * COUNT_OF(types); i++) {
        arena a;
        guard gd;
        char text[4096];
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s", (unsigned long long)seed, gd.err.text);
        graph *g = graph_make(&a, "map");
        tn_dtype t = types[i % COUNT_OF(types)];
        spec s = { .op = OP_input, .dtype = t, .name = "x", .rank = 2, .dims = sizes[i / COUNT_OF(types)] };
        val x = graph_add(g, &s);
        s.name = "y";
        graph_output(g, "out", graph_binary(g, OP_max, graph_binary(g, OP_sub, x, graph_add(g, &s)), x));
        graph_compact(g);
        plan_config c = { .seed = seed + i, .fusion = 3, .t = target_common_gpu() };
        c.t.resident_threads = 64;
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("seed %llu, case %zu: %s", (unsigned long long)seed, i, c.text);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        plan *p = pipeline_run(g, &a, &o, &c.t);
        if (!plan_texts_agree(p, &a, text, sizeof text)) fail_msg("case %zu: %s", i, text);
        assert_int_equal(p->kernels.n, 1);
        int in_vectors = 0, lanes = 16 / (int)dtype_size(t);
        const kernel *k = p->kernels.at[0].k;
        for (int n = 1; n < k->ins.n; n++)
            in_vectors += (k->ins.at[n].op == K_LOAD || k->ins.at[n].op == K_STORE) && k->ins.at[n].lanes == lanes;
        int64_t elems = s.dims[0] * s.dims[1];
        bool vectors = elems % lanes == 0 || elems * (int64_t)dtype_size(t) >= KERNEL_WIDE_BYTES;
        assert_int_equal(in_vectors, vectors ? 3 : 0);
        arena_fini(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_maps) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
