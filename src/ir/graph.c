/* graph.c - nodes, use lists and compaction. In: specs. Out: a graph whose every node passed graph_infer. The graph's arena
 * owns all. */
#include "ir/graph.h"
#include "ir/region.h"

#include <math.h>

graph *graph_make(arena *a, const char *name) {
    graph *g = ARENA_NEW(a, graph);
    g->a = a;
    g->name = arena_strdup(a, name ? name : "");
    VEC_PUSH(a, &g->nodes, (node){ 0 });
    VEC_PUSH(a, &g->regions, (region){ 0 });
    return g;
}

/* ---- use lists ---- */

static void use_add(graph *g, val v, val user, int32_t slot) {
    if (!v) return;
    uint32_t r = g->free_use;
    if (r)
        g->free_use = g->uses.at[r - 1].next;
    else {
        VEC_PUSH(g->a, &g->uses, (use){ 0 });
        r = (uint32_t)g->uses.n;
    }
    node *n = graph_get(g, v);
    g->uses.at[r - 1] = (use){ .user = user, .slot = slot, .next = n->first_use };
    if (n->first_use) g->uses.at[n->first_use - 1].prev = r;
    n->first_use = r;
    graph_get(g, user)->in_use[slot] = r;
}
/* A value may be an operand many thousand times: its list is not searched. */
static void use_drop(graph *g, val v, val user, int32_t slot) {
    uint32_t r = graph_get(g, user)->in_use[slot];
    if (!r) return;
    use *u = &g->uses.at[r - 1];
    if (u->prev)
        g->uses.at[u->prev - 1].next = u->next;
    else
        graph_get(g, v)->first_use = u->next;
    if (u->next) g->uses.at[u->next - 1].prev = u->prev;
    *u = (use){ .next = g->free_use };
    g->free_use = r;
    graph_get(g, user)->in_use[slot] = 0;
}

/* ---- adding ---- */

int graph_region(graph *g, const char *name) {
    if (g->regions.n > UINT16_MAX) guard_fail(g->a->gd, TN_ERR_UNSUPPORTED, "more than %d regions in a graph", UINT16_MAX);
    VEC_PUSH(g->a, &g->regions, (region){ .name = name ? arena_strdup(g->a, name) : NULL });
    return g->regions.n - 1;
}
/* Lists of regions have room for the power of two from n up. */
static val *append_val(graph *g, val *at, int n, val v) {
    if ((n & (n - 1)) == 0) {
        val *bigger = ARENA_ARRAY(g->a, val, n ? 2 * n : 1);
        if (n) memcpy(bigger, at, (size_t)n * sizeof *bigger);
        at = bigger;
    }
    at[n] = v;
    return at;
}
void graph_region_result(graph *g, int i, val v) {
    if (i < 1 || i >= g->regions.n || v == 0 || v >= (val)g->nodes.n || graph_get(g, v)->region != i)
        guard_fail(g->a->gd, TN_ERR_INVAL, "a result of region %d must be a value of that region", i);
    region *r = &g->regions.at[i];
    r->results = append_val(g, r->results, r->n_results, v);
    r->n_results++;
}
static void add_param(graph *g, int i, int64_t index, val v) {
    region *r = &g->regions.at[i];
    if (index != r->n_params)
        guard_fail(g->a->gd, TN_ERR_INVAL, "parameter %lld of a region with %d", (long long)index, r->n_params);
    r->params = append_val(g, r->params, r->n_params, v);
    r->n_params++;
}

/* A splat has the value that its dtype can hold, in both fields for integers. Pad values stay as given: readers convert. */
static void set_splat(node *n, const spec *s) {
    uint64_t e = 0;
    tn_dtype t = (tn_dtype)n->dtype;
    n->splat = 1;
    if (dtype_is_float(t)) {
        dtype_store(t, &e, 0, s->imm);
        n->imm = isnan(s->imm) ? (double)NAN : dtype_load(t, &e, 0);
    } else {
        dtype_store_int(t, &e, 0, s->imm_int);
        n->imm_int = dtype_load_int(t, &e, 0);
        n->imm = (double)n->imm_int;
    }
}

