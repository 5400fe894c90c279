/* suite.c - runs the cases of a benchmark: graphs with their inputs and expected results in, rows of a report out.
 *
 * For each number of threads every case is compiled and bound, run once and checked; then all cases, the ceilings that bound
 * them and the rivals take turns; then the results are checked again. A wrong result ends the program with code 1. */
#include "suite.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

suite suite_begin(cli *c, const char *command) {
    suite s = { .c = c, .command = command };
    cli_note(c, "measuring the machine");
    s.m = ceiling_measure(0);
    char all[32];
    snprintf(all, sizeof all, s.m.cores > 1 ? "1,%d" : "%d", s.m.cores);
    s.n_threads = cli_ints(c, "threads", all, s.threads, SUITE_MAX_THREADS, 0, 256);
    for (int i = 0; i < s.n_threads; i++) {
        if (!s.threads[i]) s.threads[i] = s.m.cores;
    }
    const char *device = cli_device(c);
    if (strcmp(device, "cpu")) {
        s.m.device = s.device = device;
        s.n_threads = 1, s.threads[0] = 1;
    }
    s.seconds = cli_number(c, "seconds", 0.3, 0.001, 3600);
    s.seed = (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX);
    const char *filter = cli_text(c, "cases", NULL);
    if (filter) s.n_filter = cli_words(c, filter, s.filter, COUNT_OF(s.filter));
    return s;
}

rivals *suite_rivals(suite *s, int which) {
    if (!s->rivals[which]) s->rivals[which] = rivals_open(s->c, (int)s->threads[which]);
    return s->rivals[which];
}

/* Each name once. */
static void pass_over(suite *s, const char *name) {
    char *old = s->passed_over;
    size_t n = strlen(name);
    for (const char *at = old; at && (at = strstr(at, name)); at++) {
        if ((at == old || at[-1] == ' ') && (at[n] == ',' || !at[n])) return;
    }
    s->passed_over = cli_format("%s%s%s", old ? old : "", old ? ", " : "", name);
    free(old);
}

bool suite_wants(suite *s, const char *name) {
    bool wanted = !s->n_filter;
    for (int i = 0; i < s->n_filter; i++) {
        if (!strstr(name, s->filter[i])) continue;
        wanted = s->met[i] = true;
    }
    if (!wanted) pass_over(s, name);
    return wanted;
}

/* A word that no name has is wrong usage. What the other words asked for has been reported. */
static void check_filter(const suite *s) {
    if (s->c->schedule && !s->by_hand)
        cli_usage(s->c, "no program of %s has a kernel for which the schedule is possible", s->command);
    for (int i = 0; i < s->n_filter; i++)
        if (!s->met[i])
            cli_usage(s->c, "no case of %s has '%s' in its name; others than what was measured: %s", s->command, s->filter[i],
                      s->passed_over ? s->passed_over : "none");
}

void suite_add(suite *s, bench_row row) {
    if (s->n_rows == s->cap) {
        int cap = s->cap ? 2 * s->cap : 64;
        bench_row *more = cli_alloc(sizeof(bench_row) * (size_t)cap);
        if (s->n_rows) memcpy(more, s->rows, sizeof(bench_row) * (size_t)s->n_rows);
        free(s->rows);
        s->rows = more;
        s->cap = cap;
    }
    s->rows[s->n_rows++] = row;
}

void suite_measure(suite *s, const char *label, stats_case *cases, int n, double seconds) {
    progress bar = progress_begin(s->c, label, n);
    stats_measure(cases, n, seconds, &bar);
    progress_end(&bar);
}

const char *suite_text(suite *s, const char *fmt, ...) {
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    char **more = cli_alloc(sizeof(char *) * (size_t)(s->n_texts + 1));
    if (s->n_texts) memcpy(more, s->texts, sizeof(char *) * (size_t)s->n_texts);
    free(s->texts);
    s->texts = more;
    return s->texts[s->n_texts++] = cli_format("%s", text);
}

