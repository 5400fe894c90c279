/* count.c - what a kernel in scalar form does: operations, and bytes that cross its border. In: a kernel. Out: its counts. */
#include "loop/operand.h"
#include "sched/sched.h"

/* How often the instructions that compute a contraction's operands run: once for each value that differs, for panels or
 * registers keep them. 0: of other instructions. */
static double *count_prologues(const kernel *k) {
    double *times = ARENA_ARRAY(k->a, double, k->ins.n);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        for (int x = 0; x < 2 && in->op == K_UPD && in->alu == OP_dot; x++) {
            operand o;
            if (!operand_find(k, x ? in->b : in->a, &o) || o.value == o.load) continue;
            const uint64_t *loops = operand_loops(k, &o);
            for (reg r = 1; r <= o.value; r++) {
                if (!o.needs[r]) continue;
                times[r] = 1;
                for (kvar v = 0; v < k->vars.n; v++) times[r] *= loops[r] >> v & 1 ? (double)k->vars.at[v].extent : 1;
            }
        }
    }
    return times;
}

static void count_flops(kernel *own) {
    const kernel *k = kernel_at_most(own, own->a);
    const double *prologue = count_prologues(k);
    double trips[64] = { 1 };
    int depth = 0;
    double flops = 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && depth < 63) trips[depth + 1] = trips[depth] * (double)k->vars.at[in->var].extent, depth++;
        if (in->op == K_END) depth--;
        double times = prologue[i] > 0 ? prologue[i] : trips[depth];
        if (in->op == K_ALU) flops += times * op_get((op_code)in->alu)->flops;
        if (in->op == K_UPD) flops += trips[depth] * (in->alu == OP_dot ? 2 : 1);
        if (in->op == K_ARGUPD) flops += trips[depth];
        if (in->op == K_RANDOM) flops += times * 40;
    }
    own->flops = flops < 0x1p63 ? (uint64_t)flops : INT64_MAX; /* of what nobody can compute */
}

void sched_count(pkernel *pk) {
    kernel_count_traffic(pk->k);
    count_flops(pk->k);
}