spec graph_spec(const graph *g, val v) {
    const node *n = graph_get(g, v);
    return (spec){ .op = (op_code)n->op,
                   .dtype = (tn_dtype)n->dtype,
                   .in = n->in,
                   .n_in = n->n_in,
                   .rank = n->rank,
                   .dims = n->dims,
                   .attr = n->attr,
                   .n_attr = n->n_attr,
                   .splat = n->splat,
                   .imm = n->imm,
                   .imm_int = n->imm_int,
                   .data = n->data,
                   .name = n->name,
                   .region = n->region };
}

static int region_of(const graph *g, const spec *s) {
    return s->region || s->op == OP_input || s->op == OP_state ? s->region : g->current;
}

val graph_add(graph *g, const spec *s) {
    tn_status code;
    tn_dtype dtype;
    int rank;
    int64_t dims[TN_MAX_RANK];
    const char *text = graph_infer(g, s, g->a, &code, &dtype, &rank, dims);
    if (text) guard_fail(g->a->gd, code, "%s", text);
    if (g->nodes.n == INT32_MAX || s->n_attr > UINT16_MAX)
        guard_fail(g->a->gd, TN_ERR_UNSUPPORTED, "the graph has too many nodes");
    node n = {
        .op = (uint8_t)s->op,
        .dtype = (uint8_t)dtype,
        .rank = (uint8_t)rank,
        .n_attr = (uint16_t)s->n_attr,
        .region = s->n_in ? graph_get(g, s->in[0])->region : (uint16_t)region_of(g, s),
        .n_in = s->n_in,
        .data = s->data,
        .where = g->here,
    };
    n.in = arena_copy(g->a, s->in, (size_t)s->n_in * sizeof *s->in);
    n.in_use = ARENA_ARRAY(g->a, uint32_t, s->n_in);
    n.dims = arena_copy(g->a, dims, (size_t)rank * sizeof *dims);
    n.attr = arena_copy(g->a, s->attr, (size_t)s->n_attr * sizeof *s->attr);
    if (s->name && s->name[0]) n.name = arena_strdup(g->a, s->name);
    if (s->op == OP_const && s->splat) set_splat(&n, s), n.data = NULL;
    if (s->op == OP_pad) n.imm = s->imm;
    VEC_PUSH(g->a, &g->nodes, n);
    val v = (val)g->nodes.n - 1;
    for (int i = 0; i < s->n_in; i++) use_add(g, s->in[i], v, i);
    if (s->op == OP_input || s->op == OP_state) VEC_PUSH(g->a, &g->inputs, v);
    if (s->op == OP_param) add_param(g, s->region, s->attr[0], v);
    return v;
}

/* ---- facts ---- */

int64_t graph_elems(const graph *g, val v) {
    const node *n = graph_get(g, v);
    int64_t e = 1;
    for (int i = 0; i < n->rank; i++) e *= graph_dim_most(g, n->dims[i]);
    return e;
}
ext graph_elems_ext(const graph *g, val v) {
    const node *n = graph_get(g, v);
    if (!g->params) return graph_elems(g, v);
    ext e = 1;
    for (int i = 0; i < n->rank; i++) e = ext_mul(g->params, e, n->dims[i]);
    return e;
}
bool graph_is_dim(const graph *g, ext d) {
    if (ext_is_lit(d)) return d >= 0;
    return g->params && ext_index(d) < g->params->at.n && ext_is_size(g->params, d);
}
const char *graph_dim_text(const graph *g, ext d) {
    str b;
    str_init(&b, g->a);
    ext_print_plain(g->params, d, &b);
    return b.s;
}
exts *graph_params(graph *g) {
    if (!g->params) g->params = exts_make(g->a);
    return g->params;
}
bool graph_same_shape(const graph *g, val x, val y) {
    const node *a = graph_get(g, x), *b = graph_get(g, y);
    return a->rank == b->rank && (!a->rank || !memcmp(a->dims, b->dims, a->rank * sizeof *a->dims));
}
/* Outputs and results of its region that read v. */
static int n_sinks(const graph *g, val v) {
    int n = 0;
    for (int i = graph_get(g, v)->first_out; i; i = g->outputs.at[i - 1].next) n++;
    const region *b = &g->regions.at[graph_get(g, v)->region];
    for (int i = 0; i < b->n_results; i++) n += b->results[i] == v;
    return n;
}
int graph_n_uses(const graph *g, val v) {
    int n = n_sinks(g, v);
    for (uint32_t r = graph_get(g, v)->first_use; r; r = g->uses.at[r - 1].next) n++;
    return n;
}
bool graph_used_once(const graph *g, val v) {
    uint32_t r = graph_get(g, v)->first_use;
    if (r && g->uses.at[r - 1].next) return false;
    return (r != 0) + n_sinks(g, v) == 1;
}
bool graph_is_read(const graph *g, val v) { return graph_get(g, v)->first_use != 0 || n_sinks(g, v) > 0; }
bool graph_is_output(const graph *g, val v) { return graph_get(g, v)->first_out != 0; }
bool graph_is_assigned(const graph *g, val state) { return graph_get(g, state)->update != 0; }
bool graph_splat_value(const graph *g, val v, double *out) {
    const node *n = graph_get(g, v);
    if (n->op != OP_const || !n->splat) return false;
    *out = n->imm;
    return true;
}

