/* session.c - a program with its state and the list that runs it. Every function returns a status, text in the
 * session's err.
 *
 * In: a program. A run of a compiled program on the CPU is one submit of a sealed list: no allocation, no lock, no system call.
 */
#include "run/run.h"

static tn_status take(tn_session *s, size_t n, size_t size, void *out) {
    void *p = mem_alloc(s->p->ctx->mem, n * size);
    if (!p) return err_set(&s->err, TN_ERR_NOMEM, "out of memory: a session");
    memcpy(out, &p, sizeof p);
    return TN_OK;
}

static tn_status init_state(tn_session *s) {
    const plan *p = s->p->plan;
    tn_status code = TN_OK;
    for (int i = 0; i < p->states.n && !code; i++) {
        const void *value = graph_get(p->g, p->states.at[i].node)->data;
        if (value && !drive_is_shared(s->p, i)) code = drive_set_state(s->p, s->state, i, value, &s->err);
    }
    return code;
}

/* ---- recording ---- */

static tn_status launch_kernel(tn_session *s, const session_form *w, list *l, int i) {
    const tn_program *p = w->p;
    const pkernel *pk = &p->plan->kernels.at[i];
    const kernel *k = pk->k;
    device_launch what = { .entry = p->kernel_entry[i],
                           .parallel = k->par_var >= 0,
                           .block_threads = k->block_threads,
                           .grid_blocks = k->params  ? ext_hi(k->params, k->grid_blocks)
                                          : k->turns ? k->turns
                                                     : k->grid_blocks,
                           .shared = kernel_dynamic_shared(k),
                           .waits = true };
    if (!k->block_threads) return p->dev->api->launch(l, &what, &s->err);
    device_arg *args = mem_alloc(p->ctx->mem, (size_t)(k->bufs.n + 1) * sizeof *args);
    if (!args) return err_set(&s->err, TN_ERR_NOMEM, "out of memory: a session");
    const kmaps *of = &p->maps[i];
    device_map maps[KERNEL_MOST_MAPS];
    for (int b = 0; b < k->bufs.n; b++) {
        if (kbuf_is_local(&k->bufs.at[b])) continue;
        const pbuf *pb = &p->plan->bufs.at[pk->args[b].buf];
        for (int m = 0; m < of->n; m++)
            if (of->at[m].buf == b) maps[m] = (device_map){ what.n_args, of->at[m].pitch, of->at[m].rows, of->at[m].box_rows };
        int place = w->place && p->elems[pk->args[b].buf] ? pk->args[b].buf + 1 : 0;
        args[what.n_args++] =
            (device_arg){ pb->slot, (size_t)pb->offset, (size_t)pb->bytes, k->bufs.at[b].kind != KB_IN, place };
    }
    what.args = args, what.maps = maps, what.n_maps = of->n;
    if (p->rows) what.rows = p->rows[i].at, what.n_rows = p->rows[i].n;
    tn_status code = p->dev->api->launch(l, &what, &s->err);
    mem_free(p->ctx->mem, args, (size_t)(k->bufs.n + 1) * sizeof *args);
    return code;
}

static tn_status record_steps(tn_session *s, const session_form *w, list *l, int i, int end);

/* The byte that a step reads. */
static tn_status record_conditional(tn_session *s, const session_form *w, list *l, int i) {
    const plan *p = w->p->plan;
    const pstep *x = &p->steps.at[i];
    const device_api *api = s->p->dev->api;
    const pbuf *cond = &p->bufs.at[x->cond];
    if (x->kind == PSTEP_LEAVE) return api->leave(l, cond->slot, (size_t)cond->offset, &s->err);
    tn_status code = api->branch(l, cond->slot, (size_t)cond->offset, &s->err);
    if (!code) code = record_steps(s, w, l, i + 1, i + 1 + x->n_then);
    if (!code && x->n_then < x->inside) code = api->otherwise(l, &s->err);
    if (!code) code = record_steps(s, w, l, i + 1 + x->n_then, pstep_end(p, i));
    return code ? code : api->end(l, &s->err);
}

