/* eval_element.c - the reference meaning of the elementwise ops: the expr column of ops.def, compiled as C once over double and
 * once over int64_t.
 *
 * In: one element of each operand. Out: one of the result; the caller wraps integers to their dtype.
 * Built with -fwrapv (see CMakeLists.txt): overflow of int64_t wraps. */
#include "eval/eval.h"

#include <math.h>

/* The sign of the divisor, as in NumPy: a zero result takes it too. */
static double mod_double(double x, double y) {
    double r = fmod(x, y);
    if (r == 0) return copysign(0.0, y);
    return (r < 0) != (y < 0) ? r + y : r;
}
static int64_t div_int(int64_t x, int64_t y) {
    if (y == 0) return 0;
    return y == -1 ? -x : x / y; /* INT64_MIN / -1 traps on x86 */
}
static int64_t mod_int(int64_t x, int64_t y) {
    if (y == 0 || y == -1) return 0;
    int64_t r = x % y;
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

/* Of numbers that are narrower than 64 bits the caller's wrapping shifts out what is above. */
static int64_t shift_left(int64_t x, int64_t y) { return y < 0 || y > 63 ? 0 : (int64_t)((uint64_t)x << y); }
static int64_t shift_right(int64_t x, int64_t y) { return x >> (y < 0 || y > 63 ? 63 : y); }

#define SEL(m, a, b) ((m) != 0 ? (a) : (b))
#define LT(a, b) ((a) < (b))
#define LE(a, b) ((a) <= (b))
#define EQ(a, b) ((a) == (b))
#define NE(a, b) ((a) != (b))
#define NOT(m) (!(m))
#define UNARY(name, cls, expr, ...) ROW_##cls(name, expr)
#define BINARY(name, cls, expr, ...) ROW_##cls(name, expr)
#define TERNARY(name, cls, expr, ...) ROW_##cls(name, expr)
#define OP(...)
#define ROW(name, expr)                                                                                                        \
    case OP_##name:                                                                                                            \
        return (expr);

/* Float operands, float result. */
#define K(v) ((double)(v))
#define DIV(a, b) ((a) / (b))
#define MOD(a, b) mod_double(a, b)
#define ABS(a) fabs(a)
#define FLOOR(a) floor(a)
#define CEIL(a) ceil(a)
#define RINT(a) rint(a)
#define SQRT(a) sqrt(a)
#define EXP(a) exp(a)
#define EXP2(a) exp2(a)
#define LOG(a) log(a)
#define LOG2(a) log2(a)
#define LOG1P(a) log1p(a)
#define EXPM1(a) expm1(a)
#define SIN(a) sin(a)
#define COS(a) cos(a)
#define TAN(a) tan(a)
#define ASIN(a) asin(a)
#define ACOS(a) acos(a)
#define ATAN(a) atan(a)
#define SINH(a) sinh(a)
#define COSH(a) cosh(a)
#define TANH(a) tanh(a)
#define ASINH(a) asinh(a)
#define ACOSH(a) acosh(a)
#define ATANH(a) atanh(a)
#define ATAN2(a, b) atan2(a, b)
#define HYPOT(a, b) hypot(a, b)
#define ERF(a) erf(a)
#define ERFC(a) erfc(a)
#define POW(a, b) pow(a, b)
#define ROW_FLT(name, expr) ROW(name, expr)
#define ROW_NUM(name, expr) ROW(name, expr)
#define ROW_ANY(name, expr) ROW(name, expr)
#define ROW_BIT(name, expr)
#define ROW_INT(name, expr)
#define ROW_LOG(name, expr)
#define ROW_CMP(name, expr)
double eval_element_float(op_code op, double x, double y, double z) {
    switch (op) {
#include "ir/ops.def"
    default:
        return NAN;
    }
}
#undef ROW_FLT
#undef ROW_NUM
#undef ROW_ANY
#undef ROW_CMP

/* Float operands, bool result. */
#define UNARY(name, cls, expr, ...) ROW_##cls(name, expr)
#define BINARY(name, cls, expr, ...) ROW_##cls(name, expr)
#define TERNARY(name, cls, expr, ...) ROW_##cls(name, expr)
#define OP(...)
#define ROW_FLT(name, expr)
#define ROW_NUM(name, expr)
#define ROW_ANY(name, expr)
#define ROW_CMP(name, expr) ROW(name, expr)
int64_t eval_element_compare(op_code op, double x, double y) {
    switch (op) {
#include "ir/ops.def"
    default:
        return 0;
    }
}
#undef ROW_NUM
#undef ROW_ANY
#undef ROW_BIT
#undef ROW_INT
#undef ROW_LOG
#undef K
#undef DIV
#undef MOD
#undef ABS

/* Integer or bool operands and result; the caller wraps. */
#define UNARY(name, cls, expr, ...) ROW_##cls(name, expr)
#define BINARY(name, cls, expr, ...) ROW_##cls(name, expr)
#define TERNARY(name, cls, expr, ...) ROW_##cls(name, expr)
#define OP(...)
#define K(v) ((int64_t)(v))
#define DIV(a, b) div_int(a, b)
#define MOD(a, b) mod_int(a, b)
#define ABS(a) ((a) < 0 ? -(a) : (a))
#define LSHIFT(a, b) shift_left(a, b)
#define RSHIFT(a, b) shift_right(a, b)
#define ROW_NUM(name, expr) ROW(name, expr)
#define ROW_ANY(name, expr) ROW(name, expr)
#define ROW_BIT(name, expr) ROW(name, expr)
#define ROW_INT(name, expr) ROW(name, expr)
#define ROW_LOG(name, expr) ROW(name, expr)
static int64_t element_int(op_code op, int64_t x, int64_t y, int64_t z) {
    switch (op) {
#include "ir/ops.def"
    default:
        return 0;
    }
}

/* The ops of u64 that differ from those of the same bits as i64. */
int64_t eval_element_int(op_code op, tn_dtype t, int64_t x, int64_t y, int64_t z) {
    const int64_t top = INT64_MIN; /* with it flipped, numbers are in the order of numbers with a sign */
    uint64_t a = (uint64_t)x, b = (uint64_t)y;
    if (t != TN_U64) return element_int(op, x, y, z);
    switch (op) {
    case OP_lt:
    case OP_le:
    case OP_gt:
    case OP_ge:
        return element_int(op, x ^ top, y ^ top, 0);
    case OP_max:
    case OP_min:
        return element_int(op, x ^ top, y ^ top, 0) ^ top;
    case OP_abs:
    case OP_relu:
        return x;
    case OP_sign:
        return x != 0;
    case OP_div:
        return b == 0 ? 0 : (int64_t)(a / b);
    case OP_mod:
        return b == 0 ? 0 : (int64_t)(a % b);
    case OP_shift_right:
        return b > 63 ? 0 : (int64_t)(a >> b);
    default:
        return element_int(op, x, y, z);
    }
}

int64_t eval_bits_of(tn_dtype t, double x) {
    if (t == TN_F32) {
        float narrow = (float)x;
        int32_t word;
        memcpy(&word, &narrow, sizeof word);
        return word;
    }
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

double eval_float_of(tn_dtype t, int64_t bits) {
    double x;
    if (t == TN_F32) {
        float narrow;
        int32_t word = (int32_t)bits;
        memcpy(&narrow, &word, sizeof narrow);
        return narrow;
    }
    memcpy(&x, &bits, sizeof x);
    return x;
}