/* ---- changing ---- */

static void check_id(graph *g, val v, const char *what) {
    if (v == 0 || v >= (val)g->nodes.n) guard_fail(g->a->gd, TN_ERR_INTERNAL, "%s: value %%%u does not exist", what, v);
}
static void check_same_type(graph *g, val x, val y, const char *what) {
    if (!graph_same_shape(g, x, y) || graph_get(g, x)->dtype != graph_get(g, y)->dtype)
        guard_fail(g->a->gd, TN_ERR_SHAPE, "%s: expected %s, got %s", what, graph_shape_text(g, g->a, x),
                   graph_shape_text(g, g->a, y));
}
void graph_set_in(graph *g, val user, int slot, val v) {
    check_id(g, user, "graph_set_in");
    check_id(g, v, "graph_set_in");
    node *n = graph_get(g, user);
    if (slot < 0 || slot >= n->n_in) guard_fail(g->a->gd, TN_ERR_INTERNAL, "graph_set_in: operand %d of %d", slot, n->n_in);
    if (n->in[slot] == v) return;
    use_drop(g, n->in[slot], user, slot);
    n->in[slot] = v;
    use_add(g, v, user, slot);
}
void graph_replace(graph *g, val old, val v) {
    check_id(g, old, "graph_replace");
    check_id(g, v, "graph_replace");
    if (old == v) return;
    check_same_type(g, old, v, "graph_replace");
    uint32_t first = graph_get(g, old)->first_use, last = 0;
    for (uint32_t r = first; r; last = r, r = g->uses.at[r - 1].next)
        graph_get(g, g->uses.at[r - 1].user)->in[g->uses.at[r - 1].slot] = v;
    if (first) { /* the whole list moves in front of v's */
        node *n = graph_get(g, v);
        g->uses.at[last - 1].next = n->first_use;
        if (n->first_use) g->uses.at[n->first_use - 1].prev = last;
        n->first_use = first;
        graph_get(g, old)->first_use = 0;
    }
    for (int i; (i = graph_get(g, old)->first_out);) graph_set_output(g, i - 1, v);
    region *b = &g->regions.at[graph_get(g, old)->region];
    for (int i = 0; i < b->n_results; i++)
        if (b->results[i] == old) b->results[i] = v;
}
/* Output i reads its v, and assigns its state. */
static void link_output(graph *g, int i) {
    output *o = &g->outputs.at[i];
    node *n = graph_get(g, o->v);
    o->next = n->first_out;
    n->first_out = i + 1;
    if (o->state) graph_get(g, o->state)->update = i + 1;
}
void graph_sink(graph *g, const char *name, val v, val state) {
    VEC_PUSH(g->a, &g->outputs, (output){ .name = name, .v = v, .state = state, .where = g->here });
    link_output(g, g->outputs.n - 1);
}
void graph_set_output(graph *g, int i, val v) {
    output *o = &g->outputs.at[i];
    int32_t *at = &graph_get(g, o->v)->first_out;
    while (*at && *at != i + 1) at = &g->outputs.at[*at - 1].next;
    if (*at) *at = o->next;
    o->v = v;
    link_output(g, i);
}
static void check_sink(graph *g, val v, const char *what) {
    check_id(g, v, what);
    if (graph_get(g, v)->region) guard_fail(g->a->gd, TN_ERR_INVAL, "%s: %%%u is inside a region", what, v);
}
void graph_output(graph *g, const char *name, val v) {
    check_sink(g, v, "output");
    if (!name || !name[0]) guard_fail(g->a->gd, TN_ERR_INVAL, "an output needs a name");
    graph_sink(g, arena_strdup(g->a, name), v, 0);
}
void graph_assign(graph *g, val state, val v) {
    check_sink(g, state, "assign");
    check_sink(g, v, "assign");
    if (graph_get(g, state)->op != OP_state)
        guard_fail(g->a->gd, TN_ERR_INVAL, "assign: expected a state, got %s", op_get((op_code)graph_get(g, state)->op)->name);
    check_same_type(g, state, v, "assign");
    if (graph_is_assigned(g, state))
        guard_fail(g->a->gd, TN_ERR_INVAL, "assign: state %s is assigned twice", graph_get(g, state)->name);
    graph_sink(g, NULL, v, state);
}

