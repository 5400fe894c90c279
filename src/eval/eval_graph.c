/* eval_graph.c - the reference meaning of every op.
 *
 * In: a graph that graph_check accepts and the values of its inputs and states. Out: one array a node, in the caller's arena.
 * Floats are doubles, rounded to their dtype only where a value is written down (const, pad, iota, cast, random); integers and
 * bool are int64, wrapped to their dtype after every op. Elementwise ops are in eval_element.c. Everything else goes through
 * explicit coordinates, one element at a time: this file is the definition that faster code is compared to, so it never shares
 * work, reorders sums or skips elements. Built with -fwrapv (see CMakeLists.txt): overflow of int64_t wraps. */
#include "eval/eval_control.h"
#include "ir/region.h"

#include <math.h>

enum { MAX_ITERATIONS = 100000, MAX_DEPTH = 64 };

typedef struct env {
    const graph *g;
    arena *a;
    eval_value *values;   /* [nodes.n] */
    eval_value **results; /* [nodes.n]: all results of an op with regions, for proj */
    bool *done;           /* [nodes.n] */
    int depth;            /* of regions */
    eval_moved moved;     /* called after each op of a region; NULL: nothing is */
    void *ud;
} env;

/* ---- elements ---- */

static double load_double(eval_value x, int64_t i) { return x.f ? x.f[i] : (double)x.i[i]; }

static void copy_element(eval_value to, int64_t i, eval_value from, int64_t j) {
    if (to.f)
        to.f[i] = from.f[j];
    else
        to.i[i] = from.i[j];
}

/* Adds element j of x to element i of `to`. */
static void add_element(tn_dtype t, eval_value to, int64_t i, eval_value x, int64_t j) {
    if (to.f)
        to.f[i] += x.f[j];
    else
        to.i[i] = dtype_wrap(t, to.i[i] + x.i[j]);
}

/* A written-down number of a pad or a splat: v for floats, the cast rule for integers. */
static void set_number(tn_dtype t, eval_value to, int64_t i, double v) {
    if (to.f)
        to.f[i] = dtype_round(t, v);
    else
        to.i[i] = dtype_cast_to_int(t, v);
}

/* ---- elementwise ---- */

static void eval_elementwise(const env *e, const node *n, int64_t count, eval_value out) {
    eval_value x = e->values[n->in[0]];
    eval_value y = n->n_in > 1 ? e->values[n->in[1]] : x;
    eval_value z = n->n_in > 2 ? e->values[n->in[2]] : x;
    tn_dtype t = (tn_dtype)graph_get(e->g, n->in[n->n_in - 1])->dtype; /* of the values, not of a condition */
    for (int64_t i = 0; i < count; i++) {
        if (out.f)
            out.f[i] = eval_element_float(n->op, load_double(x, i), load_double(y, i), load_double(z, i));
        else if (x.f)
            out.i[i] = eval_element_compare(n->op, x.f[i], y.f[i]);
        else
            out.i[i] = dtype_wrap(n->dtype, eval_element_int(n->op, t, x.i[i], y.i[i], z.i[i]));
    }
}

static void eval_bitcast(tn_dtype from, tn_dtype to, eval_value x, int64_t count, eval_value out) {
    for (int64_t i = 0; i < count; i++) {
        int64_t bits = x.f ? eval_bits_of(from, x.f[i]) : x.i[i];
        if (out.f)
            out.f[i] = eval_float_of(to, bits);
        else
            out.i[i] = dtype_wrap(to, bits);
    }
}

static void eval_cast(const env *e, const node *n, int64_t count, eval_value out) {
    eval_value x = e->values[n->in[0]];
    if (n->op == OP_bitcast) {
        eval_bitcast((tn_dtype)graph_get(e->g, n->in[0])->dtype, (tn_dtype)n->dtype, x, count, out);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        if (out.f && x.f)
            out.f[i] = dtype_cast_to_float(n->dtype, x.f[i]);
        else if (out.f)
            out.f[i] = dtype_cast_int_to_float(n->dtype, (tn_dtype)graph_get(e->g, n->in[0])->dtype, x.i[i]);
        else if (x.f)
            out.i[i] = dtype_cast_to_int(n->dtype, x.f[i]);
        else
            out.i[i] = dtype_wrap(n->dtype, x.i[i]);
    }
}

