/* rnn.c - recurrent layers: RNN, GRU, LSTM. In: sequences. Out: the hidden states of the last layer in each step.
 *
 * What a layer makes of its input, in all steps at once, is one contraction before the loop; the loop, a tn_scan, has the
 * product with the hidden state and the gates alone. Both directions of a layer are loops of their own. Gates and biases are
 * those of Cho et al. 2014 (GRU, with the reset gate behind the product, as cuDNN and PyTorch have it) and Hochreiter &
 * Schmidhuber 1997 with forget gates (LSTM). */
#include "nn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum rnn_kind { KIND_RNN, KIND_GRU, KIND_LSTM } rnn_kind;
static const int n_gates[] = { 1, 3, 4 };

typedef struct cell {
    rnn_kind kind;
    int64_t hidden;
    tn_tensor w_h, b_n; /* [R,G*H], R being the width of h; GRU: [H], of the new gate's product with the state */
    tn_tensor w_r, w_c; /* LSTM, or { 0 }: projection [H,R]; peepholes [3,H] of i, f, o */
    double clip;        /* LSTM: of its state; 0: none */
    tn_tensor lengths;  /* i64[B,1], or { 0 } */
} cell;

static tn_tensor part(tn_tensor all, int64_t i, int64_t hidden) {
    tn_shape s = tn_tensor_shape(all);
    if (s.rank != 2) return all;
    return tn_slice(all, (const int64_t[]){ 0, i * hidden }, (const int64_t[]){ s.dim[0], (i + 1) * hidden }, NULL, 2);
}

/* What gate i..o sees of the cell's state c. */
static tn_tensor peep(const cell *u, tn_tensor gate, tn_tensor c, int64_t row) {
    if (!u->w_c.id) return gate;
    tn_tensor w = tn_slice(u->w_c, (const int64_t[]){ row, 0 }, (const int64_t[]){ row + 1, u->hidden }, NULL, 2);
    return tn_add(gate, tn_mul(c, w));
}

/* gates [B,4H], c [B,H]. out: h [B,R]; *out_c: the next c. */
static tn_tensor lstm(tn_graph *g, const cell *u, tn_tensor gates, tn_tensor c, tn_tensor *out_c) {
    int64_t n = u->hidden;
    tn_tensor i = tn_sigmoid(peep(u, part(gates, 0, n), c, 0)), f = tn_sigmoid(peep(u, part(gates, 1, n), c, 1));
    tn_tensor fresh = tn_tanh(part(gates, 2, n)), o = part(gates, 3, n), kept = tn_mul(f, c);
    tn_tensor next = tn_add(kept, tn_mul(i, fresh));
    if (u->clip > 0) {
        tn_tensor most = tn_full(g, tn_tensor_dtype(next), TN_SCALAR, u->clip);
        tn_tensor least = tn_full(g, tn_tensor_dtype(next), TN_SCALAR, -u->clip);
        next = tn_max(tn_min(next, most), least);
    }
    *out_c = next;
    o = tn_sigmoid(peep(u, o, next, 2));
    o = tn_mul(o, tn_tanh(next));
    return u->w_r.id ? tn_matmul(o, u->w_r) : o;
}

/* in: h [B,R], LSTM: c [B,H], then the input's part [B,G*H], then with lengths the step i64[]. out: h, LSTM: c, then h of the
 * step. */
static void step(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    const cell *c = ud;
    bool is_lstm = c->kind == KIND_LSTM;
    tn_tensor h = in[0], x = in[1 + is_lstm], u = tn_matmul(h, c->w_h), next, state = h;
    int64_t n = c->hidden;
    if (is_lstm) {
        next = lstm(g, c, tn_add(x, u), in[1], &state);
    } else if (c->kind == KIND_GRU) {
        tn_tensor r = tn_sigmoid(tn_add(part(x, 0, n), part(u, 0, n))), z = tn_sigmoid(tn_add(part(x, 1, n), part(u, 1, n)));
        tn_tensor fresh = tn_tanh(tn_add(part(x, 2, n), tn_mul(r, tn_add(part(u, 2, n), c->b_n))));
        next = tn_add(fresh, tn_mul(z, tn_sub(h, fresh)));
    } else {
        next = tn_tanh(tn_add(x, u));
    }
    out[0] = next;
    if (is_lstm) out[1] = state;
    out[1 + is_lstm] = next;
    if (!c->lengths.id) return;
    tn_tensor on = tn_gt(c->lengths, in[2 + is_lstm]); /* a sequence that has ended keeps its state */
    out[0] = tn_select(on, next, h);
    if (is_lstm) out[1] = tn_select(on, state, in[1]);
    out[1 + is_lstm] = tn_select(on, next, tn_full(g, tn_tensor_dtype(next), TN_SCALAR, 0));
}