/* ---- order ---- */

/* Dependency k of a node: its operands, then the parameters and results of its regions; false past the last.
 * Gives 0 for what does not exist, so that broken graphs can be walked too. */
static bool dep_get(const graph *g, const node *n, int k, val *out) {
    *out = 0;
    if (k < n->n_in && n->in) {
        if (n->in[k] < (val)g->nodes.n) *out = n->in[k];
        return true;
    }
    k -= n->in ? n->n_in : 0;
    for (int i = 0; i < (n->attr ? node_regions(n) : 0); i++) {
        if (n->attr[i] < 1 || n->attr[i] >= g->regions.n) continue;
        const region *r = &g->regions.at[n->attr[i]];
        if (k < r->n_params + r->n_results) {
            val v = k < r->n_params ? r->params[k] : r->results[k - r->n_params];
            if (v < (val)g->nodes.n) *out = v;
            return true;
        }
        k -= r->n_params + r->n_results;
    }
    return false;
}

enum { NEW, OPEN, DONE };
typedef struct walk { /* depth-first, with a stack of its own: graphs are deep */
    const graph *g;
    uint32_t *state, *next, *stack; /* [nodes.n] each */
    val *out;
    int n_out;
    bool cycle;
} walk;
static void walk_from(walk *w, val root) {
    uint32_t depth = 0;
    if (root == 0 || root >= (val)w->g->nodes.n || w->state[root] != NEW) return;
    w->state[root] = OPEN;
    w->stack[depth++] = root;
    while (depth) {
        val v = w->stack[depth - 1], d;
        if (!dep_get(w->g, graph_get(w->g, v), (int)w->next[v]++, &d)) {
            w->state[v] = DONE;
            w->out[w->n_out++] = v;
            depth--;
        } else if (d && w->state[d] == NEW) {
            w->state[d] = OPEN;
            w->stack[depth++] = d;
        } else if (d && w->state[d] == OPEN)
            w->cycle = true;
    }
}

/* First marks what is live by one walk, then orders by walking from every live node in order of ids: operands before users, and
 * ids that are in order already stay in order. buf has room for 4 * nodes.n. */
static int order_nodes(const graph *g, bool only_live, uint32_t *buf, val *out, bool *out_cycle) {
    size_t n = (size_t)g->nodes.n;
    uint32_t *live = buf + 3 * n;
    memset(buf, 0, 4 * n * sizeof *buf);
    walk w = { .g = g, .state = buf, .next = buf + n, .stack = buf + 2 * n, .out = out };
    if (only_live) {
        for (int i = 0; i < g->outputs.n; i++) {
            walk_from(&w, g->outputs.at[i].v);
            walk_from(&w, g->outputs.at[i].state);
        }
        for (size_t i = 0; i < n; i++) live[i] = buf[i];
        memset(buf, 0, 3 * n * sizeof *buf);
        w.n_out = 0;
    }
    for (int i = 0; i < g->inputs.n; i++) walk_from(&w, g->inputs.at[i]);
    for (size_t i = 1; i < n; i++)
        if ((!only_live || live[i]) && g->nodes.at[i].op != OP_NIL) walk_from(&w, (val)i);
    *out_cycle = w.cycle;
    return w.n_out;
}
int graph_order(const graph *g, arena *a, bool only_live, val *out) {
    bool cycle;
    return order_nodes(g, only_live, ARENA_ARRAY(a, uint32_t, 4 * (size_t)g->nodes.n), out, &cycle);
}

