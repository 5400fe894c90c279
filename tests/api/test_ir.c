/* The inside for tools: the op table, passes by name on a graph, evaluation in double, and a comparison that finds wrong
 * elements without blaming right ones. */
#include "tenon/tenon_ir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"
#include <math.h>
#include <string.h>

static uint64_t next(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}
static float draw(uint64_t *s) { return (float)next(s) / 1073741824.0f - 1; }

static void ops_and_passes_are_listed(void **state) {
    (void)state;
    int found = 0;
    for (int i = 0; i < tn_ir_n_ops(); i++) {
        tn_ir_op o;
        assert_int_equal(tn_ir_get_op(i, &o), TN_OK);
        assert_true(o.name && *o.name && o.kind && o.doc && *o.doc);
        if (!strcmp(o.name, "tanh")) found += o.arity == 1 && o.flops > 0 && o.ulp > 0;
        if (!strcmp(o.name, "dot")) found += o.arity == 2;
    }
    assert_int_equal(found, 2);
    tn_ir_op o;
    assert_int_equal(tn_ir_get_op(tn_ir_n_ops(), &o), TN_ERR_INVAL);
    assert_int_equal(tn_ir_get_op(-1, &o), TN_ERR_INVAL);
    tn_ir_pass p;
    assert_true(tn_ir_n_passes() > 3);
    assert_int_equal(tn_ir_get_pass(0, &p), TN_OK);
    assert_int_equal(tn_ir_get_pass(tn_ir_n_passes(), &p), TN_ERR_INVAL);
}

static void passes_rewrite_and_keep_parameters(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "g");
    float w0[3] = { 1, 2, 3 };
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(3)), unused = tn_param(g, "u", TN_F32, TN_DIMS(3), w0);
    tn_tensor w = tn_param(g, "w", TN_F32, TN_DIMS(3), w0);
    (void)unused;
    tn_tensor a = tn_mul(x, w), b = tn_mul(x, w); /* one too many */
    tn_output(tn_add(a, b), "y");
    int before = tn_ir_n_values(g);
    assert_int_equal(tn_ir_run_passes(g, "cse,no_such_pass", 1), TN_ERR_INVAL);
    assert_non_null(strstr(tn_ctx_error(ctx), "no_such_pass"));
    assert_int_equal(tn_ir_n_values(g), before);
    assert_int_equal(tn_ir_run_passes(g, "cse", 1), TN_OK);
    assert_int_equal(tn_ir_n_values(g), before - 1);
    assert_int_equal(tn_graph_n_params(g), 2);
    assert_string_equal(tn_tensor_name(tn_graph_param(g, 1)), "w");
    float data[3] = { 5, -6, 7 };
    tn_ir_eval *e;
    assert_int_equal(tn_ir_evaluate(g, TN_BIND({ "x", data }), &e), TN_OK);
    tn_tensor y, s;
    const char *name;
    assert_int_equal(tn_ir_get_output(g, 0, &name, &y, &s), TN_OK);
    assert_string_equal(name, "y");
    assert_int_equal(s.id, 0);
    int64_t n;
    const double *v = tn_ir_eval_values(e, y, &n);
    assert_int_equal(n, 3);
    for (int i = 0; i < 3; i++) assert_true(v[i] == 2.0 * (double)data[i] * (double)w0[i]);
    tn_ir_eval_free(e);
    assert_int_equal(tn_ir_evaluate(g, NULL, 0, &e), TN_ERR_INVAL); /* x is missing */
    assert_int_equal(tn_ir_evaluate(g, TN_BIND({ "x", data }, { "z", data }), &e), TN_ERR_INVAL);
    assert_int_equal(tn_ir_evaluate(g, TN_BIND({ "x", data }, { "x", data }), &e), TN_ERR_INVAL);
    assert_non_null(strstr(tn_ctx_error(ctx), "\"x\" is bound twice"));
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* What is wrong with a plan is said, and nothing leaks: the text of one, damaged. */
static void plans_are_read_checked_and_printed(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "g");
    tn_output(tn_exp(tn_input(g, "x", TN_F32, TN_DIMS(8, 8))), "y");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = 1;
    tn_program *p;
    char *plan, *text = NULL, *kernels;
    assert_int_equal(tn_compile(g, &o, &p), TN_OK);
    assert_int_equal(tn_program_text(p, "plan", &plan), TN_OK);
    assert_int_equal(tn_program_text(p, "kernels", &kernels), TN_OK);
    assert_int_equal(tn_ir_plan_text(ctx, plan, strlen(plan), "p", "plan", &text), TN_OK);
    assert_string_equal(text, plan);
    tn_string_free(ctx, text);
    assert_int_equal(tn_ir_plan_text(ctx, plan, strlen(plan), NULL, "kernels", &text), TN_OK);
    assert_string_equal(text, kernels);
    tn_string_free(ctx, text);
    assert_int_equal(tn_ir_plan_text(ctx, plan, strlen(plan), NULL, "deps", &text), TN_OK);
    assert_non_null(strstr(text, "deps @g {\n  0 exp"));
    tn_string_free(ctx, text);
    assert_int_equal(tn_ir_plan_text(ctx, plan, strlen(plan), NULL, "cuda", &text), TN_ERR_INVAL);
    assert_null(text);
    assert_int_equal(tn_ir_plan_text(ctx, plan, strlen(plan) - 2, "file", "plan", &text), TN_ERR_PARSE);
    assert_non_null(strstr(tn_ctx_error(ctx), "file:"));
    memcpy(strstr(plan, "out b1"), "out b0", 6);
    assert_int_equal(tn_ir_plan_text(ctx, plan, strlen(plan), NULL, "plan", &text), TN_ERR_INVAL);
    assert_non_null(strstr(tn_ctx_error(ctx), "writes b0, an input or a constant"));
    assert_int_equal(tn_ir_plan_text(ctx, NULL, 0, NULL, "plan", &text), TN_ERR_INVAL);
    assert_int_equal(tn_ir_plan_text(NULL, plan, 0, NULL, "plan", &text), TN_ERR_INVAL);
    tn_string_free(ctx, kernels), tn_string_free(ctx, plan);
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