/* Where a session keeps the value of a row, in SLOT_RING. */
static size_t row_at(const plan *p, ext e) { return (size_t)(plan_rows_at(p->io.n, p->params) + 8 * ext_index(e)); }

static tn_status record_repeat(tn_session *s, const plan *p, list *l, const pstep *x) {
    const device_api *api = s->p->dev->api;
    if (!x->times) return api->repeat(l, NULL, &s->err);
    size_t n = (size_t)x->n_rings + 1;
    device_window *w = mem_alloc(s->p->ctx->mem, n * sizeof *w);
    if (!w) return err_set(&s->err, TN_ERR_NOMEM, "out of memory: a session");
    device_trips t = { .times = x->times, .count = -1, .backward = x->backward, .windows = w, .n_windows = x->n_rings };
    if (!ext_is_lit(x->times)) {
        t.times = ext_hi(p->params, x->times);
        if (s->io_buf)
            t.times_row = 1 + ext_index(x->times);
        else
            t.times_in = 1 + SLOT_RING, t.times_at = row_at(p, x->times);
    }
    if (x->count >= 0) t.count = p->bufs.at[x->count].slot, t.count_offset = (size_t)p->bufs.at[x->count].offset;
    for (int i = 0; i < x->n_rings; i++) {
        const pbuf *b = &p->bufs.at[x->rings[i].buf], *of = &p->bufs.at[b->window_of];
        ext by = x->rings[i].stride;
        w[i] = (device_window){ .slot = b->slot, .of = of->slot, .offset = (size_t)of->offset };
        if (ext_is_lit(by))
            w[i].stride = (size_t)by;
        else if (s->io_buf)
            w[i].stride_row = 1 + ext_index(by);
        else
            w[i].stride_in = 1 + SLOT_RING, w[i].stride_at = row_at(p, by);
    }
    tn_status code = api->repeat(l, &t, &s->err);
    mem_free(s->p->ctx->mem, w, n * sizeof *w);
    return code;
}

/* Steps [i, end) of the plan. */
static tn_status record_steps(tn_session *s, const session_form *w, list *l, int i, int end) {
    const plan *p = w->p->plan;
    const device_api *api = s->p->dev->api;
    tn_status code = TN_OK;
    for (; i < end && !code; i = pstep_end(p, i)) {
        const pstep *x = &p->steps.at[i];
        bool loops = x->kind == PSTEP_LOOP || x->kind == PSTEP_REPEAT;
        if (x->kind == PSTEP_LAUNCH) code = launch_kernel(s, w, l, x->kernel);
        if (pstep_is_conditional(x)) code = record_conditional(s, w, l, i);
        if (loops) code = x->kind == PSTEP_LOOP ? api->loop(l, &s->err) : record_repeat(s, p, l, x);
        if (loops && !code) code = record_steps(s, w, l, i + 1, pstep_end(p, i));
        if (loops && !code) code = api->end(l, &s->err);
    }
    return code;
}

/* Places of temporaries, and what follows from the dims. */
static void bring_sizes(const tn_session *s, const session_form *w, list *l) {
    const device_api *api = s->p->dev->api;
    const char *missing;
    if (w->place && api->places) api->places(l, w->places.copies ? &w->places : NULL);
    if (w->grids && api->sizes && session_has_dims(s, &missing)) api->sizes(l, w->grids, w->rows);
}

/* A list that was not in use knows nothing of what was bound meanwhile. */
static void bind_all(const tn_session *s, const session_form *w, list *l) {
    const device_api *api = s->p->dev->api;
    api->bind(l, SLOT_TEMP, s->temp, 0);
    api->bind(l, SLOT_STATE, s->state, 0);
    api->bind(l, SLOT_SHARED, s->shared, 0);
    api->bind(l, SLOT_CONST, w->p->consts, 0);
    api->bind(l, SLOT_SCRATCH, s->scratch, 0);
    if (s->io_buf)
        api->bind(l, SLOT_RING, s->temp, 0);
    else
        api->bind_host(l, SLOT_RING, s->ring);
    for (int i = 0; i < s->p->n_io; i++) {
        buffer *b = !s->io_buf ? NULL : s->in_place[i] ? s->adopted[i] : s->io_buf[i];
        if (b) api->bind(l, SLOT_IO + i, b, 0);
        if (b && s->in_place[i] && api->ring) api->ring(l, SLOT_IO + i, 0, 1);
        if (!s->io_buf && s->bound[i]) api->bind_host(l, SLOT_IO + i, s->bound[i]);
    }
}

