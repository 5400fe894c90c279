/* call.c - how handlers read operands and attributes, and put results.
 *
 * In: a call, which has the operands of one node. Out: values; what does not fit is refused by a jump (see import.h). */
#include "import.h"
#include "tenon/tenon_ir.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

void onnx_refuse(onnx_call *c, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    onnx_fail(c->im->env, TN_ERR_UNSUPPORTED, "%s", text);
}

void onnx_refuse_graph(onnx_call *c) {
    tn_status s = tn_graph_status(c->g) == TN_ERR_NOMEM ? TN_ERR_NOMEM : TN_ERR_UNSUPPORTED;
    onnx_fail(c->im->env, s, "%s", tn_ctx_error(c->im->env->ctx));
}

/* ---- operands ---- */

bool onnx_has(const onnx_call *c, int i) { return i < c->n_in && c->in[i]; }

onnx_val *onnx_in(onnx_call *c, int i) {
    if (!onnx_has(c, i)) onnx_refuse(c, "operand %d is missing", i);
    return c->in[i];
}

/* Sizes as what a run has in their place. */
static tn_tensor sizes_tensor(onnx_call *c, const onnx_val *v) {
    tn_tensor *xs = ONNX_NEW(c->im->env, tn_tensor, v->n);
    for (int64_t i = 0; i < v->n; i++) xs[i] = tn_reshape(tn_dim_value(c->g, v->sizes[i]), TN_DIMS(1));
    return tn_cast(tn_reshape(tn_concat(xs, (int)v->n, 0), v->shape), onnx_elem_dtype(v->elem));
}

/* A tensor of a body that has been built is none outside of it: what is known is made again. */
static bool is_within(const onnx_body *at, const onnx_body *made) {
    while (at && at != made) at = at->outer;
    return at == made;
}
tn_tensor onnx_val_tensor(onnx_call *c, onnx_val *v) {
    if (v->kind != TN_ONNX_TENSOR) onnx_refuse(c, "a sequence or an optional where a tensor belongs");
    if (onnx_elem_dtype(v->elem) == TN_N_DTYPES) onnx_refuse(c, "a tensor of %s", onnx_elem_name(v->elem));
    if (c->g == c->im->g && v->t.id && is_within(c->im->body, v->made)) return v->t;
    tn_tensor t = v->sizes ? sizes_tensor(c, v) : tn_const(c->g, onnx_elem_dtype(v->elem), v->shape, v->data);
    if (v->sizes || c->g == c->im->g) v->t = t, v->made = c->im->body;
    return t;
}
tn_tensor onnx_t(onnx_call *c, int i) { return onnx_val_tensor(c, onnx_in(c, i)); }

tn_shape onnx_shape(onnx_call *c, int i) {
    onnx_val *v = onnx_in(c, i);
    if (v->kind != TN_ONNX_TENSOR) onnx_refuse(c, "operand %d is no tensor", i);
    return v->shape;
}
int onnx_rank(onnx_call *c, int i) { return onnx_shape(c, i).rank; }
int onnx_elem(onnx_call *c, int i) { return onnx_in(c, i)->elem; }
bool onnx_is_float(int elem) { return elem == ELEM_F32 || elem == ELEM_F64 || elem == ELEM_F16 || elem == ELEM_BF16; }

static const void *read_now(onnx_call *c, onnx_val *v) {
    size_t bytes = tn_tensor_bytes(v->t);
    void *data = onnx_new(c->im->env, bytes + 1, 1);
    if (tn_tensor_read(v->t, data, bytes)) onnx_refuse(c, "%s", tn_ctx_error(c->im->env->ctx));
    return v->data = data;
}

const void *onnx_known(onnx_call *c, int i, const char *what) {
    onnx_val *v = onnx_in(c, i);
    if (v->kind != TN_ONNX_TENSOR) onnx_refuse(c, "operand %d (%s) is no tensor", i, what);
    if (v->data) return v->data;
    if (c->im->opts.immediate && v->t.id) return read_now(c, v);
    c->im->needs |= v->deps;
    onnx_refuse(c, "its %s is not known at import: it depends on the value of an input%s", what,
                c->im->opts.n_ranges ? ", or on sizes that a run gives" : "");
}

double onnx_load(tn_dtype t, const void *data, int64_t i) {
    double aligned = 0;
    memcpy(&aligned, (const char *)data + (size_t)i * tn_dtype_size(t), tn_dtype_size(t));
    return tn_ir_load(t, &aligned, 0);
}

