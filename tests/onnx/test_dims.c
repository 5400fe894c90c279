/* test_dims.c - models whose named dims stay open (tn_onnx_opts.ranges): one program, run for several sizes, gives what a
 * program of each size gives; what cannot be said with such sizes is refused, by name and all at once; wrong ranges are
 * errors. */
#include "onnx_models.h"

#include <math.h>

enum { BATCH = -1, SEQ = -2, PAST = -3, TOTAL = -4 };
static const char *const names[] = { "batch", "seq", "past seq", "past seq + seq" };
static const char *const words[] = { "batch", "seq", "past_seq" }; /* as the graph has them */

/* One import as a program, with room for what its slots hold. */
typedef struct made {
    tn_graph *g;
    tn_program *p;
    tn_session *s;
    unsigned char *io[16];
    size_t bytes[16];
    tn_shape shape[16];
} made;

static void close_made(made *x) {
    for (int i = 0; i < 16; i++) free(x->io[i]);
    tn_session_free(x->s), tn_program_free(x->p), tn_graph_free(x->g);
}
static made compiled(tn_ctx *ctx, tn_onnx_model *m, const tn_onnx_opts *o, const char *what) {
    made x = { .g = NULL };
    tn_compile_opts co = TN_COMPILE_DEFAULTS;
    co.threads = 1, co.check = 1;
    if (tn_onnx_import(m, o, &x.g)) fail_msg("%s: %s", what, tn_ctx_error(ctx));
    if (tn_compile(x.g, &co, &x.p) || tn_session_new(x.p, &x.s)) fail_msg("%s: %s", what, tn_ctx_error(ctx));
    return x;
}
/* The same random inputs for the same name, whichever program it is. */
static void run_made(made *x, uint64_t seed, const char *what) {
    for (int i = 0; i < tn_program_n_slots(x->p); i++) {
        char kind;
        const char *name;
        tn_dtype t;
        int64_t n = 1;
        assert_int_equal(tn_program_slot(x->p, i, &kind, &name, &t, &x->shape[i]), TN_OK);
        if (tn_session_shape(x->s, i, &x->shape[i])) fail_msg("%s: %s", what, tn_session_error(x->s));
        for (int k = 0; k < x->shape[i].rank; k++) n *= x->shape[i].dim[k];
        x->bytes[i] = (size_t)n * tn_dtype_size(t);
        free(x->io[i]);
        x->io[i] = calloc(x->bytes[i] + 64, 1);
        uint64_t own = seed;
        for (const char *c = name; *c; c++) own = own * 31 + (unsigned char)*c;
        for (int64_t k = 0; kind == 'i' && k < n; k++) {
            int64_t whole = rnd_below(&own, 3);
            float value = (float)(rnd_below(&own, 2001) - 1000) / 500;
            if (t == TN_F32) memcpy(x->io[i] + k * 4, &value, 4);
            if (t == TN_I64) memcpy(x->io[i] + k * 8, &whole, 8);
            if (t == TN_I32) memcpy(x->io[i] + k * 4, &(int32_t){ (int32_t)whole }, 4);
            if (tn_dtype_size(t) == 1) x->io[i][k] = (unsigned char)whole;
        }
        if (kind == 'o') memset(x->io[i], 0x5a, x->bytes[i] + 64);
        assert_int_equal(tn_session_bind(x->s, i, x->io[i]), TN_OK);
    }
    if (tn_session_run(x->s)) fail_msg("%s: %s", what, tn_session_error(x->s));
}

static void assert_same(const made *open, const made *fixed, const char *what) {
    for (int i = 0; i < tn_program_n_slots(open->p); i++) {
        char kind;
        const char *name;
        tn_dtype t;
        tn_shape ignored;
        assert_int_equal(tn_program_slot(open->p, i, &kind, &name, &t, &ignored), TN_OK);
        int k = tn_session_slot(fixed->s, name);
        if (k < 0) fail_msg("%s: %s is missing", what, name);
        if (open->shape[i].rank != fixed->shape[k].rank ||
            memcmp(open->shape[i].dim, fixed->shape[k].dim, sizeof(int64_t) * (size_t)open->shape[i].rank))
            fail_msg("%s: %s has another shape", what, name);
        for (size_t e = 0; t == TN_F32 && e < open->bytes[i] / 4; e++) {
            float a, b;
            memcpy(&a, open->io[i] + e * 4, 4), memcpy(&b, fixed->io[k] + e * 4, 4);
            if (fabsf(a - b) > 1e-5f * (1 + fabsf(b)))
                fail_msg("%s: %s[%zu] is %g, expected %g", what, name, e, (double)a, (double)b);
        }
        if (t != TN_F32 && memcmp(open->io[i], fixed->io[k], open->bytes[i])) fail_msg("%s: %s is another", what, name);
        for (size_t e = 0; e < 64 && kind == 'o'; e++) assert_int_equal(open->io[i][open->bytes[i] + e], 0x5a);
    }
}

typedef struct trial {
    tn_onnx_range ranges[3];
    int n_ranges;
    int64_t sizes[4][3];
    int n_sizes;
} trial;
static const trial standard = {
    { { "batch", 1, 9, 1 }, { "seq", 2, 12, 1 } }, 2, { { 1, 2 }, { 9, 12 }, { 3, 7 }, { 2, 4 } }, 4
};

/* NULL: it ran, and every run gave what literal sizes give. Else the reason of its refusal. */
static const char *verdict(const char *const *nodes, int n_nodes, const array *in, int n_in, int opset, int elem,
                           const trial *x, int *out_runs) {
    static char text[4096];
    tn_ctx *ctx = tn_ctx_new(NULL);
    bytes *b = malloc(sizeof *b);
    *b = model_of(nodes, n_nodes, in, n_in, opset, "y", elem);
    tn_onnx_model *m;
    tn_graph *g = NULL;
    const char *what = nodes[n_nodes - 1];
    if (tn_onnx_parse(ctx, b->at, b->n, "model", NULL, &m)) fail_msg("%s: %s", what, tn_ctx_error(ctx));
    tn_onnx_opts o = TN_ONNX_DEFAULTS, fixed = TN_ONNX_DEFAULTS;
    o.ranges = x->ranges, o.n_ranges = 0;
    bool used[3] = { false };
    for (int i = 0; i < n_in; i++)
        for (int k = 0; k < in[i].rank; k++)
            if (in[i].dim[k] < 0 && in[i].dim[k] != TOTAL) used[-1 - in[i].dim[k]] = true;
    tn_onnx_range ranges[3];
    for (int i = 0; i < x->n_ranges; i++)
        if (used[i]) ranges[o.n_ranges++] = x->ranges[i];
    o.ranges = ranges;
    tn_status s = tn_onnx_import(m, &o, &g);
    tn_graph_free(s ? NULL : g);
    text[0] = 0;
    if (s) {
        if (s != TN_ERR_UNSUPPORTED) fail_msg("%s: %s", what, tn_ctx_error(ctx));
        snprintf(text, sizeof text, "%s", tn_ctx_error(ctx));
    } else {
        made open = compiled(ctx, m, &o, what); /* once */
        assert_int_equal(tn_program_n_dims(open.p), o.n_ranges);
        for (int r = 0; r < x->n_sizes; r++) {
            tn_onnx_dim dims[4] = { [3] = { names[3], x->sizes[r][1] + x->sizes[r][2] } };
            for (int i = 0; i < x->n_ranges; i++) {
                dims[i] = (tn_onnx_dim){ names[i], x->sizes[r][i] };
                if (used[i] && tn_bind_dim(open.s, words[i], x->sizes[r][i]))
                    fail_msg("%s: %s", what, tn_session_error(open.s));
            }
            fixed.dims = dims, fixed.n_dims = x->n_ranges + (x->n_ranges == 3);
            made one = compiled(ctx, m, &fixed, what);
            run_made(&open, (uint64_t)r, what), run_made(&one, (uint64_t)r, what);
            assert_same(&open, &one, what);
            close_made(&one);
            ++*out_runs;
        }
        close_made(&open);
    }
    tn_onnx_model_free(m), tn_ctx_free(ctx), free(b);
    return text[0] ? text : NULL;
}
#define RUNS(opset, elem, trial_, nodes, in)                                                                                   \
    do {                                                                                                                       \
        int runs = 0;                                                                                                          \
        const char *no = verdict(nodes, in, opset, elem, trial_, &runs);                                                       \
        if (no) fail_msg("refused: %s", no);                                                                                   \
        assert_int_equal(runs, (trial_)->n_sizes);                                                                             \
    } while (0)
