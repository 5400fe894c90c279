/* cmd_generate.c - `tenon generate`: text from a language model, token by token through a cache of keys and values; a long
 * prompt goes into the cache in chunks. */
#include "lm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct writer {
    cli *c;
    lm_config k;
    lm_gguf *file;     /* NULL: a folder */
    lm_files *weights; /* of the folder */
    tn_bpe *vocab;
    int32_t begin; /* the token that every text begins with; -1: there is none */
    tn_program *p;
    tn_session *s;
    int64_t positions, start; /* start: of the next token */
    float *logits;
    const lm_chat *chat; /* NULL: a text that goes on */
    lm_ids ids;          /* all so far; */
    size_t fed, shown;   /* how many of them the model has read, and how many were written */
    uint64_t random;
} writer;

static void read_token(writer *w, size_t i) {
    cli_need(w->c, tn_run(w->s, TN_BIND({ "tokens", &w->ids.at[i] }, { "start", &w->start }, { "logits", w->logits })));
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
    w->fed = i + 1;
}

static void show(writer *w, int32_t id) {
    size_t n, of_first;
    const char *text = tn_bpe_token(w->vocab, id, &n);
    if (!text) return; /* a model may have more than its tokenizer */
    if (!w->shown++) { /* without a blank that was put before the text */
        cli_need(w->c, tn_bpe_decode(cli_ctx(w->c), w->vocab, &id, 1, NULL, 0, &of_first));
        text += n - of_first, n = of_first;
    }
    for (size_t i = 0; i < n; i++) /* a terminal takes orders in control characters */
        putchar((unsigned char)text[i] < 32 && text[i] != '\n' && text[i] != '\t' ? '?' : text[i]);
    fflush(stdout);
}

/* A session that reads `tokens` of them at once; with logits, or the cache alone, of which it looks at so many positions. It
 * has the weights that w->s has, where these lie as its program can read them. */
static tn_session *open_session(const writer *w, int64_t tokens, bool logits, int64_t span, bool shares, tn_program **p) {
    cli *c = w->c;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_session *s;
    o.threads = (int)cli_int(c, "threads", 0, 0, 1024);
    o.device = cli_device(c);
    tn_graph *g = tn_graph_new(cli_ctx(c), "generate");
    tn_tensor in = tn_input(g, "tokens", TN_I32, TN_DIMS(1, tokens)), start = tn_input(g, "start", TN_I64, TN_SCALAR);
    tn_nn_lm_opts lm = w->k.model;
    lm.span = span, lm.given = 1;
    tn_tensor y = tn_nn_lm_cached(in, start, lm);
    if (logits || tn_graph_status(g)) tn_output(tn_cast(y, TN_F32), "logits");
    o.no_panels = shares;
    cli_need(c, tn_compile(g, &o, p));
    if (shares) {
        tn_graph_free(g);
        if (!tn_session_new_sharing(*p, w->s, &s)) return s;
        tn_program_free(*p);
        return open_session(w, tokens, logits, span, false, p);
    }
    cli_need(c, tn_session_new(*p, &s));
    if (w->file)
        lm_gguf_weights(w->file, s);
    else
        lm_files_weights(w->weights, s);
    tn_graph_free(g);
    return s;
}

/* All of the prompt but its last token, in whole chunks: one pass over the weights for each. Only the cache is kept. */
static void read_chunks(writer *w) {
    size_t n_prompt = w->ids.n;
    int64_t chunk = cli_int(w->c, "chunk", 64, 1, 1 << 20);
    tn_program *p;
    if (chunk < 2 || (int64_t)n_prompt > w->positions || (int64_t)n_prompt <= chunk) return;
    int64_t span = (int64_t)(n_prompt - 1) / chunk * chunk;
    tn_session *s = open_session(w, chunk, false, span, true, &p);
    for (; w->start + chunk < (int64_t)n_prompt; w->start += chunk)
        cli_need(w->c, tn_run(s, TN_BIND({ "tokens", &w->ids.at[w->start] }, { "start", &w->start })));
    w->fed = (size_t)w->start;
    int n;
    cli_need(w->c, tn_session_copy_state(w->s, s, &n));
    tn_session_free(s), tn_program_free(p);
}

static void print_json(cli *c, const writer *w, size_t n_prompt, double seconds) {
    json j = json_begin(stdout, "generate");
    size_t n, known = 0;
    int32_t *ids = cli_alloc((w->ids.n + 1) * sizeof *ids);
    for (size_t i = w->chat ? n_prompt : 0; i < w->ids.n; i++)
        if (tn_bpe_token(w->vocab, w->ids.at[i], NULL) && (i || w->ids.at[i] != w->begin)) ids[known++] = w->ids.at[i];
    cli_need(c, tn_bpe_decode(cli_ctx(c), w->vocab, ids, known, NULL, 0, &n));
    char *text = cli_alloc(n + 1);
    cli_need(c, tn_bpe_decode(cli_ctx(c), w->vocab, ids, known, text, n, &n));
    free(ids);
    json_text(&j, "text", text);
    json_int(&j, "prompt_tokens", (int64_t)n_prompt), json_int(&j, "tokens", (int64_t)(w->ids.n - n_prompt));
    json_number(&j, "seconds", seconds);
    json_number(&j, "tokens_per_s", (double)(w->ids.n - n_prompt) / seconds);
    json_array(&j, "ids");
    for (size_t i = 0; i < w->ids.n; i++) json_int(&j, NULL, w->ids.at[i]);
    json_end(&j);
    json_finish(&j);
    free(text);
}

