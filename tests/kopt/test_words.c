/* test_words.c - words of several narrow numbers in kernels: what they mean, and what the checker refuses. */
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
static const char *one_update(arena *a, const char *x, const char *y, int apart, int parts, const char *t) {
    return arena_printf(a,
                        "kernel @words(b0 in %s[32], b1 in %s[32], b2 out %s[4]) tiled {\n"
                        "  %%1 = acc add %s  %sx4\n"
                        "  %%2 = load b0[1] step %d parts %d apart 1 from %s  i32x4\n"
                        "  %%3 = load b1[3] step 1 parts %d apart %d from %s  i32x4\n"
                        "  update %%1 fma %%2, %%3 parts %d  %sx4\n"
                        "  store b2[0] step 1, %%1  %sx4\n}\n",
                        x, y, t, strcmp(t, "f32") ? "0" : "0.0", t, parts, parts, x, parts, apart, y, parts, t, t);
}

static void test_meaning(void **state) {
    (void)state;
    static const struct {
        tn_dtype x, y;
        int parts;
    } cases[] = { { TN_U8, TN_I8, 4 }, { TN_U8, TN_I8, 2 }, { TN_I8, TN_I8, 2 }, { TN_U8, TN_U8, 2 }, { TN_BF16, TN_BF16, 2 } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
        bool f = cases[i].x == TN_BF16;
        int n = cases[i].parts, apart = 5;
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
        { "step 4 parts 4", "step 4 parts 3" },
        { "b1[3]", "b1[15]" },
        { "%2, %3 parts 4  i32x4", "%2, %3 parts 4  f32x4" },
        { "load b0[1] step 4 parts 4 apart 1 from u8  i32x4", "load b0[1] step 1 from u8  i32x4" },
        { "parts 4 apart 5", "parts 4 apart 9" }
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

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_meaning), cmocka_unit_test(test_refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
