/* Labels: random
 * test_gpu_schedules.c - kernels of GPUs by the text of their schedules: each kernel of random graphs, for random devices, has
 * one, and the text that is printed gives the same kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "loop/schedule.h"
#include "support/plan_run.h"

static target random_gpu(uint64_t seed) {
    static const int threads[] = { 32, 64, 256, 128, 32 }, clusters[] = { 0, 8, 2, 0, 4 };
    static const int64_t grids[] = { 64, 1 << 17, 512 };
    target t = target_common_gpu();
    t.block_threads = threads[seed % 5], t.max_block_threads = seed % 6 < 2 ? 0 : t.block_threads * (seed % 6 == 2 ? 1 : 4);
    t.shared_bytes = seed % 3 ? 48 << 10 : 3 << 10, t.resident_threads = grids[seed / 4 % 3];
    t.cluster = clusters[seed / 3 % 5], t.clusters = (int)(seed / 11 % 3) * 8;
    if (seed % 4 == 3) t = target_common_gpu(), t.cluster = 8, t.clusters = 15, t.resident_threads = 132 << 10;
    return t;
}

static const char *kernels_text(const plan *p, arena *a) {
    str s;
    str_init(&s, a);
    for (int i = 0; i < p->kernels.n; i++) kernel_print(p->kernels.at[i].k, &s);
    return s.s;
}

typedef struct round_trip {
    uint64_t seed;
    int kernels, used[STEP_COUNT];
} round_trip;

static void feed_back(arena *a, void *ud) {
    round_trip *x = ud;
    int differentiated = 0;
    graph *g = x->seed % 2 ? randnet(a, x->seed, &differentiated) : randcase(a, x->seed, &differentiated);
    target t = random_gpu(x->seed * 7);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = (int)(x->seed % 3) + 1;
    plan *p = pipeline_run(g, a, &o, &t);
    str text;
    str_init(&text, a);
    for (int i = 0; i < p->schedules.n; i++, x->kernels++) {
        const schedule *s = p->schedules.at[i].s;
        if (!s) guard_fail(a->gd, TN_ERR_INTERNAL, "@%s has no schedule", p->schedules.at[i].name);
        for (int j = 0; j < s->steps.n; j++) x->used[s->steps.at[j].op]++;
        schedule_print(s, &text);
    }
    o.schedule = text.s;
    plan *again = pipeline_run(g, a, &o, &t);
    if (strcmp(kernels_text(p, a), kernels_text(again, a)) != 0)
        guard_fail(a->gd, TN_ERR_INTERNAL, "other kernels by\n%s", text.s);
}

static void test_round_trip(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(400, &first);
    round_trip x = { 0 };
    int failed = 0;
    for (uint64_t seed = first; seed < first + n && failed < 5; seed++) {
        err e;
        x.seed = seed;
        if (with_arena(feed_back, &x, &e) == TN_OK) continue;
        print_error("seed %llu: %s\n", (unsigned long long)seed, e.text);
        failed++;
    }
    assert_int_equal(failed, 0);
    static const step_op all[] = { STEP_bind_grid,     STEP_bind_rows,       STEP_thread_columns,  STEP_bind,
                                   STEP_pack_shared,   STEP_pipeline,        STEP_split_k,         STEP_reduce_columns,
                                   STEP_scatter_owned, STEP_scatter_private, STEP_vectorize_nests, STEP_register_cache };
    for (size_t i = 0; i < COUNT_OF(all) && n >= 400; i++)
        if (!x.used[all[i]]) fail_msg("no schedule has the step %s", step_get(all[i])->name);
    print_message("count: %d kernels of GPUs by their schedules\n", x.kernels);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_round_trip) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
