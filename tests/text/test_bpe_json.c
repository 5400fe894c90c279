/* test_bpe_json.c - tokenizer.json: vocabularies of bytes with each split and of characters with tokens for bytes, what is
 * refused by name, malformed and changed files, every failing allocation. text/test_tokenizers.sh compares with Hugging Face's
 * library. */
#include "io/io_test.h"
#include "tenon/tenon_text.h"

#define BYTE_LEVEL(own) "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":" own "}"
#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"
#define REST "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define SPLIT(regex)                                                                                                           \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex                            \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL("false") "]}"
#define ADDED(id, text)                                                                                                        \
    "{\"id\":" id ",\"content\":\"" text                                                                                       \
    "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}"
#define VOCAB "\"a\":0,\"b\":1,\"\\u0120\":2,\"ab\":3,\"\\u0120a\":4,\"1\":5,\"2\":6,\"12\":7,\"\\u0120\\u0120\":8,\"bab\":9"
#define MERGES "[\"a b\",\"\\u0120 a\",\"1 2\",\"\\u0120 \\u0120\"]"
#define FILE_OF(added, normalizer, pre, post, more, merges)                                                                    \
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":" added ",\"normalizer\":" normalizer          \
    ",\"pre_tokenizer\":" pre ",\"post_processor\":" post                                                                      \
    ",\"decoder\":null,\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\","    \
    "\"fuse_unk\":false," more "\"vocab\":{" VOCAB "},\"merges\":" merges "}}"
#define SPECIALS "[" ADDED("10", "<s>") "," ADDED("11", "<s>b") "]"
#define TEMPLATE(single)                                                                                                       \
    "{\"type\":\"Sequence\",\"processors\":[" BYTE_LEVEL(                                                                      \
        "true") ",{\"type\":\"TemplateProcessing\",\"single\":[" single                                                        \
                "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[10],"       \
                "\"tokens\":[\"<s>\"]}}}]}"
#define BEGIN "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"

static const char gpt2[] = FILE_OF(SPECIALS, "null", BYTE_LEVEL("true"), BYTE_LEVEL("true"), "", MERGES);
static const char llama3[] = FILE_OF(SPECIALS, "null", SPLIT(WORDS "\\\\p{N}{1,3}" REST), TEMPLATE(BEGIN),
                                     "\"ignore_merges\":true,", "[[\"a\",\"b\"],[\"\\u0120\",\"a\"],[\"1\",\"2\"]]");
static const char qwen2[] = FILE_OF(SPECIALS, "null", SPLIT(WORDS "\\\\p{N}" REST), "null", "", MERGES);
static const char digits[] = FILE_OF(
    "[]", "null",
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true}," BYTE_LEVEL("true") "]}",
    "null", "", MERGES);

static const char unknown[] = FILE_OF(SPECIALS, "null", BYTE_LEVEL("true"), "null", "\"unk_token\":\"<s>\",", MERGES);
static const char fused_unknown[] =
    FILE_OF(SPECIALS, "null", BYTE_LEVEL("true"), "null", "\"unk_token\":\"<s>\",\"fuse_unk\":true,", MERGES);

static tn_bpe *parse(tn_ctx *ctx, const char *file) {
    tn_bpe *b;
    if (tn_bpe_parse_json(ctx, file, strlen(file), "t.json", &b)) fail_msg("%s", tn_ctx_error(ctx));
    return b;
}

static void assert_ids(tn_ctx *ctx, const tn_bpe *b, const char *text, const char *want) {
    int32_t ids[64];
    size_t n;
    char got[256] = "";
    assert_int_equal(tn_bpe_encode(ctx, b, text, strlen(text), 1, ids, 64, &n), TN_OK);
    for (size_t i = 0; i < n; i++) sprintf(got + strlen(got), "%s%d", i ? " " : "", (int)ids[i]);
    if (strcmp(got, want) != 0) fail_msg("\"%s\" has the ids %s, not %s", text, got, want);
    char back[256];
    size_t bytes;
    assert_int_equal(tn_bpe_decode(ctx, b, ids, n, back, sizeof back, &bytes), TN_OK);
    if (bytes != strlen(text) || memcmp(back, text, bytes) != 0) fail_msg("\"%s\" comes back as %.*s", text, (int)bytes, back);
}

