/* test_growth.c - compiling takes time and memory in proportion to the graph. Graphs of many shapes are made in sizes n, 2 n, 4
 * n and 8 n; the bytes that compiling asks the host for and the processor time it takes are fitted by n^e. Memory is counted,
 * so its exponent is sharp; times are the least of a few runs, from memory that the process has touched before: of two where a
 * disturbance makes the exponent less, in the smaller sizes, and of one in the larger ones, where it makes it more, which asks
 * for all of them once more. A short campaign: a fifth of the shapes and ways, in turns.
 *
 * Labels: slow */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "drive/drive.h"
#include "support/support.h"
#include "tenon/tenon_nn.h"

#include <math.h>

enum { SIZES = 4, RETRIES = 16, MOST_NAME = 64 };
#define MEMORY_EXPONENT 1.1
/* Of a factor of 8 in size. 1.1 does not hold beside other work: graphs grow out of the caches, and searches of bounded length
 * (find_kin in sched/fuse.c, say), which small graphs end before the bound, look further in larger ones. Beside another test,
 * on a processor with 512 KiB of L2, 1.27 was seen, of different works each time, and 1.19 alone. What is quadratic in a
 * quarter of the time of the smallest graph comes to 1.49. */
#define TIME_EXPONENT 1.4
#define POOL_BYTES ((size_t)3 << 29)

/* ---- memory: one block that is used again and again, so that the system's pages are no part of the times ---- */

typedef struct pool {
    char *at;
    size_t used, asked;
} pool;

