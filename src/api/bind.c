/* bind.c - where a run reads its inputs and writes its outputs, and the runs themselves.
 *
 * In: names or slots, pointers of the host. Out: s->bound, in step with the session's list. Two layers: what tn_session_bind
 * bound (s->kept, s->trace) stays; what a call of tn_run or tn_run_n binds lies above it and is gone with the call. Names are
 * looked up here and nowhere later. tn_session_bind and tn_session_run allocate nothing, lock nothing, make no system call. */
#include "api/api.h"
#include "run/run.h"

enum { MOVED = SESSION_MOVED, NAMED = 2 /* by the call in progress */ };

/* ---- errors ---- */

tn_status session_done(tn_session *s, tn_status code) { return code ? ctx_report(s->p->ctx, &s->err) : TN_OK; }

tn_status session_fail(const tn_session *s, tn_status code, const char *fmt, ...) {
    tn_session *writable = (tn_session *)(uintptr_t)s; /* a question leaves a session as it is, but for its last error */
    va_list ap;
    va_start(ap, fmt);
    err_vset(&writable->err, code, fmt, ap);
    va_end(ap);
    return session_done(writable, code);
}

/* ---- slots ---- */

int tn_session_slot(const tn_session *s, const char *name) {
    if (!s || !name) return -1;
    const tn_program *p = s->p;
    int lo = 0, hi = p->n_io;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2, order = strcmp(p->io[p->io_by_name[mid]].name, name);
        if (order == 0) return p->io_by_name[mid];
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}

/* ---- the layers ---- */

/* Takes away what the last call of tn_run or tn_run_n bound. */
static void use_kept(tn_session *s) {
    if (!s->of_call) return;
    for (int i = 0; i < s->p->n_io; i++) session_place(s, i, s->kept[i]);
    s->of_call = false;
}

tn_status session_keep(tn_session *s, int slot, void *data, int64_t n_steps, buffer *b) {
    use_kept(s);
    session_adopt(s, slot, b);
    s->kept[slot] = data;
    s->trace[slot] = n_steps;
    session_place(s, slot, data);
    return TN_OK;
}

tn_status session_slot_error(const tn_session *s, const char *fn, int slot) {
    return session_fail(s, TN_ERR_INVAL, "%s: slot %d of %d", fn, slot, s->p->n_io);
}

tn_status tn_session_bind(tn_session *s, int slot, void *data) {
    if (!s) return TN_ERR_INVAL;
    if (slot < 0 || slot >= s->p->n_io) return session_slot_error(s, "tn_session_bind", slot);
    return session_keep(s, slot, data, 0, NULL);
}

tn_status tn_session_bind_trace(tn_session *s, int slot, void *data, int64_t n_steps) {
    if (!s) return TN_ERR_INVAL;
    if (slot < 0 || slot >= s->p->n_io) return session_slot_error(s, "tn_session_bind_trace", slot);
    if (!s->p->io[slot].is_output)
        return session_fail(s, TN_ERR_INVAL, "tn_session_bind_trace: slot %d is the input \"%s\"; a trace is of an output",
                            slot, s->p->io[slot].name);
    if (n_steps < 1 || !data)
        return session_fail(s, TN_ERR_INVAL, "tn_session_bind_trace: %lld steps at %p", (long long)n_steps, data);
    return session_keep(s, slot, data, n_steps, NULL);
}

/* The bindings of one call, above those that stay. */
static tn_status bind_call(tn_session *s, const char *fn, const tn_binding *b, int n) {
    if (n < 0 || (n && !b)) return session_fail(s, TN_ERR_INVAL, "%s: a list of %d bindings at %p", fn, n, (const void *)b);
    int n_io = s->p->n_io;
    s->of_call = true;
    for (int i = 0; i < n_io; i++) s->io_flags[i] &= (uint8_t)~NAMED;
    for (int i = 0; i < n; i++) {
        int slot = b[i].name ? tn_session_slot(s, b[i].name) : -1;
        if (slot < 0)
            return session_fail(s, TN_ERR_INVAL, "%s: no input or output is named \"%s\"", fn,
                                b[i].name ? b[i].name : "(null)");
        if (!b[i].data && session_bytes(s, slot))
            return session_fail(s, TN_ERR_INVAL, "%s: data of \"%s\" is NULL", fn, b[i].name);
        if (s->io_flags[slot] & NAMED) return session_fail(s, TN_ERR_INVAL, "%s: \"%s\" is bound twice", fn, b[i].name);
        s->io_flags[slot] |= NAMED;
        session_place(s, slot, b[i].data);
    }
    for (int i = 0; i < n_io; i++)
        if (!(s->io_flags[i] & NAMED)) session_place(s, i, s->kept[i]);
    return TN_OK;
}

