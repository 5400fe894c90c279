/* cmd_tokenizer.c - `tenon tokenizer`: learns a byte-level BPE from text, and takes text to ids and back. */
#include "lm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static tn_bpe_split split_of(cli *c) {
    static const char *const names[] = { "gpt2", "cl100k", "qwen2", "digits" }; /* in the order of tn_bpe_split */
    const char *name = cli_text(c, "split", names[0]);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!strcmp(name, names[i])) return (tn_bpe_split)i;
    cli_usage(c, "--split is gpt2, cl100k, qwen2 or digits, not %s", name);
}

/* ---- train ---- */

static void show(void *ud, int done, int all) {
    (void)all;
    if (done % 64 == 0) progress_step(ud, done, NULL);
}

/* All files, one behind the other. */
static char *read_all(cli *c, size_t *out_n) {
    char *text = NULL;
    *out_n = 0;
    for (int i = 1; i < c->n_args; i++) {
        size_t n;
        char *part = cli_read_file(c, c->args[i], &n), *more = realloc(text, *out_n + n + 1);
        if (!more) cli_fail(c, "out of memory: %zu bytes of text", *out_n + n);
        text = more;
        memcpy(text + *out_n, part, n + 1);
        *out_n += n;
        free(part);
    }
    return text;
}

static int train(cli *c) {
    const char *folder = cli_text(c, "output", "."), *special;
    const char *specials[64];
    tn_bpe_train_opts o = { .split = split_of(c),
                            .n_tokens = (int)cli_int(c, "tokens", 8192, 256, TN_TEXT_MAX_TOKENS),
                            .specials = specials };
    for (int at = 0; (special = cli_next(c, "special", &at));) {
        if (o.n_specials == (int)COUNT_OF(specials)) cli_usage(c, "at most %zu special tokens", COUNT_OF(specials));
        specials[o.n_specials++] = special;
    }
    size_t n, n_ids;
    tn_bpe *b;
    char *text = read_all(c, &n);
    double begin = cli_seconds();
    progress p = progress_begin(c, "merging pairs", o.n_tokens);
    o.progress = show, o.progress_ud = &p;
    tn_status st = tn_bpe_train(cli_ctx(c), text, n, &o, &b);
    progress_end(&p);
    cli_need(c, st);
    double seconds = cli_seconds() - begin;
    cli_need(c, tn_bpe_encode(cli_ctx(c), b, text, n, 0, NULL, 0, &n_ids));
    if (mkdir(folder, 0777) && errno != EEXIST) cli_fail(c, "%s: %s", folder, strerror(errno));
    char *vocab = cli_format("%s/vocab.json", folder), *merges = cli_format("%s/merges.txt", folder);
    cli_need(c, tn_bpe_save(cli_ctx(c), b, vocab, merges));
    if (c->json) {
        json j = json_begin(stdout, "tokenizer train");
        json_int(&j, "tokens", tn_bpe_count(b)), json_int(&j, "bytes", (int64_t)n), json_int(&j, "ids", (int64_t)n_ids);
        json_number(&j, "seconds", seconds);
        json_text(&j, "vocab", vocab), json_text(&j, "merges", merges);
        json_finish(&j);
    } else
        printf("%d tokens learnt from %.2f MB in %.2f s: %.2f bytes a token; %s, %s\n", tn_bpe_count(b), (double)n * 1e-6,
               seconds, n_ids ? (double)n / (double)n_ids : 0, vocab, merges);
    tn_bpe_free(cli_ctx(c), b);
    free(vocab);
    free(merges);
    free(text);
    return CLI_OK;
}

/* ---- encode and decode ---- */

static tn_bpe *load(cli *c) {
    tn_bpe *b;
    const char *tiktoken = cli_text(c, "tiktoken", NULL), *folder = cli_text(c, "vocab", ".");
    if (tiktoken) {
        cli_need(c, tn_bpe_load_tiktoken(cli_ctx(c), tiktoken, split_of(c), NULL, 0, &b));
        return b;
    }
    return lm_vocab_load(c, folder, split_of(c));
}

