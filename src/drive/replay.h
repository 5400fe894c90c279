/* replay.h - what kernels bring through the memory levels of a processor, counted access by access in a simulation of its
 * caches: sets of lines in the order of their last use, one level asked where the one before has nothing, lines that are
 * written fetched first. As cachegrind does it, but with the accesses of the interpreter of kernels, which needs no machine
 * code. */
#ifndef TN_DRIVE_REPLAY_H
#define TN_DRIVE_REPLAY_H

#include "ir/plan.h"
#include "machine/machine.h"

typedef struct replay_bytes {
    double counted[MACHINE_LEVELS]; /* loads and stores; into L1, into L2, into L3: the last is what memory gives */
    double steps;                   /* what counting takes: instructions of the interpreter */
    const char *unknown;            /* why it was not counted; NULL: it was */
} replay_bytes;

/* One kernel by one thread, twice; its buffers lie one behind the other. The second time counts, for the cost model speaks of
 * a kernel that runs again and again; out_cold: what memory gives the first time. Jumps where eval_kernel_touches does. */
void replay_kernel(const kernel *k, const machine *m, arena *a, replay_bytes *out, double *out_cold);
/* Each launch of a plan that runs again and again, with so many threads, where the plan has its buffers: twice, the second
 * time counts. The same each time: what is counted is decided by steps, not by a clock. Kernels with most steps are left out
 * where all would take too long; of those their buffers are touched from end to end, so that others find caches as they would
 * be. out: [kernels]. */
void replay_plan(const plan *p, const machine *m, int threads, arena *a, replay_bytes *out);

#endif
