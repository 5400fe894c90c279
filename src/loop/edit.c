/* edit.c - what the steps share: removing instructions. In and out: any form. */
#include "loop/loop.h"

void loop_compact(kernel *k) {
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

void loop_sweep(kernel *k) {
    bool *used = ARENA_ARRAY(k->a, bool, k->ins.n);
    for (int i = k->ins.n - 1; i > 0; i--) {
        const kins *in = &k->ins.at[i];
        if ((kernel_is_pure(in) || in->op == K_LOAD) && !used[i])
            k->ins.at[i].op = K_NIL;
        else
            used[in->a] = used[in->b] = used[in->c] = used[in->dyn] = true;
    }
    loop_compact(k);
}

void loop_drop_unread(kernel *k, int buf) {
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_LOAD && k->ins.at[i].buf == buf) return;
    k->bufs.at[buf].kind = KB_LOCAL, k->bufs.at[buf].fixed = false;
    k->bufs.at[buf].elems = 0;
}
