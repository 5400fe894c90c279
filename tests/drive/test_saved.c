/* test_saved.c - programs as files: what is loaded computes the same bits as what was saved, over random graphs in every mode,
 * with control flow, symbolic dims, packed weights and states; files for something else, damaged ones and missing ones are
 * refused with a reason.
 *
 * Labels: random */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <dirent.h>

#include "drive/saved.h"
#include "support/support.h"
#include "tenon/tenon_nn.h"

static char folder[64], path[160], other[80];

static int setup(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/tenon-saved-XXXXXX");
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/program", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    unlink(path), unlink(other);
    return rmdir(folder);
}

static bool by_machine_code(tn_ctx *ctx) { /* else there is nothing to test */
    device *dev;
    device_caps caps;
    assert_int_equal(ctx_device(ctx, "cpu", 1, &dev, &ctx->err), TN_OK);
    dev->api->get_caps(dev, &caps);
    return strcmp(caps.code, "c") != 0;
}

#define NEED(ctx, call)                                                                                                        \
    do {                                                                                                                       \
        tn_status got_ = (call);                                                                                               \
        if (got_) fail_msg("%s:%d: %s: %s", __FILE__, __LINE__, tn_status_name(got_), tn_ctx_error(ctx));                      \
    } while (0)

/* ---- the same bits ---- */

typedef struct results { /* outputs, then states, one behind the other */
    unsigned char *at;
    size_t n;
} results;

/* Runs twice (in loop mode twice two steps in a call) on inputs from the seed. */
static results run(tn_ctx *ctx, tn_program *p, arena *a, uint64_t seed) {
    tn_session *s;
    rng r = rng_make(seed);
    results x = { 0 };
    NEED(ctx, tn_session_new(p, &s));
    for (int i = 0; i < tn_session_n_states(s); i++) x.n += drive_value_bytes(p->plan->g, p->states[i].node);
    for (int i = 0; i < p->n_io; i++) x.n += (size_t)p->io[i].bytes;
    unsigned char *at = x.at = arena_alloc(a, x.n + 1);
    for (int i = 0; i < p->n_io; i++) {
        const pio *io = &p->io[i];
        void *data = io->is_output ? at : arena_alloc(a, (size_t)io->bytes + 64);
        size_t size = dtype_size((tn_dtype)io->dtype);
        if (io->is_output)
            at += io->bytes;
        else
            fill_random(&r, (tn_dtype)io->dtype, data, io->bytes / (int64_t)size, io->dtype >= TN_I32 ? 1 : -2, 2);
        NEED(ctx, tn_session_bind(s, i, data));
    }
    bool loop = p->opts.mode == TN_MODE_LOOP;
    for (int i = 0; i < 2; i++) NEED(ctx, loop ? tn_run_n(s, 2, NULL, 0, 0) : tn_session_run(s));
    for (int i = 0; i < p->n_states; i++) {
        size_t n = drive_value_bytes(p->plan->g, p->states[i].node);
        NEED(ctx, tn_session_get(s, p->states[i].name, at, n));
        at += n;
    }
    tn_session_free(s);
    return x;
}

/* p, which ends here, against what comes from its file in a context of its own. */
static void compare_saved(tn_ctx *ctx, tn_program *p, arena *a, uint64_t seed, const char *what) {
    results want = run(ctx, p, a, seed);
    NEED(ctx, tn_program_save(p, path));
    tn_program_free(p);
    tn_ctx *later = test_ctx();
    tn_program *q;
    NEED(later, tn_program_load(later, path, &q));
    results got = run(later, q, a, seed);
    if (got.n != want.n || memcmp(got.at, want.at, got.n) != 0) fail_msg("%s: other bits from the file", what);
    got = run(later, q, a, seed); /* a session leaves nothing behind in the program */
    if (memcmp(got.at, want.at, got.n) != 0) fail_msg("%s: other bits of a second session", what);
    tn_program_free(q);
    tn_ctx_free(later);
}

typedef struct config {
    tn_mode mode;
    int threads, fusion;
} config;
static const config configs[] = { { TN_MODE_COMPILED, 1, 3 }, { TN_MODE_COMPILED, 2, 3 }, { TN_MODE_GRAPH, 1, 0 },
                                  { TN_MODE_GRAPH, 2, 0 },    { TN_MODE_LOOP, 1, 3 },     { TN_MODE_LOOP, 2, 2 } };

