/* lm.c - language models of two classes, with the parameter names and layouts of Hugging Face's checkpoints, so that their
 * safetensors files load as they are. In: token ids and sizes. Out: logits; with a cache, also states of keys and values that
 * each run writes its rows into. */
#include "nn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct lm {
    tn_graph *g;
    tn_nn_lm_opts o;
    int64_t batch, t, head; /* head: width of one */
    int layer;              /* being built */
    tn_tensor start;        /* i64[], with a cache */
    tn_tensor position;     /* i64[T] */
    tn_tensor seen;         /* bool[T,S] */
    tn_tensor rate;         /* f64[head/2], Llama */
} lm;

/* ---- parameters ------------------------------------------------------------------------------------------------------ */

enum { MAX_FULL = 128 };
static void full_name(const lm *m, const char *name, char *full /* [MAX_FULL] */) {
    if (m->layer < 0)
        snprintf(full, MAX_FULL, "%s", name);
    else
        snprintf(full, MAX_FULL, "%s.%d.%s", m->o.kind == TN_NN_LLAMA ? "model.layers" : "h", m->layer, name);
}
/* The state of that name where there is one already: the table of embeddings makes the logits, too. */
static tn_tensor made(lm *m, const char *full) {
    for (int i = 0; i < tn_graph_n_states(m->g); i++)
        if (!strcmp(tn_tensor_name(tn_graph_state(m->g, i)), full)) return tn_graph_state(m->g, i);
    return (tn_tensor){ m->g, 0 };
}
static tn_tensor state(lm *m, const char *name, tn_dtype t, tn_shape shape) {
    char full[MAX_FULL];
    full_name(m, name, full);
    tn_tensor x = made(m, full);
    return x.id ? x : tn_state(m->g, full, t, shape, NULL);
}

static tn_tensor param(lm *m, const char *name, tn_shape shape, nn_init init, double scale) {
    char full[MAX_FULL];
    full_name(m, name, full);
    if (m->o.given) return tn_cast(state(m, name, TN_F32, shape), m->o.dtype);
    tn_tensor x = made(m, full);
    return x.id ? tn_cast(x, m->o.dtype) : nn_param_as(m->g, m->o.dtype, full, shape, init, scale);
}

/* How the matrix lies; poisoned, where inputs are no whole groups. */
static bool form_of(lm *m, const char *name, int64_t in, tn_nn_lm_matrix *out) {
    char full[MAX_FULL];
    full_name(m, name, full);
    tn_nn_lm_matrix f = m->o.matrix ? m->o.matrix(m->o.matrix_ud, full)
                                    : (tn_nn_lm_matrix){ .group = m->o.group, .bits = m->o.bits, .type = m->o.weights };
    *out = f;
    bool wide = f.scale == TN_F32, blocks = f.scale == TN_I8;
    if ((f.bits && f.bits != 8 && f.bits != 4) || (f.bits == 4 && (!f.group || f.group % 2)))
        nn_fail(m->g, TN_ERR_INVAL, "tn_nn_lm: %d bits in groups of %lld: expected 8, or 4 in groups of an even number", f.bits,
                (long long)f.group);
    else if (f.group < 0 || (f.type != TN_F32 && f.type != TN_F16 && f.type != TN_BF16) || (f.type != TN_F32 && f.group))
        nn_fail(m->g, TN_ERR_INVAL,
                "tn_nn_lm: weights are f32, f16 or bf16, and f32 where there are groups; got %s in groups of %lld",
                tn_dtype_name(f.type), (long long)f.group);
    else if ((!wide && f.scale != TN_F16 && !blocks) || (!wide && !f.group) || blocks != (f.block > 0) ||
             (blocks && (f.block % f.group || in % f.block)))
        nn_fail(m->g, TN_ERR_INVAL,
                "tn_nn_lm: scales of %s for %lld of %lld inputs in blocks of %lld: expected f32, f16, or i8 in whole blocks",
                tn_dtype_name(f.scale), (long long)f.group, (long long)in, (long long)f.block);
    else if (f.group && in % f.group)
        nn_fail(m->g, TN_ERR_SHAPE, "tn_nn_lm: %s has %lld inputs, which are no groups of %lld", name, (long long)in,
                (long long)f.group);
    else
        return true;
    return false;
}

