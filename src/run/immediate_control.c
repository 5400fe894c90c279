/* immediate_control.c - if, while and scan of programs compiled for immediate mode: bodies run node by node, as the host would.
 *
 * In: a session whose values before have their places. Out: the places of the results. A condition is read back, and says what
 * runs next. Parameters are where what goes to them is, results of an if where its part has them. What a loop carries goes from
 * one iteration to the next by changing places with it, or, where something else may read it, by copies to two places in turns:
 * however long a loop is, it takes the memory of one iteration. */
#include "ir/region.h"
#include "run/immediate.h"

#include <stdint.h>

static int n_results(const graph *g, const node *n) { return node_regions(n) ? g->regions.at[node_body(n)].n_results : 0; }

/* Of a loop: its first operand that its bodies have a parameter for, and how many of its results are carried. */
static int first_operand(const node *n) { return n->op == OP_while ? 0 : 1; }
static int n_carried(const node *n) { return n->op == OP_while ? n->n_in : n->op == OP_scan ? (int)n->attr[SCAN_CARRY] : 0; }

/* ---- places ---- */

static bool is_given_back(const region *body, int k) { return body->results[k] == body->params[k]; }

/* Result k is computed by a node of the body that nothing but the next iteration reads when it is through. */
static bool changes_places(const graph *g, const region *body, int k) {
    val v = body->results[k];
    op_class c = op_get((op_code)graph_get(g, v)->op)->cls;
    int n = 0;
    for (int i = 0; i < body->n_results; i++) n += body->results[i] == v;
    return n == 1 && c != CL_SOURCE && c != CL_CTRL;
}

/* Bytes of memory `set` (0 or 1) for result k of op n, SIZE_MAX: it has none. g has the largest dims. */
static size_t bytes_of(const graph *g, const node *n, int k, int set) {
    const region *body = &g->regions.at[node_body(n)];
    size_t bytes = drive_value_bytes(g, body->results[k]);
    if (k >= n_carried(n)) return n->op == OP_scan && !set ? bytes * (size_t)n->attr[SCAN_LENGTH] : SIZE_MAX;
    return is_given_back(body, k) || (set && changes_places(g, body, k)) ? SIZE_MAX : bytes;
}

tn_status immediate_bodies(mem m, const graph *g, bodies **out, err *e) {
    int n = 0;
    for (val v = 1; v < (val)g->nodes.n; v++) n += 2 * n_results(g, graph_get(g, v));
    if (!n) return TN_OK;
    bodies *b = *out = mem_alloc(m, sizeof *b);
    if (!b) return err_set(e, TN_ERR_NOMEM, "out of memory: a session");
    b->n = n;
    b->first = mem_alloc(m, (size_t)g->nodes.n * sizeof *b->first);
    b->nodes = mem_alloc(m, (size_t)g->regions.n * sizeof *b->nodes);
    b->bytes = mem_alloc(m, (size_t)n * sizeof *b->bytes);
    if (!b->first || !b->nodes || !b->bytes) return err_set(e, TN_ERR_NOMEM, "out of memory: a session");
    n = 0;
    for (val v = 1; v < (val)g->nodes.n; v++) {
        const node *x = graph_get(g, v);
        body_nodes *in = &b->nodes[x->region];
        if (!in->end) in->first = v;
        in->end = v + 1;
        b->first[v] = g->nodes.n + n;
        for (int i = 0; i < 2 * n_results(g, x); i++) b->bytes[n++] = bytes_of(g, x, i / 2, i % 2);
    }
    return TN_OK;
}

void immediate_bodies_free(mem m, const graph *g, bodies *b) {
    if (!b) return;
    mem_free(m, b->first, (size_t)g->nodes.n * sizeof *b->first);
    mem_free(m, b->nodes, (size_t)g->regions.n * sizeof *b->nodes);
    mem_free(m, b->bytes, (size_t)b->n * sizeof *b->bytes);
    mem_free(m, b, sizeof *b);
}

/* Place `set` of result k of op v. That of set 0 is where the result is when the op has run. */
static int place_of(const tn_session *s, val v, int k, int set) { return s->bodies->first[v] + 2 * k + set; }

static node_place own_place(const tn_session *s, int i) { return (node_place){ s->own[i], s->own_buf ? s->own_buf[i] : NULL }; }

