/* test_oom.c - fails the k-th allocation, for every k, while a small network is built, compiled, run, saved and loaded in every
 * mode, while an immediate graph computes and differentiates, and while programs are looked at: nothing crashes, nothing leaks,
 * the status is TN_ERR_NOMEM with a text, and the same work succeeds right afterwards with the same bits.
 *
 * One context serves many failures, so that the compiler runs once a kernel; a second loop makes a context for each failure
 * and finds the kernels on disk. A short campaign: every fourth of the failures.
 *
 * Labels: slow */
#include "tenon/tenon.h"
#include "tenon/tenon_io.h"
#include "tenon/tenon_ir.h"
#include "tenon/tenon_nn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/support.h"

enum { ROWS = 5, FEATURES = 7, CLASSES = 3, STEPS = 3, MOST = 160 /* failures of one kind; the rest is skipped evenly */ };

/* ---- memory that refuses ---- */

typedef struct counter {
    size_t live, calls;
    size_t refuse_at; /* this call fails; 0 = none */
    bool for_ever;    /* and all after it */
    bool wrong;       /* a size came back that is not the one given */
} counter;
static long n_refused; /* in the whole test */
static void *count_realloc(void *ud, void *ptr, size_t old_size, size_t new_size) {
    counter *c = ud;
    size_t *block = ptr ? (size_t *)ptr - 2 : NULL;
    size_t before = block ? *block : 0;
    if (block && before != old_size) c->wrong = true;
    if (new_size == 0) {
        c->live -= before;
        free(block);
        return NULL;
    }
    c->calls++;
    if (c->refuse_at && (c->calls == c->refuse_at || (c->for_ever && c->calls > c->refuse_at))) {
        n_refused++;
        return NULL;
    }
    block = realloc(block, new_size + 2 * sizeof *block);
    *block = new_size;
    c->live += new_size - before;
    return block + 2;
}

typedef struct fixture {
    counter c;
    tn_ctx *ctx;
    char dir[64], cache[80], file[80], deep[80], program[80];
} fixture;
static fixture fix;

static tn_ctx *new_ctx(counter *c) {
    tn_config cfg = {
        .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU"), .realloc = count_realloc, .realloc_ud = c, .cache_dir = fix.cache
    };
    return tn_ctx_new(&cfg);
}
static int setup(void **state) {
    (void)state;
    snprintf(fix.dir, sizeof fix.dir, "/tmp/tenon-oom-XXXXXX");
    if (!mkdtemp(fix.dir)) return 1;
    snprintf(fix.cache, sizeof fix.cache, "%s/cache", fix.dir);
    snprintf(fix.file, sizeof fix.file, "%s/state", fix.dir);
    snprintf(fix.deep, sizeof fix.deep, "%s/deep", fix.dir);
    snprintf(fix.program, sizeof fix.program, "%s/program", fix.dir);
    return !(fix.ctx = new_ctx(&fix.c));
}
static void empty_dir(const char *path) {
    DIR *d = opendir(path);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    rmdir(path);
}
static int teardown(void **state) {
    (void)state;
    tn_ctx_free(fix.ctx);
    empty_dir(fix.cache);
    empty_dir(fix.dir);
    if (fix.c.live || fix.c.wrong) print_error("%zu bytes leak%s\n", fix.c.live, fix.c.wrong ? ", a wrong size came back" : "");
    return fix.c.live || fix.c.wrong;
}

/* ---- the stories: each returns the first status that is not TN_OK, and frees everything either way ---- */

typedef struct story {
    tn_mode mode; /* of the network */
    bool graph;   /* an immediate graph instead, */
    bool tools;   /* or what else there is to do with graphs and programs */
    float out[4];
} story;

/* Bodies: a scan with a stack and an if in it. */
static void negative(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g, (void)in;
    out[0] = tn_neg(*(tn_tensor *)ud);
}
static void as_it_is(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g, (void)in;
    out[0] = *(tn_tensor *)ud;
}
static void row(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)ud;
    tn_tensor sum = tn_add(in[0], in[1]);
    out[0] = sum;
    out[1] = tn_if(tn_gt(tn_sum(sum, NULL, -1, 0), tn_full(g, TN_F32, TN_SCALAR, 0)), negative, as_it_is, &sum, NULL, 1);
}

