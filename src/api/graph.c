/* graph.c - graphs as objects: making, freeing, printing, parsing, checking, and how every builder call runs and fails.
 *
 * In: calls from outside, with any arguments. Out: nodes in g->ir, or the graph's sticky error. A graph owns one arena with
 * everything in it, and the buffers of immediate mode; scratch of one call is in an arena of that call. */
#include "api/api.h"
#include "ir/kernel.h"
#include "run/run.h"
#include "tenon/tenon_ir.h"

#include <stdio.h>

/* ---- error texts ---- */

/* A bounded text: errors are written without allocating, since one of them is "out of memory". */
typedef struct line {
    char *s;
    size_t n, cap;
} line;
static void line_vaddf(line *l, const char *fmt, va_list ap) {
    if (l->n + 1 >= l->cap) return;
    int n = vsnprintf(l->s + l->n, l->cap - l->n, fmt, ap);
    l->n += n < 0 ? 0 : (size_t)n;
    if (l->n >= l->cap) l->n = l->cap - 1;
}
static void PRINTF_LIKE(2, 3) line_addf(line *l, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    line_vaddf(l, fmt, ap);
    va_end(ap);
}

static void line_add_tensor(line *l, const tn_graph *g, tn_tensor x) {
    if (!x.graph || !x.id || x.id >= (uint32_t)x.graph->ir->nodes.n) {
        line_addf(l, "?");
        return;
    }
    const graph *ir = x.graph->ir;
    const node *n = graph_get(ir, x.id);
    if (x.graph != g) line_addf(l, "@%.64s:", ir->name ? ir->name : "");
    if (n->name) line_addf(l, "%.64s ", n->name);
    line_addf(l, "%s[", dtype_name((tn_dtype)n->dtype));
    for (int i = 0; i < n->rank; i++) {
        int64_t d = n->dims[i];
        const char *comma = i ? "," : "";
        if (d >= 0)
            line_addf(l, "%s%lld", comma, (long long)d);
        else
            line_addf(l, "%s%.64s", comma, graph_dims_text(ir, ir->a, 1, &d));
    }
    line_addf(l, "]");
}

static void line_add_call(line *l, const tn_graph *g, const call *c) {
    enum { SHOWN = 8 };
    if (g->ir->here) line_addf(l, "%.256s: ", g->ir->here);
    line_addf(l, "%s(", c->name);
    int n = c->n_in + c->n_more;
    for (int i = 0; i < n && i < SHOWN; i++) {
        if (i) line_addf(l, ", ");
        line_add_tensor(l, g, i < c->n_in ? c->in[i] : c->more[i - c->n_in]);
    }
    if (n > SHOWN) line_addf(l, ", ... %d more", n - SHOWN);
    line_addf(l, "): ");
}

enum { MAX_LATER = 19 };
/* A further error: a line after those before, or, where there is no room, nothing. */
static void add_later(tn_graph *g, const err *e) {
    err *all = &g->later;
    size_t used = all->code ? strlen(all->text) : 0, n = strlen(e->text);
    if (g->n_later++ >= MAX_LATER || used + n + 2 > sizeof all->text) return;
    if (used) all->text[used++] = '\n';
    memcpy(all->text + used, e->text, n + 1);
    all->code = g->err.code;
}

tn_status api_fail(tn_graph *g, const call *c, tn_status code, const char *fmt, ...) {
    err e = { .code = code };
    line l = { e.text, 0, sizeof e.text };
    line_add_call(&l, g, c);
    va_list ap;
    va_start(ap, fmt);
    line_vaddf(&l, fmt, ap);
    va_end(ap);
    if (g->err.code) {
        add_later(g, &e);
        return g->err.code;
    }
    g->err = e;
    return api_report(g->ctx, &g->err);
}

tn_tensor tn_graph_fail(tn_graph *g, tn_status code, const char *text) {
    if (g && !g->err.code) {
        err_set(&g->err, code ? code : TN_ERR_INVAL, "%s%s%s", g->ir->here ? g->ir->here : "", g->ir->here ? ": " : "",
                text ? text : "");
        api_report(g->ctx, &g->err);
    }
    return (tn_tensor){ g, 0 };
}

/* ---- running one builder ---- */

tn_status api_try(guard *gd, void (*fn)(void *arg), void *arg) {
    if (!GUARD_TRY(gd)) return gd->err.code;
    fn(arg);
    return TN_OK;
}