#define REFUSED(reason, elem, nodes, in)                                                                                       \
    do {                                                                                                                       \
        int runs = 0;                                                                                                          \
        const char *no = verdict(nodes, in, 17, elem, &standard, &runs);                                                       \
        if (!no || !strstr(no, reason)) fail_msg("%s, expected a refusal: %s", no ? no : "it ran", reason);                    \
    } while (0)
#define IN(name, elem, ...)                                                                                                    \
    (array) { name, elem, (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / 8), { __VA_ARGS__ }, NULL, 0, false, false }
#define INTS(name, ...)                                                                                                        \
    (array) {                                                                                                                  \
        name, I64, 1, { (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / 8) }, (int64_t[]){ __VA_ARGS__ },                           \
            sizeof((int64_t[]){ __VA_ARGS__ }), true, false                                                                    \
    }
#define INT(name, value)                                                                                                       \
    (array) { name, I64, 0, { 0 }, &(int64_t){ value }, 8, true, false }
enum { WEIGHTS = 48 * 48 * 9 };
static float random_weights[WEIGHTS];
#define WEIGHT(name, ...) weight(name, (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / 8), (int64_t[]){ __VA_ARGS__ })
static array weight(const char *name, int rank, const int64_t *dim) {
    array a = { .name = name, .elem = F32, .rank = rank, .data = random_weights, .bytes = 4, .weight = true };
    for (int i = 0; i < rank; i++) a.dim[i] = dim[i], a.bytes *= (size_t)dim[i];
    assert_true(a.bytes <= sizeof random_weights);
    return a;
}
static int setup_weights(void **state) {
    (void)state;
    uint64_t seed = 7;
    fill(&seed, random_weights, WEIGHTS);
    for (int i = 0; i < WEIGHTS; i++) random_weights[i] /= 4;
    return 0;
}

/* ---- whole models ---- */

static void test_mlp(void **state) {
    (void)state;
    RUNS(13, F32, &standard,
         NODES("Gemm x w b -> h ; transB:i=1", "Relu h -> r", "MatMul r v -> s", "Add s c -> z", "Softmax z -> y"),
         ARRAYS(IN("x", F32, BATCH, 8), WEIGHT("w", 16, 8), WEIGHT("b", 16), WEIGHT("v", 16, 5), WEIGHT("c", 5)));
}

/* x.view(x.size(0), -1), as PyTorch exports it. */
static void test_cnn(void **state) {
    (void)state;
    RUNS(13, F32, &standard,
         NODES("Conv x w b -> h ; pads:l=1,1,1,1 ; kernel_shape:l=3,3", "BatchNormalization h g b m v -> n", "Relu n -> r",
               "MaxPool r -> p ; kernel_shape:l=2,2 ; strides:l=2,2", "Conv p k -> q ; strides:l=2,2 ; group:i=2",
               "Shape q -> s", "Gather s zero -> rows", "Unsqueeze rows axis -> first", "Concat first rest -> shape ; axis:i=0",
               "Reshape q shape -> f", "Gemm f d e -> y ; transB:i=1"),
         ARRAYS(IN("x", F32, BATCH, 3, 12, 12), WEIGHT("w", 8, 3, 3, 3), WEIGHT("b", 8), WEIGHT("g", 8), WEIGHT("m", 8),
                (array){ "v", F32, 1, { 8 }, (float[]){ 1, 2, 1, 2, 1, 2, 1, 2 }, 32, true, false }, WEIGHT("k", 4, 4, 3, 3),
                INT("zero", 0), INTS("axis", 0), INTS("rest", -1), WEIGHT("d", 10, 16), WEIGHT("e", 10)));
    /* Many channels, by Winograd's way. */
    RUNS(13, F32, &standard, NODES("Conv x k b -> y ; pads:l=1,1,1,1"),
         ARRAYS(IN("x", F32, BATCH, 48, 6, 7), WEIGHT("k", 48, 48, 3, 3), WEIGHT("b", 48)));
    /* A length as PyTorch says it: n/2 - 1 of (n - 4)/2 + 1. */
    const trial longer = { { { "batch", 1, 9, 1 }, { "seq", 6, 12, 1 } }, 2, { { 1, 6 }, { 9, 12 }, { 3, 7 } }, 3 };
    RUNS(13, F32, &longer,
         NODES("Conv x w -> h ; strides:l=2", "Shape x -> s", "Gather s last -> n", "Div n two -> half", "Sub half one -> rows",
               "Unsqueeze rows axis -> rows2", "Concat b rows2 -> t ; axis:i=0", "Reshape h t -> y"),
         ARRAYS(IN("x", F32, BATCH, 3, SEQ), WEIGHT("w", 8, 3, 4), INT("last", -1), INT("two", 2), INT("one", 1),
                INTS("axis", 0), INTS("b", 0, 8)));
    /* Global pooling and Flatten, of images of any size. */
    RUNS(13, F32, &standard,
         NODES("Conv x w -> h ; strides:l=2,1 ; pads:l=1,1,1,1", "Relu h -> r", "GlobalAveragePool r -> p", "Flatten p -> f",
               "MatMul f d -> y"),
         ARRAYS(IN("x", F32, BATCH, 3, SEQ, 9), WEIGHT("w", 8, 3, 3, 3), WEIGHT("d", 8, 5)));
}

/* Self-attention of 2 heads, with a mask of positions and a table of them: views by Shape arithmetic. */
static void test_transformer(void **state) {
    (void)state;
#define HEADS(x, to)                                                                                                           \
    "Concat b1 s1 two six -> shape_" x " ; axis:i=0", "Reshape " x " shape_" x " -> view_" x,                                  \
        "Transpose view_" x " -> " to " ; perm:l=0,2,1,3"
    RUNS(14, F32, &standard,
         NODES("Shape ids -> sh", "Gather sh zero -> b", "Shape ids -> sh2", "Gather sh2 one -> s", "Unsqueeze b axis -> b1",
               "Unsqueeze s axis -> s1", "Range zero s one -> places", "Gather table ids -> words",
               "Gather positions places -> where", "Add words where -> x", "LayerNormalization x ln lb -> n ; axis:i=-1",
               "MatMul n wq -> q", "MatMul n wk -> k", "MatMul n wv -> v", HEADS("q", "qh"), HEADS("k", "kh"), HEADS("v", "vh"),
               "Transpose kh -> kt ; perm:l=0,1,3,2", "MatMul qh kt -> dots", "Mul dots scale -> scaled",
               "Unsqueeze places axis1 -> rows", "Unsqueeze places axis -> columns", "Less rows columns -> later",
               "Where later low zero_f -> mask", "Add scaled mask -> masked", "Softmax masked -> probs ; axis:i=-1",
               "MatMul probs vh -> mixed", "Transpose mixed -> back ; perm:l=0,2,1,3",
               "Concat b1 s1 twelve -> merged ; axis:i=0", "Reshape back merged -> flat", "MatMul flat wo -> out",
               "Add out x -> y"),
         ARRAYS(IN("ids", I64, BATCH, SEQ), INT("zero", 0), INT("one", 1), INTS("axis", 0), INTS("axis1", 1), INTS("two", 2),
                INTS("six", 6), INTS("twelve", -1), WEIGHT("table", 5, 12), WEIGHT("positions", 16, 12), WEIGHT("ln", 12),
                WEIGHT("lb", 12), WEIGHT("wq", 12, 12), WEIGHT("wk", 12, 12), WEIGHT("wv", 12, 12), WEIGHT("wo", 12, 12),
                (array){ "scale", F32, 0, { 0 }, (float[]){ 0.4f }, 4, true, false },
                (array){ "low", F32, 0, { 0 }, (float[]){ -1e4f }, 4, true, false },
                (array){ "zero_f", F32, 0, { 0 }, (float[]){ 0 }, 4, true, false }));
#undef HEADS
}

/* ---- values computed from sizes ---- */

#define X2 IN("x", F32, BATCH, SEQ)
#define X3 IN("x", F32, BATCH, SEQ, 4)
static const trial even = { { { "batch", 2, 12, 2 }, { "seq", 4, 16, 4 } }, 2, { { 2, 4 }, { 12, 16 }, { 6, 8 } }, 3 };

