/* build_shape.c - builders that change shapes: reductions, movement, contraction, gather and scatter.
 *
 * In: tensors of one graph and plain arguments, unchecked. Out: nodes. Axes count from the end when negative, and appear once.
 * Like build.c: each public function packs its arguments for a build_* function that jumps on anything wrong. */
#include "api/api.h"

#define FAIL(g, ...) guard_fail((g)->a->gd, __VA_ARGS__)
#define ONE(text, x) (&(call){ .name = text, .in = &(x), .n_in = 1 })

static int check_axis(graph *g, int64_t axis, int rank) {
    int64_t a = axis < 0 ? axis + rank : axis;
    if (a < 0 || a >= rank) FAIL(g, TN_ERR_SHAPE, "axis %lld is out of range for rank %d", (long long)axis, rank);
    return (int)a;
}
static uint64_t check_axes(graph *g, const int64_t *axes, int n, int rank) {
    if (n == -1 && !axes) return ((uint64_t)1 << rank) - 1;
    if (n < 0) FAIL(g, TN_ERR_INVAL, "the number of axes is %d", n);
    if (n && !axes) FAIL(g, TN_ERR_INVAL, "axes is NULL for %d axes", n);
    if (n > TN_MAX_RANK) FAIL(g, TN_ERR_INVAL, "%d axes are given for rank %d", n, rank);
    uint64_t mask = 0;
    for (int i = 0; i < n; i++) {
        uint64_t bit = (uint64_t)1 << check_axis(g, axes[i], rank);
        if (mask & bit) FAIL(g, TN_ERR_INVAL, "axis %lld is given twice", (long long)axes[i]);
        mask |= bit;
    }
    return mask;
}
/* A list with one entry an axis of x. */
static void check_list(graph *g, const char *name, const int64_t *entries, int n, int rank) {
    if (n != rank) FAIL(g, TN_ERR_SHAPE, "a list of length %d is given for rank %d", n, rank);
    if (n && !entries) FAIL(g, TN_ERR_INVAL, "%s is NULL", name);
}
static val drop_axes(graph *g, val x, uint64_t mask) {
    const node *n = graph_get(g, x);
    int64_t dims[TN_MAX_RANK];
    int rank = 0;
    for (int i = 0; i < n->rank; i++)
        if (!(mask >> i & 1)) dims[rank++] = n->dims[i];
    return mask ? graph_reshape(g, x, rank, dims) : x;
}

/* ---- reductions ---- */

typedef struct reduce_args {
    op_code op;
    const int64_t *axes;
    int n, keep;
} reduce_args;

static val build_reduce(graph *g, const val *in, void *args) {
    const reduce_args *a = args;
    uint64_t mask = check_axes(g, a->axes, a->n, graph_get(g, in[0])->rank);
    val r = graph_reduce(g, a->op, in[0], mask);
    return a->keep ? r : drop_axes(g, r, mask);
}
/* How many elements the axes have, in the shape and dtype of a sum over them. 0 elements: 0 / 0, NaN. */
static val count_like(graph *g, val x, val sum, uint64_t mask) {
    const node *n = graph_get(g, x);
    int64_t ones[TN_MAX_RANK];
    ext count = 1;
    for (int i = 0; i < n->rank; i++) ones[i] = 1;
    for (int i = 0; i < n->rank; i++)
        if (mask >> i & 1) count = g->params ? ext_mul(g->params, count, n->dims[i]) : count * n->dims[i];
    if (ext_is_lit(count)) return graph_splat_like(g, sum, (double)count);
    val size = graph_size(g, (tn_dtype)graph_get(g, sum)->dtype, count);
    return graph_expand(g, graph_reshape(g, size, graph_get(g, sum)->rank, ones), graph_get(g, sum)->dims);
}
/* Halves are averaged in f32: their sum alone would overflow at 65504. */
static val build_mean(graph *g, const val *in, void *args) {
    const reduce_args *a = args;
    tn_dtype t = (tn_dtype)graph_get(g, in[0])->dtype;
    if (!dtype_is_float(t)) FAIL(g, TN_ERR_DTYPE, "the mean of %s is not a value of it: convert with tn_cast", dtype_name(t));
    uint64_t mask = check_axes(g, a->axes, a->n, graph_get(g, in[0])->rank);
    val x = dtype_is_narrow_float(t) ? graph_cast(g, in[0], TN_F32) : in[0];
    val sum = graph_reduce(g, OP_sum, x, mask);
    val r = graph_cast(g, graph_binary(g, OP_div, sum, count_like(g, in[0], sum, mask)), t);
    return a->keep ? r : drop_axes(g, r, mask);
}
tn_tensor tn_sum(tn_tensor x, const int64_t *axes, int n, int keep) {
    return api_build(NULL, ONE("tn_sum", x), build_reduce, &(reduce_args){ OP_sum, axes, n, keep });
}
tn_tensor tn_prod(tn_tensor x, const int64_t *axes, int n, int keep) {
    return api_build(NULL, ONE("tn_prod", x), build_reduce, &(reduce_args){ OP_prod, axes, n, keep });
}
tn_tensor tn_reduce_max(tn_tensor x, const int64_t *axes, int n, int keep) {
    return api_build(NULL, ONE("tn_reduce_max", x), build_reduce, &(reduce_args){ OP_reduce_max, axes, n, keep });
}
tn_tensor tn_reduce_min(tn_tensor x, const int64_t *axes, int n, int keep) {
    return api_build(NULL, ONE("tn_reduce_min", x), build_reduce, &(reduce_args){ OP_reduce_min, axes, n, keep });
}
tn_tensor tn_mean(tn_tensor x, const int64_t *axes, int n, int keep) {
    return api_build(NULL, ONE("tn_mean", x), build_mean, &(reduce_args){ OP_sum, axes, n, keep });
}