/* A matrix: a parameter, or a state that stays narrow in memory. */
static tn_tensor matrix(lm *m, const char *name, tn_dtype type, tn_shape shape, double scale) {
    if (type == TN_F32) return param(m, name, shape, NN_NORMAL, scale);
    return tn_cast(state(m, name, type, shape), m->o.dtype);
}

/* What weights are made in of numbers and scales, to be rounded once. */
static tn_dtype wide(const lm *m) { return m->o.dtype == TN_F64 ? TN_F64 : TN_F32; }

/* How many inputs of a matrix in groups there are along each axis: blocks, groups of these, halves and what is left of a group;
 * 0: no such axis. */
static tn_shape inputs(const tn_nn_lm_matrix *f, int64_t in, int64_t halves, int64_t left) {
    tn_shape s = { 0 };
    if (f->block) s.dim[s.rank++] = in / f->block;
    s.dim[s.rank++] = (f->block ? f->block : in) / f->group;
    if (halves && f->bits == 4) s.dim[s.rank++] = halves;
    if (left) s.dim[s.rank++] = left;
    return s;
}
/* [in.., out] or, across, [out,in..]. */
static tn_shape beside(tn_shape in, int64_t out, bool across) {
    tn_shape s = { .rank = in.rank + 1 };
    for (int i = 0; i < in.rank; i++) s.dim[i + across] = in.dim[i];
    s.dim[across ? 0 : in.rank] = out;
    return s;
}
/* [B,T,in..] */
static tn_shape rows_of(const lm *m, tn_shape in) {
    tn_shape s = { .rank = in.rank + 2, .dim = { m->batch, m->t } };
    for (int i = 0; i < in.rank; i++) s.dim[i + 2] = in.dim[i];
    return s;
}

/* Tokens, or nothing: all rows of a table. */
static tn_tensor picked(tn_tensor table, const tn_tensor *tokens) { return tokens ? tn_gather(table, *tokens, 0) : table; }

/* What a matrix has of each group beside its numbers, "scale" or "least", with a size of 1 for each of the n `ones` behind. */
static tn_tensor of_groups(lm *m, const char *name, const char *what, const tn_nn_lm_matrix *f, int64_t in, int64_t out,
                           bool across, const tn_tensor *tokens, int ones) {
    char part[80];
    int64_t n = in / f->group, blocks = f->block ? in / f->block : 0;
    int64_t halves = ones > 1, left = ones > 0;
    tn_shape s = inputs(f, in, halves, left), o = s;
    if (f->block) o.dim[1] = 1;
    s = tokens ? rows_of(m, s) : beside(s, out, across), o = tokens ? rows_of(m, o) : beside(o, out, across);
    snprintf(part, sizeof part, "%s_%s", name, what);
    tn_tensor x = picked(state(m, part, f->scale, across ? TN_DIMS(out, n) : TN_DIMS(n, out)), tokens);
    if (x.id) x = tn_cast(tn_reshape(x, s), wide(m));
    if (!blocks) return x;
    snprintf(part, sizeof part, "%s_%s_of", name, what);
    tn_tensor of = picked(state(m, part, TN_F16, across ? TN_DIMS(out, blocks) : TN_DIMS(blocks, out)), tokens);
    return of.id && x.id ? tn_mul(x, tn_cast(tn_reshape(of, o), wide(m))) : of;
}

