/* train.c - `tenon bench train`: one training step (loss, gradients, update) of two networks, in loop mode. Loss and
 * every parameter and moment after one step are checked against the reference evaluator. */
#include "suite.h"
#include "tenon/tenon_nn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double learning_rate = 1e-3; /* of Adam, its default */
static const double weight_decay = 1e-2;  /* of AdamW, as PyTorch's */

typedef struct network {
    const char *name, *optimiser;
    int64_t batch;
    tn_tensor (*scores)(tn_graph *g, int64_t batch); /* from input "x" to f32[batch,10] */
    int64_t features;
    double flops, first; /* of one image, forward: 2 a multiply-add; of these the first layer's */
} network;

static tn_tensor mlp_scores(tn_graph *g, int64_t batch) {
    return model_classifier(tn_input(g, "x", TN_F32, TN_DIMS(batch, 784)));
}

static tn_tensor digits_scores(tn_graph *g, int64_t batch) {
    return model_digits(tn_input(g, "x", TN_F32, TN_DIMS(batch, 8, 8, 1)));
}

#define MLP(optimiser)                                                                                                         \
    { "mlp 784-512-512-10", optimiser, 64, mlp_scores, 784, 2.0 * (784 * 512 + 512 * 512 + 512 * 10), 2.0 * 784 * 512 }
#define DIGITS(optimiser)                                                                                                      \
    {                                                                                                                          \
        "digits cnn", optimiser, 32, digits_scores, 64, 2.0 * (64 * 9 * 16 + 64 * 9 * 16 * 32 + 512 * 64 + 64 * 10),           \
            2.0 * 64 * 9 * 16                                                                                                  \
    }
static const network networks[] = { MLP("sgd"), MLP("adamw"), DIGITS("adam"), DIGITS("adamw") };

static bool is_adam(const network *net) { return !strncmp(net->optimiser, "adam", 4); }
static bool decays(const network *net) { return !strcmp(net->optimiser, "adamw"); }

static tn_tensor build(tn_graph *g, const network *net, int64_t batch) {
    tn_tensor loss = tn_nn_cross_entropy(net->scores(g, batch), tn_input(g, "labels", TN_I32, TN_DIMS(batch)));
    tn_output(loss, "loss");
    if (is_adam(net))
        tn_nn_adam(loss, (tn_nn_adam_opts){
                             .lr = learning_rate, .weight_decay = decays(net) ? weight_decay : 0, .decoupled = decays(net) });
    else
        tn_nn_sgd(loss, (tn_nn_sgd_opts){ .lr = 0.01 });
    return loss;
}

/* Adam's first update is lr * sign(g) for all but tiny gradients: where f32 cannot tell the sign, either is right. */
static int expect(cli *c, bench_case *k, tn_session *s, expected *want) {
    (void)s;
    const network *net = k->ud;
    int n = expect_evaluated(c, k, 3e-5, want);
    for (int i = 0; i < n && is_adam(net); i++) {
        if (!want[i].state || strstr(want[i].name, "/adam/")) continue;
        const expected *m = NULL;
        char *moment = cli_format("%s/adam/m", want[i].name);
        for (int j = 0; j < n; j++) {
            if (!strcmp(want[j].name, moment)) m = &want[j];
        }
        free(moment);
        for (int64_t j = 0; j < want[i].n; j++) {
            bool tiny = !m || fabs(m->want[j]) <= 30 * m->bound[j];
            want[i].bound[j] += tiny ? 2.1 * learning_rate : 0.05 * learning_rate;
        }
    }
    return n;
}