tn_status session_record(tn_session *s, const session_form *w, bool kernels, list **out) {
    const tn_program *p = w->p;
    const device_api *api = p->dev->api;
    err *e = &s->err;
    bool steps = kernels || !p->main_entry; /* else the program moves its windows itself */
    tn_status code = api->record(p->dev, steps ? plan_slots(p->plan) : SLOT_IO + p->plan->io.n, out, e);
    if (code) return code;
    list *l = *out;
    bool loops = plan_loop(p->plan) != NULL;
    if (steps)
        code = record_steps(s, w, l, 0, p->plan->steps.n);
    else
        code = api->launch(l, &(device_launch){ .entry = p->main_entry, .parallel = p->parallel, .loops = loops }, e);
    if (!code) code = api->seal(l, e);
    if (code) return code;
    bind_all(s, w, l);
    bring_sizes(s, w, l);
    return TN_OK;
}

void session_use_sizes(tn_session *s) {
    if (!s->moved || s->imm) return;
    int special = drive_find_special(s->p, s->dims);
    session_form *w = special >= 0 ? &s->special[special] : &s->usual;
    const plan *p = w->p->plan;
    if (special >= 0 && p->params) exts_at(p->params, s->dims, w->rows, NULL);
    for (int i = 0; w->grids && i < p->kernels.n; i++) w->grids[i] = ext_of(p->kernels.at[i].k->grid_blocks, w->rows);
    if (w->place && p->params) session_place_temps(s, w);
    if (w != s->now) bind_all(s, w, w->list);
    s->now = w, s->moved = false;
    bring_sizes(s, w, w->list);
}

/* How inputs and outputs lie on the device, as the plan's loop has them. */
static void set_strides(tn_session *s) {
    const tn_program *p = s->p;
    const pstep *loop = p->plan ? plan_loop(p->plan) : NULL;
    for (int i = 0; i < p->n_io; i++) s->io_stride[i] = (size_t)p->io[i].bytes;
    for (int i = 0; loop && i < loop->n_rings; i++)
        s->io_stride[p->plan->bufs.at[loop->rings[i].buf].io] = (size_t)loop->rings[i].stride;
}

static size_t ring_length(const tn_session *s) {
    const exts *t = session_params(s);
    return 2 * (size_t)s->p->n_io + 1 + (t ? (size_t)(t->n_dims + t->at.n) : 0);
}

/* What sizes of a run change in the list. */
static tn_status take_form(tn_session *s, session_form *w) {
    const plan *p = w->p->plan;
    tn_status code = TN_OK;
    if (p->params) code = take(s, (size_t)p->kernels.n, sizeof *w->grids, &w->grids);
    if (!code && p->params && w != &s->usual) code = take(s, (size_t)p->params->at.n, sizeof *w->rows, &w->rows);
    if (!code && w->p->elems) code = take(s, (size_t)p->bufs.n, sizeof *w->place, &w->place);
    if (!code && w->place && !p->params) session_place_temps(s, w);
    return code;
}

