/* serve.c - `tenon bench serve`: requests of many threads to one program, one by one and gathered into batches (tn_batcher).
 *
 * The load is open: requests are due at random moments (a Poisson process) of a given rate, whether earlier ones are done or
 * not, and a request's time counts from when it was due. Rates are multiples of what one session serves one by one, alone. All
 * ways get the same moments. Every answer is compared with double precision. */
#include "suite.h"
#include "tenon/tenon_nn.h"
#include "tenon/tenon_serve.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CLIENTS = 32, QUESTIONS = 64, IN = 784, WIDE = 2048, OUT = 10, MOST_REQUESTS = 200000 };
static const double rates[] = { 0.5, 0.9, 2, 4 };
static const struct {
    const char *name;
    tn_batcher_opts o;
} ways[] = { { "one by one", { .max_batch = 1 } },
             { "batches", { .max_batch = 64 } },
             { "batches, up to 1 ms later", { .max_batch = 64, .max_delay = 1e-3 } } };

typedef struct load { /* what the clients share */
    cli *c;
    tn_batcher *b;
    const double *due; /* [n] seconds from the start */
    double *spent;     /* [n] seconds, by request */
    int64_t n;
    double start;
    _Atomic int64_t next;
    const float *x;     /* f32[QUESTIONS,IN] */
    const double *want; /* f64[QUESTIONS,OUT] */
    double bound;
    bool plant_error;
} load;

typedef struct client {
    load *l;
    pthread_t thread;
    double worst; /* error */
    tn_status code;
} client;

static void wait_until(double t) { /* by the clock of cli_seconds */
    struct timespec at = { (time_t)t, (long)((t - floor(t)) * 1e9) };
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static void *client_main(void *ud) {
    client *k = ud;
    load *l = k->l;
    for (int64_t i; (i = atomic_fetch_add(&l->next, 1)) < l->n && !k->code;) {
        float y[OUT];
        int64_t q = i % QUESTIONS;
        wait_until(l->start + l->due[i]);
        k->code = tn_batcher_run(l->b, (tn_binding[]){ { "x", (void *)(uintptr_t)(l->x + q * IN) }, { "y", y } }, 2, 1);
        l->spent[i] = cli_seconds() - l->start - l->due[i];
        if (l->plant_error) y[0] += 1;
        for (int j = 0; j < OUT; j++) {
            double off = fabs((double)y[j] - l->want[q * OUT + j]);
            if (!(off <= k->worst)) k->worst = isnan(off) ? INFINITY : off;
        }
    }
    return NULL;
}

static tn_graph *network(cli *c, int64_t batch, uint64_t seed) { /* 0: of any number of examples */
    tn_graph *g = tn_graph_new(cli_ctx(c), "mlp");
    tn_graph_set_seed(g, seed);
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch ? batch : tn_dim(g, "batch", 1, 64, 1), IN));
    x = tn_relu(tn_nn_linear(tn_relu(tn_nn_linear(x, WIDE, "fc1")), WIDE, "fc2"));
    tn_output(tn_nn_softmax(tn_nn_linear(x, OUT, "fc3"), -1), "y");
    return g;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of a run of one example, the median of some. */
static double time_alone(cli *c, tn_program *p, const float *x) {
    tn_session *s;
    double t[101];
    float y[OUT];
    cli_need(c, tn_session_new(p, &s));
    cli_need(c, tn_bind_dim(s, "batch", 1));
    for (int i = 0; i < 111; i++) {
        double start = cli_seconds();
        cli_need(c, tn_run(s, (tn_binding[]){ { "x", (void *)(uintptr_t)x }, { "y", y } }, 2));
        if (i >= 10) t[i - 10] = cli_seconds() - start;
    }
    tn_session_free(s);
    qsort(t, COUNT_OF(t), sizeof *t, by_size);
    return t[COUNT_OF(t) / 2];
}