static void test_shapes(void **state) {
    (void)state;
    const array two = INTS("two", 2), zero = INTS("zero", 0), one = INTS("one", 1), all = INTS("all", -1),
                four = INTS("four", 4), big = INTS("big", INT64_MAX), least = INTS("least", INT64_MIN), s1 = INT("s1", 1),
                s2 = INT("s2", 2);
    RUNS(13, I64, &standard, NODES("Shape x -> y"), ARRAYS(X3));
    RUNS(15, I64, &standard, NODES("Shape x -> y ; start:i=-2 ; end:i=9"), ARRAYS(X3));
    RUNS(13, I64, &standard, NODES("Size x -> y"), ARRAYS(X3));
    RUNS(13, F32, &standard, NODES("Reshape x s -> y"), ARRAYS(X3, INTS("s", 0, -1)));
    RUNS(13, F32, &standard, NODES("Reshape x s -> y"), ARRAYS(X3, INTS("s", -1, 2)));
    RUNS(13, F32, &standard, NODES("Flatten x -> y ; axis:i=2"), ARRAYS(X3));
    /* Every op of a chain: Slice, Squeeze, Mul, Add, Sub, Div, Min, Max, Cast to int32 and back, Concat, ReduceProd. */
    RUNS(13, F32, &standard,
         NODES("Shape x -> s", "Slice s zero one -> b", "Slice s one two -> q", "Cast q -> q32 ; to:i=6", "Mul q32 f32 -> r32",
               "Cast r32 -> r ; to:i=7", "Concat b r all -> t ; axis:i=0", "Reshape x t -> y"),
         ARRAYS(X3, zero, one, two, all, (array){ "f32", 6, 1, { 1 }, (int32_t[]){ 2 }, 4, true, false }));
    RUNS(13, F32, &standard,
         NODES("Shape x -> s", "ReduceProd s -> n ; keepdims:i=1", "Div n four -> rows", "Concat rows four -> t ; axis:i=0",
               "Reshape x t -> y"),
         ARRAYS(X3, four));
    RUNS(13, F32, &standard,
         NODES("Shape x -> s", "Split s k -> a b c", "Squeeze a zero -> a0", "Squeeze b zero -> b0", "Mul a0 b0 -> ab",
               "Unsqueeze ab zero -> ab1", "Concat ab1 c -> t ; axis:i=0", "Reshape x t -> y"),
         ARRAYS(X3, INTS("k", 1, 1, 1), zero));
    RUNS(13, F32, &standard,
         NODES("Shape x -> s", "Gather s s1 -> q", "Sub q s1 -> less", "Add less s1 -> more", "Max more s2 -> most",
               "Neg most -> neg", "Neg neg -> again", "Unsqueeze again zero -> u", "Concat all u four -> t ; axis:i=0",
               "Reshape x t -> y"),
         ARRAYS(X3, s1, s2, zero, all, four));
    /* x.expand(-1, n, -1): comparisons that every run decides alike, and Where. */
    RUNS(13, F32, &standard,
         NODES("Shape z -> s", "Slice s one two -> q", "Concat all q four -> t ; axis:i=0", "Equal t all -> c",
               "Where c ones t -> e", "Expand x e -> y"),
         ARRAYS(IN("x", F32, BATCH, 1, 4), IN("z", F32, BATCH, SEQ), one, two, all, four, INTS("ones", 1, 1, 1)));
    RUNS(13, F32, &standard, NODES("Shape x -> s", "Expand k s -> y"), ARRAYS(X3, WEIGHT("k", 1, 4)));
    RUNS(13, F32, &standard, NODES("Shape x -> s", "ConstantOfShape s -> k", "Add k x -> y"), ARRAYS(X3));
    RUNS(13, F32, &standard, NODES("Shape x -> s", "Gather s s1 -> q", "Concat one q1 one -> r ; axis:i=0", "Tile z r -> y"),
         ARRAYS(X3, s1, one, IN("z", F32, BATCH, 3, 2), INTS("q1", 2)));
    RUNS(13, F32, &standard, NODES("Shape x -> s", "Slice s one two -> q", "Concat one q -> r ; axis:i=0", "Tile z r -> y"),
         ARRAYS(X3, one, two, IN("z", F32, BATCH, 3)));
    /* Ranges: from and to sizes, and with them what is looked up. */
    RUNS(13, I64, &standard, NODES("Shape x -> s", "Gather s s1 -> q", "Range s1 q s2 -> y"), ARRAYS(X3, s1, s2));
    RUNS(13, I64, &standard, NODES("Shape x -> s", "Gather s s1 -> q", "Add q s2 -> to", "Range q to s1 -> y"),
         ARRAYS(X3, s1, s2));
    /* Slices with ends of every kind. */
    RUNS(13, F32, &standard, NODES("Slice x one big one -> y"), ARRAYS(X3, one, big));
    RUNS(13, F32, &standard, NODES("Slice x a b c -> y"), ARRAYS(X3, INTS("a", 0, -2), INTS("b", 1, 99), INTS("c", 0, 1)));
    RUNS(13, F32, &standard, NODES("Slice x a b c -> y"), ARRAYS(X3, INTS("a", 5), INTS("b", 8), INTS("c", 1)));
    RUNS(13, F32, &standard, NODES("Slice x a b c -> y"), ARRAYS(X3, INTS("a", -99), INTS("b", -1), INTS("c", 1)));
    RUNS(13, F32, &standard, NODES("Slice x a least one d -> y"), ARRAYS(X3, INTS("a", -1), least, one, INTS("d", -1)));
    RUNS(13, F32, &standard, NODES("Slice x a b one d -> y"),
         ARRAYS(X3, INTS("a", INT64_MAX), INTS("b", 0), one, INTS("d", -2)));
    RUNS(13, F32, &standard, NODES("Slice x zero big one c -> y"), ARRAYS(X3, zero, big, one, INTS("c", 3)));
    RUNS(13, F32, &standard, NODES("Shape x -> s", "Slice s one two -> q", "Slice k zero q zero -> y"),
         ARRAYS(X3, one, two, zero, WEIGHT("k", 16, 4)));
    RUNS(13, F32, &standard, NODES("Shape x -> s", "Slice s one two -> q", "Slice k zero q zero -> y"),
         ARRAYS(X3, one, two, zero, WEIGHT("k", 5, 4))); /* at most what there is */
    RUNS(13, F32, &standard, NODES("Shape x -> s", "Slice s one two -> q", "Neg q -> from", "Slice k from big zero -> y"),
         ARRAYS(X3, one, two, zero, big, WEIGHT("k", 16, 4)));
    /* Parts and borders. */
    RUNS(13, F32, &standard, NODES("Split x k -> a y ; axis:i=2"), ARRAYS(X3, INTS("k", 1, 3)));
    RUNS(13, F32, &even,
         NODES("Concat x z -> b ; axis:i=1", "Shape x -> s", "Slice s one two -> q", "Concat q two -> k ; axis:i=0",
               "Split b k -> a c ; axis:i=1", "Concat c a -> y ; axis:i=1"),
         ARRAYS(X3, one, two, IN("z", F32, BATCH, 2, 4)));
    RUNS(13, F32, &standard, NODES("Pad x p v -> y"),
         ARRAYS(X3, INTS("p", 0, 1, 2, 1, 0, -1), (array){ "v", F32, 0, { 0 }, (float[]){ 3 }, 4, true, false }));
    RUNS(13, F32, &standard, NODES("Pad x p -> y"), ARRAYS(X3, INTS("p", 0, -1, 0, 0, -1, 0)));
    RUNS(13, F32, &standard, NODES("Pad x p -> y ; mode:s=edge"), ARRAYS(X3, INTS("p", 0, 0, 1, 0, 0, 2)));
    RUNS(13, F32, &standard,
         NODES("Shape x -> s", "Slice s one two -> q", "Sub room q -> more",
               "Concat none none none none more none -> p ; axis:i=0", "Pad x p -> y"),
         ARRAYS(X3, one, two, INTS("room", 12), INTS("none", 0)));
    /* What is rolled over, forwards and back. */
    RUNS(15, F32, &standard,
         NODES("Shape x -> s ; start:i=1 ; end:i=2", "Mod all s -> at ; fmod:i=0", "Slice x at s one -> a",
               "Slice x zero at one -> b", "Concat a b -> r ; axis:i=1", "Mod one s -> by ; fmod:i=0", "Slice r by s one -> d",
               "Slice r zero by one -> e", "Concat d e -> y ; axis:i=1"),
         ARRAYS(X3, zero, one, all));
    RUNS(13, F32, &standard, NODES("Concat x x k -> y ; axis:i=2"), ARRAYS(X3, IN("k", F32, BATCH, SEQ, 1)));
    RUNS(13, F32, &standard, NODES("Concat x x -> y ; axis:i=1"), ARRAYS(X3));
    RUNS(13, F32, &standard, NODES("Unsqueeze x a -> u", "Squeeze u a -> y"), ARRAYS(X3, INTS("a", 0, 2)));
    RUNS(13, F32, &standard, NODES("Trilu x k -> y"), ARRAYS(X2, INT("k", 1)));
    RUNS(13, F32, &standard, NODES("DepthToSpace x -> y ; blocksize:i=2"), ARRAYS(IN("x", F32, BATCH, 4, SEQ, 3)));
    RUNS(13, F32, &standard, NODES("SpaceToDepth x -> y ; blocksize:i=2"), ARRAYS(IN("x", F32, BATCH, 4, 2, 4)));
    RUNS(13, F32, &standard, NODES("EyeLike x -> y ; k:i=1"), ARRAYS(X2));
    /* A size as a number of the graph: a mean by hand. */
    RUNS(13, F32, &standard,
         NODES("Shape x -> s", "Gather s s1 -> q", "Cast q -> n ; to:i=1", "ReduceSum x one -> t ; keepdims:i=0",
               "Div t n -> y"),
         ARRAYS(X3, s1, one));
    /* A branch that the ranges decide. */
    RUNS(13, F32, &standard, NODES("Shape x -> s", "Gather s s1 -> q", "Greater q s1 -> c", "Where c x z -> y"),
         ARRAYS(X3, s1, IN("z", F32, BATCH, SEQ, 4)));
}

