/* transfer.c - `tenon bench memory --device NAME`: bytes between host and device. Whole calls from and to plain memory of
 * the host, what the device moves at a time of them, and inputs that go up while earlier steps run. */
#include "suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2048, MOST_WIDTH = 1024, LAYERS = 4, STEPS = 16, MAX_SPANS = 4096 };

typedef struct transfers {
    cli *c;
    tn_graph *graph;
    tn_program *program;
    tn_session *session;
    float *large, *back, *ring, *last;
    size_t large_bytes, ring_bytes; /* ring: STEPS inputs */
} transfers;

/* x f32[BATCH,width] through some layers, work enough to hide x's way behind; and a large state to be set. */
static void open_transfers(suite *s, transfers *k, int64_t bytes) {
    int64_t n = bytes / (int64_t)sizeof(float), width = bytes < 64 << 20 ? 64 : MOST_WIDTH, in_step = BATCH * width;
    tn_graph *g = k->graph = tn_graph_new(cli_ctx(s->c), "transfers");
    tn_tensor input = tn_input(g, "x", TN_F32, TN_DIMS(BATCH, width)), x = input;
    for (int i = 0; i < LAYERS; i++) {
        char *name = cli_format("w%d", i);
        x = tn_relu(tn_matmul(x, tn_param(g, name, TN_F32, TN_DIMS(width, width), NULL)));
        free(name);
    }
    tn_tensor large = tn_state(g, "large", TN_F32, TN_DIMS(n), NULL), small = tn_state(g, "small", TN_F32, TN_SCALAR, NULL);
    tn_tensor sum = tn_sum(x, TN_ALL_AXES, 0);
    tn_assign(small, tn_add(small, sum));
    tn_assign(large, large);
    tn_output(tn_slice(input, (int64_t[]){ BATCH - 1, width - 1 }, (int64_t[]){ BATCH, width }, NULL, 2), "last");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = TN_MODE_LOOP, o.device = s->device;
    k->c = s->c;
    cli_need(s->c, tn_compile(g, &o, &k->program));
    cli_need(s->c, tn_session_new(k->program, &k->session));
    uint64_t seed = s->seed;
    k->large_bytes = (size_t)n * sizeof(float), k->ring_bytes = (size_t)(STEPS * in_step) * sizeof(float);
    k->large = case_floats(n, 1, &seed), k->back = case_floats(n, 1, &seed), k->ring = case_floats(STEPS * in_step, 1, &seed);
    k->last = buffer_new(sizeof(float));
    cli_need(s->c, tn_session_bind(k->session, tn_session_slot(k->session, "last"), k->last));
}

static void close_transfers(transfers *k) {
    tn_session_free(k->session);
    tn_program_free(k->program);
    tn_graph_free(k->graph);
    buffer_free(k->large), buffer_free(k->back), buffer_free(k->ring), buffer_free(k->last);
}

/* ---- what is timed ---- */

static void upload(void *ud, int64_t times) { /* it has come when something later has come back */
    transfers *k = ud;
    float small;
    for (int64_t i = 0; i < times; i++) {
        cli_need(k->c, tn_session_set(k->session, "large", k->large, k->large_bytes));
        cli_need(k->c, tn_session_get(k->session, "small", &small, sizeof small));
    }
}
static void download(void *ud, int64_t times) {
    transfers *k = ud;
    for (int64_t i = 0; i < times; i++) cli_need(k->c, tn_session_get(k->session, "large", k->back, k->large_bytes));
}
static void steps_fed(void *ud, int64_t times) { /* each step with an input of its own */
    transfers *k = ud;
    for (int64_t i = 0; i < times; i++) cli_need(k->c, tn_run_n(k->session, STEPS, TN_BIND({ "x", k->ring }), STEPS));
}
static void steps_alone(void *ud, int64_t times) { /* all with the same */
    transfers *k = ud;
    for (int64_t i = 0; i < times; i++) cli_need(k->c, tn_run_n(k->session, STEPS, TN_BIND({ "x", k->ring }), 1));
}

static void check(const transfers *k) {
    size_t last = k->ring_bytes / sizeof(float) - 1;
    if (cli_flag(k->c, "plant-error")) k->back[0] += 1;
    if (memcmp(k->back, k->large, k->large_bytes))
        cli_fail(k->c, "memory: the state that came back is not the one that was set");
    if (*k->last != k->ring[last])
        cli_fail(k->c, "memory: the last step saw %.9g, not %.9g", (double)*k->last, (double)k->ring[last]);
}

/* ---- rows ---- */

static bench_row row_of(const char *name, const char *variant, const stats *t, double bytes, rate best) {
    bench_row r = row_empty();
    r.work = "transfer";
    r.name = name;
    r.variant = variant;
    row_time(&r, t, 0, (rate){ 0, 0 });
    if (bytes > 0) r.footprint = (int64_t)bytes, row_bandwidth(&r, t, bytes, best);
    return r;
}

