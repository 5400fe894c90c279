/* test_kinks.c - the rows of kinks.def: values and derivatives where the two sides of a function differ. Each row runs in the
 * reference evaluator, op by op and compiled, in f64 and f32. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"

#include "tenon/tenon_ir.h"
#include "tenon/tenon_nn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 3 };

typedef struct kink {
    const char *name;
    tn_tensor (*build)(tn_tensor x);
    int n; /* elements of x */
    double x[MOST], value, first[MOST], second;
    bool twice; /* second is given */
} kink;

/* Of the dtype and shape of x; no gradient flows to it. */
static tn_tensor at(tn_tensor x, double v) { return tn_add_scalar(tn_mul_scalar(tn_stop_gradient(x), 0), v); }
static tn_tensor label(tn_tensor x, int64_t v) { return tn_const(x.graph, TN_I64, TN_SCALAR, &v); }
#define PAIRS ((tn_nn_pool_opts){ .kernel = { 2 } })
#define SMOOTHED ((tn_nn_cross_entropy_opts){ .smoothing = 0.1 })
#define ROW(x) tn_reshape(x, TN_DIMS(1, 3))

#define LIST(...)                                                                                                              \
    { __VA_ARGS__ }
#define KINK(name, expr, torch, from, value, first, second)                                                                    \
    static tn_tensor build_##name(tn_tensor x) { return expr; }
#define TIE(name, expr, torch, from, value, gradient)                                                                          \
    static tn_tensor build_##name(tn_tensor x) { return expr; }
#include "kinks.def"
#undef KINK
#undef TIE
#define KINK(name, expr, torch, from, value, first, second)                                                                    \
    { #name, build_##name, 1, { from }, value, { first }, second, true },
#define TIE(name, expr, torch, from, value, gradient)                                                                          \
    { #name, build_##name, (int)(sizeof((double[])from) / sizeof(double)), from, value, gradient, 0, false },
static const kink kinks[] = {
#include "kinks.def"
};
#undef KINK
#undef TIE

typedef struct result {
    double value[1], first[MOST], second[MOST];
} result;

/* Outputs "value", "first" and, where the row has it, "second". */
static tn_graph *build(tn_ctx *ctx, const kink *k, tn_dtype t) {
    static const double ones[] = { 1, 2, 3, 4, 5, 6 };
    tn_graph *g = tn_graph_new(ctx, k->name);
    tn_tensor x = tn_input(g, "x", t, TN_DIMS(k->n)), y = k->build(x), first, second;
    tn_shape s = tn_tensor_shape(y);
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++) n *= s.dim[i];
    assert_in_range(n, 1, COUNT_OF(ones));
    tn_tensor weights = tn_cast(tn_const(g, TN_F64, TN_DIMS(n), ones), t);
    tn_tensor value = tn_sum(tn_mul(tn_reshape(y, TN_DIMS(n)), weights), TN_ALL_AXES, 0);
    tn_output(value, "value");
    if (tn_grad(value, &x, 1, &first)) fail_msg("%s: %s", k->name, tn_ctx_error(ctx));
    tn_output(first, "first");
    if (!k->twice) return g;
    if (tn_grad(tn_sum(first, TN_ALL_AXES, 0), &x, 1, &second)) fail_msg("%s, twice: %s", k->name, tn_ctx_error(ctx));
    tn_output(second, "second");
    return g;
}

static void expect(const kink *k, const char *how, const char *what, int n, const double *got, const double *want,
                   double most) {
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= most * (1 + fabs(want[i]))))
            fail_msg("%s, %s: %s [%d] at %g is %.17g, expected %.17g", k->name, how, what, i, k->x[i], got[i], want[i]);
}
static void expect_row(const kink *k, const char *how, const result *r, double most) {
    expect(k, how, "value", 1, r->value, &k->value, most);
    expect(k, how, "first derivative", k->n, r->first, k->first, most);
    if (k->twice) expect(k, how, "second derivative", 1, r->second, &k->second, most);
}