static void test_ops(void **state) {
    (void)state;
    const array s0 = INT("s0", 0), last = INT("last", -1);
    RUNS(13, F32, &standard, NODES("Gather x last -> y ; axis:i=1"), ARRAYS(X3, last));
    RUNS(13, F32, &standard, NODES("Gather k x -> y"), ARRAYS(IN("x", I64, BATCH, SEQ), WEIGHT("k", 3, 5)));
    RUNS(13, F32, &standard, NODES("GatherElements x i -> y ; axis:i=2"), ARRAYS(X3, IN("i", I64, BATCH, SEQ, 2)));
    RUNS(13, F32, &standard, NODES("GatherND x i -> y ; batch_dims:i=1"),
         ARRAYS(IN("x", F32, BATCH, 4, 3), IN("i", I64, BATCH, 1)));
    RUNS(13, F32, &standard, NODES("Sub i three -> j", "GatherND x j -> y"),
         ARRAYS(X3, IN("i", I64, SEQ, 3, 2), INTS("three", 3, 2))); /* from the end, along axes of the run */
    RUNS(16, F32, &standard, NODES("ScatterND x i u -> y ; reduction:s=add"),
         ARRAYS(X3, IN("i", I64, 5, 2), IN("u", F32, 5, 4)));
    RUNS(13, F32, &standard, NODES("ScatterElements x i u -> y ; axis:i=2"),
         ARRAYS(X3, IN("i", I64, BATCH, SEQ, 1), IN("u", F32, BATCH, SEQ, 1)));
    RUNS(13, F32, &standard, NODES("OneHot x n k -> y"), ARRAYS(IN("x", I64, BATCH, SEQ), INT("n", 3), WEIGHT("k", 2)));
    RUNS(13, F32, &standard, NODES("TopK x k -> y i ; axis:i=1"), ARRAYS(X3, INTS("k", 2)));
    RUNS(13, F32, &standard, NODES("CumSum x s0 -> y"), ARRAYS(X3, s0));
    RUNS(13, I64, &standard, NODES("ArgMax x -> y ; axis:i=1"), ARRAYS(X3));
    RUNS(11, F32, &standard, NODES("Softmax x -> y ; axis:i=1"), ARRAYS(X3));
    RUNS(13, F32, &standard, NODES("LogSoftmax x -> y ; axis:i=1"), ARRAYS(X3));
    RUNS(13, F32, &standard,
         NODES("ReduceMean x -> m ; axes:l=0,1", "ReduceMax x -> n", "ReduceLogSumExp x -> o ; axes:l=1", "Add m n -> p",
               "Add p o -> y"),
         ARRAYS(X3));
    RUNS(21, F32, &standard, NODES("GroupNormalization x g b -> y ; num_groups:i=2"),
         ARRAYS(IN("x", F32, BATCH, 4, SEQ), WEIGHT("g", 4), WEIGHT("b", 4)));
    RUNS(13, F32, &standard, NODES("InstanceNormalization x g b -> y"),
         ARRAYS(IN("x", F32, BATCH, 4, SEQ), WEIGHT("g", 4), WEIGHT("b", 4)));
    RUNS(13, F32, &standard, NODES("LRN x -> y ; size:i=3"), ARRAYS(IN("x", F32, BATCH, 4, SEQ)));
    RUNS(13, F32, &standard, NODES("MatMul x z -> y"), ARRAYS(X3, IN("z", F32, BATCH, 4, SEQ)));
    RUNS(13, F32, &standard, NODES("Einsum x z -> y ; equation:s=bik,bjk->bij"), ARRAYS(X3, IN("z", F32, BATCH, SEQ, 4)));
    RUNS(13, F32, &standard, NODES("AveragePool x -> y ; kernel_shape:l=2 ; strides:l=2"), ARRAYS(IN("x", F32, BATCH, 2, SEQ)));
    RUNS(13, F32, &standard, NODES("AveragePool x -> y ; kernel_shape:l=3 ; pads:l=1,1"), ARRAYS(IN("x", F32, BATCH, 2, 7)));
    RUNS(13, F32, &standard, NODES("MaxPool x -> y ; kernel_shape:l=2 ; pads:l=1,0"), ARRAYS(IN("x", F32, BATCH, 2, SEQ)));
    RUNS(13, F32, &standard, NODES("Conv x k -> y ; dilations:l=2 ; pads:l=2,1"),
         ARRAYS(IN("x", F32, BATCH, 4, SEQ), WEIGHT("k", 6, 4, 2)));
    RUNS(13, F32, &standard, NODES("Conv x k -> y ; auto_pad:s=SAME_UPPER"),
         ARRAYS(IN("x", F32, BATCH, 4, 7), WEIGHT("k", 6, 4, 3)));
    RUNS(13, F32, &standard,
         NODES("QuantizeLinear x s z -> q", "DequantizeLinear q s z -> d", "DequantizeLinear w s -> f", "MatMul d f -> m",
               "Relu m -> y"),
         ARRAYS(IN("x", F32, BATCH, 4), (array){ "s", F32, 0, { 0 }, (float[]){ 0.05f }, 4, true, false },
                (array){ "z", 2, 0, { 0 }, (uint8_t[]){ 100 }, 1, true, false },
                (array){ "w", 3, 2, { 4, 3 }, (int8_t[]){ 1, 2, 3, -4, 5, 6, 7, -8, 9, 10, 11, 12 }, 12, true, false }));
    /* Three channels: taps are multiplied in words, which reach behind the border. */
    RUNS(13, F32, &standard,
         NODES("QuantizeLinear x s z -> q", "DequantizeLinear q s z -> d", "DequantizeLinear w s -> f",
               "Conv d f -> y ; strides:l=2,2 ; pads:l=1,1,1,1"),
         ARRAYS(IN("x", F32, BATCH, 3, 5, SEQ), (array){ "s", F32, 0, { 0 }, (float[]){ 0.05f }, 4, true, false },
                (array){ "z", 2, 0, { 0 }, (uint8_t[]){ 100 }, 1, true, false },
                (array){ "w", 3, 4, { 2, 3, 3, 3 }, random_weights, 54, true, false }));
    RUNS(13, F32, &standard,
         NODES("SequenceConstruct x x -> s", "SequenceAt s s0 -> a", "ConcatFromSequence s -> b ; axis:i=1",
               "Concat a b -> y ; axis:i=1"),
         ARRAYS(X3, s0));
    /* Equal parts of an axis of the run: of multiples, and as large as they come with a smaller last one. */
    const trial even = { { { "batch", 1, 4, 1 }, { "seq", 4, 12, 4 } }, 2, { { 1, 4 }, { 4, 12 }, { 2, 8 } }, 3 };
    RUNS(13, F32, &even, NODES("Split x -> a b ; axis:i=1", "Sub a b -> y"), ARRAYS(X3));
    RUNS(13, F32, &even, NODES("Split x -> a b d e ; axis:i=1", "Mul a e -> f", "Sub b d -> h", "Concat f h -> y ; axis:i=1"),
         ARRAYS(X3));
    RUNS(18, F32, &standard, NODES("Split x -> a y ; axis:i=1 ; num_outputs:i=2"), ARRAYS(X3));
    RUNS(18, F32, &standard, NODES("Split x -> y b d ; axis:i=1 ; num_outputs:i=3"), ARRAYS(X3));
    /* A batch without rows. */
    const trial none = { { { "batch", 0, 4, 1 }, { "seq", 2, 3, 1 } }, 2, { { 0, 2 }, { 4, 3 } }, 2 };
    RUNS(13, F32, &none, NODES("MatMul x k -> h", "Softmax h -> y"), ARRAYS(X3, WEIGHT("k", 4, 3)));
}

