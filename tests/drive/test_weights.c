/* test_weights.c - how often weights are held: the bytes that a program and its sessions keep are counted, and sessions that
 * share weights see their own values after they set some.
 *
 * Labels: threads long */
#include "tenon/tenon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rt/null.h"
#include "run/run.h"
#include "support/support.h"

enum { N = 1024, ROWS = 4, THREADS = 4 };
static const double WEIGHTS = 3.0 * N * N * sizeof(float);
static const double SMALL =
    2 * (2 << 20) + (1 << 19); /* a large buffer's alignment, and an arena's; code, plan, rows of inputs and outputs */

static atomic_llong live;
static void *counting(void *ud, void *ptr, size_t old, size_t size) {
    (void)ud;
    if (size == 0) {
        atomic_fetch_sub(&live, (long long)old);
        free(ptr);
        return NULL;
    }
    void *p = realloc(ptr, size);
    if (p) atomic_fetch_add(&live, (long long)size - (long long)old);
    return p;
}
static tn_ctx *counted_ctx(void) {
    tn_config cfg = { .struct_size = sizeof cfg, .realloc = counting };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    assert_non_null(ctx);
    return ctx;
}

static float *weights(void) {
    float *w = malloc((size_t)N * N * sizeof *w);
    rng r = rng_make(7);
    fill_random(&r, TN_F32, w, (int64_t)N * N, -1, 1);
    return w;
}

typedef enum form { ROWWISE, PRODUCTS } form;

/* Three layers with weights of N x N, read as they lie or by products of matrices. */
static tn_graph *layers_of(tn_ctx *ctx, form f, const float *w, bool constant) {
    tn_graph *g = tn_graph_new(ctx, "layers");
    tn_tensor x = tn_input(g, "x", TN_F32, f == ROWWISE ? TN_DIMS(N) : TN_DIMS(ROWS, N));
    for (int i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        tn_tensor p = constant ? tn_const(g, TN_F32, TN_DIMS(N, N), w) : tn_state(g, name, TN_F32, TN_DIMS(N, N), w);
        x = f == ROWWISE ? tn_mean(tn_mul(p, x), TN_INTS(1), 0) : tn_relu(tn_matmul(x, p));
    }
    tn_output(x, "y");
    return g;
}
static tn_graph *layers(tn_ctx *ctx, form f, const float *w) { return layers_of(ctx, f, w, false); }

static tn_program *compiled(tn_ctx *ctx, form f, const float *w, tn_mode mode) {
    tn_program *p;
    tn_graph *g = layers(ctx, f, w);
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    opts.mode = mode, opts.threads = 1;
    if (tn_compile(g, &opts, &p)) fail_msg("%s", tn_ctx_error(ctx));
    tn_graph_free(g);
    return p;
}

static tn_session *session(tn_program *p) {
    tn_session *s;
    assert_int_equal(tn_session_new(p, &s), TN_OK);
    return s;
}

static void at_most(const char *what, double copies) {
    double bytes = (double)atomic_load(&live), most = copies * WEIGHTS + SMALL;
    if (bytes > most) fail_msg("%s: %.0f bytes are held, expected at most %.0f (weights %.0f)", what, bytes, most, WEIGHTS);
}

static void once(form f, tn_mode mode, const float *w, const char *what) {
    tn_ctx *ctx = counted_ctx();
    tn_program *p = compiled(ctx, f, w, mode);
    at_most(what, 1.1);
    tn_session *one = session(p);
    at_most(what, 1.1);
    tn_session *two = session(p);
    at_most(what, 1.1);
    tn_session_free(one), tn_session_free(two);
    tn_program_free(p);
    tn_ctx_free(ctx);
    assert_int_equal(atomic_load(&live), 0);
}

static void test_plain_weights_once(void **state) {
    (void)state;
    float *w = weights();
    once(ROWWISE, TN_MODE_COMPILED, w, "weights as they lie");
    free(w);
}

static void test_packed_weights_once(void **state) {
    (void)state;
    float *w = weights();
    once(PRODUCTS, TN_MODE_COMPILED, w, "weights in panels");
    free(w);
}

