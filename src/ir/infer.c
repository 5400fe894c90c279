/* infer.c - the shape and dtype rule of every op class. In: a spec over the nodes of a graph. Out: the result's type, or a text
 * that shows the op, its operands' types and what was expected. Reads the graph only; texts belong to the arena given.
 *
 * Rules that compute with symbolic dims add rows to the graph's table of parameters. */
#include "ir/graph.h"
#include "ir/region.h"

#include <stdio.h>

typedef struct rule {
    const graph *g;
    const spec *s;
    arena *a;
    tn_status *code;
    tn_dtype dtype; /* the result */
    int rank;
    int64_t *dims;
} rule;

static void add_dim(str *b, const graph *g, ext d) {
    if (!ext_is_lit(d) && g->params && ext_index(d) < g->params->at.n)
        ext_print_plain(g->params, d, b);
    else
        str_addf(b, "%lld", (long long)d);
}
static void add_dims(str *b, const graph *g, int rank, const int64_t *dims) {
    str_add(b, rank && !dims ? "[?" : "[");
    for (int i = 0; i < rank && dims; i++) {
        if (i) str_add(b, ",");
        add_dim(b, g, dims[i]);
    }
    str_add(b, "]");
}
const char *graph_dims_text(const graph *g, arena *a, int rank, const int64_t *dims) {
    str b;
    str_init(&b, a);
    add_dims(&b, g, rank, dims);
    return b.s;
}
const char *graph_shape_text(const graph *g, arena *a, val v) {
    str b;
    str_init(&b, a);
    const node *n = graph_get(g, v);
    str_add(&b, dtype_name((tn_dtype)n->dtype));
    add_dims(&b, g, n->rank, n->dims);
    return b.s;
}

enum { SHOWN_OPERANDS = 6 }; /* of long operand lists in error texts */

/* "add(x f32[2], f32[3]): message" */
static const char *fail(rule *r, tn_status code, const char *fmt, ...) PRINTF_LIKE(3, 4);
static const char *fail(rule *r, tn_status code, const char *fmt, ...) {
    str b;
    str_init(&b, r->a);
    str_addf(&b, "%s(", op_get(r->s->op)->name);
    for (int i = 0; i < r->s->n_in; i++) {
        val v = r->s->in[i];
        if (i) str_add(&b, ", ");
        if (i == SHOWN_OPERANDS) {
            str_addf(&b, "... %d operands", r->s->n_in);
            break;
        }
        if (v == 0 || v >= (val)r->g->nodes.n) {
            str_addf(&b, "%%%u", v);
            continue;
        }
        const node *n = graph_get(r->g, v);
        if (n->name) str_addf(&b, "%.64s ", n->name);
        str_add(&b, dtype_name((tn_dtype)n->dtype));
        add_dims(&b, r->g, n->rank, n->dims);
    }
    str_add(&b, "): ");
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    str_add(&b, text);
    *r->code = code;
    return b.s;
}
#define SHAPE(r, ...) fail(r, TN_ERR_SHAPE, __VA_ARGS__)
#define DTYPE(r, ...) fail(r, TN_ERR_DTYPE, __VA_ARGS__)
#define INVAL(r, ...) fail(r, TN_ERR_INVAL, __VA_ARGS__)
#define TRY(e)                                                                                                                 \
    do {                                                                                                                       \
        const char *text_ = (e);                                                                                               \
        if (text_) return text_;                                                                                               \
    } while (0)

static const node *operand(const rule *r, int i) { return graph_get(r->g, r->s->in[i]); }
static const char *dims_text(const rule *r, int rank, const int64_t *dims) { return graph_dims_text(r->g, r->a, rank, dims); }
static const char *dim_text(const rule *r, ext d) {
    str b;
    str_init(&b, r->a);
    add_dim(&b, r->g, d);
    return b.s;
}
static bool dims_equal(int rank_x, const int64_t *x, int rank_y, const int64_t *y) {
    return rank_x == rank_y && (rank_x == 0 || !memcmp(x, y, (size_t)rank_x * sizeof *x));
}
static bool is_num(tn_dtype t) { return dtype_info(t)->arithmetic && t != TN_BOOL; }
/* What is said of a dtype that an op does not accept. */
static const char *storage_text(tn_dtype t) {
    return dtype_info(t)->arithmetic ? "" : ", which is stored only: cast it to calculate";
}

static void result_like(rule *r, const node *n) {
    r->dtype = (tn_dtype)n->dtype;
    r->rank = n->rank;
    if (n->rank) memcpy(r->dims, n->dims, n->rank * sizeof *n->dims);
}
static void result_spec(rule *r, tn_dtype t) {
    r->dtype = t;
    r->rank = r->s->rank;
    if (r->rank) memcpy(r->dims, r->s->dims, (size_t)r->rank * sizeof *r->dims);
}

