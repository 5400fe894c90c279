/* index.c - gathers and scatters by several indices, binary search, segments, sparse matrices, sets of values (tenon_index.h).
 *
 * In: tensors and index tensors. Out: compositions of gathers and scatters along one flattened axis; memory is the graph's. */
#include "nn.h"

#include "tenon/tenon_index.h"

#include <math.h>

static bool is_index(tn_tensor x, const char *fn) {
    tn_dtype t = tn_tensor_dtype(x);
    if (!nn_given(x.graph, x, fn)) return false;
    if (t == TN_I32 || t == TN_I64) return true;
    nn_fail(x.graph, TN_ERR_DTYPE, "%s: indices are %s, must be i32 or i64", fn, tn_dtype_name(t));
    return false;
}
static tn_tensor poisoned(tn_tensor x) { return (tn_tensor){ x.graph, 0 }; }
static int64_t product(tn_tensor x, const int64_t *dims, int n) { return nn_product(x.graph, dims, n); }
static bool may_be(int64_t x, int64_t y) { return x == y || (x >= 0 && y >= 0 && x <= y); } /* x is known to be within y */
static tn_tensor wide(tn_tensor index) { return tn_cast(index, TN_I64); }
static tn_tensor number(tn_tensor like, double v) { return tn_full(like.graph, tn_tensor_dtype(like), TN_SCALAR, v); }

/* v where it is one of 0 .. n - 1, else -1. */
static tn_tensor or_nowhere(tn_tensor v, int64_t n) {
    tn_tensor in = tn_and(tn_ge(v, number(v, 0)), tn_lt(v, nn_size_like(v, n)));
    return tn_select(in, v, number(v, -1));
}
static tn_tensor clamped(tn_tensor v, int64_t n) {
    tn_tensor last = n >= 0 ? number(v, (double)(n - 1)) : tn_add_scalar(nn_size_like(v, n), -1);
    return tn_max(tn_min(v, last), number(v, 0));
}

/* ---- several indices as one ---- */

/* index [..,k] into dims[k]: its place in their flattened axis; clamped, or, for scatters, -1 where it is outside. */
static tn_tensor flat_places(tn_tensor index, const int64_t *dims, int k, bool outside) {
    tn_shape s = tn_tensor_shape(index), rest = s, stop = s;
    int64_t start[TN_MAX_RANK] = { 0 }, stride = 1;
    rest.rank--;
    tn_tensor at = tn_full(index.graph, TN_I64, rest, 0), bad = tn_full(index.graph, TN_BOOL, rest, 0);
    for (int i = k - 1; i >= 0; i--) {
        start[s.rank - 1] = i, stop.dim[s.rank - 1] = i + 1;
        tn_tensor v = wide(tn_reshape(tn_slice(index, start, stop.dim, NULL, s.rank), rest));
        if (outside) bad = tn_or(bad, tn_lt(or_nowhere(v, dims[i]), number(v, 0)));
        at = tn_add(at, nn_by_size(outside ? v : clamped(v, dims[i]), stride));
        stride = nn_times(index.graph, stride, dims[i]);
    }
    return outside ? tn_select(bad, number(at, -1), at) : at;
}

