/* test_x86_bits.c - machine code gives the same bits as the C text compiled by gcc: every elementwise op on every dtype, casts,
 * reductions, and random graphs. NaN agrees with NaN of any payload.
 *
 * Labels: slow random
 * The C compiler runs once a graph, so this takes a fortieth of TENON_FUZZ_SEEDS (default 600) random graphs,
 * and a quarter of those again as code for SSE2. Every op is in the graphs that are not random, of which a short campaign does
 * a quarter in turns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <math.h>

#include "api/api.h"
#include "drive/drive.h"
#include "support/support.h"

typedef struct world {
    tn_ctx *c, *x86;
} world;

static int n_fallbacks;
static void count_fallbacks(void *ud, tn_log_level level, const char *text) {
    (void)ud, (void)level;
    n_fallbacks += strstr(text, "no machine code") != NULL;
}

static world world_open(bool sse2) {
    tn_config c = { .struct_size = sizeof c, .cpu = sse2 ? "c-sse2" : "c" },
              x = { .struct_size = sizeof x, .cpu = sse2 ? "sse2" : "x86", .log = count_fallbacks };
    return (world){ tn_ctx_new(&c), tn_ctx_new(&x) };
}
static void world_close(world *w) {
    tn_ctx_free(w->c);
    tn_ctx_free(w->x86);
}

/* Whether contexts with "x86" make machine code here, and the C compiler is gcc. */
static bool comparable(world *w) {
    tn_device_info info;
    if (tn_device_get_info(w->x86, 0, &info) ||
        (strcmp(info.isa, "avx2") && strncmp(info.isa, "avx512", 6) && strcmp(info.isa, "sse2")))
        return false;
    return system("cc --version 2>&1 | grep -q 'Free Software Foundation'") == 0;
}

