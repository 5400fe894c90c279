/* test_attention.c - attention, written out in many ways, as one kernel of a CPU: which spellings are, values by the
 * interpreter against the reference evaluator, machine code bit for bit against level 2, memory linear in the positions, and
 * operands that are not finite where a mask throws their products away. The same as one kernel of a GPU that goes through its
 * scores tile by tile, by the interpreter.
 *
 * Labels: random long */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/api.h"
#include "loop/schedule.h"
#include "machine/machine.h"
#include "support/plan_run.h"

typedef enum scale { ON_Q, ON_K, ON_SCORES, NO_SCALE } scale;
typedef enum mask { SELECT, ADD, MUL, INPUT, NO_MASK, LATE /* the first rows see nothing */ } mask;
typedef enum norm { DIV, RECIPROCAL, AFTER } norm;
typedef struct spelling {
    const char *name;
    scale scale;
    mask mask;
    norm norm;
    bool no_max, v_transposed, k_transposed;
    tn_dtype type; /* 0: f32 */
    bool narrow;   /* all of the graph, not only its inputs */
    int kernels;   /* at level 3 */
} spelling;
static const spelling spellings[] = {
    { "plain", ON_Q, SELECT, DIV, .kernels = 1 },
    { "scale on k", ON_K, SELECT, DIV, .kernels = 2 },
    { "scale on scores", ON_SCORES, SELECT, DIV, .kernels = 1 },
    { "no scale", NO_SCALE, SELECT, DIV, .kernels = 1 },
    { "mask added", ON_Q, ADD, DIV, .kernels = 1 },
    { "mask multiplied", ON_Q, MUL, DIV, .kernels = 1 },
    { "mask an input", ON_Q, INPUT, DIV, .kernels = 1 },
    { "no mask", ON_Q, NO_MASK, DIV, .kernels = 1 },
    { "reciprocal", ON_Q, SELECT, RECIPROCAL, .kernels = 1 },
    { "divided after", ON_SCORES, SELECT, AFTER, .kernels = 1 },
    { "no maximum", ON_Q, SELECT, DIV, .no_max = true, .kernels = 1 },
    { "v turned", ON_Q, SELECT, DIV, .v_transposed = true, .kernels = 1 },
    { "k turned", ON_Q, SELECT, DIV, .k_transposed = true, .kernels = 1 },
    { "bf16", ON_Q, SELECT, DIV, .type = TN_BF16, .kernels = 1 },
    { "f16", ON_SCORES, SELECT, DIV, .type = TN_F16, .kernels = 1 },
};

static val input(graph *g, const char *name, tn_dtype t, int rank, const int64_t *dims) {
    return graph_add(g, &(spec){ .op = OP_input, .dtype = (uint8_t)t, .name = name, .rank = rank, .dims = dims });
}
static val operand(graph *g, const char *name, const spelling *s, int64_t b, int64_t m, int64_t n) {
    int64_t dims[] = { b, m, n };
    if (!s->type) return input(g, name, TN_F32, 3, dims);
    if (s->narrow) return input(g, name, s->type, 3, dims);
    return graph_cast(g, input(g, name, s->type, 3, dims), TN_F32);
}
static val row(graph *g, op_code op, val x) { return graph_reduce(g, op, x, 1ull << 2); }
static val wide(graph *g, val x, int64_t b, int64_t m, int64_t n) { return graph_broadcast(g, x, 3, (int64_t[]){ b, m, n }); }

static val causal(graph *g, const spelling *s, val x, int64_t b, int64_t m, int64_t n) {
    int64_t dims[] = { b, m, n }, flat[] = { m, n };
    if (s->mask == NO_MASK) return x;
    if (s->mask == INPUT) {
        val in = input(g, "m", TN_F32, 2, flat);
        return graph_binary(g, OP_add, x, graph_broadcast(g, in, 3, dims));
    }
    val i = graph_iota(g, TN_I32, 3, dims, 1), j = graph_iota(g, TN_I32, 3, dims, 2);
    if (s->mask == LATE) i = graph_binary(g, OP_sub, i, graph_splat_like(g, i, 20));
    val past = graph_binary(g, OP_le, j, i);
    if (s->mask == MUL) return graph_binary(g, OP_mul, x, graph_cast(g, past, TN_F32));
    if (s->mask == ADD)
        return graph_binary(g, OP_add, x, graph_select(g, past, graph_splat_like(g, x, 0), graph_splat_like(g, x, -INFINITY)));
    return graph_select(g, past, x, graph_splat_like(g, x, -INFINITY));
}

