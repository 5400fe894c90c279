/* op_index.c - elements by index. Gathers and scatters along several axes become ones along the flattened axis. */
#include "import.h"

#include <stdlib.h>

static void check_index(onnx_call *c, int i) {
    if (onnx_elem(c, i) != ELEM_I32 && onnx_elem(c, i) != ELEM_I64)
        onnx_refuse(c, "indices of %s", onnx_elem_name(onnx_elem(c, i)));
}

void onnx_op_gather(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    int axis = onnx_axis(c, onnx_attr_int(c, "axis", 0), s.rank);
    check_index(c, 1);
    onnx_put(c, 0, tn_gather(onnx_t(c, 0), onnx_not_negative(onnx_t(c, 1), s.dim[axis]), axis), ELEM_NONE);
}

/* For each element of a tensor of shape s, the place in a flattened array of shape `dims` of: index along axis, and its own
 * place along the other axes. */
static tn_tensor place_along(onnx_call *c, tn_tensor index, tn_shape s, tn_shape dims, int axis) {
    tn_tensor at = tn_full(c->g, TN_I64, s, 0);
    int64_t stride = 1;
    for (int i = dims.rank - 1; i >= 0; i--) {
        tn_tensor k = i == axis ? tn_cast(index, TN_I64) : tn_iota(c->g, TN_I64, s, i);
        at = tn_add(at, stride == 1 ? k : tn_mul_scalar(k, (double)stride));
        stride *= dims.dim[i];
    }
    return at;
}
tn_tensor onnx_take_along(onnx_call *c, tn_tensor x, tn_tensor index, int axis) {
    tn_shape s = tn_tensor_shape(x), is = tn_tensor_shape(index);
    if (is.rank != s.rank) onnx_refuse(c, "indices of rank %d for rank %d", is.rank, s.rank);
    for (int i = 0; i < s.rank; i++)
        if (i != axis && is.dim[i] > s.dim[i]) onnx_refuse(c, "more indices than elements along axis %d", i);
    index = tn_max(tn_min(index, onnx_scalar(index, (double)(s.dim[axis] - 1))), onnx_scalar(index, 0));
    tn_tensor flat = tn_reshape(x, TN_DIMS(onnx_count_of(s)));
    return tn_gather(flat, place_along(c, index, is, s, axis), 0);
}
void onnx_op_gather_elements(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    int axis = onnx_axis(c, onnx_attr_int(c, "axis", 0), s.rank);
    check_index(c, 1);
    onnx_put(c, 0, onnx_take_along(c, onnx_t(c, 0), onnx_not_negative(onnx_t(c, 1), s.dim[axis]), axis), ELEM_NONE);
}

/* Indices [..,k] into `dims` from axis `first` on: their places in the flattened axes first .. first+k-1. What is out of range
 * gives -1 where `outside` says so (for scatters), else the nearest. */
static tn_tensor place_nd(onnx_call *c, tn_tensor index, const int64_t *dims, int k, bool outside) {
    tn_shape s = tn_tensor_shape(index);
    int64_t start[TN_MAX_RANK] = { 0 }, stride = 1;
    tn_shape rest = s, one = s;
    rest.rank--;
    tn_tensor at = tn_full(c->g, TN_I64, rest, 0), bad = tn_full(c->g, TN_BOOL, rest, 0);
    for (int i = k - 1; i >= 0; i--) {
        start[s.rank - 1] = i, one.dim[s.rank - 1] = i + 1;
        tn_tensor v = tn_reshape(tn_slice(tn_cast(index, TN_I64), start, one.dim, NULL, s.rank), rest);
        v = onnx_not_negative(v, dims[i]);
        tn_tensor top = onnx_scalar(v, (double)(dims[i] - 1)), zero = onnx_scalar(v, 0);
        bad = tn_or(bad, tn_or(tn_lt(v, zero), tn_gt(v, top)));
        at = tn_add(at, tn_mul_scalar(tn_max(tn_min(v, top), zero), (double)stride));
        stride *= dims[i];
    }
    return outside ? tn_select(bad, onnx_scalar(at, -1), at) : at;
}

static int64_t product(const int64_t *dims, int n) { return onnx_count_of(onnx_dims(dims, n)); }

