/* import.c - a model to a graph: node after node, in the order of the file, which ONNX requires to be one of execution.
 *
 * In: a model that was read, options. Out: a graph, or every refusal at once. What is small and known is computed at import:
 * the node is built in a graph of its own and evaluated. Where sizes depend on inputs whose values the caller has, the import
 * is done again with these as constants. */
#include "import.h"
#include "tenon/tenon_ir.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- names to values ---- */

typedef struct scope_slot {
    const char *name;
    onnx_val *val;
} scope_slot;
struct onnx_scope {
    onnx_scope *outer;
    scope_slot *slots;
    size_t n, cap;
};

static size_t slot_of(const onnx_scope *s, const char *name) {
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *c = name; *c; c++) h = (h ^ (unsigned char)*c) * 0x100000001b3u;
    size_t i = (size_t)(h ^ h >> 29) & (s->cap - 1);
    while (s->slots[i].name && strcmp(s->slots[i].name, name)) i = (i + 1) & (s->cap - 1);
    return i;
}
static onnx_scope *scope_new(onnx_env *env, onnx_scope *outer) {
    onnx_scope *s = ONNX_NEW(env, onnx_scope, 1);
    *s = (onnx_scope){ .outer = outer, .cap = 64 };
    s->slots = ONNX_NEW(env, scope_slot, s->cap);
    return s;
}
static void scope_grow(onnx_env *env, onnx_scope *s) {
    onnx_scope old = *s;
    s->cap *= 4;
    s->slots = ONNX_NEW(env, scope_slot, s->cap);
    for (size_t i = 0; i < old.cap; i++)
        if (old.slots[i].name) s->slots[slot_of(s, old.slots[i].name)] = old.slots[i];
}
static void scope_set(onnx_env *env, onnx_scope *s, const char *name, onnx_val *v) {
    if (!*name) return;
    if (s->n * 2 >= s->cap) scope_grow(env, s);
    size_t i = slot_of(s, name);
    if (s->slots[i].name) onnx_fail(env, TN_ERR_PARSE, "%s: two values have the name '%s'", env->file, name);
    s->slots[i] = (scope_slot){ name, v };
    s->n++;
}
static onnx_val *scope_get(const onnx_scope *s, const char *name) {
    for (; s; s = s->outer) {
        size_t i = slot_of(s, name);
        if (s->slots[i].name) return s->slots[i].val;
    }
    return NULL;
}

onnx_val *onnx_named(onnx_call *c, const char *name, size_t n) {
    char *copy = onnx_new(c->im->env, n + 1, 1);
    return scope_get(c->im->scope, n ? memcpy(copy, name, n) : copy);
}

/* ---- refusals ---- */

struct onnx_noted {
    onnx_noted *next;
    tn_onnx_refusal r;
};

static void note(onnx_import *im, const char *op, const char *node, const char *reason) {
    onnx_noted *n = ONNX_NEW(im->env, onnx_noted, 1);
    n->r = (tn_onnx_refusal){ op, node, onnx_format(im->env, "%s", reason) };
    *im->last = n;
    im->last = &n->next;
    im->n_noted++;
}

static const char *node_name(onnx_import *im, const onnx_node *n) {
    if (n->name[0]) return onnx_format(im->env, "%s%s", im->path, n->name);
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i][0]) return onnx_format(im->env, "%s(%s)", im->path, n->out[i]);
    return onnx_format(im->env, "%s?", im->path);
}

/* ---- one node ---- */

static int opset_of(const onnx_import *im, const char *domain) {
    for (int i = 0; i < im->n_opsets; i++)
        if (!strcmp(im->opsets[i].domain, domain)) return im->opsets[i].version > 1000 ? 1000 : (int)im->opsets[i].version;
    return 0;
}

static const onnx_function *find_function(const onnx_import *im, const onnx_node *n) {
    for (int i = 0; i < im->m->n_functions; i++) {
        const onnx_function *fn = &im->m->functions[i];
        if (!strcmp(fn->name, n->op) && !strcmp(fn->domain, n->domain)) return fn;
    }
    return NULL;
}

/* Handlers that do not know of sizes that a run gives would take them for numbers. */
static void check_open(onnx_call *c, const onnx_val *v, int i) {
    if (c->row->flags & ROW_DIMS) return;
    if (v->kind == TN_ONNX_TENSOR && onnx_is_open(v->shape))
        onnx_refuse(c, "operand %d has a size that a run gives, which this op does not take", i);
    for (int k = 0; k < v->n_items; k++) check_open(c, v->items[k], i);
}

