/* bpe.c - the vocabulary of a byte-level BPE: what it is made of, text to ids and back.
 *
 * In: tokens and merges from bpe_train.c or bpe_files.c, text and ids from the caller. Out: ids and bytes. A word's pairs wait
 * in a heap by rank, so a word of any length takes n log n steps. */
#include "text.h"

uint64_t text_hash(uint64_t before, const void *bytes, size_t from, size_t n) {
    const uint8_t *p = bytes;
    for (size_t i = from; i < n; i++) before = before * TEXT_HASH_BASE + p[i] + 1;
    return before;
}

/* ---- pairs ---- */

static size_t pair_place(const text_pairs *p, int32_t left, int32_t right) {
    size_t i = text_mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right) & (p->room - 1);
    while (p->at[i].left >= 0 && (p->at[i].left != left || p->at[i].right != right)) i = (i + 1) & (p->room - 1);
    return i;
}

const text_pair *text_pair_find(const text_pairs *p, int32_t left, int32_t right) {
    if (!p->room) return NULL;
    const text_pair *at = &p->at[pair_place(p, left, right)];
    return at->left < 0 ? NULL : at;
}

static bool pairs_double(tn_ctx *ctx, text_pairs *p) {
    text_pairs new = { .n = p->n };
    if (!text_grow(ctx, &new.at, &new.room, p->room ? p->room * 2 : 1024, sizeof *new.at)) return false;
    for (size_t i = 0; i < new.room; i++) new.at[i].left = -1;
    for (size_t i = 0; i < p->room; i++)
        if (p->at[i].left >= 0) new.at[pair_place(&new, p->at[i].left, p->at[i].right)] = p->at[i];
    text_free(ctx, p->at, p->room, sizeof *p->at);
    *p = new;
    return true;
}

text_pair *text_pair_put(tn_ctx *ctx, text_pairs *p, int32_t left, int32_t right) {
    if (p->n * 2 >= p->room && !pairs_double(ctx, p)) return NULL;
    text_pair *at = &p->at[pair_place(p, left, right)];
    if (at->left < 0) *at = (text_pair){ left, right, -1, -1 }, p->n++;
    return at;
}

/* ---- tokens ---- */

tn_status text_bpe_new(tn_ctx *ctx, tn_bpe_split split, tn_bpe **out) {
    tn_bpe *b = NULL;
    size_t room = 0;
    *out = NULL;
    if (split < TN_BPE_GPT2 || split > TN_BPE_DIGITS) return text_fail(ctx, TN_ERR_INVAL, "tn_bpe: no split %d", (int)split);
    if (!text_grow(ctx, &b, &room, 1, sizeof *b)) return TN_ERR_NOMEM;
    *b = (tn_bpe){ .split = split, .begin = -1, .unknown = -1 };
    for (int i = 0; i < 256; i++) b->of_byte[i] = -1;
    *out = b;
    return TN_OK;
}

void tn_bpe_free(tn_ctx *ctx, tn_bpe *b) {
    if (!b) return;
    text_free(ctx, b->tokens, b->token_room, sizeof *b->tokens);
    text_free(ctx, b->bytes, b->byte_room, 1);
    text_free(ctx, b->merges.at, b->merges.room, sizeof *b->merges.at);
    text_free(ctx, b->index, b->index_room, sizeof *b->index);
    text_free(ctx, b, 1, sizeof *b);
}

static bool has_bytes(const tn_bpe *b, int32_t id, const char *bytes, size_t n) {
    return b->tokens[id].n == n && !memcmp(b->bytes + b->tokens[id].at, bytes, n);
}

/* Where the token with these bytes stands in the index, or would. */
static size_t index_place(const tn_bpe *b, const char *bytes, size_t n, uint64_t hash) {
    size_t i = text_mix(hash) & (b->index_room - 1);
    while (b->index[i] >= 0 && !has_bytes(b, b->index[i], bytes, n)) i = (i + 1) & (b->index_room - 1);
    return i;
}

