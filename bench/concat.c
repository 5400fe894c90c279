/* concat.c - `tenon bench concat`: arrays put side by side, and chosen element by element, with gradients, against a copy of as
 * many bytes. Nothing is calculated but in the case `computed`, whose operands are: they should be written where they belong,
 * and never copied. */
#include "suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 4, WIDE = 64 /* columns of a part */ };
typedef struct concat_work {
    const char *name;
    int axis; /* of the concatenation; -1: select */
    bool gradient, computed;
    double moved; /* bytes over those of one result f32[rows,PARTS*WIDE] */
} concat_work;

static const concat_work works[] = {
    { "columns", 1, false, false, 2 },
    { "columns gradient", 1, true, false, 2 },
    { "rows", 0, false, false, 2 },
    { "rows gradient", 0, true, false, 2 },
    { "columns computed", 1, false, true, 2 },
    { "rows computed", 0, false, true, 2 },
    { "select", -1, false, false, 3.25 },
    { "select gradient", -1, true, false, 3.25 },
};
typedef struct job {
    const concat_work *work;
    int64_t rows;
} job;

static const char *const part_names[PARTS] = { "x0", "x1", "x2", "x3" }, *const grad_names[PARTS] = { "d0", "d1", "d2", "d3" };
static const double scales[PARTS] = { 2, -0.5, 4, -8 }; /* exact */

/* Where element i of part k is in the result. */
static int64_t place(const job *j, int k, int64_t i) {
    return j->work->axis ? i / WIDE * PARTS * WIDE + k * WIDE + i % WIDE : k * j->rows * WIDE + i;
}

static int expect_concat(const bench_case *k, const job *j, expected *want) {
    const int64_t n = j->rows * WIDE;
    for (int p = 0; p < PARTS; p++) {
        expected *w = &want[j->work->gradient ? p : 0];
        const float *x = k->data[j->work->gradient ? PARTS : p];
        if (j->work->gradient || !p)
            expect_output(w, j->work->gradient ? grad_names[p] : "y", j->work->gradient ? n : PARTS * n);
        for (int64_t i = 0; i < n; i++) {
            if (j->work->gradient)
                w->want[i] = (double)x[place(j, p, i)];
            else
                w->want[place(j, p, i)] = (double)x[i] * (j->work->computed ? scales[p] : 1);
        }
    }
    memset(want[0].bound, 0, (size_t)want[0].n * sizeof(double)); /* all of them exact */
    for (int p = 1; p < PARTS && j->work->gradient; p++) memset(want[p].bound, 0, (size_t)n * sizeof(double));
    return j->work->gradient ? PARTS : 1;
}
static int expect_select(const bench_case *k, const job *j, expected *want) {
    const int64_t n = j->rows * WIDE * PARTS;
    const unsigned char *which = k->data[0];
    const int outputs = j->work->gradient ? 2 : 1;
    for (int p = 0; p < outputs; p++) {
        expect_output(&want[p], j->work->gradient ? grad_names[p] : "y", n);
        for (int64_t i = 0; i < n; i++) {
            want[p].bound[i] = 0;
            if (j->work->gradient)
                want[p].want[i] = which[i] == !p ? (double)((float *)k->data[3])[i] : 0;
            else
                want[p].want[i] = (double)((float *)k->data[which[i] ? 1 : 2])[i];
        }
    }
    return outputs;
}
static int expect(cli *c, bench_case *k, tn_session *s, expected *want) {
    (void)c, (void)s;
    const job *j = k->ud;
    return j->work->axis < 0 ? expect_select(k, j, want) : expect_concat(k, j, want);
}

