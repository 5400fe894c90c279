/* op_shape.c - shapes and movement: what shape-computing parts of models are made of. */
#include "import.h"
#include "tenon/tenon_ir.h"

#include <math.h>

/* ---- constants ---- */

void onnx_op_constant(onnx_call *c) {
    const onnx_attr *a;
    onnx_env *env = c->im->env;
    if ((a = onnx_attr_find(c, "value")) && a->type == ATTR_TENSOR) {
        onnx_tensor t;
        onnx_read_tensor(env, a->t, &t);
        onnx_put_known(c, 0, t.elem, t.shape, onnx_tensor_data(env, c->im->m, &t));
    } else if ((a = onnx_attr_find(c, "value_int")) && a->type == ATTR_INT) {
        onnx_put_ints(c, 0, &a->i, -1);
    } else if ((a = onnx_attr_find(c, "value_ints")) && a->type == ATTR_INTS) {
        onnx_put_ints(c, 0, a->ints, a->n);
    } else if ((a = onnx_attr_find(c, "value_float")) && a->type == ATTR_FLOAT) {
        onnx_put_known(c, 0, ELEM_F32, TN_SCALAR, &a->f);
    } else if ((a = onnx_attr_find(c, "value_floats")) && a->type == ATTR_FLOATS) {
        onnx_put_known(c, 0, ELEM_F32, TN_DIMS(a->n), a->n ? (const void *)a->floats : "");
    } else {
        onnx_refuse(c, "a constant that is no tensor of numbers");
    }
}

static tn_shape shape_of_ints(onnx_call *c, const int64_t *v, int n) {
    if (n > TN_MAX_RANK) onnx_refuse(c, "%d dims, more than %d", n, TN_MAX_RANK);
    for (int i = 0; i < n; i++)
        if (v[i] < 0 && !onnx_is_dim(v[i])) onnx_refuse(c, "dim %d is %lld", i, (long long)v[i]);
    return onnx_dims(v, n);
}

/* Small ones are known at import, large ones are one number in the graph. */
void onnx_op_constant_of_shape(onnx_call *c) {
    int n, elem = ELEM_F32;
    const int64_t *dims = onnx_sizes(c, 0, "shape", &n);
    tn_shape s = shape_of_ints(c, dims, n);
    const onnx_attr *a = onnx_attr_find(c, "value");
    const void *one = &(double){ 0 };
    if (a) {
        onnx_tensor t;
        onnx_read_tensor(c->im->env, a->t, &t);
        if (t.n != 1) onnx_refuse(c, "a value of %lld elements", (long long)t.n);
        elem = t.elem;
        one = onnx_tensor_data(c->im->env, c->im->m, &t);
    }
    if (onnx_elem_dtype(elem) == TN_N_DTYPES) onnx_refuse(c, "a value of %s", onnx_elem_name(elem));
    size_t size = tn_dtype_size(onnx_elem_dtype(elem));
    int64_t count = onnx_count_of(s);
    if (count > TN_ONNX_MAX_FOLD) {
        tn_tensor t = tn_const(c->g, onnx_elem_dtype(elem), TN_SCALAR, one);
        onnx_put(c, 0, tn_expand(t, s), elem);
        return;
    }
    char *data = onnx_new(c->im->env, (size_t)count + 1, size);
    for (int64_t i = 0; i < count; i++) memcpy(data + (size_t)i * size, one, size);
    onnx_put_known(c, 0, elem, s, data);
}