/* Numbers of 4 bits, two in a byte of q, which has size 1 along `axis`: that becomes the half of the byte. */
static tn_tensor halves(const lm *m, tn_tensor q, int axis, bool has_least) {
    tn_shape bits = { .rank = tn_tensor_shape(q).rank };
    int64_t zero[TN_MAX_RANK] = { 0 }, step[TN_MAX_RANK];
    if (bits.rank < 0) return q;
    for (int i = 0; i < bits.rank; i++) bits.dim[i] = i == axis ? 8 : 1, step[i] = i == axis ? 4 : 1;
    tn_tensor first = tn_slice(tn_iota(m->g, TN_I32, bits, axis), zero, bits.dim, step, bits.rank);
    tn_tensor part = tn_and(tn_shift_right(tn_cast(q, TN_I32), first), tn_full(m->g, TN_I32, TN_SCALAR, 0x0f));
    part = tn_cast(part, wide(m));
    return has_least ? part : tn_sub_scalar(part, 8);
}

/* Weights [in,out], across: [out,in], as a factor of the contraction over all but one axis of the result: numbers and a scale
 * for each group of neighbouring inputs become [in/group,group,out] or [out,in/group,group]; of 4 bits [in/group,2,group/2,
 * out] or [out,in/group,2,group/2]; with blocks in/group is two axes. */
static tn_tensor dequantised(lm *m, const char *name, const tn_nn_lm_matrix *f, int64_t in, int64_t out, bool across) {
    bool four = f->bits == 4;
    int64_t stored = four ? in / 2 : in;
    tn_tensor q = state(m, name, four ? TN_U8 : TN_I8, across ? TN_DIMS(out, stored) : TN_DIMS(stored, out));
    tn_tensor scale = of_groups(m, name, "scale", f, in, out, across, NULL, four ? 2 : 1);
    q = tn_reshape(q, beside(inputs(f, in, 1, f->group / (four ? 2 : 1)), out, across));
    q = four ? halves(m, q, across + 1 + (f->block > 0), f->has_least) : tn_cast(q, wide(m));
    return tn_cast(tn_mul(q, scale), m->o.dtype);
}

/* x f[B,T,in] times the weights `name`. Least values of groups leave the sum over a group: each is multiplied by the sum of x
 * there, so that they are a product of their own, of one number a group. */
static tn_tensor product(lm *m, tn_tensor x, int64_t out, const char *name, bool across, double scale) {
    int64_t in = tn_tensor_shape(x).dim[2], axes[4] = { 2, 3, 4, 5 }, of_w[4] = { across, across + 1, across + 2, across + 3 };
    tn_nn_lm_matrix f;
    if (!x.id || !form_of(m, name, in, &f)) return (tn_tensor){ m->g, 0 };
    if (!f.group) {
        tn_tensor w = matrix(m, name, f.type, across ? TN_DIMS(out, in) : TN_DIMS(in, out), scale);
        return tn_dot(x, w, NULL, NULL, 0, axes, of_w, 1);
    }
    tn_shape groups = inputs(&f, in, 2, f.bits == 4 ? f.group / 2 : f.group), plain = inputs(&f, in, 0, f.group);
    tn_tensor y = tn_dot(tn_reshape(x, rows_of(m, groups)), dequantised(m, name, &f, in, out, across), NULL, NULL, 0, axes,
                         of_w, groups.rank);
    if (!f.has_least) return y;
    tn_tensor sums = tn_sum(tn_cast(tn_reshape(x, rows_of(m, plain)), wide(m)), TN_INTS(-1), 0);
    tn_tensor least = of_groups(m, name, "least", &f, in, out, across, NULL, 0);
    tn_tensor more = tn_dot(sums, least, NULL, NULL, 0, axes, of_w, plain.rank - 1);
    return tn_cast(tn_add(tn_cast(y, wide(m)), more), m->o.dtype);
}

/* GPT-2 keeps weights as [in,out]. */
static tn_tensor conv1d(lm *m, tn_tensor x, int64_t out, const char *name, double scale) {
    char part[64];
    snprintf(part, sizeof part, "%s.weight", name);
    tn_tensor y = product(m, x, out, part, false, scale);
    snprintf(part, sizeof part, "%s.bias", name);
    return tn_add(y, param(m, part, TN_DIMS(out), NN_ZEROS, 0));
}

