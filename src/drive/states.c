/* states.c - the states of programs: those that runs change are a session's, the others are the program's until a session sets
 * one. Run half: every function returns a status, but for those that say that they jump.
 *
 * In: values as they lie. Out: memory of SLOT_STATE and SLOT_SHARED, and values again. The initial values of shared states are
 * nowhere else, where the host can read that memory. */
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

enum { COPY_BYTES = 1 << 20 };
static tn_status copy_buffer(tn_session *s, buffer *to, const buffer *from, size_t size) {
    const device_api *api = s->p->dev->api;
    size_t room = size < COPY_BYTES ? size : COPY_BYTES;
    char *bytes = mem_alloc(s->p->ctx->mem, room);
    if (!bytes) return err_set(&s->err, TN_ERR_NOMEM, "out of memory: a session's own states");
    tn_status code = TN_OK;
    for (size_t at = 0; at < size && !code; at += room) {
        size_t n = size - at < room ? size - at : room;
        code = api->download(s->p->dev, from, at, bytes, n, &s->err);
        if (!code) code = api->upload(s->p->dev, to, at, bytes, n, &s->err);
    }
    mem_free(s->p->ctx->mem, bytes, room);
    return code;
}

/* From now on the session has states of its own, where it had the program's: with the same values, or with none yet. */
static tn_status own_shared(tn_session *s, bool same) {
    const tn_program *p = s->p;
    const device_api *api = p->dev->api;
    size_t size = (size_t)p->plan->shared_bytes;
    buffer *own;
    if (s->shared != p->shared) return TN_OK;
    tn_status code = drive_check_room(p, 0, size, 0, &s->err);
    if (!code) code = api->alloc(p->dev, size, &own, &s->err);
    if (code) return code;
    if (same && (code = copy_buffer(s, own, p->shared, size))) {
        api->free(p->dev, own);
        return code;
    }
    s->shared = own;
    api->bind(s->list, SLOT_SHARED, own, 0);
    return TN_OK;
}

static tn_status put_state(tn_session *s, int i, const void *value) {
    return drive_set_state(s->p, drive_is_shared(s->p, i) ? s->shared : s->state, i, value, &s->err);
}

tn_status drive_session_set(tn_session *s, int i, const void *value) {
    tn_status code = drive_is_shared(s->p, i) ? own_shared(s, true) : TN_OK;
    return code ? code : put_state(s, i, value);
}

tn_status drive_session_set_all(tn_session *s, const void *const *values) {
    tn_status code = TN_OK;
    for (int i = 0; i < s->p->n_states && !code; i++)
        if (drive_is_shared(s->p, i)) code = own_shared(s, false);
    /* From here on no memory is taken: panels are a processor's, and are made where they lie. */
    for (int i = 0; i < s->p->n_states && !code; i++)
        if (values[i]) code = put_state(s, i, values[i]);
    return code;
}

tn_status drive_get_state(const tn_program *p, const buffer *from, int i, void *out, err *e) {
    const device_api *api = p->dev->api;
    const pbuf *b = &p->plan->bufs.at[p->states[i].buf];
    if (!b->packed) return api->download(p->dev, from, (size_t)b->offset, out, (size_t)b->bytes, e);
    b = &p->plan->bufs.at[b->packed];
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

tn_status drive_session_get(tn_session *s, int i, void *out) {
    return drive_get_state(s->p, drive_is_shared(s->p, i) ? s->shared : s->state, i, out, &s->err);
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
                  : b->packed ? NULL
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
