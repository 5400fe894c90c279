/* test_dot_rows.c - few vectors times a large matrix on GPUs, whose rows lie as they are summed: of f32, of 16 bits, of bytes
 * and of halves of them, through the interpreter against the reference evaluator; and which of the steps each has. Two of them,
 * one of which lets through what the other makes, are one kernel; so is one with the norm of its vector. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "loop/schedule.h"
#include "support/plan_run.h"

typedef struct product {
    const char *text;
    int threads, lanes, coarsen; /* of the schedule; 0: there is no such step */
    bool halves, casts;          /* of parts of bytes; whole numbers become floats as bits */
} product;

#define DOT(t, m, k, n)                                                                                                        \
    "graph @g(x " t "[" #m "," #k "], w " t "[" #n "," #k "]) {\n %1 = dot x, w contract=[1]x[1] " t "[" #m "," #n "]\n"       \
    " return %1 as \"y\"\n}"
#define BYTES(k, n)                                                                                                            \
    "graph @g(x f32[1," #k "], w i8[" #n "," #k "]) {\n %1 = cast w f32[" #n "," #k "]\n"                                      \
    " %2 = dot x, %1 contract=[1]x[1] f32[1," #n "]\n return %2 as \"y\"\n}"
/* Groups of 32, of which a byte has two numbers 16 apart. */
#define HALVES(groups, n)                                                                                                      \
    "graph @g(x f32[" #groups ",2,16], w u8[" #n "," #groups ",1,16], s f32[" #n "," #groups ",1,1]) {\n"                      \
    " %1 = iota axis=2 i32[" #n "," #groups ",2,16]\n %2 = mul %1, 4 i32[" #n "," #groups ",2,16]\n"                           \
    " %0 = cast w i32[" #n "," #groups ",1,16]\n %3 = expand %0 i32[" #n "," #groups ",2,16]\n"                                \
    " %4 = shift_right %3, %2 i32[" #n "," #groups ",2,16]\n"                                                                  \
    " %5 = and %4, 15 i32[" #n "," #groups ",2,16]\n %6 = cast %5 f32[" #n "," #groups ",2,16]\n"                              \
    " %7 = sub %6, 8.0 f32[" #n "," #groups ",2,16]\n %8 = expand s f32[" #n "," #groups ",2,16]\n"                            \
    " %9 = mul %7, %8 f32[" #n "," #groups ",2,16]\n"                                                                          \
    " %10 = dot x, %9 contract=[0,1,2]x[1,2,3] f32[" #n "]\n return %10 as \"y\"\n}"

/* Bytes in groups of 32 with a scale each. */
#define GROUPS(groups, n)                                                                                                      \
    "graph @g(x f32[" #groups ",32], w i8[" #n "," #groups ",32], s f16[" #n "," #groups ",1]) {\n"                            \
    " %1 = cast w f32[" #n "," #groups ",32]\n %2 = cast s f32[" #n "," #groups ",1]\n"                                        \
    " %3 = expand %2 f32[" #n "," #groups ",32]\n %4 = mul %1, %3 f32[" #n "," #groups ",32]\n"                                \
    " %5 = dot x, %4 contract=[0,1]x[1,2] f32[" #n "]\n return %5 as \"y\"\n}"

/* clang-format off */
static const product products[] = {
    { DOT("f32", 1, 512, 512), 32, 4, 2, false, false },
    { DOT("f32", 1, 1024, 512), 64, 4, 2, false, false },
    { DOT("f32", 1, 516, 511), 32, 4, 0, false, false },
    { DOT("bf16", 1, 512, 512), 32, 8, 2, false, false },
    { DOT("f16", 1, 1032, 192), 32, 8, 2, false, false },
    { BYTES(1024, 256), 32, 8, 4, false, true },
    { BYTES(1000, 254), 32, 8, 2, false, true },
    { BYTES(1002, 254), 32, 2, 2, false, false },
    { HALVES(32, 128), 64, 8, 8, true, true },
    { HALVES(33, 126), 32, 8, 2, true, true },
    { HALVES(64, 128), 128, 8, 8, true, true },
    { HALVES(64, 8192), 64, 8, 16, true, true },
};
/* clang-format on */

static int argument(const schedule *s, step_op op) {
    for (int i = 0; i < s->steps.n; i++)
        if (s->steps.at[i].op == op)
            return s->steps.at[i].n && s->steps.at[i].arg[0].kind == ARG_NUMBER ? (int)s->steps.at[i].arg[0].n : 1;
    return 0;
}

