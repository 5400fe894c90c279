/* test_dynamic.c - programs with symbolic dims: one program for a range of sizes, against programs compiled for each size, in
 * every mode; errors of dims and bindings; no allocation after the first run.
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

#include "support/support.h"
#include "tenon/tenon.h"
#include "tenon/tenon_nn.h"

enum { MOST = 1 << 16 };

/* ---- networks ---- */

typedef tn_tensor (*network)(tn_graph *g, int64_t batch, int64_t length);

static tn_tensor mlp(tn_graph *g, int64_t batch, int64_t length) {
    (void)length;
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, 37));
    tn_tensor h = tn_relu(tn_nn_linear(x, 64, "fc1"));
    return tn_nn_softmax(tn_nn_linear(tn_tanh(tn_nn_linear(h, 33, "fc2")), 10, "fc3"), -1);
}

static tn_tensor elementwise(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, length));
    tn_tensor y = tn_input(g, "y", TN_F32, TN_DIMS(length));
    return tn_add(tn_mul(tn_exp(x), y), x);
}

static tn_tensor rows(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, length, 16));
    return tn_nn_softmax(tn_nn_linear(x, 24, "fc"), -1);
}

static tn_tensor column_sums(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, length, 5));
    return tn_mean(tn_mul(x, x), TN_INTS(0, 1), 0);
}

static tn_tensor softmax_of_length(tn_graph *g, int64_t batch, int64_t length) {
    return tn_nn_softmax(tn_input(g, "x", TN_F32, TN_DIMS(batch, length)), -1);
}

static tn_tensor scores(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor q = tn_input(g, "x", TN_F32, TN_DIMS(batch, length, 8));
    tn_tensor k = tn_input(g, "y", TN_F32, TN_DIMS(batch, length, 8));
    return tn_matmul(tn_nn_softmax(tn_matmul(q, tn_transpose(k, 1, 2)), -1), k);
}

static tn_tensor reshaped(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, length, 6));
    return tn_relu(tn_reshape(tn_transpose(tn_reshape(x, TN_DIMS(batch, length, 2, 3)), 1, 2), TN_DIMS(batch, -1)));
}

static tn_tensor sliced(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, length, 4));
    return tn_neg(tn_slice(tn_concat((tn_tensor[]){ x, tn_exp(x) }, 2, 2), (int64_t[]){ 0, 0, 1 },
                           (int64_t[]){ batch, length, 8 }, (int64_t[]){ 1, 1, 3 }, 3));
}

static tn_tensor heads(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, length, 12)), qkv[3];
    static const char *const names[] = { "q", "k", "v" };
    for (int i = 0; i < 3; i++)
        qkv[i] = tn_transpose(tn_reshape(tn_nn_linear(x, 12, names[i]), TN_DIMS(batch, length, 3, 4)), 1, 2);
    tn_tensor a = tn_transpose(tn_nn_attention(qkv[0], qkv[1], qkv[2], 1), 1, 2);
    return tn_add(x, tn_nn_layer_norm(tn_reshape(a, TN_DIMS(batch, length, 12)), 0, "n"));
}

static tn_tensor best_of_length(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, length, 5));
    return tn_add(tn_cast(tn_argmax(x, 1, 0), TN_F32), tn_reduce_min(x, TN_INTS(1), 0));
}

static tn_tensor columns(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(length, batch)), y = tn_transpose(x, 0, 1);
    return tn_matmul(tn_tanh(y), tn_sub(x, tn_mean(x, TN_INTS(1), 1)));
}

static tn_tensor looked_up(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, length));
    tn_tensor at = tn_cast(tn_mul_scalar(tn_abs(x), 5), TN_I32);
    return tn_gather(tn_nn_linear(tn_iota(g, TN_F32, TN_DIMS(9, 3), 0), 4, "table"), at, 0);
}

/* Rows of the run's own, picked and put by place. */
static tn_tensor picked(tn_graph *g, int64_t batch, int64_t length) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, length, 4)), first = tn_slice_axis(x, 2, 0, 1, 1);
    tn_tensor at = tn_cast(tn_mul_scalar(tn_reshape(first, TN_DIMS(-1)), 9), TN_I32);
    tn_tensor rows = tn_exp(tn_reshape(x, TN_DIMS(-1, 4))), y = tn_gather(rows, at, 0);
    return tn_add(tn_scatter_set(rows, at, tn_neg(y), 0), tn_scatter(rows, at, y, 0, TN_SCATTER_MAX));
}