static bench_row run_load(cli *c, tn_program *p, load *l, const char *way, const tn_batcher_opts *o, double asked) {
    client k[CLIENTS] = { 0 };
    tn_batcher_stats s;
    bench_row r = row_empty();
    double worst = 0;
    cli_need(c, tn_batcher_new(cli_ctx(c), p, o, &l->b));
    atomic_store(&l->next, 0);
    l->start = cli_seconds() + 0.005;
    for (int i = 0; i < CLIENTS; i++) {
        k[i].l = l;
        if (pthread_create(&k[i].thread, NULL, client_main, &k[i])) cli_fail(c, "cannot start a thread");
    }
    for (int i = 0; i < CLIENTS; i++) pthread_join(k[i].thread, NULL), worst = fmax(worst, k[i].worst);
    double all = cli_seconds() - l->start;
    for (int i = 0; i < CLIENTS; i++)
        if (k[i].code) cli_fail(c, "serve: a request ended with %s", tn_status_name(k[i].code));
    tn_batcher_get_stats(l->b, &s, 0);
    tn_batcher_free(l->b);
    if (!(worst <= l->bound))
        cli_fail(c, "serve, %s: an element is %g away from double precision; %g is allowed", way, worst, l->bound);
    qsort(l->spent, (size_t)l->n, sizeof *l->spent, by_size);
    r.work = "serve", r.variant = way, r.batch = 1, r.threads = 1, r.samples = (int)l->n;
    r.median_us = 1e6 * l->spent[l->n / 2], r.best_us = 1e6 * l->spent[0];
    r.p10_us = 1e6 * l->spent[l->n / 10], r.p90_us = 1e6 * l->spent[l->n * 9 / 10], r.p99_us = 1e6 * l->spent[l->n * 99 / 100];
    r.max_abs_err = worst, r.err_bound = l->bound;
    r.asked_per_second = asked, r.per_second = (double)l->n / all;
    r.mean_batch = (double)s.examples / (double)s.batches;
    return r;
}

/* Moments of a Poisson process. */
static int64_t make_moments(double *due, double asked, double seconds, uint64_t seed) {
    int64_t n = 0;
    for (double t = 0; n < MOST_REQUESTS; n++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        t -= log(((double)(seed >> 11) + 1) * 0x1p-53) / asked;
        if (n >= 20 && t > seconds) break;
        due[n] = t;
    }
    return n;
}

static void measure(suite *s, load *l, tn_program *p, double capacity) {
    double *due = cli_alloc(MOST_REQUESTS * sizeof *due);
    l->due = due, l->spent = cli_alloc(MOST_REQUESTS * sizeof *l->spent);
    progress bar = progress_begin(s->c, "serve", (int64_t)(COUNT_OF(rates) * COUNT_OF(ways)));
    int64_t done = 0;
    for (size_t i = 0; i < COUNT_OF(rates); i++) {
        const char *name = suite_text(s, "mlp %d-%d-%d-%d at %g times", IN, WIDE, WIDE, OUT, rates[i]);
        if (!suite_wants(s, name)) continue;
        l->n = make_moments(due, rates[i] * capacity, s->seconds, s->seed);
        for (size_t w = 0; w < COUNT_OF(ways); w++) {
            bench_row r = run_load(s->c, p, l, ways[w].name, &ways[w].o, rates[i] * capacity);
            r.name = name;
            suite_add(s, r);
            progress_step(&bar, ++done, ways[w].name);
        }
    }
    progress_end(&bar);
    free(due), free(l->spent);
}

static double x_of(const bench_row *r) { return r->asked_per_second; }
static double y_of(const bench_row *r) { return r->p99_us; }
static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    snprintf(buffer, n, "%s", r->variant);
    return buffer;
}

int bench_serve(cli *c) {
    suite s = suite_begin(c, "bench serve");
    if (s.device) cli_usage(c, "serve is measured on the CPU");
    s.note =
        "times count from the moment when a request is due, and waking up its thread is inside; one worker, of one thread; "
        "rates are multiples of 1 / time of a run of one example";
    tn_graph *g = network(c, 0, s.seed), *same = network(c, QUESTIONS, s.seed);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_ir_eval *eval;
    tn_tensor y;
    uint64_t seed = s.seed;
    int64_t n;
    load l = { .c = c, .x = case_floats(QUESTIONS * IN, 1, &seed), .plant_error = cli_flag(c, "plant-error") };
    cli_need(c, tn_ir_evaluate(same, (tn_binding[]){ { "x", (void *)(uintptr_t)l.x } }, 1, &eval));
    cli_need(c, tn_ir_get_output(same, 0, NULL, &y, NULL));
    l.want = tn_ir_eval_values(eval, y, &n);
    l.bound = 3 * 4 * sqrt(IN + 1.0) * 0x1p-24;
    o.threads = 1;
    cli_need(c, tn_compile(g, &o, &p));
    measure(&s, &l, p, 1 / time_alone(c, p, l.x));
    suite_report(&s);
    rows_plot(c,
              &(chart){ .title = "Requests of many threads",
                        .x_label = "requests a second",
                        .x_of = x_of,
                        .panel = { { "microseconds (99 of 100 are faster)", line_of, y_of } } },
              s.rows, s.n_rows);
    tn_ir_eval_free(eval);
    tn_program_free(p), tn_graph_free(g), tn_graph_free(same);
    buffer_free((void *)(uintptr_t)l.x);
    suite_end(&s);
    return CLI_OK;
}
