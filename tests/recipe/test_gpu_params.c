/* test_gpu_params.c - kernels for GPUs whose sizes a run gives: one plan for a range, at many values of its dims, thread by
 * thread by the interpreter against the reference evaluator, for small and large thread blocks and grids; what is cut, and what
 * is not; texts read back.
 *
 * Labels: random
 * TENON_FUZZ_SEEDS: how many rounds over all graphs, machines and values in turn (default 60, a tenth of them done). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "loop/cut.h"
#include "loop/schedule.h"
#include "recipe/recipe.h"
#include "support/plan_run.h"

static const struct {
    const char *text;
    bool by_rows; /* all kernels: the schedule of the largest size, cut; of loops in the rows of the grid alone */
} graphs[] = {
    { "graph @mlp<B 1..40>(x f32[B,37], w f32[37,64], b f32[1,64], v f32[64,10]) {\n"
      "  %1 = dot x, w f32[B,64]\n  %2 = expand b f32[B,64]\n  %3 = add %1, %2 f32[B,64]\n  %4 = max %3, 0.0 f32[B,64]\n"
      "  %5 = dot %4, v f32[B,10]\n  return %5 as \"y\", %3 as \"z\"\n}\n",
      true },
    { "graph @map<B 0..300>(x f32[B,5], q bf16[B,5]) {\n  %1 = exp x f32[B,5]\n  %2 = cast q f32[B,5]\n"
      "  %3 = mul %1, %2 f32[B,5]\n  %4 = cast %3 bf16[B,5]\n  return %3 as \"y\", %4 as \"z\"\n}\n",
      true },
    { "graph @wide<B 4..512 by 4>(x f32[B,8]) {\n  %1 = mul x, 2.0 f32[B,8]\n  return %1 as \"y\"\n}\n", true },
    { "graph @narrow<B 1..140>(x bf16[B,64], w bf16[64,128], b bf16[1,128]) {\n  %1 = dot x, w bf16[B,128]\n"
      "  %2 = expand b bf16[B,128]\n  %3 = add %1, %2 bf16[B,128]\n  %4 = max %3, 0.0 bf16[B,128]\n  return %4 as \"y\"\n}\n",
      true },
    { "graph @softmax<B 1..19>(x f32[B,70]) {\n  %1 = reduce_max x axes=[1] f32[B,1]\n  %2 = expand %1 f32[B,70]\n"
      "  %3 = sub x, %2 f32[B,70]\n  %4 = exp %3 f32[B,70]\n  %5 = sum %4 axes=[1] f32[B,1]\n  %6 = expand %5 f32[B,70]\n"
      "  %7 = div %4, %6 f32[B,70]\n  return %7 as \"y\"\n}\n",
      true },
    { "graph @head<B 1..64>(x f32[B,32], w f32[32,10]) {\n  %1 = dot x, w f32[B,10]\n  %2 = reduce_max %1 axes=[1] f32[B,1]\n"
      "  %3 = expand %2 f32[B,10]\n  %4 = sub %1, %3 f32[B,10]\n  %5 = exp %4 f32[B,10]\n  %6 = sum %5 axes=[1] f32[B,1]\n"
      "  %7 = expand %6 f32[B,10]\n  %8 = div %5, %7 f32[B,10]\n  return %8 as \"y\"\n}\n",
      true },
    { "graph @norm<B 1..3, L 1..5>(x f32[B,L,24], w f32[24,24], v f32[24,40]) {\n  %1 = dot x, w contract=[2]x[0] f32[B,L,24]\n"
      "  %2 = sum %1 axes=[2] f32[B,L,1]\n  %3 = expand %2 f32[B,L,24]\n  %4 = sub %1, %3 f32[B,L,24]\n"
      "  %5 = dot %4, v contract=[2]x[0] f32[B,L,40]\n  %6 = tanh %5 f32[B,L,40]\n  return %6 as \"y\", %4 as \"z\"\n}\n",
      false },
    { "graph @rows<B 1..6, L 1..7>(x f32[B,L,16], w f32[16,24]) {\n  %1 = dot x, w contract=[2]x[0] f32[B,L,24]\n"
      "  %2 = tanh %1 f32[B,L,24]\n  return %2 as \"y\"\n}\n",
      true },
    { "graph @table<B 1..9, L 1..5>(t f32[13,6], i i64[B,L]) {\n  %1 = gather t, i axis=0 f32[B,L,6]\n"
      "  %2 = neg %1 f32[B,L,6]\n  return %2 as \"y\"\n}\n",
      false },
    { "graph @sums<B 1..9, L 0..11>(x f32[B,L,5]) {\n  %1 = mul x, x f32[B,L,5]\n  %2 = sum %1 axes=[0,1] f32[1,1,5]\n"
      "  %3 = sum %1 axes=[0,1,2] f32[1,1,1]\n  %4 = sum %1 axes=[1] f32[B,1,5]\n"
      "  return %2 as \"y\", %3 as \"z\", %4 as \"u\"\n}\n",
      false },
    { "graph @length<B 1..9, L 1..33>(x f32[B,L]) {\n  %1 = reduce_max x axes=[1] f32[B,1]\n  %2 = expand %1 f32[B,L]\n"
      "  %3 = sub x, %2 f32[B,L]\n  %4 = exp %3 f32[B,L]\n  %5 = sum %4 axes=[1] f32[B,1]\n  %6 = expand %5 f32[B,L]\n"
      "  %7 = div %4, %6 f32[B,L]\n  return %7 as \"y\"\n}\n",
      false },
    { "graph @scores<B 1..3, L 1..9>(q f32[B,L,8], k f32[B,L,8]) {\n"
      "  %1 = dot q, k batch=[0]x[0] contract=[2]x[2] f32[B,L,L]\n  %2 = exp %1 f32[B,L,L]\n"
      "  %3 = dot %2, k batch=[0]x[0] contract=[2]x[1] f32[B,L,8]\n  return %3 as \"y\"\n}\n",
      false },
    { "graph @heads<B 1..3, L 1..70>(q f32[B,L,2,8], k f32[B,L,2,8], v f32[B,L,2,8]) {\n"
      "  %1 = dot q, k batch=[0,2]x[0,2] contract=[3]x[3] f32[B,2,L,L]\n  %2 = max %1, 0.0 f32[B,2,L,L]\n"
      "  %3 = dot %2, v batch=[0,1]x[0,2] contract=[3]x[1] f32[B,2,L,8]\n  %4 = permute %3 perm=[0,2,1,3] f32[B,L,2,8]\n"
      "  return %2 as \"w\", %4 as \"y\"\n}\n",
      false },
    { "graph @attention<B 1..3, L 1..70>(q f32[B,L,2,8], k f32[B,L,2,8], v f32[B,L,2,8]) {\n"
      "  %1 = dot q, k batch=[0,2]x[0,2] contract=[3]x[3] f32[B,2,L,L]\n  %2 = mul %1, 0.35 f32[B,2,L,L]\n"
      "  %3 = reduce_max %2 axes=[3] f32[B,2,L,1]\n  %4 = expand %3 f32[B,2,L,L]\n  %5 = sub %2, %4 f32[B,2,L,L]\n"
      "  %6 = exp %5 f32[B,2,L,L]\n  %7 = sum %6 axes=[3] f32[B,2,L,1]\n  %8 = expand %7 f32[B,2,L,L]\n"
      "  %9 = div %6, %8 f32[B,2,L,L]\n  %10 = dot %9, v batch=[0,1]x[0,2] contract=[3]x[1] f32[B,2,L,8]\n"
      "  %11 = permute %10 perm=[0,2,1,3] f32[B,L,2,8]\n  return %11 as \"y\"\n}\n",
      false },
    { "graph @across_rows<B 0..2, Q 0..40, K 1..130>(q f32[B,Q,6], k f32[B,K,6], v f32[B,K,9], m f32[Q,K]) {\n"
      "  %1 = dot q, k batch=[0]x[0] contract=[2]x[2] f32[B,Q,K]\n  %2 = reshape m f32[1,Q,K]\n  %3 = expand %2 f32[B,Q,K]\n"
      "  %4 = add %1, %3 f32[B,Q,K]\n  %5 = reduce_max %4 axes=[2] f32[B,Q,1]\n  %6 = expand %5 f32[B,Q,K]\n"
      "  %7 = sub %4, %6 f32[B,Q,K]\n  %8 = exp %7 f32[B,Q,K]\n  %9 = sum %8 axes=[2] f32[B,Q,1]\n"
      "  %10 = expand %9 f32[B,Q,K]\n  %11 = div %8, %10 f32[B,Q,K]\n"
      "  %12 = dot %11, v batch=[0]x[0] contract=[2]x[1] f32[B,Q,9]\n  return %12 as \"y\"\n}\n",
      false },
    { "graph @causal<B 1..2, L 1..90>(q f32[B,L,8], k f32[B,L,8], v f32[B,L,8]) {\n"
      "  %1 = dot q, k batch=[0]x[0] contract=[2]x[2] f32[B,L,L]\n  %2 = iota axis=0 i32[L,L]\n  %3 = iota axis=1 i32[L,L]\n"
      "  %4 = le %3, %2 bool[L,L]\n  %5 = reshape %4 bool[1,L,L]\n  %6 = expand %5 bool[B,L,L]\n  %7 = const -inf f32[1,1,1]\n"
      "  %8 = expand %7 f32[B,L,L]\n  %9 = select %6, %1, %8 f32[B,L,L]\n  %10 = reduce_max %9 axes=[2] f32[B,L,1]\n"
      "  %11 = expand %10 f32[B,L,L]\n  %12 = sub %9, %11 f32[B,L,L]\n  %13 = exp %12 f32[B,L,L]\n"
      "  %14 = sum %13 axes=[2] f32[B,L,1]\n  %15 = expand %14 f32[B,L,L]\n  %16 = div %13, %15 f32[B,L,L]\n"
      "  %17 = dot %16, v batch=[0]x[0] contract=[2]x[1] f32[B,L,8]\n  return %17 as \"y\"\n}\n",
      false },
    { "graph @sums_bf16<B 1..2, L 1..200>(p bf16[B,L,L], v bf16[B,L,16]) {\n" /* what comes an iteration ahead is zero behind
                                                                                 the end */
      "  %1 = dot p, v batch=[0]x[0] contract=[2]x[1] bf16[B,L,16]\n  return %1 as \"y\"\n}\n",
      false },
    { "graph @causal_bf16<B 1..2, L 1..200>(q bf16[B,L,16], k bf16[B,L,16], v bf16[B,L,16]) {\n"
      "  %1 = dot q, k batch=[0]x[0] contract=[2]x[2] bf16[B,L,L]\n  %2 = iota axis=0 i32[L,L]\n  %3 = iota axis=1 i32[L,L]\n"
      "  %4 = le %3, %2 bool[L,L]\n  %5 = reshape %4 bool[1,L,L]\n  %6 = expand %5 bool[B,L,L]\n  %7 = const -inf bf16[1,1,1]\n"
      "  %8 = expand %7 bf16[B,L,L]\n  %9 = select %6, %1, %8 bf16[B,L,L]\n  %10 = reduce_max %9 axes=[2] bf16[B,L,1]\n"
      "  %11 = expand %10 bf16[B,L,L]\n  %12 = sub %9, %11 bf16[B,L,L]\n  %13 = exp %12 bf16[B,L,L]\n"
      "  %14 = sum %13 axes=[2] bf16[B,L,1]\n  %15 = expand %14 bf16[B,L,L]\n  %16 = div %13, %15 bf16[B,L,L]\n"
      "  %18 = dot %16, v batch=[0]x[0] contract=[2]x[1] bf16[B,L,16]\n  return %18 as \"y\"\n}\n",
      false },
    { "graph @layer<B 1..3, L 1..50>(x f32[B,L,12], u f32[12,16], w f32[12,16], z f32[12,16]) {\n"
      "  %1 = dot x, u contract=[2]x[0] f32[B,L,16]\n  %2 = dot x, w contract=[2]x[0] f32[B,L,16]\n"
      "  %3 = dot %1, %2 batch=[0]x[0] contract=[2]x[2] f32[B,L,L]\n  %4 = reduce_max %3 axes=[2] f32[B,L,1]\n"
      "  %5 = expand %4 f32[B,L,L]\n  %6 = sub %3, %5 f32[B,L,L]\n  %7 = exp %6 f32[B,L,L]\n"
      "  %8 = sum %7 axes=[2] f32[B,L,1]\n  %9 = expand %8 f32[B,L,L]\n  %10 = div %7, %9 f32[B,L,L]\n"
      "  %11 = dot x, z contract=[2]x[0] f32[B,L,16]\n" /* made between weights and what takes them */
      "  %12 = dot %10, %11 batch=[0]x[0] contract=[2]x[1] f32[B,L,16]\n  return %12 as \"y\"\n}\n",
      false },
    { "graph @none<K 0..40>(q f32[7,8], k f32[K,8], v f32[K,8]) {\n" /* no keys: zeros */
      "  %1 = dot q, k contract=[1]x[1] f32[7,K]\n  %2 = reduce_max %1 axes=[1] f32[7,1]\n  %3 = expand %2 f32[7,K]\n"
      "  %4 = sub %1, %3 f32[7,K]\n  %5 = exp %4 f32[7,K]\n  %6 = sum %5 axes=[1] f32[7,1]\n  %7 = expand %6 f32[7,K]\n"
      "  %8 = div %5, %7 f32[7,K]\n  %9 = dot %8, v f32[7,8]\n  return %9 as \"y\"\n}\n",
      false },
    { "graph @blocks<B 1..2, L 16..96 by 16>(q f32[B,L,24], k f32[B,L,24]) {\n"
      "  %1 = dot q, k batch=[0]x[0] contract=[2]x[2] f32[B,L,L]\n"
      "  %2 = dot %1, k batch=[0]x[0] contract=[2]x[1] f32[B,L,24]\n  return %1 as \"w\", %2 as \"y\"\n}\n",
      false },
    { "graph @across<B 1..40, L 1..21>(q f32[B,L,L], k f32[B,L,8]) {\n"
      "  %1 = dot q, k batch=[0]x[0] contract=[2]x[1] f32[B,L,8]\n  return %1 as \"y\"\n}\n",
      false },
    { "graph @ends<L 1..16>(p f32[L,40], t f32[16,8]) {\n" /* what lies behind the sum's end is infinite */
      "  %1 = iota axis=0 f32[16,8]\n  %2 = sub %1, 15.0 f32[16,8]\n  %3 = div t, %2 f32[16,8]\n"
      "  %4 = slice %3 start=[0,0] step=[1,1] f32[L,8]\n  %5 = dot p, %4 contract=[0]x[0] f32[40,8]\n"
      "  return %5 as \"y\"\n}\n",
      false },
    { "graph @weights<B 0..90>(x f32[B,37], y f32[B,20]) {\n  %1 = dot x, y contract=[0]x[0] f32[37,20]\n"
      "  %2 = mul %1, 0.5 f32[37,20]\n  return %2 as \"w\"\n}\n",
      false },
    { "graph @columns<B 0..5, L 0..60>(x f32[B,L,48], h f16[B,L,40]) {\n" /* rows shared out; what is behind them is no 0 */
      "  %1 = mul x, x f32[B,L,48]\n  %2 = sum %1 axes=[0,1] f32[1,1,48]\n  %3 = reduce_max x axes=[1] f32[B,1,48]\n"
      "  %4 = cast h f32[B,L,40]\n  %5 = exp %4 f32[B,L,40]\n  %6 = sum %5 axes=[0,1] f32[1,1,40]\n"
      "  %7 = sum x axes=[0] f32[1,L,48]\n  return %2 as \"y\", %3 as \"z\", %6 as \"u\", %7 as \"v\"\n}\n",
      false },
    { "graph @everything<B 1..3, L 0..400>(x f32[B,L,60]) {\n  %1 = exp x f32[B,L,60]\n" /* along rows first */
      "  %2 = sum %1 axes=[0,1,2] f32[1,1,1]\n  return %2 as \"y\"\n}\n",
      false },
    { "graph @square<L 1..90>(x f32[L,L], y f32[L,L]) {\n  %1 = dot x, y contract=[1]x[0] f32[L,L]\n"
      "  %2 = add %1, x f32[L,L]\n  return %2 as \"z\"\n}\n",
      false },
    { "graph @moved<B 1..9, L 1..11>(x f32[B,L,6]) {\n  %1 = permute x perm=[1,2,0] f32[L,6,B]\n  %2 = max %1, 0.0 f32[L,6,B]\n"
      "  %3 = concat x, x axis=2 f32[B,L,12]\n  return %2 as \"y\", %3 as \"z\"\n}\n",
      false },
    { "graph @places<B 1..9, L 2..40>(x f32[B,L,6], w f32[6,70]) {\n"
      "  %1 = slice x start=[0,L - floor(L / 2),0] step=[1,1,1] f32[B,floor(L / 2),6]\n"
      "  %2 = slice x start=[0,1,0] step=[1,1,1] f32[B,L - 1,6]\n  %3 = concat %2, x, %1 axis=1 f32[B,L*2 + floor(L / 2) - "
      "1,6]\n"
      "  %4 = pad x before=[0,40 - L,0] after=[2,1,0] value=0.5 f32[B + 2,41,6]\n  %5 = exp %4 f32[B + 2,41,6]\n"
      "  %6 = pad %2 before=[0,1,0] after=[0,0,0] value=0.0 f32[B,L,6]\n  %7 = add x, %6 f32[B,L,6]\n"
      "  %8 = dot %7, w contract=[2]x[0] f32[B,L,70]\n"
      "  return %3 as \"y\", %5 as \"z\", %8 as \"u\"\n}\n",
      false },
};

