/* dynamic.c - `tenon bench dynamic`: one program for a range of sizes beside programs compiled for each of them, in the same
 * rounds: an MLP by batch, a transformer of two layers by batch and length. Rows have the time of the one program;
 * specialised_us is that of the other, specialised_ratio their quotient: 1 is as fast as a program for these sizes. The last
 * two rows of a network have the geometric mean and the worst of its ratios, and what compiling once took.
 *
 * Small sizes are compared with double precision (the reference evaluator), all with the program for their sizes. */
#include "suite.h"
#include "tenon/tenon_nn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, LENGTH = 512, WIDTH = 64, HEADS = 4, FEATURES = 256, EVALUATED = 1 << 11 };

typedef struct network {
    const char *name;
    tn_tensor (*build)(tn_tensor x); /* of "x" f32[batch,256], or f32[batch,length,64] */
    bool sequences;
} network;

static tn_tensor build_mlp(tn_tensor x) {
    x = tn_relu(tn_nn_linear(x, FEATURES, "fc1"));
    x = tn_relu(tn_nn_linear(x, FEATURES, "fc2"));
    return tn_nn_softmax(tn_nn_linear(x, 10, "fc3"), -1);
}

static tn_tensor heads_of(tn_tensor x) { /* [B,T,C] to [B,heads,T,C/heads] */
    tn_shape s = tn_tensor_shape(x);
    return tn_transpose(tn_reshape(x, TN_DIMS(s.dim[0], s.dim[1], HEADS, WIDTH / HEADS)), 1, 2);
}

static tn_tensor block(tn_tensor x, const char *const *names) {
    tn_tensor n = tn_nn_layer_norm(x, 0, names[0]);
    tn_tensor q = heads_of(tn_nn_linear(n, WIDTH, names[1])), k = heads_of(tn_nn_linear(n, WIDTH, names[2]));
    tn_tensor v = heads_of(tn_nn_linear(n, WIDTH, names[3]));
    tn_tensor a = tn_transpose(tn_nn_attention(q, k, v, 0), 1, 2);
    x = tn_add(x, tn_nn_linear(tn_reshape(a, tn_tensor_shape(x)), WIDTH, names[4]));
    n = tn_relu(tn_nn_linear(tn_nn_layer_norm(x, 0, names[5]), 4 * WIDTH, names[6]));
    return tn_add(x, tn_nn_linear(n, WIDTH, names[7]));
}

static tn_tensor build_transformer(tn_tensor x) {
    static const char *const names[][8] = { { "0/n1", "0/q", "0/k", "0/v", "0/o", "0/n2", "0/up", "0/down" },
                                            { "1/n1", "1/q", "1/k", "1/v", "1/o", "1/n2", "1/up", "1/down" } };
    return block(block(x, names[0]), names[1]);
}

static const network networks[] = { { "mlp", build_mlp, false }, { "transformer", build_transformer, true } };

typedef struct job {
    cli *c;
    tn_graph *graph;
    tn_program *program;
    tn_session *session;
    float *x, *y;
    double compile_us;
} job;

static void run_job(void *ud, int64_t times) {
    job *j = ud;
    for (int64_t i = 0; i < times; i++) cli_need(j->c, tn_session_run(j->session));
}
static double clock_job(void *ud, int64_t times) { /* on a device: without the transfers */
    job *j = ud;
    return device_seconds(j->c, j->session, &(tn_binding){ "x", j->x }, 1, times);
}
static stats_case case_of(const suite *s, job *j, const char *label) {
    return (stats_case){ .run = run_job, .clock = s->device ? clock_job : NULL, .ud = j, .label = label };
}

static tn_shape shape_of(const network *net, int64_t batch, int64_t length) {
    return net->sequences ? TN_DIMS(batch, length, WIDTH) : TN_DIMS(batch, FEATURES);
}
static int64_t count_of(const network *net, int64_t batch, int64_t length) {
    return net->sequences ? batch * length * WIDTH : batch * FEATURES;
}
static int64_t results_of(const network *net, int64_t batch, int64_t length) {
    return net->sequences ? batch * length * WIDTH : batch * 10;
}

/* batch 0: of all sizes. */
static job job_new(const suite *s, const network *net, int64_t batch, int64_t length, int threads, float *x) {
    job j = { .c = s->c, .x = x, .graph = tn_graph_new(cli_ctx(s->c), net->name) };
    tn_graph_set_seed(j.graph, s->seed);
    int64_t most = batch ? results_of(net, batch, length) : results_of(net, BATCH, LENGTH);
    if (!batch) {
        batch = tn_dim(j.graph, "batch", 1, BATCH, 1);
        if (net->sequences) length = tn_dim(j.graph, "length", 1, LENGTH, 1);
    }
    tn_output(net->build(tn_input(j.graph, "x", TN_F32, shape_of(net, batch, length))), "y");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = threads, o.no_cache = 1;
    if (s->device) o.device = s->device, o.mode = TN_MODE_LOOP;
    double start = cli_seconds();
    cli_need(s->c, tn_compile(j.graph, &o, &j.program));
    j.compile_us = (cli_seconds() - start) * 1e6;
    cli_need(s->c, tn_session_new(j.program, &j.session));
    j.y = buffer_new((size_t)most * sizeof(float));
    cli_need(s->c, tn_session_bind(j.session, tn_session_slot(j.session, "x"), x));
    cli_need(s->c, tn_session_bind(j.session, tn_session_slot(j.session, "y"), j.y));
    return j;
}

