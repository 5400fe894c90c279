/* immediate.c - immediate mode: one op, one program, one run.
 *
 * An op on given shapes is a one-op graph whose operands are inputs; the graph goes through the same pipeline as any other.
 * Programs are kept in a table by the hash of op, dtypes, shapes and attributes ("cached"); with no_cache each run compiles
 * again ("naive"). Run half, except for making the one-op graph. */
#include "drive/drive.h"

#include <stdio.h>

enum { TABLE = 1 << 10 };

typedef struct op_entry {
    hash128 key;
    tn_program *p;
    tn_session *s;
    uint64_t last_use;
} op_entry;

struct immediate {
    tn_ctx *ctx;
    device *dev;
    err *err; /* of whoever owns this */
    tn_compile_opts opts;
    bool queues;     /* values stay on the device, runs are not waited for */
    op_entry *table; /* [TABLE], linear probing within 8 places, least recently used out */
    uint64_t clock;
    tn_program_stats stats;
};

tn_status immediate_new(tn_ctx *ctx, device *dev, const tn_compile_opts *opts, immediate **out, err *e) {
    immediate *im = mem_alloc(ctx->mem, sizeof *im);
    if (!im) return err_set(e, TN_ERR_NOMEM, "out of memory: immediate mode");
    im->ctx = ctx, im->dev = dev, im->err = e;
    im->opts = *opts;
    im->opts.mode = TN_MODE_GRAPH, im->opts.fusion = 0, im->opts.no_passes = 1;
    device_caps caps;
    dev->api->get_caps(dev, &caps);
    im->queues = !caps.host_memory && !opts->no_cache;
    im->table = mem_alloc(ctx->mem, TABLE * sizeof *im->table);
    if (!im->table) {
        mem_free(ctx->mem, im, sizeof *im);
        return err_set(e, TN_ERR_NOMEM, "out of memory: immediate mode");
    }
    *out = im;
    return TN_OK;
}

static void drop(op_entry *e) {
    drive_session_free(e->s);
    drive_program_free(e->p);
    *e = (op_entry){ 0 };
}

void immediate_free(immediate *im) {
    if (!im) return;
    for (int i = 0; i < TABLE; i++)
        if (im->table[i].p) drop(&im->table[i]);
    mem_free(im->ctx->mem, im->table, TABLE * sizeof *im->table);
    mem_free(im->ctx->mem, im, sizeof *im);
}

void immediate_get_stats(const immediate *im, tn_program_stats *out) { *out = im->stats; }

/* ---- keys ---- */

typedef struct key_words {
    int64_t w[128];
    size_t n;
} key_words;

static void add_word(key_words *k, int64_t w) {
    if (k->n == COUNT_OF(k->w)) {
        hash128 h = hash_bytes128(k->w, sizeof k->w);
        memcpy(k->w, &h, sizeof h);
        k->n = sizeof h / sizeof *k->w;
    }
    k->w[k->n++] = w;
}

static bool is_splat(const graph *g, val v) { return graph_get(g, v)->op == OP_const && graph_get(g, v)->splat; }

static hash128 key_of(const graph *g, val v) {
    key_words k;
    k.n = 0;
    const node *n = graph_get(g, v);
    int64_t bits;
    memcpy(&bits, &n->imm, sizeof bits);
    add_word(&k, n->op | n->dtype << 8 | n->rank << 16 | (int64_t)n->n_in << 24);
    add_word(&k, bits);
    for (int i = 0; i < n->rank; i++) add_word(&k, n->dims[i]);
    for (int i = 0; i < n->n_attr; i++) add_word(&k, n->attr[i]);
    for (int j = 0; j < n->n_in; j++) {
        const node *x = graph_get(g, n->in[j]);
        int first = j; /* the same operand twice is another program than two operands */
        for (int i = 0; i < j; i++)
            if (n->in[i] == n->in[j]) first = i;
        add_word(&k, x->dtype | x->rank << 8 | first << 16 | (int64_t)is_splat(g, n->in[j]) << 40);
        if (is_splat(g, n->in[j])) {
            memcpy(&bits, &x->imm, sizeof bits);
            add_word(&k, bits);
            add_word(&k, x->imm_int);
        }
        for (int i = 0; i < x->rank; i++) add_word(&k, x->dims[i]);
    }
    return hash_bytes128(k.w, k.n * sizeof k.w[0]);
}