/* bare: the device's memory for inputs and outputs is somebody else's. */
static tn_status take_slots(tn_session *s, bool bare) {
    const tn_program *p = s->p;
    size_t n = (size_t)p->n_io;
    device_caps caps;
    p->dev->api->get_caps(p->dev, &caps);
    tn_status code = take(s, n, sizeof *s->bound, &s->bound);
    if (!code) code = take(s, n, sizeof *s->kept, &s->kept);
    if (!code) code = take(s, n, sizeof *s->io_flags, &s->io_flags);
    if (!code) code = take(s, n, sizeof *s->by_address, &s->by_address);
    for (size_t i = 0; i < n && !code; i++) s->by_address[i] = (int)i;
    if (!code) code = take(s, n, sizeof *s->spare, &s->spare);
    if (!code) code = take(s, n, sizeof *s->trace, &s->trace);
    if (!code) code = take(s, ring_length(s), sizeof *s->ring, &s->ring);
    if (!code && session_params(s)) code = take(s, n + 1, sizeof *s->io_bytes, &s->io_bytes);
    if (!code && session_params(s)) {
        s->dims = s->ring + plan_dims_at(p->n_io) / 8, s->rows = s->ring + plan_rows_at(p->n_io, session_params(s)) / 8;
        for (int i = 0; i < session_params(s)->n_dims; i++) s->dims[i] = -1;
    }
    if (!code && !caps.host_memory) code = take(s, n, sizeof *s->io_buf, &s->io_buf);
    if (!code && !caps.host_memory) code = take(s, n, sizeof *s->adopted, &s->adopted);
    if (!code && !caps.host_memory) code = take(s, n, sizeof *s->in_place, &s->in_place);
    if (!code && !caps.host_memory) code = take(s, n, sizeof *s->io_room, &s->io_room);
    if (!code && !caps.host_memory) code = take(s, n, sizeof *s->io_stride, &s->io_stride);
    if (!code && !caps.host_memory) set_strides(s);
    s->usual.rows = s->rows;
    if (!code && !caps.host_memory && p->plan) code = take_form(s, &s->usual);
    for (int i = 0; i < p->n_special && !code; i++) code = take_form(s, &s->special[i]);
    for (size_t i = 0; i < n && !code; i++) {
        s->ring[n + i] = 1;
        size_t room = (size_t)p->io[i].bytes + !p->io[i].bytes; /* not cleared: an output that is bound leaves it untouched */
        if (!bare && (p->io[i].is_output || !p->io[i].bytes) && !(s->spare[i] = mem_realloc(p->ctx->mem, NULL, 0, room)))
            code = err_set(&s->err, TN_ERR_NOMEM, "out of memory: %lld bytes for output \"%s\"", (long long)p->io[i].bytes,
                           p->io[i].name);
        s->bound[i] = s->spare[i];
        if (bare) continue;
        if (!code && s->io_buf) code = p->dev->api->alloc(p->dev, (size_t)p->io[i].bytes, &s->io_buf[i], &s->err);
        if (!code && s->io_buf) s->io_room[i] = (size_t)p->io[i].bytes;
    }
    return code;
}

/* All that a session will take, before it takes any. */
static tn_status check_room(tn_session *s, bool bare) {
    const tn_program *p = s->p;
    size_t io = 0;
    if (p->opts.mode == TN_MODE_IMMEDIATE) return TN_OK;
    for (int i = 0; i < p->n_io && !bare; i++) io += (size_t)p->io[i].bytes;
    int64_t state = p->plan->state_bytes + (p->shared || s->own_states ? 0 : p->plan->shared_bytes);
    return drive_check_room(p, drive_temp_room(p), (size_t)state, io, &s->err);
}

static tn_status take_arenas(tn_session *s) {
    const tn_program *p = s->p;
    const device_api *api = p->dev->api;
    tn_status code = api->alloc(p->dev, drive_temp_room(p), &s->temp, &s->err);
    if (!code) code = api->alloc(p->dev, (size_t)p->plan->state_bytes, &s->state, &s->err);
    if (!code) code = api->alloc(p->dev, p->scratch, &s->scratch, &s->err);
    return code || s->own_states ? code : session_first_states(s);
}

static void leave_form(tn_session *s, session_form *w) {
    mem m = s->p->ctx->mem;
    if (w->list) s->p->dev->api->discard(w->list);
    if (w->grids) mem_free(m, w->grids, (size_t)w->p->plan->kernels.n * sizeof *w->grids);
    if (w->place) mem_free(m, w->place, (size_t)w->p->plan->bufs.n * sizeof *w->place);
    if (w->rows && w != &s->usual) mem_free(m, w->rows, (size_t)w->p->plan->params->at.n * sizeof *w->rows);
}