/* Llama as [out,in]. */
static tn_tensor linear(lm *m, tn_tensor x, int64_t out, const char *name, bool bias, double scale) {
    char part[64];
    snprintf(part, sizeof part, "%s.weight", name);
    tn_tensor y = product(m, x, out, part, true, scale);
    snprintf(part, sizeof part, "%s.bias", name);
    return bias ? tn_add(y, param(m, part, TN_DIMS(out), NN_ZEROS, 0)) : y;
}

/* Rows of the table of embeddings. */
static tn_tensor embedded(lm *m, tn_tensor tokens, const char *name) {
    int64_t w = m->o.width;
    tn_nn_lm_matrix f;
    if (!form_of(m, name, w, &f)) return (tn_tensor){ m->g, 0 };
    if (!f.group) return tn_gather(matrix(m, name, f.type, TN_DIMS(m->o.vocab, w), 0.02), tokens, 0);
    bool four = f.bits == 4;
    tn_tensor q = tn_gather(state(m, name, four ? TN_U8 : TN_I8, TN_DIMS(m->o.vocab, four ? w / 2 : w)), tokens, 0);
    tn_tensor scale = of_groups(m, name, "scale", &f, w, m->o.vocab, true, &tokens, four ? 2 : 1);
    if (!scale.id || !q.id) return scale;
    q = tn_reshape(q, rows_of(m, inputs(&f, w, 1, f.group / (four ? 2 : 1))));
    q = four ? halves(m, q, 3 + (f.block > 0), f.has_least) : tn_cast(q, wide(m));
    tn_tensor y = tn_mul(q, scale);
    if (f.has_least) y = tn_add(y, of_groups(m, name, "least", &f, w, m->o.vocab, true, &tokens, four ? 2 : 1));
    return tn_cast(tn_reshape(y, TN_DIMS(m->batch, m->t, w)), m->o.dtype);
}

/* Over the last axis, which has n elements. */
static tn_tensor norm(lm *m, tn_tensor x, int64_t n, const char *name) {
    char part[64];
    snprintf(part, sizeof part, "%s.weight", name);
    tn_tensor y = m->o.kind == TN_NN_LLAMA ? nn_rms_norm(x, m->o.eps) : nn_layer_norm(x, m->o.eps);
    tn_tensor w = param(m, part, TN_DIMS(n), NN_ONES, 1);
    y = tn_mul(y, w);
    if (m->o.kind == TN_NN_LLAMA) return y;
    snprintf(part, sizeof part, "%s.bias", name);
    return tn_add(y, param(m, part, TN_DIMS(n), NN_ZEROS, 0));
}

static tn_tensor dropout(lm *m, tn_tensor x, const char *name) {
    char full[64];
    if (m->o.dropout == 0) return x;
    snprintf(full, sizeof full, "%s%d", name, m->layer);
    return tn_nn_dropout(x, m->o.dropout, m->o.counter, full);
}

/* ---- blocks ---------------------------------------------------------------------------------------------------------- */

/* [B,T,heads*d], from column `from` on, as [B,heads,T,d]. */
static tn_tensor heads_of(const lm *m, tn_tensor x, int64_t from, int64_t heads) {
    if (tn_tensor_shape(x).rank < 0) return x;
    x = tn_slice(x, (const int64_t[]){ 0, 0, from }, (const int64_t[]){ m->batch, m->t, from + heads * m->head }, NULL, 3);
    return tn_permute(tn_reshape(x, TN_DIMS(m->batch, m->t, heads, m->head)), TN_INTS(0, 2, 1, 3));
}

