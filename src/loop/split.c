/* split.c - strip mining: a loop of independent iterations becomes pieces, and the loop over the pieces the outermost one: what
 * a piece touches is used whole before the next. In and out: scalar form. */
#include "loop/build.h"
#include "loop/loop.h"
#include "loop/schedule.h"

/* What is read of buffer `buf` is the same in every piece. */
static bool only_read(const kernel *k, int buf) {
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if ((in->op == K_STORE || in->op == K_SCATTER) && in->buf == buf) return false;
    }
    return true;
}

bool step_split(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    kvar v = step_loop(k, s, 0, why);
    int64_t piece = s->arg[1].n;
    if (v < 0) return false;
    const char *name = s->arg[0].word;
    int64_t extent = k->vars.at[v].extent;
    if (!k->vars.at[v].row) return step_refuse(why, "loop %s is not one of independent iterations", name);
    if (k->vars.n >= MAX_LOOPS) return step_refuse(why, "the kernel has %d loops; the limit is %d", k->vars.n, MAX_LOOPS);
    if (piece < 1 || extent % piece) /* a last, shorter piece would be a loop of its own */
        return step_refuse(why, "%lld iterations of %s do not come out in pieces of %lld", (long long)extent, name,
                           (long long)piece);
    for (int i = 1; i < k->ins.n; i = k->ins.at[i].op == K_LOOP ? kernel_loop_end(k, i) + 1 : i + 1) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOOP && !kernel_is_pure(in) && !(in->op == K_LOAD && only_read(k, in->buf)))
            return step_refuse(why, "instruction %%%d stands outside of all loops", i);
    }
    bool found = false;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        found |= in->op == K_LOOP && in->var == v;
        if (in->op == K_LOOP && in->var == v && (in->lo != 0 || in->hi != extent || in->step != 1 || in->par))
            return step_refuse(why, "loop %s is cut or dealt out already", name);
        if (loop_is_local(k, in)) return step_refuse(why, "b%d waits in local memory from one loop to another", in->buf);
    }
    if (!found) return step_refuse(why, "loop %s is part of another one", name);
    kvar b = kernel_var(k, "vb", extent / piece, true, false);
    k->vars.at[v].extent = piece;
    affine value = affine_add(k->a, build_times(k->a, b, piece), affine_var(k->a, v));
    for (int i = 1; i < k->ins.n; i++) {
        kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && in->var == v) in->hi = piece;
        build_set_var(k->a, in, v, value);
    }
    build_around(k, b, extent / piece);
    return true;
}