static tn_tensor network(tn_graph *g, tn_mode mode) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(ROWS, FEATURES)), y = tn_input(g, "y", TN_I32, TN_DIMS(ROWS));
    tn_tensor loss = tn_nn_cross_entropy(tn_nn_linear(tn_relu(tn_nn_linear(x, 4, "a")), CLASSES, "b"), y);
    tn_output(loss, "loss");
    tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 0.01 });
    if (mode != TN_MODE_IMMEDIATE) return loss;
    tn_tensor zero = tn_full(g, TN_F32, TN_DIMS(FEATURES), 0), out[2];
    tn_scan(g, &(tn_scan_opts){ .carry = &zero, .n_carry = 1, .xs = &x, .n_xs = 1, .n_ys = 1 }, row, NULL, out);
    tn_output(out[0], "last"), tn_output(out[1], "stack");
    return loss;
}

static tn_status use_session(tn_ctx *ctx, tn_session *s, story *st) {
    float x[STEPS * ROWS * FEATURES], w[FEATURES * 4];
    int32_t y[STEPS * ROWS];
    for (int i = 0; i < STEPS * ROWS * FEATURES; i++) x[i] = (float)((i * 37) % 19) / 9.0f - 1;
    for (int i = 0; i < STEPS * ROWS; i++) y[i] = i % CLASSES;
    tn_status code = tn_run(s, TN_BIND({ "x", x }, { "y", y }, { "loss", &st->out[0] }));
    if (!code) code = tn_io_save_state(ctx, s, fix.file);
    if (!code) code = tn_run_n(s, STEPS, TN_BIND({ "x", x }, { "y", y }, { "loss", &st->out[1] }), STEPS);
    if (!code) code = tn_io_load_state(ctx, s, fix.file);
    if (!code) code = tn_session_get(s, "a/w", w, sizeof w);
    if (!code) code = tn_session_set(s, "a/w", w, sizeof w);
    if (!code) code = tn_session_copy_state(s, s, NULL);
    if (!code) code = tn_run(s, TN_BIND({ "x", x }, { "y", y }, { "loss", &st->out[2] }));
    st->out[3] = w[5];
    return code;
}

static tn_status train(tn_ctx *ctx, story *st) {
    tn_program *p = NULL;
    tn_session *s = NULL;
    char *text = NULL;
    tn_graph *g = tn_graph_new(ctx, "train");
    if (!g) return tn_ctx_status(ctx);
    network(g, st->mode);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = st->mode, o.threads = 1;
    tn_status code = tn_compile(g, &o, &p);
    if (!code) code = tn_session_new(p, &s);
    if (!code) code = use_session(ctx, s, st);
    if (!code && st->mode != TN_MODE_IMMEDIATE) code = tn_program_text(p, "explain", &text);
    tn_string_free(ctx, text);
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    return code;
}

static tn_status immediate_graph(tn_ctx *ctx, story *st) {
    const float data[6] = { 0.5f, -1, 2, 0.25f, 3, -2 };
    tn_graph *g = tn_graph_immediate(ctx, "now");
    if (!g) return tn_ctx_status(ctx);
    tn_tensor x = tn_state(g, "x", TN_F32, TN_DIMS(2, 3), data), c = tn_const(g, TN_F32, TN_DIMS(3), data), d = { g, 0 };
    tn_tensor loss =
        tn_sum(tn_exp(tn_neg(tn_mul(tn_add(x, c), tn_reshape(tn_mul_scalar(x, 0.5), TN_DIMS(2, 3))))), TN_ALL_AXES, 0);
    tn_status code = tn_graph_status(g);
    if (!code) code = tn_grad(loss, &x, 1, &d);
    if (!code) tn_assign(x, tn_sub(x, d));
    if (!code) code = tn_graph_status(g);
    if (!code) code = tn_tensor_read(loss, st->out, sizeof(float));
    float now[6] = { 0 };
    if (!code) code = tn_tensor_read(x, now, sizeof now);
    st->out[1] = now[0], st->out[2] = now[4];
    tn_graph_free(g);
    return code;
}

