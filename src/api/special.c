/* special.c - functions of mathematical statistics as compositions: log10, erfinv, lgamma, digamma.
 *
 * In: floats. Out: compositions whose gradients are those of the function, not of how it is computed. lgamma and digamma are
 * computed in f64 whatever the dtype: sums of large terms that cancel near the function's zeros. */
#include "api/compose.h"

#include <math.h>

static val stopped(graph *g, val x) { return one(g, OP_stop_gradient, x); }
static val number(graph *g, val like, double v) { return graph_splat_like(g, like, v); }

/* Horner's rule, the coefficient of the highest power first. */
static val polynomial(graph *g, val x, const double *c, int n) {
    val p = number(g, x, c[0]);
    for (int i = 1; i < n; i++) p = with(g, OP_add, two(g, OP_mul, p, x), c[i]);
    return p;
}
#define POLYNOMIAL(g, x, ...)                                                                                                  \
    polynomial(g, x, (const double[]){ __VA_ARGS__ }, (int)(sizeof((double[]){ __VA_ARGS__ }) / sizeof(double)))

static void check_float(graph *g, val x) {
    if (!dtype_is_float(dtype_of(g, x))) FAIL(g, TN_ERR_DTYPE, "expected a float, got %s", dtype_name(dtype_of(g, x)));
}

static val build_log10(graph *g, const val *in, void *args) {
    (void)args;
    return with(g, OP_mul, one(g, OP_log, in[0]), 0.43429448190325182);
}
tn_tensor tn_log10(tn_tensor x) { return api_build(NULL, ONE("tn_log10", x), build_log10, NULL); }

/* ---- inverse error function ---- */

/* M. Giles, Approximating the erfinv function, GPU Computing Gems Jade, 2011: within 4 units of f32. */
static val erfinv_near(graph *g, val x) {
    val w = one(g, OP_neg, one(g, OP_log, two(g, OP_mul, two(g, OP_sub, number(g, x, 1), x), with(g, OP_add, x, 1))));
    val centre = POLYNOMIAL(g, with(g, OP_sub, w, 2.5), 2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06,
                            0.00021858087, -0.00125372503, -0.00417768164, 0.246640727, 1.50140941);
    val tail = POLYNOMIAL(g, with(g, OP_sub, one(g, OP_sqrt, w), 3), -0.000200214257, 0.000100950558, 0.00134934322,
                          -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682);
    return two(g, OP_mul, choose(g, with(g, OP_lt, w, 5), centre, tail), x);
}
static val inverse_slope(graph *g, val y) { /* sqrt(pi) / 2 exp(y^2) */
    return with(g, OP_mul, one(g, OP_exp, two(g, OP_mul, y, y)), 0.88622692545275801);
}
/* A step of Newton's method; in the tails for the logarithm of erfc, which is nearly a parabola there. */
static val erfinv_better(graph *g, val x, val y) {
    val a = one(g, OP_abs, x), b = one(g, OP_abs, y), tail = one(g, OP_erfc, b);
    val ratio = two(g, OP_div, two(g, OP_sub, number(g, a, 1), a), tail);
    val rest =
        choose(g, with(g, OP_lt, a, 0.5), two(g, OP_sub, one(g, OP_erf, b), a), two(g, OP_mul, tail, one(g, OP_log, ratio)));
    val step = two(g, OP_mul, rest, inverse_slope(g, b));
    return two(g, OP_mul, two(g, OP_sub, b, step), one(g, OP_sign, x));
}
/* Computed without a gradient; added is a Taylor series in x - x, which is 0 and has the derivatives. */
static val build_erfinv(graph *g, const val *in, void *args) {
    (void)args;
    check_float(g, in[0]);
    tn_dtype t = dtype_of(g, in[0]);
    val given = t == TN_F64 ? in[0] : graph_cast(g, in[0], TN_F32), x = stopped(g, given), y = erfinv_near(g, x);
    for (int i = 0; t == TN_F64 && i < 4; i++) y = erfinv_better(g, x, y);
    val inside = with(g, OP_lt, one(g, OP_abs, x), 1), zero = number(g, x, 0), off = two(g, OP_sub, given, x);
    val at_end = choose(g, with(g, OP_eq, one(g, OP_abs, x), 1), with(g, OP_mul, x, INFINITY), number(g, x, NAN));
    y = choose(g, inside, y, zero);
    val first = two(g, OP_mul, off, inverse_slope(g, y));
    val series = two(g, OP_add, first, two(g, OP_mul, y, two(g, OP_mul, first, first)));
    return graph_cast(g, choose(g, inside, two(g, OP_add, y, series), at_end), t);
}
tn_tensor tn_erfinv(tn_tensor x) { return api_build(NULL, ONE("tn_erfinv", x), build_erfinv, NULL); }

