/* scan_before.c - a stack of what a scan carried into each iteration is one of what it carried out of them, moved on by one.
 *
 * In: scans of a known number of iterations, one of whose results stacks a parameter of the body that is carried, as what
 * gradients need. Out: a stack of what it becomes, which often is there, or which the kernel that computes it writes: no copy
 * in each iteration; before it what the scan began with. Exact. */
#include "ir/region.h"
#include "pass/rewrite.h"

static val before(graph *g, val v, arena *scratch) {
    node n = *graph_get(g, v);
    if (n.op != OP_proj || graph_get(g, n.in[0])->op != OP_scan) return 0;
    val scan = n.in[0];
    node s = *graph_get(g, scan);
    int body = (int)s.attr[SCAN_BODY], carry = (int)s.attr[SCAN_CARRY], k = carry;
    int64_t length = s.attr[SCAN_LENGTH];
    if (n.attr[0] < carry || s.attr[SCAN_COND] || length < 1 || !is_splat(g, s.in[0]) ||
        graph_get(g, s.in[0])->imm_int < length)
        return 0;
    const node *slice = graph_get(g, g->regions.at[body].results[n.attr[0]]);
    if (slice->op != OP_param || slice->attr[0] >= carry) return 0;
    int64_t of = slice->attr[0], *start = ARENA_ARRAY(scratch, int64_t, n.rank), *step = ARENA_ARRAY(scratch, int64_t, n.rank);
    int64_t *dims = arena_copy(scratch, n.dims, sizeof *dims * (size_t)n.rank);
    val next = g->regions.at[body].results[of], first = s.in[1 + of], parts[2];
    if (graph_get(g, next)->op == OP_param) return 0; /* of another one, or itself */
    dims[0] = 1;
    first = graph_reshape(g, first, n.rank, dims);
    if (length == 1) return first;
    while (k < g->regions.at[body].n_results && g->regions.at[body].results[k] != next) k++;
    if (k == g->regions.at[body].n_results) graph_region_result(g, body, next);
    for (int i = 0; i < n.rank; i++) step[i] = 1;
    int64_t at = k;
    val stack = graph_add(g, &(spec){ .op = OP_proj, .in = &scan, .n_in = 1, .attr = &at, .n_attr = 1 });
    bool reverse = s.attr[SCAN_REVERSE] != 0;
    dims[0] = length - 1, start[0] = reverse;
    parts[!reverse] = graph_slice(g, stack, start, dims, step), parts[reverse] = first;
    return graph_concat(g, parts, 2, 0);
}

bool pass_scan_before(graph *g, arena *scratch) {
    bool changed = false;
    const char *here = g->here;
    for (val v = 1, end = (val)g->nodes.n; v < end; v++) {
        g->here = graph_get(g, v)->where;
        val now = graph_is_read(g, v) && is_static(g, v) ? before(g, v, scratch) : 0;
        if (now) graph_replace(g, v, now), changed = true;
    }
    g->here = here;
    return changed;
}