tn_tensor tn_gather_nd(tn_tensor x, tn_tensor index, int n_batch) {
    static const char fn[] = "tn_gather_nd";
    if (!nn_given(x.graph, x, fn) || !is_index(index, fn)) return poisoned(x);
    tn_shape s = tn_tensor_shape(x), is = tn_tensor_shape(index), out = { .rank = 0 };
    int b = n_batch, k = is.rank > 0 && may_be(is.dim[is.rank - 1], TN_MAX_RANK) ? (int)is.dim[is.rank - 1] : -1;
    if (b < 0 || b >= is.rank || b > s.rank || k < 0 || k > s.rank - b || is.rank - 1 + s.rank - b - k > TN_MAX_RANK)
        return nn_fail(x.graph, TN_ERR_SHAPE, "%s: rank %d, %d batch axes, indices of rank %d with %lld numbers each", fn,
                       s.rank, b, is.rank, (long long)(is.rank ? is.dim[is.rank - 1] : 0));
    for (int i = 0; i < b; i++)
        if (s.dim[i] != is.dim[i])
            return nn_fail(x.graph, TN_ERR_SHAPE, "%s: batch axis %d has size %lld, and %lld for the indices", fn, i,
                           (long long)s.dim[i], (long long)is.dim[i]);
    for (int i = 0; i < is.rank - 1; i++) out.dim[out.rank++] = is.dim[i];
    for (int i = b + k; i < s.rank; i++) out.dim[out.rank++] = s.dim[i];
    int64_t batch = product(x, s.dim, b), inside = product(x, s.dim + b, k), row = product(x, s.dim + b + k, s.rank - b - k),
            each = product(x, is.dim + b, is.rank - 1 - b);
    if (inside == 0 && batch && each) return nn_fail(x.graph, TN_ERR_SHAPE, "%s: an axis without elements to choose from", fn);
    tn_tensor at = tn_reshape(flat_places(index, s.dim + b, k, false), TN_DIMS(batch, each));
    at = tn_add(at, nn_by_size(tn_iota(x.graph, TN_I64, TN_DIMS(batch, each), 0), inside));
    tn_tensor rows = tn_reshape(x, TN_DIMS(nn_times(x.graph, batch, inside), row));
    return tn_reshape(tn_gather(rows, tn_reshape(at, TN_DIMS(nn_times(x.graph, batch, each))), 0), out);
}

tn_tensor tn_scatter_nd(tn_tensor base, tn_tensor index, tn_tensor updates, tn_scatter_mode mode) {
    static const char fn[] = "tn_scatter_nd";
    if (!nn_given(base.graph, base, fn) || !nn_given(base.graph, updates, fn) || !is_index(index, fn)) return poisoned(base);
    tn_shape s = tn_tensor_shape(base), is = tn_tensor_shape(index), us = tn_tensor_shape(updates);
    int k = is.rank > 0 && may_be(is.dim[is.rank - 1], s.rank) ? (int)is.dim[is.rank - 1] : -1;
    bool fits = k >= 0 && us.rank == is.rank - 1 + s.rank - k;
    for (int i = 0; fits && i < us.rank; i++) fits = us.dim[i] == (i < is.rank - 1 ? is.dim[i] : s.dim[i - (is.rank - 1) + k]);
    if (!fits)
        return nn_fail(
            base.graph, TN_ERR_SHAPE,
            "%s: ranks %d, %d and %d: updates have the axes of the indices but the last, then those of the base that "
            "have no index",
            fn, s.rank, is.rank, us.rank);
    int64_t n = product(base, s.dim, k), row = product(base, s.dim + k, s.rank - k), m = product(base, is.dim, is.rank - 1);
    tn_tensor at = tn_reshape(flat_places(index, s.dim, k, true), TN_DIMS(m));
    tn_tensor y = tn_scatter(tn_reshape(base, TN_DIMS(n, row)), at, tn_reshape(updates, TN_DIMS(m, row)), 0, mode);
    return tn_reshape(y, s);
}

