/* control.c - reverse mode through if and scan. In: an op some of whose results have adjoints. Out: another one of the same
 * kind, whose bodies compute the adjoints of the operands.
 *
 * Its bodies begin with a copy of the body, behind which reverse mode goes as it does in a graph. That of a scan runs in the
 * other direction: it carries the adjoints of what is carried, and sums for what all iterations see. What an iteration of it
 * needs of the one that it goes back through is kept by the forward scan, as one more stacked result of the same body; or,
 * where that is cheap (other elementwise work, movement) or asked for, computed again from what is kept. So the gradient is an
 * if or a scan like others, and has one itself. */
#include "grad/walk.h"
#include "ir/region.h"

/* ---- contexts ---- */

grad_ctx grad_context(graph *g, int in, val end, void (*mark)(grad_ctx *c), void (*walk)(grad_ctx *c)) {
    grad_ctx c = { .g = g, .region = in, .end = end, .mark = mark, .walk = walk };
    c.active = ARENA_ARRAY(g->a, uint8_t, end);
    c.position = ARENA_ARRAY(g->a, val, end);
    c.adj = ARENA_ARRAY(g->a, val, end);
    c.results = ARENA_ARRAY(g->a, val *, end);
    return c;
}

void grad_add(grad_ctx *c, val x, val d) { c->adj[x] = c->adj[x] ? graph_binary(c->g, OP_add, c->adj[x], d) : d; }

static val result_adjoint(const grad_ctx *c, val op, int k) {
    return k == 0 ? c->adj[op] : c->results[op] ? c->results[op][k] : 0;
}

/* Results may be added to a body later: the list has those that there are now. */
static void visit_proj(grad_ctx *c, const node *n, val d) {
    graph *g = c->g;
    val op = n->in[0];
    int64_t k = n->attr[0];
    if (!c->results[op]) c->results[op] = ARENA_ARRAY(g->a, val, g->regions.at[node_body(graph_get(g, op))].n_results + 1);
    if (k == 0)
        grad_add(c, op, d);
    else
        c->results[op][k] = c->results[op][k] ? graph_binary(g, OP_add, c->results[op][k], d) : d;
}

/* ---- copies of bodies ---- */

/* ---- one body, backwards ---- */

typedef struct reverse {
    graph *g;
    int body, region; /* forward; of the copy */
    val end;          /* nodes before the copy */
    val *map;         /* [end] from the body to its copy */
    grad_ctx c;       /* of the copy */
} reverse;

/* A region that begins with a copy of the body. */
static reverse reverse_begin(grad_ctx *outer, int body) {
    graph *g = outer->g;
    reverse r = { .g = g, .body = body, .end = (val)g->nodes.n };
    r.map = ARENA_ARRAY(g->a, val, r.end);
    r.region = graph_region(g, NULL);
    for (int i = 0; i < g->regions.at[body].n_params; i++) {
        val p = g->regions.at[body].params[i];
        r.map[p] = region_param_like(g, r.region, p);
    }
    region_copy_values(g, body, r.region, (region_map){ r.map, 0, r.end });
    r.c = grad_context(g, r.region, (val)g->nodes.n, outer->mark, outer->walk);
    return r;
}

static val param_of(const reverse *r, int i) { return r->map[r->g->regions.at[r->body].params[i]]; }
static val result_of(const reverse *r, int k) { return r->map[r->g->regions.at[r->body].results[k]]; }

/* Result k of the body has this adjoint, a value of the region. */
static void seed(reverse *r, int k, val d) {
    val x = result_of(r, k);
    if (r->c.active[x]) grad_add(&r->c, x, d);
}

static val or_zeros(graph *g, val d, val like) { return d ? d : graph_splat_like(g, like, 0.0); }

/* ---- if ---- */

