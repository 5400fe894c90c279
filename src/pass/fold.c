/* fold.c - constant folding: an op on constants becomes a constant, computed by the reference evaluator.
 *
 * In: any graph. Out: constants of at most MAX_ELEMS elements, or splats of any size. Float results are the evaluator's,
 * rounded once to their dtype, so they are at least as near to the true value as a kernel's. What is widened for a contraction
 * stays narrow. iota stays: an index is cheaper
 * than a table of indices. */
#include "eval/eval.h"
#include "pass/rewrite.h"

enum { MAX_ELEMS = 4096, MAX_WORK = 1 << 14 };

/* Copies the const x into the small graph t, with its own dims or, for a splat, with those given. */
static val copy_const(graph *t, const graph *g, val x, int rank, const int64_t *dims) {
    const node *n = graph_get(g, x);
    return graph_add(t, &(spec){ .op = OP_const,
                                 .dtype = n->dtype,
                                 .rank = rank,
                                 .dims = dims,
                                 .splat = n->splat,
                                 .imm = n->imm,
                                 .imm_int = n->imm_int,
                                 .data = n->data });
}

/* Adds to g the constant that r of the small graph t evaluates to, under the given dims; a splat when all elements are equal.
 * Elements are compared as bytes, so 0 and -0 stay apart. */
static val add_value(graph *g, graph *t, val r, int rank, const int64_t *dims, arena *scratch) {
    graph_output(t, "r", r);
    eval_value value = eval_graph(t, scratch, NULL)[r];
    tn_dtype dtype = graph_get(t, r)->dtype;
    size_t n = (size_t)graph_elems(t, r), size = dtype_size(dtype);
    char *data = arena_array(scratch, n + 1, size);
    eval_store(t, r, value, data);
    for (size_t i = 1; i < n; i++)
        if (memcmp(data, data + i * size, size) != 0) return graph_const(g, dtype, rank, dims, data);
    bool is_float = dtype_is_float(dtype);
    return graph_add(g, &(spec){ .op = OP_const,
                                 .dtype = dtype,
                                 .rank = rank,
                                 .dims = dims,
                                 .splat = true,
                                 .imm = is_float && n ? dtype_load(dtype, data, 0) : 0,
                                 .imm_int = !is_float && n ? dtype_load_int(dtype, data, 0) : 0 });
}

/* Elementwise ops and casts of splats, and reductions of a splat's reduced axes, at any size: one element is computed. */
static val fold_splats(graph *g, const node *n, arena *scratch) {
    int64_t dims[TN_MAX_RANK], work = 1;
    op_class cls = op_get(n->op)->cls;
    for (int i = 0; i < n->rank; i++) {
        dims[i] = cls == CL_REDUCE && mask_has((uint64_t)n->attr[0], i) ? graph_get(g, n->in[0])->dims[i] : 1;
        if (!ext_is_lit(dims[i]) || !size_mul(work, dims[i], &work) || work > MAX_WORK) return 0;
    }
    graph *t = graph_make(scratch, "fold");
    val in[3];
    for (int i = 0; i < n->n_in; i++) in[i] = copy_const(t, g, n->in[i], n->rank, dims);
    node probe = *n;
    probe.region = 0;
    return add_value(g, t, remake(t, &probe, in, n->rank, dims), n->rank, n->dims, scratch);
}

static val fold_small(graph *g, const node *n, val v, arena *scratch) {
    int64_t work = graph_elems(g, v);
    if (work > MAX_ELEMS) return 0;
    for (int i = 0; i < n->n_in; i++)
        if (graph_elems(g, n->in[i]) > MAX_WORK - work)
            return 0;
        else
            work += graph_elems(g, n->in[i]);
    if (n->op == OP_dot && work > MAX_ELEMS) return 0; /* its work is not linear in its operands */
    graph *t = graph_make(scratch, "fold");
    val *in = ARENA_ARRAY(scratch, val, n->n_in + 1);
    for (int i = 0; i < n->n_in; i++)
        in[i] = copy_const(t, g, n->in[i], graph_get(g, n->in[i])->rank, graph_get(g, n->in[i])->dims);
    node probe = *n;
    probe.region = 0;
    return add_value(g, t, remake(t, &probe, in, n->rank, n->dims), n->rank, n->dims, scratch);
}

