/* test_bpe.c - byte-level BPE against slow, obvious forms of itself: words by known examples, training by counting all pairs
 * again for every merge, encoding by looking for the lowest rank from the left; any bytes come back; files read back; malformed
 * files, and files with one byte changed, give errors; every allocation may fail. */
#include "io/io_test.h"
#include "tenon/tenon_text.h"

#include <time.h>

/* ---- words ---- */

/* Trained with as many tokens as there may be on the text itself, each of its words is one token: '|' stands between them. */
static void assert_words(tn_ctx *ctx, tn_bpe_split split, const char *words) {
    char text[256], got[512] = "";
    int32_t ids[256];
    size_t n = 0, n_ids;
    tn_bpe *b;
    for (const char *p = words; *p; p++)
        if (*p != '|') text[n++] = *p;
    assert_int_equal(tn_bpe_train(ctx, text, n, &(tn_bpe_train_opts){ .split = split, .n_tokens = 9999, .least = 1 }, &b),
                     TN_OK);
    assert_int_equal(tn_bpe_encode(ctx, b, text, n, 0, ids, 256, &n_ids), TN_OK);
    for (size_t i = 0, size; i < n_ids; i++) {
        const char *token = tn_bpe_token(b, ids[i], &size);
        strncat(strcat(got, i ? "|" : ""), token, size);
    }
    assert_string_equal(got, words);
    tn_bpe_free(ctx, b);
}

/* As Python's regex splits them with the published patterns (test_words.sh compares random texts where regex is installed). */
static void test_words(void **state) {
    (void)state;
    static const char *const gpt2[] = { "Hello| world|,| it|'s| 2024|!",
                                        "don|'t|  | we|'ll|'d|'|X",
                                        "a|  | b|\n|\n|c| |\n|d|  ",
                                        "x|\t|y| \t| z",
                                        "caf\xC3\xA9| \xE4\xBD\xA0\xE5\xA5\xBD|\xE3\x80\x82| \xC2\xBD",
                                        "\xC2\xA0|nbsp| |\xE2\x80\x83|em",
                                        " '|s|'|S|'re|1|st| 3|.|14" };
    static const char *const cl100k[] = { "Hello| world|,| it|'s| |202|4|!",
                                          "I|'M|'lL| not|'d",
                                          "a|  | b|\n\n|c| \n|d|  ",
                                          "x|\ty| \t| z",
                                          "(foo|).|bar|$baz| +=|1|;\n\n|next",
                                          "   \n  \n| y|123|456|7",
                                          "\xE2\x80\x99t|\xC2\xA0nbsp|'\xC5\xBF|x" };
    tn_ctx *ctx = tn_ctx_new(NULL);
    for (size_t i = 0; i < sizeof gpt2 / sizeof *gpt2; i++) assert_words(ctx, TN_BPE_GPT2, gpt2[i]);
    for (size_t i = 0; i < sizeof cl100k / sizeof *cl100k; i++) assert_words(ctx, TN_BPE_CL100K, cl100k[i]);
    tn_ctx_free(ctx);
}

/* ---- slow forms ---- */

enum { MOST = 4000 };
typedef struct slow { /* ids of all words of a text; -1 behind each */
    int ids[2 * MOST], n;
    char token[MOST][64]; /* bytes of each, as a string: texts of the tests have no zero */
    int n_tokens, left[MOST], right[MOST], made[MOST], n_merges;
} slow;

static int slow_find(const slow *s, const char *bytes) {
    for (int i = 0; i < s->n_tokens; i++)
        if (!strcmp(s->token[i], bytes)) return i;
    return -1;
}

/* Words of lower-case letters, each with a blank before it but the first, so that borders are where blanks are. */
static void slow_words(slow *s, const tn_bpe *bytes, const char *text) {
    size_t size;
    memset(s, 0, sizeof *s);
    for (s->n_tokens = 0; s->n_tokens < 256; s->n_tokens++) s->token[s->n_tokens][0] = *tn_bpe_token(bytes, s->n_tokens, &size);
    for (const char *p = text; *p; p++) {
        if (*p == ' ' && p > text) s->ids[s->n++] = -1;
        s->ids[s->n++] = slow_find(s, (char[]){ *p, 0 });
    }
    s->ids[s->n++] = -1;
}