static int64_t load_int(int elem, const void *data, int64_t i) {
    int64_t wide = 0;
    int32_t narrow = 0;
    switch (onnx_elem_dtype(elem)) {
    case TN_I64:
        memcpy(&wide, (const char *)data + i * 8, 8);
        return wide;
    case TN_I32:
        memcpy(&narrow, (const char *)data + i * 4, 4);
        return narrow;
    default:
        return (int64_t)onnx_load(onnx_elem_dtype(elem), data, i);
    }
}

int64_t *onnx_known_ints(onnx_call *c, int i, const char *what, int *out_n) {
    const void *data = onnx_known(c, i, what);
    onnx_val *v = c->in[i];
    if (onnx_is_float(v->elem)) onnx_refuse(c, "its %s is %s, not a whole number", what, onnx_elem_name(v->elem));
    if (v->n > 1 << 20) onnx_refuse(c, "its %s has %lld elements", what, (long long)v->n);
    int64_t *out = ONNX_NEW(c->im->env, int64_t, v->n + 1);
    for (int64_t k = 0; k < v->n; k++) out[k] = load_int(v->elem, data, k);
    *out_n = (int)v->n;
    return out;
}
int64_t onnx_known_int(onnx_call *c, int i, const char *what) {
    int n;
    int64_t *v = onnx_known_ints(c, i, what, &n);
    if (n != 1) onnx_refuse(c, "its %s has %d elements, not one", what, n);
    return v[0];
}
double *onnx_known_floats(onnx_call *c, int i, const char *what, int *out_n) {
    const void *data = onnx_known(c, i, what);
    onnx_val *v = c->in[i];
    if (v->n > 1 << 20) onnx_refuse(c, "its %s has %lld elements", what, (long long)v->n);
    double *out = ONNX_NEW(c->im->env, double, v->n + 1);
    for (int64_t k = 0; k < v->n; k++) out[k] = onnx_load(onnx_elem_dtype(v->elem), data, k);
    *out_n = (int)v->n;
    return out;
}

/* ---- attributes ---- */

const onnx_attr *onnx_attr_find(onnx_call *c, const char *name) {
    for (int i = 0; i < c->node->n_attrs; i++) {
        if (strcmp(c->node->attrs[i].name, name)) continue;
        if (i < 64) c->asked |= (uint64_t)1 << i;
        return &c->node->attrs[i];
    }
    return NULL;
}
static const onnx_attr *find_typed(onnx_call *c, const char *name, int type, const char *word) {
    const onnx_attr *a = onnx_attr_find(c, name);
    if (a && a->type != type) onnx_refuse(c, "attribute %s is not %s", name, word);
    return a;
}
int64_t onnx_attr_int(onnx_call *c, const char *name, int64_t fallback) {
    const onnx_attr *a = find_typed(c, name, ATTR_INT, "a whole number");
    return a ? a->i : fallback;
}
int64_t onnx_attr_need_int(onnx_call *c, const char *name) {
    if (!onnx_attr_find(c, name)) onnx_refuse(c, "attribute %s is missing", name);
    return onnx_attr_int(c, name, 0);
}
double onnx_attr_float(onnx_call *c, const char *name, double fallback) {
    const onnx_attr *a = find_typed(c, name, ATTR_FLOAT, "a float");
    return a ? (double)a->f : fallback;
}
bool onnx_attr_is(onnx_call *c, const char *name, const char *fallback, const char *word) {
    const onnx_attr *a = find_typed(c, name, ATTR_STRING, "a string");
    return a ? a->s.n == strlen(word) && !memcmp(a->s.at, word, a->s.n) : !strcmp(fallback, word);
}
const int64_t *onnx_attr_ints(onnx_call *c, const char *name, int *out_n) {
    const onnx_attr *a = onnx_attr_find(c, name);
    *out_n = 0;
    if (!a) return NULL;
    if (a->type != ATTR_INTS) onnx_refuse(c, "attribute %s is not a list of whole numbers", name);
    *out_n = a->n;
    return a->ints ? a->ints : ONNX_NEW(c->im->env, int64_t, 1);
}
int onnx_axis(onnx_call *c, int64_t axis, int rank) {
    if (axis < -rank || axis >= rank) onnx_refuse(c, "axis %lld of a tensor of rank %d", (long long)axis, rank);
    return (int)(axis < 0 ? axis + rank : axis);
}
const int64_t *onnx_ints_of(onnx_call *c, const char *name, int i, int *out_n) {
    const int64_t *v = onnx_attr_ints(c, name, out_n);
    if (v && onnx_has(c, i)) onnx_refuse(c, "%s both as an attribute and as operand %d", name, i);
    return v ? v : onnx_has(c, i) ? onnx_known_ints(c, i, name, out_n) : NULL;
}

