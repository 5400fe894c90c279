/* device_ladder.c - `tenon bench ladder WORK --device cuda|opencl`: the same work from the naive kernel to generated code
 * on a GPU, every rung checked against double and timed in turns.
 *
 * All operands are on the device; times are of repetitions in one submit, less what a submit with one takes. */
#include "bench/inside/inside.h"
#include "device_rungs.h"
#include "suite.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SIZES = 16, MAX_RUNGS = 16, LONGER = 4 /* repetitions for each that is asked for */, WIDEST_TILE = 16 };

typedef struct problem { /* n x n */
    const char *work;
    int64_t n, count, bins, n_out;
    void *x; /* f32; histogram: i32 */
    float *w, *b;
    double *want, *bound; /* [n_out] .. */
    int known;            /* .. when not 0; 2: of a rung that ends in softmax */
} problem;

typedef struct entry { /* one rung at one size */
    cli *c;
    const device_rung *rung;
    const problem *p;
    inside_kernels *kernels; /* by hand, or .. */
    tn_graph *graph;
    tn_program *program;
    tn_session *session;
    void *y; /* [n_out] */
} entry;

static bool is(const problem *p, const char *work) { return !strcmp(p->work, work); }
static bool is_linear(const problem *p) { return is(p, "matmul") || is(p, "fused"); }

/* ---- what is run ---- */

static double run_hand(entry *e, int64_t times) {
    double start = cli_seconds();
    cli_need(e->c, inside_kernels_run(e->kernels, times));
    return cli_seconds() - start;
}
static double clock_rung(void *ud, int64_t times) {
    entry *e = ud;
    tn_binding ring = { "x", e->p->x };
    if (e->session) return device_seconds(e->c, e->session, &ring, 1, times);
    double one = run_hand(e, 1), all = run_hand(e, LONGER * times + 1);
    return fmax(all - one, 1e-9 * (double)times) / LONGER;
}

static tn_tensor generated(tn_graph *g, const problem *p, const char *rung) {
    bool histogram = is(p, "histogram");
    tn_tensor x = tn_input(g, "x", histogram ? TN_I32 : TN_F32, histogram ? TN_DIMS(p->count) : TN_DIMS(p->n, p->n)), y = x;
    if (histogram)
        return tn_scatter_add(tn_full(g, TN_I32, TN_DIMS(p->bins), 0), x, tn_full(g, TN_I32, TN_DIMS(p->count), 1), 0);
    if (is(p, "sum")) return tn_sum(x, TN_ALL_AXES, 0);
    if (is(p, "transpose")) return tn_transpose(x, 0, 1);
    if (is_linear(p))
        y = tn_add(tn_matmul(x, tn_state(g, "w", TN_F32, TN_DIMS(p->n, p->n), p->w)),
                   tn_state(g, "b", TN_F32, TN_DIMS(p->n), p->b));
    if (!is(p, "softmax")) y = tn_relu(y);
    if (!is(p, "softmax") && !strstr(rung, "softmax")) return y;
    tn_tensor t = tn_exp(tn_sub(y, tn_reduce_max(y, TN_INTS(-1), 1)));
    return tn_div(t, tn_sum(t, TN_INTS(-1), 1));
}

static void make_generated(entry *e, const char *device) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = TN_MODE_LOOP, o.device = device;
    e->graph = tn_graph_new(cli_ctx(e->c), e->p->work);
    tn_output(generated(e->graph, e->p, e->rung->name), "y");
    cli_need(e->c, tn_compile(e->graph, &o, &e->program));
    cli_need(e->c, tn_session_new(e->program, &e->session));
    cli_need(e->c, tn_session_bind(e->session, tn_session_slot(e->session, "y"), e->y));
}

static void make_hand(entry *e, const char *device, const char *source) {
    const problem *p = e->p;
    size_t all = (size_t)p->count * 4, padded = (size_t)(p->n + WIDEST_TILE) * (size_t)(p->n + WIDEST_TILE) * 8;
    size_t out = (size_t)p->n_out * 4, bytes[] = { all, is_linear(p) ? all : 4, (size_t)p->n * 4, out, padded + 8192 };
    cli_need(e->c, inside_kernels_new(cli_ctx(e->c), device, source, bytes, COUNT_OF(bytes), &e->kernels));
    cli_need(e->c, inside_kernels_write(e->kernels, 0, p->x, all));
    if (is_linear(p)) cli_need(e->c, inside_kernels_write(e->kernels, 1, p->w, all));
    cli_need(e->c, inside_kernels_write(e->kernels, 2, p->b, (size_t)p->n * 4));
    memset(e->y, 0xff, out); /* what no kernel writes is seen */
    cli_need(e->c, inside_kernels_write(e->kernels, 3, e->y, out));
    for (const device_step *s = e->rung->steps; s < e->rung->steps + COUNT_OF(e->rung->steps) && s->entry; s++)
        cli_need(e->c, inside_kernels_launch(e->kernels, s->entry, 256, device_ladder_groups(s, p->n, p->bins)));
}

