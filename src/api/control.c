/* control.c - builders of control flow: bodies are built by the caller's functions, and become regions.
 *
 * In: functions that build what a body computes, unchecked arguments. Out: an if, a while or a scan. While a body is being
 * built new nodes go to its region, and values from outside that they use come in by themselves: each is made a parameter of
 * the body and an operand of the op, of each body around likewise; constants of one value are made again inside. The caller's
 * functions run outside of the guard, between its steps: open a region, close it, add the op. In immediate graphs there are no
 * regions: the host reads conditions and counts, and calls the functions as often as they hold. */
#include "api/body.h"
#include "ir/region.h"
#include "run/run.h"

#define FAIL(g, ...) guard_fail((g)->a->gd, __VA_ARGS__)

/* ---- steps of a builder ---- */

typedef struct opening {
    builder *b;
    const char *what;
} opening;

/* All stacks have the length. */
static val check_stacks(graph *g, const val *in, void *args) {
    builder *b = args;
    if (!graph_is_dim(g, b->length)) FAIL(g, TN_ERR_INVAL, "the length is no dim of this graph");
    for (int i = b->n_carry; i < b->n_carry + b->n_stacks; i++) {
        const node *x = graph_get(g, in[i]);
        if (!b->length && x->rank) b->length = x->dims[0];
        if (!x->rank || x->dims[0] != b->length)
            FAIL(g, TN_ERR_SHAPE, "stack %d is %s, must be of %s slices", i - b->n_carry, graph_shape_text(g, g->a, in[i]),
                 graph_dim_text(g, b->length));
    }
    return 0;
}

/* Parameters like the operands; of stacks, like their slices. */
static val build_open(graph *g, const val *in, void *args) {
    const opening *o = args;
    builder *b = o->b;
    int r = graph_region(g, o->what);
    for (int64_t i = 0; i < b->n_in; i++) {
        const node *x = graph_get(g, in[i]);
        int slice = i >= b->n_carry && i < b->n_carry + b->n_stacks;
        graph_add(g, &(spec){ .op = OP_param,
                              .dtype = (tn_dtype)x->dtype,
                              .rank = x->rank - slice,
                              .dims = x->dims + slice,
                              .attr = &i,
                              .n_attr = 1,
                              .region = r });
    }
    b->outside.n_own = b->n_in;
    b->body = (api_body){ b->g->body, &b->outside, r };
    return 0;
}

typedef struct closing {
    builder *b;
    const char *what; /* "the body" */
    const val *like;  /* [n_like] of what type results are to be: the other body's; NULL: parameters */
    int n_like, n;    /* of results that have one, of all */
    bool condition;   /* they are one bool[] */
} closing;

static val build_close(graph *g, const val *in, void *args) {
    const closing *c = args;
    int r = c->b->body.region;
    const val *like = c->like ? c->like : g->regions.at[r].params;
    for (int n = 0; n < c->n_like; n++) {
        const node *x = graph_get(g, in[n]), *y = graph_get(g, like[n]);
        if (x->dtype == y->dtype && graph_same_shape(g, in[n], like[n])) continue;
        FAIL(g, x->dtype == y->dtype ? TN_ERR_SHAPE : TN_ERR_DTYPE, "result %d of %s is %s, must be %s as %s", n, c->what,
             graph_shape_text(g, g->a, in[n]), graph_shape_text(g, g->a, like[n]),
             c->like ? "that of the other body" : "what it begins with");
    }
    const node *x = graph_get(g, in[0]);
    if (c->condition && (x->dtype != TN_BOOL || x->rank))
        FAIL(g, TN_ERR_DTYPE, "%s gives %s, must give bool[]", c->what, graph_shape_text(g, g->a, in[0]));
    for (int i = 0; i < c->n; i++) graph_region_result(g, r, in[i]);
    return 0;
}

/* The first error of the graph is one of this call, or was there before. */
static bool failed(const builder *b) { return b->g->err.code != TN_OK; }

