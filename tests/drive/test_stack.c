/* test_stack.c - 64 KiB of stack are enough to build, differentiate, compile and run graphs of any size and depth.
 *
 * Each case runs in a process of its own, on a thread whose stack ends at memory that nothing may touch, more than any
 * frame could step over: a case that needs more dies, and the test names it. What a case took is read off the stack, which is
 * filled with a pattern before. The thread's own data, which the C library keeps at the top of its stack, count, too. A short
 * campaign: a quarter of the cases, in turns.
 *
 * Labels: slow */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "drive/drive.h"
#include "emit/emit.h"
#include "support/support.h"
#include "tenon/tenon_nn.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Sanitizers put zones around each local array and keep compilers from sharing a place among locals: frames get several times
 * as large. The bound of such builds says only that depth does not matter. */
#if TEST_SANITIZED
enum { STACK_BYTES = 512 << 10, LARGE = 4 };
#else
enum { STACK_BYTES = 64 << 10, LARGE = 1 }; /* LARGE: how many times smaller the largest graphs are */
#endif
/* A frame has 16 bytes at least: a function that calls itself for each of LEVELS nodes, or kernels, needs more than there is.
 */
enum { LEVELS = 6000 / LARGE };
enum { MOST_NAME = 64, PATTERN = 0x5c, GUARD_BYTES = 4 << 20 };
#define LIST(...) ((const int64_t[]){ __VA_ARGS__ })

/* ---- graphs ---- */

static tn_tensor input(tn_graph *g, const char *name, tn_shape shape) { return tn_input(g, name, TN_F32, shape); }

static void chain(tn_graph *g) { /* and its gradient */
    tn_tensor p = tn_param(g, "p", TN_F32, TN_DIMS(8), NULL), x = p;
    for (int i = 0; i < 20000 / LARGE; i++) x = i % 2 ? tn_tanh(x) : tn_mul(x, p);
    tn_nn_sgd(tn_mean(x, TN_ALL_AXES, 0), (tn_nn_sgd_opts){ 0 });
}
static void adds(tn_graph *g) { /* as many as fit a kernel, and a hundred such */
    tn_tensor x = input(g, "x", TN_DIMS(2)), y = x;
    for (int i = 0; i < 100000 / LARGE; i++) y = tn_add(y, x);
    tn_output(y, "y");
}
static void concats(tn_graph *g) { /* each is cut in two and put together again, another way */
    tn_tensor x = input(g, "x", TN_DIMS(4));
    for (int i = 0; i < 20000 / LARGE; i++) {
        tn_tensor part[2] = { tn_slice(x, LIST(1 + i % 2), LIST(4), NULL, 1), tn_slice(x, LIST(0), LIST(1 + i % 2), NULL, 1) };
        x = tn_concat(part, 2, 0);
    }
    tn_output(x, "y");
}
static void nested_concats(tn_graph *g) { /* each is a part of the next one: memory grows with the square */
    tn_tensor x = input(g, "x", TN_DIMS(1)), y = x;
    for (int i = 0; i < LEVELS; i++) y = tn_concat((tn_tensor[]){ i % 2 ? tn_exp(x) : x, y }, 2, 0);
    tn_output(y, "y");
}
static void casts(tn_graph *g) { /* and views */
    tn_tensor x = input(g, "x", TN_DIMS(4, 6));
    for (int i = 0; i < 5000 / LARGE; i++) {
        x = tn_transpose(tn_cast(tn_cast(x, TN_F16), TN_F32), 0, 1);
        x = tn_reshape(tn_slice(tn_pad(tn_sin(x), LIST(0, 1), LIST(1, 0), 2, 1), LIST(1, 1), LIST(7, 5), NULL, 2),
                       TN_DIMS(4, 6));
    }
    tn_output(x, "y");
}
static void squares(tn_graph *g) { /* beside a contraction, and at the end of a long way of casts and views */
    tn_tensor x = input(g, "x", TN_DIMS(8, 8)), y = tn_mul(x, x), z = y;
    tn_output(tn_mul(tn_matmul(input(g, "u", TN_DIMS(8, 16)), input(g, "w", TN_DIMS(16, 8))), y), "y");
    for (int i = 0; i < LEVELS / 2; i++) {
        z = tn_transpose(tn_cast(tn_pad(z, LIST(0, 1), LIST(1, 0), 2, 1), TN_F16), 0, 1);
        z = tn_cast(tn_slice(z, LIST(1, 1), LIST(9, 9), NULL, 2), TN_F32);
    }
    tn_output(tn_add(z, x), "z");
}
static void lookups(tn_graph *g) { /* the index of each is what the one before found */
    tn_tensor table = tn_input(g, "table", TN_I32, TN_DIMS(64)), x = tn_input(g, "x", TN_I32, TN_DIMS(8));
    for (int i = 0; i < 20000 / LARGE; i++) x = tn_gather(table, x, 0);
    tn_output(x, "y");
}
static void sums(tn_graph *g) { /* of sums, of all that there is so far */
    tn_tensor x = input(g, "x", TN_DIMS(4, 4));
    for (int i = 0; i < 5000 / LARGE; i++) x = tn_add(x, tn_sum(x, TN_INTS(1), 1));
    tn_output(x, "y");
}

