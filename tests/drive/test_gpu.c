/* test_gpu.c - programs on a GPU (TENON_DEVICE, else opencl) beyond what the tests of all devices do: rings and traces in one
 * submit, the kernel cache, sessions in threads, programs that do not compile, memory that is not there. Skipped where there is
 * none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "drive/objects.h"
#include "support/support.h"
#include "tenon/tenon.h"
#include "tenon/tenon_index.h"

static void remove_tree(const char *dir) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    if (system(command) != 0) fail_msg("cannot remove %s", dir);
}

static const char *gpu_name(void) { return test_device_is_cpu() ? "opencl" : test_device(); }
static bool is_cuda(void) { return !strcmp(gpu_name(), "cuda"); }

static device *open_gpu(tn_ctx *ctx) {
    device *d = NULL;
    err e = { 0 };
    tn_status st = ctx_device(ctx, gpu_name(), 0, &d, &e);
    if (st == TN_ERR_DEVICE) {
        printf("skipped: %s\n", e.text);
        tn_ctx_free(ctx);
        skip();
    }
    if (st) fail_msg("%s", e.text);
    return d;
}
static tn_ctx *gpu_ctx(void) {
    tn_ctx *ctx = tn_ctx_new(NULL);
    assert_non_null(ctx);
    open_gpu(ctx);
    return ctx;
}

static tn_compile_opts on_gpu(tn_mode mode) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = mode, o.device = gpu_name(), o.check = 1;
    return o;
}

#define OK(ctx, call)                                                                                                          \
    do {                                                                                                                       \
        if ((call) != TN_OK) fail_msg("%s: %s", #call, tn_ctx_error(ctx));                                                     \
    } while (0)

/* sum += x * (count + 1); count += 1; y = the new sum, z = x + count */
static tn_graph *make_counter(tn_ctx *ctx, int64_t n) {
    tn_graph *g = tn_graph_new(ctx, "counter");
    tn_tensor x = tn_input(g, "x", TN_I32, TN_DIMS(n)), total = tn_state(g, "sum", TN_I32, TN_DIMS(n), NULL),
              count = tn_state(g, "count", TN_I32, TN_SCALAR, NULL);
    tn_tensor next = tn_add_scalar(count, 1), y = tn_add(total, tn_mul(x, next));
    tn_assign(total, y);
    tn_assign(count, next);
    tn_output(y, "y");
    tn_output(tn_add(x, count), "z");
    return g;
}

static void test_rings(void **state) {
    (void)state;
    enum { N = 37, STEPS = 11, RING = 3 };
    tn_ctx *ctx = gpu_ctx();
    static const tn_mode modes[] = { TN_MODE_LOOP, TN_MODE_COMPILED, TN_MODE_GRAPH };
    for (size_t m = 0; m < COUNT_OF(modes); m++) {
        tn_graph *g = make_counter(ctx, N);
        tn_compile_opts o = on_gpu(modes[m]);
        tn_program *p;
        tn_session *s;
        OK(ctx, tn_compile(g, &o, &p));
        OK(ctx, tn_session_new(p, &s));
        int32_t x[RING][N], z[STEPS][N], y[N], sum[N] = { 0 }, want_z[STEPS][N], count;
        rng r = rng_make((uint64_t)now_seconds());
        for (int i = 0; i < RING * N; i++) x[i / N][i % N] = (int32_t)rng_between(&r, -1000, 1000);
        int done = 0;
        for (int run = 1; run <= 3; run++) { /* 4, 8 and 11 steps: the device's memory grows */
            int steps = run == 1 ? 4 : run == 2 ? 8 : STEPS;
            OK(ctx, tn_session_bind_trace(s, tn_session_slot(s, "z"), z, STEPS));
            OK(ctx, tn_run_n(s, steps, TN_BIND({ "x", x }, { "y", y }), RING));
            for (int k = 0; k < steps; k++, done++)
                for (int i = 0; i < N; i++) sum[i] += x[k % RING][i] * (done + 1), want_z[k][i] = x[k % RING][i] + done;
            assert_memory_equal(y, sum, sizeof sum);
            assert_memory_equal(z, want_z, sizeof z[0] * (size_t)steps);
            OK(ctx, tn_session_get(s, "count", &count, sizeof count));
            assert_int_equal(count, done);
        }
        OK(ctx, tn_run(s, TN_BIND({ "x", x[1] }, { "y", y }))); /* and one step after them */
        for (int i = 0; i < N; i++) sum[i] += x[1][i] * (done + 1);
        assert_memory_equal(y, sum, sizeof sum);
        tn_session_free(s);
        tn_program_free(p);
        tn_graph_free(g);
    }
    tn_ctx_free(ctx);
}

