/* op_rnn.c - RNN, GRU and LSTM: the products with the input are one contraction over all turns. A few turns are written
 * out, one after the other; many, and as many as a run gives, are a scan, which takes as long and compiles in a tenth of the
 * time. */
#include "import.h"

tn_tensor onnx_take_along(onnx_call *c, tn_tensor x, tn_tensor index, int axis);

typedef tn_tensor (*activation)(tn_tensor);
static tn_tensor hard_sigmoid(tn_tensor x) {
    x = tn_add_scalar(tn_mul_scalar(x, 0.2), 0.5);
    return tn_min(tn_max(x, onnx_scalar(x, 0)), onnx_scalar(x, 1));
}
static tn_tensor leaky(tn_tensor x) { return tn_nn_leaky_relu(x, (double)0.01f); }
static tn_tensor elu(tn_tensor x) { return tn_nn_elu(x, 1); }

enum { MOST_WRITTEN = 32 };

typedef struct rnn {
    int gates, n_dirs, n_acts; /* of an op: 1, 3 or 4 gates; activations of a direction */
    bool reverse, batch_first, before, couple;
    double clip; /* 0: none */
    int64_t steps, batch, in, hidden;
    activation act[6];
} rnn;

static activation find_activation(onnx_call *c, onnx_span s) {
    static const struct {
        const char *name;
        activation f;
    } known[] = { { "Sigmoid", (tn_sigmoid) },   { "Tanh", (tn_tanh) },
                  { "Relu", (tn_relu) },         { "Softsign", (tn_nn_softsign) },
                  { "Softplus", (tn_softplus) }, { "HardSigmoid", hard_sigmoid },
                  { "LeakyRelu", leaky },        { "Elu", elu } };
    for (int i = 0; i < ONNX_COUNT(known); i++)
        if (s.n == strlen(known[i].name) && !memcmp(s.at, known[i].name, s.n)) return known[i].f;
    onnx_refuse(c, "activation %.*s", (int)(s.n > 40 ? 40 : s.n), (const char *)s.at);
}

static void read_attrs(onnx_call *c, rnn *r, int gates) {
    const onnx_attr *a = onnx_attr_find(c, "activations");
    r->gates = gates;
    r->n_acts = gates == 1 ? 1 : gates == 3 ? 2 : 3;
    r->n_dirs = 1 + onnx_attr_is(c, "direction", "forward", "bidirectional");
    r->reverse = onnx_attr_is(c, "direction", "forward", "reverse");
    if (r->n_dirs == 1 && !r->reverse && !onnx_attr_is(c, "direction", "forward", "forward"))
        onnx_refuse(c, "attribute direction");
    r->clip = onnx_attr_float(c, "clip", 0);
    r->batch_first = onnx_attr_int(c, "layout", 0);
    r->before = onnx_attr_int(c, "linear_before_reset", 0);
    r->couple = onnx_attr_int(c, "input_forget", 0);
    (void)onnx_attr_int(c, "output_sequence", 0); /* before operator set 7 */
    if (a && (a->type != ATTR_STRINGS || a->n != r->n_acts * r->n_dirs)) onnx_refuse(c, "attribute activations");
    for (int i = 0; i < r->n_acts * r->n_dirs; i++)
        r->act[i] = a ? find_activation(c, a->strings[i]) : gates == 1 || i % r->n_acts ? (tn_tanh) : (tn_sigmoid);
}

