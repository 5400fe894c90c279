/* test_panels.c - weights that no run changes lie in panels: contractions with the weights a constant or a state give every bit
 * that they give with the weights an input, in one and two threads, and follow a state that is set anew.
 *
 * Labels: long */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "recipe/recipe.h"
#include "support/plan_run.h"

typedef enum source { INPUT, CONSTANT, STATE } source;
typedef struct shape {
    tn_dtype t;
    int batch, m, n, k;
    bool transposed; /* weights [n, k] */
    bool conv;       /* 3 x 3, m x m images, k to n channels */
} shape;

static int64_t count_x(const shape *s) { return (int64_t)s->batch * s->m * (s->conv ? s->m : 1) * s->k; }
static int64_t count_w(const shape *s) { return (int64_t)(s->conv ? 9 : s->batch) * s->k * s->n; }
static int64_t count_y(const shape *s) { return (int64_t)s->batch * s->m * (s->conv ? s->m : 1) * s->n; }

static tn_tensor weights(tn_graph *g, const shape *s, source from, const void *w) {
    tn_shape dims = s->conv         ? TN_DIMS(3, 3, s->k, s->n)
                    : s->transposed ? TN_DIMS(s->batch, s->n, s->k)
                                    : TN_DIMS(s->batch, s->k, s->n);
    return from == INPUT      ? tn_input(g, "w", s->t, dims)
           : from == CONSTANT ? tn_const(g, s->t, dims, w)
                              : tn_state(g, "w", s->t, dims, NULL);
}

static tn_graph *build(tn_ctx *ctx, const shape *s, source from, const void *w) {
    tn_graph *g = tn_graph_new(ctx, "panels");
    tn_tensor tw = weights(g, s, from, w);
    if (s->conv) {
        tn_tensor x = tn_input(g, "x", s->t, TN_DIMS(s->batch, s->m, s->m, s->k));
        static const int64_t border[] = { 0, 1, 1, 0 }, axes[] = { 1, 2 }, size[] = { 3, 3 }, one[] = { 1, 1 };
        static const int64_t of_x[] = { 4, 5, 3 }, of_w[] = { 0, 1, 2 };
        x = tn_window(tn_pad(x, border, border, 4, 0), axes, size, one, one, 2); /* [batch, m, m, k, 3, 3] */
        tn_output(tn_relu(tn_dot(x, tw, NULL, NULL, 0, of_x, of_w, 3)), "y");
        return g;
    }
    tn_tensor x = tn_input(g, "x", s->t, TN_DIMS(s->batch, s->m, s->k));
    if (s->transposed) tw = tn_permute(tw, TN_INTS(0, 2, 1));
    tn_output(tn_relu(tn_matmul(x, tw)), "y");
    return g;
}

/* Returns whether the plan has panels. */
static bool run(tn_ctx *ctx, const shape *s, source from, int threads, void *x, void *w, void *y) {
    size_t bytes = (size_t)count_w(s) * tn_dtype_size(s->t);
    tn_graph *g = build(ctx, s, from, w);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *session;
    char *text;
    o.threads = threads, o.check = 1;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &session)) fail_msg("%s", tn_ctx_error(ctx));
    memset(y, 0xff, (size_t)count_y(s) * tn_dtype_size(s->t));
    if (from == INPUT) {
        assert_int_equal(tn_run(session, TN_BIND({ "x", x }, { "w", w }, { "y", y })), TN_OK);
    } else {
        if (from == STATE) assert_int_equal(tn_session_set(session, "w", w, bytes), TN_OK);
        assert_int_equal(tn_run(session, TN_BIND({ "x", x }, { "y", y })), TN_OK);
    }
    if (from == STATE) { /* the state itself is as it was set */
        void *back = malloc(bytes);
        assert_int_equal(tn_session_get(session, "w", back, bytes), TN_OK);
        assert_memory_equal(back, w, bytes);
        free(back);
    }
    assert_int_equal(tn_program_text(p, "plan", &text), TN_OK);
    bool panels = strstr(text, " panels ") != NULL;
    tn_string_free(ctx, text);
    tn_session_free(session), tn_program_free(p), tn_graph_free(g);
    return panels;
}