/* As many steps as a device may do by itself, and some more, with and without a ring. */
static void test_many_steps(void **state) {
    (void)state;
    enum { N = 21, RING = 3 };
    static const int steps[] = { 3, 4, 63, 64, 69, 200, 1100 };
    tn_ctx *ctx = gpu_ctx();
    tn_graph *g = make_counter(ctx, N);
    tn_compile_opts o = on_gpu(TN_MODE_LOOP);
    tn_program *p;
    tn_session *s;
    OK(ctx, tn_compile(g, &o, &p));
    OK(ctx, tn_session_new(p, &s));
    int32_t x[RING][N], y[N], z[N], sum[N] = { 0 }, count = 0;
    for (int i = 0; i < RING * N; i++) x[i / N][i % N] = i * i % 17 - 8;
    for (size_t k = 0; k < 2 * COUNT_OF(steps); k++) {
        int ring = k % 2 ? RING : 1, n = steps[k / 2];
        memset(y, 0xff, sizeof y), memset(z, 0xff, sizeof z);
        OK(ctx, tn_run_n(s, n, TN_BIND({ "x", x }, { "y", y }, { "z", z }), ring));
        for (int step = 0; step < n; step++, count++)
            for (int i = 0; i < N; i++) sum[i] += x[step % ring][i] * (count + 1);
        assert_memory_equal(y, sum, sizeof sum);
        for (int i = 0; i < N; i++) assert_int_equal(z[i], x[(n - 1) % ring][i] + count - 1);
    }
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* Inputs that go up while the steps before theirs run: rings of many megabytes, longer and shorter than the run. */
static void test_large_rings(void **state) {
    (void)state;
    enum { N = 300001, MOST = 13 };
    static const struct { int steps, ring; } runs[] = { { 13, 13 }, { 31, 13 }, { 9, 13 }, { 8, 2 }, { 12, 9 } };
    tn_ctx *ctx = gpu_ctx();
    tn_graph *g = make_counter(ctx, N);
    tn_compile_opts o = on_gpu(TN_MODE_LOOP);
    tn_program *p;
    tn_session *s;
    OK(ctx, tn_compile(g, &o, &p));
    OK(ctx, tn_session_new(p, &s));
    size_t bytes = N * sizeof(int32_t);
    int32_t *x = malloc(MOST * bytes), *z = malloc(31 * bytes), *y = malloc(bytes), *sum = calloc(N, sizeof *sum);
    int32_t count = 0;
    uint32_t seed = (uint32_t)time(NULL);
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        for (size_t k = 0; k < (size_t)MOST * N; k++) x[k] = (int32_t)((seed = seed * 1664525u + 1013904223u) >> 20);
        if (i % 2) OK(ctx, tn_session_bind_trace(s, tn_session_slot(s, "z"), z, runs[i].steps));
        if (!(i % 2)) OK(ctx, tn_session_bind(s, tn_session_slot(s, "z"), z));
        OK(ctx, tn_run_n(s, runs[i].steps, TN_BIND({ "x", x }, { "y", y }), runs[i].ring));
        for (int step = 0; step < runs[i].steps; step++, count++) {
            const int32_t *in = x + (size_t)(step % runs[i].ring) * N, *out = i % 2 ? z + (size_t)step * N : z;
            for (int k = 0; k < N; k++) sum[k] += in[k] * (count + 1);
            if (i % 2 || step == runs[i].steps - 1)
                for (int k = 0; k < N; k++) assert_int_equal(out[k], in[k] + count);
        }
        assert_memory_equal(y, sum, bytes);
    }
    tn_span span[200];
    int n_spans = -1;
    tn_status told = tn_run_n_spans(s, MOST, TN_BIND({ "x", x }, { "y", y }, { "z", z }), MOST, span, 200, &n_spans);
    if (told != TN_ERR_UNSUPPORTED) { /* all bytes went up, in runs of several steps; nothing ends before it begins */
        size_t up = 0;
        int parts = 0;
        OK(ctx, told);
        for (int i = 0; i < n_spans; i++) {
            assert_true(span[i].begin_us > -100 && span[i].end_us >= span[i].begin_us && span[i].end_us < 60e6);
            if (!strcmp(span[i].what, "upload")) up += span[i].bytes;
            parts += !strcmp(span[i].what, "run");
        }
        assert_int_equal(up, MOST * bytes);
        assert_true(parts > 1);
        count += MOST;
        for (int k = 0; k < N; k++) assert_int_equal(z[k], x[(size_t)(MOST - 1) * N + (size_t)k] + count - 1);
        OK(ctx, tn_run_n_spans(s, MOST, TN_BIND({ "x", x }), MOST, span, 2, &n_spans)); /* no room for more */
        assert_int_equal(n_spans, 2);
        count += MOST;
    } else
        assert_int_equal(n_spans, 0);
    OK(ctx, tn_run(s, TN_BIND({ "x", x + N }, { "y", y }, { "z", z }))); /* one step counts from the ring's begin again */
    for (int k = 0; k < N; k++) assert_int_equal(z[k], x[N + k] + count);
    free(x), free(y), free(z), free(sum);
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* Steps of a ring whose bytes are no whole vectors, of which kernels could take the most part in vectors. */
static void test_odd_rings(void **state) {
    (void)state;
    enum { MOST = 300003, RING = 5 };
    static const int64_t sizes[] = { 4095, 16386, MOST };
    tn_ctx *ctx = gpu_ctx();
    float *x = malloc(RING * MOST * sizeof *x), *y = malloc(RING * MOST * sizeof *y), *z = malloc(RING * MOST * sizeof *z);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        int64_t n = sizes[i], m = n / 4 * 4;
        tn_graph *g = tn_graph_new(ctx, "odd");
        tn_tensor in = tn_input(g, "x", TN_F32, TN_DIMS(n));
        tn_output(tn_relu(tn_slice(in, (int64_t[]){ 0 }, (int64_t[]){ m }, NULL, 1)), "y");
        tn_output(tn_add_scalar(in, 1), "z");
        tn_compile_opts o = on_gpu(TN_MODE_LOOP);
        tn_program *p;
        tn_session *s;
        OK(ctx, tn_compile(g, &o, &p));
        OK(ctx, tn_session_new(p, &s));
        for (int64_t k = 0; k < RING * n; k++) x[k] = (float)(k * k % 1013 - 500);
        OK(ctx, tn_session_bind_trace(s, tn_session_slot(s, "y"), y, RING));
        OK(ctx, tn_session_bind_trace(s, tn_session_slot(s, "z"), z, RING));
        OK(ctx, tn_run_n(s, RING, TN_BIND({ "x", x }), RING));
        for (int64_t step = 0; step < RING; step++)
            for (int64_t k = 0; k < n; k++) {
                float v = x[step * n + k];
                if (k < m) assert_true(y[step * m + k] == (v > 0 ? v : 0));
                assert_true(z[step * n + k] == v + 1);
            }
        tn_session_free(s);
        tn_program_free(p);
        tn_graph_free(g);
    }
    free(x), free(y), free(z);
    tn_ctx_free(ctx);
}