static tn_status copy(tn_session *s, node_place to, size_t to_offset, node_place from, size_t from_offset, size_t bytes) {
    if (s->own_buf) return immediate_copy(s->imm, to.buf, to_offset, from.buf, from_offset, bytes);
    if (bytes) memcpy((char *)to.host + to_offset, (char *)from.host + from_offset, bytes);
    return TN_OK;
}

/* The value of a scalar of integers. */
static tn_status read_scalar(tn_session *s, const graph *g, val v, int64_t *out) {
    int64_t data = 0;
    tn_dtype t = (tn_dtype)graph_get(g, v)->dtype;
    tn_status code = TN_OK;
    if (s->own_buf)
        code = s->p->dev->api->download(s->p->dev, s->at[v].buf, 0, &data, dtype_size(t), &s->err);
    else
        memcpy(&data, s->at[v].host, dtype_size(t));
    *out = dtype_load_int(t, &data, 0);
    return code;
}

/* ---- ops ---- */

static tn_status run_if(tn_session *s, const graph *g, val v) {
    const node *n = graph_get(g, v);
    int64_t chosen;
    tn_status code = read_scalar(s, g, n->in[0], &chosen);
    if (code) return code;
    const region *part = &g->regions.at[n->attr[chosen ? 0 : 1]];
    for (int i = 0; i < part->n_params; i++) s->at[part->params[i]] = s->at[n->in[1 + i]];
    code = immediate_run_region(s, g, (int)n->attr[chosen ? 0 : 1]);
    for (int k = 0; k < part->n_results; k++) s->at[place_of(s, v, k, 0)] = s->at[part->results[k]];
    return code;
}

typedef struct loop {
    const node *n;
    val v;
    const region *body, *condition; /* condition: NULL: there is none */
    int first, carry, stacks;       /* operands */
    int64_t length;
    node_place *at; /* the session's */
} loop;

static loop loop_of(const tn_session *s, const graph *g, val v) {
    const node *n = graph_get(g, v);
    bool scan = n->op == OP_scan;
    int64_t c = scan ? n->attr[SCAN_COND] : n->attr[0];
    return (loop){ .n = n,
                   .v = v,
                   .body = &g->regions.at[node_body(n)],
                   .condition = c ? &g->regions.at[c] : NULL,
                   .first = first_operand(n),
                   .carry = n_carried(n),
                   .stacks = scan ? (int)n->attr[SCAN_STEPS] : 0,
                   .length = scan ? n->attr[SCAN_LENGTH] : INT64_MAX,
                   .at = s->at };
}

/* Slice t of each stack is where the body reads it: on the host, it stays in the stack. */
static tn_status take_slices(tn_session *s, const graph *g, const loop *l, int64_t t) {
    tn_status code = TN_OK;
    for (int k = l->carry; k < l->carry + l->stacks && !code; k++) {
        val p = l->body->params[k];
        size_t bytes = drive_value_bytes(g, p);
        node_place stack = l->at[l->n->in[l->first + k]];
        if (!s->own_buf) {
            l->at[p].host = (char *)stack.host + (size_t)t * bytes;
        } else {
            l->at[p] = own_place(s, (int)p);
            code = copy(s, l->at[p], 0, stack, (size_t)t * bytes, bytes);
        }
    }
    return code;
}

static tn_status goes_on(tn_session *s, const graph *g, const loop *l, int64_t *out) {
    *out = 1;
    if (!l->condition) return TN_OK;
    for (int i = 0; i < l->condition->n_params; i++) l->at[l->condition->params[i]] = l->at[l->body->params[i]];
    tn_status code = immediate_run_region(s, g, (int)(l->n->op == OP_scan ? l->n->attr[SCAN_COND] : l->n->attr[0]));
    return code ? code : read_scalar(s, g, l->condition->results[0], out);
}