/* What the system counts, in a process of its own: 256 MiB of weights, and one, two and four sessions that have run. */
enum { RESIDENT_N = 4096, RESIDENT_LAYERS = 4 };
static double resident(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%*s %ld", &pages) != 1) pages = 0;
    if (f) fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static tn_program *large_program(tn_ctx *ctx, form f, bool constant) {
    size_t count = (size_t)RESIDENT_N * RESIDENT_N;
    float *w = malloc(count * sizeof *w);
    for (size_t i = 0; i < count; i++) w[i] = (float)(i % 17) / 17 - 0.5f;
    tn_graph *g = tn_graph_new(ctx, "large");
    tn_tensor x = tn_input(g, "x", TN_F32, f == ROWWISE ? TN_DIMS(RESIDENT_N) : TN_DIMS(ROWS, RESIDENT_N));
    for (int i = 0; i < RESIDENT_LAYERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        tn_tensor p = constant ? tn_const(g, TN_F32, TN_DIMS(RESIDENT_N, RESIDENT_N), w)
                               : tn_state(g, name, TN_F32, TN_DIMS(RESIDENT_N, RESIDENT_N), w);
        x = f == ROWWISE ? tn_mean(tn_mul(p, x), TN_INTS(1), 0) : tn_matmul(x, p);
    }
    tn_output(x, "y");
    tn_program *p;
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    opts.threads = 1;
    free(w);
    if (tn_compile(g, &opts, &p)) fail_msg("%s", tn_ctx_error(ctx));
    tn_graph_free(g);
    return p;
}

static int measure_resident(form f, bool constant, const char *what) {
    static float x[ROWS * RESIDENT_N], y[ROWS * RESIDENT_N];
    const double MIB = 1 << 20, weights_bytes = (double)RESIDENT_LAYERS * RESIDENT_N * RESIDENT_N * sizeof(float);
    double first = resident(), at[5] = { 0 };
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_program *p = large_program(ctx, f, constant);
    for (int n = 1; n <= 4; n++) {
        if (tn_run(session(p), TN_BIND({ "x", x }, { "y", y }))) return 1;
        at[n] = resident() - first;
    }
    printf("%s, %.0f MiB: resident with 1, 2, 4 sessions %.1f, %.1f, %.1f MiB\n", what, weights_bytes / MIB, at[1] / MIB,
           at[2] / MIB, at[4] / MIB);
    fflush(stdout);
    return at[1] > 1.02 * weights_bytes || at[4] - at[1] > 3 * MIB; /* 64 KiB of activations, 64 of outputs, the lists */
}

static void test_resident(void **state) {
    (void)state;
    if (TEST_SANITIZED || resident() <= 0) skip(); /* shadow memory is resident, too */
    for (int i = 0; i < 4; i++) {
        static const char *const what[] = { "weights as they lie", "weights in panels", "constants as they lie",
                                            "constants in panels" };
        int status;
        fflush(stdout);
        pid_t child = fork();
        if (!child) _exit(measure_resident(i % 2 ? PRODUCTS : ROWWISE, i >= 2, what[i]));
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status))
            fail_msg("more is resident than the weights once and a fiftieth, and sessions");
    }
}

/* Constants are the program's alone, too. Its texts have them, and compile to what computes the same bits. */
static void constants_once(form f) {
    static float x[ROWS * N], y[3][ROWS * N];
    float *w[3];
    char *text;
    tn_ctx *ctx = counted_ctx();
    tn_graph *g = tn_graph_new(ctx, "constants");
    rng r = rng_make(5);
    fill_random(&r, TN_F32, x, ROWS * N, -1, 1);
    tn_tensor t = tn_input(g, "x", TN_F32, f == ROWWISE ? TN_DIMS(N) : TN_DIMS(ROWS, N));
    for (int i = 0; i < 3; i++) {
        w[i] = malloc((size_t)N * N * sizeof(float));
        fill_random(&r, TN_F32, w[i], (int64_t)N * N, -0.1, 0.1);
        tn_tensor p = tn_const(g, TN_F32, TN_DIMS(N, N), w[i]);
        t = f == ROWWISE ? tn_mean(tn_mul(p, t), TN_INTS(1), 0) : tn_relu(tn_matmul(t, p));
        free(w[i]);
    }
    tn_output(t, "y");
    tn_program *p, *again;
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    opts.threads = 1;
    if (tn_compile(g, &opts, &p)) fail_msg("%s", tn_ctx_error(ctx));
    tn_graph_free(g);
    at_most("constants", 1.1);
    tn_session *one = session(p), *two = session(p);
    assert_int_equal(tn_run(one, TN_BIND({ "x", x }, { "y", y[0] })), TN_OK);
    assert_int_equal(tn_run(two, TN_BIND({ "x", x }, { "y", y[1] })), TN_OK);
    at_most("constants of two sessions", 1.1);
    assert_int_equal(tn_program_text(p, "graph", &text), TN_OK);
    if (f == PRODUCTS) assert_true(p->n_packed == 3);
    tn_session_free(one), tn_session_free(two);
    tn_program_free(p);
    g = tn_graph_parse(ctx, text, strlen(text), "text");
    tn_ctx_realloc(ctx, text, strlen(text) + 1, 0);
    if (!g || tn_compile(g, &opts, &again)) fail_msg("%s", tn_ctx_error(ctx));
    tn_graph_free(g);
    one = session(again);
    assert_int_equal(tn_run(one, TN_BIND({ "x", x }, { "y", y[2] })), TN_OK);
    for (int i = 1; i < 3; i++) assert_memory_equal(y[0], y[i], sizeof(float) * (f == ROWWISE ? N : ROWS * N));
    tn_session_free(one);
    tn_program_free(again);
    tn_ctx_free(ctx);
    assert_int_equal(atomic_load(&live), 0);
}
static void test_constants_once(void **state) {
    (void)state;
    constants_once(ROWWISE), constants_once(PRODUCTS);
}

