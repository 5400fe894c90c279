/* dce.c - dead work. Nodes that no output reaches are dropped by the runner's compaction; what is left for this pass is work on
 * no elements at all: a value with a dim of 0 has nothing to compute and becomes a constant of that shape, which cuts it from
 * its operands. What reads it (a sum over no elements, a concat with an empty piece) is then folded by fold and concat_slice.
 * Exact: there are no elements to differ. Unused results of ops with regions are kept: removing one would change the region. */
#include "pass/rewrite.h"

static val drop_empty(graph *g, val v, arena *scratch) {
    (void)scratch;
    node n = *graph_get(g, v);
    if (n.op == OP_const || graph_elems(g, v) != 0) return 0;
    return zeros(g, n.dtype, n.rank, n.dims);
}

/* An empty input keeps its place in the interface, but nobody has to read it. */
static bool cut_empty_sources(graph *g) {
    bool changed = false;
    int n_nodes = g->nodes.n;
    for (int i = 1; i < n_nodes; i++) {
        node n = *graph_get(g, (val)i);
        if (n.region != 0 || n.n_in == 0) continue;
        for (int k = 0; k < n.n_in; k++) {
            node x = *graph_get(g, n.in[k]);
            if ((x.op != OP_input && x.op != OP_state) || !is_static(g, n.in[k]) || graph_elems(g, n.in[k]) != 0) continue;
            graph_set_in(g, (val)i, k, zeros(g, x.dtype, x.rank, x.dims));
            changed = true;
        }
    }
    return changed;
}

bool pass_dce(graph *g, arena *scratch) {
    bool changed = cut_empty_sources(g);
    return rewrite_each(g, scratch, drop_empty) || changed;
}