/* A constant array of equal elements is a splat: one number in the code instead of an array in memory. */
static val to_splat(graph *g, const node *n, val v) {
    int64_t count = graph_elems(g, v);
    size_t size = dtype_size(n->dtype);
    if (n->splat || !n->data || count > MAX_WORK || count == 0) return 0;
    for (int64_t i = 1; i < count; i++)
        if (memcmp(n->data, (const char *)n->data + (size_t)i * size, size) != 0) return 0;
    bool is_float = dtype_is_float(n->dtype);
    return graph_add(g, &(spec){ .op = OP_const,
                                 .dtype = n->dtype,
                                 .rank = n->rank,
                                 .dims = n->dims,
                                 .splat = true,
                                 .imm = is_float ? dtype_load(n->dtype, n->data, 0) : 0,
                                 .imm_int = is_float ? 0 : dtype_load_int(n->dtype, n->data, 0) });
}

/* Movement repeats or picks elements, so of a splat it is a splat; pad and concat when all their values are the same one. */
static bool moves_splat(const graph *g, const node *n) {
    for (int i = 1; i < n->n_in; i++)
        if (!splat_same(g, n->in[0], n->in[i])) return false;
    return n->op == OP_pad ? splat_is(g, n->in[0], n->imm) : op_is_move(n->op) || n->op == OP_concat;
}

/* Whether a contraction reads v, maybe through movement. */
static bool feeds_dot(const graph *g, val v, int steps) { /* at most so many of it */
    for (uint32_t r = graph_get(g, v)->first_use; r; r = g->uses.at[r - 1].next) {
        val user = g->uses.at[r - 1].user;
        const node *u = graph_get(g, user);
        if (u->op == OP_dot || (op_is_move(u->op) && steps > 0 && feeds_dot(g, user, steps - 1))) return true;
    }
    return false;
}

/* An array of narrow numbers that is widened for a contraction: kernels multiply them as they are, in a half or a quarter of
 * the memory. */
static bool stays_narrow(const graph *g, const node *n, val v) {
    const node *x = graph_get(g, n->in[0]);
    return n->op == OP_cast && !x->splat && x->dtype != TN_BOOL && dtype_size(x->dtype) < dtype_size(n->dtype) &&
           feeds_dot(g, v, 3);
}

static val fold_node(graph *g, val v, arena *scratch) {
    node n = *graph_get(g, v);
    op_class cls = op_get(n.op)->cls;
    if (n.op == OP_const) return to_splat(g, &n, v);
    if (n.op == OP_iota && n.dims[n.attr[0]] == 1) return zeros(g, n.dtype, n.rank, n.dims);
    if (n.n_in == 0 || cls == CL_RANDOM) return 0;
    bool all_splat = true;
    for (int i = 0; i < n.n_in; i++) {
        if (graph_get(g, n.in[i])->op != OP_const) return 0;
        all_splat = all_splat && is_splat(g, n.in[i]);
    }
    if (stays_narrow(g, &n, v)) return 0;
    if (all_splat && moves_splat(g, &n)) return splat_resize(g, n.in[0], n.rank, n.dims);
    if (all_splat && graph_elems(g, v) > 0 && (op_is_elementwise(n.op) || cls == CL_CAST || cls == CL_REDUCE))
        return fold_splats(g, &n, scratch);
    return touches_dims(g, v) ? 0 : fold_small(g, &n, v, scratch);
}

bool pass_fold(graph *g, arena *scratch) { return rewrite_dims(g, scratch, fold_node); }
