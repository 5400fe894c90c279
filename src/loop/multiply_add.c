/* multiply_add.c - a sum of products adds each with one rounding, by multiply-adds: half as many additions where those are what
 * a row takes (a variance, a mean square). In and out: tiled form.
 *
 * Which sums are done so does not depend on the tile, nor do the bits of a result. */
#include "loop/schedule.h"
#include "loop/loop.h"

/* The product that an update adds; NULL when it adds something else. */
static const kins *product_of(const kernel *k, const kins *upd) {
    const kins *m = &k->ins.at[upd->a];
    bool sum = upd->op == K_UPD && upd->alu == OP_add && dtype_is_float((tn_dtype)upd->dtype);
    if (!sum || m->op != K_ALU || m->alu != OP_mul) return NULL;
    /* An accumulator may have gone on since. */
    return k->ins.at[m->a].op != K_ACC && k->ins.at[m->b].op != K_ACC ? m : NULL;
}

bool step_multiply_add(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    (void)s, (void)why;
    bool any = false;
    for (int i = 1; i < k->ins.n; i++) {
        kins *upd = &k->ins.at[i];
        const kins *m = product_of(k, upd);
        if (!m) continue;
        upd->alu = OP_dot, upd->a = m->a, upd->b = m->b;
        any = true;
    }
    if (any) loop_sweep(k);
    return true;
}