/* Outputs of g on the inputs of `in`, in the order of p->io. */
static unsigned char *outputs_of(tn_ctx *ctx, const graph *g, arena *a, const tn_compile_opts *o, const sample *in,
                                 const tn_program **out_p) {
    tn_program *p = NULL;
    tn_session *s = NULL;
    size_t at = 0, bytes = 0;
    if (drive_compile(ctx, g, o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 0; i < p->n_io; i++)
        if (p->io[i].is_output) bytes += (size_t)p->io[i].bytes;
    unsigned char *all = arena_alloc(a, bytes + 1);
    memset(all, 0xee, bytes + 1);
    for (int i = 0; i < p->n_io; i++) {
        void *where = all + at;
        for (int k = 0; k < g->inputs.n && !p->io[i].is_output; k++)
            if (!strcmp(graph_get(g, g->inputs.at[k])->name, p->io[i].name)) where = in->data[k];
        if (p->io[i].is_output) at += (size_t)p->io[i].bytes;
        if (tn_session_bind(s, i, where)) fail_msg("%s", tn_ctx_error(ctx));
    }
    if (tn_session_run(s)) fail_msg("%s", tn_ctx_error(ctx));
    tn_session_free(s);
    *out_p = p;
    return all;
}

static bool same_value(tn_dtype t, const unsigned char *x, const unsigned char *y, int64_t i) {
    size_t size = dtype_size(t);
    if (!memcmp(x + (size_t)i * size, y + (size_t)i * size, size)) return true;
    return dtype_is_float(t) && isnan(dtype_load(t, x, i)) && isnan(dtype_load(t, y, i));
}

typedef struct job {
    world *w;
    uint64_t seed;
    int fusion;
    char text[512];
} job;

static bool agrees(graph *g, void *ud) {
    job *j = ud;
    arena a;
    guard gd;
    bool ok = true;
    const tn_program *p = NULL, *q = NULL;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    sample in = sample_make(g, &a, j->seed);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = j->fusion, o.threads = 1;
    unsigned char *x = outputs_of(j->w->c, g, &a, &o, &in, &p), *y = outputs_of(j->w->x86, g, &a, &o, &in, &q);
    for (int i = 0; i < p->n_io && ok; i++) {
        if (!p->io[i].is_output) continue;
        tn_dtype t = (tn_dtype)p->io[i].dtype;
        int64_t n = p->io[i].bytes / (int64_t)dtype_size(t);
        for (int64_t k = 0; k < n && ok; k++)
            if (!(ok = same_value(t, x, y, k)))
                snprintf(j->text, sizeof j->text, "seed %llu, fusion %d: %s[%lld] of %lld: C %.17g, machine code %.17g",
                         (unsigned long long)j->seed, j->fusion, p->io[i].name, (long long)k, (long long)n, dtype_load(t, x, k),
                         dtype_load(t, y, k));
        x += p->io[i].bytes, y += p->io[i].bytes;
    }
    tn_program_free((tn_program *)(uintptr_t)p);
    tn_program_free((tn_program *)(uintptr_t)q);
    arena_fini(&a);
    return ok;
}
static bool differs(graph *g, void *ud) { return !agrees(g, ud); }

static bool check(world *w, graph *g, arena *a, uint64_t seed, int fusion) {
    job j = { .w = w, .seed = seed, .fusion = fusion };
    if (agrees(g, &j)) return true;
    fprintf(stderr, "%s\n", j.text);
    if (!getenv("TENON_FUZZ_NO_REDUCE")) reduce_and_print(g, a, differs, &j);
    fprintf(stderr, "  after reduction: %s\n", j.text);
    return false;
}

/* All elementwise ops that take dtype t, of odd lengths, vectors and tails, with NaN, infinities and zeros among the values. */
static graph *every_op(arena *a, tn_dtype t, int64_t n) {
    graph *g = graph_make(a, "ops");
    bool is_float = dtype_is_float(t);
    double special[] = {
        0.0, -0.0, 1, -1, 0.5, -0.5, 2.5, -2.5, 1e-3, 88.8, -103.5, 1e10, -1e10, 3.5, NAN, INFINITY, -INFINITY
    };
    val x[3];
    for (int i = 0; i < 3; i++) {
        val in = graph_add(g, &(spec){ .op = OP_input, .dtype = t, .name = arena_printf(a, "x%d", i), .rank = 1, .dims = &n });
        unsigned char *data = arena_alloc(a, (size_t)n * 8);
        rng r = rng_make((uint64_t)n * 31 + (uint64_t)i);
        for (int64_t k = 0; k < n; k++)
            is_float
                ? dtype_store(t, data, k,
                              rng_chance(&r, 0.5) ? special[rng_below(&r, (int64_t)COUNT_OF(special))] : rng_range(&r, -4, 4))
                : dtype_store_int(t, data, k, t == TN_BOOL ? rng_below(&r, 2) : rng_between(&r, -9, 9));
        val c = graph_add(g, &(spec){ .op = OP_const, .dtype = t, .rank = 1, .dims = &n, .data = data });
        x[i] = t == TN_BOOL ? graph_binary(g, OP_xor, in, c)
               : !dtype_info(t)->arithmetic
                   ? graph_select(g, graph_binary(g, OP_lt, graph_cast(g, in, TN_F32), graph_cast(g, c, TN_F32)), in, c)
               : i == 0 ? graph_binary(g, OP_add, in, c)
                        : graph_binary(g, OP_mul, in, c);
    }
    for (int op = 1; op < N_OPS; op++) {
        const op_info *info = op_get((op_code)op);
        if (!op_is_elementwise((op_code)op)) continue;
        bool fits =
            info->cls == CL_ANY || (info->cls == CL_FLT                          ? is_float
                                    : info->cls == CL_NUM || info->cls == CL_CMP ? t != TN_BOOL || (op == OP_eq || op == OP_ne)
                                    : info->cls == CL_BIT                        ? !is_float
                                    : info->cls == CL_INT                        ? !is_float && t != TN_BOOL
                                                                                 : info->cls == CL_LOG && t == TN_BOOL);
        fits = fits && (dtype_info(t)->arithmetic || info->cls == CL_ANY);
        if (!fits || (t == TN_BOOL && info->cls == CL_CMP)) continue;
        val v =
            op == OP_select
                ? graph_select(
                      g, t == TN_BOOL ? x[0] : graph_binary(g, OP_lt, graph_cast(g, x[0], TN_F64), graph_cast(g, x[1], TN_F64)),
                      x[1], x[2])
            : info->arity == 1 ? graph_unary(g, (op_code)op, x[0])
                               : graph_binary(g, (op_code)op, x[0], x[1]);
        graph_output(g, arena_printf(a, "y_%s", info->name), v);
    }
    for (int to = 0; to < TN_N_DTYPES; to++)
        graph_output(g, arena_printf(a, "to_%s", dtype_name((tn_dtype)to)), graph_cast(g, x[0], (tn_dtype)to));
    graph_compact(g);
    return g;
}

/* The numbers of constant c, but no constant: no absolute value is below -1. */
static val not_folded(graph *g, val in, val c) {
    val size = graph_unary(g, OP_abs, in);
    return graph_select(g, graph_binary(g, OP_lt, size, graph_splat_like(g, size, -1)), in, c);
}

/* The f32 functions over 65536 bit patterns of all exponents; pairs with the patterns in another order. */
static graph *every_pattern(arena *a) {
    graph *g = graph_make(a, "patterns");
    int64_t n = 1 << 16;
    val x[2];
    for (int i = 0; i < 2; i++) {
        uint32_t *bits = ARENA_ARRAY(a, uint32_t, n);
        for (int64_t k = 0; k < n; k++) bits[k] = (uint32_t)(k * (i ? 40503 : 1) % n) * 65537u + (i ? 77 : 0);
        val in = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .name = i ? "y" : "x", .rank = 1, .dims = &n });
        val c = graph_add(g, &(spec){ .op = OP_const, .dtype = TN_F32, .rank = 1, .dims = &n, .data = bits });
        x[i] = not_folded(g, in, c);
    }
    for (int op = 1; op < N_OPS; op++) {
        const op_info *info = op_get((op_code)op);
        if (!op_is_elementwise((op_code)op) || info->cls != CL_FLT) continue;
        graph_output(g, arena_printf(a, "y_%s", info->name),
                     info->arity == 1 ? graph_unary(g, (op_code)op, x[0]) : graph_binary(g, (op_code)op, x[0], x[1]));
    }
    graph_output(g, "y_mod", graph_binary(g, OP_mod, x[0], x[1]));
    static const struct {
        tn_dtype to;
        double lo, hi; /* some are wider than the type */
    } clamps[] = { { TN_U8, 0, 255 },  { TN_U8, -1, 255 },   { TN_U8, 3.5, 256 },       { TN_I8, -128, 127 },
                   { TN_I8, -9, 128 }, { TN_U16, 0, 65535 }, { TN_I16, -32768, 32767 }, { TN_U8, 200, 7 } };
    for (size_t i = 0; i < 2 * COUNT_OF(clamps); i++) { /* a number in a register, and in memory */
        val lo = graph_splat_like(g, x[0], clamps[i / 2].lo), hi = graph_splat_like(g, x[0], clamps[i / 2].hi);
        val v = i % 2 ? graph_binary(g, OP_max, graph_binary(g, OP_min, x[0], hi), lo)
                      : graph_binary(g, OP_min, graph_binary(g, OP_max, lo, x[0]), hi);
        v = graph_cast(g, v, clamps[i / 2].to);
        graph_output(g, arena_printf(a, "clamped_%zu", i), i % 2 ? v : graph_cast(g, v, TN_F32));
        graph_output(g, arena_printf(a, "kept_%zu", i), v);
    }
    val word = graph_bitcast(g, x[0], TN_I32);
    static const struct {
        int mask, times, less; /* (bits & mask) * times - less */
    } low[] = { { 15, 1, 8 }, { 15, -3, 0 }, { 12, 7, 100 }, { 1, 1, 0 }, { 16, 1, 8 }, { 15, 1 << 20, 0 }, { 15, 0, 3 } };
    for (size_t i = 0; i < COUNT_OF(low); i++) { /* what is computed of 4 bits, and of others */
        val v = graph_binary(g, OP_shift_right, word, graph_splat_like(g, word, (double)(4 * i)));
        v = graph_binary(g, OP_and, v, graph_splat_like(g, v, low[i].mask));
        val of_int = graph_binary(g, OP_mul, v, graph_splat_like(g, v, low[i].times)), of_float = graph_cast(g, v, TN_F32);
        graph_output(g, arena_printf(a, "ints_%zu", i), graph_cast(g, of_int, TN_F32));
        of_float = graph_binary(g, OP_mul, of_float, graph_splat_like(g, of_float, low[i].times * 0.1));
        of_float = graph_binary(g, OP_sub, of_float, graph_splat_like(g, of_float, low[i].less));
        graph_output(g, arena_printf(a, "floats_%zu", i), of_float);
    }
    graph_output(g, "half", graph_cast(g, x[0], TN_F16));
    graph_output(g, "there_and_back", graph_cast(g, graph_cast(g, x[0], TN_F16), TN_F32));
    graph_compact(g);
    return g;
}

