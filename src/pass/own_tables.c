/* own_tables.c - a gather reads its table at computed places, so a constant of one value and an iota, which have no memory, get
 * some: an identity that a kernel computes.
 *
 * In: any graph. Out: tables of gathers are no splats and no iotas; the scheduler relies on it. Exact. */
#include "pass/rewrite.h"

bool pass_own_tables(graph *g, arena *scratch) {
    bool changed = false;
    int n_nodes = g->nodes.n;
    (void)scratch;
    for (val v = 1; v < (val)n_nodes; v++) {
        const node *n = graph_get(g, v);
        if (n->op != OP_gather) continue;
        const node *table = graph_get(g, n->in[0]);
        if (!(table->op == OP_const && table->splat) && table->op != OP_iota) continue;
        graph_set_in(g, v, 0, graph_unary(g, OP_stop_gradient, n->in[0]));
        changed = true;
    }
    return changed;
}