static int check(tn_ctx *ctx, const shape *s) {
    size_t size = tn_dtype_size(s->t), ny = (size_t)count_y(s) * size;
    char *x = malloc((size_t)count_x(s) * size), *w = malloc((size_t)count_w(s) * size), *want = malloc(ny), *y = malloc(ny);
    int panels = 0;
    rng r = rng_make((uint64_t)(count_x(s) * 31 + count_w(s)));
    fill_random(&r, s->t, x, count_x(s), -1, 1);
    fill_random(&r, s->t, w, count_w(s), -1, 1);
    assert_false(run(ctx, s, INPUT, 1, x, w, want));
    for (int from = CONSTANT; from <= STATE; from++)
        for (int threads = 1; threads <= 2; threads++) {
            if (fuzz_by_c() && (from == STATE) != (threads == 2)) continue; /* a compiler runs each time */
            panels += run(ctx, s, (source)from, threads, x, w, y);
            if (memcmp(want, y, ny) != 0)
                fail_msg("%s %d x %d x %d x %d%s: the weights as a %s give other bits in %d threads", tn_dtype_name(s->t),
                         s->batch, s->m, s->n, s->k,
                         s->conv         ? " convolution"
                         : s->transposed ? " transposed"
                                         : "",
                         from == CONSTANT ? "constant" : "state", threads);
        }
    free(x), free(w), free(want), free(y);
    return panels;
}

static void test_same_bits(void **state) {
    (void)state;
    static const shape shapes[] = {
        { TN_F32, 1, 70, 135, 520, false, false },  { TN_F32, 1, 70, 135, 520, true, false },
        { TN_F32, 1, 33, 250, 2100, false, false }, { TN_F32, 1, 40, 64, 1500, true, false },
        { TN_F32, 1, 7, 1030, 600, false, false },  { TN_F32, 1, 2, 700, 900, false, false },
        { TN_F32, 3, 30, 100, 700, false, false },  { TN_F32, 2, 25, 70, 515, true, false },
        { TN_F64, 1, 50, 90, 400, false, false },   { TN_F16, 1, 40, 130, 900, false, false },
        { TN_BF16, 1, 24, 200, 600, true, false },  { TN_I32, 1, 37, 110, 500, false, false },
        { TN_F32, 2, 9, 70, 65, false, true },      { TN_F32, 1, 14, 40, 130, false, true },
        { TN_F32, 1, 1, 513, 257, false, false },   { TN_F32, 1, 0, 64, 64, false, false },
        { TN_F32, 1, 1, 1030, 600, false, false },  { TN_F32, 3, 1, 299, 400, false, false },
        { TN_BF16, 1, 1, 777, 300, false, false },  { TN_F32, 1, 1, 900, 100, true, false },
        { TN_F32, 1, 1, 130, 70, false, false },    { TN_F32, 1, 1, 256, 31, false, false },
        { TN_F64, 1, 1, 201, 150, false, false },   { TN_I32, 1, 1, 170, 90, false, false },
    };
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    int panels = 0;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) panels += check(ctx, &shapes[i]);
    assert_true(panels >= (fuzz_by_c() ? 25 : 50)); /* not all of them are worth it */
    tn_ctx_free(ctx);
    printf("count: %zu contractions, %d programs with panels\n", COUNT_OF(shapes), panels);
}

/* A large matrix is read once for a few rows that fit a tile: no sums in between. */
static void test_read_once(void **state) {
    (void)state;
    const shape s = { TN_F32, 1, 6, 1024, 2048, false, false };
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    tn_graph *g = build(ctx, &s, STATE, NULL);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    char *text;
    if (tn_compile(g, &o, &p)) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_program_text(p, "kernels", &text), TN_OK);
    for (const char *at = text; (at = strstr(at, " local f32[")); at++)
        if (at[strlen(" local f32[")] != '0') fail_msg("sums wait in memory:\n%s", text);
    tn_string_free(ctx, text);
    tn_program_free(p), tn_graph_free(g), tn_ctx_free(ctx);
}

typedef struct walk { /* through a tiled kernel, counting lines of its largest buffer */
    const kernel *k;
    int buf;
    int64_t at[64], n_lines, n_late, n_fetches;
    bool *seen; /* [elems / 16] */
} walk;

static void touch(walk *w, const kins *in, int lanes) {
    int64_t e = in->idx.base, line;
    for (int t = 0; t < in->idx.n; t++) e += in->idx.t[t].coef * w->at[in->idx.t[t].var];
    for (int l = 0; l < lanes; l++) {
        line = (e + l * in->lane_stride) / 16;
        if (line < 0 || line > w->k->bufs.at[w->buf].elems / 16 || w->seen[line]) continue;
        w->seen[line] = true;
        w->n_lines++, w->n_late += in->op != K_PREFETCH;
    }
}

