/* build.c - builders of values: sources, elementwise ops, scalars, random numbers, outputs, gradients.
 *
 * In: tensors of one graph and plain arguments, unchecked. Out: nodes. Each public function packs its arguments and names a
 * build_* function, which runs under the guard of api_build; those jump on anything wrong. */
#include "api/api.h"
#include "grad/grad.h"

#include <math.h>

#define FAIL(g, ...) guard_fail((g)->a->gd, __VA_ARGS__)

/* ---- shared checks ---- */

static tn_dtype check_dtype(graph *g, tn_dtype t) {
    if ((unsigned)t >= TN_N_DTYPES) FAIL(g, TN_ERR_INVAL, "%d is not a dtype", (int)t);
    return t;
}
/* Negative dims are handles of tn_dim, or mistakes. */
static void check_shape(graph *g, const tn_shape *s) {
    if (s->rank < 0 || s->rank > TN_MAX_RANK) FAIL(g, TN_ERR_INVAL, "rank %d is not in 0..%d", s->rank, TN_MAX_RANK);
    for (int i = 0; i < s->rank; i++)
        if (!graph_is_dim(g, s->dim[i])) FAIL(g, TN_ERR_INVAL, "dim %d is %lld, must not be negative", i, (long long)s->dim[i]);
}
/* Elements of a shape given from outside; its bytes, too, must be countable. */
static int64_t check_elems(graph *g, tn_dtype t, const tn_shape *s) {
    check_shape(g, s);
    int64_t n = 1, bytes;
    for (int i = 0; i < s->rank; i++)
        if (s->dim[i] == 0) return 0;
    for (int i = 0; i < s->rank; i++)
        if (!size_mul(n, graph_dim_most(g, s->dim[i]), &n))
            FAIL(g, TN_ERR_SHAPE, "%s%s has too many elements", dtype_name(t), graph_dims_text(g, g->a, s->rank, s->dim));
    if (!size_mul(n, (int64_t)dtype_size(t), &bytes))
        FAIL(g, TN_ERR_SHAPE, "%s%s has too many bytes", dtype_name(t), graph_dims_text(g, g->a, s->rank, s->dim));
    return n;
}
void api_check_value(graph *g, tn_dtype t, double v) {
    if (dtype_is_float(t)) return;
    if (!(v >= dtype_info(t)->lo && v <= dtype_info(t)->hi) || v != trunc(v))
        FAIL(g, TN_ERR_DTYPE, "%.17g is not a value of %s", v, dtype_name(t));
}
val api_scalar_like(graph *g, val x, double v) {
    api_check_value(g, (tn_dtype)graph_get(g, x)->dtype, v);
    return graph_splat_like(g, x, v);
}
static tn_dtype dtype_of(const graph *g, val x) { return (tn_dtype)graph_get(g, x)->dtype; }

/* ---- elementwise: one row of ops.def, one builder ---- */

/* The common shape by NumPy's rule: aligned at the last axis, sizes 1 stretch. */
static void broadcast_shape(graph *g, const val *in, int n, tn_shape *out) {
    *out = (tn_shape){ 0 };
    for (int k = 0; k < n; k++)
        if (graph_get(g, in[k])->rank > out->rank) out->rank = graph_get(g, in[k])->rank;
    for (int i = 0; i < out->rank; i++) out->dim[i] = 1;
    for (int k = 0; k < n; k++) {
        const node *x = graph_get(g, in[k]);
        for (int i = 0; i < x->rank; i++) {
            int64_t d = x->dims[i], *o = &out->dim[out->rank - x->rank + i];
            if (*o == 1)
                *o = d;
            else if (d != 1 && d != *o)
                FAIL(g, TN_ERR_SHAPE, "the shapes do not broadcast: axis %d from the end is %s and %s", x->rank - i,
                     graph_dim_text(g, *o), graph_dim_text(g, d));
        }
    }
}
static void check_equal_dtypes(graph *g, val x, val y) {
    if (dtype_of(g, x) == dtype_of(g, y)) return;
    FAIL(g, TN_ERR_DTYPE, "the dtypes differ, %s and %s: convert one with tn_cast", dtype_name(dtype_of(g, x)),
         dtype_name(dtype_of(g, y)));
}

