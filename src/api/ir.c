/* ir.c - the entry points of tenon_ir.h: the op table, passes by name, values of a graph, the reference evaluator.
 *
 * In: graphs as their owner built them. Out: facts, a rewritten graph, or values in double in an arena of their own. */
#include "api/api.h"
#include "tenon/tenon_ir.h"

#include "eval/eval.h"
#include "pass/pass.h"

/* ---- the op table ---- */

static const char *class_name(op_class c) {
    static const char *const names[] = { "none",
                                         "elementwise float",
                                         "elementwise number",
                                         "elementwise bits",
                                         "elementwise integer",
                                         "elementwise logic",
                                         "elementwise compare",
                                         "elementwise any",
                                         "cast",
                                         "reduce",
                                         "arg",
                                         "move",
                                         "fold",
                                         "join",
                                         "dot",
                                         "gather",
                                         "scatter",
                                         "source",
                                         "random",
                                         "control" };
    return (unsigned)c < COUNT_OF(names) ? names[c] : "?";
}

int tn_ir_n_ops(void) { return N_OPS - 1; }

tn_status tn_ir_get_op(int i, tn_ir_op *out_op) {
    if (i < 0 || i >= N_OPS - 1 || !out_op) return TN_ERR_INVAL;
    const op_info *o = op_get((op_code)(i + 1));
    op_code op = (op_code)(i + 1);
    *out_op = (tn_ir_op){ o->name, class_name(o->cls),  o->expr,          o->doc, o->arity, o->flops,
                          o->ulp,  api_op_operands(op), api_op_attrs(op), o->grad };
    return TN_OK;
}

/* ---- passes ---- */

int tn_ir_n_passes(void) {
    int n;
    pass_table(&n);
    return n;
}

tn_status tn_ir_get_pass(int i, tn_ir_pass *out_pass) {
    int n;
    const pass_info *p = pass_table(&n);
    if (i < 0 || i >= n || !out_pass) return TN_ERR_INVAL;
    *out_pass = (tn_ir_pass){ p[i].name, p[i].doc, p[i].regions, pass_stage_name(p[i].stage) };
    return TN_OK;
}

typedef struct rewriting {
    tn_graph *g;
    graph *ir; /* the copy that is rewritten */
    arena scratch;
    const char *passes;
    bool check;
} rewriting;

static void run_named(rewriting *r, const char *name, size_t n) {
    char *copy = arena_alloc(&r->scratch, n + 1);
    memcpy(copy, name, n);
    if (!strcmp(copy, "all")) {
        pass_run_all(r->ir, &r->scratch, r->check);
        return;
    }
    const pass_info *p = pass_find(copy);
    if (!p) guard_fail(&r->g->gd, TN_ERR_INVAL, "there is no pass \"%s\"", copy);
    pass_run(r->ir, p, &r->scratch, r->check);
}

static void rewrite_guarded(void *arg) {
    rewriting *r = arg;
    r->ir = graph_clone(r->g->ir, &r->g->arena, false, NULL);
    graph_compact(r->ir);
    for (const char *s = r->passes; *s;) {
        size_t n = strcspn(s, ",");
        run_named(r, s, n);
        s += n + (s[n] == ',');
    }
}

static val find_source(const graph *ir, const char *name) {
    for (int i = 0; i < ir->inputs.n; i++) {
        const char *other = graph_get(ir, ir->inputs.at[i])->name;
        if (other && !strcmp(other, name)) return ir->inputs.at[i];
    }
    return 0;
}

tn_status tn_ir_run_passes(tn_graph *g, const char *passes, int check) {
    if (!g) return TN_ERR_INVAL;
    if (g->err.code) return api_report(g->ctx, &g->err);
    if (!passes) return err_set(&g->ctx->err, TN_ERR_INVAL, "tn_ir_run_passes: passes is NULL");
    if (g->immediate)
        return err_set(&g->ctx->err, TN_ERR_UNSUPPORTED,
                       "tn_ir_run_passes: an immediate graph keeps the values that it has computed");
    rewriting r = { .g = g, .passes = passes, .check = check != 0 };
    arena_init(&r.scratch, g->ctx->mem, &g->gd);
    tn_status code = api_try(&g->gd, rewrite_guarded, &r);
    if (code) api_report(g->ctx, &g->gd.err);
    if (!code) { /* parameters are known by their names from here on */
        for (int i = 0; i < g->params.n; i++) {
            const char *name = graph_get(g->ir, g->params.at[i])->name;
            g->params.at[i] = name ? find_source(r.ir, name) : 0;
        }
        g->ir = r.ir;
    }
    arena_fini(&r.scratch);
    return code;
}