/* ---- layers of many kinds, parameters from a file, passes, the evaluator, every text, tuning, a profile ---- */

static void deep_network(tn_graph *g) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(2, 12, 3)), parts[2];
    tn_tensor h = tn_nn_conv1d(x, (tn_nn_conv_opts){ .out_channels = 4, .kernel = { 3 }, .padding = { 1 } }, "conv");
    h = tn_nn_max_pool(tn_nn_gelu(h), (tn_nn_pool_opts){ .kernel = { 2 } });
    h = tn_nn_batch_norm(tn_nn_layer_norm(h, 0, "norm"), (tn_nn_batch_norm_opts){ 0 }, "batch");
    tn_nn_split(tn_nn_attention(h, h, h, 1), 1, (const int64_t[]){ 2, 4 }, 2, parts);
    h = tn_nn_dropout(tn_concat(parts, 2, 1), 0.25, tn_nn_counter(g, "count"), "drop");
    h = tn_nn_cumprod(tn_nn_cumsum(tn_nn_stack((const tn_tensor[]){ h, tn_nn_roll(h, 1, 1) }, 2, 0), 1), 2);
    tn_nn_sgd(tn_nn_huber(tn_nn_tile(h, (const int64_t[]){ 1, 1, 2, 1 }, 4), tn_nn_repeat(h, 2, 2), 1),
              (tn_nn_sgd_opts){ .momentum = 0.9 });
    tn_output(tn_nn_logsumexp(tn_nn_pad(h, 1, 1, 1, TN_NN_PAD_WRAP), 1, 0), "y");
}

static tn_status evaluated(tn_graph *g, const float *x, story *st) {
    tn_ir_eval *e = NULL;
    tn_ir_value last;
    tn_status code = tn_ir_run_passes(g, "all", 1);
    if (!code) code = tn_ir_evaluate(g, TN_BIND({ "x", (void *)(uintptr_t)x }), &e);
    if (!code) code = tn_ir_get_value(g, tn_ir_n_values(g) - 1, &last);
    const double *values = code ? NULL : tn_ir_eval_values(e, last.tensor, NULL);
    if (!code && !values) code = tn_ctx_status(tn_graph_ctx(g));
    if (!code) st->out[0] = (float)values[0];
    tn_ir_eval_free(e);
    return code;
}

static tn_status texts(tn_ctx *ctx, const tn_program *p) {
    static const char *const stages[] = { "graph",
                                          "plan",
                                          "kernels",
                                          "c",
                                          "x86",
                                          "opencl",
                                          "cuda",
                                          "standalone",
                                          "explain",
                                          "explain.json",
                                          "explain.short.json",
                                          "passes.json" };
    tn_status code = TN_OK;
    for (size_t i = 0; i < sizeof stages / sizeof *stages && !code; i++) {
        char *text;
        code = tn_program_text(p, stages[i], &text);
        tn_string_free(ctx, text);
    }
    return code;
}

/* Where the program is machine code: the others are no files. */
static tn_status use_file(tn_ctx *ctx, const tn_program *p, float *x, float *y) {
    tn_program *q = NULL;
    tn_session *s = NULL;
    tn_status code = tn_program_save(p, fix.program);
    if (code == TN_ERR_UNSUPPORTED) return TN_OK;
    if (!code) code = tn_program_load(ctx, fix.program, &q);
    if (!code) code = tn_session_new(q, &s);
    if (!code) code = tn_run(s, TN_BIND({ "x", x }, { "y", y }));
    tn_session_free(s);
    tn_program_free(q);
    return code;
}

