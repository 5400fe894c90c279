/* function.c - tn_function_new, tn_call: a body that is built once and called with other operands; tn_checkpoint: a body that
 * is noted (grad/checkpoint.c).
 *
 * In: a function that builds the body, operands of each call. Out: the body's values again, with the operands in place of its
 * parameters. The body itself is a region that no op has: it goes when the graph is compacted. Its constants and what it takes
 * from outside, such as parameters of layers, are shared by all calls. In immediate graphs a call calls the function. */
#include "api/body.h"
#include "ir/region.h"

#define FAIL(g, ...) guard_fail((g)->a->gd, __VA_ARGS__)

struct tn_function { /* in the graph's arena */
    tn_graph *graph;
    tn_body body;
    void *ud;
    int n_in, n_out, region; /* 0: the graph is immediate, or has failed */
    api_captures outside;
    val first, end; /* the values that building it made */
};

typedef struct making {
    tn_function *f;
    int n_in, n_out;
} making;

static val build_function(graph *g, const val *in, void *args) {
    (void)in;
    making *m = args;
    m->f = ARENA_NEW(g->a, tn_function);
    m->f->n_in = m->n_in, m->f->n_out = m->n_out;
    return 0;
}

tn_function *(tn_function_new)(tn_graph *g, const tn_tensor *like, int n, tn_body body, void *ud, int n_out) {
    static const char name[] = "tn_function_new";
    making m = { NULL, n, n_out };
    if (!g) return NULL;
    if (api_refuse(g, name, !body || n < 0 || n_out < 1 || n > API_MOST_PARAMS || n_out > API_MOST_PARAMS || (n && !like),
                   "body or like is NULL, or a count of tensors is negative or too large; one result is the least"))
        return NULL;
    api_build(g, &(call){ .name = name }, build_function, &m);
    if (!m.f || g->err.code) return NULL;
    m.f->graph = g, m.f->body = body, m.f->ud = ud;
    if (g->immediate) return m.f;
    builder b = { .g = g, .name = name, .where = g->ir->here, .in = like, .n_in = n };
    m.f->first = (val)g->ir->nodes.n;
    m.f->region = api_build_body(&b, "function", body, ud, NULL, 0, n_out, false);
    m.f->end = (val)g->ir->nodes.n, m.f->outside = b.outside;
    return m.f->region ? m.f : NULL;
}

typedef struct calling {
    const tn_function *f;
    tn_tensor *out;
} calling;

static val build_call(graph *g, const val *in, void *args) {
    const calling *c = args;
    const tn_function *f = c->f;
    region_map m = { ARENA_ARRAY(g->a, val, f->end - f->first + 1), f->first, f->end };
    const char *where = g->here;
    for (int i = 0; i < f->n_in; i++) {
        val p = g->regions.at[f->region].params[i];
        const node *x = graph_get(g, in[i]), *y = graph_get(g, p);
        if (x->dtype != y->dtype || !graph_same_shape(g, in[i], p))
            FAIL(g, x->dtype == y->dtype ? TN_ERR_SHAPE : TN_ERR_DTYPE, "operand %d is %s, the function has %s", i,
                 graph_shape_text(g, g->a, in[i]), graph_shape_text(g, g->a, p));
        m.at[p - f->first] = in[i];
    }
    for (int i = 0; i < f->outside.from.n; i++)
        m.at[g->regions.at[f->region].params[f->n_in + i] - f->first] = api_capture(f->graph, f->outside.from.at[i]);
    region_copy_values(g, f->region, g->current, m);
    g->here = where;
    for (int i = 0; i < f->n_out; i++)
        c->out[i] = (tn_tensor){ f->graph, m.at[g->regions.at[f->region].results[i] - f->first] };
    return c->out[0].id;
}

tn_tensor(tn_call)(tn_graph *g, const tn_function *f, const tn_tensor *in, tn_tensor *out) {
    static const char name[] = "tn_call";
    tn_tensor one;
    if (!g) return (tn_tensor){ 0 };
    if (api_refuse(g, name, !f || f->graph != g || (f->n_in && !in) || (f->n_out > 1 && !out),
                   "there is no function, it is another graph's, or in or out is NULL"))
        return (tn_tensor){ g, 0 };
    if (!out) out = &one;
    for (int i = 0; i < f->n_out; i++) out[i] = (tn_tensor){ g, 0 };
    calling c = { f, out };
    if (g->immediate)
        f->body(g, f->ud, in, out);
    else
        api_build(g, &(call){ .name = name, .in = in, .n_in = f->n_in }, build_call, &c);
    for (int i = 0; i < f->n_out && g->err.code; i++) out[i] = (tn_tensor){ g, 0 };
    return out[0];
}

static val build_checkpoint(graph *g, const val *in, void *args) {
    (void)in;
    checkpoint c = { *(const val *)args, (val)g->nodes.n };
    VEC_PUSH(g->a, &g->checkpoints, c);
    return 0;
}

void(tn_checkpoint)(tn_graph *g, tn_body body, void *ud, const tn_tensor *in, tn_tensor *out) {
    static const char name[] = "tn_checkpoint";
    if (!g || api_refuse(g, name, !body || !out, "body or out is NULL")) return;
    val first = (val)g->ir->nodes.n;
    body(g, ud, in, out);
    if (!g->immediate && !g->err.code) api_build(g, &(call){ .name = name }, build_checkpoint, &first);
}