static graph *make(arena *a, const spelling *s, int64_t b, int64_t m, int64_t n, int64_t d) {
    graph *g = graph_make(a, "attention");
    val q = operand(g, "q", s, b, m, d), k = s->k_transposed ? operand(g, "k", s, b, d, n) : operand(g, "k", s, b, n, d),
        v = s->v_transposed ? operand(g, "v", s, b, d, n) : operand(g, "v", s, b, n, d);
    if (s->scale == ON_Q) q = graph_binary(g, OP_mul, q, graph_splat_like(g, q, 0.25));
    if (s->scale == ON_K) k = graph_binary(g, OP_mul, k, graph_splat_like(g, k, 0.25));
    int64_t batch[] = { 0 }, last[] = { 2 }, middle[] = { 1 };
    val x = graph_dot(g, q, k, batch, batch, 1, last, s->k_transposed ? middle : last, 1);
    if (s->scale == ON_SCORES) x = graph_binary(g, OP_mul, x, graph_splat_like(g, x, 0.25));
    x = causal(g, s, x, b, m, n);
    if (!s->no_max) x = graph_binary(g, OP_sub, x, wide(g, row(g, OP_reduce_max, x), b, m, n));
    x = graph_unary(g, OP_exp, x);
    val sum = row(g, OP_sum, x);
    if (s->norm == DIV) x = graph_binary(g, OP_div, x, wide(g, sum, b, m, n));
    if (s->norm == RECIPROCAL)
        x = graph_binary(g, OP_mul, x, wide(g, graph_binary(g, OP_div, graph_splat_like(g, sum, 1), sum), b, m, n));
    val y = graph_dot(g, x, v, batch, batch, 1, last, s->v_transposed ? last : middle, 1);
    if (s->norm == AFTER) y = graph_binary(g, OP_div, y, wide(g, sum, b, m, d));
    graph_output(g, "y", y);
    return g;
}

static target a_target(int threads) {
    return (target){ .vector_bytes = 32, .n_vector_regs = 16, .threads = threads, .l1_bytes = 32 << 10, .l2_bytes = 1 << 20 };
}
static plan *plan_of(arena *a, graph *g, int fusion, const target *t) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = fusion, o.check = 1;
    return pipeline_run(g, a, &o, t);
}

ARENA_TEST(test_spellings) {
    int one = 0;
    for (size_t i = 0; i < COUNT_OF(spellings); i++) {
        target t = a_target(1);
        plan *p = plan_of(a, make(a, &spellings[i], 2, 256, 256, 64), 3, &t);
        if (p->kernels.n != spellings[i].kernels) fail_msg("%s: %d kernels", spellings[i].name, p->kernels.n);
        one += p->kernels.n == 1;
    }
    printf("%d of %d spellings are one kernel\n", one, (int)COUNT_OF(spellings));
    assert_true(one + 1 == (int)COUNT_OF(spellings));
}

static int64_t pick(uint64_t *seed, int64_t most) {
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return 1 + (int64_t)((*seed >> 33) % (uint64_t)most);
}

/* Sizes of all kinds against the evaluator, in its bounds: a position, odd sizes, queries and keys that differ. */
ARENA_TEST(test_values) {
    static const int64_t fixed[][3] = { { 1, 1, 1 }, { 17, 17, 33 }, { 1, 100, 64 }, { 130, 96, 8 }, { 96, 130, 16 } };
    uint64_t seed = 3;
    for (int round = 0; round < 60; round++) {
        const spelling *s = &spellings[(size_t)round % COUNT_OF(spellings)];
        int64_t m = pick(&seed, 100), n = pick(&seed, 100), d = pick(&seed, 30);
        if (round < (int)COUNT_OF(fixed)) m = fixed[round][0], n = fixed[round][1], d = fixed[round][2];
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        graph *g = make(&own, s, 1 + round % 2, m, n, d);
        plan_config c = { .seed = (uint64_t)round, .fusion = 3, .t = a_target(1 + round % 3) };
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("%s %d x %d x %d: %s", s->name, (int)m, (int)n, (int)d, c.text);
        arena_fini(&own);
    }
}

