/* bpe_files.c - vocabularies in files: GPT-2's vocab.json and merges.txt, tiktoken's list of tokens.
 *
 * In: untrusted bytes. Out: a vocabulary, or an error with its line or offset. No function calls itself on input. */
#include "text.h"

#include "tenon/tenon_io.h"

#include <stdio.h>

/* ---- a reader of bytes ---- */

typedef struct reader {
    tn_ctx *ctx;
    const char *name;
    const uint8_t *base;
    size_t n, pos;
} reader;

static int peek(const reader *r) { return r->pos < r->n ? r->base[r->pos] : -1; }
static int next(reader *r) { return r->pos < r->n ? r->base[r->pos++] : -1; }

static tn_status parse_error(const reader *r, const char *what) {
    return text_fail(r->ctx, TN_ERR_PARSE, "%s: offset %zu: %s", r->name, r->pos, what);
}

static void skip_blanks(reader *r) {
    while (peek(r) == ' ' || peek(r) == '\n' || peek(r) == '\r' || peek(r) == '\t') r->pos++;
}

/* ---- GPT-2's characters for bytes ---- */

enum { FIRST_OTHER = 0x100, N_PRINTABLE = 188 };

/* The byte that a character stands for; -1: none. */
static int byte_of_char(uint32_t c) {
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 255 && c != 173)) return (int)c;
    int k = (int)c - FIRST_OTHER; /* 0 to 32, 127 to 160, 173 */
    return k < 0 || k >= 256 - N_PRINTABLE ? -1 : k < 33 ? k : k < 67 ? k - 33 + 127 : 173;
}

static uint32_t char_of_byte(uint8_t byte) {
    for (int32_t place = N_PRINTABLE; place < 256; place++)
        if (text_byte_of(place) == byte) return FIRST_OTHER + (uint32_t)(place - N_PRINTABLE);
    return byte;
}

size_t text_mapped(const char *text, size_t n, char *out) {
    size_t at = 0;
    for (size_t i = 0; i < n; at++) {
        uint8_t c = (uint8_t)text[i];
        bool two = c >= 0xC2 && c < 0xE0 && i + 1 < n && ((uint8_t)text[i + 1] & 0xC0) == 0x80;
        uint32_t ch = two ? (uint32_t)(c & 0x1F) << 6 | ((uint8_t)text[i + 1] & 0x3F) : c;
        int byte = two || c < 0x80 ? byte_of_char(ch) : -1;
        if (byte < 0) return memcpy(out, text, n), n;
        out[at] = (char)byte;
        i += two ? 2 : 1;
    }
    return at;
}

/* ---- vocab.json ---- */

enum { MAX_STRING = 4 * TN_TEXT_MAX_TOKEN };

static bool read_hex(reader *r, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++) {
        int c = next(r), lower = c | 32;
        int digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
        if (digit < 0) return false;
        *out = *out * 16 + (uint32_t)digit;
    }
    return true;
}

/* What follows a backslash, as UTF-8 behind out. 0: it is malformed. */
static size_t read_escape(reader *r, char *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = next(r);
    const char *at = c > 0 ? strchr(from, c) : NULL;
    if (at) return *out = to[at - from], 1;
    uint32_t high, low;
    if (c != 'u' || !read_hex(r, &high) || (high >= 0xDC00 && high < 0xE000)) return 0;
    if (high < 0xD800 || high >= 0xE000) return text_put_utf8(out, high);
    if (next(r) != '\\' || next(r) != 'u' || !read_hex(r, &low) || low < 0xDC00 || low >= 0xE000) return 0;
    return text_put_utf8(out, 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00));
}

static tn_status read_string(reader *r, char *out, size_t *out_n) {
    size_t n = 0;
    if (next(r) != '"') return parse_error(r, "expected a string");
    for (int c; (c = next(r)) != '"';) {
        if (c < 32) return parse_error(r, c < 0 ? "the file ends in a string" : "a control character in a string");
        if (n + 4 > MAX_STRING) return parse_error(r, "a token is too long");
        size_t more = 1;
        out[n] = (char)c;
        if (c == '\\' && !(more = read_escape(r, out + n))) return parse_error(r, "an escape that JSON does not have");
        n += more;
    }
    *out_n = n;
    return TN_OK;
}

static tn_status read_id(reader *r, int32_t *out) {
    int64_t v = 0;
    size_t from = r->pos;
    for (; peek(r) >= '0' && peek(r) <= '9' && v < TN_TEXT_MAX_TOKENS; r->pos++) v = v * 10 + (peek(r) - '0');
    if (r->pos == from || v >= TN_TEXT_MAX_TOKENS || (peek(r) >= '0' && peek(r) <= '9'))
        return parse_error(r, "expected a token's id, a whole number below TN_TEXT_MAX_TOKENS");
    *out = (int32_t)v;
    return TN_OK;
}