static const char *check_operands(rule *r) {
    int arity = op_get(r->s->op)->arity, n = r->s->n_in;
    for (int i = 0; i < n; i++)
        if (r->s->in[i] == 0 || r->s->in[i] >= (val)r->g->nodes.n || operand(r, i)->op == OP_NIL)
            return INVAL(r, "operand %d is %%%u, which does not exist", i, r->s->in[i]);
    if (arity >= 0 && n != arity) return INVAL(r, "expected %d operands, got %d", arity, n);
    for (int i = 1; i < n; i++)
        if (operand(r, i)->region != operand(r, 0)->region)
            return INVAL(r, "operand %d belongs to another region than operand 0", i);
    if (n && r->s->region && operand(r, 0)->region != r->s->region) return INVAL(r, "operands belong to another region");
    return NULL;
}
static bool is_row(const rule *r, ext e) { return !ext_is_lit(e) && r->g->params && ext_index(e) < r->g->params->at.n; }
static bool is_size(const rule *r, ext e) { return e >= 0 || (is_row(r, e) && ext_is_size(r->g->params, e)); }
static const char *check_spec_dims(rule *r) {
    const spec *s = r->s;
    if (s->rank < 0 || s->rank > TN_MAX_RANK || (s->rank && !s->dims))
        return SHAPE(r, "rank %d; expected 0 to %d", s->rank, TN_MAX_RANK);
    for (int i = 0; i < s->rank; i++) {
        if (s->dims[i] >= 0) continue;
        if (!is_row(r, s->dims[i])) return SHAPE(r, "dim %d is %lld; expected 0 or more", i, (long long)s->dims[i]);
        if (!is_size(r, s->dims[i])) return SHAPE(r, "dim %d, %s, may be less than 0", i, dim_text(r, s->dims[i]));
    }
    return NULL;
}
/* Product of dims (an empty axis counts as 1, so that strides fit too) and bytes must fit int64; symbols count with their upper
 * end. */
static const char *check_size(rule *r) {
    int64_t n = (int64_t)dtype_size(r->dtype);
    for (int i = 0; i < r->rank; i++) {
        int64_t d = graph_dim_most(r->g, r->dims[i]);
        if (!size_mul(n, d > 1 ? d : 1, &n))
            return SHAPE(r, "result %s%s has more bytes than 63 bits can count", dtype_name(r->dtype),
                         dims_text(r, r->rank, r->dims));
    }
    return NULL;
}
static const char *check_attr(rule *r, int64_t n) {
    if (r->s->n_attr != n) return INVAL(r, "expected %lld attribute values, got %d", (long long)n, r->s->n_attr);
    return NULL;
}
static const char *check_axis(rule *r, int64_t axis, int rank) {
    if (axis < 0 || axis >= rank) return SHAPE(r, "axis %lld; expected 0 to %d", (long long)axis, rank - 1);
    return NULL;
}
static const char *check_mask(rule *r, int rank) {
    TRY(check_attr(r, 1));
    if ((uint64_t)r->s->attr[0] >> rank)
        return SHAPE(r, "axes mask 0x%llx names axes beyond rank %d", (unsigned long long)r->s->attr[0], rank);
    return NULL;
}
static const char *check_axis_list(rule *r, const char *what, const int64_t *axes, int64_t n, int rank, uint64_t *seen) {
    for (int64_t i = 0; i < n; i++) {
        if (axes[i] < 0 || axes[i] >= rank)
            return SHAPE(r, "%s axis %lld; expected 0 to %d", what, (long long)axes[i], rank - 1);
        if (*seen >> axes[i] & 1) return SHAPE(r, "%s axis %lld is given twice", what, (long long)axes[i]);
        *seen |= (uint64_t)1 << axes[i];
    }
    return NULL;
}

/* ---- elementwise, cast, reductions ---- */

static const char *infer_elementwise(rule *r) {
    const op_info *o = op_get(r->s->op);
    int first = o->arity == 3 ? 1 : 0; /* select: operand 0 is the bool condition */
    const node *x = operand(r, first);
    tn_dtype t = (tn_dtype)x->dtype;
    for (int i = 0; i < o->arity; i++)
        if (!dims_equal(operand(r, i)->rank, operand(r, i)->dims, x->rank, x->dims))
            return SHAPE(r, "expected operands of equal shape, operand %d is %s, operand %d is %s", first,
                         dims_text(r, x->rank, x->dims), i, dims_text(r, operand(r, i)->rank, operand(r, i)->dims));
    for (int i = first; i < o->arity; i++)
        if (operand(r, i)->dtype != t)
            return DTYPE(r, "expected operands of equal dtype, got %s and %s; use cast", dtype_name(t),
                         dtype_name((tn_dtype)operand(r, i)->dtype));
    if (first && operand(r, 0)->dtype != TN_BOOL)
        return DTYPE(r, "expected a bool condition, got %s", dtype_name((tn_dtype)operand(r, 0)->dtype));
    const char *want = NULL;
    switch (o->cls) {
    case CL_FLT:
        want = dtype_is_float(t) && is_num(t) ? NULL : "a float dtype";
        break;
    case CL_NUM:
    case CL_CMP:
        want = is_num(t) ? NULL : "a float or integer dtype";
        break;
    case CL_BIT:
        want = dtype_is_float(t) ? "an integer dtype or bool" : NULL;
        break;
    case CL_INT:
        want = dtype_is_float(t) || t == TN_BOOL ? "an integer dtype" : NULL;
        break;
    case CL_LOG:
        want = t == TN_BOOL ? NULL : "bool";
        break;
    default:
        break;
    }
    if (want) return DTYPE(r, "expected %s, got %s%s", want, dtype_name(t), storage_text(t));
    result_like(r, x);
    if (o->cls == CL_CMP) r->dtype = TN_BOOL;
    return NULL;
}
static const char *infer_reduce(rule *r) {
    const node *x = operand(r, 0);
    TRY(check_mask(r, x->rank));
    if (!is_num((tn_dtype)x->dtype))
        return DTYPE(r, "expected a float or integer dtype, got %s%s", dtype_name((tn_dtype)x->dtype),
                     storage_text((tn_dtype)x->dtype));
    result_like(r, x);
    for (int i = 0; i < x->rank; i++)
        if (r->s->attr[0] >> i & 1) r->dims[i] = 1;
    return NULL;
}
static const char *infer_arg(rule *r) {
    const node *x = operand(r, 0);
    TRY(check_attr(r, 1));
    TRY(check_axis(r, r->s->attr[0], x->rank));
    if (!is_num((tn_dtype)x->dtype))
        return DTYPE(r, "expected a float or integer dtype, got %s%s", dtype_name((tn_dtype)x->dtype),
                     storage_text((tn_dtype)x->dtype));
    result_like(r, x);
    ext d = x->dims[r->s->attr[0]];
    if (d == 0) return SHAPE(r, "axis %lld is empty: it has no such element", (long long)r->s->attr[0]);
    if (!ext_is_lit(d) && ext_lo(r->g->params, d) < 1)
        return SHAPE(r, "axis %lld may be empty: its size is %s", (long long)r->s->attr[0], dim_text(r, d));
    r->dtype = TN_I64;
    r->dims[r->s->attr[0]] = 1;
    return NULL;
}

