/* vertical_fusion.h - what chains of kernels cost on a GPU, in nanoseconds; estimated from shapes and the target's row of
 * machine.def only. For vertical_fusion.c. */
#ifndef TN_SCHED_VERTICAL_FUSION_H
#define TN_SCHED_VERTICAL_FUSION_H

#include "ir/plan.h"
#include "recipe/columns.h"

/* A scalar kernel as a launch of its own; among launches of other steps, which run meanwhile. */
double vertical_alone(const kernel *k, const target *t);
double vertical_among(const kernel *k, const target *t);
/* As part of a chain: a thread block for `rows` iterations of its first `shared` loops, which are all_rows. */
double vertical_inside(const kernel *k, const kernel *near, int shared, int64_t all_rows, int rows, const target *t);

/* The same by clusters of thread blocks; INFINITY where that does not go. A contraction is *out, whose own time depends on the
 * shape and does not count; else out->n = 0. */
double vertical_clustered(const kernel *k, int shared, int64_t all_rows, const target *t, row_contraction *out);

/* reroll.c: layers of a chain that repeat become a loop. New buffers come last; kbuf.plan_buf says what they are in the plan.
 * copies: the first layer's row may be copied for that. */
void vertical_reroll(plan *p, kernel *k, int n_rows, bool copies);

#endif