/* ---- what must come out ---- */

static void reference(problem *p, const char *rung) {
    bool whole = strstr(rung, "softmax");
    if (p->known == 1 + whole || (p->known && !is(p, "fused"))) return;
    p->known = 1 + whole;
    double sum = 0, size = 0;
    const float *x = p->x;
    const int32_t *v = p->x;
    memset(p->bound, 0, (size_t)p->n_out * sizeof(double));
    if (is(p, "histogram")) {
        memset(p->want, 0, (size_t)p->n_out * sizeof(double));
        for (int64_t i = 0; i < p->count; i++) p->want[v[i]] += 1;
    } else if (is(p, "transpose")) {
        for (int64_t i = 0; i < p->count; i++) p->want[i % p->n * p->n + i / p->n] = (double)x[i];
    } else if (is(p, "sum")) {
        for (int64_t i = 0; i < p->count; i++) sum += (double)x[i], size += fabs((double)x[i]);
        p->want[0] = sum;
        p->bound[0] = size * (FLT_EPSILON / 2) * ((double)p->count / 256 + 64); /* as many additions in a row at most */
    } else {
        ladder_problem q = { p->n, p->n, p->n, p->x, p->w, p->b, NULL, NULL };
        const char *work = !is(p, "fused") ? p->work : strstr(rung, "softmax") ? "linear+relu+softmax" : "linear+relu";
        ladder_reference(work, &q, p->want, p->bound);
    }
}

static void check(entry *e, bench_row *r) {
    const problem *p = e->p;
    if (e->kernels) cli_need(e->c, inside_kernels_read(e->kernels, 3, e->y, (size_t)p->n_out * 4));
    float *y = e->y;
    const int32_t *whole = e->y;
    for (int64_t i = 0; is(p, "histogram") && i < p->n_out; i++) y[i] = (float)whole[i]; /* exact below 2^24 */
    if (cli_flag(e->c, "plant-error")) y[0] += 1;
    bool finite = row_error(r, y, p->want, p->n_out);
    r->err_bound = 0;
    for (int64_t i = 0; i < p->n_out; i++) {
        double d = fabs((double)y[i] - p->want[i]);
        r->err_bound = fmax(r->err_bound, p->bound[i]);
        if (finite && d <= p->bound[i]) continue;
        cli_fail(e->c, "rung %s at size %lld: element %lld is %.9g, exactly %.17g, off by %g where %g is allowed",
                 e->rung->name, (long long)p->n, (long long)i, (double)y[i], p->want[i], d, p->bound[i]);
    }
}

/* ---- measuring ---- */

static double flops_of(const problem *p, const char *rung) {
    double all = (double)p->count, n = (double)p->n;
    if (is_linear(p)) return all * (2 * n + 2) + (strstr(rung, "softmax") ? 5 * all : 0);
    return is(p, "transpose") || is(p, "histogram") ? 0 : is(p, "softmax") ? 5 * all : all;
}
/* 0: memory is not what counts. */
static double bytes_of(const problem *p) {
    return is_linear(p) ? 0 : (double)p->count * 4 * (is(p, "sum") || is(p, "histogram") ? 1 : 2);
}

static problem make_problem(cli *c, const char *work, int64_t n, uint64_t seed) {
    problem p = { .work = work, .n = n, .count = n * n, .bins = cli_int(c, "bins", 64, 1, 4096) };
    bool histogram = is(&p, "histogram");
    p.n_out = histogram ? p.bins : is(&p, "sum") ? 1 : p.count;
    p.x = histogram ? buffer_new((size_t)p.count * 4) : case_floats(p.count, 1.7, &seed);
    for (int64_t i = 0; histogram && i < p.count; i++) ((int32_t *)p.x)[i] = (int32_t)(random_next(&seed) % (uint64_t)p.bins);
    p.w = case_floats(is_linear(&p) ? p.count : 1, sqrt(3.0 / (double)n), &seed);
    p.b = case_floats(n, 0.1, &seed);
    p.want = cli_alloc((size_t)p.n_out * sizeof(double)), p.bound = cli_alloc((size_t)p.n_out * sizeof(double));
    return p;
}
static void free_problem(problem *p) {
    buffer_free(p->x), buffer_free(p->w), buffer_free(p->b);
    free(p->want), free(p->bound);
}

