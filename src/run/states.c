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

static void leave(const tn_program *p, own_states *own) {
    if (__atomic_sub_fetch(&own->sessions, 1, __ATOMIC_ACQ_REL)) return;
    p->dev->api->free(p->dev, own->buf);
    mem_free(p->ctx->mem, own, sizeof *own);
}

static tn_status make_states(tn_session *s, own_states **out) {
    const tn_program *p = s->p;
    size_t size = (size_t)p->plan->shared_bytes;
    own_states *own = mem_alloc(p->ctx->mem, sizeof *own);
    if (!own) return err_set(&s->err, TN_ERR_NOMEM, "out of memory: a session's own states");
    tn_status code = drive_check_room(p, 0, size, 0, &s->err);
    if (!code) code = p->dev->api->alloc(p->dev, size, &own->buf, &s->err);
    own->sessions = 1;
    if (code)
        mem_free(p->ctx->mem, own, sizeof *own);
    else
        *out = own;
    return code;
}

tn_status session_first_states(tn_session *s) {
    s->shared = s->p->shared;
    tn_status code = s->shared ? TN_OK : make_states(s, &s->own_states);
    if (!code && s->own_states) s->shared = s->own_states->buf;
    return code;
}

void session_leave_states(tn_session *s) {
    if (s->own_states) leave(s->p, s->own_states);
    s->own_states = NULL;
}

static void take_states(tn_session *s, own_states *own) {
    session_leave_states(s);
    s->own_states = own, s->shared = own ? own->buf : s->p->shared;
    if (s->now->list) s->p->dev->api->bind(s->now->list, SLOT_SHARED, s->shared, 0);
}

void session_share(tn_session *to, const tn_session *from) {
    own_states *own = from->own_states;
    if (to == from || own == to->own_states) return;
    if (own) __atomic_add_fetch(&own->sessions, 1, __ATOMIC_RELAXED);
    take_states(to, own);
    to->unread = from->unread;
}

/* From now on the session has states of its own, where it had the program's or another session has the same ones: with the same
 * values, or with none yet. */
static tn_status own_shared(tn_session *s, bool same) {
    own_states *own = NULL;
    if (s->own_states && __atomic_load_n(&s->own_states->sessions, __ATOMIC_ACQUIRE) == 1) return TN_OK;
    tn_status code = make_states(s, &own);
    if (!code && same && (code = copy_buffer(s, own->buf, s->shared, (size_t)s->p->plan->shared_bytes))) leave(s->p, own);
    if (!code) take_states(s, own);
    return code;
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
    s->unread = false;
    return code;
}

tn_status session_get(tn_session *s, int i, void *out) {
    if (s->unread && drive_is_shared(s->p, i) && !plan_reads(s->p->plan, s->p->states[i].buf))
        return err_set(&s->err, TN_ERR_UNSUPPORTED, "state \"%s\" lies as another program reads it, and this one does not",
                       s->p->states[i].name);
    return drive_get_state(s->p, drive_is_shared(s->p, i) ? s->shared : s->state, i, out, &s->err);
}