/* Regions that a live op names keep their order; the others go. */
static void compact_regions(graph *g, const val *map) {
    int n = 1;
    uint16_t *to = ARENA_ARRAY(g->a, uint16_t, g->regions.n);
    for (int i = 1; i < g->nodes.n; i++) { /* nodes are compacted already */
        const node *c = &g->nodes.at[i];
        for (int k = 0; k < node_regions(c); k++) to[c->attr[k]] = 1;
    }
    to[0] = 0;
    for (int i = 1; i < g->regions.n; i++) {
        if (!to[i]) continue;
        region *r = &g->regions.at[i];
        for (int k = 0; k < r->n_params; k++) r->params[k] = map[r->params[k]];
        for (int k = 0; k < r->n_results; k++) r->results[k] = map[r->results[k]];
        to[i] = (uint16_t)n;
        g->regions.at[n++] = *r;
    }
    if (n == g->regions.n) return;
    g->regions.n = n;
    for (int i = 1; i < g->nodes.n; i++) {
        node *c = &g->nodes.at[i];
        c->region = to[c->region];
        if (!node_regions(c)) continue;
        int64_t *attr = arena_copy(g->a, c->attr, c->n_attr * sizeof *c->attr);
        for (int k = 0; k < node_regions(c); k++) attr[k] = to[attr[k]];
        c->attr = attr;
    }
}
/* Moves nodes to their new places: into the array that the last move left behind, where there is one. */
static void move_nodes(graph *g, const val *order, int n, val *map, int n_old) {
    memset(map, 0, (size_t)n_old * sizeof *map);
    for (int i = 0; i < n; i++) map[order[i]] = (val)i + 1;
    bool monotone = true;
    for (int i = 1; i < n && monotone; i++) monotone = order[i] > order[i - 1];
    if (monotone) {
        for (int i = 0; i < n; i++) g->nodes.at[i + 1] = g->nodes.at[order[i]];
        return;
    }
    node *moved = g->spare, *old = g->nodes.at;
    int cap = g->spare_cap;
    if (cap <= n) cap = g->nodes.cap, moved = ARENA_ARRAY(g->a, node, cap);
    moved[0] = old[0];
    for (int i = 0; i < n; i++) moved[i + 1] = old[order[i]];
    g->spare = old, g->spare_cap = g->nodes.cap;
    g->nodes.at = moved, g->nodes.cap = cap;
}
static void rebuild_uses(graph *g) {
    g->uses.n = 0;
    g->free_use = 0;
    for (int i = 0; i < g->nodes.n; i++) g->nodes.at[i].first_use = 0, g->nodes.at[i].first_out = g->nodes.at[i].update = 0;
    for (int i = g->outputs.n - 1; i >= 0; i--) link_output(g, i);
    for (int i = g->nodes.n - 1; i >= 1; i--) /* from the back: lists are in order of users */
        for (int k = g->nodes.at[i].n_in - 1; k >= 0; k--) use_add(g, g->nodes.at[i].in[k], (val)i, k);
}

void graph_compact(graph *g) {
    int n_old = g->nodes.n;
    g->checkpoints.n = 0;
    size_t need = 5 * (size_t)n_old;
    if ((size_t)g->work.cap < need) {
        if (need * 2 > INT32_MAX) guard_fail(g->a->gd, TN_ERR_UNSUPPORTED, "the graph has too many nodes");
        g->work.at = ARENA_ARRAY(g->a, uint32_t, need * 2);
        g->work.cap = (int)(need * 2);
    }
    val *order = g->work.at, *map = order + n_old; /* map lies over the walk's buffers, which are done by then */
    bool cycle;
    int n = order_nodes(g, true, order + n_old, order, &cycle);
    if (cycle) guard_fail(g->a->gd, TN_ERR_INTERNAL, "graph_compact: a value of graph %s depends on itself", g->name);
    move_nodes(g, order, n, map, n_old);
    g->nodes.n = n + 1;
    for (int i = 1; i < g->nodes.n; i++) {
        node *c = &g->nodes.at[i];
        for (int k = 0; k < c->n_in; k++) c->in[k] = map[c->in[k]];
    }
    for (int i = 0; i < g->inputs.n; i++) g->inputs.at[i] = map[g->inputs.at[i]];
    for (int i = 0; i < g->outputs.n; i++) {
        g->outputs.at[i].v = map[g->outputs.at[i].v];
        g->outputs.at[i].state = map[g->outputs.at[i].state];
    }
    if (g->regions.n > 1) compact_regions(g, map);
    rebuild_uses(g);
}
