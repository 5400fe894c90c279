/* bpe_json.c - tokenizer.json of Hugging Face's library: a vocabulary, merges, added tokens, and how text is split.
 *
 * In: JSON that tn_io_json_parse has checked; from anywhere, so every value is checked for what it is. Out: a vocabulary, or an
 * error that names what the file has and this library does not. */
#include "text.h"

#include "tenon/tenon_io.h"

#include <stdio.h>

typedef struct reader {
    tn_ctx *ctx;
    const char *name; /* of the file */
    tn_bpe *b;
    char *bytes; /* of one token, or of two */
    size_t room;
} reader;

static bool is(const tn_json *v, const char *text) { return v && v->text && !strcmp(v->text, text); }
static bool is_type(const tn_json *v, const char *type) { return is(tn_io_json_find(v, "type"), type); }
static bool is_set(const tn_json *v, const char *key) { /* true, or a number that is not 0 */
    const tn_json *x = tn_io_json_find(v, key);
    return x && x->number != 0;
}
static const char *type_of(const tn_json *v) {
    const tn_json *type = tn_io_json_find(v, "type");
    return type && type->text ? type->text : v && v->kind == TN_JSON_NULL ? "none" : "?";
}
static tn_status unknown(const reader *r, const char *what, const char *is) {
    return text_fail(r->ctx, TN_ERR_UNSUPPORTED, "%s: %s: %.100s is not supported", r->name, what, is);
}
static tn_status wrong(const reader *r, const char *what) { return text_fail(r->ctx, TN_ERR_PARSE, "%s: %s", r->name, what); }

/* The list of a sequence, or the value alone: *v and *end are where it begins and ends. */
static void list_of(const tn_json *v, const char *key, const tn_json **at, const tn_json **end) {
    const tn_json *list = is_type(v, "Sequence") ? tn_io_json_find(v, key) : NULL;
    *at = list ? list + 1 : v, *end = v ? (list ? list + list->all : v + v->all) : v;
}

/* ---- how text is split ---- */

#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const struct pattern {
    const char *text;
    tn_bpe_split split;
} patterns[] = { { WORDS "\\p{N}{1,3}" REST, TN_BPE_CL100K },
                 { WORDS "\\p{N}" REST, TN_BPE_QWEN2 },
                 { "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", TN_BPE_GPT2 } };

static tn_status read_pattern(const reader *r, const tn_json *v, tn_bpe_split *split) {
    const tn_json *regex = tn_io_json_find(tn_io_json_find(v, "pattern"), "Regex");
    if (!is(tn_io_json_find(v, "behavior"), "Isolated") || is_set(v, "invert"))
        return unknown(r, "a split of the pre_tokenizer", "another behaviour than Isolated");
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (is(regex, patterns[i].text)) return *split = patterns[i].split, TN_OK;
    return unknown(r, "the pattern of the pre_tokenizer", regex && regex->text ? regex->text : "no Regex");
}

/* Bytes: a pattern and ByteLevel, or ByteLevel's own pattern, between numbers or not. */
static tn_status read_split(const reader *r, const tn_json *pre, tn_bpe_split *split) {
    const tn_json *v, *end;
    bool digits = false, pattern = false, bytes = false;
    list_of(pre, "pretokenizers", &v, &end);
    for (tn_status st; v < end; v += v->all) {
        if (!bytes && !pattern && is_type(v, "Digits") && is_set(v, "individual_digits"))
            digits = true;
        else if (!bytes && !pattern && !digits && is_type(v, "Split")) {
            if ((st = read_pattern(r, v, split))) return st;
            pattern = true;
        } else if (!bytes && is_type(v, "ByteLevel") && !is_set(v, "add_prefix_space")) {
            const tn_json *own = tn_io_json_find(v, "use_regex");
            if ((!own || own->number != 0) == pattern) return unknown(r, "pre_tokenizer", "two patterns, or none,");
            bytes = true;
        } else
            return unknown(r, "pre_tokenizer", is_type(v, "ByteLevel") ? "ByteLevel with add_prefix_space" : type_of(v));
    }
    if (!bytes) return unknown(r, "pre_tokenizer", "a BPE without ByteLevel or byte_fallback");
    if (!pattern) *split = digits ? TN_BPE_DIGITS : TN_BPE_GPT2;
    return TN_OK;
}