static void visit_if(grad_ctx *c, val v) {
    graph *g = c->g;
    node n = *graph_get(g, v);
    int n_results = g->regions.at[n.attr[0]].n_results, n_adj = 0, n_out = 0;
    int64_t attr[2];
    val *in = ARENA_ARRAY(g->a, val, n.n_in + n_results);
    int *of = ARENA_ARRAY(g->a, int, n_results + 1);
    for (int i = 0; i < n.n_in; i++) in[i] = n.in[i];
    for (int k = 0; k < n_results; k++)
        if (result_adjoint(c, v, k)) of[n_adj] = k, in[n.n_in + n_adj++] = result_adjoint(c, v, k);
    for (int part = 0; part < 2; part++) {
        reverse r = reverse_begin(c, (int)n.attr[part]);
        for (int i = 1; i < n.n_in; i++) r.c.active[param_of(&r, i - 1)] = c->active[n.in[i]];
        r.c.mark(&r.c);
        for (int k = 0; k < n_adj; k++) {
            val d = region_param_like(g, r.region, in[n.n_in + k]);
            seed(&r, of[k], d);
        }
        r.c.walk(&r.c);
        n_out = 0;
        for (int i = 1; i < n.n_in; i++) {
            if (!c->active[n.in[i]] || !dtype_is_float(graph_get(g, n.in[i])->dtype)) continue;
            graph_region_result(g, r.region, or_zeros(g, r.c.adj[param_of(&r, i - 1)], param_of(&r, i - 1)));
            n_out++;
        }
        attr[part] = r.region;
    }
    g->here = n.where;
    if (!n_out) return;
    val d = graph_add(g, &(spec){ .op = OP_if, .in = in, .n_in = n.n_in + n_adj, .attr = attr, .n_attr = 2 });
    int64_t k = 0;
    for (int i = 1; i < n.n_in; i++) {
        if (!c->active[n.in[i]] || !dtype_is_float(graph_get(g, n.in[i])->dtype)) continue;
        grad_add(c, n.in[i], graph_add(g, &(spec){ .op = OP_proj, .in = &d, .n_in = 1, .attr = &k, .n_attr = 1 }));
        k++;
    }
}

/* ---- scan ---- */

typedef struct link { /* a parameter of the reverse body and the operand that it gets */
    val param, operand;
} link;
typedef VEC(link) links;

typedef struct gradient {
    grad_ctx *c;
    val v; /* the scan */
    node n;
    int carry, stacks, n_params;
    reverse r;
    links kept[3]; /* carried, stacks, seen by all */
    val *back;     /* [r.c.end] from the copy to the body */
    bool *dear;    /* [r.c.end] of the copy: it is kept */
    bool *needed;  /* [nodes] of the region: it is computed */
    bool *cut;     /* [nodes] of the region: its readers find it in a stack */
    VEC(val) todo;
} gradient;
enum { CARRIED, STACKED, SEEN };

static void keep(gradient *x, int kind, val param, val operand) {
    VEC_PUSH(x->r.g->a, &x->kept[kind], ((link){ param, operand }));
}

static val proj(graph *g, val op, int64_t k) {
    return graph_add(g, &(spec){ .op = OP_proj, .in = &op, .n_in = 1, .attr = &k, .n_attr = 1 });
}

/* The stack of value u of the body, in all iterations. */
static val stack_of(gradient *x, val u) {
    graph *g = x->r.g;
    int body = (int)x->n.attr[SCAN_BODY], k = x->carry;
    while (k < g->regions.at[body].n_results && g->regions.at[body].results[k] != u) k++;
    if (k == g->regions.at[body].n_results) graph_region_result(g, body, u);
    return proj(g, x->v, k);
}

static bool is_dear_op(op_code op) {
    switch (op_get(op)->cls) {
    case CL_REDUCE:
    case CL_ARG:
    case CL_DOT:
    case CL_FOLD:
    case CL_GATHER:
    case CL_SCATTER:
    case CL_RANDOM:
    case CL_CTRL:
        return true;
    default:
        return false;
    }
}