static void many_slots(tn_graph *g) {
    for (int i = 0; i < LEVELS; i++) {
        char name[MOST_NAME];
        snprintf(name, sizeof name, "x%d", i);
        tn_tensor y = tn_exp(input(g, name, TN_DIMS(4)));
        name[0] = 'y';
        tn_output(y, name);
    }
}
static void many_parts(tn_graph *g) { /* of one kernel */
    enum { N = LEVELS };
    static tn_tensor part[N];
    for (int i = 0; i < N; i++) {
        char name[MOST_NAME];
        snprintf(name, sizeof name, "%d", i);
        part[i] = input(g, name, TN_DIMS(4));
    }
    tn_output(tn_concat(part, N, 0), "y");
}

/* ---- networks, of sizes at which kernels keep large tables of their own ---- */

static tn_tensor labels(tn_graph *g, tn_shape shape) { return tn_input(g, "labels", TN_I32, shape); }
static tn_tensor conv(tn_tensor x, int64_t out, const char *name) {
    return tn_relu(tn_nn_conv2d(x, (tn_nn_conv_opts){ .out_channels = out, .kernel = { 3, 3 }, .padding = { 1, 1 } }, name));
}
static tn_tensor pool(tn_tensor x) { return tn_nn_max_pool(x, (tn_nn_pool_opts){ .kernel = { 2, 2 } }); }
static tn_tensor up(tn_tensor x, tn_tensor beside) {
    return tn_concat((tn_tensor[]){ tn_nn_repeat(tn_nn_repeat(x, 2, 1), 2, 2), beside }, 2, 3);
}
static tn_tensor unet_of(tn_tensor x) {
    tn_tensor a = conv(x, 32, "a"), b = conv(pool(a), 64, "b"), c = conv(pool(b), 128, "c");
    tn_tensor d = conv(up(c, b), 64, "d"), e = conv(up(d, a), 32, "e");
    return tn_nn_conv2d(e, (tn_nn_conv_opts){ .out_channels = 4, .kernel = { 1, 1 } }, "last");
}
static void unet(tn_graph *g) { tn_output(unet_of(input(g, "x", TN_DIMS(1, 64, 64, 16))), "y"); }
static void unet_adam(tn_graph *g) {
    tn_tensor y = unet_of(input(g, "x", TN_DIMS(1, 32, 32, 16)));
    tn_nn_adam(tn_nn_cross_entropy(y, labels(g, TN_DIMS(1, 32, 32))), (tn_nn_adam_opts){ 0 });
}
static void conv_sgd(tn_graph *g) {
    tn_tensor x = pool(conv(conv(input(g, "x", TN_DIMS(8, 16, 16, 8)), 32, "a"), 64, "b"));
    x = tn_nn_linear(tn_reshape(tn_nn_batch_norm(x, (tn_nn_batch_norm_opts){ 0 }, "norm"), TN_DIMS(8, 4096)), 10, "last");
    tn_nn_sgd(tn_nn_cross_entropy(x, labels(g, TN_DIMS(8))), (tn_nn_sgd_opts){ 0 });
}
static tn_tensor heads(tn_tensor x, int64_t out, const char *name) { /* [T, C] to [heads, T, C / heads] */
    return tn_transpose(tn_reshape(tn_nn_linear(x, out, name), TN_DIMS(64, 4, out / 4)), 0, 1);
}
static void transformer_adam(tn_graph *g) {
    enum { T = 64, C = 128, LAYERS = 2 };
    tn_tensor x = tn_nn_embedding(tn_input(g, "x", TN_I32, TN_DIMS(T)), 500, C, "words");
    for (int i = 0; i < LAYERS; i++) {
        char name[8][MOST_NAME];
        for (int k = 0; k < 8; k++) snprintf(name[k], sizeof name[k], "%d-%d", i, k);
        tn_tensor n = tn_nn_layer_norm(x, 0, name[0]);
        tn_tensor a = tn_nn_attention(heads(n, C, name[1]), heads(n, C, name[2]), heads(n, C, name[3]), 1);
        x = tn_add(x, tn_nn_linear(tn_reshape(tn_transpose(a, 0, 1), TN_DIMS(T, C)), C, name[4]));
        n = tn_nn_layer_norm(x, 0, name[5]);
        x = tn_add(x, tn_nn_linear(tn_nn_gelu(tn_nn_linear(n, 4 * C, name[6])), C, name[7]));
    }
    tn_nn_adam(tn_nn_cross_entropy(tn_nn_linear(x, 500, "last"), labels(g, TN_DIMS(T))), (tn_nn_adam_opts){ 0 });
}
static void lstm_adam(tn_graph *g) {
    enum { B = 16, H = 64, STEPS = 8 };
    tn_tensor xs = input(g, "x", TN_DIMS(STEPS, B, H)), h = tn_full(g, TN_F32, TN_DIMS(B, H), 0), c = h;
    tn_tensor w = tn_param(g, "w", TN_F32, TN_DIMS(2 * H, 4 * H), NULL);
    for (int t = 0; t < STEPS; t++) {
        tn_tensor x = tn_reshape(tn_slice(xs, LIST(t, 0, 0), LIST(t + 1, B, H), NULL, 3), TN_DIMS(B, H)), gate[4];
        tn_tensor z = tn_matmul(tn_concat((tn_tensor[]){ x, h }, 2, 1), w);
        for (int k = 0; k < 4; k++) gate[k] = tn_slice(z, LIST(0, k * H), LIST(B, (k + 1) * H), NULL, 2);
        c = tn_add(tn_mul(tn_sigmoid(gate[0]), c), tn_mul(tn_sigmoid(gate[1]), tn_tanh(gate[2])));
        h = tn_mul(tn_sigmoid(gate[3]), tn_tanh(c));
    }
    tn_nn_adam(tn_mean(tn_mul(h, h), TN_ALL_AXES, 0), (tn_nn_adam_opts){ 0 });
}
static void mlp_adam(tn_graph *g) {
    tn_tensor x = tn_relu(tn_nn_linear(input(g, "x", TN_DIMS(128, 784)), 512, "a"));
    x = tn_nn_linear(tn_relu(tn_nn_linear(x, 512, "b")), 10, "c");
    tn_nn_adam(tn_nn_cross_entropy(x, labels(g, TN_DIMS(128))), (tn_nn_adam_opts){ 0 });
}
static void products(tn_graph *g) { /* panels are made in each run; sums of one row; rows that do not fit a cache */
    tn_tensor x = input(g, "x", TN_DIMS(700, 1000)), w = input(g, "w", TN_DIMS(1000, 900)),
              one = input(g, "one", TN_DIMS(1, 1000));
    tn_output(tn_matmul(x, w), "xw");
    tn_output(tn_matmul(tn_transpose(w, 0, 1), tn_transpose(x, 0, 1)), "wx");
    tn_output(tn_matmul(one, tn_exp(w)), "row");
    tn_output(tn_nn_softmax(tn_reshape(x, TN_DIMS(10, 70000)), 1), "soft");
    tn_output(tn_nn_layer_norm(tn_transpose(x, 0, 1), 0, "norm"), "columns");
}

