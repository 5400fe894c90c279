/* test_immediate.c - immediate graphs: values as soon as a builder returns, host control flow, backward, and the same graph
 * compiled; on every device that is here. */
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
static const char *on = "cpu"; /* the device */

/* What the context has of the host. */
static size_t live, most_live;
static void *counted(void *ud, void *ptr, size_t old, size_t size) {
    (void)ud;
    if (!size) {
        free(ptr);
        live -= old;
        return NULL;
    }
    void *p = realloc(ptr, size);
    if (p) live += size - old;
    if (live > most_live) most_live = live;
    return p;
}

static float distance(float x, float y) { return x > y ? x - y : y - x; }

static float scalar(tn_tensor x) {
    float v = -12345;
    tn_status code = tn_tensor_read(x, &v, sizeof v);
    if (code) fail_msg("%s", tn_ctx_error(ctx));
    return v;
}

static void test_values_appear_at_once(void **state) {
    (void)state;
    tn_graph *g = tn_graph_immediate_on(ctx, "now", on);
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

/* Two joins of many parts that differ in the last ones only are two programs. */
static void test_many_operands(void **state) {
    (void)state;
    enum { N = 700 };
    if (strcmp(on, "cpu") != 0) return; /* the same code for all devices; a kernel of 700 parts takes OpenCL minutes */
    tn_graph *g = tn_graph_immediate_on(ctx, "many", on);
    const float one[] = { 1 }, three[] = { 2, 3, 4 };
    tn_tensor part[N], x = tn_state(g, "x", TN_F32, TN_DIMS(1), one), y = tn_state(g, "y", TN_F32, TN_DIMS(3), three);
    for (int i = 0; i < N; i++) part[i] = x;
    for (int k = 1; k <= 2; k++) {
        float got[N + 2];
        part[N - 1] = part[N - 2] = x, part[N - k] = y;
        tn_tensor all = tn_concat(part, N, 0);
        if (tn_tensor_read(all, got, sizeof got)) fail_msg("%s", tn_ctx_error(ctx));
        for (int i = 0; i < N + 2; i++) {
            int at = i - (N - k);
            assert_true(got[i] == (at >= 0 && at < 3 ? three[at] : 1));
        }
    }
    tn_graph_free(g);
}

static void test_operand_without_value(void **state) {
    (void)state;
    tn_graph *g = tn_graph_immediate_on(ctx, "early", on);
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
    tn_graph *now = tn_graph_immediate_on(ctx, "now", on);
    float loss_now = scalar(build_step(now, xs, w0));
    tn_graph *later = tn_graph_new(ctx, "later");
    build_step(later, NULL, w0);
    tn_program *p;
    tn_session *s;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.device = on;
    if (tn_compile(later, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_run(s, TN_BIND({ "x", xs }, { "loss", &loss_later })), TN_OK);
    assert_true(distance(loss_now, loss_later) <= 1e-6f);
    assert_int_equal(tn_session_get(s, "w", w_later, sizeof w_later), TN_OK);
    /* the immediate graph's own state has moved too: the recorded graph compiles from the initial value again */
    tn_program *q;
    tn_session *r;
    if (tn_compile(now, &o, &q) || tn_session_new(q, &r)) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_run(r, TN_BIND({ "x", xs })), TN_OK);
    assert_int_equal(tn_session_get(r, "w", w_now, sizeof w_now), TN_OK);
    for (int i = 0; i < 6; i++) assert_true(w_now[i] == w_later[i] && w_now[i] != w0[i]);
    tn_session_free(r), tn_program_free(q);
    tn_session_free(s), tn_program_free(p);
    tn_graph_free(later), tn_graph_free(now);
}

/* Programs in mode immediate: two states that change places, one that two take over, one that is its own value, a constant, an
 * output of a state; naive, too. */
static void check_states(int no_cache) {
    float a0[3] = { 1, 2, 3 }, b0[3] = { 10, 20, 30 }, c0[3] = { 0 }, x[3] = { 0.5f, 0, -0.5f }, seen[3], sum[3], got[3];
    tn_graph *g = tn_graph_new(ctx, "states");
    tn_tensor a = tn_state(g, "a", TN_F32, TN_DIMS(3), a0), b = tn_state(g, "b", TN_F32, TN_DIMS(3), b0);
    tn_tensor c = tn_state(g, "c", TN_F32, TN_DIMS(3), c0), d = tn_state(g, "d", TN_F32, TN_DIMS(3), c0);
    tn_tensor e = tn_state(g, "e", TN_F32, TN_DIMS(3), c0);
    tn_tensor next = tn_add(c, tn_input(g, "x", TN_F32, TN_DIMS(3)));
    tn_assign(a, b), tn_assign(b, a);
    tn_assign(c, next), tn_assign(d, next);
    tn_assign(e, tn_full(g, TN_F32, TN_DIMS(3), 7));
    tn_output(a, "seen");
    tn_output(tn_add(next, a), "sum");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.device = on, o.mode = TN_MODE_IMMEDIATE, o.no_cache = no_cache;
    tn_program *p;
    tn_session *s;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s: %s", on, tn_ctx_error(ctx));
    for (int run = 1; run <= 3; run++) {
        if (tn_run(s, TN_BIND({ "x", x }, { "seen", seen }, { "sum", sum }))) fail_msg("%s: %s", on, tn_session_error(s));
        const float *a_now = run % 2 ? a0 : b0, *a_next = run % 2 ? b0 : a0;
        assert_memory_equal(seen, a_now, sizeof seen);
        for (int i = 0; i < 3; i++) assert_true(sum[i] == (float)run * x[i] + a_now[i]);
        assert_int_equal(tn_session_get(s, "a", got, sizeof got), TN_OK);
        assert_memory_equal(got, a_next, sizeof got);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(tn_session_get(s, k ? "d" : "c", got, sizeof got), TN_OK);
            for (int i = 0; i < 3; i++) assert_true(got[i] == (float)run * x[i]);
        }
        assert_int_equal(tn_session_get(s, "e", got, sizeof got), TN_OK);
        for (int i = 0; i < 3; i++) assert_true(got[i] == 7);
    }
    assert_int_equal(tn_session_set(s, "c", a0, sizeof a0), TN_OK);
    assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "sum", sum })), TN_OK);
    for (int i = 0; i < 3; i++) assert_true(sum[i] == a0[i] + x[i] + b0[i]);
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
}
static void test_states(void **state) {
    (void)state;
    check_states(0);
    check_states(1);
}