static void walk_block(walk *w, int from, int to) {
    for (int i = from; i < to; i++) {
        const kins *in = &w->k->ins.at[i];
        if (in->op == K_LOOP) {
            int end = kernel_loop_end(w->k, i);
            for (int64_t v = in->lo; v < in->hi; v += in->step) w->at[in->var] = v, walk_block(w, i + 1, end);
            i = end;
        } else if ((in->op == K_LOAD || in->op == K_STORE || in->op == K_PREFETCH) && in->buf == w->buf) {
            w->n_fetches += in->op == K_PREFETCH;
            touch(w, in, in->op == K_PREFETCH ? 1 : in->lanes);
        }
    }
}

/* Few rows fetch what they need next while they work; a single tile, many rows, and what the caches hold do not. */
static void check_fetches(const char *text, int64_t l2_bytes, bool fetches) {
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    graph *g = graph_parse(&a, text, strlen(text), "test");
    reference r = reference_make(g, &a, 5);
    for (int wide = 0; wide < 2; wide++) {
        char why_not[512];
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = { .vector_bytes = wide ? 64 : 32, .n_vector_regs = wide ? 32 : 16, .threads = 1, .l1_bytes = 8 << 10 };
        t.l2_bytes = l2_bytes, o.fusion = 3, o.check = 1;
        plan *p = pipeline_run(g, &a, &o, &t);
        const kernel *k = p->kernels.at[p->kernels.n - 1].k;
        walk w = { .k = k };
        for (int b = 1; b < k->bufs.n; b++)
            if (k->bufs.at[b].kind != KB_LOCAL && k->bufs.at[b].elems > k->bufs.at[w.buf].elems) w.buf = b;
        w.seen = ARENA_ARRAY(&a, bool, k->bufs.at[w.buf].elems / 16 + 1);
        walk_block(&w, 1, k->ins.n);
        if (fetches ? w.n_late > w.n_lines / 4 : w.n_fetches > 0)
            fail_msg("%d of %d lines come late, %d fetches:\n%s", (int)w.n_late, (int)w.n_lines, (int)w.n_fetches, text);
        if (!plan_agrees(p, &r, &a, why_not, sizeof why_not) || !plan_texts_agree(p, &a, why_not, sizeof why_not))
            fail_msg("%s", why_not);
    }
    arena_fini(&a);
}

/* Most steps of an innermost loop with products, for x [k, m] by w [k, 410]. */
static int64_t longest_stretch(int k, int m) {
    arena a;
    guard gd;
    char why_not[512];
    int64_t most = 0;
    int loop = 0;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    const char *text = arena_printf(&a,
                                    "graph @g(x f32[%d,%d], w f32[%d,410]) {\n"
                                    "  %%1 = dot x, w contract=[0]x[0] f32[%d,410]\n  return %%1 as \"y\"\n}\n",
                                    k, m, k, m);
    graph *g = graph_parse(&a, text, strlen(text), "test");
    reference r = reference_make(g, &a, 5);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = { .vector_bytes = 32, .n_vector_regs = 16, .threads = 1, .l1_bytes = 32 << 10, .l2_bytes = 64 << 10 };
    o.fusion = 3, o.check = 1;
    plan *p = pipeline_run(g, &a, &o, &t);
    const kernel *of = p->kernels.at[p->kernels.n - 1].k;
    for (int i = 1; i < of->ins.n; i++) {
        const kins *in = &of->ins.at[i];
        if (in->op == K_LOOP) loop = i;
        if (in->op == K_UPD && in->alu == OP_dot && loop && of->ins.at[loop].hi - of->ins.at[loop].lo > most)
            most = of->ins.at[loop].hi - of->ins.at[loop].lo;
    }
    if (!plan_agrees(p, &r, &a, why_not, sizeof why_not) || !plan_texts_agree(p, &a, why_not, sizeof why_not))
        fail_msg("%s", why_not);
    arena_fini(&a);
    return most;
}

/* Rows of 1,024 bytes share 8 of the 128 sets of the second level: 64 of them find a place there, and 48 leave some for others.
 * Rows of 1,088 bytes use all sets. */
static void test_rows_that_share_sets(void **state) {
    (void)state;
    assert_int_equal(longest_stretch(384, 256), 48);
    assert_true(longest_stretch(384, 272) > 96);
}

