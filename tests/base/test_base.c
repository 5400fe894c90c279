/* test_base.c - arenas, lists, strings, hashes, sizes, half types, Philox and the guard, against published or independently
 * computed values. */
#include "base/base.h"
#include "rt/aligned.h"

#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* xorshift64*: the tests' own numbers, so that they do not lean on what they test */
static uint64_t rng = 0x9e3779b97f4a7c15u;
static uint64_t next_u64(void) {
    rng ^= rng >> 12, rng ^= rng << 25, rng ^= rng >> 27;
    return rng * 0x2545f4914f6cdd1du;
}

/* An allocator that counts live bytes, checks the sizes given back, and can be told to refuse. */
typedef struct counter {
    size_t live, calls, refuse_at; /* refuse_at: the call that fails, 0 = none */
    bool wrong;
} counter;
static void *count_realloc(void *ud, void *ptr, size_t old_size, size_t new_size) {
    counter *c = ud;
    size_t *block = ptr ? (size_t *)ptr - 2 : NULL;
    if (block && *block != old_size) c->wrong = true;
    if (new_size == 0) {
        c->live -= old_size;
        free(block);
        return NULL;
    }
    if (++c->calls == c->refuse_at) return NULL;
    block = realloc(block, new_size + 16);
    *block = new_size;
    c->live += new_size - (ptr ? old_size : 0);
    return block + 2;
}

static void test_memory(void **state) {
    (void)state;
    counter c = { 0 };
    mem m = { count_realloc, &c };
    char *p = mem_alloc(m, 100);
    for (int i = 0; i < 100; i++) assert_int_equal(p[i], 0);
    p = mem_realloc(m, p, 100, 300);
    mem_free(m, p, 300);
    mem_free(m, mem_alloc(m, 0), 0);
    mem_free(m, NULL, 7);
    char *s = mem_strdup(m, "tenon");
    assert_string_equal(s, "tenon");
    mem_strfree(m, s);
    mem_strfree(m, NULL);
    assert_int_equal(c.live, 0);
    assert_false(c.wrong);
    m = mem_libc();
    p = mem_alloc(m, 8);
    assert_non_null(p);
    mem_free(m, p, 8);
    const size_t large = (size_t)40 << 20;
    for (int i = 0; i < 3; i++) { /* also where memory was freed before */
        aligned x;
        bool zeroed;
        assert_true(aligned_fresh(m, large, 4096, &x, &zeroed) && zeroed);
        for (size_t k = 0; k < large; k += 1000) assert_int_equal(x.data[k], 0);
        memset(x.data, 1, large);
        aligned_free(m, &x);
    }
}

static void test_errors(void **state) {
    (void)state;
    err e = { 0 };
    assert_int_equal(err_set(&e, TN_ERR_IO, "%s is %d", "it", 5), TN_ERR_IO);
    assert_int_equal(e.code, TN_ERR_IO);
    assert_string_equal(e.text, "it is 5");
    char *big = malloc(10000);
    memset(big, 'x', 9999);
    big[9999] = 0;
    err_set(&e, TN_ERR_INVAL, "%s", big);
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
    free(big);
}

static int fail_deep(guard *gd, int depth) {
    if (depth == 0) guard_fail(gd, TN_ERR_SHAPE, "at depth %d", depth);
    return fail_deep(gd, depth - 1) + 1;
}
static void test_guard(void **state) {
    (void)state;
    guard gd;
    volatile int jumps = 0;
    for (volatile int round = 0; round < 3; round++) { /* a guard can be set again after a jump */
        if (GUARD_TRY(&gd)) {
            assert_int_equal(gd.err.code, TN_OK);
            assert_string_equal(gd.err.text, "");
            fail_deep(&gd, 20);
            fail();
        } else {
            jumps++;
            assert_int_equal(gd.err.code, TN_ERR_SHAPE);
            assert_string_equal(gd.err.text, "at depth 0");
        }
    }
    assert_int_equal(jumps, 3);
}