static void slow_merge(slow *s, int left, int right, int id) {
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        bool here = i + 1 < s->n && s->ids[i] == left && s->ids[i + 1] == right;
        s->ids[n++] = here ? id : s->ids[i];
        i += here;
    }
    s->n = n;
}

/* The pair that occurs most often, of equals the one with the lower ids; how often. */
static int slow_best(const slow *s, int *left, int *right) {
    int best = 0;
    for (int i = 0; i + 1 < s->n; i++) {
        int n = 0, a = s->ids[i], b = s->ids[i + 1];
        if (a < 0 || b < 0) continue;
        for (int j = 0; j + 1 < s->n; j++) n += s->ids[j] == a && s->ids[j + 1] == b;
        if (n > best || (n == best && (a < *left || (a == *left && b < *right)))) best = n, *left = a, *right = b;
    }
    return best;
}

static void slow_train(slow *s, int n_tokens) {
    int left = 0, right = 0;
    while (s->n_tokens < n_tokens && slow_best(s, &left, &right) >= 2) {
        char bytes[128];
        snprintf(bytes, sizeof bytes, "%s%s", s->token[left], s->token[right]);
        int id = slow_find(s, bytes);
        if (id < 0) strcpy(s->token[id = s->n_tokens++], bytes);
        s->left[s->n_merges] = left, s->right[s->n_merges] = right, s->made[s->n_merges++] = id;
        slow_merge(s, left, right, id);
    }
}

/* One word at a time: the merge of the lowest rank that applies, at its leftmost place. */
static void slow_encode(slow *s) {
    for (bool any = true; any;) {
        int best = s->n_merges, at = 0;
        any = false;
        for (int i = 0; i + 1 < s->n; i++)
            for (int m = 0; m < best; m++)
                if (s->ids[i] == s->left[m] && s->ids[i + 1] == s->right[m]) best = m, at = i, any = true;
        if (!any) break;
        s->ids[at] = s->made[best];
        memmove(s->ids + at + 1, s->ids + at + 2, (size_t)(s->n - at - 2) * sizeof *s->ids);
        s->n--;
    }
}

static void random_text(uint64_t *seed, char *text, int n, int letters) {
    for (int i = 0; i < n; i++)
        text[i] = (char)(rnd_below(seed, 5) && i ? 'a' + rnd_below(seed, letters) : i && text[i - 1] == ' ' ? 'b' : ' ');
    text[0] = 'a';
    if (text[n - 1] == ' ') text[n - 1] = 'c'; /* blanks at the end are a word */
    text[n] = 0;
}

static void test_against_slow(void **state) {
    (void)state;
    static slow s;
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_bpe *bytes, *b;
    char text[700], other[300];
    int32_t ids[700];
    size_t n;
    int merges = 0;
    assert_int_equal(tn_bpe_train(ctx, "", 0, &(tn_bpe_train_opts){ .n_tokens = 256 }, &bytes), TN_OK);
    for (uint64_t seed = 1; seed <= 60; seed++) {
        uint64_t r = seed;
        int letters = 1 + rnd_below(&r, 5), n_tokens = 256 + rnd_below(&r, 120);
        random_text(&r, text, 1 + rnd_below(&r, 600), letters);
        random_text(&r, other, 1 + rnd_below(&r, 250), letters + 1);
        slow_words(&s, bytes, text);
        slow_train(&s, n_tokens);
        assert_int_equal(tn_bpe_train(ctx, text, strlen(text), &(tn_bpe_train_opts){ .n_tokens = n_tokens }, &b), TN_OK);
        assert_int_equal(tn_bpe_count(b), s.n_tokens);
        for (int i = 0; i < s.n_tokens; i++) {
            const char *token = tn_bpe_token(b, i, &n);
            if (i >= 256 && (n != strlen(s.token[i]) || memcmp(token, s.token[i], n)))
                fail_msg("seed %d: token %d is \"%.*s\"; expected \"%s\"", (int)seed, i, (int)n, token, s.token[i]);
        }
        merges += s.n_merges;
        slow trained = s;
        slow_words(&s, bytes, other);
        memcpy(s.left, trained.left, sizeof s.left), memcpy(s.right, trained.right, sizeof s.right);
        memcpy(s.made, trained.made, sizeof s.made), s.n_merges = trained.n_merges;
        slow_encode(&s);
        assert_int_equal(tn_bpe_encode(ctx, b, other, strlen(other), 0, ids, 700, &n), TN_OK);
        size_t at = 0;
        for (int i = 0; i < s.n; i++)
            if (s.ids[i] >= 0 && (at >= n || ids[at++] != s.ids[i]))
                fail_msg("seed %d: id %zu of \"%s\" differs", (int)seed, at, other);
        assert_int_equal(at, n);
        tn_bpe_free(ctx, b);
    }
    assert_true(merges > 1000);
    tn_bpe_free(ctx, bytes);
    tn_ctx_free(ctx);
}