void suite_report(suite *s) {
    if (s->n_rows || !s->n_filter) rows_report(s->c, s->command, s->note, &s->m, s->rivals[0], s->rows, s->n_rows);
    check_filter(s);
}

void suite_end(suite *s) {
    for (int i = 0; i < s->n_threads; i++) rivals_close(s->rivals[i]);
    for (int i = 0; i < s->n_filter; i++) free(s->filter[i]);
    for (int i = 0; i < s->n_texts; i++) free(s->texts[i]);
    free(s->texts);
    free(s->rows);
    free(s->passed_over);
}

/* ---- cases --------------------------------------------------------------------------------------------------------------- */

bench_case case_new(suite *s, const char *work, const char *name, const char *variant) {
    bench_case k = { .row = row_empty(), .mode = TN_MODE_COMPILED, .c = s->c };
    k.row.work = work;
    k.row.name = name;
    k.row.variant = variant;
    k.device = s->device;
    k.graph = tn_graph_new(cli_ctx(s->c), work);
    if (!k.graph) cli_fail(s->c, "out of memory");
    return k;
}

void case_input(bench_case *k, const char *name, void *data) {
    for (int i = 0; i < SUITE_MAX_PORTS; i++) {
        if (k->input[i]) continue;
        k->input[i] = name;
        k->data[i] = data;
        return;
    }
    cli_fail(k->c, "%s: more than %d inputs", k->row.name, SUITE_MAX_PORTS);
}

