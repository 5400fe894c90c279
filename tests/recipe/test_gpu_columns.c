/* test_gpu_columns.c - a vector times a matrix, and sums of columns, by groups of a GPU, through the interpreter against the
 * reference evaluator: a matrix that no run changes lies in panels of a group's columns, which changes no bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "recipe/recipe.h"
#include "support/plan_run.h"

typedef struct shape {
    tn_dtype t;
    int64_t k, n;
    bool sum;    /* of the columns, without a vector */
    bool window; /* the matrix is a part of a larger one */
    int panels;  /* whether the matrix is worth them */
} shape;

static char *hex_of(const unsigned char *x, size_t n) {
    char *out = malloc(2 * n + 1);
    for (size_t i = 0; i < n; i++) snprintf(out + 2 * i, 3, "%02x", x[i]);
    return out;
}

static graph *build(arena *a, const shape *s, const char *w) { /* w: hexadecimal; NULL: an input */
    const char *t = tn_dtype_name(s->t);
    int64_t more = s->window ? 3 : 0, k = s->k + more, n = s->n + more;
    str text;
    str_init(&text, a);
    str_addf(&text, "graph @g(x %s[1,%lld], %sw %s[%lld,%lld]%s%s%s) {\n", t, (long long)s->k, w ? "state " : "", t,
             (long long)k, (long long)n, w ? " = x\"" : "", w ? w : "", w ? "\"" : "");
    str_addf(&text, " %%1 = slice w start=[%d,%d] step=[1,1] %s[%lld,%lld]\n", (int)more, (int)more / 3, t, (long long)s->k,
             (long long)s->n);
    if (s->sum)
        str_addf(&text, " %%2 = mul %%1, %%1 %s[%lld,%lld]\n %%3 = sum %%2 axes=[0] %s[1,%lld]\n", t, (long long)s->k,
                 (long long)s->n, t, (long long)s->n);
    else
        str_addf(&text, " %%3 = dot x, %%1 contract=[1]x[0] %s[1,%lld]\n", t, (long long)s->n);
    str_addf(&text, " return %%3 as \"y\"\n}");
    return graph_parse(a, text.s, text.n, "columns");
}

/* The result, and whether the plan has panels. */
static const void *result(arena *a, const shape *s, graph *g, const sample *in, bool *out_panels) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = target_common_gpu();
    o.fusion = 3, o.check = 1;
    plan *p = pipeline_run(g, a, &o, &t);
    eval_memory *m = eval_memory_make(p, a);
    char why_not[4096];
    if (!plan_texts_agree(p, a, why_not, sizeof why_not))
        fail_msg("%lld x %lld: %s", (long long)s->k, (long long)s->n, why_not);
    for (int i = 0; i < g->inputs.n; i++) {
        int to = plan_io(p, graph_get(g, g->inputs.at[i])->name, false);
        if (to >= 0) memcpy(m->io[to], in->data[i], in->bytes[i]);
    }
    *out_panels = false;
    for (int b = 0; b < p->bufs.n; b++) *out_panels |= p->bufs.at[b].panels != NULL;
    eval_plan(p, m, a);
    return m->io[plan_io(p, "y", true)];
}

static void check(const shape *s, uint64_t seed) {
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%lld x %lld: %s", (long long)s->k, (long long)s->n, gd.err.text);
    graph *g = build(&a, s, NULL);
    reference r = reference_make(g, &a, seed);
    char *hex = hex_of(r.in.data[1], r.in.bytes[1]);
    graph *fixed = build(&a, s, hex);
    free(hex);
    plan_config c = { .seed = seed, .fusion = 3, .t = target_common_gpu() };
    if (!plan_config_agrees(g, &r, &c) || !plan_config_agrees(fixed, NULL, &c))
        fail_msg("seed %llu, %s %lld x %lld: %s", (unsigned long long)seed, tn_dtype_name(s->t), (long long)s->k,
                 (long long)s->n, c.text);
    bool panels[2];
    const void *y = result(&a, s, g, &r.in, &panels[0]), *z = result(&a, s, fixed, &r.in, &panels[1]);
    assert_false(panels[0]);
    if (panels[1] != s->panels) fail_msg("%lld x %lld: panels %d", (long long)s->k, (long long)s->n, panels[1]);
    if (memcmp(y, z, (size_t)s->n * dtype_size(s->t)) != 0)
        fail_msg("seed %llu, %s %lld x %lld: a fixed matrix gives other bits", (unsigned long long)seed, tn_dtype_name(s->t),
                 (long long)s->k, (long long)s->n);
    arena_fini(&a);
}

static void test_columns(void **state) {
    (void)state;
    static const shape shapes[] = {
        { TN_F32, 600, 64, false, false, 1 },   { TN_F32, 600, 66, false, true, 1 }, { TN_F32, 300, 61, false, false, 1 },
        { TN_F32, 1031, 40, false, false, 1 },  { TN_F32, 515, 129, true, true, 1 }, { TN_F64, 520, 256, false, false, 1 },
        { TN_BF16, 700, 56, false, false, 1 },  { TN_I32, 301, 53, true, false, 1 }, { TN_F32, 40, 8, false, false, 0 },
        { TN_F32, 512, 1030, false, false, 1 },
    };
    uint64_t seed = (uint64_t)now_seconds() ^ 0x2545f491u;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) check(&shapes[i], seed + i);
}