static bool is_text(const tn_json *v, const char *key, const char *text) { return is(tn_io_json_find(v, key), text); }
#define MARK "\xE2\x96\x81" /* U+2581, SentencePiece's blank */

/* Characters: blanks become MARK, one of which may stand before the text. */
static tn_status read_blank(const reader *r, const tn_json *normalizer, const tn_json *pre) {
    const tn_json *v, *end;
    bool marks = false, prepended = false;
    list_of(normalizer, "normalizers", &v, &end);
    for (; v < end; v += v->all) {
        if (is_type(v, "Prepend") && is_text(v, "prepend", MARK) && !marks)
            prepended = true;
        else if (is_type(v, "Replace") && is_text(tn_io_json_find(v, "pattern"), "String", " ") && is_text(v, "content", MARK))
            marks = true;
        else if (v->kind != TN_JSON_NULL)
            return unknown(r, "normalizer", type_of(v));
    }
    r->b->blank = prepended ? TEXT_BLANK_ALWAYS : TEXT_NO_BLANK;
    if (pre && pre->kind != TN_JSON_NULL) {
        const tn_json *split = tn_io_json_find(pre, "split");
        if (!is_type(pre, "Metaspace") || marks || prepended) return unknown(r, "pre_tokenizer", type_of(pre));
        if (!is_text(pre, "replacement", MARK) || !split || split->number != 0)
            return unknown(r, "pre_tokenizer", "Metaspace that splits, or with another replacement,");
        bool first = is_text(pre, "prepend_scheme", "first"), never = is_text(pre, "prepend_scheme", "never");
        r->b->blank = first ? TEXT_BLANK_FIRST : never ? TEXT_NO_BLANK : TEXT_BLANK_PARTS;
        marks = true;
    }
    return marks ? TN_OK : unknown(r, "normalizer", "byte_fallback with blanks as they are");
}

static tn_status read_splits(const reader *r, const tn_json *root) {
    const tn_json *normalizer = tn_io_json_find(root, "normalizer"), *pre = tn_io_json_find(root, "pre_tokenizer");
    if (r->b->characters) return read_blank(r, normalizer, pre);
    r->b->nfc = is_type(normalizer, "NFC");
    if (normalizer && normalizer->kind != TN_JSON_NULL && !r->b->nfc) return unknown(r, "normalizer", type_of(normalizer));
    if (!pre) return unknown(r, "pre_tokenizer", "none");
    return read_split(r, pre, &r->b->split);
}

/* ---- tokens ---- */

static bool read_id(const tn_json *v, int32_t *out) {
    if (!v || v->kind != TN_JSON_NUMBER || !(v->number >= 0 && v->number < TN_TEXT_MAX_TOKENS)) return false;
    *out = (int32_t)v->number;
    return (double)*out == v->number;
}

static tn_status read_added(reader *r, const tn_json *list) {
    static const char *const flags[] = { "single_word", "lstrip", "rstrip" };
    tn_status st = TN_OK;
    if (!list || list->kind == TN_JSON_NULL) return TN_OK;
    if (list->kind != TN_JSON_ARRAY) return wrong(r, "\"added_tokens\" is no array");
    for (const tn_json *v = list + 1; v < list + list->all && !st; v += v->all) {
        const tn_json *text = tn_io_json_find(v, "content");
        int32_t id;
        if (!text || !text->text || !read_id(tn_io_json_find(v, "id"), &id))
            return wrong(r, "one of \"added_tokens\" has no \"content\" or no \"id\" below TN_TEXT_MAX_TOKENS");
        for (size_t i = 0; i < 3; i++)
            if (is_set(v, flags[i])) return unknown(r, text->text, flags[i]);
        st = text_bpe_add(r->ctx, r->b, id, text->text, (size_t)text->n, true);
    }
    return st;
}

/* <0x0A> stands for a byte; -1: no such token. */
static int byte_of(const tn_json *v) {
    int value = 0;
    if (strlen(v->key) != 6 || strncmp(v->key, "<0x", 3) != 0 || v->key[5] != '>') return -1;
    for (int i = 3; i < 5; i++) {
        char c = v->key[i];
        if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'))) return -1;
        value = value * 16 + (c <= '9' ? c - '0' : c - 'A' + 10);
    }
    return value;
}

