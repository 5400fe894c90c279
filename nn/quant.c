/* quant.c - quantised numbers and numbers of 4 bits (tenon_quant.h).
 *
 * In: tensors, scales and zero points. Out: compositions of elementwise ops and reshapes; memory is the graph's. */
#include "nn.h"

#include "tenon/tenon_quant.h"

static tn_tensor poisoned(tn_tensor x) { return (tn_tensor){ x.graph, 0 }; }
static bool is_float(tn_tensor x) {
    const tn_dtype_info *i = tn_dtype_get_info(tn_tensor_dtype(x));
    return i && i->kind == TN_KIND_FLOAT && i->arithmetic;
}
static bool has_one_element(tn_tensor x) {
    tn_shape s = tn_tensor_shape(x);
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++) n = s.dim[i] == 1 ? n : 0;
    return n == 1;
}

typedef struct quantiser {
    const char *fn;
    tn_dtype of, wide;     /* of q; calculated in */
    tn_tensor scale, zero; /* of `wide`, and beside `shape`; a zero without a graph: none */
    tn_shape shape, full;  /* of what is calculated; of the result. They differ when groups have an axis of their own */
    double lo, hi;         /* of q */
} quantiser;

/* ---- scales and zero points beside x ---------------------------------------------------------------------------------- */

/* Groups that share an axis without rest have an axis of their own; others have their scales repeated. */
static bool is_split(tn_shape s, int axis, int64_t group) { return s.dim[axis] % group == 0 && s.rank < TN_MAX_RANK; }

static tn_shape split(tn_shape s, int axis, int64_t group) {
    tn_shape y = { .rank = s.rank + 1 };
    for (int i = 0; i < y.rank; i++) y.dim[i] = s.dim[i > axis ? i - 1 : i];
    y.dim[axis] = s.dim[axis] / group, y.dim[axis + 1] = group;
    return y;
}

/* v, a scale or zero points, as it broadcasts beside q->shape. */
static bool beside(quantiser *q, tn_tensor *v, const char *what, const tn_quantize_opts *o, int axis) {
    tn_shape s = tn_tensor_shape(*v), x = q->full, want = { .rank = x.rank };
    int64_t start[TN_MAX_RANK] = { 0 };
    if (has_one_element(*v)) {
        *v = tn_reshape(*v, TN_SCALAR);
        return true;
    }
    if (!o->group) {
        for (int i = 0; i < x.rank; i++) want.dim[i] = i == axis ? x.dim[i] : 1;
        if (s.rank == 1 && s.dim[0] == x.dim[axis]) {
            *v = tn_reshape(*v, want);
            return true;
        }
        nn_fail(v->graph, TN_ERR_SHAPE, "%s: %s of rank %d and first size %lld for axis %d of size %lld", q->fn, what, s.rank,
                (long long)(s.rank ? s.dim[0] : 1), axis, (long long)x.dim[axis]);
        return false;
    }
    bool fits = s.rank == x.rank;
    for (int i = 0; fits && i < x.rank; i++)
        fits = s.dim[i] == (i == axis ? x.dim[i] / o->group + (x.dim[i] % o->group != 0) : x.dim[i]);
    if (!fits) {
        nn_fail(v->graph, TN_ERR_SHAPE, "%s: %s has not the operand's shape with one for each %lld along axis %d", q->fn, what,
                (long long)o->group, axis);
        return false;
    }
    if (is_split(x, axis, o->group)) {
        s = split(s, axis, 1);
        *v = tn_reshape(*v, s);
    } else
        *v = tn_slice(tn_nn_repeat(*v, o->group, axis), start, x.dim, NULL, x.rank);
    return true;
}

static bool take_range(quantiser *q, tn_graph *g, tn_dtype t, int bits) {
    const tn_dtype_info *i = tn_dtype_get_info(t);
    if (t != TN_I8 && t != TN_U8 && t != TN_I16 && t != TN_U16 && t != TN_I32) {
        nn_fail(g, TN_ERR_DTYPE, "%s: quantised to %s", q->fn, i ? i->name : "no dtype");
        return false;
    }
    if (bits && (bits < 2 || bits > 8 * i->bytes)) {
        nn_fail(g, TN_ERR_INVAL, "%s: %d bits of %s", q->fn, bits, i->name);
        return false;
    }
    q->lo = i->lo, q->hi = i->hi;
    if (bits && i->kind == TN_KIND_INT) q->hi = (double)(INT64_C(1) << (bits - 1)) - 1, q->lo = -q->hi - 1;
    if (bits && i->kind == TN_KIND_UINT) q->hi = (double)(INT64_C(1) << bits) - 1;
    return true;
}