/* Other texts and tuning want packed constants as they lie, too. */
static void test_constants_for_others(void **state) {
    (void)state;
    tn_ctx *ctx = counted_ctx();
    float *w = weights();
    static const char *const stages[] = { "cuda", "opencl", "standalone", "explain", "plan" };
    tn_graph *g = layers_of(ctx, PRODUCTS, w, true);
    tn_program *p;
    tn_tuning *t;
    if (tn_compile(g, NULL, &p)) fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 0; i < 5; i++) {
        char *text;
        if (i == 2 && TEST_SANITIZED) continue; /* 60 MB of it */
        assert_int_equal(tn_program_text(p, stages[i], &text), TN_OK);
        if (i == 2) assert_non_null(strstr(text, "data_")); /* digits of the weights */
        tn_ctx_realloc(ctx, text, strlen(text) + 1, 0);
    }
    tn_program_free(p);
    tn_tune_opts how = { .struct_size = sizeof how };
    how.seconds = 0.3;
    if (tn_tune(g, NULL, &how, &t)) fail_msg("%s", tn_ctx_error(ctx));
    tn_tuning_free(t);
    tn_graph_free(g);
    tn_ctx_free(ctx);
    free(w);
    assert_int_equal(atomic_load(&live), 0);
}

static void test_immediate_weights_once(void **state) {
    (void)state;
    float *w = weights();
    once(PRODUCTS, TN_MODE_IMMEDIATE, w, "weights of immediate mode");
    free(w);
}

/* Without initial values there is nothing to share: the first copy is the session's. */
static void test_no_initial_values(void **state) {
    (void)state;
    float *w = weights();
    tn_ctx *ctx = counted_ctx();
    tn_program *p = compiled(ctx, ROWWISE, NULL, TN_MODE_COMPILED);
    at_most("a program without values", 0);
    tn_session *s = session(p);
    assert_int_equal(tn_session_set(s, "w1", w, (size_t)N * N * sizeof *w), TN_OK);
    at_most("values of a session", 1.1);
    tn_session_free(s);
    tn_program_free(p);
    tn_ctx_free(ctx);
    free(w);
}

/* ---- what sessions see ---- */

static void run(tn_session *s, form f, float *y) {
    static _Thread_local float x[ROWS * N];
    for (int i = 0; i < ROWS * N; i++) x[i] = (float)(i % 7) - 3;
    assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "y", y })), TN_OK);
    if (f == ROWWISE) memset(y + N, 0, (ROWS - 1) * N * sizeof *y);
}

