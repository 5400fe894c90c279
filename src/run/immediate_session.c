/* immediate_session.c - sessions of programs compiled for immediate mode: every node in turn.
 *
 * In: a session's inputs. Out: values of all nodes, each in memory of its own; then the new values of states. Control flow:
 * immediate_control.c. */
#include "ir/region.h"
#include "run/immediate.h"

#include <stdint.h>

/* The graph for the dims that were given last. */
typedef struct sized_graph {
    arena a;
    guard gd;
    const graph *now; /* NULL: none was made yet */
} sized_graph;

static tn_status find_sizes(tn_session *s) {
    sized_graph *x = s->sized;
    if (!x || (x->now && !s->moved)) return TN_OK;
    x->now = NULL;
    arena_fini(&x->a);
    arena_init(&x->a, s->p->ctx->mem, &x->gd);
    if (!GUARD_TRY(&x->gd)) return err_set(&s->err, x->gd.err.code, "%s", x->gd.err.text);
    x->now = graph_at(s->p->graph, s->dims, &x->a);
    s->moved = false;
    return TN_OK;
}

/* Before the first run: the largest one. */
static const graph *graph_now(const tn_session *s) { return s->sized && s->sized->now ? s->sized->now : s->p->most; }

static size_t n_places(const tn_session *s) { return (size_t)s->p->most->nodes.n + (s->bodies ? (size_t)s->bodies->n : 0); }

static size_t place_bytes(const tn_session *s, size_t i) {
    size_t n = (size_t)s->p->most->nodes.n;
    return i < n ? drive_value_bytes(s->p->most, (val)i) : s->bodies->bytes[i - n];
}

/* Control flow takes a value, or gives it, as it is: ops have constants of one value in their code. */
static bool is_handed_on(const graph *g, val v) {
    const node *n = graph_get(g, v);
    const region *r = &g->regions.at[n->region];
    for (uint32_t u = n->first_use; u; u = g->uses.at[u - 1].next)
        if (op_get((op_code)graph_get(g, g->uses.at[u - 1].user)->op)->cls == CL_CTRL) return true;
    for (int k = 0; k < r->n_results; k++)
        if (r->results[k] == v) return true;
    return false;
}

static bool needs_value(const graph *g, val v) {
    const node *n = graph_get(g, v);
    return op_get((op_code)n->op)->cls != CL_CTRL && (!is_splat(g, v) || is_handed_on(g, v));
}

/* The value of state update i goes into its state by changing places with it: no later reader, nobody else's place. */
static bool changes_places(const tn_session *s, int i) {
    const graph *g = s->p->graph;
    const output *o = &g->outputs.at[i];
    op_class c = op_get((op_code)graph_get(g, o->v)->op)->cls;
    if (!s->own_buf || !o->state || c == CL_SOURCE || c == CL_CTRL) return false;
    for (int j = 0; j < g->outputs.n; j++)
        if (j != i && g->outputs.at[j].state && g->outputs.at[j].v == o->v) return false;
    return true;
}

/* A state that becomes another state's value, which results of control flow may be, changes with it at once; a device's memory
 * is copied by way of the host. */
static bool needs_staging(const tn_session *s, int i) {
    const graph *g = s->p->graph;
    const output *o = &g->outputs.at[i];
    if (!is_update(o) || changes_places(s, i)) return false;
    return s->own_buf || graph_get(g, o->v)->op == OP_state || op_get((op_code)graph_get(g, o->v)->op)->cls == CL_CTRL;
}

static tn_status take_own(tn_session *s, size_t i) {
    size_t bytes = place_bytes(s, i);
    if (!(s->own[i] = mem_alloc(s->p->ctx->mem, bytes)))
        return err_set(&s->err, TN_ERR_NOMEM, "out of memory: %zu bytes for %%%zu", bytes, i);
    return TN_OK;
}

static tn_status make_place(tn_session *s, size_t i) {
    tn_status code = s->own_buf ? s->p->dev->api->alloc(s->p->dev, place_bytes(s, i), &s->own_buf[i], &s->err) : take_own(s, i);
    s->at[i] = (node_place){ s->own[i], s->own_buf ? s->own_buf[i] : NULL };
    return code;
}

/* With its first value. */
static tn_status make_value(tn_session *s, val v) {
    const graph *g = s->p->most;
    device *dev = s->p->dev;
    const node *n = graph_get(g, v);
    tn_status code = make_place(s, v);
    if (code) return code;
    if (!s->own_buf && n->data) memcpy(s->own[v], n->data, drive_value_bytes(g, v));
    if (!s->own_buf && is_splat(g, v)) immediate_fill_splat(g, v, s->own[v]);
    if (s->own_buf && is_splat(g, v)) return immediate_put_splat(s->p->ctx, dev, g, v, s->own_buf[v], &s->err);
    return s->own_buf && n->data ? dev->api->upload(dev, s->own_buf[v], 0, n->data, drive_value_bytes(g, v), &s->err) : TN_OK;
}

static bool has_place(const tn_session *s, val v) { return s->own[v] || (s->own_buf && s->own_buf[v]); }

/* Constants, and states that no run changes, are the program's, for all its sessions, until one sets such a state. */
static tn_status make_places(tn_session *s) {
    const graph *g = s->p->graph;
    tn_status code = TN_OK;
    for (int i = 0; i < g->outputs.n && !code; i++) {
        const output *o = &g->outputs.at[i];
        if (is_update(o) && !has_place(s, o->state)) code = make_value(s, o->state);
    }
    for (val v = 1; v < (val)g->nodes.n && !code; v++) {
        const node *n = graph_get(g, v);
        if (!needs_value(g, v) || n->op == OP_input || has_place(s, v)) continue;
        if (n->data && !s->own_buf)
            s->at[v].host = (void *)(uintptr_t)n->data; /* which is read alone */
        else
            code = make_value(s, v);
    }
    return code;
}