/* The prompt's tokens; without a prompt the end of a text, or of a line. */
static void read_prompt(writer *w) {
    cli *c = w->c;
    const char *prompt = cli_text(c, "prompt",
                                  w->begin >= 0                                       ? ""
                                  : tn_bpe_special_id(w->vocab, "<|endoftext|>") >= 0 ? "<|endoftext|>"
                                                                                      : "\n");
    if (!*prompt && w->begin < 0) cli_usage(c, "--prompt is empty");
    lm_ids_text(&w->ids, c, w->vocab, prompt, strlen(prompt), true);
}

/* What somebody says, and the begin of the answer. */
static void add_message(writer *w, const char *text) {
    lm_chat_add(w->chat, w->c, w->vocab, "user", text, &w->ids);
    lm_chat_add(w->chat, w->c, w->vocab, "assistant", NULL, &w->ids);
}

static void begin_chat(writer *w) {
    const char *system = cli_text(w->c, "system", NULL);
    w->chat = lm_chat_find(w->c, w->vocab);
    if (w->k.n_ends < LM_MOST_ENDS) w->k.ends[w->k.n_ends++] = lm_chat_last(w->chat, w->vocab);
    if (system) lm_chat_add(w->chat, w->c, w->vocab, "system", system, &w->ids);
}

static void open_model(writer *w) {
    cli *c = w->c;
    const char *path = c->args[0];
    int64_t context = cli_int(c, "context", 4096, 2, 1 << 30);
    int32_t end = -1;
    if (lm_is_gguf(path)) {
        w->file = lm_gguf_open(c, path, context, &w->k);
        w->vocab = lm_gguf_vocab(w->file, &w->begin, &w->k);
    } else {
        if (!lm_config_load(c, path, &w->k)) cli_fail(c, "%s has no config.json: it is no model's folder", path);
        if (w->k.model.kind == TN_NN_LLAMA && w->k.model.positions > context) w->k.model.positions = context;
        w->vocab = lm_vocab_load(c, path, w->k.split);
        w->weights = lm_files_open(c, path);
        if (!w->k.model.group) w->k.model.weights = lm_files_dtype(w->weights);
        w->begin = tn_bpe_begin(w->vocab);
        if (!w->k.n_ends) end = tn_bpe_special_id(w->vocab, "<|endoftext|>");
    }
    if (end >= 0) w->k.ends[w->k.n_ends++] = end;
    const char *dtype = cli_text(c, "dtype", "f32");
    w->k.model.dtype = !strcmp(dtype, "bf16") ? TN_BF16 : !strcmp(dtype, "f16") ? TN_F16 : TN_F32;
    if (strcmp(dtype, tn_dtype_name(w->k.model.dtype)) != 0) cli_usage(c, "--dtype is f32, bf16 or f16, not %s", dtype);
    if (w->k.model.positions < 2) cli_fail(c, "%s: a model with %lld positions", path, (long long)w->k.model.positions);
    w->positions = w->k.model.positions, w->k.model.dropout = 0;
    w->logits = cli_alloc((size_t)w->k.model.vocab * sizeof *w->logits);
    w->s = open_session(w, 1, true, 0, false, &w->p);
}

static void close_model(writer *w) {
    tn_session_free(w->s), tn_program_free(w->p);
    tn_bpe_free(cli_ctx(w->c), w->vocab);
    lm_gguf_close(w->file);
    lm_files_close(w->weights);
    lm_config_free(w->c, &w->k);
    free(w->logits);
    free(w->ids.at);
}

static bool ends(const writer *w, int32_t id) {
    for (int i = 0; i < w->k.n_ends; i++)
        if (id == w->k.ends[i]) return true;
    return false;
}

static void write_tokens(writer *w, size_t n) {
    cli *c = w->c;
    tn_text_sample_opts o = { .temperature = cli_number(c, "temperature", 0.8, 0, 1e6),
                              .top_k = (int)cli_int(c, "top-k", 0, 0, TN_TEXT_MAX_TOKENS),
                              .top_p = cli_number(c, "top-p", 1, 0, 1) };
    for (size_t i = 0; i < n; i++) {
        int32_t id;
        cli_need(c, tn_text_sample(cli_ctx(c), w->logits, (size_t)w->k.model.vocab, &o, &w->random, &id));
        if (ends(w, id)) break;
        lm_ids_add(&w->ids, id);
        if (!c->json) show(w, id);
        if (i + 1 < n) feed(w, w->ids.n - 1);
    }
}

