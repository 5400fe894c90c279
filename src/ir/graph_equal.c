/* graph_equal.c - copying and comparing graphs. A copy belongs to the arena given and shares only constant data (and only on
 * demand); comparison walks both graphs at once from their outputs. */
#include "ir/graph.h"
#include "ir/region.h"

#include <math.h>

/* ---- copying ---- */

static const char *copy_text(arena *a, const char *s) { return s ? arena_strdup(a, s) : NULL; }

static node copy_node(const graph *g, arena *a, val v, bool copy_data, const node *last_from, const node *last_to) {
    node n = *graph_get(g, v);
    n.in = arena_copy(a, n.in, (size_t)n.n_in * sizeof *n.in);
    n.in_use = arena_copy(a, n.in_use, (size_t)n.n_in * sizeof *n.in_use);
    n.dims = arena_copy(a, n.dims, n.rank * sizeof *n.dims);
    n.attr = arena_copy(a, n.attr, n.n_attr * sizeof *n.attr);
    n.name = copy_text(a, n.name);
    n.where = last_from->where == n.where ? last_to->where : copy_text(a, n.where); /* neighbours share their place */
    if (copy_data && n.data) n.data = arena_copy(a, n.data, (size_t)graph_elems(g, v) * dtype_size((tn_dtype)n.dtype));
    return n;
}
static val *copy_vals(arena *a, const val *at, int n) { /* with the room that lists of regions have */
    int cap = 1;
    while (cap < n) cap *= 2;
    val *p = ARENA_ARRAY(a, val, cap);
    if (n) memcpy(p, at, (size_t)n * sizeof *p);
    return p;
}
graph *graph_clone(const graph *g, arena *a, bool copy_data, val *map) {
    graph *c = graph_make(a, g->name);
    for (int i = 1; i < g->nodes.n; i++) {
        node n = copy_node(g, a, (val)i, copy_data, &g->nodes.at[i - 1], &c->nodes.at[i - 1]);
        VEC_PUSH(a, &c->nodes, n);
    }
    for (int i = 0; i < g->uses.n; i++) VEC_PUSH(a, &c->uses, g->uses.at[i]);
    for (int i = 0; i < g->inputs.n; i++) VEC_PUSH(a, &c->inputs, g->inputs.at[i]);
    for (int i = 0; i < g->outputs.n; i++) {
        output o = g->outputs.at[i];
        o.name = copy_text(a, o.name);
        VEC_PUSH(a, &c->outputs, o);
    }
    if (g->params) c->params = exts_clone(g->params, a);
    for (int i = 1; i < g->regions.n; i++) {
        region r = g->regions.at[i];
        r.name = copy_text(a, r.name);
        r.params = copy_vals(a, r.params, r.n_params);
        r.results = copy_vals(a, r.results, r.n_results);
        VEC_PUSH(a, &c->regions, r);
    }
    c->free_use = g->free_use;
    for (int i = 0; map && i < g->nodes.n; i++) map[i] = (val)i;
    return c;
}

/* ---- comparing ---- */

typedef struct pair {
    val x, y;
} pair;
typedef struct cmp {
    const graph *x, *y;
    arena *a;
    const char **why;
    val *to_y, *to_x; /* partners found so far */
    VEC(pair) todo;
} cmp;