typedef struct axis_args {
    op_code op;
    int axis, keep;
} axis_args;
static val build_arg(graph *g, const val *in, void *args) {
    const axis_args *a = args;
    int axis = check_axis(g, a->axis, graph_get(g, in[0])->rank);
    if (graph_get(g, in[0])->dims[axis] == 0) FAIL(g, TN_ERR_SHAPE, "axis %d has no elements to choose from", axis);
    val r = graph_arg(g, a->op, in[0], axis);
    return a->keep ? r : drop_axes(g, r, (uint64_t)1 << axis);
}
tn_tensor tn_argmax(tn_tensor x, int axis, int keep) {
    return api_build(NULL, ONE("tn_argmax", x), build_arg, &(axis_args){ OP_argmax, axis, keep });
}
tn_tensor tn_argmin(tn_tensor x, int axis, int keep) {
    return api_build(NULL, ONE("tn_argmin", x), build_arg, &(axis_args){ OP_argmin, axis, keep });
}

/* ---- movement ---- */

static void check_rank(graph *g, const tn_shape *s) {
    if (s->rank < 0 || s->rank > TN_MAX_RANK) FAIL(g, TN_ERR_INVAL, "rank %d is not in 0..%d", s->rank, TN_MAX_RANK);
}

/* The dim that is -1 is what the others leave over. */
static val build_reshape(graph *g, const val *in, void *args) {
    tn_shape s = *(tn_shape *)args;
    check_rank(g, &s);
    exts *t = g->params ? g->params : exts_make(g->a);
    int open = -1;
    ext n = 1, total = graph_elems_ext(g, in[0]);
    bool zero = false;
    for (int i = 0; i < s.rank; i++) {
        if (s.dim[i] != -1 && !graph_is_dim(g, s.dim[i])) FAIL(g, TN_ERR_INVAL, "dim %d is %lld", i, (long long)s.dim[i]);
        if (s.dim[i] == -1 && open >= 0) FAIL(g, TN_ERR_INVAL, "dims %d and %d are both -1", open, i);
        if (s.dim[i] == -1) open = i;
        zero = zero || s.dim[i] == 0;
    }
    for (int i = 0; i < s.rank; i++)
        if (i != open && !zero) n = ext_mul(t, n, s.dim[i]);
    bool fits = !t->problem;
    t->problem = NULL;
    if (zero) n = 0, fits = true;
    if (open >= 0 && n == 0) FAIL(g, TN_ERR_SHAPE, "dim %d is -1 but could be anything: the others have 0 elements", open);
    ext left = 0;
    if (!fits || (open < 0 ? n != total : !ext_divides(t, total, n, &left)))
        FAIL(g, TN_ERR_SHAPE, "%s elements do not fit into %s", graph_dim_text(g, total),
             graph_dims_text(g, g->a, s.rank, s.dim));
    if (open >= 0) s.dim[open] = left;
    return graph_reshape(g, in[0], s.rank, s.dim);
}
tn_tensor tn_reshape(tn_tensor x, tn_shape shape) { return api_build(NULL, ONE("tn_reshape", x), build_reshape, &shape); }