enum { NEWEST_OPSET = 28 };
static void check_call(onnx_call *c) {
    const onnx_row *r = c->row;
    if (!r) onnx_refuse(c, "this op is not known");
    if (!r->domain && (c->opset < 1 || c->opset > NEWEST_OPSET))
        onnx_refuse(c, "operator set %d: 1 to %d are known", c->opset, NEWEST_OPSET);
    if (c->n_in > 0 && (c->n_in < r->min_in || (r->max_in >= 0 && c->n_in > r->max_in))) onnx_refuse(c, "%d operands", c->n_in);
    for (int i = 0; i < c->n_in; i++) {
        const onnx_val *v = c->in[i];
        if (!v) continue;
        if (v->kind != TN_ONNX_TENSOR && !(r->flags & ROW_LISTS)) onnx_refuse(c, "a sequence or an optional as operand %d", i);
        bool fits = !onnx_elem_widened(v->elem) || r->flags & (ROW_MOVE | ROW_ANY) ||
                    (onnx_elem_wraps(v->elem) && r->flags & ROW_WRAP) || (onnx_elem_wraps(v->elem) && r->flags & ROW_ORDER);
        if (v->kind == TN_ONNX_TENSOR && !fits) onnx_refuse(c, "operands of %s", onnx_elem_name(v->elem));
        check_open(c, v, i);
    }
}

static void run_handler(void *arg) {
    onnx_call *c = arg;
    c->asked = 0;
    c->row->run(c);
    for (int i = 0; i < c->node->n_attrs; i++)
        if (i >= 64 || !(c->asked >> i & 1)) onnx_refuse(c, "attribute %s is not known", c->node->attrs[i].name);
    for (int k = 0; k < c->n_out; k++)
        if (onnx_wants(c, k) && !c->out[k]) onnx_refuse(c, "its result %d is not made", k);
    if (tn_graph_status(c->g)) onnx_refuse_graph(c);
}

static bool small_and_known(const onnx_call *c) {
    int64_t n = 0;
    if (c->row->flags & ROW_KEEP) return false;
    for (int i = 0; i < c->n_in; i++) {
        const onnx_val *v = c->in[i];
        if (v && (!v->data || v->n > TN_ONNX_MAX_FOLD - n)) return false;
        n += v ? v->n : 0;
    }
    return true;
}

/* Reads a result of the small graph, by the reference evaluator, or, where doubles do not hold it, in immediate mode. */
static bool read_result(onnx_call *c, tn_ir_eval *e, onnx_val *v) {
    tn_dtype t = onnx_elem_dtype(v->elem);
    void *data = onnx_new(c->im->env, (size_t)v->n + 1, tn_dtype_size(t));
    if (!e) {
        if (tn_tensor_read(v->t, data, tn_tensor_bytes(v->t))) return false;
    } else {
        int64_t n;
        const double *values = tn_ir_eval_values(e, v->t, &n);
        if (!values || n != v->n) return false;
        for (int64_t i = 0; i < n; i++) {
            if (t == TN_I64 && !(values[i] < 0x1p53 && values[i] > -0x1p53)) return false;
            tn_ir_store(t, data, i, values[i]);
        }
    }
    v->data = data;
    v->t = (tn_tensor){ 0 };
    return true;
}

static bool read_results(onnx_call *c, tn_ir_eval *e) {
    for (int k = 0; k < c->n_out; k++) {
        onnx_val *v = c->out[k];
        if (!v || (v->kind == TN_ONNX_TENSOR && v->data)) continue;
        if (v->kind != TN_ONNX_TENSOR || v->n > TN_ONNX_MAX_FOLD || !read_result(c, e, v)) return false;
    }
    return true;
}

/* Builds the node in a graph of its own and evaluates it. False: it goes into the model's graph. */
static bool fold_in(onnx_call *c, bool immediate) {
    tn_ctx *ctx = c->im->env->ctx;
    onnx_mark before = onnx_here(c->im->env);
    uint64_t needs = c->im->needs;
    bool ok = false;
    tn_ir_eval *e = NULL;
    c->g = immediate ? tn_graph_immediate(ctx, "fold") : tn_graph_new(ctx, "fold");
    c->folding = true;
    memset(c->out, 0, (size_t)c->n_out * sizeof *c->out);
    tn_status s = c->g ? onnx_try(c->im->env, run_handler, c) : TN_ERR_NOMEM;
    if (!s) {
        bool small = true;
        for (int k = 0; k < c->n_out; k++) small &= !c->out[k] || c->out[k]->n <= TN_ONNX_MAX_FOLD;
        if (small && !immediate) s = tn_ir_evaluate(c->g, NULL, 0, &e);
        if (small && !s) ok = read_results(c, e);
        if (tn_graph_status(c->g)) s = tn_graph_status(c->g);
    }
    tn_ir_eval_free(e);
    tn_graph_free(c->g);
    c->g = c->im->g;
    c->folding = false;
    if (s == TN_ERR_NOMEM) onnx_fail(c->im->env, s, "out of memory: %s", c->node->op);
    if (ok) return true;
    memset(c->out, 0, (size_t)c->n_out * sizeof *c->out);
    c->im->needs = needs;
    onnx_back(c->im->env, before);
    return false;
}