static void in_evaluator(tn_ctx *ctx, const kink *k) {
    tn_graph *g = build(ctx, k, TN_F64);
    double x[MOST];
    tn_ir_eval *e;
    result r = { 0 };
    double *into[] = { r.value, r.first, r.second };
    memcpy(x, k->x, sizeof x);
    if (tn_ir_evaluate(g, TN_BIND({ "x", x }), &e)) fail_msg("%s: %s", k->name, tn_ctx_error(ctx));
    assert_int_equal(tn_ir_n_outputs(g), k->twice ? 3 : 2);
    for (int i = 0; i < tn_ir_n_outputs(g); i++) {
        const char *name;
        tn_tensor y;
        int64_t n;
        assert_int_equal(tn_ir_get_output(g, i, &name, &y, NULL), TN_OK);
        const double *values = tn_ir_eval_values(e, y, &n);
        assert_int_equal(n, i ? k->n : 1);
        memcpy(into[i], values, (size_t)n * sizeof *values);
    }
    expect_row(k, "evaluated", &r, 1e-14);
    tn_ir_eval_free(e);
    tn_graph_free(g);
}

static void in_mode(tn_ctx *ctx, const kink *k, tn_mode mode, tn_dtype t) {
    tn_graph *g = build(ctx, k, t);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *s;
    double in[MOST], out[3][MOST] = { { 0 } };
    float in32[MOST], out32[3][MOST] = { { 0 } };
    bool wide = t == TN_F64;
    for (int i = 0; i < MOST; i++) in[i] = k->x[i], in32[i] = (float)k->x[i];
    o.mode = mode, o.threads = 1;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s: %s", k->name, tn_ctx_error(ctx));
    tn_binding all[] = { { "x", wide ? (void *)in : in32 },
                         { "value", wide ? (void *)out[0] : out32[0] },
                         { "first", wide ? (void *)out[1] : out32[1] },
                         { "second", wide ? (void *)out[2] : out32[2] } };
    if (tn_run(s, all, k->twice ? 4 : 3)) fail_msg("%s: %s", k->name, tn_session_error(s));
    for (int i = 0; i < 3 && !wide; i++)
        for (int j = 0; j < MOST; j++) out[i][j] = (double)out32[i][j];
    result r = { .value = { out[0][0] } };
    memcpy(r.first, out[1], sizeof r.first), memcpy(r.second, out[2], sizeof r.second);
    char how[64];
    snprintf(how, sizeof how, "%s, %s", mode == TN_MODE_IMMEDIATE ? "immediate" : "compiled", wide ? "f64" : "f32");
    expect_row(k, how, &r, wide ? 1e-13 : 1e-6);
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
}

static void test_kinks(void **state) {
    tn_ctx *ctx = *state;
    for (size_t i = 0; i < COUNT_OF(kinks); i++) {
        in_evaluator(ctx, &kinks[i]);
        for (int wide = 0; wide < 2; wide++) {
            in_mode(ctx, &kinks[i], TN_MODE_IMMEDIATE, wide ? TN_F64 : TN_F32);
            in_mode(ctx, &kinks[i], TN_MODE_COMPILED, wide ? TN_F64 : TN_F32);
        }
    }
    printf("count: %d rows of kinks.def\n", (int)COUNT_OF(kinks));
}

/* Every activation and loss of the header has a row, but for sums and a loop, which mode immediate does not run. */
static char *text_of(const char *path) {
    static char text[2][1 << 17];
    static int used;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_in_range(used, 0, 1);
    size_t n = fread(text[used], 1, sizeof text[0] - 1, f);
    assert_in_range(n, 1, sizeof text[0] - 2);
    fclose(f);
    return text[used++];
}

static void test_all_are_there(void **state) {
    (void)state;
    static const char builder[] = "TN_API tn_tensor tn_nn_";
    char *rows = text_of(TESTS_DIR "/nn/kinks.def"), *header = text_of(TESTS_DIR "/../include/tenon/tenon_nn.h");
    char *from = strstr(header, "/* ---- activations"), *to = strstr(header, "/* ---- statistics");
    int n = 0;
    assert_true(from && to && from < to);
    *to = 0;
    while ((from = strstr(from, builder))) {
        char call[64];
        snprintf(call, sizeof call, " tn_nn_%.*s(", (int)strcspn(from + sizeof builder - 1, "("), from + sizeof builder - 1);
        if (!strstr(rows, call) && strcmp(call, " tn_nn_sum(") && strcmp(call, " tn_nn_ctc("))
            fail_msg("kinks.def has no row of%s..)", call);
        from += sizeof builder, n++;
    }
    assert_in_range(n, 24, 100);
}

static int setup(void **state) {
    *state = test_ctx();
    return 0;
}
static int teardown(void **state) {
    tn_ctx_free(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_kinks), cmocka_unit_test(test_all_are_there) };
    return cmocka_run_group_tests(tests, setup, teardown);
}