/* ---- coordinates ---- */

static int64_t dims_count(int rank, const int64_t *dims) {
    int64_t count = 1;
    for (int d = 0; d < rank; d++) count *= dims[d];
    return count;
}

/* Row-major position of coordinate c. */
static int64_t coord_index(int rank, const int64_t *dims, const int64_t *c) {
    int64_t index = 0;
    for (int d = 0; d < rank; d++) index = index * dims[d] + c[d];
    return index;
}

/* Coordinate of row-major position `index`. */
static void coord_of(int rank, const int64_t *dims, int64_t index, int64_t *c) {
    for (int d = rank - 1; d >= 0; d--) {
        c[d] = index % dims[d];
        index /= dims[d];
    }
}

/* ---- reductions ---- */

static eval_value eval_make(const env *e, tn_dtype t, int64_t count) {
    eval_value v = { 0 };
    if (dtype_is_float(t))
        v.f = ARENA_ARRAY(e->a, double, count > 0 ? count : 1);
    else
        v.i = ARENA_ARRAY(e->a, int64_t, count > 0 ? count : 1);
    return v;
}

static double reduce_float(op_code op, double acc, double v) {
    switch (op) {
    case OP_sum:
        return acc + v;
    case OP_prod:
        return acc * v;
    case OP_reduce_max:
        return isnan(acc) || isnan(v) ? (double)NAN : v > acc ? v : acc;
    default:
        return isnan(acc) || isnan(v) ? (double)NAN : v < acc ? v : acc;
    }
}
static int64_t reduce_int(op_code op, tn_dtype t, int64_t acc, int64_t v) {
    switch (op) {
    case OP_sum:
        return acc + v;
    case OP_prod:
        return acc * v;
    case OP_reduce_max:
        return dtype_less(t, acc, v) ? v : acc;
    default:
        return dtype_less(t, v, acc) ? v : acc;
    }
}

static void eval_reduce(const env *e, const node *n, int64_t count, eval_value out) {
    const node *x = graph_get(e->g, n->in[0]);
    eval_value xv = e->values[n->in[0]];
    for (int64_t i = 0; i < count; i++) { /* the value over no elements */
        if (out.f)
            out.f[i] = n->op == OP_sum ? 0 : n->op == OP_prod ? 1 : n->op == OP_reduce_max ? -INFINITY : INFINITY;
        else
            out.i[i] = n->op == OP_sum          ? 0
                       : n->op == OP_prod       ? 1
                       : n->op == OP_reduce_max ? dtype_min_int(n->dtype)
                                                : dtype_max_int(n->dtype);
    }
    int64_t x_count = dims_count(x->rank, x->dims), c[TN_MAX_RANK];
    for (int64_t j = 0; j < x_count; j++) {
        coord_of(x->rank, x->dims, j, c);
        for (int d = 0; d < x->rank; d++)
            if ((uint64_t)n->attr[0] >> d & 1) c[d] = 0;
        int64_t i = coord_index(n->rank, n->dims, c);
        if (out.f)
            out.f[i] = reduce_float(n->op, out.f[i], xv.f[j]);
        else
            out.i[i] = dtype_wrap(n->dtype, reduce_int(n->op, n->dtype, out.i[i], xv.i[j]));
    }
}

/* Whether candidate v beats the best so far: a later equal never does, a NaN beats every number. */
static bool arg_beats(const node *n, tn_dtype t, eval_value x, int64_t v, int64_t best) {
    if (!x.f) return n->op == OP_argmax ? dtype_less(t, x.i[best], x.i[v]) : dtype_less(t, x.i[v], x.i[best]);
    if (isnan(x.f[best])) return false;
    if (isnan(x.f[v])) return true;
    return n->op == OP_argmax ? x.f[v] > x.f[best] : x.f[v] < x.f[best];
}

