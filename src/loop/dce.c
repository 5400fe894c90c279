/* dce.c - dead code elimination: values that nothing uses go, and the rounding of values that are stored in the type which they
 * are rounded to: the store does it. In and out: the form of a GPU. The other forms lose theirs as soon as a step leaves some.
 */
#include "loop/loop.h"
#include "loop/schedule.h"

/* Whether the number in r, computed at `from`, is the same at `to`: no sum that goes on. */
static bool lasts(const kernel *k, reg r, int from, int to) {
    for (int i = from; k->ins.at[r].op == K_ACC && i < to; i++)
        if (k->ins.at[i].c == r || k->ins.at[i].op == K_LOOP || k->ins.at[i].op == K_END) return false;
    return true;
}

static void round_once(kernel *k) {
    for (int i = 1; i < k->ins.n; i++) {
        kins *store = &k->ins.at[i];
        const kins *wrap = &k->ins.at[store->a];
        if (store->op != K_STORE || wrap->op != K_WRAP || wrap->src != store->dtype) continue;
        if (lasts(k, wrap->a, (int)store->a, i)) store->a = wrap->a;
    }
}

bool step_dce(kernel **k, const loop_step *s, str *why) {
    (void)s, (void)why;
    round_once(*k);
    loop_sweep(*k);
    return true;
}
