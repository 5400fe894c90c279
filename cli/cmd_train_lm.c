/* cmd_train_lm.c - `tenon train-lm`: trains a language model on text, in a folder that `tenon generate` and other programs
 * read.
 *
 * Everything that a run depends on is a state of the program: parameters, moments, the counter of runs, which says where the
 * loader goes on. So a checkpoint is the states, and a training that was killed goes on from it with the same bits. */
#include "lm.h"
#include "measure.h"
#include "page.h"
#include "plot.h"
#include "tenon/tenon_data.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RING = 16 /* steps of one call */ };
static const char SCALE[] = "loss_scale"; /* the state of that, for f16 */
typedef struct point {                    /* of the curves */
    double step, loss, held_out;
} point;
typedef struct trainer {
    cli *c;
    const char *folder, *from; /* from: the folder of a model that is trained further, or NULL */
    lm_config k;
    tn_bpe *vocab;
    int32_t *ids;
    int64_t n_ids, n_train; /* tokens; those that are trained on */
    double bytes_per_token; /* of the held-out text */
    tn_program *train_program, *eval_program;
    tn_session *train, *eval;
    tn_data *train_data, *eval_data;
    tn_loader *loader, *eval_loader;
    float loss[RING], *norms; /* norms: [RING][n_params] of the gradients */
    int n_params;
    int64_t done, skipped;
    point *points;
    int n_points;
    double peak; /* FLOP/s of the threads that are used; 0: not known */
} trainer;

/* ---- what to train --------------------------------------------------------------------------------------------------- */

/* Options that are given win over the folder's config.json, and that over the defaults. */
static void read_options(trainer *t, bool resumed) {
    static const char *const fixed[] = { "model", "layers", "heads", "kv-heads", "width", "vocab-size" };
    cli *c = t->c;
    lm_config *k = &t->k, d = *k, loaded = *k;
    bool given = resumed || t->from; /* the model's sizes */
    for (size_t i = 0; t->from && i < COUNT_OF(fixed); i++)
        if (cli_text(c, fixed[i], NULL)) cli_usage(c, "--%s is not for --from, whose model has it", fixed[i]);
    if (!resumed)
        d = (lm_config){ .batch = 12,
                         .block = 64,
                         .steps = 2000,
                         .warmup = 100,
                         .seed = 1,
                         .tokens = 256,
                         .lr = 1e-3,
                         .decay = 0.1,
                         .held_out = 0.1,
                         .model = { .width = 128, .layers = 4, .heads = 4 } };
    if (t->from) { /* slower than from random values, which are far from good ones */
        d.lr = 1e-4, d.model = loaded.model, d.split = loaded.split, d.file = loaded.file, d.rates = loaded.rates;
        memcpy(d.ends, loaded.ends, sizeof d.ends), d.n_ends = loaded.n_ends;
    }
    const char *kind = cli_text(c, "model", d.model.kind == TN_NN_LLAMA ? "llama" : "gpt2");
    if (strcmp(kind, "gpt2") != 0 && strcmp(kind, "llama") != 0) cli_usage(c, "--model is gpt2 or llama, not %s", kind);
    const char *dtype = cli_text(c, "dtype", tn_dtype_name(d.dtype));
    *k = d;
    k->dtype = !strcmp(dtype, "bf16") ? TN_BF16 : !strcmp(dtype, "f16") ? TN_F16 : TN_F32;
    if (strcmp(dtype, tn_dtype_name(k->dtype)) != 0) cli_usage(c, "--dtype is f32, bf16 or f16, not %s", dtype);
    k->model.kind = strcmp(kind, "llama") ? TN_NN_GPT2 : TN_NN_LLAMA;
    k->model.layers = cli_int(c, "layers", d.model.layers, 1, 4096);
    k->model.heads = cli_int(c, "heads", d.model.heads, 1, 1 << 16);
    k->model.kv_heads = cli_int(c, "kv-heads", given ? d.model.kv_heads : k->model.heads, 1, 1 << 16);
    k->model.width = cli_int(c, "width", d.model.width, 1, 1 << 20);
    k->model.dropout = cli_number(c, "dropout", d.model.dropout, 0, 0.99);
    k->batch = cli_int(c, "batch", d.batch, 1, 1 << 20);
    k->block = cli_int(c, "block", d.block, 1, 1 << 20);
    k->steps = cli_int(c, "steps", d.steps, 1, INT64_MAX / 2);
    k->warmup = cli_int(c, "warmup", d.warmup < k->steps ? d.warmup : k->steps / 10, 0, INT64_MAX / 2);
    k->seed = cli_int(c, "seed", d.seed, 0, INT64_C(1) << 50);
    k->tokens = cli_int(c, "vocab-size", d.tokens, 256, TN_TEXT_MAX_TOKENS);
    k->lr = cli_number(c, "lr", d.lr, 0, 1e3);
    k->decay = cli_number(c, "decay", d.decay, 0, 1e3);
    k->held_out = cli_number(c, "held-out", d.held_out, 0.001, 0.9);
    if (k->warmup >= k->steps)
        cli_usage(c, "--warmup=%lld is no part of %lld steps", (long long)k->warmup, (long long)k->steps);
    k->model.positions = given ? d.model.positions : k->block;
    bool llama = k->model.kind == TN_NN_LLAMA;
    if (!given) k->model.hidden = llama ? (8 * k->model.width / 3 + 31) / 32 * 32 : 4 * k->model.width;
    if (!given) k->model.tied = 1;
    if (!given) k->model.eps = llama ? 1e-6 : 1e-5, k->model.rope_base = 10000;
    if (k->model.group) cli_fail(c, "%s is quantised: it cannot be trained", t->from ? t->from : t->folder);
    if (k->block > k->model.positions)
        cli_fail(c, "--block=%lld: the model has %lld positions", (long long)k->block, (long long)k->model.positions);
}