tn_status tn_graph_contract_in(tn_graph *g, tn_dtype t) {
    if (!g) return TN_ERR_INVAL;
    if (t != TN_BF16 && t != TN_F16)
        return err_set(&g->ctx->err, TN_ERR_DTYPE, "tn_graph_contract_in: expected bf16 or f16, got %s", tn_dtype_name(t));
    return tn_ir_run_passes(g, t == TN_BF16 ? "contract_bf16" : "contract_f16", 0);
}

/* ---- looking at a graph ---- */

int tn_ir_n_values(const tn_graph *g) { return g && !g->err.code ? g->ir->nodes.n - 1 : 0; }

tn_status tn_ir_get_value(const tn_graph *g, int i, tn_ir_value *out_value) {
    if (!g || !out_value || i < 0 || i >= tn_ir_n_values(g)) return TN_ERR_INVAL;
    val v = (val)i + 1;
    const node *n = graph_get(g->ir, v);
    tn_tensor x = { (tn_graph *)g, v };
    *out_value = (tn_ir_value){ .tensor = x,
                                .op = op_get((op_code)n->op)->name,
                                .name = n->name,
                                .where = n->where,
                                .dtype = (tn_dtype)n->dtype,
                                .shape = tn_tensor_shape(x),
                                .n_operands = n->n_in,
                                .operands = n->in };
    return TN_OK;
}

tn_status tn_ir_get_detail(const tn_graph *g, int i, tn_ir_detail *out_detail) {
    if (!g || !out_detail || i < 0 || i >= tn_ir_n_values(g)) return TN_ERR_INVAL;
    const node *n = graph_get(g->ir, (val)i + 1);
    *out_detail = (tn_ir_detail){ .attr = n->attr,
                                  .n_attr = n->n_attr,
                                  .splat = n->splat,
                                  .imm = n->imm,
                                  .imm_int = n->imm_int,
                                  .data = n->data,
                                  .body = n->region };
    return TN_OK;
}

tn_status tn_ir_get_dim(const tn_graph *g, int64_t handle, tn_ir_dim *out_dim) {
    static const char *const ops[] = { [EXT_DIM] = "dim",       [EXT_ADD] = "add", [EXT_MUL] = "mul", [EXT_FLOOR] = "floor_div",
                                       [EXT_CEIL] = "ceil_div", [EXT_MIN] = "min", [EXT_MAX] = "max" };
    if (!g || !out_dim || g->err.code || ext_is_lit(handle)) return TN_ERR_INVAL;
    if (!g->ir->params || ext_index(handle) >= g->ir->params->at.n) return TN_ERR_INVAL;
    const ext_row *r = exts_row(g->ir->params, handle);
    *out_dim = (tn_ir_dim){
        .op = ops[r->op], .name = r->name, .x = r->a, .y = r->b, .lo = r->lo, .hi = r->hi, .multiple_of = r->divisor
    };
    return TN_OK;
}

int64_t tn_ir_dim_handle(const tn_graph *g, int i) {
    return g && !g->err.code && g->ir->params && i >= 0 && i < g->ir->params->n_dims ? exts_dim(g->ir->params, i) : 0;
}

tn_status tn_ir_get_body(const tn_graph *g, int body, tn_ir_body *out_body) {
    if (!g || !out_body || body < 1 || g->err.code || body >= g->ir->regions.n) return TN_ERR_INVAL;
    const region *r = &g->ir->regions.at[body];
    *out_body = (tn_ir_body){ r->params, r->results, r->n_params, r->n_results };
    return TN_OK;
}

int tn_ir_n_outputs(const tn_graph *g) { return g && !g->err.code ? g->ir->outputs.n : 0; }

tn_status tn_ir_get_output(const tn_graph *g, int i, const char **out_name, tn_tensor *out_value, tn_tensor *out_state) {
    if (!g || i < 0 || i >= tn_ir_n_outputs(g)) return TN_ERR_INVAL;
    const output *o = &g->ir->outputs.at[i];
    if (out_name) *out_name = o->name;
    if (out_value) *out_value = (tn_tensor){ (tn_graph *)g, o->v };
    if (out_state) *out_state = (tn_tensor){ (tn_graph *)g, o->state };
    return TN_OK;
}

/* ---- the reference evaluator ---- */

struct tn_ir_eval {
    tn_ctx *ctx;
    tn_graph *g;
    const graph *ir; /* what `values` belongs to, even when passes replace the graph's */
    guard gd;
    arena arena;
    eval_value *values;
    int n_values;
    const tn_binding *bindings;
    int n_bindings;
};