/* ---- one-op graphs ---- */

typedef struct one_op {
    const graph *g;
    val v;
    graph *out;
    arena *a;
} one_op;

static void make_one_op(one_op *o) {
    const node *n = graph_get(o->g, o->v);
    graph *g = graph_make(o->a, "op");
    val *in = ARENA_ARRAY(o->a, val, n->n_in + 1);
    for (int j = 0; j < n->n_in; j++) {
        const node *x = graph_get(o->g, n->in[j]);
        for (int i = 0; i < j; i++)
            if (n->in[i] == n->in[j]) in[j] = in[i];
        if (in[j]) continue;
        spec s = {
            .op = OP_input, .dtype = (tn_dtype)x->dtype, .rank = x->rank, .dims = x->dims, .name = arena_printf(o->a, "x%d", j)
        };
        if (is_splat(o->g, n->in[j])) s.op = OP_const, s.splat = true, s.imm = x->imm, s.imm_int = x->imm_int, s.name = NULL;
        in[j] = graph_add(g, &s);
    }
    spec s = graph_spec(o->g, o->v);
    s.in = in, s.name = NULL, s.region = 0;
    graph_output(g, "y", graph_add(g, &s));
    o->out = g;
}

static tn_status compile_op(immediate *im, const graph *g, val v, op_entry *e) {
    arena a;
    guard gd;
    arena_init(&a, im->ctx->mem, &gd);
    one_op o = { g, v, NULL, &a };
    tn_status code;
    if (GUARD_TRY(&gd)) {
        make_one_op(&o);
        code = TN_OK;
    } else {
        code = err_set(im->err, gd.err.code, "%s", gd.err.text);
    }
    if (!code) code = drive_compile_on(im->ctx, im->dev, o.out, &im->opts, &e->p, im->err);
    if (!code) {
        im->stats.compile_seconds += e->p->stats.compile_seconds;
        im->stats.build_seconds += e->p->stats.build_seconds;
        im->stats.cache_hits += e->p->stats.cache_hits, im->stats.cache_misses += e->p->stats.cache_misses;
        code = (im->queues ? drive_session_bare : drive_session_new)(e->p, &e->s, im->err);
    }
    if (code) drop(e);
    arena_fini(&a);
    return code;
}

static tn_status find_op(immediate *im, const graph *g, val v, op_entry **out) {
    hash128 key = key_of(g, v);
    op_entry *best = NULL;
    for (int i = 0; i < 8; i++) {
        op_entry *e = &im->table[(key.lo + (uint64_t)i) % TABLE];
        if (e->p && e->key.lo == key.lo && e->key.hi == key.hi) {
            e->last_use = ++im->clock;
            *out = e;
            return TN_OK;
        }
        if (!best || (best->p && (!e->p || e->last_use < best->last_use))) best = e;
    }
    if (best->p) drop(best);
    tn_status code = compile_op(im, g, v, best);
    if (code) return code;
    best->key = key;
    best->last_use = ++im->clock;
    *out = best;
    return TN_OK;
}

/* Places of a graph's values: a table in a session, buffers in an immediate graph. */
typedef struct places {
    const node_place *at;
    const tn_graph *g;
} places;
static node_place place_of(const places *p, val v) {
    if (p->at) return p->at[v];
    buffer *b = p->g->values.at[v].buf;
    return (node_place){ p->g->dev->api->map(p->g->dev, b), b };
}

static void bind_place(const immediate *im, tn_session *s, int slot, node_place x) {
    if (im->queues)
        drive_session_bind(s, slot, x.buf);
    else
        drive_session_place(s, slot, x.host);
}

static tn_status run_op(immediate *im, const graph *g, val v, const places *at) {
    op_entry *e;
    tn_status code = find_op(im, g, v, &e);
    if (code) return code;
    const node *n = graph_get(g, v);
    int slot = 0;
    for (int j = 0; j < n->n_in; j++) {
        bool again = is_splat(g, n->in[j]);
        for (int i = 0; i < j && !again; i++) again = n->in[i] == n->in[j];
        if (!again) bind_place(im, e->s, slot++, place_of(at, n->in[j]));
    }
    bind_place(im, e->s, slot, place_of(at, v));
    code = im->queues ? drive_session_queue(e->s) : drive_session_run(e->s, 1);
    if (code) err_set(im->err, code, "%s", e->s->err.text);
    im->stats.kernels++;
    im->stats.bytes_read += e->p->stats.bytes_read, im->stats.bytes_written += e->p->stats.bytes_written,
        im->stats.flops += e->p->stats.flops;
    if (im->opts.no_cache) drop(e);
    return code;
}