static bool has_one_reader(const graph *g, val v) {
    uint32_t u = graph_get(g, v)->first_use;
    return u && !g->uses.at[u - 1].next;
}

/* Whether an elementwise op makes something of value v alone, which is no larger. */
static bool becomes_no_larger(const graph *g, val v) {
    if (!has_one_reader(g, v)) return false;
    const node *n = graph_get(g, v), *w = graph_get(g, g->uses.at[n->first_use - 1].user);
    return op_is_elementwise((op_code)w->op) && dtype_size((tn_dtype)w->dtype) <= dtype_size((tn_dtype)n->dtype) &&
           graph_elems(g, v) == graph_elems(g, g->uses.at[n->first_use - 1].user);
}

/* Whether all readers of a value that is kept take parts of it, together no more than it has, of which elementwise ops make
 * something: the gates of a cell. */
static bool is_taken_apart(const gradient *x, val v) {
    const graph *g = x->r.g;
    int64_t left = graph_elems(g, v);
    if (v >= x->r.c.end || !x->dear[v]) return false;
    for (uint32_t u = graph_get(g, v)->first_use; u; u = g->uses.at[u - 1].next) {
        val part = g->uses.at[u - 1].user;
        if (graph_get(g, part)->op != OP_slice || !becomes_no_larger(g, part)) return false;
        left -= graph_elems(g, part);
    }
    return left >= 0;
}

/* What is kept, rather than computed again; and in place of it what elementwise ops make of it or of its parts, where nothing
 * else needs it and that is no larger: then nothing of it is computed again, and both are one kernel. */
static void find_dear(gradient *x) {
    const graph *g = x->r.g;
    x->dear = ARENA_ARRAY(g->a, bool, x->r.c.end);
    if (x->n.attr[SCAN_RECOMPUTE]) return;
    for (val w = 1; w < x->r.c.end; w++) {
        const node *n = graph_get(g, w);
        if (!x->back[w] || n->op == OP_param) continue;
        x->dear[w] = is_dear_op((op_code)n->op);
        for (int i = 0; i < n->n_in && op_is_elementwise((op_code)n->op); i++) {
            val in = n->in[i];
            bool part = graph_get(g, in)->op == OP_slice && is_taken_apart(x, graph_get(g, in)->in[0]);
            x->dear[w] |= in < x->r.c.end && (x->dear[in] || part) && becomes_no_larger(g, in);
        }
    }
}

/* What is needed for value v: its operands, unless they are kept. A proj needs the op itself. */
static void look_at(gradient *x, val v) {
    graph *g = x->r.g;
    for (int i = 0; i < graph_get(g, v)->n_in; i++) {
        val w = graph_get(g, v)->in[i], u = w < x->r.c.end ? x->back[w] : 0;
        bool dear = u && graph_get(g, v)->op != OP_proj && x->dear[w];
        bool *seen = dear ? x->cut : x->needed;
        if (seen[w]) continue;
        seen[w] = true;
        if (dear)
            keep(x, STACKED, w, stack_of(x, u));
        else
            VEC_PUSH(g->a, &x->todo, w);
    }
}

static void find_needed(gradient *x, const val *out, int n_out) {
    graph *g = x->r.g;
    size_t n = (size_t)g->nodes.n;
    find_dear(x);
    x->needed = ARENA_ARRAY(g->a, bool, n), x->cut = ARENA_ARRAY(g->a, bool, n);
    for (int k = 0; k < n_out; k++) {
        if (!x->needed[out[k]]) VEC_PUSH(g->a, &x->todo, out[k]);
        x->needed[out[k]] = true;
    }
    while (x->todo.n) look_at(x, x->todo.at[--x->todo.n]);
    for (int i = 0; i < x->n_params; i++) {
        val p = param_of(&x->r, i);
        if (!x->needed[p]) continue;
        if (i < x->carry)
            keep(x, STACKED, p, stack_of(x, g->regions.at[x->r.body].params[i]));
        else
            keep(x, i < x->carry + x->stacks ? STACKED : SEEN, p, x->n.in[1 + i]);
    }
}

