/* test_attention_grad.c - attention as it is trained: on GPUs with matrix units the result and the gradients of queries, keys
 * and values are a kernel each, or one for the keys' and values', of which none stores a square of positions. Values by the
 * interpreter, thread by thread, against double; spellings; memory linear in the positions.
 *
 * Labels: random long
 * TENON_FUZZ_SEEDS: a round of values for 280 of them, at least one; by default and of 2,000 two a spelling. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/api.h"
#include "grad/grad.h"
#include "loop/schedule.h"
#include "machine/machine.h"
#include "support/plan_run.h"
#include "tenon/tenon_nn.h"

typedef enum mask { CAUSAL, ADDED, FULL } mask;
typedef enum norm { DIV, RECIPROCAL, WIDE_SUM /* as tn_nn_softmax: sums are f32 */, WIDE /* the softmax is f32 */ } norm;
typedef struct spelling {
    const char *name;
    mask mask;
    norm norm;
    bool scores_scaled; /* else the queries are */
    tn_dtype type;
} spelling;
static const spelling spellings[] = {
    { "causal", CAUSAL, WIDE_SUM, false, TN_BF16 },   { "full", FULL, WIDE_SUM, false, TN_F16 },
    { "divided", CAUSAL, DIV, false, TN_F16 },        { "reciprocal", FULL, RECIPROCAL, true, TN_BF16 },
    { "scaled scores", CAUSAL, DIV, true, TN_BF16 },  { "added", ADDED, WIDE_SUM, false, TN_BF16 },
    { "wide softmax", CAUSAL, WIDE, false, TN_BF16 },
};

static val input(graph *g, const char *name, tn_dtype t, int64_t b, int64_t m, int64_t n) {
    return graph_add(g,
                     &(spec){ .op = OP_input, .dtype = (uint8_t)t, .name = name, .rank = 3, .dims = (int64_t[]){ b, m, n } });
}
static val row(graph *g, op_code op, val x) { return graph_reduce(g, op, x, 1ull << 2); }

/* Softmax over the last axis, of x type[b,m,n]. */
static val softmax(graph *g, const spelling *s, val x, const int64_t *dims) {
    tn_dtype type = (tn_dtype)graph_get(g, x)->dtype;
    bool half = type != TN_F32;
    if (s->norm == WIDE) x = graph_cast(g, x, TN_F32);
    x = graph_unary(
        g, OP_exp,
        graph_binary(g, OP_sub, x, graph_expand(g, graph_unary(g, OP_stop_gradient, row(g, OP_reduce_max, x)), dims)));
    val sum = s->norm == WIDE_SUM && half ? row(g, OP_sum, graph_cast(g, x, TN_F32)) : row(g, OP_sum, x);
    if (s->norm == DIV || s->norm == WIDE) return graph_cast(g, graph_binary(g, OP_div, x, graph_expand(g, sum, dims)), type);
    val inverse = graph_cast(g, graph_binary(g, OP_div, graph_splat_like(g, sum, 1), sum), (tn_dtype)graph_get(g, x)->dtype);
    return graph_binary(g, OP_mul, x, graph_expand(g, inverse, dims));
}

/* q and the result's gradient [b,m,d], k and v [b,n,d]; out: y and the gradients of q, k, v. b 0: b, m and n are a run's. */
static graph *make(arena *a, const spelling *s, tn_dtype type, int64_t b, int64_t m, int64_t n, int64_t d) {
    graph *g = graph_make(a, "attention");
    if (!b) {
        g->params = exts_make(a);
        b = ext_dim(g->params, "B", 1, 4, 1), m = ext_dim(g->params, "M", 1, 512, 1), n = ext_dim(g->params, "N", 1, 512, 1);
    }
    int64_t dims[] = { b, m, n }, batch[] = { 0 }, last[] = { 2 }, middle[] = { 1 };
    val x[] = { input(g, "q", type, b, m, d), input(g, "k", type, b, n, d), input(g, "v", type, b, n, d) };
    val given = input(g, "g", type, b, m, d), out[3];
    val q = s->scores_scaled ? x[0] : graph_binary(g, OP_mul, x[0], graph_splat_like(g, x[0], 0.25));
    val score = graph_dot(g, q, x[1], batch, batch, 1, last, last, 1);
    if (s->scores_scaled) score = graph_binary(g, OP_mul, score, graph_splat_like(g, score, 0.25));
    val past = graph_binary(g, OP_le, graph_iota(g, TN_I32, 3, dims, 2), graph_iota(g, TN_I32, 3, dims, 1));
    val low = graph_splat_like(g, score, -INFINITY), none = graph_splat_like(g, score, 0);
    if (s->mask == CAUSAL) score = graph_select(g, past, score, low);
    if (s->mask == ADDED) score = graph_binary(g, OP_add, score, graph_select(g, past, none, low));
    val y = graph_dot(g, softmax(g, s, score, dims), x[2], batch, batch, 1, last, middle, 1);
    val loss = graph_binary(g, OP_mul, graph_cast(g, y, TN_F32), graph_cast(g, given, TN_F32));
    loss = graph_reshape(g, graph_reduce(g, OP_sum, loss, 7), 0, NULL);
    grad_build(g, loss, x, 3, out);
    graph_output(g, "y", y);
    graph_output(g, "dq", out[0]), graph_output(g, "dk", out[1]), graph_output(g, "dv", out[2]);
    return g;
}