enum { M = 5, K = 37, N = 3 };

/* A right f32 result passes in every order of summation; one element moved by a little more than rounding is found. */
static void contractions_are_compared_by_their_bound(void **state) {
    (void)state;
    uint64_t seed = 11;
    tn_ctx *ctx = test_ctx();
    for (int round = 0; round < 20; round++) {
        tn_graph *g = tn_graph_new(ctx, "g");
        tn_tensor a = tn_input(g, "a", TN_F32, TN_DIMS(M, K)), b = tn_input(g, "b", TN_F32, TN_DIMS(K, N)), y = tn_matmul(a, b);
        float x[M * K], w[K * N], got[M * N];
        for (int i = 0; i < M * K; i++) x[i] = draw(&seed);
        for (int i = 0; i < K * N; i++) w[i] = draw(&seed);
        for (int i = 0; i < M; i++) {
            for (int j = 0; j < N; j++) {
                float sum = 0;
                for (int k = 0; k < K; k++) {
                    int at = round % 2 ? k : K - 1 - k;
                    sum += x[i * K + at] * w[at * N + j];
                }
                got[i * N + j] = sum;
            }
        }
        const void *operands[] = { x, w };
        tn_ir_difference d;
        assert_int_equal(tn_ir_compare(g, y, operands, got, &d), TN_OK);
        assert_true(d.ok && d.index >= 0 && d.max_abs <= d.bound + 1e-5);
        int bad = (int)(next(&seed) % (M * N));
        got[bad] += 1e-3f;
        assert_int_equal(tn_ir_compare(g, y, operands, got, &d), TN_OK);
        assert_true(!d.ok);
        assert_int_equal(d.index, bad);
        got[bad] = NAN;
        assert_int_equal(tn_ir_compare(g, y, operands, got, &d), TN_OK);
        assert_true(!d.ok && d.index == bad && isnan(d.got));
        tn_graph_free(g);
    }
    tn_ctx_free(ctx);
}