#define WHOLE(name, elem, type, ...)                                                                                           \
    (array) {                                                                                                                  \
        name, elem, 1, { (int)(sizeof((type[]){ __VA_ARGS__ }) / sizeof(type)) }, (type[]){ __VA_ARGS__ },                     \
            sizeof((type[]){ __VA_ARGS__ }), true, false                                                                       \
    }

static void test_layers(void **state) {
    (void)state;
    RUNS(14, F32, &standard, NODES("LSTM x w r b -> y h c ; hidden_size:i=3 ; direction:s=bidirectional"),
         ARRAYS(IN("x", F32, 5, BATCH, 4), WEIGHT("w", 2, 12, 4), WEIGHT("r", 2, 12, 3), WEIGHT("b", 2, 24)));
    RUNS(14, F32, &standard, NODES("GRU x w r _ n -> a y ; hidden_size:i=3 ; direction:s=reverse"),
         ARRAYS(IN("x", F32, 5, BATCH, 4), WEIGHT("w", 1, 9, 4), WEIGHT("r", 1, 9, 3), IN("n", I32, BATCH)));
    /* As many steps as a run gives: a scan, which gives what turns that are written out give. */
    RUNS(14, F32, &standard, NODES("RNN x w r b _ s -> y h ; hidden_size:i=3 ; activations:t=Relu ; clip:f=0.5"),
         ARRAYS(IN("x", F32, SEQ, BATCH, 4), WEIGHT("w", 1, 3, 4), WEIGHT("r", 1, 3, 3), WEIGHT("b", 1, 6),
                IN("s", F32, 1, BATCH, 3)));
    for (int way = 0; way < 3; way++) {
        static const char *const ways[] = { "forward", "reverse", "bidirectional" };
        char node[256];
        int dirs = 1 + (way == 2);
        const array w = WEIGHT("w", dirs, 12, 4), r = WEIGHT("r", dirs, 12, 3), b = WEIGHT("b", dirs, 24),
                    p = WEIGHT("p", dirs, 9), gw = WEIGHT("w", dirs, 9, 4), gr = WEIGHT("r", dirs, 9, 3),
                    gb = WEIGHT("b", dirs, 18);
        snprintf(node, sizeof node, "LSTM x w r b n _ _ p -> y h c ; hidden_size:i=3 ; direction:s=%s", ways[way]);
        RUNS(14, F32, &standard, NODES(node), ARRAYS(IN("x", F32, SEQ, BATCH, 4), w, r, b, p, IN("n", I32, BATCH)));
        snprintf(node, sizeof node,
                 "LSTM x w r b _ s t -> a h y ; hidden_size:i=3 ; layout:i=1 ; input_forget:i=1 ; direction:s=%s", ways[way]);
        RUNS(14, F32, &standard, NODES(node),
             ARRAYS(IN("x", F32, BATCH, SEQ, 4), w, r, b, IN("s", F32, BATCH, dirs, 3), IN("t", F32, BATCH, dirs, 3)));
        snprintf(node, sizeof node, "GRU x w r b n -> y h ; hidden_size:i=3 ; linear_before_reset:i=1 ; direction:s=%s",
                 ways[way]);
        RUNS(14, F32, &standard, NODES(node), ARRAYS(IN("x", F32, SEQ, 5, 4), gw, gr, gb, IN("n", I32, 5)));
        snprintf(node, sizeof node, "GRU x w r -> a y ; hidden_size:i=3 ; direction:s=%s", ways[way]);
        RUNS(14, F32, &standard, NODES(node), ARRAYS(IN("x", F32, SEQ, BATCH, 4), gw, gr));
    }
    RUNS(23, F32, &standard, NODES("Attention q k v -> y ; is_causal:i=1"),
         ARRAYS(IN("q", F32, BATCH, 2, SEQ, 4), IN("k", F32, BATCH, 2, SEQ, 4), IN("v", F32, BATCH, 2, SEQ, 4)));
    RUNS(23, F32, &standard, NODES("Attention q k v m -> y ; q_num_heads:i=4 ; kv_num_heads:i=2"),
         ARRAYS(IN("q", F32, BATCH, SEQ, 8), IN("k", F32, BATCH, SEQ, 4), IN("v", F32, BATCH, SEQ, 4), IN("m", F32, SEQ, SEQ)));
    const trial past = {
        { { "batch", 1, 3, 1 }, { "seq", 1, 4, 1 }, { "past seq", 1, 8, 1 } }, 3, { { 1, 1, 1 }, { 3, 4, 8 }, { 2, 1, 5 } }, 3
    };
    RUNS(23, F32, &past, NODES("Attention q k v _ pk pv -> y nk nv ; is_causal:i=1"),
         ARRAYS(IN("q", F32, BATCH, 2, SEQ, 4), IN("k", F32, BATCH, 2, SEQ, 4), IN("v", F32, BATCH, 2, SEQ, 4),
                IN("pk", F32, BATCH, 2, PAST, 4), IN("pv", F32, BATCH, 2, PAST, 4)));
    RUNS(23, F32, &standard, NODES("RotaryEmbedding x c s -> y"),
         ARRAYS(IN("x", F32, BATCH, 2, SEQ, 4), IN("c", F32, BATCH, SEQ, 2), IN("s", F32, BATCH, SEQ, 2)));
    RUNS(17, F32, &standard,
         NODES("com.microsoft.EmbedLayerNormalization i _ w p _ g b _ -> x n",
               "com.microsoft.Attention x k kb -> a ; num_heads:i=2 ; unidirectional:i=1",
               "com.microsoft.SkipLayerNormalization x a g b -> l", "com.microsoft.BiasGelu l b -> e",
               "com.microsoft.MultiHeadAttention e l l _ m -> f ; num_heads:i=4", "com.microsoft.FastGelu f -> y"),
         ARRAYS(IN("i", I32, BATCH, SEQ), WEIGHT("w", 5, 8), WEIGHT("p", 16, 8), WEIGHT("g", 8), WEIGHT("b", 8),
                WEIGHT("k", 8, 24), WEIGHT("kb", 24), IN("m", I32, BATCH, SEQ)));
    RUNS(13, F32, &standard, NODES("Resize x _ k -> y ; mode:s=linear"),
         ARRAYS(IN("x", F32, BATCH, 3, 4, 5), WHOLE("k", F32, float, 1, 1, 2, 1.5f)));
    RUNS(13, F32, &standard,
         NODES("Shape x -> s", "Slice s zero two -> lead", "Concat lead size -> t ; axis:i=0", "Resize x _ _ t -> y"),
         ARRAYS(IN("x", F32, BATCH, 3, 4, 5), INTS("zero", 0), INTS("two", 2), INTS("size", 6, 7)));
    RUNS(13, F32, &standard,
         NODES("Resize x _ k -> y ; mode:s=nearest ; coordinate_transformation_mode:s=asymmetric ; nearest_mode:s=floor"),
         ARRAYS(IN("x", F32, BATCH, 3, SEQ, 5), WHOLE("k", F32, float, 1, 1, 3, 2))); /* each element so many times */
    RUNS(13, I64, &standard, NODES("Resize x _ k -> y ; mode:s=nearest ; nearest_mode:s=ceil"),
         ARRAYS(IN("x", I64, BATCH, 3, SEQ, 5), WHOLE("k", F32, float, 1, 1, 2, 2))); /* and not quite that */
    RUNS(9, F32, &standard, NODES("Upsample x k -> y"),
         ARRAYS(IN("x", F32, BATCH, 3, 4, 5), WHOLE("k", F32, float, 1, 1, 2, 2)));
    RUNS(13, F32, &standard, NODES("ConvTranspose x k b -> y ; strides:l=2,2 ; pads:l=1,1,0,0 ; output_padding:l=1,1"),
         ARRAYS(IN("x", F32, BATCH, 4, 3, 5), WEIGHT("k", 4, 2, 3, 3), WEIGHT("b", 2)));
    RUNS(13, F32, &standard, NODES("SoftmaxCrossEntropyLoss x t -> y ; reduction:s=mean"),
         ARRAYS(IN("x", F32, BATCH, 3, SEQ), IN("t", I64, BATCH, SEQ)));
    RUNS(17, I64, &standard,
         NODES("ai.onnx.ml.LinearClassifier x -> y p ; coefficients:v=1,2,3,-1,-2,4 ; classlabels_ints:l=5,7,9"),
         ARRAYS(IN("x", F32, BATCH, 2)));
    RUNS(17, F32, &standard,
         NODES("ai.onnx.ml.Imputer x -> i ; imputed_value_floats:v=0.5",
               "ai.onnx.ml.Scaler i -> s ; offset:v=1,2 ; scale:v=2,3",
               "ai.onnx.ml.TreeEnsembleRegressor s -> t ; n_targets:i=1 ; nodes_treeids:l=0,0,0 ; nodes_nodeids:l=0,1,2 ; "
               "nodes_featureids:l=1,0,0 ; nodes_values:v=0.5,0,0 ; nodes_modes:t=BRANCH_LEQ,LEAF,LEAF ; "
               "nodes_truenodeids:l=1,0,0 ; "
               "nodes_falsenodeids:l=2,0,0 ; target_treeids:l=0,0 ; target_nodeids:l=1,2 ; target_ids:l=0,0 ; "
               "target_weights:v=2,3",
               "ai.onnx.ml.LinearRegressor s -> r ; coefficients:v=1,2", "Add r t -> y"),
         ARRAYS(IN("x", F32, BATCH, 2)));
    /* Images whose height and width a run gives, by scales, or by sizes that are so many times theirs. */
    static const float scales[][4] = { { 1, 1, 2, 2 }, { 1, 1, 1.5f, 3 }, { 1, 1, 0.7f, 1.2f }, { 1, 1, 2.3f, 0.5f } };
    static const char *const modes[] = { "nearest", "linear", "cubic" };
    static const char *const places[] = { "half_pixel",           "asymmetric",    "pytorch_half_pixel",
                                          "tf_half_pixel_for_nn", "align_corners", "half_pixel_symmetric" };
    const trial image = { { { "batch", 3, 12, 1 }, { "seq", 3, 9, 1 } }, 2, { { 3, 3 }, { 12, 9 }, { 5, 8 }, { 7, 4 } }, 4 };
    for (int k = 0; k < 4 * 3 * 6; k++) {
        char node[256];
        if (k / 4 % 3 == 2 && k / 12 > 3) continue;
        const array k_scale = { "k", F32, 1, { 4 }, scales[k % 4], 16, true, false };
        snprintf(node, sizeof node, "Resize x _ k -> y ; mode:s=%s ; coordinate_transformation_mode:s=%s%s", modes[k / 4 % 3],
                 places[k / 12],
                 k % 4 == 3   ? " ; nearest_mode:s=floor"
                 : k % 4 == 1 ? " ; nearest_mode:s=ceil"
                 : k % 4      ? " ; nearest_mode:s=round_prefer_ceil"
                              : "");
        RUNS(13, F32, &image, NODES(node), ARRAYS(IN("x", F32, 2, 3, BATCH, SEQ), k_scale));
    }
    RUNS(13, F32, &image,
         NODES("Shape x -> s", "Slice s zero two -> lead", "Slice s two four -> size", "Mul size three -> more",
               "Concat lead more -> t ; axis:i=0", "Resize x _ _ t -> y ; mode:s=linear"),
         ARRAYS(IN("x", F32, 2, 3, BATCH, SEQ), INTS("zero", 0), INTS("two", 2), INTS("four", 4), INTS("three", 3)));
    RUNS(7, F32, &image, NODES("Upsample x -> y ; mode:s=linear ; scales:v=1,1,2,1.5"), ARRAYS(IN("x", F32, 1, 3, BATCH, SEQ)));
    /* 6 / 1.2 is 5 in float, less with the exact value of 1.2f. */
    const float row[10] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 }, want[12] = { 0, 0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9 };
    float got[12];
    const array line[] = { { "x", F32, 3, { 1, 1, 10 }, row, 40, false, false }, WHOLE("k", F32, float, 1, 1, 1.2f) };
    int64_t n = run_model(NODES("Resize x _ k -> y ; coordinate_transformation_mode:s=asymmetric ; nearest_mode:s=floor"), line,
                          2, 13, "y", F32, TN_F32, got, sizeof got);
    assert_int_equal(n, 12);
    assert_memory_equal(got, want, sizeof got);
    REFUSED("coordinate_transformation_mode, of axis 3, whose size a run gives", F32,
            NODES("Resize x _ k -> y ; mode:s=cubic ; coordinate_transformation_mode:s=align_corners"),
            ARRAYS(IN("x", F32, BATCH, 3, 4, SEQ), WHOLE("k", F32, float, 1, 1, 2, 2)));
    REFUSED("exclude_outside, of axis 3, whose size a run gives", F32,
            NODES("Resize x _ k -> y ; mode:s=cubic ; exclude_outside:i=1"),
            ARRAYS(IN("x", F32, BATCH, 3, 4, SEQ), WHOLE("k", F32, float, 1, 1, 2, 2)));
    REFUSED("axis 3 has a size that a run gives, and is no whole number of times as long then", F32,
            NODES("Shape x -> s", "Slice s zero three -> lead", "Concat lead seven -> t ; axis:i=0", "Resize x _ _ t -> y"),
            ARRAYS(IN("x", F32, BATCH, 3, 4, SEQ), INTS("zero", 0), INTS("three", 3), INTS("seven", 7)));
    static const char *const transposed[] = { "strides:l=2,2 ; pads:l=1,0,1,2 ; output_padding:l=1,0",
                                              "strides:l=3,1 ; auto_pad:s=SAME_UPPER",
                                              "strides:l=2,4 ; auto_pad:s=SAME_LOWER ; group:i=2", "pads:l=2,1,0,1" };
    for (int k = 0; k < 4; k++) {
        char node[256];
        const array weights = WEIGHT("k", 4, 3, 3, 2), bias = WEIGHT("b", k == 2 ? 6 : 3);
        snprintf(node, sizeof node, "ConvTranspose x k b -> y ; %s", transposed[k]);
        RUNS(13, F32, &image, NODES(node), ARRAYS(IN("x", F32, 2, 4, BATCH, SEQ), weights, bias));
        RUNS(13, F32, &image, NODES(node), ARRAYS(IN("x", F32, 2, 4, 5, SEQ), weights, bias));
    }
    /* There and back: sizes that 2 divides, by a convolution and by a pool. */
    RUNS(13, F32, &even,
         NODES("Conv x w -> h ; strides:l=2,2 ; pads:l=1,1,1,1", "Resize h _ k -> u", "ConvTranspose h v -> t ; strides:l=2,2",
               "MaxPool x -> m ; kernel_shape:l=2,2 ; strides:l=2,2", "Mul m h -> n", "Shape n -> s",
               "Slice s zero two -> lead", "Concat lead rest -> flat ; axis:i=0", "Reshape n flat -> f",
               "ReduceMax f last -> r", "Unsqueeze r last -> r1", "Concat x u t -> c ; axis:i=1", "Mul c r1 -> y"),
         ARRAYS(IN("x", F32, 1, 1, BATCH, SEQ), WEIGHT("w", 1, 1, 3, 3), WEIGHT("v", 1, 2, 2, 2), INTS("zero", 0),
                INTS("two", 2), INTS("rest", -1), INTS("last", -1), WHOLE("k", F32, float, 1, 1, 2, 2)));
    RUNS(13, F32, &image, NODES("ConvTranspose x k -> y ; dilations:l=2,1 ; strides:l=1,2"),
         ARRAYS(IN("x", F32, 2, 3, BATCH, SEQ), WEIGHT("k", 3, 2, 3, 3)));
    REFUSED("output_shape, of axis 3, whose size a run gives", F32, NODES("ConvTranspose x k -> y ; output_shape:l=6,9"),
            ARRAYS(IN("x", F32, BATCH, 3, 4, SEQ), WEIGHT("k", 3, 2, 3, 3)));
    REFUSED("heads or features", F32, NODES("Attention q q q -> y ; q_num_heads:i=1 ; kv_num_heads:i=1"),
            ARRAYS(IN("q", F32, BATCH, 3, SEQ)));
    REFUSED("as many features as a run gives", F32, NODES("ai.onnx.ml.LinearRegressor x -> y ; coefficients:v=1,2"),
            ARRAYS(X2));
}