typedef struct list_args {
    const int64_t *a, *b, *c, *d;
    int n;
    double value;
} list_args;

static val build_permute(graph *g, const val *in, void *args) {
    const list_args *a = args;
    int rank = graph_get(g, in[0])->rank;
    check_list(g, "perm", a->a, a->n, rank);
    check_axes(g, a->a, a->n, rank);
    int64_t perm[TN_MAX_RANK];
    for (int i = 0; i < rank; i++) perm[i] = check_axis(g, a->a[i], rank);
    return graph_permute(g, in[0], perm);
}
tn_tensor tn_permute(tn_tensor x, const int64_t *perm, int n_perm) {
    return api_build(NULL, ONE("tn_permute", x), build_permute, &(list_args){ .a = perm, .n = n_perm });
}

/* Without axes of size 1. */
static val build_squeeze(graph *g, const val *in, void *args) {
    const list_args *a = args;
    const node *x = graph_get(g, in[0]);
    uint64_t mask = check_axes(g, a->a, a->n, x->rank);
    for (int i = 0; i < x->rank; i++) {
        if (!(mask >> i & 1) || x->dims[i] == 1) continue;
        if (a->n >= 0) FAIL(g, TN_ERR_SHAPE, "axis %d has size %s, not 1", i, graph_dim_text(g, x->dims[i]));
        mask &= ~((uint64_t)1 << i);
    }
    return drop_axes(g, in[0], mask);
}
tn_tensor tn_squeeze(tn_tensor x, const int64_t *axes, int n_axes) {
    return api_build(NULL, ONE("tn_squeeze", x), build_squeeze, &(list_args){ .a = axes, .n = n_axes });
}

/* The axes are those of the result. */
static val build_unsqueeze(graph *g, const val *in, void *args) {
    const list_args *a = args;
    const node *x = graph_get(g, in[0]);
    int rank = x->rank + a->n, from = 0;
    if (a->n < 0 || rank > TN_MAX_RANK) FAIL(g, TN_ERR_SHAPE, "%d more axes for rank %d", a->n, x->rank);
    uint64_t mask = check_axes(g, a->a, a->n, rank);
    int64_t dims[TN_MAX_RANK];
    for (int i = 0; i < rank; i++) dims[i] = mask >> i & 1 ? 1 : x->dims[from++];
    return graph_reshape(g, in[0], rank, dims);
}
tn_tensor tn_unsqueeze(tn_tensor x, const int64_t *axes, int n_axes) {
    return api_build(NULL, ONE("tn_unsqueeze", x), build_unsqueeze, &(list_args){ .a = axes, .n = n_axes });
}

static val build_transpose(graph *g, const val *in, void *args) {
    const int *axis = args;
    int rank = graph_get(g, in[0])->rank, a = check_axis(g, axis[0], rank), b = check_axis(g, axis[1], rank);
    int64_t perm[TN_MAX_RANK];
    for (int i = 0; i < rank; i++) perm[i] = i == a ? b : i == b ? a : i;
    return graph_permute(g, in[0], perm);
}
tn_tensor tn_transpose(tn_tensor x, int axis_a, int axis_b) {
    return api_build(NULL, ONE("tn_transpose", x), build_transpose, (int[]){ axis_a, axis_b });
}

static val build_expand(graph *g, const val *in, void *args) {
    const tn_shape *s = args;
    check_rank(g, s);
    const node *x = graph_get(g, in[0]);
    if (s->rank < x->rank) FAIL(g, TN_ERR_SHAPE, "rank %d cannot become rank %d", x->rank, s->rank);
    for (int i = 0; i < s->rank; i++) {
        int k = i - (s->rank - x->rank);
        if (!graph_is_dim(g, s->dim[i])) FAIL(g, TN_ERR_INVAL, "dim %d is %lld, must not be negative", i, (long long)s->dim[i]);
        if (k >= 0 && x->dims[k] != 1 && x->dims[k] != s->dim[i])
            FAIL(g, TN_ERR_SHAPE, "axis %d of size %s cannot become %s: only 1 stretches", k, graph_dim_text(g, x->dims[k]),
                 graph_dims_text(g, g->a, s->rank, s->dim));
    }
    return graph_broadcast(g, in[0], s->rank, s->dim);
}
tn_tensor tn_expand(tn_tensor x, tn_shape shape) { return api_build(NULL, ONE("tn_expand", x), build_expand, &shape); }