static void job_free(job *j) {
    tn_session_free(j->session);
    tn_program_free(j->program);
    tn_graph_free(j->graph);
    buffer_free(j->y);
}

/* Against double where that takes no minutes, else against the other program. */
static void check(const suite *s, const network *net, const job *one, const job *special, int64_t n, float *x, bench_row *r) {
    tn_ir_eval *e = NULL;
    const double *exact = NULL;
    tn_tensor y, state;
    const char *name;
    int64_t count = n;
    if (n <= EVALUATED) {
        cli_need(s->c, tn_ir_evaluate(special->graph, &(tn_binding){ "x", x }, 1, &e));
        cli_need(s->c, tn_ir_get_output(special->graph, 0, &name, &y, &state));
        exact = tn_ir_eval_values(e, y, &count);
    }
    double *want = case_array(n), top = 0;
    for (int64_t i = 0; i < n; i++) want[i] = exact ? exact[i] : (double)special->y[i], top = fmax(top, fabs(want[i]));
    r->err_bound = 1e-5 * top;
    if (cli_flag(s->c, "plant-error")) one->y[n / 2] += (float)(1 + 4 * r->err_bound);
    bool finite = row_error(r, one->y, want, n);
    if (!finite || !(r->max_abs_err <= r->err_bound))
        cli_fail(s->c, "%s, batch %lld, length %lld: off by %g where %g is allowed", net->name, (long long)r->batch,
                 (long long)r->size, r->max_abs_err, r->err_bound);
    tn_ir_eval_free(e);
    free(want);
}

typedef struct summary {
    double logs, worst;
    int n;
} summary;

static void measure_size(suite *s, const network *net, job *one, int64_t batch, int64_t length, int threads, float *x,
                         summary *all) {
    job special = job_new(s, net, batch, length, threads, x);
    cli_need(s->c, tn_bind_dim(one->session, "batch", batch));
    if (net->sequences) cli_need(s->c, tn_bind_dim(one->session, "length", length));
    bench_row r = row_empty();
    r.work = "dynamic", r.name = net->name, r.variant = "one program", r.threads = threads, r.batch = batch,
    r.device = s->device;
    if (net->sequences) r.size = length;
    stats_case at[] = { case_of(s, one, "one program"), case_of(s, &special, "for these sizes") };
    run_job(one, 1), run_job(&special, 1);
    check(s, net, one, &special, results_of(net, batch, length), x, &r);
    char label[96];
    snprintf(label, sizeof label, "%s, batch %lld, length %lld, %d thread%s", net->name, (long long)batch, (long long)length,
             threads, threads > 1 ? "s" : "");
    suite_measure(s, label, at, 2, s->seconds);
    row_time(&r, &at[0].result, 0, (rate){ 0 });
    r.specialised_us = at[1].result.median * 1e6;
    r.specialised_ratio = at[1].result.median / at[0].result.median;
    all->logs += log(r.specialised_ratio), all->n++;
    all->worst = fmin(all->worst, r.specialised_ratio);
    suite_add(s, r);
    job_free(&special);
}

/* Numbers from 1 to hi, as many small ones as large ones; the first and the second are the ends. */
static int64_t pick(int i, int64_t hi, uint64_t *seed) {
    if (i < 2) return i ? hi : 1;
    return (int64_t)fmin((double)hi, exp(random_unit(seed) * log((double)hi + 1)));
}

static void measure(suite *s, const network *net, int n, int64_t most, int threads) {
    if (!suite_wants(s, net->name)) return;
    uint64_t seed = s->seed;
    float *x = case_floats(count_of(net, BATCH, LENGTH), 1, &seed);
    job one = job_new(s, net, 0, 0, threads, x);
    summary all = { 0, INFINITY, 0 };
    for (int i = 0; i < n; i++) {
        int64_t batch = pick(i, BATCH, &seed), length = pick(i, most, &seed);
        measure_size(s, net, &one, batch, length, threads, x, &all);
    }
    for (int worst = 0; worst < 2; worst++) {
        bench_row r = row_empty();
        r.work = "dynamic", r.name = net->name, r.variant = worst ? "worst" : "geometric mean", r.threads = threads;
        r.specialised_ratio = worst ? all.worst : exp(all.logs / all.n);
        r.compile_us = one.compile_us;
        suite_add(s, r);
    }
    job_free(&one);
    buffer_free(x);
}

static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    snprintf(buffer, n, "%s, %d thread%s", r->name, (int)r->threads, r->threads > 1 ? "s" : "");
    return buffer;
}
static double x_of(const bench_row *r) { return (double)r->batch * (double)(r->size > 0 ? r->size : 1); }
static double y_of(const bench_row *r) { return r->median_us > 0 ? r->specialised_ratio : 0; }

int bench_dynamic(cli *c) {
    suite s = suite_begin(c, "bench dynamic");
    s.note = "specialised_ratio: the time of a program for these sizes alone over that of one program for all";
    int n = (int)cli_int(c, "samples", 20, 2, 10000);
    int64_t most = cli_int(c, "largest", LENGTH, 1, LENGTH);
    for (size_t i = 0; i < COUNT_OF(networks); i++)
        for (int t = 0; t < s.n_threads; t++) measure(&s, &networks[i], n, most, (int)s.threads[t]);
    suite_report(&s);
    rows_plot(c,
              &(chart){ .title = "One program for all sizes, against programs for one",
                        .x_label = "rows",
                        .x_of = x_of,
                        .panel = { { "time for one size / time of one for all", line_of, y_of } } },
              s.rows, s.n_rows);
    suite_end(&s);
    return CLI_OK;
}
