/* lm.c - language models in a folder: config.json, vocabulary, weights. Files may come from anywhere: every number is checked
 * before it is used. */
#include "lm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *lm_path(const char *folder, const char *name) { return cli_format("%s/%s", folder, name); }

/* ---- config.json ---- */

/* What follows "key": in a flat object; NULL: there is no such key. */
static const char *find_key(const char *text, const char *key) {
    size_t n = strlen(key);
    for (const char *at = text; (at = strstr(at, key)); at += n) {
        const char *end = at + n;
        if (at == text || at[-1] != '"' || *end++ != '"') continue;
        end += strspn(end, " \t\r\n");
        if (*end == ':') return end + 1 + strspn(end + 1, " \t\r\n");
    }
    return NULL;
}

typedef struct config_file {
    cli *c;
    const char *path, *text;
} config_file;

static double number(const config_file *f, const char *key, double fallback, double lo, double hi) {
    const char *at = find_key(f->text, key);
    char *end;
    if (!at || !strncmp(at, "null", 4)) {
        if (isnan(fallback)) cli_fail(f->c, "%s: \"%s\" is missing", f->path, key);
        return fallback;
    }
    double v = !strncmp(at, "true", 4) ? 1 : !strncmp(at, "false", 5) ? 0 : strtod(at, &end);
    bool is_word = *at == 't' || *at == 'f';
    if ((!is_word && end == at) || !(v >= lo && v <= hi))
        cli_fail(f->c, "%s: \"%s\" is %.20s, not a number from %g to %g", f->path, key, at, lo, hi);
    return v;
}
static int64_t whole(const config_file *f, const char *key, double fallback, double hi) {
    double v = number(f, key, fallback, 0, hi);
    if (v != floor(v)) cli_fail(f->c, "%s: \"%s\" is %g, not a whole number", f->path, key, v);
    return (int64_t)v;
}
static bool word_is(const config_file *f, const char *key, const char *word) {
    const char *at = find_key(f->text, key);
    size_t n = strlen(word);
    return at && *at == '"' && !strncmp(at + 1, word, n) && at[1 + n] == '"';
}

static tn_nn_lm_opts read_model(const config_file *f) {
    tn_nn_lm_opts o = { .vocab = whole(f, "vocab_size", NAN, TN_TEXT_MAX_TOKENS) };
    if (word_is(f, "model_type", "gpt2")) {
        o.positions = whole(f, "n_positions", NAN, 1e8), o.width = whole(f, "n_embd", NAN, 1e6);
        o.layers = whole(f, "n_layer", NAN, 4096), o.heads = whole(f, "n_head", NAN, 1e6),
        o.hidden = whole(f, "n_inner", 0, 1e8);
        o.eps = number(f, "layer_norm_epsilon", 1e-5, 0, 1);
        if (find_key(f->text, "activation_function") && !word_is(f, "activation_function", "gelu_new"))
            cli_fail(f->c, "%s: \"activation_function\" is not gelu_new, which GPT-2 has", f->path);
        return o;
    }
    if (!word_is(f, "model_type", "llama")) cli_fail(f->c, "%s: \"model_type\" is neither gpt2 nor llama", f->path);
    const char *scaling = find_key(f->text, "rope_scaling");
    if (scaling && strncmp(scaling, "null", 4) != 0) cli_fail(f->c, "%s: \"rope_scaling\" is not supported", f->path);
    o.kind = TN_NN_LLAMA;
    o.positions = whole(f, "max_position_embeddings", NAN, 1e8), o.width = whole(f, "hidden_size", NAN, 1e6);
    o.layers = whole(f, "num_hidden_layers", NAN, 4096), o.heads = whole(f, "num_attention_heads", NAN, 1e6);
    o.kv_heads = whole(f, "num_key_value_heads", 0, 1e6), o.hidden = whole(f, "intermediate_size", NAN, 1e8);
    o.eps = number(f, "rms_norm_eps", 1e-6, 0, 1), o.rope_base = number(f, "rope_theta", 10000, 1, 1e12);
    o.tied = whole(f, "tie_word_embeddings", 0, 1) != 0;
    return o;
}

bool lm_config_load(cli *c, const char *folder, lm_config *out) {
    char *path = lm_path(folder, "config.json");
    if (access(path, F_OK)) {
        free(path);
        return false;
    }
    size_t n;
    char *text = cli_read_file(c, path, &n);
    config_file f = { c, path, text };
    *out = (lm_config){ .model = read_model(&f) };
    out->model.group = whole(&f, "tenon_group", 0, 1e6), out->model.bits = (int)whole(&f, "tenon_bits", 0, 8);
    out->batch = whole(&f, "tenon_batch", 0, 1e6), out->block = whole(&f, "tenon_block", 0, 1e8);
    out->steps = whole(&f, "tenon_steps", 0, 1e12), out->warmup = whole(&f, "tenon_warmup", 0, 1e12);
    out->seed = whole(&f, "tenon_seed", 0, 1e15), out->tokens = whole(&f, "tenon_tokens", 0, TN_TEXT_MAX_TOKENS);
    out->text_bytes = whole(&f, "tenon_text_bytes", 0, 1e15);
    out->lr = number(&f, "tenon_lr", 0, 0, 1e6), out->decay = number(&f, "tenon_decay", 0, 0, 1e6);
    out->dtype = word_is(&f, "tenon_dtype", "bf16") ? TN_BF16 : word_is(&f, "tenon_dtype", "f16") ? TN_F16 : TN_F32;
    out->held_out = number(&f, "tenon_held_out", 0, 0, 1), out->model.dropout = number(&f, "tenon_dropout", 0, 0, 1);
    free(text);
    free(path);
    return true;
}

