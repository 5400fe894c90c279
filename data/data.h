/* data.h - what data sets and loaders share. Public headers only. */
#ifndef DATA_DATA_H
#define DATA_DATA_H

#include "tenon/tenon_data.h"

#include <stdbool.h>
#include <string.h>

tn_status data_fail(tn_ctx *ctx, tn_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

struct tn_data {
    tn_io_tensor *arrays; /* [n] names are copies */
    int n;
    tn_io_tensors *file; /* or NULL */
    tn_data_fill fill;   /* or NULL */
    void *ud;
};

/* Bytes of everything behind axis 0 of a shape with n axes; false where that overflows or an axis is negative. */
bool data_row_bytes(const tn_io_tensor *x, size_t *out);

/* Place of element i in the order of this epoch: a permutation of 0 .. n - 1 that is computed, not stored. */
int64_t data_shuffled(int64_t i, int64_t n, uint64_t seed, uint64_t epoch);

#endif