void onnx_op_gather_nd(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0), is = onnx_shape(c, 1), out = { .rank = 0 };
    int64_t b = onnx_attr_int(c, "batch_dims", 0);
    check_index(c, 1);
    if (is.rank < 1 || b < 0 || b >= is.rank || b >= s.rank) onnx_refuse(c, "%lld batch dims", (long long)b);
    int64_t k = is.dim[is.rank - 1];
    if (k < 1 || k > s.rank - b || is.rank - 1 + s.rank - b - k > TN_MAX_RANK) onnx_refuse(c, "tuples of %lld", (long long)k);
    for (int i = 0; i < b; i++)
        if (s.dim[i] != is.dim[i]) onnx_refuse(c, "batch dims that differ");
    for (int i = 0; i < is.rank - 1; i++) out.dim[out.rank++] = is.dim[i];
    for (int64_t i = b + k; i < s.rank; i++) out.dim[out.rank++] = s.dim[i];
    int64_t batch = product(s.dim, (int)b), inside = product(s.dim + b, (int)k),
            row = product(s.dim + b + k, (int)(s.rank - b - k)), each = product(is.dim + b, is.rank - 1 - (int)b);
    tn_tensor at = tn_reshape(place_nd(c, onnx_t(c, 1), s.dim + b, (int)k, false), TN_DIMS(batch, each));
    at = tn_add(at, tn_mul_scalar(tn_iota(c->g, TN_I64, TN_DIMS(batch, each), 0), (double)inside));
    tn_tensor rows = tn_reshape(onnx_t(c, 0), TN_DIMS(batch * inside, row));
    onnx_put(c, 0, tn_reshape(tn_gather(rows, tn_reshape(at, TN_DIMS(batch * each)), 0), out), ELEM_NONE);
}

/* ---- scatters ---- */

typedef enum { SCATTER_SET, SCATTER_ADD, SCATTER_MUL, SCATTER_MAX, SCATTER_MIN } scatter_how;
static scatter_how how_of(onnx_call *c) {
    static const char *const words[] = { "none", "add", "mul", "max", "min" };
    for (int i = 0; i < ONNX_COUNT(words); i++)
        if (onnx_attr_is(c, "reduction", "none", words[i])) return (scatter_how)i;
    onnx_refuse(c, "attribute reduction");
}

/* Every place looks at every update: for few of them. x [n,row], at [m], updates [m,row]. */
static tn_tensor scatter_dense(onnx_call *c, tn_tensor x, tn_tensor at, tn_tensor updates, scatter_how how) {
    tn_shape s = tn_tensor_shape(x), u = tn_tensor_shape(updates);
    int64_t n = s.dim[0], m = u.dim[0], row = s.dim[1], work;
    if (__builtin_mul_overflow(n, m, &work) || __builtin_mul_overflow(work, row, &work) || work > 1 << 26)
        onnx_refuse(c, "a reduction other than add of %lld updates in %lld places", (long long)m, (long long)n);
    tn_tensor here = tn_eq(tn_iota(c->g, TN_I64, TN_DIMS(n, m, 1), 0), tn_reshape(at, TN_DIMS(1, m, 1)));
    tn_tensor all =
        tn_concat((tn_tensor[]){ tn_reshape(x, TN_DIMS(n, 1, row)),
                                 tn_select(here, tn_reshape(updates, TN_DIMS(1, m, row)),
                                           how == SCATTER_MUL ? onnx_scalar(x, 1) : tn_reshape(x, TN_DIMS(n, 1, row))) },
                  2, 1);
    tn_tensor (*f)(tn_tensor, const int64_t *, int, int) = how == SCATTER_MUL   ? (tn_prod)
                                                           : how == SCATTER_MAX ? (tn_reduce_max)
                                                                                : (tn_reduce_min);
    return f(all, TN_INTS(1), 0);
}

static tn_tensor scatter_rows(onnx_call *c, tn_tensor x, tn_tensor at, tn_tensor updates, scatter_how how) {
    if (how == SCATTER_ADD) return tn_scatter_add(x, at, updates, 0);
    return how == SCATTER_SET ? tn_scatter_set(x, at, updates, 0) : scatter_dense(c, x, at, updates, how);
}

