/* test_rings.c - tn_run_n_from: rings that start anywhere, with traces, in every mode, against a plain loop. Labels: devices */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"

#include <math.h>
#include <string.h>

enum { RING = 5, WIDE = 3, MOST = 2 * RING + 3 };

/* s becomes s / 2 + x (the order of the steps matters), y is s x. */
static tn_program *build(tn_ctx *ctx, tn_mode mode) {
    tn_graph *g = tn_graph_new(ctx, "rings");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(WIDE)), s = tn_state(g, "s", TN_F32, TN_DIMS(WIDE), NULL);
    tn_tensor next = tn_add(tn_mul_scalar(s, 0.5), x);
    tn_assign(s, next);
    tn_output(tn_mul(next, x), "y");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    o.mode = mode, o.device = test_device();
    if (tn_compile(g, &o, &p)) fail_msg("%s", tn_ctx_error(ctx));
    tn_graph_free(g);
    return p;
}

static void by_mode(void **state) {
    (void)state;
    static const tn_mode modes[] = { TN_MODE_LOOP, TN_MODE_COMPILED, TN_MODE_GRAPH, TN_MODE_IMMEDIATE };
    float x[RING * WIDE], trace[MOST * WIDE], last[WIDE], zeros[WIDE] = { 0 };
    for (int i = 0; i < RING * WIDE; i++) x[i] = (float)(i + 1);
    for (size_t m = 0; m < COUNT_OF(modes); m++) {
        tn_ctx *ctx = test_ctx();
        tn_program *p = build(ctx, modes[m]);
        tn_session *s;
        if (tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
        int y = tn_session_slot(s, "y");
        for (int first = 0; first < RING; first++)
            for (int n = 0; n <= MOST; n++)
                for (int traced = 0; traced < 2; traced++) {
                    float want[WIDE] = { 0 }, product[MOST * WIDE] = { 0 };
                    for (int t = 0; t < n; t++)
                        for (int i = 0; i < WIDE; i++) {
                            float in = x[(first + t) % RING * WIDE + i];
                            want[i] = 0.5F * want[i] + in, product[t * WIDE + i] = want[i] * in;
                        }
                    for (int i = 0; i < MOST * WIDE; i++) trace[i] = -1;
                    if (tn_session_set(s, "s", zeros, sizeof zeros) ||
                        (traced ? tn_session_bind_trace(s, y, trace, n + 1) : tn_session_bind(s, y, last)) ||
                        tn_run_n_from(s, n, TN_BIND({ "x", x }), RING, first) || tn_session_bind(s, y, NULL))
                        fail_msg("mode %d, from %d, %d steps: %s", (int)modes[m], first, n, tn_session_error(s));
                    float got[WIDE];
                    if (tn_session_get(s, "s", got, sizeof got)) fail_msg("%s", tn_session_error(s));
                    for (int i = 0; i < WIDE; i++) assert_float_equal(got[i], want[i], 0);
                    for (int i = 0; traced && i < n * WIDE; i++) assert_float_equal(trace[i], product[i], 0);
                    for (int i = n * WIDE; traced && i < MOST * WIDE; i++) assert_float_equal(trace[i], -1, 0);
                    for (int i = 0; !traced && n && i < WIDE; i++) assert_float_equal(last[i], product[(n - 1) * WIDE + i], 0);
                }
        assert_int_equal(tn_run_n_from(s, 2, TN_BIND({ "x", x }), RING, RING), TN_ERR_INVAL);
        assert_non_null(strstr(tn_session_error(s), "tn_run_n_from: batch 5 of a ring of 5"));
        assert_int_equal(tn_run_n_from(s, 2, TN_BIND({ "x", x }), RING, -1), TN_ERR_INVAL);
        /* what is read counts, and no more: the output lies where the ring is not read, or where it is, at its start */
        float both[RING * WIDE];
        memcpy(both, x, sizeof both);
        assert_int_equal(tn_run_n_from(s, 2, TN_BIND({ "x", both }, { "y", both }), RING, 2), TN_OK);
        assert_int_equal(tn_run_n_from(s, 4, TN_BIND({ "x", both }, { "y", both }), RING, 2), TN_ERR_INVAL);
        assert_int_equal(tn_run_n_from(s, 2, TN_BIND({ "x", both }, { "y", both + 3 * WIDE }), RING, 2), TN_ERR_INVAL);
        tn_session_free(s), tn_program_free(p), tn_ctx_free(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(by_mode) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
