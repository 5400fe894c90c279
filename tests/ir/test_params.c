/* test_params.c - sizes that are given at run time: random expressions against plain arithmetic at random values (intervals,
 * divisors, proofs, text); kernels with such sizes are read, printed, checked and evaluated at many values, and refused where
 * they could leave a buffer.
 *
 * Labels: random
 * TENON_FUZZ_SEEDS: how many tables of expressions (default 400); TENON_FUZZ_FIRST: the first seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "eval/eval_kernel.h"
#include "loop/schedule.h"
#include "support/support.h"

/* ---- expressions ---- */

enum { DIMS = 3, EXPRESSIONS = 24, VALUES = 12 };

typedef struct made { /* an expression, and its values at all choices of the dims */
    ext e;
    int64_t at[VALUES];
} made;

static int64_t floor_of(int64_t x, int64_t y) { return x / y - (x % y < 0); }

static made combine(exts *t, made x, made y, int how) {
    static ext (*const fn[])(exts *, ext, ext) = { ext_add, ext_mul, ext_min, ext_max, ext_sub, ext_floor_div, ext_ceil_div };
    if (how >= 5 && ext_lo(t, y.e) < 1) how = 0;
    made z = { .e = fn[how](t, x.e, y.e) };
    for (int i = 0; i < VALUES; i++) {
        int64_t a = x.at[i], b = y.at[i];
        z.at[i] = how == 0   ? a + b
                  : how == 1 ? a * b
                  : how == 2 ? (a < b ? a : b)
                  : how == 3 ? (a > b ? a : b)
                  : how == 4 ? a - b
                  : how == 5 ? floor_of(a, b)
                             : -floor_of(-a, b);
    }
    return z;
}

static bool is_small(const made *x) {
    for (int i = 0; i < VALUES; i++)
        if (llabs(x->at[i]) > 100000) return false;
    return true;
}

static void check_expression(const exts *t, const made *x, int64_t dims[VALUES][DIMS], arena *a) {
    int64_t *rows = ARENA_ARRAY(a, int64_t, t->at.n + 1), d = ext_divisor(t, x->e);
    str why;
    str_init(&why, a);
    for (int i = 0; i < VALUES; i++) {
        if (!exts_at(t, dims[i], rows, &why)) fail_msg("%s", why.s);
        assert_int_equal(ext_of(x->e, rows), x->at[i]);
        if (x->at[i] < ext_lo(t, x->e) || x->at[i] > ext_hi(t, x->e)) fail_msg("outside of its interval");
        if (d ? x->at[i] % d : x->at[i] != 0) fail_msg("%lld is no multiple of %lld", (long long)x->at[i], (long long)d);
    }
}

/* The expression as the length of a buffer, read back: the same values. */
static void check_text(const exts *t, const made *x, int64_t dims[VALUES][DIMS], arena *a) {
    str text, again;
    str_init(&text, a), str_init(&again, a);
    kernel *k = kernel_make(a, "t");
    k->params = exts_clone(t, a);
    kernel_buf(k, (kbuf){ .dtype = TN_F32, .elems = x->e, .plan_buf = -1 });
    kernel_print(k, &text);
    kernel *back = kernel_parse(a, text.s, text.n, "text");
    kernel_print(back, &again);
    assert_string_equal(text.s, again.s);
    for (int i = 0; i < VALUES; i++) assert_int_equal(kernel_at(back, dims[i], a)->bufs.at[0].elems, x->at[i]);
}

