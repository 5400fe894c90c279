/* test_packed_dot.c - contractions of narrow numbers by words: what words mean, one by one; which contractions go by them; and
 * every bit of the results, for all kinds of operands, with the weights an input, a constant or a state, in one and two
 * threads, for every instruction set of this processor and through the C compiler, and in the interpreter for processors of all
 * kinds. A short campaign: a third of the contractions, in turns.
 *
 * Labels: long */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/api.h"
#include "support/plan_run.h"

/* ---- words ---- */

static kernel *parse(arena *a, const char *text) { return kernel_parse(a, text, strlen(text), "words"); }

/* acc = the products of both operands' words, lane by lane, as text: parts n, from the dtypes x and y, sums in t. */
static const char *one_update(arena *a, const char *x, const char *y, int apart, int packed, const char *t) {
    return arena_printf(a,
                        "kernel @words(b0 in %s[32], b1 in %s[32], b2 out %s[4]) tiled {\n"
                        "  %%1 = acc add %s  %sx4\n"
                        "  %%2 = load b0[1] step %d packed %d stride 1 from %s  i32x4\n"
                        "  %%3 = load b1[3] step 1 packed %d stride %d from %s  i32x4\n"
                        "  update %%1 fma %%2, %%3 packed %d  %sx4\n"
                        "  store b2[0] step 1, %%1  %sx4\n}\n",
                        x, y, t, strcmp(t, "f32") ? "0" : "0.0", t, packed, packed, x, packed, apart, y, packed, t, t);
}

static void test_meaning(void **state) {
    (void)state;
    static const struct {
        tn_dtype x, y;
        int packed;
    } cases[] = { { TN_U8, TN_I8, 4 }, { TN_U8, TN_I8, 2 }, { TN_I8, TN_I8, 2 }, { TN_U8, TN_U8, 2 }, { TN_BF16, TN_BF16, 2 } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
        bool f = cases[i].x == TN_BF16;
        int n = cases[i].packed, apart = 5;
        const char *text = one_update(&a, dtype_name(cases[i].x), dtype_name(cases[i].y), apart, n, f ? "f32" : "i32");
        kernel *k = parse(&a, text);
        str out, problems;
        str_init(&out, &a), str_init(&problems, &a);
        kernel_print(k, &out);
        assert_string_equal(out.s, text);
        if (kernel_check(k, &problems)) fail_msg("%s", problems.s);
        unsigned char x[64], y[64];
        union {
            float f[4];
            int32_t i[4];
        } got;
        rng r = rng_make(i + 7);
        for (int repeat = 0; repeat < 50; repeat++) {
            fill_random(&r, f ? TN_BF16 : TN_U8, x, 32, f ? -3 : 0, f ? 3 : 255);
            fill_random(&r, f ? TN_BF16 : TN_U8, y, 32, f ? -3 : 0, f ? 3 : 255);
            eval_kernel(k, (unsigned char *const[]){ x, y, (unsigned char *)&got }, &a);
            for (int l = 0; l < 4; l++) {
                float sum = 0;
                int32_t whole = 0;
                for (int p = n - 1; p >= 0; p--) { /* the last first */
                    int at = 1 + l * n + p, other = 3 + l + p * apart;
                    if (f)
                        sum = fmaf((float)dtype_load(TN_BF16, x, at), (float)dtype_load(TN_BF16, y, other), sum);
                    else
                        whole += (int32_t)(dtype_load_int(cases[i].x, x, at) * dtype_load_int(cases[i].y, y, other));
                }
                if (f ? sum != got.f[l] : whole != got.i[l]) fail_msg("case %zu, lane %d", i, l);
            }
        }
        arena_fini(&a);
    }
}

