/* kopt.c - the schedule of a kernel by its target. */
#include "kopt/kopt.h"

kernel *kopt_run(kernel *k, const target *t, const schedule **out) {
    if (out) *out = NULL;
    if (t->kind == TARGET_GPU) return kopt_gpu(k, t);
    const schedule *given = schedule_find(t->schedules, k->name);
    if (given && kopt_has_blocks(k))
        guard_fail(
            k->a->gd, TN_ERR_UNSUPPORTED,
            "schedule @%s: the kernel goes by blocks of rows, whose parts have no schedule of their own yet; fusion 2 has none",
            k->name);
    if (given) return schedule_apply(k, given, out);
    if (kopt_has_blocks(k)) return recipe_finish(kopt_tile_blocks(k, t), t);
    return recipe_cpu(k, t, out);
}
