/* scan_sums.c - what iterations of a scan add up of products is one product behind it; what a scan carries for nobody goes.
 *
 * In: scans of a known number of iterations, all of their stacks' slices. One that carries s + dot(a, b), which nothing in it
 * reads, as gradients by weights are. Out: the same without it; where a and b are slices, or stacked by it, or smaller than the
 * sum, which is then read and written no more: dot(stack of a, stack of b), whose contraction is longer by an axis, and what
 * the sum began with added to it. [order] */
#include "ir/region.h"
#include "pass/rewrite.h"

typedef struct sums {
    graph *g;
    arena *scratch;
    val v; /* the scan */
    node n;
    int body, carry, stacks;
    val *now; /* [results] what stands for one, or 0 */
} sums;

static val param(const sums *x, int i) { return x->g->regions.at[x->body].params[i]; }
static val result(const sums *x, int k) { return x->g->regions.at[x->body].results[k]; }

static val proj(graph *g, val op, int64_t k) {
    return k ? graph_add(g, &(spec){ .op = OP_proj, .in = &op, .n_in = 1, .attr = &k, .n_attr = 1 }) : op;
}

static bool runs_whole(const graph *g, const node *n) {
    const node *c = graph_get(g, n->in[0]);
    return !n->attr[SCAN_COND] && is_splat(g, n->in[0]) && n->attr[SCAN_LENGTH] > 0 && c->imm_int >= n->attr[SCAN_LENGTH];
}

/* Which of the scan's results are read outside. */
static bool *results_read(const sums *x) {
    const graph *g = x->g;
    bool *read = ARENA_ARRAY(x->scratch, bool, g->regions.at[x->body].n_results + 1);
    read[0] = graph_is_output(g, x->v);
    for (uint32_t u = graph_get(g, x->v)->first_use; u; u = g->uses.at[u - 1].next) {
        val user = g->uses.at[u - 1].user;
        if (graph_get(g, user)->op != OP_proj)
            read[0] = true;
        else if (graph_is_read(g, user))
            read[graph_get(g, user)->attr[0]] = true;
    }
    return read;
}

/* ---- sums of products ---- */

/* The result of the body that has value u's slices, or -1; a slice that it gets itself is in *of. */
static int find_stack(const sums *x, val u, val *of) {
    const node *n = graph_get(x->g, u);
    int64_t i = n->op == OP_param ? n->attr[0] : 0;
    *of = n->op == OP_param && i >= x->carry && i < x->carry + x->stacks ? x->n.in[1 + i] : 0;
    for (int k = x->carry; k < x->g->regions.at[x->body].n_results && !*of; k++)
        if (result(x, k) == u) return k;
    return -1;
}

/* Elements an iteration that a stack more would take; < 0: it cannot be one, or each iteration has the same. */
static int64_t price(const sums *x, val u) {
    val of;
    const node *n = graph_get(x->g, u);
    if (find_stack(x, u, &of) >= 0 || of) return 0;
    if (n->rank == TN_MAX_RANK || (n->op == OP_param && n->attr[0] >= x->carry)) return -1;
    return graph_elems(x->g, u);
}

static val stack_of(sums *x, val u) {
    val of;
    int k = find_stack(x, u, &of);
    if (of) return of;
    if (k < 0) k = x->g->regions.at[x->body].n_results, graph_region_result(x->g, x->body, u);
    return proj(x->g, x->v, k);
}

/* The dot that carry k adds in each iteration, or 0. */
static val added_dot(const sums *x, int k) {
    const graph *g = x->g;
    val s = param(x, k), r = result(x, k);
    const node *add = graph_get(g, r);
    if (add->op != OP_add || !graph_used_once(g, s) || !graph_used_once(g, r)) return 0;
    val d = add->in[0] == s ? add->in[1] : add->in[1] == s ? add->in[0] : 0;
    if (!d || graph_get(g, d)->op != OP_dot || !graph_used_once(g, d)) return 0;
    int64_t a = price(x, graph_get(g, d)->in[0]), b = price(x, graph_get(g, d)->in[1]);
    return a >= 0 && b >= 0 && a + b < graph_elems(g, d) ? d : 0;
}

static val dot_of_stacks(sums *x, val d) {
    graph *g = x->g;
    node n = *graph_get(g, d);
    int nb = (int)n.attr[0], nc = (int)n.attr[1];
    int64_t *axes = ARENA_ARRAY(x->scratch, int64_t, 2 * nb + 2 * nc + 2), *contract = axes + 2 * nb;
    for (int i = 0; i < 2 * nb; i++) axes[i] = n.attr[2 + i] + 1;
    contract[0] = contract[nc + 1] = 0;
    for (int i = 0; i < nc; i++)
        contract[1 + i] = n.attr[2 + 2 * nb + i] + 1, contract[nc + 2 + i] = n.attr[2 + 2 * nb + nc + i] + 1;
    val a = stack_of(x, n.in[0]), b = stack_of(x, n.in[1]);
    return graph_dot(g, a, b, axes, axes + nb, nb, contract, contract + nc + 1, nc + 1);
}