/* The op's rule names its op and operands; when they are those of the call, once is enough. */
static const char *without_prefix(const call *c, const char *text) {
    const char *op = c->name + strlen("tn_"), *end = strstr(text, "): ");
    size_t n = strlen(op);
    return end && strncmp(text, op, n) == 0 && text[n] == '(' ? end + 3 : text;
}

typedef struct building {
    tn_graph *g;
    const call *c;
    build_fn fn;
    void *args;
    val out;
} building;

val api_result(const tn_graph *g, val v) {
    if (!g->immediate || v >= (val)g->values.n) return v;
    const node *n = graph_get(g->ir, v);
    if (n->op != OP_input && n->op != OP_state) return v;
    return graph_add(g->ir, &(spec){ .op = OP_reshape, .in = &v, .n_in = 1, .rank = n->rank, .dims = n->dims });
}

static void build_guarded(void *arg) {
    building *b = arg;
    enum { SMALL = 8 };
    val small[SMALL], *in = small;
    int n = b->c->n_in + b->c->n_more;
    if (n > SMALL) in = ARENA_ARRAY(&b->g->arena, val, n);
    for (int i = 0; i < b->c->n_in; i++) in[i] = b->c->in[i].id;
    for (int i = 0; i < b->c->n_more; i++) in[b->c->n_in + i] = b->c->more[i].id;
    for (int i = 0; i < n; i++) in[i] = api_capture(b->g, in[i]);
    b->out = b->fn(b->g->ir, in, b->args);
    if (!b->c->same) b->out = api_result(b->g, b->out);
}

static bool check_operand(tn_graph *g, const call *c, tn_tensor x, int index) {
    if (x.graph == g && x.id && x.id < (uint32_t)g->ir->nodes.n) return true;
    if (!x.graph)
        api_fail(g, c, TN_ERR_INVAL, "operand %d is not a tensor: it belongs to no graph", index + 1);
    else if (x.graph != g)
        api_fail(g, c, TN_ERR_INVAL, "operand %d belongs to another graph", index + 1);
    else
        api_fail(g, c, TN_ERR_INVAL, "operand %d is not a tensor of this graph (id %u)", index + 1, (unsigned)x.id);
    return false;
}

/* Whether the first error is one of arguments: then builders whose operands are there are still checked, for tn_graph_check. */
static bool is_mistake(const tn_graph *g) {
    tn_status code = g->err.code;
    return !g->immediate && (code == TN_ERR_INVAL || code == TN_ERR_SHAPE || code == TN_ERR_DTYPE);
}
static bool any_poisoned(const tn_graph *g, const call *c) {
    bool found = false;
    for (int i = 0; i < c->n_in; i++) found |= c->in[i].graph == g && !c->in[i].id;
    for (int i = 0; i < c->n_more; i++) found |= c->more[i].graph == g && !c->more[i].id;
    return found;
}

tn_tensor api_build(tn_graph *g, const call *c, build_fn fn, void *args) {
    for (int i = 0; !g && i < c->n_in; i++) g = c->in[i].graph;
    for (int i = 0; !g && i < c->n_more; i++) g = c->more[i].graph;
    tn_tensor poison = { g, 0 };
    if (!g || (g->err.code && !is_mistake(g))) return poison;
    if (g->err.code && any_poisoned(g, c)) return poison;
    for (int i = 0; i < c->n_in; i++)
        if (!check_operand(g, c, c->in[i], i)) return poison;
    for (int i = 0; i < c->n_more; i++)
        if (!check_operand(g, c, c->more[i], c->n_in + i)) return poison;
    building b = { g, c, fn, args, 0 };
    if (api_try(&g->gd, build_guarded, &b)) {
        api_fail(g, c, g->gd.err.code, "%s", without_prefix(c, g->gd.err.text));
        return poison;
    }
    if (g->err.code) return poison; /* it was called to be checked */
    if (g->immediate && immediate_graph_update(g)) {
        err e = g->ctx->err; /* a copy: api_fail writes there */
        api_fail(g, c, e.code, "%s", e.text);
        return poison;
    }
    return (tn_tensor){ g, b.out };
}

/* ---- making and freeing ---- */