static void eval_arg(const env *e, const node *n, int64_t count, eval_value out) {
    const node *x = graph_get(e->g, n->in[0]);
    eval_value xv = e->values[n->in[0]];
    int axis = (int)n->attr[0];
    int64_t c[TN_MAX_RANK];
    for (int64_t i = 0; i < count; i++) {
        coord_of(n->rank, n->dims, i, c);
        int64_t best = coord_index(x->rank, x->dims, c);
        for (int64_t k = 1; k < x->dims[axis]; k++) {
            c[axis] = k;
            int64_t j = coord_index(x->rank, x->dims, c);
            if (!arg_beats(n, (tn_dtype)x->dtype, xv, j, best)) continue;
            best = j;
            out.i[i] = k;
        }
    }
}

/* ---- movement ---- */

/* Where element c of a movement's result comes from: coordinate s of the operand x; false when from the border of a pad. */
static bool move_source(const node *n, const node *x, const int64_t *c, int64_t *s) {
    const int64_t *at = n->attr;
    for (int d = 0; d < x->rank; d++) s[d] = c[d]; /* a window's result starts with the operand's axes */
    switch (n->op) {
    case OP_again:
        return true;
    case OP_permute:
        for (int d = 0; d < n->rank; d++) s[at[d]] = c[d];
        return true;
    case OP_expand:
        for (int d = 0; d < n->rank; d++) s[d] = x->dims[d] == 1 ? 0 : c[d];
        return true;
    case OP_pad:
        for (int d = 0; d < n->rank; d++) {
            s[d] = c[d] - at[d];
            if (s[d] < 0 || s[d] >= x->dims[d]) return false;
        }
        return true;
    case OP_slice:
        for (int d = 0; d < n->rank; d++) s[d] = at[d] + c[d] * at[n->rank + d];
        return true;
    case OP_flip:
        for (int d = 0; d < n->rank; d++)
            if ((uint64_t)at[0] >> d & 1) s[d] = x->dims[d] - 1 - c[d];
        return true;
    default: /* OP_window */
        for (int k = 0; k < (int)at[0]; k++) {
            const int64_t *w = at + 1 + 4 * k; /* axis, size, stride, dilation */
            s[w[0]] = c[w[0]] * w[2] + c[x->rank + k] * w[3];
        }
        return true;
    }
}

static void eval_move(const env *e, const node *n, int64_t count, eval_value out) {
    const node *x = graph_get(e->g, n->in[0]);
    int64_t c[TN_MAX_RANK], s[TN_MAX_RANK];
    for (int64_t i = 0; i < count; i++) {
        if (n->op == OP_reshape) {
            copy_element(out, i, e->values[n->in[0]], i);
            continue;
        }
        coord_of(n->rank, n->dims, i, c);
        if (move_source(n, x, c, s))
            copy_element(out, i, e->values[n->in[0]], coord_index(x->rank, x->dims, s));
        else
            set_number(n->dtype, out, i, n->imm);
    }
}

static void eval_fold(const env *e, const node *n, eval_value out) {
    const node *x = graph_get(e->g, n->in[0]);
    int64_t x_count = dims_count(x->rank, x->dims), c[TN_MAX_RANK], s[TN_MAX_RANK];
    for (int64_t j = 0; j < x_count; j++) {
        coord_of(x->rank, x->dims, j, c);
        for (int d = 0; d < n->rank; d++) s[d] = c[d];
        for (int k = 0; k < (int)n->attr[0]; k++) {
            const int64_t *w = n->attr + 1 + 4 * k;
            s[w[0]] = c[w[0]] * w[2] + c[n->rank + k] * w[3];
        }
        add_element(n->dtype, out, coord_index(n->rank, n->dims, s), e->values[n->in[0]], j);
    }
}

static void eval_concat(const env *e, const node *n, eval_value out) {
    int axis = (int)n->attr[0];
    int64_t at = 0, c[TN_MAX_RANK];
    for (int k = 0; k < n->n_in; k++) {
        const node *x = graph_get(e->g, n->in[k]);
        int64_t x_count = dims_count(x->rank, x->dims);
        for (int64_t j = 0; j < x_count; j++) {
            coord_of(x->rank, x->dims, j, c);
            c[axis] += at;
            copy_element(out, coord_index(n->rank, n->dims, c), e->values[n->in[k]], j);
        }
        at += x->dims[axis];
    }
}