int32_t text_bpe_find(const tn_bpe *b, const char *bytes, size_t n, uint64_t hash) {
    return b->index_room ? b->index[index_place(b, bytes, n, hash)] : -1;
}

static bool index_double(tn_ctx *ctx, tn_bpe *b) {
    tn_bpe new = *b;
    new.index = NULL, new.index_room = 0;
    if (!text_grow(ctx, &new.index, &new.index_room, b->index_room ? b->index_room * 2 : 1024, sizeof *new.index)) return false;
    for (size_t i = 0; i < new.index_room; i++) new.index[i] = -1;
    for (size_t i = 0; i < b->index_room; i++) {
        if (b->index[i] < 0) continue;
        const struct text_token *t = &b->tokens[b->index[i]];
        const char *bytes = b->bytes + t->at;
        new.index[index_place(&new, bytes, t->n, text_hash(0, bytes, 0, t->n))] = b->index[i];
    }
    text_free(ctx, b->index, b->index_room, sizeof *b->index);
    *b = new;
    return true;
}

/* Token `id`, which no word is found by yet. */
static tn_status add_token(tn_ctx *ctx, tn_bpe *b, int32_t id, const char *bytes, size_t n, bool special) {
    if (id < 0 || id >= TN_TEXT_MAX_TOKENS)
        return text_fail(ctx, TN_ERR_PARSE, "token id %d is outside 0 .. %d", id, TN_TEXT_MAX_TOKENS - 1);
    if (!n || n > TN_TEXT_MAX_TOKEN)
        return text_fail(ctx, TN_ERR_PARSE, "token %d has %zu bytes; 1 to %d are possible", id, n, TN_TEXT_MAX_TOKEN);
    if (id < b->n_tokens && b->tokens[id].n) return text_fail(ctx, TN_ERR_PARSE, "two tokens have the id %d", id);
    if (b->n_bytes + n > UINT32_MAX) return text_fail(ctx, TN_ERR_PARSE, "the tokens have 4 GiB or more");
    if (!text_grow(ctx, &b->tokens, &b->token_room, (size_t)id + 1, sizeof *b->tokens) ||
        !text_grow(ctx, &b->bytes, &b->byte_room, b->n_bytes + n, 1))
        return TN_ERR_NOMEM;
    for (; b->n_tokens <= id; b->n_tokens++) b->tokens[b->n_tokens] = (struct text_token){ 0 };
    b->tokens[id] = (struct text_token){ (uint32_t)b->n_bytes, (uint32_t)n, special };
    memcpy(b->bytes + b->n_bytes, bytes, n);
    b->n_bytes += n;
    return TN_OK;
}

tn_status text_bpe_add(tn_ctx *ctx, tn_bpe *b, int32_t id, const char *bytes, size_t n, bool special) {
    if (b->n_indexed * 2 >= b->index_room && !index_double(ctx, b)) return TN_ERR_NOMEM;
    size_t place = index_place(b, bytes, n, text_hash(0, bytes, 0, n));
    if (b->index[place] >= 0) return text_fail(ctx, TN_ERR_PARSE, "tokens %d and %d have the same bytes", b->index[place], id);
    tn_status st = add_token(ctx, b, id, bytes, n, special);
    if (st) return st;
    b->index[place] = id, b->n_indexed++;
    if (n == 1 && !special && !b->characters) b->of_byte[(uint8_t)*bytes] = id;
    return TN_OK;
}

tn_status text_bpe_add_byte(tn_ctx *ctx, tn_bpe *b, int32_t id, uint8_t byte) {
    if (b->of_byte[byte] >= 0) return text_fail(ctx, TN_ERR_PARSE, "tokens %d and %d are byte %d", b->of_byte[byte], id, byte);
    tn_status st = add_token(ctx, b, id, (const char *)&byte, 1, false);
    if (!st) b->of_byte[byte] = id;
    return st;
}

