/* test_dynamic_training.c - training with symbolic dims: losses and weights of a program for a range of sizes, against the
 * evaluator and programs for each size alone, in every mode that serves dims; what has no gradient there says so.
 *
 * Labels: long */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/api.h"
#include "ir/kernel.h"
#include "support/support.h"
#include "tenon/tenon_nn.h"

enum { BATCH = 40, LENGTH = 19, CLASSES = 7, WORDS = 11, STEPS = 3, MOST = 1 << 12 };

/* ---- networks: the loss; inputs "x", of f32 or words, and labels "t" ---- */

typedef tn_tensor (*network)(tn_graph *g, int64_t batch, int64_t length);

static tn_tensor mlp(tn_graph *g, int64_t batch, int64_t length) {
    (void)length;
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, 37));
    tn_tensor h = tn_tanh(tn_nn_layer_norm(tn_nn_linear(tn_relu(tn_nn_linear(x, 64, "fc1")), 33, "fc2"), 0, "n"));
    return tn_nn_cross_entropy(tn_nn_linear(h, CLASSES, "fc3"), tn_input(g, "t", TN_I32, TN_DIMS(batch)));
}

/* Words and their places, one causal layer, the loss of each next word. */
static tn_tensor next_words(tn_tensor words, int64_t batch, int64_t length) {
    tn_tensor qkv[3];
    tn_graph *g = words.graph;
    tn_tensor place = tn_nn_embedding(tn_iota(g, TN_I32, TN_DIMS(length), 0), LENGTH, 12, "places");
    tn_tensor x = tn_add(tn_nn_embedding(words, WORDS, 12, "words"), place), h = tn_nn_layer_norm(x, 0, "n1");
    static const char *const names[] = { "q", "k", "v" };
    for (int i = 0; i < 3; i++)
        qkv[i] = tn_transpose(tn_reshape(tn_nn_linear(h, 12, names[i]), TN_DIMS(batch, length, 3, 4)), 1, 2);
    tn_tensor a = tn_transpose(tn_nn_attention(qkv[0], qkv[1], qkv[2], 1), 1, 2);
    x = tn_add(x, tn_nn_linear(tn_reshape(a, TN_DIMS(batch, length, 12)), 12, "o"));
    x = tn_add(x, tn_nn_linear(tn_tanh(tn_nn_linear(tn_nn_layer_norm(x, 0, "n2"), 24, "up")), 12, "down"));
    return tn_nn_linear(x, WORDS, "head");
}
static tn_tensor transformer(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = next_words(tn_input(g, "x", TN_I32, TN_DIMS(batch, length)), batch, length);
    return tn_nn_cross_entropy(x, tn_input(g, "t", TN_I32, TN_DIMS(batch, length)));
}
/* As users write it: all places but the last, all words but the first. Halves and the last change places on the way. */
static tn_tensor by_slices(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = next_words(tn_input(g, "x", TN_I32, TN_DIMS(batch, length)), batch, length), part[3];
    int64_t half = tn_dim_floor_div(g, length, 2);
    part[0] = tn_slice_axis(x, 1, half, -1, 1), part[1] = tn_slice_axis(x, 1, 0, half, 1),
    part[2] = tn_slice_axis(x, 1, -1, TN_END, 1);
    x = tn_add(x, tn_tanh(tn_concat(part, 3, 1)));
    tn_tensor t = tn_input(g, "t", TN_I32, TN_DIMS(batch, length));
    return tn_nn_cross_entropy(tn_slice_axis(x, 1, 0, -1, 1), tn_slice_axis(t, 1, 1, TN_END, 1));
}

