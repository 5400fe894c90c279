/* fusion.h - fusion of kernels of a plan, once all are in scalar form: vertical, row by row, and horizontal. */
#ifndef TN_SCHED_FUSION_H
#define TN_SCHED_FUSION_H

#include "ir/plan.h"
#include "ir/target.h"

/* row_block.c: consecutive kernels of a plan for a CPU become one that goes by blocks of rows, where what lies between them
 * then stays in the caches and nothing takes longer. Before kernels have their schedules. */
void fuse_row_blocks(plan *p, const target *t);
/* loop_panels.c: matrices that all iterations of a loop multiply by are laid out once, before the loop, in a plan for a CPU.
 * Before kernels have their schedules. */
void lay_out_for_loops(plan *p, const target *t);
/* attention_fusion.c: two contractions with a softmax between them become one kernel for a GPU, which never stores the scores.
 * Before fuse_vertically. */
void fuse_attention(plan *p, const target *t);
/* attention_pairs.c: behind that, two kernels that go through the same scores become one. */
void fuse_attention_pairs(plan *p, const target *t);
/* row_products.c: products of one vector with large matrices, each of which needs the same row of the one before it, become one
 * kernel for a GPU. Before fuse_vertically. */
void fuse_row_products(plan *p, const target *t);
/* norm_products.c: behind that, norms of vectors that only such products take are made by these. */
void fuse_norm_products(plan *p, const target *t);
/* vertical_fusion.c: consecutive kernels of a plan for a GPU become one where rows need the same rows only, and where that is
 * faster. Before kernels have their schedules. */
void fuse_vertically(plan *p, const target *t);
/* column_sums.c: behind that, sums over all rows are made where a kernel has the rows. */
void fuse_column_sums(plan *p, const target *t);
/* machine_parts.c: [kernels] whether another one reads what it makes soon after what it reads was made. */
const bool *waited_for(const plan *p);
/* [kernels] by how many the machine is smaller for each, as its schedule is chosen: 1, or more for one that
 * nobody waits for. */
const int *machine_parts(const plan *p, const target *t);
/* horizontal_fusion.c: kernels of a plan, in the form of a GPU, that do not need each other become one launch. */
void fuse_horizontally(plan *p, const target *t);

#endif