static bool fold_exactly(onnx_call *c) { return fold_in(c, false); }

static void run_node(void *arg) {
    onnx_call *c = arg;
    const onnx_function *fn = find_function(c->im, c->node);
    if (fn) {
        onnx_call_function(c, fn);
        return;
    }
    check_call(c);
    bool may = !(c->row->flags & (ROW_HOST | ROW_LISTS)), fold = may && small_and_known(c);
    if (fold && (fold_in(c, false) || fold_in(c, true))) return;
    if (may && onnx_fold_sizes(c, fold_exactly)) return;
    run_handler(c);
}

/* Operands by name. False when one of them was refused: then nothing is said of this node. */
static bool find_operands(onnx_call *c) {
    bool ok = true;
    while (c->n_in && !c->node->in[c->n_in - 1][0]) c->n_in--;
    for (int i = 0; i < c->n_in; i++) {
        const char *name = c->node->in[i];
        if (!*name) continue;
        c->in[i] = scope_get(c->im->scope, name);
        if (!c->in[i])
            onnx_fail(c->im->env, TN_ERR_PARSE, "%s: node %s needs '%s', which nothing before it makes", c->im->env->file,
                      node_name(c->im, c->node), name);
        ok &= !c->in[i]->refused;
    }
    return ok;
}

static void return_to(onnx_import *im, const onnx_import *before) {
    im->depth = before->depth, im->path = before->path, im->scope = before->scope;
    im->opsets = before->opsets, im->n_opsets = before->n_opsets;
}

tn_status onnx_attempt(onnx_call *c, void (*body)(void *arg), void *arg) {
    onnx_import *im = c->im;
    const onnx_import before = *im;
    tn_status s = onnx_try(im->env, body, arg);
    if (s && (s != TN_ERR_UNSUPPORTED || tn_graph_status(im->g))) onnx_again(im->env, s);
    if (!s) return s;
    return_to(im, &before);
    im->last = before.last, im->n_noted = before.n_noted;
    *im->last = NULL;
    return s;
}

static void import_node(onnx_import *im, const onnx_node *node) {
    if (++im->done > TN_ONNX_MAX_NODES)
        onnx_fail(im->env, TN_ERR_UNSUPPORTED, "%s: more than %d nodes", im->env->file, TN_ONNX_MAX_NODES);
    onnx_call c = { .im = im, .node = node, .g = im->g, .n_in = node->n_in, .n_out = node->n_out };
    c.in = ONNX_NEW(im->env, onnx_val *, node->n_in + 1);
    c.out = ONNX_NEW(im->env, onnx_val *, node->n_out + 1);
    c.row = im->find_row(node->domain, node->op);
    c.opset = opset_of(im, node->domain);
    tn_status s = TN_ERR_UNSUPPORTED;
    const onnx_import before = *im; /* where a jump out of a subgraph has to come back to */
    if (find_operands(&c) && !im->stopped) {
        s = onnx_try(im->env, run_node, &c);
        if (s == TN_ERR_NOMEM || s == TN_ERR_PARSE) onnx_again(im->env, s);
        if (s) {
            return_to(im, &before);
            note(im, onnx_format(im->env, "%s%s%s", node->domain, *node->domain ? "." : "", node->op), node_name(im, node),
                 tn_ctx_error(im->env->ctx));
        }
        if (tn_graph_status(im->g)) im->stopped = true;
    } else if (!c.row && !find_function(im, node)) {
        note(im, onnx_format(im->env, "%s%s%s", node->domain, *node->domain ? "." : "", node->op), node_name(im, node),
             "this op is not known");
    }
    for (int k = 0; k < c.n_out; k++) {
        if (s || !c.out[k]) c.out[k] = onnx_val_new(im, TN_ONNX_TENSOR, ELEM_NONE), c.out[k]->refused = true;
        scope_set(im->env, im->scope, node->out[k], c.out[k]);
    }
}

/* ---- subgraphs and functions ---- */