static target machine_of_round(uint64_t i) {
    static const int threads[] = { 256, 32, 64, 8, 128 };
    static const int64_t grids[] = { 128 << 10, 64, 512 };
    target t = target_common_gpu();
    t.block_threads = threads[i % 5], t.resident_threads = grids[i / 5 % 3];
    if (i % 3 == 2) t.matrix_units = true, t.shared_most = 99 << 10, t.cluster = 8, t.clusters = 16;
    if (i % 6 == 2) t.machine = machine_row("h200"), t.shared_most = 227 << 10, t.block_threads = 256;
    t.local_barriers = i % 4 != 3;
    if (i % 4 == 1) t.max_block_threads = 0, t.shared_bytes = 3 << 10;
    return t;
}

/* Values of a dim: the ends, what is near them, and others. */
static int64_t value_of(const ext_row *r, uint64_t i, rng *random) {
    int64_t last = (r->hi - r->lo) / r->divisor, at = rng_between(random, 0, last);
    if (i % 4 == 0) at = 0;
    if (i % 4 == 1) at = last;
    return r->lo + at * r->divisor;
}

static bool is_by_rows(const kernel *k) { /* no loop but those of the grid has a size of the run */
    bool cut = !k->params || !ext_is_lit(k->grid_blocks) || k->grid_blocks == 1;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && in->par != PAR_BLOCKS && in->par != PAR_GRID_THREADS && !ext_is_lit(in->hi)) return false;
        for (int t = 0; t < in->idx.n; t++)
            if (!ext_is_lit(in->idx.t[t].coef)) return false;
    }
    return cut;
}

