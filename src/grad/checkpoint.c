/* checkpoint.c - values that gradients compute again instead of keeping them (Chen et al. 2016, arXiv:1604.06174).
 *
 * In: a walk of grad.c that comes to a value of a checkpoint. Out: the values of the checkpoint once more, from what it reads
 * of outside, which the rules of its values then use; what no rule uses goes with the dead nodes. Op again keeps the two apart:
 * it says that the second computation comes after the gradient that the walk has brought here, and no pass merges the two. What
 * has regions, and what is made of constants alone, is not computed again. A checkpoint inside of another is part of it. */
#include "grad/walk.h"

static const checkpoint *checkpoint_of(const graph *g, val v) {
    for (int i = g->checkpoints.n - 1; i >= 0; i--) /* the outer one ends last */
        if (v >= g->checkpoints.at[i].first && v < g->checkpoints.at[i].end) return &g->checkpoints.at[i];
    return NULL;
}

static val compute_again(grad_ctx *c, val v, val after) {
    graph *g = c->g;
    node n = *graph_get(g, v);
    op_class cls = op_get((op_code)n.op)->cls;
    if (n.region != c->region || cls == CL_SOURCE || cls == CL_CTRL || n.n_in == 0) return v;
    spec s = graph_spec(g, v);
    val *in = ARENA_ARRAY(g->a, val, n.n_in);
    bool own = false; /* it is told apart from v by an operand */
    for (int i = 0; i < n.n_in; i++) {
        in[i] = n.in[i] < c->end && c->again[n.in[i]] ? c->again[n.in[i]] : n.in[i];
        own |= in[i] != n.in[i];
    }
    int slot = own ? -1 : graph_again_slot(g, &n);
    if (!own && slot < 0) return v;
    if (slot >= 0) in[slot] = graph_again(g, in[slot], after);
    s.in = in;
    g->here = n.where;
    val made = graph_add(g, &s);
    graph_get(g, made)->name = n.name;
    return made;
}

void grad_visit_checkpoint(grad_ctx *c, node *n, val *v) {
    graph *g = c->g;
    const checkpoint *p = g->checkpoints.n ? checkpoint_of(g, *v) : NULL;
    if (!p) return;
    if (!c->again) c->again = ARENA_ARRAY(g->a, val, c->end);
    checkpoint of = *p;
    for (val u = of.first; u < of.end && u < c->end && !c->again[*v]; u++) c->again[u] = compute_again(c, u, c->adj[*v]);
    val *in = ARENA_ARRAY(g->a, val, n->n_in);
    for (int i = 0; i < n->n_in; i++) in[i] = c->again[n->in[i]] ? c->again[n->in[i]] : n->in[i];
    n->in = in;
    *v = c->again[*v];
    g->here = n->where;
}
