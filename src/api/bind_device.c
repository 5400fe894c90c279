/* bind_device.c - slots in memory of the program's device that the caller owns, and runs in order with the caller's streams. In
 * and out: as bind.c, whose layers these bindings are a part of. */
#include "api/api.h"
#include "run/run.h"

enum { ALIGNED = 16 /* what kernels read at once */ };

int tn_program_ordinal(const tn_program *p) {
    (void)p; /* the device cuda is the first GPU */
    return 0;
}

/* Whether the device reads memory that a session is given in place; else the text says why not. */
static tn_status check_device(const tn_session *s) {
    if (s->now->list || !s->io_buf) return TN_OK;
    return session_fail(
        s, TN_ERR_UNSUPPORTED,
        "tn_session_bind_device: in immediate mode the device %s takes memory of the host; compile in another mode, "
        "or use tn_session_bind",
        s->p->dev->api->name);
}

tn_status tn_session_bind_device(tn_session *s, int slot, uint64_t data, size_t bytes) {
    if (!s) return TN_ERR_INVAL;
    const tn_program *p = s->p;
    buffer *b = NULL;
    if (slot < 0 || slot >= p->n_io) return session_slot_error(s, "tn_session_bind_device", slot);
    tn_status code = check_device(s);
    if (code) return code;
    if (!data) return session_keep(s, slot, NULL, 0, NULL);
    if (bytes < (size_t)session_bytes(s, slot))
        return session_fail(s, TN_ERR_INVAL, "tn_session_bind_device: %zu bytes for \"%s\", which has %lld", bytes,
                            p->io[slot].name, (long long)session_bytes(s, slot));
    if (data % ALIGNED && s->io_buf)
        return session_fail(s, TN_ERR_INVAL, "tn_session_bind_device: \"%s\" at 0x%llx: expected a multiple of %d bytes",
                            p->io[slot].name, (unsigned long long)data, ALIGNED);
    void *at = (void *)(uintptr_t)data;
    if (s->io_buf && s->kept[slot] == at && s->adopted[slot]) return session_keep(s, slot, at, 0, s->adopted[slot]);
    if (s->io_buf) code = p->dev->api->adopt(p->dev, data, bytes, &b, &s->err);
    return code ? session_done(s, code) : session_keep(s, slot, at, 0, b);
}

/* What a run that nobody waits for cannot do. */
static tn_status check_queue(const tn_session *s) {
    if (!s->now->list)
        return session_fail(s, TN_ERR_UNSUPPORTED, "tn_session_queue: not in immediate mode on the device %s",
                            s->p->dev->api->name);
    for (int i = 0; i < s->p->n_io; i++)
        if (s->p->io[i].is_output && s->kept[i] && !s->adopted[i])
            return session_fail(
                s, TN_ERR_INVAL,
                "tn_session_queue: output \"%s\" is bound to memory of the host, where it would arrive later: use "
                "tn_session_bind_device, or tn_session_run",
                s->p->io[i].name);
    return TN_OK;
}

tn_status tn_session_queue(tn_session *s, uint64_t stream) {
    if (!s) return TN_ERR_INVAL;
    if (stream && !s->p->dev->api->follow)
        return session_fail(s, TN_ERR_INVAL, "tn_session_queue: the device %s has no streams; expected 0",
                            s->p->dev->api->name);
    if (!s->io_buf) return tn_session_run(s);
    tn_status code = check_queue(s);
    if (!code) code = session_ready(s, "tn_session_queue");
    return code ? code : session_done(s, session_follow(s, stream));
}
