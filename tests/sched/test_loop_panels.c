/* test_loop_panels.c - a matrix that all iterations multiply by lies in panels before the loop: the same numbers as op by op,
 * on any number of threads; where it changes, is constant or there is little to do, the loop stays as it was. All numbers are
 * whole and small, so that no order of a sum rounds. */
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

typedef struct form {
    const char *name;
    bool panels; /* are expected */
    int64_t rows, wide, times;
    bool turned, constant, computed, carried, nested, twice, f64;
} form;

static const form forms[] = {
    { "as it lies", true, 12, 128, 5 },
    { "turned", true, 12, 128, 5, .turned = true },
    { "one row more than tiles", true, 13, 192, 4 },
    { "f64", true, 9, 128, 4, .f64 = true },
    { "computed before the loop", true, 16, 128, 5, .computed = true },
    { "two products", true, 16, 128, 5, .twice = true },
    { "a loop in a loop", true, 12, 128, 5, .nested = true },
    { "constant", false, 12, 128, 5, .constant = true },
    { "another one in each iteration", false, 12, 128, 5, .carried = true },
    { "few rows", false, 4, 128, 5 },
    { "few iterations", false, 12, 128, 3 },
    { "small", false, 12, 64, 5 },
    { "columns that fill no panel", false, 12, 132, 5 },
};

static tn_tensor small(tn_graph *g, tn_tensor x) { /* x modulo 4 */
    tn_tensor four = tn_full(g, tn_tensor_dtype(x), TN_SCALAR, 4);
    return tn_sub(x, tn_mul(tn_floor(tn_div(x, four)), four));
}

static tn_tensor times_w(const form *f, tn_tensor h, tn_tensor w) {
    const int64_t one = 1, axis = f->turned;
    return tn_dot(h, w, NULL, NULL, 0, &one, &axis, 1);
}

typedef struct seen {
    const form *f;
    tn_tensor w;
} seen;

/* in: h, with .carried w. */
static void body(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    const seen *s = ud;
    tn_tensor w = s->f->carried ? in[1] : s->w, u = times_w(s->f, in[0], w);
    if (s->f->twice) u = tn_add(u, tn_matmul(small(g, u), tn_permute(w, TN_INTS(1, 0))));
    out[0] = small(g, tn_add(u, in[0]));
    if (s->f->carried) out[1] = tn_flip(w, TN_INTS(0));
}

static void outer(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    const seen *s = ud;
    tn_scan_opts o = { .carry = in, .n_carry = 1, .length = s->f->times };
    tn_scan(g, &o, body, ud, out);
}

static void build(tn_graph *g, const form *f) {
    tn_dtype t = f->f64 ? TN_F64 : TN_F32;
    tn_tensor h = tn_floor(tn_input(g, "h", t, TN_DIMS(f->rows, f->wide))), out[2], carry[2];
    tn_shape square = TN_DIMS(f->wide, f->wide);
    tn_tensor w = f->constant ? tn_state(g, "w", t, square, NULL) : tn_input(g, "w", t, square);
    if (f->computed) w = tn_floor(tn_mul(w, w));
    seen s = { f, w };
    carry[0] = small(g, h), carry[1] = w;
    tn_scan_opts o = { .carry = carry, .n_carry = 1 + f->carried, .length = f->nested ? 4 : f->times };
    tn_scan(g, &o, f->nested ? outer : body, &s, out);
    tn_output(out[0], "y");
}

static void run(tn_graph *g, const form *f, int fusion, int threads, void *h, void *w, void *y) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *s;
    char *text;
    o.fusion = fusion, o.threads = threads, o.check = 1;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(tn_graph_ctx(g)));
    assert_int_equal(tn_session_bind(s, tn_session_slot(s, "h"), h), TN_OK);
    if (!f->constant) assert_int_equal(tn_session_bind(s, tn_session_slot(s, "w"), w), TN_OK);
    assert_int_equal(tn_session_bind(s, tn_session_slot(s, "y"), y), TN_OK);
    for (int i = 0; i < 2; i++) assert_int_equal(tn_session_run(s), TN_OK);
    assert_int_equal(tn_program_text(p, "plan", &text), TN_OK);
    const char *at = strstr(text, "kernel @panels_");
    if (fusion && (at != NULL) != f->panels) fail_msg("%s: %s panels", f->name, at ? "unexpected" : "no");
    if (at && f->twice && !strstr(at + 1, "kernel @panels_")) fail_msg("%s: one product has no panels", f->name);
    tn_string_free(tn_graph_ctx(g), text);
    tn_session_free(s), tn_program_free(p);
}

static void test_forms(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    rng r = rng_make(7);
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        const form *f = &forms[i];
        tn_dtype t = f->f64 ? TN_F64 : TN_F32;
        size_t bytes = (size_t)(f->rows * f->wide) * tn_dtype_size(t);
        tn_graph *g = tn_graph_new(ctx, "loop");
        build(g, f);
        char *h = malloc(bytes), *w = malloc((size_t)(f->wide * f->wide) * tn_dtype_size(t)), *want = malloc(bytes),
             *got = malloc(bytes);
        fill_random(&r, t, h, f->rows * f->wide, 0, 4);
        for (int64_t k = 0; k < f->wide * f->wide; k++) {
            double x = (double)rng_below(&r, 3);
            if (f->f64)
                ((double *)w)[k] = x;
            else
                ((float *)w)[k] = (float)x;
        }
        run(g, f, 0, 1, h, w, want);
        for (int threads = 1; threads <= 3; threads++) {
            memset(got, 0x7e, bytes);
            run(g, f, 3, threads, h, w, got);
            if (memcmp(got, want, bytes)) fail_msg("%s, %d threads: not what op by op gives", f->name, threads);
        }
        free(h), free(w), free(want), free(got);
        tn_graph_free(g);
    }
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_forms) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
