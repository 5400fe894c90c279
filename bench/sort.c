/* sort.c - `tenon bench sort`: the largest of long rows, sorted arrays, running sums. Expected results are exact for what is
 * put in order (of the C library's sort), and sums in double precision. */
#include "suite.h"
#include "tenon/tenon_nn.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum order_kind { TOP_K, SORT, CUMSUM } order_kind;
typedef struct order_work {
    const char *name;
    order_kind kind;
    int64_t rows, n, k;
} order_work;

static const order_work works[] = { { "top-k 50 of 50257", TOP_K, 8, 50257, 50 },
                                    { "sort", SORT, 1, 1 << 20, 0 },
                                    { "cumsum", CUMSUM, 1, 1 << 24, 0 } };

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}
static int ascending(const void *a, const void *b) { return descending(b, a); }

/* Each sum has an error of a few roundings of each level of sums of sums, or at worst of each term, of all sizes so far. */
static void want_sums(const float *x, int64_t n, expected *want) {
    double sum = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i], size += fabs((double)x[i]);
        want->want[i] = sum;
        want->bound[i] = (4 + 2 * sqrt((double)i + 1)) * (double)FLT_EPSILON * size;
    }
}

static int expect(cli *c, bench_case *k, tn_session *s, expected *want) {
    (void)c, (void)s;
    const order_work *w = k->ud;
    const float *x = k->data[0];
    int64_t out = w->kind == TOP_K ? w->k : w->n;
    expect_output(want, "y", w->rows * out);
    if (w->kind == CUMSUM) {
        want_sums(x, w->n, want);
        return 1;
    }
    double *row = case_array(w->n);
    for (int64_t r = 0; r < w->rows; r++) {
        for (int64_t i = 0; i < w->n; i++) row[i] = (double)x[r * w->n + i];
        qsort(row, (size_t)w->n, sizeof *row, w->kind == TOP_K ? descending : ascending);
        memcpy(want->want + r * out, row, (size_t)out * sizeof *row);
    }
    free(row);
    return 1;
}

static void measure(suite *s, const order_work *w, uint64_t seed) {
    if (!suite_wants(s, w->name)) return;
    bench_case k = case_new(s, "sort", w->name, NULL);
    case_input(&k, "x", case_floats(w->rows * w->n, 1, &seed));
    tn_tensor x = tn_input(k.graph, "x", TN_F32, w->kind == TOP_K ? TN_DIMS(w->rows, w->n) : TN_DIMS(w->n));
    tn_output(w->kind == TOP_K ? tn_top_k(x, w->k, 1, 1, NULL) : w->kind == SORT ? tn_sort(x, 0, 0) : tn_nn_cumsum(x, 0), "y");
    k.row.batch = w->rows, k.row.size = w->n;
    k.expect = expect;
    k.ud = w;
    k.bytes = 4 * (double)(w->rows * (w->n + (w->kind == TOP_K ? w->k : w->n))), k.bandwidth = PROBE_COPY;
    k.rival = cli_format("order what=%s rows=%lld n=%lld k=%lld",
                         w->kind == TOP_K  ? "top_k"
                         : w->kind == SORT ? "sort"
                                           : "cumsum",
                         (long long)w->rows, (long long)w->n, (long long)w->k);
    suite_run(s, &k, 1);
}

static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    (void)buffer, (void)n;
    return r->name;
}
static double x_of(const bench_row *r) { return (double)(r->size * r->batch); }
static double y_of(const bench_row *r) { return r->median_us; }

int bench_sort(cli *c) {
    suite s = suite_begin(c, "bench sort");
    int64_t sizes[8];
    int n = cli_text(c, "sizes", NULL) ? cli_ints(c, "sizes", NULL, sizes, COUNT_OF(sizes), 2, 1 << 26) : 0;
    for (size_t i = 0; i < COUNT_OF(works); i++) {
        order_work w = works[i];
        if (!n) measure(&s, &w, s.seed);
        for (int j = 0; j < n; j++) {
            w.n = sizes[j];
            w.k = w.kind != TOP_K ? 0 : w.n < works[i].k ? w.n : works[i].k;
            if (w.kind == TOP_K) w.name = suite_text(&s, "top-k %d of %d", (int)w.k, (int)w.n);
            measure(&s, &w, s.seed);
        }
    }
    suite_report(&s);
    rows_plot(c,
              &(chart){ .title = "Putting in order, and running sums",
                        .x_label = "elements",
                        .x_of = x_of,
                        .panel = { { "microseconds (median)", line_of, y_of } } },
              s.rows, s.n_rows);
    suite_end(&s);
    return CLI_OK;
}