static void learnt(void *ud, int done, int all) {
    (void)all;
    if (done % 64 == 0) progress_step(ud, done, NULL);
}

static void make_vocab(trainer *t, const char *text, size_t n) {
    cli *c = t->c;
    progress p = progress_begin(c, "learning tokens", t->k.tokens);
    tn_bpe_train_opts o = { .n_tokens = (int)t->k.tokens, .progress = learnt, .progress_ud = &p };
    tn_status st = tn_bpe_train(cli_ctx(c), text, n, &o, &t->vocab);
    progress_end(&p);
    cli_need(c, st);
    char *vocab = lm_path(t->folder, "vocab.json"), *merges = lm_path(t->folder, "merges.txt");
    cli_need(c, tn_bpe_save(cli_ctx(c), t->vocab, vocab, merges));
    free(vocab);
    free(merges);
}

static void read_text(trainer *t, bool resumed) {
    cli *c = t->c;
    size_t n, n_ids, bytes;
    char *text = cli_read_file(c, c->args[0], &n);
    if (resumed && (int64_t)n != t->k.text_bytes)
        cli_fail(c, "%s has %zu bytes; %s was trained on a text of %lld", c->args[0], n, t->folder, (long long)t->k.text_bytes);
    t->k.text_bytes = (int64_t)n;
    if (t->from) lm_copy_files(c, t->from, t->folder);
    bool given = resumed || t->from;
    if (given)
        t->vocab = lm_vocab_load(c, t->folder, t->k.split);
    else
        make_vocab(t, text, n);
    t->ids = lm_encode(c, t->vocab, text, n, false, 1, &n_ids);
    free(text);
    t->n_ids = (int64_t)n_ids;
    if (!given) t->k.model.vocab = tn_bpe_count(t->vocab);
    for (size_t i = 0; given && i < n_ids; i++)
        if (t->ids[i] >= t->k.model.vocab)
            cli_fail(c, "the text has token %d, the model has %lld: the vocabulary is another model's", t->ids[i],
                     (long long)t->k.model.vocab);
    t->n_train = (int64_t)((double)n_ids * (1 - t->k.held_out));
    int64_t held = t->n_ids - t->n_train, least = t->k.block + t->k.batch;
    if (t->n_train < least || held < t->k.block * t->k.batch + 1)
        cli_fail(c, "%s has %lld tokens, %lld of them held out: too few for %lld rows of %lld", c->args[0], (long long)t->n_ids,
                 (long long)held, (long long)t->k.batch, (long long)t->k.block);
    cli_need(c, tn_bpe_decode(cli_ctx(c), t->vocab, t->ids + t->n_train, (size_t)held, NULL, 0, &bytes));
    t->bytes_per_token = (double)bytes / (double)held;
}

