/* test_tensorize.c - products that the recipe gives to matrix units: which are, on which machines; the kernels by the
 * interpreter against the reference evaluator, also with other tiles than the recipe's, which have the same bits; schedules fed
 * back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "loop/schedule.h"
#include "machine/machine.h"
#include "support/plan_run.h"

static const struct {
    const char *graph;
    bool units, bulk; /* bulk: operands can be copied in boxes */
} cases[] = {
    { "graph @plain(x bf16[130,200], w bf16[200,136], b f32[1,136]) {\n %1 = cast x f32[130,200]\n %2 = cast w f32[200,136]\n"
      " %3 = dot %1, %2 f32[130,136]\n %4 = expand b f32[130,136]\n %5 = add %3, %4 f32[130,136]\n %6 = max %5, 0.0 "
      "f32[130,136]\n %7 = cast %6 bf16[130,136]\n return %7 as \"y\"\n}",
      true, true },
    { "graph @both(x f16[72,64], w f16[80,72]) {\n %1 = dot x, w contract=[0]x[1] f16[64,80]\n return %1 as \"y\"\n}", true,
      true },
    { "graph @batched(q bf16[3,40,64], k bf16[3,72,64]) {\n %1 = dot q, k batch=[0]x[0] contract=[2]x[2] bf16[3,40,72]\n"
      " return %1 as \"y\"\n}",
      true },
    { "graph @taps(x bf16[1,194,128], w bf16[3,128,256]) {\n %1 = window x (axis=1 size=3) bf16[1,192,128,3]\n"
      " %2 = dot %1, w contract=[3,2]x[0,1] bf16[1,192,256]\n return %2 as \"y\"\n}",
      true },
    { "graph @strict(x f32[128,128], w f32[128,128]) {\n %1 = dot x, w f32[128,128]\n return %1 as \"y\"\n}", false },
    { "graph @mixed(x bf16[64,64], w f16[64,64]) {\n %1 = cast x f32[64,64]\n %2 = cast w f32[64,64]\n %3 = dot %1, %2 "
      "f32[64,64]\n return %3 as \"y\"\n}",
      false },
    { "graph @odd(x bf16[64,63], w bf16[63,63]) {\n %1 = dot x, w bf16[64,63]\n return %1 as \"y\"\n}", false },
};

static target with_units(bool units) {
    target t = target_common_gpu();
    t.machine = machine_row("h200"), t.shared_most = 227 << 10, t.resident_threads = 132 << 10, t.matrix_units = units;
    return t;
}

static target with_bulk(void) {
    target t = with_units(true);
    t.bulk = true;
    return t;
}

static plan *compile(const char *text, arena *a, target t, const char *schedule) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 3, o.check = 1, o.schedule = schedule;
    return pipeline_run(graph_parse(a, text, strlen(text), "product"), a, &o, &t);
}

static const loop_step *tensorized(const plan *p) {
    const schedule *s = p->schedules.at[0].s;
    for (int i = 0; i < s->steps.n; i++)
        if (s->steps.at[i].op == STEP_tensorize) return &s->steps.at[i];
    return NULL;
}

static void test_chosen(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * COUNT_OF(cases); i++) {
        arena a;
        guard gd;
        char why[512];
        str text;
        bool units = i % 2;
        const char *graph = cases[i / 2].graph;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s: %s", graph, gd.err.text);
        plan *p = compile(graph, &a, with_units(units), NULL);
        assert_int_equal(p->kernels.n, 1);
        if ((tensorized(p) != NULL) != (units && cases[i / 2].units))
            fail_msg("%s: matrix units %d", graph, !cases[i / 2].units);
        reference r = reference_make(graph_parse(&a, graph, strlen(graph), "product"), &a, i);
        if (units && !plan_agrees(p, &r, &a, why, sizeof why)) fail_msg("%s: %s", graph, why);
        if (!plan_texts_agree(p, &a, why, sizeof why)) fail_msg("%s: %s", graph, why);
        str_init(&text, &a);
        schedule_print(p->schedules.at[0].s, &text);
        plan *again = compile(graph, &a, with_units(units), text.s);
        assert_true(kernel_equal(p->kernels.at[0].k, again->kernels.at[0].k));
        arena_fini(&a);
    }
}

static void *result(const plan *p, const reference *r, arena *a) {
    eval_memory *m = eval_memory_make(p, a);
    for (int i = 0; i < r->g->inputs.n; i++)
        memcpy(m->io[plan_io(p, graph_get(r->g, r->g->inputs.at[i])->name, false)], r->in.data[i], r->in.bytes[i]);
    eval_plan(p, m, a);
    return m->io[plan_io(p, "y", true)];
}

