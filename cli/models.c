/* models.c - graphs by name: files, stdin and the builtin models. Parameters are states with seeded random values. */
#include "cli.h"
#include "tenon/tenon_onnx.h"
#include "tenon/tenon_nn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void draw(float *to, int64_t n, double scale, uint64_t *seed) {
    for (int64_t i = 0; i < n; i++) to[i] = (float)(scale * (2 * random_unit(seed) - 1));
}

/* Weights are data, and drawing random numbers takes longer than compiling what uses them: a small model that is built again
 * has the same ones. */
enum { MOST_KEPT = 1 << 16 };
typedef struct drawn {
    uint64_t from, to; /* seed before and after */
    double scale;
    int64_t n;
    struct drawn *next;
    float v[];
} drawn;

static const float *draw_once(int64_t n, double scale, uint64_t *seed) {
    static drawn *all;
    drawn *d = all;
    while (d && (d->from != *seed || d->n != n || memcmp(&d->scale, &scale, sizeof scale) != 0)) d = d->next;
    if (!d) {
        d = cli_alloc(sizeof *d + (size_t)n * sizeof *d->v);
        *d = (drawn){ *seed, *seed, scale, n, all };
        draw(d->v, n, scale, &d->to);
        all = d;
    }
    *seed = d->to;
    return d->v;
}

static tn_tensor random_state(tn_graph *g, const char *name, tn_shape shape, double scale, uint64_t *seed) {
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.dim[i];
    if (n <= MOST_KEPT) return tn_state(g, name, TN_F32, shape, draw_once(n, scale, seed));
    value v = value_new(TN_F32, shape);
    draw(v.data, n, scale, seed);
    tn_tensor x = tn_state(g, name, TN_F32, shape, v.data);
    value_free(&v);
    return x;
}

/* y = x w + b with Var(w) = gain / inputs, so that a random network neither explodes nor fades. */
static tn_tensor linear(tn_tensor x, int64_t n, double gain, const char *name, uint64_t *seed) {
    int64_t k = tn_tensor_shape(x).dim[1];
    char *w_name = cli_format("%s.weight", name), *b_name = cli_format("%s.bias", name);
    tn_tensor w = random_state(x.graph, w_name, TN_DIMS(k, n), sqrt(3 * gain / (double)(k ? k : 1)), seed);
    tn_tensor b = random_state(x.graph, b_name, TN_DIMS(n), 0.1, seed);
    free(w_name);
    free(b_name);
    return tn_label(tn_add(tn_matmul(x, w), b), name);
}

static tn_tensor softmax(tn_tensor x) {
    tn_tensor e = tn_exp(tn_sub(x, tn_reduce_max(x, TN_INTS(-1), 1)));
    return tn_label(tn_div(e, tn_sum(e, TN_INTS(-1), 1)), "softmax");
}

/* depth nodes: the first is Linear, the last softmax; 36 of 64 are Linear, the others ReLU, in seeded random order. */
char *model_mlp_layers(int64_t depth, uint64_t seed) {
    int64_t n = depth - 1, n_linear = (36 * depth + 32) / 64;
    if (n_linear > n) n_linear = n;
    if (n_linear < 1) n_linear = 1;
    char *layers = cli_alloc((size_t)n + 1);
    for (int64_t i = 0; i < n; i++) layers[i] = i < n_linear ? 'L' : 'R';
    uint64_t order = seed;
    for (int64_t i = n - 1; i > 1; i--) { /* Fisher-Yates over 1..n-1: node 0 stays Linear */
        int64_t k = 1 + (int64_t)(random_next(&order) % (uint64_t)i);
        char t = layers[i];
        layers[i] = layers[k];
        layers[k] = t;
    }
    return layers;
}

