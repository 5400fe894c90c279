/* test_schedule.c - schedules through the C interface: the text of a program's schedules gives the same kernels; errors have
 * their codes; an older caller, whose options end before the field, has none. */
#include "support/support.h"
#include "tenon/tenon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static tn_graph *product(tn_ctx *ctx) {
    tn_graph *g = tn_graph_new(ctx, "product");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(20, 40)), w = tn_input(g, "w", TN_F32, TN_DIMS(40, 36));
    tn_output(tn_matmul(x, w), "y");
    return g;
}

static char *text_of(tn_ctx *ctx, tn_graph *g, const tn_compile_opts *o, const char *stage) {
    tn_program *p;
    char *text;
    if (tn_compile(g, o, &p)) fail_msg("%s", tn_ctx_error(ctx));
    if (tn_program_text(p, stage, &text)) fail_msg("%s", tn_ctx_error(ctx));
    tn_program_free(p);
    return text;
}

static void test_back(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = product(ctx);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = 1;
    char *steps = text_of(ctx, g, &o, "schedule"), *old = text_of(ctx, g, &o, "kernels");
    assert_non_null(strstr(steps, "\n  tile\n"));
    o.schedule = steps;
    char *now = text_of(ctx, g, &o, "kernels"), *again = text_of(ctx, g, &o, "schedule");
    assert_string_equal(now, old);
    assert_string_equal(again, steps);
    o.schedule = "";
    char *none = text_of(ctx, g, &o, "kernels");
    assert_string_equal(none, old);
    char *scalar = text_of(ctx, g, &o, "scalar");
    assert_non_null(strstr(scalar, ") scalar {"));
    tn_string_free(ctx, steps), tn_string_free(ctx, old), tn_string_free(ctx, now), tn_string_free(ctx, again);
    tn_string_free(ctx, none), tn_string_free(ctx, scalar);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

static void test_errors(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = product(ctx);
    static const struct {
        const char *schedule;
        tn_status code;
        const char *message;
    } cases[] = {
        { "schedule @none { tile }", TN_ERR_INVAL, "the program has no kernel of that name; its kernels are" },
        { "schedule", TN_ERR_PARSE, "schedule:1:9: expected @" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        tn_program *p;
        o.schedule = cases[i].schedule;
        assert_int_equal(tn_compile(g, &o, &p), cases[i].code);
        if (!strstr(tn_ctx_error(ctx), cases[i].message)) fail_msg("\"%s\": %s", cases[i].schedule, tn_ctx_error(ctx));
    }
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    o.schedule = "schedule @none { tile }", o.mode = TN_MODE_IMMEDIATE;
    assert_int_equal(tn_compile(g, &o, &p), TN_ERR_UNSUPPORTED);
    o.mode = TN_MODE_COMPILED, o.struct_size = offsetof(tn_compile_opts, schedule);
    assert_int_equal(tn_compile(g, &o, &p), TN_OK); /* a caller that knows no such field */
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* Steps of its own, with what a run computes. */
static void test_by_hand(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = product(ctx);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *s;
    float x[20 * 40], w[40 * 36], want[20 * 36], y[20 * 36];
    rng r = rng_make(7);
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = (float)rng_range(&r, -1, 1);
    for (size_t i = 0; i < sizeof w / sizeof *w; i++) w[i] = (float)rng_range(&r, -1, 1);
    static const char *const schedules[] = { "tile", "vectorize %s1 4; tile",
                                             "hoist; vectorize %s1 4; unroll_jam %s0 5; tile" };
    char *scalar = text_of(ctx, g, &o, "scalar"), name[64] = "", *at = strstr(scalar, "kernel @");
    assert_non_null(at);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 8, "("), at + 8);
    for (size_t i = 0; i < 20; i++)
        for (size_t j = 0; j < 36; j++) {
            double sum = 0;
            for (size_t k = 0; k < 40; k++) sum += (double)x[40 * i + k] * (double)w[36 * k + j];
            want[36 * i + j] = (float)sum;
        }
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        char steps[256], text[400];
        snprintf(steps, sizeof steps, schedules[i], "i", "i");
        snprintf(text, sizeof text, "schedule @%s { %s }", name, steps);
        o.schedule = text;
        if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s: %s", text, tn_ctx_error(ctx));
        memset(text, 'x', sizeof text - 1); /* the program does not need it any more */
        if (tn_run(s, TN_BIND({ "x", x }, { "w", w }, { "y", y }))) fail_msg("%s", tn_ctx_error(ctx));
        for (size_t j = 0; j < sizeof y / sizeof *y; j++) assert_true(y[j] - want[j] < 1e-4f && want[j] - y[j] < 1e-4f);
        tn_session_free(s);
        tn_program_free(p);
    }
    tn_string_free(ctx, scalar);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_back), cmocka_unit_test(test_errors),
                                        cmocka_unit_test(test_by_hand) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