/* Between sizes that a run gives: as many elements as there are then. */
static void range_of_sizes(onnx_call *c) {
    int elem = onnx_elem(c, 0), n;
    int64_t at[3];
    for (int i = 0; i < 3; i++) at[i] = onnx_sizes(c, i, "start, limit or delta", &n)[0];
    if (onnx_elem_dtype(elem) != TN_I64 && onnx_elem_dtype(elem) != TN_I32) onnx_refuse(c, "%s", onnx_elem_name(elem));
    if (onnx_is_dim(at[2]) || at[2] < 1) onnx_refuse(c, "a delta that is no positive number, between sizes that a run gives");
    int64_t count = onnx_dim(c, '^', onnx_dim(c, '>', onnx_dim(c, '-', at[1], at[0]), 0), at[2]);
    tn_tensor i = tn_iota(c->g, TN_I64, TN_DIMS(count), 0);
    tn_tensor y = tn_add(tn_mul(i, onnx_scalar(i, (double)at[2])), tn_dim_value(c->g, at[0]));
    onnx_put(c, 0, tn_cast(y, onnx_elem_dtype(elem)), elem);
}
void onnx_op_range(onnx_call *c) {
    if (onnx_in(c, 0)->sizes || onnx_in(c, 1)->sizes || onnx_in(c, 2)->sizes) {
        range_of_sizes(c);
        return;
    }
    int elem = onnx_elem(c, 0), n1, n2, n3;
    double start = onnx_known_floats(c, 0, "start", &n1)[0], limit = onnx_known_floats(c, 1, "limit", &n2)[0],
           delta = onnx_known_floats(c, 2, "delta", &n3)[0];
    if (n1 != 1 || n2 != 1 || n3 != 1 || delta == 0) onnx_refuse(c, "a start, limit or delta that is no number");
    double count = ceil((limit - start) / delta);
    if (count > 1 << 20) onnx_refuse(c, "%g elements", count);
    int64_t n = count > 0 ? (int64_t)count : 0;
    tn_tensor i = tn_iota(c->g, onnx_is_float(elem) ? TN_F64 : TN_I64, TN_DIMS(n), 0);
    tn_tensor y = tn_add(tn_mul(i, onnx_scalar(i, delta)), onnx_scalar(i, start));
    if (onnx_is_float(elem) || n > TN_ONNX_MAX_FOLD) {
        onnx_put(c, 0, tn_cast(y, onnx_elem_dtype(elem)), elem);
        return;
    }
    int64_t *v = ONNX_NEW(c->im->env, int64_t, n + 1);
    int32_t *narrow = ONNX_NEW(c->im->env, int32_t, n + 1);
    for (int64_t k = 0; k < n; k++) v[k] = (int64_t)start + k * (int64_t)delta, narrow[k] = (int32_t)v[k];
    if (onnx_elem_dtype(elem) != TN_I64 && onnx_elem_dtype(elem) != TN_I32) onnx_refuse(c, "%s", onnx_elem_name(elem));
    onnx_put_known(c, 0, elem, TN_DIMS(n), onnx_elem_dtype(elem) == TN_I64 ? (const void *)v : narrow);
}

void onnx_op_eye_like(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    int64_t to = onnx_attr_int(c, "dtype", onnx_elem(c, 0)), k = onnx_attr_int(c, "k", 0);
    if (s.rank != 2 || to <= 0 || to >= ELEM_N || onnx_elem_dtype((int)to) == TN_N_DTYPES) onnx_refuse(c, "its rank or type");
    tn_tensor row = tn_iota(c->g, TN_I64, s, 0), column = tn_iota(c->g, TN_I64, s, 1);
    onnx_put(c, 0, tn_cast(tn_eq(tn_add_scalar(row, (double)k), column), onnx_elem_dtype((int)to)), (int)to);
}

void onnx_op_shape(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    int64_t from = onnx_attr_int(c, "start", 0), to = onnx_attr_int(c, "end", s.rank);
    from = from < 0 ? from + s.rank : from, to = to < 0 ? to + s.rank : to;
    from = from < 0 ? 0 : from > s.rank ? s.rank : from, to = to < 0 ? 0 : to > s.rank ? s.rank : to;
    int64_t *dims = ONNX_NEW(c->im->env, int64_t, TN_MAX_RANK), n = to > from ? to - from : 0;
    for (int64_t i = 0; i < n; i++) dims[i] = s.dim[from + i];
    onnx_put_sizes(c, 0, ELEM_I64, TN_DIMS(n), dims);
}
void onnx_op_size(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    int64_t *n = ONNX_NEW(c->im->env, int64_t, 1);
    *n = onnx_dim_product(c, s.dim, s.rank);
    onnx_put_sizes(c, 0, ELEM_I64, TN_SCALAR, n);
}