/* ---- contraction, indexed access ---- */

typedef struct dot_axes {
    int nb, nc, n_free_a, n_free_b;
    const int64_t *batch_a, *batch_b, *contract_a, *contract_b;
    int free_a[TN_MAX_RANK], free_b[TN_MAX_RANK];
} dot_axes;

static int find_free(int rank, const int64_t *batch, int nb, const int64_t *contract, int nc, int *out_free) {
    int n = 0;
    for (int d = 0; d < rank; d++) {
        bool used = false;
        for (int k = 0; k < nb; k++) used |= batch[k] == d;
        for (int k = 0; k < nc; k++) used |= contract[k] == d;
        if (!used) out_free[n++] = d;
    }
    return n;
}

static dot_axes dot_axes_of(const node *n, const node *a, const node *b) {
    dot_axes x = { .nb = (int)n->attr[0], .nc = (int)n->attr[1] };
    x.batch_a = n->attr + 2;
    x.batch_b = x.batch_a + x.nb;
    x.contract_a = x.batch_b + x.nb;
    x.contract_b = x.contract_a + x.nc;
    x.n_free_a = find_free(a->rank, x.batch_a, x.nb, x.contract_a, x.nc, x.free_a);
    x.n_free_b = find_free(b->rank, x.batch_b, x.nb, x.contract_b, x.nc, x.free_b);
    return x;
}

/* Where the elements of one sum lie in an operand, relative to the first: the same for every result. */
static int64_t *dot_offsets(const env *e, const node *x, int nc, const int64_t *axes, int64_t count) {
    int64_t *offset = ARENA_ARRAY(e->a, int64_t, count + 1), dims[TN_MAX_RANK], k[TN_MAX_RANK], c[TN_MAX_RANK] = { 0 };
    for (int d = 0; d < nc; d++) dims[d] = x->dims[axes[d]];
    for (int64_t j = 0; j < count; j++) {
        coord_of(nc, dims, j, k);
        for (int d = 0; d < nc; d++) c[axes[d]] = k[d];
        offset[j] = coord_index(x->rank, x->dims, c);
    }
    return offset;
}

enum { SUMS = 8 }; /* that are added up side by side, each in the order of its terms */
static void eval_dot(const env *e, const node *n, int64_t count, eval_value out) {
    const node *a = graph_get(e->g, n->in[0]), *b = graph_get(e->g, n->in[1]);
    eval_value av = e->values[n->in[0]], bv = e->values[n->in[1]];
    dot_axes x = dot_axes_of(n, a, b);
    int64_t c[TN_MAX_RANK], ca[TN_MAX_RANK] = { 0 }, cb[TN_MAX_RANK] = { 0 }, k_count = 1;
    for (int d = 0; d < x.nc; d++) k_count *= a->dims[x.contract_a[d]];
    if (!count) return;
    const int64_t *ka = dot_offsets(e, a, x.nc, x.contract_a, k_count), *kb = dot_offsets(e, b, x.nc, x.contract_b, k_count);
    for (int64_t i = 0; i < count; i += SUMS) {
        int64_t ia[SUMS] = { 0 }, ib[SUMS] = { 0 }, whole[SUMS] = { 0 };
        double sum[SUMS] = { 0 };
        int sums = count - i < SUMS ? (int)(count - i) : SUMS;
        for (int s = 0; s < sums; s++) {
            coord_of(n->rank, n->dims, i + s, c);
            for (int d = 0; d < x.nb; d++) ca[x.batch_a[d]] = cb[x.batch_b[d]] = c[d];
            for (int d = 0; d < x.n_free_a; d++) ca[x.free_a[d]] = c[x.nb + d];
            for (int d = 0; d < x.n_free_b; d++) cb[x.free_b[d]] = c[x.nb + x.n_free_a + d];
            ia[s] = coord_index(a->rank, a->dims, ca), ib[s] = coord_index(b->rank, b->dims, cb);
        }
        for (int64_t j = 0; j < k_count && out.f; j++)
            for (int s = 0; s < SUMS; s++) sum[s] += av.f[ia[s] + ka[j]] * bv.f[ib[s] + kb[j]];
        for (int64_t j = 0; j < k_count && out.i; j++)
            for (int s = 0; s < SUMS; s++) whole[s] += av.i[ia[s] + ka[j]] * bv.i[ib[s] + kb[j]];
        for (int s = 0; s < sums; s++) {
            if (out.f)
                out.f[i + s] = sum[s];
            else
                out.i[i + s] = dtype_wrap(n->dtype, whole[s]);
        }
    }
}

