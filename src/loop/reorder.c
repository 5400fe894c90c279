/* reorder.c - loop interchange: loops that are perfectly nested change places. In and out: scalar form.
 *
 * Loops whose iterations are independent, and contraction loops among each other. The terms of a sum then come in another
 * order. */
#include "loop/schedule.h"

bool step_reorder(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    kvar order[STEP_MOST_ARGS] = { 0 };
    int first = 0;
    for (int i = 0; i < s->n; i++) {
        order[i] = step_loop(k, s, i, why);
        if (order[i] < 0) return false;
        int at = step_find_loop(k, order[i]);
        if (!at) return step_refuse(why, "%s is not one loop: it runs nowhere, or at several places", s->arg[i].word);
        for (int j = 0; j < i; j++)
            if (order[j] == order[i]) return step_refuse(why, "loop %s is named twice", s->arg[i].word);
        first = i == 0 || at < first ? at : first;
    }
    const kvar_info *one = &k->vars.at[order[0]];
    if (k->params && one->row)
        return step_refuse(why, "a run gives sizes of the kernel: independent loops keep their places, as the proof needs that "
                                "threads touch other elements");
    for (int i = 0; i < s->n; i++) {
        const kins *in = &k->ins.at[first + i];
        bool named = false;
        for (int j = 0; j < s->n && in->op == K_LOOP; j++) named = named || in->var == order[j];
        if (!named || kernel_loop_end(k, first + i) != kernel_loop_end(k, first) - i)
            return step_refuse(why, "the loops are not directly nested in each other");
    }
    for (int i = 0; i < s->n; i++) {
        const kins *in = &k->ins.at[first + i];
        const kvar_info *v = &k->vars.at[order[i]];
        if (in->par || in->a || in->lo != 0 || in->step != 1)
            return step_refuse(why, "loop %s is dealt out or cut already", k->vars.at[in->var].name);
        if (v->row != one->row || v->reduce != one->reduce || (!v->row && !v->reduce))
            return step_refuse(why,
                               "loops %s and %s are not of one kind: independent ones change places with each other, and "
                               "contraction loops do",
                               s->arg[0].word, s->arg[i].word);
    }
    for (int i = first; i < k->ins.n && one->reduce; i++) {
        if (k->ins.at[i].op == K_ARGUPD || k->ins.at[i].op == K_SCATTER)
            return step_refuse(why, "an index of a best value, or a scatter, needs the order of its loops");
        if (i == kernel_loop_end(k, first)) break;
    }
    for (int i = 0; i < s->n; i++) {
        k->ins.at[first + i].var = order[i];
        k->ins.at[first + i].hi = k->vars.at[order[i]].extent;
    }
    return true;
}