/* ---- programs -------------------------------------------------------------------------------------------------------- */

static tn_tensor loss_of(tn_graph *g, const trainer *t, tn_nn_lm_opts o) {
    tn_shape shape = TN_DIMS(t->k.batch, t->k.block);
    tn_tensor x = tn_input(g, "x", TN_I32, shape), y = tn_input(g, "y", TN_I32, shape);
    o.dtype = t->k.dtype;
    tn_tensor loss = tn_nn_cross_entropy(tn_cast(tn_nn_lm(x, o), TN_F32), y);
    tn_output(loss, "loss");
    return loss;
}

static void compile(trainer *t, tn_graph *g, tn_program **p, tn_session **s) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = TN_MODE_LOOP;
    o.threads = (int)cli_int(t->c, "threads", 0, 0, 1024);
    o.device = cli_device(t->c);
    cli_need(t->c, tn_compile(g, &o, p));
    cli_need(t->c, tn_session_new(*p, s));
    tn_graph_free(g);
}

/* AdamW under a cosine. A run whose gradients are not finite changes nothing but the counter of runs, and for f16 the scale of
 * the loss, without which small gradients would be 0. */
static void make_train(trainer *t) {
    tn_graph *g = tn_graph_new(cli_ctx(t->c), "train");
    tn_nn_lm_opts o = t->k.model;
    tn_graph_set_seed(g, (uint64_t)t->k.seed);
    tn_tensor runs = tn_nn_counter(g, "runs");
    o.counter = runs;
    tn_tensor loss = loss_of(g, t, o);
    t->n_params = tn_graph_n_params(g);
    tn_tensor *params = cli_alloc((size_t)(t->n_params + 1) * sizeof *params),
              *grads = cli_alloc((size_t)(t->n_params + 1) * sizeof *grads);
    for (int i = 0; i < t->n_params; i++) params[i] = tn_graph_param(g, i);
    bool scaled = t->k.dtype == TN_F16;
    tn_tensor scale = scaled ? tn_nn_loss_scale(g, 0, SCALE) : tn_full(g, TN_F32, TN_SCALAR, 1);
    tn_tensor from = scaled ? tn_mul(loss, scale) : loss;
    if (!tn_graph_status(g)) cli_need(t->c, tn_grad(from, params, t->n_params, grads));
    if (scaled) tn_nn_unscale(scale, grads, t->n_params, 0);
    tn_output(tn_nn_norms(grads, t->n_params), "norms");
    tn_tensor norm = tn_nn_clip_norm(grads, t->n_params, 1);
    tn_tensor finite = tn_lt(norm, tn_full(g, TN_F32, TN_SCALAR, INFINITY));
    tn_tensor lr = tn_nn_rate_cosine(runs, t->k.lr, t->k.lr / 10, t->k.warmup, t->k.steps);
    tn_nn_adam(loss, (tn_nn_adam_opts){ .rate = lr,
                                        .beta2 = 0.99,
                                        .weight_decay = t->k.decay,
                                        .decoupled = 1,
                                        .decay_rank = 2,
                                        .params = params,
                                        .grads = grads,
                                        .n_params = t->n_params,
                                        .when = finite });
    compile(t, g, &t->train_program, &t->train);
    t->norms = cli_alloc((size_t)(RING * t->n_params) * sizeof *t->norms);
    cli_need(t->c, tn_session_bind_trace(t->train, tn_session_slot(t->train, "loss"), t->loss, RING));
    cli_need(t->c, tn_session_bind_trace(t->train, tn_session_slot(t->train, "norms"), t->norms, RING));
    free(params);
    free(grads);
}