static int check_table(rng *r, arena *a) {
    exts *t = exts_make(a);
    made all[DIMS + EXPRESSIONS];
    int64_t dims[VALUES][DIMS];
    int proven = 0, n = DIMS;
    for (int d = 0; d < DIMS; d++) {
        int64_t by = 1 + rng_below(r, 4), lo = by * rng_below(r, 3), steps = rng_below(r, 9);
        all[d].e = ext_dim(t, (const char *[]){ "a", "b", "c" }[d], lo, lo + by * steps, by);
        for (int i = 0; i < VALUES; i++)
            all[d].at[i] = dims[i][d] = lo + by * (i == 0 ? 0 : i == 1 ? steps : rng_below(r, steps + 1));
    }
    while (n < DIMS + EXPRESSIONS) {
        made x = all[rng_below(r, n)], y = all[rng_below(r, n)];
        if (rng_below(r, 2)) y.e = rng_below(r, 9) - 2;
        for (int i = 0; ext_is_lit(y.e) && i < VALUES; i++) y.at[i] = y.e;
        all[n] = combine(t, x, y, (int)rng_below(r, 7));
        if (is_small(&all[n]) && (ext_is_lit(all[n].e) || exts_row(t, all[n].e)->size < 40)) n++;
    }
    for (int i = 0; i < n; i++) {
        check_expression(t, &all[i], dims, a);
        bool size = ext_lo(t, all[i].e) >= 0;
        if (size) check_text(t, &all[i], dims, a);
        int j = (int)rng_below(r, n);
        if (!ext_never_less(t, all[i].e, all[j].e)) continue;
        proven += i != j;
        for (int v = 0; v < VALUES; v++)
            if (all[i].at[v] < all[j].at[v]) fail_msg("a proof of what is wrong");
    }
    return proven;
}

static void test_expressions(void **state) {
    (void)state;
    uint64_t first;
    int n = (int)fuzz_seeds(400, &first), proven = 0;
    for (int i = 0; i < n; i++) {
        arena a;
        guard gd;
        rng r = rng_make(first + (uint64_t)i);
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %d: %s", i, gd.err.text);
        proven += check_table(&r, &a);
        arena_fini(&a);
    }
    printf("%d tables, %d comparisons proven\n", n, proven);
    assert_true(proven > n / 2);
}

/* ---- what must be proven, and what must not ---- */

static const struct {
    const char *x, *y;
    bool never_less;
} comparisons[] = {
    { "$m*$n", "$m", true },                        /* n is at least 1 */
    { "$m*$n - 1", "($m - 1)*$n + $n - 1", true },  /* the last element of a matrix */
    { "$m*$n - 2", "($m - 1)*$n + $n - 1", false }, /* .. and one less */
    { "$n", "floor($n / 8)*8", true },
    { "floor($n / 8)*8", "$n", false },
    { "ceil($n / 8)*8", "$n", true },
    { "floor($n / 8)*8 + 7", "$n", true },
    { "floor($n / 8)*8 + 6", "$n", false },
    { "floor($n / 6)*3 + 2", "floor($n / 2)", true },
    { "floor($n / 6)*3 + 1", "floor($n / 2)", false },
    { "ceil($e / 8)*8", "$e", true },
    { "$e", "ceil($e / 8)*8", true }, /* e is a multiple of 8 */
    { "$n", "floor($n / 3)", true },
    { "$n", "min($n, $m)", true },
    { "min($n, $m)", "1", true },
    { "max($n, $m)", "$m", true },
    { "$m + $n", "max($n, $m)", true },
    { "$m", "max($n, $m)", false },
    { "$m*$m*$n", "$m*$n", true },
    { "$m*$n", "$m + $n - 1", true }, /* (m - 1) (n - 1) >= 0 */
    { "$z*$n", "$z", true },          /* z may be 0 */
    { "$z*$n", "$n", false },
    { "$n*9", "$z*$n", true }, /* z is at most 9 */
    { "$n*8", "$z*$n", false },
    { "$m*$n*9 - 1", "$m + ($m*($n - 1)) + ($m*$n)*($z - 1) - 1", true },
    { "$m*$n*9 - 2", "$m + ($m*($n - 1)) + ($m*$n)*($z - 1) - 1", false },
};