/* Casts to bytes of quotients by a constant, rounded and clamped: numbers beside every edge between two results. */
static graph *every_step(arena *a) {
    static const struct {
        tn_dtype to;
        double zero, lo, hi;
    } forms[] = { { TN_U8, 0, 0, 255 },      { TN_U8, 131, 0, 255 }, { TN_I8, 0, -128, 127 }, { TN_I8, -7, -128, 127 },
                  { TN_U8, 3, 3, 200 },      { TN_U8, 0, 1, 200 },   { TN_I8, 5, 0, 127 },    { TN_U8, 0.5, 0, 255 },
                  { TN_I8, 0, -127.5, 127 }, { TN_U8, 0, 9, 9 } };
    static const double steps[] = { 0.0108161317184567, 0.0018479339778423, 0.25, 3.0000002384, 1e-20, 1e38, -0.5 };
    static const float special[] = { NAN, INFINITY, -INFINITY, -0.0f, 3e38f, -3e38f, 1e-40f };
    graph *g = graph_make(a, "steps");
    enum { AROUND = 5, EDGES = 257, N = EDGES * AROUND + COUNT_OF(special) };
    int64_t n = N;
    val in = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .name = "x", .rank = 1, .dims = &n });
    rng r = rng_make(7);
    for (int i = 0; i < 8 * (int)COUNT_OF(forms); i++) {
        int which = i % (int)COUNT_OF(forms), fixed = i / (int)COUNT_OF(forms);
        float *x = ARENA_ARRAY(a, float, n),
              step = (float)(fixed < 2 ? steps[i % (int)COUNT_OF(steps)] : rng_range(&r, 1e-4, 0.3));
        for (int64_t k = 0; k < EDGES * AROUND; k++) {
            x[k] = (float)((forms[which].lo + (double)(k / AROUND) - 0.5 - forms[which].zero) * (double)step);
            for (int64_t m = 0; m < k % AROUND; m++) x[k] = nextafterf(x[k], m & 1 ? INFINITY : m < 2 ? -INFINITY : 0);
        }
        memcpy(x + EDGES * AROUND, special, sizeof special);
        val c = graph_add(g, &(spec){ .op = OP_const, .dtype = TN_F32, .rank = 1, .dims = &n, .data = x });
        val v = not_folded(g, in, c);
        v = graph_unary(g, OP_round, graph_binary(g, OP_div, v, graph_splat_like(g, v, (double)step)));
        if (forms[which].zero) v = graph_binary(g, OP_add, v, graph_splat_like(g, v, forms[which].zero));
        val lo = graph_splat_like(g, v, forms[which].lo), hi = graph_splat_like(g, v, forms[which].hi);
        v = i % 2 ? graph_binary(g, OP_max, graph_binary(g, OP_min, v, hi), lo)
                  : graph_binary(g, OP_min, graph_binary(g, OP_max, v, lo), hi);
        v = graph_cast(g, v, forms[which].to);
        if (i % 3) { /* back: what the next layer adds, less the zero point or another number */
            v = graph_cast(g, v, TN_I32);
            v = graph_binary(g, OP_sub, v, graph_splat_like(g, v, i % 3 == 1 ? (int)forms[which].zero : 5));
            v = graph_binary(g, OP_div, graph_splat_like(g, graph_cast(g, v, TN_F32), 1), graph_cast(g, v, TN_F32));
        } /* 1 / 0 has the sign of 0 */
        graph_output(g, arena_printf(a, "y%d", i), v);
    }
    graph_compact(g);
    return g;
}

