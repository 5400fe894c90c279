/* test_rows.c - softmax, layer norm and log-softmax along rows, of lengths that are worked on one by one and several at once,
 * with tails in both directions and rows that hold infinities and NaNs: against double precision, and the same bits in one,
 * two and three threads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "loop/schedule.h"
#include "support/plan_run.h"
#include "tenon/tenon_nn.h"

typedef enum work { SOFTMAX, LOG_SOFTMAX, NORM, N_WORKS } work;

/* One row in double precision; *out_bound is the error that n roundings allow. */
static void want_row(work w, const float *x, int64_t n, double *y, double *out_bound) {
    double top = -INFINITY, sum = 0, mean = 0, var = 0, eps = 0x1p-24;
    for (int64_t i = 0; i < n; i++) top = x[i] > top || isnan(x[i]) ? x[i] : top, mean += (double)x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top), var += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)n;
    for (int64_t i = 0; i < n; i++)
        y[i] = w == SOFTMAX       ? exp((double)x[i] - top) / sum
               : w == LOG_SOFTMAX ? (double)x[i] - top - log(sum)
                                  : ((double)x[i] - mean) / sqrt(var + 1e-5);
    *out_bound = w == NORM ? eps * ((double)n + 16) * 4 * (8 / sqrt(var + 1e-5) + 1) : eps * ((double)n + 40) * 8;
}

static tn_tensor softmax_of(work what, tn_tensor in) {
    return what == SOFTMAX ? tn_nn_softmax(in, -1) : tn_nn_log_softmax(in, -1);
}

/* The same by a program for a range of sizes, whose rows are worked on several at once. */
static void run_sized(tn_ctx *ctx, work what, int64_t rows, int64_t cols, float *x, float *y) {
    tn_graph *g = tn_graph_new(ctx, "rows");
    tn_tensor in = tn_input(g, "x", TN_F32, TN_DIMS(tn_dim(g, "rows", 1, 130, 1), tn_dim(g, "cols", 1, 513, 1)));
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *s;
    char *schedule;
    tn_output(softmax_of(what, in), "y");
    o.threads = 1 + (int)(rows % 3), o.check = 1;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    if (!fuzz_by_c() && !tn_program_text(p, "schedule", &schedule)) {
        assert_int_equal(strstr(schedule, "unroll_jam i0 ") != NULL, o.threads == 1); /* threads share whole tiles */
        tn_string_free(ctx, schedule);
    }
    if (tn_bind_dim(s, "rows", rows) || tn_bind_dim(s, "cols", cols) || tn_run(s, TN_BIND({ "x", x }, { "y", y })))
        fail_msg("%s", tn_session_error(s));
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
}

static void check(tn_ctx *ctx, work what, int64_t rows, int64_t cols, bool special) {
    size_t bytes = sizeof(float) * (size_t)(rows * cols);
    rng r = rng_make((uint64_t)(rows * 1009 + cols * 3 + what));
    float *x = malloc(bytes + 1), *y[4]; /* of one, two, three threads, and of a range of sizes */
    double *want = malloc(sizeof *want * (size_t)cols), bound;
    fill_random(&r, TN_F32, x, rows * cols, -4, 4);
    if (special) x[(rows - 1) * cols] = NAN, x[cols / 2] = -INFINITY;
    tn_graph *g = tn_graph_new(ctx, "rows");
    tn_tensor in = tn_input(g, "x", TN_F32, TN_DIMS(rows, cols));
    tn_output(what == NORM ? tn_nn_layer_norm(in, 0, "norm") : softmax_of(what, in), "y");
    for (int t = 0; t < 3; t++) {
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        tn_program *p;
        tn_session *s;
        o.threads = 1 + t, o.check = 1;
        y[t] = malloc(bytes + 1);
        memset(y[t], 0xee, bytes);
        if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
        assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "y", y[t] })), TN_OK);
        tn_session_free(s), tn_program_free(p);
        if (memcmp(y[0], y[t], bytes) != 0) fail_msg("%dx%d: one thread and %d differ", (int)rows, (int)cols, 1 + t);
    }
    y[3] = malloc(bytes + 1);
    if (what != NORM) run_sized(ctx, what, rows, cols, x, y[3]);
    for (int64_t i = 0; i < rows * (what == NORM ? 1 : 2); i++) {
        const float *have = i < rows ? y[0] + i * cols : y[3] + (i - rows) * cols;
        want_row(what, x + i % rows * cols, cols, want, &bound);
        for (int64_t j = 0; j < cols; j++) {
            double got = (double)have[j];
            if (isnan(want[j]) ? !isnan(got) : !(fabs(got - want[j]) <= bound) && got != want[j])
                fail_msg("work %d, %dx%d: y[%d,%d] = %g, want %g", (int)what, (int)rows, (int)cols, (int)i, (int)j, got,
                         want[j]);
        }
    }
    tn_graph_free(g);
    for (int t = 0; t < 4; t++) free(y[t]);
    free(x), free(want);
}

