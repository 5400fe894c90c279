/* gguf.c - language models in one file of llama.cpp: sizes and vocabulary from its metadata, weights from its arrays.
 *
 * In: a GGUF of the classes llama, qwen2, qwen3 or gpt2, whose header tn_io_gguf_load has checked; from anywhere, so every
 * number is checked again for what it means. Out: the same model as from a folder of Hugging Face's, with its names and
 * layouts. Matrices stay as narrow as the file has them: whole numbers of 4 or 8 bits with scales and least values of groups,
 * f16, bf16 or f32. */
#include "lm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_LAYERS = 4096 };

struct lm_gguf {
    cli *c;
    const char *path;
    tn_io_gguf *file;
    const lm_class *of;
    bool llama; /* or a relative */
    tn_nn_lm_opts model;
    int64_t head;
};

bool lm_is_gguf(const char *path) {
    struct stat s;
    return !stat(path, &s) && S_ISREG(s.st_mode);
}

/* ---- sizes ---- */

static const char *key_of(const lm_gguf *f, const char *key, char *full /* [128] */) {
    snprintf(full, 128, "%s.%s", f->of->gguf, key);
    return full;
}
static double number(const lm_gguf *f, const char *key, double fallback, double lo, double hi) {
    char full[128];
    double v = fallback;
    if (!tn_io_gguf_number(f->file, key_of(f, key, full), &v) && isnan(fallback))
        cli_fail(f->c, "%s: there is no \"%s\"", f->path, full);
    if (!(v >= lo && v <= hi)) cli_fail(f->c, "%s: \"%s\" is %g, not a number from %g to %g", f->path, full, v, lo, hi);
    return v;
}
static int64_t whole(const lm_gguf *f, const char *key, double fallback, double hi) {
    double v = number(f, key, fallback, fallback == 0 ? 0 : 1, hi);
    if (v != floor(v)) cli_fail(f->c, "%s: \"%s\" is %g, not a whole number", f->path, key, v);
    return (int64_t)v;
}

static const tn_io_gguf_tensor *array_of(const lm_gguf *f, const char *name) {
    const tn_io_gguf_tensor *t = tn_io_gguf_find(f->file, name);
    if (!t) cli_fail(f->c, "%s: there is no array \"%s\"", f->path, name);
    return t;
}

static float *wide(const lm_gguf *f, const tn_io_gguf_tensor *t, size_t n) {
    float *x = cli_alloc(n * sizeof *x + 1);
    cli_need(f->c, tn_io_gguf_read(cli_ctx(f->c), t, x, n));
    return x;
}

static tn_nn_lm_matrix matrix_form(void *ud, const char *name);

static void read_sizes(lm_gguf *f) {
    const char *kind = tn_io_gguf_text(f->file, "general.architecture");
    tn_nn_lm_opts *o = &f->model;
    if (!kind) cli_fail(f->c, "%s: there is no \"general.architecture\"", f->path);
    if (!(f->of = lm_class_of(NULL, kind)))
        cli_fail(f->c, "%s: a model of the class %.40s; gpt2, llama, qwen2 and qwen3 are read", f->path, kind);
    f->llama = f->of->kind == TN_NN_LLAMA;
    o->kind = f->of->kind;
    o->positions = whole(f, "context_length", NAN, 1e8), o->width = whole(f, "embedding_length", NAN, 1e6);
    o->layers = whole(f, "block_count", NAN, MOST_LAYERS), o->heads = whole(f, "attention.head_count", NAN, 1e6);
    o->hidden = whole(f, "feed_forward_length", NAN, 1e8);
    const tn_io_gguf_tensor *table = array_of(f, "token_embd.weight");
    if (table->shape.rank != 2 || table->shape.dim[0] > TN_TEXT_MAX_TOKENS)
        cli_fail(f->c, "%s: token_embd.weight is no table of up to %d tokens", f->path, TN_TEXT_MAX_TOKENS);
    o->vocab = table->shape.dim[0];
    o->matrix = matrix_form, o->matrix_ud = f;
    if (!f->llama) {
        o->eps = number(f, "attention.layer_norm_epsilon", 1e-5, 0, 1);
        return;
    }
    o->kv_heads = whole(f, "attention.head_count_kv", (double)o->heads, 1e6);
    o->eps = number(f, "attention.layer_norm_rms_epsilon", 1e-5, 0, 1);
    o->rope_base = number(f, "rope.freq_base", 10000, 1, 1e12);
    o->tied = !tn_io_gguf_find(f->file, "output.weight");
    o->window = whole(f, "attention.sliding_window", 0, 1e9);
    f->head = whole(f, "attention.key_length", (double)(o->width / o->heads), 1e6);
    if (f->head * o->heads != o->width) o->head = f->head;
    int64_t turned = whole(f, "rope.dimension_count", (double)f->head, 1e6);
    int64_t values = whole(f, "attention.value_length", (double)f->head, 1e6);
    if (turned != f->head || values != f->head)
        cli_fail(
            f->c,
            "%s: \"rope.dimension_count\" is %lld, \"attention.value_length\" %lld, heads are %lld wide: they must be equal",
            f->path, (long long)turned, (long long)values, (long long)f->head);
    bool last = tn_io_gguf_find(f->file, "blk.0.attn_output.bias");
    o->biases = tn_io_gguf_find(f->file, "blk.0.attn_q.bias") ? 1 + last : 0;
    o->head_norms = tn_io_gguf_find(f->file, "blk.0.attn_q_norm.weight") != NULL;
}