/* ---- what is looked at before a run ---- */

/* Bytes that so many steps touch from s->bound[i] on; s->ring has been set unless it is one step. */
static size_t extent(const tn_session *s, int i, int64_t steps) {
    size_t bytes = (size_t)session_bytes(s, i), all;
    if (steps == 1 || !s->ring[i]) return bytes;
    int64_t length = s->ring[s->p->n_io + i];
    return __builtin_mul_overflow(bytes, (size_t)(length < steps ? length : steps), &all) ? SIZE_MAX / 2 : all;
}

/* Slots by address. It is a sort that has little to do when they lie as they did before, and needs no memory. */
static void sort_slots(tn_session *s) {
    int n = s->p->n_io, gap = 1;
    while (gap < n / 3) gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3)
        for (int i = gap; i < n; i++) {
            int slot = s->by_address[i], j = i;
            for (; j >= gap && (uintptr_t)s->bound[s->by_address[j - gap]] > (uintptr_t)s->bound[slot]; j -= gap)
                s->by_address[j] = s->by_address[j - gap];
            s->by_address[j] = slot;
        }
}

/* Inputs may overlap, for they are only read; nothing else may. */
static tn_status check_overlaps(tn_session *s, const char *fn, int64_t steps) {
    const tn_program *p = s->p;
    bool moved = false;
    for (int i = 0; i < p->n_io; i++) moved |= (s->io_flags[i] & MOVED) || (steps > 1 && s->ring[i]);
    if (!moved) return TN_OK; /* as when it was last looked at */
    sort_slots(s);
    int far[2] = { -1, -1 }; /* of inputs, outputs: which goes furthest */
    uintptr_t end[2] = { 0, 0 };
    for (int i = 0; i < p->n_io; i++) {
        int slot = s->by_address[i], is_output = p->io[slot].is_output;
        uintptr_t at = (uintptr_t)s->bound[slot];
        if (!at || !session_bytes(s, slot)) continue;
        int other = at < end[1] ? far[1] : is_output && at < end[0] ? far[0] : -1;
        if (other >= 0) {
            const pio *x = &p->io[slot < other ? slot : other], *y = &p->io[slot < other ? other : slot];
            return session_fail(s, TN_ERR_INVAL, "%s: %s \"%s\" and output \"%s\" overlap in memory", fn,
                                x->is_output ? "output" : "input", x->name, y->name);
        }
        size_t bytes = extent(s, slot, steps);
        if (at + bytes > end[is_output]) end[is_output] = at + bytes, far[is_output] = slot;
    }
    for (int i = 0; i < p->n_io; i++) s->io_flags[i] &= (uint8_t)~MOVED;
    return TN_OK;
}

static tn_status check_bound(tn_session *s, const char *fn, int64_t steps) {
    const char *missing;
    if (!session_has_dims(s, &missing))
        return session_fail(s, TN_ERR_INVAL, "%s: dim %s has no value: call tn_bind_dim or tn_bind_shape first", fn, missing);
    for (int i = 0; i < s->p->n_io; i++)
        if (!s->bound[i] && session_bytes(s, i))
            return session_fail(s, TN_ERR_INVAL, "%s: input \"%s\" (%lld bytes) is not bound", fn, s->p->io[i].name,
                                (long long)session_bytes(s, i));
    return check_overlaps(s, fn, steps);
}

tn_status session_ready(tn_session *s, const char *fn) {
    use_kept(s);
    return check_bound(s, fn, 1);
}

/* ---- runs ---- */

tn_status tn_session_run(tn_session *s) {
    if (!s) return TN_ERR_INVAL;
    tn_status code = session_ready(s, "tn_session_run");
    return code ? code : session_done(s, session_run(s, 1));
}