static void make_eval(trainer *t) {
    tn_graph *g = tn_graph_new(cli_ctx(t->c), "eval");
    tn_nn_lm_opts o = t->k.model;
    o.dropout = 0;
    loss_of(g, t, o);
    compile(t, g, &t->eval_program, &t->eval);
}

static tn_loader *make_loader(trainer *t, int64_t from, int64_t n, bool shuffled, tn_data **data) {
    static const tn_loader_input inputs[] = { { "x", "tokens", 0 }, { "y", "tokens", 1 } };
    tn_io_tensor tokens = { .name = "tokens", .dtype = TN_I32, .shape = TN_DIMS(n), .data = t->ids + from };
    tn_loader_opts o = { .batch = t->k.batch,
                         .ring = shuffled ? RING : 1,
                         .inputs = inputs,
                         .n_inputs = 2,
                         .window = t->k.block,
                         .stride = shuffled ? 1 : t->k.block,
                         .shuffle = shuffled,
                         .seed = (uint64_t)t->k.seed };
    tn_loader *l;
    cli_need(t->c, tn_data_arrays(cli_ctx(t->c), &tokens, 1, data));
    cli_need(t->c, tn_loader_new(cli_ctx(t->c), *data, &o, &l));
    return l;
}

/* ---- checkpoints ----------------------------------------------------------------------------------------------------- */

static void save_curve(trainer *t) {
    char *text = NULL, *path = lm_path(t->folder, "loss.csv");
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f) cli_fail(t->c, "out of memory");
    for (int i = 0; i < t->n_points; i++)
        fprintf(f, "%.0f,%.9g,%.9g\n", t->points[i].step, t->points[i].loss, t->points[i].held_out);
    if (fclose(f)) cli_fail(t->c, "out of memory");
    cli_need(t->c, tn_io_file_save(cli_ctx(t->c), path, text, n));
    free(text);
    free(path);
}

static void load_curve(trainer *t) {
    char *path = lm_path(t->folder, "loss.csv");
    tn_shape shape;
    void *table;
    if (!access(path, F_OK) && !tn_io_csv_load(cli_ctx(t->c), path, TN_F64, 0, &shape, &table)) {
        const double *row = table;
        for (int64_t i = 0; shape.dim[1] == 3 && i < shape.dim[0] && row[3 * i] <= (double)t->done; i++) {
            t->points = realloc(t->points, (size_t)(t->n_points + 1) * sizeof *t->points);
            if (!t->points) cli_fail(t->c, "out of memory");
            t->points[t->n_points++] = (point){ row[3 * i], row[3 * i + 1], row[3 * i + 2] };
        }
        tn_io_free(cli_ctx(t->c), table);
    }
    free(path);
}

/* Each file is written under another name first, so that a kill at any moment leaves whole ones; the checkpoint comes last. */
static void save(trainer *t) {
    char *weights = lm_path(t->folder, "model.safetensors"), *states = lm_path(t->folder, "checkpoint.safetensors");
    cli_need(t->c, tn_session_copy_state(t->eval, t->train, NULL));
    cli_need(t->c, tn_io_save_state(cli_ctx(t->c), t->eval, weights));
    save_curve(t);
    cli_need(t->c, tn_io_save_state(cli_ctx(t->c), t->train, states));
    free(weights);
    free(states);
}

/* The weights of the model that is trained further. */
static void load_weights(trainer *t) {
    lm_files *files = lm_files_open(t->c, t->from);
    lm_files_weights(files, t->eval);
    cli_need(t->c, tn_session_copy_state(t->train, t->eval, NULL));
    lm_files_close(files);
}

static void take_up(trainer *t) {
    char *states = lm_path(t->folder, "checkpoint.safetensors");
    if (!access(states, F_OK)) cli_need(t->c, tn_io_load_state(cli_ctx(t->c), t->train, states));
    cli_need(t->c, tn_session_get(t->train, "runs", &t->done, sizeof t->done));
    cli_need(t->c, tn_loader_seek(t->loader, t->done));
    load_curve(t);
    cli_note(t->c, "going on after step %lld", (long long)t->done);
    free(states);
}

/* ---- training -------------------------------------------------------------------------------------------------------- */