/* x: the operand, of which only the shape is looked at; `exact`: calculated in f64 whatever the scale is. */
static bool begin(quantiser *q, tn_tensor x, tn_tensor scale, const tn_quantize_opts *o, bool exact) {
    tn_graph *g = x.graph;
    int axis = 0;
    if (!nn_given(g, x, q->fn) || !nn_given(g, scale, q->fn) || (o->zero.graph && !nn_given(g, o->zero, q->fn))) return false;
    if (!is_float(scale)) {
        nn_fail(g, TN_ERR_DTYPE, "%s: scale is %s, must be of floats", q->fn, tn_dtype_name(tn_tensor_dtype(scale)));
        return false;
    }
    q->shape = q->full = tn_tensor_shape(x), q->scale = scale, q->zero = o->zero;
    bool one = has_one_element(scale) && (!o->zero.graph || has_one_element(o->zero));
    if (!one && !nn_axis(x, q->fn, o->axis, &axis)) return false;
    if (o->group < 0 || (!one && o->group && q->full.dim[axis] < 0)) {
        nn_fail(g, TN_ERR_INVAL, "%s: groups of %lld along axis %d, whose size is %s", q->fn, (long long)o->group, axis,
                q->full.dim[axis] < 0 ? "a range" : "a number");
        return false;
    }
    if (!beside(q, &q->scale, "scale", o, axis) || (o->zero.graph && !beside(q, &q->zero, "zero", o, axis))) return false;
    if (!one && o->group && is_split(q->full, axis, o->group)) q->shape = split(q->full, axis, o->group);
    if (exact || tn_tensor_dtype(scale) == TN_F64) q->wide = TN_F64;
    q->scale = tn_cast(q->scale, q->wide);
    return true;
}
static tn_tensor arranged(const quantiser *q, tn_tensor x) {
    return q->shape.rank == q->full.rank ? x : tn_reshape(x, q->shape);
}
static tn_tensor finished(const quantiser *q, tn_tensor y) {
    return q->shape.rank == q->full.rank ? y : tn_reshape(y, q->full);
}

/* ---- quantise and back ------------------------------------------------------------------------------------------------ */

static bool is_minifloat(tn_dtype t) { return t == TN_F8E4M3 || t == TN_F8E5M2; }

/* The two have no zero points and no bits. */
static bool is_plain(tn_tensor x, const char *fn, tn_dtype t, const tn_quantize_opts *o) {
    if (!o->zero.graph && !o->bits) return true;
    nn_fail(x.graph, TN_ERR_INVAL, "%s: zero points or bits with %s", fn, tn_dtype_name(t));
    return false;
}

static bool begin_floats(quantiser *q, tn_tensor x, tn_tensor scale, tn_dtype to, const tn_quantize_opts *o) {
    tn_shape s;
    if (!nn_check(x, q->fn, 0, &s)) return false;
    if (is_minifloat(to) ? !is_plain(x, q->fn, to, o) : !take_range(q, x.graph, to, o->bits)) return false;
    return begin(q, x, scale, o, to == TN_I32 || tn_tensor_dtype(x) == TN_F64);
}

tn_tensor tn_quantize(tn_tensor x, tn_tensor scale, tn_dtype to, tn_quantize_opts opts) {
    quantiser q = { .fn = "tn_quantize", .of = to, .wide = TN_F32 };
    if (!begin_floats(&q, x, scale, to, &opts)) return poisoned(x);
    tn_tensor y = tn_div(tn_cast(arranged(&q, x), q.wide), q.scale);
    if (is_minifloat(to)) return finished(&q, tn_cast(y, to));
    y = tn_round(y);
    if (q.zero.graph) y = tn_add(y, tn_cast(q.zero, q.wide));
    return finished(&q, tn_cast(tn_min(tn_max(y, nn_scalar(y, q.lo)), nn_scalar(y, q.hi)), to));
}

tn_tensor tn_dequantize(tn_tensor x, tn_tensor scale, tn_quantize_opts opts) {
    quantiser q = { .fn = "tn_dequantize", .wide = TN_F32 };
    if (!nn_given(x.graph, x, q.fn)) return poisoned(x);
    tn_dtype t = tn_tensor_dtype(x), out;
    opts.bits = 0;
    if (is_minifloat(t) ? !is_plain(x, q.fn, t, &opts) : !take_range(&q, x.graph, t, 0)) return poisoned(x);
    if (!begin(&q, x, scale, &opts, t == TN_I32)) return poisoned(x);
    out = tn_tensor_dtype(scale);
    x = arranged(&q, x);
    if (q.zero.graph && t != TN_I32 && !is_float(q.zero))
        x = tn_sub(tn_cast(x, TN_I32), tn_cast(q.zero, TN_I32));
    else if (q.zero.graph)
        x = tn_sub(tn_cast(x, q.wide), tn_cast(q.zero, q.wide));
    return finished(&q, tn_cast(tn_mul(tn_cast(x, q.wide), q.scale), out));
}

/* x no lower than lo and no higher than hi; x has the gradient where it is one of them. */
static tn_tensor kept_within(tn_tensor x, tn_tensor lo, tn_tensor hi) {
    return tn_select(tn_lt(x, lo), lo, tn_select(tn_lt(hi, x), hi, x));
}

