/* test_lm.c - language models: logits against a forward pass written out in double with the parameters of Hugging Face's names,
 * decoding through the cache against the pass over all tokens, gradients against differences, mistakes. */
#include "tenon/tenon_nn.h"
#include "tenon/tenon_io.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { T = 7, MOST = 16384 };
static tn_ctx *ctx;
static const tn_nn_lm_opts gpt2 = { .vocab = 13, .positions = 9, .width = 12, .layers = 2, .heads = 3 };
static const tn_nn_lm_opts llama = { .kind = TN_NN_LLAMA,
                                     .vocab = 13,
                                     .positions = 9,
                                     .width = 16,
                                     .layers = 2,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .hidden = 20,
                                     .rope_base = 100 };
/* As Mistral, Qwen2 and Qwen3 are, with scaled rotary positions. */
static const double rates[2] = { 0.7, 0.03 }, more_rates[3] = { 0.9, 0.2, 0.01 };
static const tn_nn_lm_opts mistral = { .kind = TN_NN_LLAMA,
                                       .vocab = 13,
                                       .positions = 9,
                                       .width = 16,
                                       .layers = 2,
                                       .heads = 4,
                                       .kv_heads = 1,
                                       .hidden = 20,
                                       .window = 3,
                                       .rope_rates = rates };
static const tn_nn_lm_opts qwen2 = { .kind = TN_NN_LLAMA,
                                     .vocab = 13,
                                     .positions = 9,
                                     .width = 16,
                                     .layers = 2,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .hidden = 20,
                                     .rope_base = 50,
                                     .tied = 1,
                                     .biases = 1 };
static const tn_nn_lm_opts qwen3 = { .kind = TN_NN_LLAMA,
                                     .vocab = 13,
                                     .positions = 9,
                                     .width = 16,
                                     .layers = 2,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .hidden = 20,
                                     .head = 6,
                                     .biases = 2,
                                     .head_norms = 1,
                                     .window = 4,
                                     .rope_rates = more_rates,
                                     .rope_scale = 1.25 };
static const tn_nn_lm_opts *const relatives[] = { &mistral, &qwen2, &qwen3 };
static const int32_t tokens[2][T] = { { 3, 12, 0, 7, 7, 1, 5 }, { 9, 2, 2, 11, 4, 0, 6 } };

static void need(tn_status s) {
    if (s) fail_msg("%s: %s", tn_status_name(s), tn_ctx_error(ctx));
}

/* Parameters far from 0 and 1, so that none of them can be left out unseen. */
static void randomise(tn_session *s, uint64_t seed) {
    rng r = rng_make(seed);
    for (int i = 0; i < tn_session_n_states(s); i++) {
        const char *name;
        tn_dtype t;
        tn_shape shape;
        static double f64[MOST];
        static float f32[MOST];
        need(tn_session_state(s, i, &name, &t, &shape));
        int64_t n = 1;
        for (int k = 0; k < shape.rank; k++) n *= shape.dim[k];
        if (!strncmp(name, "cache", 5)) continue;
        assert_true(n <= MOST);
        for (int64_t k = 0; k < n; k++) f64[k] = rng_range(&r, -0.6, 0.6), f32[k] = (float)f64[k];
        need(tn_session_set(s, name, t == TN_F64 ? (void *)f64 : (void *)f32, (size_t)n * tn_dtype_size(t)));
    }
}

/* ---- a forward pass in double ---- */

static double *get(tn_session *s, int layer, const char *name, int64_t n, double *out) {
    char full[128];
    static float raw[MOST];
    snprintf(full, sizeof full, name, layer);
    need(tn_session_get(s, full, raw, (size_t)n * sizeof *raw));
    for (int64_t i = 0; i < n; i++) out[i] = (double)raw[i];
    return out;
}
/* y[T][out] = x[T][in] w + b; across: w is [out,in]. */
static void product(const double *x, const double *w, const double *b, int64_t in, int64_t out, bool across, double *y) {
    for (int64_t t = 0; t < T; t++)
        for (int64_t j = 0; j < out; j++) {
            double sum = b ? b[j] : 0;
            for (int64_t i = 0; i < in; i++) sum += x[t * in + i] * w[across ? j * in + i : i * out + j];
            y[t * out + j] = sum;
        }
}
static void norm(const double *x, const double *w, const double *b, int64_t n, double *y) { /* b NULL: RMS */
    for (int64_t t = 0; t < T; t++) {
        double mean = 0, var = 0;
        for (int64_t i = 0; i < n && b; i++) mean += x[t * n + i] / (double)n;
        for (int64_t i = 0; i < n; i++) var += (x[t * n + i] - mean) * (x[t * n + i] - mean) / (double)n;
        for (int64_t i = 0; i < n; i++)
            y[t * n + i] = (x[t * n + i] - mean) / sqrt(var + (b ? 1e-5 : 1e-6)) * w[i] + (b ? b[i] : 0);
    }
}
static void turn(double *x, int64_t heads, int64_t d, const tn_nn_lm_opts *o) { /* rotary positions */
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < d / 2; i++) {
                double *a = &x[(t * heads + h) * d + i], *b = a + d / 2, scale = o->rope_scale > 0 ? o->rope_scale : 1;
                double rate = o->rope_rates ? o->rope_rates[i] : pow(o->rope_base, -2.0 * (double)i / (double)d);
                double c = scale * cos((double)t * rate), n = scale * sin((double)t * rate), p = *a, q = *b;
                *a = p * c - q * n, *b = q * c + p * n;
            }
}
static void attend(const double *q, const double *k, const double *v, int64_t stride_q, int64_t stride, int64_t heads,
                   int64_t shared, int64_t d, int64_t window, double *y) {
    for (int64_t h = 0; h < heads; h++)
        for (int64_t t = 0; t < T; t++) {
            double p[T], sum = 0;
            int64_t from = h / (heads / shared) * d;
            int64_t first = window && t >= window ? t - window + 1 : 0;
            for (int64_t s = first; s <= t; s++) {
                double dot = 0;
                for (int64_t i = 0; i < d; i++) dot += q[t * stride_q + h * d + i] * k[s * stride + from + i];
                sum += p[s] = exp(dot / sqrt((double)d));
            }
            for (int64_t i = 0; i < d; i++) {
                double out = 0;
                for (int64_t s = first; s <= t; s++) out += p[s] / sum * v[s * stride + from + i];
                y[t * heads * d + h * d + i] = out;
            }
        }
}
static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x))); }

