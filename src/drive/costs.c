/* costs.c - what the cost model says of a program's launches. In: a compiled program. Out: a cost each. */
#include "drive/drive.h"

typedef struct pricing {
    arena a;
    guard gd;
} pricing;

static tn_status price(pricing *x, const tn_program *p, bool alone, cost *out, err *e) {
    if (GUARD_TRY(&x->gd)) {
        machine m = machine_of(&p->target);
        if (!alone) cost_plan(p->plan, &m, &x->a, out);
        for (int i = 0; i < p->plan->kernels.n && alone; i++) out[i] = cost_kernel(p->plan->kernels.at[i].k, &m, NULL, &x->a);
        return TN_OK;
    }
    return err_set(e, x->gd.err.code, "%s", x->gd.err.text);
}

tn_status drive_costs(const tn_program *p, bool alone, cost *out, err *e) {
    pricing x = { 0 };
    arena_init(&x.a, p->ctx->mem, &x.gd);
    tn_status st = price(&x, p, alone, out, e);
    arena_fini(&x.a);
    return st;
}
