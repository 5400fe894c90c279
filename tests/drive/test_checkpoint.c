/* test_checkpoint.c - gradients that compute values of checkpoints again: the bits of those that keep them, with less memory
 * planned, in programs that agree with the evaluator. */
#include "tenon/tenon_ir.h"
#include "tenon/tenon_nn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tn_ctx *ctx;

static void need(tn_status s) {
    if (s) fail_msg("%s: %s", tn_status_name(s), tn_ctx_error(ctx));
}

/* What one run of a graph gives for the gradients of all parameters, behind each other, and what it plans. */
typedef struct outcome {
    float *grads;
    size_t n;
    tn_program_stats stats;
    bool told; /* explain speaks of values that are computed again */
} outcome;

typedef tn_tensor (*model)(tn_graph *g, int recompute);
static tn_tensor gpt(tn_graph *g, int recompute);

static outcome train_within(model build, int recompute, tn_mode mode, uint64_t limit) {
    outcome r = { 0 };
    tn_graph *g = tn_graph_new(ctx, "net");
    tn_tensor loss = build(g, recompute), p[64], d[64];
    int n = tn_graph_n_params(g);
    if (tn_graph_status(g)) fail_msg("%s", tn_ctx_error(ctx));
    assert_true(n > 0 && n <= 64);
    for (int i = 0; i < n; i++) p[i] = tn_graph_param(g, i);
    need(tn_grad(loss, p, n, d));
    for (int i = 0; i < n; i++) {
        r.n += tn_tensor_bytes(d[i]) / sizeof(float);
        d[i] = tn_reshape(d[i], TN_DIMS((int64_t)(tn_tensor_bytes(d[i]) / sizeof(float))));
    }
    tn_output(tn_concat(d, n, 0), "grads");
    r.grads = calloc(r.n, sizeof *r.grads);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = mode, o.memory_limit = limit, o.check = limit && build == gpt;
    tn_program *program;
    tn_session *s;
    need(tn_compile(g, &o, &program));
    need(tn_session_new(program, &s));
    need(tn_run(s, TN_BIND({ "grads", r.grads })));
    tn_program_get_stats(program, &r.stats);
    char *text;
    need(tn_program_text(program, "explain", &text));
    r.told = strstr(text, "values are computed again") != NULL;
    tn_string_free(ctx, text);
    tn_session_free(s), tn_program_free(program), tn_graph_free(g);
    return r;
}

static outcome train(model build, int recompute, tn_mode mode) { return train_within(build, recompute, mode, 0); }

/* ---- models ---- */

enum { ROWS = 256, WIDTH = 32, LAYERS = 8 };
static void layer(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    char name[2][8];
    int i = *(int *)ud;
    (void)g;
    for (int k = 0; k < 2; k++) snprintf(name[k], sizeof name[k], "%c%d", 'a' + k, i);
    tn_tensor y = tn_nn_gelu(tn_nn_linear(in[0], 4 * (int64_t)WIDTH, name[0]));
    out[0] = tn_add(in[0], tn_tanh(tn_nn_linear(y, WIDTH, name[1])));
}
static tn_tensor mlp(tn_graph *g, int recompute) {
    tn_tensor counter = tn_full(g, TN_I64, TN_SCALAR, 7), x = tn_random_normal(counter, 3, TN_DIMS(ROWS, WIDTH));
    for (int i = 0; i < LAYERS; i++) {
        tn_tensor in = x;
        if (recompute)
            tn_checkpoint(g, layer, &i, &in, &x);
        else
            layer(g, &i, &in, &x);
    }
    return tn_mean(tn_mul(x, x), TN_ALL_AXES, 0);
}

static tn_tensor gpt(tn_graph *g, int recompute) {
    enum { T = 16, V = 50 };
    tn_tensor tokens = tn_cast(tn_mul_scalar(tn_random_uniform(tn_full(g, TN_I64, TN_SCALAR, 7), 3, TN_DIMS(2, T)), V), TN_I32);
    tn_tensor logits = tn_nn_lm(tokens, (tn_nn_lm_opts){ .kind = TN_NN_GPT2,
                                                         .vocab = V,
                                                         .positions = T,
                                                         .width = 24,
                                                         .layers = 4,
                                                         .heads = 3,
                                                         .dropout = 0.1,
                                                         .counter = tn_nn_counter(g, "step"),
                                                         .recompute = recompute });
    return tn_nn_cross_entropy(tn_reshape(logits, TN_DIMS(2 * T, V)), tn_reshape(tokens, TN_DIMS(2 * T)));
}

/* ---- tests ---- */

static double distance(const outcome *a, const outcome *b) { /* relative to the largest */
    double most = 0, size = 0;
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        most = fmax(most, fabs((double)a->grads[i] - (double)b->grads[i])), size = fmax(size, fabs((double)a->grads[i]));
        if (!isfinite(a->grads[i])) fail_msg("gradient %zu is %g", i, (double)a->grads[i]);
    }
    assert_true(size > 0);
    return most / size;
}

static void compare_model(model build, const char *name, double memory) {
    for (int mode = TN_MODE_GRAPH; mode <= TN_MODE_COMPILED; mode++) {
        outcome kept = train(build, 0, (tn_mode)mode), again = train(build, 1, (tn_mode)mode);
        printf("%s, mode %d: temporaries %.1f KiB, with checkpoints %.1f KiB; %d and %d kernels; gradients differ by %.1e\n",
               name, mode, (double)kept.stats.arena_bytes / 1024, (double)again.stats.arena_bytes / 1024, kept.stats.kernels,
               again.stats.kernels, distance(&kept, &again));
        if (memcmp(kept.grads, again.grads, kept.n * sizeof(float))) fail_msg("%s: other bits", name);
        if (!((double)again.stats.arena_bytes < memory * (double)kept.stats.arena_bytes)) fail_msg("%s: too much memory", name);
        free(kept.grads), free(again.grads);
    }
}