static void test_arena(void **state) {
    (void)state;
    counter c = { 0 };
    guard gd;
    arena a;
    arena_init(&a, (mem){ count_realloc, &c }, &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    unsigned char *at[300];
    size_t size[300];
    for (int i = 0; i < 300; i++) { /* sizes on both sides of the block steps; nothing overlaps, all is zero */
        size[i] = i % 50 == 49 ? (size_t)(next_u64() % 3000000) : (size_t)(next_u64() % 700);
        at[i] = arena_alloc(&a, size[i]);
        assert_int_equal((uintptr_t)at[i] % 16, 0);
        for (size_t k = 0; k < size[i]; k++)
            if (at[i][k]) fail_msg("byte %zu of block %d is not zero", k, i);
        memset(at[i], i % 255 + 1, size[i]);
    }
    for (int i = 0; i < 300; i++)
        for (size_t k = 0; k < size[i]; k++)
            if (at[i][k] != i % 255 + 1) fail_msg("block %d was overwritten at %zu", i, k);
    assert_memory_equal(arena_copy(&a, "abcd", 4), "abcd", 4);
    assert_non_null(arena_copy(&a, NULL, 0));
    assert_string_equal(arena_strdup(&a, "joint"), "joint");
    assert_string_equal(arena_printf(&a, "%s-%03d", "x", 7), "x-007");
    assert_true(a.total > 0 && a.total <= c.live);
    arena_fini(&a);
    assert_int_equal(c.live, 0);
    assert_int_equal(a.total, 0);
    assert_false(c.wrong);
    arena_fini(&a); /* again is fine */
}

/* A child's memory is its own until it is reset, then used again: the parent stops growing. Lists grow in place while they are
 * the last in their block, and elsewhere by a copy. */
static void test_arena_child(void **state) {
    (void)state;
    counter c = { 0 };
    guard gd;
    arena a, child;
    arena_init(&a, (mem){ count_realloc, &c }, &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    arena_child(&child, &a);
    arena_reset(&child); /* of an empty one */
    size_t total = 0;
    for (int round = 0; round < 40; round++) {
        VEC(int) x = { 0 }, y = { 0 };
        unsigned char *kept = arena_alloc(&a, 100);
        memset(kept, 0xab, 100);
        for (int i = 0; i < 3000; i++) {
            VEC_PUSH(&child, &x, i);
            if (i % 3 == 0) VEC_PUSH(&child, &y, -i);
            unsigned char *z = arena_alloc(&child, (size_t)(i % 40));
            for (int k = 0; k < i % 40; k++)
                if (z[k]) fail_msg("round %d: byte %d of %d is not zero", round, k, i);
            memset(z, 0xcd, (size_t)(i % 40));
        }
        for (int i = 0; i < 3000; i++) assert_int_equal(x.at[i], i);
        for (int i = 0; i < 1000; i++) assert_int_equal(y.at[i], -3 * i);
        for (int k = 0; k < 100; k++) assert_int_equal(kept[k], 0xab);
        for (int i = x.n; i < x.cap; i++) assert_int_equal(x.at[i], 0);
        arena_reset(&child);
        if (round == 3) total = a.total;
    }
    assert_true(a.total < total + 10000);
    VEC(int) x = { 0 };
    const int *first = NULL;
    for (int i = 0; i < 100; i++) {
        VEC_PUSH(&child, &x, i);
        if (i == 0) first = x.at;
    }
    assert_ptr_equal(x.at, first);
    arena_fini(&child);
    arena_fini(&a);
    assert_int_equal(c.live, 0);
    assert_false(c.wrong);
}

static void test_arena_limits(void **state) {
    (void)state;
    counter c = { .refuse_at = 2 };
    guard gd;
    arena a;
    arena_init(&a, (mem){ count_realloc, &c }, &gd);
    volatile int n = 0;
    if (GUARD_TRY(&gd)) {
        for (;; n++) arena_alloc(&a, 1000);
    }
    assert_int_equal(gd.err.code, TN_ERR_NOMEM);
    assert_non_null(strstr(gd.err.text, "out of memory"));
    assert_int_equal(n, 4);                                     /* the first block holds four */
    if (GUARD_TRY(&gd)) assert_non_null(arena_alloc(&a, 1000)); /* and the arena can still be used */
    assert_int_equal(gd.err.code, TN_OK);
    if (GUARD_TRY(&gd)) arena_alloc(&a, SIZE_MAX - 3);
    assert_int_equal(gd.err.code, TN_ERR_NOMEM);
    if (GUARD_TRY(&gd)) arena_array(&a, SIZE_MAX / 2, 3);
    assert_int_equal(gd.err.code, TN_ERR_NOMEM);
    if (GUARD_TRY(&gd)) assert_non_null(arena_array(&a, SIZE_MAX, 0));
    assert_int_equal(gd.err.code, TN_OK);
    arena_fini(&a);
    assert_int_equal(c.live, 0);
}

typedef struct pair {
    int x, y;
} pair;
static void test_vec(void **state) {
    (void)state;
    guard gd;
    arena a;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    VEC(pair) v = { 0 };
    for (int i = 0; i < 10000; i++) VEC_PUSH(&a, &v, (pair){ i, -i });
    assert_int_equal(v.n, 10000);
    assert_true(v.cap >= v.n);
    for (int i = 0; i < v.n; i++) assert_true(v.at[i].x == i && v.at[i].y == -i);
    arena_fini(&a);
}

static const char *double_text(arena *a, double v) {
    str s;
    str_init(&s, a);
    str_double(&s, v);
    assert_int_equal(strlen(s.s), s.n);
    return s.s;
}
static void test_str(void **state) {
    (void)state;
    guard gd;
    arena a;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    str s;
    str_init(&s, &a);
    assert_string_equal(s.s, "");
    char expect[20000] = "";
    size_t n = 0;
    for (int i = 0; i < 1000; i++) {
        str_addf(&s, "%d,", i);
        str_add(&s, "ab");
        str_addn(&s, "xyz", 2);
        n += (size_t)snprintf(expect + n, sizeof expect - n, "%d,abxy", i);
    }
    assert_string_equal(s.s, expect);
    assert_int_equal(s.n, n);
    str_init(&s, &a);
    str_json(&s, "a\"b\\c\nd\te\x01\xc3\xa9");
    assert_string_equal(s.s, "\"a\\\"b\\\\c\\nd\\u0009e\\u0001\xc3\xa9\"");
    arena_fini(&a);
}

static void test_str_double(void **state) {
    (void)state;
    guard gd;
    arena a;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    static const struct {
        double v;
        const char *text;
    } known[] = { { 0.5, "0.5" },
                  { 1, "1.0" },
                  { -2, "-2.0" },
                  { 1e-7, "1e-07" },
                  { 0, "0.0" },
                  { -0.0, "-0.0" },
                  { 0.1, "0.1" },
                  { 1e300, "1e+300" },
                  { 100, "1e+02" },
                  { INFINITY, "inf" },
                  { NAN, "nan" },
                  { -INFINITY, "-inf" },
                  { 1.0 / 3, "0.3333333333333333" } };
    for (size_t i = 0; i < COUNT_OF(known); i++) assert_string_equal(double_text(&a, known[i].v), known[i].text);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = next_u64();
        double v, back;
        if (i % 4 == 0) bits &= 0xfff0000000000fffu; /* long runs of zeros */
        if (i % 8 == 1) bits &= 0x800fffffffffffffu; /* subnormals */
        memcpy(&v, &bits, 8);
        back = strtod(double_text(&a, v), NULL);
        if (isnan(v))
            assert_true(isnan(back));
        else
            assert_memory_equal(&v, &back, 8);
    }
    arena_fini(&a);
}

static void test_numbers_in_any_locale(void **state) {
    (void)state;
    static const char *const commas[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8" };
    bool set = false;
    for (size_t i = 0; i < COUNT_OF(commas) && !set; i++) set = setlocale(LC_NUMERIC, commas[i]) != NULL;
    char text[40];
    const char *rest;
    number_write(text, sizeof text, 17, 0.5);
    double v = number_read("1.25e-3]", &rest);
    setlocale(LC_NUMERIC, "C");
    assert_string_equal(text, "0.5");
    assert_true(v == 1.25e-3);
    assert_string_equal(rest, "]");
    if (!set) printf("no locale with a decimal comma is installed: only C was tried\n");
}

static void test_hash(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t hash;
    } known[] = { { "", 0xef46db3751d8e999u },
                  { "a", 0xd24ec4f1a98c6e5bu },
                  { "as", 0x1c330fb2d66be179u },
                  { "asd", 0x631c37ce72a97393u },
                  { "asdf", 0x415872f599cea71eu },
                  { "Call me Ishmael. Some years ago--never mind how long precisely-", 0x02a2e85470d6fd96u } };
    for (size_t i = 0; i < COUNT_OF(known); i++)
        assert_true(hash_bytes(known[i].text, strlen(known[i].text), 0) == known[i].hash);

    /* the self-test of the reference implementation: its buffer, lengths and seeds */
    unsigned char buf[222];
    uint64_t gen = 2654435761u;
    for (size_t i = 0; i < sizeof buf; i++, gen *= 11400714785074694797u) buf[i] = (unsigned char)(gen >> 56);
    static const struct {
        size_t n;
        uint64_t seed, hash;
    } self[] = { { 0, 0, 0xef46db3751d8e999u },
                 { 0, 2654435761u, 0xac75fda2929b17efu },
                 { 1, 0, 0xe934a84adb052768u },
                 { 1, 2654435761u, 0x5014607643a9b4c3u },
                 { 4, 0, 0x9136a0dca57457eeu },
                 { 14, 0, 0x8282dcc4994e35c8u },
                 { 14, 2654435761u, 0xc3bd6bf63deb6df0u },
                 { 222, 0, 0xb641ae8cb691c174u },
                 { 222, 2654435761u, 0x20cb8ab7ae10c14au } };
    for (size_t i = 0; i < COUNT_OF(self); i++)
        if (hash_bytes(buf, self[i].n, self[i].seed) != self[i].hash)
            fail_msg("%zu bytes, seed %llu", self[i].n, (unsigned long long)self[i].seed);

    hash128 x = hash_bytes128(buf, 100), y = hash_bytes128(buf, 101), again = hash_bytes128(buf, 100);
    assert_true(x.lo == again.lo && x.hi == again.hi);
    assert_true(x.lo != y.lo && x.hi != y.hi && x.lo != x.hi);
}

static void test_sizes(void **state) {
    (void)state;
    static const int64_t edge[] = { 0,
                                    1,
                                    2,
                                    3,
                                    7,
                                    1 << 20,
                                    3037000499,
                                    3037000500,
                                    (int64_t)1 << 32,
                                    INT64_MAX / 2,
                                    INT64_MAX / 2 + 1,
                                    INT64_MAX - 1,
                                    INT64_MAX,
                                    -1,
                                    INT64_MIN };
    for (size_t i = 0; i < COUNT_OF(edge) + 200; i++)
        for (size_t k = 0; k < COUNT_OF(edge); k++) {
            int64_t a = i < COUNT_OF(edge) ? edge[i] : (int64_t)(next_u64() >> next_u64() % 63), b = edge[k], out = 42;
            __int128 product = (__int128)a * b, sum = (__int128)a + b;
            bool negative = a < 0 || b < 0, mul_fits = !negative && product <= INT64_MAX,
                 add_fits = !negative && sum <= INT64_MAX;
            assert_int_equal(size_mul(a, b, &out), mul_fits);
            assert_true(out == (mul_fits ? (int64_t)product : 42));
            out = 42;
            assert_int_equal(size_add(a, b, &out), add_fits);
            assert_true(out == (add_fits ? (int64_t)sum : 42));
        }
}

/* A 16-bit float with `bits` mantissa bits, by its definition. */
static double value_of(unsigned h, int bits, int bias) {
    int exponent = (int)(h >> bits & ((1u << (15 - bits)) - 1)), top = (1 << (15 - bits)) - 1;
    unsigned mantissa = h & ((1u << bits) - 1);
    double v = exponent == top ? (mantissa ? NAN : INFINITY)
               : exponent      ? ldexp((double)(mantissa | 1u << bits), exponent - bias - bits)
                               : ldexp((double)mantissa, 1 - bias - bits);
    return h & 0x8000 ? -v : v;
}
static void check_format(float (*to)(uint16_t), uint16_t (*from)(float), int bits, int bias) {
    unsigned infinity = ((1u << (15 - bits)) - 1) << bits;
    for (unsigned h = 0; h < 65536; h++) {
        double exact = value_of(h, bits, bias);
        float f = to((uint16_t)h);
        if (isnan(exact)) {
            if (!isnan(f) || !isnan(value_of(from(f), bits, bias))) fail_msg("NaN %04x is lost", h);
            continue;
        }
        if ((double)f != exact || !signbit(f) != !(h >> 15)) fail_msg("%04x is %g, not %g", h, (double)f, exact);
        if (from(f) != h) fail_msg("%04x comes back as %04x", h, from(f));
        if ((h & 0x7fff) >= infinity) continue;
        /* between h and its neighbour away from 0 (infinity's place counts as the next power of two) */
        double next = (h & 0x7fff) + 1 == infinity ? copysign(ldexp(1, infinity == 0x7c00 ? 16 : 128), exact)
                                                   : value_of(h + 1, bits, bias);
        double middle = exact + (next - exact) / 2;
        unsigned even = h & 1 ? h + 1 : h;
        float at = (float)middle; /* exact: one more mantissa bit */
        if ((double)at != middle) fail_msg("the middle after %04x is not a float", h);
        float away = h & 0x8000 ? -INFINITY : INFINITY;
        if (from(at) != even) fail_msg("the tie after %04x goes to %04x", h, from(at));
        if (from(nextafterf(at, 0)) != h) fail_msg("below the tie after %04x: %04x", h, from(nextafterf(at, 0)));
        if (from(nextafterf(at, away)) != h + 1) fail_msg("above the tie after %04x: %04x", h, from(nextafterf(at, away)));
    }
    assert_int_equal(from(INFINITY), infinity);
    assert_int_equal(from(-INFINITY), infinity | 0x8000);
    assert_int_equal(from(3.4028234e38f), infinity); /* the largest float is beyond both formats' last tie */
    assert_int_equal(from(-1e-45f), 0x8000);
    assert_true(isnan(to(from(NAN))) && isnan(to(from(-NAN))));
    uint32_t quiet_bits = 0x7f800001; /* a NaN whose payload is all below the format's last place */
    float payload;
    memcpy(&payload, &quiet_bits, 4);
    assert_true(isnan(to(from(payload))));
}
static void test_half(void **state) {
    (void)state;
    check_format(half_to_f32, half_from_f32, 10, 15);
    for (int i = 0; i < 200000; i++) { /* any float: nothing nearer exists */
        uint32_t u = (uint32_t)next_u64();
        float f;
        memcpy(&f, &u, 4);
        if (!(fabsf(f) < 65504)) continue;
        uint16_t h = half_from_f32(f);
        double d = fabs((double)f - value_of(h, 10, 15));
        assert_true(d <= fabs((double)f - value_of((h & 0x8000) | ((h & 0x7fffu) + 1), 10, 15)));
        if (h & 0x7fff) assert_true(d <= fabs((double)f - value_of(h - 1u, 10, 15)));
    }
}
static void test_bf16(void **state) {
    (void)state;
    check_format(bf16_to_f32, bf16_from_f32, 7, 127);
}

static void test_philox(void **state) {
    (void)state;
    static const uint32_t known[3][10] = { /* counter, key, result: the known answers of Random123 */
                                           { 0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
                                           { ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
                                           { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
                                             0x94fdcceb, 0x5001e420, 0x24126ea1 }
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        philox4x32(known[i], known[i] + 4, out);
        assert_memory_equal(out, known[i] + 6, 16);
    }
    assert_true(random_uniform_at(0, 0, 0) == (float)(0x6627e8d5 >> 8) / 16777216.0f);
    assert_true(random_uniform_at(-1, -1, -1) == (float)(0x408f276d >> 8) / 16777216.0f);
    double sum = 0, squares = 0;
    enum { N = 100000 };
    for (int i = 0; i < N; i++) {
        float u = random_uniform_at(3, 9, i);
        assert_true(u >= 0 && u < 1);
        sum += (double)u, squares += (double)u * (double)u;
    }
    assert_true(fabs(sum / N - 0.5) < 0.005 && fabs(squares / N - 1.0 / 3) < 0.005); /* 5 standard deviations */
    assert_true(random_uniform_at(1, 2, 3) != random_uniform_at(2, 1, 3));
}

static void test_clock(void **state) {
    (void)state;
    double a = now_seconds(), b = now_seconds();
    assert_true(a > 0 && b >= a && b < a + 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),      cmocka_unit_test(test_errors),
        cmocka_unit_test(test_guard),       cmocka_unit_test(test_arena),
        cmocka_unit_test(test_arena_child), cmocka_unit_test(test_arena_limits),
        cmocka_unit_test(test_vec),         cmocka_unit_test(test_str),
        cmocka_unit_test(test_str_double),  cmocka_unit_test(test_hash),
        cmocka_unit_test(test_sizes),       cmocka_unit_test(test_half),
        cmocka_unit_test(test_bf16),        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_clock),       cmocka_unit_test(test_numbers_in_any_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
