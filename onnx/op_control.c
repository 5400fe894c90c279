/* op_control.c - subgraphs: If, Loop and Scan become what they do, turn by turn, and sequences and optionals what they hold.
 *
 * How often a loop turns and which branch is taken must be known at import; a branch that is not known, of tensors of equal
 * shapes, becomes a selection of both. */
#include "import.h"

static bool known_bool(onnx_call *c, onnx_val *v, const char *what) {
    onnx_call probe = *c;
    onnx_val *one[] = { v };
    probe.in = one, probe.n_in = 1;
    return onnx_known_ints(&probe, 0, what, &(int){ 0 })[0] != 0;
}
static onnx_val *int_val(onnx_call *c, int64_t v) {
    onnx_val *out = onnx_val_new(c->im, TN_ONNX_TENSOR, ELEM_I64);
    int64_t *data = ONNX_NEW(c->im->env, int64_t, 1);
    *data = v;
    out->data = data, out->n = 1, out->shape = TN_SCALAR;
    return out;
}
static onnx_val *bool_val(onnx_call *c, bool v) {
    onnx_val *out = onnx_val_new(c->im, TN_ONNX_TENSOR, ELEM_BOOL);
    bool *data = ONNX_NEW(c->im->env, bool, 1);
    *data = v;
    out->data = data, out->n = 1, out->shape = TN_SCALAR;
    return out;
}
static void put_count(onnx_call *c, int64_t n) { onnx_put_ints(c, 0, &n, -1); }
static void put_bool(onnx_call *c, bool v) { onnx_put_val(c, 0, bool_val(c, v)); }

/* ---- If ---- */

static bool can_select(const onnx_val *a, const onnx_val *b) {
    return a->kind == TN_ONNX_TENSOR && b->kind == TN_ONNX_TENSOR && a->elem == b->elem && a->shape.rank == b->shape.rank &&
           !memcmp(a->shape.dim, b->shape.dim, sizeof a->shape.dim[0] * (size_t)a->shape.rank);
}
void onnx_op_if(onnx_call *c) {
    const onnx_attr *then = onnx_attr_find(c, "then_branch"), *other = onnx_attr_find(c, "else_branch");
    onnx_val *cond = onnx_in(c, 0);
    if (cond->elem != ELEM_BOOL || cond->n != 1) onnx_refuse(c, "its condition is no bool");
    if (cond->data || c->im->opts.immediate) {
        onnx_inline(c, known_bool(c, cond, "condition") ? then : other, NULL, 0, c->out, c->n_out);
        return;
    }
    onnx_val **a = ONNX_NEW(c->im->env, onnx_val *, c->n_out + 1), **b = ONNX_NEW(c->im->env, onnx_val *, c->n_out + 1);
    onnx_inline(c, then, NULL, 0, a, c->n_out);
    onnx_inline(c, other, NULL, 0, b, c->n_out);
    tn_tensor which = tn_reshape(onnx_t(c, 0), TN_SCALAR);
    for (int k = 0; k < c->n_out; k++) {
        if (!can_select(a[k], b[k])) {
            (void)known_bool(c, cond, "condition");
            onnx_refuse(c, "branches of several shapes");
        }
        onnx_put(c, k, tn_select(which, onnx_val_tensor(c, a[k]), onnx_val_tensor(c, b[k])), a[k]->elem);
        c->out[k]->deps |= a[k]->deps | b[k]->deps;
    }
}

/* ---- results of turns, stacked along a new axis ---- */

typedef struct stack {
    onnx_val **at;
    int n, cap;
} stack;
static void stack_push(onnx_call *c, stack *s, onnx_val *v) {
    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 8;
        onnx_val **more = ONNX_NEW(c->im->env, onnx_val *, cap);
        if (s->n) memcpy(more, s->at, (size_t)s->n * sizeof *more);
        s->at = more, s->cap = cap;
    }
    s->at[s->n++] = v;
}
static tn_shape with_axis(tn_shape s, int axis, int64_t size) {
    for (int i = s.rank; i > axis; i--) s.dim[i] = s.dim[i - 1];
    s.dim[axis] = size;
    s.rank++;
    return s;
}
static onnx_val *stack_known(onnx_call *c, const stack *s, int64_t n) {
    onnx_val *out = onnx_val_new(c->im, TN_ONNX_TENSOR, s->at[0]->elem);
    size_t bytes = (size_t)n * tn_dtype_size(onnx_elem_dtype(out->elem));
    char *data = onnx_new(c->im->env, bytes * (size_t)s->n + 1, 1);
    for (int i = 0; i < s->n; i++)
        if (bytes) memcpy(data + (size_t)i * bytes, s->at[i]->data, bytes);
    out->data = data, out->n = n * s->n, out->shape = with_axis(s->at[0]->shape, 0, s->n);
    return out;
}
static onnx_val *stacked(onnx_call *c, const stack *s, int axis) {
    uint64_t deps = 0;
    bool known = axis == 0;
    if (!s->n) onnx_refuse(c, "no turn: the shape of what it would collect is not known");
    for (int i = 0; i < s->n; i++) {
        if (!can_select(s->at[i], s->at[0])) onnx_refuse(c, "turns with results of several shapes");
        known &= s->at[i]->data && s->at[i]->n <= TN_ONNX_MAX_FOLD / s->n;
        deps |= s->at[i]->deps;
    }
    if (known) return stack_known(c, s, s->at[0]->n);
    if (axis > s->at[0]->shape.rank || s->at[0]->shape.rank >= TN_MAX_RANK) onnx_refuse(c, "axis %d", axis);
    tn_tensor *xs = ONNX_NEW(c->im->env, tn_tensor, s->n);
    for (int i = 0; i < s->n; i++) xs[i] = tn_reshape(onnx_val_tensor(c, s->at[i]), with_axis(s->at[i]->shape, axis, 1));
    onnx_val *out = onnx_val_of(c, s->n == 1 ? xs[0] : tn_concat(xs, s->n, axis), s->at[0]->elem);
    out->deps |= deps;
    return out;
}