static void own_values(form f, tn_mode mode) {
    tn_ctx *ctx = counted_ctx();
    size_t bytes = (size_t)N * N * sizeof(float);
    float *w = weights(), *got = malloc(bytes), *other = calloc(N, N * sizeof *other), y[4][ROWS * N];
    for (int i = 0; i < N; i++) other[i * N + (i + 1) % N] = 2;
    tn_program *p = compiled(ctx, f, w, mode);
    tn_session *a = session(p), *b = session(p);
    run(a, f, y[0]), run(b, f, y[1]);
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    assert_int_equal(tn_session_set(a, "w1", other, bytes), TN_OK);
    run(a, f, y[2]), run(b, f, y[3]);
    assert_memory_not_equal(y[2], y[0], sizeof y[0]);
    assert_memory_equal(y[3], y[1], sizeof y[0]);
    for (int i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        assert_int_equal(tn_session_get(a, name, got, bytes), TN_OK);
        assert_memory_equal(got, i == 1 ? other : w, bytes);
        assert_int_equal(tn_session_get(b, name, got, bytes), TN_OK);
        assert_memory_equal(got, w, bytes);
    }
    tn_session *c = session(p); /* the program's values, still */
    run(c, f, y[3]);
    assert_memory_equal(y[3], y[1], sizeof y[0]);
    assert_int_equal(tn_session_set(a, "w1", w, bytes), TN_OK);
    run(a, f, y[2]);
    assert_memory_equal(y[2], y[1], sizeof y[0]);
    tn_session_free(a), tn_session_free(b), tn_session_free(c);
    tn_program_free(p);
    tn_ctx_free(ctx);
    free(w), free(got), free(other);
}

static void test_own_values(void **state) {
    (void)state;
    static const tn_mode modes[] = { TN_MODE_IMMEDIATE, TN_MODE_GRAPH, TN_MODE_COMPILED, TN_MODE_LOOP };
    for (int i = 0; i < 4; i++) own_values(ROWWISE, modes[i]), own_values(PRODUCTS, modes[i]);
}

/* The text of a program has its initial values after the graph is gone. */
static void test_text(void **state) {
    (void)state;
    tn_ctx *ctx = counted_ctx();
    float w[4] = { 1.5f, 2.5f, 3.5f, 4.5f };
    tn_graph *g = tn_graph_new(ctx, "text");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(4));
    tn_output(tn_add(x, tn_param(g, "w", TN_F32, TN_DIMS(4), w)), "y");
    tn_program *p;
    assert_int_equal(tn_compile(g, NULL, &p), TN_OK);
    tn_graph_free(g);
    static const char *const stages[] = { "graph", "standalone" };
    for (int i = 0; i < 2; i++) {
        char *text;
        assert_int_equal(tn_program_text(p, stages[i], &text), TN_OK);
        if (!strstr(text, i ? "data_" : "3.5")) fail_msg("no values in %s", text);
        text = tn_ctx_realloc(ctx, text, strlen(text) + 1, 0);
    }
    tn_program_free(p);
    tn_ctx_free(ctx);
}

/* ---- panels and back ---- */

enum { WIDE = 83, DEEP = 132, BATCH = 3, BYTES = BATCH * WIDE * DEEP * 8 };

/* A weight as the right operand of a product, in several orders: 0 as it lies, 1 transposed, 2 a batch of them. */
static tn_graph *product(tn_ctx *ctx, tn_dtype t, int order, const void *value) {
    tn_graph *g = tn_graph_new(ctx, "product");
    tn_tensor x = tn_input(g, "x", t, order == 2 ? TN_DIMS(BATCH, 33, DEEP) : TN_DIMS(33, DEEP));
    tn_shape shape = order == 0 ? TN_DIMS(DEEP, WIDE) : order == 1 ? TN_DIMS(WIDE, DEEP) : TN_DIMS(BATCH, DEEP, WIDE);
    tn_tensor w = tn_state(g, "w", t, shape, value);
    bool whole = t == TN_I8 || t == TN_U8;
    if (whole) x = tn_cast(x, TN_I32), w = tn_cast(w, TN_I32);
    tn_output(tn_matmul(x, order == 1 ? tn_transpose(w, 0, 1) : w), "y");
    return g;
}

static bool comes_back(tn_ctx *ctx, tn_dtype t, int order, const uint8_t *value) {
    static uint8_t got[BYTES];
    tn_graph *g = product(ctx, t, order, value);
    tn_program *p;
    if (tn_compile(g, NULL, &p)) fail_msg("%s", tn_ctx_error(ctx));
    tn_graph_free(g);
    tn_session *s = session(p);
    size_t bytes = tn_dtype_size(t) * WIDE * DEEP * (order == 2 ? BATCH : 1);
    for (int turn = 0; turn < 2; turn++) { /* the program's, then the session's own */
        memset(got, 0, bytes);
        assert_int_equal(tn_session_get(s, "w", got, bytes), TN_OK);
        if (memcmp(got, value + turn, bytes) != 0) fail_msg("order %d of %s: other values", order, tn_dtype_name(t));
        if (!turn) assert_int_equal(tn_session_set(s, "w", value + 1, bytes), TN_OK);
    }
    bool packed = p->plan->bufs.at[p->states[0].buf].panels != NULL;
    tn_session_free(s);
    tn_program_free(p);
    return packed;
}