void onnx_op_scatter_elements(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0), is = onnx_shape(c, 1), us = onnx_shape(c, 2);
    int axis = onnx_axis(c, onnx_attr_int(c, "axis", 0), s.rank);
    scatter_how how = how_of(c);
    check_index(c, 1);
    if (onnx_elem(c, 0) != onnx_elem(c, 2) || (how != SCATTER_SET && onnx_elem_widened(onnx_elem(c, 0))))
        onnx_refuse(c, "its types");
    if (is.rank != s.rank || memcmp(is.dim, us.dim, sizeof is.dim[0] * (size_t)is.rank)) onnx_refuse(c, "its shapes");
    for (int i = 0; i < s.rank; i++)
        if (i != axis && is.dim[i] > s.dim[i]) onnx_refuse(c, "more indices than elements along axis %d", i);
    int64_t n = onnx_count_of(s), m = onnx_count_of(is);
    tn_tensor index = onnx_not_negative(tn_cast(onnx_t(c, 1), TN_I64), s.dim[axis]), at = place_along(c, index, is, s, axis);
    tn_tensor bad = tn_or(tn_lt(index, onnx_scalar(index, 0)), tn_ge(index, onnx_scalar(index, (double)s.dim[axis])));
    at = tn_reshape(tn_select(bad, onnx_scalar(at, -1), at), TN_DIMS(m));
    tn_tensor y = scatter_rows(c, tn_reshape(onnx_t(c, 0), TN_DIMS(n, 1)), at, tn_reshape(onnx_t(c, 2), TN_DIMS(m, 1)), how);
    onnx_put(c, 0, tn_reshape(y, s), ELEM_NONE);
}
void onnx_op_scatter_nd(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0), is = onnx_shape(c, 1), us = onnx_shape(c, 2);
    scatter_how how = how_of(c);
    check_index(c, 1);
    if (onnx_elem(c, 0) != onnx_elem(c, 2) || (how != SCATTER_SET && onnx_elem_widened(onnx_elem(c, 0))))
        onnx_refuse(c, "its types");
    int64_t k = is.rank ? is.dim[is.rank - 1] : 0;
    if (is.rank < 1 || k < 1 || k > s.rank) onnx_refuse(c, "tuples of %lld", (long long)k);
    int64_t n = product(s.dim, (int)k), row = product(s.dim + k, s.rank - (int)k), m = product(is.dim, is.rank - 1);
    if (onnx_count_of(us) != m * row) onnx_refuse(c, "its shapes");
    tn_tensor at = tn_reshape(place_nd(c, onnx_t(c, 1), s.dim, (int)k, true), TN_DIMS(m));
    tn_tensor y =
        scatter_rows(c, tn_reshape(onnx_t(c, 0), TN_DIMS(n, row)), at, tn_reshape(onnx_t(c, 2), TN_DIMS(m, row)), how);
    onnx_put(c, 0, tn_reshape(y, s), ELEM_NONE);
}

/* ---- others ---- */

void onnx_op_one_hot(onnx_call *c) {
    tn_shape is = onnx_shape(c, 0), vs = onnx_shape(c, 2), s = { .rank = is.rank + 1 };
    int n, axis;
    double depth = onnx_known_floats(c, 1, "depth", &n)[0];
    if (n != 1 || !(depth >= 0 && depth < 1 << 30) || is.rank >= TN_MAX_RANK || vs.rank != 1 || vs.dim[0] != 2)
        onnx_refuse(c, "its depth or values");
    axis = onnx_axis(c, onnx_attr_int(c, "axis", -1), is.rank + 1);
    tn_shape with_one = s;
    for (int i = 0, k = 0; i < s.rank; i++) {
        with_one.dim[i] = i == axis ? 1 : is.dim[k++];
        s.dim[i] = i == axis ? (int64_t)depth : with_one.dim[i];
    }
    if (onnx_elem(c, 0) == ELEM_U64) onnx_refuse(c, "indices of uint64");
    tn_tensor index = tn_reshape(tn_cast(onnx_t(c, 0), TN_I64), with_one), values = onnx_t(c, 2);
    index = onnx_not_negative(index, (int64_t)depth);
    tn_tensor hot = tn_eq(index, tn_iota(c->g, TN_I64, s, axis));
    tn_tensor off = tn_reshape(tn_slice(values, (int64_t[]){ 0 }, (int64_t[]){ 1 }, NULL, 1), TN_SCALAR);
    tn_tensor on = tn_reshape(tn_slice(values, (int64_t[]){ 1 }, (int64_t[]){ 2 }, NULL, 1), TN_SCALAR);
    onnx_put(c, 0, tn_select(hot, on, off), onnx_elem(c, 2));
}

