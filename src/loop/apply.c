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
    bool moves = s->op == STEP_reorder || s->op == STEP_fuse_loops || s->op == STEP_split || s->op == STEP_pack ||
                 s->op == STEP_accumulate;
    if (moves && (*k)->par_var >= 0)
        return step_refuse(why, "threads share the loops already: this step comes before parallel");
    return apply[s->op](k, s, why);
}

kernel *schedule_apply(kernel *k, const schedule *s, const schedule **out) {
    guard *gd = k->a->gd;
    str text, why;
    str_init(&text, k->a);
    str_init(&why, k->a);
    for (int i = 0; i < s->steps.n; i++) {
        if (step_apply(&k, &s->steps.at[i], &why)) continue;
        step_print(&s->steps.at[i], &text);
        guard_fail(gd, TN_ERR_INVAL, "schedule @%s: step %d, \"%s\": %s", s->name, i + 1, text.s, why.s);
    }
    if (!k->tiled) guard_fail(gd, TN_ERR_INVAL, "schedule @%s: there is no step \"tile\", which writes the vectors", s->name);
    if (kernel_check(k, &text))
        guard_fail(gd, TN_ERR_INVAL, "schedule @%s makes a kernel that is not sound: %s", s->name, text.s);
    if (out) *out = s;
    return k;
}