static tn_compile_opts opts_of(const config *c) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = c->mode, o.threads = c->threads, o.fusion = c->fusion;
    return o;
}

static void random_graph(arena *a, uint64_t seed) {
    int differentiated = 0;
    char what[64];
    graph *g = seed % 3 ? randcase(a, seed, &differentiated) : randnet(a, seed, &differentiated);
    tn_ctx *ctx = test_ctx();
    tn_program *p;
    tn_compile_opts o = opts_of(&configs[seed % COUNT_OF(configs)]);
    snprintf(what, sizeof what, "seed %llu", (unsigned long long)seed);
    NEED(ctx, drive_compile(ctx, g, &o, &p));
    compare_saved(ctx, p, a, seed, what);
    tn_ctx_free(ctx);
}

typedef struct seeded {
    uint64_t seed;
} seeded;
static void random_body(arena *a, void *ud) { random_graph(a, ((seeded *)ud)->seed); }
static void test_random_graphs(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(200, &first);
    tn_ctx *ctx = test_ctx();
    bool any = by_machine_code(ctx);
    tn_ctx_free(ctx);
    for (uint64_t seed = first; any && seed < first + n; seed++) {
        err e;
        seeded s = { seed };
        if (with_arena(random_body, &s, &e)) fail_msg("seed %llu: %s", (unsigned long long)seed, e.text);
    }
    if (any) print_message("count: %llu random graphs saved and loaded\n", (unsigned long long)n);
}

/* ---- what random graphs have not ---- */

static void below_hundred(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)ud, (void)g;
    out[0] = tn_lt(tn_sum(in[0], TN_ALL_AXES, 0), tn_full(g, TN_F32, TN_SCALAR, 100));
}
static void twice(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)ud, (void)g;
    out[0] = tn_add_scalar(tn_mul_scalar(in[0], 1.5), 1);
}
static void step(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)ud, (void)g;
    out[0] = tn_tanh(tn_add(in[0], in[1]));
    out[1] = tn_mul(out[0], in[1]);
}

static void build_while(tn_graph *g) {
    tn_tensor x = tn_abs(tn_input(g, "x", TN_F32, TN_DIMS(300)));
    tn_output(tn_while(g, &x, 1, below_hundred, twice, NULL, 0, NULL), "y");
}
static void build_scan(tn_graph *g) {
    tn_tensor c = tn_state(g, "c", TN_F32, TN_DIMS(70), NULL), xs = tn_input(g, "x", TN_F32, TN_DIMS(9, 70)), out[2];
    tn_scan(g, &(tn_scan_opts){ .carry = &c, .n_carry = 1, .xs = &xs, .n_xs = 1, .n_ys = 1 }, step, NULL, out);
    tn_assign(c, out[0]);
    tn_output(out[1], "y");
}
/* Weights that no run changes and constants, in panels; several outputs; adam. */
static void build_training(tn_graph *g) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(16, 130));
    float *w = malloc(sizeof *w * 130 * 96);
    for (int i = 0; i < 130 * 96; i++) w[i] = (float)(i * 37 % 101 - 50) / 400;
    tn_tensor h = tn_relu(tn_matmul(x, tn_const(g, TN_F32, TN_DIMS(130, 96), w)));
    h = tn_matmul(h, tn_state(g, "fixed", TN_F32, TN_DIMS(96, 130), w));
    free(w);
    tn_tensor y = tn_nn_linear(tn_tanh(h), 5, "fc"), loss = tn_mean(tn_mul(y, y), TN_ALL_AXES, 0);
    tn_output(y, "y"), tn_output(loss, "loss");
    tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 0.01 });
}
static void build_image(tn_graph *g) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(1, 12, 12, 16));
    x = tn_relu(tn_nn_conv2d(x, (tn_nn_conv_opts){ .out_channels = 32, .kernel = { 3 }, .padding = { 1 } }, "conv"));
    tn_output(tn_nn_max_pool(x, (tn_nn_pool_opts){ .kernel = { 2 } }), "y");
}
static void build_empty(tn_graph *g) { /* nothing in any part */
    tn_output(tn_exp(tn_input(g, "x", TN_F32, TN_DIMS(0, 3))), "y");
}

