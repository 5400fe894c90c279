/* test_npy.c - npy round trips, files as NumPy writes them, malformed headers and the message of each, mutations. */
#include "io_test.h"

#include <unistd.h>

static size_t make_npy(uint8_t *to, const char *header, const void *data, size_t n_data) {
    size_t n = strlen(header);
    memcpy(to, "\x93NUMPY\x01\x00", 8);
    to[8] = (uint8_t)n, to[9] = (uint8_t)(n >> 8);
    memcpy(to + 10, header, n);
    if (data)
        memcpy(to + 10 + n, data, n_data);
    else
        memset(to + 10 + n, 0, n_data);
    return 10 + n + n_data;
}

static void test_round_trip(void **state) {
    (void)state;
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    uint64_t seed = 3;
    for (int round = 0; round < 120; round++) {
        tn_dtype dtype = (tn_dtype)rnd_below(&seed, TN_N_DTYPES);
        if (!tn_dtype_get_info(dtype)->numpy) dtype = TN_F32;
        tn_shape shape = { rnd_below(&seed, 7), { 0 } };
        size_t n = tn_dtype_size(dtype);
        for (int i = 0; i < shape.rank; i++) n *= (size_t)(shape.dim[i] = rnd_below(&seed, 9) ? 1 + rnd_below(&seed, 4) : 0);
        uint8_t *data = malloc(n + 1);
        for (size_t i = 0; i < n; i++) data[i] = (uint8_t)(dtype == TN_BOOL ? rnd(&seed) & 1 : rnd(&seed));
        assert_int_equal(tn_io_npy_save(ctx, in_dir("a.npy"), dtype, shape, data), TN_OK);
        tn_dtype got_dtype;
        tn_shape got_shape;
        void *got;
        assert_int_equal(tn_io_npy_load(ctx, in_dir("a.npy"), &got_dtype, &got_shape, &got), TN_OK);
        assert_int_equal(got_dtype, dtype);
        assert_int_equal(got_shape.rank, shape.rank);
        for (int i = 0; i < shape.rank; i++) assert_int_equal(got_shape.dim[i], shape.dim[i]);
        assert_memory_equal(got, data, n);
        tn_io_free(ctx, got);
        free(data);
    }
    assert_fails(ctx, tn_io_npy_save(ctx, in_dir("b.npy"), TN_BF16, TN_SCALAR, &seed), TN_ERR_UNSUPPORTED,
                 "npy has no bf16; cast to f32", "bf16");
    assert_fails(ctx, tn_io_npy_save(ctx, in_dir("b.npy"), TN_F32, TN_DIMS(-1), &seed), TN_ERR_INVAL, "not valid", "shape");
    assert_fails(ctx, tn_io_npy_save(ctx, in_dir("b.npy"), TN_F32, TN_DIMS(2), NULL), TN_ERR_INVAL, "not valid", "no data");
    tn_ctx_free(ctx);
    assert_int_equal(c.live, 0);
}

/* The first bytes as numpy.save writes them for float32 of shape (2, 3): header padded to 128 bytes in all. */
static void test_layout(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    const float x[6] = { 0, 1, 2, 3, 4, 5 };
    assert_int_equal(tn_io_npy_save(ctx, in_dir("l.npy"), TN_F32, TN_DIMS(2, 3), x), TN_OK);
    uint8_t got[256];
    FILE *f = fopen(in_dir("l.npy"), "rb");
    assert_int_equal(fread(got, 1, sizeof got, f), 128 + 24);
    fclose(f);
    const char *text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    assert_memory_equal(got, "\x93NUMPY\x01\x00\x76\x00", 10);
    assert_memory_equal(got + 10, text, strlen(text));
    assert_int_equal(got[127], '\n');
    assert_memory_equal(got + 128, x, 24);
    tn_ctx_free(ctx);
}

