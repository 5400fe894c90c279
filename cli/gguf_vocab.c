/* gguf_vocab.c - the tokenizer of a GGUF: its metadata written as tokenizer.json, which tn_bpe_parse_json reads, so that there
 * is one way in which text becomes tokens.
 *
 * In: metadata that tn_io_gguf_load has checked for form, not for what it means. Out: a byte-level BPE, or SentencePiece's,
 * whose scores become merges: every pair of tokens that is a token, the highest score first. */
#include "lm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Kinds of tokens, as "tokenizer.ggml.token_type" numbers them. */
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6 };

typedef struct token {
    const char *text; /* in the file, without an end */
    size_t n;
    float score;
    uint8_t kind;
} token;
typedef struct vocab {
    cli *c;
    const char *path;
    const tn_io_gguf *file;
    token *at;
    size_t n, n_scores, n_kinds;
    FILE *f; /* of tokenizer.json */
    json j;
    bool bad;
} vocab;

/* ---- words ---- */

#define LEVEL(own) "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":" own "}"
#define SPLIT(numbers)                                                                                                         \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"                                    \
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" numbers                                          \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"                                 \
    "\"behavior\":\"Isolated\",\"invert\":false}," LEVEL("false") "]}"
#define LLAMA3 SPLIT("\\\\p{N}{1,3}")
static const struct rule {
    const char *name, *split;
    bool whole_words, nfc; /* a word that is a token becomes that token; text is brought into that form */
} rules[] = {
    { "default", LEVEL("true"), false, false },
    { "gpt-2", LEVEL("true"), false, false },
    { "gpt2", LEVEL("true"), false, false },
    { "llama-bpe", LLAMA3, true, false },
    { "llama3", LLAMA3, true, false },
    { "llama-v3", LLAMA3, true, false },
    { "cl100k", LLAMA3, false, false },
    { "qwen2", SPLIT("\\\\p{N}"), false, true },
    { "deepseek-r1-qwen", SPLIT("\\\\p{N}"), false, true },
    { "smollm",
      "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true}," LEVEL("true") "]}", false,
      false },
};

static const struct rule *rule_of(const vocab *v) {
    const char *name = tn_io_gguf_text(v->file, "tokenizer.ggml.pre");
    for (size_t i = 0; i < COUNT_OF(rules); i++)
        if (!strcmp(rules[i].name, name ? name : "default")) return &rules[i];
    cli_fail(v->c, "%s: words are split as %.40s does it; gpt-2, llama-bpe, qwen2 and smollm are known", v->path, name);
}

/* ---- tokens ---- */

static void add_token(void *ud, const char *text, size_t n) {
    vocab *v = ud;
    v->at[v->n++] = (token){ .text = text, .n = n, .kind = NORMAL };
}
static void add_score(void *ud, double score) {
    vocab *v = ud;
    if (v->n_scores < v->n) v->at[v->n_scores++].score = isnan(score) ? -INFINITY : (float)score;
}
static void add_kind(void *ud, double kind) {
    vocab *v = ud;
    if (v->n_kinds < v->n) v->at[v->n_kinds++].kind = kind >= NORMAL && kind <= BYTE ? (uint8_t)kind : NORMAL;
}
static void add_merge(void *ud, const char *text, size_t n) {
    vocab *v = ud;
    char *merge = cli_alloc(n + 1);
    memcpy(merge, text, n);
    v->bad |= strlen(merge) != n;
    json_text(&v->j, NULL, merge);
    free(merge);
}

static bool is_special(const token *t) { return t->kind == CONTROL || t->kind == USER || t->kind == UNKNOWN; }

static char *text_of(vocab *v, const token *t) {
    char *text = cli_alloc(t->n + 1);
    memcpy(text, t->text, t->n);
    v->bad |= strlen(text) != t->n;
    return text;
}

static void put_tokens(vocab *v) {
    json_array(&v->j, "added_tokens");
    for (size_t i = 0; i < v->n; i++) {
        if (!is_special(&v->at[i])) continue;
        char *text = text_of(v, &v->at[i]);
        json_line(&v->j, NULL);
        json_int(&v->j, "id", (int64_t)i), json_text(&v->j, "content", text);
        json_end(&v->j);
        free(text);
    }
    json_end(&v->j);
}

static void put_vocab(vocab *v) {
    json_object(&v->j, "vocab");
    for (size_t i = 0; i < v->n; i++) {
        if (is_special(&v->at[i]) || v->at[i].kind == UNUSED) continue;
        char *text = text_of(v, &v->at[i]);
        json_int(&v->j, text, (int64_t)i);
        free(text);
    }
    json_end(&v->j);
}

/* ---- merges of SentencePiece ---- */

typedef struct merge {
    int32_t whole; /* the token that the first `cut` bytes of it and the others become */
    uint32_t cut;
    float score;
} merge;

static int by_score(const void *a, const void *b) { /* as Hugging Face's converter orders them */
    const merge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->cut != y->cut) return x->cut > y->cut ? -1 : 1;
    return x->whole < y->whole ? -1 : x->whole > y->whole;
}

