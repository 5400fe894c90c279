/* kopt.c - the schedule of a kernel by its target. */
#include "kopt/kopt.h"

kernel *kopt_run(kernel *k, const target *t, const schedule **out) {
    if (out) *out = NULL;
    const schedule *given = schedule_find(t->schedules, k->name);
    if (given) return schedule_apply(k, given, t, out);
    if (t->kind == TARGET_GPU) return kopt_gpu(k, t, out);
    return recipe_cpu(k, t, out);
}