static val build_pad(graph *g, const val *in, void *args) {
    const list_args *a = args;
    const node *x = graph_get(g, in[0]);
    check_list(g, "before", a->a, a->n, x->rank);
    check_list(g, "after", a->b, a->n, x->rank);
    for (int i = 0; i < a->n; i++)
        if (!graph_is_dim(g, a->a[i]) || !graph_is_dim(g, a->b[i]))
            FAIL(g, TN_ERR_INVAL, "axis %d is padded by %lld and %lld: use tn_slice to cut", i, (long long)a->a[i],
                 (long long)a->b[i]);
    api_check_value(g, (tn_dtype)x->dtype, a->value);
    return graph_pad(g, in[0], a->a, a->b, a->value);
}
tn_tensor tn_pad(tn_tensor x, const int64_t *before, const int64_t *after, int n_axes, double value) {
    return api_build(NULL, ONE("tn_pad", x), build_pad, &(list_args){ .a = before, .b = after, .n = n_axes, .value = value });
}

/* Start and stop may be handles, or count from the end. */
static void slice_symbolic(graph *g, const list_args *a, int i, ext d, int64_t *start, ext *count, int64_t *step) {
    exts *t = graph_params(g);
    ext end[2] = { a->a[i], a->b[i] };
    step[i] = a->c ? a->c[i] : 1;
    if (step[i] < 1) FAIL(g, TN_ERR_INVAL, "the step of axis %d is %lld, must be at least 1", i, (long long)step[i]);
    for (int k = 0; k < 2; k++) {
        if (!ext_is_lit(end[k]) && ext_index(end[k]) >= t->at.n)
            FAIL(g, TN_ERR_INVAL, "the %s of axis %d is no dim of this graph", k ? "stop" : "start", i);
        if (ext_is_lit(end[k]) && end[k] < 0) end[k] = ext_add(t, d, end[k]);
    }
    if (!ext_never_less(t, end[0], 0) || !ext_never_less(t, end[1], end[0]) || !ext_never_less(t, d, end[1]))
        FAIL(g, TN_ERR_SHAPE, "%s..%s is not always a range of axis %d, which has size %s", graph_dim_text(g, end[0]),
             graph_dim_text(g, end[1]), i, graph_dim_text(g, d));
    start[i] = end[0], count[i] = ext_ceil_div(t, ext_sub(t, end[1], end[0]), step[i]);
}

static val build_slice(graph *g, const val *in, void *args) {
    const list_args *a = args;
    const node *x = graph_get(g, in[0]);
    check_list(g, "start", a->a, a->n, x->rank);
    check_list(g, "stop", a->b, a->n, x->rank);
    int64_t start[TN_MAX_RANK], count[TN_MAX_RANK], step[TN_MAX_RANK];
    for (int i = 0; i < a->n; i++) {
        if (!ext_is_lit(x->dims[i]) || !ext_is_lit(a->a[i]) || !ext_is_lit(a->b[i])) {
            slice_symbolic(g, a, i, x->dims[i], start, count, step);
            continue;
        }
        int64_t d = x->dims[i], lo = a->a[i] < 0 ? a->a[i] + d : a->a[i], hi = a->b[i] < 0 ? a->b[i] + d : a->b[i];
        step[i] = a->c ? a->c[i] : 1;
        if (step[i] < 1) FAIL(g, TN_ERR_INVAL, "the step of axis %d is %lld, must be at least 1", i, (long long)step[i]);
        if (lo < 0 || lo > hi || hi > d)
            FAIL(g, TN_ERR_SHAPE, "%lld..%lld is not a range of axis %d, which has size %lld", (long long)a->a[i],
                 (long long)a->b[i], i, (long long)d);
        start[i] = lo;
        count[i] = lo == hi ? 0 : (hi - lo - 1) / step[i] + 1;
    }
    return graph_slice(g, in[0], start, count, step);
}
tn_tensor tn_slice(tn_tensor x, const int64_t *start, const int64_t *stop, const int64_t *step, int n_axes) {
    return api_build(NULL, ONE("tn_slice", x), build_slice, &(list_args){ .a = start, .b = stop, .c = step, .n = n_axes });
}