static void test_bytes(void **state) {
    (void)state;
    static const struct {
        const char *file, *text, *ids;
    } cases[] = { { gpt2, "ab ab12", "3 2 3 7" },
                  { gpt2, "bab<s>ba<s>bb", "1 3 11 0 11 1" },
                  { gpt2, "a  1", "0 2 2 5" },
                  { llama3, "bab bab 12", "9 2 1 3 2 7" }, /* a word that is a token becomes that token */
                  { llama3, "1212", "7 5 6" },
                  { qwen2, "12 ab", "5 6 2 3" },
                  { qwen2, "bab", "1 3" },
                  { digits, "12 12", "5 6 2 5 6" },
                  { digits, "a  12  b", "0 8 5 6 2 2 1" } };
    tn_ctx *ctx = tn_ctx_new(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_bpe *b = parse(ctx, cases[i].file);
        assert_ids(ctx, b, cases[i].text, cases[i].ids);
        assert_int_equal(tn_bpe_begin(b), cases[i].file == llama3 ? 10 : -1);
        assert_int_equal(tn_bpe_special_id(b, "<s>"), cases[i].file == digits ? -1 : 10);
        tn_bpe_free(ctx, b);
    }
    assert_int_equal(tn_bpe_begin(NULL), -1);
    for (int fused = 0; fused < 2; fused++) { /* bytes that are no tokens */
        tn_bpe *u = parse(ctx, fused ? fused_unknown : unknown);
        int32_t ids[8];
        size_t n;
        assert_int_equal(tn_bpe_encode(ctx, u, "axyzb", 5, 1, ids, 8, &n), TN_OK);
        assert_true(n == (fused ? 3 : 5) && ids[0] == 0 && ids[1] == 10 && ids[n - 2] == 10 && ids[n - 1] == 1);
        tn_bpe_free(ctx, u);
    }
    write_bytes(in_dir("tokenizer.json"), gpt2, strlen(gpt2));
    tn_bpe *b;
    assert_int_equal(tn_bpe_load_json(ctx, in_dir("tokenizer.json"), &b), TN_OK);
    assert_int_equal(tn_bpe_count(b), 12);
    tn_bpe_free(ctx, b);
    assert_fails(ctx, tn_bpe_load_json(ctx, in_dir("none.json"), &b), TN_ERR_IO, "none.json", "a missing file");
    tn_ctx_free(ctx);
}

/* As SentencePiece has them: <unk>, <s>, </s>, 256 bytes, then characters and what is made of them. */
#define MARK "\xE2\x96\x81"
static const char *characters(const char *normalizer, const char *pre) {
    static char file[1 << 14];
    char *at = file;
    at += sprintf(at,
                  "{\"added_tokens\":[" ADDED("0", "<unk>") "," ADDED("1", "<s>") "," ADDED("2", "</s>") "],\"normalizer\":%s,",
                  normalizer);
    at += sprintf(at,
                  "\"pre_tokenizer\":%s,\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[" BEGIN
                  "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1]}}},",
                  pre);
    at += sprintf(at, "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"<unk>\":0,\"<s>\":1,\"</s>\":2");
    for (int i = 0; i < 256; i++) at += sprintf(at, ",\"<0x%02X>\":%d", (unsigned)i, 3 + i);
    sprintf(at, ",\"" MARK "\":259,\"a\":260,\"b\":261,\"\xC3\xA9\":262,\"" MARK "a\":263,\"ab\":264,\"" MARK MARK
                "\":265,\"" MARK "ab\":266},"
                "\"merges\":[\"" MARK " a\",[\"a\",\"b\"],\"" MARK " " MARK "\",\"" MARK " ab\"]}}");
    return file;
}
#define PREPEND                                                                                                                \
    "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"" MARK "\"},"                                 \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}]}"
#define METASPACE(scheme)                                                                                                      \
    "{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\",\"prepend_scheme\":\"" scheme "\",\"split\":false}"