/* The keys or values of all positions so far: rows start .. start + T - 1 of the cache become those of x [B,H,T,d]. */
static tn_tensor cached(lm *m, tn_tensor x, const char *what) {
    char name[64];
    if (!m->start.graph) return x;
    tn_shape s = tn_tensor_shape(x);
    if (s.rank < 0) return x;
    s.dim[2] = m->o.positions;
    snprintf(name, sizeof name, "cache.%d.%s", m->layer, what);
    tn_tensor cache = tn_state(m->g, name, m->o.dtype, s, NULL);
    tn_tensor next = nn_write_rows(cache, x, m->start);
    if (cache.id && next.id) tn_assign(cache, next);
    if (m->o.span == m->o.positions) return next;
    s.dim[2] = m->o.span;
    return tn_slice(next, (const int64_t[4]){ 0 }, s.dim, NULL, 4);
}

static tn_tensor attend(lm *m, tn_tensor q, tn_tensor k, tn_tensor v) {
    if (m->o.head_norms) {
        q = norm(m, q, m->head, "self_attn.q_norm");
        k = norm(m, k, m->head, "self_attn.k_norm");
    }
    if (m->o.kind == TN_NN_LLAMA) {
        q = nn_rope(q, m->position, m->rate, m->o.rope_scale);
        k = nn_rope(k, m->position, m->rate, m->o.rope_scale);
    }
    k = cached(m, k, "k");
    v = cached(m, v, "v");
    tn_tensor y = nn_attention(q, k, v, m->seen, "tn_nn_lm");
    return tn_reshape(tn_permute(y, TN_INTS(0, 2, 1, 3)), TN_DIMS(m->batch, m->t, m->o.heads * m->head));
}

/* Initial values as GPT-2 has them: what is added to the residual stream is smaller the more layers add to it. */
static tn_tensor gpt2_block(lm *m, tn_tensor x) {
    int64_t w = m->o.width;
    double scale = 0.02, added = 0.02 / sqrt(2 * (double)m->o.layers);
    tn_tensor qkv = conv1d(m, norm(m, x, w, "ln_1"), 3 * w, "attn.c_attn", scale);
    tn_tensor q = heads_of(m, qkv, 0, m->o.heads), k = heads_of(m, qkv, w, m->o.heads), v = heads_of(m, qkv, 2 * w, m->o.heads);
    x = tn_add(x, dropout(m, conv1d(m, attend(m, q, k, v), w, "attn.c_proj", added), "attn"));
    tn_tensor y = tn_nn_gelu_tanh(conv1d(m, norm(m, x, w, "ln_2"), m->o.hidden, "mlp.c_fc", scale));
    return tn_add(x, dropout(m, conv1d(m, y, w, "mlp.c_proj", added), "mlp"));
}

static tn_tensor llama_block(lm *m, tn_tensor x) {
    int64_t w = m->o.width, wide = m->o.heads * m->head, shared = m->o.kv_heads * m->head;
    double scale = 0.02, added = 0.02 / sqrt(2 * (double)m->o.layers);
    bool bias = m->o.biases > 0, last = m->o.biases > 1;
    tn_tensor y = norm(m, x, w, "input_layernorm");
    tn_tensor q = heads_of(m, linear(m, y, wide, "self_attn.q_proj", bias, scale), 0, m->o.heads);
    tn_tensor k = heads_of(m, linear(m, y, shared, "self_attn.k_proj", bias, scale), 0, m->o.kv_heads);
    tn_tensor v = heads_of(m, linear(m, y, shared, "self_attn.v_proj", bias, scale), 0, m->o.kv_heads);
    x = tn_add(x, dropout(m, linear(m, attend(m, q, k, v), w, "self_attn.o_proj", last, added), "attn"));
    y = norm(m, x, w, "post_attention_layernorm");
    tn_tensor gate = tn_nn_silu(linear(m, y, m->o.hidden, "mlp.gate_proj", false, scale));
    tn_tensor up = linear(m, y, m->o.hidden, "mlp.up_proj", false, scale);
    return tn_add(x, dropout(m, linear(m, tn_mul(gate, up), w, "mlp.down_proj", false, added), "mlp"));
}