/* Scaled rotary positions: a kind of scaling, or factors by which each rate is divided (Llama 3.1). */
static void read_rope(lm_gguf *f, lm_config *out) {
    char full[128];
    const char *kind = tn_io_gguf_text(f->file, key_of(f, "rope.scaling.type", full));
    const tn_io_gguf_tensor *factors = tn_io_gguf_find(f->file, "rope_freqs.weight");
    tn_nn_rope_opts o = { .base = f->model.rope_base };
    double older = number(f, "rope.scale_linear", 1, 1, 1e6);
    if (kind && !strcmp(kind, "none")) kind = NULL;
    if (!kind && older != 1) kind = "linear";
    if (kind) {
        o.kind = !strcmp(kind, "linear") ? TN_NN_ROPE_LINEAR : TN_NN_ROPE_YARN;
        if (o.kind == TN_NN_ROPE_YARN && strcmp(kind, "yarn") != 0)
            cli_fail(f->c, "%s: \"rope.scaling.type\" is %.40s; linear and yarn are computed", f->path, kind);
        o.factor = number(f, "rope.scaling.factor", older, 1, 1e6);
    }
    if (o.kind == TN_NN_ROPE_YARN) {
        o.positions = number(f, "rope.scaling.original_context_length", (double)f->model.positions, 1, 1e9);
        o.low = number(f, "rope.scaling.yarn_beta_slow", 0, 0, 1e6),
        o.high = number(f, "rope.scaling.yarn_beta_fast", 0, 0, 1e6);
        double scale = number(f, "rope.scaling.attn_factor", 1, 0, 1e6);
        if (scale != 1) o.scale = scale * (1 + 0.1 * log(o.factor));
    }
    if (!kind && !factors) return;
    if (!lm_scale_rope(out, &o)) cli_fail(f->c, "%s: \"rope.scaling\" has numbers that do not fit together", f->path);
    if (!factors) return;
    if (factors->shape.rank != 1 || factors->shape.dim[0] != f->head / 2)
        cli_fail(f->c, "%s: rope_freqs.weight has %lld numbers; heads are %lld wide", f->path, (long long)factors->shape.dim[0],
                 (long long)f->head);
    float *by = wide(f, factors, (size_t)f->head / 2);
    for (int64_t i = 0; i < f->head / 2 && out->rates; i++) {
        if (!(by[i] > 0) || !isfinite(by[i])) cli_fail(f->c, "%s: rope_freqs.weight has %g", f->path, (double)by[i]);
        out->rates[i] /= (double)by[i];
    }
    free(by);
}

lm_gguf *lm_gguf_open(cli *c, const char *path, int64_t context, lm_config *out) {
    lm_gguf *f = cli_alloc(sizeof *f);
    *f = (lm_gguf){ .c = c, .path = path };
    cli_need(c, tn_io_gguf_load(cli_ctx(c), path, &f->file));
    read_sizes(f);
    *out = (lm_config){ .model = f->model };
    if (f->llama) read_rope(f, out);
    if (f->llama && f->model.positions > context) out->model.positions = context; /* rotary positions have no table */
    return f;
}

