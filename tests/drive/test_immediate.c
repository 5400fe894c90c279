/* test_immediate.c - immediate graphs: values as soon as a builder returns, host control flow, backward, and the same graph
 * compiled. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tenon/tenon.h"

static tn_ctx *ctx;

static float scalar(tn_tensor x) {
    float v = -12345;
    tn_status code = tn_tensor_read(x, &v, sizeof v);
    if (code) fail_msg("%s", tn_ctx_error(ctx));
    return v;
}

static void test_values_appear_at_once(void **state) {
    (void)state;
    tn_graph *g = tn_graph_immediate(ctx, "now");
    float data[6] = { 1, -2, 3, -4, 5, -6 }, got[6];
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(2, 3));
    assert_int_equal(tn_tensor_write(x, data, sizeof data), TN_OK);
    tn_tensor y = tn_relu(x);
    assert_int_equal(tn_tensor_read(y, got, sizeof got), TN_OK);
    for (int i = 0; i < 6; i++) assert_true(got[i] == (data[i] > 0 ? data[i] : 0));
    tn_tensor z = x;
    int rounds = 0;
    while (scalar(tn_sum(tn_abs(z), TN_ALL_AXES, 0)) > 1) { /* the host's own loop */
        z = tn_mul_scalar(z, 0.5);
        rounds++;
    }
    assert_int_equal(rounds, 5); /* 21 / 2^5 < 1 */
    tn_tensor t = tn_reshape(tn_transpose(x, 0, 1), TN_DIMS(6));
    assert_int_equal(tn_tensor_read(t, got, sizeof got), TN_OK);
    const float want[6] = { 1, -4, -2, 5, 3, -6 };
    for (int i = 0; i < 6; i++) assert_true(got[i] == want[i]);
    tn_graph_free(g);
}

static void test_operand_without_value(void **state) {
    (void)state;
    tn_graph *g = tn_graph_immediate(ctx, "early");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(3));
    tn_tensor y = tn_exp(x);
    assert_int_equal(y.id, 0);
    assert_int_equal(tn_graph_status(g), TN_ERR_INVAL);
    assert_non_null(strstr(tn_ctx_error(ctx), "\"x\" has no value yet"));
    tn_graph_free(g);
}

/* Loss, gradient and one step of gradient descent; the same builder code immediately and compiled. */
static tn_tensor build_step(tn_graph *g, const float *xs, const float *w0) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(4, 3)), w = tn_state(g, "w", TN_F32, TN_DIMS(3, 2), w0);
    if (xs) assert_int_equal(tn_tensor_write(x, xs, 12 * sizeof *xs), TN_OK);
    tn_tensor y = tn_tanh(tn_matmul(x, w)), loss = tn_mean(tn_mul(y, y), TN_ALL_AXES, 0), dw;
    assert_int_equal(tn_grad(loss, &w, 1, &dw), TN_OK);
    tn_output(loss, "loss");
    tn_assign(w, tn_sub(w, tn_mul_scalar(dw, 0.5)));
    return loss;
}

static void test_backward_and_compiled_agree(void **state) {
    (void)state;
    float xs[12], w0[6], w_now[6], w_later[6], loss_later;
    for (int i = 0; i < 12; i++) xs[i] = (float)(i % 5) - 1.7f;
    for (int i = 0; i < 6; i++) w0[i] = 0.3f * (float)(i % 4) - 0.4f;
    tn_graph *now = tn_graph_immediate(ctx, "now");
    float loss_now = scalar(build_step(now, xs, w0));
    tn_graph *later = tn_graph_new(ctx, "later");
    build_step(later, NULL, w0);
    tn_program *p;
    tn_session *s;
    if (tn_compile(later, NULL, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_run(s, TN_BIND({ "x", xs }, { "loss", &loss_later })), TN_OK);
    assert_true(loss_now > loss_later - 1e-6f && loss_now < loss_later + 1e-6f);
    assert_int_equal(tn_session_get(s, "w", w_later, sizeof w_later), TN_OK);
    /* the immediate graph's own state has moved too: the recorded graph compiles from the initial value again */
    tn_program *q;
    tn_session *r;
    if (tn_compile(now, NULL, &q) || tn_session_new(q, &r)) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_run(r, TN_BIND({ "x", xs })), TN_OK);
    assert_int_equal(tn_session_get(r, "w", w_now, sizeof w_now), TN_OK);
    for (int i = 0; i < 6; i++) assert_true(w_now[i] == w_later[i] && w_now[i] != w0[i]);
    tn_session_free(r), tn_program_free(q);
    tn_session_free(s), tn_program_free(p);
    tn_graph_free(later), tn_graph_free(now);
}

int main(void) {
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    ctx = tn_ctx_new(&cfg);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_appear_at_once),
        cmocka_unit_test(test_operand_without_value),
        cmocka_unit_test(test_backward_and_compiled_agree),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tn_ctx_free(ctx);
    return failed;
}
