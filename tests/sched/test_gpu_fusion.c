/* test_gpu_fusion.c - what a plan for a GPU keeps in memory: values that several kernels compute again instead of reading them,
 * and contractions that stay alone for the sake of their tiles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "machine/machine.h"
#include "support/plan_run.h"

static plan *compile(arena *a, const char *text) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = target_common_gpu();
    t.machine = machine_row("h200"), t.shared_most = 227 << 10, t.resident_threads = 132 << 10, t.matrix_units = true;
    o.fusion = 3, o.check = 1;
    return pipeline_run(graph_parse(a, text, strlen(text), "gpu_fusion"), a, &o, &t);
}

/* Elements of type t that kernels write. */
static int64_t written(const plan *p, tn_dtype t) {
    int64_t n = 0;
    for (int i = 0; i < p->kernels.n; i++)
        for (int b = 0; b < p->kernels.at[i].k->bufs.n; b++) {
            const kbuf *x = &p->kernels.at[i].k->bufs.at[b];
            if (x->kind != KB_IN && !kbuf_is_local(x) && x->dtype == t) n += x->elems;
        }
    return n;
}

static const kernel *kernel_of_product(const plan *p) {
    for (int i = 0; i < p->kernels.n; i++)
        for (int j = 1; j < p->kernels.at[i].k->ins.n; j++)
            if (p->kernels.at[i].k->ins.at[j].op == K_MMA) return p->kernels.at[i].k;
    return NULL;
}

/* Exponentials that a sum over rows needs and a gradient are nowhere in memory. */
ARENA_TEST(test_exponentials) {
    const char *text = "graph @g(x bf16[2048,4096], m f32[2048,1]) {\n"
                       " %1 = cast x f32[2048,4096]\n %2 = expand m f32[2048,4096]\n %3 = sub %1, %2\n %4 = exp %3\n"
                       " %5 = sum %4 axes=[0] f32[1,4096]\n %6 = mul %4, 0.5\n %7 = cast %6 bf16[2048,4096]\n"
                       " return %7 as \"y\", %5 as \"z\"\n}";
    plan *p = compile(a, text);
    assert_true(written(p, TN_F32) < 2048 * 64); /* sums in parts */
    assert_int_equal(written(p, TN_BF16), 2048 * 4096);
}

/* A square of a value in memory costs no more than the value. */
ARENA_TEST(test_squares) {
    const char *text =
        "graph @g(x f32[2048,4096], w f32[2048,4096]) {\n"
        " %1 = mul x, x\n %2 = add %1, w\n %3 = sum %1 axes=[0] f32[1,4096]\n return %2 as \"y\", %3 as \"z\"\n}";
    assert_int_equal(written(compile(a, text), TN_F32), 2048 * 4096 + 4096);
}

/* Beside a contraction, too, but as its operand: it would be computed for each of its sums. */
ARENA_TEST(test_squares_beside_contractions) {
    const char *beside = "graph @g(x bf16[2048,1024], u bf16[2048,512], w bf16[512,1024], v f32[2048,1024]) {\n"
                         " %1 = mul x, x\n %2 = dot u, w contract=[1]x[0] bf16[2048,1024]\n %3 = mul %2, %1\n"
                         " %4 = cast %1 f32[2048,1024]\n %5 = mul %4, v\n return %3 as \"y\", %5 as \"z\"\n}";
    assert_int_equal(written(compile(a, beside), TN_BF16), 2048 * 1024);
    const char *operand = "graph @g(x bf16[2048,1024], w bf16[1024,512], v f32[2048,1024]) {\n"
                          " %1 = mul x, x\n %2 = dot %1, w contract=[1]x[0] bf16[2048,512]\n"
                          " %4 = cast %1 f32[2048,1024]\n %5 = mul %4, v\n return %2 as \"y\", %5 as \"z\"\n}";
    assert_int_equal(written(compile(a, operand), TN_BF16), 2048 * 1024 + 2048 * 512);
}

/* What comes behind a contraction reads one value of memory and computes a function of it again, though many steps lie between
 * that and the next contraction's operand: GELU's factor and its gradient. x f(x) reads x alone. */
