/* test_sort.c - sort, argsort, top-k and take-along against qsort, exactly: every dtype, axes in all places, sizes around
 * powers of two, so many that more is exchanged at once, sizes that a run gives, ties, NaNs, infinities, -0, zero sizes; the
 * gradient of a sort; refused calls. Labels: devices long */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ir/dtype.h"
#include "support/support.h"
#include "tenon/tenon.h"

#include <math.h>

static const tn_dtype dtypes[] = { TN_F32, TN_F64, TN_F16, TN_BF16, TN_I8, TN_U8, TN_I32, TN_I64, TN_BOOL };

typedef struct entry {
    double value;  /* of floats and narrow integers */
    int64_t whole; /* of integers */
    int64_t at;
    bool descending;
} entry;

static int by_value(const entry *a, const entry *b) {
    if (isnan(a->value) || isnan(b->value)) return isnan(a->value) - isnan(b->value);
    if (a->whole != b->whole) return a->whole < b->whole ? -1 : 1;
    return (a->value > b->value) - (a->value < b->value);
}
static int before(const void *x, const void *y) {
    const entry *a = x, *b = y;
    int c = by_value(a, b);
    return c ? (a->descending ? -c : c) : (a->at > b->at) - (a->at < b->at);
}

/* -0 before 0, as values alone are sorted. */
static int before_by_sign(const void *x, const void *y) {
    const entry *a = x, *b = y;
    int c = by_value(a, b);
    if (!c && !isnan(a->value)) c = (signbit(b->value) != 0) - (signbit(a->value) != 0);
    return a->descending ? -c : c;
}

static entry load(tn_dtype t, const void *data, int64_t i) {
    entry e = { 0 };
    if (dtype_is_float(t))
        e.value = dtype_load(t, data, i);
    else
        e.whole = dtype_load_int(t, data, i);
    return e;
}

/* Few values, so that many are equal; now and then what is special about floats, and the ends of integers. */
static void fill(rng *r, tn_dtype t, void *data, int64_t n) {
    static const double special[] = { NAN, -NAN, INFINITY, -INFINITY, -0.0, 0.0 };
    bool few = rng_chance(r, 0.3);
    for (int64_t i = 0; i < n; i++) {
        if (dtype_is_float(t))
            dtype_store(t, data, i,
                        rng_chance(r, 0.1) ? special[rng_below(r, 6)]
                        : few              ? (double)rng_between(r, -3, 3)
                                           : rng_range(r, -4, 4));
        else if (t == TN_BOOL)
            ((uint8_t *)data)[i] = (uint8_t)rng_below(r, 2);
        else if (few)
            dtype_store_int(t, data, i, rng_between(r, 0, 5));
        else
            dtype_store_int(t, data, i, (int64_t)rng_next(r));
    }
}

typedef struct problem { /* x t[outer, n, inner], sorted along n, and its first k */
    tn_dtype t;
    bool descending;
    int64_t size[3], k;
} problem;

static void check_run(rng *r, tn_ctx *ctx, tn_session *s, const problem *c) {
    int64_t outer = c->size[0], n = c->size[1], inner = c->size[2], k = c->k, total = outer * n * inner;
    size_t size = tn_dtype_size(c->t);
    char *data = calloc((size_t)total + 1, size), *y = calloc((size_t)total + 1, size),
         *best = calloc((size_t)(outer * k * inner) + 1, size);
    int64_t *order = calloc((size_t)total + 1, 8), *where = calloc((size_t)(outer * k * inner) + 1, 8);
    entry *want = calloc((size_t)n + 1, sizeof *want), *values = calloc((size_t)n + 1, sizeof *values);
    fill(r, c->t, data, total);
    if (tn_run(s, TN_BIND({ "x", data }, { "y", y }, { "order", order }, { "best", best }, { "where", where })))
        fail_msg("%s", tn_ctx_error(ctx));
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            for (int64_t j = 0; j < n; j++) {
                want[j] = load(c->t, data, (o * n + j) * inner + i);
                want[j].at = j, want[j].descending = c->descending;
            }
            memcpy(values, want, (size_t)n * sizeof *want);
            qsort(want, (size_t)n, sizeof *want, before);
            qsort(values, (size_t)n, sizeof *values, before_by_sign);
            for (int64_t j = 0; j < n; j++) {
                int64_t at = (o * n + j) * inner + i, from = (o * n + want[j].at) * inner + i;
                entry value = load(c->t, y, at);
                bool same = isnan(values[j].value) ? isnan(value.value)
                                                   : !memcmp(y + (size_t)at * size,
                                                             data + (size_t)((o * n + values[j].at) * inner + i) * size, size);
                if (order[at] != want[j].at || !same)
                    fail_msg("%s[%d,%d,%d] %s: place %d has entry %d, not %d, and %.9g, not %.9g", tn_dtype_name(c->t),
                             (int)outer, (int)n, (int)inner, c->descending ? "descending" : "ascending", (int)at,
                             (int)order[at], (int)want[j].at, value.value + (double)value.whole,
                             values[j].value + (double)values[j].whole);
                if (j >= k) continue;
                at = (o * k + j) * inner + i;
                if (where[at] != want[j].at || memcmp(best + (size_t)at * size, data + (size_t)from * size, size))
                    fail_msg("top %d of %s[%d,%d,%d]: place %d has entry %d, not %d", (int)k, tn_dtype_name(c->t), (int)outer,
                             (int)n, (int)inner, (int)at, (int)where[at], (int)want[j].at);
            }
        }
    free(data), free(y), free(best), free(order), free(where), free(want), free(values);
}