static tn_status use_tools(tn_ctx *ctx, story *st) {
    float x[72], y[2 * 2 * 6 * 4];
    tn_program *p = NULL;
    tn_session *s = NULL;
    tn_profile *profile = NULL;
    for (int i = 0; i < 72; i++) x[i] = (float)(i % 7) / 7;
    tn_graph *g = tn_graph_new(ctx, "deep");
    if (!g) return tn_ctx_status(ctx);
    deep_network(g);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = 1, o.check = 1;
    tn_status code = access(fix.deep, F_OK) ? TN_OK : tn_io_load_graph(ctx, g, fix.deep);
    if (!code) code = tn_compile(g, &o, &p);
    if (!code) code = tn_session_new(p, &s);
    if (!code && access(fix.deep, F_OK)) code = tn_io_save_state(ctx, s, fix.deep);
    if (!code) code = tn_run(s, TN_BIND({ "x", x }, { "y", y }));
    st->out[1] = y[0], st->out[2] = y[5];
    if (!code) code = tn_session_bind(s, tn_session_slot(s, "x"), x);
    if (!code) code = tn_session_profile(s, 0, &profile);
    if (!code) code = texts(ctx, p);
    if (!code) code = use_file(ctx, p, x, y);
    if (!code) code = evaluated(g, x, st);
    tn_profile_free(profile);
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    return code;
}

static tn_status tell(tn_ctx *ctx, story *st) {
    return st->tools ? use_tools(ctx, st) : st->graph ? immediate_graph(ctx, st) : train(ctx, st);
}

/* ---- the loops ---- */

static void check_failed(tn_ctx *ctx, tn_status code, size_t k, size_t calls) {
    if (code != TN_ERR_NOMEM)
        fail_msg("allocation %zu of %zu refused: %s, %s", k, calls, tn_status_name(code), tn_ctx_error(ctx));
    if (tn_ctx_status(ctx) != TN_ERR_NOMEM || !strstr(tn_ctx_error(ctx), "out of memory"))
        fail_msg("allocation %zu of %zu refused, but the text is: %s", k, calls, tn_ctx_error(ctx));
}

static void fail_each(story want) {
    counter *c = &fix.c;
    /* What a device keeps for later programs exists after the second: the first image has pages of its own (rt/jit.c). */
    for (int i = 0; i < 2; i++) assert_int_equal(tell(fix.ctx, &want), TN_OK);
    size_t live = c->live, first = c->calls;
    story again = { .mode = want.mode, .graph = want.graph, .tools = want.tools };
    assert_int_equal(tell(fix.ctx, &again), TN_OK);
    assert_memory_equal(again.out, want.out, sizeof want.out);
    assert_int_equal(c->live, live);
    size_t n = c->calls - first, step = (n / MOST + 1) * (size_t)campaign(1, 4);
    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (size_t k = 1 + (size_t)for_ever % step; k <= n; k += step) {
            story st = { .mode = want.mode, .graph = want.graph, .tools = want.tools };
            c->refuse_at = c->calls + k, c->for_ever = for_ever;
            tn_status code = tell(fix.ctx, &st);
            c->refuse_at = 0;
            check_failed(fix.ctx, code, k, n);
            if (c->live != live || c->wrong)
                fail_msg("allocation %zu of %zu refused: %zd bytes leak%s", k, n, (ssize_t)(c->live - live),
                         c->wrong ? ", a wrong size came back" : "");
            if (k % (8 * step) != 1 && k + step <= n) continue; /* telling it again after each failure takes twice as long */
            assert_int_equal(tell(fix.ctx, &st), TN_OK);
            assert_memory_equal(st.out, want.out, sizeof want.out);
            assert_int_equal(c->live, live);
        }
    print_message("%zu allocations, every %zu failed\n", n, step);
}
static void test_immediate(void **state) {
    (void)state;
    fail_each((story){ .mode = TN_MODE_IMMEDIATE });
}
static void test_graph(void **state) {
    (void)state;
    fail_each((story){ .mode = TN_MODE_GRAPH });
}
static void test_compiled(void **state) {
    (void)state;
    fail_each((story){ .mode = TN_MODE_COMPILED });
}
static void test_loop(void **state) {
    (void)state;
    fail_each((story){ .mode = TN_MODE_LOOP });
}
static void test_tools(void **state) {
    (void)state;
    fail_each((story){ .tools = true });
}
static void test_immediate_graph(void **state) {
    (void)state;
    fail_each((story){ .graph = true });
}