tn_graph *model_mlp(cli *c, int64_t depth, int64_t width, int64_t batch, uint64_t seed, int64_t *out_linear,
                    int64_t *out_relu) {
    char *layers = model_mlp_layers(depth, seed);
    int64_t n = depth - 1, n_linear = 0;
    uint64_t weights = seed ^ 0xabcdef;
    tn_graph *g = tn_graph_new(cli_ctx(c), "mlp");
    if (!g) cli_fail(c, "out of memory");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch, width));
    for (int64_t i = 0; i < n; i++) {
        bool is_linear = layers[i] == 'L';
        n_linear += is_linear;
        char *name = cli_format("%s%lld", is_linear ? "linear" : "relu", (long long)i);
        /* a ReLU before it halves the mean square: twice the gain makes up for that */
        x = is_linear ? linear(x, width, i && layers[i - 1] == 'R' ? 2 : 1, name, &weights) : tn_label(tn_relu(x), name);
        free(name);
    }
    tn_output(softmax(x), "y");
    free(layers);
    if (out_linear) *out_linear = n_linear;
    if (out_relu) *out_relu = n - n_linear;
    return g;
}

typedef void (*build_fn)(tn_graph *g, const int64_t *size, uint64_t seed);

static void build_linear(tn_graph *g, const int64_t *size, uint64_t seed) {
    tn_output(linear(tn_input(g, "x", TN_F32, TN_DIMS(size[0], size[2])), size[1], 1, "linear", &seed), "y");
}
static void build_matmul(tn_graph *g, const int64_t *size, uint64_t seed) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(size[0], size[2]));
    tn_output(tn_relu(linear(x, size[1], 1, "linear", &seed)), "y");
}
/* Both operands given in every run, as they are or (n, t) as their transposes. */
static void build_product(tn_graph *g, const int64_t *size, bool x_transposed, bool w_transposed) {
    int64_t m = size[0], n = size[1], k = size[2];
    tn_tensor x = tn_input(g, "x", TN_F32, x_transposed ? TN_DIMS(k, m) : TN_DIMS(m, k)),
              w = tn_input(g, "w", TN_F32, w_transposed ? TN_DIMS(n, k) : TN_DIMS(k, n));
    tn_output(tn_matmul(x_transposed ? tn_transpose(x, 0, 1) : x, w_transposed ? tn_transpose(w, 0, 1) : w), "y");
}
static void build_product_nn(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    build_product(g, size, false, false);
}
static void build_product_nt(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    build_product(g, size, false, true);
}
static void build_product_tn(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    build_product(g, size, true, false);
}
static void build_linear_softmax(tn_graph *g, const int64_t *size, uint64_t seed) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(size[0], size[2]));
    tn_output(softmax(tn_relu(linear(x, size[1], 1, "linear", &seed))), "y");
}
static void build_relu(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    tn_output(tn_relu(tn_input(g, "x", TN_F32, TN_DIMS(size[0], size[1]))), "y");
}
static void build_softmax(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    tn_output(softmax(tn_input(g, "x", TN_F32, TN_DIMS(size[0], size[1]))), "y");
}
static void build_layernorm(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    tn_output(tn_nn_layer_norm(tn_input(g, "x", TN_F32, TN_DIMS(size[0], size[1])), 0, "norm"), "y");
}
static void build_conv(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(size[0], size[1], size[2], size[3]));
    tn_output(tn_relu(tn_nn_conv2d(x, (tn_nn_conv_opts){ .out_channels = size[4], .kernel = { 3 }, .padding = { 1 } }, "conv")),
              "y");
}
static void build_conv1d(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(size[0], size[1], size[2]));
    tn_output(tn_nn_conv1d(x, (tn_nn_conv_opts){ .out_channels = size[3], .kernel = { size[4] } }, "conv"), "y");
}
static void build_maxpool(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(size[0], size[1], size[2], size[3]));
    tn_output(tn_nn_max_pool(x, (tn_nn_pool_opts){ .kernel = { 2 } }), "y");
}
static void build_fractional_pool(tn_graph *g, const int64_t *size, uint64_t seed) {
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(size[0], size[1], size[1], size[2]));
    tn_output(tn_nn_fractional_max_pool(x, (tn_nn_fractional_pool_opts){ .out = { size[3], size[3] }, .seed = seed }), "y");
}
static void build_attention(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    tn_shape shape = TN_DIMS(size[0], size[1], size[2]);
    tn_tensor q = tn_input(g, "q", TN_F32, shape), k = tn_input(g, "k", TN_F32, shape), v = tn_input(g, "v", TN_F32, shape);
    tn_output(tn_nn_attention(q, k, v, 1), "y");
}

