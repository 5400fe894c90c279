/* take_turns.c - thread blocks take turns (persistent blocks). In and out: the form of a GPU with copies in boxes, in stages.
 *
 * As many thread blocks as run at a time do the parts of all, one after the other: so the first K blocks of a part can come
 * while the results of the one before are written (ir/boxes.h). */
#include "ir/boxes.h"
#include "loop/schedule.h"

bool step_take_turns(kernel **k, const loop_step *s, str *why) {
    kernel *o = kernel_clone(*k, (*k)->a);
    kturns turns;
    str reason;
    str_init(&reason, o->a);
    o->turns = s->arg[0].n;
    if (!kernel_turns(o, &turns, &reason)) return step_refuse(why, "%s", reason.s);
    *k = o;
    return true;
}
