/* test_dims.c - random graphs and networks with symbolic dims, forward, differentiated and with training steps: one program
 * gives, for several values of the dims, what the evaluator gives for the graph of these sizes, within proven bounds.
 *
 * Labels: random
 * TENON_FUZZ_SEEDS (default 600) seeds, each compiled in one of the modes and fusion levels in turn; of every 8 seeds 3 are
 * networks, one has control flow, and every second one of the others is differentiated. TENON_DIMS_CONFIG=n: configuration n
 * for all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/api.h"
#include "drive/drive.h"
#include "support/plan_run.h"

typedef struct config {
    tn_mode mode;
    int fusion, threads, no_passes;
} config;
static const config configs[] = {
    { TN_MODE_COMPILED, 3, 2, 0 }, { TN_MODE_GRAPH, 0, 1, 0 },    { TN_MODE_COMPILED, 1, 1, 0 },
    { TN_MODE_LOOP, 3, 1, 0 },     { TN_MODE_COMPILED, 2, 2, 1 }, { TN_MODE_IMMEDIATE, 0, 1, 0 }
};

typedef struct trial {
    tn_ctx *ctx;
    config c;
    uint64_t seed;
    int n_bindings;
    char text[1024];
} trial;

/* The i-th values of the dims: the least, the largest, then others. False: no more. */
static bool values_of(const exts *t, int i, uint64_t seed, int64_t *out) {
    rng r = rng_make(seed + (uint64_t)i);
    for (int d = 0; d < t->n_dims; d++) {
        const ext_row *x = exts_row(t, exts_dim(t, d));
        out[d] = i == 0 ? x->lo : i == 1 ? x->hi : rng_between(&r, x->lo, x->hi);
    }
    return i < 4;
}

static bool is_same(const graph *at, const reference *ref, const output *w, const void *got, char *text) {
    char why_not[512];
    if (compare(at, w->v, got, ref->want[w->v], ref->bound[w->v], 4, why_not, sizeof why_not) < 0) return true;
    snprintf(text, 1024, "%s: %s", w->name ? w->name : graph_get(at, w->state)->name, why_not);
    return false;
}

/* One run for these values of the dims. */
static bool agrees_at(const graph *g, tn_program *p, const int64_t *dims, trial *x, arena *a) {
    graph *at = graph_at(g, dims, a);
    const reference ref = reference_make(at, a, x->seed);
    tn_session *s = NULL;
    bool ok = false;
    void **out = ARENA_ARRAY(a, void *, p->n_io + 1);
    if (tn_session_new(p, &s)) goto done;
    for (int d = 0; d < g->params->n_dims; d++)
        if (tn_bind_dim(s, exts_row(g->params, exts_dim(g->params, d))->name, dims[d])) goto done;
    for (int i = 0; i < p->n_io; i++) {
        int k = p->io[i].is_output ? -1 : graph_find_input(at, p->io[i].name);
        out[i] = k >= 0 ? ref.in.data[k] : arena_alloc(a, (size_t)p->io[i].bytes + 64);
        if (k < 0) memset(out[i], 0xee, (size_t)p->io[i].bytes + 64);
        if (tn_session_bind(s, i, out[i])) goto done;
    }
    if (x->c.mode == TN_MODE_LOOP ? tn_run_n(s, 1, NULL, 0, 0) : tn_session_run(s)) goto done;
    for (int i = 0; i < at->outputs.n; i++) {
        const output *w = &at->outputs.at[i];
        size_t bytes = (size_t)graph_elems(at, w->v) * dtype_size((tn_dtype)graph_get(at, w->v)->dtype);
        for (int k = 0; w->name && k < p->n_io; k++) {
            if (!p->io[k].is_output || strcmp(p->io[k].name, w->name) != 0) continue;
            for (size_t e = 0; e < 64; e++)
                if (((unsigned char *)out[k])[bytes + e] != 0xee) {
                    snprintf(x->text, sizeof x->text, "%s: written past its end", w->name);
                    goto compared;
                }
            if (!is_same(at, &ref, w, out[k], x->text)) goto compared;
        }
        void *got = arena_alloc(a, bytes + 1);
        if (!w->state) continue;
        if (tn_session_get(s, graph_get(at, w->state)->name, got, bytes)) goto done;
        if (!is_same(at, &ref, w, got, x->text)) goto compared;
    }
    ok = true;
done:
    if (!ok) snprintf(x->text, sizeof x->text, "%s", tn_ctx_error(x->ctx));
compared:
    if (!ok)
        for (int d = 0; d < g->params->n_dims; d++) {
            size_t n = strlen(x->text);
            snprintf(x->text + n, sizeof x->text - n, "; dim %d is %lld", d, (long long)dims[d]);
        }
    tn_session_free(s);
    return ok;
}