/* The network of examples/digits.c: 8 x 8 grey images to 10 classes. */
tn_tensor model_digits(tn_tensor x) {
    int64_t n = tn_tensor_shape(x).dim[0];
    x = tn_relu(tn_nn_conv2d(x, (tn_nn_conv_opts){ .out_channels = 16, .kernel = { 3 }, .padding = { 1 } }, "conv1"));
    x = tn_relu(tn_nn_conv2d(x, (tn_nn_conv_opts){ .out_channels = 32, .kernel = { 3 }, .padding = { 1 } }, "conv2"));
    x = tn_nn_max_pool(x, (tn_nn_pool_opts){ .kernel = { 2 } });
    x = tn_reshape(x, TN_DIMS(n, 4 * 4 * 32));
    x = tn_relu(tn_nn_linear(x, 64, "fc1"));
    return tn_nn_linear(x, 10, "fc2");
}
static void build_cnn(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(size[0], 8, 8, 1));
    tn_output(tn_nn_softmax(model_digits(x), -1), "p");
}
static void build_digits_train(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(size[0], 8, 8, 1)), t = tn_input(g, "t", TN_I32, TN_DIMS(size[0]));
    tn_tensor loss = tn_nn_cross_entropy(model_digits(x), t);
    tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 2e-3 });
    tn_output(loss, "loss");
}

/* 784-512-512-10, the size of networks for handwritten digits of 28 x 28 pixels. */
tn_tensor model_classifier(tn_tensor x) {
    x = tn_relu(tn_nn_linear(x, 512, "fc1"));
    x = tn_relu(tn_nn_linear(x, 512, "fc2"));
    return tn_nn_linear(x, 10, "fc3");
}
static void build_classifier_train(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(size[0], 784)), t = tn_input(g, "t", TN_I32, TN_DIMS(size[0]));
    tn_tensor loss = tn_nn_cross_entropy(model_classifier(x), t);
    tn_nn_sgd(loss, (tn_nn_sgd_opts){ .lr = 0.01 });
    tn_output(loss, "loss");
}

enum { MAX_SIZES = 5 };
/* The network of examples/gpt.c: a transformer over bytes, heads of 32 features. */
static void build_gpt_train(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    tn_shape shape = TN_DIMS(size[0], size[1]);
    tn_nn_lm_opts o = { .vocab = 256, .positions = size[1], .width = size[2], .layers = size[3] };
    o.heads = size[2] > 32 ? size[2] / 32 : 1;
    tn_tensor x = tn_input(g, "x", TN_I32, shape), y = tn_input(g, "y", TN_I32, shape);
    tn_tensor loss = tn_nn_cross_entropy(tn_nn_lm(x, o), y);
    tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 1e-3, .beta2 = 0.99, .weight_decay = 0.1, .decoupled = 1, .decay_rank = 2 });
    tn_output(loss, "loss");
}

/* GPT-2 as it is trained: computed in bf16, parameters f32, heads of 64 features. */
static void build_gpt2_train(tn_graph *g, const int64_t *size, uint64_t seed) {
    (void)seed;
    tn_shape shape = TN_DIMS(size[0], size[1]);
    tn_nn_lm_opts o = { .vocab = size[4], .positions = size[1], .width = size[2], .layers = size[3], .dtype = TN_BF16 };
    o.heads = size[2] > 64 ? size[2] / 64 : 1;
    tn_tensor x = tn_input(g, "x", TN_I32, shape), y = tn_input(g, "y", TN_I32, shape);
    tn_tensor loss = tn_nn_cross_entropy(tn_cast(tn_nn_lm(x, o), TN_F32), y);
    tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 6e-4, .beta2 = 0.95, .weight_decay = 0.1, .decoupled = 1, .decay_rank = 2 });
    tn_output(loss, "loss");
}

typedef struct builtin {
    model about;
    int n_sizes;
    int64_t defaults[MAX_SIZES];
    build_fn build;
} builtin;