/* Compiled in one context, found on disk by the next, built again when the file is damaged. */
static void test_cache(void **state) {
    (void)state;
    char dir[] = "/tmp/tenon-gpu-XXXXXX", command[128];
    assert_non_null(mkdtemp(dir));
    for (int round = 0; round < 3; round++) {
        tn_config cfg = { .struct_size = sizeof cfg, .cache_dir = dir };
        tn_ctx *ctx = tn_ctx_new(&cfg);
        open_gpu(ctx);
        tn_graph *g = make_counter(ctx, 5);
        tn_compile_opts o = on_gpu(TN_MODE_COMPILED);
        tn_program *p;
        tn_session *s;
        tn_program_stats stats;
        OK(ctx, tn_compile(g, &o, &p));
        tn_program_get_stats(p, &stats);
        assert_int_equal(stats.cache_hits, round == 1);
        OK(ctx, tn_session_new(p, &s));
        int32_t x[5] = { 1, -2, 3, -4, 5 }, y[5];
        OK(ctx, tn_run(s, TN_BIND({ "x", x }, { "y", y })));
        assert_memory_equal(x, y, sizeof x);
        tn_session_free(s);
        tn_program_free(p);
        tn_graph_free(g);
        tn_ctx_free(ctx);
        snprintf(command, sizeof command, "for f in $(find %s -type f -size +1k); do printf x >> $f; done", dir);
        if (round == 1 && system(command) != 0) fail_msg("%s", command);
    }
    remove_tree(dir);
}