/* A loop takes the memory of one iteration, however long it is. */
enum { WIDE = 1 << 12 };
static void is_left(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)ud;
    out[0] = tn_gt(in[0], tn_full(g, TN_I64, TN_SCALAR, 0));
}
static void turn(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    out[0] = tn_sub(in[0], tn_full(g, TN_I64, TN_SCALAR, 1));
    out[1] = in[2];
    out[2] = tn_add(in[1], *(tn_tensor *)ud);
}
static size_t run_long(int64_t n) {
    static float x[WIDE], y[2][WIDE];
    for (int i = 0; i < WIDE; i++) x[i] = (float)(i % 5 - 2);
    tn_graph *g = tn_graph_new(ctx, "long");
    tn_tensor in = tn_input(g, "x", TN_F32, TN_DIMS(WIDE)), out[3];
    tn_tensor init[3] = { tn_input(g, "n", TN_I64, TN_SCALAR), in, tn_neg(in) };
    tn_while(g, init, 3, is_left, turn, &in, 0, out);
    tn_output(out[1], "y"), tn_output(out[2], "z");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.device = on, o.mode = TN_MODE_IMMEDIATE;
    tn_program *p;
    tn_session *s;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s: %s", on, tn_ctx_error(ctx));
    size_t before = most_live = live;
    if (tn_run(s, TN_BIND({ "x", x }, { "n", &n }, { "y", y[0] }, { "z", y[1] }))) fail_msg("%s: %s", on, tn_session_error(s));
    size_t took = most_live - before;
    for (int i = 0; i < WIDE; i++) {
        float a = x[i], b = -x[i];
        for (int64_t k = 0; k < n; k++) {
            float c = a + x[i];
            a = b, b = c;
        }
        assert_true(y[0][i] == a && y[1][i] == b);
    }
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
    return took;
}
static void test_long_loop(void **state) {
    (void)state;
    run_long(10); /* what a device keeps */
    size_t little = run_long(10), much = run_long(strcmp(on, "cpu") != 0 ? 200 : 10000);
    if (much > little + 4096) fail_msg("%s: 10 iterations take %zu bytes, more of them %zu", on, little, much);
}