typedef struct slice_axis_args {
    int axis;
    int64_t start, stop, step;
} slice_axis_args;
static val build_slice_axis(graph *g, const val *in, void *args) {
    const slice_axis_args *a = args;
    const node *x = graph_get(g, in[0]);
    int axis = check_axis(g, a->axis, x->rank);
    int64_t start[TN_MAX_RANK] = { 0 }, stop[TN_MAX_RANK], step[TN_MAX_RANK];
    for (int i = 0; i < x->rank; i++) stop[i] = x->dims[i], step[i] = 1;
    start[axis] = a->start, step[axis] = a->step;
    if (a->stop != TN_END) stop[axis] = a->stop;
    return build_slice(g, in, &(list_args){ .a = start, .b = stop, .c = step, .n = x->rank });
}
tn_tensor tn_slice_axis(tn_tensor x, int axis, int64_t start, int64_t stop, int64_t step) {
    return api_build(NULL, ONE("tn_slice_axis", x), build_slice_axis, &(slice_axis_args){ axis, start, stop, step });
}

static val build_flip(graph *g, const val *in, void *args) {
    const list_args *a = args;
    return graph_flip(g, in[0], check_axes(g, a->a, a->n, graph_get(g, in[0])->rank));
}
tn_tensor tn_flip(tn_tensor x, const int64_t *axes, int n_axes) {
    return api_build(NULL, ONE("tn_flip", x), build_flip, &(list_args){ .a = axes, .n = n_axes });
}

static val build_window(graph *g, const val *in, void *args) {
    const list_args *a = args;
    const node *x = graph_get(g, in[0]);
    if (a->n < 0) FAIL(g, TN_ERR_INVAL, "the number of axes is %d", a->n);
    if (a->n && !a->b) FAIL(g, TN_ERR_INVAL, "size is NULL");
    if (a->n && !a->a) FAIL(g, TN_ERR_INVAL, "axes is NULL for %d axes", a->n);
    check_axes(g, a->a, a->n, x->rank);
    if (x->rank + a->n > TN_MAX_RANK)
        FAIL(g, TN_ERR_SHAPE, "the result would have rank %d, above %d", x->rank + a->n, TN_MAX_RANK);
    window_axis w[TN_MAX_RANK];
    for (int i = 0; i < a->n; i++) {
        w[i] = (window_axis){ check_axis(g, a->a[i], x->rank), a->b[i], a->c ? a->c[i] : 1, a->d ? a->d[i] : 1 };
        if (w[i].size < 1 || w[i].stride < 1 || w[i].dilation < 1)
            FAIL(g, TN_ERR_INVAL, "size %lld, stride %lld, dilation %lld of axis %d: each must be at least 1",
                 (long long)w[i].size, (long long)w[i].stride, (long long)w[i].dilation, (int)w[i].axis);
        ext d = x->dims[w[i].axis];
        int64_t reach;
        if (!size_mul(w[i].size - 1, w[i].dilation, &reach) || reach >= (ext_is_lit(d) ? d : ext_lo(g->params, d)))
            FAIL(g, TN_ERR_SHAPE, "a window of size %lld and dilation %lld does not fit into axis %d of size %s",
                 (long long)w[i].size, (long long)w[i].dilation, (int)w[i].axis, graph_dim_text(g, d));
    }
    return a->n ? graph_window(g, in[0], w, a->n) : in[0];
}
tn_tensor tn_window(tn_tensor x, const int64_t *axes, const int64_t *size, const int64_t *stride, const int64_t *dilation,
                    int n_axes) {
    return api_build(NULL, ONE("tn_window", x), build_window,
                     &(list_args){ .a = axes, .b = size, .c = stride, .d = dilation, .n = n_axes });
}