static bool agrees(graph *g, trial *x) {
    arena a;
    guard gd;
    tn_program *p = NULL;
    bool ok = false;
    arena_init(&a, mem_libc(), &gd);
    x->text[0] = 0;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = x->c.mode, o.fusion = x->c.fusion, o.threads = x->c.threads, o.no_passes = x->c.no_passes, o.check = 1;
    o.device = test_device();
    if (!test_device_is_cpu()) o.threads = 0;
    int64_t dims[TN_MAX_DIMS];
    if (!GUARD_TRY(&gd)) {
        snprintf(x->text, sizeof x->text, "guard: %s", gd.err.text);
    } else if (drive_compile(x->ctx, g, &o, &p)) {
        snprintf(x->text, sizeof x->text, "%s", tn_ctx_error(x->ctx));
    } else {
        ok = true;
        for (int i = 0; ok && values_of(g->params, i, x->seed, dims); i++, x->n_bindings++) ok = agrees_at(g, p, dims, x, &a);
    }
    tn_program_free(p);
    arena_fini(&a);
    return ok;
}

/* Loops that become a kernel each: forward, backward and of halves. */
#define SCANS                                                                                                                  \
    "  region @b(%c f32[n,5], %xt f32[n,5]) {\n"                                                                               \
    "    %1 = mul %c, 0.5\n"                                                                                                   \
    "    %2 = add %1, %xt\n"                                                                                                   \
    "    %3 = tanh %2\n"                                                                                                       \
    "    return %3, %2\n"                                                                                                      \
    "  }\n"                                                                                                                    \
    "  %s = scan %k, h, x body=@b carry=1 steps=1 length=m f32[n,5]\n"                                                         \
    "  %ys = proj %s index=1 f32[m,n,5]\n"                                                                                     \
    "  region @r(%c2 f32[n,5], %y2 f32[n,5], %x2 f32[n,5]) {\n"                                                                \
    "    %4 = sub %c2, %y2\n"                                                                                                  \
    "    %5 = mul %4, %x2\n"                                                                                                   \
    "    return %5, %4\n"                                                                                                      \
    "  }\n"                                                                                                                    \
    "  %t = scan %k, %s, %ys, x body=@r carry=1 steps=2 length=m reverse=1 f32[n,5]\n"                                         \
    "  %zs = proj %t index=1 f32[m,n,5]\n"                                                                                     \
    "  %z = const 0.0 f16[n]\n"                                                                                                \
    "  region @h(%c3 f16[n], %w3 f16[n]) {\n"                                                                                  \
    "    %6 = add %c3, %w3\n"                                                                                                  \
    "    return %6\n"                                                                                                          \
    "  }\n"                                                                                                                    \
    "  %q = scan %k, %z, w body=@h carry=1 steps=1 length=m f16[n]\n"                                                          \
    "  return %s as \"a\", %ys as \"b\", %t as \"c\", %zs as \"d\", %q as \"e\"\n"