/* The same in an immediate graph, which has the nodes of all iterations, but not their values: 16 KiB each. */
typedef struct walk {
    tn_tensor by, seen; /* seen: of the first iteration */
} walk;
static void walk_on(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    walk *w = ud;
    tn_tensor sum = tn_add(tn_reshape(in[1], TN_DIMS(WIDE)), w->by);
    if (!w->seen.id) w->seen = sum;
    out[0] = tn_sub(in[0], tn_full(g, TN_I64, TN_SCALAR, 1));
    out[1] = in[2];
    out[2] = tn_reshape(sum, TN_DIMS(2, WIDE / 2));
    out[3] = in[3];
}
static void test_long_loop_at_once(void **state) {
    (void)state;
    static float x[WIDE], got[2][WIDE];
    for (int i = 0; i < WIDE; i++) x[i] = (float)(i % 5 - 2);
    for (int64_t n = 0; n <= 1000; n += n < 5 ? 1 : 995) {
        if (n > 200 && strcmp(on, "cpu") != 0) break;
        tn_graph *g = tn_graph_immediate_on(ctx, "long", on);
        walk w = { tn_state(g, "x", TN_F32, TN_DIMS(WIDE), x), { g, 0 } };
        tn_tensor in = tn_reshape(w.by, TN_DIMS(2, WIDE / 2)), out[4], dx;
        tn_tensor init[4] = { tn_const(g, TN_I64, TN_SCALAR, &n), in, tn_neg(in), w.by };
        size_t before = most_live = live;
        tn_while(g, init, 4, is_left, walk_on, &w, 0, out);
        if (tn_graph_status(g)) fail_msg("%s: %s", on, tn_ctx_error(ctx));
        if (most_live - before > 1 << 23) fail_msg("%s: %zu bytes for %d iterations", on, most_live - before, (int)n);
        for (int k = 0; k < 2; k++)
            if (tn_tensor_read(out[1 + k], got[k], sizeof got[k])) fail_msg("%s: %s", on, tn_ctx_error(ctx));
        for (int i = 0; i < WIDE; i++) {
            float a = x[i], b = -x[i];
            for (int64_t k = 0; k < n; k++) {
                float c = a + x[i];
                a = b, b = c;
            }
            assert_true(got[0][i] == a && got[1][i] == b);
        }
        if (tn_tensor_read(out[3], got[0], sizeof got[0]) || tn_tensor_read(in, got[1], sizeof got[1]))
            fail_msg("%s: %s", on, tn_ctx_error(ctx));
        assert_memory_equal(got[0], x, sizeof x);
        assert_memory_equal(got[1], x, sizeof x);
        if (n > 2) {
            assert_int_equal(tn_tensor_read(w.seen, got[0], sizeof got[0]), TN_ERR_INVAL);
            assert_non_null(strstr(tn_ctx_error(ctx), "a loop without a bound, which keeps no values"));
            tn_tensor y = tn_tanh(out[2]);
            tn_status code = tn_grad(tn_sum(tn_mul(y, tn_neg(w.seen)), TN_ALL_AXES, 0), &w.by, 1, &dx);
            assert_int_equal(code, TN_ERR_INVAL);
            assert_non_null(strstr(tn_ctx_error(ctx), "operand is of an iteration of a loop without a bound"));
        }
        tn_graph_free(g);
    }
}

/* Loops without a bound in one another: values that go from one to the other as views, twice, or from outside stay, and the
 * graph compiles. */