/* ---- movement ---- */

/* The product of dims, as a literal times symbolic factors, ascending. */
enum { MOST_FACTORS = 32 };
typedef struct product {
    int64_t literal, part; /* literal / part times the factors */
    int n;
    ext at[MOST_FACTORS];
} product;

static bool multiply(const rule *r, product *x, ext d, int depth) {
    const ext_row *row = ext_is_lit(d) ? NULL : exts_row(r->g->params, d);
    if (!row || row->lo == row->hi) { /* a dim of one size is that size in expressions */
        d = row ? row->lo : d;
        if (d == 0 || x->literal == 0) x->literal = 0;
        return x->literal == 0 || size_mul(x->literal, d, &x->literal);
    }
    if (row->op == EXT_MUL && depth < MOST_FACTORS)
        return multiply(r, x, row->a, depth + 1) && multiply(r, x, row->b, depth + 1);
    if (row->op == EXT_FLOOR && ext_is_lit(row->b) && ext_divisor(r->g->params, row->a) % row->b == 0)
        return size_mul(x->part, row->b, &x->part) && multiply(r, x, row->a, depth + 1);
    if (x->n == MOST_FACTORS) return false;
    int i = x->n++;
    for (; i > 0 && x->at[i - 1] > d; i--) x->at[i] = x->at[i - 1];
    x->at[i] = d;
    return true;
}
static bool product_of(const rule *r, int rank, const ext *dims, product *out) {
    *out = (product){ .literal = 1, .part = 1 };
    for (int i = 0; i < rank; i++)
        if (!multiply(r, out, dims[i], 0)) return false;
    return true;
}
static bool same_product(const product *x, const product *y) {
    int64_t a, b;
    return size_mul(x->literal, y->part, &a) && size_mul(y->literal, x->part, &b) && a == b && x->n == y->n &&
           !memcmp(x->at, y->at, sizeof *x->at * (size_t)x->n);
}
static int count_dim(int rank, const int64_t *dims, int64_t d) {
    int n = 0;
    for (int i = 0; i < rank; i++) n += dims[i] == d;
    return n;
}
static const char *infer_reshape(rule *r) {
    const node *x = operand(r, 0);
    const spec *s = r->s;
    product from, to;
    result_spec(r, (tn_dtype)x->dtype);
    if (!product_of(r, x->rank, x->dims, &from) || !product_of(r, s->rank, s->dims, &to))
        return SHAPE(r, "%s has more elements than 63 bits can count", dims_text(r, s->rank, s->dims));
    if (from.literal != 0 && to.literal != 0 && (from.n || to.n) && !same_product(&from, &to))
        return SHAPE(r, "%s and the result %s do not have as many elements for all values of the symbolic dims",
                     dims_text(r, x->rank, x->dims), dims_text(r, s->rank, s->dims));
    if ((from.literal == 0 || to.literal == 0 || (!from.n && !to.n)) && from.literal != to.literal)
        return SHAPE(r, "%s has %lld elements, the result %s would have %lld", dims_text(r, x->rank, x->dims),
                     (long long)from.literal, dims_text(r, s->rank, s->dims), (long long)to.literal);
    return NULL;
}
static const char *infer_permute(rule *r) {
    const node *x = operand(r, 0);
    uint64_t seen = 0;
    TRY(check_attr(r, x->rank));
    TRY(check_axis_list(r, "perm", r->s->attr, x->rank, x->rank, &seen));
    result_like(r, x);
    for (int i = 0; i < x->rank; i++) r->dims[i] = x->dims[r->s->attr[i]];
    return NULL;
}
static const char *infer_expand(rule *r) {
    const node *x = operand(r, 0);
    result_spec(r, (tn_dtype)x->dtype);
    if (r->rank != x->rank) return SHAPE(r, "expected a result of rank %d, got %s", x->rank, dims_text(r, r->rank, r->dims));
    for (int i = 0; i < x->rank; i++)
        if (x->dims[i] != r->dims[i] && x->dims[i] != 1)
            return SHAPE(r, "axis %d cannot be repeated to %s: only axes of size 1 can", i, dims_text(r, r->rank, r->dims));
    return NULL;
}
static const char *infer_pad(rule *r) {
    const node *x = operand(r, 0);
    TRY(check_attr(r, 2 * x->rank));
    const int64_t *before = r->s->attr, *after = before + x->rank;
    result_like(r, x);
    for (int i = 0; i < x->rank; i++) {
        bool known = x->dims[i] >= 0 && ext_is_lit(before[i]) && ext_is_lit(after[i]);
        if (!is_size(r, before[i]) || !is_size(r, after[i]))
            return SHAPE(r, "axis %d padded by %s and %s; expected 0 or more", i, dim_text(r, before[i]),
                         dim_text(r, after[i]));
        if (!known) r->dims[i] = ext_add(r->g->params, ext_add(r->g->params, x->dims[i], before[i]), after[i]);
        if (known && (!size_add(x->dims[i], before[i], &r->dims[i]) || !size_add(r->dims[i], after[i], &r->dims[i])))
            return SHAPE(r, "axis %d padded by %lld and %lld overflows", i, (long long)before[i], (long long)after[i]);
    }
    return NULL;
}
static const char *infer_slice(rule *r) {
    const node *x = operand(r, 0);
    TRY(check_attr(r, 2 * x->rank));
    const int64_t *start = r->s->attr, *step = start + x->rank;
    result_spec(r, (tn_dtype)x->dtype);
    if (r->rank != x->rank) return SHAPE(r, "expected a result of rank %d, got %s", x->rank, dims_text(r, r->rank, r->dims));
    for (int i = 0; i < x->rank; i++) {
        int64_t n = r->dims[i], d = x->dims[i], last = start[i];
        if (d < 0 || n < 0 || !ext_is_lit(start[i])) {
            exts *t = r->g->params;
            if (is_size(r, start[i]) && step[i] >= 1 &&
                ext_never_less(t, d, ext_add(t, ext_mul(t, ext_add(t, n, -1), step[i]), ext_add(t, start[i], 1))))
                continue;
            return SHAPE(r, "axis %d: %s elements from %s in steps of %lld are not proven to stay inside its size %s", i,
                         dim_text(r, n), dim_text(r, start[i]), (long long)step[i], dim_text(r, d));
        }
        if (start[i] < 0) return SHAPE(r, "axis %d starts at %lld; expected 0 or more", i, (long long)start[i]);
        if (step[i] < 1) return SHAPE(r, "axis %d has step %lld; expected 1 or more", i, (long long)step[i]);
        bool fits = n == 0 ? start[i] <= d : size_mul(n - 1, step[i], &last) && size_add(last, start[i], &last) && last < d;
        if (!fits)
            return SHAPE(r, "axis %d: %lld elements from %lld in steps of %lld leave the axis of size %lld", i, (long long)n,
                         (long long)start[i], (long long)step[i], (long long)d);
    }
    return NULL;
}
static const char *infer_flip(rule *r) {
    TRY(check_mask(r, operand(r, 0)->rank));
    result_like(r, operand(r, 0));
    return NULL;
}

