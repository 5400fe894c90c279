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

tn_status drive_get_state(const tn_program *p, const buffer *from, int i, void *out, err *e) {
    const device_api *api = p->dev->api;
    const pbuf *b = &p->plan->bufs.at[p->states[i].buf];
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

/* The value of state i, which is a constant here. */
static tn_status upload_state(const tn_program *p, buffer *to, const pbuf *b, int i, err *e) {
    size_t size = drive_value_bytes(p->plan->g, b->node);
    void *value = mem_alloc(p->ctx->mem, size);
    if (!value) return err_set(e, TN_ERR_NOMEM, "out of memory: %zu bytes of a state", size);
    tn_status status = drive_get_state(p, p->shared, i, value, e);
    if (!status) status = drive_upload(p, to, b, value, e);
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
            if (p->states[k].node == b->node && p->states[k].given) status = upload_state(p, *out, b, k, e);
    }
    return status;
}

/* ---- initial values in graphs: these jump ---- */

size_t drive_value_bytes(const graph *g, val v) {
    return (size_t)graph_elems(g, v) * dtype_size((tn_dtype)graph_get(g, v)->dtype);
}

static node *state_of(graph *g, const char *name) { return graph_get(g, g->inputs.at[graph_find_input(g, name)]); }

void drive_keep_values(tn_program *p) {
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

const graph *drive_with_values(const tn_program *p, const graph *g, arena *a) {
    graph *c = graph_clone(g, a, false, NULL);
    for (int i = 0; i < p->n_states && p->plan; i++) {
        err e;
        node *n = state_of(c, p->states[i].name);
        if (n->data || !p->states[i].given) continue;
        void *value = arena_alloc(a, drive_value_bytes(p->plan->g, p->states[i].node));
        tn_status code = drive_get_state(p, p->shared, i, value, &e);
        if (code) guard_fail(a->gd, code, "%s", e.text);
        n->data = value;
    }
    return c;
}