static void *pool_realloc(void *ud, void *ptr, size_t old, size_t size) {
    pool *p = ud;
    if (size == 0) return NULL;
    if (size > old) p->asked += size - old;
    size_t room = (size + 63) / 64 * 64;
    if (room > POOL_BYTES - p->used) return NULL;
    char *to = p->at + p->used;
    p->used += room;
    if (ptr) memcpy(to, ptr, old < size ? old : size);
    return to;
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- graphs ---- */

static const float zeros[64];
static tn_tensor param(tn_graph *g, const char *name, int i, tn_shape shape) {
    char text[MOST_NAME];
    snprintf(text, sizeof text, "%s%d", name, i);
    return tn_param(g, text, TN_F32, shape, NULL);
}
static void result(tn_tensor x, int i) {
    char text[MOST_NAME];
    snprintf(text, sizeof text, "y%d", i);
    tn_output(x, text);
}
static tn_tensor part(tn_tensor x, int axis, int64_t from, int64_t to) {
    tn_shape s = tn_tensor_shape(x);
    int64_t start[TN_MAX_RANK] = { 0 };
    start[axis] = from, s.dim[axis] = to;
    return tn_slice(x, start, s.dim, NULL, s.rank);
}

static tn_tensor layers(tn_graph *g, int n) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(4, 4));
    for (int i = 0; i < n; i++)
        x = tn_relu(tn_add(tn_matmul(x, param(g, "w", i, TN_DIMS(4, 4))), param(g, "b", i, TN_DIMS(4))));
    return x;
}
static void chain(tn_graph *g, int n) { tn_output(layers(g, n), "y"); }
static void chain_sgd(tn_graph *g, int n) { tn_nn_sgd(tn_mean(layers(g, n), TN_ALL_AXES, 0), (tn_nn_sgd_opts){ 0 }); }
static void chain_adam(tn_graph *g, int n) { tn_nn_adam(tn_mean(layers(g, n), TN_ALL_AXES, 0), (tn_nn_adam_opts){ 0 }); }
static void lstm_adam(tn_graph *g, int n) {
    enum { B = 2, H = 4 };
    tn_tensor xs = tn_input(g, "x", TN_F32, TN_DIMS(n, B, H)), h = tn_full(g, TN_F32, TN_DIMS(B, H), 0), c = h;
    tn_tensor w = param(g, "w", 0, TN_DIMS(H, 4 * H)), u = param(g, "u", 0, TN_DIMS(H, 4 * H));
    for (int t = 0; t < n; t++) {
        tn_tensor x = tn_reshape(part(xs, 0, t, t + 1), TN_DIMS(B, H)), gate[4];
        tn_tensor z = tn_add(tn_matmul(x, w), tn_matmul(h, u));
        for (int k = 0; k < 4; k++) gate[k] = part(z, 1, k * H, (k + 1) * H);
        c = tn_add(tn_mul(tn_sigmoid(gate[0]), c), tn_mul(tn_sigmoid(gate[1]), tn_tanh(gate[2])));
        h = tn_mul(tn_sigmoid(gate[3]), tn_tanh(c));
    }
    tn_nn_adam(tn_mean(tn_mul(h, h), TN_ALL_AXES, 0), (tn_nn_adam_opts){ 0 });
}
static void residual(tn_graph *g, int n) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(4, 8));
    for (int i = 0; i < n; i++) {
        char name[MOST_NAME];
        snprintf(name, sizeof name, "norm%d", i);
        x = tn_add(x, tn_relu(tn_matmul(tn_nn_layer_norm(x, 0, name), param(g, "w", i, TN_DIMS(8, 8)))));
    }
    tn_output(x, "y");
}
static void scaled_copies(tn_graph *g, int n) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(64)), sum = x;
    for (int i = 0; i < n; i++) sum = tn_add(sum, tn_mul_scalar(x, 1 + i * 0.25));
    tn_output(sum, "y");
}
static void scaled_tree(tn_graph *g, int n) { /* two by two */
    tn_tensor x = tn_exp(tn_input(g, "x", TN_F32, TN_DIMS(64))), *v = malloc((size_t)n * sizeof *v);
    for (int i = 0; i < n; i++) v[i] = tn_mul_scalar(x, 1 + i * 0.25);
    for (int m = n; m > 1; m = (m + 1) / 2) {
        for (int i = 0; i < m / 2; i++) v[i] = tn_add(v[2 * i], v[2 * i + 1]);
        if (m % 2) v[m / 2] = v[m - 1];
    }
    tn_output(v[0], "y");
    free(v);
}
static void scaled_copies_sgd(tn_graph *g, int n) {
    tn_tensor x = param(g, "x", 0, TN_DIMS(8, 8)), sum = x;
    for (int i = 0; i < n; i++) sum = tn_add(sum, tn_mul_scalar(tn_tanh(tn_mul_scalar(x, i * 0.5)), 1 + i * 0.25));
    tn_nn_sgd(tn_sum(sum, TN_ALL_AXES, 0), (tn_nn_sgd_opts){ 0 });
}
static void wide(tn_graph *g, int n) { /* chains with nothing in common */
    for (int i = 0; i < n; i++) {
        tn_tensor x = tn_mul_scalar(param(g, "s", i, TN_DIMS(4, 4)), 2);
        result(tn_sum(tn_relu(tn_matmul(tn_exp(x), x)), TN_INTS(1), 0), i);
    }
}
static void many_outputs(tn_graph *g, int n) { /* kernels with several results */
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(16));
    for (int i = 0; i < n; i++) result(tn_exp(tn_mul_scalar(x, i * 0.5)), i);
}
static void many_readers(tn_graph *g, int n) { /* of a value in memory and of one that is computed again */
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(4, 4)), kept = tn_exp(tn_matmul(x, x)), cheap = tn_mul_scalar(x, 2);
    for (int i = 0; i < n; i++) result(tn_matmul(i % 2 ? kept : cheap, param(g, "v", i, TN_DIMS(4, 4))), i);
}
static void join(tn_graph *g, int n, bool dots) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(4, 4)), *p = malloc((size_t)n * sizeof *p);
    for (int i = 0; i < n; i++) p[i] = dots ? tn_matmul(x, param(g, "w", i, TN_DIMS(4, 4))) : tn_mul_scalar(x, i);
    tn_output(tn_concat(p, n, 0), "y");
    free(p);
}
static void concat_elementwise(tn_graph *g, int n) { join(g, n, false); }
static void concat_dots(tn_graph *g, int n) { join(g, n, true); }
static void many_concats(tn_graph *g, int n) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(4, 8));
    for (int i = 0; i < n; i++) {
        tn_tensor both[] = { tn_exp(part(x, 1, 0, 4)), part(tn_matmul(x, param(g, "w", i, TN_DIMS(8, 8))), 1, 0, 4) };
        x = tn_concat(both, 2, 1);
    }
    tn_output(x, "y");
}
static void states(tn_graph *g, int n) {
    for (int i = 0; i < n; i++) {
        tn_tensor s = param(g, "s", i, TN_DIMS(4));
        tn_assign(s, tn_add_scalar(s, 1));
    }
}
static void states_in_turn(tn_graph *g, int n) { /* each takes what the next one had */
    tn_tensor first = param(g, "s", 0, TN_DIMS(4)), s = first;
    for (int i = 1; i < n; i++) {
        tn_tensor next = param(g, "s", i, TN_DIMS(4));
        tn_assign(s, tn_mul_scalar(next, 2));
        s = next;
    }
    tn_assign(s, tn_mul_scalar(first, 2));
}
static void late_readers(tn_graph *g, int n) { /* all values live at once */
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(4, 4)), *v = malloc((size_t)n * sizeof *v);
    for (int i = 0; i < n; i++) v[i] = x = tn_matmul(x, param(g, "w", i, TN_DIMS(4, 4)));
    for (int i = n - 1; i >= 0; i--) x = tn_matmul(x, v[i]);
    tn_output(x, "y");
    free(v);
}
static void common_norm(tn_graph *g, int n) { /* of all states */
    tn_tensor sum = tn_full(g, TN_F32, TN_DIMS(1, 1), 0), *p = malloc((size_t)n * sizeof *p);
    for (int i = 0; i < n; i++) {
        p[i] = param(g, "p", i, TN_DIMS(4, 4));
        sum = tn_add(sum, tn_sum(tn_mul(p[i], p[i]), TN_ALL_AXES, 1));
    }
    for (int i = 0; i < n; i++) tn_assign(p[i], tn_div(p[i], sum));
    free(p);
}
static void attention_adam(tn_graph *g, int n) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(4, 8));
    for (int i = 0; i < n; i++) {
        tn_tensor q = tn_matmul(x, param(g, "q", i, TN_DIMS(8, 8))), k = tn_matmul(x, param(g, "k", i, TN_DIMS(8, 8)));
        x = tn_add(x, tn_nn_attention(q, k, x, 1));
    }
    tn_nn_adam(tn_mean(x, TN_ALL_AXES, 0), (tn_nn_adam_opts){ 0 });
}
static void long_rows(tn_graph *g, int n) { /* that do not fit into the stack memory of a kernel: fused again without */
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(16, 40000));
    for (int i = 0; i < n; i++) x = tn_nn_softmax(tn_mul(tn_sin(x), param(g, "s", i, TN_DIMS(16, 1))), 1);
    tn_output(x, "y");
}
static void one_by_one(tn_graph *g, int n) { /* for immediate mode */
    tn_tensor x = tn_state(g, "x", TN_F32, TN_DIMS(16), zeros);
    for (int i = 0; i < n; i++) x = i % 2 ? tn_sin(x) : tn_add_scalar(x, 1);
}