static void test_refused(void **state) {
    (void)state;
    static const char *const bad[][3] = {
        /* what is replaced, by what */
        { "step 4 packed 4", "step 4 packed 3" },
        { "b1[3]", "b1[15]" },
        { "%2, %3 packed 4  i32x4", "%2, %3 packed 4  f32x4" },
        { "load b0[1] step 4 packed 4 stride 1 from u8  i32x4", "load b0[1] step 1 from u8  i32x4" },
        { "packed 4 stride 5", "packed 4 stride 9" }
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        arena a;
        guard gd;
        str problems;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
        const char *text = one_update(&a, "u8", "i8", 5, 4, "i32"), *at = strstr(text, bad[i][0]);
        assert_non_null(at);
        text = arena_printf(&a, "%.*s%s%s", (int)(at - text), text, bad[i][1], at + strlen(bad[i][0]));
        str_init(&problems, &a);
        bool refused = kernel_check(parse(&a, text), &problems) > 0;
        if (i == 3) refused = !refused; /* i32 are i32: nothing says that they are words */
        if (!refused) fail_msg("not refused:\n%s", text);
        arena_fini(&a);
    }
}

/* ---- contractions ---- */

typedef enum form {
    PLAIN,
    TURNED /* weights [n, k] */,
    CONV /* 3 x 3, m x m images, k to n channels */,
    FIRST /* weights [n, k] times x [k, m]: channels first */,
    WINDOWS /* 3 x 4 of each of k images, m x m, n apart */
} form;
typedef struct shape {
    tn_dtype x, w;
    form form;
    int batch, m, n, k;
    bool words;
} shape;

static int64_t pixels(const shape *s) { return (int64_t)s->batch * s->m * (s->form == CONV ? s->m : 1); }
static int along(const shape *s, int taps) { return (s->m - taps) / s->n + 1; } /* windows */
static int64_t count_x(const shape *s) { return s->form == WINDOWS ? (int64_t)s->k * s->m * s->m : pixels(s) * s->k; }
static int64_t count_w(const shape *s) {
    return s->form == WINDOWS ? 12 * s->k : (int64_t)(s->form == CONV ? 9 : s->batch) * s->k * s->n;
}
static int64_t count_y(const shape *s) {
    return s->form == WINDOWS ? (int64_t)s->k * along(s, 3) * along(s, 4) : pixels(s) * s->n;
}
static bool is_float_sum(const shape *s) { return s->x == TN_BF16; }

typedef enum source { INPUT, CONSTANT, STATE } source;

static tn_graph *build(tn_ctx *ctx, const shape *s, source from, const void *data) {
    tn_graph *g = tn_graph_new(ctx, "words");
    tn_dtype sum = is_float_sum(s) ? TN_F32 : TN_I32;
    tn_shape dims = s->form == WINDOWS  ? TN_DIMS(s->k, 3, 4)
                    : s->form == CONV   ? TN_DIMS(3, 3, s->k, s->n)
                    : s->form == FIRST  ? TN_DIMS(s->n, s->k)
                    : s->form == TURNED ? TN_DIMS(s->batch, s->n, s->k)
                                        : TN_DIMS(s->batch, s->k, s->n);
    tn_tensor w = from == INPUT      ? tn_input(g, "w", s->w, dims)
                  : from == CONSTANT ? tn_const(g, s->w, dims, data)
                                     : tn_state(g, "w", s->w, dims, NULL);
    w = tn_cast(w, sum);
    if (s->form == CONV) {
        tn_tensor x = tn_cast(tn_input(g, "x", s->x, TN_DIMS(s->batch, s->m, s->m, s->k)), sum);
        static const int64_t border[] = { 0, 1, 1, 0 }, axes[] = { 1, 2 }, size[] = { 3, 3 }, one[] = { 1, 1 };
        static const int64_t of_x[] = { 4, 5, 3 }, of_w[] = { 0, 1, 2 };
        x = tn_window(tn_pad(x, border, border, 4, 0), axes, size, one, one, 2); /* [batch, m, m, k, 3, 3] */
        tn_output(tn_dot(x, w, NULL, NULL, 0, of_x, of_w, 3), "y");
        return g;
    }
    if (s->form == WINDOWS) { /* [k, rows, columns, 3, 4] */
        tn_tensor x = tn_cast(tn_input(g, "x", s->x, TN_DIMS(s->k, s->m, s->m)), sum);
        static const int64_t axes[] = { 1, 2 }, size[] = { 3, 4 }, one[] = { 1, 1 }, zero[] = { 0 }, of_w[] = { 1, 2 },
                             of_x[] = { 3, 4 };
        x = tn_window(x, axes, size, (int64_t[]){ s->n, s->n }, one, 2);
        tn_output(tn_dot(w, x, zero, zero, 1, of_w, of_x, 2), "y");
        return g;
    }
    if (s->form == FIRST) {
        tn_output(tn_matmul(w, tn_cast(tn_input(g, "x", s->x, TN_DIMS(s->k, s->m)), sum)), "y");
        return g;
    }
    tn_tensor x = tn_cast(tn_input(g, "x", s->x, TN_DIMS(s->batch, s->m, s->k)), sum);
    if (s->form == TURNED) w = tn_permute(w, TN_INTS(0, 2, 1));
    tn_output(tn_matmul(x, w), "y");
    return g;
}

