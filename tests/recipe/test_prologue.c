/* test_prologue.c - elementwise work on an operand of a contraction: dequantised weights of 8 and 4 bits, by column, by row and
 * by groups along the contraction, and random expressions. One kernel, which reads what is stored and keeps no copy of what it
 * computes; values by the interpreter against the reference evaluator, bits of machine code against those of two kernels.
 *
 * Labels: random */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "api/api.h"
#include "support/plan_run.h"

/* relu(x dequantised(w) + b): a scale a column of the result, or one a term of its sums. turned: w is n x k. */
static graph *make(arena *a, int64_t m, int64_t k, int64_t n, bool transposed, bool by_column) {
    int64_t dw[] = { transposed ? n : k, transposed ? k : n }, one[] = { dw[0], 1 }, other[] = { 1, dw[1] };
    const int64_t *ds = transposed == by_column ? one : other;
    graph *g = graph_make(a, "dequantised");
    val x = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .name = "x", .rank = 2, .dims = (int64_t[]){ m, k } });
    val w = graph_add(g, &(spec){ .op = OP_state, .dtype = TN_I8, .name = "w", .rank = 2, .dims = dw });
    val s = graph_add(g, &(spec){ .op = OP_state, .dtype = TN_F32, .name = "s", .rank = 2, .dims = ds });
    val b = graph_add(g, &(spec){ .op = OP_state, .dtype = TN_F32, .name = "b", .rank = 2, .dims = (int64_t[]){ 1, n } });
    val d = graph_binary(g, OP_mul, graph_cast(g, w, TN_F32), graph_broadcast(g, s, 2, dw));
    val y = graph_dot(g, x, d, NULL, NULL, 0, (int64_t[]){ 1 }, (int64_t[]){ transposed }, 1);
    y = graph_binary(g, OP_add, y, graph_broadcast(g, b, 2, (int64_t[]){ m, n }));
    graph_output(g, "y", graph_binary(g, OP_max, y, graph_splat_like(g, y, 0)));
    return g;
}

static target a_target(int threads) {
    return (target){ .vector_bytes = 32, .n_vector_regs = 16, .threads = threads, .l1_bytes = 32 << 10, .l2_bytes = 1 << 20 };
}
static plan *plan_of(arena *a, graph *g, const target *t) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 3, o.check = 1;
    return pipeline_run(g, a, &o, t);
}

ARENA_TEST(test_one_kernel) {
    for (int i = 0; i < 4; i++) {
        target t = a_target(1 + i % 2);
        plan *one = plan_of(a, make(a, 1, 512, 512, i & 1, i & 2), &t),
             *many = plan_of(a, make(a, 64, 512, 512, i & 1, i & 2), &t);
        assert_int_equal(one->kernels.n, 1);
        assert_true(one->temp_bytes == 0);
        assert_true(one->kernels.at[0].k->bytes_read < 512 * 512 + 4 * 4 * 512);
        assert_int_equal(many->kernels.n, 1); /* dequantised once, as panels are packed */
        assert_true(many->temp_bytes == 0);
        assert_true(many->kernels.at[0].k->bytes_read < 512 * 512 + 64 * 512 * 4 + 4 * 4 * 512);
    }
}

ARENA_TEST(test_values) {
    static const int64_t sizes[][3] = { { 1, 300, 257 }, { 1, 64, 64 },  { 2, 129, 100 },
                                        { 3, 70, 130 },  { 4, 128, 96 }, { 5, 80, 80 } };
    for (int round = 0; round < 24; round++) {
        const int64_t *size = sizes[(size_t)round % COUNT_OF(sizes)];
        graph *g = make(a, size[0], size[1], size[2], round / 6 & 1, round / 12 & 1);
        plan_config c = { .seed = (uint64_t)round, .fusion = 3, .t = a_target(1 + round % 3) };
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("%d x %d x %d: %s", (int)size[0], (int)size[1], (int)size[2], c.text);
    }
}