typedef struct layer {
    rnn_kind kind;
    int64_t steps, batch, hidden, wide; /* wide: of h */
    tn_tensor lengths, steps_list;      /* i64[B,1], i64[T]; or { 0 } */
    tn_nn_rnn_opts o;
    int n_dirs;
} layer;

/* Row i of given states [L*D,B,wide], or zeros. */
static tn_tensor initial(tn_graph *g, const layer *l, tn_tensor given, int i, tn_dtype t, int64_t wide) {
    if (!given.id) return tn_full(g, t, TN_DIMS(l->batch, wide), 0);
    tn_tensor row = tn_slice(given, (const int64_t[]){ i, 0, 0 }, (const int64_t[]){ i + 1, l->batch, wide }, NULL, 3);
    return tn_reshape(row, TN_DIMS(l->batch, wide));
}

/* x [T,B,I]. out: h and c at last, then h of all steps [T,B,R]. */
static void direction(const layer *l, tn_tensor x, int i, const char *name, tn_tensor *out) {
    tn_graph *g = x.graph;
    tn_dtype t = tn_tensor_dtype(x);
    tn_shape s = tn_tensor_shape(x);
    bool lstm = l->kind == KIND_LSTM;
    int64_t wide = n_gates[l->kind] * l->hidden, in = s.rank == 3 ? s.dim[2] : 1, last = 2;
    double bound = 1 / sqrt((double)l->hidden);
    cell c = { l->kind, l->hidden, .lengths = l->lengths, .clip = l->o.clip };
    tn_tensor w_x = nn_param(g, t, name, "w_x", TN_DIMS(in, wide), NN_UNIFORM, bound);
    c.w_h = nn_param(g, t, name, "w_h", TN_DIMS(l->wide, wide), NN_UNIFORM, bound);
    tn_tensor b = nn_param(g, t, name, "b", TN_DIMS(wide), NN_UNIFORM, bound);
    if (l->kind == KIND_GRU) c.b_n = nn_param(g, t, name, "b_n", TN_DIMS(l->hidden), NN_UNIFORM, bound);
    if (l->o.projection) c.w_r = nn_param(g, t, name, "w_r", TN_DIMS(l->hidden, l->wide), NN_UNIFORM, bound);
    if (l->o.peepholes) c.w_c = nn_param(g, t, name, "w_c", TN_DIMS(3, l->hidden), NN_UNIFORM, bound);
    tn_tensor pre = tn_dot(x, w_x, NULL, NULL, 0, &last, (const int64_t[]){ 0 }, 1);
    tn_tensor xs[2] = { tn_add(pre, b), l->steps_list }, carry[2];
    carry[0] = initial(g, l, l->o.h, i, t, l->wide);
    if (lstm) carry[1] = initial(g, l, l->o.c, i, t, l->hidden);
    tn_scan_opts o = { .carry = carry, .n_carry = 1 + lstm, .xs = xs, .n_xs = l->lengths.id ? 2 : 1, .n_ys = 1 };
    o.length = l->steps, o.reverse = i % l->n_dirs == 1, o.recompute = l->o.recompute;
    tn_scan(g, &o, step, &c, out);
    if (!lstm) out[2] = out[1], out[1] = (tn_tensor){ g, 0 };
}

/* Rows [B,wide] as [n,B,wide]. */
static tn_tensor rows_of(const layer *l, tn_tensor *rows, int n, int64_t wide) {
    for (int i = 0; i < n; i++) rows[i] = tn_reshape(rows[i], TN_DIMS(1, l->batch, wide));
    return n == 1 ? rows[0] : tn_concat(rows, n, 0);
}

enum { MOST_LAYERS = 32 };