/* ---- what is done with them ---- */

typedef enum way {
    COMPILED,
    ONE_THREAD,
    EACH_OP,
    LOOP,
    ONE_BY_ONE,
    LEVEL_0,
    LEVEL_1,
    LEVEL_2,
    CHECKED,
    PLAIN,
    THROUGH_C,
    GPU,
    TEXT,
    WAYS
} way;
static const struct {
    const char *name;
    tn_mode mode;
    int fusion, threads; /* 0: 2 */
    bool no_passes, check;
    const char *cpu;
} ways[WAYS] = {
    [COMPILED] = { "compiled", TN_MODE_COMPILED, .fusion = 3 },
    [ONE_THREAD] = { "compiled, one thread", TN_MODE_COMPILED, .fusion = 3, .threads = 1 },
    [EACH_OP] = { "graph", TN_MODE_GRAPH, .fusion = -1 },
    [LOOP] = { "loop", TN_MODE_LOOP, .fusion = -1 },
    [ONE_BY_ONE] = { "immediate", TN_MODE_IMMEDIATE, .fusion = -1 },
    [LEVEL_0] = { "not fused", TN_MODE_COMPILED, .fusion = 0 },
    [LEVEL_1] = { "little fused", TN_MODE_COMPILED, .fusion = 1 },
    [LEVEL_2] = { "fused", TN_MODE_COMPILED, .fusion = 2 },
    [CHECKED] = { "compiled with checks", TN_MODE_COMPILED, .fusion = 3, .check = true },
    [PLAIN] = { "little fused, no passes", TN_MODE_COMPILED, .fusion = 1, .no_passes = true },
    [THROUGH_C] = { "compiled through C", TN_MODE_COMPILED, .fusion = 3, .cpu = "c" },
    [GPU] = { "planned for a GPU" },
    [TEXT] = { "print and parse" },
};
enum { NETWORK = (1 << CHECKED) - 1, WITH_C = NETWORK | 1 << THROUGH_C };
typedef struct work {
    const char *name;
    void (*build)(tn_graph *g);
    int ways;
} work;
static const work works[] = {
    { "chain with gradient", chain, 1 << COMPILED | 1 << EACH_OP | 1 << GPU | 1 << TEXT | 1 << ONE_BY_ONE },
    { "adds", adds, 1 << COMPILED | 1 << PLAIN | 1 << TEXT },
    { "concat and slice", concats, 1 << COMPILED | 1 << TEXT | 1 << GPU },
    { "nested concats", nested_concats, 1 << COMPILED | 1 << PLAIN },
    { "casts and views", casts, 1 << COMPILED | 1 << CHECKED | 1 << GPU },
    { "squares", squares, 1 << COMPILED | 1 << GPU },
    { "gathers", lookups, 1 << COMPILED | 1 << GPU },
    { "sums of sums", sums, 1 << COMPILED | 1 << PLAIN | 1 << GPU },
    { "many slots", many_slots, 1 << COMPILED | 1 << LOOP | 1 << ONE_BY_ONE },
    { "many parts", many_parts, 1 << COMPILED | 1 << LEVEL_0 },
    { "U-Net", unet, NETWORK },
    { "U-Net, Adam", unet_adam, WITH_C | 1 << GPU },
    { "convolutions, SGD", conv_sgd, NETWORK },
    { "transformer, Adam", transformer_adam, NETWORK | 1 << GPU },
    { "LSTM, Adam", lstm_adam, NETWORK },
    { "perceptron, Adam", mlp_adam, NETWORK },
    { "products", products, WITH_C },
};