/* Columns of several rows are panels that a run copies, also of a matrix that no run changes. */
static void test_joined_rows(void **state) {
    (void)state;
    static const char text[] = "graph @g(x f32[1,9,1,4], state w f32[4,4]) {\n  %1 = expand x f32[1,9,8,4]\n"
                               "  %2 = dot %1, w contract=[3]x[1] f32[1,9,8,4]\n  return %2 as \"y\"\n}\n";
    static const int vectors[] = { 16, 32, 64 };
    for (size_t i = 0; i < COUNT_OF(vectors); i++) {
        arena a;
        guard gd;
        char why_not[4096];
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
        graph *g = graph_parse(&a, text, strlen(text), "test");
        reference r = reference_make(g, &a, 7);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = { .vector_bytes = vectors[i], .n_vector_regs = 16, .threads = 1, .l1_bytes = 32 << 10, .l2_bytes = 1 << 20 };
        o.fusion = 3, o.check = 1;
        plan *p = pipeline_run(g, &a, &o, &t);
        if (!plan_agrees(p, &r, &a, why_not, sizeof why_not)) fail_msg("%s", why_not);
        arena_fini(&a);
    }
}

/* Few terms a sum: [k, m] x [k, n]. */
#define OUTER(k)                                                                                                               \
    "graph @g(x f32[" #k ",290], w f32[" #k ",410]) {\n  %1 = dot x, w contract=[0]x[0] f32[290,410]\n"                        \
    "  %2 = max %1, 0.0\n  return %2 as \"y\"\n}\n"
#define PRODUCT(m, w) /* m rows; [k, n] = [300, 410] */                                                                        \
    "graph @g(x f32[" #m ",300], " w ") {\n  %1 = dot x, w contract=[1]x[0] f32[" #m ",410]\n"                                 \
    "  %2 = max %1, 0.0\n  return %2 as \"y\"\n}\n"

static void test_fetches_ahead(void **state) {
    (void)state;
    check_fetches(PRODUCT(31, "w f32[300,410]"), 32 << 10, true);
    check_fetches(PRODUCT(31, "state w f32[300,410] = rand(1)"), 32 << 10, true);
    check_fetches(PRODUCT(90, "state w f32[300,410] = rand(1)"), 32 << 10, true);
    check_fetches(PRODUCT(31, "w f32[300,410]"), 1 << 20, false);
    check_fetches(PRODUCT(31, "state w f32[300,410] = rand(1)"), 1 << 20, false);
    check_fetches(PRODUCT(700, "state w f32[300,410] = rand(1)"), 32 << 10, false);
    check_fetches(PRODUCT(700, "w f32[300,410]"), 32 << 10, false);
    check_fetches(OUTER(7), 32 << 10, true);
    check_fetches(OUTER(7), 1 << 20, false);
}

/* Different places, more than a page apart, from which a step of the innermost loop of a lone row's product reads weights. */
static int count_streams(int columns, int vector_bytes, int registers) {
    arena a;
    guard gd;
    char why_not[512];
    int64_t seen[64];
    int n = 0, loop = 0;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    const char *text = arena_printf(&a,
                                    "graph @g(x f32[1,600], state w f32[600,%d] = rand(1)) {\n"
                                    "  %%1 = dot x, w contract=[1]x[0] f32[1,%d]\n  return %%1 as \"y\"\n}\n",
                                    columns, columns);
    graph *g = graph_parse(&a, text, strlen(text), "test");
    reference r = reference_make(g, &a, 5);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = { .vector_bytes = vector_bytes, .n_vector_regs = registers, .threads = 1, .l1_bytes = 32 << 10 };
    t.l2_bytes = 64 << 10, o.fusion = 3, o.check = 1;
    plan *p = pipeline_run(g, &a, &o, &t);
    const kernel *k = p->kernels.at[p->kernels.n - 1].k;
    for (int i = 1; i < k->ins.n && k->ins.at[i].op != K_END; i++) { /* the first of the innermost loops */
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) loop = i, n = 0;
        if (in->op != K_LOAD || in->lanes < 2 || !loop) continue;
        bool known = false;
        for (int j = 0; j < n; j++) known |= llabs(in->idx.base - seen[j]) < 1024;
        if (!known) seen[n++] = in->idx.base;
    }
    if (!plan_agrees(p, &r, &a, why_not, sizeof why_not) || !plan_texts_agree(p, &a, why_not, sizeof why_not))
        fail_msg("%s", why_not);
    arena_fini(&a);
    return n;
}

