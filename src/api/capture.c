/* capture.c - what a body that is being built uses of the outside. In: a value of the graph. Out: what it is inside: itself, a
 * parameter of the body, which the op gets as an operand, or a constant made again. Jumps on errors. */
#include "api/api.h"
#include "ir/region.h"

void api_body_params(graph *g, const api_body *b, int n) {
    for (int64_t at; (at = g->regions.at[b->region].n_params) < b->in->n_own + n;) {
        const node *x = graph_get(g, b->in->from.at[at - b->in->n_own]);
        graph_add(g, &(spec){ .op = OP_param,
                              .dtype = (tn_dtype)x->dtype,
                              .rank = x->rank,
                              .dims = x->dims,
                              .attr = &at,
                              .n_attr = 1,
                              .region = b->region });
    }
}

static val capture(graph *g, api_body *b, val v) {
    const node *n = graph_get(g, v);
    if (n->region == (b ? b->region : 0)) return v;
    if (!b)
        guard_fail(g->a->gd, TN_ERR_INVAL, "%%%u is a value inside of a body that has been built: make it a result of the body",
                   v);
    if (n->op == OP_const && n->splat) {
        spec s = graph_spec(g, v);
        s.region = b->region;
        return graph_add(g, &s);
    }
    val outer = capture(g, b->around, v);
    int i = 0;
    while (i < b->in->from.n && b->in->from.at[i] != outer) i++;
    if (i == b->in->from.n) VEC_PUSH(g->a, &b->in->from, outer);
    api_body_params(g, b, i + 1);
    return g->regions.at[b->region].params[b->in->n_own + i];
}

val api_capture(tn_graph *g, val v) { return capture(g->ir, g->body, v); }
