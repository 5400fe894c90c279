/* test_rnn.c - tn_nn_rnn, tn_nn_gru and tn_nn_lstm against the same recurrence step by step in double: values in the evaluator
 * and in compiled programs, gradients against central differences of that recurrence; several layers, both directions, lengths,
 * batch first, gradients that compute again; LSTMs with projections, peepholes and a clipped state. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"

#include "tenon/tenon_ir.h"
#include "tenon/tenon_nn.h"

#include "drive/objects.h"
#include "eval/eval.h"

#include <math.h>
#include <stdio.h>

enum { T = 4, B = 3, I = 2, H = 3, MOST = 256, MOST_PARAMS = 24 };

typedef struct net { /* what the recurrence below is made of */
    int kind, layers, dirs;
    bool lengths, batch_first, peepholes;
    int projection; /* 0: none */
    double clip;
    double x[T * B * I], *p[MOST_PARAMS];
    int n_params, next;
} net;

static double sigmoid(double v) { return 1 / (1 + exp(-v)); }

/* One direction over x [T][B][in] to y [T][B][wide], from column `at` on. */
static void direction(net *n, const double *x, int in, bool back, double *y, int wide, int at) {
    static const int gates[] = { 1, 3, 4 }, length[B] = { T, 2, 0 };
    int g = gates[n->kind] * H;
    const double *w_x = n->p[n->next++], *w_h = n->p[n->next++], *b = n->p[n->next++],
                 *b_n = n->kind == 1 ? n->p[n->next++] : NULL, *w_r = n->projection ? n->p[n->next++] : NULL,
                 *w_c = n->peepholes ? n->p[n->next++] : NULL;
    int units = n->projection ? n->projection : H;
    for (int r = 0; r < B; r++) {
        double h[H] = { 0 }, c[H] = { 0 }, cell[H] = { 0 };
        for (int i = 0; i < T; i++) {
            int t = back ? T - 1 - i : i;
            double px[4 * H], pu[4 * H], old[H];
            memcpy(old, h, sizeof h);
            for (int k = 0; k < units; k++) y[(t * B + r) * wide + at + k] = 0;
            if (n->lengths && t >= length[r]) continue;
            for (int k = 0; k < g; k++) {
                px[k] = b[k], pu[k] = 0;
                for (int j = 0; j < in; j++) px[k] += x[(t * B + r) * in + j] * w_x[j * g + k];
                for (int j = 0; j < units; j++) pu[k] += old[j] * w_h[j * g + k];
            }
            for (int k = 0; k < H; k++) {
                if (n->kind == 0) {
                    h[k] = tanh(px[k] + pu[k]);
                } else if (n->kind == 1) {
                    double reset = sigmoid(px[k] + pu[k]), z = sigmoid(px[H + k] + pu[H + k]);
                    double fresh = tanh(px[2 * H + k] + reset * (pu[2 * H + k] + b_n[k]));
                    h[k] = (1 - z) * fresh + z * old[k];
                } else {
                    double v[4];
                    for (int q = 0; q < 4; q++) v[q] = px[q * H + k] + pu[q * H + k];
                    for (int q = 0; q < 2 && w_c; q++) v[q] += c[k] * w_c[q * H + k];
                    c[k] = sigmoid(v[1]) * c[k] + sigmoid(v[0]) * tanh(v[2]);
                    if (n->clip > 0) c[k] = fmax(fmin(c[k], n->clip), -n->clip);
                    if (w_c) v[3] += c[k] * w_c[2 * H + k];
                    h[k] = sigmoid(v[3]) * tanh(c[k]);
                }
            }
            memcpy(cell, h, sizeof h);
            for (int k = 0; k < n->projection; k++) {
                h[k] = 0;
                for (int j = 0; j < H; j++) h[k] += cell[j] * w_r[j * n->projection + k];
            }
            for (int k = 0; k < units; k++) y[(t * B + r) * wide + at + k] = h[k];
        }
    }
}

static double weight(int i) { return sin(1.0 + 2.5 * i); }

/* The weighted sum of all results, which are y [T][B][dirs * H]. */
static double recurrence(net *n, double *y) {
    double x[T * B * 2 * H];
    int units = n->projection ? n->projection : H, in = I, wide = n->dirs * units;
    double loss = 0;
    memcpy(x, n->x, sizeof n->x);
    n->next = 0;
    for (int l = 0; l < n->layers; l++) {
        for (int d = 0; d < n->dirs; d++) direction(n, x, in, d, y, wide, d * units);
        memcpy(x, y, sizeof *y * (size_t)(T * B * wide));
        in = wide;
    }
    for (int i = 0; i < T * B * wide; i++) loss += y[i] * weight(i);
    return loss;
}

