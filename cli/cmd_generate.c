/* cmd_generate.c - `tenon generate`: text from a language model, token by token through a cache of keys and values. */
#include "lm.h"

#include <stdlib.h>
#include <string.h>

typedef struct writer {
    cli *c;
    tn_bpe *vocab;
    tn_session *s;
    int64_t positions, start; /* start: of the next token */
    float *logits;
    int32_t *ids; /* all so far */
    size_t n;
} writer;

static void read_token(writer *w, size_t i) {
    cli_need(w->c, tn_run(w->s, TN_BIND({ "tokens", &w->ids[i] }, { "start", &w->start }, { "logits", w->logits })));
    w->start++;
}

/* Token i goes through the model; afterwards logits are of what follows it. When all positions are taken, the last half of them
 * is read again from the beginning. */
static void feed(writer *w, size_t i) {
    if (w->start == w->positions) {
        w->start = 0;
        for (size_t k = i - (size_t)(w->positions / 2); k < i; k++) read_token(w, k);
    }
    read_token(w, i);
}

static void show(const writer *w, int32_t id) {
    size_t n;
    const char *text = tn_bpe_token(w->vocab, id, &n);
    for (size_t i = 0; text && i < n; i++) /* a terminal takes orders in control characters */
        putchar((unsigned char)text[i] < 32 && text[i] != '\n' && text[i] != '\t' ? '?' : text[i]);
    fflush(stdout);
}

static tn_session *open_model(cli *c, const lm_config *k, tn_program **p) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_nn_lm_opts m = k->model;
    tn_session *s;
    m.dropout = 0;
    o.threads = (int)cli_int(c, "threads", 0, 0, 1024);
    o.device = cli_device(c);
    tn_graph *g = tn_graph_new(cli_ctx(c), "generate");
    tn_tensor tokens = tn_input(g, "tokens", TN_I32, TN_DIMS(1, 1)), start = tn_input(g, "start", TN_I64, TN_SCALAR);
    tn_output(tn_nn_lm_cached(tokens, start, m), "logits");
    cli_need(c, tn_compile(g, &o, p));
    cli_need(c, tn_session_new(*p, &s));
    lm_weights_load(c, c->args[0], s);
    tn_graph_free(g);
    return s;
}

static void print_json(cli *c, const writer *w, size_t n_prompt, double seconds) {
    json j = json_begin(stdout, "generate");
    size_t n;
    cli_need(c, tn_bpe_decode(cli_ctx(c), w->vocab, w->ids, w->n, NULL, 0, &n));
    char *text = cli_alloc(n + 1);
    cli_need(c, tn_bpe_decode(cli_ctx(c), w->vocab, w->ids, w->n, text, n, &n));
    json_text(&j, "text", text);
    json_int(&j, "prompt_tokens", (int64_t)n_prompt), json_int(&j, "tokens", (int64_t)(w->n - n_prompt));
    json_number(&j, "seconds", seconds);
    json_number(&j, "tokens_per_s", (double)(w->n - n_prompt) / seconds);
    json_array(&j, "ids");
    for (size_t i = 0; i < w->n; i++) json_int(&j, NULL, w->ids[i]);
    json_end(&j);
    json_finish(&j);
    free(text);
}

/* The prompt's tokens; without a prompt the end of a text, or of a line. */
static size_t read_prompt(cli *c, const tn_bpe *vocab, size_t more, int32_t **out) {
    const char *prompt = cli_text(c, "prompt", tn_bpe_special_id(vocab, "<|endoftext|>") >= 0 ? "<|endoftext|>" : "\n");
    size_t n = strlen(prompt), n_ids;
    if (!n) cli_usage(c, "--prompt is empty");
    *out = cli_alloc((n + more) * sizeof **out);
    cli_need(c, tn_bpe_encode(cli_ctx(c), vocab, prompt, n, 1, *out, n, &n_ids));
    return n_ids;
}