static void test_foreign(void **state) {
    (void)state;
    static const struct {
        const char *header;
        tn_dtype dtype;
        int rank;
        size_t n;
    } good[] = {
        { "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }\n", TN_F64, 1, 24 },
        { "{\"shape\":(2,1,2),\"fortran_order\":False,\"descr\":\"<i4\"}", TN_I32, 3, 16 },
        { "{'descr': '|b1', 'fortran_order': False, 'shape': (), }   \n", TN_BOOL, 0, 1 },
        { "{'descr': '<u1', 'fortran_order': True, 'shape': (1, 4, 1)}", TN_U8, 3, 4 },
        { "{'descr': '|i1', 'fortran_order': True, 'shape': (3, 0, 4)}", TN_I8, 3, 0 },
        { "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 2, ), }", TN_F16, 2, 8 },
    };
    tn_ctx *ctx = tn_ctx_new(NULL);
    uint8_t file[512], wide[512];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        for (int version = 1; version <= 3; version++) {
            size_t n = make_npy(file, good[i].header, NULL, good[i].n);
            if (version > 1) { /* four bytes of length */
                memcpy(wide, file, 10);
                wide[6] = (uint8_t)version, wide[10] = wide[11] = 0;
                memcpy(wide + 12, file + 10, n - 10);
                memcpy(file, wide, n += 2);
            }
            tn_dtype dtype;
            tn_shape shape;
            void *data;
            if (tn_io_npy_parse(ctx, file, n, "good.npy", &dtype, &shape, &data)) fail_msg("%s", tn_ctx_error(ctx));
            assert_int_equal(dtype, good[i].dtype);
            assert_int_equal(shape.rank, good[i].rank);
            tn_io_free(ctx, data);
        }
    tn_ctx_free(ctx);
}