/* From the first allocation of the context on: devices and caches are opened, kernels come from disk. Where only the disk cache
 * misses its memory the kernel is compiled instead, which is no failure. */
static void test_new_context(void **state) {
    (void)state;
    story want = { .mode = TN_MODE_COMPILED };
    assert_int_equal(tell(fix.ctx, &want), TN_OK);
    counter whole = { 0 };
    tn_ctx *ctx = new_ctx(&whole);
    assert_int_equal(tell(ctx, &want), TN_OK);
    tn_ctx_free(ctx);
    assert_int_equal(whole.live, 0);
    size_t step = whole.calls / (size_t)campaign(100, 25) + 1, n_failed = 0, n_ok = 0;
    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (size_t k = 1; k <= whole.calls; k += k < 25 ? 1 : step) {
            counter c = { .refuse_at = k, .for_ever = for_ever };
            story st = { .mode = want.mode };
            if ((ctx = new_ctx(&c))) {
                tn_status code = tell(ctx, &st);
                if (for_ever || code) check_failed(ctx, code, k, whole.calls);
                if (!code) assert_memory_equal(st.out, want.out, sizeof want.out);
                n_failed += code != TN_OK, n_ok += code == TN_OK;
            } else {
                n_failed++;
            }
            tn_ctx_free(ctx);
            if (c.live || c.wrong)
                fail_msg("allocation %zu of %zu refused: %zu bytes leak%s", k, whole.calls, c.live,
                         c.wrong ? ", a wrong size came back" : "");
        }
    print_message("%zu failures, %zu times without the disk cache\n", n_failed, n_ok);
    assert_true(n_failed > 10 * n_ok);
}

/* ---- initial values from a file: all of them or none ---- */

enum { N_STATES = 5, STATE = 3000 };
static tn_graph *graph_of_states(tn_ctx *ctx, const float *init, char **out_text) {
    tn_graph *g = tn_graph_new(ctx, "states");
    for (int i = 0; i < N_STATES; i++) {
        char name[8];
        snprintf(name, sizeof name, "s%d", i);
        tn_state(g, name, TN_F32, TN_DIMS(STATE), i % 2 ? init : NULL); /* some begin as zeros */
    }
    if (tn_graph_print(g, out_text)) fail_msg("%s", tn_ctx_error(ctx));
    return g;
}

static void save_states(tn_ctx *ctx) {
    static float data[N_STATES][STATE];
    tn_io_tensor list[N_STATES];
    char name[N_STATES][8];
    for (int i = 0; i < N_STATES; i++) {
        for (int k = 0; k < STATE; k++) data[i][k] = (float)(i + k) / 4;
        snprintf(name[i], sizeof name[i], "s%d", i);
        list[i] = (tn_io_tensor){ name[i], TN_F32, TN_DIMS(STATE), data[i] };
    }
    if (tn_io_safetensors_save(ctx, fix.file, list, N_STATES)) fail_msg("%s", tn_ctx_error(ctx));
}

static void test_load_graph(void **state) {
    (void)state;
    static float init[STATE] = { 7 };
    counter *c = &fix.c;
    size_t live = c->live;
    save_states(fix.ctx);
    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (size_t k = 1;; k++) {
            char *before, *after;
            tn_graph *g = graph_of_states(fix.ctx, init, &before);
            c->refuse_at = c->calls + k, c->for_ever = for_ever;
            tn_status code = tn_io_load_graph(fix.ctx, g, fix.file);
            bool through = c->calls < c->refuse_at;
            c->refuse_at = 0;
            if (!through) check_failed(fix.ctx, code, k, k);
            assert_int_equal(tn_graph_print(g, &after), TN_OK);
            if (!strcmp(before, after) != !through) fail_msg("allocation %zu refused: some states are set", k);
            tn_string_free(fix.ctx, before), tn_string_free(fix.ctx, after);
            tn_graph_free(g);
            assert_int_equal(c->live, live);
            if (through) break;
        }
}

/* ---- the same of a session, whose first own value of a shared state takes memory ---- */