static void gpt2_layer(tn_session *s, int l, double *x) {
    static double w[MOST], b[MOST], y[MOST], z[MOST];
    enum { C = 12, H = 3 };
    norm(x, get(s, l, "h.%d.ln_1.weight", C, w), get(s, l, "h.%d.ln_1.bias", C, b), C, y);
    product(y, get(s, l, "h.%d.attn.c_attn.weight", 3 * C * C, w), get(s, l, "h.%d.attn.c_attn.bias", 3 * C, b), C, 3 * C,
            false, z);
    attend(z, z + C, z + 2 * C, 3 * C, 3 * C, H, H, C / H, 0, y);
    product(y, get(s, l, "h.%d.attn.c_proj.weight", C * C, w), get(s, l, "h.%d.attn.c_proj.bias", C, b), C, C, false, z);
    for (int i = 0; i < T * C; i++) x[i] += z[i];
    norm(x, get(s, l, "h.%d.ln_2.weight", C, w), get(s, l, "h.%d.ln_2.bias", C, b), C, y);
    product(y, get(s, l, "h.%d.mlp.c_fc.weight", 4 * C * C, w), get(s, l, "h.%d.mlp.c_fc.bias", 4 * C, b), C, 4 * C, false, z);
    for (int i = 0; i < T * 4 * C; i++) z[i] = gelu(z[i]);
    product(z, get(s, l, "h.%d.mlp.c_proj.weight", 4 * C * C, w), get(s, l, "h.%d.mlp.c_proj.bias", C, b), 4 * C, C, false, y);
    for (int i = 0; i < T * C; i++) x[i] += y[i];
}
#define LAYER "model.layers.%d."
/* y[T][out] = x[T][in] times the matrix of that name, with its bias. */
static void linear(tn_session *s, int l, const char *name, const double *x, int64_t in, int64_t out, bool bias, double *y) {
    static double w[MOST], b[MOST];
    char full[128];
    snprintf(full, sizeof full, LAYER "%s.weight", l, name);
    get(s, 0, full, in * out, w);
    snprintf(full, sizeof full, LAYER "%s.bias", l, name);
    product(x, w, bias ? get(s, 0, full, out, b) : NULL, in, out, true, y);
}
/* Every row of n elements, of which there are T times `heads`. */
static void norm_heads(tn_session *s, int l, const char *name, int64_t heads, int64_t n, double *x) {
    static double w[MOST], y[MOST];
    get(s, l, name, n, w);
    for (int64_t h = 0; h < heads; h++) norm(x + h * T * n, w, NULL, n, y + h * T * n);
    memcpy(x, y, (size_t)(T * heads * n) * sizeof *x);
}
static void llama_layer(tn_session *s, const tn_nn_lm_opts *o, int l, double *x) {
    static double w[MOST], y[MOST], q[MOST], k[MOST], v[MOST];
    int64_t c = o->width, h = o->heads, g = o->kv_heads, d = o->head ? o->head : c / h, f = o->hidden;
    norm(x, get(s, l, LAYER "input_layernorm.weight", c, w), NULL, c, y);
    linear(s, l, "self_attn.q_proj", y, c, h * d, o->biases > 0, q);
    linear(s, l, "self_attn.k_proj", y, c, g * d, o->biases > 0, k);
    linear(s, l, "self_attn.v_proj", y, c, g * d, o->biases > 0, v);
    if (o->head_norms) {
        norm_heads(s, l, LAYER "self_attn.q_norm.weight", h, d, q);
        norm_heads(s, l, LAYER "self_attn.k_norm.weight", g, d, k);
    }
    turn(q, h, d, o), turn(k, g, d, o);
    attend(q, k, v, h * d, g * d, h, g, d, o->window, y);
    linear(s, l, "self_attn.o_proj", y, h * d, c, o->biases > 1, q);
    for (int i = 0; i < T * c; i++) x[i] += q[i];
    norm(x, get(s, l, LAYER "post_attention_layernorm.weight", c, w), NULL, c, y);
    linear(s, l, "mlp.gate_proj", y, c, f, false, q);
    linear(s, l, "mlp.up_proj", y, c, f, false, k);
    for (int i = 0; i < T * f; i++) q[i] *= k[i] / (1 + exp(-q[i]));
    linear(s, l, "mlp.down_proj", q, f, c, false, y);
    for (int i = 0; i < T * c; i++) x[i] += y[i];
}
static void reference(tn_session *s, const tn_nn_lm_opts *o, const int32_t *token, double *logits) {
    static double table[MOST], p[MOST], b[MOST], x[MOST], y[MOST];
    bool is_llama = o->kind == TN_NN_LLAMA;
    int64_t c = o->width;
    get(s, 0, is_llama ? "model.embed_tokens.weight" : "wte.weight", o->vocab * c, table);
    if (!is_llama) get(s, 0, "wpe.weight", o->positions * c, p);
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < c; i++) x[t * c + i] = table[token[t] * c + i] + (is_llama ? 0 : p[t * c + i]);
    for (int l = 0; l < (int)o->layers; l++) is_llama ? llama_layer(s, o, l, x) : gpt2_layer(s, l, x);
    norm(x, get(s, 0, is_llama ? "model.norm.weight" : "ln_f.weight", c, p), is_llama ? NULL : get(s, 0, "ln_f.bias", c, b), c,
         y);
    if (is_llama && !o->tied) get(s, 0, "lm_head.weight", o->vocab * c, table);
    product(y, table, NULL, c, o->vocab, true, logits);
}

