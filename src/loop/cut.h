/* cut.h - kernels for GPUs whose sizes are given at run time. In: scalar form. Out: the form of a GPU, for all values.
 *
 * The schedule is that of the kernel for the largest sizes, and what comes out is cut to those that there are: what lies behind
 * them is neither read nor written, and thread blocks and steps of sums that have nothing else to do are left out. This takes
 * elementwise work and contractions. Any other kernel has a thread block of loop/bind_rows.h for each iteration of its outer
 * loops, or a thread. */
#ifndef TN_LOOP_CUT_H
#define TN_LOOP_CUT_H

#include "ir/kernel.h"

/* The kernel for the largest values, or some above, without parameters; NULL: it is none of that kind. */
kernel *loop_most(const kernel *k);
/* `made`, which a schedule made of loop_most(k), for all values of the dims; NULL where an access cannot be cut. */
kernel *loop_cut(const kernel *k, const kernel *made);
/* A thread for each iteration of the outer loops of k: one for all where there are none. threads: of the grid, at most. */
kernel *loop_bind_params(const kernel *k, int block_threads, int64_t threads);

#endif