/* Loops: one body of as many turns as a run gives, which gives what turns that are written out give. */
static const subgraph bodies[] = {
    { "cell", "s x", "t y", { "MatMul s w -> m", "Add m x -> a", "Tanh a -> t", "Mul t outer -> y" } },
    { "two", "s x z", "t y v", { "Sub x z -> d", "Add s d -> t", "Identity t -> y", "Mul d outer -> v" } },
    { "each", "x", "y", { "Exp x -> y" } },
    { "turn",
      "i c s",
      "c2 t y",
      { "Gather x i -> xi", "MatMul s w -> m", "Add m xi -> a", "Tanh a -> t", "Mul t t -> y", "Identity c -> c2" } },
    { "until",
      "i c s",
      "c2 t y",
      { "Gather x i -> xi", "Add s xi -> t", "ReduceMax t -> r ; keepdims:i=0", "Less r lim -> c2", "Mul t t -> y" } },
    { "until_less",
      "i c s",
      "c2 t",
      { "Gather x i -> xi", "Add s xi -> t", "ReduceMax t -> r ; keepdims:i=0", "Less r lim -> c2" } },
    { "inner", "i c s", "c2 t", { "Mul s k -> u", "Add u row -> t", "Identity c -> c2" } },
    { "outer", "s x", "t y", { "Identity x -> row", "Loop n yes s -> t ; body:g=inner", "Mul t k -> y" } },
    { "counter", "i c s", "c2 t", { "Add i s1 -> j", "Less j n -> c2", "Add s s -> t" } },
    { "grow", "i c s", "c2 t", { "Concat s s -> t ; axis:i=0", "Identity c -> c2" } },
    { "foo", "i c s", "c2 t", { "Foo s -> t", "Identity c -> c2" } },
    { NULL },
};
static void test_loops(void **state) {
    (void)state;
    const array w = WEIGHT("w", 4, 4), x = IN("x", F32, SEQ, BATCH, 4), s = IN("s", F32, BATCH, 4), s0 = INT("s0", 0),
                s1 = INT("s1", 1), yes = { "yes", 9, 0, { 0 }, (bool[]){ true }, 1, true, false },
                off = { "off", 9, 0, { 0 }, (bool[]){ false }, 1, true, false },
                lim = { "lim", F32, 0, { 0 }, (float[]){ 2.5f }, 4, true, false },
                k = { "k", F32, 1, { 4 }, (float[]){ 0.5f, 0.3f, 0.2f, 0.1f }, 16, true, false };
    const trial steps = { { { "batch", 1, 9, 1 }, { "seq", 1, 40, 1 } }, 2, { { 1, 1 }, { 9, 32 }, { 3, 40 }, { 2, 4 } }, 4 };
#define LENGTH "Shape x -> sh", "Gather sh s0 -> n"
    subgraphs = bodies;
    RUNS(17, F32, &steps, NODES("Sin s -> outer", "Scan s x -> h y ; body:g=cell ; num_scan_inputs:i=1"), ARRAYS(x, s, w));
    RUNS(17, F32, &steps, NODES("Sin s -> outer", "Scan s x -> y h ; body:g=cell ; num_scan_inputs:i=1"), ARRAYS(x, s, w));
    for (int i = 0; i < 8; i++) {
        char node[256];
        snprintf(node, sizeof node,
                 "Scan s x -> h y ; body:g=cell ; num_scan_inputs:i=1 ; scan_input_axes:l=1 ; scan_output_axes:l=%d ; "
                 "scan_input_directions:l=%d ; scan_output_directions:l=%d",
                 i & 1 ? -1 : 1, i / 2 & 1, i / 4);
        RUNS(17, F32, &steps, NODES("Sin s -> outer", node), ARRAYS(IN("x", F32, BATCH, SEQ, 4), s, w));
    }
    RUNS(17, F32, &steps,
         NODES("Sin s -> outer", "Scan s x x -> h a b ; body:g=two ; num_scan_inputs:i=2 ; scan_input_directions:l=0,1",
               "Concat a b -> y ; axis:i=2"),
         ARRAYS(x, s));
    RUNS(17, F32, &steps, NODES("Scan x -> y ; body:g=each ; num_scan_inputs:i=1"), ARRAYS(x));
    RUNS(17, F32, &steps, NODES(LENGTH, "Loop n yes s -> h y ; body:g=turn"), ARRAYS(x, s, w, s0, yes));
    RUNS(17, F32, &steps, NODES(LENGTH, "Loop n _ s -> y h ; body:g=turn"), ARRAYS(x, s, w, s0));
    RUNS(17, F32, &steps, NODES(LENGTH, "Sub n s1 -> m", "Loop m _ s -> h y ; body:g=turn"), ARRAYS(x, s, w, s0, s1));
    RUNS(17, F32, &steps, NODES(LENGTH, "Loop n off s -> y ; body:g=until_less"), ARRAYS(x, s, s0, off, lim));
    /* Ended by its condition, by a value, or by the first of both; what it collects has a known number of rows only. */
    RUNS(17, F32, &steps, NODES(LENGTH, "Loop n yes s -> y ; body:g=until_less"), ARRAYS(x, s, s0, yes, lim));
    RUNS(17, F32, &steps, NODES(LENGTH, "Loop n yes s -> y _ ; body:g=until"), ARRAYS(x, s, s0, yes, lim));
    RUNS(17, F32, &steps, NODES(LENGTH, "Loop _ yes s -> y ; body:g=counter"), ARRAYS(x, s, s0, s1, yes));
    RUNS(17, F32, &steps, NODES("Loop n yes s -> y _ ; body:g=turn"),
         ARRAYS(x, s, w, yes, (array){ "n", I64, 0, { 0 }, NULL, 0, false, false }));
    RUNS(17, F32, &steps, NODES(LENGTH, "Scan s x -> h a ; body:g=outer ; num_scan_inputs:i=1", "Mul h k -> b", "Add a b -> y"),
         ARRAYS(x, s, s0, yes, k)); /* k is a constant of both bodies and of the graph */
    REFUSED("Loop (h): what it collects has as many rows as values of a run make it turn", F32,
            NODES(LENGTH, "Loop n yes s -> h y ; body:g=until"), ARRAYS(x, s, s0, yes, lim));
    REFUSED("Loop (h): what it collects has as many rows as values of a run make it turn", F32,
            NODES("Loop n yes s -> h y ; body:g=turn"), ARRAYS(x, s, w, yes, IN("n", I64, 1)));
    REFUSED("Loop (y): its state 0 has another type or shape after a turn", F32,
            NODES(LENGTH, "Loop n yes s -> y ; body:g=grow"), ARRAYS(x, s, s0, yes));
    REFUSED("Foo (y)/(t): this op is not known\n  Loop (y): nodes in it are refused", F32,
            NODES(LENGTH, "Loop n yes s -> y ; body:g=foo"), ARRAYS(x, s, s0, yes));
    REFUSED("Loop (y): nothing ends it", F32, NODES("Loop _ yes s -> y _ ; body:g=turn"), ARRAYS(x, s, w, yes));
#undef LENGTH
}