/* Mean loss of a token of the held-out text, of up to 64 batches. */
static double evaluate(trainer *t) {
    int64_t n = tn_loader_batches(t->eval_loader) < 64 ? tn_loader_batches(t->eval_loader) : 64, batches;
    const tn_binding *ring;
    int n_in;
    double sum = 0;
    cli_need(t->c, tn_session_copy_state(t->eval, t->train, NULL));
    cli_need(t->c, tn_loader_seek(t->eval_loader, 0));
    for (int64_t i = 0; i < n; i++) {
        float loss;
        cli_need(t->c, tn_loader_next(t->eval_loader, &ring, &n_in, &batches));
        tn_binding all[3] = { ring[0], ring[1], { "loss", &loss } };
        cli_need(t->c, tn_run(t->eval, all, 3));
        sum += (double)loss;
    }
    return sum / (double)n;
}

/* The first tensor of step i that is not finite. */
static void complain(trainer *t, int64_t i) {
    int bad = 0;
    while (bad < t->n_params - 1 && isfinite(t->norms[i * t->n_params + bad])) bad++;
    const char *name;
    int at = 0;
    for (int k = 0; k < tn_session_n_states(t->train); k++) { /* parameters are states in the order they were made in */
        tn_dtype dtype;
        tn_shape shape;
        cli_need(t->c, tn_session_state(t->train, k, &name, &dtype, &shape));
        if (!strcmp(name, "runs") || !strcmp(name, SCALE) || strstr(name, "/")) continue;
        if (at++ == bad) break;
    }
    const char *fmt = "step %lld: the loss is %g; the gradient of %s is not finite";
    if (strcmp(cli_text(t->c, "on-nan", "stop"), "skip") != 0) {
        save(t);
        cli_fail(t->c,
                 "step %lld: the loss is %g; the gradient of %s is not finite. The parameters are as before the step. Try "
                 "a lower --lr, or --on-nan=skip",
                 (long long)(t->done + i + 1), (double)t->loss[i], name);
    }
    if (t->skipped++ < 5) cli_note(t->c, fmt, (long long)(t->done + i + 1), (double)t->loss[i], name);
}

/* Up to RING steps. Their mean loss. */
static double some_steps(trainer *t, int64_t n) {
    const tn_binding *ring;
    int n_in;
    int64_t batches, good = 0;
    double sum = 0;
    cli_need(t->c, tn_loader_next(t->loader, &ring, &n_in, &batches));
    cli_need(t->c, tn_run_n(t->train, n, ring, n_in, batches));
    for (int64_t i = 0; i < n; i++) {
        bool finite = isfinite(t->loss[i]);
        for (int k = 0; k < t->n_params; k++) finite = finite && isfinite(t->norms[i * t->n_params + k]);
        if (!finite && t->k.dtype == TN_F16 && isfinite(t->loss[i]))
            t->skipped++; /* the scale was too large, and is half as large now */
        else if (!finite)
            complain(t, i);
        else
            sum += (double)t->loss[i], good++;
    }
    t->done += n;
    if (n < batches) cli_need(t->c, tn_loader_seek(t->loader, t->done)); /* the rest of the ring comes in the next */
    return good ? sum / (double)good : NAN;
}

static void add_point(trainer *t, double loss, double held_out) {
    t->points = realloc(t->points, (size_t)(t->n_points + 1) * sizeof *t->points);
    if (!t->points) cli_fail(t->c, "out of memory");
    t->points[t->n_points++] = (point){ (double)t->done, loss, held_out };
}

