/* states.c - the states of sessions: those that runs change are a session's, the others are the program's until it sets one. */
#include "run/run.h"

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

tn_status session_set(tn_session *s, int i, const void *value) {
    tn_status code = drive_is_shared(s->p, i) ? own_shared(s, true) : TN_OK;
    return code ? code : put_state(s, i, value);
}

tn_status session_set_all(tn_session *s, const void *const *values) {
    tn_status code = TN_OK;
    for (int i = 0; i < s->p->n_states && !code; i++)
        if (drive_is_shared(s->p, i)) code = own_shared(s, false);
    /* From here on no memory is taken: panels are a processor's, and are made where they lie. */
    for (int i = 0; i < s->p->n_states && !code; i++)
        if (values[i]) code = put_state(s, i, values[i]);
    return code;
}

tn_status session_get(tn_session *s, int i, void *out) {
    return drive_get_state(s->p, drive_is_shared(s->p, i) ? s->shared : s->state, i, out, &s->err);
}