static target h200(void) {
    target t = target_common_gpu();
    t.machine = machine_row("h200"), t.resident_threads = 132 << 10, t.l2_bytes = 50 << 20;
    return t;
}

static const loop_step *columns_step(const plan *p) {
    const schedule *s = p->schedules.at[0].s;
    for (int i = 0; i < s->steps.n; i++)
        if (s->steps.at[i].op == STEP_reduce_columns) return &s->steps.at[i];
    return NULL;
}

/* The gradient of a norm's gain, which computes with numbers of each row: not by a thread block a column, whose threads would
 * read numbers that lie a row apart. On an H200 that took 330 us, for 32 x 1024 rows. A thread shares a row's root among 8
 * columns, and reads 4 rows before it takes the first root: with one root for 2 columns between any two reads, 50 of these and
 * as many sums of biases took 7.3 ms for the gradients of a GPT-2, and take 2.6. */
static void test_gain(void **state) {
    (void)state;
    for (int rows = 8 << 10; rows <= 32 << 10; rows *= 2) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%d rows: %s", rows, gd.err.text);
        str text;
        str_init(&text, &a);
        str_addf(&text,
                 "graph @g(dy bf16[%d,768], x bf16[%d,768], s f32[%d,1]) {\n %%1 = const 768 f32[%d,1]\n %%2 = div s, %%1 "
                 "f32[%d,1]\n"
                 " %%3 = rsqrt %%2 f32[%d,1]\n %%4 = cast %%3 bf16[%d,1]\n %%5 = expand %%4 bf16[%d,768]\n"
                 " %%6 = mul x, %%5 bf16[%d,768]\n %%7 = mul dy, %%6 bf16[%d,768]\n %%8 = sum %%7 axes=[0] bf16[1,768]\n"
                 " return %%8 as \"y\"\n}",
                 rows, rows, rows, rows, rows, rows, rows, rows, rows, rows);
        target t = h200();
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3;
        plan *p = pipeline_run(graph_parse(&a, text.s, text.n, "gain"), &a, &o, &t);
        assert_int_equal(p->kernels.n, 1);
        const loop_step *step = columns_step(p);
        if (!step) fail_msg("%d rows: not reduce_columns", rows);
        if (step_option(step, "lanes", 1) != 8 || step_option(step, "ahead", 1) < 4)
            fail_msg("%d rows: a thread has %d columns, and reads %d rows before it takes roots", rows,
                     (int)step_option(step, "lanes", 1), (int)step_option(step, "ahead", 1));
        arena_fini(&a);
    }
}

/* Gradients of biases, from memory: a thread block reads whole lines of memory, or half ones where there would be few thread
 * blocks. It does not matter that there are more rows. */
static void test_lines(void **state) {
    (void)state;
    static const int columns[] = { 768, 2304, 3072 }, wide[] = { 32, 64, 64 };
    for (int i = 0; i < 6; i++) {
        arena a;
        guard gd;
        int n = columns[i / 2], rows = (i % 2 ? 32 : 8) << 10;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%d x %d: %s", rows, n, gd.err.text);
        str text;
        str_init(&text, &a);
        str_addf(&text, "graph @g(dy bf16[%d,%d]) {\n %%1 = sum dy axes=[0] bf16[1,%d]\n return %%1 as \"y\"\n}", rows, n, n);
        target t = h200();
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3;
        const loop_step *step = columns_step(pipeline_run(graph_parse(&a, text.s, text.n, "bias"), &a, &o, &t));
        if (!step) fail_msg("%d x %d: not reduce_columns", rows, n);
        int lanes = (int)step_option(step, "lanes", 1), across = (int)step->arg[1].n;
        if (lanes != 8 || lanes * across != wide[i / 2])
            fail_msg("%d x %d: %d threads across, of %d columns each", rows, n, across, lanes);
        arena_fini(&a);
    }
}

/* A product of a few rows goes by columns; with many, all of which would read the other operand, by tiles. */
static void test_products(void **state) {
    (void)state;
    static const int rows[] = { 1, 8, 768 };
    for (int i = 0; i < 3; i++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%d rows: %s", rows[i], gd.err.text);
        str text;
        str_init(&text, &a);
        str_addf(&text, "graph @g(x f32[%d,512], w f32[512,128]) {\n %%1 = dot x, w contract=[1]x[0]\n return %%1 as \"y\"\n}",
                 rows[i]);
        target t = h200();
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3;
        plan *p = pipeline_run(graph_parse(&a, text.s, text.n, "product"), &a, &o, &t);
        assert_int_equal(columns_step(p) != NULL, rows[i] < 768);
        arena_fini(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_columns), cmocka_unit_test(test_gain),
                                        cmocka_unit_test(test_lines), cmocka_unit_test(test_products) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