static int run(cli *c) {
    lm_config k;
    if (!lm_config_load(c, c->args[0], &k)) cli_fail(c, "%s has no config.json: it is no model's folder", c->args[0]);
    if (k.model.positions < 2) cli_fail(c, "%s: a model with %lld positions", c->args[0], (long long)k.model.positions);
    size_t n = (size_t)cli_int(c, "tokens", 200, 0, 1 << 24);
    tn_text_sample_opts o = { .temperature = cli_number(c, "temperature", 0.8, 0, 1e6),
                              .top_k = (int)cli_int(c, "top-k", 0, 0, TN_TEXT_MAX_TOKENS),
                              .top_p = cli_number(c, "top-p", 1, 0, 1) };
    uint64_t random = (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX);
    tn_program *p;
    writer w = { .c = c, .vocab = lm_vocab_load(c, c->args[0]), .positions = k.model.positions };
    size_t n_prompt = read_prompt(c, w.vocab, n, &w.ids);
    w.logits = cli_alloc((size_t)k.model.vocab * sizeof *w.logits);
    w.s = open_model(c, &k, &p);
    for (; w.n < n_prompt; w.n++) {
        if (w.ids[w.n] >= k.model.vocab)
            cli_fail(c, "the prompt has token %d, the model has %lld: the vocabulary is another model's", w.ids[w.n],
                     (long long)k.model.vocab);
        feed(&w, w.n);
        if (!c->json) show(&w, w.ids[w.n]);
    }
    double begin = cli_seconds();
    int32_t end = tn_bpe_special_id(w.vocab, "<|endoftext|>");
    for (size_t i = 0; i < n; i++) {
        int32_t id;
        cli_need(c, tn_text_sample(cli_ctx(c), w.logits, (size_t)k.model.vocab, &o, &random, &id));
        if (id == end) break;
        w.ids[w.n++] = id;
        if (!c->json) show(&w, id);
        if (i + 1 < n) feed(&w, w.n - 1);
    }
    double seconds = cli_seconds() - begin;
    if (c->json)
        print_json(c, &w, n_prompt, seconds);
    else
        putchar('\n');
    cli_note(c, "%zu tokens in %.2f s: %.0f a second", w.n - n_prompt, seconds, (double)(w.n - n_prompt) / seconds);
    tn_session_free(w.s), tn_program_free(p);
    tn_bpe_free(cli_ctx(c), w.vocab);
    free(w.logits);
    free(w.ids);
    return CLI_OK;
}

static const cli_option options[] = {
    { "prompt", 'p', "TEXT", "what the text begins with; its special tokens count as such" },
    { "tokens", 'n', "N", "how many tokens to write (default 200)" },
    { "temperature", 0, "T", "logits are divided by it; 0: always the likeliest token (default 0.8)" },
    { "top-k", 0, "K", "only the K likeliest tokens (default 0: all)" },
    { "top-p", 0, "P", "only the likeliest tokens that make up P of the probability (default 1: all)" },
    { "seed", 's', "N", "of the random numbers (default 1)" },
    { "threads", 't', "N", "CPU threads; 0 (default) = as many as the process may use" },
    { "device", 'd', "NAME", "cpu (default), cuda, opencl, null, or auto" },
    { NULL, 0, NULL, NULL },
};

const cli_command command_generate = {
    "generate",
    "FOLDER",
    "write text with a language model",
    "FOLDER is what train-lm wrote, or a GPT-2 or Llama from Hugging Face: config.json, model.safetensors, vocab.json, "
    "merges.txt.\n"
    "The same seed gives the same text. When all positions of the model are taken, the last half of the text is read again.\n\n"
    "examples:\n"
    "  tenon generate kjv --prompt='And God said' --tokens=300\n"
    "  tenon generate gpt2 --prompt='The joint' --temperature=0.7 --top-p=0.95 --seed=7\n"
    "  tenon generate kjv --temperature=0 --json",
    1,
    1,
    options,
    run,
};