/* ---- measuring ---- */

enum { CPU = 1, GRAPH = 2, GPU = 4, IMMEDIATE = 8, CHECKED = 16 /* not fused, and the text of dependences */ };
typedef struct work {
    const char *name;
    void (*build)(tn_graph *g, int n);
    int n;    /* the smallest size: compiling it asks for some megabytes */
    int ways; /* CPU: compiled, at fusion levels 1 and 3 */
} work;
static const work works[] = {
    { "chain", chain, 256, CPU | GRAPH | GPU | CHECKED },
    { "chain, SGD", chain_sgd, 128, CPU | GRAPH | GPU },
    { "chain, Adam", chain_adam, 64, CPU | GPU },
    { "LSTM, Adam", lstm_adam, 64, CPU | GRAPH | GPU },
    { "residual", residual, 128, CPU | GPU },
    { "scaled copies", scaled_copies, 512, CPU | GPU },
    { "scaled copies, tree", scaled_tree, 512, CPU },
    { "scaled copies, SGD", scaled_copies_sgd, 256, CPU },
    { "wide", wide, 128, CPU | GRAPH | GPU },
    { "many outputs", many_outputs, 512, CPU | GRAPH | CHECKED },
    { "many readers", many_readers, 256, CPU | GRAPH },
    { "concat", concat_elementwise, 512, CPU | GRAPH },
    { "concat of dots", concat_dots, 256, CPU | GRAPH | GPU },
    { "many concats", many_concats, 128, CPU | GRAPH | GPU },
    { "states", states, 512, CPU | GRAPH },
    { "states in turn", states_in_turn, 256, CPU | GRAPH },
    { "late readers", late_readers, 256, CPU | GRAPH | GPU | CHECKED },
    { "common norm", common_norm, 1024, CPU },
    { "attention, Adam", attention_adam, 32, CPU | GPU },
    { "long rows", long_rows, 16, CPU },
    { "one by one", one_by_one, 4096, IMMEDIATE },
};