/* Steps until `until`, with a bar. Returns the loss of the last ones, smoothed. */
static double train(trainer *t, int64_t until, double deadline, progress *bar, double begin, int64_t first) {
    double smooth = NAN;
    tn_program_stats st;
    tn_program_get_stats(t->train_program, &st);
    while (t->done < until && cli_seconds() < deadline) {
        int64_t left = until - t->done;
        double loss = some_steps(t, left < RING ? left : RING);
        smooth = isnan(smooth) ? loss : isnan(loss) ? smooth : 0.9 * smooth + 0.1 * loss;
        double pace = (double)(t->done - first) / (cli_seconds() - begin), rest = (double)(t->k.steps - t->done) / pace;
        if (cli_seconds() + rest > deadline) rest = fmax(deadline - cli_seconds(), 0);
        char text[96], mfu[24] = "";
        if (t->peak > 0) snprintf(mfu, sizeof mfu, " %.0f%%", 100 * pace * (double)st.flops / t->peak);
        snprintf(text, sizeof text, "loss %.3f %.1fk tok/s%s %d:%02d left", smooth,
                 pace * (double)(t->k.batch * t->k.block) * 1e-3, mfu, (int)rest / 60, (int)rest % 60);
        if (bar->tty || t->done == until) progress_step(bar, t->done, text);
    }
    return smooth;
}

static double train_all(trainer *t, double *seconds) {
    cli *c = t->c;
    int64_t every = cli_int(c, "eval-every", 250, 1, INT64_MAX), first = t->done;
    double minutes = cli_number(c, "minutes", 0, 0, 1e6), begin = cli_seconds(), held_out = NAN, away = 0;
    double deadline = minutes > 0 ? begin + 60 * minutes : INFINITY;
    progress bar = progress_begin(c, "training", t->k.steps);
    while (t->done < t->k.steps && cli_seconds() < deadline) {
        int64_t until = (t->done / every + 1) * every;
        double loss = train(t, until < t->k.steps ? until : t->k.steps, deadline, &bar, begin + away, first),
               now = cli_seconds();
        held_out = evaluate(t);
        add_point(t, loss, held_out);
        save(t);
        away += cli_seconds() - now;
    }
    progress_end(&bar);
    *seconds = cli_seconds() - begin - away;
    return isnan(held_out) ? evaluate(t) : held_out;
}

/* ---- reports --------------------------------------------------------------------------------------------------------- */

/* The curves, and the figures that they are drawn from. */
static void write_page(const trainer *t, const char *path, const plot *p) {
    char *title = cli_format("tenon train-lm: %s", t->folder);
    FILE *f = page_begin(t->c, path, title);
    free(title);
    fprintf(f, "<p>Layers: %lld, width: %lld, heads: %lld, tokens: %lld. A step sees %lld rows of %lld tokens.</p></header>\n",
            (long long)t->k.model.layers, (long long)t->k.model.width, (long long)t->k.model.heads, (long long)t->k.model.vocab,
            (long long)t->k.batch, (long long)t->k.block);
    page_plot(
        f,
        "The loss is the mean of -log(probability) that the model gave the token which came next; both axes are logarithmic. "
        "The line of held-out text says what it has learned, the other one also what it remembers.",
        p);
    fputs("<section><h2>All points</h2><div class=\"wide\" tabindex=\"0\"><table><tr><th>step</th><th>loss</th><th>of held-out "
          "text</th><th>bits of a byte</th></tr>\n",
          f);
    for (int i = 0; i < t->n_points; i++)
        fprintf(f, "<tr><td>%.0f</td><td>%.4f</td><td>%.4f</td><td>%.3f</td></tr>\n", t->points[i].step, t->points[i].loss,
                t->points[i].held_out, t->points[i].held_out / log(2) / t->bytes_per_token);
    fputs("</table></div></section>\n", f);
    cli_close(t->c, f, path);
    cli_note(t->c, "page written to %s: open it in a browser", path);
}

static void draw(trainer *t) {
    const char *path = cli_text(t->c, "svg", NULL), *html = cli_text(t->c, "html", NULL);
    if (!path && !html) return;
    double *x = cli_alloc((size_t)(t->n_points + 1) * 3 * sizeof *x), *y = x + t->n_points + 1, *z = y + t->n_points + 1;
    for (int i = 0; i < t->n_points; i++) x[i] = t->points[i].step, y[i] = t->points[i].loss, z[i] = t->points[i].held_out;
    plot_line lines[] = { { "training", x, y, t->n_points }, { "held-out text", x, z, t->n_points } };
    plot p = { .title = t->folder,
               .x_label = "steps",
               .decades = true,
               .n_panels = 1,
               .panel = { { "loss: -log(probability of the next token)", lines, 2 } } };
    if (path) plot_svg(t->c, path, &p);
    if (html) write_page(t, html, &p);
    free(x);
}