static const struct {
    const char *name;
    network of;
    bool exact; /* the same bits as programs for one size: sums do not run over symbolic dims */
} networks[] = {
    { "mlp", mlp, true },
    { "elementwise", elementwise, true },
    { "rows", rows, false },
    { "column_sums", column_sums, false },
    { "softmax_of_length", softmax_of_length, false },
    { "scores", scores, false },
    { "reshaped", reshaped, true },
    { "sliced", sliced, true },
    { "heads", heads, false },
    { "best_of_length", best_of_length, true },
    { "columns", columns, false },
    { "looked_up", looked_up, true },
    { "picked", picked, true },
};

static const struct {
    tn_mode mode;
    int fusion;
} modes[] = { { TN_MODE_IMMEDIATE, -1 }, { TN_MODE_GRAPH, -1 },   { TN_MODE_COMPILED, 0 },
              { TN_MODE_COMPILED, 2 },   { TN_MODE_COMPILED, 3 }, { TN_MODE_LOOP, -1 } };

/* device: NULL: the CPU */
static tn_program *compile(tn_graph *g, tn_mode mode, int fusion, int threads, const char *device) {
    tn_program *p;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = mode, o.fusion = fusion, o.threads = threads, o.check = 1;
    if (device) o.device = device, o.threads = 0;
    if (tn_compile(g, &o, &p)) fail_msg("%s", tn_ctx_error(tn_graph_ctx(g)));
    return p;
}

/* ---- one program for all sizes ---- */

/* TENON_DEVICE: dynamic programs run there, what they are compared with on the CPU. */
static const char *on_device(void) { return test_device_is_cpu() ? NULL : test_device(); }

enum { BATCH = 40, LENGTH = 21 };
static const int64_t sizes[][2] = { { 1, 1 }, { 2, 3 }, { 7, 21 }, { 16, 8 }, { 33, 16 }, { 40, 17 }, { 15, 5 } };

static float x_data[MOST], y_data[MOST], want[MOST], got[MOST + 16];

static void run(tn_session *s, float *out) {
    tn_status code = tn_session_slot(s, "y") < 0 ? tn_run(s, TN_BIND({ "x", x_data }, { "out", out }))
                                                 : tn_run(s, TN_BIND({ "x", x_data }, { "y", y_data }, { "out", out }));
    if (code) fail_msg("%s", tn_session_error(s));
}

/* The output of a program for this size alone; returns its bytes. */
static size_t run_literal(tn_ctx *ctx, size_t n, size_t m, const int64_t *size, int threads) {
    tn_graph *g = tn_graph_new(ctx, networks[n].name);
    tn_tensor y = networks[n].of(g, size[0], size[1]);
    tn_session *s;
    tn_output(y, "out");
    size_t bytes = tn_tensor_bytes(y);
    tn_program *p = compile(g, modes[m].mode, modes[m].fusion, threads, NULL);
    assert_int_equal(tn_session_new(p, &s), TN_OK);
    assert_true(bytes <= sizeof want);
    run(s, want);
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
    return bytes;
}

static void check_size(tn_ctx *ctx, tn_session *s, size_t n, size_t m, const int64_t *size, int threads) {
    size_t bytes = run_literal(ctx, n, m, size, threads);
    tn_shape shape;
    if (tn_bind_dim(s, "batch", size[0])) fail_msg("%s", tn_session_error(s));
    if (n > 0 && tn_bind_dim(s, "length", size[1])) fail_msg("%s", tn_session_error(s));
    assert_int_equal(tn_session_shape(s, tn_session_slot(s, "out"), &shape), TN_OK);
    size_t elems = 1;
    for (int i = 0; i < shape.rank; i++) elems *= (size_t)shape.dim[i];
    assert_int_equal(elems * sizeof(float), bytes);
    const char *code = getenv("TENON_CPU");
    bool exact = networks[n].exact && !(code && !strcmp(code, "sse2")) && !on_device();
    float close = on_device() ? 1e-5f : 2e-6f;
    memset(got, 0x7f, sizeof got);
    run(s, got);
    for (size_t i = 0; i < elems; i++) {
        bool same = exact ? !memcmp(&got[i], &want[i], sizeof(float)) : fabsf(got[i] - want[i]) <= close * (1 + fabsf(want[i]));
        if (!same)
            fail_msg("%s, mode %d, fusion %d, %d threads, batch %d, length %d: element %d is %.9g, not %.9g", networks[n].name,
                     (int)modes[m].mode, modes[m].fusion, threads, (int)size[0], (int)size[1], (int)i, (double)got[i],
                     (double)want[i]);
    }
    for (size_t i = 0; i < 16 * sizeof(float); i++) assert_int_equal(((unsigned char *)(got + elems))[i], 0x7f);
}