/* How many windows there are where `more` elements of a run's size lie behind the first: of size 2 and stride 2 in n, n / 2
 * rather than (n - 2) / 2 + 1, so that it is the size that a caller calculates. */
static ext windows_along(exts *t, ext more, int64_t stride) {
    const ext_row *e = ext_is_lit(more) ? NULL : exts_row(t, more);
    if (!e || e->op != EXT_ADD || !ext_is_lit(e->b) || e->b % stride) return ext_add(t, ext_floor_div(t, more, stride), 1);
    ext own = e->a;
    int64_t whole = e->b / stride;
    return ext_add(t, ext_floor_div(t, own, stride), whole + 1);
}

/* Dims of a sliding window over dims[rank], with attr = n, n x (axis, size, stride, dilation). */
static const char *window_dims(rule *r, int rank, const int64_t *dims, int64_t *out, int *out_rank) {
    const spec *s = r->s;
    if (s->n_attr < 1 || s->attr[0] < 0 || s->attr[0] > TN_MAX_RANK || s->n_attr != 1 + 4 * s->attr[0])
        return INVAL(r, "expected attributes n, n x (axis, size, stride, dilation), got %d values", s->n_attr);
    int n = (int)s->attr[0];
    if (rank + n > TN_MAX_RANK) return SHAPE(r, "a result of rank %d; at most %d", rank + n, TN_MAX_RANK);
    uint64_t seen = 0;
    if (rank) memcpy(out, dims, (size_t)rank * sizeof *dims);
    for (int k = 0; k < n; k++) {
        const int64_t *w = s->attr + 1 + 4 * k;
        TRY(check_axis_list(r, "window", w, 1, rank, &seen));
        int64_t d = dims[w[0]], extent;
        if (w[1] < 1 || w[2] < 1 || w[3] < 1)
            return SHAPE(r, "window size %lld, stride %lld, dilation %lld; expected 1 or more", (long long)w[1],
                         (long long)w[2], (long long)w[3]);
        bool fits = size_mul(w[1] - 1, w[3], &extent) && size_add(extent, 1, &extent);
        if (!fits || extent > (ext_is_lit(d) ? d : ext_lo(r->g->params, d)))
            return SHAPE(r, "a window of %lld with dilation %lld is longer than axis %lld of size %s", (long long)w[1],
                         (long long)w[3], (long long)w[0], dim_text(r, d));
        out[w[0]] =
            ext_is_lit(d) ? (d - extent) / w[2] + 1 : windows_along(r->g->params, ext_add(r->g->params, d, -extent), w[2]);
        out[rank + k] = w[1];
    }
    *out_rank = rank + n;
    return NULL;
}
static const char *infer_window(rule *r) {
    const node *x = operand(r, 0);
    result_like(r, x);
    return window_dims(r, x->rank, x->dims, r->dims, &r->rank);
}
static const char *infer_fold(rule *r) {
    const node *x = operand(r, 0);
    int64_t dims[TN_MAX_RANK];
    int rank = 0;
    if (!is_num((tn_dtype)x->dtype))
        return DTYPE(r, "expected a float or integer dtype, got %s%s", dtype_name((tn_dtype)x->dtype),
                     storage_text((tn_dtype)x->dtype));
    result_spec(r, (tn_dtype)x->dtype);
    TRY(window_dims(r, r->rank, r->dims, dims, &rank));
    if (!dims_equal(rank, dims, x->rank, x->dims))
        return SHAPE(r, "expected the windows of %s, which are %s", dims_text(r, r->rank, r->dims), dims_text(r, rank, dims));
    return NULL;
}