/* ---- any bytes come back ---- */

static void assert_back(tn_ctx *ctx, const tn_bpe *b, const char *text, size_t n, int specials) {
    size_t n_ids, again, n_back;
    assert_int_equal(tn_bpe_encode(ctx, b, text, n, specials, NULL, 0, &n_ids), TN_OK);
    assert_true(n_ids <= n);
    int32_t *ids = malloc((n_ids + 1) * sizeof *ids);
    char *back = malloc(n + 1);
    assert_int_equal(tn_bpe_encode(ctx, b, text, n, specials, ids, n_ids, &again), TN_OK);
    assert_int_equal(again, n_ids);
    assert_int_equal(tn_bpe_decode(ctx, b, ids, n_ids, back, n, &n_back), TN_OK);
    assert_int_equal(n_back, n);
    assert_memory_equal(back, text, n);
    free(ids);
    free(back);
}

static tn_bpe *trained(tn_ctx *ctx, tn_bpe_split split) {
    static const char *const specials[] = { "<|endoftext|>", "<|end|>", "<|end", "a \xC3\xA9" };
    char text[4000];
    uint64_t r = 7;
    tn_bpe *b;
    random_text(&r, text, 3999, 9);
    memcpy(text + 100, "\"q\" \\ caf\xC3\xA9\t\x01", 14);
    assert_int_equal(
        tn_bpe_train(ctx, text, 3999,
                     &(tn_bpe_train_opts){ .split = split, .n_tokens = 700, .specials = specials, .n_specials = 4 }, &b),
        TN_OK);
    return b;
}

static void test_any_bytes(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    for (int split = TN_BPE_GPT2; split <= TN_BPE_CL100K; split++) {
        tn_bpe *b = trained(ctx, (tn_bpe_split)split);
        for (uint64_t seed = 1; seed <= 300; seed++) {
            uint64_t r = seed;
            char *text = malloc(400);
            int n = rnd_below(&r, 400), most = seed % 3 ? 256 : 40;
            for (int i = 0; i < n; i++) text[i] = (char)(rnd_below(&r, most) + (most < 256 ? 10 : 0));
            text = realloc(text, (size_t)n + !n); /* what is read behind the end shows under the sanitizers */
            assert_back(ctx, b, text, (size_t)n, seed % 2);
            free(text);
        }
        tn_bpe_free(ctx, b);
    }
    tn_ctx_free(ctx);
}

static void test_specials(void **state) {
    (void)state;
    static const char text[] = "ab<|endoftext|><|end|><|endx";
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_bpe *b = trained(ctx, TN_BPE_GPT2);
    int32_t ids[64], end = tn_bpe_special_id(b, "<|endoftext|>");
    size_t n, plain;
    assert_int_equal(end, tn_bpe_count(b) - 4);
    assert_int_equal(tn_bpe_special_id(b, "a"), -1);
    assert_int_equal(tn_bpe_encode(ctx, b, text, strlen(text), 1, ids, 64, &n), TN_OK);
    int found = 0;
    for (size_t i = 0; i < n; i++) found += ids[i] >= end;
    assert_int_equal(found, 3);
    assert_int_equal(tn_bpe_encode(ctx, b, text, strlen(text), 0, ids, 64, &plain), TN_OK);
    for (size_t i = 0; i < plain; i++) assert_true(ids[i] < end);
    assert_back(ctx, b, text, strlen(text), 1);
    tn_bpe_free(ctx, b);
    tn_ctx_free(ctx);
}

