/* lstm.c - an LSTM learns to write a text, letter by letter. The text is read as many streams side by side, a window of each at
 * a time, and the state that a window ends with is the one that the next begins with: gradients reach back to the beginning of
 * a window, memory further. Usage: lstm [--json] [--steps N] [data/kjv.txt]   (scripts/fetch-data kjv makes the file; any text
 * will do) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <tenon/tenon.h>
#include <tenon/tenon_data.h>
#include <tenon/tenon_io.h>
#include <tenon/tenon_nn.h>
#include <tenon/tenon_text.h>

enum { STREAMS = 16, WINDOW = 32, WIDTH = 128 /* units of the LSTM */, EMBED = 32, RING = 8, WRITE = 300 };
static const char help[] =
    "usage: lstm [--json] [--steps N] [TEXT]\n"
    "Trains an LSTM of 128 units on the bytes of TEXT (default data/kjv.txt, made by scripts/fetch-data kjv) but the last "
    "tenth\n"
    "for N windows of 16 streams x 32 bytes (default 1000), and says how well it foretells the last tenth: bits a byte, "
    "beside\n"
    "those of counting single bytes, and pairs of them. Then it writes.\n";
static tn_ctx *ctx;
static void check(tn_status code) {
    if (code) fprintf(stderr, "lstm: %s\n", tn_ctx_error(ctx)), exit(1);
}
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
/* Scores of the letter behind each: f32[T,B,letters]. States "<streams>/h" and c go from run to run. */
static tn_tensor network(tn_tensor x /* i32[T,B] */, int letters, const char *streams) {
    tn_graph *g = x.graph;
    tn_shape shape = TN_DIMS(1, tn_tensor_shape(x).dim[1], WIDTH);
    tn_graph_push(g, "%s", streams);
    tn_tensor h = tn_state(g, "h", TN_F32, shape, NULL), c = tn_state(g, "c", TN_F32, shape, NULL), last_h, last_c;
    tn_graph_pop(g);
    tn_nn_rnn_opts o = { .h = h, .c = c, .out_h = &last_h, .out_c = &last_c };
    tn_tensor y = tn_nn_lstm(tn_nn_embedding(x, letters, EMBED, "letter"), WIDTH, "lstm", o);
    tn_assign(h, last_h), tn_assign(c, last_c);
    return tn_nn_linear(y, letters, "score");
}
static tn_tensor loss_of(tn_graph *g, int letters, const char *streams) { /* mean of -log(probability of the next letter) */
    tn_shape shape = TN_DIMS(1, WINDOW, STREAMS);                         /* a batch of the loader is one window */
    tn_tensor x = tn_input(g, "x", TN_I32, shape), y = tn_input(g, "y", TN_I32, shape);
    tn_shape whole = TN_DIMS(WINDOW, STREAMS);
    tn_tensor loss = tn_nn_cross_entropy(network(tn_reshape(x, whole), letters, streams), tn_reshape(y, whole));
    tn_output(loss, "loss");
    return loss;
}
static tn_session *session(tn_graph *g, tn_mode mode, tn_program **out_program) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_session *s = NULL;
    o.mode = mode;
    check(tn_compile(g, &o, out_program));
    check(tn_session_new(*out_program, &s));
    tn_graph_free(g);
    return s;
}
/* STREAMS pieces of the text, side by side: i32[time,STREAMS], of which an example is WINDOW rows. */
static tn_loader *loader(const int32_t *ids, int64_t n, int32_t **out_rows, tn_data **out_data, int64_t ring) {
    static const tn_loader_input inputs[] = { { "x", "text", 0 }, { "y", "text", 1 } };
    const int64_t time = n / STREAMS;
    int32_t *rows = *out_rows = malloc((size_t)(time * STREAMS) * sizeof *rows);
    if (!rows) exit(1);
    for (int64_t t = 0; t < time; t++)
        for (int64_t s = 0; s < STREAMS; s++) rows[t * STREAMS + s] = ids[s * time + t];
    tn_io_tensor text = { "text", TN_I32, TN_DIMS(time, STREAMS), rows };
    tn_loader_opts o = { .batch = 1, .ring = ring, .inputs = inputs, .n_inputs = 2, .window = WINDOW };
    tn_loader *l;
    check(tn_data_arrays(ctx, &text, 1, out_data));
    check(tn_loader_new(ctx, *out_data, &o, &l));
    return l;
}
/* Bits a byte of the last part when each byte is foretold from the counts of the first: of it alone, or behind the one before.
 */