static void test_rows(void **state) {
    (void)state;
    static const int64_t rows[] = { 1, 7, 8, 9, 35, 130 }, cols[] = { 1, 3, 8, 17, 100, 256, 511, 513 };
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    int n = 0;
    size_t by = fuzz_by_c() ? 3 : 1; /* a third of the pairs, in which each number is */
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (size_t j = i % by; j < COUNT_OF(cols); j += by)
            for (int w = 0; w < N_WORKS; w++, n++) check(ctx, (work)w, rows[i], cols[j], (i + j) % 2 == 1 && rows[i] > 1);
    tn_ctx_free(ctx);
    printf("count: %d matrices\n", n);
}

/* A row loop over several loops, in a machine whose first cache holds little: the next row is fetched, also by what reads back
 * from the kernel's text. */
static void test_prefetch(void **state) {
    (void)state;
    static const char text[] = "graph @norm(x f32[37,270], y bf16[37,270]) {\n  %1 = cast y f32[37,270]\n  %2 = mul x, %1\n"
                               "  %3 = sum %2 axes=[1] f32[37,1]\n  %4 = expand %3 f32[37,270]\n  %5 = sub x, %4\n"
                               "  %6 = exp %5\n  %7 = sum %6 axes=[1] f32[37,1]\n  %8 = expand %7 f32[37,270]\n"
                               "  %9 = div %6, %8\n  return %9 as \"z\"\n}\n";
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    graph *g = graph_parse(&a, text, sizeof text - 1, "test");
    reference r = reference_make(g, &a, 5);
    for (uint64_t seed = 0; seed < 8; seed++) {
        char why_not[512];
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = plan_target(seed);
        int n = 0;
        bool stays = seed % 4 == 3; /* in the first cache: nothing is fetched */
        t.l1_bytes = stays ? 1 << 20 : 1 << 10, o.fusion = 3, o.check = 1;
        plan *p = pipeline_run(g, &a, &o, &t);
        assert_int_equal(p->kernels.n, 1);
        for (int i = 1; i < p->kernels.at[0].k->ins.n; i++) n += p->kernels.at[0].k->ins.at[i].op == K_PREFETCH;
        assert_true(stays ? n == 0 : n >= 2);
        if (!plan_agrees(p, &r, &a, why_not, sizeof why_not) || !plan_texts_agree(p, &a, why_not, sizeof why_not))
            fail_msg("seed %d: %s", (int)seed, why_not);
    }
    arena_fini(&a);
}

/* Whether sums of products are multiply-adds, whatever the tile, and what they give. */
static void check_contraction(const char *text, bool contracts) {
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    graph *g = graph_parse(&a, text, strlen(text), "test");
    reference r = reference_make(g, &a, 7);
    for (uint64_t seed = 0; seed < 16; seed++) {
        char why_not[512];
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = plan_target(seed);
        int n = 0;
        o.fusion = 3, o.check = 1;
        plan *p = pipeline_run(g, &a, &o, &t);
        for (int k = 0; k < p->kernels.n; k++) {
            const kernel *x = p->kernels.at[k].k;
            for (int i = 1; i < x->ins.n; i++) {
                const kins *in = &x->ins.at[i], *of = &x->ins.at[in->a];
                n += in->op == K_UPD && in->alu == OP_dot;
                if (contracts) assert_false(in->op == K_UPD && in->alu == OP_add && of->op == K_ALU && of->alu == OP_mul);
            }
        }
        if (contracts != (n > 0)) fail_msg("seed %d: %d multiply-adds in\n%s", (int)seed, n, text);
        if (!plan_agrees(p, &r, &a, why_not, sizeof why_not) || !plan_texts_agree(p, &a, why_not, sizeof why_not))
            fail_msg("seed %d: %s\n%s", (int)seed, why_not, text);
    }
    arena_fini(&a);
}

static void test_contract(void **state) {
    (void)state;
    check_contraction("graph @g(x f32[37,53]) {\n  %1 = mul x, x\n  %2 = sum %1 axes=[1] f32[37,1]\n  return %2 as \"y\"\n}\n",
                      true);
    check_contraction("graph @g(x f32[37,53], c f32[37,53]) {\n  %1 = sub x, c\n  %2 = mul %1, %1\n"
                      "  %3 = sum %2 axes=[0] f32[1,53]\n  return %3 as \"y\"\n}\n",
                      true); /* of columns */
    check_contraction("graph @g(x f64[9,21]) {\n  %1 = mul x, 3.0\n  %2 = sum %1 axes=[1] f64[9,1]\n  return %2 as \"y\"\n}\n",
                      true);
    check_contraction("graph @g(x i32[9,21]) {\n  %1 = mul x, x\n  %2 = sum %1 axes=[1] i32[9,1]\n  return %2 as \"y\"\n}\n",
                      false);
}

