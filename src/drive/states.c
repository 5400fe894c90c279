/* states.c - states and constants of programs: the states that no run changes are the program's until a session sets one.
 *
 * In: values as they lie. Out: memory of SLOT_STATE, SLOT_SHARED and SLOT_CONST, and values again. The initial values of shared
 * states are nowhere else, where the host can read that memory. Every function returns a status, but for those that say that
 * they jump. */
#include "drive/drive.h"

bool drive_is_shared(const tn_program *p, int i) { return p->plan->bufs.at[p->states[i].buf].slot == SLOT_SHARED; }

tn_status drive_set_state(const tn_program *p, buffer *to, int i, const void *value, err *e) {
    const plan *l = p->plan;
    int32_t own = l->states.at[i].buf;
    tn_status code = drive_upload(p, to, &l->bufs.at[own], value, e);
    for (int32_t b = l->bufs.at[own].next_panels; b && !code; b = l->bufs.at[b].next_panels)
        code = drive_upload(p, to, &l->bufs.at[b], value, e);
    return code;
}

/* The value of buffer b, as it lies. */
static tn_status get_value(const tn_program *p, const buffer *from, const pbuf *b, void *out, err *e) {
    const device_api *api = p->dev->api;
    if (!b->panels) return api->download(p->dev, from, (size_t)b->offset, out, (size_t)b->bytes, e);
    const char *place = api->map(p->dev, (buffer *)(uintptr_t)from); /* which is read alone */
    if (place) {
        pbuf_unpack(b, place + b->offset, out);
        return TN_OK;
    }
    void *bytes = mem_alloc(p->ctx->mem, (size_t)b->bytes);
    if (!bytes) return err_set(e, TN_ERR_NOMEM, "out of memory: %lld bytes of weights in panels", (long long)b->bytes);
    tn_status code = api->download(p->dev, from, (size_t)b->offset, bytes, (size_t)b->bytes, e);
    if (!code) pbuf_unpack(b, bytes, out);
    mem_free(p->ctx->mem, bytes, (size_t)b->bytes);
    return code;
}

tn_status drive_get_state(const tn_program *p, const buffer *from, int i, void *out, err *e) {
    return get_value(p, from, &p->plan->bufs.at[p->states[i].buf], out, e);
}

tn_status drive_share_states(tn_program *p, err *e) {
    tn_status status = TN_OK;
    size_t size = (size_t)p->plan->shared_bytes;
    for (int i = 0; i < p->n_states && !status; i++) {
        if (!drive_is_shared(p, i) || !p->states[i].given) continue;
        if (!p->shared) status = drive_check_room(p, 0, size, 0, e);
        if (!p->shared && !status) status = p->dev->api->alloc(p->dev, size, &p->shared, e);
        if (!status) status = drive_set_state(p, p->shared, i, graph_get(p->plan->g, p->states[i].node)->data, e);
    }
    return status;
}

/* A value that the program holds in buffer b of its plan alone, for a constant of another plan. */
static tn_status upload_held(const tn_program *p, buffer *to, const pbuf *constant, const buffer *from, int32_t b, err *e) {
    size_t size = drive_value_bytes(p->plan->g, constant->node);
    void *value = mem_alloc(p->ctx->mem, size);
    if (!value) return err_set(e, TN_ERR_NOMEM, "out of memory: %zu bytes of a weight", size);
    tn_status status = get_value(p, from, &p->plan->bufs.at[b], value, e);
    if (!status) status = drive_upload(p, to, constant, value, e);
    mem_free(p->ctx->mem, value, size);
    return status;
}

tn_status drive_constants(const tn_program *p, const plan *what, buffer **out, err *e) {
    tn_status status = p->dev->api->alloc(p->dev, (size_t)what->const_bytes, out, e);
    for (int i = 0; i < what->bufs.n && !status; i++) {
        const pbuf *b = &what->bufs.at[i];
        const void *value = graph_get(what->g, b->node)->data;
        if (b->kind != PB_CONST || !b->bytes) continue;
        if (value) status = drive_upload(p, *out, b, value, e);
        for (int k = 0; !value && p->shared && k < p->n_states; k++)
            if (p->states[k].node == b->node && p->states[k].given)
                status = upload_held(p, *out, b, p->shared, p->states[k].buf, e);
        for (int k = 0; !value && k < p->n_packed; k++)
            if (p->plan->bufs.at[p->packed[k].buf].node == b->node)
                status = upload_held(p, *out, b, p->consts, p->packed[k].buf, e);
    }
    return status;
}