void lm_gguf_close(lm_gguf *f) {
    if (f) tn_io_gguf_free(f->file);
    free(f);
}

/* ---- vocabulary ---- */

static int32_t token_of(const lm_gguf *f, const char *key) {
    double v;
    if (!tn_io_gguf_number(f->file, key, &v)) return -1;
    if (!(v >= 0 && v < (double)f->model.vocab) || v != floor(v))
        cli_fail(f->c, "%s: \"%s\" is %g, which is no token of %lld", f->path, key, v, (long long)f->model.vocab);
    return (int32_t)v;
}

tn_bpe *lm_gguf_vocab(lm_gguf *f, int32_t *begin, lm_config *k) {
    static const char *const ends[] = { "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id" };
    bool begins;
    tn_bpe *b = lm_gguf_bpe(f->c, f->path, f->file, f->model.vocab, &begins);
    *begin = begins ? token_of(f, "tokenizer.ggml.bos_token_id") : -1;
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        int32_t id = token_of(f, ends[i]);
        if (id >= 0) k->ends[k->n_ends++] = id;
    }
    return b;
}

/* ---- weights ---- */

/* Hugging Face's name (without its number of a layer) and GGUF's. */
typedef struct array_name {
    const char *theirs, *ours;
    enum {
        PLAIN,
        TURNED /* GPT-2's [in,out] is [out,in] there */,
        PAIRS /* rows of a head that turn together: side by side */
    } how;
} array_name;
static const array_name gpt2_layer[] = {
    { "attn_norm", "ln_1", PLAIN },    { "attn_qkv", "attn.c_attn", TURNED }, { "attn_output", "attn.c_proj", TURNED },
    { "ffn_norm", "ln_2", PLAIN },     { "ffn_up", "mlp.c_fc", TURNED },      { "ffn_down", "mlp.c_proj", TURNED },
    { "position_embd", "wpe", PLAIN }, { "token_embd", "wte", PLAIN },        { "output_norm", "ln_f", PLAIN },
};
static const array_name llama_layer[] = {
    { "attn_norm", "input_layernorm", PLAIN },    { "attn_q", "self_attn.q_proj", PAIRS },
    { "attn_k", "self_attn.k_proj", PAIRS },      { "attn_v", "self_attn.v_proj", PLAIN },
    { "attn_q_norm", "self_attn.q_norm", PLAIN }, { "attn_k_norm", "self_attn.k_norm", PLAIN },
    { "attn_output", "self_attn.o_proj", PLAIN }, { "ffn_norm", "post_attention_layernorm", PLAIN },
    { "ffn_gate", "mlp.gate_proj", PLAIN },       { "ffn_up", "mlp.up_proj", PLAIN },
    { "ffn_down", "mlp.down_proj", PLAIN },       { "token_embd", "model.embed_tokens", PLAIN },
    { "output_norm", "model.norm", PLAIN },       { "output", "lm_head", PLAIN },
};

/* What the state `name` (such as "h.3.ln_1.weight") is called in the file; *how: how it lies there. */
static const tn_io_gguf_tensor *find_array(const lm_gguf *f, const char *name, int *how) {
    const array_name *names = f->llama ? llama_layer : gpt2_layer;
    size_t n = f->llama ? sizeof llama_layer / sizeof *llama_layer : sizeof gpt2_layer / sizeof *gpt2_layer;
    const char *prefix = f->llama ? "model.layers." : "h.", *part = name, *last = strrchr(name, '.');
    int layer = -1, used = 0;
    char full[128];
    if (!strncmp(name, prefix, strlen(prefix)) && sscanf(name + strlen(prefix), "%d.%n", &layer, &used) == 1)
        part = name + strlen(prefix) + used;
    for (size_t i = 0; i < n && last; i++) {
        size_t length = strlen(names[i].ours);
        if (part + length != last || strncmp(part, names[i].ours, length) != 0) continue;
        if (layer >= 0)
            snprintf(full, sizeof full, "blk.%d.%s%.12s", layer, names[i].theirs, last);
        else
            snprintf(full, sizeof full, "%s%.12s", names[i].theirs, last);
        *how = names[i].how == PAIRS && !f->of->pairs ? PLAIN : (int)names[i].how;
        return array_of(f, full);
    }
    cli_fail(f->c, "%s: the model has %s, which files of this class have not", f->path, name);
}