void session_close(tn_session *s) {
    if (!s) return;
    tn_program *p = s->p;
    mem m = p->ctx->mem;
    size_t n = (size_t)p->n_io;
    /* First: a thread of the last run may still be on its way to the end, with the session's memory. */
    leave_form(s, &s->usual);
    for (int i = 0; i < p->n_special; i++) leave_form(s, &s->special[i]);
    if (s->temp) p->dev->api->free(p->dev, s->temp);
    if (s->state) p->dev->api->free(p->dev, s->state);
    if (s->scratch) p->dev->api->free(p->dev, s->scratch);
    session_leave_states(s);
    for (size_t i = 0; s->spare && i < n; i++) mem_free(m, s->spare[i], (size_t)p->io[i].bytes);
    for (size_t i = 0; s->io_buf && i < n; i++)
        if (s->io_buf[i]) p->dev->api->free(p->dev, s->io_buf[i]);
    for (size_t i = 0; s->adopted && i < n; i++)
        if (s->adopted[i]) p->dev->api->free(p->dev, s->adopted[i]);
    mem_free(m, s->io_buf, n * sizeof *s->io_buf);
    mem_free(m, s->adopted, n * sizeof *s->adopted);
    mem_free(m, s->in_place, n * sizeof *s->in_place);
    mem_free(m, s->io_room, n * sizeof *s->io_room);
    mem_free(m, s->io_stride, n * sizeof *s->io_stride);
    mem_free(m, s->bound, n * sizeof *s->bound);
    mem_free(m, s->kept, n * sizeof *s->kept);
    mem_free(m, s->io_flags, n * sizeof *s->io_flags);
    mem_free(m, s->by_address, n * sizeof *s->by_address);
    mem_free(m, s->spare, n * sizeof *s->spare);
    mem_free(m, s->trace, n * sizeof *s->trace);
    mem_free(m, s->ring, ring_length(s) * sizeof *s->ring);
    mem_free(m, s->io_bytes, (n + 1) * sizeof *s->io_bytes);
    mem_free(m, s, sizeof *s);
}

tn_status session_shell(tn_program *p, bool bare, const tn_session *from, tn_session **out, err *e) {
    tn_session *s = mem_alloc(p->ctx->mem, sizeof *s);
    if (!s) return err_set(e, TN_ERR_NOMEM, "out of memory: a session");
    s->p = s->usual.p = p, s->now = &s->usual;
    for (int i = 0; i < p->n_special; i++) s->special[i].p = p->special[i];
    if (from) session_share(s, from);
    tn_status code = check_room(s, bare);
    if (!code) code = take_slots(s, bare);
    if (code) {
        err_set(e, code, "%s", s->err.text);
        session_close(s);
        return code;
    }
    *out = s;
    return TN_OK;
}

tn_status session_open(tn_program *p, bool bare, const tn_session *from, tn_session **out, err *e) {
    tn_session *s;
    tn_status code = session_shell(p, bare, from, &s, e);
    if (code) return code;
    code = take_arenas(s);
    if (!code) code = session_record(s, &s->usual, p->opts.mode == TN_MODE_GRAPH, &s->usual.list);
    for (int i = 0; i < p->n_special && !code; i++) code = session_record(s, &s->special[i], false, &s->special[i].list);
    s->loops = plan_loop(p->plan) != NULL;
    if (!code) code = init_state(s);
    if (code) {
        err_set(e, code, "%s", s->err.text);
        session_close(s);
        return code;
    }
    *out = s;
    return TN_OK;
}

static bool is_in_place(const tn_session *s, int slot) { return s->in_place && s->in_place[slot]; }