/* ---- initial values in graphs: these jump ---- */

size_t drive_value_bytes(const graph *g, val v) {
    return (size_t)graph_elems(g, v) * dtype_size((tn_dtype)graph_get(g, v)->dtype);
}

static node *state_of(graph *g, const char *name) { return graph_get(g, g->inputs.at[graph_find_input(g, name)]); }

enum { LARGE_CONSTANT = 64 << 10 };
bool drive_is_large_constant(const graph *g, val v) {
    const node *n = graph_get(g, v);
    return n->op == OP_const && n->data && drive_value_bytes(g, v) >= LARGE_CONSTANT;
}

/* The buffer of the plan that has the constant with this data, or -1. */
static int32_t constant_buffer(const plan *p, const void *data) {
    for (int32_t i = 0; i < p->bufs.n; i++) {
        const pbuf *b = &p->bufs.at[i];
        if (b->kind == PB_CONST && b->bytes && !b->copy && graph_get(p->g, b->node)->data == data) return i;
    }
    return -1;
}

static const void *constant_home(tn_program *p, val v, char *consts) {
    const node *n = graph_get(p->graph, v);
    size_t size = drive_value_bytes(p->graph, v);
    int32_t i = consts ? constant_buffer(p->plan, n->data) : -1;
    const pbuf *b = i >= 0 ? &p->plan->bufs.at[i] : NULL;
    if (b && !b->panels) return consts + b->offset;
    if (!b || !kpanels_whole(b->panels, graph_elems(p->graph, v))) return arena_copy(&p->arena, n->data, size);
    p->packed[p->n_packed++] = (packed_constant){ v, i };
    return NULL;
}

/* Large constants are in the device's memory alone, where the host can read that. */
static void keep_constants(tn_program *p) {
    char *consts = p->consts ? p->dev->api->map(p->dev, p->consts) : NULL;
    VEC(val) large = { 0 };
    for (val v = 1; v < (val)p->graph->nodes.n; v++)
        if (drive_is_large_constant(p->graph, v)) VEC_PUSH(&p->arena, &large, v);
    p->packed = ARENA_ARRAY(&p->arena, packed_constant, large.n + 1);
    for (int i = 0; i < large.n; i++) {
        node *n = graph_get(p->graph, large.at[i]);
        const void *was = n->data, *home = constant_home(p, large.at[i], consts);
        n->data = home;
        for (val v = 1; v < (val)p->plan->g->nodes.n; v++)
            if (graph_get(p->plan->g, v)->data == was) graph_get(p->plan->g, v)->data = home;
    }
}

void drive_keep_values(tn_program *p) {
    keep_constants(p);
    char *shared = p->shared ? p->dev->api->map(p->dev, p->shared) : NULL;
    for (int i = 0; i < p->n_states; i++) {
        const pbuf *b = &p->plan->bufs.at[p->states[i].buf];
        node *n = graph_get(p->plan->g, p->states[i].node);
        if (!drive_is_shared(p, i) || !n->data) continue;
        n->data = !shared     ? arena_copy(&p->arena, n->data, drive_value_bytes(p->plan->g, p->states[i].node))
                  : b->panels ? NULL
                              : shared + b->offset;
        state_of(p->graph, n->name)->data = n->data;
    }
}

/* A value of one of the program's graphs, held in buffer b of its plan alone. */
static void give_value(const tn_program *p, graph *g, val v, const buffer *from, int32_t b) {
    err e;
    void *value = arena_alloc(g->a, drive_value_bytes(g, v));
    tn_status code = get_value(p, from, &p->plan->bufs.at[b], value, &e);
    if (code) guard_fail(g->a->gd, code, "%s", e.text);
    graph_get(g, v)->data = value;
}

const graph *drive_with_values(const tn_program *p, const graph *g, arena *a) {
    graph *c = graph_clone(g, a, false, NULL);
    for (int i = 0; i < p->n_states && p->plan; i++) {
        val v = c->inputs.at[graph_find_input(c, p->states[i].name)];
        if (!graph_get(c, v)->data && p->states[i].given) give_value(p, c, v, p->shared, p->states[i].buf);
    }
    for (int i = 0; i < p->n_packed; i++) {
        val v = g == p->graph ? p->packed[i].node : p->plan->bufs.at[p->packed[i].buf].node;
        if (!graph_get(c, v)->data) give_value(p, c, v, p->consts, p->packed[i].buf);
    }
    return c;
}