static const builtin builtins[] = {
    { { "mlp", "8x64x64", "depth x width x batch (default: the width): random Linear and ReLU layers ending in softmax" },
      3,
      { 8, 64, 0 },
      NULL },
    { { "linear", "64x64x64", "m x n x k: x w + b" }, 3, { 64, 64, 64 }, build_linear },
    { { "matmul", "64x64x64", "m x n x k: relu(x w + b)" }, 3, { 64, 64, 64 }, build_matmul },
    { { "product", "64x64x64", "m x n x k: x w, both given in every run" }, 3, { 64, 64, 64 }, build_product_nn },
    { { "product_nt", "64x64x64", "the same, w given as its transpose" }, 3, { 64, 64, 64 }, build_product_nt },
    { { "product_tn", "64x64x64", "the same, x given as its transpose" }, 3, { 64, 64, 64 }, build_product_tn },
    { { "linear_softmax", "64x64x64", "m x n x k: softmax(relu(x w + b))" }, 3, { 64, 64, 64 }, build_linear_softmax },
    { { "relu", "64x64", "rows x columns" }, 2, { 64, 64 }, build_relu },
    { { "softmax", "64x64", "rows x columns, over rows" }, 2, { 64, 64 }, build_softmax },
    { { "layernorm", "64x64", "rows x columns, over rows, with scale and shift" }, 2, { 64, 64 }, build_layernorm },
    { { "conv", "4x8x8x8x16", "batch x height x width x channels x output channels: 3 x 3 convolution, padding 1, ReLU" },
      5,
      { 4, 8, 8, 8, 16 },
      build_conv },
    { { "conv1d", "1x4096x1x1x32", "batch x length x channels x output channels x taps: a signal and its filters" },
      5,
      { 1, 4096, 1, 1, 32 },
      build_conv1d },
    { { "maxpool", "4x8x8x8", "batch x height x width x channels: 2 x 2 max pool" }, 4, { 4, 8, 8, 8 }, build_maxpool },
    { { "fractional_pool", "4x25x8x17", "batch x height and width x channels x positions: fractional max pool" },
      4,
      { 4, 25, 8, 17 },
      build_fractional_pool },
    { { "attention", "2x16x32", "batch x positions x features: causal attention" }, 3, { 2, 16, 32 }, build_attention },
    { { "cnn", "32", "batch: the digits network (conv 16, conv 32, max pool, linear 64, linear 10, softmax)" },
      1,
      { 32 },
      build_cnn },
    { { "digits", "32", "the same as cnn" }, 1, { 32 }, build_cnn },
    { { "digits-train", "64", "batch: one training step of that network (cross-entropy, Adam)" },
      1,
      { 64 },
      build_digits_train },
    { { "classifier-train", "64", "batch: one training step of a 784-512-512-10 network (cross-entropy, SGD)" },
      1,
      { 64 },
      build_classifier_train },
    { { "gpt-train", "12x64x128x4", "batch x positions x width x layers: one training step of a GPT over bytes (AdamW)" },
      4,
      { 12, 64, 128, 4 },
      build_gpt_train },
    { { "gpt2-train", "2x32x128x1x512",
        "batch x positions x width x layers x tokens: a training step of a GPT-2 in bf16 (AdamW)" },
      5,
      { 2, 32, 128, 1, 512 },
      build_gpt2_train },
};

const model *model_table(int *out_n) {
    static model table[COUNT_OF(builtins)];
    for (size_t i = 0; i < COUNT_OF(builtins); i++) table[i] = builtins[i].about;
    *out_n = COUNT_OF(builtins);
    return table;
}

/* "64x256" into size[], which has the defaults. Returns how many were given. */
static int parse_sizes(cli *c, const char *spec, const char *text, const builtin *b, int64_t *size) {
    int n = 0;
    for (const char *s = text; s; n++) {
        char *end;
        long long v = strtoll(s, &end, 10);
        if (end == s || v < 0 || v > 1 << 24 || (*end && *end != 'x'))
            cli_usage(c, "%s: expected sizes such as @%s:%s", spec, b->about.name, b->about.sizes);
        if (n == b->n_sizes) cli_usage(c, "%s: more than %d sizes (@%s:%s)", spec, b->n_sizes, b->about.name, b->about.sizes);
        size[n] = v;
        s = *end ? end + 1 : NULL;
    }
    return n;
}