typedef struct job {
    const work *w;
    way how;
    size_t used; /* bytes of the stack */
    bool ok;
    char text[256]; /* else: why not */
} job;

static void failed(job *j, const char *text) { snprintf(j->text, sizeof j->text, "%.200s", text); }

static void *bytes_for(size_t n) { return calloc(n + 1, 1); }

static void run(job *j, tn_ctx *ctx, tn_program *p, bool loop) {
    tn_session *s;
    int n = tn_program_n_slots(p);
    void **data = bytes_for((size_t)n * sizeof *data);
    if (tn_session_new(p, &s)) {
        failed(j, tn_ctx_error(ctx));
        return;
    }
    tn_status st = TN_OK;
    for (int i = 0; i < n && !st; i++) {
        size_t bytes = (size_t)p->io[i].bytes;
        st = tn_session_bind(s, i, data[i] = bytes_for(bytes));
    }
    for (int i = 0; i < 2 && !st; i++) st = loop ? tn_run_n(s, 3, NULL, 0, 0) : tn_session_run(s);
    j->ok = !st;
    if (st) failed(j, tn_session_error(s));
    tn_session_free(s);
    for (int i = 0; i < n; i++) free(data[i]);
    free(data);
}

static void compile_and_run(job *j, tn_ctx *ctx, tn_graph *g) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    o.mode = ways[j->how].mode, o.fusion = ways[j->how].fusion, o.threads = ways[j->how].threads ? 1 : 2;
    o.no_passes = ways[j->how].no_passes, o.check = ways[j->how].check;
    if (tn_compile(g, &o, &p)) {
        failed(j, tn_ctx_error(ctx));
        return;
    }
    run(j, ctx, p, j->how == LOOP);
    tn_program_free(p);
}

