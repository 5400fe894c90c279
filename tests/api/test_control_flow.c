/* test_control_flow.c - tn_if, tn_while, tn_scan as their users see them: values against the same computation by hand, in
 * graphs and in immediate graphs; what bodies use of the outside; errors with op, body, both types and place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <tenon/tenon.h>

typedef struct world {
    tn_ctx *ctx;
    tn_graph *g;
    tn_tensor a, b; /* from outside */
} world;

static world world_new(bool immediate) {
    world w = { .ctx = tn_ctx_new(NULL) };
    w.g = immediate ? tn_graph_immediate(w.ctx, "w") : tn_graph_new(w.ctx, "w");
    assert_non_null(w.g);
    return w;
}
static void world_free(world *w) {
    tn_graph_free(w->g);
    tn_ctx_free(w->ctx);
}

/* The values of f32 tensors. */
static void values_of(world *w, const tn_tensor *x, int n, float **out) {
    if (tn_graph_status(w->g)) fail_msg("%s", tn_ctx_error(w->ctx));
    tn_program *p;
    tn_session *s;
    if (tn_tensor_read(x[0], out[0], tn_tensor_bytes(x[0])) == TN_OK) {
        for (int i = 0; i < n; i++) assert_int_equal(tn_tensor_read(x[i], out[i], tn_tensor_bytes(x[i])), TN_OK);
        return;
    }
    for (int i = 0; i < n; i++) {
        char name[8];
        snprintf(name, sizeof name, "y%d", i);
        tn_output(x[i], name);
    }
    if (tn_compile(w->g, NULL, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(w->ctx));
    for (int i = 0; i < n; i++) assert_int_equal(tn_session_bind(s, i, out[i]), TN_OK);
    if (tn_session_run(s)) fail_msg("%s", tn_session_error(s));
    tn_session_free(s);
    tn_program_free(p);
}

static tn_tensor floats(tn_graph *g, int n, const float *v) { return tn_const(g, TN_F32, TN_DIMS(n), v); }

/* ---- scan ---- */

/* h = a h + x_t; y = h b, with a nested choice of which sign y has. */
static void positive(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g, (void)in;
    out[0] = ((tn_tensor *)ud)[0];
}
static void negative(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g, (void)in;
    out[0] = tn_neg(((tn_tensor *)ud)[0]);
}
static void recur(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    const world *w = ud;
    tn_tensor h = tn_add(tn_mul(in[0], w->a), in[1]), y = tn_mul(h, w->b);
    tn_tensor sum = tn_sum(h, NULL, -1, 0);
    out[0] = h;
    out[1] = tn_if(tn_gt(sum, tn_full(g, TN_F32, TN_SCALAR, 3)), positive, negative, &y, NULL, 1);
}

static void check_scan(bool immediate, bool reverse, int64_t count) {
    static const float a[2] = { 0.5F, 2 }, b[2] = { 3, -1 }, h0[2] = { 1, 2 }, x[8] = { 1, 2, 3, 4, 5, -60, 7, 8 };
    world w = world_new(immediate);
    w.a = floats(w.g, 2, a), w.b = floats(w.g, 2, b);
    tn_tensor h = floats(w.g, 2, h0), xs = tn_const(w.g, TN_F32, TN_DIMS(4, 2), x), out[2];
    tn_scan_opts o = { .carry = &h, .n_carry = 1, .xs = &xs, .n_xs = 1, .n_ys = 1, .reverse = reverse };
    if (count != 4) o.count = tn_const(w.g, TN_I64, TN_SCALAR, &count);
    tn_scan(w.g, &o, recur, &w, out);
    float got_h[2], got_y[8], want_h[2] = { h0[0], h0[1] }, want_y[8] = { 0 };
    values_of(&w, out, 2, (float *[]){ got_h, got_y });
    int64_t n = count < 0 ? 0 : count > 4 ? 4 : count;
    for (int64_t i = 0; i < n; i++) {
        int64_t t = reverse ? n - 1 - i : i;
        for (int k = 0; k < 2; k++) want_h[k] = want_h[k] * a[k] + x[2 * t + k];
        for (int k = 0; k < 2; k++) want_y[2 * t + k] = want_h[k] * b[k] * (want_h[0] + want_h[1] > 3 ? 1 : -1);
    }
    for (int k = 0; k < 2; k++) assert_float_equal(got_h[k], want_h[k], 1e-5F);
    for (int k = 0; k < 8; k++) assert_float_equal(got_y[k], want_y[k], 1e-4F);
    world_free(&w);
}
static void test_scan(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int64_t count = -1; count < 7; count += 2) {
            check_scan(i & 1, i & 2, count);
            check_scan(i & 1, i & 2, 4);
        }
}

/* ---- while ---- */

