/* reuse_variables.c - nests that follow each other need no loop variables of their own: chains of kernels have hundreds of
 * nests. In and out: scalar form. */
#include "loop/build.h"
#include "loop/schedule.h"

bool step_reuse_variables(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    (void)s;
    for (kvar v = 0; v < k->vars.n; v++)
        if (k->vars.at[v].role.lanes > 1 || k->vars.at[v].role.unroll > 1)
            return step_refuse(why, "loop %s is vectorized or unrolled", k->vars.at[v].name);
    kvar_info *vars = ARENA_ARRAY(k->a, kvar_info, k->vars.n + 1);
    kvar *now = ARENA_ARRAY(k->a, kvar, k->vars.n + 1);
    bool *open = ARENA_ARRAY(k->a, bool, k->vars.n + 1);
    int n = 0, depth = 0, *stack = ARENA_ARRAY(k->a, int, k->ins.n);
    for (int i = 1; i < k->ins.n; i++) {
        kins *in = &k->ins.at[i];
        if (in->op == K_END) open[stack[--depth]] = false;
        if (in->op == K_LOOP) {
            const kvar_info *own = &k->vars.at[in->var];
            kvar v = 0;
            while (v < n &&
                   (open[v] || vars[v].extent != own->extent || vars[v].row != own->row || vars[v].reduce != own->reduce))
                v++;
            if (v == n) vars[n++] = *own;
            open[v] = true, stack[depth++] = v;
            in->var = now[in->var] = v;
        }
        build_rename(k->a, in, now);
    }
    k->vars.at = vars, k->vars.n = n, k->vars.cap = n;
    return true;
}