static target with_units(bool small) {
    target t = target_common_gpu();
    t.machine = machine_row("h200"), t.matrix_units = true, t.local_barriers = true;
    t.resident_threads = small ? 1 << 10 : 132 << 10, t.shared_most = 227 << 10;
    if (small) t.l2_bytes = 1 << 10; /* so that scores are large */
    return t;
}
static plan *plan_of(arena *a, graph *g, const target *t, int fusion) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = fusion, o.check = 1;
    return pipeline_run(g, a, &o, t);
}

/* Kernels that go by tiles of scores on matrix units, also side by side in a launch; of those, which skip some. */
static int count_tiles(const plan *p, int *skip) {
    int n = 0;
    *skip = 0;
    for (int i = 0; i < p->schedules.n; i++) {
        const schedule *s = p->schedules.at[i].s;
        for (int j = 0; s && j < s->steps.n; j++) {
            const loop_step *x = &s->steps.at[j];
            if (x->op != STEP_bind_row_tiles || !step_flag(x, "matrix")) continue;
            n++, *skip += step_flag(x, "skip_masked");
        }
    }
    return n;
}

/* Heads of up to 64 numbers: gradients of keys and values are one. */
static int kernels_of(int64_t d) { return d <= 64 ? 3 : 4; }

ARENA_TEST(test_spellings) {
    int all = 0, n_sizes = TEST_SANITIZED ? 1 : 3; /* sanitized, checking each plan takes 6 s */
    for (size_t i = 0; i < COUNT_OF(spellings); i++)
        for (int64_t d = 32; d < 32 << n_sizes; d *= 2) {
            const spelling *s = &spellings[i];
            target t = with_units(false);
            int skip, n = count_tiles(plan_of(a, make(a, s, s->type, 96, 1024, 1024, d), &t, 3), &skip);
            bool good = n == kernels_of(d) && (s->mask != CAUSAL || skip == n);
            if (!good) printf("%s, %d: %d kernels go by tiles, %d skip some\n", s->name, (int)d, n, skip);
            all += good;
        }
    assert_int_equal(all, n_sizes * (int)COUNT_OF(spellings));
}

/* A training step of a language model that reads so many rows of all its positions. */
static tn_graph *training_step(tn_ctx *ctx, tn_nn_lm_opts o, int64_t rows) {
    tn_graph *g = tn_graph_new(ctx, "step");
    tn_shape shape = TN_DIMS(rows, o.positions);
    tn_tensor x = tn_input(g, "x", TN_I32, shape), y = tn_input(g, "y", TN_I32, shape);
    tn_tensor loss = tn_nn_cross_entropy(tn_cast(tn_nn_lm(x, o), TN_F32), y);
    tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 1e-3 });
    tn_output(loss, "loss");
    assert_int_equal(tn_graph_status(g), TN_OK);
    return g;
}

/* Norms' gradients stand between attention's: they sum rows by weights, too. */
ARENA_TEST(test_training_step) {
    tn_ctx *ctx = test_ctx();
    tn_graph *g = training_step(
        ctx, (tn_nn_lm_opts){ .vocab = 512, .positions = 512, .width = 128, .heads = 2, .layers = 1, .dtype = TN_BF16 }, 2);
    target t = with_units(false);
    t.bulk = true, t.resident_threads = 264 << 10;
    int skip, n = count_tiles(plan_of(a, g->ir, &t, 3), &skip);
    tn_graph_free(g), tn_ctx_free(ctx);
    assert_int_equal(n, 3); /* the result; gradients of queries; of keys and values */
    assert_int_equal(skip, 3);
}

/* A small step of f32: how many launches it is; products that nobody waits for have thread blocks of more work than alone. */
ARENA_TEST(test_small_step) {
    tn_ctx *ctx = test_ctx();
    tn_graph *g =
        training_step(ctx, (tn_nn_lm_opts){ .vocab = 256, .positions = 64, .width = 128, .heads = 4, .layers = 2 }, 12);
    target t = with_units(false);
    t.bulk = t.overlaps = true;
    const plan *p = plan_of(a, g->ir, &t, 3);
    int64_t most = 0;
    for (int i = 0; i < p->kernels.n; i++) {
        const kernel *k = p->kernels.at[i].k;
        bool product = strstr(k->name, "dot") && strstr(k->name, "_beside");
        if (product && k->grid_blocks > most) most = k->grid_blocks;
    }
    int n = p->kernels.n;
    printf("%d launches; products side by side have up to %d thread blocks\n", n, (int)most);
    tn_graph_free(g), tn_ctx_free(ctx);
    assert_true(n <= 48);
    assert_true(most > 0 && most < 500);
}