static onnx_val *known_value(onnx_import *im, const onnx_tensor *t) {
    onnx_val *v = onnx_val_new(im, TN_ONNX_TENSOR, t->elem);
    v->shape = t->shape;
    v->n = t->n;
    v->data = onnx_tensor_data(im->env, im->m, t);
    return v;
}

static void enter(onnx_call *c, onnx_import *kept, onnx_scope *outer, const char *where) {
    onnx_import *im = c->im;
    *kept = *im;
    if (im->depth >= TN_ONNX_MAX_DEPTH)
        onnx_refuse(c, "more than %d subgraphs or functions within each other", TN_ONNX_MAX_DEPTH);
    im->depth++;
    im->path = onnx_format(im->env, "%s/", where);
    im->scope = scope_new(im->env, outer);
}
static void leave(onnx_call *c, const onnx_import *kept) {
    return_to(c->im, kept);
    if (c->im->n_noted > kept->n_noted) onnx_refuse(c, "nodes in it are refused");
}

int onnx_body_outputs(onnx_call *c, const onnx_attr *body) {
    int counts[16];
    onnx_count(c->im->env, body->g, counts, 16);
    return counts[12];
}

/* Of many turns of a loop the first says what cannot be done. */
void onnx_inline(onnx_call *c, const onnx_attr *body, onnx_val **in, int n_in, onnx_val **out, int n_out) {
    onnx_import kept;
    onnx_graph g;
    onnx_env *env = c->im->env;
    if (!body || !body->g.at) onnx_refuse(c, "its subgraph is missing");
    onnx_read_graph(env, body->g, &g);
    if (g.n_inputs != n_in || g.n_outputs != n_out)
        onnx_refuse(c, "its subgraph has %d inputs and %d outputs, expected %d and %d", g.n_inputs, g.n_outputs, n_in, n_out);
    enter(c, &kept, c->im->scope, node_name(c->im, c->node));
    for (int i = 0; i < n_in; i++) scope_set(env, c->im->scope, g.inputs[i].name, in[i]);
    for (int i = 0; i < g.n_inits; i++) scope_set(env, c->im->scope, g.inits[i].name, known_value(c->im, &g.inits[i]));
    for (int i = 0; i < g.n_nodes; i++) import_node(c->im, &g.nodes[i]);
    for (int i = 0; i < n_out; i++) {
        out[i] = scope_get(c->im->scope, g.outputs[i].name);
        if (!out[i]) onnx_fail(env, TN_ERR_PARSE, "%s: nothing makes '%s' of a subgraph", env->file, g.outputs[i].name);
    }
    leave(c, &kept);
}

/* The node's attributes stand in for those that the function's nodes refer to; where neither is there, the default of the op.
 */
static onnx_node bind_attrs(onnx_call *c, const onnx_function *fn, const onnx_node *n) {
    onnx_node out = *n;
    out.attrs = ONNX_NEW(c->im->env, onnx_attr, n->n_attrs);
    out.n_attrs = 0;
    for (int i = 0; i < n->n_attrs; i++) {
        const onnx_attr *a = &n->attrs[i], *from = a;
        if (a->refers && *a->refers) {
            from = onnx_attr_find(c, a->refers);
            for (int k = 0; !from && k < fn->n_defaults; k++)
                if (!strcmp(fn->defaults[k].name, a->refers)) from = &fn->defaults[k];
        }
        if (!from) continue;
        out.attrs[out.n_attrs] = *from;
        out.attrs[out.n_attrs].refers = NULL;
        out.attrs[out.n_attrs++].name = a->name;
    }
    return out;
}

void onnx_call_function(onnx_call *c, const onnx_function *fn) {
    onnx_import kept;
    onnx_import *im = c->im;
    enter(c, &kept, NULL, node_name(im, c->node));
    im->opsets = fn->opsets, im->n_opsets = fn->n_opsets;
    for (int i = 0; i < c->n_in && i < fn->n_in; i++)
        if (c->in[i]) scope_set(im->env, im->scope, fn->in[i], c->in[i]);
    for (int i = 0; i < fn->n_nodes; i++) {
        onnx_node *n = ONNX_NEW(im->env, onnx_node, 1);
        *n = bind_attrs(c, fn, &fn->nodes[i]);
        for (int k = 0; k < n->n_in; k++) { /* an input of the function that is not given is none of its nodes' either */
            bool absent = false;
            for (int j = 0; j < fn->n_in; j++) absent |= !strcmp(fn->in[j], n->in[k]) && !onnx_has(c, j);
            if (absent) n->in = memcpy(ONNX_NEW(im->env, const char *, n->n_in), n->in, (size_t)n->n_in * sizeof *n->in);
            if (absent) n->in[k] = "";
        }
        import_node(im, n);
    }
    for (int k = 0; k < c->n_out && k < fn->n_out; k++) c->out[k] = scope_get(im->scope, fn->out[k]);
    leave(c, &kept);
}