static void (*const builds[])(tn_graph *g) = { build_while, build_scan, build_training, build_image, build_empty };

ARENA_TEST(test_graphs) {
    for (size_t i = 0; i < COUNT_OF(builds) * COUNT_OF(configs); i++) {
        tn_ctx *ctx = test_ctx();
        tn_program *p;
        tn_graph *g = tn_graph_new(ctx, "saved");
        tn_compile_opts o = opts_of(&configs[i % COUNT_OF(configs)]);
        char what[64];
        builds[i / COUNT_OF(configs)](g);
        snprintf(what, sizeof what, "graph %zu, mode %d", i / COUNT_OF(configs), (int)o.mode);
        NEED(ctx, tn_compile(g, &o, &p));
        tn_graph_free(g);
        if (by_machine_code(ctx))
            compare_saved(ctx, p, a, i, what);
        else
            tn_program_free(p);
        tn_ctx_free(ctx);
    }
}

/* One file for a range of sizes. */
static void run_sizes(tn_ctx *ctx, tn_program *p, float *out) {
    tn_session *s;
    float x[7 * 37];
    for (int i = 0; i < 7 * 37; i++) x[i] = (float)(i % 19) / 9 - 1;
    NEED(ctx, tn_session_new(p, &s));
    for (int64_t n = 1; n <= 7; n += 3, out += 70) {
        NEED(ctx, tn_bind_shape(s, "x", TN_DIMS(n, 37)));
        NEED(ctx, tn_run(s, TN_BIND({ "x", x }, { "y", out })));
    }
    assert_int_equal(tn_bind_dim(s, "batch", 8), TN_ERR_INVAL);
    tn_session_free(s);
}
static void test_dims(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_program *p, *q;
    float want[210] = { 0 }, got[210] = { 0 };
    int64_t lo, hi;
    const char *name;
    tn_graph *g = tn_graph_new(ctx, "sizes");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(tn_dim(g, "batch", 1, 7, 1), 37));
    tn_output(tn_nn_softmax(tn_nn_linear(x, 10, "fc"), -1), "y");
    NEED(ctx, tn_compile(g, NULL, &p));
    tn_graph_free(g);
    run_sizes(ctx, p, want);
    if (by_machine_code(ctx)) {
        NEED(ctx, tn_program_save(p, path));
        NEED(ctx, tn_program_load(ctx, path, &q));
        assert_int_equal(tn_program_n_dims(q), 1);
        NEED(ctx, tn_program_dim(q, 0, &name, &lo, &hi, NULL));
        assert_true(!strcmp(name, "batch") && lo == 1 && hi == 7);
        run_sizes(ctx, q, got);
        assert_memory_equal(got, want, sizeof got);
        tn_program_free(q);
    }
    tn_program_free(p);
    tn_ctx_free(ctx);
}

/* ---- refused ---- */

static tn_program *small(tn_ctx *ctx, tn_mode mode, const char *device) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_graph *g = tn_graph_new(ctx, "small");
    build_training(g);
    o.mode = mode, o.device = device, o.threads = 1;
    NEED(ctx, tn_compile(g, &o, &p));
    tn_graph_free(g);
    return p;
}

static void refused(tn_ctx *ctx, tn_status got, tn_status want, const char *text) {
    if (got == want && strstr(tn_ctx_error(ctx), text)) return;
    fail_msg("%s, \"%s\" instead of %s, \"%s\"", tn_status_name(got), tn_ctx_error(ctx), tn_status_name(want), text);
}

