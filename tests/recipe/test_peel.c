/* test_peel.c - loads with bounds checks: padded images under depthwise, grouped and small dense convolutions, their weight
 * gradients and pools, with any padding, window, stride and dilation, in both layouts. Kernels are checked and interpreted
 * for machines of every width, and run as machine code in one thread and in two: the same bits, near the reference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/api.h"
#include "support/plan_run.h"

typedef struct image { /* axes of the image */
    int64_t dims[4];
    int h, w, c;
} image;

static val input(graph *g, const char *name, tn_dtype t, const int64_t *dims, int rank) {
    return graph_add(g, &(spec){ .op = OP_input, .dtype = t, .rank = rank, .dims = dims, .name = name });
}

static image random_image(rng *r) {
    bool last = rng_chance(r, 0.6); /* channels last */
    image i = { .h = last ? 1 : 2, .w = last ? 2 : 3, .c = last ? 3 : 1 };
    i.dims[0] = rng_chance(r, 0.05) ? 0 : rng_between(r, 1, 2);
    i.dims[i.h] = rng_between(r, 1, 20);
    i.dims[i.w] = rng_between(r, 1, rng_chance(r, 0.3) ? 40 : 14);
    i.dims[i.c] = rng_between(r, 1, 19);
    return i;
}

static val random_windows(graph *g, rng *r, const image *i, val x) {
    int64_t before[4] = { 0 }, after[4] = { 0 };
    window_axis w[2];
    for (int a = 0; a < 2; a++) {
        int axis = a ? i->w : i->h;
        before[axis] = rng_between(r, 0, rng_chance(r, 0.1) ? 9 : 3), after[axis] = rng_between(r, 0, 3);
        int64_t size = i->dims[axis] + before[axis] + after[axis];
        w[a] = (window_axis){ axis, rng_between(r, 1, 5), rng_between(r, 1, 3), rng_between(r, 1, 2) };
        if (rng_chance(r, 0.5)) w[a].stride = w[a].dilation = 1;
        while ((w[a].size - 1) * w[a].dilation >= size) w[a].size--;
    }
    return graph_window(g, graph_pad(g, x, before, after, rng_chance(r, 0.7) ? 0 : 0.5), w, 2);
}

/* The window's axes: n, h, w, c in the image's order, then offsets along h and w. */
static val random_use(graph *g, rng *r, const image *i, val v) {
    node n = *graph_get(g, v);
    int64_t c = i->dims[i->c], kernel[4] = { n.dims[4], n.dims[5], c, 1 + rng_below(r, rng_chance(r, 0.3) ? 40 : 3) };
    tn_dtype t = (tn_dtype)n.dtype;
    int64_t bx = i->c, bw = 2, cx[5] = { 4, 5 }, cw[5] = { 0, 1 };
    switch (rng_below(r, 6)) {
    case 0: /* depthwise, in the image's layout */
    case 1: {
        val d = graph_dot(g, v, input(g, "w", t, kernel, 3), &bx, &bw, 1, cx, cw, 2);
        int64_t perm[4] = { 1 };
        for (int a = 1, from = 2; a < 4; a++) perm[a] = a == i->c ? 0 : from++;
        return graph_permute(g, d, perm);
    }
    case 2: /* with several results a channel */
        return graph_dot(g, v, input(g, "w", t, kernel, 4), &bx, &bw, 1, cx, cw, 2);
    case 3: /* dense */
        cx[2] = i->c, cw[2] = 2;
        return graph_dot(g, v, input(g, "w", t, kernel, 4), NULL, NULL, 0, cx, cw, 3);
    case 4: { /* gradient by the weights of a depthwise one */
        int64_t sum[5] = { 0, i->h, i->w };
        bw = i->c;
        return graph_dot(g, v, input(g, "w", t, n.dims, 4), &bx, &bw, 1, sum, sum, 3);
    }
    default:
        return graph_reduce(g, rng_chance(r, 0.5) ? OP_reduce_max : OP_sum, v, UINT64_C(48));
    }
}

static graph *random_case(arena *a, uint64_t seed) {
    rng r = rng_make(seed);
    graph *g = graph_make(a, "border");
    image i = random_image(&r);
    tn_dtype t = rng_chance(&r, 0.8) ? TN_F32 : rng_chance(&r, 0.5) ? TN_F64 : TN_BF16;
    val x = input(g, "x", t, i.dims, 4);
    graph_output(g, "y", random_use(g, &r, &i, random_windows(g, &r, &i, x)));
    return g;
}