/* Of control flow: what a loop carries, its stacks; on devices that have values of their own slices of stacks, too. */
static tn_status make_bodies(tn_session *s) {
    const graph *g = s->p->most;
    tn_status code = TN_OK;
    for (size_t i = (size_t)g->nodes.n; i < n_places(s) && !code; i++)
        if (place_bytes(s, i) != SIZE_MAX) code = make_place(s, i);
    for (val v = 1; v < (val)g->nodes.n && !code && s->own_buf; v++) {
        const node *n = graph_get(g, v);
        const region *body = n->op == OP_scan ? &g->regions.at[node_body(n)] : NULL;
        for (int64_t k = 0; body && k < n->attr[SCAN_STEPS] && !code; k++)
            code = make_place(s, body->params[n->attr[SCAN_CARRY] + k]);
    }
    return code;
}

tn_status immediate_session(tn_session *s) {
    const tn_program *p = s->p;
    const graph *g = p->most;
    mem m = p->ctx->mem;
    tn_status code = immediate_new(p->ctx, p->dev, &p->opts, &s->imm, &s->err);
    if (code) return code;
    if ((code = immediate_bodies(m, g, &s->bodies, &s->err))) return code;
    size_t n = n_places(s);
    s->at = mem_alloc(m, n * sizeof *s->at);
    s->own = mem_alloc(m, n * sizeof *s->own);
    if (s->imm->queues) s->own_buf = mem_alloc(m, n * sizeof *s->own_buf);
    s->staged = mem_alloc(m, (size_t)g->outputs.n * sizeof *s->staged);
    if (session_params(s) && (s->sized = mem_alloc(m, sizeof *s->sized))) arena_init(&s->sized->a, m, &s->sized->gd);
    if (!s->at || !s->own || !s->staged || (s->imm->queues && !s->own_buf) || (session_params(s) && !s->sized))
        return err_set(&s->err, TN_ERR_NOMEM, "out of memory: a session");
    for (int i = 0; i < g->outputs.n; i++) {
        val v = g->outputs.at[i].v;
        if (needs_staging(s, i) && !(s->staged[i] = mem_alloc(m, drive_value_bytes(g, v))))
            return err_set(&s->err, TN_ERR_NOMEM, "out of memory: %zu bytes for %%%u", drive_value_bytes(g, v), v);
    }
    code = make_places(s);
    if (!code) code = make_bodies(s);
    for (int k = 0; k < p->n_io && !code && s->own_buf; k++)
        if (!p->io[k].is_output) s->at[p->io[k].node] = (node_place){ NULL, s->io_buf[k] };
    return code;
}

void immediate_session_free(tn_session *s) {
    if (!s->imm && !s->at) return;
    const graph *g = s->p->most;
    mem m = s->p->ctx->mem;
    size_t n = n_places(s);
    immediate_free(s->imm); /* first: what it queued may use the buffers */
    s->imm = NULL;
    for (size_t i = 1; s->own && i < n; i++) mem_free(m, s->own[i], place_bytes(s, i));
    for (size_t i = 1; s->own_buf && i < n; i++)
        if (s->own_buf[i]) s->p->dev->api->free(s->p->dev, s->own_buf[i]);
    for (int i = 0; s->staged && i < g->outputs.n; i++) mem_free(m, s->staged[i], drive_value_bytes(g, g->outputs.at[i].v));
    if (s->sized) arena_fini(&s->sized->a);
    mem_free(m, s->sized, sizeof *s->sized);
    mem_free(m, s->staged, (size_t)g->outputs.n * sizeof *s->staged);
    mem_free(m, s->at, n * sizeof *s->at);
    mem_free(m, s->own, n * sizeof *s->own);
    mem_free(m, s->own_buf, n * sizeof *s->own_buf);
    immediate_bodies_free(m, g, s->bodies);
}

tn_status immediate_session_get(tn_session *s, val v, void *to) {
    const graph *g = graph_now(s);
    size_t bytes = drive_value_bytes(g, v);
    if (is_splat(g, v))
        immediate_fill_splat(g, v, to);
    else if (s->own_buf)
        return s->p->dev->api->download(s->p->dev, s->at[v].buf, 0, to, bytes, &s->err);
    else
        memcpy(to, s->at[v].host, bytes);
    return TN_OK;
}

tn_status immediate_session_set(tn_session *s, val v, const void *from) {
    size_t bytes = drive_value_bytes(graph_now(s), v);
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
        mem_free(p->ctx->mem, s->own[v], drive_value_bytes(p->most, v));
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
            code = p->dev->api->upload(p->dev, s->io_buf[k], 0, s->bound[k], (size_t)session_bytes(s, k), &s->err);
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
    tn_status code = find_sizes(s);
    const graph *g = graph_now(s);
    if (!code) code = take_inputs(s);
    tn_program_stats *st = &s->imm->stats; /* figures of this run */
    st->kernels = 0, st->bytes_read = st->bytes_written = st->flops = 0;
    if (!code) code = immediate_run_region(s, g, 0);
    for (int k = 0; k < s->p->n_io && !code; k++) /* before the states change: outputs see the old ones */
        if (s->p->io[k].is_output && s->bound[k]) code = immediate_session_get(s, s->p->io[k].node, s->bound[k]);
    for (int i = 0; i < g->outputs.n && !code; i++)
        if (s->staged[i]) code = immediate_session_get(s, g->outputs.at[i].v, s->staged[i]);
    for (int i = 0; i < g->outputs.n && !code; i++) code = update_state(s, i);
    return code;
}