static void test_characters(void **state) {
    (void)state;
    static const struct {
        const char *normalizer, *pre, *text, *ids;
    } cases[] = { { PREPEND, "null", "a b", "263 259 261" },
                  { PREPEND, "null", " a", "259 263" },
                  { PREPEND, "null", "ab\xC3\xA9\xE4\xBD\xA0\n", "263 261 262 231 192 163 13" },
                  { PREPEND, "null", "b<s>b", "259 261 1 259 261" },
                  { "null", METASPACE("first"), "b<s>b", "259 261 1 261" },
                  { "null", METASPACE("first"), "<s>b", "1 261" },
                  { "null", METASPACE("always"), "b</s>b", "259 261 2 259 261" },
                  { "null", METASPACE("never"), " a b", "263 259 261" } };
    tn_ctx *ctx = tn_ctx_new(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_bpe *b = parse(ctx, characters(cases[i].normalizer, cases[i].pre));
        int32_t ids[64];
        size_t n;
        char got[256] = "";
        assert_int_equal(tn_bpe_encode(ctx, b, cases[i].text, strlen(cases[i].text), 1, ids, 64, &n), TN_OK);
        for (size_t k = 0; k < n; k++) sprintf(got + strlen(got), "%s%d", k ? " " : "", (int)ids[k]);
        if (strcmp(got, cases[i].ids) != 0) fail_msg("case %zu: ids %s, not %s", i, got, cases[i].ids);
        assert_int_equal(tn_bpe_begin(b), 1);
        tn_bpe_free(ctx, b);
    }
    tn_bpe *b = parse(ctx, characters(PREPEND, "null"));
    assert_ids(ctx, b, "ab \xF0\x9F\x98\x80", "263 261 259 243 162 155 131"); /* the blank before it goes again */
    tn_bpe_free(ctx, b);
    tn_ctx_free(ctx);
}