static void elementwise_and_exact_ops_are_compared(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "g");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(4)), i = tn_input(g, "i", TN_I32, TN_DIMS(4)),
              none = tn_input(g, "n", TN_F32, TN_DIMS(0, 2));
    tn_tensor e = tn_exp(x), s = tn_add(i, i), f = tn_flip(x, TN_INTS(0)), z = tn_exp(none),
              r = tn_input(g, "r", TN_F32, TN_SCALAR), q = tn_sqrt(r);
    float xs[4] = { -3, 0, 1.5f, NAN }, es[4], fs[4] = { NAN, 1.5f, 0, -3 }, rs = 2, qs = sqrtf(2), big = 1000;
    for (int k = 0; k < 4; k++) es[k] = (float)exp((double)xs[k]);
    const void *ox[] = { xs };
    tn_ir_difference d;
    assert_int_equal(tn_ir_compare(g, e, ox, es, &d), TN_OK);
    assert_true(d.ok);
    es[2] *= 1.00001f;
    assert_int_equal(tn_ir_compare(g, e, ox, es, &d), TN_OK);
    assert_true(!d.ok && d.index == 2 && d.want == exp(1.5));
    int32_t is[4] = { 1, INT32_MAX, -7, 0 }, ss[4] = { 2, -2, -14, 0 };
    const void *oi[] = { is, is };
    assert_int_equal(tn_ir_compare(g, s, oi, ss, &d), TN_OK);
    assert_true(d.ok);
    ss[3] = 1; /* integers are exact */
    assert_int_equal(tn_ir_compare(g, s, oi, ss, &d), TN_OK);
    assert_true(!d.ok && d.index == 3 && d.bound == 0);
    assert_int_equal(tn_ir_compare(g, f, ox, fs, &d), TN_OK);
    assert_true(d.ok);
    float nothing[1] = { 0 };
    const void *on[] = { nothing };
    assert_int_equal(tn_ir_compare(g, z, on, nothing, &d), TN_OK);
    assert_true(d.ok && d.index == -1);
    const void *or_[] = { &rs };
    assert_int_equal(tn_ir_compare(g, q, or_, &qs, &d), TN_OK);
    assert_true(d.ok);
    /* Overflow to infinity is right where the exact value is beyond f32, and wrong elsewhere. */
    tn_tensor p = tn_exp(r);
    float inf = INFINITY;
    const void *ob[] = { &big };
    assert_int_equal(tn_ir_compare(g, p, ob, &inf, &d), TN_OK);
    assert_true(d.ok);
    assert_int_equal(tn_ir_compare(g, p, or_, &inf, &d), TN_OK);
    assert_true(!d.ok);
    assert_int_equal(tn_ir_compare(g, x, NULL, xs, &d), TN_ERR_UNSUPPORTED);
    assert_int_equal(tn_ir_compare(g, e, NULL, es, &d), TN_ERR_INVAL);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* A loop of 5 roots of sums and a stack of them, computed in f32 as a program would: its results are within what roundings can
 * change; a step left out, or one wrong slice, is not. Whole numbers are exact. */
enum { STEPS = 5, WIDTH = 3 };
static void loop_in_f32(const float *x, const float *h, int steps, float *last, float *stack) {
    for (int k = 0; k < WIDTH; k++) last[k] = h[k];
    for (int i = 0; i < STEPS * WIDTH; i++) stack[i] = 0;
    for (int t = 0; t < steps; t++)
        for (int k = 0; k < WIDTH; k++) stack[t * WIDTH + k] = last[k] = sqrtf(last[k] * x[t * WIDTH + k] + 1.0f);
}

