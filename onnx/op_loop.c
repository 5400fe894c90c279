/* op_loop.c - Loop and Scan. Up to 32 turns are written out, each by itself, so that what a turn makes may be known at import
 * and differ from turn to turn. Many turns, and as many as a run gives, are a tn_scan; where a run's values say when a loop
 * ends, it is a tn_while, which collects no results, since how many rows these would have is not known. */
#include "import.h"

enum { MOST_WRITTEN = 32 };

static onnx_val *one_known(onnx_call *c, int elem, int64_t v) {
    onnx_val *out = onnx_val_new(c->im, TN_ONNX_TENSOR, elem);
    int64_t *data = ONNX_NEW(c->im->env, int64_t, 1);
    if (elem == ELEM_BOOL)
        *(bool *)data = v != 0;
    else
        *data = v;
    out->data = data, out->n = 1, out->shape = TN_SCALAR;
    return out;
}
onnx_val *onnx_bool(onnx_call *c, bool v) { return one_known(c, ELEM_BOOL, v); }
bool onnx_known_bool(onnx_call *c, onnx_val *v, const char *what) {
    onnx_call probe = *c;
    onnx_val *one[] = { v };
    probe.in = one, probe.n_in = 1;
    return onnx_known_ints(&probe, 0, what, &(int){ 0 })[0] != 0;
}
bool onnx_alike(const onnx_val *a, const onnx_val *b) {
    return a->kind == TN_ONNX_TENSOR && b->kind == TN_ONNX_TENSOR && a->elem == b->elem && a->shape.rank == b->shape.rank &&
           !memcmp(a->shape.dim, b->shape.dim, sizeof a->shape.dim[0] * (size_t)a->shape.rank);
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
static onnx_val *stack_known(onnx_call *c, onnx_val **at, int n, int64_t n_each) {
    onnx_val *out = onnx_val_new(c->im, TN_ONNX_TENSOR, at[0]->elem);
    size_t bytes = (size_t)n_each * tn_dtype_size(onnx_elem_dtype(out->elem));
    char *data = onnx_new(c->im->env, bytes * (size_t)n + 1, 1);
    for (int i = 0; i < n; i++)
        if (bytes) memcpy(data + (size_t)i * bytes, at[i]->data, bytes);
    out->data = data, out->n = n_each * n, out->shape = with_axis(at[0]->shape, 0, n);
    return out;
}
onnx_val *onnx_stacked(onnx_call *c, onnx_val **at, int n, int axis) {
    uint64_t deps = 0;
    bool known = axis == 0;
    if (!n) onnx_refuse(c, "no turn: the shape of what it would collect is not known");
    for (int i = 0; i < n; i++) {
        if (!onnx_alike(at[i], at[0])) onnx_refuse(c, "turns with results of several shapes");
        known &= at[i]->data && at[i]->n <= TN_ONNX_MAX_FOLD / n;
        deps |= at[i]->deps;
    }
    if (known) return stack_known(c, at, n, at[0]->n);
    if (axis > at[0]->shape.rank || at[0]->shape.rank >= TN_MAX_RANK) onnx_refuse(c, "axis %d", axis);
    tn_tensor *xs = ONNX_NEW(c->im->env, tn_tensor, n);
    for (int i = 0; i < n; i++) xs[i] = tn_reshape(onnx_val_tensor(c, at[i]), with_axis(at[i]->shape, axis, 1));
    onnx_val *out = onnx_val_of(c, n == 1 ? xs[0] : tn_concat(xs, n, axis), at[0]->elem);
    out->deps |= deps;
    return out;
}

/* ---- turns that are one body of the graph ---- */

typedef struct turns {
    onnx_call *c;
    const onnx_attr *body;
    int n_state, n_in, n_ys; /* n_in: scanned operands */
    bool loop;               /* the body's first operands are its number and a condition, and its first result is one */
    bool ends;               /* the condition may end the loop: it and the number are carried, before the states */
    onnx_val *go;            /* the condition at first */
    onnx_val **state;        /* at first */
    tn_tensor limit;         /* i64[]: of turns; or no tensor */
    int64_t most;            /* of turns; 0: any number */
    onnx_val **res;          /* of the body */
    const tn_tensor *from;
    tn_tensor *to;
    tn_status status;
} turns;

static onnx_val *slice_val(onnx_call *c, tn_tensor t, const onnx_val *like) {
    onnx_val *v = onnx_val_of(c, t, like->elem);
    v->deps |= like->deps;
    return v;
}

static void build_turn(void *arg) {
    turns *t = arg;
    onnx_call *c = t->c;
    int lead = t->loop ? 2 : 0, n = lead + t->n_state + t->n_in, n_res = t->loop + t->n_state + t->n_ys, own = t->ends ? 2 : 0;
    onnx_val **args = ONNX_NEW(c->im->env, onnx_val *, n + 1);
    tn_tensor *to = t->to;
    if (t->loop) {
        args[0] = onnx_val_of(c, t->from[own ? 0 : t->n_state], ELEM_I64);
        args[1] = own ? onnx_val_of(c, tn_reshape(t->from[1], t->go->shape), ELEM_BOOL) : t->go;
    }
    for (int k = 0; k < t->n_state + t->n_in; k++) args[lead + k] = slice_val(c, t->from[own + k], t->state[k]);
    onnx_inline(c, t->body, args, n, t->res, n_res);
    for (int k = 0; k < t->n_state; k++)
        if (!onnx_alike(t->state[k], t->res[t->loop + k]))
            onnx_refuse(c, "its state %d has another type or shape after a turn", k);
    if (own) {
        onnx_val *go = t->res[0];
        if (go->elem != ELEM_BOOL || go->n != 1) onnx_refuse(c, "its condition is no bool");
        *to++ = tn_add(t->from[0], onnx_scalar(t->from[0], 1));
        *to++ = tn_reshape(onnx_val_tensor(c, go), TN_SCALAR);
    }
    for (int k = 0; k < t->n_state + (own ? 0 : t->n_ys); k++) *to++ = onnx_val_tensor(c, t->res[t->loop + k]);
    if (tn_graph_status(c->g)) onnx_refuse_graph(c);
}

/* A jump would leave the builder of the loop where it is: what is refused in the body is said when that has returned. Until
 * then the results are any of the right types. */
static void body_of(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    turns *t = ud;
    onnx_import *im = t->c->im;
    onnx_body here = { im->body };
    im->body = &here;
    t->from = in, t->to = out;
    t->status = onnx_try(im->env, build_turn, t);
    im->body = here.outer;
    if (!t->status) return;
    int n = t->n_state + (t->ends ? 2 : 0);
    for (int k = 0; k < n; k++) out[k] = in[k];
    for (int k = 0; !t->ends && k < t->n_ys; k++) out[n + k] = tn_full(g, TN_F32, TN_SCALAR, 0);
}

static void new_turns(turns *t) {
    onnx_call *c = t->c;
    t->state = ONNX_NEW(c->im->env, onnx_val *, t->n_state + t->n_in + 1);
    t->res = ONNX_NEW(c->im->env, onnx_val *, t->loop + t->n_state + t->n_ys + 1);
}
static tn_tensor *own_tensors(const turns *t, int n) { return ONNX_NEW(t->c->im->env, tn_tensor, n + 1); }
static onnx_val *result_of(turns *t, tn_tensor x, int k) {
    onnx_val *v = onnx_val_of(t->c, x, t->res[t->loop + k]->elem);
    v->deps |= t->res[t->loop + k]->deps;
    return v;
}
static void check_built(turns *t) {
    if (t->status) onnx_again(t->c->im->env, t->status);
    if (tn_graph_status(t->c->g)) onnx_refuse_graph(t->c);
}

/* xs: stacks, as many as there are scanned operands, and that of the numbers of turns behind them. The results: states, then
 * stacks. */
static void run_scan(turns *t, tn_tensor *xs, int n_xs, int64_t length, bool back, onnx_val **out) {
    onnx_call *c = t->c;
    tn_tensor *carry = own_tensors(t, t->n_state), *res = own_tensors(t, t->n_state + t->n_ys);
    for (int k = 0; k < t->n_state; k++) carry[k] = onnx_val_tensor(c, t->state[k]);
    tn_scan_opts o = { .carry = carry, .n_carry = t->n_state, .xs = xs, .n_xs = n_xs, .n_ys = t->n_ys };
    o.length = length, o.reverse = back;
    tn_scan(c->g, &o, body_of, t, res);
    check_built(t);
    for (int k = 0; k < t->n_state + t->n_ys; k++) out[k] = result_of(t, res[k], k);
}

static void goes_on(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    const turns *t = ud;
    (void)g;
    *out = t->limit.id ? tn_and(in[1], tn_lt(in[0], t->limit)) : in[1];
}
static void run_while(turns *t, onnx_val **out) {
    onnx_call *c = t->c;
    int n = t->n_state + 2;
    tn_tensor *init = own_tensors(t, n), *res = own_tensors(t, n);
    init[0] = tn_full(c->g, TN_I64, TN_SCALAR, 0);
    init[1] = tn_reshape(onnx_val_tensor(c, t->go), TN_SCALAR);
    for (int k = 0; k < t->n_state; k++) init[k + 2] = onnx_val_tensor(c, t->state[k]);
    tn_while(c->g, init, n, goes_on, body_of, t, t->most, res);
    check_built(t);
    for (int k = 0; k < t->n_state; k++) out[k] = result_of(t, res[k + 2], k);
}

/* ---- Loop ---- */

typedef struct loop {
    onnx_call *c;
    const onnx_attr *body;
    int n_state, n_out, n_scan;
    onnx_val *cond, **state; /* at first */
    bool counted;            /* there is a trip count */
    int64_t most;            /* it, where it is known; a size that a run gives; or -1 */
    onnx_val **out;          /* states, then stacks */
} loop;

static loop read_loop(onnx_call *c) {
    loop l = { .c = c, .body = onnx_attr_find(c, "body"), .n_state = c->n_in > 2 ? c->n_in - 2 : 0, .most = -1 };
    l.n_out = l.body ? onnx_body_outputs(c, l.body) : 0, l.n_scan = l.n_out - 1 - l.n_state;
    if (l.n_scan < 0 || c->n_out > l.n_state + l.n_scan)
        onnx_refuse(c, "its body has %d outputs for %d values", l.n_out, l.n_state);
    l.cond = onnx_has(c, 1) ? c->in[1] : onnx_bool(c, true);
    if (l.cond->kind != TN_ONNX_TENSOR || l.cond->elem != ELEM_BOOL || l.cond->n != 1)
        onnx_refuse(c, "its condition is no bool");
    l.state = ONNX_NEW(c->im->env, onnx_val *, l.n_state + 1);
    l.out = ONNX_NEW(c->im->env, onnx_val *, l.n_state + l.n_scan + 1);
    for (int k = 0; k < l.n_state; k++) l.state[k] = onnx_in(c, k + 2);
    l.counted = onnx_has(c, 0);
    onnx_val *trips = l.counted ? c->in[0] : NULL;
    bool sizes = trips && trips->kind == TN_ONNX_TENSOR && trips->sizes && trips->n == 1;
    if (!l.counted)
        l.most = INT64_MAX;
    else if (sizes)
        l.most = onnx_dim(c, '>', trips->sizes[0], 0);
    else if (trips->data || c->im->opts.immediate)
        l.most = onnx_known_int(c, 0, "trip count");
    if (l.counted && !sizes && l.most < 0 && (trips->data || c->im->opts.immediate)) l.most = 0;
    return l;
}

static bool wants_stacks(const loop *l) {
    for (int k = l->n_state; k < l->c->n_out; k++)
        if (onnx_wants(l->c, k)) return true;
    return false;
}

/* Turn by turn; false: a condition is not known, or there are more turns, or none that says what the stacks are of. */
static bool write_out(const loop *l, int64_t limit) {
    onnx_call *c = l->c;
    onnx_val *cond = l->cond, **in = ONNX_NEW(c->im->env, onnx_val *, l->n_state + 2),
             **out = ONNX_NEW(c->im->env, onnx_val *, l->n_out + 1);
    stack *scans = ONNX_NEW(c->im->env, stack, l->n_scan + 1);
    if (l->n_state) memcpy(in + 2, l->state, (size_t)l->n_state * sizeof *in);
    int64_t i = 0;
    for (; i < l->most; i++) {
        bool known = cond->data || c->im->opts.immediate || limit == INT64_MAX;
        if (!known) return false;
        if (!onnx_known_bool(c, cond, "condition")) break;
        if (i == limit) return false;
        in[0] = one_known(c, ELEM_I64, i), in[1] = cond;
        onnx_inline(c, l->body, in, l->n_state + 2, out, l->n_out);
        cond = out[0];
        for (int k = 0; k < l->n_state; k++) in[k + 2] = out[k + 1];
        for (int k = 0; k < l->n_scan; k++) stack_push(c, &scans[k], out[1 + l->n_state + k]);
    }
    if (!i && limit == MOST_WRITTEN && wants_stacks(l)) return false;
    for (int k = 0; k < c->n_out; k++)
        if (onnx_wants(c, k))
            l->out[k] = k < l->n_state ? in[k + 2] : onnx_stacked(c, scans[k - l->n_state].at, scans[k - l->n_state].n, 0);
    return true;
}

/* Whether no turn's condition ends the loop: the body gives what it got, or a constant. */
static bool always(const loop *l) {
    onnx_call *c = l->c;
    onnx_graph g;
    onnx_tensor made;
    const onnx_tensor *constant = NULL;
    if (!l->cond->data || !onnx_known_bool(c, l->cond, "condition") || !l->body->g.at) return false;
    onnx_read_graph(c->im->env, l->body->g, &g);
    if (g.n_outputs < 1 || g.n_inputs < 2) return false;
    const char *name = g.outputs[0].name;
    for (int i = g.n_nodes; i-- > 0 && !constant;) { /* the nodes are in the order of execution */
        const onnx_node *n = &g.nodes[i];
        if (n->n_out != 1 || strcmp(n->out[0], name)) continue;
        bool is = !strcmp(n->op, "Constant") && n->n_attrs == 1 && n->attrs[0].t.at;
        if (is) onnx_read_tensor(c->im->env, n->attrs[0].t, &made), constant = &made;
        if (!is && ((strcmp(n->op, "Identity") && strcmp(n->op, "Cast")) || n->n_in != 1)) return false;
        if (!is) name = n->in[0];
    }
    if (!strcmp(name, g.inputs[1].name)) return true;
    for (int i = 0; i < g.n_inits; i++)
        if (!strcmp(name, g.inits[i].name)) constant = &g.inits[i];
    const onnx_val *outer = constant ? NULL : onnx_named(c, name, strlen(name));
    const void *data = constant ? onnx_tensor_data(c->im->env, c->im->m, constant) : outer ? outer->data : NULL;
    return data && (constant ? constant->elem : outer->elem) == ELEM_BOOL && *(const bool *)data;
}

static bool all_tensors(onnx_val *const *v, int n) {
    for (int k = 0; k < n; k++)
        if (v[k]->kind != TN_ONNX_TENSOR) return false;
    return true;
}

static void loop_of_graph(void *arg) {
    const loop *l = arg;
    onnx_call *c = l->c;
    bool on = always(l), never = l->cond->data && !onnx_known_bool(c, l->cond, "condition");
    int64_t most = never ? 0 : l->most;
    turns t = { .c = c, .body = l->body, .n_state = l->n_state, .n_ys = l->n_scan, .loop = true, .go = l->cond };
    t.limit = (tn_tensor){ c->g, 0 };
    new_turns(&t);
    if (l->n_state) memcpy(t.state, l->state, (size_t)l->n_state * sizeof *t.state);
    if ((on || !most) && most != INT64_MAX && most != -1) {
        tn_tensor turn = tn_iota(c->g, TN_I64, TN_DIMS(most), 0);
        run_scan(&t, &turn, 1, most, false, l->out);
        return;
    }
    if (wants_stacks(l)) {
        c->im->needs |= l->cond->deps | (l->counted ? c->in[0]->deps : 0);
        onnx_refuse(c, "what it collects has as many rows as values of a run make it turn");
    }
    t.ends = true;
    if (l->counted) t.limit = tn_cast(tn_reshape(onnx_t(c, 0), TN_SCALAR), TN_I64);
    if (most > 0 && most < 1 << 30) t.most = most;
    run_while(&t, l->out);
}

void onnx_op_loop(onnx_call *c) {
    loop l = read_loop(c);
    bool known = l.most >= 0, may = !c->im->opts.immediate && all_tensors(l.state, l.n_state);
    if (!(known && write_out(&l, may ? MOST_WRITTEN : INT64_MAX))) {
        if (!may) (void)onnx_known_int(c, 0, "trip count");
        if (!l.counted && always(&l)) onnx_refuse(c, "nothing ends it");
        if (!known)
            loop_of_graph(&l);
        else if (onnx_attempt(c, loop_of_graph, &l))
            (void)write_out(&l, INT64_MAX);
    }
    for (int k = 0; k < c->n_out; k++)
        if (onnx_wants(c, k)) onnx_put_val(c, k, l.out[k]);
}

/* ---- Scan ---- */

onnx_val *onnx_part(onnx_call *c, onnx_val *v, int axis, int64_t i) {
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
    onnx_call *c;
    const onnx_attr *body;
    int n_state, n_in, n_out; /* n_in: scanned operands; n_out: collected results */
    const int64_t *in_axes, *in_back, *out_axes, *out_back;
    onnx_val **in, **out; /* states, then scanned operands; states, then collected results */
    int64_t turns;
} scan;

static const int64_t *list_of(onnx_call *c, const char *name, int n) {
    int given;
    const int64_t *v = onnx_attr_ints(c, name, &given);
    if (v && given != n) onnx_refuse(c, "%s has %d numbers, expected %d", name, given, n);
    return v ? v : ONNX_NEW(c->im->env, int64_t, n + 1);
}

static void scan_written(const scan *s) {
    onnx_call *c = s->c;
    int n = s->n_state + s->n_in, n_res = s->n_state + s->n_out;
    onnx_val **args = ONNX_NEW(c->im->env, onnx_val *, n + 1), **res = ONNX_NEW(c->im->env, onnx_val *, n_res + 1);
    stack *kept = ONNX_NEW(c->im->env, stack, s->n_out + 1);
    memcpy(args, s->in, (size_t)s->n_state * sizeof *args);
    for (int64_t i = 0; i < s->turns; i++) {
        for (int k = 0; k < s->n_in; k++) {
            onnx_val *v = s->in[s->n_state + k];
            args[s->n_state + k] =
                onnx_part(c, v, onnx_axis(c, s->in_axes[k], v->shape.rank), s->in_back[k] ? s->turns - 1 - i : i);
        }
        onnx_inline(c, s->body, args, n, res, n_res);
        for (int k = 0; k < s->n_state; k++) args[k] = res[k];
        for (int k = 0; k < s->n_out; k++) stack_push(c, &kept[k], res[s->n_state + k]);
    }
    memcpy(s->out, args, (size_t)s->n_state * sizeof *args);
    for (int k = 0; k < s->n_out; k++) {
        for (int i = 0; s->out_back[k] && i < kept[k].n / 2; i++) {
            onnx_val *swap = kept[k].at[i];
            kept[k].at[i] = kept[k].at[kept[k].n - 1 - i], kept[k].at[kept[k].n - 1 - i] = swap;
        }
        int rank = kept[k].n ? kept[k].at[0]->shape.rank + 1 : 1;
        s->out[s->n_state + k] = onnx_stacked(c, kept[k].at, kept[k].n, onnx_axis(c, s->out_axes[k], rank));
    }
}

/* x with axis `from` as axis `to`, the others in their order. */
static tn_tensor moved(tn_tensor x, int from, int to) {
    int64_t perm[TN_MAX_RANK];
    int rank = tn_tensor_shape(x).rank;
    if (from == to || rank < 0) return x;
    for (int i = 0, next = 0; i < rank; i++) perm[i] = i == to ? from : (next += next == from, next++);
    return tn_permute(x, perm, rank);
}

static void scan_of_graph(void *arg) {
    const scan *s = arg;
    onnx_call *c = s->c;
    turns t = { .c = c, .body = s->body, .n_state = s->n_state, .n_in = s->n_in, .n_ys = s->n_out };
    bool back = s->in_back[0] != 0;
    new_turns(&t);
    if (s->n_state) memcpy(t.state, s->in, (size_t)s->n_state * sizeof *t.state);
    tn_tensor *xs = own_tensors(&t, s->n_in);
    for (int k = 0; k < s->n_in; k++) {
        onnx_val *v = t.state[s->n_state + k] = s->in[s->n_state + k];
        xs[k] = moved(onnx_val_tensor(c, v), onnx_axis(c, s->in_axes[k], v->shape.rank), 0);
        if (back != (s->in_back[k] != 0)) xs[k] = tn_flip(xs[k], TN_INTS(0));
    }
    run_scan(&t, xs, s->n_in, s->turns, back, s->out);
    for (int k = s->n_state; k < s->n_state + s->n_out; k++) {
        onnx_val *v = s->out[k];
        bool turned = back != (s->out_back[k - s->n_state] != 0);
        tn_tensor x = turned ? tn_flip(v->t, TN_INTS(0)) : v->t;
        s->out[k] = slice_val(c, moved(x, 0, onnx_axis(c, s->out_axes[k - s->n_state], v->shape.rank)), v);
    }
}

static void scan_whole(scan *s) {
    onnx_call *c = s->c;
    s->turns = -1;
    for (int k = 0; k < s->n_in; k++) {
        tn_shape sh = s->in[s->n_state + k]->shape;
        int64_t size = sh.dim[onnx_axis(c, s->in_axes[k], sh.rank)];
        if (s->turns != -1 && size != s->turns) onnx_refuse(c, "operands of several lengths");
        s->turns = size;
    }
    if (onnx_is_dim(s->turns))
        scan_of_graph(s);
    else if (s->turns <= MOST_WRITTEN || c->im->opts.immediate || onnx_attempt(c, scan_of_graph, s))
        scan_written(s);
}

/* Operator set 8: every value has a batch axis first, and each element of the batch is scanned for itself. */
static void scan_batch(scan *s) {
    onnx_call *c = s->c;
    int n = s->n_state + s->n_in, n_res = s->n_state + s->n_out;
    onnx_val **in = s->in;
    stack *kept = ONNX_NEW(c->im->env, stack, n_res + 1);
    s->in = ONNX_NEW(c->im->env, onnx_val *, n + 1);
    if (onnx_is_dim(in[0]->shape.dim[0])) onnx_refuse(c, "a batch of a size that a run gives");
    for (int64_t b = 0; b < in[0]->shape.dim[0]; b++) {
        for (int k = 0; k < n; k++) {
            if (in[k]->shape.rank < 1 || in[k]->shape.dim[0] != in[0]->shape.dim[0]) onnx_refuse(c, "its batch axes");
            s->in[k] = onnx_part(c, in[k], 0, b);
        }
        scan_whole(s);
        for (int k = 0; k < n_res; k++) stack_push(c, &kept[k], s->out[k]);
    }
    for (int k = 0; k < n_res; k++) s->out[k] = onnx_stacked(c, kept[k].at, kept[k].n, 0);
}

void onnx_op_scan(onnx_call *c) {
    scan s = { .c = c, .body = onnx_attr_find(c, "body"), .n_in = (int)onnx_attr_need_int(c, "num_scan_inputs") };
    int first = c->opset < 9;
    if (!s.body || s.n_in < 1 || s.n_in > c->n_in - first || (first && onnx_has(c, 0))) onnx_refuse(c, "its operands");
    s.n_state = c->n_in - first - s.n_in;
    s.n_out = onnx_body_outputs(c, s.body) - s.n_state;
    if (s.n_out < 0 || c->n_out > s.n_state + s.n_out) onnx_refuse(c, "its results");
    s.in_axes = list_of(c, "scan_input_axes", s.n_in),
    s.in_back = list_of(c, first ? "directions" : "scan_input_directions", s.n_in);
    s.out_axes = list_of(c, "scan_output_axes", s.n_out), s.out_back = list_of(c, "scan_output_directions", s.n_out);
    s.in = ONNX_NEW(c->im->env, onnx_val *, c->n_in), s.out = ONNX_NEW(c->im->env, onnx_val *, s.n_state + s.n_out + 1);
    for (int k = first; k < c->n_in; k++) {
        s.in[k - first] = onnx_in(c, k);
        if (s.in[k - first]->kind != TN_ONNX_TENSOR) onnx_refuse(c, "sequences");
    }
    (first ? scan_batch : scan_whole)(&s);
    for (int k = 0; k < c->n_out; k++) onnx_put_val(c, k, s.out[k]);
}