static void inside(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)ud;
    out[0] = tn_sub(in[0], tn_full(g, TN_I64, TN_SCALAR, 1));
    out[1] = tn_reshape(tn_reshape(tn_add(in[1], in[2]), TN_DIMS(1, 2)), TN_DIMS(2));
    out[2] = in[1];
}
static void around(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    tn_tensor init[3] = { tn_full(g, TN_I64, TN_SCALAR, 2), in[1], in[2] }, made[3];
    tn_while(g, init, 3, is_left, inside, NULL, 0, made);
    out[0] = tn_sub(in[0], tn_full(g, TN_I64, TN_SCALAR, 1));
    out[1] = tn_mul_scalar(made[1], 0.5), out[2] = made[2];
    out[3] = *(tn_tensor *)ud, out[4] = out[1], out[5] = made[1];
}
static void test_nested_loops_at_once(void **state) {
    (void)state;
    static const float x[2] = { 1, 2 }, y[2] = { 4, -8 };
    for (int64_t n = 0; n < 5; n++) {
        tn_graph *g = tn_graph_immediate_on(ctx, "nested", on);
        tn_tensor a = tn_const(g, TN_F32, TN_DIMS(2), x), b = tn_const(g, TN_F32, TN_DIMS(2), y), out[6];
        tn_tensor view = tn_reshape(tn_state(g, "s", TN_F32, TN_DIMS(2, 1), x), TN_DIMS(2));
        tn_tensor init[6] = { tn_const(g, TN_I64, TN_SCALAR, &n), a, b, view, a, view };
        float want[6][2], got[2];
        tn_while(g, init, 6, is_left, around, &b, 0, out);
        for (int i = 0; i < 2; i++) {
            want[1][i] = want[5][i] = x[i], want[2][i] = y[i], want[3][i] = n ? y[i] : x[i];
            for (int64_t k = 0; k < n; k++) { /* a, b: twice a + b, a */
                float c = want[1][i] + want[2][i];
                want[5][i] = c + want[1][i], want[2][i] = c;
                want[1][i] = want[5][i] * 0.5f;
            }
            want[4][i] = want[1][i];
        }
        for (int k = 1; k < 6; k++) {
            if (tn_tensor_read(out[k], got, sizeof got)) fail_msg("%s, %d: %s", on, k, tn_ctx_error(ctx));
            assert_memory_equal(got, want[k], sizeof got);
        }
        tn_output(tn_add(out[1], out[5]), "sum");
        tn_program *p;
        tn_session *s;
        if (tn_compile(g, NULL, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
        if (tn_run(s, TN_BIND({ "sum", got }))) fail_msg("%s", tn_session_error(s));
        for (int i = 0; i < 2; i++) assert_true(got[i] == want[1][i] + want[5][i]);
        tn_session_free(s), tn_program_free(p), tn_graph_free(g);
    }
}

/* Every tensor keeps the value it had when its builder returned, whatever becomes of the states it came from. */
static void holds(tn_tensor x, float a, float b, const char *what) {
    float got[2] = { 0 };
    assert_int_equal(tn_tensor_bytes(x), sizeof got);
    if (tn_tensor_read(x, got, sizeof got)) fail_msg("%s: %s", what, tn_ctx_error(ctx));
    if (got[0] != a || got[1] != b) fail_msg("%s, %s: %g %g, not %g %g", on, what, got[0], got[1], a, b);
}
enum { VIEWS = 14 };
static void view_all(tn_tensor w, tn_tensor x, tn_tensor *out) {
    int64_t zero[2] = { 0 }, one[2] = { 1, 2 };
    tn_tensor dw[2];
    out[0] = tn_reshape(w, TN_DIMS(2)), out[1] = tn_reshape(w, TN_DIMS(1, 2)), out[2] = tn_reshape(out[0], TN_DIMS(2, 1));
    out[3] = tn_expand(w, TN_DIMS(1, 2)), out[4] = tn_slice(w, zero, one, NULL, 2), out[5] = tn_pad(w, zero, zero, 2, 0);
    out[6] = tn_permute(w, TN_INTS(0, 1)), out[7] = tn_flip(w, NULL, 0), out[8] = tn_cast(w, TN_F32);
    out[9] = tn_concat(&w, 1, 0), out[10] = tn_sum(w, NULL, 0, 1), out[11] = tn_transpose(w, 0, 1);
    assert_int_equal(tn_grad(tn_sum(tn_mul(w, x), TN_ALL_AXES, 0), (tn_tensor[]){ w, x }, 2, dw), TN_OK);
    out[12] = dw[1], out[13] = tn_neg(tn_neg(w));
}
static void test_values_stay(void **state) {
    (void)state;
    float w0[2] = { 1, 2 }, x0[2] = { 3, 4 }, w1[2] = { 50, 60 };
    tn_graph *g = tn_graph_immediate_on(ctx, "stay", on);
    tn_tensor w = tn_state(g, "w", TN_F32, TN_DIMS(1, 2), w0), x = tn_input(g, "x", TN_F32, TN_DIMS(1, 2)), at[3][VIEWS];
    tn_tensor v = tn_state(g, "v", TN_F32, TN_DIMS(1, 2), NULL);
    assert_int_equal(tn_tensor_write(x, x0, sizeof x0), TN_OK);
    view_all(w, x, at[0]);
    tn_tensor of_input = tn_reshape(x, TN_DIMS(2)), label = tn_label(w, "the state itself");
    assert_int_equal(tn_tensor_write(x, w1, sizeof w1), TN_OK);
    holds(of_input, 3, 4, "a view of an input"), holds(x, 50, 60, "the input");
    tn_assign(w, tn_add_scalar(w, 10));
    view_all(w, x, at[1]);
    assert_int_equal(tn_tensor_write(w, w1, sizeof w1), TN_OK);
    view_all(w, x, at[2]);
    assert_int_equal(tn_graph_write_states(g, (const void *[]){ x0, w0 }), TN_OK);
    for (int i = 0; i < VIEWS; i++) {
        char what[32];
        snprintf(what, sizeof what, "view %d", i);
        holds(at[0][i], 1, 2, what), holds(at[1][i], 11, 12, what), holds(at[2][i], 50, 60, what);
    }
    holds(w, 3, 4, "the state"), holds(label, 3, 4, "its label"), holds(v, 1, 2, "another state");
    tn_assign(v, v); /* to itself */
    holds(v, 1, 2, "another state");
    tn_graph_free(g);
}

/* A network of the host's own making trains: parameters stay where they are computed. */
static void test_training(void **state) {
    (void)state;
    float x[32], w0[8], loss[2] = { 0 };
    for (int i = 0; i < 32; i++) x[i] = (float)((i * 7) % 11) / 11 - 0.5f;
    for (int i = 0; i < 8; i++) w0[i] = (float)((i * 5) % 7) / 7 - 0.4f;
    for (int device = 0; device < 2; device++) { /* the CPU's curve is what the other has to follow */
        tn_graph *g = tn_graph_immediate_on(ctx, "training", device ? on : "cpu");
        tn_tensor in = tn_input(g, "x", TN_F32, TN_DIMS(8, 4)), w = tn_state(g, "w", TN_F32, TN_DIMS(4, 2), w0), dw;
        assert_int_equal(tn_tensor_write(in, x, sizeof x), TN_OK);
        for (int step = 0; step < 5; step++) {
            tn_tensor y = tn_tanh(tn_matmul(in, w)), e = tn_add_scalar(y, -0.3), l = tn_mean(tn_mul(e, e), TN_ALL_AXES, 0);
            assert_int_equal(tn_grad(l, &w, 1, &dw), TN_OK);
            w = tn_sub(w, tn_mul_scalar(dw, 2));
            float now = scalar(l);
            assert_true(step == 0 || now < loss[device]);
            loss[device] = now;
        }
        tn_graph_free(g);
    }
    assert_true(distance(loss[0], loss[1]) <= 1e-6f);
}

static void test_missing_device(void **state) {
    (void)state;
    tn_graph *g = tn_graph_immediate_on(ctx, "nowhere", "abacus");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(3));
    assert_int_equal(x.id, 0);
    assert_int_not_equal(tn_graph_status(g), TN_OK);
    assert_non_null(strstr(tn_ctx_error(ctx), "abacus"));
    tn_graph_free(g);
}

int main(void) {
    tn_config cfg = { .struct_size = sizeof cfg, .realloc = counted, .cpu = getenv("TENON_CPU") };
    ctx = tn_ctx_new(&cfg);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_appear_at_once),
        cmocka_unit_test(test_many_operands),
        cmocka_unit_test(test_operand_without_value),
        cmocka_unit_test(test_backward_and_compiled_agree),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_long_loop),
        cmocka_unit_test(test_long_loop_at_once),
        cmocka_unit_test(test_nested_loops_at_once),
        cmocka_unit_test(test_values_stay),
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_missing_device),
    };
    int failed = 0;
    for (int i = 0; i < tn_device_count(); i++) {
        tn_device_info info;
        tn_status code = tn_device_get_info(ctx, i, &info);
        if (!strcmp(info.name, "null")) continue; /* computes nothing */
        if (code) {
            printf("skipped: device %s: %s\n", info.name, tn_ctx_error(ctx));
            continue;
        }
        on = info.name;
        printf("device %s\n", on);
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    }
    tn_ctx_free(ctx);
    return failed;
}