typedef struct fold_args {
    list_args w;
    tn_shape shape;
} fold_args;
static val build_fold(graph *g, const val *in, void *args) {
    const fold_args *f = args;
    const list_args *a = &f->w;
    window_axis w[TN_MAX_RANK];
    check_rank(g, &f->shape);
    if (a->n < 0 || a->n > TN_MAX_RANK) FAIL(g, TN_ERR_INVAL, "the number of axes is %d", a->n);
    if (a->n && (!a->a || !a->b)) FAIL(g, TN_ERR_INVAL, "%s is NULL for %d axes", a->a ? "size" : "axes", a->n);
    check_axes(g, a->a, a->n, f->shape.rank);
    for (int i = 0; i < f->shape.rank; i++)
        if (!graph_is_dim(g, f->shape.dim[i])) FAIL(g, TN_ERR_INVAL, "dim %d is %lld", i, (long long)f->shape.dim[i]);
    for (int i = 0; i < a->n; i++)
        w[i] = (window_axis){ check_axis(g, a->a[i], f->shape.rank), a->b[i], a->c ? a->c[i] : 1, a->d ? a->d[i] : 1 };
    return a->n ? graph_fold(g, in[0], w, a->n, f->shape.dim) : in[0];
}
tn_tensor tn_fold(tn_tensor x, const int64_t *axes, const int64_t *size, const int64_t *stride, const int64_t *dilation,
                  int n_axes, tn_shape shape) {
    return api_build(NULL, ONE("tn_fold", x), build_fold,
                     &(fold_args){ { .a = axes, .b = size, .c = stride, .d = dilation, .n = n_axes }, shape });
}

typedef struct concat_args {
    int n, axis;
} concat_args;
static val build_concat(graph *g, const val *in, void *args) {
    const concat_args *a = args;
    const node *x = graph_get(g, in[0]);
    int axis = check_axis(g, a->axis, x->rank);
    for (int k = 1; k < a->n; k++) {
        const node *y = graph_get(g, in[k]);
        if (y->dtype != x->dtype)
            FAIL(g, TN_ERR_DTYPE, "operands 1 and %d are %s and %s: convert one with tn_cast", k + 1,
                 dtype_name((tn_dtype)x->dtype), dtype_name((tn_dtype)y->dtype));
        bool fits = y->rank == x->rank;
        for (int i = 0; fits && i < x->rank; i++) fits = i == axis || x->dims[i] == y->dims[i];
        if (!fits)
            FAIL(g, TN_ERR_SHAPE, "operands 1 and %d, %s and %s, differ in more than axis %d", k + 1,
                 graph_shape_text(g, g->a, in[0]), graph_shape_text(g, g->a, in[k]), axis);
    }
    return a->n == 1 ? in[0] : graph_concat(g, in, a->n, axis);
}
tn_tensor tn_concat(const tn_tensor *xs, int n, int axis) {
    if (!xs || n < 1) return (tn_tensor){ NULL, 0 }; /* no graph to tell */
    return api_build(NULL, &(call){ .name = "tn_concat", .in = xs, .n_in = n }, build_concat, &(concat_args){ n, axis });
}

/* ---- contraction ---- */

typedef struct dot_args {
    const int64_t *batch_a, *batch_b, *contract_a, *contract_b;
    int nb, nc;
} dot_args;

