/* lm.h - language models in a folder, as Hugging Face's programs keep them: config.json, model.safetensors, vocab.json and
 * merges.txt. What train-lm writes there, generate reads, or what was downloaded. */
#ifndef TENON_CLI_LM_H
#define TENON_CLI_LM_H

#include "cli.h"
#include "tenon/tenon_io.h"
#include "tenon/tenon_nn.h"
#include "tenon/tenon_text.h"

/* config.json: the model, and in keys of its own what train-lm was told. */
typedef struct lm_config {
    tn_nn_lm_opts model;
    int64_t batch, block, steps, warmup, seed, tokens, text_bytes; /* 0: a model that train-lm did not make */
    double lr, decay, held_out;
    tn_dtype dtype; /* what train-lm computes in; parameters are f32 */
} lm_config;
/* False: there is no such file. Ends the program where it is none of a model of a kind that Tenon knows. */
bool lm_config_load(cli *c, const char *folder, lm_config *out);
void lm_config_save(cli *c, const char *folder, const lm_config *k);

char *lm_path(const char *folder, const char *name); /* free it */
tn_bpe *lm_vocab_load(cli *c, const char *folder);
/* The array of that name, or with "transformer." before it; ends the program unless it has that shape. */
const tn_io_tensor *lm_weight(cli *c, const char *path, const tn_io_tensors *file, const char *name, tn_shape shape);
/* The type that all matrices of folder/model.safetensors have: TN_F16 or TN_BF16, which stay so in memory; else TN_F32. */
tn_dtype lm_weights_dtype(cli *c, const char *folder);
/* Parameters of the session from folder/model.safetensors, converted to f32 where they are f16 or bf16. States whose name
 * begins with "cache." stay as they are. */
void lm_weights_load(cli *c, const char *folder, tn_session *s);

/* gguf.c: the same from one file of llama.cpp. */
typedef struct lm_gguf lm_gguf;
bool lm_is_gguf(const char *path); /* a file and no folder */
/* context: the most positions that a model without a table of them gets. Close it when the weights are loaded. */
lm_gguf *lm_gguf_open(cli *c, const char *path, int64_t context, lm_config *out);
void lm_gguf_close(lm_gguf *f);
/* *begin: the token that every text begins with, *end: after which a text ends; -1: there is none. */
tn_bpe *lm_gguf_vocab(lm_gguf *f, int32_t *begin, int32_t *end);
void lm_gguf_weights(lm_gguf *f, tn_session *s);

#endif
