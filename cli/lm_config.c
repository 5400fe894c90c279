/* lm_config.c - config.json of language models: classes of models and what their keys mean. The file may come from anywhere:
 * every number is checked before it is used, and what is not known and would change the model is refused by its name. */
#include "lm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *lm_path(const char *folder, const char *name) { return cli_format("%s/%s", folder, name); }

static const lm_class classes[] = {
    { "gpt2", "gpt2", TN_NN_GPT2, TN_BPE_GPT2, 0, 0, false, 0 },
    { "llama", "llama", TN_NN_LLAMA, TN_BPE_GPT2, 0, 0, true, 0 },
    { "qwen2", "qwen2", TN_NN_LLAMA, TN_BPE_QWEN2, 1, 0, false, 0 },
    { "qwen3", "qwen3", TN_NN_LLAMA, TN_BPE_QWEN2, 0, 1, false, 0 },
    { "mistral", "llama", TN_NN_LLAMA, TN_BPE_GPT2, 0, 0, true, 4096 },
};

const lm_class *lm_class_of(const char *type, const char *gguf) {
    for (size_t i = 0; i < COUNT_OF(classes); i++)
        if ((type && !strcmp(classes[i].type, type)) || (gguf && !strcmp(classes[i].gguf, gguf))) return &classes[i];
    return NULL;
}

/* ---- values of config.json ---- */

typedef struct config_file {
    cli *c;
    const char *path;
    const tn_json *at; /* the object whose members are asked for */
} config_file;

/* NULL: there is none, or it is null. */
static const tn_json *member(const config_file *f, const char *key) {
    const tn_json *v = tn_io_json_find(f->at, key);
    return v && v->kind != TN_JSON_NULL ? v : NULL;
}
static double number(const config_file *f, const char *key, double fallback, double lo, double hi) {
    const tn_json *v = member(f, key);
    if (!v && isnan(fallback)) cli_fail(f->c, "%s: \"%s\" is missing", f->path, key);
    if (!v) return fallback;
    if (v->kind != TN_JSON_NUMBER && v->kind != TN_JSON_BOOL)
        cli_fail(f->c, "%s: \"%s\" is %.40s, not a number from %g to %g", f->path, key, v->text ? v->text : "no number", lo,
                 hi);
    if (!(v->number >= lo && v->number <= hi))
        cli_fail(f->c, "%s: \"%s\" is %g, not a number from %g to %g", f->path, key, v->number, lo, hi);
    return v->number;
}
static int64_t whole(const config_file *f, const char *key, double fallback, double hi) {
    double v = number(f, key, fallback, 0, hi);
    if (v != floor(v)) cli_fail(f->c, "%s: \"%s\" is %g, not a whole number", f->path, key, v);
    return (int64_t)v;
}
static const char *text(const config_file *f, const char *key, const char *fallback) {
    const tn_json *v = member(f, key);
    return v && v->text ? v->text : fallback;
}
static void only(const config_file *f, const char *key, const char *want) {
    const char *is = text(f, key, want);
    if (strcmp(is, want) != 0) cli_fail(f->c, "%s: \"%s\" is %.40s; %s is computed", f->path, key, is, want);
}
/* Keys that may be there if they change nothing. */
static void none(const config_file *f, const char *key, double usual) {
    const tn_json *v = member(f, key);
    bool same = !v || (v->kind == TN_JSON_ARRAY && !v->n);
    if (same || ((v->kind == TN_JSON_NUMBER || v->kind == TN_JSON_BOOL) && v->number == usual)) return;
    cli_fail(f->c, "%s: \"%s\" is set: such models are not supported", f->path, key);
}

/* ---- a model ---- */

bool lm_scale_rope(lm_config *k, const tn_nn_rope_opts *o) {
    int64_t head = k->model.head ? k->model.head : k->model.heads ? k->model.width / k->model.heads : 0;
    if (head < 2 || head > 1 << 20) return true; /* tn_nn_lm says what is wrong */
    k->rates = cli_alloc((size_t)head / 2 * sizeof *k->rates);
    k->model.rope_scale = tn_nn_rope_rates(head, *o, k->rates);
    k->model.rope_rates = k->rates;
    return k->model.rope_scale > 0;
}

