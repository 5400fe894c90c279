/* dims.c - values of a program's dims, and what follows from them: sizes of inputs and outputs, parameters of kernels. In:
 * values from the host. Out: s->dims, s->rows, s->io_bytes. */
#include "run/run.h"

const exts *session_params(const tn_session *s) {
    const exts *t = s->p->plan ? s->p->plan->params : s->p->graph->params;
    return t && t->n_dims ? t : NULL;
}

bool session_has_dims(const tn_session *s, const char **out_missing) {
    const exts *t = session_params(s);
    for (int i = 0; t && i < t->at.n; i++)
        if (t->at.at[i].op == EXT_DIM && s->dims[t->at.at[i].number] < 0) return *out_missing = t->at.at[i].name, false;
    return true;
}

static tn_status check_dim(tn_session *s, const ext_row *r, int64_t value) {
    if (value >= r->lo && value <= r->hi && value % r->divisor == 0) return TN_OK;
    if (r->divisor > 1)
        return err_set(&s->err, TN_ERR_INVAL, "dim %s is %lld: expected %lld to %lld, a multiple of %lld", r->name,
                       (long long)value, (long long)r->lo, (long long)r->hi, (long long)r->divisor);
    return err_set(&s->err, TN_ERR_INVAL, "dim %s is %lld: expected %lld to %lld", r->name, (long long)value, (long long)r->lo,
                   (long long)r->hi);
}

static int64_t bytes_of(const tn_session *s, const pio *io) {
    const node *n = graph_get(s->p->plan ? s->p->plan->g : s->p->graph, io->node);
    int64_t bytes = (int64_t)dtype_size((tn_dtype)io->dtype);
    for (int i = 0; i < n->rank; i++) bytes *= ext_of(n->dims[i], s->rows);
    return bytes;
}

/* Of temporaries, or of results, from `at` on. Returns where they end. */
static int64_t place(const session_form *w, bool results, int64_t at) {
    const plan *p = w->p->plan;
    for (int b = 0; b < p->bufs.n; b++) {
        if (!w->p->elems[b] || (p->bufs.at[b].kind == PB_OUTPUT) != results) continue;
        int64_t bytes = ext_of(w->p->elems[b], w->rows) * (int64_t)dtype_size((tn_dtype)p->bufs.at[b].dtype);
        w->place[b] = (struct device_place){ (size_t)at, (size_t)bytes };
        at += plan_room(bytes);
    }
    return at;
}

void session_place_temps(const tn_session *s, session_form *w) {
    int64_t room = (int64_t)drive_temp_room(s->p);
    if (s->p->plan->params && room > s->p->target.l2_bytes) room = s->p->target.l2_bytes;
    int64_t temps = place(w, false, 0), all = place(w, true, temps);
    w->places = (device_places){ w->place, SLOT_TEMP, PLAN_MOST_AT_ONCE, (size_t)temps, false };
    while (w->places.copies && w->places.copies * temps > room) w->places.copies /= 2;
    if (w->places.copies > 1 && w->places.copies * all <= room) w->places.stride = (size_t)all, w->places.results = true;
}

tn_status session_set_dims(tn_session *s, const int64_t *values) {
    const exts *t = session_params(s);
    bool all = true;
    for (int i = 0; i < t->at.n; i++) {
        const ext_row *r = &t->at.at[i];
        if (r->op != EXT_DIM) continue;
        tn_status code = values[r->number] < 0 ? TN_OK : check_dim(s, r, values[r->number]);
        if (code) return code;
        all = all && values[r->number] >= 0;
    }
    memcpy(s->dims, values, sizeof *values * (size_t)t->n_dims);
    if (!all) return TN_OK;
    if (!exts_at(t, s->dims, s->rows, NULL)) return err_set(&s->err, TN_ERR_INVAL, "a size does not fit 64 bits");
    s->moved = s->usual.grids || s->imm;
    for (int i = 0; i < s->p->n_io; i++) {
        int64_t now = bytes_of(s, &s->p->io[i]);
        if (now > s->io_bytes[i]) s->io_flags[i] |= SESSION_MOVED; /* what lies side by side may overlap now */
        s->io_bytes[i] = now;
        if (s->io_stride) s->io_stride[i] = (size_t)plan_ring_stride(now, s->p->io[i].bytes, true);
    }
    return TN_OK;
}