/* Numbers of one and two bytes in windows one and two apart, with and without borders: rows of all lengths up to two vectors
 * and some, the first and the last number of a buffer among them. */
static graph *every_window(arena *a) {
    static const char *const types[] = { "i8", "u8", "u8", "bf16", "f16", "i16", "bf16", "u16", "f16" };
    enum { N = 24 };
    str text, results;
    str_init(&text, a), str_init(&results, a);
    str_addf(&text, "graph @windows(");
    for (int i = 0; i < 3 * N; i++)
        str_addf(&text, "%sx%d %s[2,3,%d]", i ? ", " : "", i, types[i / N * 3 + i % 3], 3 + 3 * (i % N));
    str_addf(&text, ") {\n");
    for (int i = 0; i < 3 * N; i++) {
        int n = 3 + 3 * (i % N), border = i % 4 / 2, apart = 1 + i % 2, size = 2 + (i / 4) % 2,
            rows = (3 + 2 * border - size) / apart + 1, columns = (n + 2 * border - size) / apart + 1;
        str_addf(&text, "  %%a%d = cast x%d f32[2,3,%d]\n", i, i, n);
        str_addf(&text, "  %%b%d = pad %%a%d before=[0,%d,%d] after=[0,%d,%d] value=%s f32[2,%d,%d]\n", i, i, border, border,
                 border, border, i % 5 ? "0" : "-3.5", 3 + 2 * border, n + 2 * border);
        str_addf(&text,
                 "  %%c%d = window %%b%d (axis=1 size=%d stride=%d dilation=1) (axis=2 size=%d stride=%d dilation=1) "
                 "f32[2,%d,%d,%d,%d]\n",
                 i, i, size, apart, size, apart, rows, columns, size, size);
        str_addf(&text, "  %%d%d = reduce_max %%c%d axes=[3,4] f32[2,%d,%d,1,1]\n", i, i, rows, columns);
        str_addf(&results, "%s%%d%d as \"y%d\"", i ? ", " : "", i, i);
    }
    str_addf(&text, "  return %s\n}\n", results.s);
    return graph_parse(a, text.s, text.n, "windows");
}