/* ---- Loop ---- */

void onnx_op_loop(onnx_call *c) {
    const onnx_attr *body = onnx_attr_find(c, "body");
    int64_t most = onnx_has(c, 0) ? onnx_known_int(c, 0, "trip count") : INT64_MAX;
    int n_state = c->n_in > 2 ? c->n_in - 2 : 0, n_out = body ? onnx_body_outputs(c, body) : 0, n_scan = n_out - 1 - n_state;
    onnx_val *cond = onnx_has(c, 1) ? c->in[1] : bool_val(c, true), **in = ONNX_NEW(c->im->env, onnx_val *, n_state + 2),
             **out = ONNX_NEW(c->im->env, onnx_val *, n_out + 1);
    stack *scans = ONNX_NEW(c->im->env, stack, (n_scan > 0 ? n_scan : 0) + 1);
    if (n_scan < 0 || c->n_out > n_state + n_scan) onnx_refuse(c, "its body has %d outputs for %d values", n_out, n_state);
    for (int k = 0; k < n_state; k++) in[k + 2] = onnx_in(c, k + 2);
    for (int64_t i = 0; i < most && known_bool(c, cond, "condition"); i++) {
        in[0] = int_val(c, i), in[1] = cond;
        onnx_inline(c, body, in, n_state + 2, out, n_out);
        cond = out[0];
        for (int k = 0; k < n_state; k++) in[k + 2] = out[k + 1];
        for (int k = 0; k < n_scan; k++) stack_push(c, &scans[k], out[1 + n_state + k]);
    }
    for (int k = 0; k < c->n_out; k++)
        if (onnx_wants(c, k)) onnx_put_val(c, k, k < n_state ? in[k + 2] : stacked(c, &scans[k - n_state], 0));
}

/* ---- Scan ---- */

static onnx_val *part(onnx_call *c, onnx_val *v, int axis, int64_t i) {
    int64_t start[TN_MAX_RANK] = { 0 };
    tn_shape stop = v->shape, rest = v->shape;
    start[axis] = i, stop.dim[axis] = i + 1;
    for (int k = axis; k + 1 < rest.rank; k++) rest.dim[k] = rest.dim[k + 1];
    rest.rank--;
    onnx_val *out =
        onnx_val_of(c, tn_reshape(tn_slice(onnx_val_tensor(c, v), start, stop.dim, NULL, v->shape.rank), rest), v->elem);
    out->deps |= v->deps;
    return out;
}

typedef struct scan {
    const onnx_attr *body;
    int n_state, n_in, n_out; /* n_in: scanned operands; n_out: collected results */
    const int64_t *in_axes, *in_back, *out_axes, *out_back;
} scan;

static const int64_t *list_of(onnx_call *c, const char *name, int n) {
    int given;
    const int64_t *v = onnx_attr_ints(c, name, &given);
    if (v && given != n) onnx_refuse(c, "%s has %d numbers, expected %d", name, given, n);
    return v ? v : ONNX_NEW(c->im->env, int64_t, n + 1);
}