/* "rope_scaling", or "rope_parameters", which has the base as well. */
static void read_rope(const config_file *f, lm_config *k) {
    static const char *const kinds[] = { "default", "linear", "llama3", "yarn" };
    const tn_json *newer = member(f, "rope_parameters");
    const char *key = newer ? "rope_parameters" : "rope_scaling";
    config_file r = { f->c, f->path, newer ? newer : member(f, key) };
    if (r.at && r.at->kind != TN_JSON_OBJECT) cli_fail(f->c, "%s: \"%s\" is no object", f->path, key);
    double theta = number(f, "rope_theta", 10000, 1, 1e12);
    tn_nn_rope_opts o = { .base = number(&r, "rope_theta", theta, 1, 1e12) };
    k->model.rope_base = o.base;
    none(f, "partial_rotary_factor", 1), none(&r, "partial_rotary_factor", 1);
    const char *kind = text(&r, "rope_type", text(&r, "type", "default"));
    size_t i = 0;
    while (i < COUNT_OF(kinds) && strcmp(kinds[i], kind) != 0) i++;
    if (i == COUNT_OF(kinds))
        cli_fail(f->c, "%s: \"%s\" is of the type %.40s; linear, llama3 and yarn are computed", f->path, key, kind);
    if (!i) return;
    o.kind = (tn_nn_rope_kind)i;
    o.factor = number(&r, "factor", NAN, 1, 1e6);
    if (o.kind == TN_NN_ROPE_LLAMA3) {
        o.low = number(&r, "low_freq_factor", NAN, 1e-6, 1e6), o.high = number(&r, "high_freq_factor", NAN, 1e-6, 1e6);
        o.positions = number(&r, "original_max_position_embeddings", NAN, 1, 1e9);
    }
    if (o.kind == TN_NN_ROPE_YARN) {
        o.low = number(&r, "beta_slow", 0, 0, 1e6), o.high = number(&r, "beta_fast", 0, 0, 1e6);
        o.positions = number(&r, "original_max_position_embeddings", (double)k->model.positions, 1, 1e9);
        o.scale = number(&r, "attention_factor", 0, 0, 1e6);
        none(&r, "mscale", 0), none(&r, "mscale_all_dim", 0), none(&r, "truncate", 1);
    }
    if (!lm_scale_rope(k, &o)) cli_fail(f->c, "%s: \"%s\" has numbers that do not fit together", f->path, key);
}

/* Positions that a token sees. Of Qwen, layers before max_window_layers see all. */
static int64_t read_window(const config_file *f, const lm_class *of, const tn_nn_lm_opts *o) {
    bool asked = strcmp(of->type, "qwen2") != 0 && strcmp(of->type, "qwen3") != 0;
    if (!asked && number(f, "use_sliding_window", 0, 0, 1) == 0) return 0;
    if (!strcmp(of->type, "llama")) return 0;
    const tn_json *is = tn_io_json_find(f->at, "sliding_window");
    int64_t window = is && is->kind == TN_JSON_NULL ? 0 : whole(f, "sliding_window", asked ? of->window : 4096, 1e9);
    int64_t from = asked ? 0 : whole(f, "max_window_layers", 28, 1e9);
    if (from >= o->layers || window >= o->positions) return 0;
    if (window && from)
        cli_fail(f->c,
                 "%s: layers from %lld on see %lld positions, those before all (\"max_window_layers\"): such models are not "
                 "supported",
                 f->path, (long long)from, (long long)window);
    return window;
}

static void read_gpt2(const config_file *f, tn_nn_lm_opts *o) {
    o->positions = whole(f, "n_positions", NAN, 1e8), o->width = whole(f, "n_embd", NAN, 1e6);
    o->layers = whole(f, "n_layer", NAN, 4096), o->heads = whole(f, "n_head", NAN, 1e6);
    o->hidden = whole(f, "n_inner", 0, 1e8), o->eps = number(f, "layer_norm_epsilon", 1e-5, 0, 1);
    only(f, "activation_function", "gelu_new");
    none(f, "scale_attn_by_inverse_layer_idx", 0), none(f, "add_cross_attention", 0), none(f, "scale_attn_weights", 1);
}

