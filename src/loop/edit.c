/* edit.c - what the steps share: removing and inserting instructions. In and out: any form. */
#include "loop/build.h"
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
        build_operands(&in, to);
        k->ins.at[n++] = in;
    }
    k->ins.n = n;
}

loop_insertion loop_insert_begin(kernel *k, int at) {
    int n = k->ins.n - at;
    k->ins.n = at;
    return (loop_insertion){ at, n, arena_copy(k->a, k->ins.at + at, sizeof(kins) * (size_t)n) };
}

int loop_insert_end(kernel *k, const loop_insertion *x) {
    int more = k->ins.n - x->at;
    for (int i = 0; i < x->n; i++) {
        kins in = x->rest[i];
        reg *of[] = { &in.a, &in.b, &in.c, &in.dyn };
        for (size_t r = 0; r < COUNT_OF(of); r++) *of[r] += (int)*of[r] >= x->at ? (reg)more : 0;
        kernel_push(k, in);
    }
    return more;
}

void loop_insert(kernel *k, int at, const kins *in, int n) {
    loop_insertion x = loop_insert_begin(k, at);
    for (int i = 0; i < n; i++) kernel_push(k, in[i]);
    loop_insert_end(k, &x);
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

void loop_take_place(kernel *k, int b) {
    int of = k->bufs.at[b].panels_of;
    for (int i = 1; i < k->ins.n; i++)
        if (kernel_has_buffer(&k->ins.at[i]) && k->ins.at[i].buf == of) return;
    for (int i = 1; i < k->ins.n; i++) {
        kins *in = &k->ins.at[i];
        if (!kernel_has_buffer(in)) continue;
        if (in->buf == b)
            in->buf = (uint16_t)of;
        else if (in->buf > b)
            in->buf--;
    }
    k->bufs.at[of] = k->bufs.at[b];
    k->bufs.n--;
    for (int i = b; i < k->bufs.n; i++) k->bufs.at[i] = k->bufs.at[i + 1];
}