/* What random graphs found, reduced. */
static const char *const found[] = {
    "graph @less<n 0..5>(x f32[n*-1 + 7,n,16]) {\n  %1 = add x, x f32[n*-1 + 7,n,16]\n  return %1 as \"y\"\n}\n",
    "graph @less_of_rows<n 0..18>(x f32[7,n], y f32[min(n, 6)*-1 + 7,n]) {\n"
    "  %1 = pad y before=[min(n, 6),0] after=[0,0] value=0.0 f32[7,n]\n"
    "  %2 = add x, %1 f32[7,n]\n"
    "  return %2 as \"z\"\n"
    "}\n",
    "graph @less_of_columns<n 0..9>(x f32[n,4], y f32[n,min(n, 3)*-1 + 4]) {\n"
    "  %1 = pad y before=[0,min(n, 3)] after=[0,0] value=0.0 f32[n,4]\n"
    "  %2 = add x, %1 f32[n,4]\n"
    "  return %2 as \"z\"\n"
    "}\n",
    "graph @constant_place<n 1..3>(x f32[n], y f32[2,n]) {\n" /* which a mask without loops says is there */
    "  %1 = flip x axes=[0] f32[n]\n"
    "  %2 = pad %1 before=[n*-1 + 3] after=[2] value=0.0 f32[5]\n"
    "  %3 = dot %2, y contract=[]x[] f32[5,2,n]\n"
    "  return %3 as \"z\"\n"
    "}\n",
    "graph @empty_mask<n 1..31>(x f32[n,3]) {\n" /* the border's own elements are cut off again */
    "  %1 = pad x before=[0,1] after=[0,0] value=1.0 f32[n,4]\n"
    "  %2 = slice %1 start=[0,0] step=[1,1] f32[n,2]\n"
    "  %3 = pad %2 before=[0,2] after=[0,0] value=1.0 f32[n,4]\n"
    "  return %3 as \"y\"\n"
    "}\n",
    "graph @narrowest_mask<m 1..8>(x f32[m,16]) {\n"
    "  %1 = flip x axes=[1] f32[m,16]\n"
    "  %2 = slice %1 start=[0,0] step=[1,1] f32[m,15]\n"
    "  %3 = pad %2 before=[0,1] after=[0,0] value=1.0 f32[m,16]\n"
    "  %4 = slice %3 start=[0,0] step=[1,1] f32[m,15]\n"
    "  %5 = pad %4 before=[0,1] after=[0,0] value=1.0 f32[m,16]\n"
    "  return %5 as \"y\"\n"
    "}\n",
    "graph @flipped_border<n 1..9>(x f32[31,3,n,1]) {\n"
    "  %1 = pad x before=[1,1,0,0] after=[1,1,0,0] value=0.5 f32[33,5,n,1]\n"
    "  %2 = flip %1 axes=[0,2] f32[33,5,n,1]\n"
    "  return %2 as \"y\"\n"
    "}\n",
    "graph @strided_border<m 1..3>(x f32[m,5]) {\n"
    "  %1 = pad x before=[0,2] after=[0,2] value=1.0 f32[m,9]\n"
    "  %2 = window %1 (axis=1 size=1 stride=2 dilation=1) f32[m,5,1]\n"
    "  %3 = fold %2 (axis=1 size=1 stride=2 dilation=1) f32[m,9]\n"
    "  return %3 as \"y\"\n"
    "}\n",
    "graph @lanes_of_border<n 1..4>(x i64[8,n,1,17]) {\n"
    "  %1 = pad x before=[0,0,0,0] after=[0,0,0,2] value=0.0 i64[8,n,1,19]\n"
    "  return %1 as \"y\"\n"
    "}\n",
    "graph @lanes_within<n 1..9>(x f64[n,3,1]) {\n" /* two masks of lanes */
    "  %1 = pad x before=[0,2,2] after=[0,2,1] value=0.5 f64[n,7,4]\n"
    "  %2 = window %1 (axis=1 size=4 stride=2 dilation=2) (axis=2 size=1 stride=1 dilation=2) f64[n,1,4,4,1]\n"
    "  %3 = pad %2 before=[0,0,0,1,0] after=[0,0,0,1,0] value=0.5 f64[n,1,4,6,1]\n"
    "  return %3 as \"y\"\n"
    "}\n",
    "graph @turned_border<n 1..2>(x f32[1,1,8,2]) {\n" /* of a size that is what is left to the largest one */
    "  %1 = pad x before=[n - 1,0,0,1] after=[0,0,0,0] value=0.0 f32[n,1,8,3]\n"
    "  %2 = reshape %1 f32[n,4,2,3]\n"
    "  %3 = flip %2 axes=[0,1,2] f32[n,4,2,3]\n"
    "  return %3 as \"y\"\n"
    "}\n",
    "graph @to_a_number<n 1..31>(x f32[13,n]) {\n"
    "  %1 = pad x before=[0,31 - n] after=[0,2] value=0.5 f32[13,33]\n"
    "  %2 = flip %1 axes=[0,1] f32[13,33]\n"
    "  %3 = reshape %2 f32[429]\n"
    "  %4 = lt %3, 0.8314507 bool[429]\n"
    "  %5 = pad x before=[0,0] after=[0,31 - n] value=0.5 f32[13,31]\n"
    "  %6 = exp %5 f32[13,31]\n"
    "  return %4 as \"y\", %6 as \"z\"\n"
    "}\n",
    "graph @settles<m 0..33>() {\n" /* passes: a constant's sign is taken at once */
    "  %1 = const 1.294898 f32[16,m]\n"
    "  %2 = neg %1 f32[16,m]\n"
    "  %3 = mul %2, 0.0 f32[16,m]\n"
    "  return %3 as \"y\"\n"
    "}\n",
    "graph @not_apart<m 0..17>(x f32[m,5,8,1]) {\n" /* threads share no loop */
    "  %1 = exp x f32[m,5,8,1]\n"
    "  %2 = sum %1 axes=[0] f32[1,5,8,1]\n"
    "  %3 = expand %2 f32[m,5,8,1]\n"
    "  %4 = log %3 f32[m,5,8,1]\n"
    "  %5 = tanh %4 f32[m,5,8,1]\n"
    "  %6 = pow %5, 1.65 f32[m,5,8,1]\n"
    "  return %6 as \"y5\"\n"
    "}\n",
    "graph @every_second<n 1..31>(x f32[3,n,2]) {\n" /* the first of them is a row of the table */
    "  %1 = slice x start=[1,0,1] step=[1,1,1] f32[2,n,1]\n"
    "  %2 = neg %1 f32[2,n,1]\n"
    "  return %2 as \"y\"\n"
    "}\n",
    "graph @border_of_dim<n 1..13, m 1..7>(x f32[3,1,m,n]) {\n"
    "  %1 = pad x before=[2,0,1,0] after=[2,0,1,3] value=2.0 f32[7,1,m + 2,n + 3]\n"
    "  %2 = flip %1 axes=[1,2,3] f32[7,1,m + 2,n + 3]\n"
    "  %3 = reduce_min %2 axes=[1,2] f32[7,1,1,n + 3]\n"
    "  %4 = expand %3 f32[7,1,m + 2,n + 3]\n"
    "  %5 = add %4, %2 f32[7,1,m + 2,n + 3]\n"
    "  %6 = pad %5 before=[0,0,0,2] after=[0,0,2,0] value=1.0 f32[7,1,m + 4,n + 5]\n"
    "  %7 = sum %6 axes=[0,2] f32[1,1,1,n + 5]\n"
    "  return %7 as \"y\"\n"
    "}\n",
    "graph @local_steps<m 1..3>(x f64[7,8,m,1]) {\n"
    "  %1 = sum x axes=[1] f64[7,1,m,1]\n"
    "  %2 = reshape %1 f64[7,m]\n"
    "  %3 = prod %2 axes=[0,1] f64[1,1]\n"
    "  return %3 as \"y\"\n"
    "}\n",
    "graph @last_rows<n 0..17>(x0 f32[n,8,1]) {\n" /* masks of rows that are numbers, of indices that move with the run */
    "  %1 = pad x0 before=[n*-1 + 17,1,0] after=[0,2,0] value=0.0 f32[17,11,1]\n"
    "  %2 = permute %1 perm=[2,0,1] f32[1,17,11]\n"
    "  %3 = reduce_max %2 axes=[2] f32[1,17,1]\n"
    "  return %3 as \"y\"\n"
    "}\n",
    "graph @some_rows<n 0..33, m 0..14>(x2 f16[7,m], cut3 f16[2,n,3]) {\n"
    "  %1 = pad cut3 before=[0,n*-1 + 34,2] after=[1,0,2] value=0.5 f16[3,34,7]\n"
    "  %2 = slice %1 start=[0,9,0] step=[1,1,1] f16[3,10,7]\n"
    "  %3 = dot %2, x2 contract=[2]x[0] f16[3,10,m]\n"
    "  return %3 as \"y\"\n"
    "}\n",
    "graph @rows_and_columns<n 0..31>(x0 f32[n,n,1]) {\n"
    "  %1 = permute x0 perm=[2,1,0] f32[1,n,n]\n"
    "  %2 = pad %1 before=[0,1,n*-1 + 33] after=[0,1,0] value=0.5 f32[1,n + 2,33]\n"
    "  return %2 as \"y\"\n"
    "}\n",
    "graph @longest_first<n 1..40>(x f32[41], h f32[], y f32[n]) {\n" /* the less n is, the more there is of it */
    "  %1 = slice x start=[0] step=[1] f32[n*-1 + 41]\n"
    "  %2 = exp %1\n"
    "  %3 = sum %2 axes=[0] f32[1]\n"
    "  %4 = pad y before=[0] after=[n*-1 + 40] value=0.5 f32[40]\n"
    "  %k = const 41 i64[]\n"
    "  region @b(%c f32[], %xt f32[]) {\n"
    "    %5 = mul %c, 0.5\n"
    "    %6 = add %5, %xt\n"
    "    return %6, %5\n"
    "  }\n"
    "  %s = scan %k, h, %1 body=@b carry=1 steps=1 length=n*-1 + 41 f32[]\n"
    "  %ys = proj %s index=1 f32[n*-1 + 41]\n"
    "  return %3 as \"a\", %4 as \"b\", %s as \"c\", %ys as \"d\"\n"
    "}\n",
    "graph @border_by_pieces<n 1..2>(x f32[13,n*9]) {\n"
    "  %1 = pad x before=[0,16] after=[0,0] value=1.0 f32[13,n*9 + 16]\n"
    "  %2 = slice %1 start=[0,0] step=[1,1] f32[13,n*9]\n"
    "  %3 = flip %2 axes=[1] f32[13,n*9]\n"
    "  %4 = reshape %3 f32[1,13,9,n]\n"
    "  return %4 as \"y\"\n"
    "}\n",
    "graph @keys<n 1..3, m 1..40>(x f32[n,m,2,16], y f32[n,m,2,16]) {\n" /* turned from 16 on */
    "  %1 = exp y f32[n,m,2,16]\n"
    "  %2 = dot x, %1 batch=[0,2]x[0,2] contract=[3]x[3] f32[n,2,m,m]\n"
    "  %3 = abs %2 f32[n,2,m,m]\n"
    "  return %3 as \"z\"\n"
    "}\n",
    "graph @rows_of_matrix<n 1..3>(x f32[n,512], w f32[256,512]) {\n" /* on GPUs several are a thread block's */
    "  %1 = dot x, w contract=[1]x[1] f32[n,256]\n"
    "  return %1 as \"y\"\n"
    "}\n",
    /* all iterations in a kernel, forward, backward and of halves; and fewer than there are slices */
    "graph @one_launch<n 1..9, m 0..7>(x f32[m,n,5], h f32[n,5], w f16[m,n]) {\n"
    "  %k = const 7 i64[]\n" SCANS "}\n",
    "graph @less_often<n 1..9, m 0..7>(x f32[m,n,5], h f32[n,5], w f16[m,n]) {\n"
    "  %k = const 4 i64[]\n" SCANS "}\n",
    /* windows along dims, and what was taken of them put back: apart, in blocks, few and many offsets */
    "graph @windows<n 1..20, m 1..5>(x f32[m,n,5], y f32[n,40], z f16[n,3]) {\n"
    "  %1 = pad x before=[0,2,0] after=[0,2,0] value=0.0 f32[m,n + 4,5]\n"
    "  %2 = window %1 (axis=1 size=3 stride=3 dilation=2)\n"
    "  %3 = exp %2\n"
    "  %4 = fold %3 (axis=1 size=3 stride=3 dilation=2) f32[m,n + 4,5]\n"
    "  %5 = pad y before=[2,0] after=[17,0] value=0.0 f32[n + 19,40]\n"
    "  %6 = window %5 (axis=0 size=20 stride=1 dilation=1)\n"
    "  %7 = fold %6 (axis=0 size=20 stride=1 dilation=1) f32[n + 19,40]\n"
    "  %8 = window z (axis=0 size=1 stride=2 dilation=1)\n"
    "  %9 = fold %8 (axis=0 size=1 stride=2 dilation=1) f16[n,3]\n"
    "  %10 = window %5 (axis=0 size=5 stride=2 dilation=1)\n"
    "  %11 = fold %10 (axis=0 size=5 stride=2 dilation=1) f32[n + 19,40]\n"
    "  return %4 as \"a\", %7 as \"b\", %9 as \"c\", %11 as \"d\"\n"
    "}\n",
    /* tables of any length, of none, too, and any width */
    "graph @tables<n 0..9, m 1..5>(x f32[n,m], y f32[3,m,8], t f16[n,24], i i32[7], j i64[2,m]) {\n"
    "  %1 = gather x, i axis=0 f32[7,m]\n"
    "  %2 = gather x, i axis=1 f32[n,7]\n"
    "  %3 = gather y, j axis=1 f32[3,2,m,8]\n"
    "  %4 = gather y, i axis=2 f32[3,m,7]\n"
    "  %5 = neg t f16[n,24]\n"
    "  %6 = gather %5, j axis=0 f16[2,m,24]\n"
    "  %7 = exp %3 f32[3,2,m,8]\n"
    "  return %1 as \"a\", %2 as \"b\", %7 as \"c\", %4 as \"d\", %6 as \"e\"\n"
    "}\n",
    "graph @places<n 0..9, m 1..5>(x f32[n,m,2], y i32[n,m], h f16[2,m,24], i i32[7], j i64[2,m], u f32[7,m,2], "
    "v f32[n,7,2], w i32[n,7], k f16[2,7,24], l f32[2,m,m,2]) {\n"
    "  %1 = scatter_add x, i, u axis=0 f32[n,m,2]\n"
    "  %2 = scatter_set x, i, v axis=1 f32[n,m,2]\n"
    "  %3 = scatter_max y, i, w axis=1 i32[n,m]\n"
    "  %4 = scatter_mul x, j, l axis=0 f32[n,m,2]\n"
    "  %5 = scatter_add h, i, k axis=1 f16[2,m,24]\n"
    "  return %1 as \"a\", %2 as \"b\", %3 as \"c\", %4 as \"d\", %5 as \"e\"\n"
    "}\n",
    "graph @shared_rows<n 0..33, m 0..8>(x f32[n,7,m,1,17], w f32[1,1,m,17]) {\n" /* rows of sums that threads share, long ones,
                                                                                     too */
    "  %1 = dot w, x batch=[0]x[3] contract=[2,3]x[2,4] f32[1,1,n,7]\n"
    "  return %1 as \"y\"\n"
    "}\n",
    "graph @one_size<b 1..1, n 3..3, m 1..4>(x f32[b,8,n,m]) {\n"
    "  %1 = reshape x f32[24,m]\n"
    "  %2 = exp %1\n"
    "  %3 = reshape %2 f32[4,b,m,n,2]\n"
    "  return %3 as \"y\"\n"
    "}\n",
    "graph @of_multiples<n 2..16 by 2, m 4..32 by 4>(x f32[3,n,m]) {\n" /* no run has a rest of a vector of four */
    "  %1 = sum x axes=[1,2] f32[3,1,1]\n"
    "  return %1 as \"y\"\n"
    "}\n",
    "graph @border_in_brackets<n 1..20>(x f32[n,3]) {\n" /* as it is printed */
    "  %1 = pad x before=[0,0] after=[(floor(n / 3) + 2)*2,0] value=1.0 f32[n + (floor(n / 3) + 2)*2,3]\n"
    "  return %1 as \"y\"\n"
    "}\n",
    "graph @weights_of_a_batch<n 1..9>(x f32[n,3,6,6], y f32[n,20,5,5]) {\n" /* one sum for each */
    "  %1 = window x (axis=2 size=2 stride=1 dilation=1) (axis=3 size=2 stride=1 dilation=1) f32[n,3,5,5,2,2]\n"
    "  %2 = dot %1, y contract=[0,2,3]x[0,2,3] f32[3,2,2,20]\n"
    "  return %2 as \"z\"\n"
    "}\n",
    "graph @border_and_steps<n 0..9>(x f32[n,n,2]) {\n" /* what a mask of dims alone bounds is twice in the index */
    "  %1 = pad x before=[n*-1 + 10,n*-1 + 10,0] after=[1,1,0] value=0.5 f32[11,11,2]\n"
    "  %2 = window %1 (axis=0 size=4 stride=1 dilation=1) f32[8,11,2,4]\n"
    "  %3 = slice %2 start=[4,2,0,2] step=[3,2,3,3] f32[1,5,1,1]\n"
    "  %4 = floor %3\n"
    "  return %4 as \"y\"\n"
    "}\n",
    "graph @border_of_dims<n 4..7>(x f32[2,3,5,1,8], y f32[2,1,2,n - 2,6]) {\n" /* its mask says so of a row of six */
    "  %1 = pad y before=[2,0,2,n*-1 + 7,0] after=[2,0,1,0,0] value=0.0 f32[6,1,5,5,6]\n"
    "  %2 = reshape %1 f32[2,3,5,1,30]\n"
    "  %3 = dot %2, x contract=[0,1,2,3]x[0,1,2,3] f32[30,8]\n"
    "  return %3 as \"z\"\n"
    "}\n",
    "graph @part_of_local<m 2..8>(x f32[9,5], w f32[5,17,9,16]) {\n" /* where it begins, in vectors */
    "  %1 = dot x, w batch=[1]x[0] contract=[0]x[2] f32[5,17,16]\n"
    "  %2 = slice %1 start=[0,m - 2,0] step=[1,1,1] f32[5,m*-1 + 19,16]\n"
    "  return %2 as \"y\"\n"
    "}\n",
    "graph @border_of_a_border<n 0..2, m 0..5>(x bf16[9,m,13]) {\n" /* its mask, 65 times, says so */
    "  %1 = pad x before=[2,m*-1 + 6,2] after=[2,1,2] value=0.5 bf16[13,7,17]\n"
    "  %2 = slice %1 start=[6,1,2] step=[3,3,2] bf16[1,1,3]\n"
    "  return %2 as \"y\"\n"
    "}\n",
    "graph @border_of_windows<n 4..8>(x f32[n*-1 + 9,1,31]) {\n" /* the second mask of one variable says more */
    "  %1 = pad x before=[n - 4,0,0] after=[0,0,0] value=0.0 f32[5,1,31]\n"
    "  %2 = window %1 (axis=0 size=3 stride=2 dilation=2) f32[1,1,31,3]\n"
    "  %3 = fold %2 (axis=0 size=3 stride=2 dilation=2) f32[5,1,31]\n"
    "  return %3 as \"y\"\n"
    "}\n",
    "graph @own_places<b 1..6, n 1..9>(x f32[b,n,3], i i32[b,4], u f32[b,4,3]) {\n" /* rows with places of their own */
    "  %1 = scatter_add x, i, u axis=1 batch=1 f32[b,n,3]\n"
    "  return %1 as \"y\"\n"
    "}\n",
};

