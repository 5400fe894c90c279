/* graph_at.c - a graph with symbolic dims for given values of them. In: a graph, values. Out: a graph whose dims are literals;
 * its arena owns everything but the values of constants and states. Jumps where a value is out of its range. Without values:
 * each size at its most, which may be no run's: n and 17 - n are not longest together. */
#include "ir/kernel.h"

graph *graph_at(const graph *g, const int64_t *dims, arena *a) {
    graph *o = graph_clone(g, a, false, NULL);
    str why;
    if (!g->params) return o;
    str_init(&why, a);
    int64_t *rows = ARENA_ARRAY(a, int64_t, g->params->at.n + 1);
    for (int i = 0; i < g->params->at.n && !dims; i++) rows[i] = g->params->at.at[i].hi;
    if (dims && !exts_at(g->params, dims, rows, &why)) guard_fail(a->gd, TN_ERR_INVAL, "graph @%s: %s", g->name, why.s);
    for (val v = 1; v < (val)o->nodes.n; v++) {
        node *n = graph_get(o, v);
        int64_t *own = ARENA_ARRAY(a, int64_t, n->rank + 1);
        for (int i = 0; i < n->rank; i++) own[i] = ext_of(n->dims[i], rows);
        n->dims = own;
        int64_t *attr = ARENA_ARRAY(a, int64_t, n->n_attr + 1);
        for (int i = 0; i < n->n_attr; i++) attr[i] = ext_of(n->attr[i], rows);
        n->attr = attr;
    }
    o->params = NULL;
    return o;
}