/* No kernel needs a C compiler, but where that is asked for. */
static tn_ctx *ctx_without_compiler(void) {
    tn_config c = test_config();
    if (!c.cpu || c.cpu[0] != 'c') c.compiler = "/nowhere/cc";
    tn_ctx *ctx = tn_ctx_new(&c);
    assert_non_null(ctx);
    return ctx;
}

static void test_sizes(void **state) {
    (void)state;
    tn_ctx *ctx = ctx_without_compiler();
    rng r = rng_make(11);
    for (int i = 0; i < MOST; i++) x_data[i] = (float)rng_range(&r, -2, 2), y_data[i] = (float)rng_range(&r, -2, 2);
    for (size_t n = 0; n < COUNT_OF(networks); n++)
        for (size_t m = 0; m < COUNT_OF(modes); m++) {
            int threads = 1 + (int)((n + m) % 2);
            tn_graph *g = tn_graph_new(ctx, networks[n].name);
            int64_t batch = tn_dim(g, "batch", 1, BATCH, 1), length = tn_dim(g, "length", 1, LENGTH, 1);
            tn_output(networks[n].of(g, batch, length), "out");
            tn_program *p = compile(g, modes[m].mode, modes[m].fusion, threads, on_device());
            tn_session *s;
            assert_int_equal(tn_session_new(p, &s), TN_OK);
            if (n == 0) assert_int_equal(tn_bind_dim(s, "length", 1), TN_OK);
            for (size_t i = 0; i < COUNT_OF(sizes); i++)
                if (!fuzz_by_c() || i % 3 == (n + m) % 3) check_size(ctx, s, n, m, sizes[i], threads); /* compiled alone, too */
            tn_session_free(s), tn_program_free(p), tn_graph_free(g);
        }
    tn_ctx_free(ctx);
}

/* ---- many steps in one call ---- */

enum { RING = 4, STEPS = 133 };

/* Each step of a run over a ring writes what a run of its own does, whichever sizes came before. */
static void check_rings(tn_session *s, const char *name, int64_t batch, int64_t length, float *traced) {
    static const int steps[] = { 5, STEPS, 70 };
    size_t elems[2];
    if (tn_bind_dim(s, "batch", batch) || tn_bind_dim(s, "length", length)) fail_msg("%s", tn_session_error(s));
    for (int k = 0; k < 2; k++) {
        tn_shape shape;
        assert_int_equal(tn_session_shape(s, tn_session_slot(s, k ? "out" : "x"), &shape), TN_OK);
        elems[k] = 1;
        for (int i = 0; i < shape.rank; i++) elems[k] *= (size_t)shape.dim[i];
    }
    assert_true(RING * elems[0] <= MOST && RING * elems[1] <= MOST);
    for (size_t k = 0; k < RING; k++)
        assert_int_equal(tn_run(s, TN_BIND({ "x", x_data + k * elems[0] }, { "out", want + k * elems[1] })), TN_OK);
    for (size_t n = 0; n < COUNT_OF(steps); n++) {
        memset(traced, 0x7f, (size_t)steps[n] * elems[1] * sizeof *traced);
        assert_int_equal(tn_session_bind_trace(s, tn_session_slot(s, "out"), traced, steps[n]), TN_OK);
        if (tn_run_n(s, steps[n], TN_BIND({ "x", x_data }), RING)) fail_msg("%s", tn_session_error(s));
        for (int k = 0; k < steps[n]; k++)
            if (memcmp(traced + (size_t)k * elems[1], want + (size_t)(k % RING) * elems[1], elems[1] * sizeof *want))
                fail_msg("%s, batch %d, length %d: step %d of %d", name, (int)batch, (int)length, k, steps[n]);
    }
}