static void read_shapes(onnx_call *c, rnn *r) {
    tn_shape x = onnx_shape(c, 0), w = onnx_shape(c, 1), h = onnx_shape(c, 2);
    if (x.rank != 3 || w.rank != 3 || h.rank != 3) onnx_refuse(c, "operands that are not of rank 3");
    r->steps = x.dim[r->batch_first], r->batch = x.dim[!r->batch_first], r->in = x.dim[2], r->hidden = h.dim[2];
    if (onnx_is_open(w) || onnx_is_open(h)) onnx_refuse(c, "weights of a size that a run gives");
    int64_t rows = r->gates * r->hidden;
    if (w.dim[0] != r->n_dirs || w.dim[1] != rows || w.dim[2] != r->in || h.dim[1] != rows || h.dim[0] != r->n_dirs)
        onnx_refuse(c, "its shapes");
    if (!onnx_is_dim(r->steps) && r->steps < 1) onnx_refuse(c, "%lld steps", (long long)r->steps);
    if (onnx_attr_int(c, "hidden_size", r->hidden) != r->hidden) onnx_refuse(c, "attribute hidden_size");
}

/* Part i of n equal parts along axis. */
static tn_tensor part(tn_tensor x, int axis, int64_t i, int64_t size) {
    tn_shape stop = tn_tensor_shape(x);
    int64_t start[TN_MAX_RANK] = { 0 };
    if (stop.rank < 0) return x;
    start[axis] = i * size, stop.dim[axis] = (i + 1) * size;
    return tn_slice(x, start, stop.dim, NULL, stop.rank);
}
/* Operand i of direction d without its axis of directions; zeros of that shape where it is not given. */
static tn_tensor of_dir(onnx_call *c, int i, int d, tn_shape s) {
    if (!onnx_has(c, i)) return tn_full(c->g, onnx_elem_dtype(onnx_elem(c, 0)), s, 0);
    return tn_reshape(part(onnx_t(c, i), 0, d, 1), s);
}
static tn_tensor state_of(onnx_call *c, const rnn *r, int i, int d) {
    if (!onnx_has(c, i) || !r->batch_first) return of_dir(c, i, d, TN_DIMS(r->batch, r->hidden));
    return tn_reshape(part(onnx_t(c, i), 1, d, 1), TN_DIMS(r->batch, r->hidden));
}
/* a [B,I] or [T,B,I] times w [R,I]: [..,R] */
static tn_tensor times(tn_tensor a, tn_tensor w) {
    int64_t last = tn_tensor_shape(a).rank - 1, one = 1;
    return tn_dot(a, w, NULL, NULL, 0, &last, &one, 1);
}
static tn_tensor clipped(const rnn *r, tn_tensor x) {
    if (r->clip <= 0) return x;
    return tn_min(tn_max(x, onnx_scalar(x, -r->clip)), onnx_scalar(x, r->clip));
}

typedef struct turn {            /* of one direction */
    tn_tensor w_h, bias_h, peep; /* R [G*H,H], recurrent bias [G*H], peepholes [3*H] */
    tn_tensor h, cell;
    const activation *act;
} turn;

static tn_tensor gate(const rnn *r, tn_tensor all, int i) { return part(all, 1, i, r->hidden); }

static void step_rnn(const rnn *r, turn *t, tn_tensor x) {
    t->h = t->act[0](clipped(r, tn_add(x, tn_add(times(t->h, t->w_h), t->bias_h))));
}
/* Gates z, r, h. */
static void step_gru(const rnn *r, turn *t, tn_tensor x) {
    tn_tensor u = tn_add(times(t->h, t->w_h), t->bias_h);
    tn_tensor z = t->act[0](clipped(r, tn_add(gate(r, x, 0), gate(r, u, 0)))),
              reset = t->act[0](clipped(r, tn_add(gate(r, x, 1), gate(r, u, 1))));
    tn_tensor hidden = tn_mul(reset, gate(r, u, 2));
    if (!r->before)
        hidden = tn_add(times(tn_mul(reset, t->h), part(t->w_h, 0, 2, r->hidden)), part(t->bias_h, 0, 2, r->hidden));
    tn_tensor fresh = t->act[1](clipped(r, tn_add(gate(r, x, 2), hidden)));
    t->h = tn_add(tn_mul(tn_sub(onnx_scalar(z, 1), z), fresh), tn_mul(z, t->h));
}
/* Gates i, o, f, c; peepholes i, o, f. */
static void step_lstm(const rnn *r, turn *t, tn_tensor x) {
    tn_tensor all = tn_add(x, tn_add(times(t->h, t->w_h), t->bias_h)), p[3];
    for (int i = 0; i < 3; i++) p[i] = part(t->peep, 0, i, r->hidden);
    tn_tensor i = t->act[0](clipped(r, tn_add(gate(r, all, 0), tn_mul(p[0], t->cell))));
    tn_tensor f = t->act[0](clipped(r, tn_add(gate(r, all, 2), tn_mul(p[2], t->cell))));
    if (r->couple) f = tn_sub(onnx_scalar(i, 1), i);
    t->cell = tn_add(tn_mul(f, t->cell), tn_mul(i, t->act[1](clipped(r, gate(r, all, 3)))));
    tn_tensor o = t->act[0](clipped(r, tn_add(gate(r, all, 1), tn_mul(p[1], t->cell))));
    t->h = tn_mul(o, t->act[2](t->cell));
}