/* A lone row reads several panels at once, where there are several. */
static void test_streams(void **state) {
    (void)state;
    assert_int_equal(count_streams(1120, 32, 16), 7);
    assert_int_equal(count_streams(1000, 64, 32), 1); /* whole lines */
    assert_int_equal(count_streams(128, 32, 16), 4);
    assert_int_equal(count_streams(64, 32, 16), 1); /* as it lies */
    assert_int_equal(count_streams(40, 32, 16), 1);
}

enum { GROUP = 32 };

/* m rows times weights of 8 or 4 bits with a scale for each group of 32, which lie as [k,n] or (across) [n,k]; n_rows: and so
 * many rows of these, which an input names. */
static tn_graph *grouped(tn_ctx *ctx, int bits, int m, int k, int n, bool across, int n_rows) {
    int groups = k / GROUP, stored = bits == 4 ? k / 2 : k, half = GROUP / 2;
    tn_graph *g = tn_graph_new(ctx, "groups");
    tn_tensor tx = tn_input(g, "x", TN_F32, bits == 4 ? TN_DIMS(m, groups, 2, half) : TN_DIMS(m, groups, GROUP));
    tn_tensor q = tn_state(g, "w", bits == 4 ? TN_U8 : TN_I8, across ? TN_DIMS(n, stored) : TN_DIMS(stored, n), NULL);
    tn_tensor s = tn_state(g, "s", TN_F32, across ? TN_DIMS(n, groups) : TN_DIMS(groups, n), NULL);
    const int64_t of_x[] = { 1, 2, 3 }, of_q[] = { across, across + 1, across + 2 };
    if (n_rows) {
        tn_tensor at = tn_input(g, "at", TN_I32, TN_DIMS(n_rows)), row = tn_gather(q, at, 0), scale = tn_gather(s, at, 0);
        if (bits == 4) {
            tn_tensor first = tn_slice_axis(tn_iota(g, TN_I32, TN_DIMS(1, 1, 8, 1), 2), 2, 0, 8, 4);
            row = tn_cast(tn_reshape(row, TN_DIMS(n_rows, groups, 1, half)), TN_I32);
            row = tn_and(tn_shift_right(row, first), tn_full(g, TN_I32, TN_SCALAR, 15));
            row = tn_mul(tn_sub_scalar(tn_cast(row, TN_F32), 8), tn_reshape(scale, TN_DIMS(n_rows, groups, 1, 1)));
        } else {
            row = tn_mul(tn_cast(tn_reshape(row, TN_DIMS(n_rows, groups, GROUP)), TN_F32),
                         tn_reshape(scale, TN_DIMS(n_rows, groups, 1)));
        }
        tn_output(row, "rows");
    }
    if (bits == 4) {
        int axis = across ? 2 : 1;
        tn_tensor first =
            tn_slice_axis(tn_iota(g, TN_I32, across ? TN_DIMS(1, 1, 8, 1) : TN_DIMS(1, 8, 1, 1), axis), axis, 0, 8, 4);
        q = tn_cast(tn_reshape(q, across ? TN_DIMS(n, groups, 1, half) : TN_DIMS(groups, 1, half, n)), TN_I32);
        q = tn_and(tn_shift_right(q, first), tn_full(g, TN_I32, TN_SCALAR, 15));
        s = tn_reshape(s, across ? TN_DIMS(n, groups, 1, 1) : TN_DIMS(groups, 1, 1, n));
        q = tn_sub_scalar(tn_cast(q, TN_F32), 8);
    } else {
        q = tn_cast(tn_reshape(q, across ? TN_DIMS(n, groups, GROUP) : TN_DIMS(groups, GROUP, n)), TN_F32);
        s = tn_reshape(s, across ? TN_DIMS(n, groups, 1) : TN_DIMS(groups, 1, n));
    }
    tn_output(tn_dot(tx, tn_mul(q, s), NULL, NULL, 0, of_x, of_q, bits == 4 ? 3 : 2), "y");
    return g;
}