static void test_rings(void **state) {
    (void)state;
    tn_ctx *ctx = ctx_without_compiler();
    rng r = rng_make(12);
    float *traced = malloc(STEPS * MOST / RING * sizeof *traced);
    assert_non_null(traced);
    for (int i = 0; i < MOST; i++) x_data[i] = (float)rng_range(&r, -2, 2);
    for (size_t n = 0; n < COUNT_OF(networks); n++) {
        if (networks[n].of != rows && networks[n].of != heads && networks[n].of != reshaped) continue;
        tn_graph *g = tn_graph_new(ctx, networks[n].name);
        int64_t batch = tn_dim(g, "batch", 1, 300, 1),
                length = tn_dim(g, "length", 1, LENGTH, 1); /* large enough for wide loads */
        tn_output(networks[n].of(g, batch, length), "out");
        tn_program *p = compile(g, TN_MODE_LOOP, -1, 1, on_device());
        tn_session *s;
        assert_int_equal(tn_session_new(p, &s), TN_OK);
        for (size_t i = 0; i < COUNT_OF(sizes); i++) check_rings(s, networks[n].name, sizes[i][0], sizes[i][1], traced);
        check_rings(s, networks[n].name, 3, 1, traced); /* small ones after large ones */
        tn_session_free(s), tn_program_free(p), tn_graph_free(g);
    }
    free(traced);
    tn_ctx_free(ctx);
}

/* ---- what is refused ---- */

static tn_session *mlp_session(tn_ctx *ctx, tn_program **out) {
    tn_graph *g = tn_graph_new(ctx, "mlp");
    tn_session *s;
    tn_output(mlp(g, tn_dim(g, "batch", 2, BATCH, 2), 1), "out");
    *out = compile(g, TN_MODE_COMPILED, -1, 1, on_device());
    assert_int_equal(tn_session_new(*out, &s), TN_OK);
    tn_graph_free(g);
    return s;
}

#define REFUSED(s, call, text)                                                                                                 \
    do {                                                                                                                       \
        assert_int_not_equal(call, TN_OK);                                                                                     \
        if (!strstr(tn_session_error(s), text)) fail_msg("%s: not in: %s", text, tn_session_error(s));                         \
    } while (0)

static void test_bindings(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_program *p;
    tn_session *s = mlp_session(ctx, &p);
    tn_shape shape;
    const char *name;
    int64_t lo, hi, by;
    assert_int_equal(tn_program_n_dims(p), 1);
    assert_int_equal(tn_program_dim(p, 0, &name, &lo, &hi, &by), TN_OK);
    assert_string_equal(name, "batch");
    assert_true(lo == 2 && hi == BATCH && by == 2);
    REFUSED(s, tn_run(s, TN_BIND({ "x", x_data })), "dim batch has no value");
    REFUSED(s, tn_session_shape(s, 0, &shape), "dim batch has no value");
    REFUSED(s, tn_bind_dim(s, "batch", 42), "dim batch is 42: expected 2 to 40, a multiple of 2");
    REFUSED(s, tn_bind_dim(s, "batch", 7), "dim batch is 7: expected 2 to 40, a multiple of 2");
    REFUSED(s, tn_bind_dim(s, "batch", -1), "dim batch");
    REFUSED(s, tn_bind_dim(s, "length", 4), "no dim \"length\"");
    REFUSED(s, tn_bind_shape(s, "x", TN_DIMS(4, 36)), "axis 1 of \"x\" is 37; given is 36");
    REFUSED(s, tn_bind_shape(s, "x", TN_DIMS(4)), "rank");
    REFUSED(s, tn_bind_shape(s, "x", TN_DIMS(5, 37)), "dim batch is 5");
    REFUSED(s, tn_run(s, TN_BIND({ "x", x_data })), "dim batch has no value");
    assert_int_equal(tn_bind_shape(s, "x", TN_DIMS(4, 37)), TN_OK);
    assert_int_equal(tn_session_shape(s, tn_session_slot(s, "out"), &shape), TN_OK);
    assert_true(shape.rank == 2 && shape.dim[0] == 4 && shape.dim[1] == 10);
    assert_int_equal(tn_run(s, TN_BIND({ "x", x_data }, { "out", got })), TN_OK);
    tn_session_free(s), tn_program_free(p), tn_ctx_free(ctx);
}

/* Errors of builders name both uses. */
static void expect_graph_error(tn_ctx *ctx, tn_graph *g, const char *text) {
    tn_program *p;
    assert_int_not_equal(tn_compile(g, NULL, &p), TN_OK);
    if (!strstr(tn_ctx_error(ctx), text)) fail_msg("%s: not in: %s", text, tn_ctx_error(ctx));
    tn_graph_free(g);
}

