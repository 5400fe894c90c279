/* lm_vocab.c - the tokenizer of a language model's folder. */
#include "lm.h"

#include <stdlib.h>

tn_bpe *lm_vocab_load(cli *c, const char *folder) {
    tn_bpe *b;
    char *vocab = lm_path(folder, "vocab.json"), *merges = lm_path(folder, "merges.txt");
    cli_need(c, tn_bpe_load(cli_ctx(c), vocab, merges, TN_BPE_GPT2, &b));
    free(vocab);
    free(merges);
    return b;
}