/* ---- machine code ---- */

static void run(tn_ctx *ctx, graph *g, const sample *in, int fusion, int threads, void *out) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *s;
    o.fusion = fusion, o.threads = threads;
    if (drive_compile(ctx, g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 0; i < p->n_io; i++) {
        void *where = out;
        for (int k = 0; k < g->inputs.n && !p->io[i].is_output; k++)
            if (!strcmp(graph_get(g, g->inputs.at[k])->name, p->io[i].name)) where = in->data[k];
        if (tn_session_bind(s, i, where)) fail_msg("%s", tn_ctx_error(ctx));
    }
    if (tn_session_run(s)) fail_msg("%s", tn_ctx_error(ctx));
    tn_session_free(s);
    tn_program_free(p);
}

/* Equal numbers, or both are none: what a NaN's other bits are depends on the order of operands. */
static bool same(const float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!(isnan(x[i]) && isnan(y[i])) && memcmp(&x[i], &y[i], sizeof *x)) return false;
    return true;
}

/* Level 3 with one thread and two, and level 2: every bit. Some inputs are not finite, also where the mask throws away. */
ARENA_TEST(test_bits) {
    static const int64_t sizes[][3] = {
        { 1000, 1000, 33 }, { 256, 256, 64 }, { 320, 192, 128 }, { 17, 17, 1 }, { 128, 1000, 16 }
    };
    int rounds = fuzz_by_c() ? 4 : 3 * (int)COUNT_OF(spellings), odd = 0;
    for (int round = 0; round < rounds; round++) {
        const spelling *s = &spellings[(size_t)round % COUNT_OF(spellings)];
        const int64_t *size = sizes[(size_t)round % COUNT_OF(sizes)];
        tn_ctx *ctx = test_ctx();
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        graph *g = make(&own, s, 2, size[0], size[1], size[2]);
        sample in = sample_make(g, &own, (uint64_t)round);
        int64_t n = 2 * size[0] * size[2], v = graph_elems(g, g->inputs.at[2]);
        if (!s->type && round % 2) { /* of the last key and query */
            ((float *)in.data[2])[v - 1] = round % 4 == 1 ? INFINITY : NAN;
            ((float *)in.data[0])[n / 2] = round % 3 ? INFINITY : NAN;
        }
        float *want = arena_alloc(&own, (size_t)n * 4), *got = arena_alloc(&own, (size_t)n * 4);
        run(ctx, g, &in, 2, 1, want);
        for (int64_t i = 0; i < n; i++) odd += !isfinite(want[i]);
        for (int threads = 1; threads < 3; threads++) {
            run(ctx, g, &in, 3, threads, got);
            if (!same(want, got, n)) fail_msg("%s, %d threads: other bits than at level 2 (round %d)", s->name, threads, round);
        }
        tn_ctx_free(ctx);
        arena_fini(&own);
    }
    printf("%d values are not finite\n", odd);
    assert_true(odd > 100);
}

/* Buffers of the plan and of the kernel's threads, from 1k to 16k positions: no more than linear. */
ARENA_TEST(test_memory) {
    double first = 0, last = 0;
    target t = a_target(1);
    for (int64_t n = 1024; n <= 16384; n *= 2) {
        plan *p = plan_of(a, make(a, &spellings[0], 1, n, n, 64), 3, &t);
        double bytes = (double)p->temp_bytes;
        assert_int_equal(p->kernels.n, 1);
        for (int b = 0; b < p->kernels.at[0].k->bufs.n; b++) {
            const kbuf *x = &p->kernels.at[0].k->bufs.at[b];
            if (x->kind == KB_LOCAL) bytes += (double)x->elems * (double)dtype_size((tn_dtype)x->dtype);
        }
        if (n == 1024) first = bytes;
        last = bytes;
        printf("%d positions: %.0f KiB\n", (int)n, bytes / 1024);
    }
    double exponent = log(last / first) / log(16);
    printf("exponent %.2f\n", exponent);
    assert_true(exponent > 0.5 && exponent < 1.05);
}

/* ---- on GPUs ---- */