static tn_tensor pictures(tn_graph *g, int64_t batch, int64_t length) {
    (void)length;
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, 9, 8, 1));
    x = tn_relu(tn_nn_conv2d(x, (tn_nn_conv_opts){ .out_channels = 5, .kernel = { 3, 3 }, .padding = { 1, 1 } }, "c1"));
    x = tn_nn_max_pool(x, (tn_nn_pool_opts){ .kernel = { 2, 2 } });
    x = tn_relu(tn_nn_conv2d(x, (tn_nn_conv_opts){ .out_channels = 6, .kernel = { 3, 3 }, .stride = { 2, 2 } }, "c2"));
    x = tn_mean(x, TN_INTS(1, 2), 0);
    return tn_nn_cross_entropy(tn_nn_linear(x, CLASSES, "fc"), tn_input(g, "t", TN_I32, TN_DIMS(batch)));
}

/* Both directions of one layer, then another one, with the gates' bodies in loops of as many iterations as a run has words. */
static tn_tensor recurrent(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = tn_nn_embedding(tn_input(g, "x", TN_I32, TN_DIMS(batch, length)), WORDS, 6, "words");
    x = tn_nn_lstm(x, 9, "lstm", (tn_nn_rnn_opts){ .batch_first = true, .bidirectional = true });
    x = tn_nn_gru(x, 7, "gru", (tn_nn_rnn_opts){ .batch_first = true });
    return tn_nn_cross_entropy(tn_nn_linear(x, WORDS, "head"), tn_input(g, "t", TN_I32, TN_DIMS(batch, length)));
}

/* An if, a while with a bound, and a scan that computes again, each of the batch's rows. */
static tn_tensor small_rows; /* what the bodies capture */
static void scaled(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g, (void)ud, (void)in;
    out[0] = tn_tanh(small_rows);
}
static void squared(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g, (void)ud, (void)in;
    out[0] = tn_mul(small_rows, small_rows);
}
static void is_small(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)ud;
    out[0] = tn_lt(tn_sum(tn_mul(in[0], in[0]), TN_ALL_AXES, 0), tn_full(g, TN_F32, TN_SCALAR, 1e4));
}
static void grown(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g, (void)ud;
    out[0] = tn_add(in[0], tn_sin(tn_mul(in[0], small_rows)));
}
static void decayed(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)ud;
    out[0] = tn_tanh(tn_add(tn_mul(in[0], tn_full(g, TN_F32, TN_SCALAR, 0.5)), in[1]));
    out[1] = tn_exp(tn_neg(out[0]));
}
static tn_tensor branches(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, 37)), h = tn_nn_linear(x, 10, "fc1"), out[2];
    (void)length;
    small_rows = h;
    tn_tensor some = tn_gt(tn_sum(x, TN_ALL_AXES, 0), tn_full(g, TN_F32, TN_SCALAR, 0));
    h = tn_if(some, scaled, squared, NULL, NULL, 1);
    h = tn_while(g, &h, 1, is_small, grown, NULL, 3, NULL);
    tn_tensor stack = tn_transpose(tn_reshape(h, TN_DIMS(batch, 5, 2)), 0, 1);
    tn_tensor first = tn_full(g, TN_F32, TN_DIMS(batch, 2), 0.1);
    tn_scan(g, &(tn_scan_opts){ .carry = &first, .n_carry = 1, .xs = &stack, .n_xs = 1, .n_ys = 1, .recompute = 1 }, decayed,
            NULL, out);
    h = tn_reshape(tn_transpose(out[1], 0, 1), TN_DIMS(batch, 10));
    h = tn_concat((tn_tensor[]){ h, out[0] }, 2, 1);
    return tn_nn_cross_entropy(tn_nn_linear(h, CLASSES, "fc2"), tn_input(g, "t", TN_I32, TN_DIMS(batch)));
}

