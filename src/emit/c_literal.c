/* c_literal.c - numbers as literals of C. */
#include "emit/emit.h"

#include <math.h>

void emit_float(str *out, tn_dtype t, double v) {
    const char *end = t == TN_F32 ? "f" : "", *sign = signbit(v) ? "-" : "";
    if (t == TN_F32) v = (double)(float)v;
    v = fabs(v);
    if (isnan(v)) {
        str_addf(out, "%s__builtin_nan%s(\"\")", sign, end);
    } else if (isinf(v)) {
        str_addf(out, "%s__builtin_inf%s()", sign, end);
    } else if (v < 1e6 && v == floor(v)) {
        str_addf(out, "%s%d.0%s", sign, (int)v, end);
    } else { /* a whole hexadecimal significand: no decimal point, which printf takes from the locale */
        int exponent;
        uint64_t digits = (uint64_t)ldexp(frexp(v, &exponent), 53);
        for (exponent -= 53; digits % 2 == 0; exponent++) digits /= 2;
        str_addf(out, "%s0x%llxp%d%s", sign, (unsigned long long)digits, exponent, end);
    }
}