tn_status immediate_run(immediate *im, const graph *g, val v, const node_place *at) {
    return run_op(im, g, v, &(places){ at, NULL });
}
static tn_status immediate_run_buffers(tn_graph *g, val v) { return run_op(g->imm, g->ir, v, &(places){ NULL, g }); }

/* ---- programs compiled for immediate mode: every node in turn ---- */

static bool needs_value(const graph *g, val v) {
    const node *n = graph_get(g, v);
    return op_get((op_code)n->op)->cls != CL_CTRL && !is_splat(g, v);
}

static size_t bytes_of(const graph *g, val v) {
    return (size_t)graph_elems(g, v) * dtype_size((tn_dtype)graph_get(g, v)->dtype);
}

/* The value of state update i goes into its state by changing places with it: no later reader, nobody else's place. */
static bool changes_places(const tn_session *s, int i) {
    const graph *g = s->p->graph;
    const output *o = &g->outputs.at[i];
    if (!s->own_buf || !o->state || op_get((op_code)graph_get(g, o->v)->op)->cls == CL_SOURCE) return false;
    for (int j = 0; j < g->outputs.n; j++)
        if (j != i && g->outputs.at[j].state && g->outputs.at[j].v == o->v) return false;
    return true;
}

static bool is_update(const output *o) { return o->state && o->v != o->state; }

/* A state that becomes another state's value changes with it at once; a device's memory is copied by way of the host. */
static bool needs_staging(const tn_session *s, int i) {
    const graph *g = s->p->graph;
    const output *o = &g->outputs.at[i];
    if (!is_update(o) || changes_places(s, i)) return false;
    return s->own_buf || graph_get(g, o->v)->op == OP_state;
}

static tn_status take_own(tn_session *s, val v) {
    size_t bytes = bytes_of(s->p->graph, v);
    if (!(s->own[v] = mem_alloc(s->p->ctx->mem, bytes)))
        return err_set(&s->err, TN_ERR_NOMEM, "out of memory: %zu bytes for %%%u", bytes, v);
    return TN_OK;
}

static tn_status make_place(tn_session *s, val v) {
    const graph *g = s->p->graph;
    const device_api *api = s->p->dev->api;
    size_t bytes = bytes_of(g, v);
    const node *n = graph_get(g, v);
    if (!s->own_buf) {
        tn_status code = take_own(s, v);
        if (code) return code;
        if (n->data) memcpy(s->own[v], n->data, bytes);
    } else {
        tn_status code = api->alloc(s->p->dev, bytes, &s->own_buf[v], &s->err);
        if (!code && n->data) code = api->upload(s->p->dev, s->own_buf[v], 0, n->data, bytes, &s->err);
        if (code) return code;
    }
    s->at[v] = (node_place){ s->own[v], s->own_buf ? s->own_buf[v] : NULL };
    return TN_OK;
}

static bool has_place(const tn_session *s, val v) { return s->own[v] || (s->own_buf && s->own_buf[v]); }

/* Constants, and states that no run changes, are the program's, for all its sessions, until one sets such a state. */
static tn_status make_places(tn_session *s) {
    const graph *g = s->p->graph;
    tn_status code = TN_OK;
    for (int i = 0; i < g->outputs.n && !code; i++) {
        const output *o = &g->outputs.at[i];
        if (is_update(o) && !has_place(s, o->state)) code = make_place(s, o->state);
    }
    for (val v = 1; v < (val)g->nodes.n && !code; v++) {
        const node *n = graph_get(g, v);
        if (!needs_value(g, v) || n->op == OP_input || has_place(s, v)) continue;
        if (n->data && !s->own_buf)
            s->at[v].host = (void *)(uintptr_t)n->data; /* which is read alone */
        else
            code = make_place(s, v);
    }
    return code;
}