/* Weights of several matrices at a time, dequantised by columns. */
ARENA_TEST(test_batches) {
    int64_t dx[] = { 3, 40, 96 }, dw[] = { 3, 96, 131 }, ds[] = { 3, 1, 131 }, batch[] = { 0 };
    for (int i = 0; i < 4; i++) {
        graph *g = graph_make(a, "batches");
        val x = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .name = "x", .rank = 3, .dims = dx }),
            w = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_I8, .name = "w", .rank = 3, .dims = dw }),
            s = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .name = "s", .rank = 3, .dims = ds });
        w = graph_binary(g, OP_mul, graph_cast(g, w, TN_F32), graph_expand(g, s, dw));
        graph_output(g, "y", graph_dot(g, x, w, batch, batch, 1, (int64_t[]){ 2 }, (int64_t[]){ 1 }, 1));
        plan_config c = { .seed = (uint64_t)i, .fusion = 3, .t = a_target(1 + i) };
        plan *p = plan_of(a, g, &c.t);
        assert_int_equal(p->kernels.n, 1);
        assert_true(p->temp_bytes == 0);
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("%d threads: %s", 1 + i, c.text);
    }
}

/* What follows row by row does not join such a contraction in blocks of rows, each of which would dequantise again. */
ARENA_TEST(test_not_by_blocks) {
    int64_t dims[] = { 300, 512 };
    target t = a_target(1);
    graph *g = make(a, 300, 512, 512, false, true);
    val y = g->outputs.at[0].v;
    val s = graph_reduce(g, OP_sum, y, 1ull << 1);
    g->outputs.n = 0;
    graph_output(g, "z", graph_binary(g, OP_sub, y, graph_broadcast(g, s, 2, dims)));
    plan *p = plan_of(a, g, &t);
    assert_int_equal(p->kernels.n, 2);
    for (int i = 0; i < p->kernels.at[0].k->bufs.n; i++)
        assert_false(p->kernels.at[0].k->bufs.at[i].kind == KB_OUT && p->kernels.at[0].k->bufs.at[i].elems == 512 * 512);
}

/* ---- random expressions ---- */

enum { STEPS = 6 };

static val small(graph *g, tn_dtype t, int rank, const int64_t *dims, int which,
                 int *n_inputs) { /* in a shape that dims expand */
    char name[16];
    int64_t d[TN_MAX_RANK];
    for (int i = 0; i < rank; i++) d[i] = which >> i & 1 ? dims[i] : 1;
    snprintf(name, sizeof name, "p%d", (*n_inputs)++);
    const char *own = arena_copy(g->a, name, sizeof name);
    val v = graph_add(g, &(spec){ .op = OP_input, .dtype = t, .name = own, .rank = rank, .dims = d });
    return graph_broadcast(g, v, rank, dims);
}

/* An operand of k x n (turned: n x k), stored in any dtype, groups of k together: some steps of elementwise work in f32. */
static val random_operand(graph *g, rng *r, int64_t k, int64_t n, bool transposed, int64_t in_group, int *n_inputs) {
    static const tn_dtype types[] = { TN_I8, TN_U8, TN_F16, TN_BF16, TN_F32 };
    int64_t grouped[] = { transposed ? n : k / in_group, transposed ? k / in_group : in_group, transposed ? in_group : n },
            flat[] = { transposed ? n : k, transposed ? k : n };
    val x = small(g, types[rng_between(r, 0, 4)], 3, grouped, 7, n_inputs);
    if (graph_get(g, x)->dtype != TN_F32) x = graph_cast(g, x, TN_F32);
    for (int i = (int)rng_between(r, 1, STEPS); i > 0; i--) {
        val other = small(g, TN_F32, 3, grouped, (int)rng_between(r, 0, 7), n_inputs);
        switch (rng_between(r, 0, 6)) {
        case 0:
            x = graph_binary(g, OP_mul, x, other);
            break;
        case 1:
            x = graph_binary(g, OP_sub, x, other);
            break;
        case 2:
            x = graph_binary(g, OP_max, x, other);
            break;
        case 3:
            x = graph_binary(g, OP_mul, graph_binary(g, OP_add, x, other), other);
            break;
        case 4:
            x = graph_cast(g, graph_cast(g, x, TN_F16), TN_F32);
            break;
        case 5:
            x = graph_select(g, graph_binary(g, OP_le, x, other), x, graph_splat_like(g, x, 0));
            break;
        default:
            x = graph_unary(g, OP_abs, x);
        }
    }
    return graph_reshape(g, x, 2, flat);
}