typedef struct effort {
    double bytes, seconds;
} effort;

static target gpu_target(void) {
    return (target){ .kind = TARGET_GPU,
                     .vector_bytes = 16,
                     .n_vector_regs = 64,
                     .threads = 1,
                     .l1_bytes = 32 << 10,
                     .l2_bytes = 50 << 20,
                     .block_threads = 256,
                     .max_block_threads = 1024,
                     .shared_bytes = 48 << 10,
                     .resident_threads = 1 << 17,
                     .buffers = 256,
                     .cluster = 8,
                     .clusters = 16 };
}

static void plan_for_gpu(pool *p, const tn_graph *g, int fusion) {
    arena a;
    guard gd;
    target t = gpu_target();
    arena_init(&a, (mem){ pool_realloc, p }, &gd);
    if (GUARD_TRY(&gd)) {
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = fusion;
        pipeline_run(g->ir, &a, &o, &t);
    } else {
        fail_msg("%s", gd.err.text);
    }
    arena_fini(&a);
}

static void compile(tn_ctx *ctx, tn_graph *g, int way, int fusion) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *s;
    o.mode = way == GRAPH ? TN_MODE_GRAPH : TN_MODE_COMPILED, o.fusion = fusion, o.threads = 2;
    o.check = way == CHECKED;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    if (way == CHECKED) {
        char *text;
        if (tn_program_text(p, "deps", &text)) fail_msg("%s", tn_ctx_error(ctx));
        tn_string_free(ctx, text);
    }
    tn_session_free(s);
    tn_program_free(p);
}

static effort measure(pool *p, const work *w, int way, int fusion, int n) {
    p->used = p->asked = 0;
    tn_config cfg = test_config();
    cfg.realloc = pool_realloc, cfg.realloc_ud = p, cfg.cache_dir = NULL;
    tn_ctx *ctx = tn_ctx_new(&cfg);
    double start = cpu_seconds();
    tn_graph *g = way == IMMEDIATE ? tn_graph_immediate(ctx, "g") : tn_graph_new(ctx, "g");
    w->build(g, n);
    if (tn_graph_status(g)) fail_msg("%s: %s", w->name, tn_ctx_error(ctx));
    if (way == GPU)
        plan_for_gpu(p, g, fusion);
    else if (way != IMMEDIATE)
        compile(ctx, g, way, fusion);
    effort c = { (double)p->asked, cpu_seconds() - start };
    tn_graph_free(g);
    tn_ctx_free(ctx);
    return c;
}

static double exponent(const double *y) { /* least squares of log y over log n */
    double sx = 0, sy = 0, sxx = 0, sxy = 0;
    for (int i = 0; i < SIZES; i++) {
        double x = i, v = log2(y[i]);
        sx += x, sy += v, sxx += x * x, sxy += x * v;
    }
    return (SIZES * sxy - sx * sy) / (SIZES * sxx - sx * sx);
}

typedef struct worst {
    double bytes, seconds;
    char bytes_at[MOST_NAME * 2], seconds_at[MOST_NAME * 2];
} worst;