/* The plan for a GPU of one processor, whose results are right. */
static plan *planned(arena *a, const char *text, bool denormals) {
    graph *g = graph_parse(a, text, strlen(text), "products");
    reference r = reference_make(g, a, 7);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = target_common_gpu();
    char why_not[1024];
    t.resident_threads = 1024, t.denormals = denormals, o.fusion = 3, o.check = 1; /* it is busy */
    plan *p = pipeline_run(g, a, &o, &t);
    if (!plan_agrees(p, &r, a, why_not, sizeof why_not)) fail_msg("%s\n%s", text, why_not);
    return p;
}

static void check(arena *a, void *ud) {
    const product *x = ud;
    const plan *p = planned(a, x->text, false);
    const schedule *s = p->schedules.at[p->schedules.n - 1].s;
    str steps;
    str_init(&steps, a);
    schedule_print(s, &steps);
    if (argument(s, STEP_bind_rows) != x->threads || argument(s, STEP_vectorize_nests) != x->lanes ||
        argument(s, STEP_coarsen) != x->coarsen || argument(s, STEP_mantissa_casts) != x->casts ||
        argument(s, STEP_unroll) != x->halves)
        fail_msg("%s\n%s", x->text, steps.s);
}

static void test_products(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(products); i++) {
        err e;
        product x = products[i];
        if (with_arena(check, &x, &e)) fail_msg("%s\n%s", x.text, e.text);
    }
}

#define GATED(t, k, n, after)                                                                                                  \
    "graph @g(x " t "[1," #k "], w " t "[" #n "," #k "], v " t "[" #n "," #k "]) {\n"                                          \
    " %1 = dot x, w contract=[1]x[1] " t "[1," #n "]\n %2 = dot x, v contract=[1]x[1] " t "[1," #n "]\n"                       \
    " %3 = sigmoid %1 " t "[1," #n "]\n %4 = mul %1, %3 " t "[1," #n "]\n" after "}"
#define LETS(t, n) " %5 = mul %4, %2 " t "[1," #n "]\n return %5 as \"y\"\n"
#define KEPT(t, n) " %5 = mul %4, %2 " t "[1," #n "]\n return %5 as \"y\", %4 as \"gate\"\n"
#define NORM(t, k)                                                                                                             \
    " %1 = mul x, x " t "[1," #k "]\n %2 = cast %1 f32[1," #k "]\n %3 = sum %2 axes=[1] f32[1,1]\n"                            \
    " %4 = mul %3, 0.01 f32[1,1]\n %5 = add %4, 0.001 f32[1,1]\n %6 = rsqrt %5 f32[1,1]\n %7 = cast %6 " t "[1,1]\n"           \
    " %8 = expand %7 " t "[1," #k "]\n %9 = mul x, %8 " t "[1," #k "]\n %10 = reshape g " t "[1," #k "]\n"                     \
    " %11 = mul %9, %10 " t "[1," #k "]\n"
#define NORMED(t, k, n, after)                                                                                                 \
    "graph @g(x " t "[1," #k "], g " t "[" #k "], w " t "[" #n "," #k "], v " t "[" #n "," #k                                  \
    "]) {\n" NORM(t, k) " %12 = dot %11, w contract=[1]x[1] " t "[1," #n "]\n" after "}"
#define BYTES_GATED(k, n)                                                                                                      \
    "graph @g(x f32[1," #k "], w i8[" #n "," #k "], v i8[" #n "," #k "]) {\n %1 = cast w f32[" #n "," #k "]\n"                 \
    " %2 = dot x, %1 contract=[1]x[1] f32[1," #n "]\n %3 = cast v f32[" #n "," #k "]\n"                                        \
    " %4 = dot x, %3 contract=[1]x[1] f32[1," #n "]\n %5 = tanh %2 f32[1," #n "]\n %6 = mul %5, %4 f32[1," #n "]\n"            \
    " return %6 as \"y\"\n}"

/* A norm, times such halves. */
#define HALVES_NORMED(groups, k, n)                                                                                            \
    "graph @g(x f32[1," #k "], g f32[" #k "], w u8[" #n "," #groups ",1,16], s f16[" #n "," #groups ",1,1]) {\n" NORM(         \
        "f32", k) " %12 = reshape %11 f32[" #groups ",2,16]\n %13 = iota axis=2 i32[" #n "," #groups ",2,16]\n"                \
                  " %14 = mul %13, 4 i32[" #n "," #groups ",2,16]\n %15 = cast w i32[" #n "," #groups ",1,16]\n"               \
                  " %16 = expand %15 i32[" #n "," #groups ",2,16]\n %17 = shift_right %16, %14 i32[" #n "," #groups ",2,16]\n" \
                  " %18 = and %17, 15 i32[" #n "," #groups ",2,16]\n %19 = cast %18 f32[" #n "," #groups ",2,16]\n"            \
                  " %20 = sub %19, 8.0 f32[" #n "," #groups ",2,16]\n %21 = cast s f32[" #n "," #groups ",1,1]\n"              \
                  " %22 = expand %21 f32[" #n "," #groups ",2,16]\n %23 = mul %20, %22 f32[" #n "," #groups ",2,16]\n"         \
                  " %24 = dot %12, %23 contract=[0,1,2]x[1,2,3] f32[" #n "]\n return %24 as \"y\"\n}"