static double difference(net *n, double *at) {
    double y[MOST], was = *at, f[2];
    for (int i = 0; i < 2; i++) {
        *at = was + (i ? 1e-5 : -1e-5);
        f[i] = recurrence(n, y);
    }
    *at = was;
    return (f[1] - f[0]) / 2e-5;
}

/* Results [T,B,..] as the graph has them. */
static void swap_batch(const double *from, double *to, int wide, bool batch_first) {
    for (int t = 0; t < T; t++)
        for (int b = 0; b < B; b++)
            for (int k = 0; k < wide; k++)
                to[batch_first ? (b * T + t) * wide + k : (t * B + b) * wide + k] = from[(t * B + b) * wide + k];
}

static void check_net(tn_ctx *ctx, net n, int recompute) {
    tn_graph *g = tn_graph_new(ctx, "rnn");
    tn_tensor (*const builders[])(tn_tensor, int64_t, const char *, tn_nn_rnn_opts) = { (tn_nn_rnn), (tn_nn_gru),
                                                                                        (tn_nn_lstm) };
    int wide = n.dirs * (n.projection ? n.projection : H);
    double want[MOST], w[MOST], laid[MOST], x[T * B * I];
    for (int i = 0; i < T * B * I; i++) n.x[i] = cos(0.7 * i);
    for (int i = 0; i < T * B * wide; i++) w[i] = weight(i);
    swap_batch(n.x, x, I, n.batch_first);
    swap_batch(w, laid, wide, n.batch_first);
    tn_shape xs = n.batch_first ? TN_DIMS(B, T, I) : TN_DIMS(T, B, I),
             ys = n.batch_first ? TN_DIMS(B, T, wide) : TN_DIMS(T, B, wide);
    tn_tensor in[1 + MOST_PARAMS], d[1 + MOST_PARAMS];
    tn_nn_rnn_opts o = {
        .layers = n.layers, .bidirectional = n.dirs == 2, .batch_first = n.batch_first, .recompute = recompute
    };
    o.projection = n.projection, o.peepholes = n.peepholes, o.clip = n.clip;
    in[0] = tn_state(g, "x", TN_F64, xs, x);
    if (n.lengths) o.lengths = tn_const(g, TN_I32, TN_DIMS(B), (int32_t[]){ T, 2, 0 });
    tn_tensor y = builders[n.kind](in[0], H, "r", o);
    tn_tensor loss = tn_sum(tn_mul(y, tn_const(g, TN_F64, ys, laid)), NULL, -1, 0);
    n.n_params = tn_graph_n_params(g);
    assert_true(n.n_params <= MOST_PARAMS);
    for (int i = 0; i < n.n_params; i++) in[1 + i] = tn_graph_param(g, i);
    if (tn_grad(loss, in, 1 + n.n_params, d)) fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 0; i < n.n_params; i++) {
        double *p = test_calloc(MOST, sizeof *p);
        memcpy(p, graph_get(g->ir, in[1 + i].id)->data, tn_tensor_bytes(in[1 + i]));
        n.p[i] = p;
    }
    recurrence(&n, want);
    /* the evaluator and the compiled program */
    arena a;
    arena_init(&a, mem_libc(), NULL);
    eval_value *v = eval_graph(g->ir, &a, NULL);
    tn_output(y, "y");
    for (int i = 0; i <= n.n_params; i++) {
        char name[16];
        snprintf(name, sizeof name, "d%d", i);
        tn_output(d[i], name);
    }
    tn_program *p;
    tn_session *s;
    if (tn_compile(g, NULL, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    double got[1 + MOST_PARAMS + 1][MOST];
    for (int i = 0; i < n.n_params + 2; i++) assert_int_equal(tn_session_bind(s, i, got[i]), TN_OK);
    if (tn_session_run(s)) fail_msg("%s", tn_session_error(s));
    swap_batch(want, laid, wide, n.batch_first);
    for (int i = 0; i < T * B * wide; i++) {
        assert_float_equal(v[y.id].f[i], laid[i], 1e-12);
        assert_float_equal(got[0][i], laid[i], 1e-12);
    }
    for (int k = 0; k <= n.n_params; k++)
        for (int64_t i = 0; i < (int64_t)tn_tensor_bytes(in[k]) / 8; i++) {
            double *at = k ? &n.p[k - 1][i] : &n.x[i];
            if (k == 0 && n.batch_first) at = &n.x[(i / I % T * B + i / I / T) * I + i % I];
            double slope = difference(&n, at);
            assert_float_equal(v[d[k].id].f[i], slope, 1e-7);
            assert_float_equal(got[1 + k][i], v[d[k].id].f[i], 1e-12);
        }
    arena_fini(&a);
    tn_session_free(s);
    tn_program_free(p);
    for (int i = 0; i < n.n_params; i++) test_free(n.p[i]);
    tn_graph_free(g);
}

static void test_layers(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    for (int kind = 0; kind < 3; kind++) {
        check_net(ctx, (net){ .kind = kind, .layers = 1, .dirs = 1 }, 0);
        check_net(ctx, (net){ .kind = kind, .layers = 2, .dirs = 2, .batch_first = true }, 1);
        check_net(ctx, (net){ .kind = kind, .layers = 1, .dirs = 2, .lengths = true }, 0);
    }
    check_net(ctx, (net){ .kind = 2, .layers = 2, .dirs = 1, .projection = 2 }, 0);
    check_net(ctx, (net){ .kind = 2, .layers = 1, .dirs = 2, .peepholes = true, .lengths = true }, 0);
    check_net(ctx, (net){ .kind = 2, .layers = 1, .dirs = 1, .clip = 0.2 }, 0);
    check_net(ctx,
              (net){ .kind = 2, .layers = 2, .dirs = 2, .projection = 1, .peepholes = true, .clip = 0.25, .batch_first = true },
              1);
    tn_ctx_free(ctx);
}

static void test_wrong(void **state) {
    (void)state;
    for (int i = 0; i < 7; i++) {
        tn_ctx *ctx = test_ctx();
        tn_graph *g = tn_graph_new(ctx, "rnn");
        tn_tensor x = tn_input(g, "x", TN_F32, i == 0 ? TN_DIMS(2, 3) : TN_DIMS(T, B, I)), h;
        tn_nn_rnn_opts o = { .out_h = &h };
        if (i == 3) o.lengths = tn_input(g, "n", TN_I32, TN_DIMS(B + 1));
        if (i == 4) o.projection = -1;
        if (i == 5) o.clip = -1;
        if (i == 6)
            assert_int_equal(tn_nn_gru(x, H, "r", (tn_nn_rnn_opts){ .out_h = &h, .peepholes = 1 }).id, 0);
        else
            assert_int_equal(tn_nn_lstm(x, i == 1 ? 0 : H, i == 2 ? NULL : "r", o).id, 0);
        assert_int_equal(tn_graph_status(g), i == 0 || i == 3 ? TN_ERR_SHAPE : TN_ERR_INVAL);
        assert_int_equal(h.id, 0);
        tn_graph_free(g);
        tn_ctx_free(ctx);
    }
}

/* Gradients through time keep the last of what elementwise ops make of a product or its parts: of an RNN its states, which are
 * its results, beside the states before; of an LSTM the four gates, and both states before. What the steps add is not read
 * again. */
static void test_kept(void **state) {
    (void)state;
    static const struct {
        int kind;
        const char *has; /* the reverse loop: adjoints of the steps, and what is kept of them */
    } of[] = { { 0, "carry=1 steps=2 length=4 reverse" }, { 2, "carry=2 steps=6 length=4 reverse" } };
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        tn_ctx *ctx = test_ctx();
        tn_graph *g = tn_graph_new(ctx, "rnn");
        tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(T, B, I)), y, d;
        y = of[i].kind ? tn_nn_lstm(x, H, "r", (tn_nn_rnn_opts){ 0 }) : tn_nn_rnn(x, H, "r", (tn_nn_rnn_opts){ 0 });
        char *text;
        assert_int_equal(tn_grad(tn_sum(tn_mul(y, y), TN_INTS(0, 1, 2), 0), &x, 1, &d), TN_OK);
        tn_output(d, "d");
        assert_int_equal(tn_graph_print(g, &text), TN_OK);
        if (!strstr(text, of[i].has)) fail_msg("kind %d keeps other values:\n%s", of[i].kind, text);
        tn_string_free(ctx, text);
        tn_graph_free(g);
        tn_ctx_free(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_layers), cmocka_unit_test(test_kept),
                                        cmocka_unit_test(test_wrong) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