ARENA_TEST(test_function_behind_contraction) {
    const char *text =
        "graph @g(u bf16[2048,512], w bf16[512,1024], d bf16[2048,512], v bf16[512,1024], z bf16[1024,256]) {\n"
        " %1 = dot u, w contract=[1]x[0] bf16[2048,1024]\n %2 = mul %1, %1\n %3 = add %2, 1.0\n"
        " %4 = mul %1, %3\n %5 = tanh %4\n %6 = mul %1, %5\n"
        " %7 = dot d, v contract=[1]x[0] bf16[2048,1024]\n %8 = mul %5, %5\n %9 = sub 1.0, %8\n %10 = mul %7, %9\n"
        " %11 = mul %10, 0.5\n %12 = add %11, 0.25\n %13 = mul %12, %1\n %14 = mul %13, 2.0\n %15 = add %14, %7\n"
        " %16 = dot %15, z contract=[1]x[0] bf16[2048,256]\n"
        " return %6 as \"y\", %15 as \"g\", %16 as \"r\"\n}";
    assert_int_equal(written(compile(a, text), TN_BF16), 3 * 2048 * 1024 + 2048 * 256);
}

/* So does a selection of the value or a bound: both its operands are computed from one value. */
ARENA_TEST(test_bounded_function_behind_contraction) {
    const char *text =
        "graph @g(u bf16[2048,512], w bf16[512,1024], d bf16[2048,512], v bf16[512,1024]) {\n"
        " %1 = dot u, w contract=[1]x[0] bf16[2048,1024]\n %2 = mul %1, %1\n %3 = lt %2, 100.0 bool[2048,1024]\n"
        " %4 = select %3, %2, 100.0 bf16[2048,1024]\n %5 = add %4, 1.0\n %6 = mul %1, %5\n %7 = tanh %6\n %8 = mul %1, %7\n"
        " %9 = dot d, v contract=[1]x[0] bf16[2048,1024]\n %10 = mul %7, %7\n %11 = sub 1.0, %10\n %12 = mul %9, %11\n"
        " %13 = mul %12, %5\n %14 = mul %12, %1\n %15 = select %3, %14, 0.0 bf16[2048,1024]\n %16 = add %13, %15\n"
        " return %8 as \"y\", %16 as \"g\"\n}";
    assert_int_equal(written(compile(a, text), TN_BF16), 3 * 2048 * 1024);
}

/* A gradient that two ways bring: of a table that is read (parts of a sum), and that makes the logits (a contraction). */
ARENA_TEST(test_contraction_and_sum) {
    const char *text =
        "graph @g(d bf16[8192,256], x bf16[8192,384], s f32[16,256,384]) {\n"
        " %0 = dot d, x contract=[0]x[0] bf16[256,384]\n %1 = cast %0 f32[256,384]\n %2 = sum s axes=[0] f32[1,256,384]\n"
        " %3 = reshape %2 f32[256,384]\n %4 = add %1, %3\n return %4 as \"y\"\n}";
    assert_non_null(kernel_of_product(compile(a, text)));
}

/* What is computed with a product's result alone is done where that is made, also where all of it is needed (GELU with what its
 * gradient takes). What reads more of that size stays alone, as an optimiser's step does. */
ARENA_TEST(test_results_behind_contraction) {
    const char *alone = "graph @g(x bf16[2048,512], w bf16[512,1024]) {\n"
                        " %1 = dot x, w contract=[1]x[0] bf16[2048,1024]\n %2 = tanh %1\n %3 = mul %1, %2\n return %1 as "
                        "\"u\", %2 as \"t\", %3 as \"y\"\n}";
    plan *p = compile(a, alone);
    assert_int_equal(p->kernels.n, 1);
    assert_non_null(kernel_of_product(p));
    const char *wide = "graph @g(x f32[768,128], w f32[128,512]) {\n"
                       " %1 = dot x, w contract=[1]x[0] f32[768,512]\n %2 = tanh %1\n %3 = mul %1, %2\n return %1 as "
                       "\"u\", %2 as \"t\", %3 as \"y\"\n}";
    assert_int_equal(compile(a, wide)->kernels.n, 1);
    const char *more = "graph @g(x bf16[2048,512], w bf16[512,1024], m bf16[2048,1024]) {\n"
                       " %1 = dot x, w contract=[1]x[0] bf16[2048,1024]\n %2 = mul m, 0.9\n %3 = add %1, %2\n"
                       " return %1 as \"u\", %2 as \"v\", %3 as \"y\"\n}";
    assert_int_equal(compile(a, more)->kernels.n, 2);
}

