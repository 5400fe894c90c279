/* own_concat_parts.c - every part of a concat gets a value of its own, an identity, which a kernel writes where the part lies.
 * But for concats that nothing else needs: their parts are the larger one's.
 *
 * In: any graph. Out: parts of concats are identities that nothing else reads; the scheduler relies on it. Exact. */
#include "pass/rewrite.h"

static bool is_own(const graph *g, val x) {
    op_code op = (op_code)graph_get(g, x)->op;
    return (op == OP_concat || op == OP_stop_gradient) && graph_used_once(g, x) && !graph_is_output(g, x);
}

bool pass_own_concat_parts(graph *g, arena *scratch) {
    bool changed = false;
    int n_nodes = g->nodes.n;
    (void)scratch;
    for (val v = 1; v < (val)n_nodes; v++)
        for (int i = 0; graph_get(g, v)->op == OP_concat && i < graph_get(g, v)->n_in; i++) {
            val x = graph_get(g, v)->in[i];
            if (is_own(g, x)) continue;
            graph_set_in(g, v, i, graph_unary(g, OP_stop_gradient, x));
            changed = true;
        }
    return changed;
}