/* Splits the coordinate c of an array shaped x.dims[..axis] + index.dims[batch..] + x.dims[axis+1..] into the position in the
 * index and the coordinate s in x, in which s[axis] stays open. Returns the position. */
static int64_t split_indexed(const node *x, const node *index, int axis, int batch, const int64_t *c, int64_t *s) {
    int64_t at[TN_MAX_RANK];
    for (int d = 0; d < axis; d++) s[d] = c[d];
    for (int d = axis + 1; d < x->rank; d++) s[d] = c[d - 1 + index->rank - batch];
    for (int d = 0; d < index->rank; d++) at[d] = c[d < batch ? d : axis + d - batch];
    return coord_index(index->rank, index->dims, at);
}

static void eval_gather(const env *e, const node *n, int64_t count, eval_value out) {
    const node *x = graph_get(e->g, n->in[0]), *index = graph_get(e->g, n->in[1]);
    int axis = (int)n->attr[0];
    int64_t c[TN_MAX_RANK], s[TN_MAX_RANK], last = x->dims[axis] - 1;
    for (int64_t i = 0; i < count && last >= 0; i++) { /* from an axis of size 0 there is nothing to pick: zeros */
        coord_of(n->rank, n->dims, i, c);
        int64_t pick = e->values[n->in[1]].i[split_indexed(x, index, axis, 0, c, s)];
        s[axis] = pick < 0 ? 0 : pick > last ? last : pick;
        copy_element(out, i, e->values[n->in[0]], coord_index(x->rank, x->dims, s));
    }
}

/* How a scatter combines what is there with an update; OP_NIL: it is replaced. */
static op_code scattered_by(op_code op) {
    return op == OP_scatter_add   ? OP_add
           : op == OP_scatter_mul ? OP_mul
           : op == OP_scatter_max ? OP_max
           : op == OP_scatter_min ? OP_min
                                  : OP_NIL;
}
/* to[i] op= x[j] */
static void combine_element(op_code op, tn_dtype t, eval_value to, int64_t i, eval_value x, int64_t j) {
    if (op == OP_add)
        add_element(t, to, i, x, j);
    else if (!op)
        copy_element(to, i, x, j);
    else if (to.f)
        to.f[i] = eval_element_float(op, to.f[i], x.f[j], 0);
    else
        to.i[i] = dtype_wrap(t, eval_element_int(op, t, to.i[i], x.i[j], 0));
}

static void eval_scatter(const env *e, const node *n, int64_t count, eval_value out) {
    const node *index = graph_get(e->g, n->in[1]), *updates = graph_get(e->g, n->in[2]);
    int axis = (int)n->attr[0];
    for (int64_t i = 0; i < count; i++) copy_element(out, i, e->values[n->in[0]], i);
    int64_t u_count = dims_count(updates->rank, updates->dims), c[TN_MAX_RANK], s[TN_MAX_RANK];
    for (int64_t j = 0; j < u_count; j++) {
        coord_of(updates->rank, updates->dims, j, c);
        s[axis] = e->values[n->in[1]].i[split_indexed(n, index, axis, (int)n->attr[1], c, s)];
        if (s[axis] < 0 || s[axis] >= n->dims[axis]) continue;
        combine_element(scattered_by((op_code)n->op), n->dtype, out, coord_index(n->rank, n->dims, s), e->values[n->in[2]], j);
    }
}

/* ---- sources ---- */

