/* fuse_loops.c - two perfectly nested loops that every index walks as one (coefficient of the outer = extent of the inner times
 * coefficient of the inner) become one: longer vectors, fewer tails. In and out: scalar form. */
#include "loop/build.h"
#include "loop/schedule.h"
#include "loop/loop.h"

static bool walks_as_one(const kernel *k, affine x, kvar outer, kvar inner) {
    return affine_coef(x, outer) == ext_mul(k->params, k->vars.at[inner].extent, affine_coef(x, inner));
}

static bool can_merge(const kernel *k, int loop, kvar outer, kvar inner, str *why) {
    const kvar_info *a = &k->vars.at[outer], *b = &k->vars.at[inner];
    if (a->row != b->row || a->reduce != b->reduce)
        return step_refuse(why, "%s and %s are not of one kind (independent, or of a contraction)", a->name, b->name);
    int end = kernel_loop_end(k, loop);
    for (int i = loop; i < end; i++) {
        const kins *in = &k->ins.at[i];
        bool only_numbers_copies = loop_is_local(k, in) && a->row; /* that is all row terms of local memory do */
        if (!only_numbers_copies && !walks_as_one(k, in->idx, outer, inner))
            return step_refuse(why, "instruction %%%d does not walk through memory along %s and %s as one", i, a->name,
                               b->name);
        if (in->op == K_ARGUPD && (affine_coef(in->idx, outer) || affine_coef(in->idx, inner)))
            return step_refuse(why, "instruction %%%d finds an index along them", i);
        for (int m = 0; m < in->n_mask; m++)
            if (!walks_as_one(k, in->mask[m].e, outer, inner))
                return step_refuse(why, "a bounds check of instruction %%%d knows %s or %s alone", i, a->name, b->name);
    }
    return true;
}

bool step_fuse_loops(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    kvar outer = step_loop(k, s, 0, why), inner = outer < 0 ? -1 : step_loop(k, s, 1, why);
    if (inner < 0) return false;
    int i = step_find_loop(k, outer), at = step_find_loop(k, inner);
    if (!i || !at) return step_refuse(why, "%s is not one loop: it runs nowhere, or at several places", s->arg[i ? 1 : 0].word);
    int end = kernel_loop_end(k, i);
    if (at != i + 1 || k->ins.at[end - 1].op != K_END || kernel_loop_end(k, at) != end - 1)
        return step_refuse(why, "%s is not directly in %s", s->arg[1].word, s->arg[0].word);
    if (!can_merge(k, i, outer, inner, why)) return false;
    for (int j = i; j < end; j++) build_set_var(k->a, &k->ins.at[j], outer, affine_const(0));
    k->vars.at[inner].extent = ext_mul(k->params, k->vars.at[inner].extent, k->vars.at[outer].extent);
    k->ins.at[i + 1].hi = k->vars.at[inner].extent;
    k->ins.at[i].op = K_NIL, k->ins.at[end].op = K_NIL;
    loop_compact(k);
    return true;
}