static void check_text(const plan *p, arena *a) {
    str x, y;
    str_init(&x, a), str_init(&y, a);
    for (int i = 0; i < p->kernels.n; i++) {
        x.n = y.n = 0;
        kernel_print(p->kernels.at[i].k, &x);
        kernel_print(kernel_parse(a, x.s, x.n, "k"), &y);
        assert_string_equal(x.s, y.s);
    }
}

/* One of the dims has a value, often a small one; the others stay open. */
static graph *with_dim_given(const graph *g, arena *a, rng *random) {
    int64_t *dims = ARENA_ARRAY(a, int64_t, g->params->n_dims + 1);
    int given = (int)rng_below(random, g->params->n_dims);
    for (int d = 0; d < g->params->n_dims; d++) dims[d] = -1;
    dims[given] = value_of(exts_row(g->params, exts_dim(g->params, given)), rng_below(random, 2) ? 0 : 4, random);
    return graph_at(g, dims, a);
}

/* Returns how many kernels are several that follow each other. */
static int check_graph(size_t which, uint64_t round) {
    arena a;
    guard gd;
    bool controls = which == COUNT_OF(graphs); /* a random one */
    const char *text = controls ? "a random graph" : graphs[which].text;
    char why_not[4096];
    rng random = rng_make(round * 31 + which);
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("round %d: %s\n%s", (int)round, gd.err.text, text);
    if (controls) text = randcontrol(&a, round, true);
    graph *g = graph_parse(&a, text, strlen(text), "t");
    bool some = round % 3 == 2 && g->params->n_dims > 1; /* dims are open */
    if (some) g = with_dim_given(g, &a, &random);
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    opts.fusion = round % 2 ? (int)(round / 2 % 4) : 3, opts.check = 1;
    target t = machine_of_round(round);
    plan *p = pipeline_run(g, &a, &opts, &t);
    check_text(p, &a);
    int chains = 0;
    for (int i = 0; i < p->kernels.n; i++) chains += strstr(p->kernels.at[i].k->name, "_chain") != NULL;
    for (int i = 0; i < p->kernels.n && !controls && !some && graphs[which].by_rows; i++) {
        str said;
        str_init(&said, &a);
        kernel_print(p->kernels.at[i].k, &said);
        if (!is_by_rows(p->kernels.at[i].k)) fail_msg("round %d: not cut\n%s", (int)round, said.s);
    }
    int64_t *dims = ARENA_ARRAY(&a, int64_t, g->params->n_dims + 1);
    for (uint64_t k = 0; k < 5; k++) {
        for (int i = 0; i < g->params->at.n; i++) {
            const ext_row *r = &g->params->at.at[i];
            if (r->op == EXT_DIM) dims[r->number] = value_of(r, k, &random);
        }
        reference r = reference_make(graph_at(g, dims, &a), &a, round + k);
        if (!plan_agrees(plan_at(p, dims), &r, &a, why_not, sizeof why_not))
            fail_msg("round %d, dims %d %d: %s\n%s", (int)round, (int)dims[0], g->params->n_dims > 1 ? (int)dims[1] : 0,
                     why_not, text);
    }
    arena_fini(&a);
    return chains;
}