static graph *random_graph(arena *a, rng *r, int64_t m, int64_t k, int64_t n, int64_t in_group) {
    graph *g = graph_make(a, "prologue");
    int n_inputs = 0;
    bool transposed = rng_between(r, 0, 1);
    val x = small(g, TN_F32, 2, (int64_t[]){ m, k }, 3, &n_inputs),
        w = random_operand(g, r, k, n, transposed, in_group, &n_inputs),
        y = graph_dot(g, x, w, NULL, NULL, 0, (int64_t[]){ 1 }, (int64_t[]){ transposed }, 1);
    if (rng_between(r, 0, 1))
        y = graph_binary(g, OP_max, graph_binary(g, OP_add, y, small(g, TN_F32, 2, (int64_t[]){ m, n }, 2, &n_inputs)),
                         graph_splat_like(g, y, 0));
    graph_output(g, "y", y);
    return g;
}

ARENA_TEST(test_random_values) {
    static const int64_t sizes[][4] = { { 1, 160, 67, 32 },   { 7, 96, 131, 32 },  { 64, 64, 97, 16 },
                                        { 13, 259, 33, 259 }, { 70, 135, 48, 27 }, { 512, 65, 64, 13 } };
    for (int round = 0; round < 36; round++) {
        const int64_t *z = sizes[(size_t)round % COUNT_OF(sizes)];
        rng r = rng_make((uint64_t)round);
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        graph *g = random_graph(&own, &r, z[0], z[1], z[2], z[3]);
        target t = plan_target((uint64_t)round);
        plan_config c = { .seed = (uint64_t)round, .fusion = 3, .t = round % 2 ? t : a_target(1 + round % 3) };
        if (!plan_config_agrees(g, NULL, &c))
            fail_msg("round %d, %d x %d x %d: %s", round, (int)z[0], (int)z[1], (int)z[2], c.text);
        if (z[1] * z[2] >= 4096 && c.t.l1_bytes == 32 << 10) assert_int_equal(plan_of(&own, g, &c.t)->kernels.n, 1);
        arena_fini(&own);
    }
}

/* ---- weights of 4 bits ---- */

/* Two in a byte, one behind the other along the contraction, with a scale a group of 16: (nibble - 8) * scale. */
static graph *nibbles(arena *a, int64_t m, int64_t k, int64_t n) {
    int64_t pairs[] = { k / 2, 2, n }, groups[] = { k / 16, 16, n };
    int n_inputs = 0;
    graph *g = graph_make(a, "nibbles");
    val x = small(g, TN_F32, 2, (int64_t[]){ m, k }, 3, &n_inputs), w = small(g, TN_U8, 3, pairs, 5, &n_inputs),
        s = small(g, TN_F32, 3, groups, 5, &n_inputs), place = graph_iota(g, TN_I32, 3, pairs, 1);
    val low = graph_binary(g, OP_and, w, graph_splat_like(g, w, 15)),
        high = graph_binary(g, OP_div, w, graph_splat_like(g, w, 16));
    val q = graph_cast(g, graph_select(g, graph_binary(g, OP_eq, place, graph_splat_like(g, place, 0)), low, high), TN_F32);
    q = graph_reshape(g, graph_binary(g, OP_sub, q, graph_splat_like(g, q, 8)), 3, groups);
    q = graph_reshape(g, graph_binary(g, OP_mul, q, s), 2, (int64_t[]){ k, n });
    graph_output(g, "y", graph_dot(g, x, q, NULL, NULL, 0, (int64_t[]){ 1 }, (int64_t[]){ 0 }, 1));
    return g;
}