static void *take(tn_graph *g, const char *name, size_t n, size_t size) {
    void *p = mem_alloc(g->ctx->mem, (n + 1) * size);
    if (!p) api_fail(g, &(call){ .name = name }, TN_ERR_NOMEM, "out of memory: %zu tensors", n);
    return p;
}
static void drop(tn_graph *g, void *p, size_t n, size_t size) { mem_free(g->ctx->mem, p, (n + 1) * size); }

static void poison(tn_graph *g, tn_tensor *out, int n) {
    for (int i = 0; out && i < n; i++) out[i] = (tn_tensor){ g, 0 };
}

/* Builds one body: its region, or 0. like: as of build_close; n_like results are taken, and n more of any type. */
int api_build_body(builder *b, const char *what, tn_body f, void *ud, const val *like, int n_like, int n, bool condition) {
    tn_graph *g = b->g;
    graph *ir = g->ir;
    opening o = { b, what };
    tn_tensor *params = take(g, b->name, (size_t)b->n_in, sizeof *params);
    tn_tensor *results = take(g, b->name, (size_t)(n_like + n), sizeof *results);
    if (params && results) api_build(g, &(call){ .name = b->name, .in = b->in, .n_in = b->n_in }, build_open, &o);
    if (params && results && !failed(b)) {
        for (int i = 0; i < b->n_in; i++) params[i] = (tn_tensor){ g, ir->regions.at[b->body.region].params[i] };
        poison(g, results, n_like + n);
        int before = ir->current;
        g->body = &b->body, ir->current = b->body.region;
        f(g, ud, params, results);
        ir->here = b->where;
        closing c = { b, what, like, n_like, n_like + n, condition };
        api_build(
            g, &(call){ .name = b->name, .in = results, .n_in = n_like, .more = results + n_like, .n_more = n, .same = true },
            build_close, &c);
        g->body = b->body.around, ir->current = before;
    }
    drop(g, params, (size_t)b->n_in, sizeof *params);
    drop(g, results, (size_t)(n_like + n), sizeof *results);
    return failed(b) ? 0 : b->body.region;
}

/* ---- the op ---- */

typedef struct op_args {
    builder *b;
    op_code op;
    const int64_t *attr;             /* [n_attr] regions first */
    int n_attr, n_regions, n_before; /* n_before: operands before those that bodies have parameters for */
    tn_tensor *out;                  /* [n_out] */
    int n_out;
} op_args;

/* The op's operands, then what its bodies have captured. A while carries that, too: its body gives it back. */
static val build_op(graph *g, const val *in, void *args) {
    const op_args *o = args;
    builder *b = o->b;
    int n_own = o->n_before + b->n_in, n = n_own + b->outside.from.n;
    if (n > API_MOST_PARAMS) FAIL(g, TN_ERR_UNSUPPORTED, "%d operands, at most %d are possible", n, API_MOST_PARAMS);
    val *all = ARENA_ARRAY(g->a, val, n + 1);
    for (int i = 0; i < n_own; i++) all[i] = in[i];
    for (int i = n_own; i < n; i++) all[i] = b->outside.from.at[i - n_own];
    for (int r = 0; r < o->n_regions; r++) {
        api_body body = { NULL, &b->outside, (int)o->attr[r] };
        if (body.region) api_body_params(g, &body, b->outside.from.n);
    }
    for (int i = b->n_in; o->op == OP_while && i < n; i++)
        graph_region_result(g, (int)o->attr[1], g->regions.at[o->attr[1]].params[i]);
    val v = graph_add(g, &(spec){ .op = o->op, .in = all, .n_in = n, .attr = o->attr, .n_attr = o->n_attr });
    for (int64_t k = 0; k < o->n_out; k++) {
        val x = k ? graph_add(g, &(spec){ .op = OP_proj, .in = &v, .n_in = 1, .attr = &k, .n_attr = 1 }) : v;
        if (o->out) o->out[k] = (tn_tensor){ b->g, x };
    }
    return v;
}