/* Running sums in blocks of 16, as masks make them: their lanes lie along the results, not along the terms, which would have to
 * be combined for each result. */
static void test_short_sums(void **state) {
    (void)state;
    static const char text[] = "graph @g(x f32[261,16], b f32[261]) {\n  %1 = reshape x f32[261,1,16]\n"
                               "  %2 = expand %1 f32[261,16,16]\n  %3 = iota axis=1 i32[261,16,16]\n"
                               "  %4 = iota axis=2 i32[261,16,16]\n  %5 = le %4, %3\n  %6 = const 0.0 f32[261,16,16]\n"
                               "  %7 = select %5, %2, %6\n  %8 = sum %7 axes=[2] f32[261,16,1]\n"
                               "  %9 = reshape b f32[261,1,1]\n  %10 = expand %9 f32[261,16,1]\n  %11 = add %8, %10\n"
                               "  return %11 as \"y\"\n}\n";
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    graph *g = graph_parse(&a, text, sizeof text - 1, "test");
    reference r = reference_make(g, &a, 11);
    for (uint64_t seed = 0; seed < 8; seed++) {
        char why_not[512];
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = plan_target(seed);
        t.vector_bytes = 64, o.fusion = 3, o.check = 1;
        plan *p = pipeline_run(g, &a, &o, &t);
        assert_int_equal(p->kernels.n, 1);
        for (int i = 1; i < p->kernels.at[0].k->ins.n; i++)
            assert_int_not_equal(p->kernels.at[0].k->ins.at[i].op, K_LANE_REDUCE);
        if (!plan_agrees(p, &r, &a, why_not, sizeof why_not) || !plan_texts_agree(p, &a, why_not, sizeof why_not))
            fail_msg("seed %d: %s", (int)seed, why_not);
    }
    arena_fini(&a);
}

/* Rows of 16-bit numbers that registers of one thread block would hold lie in shared memory of a GPU that has room for two of
 * them, whether threads come out or not. */
static void test_shared_rows(void **state) {
    (void)state;
    static const int64_t lengths[] = { 16392, 20000, 50304 };
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        char why_not[512];
        int64_t n = lengths[i];
        const char *text = arena_printf(&a,
                                        "graph @loss(a bf16[3,%lld]) {\n  %%1 = neg a\n  %%2 = cast %%1 f32[3,%lld]\n"
                                        "  %%3 = reduce_max %%2 axes=[1] f32[3,1]\n  %%4 = expand %%3 f32[3,%lld]\n"
                                        "  %%5 = sub %%2, %%4\n  %%6 = exp %%5\n  %%7 = sum %%6 axes=[1] f32[3,1]\n"
                                        "  %%8 = expand %%7 f32[3,%lld]\n  %%9 = div %%6, %%8\n  %%10 = cast %%9 bf16[3,%lld]\n"
                                        "  return %%10 as \"y\"\n}\n",
                                        (long long)n, (long long)n, (long long)n, (long long)n, (long long)n);
        graph *g = graph_parse(&a, text, strlen(text), "test");
        reference r = reference_make(g, &a, 3);
        for (int large = 0; large < 2; large++) {
            tn_compile_opts o = TN_COMPILE_DEFAULTS;
            target t = target_common_gpu();
            t.machine = machine_row("h200"), t.shared_most = large ? 227 << 10 : 48 << 10, o.fusion = 3, o.check = 1;
            plan *p = pipeline_run(g, &a, &o, &t);
            bool shared = false;
            for (int k = 0; k < p->schedules.n; k++) {
                str s;
                str_init(&s, &a);
                if (p->schedules.at[k].s) schedule_print(p->schedules.at[k].s, &s);
                shared |= s.n && strstr(s.s, " shared") != NULL;
            }
            if (shared != (large == 1)) fail_msg("rows of %d: in shared memory %d, want %d", (int)n, shared, large);
            if (!plan_agrees(p, &r, &a, why_not, sizeof why_not) || !plan_texts_agree(p, &a, why_not, sizeof why_not))
                fail_msg("rows of %d: %s", (int)n, why_not);
        }
    }
    arena_fini(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows), cmocka_unit_test(test_prefetch),
                                        cmocka_unit_test(test_contract), cmocka_unit_test(test_short_sums),
                                        cmocka_unit_test(test_shared_rows) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
