/* lm_vocab.c - the tokenizer of a language model's folder: tokenizer.json, or GPT-2's two files. */
#include "lm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool lm_has(const char *folder, const char *name) {
    char *path = lm_path(folder, name);
    bool there = !access(path, F_OK);
    free(path);
    return there;
}

static void copy_file(cli *c, const char *from, const char *to, const char *name) {
    if (!lm_has(from, name)) return;
    char *source = lm_path(from, name), *target = lm_path(to, name);
    size_t n;
    char *bytes = cli_read_file(c, source, &n);
    cli_need(c, tn_io_file_save(cli_ctx(c), target, bytes, n));
    free(bytes);
    free(source);
    free(target);
}

void lm_copy_files(cli *c, const char *from, const char *to) {
    static const char *const names[] = { "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json",
                                         "generation_config.json" };
    for (size_t i = 0; i < COUNT_OF(names); i++) copy_file(c, from, to, names[i]);
}

tn_bpe *lm_vocab_load(cli *c, const char *folder, tn_bpe_split split) {
    tn_bpe *b;
    if (lm_has(folder, "tokenizer.json")) {
        char *path = lm_path(folder, "tokenizer.json");
        cli_need(c, tn_bpe_load_json(cli_ctx(c), path, &b));
        free(path);
        return b;
    }
    if (!lm_has(folder, "vocab.json") && lm_has(folder, "tokenizer.model"))
        cli_fail(c, "%s has tokenizer.model, which is not read: convert it to tokenizer.json", folder);
    char *vocab = lm_path(folder, "vocab.json"), *merges = lm_path(folder, "merges.txt");
    cli_need(c, tn_bpe_load(cli_ctx(c), vocab, merges, split, &b));
    free(vocab);
    free(merges);
    return b;
}

int32_t *lm_encode(cli *c, const tn_bpe *b, const char *text, size_t n, bool specials, size_t more, size_t *out_n) {
    size_t room = n + 1; /* hardly any text has more tokens */
    for (;;) {
        int32_t *ids = cli_alloc((room + more) * sizeof *ids);
        cli_need(c, tn_bpe_encode(cli_ctx(c), b, text, n, specials, ids, room, out_n));
        if (*out_n <= room) return ids;
        room = *out_n;
        free(ids);
    }
}