static tn_tensor add_op(op_args *o, const tn_tensor *before) {
    builder *b = o->b;
    tn_tensor x = api_build(
        b->g, &(call){ .name = b->name, .in = before, .n_in = o->n_before, .more = b->in, .n_more = b->n_in }, build_op, o);
    if (!x.id) poison(b->g, o->out, o->n_out);
    return x;
}

/* What is wrong with a call that a function cannot be given up for. */
bool api_refuse(tn_graph *g, const char *name, bool wrong, const char *text) {
    if (wrong) api_fail(g, &(call){ .name = name }, TN_ERR_INVAL, "%s", text);
    return wrong || g->err.code;
}

/* ---- immediate graphs: as the host would ---- */

/* The value of a scalar, bool or i64. */
static int64_t read_scalar(builder *b, tn_tensor x, const char *what, tn_dtype t) {
    int64_t v = 0;
    uint8_t byte = 0;
    if (failed(b)) return 0;
    if (tn_tensor_dtype(x) != t || tn_tensor_shape(x).rank != 0) {
        api_fail(b->g, &(call){ .name = b->name, .in = &x, .n_in = 1 }, TN_ERR_DTYPE, "%s must be %s[]", what, dtype_name(t));
        return 0;
    }
    tn_status code = t == TN_BOOL ? tn_tensor_read(x, &byte, 1) : tn_tensor_read(x, &v, sizeof v);
    if (code) {
        err e = b->g->ctx->err;
        api_fail(b->g, &(call){ .name = b->name }, code, "%s", e.text);
        return 0;
    }
    return t == TN_BOOL ? byte : v;
}

/* Result i of a body is like this value. */
static bool check_like(builder *b, tn_tensor x, tn_tensor like, int i) {
    tn_shape s = tn_tensor_shape(x), t = tn_tensor_shape(like);
    bool same = tn_tensor_dtype(x) == tn_tensor_dtype(like) && s.rank == t.rank;
    for (int d = 0; same && d < s.rank; d++) same = s.dim[d] == t.dim[d];
    if (!same && !failed(b))
        api_fail(b->g, &(call){ .name = b->name, .in = (tn_tensor[]){ x, like }, .n_in = 2 }, TN_ERR_SHAPE,
                 "result %d of the body is not of the type that it begins with", i);
    return !failed(b);
}

/* Gradients flow through a loop with a bound alone: without one, each iteration's values go when it is through. */
static void while_now(builder *b, tn_body condition, tn_body body, void *ud, int64_t most, tn_tensor *state) {
    tn_graph *g = b->g;
    size_t n = (size_t)b->n_in;
    tn_tensor *next = take(g, b->name, n, sizeof *next), go = { g, 0 };
    val *owners = take(g, b->name, 2 * n, sizeof *owners);
    for (int64_t i = 0; next && owners && (!most || i < most) && !failed(b); i++) {
        val first = (val)g->ir->nodes.n;
        condition(g, ud, state, &go);
        if (!read_scalar(b, go, "the condition", TN_BOOL)) break;
        poison(g, next, b->n_in);
        body(g, ud, state, next);
        for (int k = 0; k < b->n_in && check_like(b, next[k], state[k], k); k++) {
        }
        if (!most && !failed(b)) immediate_forget(g, first, state, next, b->n_in, owners);
        memcpy(state, next, n * sizeof *next);
    }
    drop(g, next, n, sizeof *next);
    drop(g, owners, 2 * n, sizeof *owners);
}

static tn_tensor slice_at(tn_tensor x, int64_t t) {
    tn_shape stop = tn_tensor_shape(x), s = { .rank = stop.rank - 1 };
    int64_t start[TN_MAX_RANK] = { t };
    for (int i = 0; i < s.rank; i++) s.dim[i] = stop.dim[i + 1];
    stop.dim[0] = t + 1;
    return tn_reshape(tn_slice(x, start, stop.dim, NULL, stop.rank), s);
}

