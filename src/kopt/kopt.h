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
/* The kernel in its target's form: by t->schedules where the kernel has one there, else by the text of the tuning database
 * (`measured`, may be NULL) where that is possible, else by recipes. *out (may be NULL): how. */
typedef struct kopt_made {
    const schedule *schedule;
    const char *tuned;   /* the measured text, where it was heeded */
    const char *ignored; /* why it was not */
} kopt_made;
kernel *kopt_run(kernel *k, const target *t, const char *measured, kopt_made *out);

/* candidates.c: texts next to `from` (NULL: as the recipe has it), which make other code of the scalar kernel than it and than
 * each other and give the same bits, with that code; those that promise most first. Returns how many there are, at most cap. */
typedef struct kopt_candidate {
    const char *text;
    kernel *k;
} kopt_candidate;
int kopt_candidates(const kernel *scalar, const target *t, const char *from, arena *a, kopt_candidate *out, int cap);
/* What a text changes about another, mostly the recipe's, for people. */
const char *kopt_difference(const char *old, const char *text, arena *a);
#define KOPT_RECIPE "recipe" /* the text for no other schedule than the recipe's */
/* What a kernel is like that was made: "i0 6 x 1, j1 2 x 8 of 540; copies of 24.0 KiB". */
const char *kopt_form_text(const kernel *k, arena *a);

/* gpu_chain.c: consecutive kernels of a plan for a GPU become one where rows need the same rows only, and where that is faster.
 * Before kopt_run. */
void kopt_gpu_chain(plan *p, const target *t);
/* gpu_beside.c: kernels of a plan, in the form of a GPU, that do not need each other become one launch. After kopt_run. */
void kopt_gpu_beside(plan *p, const target *t);
/* gpu_access.c: what neighbouring threads touch together. The different ones of a kernel, in a; returns how many. */
typedef struct gpu_access {
    int buf; /* of the kernel */
    bool store, indexed /* also by a value: where is known only in a run */;
    int threads, bytes, sectors; /* so many threads touch so many different bytes, in so many sectors of 32 */
} gpu_access;
int kopt_gpu_accesses(const kernel *k, arena *a, gpu_access **out);

#endif