/* A small GPU, so that few scores are worth tiles, and one like an H200. */
static target a_gpu(bool large) {
    target t = target_common_gpu();
    t.resident_threads = (large ? 132 : 1) << 10, t.shared_most = large ? 227 << 10 : 99 << 10;
    t.local_barriers = true;
    return t;
}
static bool goes_by_tiles(const plan *p) {
    for (int i = 0; i < p->schedules.n; i++) {
        const schedule *s = p->schedules.at[i].s;
        for (int j = 0; j < s->steps.n; j++)
            if (s->steps.at[j].op == STEP_online_softmax) return true;
    }
    return false;
}

ARENA_TEST(test_gpu_spellings) {
    int one = 0;
    for (size_t i = 0; i < COUNT_OF(spellings); i++) {
        target t = a_gpu(true);
        plan *p = plan_of(a, make(a, &spellings[i], 8, 1024, 1024, 64), 3, &t);
        bool tiles = goes_by_tiles(p) && p->kernels.n <= spellings[i].kernels;
        if (!tiles) printf("%s: %d kernels\n", spellings[i].name, p->kernels.n);
        one += tiles;
    }
    printf("%d of %d spellings go by tiles\n", one, (int)COUNT_OF(spellings));
    assert_true(one + 1 >= (int)COUNT_OF(spellings));
}

/* All sizes and spellings against the evaluator, thread by thread. */
ARENA_TEST(test_gpu_values) {
    static const int64_t fixed[][3] = { { 130, 96, 8 }, { 96, 130, 16 }, { 70, 70, 33 }, { 100, 64, 64 }, { 33, 200, 20 } };
    int rounds = 24, tiles = 0;
    uint64_t seed = 5;
    for (int round = 0; round < rounds; round++) {
        const spelling *s = &spellings[(size_t)round % COUNT_OF(spellings)];
        int64_t m = 64 + pick(&seed, 70), n = 64 + pick(&seed, 70), d = pick(&seed, 40);
        if (round < (int)COUNT_OF(fixed)) m = fixed[round][0], n = fixed[round][1], d = fixed[round][2];
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        graph *g = make(&own, s, 1 + round % 2, m, n, d);
        plan_config c = { .seed = (uint64_t)round, .fusion = 3, .t = a_gpu(false) };
        if (round % 3 == 1) c.t.shared_most = 0;
        if (round % 4 == 3) c.t.local_barriers = false;
        tiles += goes_by_tiles(plan_of(&own, g, 3, &c.t));
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("%s %d x %d x %d: %s", s->name, (int)m, (int)n, (int)d, c.text);
        arena_fini(&own);
    }
    printf("%d of %d go by tiles\n", tiles, rounds);
    assert_true(2 * tiles > rounds);
}

/* Values that are not finite: in operands that count, in those of skipped tiles, and where a mask throws away. */
ARENA_TEST(test_gpu_not_finite) {
    int odd = 0, finite = 0;
    for (int round = 0; round < 10; round++) {
        const spelling *s = &spellings[round < 5 ? 0 : round % 5];
        int64_t n = 96 + 17 * (round % 2), d = 16;
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        graph *g = make(&own, s, 1, n, n, d);
        sample in = sample_make(g, &own, (uint64_t)round);
        struct {
            int input;
            int64_t at;
            double value;
        } odds[] = { { 2, n * d - 1, INFINITY },  { 2, (n - 30) * d + 3, NAN }, { 0, 20 * d, NAN },
                     { 0, 40 * d + 1, INFINITY }, { 1, 50 * d, INFINITY },      { 1, (n - 2) * d, NAN },
                     { 1, 60 * d, -INFINITY },    { 2, 5, -INFINITY } };
        for (int i = 0; i < (int)COUNT_OF(odds); i++) {
            if ((i + round) % 4) continue;
            ((float *)in.data[odds[i].input])[odds[i].at] = (float)odds[i].value;
            in.values[odds[i].input].f[odds[i].at] = odds[i].value;
        }
        eval_value *want = eval_graph(g, &own, in.values);
        target t = a_gpu(false);
        plan *p = plan_of(&own, g, 3, &t);
        assert_true(goes_by_tiles(p));
        eval_memory *m = eval_memory_make(p, &own);
        for (int i = 0; i < g->inputs.n; i++)
            memcpy(m->io[plan_io(p, graph_get(g, g->inputs.at[i])->name, false)], in.data[i], in.bytes[i]);
        eval_plan(p, m, &own);
        const float *got = m->io[plan_io(p, "y", true)];
        const double *y = want[g->outputs.at[0].v].f;
        for (int64_t i = 0; i < n * d; i++) {
            bool same = isfinite(y[i]) ? fabs(got[i] - y[i]) < 1e-4 * (1 + fabs(y[i]))
                        : isnan(y[i])  ? isnan(got[i])
                                       : got[i] == y[i];
            if (!same)
                fail_msg("%s, round %d: y[%d][%d] is %g, expected %g", s->name, round, (int)(i / d), (int)(i % d),
                         (double)got[i], y[i]);
            finite += isfinite(y[i]) != 0, odd += !isfinite(y[i]);
        }
        arena_fini(&own);
    }
    printf("%d values are finite, %d are not\n", finite, odd);
    assert_true(finite > 500 && odd > 500);
}

