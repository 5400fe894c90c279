/* test_safetensors.c - round trips, exact layout, malformed files and the message of each, mutations, every failing allocation.
 */
#include "io_test.h"

/* A file from a header's text and n zero bytes of data. */
static size_t make_file(uint8_t *to, const char *header, size_t n_header, size_t n_data) {
    for (int i = 0; i < 8; i++) to[i] = (uint8_t)((uint64_t)n_header >> 8 * i);
    memcpy(to + 8, header, n_header);
    memset(to + 8 + n_header, 0, n_data);
    return 8 + n_header + n_data;
}

/* ---- round trips ---- */

enum { MAX_SET = 24 };
typedef struct set {
    tn_io_tensor t[MAX_SET];
    char names[MAX_SET][64];
    size_t bytes[MAX_SET];
    int n;
} set;

static size_t bytes_of(const tn_io_tensor *t) {
    size_t n = tn_dtype_size(t->dtype);
    for (int i = 0; i < t->shape.rank; i++) n *= (size_t)t->shape.dim[i];
    return n;
}

static void set_fill(set *s, uint64_t *seed) {
    static const char *const stems[] = {
        "w", "enc/fc1.weight", "quote\"back\\slash", "\xC3\xA9t\xC3\xA9", "\xF0\x9F\x8D\x80", "line\nfeed\ttab\x01", "a b"
    };
    s->n = rnd_below(seed, MAX_SET + 1);
    for (int i = 0; i < s->n; i++) {
        tn_io_tensor *t = &s->t[i];
        snprintf(s->names[i], sizeof s->names[i], "%s.%d", stems[rnd_below(seed, 7)], i);
        *t = (tn_io_tensor){ .name = s->names[i], .dtype = (tn_dtype)rnd_below(seed, TN_N_DTYPES) };
        t->shape.rank = rnd_below(seed, 6);
        for (int k = 0; k < t->shape.rank; k++) t->shape.dim[k] = rnd_below(seed, 8) ? 1 + rnd_below(seed, 4) : 0;
        s->bytes[i] = bytes_of(t);
        uint8_t *data = malloc(s->bytes[i] + 1);
        for (size_t k = 0; k < s->bytes[i]; k++) data[k] = (uint8_t)(t->dtype == TN_BOOL ? rnd(seed) & 1 : rnd(seed));
        t->data = data;
    }
}
static void set_free(set *s) {
    for (int i = 0; i < s->n; i++) free((void *)(uintptr_t)s->t[i].data);
}

static void test_round_trip(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    uint64_t seed = 1;
    for (int round = 0; round < 60; round++) {
        set s;
        tn_io_tensors *back;
        set_fill(&s, &seed);
        assert_int_equal(tn_io_safetensors_save(ctx, in_dir("a.safetensors"), s.t, s.n), TN_OK);
        assert_int_equal(tn_io_safetensors_load(ctx, in_dir("a.safetensors"), &back), TN_OK);
        assert_int_equal(tn_io_tensors_count(back), s.n);
        for (int i = 0; i < s.n; i++) {
            const tn_io_tensor *t = tn_io_tensors_find(back, s.names[i]);
            assert_non_null(t);
            assert_string_equal(t->name, s.names[i]);
            assert_int_equal(t->dtype, s.t[i].dtype);
            assert_int_equal(t->shape.rank, s.t[i].shape.rank);
            for (int k = 0; k < t->shape.rank; k++) assert_int_equal(t->shape.dim[k], s.t[i].shape.dim[k]);
            assert_int_equal((uintptr_t)t->data % 64, 0);
            assert_memory_equal(t->data, s.t[i].data, s.bytes[i]);
        }
        assert_null(tn_io_tensors_find(back, "absent"));
        assert_null(tn_io_tensors_get(back, s.n));
        assert_null(tn_io_tensors_get(back, -1));
        tn_io_tensors_free(back);
        set_free(&s);
    }
    tn_ctx_free(ctx);
}