typedef struct pair {
    const char *text;
    int kernels;
} pair;
/* clang-format off */
static const pair pairs[] = {
    { GATED("f32", 512, 512, LETS("f32", 512)), 1 },
    { GATED("bf16", 1024, 300, LETS("bf16", 300)), 1 },
    { GATED("f16", 520, 250, LETS("f16", 250)), 1 },
    { BYTES_GATED(1000, 254), 1 },
    { GATED("f32", 512, 512, KEPT("f32", 512)), 1 },
    { NORMED("f32", 512, 512, " return %12 as \"y\"\n"), 1 },
    { NORMED("bf16", 1024, 300, " return %12 as \"y\"\n"), 1 },
    { NORMED("f32", 520, 250, " %13 = dot %11, v contract=[1]x[1] f32[1,250]\n %14 = sigmoid %12 f32[1,250]\n"
                              " %15 = mul %13, %14 f32[1,250]\n return %15 as \"y\"\n"), 1 },
    { NORMED("f32", 512, 512, " return %12 as \"y\", %11 as \"norm\"\n"), 2 },
    { NORMED("f32", 512, 512, " %13 = add %11, %12 f32[1,512]\n return %13 as \"y\"\n"), 2 },
    { HALVES_NORMED(32, 1024, 256), 1 },
    { HALVES_NORMED(33, 1056, 126), 1 },
    { HALVES_NORMED(64, 2048, 8192), 1 },
    /* another vector */
    { "graph @g(x f32[1,512], w f32[512,512], v f32[512,512]) {\n %1 = dot x, w contract=[1]x[1] f32[1,512]\n"
      " %2 = dot %1, v contract=[1]x[1] f32[1,512]\n %3 = add %1, %2 f32[1,512]\n return %3 as \"y\"\n}", 2 },
};
/* clang-format on */

static void check_pair(arena *a, void *ud) {
    const pair *x = ud;
    const plan *p = planned(a, x->text, false);
    if (p->kernels.n != x->kernels) fail_msg("%s\n%d kernels", x->text, p->kernels.n);
}

static void test_pairs(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        err e;
        pair x = pairs[i];
        if (with_arena(check_pair, &x, &e)) fail_msg("%s\n%s", x.text, e.text);
    }
}

/* Small ones, and columns of a matrix. */
static void stay(arena *a, void *ud) {
    graph *g = graph_parse(a, ud, strlen(ud), "product");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = target_common_gpu();
    plan *p = pipeline_run(g, a, &o, &t);
    for (int i = 0; i < p->schedules.n; i++) assert_int_equal(argument(p->schedules.at[i].s, STEP_coarsen), 0);
}

/* Where numbers below all others are as fast as those, bits are multiplied without an exponent. */
static void check_bits(arena *a, void *ud) {
    const plan *p = planned(a, ud, true);
    str steps;
    str_init(&steps, a);
    schedule_print(p->schedules.at[p->schedules.n - 1].s, &steps);
    if (!strstr(steps.s, "group_sums bits")) fail_msg("%s\n%s", (char *)ud, steps.s);
}

static void test_bits(void **state) {
    (void)state;
    static const char *const texts[] = { GROUPS(64, 128), GROUPS(65, 126), GROUPS(64, 8192) };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        err e;
        if (with_arena(check_bits, (void *)(uintptr_t)texts[i], &e)) fail_msg("%s\n%s", texts[i], e.text);
    }
}

static void test_others(void **state) {
    (void)state;
    static const char *const texts[] = {
        DOT("f32", 1, 64, 512),
        DOT("f32", 1, 128, 512),
        "graph @g(x f32[1,512], w f32[512,512]) {\n %1 = dot x, w contract=[1]x[0] f32[1,512]\n return %1 as \"y\"\n}",
    };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        err e;
        if (with_arena(stay, (void *)(uintptr_t)texts[i], &e)) fail_msg("%s\n%s", texts[i], e.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_products), cmocka_unit_test(test_pairs),
                                        cmocka_unit_test(test_bits), cmocka_unit_test(test_others) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