/* ---- gamma function ---- */

/* The argument of a function of x that is reflected below 1/2: z >= 1/2, and w = z, or z + SHIFT below 8, for a series in 1/w.
 */
enum { SHIFT = 7 };
typedef struct gamma_argument {
    val reflects, turn; /* bool; x - round(x) where it is reflected, else 1/4 */
    val z, small;       /* small: z < 8 */
    val w;
} gamma_argument;
static gamma_argument argument(graph *g, val x) {
    gamma_argument a = { .reflects = with(g, OP_lt, x, 0.5) };
    a.turn = choose(g, a.reflects, two(g, OP_sub, x, one(g, OP_round, x)), number(g, x, 0.25));
    a.z = choose(g, a.reflects, two(g, OP_sub, number(g, x, 1), x), x);
    a.small = with(g, OP_lt, a.z, 8);
    a.w = choose(g, a.small, with(g, OP_add, a.z, SHIFT), a.z);
    return a;
}
static val below_8(graph *g, const gamma_argument *a) { return choose(g, a->small, a->z, number(g, a->z, 8)); }

/* Stirling's series; gamma(z) = gamma(z + 7) / (z (z + 1) .. (z + 6)); gamma(x) gamma(1 - x) = pi / sin(pi x). */
static val build_lgamma(graph *g, const val *in, void *args) {
    (void)args;
    check_float(g, in[0]);
    val x = graph_cast(g, in[0], TN_F64);
    gamma_argument a = argument(g, x);
    val r = two(g, OP_div, number(g, x, 1), a.w), z = below_8(g, &a), product = z;
    val series = POLYNOMIAL(g, two(g, OP_mul, r, r), -3617.0 / 122400, 1.0 / 156, -691.0 / 360360, 1.0 / 1188, -1.0 / 1680,
                            1.0 / 1260, -1.0 / 360, 1.0 / 12);
    val main = two(g, OP_mul, with(g, OP_sub, a.w, 0.5), with(g, OP_sub, one(g, OP_log, a.w), 1));
    val y = two(g, OP_add, with(g, OP_add, main, 0.41893853320467274), two(g, OP_mul, series, r)); /* log(2 pi) / 2 - 1/2 */
    for (int k = 1; k < SHIFT; k++) product = two(g, OP_mul, product, with(g, OP_add, z, k));
    y = choose(g, a.small, two(g, OP_sub, y, one(g, OP_log, product)), y);
    val sine = one(g, OP_abs, one(g, OP_sin, with(g, OP_mul, a.turn, M_PI)));
    val turned = two(g, OP_sub, one(g, OP_log, two(g, OP_div, number(g, x, M_PI), sine)), y);
    return graph_cast(g, choose(g, a.reflects, turned, y), dtype_of(g, in[0]));
}
tn_tensor tn_lgamma(tn_tensor x) { return api_build(NULL, ONE("tn_lgamma", x), build_lgamma, NULL); }

/* The derivative of the above, term by term. */
static val build_digamma(graph *g, const val *in, void *args) {
    (void)args;
    check_float(g, in[0]);
    val x = graph_cast(g, in[0], TN_F64);
    gamma_argument a = argument(g, x);
    val r = two(g, OP_div, number(g, x, 1), a.w), square = two(g, OP_mul, r, r), z = below_8(g, &a), sum = number(g, x, 0);
    val series =
        POLYNOMIAL(g, square, 3617.0 / 8160, -1.0 / 12, 691.0 / 32760, -1.0 / 132, 1.0 / 240, -1.0 / 252, 1.0 / 120, -1.0 / 12);
    val y = two(g, OP_sub, one(g, OP_log, a.w), with(g, OP_mul, r, 0.5));
    y = two(g, OP_add, y, two(g, OP_mul, series, square));
    for (int k = 0; k < SHIFT; k++) sum = two(g, OP_add, sum, two(g, OP_div, number(g, x, 1), with(g, OP_add, z, k)));
    y = choose(g, a.small, two(g, OP_sub, y, sum), y);
    val slope = two(g, OP_div, number(g, x, M_PI), one(g, OP_tan, with(g, OP_mul, a.turn, M_PI)));
    return graph_cast(g, choose(g, a.reflects, two(g, OP_sub, y, slope), y), dtype_of(g, in[0]));
}
tn_tensor tn_digamma(tn_tensor x) { return api_build(NULL, ONE("tn_digamma", x), build_digamma, NULL); }
