/* apply.c - does a step to a kernel: the one place that knows all of them. */
#include "loop/schedule.h"

bool step_apply(kernel **k, const loop_step *s, str *why) {
    static bool (*const apply[STEP_COUNT])(kernel **, const loop_step *, str *) = {
#define STEP(name, args, order, text) [STEP_##name] = step_##name,
#include "loop/steps.def"
#undef STEP
    };
    if (!apply[s->op]) return step_refuse(why, "there is no such step");
    if ((*k)->group) return step_refuse(why, "the kernel has the form of a GPU already");
    if ((*k)->tiled && s->op <= STEP_tile) return step_refuse(why, "the kernel is tiled already: this step comes before tile");
    if (!(*k)->tiled && s->op > STEP_tile) return step_refuse(why, "the kernel is not tiled yet: this step comes after tile");
    return apply[s->op](k, s, why);
}
