/* take_turns.c - thread blocks take turns (persistent blocks). In and out: the form of a GPU with copies in boxes, in stages.
 *
 * As many thread blocks as run at a time do the parts of all, one after the other: so the first K blocks of a part can come
 * while the results of the one before are written (ir/boxes.h). Apart: results lie where no stage does. The barrier before the
 * last stage that is filled ahead guards that place alone, so it goes. */
#include "ir/boxes.h"
#include "loop/loop.h"
#include "loop/schedule.h"

/* The barrier between the first copies. */
static void drop_barrier(kernel *o, const kturns *turns) {
    kins *barrier = &o->ins.at[turns->first_end];
    if (barrier->op != K_BARRIER || !kernel_is_bulk(barrier + 1)) return;
    barrier->op = K_NIL;
    loop_compact(o);
}

bool step_take_turns(kernel **k, const loop_step *s, str *why) {
    kernel *o = kernel_clone(*k, (*k)->a);
    kturns turns;
    str reason;
    str_init(&reason, o->a);
    o->turns = s->arg[0].n;
    if (!kernel_turns(o, &turns, &reason)) return step_refuse(why, "%s", reason.s);
    if (step_flag(s, "apart")) {
        for (int b = 0; b < o->bufs.n; b++) o->bufs.at[b].late = false;
        drop_barrier(o, &turns);
        if (!kernel_turns(o, &turns, &reason)) return step_refuse(why, "%s", reason.s);
    }
    *k = o;
    return true;
}