/* ---- by matrix units ---- */

static const struct {
    spelling s;
    bool units;
} narrow[] = {
    { { "causal", ON_Q, SELECT, DIV, .type = TN_BF16, .narrow = true }, true },
    { { "full", ON_SCORES, NO_MASK, DIV, .type = TN_F16, .narrow = true }, true },
    { { "added", NO_SCALE, ADD, RECIPROCAL, .type = TN_BF16, .narrow = true }, true },
    { { "late", ON_Q, LATE, DIV, .type = TN_BF16, .narrow = true }, true },
    { { "k turned", ON_Q, NO_MASK, DIV, .k_transposed = true, .type = TN_BF16, .narrow = true }, true },
    { { "v turned", ON_Q, SELECT, DIV, .v_transposed = true, .type = TN_F16, .narrow = true }, true },
    { { "strict", ON_Q, SELECT, DIV, .type = TN_BF16 }, false },
};

static target with_units(void) {
    target t = a_gpu(true);
    t.machine = machine_row("h200"), t.matrix_units = true;
    return t;
}

static const loop_step *bound_tiles(const plan *p) {
    for (int i = 0; i < p->schedules.n; i++)
        for (int j = 0; j < p->schedules.at[i].s->steps.n; j++)
            if (p->schedules.at[i].s->steps.at[j].op == STEP_bind_row_tiles) return &p->schedules.at[i].s->steps.at[j];
    return NULL;
}

/* Attention as it is trained, with what is bf16 or f16 from end to end; nothing that is f32 is rounded. */
ARENA_TEST(test_units_chosen) {
    for (size_t i = 0; i < COUNT_OF(narrow); i++)
        for (int size = 32; size <= 128; size += 32) {
            target t = with_units();
            plan *p = plan_of(a, make(a, &narrow[i].s, 16, 1024, 1024, size), 3, &t);
            const loop_step *s = bound_tiles(p);
            bool units = s && step_flag(s, "matrix");
            if (units != narrow[i].units) fail_msg("%s, %d: matrix units %d", narrow[i].s.name, size, units);
            t.matrix_units = false;
            s = bound_tiles(plan_of(a, make(a, &narrow[i].s, 16, 1024, 1024, size), 3, &t));
            assert_false(s && step_flag(s, "matrix"));
        }
}

/* Heads of 64 numbers: as many thread blocks at a time as registers allow. Where heads are twice as wide, the rows of two share
 * tiles. */
ARENA_TEST(test_units_blocks) {
    const spelling causal = { "causal", ON_Q, SELECT, DIV, .type = TN_BF16, .narrow = true };
    target t = with_units();
    t.shared_most = 227 << 10, t.resident_threads = 132 << 10, t.l2_bytes = 50 << 20, t.local_barriers = true;
    for (int heads = 96; heads <= 384; heads *= 2)
        for (int size = 64; size <= 128; size *= 2) {
            const loop_step *s = bound_tiles(plan_of(a, make(a, &causal, heads, 1024, 1024, size), 3, &t));
            assert_true(s && step_flag(s, "matrix"));
            if (s->arg[0].n != size) fail_msg("%d heads of %d: %d rows", heads, size, (int)s->arg[0].n);
        }
}

/* The steps that the recipe has where they are worth it, for any size: as one kernel. */
static plan *plan_by_units(arena *a, graph *g, int block, int tile, bool skip) {
    target t = a_gpu(false);
    t.machine = machine_row("h200"), t.matrix_units = true;
    plan *p = plan_of(a, g, 3, &t);
    if (p->kernels.n != 1) return NULL;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 3, o.check = 1;
    o.schedule = arena_printf(a, "schedule @%s { online_softmax %d narrow; bind_row_tiles %d %d 4%s matrix; hoist; dce }",
                              p->kernels.at[0].k->name, tile, block, block / 2, skip ? " skip_masked" : "");
    return pipeline_run(g, a, &o, &t);
}