/* A word of a million bytes takes n log n steps. */
static void test_long_word(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    tn_ctx *ctx = tn_ctx_new(NULL);
    char *text = malloc(N);
    tn_bpe *b;
    size_t n;
    memset(text, 'a', N);
    clock_t begin = clock();
    assert_int_equal(tn_bpe_train(ctx, text, N, &(tn_bpe_train_opts){ .n_tokens = 300 }, &b), TN_OK);
    assert_int_equal(tn_bpe_count(b), 256 + 9); /* 2, 4 .. 512 bytes, the longest that a token may have */
    assert_int_equal(tn_bpe_encode(ctx, b, text, N, 0, NULL, 0, &n), TN_OK);
    assert_int_equal(n, N / TN_TEXT_MAX_TOKEN);
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 30);
    tn_bpe_free(ctx, b);
    free(text);
    tn_ctx_free(ctx);
}

/* ---- files ---- */

static void test_files(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_bpe *b = trained(ctx, TN_BPE_GPT2), *c;
    char vocab[256], merges[256];
    size_t n, m;
    test_dir_make();
    strcpy(vocab, in_dir("vocab.json")), strcpy(merges, in_dir("merges.txt"));
    assert_int_equal(tn_bpe_save(ctx, b, vocab, merges), TN_OK);
    assert_int_equal(tn_bpe_load(ctx, vocab, merges, TN_BPE_GPT2, &c), TN_OK);
    assert_int_equal(tn_bpe_count(b), tn_bpe_count(c));
    for (int i = 0; i < tn_bpe_count(b); i++) {
        const char *x = tn_bpe_token(b, i, &n), *y = tn_bpe_token(c, i, &m);
        assert_int_equal(n, m);
        assert_memory_equal(x, y, n);
    }
    assert_int_equal(tn_bpe_special_id(c, "<|end|>"), tn_bpe_special_id(b, "<|end|>"));
    assert_int_equal(tn_bpe_special_id(c, "a \xC3\xA9"), tn_bpe_special_id(b, "a \xC3\xA9"));
    for (uint64_t seed = 1; seed < 40; seed++) {
        uint64_t r = seed;
        char text[500];
        int32_t x[500], y[500];
        random_text(&r, text, 1 + rnd_below(&r, 490), 10);
        assert_int_equal(tn_bpe_encode(ctx, b, text, strlen(text), 1, x, 500, &n), TN_OK);
        assert_int_equal(tn_bpe_encode(ctx, c, text, strlen(text), 1, y, 500, &m), TN_OK);
        assert_int_equal(n, m);
        assert_memory_equal(x, y, n * sizeof *x);
    }
    tn_bpe_free(ctx, b);
    tn_bpe_free(ctx, c);
    assert_fails(ctx, tn_bpe_load(ctx, in_dir("none"), merges, TN_BPE_GPT2, &c), TN_ERR_IO, "none", "a missing file");
    test_dir_remove();
    tn_ctx_free(ctx);
}

/* a, b, ab, ba, abab, a whole word that no merge makes, and a special token. */
static const char tiktoken[] = "YQ== 0\nYg== 1\nYWI= 2\nYmE= 3\r\nYWJhYg== 4\nYmJiYmI= 5\n\nIA== 6\n";

static void test_tiktoken(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int n, ids[8];
    } cases[] = { { "ab", 1, { 2 } },       { "aba", 2, { 2, 0 } },      { "abab", 1, { 4 } },
                  { "babab", 2, { 1, 4 } }, { "bbbbb", 1, { 5 } },       { "bbbbbb", 6, { 1, 1, 1, 1, 1, 1 } },
                  { " ab", 2, { 6, 2 } },   { "a<s>b", 3, { 0, 9, 1 } }, { "bab", 2, { 1, 2 } } };
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_bpe *b;
    const tn_bpe_special special = { "<s>", 9 };
    assert_int_equal(tn_bpe_parse_tiktoken(ctx, tiktoken, strlen(tiktoken), TN_BPE_CL100K, &special, 1, &b), TN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t ids[8];
        size_t n;
        assert_int_equal(tn_bpe_encode(ctx, b, cases[i].text, strlen(cases[i].text), 1, ids, 8, &n), TN_OK);
        if ((int)n != cases[i].n || memcmp(ids, cases[i].ids, n * sizeof *ids)) fail_msg("%s has other ids", cases[i].text);
    }
    assert_int_equal(tn_bpe_count(b), 10);
    assert_null(tn_bpe_token(b, 8, NULL));
    size_t n;
    assert_fails(ctx, tn_bpe_encode(ctx, b, "abc", 3, 0, NULL, 0, &n), TN_ERR_INVAL, "no token for byte 99", "a byte it lacks");
    assert_fails(ctx, tn_bpe_decode(ctx, b, (int32_t[]){ 0, 8 }, 2, NULL, 0, &n), TN_ERR_INVAL, "id 8 at place 1", "a gap");
    assert_fails(ctx, tn_bpe_decode(ctx, b, (int32_t[]){ -1 }, 1, NULL, 0, &n), TN_ERR_INVAL, "id -1", "a negative id");
    assert_fails(ctx, tn_bpe_save(ctx, b, "/tmp/a", "/tmp/b"), TN_ERR_UNSUPPORTED, "no list of merges", "saving it");
    tn_bpe_free(ctx, b);
    tn_ctx_free(ctx);
}

