/* widen_half_scatters.c - sums of narrow floats that scatters make are made in f32 and rounded once.
 *
 * In: any graph. Out: no scatter of a half type but those that only replace; the scheduler relies on it. At most as far from
 * the exact sum as before. */
#include "pass/rewrite.h"

bool pass_widen_half_scatters(graph *g, arena *scratch) {
    bool changed = false;
    int n_nodes = g->nodes.n;
    (void)scratch;
    for (val v = 1; v < (val)n_nodes; v++) {
        const node *n = graph_get(g, v);
        tn_dtype t = (tn_dtype)n->dtype;
        if (!op_is_scatter((op_code)n->op) || n->op == OP_scatter_set || !dtype_is_narrow_float(t)) continue;
        val base = n->in[0], index = n->in[1], updates = n->in[2];
        op_code op = (op_code)n->op;
        int axis = (int)n->attr[0], batch = (int)n->attr[1];
        if (!graph_is_read(g, v)) continue; /* replaced before */
        base = graph_cast(g, base, TN_F32), updates = graph_cast(g, updates, TN_F32);
        graph_replace(g, v, graph_cast(g, graph_scatter(g, op, base, index, updates, axis, batch), t));
        changed = true;
    }
    return changed;
}