static void dot_axes(graph *g, const char *name, const int64_t *axes, int n, int rank, uint64_t *used, int64_t *out) {
    if (n < 0) FAIL(g, TN_ERR_INVAL, "the number of %s axes is %d", name, n);
    if (n && !axes) FAIL(g, TN_ERR_INVAL, "%s is NULL for %d axes", name, n);
    uint64_t mask = check_axes(g, axes, n, rank);
    if (mask & *used) FAIL(g, TN_ERR_INVAL, "an axis of %s is a batch axis already", name);
    *used |= mask;
    for (int i = 0; i < n; i++) out[i] = check_axis(g, axes[i], rank);
}
static void dot_sizes(graph *g, const char *kind, const node *a, const node *b, const int64_t *axes_a, const int64_t *axes_b,
                      int n) {
    for (int i = 0; i < n; i++)
        if (a->dims[axes_a[i]] != b->dims[axes_b[i]])
            FAIL(g, TN_ERR_SHAPE, "%s axis %d of the first has size %s, axis %d of the second %s", kind, (int)axes_a[i],
                 graph_dim_text(g, a->dims[axes_a[i]]), (int)axes_b[i], graph_dim_text(g, b->dims[axes_b[i]]));
}
static void check_dot_dtypes(graph *g, val a, val b) {
    tn_dtype s = (tn_dtype)graph_get(g, a)->dtype, t = (tn_dtype)graph_get(g, b)->dtype;
    if (s != t) FAIL(g, TN_ERR_DTYPE, "the dtypes differ, %s and %s: convert one with tn_cast", dtype_name(s), dtype_name(t));
}
static val build_dot(graph *g, const val *in, void *args) {
    const dot_args *d = args;
    const node *a = graph_get(g, in[0]), *b = graph_get(g, in[1]);
    int64_t axes[4][TN_MAX_RANK];
    uint64_t used_a = 0, used_b = 0;
    check_dot_dtypes(g, in[0], in[1]);
    dot_axes(g, "batch_a", d->batch_a, d->nb, a->rank, &used_a, axes[0]);
    dot_axes(g, "batch_b", d->batch_b, d->nb, b->rank, &used_b, axes[1]);
    dot_axes(g, "contract_a", d->contract_a, d->nc, a->rank, &used_a, axes[2]);
    dot_axes(g, "contract_b", d->contract_b, d->nc, b->rank, &used_b, axes[3]);
    dot_sizes(g, "batch", a, b, axes[0], axes[1], d->nb);
    dot_sizes(g, "contracted", a, b, axes[2], axes[3], d->nc);
    return graph_dot(g, in[0], in[1], axes[0], axes[1], d->nb, axes[2], axes[3], d->nc);
}
tn_tensor tn_dot(tn_tensor a, tn_tensor b, const int64_t *batch_a, const int64_t *batch_b, int n_batch,
                 const int64_t *contract_a, const int64_t *contract_b, int n_contract) {
    dot_args d = { batch_a, batch_b, contract_a, contract_b, n_batch, n_contract };
    return api_build(NULL, &(call){ .name = "tn_dot", .in = (tn_tensor[]){ a, b }, .n_in = 2 }, build_dot, &d);
}

/* The leading axes of both, broadcast. */
static int matmul_batch(graph *g, const node *a, const node *b, int64_t *dims) {
    int na = a->rank - 2, nb = b->rank - 2, n = na > nb ? na : nb;
    for (int i = 1; i <= n; i++) {
        int64_t p = i <= na ? a->dims[na - i] : 1, q = i <= nb ? b->dims[nb - i] : 1;
        if (p != q && p != 1 && q != 1)
            FAIL(g, TN_ERR_SHAPE, "the leading axes do not broadcast: axis %d from the end is %s and %s", i + 2,
                 graph_dim_text(g, p), graph_dim_text(g, q));
        dims[n - i] = p == 1 ? q : p;
    }
    return n;
}
static val matmul_expand(graph *g, val x, int n_batch, const int64_t *batch) {
    const node *n = graph_get(g, x);
    int64_t dims[TN_MAX_RANK];
    memcpy(dims, batch, sizeof(int64_t) * (size_t)n_batch);
    memcpy(dims + n_batch, n->dims + n->rank - 2, sizeof(int64_t) * 2);
    return graph_broadcast(g, x, n_batch + 2, dims);
}
/* A matrix on one side needs no copy a batch element: it is contracted as it is, and its free axis moved into place. */
static val matmul_matrices(graph *g, val a, val b) {
    const node *x = graph_get(g, a), *y = graph_get(g, b);
    int64_t batch[TN_MAX_RANK], axes[TN_MAX_RANK], k_a = x->rank - 1, k_b = y->rank - 2;
    int n = matmul_batch(g, x, y, batch);
    if (y->rank == 2) return graph_dot(g, a, b, NULL, NULL, 0, &k_a, &k_b, 1);
    if (x->rank == 2) {
        val r = graph_dot(g, a, b, NULL, NULL, 0, &k_a, &k_b, 1); /* m, batch, n */
        for (int i = 0; i < n; i++) axes[i] = i + 1;
        axes[n] = 0;
        axes[n + 1] = n + 1;
        return graph_permute(g, r, axes);
    }
    a = matmul_expand(g, a, n, batch);
    b = matmul_expand(g, b, n, batch);
    for (int i = 0; i < n; i++) axes[i] = i;
    k_a = n + 1;
    k_b = n;
    return graph_dot(g, a, b, axes, axes, n, &k_a, &k_b, 1);
}
static val build_matmul(graph *g, const val *in, void *args) {
    (void)args;
    const node *x = graph_get(g, in[0]), *y = graph_get(g, in[1]);
    int rank_a = x->rank, rank_b = y->rank;
    check_dot_dtypes(g, in[0], in[1]);
    if (!rank_a || !rank_b) FAIL(g, TN_ERR_SHAPE, "a scalar has no matrix product: use tn_mul");
    int64_t k_a = x->dims[rank_a - 1], k_b = y->dims[rank_b > 1 ? rank_b - 2 : 0];
    if (k_a != k_b)
        FAIL(g, TN_ERR_SHAPE, "the last axis of the first has size %s, the %s axis of the second %s", graph_dim_text(g, k_a),
             rank_b > 1 ? "last but one" : "only", graph_dim_text(g, k_b));
    val a = in[0], b = in[1];
    if (rank_a == 1) a = graph_reshape(g, a, 2, (int64_t[]){ 1, k_a });
    if (rank_b == 1) b = graph_reshape(g, b, 2, (int64_t[]){ k_b, 1 });
    val r = matmul_matrices(g, a, b);
    int rank = graph_get(g, r)->rank;
    uint64_t drop = (rank_a == 1 ? (uint64_t)1 << (rank - 2) : 0) | (rank_b == 1 ? (uint64_t)1 << (rank - 1) : 0);
    return drop_axes(g, r, drop);
}
tn_tensor tn_matmul(tn_tensor a, tn_tensor b) {
    return api_build(NULL, &(call){ .name = "tn_matmul", .in = (tn_tensor[]){ a, b }, .n_in = 2 }, build_matmul, NULL);
}