static void find_sums(sums *x, const bool *read) {
    graph *g = x->g;
    for (int k = 0; k < x->carry; k++) {
        val d = read[k] && runs_whole(g, &x->n) ? added_dot(x, k) : 0;
        if (!d) continue;
        g->here = graph_get(g, d)->where;
        val sum = dot_of_stacks(x, d), first = x->n.in[1 + k];
        x->now[k] = splat_is(g, first, 0.0) ? sum : graph_binary(g, OP_add, first, sum);
    }
}

/* ---- the scan without them ---- */

/* Carried for nobody: read by what it becomes alone, which nobody else reads. */
static bool is_idle(const sums *x, const bool *read, int k) {
    const graph *g = x->g;
    val s = param(x, k), r = result(x, k);
    const node *n = graph_get(g, r);
    bool reads = false;
    for (int i = 0; i < n->n_in; i++) reads = reads || n->in[i] == s;
    return (x->now[k] || !read[k]) && reads && graph_used_once(g, s) && graph_used_once(g, r);
}

typedef struct writer {
    int to, n_in, n_out, carry;
    val *map, *in;
    int *at; /* [results] which of the new ones, or -1 */
} writer;

static void write_body(sums *x, const bool *idle, writer *w) {
    graph *g = x->g;
    int n_params = x->n.n_in - 1, n_results = g->regions.at[x->body].n_results;
    val end = (val)g->nodes.n;
    w->map = ARENA_ARRAY(x->scratch, val, end), w->in = ARENA_ARRAY(x->scratch, val, n_params + 1);
    w->at = ARENA_ARRAY(x->scratch, int, n_results + 1);
    w->to = graph_region(g, g->regions.at[x->body].name);
    w->in[w->n_in++] = x->n.in[0];
    for (int i = 0; i < n_params; i++) {
        val p = param(x, i);
        node like = *graph_get(g, p);
        spec none = { .op = OP_const, .dtype = (tn_dtype)like.dtype, .rank = like.rank, .dims = like.dims, .splat = true };
        none.region = w->to;
        bool gone = i < x->carry && idle[i]; /* its sum is copied, for nobody */
        w->map[p] = gone ? graph_add(g, &none) : region_param_like(g, w->to, p);
        if (!gone) w->in[w->n_in++] = x->n.in[1 + i], w->carry += i < x->carry;
    }
    region_copy_values(g, x->body, w->to, (region_map){ w->map, 0, end });
    for (int k = 0; k < n_results; k++) {
        w->at[k] = -1;
        if (k < x->carry && idle[k]) continue;
        graph_region_result(g, w->to, w->map[result(x, k)]);
        w->at[k] = w->n_out++;
    }
}

static void write_without(sums *x, const bool *idle) {
    graph *g = x->g;
    writer w = { 0 };
    int64_t attr[SCAN_ATTRS];
    VEC(val) parts = { 0 };
    write_body(x, idle, &w);
    memcpy(attr, x->n.attr, sizeof attr);
    attr[SCAN_BODY] = w.to, attr[SCAN_CARRY] = w.carry;
    g->here = x->n.where;
    val scan =
        w.n_out ? graph_add(g, &(spec){ .op = OP_scan, .in = w.in, .n_in = w.n_in, .attr = attr, .n_attr = SCAN_ATTRS }) : 0;
    for (uint32_t u = graph_get(g, x->v)->first_use; u; u = g->uses.at[u - 1].next)
        if (graph_get(g, g->uses.at[u - 1].user)->op == OP_proj) VEC_PUSH(x->scratch, &parts, g->uses.at[u - 1].user);
    for (int i = 0; i < parts.n; i++) {
        int64_t k = graph_get(g, parts.at[i])->attr[0];
        val now = k < x->carry && x->now[k] ? x->now[k] : w.at[k] >= 0 ? proj(g, scan, w.at[k]) : 0;
        if (now) graph_replace(g, parts.at[i], now);
    }
    if (x->now[0] || w.at[0] >= 0) graph_replace(g, x->v, x->now[0] ? x->now[0] : scan);
}

static bool visit(graph *g, val v, arena *scratch) {
    sums x = { .g = g, .scratch = scratch, .v = v, .n = *graph_get(g, v) };
    bool any = false;
    if (x.n.op != OP_scan || x.n.attr[SCAN_COND] || !graph_is_read(g, v)) return false;
    for (int i = 0; i < x.n.n_in; i++)
        if (!is_static(g, x.n.in[i])) return false;
    x.body = (int)x.n.attr[SCAN_BODY], x.carry = (int)x.n.attr[SCAN_CARRY], x.stacks = (int)x.n.attr[SCAN_STEPS];
    x.now = ARENA_ARRAY(scratch, val, x.carry + 1);
    const bool *read = results_read(&x);
    find_sums(&x, read);
    bool *idle = ARENA_ARRAY(scratch, bool, x.carry + 1);
    for (int k = 0; k < x.carry; k++) any |= idle[k] = is_idle(&x, read, k);
    if (any) write_without(&x, idle);
    return any;
}

bool pass_scan_sums(graph *g, arena *scratch) {
    bool changed = false;
    const char *here = g->here;
    for (val v = 1, end = (val)g->nodes.n; v < end; v++) changed |= visit(g, v, scratch);
    g->here = here;
    return changed;
}