/* The gradients of sum(y dy), dy an input: its parts, as arrays of their own. */
static void give(bench_case *k, const job *j, tn_tensor y, const tn_tensor *xs, int n, uint64_t *seed) {
    if (!j->work->gradient) {
        tn_output(y, "y");
        return;
    }
    tn_tensor dy = tn_input(k->graph, "dy", TN_F32, tn_tensor_shape(y)), d[PARTS];
    case_input(k, "dy", case_floats(j->rows * PARTS * WIDE, 1, seed));
    cli_need(k->c, tn_grad(tn_sum(tn_mul(y, dy), TN_ALL_AXES, 0), xs, n, d));
    for (int i = 0; i < n; i++) tn_output(d[i], grad_names[i]);
}
static void build_concat(bench_case *k, const job *j, uint64_t seed) {
    tn_tensor xs[PARTS], ys[PARTS];
    for (int i = 0; i < PARTS; i++) {
        xs[i] = ys[i] = tn_input(k->graph, part_names[i], TN_F32, TN_DIMS(j->rows, WIDE));
        if (j->work->computed) ys[i] = tn_mul_scalar(xs[i], scales[i]);
        case_input(k, part_names[i], case_floats(j->rows * WIDE, 1, &seed));
    }
    give(k, j, tn_concat(ys, PARTS, j->work->axis), xs, PARTS, &seed);
}
static void build_select(bench_case *k, const job *j, uint64_t seed) {
    const int64_t n = j->rows * PARTS * WIDE;
    unsigned char *which = buffer_new((size_t)n);
    for (int64_t i = 0; i < n; i++) which[i] = random_unit(&seed) < 0.5;
    tn_shape s = TN_DIMS(j->rows, PARTS * WIDE);
    tn_tensor cond = tn_input(k->graph, "which", TN_BOOL, s), xs[2];
    case_input(k, "which", which);
    for (int i = 0; i < 2; i++) {
        xs[i] = tn_input(k->graph, part_names[i], TN_F32, s);
        case_input(k, part_names[i], case_floats(n, 1, &seed));
    }
    give(k, j, tn_select(cond, xs[0], xs[1]), xs, 2, &seed);
}

static void measure(suite *s, int64_t rows) {
    bench_case cases[COUNT_OF(works)];
    job jobs[COUNT_OF(works)];
    int n = 0;
    for (size_t i = 0; i < COUNT_OF(works); i++) {
        const concat_work *w = &works[i];
        if (!suite_wants(s, w->name)) continue;
        jobs[n] = (job){ w, rows };
        bench_case k = case_new(s, "concat", suite_text(s, "%s %lldx%d", w->name, (long long)rows, PARTS * WIDE), w->name);
        (w->axis < 0 ? build_select : build_concat)(&k, &jobs[n], s->seed + i);
        k.row.size = PARTS * WIDE, k.row.batch = rows;
        k.bytes = w->moved * (double)(rows * PARTS * WIDE * 4), k.bandwidth = PROBE_COPY;
        k.expect = expect, k.ud = &jobs[n];
        k.rival = cli_format("concat what=%s axis=%d gradient=%d rows=%lld parts=%d wide=%d",
                             w->axis < 0   ? "select"
                             : w->computed ? "computed"
                                           : "join",
                             w->axis, w->gradient, (long long)rows, PARTS, WIDE);
        cases[n++] = k;
    }
    if (n) suite_run(s, cases, n);
}

static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    snprintf(buffer, n, "%s, %d thread%s", r->variant, (int)r->threads, r->threads > 1 ? "s" : "");
    return buffer;
}
static double x_of(const bench_row *r) { return (double)r->footprint; }
static double y_of(const bench_row *r) { return r->gbs; }

int bench_concat(cli *c) {
    suite s = suite_begin(c, "bench concat");
    int64_t sizes[8];
    int n = cli_ints(c, "sizes", "256,4096,65536", sizes, COUNT_OF(sizes), 1, 1 << 20); /* 512 KiB, 8 and 128 MiB moved */
    for (int i = 0; i < n; i++) measure(&s, sizes[i]);
    suite_report(&s);
    rows_plot(c,
              &(chart){ .title = "Arrays side by side, and chosen from",
                        .x_label = "bytes read and written",
                        .bytes = true,
                        .x_of = x_of,
                        .panel = { { "GB/s (median)", line_of, y_of } } },
              s.rows, s.n_rows);
    suite_end(&s);
    return CLI_OK;
}