static void check_work(pool *p, const work *w, int way, int fusion, worst *most) {
    double bytes[SIZES], seconds[SIZES], e = 0;
    int n = way == CHECKED ? 4 * w->n : w->n; /* pairs of launches are soon looked at: many show that they are */
    const char *ways[] = {
        [CPU] = "compiled", [GRAPH] = "graph", [GPU] = "GPU", [IMMEDIATE] = "immediate", [CHECKED] = "checked"
    };
    char name[MOST_NAME * 2];
    snprintf(name, sizeof name, "%s, %s, fusion %d", w->name, ways[way], fusion);
    for (int i = 0; i < SIZES; i++) seconds[i] = 1e9;
    for (int tries = 0; tries < RETRIES && (tries == 0 || e > TIME_EXPONENT); tries++) {
        for (int i = 0; i < SIZES; i++)
            for (int run = 0; run < (i < SIZES / 2 ? 2 : 1); run++) {
                effort c = measure(p, w, way, fusion, n << i);
                bytes[i] = c.bytes;
                if (c.seconds < seconds[i]) seconds[i] = c.seconds;
            }
        e = exponent(seconds);
    }
    double m = exponent(bytes);
    if (m > most->bytes) most->bytes = m, memcpy(most->bytes_at, name, sizeof name);
    if (e > most->seconds) most->seconds = e, memcpy(most->seconds_at, name, sizeof name);
    if (m > MEMORY_EXPONENT || e > TIME_EXPONENT)
        fail_msg("%s: bytes grow like n^%.2f (%.3g to %.3g), time like n^%.2f (%.3g to %.3g s), n from %d to %d", name, m,
                 bytes[0], bytes[SIZES - 1], e, seconds[0], seconds[SIZES - 1], n, n << (SIZES - 1));
}

static void test_growth(void **state) {
    (void)state;
    pool p = { .at = malloc(POOL_BYTES) };
    worst most = { 0 };
    int n = 0;
    uint64_t of_all = 0;
    assert_non_null(p.at);
    const char *only = getenv("TENON_GROWTH");
    for (size_t i = 0; i < COUNT_OF(works); i++) {
        const work *w = &works[i];
        if (only && strcmp(only, w->name) != 0) continue;
        for (int way = 1; way <= CHECKED; way *= 2)
            for (int fusion = way == CPU   ? 1
                              : way == GPU ? 3
                                           : 0;
                 (w->ways & way) && fusion <= (way == CPU || way == GPU ? 3 : 0); fusion += 2) { /* 3 does what 2 does */
                if (!campaign_has(of_all++, 5)) continue;
                check_work(&p, w, way, fusion, &most);
                n++;
            }
    }
    printf("count: growth of %d ways to compile large graphs: memory at most n^%.2f (%s), time n^%.2f (%s)\n", n, most.bytes,
           most.bytes_at, most.seconds, most.seconds_at);
    free(p.at);
}

/* A network of 16,384 layers. Its time is told, not judged: this may be any machine, with anything beside. */
static void test_deep(void **state) {
    (void)state;
    pool p = { .at = malloc(POOL_BYTES) };
    static const work deep = { "chain", chain, 16384, CPU };
    assert_non_null(p.at);
    measure(&p, &deep, CPU, 3, deep.n);
    effort c = measure(&p, &deep, CPU, 3, deep.n);
    printf("count: growth: %d layers built and compiled in %.2f s of processor time with %.0f MB\n", deep.n, c.seconds,
           c.bytes / 1e6);
    assert_true(c.bytes < 40e3 * deep.n);
    free(p.at);
}

/* Where the scheduler leaves out some of what it could try, it says so. */
static void test_limit_is_told(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    for (int n = 16; n <= 256; n *= 16) {
        tn_graph *g = tn_graph_new(ctx, "g");
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        tn_program *p;
        char *text;
        lstm_adam(g, n);
        if (tn_compile(g, &o, &p) || tn_program_text(p, "explain", &text)) fail_msg("%s", tn_ctx_error(ctx));
        assert_int_equal(strstr(text, "too many kernels share operands") != NULL, n == 256);
        tn_string_free(ctx, text);
        tn_program_free(p);
        tn_graph_free(g);
    }
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_growth), cmocka_unit_test(test_deep),
                                        cmocka_unit_test(test_limit_is_told) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
