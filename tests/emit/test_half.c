/* test_half.c - conversions between f16 and f32 in compiled kernels have exactly the bits that base has: all 65536 values of
 * f16, f32 patterns of all exponents with their neighbours around ties, there and back within one kernel; at every lane count
 * and level. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tenon/tenon.h"

#include "base/base.h"

enum { N_HALF = 1 << 16, N_FLOAT = (1 << 18) + 7 };

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* z = f(x) on a context for the code generator `cpu`. */
static void run(const char *cpu, tn_tensor (*f)(tn_tensor), tn_dtype t, int64_t n, void *x, void *z) {
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = cpu };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    tn_graph *g = tn_graph_new(ctx, "half");
    tn_output(f(tn_input(g, "x", t, TN_DIMS(n))), "z");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p = NULL;
    tn_session *s = NULL;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    if (tn_run(s, TN_BIND({ "x", x }, { "z", z }))) fail_msg("%s", tn_session_error(s));
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

static tn_tensor to_f32(tn_tensor x) { return tn_cast(x, TN_F32); }
static tn_tensor to_f16(tn_tensor x) { return tn_cast(x, TN_F16); }
static tn_tensor there_and_back(tn_tensor x) { return tn_cast(tn_cast(x, TN_F16), TN_F32); }
static tn_tensor negated_half(tn_tensor x) { return tn_neg(x); } /* arithmetic in f16: a load, a conversion, a store */

static uint32_t pattern(int64_t i) { /* an f16 value with the bits below it around a tie, or anything */
    static const uint32_t below[] = { 0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x800, 0x17ff };
    uint32_t u = (uint32_t)((uint64_t)i * 16411);
    return i % 2 ? u : (u & ~0x1fffu) | below[i / 2 % 8];
}

static const char *const cpus[] = { NULL, "x86", "sse2", "c" };
static const int64_t sizes[] = { N_FLOAT, 1, 2, 3, 4, 5, 8, 15, 17 };

static void test_half_to_float(void **state) {
    (void)state;
    uint16_t *x = malloc(N_HALF * sizeof *x);
    float *z = malloc(N_HALF * sizeof *z);
    for (int i = 0; i < N_HALF; i++) x[i] = (uint16_t)i;
    for (size_t c = 0; c < COUNT_OF(cpus); c++)
        for (size_t k = 0; k < COUNT_OF(sizes); k++) {
            int64_t n = k ? sizes[k] : N_HALF, first = k ? 0x7c00 - n / 2 : 0; /* around infinity */
            run(cpus[c], to_f32, TN_F16, n, x + first, z);
            for (int64_t i = 0; i < n; i++)
                if (bits_of(z[i]) != bits_of(half_to_f32(x[first + i])))
                    fail_msg("cpu %s, n %d: f16 0x%04x gives 0x%08x, not 0x%08x", cpus[c] ? cpus[c] : "default", (int)n,
                             x[first + i], bits_of(z[i]), bits_of(half_to_f32(x[first + i])));
        }
    free(x);
    free(z);
}

static void test_float_to_half(void **state) {
    (void)state;
    float *x = malloc(N_FLOAT * sizeof *x), *y = malloc(N_FLOAT * sizeof *y);
    uint16_t *z = malloc(N_FLOAT * sizeof *z);
    for (int64_t i = 0; i < N_FLOAT; i++) x[i] = float_of(pattern(i));
    for (size_t c = 0; c < COUNT_OF(cpus); c++)
        for (size_t k = 0; k < COUNT_OF(sizes); k++) {
            float *from = k ? x + 1000 * k : x;
            run(cpus[c], to_f16, TN_F32, sizes[k], from, z);
            run(cpus[c], there_and_back, TN_F32, sizes[k], from, y);
            for (int64_t i = 0; i < sizes[k]; i++) {
                uint16_t want = half_from_f32(from[i]);
                if (z[i] != want || bits_of(y[i]) != bits_of(half_to_f32(want)))
                    fail_msg("cpu %s, n %d: 0x%08x gives f16 0x%04x, not 0x%04x; and back 0x%08x",
                             cpus[c] ? cpus[c] : "default", (int)sizes[k], bits_of(from[i]), z[i], want, bits_of(y[i]));
            }
        }
    free(x);
    free(y);
    free(z);
}

static void test_half_arithmetic(void **state) {
    (void)state;
    uint16_t *x = malloc(N_HALF * sizeof *x), *z = malloc(N_HALF * sizeof *z);
    for (int i = 0; i < N_HALF; i++) x[i] = (uint16_t)i;
    for (size_t c = 0; c < COUNT_OF(cpus); c++) {
        run(cpus[c], negated_half, TN_F16, N_HALF, x, z);
        for (int i = 0; i < N_HALF; i++) {
            uint16_t want = half_from_f32(-half_to_f32(x[i]));
            if (z[i] != want)
                fail_msg("cpu %s: -0x%04x gives 0x%04x, not 0x%04x", cpus[c] ? cpus[c] : "default", x[i], z[i], want);
        }
    }
    free(x);
    free(z);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_half_to_float), cmocka_unit_test(test_float_to_half),
                                        cmocka_unit_test(test_half_arithmetic) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