float *case_floats(int64_t n, double scale, uint64_t *seed) {
    float *x = buffer_new((size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) x[i] = (float)(scale * (2 * random_unit(seed) - 1));
    return x;
}

uint16_t *case_bf16(float *x, int64_t n) {
    uint16_t *y = buffer_new((size_t)n * sizeof *y);
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        y[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
        u = (uint32_t)y[i] << 16;
        memcpy(&x[i], &u, sizeof u);
    }
    return y;
}

double *case_array(int64_t n) { return cli_alloc((size_t)(n > 0 ? n : 1) * sizeof(double)); }

void expect_output(expected *w, const char *name, int64_t n) {
    *w = (expected){ .name = name, .want = case_array(n), .bound = case_array(n), .n = n };
}

int expect_evaluated(cli *c, bench_case *k, double tolerance, expected *want) {
    tn_binding in[SUITE_MAX_PORTS];
    int n_in = 0, n = tn_ir_n_outputs(k->graph);
    while (n_in < SUITE_MAX_PORTS && k->input[n_in]) in[n_in] = (tn_binding){ k->input[n_in], k->data[n_in] }, n_in++;
    tn_ir_eval *e;
    cli_need(c, tn_ir_evaluate(k->graph, in, n_in, &e));
    if (n > (int)COUNT_OF(k->want)) n = COUNT_OF(k->want);
    int filled = 0;
    for (int i = 0; i < n; i++) {
        const char *name;
        tn_tensor y, state;
        expected *w = &want[filled];
        cli_need(c, tn_ir_get_output(k->graph, i, &name, &y, &state));
        const double *values = tn_ir_eval_values(e, y, &w->n);
        w->state = state.id != 0;
        if (w->state && tn_tensor_dtype(state) != TN_F32) continue; /* a step counter */
        w->name = w->state ? tn_tensor_name(state) : name;
        w->want = case_array(w->n);
        w->bound = case_array(w->n);
        double top = 0;
        for (int64_t j = 0; j < w->n; j++) top = fmax(top, fabs(w->want[j] = values[j]));
        for (int64_t j = 0; j < w->n; j++) w->bound[j] = tolerance * top + 1e-30;
        filled++;
    }
    tn_ir_eval_free(e);
    return filled;
}

static void need(const bench_case *k, tn_status s) {
    if (s) cli_fail(k->c, "%s %s: %s: %s", k->row.work, k->row.name, tn_status_name(s), tn_ctx_error(k->c->ctx));
}

/* Inputs are bound to the case's data, outputs to buffers of their own. */
static void bind_slots(bench_case *k) {
    k->n_slots = tn_program_n_slots(k->program);
    if (k->n_slots > (int)COUNT_OF(k->slot_data)) cli_fail(k->c, "%s: too many inputs and outputs", k->row.name);
    for (int i = 0; i < k->n_slots; i++) {
        char kind;
        const char *name;
        tn_dtype t;
        tn_shape shape;
        need(k, tn_program_slot(k->program, i, &kind, &name, &t, &shape));
        k->slot_data[i] = NULL;
        if (kind == 'o') {
            size_t bytes = (size_t)shape_count(shape) * tn_dtype_size(t);
            k->slot_data[i] = buffer_new(bytes);
            memset(k->slot_data[i], 0xff, bytes); /* NaN: a run that writes nothing is seen */
            need(k, tn_session_bind(k->session, i, k->slot_data[i]));
            continue;
        }
        int in = 0;
        while (in < SUITE_MAX_PORTS && k->input[in] && strcmp(k->input[in], name)) in++;
        if (in == SUITE_MAX_PORTS || !k->input[in]) cli_fail(k->c, "%s: no data for input %s", k->row.name, name);
        need(k, tn_session_bind(k->session, i, k->data[in]));
    }
}

static void keep_state(bench_case *k) {
    int n = tn_session_n_states(k->session);
    k->first_state = cli_alloc(sizeof(void *) * (size_t)(n + 1));
    for (int i = 0; i < n; i++) {
        const char *name;
        tn_dtype t;
        tn_shape shape;
        need(k, tn_session_state(k->session, i, &name, &t, &shape));
        size_t bytes = (size_t)shape_count(shape) * tn_dtype_size(t);
        k->first_state[i] = cli_alloc(bytes + 1);
        need(k, tn_session_get(k->session, name, k->first_state[i], bytes));
    }
}

static void restore_state(bench_case *k) {
    for (int i = 0; i < tn_session_n_states(k->session); i++) {
        const char *name;
        tn_dtype t;
        tn_shape shape;
        need(k, tn_session_state(k->session, i, &name, &t, &shape));
        need(k, tn_session_set(k->session, name, k->first_state[i], (size_t)shape_count(shape) * tn_dtype_size(t)));
    }
}

static void run_session(void *ud, int64_t times) {
    bench_case *k = ud;
    for (int64_t i = 0; i < times; i++) need(k, tn_session_run(k->session));
}
static int ring_of(const bench_case *k, tn_binding *ring) {
    int n = 0;
    while (n < SUITE_MAX_PORTS && k->input[n]) ring[n] = (tn_binding){ k->input[n], k->data[n] }, n++;
    return n;
}
static void run_loop(void *ud, int64_t times) {
    bench_case *k = ud;
    tn_binding ring[SUITE_MAX_PORTS];
    int n = ring_of(k, ring);
    need(k, tn_run_n(k->session, times, ring, n, 1));
}
static double clock_device(void *ud, int64_t times) {
    bench_case *k = ud;
    tn_binding ring[SUITE_MAX_PORTS];
    int n = ring_of(k, ring);
    return device_seconds(k->c, k->session, ring, n, times);
}
static void run_plain(bench_case *k, int64_t times) {
    for (int64_t i = 0; i < times; i++) {
        k->plain(k, k->slot_data[0]);
        __asm__ volatile("" ::: "memory"); /* every run happens */
    }
}
static void run_case(void *ud, int64_t times) {
    bench_case *k = ud;
    if (k->plain) {
        run_plain(k, times);
        return;
    }
    (k->mode == TN_MODE_LOOP ? run_loop : run_session)(ud, times);
}

/* ---- checking ------------------------------------------------------------------------------------------------------------ */

static void check_one(bench_case *k, bench_row *r, const expected *w, float *got) {
    bench_row one = row_empty();
    if (cli_flag(k->c, "plant-error") && w->n) got[w->n / 2] += (float)(1 + w->bound[w->n / 2] * 4);
    bool finite = row_error(&one, got, w->want, w->n);
    r->max_abs_err = fmax(r->max_abs_err, one.max_abs_err);
    r->max_ulp = fmax(r->max_ulp, one.max_ulp);
    for (int64_t i = 0; i < w->n; i++) {
        double d = fabs((double)got[i] - w->want[i]);
        r->err_bound = fmax(r->err_bound, w->bound[i]);
        if (finite && d <= w->bound[i]) continue;
        cli_fail(k->c, "%s %s: element %lld of %s is %.9g, in double %.17g, off by %g where %g is allowed", r->work,
                 r->name ? r->name : "", (long long)i, w->name, (double)got[i], w->want[i], d, w->bound[i]);
    }
}

static float *floats_of_bf16(const uint16_t *x, int64_t n) {
    float *y = cli_alloc((size_t)n * sizeof *y);
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)x[i] << 16;
        memcpy(&y[i], &u, sizeof u);
    }
    return y;
}