/* One row, however they are written. */
static const char *const equal[][2] = {
    { "($n - 1)*2 + 2", "$n*2" },
    { "$n*2 + $m*2 + 4", "($n + $m + 2)*2" },
    { "($n + 1)*6 - ($n + 1)*2", "$n*4 + 4" },
    { "floor(($e - 1) / 2)*2 + 2", "$e" }, /* e is a multiple of 8 */
    { "floor($e / 4)*2", "ceil($e / 2)" },
    { "floor(($n - 10) / 5) + 1", "floor($n / 5) - 1" },
    { "$e - floor($e / 2)", "floor($e / 2)" },
    { "floor((floor($e / 4)*$n) / 2)", "floor($e / 8)*$n" },
    { "floor(($n*$e*144) / 1152)", "floor($e / 8)*$n" },
    { "ceil(($n*6) / 4)", "ceil(($n*3) / 2)" },
    { "floor(($n*$m*4) / $n)", "ceil($m*$m*4 / $m)" },
    { "$n*floor($e / 4)*2*floor($e / 4)*32", "$n*16*floor($e / 2)*floor($e / 2)" },
    { "ceil(($e*3 + 5) / 4)", "floor($e*3 / 4) + 2" },
    { "$e*floor($w / 2)*9", "floor($e / 2)*$w*9" }, /* w is a multiple of 4 */
    { "floor($e / 4)*floor($w / 2)", "floor($w / 4)*floor($e / 2)" },
    { "floor($e*$w*$n / 16) + $n", "$n + floor($e / 4)*$n*floor($w / 4)" },
    { "floor($e / 8)*$w*3 + $e*floor($w / 4)", "$e*floor($w / 2) + floor($e / 8)*floor($w / 4)*4" },
};
static void test_sums(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(equal); i++) {
        arena a;
        guard gd;
        str text;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s: %s", equal[i][0], gd.err.text);
        str_init(&text, &a);
        str_addf(&text, "kernel @k<n 1..90, m 1..9, e 8..800 by 8, w 4..80 by 4>(b0 in f32[%s], b1 in f32[%s]) scalar {\n}",
                 equal[i][0], equal[i][1]);
        const kernel *k = kernel_parse(&a, text.s, text.n, "equal");
        if (k->bufs.at[0].elems != k->bufs.at[1].elems) fail_msg("%s is not %s", equal[i][0], equal[i][1]);
        arena_fini(&a);
    }
}

static void test_comparisons(void **state) {
    (void)state;
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    for (size_t i = 0; i < COUNT_OF(comparisons); i++) {
        const char *text = arena_printf(&a,
                                        "kernel @t<m 1..1000000, n 1..5000, e 8..64 by 8, z 0..9>(b0 in f32[8], b1 in f32[8])"
                                        " scalar {\n var i = 8\n loop i = %s .. %s step 1\n end\n}",
                                        comparisons[i].x, comparisons[i].y);
        const kernel *k = kernel_parse(&a, text, strlen(text), "text");
        bool got = ext_never_less(k->params, k->ins.at[1].lo, k->ins.at[1].hi);
        if (got != comparisons[i].never_less) fail_msg("%s >= %s: %d", comparisons[i].x, comparisons[i].y, got);
    }
    arena_fini(&a);
}

/* ---- kernels ---- */

#define MATMUL                                                                                                                 \
    "kernel @mm<m 1..40, k 0..64 by 2, n 1..50>(b0 in f32[$m*$k], b1 in f32[$k*$n], b2 out f32[$m*$n]) scalar {\n"             \
    "  var i = $m row\n  var j = $n row\n  var l = $k reduce\n"                                                                \
    "  loop i = 0 .. $m step 1\n    loop j = 0 .. $n step 1\n      %3 = acc add 0  f32\n"                                      \
    "      loop l = 0 .. $k step 1\n        %5 = load b0[$k*i + l]  f32\n        %6 = load b1[j + $n*l]  f32\n"                \
    "        update %3 fma %5, %6  f32\n      end\n      store b2[$n*i + j], %3  f32\n    end\n  end\n}\n"