static void plan_for_gpu(job *j, tn_ctx *ctx, const tn_graph *g) {
    arena a;
    guard gd;
    target t = { .kind = TARGET_GPU,
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
    arena_init(&a, ctx->mem, &gd);
    j->ok = GUARD_TRY(&gd);
    if (j->ok) {
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        str text;
        o.fusion = 3;
        plan *p = pipeline_run(g->ir, &a, &o, &t);
        str_init(&text, &a);
        emit_gpu(p, GPU_CUDA, &text);
    } else {
        failed(j, gd.err.text);
    }
    arena_fini(&a);
}

static void print_and_parse(job *j, tn_ctx *ctx, tn_graph *g) {
    char *text;
    if (tn_graph_print(g, &text)) {
        failed(j, tn_ctx_error(ctx));
        return;
    }
    tn_graph *again = tn_graph_parse(ctx, text, strlen(text), "text");
    j->ok = again && !tn_graph_status(again) && !tn_graph_check(again);
    if (!j->ok) failed(j, tn_ctx_error(ctx));
    tn_string_free(ctx, text);
    tn_graph_free(again);
}

static void *on_small_stack(void *ud) {
    job *j = ud;
    tn_config cfg = test_config();
    cfg.cache_dir = NULL;
    if (ways[j->how].cpu) cfg.cpu = ways[j->how].cpu;
    tn_ctx *ctx = tn_ctx_new(&cfg);
    tn_graph *g = tn_graph_new(ctx, "g");
    j->w->build(g);
    if (tn_graph_status(g))
        failed(j, tn_ctx_error(ctx));
    else if (j->how == GPU)
        plan_for_gpu(j, ctx, g);
    else if (j->how == TEXT)
        print_and_parse(j, ctx, g);
    else
        compile_and_run(j, ctx, g);
    tn_graph_free(g);
    tn_ctx_free(ctx);
    return NULL;
}

/* In a process of its own. */
static void run_job(job *j) {
    unsigned char *m = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *stack = m + GUARD_BYTES;
    pthread_attr_t attr;
    pthread_t t;
    if (m == MAP_FAILED || mprotect(m, GUARD_BYTES, PROT_NONE) || pthread_attr_init(&attr)) _exit(2);
    memset(stack, PATTERN, STACK_BYTES);
    if (pthread_attr_setstack(&attr, stack, STACK_BYTES) || pthread_create(&t, &attr, on_small_stack, j)) _exit(2);
    if (pthread_join(t, NULL)) _exit(2);
    size_t left = 0;
    while (left < STACK_BYTES && stack[left] == PATTERN) left++;
    j->used = STACK_BYTES - left;
    _exit(0);
}

static void test_small_stack(void **state) {
    (void)state;
    const char *only = getenv("TENON_STACK");
    job *j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    size_t most = 0;
    int n = 0, n_failed = 0;
    uint64_t of_all = 0;
    char most_at[2 * MOST_NAME] = "";
    assert_ptr_not_equal(j, MAP_FAILED);
    for (size_t i = 0; i < COUNT_OF(works); i++)
        for (int how = 0; how < WAYS; how++) {
            int status = 0;
            if (!(works[i].ways >> how & 1) || (only && strcmp(only, works[i].name) != 0)) continue;
            if (!campaign_has(of_all++, 4)) continue;
            *j = (job){ .w = &works[i], .how = (way)how };
            fflush(NULL);
            pid_t child = fork();
            if (child == 0) run_job(j);
            assert_int_equal(waitpid(child, &status, 0), child);
            n++;
            if (only) printf("%s, %s: %zu bytes\n", j->w->name, ways[how].name, j->used);
            if (j->used > most) most = j->used, snprintf(most_at, sizeof most_at, "%s, %s", j->w->name, ways[how].name);
            if (status == 0 && j->ok) continue;
            n_failed++;
            if (WIFSIGNALED(status))
                snprintf(j->text, sizeof j->text, "signal %d: the stack of %d bytes is too small", WTERMSIG(status),
                         STACK_BYTES);
            printf("%s, %s: %s\n", j->w->name, ways[how].name, j->text);
        }
    printf("count: stack: %d graphs and ways to run them; %zu bytes at most (%s)\n", n, most, most_at);
    munmap(j, sizeof *j);
    assert_int_equal(n_failed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_small_stack) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