static void check(bench_case *k, bench_row *r) {
    r->max_abs_err = r->max_ulp = r->err_bound = 0;
    for (int i = 0; i < k->n_want; i++) {
        const expected *w = &k->want[i];
        if (k->plain) {
            check_one(k, r, w, k->slot_data[0]);
            continue;
        }
        if (!w->state) {
            int slot = tn_session_slot(k->session, w->name);
            if (slot < 0) cli_fail(k->c, "%s: no output %s", k->row.name, w->name);
            float *got = w->bf16 ? floats_of_bf16(k->slot_data[slot], w->n) : k->slot_data[slot];
            check_one(k, r, w, got);
            if (w->bf16) free(got);
            continue;
        }
        float *got = cli_alloc((size_t)w->n * sizeof(float) + 1);
        need(k, tn_session_get(k->session, w->name, got, (size_t)w->n * sizeof(float)));
        check_one(k, r, w, got);
        free(got);
    }
}

static void run_and_check(bench_case *k, bench_row *r) {
    if (k->fresh) restore_state(k);
    run_case(k, 1);
    check(k, r);
}

static void make_plain_ready(bench_case *k, bench_row *r) {
    size_t bytes = (size_t)k->out_count * sizeof(float);
    k->n_slots = 1;
    k->slot_data[0] = buffer_new(bytes);
    memset(k->slot_data[0], 0xff, bytes);
    if (!k->n_want) k->n_want = k->expect(k->c, k, NULL, k->want);
    run_and_check(k, r);
}

/* By --schedule where it has steps for one of the program's kernels and all of them are possible; else as the recipes have it.
 */
static void compile_case(bench_case *k, tn_compile_opts *o, bench_row *r) {
    double start = cli_seconds();
    o->schedule = k->c->schedule;
    tn_status st = tn_compile(k->graph, o, &k->program);
    k->by_hand = o->schedule && !st;
    if (o->schedule && st == TN_ERR_INVAL) {
        cli_note(k->c, "%s %s, %s: as its recipe has it: %s", r->work, r->name, r->variant, tn_ctx_error(k->c->ctx));
        o->schedule = NULL;
        start = cli_seconds();
        st = tn_compile(k->graph, o, &k->program);
    }
    need(k, st);
    r->compile_us = (cli_seconds() - start) * 1e6;
}

static void make_ready(bench_case *k, int threads, bench_row *r) {
    if (k->plain) {
        make_plain_ready(k, r);
        return;
    }
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    if (k->device) o.device = k->device, k->mode = TN_MODE_LOOP;
    o.mode = k->mode;
    o.threads = threads;
    o.fusion = (int)cli_int(k->c, "fusion", -1, -1, 3);
    o.no_cache = 1; /* so that compile_us is what compiling costs */
    if (r->fusion >= 0) o.fusion = (int)r->fusion;
    compile_case(k, &o, r);
    need(k, tn_session_new(k->program, &k->session));
    bind_slots(k);
    if (k->fresh) keep_state(k);
    if (!k->n_want) k->n_want = k->expect(k->c, k, k->session, k->want);
    run_and_check(k, r);
}