/* ---- the same elements under other dims ---- */

void onnx_op_reshape(onnx_call *c) {
    int n;
    tn_shape x = onnx_shape(c, 0);
    const int64_t *want = onnx_sizes_of(c, "shape", 1, &n);
    bool zero_is_zero = onnx_attr_int(c, "allowzero", 0);
    (void)onnx_attr_find(c, "consumed_inputs");
    if (!want || n > TN_MAX_RANK) onnx_refuse(c, "%d dims", n);
    tn_shape s = onnx_dims(want, n);
    int open = -1;
    int64_t known = 1, lo, hi;
    bool symbolic = onnx_is_open(s);
    for (int i = 0; i < n; i++) {
        if (onnx_is_dim(s.dim[i])) { /* 0 would be the operand's */
            onnx_dim_range(c, s.dim[i], &lo, &hi);
            bool copies = !zero_is_zero && !(i < x.rank && x.dim[i] == s.dim[i]);
            if (lo < (copies ? 1 : 0)) onnx_refuse(c, "dim %d may be %lld", i, (long long)lo);
            continue;
        }
        if (s.dim[i] == 0 && !zero_is_zero && i >= x.rank) onnx_refuse(c, "dim %d of the operand, which has %d", i, x.rank);
        if (s.dim[i] == 0 && !zero_is_zero) s.dim[i] = x.dim[i];
        symbolic |= onnx_is_dim(s.dim[i]);
        if (onnx_is_dim(s.dim[i])) continue;
        if (s.dim[i] < -1 || (s.dim[i] == -1 && open >= 0)) onnx_refuse(c, "dim %d is %lld", i, (long long)s.dim[i]);
        if (s.dim[i] == -1)
            open = i;
        else if (__builtin_mul_overflow(known, s.dim[i], &known))
            onnx_refuse(c, "its dims overflow");
    }
    if (open >= 0 && !symbolic && !onnx_is_open(x)) s.dim[open] = known ? onnx_count_of(x) / known : 0;
    onnx_put(c, 0, tn_reshape(onnx_t(c, 0), s), ELEM_NONE);
}
void onnx_op_flatten(onnx_call *c) {
    tn_shape x = onnx_shape(c, 0);
    int64_t axis = onnx_attr_int(c, "axis", 1);
    if (axis < 0) axis += x.rank;
    if (axis < 0 || axis > x.rank) onnx_refuse(c, "axis %lld", (long long)axis);
    int64_t rows = onnx_dim_product(c, x.dim, (int)axis), columns = onnx_dim_product(c, x.dim + axis, x.rank - (int)axis);
    onnx_put(c, 0, tn_reshape(onnx_t(c, 0), TN_DIMS(rows, columns)), ELEM_NONE);
}

