/* op_reduce.c - over axes: sums and their like, positions, softmax, running sums. */
#include "import.h"

/* ---- reductions ---- */

typedef struct axes {
    int64_t at[TN_MAX_RANK];
    int n, keep;
    bool none; /* the operand as it is */
} axes;
static axes axes_of(onnx_call *c) {
    axes a = { .n = 0 };
    int rank = onnx_rank(c, 0), n;
    const int64_t *given = onnx_ints_of(c, "axes", 1, &n);
    bool noop = onnx_attr_int(c, "noop_with_empty_axes", 0);
    a.keep = (int)(onnx_attr_int(c, "keepdims", 1) != 0);
    if (n > rank) onnx_refuse(c, "%d axes of %d", n, rank);
    a.none = n == 0 && noop;
    for (int i = 0; i < n; i++) a.at[a.n++] = onnx_axis(c, given[i], rank);
    for (int i = 0; n == 0 && i < rank; i++) a.at[a.n++] = i;
    return a;
}
typedef tn_tensor (*reduce_fn)(tn_tensor, const int64_t *, int, int);
static tn_tensor over(tn_tensor x, const axes *a, reduce_fn f) { return a->none || !a->n ? x : f(x, a->at, a->n, a->keep); }
static bool wide_int(onnx_call *c) { return !onnx_is_float(onnx_elem(c, 0)); }
/* Whole numbers whose results are not whole go through f64. */
static tn_tensor number(onnx_call *c) { return wide_int(c) ? tn_cast(onnx_t(c, 0), TN_F64) : onnx_accurate(onnx_t(c, 0)); }
static void put_back(onnx_call *c, tn_tensor y) { onnx_put(c, 0, tn_cast(y, onnx_elem_dtype(onnx_elem(c, 0))), ELEM_NONE); }

static void plain(onnx_call *c, reduce_fn f) {
    axes a = axes_of(c);
    bool is_bool = onnx_elem(c, 0) == ELEM_BOOL && f != (tn_sum);
    tn_tensor y = over(is_bool ? tn_cast(onnx_t(c, 0), TN_U8) : onnx_t(c, 0), &a, f);
    onnx_put(c, 0, is_bool ? tn_cast(y, TN_BOOL) : y, ELEM_NONE);
}
void onnx_op_reduce_sum(onnx_call *c) { plain(c, (tn_sum)); }
void onnx_op_reduce_prod(onnx_call *c) { plain(c, (tn_prod)); }
void onnx_op_reduce_max(onnx_call *c) { plain(c, (tn_reduce_max)); }
void onnx_op_reduce_min(onnx_call *c) { plain(c, (tn_reduce_min)); }
void onnx_op_reduce_mean(onnx_call *c) {
    if (wide_int(c)) onnx_refuse(c, "a mean of whole numbers");
    axes a = axes_of(c);
    put_back(c, over(onnx_accurate(onnx_t(c, 0)), &a, (tn_mean)));
}
void onnx_op_reduce_l1(onnx_call *c) {
    axes a = axes_of(c);
    onnx_put(c, 0, over(tn_abs(onnx_t(c, 0)), &a, (tn_sum)), ELEM_NONE);
}
void onnx_op_reduce_l2(onnx_call *c) {
    axes a = axes_of(c);
    tn_tensor x = number(c);
    put_back(c, tn_sqrt(over(tn_mul(x, x), &a, (tn_sum))));
}
void onnx_op_reduce_log_sum(onnx_call *c) {
    axes a = axes_of(c);
    put_back(c, tn_log(over(number(c), &a, (tn_sum))));
}
void onnx_op_reduce_sum_square(onnx_call *c) {
    axes a = axes_of(c);
    tn_tensor x = wide_int(c) ? onnx_t(c, 0) : onnx_accurate(onnx_t(c, 0));
    put_back(c, over(tn_mul(x, x), &a, (tn_sum)));
}
void onnx_op_reduce_log_sum_exp(onnx_call *c) {
    axes a = axes_of(c), kept = a;
    kept.keep = 1;
    tn_tensor x = number(c), top = over(x, &kept, (tn_reduce_max)), zero = onnx_scalar(x, 0);
    top = tn_select(tn_eq(tn_sub(top, top), zero), top, zero); /* infinities stay out */
    tn_tensor sum = tn_add(tn_log(over(tn_exp(tn_sub(x, top)), &kept, (tn_sum))), top);
    if (a.keep || a.none) {
        put_back(c, sum);
        return;
    }
    put_back(c, tn_reshape(sum, tn_tensor_shape(over(x, &a, (tn_reduce_max)))));
}