/* All rungs of one size: made ready, run once and checked, timed, checked again. Returns the number of rows. */
static int measure_size(cli *c, const device_ladder *l, const char *device, int64_t n, bench_row *rows, uint64_t seed) {
    problem p = make_problem(c, l->work, n, seed);
    bool cuda = !strcmp(device, "cuda");
    char *source = device_ladder_source(l, cuda, n, p.bins);
    entry *e = cli_alloc(sizeof(entry) * MAX_RUNGS);
    stats_case *cases = cli_alloc(sizeof(stats_case) * (MAX_RUNGS + 1));
    int m = 0;
    char *label = cli_format("%s %lld", l->work, (long long)n);
    progress bar = progress_begin(c, label, l->n);
    for (int i = 0; i < l->n; i++) {
        progress_step(&bar, i, "compiling and checking");
        if (l->rungs[i].cuda && !cuda) continue;
        e[m] = (entry){ .c = c, .rung = &l->rungs[i], .p = &p, .y = buffer_new((size_t)p.n_out * 4) };
        if (l->rungs[i].steps[0].entry)
            make_hand(&e[m], device, source);
        else
            make_generated(&e[m], device);
        cases[m] = (stats_case){ .clock = clock_rung, .ud = &e[m], .label = l->rungs[i].name };
        clock_rung(&e[m], 1);
        rows[m] = row_empty();
        reference(&p, e[m].rung->name);
        check(&e[m], &rows[m]);
        m++;
    }
    device_copy *copy = bytes_of(&p) > 0 ? device_copy_new(c, device, bytes_of(&p)) : NULL;
    if (copy) cases[m] = device_copy_case(copy);
    stats_measure(cases, m + !!copy, cli_number(c, "seconds", 0.3, 0.001, 3600), &bar);
    progress_end(&bar);
    rate bandwidth = copy ? stats_rate(&cases[m].result, copy->bytes) : (rate){ 0 };
    for (int i = 0; i < m; i++) {
        reference(&p, e[i].rung->name);
        check(&e[i], &rows[i]);
        rows[i].work = l->work, rows[i].rung = e[i].rung->name, rows[i].device = device, rows[i].size = n;
        row_time(&rows[i], &cases[i].result, flops_of(&p, e[i].rung->name), (rate){ 0 });
        if (copy) row_bandwidth(&rows[i], &cases[i].result, bytes_of(&p), bandwidth);
        rows[i].mallocs = -1;
        inside_kernels_free(e[i].kernels);
        tn_session_free(e[i].session);
        tn_program_free(e[i].program);
        tn_graph_free(e[i].graph);
        buffer_free(e[i].y);
    }
    device_copy_free(copy);
    free(label), free(cases), free(e), free(source);
    free_problem(&p);
    return m;
}

static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    (void)buffer, (void)n;
    return r->rung;
}
static double size_of_row(const bench_row *r) { return (double)r->size; }
static double median_of_row(const bench_row *r) { return r->median_us; }

int bench_device_ladder(cli *c, const char *work, const char *device) {
    const device_ladder *l = device_ladder_find(work);
    if (!l) cli_usage(c, "there is no ladder %s (matmul, relu, softmax, fused, sum, transpose, histogram)", work);
    if (strcmp(device, "cuda") && strcmp(device, "opencl"))
        cli_usage(c, "ladders run on cpu, cuda and opencl, not on %s", device);
    int64_t sizes[MAX_SIZES];
    int n_sizes = cli_ints(c, "sizes", "64-1024*2", sizes, MAX_SIZES, 1, 8192), n = 0;
    uint64_t seed = (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX);
    ceiling m = ceiling_measure(1);
    m.device = device;
    bench_row *rows = cli_alloc(sizeof(bench_row) * MAX_SIZES * MAX_RUNGS);
    for (int s = 0; s < n_sizes; s++) n += measure_size(c, l, device, sizes[s], rows + n, seed + (uint64_t)s);
    char *command = cli_format("bench ladder %s", work), *title = cli_format("Ladder: %s on %s", work, device);
    rows_report(c, command, NULL, &m, NULL, rows, n);
    rows_plot(c,
              &(chart){ .title = title,
                        .x_label = "size n (matrices n x n)",
                        .x_of = size_of_row,
                        .panel = { { "microseconds (median)", line_of, median_of_row } } },
              rows, n);
    free(title), free(command), free(rows);
    return CLI_OK;
}
