/* gpt.c - trains a GPT on the bytes of a text, validates it on the last tenth, writes text with it; goes on where it stopped.
 * Usage: gpt [--json] [--steps N] [data/kjv.txt]   (scripts/fetch-data kjv makes the file) */
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

enum { BATCH = 12, BLOCK = 64, RING = 16, EVERY = 256 /* steps between validations and checkpoints */, WRITE = 300 };
static const tn_nn_lm_opts model = { .vocab = 256, .positions = BLOCK, .width = 128, .layers = 4, .heads = 4 };
static const char checkpoint[] = "gpt.safetensors";
static tn_ctx *ctx;
static void check(tn_status code) {
    if (code) fprintf(stderr, "gpt: %s\n", tn_ctx_error(ctx)), exit(1);
}
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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
static tn_tensor loss_of(tn_graph *g) { /* mean of -log(probability of the next byte): f32[] */
    tn_tensor x = tn_input(g, "x", TN_I32, TN_DIMS(BATCH, BLOCK)), y = tn_input(g, "y", TN_I32, TN_DIMS(BATCH, BLOCK));
    tn_tensor loss = tn_nn_cross_entropy(tn_nn_lm(x, model), y);
    tn_output(loss, "loss");
    return loss;
}
/* Rows of BLOCK tokens and of those that follow them, by 1: at every place in a seeded order, or one behind the other. */
static tn_loader *loader(tn_data *d, int64_t ring, int shuffle) {
    static const tn_loader_input inputs[] = { { "x", "text", 0 }, { "y", "text", 1 } };
    tn_loader_opts o = { .batch = BATCH, .ring = ring, .inputs = inputs, .n_inputs = 2, .window = BLOCK };
    tn_loader *l;
    o.stride = shuffle ? 1 : BLOCK, o.shuffle = shuffle, o.seed = 1;
    check(tn_loader_new(ctx, d, &o, &l));
    return l;
}
static double validate(tn_session *eval, tn_session *train, tn_loader *l) {
    double sum = 0;
    enum { MOST = 64 };
    check(tn_session_copy_state(eval, train, NULL));
    check(tn_loader_seek(l, 0));
    for (int i = 0; i < MOST; i++) {
        const tn_binding *ring;
        int64_t batches;
        int n;
        float loss;
        check(tn_loader_next(l, &ring, &n, &batches));
        check(tn_run(eval, TN_BIND(ring[0], ring[1], { "loss", &loss })));
        sum += (double)loss / MOST;
    }
    return sum;
}
/* Bytes drawn from the model one by one; keys and values of those before stay in states of the program. */
static double write_text(tn_session *train, const char *prompt, char *out /* [WRITE + 1] */) {
    tn_graph *g = tn_graph_new(ctx, "write");
    tn_tensor token = tn_input(g, "token", TN_I32, TN_DIMS(1, 1)), start = tn_input(g, "start", TN_I64, TN_SCALAR);
    tn_output(tn_nn_lm_cached(token, start, model), "logits");
    tn_program *p;
    tn_session *s = session(g, TN_MODE_COMPILED, &p);
    check(tn_session_copy_state(s, train, NULL));
    tn_text_sample_opts o = { .temperature = 0.8, .top_p = 0.95 };
    uint64_t random = 1;
    float logits[256];
    int64_t at = 0; /* the position of the next token */
    double begin = seconds();
    size_t n = strlen(prompt);
    memcpy(out, prompt, n);
    for (size_t i = 0; i < WRITE; i++) {
        size_t from = i;
        if (at == BLOCK) at = 0, from = i - BLOCK / 2; /* all positions are taken: the last half is read again */
        for (; from <= i; from++, at++) {
            int32_t id = (unsigned char)out[from];
            check(tn_run(s, TN_BIND({ "token", &id }, { "start", &at }, { "logits", logits })));
        }
        int32_t next;
        if (i + 1 < n) continue;
        check(tn_text_sample(ctx, logits, 256, &o, &random, &next));
        out[i + 1] = (char)(next < 32 && next != '\n' ? ' ' : next);
    }
    double spent = seconds() - begin;
    out[WRITE] = 0;
    tn_session_free(s), tn_program_free(p);
    return spent;
}
int main(int argc, char **argv) {
    int json = 0;
    int64_t steps = 5000, done = 0;
    const char *path = "data/kjv.txt";
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            json = 1;
        else if (!strcmp(argv[i], "--steps") && i + 1 < argc)
            steps = atoll(argv[++i]);
        else
            path = argv[i];
    }
    tn_config cfg = { .struct_size = sizeof cfg };
    tn_config_from_env(&cfg);
    if (!(ctx = tn_ctx_new(&cfg))) return 1;
    if (steps < RING) return fputs("gpt: --steps takes a number from 16 on\n", stderr), 1;
    /* Data: a byte a token; the last tenth is kept for validation. */
    char *text;
    size_t n;
    check(tn_io_file_load(ctx, path, 1 << 28, (void **)&text, &n));
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids || n < 20 * BATCH * BLOCK) return fprintf(stderr, "gpt: %s is too short\n", path), 1;
    for (size_t i = 0; i < n; i++) ids[i] = (unsigned char)text[i];
    tn_io_free(ctx, text);
    int64_t own = (int64_t)n * 9 / 10;
    tn_io_tensor parts[2] = { { "text", TN_I32, TN_DIMS(own), ids }, { "text", TN_I32, TN_DIMS((int64_t)n - own), ids + own } };
    tn_data *data[2];
    for (int i = 0; i < 2; i++) check(tn_data_arrays(ctx, &parts[i], 1, &data[i]));
    tn_loader *rows = loader(data[0], RING, 1), *held_out = loader(data[1], 1, 0);
    /* Training: AdamW with clipped gradients under a cosine, all of it one program. */
    tn_graph *g = tn_graph_new(ctx, "train"), *h = tn_graph_new(ctx, "validate");
    tn_tensor loss = loss_of(g), params[64], grads[64], runs = tn_nn_counter(g, "runs");
    int n_params = tn_graph_n_params(g);
    for (int i = 0; i < n_params; i++) params[i] = tn_graph_param(g, i);
    check(tn_grad(loss, params, n_params, grads));
    tn_nn_clip_norm(grads, n_params, 1);
    tn_nn_adam(loss, (tn_nn_adam_opts){ .rate = tn_nn_rate_cosine(runs, 1e-3, 1e-4, steps / 50, steps),
                                        .beta2 = 0.99,
                                        .weight_decay = 0.1,
                                        .decoupled = 1,
                                        .decay_rank = 2, /* matrices alone */
                                        .params = params,
                                        .grads = grads,
                                        .n_params = n_params });
    loss_of(h);
    tn_program *p, *q;
    tn_session *train = session(g, TN_MODE_LOOP, &p), *eval = session(h, TN_MODE_COMPILED, &q);
    float trace[RING];
    check(tn_session_bind_trace(train, tn_session_slot(train, "loss"), trace, RING));
    /* A checkpoint is the states: parameters, moments, and the counter of runs, which says where the loader goes on. */
    if (!access(checkpoint, R_OK)) check(tn_io_load_state(ctx, train, checkpoint));
    check(tn_session_get(train, "runs", &done, sizeof done));
    check(tn_loader_seek(rows, done));
    static const char dashes[] = "##############################";
    double begin = seconds(), mean = 0, validation = NAN;
    for (int64_t first = done; done < steps;) {
        const tn_binding *ring;
        int64_t batches;
        int n_in;
        check(tn_loader_next(rows, &ring, &n_in, &batches));
        check(tn_run_n(train, batches, ring, n_in, batches));
        done += batches, mean = 0;
        for (int i = 0; i < RING; i++) mean += (double)trace[i] / RING;
        if (!isfinite(mean)) return fprintf(stderr, "gpt: the loss is %g before step %lld\n", mean, (long long)done), 1;
        double rate = (double)(done - first) / (seconds() - begin);
        int bar = (int)(done * 30 / steps), left = (int)((double)(steps - done) / rate);
        if (bar > 30) bar = 30, left = 0;
        if (isatty(2))
            fprintf(stderr, "\r[%.*s%*s] loss %.3f, held out %.3f, %.1fk bytes/s, %d:%02d left ", bar, dashes, 30 - bar, "",
                    mean, validation, rate * BATCH * BLOCK * 1e-3, left / 60, left % 60);
        if (done % EVERY && done < steps) continue;
        validation = validate(eval, train, held_out);
        check(tn_io_save_state(ctx, train, checkpoint));
    }
    double spent = seconds() - begin;
    if (isnan(validation)) validation = validate(eval, train, held_out);
    char out[WRITE + 1];
    double writing = write_text(train, "Ge1:1 In the beginning", out);
    const char *form = json
                           ? "{\"steps\":%lld,\"loss\":%.4f,\"bits_per_byte\":%.4f,\"seconds\":%.2f,\"bytes_per_s\":%.0f}\n"
                           : "\n%lld steps: loss %.4f, %.3f bits a byte of held-out text; %.1f s; writes %.0f bytes a second\n";
    printf(form, (long long)done, mean, validation / log(2), spent, WRITE / writing);
    if (!json) printf("%s\n", out);
    tn_loader_free(rows), tn_loader_free(held_out);
    for (int i = 0; i < 2; i++) tn_data_free(ctx, data[i]);
    tn_session_free(train), tn_session_free(eval), tn_program_free(p), tn_program_free(q), tn_ctx_free(ctx), free(ids);
    return 0;
}