static void test_panels_come_back(void **state) {
    (void)state;
    static const tn_dtype types[] = { TN_F32, TN_F64, TN_F16, TN_BF16, TN_I8, TN_U8, TN_I32 };
    static uint8_t value[BYTES + 8];
    tn_ctx *ctx = counted_ctx();
    int packed = 0;
    for (int i = 0; i < BYTES + 8; i++) value[i] = (uint8_t)(i * 37 + i / 251);
    for (size_t t = 0; t < COUNT_OF(types); t++)
        for (int order = 0; order < 3; order++) packed += comes_back(ctx, types[t], order, value);
    tn_ctx_free(ctx);
    print_message("packed: %d of %d\n", packed, (int)COUNT_OF(types) * 3);
    assert_true(packed > 0);
}

/* ---- several orders of one weight ---- */

enum { M = 264, SIDE = 192 };

/* x w, `wide` times, and x w^T, `turned` times. */
static tn_program *both_orders(tn_ctx *ctx, int wide, int transposed, const float *w) {
    tn_graph *g = tn_graph_new(ctx, "orders");
    tn_tensor p = tn_state(g, "w", TN_F32, TN_DIMS(SIDE, SIDE), w);
    for (int i = 0; i < wide + transposed; i++) {
        char name[8];
        snprintf(name, sizeof name, "x%d", i);
        tn_tensor x = tn_input(g, name, TN_F32, TN_DIMS(M, SIDE));
        name[0] = 'y';
        tn_output(tn_matmul(x, i < wide ? p : tn_transpose(p, 0, 1)), name);
    }
    tn_program *out;
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    opts.threads = 1, opts.check = 1;
    if (tn_compile(g, &opts, &out)) fail_msg("%s", tn_ctx_error(ctx));
    tn_graph_free(g);
    return out;
}

/* The order that most kernels read is the stored one, the other a copy; every bit is there after setting and getting. */
static void test_orders(void **state) {
    (void)state;
    static float w[SIDE * SIDE], other[SIDE * SIDE], got[SIDE * SIDE], x[M * SIDE], y[3][M * SIDE];
    static const int uses[][2] = { { 2, 1 }, { 1, 2 }, { 1, 0 }, { 0, 1 } };
    rng r = rng_make(11);
    tn_ctx *ctx = counted_ctx();
    fill_random(&r, TN_F32, w, SIDE * SIDE, -1, 1), fill_random(&r, TN_F32, other, SIDE * SIDE, -1, 1);
    fill_random(&r, TN_F32, x, M * SIDE, -1, 1);
    for (size_t u = 0; u < COUNT_OF(uses); u++) {
        tn_program *p = both_orders(ctx, uses[u][0], uses[u][1], w);
        const pbuf *b = &p->plan->bufs.at[p->states[0].buf];
        int both = uses[u][0] && uses[u][1], copies = 0;
        for (int i = 0; i < p->plan->bufs.n; i++) copies += p->plan->bufs.at[i].copy;
        assert_int_equal(copies, both);
        assert_non_null(b->panels);
        assert_int_equal(b->panels->column.step, uses[u][0] > uses[u][1] ? 1 : SIDE);
        assert_int_equal(p->plan->shared_bytes, (1 + both) * plan_room(sizeof w));
        tn_session *s = session(p), *t = session(p);
        assert_int_equal(tn_session_set(s, "w", other, sizeof other), TN_OK);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(tn_session_get(i ? t : s, "w", got, sizeof got), TN_OK);
            assert_memory_equal(got, i ? w : other, sizeof got);
        }
        tn_binding all[8];
        char names[8][4];
        for (int k = 0; k < uses[u][0] + uses[u][1]; k++) {
            snprintf(names[2 * k], 4, "x%d", k), snprintf(names[2 * k + 1], 4, "y%d", k);
            all[2 * k] = (tn_binding){ names[2 * k], x }, all[2 * k + 1] = (tn_binding){ names[2 * k + 1], y[k] };
        }
        assert_int_equal(tn_run(s, all, 2 * (uses[u][0] + uses[u][1])), TN_OK);
        for (int n = 0; n < 64; n++) {
            int row = (int)rng_below(&r, M), col = (int)rng_below(&r, SIDE);
            for (int transposed = 0; transposed < 2; transposed++) {
                double sum = 0;
                for (int k = 0; k < SIDE; k++)
                    sum += (double)x[row * SIDE + k] * (double)other[transposed ? col * SIDE + k : k * SIDE + col];
                if (uses[u][transposed])
                    assert_true(fabs(sum - (double)y[transposed ? uses[u][0] : 0][row * SIDE + col]) < 1e-4);
            }
        }
        tn_session_free(s), tn_session_free(t);
        tn_program_free(p);
    }
    tn_ctx_free(ctx);
}