static void test_mlp(void **state) {
    (void)state;
    compare_model(mlp, "mlp", 0.75);
}
static void test_gpt(void **state) {
    (void)state;
    compare_model(gpt, "gpt", 0.8);
}

/* Ever less memory is allowed, down to what no choice of values suffices for. What is planned keeps to it, is checked at every
 * stage, and computes the same. */
static void shrink(model build, const char *name, double least) {
    const int step = fuzz_by_c() ? 30 : 10; /* its compiler takes seconds for each */
    for (int mode = TN_MODE_GRAPH; mode <= TN_MODE_COMPILED; mode++) {
        outcome all = train(build, 0, (tn_mode)mode);
        uint64_t rest = all.stats.state_bytes, arena = all.stats.arena_bytes;
        assert_false(all.told);
        for (int percent = 100; percent >= (int)(100 * least); percent -= step) {
            uint64_t limit = rest + 4096 + arena * (uint64_t)percent / 100; /* 4096: constants */
            outcome some = train_within(build, 0, (tn_mode)mode, limit);
            printf("%s, mode %d: %3d %% of the temporaries allowed, %.1f %% taken, %.1f %% more arithmetic, gradients differ "
                   "by %.1e\n",
                   name, mode, percent, 100 * (double)some.stats.arena_bytes / (double)arena,
                   100 * ((double)some.stats.flops / (double)all.stats.flops - 1), distance(&all, &some));
            if (some.stats.arena_bytes + rest > limit) fail_msg("%s: more than the limit", name);
            if (some.told != (percent < 100)) fail_msg("%s: explain does not tell", name);
            if (!(distance(&all, &some) < 1e-5)) fail_msg("%s: other gradients", name);
            free(some.grads);
        }
        free(all.grads);
    }
}
static void test_limits(void **state) {
    (void)state;
    shrink(mlp, "mlp", 0.7); /* less does not suffice with all code generators */
    shrink(gpt, "gpt", 0.7);
}

static void test_too_little(void **state) {
    (void)state;
    tn_graph *g = tn_graph_new(ctx, "net");
    tn_output(mlp(g, 0), "loss");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.memory_limit = 1 << 12;
    tn_program *p;
    assert_int_equal(tn_compile(g, &o, &p), TN_ERR_NOMEM);
    if (!strstr(tn_ctx_error(ctx), "memory_limit is 4096 bytes; needed are ")) fail_msg("%s", tn_ctx_error(ctx));
    o.mode = TN_MODE_IMMEDIATE;
    assert_int_equal(tn_compile(g, &o, &p), TN_ERR_UNSUPPORTED);
    tn_graph_free(g);
}

static void nothing(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g, (void)ud;
    out[0] = in[0];
}
static void square(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)ud;
    tn_tensor x = tn_mul(in[0], in[0]);
    tn_checkpoint(g, nothing, NULL, &x, out); /* of nothing, inside of another */
}

/* d/dx and d2/dx2 of x^4 through checkpoints; what is made once is not made again where nothing needs it. */
static void test_small(void **state) {
    (void)state;
    tn_graph *g = tn_graph_new(ctx, "small");
    tn_tensor x = tn_param(g, "x", TN_F64, TN_SCALAR, &(double){ 3 }), y, z, d, dd;
    tn_checkpoint(g, square, NULL, &x, &y);
    tn_checkpoint(g, square, NULL, &y, &z);
    need(tn_grad(z, &x, 1, &d));
    need(tn_grad(d, &x, 1, &dd));
    tn_output(d, "d"), tn_output(dd, "dd");
    double got[2];
    tn_program *p;
    tn_session *s;
    need(tn_compile(g, NULL, &p));
    need(tn_session_new(p, &s));
    need(tn_run(s, TN_BIND({ "d", &got[0] }, { "dd", &got[1] })));
    assert_true(got[0] == 108 && got[1] == 108);
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
}

static void test_immediate(void **state) {
    (void)state;
    tn_graph *g = tn_graph_immediate(ctx, "now");
    tn_tensor x = tn_full(g, TN_F64, TN_SCALAR, 3), y;
    tn_checkpoint(g, square, NULL, &x, &y);
    double got = 0;
    need(tn_tensor_read(y, &got, sizeof got));
    assert_true(got == 9);
    tn_graph_free(g);
}

static void test_wrong(void **state) {
    (void)state;
    tn_graph *g = tn_graph_new(ctx, "wrong");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(2)), y = { 0 };
    tn_checkpoint(g, NULL, NULL, &x, &y);
    assert_int_equal(tn_graph_status(g), TN_ERR_INVAL);
    assert_non_null(strstr(tn_ctx_error(ctx), "body or out is NULL"));
    tn_graph_free(g);
}

static int open_ctx(void **state) {
    (void)state;
    return !(ctx = test_ctx());
}
static int close_ctx(void **state) {
    (void)state;
    tn_ctx_free(ctx);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_mlp),    cmocka_unit_test(test_gpt),
                                        cmocka_unit_test(test_limits), cmocka_unit_test(test_too_little),
                                        cmocka_unit_test(test_small),  cmocka_unit_test(test_immediate),
                                        cmocka_unit_test(test_wrong) };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