#define SHIFTED                                                                                                                \
    "kernel @shifted<n 1..50>(b0 in f32[$n], b1 out f32[max($n + 1, 4)]) scalar {\n  var i = max($n + 1, 4) row\n"             \
    "  loop i = 0 .. max($n + 1, 4) step 1\n    %2 = load b0[i - 1] where 1 <= i < ($n + 1) else 7  f32\n"                     \
    "    store b1[i], %2  f32\n  end\n}\n"

static kernel *read_kernel(arena *a, const char *text) {
    str again;
    str_init(&again, a);
    kernel *k = kernel_parse(a, text, strlen(text), "text");
    kernel_print(k, &again);
    kernel *back = kernel_parse(a, again.s, again.n, "again");
    assert_true(kernel_equal(k, back));
    assert_true(kernel_hash(k, 1) == kernel_hash(back, 1));
    return back;
}

static void expect_sound(const kernel *k) {
    str problems;
    str_init(&problems, k->a);
    if (kernel_check(k, &problems)) fail_msg("%s", problems.s);
}

static void run_matmul(const kernel *k, rng *r, const int64_t *dims, arena *a) {
    int64_t m = dims[0], l = dims[1], n = dims[2];
    float *x = ARENA_ARRAY(a, float, m *l + 1), *w = ARENA_ARRAY(a, float, l *n + 1), *y = ARENA_ARRAY(a, float, m *n);
    for (int64_t i = 0; i < m * l; i++) x[i] = (float)(rng_below(r, 17)) - 8;
    for (int64_t i = 0; i < l * n; i++) w[i] = (float)(rng_below(r, 17)) - 8;
    eval_kernel_at(k, dims, (unsigned char *[]){ (unsigned char *)x, (unsigned char *)w, (unsigned char *)y }, a);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0; /* small integers: exact */
            for (int64_t s = 0; s < l; s++) sum += x[i * l + s] * w[s * n + j];
            if (sum != y[i * n + j])
                fail_msg("%lldx%lldx%lld: y[%d,%d]", (long long)m, (long long)l, (long long)n, (int)i, (int)j);
        }
}

static void run_shifted(const kernel *k, int64_t n, arena *a) {
    float x[50], y[64];
    for (int i = 0; i < 50; i++) x[i] = (float)i + 100;
    eval_kernel_at(k, &n, (unsigned char *[]){ (unsigned char *)x, (unsigned char *)y }, a);
    for (int64_t i = 0; i < (n + 1 < 4 ? 4 : n + 1); i++)
        if (y[i] != (i >= 1 && i <= n ? x[i - 1] : 7)) fail_msg("n %d: y[%d] is %g", (int)n, (int)i, (double)y[i]);
}

static void test_kernels(void **state) {
    (void)state;
    arena a;
    guard gd;
    uint64_t first;
    fuzz_seeds(1, &first);
    rng r = rng_make(first);
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    kernel *mm = read_kernel(&a, MATMUL), *shifted = read_kernel(&a, SHIFTED);
    static const char *const steps[] = { "", "tile", "parallel i0; tile; multiply_add",
                                         "vectorize i1 4; unroll_jam i0 2; tile" };
    expect_sound(mm), expect_sound(shifted);
    for (size_t s = 0; s < COUNT_OF(steps); s++) {
        kernel *k = kernel_clone(mm, &a);
        str why;
        str_init(&why, &a);
        for (kvar v = 0; v < k->vars.n; v++) snprintf(k->vars.at[v].name, sizeof k->vars.at[v].name, "i%d", v);
        schedule all = schedule_parse_steps(&a, steps[s], strlen(steps[s]), "steps");
        if (*steps[s] && !schedule_try(&k, &all, &why)) fail_msg("%s", why.s);
        expect_sound(k);
        for (int i = 0; i < 12; i++) {
            int64_t dims[] = { 1 + rng_below(&r, i < 2 ? 1 : 40), 2 * rng_below(&r, i < 4 ? 1 : 33), 1 + rng_below(&r, 50) };
            run_matmul(k, &r, dims, &a);
        }
        run_matmul(k, &r, (int64_t[]){ 40, 64, 50 }, &a);
    }
    for (int64_t n = 1; n <= 50; n++) run_shifted(shifted, n, &a);
    arena_fini(&a);
}

