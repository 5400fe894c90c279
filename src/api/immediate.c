/* immediate.c - immediate mode as seen from outside: values in and out.
 *
 * In: tensors of a graph opened with tn_graph_immediate. Out: their bytes. The computing itself is src/drive's; buffers belong
 * to the graph's device and are freed with the graph. */
#include "api/api.h"
#include "drive/drive.h"

tn_status api_built(tn_graph *g) { return immediate_graph_update(g); }

static tn_status check_access(tn_tensor x, const char *name, const void *data, size_t bytes) {
    if (!x.graph) return TN_ERR_INVAL;
    tn_graph *g = x.graph;
    if (g->err.code) return api_report(g->ctx, &g->err);
    if (!x.id || x.id >= (uint32_t)g->ir->nodes.n)
        return err_set(&g->ctx->err, TN_ERR_INVAL, "%s: not a tensor of this graph (id %u)", name, (unsigned)x.id);
    size_t need = tn_tensor_bytes(x);
    if (bytes != need) return err_set(&g->ctx->err, TN_ERR_SHAPE, "%s: %zu bytes given, the tensor has %zu", name, bytes, need);
    if (!data && need) return err_set(&g->ctx->err, TN_ERR_INVAL, "%s: data is NULL", name);
    return TN_OK;
}
tn_status tn_tensor_read(tn_tensor x, void *data, size_t bytes) {
    tn_status code = check_access(x, "tn_tensor_read", data, bytes);
    if (code) return code;
    tn_graph *g = x.graph;
    if (!g->immediate)
        return err_set(&g->ctx->err, TN_ERR_INVAL, "tn_tensor_read: @%s is not an immediate graph: bind an output of a run",
                       g->ir->name);
    if (x.id >= (uint32_t)g->values.n || !g->values.at[x.id].buf)
        return err_set(&g->ctx->err, TN_ERR_UNSUPPORTED, "tn_tensor_read: the tensor has no value yet");
    return g->dev->api->download(g->dev, g->values.at[x.id].buf, 0, data, bytes, &g->ctx->err);
}

typedef struct initial {
    graph *g;
    val v;
    const void *data;
    size_t bytes;
} initial;
static void set_initial(void *arg) {
    const initial *i = arg;
    const void *copy = arena_copy(i->g->a, i->data, i->bytes); /* may jump: the node keeps its value then */
    i->g->nodes.at[i->v].data = copy;
}

tn_status tn_tensor_write(tn_tensor x, const void *data, size_t bytes) {
    tn_status code = check_access(x, "tn_tensor_write", data, bytes);
    if (code) return code;
    tn_graph *g = x.graph;
    op_code op = graph_get(g->ir, x.id)->op;
    if (!g->immediate) {
        if (op != OP_state)
            return err_set(&g->ctx->err, TN_ERR_INVAL,
                           "tn_tensor_write: @%s is not an immediate graph: only a state has a value before a run, not the "
                           "result of %s",
                           g->ir->name, op_get(op)->name);
        if (bytes == 0 || !api_try(g->arena.gd, set_initial, &(initial){ g->ir, x.id, data, bytes })) return TN_OK;
        return api_report(g->ctx, &g->arena.gd->err);
    }
    if (op != OP_input && op != OP_state)
        return err_set(&g->ctx->err, TN_ERR_INVAL, "tn_tensor_write: the tensor is the result of %s, not an input or a state",
                       op_get(op)->name);
    if (!g->dev || x.id >= (uint32_t)g->values.n)
        return err_set(&g->ctx->err, TN_ERR_UNSUPPORTED, "tn_tensor_write: immediate graphs cannot run on this device");
    node_value *v = &g->values.at[x.id];
    if (!v->buf && (code = g->dev->api->alloc(g->dev, bytes, &v->buf, &g->ctx->err))) return code;
    return g->dev->api->upload(g->dev, v->buf, 0, data, bytes, &g->ctx->err);
}