static const void *bound_data(const tn_ir_eval *e, const char *name) {
    for (int i = 0; i < e->n_bindings; i++) {
        if (e->bindings[i].name && !strcmp(e->bindings[i].name, name)) return e->bindings[i].data;
    }
    return NULL;
}

static void evaluate_guarded(void *arg) {
    tn_ir_eval *e = arg;
    const graph *ir = e->ir;
    eval_value *in = ARENA_ARRAY(&e->arena, eval_value, ir->inputs.n);
    for (int i = 0; i < ir->inputs.n; i++) {
        const node *n = graph_get(ir, ir->inputs.at[i]);
        const void *data = bound_data(e, n->name);
        if (data)
            in[i] = eval_load(ir, &e->arena, ir->inputs.at[i], data);
        else if (n->op != OP_state)
            guard_fail(&e->gd, TN_ERR_INVAL, "input \"%s\" is not bound", n->name);
    }
    for (int i = 0; i < e->n_bindings; i++) {
        if (!e->bindings[i].name || !find_source(ir, e->bindings[i].name))
            guard_fail(&e->gd, TN_ERR_INVAL, "the graph has no input \"%s\"",
                       e->bindings[i].name ? e->bindings[i].name : "(null)");
        for (int j = 0; j < i; j++)
            if (!strcmp(e->bindings[i].name, e->bindings[j].name))
                guard_fail(&e->gd, TN_ERR_INVAL, "\"%s\" is bound twice", e->bindings[i].name);
    }
    e->values = eval_graph(ir, &e->arena, in);
}

tn_status tn_ir_evaluate(tn_graph *g, const tn_binding *inputs, int n, tn_ir_eval **out_eval) {
    if (out_eval) *out_eval = NULL;
    if (!g) return TN_ERR_INVAL;
    if (g->err.code) return api_report(g->ctx, &g->err);
    if (!out_eval || n < 0 || (n && !inputs)) return err_set(&g->ctx->err, TN_ERR_INVAL, "tn_ir_evaluate: a NULL argument");
    tn_ir_eval *e = mem_alloc(g->ctx->mem, sizeof *e);
    if (!e) return err_set(&g->ctx->err, TN_ERR_NOMEM, "out of memory: an evaluation");
    *e = (tn_ir_eval){ .ctx = g->ctx, .g = g, .ir = g->ir, .n_values = g->ir->nodes.n, .bindings = inputs, .n_bindings = n };
    arena_init(&e->arena, g->ctx->mem, &e->gd);
    tn_status code = api_try(&e->gd, evaluate_guarded, e);
    e->bindings = NULL;
    if (code) {
        api_report(g->ctx, &e->gd.err);
        tn_ir_eval_free(e);
        return code;
    }
    *out_eval = e;
    return TN_OK;
}

typedef struct conversion {
    tn_ir_eval *e;
    val v;
    int64_t n;
    double *out;
} conversion;
static void convert_guarded(void *arg) {
    conversion *c = arg;
    c->out = ARENA_ARRAY(&c->e->arena, double, c->n + 1);
    for (int64_t i = 0; i < c->n; i++) c->out[i] = (double)c->e->values[c->v].i[i];
    c->e->values[c->v].f = c->out;
}

const double *tn_ir_eval_values(tn_ir_eval *e, tn_tensor x, int64_t *out_n) {
    if (out_n) *out_n = 0;
    if (!e || x.graph != e->g || !x.id || x.id >= (uint32_t)e->n_values) return NULL;
    eval_value v = e->values[x.id];
    int64_t n = graph_elems(e->ir, x.id);
    if (!v.f && !v.i) return NULL;
    if (out_n) *out_n = n;
    if (v.f) return v.f;
    conversion c = { e, x.id, n, NULL };
    if (api_try(&e->gd, convert_guarded, &c)) {
        api_report(e->ctx, &e->gd.err);
        return NULL;
    }
    return c.out;
}

void tn_ir_eval_free(tn_ir_eval *e) {
    if (!e) return;
    mem m = e->ctx->mem;
    arena_fini(&e->arena);
    mem_free(m, e, sizeof *e);
}

/* ---- elements ---- */

double tn_ir_load(tn_dtype t, const void *data, int64_t i) {
    if ((unsigned)t >= TN_N_DTYPES) return 0;
    return dtype_is_float(t) ? dtype_load(t, data, i) : (double)dtype_load_int(t, data, i);
}

void tn_ir_store(tn_dtype t, void *data, int64_t i, double v) {
    if ((unsigned)t >= TN_N_DTYPES) return;
    if (dtype_is_float(t))
        dtype_store(t, data, i, v);
    else
        dtype_store_int(t, data, i, dtype_cast_to_int(t, v));
}