static const char *infer_move(rule *r) {
    switch (r->s->op) {
    case OP_again:
        TRY(check_attr(r, 0));
        result_like(r, operand(r, 0));
        return NULL;
    case OP_reshape:
        return infer_reshape(r);
    case OP_permute:
        return infer_permute(r);
    case OP_expand:
        return infer_expand(r);
    case OP_pad:
        return infer_pad(r);
    case OP_slice:
        return infer_slice(r);
    case OP_flip:
        return infer_flip(r);
    default:
        return infer_window(r);
    }
}

/* ---- several operands ---- */

static const char *infer_concat(rule *r) {
    if (r->s->n_in < 1) return INVAL(r, "expected 1 operand or more");
    const node *x = operand(r, 0);
    TRY(check_attr(r, 1));
    TRY(check_axis(r, r->s->attr[0], x->rank));
    int axis = (int)r->s->attr[0];
    result_like(r, x);
    for (int i = 1; i < r->s->n_in; i++) {
        const node *y = operand(r, i);
        if (y->dtype != x->dtype)
            return DTYPE(r, "operand %d is %s, operand 0 is %s; use cast", i, dtype_name((tn_dtype)y->dtype),
                         dtype_name((tn_dtype)x->dtype));
        bool same = y->rank == x->rank;
        for (int k = 0; same && k < x->rank; k++) same = k == axis || y->dims[k] == x->dims[k];
        if (!same)
            return SHAPE(r, "operand %d is %s; expected the dims of operand 0, %s, except along axis %d", i,
                         dims_text(r, y->rank, y->dims), dims_text(r, x->rank, x->dims), axis);
        if (r->dims[axis] < 0 || y->dims[axis] < 0)
            r->dims[axis] = ext_add(r->g->params, r->dims[axis], y->dims[axis]);
        else if (!size_add(r->dims[axis], y->dims[axis], &r->dims[axis]))
            return SHAPE(r, "axis %d overflows", axis);
    }
    return NULL;
}
static const char *dot_pairs(rule *r, const char *what, const int64_t *xs, const int64_t *ys, int64_t n, uint64_t *seen_x,
                             uint64_t *seen_y) {
    const node *x = operand(r, 0), *y = operand(r, 1);
    TRY(check_axis_list(r, what, xs, n, x->rank, seen_x));
    TRY(check_axis_list(r, what, ys, n, y->rank, seen_y));
    for (int64_t i = 0; i < n; i++)
        if (x->dims[xs[i]] != y->dims[ys[i]])
            return SHAPE(r, "expected %s axes of equal size, axis %lld of operand 0 is %s, axis %lld of operand 1 is %s", what,
                         (long long)xs[i], dims_text(r, 1, &x->dims[xs[i]]), (long long)ys[i],
                         dims_text(r, 1, &y->dims[ys[i]]));
    return NULL;
}
static const char *infer_dot(rule *r) {
    const node *x = operand(r, 0), *y = operand(r, 1);
    const spec *s = r->s;
    if (s->n_attr < 2 || s->attr[0] < 0 || s->attr[0] > TN_MAX_RANK || s->attr[1] < 0 || s->attr[1] > TN_MAX_RANK ||
        s->n_attr != 2 + 2 * (s->attr[0] + s->attr[1]))
        return INVAL(r, "expected attributes nb, nc, batch_a, batch_b, contract_a, contract_b, got %d values", s->n_attr);
    int64_t nb = s->attr[0], nc = s->attr[1];
    const int64_t *ba = s->attr + 2, *bb = ba + nb, *ca = bb + nb, *cb = ca + nc;
    uint64_t seen_x = 0, seen_y = 0;
    if (x->dtype != y->dtype)
        return DTYPE(r, "expected operands of equal dtype, got %s and %s; use cast", dtype_name((tn_dtype)x->dtype),
                     dtype_name((tn_dtype)y->dtype));
    if (!is_num((tn_dtype)x->dtype))
        return DTYPE(r, "expected a float or integer dtype, got %s%s", dtype_name((tn_dtype)x->dtype),
                     storage_text((tn_dtype)x->dtype));
    TRY(dot_pairs(r, "batch", ba, bb, nb, &seen_x, &seen_y));
    TRY(dot_pairs(r, "contracted", ca, cb, nc, &seen_x, &seen_y));
    int64_t rank = x->rank + y->rank - nb - 2 * nc;
    if (rank > TN_MAX_RANK) return SHAPE(r, "a result of rank %lld; at most %d", (long long)rank, TN_MAX_RANK);
    r->dtype = (tn_dtype)x->dtype;
    r->rank = 0;
    for (int64_t i = 0; i < nb; i++) r->dims[r->rank++] = x->dims[ba[i]];
    for (int i = 0; i < x->rank; i++)
        if (!(seen_x >> i & 1)) r->dims[r->rank++] = x->dims[i];
    for (int i = 0; i < y->rank; i++)
        if (!(seen_y >> i & 1)) r->dims[r->rank++] = y->dims[i];
    return NULL;
}
/* Dims of x with axis replaced by the dims of index behind its first `batch`, which are those of x, too. */
static const char *gather_dims(rule *r, const node *x, const node *index, int batch, int64_t *out, int *out_rank) {
    TRY(check_axis(r, r->s->attr[0], x->rank));
    int axis = (int)r->s->attr[0], n = 0;
    if (index->dtype != TN_I32 && index->dtype != TN_I64)
        return DTYPE(r, "expected an index of i32 or i64, got %s", dtype_name((tn_dtype)index->dtype));
    if (x->rank - 1 + index->rank - batch > TN_MAX_RANK)
        return SHAPE(r, "a result of rank %d; at most %d", x->rank - 1 + index->rank - batch, TN_MAX_RANK);
    for (int i = 0; i < axis; i++) out[n++] = x->dims[i];
    for (int i = batch; i < index->rank; i++) out[n++] = index->dims[i];
    for (int i = axis + 1; i < x->rank; i++) out[n++] = x->dims[i];
    *out_rank = n;
    return NULL;
}
static const char *infer_gather(rule *r) {
    const node *x = operand(r, 0), *index = operand(r, 1);
    TRY(check_attr(r, 1));
    TRY(gather_dims(r, x, index, 0, r->dims, &r->rank));
    r->dtype = (tn_dtype)x->dtype;
    bool empty = count_dim(index->rank, index->dims, 0) > 0;
    if (x->dims[r->s->attr[0]] == 0 && !empty)
        return SHAPE(r, "axis %lld is empty: there is nothing to pick", (long long)r->s->attr[0]);
    return NULL;
}
static const char *infer_scatter(rule *r) {
    const node *x = operand(r, 0), *index = operand(r, 1), *updates = operand(r, 2);
    int64_t dims[TN_MAX_RANK];
    int rank = 0;
    TRY(check_attr(r, 2));
    TRY(check_axis(r, r->s->attr[0], x->rank));
    int64_t batch = r->s->attr[1];
    if (batch < 0 || batch > r->s->attr[0] || batch > index->rank || !dims_equal((int)batch, x->dims, (int)batch, index->dims))
        return SHAPE(r, "the first %lld axes are not those of the index, before the axis", (long long)batch);
    TRY(gather_dims(r, x, index, (int)batch, dims, &rank));
    if (!is_num((tn_dtype)x->dtype) && !(r->s->op == OP_scatter_set && x->dtype == TN_BOOL))
        return DTYPE(r, "expected a float or integer dtype, got %s%s", dtype_name((tn_dtype)x->dtype),
                     storage_text((tn_dtype)x->dtype));
    if (updates->dtype != x->dtype)
        return DTYPE(r, "expected updates of dtype %s, got %s", dtype_name((tn_dtype)x->dtype),
                     dtype_name((tn_dtype)updates->dtype));
    if (!dims_equal(rank, dims, updates->rank, updates->dims))
        return SHAPE(r, "expected updates of shape %s, got %s", dims_text(r, rank, dims),
                     dims_text(r, updates->rank, updates->dims));
    result_like(r, x);
    return NULL;
}

