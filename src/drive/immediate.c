/* immediate.c - immediate mode: one op, one program, one run.
 *
 * An op on given shapes is a one-op graph whose operands are inputs; the graph goes through the same pipeline as any other.
 * Programs are kept in a table by the hash of op, dtypes, shapes and attributes ("cached"); with no_cache each run compiles
 * again ("naive"). Run half, except for making the one-op graph. */
#include "drive/drive.h"

#include <stdio.h>

enum { TABLE = 1 << 10, MAX_OPERANDS = 64 };

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
    int64_t w[4 * TN_MAX_RANK + 6 + MAX_OPERANDS * (TN_MAX_RANK + 3)];
    size_t n;
} key_words;

static void add_word(key_words *k, int64_t w) {
    if (k->n < COUNT_OF(k->w)) k->w[k->n++] = w;
}

static bool is_splat(const graph *g, val v) { return graph_get(g, v)->op == OP_const && graph_get(g, v)->splat; }

static hash128 key_of(const graph *g, val v) {
    key_words k;
    k.n = 0;
    const node *n = graph_get(g, v);
    int64_t bits;
    memcpy(&bits, &n->imm, sizeof bits);
    add_word(&k, n->op | n->dtype << 8 | n->rank << 16 | n->n_in << 24);
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
    spec s = { .op = (op_code)n->op,
               .dtype = (tn_dtype)n->dtype,
               .in = in,
               .n_in = n->n_in,
               .rank = n->rank,
               .dims = n->dims,
               .attr = n->attr,
               .n_attr = n->n_attr,
               .splat = n->splat,
               .imm = n->imm,
               .imm_int = n->imm_int,
               .data = n->data };
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
        code = drive_session_new(e->p, &e->s, im->err);
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

/* Addresses of a graph's values: a table in a session, buffers in an immediate graph. */
typedef struct places {
    void *const *at;
    const tn_graph *g;
} places;
static void *place_of(const places *p, val v) {
    return p->at ? p->at[v] : p->g->dev->api->map(p->g->dev, p->g->values.at[v].buf);
}

static tn_status run_op(immediate *im, const graph *g, val v, const places *at) {
    op_entry *e;
    tn_status code = find_op(im, g, v, &e);
    if (code) return code;
    const node *n = graph_get(g, v);
    int slot = 0;
    for (int j = 0; j < n->n_in && !code; j++) {
        bool again = is_splat(g, n->in[j]);
        for (int i = 0; i < j && !again; i++) again = n->in[i] == n->in[j];
        if (!again) code = tn_session_bind(e->s, slot++, place_of(at, n->in[j]));
    }
    if (!code) code = tn_session_bind(e->s, slot, place_of(at, v));
    if (!code) code = drive_session_run(e->s, 1);
    if (code) err_set(im->err, code, "%s", e->s->err.text);
    im->stats.kernels++;
    im->stats.bytes_read += e->p->stats.bytes_read, im->stats.bytes_written += e->p->stats.bytes_written,
        im->stats.flops += e->p->stats.flops;
    if (im->opts.no_cache) drop(e);
    return code;
}

tn_status immediate_run(immediate *im, const graph *g, val v, void *const *at) {
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

tn_status immediate_session(tn_session *s) {
    tn_program *p = s->p;
    const graph *g = p->graph;
    mem m = p->ctx->mem;
    tn_status code = immediate_new(p->ctx, p->dev, &p->opts, &s->imm, &s->err);
    if (code) return code;
    s->at = mem_alloc(m, (size_t)g->nodes.n * sizeof *s->at);
    s->own = mem_alloc(m, (size_t)g->nodes.n * sizeof *s->own);
    s->staged = mem_alloc(m, (size_t)g->outputs.n * sizeof *s->staged);
    if (!s->at || !s->own || !s->staged) return err_set(&s->err, TN_ERR_NOMEM, "out of memory: a session");
    for (int i = 0; i < g->outputs.n; i++) {
        const output *o = &g->outputs.at[i];
        if (!o->state || o->v == o->state || graph_get(g, o->v)->op != OP_state) continue;
        if (!(s->staged[i] = mem_alloc(m, bytes_of(g, o->v))))
            return err_set(&s->err, TN_ERR_NOMEM, "out of memory: %zu bytes for %%%u", bytes_of(g, o->v), o->v);
    }
    for (val v = 1; v < (val)g->nodes.n; v++) {
        if (!needs_value(g, v) || graph_get(g, v)->op == OP_input) continue;
        if (!(s->own[v] = mem_alloc(m, bytes_of(g, v))))
            return err_set(&s->err, TN_ERR_NOMEM, "out of memory: %zu bytes for %%%u", bytes_of(g, v), v);
        s->at[v] = s->own[v];
        if (graph_get(g, v)->data) memcpy(s->own[v], graph_get(g, v)->data, bytes_of(g, v));
    }
    return TN_OK;
}

void immediate_session_free(tn_session *s) {
    if (!s->imm && !s->at) return;
    const graph *g = s->p->graph;
    mem m = s->p->ctx->mem;
    for (val v = 1; s->own && v < (val)g->nodes.n; v++) mem_free(m, s->own[v], bytes_of(g, v));
    for (int i = 0; s->staged && i < g->outputs.n; i++) mem_free(m, s->staged[i], bytes_of(g, g->outputs.at[i].v));
    mem_free(m, s->staged, (size_t)g->outputs.n * sizeof *s->staged);
    mem_free(m, s->at, (size_t)g->nodes.n * sizeof *s->at);
    mem_free(m, s->own, (size_t)g->nodes.n * sizeof *s->own);
    immediate_free(s->imm);
    s->imm = NULL;
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

static void copy_value(tn_session *s, val v, void *to) {
    if (is_splat(s->p->graph, v))
        fill_splat(s->p->graph, v, to);
    else
        memcpy(to, s->at[v], bytes_of(s->p->graph, v));
}

tn_status immediate_session_run(tn_session *s) {
    const graph *g = s->p->graph;
    tn_status code = TN_OK;
    for (int k = 0; k < s->p->n_io; k++)
        if (!s->p->io[k].is_output) s->at[s->p->io[k].node] = s->bound[k];
    tn_program_stats *st = &s->imm->stats; /* figures of this run */
    st->kernels = 0, st->bytes_read = st->bytes_written = st->flops = 0;
    for (val v = 1; v < (val)g->nodes.n && !code; v++) {
        op_class c = op_get((op_code)graph_get(g, v)->op)->cls;
        if (c == CL_SOURCE && graph_get(g, v)->op != OP_iota) continue;
        code = immediate_run(s->imm, g, v, s->at);
    }
    for (int k = 0; k < s->p->n_io && !code; k++) /* before the states change: outputs see the old ones */
        if (s->p->io[k].is_output && s->bound[k]) copy_value(s, s->p->io[k].node, s->bound[k]);
    for (int i = 0; i < g->outputs.n && !code; i++)
        if (s->staged[i]) copy_value(s, g->outputs.at[i].v, s->staged[i]);
    for (int i = 0; i < g->outputs.n && !code; i++) {
        const output *o = &g->outputs.at[i];
        if (s->staged[i])
            memcpy(s->at[o->state], s->staged[i], bytes_of(g, o->v));
        else if (o->state && o->v != o->state)
            copy_value(s, o->v, s->at[o->state]);
    }
    return code;
}

/* ---- immediate graphs: values as soon as a builder returns ---- */

static tn_status open_engine(tn_graph *g) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    if (g->imm) return TN_OK;
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

static tn_status make_value(tn_graph *g, val v) {
    const node *n = graph_get(g->ir, v);
    node_value *x = &g->values.at[v];
    err *e = &g->ctx->err;
    if (n->op == OP_input) return TN_OK; /* tn_tensor_write gives it */
    if (n->op == OP_reshape && g->values.at[n->in[0]].buf) {
        *x = (node_value){ g->values.at[n->in[0]].buf, true };
        return TN_OK;
    }
    tn_status code = g->dev->api->alloc(g->dev, bytes_of(g->ir, v), &x->buf, e);
    if (code) return code;
    if (n->op == OP_state && !n->data) return TN_OK; /* zeros */
    void *to = g->dev->api->map(g->dev, x->buf);
    if (is_splat(g->ir, v)) {
        fill_splat(g->ir, v, to);
        return TN_OK;
    }
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
        if (!o->state || !bytes_of(g->ir, o->v)) continue;
        const void *src = g->dev->api->map(g->dev, g->values.at[o->v].buf);
        code = g->dev->api->upload(g->dev, g->values.at[o->state].buf, 0, src, bytes_of(g->ir, o->v), &g->ctx->err);
    }
    return code;
}
