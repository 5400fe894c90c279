/* patterns.h - the loops of `tenon bench memory`. */
#ifndef TENON_CLI_PATTERNS_H
#define TENON_CLI_PATTERNS_H

#include "bench.h"

typedef struct pattern_data {
    int64_t n, pitch;
    int32_t *a, *b, *index;
    int32_t sum; /* the result, or it is in b */
} pattern_data;
enum { pattern_streams = 12 }; /* arrays of work "streams" */
typedef struct pattern {
    const char *work, *name; /* of work "matrix" and "transpose": n x n */
    void (*run)(pattern_data *d);
    bool (*right)(const pattern_data *d);
    double touched; /* numbers read or written a run, over n (or n x n) */
    int64_t padding;
} pattern;
const pattern *pattern_table(int *out_n);
pattern_data pattern_data_new(const pattern *p, int64_t n, uint64_t seed);
void pattern_data_free(pattern_data *d);
bool pattern_is_transposed(const pattern_data *d);

#endif
