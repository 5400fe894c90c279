/* mem.h - plan to plan: where every buffer lives. In: buffers and kernels in launch order, kernels in scalar form. Out: offsets
 * in one arena, buffers that share a place (in place), states updated where they are, and the size of it all against its lower
 * bound. */
#ifndef TN_MEM_MEM_H
#define TN_MEM_MEM_H

#include "ir/plan.h"

/* inplace.c: lets a kernel write over an operand that dies in it, and a state take its new value directly; adds a copy kernel
 * for each state where that is not possible. Before kopt, because copies are kernels too. */
void mem_inplace(plan *p);
/* pack.c: lifetimes, then offsets: largest first, lowest free place. After kopt, which may read constants in another order.
 * roomy: temporaries of so many bytes in all need not share anything, because independent launches may overlap. */
void mem_pack(plan *p, int64_t roomy);
/* Its first part: the places of constants that a kernel uses; the others become empty. */
void mem_constants(plan *p);
/* barrier.c: pkernel.barrier, for runs with that many threads. After everything else. */
void mem_barriers(plan *p, int threads);

#endif