tn_tensor tn_put_along(tn_tensor base, tn_tensor index, tn_tensor updates, int axis, tn_scatter_mode mode) {
    static const char fn[] = "tn_put_along";
    int a = 0;
    if (!nn_given(base.graph, base, fn) || !nn_given(base.graph, updates, fn) || !is_index(index, fn) ||
        !nn_axis(base, fn, axis, &a))
        return poisoned(base);
    tn_shape s = tn_tensor_shape(base), is = tn_tensor_shape(index), us = tn_tensor_shape(updates);
    bool fits = is.rank == s.rank && us.rank == s.rank;
    for (int i = 0; fits && i < s.rank; i++) fits = is.dim[i] == us.dim[i] && (i == a || may_be(is.dim[i], s.dim[i]));
    if (!fits)
        return nn_fail(base.graph, TN_ERR_SHAPE,
                       "%s: indices and updates must have one shape, within the base's but along axis %d", fn, a);
    int64_t n = product(base, s.dim, s.rank), m = product(base, is.dim, is.rank), stride = 1;
    tn_tensor along = or_nowhere(wide(index), s.dim[a]), at = tn_full(base.graph, TN_I64, is, 0);
    for (int i = s.rank - 1; i >= 0; i--) {
        tn_tensor k = i == a ? along : tn_iota(base.graph, TN_I64, is, i);
        at = tn_add(at, nn_by_size(k, stride));
        stride = nn_times(base.graph, stride, s.dim[i]);
    }
    at = tn_select(tn_lt(along, number(along, 0)), number(at, -1), at);
    tn_tensor y =
        tn_scatter(tn_reshape(base, TN_DIMS(n)), tn_reshape(at, TN_DIMS(m)), tn_reshape(updates, TN_DIMS(m)), 0, mode);
    return tn_reshape(y, s);
}

/* ---- search ---- */

static bool is_float(tn_tensor x) {
    tn_dtype t = tn_tensor_dtype(x);
    return t == TN_F32 || t == TN_F64 || t == TN_F16 || t == TN_BF16;
}
/* a stands before v: below it, or, where `right`, not above it. NaNs are the largest. */
static tn_tensor stands_before(tn_tensor a, tn_tensor v, bool right) {
    tn_tensor y = right ? tn_le(a, v) : tn_lt(a, v);
    if (!is_float(a)) return y;
    tn_tensor last = tn_ne(v, v);
    return tn_or(y, right ? last : tn_and(last, tn_eq(a, a)));
}

tn_tensor tn_searchsorted(tn_tensor sorted, tn_tensor values, int right) {
    static const char fn[] = "tn_searchsorted";
    if (!nn_given(sorted.graph, sorted, fn) || !nn_given(sorted.graph, values, fn)) return poisoned(sorted);
    tn_shape s = tn_tensor_shape(sorted), v = tn_tensor_shape(values);
    bool fits = s.rank == 1 || (s.rank > 1 && v.rank == s.rank);
    for (int i = 0; fits && s.rank > 1 && i + 1 < s.rank; i++) fits = s.dim[i] == v.dim[i];
    if (!fits)
        return nn_fail(sorted.graph, TN_ERR_SHAPE,
                       "%s: sorted rows of rank %d for values of rank %d: expected one row, or "
                       "the same leading axes",
                       fn, s.rank, v.rank);
    int64_t n = s.dim[s.rank - 1], rows = s.rank > 1 ? product(sorted, s.dim, s.rank - 1) : 1, step = 1;
    int64_t each = s.rank > 1 ? v.dim[v.rank - 1] : product(sorted, v.dim, v.rank), most = nn_most(sorted.graph, n);
    if (n == 0 || rows == 0 || each == 0) return tn_full(sorted.graph, TN_I64, v, 0);
    tn_tensor flat = tn_reshape(sorted, TN_DIMS(nn_times(sorted.graph, rows, n))), x = tn_reshape(values, TN_DIMS(rows, each));
    tn_shape grid = tn_tensor_shape(x);
    if (grid.rank < 0) return poisoned(sorted);
    tn_tensor at = tn_full(sorted.graph, TN_I64, grid, 0);
    tn_tensor row = nn_by_size(tn_iota(sorted.graph, TN_I64, grid, 0), n);
    while (step * 2 <= most) step *= 2;
    for (; step; step /= 2) { /* everything before `at` stands before the value */
        tn_tensor next = tn_add_scalar(at, (double)step), last = nn_size_like(next, n);
        tn_tensor entry = tn_gather(flat, tn_add(row, tn_add_scalar(tn_min(next, last), -1)), 0);
        tn_tensor go = tn_and(tn_le(next, last), stands_before(entry, x, right != 0));
        at = tn_select(go, next, at);
    }
    return tn_reshape(at, v);
}