static tn_status expect(reader *r, char c, const char *what) {
    skip_blanks(r);
    if (peek(r) != c) return parse_error(r, what);
    r->pos++;
    skip_blanks(r);
    return TN_OK;
}

static tn_status read_vocab(reader *r, tn_bpe *b) {
    char text[MAX_STRING + 4], bytes[MAX_STRING + 4];
    tn_status st = expect(r, '{', "expected {: a JSON object of tokens and their ids");
    bool more = !st && peek(r) != '}';
    while (!st && more) {
        size_t n = 0;
        int32_t id = 0;
        st = read_string(r, text, &n);
        if (!st) st = expect(r, ':', "expected : behind a token");
        if (!st) st = read_id(r, &id);
        if (!st) n = text_mapped(text, n, bytes);
        if (!st) st = text_bpe_add(r->ctx, b, id, bytes, n, false);
        skip_blanks(r);
        more = !st && peek(r) == ',';
        if (more) r->pos++, skip_blanks(r);
    }
    if (!st) st = expect(r, '}', "expected , or } behind a token's id");
    return !st && r->pos < r->n ? parse_error(r, "expected the end of the file") : st;
}

/* ---- merges.txt ---- */

typedef struct line_reader {
    reader r;
    int64_t line;
} line_reader;

/* The next line without its end; false at the end of the file. */
static bool read_line(line_reader *l, const char **out, size_t *out_n) {
    reader *r = &l->r;
    if (r->pos >= r->n) return false;
    const uint8_t *from = r->base + r->pos, *end = memchr(from, '\n', r->n - r->pos);
    size_t n = end ? (size_t)(end - from) : r->n - r->pos;
    r->pos += n + (end != NULL);
    l->line++;
    if (n && from[n - 1] == '\r') n--;
    *out = (const char *)from, *out_n = n;
    return true;
}

static tn_status line_error(const line_reader *l, const char *what) {
    return text_fail(l->r.ctx, TN_ERR_PARSE, "%s:%lld: %s", l->r.name, (long long)l->line, what);
}

static tn_status add_merge(line_reader *l, tn_bpe *b, const char *line, size_t n) {
    char bytes[MAX_STRING];
    const char *gap = memchr(line, ' ', n);
    if (!gap || n > MAX_STRING) return line_error(l, "expected two tokens with a blank between");
    size_t left = text_mapped(line, (size_t)(gap - line), bytes),
           all = left + text_mapped(gap + 1, n - 1 - (size_t)(gap - line), bytes + left);
    const char *wrong = text_bpe_merge(l->r.ctx, b, bytes, left, all);
    return !wrong ? TN_OK : *wrong ? line_error(l, wrong) : TN_ERR_NOMEM;
}

static tn_status read_merges(line_reader *l, tn_bpe *b) {
    const char *line;
    size_t n;
    tn_status st = TN_OK;
    while (!st && read_line(l, &line, &n))
        if (n && !(l->line == 1 && n >= 8 && !memcmp(line, "#version", 8))) st = add_merge(l, b, line, n);
    return st;
}

/* Tokens that are no byte and that no merge makes. */
static void find_specials(tn_bpe *b) {
    for (int i = 0; i < b->n_tokens; i++) b->tokens[i].special = b->tokens[i].n > 1;
    for (size_t i = 0; i < b->merges.room; i++)
        if (b->merges.at[i].left >= 0) b->tokens[b->merges.at[i].id].special = false;
}

tn_status tn_bpe_parse(tn_ctx *ctx, const char *vocab, size_t n_vocab, const char *merges, size_t n_merges, tn_bpe_split split,
                       tn_bpe **out) {
    if (!ctx) return TN_ERR_INVAL;
    if (out) *out = NULL;
    if (!out || (!vocab && n_vocab) || (!merges && n_merges))
        return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_parse: vocab, merges or out is NULL");
    tn_bpe *b;
    reader r = { ctx, "vocab", (const uint8_t *)vocab, n_vocab, 0 };
    line_reader l = { .r = { ctx, "merges", (const uint8_t *)merges, n_merges, 0 } };
    tn_status st = text_bpe_new(ctx, split, &b);
    if (!st) st = read_vocab(&r, b);
    if (!st) st = read_merges(&l, b);
    if (st) return tn_bpe_free(ctx, b), st;
    find_specials(b);
    *out = b;
    return TN_OK;
}

/* ---- tiktoken ---- */

enum {
    MAX_PAIRS = 1 << 23
}; /* what a vocabulary of 4 million tokens has at most by far; what a hostile file has is no matter */