/* As machine code; y has room for `bytes`. */
static void run_code(tn_ctx *ctx, graph *g, const sample *in, int threads, void *y) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *s;
    o.threads = threads;
    if (drive_compile(ctx, g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    for (int k = 0; k < g->inputs.n; k++)
        assert_int_equal(tn_session_bind(s, tn_session_slot(s, graph_get(g, g->inputs.at[k])->name), in->data[k]), TN_OK);
    assert_int_equal(tn_session_bind(s, tn_session_slot(s, "y"), y), TN_OK);
    assert_int_equal(tn_session_run(s), TN_OK);
    tn_session_free(s), tn_program_free(p);
}

static void check(tn_ctx *ctx, graph *g, arena *a, uint64_t seed) {
    char text[512];
    val v = g->outputs.at[0].v;
    reference r = reference_make(g, a, seed);
    size_t bytes = (size_t)graph_elems(g, v) * dtype_size((tn_dtype)graph_get(g, v)->dtype);
    for (uint64_t k = 0; k < 3; k++) {
        plan_config c = { .seed = seed, .fusion = k == 2 ? 0 : 3, .no_passes = k == 1, .t = plan_target(seed + 5 * k) };
        if (!plan_config_agrees(g, &r, &c)) fail_msg("seed %d, plan %d: %s", (int)seed, (int)k, c.text);
    }
    void *y[2];
    for (int k = 0; k < 2; k++) {
        y[k] = arena_alloc(a, bytes + 1);
        memset(y[k], 0xee, bytes);
        run_code(ctx, g, &r.in, 1 + k, y[k]);
    }
    if (compare(g, v, y[0], r.want[v], r.bound[v], 4, text, sizeof text) >= 0) fail_msg("seed %d: %s", (int)seed, text);
    if (memcmp(y[0], y[1], bytes) != 0) fail_msg("seed %d: one thread and two differ", (int)seed);
}

static void test_random(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(200, &first);
    if (fuzz_by_c()) n = (n + 9) / 10;
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    for (uint64_t seed = first; seed < first + n; seed++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %d: %s", (int)seed, gd.err.text);
        check(ctx, random_case(&a, seed), &a, seed);
        arena_fini(&a);
    }
    tn_ctx_free(ctx);
    printf("count: %d padded images\n", (int)n);
}

/* Convolutions that read an element of the image a few hundred times at most are one kernel, and no load of it is masked. */
static void expect_no_masks(const char *text, int threads) {
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = plan_target(1);
    t.threads = threads, t.vector_bytes = 32, o.fusion = 3;
    plan *p = pipeline_run(graph_parse(&a, text, strlen(text), "test"), &a, &o, &t);
    assert_int_equal(p->kernels.n, 1);
    for (int i = 1; i < p->kernels.at[0].k->ins.n; i++) assert_int_equal(p->kernels.at[0].k->ins.at[i].n_mask, 0);
    arena_fini(&a);
}

static void test_no_masks(void **state) {
    (void)state;
    static const char *const texts[] = {
        "graph @depthwise(x f32[1,28,28,24], w f32[5,5,24]) {\n"
        "  %1 = pad x before=[0,2,2,0] after=[0,2,2,0] value=0.0 f32[1,32,32,24]\n"
        "  %2 = window %1 (axis=1 size=5 stride=1) (axis=2 size=5 stride=1) f32[1,28,28,24,5,5]\n"
        "  %3 = dot %2, w batch=[3]x[2] contract=[4,5]x[0,1] f32[24,1,28,28]\n"
        "  %4 = permute %3 perm=[1,2,3,0] f32[1,28,28,24]\n  return %4 as \"y\"\n}\n",
        "graph @strided(x f32[1,160,160,3], state w f32[3,3,3,32]) {\n"
        "  %1 = pad x before=[0,1,1,0] after=[0,1,1,0] value=0.0 f32[1,162,162,3]\n"
        "  %2 = window %1 (axis=1 size=3 stride=2) (axis=2 size=3 stride=2) f32[1,80,80,3,3,3]\n"
        "  %3 = dot %2, w contract=[4,5,3]x[0,1,2] f32[1,80,80,32]\n  return %3 as \"y\"\n}\n",
        "graph @input_gradient(dy f32[4,8,8,32], state w f32[3,3,8,32]) {\n"
        "  %1 = pad dy before=[0,1,1,0] after=[0,1,1,0] value=0.0 f32[4,10,10,32]\n"
        "  %2 = window %1 (axis=1 size=3 stride=1) (axis=2 size=3 stride=1) f32[4,8,8,32,3,3]\n"
        "  %3 = dot %2, w contract=[4,5,3]x[0,1,3] f32[4,8,8,8]\n  return %3 as \"dx\"\n}\n",
    };
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        for (int threads = 1; threads < 4; threads++) expect_no_masks(texts[i], threads);
}

static plan *depthwise_plan(arena *a, int size, int channels, int taps, int stride, int threads) {
    char text[1024];
    int out = (size - 1) / stride + 1, border = taps / 2, padded = size + 2 * border;
    int n = snprintf(text, sizeof text,
                     "graph @depthwise(x f32[1,%d,%d,%d], w f32[%d,%d,%d]) {\n"
                     "  %%1 = pad x before=[0,%d,%d,0] after=[0,%d,%d,0] value=0.0 f32[1,%d,%d,%d]\n"
                     "  %%2 = window %%1 (axis=1 size=%d stride=%d) (axis=2 size=%d stride=%d)\n"
                     "  %%3 = dot %%2, w batch=[3]x[2] contract=[4,5]x[0,1] f32[%d,1,%d,%d]\n"
                     "  %%4 = permute %%3 perm=[1,2,3,0]\n  return %%4 as \"y\"\n}\n",
                     size, size, channels, taps, taps, channels, border, border, border, border, padded, padded, channels, taps,
                     stride, taps, stride, channels, out, out);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = plan_target(1);
    t.threads = threads, t.vector_bytes = 32, t.l1_bytes = 32 << 10, o.fusion = 3;
    plan *p = pipeline_run(graph_parse(a, text, (size_t)n, "test"), a, &o, &t);
    assert_int_equal(p->kernels.n, 1);
    return p;
}

static int count_ins(const kernel *k, kop op) {
    int n = 0;
    for (int i = 1; i < k->ins.n; i++) n += k->ins.at[i].op == op;
    return n;
}

/* A depthwise convolution is one kernel, no load of it is masked, and neighbours share what they load. */
static void test_depthwise(void **state) {
    (void)state;
    static const struct {
        int size, channels, taps, stride;
        double loads; /* for a multiply-add */
    } cases[] = {
        { 28, 24, 5, 1, 0.5 }, { 14, 24, 3, 1, 0.6 }, { 56, 24, 3, 1, 0.6 }, { 28, 24, 3, 2, 0.9 }, { 28, 24, 5, 2, 0.8 }
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++)
        for (int threads = 1; threads < 4; threads++) {
            arena a;
            guard gd;
            arena_init(&a, mem_libc(), &gd);
            if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
            const kernel *k =
                depthwise_plan(&a, cases[c].size, cases[c].channels, cases[c].taps, cases[c].stride, threads)->kernels.at[0].k;
            for (int i = 1; i < k->ins.n; i++)
                if (k->ins.at[i].n_mask) fail_msg("case %d, %d threads: a load is masked", (int)c, threads);
            int loads = count_ins(k, K_LOAD), adds = count_ins(k, K_UPD);
            if (loads > cases[c].loads * adds) fail_msg("case %d: %d loads for %d multiply-adds", (int)c, loads, adds);
            arena_fini(&a);
        }
}

/* With channels first the positions of a row are neighbours: they are worked on in lanes, whatever border and stride are. */
static void test_channels_first(void **state) {
    (void)state;
    static const char *const uses[] = { "%3 = sum %2 axes=[4,5]", "%3 = reduce_max %2 axes=[4,5]",
                                        "%3 = dot %2, w batch=[1]x[0] contract=[4,5]x[1,2]" };
    for (int use = 0; use < 3; use++)
        for (int stride = 1; stride < 3; stride++)
            for (int bytes = 16; bytes <= 64; bytes *= 2) {
                arena a;
                guard gd;
                char text[1024];
                arena_init(&a, mem_libc(), &gd);
                if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
                int out = stride == 1 ? 28 : 14, border = stride == 1;
                int n = snprintf(text, sizeof text,
                                 "graph @image(x f32[1,24,28,28], w f32[24,3,3]) {\n"
                                 "  %%1 = pad x before=[0,0,%d,%d] after=[0,0,1,1] value=0.0 f32[1,24,%d,%d]\n"
                                 "  %%2 = window %%1 (axis=2 size=3 stride=%d) (axis=3 size=3 stride=%d) f32[1,24,%d,%d,3,3]\n"
                                 "  %s\n  return %%3 as \"y\"\n}\n",
                                 border, border, 29 + border, 29 + border, stride, stride, out, out, uses[use]);
                tn_compile_opts o = TN_COMPILE_DEFAULTS;
                target t = plan_target(1);
                t.threads = 1, t.vector_bytes = bytes, o.fusion = 3;
                const plan *p = pipeline_run(graph_parse(&a, text, (size_t)n, "test"), &a, &o, &t);
                for (int n_k = 0; n_k < p->kernels.n; n_k++)
                    for (int i = 1; i < p->kernels.at[n_k].k->ins.n; i++)
                        if (p->kernels.at[n_k].k->ins.at[i].op == K_UPD && p->kernels.at[n_k].k->ins.at[i].lanes == 1)
                            fail_msg("use %d, stride %d, vectors of %d bytes: a sum of one lane", use, stride, bytes);
                arena_fini(&a);
            }
}

/* The first cache has the columns that neighbouring tiles share: for all channels, or where those are many, for a vector of
 * them. */
static void test_columns(void **state) {
    (void)state;
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    for (int many = 0; many < 2; many++) {
        const kernel *k = depthwise_plan(&a, 14, many ? 576 : 24, 3, 1, 1)->kernels.at[0].k;
        kvar inside = -1;
        for (int i = 2; i < k->ins.n; i++) { /* the loop inside of which sums begin or columns lie side by side */
            const kins *in = &k->ins.at[i];
            if (in->op == K_LOOP && !k->vars.at[in->var].reduce && in->hi - in->lo > in->step) inside = in->var;
        }
        assert_true(inside >= 0);
        assert_int_equal(k->vars.at[inside].role.lanes > 1, !many);
    }
    arena_fini(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random), cmocka_unit_test(test_no_masks),
                                        cmocka_unit_test(test_depthwise), cmocka_unit_test(test_channels_first),
                                        cmocka_unit_test(test_columns) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