/* ---- segments ---- */

static bool check_segments(tn_tensor x, tn_tensor ids, int64_t n, const char *fn, tn_shape *out) {
    if (!nn_given(x.graph, x, fn) || !is_index(ids, fn)) return false;
    tn_shape s = tn_tensor_shape(x), is = tn_tensor_shape(ids);
    bool fits = s.rank >= 1 && is.rank == 1 && is.dim[0] == s.dim[0] && nn_is_size(n);
    if (!fits)
        nn_fail(x.graph, TN_ERR_SHAPE, "%s: %lld segments of %lld rows, with ids of rank %d and size %lld", fn, (long long)n,
                (long long)(s.rank ? s.dim[0] : 1), is.rank, (long long)(is.rank ? is.dim[0] : 1));
    s.dim[0] = n;
    *out = s;
    return fits;
}
tn_tensor tn_segment(tn_tensor x, tn_tensor ids, int64_t n_segments, tn_scatter_mode mode) {
    tn_shape s;
    if (!check_segments(x, ids, n_segments, "tn_segment", &s)) return poisoned(x);
    if (mode == TN_SCATTER_MIN && tn_tensor_dtype(x) == TN_I64)
        return nn_complement(tn_segment(nn_complement(x), ids, n_segments, TN_SCATTER_MAX));
    return tn_scatter(tn_full(x.graph, tn_tensor_dtype(x), s, nn_identity(tn_tensor_dtype(x), mode)), ids, x, 0, mode);
}
tn_tensor tn_segment_mean(tn_tensor x, tn_tensor ids, int64_t n_segments) {
    tn_shape s, column;
    if (!nn_check(x, "tn_segment_mean", 1, &s) || !check_segments(x, ids, n_segments, "tn_segment_mean", &s))
        return poisoned(x);
    tn_dtype t = tn_tensor_dtype(x), sums = t == TN_F16 || t == TN_BF16 ? TN_F32 : t;
    tn_tensor ones = tn_full(x.graph, sums, tn_tensor_shape(ids), 1);
    tn_tensor n = tn_scatter_add(tn_full(x.graph, sums, TN_DIMS(n_segments), 0), ids, ones, 0);
    column = s;
    for (int i = 1; i < column.rank; i++) column.dim[i] = 1;
    tn_tensor sum = tn_segment(tn_cast(x, sums), ids, n_segments, TN_SCATTER_ADD);
    return tn_cast(tn_div(sum, tn_reshape(tn_max(n, number(n, 1)), column)), t);
}
tn_tensor tn_segment_ids(tn_tensor offsets, int64_t n_rows) {
    static const char fn[] = "tn_segment_ids";
    if (!is_index(offsets, fn)) return poisoned(offsets);
    tn_shape s = tn_tensor_shape(offsets);
    if (s.rank != 1 || nn_least(offsets.graph, s.dim[0]) < 1 || !nn_is_size(n_rows))
        return nn_fail(offsets.graph, TN_ERR_SHAPE, "%s: offsets of rank %d for %lld rows: expected a vector of one or more",
                       fn, s.rank, (long long)n_rows);
    if (n_rows == 0) return tn_full(offsets.graph, TN_I64, TN_DIMS(0), 0);
    /* One less than how many offsets there are up to the row. */
    tn_tensor none = tn_full(offsets.graph, TN_I32, TN_DIMS(n_rows), 0), ones = tn_full(offsets.graph, TN_I32, s, 1);
    tn_tensor upto = tn_cumulative(tn_scatter_add(none, offsets, ones, 0), 0, TN_SCAN_SUM, (tn_cumulative_opts){ 0 });
    return tn_add_scalar(wide(upto), -1);
}

/* ---- sparse matrices ---- */