/* A long contraction with few results is two launches, of parts and of their sums, and the sum is that of the parts. */
static void test_long_contraction(void **state) {
    (void)state;
    enum { M = 48, N = 321, K = 2304 };
    tn_ctx *ctx = gpu_ctx();
    tn_graph *g = tn_graph_new(ctx, "long");
    tn_tensor a = tn_input(g, "a", TN_F32, TN_DIMS(M, K)), b = tn_input(g, "b", TN_F32, TN_DIMS(K, N));
    tn_output(tn_relu(tn_matmul(a, b)), "y");
    tn_compile_opts o = on_gpu(TN_MODE_COMPILED);
    tn_program *p;
    tn_session *s;
    tn_program_stats stats;
    OK(ctx, tn_compile(g, &o, &p));
    tn_program_get_stats(p, &stats);
    assert_int_equal(stats.kernels, 2);
    OK(ctx, tn_session_new(p, &s));
    float *x = malloc(sizeof(float) * M * K), *w = malloc(sizeof(float) * K * N), *y = malloc(sizeof(float) * M * N);
    rng r = { 5 };
    fill_random(&r, TN_F32, x, M * K, -1, 1), fill_random(&r, TN_F32, w, K * N, -1, 1);
    OK(ctx, tn_run(s, TN_BIND({ "a", x }, { "b", w }, { "y", y })));
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0, size = 0;
            for (int k = 0; k < K; k++) {
                double q = (double)x[i * K + k] * (double)w[k * N + j];
                sum += q, size += q < 0 ? -q : q;
            }
            double error = (double)y[i * N + j] - (sum > 0 ? sum : 0);
            if (!(error < 1e-5 * size && error > -1e-5 * size)) fail_msg("%d, %d: %g, not %g", i, j, (double)y[i * N + j], sum);
        }
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    free(x), free(w), free(y);
    tn_ctx_free(ctx);
}

/* Numbers of 8 bytes without a sign go through memory two at a time, as those with a sign do. */
static void test_unsigned_words(void **state) {
    (void)state;
    enum { M = 65, N = 70, K = 67 };
    static uint64_t a[M * K], b[K * N], y[M * N]; /* not of the heap: a test without a GPU is left from within */
    rng r = { 6 };
    for (int i = 0; i < M * K; i++) a[i] = rng_next(&r);
    for (int i = 0; i < K * N; i++) b[i] = rng_next(&r);
    tn_ctx *ctx = gpu_ctx();
    tn_graph *g = tn_graph_new(ctx, "words");
    tn_output(tn_matmul(tn_input(g, "a", TN_U64, TN_DIMS(M, K)), tn_input(g, "b", TN_U64, TN_DIMS(K, N))), "y");
    tn_compile_opts o = on_gpu(TN_MODE_COMPILED);
    tn_program *p;
    tn_session *s;
    OK(ctx, tn_compile(g, &o, &p));
    OK(ctx, tn_session_new(p, &s));
    OK(ctx, tn_run(s, TN_BIND({ "a", a }, { "b", b }, { "y", y })));
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            uint64_t sum = 0;
            for (int k = 0; k < K; k++) sum += a[i * K + k] * b[k * N + j];
            if (y[i * N + j] != sum)
                fail_msg("%d, %d: %llx, not %llx", i, j, (unsigned long long)y[i * N + j], (unsigned long long)sum);
        }
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* exp and tanh of all numbers of f16 and bf16, whose kernels may take a faster function: near the value, by the rounding of the
 * dtype and what docs/ir.md gives to an approximate or coarse function, also where it is fused. */