/* A cache of past positions, as decoders have it, with a name that is no word. */
static void test_past(void **state) {
    (void)state;
    const trial past = {
        { { "batch", 1, 3, 1 }, { "seq", 1, 4, 1 }, { "past seq", 0, 8, 1 } }, 3, { { 1, 1, 0 }, { 3, 4, 8 }, { 2, 1, 5 } }, 3
    };
    RUNS(13, F32, &past,
         NODES("Concat old k -> keys ; axis:i=1", "Transpose keys -> kt ; perm:l=0,2,1", "MatMul q kt -> dots",
               "Softmax dots -> p ; axis:i=-1", "MatMul p keys -> mixed", "Shape keys -> s", "Gather s one -> n",
               "Range zero n one -> places", "Cast places -> f ; to:i=1", "Unsqueeze f axis -> row", "Mul p row -> moved",
               "ReduceSum moved axes -> sums", "Add mixed sums -> y"),
         ARRAYS(IN("q", F32, BATCH, SEQ, 4), IN("k", F32, BATCH, SEQ, 4), IN("old", F32, BATCH, PAST, 4), INT("one", 1),
                INT("zero", 0), INTS("axis", 0), INTS("axes", 2)));
    /* A mask of all positions, whose size is a sum of two. */
    RUNS(13, F32, &past,
         NODES("Concat old k -> keys ; axis:i=1", "Transpose keys -> kt ; perm:l=0,2,1", "MatMul q kt -> dots",
               "Unsqueeze mask one1 -> rows", "Add dots rows -> s", "Softmax s -> p ; axis:i=-1", "MatMul p keys -> y"),
         ARRAYS(IN("q", F32, BATCH, SEQ, 4), IN("k", F32, BATCH, SEQ, 4), IN("old", F32, BATCH, PAST, 4),
                IN("mask", F32, BATCH, TOTAL), INTS("one1", 1)));
}