tn_tensor tn_sparse_matmul(tn_tensor values, tn_tensor rows, tn_tensor columns, int64_t n_rows, tn_tensor x) {
    static const char fn[] = "tn_sparse_matmul";
    tn_shape v, c, m;
    if (!nn_check(values, fn, 1, &v) || !nn_check(x, fn, 2, &m) || !is_index(columns, fn)) return poisoned(values);
    c = tn_tensor_shape(columns);
    const int64_t a = v.rank == 3 ? v.dim[1] : 1, b = v.rank == 3 ? v.dim[2] : 1;
    bool fits = (v.rank == 1 || v.rank == 3) && m.rank == 2 && c.rank == 1 && c.dim[0] == v.dim[0] && a >= 0 && b > 0 &&
                (m.dim[0] < 0 || m.dim[0] % b == 0);
    if (!fits)
        return nn_fail(
            x.graph, TN_ERR_SHAPE,
            "%s: %lld values of rank %d in blocks of %lld x %lld with columns of rank %d and size %lld, times %lld rows of "
            "rank %d",
            fn, (long long)v.dim[0], v.rank, (long long)a, (long long)b, c.rank, (long long)(c.rank ? c.dim[0] : 1),
            (long long)m.dim[0], m.rank);
    tn_dtype t = tn_tensor_dtype(values), sums = t == TN_F16 || t == TN_BF16 ? TN_F32 : t;
    if (tn_tensor_dtype(x) != t) return nn_fail(x.graph, TN_ERR_DTYPE, "%s: values and x have different dtypes", fn);
    int64_t blocks = m.dim[0] >= 0 ? m.dim[0] / b : b == 1 ? m.dim[0] : tn_dim_floor_div(x.graph, m.dim[0], b);
    tn_tensor y = tn_gather(tn_reshape(x, TN_DIMS(blocks, b, m.dim[1])), columns, 0); /* [k,b,n] */
    values = tn_reshape(values, TN_DIMS(v.dim[0], a, b));
    y = a * b == 1 ? tn_mul(tn_cast(values, sums), tn_cast(y, sums)) : tn_cast(tn_matmul(values, y), sums); /* [k,a,n] */
    y = tn_reshape(tn_segment(y, rows, n_rows, TN_SCATTER_ADD), TN_DIMS(nn_times(x.graph, n_rows, a), m.dim[1]));
    return tn_cast(y, t);
}
tn_tensor tn_sparse_matmul_csr(tn_tensor values, tn_tensor offsets, tn_tensor columns, tn_tensor x) {
    tn_tensor ids =
        tn_segment_ids(offsets, nn_given(values.graph, values, "tn_sparse_matmul_csr") ? tn_tensor_shape(values).dim[0] : 0);
    return tn_sparse_matmul(values, ids, columns, nn_plus(values.graph, tn_tensor_shape(offsets).dim[0], -1), x);
}

/* ---- sets ---- */

static bool check_most(tn_tensor x, int64_t most, const char *fn) {
    if (!nn_given(x.graph, x, fn)) return false;
    if (nn_is_size(most)) return true;
    nn_fail(x.graph, TN_ERR_INVAL, "%s: at most %lld results", fn, (long long)most);
    return false;
}
/* For each of n flags, its number among those that are set; -1 where it is not. Their count: i64[]. */
static tn_tensor numbered(tn_tensor flags, tn_tensor *out_count) {
    tn_tensor ones = tn_cast(flags, TN_I64);
    *out_count = tn_sum(ones, TN_ALL_AXES, 0);
    tn_tensor at = tn_add_scalar(tn_cumulative(ones, 0, TN_SCAN_SUM, (tn_cumulative_opts){ 0 }), -1);
    return at;
}

static tn_tensor differ(tn_tensor a, tn_tensor b) {
    tn_tensor other = tn_ne(a, b);
    return is_float(a) ? tn_and(other, tn_or(tn_eq(a, a), tn_eq(b, b))) : other; /* NaNs are one value */
}
/* Of n values, as many as a run gives; the first one does. */
static tn_tensor differ_from_last(tn_tensor x, int64_t n) {
    tn_tensor at = tn_iota(x.graph, TN_I64, TN_DIMS(n), 0), last = tn_gather(x, tn_max_scalar(tn_add_scalar(at, -1), 0), 0);
    return tn_or(tn_eq(at, number(at, 0)), differ(last, x));
}