const char *text_bpe_merge(tn_ctx *ctx, tn_bpe *b, const char *bytes, size_t left, size_t all) {
    int32_t first = text_bpe_find(b, bytes, left, text_hash(0, bytes, 0, left));
    int32_t second = text_bpe_find(b, bytes + left, all - left, text_hash(0, bytes, left, all));
    int32_t id = text_bpe_find(b, bytes, all, text_hash(0, bytes, 0, all));
    if (first < 0 || second < 0) return "a token that the vocabulary lacks";
    if (id < 0) return "the vocabulary lacks what these two tokens become";
    text_pair *p = text_pair_put(ctx, &b->merges, first, second);
    if (!p) return "";
    if (p->rank >= 0) return "the pair stands in the file twice";
    p->rank = (int32_t)b->merges.n - 1, p->id = id;
    return NULL;
}

static bool is_printable(int byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173); }

uint8_t text_byte_of(int32_t place) {
    int n = 0;
    for (int printable = 1; printable >= 0; printable--)
        for (int byte = 0; byte < 256; byte++)
            if (is_printable(byte) == printable && n++ == place) return (uint8_t)byte;
    return 0;
}

int tn_bpe_count(const tn_bpe *b) { return b ? b->n_tokens : 0; }

const char *tn_bpe_token(const tn_bpe *b, int32_t id, size_t *out_n) {
    if (out_n) *out_n = 0;
    if (!b || id < 0 || id >= b->n_tokens || !b->tokens[id].n) return NULL;
    if (out_n) *out_n = b->tokens[id].n;
    return b->bytes + b->tokens[id].at;
}

int32_t tn_bpe_begin(const tn_bpe *b) { return b ? b->begin : -1; }

int32_t tn_bpe_special_id(const tn_bpe *b, const char *text) {
    int32_t id = b && text ? text_bpe_find(b, text, strlen(text), text_hash(0, text, 0, strlen(text))) : -1;
    return id >= 0 && b->tokens[id].special ? id : -1;
}

/* ---- text to ids ---- */

typedef struct symbol { /* a token of the word, in a list */
    int32_t id;         /* -1: it has become part of the one before */
    int32_t before, next;
    int32_t rank; /* of the pair with the next one; -1: there is none */
} symbol;

typedef struct encoder {
    tn_ctx *ctx;
    const tn_bpe *b;
    symbol *at;
    size_t room;
    uint64_t *heap; /* rank << 32 | place: the lowest rank, then the leftmost, is first */
    size_t heap_room, n_heap;
    int32_t *ids; /* [room_ids] */
    size_t room_ids, n;
    char *part; /* as it is encoded: in NFC, or with blanks for marks */
    size_t part_room;
} encoder;

static bool heap_push(encoder *e, uint64_t x) {
    if (!text_grow(e->ctx, &e->heap, &e->heap_room, e->n_heap + 1, sizeof *e->heap)) return false;
    size_t i = e->n_heap++;
    for (size_t up; i && e->heap[up = (i - 1) / 2] > x; i = up) e->heap[i] = e->heap[up];
    e->heap[i] = x;
    return true;
}

static uint64_t heap_pop(encoder *e) {
    uint64_t first = e->heap[0], last = e->heap[--e->n_heap];
    size_t i = 0;
    for (size_t down; (down = 2 * i + 1) < e->n_heap; i = down) {
        if (down + 1 < e->n_heap && e->heap[down + 1] < e->heap[down]) down++;
        if (e->heap[down] >= last) break;
        e->heap[i] = e->heap[down];
    }
    e->heap[i] = last;
    return first;
}

/* The pair of symbol i with the next one. */
static bool note_pair(encoder *e, int32_t i) {
    symbol *s = &e->at[i];
    const text_pair *p = s->next < 0 ? NULL : text_pair_find(&e->b->merges, s->id, e->at[s->next].id);
    s->rank = p ? p->rank : -1;
    return !p || heap_push(e, (uint64_t)p->rank << 32 | (uint32_t)i);
}

static void put_id(encoder *e, int32_t id) {
    if (e->n < e->room_ids) e->ids[e->n] = id;
    e->n++;
}