/* Nothing between kernels grows with the square of positions. */
ARENA_TEST(test_memory) {
    double first = 0, last = 0;
    for (int64_t n = 1024; n <= 16384; n *= 4) {
        target t = with_units(false);
        last = (double)plan_of(a, make(a, &spellings[0], TN_BF16, 16, n, n, 64), &t, 3)->temp_bytes;
        if (n == 1024) first = last;
        printf("%d positions: %.0f KiB\n", (int)n, last / 1024);
    }
    assert_true(last <= 16 * first);
}

static eval_memory *run(const plan *p, const graph *g, const sample *in, arena *a) {
    eval_memory *m = eval_memory_make(p, a);
    for (int i = 0; i < g->inputs.n; i++)
        memcpy(m->io[plan_io(p, graph_get(g, g->inputs.at[i])->name, false)], in->data[i], in->bytes[i]);
    eval_plan(p, m, a);
    return m;
}

/* Sizes of a run: few launches, and memory that is linear in them. */
ARENA_TEST(test_sizes) {
    for (size_t i = 0; i < (TEST_SANITIZED ? 1 : COUNT_OF(spellings)); i++) {
        target t = with_units(false);
        int skip;
        const plan *p = plan_of(a, make(a, &spellings[i], spellings[i].type, 0, 0, 0, 64), &t, 3);
        int n = count_tiles(p, &skip);
        if (n != 4 || p->kernels.n > 3 || p->temp_bytes > 3 << 20 || (spellings[i].mask == CAUSAL && skip < 2))
            fail_msg("%s: %d kernels go by tiles, %d skip some; %lld bytes", spellings[i].name, n, skip,
                     (long long)p->temp_bytes);
    }
}

/* Fresh numbers and sizes of all kinds against double, every second round's sizes given by a run. The bound is what the same
 * ops one by one, each rounding to the spelling's dtype, are off by at most, and half as much: both are the worst of many
 * numbers (of 280 results 1.16 was seen). */
ARENA_TEST(test_values) {
    uint64_t first, seed = 11;
    int units = 0, rounds = (int)(fuzz_seeds(280 * COUNT_OF(spellings), &first) / 140);
    if (rounds < 1) rounds = 1;
    for (int round = 0; round < rounds; round++) {
        const spelling *s = &spellings[(size_t)round % COUNT_OF(spellings)];
        int64_t n[3];
        static const int64_t most[] = { 40, 40, 3 };
        for (int i = 0; i < 3; i++) {
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            n[i] = 1 + (int64_t)((seed >> 33) % (uint64_t)most[i]);
        }
        bool of_run = round / (int)COUNT_OF(spellings) % 2;
        int64_t rows = 256 + n[0], keys = 260 + n[1], d = n[2] == 1 ? 64 : 24 + 8 * n[2];
        if (of_run) rows = 1 + rows * n[1] / 41, keys = 1 + keys * n[0] * n[1] / 1681;
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        graph *g = make(&own, s, s->type, 2, rows, keys, d), *exact = make(&own, s, TN_F32, 2, rows, keys, d);
        sample in = sample_make(g, &own, (uint64_t)round);
        eval_value *want = eval_graph(exact, &own, in.values);
        target t = with_units(true), cpu = plan_target(0);
        int skip;
        plan *p = plan_of(&own, of_run ? make(&own, s, s->type, 0, 0, 0, d) : g, &t, 3);
        int tiles = count_tiles(p, &skip);
        if (of_run) p = plan_at(p, (int64_t[]){ 2, rows, keys });
        int all_tiles = of_run ? 4 : kernels_of(d);
        units += tiles == all_tiles;
        eval_memory *m = run(p, g, &in, &own);
        plan *ops = plan_of(&own, g, &cpu, 0);
        eval_memory *by_ops = run(ops, g, &in, &own);
        if (tiles != all_tiles) printf("%s, %d x %d x %d: %d by tiles\n", s->name, (int)rows, (int)keys, (int)d, tiles);
        for (int o = 0; o < g->outputs.n && tiles == all_tiles; o++) {
            const void *got = m->io[plan_io(p, g->outputs.at[o].name, true)];
            const double *y = want[exact->outputs.at[o].v].f;
            const void *ops_got = by_ops->io[plan_io(ops, g->outputs.at[o].name, true)];
            int64_t all = graph_elems(g, g->outputs.at[o].v);
            double square = 0, bound = 0, worst = 0;
            for (int64_t i = 0; i < all; i++) square += y[i] * y[i] / (double)all;
            for (int64_t i = 0; i < all; i++)
                bound = fmax(bound, 1.5 * fabs(dtype_load(s->type, ops_got, i) - y[i]) / (sqrt(square) + fabs(y[i])));
            for (int64_t i = 0; i < all; i++) {
                double off = fabs(dtype_load(s->type, got, i) - y[i]) / (sqrt(square) + fabs(y[i]));
                if (!(off <= bound))
                    fail_msg("%s, round %d, %d x %d x %d (%d by tiles, %d skip): %s[%d] is %g, expected %g within %g", s->name,
                             round, (int)rows, (int)keys, (int)d, tiles, skip, g->outputs.at[o].name, (int)i,
                             dtype_load(s->type, got, i), y[i], bound);
                worst = fmax(worst, off);
            }
            if (round < 3) printf("%s, %s: off by %.5f of %.5f\n", s->name, g->outputs.at[o].name, worst, bound);
        }
        arena_fini(&own);
    }
    printf("%d of %d by tiles\n", units, rounds);
    assert_true(2 * units > rounds);
}

