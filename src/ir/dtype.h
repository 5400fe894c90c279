/* dtype.h - facts about element types and conversion between a typed element and the evaluator's double or int64. */
#ifndef TN_IR_DTYPE_H
#define TN_IR_DTYPE_H

#include "base/base.h"

static inline size_t dtype_size(tn_dtype t) {
    static const uint8_t size[TN_N_DTYPES] = { 4, 8, 2, 2, 1, 4, 8, 1, 1 };
    return size[t];
}
static inline bool dtype_is_float(tn_dtype t) { return t <= TN_BF16; }
static inline bool dtype_is_int(tn_dtype t) { return t >= TN_I8 && t <= TN_U8; }
const char *dtype_name(tn_dtype t);
bool dtype_find(const char *name, size_t n, tn_dtype *out);

/* Element i of an array. Integers and bool as int64 (exact), floats as double (exact). Stores round to nearest even (floats) or
 * wrap around (integers); bool stores v != 0. */
double dtype_load(tn_dtype t, const void *data, int64_t i);
int64_t dtype_load_int(tn_dtype t, const void *data, int64_t i);
void dtype_store(tn_dtype t, void *data, int64_t i, double v);
void dtype_store_int(tn_dtype t, void *data, int64_t i, int64_t v);
/* The cast rule: float to integer truncates and saturates, NaN gives 0; anything to bool is != 0. */
int64_t dtype_cast_to_int(tn_dtype t, double v);

#endif
