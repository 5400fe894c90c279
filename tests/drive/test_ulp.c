/* test_ulp.c - the error of every f32 unary op of compiled kernels, measured in units in the last place over every 4099th of
 * all arguments and over its own domain, stays within the bound that ops.def states; of pow, mod and div over pairs. `tenon
 * bench ulp
 * --all` does the same with all arguments.
 *
 * Labels: slow
 * The exact value is taken from the evaluator's double, whose own error is below 1e-8 of an f32 unit. Prints the table of
 * measured errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <math.h>

#include "api/api.h"
#include "drive/drive.h"
#include "support/support.h"

enum { N = 1 << 18, STEP = 4099, ROUNDS = 6, N_LANES_ODD = 5 };

typedef struct worst {
    double ulp;
    float x, got;
} worst;

/* |got - want| in units of the last place of an f32 near want. Infinity counts as 2^128, the value after the largest. */
static double error_of(float got, double want) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (want == 0 && got == 0) return !signbit(want) == !signbit(got) ? 0 : INFINITY;
    double limit = 0x1p128, g = isinf(got) ? copysign(limit, (double)got) : (double)got;
    double w = fabs(want) > limit ? copysign(limit, want) : want;
    int e;
    frexp(w, &e); /* w = m * 2^e with m in [1/2, 1) */
    if (e < -125) e = -125;
    if (e > 128) e = 128;
    return fabs(g - w) / ldexp(1, e - 24);
}

static float from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static const float specials[] = {
    0.0f,          -0.0f,      INFINITY,        -INFINITY,        NAN,        1.0f,       -1.0f,      0x1p-149f, -0x1p-149f,
    0x1p-126f,     -0x1p-126f, 0x1.fffffep127f, -0x1.fffffep127f, 0.5f,       -0.5f,      2.0f,       -2.0f,     0x1.fffffep-1f,
    0x1.000002p0f, 1e5f,       -1e5f,           0x1.86a002p16f,   88.72284f,  88.72283f,  89.4160f,   89.41600f, -103.97f,
    -87.34f,       3.0f,       -3.0f,           4097.0f,          3.1415927f, 1.5707964f, 0.7853982f, 0x1p24f,   0x1.fffffep23f,
    0.9f,          0.55f
};

/* Rounds 0 to 3: every 4099th bit pattern, so every exponent, denormals, infinities and NaN. Round 4: the op's own domain.
 * Round 5: special values, and arguments near 0 and near 1, where formulas change. */
static float argument(rng *r, const op_info *info, int round, int64_t i) {
    if (round < 4) return from_bits((uint32_t)(((uint64_t)round * N + (uint64_t)i) * STEP));
    if (round == 4) return (float)rng_range(r, info->lo, info->hi);
    if (i < (int64_t)COUNT_OF(specials)) return specials[i];
    double x = ldexp(rng_range(r, -1, 1), (int)rng_between(r, -12, 7));
    return (float)(i % 2 ? x : 1 + x / 128);
}

static bool measured(op_code op) {
    return op_is_elementwise(op) && op_get(op)->arity == 1 && (op_get(op)->cls == CL_FLT || op_get(op)->cls == CL_NUM);
}

static void run(tn_session *s, const tn_program *p, float *const *x, float *const *y) {
    for (int i = 0; i < p->n_io; i++) {
        int op = atoi(p->io[i].name + 1);
        assert_int_equal(tn_session_bind(s, i, p->io[i].is_output ? y[op] : x[op]), TN_OK);
    }
    assert_int_equal(tn_session_run(s), TN_OK);
}

static void measure(op_code op, const float *x, const float *y, worst *w) {
    for (int64_t i = 0; i < N + N_LANES_ODD; i++) {
        double e = error_of(y[i], eval_element_float(op, (double)x[i], 0, 0));
        if (e > w->ulp || (i == 0 && w->ulp < 0)) *w = (worst){ e, x[i], y[i] };
    }
}

/* The bound of what is measured here: CUDA's own exp, and what is made of it, may be further off (emit/clike/languages.c). */
static double bound_of(op_code op) { return op == OP_exp ? 1.25 : op == OP_sigmoid ? 2.5 : op_get(op)->ulp; }

