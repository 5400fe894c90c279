/* mem.h - plan to plan: where every buffer lives. In: buffers and kernels in launch order, kernels in scalar form. Out: offsets
 * in one arena, buffers that share a place (in place), states updated where they are, and the size of it all against its lower
 * bound. */
#ifndef TN_MEM_MEM_H
#define TN_MEM_MEM_H

#include "ir/plan.h"

/* inplace.c: lets a kernel write over an operand that dies in it, and a state take its new value directly; adds a copy kernel
 * for each state where that is not possible. Before recipes, because copies are kernels too. */
void mem_inplace(plan *p);
/* pack.c: lifetimes, then offsets: largest first, lowest free place. After recipes, which may read constants in another order.
 *
 * roomy: where temporaries of so many bytes in all share no place, launches that need nothing of each other share none, so that
 * a device can let them overlap; within twice the memory that is needed otherwise. With steps_overlap no two temporaries share
 * one, for then a step of tn_run_n may begin while those before it run: 37 layers in a row, 16 steps a CUDA graph, took 92 us
 * a step on an H200, and 162 us one step after the other. */
void mem_pack(plan *p, int64_t roomy, bool steps_overlap);
/* Its first part: the places of constants that a kernel uses; the others become empty. */
void mem_constants(plan *p);
/* barrier.c: pkernel.barrier, for runs with that many threads. After everything else. */
void mem_barriers(plan *p, int threads);

#endif