/* A token's text as its bytes. */
static size_t bytes_of(const reader *r, const char *text, char *out) {
    size_t n = strlen(text), m = 0;
    if (!r->b->characters) return text_mapped(text, n, out);
    for (size_t i = 0; i < n; m++) {
        bool mark = !strncmp(text + i, MARK, 3);
        out[m] = mark ? ' ' : text[i];
        i += mark ? 3 : 1;
    }
    return m;
}

static bool need(reader *r, size_t n) { return text_grow(r->ctx, &r->bytes, &r->room, n, 1); }

static tn_status read_vocab(reader *r, const tn_json *vocab) {
    if (!vocab || vocab->kind != TN_JSON_OBJECT) return wrong(r, "\"model\" has no \"vocab\", an object of tokens and ids");
    for (const tn_json *v = vocab + 1; v < vocab + vocab->all; v += v->all) {
        int32_t id;
        size_t n = strlen(v->key), size;
        if (!read_id(v, &id)) return wrong(r, "a token of \"vocab\" has no id below TN_TEXT_MAX_TOKENS");
        const char *added = tn_bpe_token(r->b, id, &size);
        if (added && r->b->tokens[id].special && size == n && !memcmp(added, v->key, n)) continue;
        int byte = r->b->characters ? byte_of(v) : -1;
        if (!need(r, n + 1)) return TN_ERR_NOMEM;
        tn_status st = byte >= 0 ? text_bpe_add_byte(r->ctx, r->b, id, (uint8_t)byte)
                                 : text_bpe_add(r->ctx, r->b, id, r->bytes, bytes_of(r, v->key, r->bytes), false);
        if (st) return st;
    }
    for (int byte = 0; r->b->characters && byte < 256; byte++)
        if (r->b->of_byte[byte] < 0) return wrong(r, "\"byte_fallback\" without tokens <0x00> to <0xFF>");
    return TN_OK;
}

static tn_status read_unknown(const reader *r, const tn_json *model) {
    const tn_json *v = tn_io_json_find(model, "unk_token");
    if (!v || !v->text || !v->n) return TN_OK;
    r->b->unknown = text_bpe_find(r->b, v->text, (size_t)v->n, text_hash(0, v->text, 0, (size_t)v->n));
    r->b->fuse_unknown = is_set(model, "fuse_unk");
    return r->b->unknown >= 0 ? TN_OK : wrong(r, "\"unk_token\" is no token");
}

/* "a b", or ["a", "b"]. */
static tn_status read_merges(reader *r, const tn_json *list) {
    if (!list || list->kind != TN_JSON_ARRAY) return wrong(r, "\"model\" has no \"merges\", an array");
    for (const tn_json *v = list + 1; v < list + list->all; v += v->all) {
        bool pair = v->kind == TN_JSON_ARRAY && v->n == 2 && v->all == 3 && v[1].text && v[2].text;
        const char *gap = v->text ? strchr(v->text, ' ') : NULL;
        if (!pair && (!gap || strchr(gap + 1, ' '))) return wrong(r, "one of \"merges\" is no pair of tokens");
        if (!need(r, 2 + (size_t)v->n + (pair ? (size_t)v[1].n + (size_t)v[2].n : 0))) return TN_ERR_NOMEM;
        size_t left, all, n = pair ? (size_t)v[1].n : (size_t)(gap - v->text);
        char *text = r->bytes; /* each part is copied, as it needs an end */
        memcpy(text, pair ? v[1].text : v->text, n), text[n] = 0;
        left = bytes_of(r, text, text);
        const char *second = pair ? v[2].text : gap + 1;
        all = left + bytes_of(r, second, text + left);
        const char *what = text_bpe_merge(r->ctx, r->b, text, left, all);
        if (what && !*what) return TN_ERR_NOMEM;
        if (what) return text_fail(r->ctx, TN_ERR_PARSE, "%s: merge %d: %s", r->name, (int)r->b->merges.n, what);
    }
    return TN_OK;
}