/* A search along beams: in each step of a loop the best continuations of all, with what they continue. */
typedef struct beams {
    int64_t batch, width;
    tn_tensor table, next;
} beams;
static void extended(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    const beams *b = ud;
    tn_tensor h = tn_tanh(tn_matmul(tn_add(in[1], tn_gather(b->table, in[2], 0)), b->next)), at;
    tn_tensor all = tn_add(tn_nn_log_softmax(h, -1), tn_reshape(in[0], TN_DIMS(b->batch, b->width, 1)));
    all = tn_reshape(all, TN_DIMS(b->batch, tn_dim_mul(g, b->width, 6)));
    out[0] = tn_top_k(all, b->width, 1, 1, &at);
    tn_tensor from = tn_floor_div(at, tn_full(g, TN_I64, TN_SCALAR, 6)),
              shape = tn_reshape(from, TN_DIMS(b->batch, b->width, 1));
    out[1] = tn_take_along(h, tn_expand(shape, TN_DIMS(b->batch, b->width, 6)), 1);
    tn_tensor first = tn_reshape(tn_slice_axis(from, 0, 0, 1, 1), TN_DIMS(b->width));
    out[1] = tn_scatter_set(out[1], first, tn_neg(tn_gather(out[1], first, 1)), 1);
    out[2] = tn_sub(at, tn_mul_scalar(from, 6));
}
static tn_tensor searched(tn_graph *g, int64_t batch, int64_t length) {
    beams b = { batch, length, .table = tn_nn_embedding(tn_iota(g, TN_I32, TN_DIMS(6), 0), 6, 6, "words") };
    b.next = tn_nn_embedding(tn_iota(g, TN_I32, TN_DIMS(6), 0), 6, 6, "next");
    tn_tensor x = tn_nn_embedding(tn_input(g, "x", TN_I32, TN_DIMS(batch, length)), WORDS, 6, "text"), best[3], last[3];
    x = tn_mean(x, TN_INTS(1), 0);
    best[0] = tn_mul_scalar(tn_iota(g, TN_F32, TN_DIMS(batch, length), 1), -0.01);
    best[1] = tn_expand(tn_reshape(x, TN_DIMS(batch, 1, 6)), TN_DIMS(batch, length, 6));
    best[2] = tn_iota(g, TN_I64, TN_DIMS(batch, length), 1);
    tn_scan(g, &(tn_scan_opts){ .carry = best, .n_carry = 3, .length = 3 }, extended, &b, last);
    tn_tensor loss =
        tn_nn_cross_entropy(tn_nn_linear(last[1], WORDS, "head"), tn_input(g, "t", TN_I32, TN_DIMS(batch, length)));
    return tn_sub(loss, tn_mean(last[0], TN_ALL_AXES, 0));
}

/* Rows of words that are picked, and added up, by place: tables of as many rows as a run has words. */
static tn_tensor picked(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor words = tn_input(g, "x", TN_I32, TN_DIMS(batch, length)), x = tn_nn_embedding(words, WORDS, 6, "words");
    tn_tensor rows = tn_tanh(tn_reshape(x, TN_DIMS(-1, 6))), y = tn_gather(rows, words, 0),
              at = tn_slice_axis(words, 0, 0, 1, 1);
    at = tn_reshape(at, TN_DIMS(-1));
    y = tn_add(y, tn_scatter_add(tn_neg(x), at, tn_gather(x, at, 1), 1));
    y = tn_add(y, tn_reshape(tn_scatter_set(rows, at, tn_gather(tn_neg(rows), at, 0), 0), TN_DIMS(batch, length, 6)));
    return tn_nn_cross_entropy(tn_nn_linear(y, WORDS, "head"), tn_input(g, "t", TN_I32, TN_DIMS(batch, length)));
}

/* Products over the rows of a run, of factors near 1. */
static tn_tensor factors(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, 37)), h = tn_mul_scalar(tn_tanh(tn_nn_linear(x, 6, "fc1")), 0.1);
    (void)length;
    h = tn_mul(h, tn_prod(tn_add_scalar(h, 1), TN_INTS(0), 1));
    return tn_nn_cross_entropy(tn_nn_linear(h, CLASSES, "fc2"), tn_input(g, "t", TN_I32, TN_DIMS(batch)));
}

