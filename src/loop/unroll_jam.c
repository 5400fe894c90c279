/* unroll_jam.c - several iterations of a loop, or vectors of them, are worked on at once: their sums are independent chains,
 * and what they share is loaded once. tile.c writes them out. In and out: scalar form.
 *
 * An unrolled reduction has a partial sum for each of them; other loops keep every bit. */
#include "loop/schedule.h"

enum { MOST_COPIES = 16 };

bool step_unroll_jam(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    kvar v = step_loop(k, s, 0, why);
    int64_t n = s->arg[1].n;
    if (v < 0 || (n > 1 && (loop_keeps_order(k, v, why) || loop_splits_sum(k, v, why)))) return false;
    if (n < 1 || n > MOST_COPIES) return step_refuse(why, "%lld copies: expected 1 to %d", (long long)n, MOST_COPIES);
    k->vars.at[v].role.unroll = (int)n;
    return true;
}