/* ---- inputs, weights, outputs ---- */

static const tn_onnx_value *find_value(const onnx_import *im, const char *name) {
    for (int i = 0; i < im->opts.n_values; i++)
        if (im->opts.values[i].name && !strcmp(im->opts.values[i].name, name)) return &im->opts.values[i];
    return NULL;
}

/* A named dim's size: given as such, or by the shape of any input's value. */
static int64_t size_of(const onnx_import *im, const char *symbol) {
    for (int i = 0; i < im->opts.n_dims; i++)
        if (im->opts.dims[i].name && !strcmp(im->opts.dims[i].name, symbol)) return im->opts.dims[i].size;
    for (int i = 0; i < im->m->n_inputs; i++) {
        const tn_onnx_port *p = &im->m->graph.inputs[im->m->input_at[i]];
        const tn_onnx_value *v = find_value(im, p->name);
        for (int k = 0; v && v->shape.rank == p->rank && k < p->rank; k++)
            if (p->symbol[k] && !strcmp(p->symbol[k], symbol)) return v->shape.dim[k];
    }
    return -1;
}

/* What the caller says of a dim by its place, as "x[0]"; or -1. */
static int64_t size_at(const onnx_import *im, const char *place) {
    for (int i = 0; i < im->opts.n_dims; i++)
        if (im->opts.dims[i].name && !strcmp(im->opts.dims[i].name, place)) return im->opts.dims[i].size;
    return -1;
}

/* Graphs are written as text: names of dims are words there. */
static char *word_of(onnx_env *env, const char *name) {
    char *word = onnx_format(env, "%s%s", *name >= '0' && *name <= '9' ? "_" : "", name);
    for (char *c = word; *c; c++)
        if (!((*c | 32) >= 'a' && (*c | 32) <= 'z') && !(*c >= '0' && *c <= '9')) *c = '_';
    return word;
}
static const tn_onnx_range *find_range(const onnx_import *im, const char *name) {
    for (int i = 0; name && i < im->opts.n_ranges; i++)
        if (im->opts.ranges[i].name && !strcmp(im->opts.ranges[i].name, name)) return &im->opts.ranges[i];
    return NULL;
}
static int64_t dim_of(onnx_import *im, const tn_onnx_range *r) {
    im->seen[r - im->opts.ranges] = true;
    return tn_dim(im->g, word_of(im->env, r->name), r->lo, r->hi, r->multiple_of);
}
/* "past + seq", "past + 1": names with ranges or sizes, and numbers, as exporters write them. -1: it is no such sum. */
static int64_t open_sum(onnx_import *im, const char *text) {
    int64_t sum = 0;
    bool any = false;
    for (const char *at = text, *end; at; at = end) {
        end = strchr(at, '+');
        size_t n = end ? (size_t)(end++ - at) : strlen(at);
        while (n && *at == ' ') at++, n--;
        while (n && at[n - 1] == ' ') n--;
        char *name = onnx_format(im->env, "%.*s", (int)n, at);
        const tn_onnx_range *r = find_range(im, name);
        bool number = n && n < 10 && strspn(name, "0123456789") == n;
        int64_t term = r ? dim_of(im, r) : number ? atoll(name) : size_of(im, name);
        if (!r && term < 0) return -1;
        any |= r != NULL;
        sum = tn_dim_add(im->g, sum, term);
    }
    return any ? sum : -1;
}
/* The dim of axis i where the caller gives a range for it, by its place or its name; else -1. size: of the value, or -1. */
static int64_t open_dim(onnx_import *im, const tn_onnx_port *p, int i, const char *place, int64_t size) {
    const tn_onnx_range *r = find_range(im, place);
    if (!r && p->rank > i && p->dim[i] < 0) r = find_range(im, p->symbol[i]);
    bool sum = !r && im->opts.n_ranges && p->rank > i && p->dim[i] < 0 && p->symbol[i] && strchr(p->symbol[i], '+');
    if (!r && !sum) return -1;
    int64_t by = r ? r->multiple_of : 1, dim = r ? dim_of(im, r) : open_sum(im, p->symbol[i]);
    if (tn_graph_status(im->g)) onnx_fail(im->env, TN_ERR_INVAL, "input '%s': %s", p->name, tn_ctx_error(im->env->ctx));
    if (r && size >= 0 && (size < r->lo || size > r->hi || size % by))
        onnx_fail(im->env, TN_ERR_INVAL, "dim %d of input '%s' is %lld: expected %lld to %lld, a multiple of %lld", i, p->name,
                  (long long)size, (long long)r->lo, (long long)r->hi, (long long)by);
    return dim;
}
/* Each range is of a dim, and no two are one in the graph. */
static void check_ranges(onnx_import *im) {
    im->seen = ONNX_NEW(im->env, bool, im->opts.n_ranges + 1);
    for (int i = 0; i < im->opts.n_ranges; i++) {
        const char *name = im->opts.ranges[i].name;
        bool twice = !name || size_at(im, name) >= 0;
        for (int k = 0; !twice && k < i; k++)
            twice = !strcmp(word_of(im->env, name), word_of(im->env, im->opts.ranges[k].name));
        if (twice) onnx_fail(im->env, TN_ERR_INVAL, "the range of dim '%s' is not all that is said of it", name ? name : "");
    }
}