/* ---- what is refused ---- */

static const struct {
    const char *text, *problem;
} bad[] = {
    { "kernel @k<n 1..9>(b0 out f32[$n]) scalar {\n var i = $n + 1\n %1 = const 1  f32\n loop i = 0 .. $n + 1 step 1\n"
      " store b0[i], %1  f32\n end\n}",
      "touches element" },
    { "kernel @k<n 3..9>(b0 out f32[9]) scalar {\n var i = $n*$n\n %1 = const 1  f32\n loop i = 0 .. $n*$n step 1\n"
      " store b0[i], %1  f32\n end\n}",
      "touches element" },
    { "kernel @k<n 1..9>(b0 out f32[20]) scalar {\n var i = $n*$n\n %1 = const 1  f32\n loop i = 0 .. $n*$n step 1\n"
      " store b0[i], %1  f32\n end\n}",
      "not proven to be among its 20" }, /* both samples are fine */
    { "kernel @k<n 1..9>(b0 out f32[$n]) scalar {\n var i = 5\n %1 = const 1  f32\n loop i = 0 .. max($n, 5) - 4 step 1\n"
      " store b0[i], %1  f32\n end\n}",
      NULL },
    { "kernel @k<n 1..9>(b0 out f32[9]) scalar {\n var i = 4\n %1 = const 1  f32\n loop i = 0 .. $n step 1\n"
      " store b0[i], %1  f32\n end\n}",
      "may run outside its variable's extent" },
    { "kernel @k<n 1..9>(b0 out f32[9]) scalar {\n var i = 9\n loop i = $n - 4 .. $n step 1\n end\n}", "outside the variable" },
    { "kernel @k<n 8..64 by 4>(b0 out f32[64]) tiled {\n var i = $n\n loop i = 0 .. $n step 8\n end\n}", "last step" },
    { "kernel @k<n 8..64 by 8>(b0 out f32[64]) tiled {\n var i = $n\n loop i = 0 .. $n step 8\n end\n}", NULL },
    { "kernel @k<n 1..9>(b0 out f32[($n*-1 + 10)*6]) tiled blocks ceil(($n*-1 + 10)*6 / 32) threads 32 {\n var i = 54 row\n"
      " %1 = const 1  f32\n loop i = 0 .. ($n*-1 + 10)*6 step 1 grid-threads\n store b0[i], %1  f32\n end\n}",
      NULL }, /* the largest n makes it least */
    { "kernel @k<n 1..9>(b0 out f32[($n*-1 + 10)*6]) tiled blocks ceil(($n*-1 + 10)*6 / 32) threads 32 {\n var i = 54 row\n"
      " %1 = const 1  f32\n loop i = 0 .. ($n*-1 + 10)*6 step 1 grid-threads\n store b0[i + 1], %1  f32\n end\n}",
      "" },
    { "kernel @k<n 1..9>(b0 out f32[$n]) tiled parallel i {\n var i = $n row\n %1 = const 1  f32\n loop i = 0 .. $n step 1 "
      "parallel\n store b0[0], %1  f32\n end\n}",
      "" },
    { "kernel @k<n 3..9, m 1..9>(b0 out f32[$n*2 + $m]) tiled parallel i {\n var i = $n row var j = $m\n %1 = const 1  f32\n"
      " loop i = 0 .. $n step 1 parallel\n loop j = 0 .. $m step 1\n store b0[2*i + j], %1  f32\n end\n end\n}",
      "" },
    { "kernel @k<n 3..9, m 1..2>(b0 out f32[$n*2 + $m]) tiled parallel i {\n var i = $n row var j = $m\n %1 = const 1  f32\n"
      " loop i = 0 .. $n step 1 parallel\n loop j = 0 .. $m step 1\n store b0[2*i + j], %1  f32\n end\n end\n}",
      NULL },
    { "kernel @k<n 1..9>(b0 out f32[$n]) tiled {\n var i = $n unroll 4\n %1 = const 1  f32\n"
      " loop i = 0 .. floor($n / 4)*4 step 4\n store b0[i + 4], %1  f32\n end\n}",
      "not proven to be among its" }, /* the samples have no whole tile */
    { "kernel @k<n 1..9>(b0 out f32[$n]) tiled {\n var i = $n unroll 4\n %1 = const 1  f32\n"
      " loop i = 0 .. ceil($n / 4)*4 step 4\n store b0[i], %1  f32\n end\n}",
      "outside the variable" },
    { "kernel @k<n 1..90>(b0 out f32[$n]) tiled parallel i {\n var i = $n row unroll 4\n %1 = const 1  f32\n"
      " loop i = 0 .. floor($n / 4)*4 step 4 parallel\n store b0[i], %1  f32\n store b0[i + 3], %1  f32\n end\n"
      " loop i = floor($n / 4)*4 .. floor($n / 2)*2 step 2 last-thread\n store b0[i + 1], %1  f32\n end\n"
      " loop i = floor($n / 2)*2 .. $n step 1 last-thread\n store b0[i], %1  f32\n end\n}",
      NULL },
    { "kernel @k<n 4..90>(b0 out f32[$n]) tiled parallel i {\n var i = $n row unroll 4\n %1 = const 1  f32\n"
      " loop i = 0 .. floor($n / 4)*4 step 4 parallel\n store b0[i], %1  f32\n store b0[i + 3], %1  f32\n end\n"
      " loop i = floor($n / 4)*4 .. floor($n / 2)*2 step 2 last-thread\n store b0[i - 1], %1  f32\n end\n}",
      "" }, /* what the last tile wrote */
    { "kernel @k<n 1..9, m 1..4>(b0 in f32[$n*$m], b1 in i32[5], b2 out f32[$m*5]) scalar {\n var i = 5 var j = $m\n"
      " loop i = 0 .. 5 step 1\n %2 = load b1[i]  i32\n loop j = 0 .. $m step 1\n %4 = load b0[j + %2*$m of $n]  f32\n"
      " store b2[$m*i + j], %4  f32\n end\n end\n}",
      NULL },
    { "kernel @k<n 1..9, m 1..4>(b0 in f32[$n*$m], b1 in i32[5], b2 out f32[$m*5]) scalar {\n var i = 5 var j = $m\n"
      " loop i = 0 .. 5 step 1\n %2 = load b1[i]  i32\n loop j = 0 .. $m step 1\n %4 = load b0[j + %2*$m of $n + 1]  f32\n"
      " store b2[$m*i + j], %4  f32\n end\n end\n}",
      "touches element" },
    { "kernel @k<n 1..9, m 1..4>(b0 in f32[$n*$m], b1 in i32[5], b2 out f32[$m*5]) scalar {\n var i = 5 var j = $m\n"
      " loop i = 0 .. 5 step 1\n %2 = load b1[i]  i32\n loop j = 0 .. $m step 1\n %4 = load b0[j + %2*($m*2) of ceil($n / 2)]  "
      "f32\n"
      " store b2[$m*i + j], %4  f32\n end\n end\n}",
      NULL },
    { "kernel @k<n 1..9, m 1..4>(b0 in f32[$n*$m], b1 in i32[5], b2 out f32[$m*5]) scalar {\n var i = 5 var j = $m\n"
      " loop i = 0 .. 5 step 1\n %2 = load b1[i]  i32\n loop j = 0 .. $m step 1\n %4 = load b0[j + %2*$m of min($n, 3)]  f32\n"
      " store b2[$m*i + j], %4  f32\n end\n end\n}",
      NULL },
};