static void read_llama(const config_file *f, const lm_class *of, lm_config *k) {
    tn_nn_lm_opts *o = &k->model;
    o->positions = whole(f, "max_position_embeddings", NAN, 1e8), o->width = whole(f, "hidden_size", NAN, 1e6);
    o->layers = whole(f, "num_hidden_layers", NAN, 4096), o->heads = whole(f, "num_attention_heads", NAN, 1e6);
    o->kv_heads = whole(f, "num_key_value_heads", 0, 1e6), o->hidden = whole(f, "intermediate_size", NAN, 1e8);
    o->head = whole(f, "head_dim", 0, 1e6), o->eps = number(f, "rms_norm_eps", 1e-6, 0, 1);
    if (o->heads && o->head * o->heads == o->width) o->head = 0;
    o->tied = whole(f, "tie_word_embeddings", 0, 1) != 0;
    o->biases = of->biases, o->head_norms = of->head_norms;
    if (!of->biases && whole(f, "attention_bias", 0, 1)) o->biases = 2;
    o->window = read_window(f, of, o);
    only(f, "hidden_act", "silu");
    none(f, "mlp_bias", 0), none(f, "quantization_config", NAN);
    read_rope(f, k);
}

static void read_model(const config_file *f, lm_config *k) {
    const char *type = text(f, "model_type", "");
    const lm_class *of = lm_class_of(type, NULL);
    if (!of)
        cli_fail(f->c, "%s: \"model_type\" is %.40s; gpt2, llama, mistral, qwen2 and qwen3 are read", f->path,
                 *type ? type : "missing");
    k->model.kind = of->kind, k->split = of->split;
    k->model.vocab = whole(f, "vocab_size", NAN, TN_TEXT_MAX_TOKENS);
    if (of->kind == TN_NN_GPT2)
        read_gpt2(f, &k->model);
    else
        read_llama(f, of, k);
}

/* One token after which texts end, or several. */
static void read_ends(const config_file *f, lm_config *k) {
    const tn_json *v = member(f, "eos_token_id");
    if (!v) return;
    bool list = v->kind == TN_JSON_ARRAY;
    k->n_ends = 0;
    for (int i = 0; i < (list ? v->n : 1); i++) {
        const tn_json *x = list ? v + 1 + i : v;
        if (x->all != 1 || x->kind != TN_JSON_NUMBER || !(x->number >= 0 && x->number < TN_TEXT_MAX_TOKENS) ||
            x->number != floor(x->number) || k->n_ends == LM_MOST_ENDS)
            cli_fail(f->c, "%s: \"eos_token_id\" is neither a token nor a list of up to %d", f->path, LM_MOST_ENDS);
        k->ends[k->n_ends++] = (int32_t)x->number;
    }
}