void onnx_op_reverse_sequence(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    int time = onnx_axis(c, onnx_attr_int(c, "time_axis", 0), s.rank),
        batch = onnx_axis(c, onnx_attr_int(c, "batch_axis", 1), s.rank);
    tn_shape lens = { .rank = s.rank };
    if (time == batch || time > 1 || batch > 1 || onnx_elem(c, 1) != ELEM_I64) onnx_refuse(c, "its axes or lengths");
    for (int i = 0; i < s.rank; i++) lens.dim[i] = i == batch ? s.dim[batch] : 1;
    tn_tensor n = tn_reshape(onnx_t(c, 1), lens), at = tn_iota(c->g, TN_I64, s, time);
    tn_tensor back = tn_sub(tn_add_scalar(n, -1), at);
    onnx_put(c, 0, onnx_take_along(c, onnx_t(c, 0), tn_select(tn_lt(at, n), back, at), time), ELEM_NONE);
}

/* a before b: larger (or smaller), NaN first among the largest, of equal ones the first. */
static tn_tensor comes_before(onnx_call *c, tn_tensor a, tn_tensor b, tn_tensor ia, tn_tensor ib, bool largest) {
    tn_tensor more = largest ? tn_gt(a, b) : tn_lt(a, b), same = tn_eq(a, b);
    if (onnx_is_float(onnx_elem(c, 0))) {
        tn_tensor na = tn_ne(a, a), nb = tn_ne(b, b);
        more = tn_or(more, largest ? tn_and(na, tn_not(nb)) : tn_and(nb, tn_not(na)));
        same = tn_or(same, tn_and(na, nb));
    }
    return tn_or(more, tn_and(same, tn_lt(ia, ib)));
}

/* An element's rank is the number of those that come before it; result j is the element of rank j. n^2 comparisons. */
void onnx_op_top_k(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    int axis = onnx_axis(c, onnx_attr_int(c, "axis", -1), s.rank), r = s.rank;
    int64_t k = c->opset < 10 ? onnx_attr_need_int(c, "k") : onnx_known_int(c, 1, "k");
    bool largest = onnx_attr_int(c, "largest", 1);
    (void)onnx_attr_int(c, "sorted", 1); /* always */
    int64_t n = s.dim[axis], order[TN_MAX_RANK], back[TN_MAX_RANK], work;
    if (k < 0 || k > n || __builtin_mul_overflow(onnx_count_of(s), n, &work) || work > 1 << 28 || r + 1 > TN_MAX_RANK)
        onnx_refuse(c, "the %lld first of %lld", (long long)k, (long long)n);
    for (int i = 0; i < r; i++) order[i < axis ? i : i > axis ? i - 1 : r - 1] = i;
    for (int i = 0; i < r; i++) back[order[i]] = i;
    tn_tensor x = tn_permute(onnx_t(c, 0), order, r); /* [..,n] */
    tn_shape last = tn_tensor_shape(x), row = last, column = last;
    row.rank = column.rank = r + 1;
    row.dim[r] = 1, column.dim[r - 1] = 1, column.dim[r] = n;
    tn_shape square = row;
    square.dim[r] = n;
    tn_tensor before = comes_before(c, tn_reshape(x, column), tn_reshape(x, row), tn_iota(c->g, TN_I64, square, r),
                                    tn_iota(c->g, TN_I64, square, r - 1), largest);
    tn_tensor rank = tn_sum(tn_cast(before, TN_I64), TN_INTS(r), 1); /* [..,n,1] */
    square.dim[r] = k;
    tn_tensor hit = tn_eq(rank, tn_iota(c->g, TN_I64, square, r));
    tn_tensor index =
        tn_sum(tn_mul(tn_cast(hit, TN_I64), tn_iota(c->g, TN_I64, square, r - 1)), TN_INTS(r - 1), 0); /* [..,k] */
    onnx_put(c, 0, tn_permute(onnx_take_along(c, x, index, r - 1), back, r), ELEM_NONE);
    onnx_put(c, 1, tn_permute(index, back, r), ELEM_I64);
}

/* ---- sizes that depend on values: where these are known ---- */

static bool is_set(onnx_call *c, int i, int64_t k) {
    return onnx_load(onnx_elem_dtype(onnx_elem(c, i)), c->in[i]->data, k) != 0;
}

void onnx_op_compress(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0), cs = onnx_shape(c, 1);
    bool flat = !onnx_attr_find(c, "axis");
    int axis = flat ? 0 : onnx_axis(c, onnx_attr_int(c, "axis", 0), s.rank);
    (void)onnx_known(c, 1, "condition");
    int64_t size = flat ? onnx_count_of(s) : s.dim[axis], n = 0;
    int64_t *at = ONNX_NEW(c->im->env, int64_t, cs.dim[0] + 1);
    if (cs.rank != 1) onnx_refuse(c, "a condition of rank %d", cs.rank);
    for (int64_t i = 0; i < cs.dim[0] && i < size; i++)
        if (is_set(c, 1, i)) at[n++] = i;
    tn_tensor x = flat ? tn_reshape(onnx_t(c, 0), TN_DIMS(size)) : onnx_t(c, 0);
    onnx_put(c, 0, tn_gather(x, onnx_ints_const(c, at, (int)n), axis), ELEM_NONE);
}

