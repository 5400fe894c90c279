/* op_control.c - If becomes the branch that is taken, or, where that is not known and both give tensors of equal shapes, a
 * selection of both; sequences and optionals become what they hold. Loops are op_loop.c. */
#include "import.h"

static void put_count(onnx_call *c, int64_t n) { onnx_put_ints(c, 0, &n, -1); }
static void put_bool(onnx_call *c, bool v) { onnx_put_val(c, 0, onnx_bool(c, v)); }

/* ---- If ---- */

void onnx_op_if(onnx_call *c) {
    const onnx_attr *then = onnx_attr_find(c, "then_branch"), *other = onnx_attr_find(c, "else_branch");
    onnx_val *cond = onnx_in(c, 0);
    if (cond->elem != ELEM_BOOL || cond->n != 1) onnx_refuse(c, "its condition is no bool");
    if (cond->data || c->im->opts.immediate) {
        onnx_inline(c, onnx_known_bool(c, cond, "condition") ? then : other, NULL, 0, c->out, c->n_out);
        return;
    }
    onnx_val **a = ONNX_NEW(c->im->env, onnx_val *, c->n_out + 1), **b = ONNX_NEW(c->im->env, onnx_val *, c->n_out + 1);
    onnx_inline(c, then, NULL, 0, a, c->n_out);
    onnx_inline(c, other, NULL, 0, b, c->n_out);
    tn_tensor which = tn_reshape(onnx_t(c, 0), TN_SCALAR);
    for (int k = 0; k < c->n_out; k++) {
        if (!onnx_alike(a[k], b[k])) {
            (void)onnx_known_bool(c, cond, "condition");
            onnx_refuse(c, "branches of several shapes");
        }
        onnx_put(c, k, tn_select(which, onnx_val_tensor(c, a[k]), onnx_val_tensor(c, b[k])), a[k]->elem);
        c->out[k]->deps |= a[k]->deps | b[k]->deps;
    }
}

/* ---- sequences ---- */

static onnx_val *seq_of(onnx_call *c, int i) {
    onnx_val *v = onnx_in(c, i);
    if (v->kind != TN_ONNX_SEQUENCE) onnx_refuse(c, "operand %d is no sequence", i);
    return v;
}
/* A copy with room for one item more. */
static onnx_val *seq_copy(onnx_call *c, const onnx_val *from, int elem) {
    onnx_val *v = onnx_val_new(c->im, TN_ONNX_SEQUENCE, elem);
    v->n_items = from ? from->n_items : 0;
    v->deps = from ? from->deps : 0;
    v->items = ONNX_NEW(c->im->env, onnx_val *, v->n_items + 1);
    if (v->n_items) memcpy(v->items, from->items, (size_t)v->n_items * sizeof *v->items);
    return v;
}
static int position(onnx_call *c, int i, int n, bool end) {
    int64_t at = onnx_known_int(c, i, "position");
    if (at < 0) at += n;
    if (at < 0 || at >= n + end) onnx_refuse(c, "position %lld of a sequence of %d", (long long)at, n);
    return (int)at;
}

void onnx_op_sequence_empty(onnx_call *c) {
    int64_t elem = onnx_attr_int(c, "dtype", ELEM_F32);
    onnx_put_val(c, 0, seq_copy(c, NULL, elem > 0 && elem < ELEM_N ? (int)elem : ELEM_NONE));
}
void onnx_op_sequence_construct(onnx_call *c) {
    onnx_val *v = onnx_val_new(c->im, TN_ONNX_SEQUENCE, onnx_elem(c, 0));
    v->items = ONNX_NEW(c->im->env, onnx_val *, c->n_in);
    for (int i = 0; i < c->n_in; i++) v->items[v->n_items++] = onnx_in(c, i);
    onnx_put_val(c, 0, v);
}
void onnx_op_sequence_insert(onnx_call *c) {
    onnx_val *s = seq_of(c, 0), *out = seq_copy(c, s, s->elem), *x = onnx_in(c, 1);
    int at = onnx_has(c, 2) ? position(c, 2, s->n_items, true) : s->n_items;
    if (x->kind != TN_ONNX_TENSOR || (s->elem && x->elem != s->elem))
        onnx_refuse(c, "a tensor of %s in a sequence of %s", onnx_elem_name(x->elem), onnx_elem_name(s->elem));
    memmove(out->items + at + 1, out->items + at, (size_t)(s->n_items - at) * sizeof *out->items);
    out->items[at] = x;
    out->n_items++;
    onnx_put_val(c, 0, out);
}
void onnx_op_sequence_erase(onnx_call *c) {
    onnx_val *s = seq_of(c, 0), *out = seq_copy(c, s, s->elem);
    int at = s->n_items ? (onnx_has(c, 1) ? position(c, 1, s->n_items, false) : s->n_items - 1) : -1;
    if (at < 0) onnx_refuse(c, "an empty sequence");
    memmove(out->items + at, out->items + at + 1, (size_t)(s->n_items - at - 1) * sizeof *out->items);
    out->n_items--;
    onnx_put_val(c, 0, out);
}
void onnx_op_sequence_at(onnx_call *c) {
    onnx_val *s = seq_of(c, 0);
    onnx_put_val(c, 0, s->items[position(c, 1, s->n_items, false)]);
}
void onnx_op_sequence_length(onnx_call *c) { put_count(c, seq_of(c, 0)->n_items); }

