/* own_outputs.c - every output gets a value of its own that a kernel computes: an identity where it is an input, a state or a
 * constant, or is named twice.
 *
 * In: any graph. Out: outputs are values that no two of them share; the scheduler, which gives each a buffer, relies on it.
 * Exact. */
#include "pass/rewrite.h"

bool pass_own_outputs(graph *g, arena *scratch) {
    bool changed = false;
    (void)scratch;
    for (int i = 0; i < g->outputs.n; i++) {
        val v = g->outputs.at[i].v;
        const node *n = graph_get(g, v);
        bool again = op_get((op_code)n->op)->cls == CL_SOURCE;
        for (int j = n->first_out; j && !again; j = g->outputs.at[j - 1].next) again = j - 1 < i;
        if (again) graph_set_output(g, i, graph_unary(g, OP_stop_gradient, v));
        changed |= again;
    }
    return changed;
}