static bool differ(cmp *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
static bool differ(cmp *c, const char *fmt, ...) {
    va_list ap;
    str b;
    if (!c->why) return false;
    err e;
    va_start(ap, fmt);
    err_vset(&e, TN_OK, fmt, ap);
    va_end(ap);
    str_init(&b, c->a);
    str_add(&b, e.text);
    *c->why = b.s;
    return false;
}
static bool same_text(const char *a, const char *b) { return a && b ? !strcmp(a, b) : a == b; }

static bool same_double(double a, double b) { return (isnan(a) && isnan(b)) || !memcmp(&a, &b, sizeof a); }
/* NULL is all zeros: a state without an initial value. */
static bool same_data(const graph *g, val v, const void *x, const void *y) {
    tn_dtype t = (tn_dtype)graph_get(g, v)->dtype;
    size_t size = (size_t)graph_elems(g, v) * dtype_size(t);
    if (x && y && t == TN_BOOL) { /* any byte but 0 is true */
        for (size_t i = 0; i < size; i++)
            if (dtype_load_int(t, x, (int64_t)i) != dtype_load_int(t, y, (int64_t)i)) return false;
        return true;
    }
    if (x && y) return !memcmp(x, y, size);
    const unsigned char *p = x ? x : y;
    for (size_t i = 0; p && i < size; i++)
        if (p[i]) return false;
    return true;
}
static bool is_splat(const node *n) { return n->op == OP_const && n->splat; }

static bool equal_type(cmp *c, val vx, val vy) {
    const node *x = graph_get(c->x, vx), *y = graph_get(c->y, vy);
    if (x->op != y->op)
        return differ(c, "%%%u is %s, %%%u is %s", vx, op_get((op_code)x->op)->name, vy, op_get((op_code)y->op)->name);
    bool same = x->dtype == y->dtype && x->rank == y->rank;
    for (int i = 0; same && i < x->rank; i++) same = ext_equal(c->x->params, x->dims[i], c->y->params, y->dims[i]);
    if (!same)
        return differ(c, "%s: %%%u is %s, %%%u is %s", op_get((op_code)x->op)->name, vx, graph_shape_text(c->x, c->a, vx), vy,
                      graph_shape_text(c->y, c->a, vy));
    return true;
}
static void todo(cmp *c, val x, val y) { VEC_PUSH(c->a, &c->todo, (pair){ x, y }); }

static bool equal_regions(cmp *c, const node *x, const node *y, val vx, val vy) {
    for (int i = 0; i < node_regions(x); i++) {
        const region *rx = &c->x->regions.at[x->attr[i]], *ry = &c->y->regions.at[y->attr[i]];
        if (rx->n_params != ry->n_params || rx->n_results != ry->n_results)
            return differ(c, "%s: region %d of %%%u and %%%u differ in parameters or results", op_get((op_code)x->op)->name, i,
                          vx, vy);
        for (int k = 0; k < rx->n_params; k++) todo(c, rx->params[k], ry->params[k]);
        for (int k = 0; k < rx->n_results; k++) todo(c, rx->results[k], ry->results[k]);
    }
    return true;
}
static bool equal_nodes(cmp *c, val vx, val vy) {
    const node *x = graph_get(c->x, vx), *y = graph_get(c->y, vy);
    if (!equal_type(c, vx, vy)) return false;
    const char *name = op_get((op_code)x->op)->name;
    if (is_splat(x) && is_splat(y)) {
        if (x->imm_int != y->imm_int || !same_double(x->imm, y->imm))
            return differ(c, "const: %%%u is %g, %%%u is %g", vx, x->imm, vy, y->imm);
        return true;
    }
    if (c->to_y[vx] || c->to_x[vy]) {
        if (c->to_y[vx] == vy && c->to_x[vy] == vx) return true;
        return differ(c, "%s: %%%u and %%%u are used in different places", name, vx, vy);
    }
    c->to_y[vx] = vy, c->to_x[vy] = vx;
    if (x->op == OP_input || x->op == OP_state)
        return differ(c, "%s: %s and %s are declared at different positions", name, x->name, y->name);
    if (x->n_in != y->n_in) return differ(c, "%s: %%%u has %d operands, %%%u has %d", name, vx, x->n_in, vy, y->n_in);
    if (x->splat != y->splat || (x->op == OP_const && !same_data(c->x, vx, x->data, y->data)))
        return differ(c, "const: %%%u and %%%u hold different values", vx, vy);
    if (x->op == OP_pad && !same_double(x->imm, y->imm))
        return differ(c, "pad: the value of %%%u is %g, of %%%u is %g", vx, x->imm, vy, y->imm);
    int nr = node_regions(x); /* attributes behind the regions */
    bool same = x->n_attr == y->n_attr && nr == node_regions(y);
    for (int i = 0; i < nr && same; i++) same = !x->attr[i] == !y->attr[i];
    for (int i = nr; i < x->n_attr && same; i++) same = ext_equal(c->x->params, x->attr[i], c->y->params, y->attr[i]);
    if (!same) return differ(c, "%s: %%%u and %%%u have different attributes", name, vx, vy);
    if (nr && !equal_regions(c, x, y, vx, vy)) return false;
    for (int i = 0; i < x->n_in; i++) todo(c, x->in[i], y->in[i]);
    return true;
}
static bool equal_interface(cmp *c) {
    const graph *x = c->x, *y = c->y;
    if (strcmp(x->name, y->name)) return differ(c, "names: %s and %s", x->name, y->name);
    int n = x->params ? x->params->n_dims : 0, m = y->params ? y->params->n_dims : 0;
    if (n != m) return differ(c, "%d and %d symbolic dims", n, m);
    for (int i = 0; i < n; i++) {
        const ext_row *s = exts_row(x->params, exts_dim(x->params, i)), *t = exts_row(y->params, exts_dim(y->params, i));
        if (strcmp(s->name, t->name) || s->lo != t->lo || s->hi != t->hi || s->divisor != t->divisor)
            return differ(c, "symbolic dims: %s and %s", s->name, t->name);
    }
    if (x->inputs.n != y->inputs.n) return differ(c, "%d and %d inputs", x->inputs.n, y->inputs.n);
    for (int i = 0; i < x->inputs.n; i++) {
        val vx = x->inputs.at[i], vy = y->inputs.at[i];
        const node *p = graph_get(x, vx), *q = graph_get(y, vy);
        if (!same_text(p->name, q->name)) return differ(c, "input %d: %s and %s", i, p->name, q->name);
        if (!equal_type(c, vx, vy)) return false;
        if (p->op == OP_state && !same_data(x, vx, p->data, q->data))
            return differ(c, "state %s starts with different values", p->name);
        c->to_y[vx] = vy, c->to_x[vy] = vx;
    }
    if (x->outputs.n != y->outputs.n) return differ(c, "%d and %d outputs", x->outputs.n, y->outputs.n);
    for (int i = 0; i < x->outputs.n; i++) {
        const output *o = &x->outputs.at[i], *p = &y->outputs.at[i];
        if (!same_text(o->name, p->name))
            return differ(c, "output %d: %s and %s", i, o->name ? o->name : "-", p->name ? p->name : "-");
        if (c->to_y[o->state] != p->state) return differ(c, "output %d updates different states", i);
        todo(c, o->v, p->v);
    }
    return true;
}
bool graph_equal(const graph *x, const graph *y, arena *a, const char **why) {
    cmp c = { .x = x, .y = y, .a = a, .why = why };
    if (why) *why = NULL;
    c.to_y = ARENA_ARRAY(a, val, x->nodes.n);
    c.to_x = ARENA_ARRAY(a, val, y->nodes.n);
    if (!equal_interface(&c)) return false;
    for (int i = 0; i < c.todo.n / 2; i++) { /* the first output is compared first */
        pair p = c.todo.at[i];
        c.todo.at[i] = c.todo.at[c.todo.n - 1 - i];
        c.todo.at[c.todo.n - 1 - i] = p;
    }
    while (c.todo.n) {
        pair p = c.todo.at[--c.todo.n];
        if (!equal_nodes(&c, p.x, p.y)) return false;
    }
    return true;
}