static void eval_source(const env *e, val v, const node *n, int64_t count, eval_value out) {
    if (n->op == OP_iota) {
        int64_t c[TN_MAX_RANK];
        for (int64_t i = 0; i < count; i++) {
            coord_of(n->rank, n->dims, i, c);
            if (out.f)
                out.f[i] = dtype_round(n->dtype, (double)c[n->attr[0]]);
            else
                out.i[i] = dtype_wrap(n->dtype, c[n->attr[0]]);
        }
    } else if (n->op == OP_const && n->splat) {
        for (int64_t i = 0; i < count; i++) {
            if (out.f)
                out.f[i] = dtype_round(n->dtype, n->imm);
            else
                out.i[i] = dtype_wrap(n->dtype, n->imm_int);
        }
    } else if (n->data && count > 0) { /* const array, or the initial value of a state; without data a state is zeros */
        e->values[v] = eval_load(e->g, e->a, v, n->data);
    }
}

static void eval_random(const env *e, const node *n, int64_t count, eval_value out) {
    int64_t counter = e->values[n->in[0]].i[0];
    for (int64_t i = 0; i < count; i++) out.f[i] = (double)random_uniform_at(counter, n->attr[0], i);
}

/* ---- regions ---- */

static void eval_region(env *e, int r);

/* Runs region r on args and returns its results. */
static eval_value *call_region(env *e, int64_t r, const eval_value *args, int n_args) {
    const region *reg = &e->g->regions.at[r];
    if (reg->n_params != n_args)
        guard_fail(e->a->gd, TN_ERR_INTERNAL, "region %d takes %d values but got %d", (int)r, reg->n_params, n_args);
    for (int i = 1; i < e->g->nodes.n; i++)
        if (e->g->nodes.at[i].region == r) e->done[i] = false;
    for (int k = 0; k < n_args; k++) {
        e->values[reg->params[k]] = args[k];
        e->done[reg->params[k]] = true;
    }
    if (++e->depth > MAX_DEPTH) guard_fail(e->a->gd, TN_ERR_UNSUPPORTED, "regions are nested deeper than %d", MAX_DEPTH);
    eval_region(e, (int)r);
    e->depth--;
    eval_value *results = ARENA_ARRAY(e->a, eval_value, reg->n_results);
    for (int k = 0; k < reg->n_results; k++) results[k] = e->values[reg->results[k]];
    return results;
}

static eval_value *gather_args(const env *e, const node *n, int first) {
    eval_value *args = ARENA_ARRAY(e->a, eval_value, n->n_in);
    for (int k = first; k < n->n_in; k++) args[k - first] = e->values[n->in[k]];
    return args;
}

static eval_value *eval_if(env *e, const node *n) {
    bool chosen = e->values[n->in[0]].i[0] != 0;
    return call_region(e, n->attr[chosen ? 0 : 1], gather_args(e, n, 1), n->n_in - 1);
}

static eval_value *eval_while(env *e, const node *n) {
    eval_value *state = gather_args(e, n, 0);
    for (int step = 0; call_region(e, n->attr[0], state, n->n_in)[0].i[0] != 0; step++) {
        if (step == MAX_ITERATIONS)
            guard_fail(e->a->gd, TN_ERR_UNSUPPORTED, "while %s has not ended after %d steps", n->name ? n->name : "",
                       MAX_ITERATIONS);
        state = call_region(e, n->attr[1], state, n->n_in);
    }
    return state;
}

/* Slice t of a stack of so many. */
static eval_value slice_of(const env *e, val stack, eval_value x, int64_t t) {
    const node *n = graph_get(e->g, stack);
    int64_t count = dims_count(n->rank - 1, n->dims + 1);
    eval_value out = eval_make(e, n->dtype, count);
    for (int64_t i = 0; i < count; i++) copy_element(out, i, x, t * count + i);
    return out;
}