/* ---- tests ---- */

static tn_session *compiled(tn_graph *g, tn_program **p) {
    tn_session *s;
    need(tn_compile(g, NULL, p));
    need(tn_session_new(*p, &s));
    return s;
}

/* Programs that read one token and three at positions 2 to 4, with one copy of the weights of `full`, and their own caches. */
static void one_copy(tn_graph *one, tn_graph *three, const tn_session *full, int32_t *tokens_of /* [2,3] */,
                     const float *want /* [2,T,13] */) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p, *q;
    tn_session *a, *b;
    float got[2][3][13];
    int64_t start = 2;
    int copied;
    o.no_panels = 1;
    need(tn_compile(one, &o, &p));
    need(tn_compile(three, &o, &q));
    need(tn_session_new(p, &a));
    assert_int_equal(tn_session_new_sharing(q, a, &b), TN_ERR_UNSUPPORTED); /* its program has the initial values */
    need(tn_session_copy_state(a, full, &copied));
    need(tn_session_new_sharing(q, a, &b));
    need(tn_session_copy_state(b, a, &copied));
    assert_int_equal(copied, tn_session_n_states(a));
    for (int round = 0; round < 2; round++) {
        memset(got, 0, sizeof got);
        need(tn_run(b, TN_BIND({ "tokens", tokens_of }, { "start", &start }, { "logits", got })));
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < 3 * 13; k++) assert_true(fabsf((&got[i][0][0])[k] - want[(i * T + 2) * 13 + k]) <= 2e-5f);
        if (!round) tn_session_free(a), tn_program_free(p); /* what is shared stays */
    }
    tn_session_free(b), tn_program_free(q);
}

static void forward(const tn_nn_lm_opts *o) {
    tn_graph *g = tn_graph_new(ctx, "lm"), *d = tn_graph_new(ctx, "decode"), *chunks = tn_graph_new(ctx, "chunks");
    tn_program *p, *q, *r;
    tn_output(tn_nn_lm(tn_input(g, "tokens", TN_I32, TN_DIMS(2, T)), *o), "logits");
    tn_session *s = compiled(g, &p);
    randomise(s, 5);
    static float got[2][T][13], step[2][13], three[2][3][13];
    static double want[T * 13];
    need(tn_run(s, TN_BIND({ "tokens", (void *)(uintptr_t)tokens }, { "logits", got })));
    for (int b = 0; b < 2; b++) {
        reference(s, o, tokens[b], want);
        for (int i = 0; i < T * 13; i++)
            if (!(fabs((double)(&got[b][0][0])[i] - want[i]) <= 2e-5))
                fail_msg("row %d, logit %d: %g, not %g", b, i, (double)(&got[b][0][0])[i], want[i]);
    }
    /* Through the cache: token by token, then in threes from position 2 on over what lies there already; the first positions
     * only. */
    tn_output(tn_nn_lm_cached(tn_input(d, "tokens", TN_I32, TN_DIMS(2, 1)), tn_input(d, "start", TN_I64, TN_SCALAR), *o),
              "logits");
    tn_nn_lm_opts near = *o;
    near.span = 6; /* of 9 positions */
    tn_output(
        tn_nn_lm_cached(tn_input(chunks, "tokens", TN_I32, TN_DIMS(2, 3)), tn_input(chunks, "start", TN_I64, TN_SCALAR), near),
        "logits");
    tn_session *one = compiled(d, &q), *more = compiled(chunks, &r);
    int copied;
    need(tn_session_copy_state(one, s, &copied));
    assert_int_equal(copied, tn_session_n_states(s));
    for (int i = 0; i < tn_session_n_states(one); i++) { /* what lies behind is not seen, whatever it is */
        const char *name;
        tn_dtype type;
        tn_shape shape;
        static float odd[MOST];
        need(tn_session_state(one, i, &name, &type, &shape));
        if (strncmp(name, "cache", 5) != 0) continue;
        for (int k = 0; k < MOST; k++) odd[k] = k % 3 ? NAN : INFINITY;
        need(tn_session_set(one, name, odd, (size_t)(shape.dim[0] * shape.dim[1] * shape.dim[2] * shape.dim[3]) * sizeof *odd));
    }
    for (int64_t t = 0; t < T; t++) {
        int32_t now[2] = { tokens[0][t], tokens[1][t] };
        need(tn_run(one, TN_BIND({ "tokens", now }, { "start", &t }, { "logits", step })));
        for (int b = 0; b < 2; b++)
            for (int i = 0; i < 13; i++)
                if (!(fabsf(step[b][i] - got[b][t][i]) <= 2e-5f))
                    fail_msg("position %d: %g, not %g", (int)t, (double)step[b][i], (double)got[b][t][i]);
    }
    need(tn_session_copy_state(more, one, &copied));
    int32_t now[2][3];
    for (int b = 0; b < 2; b++) memcpy(now[b], &tokens[b][2], sizeof now[b]);
    int64_t start = 2;
    need(tn_run(more, TN_BIND({ "tokens", now }, { "start", &start }, { "logits", three })));
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < 3 * 13; i++) assert_true(fabsf((&three[b][0][0])[i] - (&got[b][2][0])[i]) <= 2e-5f);
    tn_session_free(s), tn_session_free(more);
    tn_program_free(p), tn_program_free(r);
    one_copy(d, chunks, one, &now[0][0], &got[0][0][0]);
    tn_session_free(one), tn_program_free(q);
    tn_graph_free(g), tn_graph_free(d), tn_graph_free(chunks);
}
static void test_forward(void **state) {
    (void)state;
    tn_nn_lm_opts tied = llama;
    tied.tied = 1, tied.kv_heads = 4;
    forward(&gpt2);
    forward(&llama);
    tied.kv_heads = 2;
    forward(&tied);
    for (size_t i = 0; i < 3; i++) forward(relatives[i]);
}