/* Where a GPU copies boxes and the operands can be copied so, the recipe says so, and the bits are the same. Elsewhere nobody
 * may say it. */
static void test_bulk(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        arena a;
        guard gd;
        char why[512];
        str text;
        const char *graph = cases[i].graph;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s: %s", graph, gd.err.text);
        if (!cases[i].units) continue;
        plan *p = compile(graph, &a, with_bulk(), NULL);
        str_init(&text, &a);
        schedule_print(p->schedules.at[0].s, &text);
        if ((strstr(text.s, " bulk") != NULL) != cases[i].bulk) fail_msg("%s: %s", graph, text.s);
        reference r = reference_make(graph_parse(&a, graph, strlen(graph), "product"), &a, i);
        if (!plan_agrees(p, &r, &a, why, sizeof why)) fail_msg("%s: %s", graph, why);
        if (!plan_texts_agree(p, &a, why, sizeof why)) fail_msg("%s: %s", graph, why);
        guard outer = gd;
        if (!GUARD_TRY(&gd)) {
            assert_true(cases[i].bulk);
            assert_non_null(strstr(gd.err.text, "copies in boxes"));
        } else {
            compile(graph, &a, with_units(true), text.s);
            assert_false(cases[i].bulk);
        }
        gd = outer;
        arena_fini(&a);
    }
}

/* A tuned kernel must have the recipe's bits: the tile and the stages are free. */
static void test_same_bits(void **state) {
    (void)state;
    static const char *const tiles[] = { "64 %s 64; pack_shared %s 64; tile", "128 %s 64; pack_shared %s 64; tile; pipeline 3",
                                         "64 %s 256; pack_shared %s 64; tile; pipeline 5" };
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    const char *graph = cases[0].graph;
    plan *p = compile(graph, &a, with_units(true), NULL);
    reference r = reference_make(graph_parse(&a, graph, strlen(graph), "product"), &a, 1);
    const void *want = result(p, &r, &a);
    const loop_step *step = tensorized(p);
    const char *m = step->arg[0].word, *n = step->arg[2].word, *depth = p->schedules.at[0].s->steps.at[1].arg[0].word;
    for (size_t i = 0; i < COUNT_OF(tiles); i++) {
        str why;
        str_init(&why, &a);
        const char *steps = arena_printf(&a, "tensorize %s %s; hoist; dce", m, arena_printf(&a, tiles[i], n, depth));
        plan *other =
            compile(graph, &a, with_units(true), arena_printf(&a, "schedule @%s { %s }", p->kernels.at[0].k->name, steps));
        assert_memory_equal(want, result(other, &r, &a), 130 * 136 * 2);
        assert_false(kernel_equal(p->kernels.at[0].k, other->kernels.at[0].k));
        assert_true(schedule_same_bits(p->kernels.at[0].scalar, p->schedules.at[0].s, other->schedules.at[0].s, &why));
    }
    plan *threads = compile(graph, &a, with_units(false), NULL);
    str why;
    str_init(&why, &a);
    assert_false(schedule_same_bits(p->kernels.at[0].scalar, p->schedules.at[0].s, threads->schedules.at[0].s, &why));
    arena_fini(&a);
}

/* Weights kept in f32 and multiplied in bf16: the short copy is stored for the matrix units, where the product is worth it. */
static void test_narrowed_operand(void **state) {
    (void)state;
    for (int large = 0; large < 2; large++) {
        arena a;
        guard gd;
        char why[512];
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
        int n = large ? 1024 : 64;
        const char *text = arena_printf(&a,
                                        "graph @narrowed(x bf16[%d,%d], w f32[%d,%d]) {\n %%1 = cast w bf16[%d,%d]\n"
                                        " %%2 = dot x, %%1 bf16[%d,%d]\n return %%2 as \"y\"\n}",
                                        n, n, n, n, n, n, n, n);
        plan *p = compile(text, &a, with_units(true), NULL);
        assert_int_equal(p->kernels.n, large ? 2 : 1);
        const schedule *s = p->schedules.at[p->schedules.n - 1].s;
        bool units = false;
        for (int i = 0; i < s->steps.n; i++) units = units || s->steps.at[i].op == STEP_tensorize;
        assert_int_equal(units, large);
        assert_int_equal(compile(text, &a, with_units(false), NULL)->kernels.n, 1);
        if (!large) {
            reference r = reference_make(graph_parse(&a, text, strlen(text), "product"), &a, 7);
            if (!plan_agrees(p, &r, &a, why, sizeof why)) fail_msg("%s", why);
        }
        arena_fini(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_chosen), cmocka_unit_test(test_bulk),
                                        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_narrowed_operand) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