/* Iterations that do not take place leave zeros in the stacks. */
static eval_value *eval_scan(env *e, const node *n) {
    const region *body = &e->g->regions.at[n->attr[SCAN_BODY]];
    int64_t carry = n->attr[SCAN_CARRY], stacks = n->attr[SCAN_STEPS], length = n->attr[SCAN_LENGTH];
    int64_t count = e->values[n->in[0]].i[0];
    if (count > length) count = length;
    eval_value *args = gather_args(e, n, 1), *out = ARENA_ARRAY(e->a, eval_value, body->n_results);
    for (int64_t k = 0; k < body->n_results; k++) {
        const node *x = graph_get(e->g, body->results[k]);
        out[k] = k < carry ? args[k] : eval_make(e, x->dtype, length * dims_count(x->rank, x->dims));
    }
    for (int64_t step = 0; step < count; step++) {
        int64_t t = n->attr[SCAN_REVERSE] ? count - 1 - step : step;
        for (int64_t k = 0; k < carry; k++) args[k] = out[k];
        for (int64_t k = carry; k < carry + stacks; k++) args[k] = slice_of(e, n->in[1 + k], e->values[n->in[1 + k]], t);
        if (n->attr[SCAN_COND] && !call_region(e, n->attr[SCAN_COND], args, n->n_in - 1)[0].i[0]) break;
        eval_value *next = call_region(e, n->attr[SCAN_BODY], args, n->n_in - 1);
        for (int64_t k = 0; k < body->n_results; k++) {
            const node *x = graph_get(e->g, body->results[k]);
            int64_t size = dims_count(x->rank, x->dims);
            if (k < carry) out[k] = next[k];
            for (int64_t i = 0; i < size && k >= carry; i++) copy_element(out[k], t * size + i, next[k], i);
        }
    }
    return out;
}

static void eval_ctrl(env *e, val v, const node *n) {
    if (n->op == OP_proj) {
        e->values[v] = e->results[n->in[0]][n->attr[0]];
        return;
    }
    if (n->op == OP_param) guard_fail(e->a->gd, TN_ERR_INTERNAL, "parameter %%%u is read outside of its region", (unsigned)v);
    e->results[v] = n->op == OP_if ? eval_if(e, n) : n->op == OP_while ? eval_while(e, n) : eval_scan(e, n);
    e->values[v] = e->results[v][0];
}

/* ---- the graph ---- */

static void eval_node(env *e, val v) {
    const node *n = graph_get(e->g, v);
    for (int d = 0; d < n->rank; d++)
        if (n->dims[d] < 0)
            guard_fail(e->a->gd, TN_ERR_UNSUPPORTED, "%%%u has a symbolic dim: bind it before evaluating", (unsigned)v);
    int64_t count = dims_count(n->rank, n->dims);
    op_class cls = op_get(n->op)->cls;
    if (cls == CL_CTRL) {
        eval_ctrl(e, v, n);
        return;
    }
    eval_value out = e->values[v] = eval_make(e, n->dtype, count);
    switch (cls) {
    case CL_CAST:
        eval_cast(e, n, count, out);
        break;
    case CL_REDUCE:
        eval_reduce(e, n, count, out);
        break;
    case CL_ARG:
        eval_arg(e, n, count, out);
        break;
    case CL_MOVE:
        eval_move(e, n, count, out);
        break;
    case CL_FOLD:
        eval_fold(e, n, out);
        break;
    case CL_JOIN:
        eval_concat(e, n, out);
        break;
    case CL_DOT:
        eval_dot(e, n, count, out);
        break;
    case CL_GATHER:
        eval_gather(e, n, count, out);
        break;
    case CL_SCATTER:
        eval_scatter(e, n, count, out);
        break;
    case CL_SOURCE:
        eval_source(e, v, n, count, out);
        break;
    case CL_RANDOM:
        eval_random(e, n, count, out);
        break;
    default:
        eval_elementwise(e, n, count, out);
        break;
    }
}

static bool is_ready(const env *e, const node *n) {
    for (int k = 0; k < n->n_in; k++)
        if (!e->done[n->in[k]]) return false;
    return true;
}

bool eval_is_sum(const node *n) {
    op_class cls = op_get(n->op)->cls;
    return n->op == OP_sum || cls == CL_DOT || cls == CL_FOLD || n->op == OP_scatter_add;
}

static eval_value absolute(const env *e, val v) {
    const node *n = graph_get(e->g, v);
    int64_t count = dims_count(n->rank, n->dims);
    eval_value x = e->values[v];
    if (!x.f) return x;
    eval_value out = eval_make(e, n->dtype, count);
    for (int64_t i = 0; i < count; i++) out.f[i] = fabs(x.f[i]);
    return out;
}