/* ---- sources ---- */

static const char *infer_source(rule *r) {
    const spec *s = r->s;
    if ((unsigned)s->dtype >= TN_N_DTYPES) return DTYPE(r, "dtype number %d does not exist", (int)s->dtype);
    result_spec(r, s->dtype);
    if (s->op == OP_input || s->op == OP_state) {
        if (!s->name || !s->name[0]) return INVAL(r, "expected a name");
        if (s->region) return INVAL(r, "%s cannot be declared inside a region", s->name);
    }
    if (s->op == OP_iota) {
        TRY(check_attr(r, 1));
        TRY(check_axis(r, s->attr[0], s->rank));
        if (!is_num(s->dtype)) return DTYPE(r, "expected a float or integer dtype, got %s", dtype_name(s->dtype));
        return NULL;
    }
    TRY(check_attr(r, 0));
    for (int i = 0; i < s->rank; i++)
        if (s->dims[i] < 0 && (s->op == OP_state || (s->op == OP_const && !s->splat)))
            return fail(r, TN_ERR_UNSUPPORTED, "dim %d is symbolic: an array of unknown size cannot be stored", i);
    if (s->op == OP_const && !s->splat && !s->data && !count_dim(s->rank, s->dims, 0))
        return INVAL(r, "expected one value or an array");
    return NULL;
}
static const char *infer_random(rule *r) {
    const node *c = operand(r, 0);
    TRY(check_attr(r, 1));
    if (c->dtype != TN_I64 || c->rank)
        return c->rank ? SHAPE(r, "expected a counter of i64[]") : DTYPE(r, "expected a counter of i64[]");
    result_spec(r, TN_F32);
    return NULL;
}

/* ---- control ---- */

static const region *region_of(rule *r, int64_t i) { return i > 0 && i < r->g->regions.n ? &r->g->regions.at[i] : NULL; }
static bool same_type(const node *x, const node *y) {
    return x->dtype == y->dtype && dims_equal(x->rank, x->dims, y->rank, y->dims);
}