static bool input_shape(onnx_import *im, const tn_onnx_port *p, const tn_onnx_value *v, tn_shape *out) {
    char text[512], place[TN_ONNX_MAX_NAME + 16];
    bool same = !v || p->rank < 0 || p->rank == v->shape.rank;
    *out = (tn_shape){ .rank = v ? v->shape.rank : p->rank };
    if (out->rank < 0) note(im, "input", p->name, "its rank is not said: give a value of it (tn_onnx_opts.values)");
    for (int i = 0; same && i < out->rank; i++) {
        snprintf(place, sizeof place, "%s[%d]", p->name, i);
        int64_t size = v ? v->shape.dim[i] : size_at(im, place);
        out->dim[i] = v || size < 0 ? open_dim(im, p, i, place, size) : size;
        if (onnx_is_dim(out->dim[i])) continue;
        if (v) {
            same = i >= p->rank || p->dim[i] < 0 || p->dim[i] == size;
            out->dim[i] = size;
            continue;
        }
        if (out->dim[i] < 0) out->dim[i] = p->dim[i] >= 0 ? p->dim[i] : p->symbol[i] ? size_of(im, p->symbol[i]) : -1;
        if (out->dim[i] >= 0) continue;
        if (p->symbol[i])
            snprintf(text, sizeof text, "dim %d is \"%s\": give its size (tn_onnx_opts.dims; tenon --dim '%s=1')", i,
                     p->symbol[i], p->symbol[i]);
        else
            snprintf(text, sizeof text, "dim %d is not said: give its size (tn_onnx_opts.dims; tenon --dim '%.200s[%d]=1')", i,
                     p->name, i);
        note(im, "input", p->name, text);
        return false;
    }
    if (!same) onnx_fail(im->env, TN_ERR_INVAL, "the value of input '%s' has another shape than the model says", p->name);
    return out->rank >= 0;
}

static onnx_val *tensor_input(onnx_import *im, const char *name, const tn_onnx_port *p, int elem, const tn_onnx_value *v,
                              bool constant) {
    onnx_val *out = onnx_val_new(im, TN_ONNX_TENSOR, elem);
    out->refused = true;
    if (p->dtype == TN_N_DTYPES) {
        note(im, "input", name, onnx_format(im->env, "a tensor of %s", p->type));
        return out;
    }
    if (!input_shape(im, p, v, &out->shape)) return out;
    if (v && v->dtype != p->dtype)
        onnx_fail(im->env, TN_ERR_INVAL, "the value of input '%s' is %s, expected %s", name, tn_dtype_name(v->dtype),
                  tn_dtype_name(p->dtype));
    out->n = onnx_count_of(out->shape);
    out->refused = false;
    if (v && constant && !onnx_is_open(out->shape)) {
        out->data = out->n ? v->data : "";
        return out;
    }
    out->t = tn_input(im->g, name, p->dtype, out->shape);
    if (!out->t.id) onnx_fail(im->env, tn_graph_status(im->g), "input '%s': %s", name, tn_ctx_error(im->env->ctx));
    if (im->opts.immediate) {
        if (!v) onnx_fail(im->env, TN_ERR_INVAL, "immediate mode needs the value of input '%s'", name);
        if (tn_tensor_write(out->t, v->data, tn_tensor_bytes(out->t)))
            onnx_fail(im->env, TN_ERR_INVAL, "input '%s': %s", name, tn_ctx_error(im->env->ctx));
    }
    return out;
}