/* Against double, with the error that as many additions may have. */
static void check_result(int bits, int k, int n, bool across, const float *x, const uint8_t *w, const float *scale,
                         const float *y) {
    int stored = bits == 4 ? k / 2 : k;
    for (int c = 0; c < n; c++) {
        double want = 0, size = 0;
        for (int i = 0; i < k; i++) {
            int group = i / GROUP, half = i % GROUP / (GROUP / 2), byte = bits == 8 ? i : group * (GROUP / 2) + i % (GROUP / 2),
                at = across ? c * stored + byte : byte * n + c,
                number = bits == 8 ? (int8_t)w[at] : (half ? w[at] >> 4 : w[at] & 15) - 8;
            double term = (double)x[i] * number * (double)scale[across ? c * (k / GROUP) + group : group * n + c];
            want += term, size += term < 0 ? -term : term;
        }
        double off = (double)y[c] - want;
        if (!((off < 0 ? -off : off) <= size * k * 0x1p-24))
            fail_msg("%d bits, %d x %d, across %d: y[%d] is %g, expected %g", bits, k, n, across, c, (double)y[c], want);
    }
}

/* One row, and many with one copy of the weights: bytes lie in panels, and scales are multiplied by sums of groups. */
static void check_groups(tn_ctx *ctx, int bits, int k, int n, int threads, bool across) {
    enum { ROWS = 40 };
    int groups = k / GROUP, stored = bits == 4 ? k / 2 : k;
    float *x = malloc((size_t)(ROWS * k) * sizeof *x), *scale = malloc((size_t)(groups * n) * sizeof *scale),
          *y = malloc((size_t)(ROWS * n) * sizeof *y);
    uint8_t *w = malloc((size_t)stored * (size_t)n);
    rng r = rng_make((uint64_t)(k * 31 + n + bits));
    fill_random(&r, TN_F32, x, ROWS * k, -1, 1);
    fill_random(&r, TN_F32, scale, (int64_t)groups * n, 0.001, 0.02);
    for (int i = 0; i < stored * n; i++) w[i] = (uint8_t)rng_between(&r, 0, 255);
    tn_graph *g = grouped(ctx, bits, 1, k, n, across, 0);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *session;
    char *text;
    o.threads = threads, o.check = 1;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &session)) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_session_set(session, "w", w, (size_t)stored * (size_t)n), TN_OK);
    assert_int_equal(tn_session_set(session, "s", scale, (size_t)(groups * n) * sizeof *scale), TN_OK);
    assert_int_equal(tn_program_text(p, "schedule", &text), TN_OK);
    if (across && n % 64 == 0 && !strstr(text, "lay_out")) fail_msg("%d bits, %d x %d: weights are read by rows", bits, k, n);
    if ((!across || n % 64 == 0) && !strstr(text, "group_sums"))
        fail_msg("%d bits, %d x %d: scales are inside of the sums", bits, k, n);
    if (bits == 4 && n % 64 == 0 && !across && !strstr(text, "join_bytes"))
        fail_msg("%d x %d: bytes are not read by words\n%s", k, n, text);
    if (bits == 4 && !strstr(text, "reorder k1 k3 k2")) fail_msg("%d x %d: the halves of a byte are loaded apart", k, n);
    tn_string_free(ctx, text);
    memset(y, 0xff, (size_t)n * sizeof *y);
    assert_int_equal(tn_run(session, TN_BIND({ "x", x }, { "y", y })), TN_OK);
    check_result(bits, k, n, across, x, w, scale, y);
    uint8_t *back = malloc((size_t)stored * (size_t)n); /* out of the panels */
    assert_int_equal(tn_session_get(session, "w", back, (size_t)stored * (size_t)n), TN_OK);
    assert_memory_equal(back, w, (size_t)stored * (size_t)n);
    if (across && n % 64 == 0) {
        tn_graph *many = grouped(ctx, bits, ROWS, k, n, across, 0);
        tn_program *q;
        tn_session *sharing;
        o.no_panels = 1;
        assert_int_equal(tn_compile(many, &o, &q), TN_OK);
        if (tn_session_new_sharing(q, session, &sharing)) fail_msg("%d bits, %d x %d: %s", bits, k, n, tn_ctx_error(ctx));
        assert_int_equal(tn_run(sharing, TN_BIND({ "x", x }, { "y", y })), TN_OK);
        for (int i = 0; i < ROWS; i++) check_result(bits, k, n, across, x + i * k, w, scale, y + i * n);
        memset(back, 0, (size_t)stored * (size_t)n);
        assert_int_equal(tn_session_get(sharing, "w", back, (size_t)stored * (size_t)n), TN_OK);
        assert_memory_equal(back, w, (size_t)stored * (size_t)n);
        tn_session_free(sharing), tn_program_free(q), tn_graph_free(many);
    }
    tn_session_free(session), tn_program_free(p), tn_graph_free(g);
    free(x), free(scale), free(w), free(y), free(back);
}