/* ---- what is refused, and what is wrong ---- */

static void test_refused(void **state) {
    (void)state;
    const array one = INTS("one", 1), two = INTS("two", 2), s1 = INT("s1", 1);
    REFUSED("GridSample (y): operand 0 has a size that a run gives", F32, NODES("GridSample x k -> y"),
            ARRAYS(IN("x", F32, BATCH, 3, 4, SEQ), IN("k", F32, BATCH, 2, 2, 2)));
    REFUSED("NonZero", I64, NODES("NonZero x -> y"), ARRAYS(X2));
    REFUSED("axis 1 has a size that a run gives", F32, NODES("Squeeze x one -> y"), ARRAYS(X3, one));
    REFUSED("axis 1 and its new size are not always equal", F32, NODES("Expand x s -> y"), ARRAYS(X3, INTS("s", 1, 5, 4)));
    REFUSED("do not fit into", F32, NODES("Reshape x s -> y"), ARRAYS(X3, INTS("s", -1, 3)));
    REFUSED("do not broadcast", F32, NODES("Add x k -> y"), ARRAYS(X2, WEIGHT("k", 3)));
    REFUSED("an axis may be too short", F32, NODES("Conv x k -> y"), ARRAYS(IN("x", F32, BATCH, 4, SEQ), WEIGHT("k", 6, 4, 3)));
    REFUSED("a range LO..HI:2 of its dim says that", F32, NODES("Split x -> a y ; axis:i=1"), ARRAYS(X3));
    REFUSED("channels or weights", F32, NODES("Conv x k -> y"), ARRAYS(IN("x", F32, BATCH, SEQ, 9), WEIGHT("k", 6, 4, 3)));
    /* A size that no arithmetic of dims says: computed by the run, and so no shape. */
    REFUSED("Reshape (y): its shape is not known at import: it depends on the value of an input, or on sizes that a run gives",
            F32, NODES("Shape x -> s", "Cast s -> f ; to:i=1", "Cast f -> t ; to:i=7", "Reshape x t -> y"), ARRAYS(X3));
    REFUSED("a bound that may count from either end", F32,
            NODES("Shape x -> s", "Slice s one two -> q", "Sub q k -> from", "Slice x from q one -> y"),
            ARRAYS(X3, one, two, INTS("k", 4)));
    /* All at once. */
    int runs = 0;
    const char *no = verdict(NODES("NonZero x -> a", "Compress x z -> b", "Relu x -> y"), ARRAYS(X2, IN("z", 9, BATCH)), 17,
                             F32, &standard, &runs);
    assert_true(no && strstr(no, "NonZero (a)") && strstr(no, "Compress (b)") && strstr(no, "2 of its nodes"));
}

static void test_wrong(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    bytes *b = malloc(sizeof *b);
    *b = model_of(NODES("Relu x -> y"), ARRAYS(X3), 13, "y", F32);
    tn_onnx_model *m;
    tn_graph *g;
    assert_int_equal(tn_onnx_parse(ctx, b->at, b->n, "model", NULL, &m), TN_OK);
    const struct {
        tn_onnx_range r[2];
        const char *text;
    } cases[] = {
        { { { "batch", 4, 2, 1 }, { "seq", 2, 3, 1 } }, "the range 4..2" },
        { { { "batch", -1, 2, 1 }, { "seq", 2, 3, 1 } }, "the range -1..2" },
        { { { "batch", 1, 8, 3 }, { "seq", 2, 3, 1 } }, "must be multiples of 3" },
        { { { "batch", 1, 8, 0 }, { "seq", 2, 3, 1 } }, "must be multiples of 0" },
        { { { "batch", 1, 8, 1 }, { "length", 2, 3, 1 } }, "no input has a dim 'length'" },
        { { { "batch", 1, 8, 1 }, { "batch", 1, 8, 1 } }, "'batch' is not all that is said of it" },
        { { { "x[1]", 1, 8, 1 }, { "x_1_", 1, 8, 1 } }, "'x_1_' is not all that is said of it" },
        { { { "batch", 1, 8, 1 }, { NULL, 1, 8, 1 } }, "is not all that is said of it" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_onnx_opts o = TN_ONNX_DEFAULTS;
        o.ranges = cases[i].r, o.n_ranges = 2;
        assert_fails(ctx, tn_onnx_import(m, &o, &g), TN_ERR_INVAL, cases[i].text, cases[i].text);
    }
    tn_onnx_opts o = TN_ONNX_DEFAULTS;
    const tn_onnx_range both[] = { { "batch", 1, 8, 1 }, { "x[1]", 2, 4, 2 } };
    const tn_onnx_dim size = { "batch", 3 };
    o.ranges = both, o.n_ranges = 2, o.dims = &size, o.n_dims = 1;
    assert_fails(ctx, tn_onnx_import(m, &o, &g), TN_ERR_INVAL, "'batch' is not all", "a size and a range");
    o.n_dims = 0, o.ranges = NULL;
    assert_fails(ctx, tn_onnx_import(m, &o, &g), TN_ERR_INVAL, "NULL", "no ranges");
    o.ranges = both, o.immediate = 1;
    assert_fails(ctx, tn_onnx_import(m, &o, &g), TN_ERR_INVAL, "its dims are numbers", "immediate mode");
    o.immediate = 0;
    float x[2 * 4 * 4] = { 0 };
    tn_onnx_value v = { "x", TN_F32, TN_DIMS(2, 4, 4), x };
    o.values = &v, o.n_values = 1;
    assert_int_equal(tn_onnx_import(m, &o, &g), TN_OK); /* a value leaves open what is to be open */
    tn_graph_free(g);
    o.constant_inputs = 1; /* and it is no constant */
    assert_int_equal(tn_onnx_import(m, &o, &g), TN_OK);
    assert_false(tn_onnx_input_is_constant(m, 0));
    tn_graph_free(g);
    v.shape.dim[1] = 3;
    assert_fails(ctx, tn_onnx_import(m, &o, &g), TN_ERR_INVAL, "dim 1 of input 'x' is 3: expected 2 to 4, a multiple of 2",
                 "a value of no such size");
    tn_onnx_model_free(m), tn_ctx_free(ctx), free(b);
}

/* Sizes out of their range, and shapes that do not fit, are errors of the run. */
static void test_runs(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    bytes *b = malloc(sizeof *b);
    *b = model_of(NODES("Add x z -> y"), ARRAYS(X2, IN("z", F32, BATCH, 1)), 13, "y", F32);
    tn_onnx_model *m;
    assert_int_equal(tn_onnx_parse(ctx, b->at, b->n, "model", NULL, &m), TN_OK);
    const tn_onnx_range ranges[] = { { "batch", 2, 8, 2 }, { "seq", 2, 4, 1 } };
    tn_onnx_opts o = TN_ONNX_DEFAULTS;
    o.ranges = ranges, o.n_ranges = 2;
    made x = compiled(ctx, m, &o, "two inputs");
    float data[64] = { 0 }, y[64];
    tn_binding all[] = { { "x", data }, { "z", data }, { "y", y } };
    assert_int_not_equal(tn_run(x.s, all, 3), TN_OK); /* without sizes */
    assert_int_equal(tn_bind_shape(x.s, "x", TN_DIMS(5, 2)), TN_ERR_INVAL);
    assert_int_equal(tn_bind_shape(x.s, "x", TN_DIMS(4, 5)), TN_ERR_INVAL);
    assert_int_equal(tn_bind_shape(x.s, "x", TN_DIMS(4, 3)), TN_OK);
    assert_int_equal(tn_bind_shape(x.s, "z", TN_DIMS(4, 2)), TN_ERR_SHAPE);
    assert_int_equal(tn_run(x.s, all, 3), TN_OK);
    close_made(&x);
    tn_onnx_model_free(m), tn_ctx_free(ctx), free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlp),    cmocka_unit_test(test_cnn),    cmocka_unit_test(test_transformer),
        cmocka_unit_test(test_shapes), cmocka_unit_test(test_ops),    cmocka_unit_test(test_past),
        cmocka_unit_test(test_loops),  cmocka_unit_test(test_layers), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_wrong),  cmocka_unit_test(test_runs),
    };
    return cmocka_run_group_tests(tests, setup_weights, NULL);
}