static void test_constraints(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "g");
    tn_dim(g, "batch", 1, 8, 1);
    assert_int_equal(tn_dim(g, "batch", 1, 9, 1), -1);
    expect_graph_error(ctx, g, "dim batch is 1..8, a multiple of 1, already; here it is 1..9");
    g = tn_graph_new(ctx, "g");
    assert_int_equal(tn_dim(g, "batch", 1, 9, 2), -1);
    expect_graph_error(ctx, g, "must be multiples of 2");
    g = tn_graph_new(ctx, "g");
    int64_t batch = tn_dim(g, "batch", 1, 8, 1), length = tn_dim(g, "length", 1, 8, 1);
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, 4)), y = tn_input(g, "y", TN_F32, TN_DIMS(length, 4));
    tn_add(x, y);
    expect_graph_error(ctx, g, "axis 2 from the end is batch and length");
    g = tn_graph_new(ctx, "g");
    batch = tn_dim(g, "batch", 1, 8, 1);
    x = tn_input(g, "x", TN_F32, TN_DIMS(batch, 4));
    tn_reshape(x, TN_DIMS(2, -1, 3));
    expect_graph_error(ctx, g, "batch*4 elements do not fit into [2,-1,3]");
    g = tn_graph_new(ctx, "g");
    batch = tn_dim(g, "batch", 1, 8, 1);
    x = tn_input(g, "x", TN_F32, TN_DIMS(batch, 4));
    tn_slice(x, (int64_t[]){ 0, 0 }, (int64_t[]){ 2, 4 }, NULL, 2);
    expect_graph_error(ctx, g, "0..2 is not always a range of axis 0, which has size batch");
    g = tn_graph_new(ctx, "g");
    batch = tn_dim(g, "batch", 1, 8, 1);
    x = tn_input(g, "x", TN_F32, TN_DIMS(batch, 4));
    tn_slice_axis(x, 0, -2, TN_END, 1);
    expect_graph_error(ctx, g, "batch - 2..batch is not always a range of axis 0, which has size batch");
    g = tn_graph_new(ctx, "g");
    batch = tn_dim(g, "batch", 1, 8, 1);
    x = tn_input(g, "x", TN_F32, TN_DIMS(4, 4));
    tn_slice_axis(x, 0, 0, batch, 1);
    expect_graph_error(ctx, g, "0..batch is not always a range of axis 0, which has size 4");
    g = tn_graph_new(ctx, "g");
    batch = tn_dim(g, "batch", 1, 8, 1);
    tn_pad(tn_input(g, "x", TN_F32, TN_DIMS(4)), (int64_t[]){ 0 }, (int64_t[]){ tn_dim_add(g, 4, tn_dim_mul(g, batch, -1)) }, 1,
           0);
    expect_graph_error(ctx, g, "use tn_slice to cut");
    g = tn_graph_new(ctx, "g");
    batch = tn_dim(g, "batch", 0, 8, 1);
    tn_output(tn_argmax(tn_input(g, "x", TN_F32, TN_DIMS(batch, 4)), 0, 0), "out");
    expect_graph_error(ctx, g, "axis 0 may be empty: its size is batch");
    tn_ctx_free(ctx);
}

/* ---- memory ---- */

static int n_allocations;
static void *count_realloc(void *ud, void *p, size_t old, size_t n) {
    (void)ud, (void)old;
    n_allocations += n > 0;
    if (n) return realloc(p, n);
    free(p);
    return NULL;
}

static void test_no_allocation(void **state) {
    (void)state;
    tn_config config = test_config();
    config.realloc = count_realloc;
    tn_ctx *ctx = tn_ctx_new(&config);
    tn_program *p;
    tn_session *s = mlp_session(ctx, &p);
    const int64_t step = test_device_is_simulated() ? 36 : 2;                    /* the smallest, and one of several tiles */
    int before = 0, passes = on_device() && !test_device_is_simulated() ? 2 : 1; /* GPUs make graphs of launches in the first */
    for (int pass = 0; pass < passes; pass++) {
        before = n_allocations;
        for (int64_t batch = 2; batch <= BATCH; batch += step) {
            assert_int_equal(tn_bind_dim(s, "batch", batch), TN_OK);
            assert_int_equal(tn_run(s, TN_BIND({ "x", x_data }, { "out", got })), TN_OK);
        }
    }
    assert_int_equal(n_allocations, before);
    tn_session_free(s), tn_program_free(p), tn_ctx_free(ctx);
}