void onnx_op_concat_from_sequence(onnx_call *c) {
    onnx_val *s = seq_of(c, 0);
    bool fresh = onnx_attr_int(c, "new_axis", 0);
    int rank = s->n_items ? s->items[0]->shape.rank + fresh : 1, axis = onnx_axis(c, onnx_attr_need_int(c, "axis"), rank);
    if (!s->n_items) onnx_refuse(c, "an empty sequence");
    if (fresh) {
        onnx_put_val(c, 0, onnx_stacked(c, s->items, s->n_items, axis));
        return;
    }
    tn_tensor *xs = ONNX_NEW(c->im->env, tn_tensor, s->n_items);
    uint64_t deps = 0;
    for (int i = 0; i < s->n_items; i++) xs[i] = onnx_val_tensor(c, s->items[i]), deps |= s->items[i]->deps;
    onnx_put(c, 0, tn_concat(xs, s->n_items, axis), s->elem);
    c->out[0]->deps |= deps;
}

void onnx_op_split_to_sequence(onnx_call *c) {
    tn_shape x = onnx_shape(c, 0);
    int axis = onnx_axis(c, onnx_attr_int(c, "axis", 0), x.rank), n_sizes = 0;
    bool keep = onnx_attr_int(c, "keepdims", 1) || onnx_has(c, 1), single = onnx_has(c, 1) && onnx_rank(c, 1) == 0;
    const int64_t *sizes = onnx_has(c, 1) ? onnx_known_ints(c, 1, "split", &n_sizes) : NULL;
    int64_t total = x.dim[axis], start[TN_MAX_RANK] = { 0 };
    onnx_val *out = onnx_val_new(c->im, TN_ONNX_SEQUENCE, onnx_elem(c, 0));
    out->items = ONNX_NEW(c->im->env, onnx_val *, (sizes && !single ? n_sizes : total) + 1);
    while (sizes && !single ? out->n_items < n_sizes : start[axis] < total) {
        int64_t size = !sizes ? 1 : single ? sizes[0] : sizes[out->n_items];
        if (single && size > total - start[axis]) size = total - start[axis];
        if (size < single || size < 0 || size > total - start[axis])
            onnx_refuse(c, "sizes that do not add up to %lld", (long long)total);
        tn_shape stop = x;
        stop.dim[axis] = start[axis] + size;
        tn_tensor y = tn_slice(onnx_t(c, 0), start, stop.dim, NULL, x.rank);
        out->items[out->n_items++] = keep ? onnx_val_of(c, y, onnx_elem(c, 0)) : onnx_part(c, onnx_in(c, 0), axis, start[axis]);
        start[axis] += size;
    }
    if (start[axis] != total) onnx_refuse(c, "sizes that do not add up to %lld", (long long)total);
    onnx_put_val(c, 0, out);
}

void onnx_op_sequence_map(onnx_call *c) {
    const onnx_attr *body = onnx_attr_find(c, "body");
    onnx_val *first = seq_of(c, 0), **in = ONNX_NEW(c->im->env, onnx_val *, c->n_in + 1),
             **res = ONNX_NEW(c->im->env, onnx_val *, c->n_out + 1);
    for (int k = 0; k < c->n_out; k++) {
        c->out[k] = onnx_val_new(c->im, TN_ONNX_SEQUENCE, ELEM_NONE);
        c->out[k]->items = ONNX_NEW(c->im->env, onnx_val *, first->n_items + 1);
    }
    for (int i = 0; i < first->n_items; i++) {
        for (int k = 0; k < c->n_in; k++) {
            onnx_val *v = onnx_in(c, k);
            if (v->kind == TN_ONNX_SEQUENCE && v->n_items != first->n_items) onnx_refuse(c, "sequences of several lengths");
            in[k] = v->kind == TN_ONNX_SEQUENCE ? v->items[i] : v;
        }
        onnx_inline(c, body, in, c->n_in, res, c->n_out);
        for (int k = 0; k < c->n_out; k++) {
            c->out[k]->items[c->out[k]->n_items++] = res[k];
            c->out[k]->elem = res[k]->elem;
        }
    }
}

/* ---- optionals ---- */

void onnx_op_optional(onnx_call *c) {
    onnx_val *v = onnx_val_new(c->im, TN_ONNX_OPTIONAL, ELEM_NONE);
    (void)onnx_attr_find(c, "type");
    v->items = ONNX_NEW(c->im->env, onnx_val *, 1);
    if (onnx_has(c, 0)) v->items[v->n_items++] = onnx_in(c, 0), v->elem = onnx_elem(c, 0);
    onnx_put_val(c, 0, v);
}
void onnx_op_optional_has_element(onnx_call *c) {
    put_bool(c, onnx_has(c, 0) && (c->in[0]->kind != TN_ONNX_OPTIONAL || c->in[0]->n_items > 0));
}
void onnx_op_optional_get_element(onnx_call *c) {
    onnx_val *v = onnx_in(c, 0);
    if (v->kind == TN_ONNX_OPTIONAL && !v->n_items) onnx_refuse(c, "an optional without a value");
    onnx_put_val(c, 0, v->kind == TN_ONNX_OPTIONAL ? v->items[0] : v);
}
