/* test_call.c - tn_function_new, tn_call: a body that is built once and called many times gives what it gives when it is
 * built again for each call: values, gradients, inside of loops, with loops inside, in immediate graphs; its parameters are
 * shared; refused calls. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/support.h"
#include "tenon/tenon.h"
#include "tenon/tenon_ir.h"
#include "tenon/tenon_nn.h"

enum { N = 5 };

typedef struct shared {
    tn_tensor outside; /* [N] */
    int built;
    bool direct;
    tn_function *f;
} shared;

/* in: x [N], y [N]. out: two results. */
static void body(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    shared *s = ud;
    s->built++;
    tn_tensor c = tn_const(g, TN_F32, TN_DIMS(N), (const float[]){ 1, -2, 0.5f, 3, -1 });
    out[0] = tn_tanh(tn_add(tn_mul(in[0], s->outside), tn_mul(in[1], c)));
    out[1] = tn_sub(in[0], tn_mul_scalar(in[1], 0.25));
}

static void apply(tn_graph *g, shared *s, const tn_tensor *in, tn_tensor *out) {
    if (s->direct)
        body(g, s, in, out);
    else
        tn_call(g, s->f, in, out);
}

static void step(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) { apply(g, ud, in, out); }

/* Calls of calls, in a loop and outside; all gradients. */
static int build(tn_graph *g, bool direct, tn_tensor x, tn_tensor y, tn_tensor w) {
    shared s = { .outside = tn_mul_scalar(w, 0.5), .direct = direct };
    tn_tensor in[2] = { x, y }, a[2], b[2], c[2], d[3];
    if (!direct) assert_non_null(s.f = tn_function_new(g, in, 2, body, &s, 2));
    apply(g, &s, in, a);
    apply(g, &s, (tn_tensor[]){ a[1], a[0] }, b);
    apply(g, &s, (tn_tensor[]){ b[0], x }, c);
    tn_scan(g, &(tn_scan_opts){ .carry = (tn_tensor[]){ c[0], b[1] }, .n_carry = 2, .length = 3 }, step, &s, d);
    tn_tensor loss = tn_sum(tn_mul(tn_add(d[0], c[1]), d[1]), TN_ALL_AXES, 0), dx[3];
    tn_output(loss, "loss");
    if (tn_grad(loss, (tn_tensor[]){ x, y, w }, 3, dx)) fail_msg("%s", tn_ctx_error(tn_graph_ctx(g)));
    tn_output(dx[0], "dx"), tn_output(dx[1], "dy"), tn_output(dx[2], "dw");
    return s.built;
}

static float values[3][N] = { { 0.3f, -1, 2, 0.25f, -0.5f }, { 1, 0.125f, -0.75f, 2, 0.5f }, { -1, 0.5f, 1.5f, 0.75f, -2 } };

static void run(tn_ctx *ctx, bool direct, tn_mode mode, int fusion, float out[4][N], int *built) {
    tn_graph *g = tn_graph_new(ctx, "calls");
    tn_tensor in[3];
    static const char *const names[] = { "x", "y", "w" };
    for (int i = 0; i < 3; i++) in[i] = tn_input(g, names[i], TN_F32, TN_DIMS(N));
    *built = build(g, direct, in[0], in[1], in[2]);
    char *text;
    assert_int_equal(tn_graph_print(g, &text), TN_OK);
    tn_graph *again = tn_graph_parse(ctx, text, strlen(text), "again");
    if (!again) fail_msg("%s\n%s", tn_ctx_error(ctx), text);
    tn_string_free(ctx, text);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    o.mode = mode, o.fusion = fusion, o.check = 1;
    if (tn_compile(direct ? g : again, &o, &p)) fail_msg("%s", tn_ctx_error(ctx));
    tn_session *s;
    assert_int_equal(tn_session_new(p, &s), TN_OK);
    assert_int_equal(tn_run(s, TN_BIND({ "x", values[0] }, { "y", values[1] }, { "w", values[2] }, { "loss", out[0] },
                                       { "dx", out[1] }, { "dy", out[2] }, { "dw", out[3] })),
                     TN_OK);
    tn_session_free(s), tn_program_free(p), tn_graph_free(g), tn_graph_free(again);
}

static void same_as_built_again(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    float want[4][N] = { { 0 } }, got[4][N] = { { 0 } };
    int built;
    run(ctx, true, TN_MODE_GRAPH, 0, want, &built);
    assert_int_equal(built, 4);
    for (int m = 0; m < 3; m++) {
        run(ctx, false, m == 2 ? TN_MODE_GRAPH : TN_MODE_COMPILED, m == 1 ? 3 : 0, got, &built);
        assert_int_equal(built, 1);
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < (i ? N : 1); j++)
                if (!(fabsf(got[i][j] - want[i][j]) <= 1e-6f * (1 + fabsf(want[i][j]))))
                    fail_msg("output %d, element %d: %g, not %g", i, j, (double)got[i][j], (double)want[i][j]);
    }
    tn_ctx_free(ctx);
}

