/* immediate_graph.c - immediate graphs: values as soon as a builder returns.
 *
 * In: a graph with new nodes. Out: their values, in buffers of the graph's device; then the new values of assigned states. */
#include "run/immediate.h"

static tn_status open_engine(tn_graph *g) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    if (g->imm) return TN_OK;
    if (g->device) o.device = g->device;
    tn_status code = ctx_device(g->ctx, o.device, 0, &g->dev, &g->ctx->err);
    return code ? code : immediate_new(g->ctx, g->dev, &o, &g->imm, &g->ctx->err);
}

static tn_status grow_values(tn_graph *g) { /* through the graph's guard: the list lives in its arena */
    if (!GUARD_TRY(&g->gd)) {
        g->ctx->err = g->gd.err;
        return g->gd.err.code;
    }
    while (g->values.n < g->ir->nodes.n) VEC_PUSH(&g->arena, &g->values, (node_value){ 0 });
    return TN_OK;
}

static tn_status copy_value(tn_graph *g, val from, val to) {
    const device_api *api = g->dev->api;
    size_t bytes = drive_value_bytes(g->ir, from);
    buffer *source = g->values.at[from].buf, *copy = g->values.at[to].buf;
    void *host = api->map(g->dev, source);
    return host ? api->upload(g->dev, copy, 0, host, bytes, &g->ctx->err) : immediate_copy(g->imm, copy, 0, source, 0, bytes);
}

static bool may_change(const graph *g, val v) { return graph_get(g, v)->op == OP_input || graph_get(g, v)->op == OP_state; }

tn_status immediate_room(tn_graph *g, val v, buffer **out) {
    const node_value *x = &g->values.at[v];
    *out = NULL;
    return x->buf && !x->heir ? TN_OK : g->dev->api->alloc(g->dev, drive_value_bytes(g->ir, v), out, &g->ctx->err);
}
void immediate_renew(tn_graph *g, val v, buffer *room) {
    node_value *x = &g->values.at[v];
    if (!room) return;
    if (x->heir) g->values.at[x->heir].shared = false; /* owns the old one from now on */
    *x = (node_value){ .buf = room };
}

static tn_status make_value(tn_graph *g, val v) {
    const node *n = graph_get(g->ir, v);
    node_value *x = &g->values.at[v];
    err *e = &g->ctx->err;
    if (n->op == OP_input) return TN_OK; /* tn_tensor_write gives it */
    if (n->op == OP_reshape && g->values.at[n->in[0]].buf) {
        node_value *of = &g->values.at[n->in[0]];
        *x = (node_value){ .buf = of->buf, .shared = true };
        if (!of->shared && !of->heir && may_change(g->ir, n->in[0])) of->heir = v;
        return TN_OK;
    }
    tn_status code = g->dev->api->alloc(g->dev, drive_value_bytes(g->ir, v), &x->buf, e);
    if (code) return code;
    if (n->op == OP_state && !n->data) return TN_OK; /* zeros */
    if (is_splat(g->ir, v)) return immediate_put_splat(g->ctx, g->dev, g->ir, v, x->buf, e);
    return n->data ? g->dev->api->upload(g->dev, x->buf, 0, n->data, drive_value_bytes(g->ir, v), e) : TN_OK;
}

static tn_status compute_value(tn_graph *g, val v) {
    const node *n = graph_get(g->ir, v);
    op_class c = op_get((op_code)n->op)->cls;
    if ((c == CL_SOURCE && n->op != OP_iota) || g->values.at[v].shared) return TN_OK;
    if (c == CL_CTRL)
        return err_set(&g->ctx->err, TN_ERR_UNSUPPORTED, "op %s in an immediate graph: use the host's own if and for",
                       op_get((op_code)n->op)->name);
    for (int j = 0; j < n->n_in; j++) {
        const node_value *x = &g->values.at[n->in[j]];
        if (x->forgotten)
            return err_set(&g->ctx->err, TN_ERR_INVAL,
                           "%s: its operand is of an iteration of a loop without a bound, which keeps no values",
                           op_get((op_code)n->op)->name);
        if (!x->buf)
            return err_set(
                &g->ctx->err, TN_ERR_INVAL, "%s: its operand \"%s\" has no value yet: give it with tn_tensor_write first",
                op_get((op_code)n->op)->name, graph_get(g->ir, n->in[j])->name ? graph_get(g->ir, n->in[j])->name : "?");
    }
    return immediate_run_buffers(g, v);
}

tn_status immediate_graph_update(tn_graph *g) {
    int from = g->values.n;
    tn_status code = open_engine(g);
    if (!code) code = grow_values(g);
    for (val v = from ? (val)from : 1; v < (val)g->values.n && !code; v++) {
        code = make_value(g, v);
        if (!code) code = compute_value(g, v);
    }
    for (; g->n_assigned < g->ir->outputs.n && !code; g->n_assigned++) {
        const output *o = &g->ir->outputs.at[g->n_assigned];
        if (!is_update(o) || !drive_value_bytes(g->ir, o->v)) continue;
        buffer *room;
        code = immediate_room(g, o->state, &room);
        if (code) break;
        immediate_renew(g, o->state, room);
        code = copy_value(g, o->v, o->state);
    }
    return code;
}

/* A view of what changes shares its memory, and may come to own it. */
static bool is_of_input(const tn_graph *g, val v) {
    while (graph_get(g->ir, v)->op == OP_reshape) v = graph_get(g->ir, v)->in[0];
    return may_change(g->ir, v);
}

static void forget(tn_graph *g, val v) {
    node_value *x = &g->values.at[v];
    if (x->buf && !x->shared) g->dev->api->free(g->dev, x->buf);
    *x = (node_value){ .forgotten = true };
}

static bool is_among(val v, const val *at, int n) {
    for (int k = 0; k < n; k++)
        if (at[k] == v) return true;
    return false;
}

void immediate_forget(tn_graph *g, val first, const tn_tensor *old, const tn_tensor *now, int n, val *owners) {
    val *next = owners + n;
    for (int k = 0; k < n; k++) {
        const buffer *b = g->values.at[now[k].id].buf;
        next[k] = 0;
        for (val v = first; v <= now[k].id; v++)
            if (g->values.at[v].buf == b && !g->values.at[v].shared && !is_of_input(g, v)) next[k] = v;
        for (int j = 0; j < n; j++)
            if (owners[j] && g->values.at[owners[j]].buf == b) next[k] = owners[j];
    }
    for (val v = first; v < (val)g->values.n; v++) {
        bool stays = is_of_input(g, v) || is_among(v, next, n);
        for (int k = 0; k < n; k++) stays |= now[k].id == v;
        if (!stays) forget(g, v);
    }
    for (int j = 0; j < n; j++) {
        bool stays = !owners[j] || is_among(old[j].id, next, n);
        for (int k = 0; k < n; k++) stays |= now[k].id == old[j].id;
        if (!stays) forget(g, old[j].id);
        if (owners[j] && !is_among(owners[j], next, n)) forget(g, owners[j]);
    }
    memcpy(owners, next, (size_t)n * sizeof *owners);
}
