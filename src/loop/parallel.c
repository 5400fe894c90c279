/* parallel.c - iterations of a loop are split over threads, in whole tiles; what does not fill one is the last thread's. In and
 * out: scalar form. */
#include "loop/loop.h"
#include "loop/schedule.h"

/* Each thread has local memory of its own and runs what stands outside of the loop like all others. What an iteration leaves
 * there, only the same iteration may read: all loads of such a buffer are inside of the loop, too, at places that move as those
 * of the stores do. Returns such a buffer for which that is not so, or -1. */
static int crosses(const kernel *k, kvar v) {
    const bool *in_loop = loop_inside(k, v);
    for (int b = 0; b < k->bufs.n; b++) {
        bool inside = false, outside = false, mixed = false;
        int64_t coef = 0;
        if (k->bufs.at[b].kind != KB_LOCAL) continue;
        for (int i = 1; i < k->ins.n; i++) {
            const kins *in = &k->ins.at[i];
            if ((in->op != K_STORE && in->op != K_LOAD) || in->buf != b) continue;
            if (in_loop[i]) {
                mixed = mixed || (inside && affine_coef(in->idx, v) != coef);
                coef = affine_coef(in->idx, v);
                inside = true;
            } else if (in->op == K_LOAD) {
                outside = true;
            }
        }
        if (inside && (outside || mixed)) return b;
    }
    return -1;
}

/* Whether a loop over blocks of rows is around one over v. */
static bool is_in_block(const kernel *k, kvar v) {
    for (int i = 1; i < k->ins.n; i++) {
        if (k->ins.at[i].op != K_LOOP || !k->vars.at[k->ins.at[i].var].block) continue;
        for (int end = kernel_loop_end(k, i++); i < end; i++)
            if (k->ins.at[i].op == K_LOOP && k->ins.at[i].var == v) return true;
    }
    return false;
}

bool step_parallel(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    kvar v = step_loop(k, s, 0, why);
    if (v < 0) return false;
    const char *name = s->arg[0].word;
    if (k->par_var >= 0) return step_refuse(why, "loop %s is split over threads already", k->vars.at[k->par_var].name);
    if (k->vars.at[v].reduce) return step_refuse(why, "iterations of %s are added up: they need each other", name);
    if (ext_is_lit(k->vars.at[v].extent) && k->vars.at[v].extent < 2) return step_refuse(why, "%s has one iteration", name);
    if (k->params && (k->ins.at[1].op != K_LOOP || k->ins.at[1].var != v))
        return step_refuse(why, "%s is not the outermost loop, and the kernel has sizes that are given at run time", name);
    int local = crosses(k, v);
    if (local >= 0) return step_refuse(why, "what iterations of %s leave in b%d is read outside of them", name, local);
    bool any = false;
    const bool *inside = loop_inside(k, v);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        any = any || (in->op == K_LOOP && in->var == v);
        if (in->op != K_STORE && in->op != K_SCATTER) continue;
        if (k->bufs.at[in->buf].kind == KB_LOCAL) continue;
        if (!inside[i] && in->op == K_SCATTER) return step_refuse(why, "a scatter adds to b%d outside of %s", in->buf, name);
        if (!affine_coef(in->idx, v) && !in->dyn)
            return step_refuse(why, "iterations of %s write the same elements of b%d", name, in->buf);
    }
    if (!any) return step_refuse(why, "no loop runs over %s", name);
    if (is_in_block(k, v)) return step_refuse(why, "%s runs inside a block of rows: threads share whole blocks", name);
    k->par_var = v;
    for (int i = 1; i < k->ins.n; i++) /* the columns that do not fill a panel have a loop of their own, behind */
        if (k->ins.at[i].op == K_LOOP && k->ins.at[i].var == v && k->ins.at[i].lo != 0) k->ins.at[i].par = PAR_LAST;
    return true;
}