/* ---- gather and scatter ---- */

static void check_index(graph *g, val index) {
    tn_dtype t = (tn_dtype)graph_get(g, index)->dtype;
    if (t != TN_I32 && t != TN_I64) FAIL(g, TN_ERR_DTYPE, "the index is %s, must be i32 or i64", dtype_name(t));
}
static val build_gather(graph *g, const val *in, void *args) {
    const node *x = graph_get(g, in[0]), *index = graph_get(g, in[1]);
    check_index(g, in[1]);
    int axis = check_axis(g, *(int *)args, x->rank);
    if (x->rank - 1 + index->rank > TN_MAX_RANK)
        FAIL(g, TN_ERR_SHAPE, "the result would have rank %d, above %d", x->rank - 1 + index->rank, TN_MAX_RANK);
    if (x->dims[axis] == 0 && graph_elems(g, in[1])) FAIL(g, TN_ERR_SHAPE, "axis %d has no elements to choose from", axis);
    return graph_gather(g, in[0], in[1], axis);
}
tn_tensor tn_gather(tn_tensor x, tn_tensor index, int axis) {
    return api_build(NULL, &(call){ .name = "tn_gather", .in = (tn_tensor[]){ x, index }, .n_in = 2 }, build_gather, &axis);
}
typedef struct scatter_args {
    op_code op;
    int axis;
} scatter_args;
static val build_scatter(graph *g, const val *in, void *args) {
    const scatter_args *x = args;
    if (!x->op) FAIL(g, TN_ERR_INVAL, "there is no such mode");
    check_index(g, in[1]);
    check_dot_dtypes(g, in[0], in[2]);
    return graph_scatter(g, x->op, in[0], in[1], in[2], check_axis(g, x->axis, graph_get(g, in[0])->rank), 0);
}
tn_tensor tn_scatter_add(tn_tensor base, tn_tensor index, tn_tensor updates, int axis) {
    return api_build(NULL, &(call){ .name = "tn_scatter_add", .in = (tn_tensor[]){ base, index, updates }, .n_in = 3 },
                     build_scatter, &(scatter_args){ OP_scatter_add, axis });
}
tn_tensor tn_scatter_set(tn_tensor base, tn_tensor index, tn_tensor updates, int axis) {
    return api_build(NULL, &(call){ .name = "tn_scatter_set", .in = (tn_tensor[]){ base, index, updates }, .n_in = 3 },
                     build_scatter, &(scatter_args){ OP_scatter_set, axis });
}
tn_tensor tn_scatter(tn_tensor base, tn_tensor index, tn_tensor updates, int axis, tn_scatter_mode mode) {
    static const op_code ops[] = { OP_scatter_add, OP_scatter_set, OP_scatter_mul, OP_scatter_max, OP_scatter_min };
    return api_build(NULL, &(call){ .name = "tn_scatter", .in = (tn_tensor[]){ base, index, updates }, .n_in = 3 },
                     build_scatter, &(scatter_args){ (unsigned)mode < COUNT_OF(ops) ? ops[mode] : OP_NIL, axis });
}