/* GB/s of the fastest among the largest uploads: those with nothing beside them. */
static double rate_of_piece(const tn_span *spans, int n) {
    uint64_t bytes = 0;
    double best = INFINITY;
    for (int i = 0; i < n; i++) {
        if (strcmp(spans[i].what, "upload") || spans[i].bytes < bytes) continue;
        if (spans[i].bytes > bytes) best = INFINITY;
        bytes = spans[i].bytes;
        best = fmin(best, spans[i].end_us - spans[i].begin_us);
    }
    return bytes ? (double)bytes / fmax(best, 1e-3) * 1e-3 : 0;
}

/* The part of the uploads' time in which steps ran, too. */
static double beside_runs(const tn_span *spans, int n) {
    double all = 0, both = 0;
    for (int i = 0; i < n; i++) {
        if (strcmp(spans[i].what, "upload")) continue;
        all += spans[i].end_us - spans[i].begin_us;
        for (int k = 0; k < n; k++) {
            if (strcmp(spans[k].what, "run")) continue;
            double begin = fmax(spans[i].begin_us, spans[k].begin_us), end = fmin(spans[i].end_us, spans[k].end_us);
            if (end > begin) both += end - begin;
        }
    }
    return all > 0 ? both / all : 0;
}

/* A large input, and nothing that runs while it goes up. */
static double piece_alone(suite *s, const transfers *k, tn_span *spans) {
    int64_t n = (int64_t)(k->large_bytes / sizeof(float));
    tn_graph *g = tn_graph_new(cli_ctx(s->c), "pieces");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(n));
    tn_output(tn_slice(x, (int64_t[]){ n - 1 }, (int64_t[]){ n }, NULL, 1), "last");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *t;
    float last = NAN;
    int n_spans = 0;
    o.mode = TN_MODE_LOOP, o.device = s->device;
    cli_need(s->c, tn_compile(g, &o, &p));
    cli_need(s->c, tn_session_new(p, &t));
    tn_status code = tn_run_n_spans(t, 1, TN_BIND({ "x", k->large }, { "last", &last }), 1, spans, MAX_SPANS, &n_spans);
    if (code && code != TN_ERR_UNSUPPORTED) cli_need(s->c, code);
    if (!code && last != k->large[n - 1]) cli_fail(s->c, "memory: the last element of an input is %.9g", (double)last);
    tn_session_free(t);
    tn_program_free(p);
    tn_graph_free(g);
    return rate_of_piece(spans, n_spans);
}

static void add_piece(suite *s, double gbs) {
    bench_row r = row_empty();
    r.work = "transfer";
    r.name = "upload, fastest piece";
    r.variant = "pinned memory, by the device's clock";
    r.gbs = gbs;
    if (gbs > 0) suite_add(s, r);
}

void bench_transfers(suite *s, int64_t bytes) {
    transfers k = { 0 };
    open_transfers(s, &k, bytes);
    stats_case at[] = { { .run = upload, .ud = &k, .label = "upload" },
                        { .run = download, .ud = &k, .label = "download" },
                        { .run = steps_alone, .ud = &k, .label = "steps alone" },
                        { .run = steps_fed, .ud = &k, .label = "steps fed" } };
    upload(&k, 1), download(&k, 1), steps_fed(&k, 1);
    check(&k);
    suite_measure(s, "transfers", at, COUNT_OF(at), s->seconds);
    steps_fed(&k, 1);
    check(&k);

    tn_span *spans = cli_alloc(MAX_SPANS * sizeof *spans), *pieces = cli_alloc(MAX_SPANS * sizeof *pieces);
    int n = 0;
    tn_status code = tn_run_n_spans(k.session, STEPS, TN_BIND({ "x", k.ring }), STEPS, spans, MAX_SPANS, &n);
    if (code && code != TN_ERR_UNSUPPORTED) cli_need(s->c, code);
    double piece = piece_alone(s, &k, pieces);
    rate link = { piece, piece };
    add_piece(s, piece);
    suite_add(s, row_of("upload", "a state, plain memory", &at[0].result, (double)k.large_bytes, link));
    suite_add(s, row_of("download", "a state, plain memory", &at[1].result, (double)k.large_bytes, (rate){ 0, 0 }));
    suite_add(s, row_of("steps, one input", suite_text(s, "%d in a call", STEPS), &at[2].result, 0, (rate){ 0, 0 }));
    const char *hidden = n ? suite_text(s, "%.0f%% of the uploads beside steps", 100 * beside_runs(spans, n)) : "";
    suite_add(s, row_of("steps, an input each", hidden, &at[3].result, (double)k.ring_bytes, link));
    free(spans);
    free(pieces);
    close_transfers(&k);
}