static void mark_axes(onnx_call *c, const int64_t *axes, int n, int rank, bool *marked) {
    for (int i = 0; i < n; i++) {
        int axis = onnx_axis(c, axes[i], rank);
        if (marked[axis]) onnx_refuse(c, "axis %d twice", axis);
        marked[axis] = true;
    }
}
void onnx_op_squeeze(onnx_call *c) {
    tn_shape x = onnx_shape(c, 0), s = { .rank = 0 };
    bool gone[TN_MAX_RANK] = { false };
    int n;
    const int64_t *axes = onnx_ints_of(c, "axes", 1, &n);
    mark_axes(c, axes, n, x.rank, gone);
    for (int i = 0; i < x.rank; i++) {
        int64_t lo, hi;
        onnx_dim_range(c, x.dim[i], &lo, &hi);
        if (onnx_is_dim(x.dim[i]) && (gone[i] || (!axes && lo < 2))) onnx_refuse(c, "axis %d has a size that a run gives", i);
        if (gone[i] && x.dim[i] != 1) onnx_refuse(c, "axis %d has size %lld", i, (long long)x.dim[i]);
        if (!(axes ? gone[i] : x.dim[i] == 1)) s.dim[s.rank++] = x.dim[i];
    }
    onnx_put(c, 0, tn_reshape(onnx_t(c, 0), s), ELEM_NONE);
}
void onnx_op_unsqueeze(onnx_call *c) {
    tn_shape x = onnx_shape(c, 0), s = { .rank = 0 };
    bool fresh[TN_MAX_RANK] = { false };
    int n, from = 0;
    const int64_t *axes = onnx_ints_of(c, "axes", 1, &n);
    if (!axes || x.rank + n > TN_MAX_RANK) onnx_refuse(c, "%d axes more than %d", n, x.rank);
    mark_axes(c, axes, n, x.rank + n, fresh);
    for (; s.rank < x.rank + n; s.rank++) s.dim[s.rank] = fresh[s.rank] ? 1 : x.dim[from++];
    onnx_put(c, 0, tn_reshape(onnx_t(c, 0), s), ELEM_NONE);
}

void onnx_op_transpose(onnx_call *c) {
    int rank = onnx_rank(c, 0), n;
    const int64_t *perm = onnx_attr_ints(c, "perm", &n);
    int64_t back[TN_MAX_RANK];
    for (int i = 0; i < rank; i++) back[i] = rank - 1 - i;
    if (perm && n != rank) onnx_refuse(c, "perm has %d axes, the operand %d", n, rank);
    onnx_put(c, 0, tn_permute(onnx_t(c, 0), perm ? perm : back, rank), ELEM_NONE);
}

static void blocks(onnx_call *c, bool to_space) {
    tn_shape x = onnx_shape(c, 0);
    int64_t b = onnx_attr_need_int(c, "blocksize"), *d = x.dim;
    bool crd = onnx_attr_is(c, "mode", "DCR", "CRD");
    bool open = x.rank == 4 && (onnx_is_dim(d[1]) || (!to_space && (onnx_is_dim(d[2]) || onnx_is_dim(d[3]))));
    if (x.rank != 4 || b < 1 || b > 1 << 20 || open || (to_space ? d[1] % (b * b) : d[2] % b || d[3] % b))
        onnx_refuse(c, "its shape");
    if (!crd && !onnx_attr_is(c, "mode", "DCR", "DCR")) onnx_refuse(c, "attribute mode");
    tn_tensor y = onnx_t(c, 0);
    if (!to_space) {
        y = tn_reshape(y, TN_DIMS(d[0], d[1], d[2] / b, b, d[3] / b, b));
        y = crd ? tn_permute(y, TN_INTS(0, 1, 3, 5, 2, 4)) : tn_permute(y, TN_INTS(0, 3, 5, 1, 2, 4));
        onnx_put(c, 0, tn_reshape(y, TN_DIMS(d[0], d[1] * b * b, d[2] / b, d[3] / b)), ELEM_NONE);
        return;
    }
    int64_t channels = d[1] / (b * b);
    y = crd ? tn_permute(tn_reshape(y, TN_DIMS(d[0], channels, b, b, d[2], d[3])), TN_INTS(0, 1, 4, 2, 5, 3))
            : tn_permute(tn_reshape(y, TN_DIMS(d[0], b, b, channels, d[2], d[3])), TN_INTS(0, 3, 4, 1, 5, 2));
    onnx_put(c, 0, tn_reshape(y, TN_DIMS(d[0], channels, onnx_dim(c, '*', d[2], b), onnx_dim(c, '*', d[3], b))), ELEM_NONE);
}
void onnx_op_depth_to_space(onnx_call *c) { blocks(c, true); }
void onnx_op_space_to_depth(onnx_call *c) { blocks(c, false); }

