/* kopt.h - kernel to kernel: from the scalar form that sched/ writes to the form that emit/ reads: by recipes and schedules for
 * processors (recipe/recipe.h), by the forms below for GPUs. */
#ifndef TN_KOPT_KOPT_H
#define TN_KOPT_KOPT_H

#include "ir/plan.h"
#include "loop/loop.h"
#include "recipe/recipe.h"

/* row_block.c: consecutive kernels of a plan for a CPU become one that goes by blocks of rows, where what lies between them
 * then stays in the caches and nothing takes longer. Before kopt_run. */
void kopt_row_blocks(plan *p, const target *t);
/* The kernel in its target's form: by t->schedules where the kernel has one there, else by recipes, or kopt_gpu; t->choice is
 * heeded as far as possible. *out (may be NULL): the schedule, NULL for GPUs. */
kernel *kopt_run(kernel *k, const target *t, const schedule **out);

/* candidates.c: choices that differ from base in one part and make other code of the scalar kernel than base and than each
 * other, those that the model holds for better first. Returns how many there are, at most cap. */
int kopt_candidates(const kernel *scalar, const target *t, kchoice base, arena *a, kchoice *out, int cap);
/* In words: "tile 6 x 4, in panels of 2 tiles, 256 rows a stretch". */
const char *kopt_choice_text(kchoice c, arena *a);
/* What a kernel is like that was made: "i0 6 x 1, j1 2 x 8 of 540; copies of 24.0 KiB". */
const char *kopt_form_text(const kernel *k, arena *a);

/* gpu_chain.c: consecutive kernels of a plan for a GPU become one where rows need the same rows only, and where that is faster.
 * Before kopt_run. */
void kopt_gpu_chain(plan *p, const target *t);
/* gpu_beside.c: kernels of a plan, in the form of a GPU, that do not need each other become one launch. After kopt_run. */
void kopt_gpu_beside(plan *p, const target *t);
/* gpu.c: the form of a GPU (kernel.h) instead: order, collapse, one of the forms below, hoist. */
kernel *kopt_gpu(kernel *k, const target *t, const schedule **out);
int kopt_gpu_choices(kernel *k, const target *t, kchoice *out, int cap); /* as kopt_gpu_tiles; spoils the kernel */
/* gpu_place.c: the same, each thread having its place in the contractions of a row, when that costs less than *out_cost; else
 * NULL. */
kernel *kopt_gpu_place(const kernel *k, int n_rows, const target *t, double *out_cost);
/* gpu_cluster.c: the same, rows being a cluster's, whose groups share out the columns. */
kernel *kopt_gpu_cluster(const kernel *k, int n_rows, const target *t, double *out_cost);
/* gpu_tile.c: a contraction in tiles of fast memory and registers, when that costs less than *out_cost; else NULL. */
kernel *kopt_gpu_tile(const kernel *k, int n_outer, const target *t, double *out_cost);
/* Shapes that such tiles could have, all with the same order of sums, the cheapest first; at most cap. 0 where there are none.
 */
int kopt_gpu_tiles(const kernel *k, int n_outer, const target *t, kchoice *out, int cap);
/* gpu_column.c: sums of columns, when that costs less than *out_cost; else NULL. */
kernel *kopt_gpu_column(const kernel *k, int n_outer, const target *t, double *out_cost);
/* gpu_scatter.c: a scatter-add; NULL where the kernel is something else. */
kernel *kopt_gpu_scatter(const kernel *k, int n_outer, const target *t);
/* gpu_access.c: what neighbouring threads touch together. The different ones of a kernel, in a; returns how many. */
typedef struct gpu_access {
    int buf; /* of the kernel */
    bool store, indexed /* also by a value: where is known only in a run */;
    int threads, bytes, sectors; /* so many threads touch so many different bytes, in so many sectors of 32 */
} gpu_access;
int kopt_gpu_accesses(const kernel *k, arena *a, gpu_access **out);

#endif