static void every_op_test(bool sse2) {
    world w = world_open(sse2);
    int bad = 0, graphs = 0;
    if (!comparable(&w)) {
        world_close(&w);
        skip();
    }
    n_fallbacks = 0;
    for (int t = 0; t <= TN_N_DTYPES + 2; t++) {
        if (!campaign_has((uint64_t)t + sse2, 4)) continue;
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("graph %d: %s", t, gd.err.text);
        graph *g = t < TN_N_DTYPES        ? every_op(&a, (tn_dtype)t, 61)
                   : t == TN_N_DTYPES     ? every_pattern(&a)
                   : t == TN_N_DTYPES + 1 ? every_step(&a)
                                          : every_window(&a);
        bad += !check(&w, g, &a, (uint64_t)t, t % 2 || t > TN_N_DTYPES ? 3 : 0);
        graphs++;
        arena_fini(&a);
    }
    world_close(&w);
    printf("count: %severy op on all dtypes, functions on 65536 patterns%s: %d of %d graphs differ, %d without machine code\n",
           campaign_is_short() ? "a quarter, in turns, of " : "", sse2 ? ", SSE2" : "", bad, graphs, n_fallbacks);
    assert_int_equal(bad + n_fallbacks, 0);
}
static void test_every_op(void **state) {
    (void)state;
    every_op_test(false);
}
static void test_every_op_sse2(void **state) {
    (void)state;
    every_op_test(true);
}

static void random_graphs(bool sse2) {
    world w = world_open(sse2);
    uint64_t first, n = (fuzz_seeds(600, &first) + 39) / 40;
    if (sse2) n = (n + 3) / 4;
    int bad = 0, differentiated = 0;
    if (!comparable(&w)) {
        world_close(&w);
        skip();
    }
    n_fallbacks = 0;
    for (uint64_t seed = first; seed < first + n; seed++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %d: %s", (int)seed, gd.err.text);
        bad += !check(&w, randcase(&a, seed, &differentiated), &a, seed, (int)(seed % 4));
        arena_fini(&a);
    }
    world_close(&w);
    printf("%d random graphs%s, %d differentiated: %d differ, %d without machine code\n", (int)n, sse2 ? ", SSE2" : "",
           differentiated, bad, n_fallbacks);
    assert_int_equal(bad + n_fallbacks, 0);
}
static void test_random_graphs(void **state) {
    (void)state;
    random_graphs(false);
}
static void test_random_graphs_sse2(void **state) {
    (void)state;
    random_graphs(true);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_every_op), cmocka_unit_test(test_every_op_sse2),
                                        cmocka_unit_test(test_random_graphs), cmocka_unit_test(test_random_graphs_sse2) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