ARENA_TEST(test_found) {
    tn_ctx *ctx = test_ctx();
    for (size_t i = 0; i < COUNT_OF(found); i++)
        for (size_t c = 0; c < COUNT_OF(configs); c++) {
            trial x = { .ctx = ctx, .c = configs[c], .seed = i };
            graph *g = graph_parse(a, found[i], strlen(found[i]), "found");
            str text;
            str_init(&text, a);
            graph_print(g, &text);
            assert_true(graph_equal(g, graph_parse(a, text.s, text.n, "printed"), a, NULL));
            if (!agrees(g, &x)) fail_msg("%s%s", found[i], x.text);
        }
    tn_ctx_free(ctx);
}

static bool fails(graph *g, void *ud) { return g->params && !agrees(g, ud); }

static graph *random_control(arena *a, uint64_t seed) {
    const char *text = randcontrol(a, seed, true);
    return graph_parse(a, text, strlen(text), "random");
}

static void test_random_graphs(void **state) {
    (void)state;
    uint64_t first, seeds = fuzz_seeds(600, &first);
    int forward = 0, backward = 0, trained = 0, bad = 0, bindings = 0;
    const char *config = getenv("TENON_DIMS_CONFIG");
    tn_ctx *ctx = test_ctx();
    if (fuzz_by_c()) seeds = (seeds + 19) / 20;
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        arena a;
        guard gd;
        int trains = 0;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s", (unsigned long long)seed, gd.err.text);
        graph *g = seed % 8 < 3    ? randnet_dims(&a, seed, &trains)
                   : seed % 8 == 3 ? random_control(&a, seed)
                                   : randdims(&a, seed);
        graph *d = NULL;
        if (g && seed % 8 > 4) d = graph_clone(g, &a, false, NULL);
        if (d && !try_differentiate(d, &a)) d = NULL;
        trial x = { .ctx = ctx, .c = configs[config ? (size_t)atoi(config) : seed % COUNT_OF(configs)], .seed = seed };
        bool ok = !g || agrees(d ? d : g, &x);
        bindings += x.n_bindings, bad += !ok;
        if (g) *(d ? &backward : trains ? &trained : &forward) += 1;
        if (!ok) {
            fprintf(stderr, "seed %llu, mode %d, fusion %d, threads %d, no_passes %d: %s\n", (unsigned long long)seed, x.c.mode,
                    x.c.fusion, x.c.threads, x.c.no_passes, x.text);
            if (!getenv("TENON_FUZZ_NO_REDUCE")) reduce_and_print(d ? d : g, &a, fails, &x);
            fprintf(stderr, "  after reduction: %s\n", x.text);
        }
        arena_fini(&a);
    }
    tn_ctx_free(ctx);
    printf("count: %d random graphs with symbolic dims, %d with gradients and %d with training steps, %d runs of several "
           "sizes; %d "
           "failed\n",
           forward + backward + trained, backward, trained, bindings, bad);
    assert_int_equal(bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_found), cmocka_unit_test(test_random_graphs) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