static const builtin *find_builtin(cli *c, const char *spec, int64_t size[MAX_SIZES]) {
    size_t len = strcspn(spec + 1, ":");
    const builtin *b = NULL;
    for (size_t i = 0; i < COUNT_OF(builtins) && !b; i++) {
        if (strlen(builtins[i].about.name) == len && !memcmp(builtins[i].about.name, spec + 1, len)) b = &builtins[i];
    }
    if (!b) cli_usage(c, "there is no model %s (`tenon help models`)", spec);
    memcpy(size, b->defaults, sizeof b->defaults);
    parse_sizes(c, spec, spec[1 + len] ? spec + 2 + len : NULL, b, size);
    return b;
}

/* The name of a builtin model at another batch. */
static char *builtin_batch(cli *c, const char *spec, int64_t batch) {
    int64_t size[MAX_SIZES];
    const builtin *b = find_builtin(c, spec, size);
    size[b->build ? 0 : 2] = batch; /* the first size of all but @mlp */
    char *text = cli_format("@%s:", b->about.name);
    for (int i = 0; i < b->n_sizes; i++) {
        char *more = cli_format("%s%s%lld", text, i ? "x" : "", (long long)size[i]);
        free(text);
        text = more;
    }
    return text;
}

/* Which sizes of a model may be padded, and what else it is called where operands lie otherwise. */
typedef struct laid_out {
    const char *name;
    bool padded[MAX_SIZES];
    model_layout transposed[2];
} laid_out;
static const laid_out layouts[] = {
    { "product", { true, true, true }, { { "w transposed", "product_nt" }, { "x transposed", "product_tn" } } },
    { "linear", { true, true, true }, { { NULL, NULL } } },
    { "matmul", { true, true, true }, { { NULL, NULL } } },
    { "conv1d", { false, true, false, true, false }, { { NULL, NULL } } },
};

static char *spec_of(const char *name, const int64_t *size, int n) {
    char *spec = cli_format("@%s:", name);
    for (int i = 0; i < n; i++) {
        char *more = cli_format("%s%s%lld", spec, i ? "x" : "", (long long)size[i]);
        free(spec);
        spec = more;
    }
    return spec;
}

int model_layouts(cli *c, const char *spec, model_layout *out, int cap) {
    static const int64_t blocks[] = { 8, 16, 32, 64, 128 };
    int n = 0;
    int64_t size[MAX_SIZES], last[MAX_SIZES];
    out[n++] = (model_layout){ "as given", spec };
    if (spec[0] != '@') return n;
    const builtin *b = find_builtin(c, spec, size);
    memcpy(last, size, sizeof last);
    for (size_t l = 0; l < COUNT_OF(layouts); l++) {
        if (strcmp(layouts[l].name, b->about.name)) continue;
        for (int i = 0; i < 2 && layouts[l].transposed[i].name && n < cap; i++)
            out[n++] =
                (model_layout){ layouts[l].transposed[i].name, spec_of(layouts[l].transposed[i].spec, size, b->n_sizes) };
        for (size_t block = 0; block < COUNT_OF(blocks) && n < cap; block++) {
            int64_t more[MAX_SIZES];
            for (int i = 0; i < MAX_SIZES; i++)
                more[i] = layouts[l].padded[i] ? (size[i] + blocks[block] - 1) / blocks[block] * blocks[block] : size[i];
            if (!memcmp(more, last, sizeof more)) continue;
            memcpy(last, more, sizeof last);
            out[n++] = (model_layout){ cli_format("padded to multiples of %lld", (long long)blocks[block]),
                                       spec_of(b->about.name, more, b->n_sizes) };
        }
    }
    return n;
}

static tn_graph *build_model(cli *c, const char *spec, uint64_t seed) {
    int64_t size[MAX_SIZES];
    const builtin *b = find_builtin(c, spec, size);
    if (!b->build) {
        if (size[0] < 2) cli_usage(c, "%s: a network has at least 2 nodes", spec);
        return model_mlp(c, size[0], size[1], size[2] ? size[2] : size[1], seed, NULL, NULL);
    }
    tn_graph *g = tn_graph_new(cli_ctx(c), b->about.name);
    if (!g) cli_fail(c, "out of memory");
    tn_graph_set_seed(g, seed);
    b->build(g, size, seed);
    return g;
}