/* ---- parts and repetitions ---- */

void onnx_op_concat(onnx_call *c) {
    int rank = onnx_rank(c, 0),
        axis = onnx_axis(c, c->opset < 4 ? onnx_attr_int(c, "axis", 1) : onnx_attr_need_int(c, "axis"), rank);
    tn_tensor *xs = ONNX_NEW(c->im->env, tn_tensor, c->n_in);
    for (int i = 0; i < c->n_in; i++) {
        if (onnx_elem(c, i) != onnx_elem(c, 0)) onnx_refuse(c, "operands of several types");
        xs[i] = onnx_t(c, i);
    }
    onnx_put(c, 0, tn_concat(xs, c->n_in, axis), ELEM_NONE);
}

/* The sizes of n parts: given, or equal ones, the last of which may be smaller (operator set 18). */
static const int64_t *split_sizes(onnx_call *c, int64_t size, int n) {
    int n_given;
    const int64_t *given = onnx_sizes_of(c, "split", 1, &n_given);
    int64_t *out = ONNX_NEW(c->im->env, int64_t, n), sum = 0, each = (size + n - 1) / n,
            parts = onnx_attr_int(c, "num_outputs", n);
    if ((given && n_given != n) || parts != n) onnx_refuse(c, "%d sizes for %d results", n_given, n);
    if (!given && size % n && c->opset < 18) onnx_refuse(c, "%lld elements in %d equal parts", (long long)size, n);
    for (int i = 0; i < n; i++) {
        out[i] = given ? given[i] : size - sum < each ? size - sum : each;
        if (onnx_is_dim(size) || onnx_is_dim(out[i])) { /* what a part has, the slice proves */
            sum = onnx_dim(c, '+', sum, out[i]);
            continue;
        }
        if (out[i] < 0 || out[i] > size - sum) onnx_refuse(c, "sizes that do not add up to %lld", (long long)size);
        sum += out[i];
    }
    if (sum != size) onnx_refuse(c, "sizes that do not add up");
    return out;
}
/* Where equal parts of a size that a run gives begin, and behind them. */
static int64_t *split_open(onnx_call *c, int64_t size, int n) {
    tn_ir_dim d;
    int64_t *at = ONNX_NEW(c->im->env, int64_t, n + 1), each;
    if (onnx_attr_int(c, "num_outputs", n) != n) onnx_refuse(c, "equal parts of another number than its results");
    if (tn_ir_get_dim(c->g, size, &d)) onnx_refuse_graph(c);
    bool equal = d.multiple_of % n == 0;
    if (!equal && c->opset < 18)
        onnx_refuse(
            c, "equal parts of a size that a run gives, which may be no multiple of %d: a range LO..HI:%d of its dim says that",
            n, n);
    each = equal ? onnx_dim(c, '/', size, n) : onnx_dim(c, '^', size, n);
    for (int k = 0; k <= n; k++) {
        at[k] = onnx_dim(c, '*', each, k);
        if (!equal) at[k] = onnx_dim(c, '<', at[k], size);
    }
    return at;
}
void onnx_op_split(onnx_call *c) {
    tn_shape x = onnx_shape(c, 0);
    int axis = onnx_axis(c, onnx_attr_int(c, "axis", 0), x.rank);
    if (onnx_is_dim(x.dim[axis]) && !onnx_has(c, 1) && !onnx_attr_find(c, "split")) {
        const int64_t *at = split_open(c, x.dim[axis], c->n_out);
        for (int k = 0; k < c->n_out; k++) onnx_put(c, k, tn_slice_axis(onnx_t(c, 0), axis, at[k], at[k + 1], 1), ELEM_NONE);
        return;
    }
    const int64_t *sizes = split_sizes(c, x.dim[axis], c->n_out);
    int64_t start[TN_MAX_RANK] = { 0 };
    for (int k = 0; k < c->n_out; k++) {
        tn_shape stop = x;
        stop.dim[axis] = onnx_dim(c, '+', start[axis], sizes[k]);
        onnx_put(c, k, tn_slice(onnx_t(c, 0), start, stop.dim, NULL, x.rank), ELEM_NONE);
        start[axis] = stop.dim[axis];
    }
}

