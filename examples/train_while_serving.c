/* train_while_serving.c - one thread trains on the UCI handwritten digits while others ask the same network what they see: new
 * weights are published between training steps, and no request waits for that.
 * Usage: train_while_serving [--json] [data/digits.csv]   (scripts/fetch-data makes the file) */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tenon/tenon.h>
#include <tenon/tenon_io.h>
#include <tenon/tenon_nn.h>
#include <tenon/tenon_serve.h>

enum {
    IMAGES = 1797,
    TEST = 360,
    TRAIN = IMAGES - TEST,
    BATCH = 32,
    STEPS = TRAIN / BATCH,
    EPOCHS = 200,
    CLIENTS = 4,
    CHUNK = 4
};
static tn_ctx *ctx;
static float (*x)[64];
static int32_t *label;
static atomic_int stop;

static void check(tn_status code) {
    if (code) fprintf(stderr, "train_while_serving: %s\n", tn_ctx_error(ctx)), exit(1);
}
static tn_tensor network(tn_tensor images /* f32[N,8,8,1] */, int64_t n) { /* f32[N,10] */
    tn_nn_conv_opts conv = { .out_channels = 16, .kernel = { 3, 3 }, .padding = { 1, 1 } };
    tn_tensor y = tn_nn_max_pool(tn_relu(tn_nn_conv2d(images, conv, "conv")), (tn_nn_pool_opts){ .kernel = { 2, 2 } });
    return tn_nn_linear(tn_relu(tn_nn_linear(tn_reshape(y, TN_DIMS(n, 4 * 4 * 16)), 64, "fc1")), 10, "fc2");
}
static tn_program *compile(tn_graph *g, tn_mode mode) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    o.mode = mode, o.threads = 1;
    check(tn_compile(g, &o, &p));
    return p;
}
static void read_digits(const char *path) { /* shuffled once; the last 360 are kept for asking */
    tn_shape shape;
    float *table;
    unsigned order[IMAGES], random = 12345;
    check(tn_io_csv_load(ctx, path, TN_F32, 0, &shape, (void **)&table));
    if (shape.dim[0] != IMAGES || shape.dim[1] != 65) fputs("train_while_serving: run scripts/fetch-data\n", stderr), exit(1);
    x = malloc(sizeof(float[IMAGES][64])), label = malloc(sizeof(int32_t[IMAGES]));
    if (!x || !label) exit(1);
    for (unsigned i = 0; i < IMAGES; i++) {
        unsigned j = ((random = random * 1664525u + 1013904223u) >> 8) % (i + 1);
        order[i] = order[j], order[j] = i;
    }
    for (int i = 0; i < IMAGES; i++) {
        for (int p = 0; p < 64; p++) x[i][p] = table[(size_t)order[i] * 65 + (size_t)p] / 16;
        label[i] = (int32_t)table[(size_t)order[i] * 65 + 64];
    }
    tn_io_free(ctx, table);
}

typedef struct client {
    tn_batcher *b;
    pthread_t thread;
    unsigned seed;
    atomic_int asked, right, failed;
} client;

static void *ask(void *ud) { /* about 1,000 questions a second, one image each */
    client *c = ud;
    while (!stop) {
        float scores[10];
        int i = TRAIN + (int)((c->seed = c->seed * 1664525u + 1013904223u) >> 8) % TEST, best = 0;
        if (tn_batcher_run(c->b, TN_BIND({ "images", x[i] }, { "scores", scores }), 1)) c->failed++;
        for (int k = 1; k < 10; k++)
            if (scores[k] > scores[best]) best = k;
        c->asked++;
        if (best == label[i]) c->right++;
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    return NULL;
}
static void print_line(int json, tn_batcher *b, client *c, const char *when, int published) {
    tn_batcher_stats s;
    int asked = 0, right = 0;
    tn_batcher_get_stats(b, &s, 1);
    for (int i = 0; i < CLIENTS; i++) asked += atomic_exchange(&c[i].asked, 0), right += atomic_exchange(&c[i].right, 0);
    const char *form =
        json ? "{\"when\":\"%s\",\"published\":%d,\"answers\":%d,\"right\":%.4f,\"p50_us\":%.1f,\"p99_us\":%.1f}\n"
             : "%-22s %6d sets of weights %8d answers %7.2f %% right   p50 %6.0f us   p99 %6.0f us\n";
    printf(form, when, published, asked, (json ? 1 : 100) * (asked ? right / (double)asked : 0), 1e6 * s.p50, 1e6 * s.p99);
    fflush(stdout);
}
int main(int argc, char **argv) {
    int json = argc > 1 && !strcmp(argv[1], "--json"), failed = 0, published = 0;
    tn_config cfg = { .struct_size = sizeof cfg };
    tn_config_from_env(&cfg);
    if (!(ctx = tn_ctx_new(&cfg))) return 1;
    read_digits(argc > 1 + json ? argv[1 + json] : "data/digits.csv");
    tn_graph *g = tn_graph_new(ctx, "train"), *h = tn_graph_new(ctx, "serve");
    tn_tensor loss = tn_nn_cross_entropy(network(tn_input(g, "images", TN_F32, TN_DIMS(BATCH, 8, 8, 1)), BATCH),
                                         tn_input(g, "labels", TN_I32, TN_DIMS(BATCH)));
    tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 2e-3 });
    tn_output(loss, "loss");
    int64_t n = tn_dim(h, "batch", 1, 64, 1);
    tn_output(network(tn_input(h, "images", TN_F32, TN_DIMS(n, 8, 8, 1)), n), "scores");
    tn_program *train = compile(g, TN_MODE_LOOP), *serve = compile(h, TN_MODE_COMPILED);
    tn_session *s;
    tn_batcher *b;
    client c[CLIENTS];
    check(tn_session_new(train, &s));
    check(tn_batcher_new(ctx, serve, &(tn_batcher_opts){ .max_batch = 64 }, &b));
    memset(c, 0, sizeof c);
    for (int i = 0; i < CLIENTS; i++) {
        c[i].b = b, c[i].seed = (unsigned)i;
        if (pthread_create(&c[i].thread, NULL, ask, &c[i])) return 1;
    }
    nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
    print_line(json, b, c, "before training", published);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        for (int at = 0; at + CHUNK <= STEPS; at += CHUNK, published++) {
            check(tn_run_n(s, CHUNK, TN_BIND({ "images", x[at * BATCH] }, { "labels", label + at * BATCH }), CHUNK));
            if (tn_batcher_publish(b, s)) return 1;
        }
        if (epoch % 50 == 49) print_line(json, b, c, "while training", published);
    }
    nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
    print_line(json, b, c, "trained", published);
    stop = 1;
    for (int i = 0; i < CLIENTS; i++) pthread_join(c[i].thread, NULL), failed += c[i].failed;
    tn_batcher_free(b), tn_session_free(s);
    tn_program_free(train), tn_program_free(serve), tn_graph_free(g), tn_graph_free(h), tn_ctx_free(ctx);
    free(x), free(label);
    return failed > 0;
}