/* Region `what` takes operands first.. of the op. */
static const char *check_params(rule *r, const char *what, const region *b, int first) {
    int n = r->s->n_in - first;
    if (b->n_params != n) return INVAL(r, "region %s has %d parameters, %d operands go to it", what, b->n_params, n);
    for (int i = 0; i < n; i++)
        if (!same_type(graph_get(r->g, b->params[i]), operand(r, first + i)))
            return SHAPE(r, "parameter %d of region %s is %s; operand %d differs", i, what,
                         graph_shape_text(r->g, r->a, b->params[i]), first + i);
    return NULL;
}
static const char *infer_if(rule *r) {
    TRY(check_attr(r, 2));
    const region *t = region_of(r, r->s->attr[0]), *e = region_of(r, r->s->attr[1]);
    if (!t || !e) return INVAL(r, "a region does not exist");
    if (r->s->n_in < 1 || operand(r, 0)->dtype != TN_BOOL || operand(r, 0)->rank)
        return DTYPE(r, "expected operand 0 to be bool[]");
    TRY(check_params(r, "then", t, 1));
    TRY(check_params(r, "else", e, 1));
    if (t->n_results < 1 || t->n_results != e->n_results)
        return INVAL(r, "the regions have %d and %d results; expected as many, at least 1", t->n_results, e->n_results);
    for (int i = 0; i < t->n_results; i++)
        if (!same_type(graph_get(r->g, t->results[i]), graph_get(r->g, e->results[i])))
            return SHAPE(r, "result %d of the regions is %s and %s", i, graph_shape_text(r->g, r->a, t->results[i]),
                         graph_shape_text(r->g, r->a, e->results[i]));
    result_like(r, graph_get(r->g, t->results[0]));
    return NULL;
}
static const char *infer_while(rule *r) {
    TRY(check_attr(r, 2));
    const region *c = region_of(r, r->s->attr[0]), *b = region_of(r, r->s->attr[1]);
    if (!c || !b) return INVAL(r, "a region does not exist");
    if (r->s->n_in < 1) return INVAL(r, "expected 1 operand or more");
    TRY(check_params(r, "cond", c, 0));
    TRY(check_params(r, "body", b, 0));
    if (c->n_results != 1 || graph_get(r->g, c->results[0])->dtype != TN_BOOL || graph_get(r->g, c->results[0])->rank)
        return DTYPE(r, "expected region cond to give one bool[]");
    if (b->n_results != r->s->n_in) return INVAL(r, "region body has %d results, expected %d", b->n_results, r->s->n_in);
    for (int i = 0; i < b->n_results; i++)
        if (!same_type(graph_get(r->g, b->results[i]), operand(r, i)))
            return SHAPE(r, "result %d of region body is %s; operand %d differs", i,
                         graph_shape_text(r->g, r->a, b->results[i]), i);
    result_like(r, operand(r, 0));
    return NULL;
}
/* Of a scan: result k, which is stacked unless it is carried. */
static const char *result_of_scan(rule *r, const int64_t *attr, const region *b, int64_t k) {
    const node *x = graph_get(r->g, b->results[k]);
    result_like(r, x);
    if (k < attr[SCAN_CARRY]) return NULL;
    if (x->rank == TN_MAX_RANK) return SHAPE(r, "result %lld has rank %d and cannot be stacked", (long long)k, x->rank);
    r->dims[0] = attr[SCAN_LENGTH];
    for (int i = 0; i < x->rank; i++) r->dims[i + 1] = x->dims[i];
    r->rank = x->rank + 1;
    return NULL;
}
/* Operand i, a stack, and the parameter that gets its slices. */
static const char *check_stack(rule *r, const region *b, int i) {
    const node *x = operand(r, i), *p = graph_get(r->g, b->params[i - 1]);
    if (x->rank < 1 || x->dims[0] != r->s->attr[SCAN_LENGTH])
        return SHAPE(r, "operand %d is %s; expected a stack of %s", i, graph_shape_text(r->g, r->a, r->s->in[i]),
                     dim_text(r, r->s->attr[SCAN_LENGTH]));
    if (p->dtype != x->dtype || !dims_equal(p->rank, p->dims, x->rank - 1, x->dims + 1))
        return SHAPE(r, "parameter %d of region body is %s; slices of operand %d, %s, differ", i - 1,
                     graph_shape_text(r->g, r->a, b->params[i - 1]), i, graph_shape_text(r->g, r->a, r->s->in[i]));
    return NULL;
}
static const char *check_scan_params(rule *r, const char *what, const region *b) {
    int64_t carry = r->s->attr[SCAN_CARRY], stacks = r->s->attr[SCAN_STEPS];
    if (b->n_params != r->s->n_in - 1)
        return INVAL(r, "region %s has %d parameters, %d operands go to it", what, b->n_params, r->s->n_in - 1);
    for (int i = 1; i < r->s->n_in; i++) {
        if (i > carry && i <= carry + stacks)
            TRY(check_stack(r, b, i));
        else if (!same_type(graph_get(r->g, b->params[i - 1]), operand(r, i)))
            return SHAPE(r, "parameter %d of region %s is %s; operand %d is %s", i - 1, what,
                         graph_shape_text(r->g, r->a, b->params[i - 1]), i, graph_shape_text(r->g, r->a, r->s->in[i]));
    }
    return NULL;
}
static const char *infer_scan(rule *r) {
    TRY(check_attr(r, SCAN_ATTRS));
    const int64_t *attr = r->s->attr, carry = attr[SCAN_CARRY], stacks = attr[SCAN_STEPS];
    const region *b = region_of(r, attr[SCAN_BODY]), *c = region_of(r, attr[SCAN_COND]);
    if (!b || (!c && attr[SCAN_COND])) return INVAL(r, "a region does not exist");
    if (carry < 0 || stacks < 0 || !is_size(r, attr[SCAN_LENGTH]) || attr[SCAN_REVERSE] < 0 || attr[SCAN_REVERSE] > 1 ||
        attr[SCAN_RECOMPUTE] < 0 || attr[SCAN_RECOMPUTE] > 1 || carry > r->s->n_in || stacks > r->s->n_in ||
        1 + carry + stacks > r->s->n_in)
        return INVAL(r, "%lld carried, %lld stacks, length %s, reverse %lld, %d operands", (long long)carry, (long long)stacks,
                     dim_text(r, attr[SCAN_LENGTH]), (long long)attr[SCAN_REVERSE], r->s->n_in);
    if (operand(r, 0)->dtype != TN_I64 || operand(r, 0)->rank) return DTYPE(r, "expected operand 0, the count, to be i64[]");
    TRY(check_scan_params(r, "body", b));
    if (c) TRY(check_scan_params(r, "cond", c));
    if (c && (c->n_results != 1 || graph_get(r->g, c->results[0])->dtype != TN_BOOL || graph_get(r->g, c->results[0])->rank))
        return DTYPE(r, "expected region cond to give one bool[]");
    if (b->n_results < 1 || b->n_results < carry)
        return INVAL(r, "region body has %d results, expected %lld or more", b->n_results, (long long)(carry ? carry : 1));
    for (int i = 0; i < carry; i++)
        if (!same_type(graph_get(r->g, b->results[i]), operand(r, 1 + i)))
            return SHAPE(r, "result %d of region body is %s; what is carried, operand %d, is %s", i,
                         graph_shape_text(r->g, r->a, b->results[i]), 1 + i, graph_shape_text(r->g, r->a, r->s->in[1 + i]));
    return result_of_scan(r, attr, b, 0);
}
static const char *infer_proj(rule *r) {
    const node *x = operand(r, 0);
    TRY(check_attr(r, 1));
    if (!node_regions(x)) return INVAL(r, "expected an op with several results, got %s", op_get((op_code)x->op)->name);
    const region *b = region_of(r, node_body(x));
    if (!b || r->s->attr[0] < 0 || r->s->attr[0] >= b->n_results)
        return INVAL(r, "result %lld; there are %d", (long long)r->s->attr[0], b ? b->n_results : 0);
    if (x->op == OP_scan) return result_of_scan(r, x->attr, b, r->s->attr[0]);
    result_like(r, graph_get(r->g, b->results[r->s->attr[0]]));
    return NULL;
}
static const char *infer_ctrl(rule *r) {
    const spec *s = r->s;
    switch (s->op) {
    case OP_if:
        return infer_if(r);
    case OP_while:
        return infer_while(r);
    case OP_scan:
        return infer_scan(r);
    case OP_proj:
        return infer_proj(r);
    default:
        break;
    }
    TRY(check_attr(r, 1));
    if ((unsigned)s->dtype >= TN_N_DTYPES) return DTYPE(r, "dtype number %d does not exist", (int)s->dtype);
    if (s->region < 1 || s->attr[0] < 0) return INVAL(r, "a parameter belongs to a region");
    result_spec(r, s->dtype);
    return NULL;
}