/* NumPy's rule: bounds count from the end when negative and are clamped. A step below 0 is a flip, then a step above. */
typedef struct cut {
    int64_t start[TN_MAX_RANK], stop[TN_MAX_RANK], step[TN_MAX_RANK], flip[TN_MAX_RANK];
    int n_flips;
} cut;
/* The same of sizes that a run gives. */
static int64_t bound(onnx_call *c, int64_t v, int64_t size, int64_t least, int64_t most) {
    int64_t lo, hi;
    onnx_dim_range(c, v, &lo, &hi);
    if (lo < 0 && hi >= 0) onnx_refuse(c, "a bound that may count from either end");
    return onnx_dim(c, '<', lo < 0 ? onnx_dim(c, '>', onnx_dim(c, '+', v, size), least) : v, most);
}
static void cut_open_axis(onnx_call *c, cut *k, int axis, int64_t size, int64_t from, int64_t to, int64_t step) {
    int64_t least = step > 0 ? 0 : -1, last = onnx_dim(c, '+', size, least);
    from = bound(c, from, size, least, last), to = bound(c, to, size, least, last);
    if (step < 0) {
        k->flip[k->n_flips++] = axis;
        from = onnx_dim(c, '>', onnx_dim(c, '-', last, from), 0), to = onnx_dim(c, '-', last, to);
        step = step == ONNX_LEAST ? INT64_MAX : -step;
    }
    k->start[axis] = from, k->stop[axis] = onnx_dim(c, '>', from, to), k->step[axis] = step;
}
static void cut_axis(cut *k, int axis, int64_t size, int64_t from, int64_t to, int64_t step) {
    from = from < 0 ? (from < -size ? (step > 0 ? 0 : -1) : from + size) : from;
    to = to < 0 ? (to < -size ? (step > 0 ? 0 : -1) : to + size) : to;
    int64_t last = step > 0 ? size : size - 1;
    from = from > last ? last : from, to = to > last ? last : to;
    if (step < 0) { /* in the flipped axis */
        k->flip[k->n_flips++] = axis;
        from = size - 1 - from, to = size - 1 - to;
        step = step == INT64_MIN ? INT64_MAX : -step;
    }
    if (from < 0) from = 0;
    k->start[axis] = from, k->stop[axis] = to < from ? from : to;
    k->step[axis] = step > size && size > 0 ? size : step;
    if (k->step[axis] < 1) k->step[axis] = 1;
}
void onnx_op_slice(onnx_call *c) {
    tn_shape x = onnx_shape(c, 0);
    int n, n_ends, n_axes, n_steps = 0;
    const int64_t *starts = onnx_sizes_of(c, "starts", 1, &n), *ends = onnx_sizes_of(c, "ends", 2, &n_ends),
                  *axes = onnx_ints_of(c, "axes", 3, &n_axes),
                  *steps = onnx_has(c, 4) ? onnx_known_ints(c, 4, "steps", &n_steps) : NULL;
    if (!starts || n != n_ends || (axes && n_axes != n) || (steps && n_steps != n) || n > x.rank)
        onnx_refuse(c, "%d starts", n);
    cut k = { .n_flips = 0 };
    bool done[TN_MAX_RANK] = { false };
    for (int i = 0; i < x.rank; i++) k.stop[i] = x.dim[i], k.step[i] = 1;
    for (int i = 0; i < n; i++) {
        int axis = onnx_axis(c, axes ? axes[i] : i, x.rank);
        if (done[axis] || (steps && !steps[i])) onnx_refuse(c, "axis %d", axis);
        done[axis] = true;
        int64_t step = steps ? steps[i] : 1;
        if (onnx_is_dim(x.dim[axis]) || onnx_is_dim(starts[i]) || onnx_is_dim(ends[i]))
            cut_open_axis(c, &k, axis, x.dim[axis], starts[i], ends[i], step < ONNX_LEAST ? ONNX_LEAST : step);
        else
            cut_axis(&k, axis, x.dim[axis], starts[i], ends[i], step);
    }
    tn_tensor y = onnx_t(c, 0);
    if (k.n_flips) y = tn_flip(y, k.flip, k.n_flips);
    onnx_put(c, 0, tn_slice(y, k.start, k.stop, k.step, x.rank), ELEM_NONE);
}