static void use_buffer(tn_session *s, int slot, bool in_place) {
    if (s->in_place[slot] == in_place) return;
    s->in_place[slot] = in_place;
    if (s->p->dev->api->ring) s->p->dev->api->ring(s->now->list, SLOT_IO + slot, 0, 1);
    s->p->dev->api->bind(s->now->list, SLOT_IO + slot, in_place ? s->adopted[slot] : s->io_buf[slot], 0);
}

void session_adopt(tn_session *s, int slot, buffer *b) {
    if (!s->adopted || s->adopted[slot] == b) return;
    use_buffer(s, slot, false);
    if (s->adopted[slot]) s->p->dev->api->free(s->p->dev, s->adopted[slot]);
    s->adopted[slot] = b;
}

void session_place(tn_session *s, int slot, void *data) {
    void *at = data ? data : s->spare[slot];
    if (s->adopted && s->now->list) use_buffer(s, slot, s->adopted[slot] && at && at == s->kept[slot]);
    if (at == s->bound[slot]) return;
    s->bound[slot] = at;
    s->io_flags[slot] |= SESSION_MOVED;
    if (s->now->list && !s->io_buf && at) s->p->dev->api->bind_host(s->now->list, SLOT_IO + slot, at);
}
void session_bind(tn_session *s, int slot, buffer *b) { s->p->dev->api->bind(s->now->list, SLOT_IO + slot, b, 0); }
tn_status session_queue(tn_session *s) {
    uint64_t ticket;
    return s->p->dev->api->submit(s->now->list, 1, &ticket, &s->err);
}

/* Steps of input or output i that a run of so many reads or writes, each at a place of its own; and from step to step. */
static int64_t io_steps(const tn_session *s, int i, int64_t steps) {
    int64_t length = s->ring[s->p->n_io + i];
    return steps == 1 || !s->ring[i] ? 1 : length < steps ? length : steps;
}

/* Room for a ring on the device. */
static tn_status make_room(tn_session *s, int i, int64_t steps) {
    tn_program *p = s->p;
    int64_t n = io_steps(s, i, steps);
    if (is_in_place(s, i)) return TN_OK;
    size_t need = n > 1 ? (size_t)n * s->io_stride[i] : (size_t)p->io[i].bytes;
    buffer *b;
    if (need > s->io_room[i]) {
        tn_status code = p->dev->api->alloc(p->dev, need, &b, &s->err);
        if (code) return code;
        p->dev->api->free(p->dev, s->io_buf[i]);
        s->io_buf[i] = b, s->io_room[i] = need;
        p->dev->api->bind(s->now->list, SLOT_IO + i, b, 0);
    }
    int64_t length = s->ring[p->n_io + i];
    bool moves = steps > 1 && length > 1;
    if (p->dev->api->ring) p->dev->api->ring(s->now->list, SLOT_IO + i, moves ? s->io_stride[i] : 0, moves ? length : 1);
    return TN_OK;
}

enum { FED_BYTES = 8 << 20 /* of inputs that go up while the steps before run: long beside what a submit costs */ };

/* How many steps to submit at a time so that the inputs of the next may go up meanwhile. *out_fed: of how many steps inputs go
 * up, before the rings begin again. */
static int64_t steps_at_once(const tn_session *s, int64_t steps, int64_t *out_fed) {
    const tn_program *p = s->p;
    const device_api *api = p->dev->api;
    int64_t bytes = 0;
    *out_fed = 1;
    for (int i = 0; i < p->n_io; i++) {
        int64_t n = io_steps(s, i, steps);
        if (p->io[i].is_output || n < 2) continue;
        bytes += session_bytes(s, i);
        if (*out_fed < n) *out_fed = n;
    }
    if (!api->send || !api->start || bytes <= FED_BYTES / *out_fed) return steps;
    return bytes < FED_BYTES ? (FED_BYTES + bytes - 1) / bytes : 1;
}