/* What an operand of contractions is multiplied with, such as queries, is not worth a kernel: threads do so as they load it. */
ARENA_TEST(test_scaled_operand) {
    const char *text = "graph @g(q f32[8,64,32], k f32[8,64,32], s f32[8,64,64]) {\n"
                       " %1 = mul q, 0.25 f32[8,64,32]\n %2 = dot %1, k batch=[0]x[0] contract=[2]x[2] f32[8,64,64]\n"
                       " %3 = dot s, %1 batch=[0]x[0] contract=[1]x[1] f32[8,64,32]\n return %2 as \"y\", %3 as \"z\"\n}";
    assert_int_equal(written(compile(a, text), TN_F32), 8 * 64 * 64 + 8 * 64 * 32);
}

/* A number that many are multiplied with (a step's size, of the number of steps) is computed once, not by every thread. */
ARENA_TEST(test_shared_number) {
    const char *text = "graph @g(t f64[1], x f32[4096], y f32[8192]) {\n"
                       " %1 = exp t\n %2 = cast %1 f32[1]\n %3 = expand %2 f32[4096]\n %4 = mul x, %3\n"
                       " %5 = expand %2 f32[8192]\n %6 = mul y, %5\n return %4 as \"u\", %6 as \"v\"\n}";
    plan *p = compile(a, text);
    int powers = 0;
    for (int i = 0; i < p->kernels.n; i++)
        for (int j = 1; j < p->kernels.at[i].k->ins.n; j++)
            powers += p->kernels.at[i].k->ins.at[j].op == K_ALU && p->kernels.at[i].k->ins.at[j].alu == OP_exp;
    assert_int_equal(powers, 1);
}

/* Neighbours in blocks of 2048, of 512 and of 128 are exchanged: loops of three extents over the same tiles of 2048 elements,
 * two of which lie in shared memory at any time. */
ARENA_TEST(test_tiles) {
    str text;
    str_init(&text, a);
    str_addf(&text, "graph @g(x i64[1048576]) {\n");
    for (int i = 0, at = 1, n = 1024; i < 3; i++, at += 6, n /= 4) {
        int64_t blocks = (1 << 19) / n;
        if (i == 0)
            str_addf(&text, " %%1 = reshape x i64[%lld,2,%d]\n", (long long)blocks, n);
        else
            str_addf(&text, " %%%d = reshape %%%d i64[%lld,2,%d]\n", at, at - 1, (long long)blocks, n);
        for (int h = 0; h < 2; h++)
            str_addf(&text, " %%%d = slice %%%d start=[0,%d,0] step=[1,1,1] i64[%lld,1,%d]\n", at + 1 + h, at, h,
                     (long long)blocks, n);
        str_addf(&text, " %%%d = min %%%d, %%%d\n %%%d = max %%%d, %%%d\n", at + 3, at + 1, at + 2, at + 4, at + 1, at + 2);
        str_addf(&text, " %%%d = concat %%%d, %%%d axis=1\n", at + 5, at + 3, at + 4);
    }
    str_addf(&text, " return %%18 as \"y\"\n}");
    plan *p = compile(a, text.s);
    assert_int_equal(p->kernels.n, 1);
    assert_int_equal(p->kernels.at[0].k->grid_blocks, 512);
    assert_int_equal(written(p, TN_I64), 1 << 20);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_exponentials),
                                        cmocka_unit_test(test_squares),
                                        cmocka_unit_test(test_squares_beside_contractions),
                                        cmocka_unit_test(test_function_behind_contraction),
                                        cmocka_unit_test(test_bounded_function_behind_contraction),
                                        cmocka_unit_test(test_contraction_and_sum),
                                        cmocka_unit_test(test_results_behind_contraction),
                                        cmocka_unit_test(test_shared_number),
                                        cmocka_unit_test(test_scaled_operand),
                                        cmocka_unit_test(test_tiles) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
