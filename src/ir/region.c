/* region.c - copies of regions. In: a region of a graph, and what its parameters are to be. Out: its values again, elsewhere.
 */
#include "ir/region.h"

void region_copy_values(graph *g, int from, int to, region_map m) {
    for (val v = m.first; v < m.end; v++) {
        node n = *graph_get(g, v);
        if (n.region != from || n.op == OP_param || n.op == OP_NIL) continue;
        spec s = graph_spec(g, v);
        val *in = ARENA_ARRAY(g->a, val, n.n_in + 1);
        int64_t *attr = ARENA_ARRAY(g->a, int64_t, n.n_attr + 1);
        for (int i = 0; i < n.n_in; i++) in[i] = m.at[n.in[i] - m.first];
        for (int i = 0; i < n.n_attr; i++) attr[i] = n.attr[i];
        for (int i = 0; i < node_regions(&n); i++)
            if (attr[i]) attr[i] = region_copy(g, (int)attr[i], m);
        s.in = in, s.attr = attr, s.region = to;
        g->here = n.where;
        m.at[v - m.first] = graph_add(g, &s);
    }
}

static val add_param(graph *g, int in, tn_dtype t, int rank, const int64_t *dims) {
    int64_t at = g->regions.at[in].n_params;
    return graph_add(g,
                     &(spec){ .op = OP_param, .dtype = t, .rank = rank, .dims = dims, .attr = &at, .n_attr = 1, .region = in });
}

val region_param_like(graph *g, int in, val like) {
    node n = *graph_get(g, like);
    return add_param(g, in, (tn_dtype)n.dtype, n.rank, n.dims);
}

int region_copy(graph *g, int from, region_map m) {
    int to = graph_region(g, g->regions.at[from].name);
    for (int i = 0; i < g->regions.at[from].n_params; i++) {
        val p = g->regions.at[from].params[i];
        m.at[p - m.first] = region_param_like(g, to, p);
    }
    region_copy_values(g, from, to, m);
    for (int i = 0; i < g->regions.at[from].n_results; i++)
        graph_region_result(g, to, m.at[g->regions.at[from].results[i] - m.first]);
    return to;
}