/* Windows along the words: of a convolution, and of pooling, some of whose windows are over both ends. */
static tn_tensor neighbours(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = tn_nn_embedding(tn_input(g, "x", TN_I32, TN_DIMS(batch, length)), WORDS, 6, "words");
    tn_nn_conv_opts conv = { .out_channels = 5, .kernel = { 3 }, .padding = { 1 } };
    tn_tensor y = tn_tanh(tn_nn_conv1d(x, conv, "c1")), z[2];
    z[0] = tn_nn_max_pool(y, (tn_nn_pool_opts){ .kernel = { 3 }, .stride = { 2 }, .padding = { 1 } });
    conv.dilation[0] = conv.padding[0] = 2, conv.stride[0] = 3;
    z[1] = tn_nn_conv1d(z[0], conv, "c2");
    y = tn_add(y, tn_mean(tn_concat(z, 2, 1), TN_INTS(1), 1));
    return tn_nn_cross_entropy(tn_nn_linear(y, WORDS, "head"), tn_input(g, "t", TN_I32, TN_DIMS(batch, length)));
}

static const struct {
    const char *name;
    network of;
    bool has_words;
    int64_t least; /* words */
} networks[] = { { "mlp", mlp, false, 1 },
                 { "transformer", transformer, true, 1 },
                 { "pictures", pictures, false, 1 },
                 { "by_slices", by_slices, true, 2 },
                 { "recurrent", recurrent, true, 1 },
                 { "branches", branches, false, 1 },
                 { "searched", searched, true, 1 },
                 { "picked", picked, true, 1 },
                 { "factors", factors, false, 1 },
                 { "neighbours", neighbours, true, 1 } };

static const struct {
    tn_mode mode;
    int fusion;
} modes[] = { { TN_MODE_IMMEDIATE, -1 }, { TN_MODE_GRAPH, -1 },   { TN_MODE_COMPILED, 0 },
              { TN_MODE_COMPILED, 2 },   { TN_MODE_COMPILED, 3 }, { TN_MODE_LOOP, -1 } };

/* TENON_DEVICE: dynamic programs run there, what they are compared with on the CPU. */
static const char *on_device(void) { return test_device_is_cpu() ? NULL : test_device(); }

static const int64_t sizes[][2] = { { 1, 1 }, { 40, 19 }, { 7, 5 }, { 16, 8 }, { 33, 1 }, { 1, 16 } };

/* ---- one training step after the other ---- */

static float pixels[BATCH * 72];
static int32_t words[BATCH * LENGTH], labels[BATCH * LENGTH];

static tn_graph *training(tn_ctx *ctx, size_t n, int64_t batch, int64_t length) {
    tn_graph *g = tn_graph_new(ctx, networks[n].name);
    bool dims = batch == 0;
    if (dims)
        batch = tn_dim(g, "batch", 1, BATCH, 1),
        length = networks[n].has_words ? tn_dim(g, "length", networks[n].least, LENGTH, 1) : 1;
    tn_tensor loss = networks[n].of(g, batch, length);
    if (n == 0) /* a large eps: what rounding leaves of a gradient that should be 0 makes no step */
        tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 0.02, .eps = 0.01 });
    else
        tn_nn_sgd(loss, (tn_nn_sgd_opts){ .lr = 0.1, .momentum = 0.9 });
    tn_output(loss, "loss");
    return g;
}

static tn_session *session_of(tn_graph *g, size_t m, const char *device, tn_program **p) {
    tn_session *s;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = modes[m].mode, o.fusion = modes[m].fusion, o.threads = 2, o.check = 1;
    if (device) o.device = device, o.threads = 0;
    if (tn_compile(g, &o, p) || tn_session_new(*p, &s)) fail_msg("%s", tn_ctx_error(tn_graph_ctx(g)));
    return s;
}

static float step(tn_session *s, void *x) {
    float loss;
    if (tn_run(s, TN_BIND({ "x", x }, { "t", labels }, { "loss", &loss }))) fail_msg("%s", tn_session_error(s));
    return loss;
}