/* A training step over sizes of which the least ones have a program of their own on GPUs: whichever runs, the weights are the
 * same, and sessions may share them. */
static tn_program *compile_training(tn_ctx *ctx, const char *device) {
    tn_graph *g = tn_graph_new(ctx, "training");
    int64_t batch = tn_dim(g, "batch", 1, 16, 1), length = tn_dim(g, "length", 1, 16, 1);
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, length, 8));
    tn_tensor h = tn_nn_layer_norm(tn_tanh(tn_nn_linear(x, 40, "fc1")), 0, "n");
    tn_tensor y = tn_nn_softmax(tn_mean(tn_nn_linear(h, 8, "fc2"), TN_INTS(1), 1), -1);
    tn_tensor loss = tn_mean(tn_mul(tn_sub(y, x), tn_sub(y, x)), TN_INTS(0, 1, 2), 0);
    tn_nn_sgd(loss, (tn_nn_optim_opts){ .lr = 0.5 });
    tn_output(loss, "out");
    tn_program *p = compile(g, TN_MODE_LOOP, -1, 1, device);
    tn_graph_free(g);
    return p;
}

static void test_least_sizes(void **state) {
    (void)state;
    static const int64_t sizes[][2] = { { 1, 1 }, { 3, 5 },  { 1, 1 }, { 1, 1 }, { 16, 16 }, { 1, 2 },  { 1, 1 },
                                        { 5, 1 }, { 7, 2 },  { 2, 7 }, { 9, 3 }, { 16, 4 },  { 4, 16 }, { 13, 2 },
                                        { 6, 1 }, { 16, 1 }, { 3, 3 }, { 1, 3 }, { 3, 1 },   { 2, 16 } };
    tn_ctx *ctx = ctx_without_compiler();
    tn_program *p[2] = { compile_training(ctx, NULL), compile_training(ctx, on_device()) };
    tn_session *s[2], *other;
    char *text;
    for (int i = 0; i < 2; i++) assert_int_equal(tn_session_new(p[i], &s[i]), TN_OK);
    for (size_t k = 0; k < COUNT_OF(sizes); k++) {
        float loss[2];
        for (int i = 0; i < 2; i++) {
            if (tn_bind_dim(s[i], "batch", sizes[k][0])) fail_msg("%s", tn_session_error(s[i]));
            if (tn_bind_dim(s[i], "length", sizes[k][1])) fail_msg("%s", tn_session_error(s[i]));
            tn_status code = k % 2 ? tn_run_n(s[i], 3, TN_BIND({ "x", x_data }, { "out", &loss[i] }), 1)
                                   : tn_run(s[i], TN_BIND({ "x", x_data + 7 * k }, { "out", &loss[i] }));
            if (code) fail_msg("%s", tn_session_error(s[i]));
        }
        if (!(fabsf(loss[0] - loss[1]) <= 1e-5f * fabsf(loss[0])))
            fail_msg("%d x %d: the loss is %.9g, not %.9g", (int)sizes[k][0], (int)sizes[k][1], (double)loss[1],
                     (double)loss[0]);
    }
    assert_int_equal(tn_session_new(p[1], &other), TN_OK);
    assert_int_equal(tn_program_text(p[1], "explain", &text), TN_OK);
    assert_true(!strstr(text, "have a program of their own") == !on_device());
    tn_string_free(ctx, text);
    tn_session_free(other);
    for (int i = 0; i < 2; i++) tn_session_free(s[i]), tn_program_free(p[i]);
    tn_ctx_free(ctx);
}

/* Any number of sequences of one token or two has kernels of its own where it takes fewer of them, in one program with all
 * other sizes. */
static tn_graph *sequences(tn_ctx *ctx) {
    enum { WIDTH = 16, HEADS = 2 };
    tn_graph *g = tn_graph_new(ctx, "sequences");
    int64_t batch = tn_dim(g, "batch", 1, 3, 1), length = tn_dim(g, "length", 1, 256, 1);
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, length, WIDTH)), n = tn_nn_layer_norm(x, 0, "n"), part[3];
    static const char *const names[] = { "q", "k", "v" };
    for (int i = 0; i < 3; i++)
        part[i] =
            tn_transpose(tn_reshape(tn_nn_linear(n, WIDTH, names[i]), TN_DIMS(batch, length, HEADS, WIDTH / HEADS)), 1, 2);
    tn_tensor a = tn_reshape(tn_transpose(tn_nn_attention(part[0], part[1], part[2], 0), 1, 2), TN_DIMS(batch, length, WIDTH));
    tn_output(tn_nn_layer_norm(tn_add(x, tn_nn_linear(tn_relu(tn_nn_linear(a, 64, "up")), WIDTH, "down")), 0, "m"), "out");
    return g;
}