enum { WIDE = 48, VALUES = 2 + 2 * WIDE * WIDE };

/* "count" changes in runs and comes first; "w" (which a product reads in panels) and "v" are the program's until they are set.
 */
static tn_graph *graph_with_weights(tn_ctx *ctx, const float *w) {
    tn_graph *g = tn_graph_new(ctx, "weights");
    tn_tensor count = tn_state(g, "count", TN_F32, TN_DIMS(2), NULL), x = tn_input(g, "x", TN_F32, TN_DIMS(4, WIDE));
    tn_tensor y = tn_matmul(x, tn_state(g, "w", TN_F32, TN_DIMS(WIDE, WIDE), w));
    tn_output(tn_add(tn_sum(y, TN_ALL_AXES, 0), tn_sum(tn_state(g, "v", TN_F32, TN_DIMS(WIDE, WIDE), w), TN_ALL_AXES, 0)), "y");
    tn_assign(count, tn_add_scalar(count, 1));
    return g;
}

static void all_states(tn_session *s, float *out) {
    assert_int_equal(tn_session_get(s, "count", out, 2 * sizeof *out), TN_OK);
    assert_int_equal(tn_session_get(s, "w", out + 2, WIDE * WIDE * sizeof *out), TN_OK);
    assert_int_equal(tn_session_get(s, "v", out + 2 + WIDE * WIDE, WIDE * WIDE * sizeof *out), TN_OK);
}

static void load_into_session(tn_mode mode, const float *w, const float *want) {
    static float before[VALUES], after[VALUES];
    counter *c = &fix.c;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = mode, o.threads = 1;
    tn_program *p;
    tn_graph *g = graph_with_weights(fix.ctx, w);
    if (tn_compile(g, &o, &p)) fail_msg("%s", tn_ctx_error(fix.ctx));
    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (size_t k = 1, live = c->live;; k++) {
            tn_session *s;
            if (tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(fix.ctx));
            all_states(s, before);
            c->refuse_at = c->calls + k, c->for_ever = for_ever;
            tn_status code = tn_io_load_state(fix.ctx, s, fix.file);
            bool through = c->calls < c->refuse_at;
            c->refuse_at = 0;
            if (!through) check_failed(fix.ctx, code, k, k);
            all_states(s, after);
            if (memcmp(after, through ? want : before, sizeof after) != 0)
                fail_msg("%s: allocation %zu refused: some states are set",
                         mode == TN_MODE_IMMEDIATE ? "immediate" : "compiled", k);
            tn_session_free(s);
            assert_int_equal(c->live, live);
            if (through) break;
        }
    tn_program_free(p);
    tn_graph_free(g);
}

static void test_load_state(void **state) {
    (void)state;
    static float w[WIDE * WIDE], want[VALUES];
    for (int i = 0; i < WIDE * WIDE; i++) w[i] = (float)(i % 13) - 6;
    for (int i = 0; i < VALUES; i++) want[i] = (float)(i % 7) + 1;
    tn_io_tensor list[] = { { "count", TN_F32, TN_DIMS(2), want },
                            { "w", TN_F32, TN_DIMS(WIDE, WIDE), want + 2 },
                            { "v", TN_F32, TN_DIMS(WIDE, WIDE), want + 2 + WIDE * WIDE } };
    if (tn_io_safetensors_save(fix.ctx, fix.file, list, 3)) fail_msg("%s", tn_ctx_error(fix.ctx));
    load_into_session(TN_MODE_COMPILED, w, want);
    load_into_session(TN_MODE_IMMEDIATE, w, want);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_compiled),    cmocka_unit_test(test_loop),
                                        cmocka_unit_test(test_graph),       cmocka_unit_test(test_immediate_graph),
                                        cmocka_unit_test(test_immediate),   cmocka_unit_test(test_tools),
                                        cmocka_unit_test(test_new_context), cmocka_unit_test(test_load_graph),
                                        cmocka_unit_test(test_load_state) };
    int failed = cmocka_run_group_tests(tests, setup, teardown);
    printf("count: %ld allocations failed while building, compiling, running, training, saving and loading\n", n_refused);
    return failed;
}
