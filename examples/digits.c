/* digits.c - trains a small convolutional network on the UCI handwritten digits, saves and reloads it, runs it in five modes.
 * Usage: digits [--json] [data/digits.csv]   (scripts/fetch-data makes the file: 1797 rows of 64 pixels 0..16 and a label) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <tenon/tenon.h>
#include <tenon/tenon_io.h>
#include <tenon/tenon_nn.h>

enum { IMAGES = 1797, TEST = 360, TRAIN = IMAGES - TEST, BATCH = 32, STEPS = TRAIN / BATCH, EPOCHS = 30 };
static tn_ctx *ctx;
static void check(tn_status code) {
    if (code) fprintf(stderr, "digits: %s\n", tn_ctx_error(ctx)), exit(1);
}
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static tn_tensor network(tn_tensor x /* f32[N,8,8,1] */) { /* f32[N,10]: one score a digit */
    tn_nn_conv_opts conv1 = { .out_channels = 16, .kernel = { 3, 3 }, .padding = { 1, 1 } }, conv2 = conv1;
    conv2.out_channels = 32;
    x = tn_relu(tn_nn_conv2d(x, conv1, "conv1"));
    x = tn_relu(tn_nn_conv2d(x, conv2, "conv2"));
    x = tn_nn_max_pool(x, (tn_nn_pool_opts){ .kernel = { 2, 2 } });
    x = tn_relu(tn_nn_linear(tn_reshape(x, TN_DIMS(tn_tensor_shape(x).dim[0], 4 * 4 * 32)), 64, "fc1"));
    return tn_nn_linear(x, 10, "fc2");
}
static tn_session *session(tn_graph *g, tn_mode mode, int no_cache, tn_program **out_program) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_session *s = NULL;
    o.mode = mode, o.no_cache = no_cache;
    check(tn_compile(g, &o, out_program));
    check(tn_session_new(*out_program, &s));
    return s;
}
int main(int argc, char **argv) {
    int json = argc > 1 && !strcmp(argv[1], "--json");
    const char *path = argc > 1 + json ? argv[1 + json] : "data/digits.csv";
    tn_config cfg = { .struct_size = sizeof cfg };
    tn_config_from_env(&cfg);
    if (!(ctx = tn_ctx_new(&cfg))) return 1;
    /* Data: shuffled once with a fixed seed; the last 360 images are kept for testing. */
    tn_shape shape;
    float *table, (*x)[64] = malloc(sizeof(float[IMAGES][64])), loss[STEPS], scores[TEST][10], first[TEST][10];
    int32_t *label = malloc(sizeof(int32_t[IMAGES]));
    check(tn_io_csv_load(ctx, path, TN_F32, 0, &shape, (void **)&table));
    if (shape.dim[0] != IMAGES || shape.dim[1] != 65) return fputs("digits: run scripts/fetch-data\n", stderr), 1;
    unsigned order[IMAGES], random = 12345;
    for (unsigned i = 0; i < IMAGES; i++) { /* an inside-out shuffle */
        unsigned j = ((random = random * 1664525u + 1013904223u) >> 8) % (i + 1);
        order[i] = order[j], order[j] = i;
    }
    for (int i = 0; i < IMAGES; i++) {
        for (int p = 0; p < 64; p++) x[i][p] = table[(size_t)order[i] * 65 + (size_t)p] / 16;
        label[i] = (int32_t)table[(size_t)order[i] * 65 + 64];
    }
    tn_io_free(ctx, table);
    /* Training: loss, gradients and Adam are one graph; an epoch is one call. */
    double start = seconds();
    tn_graph *g = tn_graph_new(ctx, "digits_train"), *h = tn_graph_new(ctx, "digits");
    tn_tensor images = tn_input(g, "images", TN_F32, TN_DIMS(BATCH, 8, 8, 1)),
              labels = tn_input(g, "labels", TN_I32, TN_DIMS(BATCH)), l = tn_nn_cross_entropy(network(images), labels);
    tn_nn_adam(l, (tn_nn_adam_opts){ .lr = 2e-3 });
    tn_output(l, "loss");
    static const char dashes[] = "##############################";
    tn_program *p, *q;
    tn_session *train = session(g, TN_MODE_LOOP, 0, &p), *s;
    check(tn_session_bind_trace(train, tn_session_slot(train, "loss"), loss, STEPS));
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        check(tn_run_n(train, STEPS, TN_BIND({ "images", x }, { "labels", label }), STEPS));
        float mean = 0;
        for (int i = 0; i < STEPS; i++) mean += loss[i] / STEPS;
        int bar = epoch + 1;
        if (isatty(2)) fprintf(stderr, "\r[%.*s%*s] loss %.4f ", bar, dashes, EPOCHS - bar, "", (double)mean);
    }
    double spent = seconds() - start;
    /* Saved, loaded again into another graph, and run in five modes. */
    check(tn_io_save_state(ctx, train, "digits.safetensors"));
    tn_output(network(tn_input(h, "images", TN_F32, TN_DIMS(TEST, 8, 8, 1))), "scores");
    static const char *const names[] = { "naive", "immediate", "graph", "compiled", "loop" };
    static const tn_mode modes[] = { TN_MODE_IMMEDIATE, TN_MODE_IMMEDIATE, TN_MODE_GRAPH, TN_MODE_COMPILED, TN_MODE_LOOP };
    int right = 0, agree = 1;
    for (int m = 0; m < 5; m++) {
        tn_program_stats st;
        int repeat = m == 0 ? 1 : 50; /* naive compiles every op again */
        s = session(h, modes[m], m == 0, &q);
        check(tn_io_load_state(ctx, s, "digits.safetensors"));
        check(tn_session_bind(s, tn_session_slot(s, "images"), x[TRAIN]));
        check(tn_session_bind(s, tn_session_slot(s, "scores"), scores));
        check(tn_session_run(s));
        double t = seconds();
        for (int i = 0; i < repeat && m < 4; i++) check(tn_session_run(s));
        if (m == 4) check(tn_run_n(s, repeat, NULL, 0, 0));
        t = (seconds() - t) / repeat;
        tn_session_get_stats(s, &st);
        if (m == 0) memcpy(first, scores, sizeof first);
        for (int i = 0; i < TEST; i++) {
            int best = 0;
            for (int c = 0; c < 10; c++) {
                if (scores[i][c] > scores[i][best]) best = c;
                agree &= fabsf(scores[i][c] - first[i][c]) <= 1e-4f * (1 + fabsf(first[i][c]));
            }
            right += m == 0 && best == label[TRAIN + i];
        }
        double acc = right / (double)TEST;
        if (!m && json) printf("{\"accuracy\":%.4f,\"seconds\":%.2f,\"epochs\":%d,\"modes\":[", acc, spent, EPOCHS);
        if (!m && !json) printf("accuracy %.2f %% of %d test images, trained in %.1f s\n", 100 * acc, TEST, spent);
        unsigned long long bytes = st.bytes_read + st.bytes_written;
        const char *form = json ? "%s{\"mode\":\"%s\",\"images_per_s\":%.0f,\"kernels\":%d,\"bytes\":%llu}"
                                : "%s%-10s %12.0f images/s %4d kernels %10llu bytes moved\n";
        printf(form, json && m ? "," : "", names[m], TEST / t, st.kernels, bytes);
        tn_session_free(s), tn_program_free(q);
    }
    printf(json ? "]}\n" : "all five modes agree: %s\n", agree ? "yes" : "NO");
    tn_session_free(train), tn_program_free(p), tn_graph_free(g), tn_graph_free(h), tn_ctx_free(ctx);
    return !agree || right < 0.98 * TEST;
}