static tn_graph *graph_shell(tn_ctx *ctx) {
    tn_graph *g = mem_alloc(ctx->mem, sizeof *g);
    if (!g) {
        err_set(&ctx->err, TN_ERR_NOMEM, "out of memory: a graph of %zu bytes", sizeof *g);
        return NULL;
    }
    g->ctx = ctx;
    arena_init(&g->arena, ctx->mem, &g->gd);
    return g;
}

typedef struct making {
    tn_graph *g;
    const char *name, *text, *file;
    size_t n_text;
    bool immediate;
    const char *device;
    const tn_graph *of; /* for these sizes */
    const tn_ir_size *sizes;
    int n_sizes;
} making;
static graph *make_at(const making *m) {
    const exts *t = m->of->ir->params;
    int64_t *values = ARENA_ARRAY(&m->g->arena, int64_t, t ? t->n_dims + 1 : 1);
    for (int d = 0; t && d < t->n_dims; d++) {
        const ext_row *r = exts_row(t, exts_dim(t, d));
        int i = 0;
        while (i < m->n_sizes && strcmp(m->sizes[i].name, r->name)) i++;
        if (i == m->n_sizes) guard_fail(&m->g->gd, TN_ERR_INVAL, "tn_ir_at: dim %s has no size", r->name);
        values[d] = m->sizes[i].size;
    }
    return graph_at(m->of->ir, values, &m->g->arena);
}
static void make_guarded(void *arg) {
    making *m = arg;
    m->g->immediate = m->immediate;
    if (m->device) m->g->device = arena_strdup(&m->g->arena, m->device);
    m->g->ir = m->of     ? make_at(m)
               : m->text ? graph_parse(&m->g->arena, m->text, m->n_text, m->file)
                         : graph_make(&m->g->arena, m->name);
}
static tn_graph *graph_from(tn_ctx *ctx, making m) {
    ctx_enter(ctx);
    if (!(m.g = graph_shell(ctx))) return NULL;
    if (api_try(&m.g->gd, make_guarded, &m)) {
        api_report(ctx, &m.g->gd.err);
        tn_graph_free(m.g);
        return NULL;
    }
    return m.g;
}

tn_graph *tn_graph_new(tn_ctx *ctx, const char *name) {
    if (!ctx) return NULL;
    return graph_from(ctx, (making){ .name = name && *name ? name : "graph" });
}
tn_graph *tn_graph_immediate(tn_ctx *ctx, const char *name) { return tn_graph_immediate_on(ctx, name, NULL); }
tn_graph *tn_graph_immediate_on(tn_ctx *ctx, const char *name, const char *on) {
    if (!ctx) return NULL;
    return graph_from(ctx, (making){ .name = name && *name ? name : "graph", .immediate = true, .device = on });
}
tn_graph *tn_graph_parse(tn_ctx *ctx, const char *text, size_t n_text, const char *file) {
    if (!ctx) return NULL;
    if (!text) {
        err_set(&ctx->err, TN_ERR_INVAL, "tn_graph_parse: text is NULL");
        return NULL;
    }
    return graph_from(ctx, (making){ .text = text, .n_text = n_text, .file = file ? file : "text" });
}

tn_graph *tn_ir_at(const tn_graph *g, const tn_ir_size *sizes, int n) {
    if (!g) return NULL;
    if (!g->err.code && n >= 0 && (sizes || !n)) {
        tn_graph *at = graph_from(g->ctx, (making){ .of = g, .sizes = sizes, .n_sizes = n });
        if (at) at->seed = g->seed;
        return at;
    }
    if (g->err.code)
        api_report(g->ctx, &g->err);
    else
        err_set(&g->ctx->err, TN_ERR_INVAL, "tn_ir_at: a NULL argument");
    return NULL;
}

void tn_graph_free(tn_graph *g) {
    if (!g) return;
    immediate_free(g->imm); /* first: what it queued may use the values */
    for (int i = 0; i < g->values.n; i++)
        if (g->values.at[i].buf && !g->values.at[i].shared) g->dev->api->free(g->dev, g->values.at[i].buf);
    arena_fini(&g->arena);
    mem_free(g->ctx->mem, g, sizeof *g);
}

tn_status tn_graph_status(const tn_graph *g) { return g ? g->err.code : TN_ERR_INVAL; }
tn_ctx *tn_graph_ctx(const tn_graph *g) { return g ? g->ctx : NULL; }
void tn_graph_at(tn_graph *g, const char *where) {
    if (g) g->ir->here = where;
}