/* y, in the order in which words add up; an exact sum where they do not (its terms then have few bits). */
static void expected_windows(const shape *s, const void *x, const void *w, int32_t *y) {
    int rows = along(s, 3), columns = along(s, 4);
    for (int64_t i = 0; i < count_y(s); i++) {
        int64_t image = i / rows / columns, row = i / columns % rows * s->n, column = i % columns * s->n, sum = 0;
        for (int tap = 0; tap < 12; tap++)
            sum += dtype_load_int(s->x, x, (image * s->m + row + tap / 4) * s->m + column + tap % 4) *
                   dtype_load_int(s->w, w, image * 12 + tap);
        y[i] = (int32_t)sum;
    }
}
static void expected_y(const shape *s, const void *x, const void *w, void *y) {
    if (s->form == WINDOWS) {
        expected_windows(s, x, w, y);
        return;
    }
    for (int64_t i = 0; i < count_y(s); i++) {
        int64_t pixel = s->form == FIRST ? i % s->m : i / s->n, column = s->form == FIRST ? i / s->m : i % s->n,
                image = pixel / s->m / (s->form == CONV ? s->m : 1);
        float sum = 0;
        int32_t whole = 0;
        for (int tap = 0; tap < (s->form == CONV ? 9 : 1); tap++) {
            int64_t at = pixel, row = pixel / s->m % s->m + tap / 3 - 1, col = pixel % s->m + tap % 3 - 1;
            if (s->form == CONV && (row < 0 || row >= s->m || col < 0 || col >= s->m)) continue;
            if (s->form == CONV) at = (image * s->m + row) * s->m + col;
            for (int j = 0; j < s->k; j++) {
                int64_t k = s->k % 2 == 0 ? j ^ 1 : j, ax = s->form == FIRST ? k * s->m + pixel : at * s->k + k,
                        aw = s->form == FIRST    ? column * s->k + k
                             : s->form == CONV   ? (tap * s->k + k) * s->n + column
                             : s->form == TURNED ? (image * s->n + column) * s->k + k
                                                 : (image * s->k + k) * s->n + column;
                if (is_float_sum(s))
                    sum = fmaf((float)dtype_load(TN_BF16, x, ax), (float)dtype_load(TN_BF16, w, aw), sum);
                else
                    whole += (int32_t)(dtype_load_int(s->x, x, ax) * dtype_load_int(s->w, w, aw));
            }
        }
        if (is_float_sum(s))
            ((float *)y)[i] = sum;
        else
            ((int32_t *)y)[i] = whole;
    }
}

