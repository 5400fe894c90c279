/* dce.c - dead code elimination: values that nothing uses go. In and out: the form of a GPU. The other forms lose theirs as
 * soon as a step leaves some. */
#include "loop/loop.h"
#include "loop/schedule.h"

bool step_dce(kernel **k, const loop_step *s, str *why) {
    (void)s, (void)why;
    loop_sweep(*k);
    return true;
}
