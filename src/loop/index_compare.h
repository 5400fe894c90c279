/* index_compare.h - where comparisons of indices hold: what the steps ask that leave out what a mask throws away. */
#ifndef TN_LOOP_INDEX_COMPARE_H
#define TN_LOOP_INDEX_COMPARE_H

#include "ir/kernel.h"

typedef struct index_line { /* lane l: e + l * step */
    affine e;
    int64_t step;
    int lanes;
    reg run; /* a number that the run gives; 0: there is none */
} index_line;
/* Whether condition r compares indices, and so holds (not: does not) only in lanes where *out is at most 0, or at most the
 * number `run`, which the kernel has computed. In skip_masked.c. */
bool index_compare(const kernel *k, reg r, bool not, index_line *out);

#endif