val api_add_elementwise(graph *g, op_code op, const val *in) {
    int arity = op_get(op)->arity;
    if (arity == 1) return graph_unary(g, op, in[0]);
    if (arity == 2) check_equal_dtypes(g, in[0], in[1]);
    if (arity == 3) {
        if (dtype_of(g, in[0]) != TN_BOOL)
            FAIL(g, TN_ERR_DTYPE, "the condition is %s, must be bool", dtype_name(dtype_of(g, in[0])));
        check_equal_dtypes(g, in[1], in[2]);
    }
    val x[3];
    bool same = true;
    for (int i = 1; i < arity; i++) same = same && graph_same_shape(g, in[0], in[i]);
    if (same) {
        memcpy(x, in, sizeof(val) * (size_t)arity);
    } else {
        tn_shape s;
        broadcast_shape(g, in, arity, &s);
        for (int i = 0; i < arity; i++) x[i] = graph_broadcast(g, in[i], s.rank, s.dim);
    }
    return arity == 2 ? graph_binary(g, op, x[0], x[1]) : graph_select(g, x[0], x[1], x[2]);
}
static val build_elementwise(graph *g, const val *in, void *args) { return api_add_elementwise(g, *(op_code *)args, in); }

static tn_tensor elementwise(const char *name, op_code op, const tn_tensor *in, int n) {
    return api_build(NULL, &(call){ .name = name, .in = in, .n_in = n }, build_elementwise, &op);
}
tn_tensor api_elementwise(op_code op, const tn_tensor *in, int n) {
    static const char *const names[N_OPS] = {
#define UNARY(name, ...) [OP_##name] = "tn_" #name,
#define BINARY UNARY
#define TERNARY UNARY
#define OP(...)
#include "ir/ops.def"
    };
    return elementwise(names[op], op, in, n);
}
#define UNARY(name, ...)                                                                                                       \
    tn_tensor tn_##name(tn_tensor x) { return elementwise("tn_" #name, OP_##name, (tn_tensor[]){ x }, 1); }
#define BINARY(name, ...)                                                                                                      \
    tn_tensor tn_##name(tn_tensor x, tn_tensor y) { return elementwise("tn_" #name, OP_##name, (tn_tensor[]){ x, y }, 2); }
#define TERNARY(name, ...)                                                                                                     \
    tn_tensor tn_##name(tn_tensor x, tn_tensor y, tn_tensor z) {                                                               \
        return elementwise("tn_" #name, OP_##name, (tn_tensor[]){ x, y, z }, 3);                                               \
    }
#define OP(...)
#include "ir/ops.def"

static val build_cast(graph *g, const val *in, void *args) { return graph_cast(g, in[0], check_dtype(g, *(tn_dtype *)args)); }
tn_tensor tn_cast(tn_tensor x, tn_dtype t) {
    return api_build(NULL, &(call){ .name = "tn_cast", .in = &x, .n_in = 1 }, build_cast, &t);
}

static val build_bitcast(graph *g, const val *in, void *args) {
    return graph_bitcast(g, in[0], check_dtype(g, *(tn_dtype *)args));
}
tn_tensor tn_bitcast(tn_tensor x, tn_dtype t) {
    return api_build(NULL, &(call){ .name = "tn_bitcast", .in = &x, .n_in = 1 }, build_bitcast, &t);
}