static void test_coarse(void **state) {
    (void)state;
    enum { N = 1 << 16 };
    static const struct {
        tn_dtype t;
        double rounding, off, smallest, largest;
    } dtypes[] = { { TN_F16, 0x1p-11, 0x1p-16, 0x1p-25, 65519.99 }, { TN_BF16, 0x1p-8, 0x1p-11, 0x1p-126, 0x1.ff0p127 } };
    static const struct {
        const char *name;
        double (*of)(double);
    } functions[] = { { "exp", exp }, { "tanh", tanh } };
    static uint16_t x[N], y[N]; /* not of the heap: a test without a GPU is left from within */
    static float z[N];
    for (int i = 0; i < N; i++) x[i] = (uint16_t)i;
    for (size_t c = 0; c < COUNT_OF(dtypes) * COUNT_OF(functions); c++) {
        size_t d = c / COUNT_OF(functions), f = c % COUNT_OF(functions);
        const char *name = functions[f].name;
        tn_ctx *ctx = gpu_ctx();
        tn_graph *g = tn_graph_new(ctx, "coarse");
        tn_tensor in = tn_input(g, "x", dtypes[d].t, TN_DIMS(N)), e = tn_op(g, name, &in, 1, NULL, 0);
        tn_output(e, "y"), tn_output(tn_cast(e, TN_F32), "z");
        tn_compile_opts o = on_gpu(TN_MODE_COMPILED);
        tn_program *p;
        tn_session *s;
        OK(ctx, tn_compile(g, &o, &p));
        OK(ctx, tn_session_new(p, &s));
        OK(ctx, tn_run(s, TN_BIND({ "x", x }, { "y", y }, { "z", z })));
        double worst = 0;
        for (int i = 0; i < N; i++) {
            double want = functions[f].of(dtype_load(dtypes[d].t, x, i)), got = dtype_load(dtypes[d].t, y, i),
                   wide = (double)z[i];
            if (isnan(want) || want > dtypes[d].largest) {
                if (isnan(want) ? !isnan(got) || !isnan(wide) : !isinf(got)) fail_msg("%s of %04x: %g", name, i, got);
                continue;
            }
            double bound = fabs(want) * (dtypes[d].rounding + (f ? dtypes[d].off : 0x1p-16)) + dtypes[d].smallest;
            if (!(fabs(got - want) <= bound)) fail_msg("%s of %04x: %g, not %g", name, i, got, want);
            if (!(fabs(wide - want) <= bound)) fail_msg("%s of %04x as f32: %g, not %g", name, i, wide, want);
            if (fabs(want) > 0x1p-126) worst = fmax(worst, fabs(wide - want) / fabs(want));
        }
        printf("%s of %s: off by 2^%.1f\n", name, tn_dtype_name(dtypes[d].t), log2(worst));
        tn_session_free(s);
        tn_program_free(p);
        tn_graph_free(g);
        tn_ctx_free(ctx);
    }
}

static double combined(tn_scan_mode mode, double sum, double x) {
    if (mode == TN_SCAN_SUM) return sum + x;
    if (mode == TN_SCAN_PROD) return sum * x;
    return isnan(sum) || isnan(x) ? NAN : mode == TN_SCAN_MAX ? fmax(sum, x) : fmin(sum, x);
}

/* Rows of running sums that are made by thread blocks, of all ways to come out in blocks; beside them what a kernel has before
 * and behind them: y = -scan(x + x), of products -scan(x). A NaN stays where it is. */
