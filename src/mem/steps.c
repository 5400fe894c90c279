/* steps.c - the tree of steps of a plan: what a run does, in which order. In: kernels in launch order, in their final form.
 * Out: plan.steps, in the plan's arena. Those of control flow are sched's. */
#include "mem/mem.h"

bool mem_may_overlap(const plan *p) {
    for (int i = 0; i < p->g->outputs.n; i++)
        if (p->g->outputs.at[i].state) return false; /* a step leaves it to the next one */
    return plan_is_for_gpus(p) && !plan_has_control(p);
}

static pstep loop_of_run(const plan *p) {
    bool gpu = plan_is_for_gpus(p);
    pstep x = { .kind = PSTEP_LOOP, .inside = p->steps.n - 1 };
    pring *rings = ARENA_ARRAY(p->a, pring, p->io.n + 1);
    for (int b = 0; b < p->bufs.n; b++)
        if (p->bufs.at[b].io >= 0 && p->bufs.at[b].bytes > 0)
            rings[x.n_rings++] = (pring){ b, plan_ring_stride(p->bufs.at[b].bytes, p->bufs.at[b].bytes, gpu) };
    x.rings = rings;
    return x;
}

void mem_steps(plan *p, bool many, bool overlap) {
    int old = plan_has_control(p) ? p->steps.n : 0; /* kernels may have been joined else */
    p->steps.n = old;
    for (int i = 0; i < p->kernels.n && !old; i++) VEC_PUSH(p->a, &p->steps, ((pstep){ .kind = PSTEP_LAUNCH, .kernel = i }));
    if (!many) return;
    VEC_PUSH(p->a, &p->steps, (pstep){ 0 });
    memmove(p->steps.at + 1, p->steps.at, sizeof *p->steps.at * (size_t)(p->steps.n - 1));
    p->steps.at[0] = loop_of_run(p);
    p->steps.at[0].overlaps = overlap && !old && mem_may_overlap(p);
}