/* ---- results ---- */

bool onnx_wants(const onnx_call *c, int k) { return k < c->n_out && c->node->out[k][0]; }

onnx_val *onnx_val_new(onnx_import *im, tn_onnx_kind kind, int elem) {
    onnx_val *v = ONNX_NEW(im->env, onnx_val, 1);
    v->kind = kind;
    v->elem = elem;
    return v;
}

static uint64_t deps_of(const onnx_call *c) {
    uint64_t deps = 0;
    for (int i = 0; i < c->n_in; i++) deps |= c->in[i] ? c->in[i]->deps : 0;
    return deps;
}

onnx_val *onnx_val_of(onnx_call *c, tn_tensor t, int elem) {
    tn_shape s = tn_tensor_shape(t);
    if (s.rank < 0) onnx_refuse_graph(c);
    tn_dtype held = tn_tensor_dtype(t);
    if (!elem) elem = onnx_has(c, 0) && onnx_elem_dtype(c->in[0]->elem) == held ? c->in[0]->elem : onnx_elem_of(held);
    if (onnx_elem_dtype(elem) != held) onnx_refuse(c, "a result of %s, expected %s", tn_dtype_name(held), onnx_elem_name(elem));
    onnx_val *v = onnx_val_new(c->im, TN_ONNX_TENSOR, elem);
    v->shape = s;
    v->n = onnx_count_of(s);
    v->t = t, v->made = c->im->body;
    v->deps = deps_of(c);
    return v;
}
void onnx_put_val(onnx_call *c, int k, onnx_val *v) {
    if (k < c->n_out) c->out[k] = v;
}
void onnx_put(onnx_call *c, int k, tn_tensor t, int elem) { onnx_put_val(c, k, onnx_val_of(c, t, elem)); }
void onnx_put_known(onnx_call *c, int k, int elem, tn_shape shape, const void *data) {
    onnx_val *v = onnx_val_new(c->im, TN_ONNX_TENSOR, elem);
    v->shape = shape;
    v->n = onnx_count_of(shape);
    v->data = data;
    onnx_put_val(c, k, v);
}
void onnx_put_ints(onnx_call *c, int k, const int64_t *v, int n) {
    size_t count = n < 0 ? 1 : (size_t)n;
    int64_t *copy = ONNX_NEW(c->im->env, int64_t, count + 1);
    if (count) memcpy(copy, v, count * sizeof *v);
    onnx_put_known(c, k, ELEM_I64, n < 0 ? TN_SCALAR : TN_DIMS(n), copy);
}

/* ---- small graphs ---- */

tn_shape onnx_dims(const int64_t *dims, int rank) {
    tn_shape s = { .rank = rank };
    for (int i = 0; i < rank && i < TN_MAX_RANK; i++) s.dim[i] = dims[i];
    return s;
}
int64_t onnx_count_of(tn_shape s) {
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++)
        if (s.dim[i] == 0) return 0;
    for (int i = 0; i < s.rank; i++)
        if (onnx_is_dim(s.dim[i]) || __builtin_mul_overflow(n, s.dim[i], &n)) return INT64_MAX;
    return n;
}
tn_tensor onnx_scalar(tn_tensor like, double value) { return tn_full(like.graph, tn_tensor_dtype(like), TN_SCALAR, value); }
tn_tensor onnx_ints_const(onnx_call *c, const int64_t *v, int n) { return tn_const(c->g, TN_I64, TN_DIMS(n), v); }

bool onnx_elem_wraps(int elem) { return onnx_elem_widened(elem) && elem != ELEM_STRING && !onnx_minifloat_of(elem); }
tn_tensor onnx_wrap_bits(tn_tensor x, int bits, bool is_signed) {
    tn_tensor low = tn_and(x, onnx_scalar(x, (double)(((int64_t)1 << bits) - 1)));
    double half = (double)((int64_t)1 << (bits - 1));
    return is_signed ? tn_select(tn_ge(low, onnx_scalar(x, half)), tn_sub(low, onnx_scalar(x, 2 * half)), low) : low;
}
tn_tensor onnx_wrap(tn_tensor x, int elem) {
    int bits = !onnx_elem_wraps(elem) ? 0 : (int)onnx_elem_bytes(elem, 8);
    if (!bits) return x;
    tn_dtype held = tn_tensor_dtype(x);
    if (bits < 8) x = tn_cast(x, TN_I32); /* the mask is no number of i8 */
    return tn_cast(onnx_wrap_bits(x, bits, elem == ELEM_I4 || elem == ELEM_I2), held);
}

