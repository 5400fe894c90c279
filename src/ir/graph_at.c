/* graph_at.c - a graph with symbolic dims for given values of them. In: a graph, values. Out: a graph whose dims are literals;
 * its arena owns everything but the values of constants and states. Jumps where a value is out of its range. Without values:
 * each size at its most, which may be no run's: n and 17 - n are not longest together. A dim of value -1 stays open: the graph
 * has a table of its own then, in which the others have their numbers still. */
#include "ir/kernel.h"

static ext mapped(ext e, const ext *map) { return ext_is_lit(e) ? e : map[ext_index(e)]; }

/* The table with some dims as literals. map: what became of each row of t. */
static exts *fix(const exts *t, const int64_t *dims, arena *a, ext *map) {
    typedef ext maker(exts * t, ext x, ext y);
    static maker *const make[] = { [EXT_ADD] = ext_add,       [EXT_MUL] = ext_mul, [EXT_FLOOR] = ext_floor_div,
                                   [EXT_CEIL] = ext_ceil_div, [EXT_MIN] = ext_min, [EXT_MAX] = ext_max };
    exts *u = exts_make(a);
    for (int i = 0; i < t->at.n; i++) {
        const ext_row *r = &t->at.at[i];
        if (r->op == EXT_DIM) { /* one that is given keeps its number, too */
            int64_t given = dims[r->number];
            map[i] = ext_dim(u, r->name, given < 0 ? r->lo : given, given < 0 ? r->hi : given, r->divisor);
            if (given >= 0) map[i] = given;
        } else {
            map[i] = make[r->op](u, mapped(r->a, map), mapped(r->b, map));
            if (r->lo >= 0) ext_is_size(u, map[i]); /* as it is known to be in t */
        }
    }
    if (u->problem) guard_fail(a->gd, TN_ERR_UNSUPPORTED, "sizes with some dims given: %s", u->problem);
    return u;
}

graph *graph_at(const graph *g, const int64_t *dims, arena *a) {
    graph *o = graph_clone(g, a, false, NULL);
    str why;
    if (!g->params) return o;
    str_init(&why, a);
    bool open = false;
    int64_t *rows = ARENA_ARRAY(a, int64_t, g->params->at.n + 1);
    for (int d = 0; dims && d < g->params->n_dims; d++) open |= dims[d] < 0;
    for (int i = 0; i < g->params->at.n && !dims; i++) rows[i] = g->params->at.at[i].hi;
    o->params = open ? fix(g->params, dims, a, rows) : NULL;
    if (dims && !open && !exts_at(g->params, dims, rows, &why))
        guard_fail(a->gd, TN_ERR_INVAL, "graph @%s: %s", g->name, why.s);
    for (val v = 1; v < (val)o->nodes.n; v++) {
        node *n = graph_get(o, v);
        int64_t *own = ARENA_ARRAY(a, int64_t, n->rank + 1);
        for (int i = 0; i < n->rank; i++) own[i] = mapped(n->dims[i], rows);
        n->dims = own;
        int64_t *attr = ARENA_ARRAY(a, int64_t, n->n_attr + 1);
        for (int i = 0; i < n->n_attr; i++) attr[i] = mapped(n->attr[i], rows);
        n->attr = attr;
    }
    return o;
}