/* A stack of slices, zeros where there is none. */
static tn_tensor stacked(builder *b, tn_tensor *at, int64_t n) {
    tn_tensor like = { b->g, 0 };
    for (int64_t t = 0; t < n && !like.id; t++) like = at[t];
    tn_shape s = tn_tensor_shape(like), one = { .rank = s.rank + 1, .dim = { 1 } };
    for (int i = 0; i < s.rank; i++) one.dim[i + 1] = s.dim[i];
    for (int64_t t = 0; t < n; t++) at[t] = at[t].id ? tn_reshape(at[t], one) : tn_full(b->g, tn_tensor_dtype(like), one, 0);
    return tn_concat(at, (int)n, 0);
}

typedef struct scan_now_args {
    int64_t count, n_ys;
    bool reverse;
    tn_tensor *in, *results, *ys; /* [n_in], [n_carry + n_ys], [n_ys][length] */
} scan_now_args;

static void scan_steps(builder *b, const scan_now_args *a, tn_body body, void *ud, tn_tensor *carry) {
    for (int64_t step = 0; step < a->count && !failed(b); step++) {
        int64_t t = a->reverse ? a->count - 1 - step : step;
        for (int k = 0; k < b->n_carry; k++) a->in[k] = carry[k];
        for (int k = b->n_carry; k < b->n_in; k++) a->in[k] = slice_at(b->in[k], t);
        poison(b->g, a->results, b->n_carry + (int)a->n_ys);
        body(b->g, ud, a->in, a->results);
        for (int k = 0; k < b->n_carry && check_like(b, a->results[k], carry[k], k); k++) carry[k] = a->results[k];
        for (int64_t k = 0; k < a->n_ys; k++) a->ys[k * b->length + t] = a->results[b->n_carry + k];
    }
}

/* Without an iteration the body is called all the same, on zeros: it alone says of what type the stacks are. */
static void scan_nothing(builder *b, const scan_now_args *a, tn_body body, void *ud, const tn_tensor *carry, tn_tensor *out) {
    for (int k = 0; k < b->n_in; k++) {
        tn_shape s = tn_tensor_shape(b->in[k]), slice = { .rank = s.rank - 1 };
        for (int i = 0; i < slice.rank; i++) slice.dim[i] = s.dim[i + 1];
        a->in[k] = k < b->n_carry ? carry[k] : tn_full(b->g, tn_tensor_dtype(b->in[k]), slice, 0);
    }
    body(b->g, ud, a->in, a->results);
    for (int64_t k = 0; k < a->n_ys; k++) {
        tn_tensor y = a->results[b->n_carry + k];
        tn_shape s = tn_tensor_shape(y), stack = { .rank = s.rank + 1, .dim = { b->length } };
        for (int i = 0; i < s.rank; i++) stack.dim[i + 1] = s.dim[i];
        out[k] = tn_full(b->g, tn_tensor_dtype(y), stack, 0);
    }
}

