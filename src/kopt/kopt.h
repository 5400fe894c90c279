/* kopt.h - kernel to kernel: from the scalar form that sched/ writes to the form that emit/ reads: by recipes and schedules
 * (recipe/recipe.h); and what else a kernel could be like, for tuning. */
#ifndef TN_KOPT_KOPT_H
#define TN_KOPT_KOPT_H

#include "ir/plan.h"
#include "loop/loop.h"
#include "recipe/recipe.h"

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

#endif