static double bits_of_counts(const int32_t *ids, int64_t own, int64_t n, int letters, int pairs) {
    double bits = 0, *count = calloc((size_t)(letters * (letters + 1)), sizeof *count);
    if (!count) exit(1);
    for (int64_t i = 1; i < n; i++) {
        double *row = count + (pairs ? ids[i - 1] : 0) * (letters + 1);
        if (i < own) row[ids[i]]++, row[letters]++;
        if (i >= own) bits -= log2((row[ids[i]] + 1) / (row[letters] + letters)) / (double)(n - own);
    }
    free(count);
    return bits;
}
/* Letters drawn from the model one by one; the states of its one stream are its memory. */
static void write_text(tn_session *train, int letters, const unsigned char *letter, const int32_t *prompt, int n) {
    tn_graph *g = tn_graph_new(ctx, "write");
    tn_output(network(tn_input(g, "x", TN_I32, TN_DIMS(1, 1)), letters, "one"), "scores");
    tn_program *p;
    tn_session *s = session(g, TN_MODE_COMPILED, &p);
    tn_text_sample_opts o = { .temperature = 0.7 };
    uint64_t random = 1;
    int32_t id = 0;
    float scores[256];
    check(tn_session_copy_state(s, train, NULL));
    for (int i = 0; i < WRITE; i++) {
        if (i < n)
            id = prompt[i];
        else
            check(tn_text_sample(ctx, scores, (size_t)letters, &o, &random, &id));
        putchar(letter[id] < 32 && letter[id] != '\n' ? ' ' : letter[id]);
        check(tn_run(s, TN_BIND({ "x", &id }, { "scores", scores })));
    }
    putchar('\n');
    tn_session_free(s), tn_program_free(p);
}
int main(int argc, char **argv) {
    int json = 0;
    int64_t steps = 1000;
    const char *path = "data/kjv.txt";
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help"))
            return fputs(help, stdout), 0;
        else if (!strcmp(argv[i], "--json"))
            json = 1;
        else if (!strcmp(argv[i], "--steps") && i + 1 < argc && atoll(argv[i + 1]) > 0)
            steps = atoll(argv[++i]);
        else if (argv[i][0] == '-')
            return fputs(help, stderr), 2;
        else
            path = argv[i];
    }
    tn_config cfg = { .struct_size = sizeof cfg };
    tn_config_from_env(&cfg);
    if (!(ctx = tn_ctx_new(&cfg))) return 1;
    /* Data: the bytes that are there, numbered; the last tenth is held out. */
    char *text;
    size_t n_text;
    unsigned char letter[256];
    int letters = 0, id_of[256];
    check(tn_io_file_load(ctx, path, 1 << 28, (void **)&text, &n_text));
    int64_t n = (int64_t)n_text, own = n * 9 / 10;
    int32_t *ids = malloc((n_text + 1) * sizeof *ids);
    if (!ids || n - own < 2 * STREAMS * WINDOW) return fprintf(stderr, "lstm: %s is too short\n", path), 1;
    memset(id_of, -1, sizeof id_of);
    for (int64_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (id_of[byte] < 0) letter[letters] = byte, id_of[byte] = letters++;
        ids[i] = id_of[byte];
    }
    tn_io_free(ctx, text);
    int32_t *rows[2];
    tn_data *data[2];
    tn_loader *windows = loader(ids, own, &rows[0], &data[0], RING),
              *held_out = loader(ids + own, n - own, &rows[1], &data[1], 1);
    /* Training: Adam with clipped gradients under a cosine. */
    tn_graph *g = tn_graph_new(ctx, "train"), *v = tn_graph_new(ctx, "validate");
    tn_tensor loss = loss_of(g, letters, "train"), params[8], grads[8], runs = tn_nn_counter(g, "runs");
    int n_params = tn_graph_n_params(g);
    for (int i = 0; i < n_params; i++) params[i] = tn_graph_param(g, i);
    check(tn_grad(loss, params, n_params, grads));
    tn_nn_clip_norm(grads, n_params, 1);
    tn_nn_adam(loss, (tn_nn_adam_opts){ .rate = tn_nn_rate_cosine(runs, 1e-2, 1e-4, steps / 30, steps),
                                        .params = params,
                                        .grads = grads,
                                        .n_params = n_params });
    loss_of(v, letters, "validate");
    tn_program *p, *q;
    tn_session *train = session(g, TN_MODE_LOOP, &p), *validate = session(v, TN_MODE_COMPILED, &q);
    float trace[RING];
    check(tn_session_bind_trace(train, tn_session_slot(train, "loss"), trace, RING));
    double begin = seconds(), mean = 0;
    for (int64_t done = 0; done < steps;) {
        const tn_binding *ring;
        int64_t batches;
        int n_in;
        check(tn_loader_next(windows, &ring, &n_in, &batches));
        if (batches > steps - done) batches = steps - done;
        check(tn_run_n(train, batches, ring, n_in, RING));
        done += batches, mean = 0;
        for (int i = 0; i < batches; i++) mean += (double)trace[i] / (double)batches;
        if (isatty(2)) fprintf(stderr, "\r%lld of %lld windows, loss %.3f ", (long long)done, (long long)steps, mean);
    }
    double spent = seconds() - begin, bits = 0;
    check(tn_session_copy_state(validate, train, NULL));
    const int64_t last = tn_loader_batches(held_out);
    for (int64_t i = 0; i < last; i++) {
        const tn_binding *ring;
        int64_t batches;
        int n_in;
        float nats;
        check(tn_loader_next(held_out, &ring, &n_in, &batches));
        check(tn_run(validate, TN_BIND(ring[0], ring[1], { "loss", &nats })));
        bits += (double)nats / log(2) / (double)last;
    }
    const char *form = json ? "{\"steps\":%lld,\"loss\":%.4f,\"seconds\":%.2f,\"bytes_per_s\":%.0f,\"bits_per_byte\":%.4f,"
                              "\"bits_of_bytes\":%.4f,\"bits_of_pairs\":%.4f}\n"
                            : "\n%lld windows: loss %.4f, %.1f s (%.0f bytes a second)\n"
                              "bits a byte of held-out text: %.3f; by counts of bytes %.3f, of pairs %.3f\n";
    printf(form, (long long)steps, mean, spent, (double)(steps * STREAMS * WINDOW) / spent, bits,
           bits_of_counts(ids, own, n, letters, 0), bits_of_counts(ids, own, n, letters, 1));
    if (!json) write_text(train, letters, letter, ids, 20);
    tn_loader_free(windows), tn_loader_free(held_out);
    for (int i = 0; i < 2; i++) tn_data_free(ctx, data[i]), free(rows[i]);
    tn_session_free(train), tn_session_free(validate), tn_program_free(p), tn_program_free(q), tn_ctx_free(ctx), free(ids);
    return !isfinite(bits);
}