/* Bytes of rows that become columns, or words of four of them, and back. */
static void test_turned(void **state) {
    (void)state;
    enum { MOST = 130, WIDE = 64, PANELS = 3 };
    static const int lengths[] = { 1, 7, 8, 13, 64, 77, MOST }, widths[] = { 4, 12, 16, 20, WIDE };
    static uint8_t value[PANELS * WIDE * MOST], back[PANELS * WIDE * MOST], out[PANELS * WIDE * MOST];
    rng r = rng_make(3);
    for (size_t i = 0; i < sizeof value; i++) value[i] = (uint8_t)rng_between(&r, 0, 255);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (int words = 0; words <= 1; words++) {
                int64_t n = lengths[l], all = widths[w], width = words ? all / 4 : all;
                kpanels x = { .width = width, .column = { width, n }, .n_depth = 2, .dtype = TN_U8 };
                x.loops[0] = (kstep){ PANELS, all * n }, x.loops[1] = (kstep){ n, 1 };
                if (words) x.packed = 4, x.packed_stride = width * n;
                pbuf b = { .dtype = words ? TN_I32 : TN_U8, .panels = &x, .bytes = PANELS * all * n };
                memset(out, 0, sizeof out), memset(back, 0, sizeof back);
                pbuf_fill(&b, value, out);
                for (int64_t i = 0; i < PANELS * all * n; i++) {
                    int64_t panel = i / (all * n), k = i / all % n, at = i % all, column = words ? at / 4 + at % 4 * width : at;
                    assert_int_equal(out[i], value[(panel * all + column) * n + k]);
                }
                pbuf_unpack(&b, out, back);
                assert_memory_equal(back, value, (size_t)(PANELS * all * n));
            }
}

/* A table of which rows are read, and which all of its rows are multiplied by: one copy of it, in panels. */
static void test_tables(void **state) {
    (void)state;
    enum { K = 96, N = 192, N_ROWS = 4 };
    static float x[K], scale[N * K / GROUP], y[N], rows[N_ROWS * K];
    static uint8_t w[N * K];
    const int at[N_ROWS] = { 0, 191, 77, 500 }; /* the last row in its place */
    tn_ctx *ctx = tn_ctx_new(NULL);
    rng r = rng_make(5);
    fill_random(&r, TN_F32, x, K, -1, 1);
    fill_random(&r, TN_F32, scale, N * K / GROUP, 0.001, 0.02);
    for (int i = 0; i < N * K; i++) w[i] = (uint8_t)rng_between(&r, 0, 255);
    for (int bits = 4; bits <= 8; bits += 4) {
        tn_graph *g = grouped(ctx, bits, 1, K, N, true, N_ROWS);
        tn_program *p;
        tn_session *s;
        char *text;
        int stored = bits == 4 ? K / 2 : K;
        if (tn_compile(g, NULL, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
        assert_int_equal(tn_program_text(p, "schedule", &text), TN_OK);
        if (!strstr(text, "lay_out_table") || !strstr(text, "lay_out b")) fail_msg("%d bits: not in panels\n%s", bits, text);
        tn_string_free(ctx, text);
        assert_int_equal(tn_program_text(p, "plan", &text), TN_OK);
        if (strstr(text, " copy ")) fail_msg("%d bits: more than one copy\n%s", bits, text);
        tn_string_free(ctx, text);
        assert_int_equal(tn_session_set(s, "w", w, (size_t)(N * stored)), TN_OK);
        assert_int_equal(tn_session_set(s, "s", scale, sizeof scale), TN_OK);
        assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "at", (void *)(uintptr_t)at }, { "y", y }, { "rows", rows })), TN_OK);
        check_result(bits, K, N, true, x, w, scale, y);
        for (int i = 0; i < N_ROWS * K; i++) {
            int row = at[i / K] < N ? at[i / K] : N - 1, k = i % K, half = k % GROUP / (GROUP / 2),
                byte = w[row * stored + (bits == 8 ? k : k / GROUP * (GROUP / 2) + k % (GROUP / 2))],
                number = bits == 8 ? (int8_t)byte : (half ? byte >> 4 : byte & 15) - 8;
            assert_true(rows[i] == (float)number * scale[row * (K / GROUP) + k / GROUP]);
        }
        tn_session_free(s), tn_program_free(p), tn_graph_free(g);
    }
    tn_ctx_free(ctx);
}