typedef enum variant { UP, UP_BESIDE, DOWN } variant;
/* Steps from .. to - 1 of input or output i: at once, unless there is room between them on the device. */
static tn_status transfer(tn_session *s, int i, int64_t from, int64_t to, variant w) {
    const device_api *api = s->p->dev->api;
    device *d = s->p->dev;
    size_t one = (size_t)session_bytes(s, i), stride = s->io_stride[i];
    int64_t n = stride == one ? to - from : 1;
    tn_status code = TN_OK;
    for (int64_t k = from; k < to && !code; k += n) {
        size_t at = stride * (size_t)k, size = one * (size_t)n;
        char *host = (char *)s->bound[i] + one * (size_t)k;
        code = w == DOWN        ? api->download(d, s->io_buf[i], at, host, size, &s->err)
               : w == UP_BESIDE ? api->send(d, s->io_buf[i], at, host, size, &s->err)
                                : api->upload(d, s->io_buf[i], at, host, size, &s->err);
    }
    return code;
}

/* The inputs of steps first .. end - 1 of a run of so many; with the first step all that do not move, too. Nothing that runs
 * reads them: each step of a ring has memory of its own. */
static tn_status feed(tn_session *s, int64_t first, int64_t end, int64_t steps) {
    tn_status code = TN_OK;
    for (int i = 0; i < s->p->n_io && !code; i++) {
        int64_t have = io_steps(s, i, steps), to = end < have ? end : have;
        if (!s->p->io[i].is_output && first < to && !is_in_place(s, i))
            code = transfer(s, i, first, to, first ? UP_BESIDE : UP);
    }
    return code;
}

/* Devices that cannot read host memory: inputs go up before the run, or beside the steps before theirs. *out_ticket: 0 when
 * nothing was submitted. */
static tn_status submit_remote(tn_session *s, int64_t steps, uint64_t *out_ticket) {
    tn_program *p = s->p;
    const device_api *api = p->dev->api;
    tn_status code = TN_OK;
    int64_t fed, at_once = steps_at_once(s, steps, &fed);
    session_use_sizes(s);
    for (int i = 0; i < p->n_io && !code; i++) code = make_room(s, i, steps);
    for (int64_t first = 0, end; first < steps && !code; first = end) {
        end = first >= fed || steps - first < at_once ? steps : first + at_once;
        code = feed(s, first, end, steps);
        if (api->start) api->start(s->now->list, first);
        if (!code) code = api->submit(s->now->list, end - first, out_ticket, &s->err);
    }
    return code;
}

/* Outputs come down after the run. */
static tn_status run_remote(tn_session *s, int64_t steps) {
    tn_program *p = s->p;
    const device_api *api = p->dev->api;
    uint64_t ticket = 0;
    err *e = &s->err, late;
    tn_status code = submit_remote(s, steps, &ticket);
    tn_status waited =
        ticket ? api->wait(p->dev, ticket, code ? &late : e) : TN_OK; /* what was submitted before an error, too */
    if (!code) code = waited;
    for (int i = 0; i < p->n_io && !code; i++)
        if (p->io[i].is_output && !is_in_place(s, i)) code = transfer(s, i, 0, io_steps(s, i, steps), DOWN);
    return code;
}

tn_status session_follow(tn_session *s, uint64_t stream) {
    const device_api *api = s->p->dev->api;
    uint64_t ticket = 0;
    tn_status code = api->follow ? api->follow(s->p->dev, stream, false, &s->err) : TN_OK;
    if (!code) code = submit_remote(s, 1, &ticket);
    if (!code && api->follow) return api->follow(s->p->dev, stream, true, &s->err);
    return code || api->follow ? code : api->wait(s->p->dev, ticket, &s->err);
}

tn_status session_submit(tn_session *s, int64_t steps) {
    if (s->io_buf) return run_remote(s, steps);
    tn_program *p = s->p;
    uint64_t ticket;
    for (int i = 0; i < p->n_io && !p->main_entry && s->loops; i++)
        p->dev->api->ring(s->now->list, SLOT_IO + i, steps > 1 ? (size_t)s->ring[i] : 0, s->ring[p->n_io + i]);
    tn_status code = p->dev->api->submit(s->now->list, steps, &ticket, &s->err);
    return code ? code : p->dev->api->wait(p->dev, ticket, &s->err);
}
