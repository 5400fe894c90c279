/* apply.c - does a step to a kernel: the one place that knows all of them. */
#include "loop/loop.h"
#include "loop/schedule.h"

/* All steps until one is refused; *why has a reason then, with the step. */
static bool apply_all(kernel **k, const schedule *s, str *why) {
    str reason;
    str_init(&reason, (*k)->a);
    for (int i = 0; i < s->steps.n; i++) {
        if (step_apply(k, &s->steps.at[i], &reason)) continue;
        why->n = 0;
        str_addf(why, "step %d, \"", i + 1);
        step_print(&s->steps.at[i], why);
        str_addf(why, "\": %s", reason.s);
        return false;
    }
    return (*k)->tiled || step_refuse(why, "there is no step \"tile\", which writes the vectors");
}

bool step_nests(kernel **k, const loop_step *s, str *why) {
    arena *a = (*k)->a;
    kernel **tiled = ARENA_ARRAY(a, kernel *, s->n_nests + 1);
    knest all = { 0 };
    str reason;
    str_init(&reason, a);
    while (loop_next_nest(*k, &all)) {
    }
    if (all.all != s->n_nests) return step_refuse(why, "the kernel has %d nests; steps of %d are given", all.all, s->n_nests);
    for (int i = 0; i < s->n_nests; i++) {
        tiled[i] = loop_nest(*k, i);
        if (!apply_all(&tiled[i], &s->nest[i], &reason)) return step_refuse(why, "nest %d: %s", i + 1, reason.s);
        if (tiled[i]->par_var >= 0)
            return step_refuse(why, "nest %d: threads share loops around the nests; the step parallel stands before nests",
                               i + 1);
    }
    *k = loop_put_nests(*k, tiled);
    return true;
}

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
    bool blocks = !(*k)->tiled && loop_has_blocks(*k);
    if (blocks && s->op != STEP_parallel && s->op != STEP_nests)
        return step_refuse(why, "the kernel goes by blocks of rows: only parallel and nests come before it is tiled");
    if (!blocks && s->op == STEP_nests) return step_refuse(why, "the kernel does not go by blocks of rows");
    bool moves = s->op == STEP_reorder || s->op == STEP_fuse_loops || s->op == STEP_split || s->op == STEP_pack ||
                 s->op == STEP_accumulate;
    if (moves && (*k)->par_var >= 0)
        return step_refuse(why, "threads share the loops already: this step comes before parallel");
    return apply[s->op](k, s, why);
}

bool schedule_try(kernel **k, const schedule *s, str *why) {
    str text;
    str_init(&text, (*k)->a);
    if (!apply_all(k, s, why)) return false;
    if (kernel_check(*k, &text)) return step_refuse(why, "what it makes is not sound: %s", text.s);
    return true;
}

kernel *schedule_apply(kernel *k, const schedule *s, const schedule **out) {
    str why;
    str_init(&why, k->a);
    if (!schedule_try(&k, s, &why)) guard_fail(k->a->gd, TN_ERR_INVAL, "schedule @%s: %s", s->name, why.s);
    if (out) *out = s;
    return k;
}