void onnx_op_non_zero(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    (void)onnx_known(c, 0, "operand");
    int64_t total = onnx_count_of(s), n = 0;
    for (int64_t i = 0; i < total; i++) n += is_set(c, 0, i);
    int64_t *out = ONNX_NEW(c->im->env, int64_t, n * s.rank + 1), k = 0;
    for (int64_t i = 0; i < total; i++) {
        if (!is_set(c, 0, i)) continue;
        int64_t rest = i;
        for (int a = s.rank - 1; a >= 0; rest /= s.dim[a], a--) out[a * n + k] = rest % s.dim[a];
        k++;
    }
    onnx_put_known(c, 0, ELEM_I64, TN_DIMS(s.rank, n), out);
}

/* ---- Unique ---- */

typedef struct unique_row {
    const double *v;
    int64_t n, at;
} unique_row;
static int compare_rows(const void *a, const void *b) {
    const unique_row *x = a, *y = b;
    for (int64_t i = 0; i < x->n; i++)
        if (x->v[i] != y->v[i]) return x->v[i] < y->v[i] ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}
static bool same_row(const unique_row *a, const unique_row *b) {
    for (int64_t i = 0; i < a->n; i++)
        if (a->v[i] != b->v[i]) return false;
    return true;
}
static int compare_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Slices along axis as rows of numbers, sorted: equal ones are neighbours, the first of them first. */
static unique_row *sorted_rows(onnx_call *c, tn_shape s, int axis, int64_t n) {
    int count;
    const double *v = onnx_known_floats(c, 0, "operand", &count);
    int64_t outer = product(s.dim, axis), inner = product(s.dim + axis + 1, s.rank - axis - 1), each = outer * inner;
    double *copy = ONNX_NEW(c->im->env, double, count + 1);
    unique_row *rows = ONNX_NEW(c->im->env, unique_row, n + 1);
    for (int64_t i = 0; i < count; i++)
        if (!(v[i] == v[i] && v[i] < 0x1p53 && v[i] > -0x1p53)) onnx_refuse(c, "NaN or large numbers");
    for (int64_t k = 0; k < n; k++) {
        rows[k] = (unique_row){ copy + k * each, each, k };
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < inner; i++) copy[k * each + o * inner + i] = v[(o * n + k) * inner + i];
    }
    qsort(rows, (size_t)n, sizeof *rows, compare_rows);
    return rows;
}

void onnx_op_unique(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    bool flat = !onnx_attr_find(c, "axis"), sorted = onnx_attr_int(c, "sorted", 1);
    if (flat) s = TN_DIMS(onnx_count_of(s));
    int axis = flat ? 0 : onnx_axis(c, onnx_attr_int(c, "axis", 0), s.rank);
    int64_t n = s.dim[axis], groups = 0;
    unique_row *rows = sorted_rows(c, s, axis, n);
    int64_t *first = ONNX_NEW(c->im->env, int64_t, n + 1), *inverse = ONNX_NEW(c->im->env, int64_t, n + 1),
            *counts = ONNX_NEW(c->im->env, int64_t, n + 1), *of = ONNX_NEW(c->im->env, int64_t, n + 1);
    for (int64_t k = 0; k < n; k++) {
        if (!k || !same_row(&rows[k], &rows[k - 1])) first[groups++] = rows[k].at;
        of[rows[k].at] = first[groups - 1];
    }
    if (!sorted) qsort(first, (size_t)groups, sizeof *first, compare_first);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < groups; k++)
            if (of[i] == first[k]) inverse[i] = k, counts[k]++;
    tn_tensor x = flat ? tn_reshape(onnx_t(c, 0), s) : onnx_t(c, 0);
    onnx_put(c, 0, tn_gather(x, onnx_ints_const(c, first, (int)groups), axis), ELEM_NONE);
    onnx_put_ints(c, 1, first, (int)groups);
    onnx_put_ints(c, 2, inverse, (int)n);
    onnx_put_ints(c, 3, counts, (int)groups);
}