/* ---- bad input ---- */

static void test_malformed(void **state) {
    (void)state;
    static const struct {
        const char *vocab, *merges, *message;
    } files[] = {
        { "", "", "vocab: offset 0: expected {" },
        { "{\"a\": 0", "", "expected , or }" },
        { "{\"a\": 0} x", "", "end of the file" },
        { "{\"a\": 1.5}", "", "expected , or }" },
        { "{\"a\": -1}", "", "expected a token's id" },
        { "{\"a\": 99999999999}", "", "expected a token's id" },
        { "{\"a\": 0, \"b\": 0}", "", "two tokens have the id 0" },
        { "{\"a\": 0, \"a\": 1}", "", "same bytes" },
        { "{\"\": 0}", "", "has 0 bytes" },
        { "{\"a", "", "the file ends in a string" },
        { "{\"\\x\": 0}", "", "an escape" },
        { "{\"\\ud800\": 0}", "", "an escape" },
        { "{\"a\": 0, \"b\": 1, \"ab\": 2}", "#version: 0.2\nab\n", "merges:2: expected two tokens" },
        { "{\"a\": 0, \"b\": 1, \"ab\": 2}", "a c\n", "merges:1: a token that the vocabulary lacks" },
        { "{\"a\": 0, \"b\": 1, \"ab\": 2}", "b a\n", "lacks what these two" },
        { "{\"a\": 0, \"b\": 1, \"ab\": 2}", "a b\na b\n", "merges:2: the pair stands in the file twice" },
    };
    static const char *const lists[][2] = { { "YQ==\n", "tiktoken:1: expected a token in base64" },
                                            { "YR== 0\n", "expected a token" }, /* bits behind the end */
                                            { "YQ= 0\n", "expected a token" },
                                            { "YQ== 0 1\n", "expected a rank" },
                                            { "YQ== x\n", "expected a rank" },
                                            { "YQ== 0\nYQ== 1\n", "same bytes" },
                                            { "YQ== 0\nYg== 0\n", "two tokens have the id 0" },
                                            { "= 0\n", "expected a token" } };
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_bpe *b;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_fails(ctx,
                     tn_bpe_parse(ctx, files[i].vocab, strlen(files[i].vocab), files[i].merges, strlen(files[i].merges),
                                  TN_BPE_GPT2, &b),
                     TN_ERR_PARSE, files[i].message, files[i].vocab);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        assert_fails(ctx, tn_bpe_parse_tiktoken(ctx, lists[i][0], strlen(lists[i][0]), TN_BPE_GPT2, NULL, 0, &b), TN_ERR_PARSE,
                     lists[i][1], lists[i][0]);
    assert_null(b);
    assert_fails(ctx, tn_bpe_train(ctx, "a", 1, &(tn_bpe_train_opts){ .n_tokens = 255 }, &b), TN_ERR_INVAL,
                 "255 tokens with 0 specials", "few");
    assert_fails(ctx, tn_bpe_train(ctx, "a", 1, &(tn_bpe_train_opts){ .n_tokens = 300, .split = (tn_bpe_split)7 }, &b),
                 TN_ERR_INVAL, "no split 7", "split");
    assert_fails(
        ctx,
        tn_bpe_train(ctx, "a", 1,
                     &(tn_bpe_train_opts){ .n_tokens = 300, .n_specials = 2, .specials = (const char *const[]){ "x<", "x<" } },
                     &b),
        TN_ERR_INVAL, "given twice", "specials");
    tn_ctx_free(ctx);
}