/* Few keys, in f32: what the gradients need of the scores is stored, by one kernel with the result; scores of the result's
 * gradient and what is computed of their rows are one, too. Values against double; the bound as above. */
static const spelling wide[] = {
    { "causal", CAUSAL, WIDE_SUM, false, TN_F32 },
    { "full", FULL, DIV, true, TN_F32 },
    { "added", ADDED, RECIPROCAL, false, TN_F32 },
    { "scaled scores", CAUSAL, DIV, true, TN_F32 },
};
static int count_short(const plan *p) {
    int n = 0;
    for (int i = 0; i < p->kernels.n; i++) {
        const schedule *s = p->kernels.at[i].schedule;
        bool softmax = false, tiles = false;
        for (int j = 0; s && j < s->steps.n; j++)
            softmax |= s->steps.at[j].op == STEP_online_softmax, tiles |= s->steps.at[j].op == STEP_bind_row_tiles;
        n += tiles && !softmax;
    }
    return n;
}

ARENA_TEST(test_few_keys) {
    static const int64_t sizes[][3] = { { 64, 64, 32 }, { 40, 56, 16 }, { 64, 32, 64 }, { 33, 64, 24 } };
    int found = 0;
    for (size_t i = 0; i < COUNT_OF(wide) * COUNT_OF(sizes); i++) {
        const spelling *s = &wide[i % COUNT_OF(wide)];
        const int64_t *n = sizes[(i + i / COUNT_OF(wide)) % COUNT_OF(sizes)];
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        target t = with_units(false), cpu = plan_target(0);
        graph *g = make(&own, s, TN_F32, 48, n[0], n[1], n[2]);
        plan *p = plan_of(&own, g, &t, 3), *ops = plan_of(&own, g, &cpu, 0);
        found += count_short(p);
        sample in = sample_make(g, &own, i);
        eval_value *want = eval_graph(g, &own, in.values);
        eval_memory *m = run(p, g, &in, &own), *by_ops = run(ops, g, &in, &own);
        for (int o = 0; o < g->outputs.n; o++) {
            const float *got = m->io[plan_io(p, g->outputs.at[o].name, true)],
                        *ops_got = by_ops->io[plan_io(ops, g->outputs.at[o].name, true)];
            const double *y = want[g->outputs.at[o].v].f;
            int64_t all = graph_elems(g, g->outputs.at[o].v);
            double square = 0, bound = 1e-6;
            for (int64_t e = 0; e < all; e++) square += y[e] * y[e] / (double)all;
            for (int64_t e = 0; e < all; e++) bound = fmax(bound, 2 * fabs(ops_got[e] - y[e]) / (sqrt(square) + fabs(y[e])));
            for (int64_t e = 0; e < all; e++)
                if (!(fabs(got[e] - y[e]) <= bound * (sqrt(square) + fabs(y[e]))))
                    fail_msg("%s, %d x %d x %d: %s[%d] is %g, expected %g within %g", s->name, (int)n[0], (int)n[1], (int)n[2],
                             g->outputs.at[o].name, (int)e, got[e], y[e], bound);
        }
        arena_fini(&own);
    }
    printf("%d kernels have whole rows\n", found);
    assert_true(found >= 8);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_values),        cmocka_unit_test(test_spellings),
                                        cmocka_unit_test(test_training_step), cmocka_unit_test(test_small_step),
                                        cmocka_unit_test(test_memory),        cmocka_unit_test(test_few_keys),
                                        cmocka_unit_test(test_sizes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