static void close_session(bench_case *k) {
    if (k->first_state) {
        for (int i = 0; i < tn_session_n_states(k->session); i++) free(k->first_state[i]);
        free(k->first_state);
        k->first_state = NULL;
    }
    for (int i = 0; i < k->n_slots; i++) buffer_free(k->slot_data[i]);
    tn_session_free(k->session);
    tn_program_free(k->program);
    k->session = NULL;
    k->program = NULL;
}

static void case_free(bench_case *k) {
    for (int i = 0; i < k->n_want; i++) {
        free(k->want[i].want);
        free(k->want[i].bound);
    }
    for (int i = 0; i < SUITE_MAX_PORTS; i++) buffer_free(k->data[i]);
    tn_graph_free(k->graph);
    free(k->rival);
}

/* ---- timing -------------------------------------------------------------------------------------------------------------- */

typedef struct turns { /* all that take turns */
    stats_case at[1 + SUITE_MAX_CASES * (2 + MAX_RIVALS)];
    int n;
    probe *fma, *bandwidth[SUITE_MAX_CASES];
    device_copy *copy[SUITE_MAX_CASES]; /* on a device: instead */
    int fma_at, bandwidth_at[SUITE_MAX_CASES];
    int rival_at[SUITE_MAX_CASES], n_rivals[SUITE_MAX_CASES], rival_which[SUITE_MAX_CASES][MAX_RIVALS];
} turns;

/* The cases' data is shared where two cases have the same; probes of one kind and footprint are not made twice. */
static void add_ceilings(turns *t, const bench_case *cases, int n, int threads) {
    bool flops = false;
    for (int i = 0; i < n; i++) flops |= cases[i].flops > 0 && !cases[i].device;
    t->fma_at = -1;
    if (flops) {
        t->fma = probe_new(cases[0].peak ? cases[0].peak : PROBE_FMA, threads, 0);
        t->fma_at = t->n;
        t->at[t->n++] = probe_case(t->fma, "peak");
    }
    for (int i = 0; i < n; i++) {
        t->bandwidth_at[i] = -1;
        if (!(cases[i].bytes > 0)) continue;
        for (int k = 0; k < i && t->bandwidth_at[i] < 0; k++) {
            bool same = cases[i].device || cases[k].bandwidth == cases[i].bandwidth;
            if (same && fabs(cases[k].bytes - cases[i].bytes) < 0.5) t->bandwidth_at[i] = t->bandwidth_at[k];
        }
        if (t->bandwidth_at[i] >= 0) continue;
        t->bandwidth_at[i] = t->n;
        if (cases[i].device) {
            t->copy[i] = device_copy_new(cases[i].c, cases[i].device, cases[i].bytes);
            t->at[t->n++] = device_copy_case(t->copy[i]);
            continue;
        }
        t->bandwidth[i] = probe_new(cases[i].bandwidth, threads, (size_t)cases[i].bytes);
        t->at[t->n++] = probe_case(t->bandwidth[i], "bandwidth");
    }
}

static rate ceiling_rate(const turns *t, int at) {
    if (at < 0) return (rate){ 0, 0 };
    for (int i = 0; i < SUITE_MAX_CASES; i++)
        if (t->copy[i] && t->at[at].ud == t->copy[i]) return stats_rate(&t->at[at].result, t->copy[i]->bytes);
    return stats_rate(&t->at[at].result, probe_work(t->at[at].ud));
}

/* Of one run. */
static double moved(const bench_case *k) { return k->passes > 0 ? k->passes * k->bytes : k->bytes; }

static void fill_roof(bench_row *r, const bench_case *k, const stats *s, rate peak, rate bandwidth) {
    double median = 0, best = 0;
    if (peak.median > 0) {
        median = k->flops / peak.median * 1e-9;
        best = k->flops / peak.best * 1e-9;
    }
    if (bandwidth.median > 0) {
        median = fmax(median, moved(k) / bandwidth.median * 1e-9);
        best = fmax(best, moved(k) / bandwidth.best * 1e-9);
    }
    if (!(median > 0)) return;
    r->roof_ratio = median / s->median;
    r->best_roof_ratio = best / s->best;
}