/* Numbers whose registers hold the bits that memory holds. */
static bool has_bits(tn_dtype t) { return t != TN_BOOL && !dtype_is_narrow_float(t); }

static const char *infer_cast(rule *r) {
    tn_dtype to = r->s->dtype, from = (tn_dtype)operand(r, 0)->dtype;
    if ((unsigned)to >= TN_N_DTYPES) return DTYPE(r, "dtype number %d does not exist", (int)to);
    if (r->s->op == OP_bitcast && (!has_bits(to) || !has_bits(from) || dtype_size(to) != dtype_size(from)))
        return DTYPE(
            r, "the bits of %s are no %s: f32 goes with i32 and u32, f64 with i64 and u64, integers with those of their size",
            dtype_name(from), dtype_name(to));
    result_like(r, operand(r, 0));
    r->dtype = to;
    return NULL;
}

static const char *infer_class(rule *r) {
    switch (op_get(r->s->op)->cls) {
    case CL_FLT:
    case CL_NUM:
    case CL_BIT:
    case CL_INT:
    case CL_LOG:
    case CL_CMP:
    case CL_ANY:
        return infer_elementwise(r);
    case CL_CAST:
        return infer_cast(r);
    case CL_REDUCE:
        return infer_reduce(r);
    case CL_ARG:
        return infer_arg(r);
    case CL_MOVE:
        return infer_move(r);
    case CL_FOLD:
        return infer_fold(r);
    case CL_JOIN:
        return infer_concat(r);
    case CL_DOT:
        return infer_dot(r);
    case CL_GATHER:
        return infer_gather(r);
    case CL_SCATTER:
        return infer_scatter(r);
    case CL_SOURCE:
        return infer_source(r);
    case CL_RANDOM:
        return infer_random(r);
    case CL_CTRL:
        return infer_ctrl(r);
    case CL_NIL:
        break;
    }
    return INVAL(r, "op number %d does not exist", (int)r->s->op);
}

const char *graph_infer(const graph *g, const spec *s, arena *a, tn_status *out_code, tn_dtype *out_dtype, int *out_rank,
                        int64_t *out_dims) {
    rule r = { .g = g, .s = s, .a = a, .code = out_code, .dims = out_dims };
    *out_code = TN_OK;
    if (s->region < 0 || s->region >= g->regions.n) return INVAL(&r, "region %d does not exist", s->region);
    TRY(check_operands(&r));
    TRY(check_spec_dims(&r));
    TRY(infer_class(&r));
    TRY(check_size(&r));
    *out_dtype = r.dtype;
    *out_rank = r.rank;
    return NULL;
}