static void check_bad(size_t i, arena *a) {
    str problems;
    str_init(&problems, a);
    kernel *k = kernel_parse(a, bad[i].text, strlen(bad[i].text), "bad");
    int n = kernel_check(k, &problems);
    str text;
    str_init(&text, a);
    kernel_print(k, &text);
    assert_true(kernel_equal(k, kernel_parse(a, text.s, text.n, "printed")));
    if (!bad[i].problem != !n) fail_msg("%d problems: %s\n%s", n, problems.s ? problems.s : "", bad[i].text);
    if (n && !strstr(problems.s, bad[i].problem)) fail_msg("%s: not in: %s", bad[i].problem, problems.s);
}

static void test_refused(void **state) {
    (void)state;
    static const char *const texts[][2] = {
        { "kernel @k<n 1..9, n 1..9>() scalar {\n}", "declared before" },
        { "kernel @k<n 9..1>() scalar {\n}", "not below the least" },
        { "kernel @k<n 1..9 by 2>() scalar {\n}", "multiples of its divisor" },
        { "kernel @k(b0 in f32[$n]) scalar {\n}", "a dim of the kernel" },
        { "kernel @k<n 0..9>(b0 in f32[floor(8 / $n)]) scalar {\n}", "less than 1" },
        { "kernel @k(b0 in f32[-9223372036854775807]) scalar {\n}", "a number of 64 bits" },
        { "kernel @k<n 0..9>(b0 in f32[((((((((((((((((((((((($n)))))))))))))))))))))))]) scalar {\n}", "fewer brackets" },
        { "kernel @k<n 0..9>(b0 in f32[$n*9223372036854775807*4]) scalar {\n}", "64 bits" },
    };
    for (size_t i = 0; i < COUNT_OF(texts) + COUNT_OF(bad); i++) {
        arena a;
        guard gd;
        bool stops = i < COUNT_OF(texts);
        arena_init(&a, mem_libc(), &gd);
        if (GUARD_TRY(&gd)) {
            if (stops) kernel_parse(&a, texts[i][0], strlen(texts[i][0]), "text");
            if (stops) fail_msg("no error: %s", texts[i][0]);
            check_bad(i - COUNT_OF(texts), &a);
        } else if (!stops || !strstr(gd.err.text, texts[i][1])) {
            fail_msg("%s: %s", stops ? texts[i][1] : bad[i - COUNT_OF(texts)].text, gd.err.text);
        }
        arena_fini(&a);
    }
}