/* The token before the text, of a template. */
static tn_status read_template(const reader *r, const tn_json *post) {
    const tn_json *v, *end;
    list_of(post, "processors", &v, &end);
    for (; v < end; v += v->all) {
        if (v->kind == TN_JSON_NULL || is_type(v, "ByteLevel")) continue;
        const tn_json *single = tn_io_json_find(v, "single");
        if (!is_type(v, "TemplateProcessing") || !single || single->kind != TN_JSON_ARRAY)
            return unknown(r, "post_processor", type_of(v));
        for (const tn_json *part = single + 1; part < single + single->all; part += part->all) {
            if (tn_io_json_find(part, "Sequence")) break;
            const tn_json *name = tn_io_json_find(tn_io_json_find(part, "SpecialToken"), "id");
            const tn_json *ids = name && name->text
                                     ? tn_io_json_find(tn_io_json_find(tn_io_json_find(v, "special_tokens"), name->text), "ids")
                                     : NULL;
            int32_t id;
            if (!ids || ids->n != 1 || ids->all != 2 || !read_id(ids + 1, &id) || !tn_bpe_token(r->b, id, NULL))
                return wrong(r, "the post_processor's template has a special token that is no token");
            if (r->b->begin >= 0) return unknown(r, "post_processor", "more than one token before the text");
            r->b->begin = id;
        }
    }
    return TN_OK;
}

static tn_status read_all(reader *r, const tn_json *root) {
    const tn_json *model = tn_io_json_find(root, "model");
    static const char *const empty[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    tn_status st;
    if (!model || model->kind != TN_JSON_OBJECT) return wrong(r, "there is no \"model\": this is no tokenizer.json");
    if (!is_type(model, "BPE") && tn_io_json_find(model, "type")) return unknown(r, "model", type_of(model));
    for (size_t i = 0; i < 2; i++) {
        const tn_json *v = tn_io_json_find(model, empty[i]);
        if (v && v->text && v->n) return unknown(r, "model", empty[i]);
    }
    if (is_set(model, "dropout")) return unknown(r, "model", "dropout");
    r->b->characters = is_set(model, "byte_fallback");
    r->b->whole_words = is_set(model, "ignore_merges");
    if ((st = read_splits(r, root))) return st;
    if ((st = read_added(r, tn_io_json_find(root, "added_tokens")))) return st;
    if ((st = read_vocab(r, tn_io_json_find(model, "vocab")))) return st;
    if ((st = read_merges(r, tn_io_json_find(model, "merges")))) return st;
    if ((st = read_unknown(r, model))) return st;
    return read_template(r, tn_io_json_find(root, "post_processor"));
}

static tn_status make(tn_ctx *ctx, const char *name, const tn_json *root, tn_bpe **out) {
    reader r = { .ctx = ctx, .name = name };
    tn_status st = text_bpe_new(ctx, TN_BPE_GPT2, &r.b);
    if (!st) st = read_all(&r, root);
    text_free(ctx, r.bytes, r.room, 1);
    if (st)
        tn_bpe_free(ctx, r.b);
    else
        *out = r.b;
    return st;
}

tn_status tn_bpe_parse_json(tn_ctx *ctx, const void *bytes, size_t n, const char *name, tn_bpe **out) {
    if (!ctx) return TN_ERR_INVAL;
    if (out) *out = NULL;
    if (!out || (!bytes && n)) return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_parse_json: bytes or out is NULL");
    const tn_json *root;
    tn_status st = tn_io_json_parse(ctx, bytes, n, name ? name : "tokenizer.json", &root);
    if (!st) st = make(ctx, name ? name : "tokenizer.json", root, out);
    tn_io_json_free(ctx, root);
    return st;
}

tn_status tn_bpe_load_json(tn_ctx *ctx, const char *path, tn_bpe **out) {
    if (!ctx) return TN_ERR_INVAL;
    if (out) *out = NULL;
    if (!path || !out) return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_load_json: path or out is NULL");
    const tn_json *root;
    tn_status st = tn_io_json_load(ctx, path, &root);
    if (!st) st = make(ctx, path, root, out);
    tn_io_json_free(ctx, root);
    return st;
}
