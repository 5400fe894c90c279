/* kernel_walk.h - every element that one instruction of a kernel touches: what the checks of kernels and plans stand on. */
#ifndef TN_IR_KERNEL_WALK_H
#define TN_IR_KERNEL_WALK_H

#include "ir/kernel.h"

enum { WALK_BUDGET = 1 << 20 }; /* iterations of one instruction that are looked at */

typedef struct visit_at { /* one lane of one iteration */
    const int64_t *var;   /* values of all loop variables; closed loops hold rubbish */
    int64_t at;           /* element; of the first row for a dynamic index */
} visit_at;
typedef void (*walk_fn)(const visit_at *v, void *ud);

/* Calls fn for every element that instruction r (LOAD, STORE, SCATTER) touches, masked lanes left out. `open` are the K_LOOPs
 * around r, outermost first. When there are more iterations than the budget, long loops are cut to their first and last few;
 * returns whether nothing was cut. */
bool kernel_walk(const kernel *k, reg r, const int *open, int n_open, walk_fn fn, void *ud);

/* The K_LOOPs around instruction r, outermost first; room for [ins]. */
int kernel_open_loops(const kernel *k, reg r, int *out);

/* kernel_params.c: marks the accesses of a kernel with parameters that are not proven to be inside of their buffers for all
 * values. */
void kernel_mark_unproven(const kernel *k, bool *out);

#endif
