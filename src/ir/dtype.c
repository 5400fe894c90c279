/* dtype.c - implementation of dtype.h. Arrays are read and written through memcpy: they may be unaligned (files, arenas). */
#include "ir/dtype.h"

#include <math.h>

static const tn_dtype_info infos[TN_N_DTYPES] = {
#define DTYPE(id, name, kind, bytes, digits, tiny, lo, hi, arithmetic, reg, word, numpy, safetensors, onnx, dlpack)            \
    [TN_##id] = { name, TN_KIND_##kind, bytes, lo, hi, arithmetic, word, numpy, safetensors, onnx, dlpack },
#include "ir/dtype.def"
};
static const struct {
    int8_t digits;
    int16_t tiny;
    uint8_t reg;
} rows[TN_N_DTYPES] = {
#define DTYPE(id, name, kind, bytes, digits, tiny, lo, hi, arithmetic, reg, ...) [TN_##id] = { digits, tiny, TN_##reg },
#include "ir/dtype.def"
};

const tn_dtype_info *dtype_info(tn_dtype t) { return (unsigned)t < TN_N_DTYPES ? &infos[t] : NULL; }
const char *dtype_name(tn_dtype t) { return (unsigned)t < TN_N_DTYPES ? infos[t].name : "?"; }
tn_dtype dtype_reg(tn_dtype t) { return (unsigned)t < TN_N_DTYPES ? (tn_dtype)rows[t].reg : t; }

bool dtype_find(const char *name, size_t n, tn_dtype *out) {
    for (int i = 0; i < TN_N_DTYPES; i++)
        if (strlen(infos[i].name) == n && !memcmp(infos[i].name, name, n)) {
            *out = (tn_dtype)i;
            return true;
        }
    return false;
}

bool dtype_holds(tn_dtype t, tn_dtype x) {
    if (t == x || x == TN_BOOL) return true;
    if (t == TN_BOOL || (dtype_is_float(x) && !dtype_is_float(t))) return false;
    bool within = infos[x].lo >= infos[t].lo && infos[x].hi <= infos[t].hi;
    if (!dtype_is_float(t)) return within && rows[x].digits <= rows[t].digits; /* hi of 64 bits is rounded */
    return within && rows[x].digits <= rows[t].digits && rows[x].tiny >= rows[t].tiny;
}
double dtype_roundoff(tn_dtype t) { return dtype_is_float(t) ? ldexp(1, -rows[t].digits) : 0; }
double dtype_smallest_normal(tn_dtype t) {
    if (!dtype_is_float(t)) t = TN_F32;
    return ldexp(1, rows[t].tiny + rows[t].digits - 1);
}
int64_t dtype_min_int(tn_dtype t) { return dtype_kind(t) == TN_KIND_INT ? -(INT64_MAX >> (63 - rows[t].digits)) - 1 : 0; }
int64_t dtype_max_int(tn_dtype t) {
    return dtype_size(t) == 8 && dtype_is_unsigned(t) ? -1 : INT64_MAX >> (63 - rows[t].digits);
}
bool dtype_less(tn_dtype t, int64_t x, int64_t y) { return dtype_is_unsigned(t) ? (uint64_t)x < (uint64_t)y : x < y; }

#define LOAD(type)                                                                                                             \
    type e;                                                                                                                    \
    memcpy(&e, (const char *)data + (size_t)i * sizeof e, sizeof e)
#define STORE(type, v)                                                                                                         \
    type e = (type)(v);                                                                                                        \
    memcpy((char *)data + (size_t)i * sizeof e, &e, sizeof e)

/* The 8-bit floats. What is above the largest number is infinity or, of e4m3, NaN. */
static double fp8_value(tn_dtype t, uint8_t bits) {
    int fraction = rows[t].digits - 1, b = bits & 0x7f, exponent = b >> fraction;
    double v =
        exponent ? ldexp((b & ((1 << fraction) - 1)) | 1 << fraction, exponent - 1 + rows[t].tiny) : ldexp(b, rows[t].tiny);
    if (v > infos[t].hi) v = t == TN_F8E5M2 && b == 0x7c ? (double)INFINITY : (double)NAN;
    return bits & 0x80 ? -v : v;
}
static uint8_t fp8_bits(tn_dtype t, double v) {
    uint8_t sign = signbit(v) ? 0x80 : 0, beyond = t == TN_F8E5M2 ? 0x7c : 0x7f;
    double a = fabs(v);
    if (isnan(v)) return 0x7f;
    if (isinf(v)) return sign | beyond;
    int exponent = rows[t].tiny;
    if (a > 0 && ilogb(a) - rows[t].digits + 1 > exponent) exponent = ilogb(a) - rows[t].digits + 1;
    double places = rint(ldexp(a, -exponent));
    if (ldexp(places, exponent) > infos[t].hi) return sign | beyond;
    return (uint8_t)(sign | (((exponent - rows[t].tiny) << (rows[t].digits - 1)) + (int)places));
}

double dtype_load(tn_dtype t, const void *data, int64_t i) {
    switch (t) {
    case TN_F32: {
        LOAD(float);
        return (double)e;
    }
    case TN_F64: {
        LOAD(double);
        return e;
    }
    case TN_F16: {
        LOAD(uint16_t);
        return (double)half_to_f32(e);
    }
    case TN_BF16: {
        LOAD(uint16_t);
        return (double)bf16_to_f32(e);
    }
    case TN_F8E4M3:
    case TN_F8E5M2: {
        LOAD(uint8_t);
        return fp8_value(t, e);
    }
    case TN_U64:
        return (double)(uint64_t)dtype_load_int(t, data, i);
    default:
        return (double)dtype_load_int(t, data, i);
    }
}

int64_t dtype_load_int(tn_dtype t, const void *data, int64_t i) {
    if (dtype_is_float(t)) return dtype_cast_to_int(TN_I64, dtype_load(t, data, i));
    uint64_t word = 0;
    memcpy(&word, (const char *)data + (size_t)i * dtype_size(t), dtype_size(t)); /* little-endian */
    return dtype_wrap(t, (int64_t)word);
}

/* double -> float by rounding to odd: a second rounding to 16 bits then gives the nearest, as if done at once. */
static float round_to_odd(double v) {
    float f = (float)v;
    if ((double)f == v || isnan(v)) return f;
    uint32_t u;
    memcpy(&u, &f, 4);
    if (fabs((double)f) > fabs(v)) u--;
    u |= 1;
    memcpy(&f, &u, 4);
    return f;
}

void dtype_store(tn_dtype t, void *data, int64_t i, double v) {
    switch (t) {
    case TN_F32: {
        STORE(float, v);
        break;
    }
    case TN_F64: {
        STORE(double, v);
        break;
    }
    case TN_F16: {
        STORE(uint16_t, half_from_f32(round_to_odd(v)));
        break;
    }
    case TN_BF16: {
        STORE(uint16_t, bf16_from_f32(round_to_odd(v)));
        break;
    }
    case TN_F8E4M3:
    case TN_F8E5M2: {
        STORE(uint8_t, fp8_bits(t, v));
        break;
    }
    default:
        dtype_store_int(t, data, i, dtype_cast_to_int(t, v));
        break;
    }
}

void dtype_store_int(tn_dtype t, void *data, int64_t i, int64_t v) {
    if (dtype_is_float(t)) {
        dtype_store(t, data, i, (double)v);
        return;
    }
    if (t == TN_BOOL) v = v != 0;
    memcpy((char *)data + (size_t)i * dtype_size(t), &v, dtype_size(t)); /* little-endian */
}

int64_t dtype_wrap(tn_dtype t, int64_t v) {
    if (t == TN_BOOL) return v != 0;
    int unused = 64 - 8 * (int)dtype_size(t);
    uint64_t top = (uint64_t)v << unused;
    return dtype_is_unsigned(t) ? (int64_t)(top >> unused) : (int64_t)top >> unused;
}

double dtype_round(tn_dtype t, double v) {
    uint64_t cell = 0;
    dtype_store(t, &cell, 0, v);
    return dtype_load(t, &cell, 0);
}

int64_t dtype_cast_to_int(tn_dtype t, double v) {
    if (t == TN_BOOL) return v != 0;
    if (isnan(v)) return 0;
    if (v <= infos[t].lo) return dtype_min_int(t);
    if (v > infos[t].hi) return dtype_max_int(t); /* of 64 bits hi is the largest double below 2^63 or 2^64 */
    return v >= 0x1p63 ? (int64_t)(uint64_t)v : (int64_t)v;
}

double dtype_cast_to_float(tn_dtype t, double v) {
    double most = infos[t].hi;
    return dtype_round(t, !dtype_is_fp8(t) ? v : v > most ? most : v < -most ? -most : v);
}

double dtype_cast_int_to_float(tn_dtype t, tn_dtype from, int64_t v) {
    double exact = from == TN_U64 ? (double)(uint64_t)v : (double)v;
    float once = from == TN_U64 ? (float)(uint64_t)v : (float)v; /* rounds once */
    return t == TN_F64 ? exact : dtype_cast_to_float(t, (double)once);
}