static tn_tensor run(layer *l, tn_tensor x, const char *name) {
    tn_tensor h[2 * MOST_LAYERS], c[2 * MOST_LAYERS];
    int n = l->o.layers ? l->o.layers : 1;
    for (int i = 0; i < n; i++) {
        tn_tensor y[2];
        for (int d = 0; d < l->n_dirs; d++) {
            char full[300];
            tn_tensor out[3];
            snprintf(full, sizeof full, "%s/l%d%s", name, i, d ? "/back" : "");
            direction(l, x, i * l->n_dirs + d, full, out);
            h[i * l->n_dirs + d] = out[0], c[i * l->n_dirs + d] = out[1], y[d] = out[2];
        }
        x = l->n_dirs == 1 ? y[0] : tn_concat(y, 2, 2);
    }
    if (l->o.out_h) *l->o.out_h = rows_of(l, h, n * l->n_dirs, l->wide);
    if (l->o.out_c && l->kind == KIND_LSTM) *l->o.out_c = rows_of(l, c, n * l->n_dirs, l->hidden);
    return x;
}

static tn_tensor recurrent(rnn_kind kind, tn_tensor x, int64_t hidden, const char *name, tn_nn_rnn_opts o) {
    static const char *const names[] = { "tn_nn_rnn", "tn_nn_gru", "tn_nn_lstm" };
    tn_shape s, n;
    tn_graph *g = x.graph;
    if (o.out_h) *o.out_h = (tn_tensor){ g, 0 };
    if (o.out_c) *o.out_c = (tn_tensor){ g, 0 };
    if (!nn_check(x, names[kind], 3, &s)) return (tn_tensor){ g, 0 };
    if (s.rank != 3) return nn_fail(g, TN_ERR_SHAPE, "%s: expected x of rank 3, got rank %d", names[kind], s.rank);
    if (hidden < 1 || o.layers < 0 || o.layers > MOST_LAYERS)
        return nn_fail(g, TN_ERR_INVAL, "%s: %lld units, %d layers; expected 1 or more, and at most %d", names[kind],
                       (long long)hidden, o.layers, MOST_LAYERS);
    if (kind != KIND_LSTM && (o.projection || o.peepholes || o.clip != 0))
        return nn_fail(g, TN_ERR_INVAL, "%s: projection, peepholes and clip are options of tn_nn_lstm", names[kind]);
    if (o.projection < 0 || !(o.clip >= 0))
        return nn_fail(g, TN_ERR_INVAL, "%s: projection %lld, clip %g; expected 0 or more", names[kind],
                       (long long)o.projection, o.clip);
    if (!name || !*name || strlen(name) > 250) return nn_fail(g, TN_ERR_INVAL, "%s: expected a name", names[kind]);
    if (o.batch_first) x = tn_transpose(x, 0, 1);
    layer l = { kind,
                s.dim[o.batch_first],
                s.dim[!o.batch_first],
                hidden,
                o.projection ? o.projection : hidden,
                .o = o,
                .n_dirs = o.bidirectional ? 2 : 1 };
    if (o.lengths.graph) {
        n = tn_tensor_shape(o.lengths);
        if (n.rank != 1 || n.dim[0] != l.batch)
            return nn_fail(g, TN_ERR_SHAPE, "%s: expected lengths of shape [%lld]", names[kind], (long long)l.batch);
        l.lengths = tn_reshape(tn_cast(o.lengths, TN_I64), TN_DIMS(l.batch, 1));
        l.steps_list = tn_iota(g, TN_I64, TN_DIMS(l.steps), 0);
    }
    tn_tensor y = run(&l, x, name);
    return o.batch_first ? tn_transpose(y, 0, 1) : y;
}

tn_tensor(tn_nn_rnn)(tn_tensor x, int64_t hidden, const char *name, tn_nn_rnn_opts o) {
    return recurrent(KIND_RNN, x, hidden, name, o);
}
tn_tensor(tn_nn_gru)(tn_tensor x, int64_t hidden, const char *name, tn_nn_rnn_opts o) {
    return recurrent(KIND_GRU, x, hidden, name, o);
}
tn_tensor(tn_nn_lstm)(tn_tensor x, int64_t hidden, const char *name, tn_nn_rnn_opts o) {
    return recurrent(KIND_LSTM, x, hidden, name, o);
}