/* Rates of scaled positions, each by its definition. */
static void test_rope_rates(void **state) {
    (void)state;
    enum { D = 64 };
    double r[D / 2], old = 8192, two_pi = 2 * acos(-1);
    assert_true(tn_nn_rope_rates(D, (tn_nn_rope_opts){ .base = 5e5 }, r) == 1);
    for (int i = 0; i < D / 2; i++) assert_true(fabs(r[i] / pow(5e5, -i / 32.0) - 1) < 1e-12);
    assert_true(tn_nn_rope_rates(D, (tn_nn_rope_opts){ .kind = TN_NN_ROPE_LINEAR, .factor = 4 }, r) == 1);
    for (int i = 0; i < D / 2; i++) assert_true(fabs(r[i] * 4 / pow(1e4, -i / 32.0) - 1) < 1e-12);
    tn_nn_rope_opts o = { .kind = TN_NN_ROPE_LLAMA3, .base = 5e5, .factor = 32, .positions = old };
    assert_true(tn_nn_rope_rates(D, o, r) == 1);
    for (int i = 0; i < D / 2; i++) {
        double rate = pow(5e5, -i / 32.0), wave = two_pi / rate, smooth = (old / wave - 1) / 3;
        double want = wave > old ? rate / 32 : wave < old / 4 ? rate : (1 - smooth) * rate / 32 + smooth * rate;
        assert_true(fabs(r[i] / want - 1) < 1e-12);
    }
    o = (tn_nn_rope_opts){ .kind = TN_NN_ROPE_YARN, .base = 1e6, .factor = 4, .positions = 32768 };
    assert_true(fabs(tn_nn_rope_rates(D, o, r) - (1 + 0.1 * log(4))) < 1e-12);
    double from = floor(D * log(32768 / (32 * two_pi)) / (2 * log(1e6))), to = ceil(D * log(32768 / two_pi) / (2 * log(1e6)));
    for (int i = 0; i < D / 2; i++) {
        double rate = pow(1e6, -i / 32.0), ramp = fmin(fmax((i - from) / (to - from), 0), 1);
        assert_true(fabs(r[i] / (rate / 4 * ramp + rate * (1 - ramp)) - 1) < 1e-12);
    }
    o.scale = 0.5;
    assert_true(tn_nn_rope_rates(D, o, r) == 0.5);
    const tn_nn_rope_opts wrong[] = { { .base = 1 },
                                      { .kind = TN_NN_ROPE_LINEAR },
                                      { .kind = TN_NN_ROPE_LINEAR, .factor = 0.5 },
                                      { .kind = TN_NN_ROPE_YARN, .factor = 2 },
                                      { .kind = TN_NN_ROPE_LLAMA3, .factor = 2, .positions = 9, .low = 5 },
                                      { .kind = (tn_nn_rope_kind)9, .factor = 2, .positions = 9 },
                                      { .base = NAN } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_true(tn_nn_rope_rates(D, wrong[i], r) == 0);
    assert_true(tn_nn_rope_rates(7, (tn_nn_rope_opts){ 0 }, r) == 0 && tn_nn_rope_rates(D, (tn_nn_rope_opts){ 0 }, NULL) == 0);
}

static void test_swiglu(void **state) {
    (void)state;
    tn_graph *g = tn_graph_new(ctx, "swiglu");
    tn_output(tn_nn_swiglu(tn_input(g, "x", TN_F32, TN_DIMS(T, 3)), 5, "mlp"), "y");
    tn_program *p;
    tn_session *s = compiled(g, &p);
    randomise(s, 2);
    static double w[MOST], x[T * 3], gate[T * 5], up[T * 5], want[T * 3];
    float in[T * 3], got[T * 3];
    for (int i = 0; i < T * 3; i++) x[i] = (double)(in[i] = (float)(i % 5) - 2);
    need(tn_run(s, TN_BIND({ "x", in }, { "y", got })));
    product(x, get(s, 0, "mlp/gate/w", 15, w), NULL, 3, 5, false, gate);
    product(x, get(s, 0, "mlp/up/w", 15, w), NULL, 3, 5, false, up);
    for (int i = 0; i < T * 5; i++) gate[i] *= up[i] / (1 + exp(-gate[i]));
    product(gate, get(s, 0, "mlp/down/w", 15, w), NULL, 5, 3, false, want);
    for (int i = 0; i < T * 3; i++) assert_true(fabs((double)got[i] - want[i]) < 1e-5);
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
}

/* A model in which neighbouring matrices differ: odd lengths of names have groups of 2 and 8 bits. */
static tn_nn_lm_matrix form_of(void *ud, const char *name) {
    const tn_nn_lm_matrix *f = ud;
    return strlen(name) % 2 && f->has_least > 1
               ? (tn_nn_lm_matrix){ .group = 2, .has_least = 1, .scale = f->block ? TN_F32 : f->scale }
               : *f;
}

/* Scales (or least values) of n groups of a matrix with so many columns, as f32 and as the form has them. */
typedef struct groups {
    float wide[MOST];
    uint16_t half[MOST];
    int8_t whole[MOST];
} groups;
static void draw_groups(rng *r, const tn_nn_lm_matrix *f, bool least, bool across, int64_t n, int64_t columns, groups *out) {
    int64_t each = f->block ? f->block / f->group : 1;
    for (int64_t k = 0; k < n; k++) {
        double more = f->bits == 4 && !least ? 16 : 1;
        out->wide[k] = (float)(least ? rng_range(r, -0.2, 0.2) : rng_range(r, 0.001, 0.005) * more);
        out->whole[k] = (int8_t)rng_between(r, least ? -20 : 5, 20);
        out->half[k] =
            (uint16_t)(least ? rng_below(r, 2) << 15 | rng_between(r, 0x2400, 0x3266) : rng_between(r, 0x1418, 0x1d1e));
        if (more > 1) out->half[k] = (uint16_t)(out->half[k] + 0x1000); /* exponents */
        if (f->block) out->half[k] = (uint16_t)(out->half[k] - 0x1000);
    }
    for (int64_t k = 0; k < n && f->scale != TN_F32; k++) {
        int64_t at = across ? k / each : k / columns / each * columns + k % columns;
        need(tn_io_to_f32(ctx, TN_F16, &out->half[at], 1, &out->wide[k]));
        if (f->block) out->wide[k] *= (float)out->whole[k];
    }
}
static void set_groups(tn_session *s, const tn_nn_lm_matrix *f, const char *name, const char *what, int64_t n,
                       const groups *x) {
    char part[128];
    int64_t halves = f->block ? n * f->group / f->block : n;
    snprintf(part, sizeof part, "%s_%s%s", name, what, f->block ? "_of" : "");
    if (f->scale == TN_F32)
        need(tn_session_set(s, part, x->wide, (size_t)n * sizeof *x->wide));
    else
        need(tn_session_set(s, part, x->half, (size_t)halves * sizeof *x->half));
    snprintf(part, sizeof part, "%s_%s", name, what);
    if (f->block) need(tn_session_set(s, part, x->whole, (size_t)n));
}

/* Weights of 8 or 4 bits by groups: the logits of the weights that they stand for. least: with least values; 2: and matrices
 * differ. scales: how these and scales lie. */
static void quantised(tn_nn_lm_opts o, int bits_of_all, int with_least, tn_dtype scales) {
    tn_nn_lm_matrix all = { .group = 4, .bits = bits_of_all, .has_least = with_least, .scale = scales };
    if (scales == TN_I8) all.block = o.width % 8 ? 12 : 4, all.group = o.width % 8 ? 4 : 2;
    tn_graph *g = tn_graph_new(ctx, "narrow"), *h = tn_graph_new(ctx, "wide");
    tn_output(tn_nn_lm(tn_input(h, "tokens", TN_I32, TN_DIMS(2, T)), o), "logits");
    if (with_least || scales)
        o.matrix = form_of, o.matrix_ud = &all, o.given = with_least > 1;
    else
        o.group = 4, o.bits = bits_of_all;
    tn_output(tn_nn_lm(tn_input(g, "tokens", TN_I32, TN_DIMS(2, T)), o), "logits");
    tn_program *p, *q;
    tn_session *narrow = compiled(g, &p), *full = compiled(h, &q);
    randomise(full, 3);
    static float w[MOST], got[2][T][13], want[2][T][13];
    static groups scale, least;
    static int8_t n[MOST];
    rng r = rng_make(6);
    int matrices = 0;
    for (int i = 0; i < tn_session_n_states(full); i++) {
        const char *name;
        tn_dtype t, narrow_t = TN_F32;
        tn_shape shape, other_shape;
        need(tn_session_state(full, i, &name, &t, &shape));
        for (int k = 0; k < tn_session_n_states(narrow); k++) {
            const char *other;
            need(tn_session_state(narrow, k, &other, &t, &other_shape));
            if (!strcmp(other, name)) narrow_t = t;
        }
        int64_t count = shape.dim[0] * (shape.rank > 1 ? shape.dim[1] : 1);
        need(tn_session_get(full, name, w, (size_t)count * sizeof *w));
        if (narrow_t == TN_F32) {
            need(tn_session_set(narrow, name, w, (size_t)count * sizeof *w));
            continue;
        }
        tn_nn_lm_matrix f = o.matrix ? form_of(&all, name) : all;
        int64_t group = f.group, below = f.bits == 4 ? f.has_least ? 0 : -8 : -127;
        bool across = o.kind == TN_NN_LLAMA || !strcmp(name, "wte.weight");
        draw_groups(&r, &f, false, across, count / group, shape.dim[1], &scale);
        draw_groups(&r, &f, true, across, count / group, shape.dim[1], &least);
        for (int64_t k = 0; k < count; k++) {
            int64_t row = k / shape.dim[1], column = k % shape.dim[1];
            int64_t at = across ? k / group : row / group * shape.dim[1] + column;
            n[k] = (int8_t)rng_between(&r, below, f.bits == 4 ? below + 15 : 127);
            w[k] = (float)n[k] * scale.wide[at] + (f.has_least ? least.wide[at] : 0);
        }
        int64_t apart = (across ? 1 : shape.dim[1]) * group / 2, pairs = f.bits == 4 ? count / 2 : 0; /* halves of a group */
        for (int64_t k = 0; k < pairs; k++) {
            int64_t low = k / apart * 2 * apart + k % apart;
            n[k] = (int8_t)(uint8_t)((n[low] - below) | (n[low + apart] - below) << 4);
        }
        need(tn_session_set(narrow, name, n, (size_t)(f.bits == 4 ? count / 2 : count)));
        set_groups(narrow, &f, name, "scale", count / group, &scale);
        if (f.has_least) set_groups(narrow, &f, name, "least", count / group, &least);
        need(tn_session_set(full, name, w, (size_t)count * sizeof *w));
        matrices++;
    }
    void *tok = (void *)(uintptr_t)tokens;
    need(tn_run(narrow, TN_BIND({ "tokens", tok }, { "logits", got })));
    need(tn_run(full, TN_BIND({ "tokens", tok }, { "logits", want })));
    assert_true(matrices > 8);
    for (int i = 0; i < 2 * T * 13; i++)
        if (!(fabsf((&got[0][0][0])[i] - (&want[0][0][0])[i]) <= 2e-5f))
            fail_msg("logit %d: %g, not %g", i, (double)(&got[0][0][0])[i], (double)(&want[0][0][0])[i]);
    tn_session_free(narrow), tn_session_free(full), tn_program_free(p), tn_program_free(q);
    tn_graph_free(g), tn_graph_free(h);
}
static void test_quantised(void **state) {
    (void)state;
    static const tn_dtype scales[] = { TN_F32, TN_F16, TN_I8 };
    for (int least = 0; least < 3; least++)
        for (int i = 0; i < 3; i++) {
            quantised(gpt2, 8, least, scales[i]), quantised(gpt2, 4, least, scales[i]);
            quantised(llama, 8, least, scales[i]), quantised(llama, 4, least, scales[i]);
        }
    for (size_t i = 0; i < 3; i++) quantised(*relatives[i], i % 2 ? 4 : 8, (int)i % 2, scales[i]);
}

/* Forms of matrices that there are not. */
static void test_bad_forms(void **state) {
    (void)state;
    static const tn_nn_lm_matrix wrong[] = {
        { .scale = TN_F16 },                         /* without groups */
        { .group = 4, .scale = TN_BF16 },            /* .. of another type */
        { .group = 4, .scale = TN_I8 },              /* .. times nothing */
        { .group = 4, .scale = TN_F16, .block = 8 }, /* blocks of scales that are no whole numbers */
        { .group = 4, .scale = TN_I8, .block = 6 },  /* of no whole groups */
        { .group = 4, .scale = TN_I8, .block = 32 }, /* that do not divide 16 inputs */
        { .group = 4, .bits = 3 },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tn_graph *g = tn_graph_new(ctx, "wrong");
        tn_nn_lm_opts o = llama;
        o.matrix = form_of, o.matrix_ud = (void *)(uintptr_t)&wrong[i];
        tn_output(tn_nn_lm(tn_input(g, "tokens", TN_I32, TN_DIMS(2, T)), o), "logits");
        assert_int_equal(tn_graph_status(g), TN_ERR_INVAL);
        tn_graph_free(g);
    }
}

/* Weights of 16 bits: the logits of a model of f32 that has the same values; no gradients. */
static void halved(tn_nn_lm_opts o, tn_dtype t) {
    tn_program *p[2];
    tn_session *s[2];
    static uint16_t bits[MOST];
    static float wide[MOST], got[2][2][T][13];
    rng r = rng_make(17);
    for (int k = 0; k < 2; k++) {
        tn_graph *g = tn_graph_new(ctx, "halves");
        o.weights = k ? t : TN_F32;
        tn_output(tn_nn_lm(tn_input(g, "tokens", TN_I32, TN_DIMS(2, T)), o), "logits");
        if (k) assert_true(tn_graph_n_params(g) < tn_graph_n_states(g));
        s[k] = compiled(g, &p[k]);
        tn_graph_free(g);
    }
    int narrow = 0;
    for (int i = 0; i < tn_session_n_states(s[1]); i++) {
        const char *name;
        tn_dtype own;
        tn_shape shape;
        need(tn_session_state(s[1], i, &name, &own, &shape));
        size_t n = (size_t)(shape.dim[0] * (shape.rank > 1 ? shape.dim[1] : 1));
        assert_true(own == (shape.rank == 2 && strcmp(name, "wpe.weight") != 0 ? t : TN_F32) && n <= MOST);
        for (size_t k = 0; k < n; k++) /* between 2^-6 and 1, either sign */
            bits[k] = (uint16_t)(rng_below(&r, 2) << 15 |
                                 (t == TN_F16 ? rng_between(&r, 0x2400, 0x3bff) : rng_between(&r, 0x3c80, 0x3f7f)));
        for (size_t k = 0; k < n && own == TN_F32; k++) wide[k] = (float)rng_range(&r, -1, 1);
        if (own == t) need(tn_io_to_f32(ctx, t, bits, n, wide));
        need(tn_session_set(s[1], name, own == t ? (void *)bits : (void *)wide, n * tn_dtype_size(own)));
        need(tn_session_set(s[0], name, wide, n * sizeof *wide));
        narrow += own == t;
    }
    assert_true(narrow > 8);
    for (int k = 0; k < 2; k++) need(tn_run(s[k], TN_BIND({ "tokens", (void *)(uintptr_t)tokens }, { "logits", got[k] })));
    for (int i = 0; i < 2 * T * 13; i++)
        if (!(fabsf((&got[0][0][0][0])[i] - (&got[1][0][0][0])[i]) <= 1e-4f * (1 + fabsf((&got[0][0][0][0])[i]))))
            fail_msg("%s, logit %d: %g, not %g", tn_dtype_name(t), i, (double)(&got[1][0][0][0])[i],
                     (double)(&got[0][0][0][0])[i]);
    for (int k = 0; k < 2; k++) tn_session_free(s[k]), tn_program_free(p[k]);
}
static void test_halves(void **state) {
    (void)state;
    halved(gpt2, TN_BF16), halved(gpt2, TN_F16);
    halved(llama, TN_BF16), halved(llama, TN_F16);
    for (size_t i = 0; i < 3; i++) halved(*relatives[i], i % 2 ? TN_F16 : TN_BF16);
}

/* Gradients of the loss by some elements of every parameter against differences, in double. */
static void gradients(tn_nn_lm_opts o) {
    o.dtype = TN_F64;
    tn_graph *g = tn_graph_new(ctx, "lm");
    tn_tensor x = tn_input(g, "x", TN_I32, TN_DIMS(2, T)), y = tn_input(g, "y", TN_I32, TN_DIMS(2, T)), grads[64], params[64];
    tn_tensor loss = tn_nn_cross_entropy(tn_nn_lm(x, o), y);
    int n = tn_graph_n_params(g);
    assert_true(n > 10 && n <= 64);
    for (int i = 0; i < n; i++) params[i] = tn_graph_param(g, i);
    need(tn_grad(loss, params, n, grads));
    tn_output(loss, "loss");
    char names[64][8];
    for (int i = 0; i < n; i++) snprintf(names[i], sizeof names[i], "g%d", i), tn_output(grads[i], names[i]);
    tn_program *p;
    tn_session *s = compiled(g, &p);
    randomise(s, 9);
    static double grad[MOST], value[MOST];
    double up, down;
    void *tok = (void *)(uintptr_t)tokens;
    for (int i = 0; i < n; i++) {
        size_t bytes = tn_tensor_bytes(params[i]);
        const char *name = tn_tensor_name(params[i]);
        need(tn_run(s, TN_BIND({ "x", tok }, { "y", tok }, { names[i], grad })));
        need(tn_session_get(s, name, value, bytes));
        for (size_t k = 1; k < bytes / 8; k += bytes / 16) {
            double old = value[k], h = 1e-5;
            value[k] = old + h;
            need(tn_session_set(s, name, value, bytes));
            need(tn_run(s, TN_BIND({ "x", tok }, { "y", tok }, { "loss", &up })));
            value[k] = old - h;
            need(tn_session_set(s, name, value, bytes));
            need(tn_run(s, TN_BIND({ "x", tok }, { "y", tok }, { "loss", &down })));
            value[k] = old;
            need(tn_session_set(s, name, value, bytes));
            double want = (up - down) / (2 * h);
            if (!(fabs(grad[k] - want) <= 1e-6 * (1 + fabs(want)))) fail_msg("%s[%zu]: %g, not %g", name, k, grad[k], want);
        }
    }
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
}
static void test_gradients(void **state) {
    (void)state;
    gradients(gpt2);
    gradients(llama);
    for (size_t i = 0; i < 3; i++) gradients(*relatives[i]);
}

/* Sizes at which recipes choose other schedules than for small ones; weights [out,in] are updated across their gradients. */
static void test_learns(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        tn_nn_lm_opts o = { .kind = kind ? TN_NN_LLAMA : TN_NN_GPT2,
                            .vocab = 65,
                            .positions = 64,
                            .width = 128,
                            .layers = 1,
                            .heads = 4,
                            .dropout = 0.1 };
        tn_graph *g = tn_graph_new(ctx, "lm");
        tn_tensor x = tn_input(g, "x", TN_I32, TN_DIMS(4, 64)), y = tn_input(g, "y", TN_I32, TN_DIMS(4, 64));
        o.counter = tn_nn_counter(g, "runs");
        tn_tensor loss = tn_nn_cross_entropy(tn_nn_lm(x, o), y);
        tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 1e-3, .decoupled = 1, .weight_decay = 0.1 });
        tn_output(loss, "loss");
        int32_t token[4 * 64 + 1];
        for (int i = 0; i < 4 * 64 + 1; i++) token[i] = (i * 7 + i * i / 5) % 65;
        tn_program *p;
        tn_session *s = compiled(g, &p);
        float first, last = 0;
        need(tn_run(s, TN_BIND({ "x", token }, { "y", token + 1 }, { "loss", &first })));
        for (int i = 0; i < 15; i++) need(tn_run(s, TN_BIND({ "x", token }, { "y", token + 1 }, { "loss", &last })));
        if (!(fabsf(first - logf(65)) < 0.2f && last < first - 0.5f)) fail_msg("loss %g, then %g", (double)first, (double)last);
        tn_session_free(s), tn_program_free(p), tn_graph_free(g);
    }
}