static void block(tn_graph *g, void *m, const tn_tensor *in, tn_tensor *out) {
    (void)g;
    out[0] = (((lm *)m)->o.kind == TN_NN_LLAMA ? llama_block : gpt2_block)(m, in[0]);
}

/* ---- models ---------------------------------------------------------------------------------------------------------- */

static bool check_sizes(lm *m, tn_tensor tokens) {
    tn_nn_lm_opts *o = &m->o;
    tn_shape s = tn_tensor_shape(tokens);
    tn_dtype t = tn_tensor_dtype(tokens);
    if (!nn_given(m->g, tokens, "tn_nn_lm")) return false;
    bool llama = o->kind == TN_NN_LLAMA;
    if (!o->kv_heads) o->kv_heads = o->heads;
    if (!o->hidden) o->hidden = llama ? (8 * o->width / 3 + 31) / 32 * 32 : 4 * o->width;
    bool own_head = o->head > 0,
         split = own_head ? o->head <= 1 << 20 && o->heads <= 1 << 20 : o->heads > 0 && o->width % o->heads == 0;
    bool sizes = o->vocab > 0 && o->positions > 0 && o->width > 0 && o->layers > 0 && o->heads > 0 && o->kv_heads > 0 &&
                 o->hidden > 0 && o->head >= 0 && o->group >= 0 && o->width <= 1 << 20 && o->layers <= 1 << 12 &&
                 (llama || o->kind == TN_NN_GPT2);
    if (!sizes || !split || o->heads % o->kv_heads || (!llama && o->kv_heads != o->heads) ||
        (llama && (own_head ? o->head : o->width / o->heads) % 2)) {
        nn_fail(
            m->g, TN_ERR_INVAL,
            "tn_nn_lm: vocab %lld, positions %lld, width %lld, layers %lld, heads %lld, kv_heads %lld, hidden %lld: all are "
            "above 0, heads divides width and kv_heads divides heads; GPT-2 has as many of both, and a head of Llama an "
            "even width",
            (long long)o->vocab, (long long)o->positions, (long long)o->width, (long long)o->layers, (long long)o->heads,
            (long long)o->kv_heads, (long long)o->hidden);
        return false;
    }
    bool more = o->head || o->window || o->biases || o->head_norms || o->rope_rates || o->rope_scale != 0;
    if ((!llama && more) || o->window < 0 || o->biases < 0 || o->biases > 2 || !(o->rope_base >= 0) || !(o->rope_scale >= 0)) {
        nn_fail(
            m->g, TN_ERR_INVAL,
            "tn_nn_lm: head %lld, window %lld, biases %d, rope_base %g, rope_scale %g: none is below 0, biases are at most 2, "
            "and GPT-2 has none of these",
            (long long)o->head, (long long)o->window, o->biases, o->rope_base, o->rope_scale);
        return false;
    }
    if (s.rank != 2 || (t != TN_I32 && t != TN_I64)) {
        nn_fail(m->g, TN_ERR_SHAPE, "tn_nn_lm: expected tokens i32[B,T] or i64[B,T], got %s of rank %d", tn_dtype_name(t),
                s.rank);
        return false;
    }
    if (s.dim[1] > o->positions) {
        nn_fail(m->g, TN_ERR_SHAPE, "tn_nn_lm: %lld tokens in a row; the model has %lld positions", (long long)s.dim[1],
                (long long)o->positions);
        return false;
    }
    if (!o->span) o->span = o->positions;
    if (o->span < s.dim[1] || o->span > o->positions) {
        nn_fail(m->g, TN_ERR_SHAPE,
                "tn_nn_lm_cached: a span of %lld positions: expected at least %lld tokens, at most %lld positions",
                (long long)o->span, (long long)s.dim[1], (long long)o->positions);
        return false;
    }
    m->batch = s.dim[0], m->t = s.dim[1], m->head = own_head ? o->head : o->width / o->heads;
    if (o->rope_scale == 0) o->rope_scale = 1;
    return true;
}