static onnx_val *list_input(onnx_import *im, const tn_onnx_port *p, int elem, bool constant) {
    onnx_val *list = onnx_val_new(im, p->kind, elem);
    tn_onnx_port item = *p;
    if (p->kind == TN_ONNX_OTHER || !im->opts.values) {
        note(im, "input", p->name, p->kind == TN_ONNX_OTHER ? "its type" : "a sequence or an optional needs its values");
        list->refused = true;
        return list;
    }
    list->items = ONNX_NEW(im->env, onnx_val *, im->opts.n_values + 1);
    for (int i = 0; i < im->opts.n_values; i++) {
        char *name =
            p->kind != TN_ONNX_OPTIONAL ? onnx_format(im->env, "%s[%d]", p->name, i) : onnx_format(im->env, "%s", p->name);
        const tn_onnx_value *v = find_value(im, name);
        if (!v || (i && p->kind == TN_ONNX_OPTIONAL)) break;
        item.name = name;
        list->items[list->n_items++] = tensor_input(im, name, &item, elem, v, constant);
    }
    if (p->kind == TN_ONNX_OPTIONAL_SEQUENCE) { /* what is empty is an optional without a value */
        onnx_val *optional = onnx_val_new(im, TN_ONNX_OPTIONAL, elem);
        optional->items = ONNX_NEW(im->env, onnx_val *, 1);
        list->kind = TN_ONNX_SEQUENCE;
        if (list->n_items) optional->items[optional->n_items++] = list;
        return optional;
    }
    return list;
}

static void add_inputs(onnx_import *im) {
    onnx_graph *g = &im->m->graph;
    check_ranges(im);
    for (int i = 0; i < im->m->n_inputs; i++) {
        const tn_onnx_port *p = &g->inputs[im->m->input_at[i]];
        int elem = g->in_elem[im->m->input_at[i]];
        uint64_t bit = (uint64_t)1 << (i < 63 ? i : 63);
        bool constant = im->opts.constant_inputs || im->constants & bit;
        onnx_val *v = p->kind == TN_ONNX_TENSOR ? tensor_input(im, p->name, p, elem, find_value(im, p->name), constant)
                                                : list_input(im, p, elem, constant);
        im->m->input_constant[i] = constant && (p->kind != TN_ONNX_TENSOR || v->data);
        if (!v->data) v->deps = bit;
        for (int k = 0; k < v->n_items; k++) {
            onnx_val *item = v->items[k];
            item->deps = item->data ? 0 : bit;
            for (int j = 0; j < item->n_items; j++) item->items[j]->deps = item->items[j]->data ? 0 : bit;
        }
        scope_set(im->env, im->scope, p->name, v);
    }
    for (int i = 0; i < im->opts.n_ranges; i++)
        if (!im->seen[i]) onnx_fail(im->env, TN_ERR_INVAL, "no input has a dim '%s'", im->opts.ranges[i].name);
}

static void add_weights(onnx_import *im) {
    const onnx_graph *g = &im->m->graph;
    for (int i = 0; i < g->n_inits; i++) {
        const onnx_tensor *t = &g->inits[i];
        onnx_val *v = known_value(im, t);
        if (im->opts.parameters && onnx_is_float(t->elem) && t->shape.rank && t->n && *t->name) {
            v->t = tn_param(im->g, t->name, onnx_elem_dtype(t->elem), t->shape, v->data);
            v->data = NULL;
        }
        scope_set(im->env, im->scope, t->name, v);
    }
}

static void add_output(onnx_import *im, const char *name, onnx_val *v) {
    onnx_call c = { .im = im, .g = im->g };
    if (v->kind == TN_ONNX_TENSOR)
        tn_output(onnx_val_tensor(&c, v), name);
    else if (v->kind == TN_ONNX_OPTIONAL && v->n_items)
        add_output(im, name, v->items[0]);
    for (int i = 0; v->kind == TN_ONNX_SEQUENCE && i < v->n_items; i++)
        tn_output(onnx_val_tensor(&c, v->items[i]), onnx_format(im->env, "%s[%d]", name, i));
    if (tn_graph_status(im->g)) onnx_fail(im->env, tn_graph_status(im->g), "output '%s': %s", name, tn_ctx_error(im->env->ctx));
}

static void add_outputs(onnx_import *im) {
    const onnx_graph *g = &im->m->graph;
    for (int i = 0; i < g->n_outputs; i++) {
        onnx_val *v = scope_get(im->scope, g->outputs[i].name);
        if (!v) onnx_fail(im->env, TN_ERR_PARSE, "%s: nothing makes the output '%s'", im->env->file, g->outputs[i].name);
        if (v->refused) continue;
        if (v->kind == TN_ONNX_TENSOR && g->out_elem[i] && g->out_elem[i] != v->elem)
            onnx_fail(im->env, TN_ERR_UNSUPPORTED, "%s: output '%s' is %s, but the model says %s", im->env->file,
                      g->outputs[i].name, onnx_elem_name(v->elem), onnx_elem_name(g->out_elem[i]));
        if (!im->n_noted) add_output(im, g->outputs[i].name, v);
    }
}

