/* op_index.c - elements by index. */
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

static void check_within(onnx_call *c, int64_t n, int64_t size, int axis) {
    int64_t lo, hi;
    onnx_dim_range(c, onnx_dim(c, '-', size, n), &lo, &hi);
    if (lo < 0) onnx_refuse(c, "more indices than elements along axis %d", axis);
}
tn_tensor onnx_take_along(onnx_call *c, tn_tensor x, tn_tensor index, int axis) {
    tn_shape s = tn_tensor_shape(x), is = tn_tensor_shape(index), within = is;
    int64_t start[TN_MAX_RANK] = { 0 };
    if (is.rank < 0 || s.rank < 0) onnx_refuse_graph(c);
    if (is.rank != s.rank) onnx_refuse(c, "indices of rank %d for rank %d", is.rank, s.rank);
    for (int i = 0; i < s.rank; i++)
        if (i != axis) check_within(c, is.dim[i], s.dim[i], i);
    within.dim[axis] = s.dim[axis];
    return tn_take_along(tn_slice(x, start, within.dim, NULL, s.rank), index, axis);
}
void onnx_op_gather_elements(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    int axis = onnx_axis(c, onnx_attr_int(c, "axis", 0), s.rank);
    check_index(c, 1);
    onnx_put(c, 0, onnx_take_along(c, onnx_t(c, 0), onnx_not_negative(onnx_t(c, 1), s.dim[axis]), axis), ELEM_NONE);
}

/* Tuples of indices into dims, as i64: negative ones count from the end. */
static tn_tensor tuples(onnx_call *c, const int64_t *dims, int64_t k) {
    tn_tensor at = tn_cast(onnx_t(c, 1), TN_I64);
    onnx_val size = { .kind = TN_ONNX_TENSOR, .elem = ELEM_I64, .shape = TN_DIMS(k), .n = k, .sizes = dims };
    bool open = onnx_is_open(onnx_dims(dims, (int)k));
    tn_tensor n = open ? onnx_val_tensor(c, &size) : onnx_ints_const(c, dims, (int)k);
    return tn_select(tn_lt(at, onnx_scalar(at, 0)), tn_add(at, n), at);
}

void onnx_op_gather_nd(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0), is = onnx_shape(c, 1);
    int64_t b = onnx_attr_int(c, "batch_dims", 0);
    check_index(c, 1);
    if (is.rank < 1 || b < 0 || b >= is.rank || b >= s.rank) onnx_refuse(c, "%lld batch dims", (long long)b);
    int64_t k = is.dim[is.rank - 1];
    if (k < 1 || k > s.rank - b) onnx_refuse(c, "tuples of %lld", (long long)k);
    onnx_put(c, 0, tn_gather_nd(onnx_t(c, 0), tuples(c, s.dim + b, k), (int)b), ELEM_NONE);
}

/* ---- scatters ---- */

static tn_scatter_mode mode_of(onnx_call *c) {
    static const struct {
        const char *word;
        tn_scatter_mode mode;
    } words[] = { { "none", TN_SCATTER_SET },
                  { "add", TN_SCATTER_ADD },
                  { "mul", TN_SCATTER_MUL },
                  { "max", TN_SCATTER_MAX },
                  { "min", TN_SCATTER_MIN } };
    for (int i = 0; i < ONNX_COUNT(words); i++)
        if (onnx_attr_is(c, "reduction", "none", words[i].word)) return words[i].mode;
    onnx_refuse(c, "attribute reduction");
}
static void check_scatter(onnx_call *c, tn_scatter_mode mode) {
    check_index(c, 1);
    if (onnx_elem(c, 0) != onnx_elem(c, 2) || (mode != TN_SCATTER_SET && onnx_elem_widened(onnx_elem(c, 0))))
        onnx_refuse(c, "its types");
}
/* bool as u8: scatters are of numbers. */
static tn_tensor as_number(tn_tensor x) { return tn_tensor_dtype(x) == TN_BOOL ? tn_cast(x, TN_U8) : x; }

void onnx_op_scatter_elements(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0), is = onnx_shape(c, 1), us = onnx_shape(c, 2);
    int axis = onnx_axis(c, onnx_attr_int(c, "axis", 0), s.rank);
    tn_scatter_mode mode = mode_of(c);
    check_scatter(c, mode);
    if (is.rank != s.rank || memcmp(is.dim, us.dim, sizeof is.dim[0] * (size_t)is.rank)) onnx_refuse(c, "its shapes");
    for (int i = 0; i < s.rank; i++)
        if (i != axis) check_within(c, is.dim[i], s.dim[i], i);
    tn_tensor index = onnx_not_negative(tn_cast(onnx_t(c, 1), TN_I64), s.dim[axis]), x = onnx_t(c, 0);
    tn_tensor y = tn_put_along(as_number(x), index, as_number(onnx_t(c, 2)), axis, mode);
    onnx_put(c, 0, tn_cast(y, tn_tensor_dtype(x)), ELEM_NONE);
}
void onnx_op_scatter_nd(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0), is = onnx_shape(c, 1), us = { .rank = 0 };
    tn_scatter_mode mode = mode_of(c);
    check_scatter(c, mode);
    int64_t k = is.rank ? is.dim[is.rank - 1] : 0;
    if (is.rank < 1 || k < 1 || k > s.rank || is.rank - 1 + s.rank - k > TN_MAX_RANK)
        onnx_refuse(c, "tuples of %lld", (long long)k);
    for (int i = 0; i < is.rank - 1; i++) us.dim[us.rank++] = is.dim[i];
    for (int64_t i = k; i < s.rank; i++) us.dim[us.rank++] = s.dim[i];
    if (onnx_count_of(onnx_shape(c, 2)) != onnx_count_of(us)) onnx_refuse(c, "its shapes");
    tn_tensor x = onnx_t(c, 0), updates = tn_reshape(as_number(onnx_t(c, 2)), us);
    onnx_put(c, 0, tn_cast(tn_scatter_nd(as_number(x), tuples(c, s.dim, k), updates, mode), tn_tensor_dtype(x)), ELEM_NONE);
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

void onnx_op_top_k(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    int axis = onnx_axis(c, onnx_attr_int(c, "axis", -1), s.rank);
    int64_t k = c->opset < 10 ? onnx_attr_need_int(c, "k") : onnx_known_int(c, 1, "k"), n = s.dim[axis];
    bool largest = onnx_attr_int(c, "largest", 1);
    (void)onnx_attr_int(c, "sorted", 1); /* always */
    if (k < 0 || (n >= 0 && k > n)) onnx_refuse(c, "the %lld first of %lld", (long long)k, (long long)n);
    tn_tensor index, best = tn_top_k(onnx_t(c, 0), k, axis, largest, &index);
    onnx_put(c, 0, best, ELEM_NONE);
    onnx_put(c, 1, index, ELEM_I64);
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

static int64_t product(const int64_t *dims, int n) { return onnx_count_of(onnx_dims(dims, n)); }

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