/* x [T,B,I] backwards, each sequence of the batch within its own length. */
static tn_tensor backwards(onnx_call *c, const rnn *r, tn_tensor x) {
    if (!onnx_has(c, 4)) return tn_flip(x, TN_INTS(0));
    tn_tensor at = tn_iota(c->g, TN_I64, tn_tensor_shape(x), 0),
              n = tn_reshape(tn_cast(onnx_t(c, 4), TN_I64), TN_DIMS(1, r->batch, 1));
    return onnx_take_along(c, x, tn_select(tn_lt(at, n), tn_sub(tn_add_scalar(n, -1), at), at), 0);
}

/* One turn on what the input gives [B,G*H]; on: bool[B,1] of sequences that have not ended, or { 0 }. Returns its result. */
static tn_tensor turn_once(const rnn *r, turn *t, tn_tensor x, tn_tensor on) {
    turn before = *t;
    (r->gates == 1 ? step_rnn : r->gates == 3 ? step_gru : step_lstm)(r, t, x);
    tn_tensor y = t->h;
    if (!on.id) return y;
    t->h = tn_select(on, y, before.h); /* a sequence that has ended keeps its state */
    if (r->gates == 4) t->cell = tn_select(on, t->cell, before.cell);
    return tn_select(on, y, onnx_scalar(y, 0));
}

typedef struct results {
    tn_tensor y, h, cell; /* [T,B,H], [B,H], [B,H] */
} results;

typedef struct scanned {
    const rnn *r;
    const turn *t;
    tn_tensor lengths; /* i64[B,1], or { 0 } */
} scanned;
static void scan_turn(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    const scanned *s = ud;
    bool lstm = s->r->gates == 4;
    turn t = *s->t;
    (void)g;
    t.h = in[0];
    if (lstm) t.cell = in[1];
    tn_tensor on = s->lengths.id ? tn_gt(s->lengths, in[2 + lstm]) : s->lengths;
    out[1 + lstm] = turn_once(s->r, &t, in[1 + lstm], on);
    out[0] = t.h;
    if (lstm) out[1] = t.cell;
}
/* all [T,B,G*H]. Backwards a sequence that ends early keeps its first state until its own last element. */
static results scan_direction(onnx_call *c, const rnn *r, const turn *t, tn_tensor all, bool back) {
    bool lstm = r->gates == 4, ends = onnx_has(c, 4);
    scanned s = { r, t, { c->g, 0 } };
    if (ends) s.lengths = tn_reshape(tn_cast(onnx_t(c, 4), TN_I64), TN_DIMS(r->batch, 1));
    tn_tensor carry[2] = { t->h, t->cell }, xs[2] = { all, { c->g, 0 } }, out[3];
    if (ends) xs[1] = tn_iota(c->g, TN_I64, TN_DIMS(r->steps), 0);
    tn_scan_opts o = { .carry = carry, .n_carry = 1 + lstm, .xs = xs, .n_xs = 1 + ends, .n_ys = 1 };
    o.length = r->steps, o.reverse = back;
    tn_scan(c->g, &o, scan_turn, &s, out);
    return (results){ out[1 + lstm], out[0], lstm ? out[1] : t->cell };
}