/* ---- ONNX files ---- */

tn_dtype model_dtype(const cli *c) {
    const char *text = cli_text(c, "dtype", "f32");
    tn_dtype t;
    if (!dtype_parse(text, strlen(text), &t) || (t != TN_F32 && t != TN_BF16 && t != TN_F16))
        cli_usage(c, "--dtype is f32, bf16 or f16, not %s", text);
    return t;
}

static tn_graph *in_model_dtype(cli *c, tn_graph *g) {
    tn_dtype t = model_dtype(c);
    if (g && t != TN_F32) cli_need(c, tn_graph_contract_in(g, t));
    return g;
}

bool model_is_onnx(const char *spec) {
    size_t n = strlen(spec);
    return n > 5 && !strcmp(spec + n - 5, ".onnx");
}

/* --dim batch=8 and batch=1..64, as often as wanted. Sizes of dims that have a range, too, are those of the run. */
static void read_dims(cli *c, tn_onnx_dim *dims, tn_onnx_range *ranges, int cap, tn_onnx_opts *o) {
    o->dims = dims, o->ranges = ranges;
    for (int turn = 0, at = 0; turn < 2; turn++, at = 0) {
        for (cli_dim d; cli_next_dim(c, &at, &d);) {
            bool open = false;
            for (int i = 0; i < o->n_ranges; i++) open |= turn && cli_same_dim(o->ranges[i].name, d.name);
            if (o->n_dims == cap || o->n_ranges == cap) cli_usage(c, "more than %d --dim", cap);
            if (turn == 0 && d.is_range)
                ranges[o->n_ranges++] = (tn_onnx_range){ d.name, d.lo, d.hi, d.multiple_of };
            else if (turn == 1 && !d.is_range && !open)
                dims[o->n_dims++] = (tn_onnx_dim){ d.name, d.lo };
            else
                free(d.name);
        }
    }
}
/* --input NAME=...: where sizes depend on it, it becomes a constant, which c->constants names. */
static int read_values(cli *c, value *data, tn_onnx_value *out, int cap) {
    int at = 0, n = 0;
    for (const char *text; (text = cli_next(c, "input", &at)); n++) {
        const char *spec;
        if (n == cap) cli_usage(c, "more than %d --input", cap);
        char *name = value_split(c, text, &spec);
        data[n] = value_parse(c, name, spec);
        out[n] = (tn_onnx_value){ name, data[n].dtype, data[n].shape, data[n].data };
    }
    return n;
}
void model_forget(cli *c) {
    for (int i = 0; i < c->n_model_files; i++) free(c->model_files[i]);
    free(c->model_files);
    c->model_files = NULL, c->n_model_files = 0;
    for (int i = 0; i < c->n_constants; i++) free(c->constants[i]);
    free(c->constants);
    c->constants = NULL, c->n_constants = 0;
}

/* The first dims of all inputs that are as long as the first input's: a batch. Names are the caller's to free. */
static int batch_dims(const tn_onnx_model *m, int64_t batch, tn_onnx_dim *out, int cap) {
    tn_onnx_port first, p;
    int n = 0;
    if (!tn_onnx_n_inputs(m) || tn_onnx_input(m, 0, &first) || first.rank < 1) return 0;
    for (int i = 0; i < tn_onnx_n_inputs(m) && n < cap; i++) {
        if (tn_onnx_input(m, i, &p) || p.rank < 1) continue;
        bool same =
            first.symbol[0] ? p.symbol[0] && !strcmp(first.symbol[0], p.symbol[0]) : !p.symbol[0] && first.dim[0] == p.dim[0];
        if (same) out[n++] = (tn_onnx_dim){ cli_format("%s[0]", p.name), batch };
    }
    return n;
}

