/* immediate.c - immediate mode as seen from outside: values in and out.
 *
 * In: tensors of a graph opened with tn_graph_immediate. Out: their bytes. The computing itself is src/drive's; buffers belong
 * to the graph's device and are freed with the graph. */
#include "api/api.h"
#include "run/run.h"

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
    if (x.id < (uint32_t)g->values.n && g->values.at[x.id].forgotten)
        return err_set(&g->ctx->err, TN_ERR_INVAL,
                       "tn_tensor_read: the tensor is of an iteration of a loop without a bound, which keeps no values");
    if (x.id >= (uint32_t)g->values.n || !g->values.at[x.id].buf)
        return err_set(&g->ctx->err, TN_ERR_UNSUPPORTED, "tn_tensor_read: the tensor has no value yet");
    return g->dev->api->download(g->dev, g->values.at[x.id].buf, 0, data, bytes, &g->ctx->err);
}

/* Initial values of n states. */
typedef struct initials {
    graph *g;
    int n;
    const val *states;
    const void *const *values;
} initials;
static void set_initials(void *arg) {
    const initials *in = arg;
    graph *g = in->g;
    const void **copies = ARENA_ARRAY(g->a, const void *, in->n);
    for (int i = 0; i < in->n; i++) { /* may jump: the nodes keep their values then */
        size_t bytes = (size_t)graph_elems(g, in->states[i]) * dtype_size((tn_dtype)graph_get(g, in->states[i])->dtype);
        copies[i] = bytes ? arena_copy(g->a, in->values[i], bytes) : NULL;
    }
    for (int i = 0; i < in->n; i++)
        if (copies[i]) graph_get(g, in->states[i])->data = copies[i];
}

/* Of an immediate graph: all n get their values, or, where memory runs out, none. room[n]. */
static tn_status upload_values(tn_graph *g, int n, const val *v, const void *const *data, buffer **room) {
    tn_status code = TN_OK;
    int ready = 0;
    for (int i = 0; i < n; i++)
        if (!g->dev || v[i] >= (val)g->values.n)
            return err_set(&g->ctx->err, TN_ERR_UNSUPPORTED, "tn_tensor_write: immediate graphs cannot run on this device");
    for (; ready < n && !code; ready++) code = immediate_room(g, v[ready], &room[ready]);
    for (int i = 0; code && i < ready; i++)
        if (room[i]) g->dev->api->free(g->dev, room[i]);
    if (code) return code;
    for (int i = 0; i < n; i++) immediate_renew(g, v[i], room[i]);
    for (int i = 0; i < n && !code; i++)
        code = g->dev->api->upload(g->dev, g->values.at[v[i]].buf, 0, data[i], tn_tensor_bytes((tn_tensor){ g, v[i] }),
                                   &g->ctx->err);
    return code;
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
        if (!api_try(g->arena.gd, set_initials, &(initials){ g->ir, 1, &x.id, &data })) return TN_OK;
        return api_report(g->ctx, &g->arena.gd->err);
    }
    if (op != OP_input && op != OP_state)
        return err_set(&g->ctx->err, TN_ERR_INVAL, "tn_tensor_write: the tensor is the result of %s, not an input or a state",
                       op_get(op)->name);
    buffer *room;
    return upload_values(g, 1, &x.id, &data, &room);
}

static tn_status write_states(tn_graph *g, int n, val *states, const void *const *values) {
    for (int i = 0; i < n; i++) states[i] = tn_graph_state(g, i).id;
    for (int i = 0; i < n; i++) {
        tn_tensor x = { g, states[i] };
        tn_status code = check_access(x, "tn_graph_write_states", values[i], tn_tensor_bytes(x));
        if (code) return code;
    }
    if (!g->immediate)
        return api_try(g->arena.gd, set_initials, &(initials){ g->ir, n, states, values })
                   ? api_report(g->ctx, &g->arena.gd->err)
                   : TN_OK;
    buffer **room = mem_alloc(g->ctx->mem, (size_t)n * sizeof *room);
    if (!room) return err_set(&g->ctx->err, TN_ERR_NOMEM, "out of memory: %d states", n);
    tn_status code = upload_values(g, n, states, values, room);
    mem_free(g->ctx->mem, room, (size_t)n * sizeof *room);
    return code;
}

tn_status tn_graph_write_states(tn_graph *g, const void *const *values) {
    if (!g) return TN_ERR_INVAL;
    if (g->err.code) return api_report(g->ctx, &g->err);
    if (!values) return err_set(&g->ctx->err, TN_ERR_INVAL, "tn_graph_write_states: values is NULL");
    int n = tn_graph_n_states(g);
    val *states = mem_alloc(g->ctx->mem, (size_t)n * sizeof *states);
    if (!states) return err_set(&g->ctx->err, TN_ERR_NOMEM, "out of memory: %d states", n);
    tn_status code = write_states(g, n, states, values);
    mem_free(g->ctx->mem, states, (size_t)n * sizeof *states);
    return code;
}