static void report(trainer *t, double held_out, double seconds, int64_t steps) {
    int64_t params = 0;
    for (int i = 0; i < tn_session_n_states(t->eval); i++) {
        const char *name;
        tn_dtype dtype;
        tn_shape shape;
        cli_need(t->c, tn_session_state(t->eval, i, &name, &dtype, &shape));
        params += shape_count(shape);
    }
    double bits = held_out / log(2) / t->bytes_per_token,
           pace = seconds > 0 ? (double)(steps * t->k.batch * t->k.block) / seconds : 0;
    double loss = t->n_points ? t->points[t->n_points - 1].loss : NAN;
    tn_program_stats st;
    tn_program_get_stats(t->train_program, &st);
    if (t->c->json) {
        json j = json_begin(stdout, "train-lm");
        json_text(&j, "folder", t->folder);
        json_int(&j, "parameters", params), json_int(&j, "vocab", t->k.model.vocab), json_int(&j, "text_tokens", t->n_ids);
        json_int(&j, "step", t->done), json_int(&j, "steps", t->k.steps), json_int(&j, "skipped", t->skipped);
        json_number(&j, "loss", loss), json_number(&j, "held_out_loss", held_out);
        json_number(&j, "bits_per_byte", bits);
        json_number(&j, "seconds", seconds), json_number(&j, "tokens_per_s", pace);
        json_number(&j, "compile_seconds", st.compile_seconds);
        if (t->peak > 0 && seconds > 0) json_number(&j, "peak_ratio", (double)steps * (double)st.flops / seconds / t->peak);
        json_finish(&j);
        return;
    }
    printf("step %lld of %lld: loss %.4f, held-out text %.4f = %.3f bits a byte; %lld parameters\n", (long long)t->done,
           (long long)t->k.steps, loss, held_out, bits, (long long)params);
    if (t->skipped) printf("%lld steps were skipped: their gradients were not finite\n", (long long)t->skipped);
    if (steps)
        printf("%.1f s of training, %.0f tokens a second; compiled in %.0f ms\n", seconds, pace, st.compile_seconds * 1e3);
}

static double measured_peak(const trainer *t) {
    tn_program_stats st;
    tn_program_get_stats(t->train_program, &st);
    if (strcmp(cli_device(t->c), "cpu") != 0 || !(t->c->progress || t->c->json) || cli_flag(t->c, "no-peak")) return 0;
    ceiling m = ceiling_measure(st.threads);
    for (int i = 0; i < m.n; i++)
        if (m.threads[i] == st.threads) return m.peak[i] * 1e9;
    return 0;
}

static int run(cli *c) {
    trainer t = { .c = c, .folder = cli_text(c, "output", NULL) };
    double seconds;
    if (!t.folder) cli_usage(c, "train-lm needs --output=FOLDER");
    bool resume = cli_flag(c, "resume"), there = lm_config_load(c, t.folder, &t.k);
    if (there && !resume) cli_fail(c, "%s has a model already: --resume goes on with it", t.folder);
    if (there && !t.k.batch)
        cli_fail(c, "%s has a model that train-lm did not make: --from=%s with another --output trains it", t.folder, t.folder);
    if (!there && (t.from = cli_text(c, "from", NULL)) && !lm_config_load(c, t.from, &t.k))
        cli_fail(c, "%s has no config.json: it is no model's folder", t.from);
    if (mkdir(t.folder, 0777) && errno != EEXIST) cli_fail(c, "%s: %s", t.folder, strerror(errno));
    read_options(&t, there);
    read_text(&t, there);
    make_train(&t);
    make_eval(&t);
    t.loader = make_loader(&t, 0, t.n_train, true, &t.train_data);
    t.eval_loader = make_loader(&t, t.n_train, t.n_ids - t.n_train, false, &t.eval_data);
    if (there)
        take_up(&t);
    else if (t.from)
        load_weights(&t);
    lm_config_save(c, t.folder, &t.k);
    t.peak = measured_peak(&t);
    int64_t first = t.done;
    double held_out = train_all(&t, &seconds);
    report(&t, held_out, seconds, t.done - first);
    draw(&t);
    tn_loader_free(t.loader), tn_loader_free(t.eval_loader);
    tn_data_free(cli_ctx(c), t.train_data), tn_data_free(cli_ctx(c), t.eval_data);
    tn_session_free(t.train), tn_session_free(t.eval);
    tn_program_free(t.train_program), tn_program_free(t.eval_program);
    tn_bpe_free(cli_ctx(c), t.vocab);
    lm_config_free(c, &t.k);
    free(t.ids);
    free(t.norms);
    free(t.points);
    return CLI_OK;
}