static bool merge_all(encoder *e) {
    while (e->n_heap) {
        uint64_t x = heap_pop(e);
        int32_t i = (int32_t)(uint32_t)x, rank = (int32_t)(x >> 32);
        symbol *s = &e->at[i];
        if (s->id < 0 || s->rank != rank) continue; /* merged meanwhile */
        symbol *next = &e->at[s->next];
        s->id = text_pair_find(&e->b->merges, s->id, next->id)->id;
        next->id = -1;
        s->next = next->next;
        if (s->next >= 0) e->at[s->next].before = i;
        if (!note_pair(e, i) || (s->before >= 0 && !note_pair(e, s->before))) return false;
    }
    return true;
}

/* Symbols of a word that are merged next: its bytes, or its characters. */
static tn_status begin_word(encoder *e, const char *word, size_t n, size_t *out_n) {
    const tn_bpe *b = e->b;
    size_t m = 0;
    if (!text_grow(e->ctx, &e->at, &e->room, n, sizeof *e->at)) return TN_ERR_NOMEM;
    for (size_t i = 0, size; i < n; i += size) {
        size = 1;
        if (b->characters) (void)text_char(word, n, i, &size);
        int32_t id = b->characters ? text_bpe_find(b, word + i, size, text_hash(0, word + i, 0, size)) : -1;
        if (id >= 0 && b->tokens[id].special) id = -1;
        for (size_t k = 0; k < (id < 0 ? size : 1); k++, m++) {
            int32_t of = id < 0 ? b->of_byte[(uint8_t)word[i + k]] : id;
            if (of < 0) of = b->unknown;
            if (of >= 0 && of == b->unknown && b->fuse_unknown && m && e->at[m - 1].id == of) {
                m--;
                continue;
            }
            if (of < 0)
                return text_fail(e->ctx, TN_ERR_INVAL, "tn_bpe_encode: the vocabulary has no token for byte %d",
                                 (uint8_t)word[i + k]);
            e->at[m] = (symbol){ of, (int32_t)m - 1, (int32_t)m + 1, -1 };
        }
    }
    if (m) e->at[m - 1].next = -1;
    *out_n = m;
    return TN_OK;
}

static tn_status encode_word(encoder *e, const char *word, size_t n) {
    size_t symbols = 0;
    int32_t whole = e->b->whole_words && n <= TN_TEXT_MAX_TOKEN ? text_bpe_find(e->b, word, n, text_hash(0, word, 0, n)) : -1;
    if (whole >= 0 && !e->b->tokens[whole].special) {
        put_id(e, whole);
        return TN_OK;
    }
    tn_status st = begin_word(e, word, n, &symbols);
    if (st) return st;
    e->n_heap = 0;
    for (size_t i = 0; i + 1 < symbols; i++)
        if (!note_pair(e, (int32_t)i)) return TN_ERR_NOMEM;
    if (!merge_all(e)) return TN_ERR_NOMEM;
    for (int32_t i = 0; i >= 0; i = e->at[i].next) put_id(e, e->at[i].id);
    return TN_OK;
}

/* All of a part as one word: SentencePiece's mark, U+2581, is a blank, too. */
static tn_status encode_characters(encoder *e, const char *text, size_t n, bool first) {
    size_t m = 0;
    if (!n) return TN_OK;
    if (!text_grow(e->ctx, &e->part, &e->part_room, n + 1, 1)) return TN_ERR_NOMEM;
    text_blank blank = e->b->blank;
    bool there = *text == ' ' || (n > 2 && !memcmp(text, "\xE2\x96\x81", 3));
    if (blank == TEXT_BLANK_ALWAYS || (!there && (blank == TEXT_BLANK_PARTS || (blank == TEXT_BLANK_FIRST && first))))
        e->part[m++] = ' ';
    for (size_t i = 0; i < n; i++) {
        bool mark = n - i > 2 && !memcmp(text + i, "\xE2\x96\x81", 3);
        e->part[m++] = mark ? ' ' : text[i];
        i += mark ? 2 : 0;
    }
    return encode_word(e, e->part, m);
}

