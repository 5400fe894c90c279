/* memory.c - `tenon bench memory`: bandwidth and latency by footprint, the cache sizes that the latencies show, access
 * patterns and layouts, transposition and permutation, the cost of starting threads together and of a barrier. */
#include "bench/inside/inside.h"
#include "edges.h"
#include "patterns.h"
#include "suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- bandwidth by footprint ---------------------------------------------------------------------------------------------- */

typedef struct kind {
    const char *name;
    probe_kind probe;
} kind;
static const kind kinds[] = {
    { "read", PROBE_READ }, { "write", PROBE_WRITE }, { "non-temporal write", PROBE_STREAM }, { "copy", PROBE_COPY }
};

static void measure_bandwidth(suite *s, int64_t bytes, int threads) {
    probe *p[COUNT_OF(kinds)];
    stats_case at[COUNT_OF(kinds)];
    const kind *used[COUNT_OF(kinds)];
    int n = 0;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (!suite_wants(s, "bandwidth") && !suite_wants(s, kinds[i].name)) continue;
        p[n] = probe_new(kinds[i].probe, threads, (size_t)bytes);
        at[n] = probe_case(p[n], kinds[i].name);
        at[n].companion = false;
        used[n++] = &kinds[i];
    }
    if (!n) return;
    char label[96];
    snprintf(label, sizeof label, "bandwidth over %lld KiB, %d thread%s", (long long)bytes >> 10, threads,
             threads > 1 ? "s" : "");
    suite_measure(s, label, at, n, s->seconds / 3);
    for (int i = 0; i < n; i++) {
        bench_row r = row_empty();
        r.work = "bandwidth";
        r.name = used[i]->name;
        r.threads = threads;
        r.footprint = bytes;
        row_time(&r, &at[i].result, 0, (rate){ 0, 0 });
        row_bandwidth(&r, &at[i].result, probe_work(p[i]), (rate){ 0, 0 });
        suite_add(s, r);
        probe_free(p[i]);
    }
}

/* ---- latency, and the caches it shows ------------------------------------------------------------------------------------ */

static int ascending(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}
/* Nanoseconds a load at quiet moments: neighbours on the same processor come and go within microseconds. Not at the best one:
 * some clocks of virtual machines jump. */
static double quiet_ns(probe *p, double seconds) {
    double at[64], until = cli_seconds() + seconds;
    int n = 0;
    while (n < 20 || (n < (int)COUNT_OF(at) && cli_seconds() < until)) at[n++] = probe_clock(p, 1);
    qsort(at, (size_t)n, sizeof *at, ascending);
    return at[n / 8] / probe_work(p) * 1e9;
}

static void measure_latency(suite *s, curve *k, double bytes) {
    probe *p = probe_new(PROBE_CHASE, 1, (size_t)bytes);
    stats_case at = probe_case(p, "chase");
    at.companion = false;
    stats_measure(&at, 1, s->seconds / 12, NULL);
    bench_row r = row_empty();
    r.work = "latency";
    r.name = "pointer chase";
    r.threads = 1;
    r.footprint = (int64_t)bytes;
    row_time(&r, &at.result, 0, (rate){ 0, 0 });
    r.latency_ns = at.result.median / probe_work(p) * 1e9;
    k->bytes[k->n] = bytes;
    k->passes[k->n++][0] = quiet_ns(p, s->seconds / 24);
    suite_add(s, r);
    probe_free(p);
}

static void measure_again(suite *s, curve *k, int pass, progress *bar) {
    for (int i = 0; i < k->n; i++) {
        progress_step(bar, pass * k->n + i, "once more");
        probe *p = probe_new(PROBE_CHASE, 1, (size_t)k->bytes[i]);
        k->passes[i][pass] = quiet_ns(p, s->seconds / 24);
        probe_free(p);
    }
}

enum { LEVELS = 3 };
static const char *const level_names[LEVELS] = { "L1 data", "L2", "L3" };

/* What the system says; 0 where it says nothing. */
static void told_caches(suite *s, int64_t *out) {
    tn_device_info info = { 0 };
    if (tn_device_get_info(cli_ctx(s->c), 0, &info)) info = (tn_device_info){ 0 };
    out[0] = info.l1_bytes, out[1] = info.l2_bytes, out[2] = info.l3_bytes;
}

static void find_caches(suite *s, curve *k) {
    int64_t told[LEVELS];
    int from = 0;
    told_caches(s, told);
    curve_smooth(k);
    for (int i = 0; i < LEVELS && from < k->n; i++) {
        double bytes = 0;
        from = curve_edge(k, from, &bytes);
        if (!(bytes > 0)) return;
        bench_row r = row_empty();
        r.work = "cache";
        r.name = level_names[i];
        r.variant = "found from the curve";
        r.footprint = (int64_t)bytes;
        r.told_bytes = told[i];
        r.told_ratio = told[i] > 0 ? bytes / (double)told[i] : -1;
        suite_add(s, r);
    }
}

/* ---- patterns ------------------------------------------------------------------------------------------------------------ */