static void test_all(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(60, &first) / 10 + 1;
    int chains = 0;
    for (uint64_t round = first; round < first + n; round++)
        for (size_t i = 0; i <= COUNT_OF(graphs); i++) chains += check_graph(i, round);
    printf("count: %d programs for GPUs with sizes of the run, five sizes each, thread by thread; %d chains\n",
           (int)(n * (COUNT_OF(graphs) + 1)), chains);
}

/* A linear layer and the softmax of its rows are one launch for all batches. */
ARENA_TEST(test_chain) {
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    target t = target_common_gpu();
    opts.fusion = 3;
    for (size_t i = 0; i < COUNT_OF(graphs); i++) {
        if (!strstr(graphs[i].text, "@head<")) continue;
        plan *p = pipeline_run(graph_parse(a, graphs[i].text, strlen(graphs[i].text), "t"), a, &opts, &t);
        assert_int_equal(p->kernels.n, 1);
        assert_non_null(strstr(p->kernels.at[0].k->name, "_chain"));
    }
}

/* Attention of lengths that a run gives is one launch, and stores no scores; not where there may be no keys, whose softmax is
 * empty. */
ARENA_TEST(test_attention) {
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    target t = target_common_gpu();
    opts.fusion = 3, opts.check = 1;
    for (size_t i = 0; i < COUNT_OF(graphs); i++) {
        const char *text = graphs[i].text;
        bool none = strstr(text, "@none<");
        if (!strstr(text, "@attention<") && !strstr(text, "@across_rows<") && !strstr(text, "@causal<") && !none) continue;
        plan *p = pipeline_run(graph_parse(a, text, strlen(text), "t"), a, &opts, &t);
        if ((p->kernels.n == 1) == none) fail_msg("%d kernels\n%s", p->kernels.n, text);
        if (!none) assert_int_equal(p->temp_bytes, 0);
    }
    t.machine = machine_row("h200"), t.matrix_units = t.local_barriers = true;
    t.resident_threads = 132 << 10, t.shared_most = 227 << 10, t.l2_bytes = 50 << 20;
    /* by matrix units, tiles that a mask empties left out; values made between */
    for (size_t i = 0; i < COUNT_OF(graphs); i++) {
        const char *text = graphs[i].text, *layer = strstr(text, "@layer<");
        str steps;
        if (!strstr(text, "@causal_bf16<") && !layer) continue;
        str_init(&steps, a);
        plan *p = pipeline_run(graph_parse(a, text, strlen(text), "t"), a, &opts, &t);
        if (!layer) assert_int_equal(p->kernels.n, 1);
        for (int s = 0; s < p->schedules.n; s++) schedule_print(p->schedules.at[s].s, &steps);
        if (!strstr(steps.s, layer ? "online_softmax" : "skip_masked matrix")) fail_msg("%s", steps.s);
    }
}