/* ---- what is printed is what is taken ---- */

static uint64_t printed(tn_ctx *ctx, const tn_program *p, const char *key) {
    char *text;
    assert_int_equal(tn_program_text(p, "explain.json", &text), TN_OK);
    const char *at = strstr(text, key);
    if (!at) fail_msg("no %s in the text", key);
    uint64_t n = strtoull(at + strlen(key) + 1, NULL, 10);
    tn_ctx_realloc(ctx, text, strlen(text) + 1, 0);
    return n;
}

/* The device null counts: the program's memory after compiling, a session's after it was made, nothing more by running. */
static void check_printed(form f, const float *w, tn_mode mode) {
    tn_ctx *ctx = counted_ctx();
    tn_graph *g = layers(ctx, f, w);
    tn_program *p;
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    null_counts c;
    uint64_t io = 0, alive;
    static float x[ROWS * N], y[ROWS * N];
    opts.mode = mode, opts.device = "null";
    if (tn_compile(g, &opts, &p)) fail_msg("%s", tn_ctx_error(ctx));
    tn_graph_free(g);
    null_get_counts(p->dev, &c);
    assert_int_equal(c.bytes, printed(ctx, p, "\"program_bytes\""));
    alive = c.bytes;
    for (int i = 0; i < p->n_io; i++) io += (uint64_t)p->io[i].bytes;
    for (int n = 1; n <= 3; n++) {
        tn_session *s = session(p);
        assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "y", y })), TN_OK);
        null_get_counts(p->dev, &c);
        assert_int_equal(c.bytes - alive, printed(ctx, p, "\"session_bytes\"") + io);
        tn_session_free(s);
        null_get_counts(p->dev, &c);
        assert_int_equal(c.bytes, alive);
    }
    tn_program_free(p);
    tn_ctx_free(ctx);
}

static void test_printed(void **state) {
    (void)state;
    float *w = weights();
    for (form f = ROWWISE; f <= PRODUCTS; f++)
        for (int given = 0; given < 2; given++)
            check_printed(f, given ? w : NULL, TN_MODE_COMPILED), check_printed(f, given ? w : NULL, TN_MODE_GRAPH);
    free(w);
}

/* ---- sessions made at once ---- */

typedef struct maker {
    tn_program *p;
    const float *other;
    float y[ROWS * N];
} maker;
static void *make(void *arg) {
    maker *m = arg;
    tn_session *s = session(m->p);
    if (m->other && tn_session_set(s, "w0", m->other, (size_t)N * N * sizeof *m->other)) return NULL;
    run(s, PRODUCTS, m->y);
    tn_session_free(s);
    return NULL;
}
static void test_at_once(void **state) {
    (void)state;
    static maker m[THREADS];
    tn_ctx *ctx = counted_ctx();
    float *w = weights(), *zeros = calloc(N, N * sizeof *zeros);
    tn_program *p = compiled(ctx, PRODUCTS, w, TN_MODE_COMPILED);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        m[i].p = p, m[i].other = i % 2 ? zeros : NULL;
        assert_int_equal(pthread_create(&threads[i], NULL, make, &m[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 2; i < THREADS; i++) assert_memory_equal(m[i].y, m[i - 2].y, sizeof m[i].y);
    for (int i = 0; i < ROWS * N; i++) assert_true(m[1].y[i] == 0);
    assert_memory_not_equal(m[0].y, m[1].y, sizeof m[0].y);
    tn_program_free(p);
    tn_ctx_free(ctx);
    free(w), free(zeros);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_weights_once),
        cmocka_unit_test(test_packed_weights_once),
        cmocka_unit_test(test_constants_once),
        cmocka_unit_test(test_constants_for_others),
        cmocka_unit_test(test_immediate_weights_once),
        cmocka_unit_test(test_resident),
        cmocka_unit_test(test_no_initial_values),
        cmocka_unit_test(test_own_values),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_panels_come_back),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_printed),
        cmocka_unit_test(test_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