/* ---- positions ---- */

static void position(onnx_call *c, bool largest) {
    tn_shape s = onnx_shape(c, 0);
    int axis = onnx_axis(c, onnx_attr_int(c, "axis", 0), s.rank), keep = onnx_attr_int(c, "keepdims", 1) != 0;
    bool last = onnx_attr_int(c, "select_last_index", 0);
    tn_tensor x = onnx_t(c, 0);
    if (last) x = tn_flip(x, TN_INTS(axis));
    tn_tensor y = largest ? tn_argmax(x, axis, keep) : tn_argmin(x, axis, keep);
    if (last && onnx_is_dim(s.dim[axis])) onnx_refuse(c, "the last index along a size that a run gives");
    if (last) y = tn_sub(onnx_scalar(y, (double)(s.dim[axis] - 1)), y);
    onnx_put(c, 0, y, ELEM_I64);
}
void onnx_op_arg_max(onnx_call *c) { position(c, true); }
void onnx_op_arg_min(onnx_call *c) { position(c, false); }

/* ---- softmax ---- */

/* Before operator set 13: over all axes from `axis` on, as one. */
static void rows_of(onnx_call *c, tn_tensor (*f)(tn_tensor, int)) {
    tn_shape s = onnx_shape(c, 0);
    int64_t given = onnx_attr_int(c, "axis", c->opset < 13 ? 1 : -1);
    tn_tensor x = onnx_t(c, 0);
    if (c->opset >= 13) {
        onnx_put(c, 0, f(x, onnx_axis(c, given, s.rank)), ELEM_NONE);
        return;
    }
    int axis = given == s.rank ? s.rank : onnx_axis(c, given, s.rank);
    int64_t rows = onnx_dim_product(c, s.dim, axis), columns = onnx_dim_product(c, s.dim + axis, s.rank - axis);
    onnx_put(c, 0, tn_reshape(f(tn_reshape(x, TN_DIMS(rows, columns)), 1), s), ELEM_NONE);
}
static tn_tensor hardmax(tn_tensor x, int axis) {
    tn_tensor at = tn_iota(x.graph, TN_I64, tn_tensor_shape(x), axis);
    return tn_cast(tn_eq(tn_argmax(x, axis, 1), at), tn_tensor_dtype(x));
}
void onnx_op_softmax(onnx_call *c) { rows_of(c, (tn_nn_softmax)); }
void onnx_op_log_softmax(onnx_call *c) { rows_of(c, (tn_nn_log_softmax)); }
void onnx_op_hardmax(onnx_call *c) { rows_of(c, hardmax); }

void onnx_op_lp_normalization(onnx_call *c) {
    tn_tensor x = onnx_accurate(onnx_t(c, 0));
    int64_t axis = onnx_axis(c, onnx_attr_int(c, "axis", -1), onnx_rank(c, 0)), p = onnx_attr_int(c, "p", 2);
    if (p != 1 && p != 2) onnx_refuse(c, "p = %lld", (long long)p);
    tn_tensor norm = p == 1 ? tn_sum(tn_abs(x), &axis, 1, 1) : tn_sqrt(tn_sum(tn_mul(x, x), &axis, 1, 1)),
              zero = onnx_scalar(x, 0);
    put_back(c, tn_select(tn_eq(norm, zero), zero, tn_div(x, norm)));
}

/* ---- running sums ---- */

static void running(onnx_call *c, tn_scan_mode mode) {
    int axis = onnx_axis(c, onnx_known_int(c, 1, "axis"), onnx_rank(c, 0));
    tn_cumulative_opts o = { (int)onnx_attr_int(c, "exclusive", 0), (int)onnx_attr_int(c, "reverse", 0) };
    onnx_put(c, 0, tn_cumulative(onnx_t(c, 0), axis, mode, o), ELEM_NONE);
}
void onnx_op_cum_sum(onnx_call *c) { running(c, TN_SCAN_SUM); }
void onnx_op_cum_prod(onnx_call *c) { running(c, TN_SCAN_PROD); }