static void immediate(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    float want[4][N], got;
    int built;
    run(ctx, true, TN_MODE_GRAPH, 0, want, &built);
    tn_graph *g = tn_graph_immediate(ctx, "now");
    tn_tensor in[3];
    for (int i = 0; i < 3; i++) in[i] = tn_const(g, TN_F32, TN_DIMS(N), values[i]);
    shared s = { .outside = tn_mul_scalar(in[2], 0.5) };
    tn_tensor a[2], b[2], c[2], d[2];
    s.f = tn_function_new(g, in, 2, body, &s, 2);
    assert_non_null(s.f);
    tn_call(g, s.f, in, a), tn_call(g, s.f, (tn_tensor[]){ a[1], a[0] }, b), tn_call(g, s.f, (tn_tensor[]){ b[0], in[0] }, c);
    d[0] = c[0], d[1] = b[1];
    for (int i = 0; i < 3; i++) tn_call(g, s.f, (tn_tensor[]){ d[0], d[1] }, d);
    assert_int_equal(s.built, 6);
    assert_int_equal(tn_tensor_read(tn_sum(tn_mul(tn_add(d[0], c[1]), d[1]), TN_ALL_AXES, 0), &got, sizeof got), TN_OK);
    assert_true(fabsf(got - want[0][0]) <= 1e-5f * (1 + fabsf(got)));
    tn_graph_free(g), tn_ctx_free(ctx);
}

/* ---- parameters of layers, loops inside ---- */

static void go_on(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)ud;
    out[0] = tn_lt(in[1], tn_full(g, TN_I64, TN_SCALAR, 3));
}
static void halve(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g, (void)ud;
    out[0] = tn_mul_scalar(in[0], 0.5), out[1] = tn_add_scalar(in[1], 1);
}
static void layer(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)ud;
    tn_tensor state[2] = { tn_relu(tn_nn_linear(in[0], N, "branch")), tn_full(g, TN_I64, TN_SCALAR, 0) };
    tn_tensor last[2];
    tn_while(g, state, 2, go_on, halve, NULL, 10, last);
    out[0] = last[0];
}

static void parameters_are_shared(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    float got[3][N], w[N * N], b[N];
    tn_graph *g = tn_graph_new(ctx, "siamese");
    tn_tensor in[2] = { tn_input(g, "x", TN_F32, TN_DIMS(1, N)), tn_input(g, "y", TN_F32, TN_DIMS(1, N)) };
    tn_function *f = tn_function_new(g, in, 1, layer, NULL, 1);
    if (!f) fail_msg("%s", tn_ctx_error(ctx));
    tn_output(tn_call(g, f, &in[0], NULL), "a"), tn_output(tn_call(g, f, &in[1], NULL), "b");
    assert_int_equal(tn_graph_n_params(g), 2);
    tn_program *p;
    tn_session *s;
    if (tn_compile(g, NULL, &p)) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_session_new(p, &s), TN_OK);
    assert_int_equal(tn_run(s, TN_BIND({ "x", values[0] }, { "y", values[1] }, { "a", got[0] }, { "b", got[1] })), TN_OK);
    assert_int_equal(tn_session_get(s, "branch/w", w, sizeof w), TN_OK);
    assert_int_equal(tn_session_get(s, "branch/b", b, sizeof b), TN_OK);
    for (int k = 0; k < 2; k++)
        for (int j = 0; j < N; j++) {
            double sum = (double)b[j];
            for (int i = 0; i < N; i++) sum += (double)values[k][i] * (double)w[i * N + j];
            assert_true(fabs((double)got[k][j] - fmax(sum, 0) / 8) < 1e-6);
        }
    tn_session_free(s), tn_program_free(p), tn_graph_free(g), tn_ctx_free(ctx);
}

/* ---- refused ---- */

static void refused(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    static const char *const texts[] = { "operand 0 is f32[3]", "there is no function", "there is no function",
                                         "body or like" };
    for (int i = 0; i < 4; i++) {
        tn_graph *g = tn_graph_new(ctx, "bad"), *other = tn_graph_new(ctx, "other");
        tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(N)), y = tn_input(g, "y", TN_F32, TN_DIMS(3));
        shared s = { .outside = x };
        tn_function *f = tn_function_new(g, (tn_tensor[]){ x, x }, 2, body, &s, 2);
        tn_tensor out[2];
        if (i == 0) tn_call(g, f, (tn_tensor[]){ y, x }, out);
        if (i == 1) tn_call(g, NULL, &x, out);
        if (i == 2) tn_call(other, f, (tn_tensor[]){ x, x }, out);
        if (i == 3) assert_null(tn_function_new(g, &x, -1, body, &s, 2));
        assert_int_not_equal(tn_graph_status(i == 2 ? other : g), TN_OK);
        if (!strstr(tn_ctx_error(ctx), texts[i])) fail_msg("\"%s\" does not say \"%s\"", tn_ctx_error(ctx), texts[i]);
        tn_graph_free(g), tn_graph_free(other);
    }
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(same_as_built_again), cmocka_unit_test(immediate),
                                        cmocka_unit_test(parameters_are_shared), cmocka_unit_test(refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
