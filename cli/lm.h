/* lm.h - language models in a folder, as Hugging Face's programs keep them: config.json, weights in one file of safetensors or
 * several, and the tokenizer. What train-lm writes there, generate reads, or what was downloaded. */
#ifndef TENON_CLI_LM_H
#define TENON_CLI_LM_H

#include "cli.h"
#include "tenon/tenon_io.h"
#include "tenon/tenon_nn.h"
#include "tenon/tenon_text.h"

/* A class of models: what files call it, and what all of it have in common. */
typedef struct lm_class {
    const char *type; /* "model_type" of config.json */
    const char *gguf; /* "general.architecture" */
    tn_nn_lm_kind kind;
    tn_bpe_split split;     /* where the tokenizer's files do not say it */
    int biases, head_norms; /* as in tn_nn_lm_opts */
    bool pairs;             /* of GGUF: the two rows of a head that turn together lie side by side */
    double window;          /* positions that a token sees where config.json does not say; 0: all */
} lm_class;
/* By either name; NULL: there is none. */
const lm_class *lm_class_of(const char *type, const char *gguf);

enum { LM_MOST_ENDS = 32 };
/* config.json: the model, and in keys of its own what train-lm was told. */
typedef struct lm_config {
    tn_nn_lm_opts model;
    int64_t batch, block, steps, warmup, seed, tokens, text_bytes; /* 0: a model that train-lm did not make */
    double lr, decay, held_out;
    tn_dtype dtype;             /* what train-lm computes in; parameters are f32 */
    int32_t ends[LM_MOST_ENDS]; /* tokens after which a text ends */
    int n_ends;
    tn_bpe_split split;  /* where the tokenizer's files do not say it */
    const tn_json *file; /* config.json; NULL: there was none */
    double *rates;       /* of model.rope_rates, or NULL */
} lm_config;
/* False: there is no such file. Ends the program where it is none of a model of a kind that Tenon knows. */
bool lm_config_load(cli *c, const char *folder, lm_config *out);
/* What of it was loaded stays as it was, but for what train-lm and quantize write. */
void lm_config_save(cli *c, const char *folder, const lm_config *k);
void lm_config_free(cli *c, lm_config *k);
/* Rates of scaled rotary positions for the heads of k->model; false: the options are not possible. */
bool lm_scale_rope(lm_config *k, const tn_nn_rope_opts *o);

char *lm_path(const char *folder, const char *name); /* free it */
bool lm_has(const char *folder, const char *name);   /* a file */
/* tokenizer.json, or vocab.json and merges.txt, which do not say how text is split. */
tn_bpe *lm_vocab_load(cli *c, const char *folder, tn_bpe_split split);
/* Ids of a text, with room for `more`; *out_n: those of the text. Free it. */
int32_t *lm_encode(cli *c, const tn_bpe *b, const char *text, size_t n, bool specials, size_t more, size_t *out_n);
typedef struct lm_ids {
    int32_t *at; /* free it */
    size_t n, room;
} lm_ids;
void lm_ids_add(lm_ids *to, int32_t id);
void lm_ids_text(lm_ids *to, cli *c, const tn_bpe *b, const char *text, size_t n, bool specials);

/* lm_chat.c: messages of a conversation, in the form whose special tokens the vocabulary has; ends the program where it has
 * none. */
typedef struct lm_chat lm_chat;
const lm_chat *lm_chat_find(cli *c, const tn_bpe *b);
/* text NULL: the begin of a message that a model then writes, until the last token of it; what comes behind its text. */
void lm_chat_add(const lm_chat *f, cli *c, const tn_bpe *b, const char *role, const char *text, lm_ids *to);
void lm_chat_end(const lm_chat *f, cli *c, const tn_bpe *b, lm_ids *to);
int32_t lm_chat_last(const lm_chat *f, const tn_bpe *b);

/* Files of a model beside config.json and weights: its tokenizer, what texts are written with. */
void lm_copy_files(cli *c, const char *from, const char *to);

/* The weights of a folder: model.safetensors, or the files that model.safetensors.index.json names. */
typedef struct lm_files lm_files;
lm_files *lm_files_open(cli *c, const char *folder);
void lm_files_close(lm_files *f);
/* The array of that name, or with "transformer." before it; ends the program unless it has that shape. */
const tn_io_tensor *lm_files_find(const lm_files *f, const char *name, tn_shape shape);
/* The type that all matrices have: TN_F16 or TN_BF16, which stay so in memory; else TN_F32. */
tn_dtype lm_files_dtype(const lm_files *f);
/* Parameters of the session, converted to f32 where they are f16 or bf16. States whose name begins with "cache." stay as they
 * are. */
void lm_files_weights(const lm_files *f, tn_session *s);

/* gguf.c: the same from one file of llama.cpp. */
typedef struct lm_gguf lm_gguf;
bool lm_is_gguf(const char *path); /* a file and no folder */
/* context: the most positions that a model without a table of them gets. Close it when the weights are loaded. */
lm_gguf *lm_gguf_open(cli *c, const char *path, int64_t context, lm_config *out);
void lm_gguf_close(lm_gguf *f);
/* *begin: the token that every text begins with; -1: there is none. k: gets those after which a text ends. */
tn_bpe *lm_gguf_vocab(lm_gguf *f, int32_t *begin, lm_config *k);
/* gguf_vocab.c: the tokenizer alone, of at most so many tokens; *begins: texts begin with "bos_token_id". */
tn_bpe *lm_gguf_bpe(cli *c, const char *path, const tn_io_gguf *file, int64_t most, bool *begins);
void lm_gguf_weights(lm_gguf *f, tn_session *s);

#endif