tn_tensor tn_unique(tn_tensor x, int64_t most, tn_tensor *out_count, tn_tensor *out_inverse, tn_tensor *out_counts) {
    tn_tensor none = poisoned(x), count = none, at, order, sorted;
    if (out_count) *out_count = none;
    if (out_inverse) *out_inverse = none;
    if (out_counts) *out_counts = none;
    if (!check_most(x, most, "tn_unique")) return none;
    tn_shape s = tn_tensor_shape(x);
    int64_t n = product(x, s.dim, s.rank), zero = 0, one = 1, last = n - 1;
    tn_tensor flat = tn_reshape(x, TN_DIMS(n)), counted = tn_full(x.graph, TN_I64, TN_DIMS(most), 0);
    tn_tensor values = tn_full(x.graph, tn_tensor_dtype(x), TN_DIMS(most), 0);
    if (n == 0) {
        if (out_count) *out_count = tn_full(x.graph, TN_I64, TN_SCALAR, 0);
        if (out_inverse) *out_inverse = tn_full(x.graph, TN_I64, s, 0);
        if (out_counts) *out_counts = counted;
        return values;
    }
    order = tn_argsort(flat, 0, 0);
    sorted = tn_gather(flat, order, 0);
    at = numbered(
        n >= 0 ? tn_pad(differ(tn_slice(sorted, &zero, &last, NULL, 1), tn_slice(sorted, &one, &n, NULL, 1)), &one, &zero, 1, 1)
               : differ_from_last(sorted, n),
        &count);
    if (out_count) *out_count = count;
    if (out_inverse)
        *out_inverse = tn_reshape(tn_scatter(tn_full(x.graph, TN_I64, TN_DIMS(n), 0), order, at, 0, TN_SCATTER_SET), s);
    if (out_counts) *out_counts = tn_scatter_add(counted, at, tn_full(x.graph, TN_I64, TN_DIMS(n), 1), 0);
    tn_dtype t = tn_tensor_dtype(x);
    if (t != TN_BOOL) return tn_scatter(values, at, sorted, 0, TN_SCATTER_SET);
    return tn_cast(tn_scatter(tn_cast(values, TN_U8), at, tn_cast(sorted, TN_U8), 0, TN_SCATTER_SET), TN_BOOL);
}

tn_tensor tn_nonzero(tn_tensor x, int64_t most, tn_tensor *out_count) {
    tn_tensor none = poisoned(x), count, columns[TN_MAX_RANK];
    if (out_count) *out_count = none;
    if (!check_most(x, most, "tn_nonzero")) return none;
    tn_shape s = tn_tensor_shape(x);
    int64_t n = product(x, s.dim, s.rank);
    if (s.rank == 0) return nn_fail(x.graph, TN_ERR_SHAPE, "tn_nonzero: a scalar has no places");
    tn_tensor flags = tn_reshape(tn_tensor_dtype(x) == TN_BOOL ? x : tn_ne(x, number(x, 0)), TN_DIMS(n));
    tn_tensor at = numbered(flags, &count);
    if (out_count) *out_count = count;
    at = tn_select(flags, at, number(at, -1));
    tn_tensor place = tn_iota(x.graph, TN_I64, TN_DIMS(n), 0);
    place = tn_scatter(tn_full(x.graph, TN_I64, TN_DIMS(most), -1), at, place, 0, TN_SCATTER_SET);
    tn_tensor behind = tn_lt(place, number(place, 0));
    for (int i = s.rank - 1; i >= 0; i--) {
        tn_tensor size = nn_size_like(place, s.dim[i]);
        columns[i] = tn_select(behind, place, tn_mod(place, size));
        place = tn_select(behind, place, tn_div(place, size));
    }
    return tn_nn_stack(columns, s.rank, 1);
}