static void test_refused(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_program *p = small(ctx, TN_MODE_IMMEDIATE, "cpu"), *q = p;
    char *text;
    tn_export *x;
    tn_session *s;
    tn_profile *profile;
    refused(ctx, tn_program_save(p, path), TN_ERR_UNSUPPORTED, "mode immediate");
    tn_program_free(p);
    p = small(ctx, TN_MODE_COMPILED, "null");
    refused(ctx, tn_program_save(p, path), TN_ERR_UNSUPPORTED, "device null");
    tn_program_free(p);
    p = small(ctx, TN_MODE_COMPILED, "cpu");
    if (!by_machine_code(ctx)) {
        refused(ctx, tn_program_save(p, path), TN_ERR_UNSUPPORTED, "machine code");
        goto done;
    }
    refused(ctx, tn_program_save(p, NULL), TN_ERR_INVAL, "path is NULL");
    refused(ctx, tn_program_save(p, "/nowhere/at/all"), TN_ERR_IO, "No such file");
    refused(ctx, tn_program_save(p, "/tmp/"), TN_ERR_IO, "Is a directory");
    refused(ctx, tn_program_load(ctx, NULL, &q), TN_ERR_INVAL, "path or out_program");
    assert_null(q);
    refused(ctx, tn_program_load(ctx, "/nowhere/at/all", &q), TN_ERR_IO, "No such file");
    refused(ctx, tn_program_load(ctx, folder, &q), TN_ERR_IO, "not a regular file");
    refused(ctx, tn_program_load(ctx, TESTS_DIR "/CMakeLists.txt", &q), TN_ERR_PARSE, "no program");
    refused(ctx, tn_program_load(ctx, "/dev/null", &q), TN_ERR_IO, "not a regular file");
    NEED(ctx, tn_program_save(p, path));
    NEED(ctx, tn_program_load(ctx, path, &q));
    refused(ctx, tn_program_save(q, other), TN_ERR_UNSUPPORTED, "copy that");
    refused(ctx, tn_program_text(q, "explain", &text), TN_ERR_UNSUPPORTED, "from a file");
    refused(ctx, tn_program_export(q, NULL, &x), TN_ERR_UNSUPPORTED, "from a file");
    NEED(ctx, tn_session_new(q, &s));
    refused(ctx, tn_session_profile(s, 0, &profile), TN_ERR_UNSUPPORTED, "from a file");
    tn_session_free(s);
    tn_program_free(q);
done:
    tn_program_free(p);
    tn_ctx_free(ctx);
}