void tn_graph_set_seed(tn_graph *g, uint64_t seed) {
    if (g) g->seed = seed;
}
uint64_t tn_graph_seed(const tn_graph *g) { return g ? g->seed : 0; }
static int find_state(const tn_graph *g, int i, val *out) { /* how many there are up to number i */
    int n = 0;
    for (int k = 0; k < g->ir->inputs.n; k++)
        if (graph_get(g->ir, g->ir->inputs.at[k])->op == OP_state && n++ == i) *out = g->ir->inputs.at[k];
    return n;
}
int tn_graph_n_states(const tn_graph *g) {
    val none = 0;
    return g && !g->err.code ? find_state(g, -1, &none) : 0;
}
tn_tensor tn_graph_state(tn_graph *g, int i) {
    val v = 0;
    if (g && !g->err.code && i >= 0) find_state(g, i, &v);
    return (tn_tensor){ g, v };
}
int tn_graph_n_params(const tn_graph *g) { return g && !g->err.code ? g->params.n : 0; }
tn_tensor tn_graph_param(tn_graph *g, int i) {
    bool there = g && !g->err.code && i >= 0 && i < g->params.n;
    return (tn_tensor){ g, there ? g->params.at[i] : 0 };
}

/* ---- text ---- */

typedef struct listing {
    const graph *ir;
    str text;
    arena scratch;
    int problems;
} listing;
static void print_guarded(void *arg) {
    listing *l = arg;
    str_init(&l->text, &l->scratch);
    graph_print(l->ir, &l->text);
}
static void check_guarded(void *arg) {
    listing *l = arg;
    str_init(&l->text, &l->scratch);
    l->problems = graph_check(l->ir, &l->text);
}

tn_status tn_graph_print(const tn_graph *g, char **out_text) {
    if (out_text) *out_text = NULL;
    if (!g) return TN_ERR_INVAL;
    if (!out_text) return err_set(&g->ctx->err, TN_ERR_INVAL, "tn_graph_print: out_text is NULL");
    if (g->err.code) return api_report(g->ctx, &g->err);
    listing l = { .ir = g->ir };
    arena_init(&l.scratch, g->ctx->mem, g->arena.gd);
    tn_status code = api_try(g->arena.gd, print_guarded, &l);
    if (code)
        api_report(g->ctx, &g->arena.gd->err);
    else if (!(*out_text = mem_strdup(g->ctx->mem, l.text.s)))
        code = err_set(&g->ctx->err, TN_ERR_NOMEM, "out of memory: a listing of %zu bytes", l.text.n);
    arena_fini(&l.scratch);
    return code;
}

tn_status tn_graph_check(const tn_graph *g) {
    if (!g) return TN_ERR_INVAL;
    if (g->err.code) return err_set(&g->ctx->err, g->err.code, "%s%s%s", g->err.text, g->later.code ? "\n" : "", g->later.text);
    listing l = { .ir = g->ir };
    arena_init(&l.scratch, g->ctx->mem, g->arena.gd);
    tn_status code = api_try(g->arena.gd, check_guarded, &l);
    if (code)
        api_report(g->ctx, &g->arena.gd->err);
    else if (l.problems)
        code = err_set(&g->ctx->err, TN_ERR_INVAL, "%s", l.text.s);
    arena_fini(&l.scratch);
    return code;
}

/* ---- tensors ---- */

static const node *node_of(tn_tensor x) {
    if (!x.graph || !x.id || x.id >= (uint32_t)x.graph->ir->nodes.n) return NULL;
    return graph_get(x.graph->ir, x.id);
}
tn_shape tn_tensor_shape(tn_tensor x) {
    const node *n = node_of(x);
    tn_shape s = { .rank = n ? n->rank : -1 };
    for (int i = 0; n && i < n->rank; i++) s.dim[i] = n->dims[i];
    return s;
}
tn_dtype tn_tensor_dtype(tn_tensor x) {
    const node *n = node_of(x);
    return n ? (tn_dtype)n->dtype : TN_N_DTYPES;
}
const char *tn_tensor_name(tn_tensor x) {
    const node *n = node_of(x);
    return n ? n->name : NULL;
}
size_t tn_tensor_bytes(tn_tensor x) {
    const node *n = node_of(x);
    return n ? (size_t)graph_elems(x.graph->ir, x.id) * dtype_size((tn_dtype)n->dtype) : 0;
}