/* The bytes other programs see: wide elements first, header padded to 8 bytes. */
static void test_layout(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    const uint8_t flags[3] = { 1, 0, 1 };
    const float w[2] = { 1.5f, -2.0f };
    const tn_io_tensor list[] = { { "f", TN_BOOL, TN_DIMS(3), flags }, { "w", TN_F32, TN_DIMS(1, 2), w } };
    assert_int_equal(tn_io_safetensors_save(ctx, in_dir("l.safetensors"), list, 2), TN_OK);
    uint8_t got[512] = { 0 };
    FILE *f = fopen(in_dir("l.safetensors"), "rb");
    size_t n = fread(got, 1, sizeof got, f);
    fclose(f);
    const char *text = "{\"w\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},\"f\":{\"dtype\":\"BOOL\",\"shape\":["
                       "3],\"data_offsets\":[8,11]}}";
    size_t header = (strlen(text) + 7) / 8 * 8;
    assert_int_equal(got[0], header);
    assert_memory_equal(got + 8, text, strlen(text));
    for (size_t i = strlen(text); i < header; i++) assert_int_equal(got[8 + i], ' ');
    assert_int_equal(n, 8 + header + 11);
    assert_memory_equal(got + 8 + header, w, 8);
    assert_memory_equal(got + 16 + header, flags, 3);
    tn_ctx_free(ctx);
}

/* What other writers do and ours does not: blanks, key order, metadata, escapes, unaligned arrays, empty arrays between others.
 */
static void test_foreign(void **state) {
    (void)state;
    static const char text[] = "{ \"__metadata__\" : {\"format\":\"pt\", \"no\\u0074e\":\"\\ud83c\\udf40 "
                               "\\u00e9\\n\"},\n\t\"b\":{\"shape\":[3],\"data_offsets\":[0,3],\"dtype\":\"U8\"},"
                               "\"none\":{\"dtype\":\"I64\",\"shape\":[2,0,5],\"data_offsets\":[3,3]},\"\\\"x\\/"
                               "\":{\"data_offsets\":[3,11],\"dtype\":\"F64\",\"shape\":[]}}  ";
    uint8_t file[512];
    size_t n = make_file(file, text, sizeof text - 1, 11);
    const double x = 0.1;
    memcpy(file + n - 11, "\x07\x08\x09", 3);
    memcpy(file + n - 8, &x, 8);
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_io_tensors *t;
    assert_int_equal(tn_io_safetensors_parse(ctx, file, n, "foreign", &t), TN_OK);
    assert_int_equal(tn_io_tensors_count(t), 3);
    assert_string_equal(tn_io_tensors_get(t, 0)->name, "b");
    assert_memory_equal(tn_io_tensors_find(t, "b")->data, "\x07\x08\x09", 3);
    assert_int_equal(tn_io_tensors_find(t, "none")->shape.dim[2], 5);
    assert_int_equal(tn_io_tensors_find(t, "\"x/")->shape.rank, 0);
    assert_memory_equal(tn_io_tensors_find(t, "\"x/")->data, &x, 8);
    assert_int_equal((uintptr_t)tn_io_tensors_find(t, "\"x/")->data % 8, 0);
    assert_string_equal(tn_io_tensors_metadata(t, "format"), "pt");
    assert_string_equal(tn_io_tensors_metadata(t, "note"), "\xF0\x9F\x8D\x80 \xC3\xA9\n");
    assert_null(tn_io_tensors_metadata(t, "absent"));
    tn_io_tensors_free(t);
    n = make_file(file, "{}", 2, 0);
    assert_int_equal(tn_io_safetensors_parse(ctx, file, n, "empty", &t), TN_OK);
    assert_int_equal(tn_io_tensors_count(t), 0);
    tn_io_tensors_free(t);
    tn_ctx_free(ctx);
}

/* ---- malformed files ---- */

