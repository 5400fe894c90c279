/* test_row_sums.c - attention of one query over a cache, of which a mask leaves out what is not written yet, as one kernel of a
 * GPU whose threads share each sum: of several types, heads that share keys or not, odd sizes, through the interpreter against
 * the reference evaluator; and which of them are one kernel. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "loop/schedule.h"
#include "machine/machine.h"
#include "support/plan_run.h"

typedef struct query {
    const char *type;
    int heads, group, keys, width;
    int threads; /* of its thread blocks; 0: it is several kernels */
} query;
/* clang-format off */
static const query queries[] = {
    { "f32", 2, 3, 64, 32, 64 }, { "bf16", 8, 4, 512, 64, 512 }, { "f16", 3, 1, 37, 16, 0 }, { "f32", 2, 2, 130, 80, 256 },
    { "bf16", 4, 3, 200, 96, 0 }, { "bf16", 8, 2, 256, 128, 512 }, { "f32", 12, 1, 508, 64, 512 }, { "f16", 16, 4, 701, 24, 0 },
    { "bf16", 16, 2, 1250, 40, 0 }, { "f32", 8, 4, 301, 20, 0 }, { "f32", 2, 2, 300, 5, 0 }, { "bf16", 8, 2, 1024, 64, 0 },
};
/* clang-format on */

static graph *make(arena *a, const query *q) {
    str s;
    str_init(&s, a);
    const char *t = q->type;
    int h = q->heads, g = q->group, n = q->keys, d = q->width;
    str_addf(&s, "graph @g(q %s[%d,%d,%d], k %s[%d,%d,%d], v %s[%d,%d,%d], at i32[]) {\n", t, h, g, d, t, h, n, d, t, h, n, d);
    str_addf(&s, " %%1 = and at, %d i32[]\n %%2 = reshape %%1 i32[1,1,1]\n %%3 = expand %%2 i32[%d,%d,%d]\n", n > 63 ? 63 : 15,
             h, g, n);
    str_addf(&s, " %%4 = iota axis=2 i32[%d,%d,%d]\n %%5 = le %%4, %%3 bool[%d,%d,%d]\n", h, g, n, h, g, n);
    str_addf(&s, " %%6 = dot q, k batch=[0]x[0] contract=[2]x[2] %s[%d,%d,%d]\n", t, h, g, n);
    str_addf(&s, " %%7 = select %%5, %%6, -inf %s[%d,%d,%d]\n %%8 = reduce_max %%7 axes=[2] %s[%d,%d,1]\n", t, h, g, n, t, h,
             g);
    str_addf(&s, " %%9 = expand %%8 %s[%d,%d,%d]\n %%10 = sub %%7, %%9 %s[%d,%d,%d]\n", t, h, g, n, t, h, g, n);
    str_addf(&s, " %%11 = exp %%10 %s[%d,%d,%d]\n %%12 = cast %%11 f32[%d,%d,%d]\n", t, h, g, n, h, g, n);
    str_addf(&s, " %%13 = sum %%12 axes=[2] f32[%d,%d,1]\n %%14 = div 1.0, %%13 f32[%d,%d,1]\n", h, g, h, g);
    str_addf(&s, " %%15 = cast %%14 %s[%d,%d,1]\n %%16 = expand %%15 %s[%d,%d,%d]\n", t, h, g, t, h, g, n);
    str_addf(&s, " %%17 = mul %%11, %%16 %s[%d,%d,%d]\n %%18 = reshape %%17 %s[%d,%d,%d,1]\n", t, h, g, n, t, h, g, n);
    str_addf(&s, " %%19 = cast %%18 f32[%d,%d,%d,1]\n %%20 = expand %%19 f32[%d,%d,%d,%d]\n", h, g, n, h, g, n, d);
    str_addf(&s, " %%21 = cast v f32[%d,%d,%d]\n %%22 = reshape %%21 f32[%d,1,%d,%d]\n", h, n, d, h, n, d);
    str_addf(&s, " %%23 = expand %%22 f32[%d,%d,%d,%d]\n %%24 = mul %%20, %%23 f32[%d,%d,%d,%d]\n", h, g, n, d, h, g, n, d);
    str_addf(&s, " %%25 = reshape %%5 bool[%d,%d,%d,1]\n %%26 = expand %%25 bool[%d,%d,%d,%d]\n", h, g, n, h, g, n, d);
    str_addf(&s, " %%27 = select %%26, %%24, 0.0 f32[%d,%d,%d,%d]\n", h, g, n, d);
    str_addf(&s, " %%28 = sum %%27 axes=[2] f32[%d,%d,1,%d]\n", h, g, d);
    str_addf(&s, " %%29 = cast %%28 %s[%d,%d,1,%d]\n return %%29 as \"y\"\n}", t, h, g, d);
    return graph_parse(a, s.s, s.n, "query");
}

static int threads_of(const plan *p) {
    for (int i = 0; i < p->schedules.n; i++) {
        const schedule *s = p->schedules.at[i].s;
        for (int j = 0; j < s->steps.n; j++)
            if (s->steps.at[j].op == STEP_bind_rows && step_flag(&s->steps.at[j], "sums")) return (int)s->steps.at[j].arg[0].n;
    }
    return 0;
}

static void check(arena *a, void *ud) {
    const query *q = ud;
    graph *g = make(a, q);
    reference r = reference_make(g, a, 11);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = target_common_gpu();
    char text[1024];
    o.fusion = 3, o.check = 1, t.resident_threads = 132 << 10, t.shared_most = 227 << 10,
    t.machine = machine_find("sm_90", true);
    plan *p = pipeline_run(g, a, &o, &t);
    if (!plan_agrees(p, &r, a, text, sizeof text)) fail_msg("%d keys: %s", q->keys, text);
    if (threads_of(p) != q->threads || (q->threads && p->kernels.n > 1))
        fail_msg("%d keys of %d %s: %d kernels, %d threads", q->keys, q->width, q->type, p->kernels.n, threads_of(p));
}

static void test_queries(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(queries); i++) {
        err e;
        query q = queries[i];
        if (with_arena(check, &q, &e)) fail_msg("%d keys of %d %s: %s", q.keys, q.width, q.type, e.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_queries) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