static void scan_now(builder *b, const tn_scan_opts *o, tn_body body, void *ud, tn_tensor *out) {
    tn_graph *g = b->g;
    int64_t slices = 0;
    scan_now_args a = { .count = o->count.graph ? read_scalar(b, o->count, "the count", TN_I64) : b->length, .n_ys = o->n_ys };
    a.reverse = o->reverse;
    if (a.count > b->length) a.count = b->length;
    if (!size_mul(o->n_ys, b->length, &slices) || slices > INT32_MAX)
        api_fail(g, &(call){ .name = b->name }, TN_ERR_UNSUPPORTED, "stacks of %lld slices", (long long)b->length);
    if (failed(b)) return;
    size_t n = (size_t)(o->n_carry + o->n_ys);
    a.in = take(g, b->name, (size_t)b->n_in, sizeof *a.in);
    a.results = take(g, b->name, n, sizeof *a.results);
    a.ys = take(g, b->name, (size_t)slices, sizeof *a.ys);
    if (a.in && a.results && a.ys) {
        poison(g, a.results, (int)n), poison(g, a.ys, (int)slices);
        for (int k = 0; k < o->n_carry; k++) out[k] = o->carry[k];
        scan_steps(b, &a, body, ud, out);
        if (a.count <= 0) scan_nothing(b, &a, body, ud, out, out + o->n_carry);
        for (int k = 0; k < o->n_ys && a.count > 0 && !failed(b); k++)
            out[o->n_carry + k] = stacked(b, a.ys + k * b->length, b->length);
    }
    drop(g, a.in, (size_t)b->n_in, sizeof *a.in);
    drop(g, a.results, n, sizeof *a.results);
    drop(g, a.ys, (size_t)slices, sizeof *a.ys);
}

/* ---- the builders ---- */

static builder start(tn_graph *g, const char *name) { return (builder){ .g = g, .name = name, .where = g->ir->here }; }
static tn_tensor finish(const builder *b, tn_tensor *out, int n) {
    if (failed(b)) poison(b->g, out, n);
    return failed(b) ? (tn_tensor){ b->g, 0 } : out[0];
}

tn_tensor(tn_if)(tn_tensor condition, tn_body then, tn_body otherwise, void *ud, tn_tensor *out, int n_out) {
    tn_tensor one;
    tn_graph *g = condition.graph;
    if (!out) out = &one;
    if (n_out > 0 && (out != &one || n_out == 1)) poison(g, out, n_out);
    if (!g) return (tn_tensor){ 0 };
    builder b = start(g, "tn_if");
    if (api_refuse(g, b.name, n_out < 1 || n_out > API_MOST_PARAMS || (out == &one && n_out > 1),
                   "n_out is less than 1, or out is NULL") ||
        api_refuse(g, b.name, !then || !otherwise, "a body is NULL"))
        return (tn_tensor){ g, 0 };
    if (g->immediate) {
        bool chosen = read_scalar(&b, condition, "the condition", TN_BOOL) != 0;
        if (!failed(&b)) (chosen ? then : otherwise)(g, ud, NULL, out);
        return finish(&b, out, n_out);
    }
    int64_t attr[2];
    attr[0] = api_build_body(&b, "then", then, ud, NULL, 0, n_out, false);
    if (attr[0]) attr[1] = api_build_body(&b, "otherwise", otherwise, ud, g->ir->regions.at[attr[0]].results, n_out, 0, false);
    if (!failed(&b)) add_op(&(op_args){ &b, OP_if, attr, 2, 2, 1, out, n_out }, &condition);
    return finish(&b, out, n_out);
}

/* A while with a bound is a scan without stacks, whose count is the bound. */
tn_tensor(tn_while)(tn_graph *g, const tn_tensor *init, int n, tn_body condition, tn_body body, void *ud, int64_t most,
                    tn_tensor *out) {
    tn_tensor one;
    if (!g) return (tn_tensor){ 0 };
    if (!out) out = &one;
    if (n > 0 && (out != &one || n == 1)) poison(g, out, n);
    builder b = start(g, "tn_while");
    if (api_refuse(g, b.name, n < 1 || n > API_MOST_PARAMS || !init || (out == &one && n > 1),
                   "nothing is carried, or init or out is NULL") ||
        api_refuse(g, b.name, !condition || !body, "a body is NULL") ||
        api_refuse(g, b.name, most < 0, "the bound is negative"))
        return (tn_tensor){ g, 0 };
    b.in = init, b.n_in = b.n_carry = n, b.length = most;
    if (g->immediate) {
        memcpy(out, init, (size_t)n * sizeof *out);
        while_now(&b, condition, body, ud, most, out);
        return finish(&b, out, n);
    }
    int64_t cond = api_build_body(&b, "condition", condition, ud, NULL, 0, 1, true), own = 0;
    if (cond) own = api_build_body(&b, "body", body, ud, NULL, n, 0, false);
    tn_tensor count = most && own ? tn_full(g, TN_I64, TN_SCALAR, (double)most) : (tn_tensor){ g, 0 };
    if (!failed(&b) && most)
        add_op(&(op_args){ &b, OP_scan, (int64_t[]){ own, cond, n, 0, most, 0, 0 }, SCAN_ATTRS, 2, 1, out, n }, &count);
    else if (!failed(&b))
        add_op(&(op_args){ &b, OP_while, (int64_t[]){ cond, own }, 2, 2, 0, out, n }, NULL);
    return finish(&b, out, n);
}