static void measure(suite *s, const network *net, int64_t batch, uint64_t seed) {
    if (!suite_wants(s, net->name)) return;
    bench_case k = case_new(s, "train", net->name, net->optimiser);
    tn_graph_set_seed(k.graph, seed);
    k.mode = TN_MODE_LOOP;
    k.fresh = true;
    build(k.graph, net, batch);
    float *x = case_floats(batch * net->features, 1, &seed);
    int32_t *labels = buffer_new((size_t)batch * sizeof(int32_t));
    for (int64_t i = 0; i < batch * net->features; i++) x[i] = fabsf(x[i]);
    for (int64_t i = 0; i < batch; i++) labels[i] = (int32_t)(random_next(&seed) % 10);
    case_input(&k, "x", x);
    case_input(&k, "labels", labels);
    k.flops = (3 * net->flops - net->first) * (double)batch; /* nobody needs the gradient by the images */
    k.row.batch = batch;
    k.expect = expect;
    k.ud = net;
    if (!decays(net)) /* what rivals are asked for names the network, and each has one optimiser */
        k.rival = cli_format("train what=%s batch=%lld", is_adam(net) ? "digits" : "mlp", (long long)batch);
    suite_run(s, &k, 1);
}

enum { SUBMITTED = 1000 /* steps of a submit */, CHAIN = 17 /* operations of a step; each kernel negates and adds */ };

static void run_steps(void *ud, int64_t times) {
    bench_case *k = ud;
    cli_need(k->c, tn_run_n(k->session, times, NULL, 0, 1));
}

/* What a launch costs that the device makes by itself: a chain of kernels that do next to nothing, many steps a
 * submit. */
static void measure_launches(suite *s) {
    static const char name[] = "short kernels, 1000 steps a submit";
    if (!s->device || !suite_wants(s, name)) return;
    bench_case k = case_new(s, "launches", name, NULL);
    float counter[256] = { 0 }, after[256];
    tn_tensor x = tn_state(k.graph, "x", TN_F32, TN_DIMS(256), counter), y = x;
    for (int i = 0; i < CHAIN; i++) y = i % 2 ? tn_neg(y) : tn_add_scalar(y, 1); /* x + 1 in the end */
    tn_assign(x, y);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = TN_MODE_LOOP, o.device = s->device, o.fusion = 0;
    cli_need(s->c, tn_compile(k.graph, &o, &k.program));
    cli_need(s->c, tn_session_new(k.program, &k.session));
    cli_need(s->c, tn_run_n(k.session, SUBMITTED, NULL, 0, 1));
    cli_need(s->c, tn_session_get(k.session, "x", after, sizeof after));
    for (int i = 0; i < 256; i++)
        if (after[i] != SUBMITTED) cli_fail(s->c, "%s: element %d is %g after %d steps", name, i, (double)after[i], SUBMITTED);
    stats_case timed = { run_steps, .ud = &k, .label = name, .least = SUBMITTED };
    suite_measure(s, name, &timed, 1, s->seconds);
    tn_program_stats facts;
    tn_program_get_stats(k.program, &facts);
    k.row.mode = cli_mode_name(TN_MODE_LOOP), k.row.kernels = facts.kernels;
    row_time(&k.row, &timed.result, 0, (rate){ 0 });
    suite_add(s, k.row);
    tn_session_free(k.session);
    tn_program_free(k.program);
    tn_graph_free(k.graph);
}

static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    snprintf(buffer, n, "%s, %s, batch %d", r->name, r->variant, (int)r->batch);
    return buffer;
}
static double x_of(const bench_row *r) { return (double)r->threads; }
static double y_of(const bench_row *r) { return r->median_us; }

int bench_train(cli *c) {
    suite s = suite_begin(c, "bench train");
    int64_t batch[8];
    int n = cli_text(c, "batch", NULL) ? cli_ints(c, "batch", NULL, batch, COUNT_OF(batch), 1, 65536) : 0;
    for (size_t i = 0; i < COUNT_OF(networks); i++) {
        if (!n) measure(&s, &networks[i], networks[i].batch, s.seed);
        for (int b = 0; b < n; b++) measure(&s, &networks[i], batch[b], s.seed);
    }
    measure_launches(&s);
    suite_report(&s);
    rows_plot(c,
              &(chart){ .title = "One training step",
                        .x_label = "threads",
                        .x_of = x_of,
                        .panel = { { "microseconds (median)", line_of, y_of } } },
              s.rows, s.n_rows);
    suite_end(&s);
    return CLI_OK;
}