static void test_short_sequences(void **state) {
    (void)state;
    tn_ctx *ctx = ctx_without_compiler();
    tn_graph *g = sequences(ctx);
    tn_program *p[3] = { compile(g, TN_MODE_LOOP, -1, 1, NULL), compile(g, TN_MODE_LOOP, -1, 1, on_device()),
                         compile(g, TN_MODE_LOOP, -1, 1, "null-cuda") };
    tn_session *s[2];
    char *text;
    float y[2][3 * 8 * 16];
    for (int i = 0; i < 2; i++) assert_int_equal(tn_session_new(p[i], &s[i]), TN_OK);
    for (int64_t k = 0; k < 24; k++) {
        int64_t batch = 1 + k * 2 % 3, length = 1 + (k / 3 * 5 + k % 2) % 8;
        for (int i = 0; i < 2; i++) {
            assert_int_equal(tn_bind_dim(s[i], "batch", batch), TN_OK);
            assert_int_equal(tn_bind_dim(s[i], "length", length), TN_OK);
            if (tn_run(s[i], TN_BIND({ "x", x_data + k }, { "out", y[i] }))) fail_msg("%s", tn_session_error(s[i]));
        }
        for (int64_t i = 0; i < batch * length * 16; i++)
            if (!(fabsf(y[0][i] - y[1][i]) <= 1e-4f))
                fail_msg("%d x %d: element %d is %.9g, not %.9g", (int)batch, (int)length, (int)i, (double)y[1][i],
                         (double)y[0][i]);
    }
    assert_int_equal(tn_program_text(p[2], "explain", &text), TN_OK);
    assert_non_null(strstr(text, "sizes with batch 1, length 1 have a program"));
    assert_non_null(strstr(text, "sizes with length 2 have a program"));
    assert_null(strstr(text, "sizes with batch 2"));
    tn_string_free(ctx, text);
    for (int i = 0; i < 2; i++) tn_session_free(s[i]);
    for (int i = 0; i < 3; i++) tn_program_free(p[i]);
    tn_graph_free(g), tn_ctx_free(ctx);
}

/* A sum of as many numbers as a run has is as near as one of as many as a program has. */
static void test_long_sum(void **state) {
    (void)state;
    enum { N = 800000, MOST = 1 << 20 };
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_graph *g = tn_graph_new(ctx, "sum");
    tn_session *s;
    int64_t n = tn_dim(g, "n", 0, MOST, 1);
    float *x = malloc(sizeof *x * MOST), y;
    assert_non_null(x);
    for (int i = 0; i < MOST; i++) x[i] = 0.1F;
    tn_output(tn_sum(tn_input(g, "x", TN_F32, TN_DIMS(n)), (int64_t[]){ 0 }, 1, 0), "y");
    tn_program *p = compile(g, TN_MODE_COMPILED, -1, 1, on_device());
    assert_int_equal(tn_session_new(p, &s), TN_OK);
    for (int i = 0; i < 4; i++) {
        static const int64_t sizes[] = { N, 0, 1023, 2049 };
        assert_int_equal(tn_bind_dim(s, "n", sizes[i]), TN_OK);
        if (tn_run(s, TN_BIND({ "x", x }, { "y", &y }))) fail_msg("%s", tn_session_error(s));
        double exact = (double)0.1F * (double)sizes[i];
        if (fabs((double)y - exact) > 2e-5 * exact) fail_msg("%d numbers: %.9g, not %.9g", (int)sizes[i], (double)y, exact);
    }
    free(x);
    tn_session_free(s), tn_program_free(p), tn_graph_free(g), tn_ctx_free(ctx);
}

int main(int argc, char **argv) { /* a pattern of tests */
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_sizes),           cmocka_unit_test(test_rings),
                                        cmocka_unit_test(test_bindings),        cmocka_unit_test(test_constraints),
                                        cmocka_unit_test(test_no_allocation),   cmocka_unit_test(test_least_sizes),
                                        cmocka_unit_test(test_short_sequences), cmocka_unit_test(test_long_sum) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