/* The row of the state that row r of the file is: rotary pairs, which the file has side by side, are half a head apart. */
static int64_t row_of(const lm_gguf *f, int how, int64_t r) {
    int64_t i = how == PAIRS ? r % f->head : 0;
    return how == PAIRS ? r - i + i % 2 * (f->head / 2) + i / 2 : r;
}

/* The array must have `rows` rows of `columns` numbers. */
static void check_shape(const lm_gguf *f, const tn_io_gguf_tensor *t, int64_t rows, int64_t columns) {
    bool vector = t->shape.rank == 1;
    int64_t have = vector ? 1 : t->shape.dim[0], of = t->shape.dim[t->shape.rank - 1];
    if (t->shape.rank > 2 || have != rows || of != columns)
        cli_fail(f->c, "%s: \"%s\" has rows of %lld numbers, %lld of them; the sizes of the model say %lld and %lld", f->path,
                 t->name, (long long)of, (long long)have, (long long)columns, (long long)rows);
}

/* Numbers of a plain type, of 2 or 4 bytes, at their places in the state. */
static void place_numbers(const lm_gguf *f, int how, bool turned, const void *from, int64_t rows, int64_t columns, size_t size,
                          void *to) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < columns; k++) {
            int64_t at = turned ? k * rows + r : row_of(f, how, r) * columns + k;
            memcpy((uint8_t *)to + (size_t)at * size, (const uint8_t *)from + (size_t)(r * columns + k) * size, size);
        }
}

/* A state of f32, or of 16 bits as the file has them. */
static void set_plain(const lm_gguf *f, tn_session *s, const char *name, tn_dtype dtype, tn_shape shape) {
    int how;
    const tn_io_gguf_tensor *t = find_array(f, name, &how);
    bool turned = how == TURNED && shape.rank == 2, same = t->type == (dtype == TN_BF16  ? TN_GGUF_BF16
                                                                       : dtype == TN_F16 ? TN_GGUF_F16
                                                                                         : TN_GGUF_F32);
    int64_t rows = shape.rank == 2 ? shape.dim[turned] : 1, columns = shape.rank == 2 ? shape.dim[!turned] : shape.dim[0];
    check_shape(f, t, rows, columns);
    if (shape.rank == 1) rows = columns, columns = 1; /* biases of rows go with them */
    size_t n = (size_t)(rows * columns), size = tn_dtype_size(dtype);
    float *x = same ? NULL : wide(f, t, n);
    void *y = cli_alloc(n * size + 1);
    place_numbers(f, how, turned, x ? (const void *)x : t->data, rows, columns, size, y);
    cli_need(f->c, tn_session_set(s, name, y, n * size));
    free(x);
    free(y);
}

static tn_nn_lm_matrix matrix_form(void *ud, const char *name) {
    int how;
    const tn_io_gguf_tensor *t = find_array(ud, name, &how);
    tn_io_gguf_groups g = tn_io_gguf_groups_of(t->type);
    return (tn_nn_lm_matrix){ .group = g.group,
                              .bits = g.bits,
                              .has_least = g.has_least,
                              .scale = g.block   ? TN_I8
                                       : g.group ? TN_F16
                                                 : TN_F32,
                              .block = g.block,
                              .type = t->type == TN_GGUF_BF16  ? TN_BF16
                                      : t->type == TN_GGUF_F16 ? TN_F16
                                                               : TN_F32 };
}

/* Two numbers of each group in a byte, n places of them. */
static void pack_halves(int8_t *x, int64_t n, int64_t group, int add) {
    for (int64_t i = 0; i < n / 2; i++) {
        const int8_t *low = &x[i / (group / 2) * group + i % (group / 2)];
        x[i] = (int8_t)(uint8_t)((low[0] + add) | (low[group / 2] + add) << 4);
    }
}

