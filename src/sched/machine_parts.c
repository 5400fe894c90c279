/* machine_parts.c - how much of a GPU a kernel is scheduled for. Where launches overlap, a kernel that nobody waits for (what
 * it reads was made long before who reads its results, as gradients of parameters are) runs beside others: what counts is the
 * time that it takes of all processors, not how soon it ends, so its tiles are larger and its thread blocks fewer.
 *
 * In: a plan with all kernels in scalar form. Out: a number for each; nothing is changed. */
#include "sched/fusion.h"

/* By how many a machine is smaller for a kernel with work of f32 that takes a few microseconds. (An H200, a transformer's step
 * of 4 layers, 128 wide: products as on half of it 433 to 414 us, on a quarter 432; sums of columns on a quarter 3.6 us less,
 * on a sixteenth 4.8; updates of parameters as on half, so that threads have vectors of more of them: 380 to 376.) */
static int smaller_for(const kernel *k) {
    enum { PRODUCTS = 2, SUMS = 16, MAPS = 2, FLOPS = 1 << 30, BYTES = 4 << 20 };
    bool products = false, sums = false, maps = true;
    for (int b = 0; b < k->bufs.n; b++) /* but for numbers, such as rates */
        if (k->bufs.at[b].dtype != TN_F32 && k->bufs.at[b].elems != 1) return 1;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        products |= in->op == K_UPD && in->alu == OP_dot;
        sums |= in->op == K_UPD && in->alu == OP_add && k->ins.at[1].op == K_LOOP && k->ins.at[2].op == K_ACC;
        maps &= in->op != K_UPD && in->op != K_ARGUPD && in->op != K_SCATTER;
    }
    if (k->params || k->flops > FLOPS) return 1;
    return products ? PRODUCTS : maps ? MAPS : sums && k->bytes_read <= BYTES ? SUMS : 1;
}

const bool *waited_for(const plan *p) {
    enum { APART = 8 /* kernels */ };
    bool *waited = ARENA_ARRAY(p->a, bool, p->kernels.n + 1);
    int *made = ARENA_ARRAY(p->a, int, p->bufs.n + 1); /* + 1; 0: not by a kernel */
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        int from = 0;
        for (int b = 0; b < pk->k->bufs.n; b++)
            if (pk->args[b].buf >= 0 && made[pk->args[b].buf] > from) from = made[pk->args[b].buf];
        for (int b = 0; b < pk->k->bufs.n; b++)
            if (pk->args[b].buf >= 0 && pk->k->bufs.at[b].kind != KB_IN) made[pk->args[b].buf] = i + 1;
        for (int j = i + 1; j < p->kernels.n && j < from + APART && !waited[i]; j++)
            for (int b = 0; b < p->kernels.at[j].k->bufs.n; b++)
                waited[i] |= p->kernels.at[j].args[b].buf >= 0 && made[p->kernels.at[j].args[b].buf] == i + 1;
    }
    return waited;
}

const int *machine_parts(const plan *p, const target *t) {
    enum { LEAST = 4 };
    const bool *waited = t->kind == TARGET_GPU && t->overlaps ? waited_for(p) : NULL;
    int *smaller = ARENA_ARRAY(p->a, int, p->kernels.n + 1), n = 0;
    for (int i = 0; i < p->kernels.n; i++)
        smaller[i] = !waited || waited[i] ? 1 : smaller_for(p->kernels.at[i].k), n += smaller[i] > 1;
    for (int i = 0; i < p->kernels.n && n < LEAST; i++) smaller[i] = 1;
    return smaller;
}