void lm_config_save(cli *c, const char *folder, const lm_config *k) {
    const tn_nn_lm_opts *o = &k->model;
    char *text = NULL, *path = lm_path(folder, "config.json");
    size_t n = 0;
    bool llama = o->kind == TN_NN_LLAMA;
    FILE *f = open_memstream(&text, &n);
    if (!f) cli_fail(c, "out of memory");
    json j = { .f = f, .depth = 1 };
    fputc('{', f);
    json_text(&j, "model_type", llama ? "llama" : "gpt2");
    json_int(&j, "vocab_size", o->vocab);
    json_int(&j, llama ? "max_position_embeddings" : "n_positions", o->positions);
    json_int(&j, llama ? "hidden_size" : "n_embd", o->width);
    json_int(&j, llama ? "num_hidden_layers" : "n_layer", o->layers);
    json_int(&j, llama ? "num_attention_heads" : "n_head", o->heads);
    json_int(&j, llama ? "intermediate_size" : "n_inner", o->hidden);
    if (llama) {
        json_int(&j, "num_key_value_heads", o->kv_heads);
        json_number(&j, "rms_norm_eps", o->eps), json_number(&j, "rope_theta", o->rope_base);
        json_bool(&j, "tie_word_embeddings", o->tied);
        json_text(&j, "hidden_act", "silu");
    } else
        json_number(&j, "layer_norm_epsilon", o->eps), json_text(&j, "activation_function", "gelu_new");
    json_int(&j, "tenon_batch", k->batch), json_int(&j, "tenon_block", k->block), json_int(&j, "tenon_steps", k->steps);
    json_int(&j, "tenon_warmup", k->warmup), json_int(&j, "tenon_seed", k->seed), json_int(&j, "tenon_tokens", k->tokens);
    json_int(&j, "tenon_text_bytes", k->text_bytes), json_number(&j, "tenon_lr", k->lr);
    json_number(&j, "tenon_decay", k->decay), json_number(&j, "tenon_held_out", k->held_out);
    json_text(&j, "tenon_dtype", tn_dtype_name(k->dtype));
    json_number(&j, "tenon_dropout", o->dropout), json_int(&j, "tenon_group", o->group);
    json_int(&j, "tenon_bits", o->bits);
    json_finish(&j);
    if (fclose(f)) cli_fail(c, "out of memory");
    cli_need(c, tn_io_file_save(cli_ctx(c), path, text, n));
    free(text);
    free(path);
}

/* ---- vocabulary and weights ---- */

tn_bpe *lm_vocab_load(cli *c, const char *folder) {
    tn_bpe *b;
    char *vocab = lm_path(folder, "vocab.json"), *merges = lm_path(folder, "merges.txt");
    cli_need(c, tn_bpe_load(cli_ctx(c), vocab, merges, TN_BPE_GPT2, &b));
    free(vocab);
    free(merges);
    return b;
}

const tn_io_tensor *lm_weight(cli *c, const char *path, const tn_io_tensors *file, const char *name, tn_shape shape) {
    const tn_io_tensor *x = tn_io_tensors_find(file, name);
    char *longer = cli_format("transformer.%s", name); /* as GPT2LMHeadModel writes them */
    if (!x) x = tn_io_tensors_find(file, longer);
    free(longer);
    if (!x) cli_fail(c, "%s: there is no %s, which the model of config.json has", path, name);
    bool same = x->shape.rank == shape.rank;
    for (int i = 0; same && i < shape.rank; i++) same = x->shape.dim[i] == shape.dim[i];
    if (!same)
        cli_fail(c, "%s: %s is %s, config.json says %s", path, name, shape_text(x->dtype, x->shape), shape_text(TN_F32, shape));
    return x;
}

tn_dtype lm_weights_dtype(cli *c, const char *folder) {
    char *path = lm_path(folder, "model.safetensors");
    tn_io_tensors *file;
    cli_need(c, tn_io_safetensors_load(cli_ctx(c), path, &file));
    tn_dtype t = TN_N_DTYPES;
    for (int i = 0; i < tn_io_tensors_count(file); i++) {
        const tn_io_tensor *x = tn_io_tensors_get(file, i);
        if (x && x->shape.rank == 2 && !strstr(x->name, "wpe.weight"))
            t = t == TN_N_DTYPES || t == x->dtype ? x->dtype : TN_F32;
    }
    tn_io_tensors_free(file);
    free(path);
    return t == TN_F16 || t == TN_BF16 ? t : TN_F32;
}

void lm_weights_load(cli *c, const char *folder, tn_session *s) {
    char *path = lm_path(folder, "model.safetensors");
    tn_io_tensors *file;
    cli_need(c, tn_io_safetensors_load(cli_ctx(c), path, &file));
    for (int i = 0; i < tn_session_n_states(s); i++) {
        const char *name;
        tn_dtype dtype;
        tn_shape shape;
        cli_need(c, tn_session_state(s, i, &name, &dtype, &shape));
        if (!strncmp(name, "cache.", 6)) continue;
        const tn_io_tensor *x = lm_weight(c, path, file, name, shape);
        size_t n = (size_t)shape_count(shape);
        if (x->dtype == dtype) {
            cli_need(c, tn_session_set(s, name, x->data, n * tn_dtype_size(dtype)));
            continue;
        }
        if (dtype != TN_F32) cli_fail(c, "%s: %s is %s, not %s", path, name, tn_dtype_name(x->dtype), tn_dtype_name(dtype));
        float *wide = cli_alloc(n * sizeof *wide);
        cli_need(c, tn_io_to_f32(cli_ctx(c), x->dtype, x->data, n, wide));
        cli_need(c, tn_session_set(s, name, wide, n * sizeof *wide));
        free(wide);
    }
    tn_io_tensors_free(file);
    free(path);
}