static const cli_option options[] = {
    { "output", 'o', "FOLDER", "where the model, its vocabulary and checkpoints are written" },
    { "resume", 0, NULL, "go on with what is in the folder, if anything is; options of then hold where none are given" },
    { "from", 0, "FOLDER", "train this model further, such as one from Hugging Face; its sizes and its tokenizer stay" },
    { "model", 0, "KIND", "gpt2 (default) or llama" },
    { "dtype", 0, "TYPE", "what is computed in: f32 (default), bf16 or f16; parameters and their updates are f32" },
    { "layers", 0, "N", "(default 4)" },
    { "heads", 0, "N", "of attention in a layer (default 4)" },
    { "kv-heads", 0, "N", "llama: heads of keys and values (default: as many)" },
    { "width", 0, "N", "of the residual stream (default 128)" },
    { "block", 0, "N", "tokens of a row: the positions that the model has (default 64)" },
    { "batch", 0, "N", "rows of a step (default 12)" },
    { "vocab-size", 0, "N", "tokens to learn, with the 256 bytes (default 256: bytes alone)" },
    { "steps", 'n', "N", "in all (default 2000)" },
    { "minutes", 0, "M", "stop after so many, with a checkpoint" },
    { "lr", 0, "RATE", "the largest learning rate; it falls to a tenth along a cosine (default 0.001; with --from 0.0001)" },
    { "warmup", 0, "N", "steps in which it rises (default 100)" },
    { "decay", 0, "X", "weight decay of matrices (default 0.1)" },
    { "dropout", 0, "P", "(default 0)" },
    { "held-out", 0, "SHARE", "of the text, at its end, for validation (default 0.1)" },
    { "eval-every", 0, "N", "steps between validations and checkpoints (default 250)" },
    { "on-nan", 0, "WHAT", "stop (default) or skip: what to do with a step whose gradients are not finite" },
    { "svg", 0, "FILE", "write the curves of the loss" },
    { "html", 0, "FILE", "write them and their figures as one page for a browser too" },
    { "no-peak", 0, NULL, "do not measure what the processor can do" },
    { "seed", 's', "N", "of initial values and of the order of rows (default 1)" },
    { "threads", 't', "N", "CPU threads; 0 (default) = as many as the process may use" },
    { "device", 'd', "NAME", "cpu (default), cuda, opencl, null, or auto" },
    { NULL, 0, NULL, NULL },
};

const cli_command command_train_lm = {
    "train-lm",
    "TEXT",
    "train a language model on a text",
    "A GPT-2 or Llama of any size, with AdamW. The progress line has the loss, tokens a second, the share of the processor's "
    "peak and\n"
    "the time left. FOLDER has config.json, model.safetensors, vocab.json and merges.txt, as Hugging Face's programs read "
    "them;\n"
    "checkpoint.safetensors, from which --resume goes on with the same bits; loss.csv.\n\n"
    "examples:\n"
    "  scripts/fetch-data kjv\n"
    "  tenon train-lm data/kjv.txt -o kjv --steps=20000 --minutes=5 --svg=kjv.svg\n"
    "  tenon train-lm data/kjv.txt -o kjv --resume\n"
    "  tenon train-lm data/kjv.txt -o smol-kjv --from=SmolLM2-135M --block=256 --batch=2 --steps=200\n"
    "  tenon generate kjv --prompt='And God said'",
    1,
    1,
    options,
    run,
};