static void test_for_something_else(void **state) {
    (void)state;
    tn_config cfg = test_config();
    tn_ctx *ctx = tn_ctx_new(&cfg);
    tn_program *p, *q;
    if (!by_machine_code(ctx)) {
        tn_ctx_free(ctx);
        return;
    }
    p = small(ctx, TN_MODE_COMPILED, "cpu");
    NEED(ctx, tn_program_save(p, path));
    bool narrow = !strcmp(p->code, "sse2");
    cfg.cpu = narrow ? "c" : "sse2";
    tn_ctx *less = tn_ctx_new(&cfg);
    refused(less, tn_program_load(less, path, &q), TN_ERR_UNSUPPORTED, "it was saved for");
    tn_ctx_free(less);

    FILE *f = fopen(path, "r+b");
    saved_head h;
    assert_int_equal(fread(&h, sizeof h, 1, f), 1);
    h.build[0] ^= 1;
    rewind(f);
    assert_int_equal(fwrite(&h, sizeof h, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    refused(ctx, tn_program_load(ctx, path, &q), TN_ERR_UNSUPPORTED, "another build");

    tn_program_free(p);
    tn_ctx_free(ctx);
}

/* The file says that it is for all threads that there are, which is as many as the process may use: another number is refused.
 */
static void test_threads(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_program *p, *q;
    tn_graph *g = tn_graph_new(ctx, "threads");
    build_image(g);
    NEED(ctx, tn_compile(g, NULL, &p));
    tn_graph_free(g);
    if (by_machine_code(ctx)) {
        p->opts.threads = p->target.threads + 1; /* as if that many had been asked for and not been there */
        NEED(ctx, tn_program_save(p, path));
        refused(ctx, tn_program_load(ctx, path, &q), TN_ERR_UNSUPPORTED, "threads");
    }
    tn_program_free(p);
    tn_ctx_free(ctx);
}

/* ---- bytes of a file ---- */

static unsigned char *read_all(size_t *n) {
    FILE *f = fopen(path, "rb");
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    unsigned char *bytes = malloc(*n);
    assert_int_equal(fread(bytes, 1, *n, f), *n);
    fclose(f);
    return bytes;
}
/* With a right sum: what is read then is still within the file, and within what it says. */
static void renew_sum(unsigned char *bytes) {
    saved_head h;
    memcpy(&h, bytes, sizeof h);
    const size_t from = offsetof(saved_head, build), end = (size_t)(h.part[SAVED_CODE].at + h.part[SAVED_CODE].n);
    h.sum = hash_bytes128(bytes + from, end - from);
    memcpy(bytes, &h, sizeof h);
}

/* ---- in the cache ---- */

static void write_text(const char *to, const char *text) {
    FILE *f = fopen(to, "w");
    assert_true(f && fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    usleep(30000); /* times of files have the system's ticks */
}

static bool found(tn_ctx *ctx, const char *key) {
    tn_program *q;
    NEED(ctx, tn_program_find(ctx, key, &q));
    tn_program_free(q);
    return q != NULL;
}

static void test_kept(void **state) {
    (void)state;
    char dir[80], a[96], b[96];
    snprintf(dir, sizeof dir, "%s/cache", folder);
    snprintf(a, sizeof a, "%s/a", folder), snprintf(b, sizeof b, "%s/b", folder);
    const char *files[] = { a, b }, *missing[] = { a, "/nowhere/at/all" };
    tn_config cfg = test_config();
    cfg.cache_dir = NULL;
    tn_ctx *ctx = tn_ctx_new(&cfg);
    tn_program *p = small(ctx, TN_MODE_COMPILED, "cpu"), *q = p;
    if (!by_machine_code(ctx)) goto done;
    refused(ctx, tn_program_keep(p, "key", NULL, 0), TN_ERR_UNSUPPORTED, "no cache directory");
    assert_false(found(ctx, "key"));
    refused(ctx, tn_program_keep(p, NULL, NULL, 0), TN_ERR_INVAL, "key or files");
    refused(ctx, tn_program_keep(p, "key", NULL, 1), TN_ERR_INVAL, "key or files");
    refused(ctx, tn_program_find(ctx, NULL, &q), TN_ERR_INVAL, "key or out_program");
    assert_null(q);
    tn_program_free(p), tn_ctx_free(ctx);

    write_text(a, "a"), write_text(b, "b");
    cfg.cache_dir = dir;
    ctx = tn_ctx_new(&cfg);
    p = small(ctx, TN_MODE_COMPILED, "cpu");
    assert_false(found(ctx, "key"));
    NEED(ctx, tn_program_keep(p, "key", files, 2));
    assert_true(found(ctx, "key"));
    assert_false(found(ctx, "kez"));
    tn_cache_stats stats;
    NEED(ctx, tn_cache_get_stats(ctx, &stats));
    assert_true(stats.files == 1 && stats.bytes > 1000 && !stats.unfinished);
    refused(ctx, tn_program_keep(p, "key", missing, 2), TN_ERR_IO, "/nowhere");
    assert_true(found(ctx, "key")); /* the old one is still there */

    DIR *listed = opendir(dir); /* as if it had been written before the machine was started */
    for (struct dirent *at; (at = readdir(listed));)
        if (strstr(at->d_name, ".program")) snprintf(path, sizeof path, "%s/cache/%.48s", folder, at->d_name);
    closedir(listed);
    size_t n;
    unsigned char *bytes = read_all(&n);
    saved_head h;
    memcpy(&h, bytes, sizeof h);
    for (size_t at = 0; at < 3; at++) { /* whole; a byte of its memory is another one; cut short */
        if (h.boot[0]) bytes[offsetof(saved_head, boot)] ^= 1;
        bytes[n - 1] ^= at == 1;
        FILE *f = fopen(path, "wb");
        assert_true(f && fwrite(bytes, 1, n - (at == 2), f) == n - (at == 2) && !fclose(f));
        assert_int_equal(found(ctx, "key"), at == 0);
        bytes[n - 1] ^= at == 1;
        memcpy(bytes, &h, sizeof h);
        if (at) continue;
        size_t same;
        unsigned char *now = read_all(&same); /* the next time not all of it is read */
        assert_true(same == n && !memcmp(now, bytes, n));
        free(now);
        assert_true(found(ctx, "key"));
    }
    NEED(ctx, tn_program_keep(p, "key", files, 2));
    free(bytes);
    snprintf(path, sizeof path, "%s/program", folder);

    write_text(b, "c"); /* as long as it was */
    assert_false(found(ctx, "key"));
    refused(ctx, tn_program_keep(p, "key", files, 2), TN_ERR_UNSUPPORTED, "changed");
    tn_program_free(p), tn_ctx_free(ctx);
    ctx = tn_ctx_new(&cfg);
    p = small(ctx, TN_MODE_COMPILED, "cpu");
    NEED(ctx, tn_program_keep(p, "key", files, 2));
    assert_true(found(ctx, "key"));
    unlink(b);
    assert_false(found(ctx, "key"));
    NEED(ctx, tn_program_keep(p, "one", files, 1));
    assert_true(found(ctx, "one"));
    NEED(ctx, tn_cache_prune(ctx, 0, NULL, NULL));
    assert_false(found(ctx, "one"));
    tn_program_free(p), tn_ctx_free(ctx);

    cfg.cache_bytes = 10000;
    ctx = tn_ctx_new(&cfg);
    p = small(ctx, TN_MODE_COMPILED, "cpu");
    refused(ctx, tn_program_keep(p, "key", files, 1), TN_ERR_UNSUPPORTED, "no room");
    unlink(a), rmdir(dir);
done:
    tn_program_free(p);
    tn_ctx_free(ctx);
}

/* ---- damaged ---- */

static void write_all(const unsigned char *bytes, size_t n) {
    FILE *f = fopen(other, "wb");
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void test_damaged(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_program *p = small(ctx, TN_MODE_LOOP, "cpu"), *q;
    size_t n, refused_ones = 0, loaded = 0;
    saved_head h;
    if (!by_machine_code(ctx)) {
        tn_program_free(p), tn_ctx_free(ctx);
        return;
    }
    NEED(ctx, tn_program_save(p, path));
    unsigned char *bytes = read_all(&n);
    memcpy(&h, bytes, sizeof h);
    size_t end = (size_t)(h.part[SAVED_CODE].at + h.part[SAVED_CODE].n), tables = (size_t)h.part[SAVED_TABLES].at;
    rng r = rng_make(1);
    for (size_t at = 0; at < end;
         at +=
         at < tables + 2000 ? 1 : 97) { /* any byte before constants: refused, but for the boot of a file that was synced */
        if (at >= offsetof(saved_head, boot) && at < offsetof(saved_head, build)) continue;
        unsigned char was = bytes[at];
        bytes[at] ^= (unsigned char)(1 + rng_below(&r, 255));
        write_all(bytes, n);
        bytes[at] = was;
        tn_status st = tn_program_load(ctx, other, &q);
        if (st != TN_ERR_PARSE && st != TN_ERR_UNSUPPORTED) fail_msg("byte %zu is wrong, but: %s", at, tn_status_name(st));
    }
    for (size_t size = 0; size < n; size += size < 400 ? 7 : n / 50) { /* cut short, or longer */
        write_all(bytes, size);
        refused(ctx, tn_program_load(ctx, other, &q), TN_ERR_PARSE, "damaged");
    }
    /* Tables that are wrong and have a right sum: refused, or a program, which is made and not run. */
    size_t tables_end = tables + (size_t)h.part[SAVED_TABLES].n;
    unsigned char *copy = malloc(n);
    for (int i = 0; i < campaign(4000, 1500); i++) {
        memcpy(copy, bytes, n);
        size_t at = offsetof(saved_head, code) + (size_t)rng_below(&r, (int64_t)(tables_end - offsetof(saved_head, code)));
        for (int k = 0; k < 1 + i % 4; k++)
            if (at + (size_t)k < tables_end) copy[at + (size_t)k] = i % 3 ? (unsigned char)rng_next(&r) : i % 2 ? 0xff : 0x80;
        memcpy(&h, copy, sizeof h);
        if (h.part[SAVED_CODE].at > n || h.part[SAVED_CODE].n > n - h.part[SAVED_CODE].at) continue;
        renew_sum(copy);
        write_all(copy, n);
        tn_status st = tn_program_load(ctx, other, &q);
        st ? refused_ones++ : loaded++;
        if (!st) tn_program_free(q);
    }
    print_message("count: %zu changed files, %zu of them programs\n", refused_ones + loaded, loaded);
    free(copy), free(bytes);
    tn_program_free(p);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_graphs), cmocka_unit_test(test_graphs),  cmocka_unit_test(test_dims),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_threads), cmocka_unit_test(test_for_something_else),
        cmocka_unit_test(test_kept),          cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