/* The count of the gradient: as many iterations as there were. */
static val count_of(gradient *x) {
    graph *g = x->r.g;
    if (!x->n.attr[SCAN_COND]) return x->n.in[0];
    if (x->n.attr[SCAN_REVERSE])
        guard_fail(g->a->gd, TN_ERR_UNSUPPORTED, "grad: scan %%%u goes backwards and has a condition, which has no gradient",
                   x->v);
    spec one = { .op = OP_const, .dtype = TN_I64, .splat = true, .imm = 1, .imm_int = 1 };
    one.region = (int)x->n.attr[SCAN_BODY];
    val ones = stack_of(x, graph_add(g, &one));
    return graph_reshape(g, graph_reduce(g, OP_sum, ones, 1), 0, NULL);
}

/* Which values that are carried depend on active ones, by the body. */
static bool *active_carries(gradient *x) {
    graph *g = x->r.g;
    bool *on = ARENA_ARRAY(g->a, bool, x->n_params + 1), changed = true;
    for (int i = 0; i < x->n_params; i++)
        on[i] = x->c->active[x->n.in[1 + i]] && dtype_is_float(graph_get(g, x->n.in[1 + i])->dtype);
    while (changed) {
        changed = false;
        for (int i = 0; i < x->n_params; i++) x->r.c.active[param_of(&x->r, i)] = on[i];
        x->r.c.mark(&x->r.c);
        for (int k = 0; k < x->carry; k++) {
            if (on[k] || !x->r.c.active[result_of(&x->r, k)] || !dtype_is_float(graph_get(g, x->n.in[1 + k])->dtype)) continue;
            on[k] = changed = true;
        }
    }
    return on;
}

static void plant(gradient *x, const bool *on) {
    graph *g = x->r.g;
    for (int k = 0; k < x->carry; k++) {
        if (!on[k]) continue;
        val p = region_param_like(g, x->r.region, param_of(&x->r, k));
        keep(x, CARRIED, p, or_zeros(g, result_adjoint(x->c, x->v, k), x->n.in[1 + k]));
        seed(&x->r, k, p);
    }
    for (int k = x->carry, n = g->regions.at[x->n.attr[SCAN_BODY]].n_results; k < n; k++) {
        val d = result_adjoint(x->c, x->v, k);
        if (!d) continue;
        val p = region_param_like(g, x->r.region, result_of(&x->r, k));
        keep(x, STACKED, p, d);
        seed(&x->r, k, p);
    }
}

/* The reverse body with what is needed alone, behind its parameters in their order. The region in which it was found goes. */
static int write_body(gradient *x, const val *out, int n_out, val *in) {
    graph *g = x->r.g;
    int to = graph_region(g, NULL), n = 1;
    val end = (val)g->nodes.n, *map = ARENA_ARRAY(g->a, val, end), *stack = ARENA_ARRAY(g->a, val, end);
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < x->kept[kind].n; i++) {
            val w = x->kept[kind].at[i].param, p = region_param_like(g, to, w);
            *(x->cut[w] && graph_get(g, w)->op != OP_param ? &stack[w] : &map[w]) = p;
            in[n++] = x->kept[kind].at[i].operand;
        }
    for (val v = 1; v < end; v++) {
        node m = *graph_get(g, v);
        if (m.region != x->r.region || m.op == OP_NIL) continue;
        if (m.op != OP_param && x->needed[v]) {
            spec s = graph_spec(g, v);
            val *operands = ARENA_ARRAY(g->a, val, m.n_in + 1);
            for (int i = 0; i < m.n_in; i++) operands[i] = m.op != OP_proj && stack[m.in[i]] ? stack[m.in[i]] : map[m.in[i]];
            s.in = operands, s.region = to;
            g->here = m.where;
            map[v] = graph_add(g, &s);
        }
    }
    for (int k = 0; k < n_out; k++) graph_region_result(g, to, map[out[k]]);
    for (val v = 1; v < end; v++)
        if (graph_get(g, v)->region == x->r.region) *graph_get(g, v) = (node){ 0 };
    g->regions.at[x->r.region] = (region){ 0 };
    return to;
}