ARENA_TEST(test_nibbles) {
    static const int64_t sizes[][3] = { { 1, 192, 131 }, { 7, 112, 99 }, { 64, 144, 67 }, { 512, 80, 131 }, { 1500, 128, 70 } };
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        graph *g = nibbles(a, sizes[i][0], sizes[i][1], sizes[i][2]);
        plan_config c = { .seed = i, .fusion = 3, .t = a_target(1 + (int)i % 2) };
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("%d rows: %s", (int)sizes[i][0], c.text);
        plan *p = plan_of(a, g, &c.t);
        assert_int_equal(p->kernels.n, 1);
        assert_true(p->temp_bytes == 0);
    }
}

/* ---- GPUs ---- */

static target gpu_target(void) {
    target t = target_common_gpu();
    t.machine = machine_row("h200"), t.resident_threads = 132 << 10, t.l2_bytes = 50 << 20;
    return t;
}

/* A thread block computes what it copies to shared memory, also where thread blocks share the sums, which one kernel more adds
 * up; among many rows the products would wait for that longer than a kernel of its own takes. */
ARENA_TEST(test_gpu_copies_compute) {
    static const struct {
        int64_t rows, size;
        int kernels;
    } cases[] = { { 1, 512, 1 },    { 8, 512, 1 },   { 64, 512, 1 },  { 256, 512, 1 },
                  { 4096, 512, 2 }, { 64, 2048, 2 }, { 256, 2048, 3 } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        target t = gpu_target();
        plan *p = plan_of(a, make(a, cases[i].rows, cases[i].size, cases[i].size, false, true), &t);
        if (p->kernels.n != cases[i].kernels)
            fail_msg("%d x %d: %d kernels", (int)cases[i].rows, (int)cases[i].size, p->kernels.n);
    }
}

ARENA_TEST(test_gpu_values) {
    static const int64_t sizes[][3] = { { 8, 300, 260 }, { 33, 128, 130 }, { 64, 96, 64 }, { 5, 80, 81 } };
    for (int round = 0; round < 16; round++) {
        const int64_t *size = sizes[(size_t)round % COUNT_OF(sizes)];
        graph *g = make(a, size[0], size[1], size[2], round / 4 & 1, round / 8 & 1);
        plan_config c = { .seed = (uint64_t)round, .fusion = 3, .t = gpu_target() };
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("%d x %d x %d: %s", (int)size[0], (int)size[1], (int)size[2], c.text);
    }
}

/* ---- pairs of bf16 ---- */

/* x in bf16 times dequantised weights, rounded to bf16: many rows are multiplied by pairs, which come from memory; for few, or
 * where no instruction adds pairs, the weights are not stored. */
ARENA_TEST(test_pairs_come_from_memory) {
    static const int64_t sizes[][3] = { { 1, 512, 640 }, { 130, 512, 640 }, { 67, 300, 331 } };
    for (size_t i = 0; i < 2 * COUNT_OF(sizes); i++) {
        const int64_t *z = sizes[i / 2], dx[] = { z[0], z[1] }, dw[] = { z[1], z[2] }, ds[] = { 1, z[2] };
        graph *g = graph_make(a, "pairs");
        val x = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_BF16, .name = "x", .rank = 2, .dims = dx }),
            w = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_I8, .name = "w", .rank = 2, .dims = dw }),
            s = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .name = "s", .rank = 2, .dims = ds });
        w = graph_cast(g, graph_binary(g, OP_mul, graph_cast(g, w, TN_F32), graph_expand(g, s, dw)), TN_BF16);
        graph_output(g, "y", graph_dot(g, x, w, NULL, NULL, 0, (int64_t[]){ 1 }, (int64_t[]){ 0 }, 1));
        plan_config c = { .seed = i, .fusion = 3, .t = a_target(1) };
        c.t.vector_bytes = 64, c.t.n_vector_regs = 32;
        if (i % 2) c.t.packed = 2, c.t.bf16_sums = true;
        assert_int_equal(plan_of(a, g, &c.t)->kernels.n, i % 2 && z[0] > 1 ? 2 : 1);
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("%d rows: %s", (int)z[0], c.text);
    }
}

/* ---- constants ---- */