/* Returns whether a kernel goes by words. */
static bool run(tn_ctx *ctx, const shape *s, source from, int threads, void *x, void *w, void *y) {
    tn_graph *g = build(ctx, s, from, w);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *session;
    char *text;
    o.threads = threads, o.check = 1;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &session)) fail_msg("%s", tn_ctx_error(ctx));
    memset(y, 0xff, (size_t)count_y(s) * 4);
    if (from == INPUT) {
        assert_int_equal(tn_run(session, TN_BIND({ "x", x }, { "w", w }, { "y", y })), TN_OK);
    } else {
        if (from == STATE) assert_int_equal(tn_session_set(session, "w", w, (size_t)count_w(s) * tn_dtype_size(s->w)), TN_OK);
        assert_int_equal(tn_run(session, TN_BIND({ "x", x }, { "y", y })), TN_OK);
    }
    assert_int_equal(tn_program_text(p, "kernels", &text), TN_OK);
    bool words = strstr(text, " packed ") != NULL;
    tn_string_free(ctx, text);
    tn_session_free(session), tn_program_free(p), tn_graph_free(g);
    return words;
}

/* extreme: products as large as they can be, most of one sign, whose sums of two have more than 16 bits. */
static void fill(rng *r, const shape *s, tn_dtype t, void *to, int64_t n, bool extreme) {
    if (is_float_sum(s))
        fill_random(r, t, to, n, -1, 1);
    else if (extreme)
        for (int64_t i = 0; i < n; i++) ((uint8_t *)to)[i] = (uint8_t)((t == TN_U8 ? 255 : 128) - (i % 7 == 3));
    else
        for (int64_t i = 0; i < n; i++) ((uint8_t *)to)[i] = (uint8_t)rng_below(r, 256); /* all of them, -128 and 255 too */
}

static const shape shapes[] = {
    { TN_BF16, TN_BF16, PLAIN, 1, 64, 96, 128, true },   { TN_BF16, TN_BF16, PLAIN, 1, 37, 75, 54, true },
    { TN_BF16, TN_BF16, TURNED, 1, 33, 70, 130, true },  { TN_BF16, TN_BF16, PLAIN, 3, 19, 45, 66, true },
    { TN_BF16, TN_BF16, PLAIN, 1, 24, 200, 1600, true }, { TN_BF16, TN_BF16, PLAIN, 1, 1, 301, 260, true },
    { TN_BF16, TN_BF16, PLAIN, 1, 5, 330, 700, true },   { TN_BF16, TN_BF16, CONV, 2, 9, 40, 18, true },
    { TN_BF16, TN_BF16, PLAIN, 1, 20, 40, 33, false },   { TN_BF16, TN_BF16, TURNED, 2, 40, 64, 515, false },
    { TN_U8, TN_I8, PLAIN, 1, 64, 96, 128, true },       { TN_U8, TN_I8, PLAIN, 1, 37, 75, 54, true },
    { TN_I8, TN_U8, PLAIN, 1, 30, 50, 68, true },        { TN_I8, TN_I8, PLAIN, 1, 41, 53, 124, true },
    { TN_U8, TN_U8, PLAIN, 1, 29, 67, 90, true },        { TN_U8, TN_I8, TURNED, 1, 33, 70, 132, true },
    { TN_I8, TN_I8, TURNED, 2, 35, 64, 130, true },      { TN_U8, TN_I8, PLAIN, 3, 19, 45, 68, true },
    { TN_U8, TN_I8, PLAIN, 1, 40, 200, 2604, true },     { TN_U8, TN_I8, PLAIN, 1, 1, 301, 260, true },
    { TN_I8, TN_I8, PLAIN, 1, 5, 330, 700, true },       { TN_U8, TN_I8, CONV, 2, 9, 40, 20, true },
    { TN_I8, TN_I8, CONV, 1, 7, 33, 18, true },          { TN_U8, TN_I8, PLAIN, 1, 20, 40, 33, false },
    { TN_U8, TN_I8, PLAIN, 1, 0, 40, 64, false },        { TN_U8, TN_I8, FIRST, 1, 98, 40, 96, true },
    { TN_U8, TN_I8, FIRST, 1, 49, 37, 130, true },       { TN_I8, TN_I8, FIRST, 1, 200, 29, 1026, true },
    { TN_U8, TN_I8, WINDOWS, 1, 39, 1, 5, true },        { TN_U8, TN_I8, WINDOWS, 1, 40, 2, 4, true },
    { TN_I8, TN_U8, WINDOWS, 1, 17, 1, 3, true },        { TN_U8, TN_I8, WINDOWS, 1, 26, 2, 3, true },
    { TN_U8, TN_I8, WINDOWS, 1, 10, 1, 6, true },        { TN_I8, TN_I8, WINDOWS, 1, 19, 1, 3, true },
    { TN_U8, TN_I8, WINDOWS, 1, 33, 3, 3, false },       { TN_U8, TN_U8, FIRST, 1, 75, 24, 54, true },
    { TN_BF16, TN_BF16, FIRST, 1, 60, 30, 48, true },
};