static void visit_scan(grad_ctx *c, val v) {
    graph *g = c->g;
    gradient x = { .c = c, .v = v, .n = *graph_get(g, v) };
    x.carry = (int)x.n.attr[SCAN_CARRY], x.stacks = (int)x.n.attr[SCAN_STEPS], x.n_params = x.n.n_in - 1;
    x.r = reverse_begin(c, (int)x.n.attr[SCAN_BODY]);
    x.back = ARENA_ARRAY(g->a, val, x.r.c.end);
    for (val u = 1; u < x.r.end; u++)
        if (x.r.map[u]) x.back[x.r.map[u]] = u;
    const bool *on = active_carries(&x);
    plant(&x, on);
    x.r.c.walk(&x.r.c);
    g->here = x.n.where;
    /* results: adjoints of what is carried, sums, then of slices */
    val *out = ARENA_ARRAY(g->a, val, 2 * x.n_params + 1), *to = ARENA_ARRAY(g->a, val, 2 * x.n_params + 1);
    int n_out = 0;
    for (int k = 0; k < x.carry; k++)
        if (on[k]) to[n_out] = x.n.in[1 + k], out[n_out++] = or_zeros(g, x.r.c.adj[param_of(&x.r, k)], param_of(&x.r, k));
    for (int i = x.carry + x.stacks; i < x.n_params; i++) {
        val d = on[i] ? x.r.c.adj[param_of(&x.r, i)] : 0;
        if (!d) continue;
        val sum = region_param_like(g, x.r.region, param_of(&x.r, i));
        keep(&x, CARRIED, sum, graph_splat_like(g, x.n.in[1 + i], 0.0));
        to[n_out] = x.n.in[1 + i], out[n_out++] = graph_binary(g, OP_add, sum, d);
    }
    for (int i = x.carry; i < x.carry + x.stacks; i++)
        if (on[i] && x.r.c.adj[param_of(&x.r, i)]) to[n_out] = x.n.in[1 + i], out[n_out++] = x.r.c.adj[param_of(&x.r, i)];
    if (!n_out) return;
    find_needed(&x, out, n_out);
    int n_kept = x.kept[0].n + x.kept[1].n + x.kept[2].n;
    val *in = ARENA_ARRAY(g->a, val, n_kept + 2);
    in[0] = count_of(&x);
    int64_t attr[SCAN_ATTRS] = {
        write_body(&x, out, n_out, in), 0, x.kept[CARRIED].n, x.kept[STACKED].n, x.n.attr[SCAN_LENGTH], !x.n.attr[SCAN_REVERSE],
        x.n.attr[SCAN_RECOMPUTE]
    };
    g->here = x.n.where;
    val d = graph_add(g, &(spec){ .op = OP_scan, .in = in, .n_in = n_kept + 1, .attr = attr, .n_attr = SCAN_ATTRS });
    for (int k = 0; k < n_out; k++)
        if (c->active[to[k]]) grad_add(c, to[k], proj(g, d, k));
}

bool grad_visit_control(grad_ctx *c, val v) {
    node n = *graph_get(c->g, v);
    if (n.op == OP_proj) {
        if (c->active[n.in[0]]) visit_proj(c, &n, c->adj[v]);
    } else if (n.op == OP_if) {
        visit_if(c, v);
    } else if (n.op == OP_scan) {
        visit_scan(c, v);
    } else {
        return n.op == OP_param;
    }
    return true;
}