#define T(fields) "{\"a\":{" fields "}}"
#define F32_2 "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"
static const struct {
    const char *header;
    size_t n_data;
    tn_status status;
    const char *message;
} bad[] = {
    { "", 0, TN_ERR_PARSE, "expected '{' at the start" },
    { "[]", 0, TN_ERR_PARSE, "expected '{' at the start of the header, found '['" },
    { " {}", 0, TN_ERR_PARSE, "expected '{' at the start" },
    { "{", 0, TN_ERR_PARSE, "found the end" },
    { "{}x", 0, TN_ERR_PARSE, "offset 10: text after the header's end" },
    { "{}\n", 0, TN_ERR_PARSE, "text after the header's end" },
    { "{},", 0, TN_ERR_PARSE, "text after the header's end" },
    { "{}", 1, TN_ERR_PARSE, "1 bytes after the last tensor" },
    { "{\"a\"}", 0, TN_ERR_PARSE, "expected ':' after a tensor's name, found '}'" },
    { "{a:1}", 0, TN_ERR_PARSE, "expected '\"' before a tensor's name, found 'a'" },
    { "{\"a\":1}", 0, TN_ERR_PARSE, "expected '{' before a tensor's description" },
    { "{\"a\":{}}", 0, TN_ERR_PARSE, "a: the description is empty" },
    { "{\"a\":null}", 0, TN_ERR_PARSE, "expected '{' before a tensor's description" },
    { "{\"\":{" F32_2 "}}", 8, TN_ERR_PARSE, "name is empty" },
    { "{\"a\\u0000\":{" F32_2 "}}", 8, TN_ERR_PARSE, "zero character" },
    { "{\"a\\x\":{" F32_2 "}}", 8, TN_ERR_PARSE, "unknown escape" },
    { "{\"a\\u12g4\":{" F32_2 "}}", 8, TN_ERR_PARSE, "four hexadecimal digits" },
    { "{\"\\ud800\":{" F32_2 "}}", 8, TN_ERR_PARSE, "high surrogate" },
    { "{\"\\ud800\\u0041\":{" F32_2 "}}", 8, TN_ERR_PARSE, "high surrogate" },
    { "{\"\\udc00\":{" F32_2 "}}", 8, TN_ERR_PARSE, "low surrogate" },
    { "{\"a\xFF\":{" F32_2 "}}", 8, TN_ERR_PARSE, "not UTF-8" },
    { "{\"a\xC0\x80\":{" F32_2 "}}", 8, TN_ERR_PARSE, "not UTF-8" },
    { "{\"a\xED\xA0\x80\":{" F32_2 "}}", 8, TN_ERR_PARSE, "not UTF-8" },
    { "{\"a\n\":{" F32_2 "}}", 8, TN_ERR_PARSE, "control character" },
    { "{\"a", 8, TN_ERR_PARSE, "a string has no end" },
    { T("\"dtype\":\"F32\",\"shape\":[2]"), 8, TN_ERR_PARSE, "a: data_offsets is missing" },
    { T("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE, "a: shape is missing" },
    { T("\"shape\":[2],\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE, "a: dtype is missing" },
    { T(F32_2 ",\"strides\":[1]"), 8, TN_ERR_PARSE, "a: unknown key \"strides\"" },
    { T(F32_2 ",\"shape\":[2]"), 8, TN_ERR_PARSE, "a: \"shape\" is there twice" },
    { T(F32_2 ","), 8, TN_ERR_PARSE, "expected '\"' before a key, found '}'" },
    { T("\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE, "unknown dtype \"f32\"" },
    { T("\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[0,8]"), 8, TN_ERR_UNSUPPORTED, "a: dtype C64 has no counterpart" },
    { T("\"dtype\":\"F8_E8M0\",\"shape\":[8],\"data_offsets\":[0,8]"), 8, TN_ERR_UNSUPPORTED, "F8_E8M0" },
    { T("\"dtype\":3,\"shape\":[2],\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE, "before the dtype, found '3'" },
    { T("\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE, "expected '[' in a shape" },
    { T("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE, "not negative" },
    { T("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE, "must be a whole number" },
    { T("\"dtype\":\"F32\",\"shape\":[2e0],\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE, "must be a whole number" },
    { T("\"dtype\":\"F32\",\"shape\":[02],\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE, "leading zero" },
    { T("\"dtype\":\"F32\",\"shape\":[2,],\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE, "whole number" },
    { T("\"dtype\":\"F32\",\"shape\":[2 2],\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE, "expected ']' in a shape" },
    { T("\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE, "does not fit 63 bits" },
    { T("\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE,
      "multiply beyond 63 bits" },
    { T("\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]"), 0, TN_ERR_PARSE,
      "multiply beyond 63 bits" },
    { T("\"dtype\":\"F32\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]"), 0, TN_ERR_PARSE,
      "multiply beyond 63 bits" },
    { T("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE,
      "more than 12 numbers in a shape" },
    { T("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]"), 8, TN_ERR_PARSE, "need 12 bytes, data_offsets give 8" },
    { T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), 4, TN_ERR_PARSE, "which has 4 (truncated file?)" },
    { T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), 8, TN_ERR_PARSE, "end before they begin" },
    { T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]"), 8, TN_ERR_PARSE, "data_offsets needs two numbers" },
    { T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]"), 8, TN_ERR_PARSE, "more than 2 numbers in data_offsets" },
    { T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]"), 12, TN_ERR_PARSE,
      "begins at byte 4 of the data, after a gap" },
    { T(F32_2), 9, TN_ERR_PARSE, "1 bytes after the last tensor" },
    { "{\"a\":{" F32_2 "},\"b\":{" F32_2 "}}", 8, TN_ERR_PARSE, "b: begins at byte 0 of the data, inside another tensor" },
    { "{\"a\":{" F32_2 "},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, TN_ERR_PARSE,
      "inside another tensor" },
    { "{\"a\":{" F32_2 "},\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", 16, TN_ERR_PARSE,
      "two tensors have the name \"a\"" },
    { "{\"a\":{" F32_2 "},\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", 16, TN_ERR_PARSE,
      "two tensors have the name \"a\"" },
    { "{\"a\":{" F32_2 "},}", 8, TN_ERR_PARSE, "before a tensor's name" },
    { "{\"a\":{" F32_2 "}", 8, TN_ERR_PARSE, "expected '}' at the end of the header, found the end" },
    { "{\"__metadata__\":[]}", 0, TN_ERR_PARSE, "expected '{' before the metadata" },
    { "{\"__metadata__\":{\"k\":1}}", 0, TN_ERR_PARSE, "only strings are allowed" },
    { "{\"__metadata__\":{\"k\":{\"x\":\"y\"}}}", 0, TN_ERR_PARSE, "only strings are allowed" },
    { "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, TN_ERR_PARSE, "metadata key \"k\" is there twice" },
    { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, TN_ERR_PARSE, "\"__metadata__\" is there twice" },
};

static void test_malformed(void **state) {
    (void)state;
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    size_t live = c.live;
    uint8_t file[1024];
    int n_bad = (int)(sizeof bad / sizeof *bad);
    for (int i = 0; i < n_bad; i++) {
        tn_io_tensors *t = (tn_io_tensors *)&c;
        size_t n = make_file(file, bad[i].header, strlen(bad[i].header), bad[i].n_data);
        tn_status s = tn_io_safetensors_parse(ctx, file, n, "bad.safetensors", &t);
        assert_fails(ctx, s, bad[i].status, bad[i].message, bad[i].header);
        assert_non_null(strstr(tn_ctx_error(ctx), "bad.safetensors"));
        assert_null(t);
        assert_int_equal(c.live, live); /* nothing stays */
    }
    printf("count: %d malformed safetensors headers, each with its message\n", n_bad);
    tn_ctx_free(ctx);
    assert_int_equal(c.live, 0);
}

/* Lengths that lie, bool bytes that are not bool, names over the limit, files that are no files. */
static void test_malformed_file(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_io_tensors *t;
    uint8_t file[4096];
    for (size_t n = 0; n < 8; n++)
        assert_fails(ctx, tn_io_safetensors_parse(ctx, file, n, "x", &t), TN_ERR_PARSE, "too few", "short");
    memset(file, 0xFF, 16);
    assert_fails(ctx, tn_io_safetensors_parse(ctx, file, 16, "x", &t), TN_ERR_PARSE, "more than the limit of 16777216",
                 "huge length");
    memset(file, 0, 16);
    file[0] = 9;
    assert_fails(ctx, tn_io_safetensors_parse(ctx, file, 16, "x", &t), TN_ERR_PARSE, "only 8 bytes more", "long length");
    size_t n = make_file(file, T("\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]"),
                         strlen(T("\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]")), 2);
    file[n - 1] = 2;
    assert_fails(ctx, tn_io_safetensors_parse(ctx, file, n, "x", &t), TN_ERR_PARSE, "a: bool element 1 is 2", "bool");
    char header[2048] = "{\"";
    memset(header + 2, 'n', TN_IO_MAX_NAME + 1);
    strcpy(header + 2 + TN_IO_MAX_NAME + 1, "\":{" F32_2 "}}");
    n = make_file(file, header, strlen(header), 8);
    assert_fails(ctx, tn_io_safetensors_parse(ctx, file, n, "x", &t), TN_ERR_PARSE, "a name of more than 1024 bytes",
                 "long name");

    assert_fails(ctx, tn_io_safetensors_load(ctx, in_dir("absent"), &t), TN_ERR_IO, "No such file", "absent");
    assert_fails(ctx, tn_io_safetensors_load(ctx, test_dir, &t), TN_ERR_IO, "not a regular file", "directory");
    assert_fails(ctx, tn_io_safetensors_load(ctx, NULL, &t), TN_ERR_INVAL, "NULL", "no path");
    assert_int_equal(tn_io_safetensors_load(NULL, "x", &t), TN_ERR_INVAL);
    const tn_io_tensor twice[] = { { "a", TN_F32, TN_SCALAR, header },
                                   { "b", TN_F32, TN_SCALAR, header },
                                   { "a", TN_F32, TN_SCALAR, header } };
    assert_fails(ctx, tn_io_safetensors_save(ctx, in_dir("y"), twice, 3), TN_ERR_INVAL, "two tensors have the name \"a\"",
                 "twice");
    const tn_io_tensor names[] = { { "", TN_F32, TN_SCALAR, header },
                                   { "__metadata__", TN_F32, TN_SCALAR, header },
                                   { "\xFF", TN_F32, TN_SCALAR, header },
                                   { NULL, TN_F32, TN_SCALAR, header } };
    for (int i = 0; i < 4; i++)
        assert_fails(ctx, tn_io_safetensors_save(ctx, in_dir("y"), &names[i], 1), TN_ERR_INVAL, "the name must be UTF-8",
                     "name");
    const tn_io_tensor shapes[] = { { "a", TN_F32, TN_DIMS(-1), header },
                                    { "a", TN_F32, TN_DIMS(INT64_MAX), header },
                                    { "a", TN_N_DTYPES, TN_SCALAR, header } };
    for (int i = 0; i < 3; i++)
        assert_fails(ctx, tn_io_safetensors_save(ctx, in_dir("y"), &shapes[i], 1), TN_ERR_INVAL, "not valid", "shape");
    assert_int_equal(access(in_dir("y"), F_OK), -1);
    tn_ctx_free(ctx);
}

/* ---- mutations, truncations, failing allocations ---- */

static size_t sample_file(uint8_t *to) {
    static const char text[] = "{\"__metadata__\":{\"format\":\"pt\"},\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_"
                               "offsets\":[0,24]},\"flag\":{\"dtype\":\"BOOL\",\"shape\":[4],\"data_offsets\":[24,28]},"
                               "\"step\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[28,36]},\"e\":{\"dtype\":\"F16\","
                               "\"shape\":[0,7],\"data_offsets\":[36,36]}}";
    return make_file(to, text, sizeof text - 1, 36);
}

/* Whatever was accepted must be whole: every byte of every tensor is there to read. */
static uint64_t read_everything(const tn_io_tensors *t) {
    uint64_t sum = 0;
    for (int i = 0; i < tn_io_tensors_count(t); i++) {
        const tn_io_tensor *x = tn_io_tensors_get(t, i);
        assert_ptr_equal(tn_io_tensors_find(t, x->name), x);
        size_t n = bytes_of(x);
        for (size_t k = 0; k < n; k++) sum = sum * 31 + ((const uint8_t *)x->data)[k];
    }
    return sum;
}

static void test_mutations(void **state) {
    (void)state;
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    size_t live = c.live;
    uint8_t good[1024], changed[2048];
    size_t n = sample_file(good);
    uint64_t seed = 7;
    int accepted = 0, rounds = 6000;
    for (int i = 0; i < rounds; i++) {
        tn_io_tensors *t;
        size_t m = mutate(&seed, good, n, changed, sizeof changed);
        uint8_t *exact = malloc(m + !m); /* so that the sanitizer sees the first byte too far */
        memcpy(exact, changed, m);
        tn_status s = tn_io_safetensors_parse(ctx, exact, m, "m", &t);
        if (s)
            assert_true((s == TN_ERR_PARSE || s == TN_ERR_UNSUPPORTED) && strlen(tn_ctx_error(ctx)) > 5 && !t);
        else
            read_everything(t), tn_io_tensors_free(t), accepted++;
        free(exact);
        assert_int_equal(c.live, live);
    }
    assert_in_range(accepted, 1, rounds / 2);
    printf("count: %d mutated safetensors files\n", rounds);
    for (size_t m = 0; m < n; m++) { /* every truncation is noticed, in memory and on disk */
        tn_io_tensors *t;
        uint8_t *exact = malloc(m + !m);
        memcpy(exact, good, m);
        assert_int_equal(tn_io_safetensors_parse(ctx, exact, m, "m", &t), TN_ERR_PARSE);
        free(exact);
        write_bytes(in_dir("t.safetensors"), good, m);
        assert_int_equal(tn_io_safetensors_load(ctx, in_dir("t.safetensors"), &t), TN_ERR_PARSE);
    }
    tn_ctx_free(ctx);
}

static void test_allocations(void **state) {
    (void)state;
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    size_t live = c.live;
    uint8_t good[1024];
    size_t n = sample_file(good);
    const float w[2] = { 1, 2 };
    int failed = 0;
    write_bytes(in_dir("good.safetensors"), good, n);
    for (long k = 0;; k++) {
        tn_io_tensors *t = NULL;
        c.requests = 0, c.fail_at = k;
        tn_status s = tn_io_safetensors_parse(ctx, good, n, "m", &t);
        if (!s) tn_io_tensors_free(t), t = NULL, s = tn_io_safetensors_load(ctx, in_dir("good.safetensors"), &t);
        if (!s) s = tn_io_safetensors_save(ctx, in_dir("k.safetensors"), (tn_io_tensor[]){ { "w", TN_F32, TN_DIMS(2), w } }, 1);
        c.fail_at = -1;
        tn_io_tensors_free(t);
        assert_int_equal(c.live, live);
        if (!s) break;
        assert_int_equal(s, TN_ERR_NOMEM);
        failed++;
    }
    assert_true(failed >= 8);
    printf("count: %d allocations failed in safetensors\n", failed);
    tn_ctx_free(ctx);
}

/* A header at its limit of entries is read in good time. */
static void test_many(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    enum { N = 20000 };
    tn_io_tensor *list = calloc(N, sizeof *list);
    char(*names)[16] = calloc(N, 16);
    int32_t *values = calloc(N, 4);
    for (int i = 0; i < N; i++) {
        snprintf(names[i], 16, "t%d", (i * 7919) % N);
        values[i] = i;
        list[i] = (tn_io_tensor){ names[i], TN_I32, TN_SCALAR, &values[i] };
    }
    tn_io_tensors *t;
    assert_int_equal(tn_io_safetensors_save(ctx, in_dir("many"), list, N), TN_OK);
    assert_int_equal(tn_io_safetensors_load(ctx, in_dir("many"), &t), TN_OK);
    for (int i = 0; i < N; i++) assert_memory_equal(tn_io_tensors_find(t, names[i])->data, &i, 4);
    tn_io_tensors_free(t);
    free(list), free(names), free(values);
    tn_ctx_free(ctx);
}

/* ---- mapped files ---- */

/* In a file of more than a few arrays those that can be used where they lie are: behind a header of whole lines come the arrays
 * of whole lines. */
static void test_aligned(void **state) {
    (void)state;
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    static float w[3][2048];
    for (int i = 0; i < 3 * 2048; i++) w[i / 2048][i % 2048] = (float)i;
    const double d[3] = { 1, 2, 3 };
    const tn_io_tensor list[] = { { "odd", TN_F64, TN_DIMS(3), d },
                                  { "a", TN_F32, TN_DIMS(2048), w[0] },
                                  { "bias", TN_F32, TN_DIMS(7), w[1] },
                                  { "b", TN_BF16, TN_DIMS(96), w[1] },
                                  { "c", TN_F32, TN_DIMS(16, 16), w[2] } };
    tn_io_tensors *t;
    assert_int_equal(tn_io_safetensors_save(ctx, in_dir("aligned"), list, 5), TN_OK);
    assert_int_equal(tn_io_safetensors_load(ctx, in_dir("aligned"), &t), TN_OK);
    size_t live = c.live;
    for (int i = 1; i < 5; i++) {
        const tn_io_tensor *x = tn_io_tensors_find(t, list[i].name);
        assert_memory_equal(x->data, list[i].data, bytes_of(x));
        if (i != 2) assert_int_equal(c.live, live);
        live = c.live;
    }
    assert_memory_equal(tn_io_tensors_find(t, "odd")->data, d, sizeof d);
    tn_io_tensors_free(t);
    tn_ctx_free(ctx);
}

static size_t resident(void) {
    long pages = 0, all = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &all, &pages), 2);
    fclose(f);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

enum { BIG = 16 << 20 /* floats */ };

/* Loading takes no memory for the arrays; asking for one that is not aligned takes as much as it has, once. */
static void test_mapped(void **state) {
    (void)state;
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    float *w = malloc(BIG * sizeof *w);
    for (int i = 0; w && i < BIG; i++) w[i] = (float)i;
    for (int aligned = 0; aligned < 2; aligned++) {
        tn_io_tensors *t;
        tn_io_tensor list[] = { { "a", TN_F32, TN_DIMS(1), w }, { "w", TN_F32, TN_DIMS(aligned ? BIG : BIG - 1), w } };
        assert_int_equal(tn_io_safetensors_save(ctx, in_dir("big"), list, 2), TN_OK); /* those of whole lines come first */
        size_t live = c.live, before = resident();
        assert_int_equal(tn_io_safetensors_load(ctx, in_dir("big"), &t), TN_OK);
        assert_in_range(c.live - live, 1, 4096);
        assert_in_range(resident() - before + (1 << 20), 0, 2 << 20);
        if (!aligned) {
            c.requests = 0, c.fail_at = 0;
            assert_null(tn_io_tensors_find(t, "w"));
            c.fail_at = -1;
            assert_int_equal(tn_ctx_status(ctx), TN_ERR_NOMEM);
        }
        const tn_io_tensor *x = tn_io_tensors_find(t, "w");
        assert_non_null(x);
        assert_int_equal((uintptr_t)x->data % 64, 0);
        if (aligned) assert_in_range(c.live - live, 1, 4096);
        size_t asked = c.live;
        assert_memory_equal(x->data, w, bytes_of(x));
        assert_in_range(resident() - before + (1 << 20), 0, (BIG + (1 << 20)) * sizeof *w); /* once */
        assert_int_equal(tn_io_safetensors_save(ctx, in_dir("big"), &(tn_io_tensor){ "w", TN_F32, TN_DIMS(1), w + 7 }, 1),
                         TN_OK); /* another file */
        assert_ptr_equal(tn_io_tensors_find(t, "w")->data, x->data);
        assert_memory_equal(x->data, w, bytes_of(x));
        assert_int_equal(c.live, asked);
        tn_io_tensors_free(t);
        assert_int_equal(c.live, live);
    }
    free(w);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_layout),         cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_malformed),   cmocka_unit_test(test_malformed_file), cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_allocations), cmocka_unit_test(test_many),           cmocka_unit_test(test_mapped),
        cmocka_unit_test(test_aligned),
    };
    return cmocka_run_group_tests(tests, setup_dir, teardown_dir);
}