/* Columns whose number a run does not give are neighbouring threads', whatever the rows are; the schedule reads back. */
ARENA_TEST(test_columns) {
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    target t = target_common_gpu();
    opts.fusion = 3, opts.check = 1;
    for (size_t i = 0; i < COUNT_OF(graphs); i++) {
        const char *text = graphs[i].text;
        str steps, again;
        str_init(&steps, a), str_init(&again, a);
        if (!strstr(text, "@columns<")) continue;
        plan *p = pipeline_run(graph_parse(a, text, strlen(text), "t"), a, &opts, &t);
        int found = 0;
        for (int s = 0; s < p->schedules.n; s++)
            if (p->schedules.at[s].s) schedule_print(p->schedules.at[s].s, &steps);
        for (const char *s = steps.s; s && (s = strstr(s, "reduce_columns")); s++) found++;
        if (found < 2) fail_msg("%d kernels go by columns\n%s", found, steps.s);
        opts.schedule = steps.s;
        p = pipeline_run(graph_parse(a, text, strlen(text), "t"), a, &opts, &t);
        for (int s = 0; s < p->schedules.n; s++)
            if (p->schedules.at[s].s) schedule_print(p->schedules.at[s].s, &again);
        assert_string_equal(steps.s, again.s);
    }
}

/* So many layers in one launch that its nests share loop variables. */
static void test_long_chain(void **state) {
    (void)state;
    enum { LAYERS = 24 };
    arena a;
    guard gd;
    char why_not[4096];
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    str text;
    str_init(&text, &a);
    str_add(&text, "graph @deep<B 1..9>(x f32[B,16], w f32[16,16]) {\n  %1 = mul x, 1.0 f32[B,16]\n");
    for (int i = 1; i < 4 * LAYERS; i += 4)
        str_addf(&text,
                 "  %%%d = dot %%%d, w f32[B,16]\n  %%%d = sum %%%d axes=[1] f32[B,1]\n  %%%d = expand %%%d f32[B,16]\n"
                 "  %%%d = sub %%%d, %%%d f32[B,16]\n",
                 i + 1, i, i + 2, i + 1, i + 3, i + 2, i + 4, i + 1, i + 3);
    str_addf(&text, "  return %%%d as \"y\"\n}\n", 4 * LAYERS + 1);
    graph *g = graph_parse(&a, text.s, text.n, "t");
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    target t = target_common_gpu();
    opts.fusion = 3, opts.check = 1;
    plan *p = pipeline_run(g, &a, &opts, &t);
    assert_int_equal(p->kernels.n, 1);
    assert_true(p->kernels.at[0].k->vars.n < p->kernels.at[0].scalar->vars.n);
    for (int64_t batch = 1; batch <= 9; batch += 4) {
        reference r = reference_make(graph_at(g, &batch, &a), &a, (uint64_t)batch);
        if (!plan_agrees(plan_at(p, &batch), &r, &a, why_not, sizeof why_not)) fail_msg("batch %d: %s", (int)batch, why_not);
    }
    arena_fini(&a);
}

/* A launch has no thread blocks for rows that are not there. */
static void test_grid(void **state) {
    (void)state;
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    const char *text = graphs[0].text;
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    target t = target_common_gpu();
    plan *p = pipeline_run(graph_parse(&a, text, strlen(text), "t"), &a, &opts, &t);
    for (int i = 0; i < p->kernels.n; i++) {
        int64_t few = kernel_at(p->kernels.at[i].k, (int64_t[]){ 1 }, &a)->grid_blocks,
                all = kernel_at(p->kernels.at[i].k, (int64_t[]){ 40 }, &a)->grid_blocks;
        assert_true(few >= 1 && few < all);
        assert_int_equal(all, kernel_at_most(p->kernels.at[i].k, &a)->grid_blocks);
    }
    arena_fini(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_all),        cmocka_unit_test(test_chain),
                                        cmocka_unit_test(test_columns),    cmocka_unit_test(test_attention),
                                        cmocka_unit_test(test_long_chain), cmocka_unit_test(test_grid) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