static void fill_row(bench_row *r, const bench_case *k, const turns *t, int i, int threads) {
    const stats *s = &t->at[i].result;
    tn_program_stats facts = { 0 };
    if (k->program) tn_program_get_stats(k->program, &facts);
    rate peak = ceiling_rate(t, t->fma_at), bandwidth = ceiling_rate(t, t->bandwidth_at[i]);
    r->threads = k->plain ? 1 : threads;
    if (k->device) r->device = k->plain ? "cpu" : k->device;
    if (!k->plain) {
        r->mode = cli_mode_name(k->mode);
        r->kernels = facts.kernels;
        r->bytes_read = (int64_t)facts.bytes_read;
        r->bytes_written = (int64_t)facts.bytes_written;
    }
    row_time(r, s, k->flops, peak);
    if (k->bytes > 0) {
        r->footprint = (int64_t)k->bytes;
        row_bandwidth(r, s, moved(k), bandwidth);
    }
    fill_roof(r, k, s, peak, bandwidth);
    row_rivals(r, t->at + t->rival_at[i], t->rival_which[i], t->n_rivals[i]);
}

static void run_with_threads(suite *s, bench_case *cases, int n, int which) {
    int threads = (int)s->threads[which];
    bool asked = false;
    for (int i = 0; i < n; i++) asked |= cases[i].rival != NULL;
    rivals *rival = asked ? suite_rivals(s, which) : NULL;
    rivals_same_cpus(rival, true);
    turns *t = cli_alloc(sizeof *t);
    bench_row row[SUITE_MAX_CASES];
    char *label = cli_format("%s %s, %d thread%s", cases[0].row.work, cases[0].row.name, threads, threads > 1 ? "s" : "");
    progress bar = progress_begin(s->c, label, n);
    for (int i = 0; i < n; i++) {
        progress_step(&bar, i, "compiling and checking");
        row[i] = cases[i].row;
        make_ready(&cases[i], threads, &row[i]);
        if (cases[i].by_hand) s->by_hand++, row[i].variant = suite_text(s, "%s, by hand", row[i].variant);
        t->at[t->n++] = (stats_case){ .run = run_case, .ud = &cases[i], .label = row[i].variant };
        if (cases[i].device && !cases[i].plain) t->at[t->n - 1].clock = clock_device;
    }
    add_ceilings(t, cases, n, threads);
    for (int i = 0; i < n && rival; i++) {
        t->rival_at[i] = t->n;
        if (!cases[i].rival) continue;
        progress_step(&bar, i, "rivals get ready");
        t->n_rivals[i] = rivals_prepare(rival, cases[i].rival, t->at + t->n, t->rival_which[i]);
        t->n += t->n_rivals[i];
    }
    bar.total = t->n;
    stats_measure(t->at, t->n, s->seconds, &bar);
    progress_end(&bar);
    for (int i = 0; i < n; i++) {
        if (cases[i].fresh)
            run_and_check(&cases[i], &row[i]);
        else
            check(&cases[i], &row[i]); /* the timed runs' result */
        fill_row(&row[i], &cases[i], t, i, threads);
        suite_add(s, row[i]);
        close_session(&cases[i]);
    }
    for (int i = 0; i < n; i++) probe_free(t->bandwidth[i]), device_copy_free(t->copy[i]); /* some serve several cases */
    probe_free(t->fma);
    if (rival) rivals_forget(rival);
    rivals_same_cpus(rival, false);
    free(t);
    free(label);
}

void suite_run(suite *s, bench_case *cases, int n) {
    for (int i = 0; i < s->n_threads; i++) run_with_threads(s, cases, n, i);
    for (int i = 0; i < n; i++) case_free(&cases[i]);
}
