/* mem.h - plan to plan: where every buffer lives. In: buffers and kernels in launch order, kernels in scalar form. Out: offsets
 * in one arena, buffers that share a place (in place), states updated where they are, and the size of it all against its lower
 * bound. */
#ifndef TN_MEM_MEM_H
#define TN_MEM_MEM_H

#include "ir/plan.h"

/* loop_state.c: states of repeats are written where they lie, by the kernels that compute them; the copies that did it go. */
void mem_loop_states(plan *p);
/* inplace.c: lets a kernel write over an operand that dies in it, and a state take its new value directly; adds a copy kernel
 * for each state where that is not possible. Before recipes, because copies are kernels too. A kernel with a result of at most
 * `small` elements writes over nothing that another kernel reads which it does not need otherwise: the two may be one launch.
 */
void mem_inplace(plan *p, int64_t small);
/* join_maps.c: in loops, kernels of which one needs of the other the element at hand alone become one. After mem_inplace. */
void mem_join_maps(plan *p);
/* unread.c: what kernels store and nothing reads is not stored. After mem_inplace, which adds readers. */
void mem_unread(plan *p);
/* steps.c: plan.steps. All launches in their order, or as control flow has them; many: in a loop over the steps of tn_run_n;
 * overlap: whose iterations may overlap, where the device is a GPU and they leave each other nothing. After recipes. */
void mem_steps(plan *p, bool many, bool overlap);
bool mem_may_overlap(const plan *p); /* they may, where there is memory for it */
/* pack.c: lifetimes, then offsets: largest first, lowest free place. After mem_steps.
 *
 * roomy: where temporaries of so many bytes in all share no place, launches that need nothing of each other share none, so that
 * a device can let them overlap; within twice the memory that is needed otherwise. Where iterations of a loop may overlap no
 * two temporaries share one: 37 layers in a row, 16 iterations a CUDA graph, took 92 us each on an H200, and 162 us one after
 * the other; up to PLAN_MOST_AT_ONCE of them, as many as there is room for, get temporaries of their own: a network of three
 * layers, 4.1 us each, took 1.7. Where there is no room for one, the loop does not say it any more. */
void mem_pack(plan *p, int64_t roomy);
/* Its first part: the places of constants that a kernel uses; the others become empty. */
void mem_constants(plan *p);
/* recompute.c: in g, which has the values of p.g under their ids, values are computed again for their late readers until the
 * plan of g is likely to need no more than `aim` bytes of temporaries, or nothing helps any more. Returns how many; 0: g is as
 * it was. ns: [kernels] what each takes. Where a run decides what is launched, none. */
int mem_recompute(const plan *p, graph *g, const double *ns, int64_t aim);
/* barrier.c: pkernel.barrier, for runs with that many threads. After everything else. */
void mem_barriers(plan *p, int threads);
/* block_barriers.c: barriers inside kernels of GPUs that keep no two threads apart go. After mem_pack. */
void mem_block_barriers(plan *p);

#endif