tn_tensor tn_fake_quantize(tn_tensor x, tn_tensor scale, tn_dtype to, tn_quantize_opts opts) {
    quantiser q = { .fn = "tn_fake_quantize", .of = to, .wide = TN_F32 };
    if (to == TN_I32 || is_minifloat(to)) return nn_fail(x.graph, TN_ERR_DTYPE, "%s: quantised to %s", q.fn, tn_dtype_name(to));
    if (!begin_floats(&q, x, scale, to, &opts)) return poisoned(x);
    tn_tensor y = tn_div(tn_cast(arranged(&q, x), q.wide), q.scale), lo = nn_scalar(y, q.lo), hi = nn_scalar(y, q.hi);
    if (q.zero.graph) {
        q.zero = tn_cast(q.zero, q.wide);
        lo = tn_sub(lo, q.zero), hi = tn_sub(hi, q.zero);
    }
    y = kept_within(y, lo, hi);
    y = tn_add(y, tn_stop_gradient(tn_sub(tn_round(y), y))); /* exact: the difference is a multiple of y's last place */
    return finished(&q, tn_cast(tn_mul(y, q.scale), tn_tensor_dtype(x)));
}

/* ---- numbers of 4 bits ------------------------------------------------------------------------------------------------ */

/* Its axis `axis`, which is whole groups of `unit`, as [n / unit,parts,unit / parts]. */
static bool in_parts(tn_tensor x, const char *fn, int *axis, int64_t unit, int64_t parts, tn_shape *out) {
    if (!nn_axis(x, fn, *axis, axis)) return false;
    tn_shape s = tn_tensor_shape(x);
    if (unit < 1 || s.dim[*axis] < 0 || s.dim[*axis] % unit || s.rank > TN_MAX_RANK - 2) {
        nn_fail(x.graph, TN_ERR_SHAPE, "%s: axis %d of size %lld, in groups of %lld, rank %d", fn, *axis,
                (long long)s.dim[*axis], (long long)unit, s.rank);
        return false;
    }
    *out = split(split(s, *axis, unit), *axis + 1, unit / parts);
    return true;
}
static bool is_even(tn_tensor x, const char *fn, int64_t group) {
    if (group > 0 && group % 2 == 0) return true;
    nn_fail(x.graph, TN_ERR_INVAL, "%s: groups of %lld, must be of an even number", fn, (long long)group);
    return false;
}

tn_tensor tn_pack_4bit(tn_tensor x, int axis, int64_t group) {
    static const char fn[] = "tn_pack_4bit";
    tn_shape s, half;
    int64_t start[TN_MAX_RANK] = { 0 };
    group = group ? group : 2;
    if (!nn_given(x.graph, x, fn)) return poisoned(x);
    const tn_dtype_info *i = tn_dtype_get_info(tn_tensor_dtype(x));
    if (i->kind == TN_KIND_FLOAT || i->kind == TN_KIND_BOOL)
        return nn_fail(x.graph, TN_ERR_DTYPE, "%s: expected whole numbers, got %s", fn, i->name);
    if (!is_even(x, fn, group) || !in_parts(x, fn, &axis, group, 2, &s)) return poisoned(x);
    x = tn_reshape(tn_cast(tn_and(x, nn_scalar(x, 15)), TN_U8), s);
    half = s, half.dim[axis + 1] = 1;
    tn_tensor low = tn_slice(x, start, half.dim, NULL, s.rank);
    start[axis + 1] = 1;
    tn_tensor high = tn_slice(x, start, s.dim, NULL, s.rank), y = tn_or(low, tn_shift_left(high, nn_scalar(high, 4)));
    half.rank = s.rank - 2;
    for (int k = axis; k < half.rank; k++) half.dim[k] = k == axis ? s.dim[axis] * (group / 2) : s.dim[k + 2];
    return tn_reshape(y, half);
}

tn_tensor tn_unpack_4bit(tn_tensor packed, int axis, int64_t group, int is_signed) {
    static const char fn[] = "tn_unpack_4bit";
    tn_shape s, two;
    group = group ? group : 2;
    if (!nn_given(packed.graph, packed, fn)) return poisoned(packed);
    if (tn_tensor_dtype(packed) != TN_U8)
        return nn_fail(packed.graph, TN_ERR_DTYPE, "%s: expected u8, got %s", fn, tn_dtype_name(tn_tensor_dtype(packed)));
    if (!is_even(packed, fn, group) || !in_parts(packed, fn, &axis, group / 2, 1, &s)) return poisoned(packed);
    two.rank = s.rank;
    for (int k = 0; k < s.rank; k++) two.dim[k] = k == axis + 1 ? 2 : 1;
    tn_tensor y = tn_shift_right(tn_reshape(packed, s), tn_const(packed.graph, TN_U8, two, (uint8_t[]){ 0, 4 }));
    y = tn_and(y, nn_scalar(y, 15));
    if (is_signed) {
        y = tn_cast(y, TN_I8);
        y = tn_sub(tn_xor(y, nn_scalar(y, 8)), nn_scalar(y, 8));
    }
    two = tn_tensor_shape(packed);
    if (two.rank < 0) return poisoned(packed);
    two.dim[axis] *= 2;
    return tn_reshape(y, two);
}
