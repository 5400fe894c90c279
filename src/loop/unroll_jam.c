/* unroll_jam.c - several iterations of a loop, or vectors of them, are worked on at once: their sums are independent chains,
 * and what they share is loaded once. tile.c writes them out. In and out: scalar form.
 *
 * An unrolled reduction has a partial sum for each of them; other loops keep every bit. */
#include "loop/schedule.h"

enum { MOST_COPIES = 16, MOST_TOGETHER = 512 /* of all loops of a nest */ };

/* The most copies of an instruction, with n of loop v. */
static int64_t copies_with(const kernel *k, kvar v, int64_t n) {
    int64_t now = 1, most = 1;
    VEC(kvar) open = { 0 };
    for (int i = 1; i < k->ins.n; i++) {
        bool opens = k->ins.at[i].op == K_LOOP;
        if (!opens && k->ins.at[i].op != K_END) continue;
        if (opens) VEC_PUSH(k->a, &open, k->ins.at[i].var);
        kvar u = open.at[open.n - 1];
        int64_t copies = u == v ? n : k->vars.at[u].role.unroll > 1 ? k->vars.at[u].role.unroll : 1;
        now = opens ? now * copies : now / copies;
        if (now > most) most = now;
        if (now > MOST_TOGETHER) break;
        if (!opens) open.n--;
    }
    return most;
}

bool step_unroll_jam(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    kvar v = step_loop(k, s, 0, why);
    int64_t n = s->arg[1].n;
    if (v < 0 || (n > 1 && (loop_keeps_order(k, v, why) || loop_splits_sum(k, v, why)))) return false;
    if (n < 1 || n > MOST_COPIES) return step_refuse(why, "%lld copies: expected 1 to %d", (long long)n, MOST_COPIES);
    if (n > 1 && copies_with(k, v, n) > MOST_TOGETHER)
        return step_refuse(why, "with the other loops more than %d copies", MOST_TOGETHER);
    k->vars.at[v].role.unroll = (int)n;
    return true;
}