/* A part without special tokens; first: the text begins with it. */
static tn_status encode_plain(encoder *e, const char *text, size_t n, bool first) {
    tn_status st = TN_OK;
    if (e->b->characters) return encode_characters(e, text, n, first);
    if (e->b->nfc) {
        if ((st = text_nfc(e->ctx, text, n, &e->part, &e->part_room, &n))) return st;
        text = e->part;
    }
    for (size_t at = 0, end; at < n && !st; at = end) {
        end = text_word_end(e->b->split, text, n, at);
        st = encode_word(e, text + at, end - at);
    }
    return st;
}

/* The longest special token that begins at `at`; -1: none does. */
static int32_t special_at(const tn_bpe *b, const int32_t *specials, int n_specials, const char *text, size_t left) {
    int32_t best = -1;
    for (int i = 0; i < n_specials; i++) {
        const struct text_token *t = &b->tokens[specials[i]];
        if (t->n <= left && !memcmp(b->bytes + t->at, text, t->n) && (best < 0 || t->n > b->tokens[best].n)) best = specials[i];
    }
    return best;
}

static tn_status encode_with_specials(encoder *e, const char *text, size_t n) {
    int32_t *specials = NULL;
    size_t room = 0, from = 0;
    int n_specials = 0;
    bool begins[256] = { false };
    tn_status st = TN_OK;
    for (int i = 0; i < e->b->n_tokens && !st; i++) {
        if (!e->b->tokens[i].special) continue;
        if (!text_grow(e->ctx, &specials, &room, (size_t)n_specials + 1, sizeof *specials)) {
            st = TN_ERR_NOMEM;
            break;
        }
        specials[n_specials++] = i;
        begins[(uint8_t)e->b->bytes[e->b->tokens[i].at]] = true;
    }
    for (size_t at = 0; at < n && !st;) {
        int32_t id = begins[(uint8_t)text[at]] ? special_at(e->b, specials, n_specials, text + at, n - at) : -1;
        if (id < 0) {
            at++;
            continue;
        }
        st = encode_plain(e, text + from, at - from, !from);
        if (!st) put_id(e, id);
        from = at += e->b->tokens[id].n;
    }
    if (!st) st = encode_plain(e, text + from, n - from, !from);
    text_free(e->ctx, specials, room, sizeof *specials);
    return st;
}

tn_status tn_bpe_encode(tn_ctx *ctx, const tn_bpe *b, const char *text, size_t n, int specials, int32_t *ids, size_t room,
                        size_t *out_n) {
    if (!ctx) return TN_ERR_INVAL;
    if (!b || (!text && n) || (!ids && room) || !out_n)
        return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_encode: tokenizer, text, ids or out_n is NULL");
    if (n > INT32_MAX) return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_encode: %zu bytes of text; a call takes %d", n, INT32_MAX);
    encoder e = { .ctx = ctx, .b = b, .ids = ids, .room_ids = room };
    tn_status st = specials ? encode_with_specials(&e, text, n) : encode_plain(&e, text, n, true);
    text_free(ctx, e.at, e.room, sizeof *e.at);
    text_free(ctx, e.part, e.part_room, 1);
    text_free(ctx, e.heap, e.heap_room, sizeof *e.heap);
    *out_n = st ? 0 : e.n;
    return st;
}

/* ---- ids to text ---- */

tn_status tn_bpe_decode(tn_ctx *ctx, const tn_bpe *b, const int32_t *ids, size_t n, char *text, size_t room, size_t *out_n) {
    if (!ctx) return TN_ERR_INVAL;
    if (!b || (!ids && n) || (!text && room) || !out_n)
        return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_decode: tokenizer, ids, text or out_n is NULL");
    size_t at = 0;
    *out_n = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        const char *token = tn_bpe_token(b, ids[i], &bytes);
        if (!token)
            return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_decode: id %d at place %zu: the vocabulary has %d tokens", ids[i], i,
                             b->n_tokens);
        if (!i && b->blank && *token == ' ') token++, bytes--; /* the blank that was put before the text */
        if (at < room) memcpy(text + at, token, bytes < room - at ? bytes : room - at);
        at += bytes;
    }
    *out_n = at;
    return TN_OK;
}
