/* measure.c - implementation of measure.h. */
#include "run/measure.h"

#include <math.h>
#include <stdio.h>

/* ---- values ---- */

static uint64_t mix(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void put_random(char *to, tn_dtype t, uint64_t r) {
    if (dtype_is_float(t))
        dtype_store(t, to, 0, (double)(int64_t)r * 0x1p-63 * 0.99);
    else
        dtype_store_int(t, to, 0, (int64_t)(t == TN_BOOL ? r >> 63 : r >> 61));
}

void measure_fill(void *data, tn_dtype t, int64_t n, uint64_t seed) {
    size_t size = dtype_size(t);
    for (int64_t i = 0; i < n; i++) put_random((char *)data + (size_t)i * size, t, mix(&seed));
}

static bool is_nan(const char *x, tn_dtype t) { return dtype_is_float(t) && isnan(dtype_load(t, x, 0)); }

bool measure_same(const void *x, const void *y, tn_dtype t, int64_t n) {
    size_t size = dtype_size(t);
    const char *a = x, *b = y;
    if (!n || !memcmp(a, b, (size_t)n * size)) return true;
    for (int64_t i = 0; i < n; i++, a += size, b += size)
        if (memcmp(a, b, size) != 0 && !(is_nan(a, t) && is_nan(b, t))) return false;
    return true;
}

/* ---- the kernel's memory ---- */

static char *address(const tn_session *s, const pbuf *b) {
    const device_api *api = s->p->dev->api;
    char *base = b->slot == SLOT_TEMP    ? api->map(s->p->dev, s->temp)
                 : b->slot == SLOT_STATE ? api->map(s->p->dev, s->state)
                 : b->slot >= SLOT_IO    ? s->bound[b->slot - SLOT_IO]
                                         : NULL;
    return base ? base + b->offset : NULL;
}

static tn_status find_pieces(measure *m, int which, err *e) {
    const tn_program *p = m->s->p;
    const pkernel *pk = &p->plan->kernels.at[which];
    m->room = pk->k->bufs.n;
    m->pieces = mem_alloc(p->ctx->mem, (size_t)pk->k->bufs.n * sizeof *m->pieces);
    if (!m->pieces) return err_set(e, TN_ERR_NOMEM, "out of memory: buffers of a kernel");
    for (int i = 0; i < pk->k->bufs.n; i++) {
        const kbuf *kb = &pk->k->bufs.at[i];
        if (kbuf_is_local(kb) || kb->fixed) continue;
        const pbuf *pb = &p->plan->bufs.at[pk->args[i].buf];
        piece x = { address(m->s, pb), (tn_dtype)pb->dtype, pb->elems, pb->bytes, kb->kind != KB_IN, NULL };
        if (!x.at || !x.bytes) continue;
        for (int j = 0; j < m->n_pieces; j++) {
            const piece *y = &m->pieces[j];
            m->in_place |= (x.written || y->written) && x.at < y->at + y->bytes && y->at < x.at + x.bytes;
        }
        m->in_place |= kb->kind == KB_INOUT;
        if (x.written && !(x.want = mem_alloc(p->ctx->mem, (size_t)x.bytes)))
            return err_set(e, TN_ERR_NOMEM, "out of memory: %lld bytes of a kernel's results", (long long)x.bytes);
        m->pieces[m->n_pieces++] = x;
    }
    return TN_OK;
}

static void reset(measure *m) {
    for (int i = 0; i < m->n_pieces; i++)
        measure_fill(m->pieces[i].at, m->pieces[i].dtype, m->pieces[i].elems, 1000 + (uint64_t)i);
}

/* ---- lists ---- */

static tn_status record(measure *m, int variant, bool parallel, err *e) {
    tn_session *s = m->s;
    const tn_program *p = s->p;
    const device_api *api = p->dev->api;
    char name[32];
    void *entry;
    snprintf(name, sizeof name, "tn_kernel_%d", variant);
    tn_status code = api->find(p->dev, m->module, name, &entry, e);
    if (!code) code = api->record(p->dev, SLOT_IO + p->plan->io.n, &m->lists[variant], e);
    for (int i = 0; i < m->repeats && !code; i++)
        code = api->launch(m->lists[variant], &(device_launch){ .entry = entry, .parallel = parallel }, e);
    if (!code) code = api->seal(m->lists[variant], e);
    if (code) return code;
    api->bind(m->lists[variant], SLOT_TEMP, s->temp, 0);
    api->bind(m->lists[variant], SLOT_STATE, s->state, 0);
    api->bind(m->lists[variant], SLOT_SHARED, s->shared, 0);
    api->bind(m->lists[variant], SLOT_CONST, m->consts, 0);
    api->bind(m->lists[variant], SLOT_SCRATCH, m->scratch, 0);
    api->bind_host(m->lists[variant], SLOT_RING, s->ring);
    for (int i = 0; i < p->n_io; i++) api->bind_host(m->lists[variant], SLOT_IO + i, s->bound[i]);
    return TN_OK;
}

tn_status measure_open(measure *m, tn_session *s, int which, const plan *what, const drive_code *code, const bool *parallel,
                       int n, int repeats, err *e) {
    const device_api *api = s->p->dev->api;
    device *dev = s->p->dev;
    *m = (measure){ .s = s, .n = n, .repeats = repeats };
    m->lists = mem_alloc(s->p->ctx->mem, (size_t)n * sizeof *m->lists);
    if (!m->lists) return err_set(e, TN_ERR_NOMEM, "out of memory: %d ways to do a kernel", n);
    tn_status st = find_pieces(m, which, e);
    if (!st) st = drive_constants(s->p, what, &m->consts, e);
    if (!st) st = api->alloc(dev, code->scratch, &m->scratch, e);
    if (!st && code->image) st = api->load(dev, code->image, &m->module, e);
    if (!st && !code->image) st = api->build(dev, code->source, code->n_source, true, &m->module, NULL, e);
    for (int i = 0; i < n && !st; i++) st = record(m, i, parallel[i], e);
    if (!st) reset(m);
    return st;
}

void measure_close(measure *m) {
    if (!m->s) return;
    const tn_program *p = m->s->p;
    for (int i = 0; m->lists && i < m->n; i++)
        if (m->lists[i]) p->dev->api->discard(m->lists[i]);
    mem_free(p->ctx->mem, m->lists, (size_t)m->n * sizeof *m->lists);
    for (int i = 0; i < m->n_pieces; i++) mem_free(p->ctx->mem, m->pieces[i].want, (size_t)m->pieces[i].bytes);
    mem_free(p->ctx->mem, m->pieces, (size_t)m->room * sizeof *m->pieces);
    if (m->module) p->dev->api->drop(p->dev, m->module);
    if (m->consts) p->dev->api->free(p->dev, m->consts);
    if (m->scratch) p->dev->api->free(p->dev, m->scratch);
    *m = (measure){ 0 };
}

static tn_status submit(measure *m, int variant, err *e) {
    uint64_t ticket;
    const device_api *api = m->s->p->dev->api;
    tn_status st = api->submit(m->lists[variant], 1, &ticket, e);
    return st ? st : api->wait(m->s->p->dev, ticket, e);
}

tn_status measure_time(measure *m, int variant, double *out_seconds, err *e) {
    tn_status st = TN_OK;
    if (m->repeats == 1 && !m->in_place)
        st = submit(m, variant, e); /* each way has constants of its own: they come near first */
    if (m->in_place) reset(m);
    double start = now_seconds();
    if (!st) st = submit(m, variant, e);
    *out_seconds = (now_seconds() - start) / m->repeats;
    return st;
}

tn_status measure_check(measure *m, int variant, bool *out_same, err *e) {
    reset(m);
    tn_status st = submit(m, variant, e);
    *out_same = true;
    for (int i = 0; i < m->n_pieces && !st; i++) {
        const piece *x = &m->pieces[i];
        if (!x->written) continue;
        if (variant == 0)
            memcpy(x->want, x->at, (size_t)x->bytes);
        else
            *out_same &= measure_same(x->want, x->at, x->dtype, x->elems);
    }
    return st;
}