typedef struct scalar_args {
    op_code op;
    double s;
} scalar_args;
static val build_scalar(graph *g, const val *in, void *args) {
    const scalar_args *a = args;
    return graph_binary(g, a->op, in[0], api_scalar_like(g, in[0], a->s));
}
#define SCALAR(op)                                                                                                             \
    tn_tensor tn_##op##_scalar(tn_tensor x, double s) {                                                                        \
        return api_build(NULL, &(call){ .name = "tn_" #op "_scalar", .in = &x, .n_in = 1 }, build_scalar,                      \
                         &(scalar_args){ OP_##op, s });                                                                        \
    }
SCALAR(add)
SCALAR(sub)
SCALAR(mul)
SCALAR(div)
SCALAR(pow)
SCALAR(max)
SCALAR(min)

/* ---- sources ---- */

typedef struct source_args {
    op_code op;
    const char *name;
    tn_dtype t;
    tn_shape shape;
    const void *data;
    double value;
    int axis;
    tn_graph *param_of; /* the graph that lists the state as a parameter, or NULL */
    const char *scope;  /* in front of the name, or NULL */
    bool reuse;
} source_args;

enum { MAX_NAME = 1024 };
static void check_name(graph *g, const char *name) {
    if (!name) FAIL(g, TN_ERR_INVAL, "the name is NULL");
    if (!*name) FAIL(g, TN_ERR_INVAL, "the name is empty");
    if (strlen(name) > MAX_NAME) FAIL(g, TN_ERR_INVAL, "the name \"%.40s...\" is longer than %d bytes", name, MAX_NAME);
}
/* A copy of the caller's array, with every true of a bool array written as 1. */
static const void *copy_data(graph *g, tn_dtype t, int64_t n, const void *data) {
    uint8_t *copy = arena_copy(g->a, data, (size_t)n * dtype_size(t));
    for (int64_t i = 0; t == TN_BOOL && i < n; i++) copy[i] = copy[i] != 0;
    return copy;
}
/* Inputs, states and outputs are found by name: no two of them have the same one, but for a state and an output. */
static void NORETURN fail_taken(graph *g, const char *name, const char *by, const char *where) {
    FAIL(g, TN_ERR_INVAL, "the name \"%s\" is taken by %s%s%.256s", name, by, where ? " at " : "", where ? where : "");
}
static void check_free(graph *g, const char *name, bool input, bool state, bool sink) {
    int i = graph_find_input(g, name), o = sink ? graph_find_output(g, name) : -1;
    const node *x = i < 0 ? NULL : graph_get(g, g->inputs.at[i]);
    if (x && (x->op == OP_input ? input : state)) fail_taken(g, name, x->op == OP_input ? "an input" : "a state", x->where);
    if (o >= 0) fail_taken(g, name, "an output", g->outputs.at[o].where);
}
/* The state of that name, type and shape, where the graph gives such states again; else 0. */
static val find_same(graph *g, const char *name, const source_args *a) {
    int i = a->reuse && a->op == OP_state ? graph_find_input(g, name) : -1;
    if (i < 0) return 0;
    const node *x = graph_get(g, g->inputs.at[i]);
    bool same = x->op == OP_state && x->dtype == a->t && x->rank == a->shape.rank;
    for (int k = 0; same && k < x->rank; k++) same = x->dims[k] == a->shape.dim[k];
    return same ? g->inputs.at[i] : 0;
}
static val build_named(graph *g, const val *in, void *args) {
    (void)in;
    const source_args *a = args;
    check_name(g, a->name);
    int64_t n = check_elems(g, check_dtype(g, a->t), &a->shape);
    const char *name = a->scope ? arena_printf(g->a, "%s%s", a->scope, a->name) : a->name;
    check_name(g, name);
    val there = find_same(g, name, a);
    if (there) return there;
    check_free(g, name, true, true, a->op == OP_input);
    spec s = { .op = a->op, .dtype = a->t, .rank = a->shape.rank, .dims = a->shape.dim, .name = name };
    if (a->data) s.data = copy_data(g, a->t, n, a->data);
    val v = graph_add(g, &s);
    if (a->param_of) VEC_PUSH(g->a, &a->param_of->params, v);
    return v;
}
tn_tensor tn_input(tn_graph *g, const char *name, tn_dtype t, tn_shape shape) {
    source_args a = { .op = OP_input, .name = name, .t = t, .shape = shape };
    return api_build(g, &(call){ .name = "tn_input" }, build_named, &a);
}
static tn_tensor build_state(tn_graph *g, const char *fn, source_args a) {
    a.op = OP_state;
    a.scope = tn_graph_scope(g);
    a.reuse = g && g->reuses_states;
    return api_build(g, &(call){ .name = fn, .same = true }, build_named, &a);
}
tn_tensor tn_state(tn_graph *g, const char *name, tn_dtype t, tn_shape shape, const void *init) {
    return build_state(g, "tn_state", (source_args){ .name = name, .t = t, .shape = shape, .data = init });
}

tn_tensor tn_param(tn_graph *g, const char *name, tn_dtype t, tn_shape shape, const void *init) {
    return build_state(g, "tn_param", (source_args){ .name = name, .t = t, .shape = shape, .data = init, .param_of = g });
}

static val build_const(graph *g, const val *in, void *args) {
    (void)in;
    const source_args *a = args;
    int64_t n = check_elems(g, check_dtype(g, a->t), &a->shape);
    if (n && !a->data) FAIL(g, TN_ERR_INVAL, "data is NULL for %lld elements", (long long)n);
    spec s = { .op = OP_const, .dtype = a->t, .rank = a->shape.rank, .dims = a->shape.dim };
    s.data = copy_data(g, a->t, n, a->data);
    return graph_add(g, &s);
}
tn_tensor tn_const(tn_graph *g, tn_dtype t, tn_shape shape, const void *data) {
    source_args a = { .t = t, .shape = shape, .data = data };
    return api_build(g, &(call){ .name = "tn_const" }, build_const, &a);
}

static val build_full(graph *g, const val *in, void *args) {
    (void)in;
    const source_args *a = args;
    check_elems(g, check_dtype(g, a->t), &a->shape);
    api_check_value(g, a->t, a->value);
    return graph_splat(g, a->t, a->shape.rank, a->shape.dim, a->value);
}
tn_tensor tn_full(tn_graph *g, tn_dtype t, tn_shape shape, double value) {
    source_args a = { .t = t, .shape = shape, .value = value };
    return api_build(g, &(call){ .name = "tn_full" }, build_full, &a);
}

static val build_iota(graph *g, const val *in, void *args) {
    (void)in;
    const source_args *a = args;
    check_elems(g, check_dtype(g, a->t), &a->shape);
    int axis = a->axis < 0 ? a->axis + a->shape.rank : a->axis;
    if (axis < 0 || axis >= a->shape.rank) FAIL(g, TN_ERR_SHAPE, "axis %d is out of range for rank %d", a->axis, a->shape.rank);
    if (a->t == TN_BOOL) FAIL(g, TN_ERR_DTYPE, "bool cannot count");
    return graph_iota(g, a->t, a->shape.rank, a->shape.dim, axis);
}
tn_tensor tn_iota(tn_graph *g, tn_dtype t, tn_shape shape, int axis) {
    source_args a = { .t = t, .shape = shape, .axis = axis };
    return api_build(g, &(call){ .name = "tn_iota" }, build_iota, &a);
}

/* ---- random numbers ---- */

typedef struct random_args {
    int64_t stream;
    tn_shape shape;
    double p;
} random_args;

/* Streams given by users are below 2^61; those that normal draws from lie above, so that no two draws share bits by accident.
 */
enum { STREAM_BITS = 61 };
static val random_uniform(graph *g, val counter, int64_t stream, const tn_shape *shape) {
    spec s = { .op = OP_random,
               .dtype = TN_F32,
               .in = &counter,
               .n_in = 1,
               .rank = shape->rank,
               .dims = shape->dim,
               .attr = &stream,
               .n_attr = 1 };
    return graph_add(g, &s);
}
static void check_random(graph *g, val counter, const random_args *a) {
    const node *n = graph_get(g, counter);
    if (n->dtype != TN_I64) FAIL(g, TN_ERR_DTYPE, "the counter must be i64[]");
    if (n->rank != 0) FAIL(g, TN_ERR_SHAPE, "the counter must be i64[]");
    if (a->stream < 0 || a->stream >> STREAM_BITS)
        FAIL(g, TN_ERR_INVAL, "stream %lld is not in 0..2^%d-1", (long long)a->stream, STREAM_BITS);
    check_elems(g, TN_F32, &a->shape);
}
static val build_uniform(graph *g, const val *in, void *args) {
    const random_args *a = args;
    check_random(g, in[0], a);
    return random_uniform(g, in[0], a->stream, &a->shape);
}
/* Box-Muller: sqrt(-2 log u) cos(2 pi v). u = 1 - uniform lies in (0, 1], so the logarithm is finite. */
static val build_normal(graph *g, const val *in, void *args) {
    const random_args *a = args;
    check_random(g, in[0], a);
    int64_t first = (int64_t)1 << 62 | a->stream * 2;
    val u = random_uniform(g, in[0], first, &a->shape), v = random_uniform(g, in[0], first + 1, &a->shape);
    val log_u = graph_unary(g, OP_log, graph_binary(g, OP_sub, graph_splat_like(g, u, 1), u));
    val radius = graph_unary(g, OP_sqrt, graph_binary(g, OP_mul, log_u, graph_splat_like(g, u, -2)));
    val angle = graph_binary(g, OP_mul, v, graph_splat_like(g, v, 6.283185307179586));
    return graph_binary(g, OP_mul, radius, graph_unary(g, OP_cos, angle));
}
static val build_bernoulli(graph *g, const val *in, void *args) {
    const random_args *a = args;
    check_random(g, in[0], a);
    if (!(a->p >= 0 && a->p <= 1)) FAIL(g, TN_ERR_INVAL, "p is %g, not a probability", a->p);
    val u = random_uniform(g, in[0], a->stream, &a->shape);
    return graph_binary(g, OP_lt, u, graph_splat_like(g, u, a->p));
}
tn_tensor tn_random_uniform(tn_tensor counter, int64_t stream, tn_shape shape) {
    return api_build(NULL, &(call){ .name = "tn_random_uniform", .in = &counter, .n_in = 1 }, build_uniform,
                     &(random_args){ stream, shape, 0 });
}
tn_tensor tn_random_normal(tn_tensor counter, int64_t stream, tn_shape shape) {
    return api_build(NULL, &(call){ .name = "tn_random_normal", .in = &counter, .n_in = 1 }, build_normal,
                     &(random_args){ stream, shape, 0 });
}
tn_tensor tn_random_bernoulli(tn_tensor counter, int64_t stream, tn_shape shape, double p) {
    return api_build(NULL, &(call){ .name = "tn_random_bernoulli", .in = &counter, .n_in = 1 }, build_bernoulli,
                     &(random_args){ stream, shape, p });
}

/* ---- names and sinks ---- */

static val build_label(graph *g, const val *in, void *args) {
    const source_args *a = args;
    check_name(g, a->name);
    node *n = graph_get(g, in[0]);
    if (n->op == OP_input || n->op == OP_state) return in[0]; /* those are found by theirs */
    const char *name = arena_printf(g->a, "%s%s", a->scope ? a->scope : "", a->name);
    check_name(g, name);
    n->name = name;
    return in[0];
}
tn_tensor tn_label(tn_tensor x, const char *name) {
    source_args a = { .name = name, .scope = tn_graph_scope(x.graph) };
    return api_build(NULL, &(call){ .name = "tn_label", .in = &x, .n_in = 1, .same = true }, build_label, &a);
}

static val build_output(graph *g, const val *in, void *args) {
    const char *name = *(const char **)args;
    check_name(g, name);
    check_free(g, name, true, false, true);
    graph_output(g, name, in[0]);
    return in[0];
}
void tn_output(tn_tensor x, const char *name) {
    api_build(NULL, &(call){ .name = "tn_output", .in = &x, .n_in = 1, .same = true }, build_output, &name);
}

static val build_assign(graph *g, const val *in, void *args) {
    (void)args;
    if (graph_get(g, in[0])->op != OP_state)
        FAIL(g, TN_ERR_INVAL, "the first operand is the result of %s, must be a state", op_get(graph_get(g, in[0])->op)->name);
    check_equal_dtypes(g, in[0], in[1]);
    if (!graph_same_shape(g, in[0], in[1])) FAIL(g, TN_ERR_SHAPE, "the shapes differ: a state keeps its shape");
    if (graph_is_assigned(g, in[0])) FAIL(g, TN_ERR_INVAL, "the state has been assigned already");
    graph_assign(g, in[0], in[1]);
    return in[0];
}
void tn_assign(tn_tensor state, tn_tensor value) {
    api_build(NULL, &(call){ .name = "tn_assign", .in = (tn_tensor[]){ state, value }, .n_in = 2, .same = true }, build_assign,
              NULL);
}

/* ---- gradients ---- */

typedef struct grad_args {
    int n;
    tn_tensor *out;
} grad_args;
static val build_grad(graph *g, const val *in, void *args) {
    grad_args *a = args;
    const node *loss = graph_get(g, in[0]);
    if (loss->rank != 0)
        FAIL(g, TN_ERR_SHAPE, "the loss has rank %d, must be a scalar: reduce it with tn_sum or tn_mean", loss->rank);
    if (!dtype_is_float((tn_dtype)loss->dtype))
        FAIL(g, TN_ERR_DTYPE, "the loss is %s, must be a float", dtype_name((tn_dtype)loss->dtype));
    for (int i = 0; i < a->n; i++)
        if (!dtype_is_float(dtype_of(g, in[i + 1])))
            FAIL(g, TN_ERR_DTYPE, "operand %d is %s: only floats have gradients", i + 2, dtype_name(dtype_of(g, in[i + 1])));
    if (a->n && !a->out) FAIL(g, TN_ERR_INVAL, "out is NULL");
    val *out = ARENA_ARRAY(g->a, val, a->n);
    grad_build(g, in[0], in + 1, a->n, out);
    for (int i = 0; i < a->n; i++) out[i] = api_result(a->out[i].graph, out[i]);
    for (int i = 0; i < a->n; i++) a->out[i].id = out[i];
    return in[0];
}
tn_status tn_grad(tn_tensor loss, const tn_tensor *xs, int n, tn_tensor *out) {
    tn_graph *g = loss.graph;
    for (int i = 0; out && i < n; i++) out[i] = (tn_tensor){ g, 0 };
    if (!g) return TN_ERR_INVAL;
    call c = { .name = "tn_grad", .in = &loss, .n_in = 1, .more = xs, .n_more = n, .same = true };
    if (n < 0 || (n && !xs)) {
        c.n_more = 0;
        return api_fail(g, &c, TN_ERR_INVAL, n < 0 ? "n is %d" : "xs is NULL for %d tensors", n);
    }
    grad_args a = { n, out };
    api_build(g, &c, build_grad, &a);
    return g->err.code ? api_report(g->ctx, &g->err) : TN_OK;
}