static tn_tensor pad_axes(onnx_call *c, tn_tensor x, const int64_t *pads, tn_nn_pad_mode mode) {
    int rank = tn_tensor_shape(x).rank;
    for (int i = 0; i < rank; i++) {
        bool any = pads[i] || pads[i + rank];
        if (any && onnx_is_dim(tn_tensor_shape(x).dim[i])) onnx_refuse(c, "axis %d has a size that a run gives", i);
        if (pads[i] < 0 || pads[i + rank] < 0) onnx_refuse(c, "negative or symbolic padding in this mode");
        if (pads[i] || pads[i + rank]) x = tn_nn_pad(x, i, pads[i], pads[i + rank], mode);
    }
    return x;
}
static tn_tensor pad_constant(onnx_call *c, tn_tensor x, const int64_t *pads, double value) {
    tn_shape s = tn_tensor_shape(x);
    int64_t before[TN_MAX_RANK], after[TN_MAX_RANK], start[TN_MAX_RANK];
    for (int i = 0; i < s.rank; i++) { /* negative: what is cut off */
        int64_t lo = pads[i], hi = pads[i + s.rank];
        bool cut_lo = lo < 0 && !onnx_is_dim(lo), cut_hi = hi < 0 && !onnx_is_dim(hi), open = onnx_is_dim(s.dim[i]);
        start[i] = cut_lo ? -lo : 0;
        if (!open && start[i] > s.dim[i]) onnx_refuse(c, "axis %d is cut by more than it has", i);
        s.dim[i] = onnx_dim(c, '+', s.dim[i], cut_hi ? hi : 0);
        if (!open && s.dim[i] < start[i]) onnx_refuse(c, "axis %d is cut by more than it has", i);
        before[i] = cut_lo ? 0 : lo, after[i] = cut_hi ? 0 : hi;
    }
    return tn_pad(tn_slice(x, start, s.dim, NULL, s.rank), before, after, s.rank, value);
}
void onnx_op_pad(onnx_call *c) {
    int rank = onnx_rank(c, 0), n, n_axes = rank, n_values;
    const int64_t *given = onnx_sizes_of(c, c->opset < 2 ? "paddings" : "pads", 1, &n);
    const int64_t *axes = onnx_has(c, 3) ? onnx_known_ints(c, 3, "axes", &n_axes) : NULL;
    int64_t *pads = ONNX_NEW(c->im->env, int64_t, 2 * rank + 1);
    double value = onnx_attr_float(c, "value", 0);
    if (onnx_has(c, 2)) value = onnx_known_floats(c, 2, "constant value", &n_values)[0];
    if (!given || n != 2 * n_axes) onnx_refuse(c, "%d pads for %d axes", n, n_axes);
    for (int i = 0; i < n_axes; i++) {
        int axis = onnx_axis(c, axes ? axes[i] : i, rank);
        pads[axis] = given[i], pads[axis + rank] = given[i + n_axes];
    }
    tn_tensor x = onnx_t(c, 0), y;
    if (onnx_attr_is(c, "mode", "constant", "constant"))
        y = pad_constant(c, x, pads, value);
    else if (onnx_attr_is(c, "mode", "", "edge"))
        y = pad_axes(c, x, pads, TN_NN_PAD_EDGE);
    else if (onnx_attr_is(c, "mode", "", "reflect"))
        y = pad_axes(c, x, pads, TN_NN_PAD_REFLECT);
    else if (onnx_attr_is(c, "mode", "", "wrap"))
        y = pad_axes(c, x, pads, TN_NN_PAD_WRAP);
    else
        onnx_refuse(c, "attribute mode");
    onnx_put(c, 0, y, ELEM_NONE);
}