static uint64_t hash_of(const char *text, size_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)text[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

/* Where the token of that text stands in the table, or would. */
static size_t place_of(const vocab *v, const int32_t *table, size_t room, const char *text, size_t n) {
    size_t at = (size_t)hash_of(text, n) & (room - 1);
    while (table[at] >= 0 && (v->at[table[at]].n != n || memcmp(v->at[table[at]].text, text, n) != 0))
        at = (at + 1) & (room - 1);
    return at;
}

static void put_scored_merges(vocab *v) {
    size_t room = 16, n = 0, most = 0;
    while (room < 2 * v->n) room *= 2;
    int32_t *table = cli_alloc(room * sizeof *table);
    memset(table, -1, room * sizeof *table);
    for (size_t i = 0; i < v->n; i++) {
        if (v->at[i].kind != NORMAL || v->at[i].n > TN_TEXT_MAX_TOKEN) continue;
        table[place_of(v, table, room, v->at[i].text, v->at[i].n)] = (int32_t)i;
        most += v->at[i].n;
    }
    merge *list = cli_alloc((most + 1) * sizeof *list);
    for (size_t i = 0; i < v->n; i++) {
        const token *t = &v->at[i];
        for (size_t cut = 1; t->kind == NORMAL && t->n <= TN_TEXT_MAX_TOKEN && cut < t->n; cut++) {
            if (((uint8_t)t->text[cut] & 0xC0) == 0x80) continue;
            if (table[place_of(v, table, room, t->text, cut)] < 0 ||
                table[place_of(v, table, room, t->text + cut, t->n - cut)] < 0)
                continue;
            list[n++] = (merge){ (int32_t)i, (uint32_t)cut, t->score };
        }
    }
    qsort(list, n, sizeof *list, by_score);
    json_array(&v->j, "merges");
    for (size_t i = 0; i < n; i++) {
        const token *t = &v->at[list[i].whole];
        char *first = text_of(v, &(token){ .text = t->text, .n = list[i].cut }),
             *second = text_of(v, &(token){ .text = t->text + list[i].cut, .n = t->n - list[i].cut });
        json_array(&v->j, NULL);
        json_text(&v->j, NULL, first), json_text(&v->j, NULL, second);
        json_end(&v->j);
        free(first), free(second);
    }
    json_end(&v->j);
    free(list);
    free(table);
}

/* ---- the whole ---- */

#define MARK "\xE2\x96\x81"

static void put_file(vocab *v, bool pieces) {
    double prefix = 1;
    const struct rule *rule = pieces ? NULL : rule_of(v);
    (void)tn_io_gguf_number(v->file, "tokenizer.ggml.add_space_prefix", &prefix);
    fputc('{', v->f);
    put_tokens(v);
    if (pieces) {
        json_raw(&v->j, "normalizer",
                 prefix != 0 ? "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"" MARK
                               "\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}]}"
                             : "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}");
    } else {
        json_raw(&v->j, "normalizer", rule->nfc ? "{\"type\":\"NFC\"}" : "null");
        json_raw(&v->j, "pre_tokenizer", rule->split);
    }
    json_object(&v->j, "model");
    json_text(&v->j, "type", "BPE");
    json_bool(&v->j, "byte_fallback", pieces), json_bool(&v->j, "ignore_merges", rule && rule->whole_words);
    put_vocab(v);
    if (pieces)
        put_scored_merges(v);
    else {
        json_array(&v->j, "merges");
        (void)tn_io_gguf_texts(v->file, "tokenizer.ggml.merges", add_merge, v);
        json_end(&v->j);
    }
    json_end(&v->j);
    json_finish(&v->j);
}

tn_bpe *lm_gguf_bpe(cli *c, const char *path, const tn_io_gguf *file, int64_t most, bool *begins) {
    vocab v = { .c = c, .path = path, .file = file };
    const char *kind = tn_io_gguf_text(file, "tokenizer.ggml.model"), *pre = tn_io_gguf_text(file, "tokenizer.ggml.pre");
    bool pieces = kind && !strcmp(kind, "llama");
    if (!kind || (!pieces && strcmp(kind, "gpt2") != 0))
        cli_fail(c, "%s: a tokenizer of the kind %.40s; byte-level BPE (gpt2) and SentencePiece's BPE (llama) are read", path,
                 kind ? kind : "none");
    int64_t n = tn_io_gguf_texts(file, "tokenizer.ggml.tokens", NULL, NULL);
    if (n < 0) cli_fail(c, "%s: there is no \"tokenizer.ggml.tokens\"", path);
    if (n > most) cli_fail(c, "%s: %lld tokens, token_embd.weight has %lld", path, (long long)n, (long long)most);
    v.at = cli_alloc((size_t)(n + 1) * sizeof *v.at);
    (void)tn_io_gguf_texts(file, "tokenizer.ggml.tokens", add_token, &v);
    (void)tn_io_gguf_numbers(file, "tokenizer.ggml.scores", add_score, &v);
    (void)tn_io_gguf_numbers(file, "tokenizer.ggml.token_type", add_kind, &v);
    if (pieces && (v.n_scores < v.n || v.n_kinds < v.n))
        cli_fail(c, "%s: a tokenizer of the kind llama without \"scores\" and \"token_type\" of each token", path);
    char *text = NULL;
    size_t size = 0;
    if (!(v.f = open_memstream(&text, &size))) cli_fail(c, "out of memory");
    v.j = (json){ .f = v.f, .depth = 1 };
    put_file(&v, pieces);
    if (fclose(v.f)) cli_fail(c, "out of memory");
    if (v.bad) cli_fail(c, "%s: a token or a merge has a zero in it", path);
    tn_bpe *b;
    char *name = cli_format("%s: its tokenizer", path);
    cli_need(c, tn_bpe_parse_json(cli_ctx(c), text, size, name, &b));
    double adds = pieces || (pre && (!strcmp(pre, "llama-bpe") || !strcmp(pre, "llama3") || !strcmp(pre, "llama-v3")));
    (void)tn_io_gguf_number(file, "tokenizer.ggml.add_bos_token", &adds);
    *begins = adds != 0;
    free(name);
    free(text);
    free(v.at);
    return b;
}
