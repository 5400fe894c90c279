/* test_traffic.c - softmax, losses and norms, forward and backward: how often what they work on goes through memory, by the
 * program's own count. What is normalised row by row goes once; a batch that is normalised by its columns is read for each of
 * its statistics and once more, and never stored in between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tenon/tenon.h"
#include "tenon/tenon_nn.h"

enum { N = 8, H = 16, W = 16, C = 512, ROWS = N * H * W };

static tn_tensor softmax(tn_tensor x) { return tn_nn_softmax(x, -1); }
static tn_tensor log_softmax(tn_tensor x) { return tn_nn_log_softmax(x, -1); }
static tn_tensor layer_norm(tn_tensor x) { return tn_nn_layer_norm(x, 0, "norm"); }
static tn_tensor rms_norm(tn_tensor x) { return tn_nn_rms_norm(x, 0, "norm"); }
static tn_tensor group_norm(tn_tensor x) { return tn_nn_group_norm(x, 32, 0, "norm"); }
static tn_tensor batch_norm(tn_tensor x) { return tn_nn_batch_norm(x, (tn_nn_batch_norm_opts){ 0 }, "norm"); }
static tn_tensor cross_entropy(tn_tensor x) {
    return tn_nn_cross_entropy(x, tn_input(x.graph, "labels", TN_I32, TN_DIMS(N, H, W)));
}

typedef struct work {
    const char *name;
    tn_tensor (*build)(tn_tensor x);
    double read[2], written[2]; /* in passes over x: forward; backward, where what comes from behind is read, too */
} work;
static const work works[] = {
    { "softmax", softmax, { 1, 2 }, { 1, 1 } },       { "log-softmax", log_softmax, { 1, 2 }, { 1, 1 } },
    { "layer norm", layer_norm, { 1, 2 }, { 1, 1 } }, { "RMS norm", rms_norm, { 1, 2 }, { 1, 1 } },
    { "batch norm", batch_norm, { 3, 4 }, { 1, 1 } }, { "cross-entropy", cross_entropy, { 1, 1 }, { 0, 1 } },
    { "group norm", group_norm, { 1, 2 }, { 1, 1 } },
};

static void count(tn_ctx *ctx, const work *w, int backward, int threads) {
    tn_graph *g = tn_graph_new(ctx, "traffic");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(N, H, W, C)), y = w->build(x), dx;
    if (!backward) {
        tn_output(y, "y");
    } else {
        tn_tensor loss = y;
        if (tn_tensor_shape(y).rank) {
            loss = tn_sum(tn_mul(y, tn_input(g, "dy", TN_F32, TN_DIMS(N, H, W, C))), TN_INTS(0, 1, 2, 3), 0);
        }
        if (tn_grad(loss, &x, 1, &dx)) fail_msg("%s", tn_ctx_error(ctx));
        tn_output(dx, "dx");
    }
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_program_stats facts;
    o.threads = threads;
    if (tn_compile(g, &o, &p)) fail_msg("%s", tn_ctx_error(ctx));
    tn_program_get_stats(p, &facts);
    double pass = (double)ROWS * C * sizeof(float);
    double read = (double)facts.bytes_read / pass, written = (double)facts.bytes_written / pass;
    printf("count: %s, %s: %.2f passes read, %.2f written\n", w->name, backward ? "backward" : "forward", read, written);
    if (read > w->read[backward] + 0.1 || written > w->written[backward] + 0.1)
        fail_msg("%.0f and %.0f are enough", w->read[backward], w->written[backward]);
    tn_program_free(p), tn_graph_free(g);
}

static void test_traffic(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(&(tn_config){ .struct_size = sizeof(tn_config) });
    for (size_t i = 0; i < sizeof works / sizeof *works; i++)
        for (int backward = 0; backward < 2; backward++)
            for (int threads = 1; threads < 3; threads++) count(ctx, &works[i], backward, threads);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_traffic) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