/* What iteration `step`, of slices t, has given: to its stacks, and to the next iteration. */
static tn_status hand_on(tn_session *s, const graph *g, const loop *l, int64_t step, int64_t t) {
    const region *body = l->body;
    tn_status code = TN_OK;
    for (int k = 0; k < body->n_results && !code; k++) { /* all are read before any changes */
        size_t bytes = drive_value_bytes(g, body->results[k]);
        node_place from = l->at[body->results[k]];
        if (k >= l->carry)
            code = copy(s, own_place(s, place_of(s, l->v, k, 0)), (size_t)t * bytes, from, 0, bytes);
        else if (!is_given_back(body, k) && !changes_places(g, body, k))
            code = copy(s, own_place(s, place_of(s, l->v, k, (int)(step & 1))), 0, from, 0, bytes);
    }
    for (int k = 0; k < l->carry && !code; k++) {
        if (is_given_back(body, k)) continue;
        val v = body->results[k];
        int to = place_of(s, l->v, k, changes_places(g, body, k) ? 0 : (int)(step & 1));
        if (changes_places(g, body, k)) {
            node_place mine = own_place(s, (int)v), old = own_place(s, to);
            s->own[v] = old.host, s->own[to] = mine.host;
            if (s->own_buf) s->own_buf[v] = old.buf, s->own_buf[to] = mine.buf;
            l->at[v] = old;
        }
        l->at[body->params[k]] = own_place(s, to);
    }
    return code;
}

/* Iterations that do not take place leave zeros in the stacks. */
static tn_status clear_stacks(tn_session *s, const graph *g, const loop *l) {
    tn_status code = TN_OK;
    for (int k = l->carry; k < l->body->n_results && !code; k++) {
        int i = place_of(s, l->v, k, 0);
        size_t bytes = drive_value_bytes(g, l->body->results[k]) * (size_t)l->length;
        if (!s->own_buf) {
            memset(s->own[i], 0, bytes);
            continue;
        }
        void *zeros = mem_alloc(s->p->ctx->mem, bytes);
        if (!zeros) return err_set(&s->err, TN_ERR_NOMEM, "out of memory: %zu bytes", bytes);
        code = s->p->dev->api->upload(s->p->dev, s->own_buf[i], 0, zeros, bytes, &s->err);
        mem_free(s->p->ctx->mem, zeros, bytes);
    }
    return code;
}

static tn_status run_loop(tn_session *s, const graph *g, val v) {
    loop l = loop_of(s, g, v);
    int64_t count = INT64_MAX, more = 1;
    tn_status code = l.n->op == OP_scan ? read_scalar(s, g, l.n->in[0], &count) : TN_OK;
    if (count > l.length) count = l.length;
    if (!code && l.n->op == OP_scan && (count < l.length || l.condition)) code = clear_stacks(s, g, &l);
    for (int i = 0; i < l.body->n_params; i++)
        if (i < l.carry || i >= l.carry + l.stacks) l.at[l.body->params[i]] = l.at[l.n->in[l.first + i]];
    for (int64_t step = 0; step < count && !code; step++) {
        int64_t t = l.n->op == OP_scan && l.n->attr[SCAN_REVERSE] ? count - 1 - step : step;
        code = take_slices(s, g, &l, t);
        if (!code) code = goes_on(s, g, &l, &more);
        if (code || !more) break;
        code = immediate_run_region(s, g, (int)node_body(l.n));
        if (!code) code = hand_on(s, g, &l, step, t);
    }
    for (int k = 0; k < l.body->n_results; k++) {
        int i = place_of(s, v, k, 0);
        l.at[i] = k < l.carry ? l.at[l.body->params[k]] : own_place(s, i);
    }
    return code;
}

static tn_status run_control(tn_session *s, const graph *g, val v) {
    const node *n = graph_get(g, v);
    if (n->op == OP_param) return TN_OK;
    if (n->op == OP_proj) {
        s->at[v] = s->at[place_of(s, n->in[0], (int)n->attr[0], 0)];
        return TN_OK;
    }
    tn_status code = n->op == OP_if ? run_if(s, g, v) : run_loop(s, g, v);
    s->at[v] = s->at[place_of(s, v, 0, 0)];
    return code;
}

tn_status immediate_run_region(tn_session *s, const graph *g, int r) {
    body_nodes all = { 1, (val)g->nodes.n }, in = s->bodies ? s->bodies->nodes[r] : all;
    tn_status code = TN_OK;
    for (val v = in.first; v < in.end && !code; v++) {
        const node *n = graph_get(g, v);
        op_class c = op_get((op_code)n->op)->cls;
        if (n->region != r || (c == CL_SOURCE && n->op != OP_iota)) continue;
        code = c == CL_CTRL ? run_control(s, g, v) : immediate_run(s->imm, g, v, s->at);
    }
    return code;
}