/* Whatever a changed file gives is an error with a text, or a vocabulary that works. */
static void test_mutations(void **state) {
    (void)state;
    counting count;
    tn_ctx *ctx = counting_ctx(&count);
    tn_bpe *b = trained(ctx, TN_BPE_GPT2);
    void *vocab, *merges;
    size_t n_vocab, n_merges;
    test_dir_make();
    char v[256], m[256];
    strcpy(v, in_dir("v")), strcpy(m, in_dir("m"));
    assert_int_equal(tn_bpe_save(ctx, b, v, m), TN_OK);
    assert_int_equal(tn_io_file_load(ctx, v, 1 << 20, &vocab, &n_vocab), TN_OK);
    assert_int_equal(tn_io_file_load(ctx, m, 1 << 20, &merges, &n_merges), TN_OK);
    test_dir_remove();
    tn_bpe_free(ctx, b);
    int good = 0, bad = 0;
    uint64_t r = 11;
    for (int i = 0; i < 1500; i++) {
        bool lists = i % 3 == 2;
        const void *from = lists ? tiktoken : i % 3 ? merges : vocab;
        size_t size = lists ? strlen(tiktoken) : i % 3 ? n_merges : n_vocab, room = size + 128;
        uint8_t *changed = malloc(room);
        size_t n = mutate(&r, from, size, changed, room);
        changed = realloc(changed, n + !n);
        tn_status st = lists ? tn_bpe_parse_tiktoken(ctx, (char *)changed, n, TN_BPE_CL100K, NULL, 0, &b)
                             : tn_bpe_parse(ctx, i % 3 ? vocab : (char *)changed, i % 3 ? n_vocab : n,
                                            i % 3 ? (char *)changed : merges, i % 3 ? n : n_merges, TN_BPE_GPT2, &b);
        if (st) {
            bad++;
            assert_true(st == TN_ERR_PARSE && *tn_ctx_error(ctx) && !b);
        } else {
            good++;
            size_t n_ids;
            (void)!tn_bpe_encode(ctx, b, "abab cab \"q\"", 12, 1, NULL, 0, &n_ids);
            tn_bpe_free(ctx, b);
        }
        free(changed);
    }
    print_message("count: %d changed vocabularies: %d errors, %d that work\n", good + bad, bad, good);
    assert_true(good > 50 && bad > 500);
    tn_io_free(ctx, vocab);
    tn_io_free(ctx, merges);
    tn_ctx_free(ctx);
    assert_int_equal(count.live, 0);
}

/* Every allocation fails once: a status, a text, and nothing lost. */
static void test_no_memory(void **state) {
    (void)state;
    counting count;
    tn_ctx *ctx = counting_ctx(&count);
    static const char text[] = "ab abc abcd abcab abab abcabc cab cabab";
    static const char vocab[] = "{\"a\": 0, \"b\": 1, \"ab\": 2, \"x y\": 3}";
    size_t live = count.live, n;
    int failed = 0;
    for (long k = 0;; k++) {
        tn_bpe *b = NULL, *c = NULL, *d = NULL;
        count.requests = 0, count.fail_at = k;
        tn_status st = tn_bpe_train(ctx, text, strlen(text), &(tn_bpe_train_opts){ .n_tokens = 270 }, &b);
        if (!st) st = tn_bpe_encode(ctx, b, text, strlen(text), 1, NULL, 0, &n);
        if (!st) st = tn_bpe_parse(ctx, vocab, strlen(vocab), "a b\n", 4, TN_BPE_GPT2, &c);
        if (!st) st = tn_bpe_encode(ctx, c, "ab x y", 2, 1, NULL, 0, &n);
        if (!st) st = tn_bpe_parse_tiktoken(ctx, tiktoken, strlen(tiktoken), TN_BPE_CL100K, NULL, 0, &d);
        count.fail_at = -1;
        tn_bpe_free(ctx, b);
        tn_bpe_free(ctx, c);
        tn_bpe_free(ctx, d);
        assert_int_equal(count.live, live);
        if (!st) break;
        assert_int_equal(st, TN_ERR_NOMEM);
        failed++;
    }
    assert_true(failed > 20);
    print_message("count: %d allocations of tokenizers failed, nothing lost\n", failed);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),     cmocka_unit_test(test_against_slow), cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_specials),  cmocka_unit_test(test_long_word),    cmocka_unit_test(test_files),
        cmocka_unit_test(test_tiktoken),  cmocka_unit_test(test_malformed),    cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