static void results_of_loops_are_compared(void **state) {
    (void)state;
    static const char text[] =
        "graph @g(x f32[5,3], h f32[3], n i64[], m f32[]) {\n"
        "  region @b(%c f32[3], %i f32[], %xt f32[3]) {\n    %1 = mul %c, %xt\n    %2 = add %1, 1.0\n    %3 = sqrt %2\n"
        "    %j = add %i, 1.0\n    return %3, %j, %3\n  }\n"
        "  %4 = scan n, h, m, x body=@b carry=2 steps=1 length=5 f32[3]\n  %5 = proj %4 index=1 f32[]\n"
        "  %6 = proj %4 index=2 f32[5,3]\n  return %4 as \"last\", %5 as \"count\", %6 as \"stack\"\n}\n";
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_parse(ctx, text, sizeof text - 1, "g.tn");
    assert_non_null(g);
    tn_tensor out[3], none;
    for (int i = 0; i < 3; i++) {
        const char *name;
        assert_int_equal(tn_ir_get_output(g, i, &name, &out[i], &none), TN_OK);
    }
    uint64_t seed = 0x5eed;
    for (int trial = 0; trial < 100; trial++) {
        float x[STEPS * WIDTH], h[WIDTH], last[WIDTH], stack[STEPS * WIDTH], m = (float)(next(&seed) % 1000), count;
        int64_t steps = 1 + (int64_t)(next(&seed) % STEPS);
        for (int i = 0; i < STEPS * WIDTH; i++) x[i] = (float)(next(&seed) % 1000) / 250;
        for (int i = 0; i < WIDTH; i++) h[i] = (float)(next(&seed) % 1000) / 99;
        const void *operands[] = { &steps, h, &m, x };
        tn_ir_difference d;
        loop_in_f32(x, h, (int)steps, last, stack);
        assert_int_equal(tn_ir_compare(g, out[0], operands, last, &d), TN_OK);
        assert_true(d.ok && d.bound < 1e-4);
        assert_int_equal(tn_ir_compare(g, out[2], operands, stack, &d), TN_OK);
        assert_true(d.ok);
        int bad = (int)(next(&seed) % (STEPS * WIDTH));
        stack[bad] += 1e-3f;
        assert_int_equal(tn_ir_compare(g, out[2], operands, stack, &d), TN_OK);
        assert_true(!d.ok && d.index == bad);
        count = m + (float)steps;
        assert_int_equal(tn_ir_compare(g, out[1], operands, &count, &d), TN_OK);
        assert_true(d.ok && d.bound == 0);
        count = nextafterf(count, 0);
        assert_int_equal(tn_ir_compare(g, out[1], operands, &count, &d), TN_OK);
        assert_true(!d.ok);
    }
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* The same in f64, in which the reference computes, too: products that are rounded once with their sums are right. */
static void loops_of_doubles_are_compared(void **state) {
    (void)state;
    static const char text[] =
        "graph @g(x f64[40], h f64[], n i64[]) {\n"
        "  region @b(%c f64[], %i f64[], %xt f64[]) {\n    %1 = mul %c, %xt\n    %2 = add %1, 1.0\n    %3 = sqrt %2\n"
        "    %j = add %i, 1.0\n    return %3, %j\n  }\n"
        "  %4 = scan n, h, h, x body=@b carry=2 steps=1 length=40 f64[]\n  %5 = proj %4 index=1 f64[]\n"
        "  return %4 as \"last\", %5 as \"count\"\n}\n";
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_parse(ctx, text, sizeof text - 1, "g.tn");
    assert_non_null(g);
    tn_tensor out[2], none;
    for (int i = 0; i < 2; i++) {
        const char *name;
        assert_int_equal(tn_ir_get_output(g, i, &name, &out[i], &none), TN_OK);
    }
    uint64_t seed = 0x5eed;
    int others = 0;
    for (int trial = 0; trial < 100; trial++) {
        double x[40], h = (double)(next(&seed) % 1000), apart = h, fused = h;
        int64_t steps = 40;
        const void *operands[] = { &steps, &h, &h, x };
        tn_ir_difference d;
        for (int i = 0; i < 40; i++) {
            x[i] = (double)(next(&seed) % 1000) / 30;
            volatile double product = apart * x[i];
            apart = sqrt(product + 1), fused = sqrt(fma(fused, x[i], 1));
        }
        others += apart != fused;
        assert_int_equal(tn_ir_compare(g, out[0], operands, &fused, &d), TN_OK);
        assert_true(d.ok && d.bound < 1e-12);
        fused *= 1 + 1e-11;
        assert_int_equal(tn_ir_compare(g, out[0], operands, &fused, &d), TN_OK);
        assert_true(!d.ok);
        double count = h + 40;
        assert_int_equal(tn_ir_compare(g, out[1], operands, &count, &d), TN_OK);
        assert_true(d.ok && d.bound == 0);
    }
    assert_true(others > 0);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

static void elements_load_and_store(void **state) {
    (void)state;
    double values[] = { 0, 1, -2.5, 100 };
    for (int t = 0; t < TN_N_DTYPES; t++) {
        char data[64] = { 0 };
        for (int k = 0; k < 4; k++) tn_ir_store((tn_dtype)t, data, k, values[k]);
        const tn_dtype_info *i = tn_dtype_get_info((tn_dtype)t);
        bool real = i->kind == TN_KIND_FLOAT;
        double want[] = { 0, 1,
                          real                      ? -2.5
                          : i->kind == TN_KIND_UINT ? 0
                          : t == TN_BOOL            ? 1
                                                    : -2,
                          t == TN_BOOL                       ? 1
                          : t == TN_F8E4M3 || t == TN_F8E5M2 ? 96
                                                             : 100 };
        for (int k = 0; k < 4; k++) assert_true(tn_ir_load((tn_dtype)t, data, k) == want[k]);
    }
}

/* A graph for given sizes has the values of the open one, by their ids. */
static void graphs_at_sizes(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_graph *g = tn_graph_new(ctx, "g");
    assert_int_equal(tn_ir_dim_handle(g, 0), 0);
    int64_t n = tn_dim(g, "n", 2, 8, 2), m = tn_dim(g, "m", 1, 9, 1);
    assert_true(tn_ir_dim_handle(g, 0) == n && tn_ir_dim_handle(g, 1) == m);
    assert_true(tn_ir_dim_handle(g, 2) == 0 && tn_ir_dim_handle(g, -1) == 0);
    tn_ir_dim d;
    assert_int_equal(tn_ir_get_dim(g, n, &d), TN_OK);
    assert_true(d.lo == 2 && d.hi == 8 && d.multiple_of == 2);
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(n, 3)), k = tn_const(g, TN_F32, TN_DIMS(3), (float[]){ 1, 2, 3 });
    tn_tensor y = tn_slice_axis(tn_add(x, k), 0, 0, tn_dim_min(g, n, m), 1);
    tn_output(y, "y");
    const tn_ir_size sizes[] = { { "m", 3 }, { "n", 4 } }, odd[] = { { "m", 3 }, { "n", 3 } };
    assert_null(tn_ir_at(g, sizes, 1));
    assert_non_null(strstr(tn_ctx_error(ctx), "dim n has no size"));
    assert_null(tn_ir_at(g, odd, 2));
    assert_non_null(strstr(tn_ctx_error(ctx), "a multiple of 2"));
    assert_null(tn_ir_at(g, NULL, 2));
    assert_null(tn_ir_at(NULL, sizes, 2));
    tn_graph *at = tn_ir_at(g, sizes, 2);
    assert_non_null(at);
    tn_ir_value v;
    assert_int_equal(tn_ir_n_values(at), tn_ir_n_values(g));
    assert_int_equal(tn_ir_get_value(at, (int)y.id - 1, &v), TN_OK);
    assert_true(v.shape.rank == 2 && v.shape.dim[0] == 3 && v.shape.dim[1] == 3);
    float in[12] = { 0 };
    tn_ir_eval *e;
    int64_t count;
    assert_int_equal(tn_ir_evaluate(at, &(tn_binding){ "x", in }, 1, &e), TN_OK);
    const double *got = tn_ir_eval_values(e, v.tensor, &count);
    assert_true(got && count == 9 && got[0] == 1 && got[8] == 3);
    tn_ir_eval_free(e), tn_graph_free(at), tn_graph_free(g), tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_and_passes_are_listed),
        cmocka_unit_test(passes_rewrite_and_keep_parameters),
        cmocka_unit_test(plans_are_read_checked_and_printed),
        cmocka_unit_test(contractions_are_compared_by_their_bound),
        cmocka_unit_test(elementwise_and_exact_ops_are_compared),
        cmocka_unit_test(results_of_loops_are_compared),
        cmocka_unit_test(loops_of_doubles_are_compared),
        cmocka_unit_test(elements_load_and_store),
        cmocka_unit_test(graphs_at_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
