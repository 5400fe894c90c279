/* text.h - what the tokenizer's files share: memory, errors, words, and the vocabulary.
 *
 * Public headers only. What allocates returns false, or a status, after recording TN_ERR_NOMEM in the context. */
#ifndef TEXT_TEXT_H
#define TEXT_TEXT_H

#include "tenon/tenon_text.h"

#include <stdbool.h>
#include <string.h>

/* ---- memory.c: memory and errors ---- */

tn_status text_fail(tn_ctx *ctx, tn_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* An array that grows: *at holds *room elements of `size` bytes; afterwards at least `need`. */
bool text_grow(tn_ctx *ctx, void *at, size_t *room, size_t need, size_t size);
void text_free(tn_ctx *ctx, void *at, size_t room, size_t size);

static inline uint64_t text_mix(uint64_t x) { /* splitmix64's finalizer */
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}
/* Of bytes from .. n, given the hash of those before: text_hash(0, b, 0, n) is of all. A polynomial, so that the hash of a part
 * follows from those of prefixes (text_hash_part). */
uint64_t text_hash(uint64_t before, const void *bytes, size_t from, size_t n);
#define TEXT_HASH_BASE 0x9E3779B97F4A7C15u

/* ---- split.c ---- */

/* The character at `at` < n and its bytes, 1 where there is no UTF-8. */
uint32_t text_char(const char *text, size_t n, size_t at, size_t *out_n);
size_t text_put_utf8(char *out /* [4] */, uint32_t c); /* how many bytes */
/* Where the word that begins at `at` < n ends. Bytes that are no UTF-8 are neither letters, numbers nor blanks. */
size_t text_word_end(tn_bpe_split split, const char *text, size_t n, size_t at);

/* nfc.c: text in normalization form C, in *out, which has *room bytes and grows. */
tn_status text_nfc(tn_ctx *ctx, const char *text, size_t n, char **out, size_t *room, size_t *out_n);

/* ---- vocabulary ---- */

/* Pairs of ids to what is known of them: open addressing, at most half full. */
typedef struct text_pair {
    int32_t left, right; /* left < 0: an empty place */
    int32_t rank, id;    /* the lowest rank is merged first; the token that it becomes */
} text_pair;
typedef struct text_pairs {
    text_pair *at;
    size_t room; /* a power of two, or 0 */
    size_t n;
} text_pairs;
const text_pair *text_pair_find(const text_pairs *p, int32_t left, int32_t right); /* NULL: there is none */
/* The place of the pair, new ones with rank -1. NULL: no memory. Places move when pairs are added. */
text_pair *text_pair_put(tn_ctx *ctx, text_pairs *p, int32_t left, int32_t right);

/* The blank that text of a vocabulary of characters gets before it. */
typedef enum {
    TEXT_NO_BLANK,
    TEXT_BLANK_FIRST, /* at the beginning, unless there is one */
    TEXT_BLANK_PARTS, /* the same of each part between special tokens */
    TEXT_BLANK_ALWAYS /* before each part, even if there is one */
} text_blank;

struct tn_bpe {
    tn_bpe_split split;
    int n_tokens;
    size_t token_room;
    struct text_token {
        uint32_t at, n; /* bytes of it; n = 0: there is no token with this id */
        bool special;
    } * tokens; /* [n_tokens] */
    char *bytes;
    size_t n_bytes, byte_room;
    int32_t of_byte[256]; /* -1: the vocabulary lacks it */
    text_pairs merges;
    int32_t *index; /* [index_room] ids by hash of their bytes, open addressing; -1: an empty place */
    size_t index_room, n_indexed;
    bool characters; /* words begin as their characters, those that are no tokens as their bytes; all of a text is one word */
    bool nfc;        /* text is brought into that form first */
    text_blank blank;
    int32_t unknown;   /* stands for bytes that are no tokens; -1: they are an error */
    bool fuse_unknown; /* several of them are one token */
    int32_t begin;     /* the token that texts begin with; -1: there is none */
    bool whole_words;  /* a word that is a token becomes that token, whatever the merges say (tiktoken) */
};

/* A vocabulary without tokens. */
tn_status text_bpe_new(tn_ctx *ctx, tn_bpe_split split, tn_bpe **out);
/* Token `id` has these bytes; refuses ids and lengths beyond the limits, an id and bytes that are taken. */
tn_status text_bpe_add(tn_ctx *ctx, tn_bpe *b, int32_t id, const char *bytes, size_t n, bool special);
/* Token `id` stands for a byte of a character that is no token; no word is found by it. */
tn_status text_bpe_add_byte(tn_ctx *ctx, tn_bpe *b, int32_t id, uint8_t byte);
/* The first `left` of these bytes and those behind them are merged next. NULL: they are; else what is wrong, "" for no memory.
 */
const char *text_bpe_merge(tn_ctx *ctx, tn_bpe *b, const char *bytes, size_t left, size_t all);
/* GPT-2's characters for bytes as the bytes that they stand for; text with other characters stays as it is. Returns how many.
 */
size_t text_mapped(const char *text, size_t n, char *out /* [n] */);
/* The token with these bytes, and their text_hash; -1: there is none. */
int32_t text_bpe_find(const tn_bpe *b, const char *bytes, size_t n, uint64_t hash);
/* Bytes in GPT-2's order: printable ones of Latin-1, then the others. GPT-2's files write the former as themselves and the
 * others as the characters from U+0100 on. */
uint8_t text_byte_of(int32_t place);

#endif
