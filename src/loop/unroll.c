/* unroll.c - an innermost loop of few iterations is written out: what does not change in it is computed once, and loops round
 * it become innermost. In and out: scalar form. Sums keep their order. */
#include "loop/build.h"
#include "loop/gpu_bind.h"

enum { MOST = 16 };

/* It is the same in all iterations where nothing that it is made of differs. */
static bool is_shared(const kernel *k, const kins *in) {
    return kernel_is_pure(in) || (in->op == K_LOAD && k->bufs.at[in->buf].kind == KB_IN);
}

bool step_unroll(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    kvar v = step_loop(k, s, 0, why);
    int at = v < 0 ? 0 : step_find_loop(k, v), end = at ? kernel_loop_end(k, at) : 0;
    if (v < 0) return false;
    const char *name = s->arg[0].word;
    if (!at) return step_refuse(why, "loop %s is not there once", name);
    const kins *loop = &k->ins.at[at];
    if (loop->step != 1 || loop->par || loop->a || !ext_is_lit(loop->lo) || !ext_is_lit(loop->hi))
        return step_refuse(why, "loop %s is cut, bound or of a length that a run gives", name);
    if (loop->hi - loop->lo > MOST) return step_refuse(why, "loop %s has more than %d iterations", name, MOST);
    for (int i = at + 1; i < end; i++)
        if (k->ins.at[i].op == K_LOOP || k->ins.at[i].op == K_ACC || !ext_is_lit(affine_coef(k->ins.at[i].idx, v)))
            return step_refuse(why, "instruction %%%d in loop %s is a loop, begins a sum or moves as a run says", i, name);
    const bool *varies = gpu_varying(k, NULL, v);
    kernel *o = kernel_clone(k, k->a);
    o->ins.n = 1;
    build_copier c = build_copier_make(k, o);
    const build_places none = { .n = 0 };
    for (int i = 1; i < at; i++) build_copy(&c, i, &none);
    for (int64_t it = loop->lo; it < loop->hi; it++) {
        build_places p = { .n = 0 };
        build_put(&p, v, affine_const(it));
        for (int i = at + 1; i < end; i++)
            if (it == loop->lo || varies[i] || !is_shared(k, &k->ins.at[i])) build_copy(&c, i, &p);
    }
    for (int i = end + 1; i < k->ins.n; i++) build_copy(&c, i, &none);
    *kk = o;
    return true;
}