/* n values of `size` bytes as row `to` of `rows`, or as its column. */
static void place_row(const void *from, int64_t n, size_t size, bool turned, int64_t rows, int64_t to, void *out) {
    if (!turned) memcpy((uint8_t *)out + (size_t)(to * n) * size, from, (size_t)n * size);
    for (int64_t i = 0; i < n && turned; i++)
        memcpy((uint8_t *)out + (size_t)(i * rows + to) * size, (const uint8_t *)from + (size_t)i * size, size);
}

/* A state `name`_what, of rows x n numbers in `x`, which is given back. */
static void set_part(const lm_gguf *f, tn_session *s, const char *name, const char *what, void *x, int64_t n, size_t size) {
    char *full = cli_format("%s_%s", name, what);
    if (n) cli_need(f->c, tn_session_set(s, full, x, (size_t)n * size));
    free(full), free(x);
}

/* The numbers of a matrix in groups, and their scales and least values as narrow as the file has them. */
static void set_groups(const lm_gguf *f, tn_session *s, const char *name, tn_shape shape) {
    int how;
    const tn_io_gguf_tensor *t = find_array(f, name, &how);
    tn_io_gguf_groups form = tn_io_gguf_groups_of(t->type);
    bool turned = how == TURNED, four = form.bits == 4;
    int64_t rows = shape.dim[turned], stored = shape.dim[!turned], columns = four ? 2 * stored : stored,
            groups = columns / form.group, halves = form.block ? columns / form.block : groups, whole = form.block ? groups : 0;
    check_shape(f, t, rows, columns);
    uint8_t *q = cli_alloc((size_t)(rows * stored) + 1);
    int8_t *row = cli_alloc((size_t)columns + 1), *of_row = cli_alloc((size_t)(2 * groups) + 1), *all[2];
    uint16_t *half_row = cli_alloc((size_t)(2 * halves) * sizeof *half_row + 1), *half[2];
    float *wide = cli_alloc((size_t)(2 * groups) * sizeof *wide + 1);
    for (int p = 0; p < 2; p++) {
        half[p] = cli_alloc((size_t)(rows * halves) * sizeof *half_row + 1);
        all[p] = cli_alloc((size_t)(rows * whole) + 1);
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t to = row_of(f, how, r);
        size_t from = (size_t)(r * columns), n = (size_t)columns;
        cli_need(f->c, tn_io_gguf_read_groups(cli_ctx(f->c), t, from, n, row, wide, wide + groups));
        cli_need(f->c, tn_io_gguf_read_scales(cli_ctx(f->c), t, from, n, half_row, half_row + halves, of_row, of_row + groups));
        if (four) pack_halves(row, columns, form.group, form.has_least ? 0 : 8);
        place_row(row, stored, 1, turned, rows, to, q);
        for (int p = 0; p <= form.has_least; p++) {
            place_row(half_row + p * halves, halves, sizeof *half_row, turned, rows, to, half[p]);
            place_row(of_row + p * groups, whole, 1, turned, rows, to, all[p]);
        }
    }
    cli_need(f->c, tn_session_set(s, name, q, (size_t)(rows * stored)));
    for (int p = 0; p < 2; p++) {
        bool there = !p || form.has_least;
        set_part(f, s, name, p ? "least" : "scale", all[p], there ? rows * whole : 0, 1);
        set_part(f, s, name,
                 form.block ? p ? "least_of" : "scale_of"
                 : p        ? "least"
                            : "scale",
                 half[p], there ? rows * halves : 0, sizeof *half_row);
    }
    free(q), free(row), free(of_row), free(half_row), free(wide);
}

static const char *last_word(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

void lm_gguf_weights(lm_gguf *f, tn_session *s) {
    for (int i = 0; i < tn_session_n_states(s); i++) {
        const char *name;
        tn_dtype dtype;
        tn_shape shape;
        cli_need(f->c, tn_session_state(s, i, &name, &dtype, &shape));
        if (!strncmp(name, "cache.", 6) || !strncmp(last_word(name), "weight_", 7)) continue;
        if (dtype == TN_I8 || dtype == TN_U8)
            set_groups(f, s, name, shape);
        else
            set_plain(f, s, name, dtype, shape);
    }
}