/* Composed and in order, whatever the text's form is: by the bytes that come back. */
static void test_nfc(void **state) {
    (void)state;
    static const char *const cases[][2] = { { "e\xCC\x81", "\xC3\xA9" }, /* e + acute */
                                            { "x e\xCC\x81y", "x \xC3\xA9y" },
                                            { "a\xCC\x88\xCC\x84", "\xC7\x9F" },             /* both marks */
                                            { "a\xCC\x81\xCC\xA3", "\xE1\xBA\xA1\xCC\x81" }, /* marks change places */
                                            { "q\xCC\x81\xCC\xA3", "q\xCC\xA3\xCC\x81" },
                                            { "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", "\xED\x95\x9C" }, /* Hangul */
                                            { "\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC" },             /* never composed */
                                            { "\xE2\x84\xA6", "\xCE\xA9" },                             /* Ohm, an Omega */
                                            { "\xCC\x81"
                                              "a",
                                              "\xCC\x81"
                                              "a" },
                                            { "a\x80\xCC\x81", "a\x80\xCC\x81" }, /* behind no character */
                                            { "a\xCC", "a\xCC" },
                                            { "", "" } };
    static char file[1 << 14];
    char *at =
        file +
        sprintf(file, "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":" BYTE_LEVEL("true") ",\"model\":{\"vocab\":{");
    for (int i = 0, other = 0; i < 256; i++) {
        bool plain = (i > 32 && i < 127) || (i > 160 && i != 173);
        at += sprintf(at, "%s\"\\u%04x\":%d", i ? "," : "", (unsigned)(plain ? i : 256 + other), i);
        other += !plain;
    }
    strcpy(at, "},\"merges\":[]}}");
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_bpe *b = parse(ctx, file);
    int32_t ids[64];
    size_t n, bytes;
    char back[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(tn_bpe_encode(ctx, b, cases[i][0], strlen(cases[i][0]), 1, ids, 64, &n), TN_OK);
        assert_int_equal(tn_bpe_decode(ctx, b, ids, n, back, sizeof back, &bytes), TN_OK);
        if (bytes != strlen(cases[i][1]) || memcmp(back, cases[i][1], bytes) != 0) fail_msg("case %zu of NFC", i);
    }
    assert_fails(ctx, tn_bpe_encode(ctx, b, "a\xEF\xA4\x80", 4, 1, ids, 64, &n), TN_ERR_UNSUPPORTED, "U+F900",
                 "a compatibility ideograph");
    uint64_t r = 1;
    for (int i = 0; i < 20000; i++) { /* any bytes, many of them those of marks */
        char text[32];
        static const uint8_t few[] = { 0xCC, 0x81, 0xA3, 'a', 0xE1, 0x85, 0xA1, 0xE0, 0xA5, 0x98, 0xF0 };
        size_t size = (size_t)rnd_below(&r, 32);
        for (size_t k = 0; k < size; k++)
            text[k] = (char)(rnd_below(&r, 4) ? few[rnd_below(&r, sizeof few)] : rnd_below(&r, 256));
        char *exact = malloc(size + !size);
        memcpy(exact, text, size);
        tn_status st = tn_bpe_encode(ctx, b, exact, size, 1, ids, 64, &n);
        assert_true(st == TN_OK || st == TN_ERR_UNSUPPORTED);
        free(exact);
    }
    char *many = malloc(20001);
    for (int i = 0; i < 20000; i += 2) memcpy(many + i, "\xCC\x81", 2);
    assert_fails(ctx, tn_bpe_encode(ctx, b, many, 20000, 1, NULL, 0, &n), TN_ERR_INVAL, "marks in a row", "marks");
    free(many);
    tn_bpe_free(ctx, b);
    tn_ctx_free(ctx);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *file;
        tn_status status;
        const char *message;
    } cases[] = {
        { "[]", TN_ERR_PARSE, "no \"model\"" },
        { "{\"model\":{\"type\":\"Unigram\"}}", TN_ERR_UNSUPPORTED, "model: Unigram" },
        { "{\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"}}", TN_ERR_UNSUPPORTED, "end_of_word_suffix" },
        { "{\"model\":{\"type\":\"BPE\",\"dropout\":0.1}}", TN_ERR_UNSUPPORTED, "dropout" },
        { "{\"model\":{\"type\":\"BPE\"}}", TN_ERR_UNSUPPORTED, "pre_tokenizer: none" },
        { FILE_OF("[]", "{\"type\":\"Lowercase\"}", BYTE_LEVEL("true"), "null", "", "[]"), TN_ERR_UNSUPPORTED,
          "normalizer: Lowercase" },
        { FILE_OF("[]", "null", "null", "null", "", "[]"), TN_ERR_UNSUPPORTED, "pre_tokenizer: none" },
        { FILE_OF("[]", "null", "{\"type\":\"Whitespace\"}", "null", "", "[]"), TN_ERR_UNSUPPORTED,
          "pre_tokenizer: Whitespace" },
        { FILE_OF("[]", "null", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "null", "", "[]"), TN_ERR_UNSUPPORTED,
          "add_prefix_space" },
        { FILE_OF("[]", "null", BYTE_LEVEL("false"), "null", "", "[]"), TN_ERR_UNSUPPORTED, "two patterns, or none" },
        { FILE_OF("[]", "null", SPLIT("\\\\w+"), "null", "", "[]"), TN_ERR_UNSUPPORTED, "pattern of the pre_tokenizer: \\w+" },
        { FILE_OF("[]", "null", BYTE_LEVEL("true"), "{\"type\":\"BertProcessing\"}", "", MERGES), TN_ERR_UNSUPPORTED,
          "post_processor: BertProcessing" },
        { FILE_OF(SPECIALS, "null", BYTE_LEVEL("true"), TEMPLATE(BEGIN BEGIN), "", MERGES), TN_ERR_UNSUPPORTED,
          "more than one token" },
        { FILE_OF("[]", "null", BYTE_LEVEL("true"), TEMPLATE(BEGIN), "", MERGES), TN_ERR_PARSE,
          "a special token that is no token" },
        { FILE_OF("[{\"id\":12,\"content\":\"x\",\"lstrip\":true}]", "null", BYTE_LEVEL("true"), "null", "", MERGES),
          TN_ERR_UNSUPPORTED, "x: lstrip" },
        { FILE_OF("[{\"id\":12}]", "null", BYTE_LEVEL("true"), "null", "", MERGES), TN_ERR_PARSE, "no \"content\"" },
        { FILE_OF("[" ADDED("-1", "x") "]", "null", BYTE_LEVEL("true"), "null", "", MERGES), TN_ERR_PARSE, "no \"id\" below" },
        { FILE_OF("[" ADDED("3", "x") "]", "null", BYTE_LEVEL("true"), "null", "", MERGES), TN_ERR_PARSE,
          "two tokens have the id 3" },
        { FILE_OF("[" ADDED("12", "ab") "]", "null", BYTE_LEVEL("true"), "null", "", MERGES), TN_ERR_PARSE, "same bytes" },
        { FILE_OF("[]", "null", BYTE_LEVEL("true"), "null", "\"unk_token\":\"<s>\",", MERGES), TN_ERR_PARSE,
          "\"unk_token\" is no token" },
        { FILE_OF("{}", "null", BYTE_LEVEL("true"), "null", "", MERGES), TN_ERR_PARSE, "\"added_tokens\" is no array" },
        { FILE_OF("[]", "null", BYTE_LEVEL("true"), "null", "", "{}"), TN_ERR_PARSE, "no \"merges\"" },
        { FILE_OF("[]", "null", BYTE_LEVEL("true"), "null", "", "[\"ab\"]"), TN_ERR_PARSE, "no pair of tokens" },
        { FILE_OF("[]", "null", BYTE_LEVEL("true"), "null", "", "[\"a b\",[\"a\"]]"), TN_ERR_PARSE, "no pair of tokens" },
        { FILE_OF("[]", "null", BYTE_LEVEL("true"), "null", "", "[\"a b\",\"a c\"]"), TN_ERR_PARSE,
          "merge 1: a token that the vocabulary lacks" },
        { FILE_OF("[]", "null", BYTE_LEVEL("true"), "null", "", "[\"a b\",\"a b\"]"), TN_ERR_PARSE,
          "stands in the file twice" },
        { FILE_OF("[]", PREPEND, "null", "null", "\"byte_fallback\":true,", "[]"), TN_ERR_PARSE, "without tokens <0x00>" },
        { FILE_OF("[]", "null", "null", "null", "\"byte_fallback\":true,", "[]"), TN_ERR_UNSUPPORTED, "blanks as they are" },
        { FILE_OF("[]", "null", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"split\":false}", "null",
                  "\"byte_fallback\":true,", "[]"),
          TN_ERR_UNSUPPORTED, "another replacement" },
        { FILE_OF("[]", "{\"type\":\"NFKC\"}", "null", "null", "\"byte_fallback\":true,", "[]"), TN_ERR_UNSUPPORTED,
          "normalizer: NFKC" },
    };
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_bpe *b;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_fails(ctx, tn_bpe_parse_json(ctx, cases[i].file, strlen(cases[i].file), "t.json", &b), cases[i].status,
                     cases[i].message, cases[i].message);
        assert_null(b);
    }
    tn_ctx_free(ctx);
}