static eval_value sum_of_absolutes(env *e, val v, const node *n) {
    eval_value *operands = gather_args(e, n, 0), *sizes = ARENA_ARRAY(e->a, eval_value, n->n_in), out = e->values[v];
    for (int k = 0; k < n->n_in; k++) sizes[k] = absolute(e, n->in[k]);
    for (int k = 0; k < n->n_in; k++) e->values[n->in[k]] = sizes[k];
    eval_node(e, v);
    eval_value size = e->values[v];
    for (int k = 0; k < n->n_in; k++) e->values[n->in[k]] = operands[k];
    e->values[v] = out;
    return size;
}

static void move_result(env *e, const node *n, val v) {
    op_class cls = op_get(n->op)->cls;
    if (!e->moved || !n->region || cls == CL_CTRL || cls == CL_SOURCE || !dtype_is_float(n->dtype)) return;
    e->moved(e->ud, e->g, v, e->values[v], eval_is_sum(n) ? sum_of_absolutes(e, v, n) : (eval_value){ 0 });
}

/* Evaluates the nodes of region r. Sweeps until nothing is left: in the middle of a pass ids are not in topological order. */
static void eval_region(env *e, int r) {
    for (bool progress = true, left = true; left;) {
        if (!progress)
            guard_fail(e->a->gd, TN_ERR_INTERNAL, "the graph has a cycle, or a region reads a value that is not computed yet");
        progress = left = false;
        for (int v = 1; v < e->g->nodes.n; v++) {
            const node *n = &e->g->nodes.at[v];
            if (n->op == OP_NIL || n->region != r || e->done[v]) continue;
            if (is_ready(e, n)) {
                eval_node(e, (val)v);
                move_result(e, n, (val)v);
                e->done[v] = progress = true;
            } else
                left = true;
        }
    }
}

static env env_make(const graph *g, arena *a) {
    size_t n = (size_t)g->nodes.n;
    env e = { .g = g,
              .a = a,
              .values = ARENA_ARRAY(a, eval_value, n),
              .results = ARENA_ARRAY(a, eval_value *, n),
              .done = ARENA_ARRAY(a, bool, n) };
    e.done[0] = true;
    return e;
}

const eval_value *eval_control(const graph *g, arena *a, val v, const eval_value *operands, eval_moved moved, void *ud) {
    env e = env_make(g, a);
    const node *n = graph_get(g, v);
    e.moved = moved, e.ud = ud;
    for (int k = 0; k < n->n_in; k++) e.values[n->in[k]] = operands[k];
    eval_node(&e, v);
    return e.results[v];
}

eval_value *eval_graph(const graph *g, arena *a, const eval_value *in) {
    env e = env_make(g, a);
    for (int k = 0; k < g->inputs.n; k++) {
        val v = g->inputs.at[k];
        const node *x = graph_get(g, v);
        bool given = in && (in[k].f || in[k].i);
        if (!given && x->op == OP_input && dims_count(x->rank, x->dims) != 0)
            guard_fail(a->gd, TN_ERR_INVAL, "input %s has no value", x->name);
        if (!given) continue;
        if (dtype_is_float(x->dtype) != (in[k].f != NULL))
            guard_fail(a->gd, TN_ERR_DTYPE, "the value of %s is not a %s", x->name, dtype_name(x->dtype));
        e.values[v] = in[k];
        e.done[v] = true;
    }
    eval_region(&e, 0);
    return e.values;
}

eval_value eval_load(const graph *g, arena *a, val v, const void *data) {
    const node *n = graph_get(g, v);
    env e = { .a = a };
    int64_t count = dims_count(n->rank, n->dims);
    eval_value x = eval_make(&e, n->dtype, count);
    for (int64_t i = 0; i < count; i++) {
        if (x.f)
            x.f[i] = dtype_load(n->dtype, data, i);
        else
            x.i[i] = dtype_load_int(n->dtype, data, i);
    }
    return x;
}

void eval_store(const graph *g, val v, eval_value x, void *data) {
    const node *n = graph_get(g, v);
    int64_t count = dims_count(n->rank, n->dims);
    for (int64_t i = 0; i < count; i++) {
        if (x.f)
            dtype_store(n->dtype, data, i, x.f[i]);
        else
            dtype_store_int(n->dtype, data, i, x.i[i]);
    }
}