static int encode(cli *c) {
    size_t n, n_ids;
    tn_bpe *b = load(c);
    char *text = read_all(c, &n);
    int32_t *ids = lm_encode(c, b, text, n, !cli_flag(c, "plain"), 0, &n_ids);
    if (c->json) {
        json j = json_begin(stdout, "tokenizer encode");
        json_array(&j, "ids");
        for (size_t i = 0; i < n_ids; i++) json_int(&j, NULL, ids[i]);
        json_end(&j);
        json_finish(&j);
    } else
        for (size_t i = 0; i < n_ids; i++) printf("%d\n", ids[i]);
    cli_note(c, "%zu ids, %.2f bytes each", n_ids, n_ids ? (double)n / (double)n_ids : 0);
    tn_bpe_free(cli_ctx(c), b);
    free(ids);
    free(text);
    return CLI_OK;
}

static int decode(cli *c) {
    size_t n, n_ids = 0, n_text;
    tn_bpe *b = load(c);
    char *numbers = read_all(c, &n), *end;
    int32_t *ids = cli_alloc((n + 1) * sizeof *ids);
    for (char *p = numbers;; p = end) {
        errno = 0;
        long v = strtol(p, &end, 10);
        if (end == p) break;
        if (errno || v < 0 || v > INT32_MAX) cli_fail(c, "%.20s is no token id", p);
        ids[n_ids++] = (int32_t)v;
    }
    if (end[strspn(end, " \t\r\n")])
        cli_fail(c, "expected whole numbers with blanks between, not %.20s", end + strspn(end, " \t\r\n"));
    cli_need(c, tn_bpe_decode(cli_ctx(c), b, ids, n_ids, NULL, 0, &n_text));
    char *text = cli_alloc(n_text + 1);
    cli_need(c, tn_bpe_decode(cli_ctx(c), b, ids, n_ids, text, n_text, &n_text));
    fwrite(text, 1, n_text, stdout);
    tn_bpe_free(cli_ctx(c), b);
    free(text);
    free(ids);
    free(numbers);
    return CLI_OK;
}

static int run(cli *c) {
    if (!strcmp(c->args[0], "train")) return train(c);
    if (!strcmp(c->args[0], "encode")) return encode(c);
    if (!strcmp(c->args[0], "decode")) return decode(c);
    cli_usage(c, "tokenizer knows train, encode and decode, not %s", c->args[0]);
}

static const cli_option options[] = {
    { "tokens", 'n', "N", "train: how many, with the 256 bytes and the special ones (default 8192)" },
    { "special", 0, "TEXT", "train: a special token, such as '<|endoftext|>' (repeatable)" },
    { "output", 'o', "DIR", "train: where vocab.json and merges.txt are written (default: here)" },
    { "vocab", 0, "DIR", "encode, decode: where they are, or tokenizer.json (default: here)" },
    { "tiktoken", 0, "FILE", "encode, decode: a vocabulary in tiktoken's form" },
    { "split", 0, "NAME",
      "how text is split into words: as gpt2 (default), cl100k (GPT-4, Llama 3), qwen2, or digits (SmolLM2); tokenizer.json "
      "says it" },
    { "plain", 0, NULL, "encode: the text of special tokens is text like any other" },
    { NULL, 0, NULL, NULL },
};

const cli_command command_tokenizer = {
    "tokenizer",
    "train|encode|decode FILE...",
    "text to the token ids of language models, and back",
    "Byte-level BPE, as GPT-2 and later models have it: any bytes come back exactly. train learns the pairs that occur most "
    "often "
    "in the\n"
    "files and writes the two files that other programs read, too; encode prints ids, a line each; decode prints text.\n\n"
    "examples:\n"
    "  tenon tokenizer train book.txt --tokens=8192 --special='<|endoftext|>' -o book-8192\n"
    "  tenon tokenizer encode book.txt --vocab=book-8192 > ids\n"
    "  tenon tokenizer decode ids --vocab=book-8192 | cmp - book.txt",
    2,
    -1,
    options,
    run,
};