static void is_small(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g;
    out[0] = tn_lt(tn_reshape(in[1], TN_SCALAR), ((world *)ud)->a);
}
static void next(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g;
    out[0] = in[1];
    out[1] = tn_add(tn_add(in[0], in[1]), ((world *)ud)->b);
}
static void test_while(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        world w = world_new(i & 1);
        float limit = 50, one = 1, got[2], x = 0, y = 1, most = i & 2 ? 3 : 1e9F;
        w.a = tn_const(w.g, TN_F32, TN_SCALAR, &limit), w.b = floats(w.g, 1, &one);
        tn_tensor init[2] = { floats(w.g, 1, &x), floats(w.g, 1, &y) }, out[2];
        tn_while(w.g, init, 2, is_small, next, &w, i & 2 ? 3 : 0, out);
        values_of(&w, out, 2, (float *[]){ &got[0], &got[1] });
        for (float step = 0; y < limit && step < most; step++) {
            float z = x + y + 1;
            x = y, y = z;
        }
        assert_float_equal(got[0], x, 0);
        assert_float_equal(got[1], y, 0);
        world_free(&w);
    }
}

/* ---- errors ---- */

static void wrong_shape(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)ud, (void)in;
    out[0] = tn_full(g, TN_F32, TN_DIMS(3), 1);
}
static void copy_of(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g;
    if (ud) *(tn_tensor *)ud = tn_neg(in[0]);
    out[0] = ud ? *(tn_tensor *)ud : in[0];
}
static void from_outside(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g, (void)in;
    out[0] = *(tn_tensor *)ud;
}
static void nothing(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) { (void)g, (void)ud, (void)in, (void)out; }
static void makes_output(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g, (void)ud;
    tn_output(out[0] = in[0], "y");
}

static void expect_error(world *w, tn_status code, const char *a, const char *b) {
    const char *text = tn_ctx_error(w->ctx);
    assert_int_equal(tn_graph_status(w->g), code);
    if (!strstr(text, a) || !strstr(text, b) || !strstr(text, "test_control_flow.c:"))
        fail_msg("expected \"%s\" and \"%s\" in: %s", a, b, text);
    world_free(w);
}

static void test_errors(void **state) {
    (void)state;
    float v[2] = { 1, 2 };
    tn_tensor leaked;
    for (int i = 0; i < 9; i++) {
        world w = world_new(false), other = world_new(false);
        tn_tensor x = floats(w.g, 2, v), far = floats(other.g, 2, v), c = tn_full(w.g, TN_BOOL, TN_SCALAR, 1);
        tn_tensor stack = tn_full(w.g, TN_F32, TN_DIMS(5, 2), 0);
        tn_scan_opts o = { .carry = &x, .n_carry = 1, .length = 4 }, xs = { .xs = &stack, .n_xs = 1, .n_ys = 1, .length = 4 };
        switch (i) {
        case 0:
            tn_scan(w.g, &o, wrong_shape, NULL, NULL);
            expect_error(&w, TN_ERR_SHAPE, "tn_scan(", "result 0 of body is f32[3], must be f32[2] as what it begins with");
            break;
        case 1:
            tn_while(w.g, &x, 1, copy_of, copy_of, NULL, 0, NULL);
            expect_error(&w, TN_ERR_DTYPE, "tn_while(", "condition gives f32[2], must give bool[]");
            break;
        case 2:
            tn_scan(w.g, &o, from_outside, &far, NULL);
            expect_error(&w, TN_ERR_INVAL, "tn_scan(", "belongs to another graph");
            break;
        case 3:
            tn_scan(w.g, &o, copy_of, &leaked, NULL);
            tn_neg(leaked);
            expect_error(&w, TN_ERR_INVAL, "tn_neg(", "inside of a body that has been built");
            break;
        case 4:
            tn_if(c, from_outside, wrong_shape, &x, NULL, 1);
            expect_error(&w, TN_ERR_SHAPE, "tn_if(",
                         "result 0 of otherwise is f32[3], must be f32[2] as that of the other body");
            break;
        case 5:
            tn_if(x, from_outside, from_outside, &x, NULL, 1);
            expect_error(&w, TN_ERR_DTYPE, "tn_if(f32[2]", "expected operand 0 to be bool[]");
            break;
        case 6:
            tn_scan(w.g, &o, nothing, NULL, NULL);
            expect_error(&w, TN_ERR_INVAL, "tn_scan(", "operand 1 is not a tensor of this graph");
            break;
        case 7:
            tn_scan(w.g, &xs, copy_of, NULL, NULL);
            expect_error(&w, TN_ERR_SHAPE, "tn_scan(f32[5,2]", "stack 0 is f32[5,2], must be of 4 slices");
            break;
        default:
            tn_scan(w.g, &o, makes_output, NULL, NULL);
            expect_error(&w, TN_ERR_INVAL, "tn_output(", "is inside a region");
        }
        world_free(&other);
    }
    assert_int_equal(tn_scan(NULL, NULL, NULL, NULL, NULL).id, 0);
    world w = world_new(false);
    assert_int_equal(tn_scan(w.g, NULL, NULL, NULL, NULL).id, 0);
    world_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_scan), cmocka_unit_test(test_while),
                                        cmocka_unit_test(test_errors) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