bool lm_config_load(cli *c, const char *folder, lm_config *out) {
    char *path = lm_path(folder, "config.json"), *more = lm_path(folder, "generation_config.json");
    *out = (lm_config){ 0 };
    bool there = !access(path, F_OK);
    if (there) {
        cli_need(c, tn_io_json_load(cli_ctx(c), path, &out->file));
        config_file f = { c, path, out->file };
        if (f.at->kind != TN_JSON_OBJECT) cli_fail(c, "%s: expected an object", path);
        read_model(&f, out);
        read_ends(&f, out);
        out->model.group = whole(&f, "tenon_group", 0, 1e6), out->model.bits = (int)whole(&f, "tenon_bits", 0, 8);
        out->batch = whole(&f, "tenon_batch", 0, 1e6), out->block = whole(&f, "tenon_block", 0, 1e8);
        out->steps = whole(&f, "tenon_steps", 0, 1e12), out->warmup = whole(&f, "tenon_warmup", 0, 1e12);
        out->seed = whole(&f, "tenon_seed", 0, 1e15), out->tokens = whole(&f, "tenon_tokens", 0, TN_TEXT_MAX_TOKENS);
        out->text_bytes = whole(&f, "tenon_text_bytes", 0, 1e15);
        out->lr = number(&f, "tenon_lr", 0, 0, 1e6), out->decay = number(&f, "tenon_decay", 0, 0, 1e6);
        const char *dtype = text(&f, "tenon_dtype", "f32");
        out->dtype = !strcmp(dtype, "bf16") ? TN_BF16 : !strcmp(dtype, "f16") ? TN_F16 : TN_F32;
        out->held_out = number(&f, "tenon_held_out", 0, 0, 1), out->model.dropout = number(&f, "tenon_dropout", 0, 0, 1);
    }
    if (there && !access(more, F_OK)) { /* what texts are written with wins over what the model was made with */
        const tn_json *j;
        cli_need(c, tn_io_json_load(cli_ctx(c), more, &j));
        read_ends(&(config_file){ c, more, j }, out);
        tn_io_json_free(cli_ctx(c), j);
    }
    free(more);
    free(path);
    return there;
}

void lm_config_free(cli *c, lm_config *k) {
    tn_io_json_free(cli_ctx(c), k->file);
    free(k->rates);
    k->file = NULL, k->rates = NULL;
}

/* ---- writing ---- */

static void copy_value(json *j, const tn_json *v) {
    const char *key = v->key;
    switch (v->kind) {
    case TN_JSON_NULL:
        json_text(j, key, NULL);
        return;
    case TN_JSON_BOOL:
        json_bool(j, key, v->number != 0);
        return;
    case TN_JSON_NUMBER:
        if (v->number == floor(v->number) && fabs(v->number) < 0x1p53)
            json_int(j, key, (int64_t)v->number);
        else
            json_number(j, key, v->number);
        return;
    case TN_JSON_TEXT:
        json_text(j, key, v->text);
        return;
    case TN_JSON_ARRAY:
    case TN_JSON_OBJECT:
        break;
    }
    if (j->depth + 2 >= (int)COUNT_OF(j->more)) return; /* deeper than anything that was looked at */
    if (v->kind == TN_JSON_ARRAY)
        json_array(j, key);
    else
        json_object(j, key);
    for (const tn_json *m = v + 1; m < v + v->all; m += m->all) copy_value(j, m);
    json_end(j);
}

static void put_model(json *j, const tn_nn_lm_opts *o) {
    bool llama = o->kind == TN_NN_LLAMA;
    json_text(j, "model_type", llama ? "llama" : "gpt2");
    json_int(j, "vocab_size", o->vocab);
    json_int(j, llama ? "max_position_embeddings" : "n_positions", o->positions);
    json_int(j, llama ? "hidden_size" : "n_embd", o->width);
    json_int(j, llama ? "num_hidden_layers" : "n_layer", o->layers);
    json_int(j, llama ? "num_attention_heads" : "n_head", o->heads);
    json_int(j, llama ? "intermediate_size" : "n_inner", o->hidden);
    if (llama) {
        json_int(j, "num_key_value_heads", o->kv_heads);
        json_number(j, "rms_norm_eps", o->eps), json_number(j, "rope_theta", o->rope_base);
        json_bool(j, "tie_word_embeddings", o->tied);
        json_text(j, "hidden_act", "silu");
    } else
        json_number(j, "layer_norm_epsilon", o->eps), json_text(j, "activation_function", "gelu_new");
}

void lm_config_save(cli *c, const char *folder, const lm_config *k) {
    const tn_nn_lm_opts *o = &k->model;
    char *text = NULL, *path = lm_path(folder, "config.json");
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) cli_fail(c, "out of memory");
    json j = { .f = f, .depth = 1 };
    fputc('{', f);
    if (!k->file) put_model(&j, o);
    for (const tn_json *v = k->file ? k->file + 1 : NULL; v && v < k->file + k->file->all; v += v->all)
        if (strncmp(v->key, "tenon_", 6) != 0) copy_value(&j, v);
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