/* Reads what is not read yet, and writes what follows. */
static void go_on(writer *w) {
    cli *c = w->c;
    size_t n_prompt = w->ids.n, had = w->fed;
    for (size_t i = had; i < n_prompt; i++)
        if (w->ids.at[i] >= w->k.model.vocab)
            cli_fail(c, "the prompt has token %d, the model has %lld: the vocabulary is another model's", w->ids.at[i],
                     (long long)w->k.model.vocab);
    double begin = cli_seconds();
    if (!had) read_chunks(w);
    for (size_t i = 0; i < n_prompt; i++) {
        if (i >= w->fed) feed(w, i);
        if (!c->json && !w->chat && w->ids.at[i] != w->begin) show(w, w->ids.at[i]);
    }
    double middle = cli_seconds();
    write_tokens(w, (size_t)cli_int(c, "tokens", 200, 0, 1 << 24));
    double seconds = cli_seconds() - middle;
    size_t written = w->ids.n - n_prompt, read = n_prompt - had;
    if (c->json)
        print_json(c, w, n_prompt, seconds);
    else
        putchar('\n');
    fflush(stdout);
    cli_note(c, "%zu tokens read in %.2f s: %.0f a second; %zu written in %.2f s: %.0f a second", read, middle - begin,
             (double)read / (middle - begin), written, seconds, (double)written / seconds);
}

/* Each line of the input is a message, until it ends. */
static void converse(writer *w) {
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    bool asks = isatty(0);
    if (w->c->json) cli_usage(w->c, "--json with --chat needs a --prompt");
    if (asks) fputs("> ", stderr);
    while ((n = getline(&line, &room, stdin)) > 0) {
        if (line[n - 1] == '\n') line[n - 1] = 0;
        add_message(w, line);
        go_on(w);
        lm_chat_end(w->chat, w->c, w->vocab, &w->ids);
        if (asks) fputs("> ", stderr);
    }
    free(line);
}

static int run(cli *c) {
    const char *prompt = cli_text(c, "prompt", NULL);
    writer w = { .c = c, .random = (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX) };
    open_model(&w);
    if (w.begin >= 0) lm_ids_add(&w.ids, w.begin);
    if (cli_flag(c, "chat"))
        begin_chat(&w);
    else if (cli_text(c, "system", NULL))
        cli_usage(c, "--system goes with --chat");
    if (w.chat && !prompt) {
        converse(&w);
    } else {
        if (w.chat)
            add_message(&w, prompt);
        else
            read_prompt(&w);
        go_on(&w);
    }
    close_model(&w);
    return CLI_OK;
}

static const cli_option options[] = {
    { "prompt", 'p', "TEXT", "what the text begins with; its special tokens count as such" },
    { "chat", 0, NULL, "the prompt is a message, what is written the answer; without --prompt each line of the input is one" },
    { "system", 0, "TEXT", "chat: a message before all others that says what answers should be like" },
    { "tokens", 'n', "N", "how many tokens to write (default 200)" },
    { "temperature", 0, "T", "logits are divided by it; 0: always the likeliest token (default 0.8)" },
    { "top-k", 0, "K", "only the K likeliest tokens (default 0: all)" },
    { "top-p", 0, "P", "only the likeliest tokens that make up P of the probability (default 1: all)" },
    { "seed", 's', "N", "of the random numbers (default 1)" },
    { "chunk", 0, "N", "tokens of the prompt that are read at once (default 64)" },
    { "context", 0, "N", "positions of a Llama, whose cache is that long (default 4096, or all that it has)" },
    { "dtype", 0, "TYPE", "what is computed in, and what the cache has: f32 (default), bf16 or f16" },
    { "threads", 't', "N", "CPU threads; 0 (default) = as many as the process may use" },
    { "device", 'd', "NAME", "cpu (default), cuda, opencl, null, or auto" },
    { NULL, 0, NULL, NULL },
};

const cli_command command_generate = {
    "generate",
    "MODEL",
    "write text with a language model",
    "MODEL is a folder: what train-lm wrote, or a GPT-2, Llama, Mistral, Qwen2 or Qwen3 from Hugging Face: config.json, "
    "model.safetensors (or the files of its index), tokenizer.json (or vocab.json, merges.txt);\n"
    "or a GGUF of these classes with a BPE: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k.\n"
    "--chat: of models with the special tokens of ChatML (Qwen, SmolLM2) or Llama 3.\n"
    "The same seed gives the same text. When all positions of the model are taken, the last half of the text is read again.\n\n"
    "examples:\n"
    "  tenon generate kjv --prompt='And God said' --tokens=300\n"
    "  tenon generate gpt2 --prompt='The joint' --temperature=0.7 --top-p=0.95 --seed=7\n"
    "  tenon generate kjv --temperature=0 --json\n"
    "  tenon generate llama-1b-q8_0.gguf --prompt='The joint' --context=2048\n"
    "  tenon generate qwen2.5-0.5b-instruct --chat --prompt='What is a mortise?'",
    1,
    1,
    options,
    run,
};
