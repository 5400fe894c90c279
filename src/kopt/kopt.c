/* kopt.c - the schedule of a kernel by its target. */
#include "kopt/kopt.h"

kernel *kopt_run(kernel *k, const target *t) {
    if (t->kind == TARGET_GPU) return kopt_gpu(k, t);
    if (kopt_has_blocks(k)) return recipe_finish(kopt_tile_blocks(k, t), t);
    return recipe_cpu(k, t, NULL);
}
