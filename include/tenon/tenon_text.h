/* tenon_text.h - tokenizers: text to the token ids that language models are trained on, and back; and the choice of the next
 * token.
 *
 * Byte-level BPE (Sennrich et al. 2016, arXiv:1508.07909, on bytes as in GPT-2): text is split into words by a fixed rule, each
 * word begins as its bytes, and the pair of neighbours that was learnt first is merged until none is left. Any bytes come back
 * exactly, also those that are no UTF-8.
 *
 * Errors.  TN_ERR_IO what the system refused; TN_ERR_PARSE a malformed file, with its line or offset; TN_ERR_INVAL, also an id
 * that the vocabulary does not have; TN_ERR_NOMEM. The text is in tn_ctx_error; nothing is returned. Memory.  From the
 * context's allocator, also what a call needs for itself. Threads.  A tn_bpe never changes: any number of threads may use it,
 * each with a context of its own for errors.
 *
 * Limits: TN_TEXT_MAX_TOKENS tokens, TN_TEXT_MAX_TOKEN bytes of a token, TN_TEXT_MAX_FILE bytes of a vocabulary's file, 2^31 -
 * 1 bytes of text in one call. */
#ifndef TENON_TEXT_H
#define TENON_TEXT_H

#include "tenon/tenon.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TN_TEXT_MAX_TOKENS 4194304
#define TN_TEXT_MAX_TOKEN 512
#define TN_TEXT_MAX_FILE 268435456

typedef struct tn_bpe tn_bpe;

/* How text is split into words before pairs are merged. */
typedef enum {
    TN_BPE_GPT2,   /* GPT-2's pattern */
    TN_BPE_CL100K, /* that of GPT-4 (cl100k_base) and Llama 3 */
    TN_BPE_QWEN2,  /* the same, each number alone (Qwen2, Qwen3) */
    TN_BPE_DIGITS  /* GPT-2's between numbers, each of which is alone (SmolLM2) */
} tn_bpe_split;

/* ---- making one ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    tn_bpe_split split;
    int n_tokens;                /* in all: 256 bytes, pairs, specials; at least 256 + n_specials */
    int64_t least;               /* a pair that occurs less often is not merged; 0: 2 */
    const char *const *specials; /* [n_specials] they get the last ids, in this order */
    int n_specials;
    void (*progress)(void *ud, int done, int all); /* tokens so far; NULL: nobody asks */
    void *progress_ud;
} tn_bpe_train_opts;

/* Learns the pairs that occur most often in the text, the most frequent one first; of equals the one with the lower ids. Fewer
 * tokens come out where too few pairs are left. Ids: the 256 bytes in GPT-2's order, pairs as they were learnt, specials. */
TN_API TN_CHECK tn_status tn_bpe_train(tn_ctx *ctx, const char *text, size_t n, const tn_bpe_train_opts *opts, tn_bpe **out);

/* GPT-2's two files (vocab.json, merges.txt), as Hugging Face's tokenizers write them, too. Tokens of the vocabulary that are
 * neither a byte nor a merged pair are specials. */
TN_API TN_CHECK tn_status tn_bpe_load(tn_ctx *ctx, const char *vocab_path, const char *merges_path, tn_bpe_split split,
                                      tn_bpe **out);
/* The same from memory; messages call them vocab and merges. */
TN_API TN_CHECK tn_status tn_bpe_parse(tn_ctx *ctx, const char *vocab, size_t n_vocab, const char *merges, size_t n_merges,
                                       tn_bpe_split split, tn_bpe **out);
TN_API TN_CHECK tn_status tn_bpe_save(tn_ctx *ctx, const tn_bpe *b, const char *vocab_path, const char *merges_path);

/* tiktoken's file: a line a token, its bytes in base64, a blank, its rank, which is its id. specials: names and ids, which the
 * file does not have. */