static bool refuse_scan(tn_graph *g, const tn_scan_opts *o, tn_body body, bool no_out) {
    static const char name[] = "tn_scan";
    if (api_refuse(g, name, !o || !body, "opts or body is NULL")) return true;
    int most = API_MOST_PARAMS / 4;
    return api_refuse(g, name,
                      o->n_carry < 0 || o->n_xs < 0 || o->n_ys < 0 || o->n_carry > most || o->n_xs > most || o->n_ys > most,
                      "a count of tensors is negative, or too large") ||
           api_refuse(g, name, (o->n_carry && !o->carry) || (o->n_xs && !o->xs), "carry or xs is NULL") ||
           api_refuse(g, name, o->n_carry + o->n_ys < 1 || (no_out && o->n_carry + o->n_ys > 1),
                      "there is no result, or out is NULL") ||
           api_refuse(g, name, (ext_is_lit(o->length) && o->length < 0) || (!o->length && !o->n_xs),
                      "without stacks the length must be given, and positive");
}

static void build_scan(builder *b, const tn_scan_opts *o, tn_body body, void *ud, tn_tensor *out) {
    tn_graph *g = b->g;
    api_build(g, &(call){ .name = b->name, .in = b->in, .n_in = b->n_in, .same = true }, check_stacks, b);
    if (failed(b)) return;
    if (g->immediate) {
        scan_now(b, o, body, ud, out);
        return;
    }
    tn_tensor count = o->count;
    if (!count.graph) count = tn_full(g, TN_I64, TN_SCALAR, (double)graph_dim_most(g->ir, b->length));
    int64_t own = api_build_body(b, "body", body, ud, NULL, o->n_carry, o->n_ys, false);
    int64_t attr[SCAN_ATTRS] = { own, 0, o->n_carry, o->n_xs, b->length, o->reverse != 0, o->recompute != 0 };
    if (!failed(b)) add_op(&(op_args){ b, OP_scan, attr, SCAN_ATTRS, 1, 1, out, o->n_carry + o->n_ys }, &count);
}

tn_tensor(tn_scan)(tn_graph *g, const tn_scan_opts *o, tn_body body, void *ud, tn_tensor *out) {
    tn_tensor one;
    if (!g) return (tn_tensor){ 0 };
    if (refuse_scan(g, o, body, !out)) return (tn_tensor){ g, 0 };
    if (!out) out = &one;
    builder b = start(g, "tn_scan");
    size_t n = (size_t)(o->n_carry + o->n_xs);
    tn_tensor *in = take(g, b.name, n, sizeof *in);
    poison(g, out, o->n_carry + o->n_ys);
    if (!in) return (tn_tensor){ g, 0 };
    for (int i = 0; i < o->n_carry; i++) in[i] = o->carry[i];
    for (int i = 0; i < o->n_xs; i++) in[o->n_carry + i] = o->xs[i];
    b.in = in, b.n_in = (int)n, b.n_carry = o->n_carry, b.n_stacks = o->n_xs, b.length = o->length;
    build_scan(&b, o, body, ud, out);
    drop(g, in, n, sizeof *in);
    return finish(&b, out, o->n_carry + o->n_ys);
}
