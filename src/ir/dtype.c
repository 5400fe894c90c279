/* dtype.c - implementation of dtype.h. Arrays are read and written through memcpy: they may be unaligned (files, arenas). */
#include "ir/dtype.h"

#include <math.h>

static const char *const dtype_names[TN_N_DTYPES] = { "f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8", "bool" };

const char *dtype_name(tn_dtype t) { return (unsigned)t < TN_N_DTYPES ? dtype_names[t] : "?"; }

bool dtype_find(const char *name, size_t n, tn_dtype *out) {
    for (int i = 0; i < TN_N_DTYPES; i++)
        if (strlen(dtype_names[i]) == n && !memcmp(dtype_names[i], name, n)) {
            *out = (tn_dtype)i;
            return true;
        }
    return false;
}

#define LOAD(type)                                                                                                             \
    type e;                                                                                                                    \
    memcpy(&e, (const char *)data + (size_t)i * sizeof e, sizeof e)
#define STORE(type, v)                                                                                                         \
    type e = (type)(v);                                                                                                        \
    memcpy((char *)data + (size_t)i * sizeof e, &e, sizeof e)

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
    default:
        return (double)dtype_load_int(t, data, i);
    }
}

int64_t dtype_load_int(tn_dtype t, const void *data, int64_t i) {
    switch (t) {
    case TN_I8: {
        LOAD(int8_t);
        return e;
    }
    case TN_I32: {
        LOAD(int32_t);
        return e;
    }
    case TN_I64: {
        LOAD(int64_t);
        return e;
    }
    case TN_U8: {
        LOAD(uint8_t);
        return e;
    }
    case TN_BOOL: {
        LOAD(uint8_t);
        return e != 0;
    }
    default:
        return dtype_cast_to_int(TN_I64, dtype_load(t, data, i));
    }
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
    default:
        dtype_store_int(t, data, i, dtype_cast_to_int(t, v));
        break;
    }
}

void dtype_store_int(tn_dtype t, void *data, int64_t i, int64_t v) {
    switch (t) {
    case TN_I8: {
        STORE(int8_t, v);
        break;
    }
    case TN_I32: {
        STORE(int32_t, v);
        break;
    }
    case TN_I64: {
        STORE(int64_t, v);
        break;
    }
    case TN_U8: {
        STORE(uint8_t, v);
        break;
    }
    case TN_BOOL: {
        STORE(uint8_t, v != 0);
        break;
    }
    default:
        dtype_store(t, data, i, (double)v);
        break;
    }
}

int64_t dtype_cast_to_int(tn_dtype t, double v) {
    if (t == TN_BOOL) return v != 0;
    if (isnan(v)) return 0;
    int64_t lo = INT64_MIN, hi = INT64_MAX;
    switch (t) {
    case TN_I8:
        lo = INT8_MIN, hi = INT8_MAX;
        break;
    case TN_I32:
        lo = INT32_MIN, hi = INT32_MAX;
        break;
    case TN_U8:
        lo = 0, hi = UINT8_MAX;
        break;
    default:
        break;
    }
    if (v <= (double)lo) return lo; /* (double)INT64_MAX is 2^63: everything below it converts exactly */
    if (v >= (double)hi) return hi;
    return (int64_t)v;
}
