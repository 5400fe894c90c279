/* counted_loops.c - a loop that goes on while a counter is on one side of a number, and adds a number to it each time, is a
 * scan of known count.
 *
 * In: a while, or a scan with a condition, whose counter begins at a constant. Out: a scan without one; what no iteration
 * changes is seen by all, and a counter that nothing else reads is gone, its last value being a constant. Exact: as many
 * iterations, of the same operations. Not where the counter would leave the range of its dtype on the way. */
#include "ir/region.h"
#include "pass/rewrite.h"

typedef struct counted {
    node n; /* the loop */
    val v;
    int body, state, carry, stacks; /* state: its first operand that is carried */
    int counter;                    /* of what is carried */
    int64_t count, last;            /* iterations; the counter behind them */
} counted;

enum { MOST_BITS = 60 }; /* of numbers, so that no sum of a few overflows */

/* A constant, the same integer everywhere. */
static bool is_integer(const graph *g, val v, int64_t *out) {
    const node *n = graph_get(g, v);
    if (!is_splat(g, v) || (n->dtype != TN_I64 && n->dtype != TN_I32)) return false;
    *out = n->imm_int;
    return *out >> MOST_BITS == 0 || *out >> MOST_BITS == -1;
}

static val body_param(const graph *g, const counted *x, int k) { return g->regions.at[x->body].params[k]; }
static val body_result(const graph *g, const counted *x, int k) { return g->regions.at[x->body].results[k]; }
static bool is_same(const graph *g, const counted *x, int k) { return body_param(g, x, k) == body_result(g, x, k); }
static bool is_gone(const graph *g, const counted *x, int k) {
    return k == x->counter && graph_used_once(g, body_param(g, x, k)) && graph_used_once(g, body_result(g, x, k));
}

/* Iterations from start while the counter is below end, or above, where it goes down. */
static bool find_count(counted *x, op_code op, tn_dtype t, int64_t start, int64_t step, int64_t end) {
    bool up = op == OP_lt || op == OP_le;
    int64_t by = up ? step : -step, span = (up ? end - start : start - end) + (op == OP_le || op == OP_ge);
    if (span > 0 && by <= 0) return false;
    x->count = span > 0 ? (span + by - 1) / by : 0, x->last = start + x->count * step;
    return t == TN_I64 || (x->last >= INT32_MIN && x->last <= INT32_MAX);
}

static bool find_counter(const graph *g, counted *x) {
    int cond = (int)x->n.attr[x->n.op == OP_scan ? SCAN_COND : 0];
    const node *c = graph_get(g, g->regions.at[cond].results[0]);
    int64_t start, step, end;
    if ((c->op != OP_lt && c->op != OP_le && c->op != OP_gt && c->op != OP_ge) || graph_get(g, c->in[0])->op != OP_param ||
        !is_integer(g, c->in[1], &end))
        return false;
    x->counter = (int)graph_get(g, c->in[0])->attr[0];
    if (x->counter >= x->carry || !is_integer(g, x->n.in[x->state + x->counter], &start)) return false;
    const node *next = graph_get(g, body_result(g, x, x->counter));
    return next->op == OP_add && next->in[0] == body_param(g, x, x->counter) && is_integer(g, next->in[1], &step) &&
           find_count(x, (op_code)c->op, (tn_dtype)next->dtype, start, step, end);
}

static bool find_loop(const graph *g, val v, counted *x) {
    *x = (counted){ .n = *graph_get(g, v), .v = v };
    bool scan = x->n.op == OP_scan && x->n.attr[SCAN_COND] && !x->n.attr[SCAN_REVERSE];
    if ((!scan && x->n.op != OP_while) || !graph_is_read(g, v)) return false;
    x->body = (int)node_body(&x->n), x->state = scan;
    x->carry = scan ? (int)x->n.attr[SCAN_CARRY] : x->n.n_in, x->stacks = scan ? (int)x->n.attr[SCAN_STEPS] : 0;
    for (int i = 0; i < x->n.n_in; i++)
        if (!is_static(g, x->n.in[i])) return false;
    return find_counter(g, x);
}

static val number(graph *g, const counted *x, val like, int64_t value) {
    node n = *graph_get(g, like);
    return graph_add(g, &(spec){ .op = OP_const,
                                 .dtype = (tn_dtype)n.dtype,
                                 .rank = n.rank,
                                 .dims = n.dims,
                                 .splat = true,
                                 .imm_int = value,
                                 .region = x->n.region });
}

/* As many iterations as there are, and as the scan had at most. */
static val count_of(graph *g, const counted *x) {
    int64_t most;
    spec s = { .op = OP_const, .dtype = TN_I64, .splat = true, .imm_int = x->count, .region = x->n.region };
    if (x->n.op == OP_while) return graph_add(g, &s);
    if (!is_integer(g, x->n.in[0], &most)) return graph_binary(g, OP_min, x->n.in[0], graph_add(g, &s));
    if (most < s.imm_int) s.imm_int = most;
    return graph_add(g, &s);
}