/* Whatever a changed file gives is an error with a text, or a vocabulary that works. */
static void test_mutations(void **state) {
    (void)state;
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    size_t live = c.live;
    uint64_t r = 3;
    int good = 0, rounds = 4000;
    for (int i = 0; i < rounds; i++) {
        const char *from = i % 4 == 0 ? characters(PREPEND, "null") : i % 4 == 1 ? gpt2 : i % 4 == 2 ? llama3 : digits;
        size_t size = strlen(from), room = size + 128;
        uint8_t *changed = malloc(room);
        tn_bpe *b;
        size_t n = mutate(&r, (const uint8_t *)from, size, changed, room);
        changed = realloc(changed, n + !n);
        tn_status st = tn_bpe_parse_json(ctx, changed, n, "m", &b);
        if (st)
            assert_true((st == TN_ERR_PARSE || st == TN_ERR_UNSUPPORTED) && strlen(tn_ctx_error(ctx)) > 5 && !b);
        else {
            int32_t ids[32];
            size_t n_ids;
            if (!tn_bpe_encode(ctx, b, "ab <s>ba1212  \xC3\xA9", 16, 1, ids, 32, &n_ids))
                assert_int_equal(tn_bpe_decode(ctx, b, ids, n_ids, NULL, 0, &n_ids), TN_OK);
            tn_bpe_free(ctx, b), good++;
        }
        free(changed);
        assert_int_equal(c.live, live);
    }
    assert_in_range(good, 1, rounds - 1);
    printf("count: %d changed tokenizer.json, %d of them accepted\n", rounds, good);
    for (long k = 0;; k++) { /* every allocation fails in turn */
        tn_bpe *b;
        c.requests = 0, c.fail_at = k;
        tn_status s = tn_bpe_parse_json(ctx, llama3, strlen(llama3), "m", &b);
        c.fail_at = -1;
        if (!s) {
            tn_bpe_free(ctx, b);
            assert_true(k >= 8);
            break;
        }
        assert_int_equal(s, TN_ERR_NOMEM);
        assert_int_equal(c.live, live);
    }
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_bytes), cmocka_unit_test(test_characters),
                                        cmocka_unit_test(test_nfc), cmocka_unit_test(test_refused),
                                        cmocka_unit_test(test_mutations) };
    return cmocka_run_group_tests(tests, setup_dir, teardown_dir);
}