tn_status tn_run(tn_session *s, const tn_binding *b, int n) {
    if (!s) return TN_ERR_INVAL;
    tn_status code = bind_call(s, "tn_run", b, n);
    if (!code) code = check_bound(s, "tn_run", 1);
    return code ? code : session_done(s, session_run(s, 1));
}

/* How inputs and outputs move from step to step: those of the call as rings, outputs bound to a trace along it. */
static tn_status set_rings(tn_session *s, int64_t n_steps, int64_t n_ring) {
    int n_io = s->p->n_io;
    for (int i = 0; i < n_io; i++) {
        const pio *io = &s->p->io[i];
        bool named = s->io_flags[i] & NAMED; /* an output bound by the call holds the last step */
        int64_t length = named ? (io->is_output ? 0 : n_ring) : s->trace[i];
        if (!named && length && length < n_steps)
            return session_fail(s, TN_ERR_INVAL, "tn_run_n: %lld steps, but the trace of \"%s\" has room for %lld",
                                (long long)n_steps, io->name, (long long)length);
        s->ring[i] = length ? session_bytes(s, i) : 0;
        s->ring[n_io + i] = length ? length : 1;
    }
    return TN_OK;
}

/* Programs without a loop over the steps (modes immediate and graph): the same steps, one by one. */
static tn_status run_steps(tn_session *s, int64_t n_steps) {
    tn_status code = TN_OK;
    int n_io = s->p->n_io;
    for (int64_t step = 0; step < n_steps && !code; step++) {
        for (int i = 0; i < n_io; i++)
            if (s->ring[i]) session_place(s, i, (char *)s->bound[i] + s->ring[i] * (step % s->ring[n_io + i]));
        code = session_run(s, 1);
        for (int i = 0; i < n_io; i++)
            if (s->ring[i]) session_place(s, i, (char *)s->bound[i] - s->ring[i] * (step % s->ring[n_io + i]));
    }
    return code;
}

/* Moves inputs by so many entries of their rings, outputs by so many steps of their traces. */
static void move_rings(tn_session *s, int64_t entries, int64_t steps) {
    if (!entries && !steps) return;
    for (int i = 0; i < s->p->n_io; i++)
        if (s->ring[i]) session_place(s, i, (char *)s->bound[i] + s->ring[i] * (s->p->io[i].is_output ? steps : entries));
}

/* Looks at n steps from there on, or runs them. */
static tn_status run_part(tn_session *s, int64_t entry, int64_t step, int64_t n, bool run) {
    move_rings(s, entry, step);
    tn_status code = !run ? check_bound(s, "tn_run_n", n) : session_done(s, s->loops ? session_run(s, n) : run_steps(s, n));
    move_rings(s, -entry, -step);
    return code;
}

tn_status tn_run_n_from(tn_session *s, int64_t n_steps, const tn_binding *rings, int n_rings, int64_t n_ring, int64_t first) {
    if (!s) return TN_ERR_INVAL;
    if (n_steps < 0) return session_fail(s, TN_ERR_INVAL, "tn_run_n: %lld steps", (long long)n_steps);
    if (n_rings && n_ring < 1) return session_fail(s, TN_ERR_INVAL, "tn_run_n: a ring of %lld batches", (long long)n_ring);
    if (first < 0 || (n_rings && first >= n_ring))
        return session_fail(s, TN_ERR_INVAL, "tn_run_n_from: batch %lld of a ring of %lld", (long long)first,
                            (long long)n_ring);
    tn_status code = bind_call(s, "tn_run_n", rings, n_rings);
    if (!code) code = set_rings(s, n_steps, n_ring);
    /* Up to the ring's end, then from its start. */
    int64_t head = first && n_rings && n_steps > n_ring - first ? n_ring - first : n_steps, entry = n_rings ? first : 0;
    if (!code) code = run_part(s, entry, 0, head, false);
    if (!code && head < n_steps) code = run_part(s, 0, head, n_steps - head, false);
    if (!code && head > 0) code = run_part(s, entry, 0, head, true);
    if (!code && head < n_steps) code = run_part(s, 0, head, n_steps - head, true);
    return code;
}
tn_status tn_run_n(tn_session *s, int64_t n_steps, const tn_binding *rings, int n_rings, int64_t n_ring) {
    return tn_run_n_from(s, n_steps, rings, n_rings, n_ring, 0);
}