/* What the new loop is made of: operands, parameters and results of the body, in their order; and which of the new results old
 * result k is, or -1. */
typedef struct writer {
    const counted *x;
    int to;
    val *map, *in;
    int n_in, *result;
} writer;

static void take(graph *g, writer *w, int k) {
    val p = body_param(g, w->x, k);
    w->map[p] = region_param_like(g, w->to, p);
    w->in[w->n_in++] = w->x->n.in[w->x->state + k];
}

static void take_operands(graph *g, writer *w, int n_params) {
    const counted *x = w->x;
    for (int k = 0; k < x->carry; k++)
        if (!is_same(g, x, k) && !is_gone(g, x, k)) take(g, w, k);
    for (int k = x->carry; k < x->carry + x->stacks; k++) take(g, w, k);
    for (int k = 0; k < x->carry; k++) {
        if (is_same(g, x, k)) take(g, w, k);
        if (is_gone(g, x, k)) { /* its sum is copied, for nobody */
            spec s = graph_spec(g, x->n.in[x->state + k]);
            s.region = w->to;
            w->map[body_param(g, x, k)] = graph_add(g, &s);
        }
    }
    for (int k = x->carry + x->stacks; k < n_params; k++) take(g, w, k);
}

/* The loop as a scan; 0 if nothing is left of it. */
static val write_scan(graph *g, const counted *x, arena *scratch, int *result) {
    int n_params = x->n.n_in - x->state, n_results = g->regions.at[x->body].n_results, n_out = 0, carry = 0;
    val end = (val)g->nodes.n;
    writer w = { x, graph_region(g, g->regions.at[x->body].name), .n_in = 1 };
    w.map = ARENA_ARRAY(scratch, val, end), w.in = ARENA_ARRAY(scratch, val, n_params + 1);
    take_operands(g, &w, n_params);
    region_copy_values(g, x->body, w.to, (region_map){ w.map, 0, end });
    for (int k = 0; k < n_results; k++) {
        result[k] = -1;
        if (k < x->carry && (is_same(g, x, k) || is_gone(g, x, k))) continue;
        graph_region_result(g, w.to, w.map[body_result(g, x, k)]);
        result[k] = n_out++;
        carry += k < x->carry;
    }
    if (!n_out) return 0;
    g->here = x->n.where;
    w.in[0] = count_of(g, x);
    bool scan = x->n.op == OP_scan;
    int64_t attr[SCAN_ATTRS] = {
        w.to, 0, carry, x->stacks, scan ? x->n.attr[SCAN_LENGTH] : x->count, 0, scan ? x->n.attr[SCAN_RECOMPUTE] : 0
    };
    return graph_add(g, &(spec){ .op = OP_scan, .in = w.in, .n_in = w.n_in, .attr = attr, .n_attr = SCAN_ATTRS });
}

static val proj(graph *g, val op, int64_t k) {
    return k ? graph_add(g, &(spec){ .op = OP_proj, .in = &op, .n_in = 1, .attr = &k, .n_attr = 1 }) : op;
}

/* What old result k is now. */
static val result_of(graph *g, const counted *x, val loop, const int *result, int k) {
    val operand = x->n.in[x->state + k];
    if (result[k] >= 0) return proj(g, loop, result[k]);
    return is_same(g, x, k) ? operand : number(g, x, operand, x->last);
}

static void rewrite(graph *g, const counted *x, arena *scratch) {
    int n_results = g->regions.at[x->body].n_results, *result = ARENA_ARRAY(scratch, int, n_results + 1);
    val *now = ARENA_ARRAY(scratch, val, n_results + 1), loop = write_scan(g, x, scratch, result);
    for (int k = 0; k < n_results; k++) now[k] = result_of(g, x, loop, result, k);
    VEC(val) parts = { 0 };
    for (uint32_t u = graph_get(g, x->v)->first_use; u; u = g->uses.at[u - 1].next)
        if (graph_get(g, g->uses.at[u - 1].user)->op == OP_proj) VEC_PUSH(scratch, &parts, g->uses.at[u - 1].user);
    for (int i = 0; i < parts.n; i++) graph_replace(g, parts.at[i], now[graph_get(g, parts.at[i])->attr[0]]);
    graph_replace(g, x->v, now[0]);
}

bool pass_counted_loops(graph *g, arena *scratch) {
    bool changed = false;
    const char *here = g->here;
    counted x;
    for (val v = 1, end = (val)g->nodes.n; v < end; v++) {
        if (!find_loop(g, v, &x)) continue;
        rewrite(g, &x, scratch);
        changed = true;
    }
    g->here = here;
    return changed;
}