ARENA_TEST(test_unary_ulp) {
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    graph *g = graph_make(a, "ulp");
    int64_t n = N + N_LANES_ODD;
    float *x[N_OPS] = { NULL }, *y[N_OPS] = { NULL };
    worst w[N_OPS];
    for (int op = 1; op < N_OPS; op++) {
        if (!measured((op_code)op)) continue;
        x[op] = ARENA_ARRAY(a, float, n), y[op] = ARENA_ARRAY(a, float, n);
        w[op] = (worst){ -1, 0, 0 };
        spec s = { .op = OP_input, .dtype = TN_F32, .rank = 1, .dims = &n, .name = arena_printf(a, "x%d", op) };
        graph_output(g, arena_printf(a, "y%d", op), graph_unary(g, (op_code)op, graph_add(g, &s)));
    }
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p = NULL;
    tn_session *s = NULL;
    if (drive_compile(ctx, g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    rng r = rng_make(77);
    for (int round = 0; round < ROUNDS; round++) {
        for (int op = 1; op < N_OPS; op++)
            for (int64_t i = 0; x[op] && i < n; i++) x[op][i] = argument(&r, op_get((op_code)op), round, i);
        run(s, p, x, y);
        for (int op = 1; op < N_OPS; op++)
            if (x[op]) measure((op_code)op, x[op], y[op], &w[op]);
    }
    int bad = 0;
    printf("%-14s %10s %6s   at\n", "op", "max ulp", "bound");
    for (int op = 1; op < N_OPS; op++) {
        if (!x[op]) continue;
        bool over = !(w[op].ulp <= bound_of((op_code)op));
        bad += over;
        printf("%-14s %10.3f %6.2f   %.9g%s\n", op_get((op_code)op)->name, w[op].ulp, bound_of((op_code)op), (double)w[op].x,
               over ? "   ABOVE ITS BOUND" : "");
    }
    tn_session_free(s);
    tn_program_free(p);
    tn_ctx_free(ctx);
    assert_int_equal(bad, 0);
}

/* ---- pairs ---- */

/* All pairs of special values first; then any bits, numbers around 1 with exponents that do not overflow, whole numbers. */
static void pair(rng *r, int64_t i, float *x, float *y) {
    int64_t n = COUNT_OF(specials);
    if (i < n * n) {
        *x = specials[i / n], *y = specials[i % n];
    } else if (i % 3 == 0) {
        *x = from_bits((uint32_t)rng_next(r)), *y = from_bits((uint32_t)rng_next(r));
    } else if (i % 3 == 1) {
        *x = (float)exp(rng_range(r, -1, 1) * (i % 2 ? 1 : 20)), *y = (float)rng_range(r, i % 2 ? -120 : -4, i % 2 ? 120 : 4);
    } else {
        *x = (float)rng_between(r, -20, 20), *y = (float)rng_between(r, -10, 10);
    }
}

ARENA_TEST(test_binary_ulp) {
    static const op_code ops[] = { OP_pow, OP_mod, OP_div };
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    graph *g = graph_make(a, "ulp");
    int64_t n = N + N_LANES_ODD;
    float *x = ARENA_ARRAY(a, float, n), *y = ARENA_ARRAY(a, float, n), *z[COUNT_OF(ops)];
    val in[2];
    for (int i = 0; i < 2; i++)
        in[i] = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .rank = 1, .dims = &n, .name = i ? "y" : "x" });
    for (size_t k = 0; k < COUNT_OF(ops); k++) {
        z[k] = ARENA_ARRAY(a, float, n);
        graph_output(g, arena_printf(a, "z%d", (int)k), graph_binary(g, ops[k], in[0], in[1]));
    }
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p = NULL;
    tn_session *s = NULL;
    if (drive_compile(ctx, g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    rng r = rng_make(78);
    for (int64_t i = 0; i < n; i++) pair(&r, i, &x[i], &y[i]);
    for (int i = 0; i < p->n_io; i++) {
        const char *name = p->io[i].name;
        float *data = name[0] == 'x' ? x : name[0] == 'y' ? y : z[name[1] - '0'];
        assert_int_equal(tn_session_bind(s, i, data), TN_OK);
    }
    assert_int_equal(tn_session_run(s), TN_OK);
    int bad = 0;
    for (size_t k = 0; k < COUNT_OF(ops); k++) {
        const op_info *info = op_get(ops[k]);
        double worst = 0;
        for (int64_t i = 0; i < n; i++) {
            double e = error_of(z[k][i], eval_element_float(ops[k], (double)x[i], (double)y[i], 0));
            if (e > worst) worst = e;
            if (!(e <= info->ulp) && bad++ < 10)
                printf("%s(%.9g, %.9g) = %.9g: %g ulp\n", info->name, (double)x[i], (double)y[i], (double)z[k][i], e);
        }
        printf("%-14s %10.3f %6.2f\n", info->name, worst, info->ulp);
    }
    tn_session_free(s);
    tn_program_free(p);
    tn_ctx_free(ctx);
    assert_int_equal(bad, 0);
}

/* Several functions of one argument in one kernel, whose common products must not cost them their exactness: near multiples of
 * pi/2 and anywhere in the range of the reduction. */
ARENA_TEST(test_shared_argument) {
    static const op_code ops[] = { OP_sin, OP_cos, OP_tan };
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    graph *g = graph_make(a, "shared");
    int64_t n = N + N_LANES_ODD;
    float *x = ARENA_ARRAY(a, float, n), *y[COUNT_OF(ops)];
    val in = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .rank = 1, .dims = &n, .name = "x" });
    for (size_t k = 0; k < COUNT_OF(ops); k++) {
        y[k] = ARENA_ARRAY(a, float, n);
        graph_output(g, arena_printf(a, "%d", (int)k), graph_unary(g, ops[k], in));
    }
    rng r = rng_make(79);
    for (int64_t i = 0; i < n; i++)
        x[i] = i == 0       ? 52516.4336f /* within 1e-8 of an odd multiple */
               : i % 2 == 0 ? (float)rng_range(&r, -1.1e5, 1.1e5)
                            : (float)((double)rng_between(&r, -70000, 70000) * 1.5707963267948966);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p = NULL;
    tn_session *s = NULL;
    if (drive_compile(ctx, g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 0; i < p->n_io; i++)
        assert_int_equal(tn_session_bind(s, i, p->io[i].is_output ? y[atoi(p->io[i].name)] : x), TN_OK);
    assert_int_equal(tn_session_run(s), TN_OK);
    for (size_t k = 0; k < COUNT_OF(ops); k++)
        for (int64_t i = 0; i < n; i++) {
            double e = error_of(y[k][i], eval_element_float(ops[k], (double)x[i], 0, 0));
            if (!(e <= op_get(ops[k])->ulp)) fail_msg("%s(%.9g): %g ulp", op_get(ops[k])->name, (double)x[i], e);
        }
    tn_session_free(s);
    tn_program_free(p);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_unary_ulp), cmocka_unit_test(test_binary_ulp),
                                        cmocka_unit_test(test_shared_argument) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