static int base64_digit(int c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Bytes of canonical base64; 0: it is not that, or longer than a token may be. */
static size_t base64(const char *text, size_t n, char out[TN_TEXT_MAX_TOKEN + 2]) {
    size_t at = 0, pad = n && text[n - 1] == '=' ? 1 + (size_t)(n > 1 && text[n - 2] == '=') : 0;
    if (n % 4 || n / 4 * 3 - pad > TN_TEXT_MAX_TOKEN) return 0;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t word = 0;
        for (size_t j = 0; j < 4; j++) {
            int digit = i + j >= n - pad ? 0 : base64_digit(text[i + j]);
            if (digit < 0) return 0;
            word = word << 6 | (uint32_t)digit;
        }
        out[at++] = (char)(word >> 16), out[at++] = (char)(word >> 8), out[at++] = (char)word;
    }
    for (size_t i = at - pad; i < at; i++)
        if (out[i]) return 0;
    return at - pad;
}

static tn_status add_token(line_reader *l, tn_bpe *b, const char *line, size_t n) {
    char bytes[TN_TEXT_MAX_TOKEN + 2];
    const char *gap = memchr(line, ' ', n);
    size_t size = gap ? base64(line, (size_t)(gap - line), bytes) : 0;
    int32_t id;
    if (!size) return line_error(l, "expected a token in base64, a blank, its rank");
    reader number = { l->r.ctx, l->r.name, (const uint8_t *)gap + 1, n - 1 - (size_t)(gap - line), 0 };
    if (read_id(&number, &id) || number.pos < number.n) return line_error(l, "expected a rank behind the token");
    return text_bpe_add(l->r.ctx, b, id, bytes, size, false);
}

/* Every way to make the token of two others: text has whichever comes first. */
static tn_status add_pairs_of(tn_ctx *ctx, tn_bpe *b, int32_t id) {
    uint64_t prefix[TN_TEXT_MAX_TOKEN + 1] = { 0 }, power = TEXT_HASH_BASE; /* to the length of the right part */
    const char *bytes = b->bytes + b->tokens[id].at;
    size_t n = b->tokens[id].n;
    for (size_t i = 0; i < n; i++) prefix[i + 1] = text_hash(prefix[i], bytes, i, i + 1);
    for (size_t cut = n > 1 ? n - 1 : 0; cut; cut--, power *= TEXT_HASH_BASE) {
        int32_t left = text_bpe_find(b, bytes, cut, prefix[cut]);
        int32_t right = left < 0 ? -1 : text_bpe_find(b, bytes + cut, n - cut, prefix[n] - prefix[cut] * power);
        if (right < 0) continue;
        text_pair *p = text_pair_put(ctx, &b->merges, left, right);
        if (!p) return TN_ERR_NOMEM;
        p->rank = p->id = id;
    }
    return b->merges.n <= MAX_PAIRS
               ? TN_OK
               : text_fail(ctx, TN_ERR_PARSE, "tiktoken: tokens are made of others in more than %d ways", MAX_PAIRS);
}

tn_status tn_bpe_parse_tiktoken(tn_ctx *ctx, const char *file, size_t n, tn_bpe_split split, const tn_bpe_special *specials,
                                int n_specials, tn_bpe **out) {
    if (!ctx) return TN_ERR_INVAL;
    if (out) *out = NULL;
    if (!out || (!file && n) || n_specials < 0 || (!specials && n_specials))
        return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_parse_tiktoken: file, specials or out is NULL");
    tn_bpe *b;
    line_reader l = { .r = { ctx, "tiktoken", (const uint8_t *)file, n, 0 } };
    const char *line;
    size_t length;
    tn_status st = text_bpe_new(ctx, split, &b);
    while (!st && read_line(&l, &line, &length))
        if (length) st = add_token(&l, b, line, length);
    for (int32_t id = 0; !st && id < b->n_tokens; id++) st = add_pairs_of(ctx, b, id);
    for (int i = 0; i < n_specials && !st; i++)
        st = specials[i].text ? text_bpe_add(ctx, b, specials[i].id, specials[i].text, strlen(specials[i].text), true)
                              : text_fail(ctx, TN_ERR_INVAL, "tn_bpe_parse_tiktoken: special token %d has no text", i);
    if (st) return tn_bpe_free(ctx, b), st;
    b->whole_words = true;
    *out = b;
    return TN_OK;
}

/* ---- files ---- */

