/* lower_item.c - facts about what is computed inside of the kernel that is being lowered. */
#include "sched/lower.h"

bool lower_var_is_row(const lower *w, kvar v) { return v < w->an.n_root_vars && w->an.alive[v]; }

item *lower_find_item(lower *w, val v) {
    for (int i = 0; i < w->items.n; i++)
        if (w->items.at[i].v == v) return &w->items.at[i];
    return NULL;
}

const affine *lower_first_index(const lower *w, val v) {
    const affine *first = NULL;
    for (int i = w->an.bucket[v % VISIT_BUCKETS]; i; i = w->an.visits.at[i - 1].next) /* from the last one back */
        if (w->an.visits.at[i - 1].v == v) first = w->an.visits.at[i - 1].idx;
    return first;
}

/* Axis of an inside value that runs along a row (all its loop variables are rows). */
bool lower_axis_is_row(const lower *w, val v, int axis) {
    const affine *idx = lower_first_index(w, v);
    if (!idx) return false;
    affine x = idx[axis];
    if (x.n == 0 || x.base) return false;
    int64_t extent = 1;
    for (int i = 0; i < x.n; i++) {
        if (!lower_var_is_row(w, x.t[i].var)) return false;
        extent = ext_mul(w->g->params, extent, w->an.k->vars.at[x.t[i].var].extent);
    }
    return extent == graph_get(w->g, v)->dims[axis];
}

bool lower_has(const lower *w, val v) {
    if (sched_inside(w->s, w->gi, v)) return true;
    for (int i = 0; i < w->gr->roots.n; i++)
        if (w->gr->roots.at[i] == v) return true;
    return false;
}