typedef struct run {
    const pattern *p;
    pattern_data d;
    cli *c;
    tn_graph *graph; /* Tenon's own way, or NULL */
    tn_program *program;
    tn_session *session;
} run;

static void run_pattern(void *ud, int64_t times) {
    run *r = ud;
    for (int64_t i = 0; i < times; i++) {
        r->p->run(&r->d);
        __asm__ volatile("" ::: "memory");
    }
}
static void run_graph(void *ud, int64_t times) {
    run *r = ud;
    for (int64_t i = 0; i < times; i++) cli_need(r->c, tn_session_run(r->session));
}

/* Sums of states, which the plan has put where it likes; they get the pattern's numbers. */
static void build_streams(tn_graph *g, const pattern_data *d) {
    tn_tensor sum = { 0 };
    for (int64_t k = 0; k < pattern_streams; k++) {
        char *name = cli_format("a%d", (int)k);
        tn_tensor x = tn_state(g, name, TN_I32, TN_DIMS(d->n), d->a + k * d->pitch);
        free(name);
        sum = k ? tn_add(sum, x) : x;
    }
    tn_output(sum, "b");
}

/* i32[n,n] transposed, or the streams, by a compiled graph of one thread. */
static void make_graph(run *r, const pattern_data *d, bool streams) {
    r->graph = tn_graph_new(cli_ctx(r->c), streams ? "streams" : "transpose");
    if (streams)
        build_streams(r->graph, d);
    else
        tn_output(tn_transpose(tn_input(r->graph, "a", TN_I32, TN_DIMS(d->n, d->n)), 0, 1), "b");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = 1;
    cli_need(r->c, tn_compile(r->graph, &o, &r->program));
    cli_need(r->c, tn_session_new(r->program, &r->session));
    if (!streams) cli_need(r->c, tn_session_bind(r->session, tn_session_slot(r->session, "a"), d->a));
    cli_need(r->c, tn_session_bind(r->session, tn_session_slot(r->session, "b"), d->b));
}

static void check_pattern(suite *s, run *r, const char *name) {
    pattern_data *d = &r->d;
    if (cli_flag(s->c, "plant-error")) d->sum++, d->b[0]++;
    if (!r->p->right(d)) cli_fail(s->c, "%s: %s over %lld: wrong result", r->p->work, name, (long long)d->n);
}

/* All patterns of one kind of work at one size, in turns. */
static void measure_patterns(suite *s, const char *work, int64_t n) {
    enum { MAX_RUNS = 16 };
    int count, used = 0;
    const pattern *table = pattern_table(&count);
    run runs[MAX_RUNS];
    stats_case at[MAX_RUNS];
    const char *name[MAX_RUNS];
    for (int i = 0; i < count; i++) {
        if (strcmp(table[i].work, work) || !suite_wants(s, work)) continue;
        runs[used] = (run){ .p = &table[i], .d = pattern_data_new(&table[i], n, s->seed), .c = s->c };
        name[used] = table[i].name;
        at[used] = (stats_case){ .run = run_pattern, .ud = &runs[used], .label = table[i].name };
        used++;
    }
    if (!used) return;
    bool streams = !strcmp(work, "streams");
    if (streams || !strcmp(work, "transpose")) {
        runs[used] = (run){ .p = runs[0].p, .d = pattern_data_new(runs[0].p, n, s->seed), .c = s->c };
        make_graph(&runs[used], &runs[used].d, streams);
        name[used] = "compiled graph";
        at[used] = (stats_case){ .run = run_graph, .ud = &runs[used], .label = "compiled graph" };
        used++;
    }
    for (int i = 0; i < used; i++) {
        at[i].run(&runs[i], 1);
        check_pattern(s, &runs[i], name[i]);
    }
    char label[64];
    snprintf(label, sizeof label, "%s, %lld", work, (long long)n);
    suite_measure(s, label, at, used, s->seconds / 3);
    for (int i = 0; i < used; i++) {
        bool square = !strcmp(work, "matrix") || !strcmp(work, "transpose");
        double touched = runs[i].p->touched * (double)n * (square ? (double)n : 1);
        bench_row r = row_empty();
        at[i].run(&runs[i], 1);
        check_pattern(s, &runs[i], name[i]);
        r.work = work;
        r.name = name[i];
        r.size = n;
        r.threads = 1;
        row_time(&r, &at[i].result, 0, (rate){ 0, 0 });
        row_bandwidth(&r, &at[i].result, 4 * touched, (rate){ 0, 0 });
        r.latency_ns = at[i].result.median / touched * 1e9; /* a number */
        suite_add(s, r);
        tn_session_free(runs[i].session);
        tn_program_free(runs[i].program);
        tn_graph_free(runs[i].graph);
        pattern_data_free(&runs[i].d);
    }
}

/* ---- threads ------------------------------------------------------------------------------------------------------------- */

typedef struct team {
    cli *c;
    int threads, barriers;
} team;
static double clock_team(void *ud, int64_t times) {
    team *t = ud;
    double seconds;
    cli_need(t->c, inside_region(cli_ctx(t->c), t->threads, times, t->barriers, &seconds));
    return seconds;
}

