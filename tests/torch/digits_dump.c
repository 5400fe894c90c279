/* digits_dump.c - the network of examples/digits.c as numbers for a second opinion (test_torch.sh, second_opinion.py).
 * Usage: digits_dump OUT.safetensors SEED f32|f64
 *
 * Out, in one file:
 *   images f[10,32,8,8,1], labels i32[10,32]: ten batches
 *   init/P, grad/P, final/P for each parameter P: first value, gradient for batch 0, value after 50 steps of Adam
 *   grad_loss f[], loss f[50]: the loss that was differentiated, and those of the steps (which take the batches in turn) */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tenon/tenon.h>
#include <tenon/tenon_io.h>
#include <tenon/tenon_nn.h>

enum { BATCH = 32, BATCHES = 10, STEPS = 50, PARAMS = 8, PIXELS = 64 };
enum { INIT, GRAD, FINAL, KINDS };

static tn_ctx *ctx;
static tn_dtype type; /* of images, parameters and losses */
static float images32[BATCHES * BATCH][PIXELS];
static double images64[BATCHES * BATCH][PIXELS], loss[STEPS], grad_loss; /* the losses are memory for either type */
static void *images;
static int32_t labels[BATCHES * BATCH];
static char names[KINDS][PARAMS][64];
static tn_io_tensor file[KINDS * PARAMS + 4];

static void check(tn_status code) {
    if (code == TN_OK) return;
    fprintf(stderr, "digits_dump: %s\n", tn_ctx_error(ctx));
    exit(1);
}

/* Noise in [0, 1), and a brighter band of six pixels that tells the class. */
static void make_data(uint64_t seed) {
    uint64_t r = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < BATCHES * BATCH; i++) {
        labels[i] = (int32_t)((r >> 40) % 10);
        for (int p = 0; p < PIXELS; p++) {
            r = r * 6364136223846793005u + 1442695040888963407u;
            images32[i][p] = (float)(r >> 40) / 16777216.0f + (p / 6 == labels[i] ? 0.5f : 0.0f);
            images64[i][p] = (double)images32[i][p];
        }
    }
    images = type == TN_F64 ? (void *)images64 : (void *)images32;
}

static tn_tensor network(tn_tensor x /* f[N,8,8,1] */) { /* f[N,10] */
    tn_nn_conv_opts conv1 = { .out_channels = 16, .kernel = { 3, 3 }, .padding = { 1, 1 } }, conv2 = conv1;
    conv2.out_channels = 32;
    x = tn_relu(tn_nn_conv2d(x, conv1, "conv1"));
    x = tn_relu(tn_nn_conv2d(x, conv2, "conv2"));
    x = tn_nn_max_pool(x, (tn_nn_pool_opts){ .kernel = { 2, 2 } });
    x = tn_relu(tn_nn_linear(tn_reshape(x, TN_DIMS(tn_tensor_shape(x).dim[0], 4 * 4 * 32)), 64, "fc1"));
    return tn_nn_linear(x, 10, "fc2");
}
static tn_tensor loss_of(tn_graph *g) {
    tn_tensor x = tn_input(g, "images", type, TN_DIMS(BATCH, 8, 8, 1)), t = tn_input(g, "labels", TN_I32, TN_DIMS(BATCH));
    return tn_nn_cross_entropy(network(x), t);
}

static tn_session *session(tn_graph *g, tn_mode mode, tn_program **out_program) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_session *s;
    o.mode = mode;
    check(tn_compile(g, &o, out_program));
    check(tn_session_new(*out_program, &s));
    return s;
}

/* Room in the file for one array like parameter i of g. */
static void *slot_of(tn_graph *g, int kind, int i) {
    static const char *const prefix[KINDS] = { "init", "grad", "final" };
    tn_tensor p = tn_graph_param(g, i);
    char *name = names[kind][i];
    void *data = malloc(tn_tensor_bytes(p));
    if (!data) exit(1);
    snprintf(name, sizeof names[kind][i], "%s/%s", prefix[kind], tn_tensor_name(p));
    file[kind * PARAMS + i] = (tn_io_tensor){ name, type, tn_tensor_shape(p), data };
    return data;
}

static void take_gradients(void) {
    tn_graph *g = tn_graph_new(ctx, "digits_gradients");
    tn_tensor l = loss_of(g), p[PARAMS], d[PARAMS];
    tn_program *program;
    tn_binding io[PARAMS + 3] = { { "images", images }, { "labels", labels }, { "loss", &grad_loss } };
    if (tn_graph_n_params(g) != PARAMS) exit(1);
    for (int i = 0; i < PARAMS; i++) p[i] = tn_graph_param(g, i);
    check(tn_grad(l, p, PARAMS, d));
    tn_output(l, "loss");
    for (int i = 0; i < PARAMS; i++) {
        void *data = slot_of(g, GRAD, i);
        tn_output(d[i], names[GRAD][i]);
        io[i + 3] = (tn_binding){ names[GRAD][i], data };
    }
    tn_session *s = session(g, TN_MODE_COMPILED, &program);
    check(tn_run(s, io, PARAMS + 3));
    tn_session_free(s), tn_program_free(program), tn_graph_free(g);
}

static void take_states(tn_session *s, tn_graph *g, int kind) {
    for (int i = 0; i < PARAMS; i++) {
        tn_tensor p = tn_graph_param(g, i);
        check(tn_session_get(s, tn_tensor_name(p), slot_of(g, kind, i), tn_tensor_bytes(p)));
    }
}
static void take_training(void) {
    tn_graph *g = tn_graph_new(ctx, "digits_train");
    tn_tensor l = loss_of(g);
    tn_program *program;
    tn_nn_adam(l, (tn_nn_adam_opts){ .lr = 2e-3 });
    tn_output(l, "loss");
    tn_session *s = session(g, TN_MODE_LOOP, &program);
    take_states(s, g, INIT);
    check(tn_session_bind_trace(s, tn_session_slot(s, "loss"), loss, STEPS));
    check(tn_run_n(s, STEPS, TN_BIND({ "images", images }, { "labels", labels }), BATCHES));
    take_states(s, g, FINAL);
    tn_session_free(s), tn_program_free(program), tn_graph_free(g);
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: digits_dump OUT.safetensors SEED f32|f64\n"), 2;
    type = strcmp(argv[3], "f64") ? TN_F32 : TN_F64;
    tn_config cfg = { .struct_size = sizeof cfg };
    tn_config_from_env(&cfg);
    if (!(ctx = tn_ctx_new(&cfg))) return 1;
    make_data(strtoull(argv[2], NULL, 10));
    take_gradients();
    take_training();
    tn_io_tensor *rest = file + KINDS * PARAMS;
    rest[0] = (tn_io_tensor){ "images", type, TN_DIMS(BATCHES, BATCH, 8, 8, 1), images };
    rest[1] = (tn_io_tensor){ "labels", TN_I32, TN_DIMS(BATCHES, BATCH), labels };
    rest[2] = (tn_io_tensor){ "loss", type, TN_DIMS(STEPS), loss };
    rest[3] = (tn_io_tensor){ "grad_loss", type, TN_SCALAR, &grad_loss };
    check(tn_io_safetensors_save(ctx, argv[1], file, KINDS * PARAMS + 4));
    for (int i = 0; i < KINDS * PARAMS; i++) free((void *)(uintptr_t)file[i].data);
    tn_ctx_free(ctx);
    return 0;
}