tn_status tn_bpe_load(tn_ctx *ctx, const char *vocab_path, const char *merges_path, tn_bpe_split split, tn_bpe **out) {
    if (!ctx) return TN_ERR_INVAL;
    if (out) *out = NULL;
    if (!vocab_path || !merges_path || !out) return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_load: a path or out is NULL");
    void *vocab = NULL, *merges = NULL;
    size_t n_vocab, n_merges;
    tn_status st = tn_io_file_load(ctx, vocab_path, TN_TEXT_MAX_FILE, &vocab, &n_vocab);
    if (!st) st = tn_io_file_load(ctx, merges_path, TN_TEXT_MAX_FILE, &merges, &n_merges);
    if (!st) st = tn_bpe_parse(ctx, vocab, n_vocab, merges, n_merges, split, out);
    tn_io_free(ctx, vocab);
    tn_io_free(ctx, merges);
    return st;
}

tn_status tn_bpe_load_tiktoken(tn_ctx *ctx, const char *path, tn_bpe_split split, const tn_bpe_special *specials,
                               int n_specials, tn_bpe **out) {
    if (!ctx) return TN_ERR_INVAL;
    if (out) *out = NULL;
    if (!path || !out) return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_load_tiktoken: path or out is NULL");
    void *file = NULL;
    size_t n;
    tn_status st = tn_io_file_load(ctx, path, TN_TEXT_MAX_FILE, &file, &n);
    if (!st) st = tn_bpe_parse_tiktoken(ctx, file, n, split, specials, n_specials, out);
    tn_io_free(ctx, file);
    return st;
}

/* Text of a file as it is made. */
typedef struct writer {
    tn_ctx *ctx;
    char *text;
    size_t n, room;
} writer;

static bool put(writer *w, const char *text, size_t n) {
    if (!text_grow(w->ctx, &w->text, &w->room, w->n + n, 1)) return false;
    memcpy(w->text + w->n, text, n);
    w->n += n;
    return true;
}

/* A special token as it is, others in GPT-2's characters; json: quotes, backslashes and control characters are escaped. */
static bool put_token(writer *w, const tn_bpe *b, int32_t id, bool json) {
    const struct text_token *t = &b->tokens[id];
    for (uint32_t i = 0; i < t->n; i++) {
        uint8_t byte = (uint8_t)b->bytes[t->at + i];
        char text[8];
        size_t n = text_put_utf8(text, char_of_byte(byte));
        if (t->special) text[0] = (char)byte, n = 1;
        if (json && n == 1 && (byte == '"' || byte == '\\' || byte < 32))
            n = (size_t)snprintf(text, sizeof text, byte < 32 ? "\\u%04x" : "\\%c", byte);
        if (!put(w, text, n)) return false;
    }
    return true;
}

static bool put_vocab(writer *w, const tn_bpe *b) {
    bool ok = put(w, "{", 1);
    for (int32_t id = 0, n = 0; id < b->n_tokens && ok; id++) {
        char number[24];
        if (!b->tokens[id].n) continue;
        size_t size = (size_t)snprintf(number, sizeof number, "\": %d", id);
        ok = put(w, n ? ", \"" : "\"", n ? 3 : 1) && put_token(w, b, id, true) && put(w, number, size);
        n++;
    }
    return ok && put(w, "}\n", 2);
}

static bool put_merges(writer *w, const tn_bpe *b) {
    const text_pair **order = NULL;
    size_t room = 0;
    bool ok = text_grow(w->ctx, &order, &room, b->merges.n + 1, sizeof *order) && put(w, "#version: 0.2\n", 14);
    for (size_t i = 0; i < b->merges.room && ok; i++)
        if (b->merges.at[i].left >= 0) order[b->merges.at[i].rank] = &b->merges.at[i];
    for (size_t i = 0; i < b->merges.n && ok; i++)
        ok = put_token(w, b, order[i]->left, false) && put(w, " ", 1) && put_token(w, b, order[i]->right, false) &&
             put(w, "\n", 1);
    text_free(w->ctx, order, room, sizeof *order);
    return ok;
}

tn_status tn_bpe_save(tn_ctx *ctx, const tn_bpe *b, const char *vocab_path, const char *merges_path) {
    if (!ctx) return TN_ERR_INVAL;
    if (!b || !vocab_path || !merges_path) return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_save: tokenizer or a path is NULL");
    if (b->whole_words)
        return text_fail(ctx, TN_ERR_UNSUPPORTED,
                         "tn_bpe_save: a vocabulary of tiktoken has ranks of tokens, no list of merges");
    writer vocab = { .ctx = ctx }, merges = { .ctx = ctx };
    tn_status st = put_vocab(&vocab, b) && put_merges(&merges, b) ? TN_OK : TN_ERR_NOMEM;
    if (!st) st = tn_io_file_save(ctx, vocab_path, vocab.text, vocab.n);
    if (!st) st = tn_io_file_save(ctx, merges_path, merges.text, merges.n);
    text_free(ctx, vocab.text, vocab.room, 1);
    text_free(ctx, merges.text, merges.room, 1);
    return st;
}