/* ---- the whole ---- */

static void import_all(void *arg) {
    onnx_import *im = arg;
    im->scope = scope_new(im->env, NULL);
    im->last = &im->noted;
    im->path = "";
    im->opsets = im->m->opsets, im->n_opsets = im->m->n_opsets;
    add_inputs(im);
    add_weights(im);
    for (int i = 0; i < im->m->graph.n_nodes; i++) import_node(im, &im->m->graph.nodes[i]);
    add_outputs(im);
}

static int64_t known_inputs(const onnx_import *im) {
    uint64_t bits = 0;
    for (int i = 0; i < im->m->n_inputs; i++) {
        const tn_onnx_port *p = &im->m->graph.inputs[im->m->input_at[i]];
        if (find_value(im, p->name) || (p->kind != TN_ONNX_TENSOR && im->opts.n_values))
            bits |= (uint64_t)1 << (i < 63 ? i : 63);
    }
    return (int64_t)bits;
}

static tn_status list_refused(onnx_import *im) {
    tn_onnx_model *m = im->m;
    char text[2900];
    int at = 0, shown = 0;
    m->refused = ONNX_NEW(im->env, tn_onnx_refusal, im->n_noted);
    for (onnx_noted *n = im->noted; n; n = n->next) m->refused[m->n_refused++] = n->r;
    at += snprintf(text, sizeof text, "%.256s: %d of its nodes and inputs cannot be imported:", im->env->file, im->n_noted);
    for (; shown < m->n_refused && at < 2500; shown++)
        at += snprintf(text + at, sizeof text - (size_t)at, "\n  %.60s %.100s: %.200s", m->refused[shown].op,
                       m->refused[shown].node, m->refused[shown].reason);
    if (shown < m->n_refused) at += snprintf(text + at, sizeof text - (size_t)at, "\n  and %d more", m->n_refused - shown);
    for (int i = 0, any = 0; i < m->n_inputs && i < 63 && at < 2800; i++)
        if (im->needs >> i & 1)
            at += snprintf(text + at, sizeof text - (size_t)at, "%s'%.40s'",
                           any++ ? ", " : "\n  sizes depend on the values of ", m->graph.inputs[m->input_at[i]].name);
    return tn_ctx_fail(im->env->ctx, TN_ERR_UNSUPPORTED, text);
}

static void list_body(void *arg) { (void)list_refused(arg); }

static tn_status import_once(onnx_import *im) {
    tn_onnx_model *m = im->m;
    onnx_release(&m->work);
    m->refused = NULL, m->n_refused = 0;
    im->g = im->opts.immediate ? tn_graph_immediate(im->env->ctx, *m->graph.name ? m->graph.name : "onnx")
                               : tn_graph_new(im->env->ctx, *m->graph.name ? m->graph.name : "onnx");
    if (!im->g) return tn_ctx_fail(im->env->ctx, TN_ERR_NOMEM, "out of memory: a graph");
    tn_status s = onnx_try(im->env, import_all, im);
    if (!s && im->n_noted) {
        s = onnx_try(im->env, list_body, im);
        if (!s) s = TN_ERR_UNSUPPORTED;
    }
    if (s) tn_graph_free(im->g);
    return s;
}

tn_status onnx_import_model(tn_onnx_model *m, const tn_onnx_opts *opts, onnx_finder *find_row, tn_graph **out) {
    tn_onnx_opts o = TN_ONNX_DEFAULTS;
    if (opts) memcpy(&o, opts, opts->struct_size < sizeof o ? opts->struct_size : sizeof o);
    if (!out || (o.n_dims && !o.dims) || (o.n_values && !o.values) || (o.n_ranges && !o.ranges))
        return tn_ctx_fail(m->env.ctx, TN_ERR_INVAL, "tn_onnx_import: an argument is NULL");
    *out = NULL;
    m->work.file = m->env.file;
    m->work.base = m->env.base;
    m->work.budget = TN_ONNX_MEMORY + 4 * m->bytes.n;
    uint64_t constants = 0;
    for (int turn = 0;; turn++) {
        onnx_import im = { .m = m, .env = &m->work, .opts = o, .constants = constants, .find_row = find_row };
        tn_status s = import_once(&im);
        uint64_t more = im.needs & (uint64_t)known_inputs(&im) & ~constants;
        if (!s) *out = im.g;
        if (s != TN_ERR_UNSUPPORTED || !more || turn == 8) return s;
        constants |= more;
    }
}
