/* dtype.h - facts about element types (dtype.def) and conversion between a typed element and the evaluator's double or int64.
 */
#ifndef TN_IR_DTYPE_H
#define TN_IR_DTYPE_H

#include "base/base.h"

static inline size_t dtype_size(tn_dtype t) {
    static const uint8_t size[TN_N_DTYPES] = {
#define DTYPE(id, name, kind, bytes, ...) [TN_##id] = bytes,
#include "ir/dtype.def"
    };
    return size[t];
}
static inline tn_dtype_kind dtype_kind(tn_dtype t) {
    static const uint8_t kinds[TN_N_DTYPES] = {
#define DTYPE(id, name, kind, ...) [TN_##id] = TN_KIND_##kind,
#include "ir/dtype.def"
    };
    return (tn_dtype_kind)kinds[t];
}
static inline bool dtype_is_float(tn_dtype t) { return dtype_kind(t) == TN_KIND_FLOAT; }
static inline bool dtype_is_int(tn_dtype t) { return dtype_kind(t) == TN_KIND_INT || dtype_kind(t) == TN_KIND_UINT; }
static inline bool dtype_is_unsigned(tn_dtype t) { return dtype_kind(t) == TN_KIND_UINT; }
/* Floats of less than 32 bits: f32 in registers, rounded when stored. */
static inline bool dtype_is_narrow_float(tn_dtype t) { return dtype_is_float(t) && dtype_size(t) < 4; }
/* Integers of less than 32 bits: i32 in registers, wrapped after every op. */
static inline bool dtype_is_narrow_int(tn_dtype t) { return dtype_is_int(t) && dtype_size(t) < 4; }
/* Floats to which a cast saturates. */
static inline bool dtype_is_fp8(tn_dtype t) { return dtype_is_float(t) && dtype_size(t) == 1; }

const tn_dtype_info *dtype_info(tn_dtype t); /* NULL for an unknown one */
const char *dtype_name(tn_dtype t);
bool dtype_find(const char *name, size_t n, tn_dtype *out);
tn_dtype dtype_reg(tn_dtype t);           /* of kernels' registers that hold it */
bool dtype_holds(tn_dtype t, tn_dtype x); /* every value of x is one of t */
double dtype_roundoff(tn_dtype t);        /* half the distance between 1 and the next number; 0 for integers */
double dtype_smallest_normal(tn_dtype t); /* of f32 for integers */
int64_t dtype_min_int(tn_dtype t);        /* of integers and bool; u64 as its bits */
int64_t dtype_max_int(tn_dtype t);
bool dtype_less(tn_dtype t, int64_t x, int64_t y); /* of integers and bool; u64 as its bits */

/* Element i of an array. Integers and bool as int64 (exact; u64 as its bits), floats as double (exact). Stores round to nearest
 * even (floats; what is too large becomes infinity, or NaN where there is none) or wrap around (integers); bool stores v != 0.
 */
double dtype_load(tn_dtype t, const void *data, int64_t i);
int64_t dtype_load_int(tn_dtype t, const void *data, int64_t i);
void dtype_store(tn_dtype t, void *data, int64_t i, double v);
void dtype_store_int(tn_dtype t, void *data, int64_t i, int64_t v);
int64_t dtype_wrap(tn_dtype t, int64_t v); /* to the dtype's bits; bool: v != 0 */
double dtype_round(tn_dtype t, double v);  /* as if stored */
/* The cast rules. Float to integer truncates and saturates, NaN gives 0; anything to bool is != 0. Float to f8e4m3 and f8e5m2
 * saturates (infinities, too), NaN stays. Integers of 64 bits become f32 on their way to narrower floats. */
int64_t dtype_cast_to_int(tn_dtype t, double v);
double dtype_cast_to_float(tn_dtype t, double v);
double dtype_cast_int_to_float(tn_dtype t, tn_dtype from, int64_t v);

#endif