tn_status immediate_session(tn_session *s) {
    const tn_program *p = s->p;
    const graph *g = p->graph;
    mem m = p->ctx->mem;
    tn_status code = immediate_new(p->ctx, p->dev, &p->opts, &s->imm, &s->err);
    if (code) return code;
    size_t n = (size_t)g->nodes.n;
    s->at = mem_alloc(m, n * sizeof *s->at);
    s->own = mem_alloc(m, n * sizeof *s->own);
    if (s->imm->queues) s->own_buf = mem_alloc(m, n * sizeof *s->own_buf);
    s->staged = mem_alloc(m, (size_t)g->outputs.n * sizeof *s->staged);
    if (!s->at || !s->own || !s->staged || (s->imm->queues && !s->own_buf))
        return err_set(&s->err, TN_ERR_NOMEM, "out of memory: a session");
    for (int i = 0; i < g->outputs.n; i++) {
        val v = g->outputs.at[i].v;
        if (needs_staging(s, i) && !(s->staged[i] = mem_alloc(m, bytes_of(g, v))))
            return err_set(&s->err, TN_ERR_NOMEM, "out of memory: %zu bytes for %%%u", bytes_of(g, v), v);
    }
    code = make_places(s);
    for (int k = 0; k < p->n_io && !code && s->own_buf; k++)
        if (!p->io[k].is_output) s->at[p->io[k].node] = (node_place){ NULL, s->io_buf[k] };
    return code;
}

void immediate_session_free(tn_session *s) {
    if (!s->imm && !s->at) return;
    const graph *g = s->p->graph;
    mem m = s->p->ctx->mem;
    size_t n = (size_t)g->nodes.n;
    immediate_free(s->imm); /* first: what it queued may use the buffers */
    s->imm = NULL;
    for (val v = 1; s->own && v < (val)n; v++) mem_free(m, s->own[v], bytes_of(g, v));
    for (val v = 1; s->own_buf && v < (val)n; v++)
        if (s->own_buf[v]) s->p->dev->api->free(s->p->dev, s->own_buf[v]);
    for (int i = 0; s->staged && i < g->outputs.n; i++) mem_free(m, s->staged[i], bytes_of(g, g->outputs.at[i].v));
    mem_free(m, s->staged, (size_t)g->outputs.n * sizeof *s->staged);
    mem_free(m, s->at, n * sizeof *s->at);
    mem_free(m, s->own, n * sizeof *s->own);
    mem_free(m, s->own_buf, n * sizeof *s->own_buf);
}

static void fill_splat(const graph *g, val v, void *to) {
    const node *n = graph_get(g, v);
    for (int64_t k = 0; k < graph_elems(g, v); k++) {
        if (dtype_is_float((tn_dtype)n->dtype))
            dtype_store((tn_dtype)n->dtype, to, k, n->imm);
        else
            dtype_store_int((tn_dtype)n->dtype, to, k, n->imm_int);
    }
}

tn_status immediate_session_get(tn_session *s, val v, void *to) {
    const graph *g = s->p->graph;
    size_t bytes = bytes_of(g, v);
    if (is_splat(g, v))
        fill_splat(g, v, to);
    else if (s->own_buf)
        return s->p->dev->api->download(s->p->dev, s->at[v].buf, 0, to, bytes, &s->err);
    else
        memcpy(to, s->at[v].host, bytes);
    return TN_OK;
}

tn_status immediate_session_set(tn_session *s, val v, const void *from) {
    size_t bytes = bytes_of(s->p->graph, v);
    if (s->own_buf) return s->p->dev->api->upload(s->p->dev, s->at[v].buf, 0, from, bytes, &s->err);
    tn_status code = s->own[v] ? TN_OK : take_own(s, v);
    if (code) return code;
    s->at[v].host = s->own[v];
    memcpy(s->own[v], from, bytes);
    return TN_OK;
}

