/* immediate.c - immediate mode: one op, one program, one run.
 *
 * An op on given shapes is a one-op graph whose operands are inputs; the graph goes through the same pipeline as any other.
 * Programs are kept in a table by the hash of op, dtypes, shapes and attributes ("cached"); with no_cache each run compiles
 * again ("naive"). Run half, except for making the one-op graph. */
#include "run/immediate.h"

#include <stdio.h>

enum { TABLE = 1 << 10 };

typedef struct op_entry {
    hash128 key;
    tn_program *p;
    tn_session *s;
    uint64_t last_use;
} op_entry;

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
    session_close(e->s);
    drive_program_free(e->p);
    *e = (op_entry){ 0 };
}

void immediate_free(immediate *im) {
    if (!im) return;
    for (int i = 0; i < TABLE; i++)
        if (im->table[i].p) drop(&im->table[i]);
    for (int i = 0; i < COPIES; i++)
        if (im->copies[i].l) im->dev->api->discard(im->copies[i].l);
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
    bool nothing = n->op == OP_gather && graph_get(o->g, n->in[0])->dims[n->attr[0]] == 0; /* of a size of the run: zeros */
    graph_output(g, "y", nothing ? graph_splat(g, (tn_dtype)n->dtype, n->rank, n->dims, 0) : graph_add(g, &s));
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
        code = session_open(e->p, im->queues, NULL, &e->s, im->err);
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
        session_bind(s, slot, x.buf);
    else
        session_place(s, slot, x.host);
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
    code = im->queues ? session_queue(e->s) : session_submit(e->s, 1);
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
tn_status immediate_run_buffers(tn_graph *g, val v) { return run_op(g->imm, g->ir, v, &(places){ NULL, g }); }

void immediate_fill_splat(const graph *g, val v, void *to) {
    const node *n = graph_get(g, v);
    for (int64_t k = 0; k < graph_elems(g, v); k++) {
        if (dtype_is_float((tn_dtype)n->dtype))
            dtype_store((tn_dtype)n->dtype, to, k, n->imm);
        else
            dtype_store_int((tn_dtype)n->dtype, to, k, n->imm_int);
    }
}

tn_status immediate_put_splat(const tn_ctx *ctx, device *dev, const graph *g, val v, buffer *b, err *e) {
    size_t bytes = drive_value_bytes(g, v);
    void *host = dev->api->map(dev, b);
    if (host) {
        immediate_fill_splat(g, v, host);
        return TN_OK;
    }
    void *tmp = mem_alloc(ctx->mem, bytes);
    if (!tmp) return err_set(e, TN_ERR_NOMEM, "out of memory: %zu bytes", bytes);
    immediate_fill_splat(g, v, tmp);
    tn_status code = dev->api->upload(dev, b, 0, tmp, bytes, e);
    mem_free(ctx->mem, tmp, bytes);
    return code;
}

/* ---- copies ---- */

static tn_status find_copy(immediate *im, size_t bytes, list **out) {
    const device_api *api = im->dev->api;
    for (int i = 0; i < COPIES; i++)
        if (im->copies[i].l && im->copies[i].bytes == bytes) {
            *out = im->copies[i].l;
            return TN_OK;
        }
    struct copy_list *c = &im->copies[im->next_copy++ % COPIES];
    if (c->l) api->discard(c->l);
    c->l = NULL, c->bytes = bytes;
    list *l = NULL;
    tn_status code = api->record(im->dev, 2, &l, im->err);
    if (!code) code = api->copy(l, 1, 0, 0, 0, bytes, im->err);
    if (!code) code = api->seal(l, im->err);
    if (code && l) api->discard(l);
    if (!code) *out = c->l = l;
    return code;
}

tn_status immediate_copy(immediate *im, buffer *to, size_t to_offset, buffer *from, size_t from_offset, size_t bytes) {
    const device_api *api = im->dev->api;
    list *l;
    uint64_t ticket;
    if (!bytes) return TN_OK;
    tn_status code = find_copy(im, bytes, &l);
    if (code) return code;
    api->bind(l, 0, from, from_offset);
    api->bind(l, 1, to, to_offset);
    return api->submit(l, 1, &ticket, im->err);
}