static void test_wrong(void **state) {
    (void)state;
    static const struct {
        tn_nn_lm_opts o;
        int64_t t;
        const char *word;
    } wrong[] = {
        { { .vocab = 5, .positions = 4, .width = 6, .layers = 1, .heads = 2 },
          5,
          "5 tokens in a row; the model has 4 positions" },
        { { .vocab = 5, .positions = 4, .width = 6, .layers = 1, .heads = 4 }, 2, "heads divides width" },
        { { .vocab = 0, .positions = 4, .width = 6, .layers = 1, .heads = 2 }, 2, "vocab 0" },
        { { .vocab = 5, .positions = 4, .width = 6, .layers = 1, .heads = 2, .kv_heads = 1 }, 2, "as many of both" },
        { { .kind = TN_NN_LLAMA, .vocab = 5, .positions = 4, .width = 6, .layers = 1, .heads = 2 }, 2, "even width" },
        { { .vocab = 5, .positions = 4, .width = 6, .layers = 1, .heads = 2, .dropout = 0.1 }, 2, "not a tensor" },
        { { .vocab = 5, .positions = 4, .width = 6, .layers = 1, .heads = 2, .window = 2 }, 2, "GPT-2 has none of these" },
        { { .kind = TN_NN_LLAMA, .vocab = 5, .positions = 4, .width = 8, .layers = 1, .heads = 2, .window = -2 },
          2,
          "window -2" },
        { { .kind = TN_NN_LLAMA, .vocab = 5, .positions = 4, .width = 8, .layers = 1, .heads = 2, .head = 3 },
          2,
          "even width" },
        { { .kind = TN_NN_LLAMA, .vocab = 5, .positions = 4, .width = 8, .layers = 1, .heads = 2, .biases = 3 },
          2,
          "biases 3" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tn_graph *g = tn_graph_new(ctx, "wrong");
        tn_nn_lm(tn_input(g, "tokens", TN_I32, TN_DIMS(1, wrong[i].t)), wrong[i].o);
        assert_int_not_equal(tn_graph_status(g), TN_OK);
        if (!strstr(tn_ctx_error(ctx), wrong[i].word)) fail_msg("\"%s\" is not in: %s", wrong[i].word, tn_ctx_error(ctx));
        tn_graph_free(g);
    }
    tn_graph *g = tn_graph_new(ctx, "wrong");
    tn_tensor tok = tn_input(g, "tokens", TN_I32, TN_DIMS(1, 2)), start = tn_input(g, "start", TN_I32, TN_SCALAR);
    tn_nn_lm_cached(tok, start, gpt2);
    assert_non_null(strstr(tn_ctx_error(ctx), "expected start i64[]"));
    tn_graph_free(g);
    const int64_t spans[] = { -1, 3, 4, gpt2.positions, gpt2.positions + 1 };
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
        int64_t span = spans[i];
        tn_nn_lm_opts near = gpt2;
        near.span = span;
        g = tn_graph_new(ctx, "span");
        tok = tn_input(g, "tokens", TN_I32, TN_DIMS(1, 4)), start = tn_input(g, "start", TN_I64, TN_SCALAR);
        tn_nn_lm_cached(tok, start, near);
        bool wrong = span < 4 || span > gpt2.positions;
        if (wrong != (tn_graph_status(g) != TN_OK)) fail_msg("a span of %d: %s", (int)span, tn_ctx_error(ctx));
        if (wrong) assert_non_null(strstr(tn_ctx_error(ctx), "positions: expected at least 4 tokens"));
        tn_graph_free(g);
    }
}

static int open_ctx(void **state) {
    (void)state;
    return !(ctx = test_ctx());
}
static int close_ctx(void **state) {
    (void)state;
    tn_ctx_free(ctx);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_forward),   cmocka_unit_test(test_rope_rates),
                                        cmocka_unit_test(test_swiglu),    cmocka_unit_test(test_quantised),
                                        cmocka_unit_test(test_bad_forms), cmocka_unit_test(test_halves),
                                        cmocka_unit_test(test_gradients), cmocka_unit_test(test_learns),
                                        cmocka_unit_test(test_wrong) };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