typedef struct {
    const char *text;
    int32_t id;
} tn_bpe_special;
TN_API TN_CHECK tn_status tn_bpe_load_tiktoken(tn_ctx *ctx, const char *path, tn_bpe_split split,
                                               const tn_bpe_special *specials, int n_specials, tn_bpe **out);
TN_API TN_CHECK tn_status tn_bpe_parse_tiktoken(tn_ctx *ctx, const char *file, size_t n, tn_bpe_split split,
                                                const tn_bpe_special *specials, int n_specials, tn_bpe **out);

/* Hugging Face's tokenizer.json with a BPE: of bytes with one of the splits above (GPT-2, Llama 3, Qwen2, Qwen3, SmolLM2), or
 * of characters with tokens for single bytes, as SentencePiece makes them (Llama 2, TinyLlama, Mistral): there all of the text
 * is one word, and a blank may be put before it, which tn_bpe_decode takes away. Added tokens are specials. Where
 * it asks for NFC, text is brought into that form first; text with compatibility ideographs, or with scripts above U+FFFF that
 * combine, is then TN_ERR_UNSUPPORTED. TN_ERR_UNSUPPORTED
 * names what such a file can have and Tenon does not. */
TN_API TN_CHECK tn_status tn_bpe_load_json(tn_ctx *ctx, const char *path, tn_bpe **out);
TN_API TN_CHECK tn_status tn_bpe_parse_json(tn_ctx *ctx, const void *bytes, size_t n, const char *name, tn_bpe **out);

TN_API void tn_bpe_free(tn_ctx *ctx, tn_bpe *b); /* NULL is fine */

/* ---- using it ------------------------------------------------------------------------------------------------------------ */

/* Ids of the text, at most `room` of them, into ids; *out_n is how many there are, also when that is more. No text has more
 * tokens than bytes, but where tokenizer.json asks for NFC or for a blank before it. specials not 0: the text of a special
 * token becomes that token, the longest one where several begin; otherwise it is text like any other. */
TN_API TN_CHECK tn_status tn_bpe_encode(tn_ctx *ctx, const tn_bpe *b, const char *text, size_t n, int specials, int32_t *ids,
                                        size_t room, size_t *out_n);
/* Bytes of the ids, at most `room` of them, into text; *out_n is how many there are, also when that is more. */
TN_API TN_CHECK tn_status tn_bpe_decode(tn_ctx *ctx, const tn_bpe *b, const int32_t *ids, size_t n, char *text, size_t room,
                                        size_t *out_n);

TN_API int tn_bpe_count(const tn_bpe *b); /* ids are below this; some may belong to no token */
/* Bytes of a token; NULL: there is none with this id. */
TN_API const char *tn_bpe_token(const tn_bpe *b, int32_t id, size_t *out_n);
TN_API int32_t
tn_bpe_begin(const tn_bpe *b); /* the token that texts begin with (tn_bpe_encode leaves it out); -1: there is none */
TN_API int32_t tn_bpe_special_id(const tn_bpe *b, const char *text); /* -1: there is no such special token */

/* ---- choosing the next token --------------------------------------------------------------------------------------------- */

typedef struct {
    double temperature; /* logits are divided by it; 0: always the largest logit */
    int top_k;          /* only the so many likeliest tokens; 0: all */
    double top_p;       /* only the likeliest tokens that make up this share of those (Holtzman et al. 2020); 0: all */
} tn_text_sample_opts;
/* A token drawn by softmax(logits / temperature). *random is the state of the random numbers, any number at first (a seed):
 * what was drawn follows from it and the logits alone. TN_ERR_INVAL where a logit is no number or +infinity; -infinity is never
 * drawn. */
TN_API TN_CHECK tn_status tn_text_sample(tn_ctx *ctx, const float *logits /* [n] */, size_t n, const tn_text_sample_opts *opts,
                                         uint64_t *random, int32_t *out_id);

#ifdef __cplusplus
}
#endif
#endif