/* Positions of the tokens, and which of them see which. */
static void place(lm *m) {
    bool cache = m->start.graph;
    tn_shape square = TN_DIMS(m->t, cache ? m->o.span : m->t);
    m->position = tn_iota(m->g, TN_I64, TN_DIMS(m->t), 0);
    tn_tensor row = tn_iota(m->g, TN_I32, square, 0), column = tn_iota(m->g, TN_I32, square, 1);
    if (cache) {
        m->position = tn_add(m->position, m->start);
        row = tn_add(row, tn_cast(m->start, TN_I32));
    }
    m->seen = tn_le(column, row);
    if (m->o.window && m->o.window < square.dim[1])
        m->seen = tn_and(m->seen, tn_lt(row, tn_add_scalar(column, (double)m->o.window)));
    if (m->o.kind == TN_NN_GPT2) return;
    double base = m->o.rope_base > 0 ? m->o.rope_base : 10000;
    tn_shape pairs = TN_DIMS(m->head / 2);
    if (m->o.rope_rates)
        m->rate = tn_const(m->g, TN_F64, pairs, m->o.rope_rates);
    else /* in double: powers in f32 would be off by the position times their rounding */
        m->rate = tn_exp(tn_mul_scalar(tn_iota(m->g, TN_F64, pairs, 0), -2 * log(base) / (double)m->head));
}

static tn_tensor model(lm *m, tn_tensor tokens) {
    bool llama = m->o.kind == TN_NN_LLAMA;
    int64_t w = m->o.width;
    const char *table = llama ? "model.embed_tokens.weight" : "wte.weight";
    m->layer = -1;
    tn_tensor x = embedded(m, tokens, table);
    if (!llama) {
        tn_tensor wpe = param(m, "wpe.weight", TN_DIMS(m->o.positions, w), NN_NORMAL, 0.02), p = { m->g, 0 };
        if (m->start.graph)
            p = tn_gather(wpe, m->position, 0);
        else if (wpe.id)
            p = tn_slice(wpe, (const int64_t[]){ 0, 0 }, (const int64_t[]){ m->t, w }, NULL, 2);
        x = tn_add(x, p);
    }
    x = dropout(m, x, "embed");
    for (m->layer = 0; m->layer < (int)m->o.layers && x.id; m->layer++) {
        tn_tensor in = x;
        if (m->o.recompute)
            tn_checkpoint(m->g, block, m, &in, &x);
        else
            block(m->g, m, &in, &x);
    }
    m->layer = -1;
    if (!x.id) return x;
    x = norm(m, x, w, llama ? "model.norm" : "ln_f");
    if (llama && !m->o.tied) return linear(m, x, m->o.vocab, "lm_head", false, 0.02);
    return product(m, x, m->o.vocab, table, true, 0.02);
}

tn_tensor tn_nn_lm(tn_tensor tokens, tn_nn_lm_opts opts) {
    lm m = { .g = tokens.graph, .o = opts };
    if (!tokens.id || !check_sizes(&m, tokens)) return (tn_tensor){ tokens.graph, 0 };
    place(&m);
    return model(&m, tokens);
}

tn_tensor tn_nn_lm_cached(tn_tensor tokens, tn_tensor start, tn_nn_lm_opts opts) {
    lm m = { .g = tokens.graph, .o = opts, .start = start };
    if (!tokens.id || !nn_given(m.g, start, "tn_nn_lm_cached") || !check_sizes(&m, tokens))
        return (tn_tensor){ tokens.graph, 0 };
    tn_shape s = tn_tensor_shape(start);
    if (s.rank != 0 || tn_tensor_dtype(start) != TN_I64)
        return nn_fail(m.g, TN_ERR_SHAPE, "tn_nn_lm_cached: expected start i64[], got %s of rank %d",
                       tn_dtype_name(tn_tensor_dtype(start)), s.rank);
    place(&m);
    return model(&m, tokens);
}