/* in: states, then scanned operands. out: states, then collected results. */
static void run_scan(onnx_call *c, const scan *s, onnx_val **in, onnx_val **out) {
    int n = s->n_state + s->n_in, n_res = s->n_state + s->n_out;
    onnx_val **args = ONNX_NEW(c->im->env, onnx_val *, n + 1), **res = ONNX_NEW(c->im->env, onnx_val *, n_res + 1);
    stack *kept = ONNX_NEW(c->im->env, stack, s->n_out + 1);
    int64_t turns = -1;
    for (int k = 0; k < s->n_in; k++) {
        tn_shape sh = in[s->n_state + k]->shape;
        int64_t size = sh.dim[onnx_axis(c, s->in_axes[k], sh.rank)];
        if (onnx_is_dim(size)) onnx_refuse(c, "as many turns as a run gives");
        if (turns >= 0 && size != turns) onnx_refuse(c, "operands of several lengths");
        turns = size;
    }
    memcpy(args, in, (size_t)s->n_state * sizeof *args);
    for (int64_t i = 0; i < turns; i++) {
        for (int k = 0; k < s->n_in; k++) {
            onnx_val *v = in[s->n_state + k];
            args[s->n_state + k] = part(c, v, onnx_axis(c, s->in_axes[k], v->shape.rank), s->in_back[k] ? turns - 1 - i : i);
        }
        onnx_inline(c, s->body, args, n, res, n_res);
        for (int k = 0; k < s->n_state; k++) args[k] = res[k];
        for (int k = 0; k < s->n_out; k++) stack_push(c, &kept[k], res[s->n_state + k]);
    }
    memcpy(out, args, (size_t)s->n_state * sizeof *out);
    for (int k = 0; k < s->n_out; k++) {
        for (int i = 0; s->out_back[k] && i < kept[k].n / 2; i++) {
            onnx_val *swap = kept[k].at[i];
            kept[k].at[i] = kept[k].at[kept[k].n - 1 - i], kept[k].at[kept[k].n - 1 - i] = swap;
        }
        int rank = kept[k].n ? kept[k].at[0]->shape.rank + 1 : 1;
        out[s->n_state + k] = stacked(c, &kept[k], onnx_axis(c, s->out_axes[k], rank));
    }
}

/* Operator set 8: every value has a batch axis first, and each element of the batch is scanned for itself. */
static void scan_batch(onnx_call *c, const scan *s, onnx_val **in, onnx_val **out) {
    int n = s->n_state + s->n_in, n_res = s->n_state + s->n_out;
    onnx_val **one = ONNX_NEW(c->im->env, onnx_val *, n + 1);
    stack *kept = ONNX_NEW(c->im->env, stack, n_res + 1);
    if (onnx_is_dim(in[0]->shape.dim[0])) onnx_refuse(c, "a batch of a size that a run gives");
    for (int64_t b = 0; b < in[0]->shape.dim[0]; b++) {
        for (int k = 0; k < n; k++) {
            if (in[k]->shape.rank < 1 || in[k]->shape.dim[0] != in[0]->shape.dim[0]) onnx_refuse(c, "its batch axes");
            one[k] = part(c, in[k], 0, b);
        }
        run_scan(c, s, one, out);
        for (int k = 0; k < n_res; k++) stack_push(c, &kept[k], out[k]);
    }
    for (int k = 0; k < n_res; k++) out[k] = stacked(c, &kept[k], 0);
}

void onnx_op_scan(onnx_call *c) {
    scan s = { .body = onnx_attr_find(c, "body"), .n_in = (int)onnx_attr_need_int(c, "num_scan_inputs") };
    int first = c->opset < 9;
    if (!s.body || s.n_in < 1 || s.n_in > c->n_in - first || (first && onnx_has(c, 0))) onnx_refuse(c, "its operands");
    s.n_state = c->n_in - first - s.n_in;
    s.n_out = onnx_body_outputs(c, s.body) - s.n_state;
    if (s.n_out < 0 || c->n_out > s.n_state + s.n_out) onnx_refuse(c, "its results");
    s.in_axes = list_of(c, "scan_input_axes", s.n_in),
    s.in_back = list_of(c, first ? "directions" : "scan_input_directions", s.n_in);
    s.out_axes = list_of(c, "scan_output_axes", s.n_out), s.out_back = list_of(c, "scan_output_directions", s.n_out);
    onnx_val **in = ONNX_NEW(c->im->env, onnx_val *, c->n_in),
             **out = ONNX_NEW(c->im->env, onnx_val *, s.n_state + s.n_out + 1);
    for (int k = first; k < c->n_in; k++) {
        in[k - first] = onnx_in(c, k);
        if (in[k - first]->kind != TN_ONNX_TENSOR) onnx_refuse(c, "sequences");
    }
    (first ? scan_batch : run_scan)(c, &s, in, out);
    for (int k = 0; k < c->n_out; k++) onnx_put_val(c, k, out[k]);
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
        onnx_put_val(c, 0, stacked(c, &(stack){ s->items, s->n_items, s->n_items }, axis));
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
        out->items[out->n_items++] = keep ? onnx_val_of(c, y, onnx_elem(c, 0)) : part(c, onnx_in(c, 0), axis, start[axis]);
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