static void check(tn_ctx *ctx, const char *cpu, const shape *s, bool extreme) { /* cpu: the code generator of ctx */
    size_t size = tn_dtype_size(s->x), ny = (size_t)count_y(s) * 4;
    void *x = malloc((size_t)count_x(s) * size + 1), *w = malloc((size_t)count_w(s) * size), *want = malloc(ny + 1),
         *y = malloc(ny + 1);
    rng r = rng_make((uint64_t)(count_x(s) * 31 + count_w(s)));
    fill(&r, s, s->x, x, count_x(s), extreme), fill(&r, s, s->w, w, count_w(s), extreme);
    expected_y(s, x, w, want);
    for (int from = INPUT; from <= STATE; from++)
        for (int threads = 1; threads <= 2; threads++) {
            bool words = run(ctx, s, (source)from, threads, x, w, y);
            static const char *const forms[] = { "", ", turned", ", convolution", ", channels first", ", windows" },
                                     *const sources[] = { "input", "constant", "state" };
            if (!s->words && is_float_sum(s) && from == INPUT && threads == 1) { /* in which order is not said */
                for (int64_t i = 0; i < count_y(s); i++)
                    if (!(fabsf(((float *)want)[i] - ((float *)y)[i]) <= 1e-6f * (float)s->k))
                        fail_msg("%s: y[%d]", cpu, (int)i);
                memcpy(want, y, ny);
            }
            bool same = memcmp(want, y, ny) == 0;
            if (words != s->words || !same)
                fail_msg("%s %s x %s, %d x %d x %d x %d%s%s, weights a %s, %d threads: %s, %s", cpu, tn_dtype_name(s->x),
                         tn_dtype_name(s->w), s->batch, s->m, s->n, s->k, forms[s->form], extreme ? ", extreme" : "",
                         sources[from], threads, words ? "by words" : "not by words", same ? "the same bits" : "other bits");
            if (*cpu == 'c') goto done; /* a compiler runs each time */
        }
done:
    free(x), free(w), free(want), free(y);
}

/* What a C compiler makes no sanitizer sees, and it takes most of a minute. */
#define BY_COMPILER true
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#undef BY_COMPILER
#define BY_COMPILER false
#endif
#endif

static void test_same_bits(void **state) {
    (void)state;
    static const char *const cpus[] = { "avx2", "avx512", "avx512vnni", "avx512bf16", "c-avx2", "c-avx512vnni" };
    int n = 0;
    for (size_t c = 0; c < COUNT_OF(cpus); c++) {
        tn_ctx *ctx = tn_ctx_new(&(tn_config){ .struct_size = sizeof(tn_config), .cpu = cpus[c] });
        tn_device_info info;
        bool here = *cpus[c] != 'c' || (BY_COMPILER && system("cc --version >/dev/null 2>&1") == 0);
        if (here && tn_device_get_info(ctx, 0, &info) == TN_OK)
            for (size_t i = 0; i < COUNT_OF(shapes); i++) {
                if (!campaign_has(i + c, 3)) continue;
                n++;
                check(ctx, cpus[c], &shapes[i], false);
                if (!is_float_sum(&shapes[i]) && *cpus[c] != 'c') check(ctx, cpus[c], &shapes[i], true);
            }
        tn_ctx_free(ctx);
    }
    printf("count: %d contractions of narrow numbers\n", n);
}

/* ---- denormals ---- */