tn_status immediate_session_set_all(tn_session *s, const void *const *values) {
    const tn_program *p = s->p;
    tn_status code = TN_OK;
    int ready = 0;
    for (; ready < p->n_states && !code && !s->own_buf; ready++) {
        val v = p->states[ready].node;
        if (values[ready] && !s->own[v]) code = take_own(s, v);
    }
    for (int i = 0; i < ready && code; i++) { /* none is set: what was taken here goes */
        val v = p->states[i].node;
        if (!s->own[v] || s->at[v].host == s->own[v]) continue;
        mem_free(p->ctx->mem, s->own[v], bytes_of(p->graph, v));
        s->own[v] = NULL;
    }
    for (int i = 0; i < p->n_states && !code; i++)
        if (values[i]) code = immediate_session_set(s, p->states[i].node, values[i]);
    return code;
}

static tn_status take_inputs(tn_session *s) {
    const tn_program *p = s->p;
    tn_status code = TN_OK;
    for (int k = 0; k < p->n_io && !code; k++) {
        if (p->io[k].is_output) continue;
        if (s->own_buf)
            code = p->dev->api->upload(p->dev, s->io_buf[k], 0, s->bound[k], (size_t)p->io[k].bytes, &s->err);
        else
            s->at[p->io[k].node].host = s->bound[k];
    }
    return code;
}

static tn_status update_state(tn_session *s, int i) {
    const output *o = &s->p->graph->outputs.at[i];
    if (!is_update(o)) return TN_OK;
    if (s->staged[i]) return immediate_session_set(s, o->state, s->staged[i]);
    if (!s->own_buf) return immediate_session_get(s, o->v, s->at[o->state].host);
    buffer *old = s->own_buf[o->state];
    s->own_buf[o->state] = s->at[o->state].buf = s->own_buf[o->v];
    s->own_buf[o->v] = s->at[o->v].buf = old;
    return TN_OK;
}

tn_status immediate_session_run(tn_session *s) {
    const graph *g = s->p->graph;
    tn_status code = take_inputs(s);
    tn_program_stats *st = &s->imm->stats; /* figures of this run */
    st->kernels = 0, st->bytes_read = st->bytes_written = st->flops = 0;
    for (val v = 1; v < (val)g->nodes.n && !code; v++) {
        op_class c = op_get((op_code)graph_get(g, v)->op)->cls;
        if (c == CL_SOURCE && graph_get(g, v)->op != OP_iota) continue;
        code = immediate_run(s->imm, g, v, s->at);
    }
    for (int k = 0; k < s->p->n_io && !code; k++) /* before the states change: outputs see the old ones */
        if (s->p->io[k].is_output && s->bound[k]) code = immediate_session_get(s, s->p->io[k].node, s->bound[k]);
    for (int i = 0; i < g->outputs.n && !code; i++)
        if (s->staged[i]) code = immediate_session_get(s, g->outputs.at[i].v, s->staged[i]);
    for (int i = 0; i < g->outputs.n && !code; i++) code = update_state(s, i);
    return code;
}

/* ---- immediate graphs: values as soon as a builder returns ---- */

static tn_status open_engine(tn_graph *g) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    if (g->imm) return TN_OK;
    if (g->device) o.device = g->device;
    tn_status code = ctx_device(g->ctx, o.device, 0, &g->dev, &g->ctx->err);
    return code ? code : immediate_new(g->ctx, g->dev, &o, &g->imm, &g->ctx->err);
}

static tn_status grow_values(tn_graph *g) { /* through the graph's guard: the list lives in its arena */
    if (!GUARD_TRY(&g->gd)) {
        g->ctx->err = g->gd.err;
        return g->gd.err.code;
    }
    while (g->values.n < g->ir->nodes.n) VEC_PUSH(&g->arena, &g->values, (node_value){ 0 });
    return TN_OK;
}

static tn_status put_splat(tn_graph *g, val v, buffer *b) {
    const device_api *api = g->dev->api;
    size_t bytes = bytes_of(g->ir, v);
    void *host = api->map(g->dev, b);
    if (host) {
        fill_splat(g->ir, v, host);
        return TN_OK;
    }
    void *tmp = mem_alloc(g->ctx->mem, bytes);
    if (!tmp) return err_set(&g->ctx->err, TN_ERR_NOMEM, "out of memory: %zu bytes", bytes);
    fill_splat(g->ir, v, tmp);
    tn_status code = api->upload(g->dev, b, 0, tmp, bytes, &g->ctx->err);
    mem_free(g->ctx->mem, tmp, bytes);
    return code;
}

