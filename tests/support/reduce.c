/* reduce.c - shrinks a failing graph: reduce_graph of support.h.
 *
 * Every attempt edits a fresh copy and keeps it when the failure is still there. Rounds go on until one changes nothing. */
#include "support/support.h"

#include <stdio.h>

typedef struct reducer {
    arena *a;
    graph_predicate fails;
    void *ud;
    graph *best;
    int n_fresh;
} reducer;

static bool keep_if_failing(reducer *r, graph *candidate) {
    graph_compact(candidate);
    graph *probe = graph_clone(candidate, r->a, false, NULL); /* the predicate may change what it gets */
    if (!r->fails(probe, r->ud)) return false;
    r->best = candidate;
    return true;
}

static bool drop_outputs(reducer *r) {
    bool changed = false;
    for (int k = r->best->outputs.n - 1; k >= 0 && r->best->outputs.n > 1; k--) {
        graph *c = graph_clone(r->best, r->a, false, NULL);
        for (int j = k; j + 1 < c->outputs.n; j++) c->outputs.at[j] = c->outputs.at[j + 1];
        c->outputs.n--;
        changed |= keep_if_failing(r, c);
    }
    return changed;
}

/* The value v alone as output: cuts off everything behind it. */
static bool output_only(reducer *r, val v) {
    graph *c = graph_clone(r->best, r->a, false, NULL);
    c->outputs.n = 0;
    graph_output(c, "y", v);
    return keep_if_failing(r, c);
}

static val fresh_input(reducer *r, graph *c, val like) {
    const node *n = graph_get(c, like);
    spec s = { .op = OP_input, .dtype = (tn_dtype)n->dtype, .rank = n->rank, .dims = n->dims };
    s.name = arena_printf(r->a, "cut%d", r->n_fresh++);
    return graph_add(c, &s);
}

static bool cut_value(reducer *r, val v) {
    const node *n = graph_get(r->best, v);
    bool source = op_get(n->op)->cls == CL_SOURCE;
    if (n->region != 0 || n->op == OP_const || n->op == OP_param || (source && n->op != OP_iota)) return false;
    for (int way = source ? -1 : n->n_in - 1; way >= -2; way--) { /* an operand, an input, a constant */
        graph *c = graph_clone(r->best, r->a, false, NULL);
        val with;
        if (way >= 0) {
            with = n->in[way];
            if (graph_get(c, with)->dtype != n->dtype || !graph_same_shape(c, with, v)) continue;
        } else {
            with = way == -1 ? fresh_input(r, c, v) : graph_splat_like(c, v, 1);
        }
        graph_replace(c, v, with);
        if (keep_if_failing(r, c)) return true;
    }
    return false;
}

static void drop_unused_inputs(reducer *r) {
    for (int k = r->best->inputs.n - 1; k >= 0; k--) {
        val v = r->best->inputs.at[k];
        bool assigned = false;
        for (int j = 0; j < r->best->outputs.n; j++) assigned |= r->best->outputs.at[j].state == v;
        if (assigned || graph_n_uses(r->best, v) > 0) continue;
        graph *c = graph_clone(r->best, r->a, false, NULL);
        for (int j = k; j + 1 < c->inputs.n; j++) c->inputs.at[j] = c->inputs.at[j + 1];
        c->inputs.n--;
        keep_if_failing(r, c);
    }
}

graph *reduce_graph(const graph *g, arena *a, graph_predicate fails, void *ud) {
    reducer r = { a, fails, ud, graph_clone(g, a, false, NULL), 0 };
    for (bool changed = true; changed;) {
        changed = drop_outputs(&r);
        for (int v = 1; v < r.best->nodes.n; v++) {
            int before = r.best->nodes.n;
            if (r.best->nodes.at[v].region == 0 && (r.best->outputs.n > 1 || r.best->outputs.at[0].v != (val)v) &&
                output_only(&r, (val)v))
                changed |= r.best->nodes.n < before;
        }
        for (int v = r.best->nodes.n - 1; v >= 1; v--) {
            if (v >= r.best->nodes.n) continue;
            changed |= cut_value(&r, (val)v);
        }
        drop_unused_inputs(&r);
    }
    return r.best;
}

graph *reduce_and_print(const graph *g, arena *a, graph_predicate fails, void *ud) {
    graph *small = reduce_graph(g, a, fails, ud);
    str text;
    str_init(&text, a);
    graph_print(small, &text);
    fprintf(stderr, "reduced graph:\n%s\n", text.s);
    return small;
}