static results run_direction(onnx_call *c, const rnn *r, int d) {
    int64_t rows = r->gates * r->hidden;
    bool back = r->reverse || d == 1, scans = onnx_is_dim(r->steps) || r->steps > MOST_WRITTEN;
    tn_tensor x = onnx_t(c, 0), n = { c->g, 0 }, *ys = ONNX_NEW(c->im->env, tn_tensor, scans ? 1 : r->steps);
    if (r->batch_first) x = tn_transpose(x, 0, 1);
    if (back && !scans) x = backwards(c, r, x);
    tn_tensor bias = of_dir(c, 3, d, TN_DIMS(2 * rows));
    turn t = { .w_h = of_dir(c, 2, d, TN_DIMS(rows, r->hidden)),
               .bias_h = part(bias, 0, 1, rows),
               .act = r->act + d * r->n_acts };
    t.h = state_of(c, r, 5, d);
    if (r->gates == 4) t.cell = state_of(c, r, 6, d), t.peep = of_dir(c, 7, d, TN_DIMS(3 * r->hidden));
    tn_tensor all = tn_add(times(x, of_dir(c, 1, d, TN_DIMS(rows, r->in))), part(bias, 0, 0, rows));
    if (scans) return scan_direction(c, r, &t, all, back);
    if (onnx_has(c, 4)) n = tn_reshape(tn_cast(onnx_t(c, 4), TN_I64), TN_DIMS(r->batch, 1));
    for (int64_t i = 0; i < r->steps; i++) {
        tn_tensor on = n.id ? tn_gt(n, onnx_scalar(n, (double)i)) : n;
        tn_tensor y = turn_once(r, &t, tn_reshape(part(all, 0, i, 1), TN_DIMS(r->batch, rows)), on);
        ys[i] = tn_reshape(y, TN_DIMS(1, r->batch, r->hidden));
    }
    tn_tensor y = r->steps == 1 ? ys[0] : tn_concat(ys, (int)r->steps, 0);
    return (results){ back ? backwards(c, r, y) : y, t.h, t.cell };
}

/* parts of all directions along a new axis. */
static tn_tensor join(const rnn *r, const tn_tensor *parts, int axis) {
    tn_tensor wide[2];
    for (int d = 0; d < r->n_dirs; d++) {
        tn_shape s = tn_tensor_shape(parts[d]);
        if (s.rank < 0) return parts[d];
        for (int i = s.rank; i > axis; i--) s.dim[i] = s.dim[i - 1];
        s.dim[axis] = 1, s.rank++;
        wide[d] = tn_reshape(parts[d], s);
    }
    return r->n_dirs == 1 ? wide[0] : tn_concat(wide, r->n_dirs, axis);
}

static void recurrent(onnx_call *c, int gates) {
    rnn r = { .gates = 0 };
    read_attrs(c, &r, gates);
    read_shapes(c, &r);
    tn_tensor y[2], h[2], cell[2];
    for (int d = 0; d < r.n_dirs; d++) {
        results res = run_direction(c, &r, d);
        y[d] = res.y, h[d] = res.h, cell[d] = res.cell;
    }
    tn_tensor all = join(&r, y, 1); /* [T,D,B,H] */
    onnx_put(c, 0, r.batch_first ? tn_permute(all, TN_INTS(2, 0, 1, 3)) : all, ELEM_NONE);
    onnx_put(c, 1, join(&r, h, r.batch_first ? 1 : 0), ELEM_NONE);
    if (gates == 4) onnx_put(c, 2, join(&r, cell, r.batch_first ? 1 : 0), ELEM_NONE);
}
void onnx_op_rnn(onnx_call *c) { recurrent(c, 1); }
void onnx_op_gru(onnx_call *c) { recurrent(c, 3); }
void onnx_op_lstm(onnx_call *c) { recurrent(c, 4); }