static void note_files(cli *c, const tn_onnx_model *m, const char *path) {
    int n = 1;
    while (tn_onnx_external(m, n - 1)) n++;
    char *whole = realpath(path, NULL); /* programs are kept under it */
    const char *slash = whole ? strrchr(whole, '/') : NULL;
    c->model_files = cli_alloc(sizeof *c->model_files * (size_t)n);
    if (!slash) return;
    for (; c->n_model_files < n; c->n_model_files++)
        c->model_files[c->n_model_files] =
            c->n_model_files ? cli_format("%.*s/%s", (int)(slash - whole), whole, tn_onnx_external(m, c->n_model_files - 1))
                             : cli_format("%s", whole);
    free(whole);
}

/* batch: of all inputs, where the model can have another than its own (else NULL); 0 = its own. */
static tn_graph *open_onnx(cli *c, const char *path, int64_t batch) {
    enum { MOST = 256 };
    tn_onnx_dim *dims = cli_alloc(sizeof *dims * MOST);
    tn_onnx_range *ranges = cli_alloc(sizeof *ranges * MOST);
    value *data = cli_alloc(sizeof *data * MOST);
    tn_onnx_value *values = cli_alloc(sizeof *values * MOST);
    tn_onnx_opts o = TN_ONNX_DEFAULTS;
    tn_onnx_model *m;
    tn_onnx_port p;
    tn_graph *g = NULL;
    read_dims(c, dims, ranges, MOST, &o);
    o.values = values, o.n_values = read_values(c, data, values, MOST);
    o.plain_convolutions = cli_flag(c, "plain-convolutions") || model_dtype(c) != TN_F32; /* Winograd's way needs the bits */
    cli_need(c, tn_onnx_open(cli_ctx(c), path, &m));
    int other = batch ? batch_dims(m, batch, dims + o.n_dims, MOST - o.n_dims) : 0;
    o.n_dims += other;
    if (!batch)
        cli_need(c, tn_onnx_import(m, &o, &g));
    else if (other && tn_onnx_import(m, &o, &g))
        g = NULL; /* tn_ctx_error says why */
    model_forget(c);
    c->constants = cli_alloc(sizeof *c->constants * ((size_t)tn_onnx_n_inputs(m) + 1));
    for (int i = 0; i < tn_onnx_n_inputs(m); i++)
        if (tn_onnx_input_is_constant(m, i) && !tn_onnx_input(m, i, &p))
            c->constants[c->n_constants++] = cli_format("%s", p.name);
    note_files(c, m, path);
    tn_onnx_model_free(m);
    for (int i = 0; i < o.n_values; i++) value_free(&data[i]), free((char *)(uintptr_t)values[i].name);
    for (int i = 0; i < o.n_dims; i++) free((char *)(uintptr_t)dims[i].name);
    for (int i = 0; i < o.n_ranges; i++) free((char *)(uintptr_t)ranges[i].name);
    free(dims), free(ranges), free(data), free(values);
    return g;
}

tn_graph *model_open(cli *c, const char *spec, uint64_t seed) {
    static char *standard; /* stdin is read once, for all who open "-" */
    static size_t n_standard;
    tn_ctx *ctx = cli_ctx(c);
    tn_graph *g;
    if (program_is_file(spec)) cli_fail(c, "%s is a program: `tenon run` takes it; this command needs its graph", spec);
    if (spec[0] == '@')
        g = build_model(c, spec, seed);
    else if (!strcmp(spec, "-")) {
        if (!standard) standard = cli_read_file(c, spec, &n_standard);
        g = tn_graph_parse(ctx, standard, n_standard, "stdin");
    } else if (model_is_onnx(spec)) {
        g = open_onnx(c, spec, 0);
    } else {
        size_t n;
        char *text = cli_read_file(c, spec, &n);
        g = tn_graph_parse(ctx, text, n, spec);
        free(text);
    }
    if (!g) cli_fail(c, "%s", tn_ctx_error(ctx));
    if (tn_graph_status(g)) cli_fail(c, "%s: %s", spec, tn_ctx_error(ctx));
    return in_model_dtype(c, g);
}

tn_graph *model_batch(cli *c, const char *spec, uint64_t seed, int64_t batch) {
    if (model_is_onnx(spec)) return in_model_dtype(c, open_onnx(c, spec, batch));
    if (spec[0] != '@') return NULL;
    char *other = builtin_batch(c, spec, batch);
    tn_graph *g = model_open(c, other, seed);
    free(other);
    return g;
}