static tn_status copy_value(tn_graph *g, val from, val to) {
    const device_api *api = g->dev->api;
    size_t bytes = bytes_of(g->ir, from);
    buffer *source = g->values.at[from].buf, *copy = g->values.at[to].buf;
    void *host = api->map(g->dev, source);
    if (host) return api->upload(g->dev, copy, 0, host, bytes, &g->ctx->err);
    void *tmp = mem_alloc(g->ctx->mem, bytes);
    if (!tmp) return err_set(&g->ctx->err, TN_ERR_NOMEM, "out of memory: %zu bytes", bytes);
    tn_status code = api->download(g->dev, source, 0, tmp, bytes, &g->ctx->err);
    if (!code) code = api->upload(g->dev, copy, 0, tmp, bytes, &g->ctx->err);
    mem_free(g->ctx->mem, tmp, bytes);
    return code;
}

static bool may_change(const graph *g, val v) { return graph_get(g, v)->op == OP_input || graph_get(g, v)->op == OP_state; }

tn_status immediate_room(tn_graph *g, val v, buffer **out) {
    const node_value *x = &g->values.at[v];
    *out = NULL;
    return x->buf && !x->heir ? TN_OK : g->dev->api->alloc(g->dev, bytes_of(g->ir, v), out, &g->ctx->err);
}
void immediate_renew(tn_graph *g, val v, buffer *room) {
    node_value *x = &g->values.at[v];
    if (!room) return;
    if (x->heir) g->values.at[x->heir].shared = false; /* owns the old one from now on */
    *x = (node_value){ .buf = room };
}

static tn_status make_value(tn_graph *g, val v) {
    const node *n = graph_get(g->ir, v);
    node_value *x = &g->values.at[v];
    err *e = &g->ctx->err;
    if (n->op == OP_input) return TN_OK; /* tn_tensor_write gives it */
    if (n->op == OP_reshape && g->values.at[n->in[0]].buf) {
        node_value *of = &g->values.at[n->in[0]];
        *x = (node_value){ .buf = of->buf, .shared = true };
        if (!of->shared && !of->heir && may_change(g->ir, n->in[0])) of->heir = v;
        return TN_OK;
    }
    tn_status code = g->dev->api->alloc(g->dev, bytes_of(g->ir, v), &x->buf, e);
    if (code) return code;
    if (n->op == OP_state && !n->data) return TN_OK; /* zeros */
    if (is_splat(g->ir, v)) return put_splat(g, v, x->buf);
    return n->data ? g->dev->api->upload(g->dev, x->buf, 0, n->data, bytes_of(g->ir, v), e) : TN_OK;
}

static tn_status compute_value(tn_graph *g, val v) {
    const node *n = graph_get(g->ir, v);
    op_class c = op_get((op_code)n->op)->cls;
    if ((c == CL_SOURCE && n->op != OP_iota) || g->values.at[v].shared) return TN_OK;
    if (c == CL_CTRL)
        return err_set(&g->ctx->err, TN_ERR_UNSUPPORTED, "op %s in an immediate graph: use the host's own if and for",
                       op_get((op_code)n->op)->name);
    for (int j = 0; j < n->n_in; j++)
        if (!g->values.at[n->in[j]].buf)
            return err_set(
                &g->ctx->err, TN_ERR_INVAL, "%s: its operand \"%s\" has no value yet: give it with tn_tensor_write first",
                op_get((op_code)n->op)->name, graph_get(g->ir, n->in[j])->name ? graph_get(g->ir, n->in[j])->name : "?");
    return immediate_run_buffers(g, v);
}

tn_status immediate_graph_update(tn_graph *g) {
    int from = g->values.n;
    tn_status code = open_engine(g);
    if (!code) code = grow_values(g);
    for (val v = from ? (val)from : 1; v < (val)g->values.n && !code; v++) {
        code = make_value(g, v);
        if (!code) code = compute_value(g, v);
    }
    for (; g->n_assigned < g->ir->outputs.n && !code; g->n_assigned++) {
        const output *o = &g->ir->outputs.at[g->n_assigned];
        if (!is_update(o) || !bytes_of(g->ir, o->v)) continue;
        buffer *room;
        code = immediate_room(g, o->state, &room);
        if (code) break;
        immediate_renew(g, o->state, room);
        code = copy_value(g, o->v, o->state);
    }
    return code;
}