static void measure_threads(suite *s, int threads) {
    enum { BARRIERS = 100 };
    team teams[] = { { s->c, threads, 0 }, { s->c, threads, BARRIERS } };
    stats_case at[] = { { .clock = clock_team, .ud = &teams[0], .label = "fork/join" },
                        { .clock = clock_team, .ud = &teams[1], .label = "barrier" } };
    if (threads < 2 || !suite_wants(s, "threads")) return;
    suite_measure(s, "threads", at, 2, s->seconds);
    for (int i = 0; i < 2; i++) {
        stats per = at[i].result;
        double n = i ? BARRIERS : 1;
        per.median /= n, per.p10 /= n, per.p90 /= n, per.best /= n, per.mallocs /= n;
        bench_row r = row_empty();
        r.work = "threads";
        r.name = i ? "barrier" : "fork/join of an empty region";
        r.threads = threads;
        row_time(&r, &per, 0, (rate){ 0, 0 });
        r.latency_ns = per.median * 1e9;
        suite_add(s, r);
    }
}

static const char *bandwidth_line(const bench_row *r, char *buffer, size_t n) {
    if (strcmp(r->work, "bandwidth")) return NULL;
    snprintf(buffer, n, "%s, %d thread%s", r->name, (int)r->threads, r->threads > 1 ? "s" : "");
    return buffer;
}
static const char *latency_line(const bench_row *r, char *buffer, size_t n) {
    (void)buffer, (void)n;
    return strcmp(r->work, "latency") ? NULL : r->name;
}
static double x_of(const bench_row *r) { return (double)r->footprint; }
static double gbs_of(const bench_row *r) { return r->gbs; }
static double ns_of(const bench_row *r) { return r->latency_ns; }

/* The curves, and at each level of the caches two marks: where the curve bends, and what the system says. */
static void plot_curves(suite *s) {
    chart k = { .title = "Bandwidth and latency by footprint",
                .x_label = "footprint",
                .bytes = true,
                .x_of = x_of,
                .panel = { { "GB/s (median)", bandwidth_line, gbs_of },
                           { "nanoseconds a load (median)", latency_line, ns_of } } };
    int64_t told[LEVELS];
    told_caches(s, told);
    for (int i = 0; i < LEVELS; i++) k.mark[k.n_marks++] = (plot_mark){ level_names[i], (double)told[i], true };
    for (int i = 0; i < s->n_rows; i++)
        if (!strcmp(s->rows[i].work, "cache")) k.mark[k.n_marks++] = (plot_mark){ s->rows[i].name, x_of(&s->rows[i]), false };
    rows_plot(s->c, &k, s->rows, s->n_rows);
}

static double latency_point(int i) { return 8192 * exp2((double)i / EDGES_DOUBLING); }

static void measure_curves(suite *s, int64_t largest) {
    curve k = { 0 };
    for (int64_t bytes = 4096; bytes <= largest; bytes *= 2) {
        for (int t = 0; t < s->n_threads; t++) measure_bandwidth(s, bytes, (int)s->threads[t]);
    }
    bool latency = suite_wants(s, "latency"), cache = suite_wants(s, "cache");
    if (!latency && !cache) return;
    int points = 0;
    while (points < EDGES_MAX_POINTS && latency_point(points) <= (double)largest) points++;
    progress bar = progress_begin(s->c, "latency by footprint", (int64_t)points * EDGES_PASSES);
    for (int i = 0; i < points; i++) {
        progress_step(&bar, i, "pointer chase");
        measure_latency(s, &k, floor(latency_point(i) / 512) * 512);
    }
    for (int pass = 1; pass < EDGES_PASSES; pass++) measure_again(s, &k, pass, &bar);
    progress_end(&bar);
    find_caches(s, &k);
}

int bench_memory(cli *c) {
    static const int64_t squares[] = { 64, 512, 2048 }, arrays[] = { 1 << 12, 1 << 17, 1 << 22 };
    suite s = suite_begin(c, "bench memory");
    int64_t largest = cli_int(c, "largest", 256, 0, 4096) << 20, given[16];
    int n = cli_text(c, "sizes", NULL) ? cli_ints(c, "sizes", NULL, given, COUNT_OF(given), 64, 1 << 24) : 0;
    measure_curves(&s, largest ? largest : 16384);
    for (size_t i = 0; i < (n ? (size_t)n : COUNT_OF(squares)); i++) {
        measure_patterns(&s, "matrix", n ? given[i] : squares[i]);
        measure_patterns(&s, "transpose", n ? given[i] : squares[i]);
    }
    for (size_t i = 0; i < (n ? (size_t)n : COUNT_OF(arrays)); i++) {
        int64_t power = 64; /* the wrapping orders want a power of two */
        while (power * 2 <= (n ? given[i] : arrays[i])) power *= 2;
        measure_patterns(&s, "access", power);
        measure_patterns(&s, "records", power);
        measure_patterns(&s, "permute", power);
        measure_patterns(&s, "streams", power);
    }
    for (int t = 0; t < s.n_threads; t++) measure_threads(&s, (int)s.threads[t]);
    suite_report(&s);
    plot_curves(&s);
    suite_end(&s);
    return CLI_OK;
}
