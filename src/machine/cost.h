/* cost.h - the one cost model: what a scheduled kernel takes on a machine, and the bytes that it moves at each memory level.
 *
 * In: a kernel in its tiled (CPU) or GPU form; a machine. Out: nanoseconds of one run with all its threads, and what they are
 * made of. Physics only: instructions on the units that take them, chains of instructions that wait for each other, lines that
 * a memory level has to deliver (footprint.h), what starts and barriers cost. */
#ifndef TN_MACHINE_COST_H
#define TN_MACHINE_COST_H

#include "ir/plan.h"
#include "machine/machine.h"

typedef enum cost_bound { BOUND_START, BOUND_ISSUE, BOUND_LATENCY, BOUND_L2, BOUND_L3, BOUND_MEMORY, COST_BOUNDS } cost_bound;

typedef struct cost {
    double ns;                    /* of a run */
    double start_ns;              /* of these: the start and the barrier at the end */
    double issue_ns, latency_ns;  /* what the units alone would take; more where instructions wait for each other */
    double memory_ns;             /* what the memory levels beyond the first would take alone */
    double bytes[MACHINE_LEVELS]; /* of all threads: L1: loads and stores; the others: from this level to the one before it */
    double level_ns[MACHINE_LEVELS];
    cost_bound bound;
} cost;

/* distance: [bufs] bytes that were touched between the last use of a buffer and this kernel; NULL: the kernel runs again and
 * again by itself. Memory comes from a. */
cost cost_kernel(const kernel *k, const machine *m, const double *distance, arena *a);
/* Each launch of a plan that runs again and again. out: [kernels]. */
void cost_plan(const plan *p, const machine *m, arena *a, cost *out);
const char *cost_bound_text(const cost *c, bool gpu);

/* cost_gpu.c */
cost cost_gpu_kernel(const kernel *k, const machine *m, const double *distance, arena *a);

#endif