/* The loss before any step, by the evaluator. */
static double evaluated(const tn_graph *g, const int64_t *size, const void *x) {
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    graph *at = graph_at(g->ir, size, &a);
    eval_value *in = ARENA_ARRAY(&a, eval_value, at->inputs.n);
    for (int i = 0; i < at->inputs.n; i++) {
        val v = at->inputs.at[i];
        const node *n = graph_get(at, v);
        if (n->op == OP_input) in[i] = eval_load(at, &a, v, n->name[0] == 't' ? (const void *)labels : x);
    }
    double loss = eval_graph(at, &a, in)[at->outputs.at[graph_find_output(at, "loss")].v].f[0];
    arena_fini(&a);
    return loss;
}

static void same_weights(tn_session *dynamic, tn_session *literal, const tn_graph *g, const char *what) {
    static float got[MOST], want[MOST];
    for (int i = 0; i < g->ir->inputs.n; i++) {
        const node *n = graph_get(g->ir, g->ir->inputs.at[i]);
        size_t elems = (size_t)graph_elems(g->ir, g->ir->inputs.at[i]);
        if (n->op != OP_state || n->dtype != TN_F32) continue;
        assert_true(elems <= MOST);
        assert_int_equal(tn_session_get(dynamic, n->name, got, elems * sizeof *got), TN_OK);
        assert_int_equal(tn_session_get(literal, n->name, want, elems * sizeof *got), TN_OK);
        for (size_t k = 0; k < elems; k++)
            if (!(fabsf(got[k] - want[k]) <= 1e-4f * (0.1f + fabsf(want[k]))))
                fail_msg("%s: element %zu of %s is %.9g, not %.9g", what, k, n->name, (double)got[k], (double)want[k]);
    }
}

static void check_size(tn_ctx *ctx, size_t n, size_t m, tn_program *p, const tn_graph *g, const int64_t *size) {
    tn_session *s, *alone;
    tn_program *literal;
    tn_graph *h = training(ctx, n, size[0], size[1]);
    void *x = networks[n].has_words ? (void *)words : pixels;
    char what[128];
    snprintf(what, sizeof what, "%s, mode %d, fusion %d, batch %d, length %d", networks[n].name, (int)modes[m].mode,
             modes[m].fusion, (int)size[0], (int)size[1]);
    alone = session_of(h, m, NULL, &literal);
    assert_int_equal(tn_session_new(p, &s), TN_OK);
    assert_int_equal(tn_bind_dim(s, "batch", size[0]), TN_OK);
    if (networks[n].has_words) assert_int_equal(tn_bind_dim(s, "length", size[1]), TN_OK);
    double first = evaluated(g, size, x);
    for (int i = 0; i < STEPS; i++) {
        double got = (double)step(s, x), want = (double)step(alone, x);
        if (!(fabs(got - want) <= 1e-5 * (1 + fabs(want)))) fail_msg("%s: loss %d is %.9g, not %.9g", what, i, got, want);
        if (i == 0 && !(fabs(got - first) <= 1e-5 * (1 + fabs(first)))) fail_msg("%s: %.9g, not %.9g", what, got, first);
    }
    same_weights(s, alone, g, what);
    tn_session_free(s), tn_session_free(alone), tn_program_free(literal), tn_graph_free(h);
}

static void test_training(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    rng r = rng_make(5);
    for (int i = 0; i < BATCH * 72; i++) pixels[i] = (float)rng_range(&r, -2, 2);
    for (int i = 0; i < BATCH * LENGTH; i++)
        words[i] = (int32_t)rng_below(&r, WORDS), labels[i] = (int32_t)rng_below(&r, CLASSES);
    for (size_t n = 0; n < COUNT_OF(networks); n++)
        for (size_t m = 0; m < COUNT_OF(modes); m++) {
            tn_program *p;
            tn_graph *g = training(ctx, n, 0, 0);
            tn_session *s = session_of(g, m, on_device(), &p);
            for (size_t i = 0; i < COUNT_OF(sizes); i++)
                if (sizes[i][1] >= networks[n].least && campaign_has(n + m + i, 3)) check_size(ctx, n, m, p, g, sizes[i]);
            tn_session_free(s), tn_program_free(p), tn_graph_free(g);
        }
    tn_ctx_free(ctx);
}

int main(int argc, char **argv) { /* a pattern of tests */
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_training) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
