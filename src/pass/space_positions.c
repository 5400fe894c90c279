/* space_positions.c - a padded image that a contraction goes across gets a line more behind each position: of lines a large
 * power of two apart a cache holds few.
 *
 * In: any graph. Out: a pad that windows read, whose last axis is a multiple of 1,024 bytes and is needed often by contractions
 * that go along other axes, is a slice of a pad that has 64 bytes more there. The gradient of a convolution's weights is such a
 * contraction. For processors: GPUs read tiles of it from shared memory, where they have a pitch of their own. Exact. */
#include "machine/machine.h"
#include "pass/rewrite.h"

enum { FAR_BYTES = 1024, MANY_POSITIONS = 32, MANY_USES = 300 };

/* The contraction goes through many positions of operand x, and not along its last axis, which it needs often. */
static bool goes_across(const graph *g, val dot, val x, int last, int64_t elems) {
    const node *n = graph_get(g, dot), *w = graph_get(g, x);
    if (n->op != OP_dot || n->in[0] == n->in[1]) return false;
    int64_t nb = n->attr[0], nc = n->attr[1], depth = 1, side = n->in[1] == x;
    const int64_t *batch = n->attr + 2 + side * nb, *contracted = n->attr + 2 + 2 * nb + side * nc;
    for (int64_t i = 0; i < nb; i++)
        if (batch[i] == last) return false;
    for (int64_t i = 0; i < nc; i++) {
        if (contracted[i] == last) return false;
        depth *= w->dims[contracted[i]];
    }
    return depth > MANY_POSITIONS && depth * graph_elems(g, dot) / MANY_USES > elems;
}

bool pass_space_positions(graph *g, arena *scratch) {
    bool changed = false;
    (void)scratch;
    int n_nodes = g->nodes.n;
    for (val v = 1; v < (val)n_nodes; v++) {
        const node n = *graph_get(g, v);
        int last = n.rank - 1;
        int64_t size = (int64_t)dtype_size((tn_dtype)n.dtype), zero[TN_MAX_RANK] = { 0 }, one[TN_MAX_RANK], after[TN_MAX_RANK];
        if (n.op != OP_pad || n.region || !is_static(g, v) || last < 1 || n.dims[last] * size % FAR_BYTES || n.attr[last] ||
            n.attr[n.rank + last])
            continue;
        bool across = false;
        for (uint32_t u = n.first_use; u; u = g->uses.at[u - 1].next) {
            val w = g->uses.at[u - 1].user;
            if (graph_get(g, w)->op != OP_window) continue;
            for (uint32_t d = graph_get(g, w)->first_use; d; d = g->uses.at[d - 1].next)
                across |= goes_across(g, g->uses.at[d - 1].user, w, last, graph_elems(g, v));
        }
        if (!across || graph_is_output(g, v)) continue;
        for (int i = 0; i < n.rank; i++) one[i] = 1, after[i] = n.attr[n.rank + i];
        after[last] = MACHINE_LINE_BYTES / size;
        graph_replace(g, v, graph_slice(g, graph_pad(g, n.in[0], n.attr, after, n.imm), zero, n.dims, one));
        changed = true;
    }
    return changed;
}