/* Powers of two alone: the smallest that is not less. A logarithm says which three to look at. */
static tn_tensor round_to_power(tn_tensor x) {
    float power[255];
    for (int i = 0; i < 255; i++) power[i] = onnx_minifloat_load(ELEM_F8E8M0, (uint8_t)i);
    tn_tensor table = tn_const(x.graph, TN_F32, TN_DIMS(255), power), tiny = onnx_scalar(x, 0x1p-126);
    tn_tensor at = tn_floor(tn_mul_scalar(tn_log(tn_max(x, tiny)), 1.4426950408889634)), y = tn_mul_scalar(x, 0);
    for (int i = 2; i >= -1; i--) { /* the lowest that fits is the last to be taken */
        tn_tensor index = tn_cast(tn_min(tn_max(tn_add_scalar(at, 127 + i), onnx_scalar(at, 0)), onnx_scalar(at, 254)), TN_I64);
        tn_tensor p = tn_gather(table, index, 0);
        y = i == 2 ? p : tn_select(tn_ge(p, x), p, y);
    }
    return tn_select(tn_ne(x, x), x, y);
}

/* The spacing of the type's numbers at |x| is a power of two, found by comparing: division by it and multiplication are exact.
 */
static tn_tensor round_to(tn_tensor x, const onnx_minifloat *f, bool saturate) {
    if (!f->zero) return round_to_power(x);
    tn_tensor size = tn_abs(x), step = onnx_scalar(x, exp2(1 - f->bias - f->mantissa_bits));
    int top = (int)floor(log2((double)f->most));
    for (int e = 2 - f->bias; e <= top; e++)
        step = tn_select(tn_ge(size, onnx_scalar(x, exp2(e))), onnx_scalar(x, exp2(e - f->mantissa_bits)), step);
    tn_tensor y = tn_mul(tn_round(tn_div(x, step)), step), most = onnx_scalar(x, (double)f->most),
              least = onnx_scalar(x, -(double)f->most);
    tn_tensor cut = tn_max(tn_min(y, most), least);
    if (!f->has_nan) return tn_select(tn_ne(x, x), onnx_scalar(x, 0), cut);
    if (saturate) return tn_select(tn_ne(x, x), x, cut);
    tn_tensor beyond = f->has_inf ? tn_mul(y, onnx_scalar(x, INFINITY)) : onnx_scalar(x, NAN);
    return tn_select(tn_gt(tn_abs(y), most), beyond, y);
}

/* Conversions saturate, infinity included, which is chosen where it is to stay. */
tn_tensor onnx_round_to(tn_tensor x, int elem, bool saturate) {
    const onnx_minifloat *f = onnx_minifloat_of(elem);
    tn_dtype held = onnx_elem_dtype(elem);
    if (held == TN_F32 || !saturate) x = round_to(x, f, saturate);
    if (held == TN_F32) return x;
    tn_tensor y = tn_cast(x, held);
    if (saturate || !f->has_inf) return y;
    uint8_t bits = (uint8_t)(((1 << f->exponent_bits) - 1) << f->mantissa_bits), below = bits | 0x80;
    tn_tensor up = tn_const(x.graph, held, TN_SCALAR, &bits), down = tn_const(x.graph, held, TN_SCALAR, &below);
    return tn_select(tn_eq(x, onnx_scalar(x, INFINITY)), up, tn_select(tn_eq(x, onnx_scalar(x, -INFINITY)), down, y));
}

tn_tensor onnx_not_negative(tn_tensor index, int64_t size) {
    tn_tensor n =
        onnx_is_dim(size) ? tn_cast(tn_dim_value(index.graph, size), tn_tensor_dtype(index)) : onnx_scalar(index, (double)size);
    return tn_select(tn_lt(index, onnx_scalar(index, 0)), tn_add(index, n), index);
}

tn_tensor onnx_accurate(tn_tensor x) {
    tn_dtype t = tn_tensor_dtype(x);
    return t == TN_F16 || t == TN_BF16 ? tn_cast(x, TN_F32) : x;
}