#define H(descr, fortran, shape) "{'descr': " descr ", 'fortran_order': " fortran ", 'shape': " shape ", }\n"
static const struct {
    const char *header;
    size_t n_data;
    tn_status status;
    const char *message;
} bad[] = {
    { "", 0, TN_ERR_PARSE, "expected '{' at the start" },
    { "{}", 0, TN_ERR_PARSE, "key 'descr' is missing" },
    { "{'descr': '<f4'}", 0, TN_ERR_PARSE, "key 'fortran_order' is missing" },
    { "{'descr': '<f4', 'fortran_order': False}", 0, TN_ERR_PARSE, "key 'shape' is missing" },
    { "{'descr': '<f4', 'descr': '<f4'}", 0, TN_ERR_PARSE, "key 'descr' is there twice" },
    { "{'descr': '<f4', 'x': 1}", 0, TN_ERR_PARSE, "key 'x' is unknown" },
    { "{'descr' '<f4'}", 0, TN_ERR_PARSE, "expected ':' after a key" },
    { "{descr: '<f4'}", 0, TN_ERR_PARSE, "before a key, found 'd'" },
    { "{'descr': '<f4' 'shape': ()}", 0, TN_ERR_PARSE, "expected ',' or '}'" },
    { "{'a_key_that_is_longer_than_any': 1}", 0, TN_ERR_PARSE, "a text of more than 23 characters" },
    { "{'descr\\n': 1}", 0, TN_ERR_PARSE, "has no end or holds" },
    { "{'descr", 0, TN_ERR_PARSE, "has no end or holds" },
    { H("'>f4'", "False", "(2,)"), 8, TN_ERR_UNSUPPORTED, "big-endian; save it with x.astype('<f4')" },
    { H("'<c8'", "False", "(2,)"), 4, TN_ERR_UNSUPPORTED, "dtype '<c8' has no counterpart" },
    { H("'<c8'", "False", "(2,)"), 16, TN_ERR_UNSUPPORTED, "dtype '<c8'" },
    { H("'|O'", "False", "(2,)"), 16, TN_ERR_UNSUPPORTED, "dtype '|O'" },
    { H("''", "False", "(2,)"), 16, TN_ERR_UNSUPPORTED, "dtype ''" },
    { H("[('a', '<f4')]", "False", "(2,)"), 8, TN_ERR_UNSUPPORTED, "records" },
    { H("'<f4'", "True", "(2, 3)"), 24, TN_ERR_UNSUPPORTED, "Fortran order" },
    { H("'<f4'", "0", "(2,)"), 8, TN_ERR_PARSE, "True or False" },
    { H("'<f4'", "Falsey", "(2,)"), 8, TN_ERR_PARSE, "expected ',' or '}'" },
    { H("'<f4'", "False", "(2)"), 8, TN_ERR_PARSE, "needs a comma, as in (3,)" },
    { H("'<f4'", "False", "[2]"), 8, TN_ERR_PARSE, "expected '(' before the shape" },
    { H("'<f4'", "False", "(2L,)"), 8, TN_ERR_PARSE, "expected ',' or ')'" },
    { H("'<f4'", "False", "(-2,)"), 8, TN_ERR_PARSE, "not negative" },
    { H("'<f4'", "False", "(2.,)"), 8, TN_ERR_PARSE, "whole number" },
    { H("'<f4'", "False", "(,)"), 8, TN_ERR_PARSE, "not negative" },
    { H("'<f4'", "False", "(2,,)"), 8, TN_ERR_PARSE, "not negative" },
    { H("'<f4'", "False", "(2"), 8, TN_ERR_PARSE, "an axis must be a whole number" },
    { H("'<f4'", "False", "(9223372036854775808,)"), 8, TN_ERR_PARSE, "does not fit 63 bits" },
    { H("'<f4'", "False", "(4611686018427387904,)"), 8, TN_ERR_PARSE, "multiply beyond 63 bits" },
    { H("'<f4'", "False", "(0, 4611686018427387904,)"), 0, TN_ERR_PARSE, "multiply beyond 63 bits" },
    { H("'<f4'", "False", "(1,1,1,1,1,1,1,1,1,1,1,1,2)"), 8, TN_ERR_PARSE, "more than 12 axes" },
    { H("'<f4'", "False", "(3,)"), 8, TN_ERR_PARSE, "need 12 bytes, the file has 8 (truncated?)" },
    { H("'<f4'", "False", "(1,)"), 8, TN_ERR_PARSE, "need 4 bytes, the file has 8 (more than one array?)" },
    { H("'<f4'", "False", "(2,)") "x", 8, TN_ERR_PARSE, "text after the header's end" },
};