/* m rows times weights of 4 bits in groups of 32, which lie as [k,n] or (across) [n,k]: the same bits for any number of
 * threads. */
static void check_shared_groups(tn_ctx *ctx, int m, int k, int n, bool across) {
    int groups = k / 32;
    float *x = malloc((size_t)(m * k) * sizeof *x), *scale = malloc((size_t)(groups * n) * sizeof *scale), *y[5];
    uint8_t *w = malloc((size_t)(k / 2 * n));
    rng r = rng_make((uint64_t)(m * 31 + n));
    fill_random(&r, TN_F32, x, m * k, -1, 1);
    fill_random(&r, TN_F32, scale, (int64_t)groups * n, 0.001, 0.02);
    for (int i = 0; i < k / 2 * n; i++) w[i] = (uint8_t)rng_between(&r, 0, 255);
    for (int threads = 1; threads <= 4; threads++) {
        tn_graph *g = tn_graph_new(ctx, "groups");
        tn_tensor first =
            tn_mul_scalar(tn_iota(g, TN_I32, across ? TN_DIMS(1, 1, 2, 1) : TN_DIMS(1, 2, 1, 1), across ? 2 : 1), 4);
        tn_tensor q = tn_state(g, "w", TN_U8, across ? TN_DIMS(n, groups, 1, 16) : TN_DIMS(groups, 1, 16, n), w);
        tn_tensor s = tn_state(g, "s", TN_F32, across ? TN_DIMS(n, groups, 1, 1) : TN_DIMS(groups, 1, 1, n), scale);
        q = tn_and(tn_shift_right(tn_cast(q, TN_I32), first), tn_full(g, TN_I32, TN_SCALAR, 15));
        q = tn_mul(tn_sub_scalar(tn_cast(q, TN_F32), 8), s);
        const int64_t of_x[] = { 1, 2, 3 }, of_q[] = { across, across + 1, across + 2 };
        tn_output(tn_dot(tn_input(g, "x", TN_F32, TN_DIMS(m, groups, 2, 16)), q, NULL, NULL, 0, of_x, of_q, 3), "y");
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        tn_program *p;
        tn_session *session;
        o.threads = threads;
        y[threads] = malloc((size_t)(m * n) * sizeof(float));
        if (tn_compile(g, &o, &p) || tn_session_new(p, &session)) fail_msg("%s", tn_ctx_error(ctx));
        assert_int_equal(tn_run(session, TN_BIND({ "x", x }, { "y", y[threads] })), TN_OK);
        if (memcmp(y[threads], y[1], (size_t)(m * n) * sizeof(float)) != 0)
            fail_msg("%d x %d x %d, %d threads give other bits", m, k, n, threads);
        tn_session_free(session), tn_program_free(p), tn_graph_free(g);
    }
    for (int threads = 1; threads <= 4; threads++) free(y[threads]);
    free(x), free(scale), free(w);
}

static void test_shared_groups(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    for (int across = 0; across <= 1; across++) {
        check_shared_groups(ctx, 1, 256, 5003, across);
        check_shared_groups(ctx, 9, 256, 5003, across);
        check_shared_groups(ctx, 8, 96, 331, across);
        check_shared_groups(ctx, 6, 2048, 160, across);
        check_shared_groups(ctx, 1, 256, 1024, across);
        check_shared_groups(ctx, 7, 1024, 256, across);
    }
    tn_ctx_free(ctx);
}

static void test_groups(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    for (int bits = 4; bits <= 8; bits += 4)
        for (int threads = 1; threads <= 2; threads++) {
            for (int across = 0; across <= 1; across++) {
                check_groups(ctx, bits, 768, 331, threads, across);
                check_groups(ctx, bits, 256, 1024, threads, across);
                check_groups(ctx, bits, 1024, 517, threads, across);
            }
            check_groups(ctx, bits, 96, 192, threads, true);
        }
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_same_bits),     cmocka_unit_test(test_read_once),
                                        cmocka_unit_test(test_tables),        cmocka_unit_test(test_turned),
                                        cmocka_unit_test(test_fetches_ahead), cmocka_unit_test(test_streams),
                                        cmocka_unit_test(test_joined_rows),   cmocka_unit_test(test_groups),
                                        cmocka_unit_test(test_shared_groups), cmocka_unit_test(test_rows_that_share_sets) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
