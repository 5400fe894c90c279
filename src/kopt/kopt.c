/* kopt.c - the order of the steps, and what they share. */
#include "kopt/kopt.h"

int kopt_loop_end(const kernel *k, int i) {
    int depth = 0;
    for (; i < k->ins.n; i++) {
        depth += k->ins.at[i].op == K_LOOP;
        if (k->ins.at[i].op == K_END && --depth == 0) return i;
    }
    guard_fail(k->a->gd, TN_ERR_INTERNAL, "kernel %s: a loop is not closed", k->name);
}

void kopt_compact(kernel *k) {
    reg *to = ARENA_ARRAY(k->a, reg, k->ins.n);
    int n = 1;
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op != K_NIL) to[i] = (reg)n++;
    n = 1;
    for (int i = 1; i < k->ins.n; i++) {
        kins in = k->ins.at[i];
        if (in.op == K_NIL) continue;
        in.a = to[in.a], in.b = to[in.b], in.c = to[in.c], in.dyn = to[in.dyn];
        k->ins.at[n++] = in;
    }
    k->ins.n = n;
}

kernel *kopt_run(kernel *k, const target *t) {
    kopt_collapse(k);
    kopt_hoist(k);
    kopt_choose(k, t);
    kopt_stage(k, t);
    return kopt_tile(k);
}