static void test_running_sums(void **state) {
    (void)state;
    enum { MOST = 70000 };
    static const struct {
        int64_t rows, n;
        tn_dtype t;
        tn_scan_mode mode;
        int how; /* 1: exclusive, 2: reverse */
    } works[] = { { 1, 69632, TN_F32, TN_SCAN_SUM, 0 }, { 1, 65536, TN_F32, TN_SCAN_SUM, 3 },
                  { 3, 20001, TN_F32, TN_SCAN_SUM, 0 }, { 5, 4096, TN_F32, TN_SCAN_MAX, 0 },
                  { 2, 8192, TN_F64, TN_SCAN_PROD, 1 }, { 7, 4090, TN_I32, TN_SCAN_MIN, 0 },
                  { 33, 256, TN_F16, TN_SCAN_SUM, 0 },  { 65, 64, TN_I64, TN_SCAN_SUM, 2 },
                  { 9, 1024, TN_F32, TN_SCAN_SUM, 2 },  { 4, 5000, TN_I32, TN_SCAN_SUM, 1 },
                  { 70, 512, TN_F32, TN_SCAN_MIN, 1 },  { 3, 768, TN_F32, TN_SCAN_SUM, 0 } };
    static double x[MOST], y[MOST];
    static uint8_t in[8 * MOST], out[8 * MOST]; /* not of the heap: a test without a GPU is left from within */
    for (size_t c = 0; c < COUNT_OF(works); c++) {
        const int64_t rows = works[c].rows, n = works[c].n, all = rows * n;
        const tn_dtype t = works[c].t;
        const bool is_float = dtype_is_float(t), adds = works[c].mode == TN_SCAN_SUM, lasts = is_float && !adds;
        rng r = { c + 1 };
        for (int64_t i = 0; i < all; i++) {
            x[i] = works[c].mode == TN_SCAN_PROD ? 2 * (double)rng_below(&r, 2) - 1 : (double)rng_below(&r, 9) - 4;
            if (lasts && i % n == n - 2) x[i] = NAN;
            dtype_store(t, in, i, x[i]);
        }
        tn_ctx *ctx = gpu_ctx();
        tn_graph *g = tn_graph_new(ctx, "running");
        tn_tensor v = tn_input(g, "x", t, TN_DIMS(rows, n));
        tn_cumulative_opts how = { .exclusive = works[c].how & 1, .reverse = works[c].how >> 1 };
        tn_output(tn_neg(tn_cumulative(works[c].mode == TN_SCAN_PROD ? v : tn_add(v, v), 1, works[c].mode, how)), "y");
        tn_compile_opts o = on_gpu(TN_MODE_COMPILED);
        tn_program *p;
        tn_session *s;
        OK(ctx, tn_compile(g, &o, &p));
        OK(ctx, tn_session_new(p, &s));
        OK(ctx, tn_run(s, TN_BIND({ "x", in }, { "y", out })));
        for (int64_t row = 0; row < rows; row++) {
            double sum = adds ? 0 : works[c].mode == TN_SCAN_PROD ? 1 : works[c].mode == TN_SCAN_MAX ? -INFINITY : INFINITY;
            if (!is_float && works[c].mode == TN_SCAN_MIN) sum = INT32_MAX;
            for (int64_t k = 0; k < n; k++) {
                int64_t i = row * n + (how.reverse ? n - 1 - k : k);
                double next = combined(works[c].mode, sum, works[c].mode == TN_SCAN_PROD ? x[i] : 2 * x[i]);
                y[i] = -(how.exclusive ? sum : next), sum = next;
            }
        }
        for (int64_t i = 0; i < all; i++) {
            double got = dtype_load(t, out, i);
            if (isnan(y[i]) ? !isnan(got) : got != y[i] && !(fabs(got - y[i]) <= fabs(y[i]) * (t == TN_F16 ? 0x1p-10 : 0)))
                fail_msg("running sums %d, element %lld: %g, not %g", (int)c, (long long)i, got, y[i]);
        }
        tn_session_free(s);
        tn_program_free(p);
        tn_graph_free(g);
        tn_ctx_free(ctx);
    }
}