static float flushed(float x) { return fabsf(x) < FLT_MIN ? copysignf(0, x) : x; }

/* Where an instruction adds the products, denormals are zeros, before and after; elsewhere they are not. Nothing else differs.
 */
static void test_denormals(void **state) {
    (void)state;
    static const shape s = { TN_BF16, TN_BF16, PLAIN, 1, 24, 40, 64, true };
    static const char *const cpus[] = { "avx2", "avx512", "avx512vnni", "avx512bf16" };
    uint16_t *x = malloc((size_t)count_x(&s) * 2), *w = malloc((size_t)count_w(&s) * 2);
    float *y = malloc((size_t)count_y(&s) * 4);
    rng r = rng_make(5);
    for (int64_t i = 0; i < count_x(&s); i++) { /* products near 2^-126, some operands below it */
        float unit = (float)rng_range(&r, -1, 1);
        x[i] = bf16_from_f32(ldexpf(unit, rng_chance(&r, 0.1) ? -128 : -60));
    }
    for (int64_t i = 0; i < count_w(&s); i++) w[i] = bf16_from_f32(ldexpf((float)rng_range(&r, -1, 1), -66));
    for (size_t c = 0; c < COUNT_OF(cpus); c++) {
        tn_ctx *ctx = tn_ctx_new(&(tn_config){ .struct_size = sizeof(tn_config), .cpu = cpus[c] });
        tn_device_info info;
        bool here = tn_device_get_info(ctx, 0, &info) == TN_OK, flushes = !strcmp(cpus[c], "avx512bf16");
        int differ = 0;
        if (here) assert_true(run(ctx, &s, INPUT, 1, x, w, y));
        for (int64_t i = 0; i < count_y(&s) && here; i++) {
            float plain = 0, flush = 0;
            for (int j = 0; j < s.k; j++) {
                float a = bf16_to_f32(x[i / s.n * s.k + (j ^ 1)]), b = bf16_to_f32(w[(j ^ 1) * s.n + i % s.n]);
                plain = fmaf(a, b, plain);
                flush = flushed(fmaf(flushed(a), flushed(b), flush));
            }
            differ += memcmp(&plain, &flush, sizeof plain) != 0;
            if (memcmp(&y[i], flushes ? &flush : &plain, sizeof plain) != 0)
                fail_msg("%s: y[%d] = %a, want %a", cpus[c], (int)i, (double)y[i], (double)(flushes ? flush : plain));
        }
        if (here) assert_true(differ > count_y(&s) / 2); /* or this shows nothing */
        tn_ctx_free(ctx);
    }
    free(x), free(w), free(y);
}

/* ---- in the interpreter, for machines of all kinds ---- */

static const char *text_of(arena *a, const shape *s, bool fixed) {
    const char *x = dtype_name(s->x), *w = dtype_name(s->w), *sum = is_float_sum(s) ? "f32" : "i32";
    const char *dims = s->form == TURNED ? arena_printf(a, "%d,%d,%d", s->batch, s->n, s->k)
                                         : arena_printf(a, "%d,%d,%d", s->batch, s->k, s->n);
    return arena_printf(a,
                        "graph @words(x %s[%d,%d,%d], %sw %s[%s]) {\n  %%1 = cast x %s[%d,%d,%d]\n  %%2 = cast w %s[%s]\n"
                        "  %%3 = dot %%1, %%2 batch=[0]x[0] contract=[2]x[%d]\n  return %%3 as \"y\"\n}",
                        x, s->batch, s->m, s->k, fixed ? "state " : "", w, dims, sum, s->batch, s->m, s->k, sum, dims,
                        s->form == TURNED ? 2 : 1);
}