/* Values out of range; steps that need literals say so. */
static void test_values(void **state) {
    (void)state;
    static const struct {
        int64_t dims[3];
        const char *why;
    } wrong[] = { { { 41, 2, 3 }, "dim m is 41: expected 1 to 40" },
                  { { 1, 3, 3 }, "dim k is 3: expected 0 to 64, a multiple of 2" } };
    arena a;
    guard gd;
    str why;
    for (size_t i = 0; i < COUNT_OF(wrong) + 1; i++) {
        arena_init(&a, mem_libc(), &gd);
        str_init(&why, &a);
        if (GUARD_TRY(&gd)) {
            kernel *k = kernel_parse(&a, MATMUL, strlen(MATMUL), "text");
            if (i < COUNT_OF(wrong)) kernel_at(k, wrong[i].dims, &a);
            if (i < COUNT_OF(wrong)) fail_msg("no error");
            schedule all = schedule_parse_steps(&a, "split j 8; tile", 15, "steps");
            assert_false(schedule_try(&k, &all, &why));
            assert_non_null(strstr(why.s, "sizes that are given at run time ($m, $k, $n): this step needs literal ones"));
        } else if (!strstr(gd.err.text, wrong[i].why)) {
            fail_msg("%s", gd.err.text);
        }
        arena_fini(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_expressions), cmocka_unit_test(test_comparisons),
                                        cmocka_unit_test(test_kernels),     cmocka_unit_test(test_refused),
                                        cmocka_unit_test(test_values),      cmocka_unit_test(test_sums) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