/* Dequantising constants at compile time would make them four times as large. */
ARENA_TEST(test_constants_stay_narrow) {
    int64_t dw[] = { 256, 192 }, ds[] = { 1, 192 };
    int8_t *data = arena_alloc(a, 256 * 192);
    float *scales = arena_alloc(a, 192 * 4);
    rng r = rng_make(5);
    for (int i = 0; i < 256 * 192; i++) data[i] = (int8_t)rng_between(&r, -128, 127);
    for (int i = 0; i < 192; i++) scales[i] = (float)rng_range(&r, 0.01, 0.02);
    for (int64_t m = 1; m <= 100; m += 33) {
        graph *g = graph_make(a, "constants");
        int n_inputs = 0;
        val x = small(g, TN_F32, 2, (int64_t[]){ m, 256 }, 3, &n_inputs), w = graph_const(g, TN_I8, 2, dw, data),
            s = graph_broadcast(g, graph_const(g, TN_F32, 2, ds, scales), 2, dw);
        w = graph_binary(g, OP_mul, graph_cast(g, w, TN_F32), s);
        graph_output(g, "y", graph_dot(g, x, w, NULL, NULL, 0, (int64_t[]){ 1 }, (int64_t[]){ 0 }, 1));
        plan_config c = { .seed = (uint64_t)m, .fusion = 3, .t = a_target(1) };
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("%d rows: %s", (int)m, c.text);
        plan *p = plan_of(a, g, &c.t);
        assert_int_equal(p->kernels.n, 1);
        int64_t bytes = 0;
        for (int b = 0; b < p->bufs.n; b++)
            if (p->bufs.at[b].kind == PB_CONST)
                bytes += p->bufs.at[b].elems * (int64_t)dtype_size((tn_dtype)p->bufs.at[b].dtype);
        assert_int_equal(bytes, 256 * 192 + 192 * 4);
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

/* The work done in the pack gives the bits that it gives in a kernel of its own; some inputs are not finite. */
ARENA_TEST(test_bits) {
    static const int64_t sizes[][4] = { { 512, 256, 160, 32 }, { 7, 224, 131, 32 }, { 64, 640, 97, 16 }, { 33, 259, 333, 259 },
                                        { 100, 135, 48, 27 },  { 1, 512, 200, 64 }, { 5, 2048, 515, 32 } };
    int odd = 0;
    for (int round = 0; round < (fuzz_by_c() ? 3 : 48); round++) {
        const int64_t *z = sizes[(size_t)round % COUNT_OF(sizes)];
        rng r = rng_make((uint64_t)round + 1000);
        tn_ctx *ctx = test_ctx();
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        graph *g = random_graph(&own, &r, z[0], z[1], z[2], z[3]);
        sample in = sample_make(g, &own, (uint64_t)round);
        size_t bytes = (size_t)(z[0] * z[2]) * 4;
        float *want = arena_alloc(&own, bytes), *got = arena_alloc(&own, bytes);
        if (round % 3 == 0) ((float *)in.data[0])[z[1] - 1] = round % 2 ? INFINITY : NAN;
        run(ctx, g, &in, 2, 1, want);
        for (int64_t i = 0; i < z[0] * z[2]; i++) odd += !isfinite(want[i]);
        for (int threads = 1; threads < 3; threads++) {
            run(ctx, g, &in, 3, threads, got);
            for (int64_t i = 0; i < z[0] * z[2]; i++)
                if (!(isnan(want[i]) && isnan(got[i])) && memcmp(&want[i], &got[i], sizeof *got))
                    fail_msg("round %d, %d threads: element %d is %a, at level 2 %a", round, threads, (int)i, got[i], want[i]);
        }
        tn_ctx_free(ctx);
        arena_fini(&own);
    }
    assert_true(odd > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_one_kernel),
                                        cmocka_unit_test(test_not_by_blocks),
                                        cmocka_unit_test(test_batches),
                                        cmocka_unit_test(test_values),
                                        cmocka_unit_test(test_random_values),
                                        cmocka_unit_test(test_bits),
                                        cmocka_unit_test(test_nibbles),
                                        cmocka_unit_test(test_constants_stay_narrow),
                                        cmocka_unit_test(test_gpu_copies_compute),
                                        cmocka_unit_test(test_gpu_values),
                                        cmocka_unit_test(test_pairs_come_from_memory) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