static void test_interpreted(void **state) {
    (void)state;
    int n = 0, by_words = 0;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        const shape *s = &shapes[i];
        if (s->form >= CONV || (int64_t)s->batch * s->m * s->n * s->k > 400000) continue;
        for (uint64_t seed = 0; seed < 10; seed++) {
            arena a;
            guard gd;
            char why_not[4096];
            arena_init(&a, mem_libc(), &gd);
            if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
            const char *text = text_of(&a, s, seed % 2);
            graph *g = graph_parse(&a, text, strlen(text), "words");
            plan_config c = { .seed = seed, .fusion = 3, .t = plan_target(seed) };
            if (!plan_config_agrees(g, NULL, &c)) fail_msg("%s\nseed %d: %s", text, (int)seed, c.text);
            tn_compile_opts o = TN_COMPILE_DEFAULTS;
            o.fusion = 3;
            plan *p = pipeline_run(g, &a, &o, &c.t);
            if (!plan_texts_agree(p, &a, why_not, sizeof why_not)) fail_msg("%s\n%s", text, why_not);
            for (int k = 0; k < p->kernels.n; k++)
                for (int r = 1; r < p->kernels.at[k].k->ins.n; r++)
                    if (p->kernels.at[k].k->ins.at[r].op == K_UPD && p->kernels.at[k].k->ins.at[r].packed) {
                        by_words++;
                        k = p->kernels.n - 1;
                        break;
                    }
            n++;
            arena_fini(&a);
        }
    }
    printf("count: %d plans, %d by words\n", n, by_words);
    assert_true(by_words > n / 2);
}

/* ---- what follows sums of bytes ---- */

/* Means are sums of their own, beside which bytes would be multiplied one by one; and bytes that a border surrounds are made
 * where the sums are: without VNNI and with it. */
static void test_what_follows(void **state) {
    (void)state;
    static const struct {
        const char *rest;
        tn_dtype stored; /* by the kernel that multiplies */
    } cases[] = { { "%5 = sum %4 axes=[1]\n return %5", TN_F32 },
                  { "%5 = div %4, 3.0\n %6 = round %5\n %7 = max %6, 0.0\n %8 = min %7, 255.0\n %9 = cast %8 u8[24,196]\n"
                    " %10 = pad %9 before=[0,1] after=[0,1] value=7\n return %10",
                    TN_U8 } };
    for (size_t n_case = 0; n_case < 2 * COUNT_OF(cases); n_case++) {
        size_t i = n_case / 2;
        int words = n_case % 2 ? 4 : 2;
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
        const char *text = arena_printf(&a,
                                        "graph @g(x u8[64,196], state w i8[24,64] = rand(3)) {\n %%1 = cast w i32[24,64]\n"
                                        " %%2 = cast x i32[64,196]\n %%3 = dot %%1, %%2 contract=[1]x[0] i32[24,196]\n"
                                        " %%4 = cast %%3 f32[24,196]\n %s\n}",
                                        cases[i].rest);
        target t = {
            .vector_bytes = 16 * words, .n_vector_regs = 8 * words, .threads = 1, .l1_bytes = 32 << 10, .l2_bytes = 512 << 10
        };
        t.packed = words;
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3;
        plan *p = pipeline_run(graph_parse(&a, text, strlen(text), "g"), &a, &o, &t);
        int packed = 0, stored = 0;
        for (int n = 0; n < p->kernels.n; n++) {
            const kernel *k = p->kernels.at[n].k;
            bool multiplies = false;
            for (int r = 1; r < k->ins.n; r++) multiplies |= k->ins.at[r].op == K_UPD && k->ins.at[r].packed == words;
            packed += multiplies;
            for (int r = 1; r < k->ins.n && multiplies; r++)
                if (k->ins.at[r].op == K_STORE && k->bufs.at[k->ins.at[r].buf].kind == KB_OUT)
                    stored += k->ins.at[r].dtype == cases[i].stored;
        }
        if (packed != 1 || !stored)
            fail_msg("case %zu, %d: %d kernels by words, %d results stored there", i, words, packed, stored);
        arena_fini(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_meaning),     cmocka_unit_test(test_refused),
                                        cmocka_unit_test(test_same_bits),   cmocka_unit_test(test_denormals),
                                        cmocka_unit_test(test_interpreted), cmocka_unit_test(test_what_follows) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