static tn_session *compiled(tn_ctx *ctx, tn_graph *g, const problem *c, const int64_t size[3], int64_t k, tn_mode mode,
                            tn_program **p) {
    tn_session *s;
    tn_tensor x = tn_input(g, "x", c->t, TN_DIMS(size[0], size[1], size[2])), index;
    tn_output(tn_sort(x, -2, c->descending), "y");
    tn_output(tn_argsort(x, 1, c->descending), "order");
    tn_output(tn_top_k(x, k, 1, c->descending, &index), "best");
    tn_output(index, "where");
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    opts.mode = mode, opts.device = test_device(), opts.check = 1;
    if (tn_compile(g, &opts, p) || tn_session_new(*p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    return s;
}

static void check_case(rng *r, tn_ctx *ctx, tn_dtype t, int64_t outer, int64_t n, int64_t inner, bool descending) {
    tn_graph *g = tn_graph_new(ctx, "sort");
    problem c = { t, descending, { outer, n, inner }, 0 };
    c.k = n ? rng_between(r, 0, rng_chance(r, 0.5) ? n : n / 40 + 1) : 0;
    tn_program *p;
    tn_session *s = compiled(ctx, g, &c, c.size, c.k, rng_chance(r, 0.5) ? TN_MODE_COMPILED : TN_MODE_GRAPH, &p);
    check_run(r, ctx, s, &c);
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
}

/* One program for all sizes up to `most`, from `least` on: some axes have one size. */
static void check_range(rng *r, tn_ctx *ctx, tn_dtype t, const int64_t least[3], const int64_t most[3], bool descending) {
    static const char *const names[] = { "outer", "n", "inner" };
    static const tn_mode modes[] = { TN_MODE_COMPILED, TN_MODE_GRAPH, TN_MODE_IMMEDIATE };
    tn_graph *g = tn_graph_new(ctx, "sort");
    problem c = { .t = t, .descending = descending };
    int64_t size[3], k = least[1] ? rng_between(r, 0, least[1]) : 3;
    for (int i = 0; i < 3; i++) size[i] = least[i] == most[i] ? most[i] : tn_dim(g, names[i], least[i], most[i], 1);
    bool some = !least[1]; /* of what there is */
    tn_program *p;
    tn_session *s = compiled(ctx, g, &c, size, some ? tn_dim_min(g, size[1], k) : k, modes[rng_below(r, 3)], &p);
    for (int run = 0; run < 6; run++) {
        for (int i = 0; i < 3; i++) {
            c.size[i] = run == 0 ? least[i] : run == 1 ? most[i] : rng_between(r, least[i], most[i]);
            if (least[i] < most[i] && tn_bind_dim(s, names[i], c.size[i])) fail_msg("%s", tn_ctx_error(ctx));
        }
        c.k = k < c.size[1] ? k : c.size[1];
        check_run(r, ctx, s, &c);
    }
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
}

static void sorted_as_by_qsort(void **state) {
    (void)state;
    static const int64_t shapes[][3] = { { 1, 1, 1 },  { 1, 2, 1 },      { 1, 33, 1 },   { 1, 256, 1 }, { 1, 1000, 1 },
                                         { 3, 17, 1 }, { 40, 9, 1 },     { 2, 65, 3 },   { 1, 20, 16 }, { 2, 7, 33 },
                                         { 0, 5, 1 },  { 2, 0, 3 },      { 1, 5000, 1 }, { 3, 700, 2 }, { 1, 600, 300 },
                                         { 1, 32, 1 }, { 1, 140000, 1 }, { 5, 30000, 1 } };
    rng r = rng_make(7);
    tn_ctx *ctx = test_ctx();
    bool all = !fuzz_by_c() && test_device_is_cpu(); /* compilers take a second for each */
    int n = all ? (int)(sizeof dtypes / sizeof *dtypes) : 1, cases = 0;
    for (int t = 0; t < n; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            bool many = shapes[i][0] * shapes[i][1] * shapes[i][2] > 100000;
            if ((t > 1 && shapes[i][1] > 1000) || (many && (t || !all))) continue;
            if (!all && i % 4 && shapes[i][1] < 5000) continue;
            if (!test_device_is_cpu() && shapes[i][1] > 100) continue;
            check_case(&r, ctx, dtypes[t], shapes[i][0], shapes[i][1], shapes[i][2], rng_chance(&r, 0.5));
            cases++;
        }
    printf("count: %d sorts as qsort\n", cases);
    tn_ctx_free(ctx);
}

/* Sizes that a run gives, of any axes. */
static void sizes_of_a_run(void **state) {
    (void)state;
    static const int64_t ranges[][2][3] = { { { 1, 20, 1 }, { 8, 20, 1 } },   { { 0, 33, 1 }, { 40, 33, 1 } },
                                            { { 2, 0, 1 }, { 2, 50, 1 } },    { { 1, 1, 1 }, { 1, 300, 1 } },
                                            { { 3, 9, 0 }, { 3, 9, 20 } },    { { 1, 2, 1 }, { 5, 70, 6 } },
                                            { { 1, 700, 1 }, { 4, 700, 1 } }, { { 2, 60, 1 }, { 2, 900, 3 } } };
    rng r = rng_make(17);
    tn_ctx *ctx = test_ctx();
    bool all = !fuzz_by_c() && test_device_is_cpu();
    int n = all ? (int)(sizeof dtypes / sizeof *dtypes) : 1, cases = 0;
    for (int t = 0; t < n; t++)
        for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
            if ((t > 1 || !all) && ranges[i][1][1] > (all ? 100 : 40)) continue; /* PoCL takes seconds for each */
            for (int d = 0; d < 1 + all; d++, cases++) check_range(&r, ctx, dtypes[t], ranges[i][0], ranges[i][1], i % 2 == d);
        }
    printf("count: %d programs for ranges of sizes\n", cases);
    tn_ctx_free(ctx);
}

/* d/dx of sum(sort(x) * w) is w, taken back to where the values came from. */
static void gradient_goes_back(void **state) {
    (void)state;
    enum { N = 37 };
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "grad");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(N)), w = tn_input(g, "w", TN_F32, TN_DIMS(N)), dx;
    tn_tensor loss = tn_sum(tn_mul(tn_sort(x, 0, 1), w), TN_ALL_AXES, 0);
    assert_int_equal(tn_grad(loss, &x, 1, &dx), TN_OK);
    tn_output(dx, "dx");
    tn_output(tn_argsort(x, 0, 1), "order");
    tn_program *p;
    tn_session *s;
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    opts.device = test_device();
    if (tn_compile(g, &opts, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    float xs[N], ws[N], got[N];
    int64_t order[N];
    rng r = rng_make(3);
    for (int i = 0; i < N; i++) xs[i] = (float)rng_range(&r, -1, 1), ws[i] = (float)i;
    assert_int_equal(tn_run(s, TN_BIND({ "x", xs }, { "w", ws }, { "dx", got }, { "order", order })), TN_OK);
    for (int i = 0; i < N; i++) assert_float_equal(got[order[i]], ws[i], 0);
    tn_session_free(s), tn_program_free(p), tn_graph_free(g), tn_ctx_free(ctx);
}

static void refused(void (*build)(tn_graph *g, tn_tensor x), const char *text) {
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "bad");
    build(g, tn_input(g, "x", TN_F32, TN_DIMS(2, 5)));
    assert_int_not_equal(tn_graph_status(g), TN_OK);
    if (!strstr(tn_ctx_error(ctx), text)) fail_msg("\"%s\" does not say \"%s\"", tn_ctx_error(ctx), text);
    tn_graph_free(g), tn_ctx_free(ctx);
}
static void bad_axis(tn_graph *g, tn_tensor x) { (void)g, tn_sort(x, 2, 0); }
static void bad_k(tn_graph *g, tn_tensor x) { (void)g, tn_top_k(x, 6, 1, 1, NULL); }
static void bad_negative(tn_graph *g, tn_tensor x) { (void)g, tn_top_k(x, -1, 1, 1, NULL); }
static void bad_index(tn_graph *g, tn_tensor x) { (void)g, tn_take_along(x, x, 1); }
static void bad_shape(tn_graph *g, tn_tensor x) { tn_take_along(x, tn_input(g, "i", TN_I32, TN_DIMS(3, 5)), 1); }

static void mistakes_are_named(void **state) {
    (void)state;
    refused(bad_axis, "tn_sort(x f32[2,5]): axis 2 is out of range for rank 2");
    refused(bad_k, "tn_top_k(x f32[2,5]): 6 of the 5 along axis 1");
    refused(bad_negative, "tn_top_k(x f32[2,5]): k is -1");
    refused(bad_index, "indices are f32, must be i32 or i64");
    refused(bad_shape, "tn_take_along(x f32[2,5], i i32[3,5]): shapes differ outside of axis 1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sorted_as_by_qsort),
        cmocka_unit_test(sizes_of_a_run),
        cmocka_unit_test(gradient_goes_back),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