/* Sizes of all kinds, some values not finite, thread by thread against double: weights and results are rounded once each. */
ARENA_TEST(test_units_values) {
    static const int64_t sizes[][3] = { { 100, 152, 40 }, { 64, 64, 16 }, { 130, 96, 128 }, { 65, 200, 64 }, { 129, 128, 96 } };
    int odd = 0, finite = 0, units = 0;
    for (int round = 0; round < 18; round++) {
        spelling s = narrow[round % 6].s;
        int64_t n[3];
        memcpy(n, sizes[round % (int)COUNT_OF(sizes)], sizeof n);
        if (s.k_transposed || s.v_transposed) n[1] = 128; /* whole tiles */
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        graph *g = make(&own, &s, 2, n[0], n[1], n[2]);
        sample in = sample_make(g, &own, (uint64_t)round);
        for (int i = 0; i < 3 && round % 3 == 1; i++) { /* of the last rows, and a first one */
            static const double values[] = { NAN, INFINITY, -INFINITY };
            int64_t all = graph_elems(g, g->inputs.at[i]), at = i == round % 2 ? all - 1 - round : round;
            double v = values[(i + round) % 3];
            uint16_t *bits = (uint16_t *)in.data[i];
            bits[at] = s.type == TN_BF16 ? bf16_from_f32((float)v) : half_from_f32((float)v), in.values[i].f[at] = v;
        }
        spelling f32 = s;
        f32.type = 0, f32.narrow = false;
        graph *exact = make(&own, &f32, 2, n[0], n[1], n[2]);
        eval_value *want = eval_graph(exact, &own, in.values);
        plan *p =
            plan_by_units(&own, g, 64 << round / 5 % 2, 64 << round % 2, s.mask == SELECT && !s.v_transposed && round % 2);
        if (!p) {
            arena_fini(&own);
            continue;
        }
        units++;
        eval_memory *m = eval_memory_make(p, &own);
        for (int i = 0; i < g->inputs.n; i++)
            memcpy(m->io[plan_io(p, graph_get(g, g->inputs.at[i])->name, false)], in.data[i], in.bytes[i]);
        eval_plan(p, m, &own);
        const void *got = m->io[plan_io(p, "y", true)];
        const double *y = want[exact->outputs.at[0].v].f, bound = s.type == TN_BF16 ? 0x1p-6 : 0x1p-9;
        for (int64_t i = 0; i < 2 * n[0] * n[2]; i++) {
            double x = dtype_load(s.type, got, i);
            bool same = isfinite(y[i]) ? fabs(x - y[i]) < bound * (1 + fabs(y[i])) : isnan(y[i]) ? isnan(x) : x == y[i];
            if (!same) fail_msg("%s, round %d: element %d is %g, expected %g", s.name, round, (int)i, x, y[i]);
            finite += isfinite(y[i]) != 0, odd += !isfinite(y[i]);
        }
        arena_fini(&own);
    }
    printf("%d of 18 by matrix units: %d values are finite, %d are not\n", units, finite, odd);
    assert_true(units > 8 && finite > 10000 && odd > 1000);
}

/* The plan's buffers: nothing between its inputs and outputs, however many positions. */
ARENA_TEST(test_gpu_memory) {
    for (int64_t n = 1024; n <= 16384; n *= 4) {
        target t = a_gpu(true);
        plan *p = plan_of(a, make(a, &spellings[0], 4, n, n, 64), 3, &t);
        assert_int_equal(p->kernels.n, 1);
        assert_int_equal(p->temp_bytes, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_spellings),      cmocka_unit_test(test_values),
                                        cmocka_unit_test(test_bits),           cmocka_unit_test(test_memory),
                                        cmocka_unit_test(test_gpu_spellings),  cmocka_unit_test(test_gpu_values),
                                        cmocka_unit_test(test_gpu_not_finite), cmocka_unit_test(test_gpu_memory),
                                        cmocka_unit_test(test_units_chosen),   cmocka_unit_test(test_units_blocks),
                                        cmocka_unit_test(test_units_values) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