typedef struct user {
    tn_program *p;
    int index, wrong;
} user;
static void *use_program(void *arg) {
    user *u = arg;
    tn_session *s;
    int32_t x[64], y[64], sum[64] = { 0 };
    if (tn_session_new(u->p, &s)) return u->wrong++, NULL;
    for (int step = 0; step < 40; step++) {
        for (int i = 0; i < 64; i++) x[i] = u->index * 1000 + step * i, sum[i] += x[i] * (step + 1);
        u->wrong += tn_run(s, TN_BIND({ "x", x }, { "y", y })) != TN_OK || memcmp(y, sum, sizeof y);
    }
    tn_session_free(s);
    return NULL;
}
static void test_threads(void **state) {
    (void)state;
    tn_ctx *ctx = gpu_ctx();
    tn_graph *g = make_counter(ctx, 64);
    tn_compile_opts o = on_gpu(TN_MODE_COMPILED);
    user users[3] = { { 0 } };
    pthread_t threads[3];
    OK(ctx, tn_compile(g, &o, &users[0].p));
    for (int i = 0; i < 3; i++) {
        users[i].p = users[0].p, users[i].index = i;
        assert_int_equal(pthread_create(&threads[i], NULL, use_program, &users[i]), 0);
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++) assert_int_equal(users[i].wrong, 0);
    tn_program_free(users[0].p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

static void test_errors(void **state) {
    (void)state;
    tn_ctx *ctx = gpu_ctx();
    device *d = open_gpu(ctx);
    err e = { 0 };
    module *m;
    buffer *b;
    const char *bad = is_cuda() ? "extern \"C\" __global__ void k(int *p) { *p = no_such_name; }"
                                : "__kernel void k(__global int *p) { *p = no_such_name; }";
    assert_int_equal(d->api->build(d, bad, strlen(bad), false, &m, NULL, &e), TN_ERR_BUILD);
    assert_non_null(strstr(e.text, "refused"));
    assert_int_equal(d->api->alloc(d, SIZE_MAX / 2, &b, &e), TN_ERR_NOMEM);
    assert_non_null(strstr(e.text, "is needed"));
    /* A plan that the device has no room for: known before anything runs, and nothing is lost. */
    tn_graph *g = tn_graph_new(ctx, "huge");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(1 << 20));
    tn_tensor wide = tn_exp(tn_expand(tn_reshape(x, TN_DIMS(1, 1 << 20)), TN_DIMS(1 << 20, 1 << 20)));
    tn_output(tn_sum(tn_mul(wide, tn_add_scalar(tn_sum(wide, TN_INTS(0), 1), 1)), TN_INTS(1), 0), "y");
    tn_compile_opts o = on_gpu(TN_MODE_GRAPH);
    o.check = 0, o.no_passes = 1;
    tn_program *p = NULL;
    tn_session *s = NULL;
    tn_status st = tn_compile(g, &o, &p);
    if (st == TN_OK) st = tn_session_new(p, &s);
    assert_int_equal(st, TN_ERR_NOMEM);
    assert_non_null(strstr(tn_ctx_error(ctx), "is needed"));
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    g = make_counter(ctx, 3); /* the context goes on */
    o = on_gpu(TN_MODE_COMPILED);
    OK(ctx, tn_compile(g, &o, &p));
    OK(ctx, tn_session_new(p, &s));
    int32_t in[3] = { 7, 8, -9 }, y[3];
    OK(ctx, tn_run(s, TN_BIND({ "x", in }, { "y", y })));
    assert_memory_equal(in, y, sizeof y);
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rings),       cmocka_unit_test(test_many_steps),
                                        cmocka_unit_test(test_large_rings), cmocka_unit_test(test_odd_rings),
                                        cmocka_unit_test(test_cache),       cmocka_unit_test(test_threads),
                                        cmocka_unit_test(test_errors),      cmocka_unit_test(test_long_contraction),
                                        cmocka_unit_test(test_coarse),      cmocka_unit_test(test_unsigned_words),
                                        cmocka_unit_test(test_running_sums) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