static void test_malformed(void **state) {
    (void)state;
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    size_t live = c.live;
    uint8_t file[512];
    tn_dtype dtype;
    tn_shape shape;
    void *data;
    int n_bad = (int)(sizeof bad / sizeof *bad);
    for (int i = 0; i < n_bad; i++) {
        data = &c;
        size_t n = make_npy(file, bad[i].header, NULL, bad[i].n_data);
        assert_fails(ctx, tn_io_npy_parse(ctx, file, n, "bad.npy", &dtype, &shape, &data), bad[i].status, bad[i].message,
                     bad[i].header);
        assert_non_null(strstr(tn_ctx_error(ctx), "bad.npy"));
        assert_null(data);
        FILE *f = fopen(in_dir("bad.npy"), "wb"); /* the same from a file */
        assert_true(f && fwrite(file, 1, n, f) == n && fclose(f) == 0);
        assert_fails(ctx, tn_io_npy_load(ctx, in_dir("bad.npy"), &dtype, &shape, &data), bad[i].status, bad[i].message,
                     bad[i].header);
        assert_null(data);
        assert_int_equal(c.live, live);
    }
    /* a file of holes: read before it is judged, it would fill the memory */
    size_t n_long = make_npy(file, bad[n_bad - 1].header, NULL, 0);
    FILE *holes = fopen(in_dir("bad.npy"), "wb");
    assert_true(holes && fwrite(file, 1, n_long, holes) == n_long && fclose(holes) == 0);
    assert_int_equal(truncate(in_dir("bad.npy"), (off_t)1 << 40), 0);
    assert_fails(ctx, tn_io_npy_load(ctx, in_dir("bad.npy"), &dtype, &shape, &data), TN_ERR_PARSE,
                 "text after the header's end", "holes");
    n_long = make_npy(file, H("'<f4'", "False", "(2,)"), NULL, 8);
    holes = fopen(in_dir("bad.npy"), "wb");
    assert_true(holes && fwrite(file, 1, n_long, holes) == n_long && fclose(holes) == 0);
    assert_int_equal(truncate(in_dir("bad.npy"), (off_t)1 << 40), 0);
    assert_fails(ctx, tn_io_npy_load(ctx, in_dir("bad.npy"), &dtype, &shape, &data), TN_ERR_PARSE, "more than one array?",
                 "holes");
    static const struct {
        const char *bytes;
        size_t n;
        tn_status status;
        const char *message;
    } fronts[] = {
        { "\x93NUMPY", 6, TN_ERR_PARSE, "not an npy file" },
        { "PK\3\4aaaaaaaa", 12, TN_ERR_PARSE, "not an npy file" },
        { "\x93NUMPY\x01\x00\x10", 9, TN_ERR_PARSE, "ends inside its header" },
        { "\x93NUMPY\x04\x00\x10\x00\x00\x00", 12, TN_ERR_UNSUPPORTED, "npy version 4.0" },
        { "\x93NUMPY\x01\x00\x10\x00{", 11, TN_ERR_PARSE, "the header's length is 16, the file has only 1 bytes more" },
        { "\x93NUMPY\x02\x00\xFF\xFF\xFF\xFF{", 13, TN_ERR_PARSE, "more than the limit of 65536" },
    };
    for (size_t i = 0; i < sizeof fronts / sizeof *fronts; i++)
        assert_fails(ctx, tn_io_npy_parse(ctx, fronts[i].bytes, fronts[i].n, "bad.npy", &dtype, &shape, &data),
                     fronts[i].status, fronts[i].message, fronts[i].message);
    size_t n = make_npy(file, H("'|b1'", "False", "(3,)"), "\0\1\3", 3);
    assert_fails(ctx, tn_io_npy_parse(ctx, file, n, "bad.npy", &dtype, &shape, &data), TN_ERR_PARSE, "bool element 2 is 3",
                 "bool");
    assert_fails(ctx, tn_io_npy_load(ctx, in_dir("absent"), &dtype, &shape, &data), TN_ERR_IO, "No such file", "absent");
    printf("count: %d malformed npy headers, each with its message\n", n_bad + (int)(sizeof fronts / sizeof *fronts));
    tn_ctx_free(ctx);
}

static void test_mutations(void **state) {
    (void)state;
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    size_t live = c.live;
    uint8_t good[512], changed[1024];
    size_t n = make_npy(good, H("'<f4'", "False", "(2, 3)"), NULL, 24);
    uint64_t seed = 11;
    int accepted = 0, rounds = 4000;
    for (int i = 0; i < rounds + (int)n; i++) {
        size_t m =
            i < rounds ? mutate(&seed, good, n, changed, sizeof changed) : (size_t)(i - rounds); /* then every truncation */
        uint8_t *exact = malloc(m + !m);
        memcpy(exact, i < rounds ? changed : good, m);
        tn_dtype dtype;
        tn_shape shape;
        void *data;
        tn_status s = tn_io_npy_parse(ctx, exact, m, "m", &dtype, &shape, &data);
        if (s)
            assert_true((s == TN_ERR_PARSE || s == TN_ERR_UNSUPPORTED) && !data);
        else
            tn_io_free(ctx, data), accepted++;
        if (i >= rounds) assert_int_not_equal(s, TN_OK);
        free(exact);
        assert_int_equal(c.live, live);
    }
    assert_in_range(accepted, 1, rounds / 2);
    printf("count: %d mutated npy files\n", rounds);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_layout),    cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_malformed),  cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, setup_dir, teardown_dir);
}