void onnx_op_expand(onnx_call *c) {
    int n;
    const int64_t *want = onnx_sizes(c, 1, "shape", &n);
    tn_shape x = onnx_shape(c, 0), s = shape_of_ints(c, want, n), y = { .rank = x.rank > n ? x.rank : n };
    for (int i = 0; i < y.rank; i++) { /* from the last axis on */
        int64_t a = i < x.rank ? x.dim[x.rank - 1 - i] : 1, b = i < n ? s.dim[n - 1 - i] : 1;
        if (a != b && a != 1 && b != 1 && (onnx_is_dim(a) || onnx_is_dim(b)))
            onnx_refuse(c, "axis %d and its new size are not always equal", y.rank - 1 - i);
        if (a != b && a != 1 && b != 1) onnx_refuse(c, "sizes %lld and %lld", (long long)a, (long long)b);
        y.dim[y.rank - 1 - i] = a == 1 ? b : a;
    }
    onnx_put(c, 0, tn_expand(onnx_t(c, 0), y), ELEM_NONE);
}
void onnx_op_tile(onnx_call *c) {
    int n, rank = onnx_rank(c, 0);
    const int64_t *reps = onnx_sizes(c, 1, "repeats", &n);
    if (n != rank || c->opset < 6) onnx_refuse(c, "%d repeats of %d axes", n, rank);
    tn_tensor x = onnx_t(c, 0);
    for (int i = 0; i < rank; i++) {
        tn_shape s = tn_tensor_shape(x), with = { .rank = s.rank + 1 };
        if (reps[i] == 1) continue;
        if (s.rank < 0 || s.rank == TN_MAX_RANK || (reps[i] < 0 && !onnx_is_dim(reps[i])))
            onnx_refuse(c, "%lld times axis %d of rank %d", (long long)reps[i], i, s.rank);
        for (int k = 0; k < with.rank; k++) with.dim[k] = k == i ? 1 : s.dim[k - (k > i)];
        x = tn_reshape(x, with), with.dim[i] = reps[i];
        s.dim[i] = onnx_dim(c, '*', s.dim[i], reps[i]);
        x = tn_reshape(tn_expand(x, with), s);
    }
    onnx_put(c, 0, x, ELEM_NONE);
}

void onnx_op_trilu(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    int64_t k = onnx_has(c, 1) ? onnx_known_int(c, 1, "diagonal") : 0;
    bool upper = onnx_attr_int(c, "upper", 1);
    if (s.rank < 2) onnx_refuse(c, "rank %d", s.rank);
    if (k > 1 << 30 || k < -(1 << 30)) onnx_refuse(c, "diagonal %lld", (long long)k);
    tn_shape m = TN_DIMS(s.dim[s.rank - 2], s.dim[s.rank - 1]);
    tn_tensor row = tn_add_scalar(tn_iota(c->g, TN_I64, m, 0), (double)k), column = tn_iota(c->g, TN_I64, m, 1),
              x = onnx_t(c, 0);
    onnx_put(c, 0, tn_select(upper ? tn_ge(column, row) : tn_le(column, row), x, onnx_scalar(x, 0)), ELEM_NONE);
}
