/* sparse.c - `tenon bench sparse`: a sparse matrix times a dense one by density, entries by rows (csr) or by places (coo), and
 * the gradients of both, in turns with the dense product of the same size: where their times meet, a sparse one begins to pay.
 */
#include "suite.h"
#include "tenon/tenon_index.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 64 }; /* of the dense operand */
typedef enum form { CSR, COO, GRADIENT, DENSE, FORMS } form;
static const char *const forms[FORMS] = { "csr", "coo", "csr gradient", "dense" };
static const int64_t permille[] = { 1, 10, 50, 100, 250 };

typedef struct matrix { /* n x n with `entries` at random places, row by row; x, dy f32[n,COLUMNS] */
    int64_t n, entries;
    int32_t *row, *column, *offset;
    float *values, *x, *dy;
    form form;
} matrix;

static int by_number(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}
static matrix matrix_new(int64_t n, int64_t entries, form f, uint64_t seed) {
    matrix m = { .n = n, .entries = entries, .form = f };
    const size_t bytes = (size_t)entries * sizeof(int32_t);
    m.row = buffer_new(bytes), m.column = buffer_new(bytes), m.offset = buffer_new((size_t)(n + 1) * sizeof(int32_t));
    for (int64_t i = 0; i < entries; i++) m.row[i] = (int32_t)(random_unit(&seed) * (double)n);
    qsort(m.row, (size_t)entries, sizeof *m.row, by_number);
    for (int64_t i = 0; i < entries; i++) m.column[i] = (int32_t)(random_unit(&seed) * (double)n);
    memset(m.offset, 0, (size_t)(n + 1) * sizeof(int32_t));
    for (int64_t i = 0; i < entries; i++) m.offset[m.row[i] + 1]++;
    for (int64_t i = 0; i < n; i++) m.offset[i + 1] += m.offset[i];
    m.values = case_floats(entries, 1, &seed), m.x = case_floats(n * COLUMNS, 1, &seed),
    m.dy = case_floats(n * COLUMNS, 1, &seed);
    return m;
}
static float *dense_of(const matrix *m) {
    float *w = buffer_new((size_t)(m->n * m->n) * sizeof *w);
    memset(w, 0, (size_t)(m->n * m->n) * sizeof *w);
    for (int64_t i = 0; i < m->entries; i++) w[m->row[i] * m->n + m->column[i]] += m->values[i];
    return w;
}

/* One product more in a sum, and in the sum of its sizes. */
static void add(expected *w, int64_t at, double x) { w->want[at] += x, w->bound[at] += fabs(x); }
static int expect(cli *c, bench_case *k, tn_session *s, expected *want) {
    (void)c, (void)s;
    const matrix *m = k->ud;
    const int outputs = m->form == GRADIENT ? 2 : 1;
    if (m->form == GRADIENT)
        expect_output(&want[0], "dv", m->entries), expect_output(&want[1], "dx", m->n * COLUMNS);
    else
        expect_output(&want[0], "y", m->n * COLUMNS);
    for (int o = 0; o < outputs; o++)
        for (int64_t i = 0; i < want[o].n; i++) want[o].want[i] = want[o].bound[i] = 0;
    for (int64_t i = 0; i < m->entries; i++)
        for (int64_t j = 0; j < COLUMNS; j++) {
            const int64_t y = m->row[i] * COLUMNS + j, x = m->column[i] * COLUMNS + j;
            if (m->form == GRADIENT)
                add(&want[0], i, (double)m->x[x] * (double)m->dy[y]), add(&want[1], x, (double)m->values[i] * (double)m->dy[y]);
            else
                add(&want[0], y, (double)m->values[i] * (double)m->x[x]);
        }
    for (int o = 0; o < outputs; o++) /* in f32, with as many terms as a sum may have */
        for (int64_t i = 0; i < want[o].n; i++) want[o].bound[i] *= (double)FLT_EPSILON * (double)(m->n + COLUMNS);
    return outputs;
}

static void build(bench_case *k, const matrix *m) {
    tn_tensor x = tn_input(k->graph, "x", TN_F32, TN_DIMS(m->n, COLUMNS)), y, d[2];
    case_input(k, "x", m->x);
    if (m->form == DENSE) {
        case_input(k, "w", dense_of(m));
        tn_output(tn_matmul(tn_input(k->graph, "w", TN_F32, TN_DIMS(m->n, m->n)), x), "y");
        return;
    }
    tn_tensor v = tn_input(k->graph, "values", TN_F32, TN_DIMS(m->entries));
    tn_tensor column = tn_input(k->graph, "column", TN_I32, TN_DIMS(m->entries));
    case_input(k, "values", m->values), case_input(k, "column", m->column);
    if (m->form == COO) {
        case_input(k, "row", m->row);
        y = tn_sparse_matmul(v, tn_input(k->graph, "row", TN_I32, TN_DIMS(m->entries)), column, m->n, x);
    } else {
        case_input(k, "offset", m->offset);
        y = tn_sparse_matmul_csr(v, tn_input(k->graph, "offset", TN_I32, TN_DIMS(m->n + 1)), column, x);
    }
    if (m->form != GRADIENT) {
        tn_output(y, "y");
        return;
    }
    tn_tensor dy = tn_input(k->graph, "dy", TN_F32, TN_DIMS(m->n, COLUMNS)), by[2] = { v, x };
    case_input(k, "dy", m->dy);
    cli_need(k->c, tn_grad(tn_sum(tn_mul(y, dy), TN_ALL_AXES, 0), by, 2, d));
    tn_output(d[0], "dv"), tn_output(d[1], "dx");
}

/* What a case does not read, nobody else frees. */
static void matrix_free(const matrix *m) {
    if (m->form != COO) buffer_free(m->row);
    if (m->form == DENSE) buffer_free(m->column), buffer_free(m->values);
    if (m->form == COO || m->form == DENSE) buffer_free(m->offset);
    if (m->form != GRADIENT) buffer_free(m->dy);
}

static void measure(suite *s, int64_t n, int64_t share) {
    bench_case cases[FORMS];
    matrix m[FORMS];
    int cases_n = 0;
    const int64_t entries = n * n * share / 1000 > 0 ? n * n * share / 1000 : 1;
    const char *name = suite_text(s, "%lldx%lldx%d, %g %%", (long long)n, (long long)n, COLUMNS, (double)share / 10);
    for (int f = 0; f < FORMS; f++) {
        if (!suite_wants(s, forms[f])) continue;
        matrix *of = &m[cases_n];
        bench_case k = case_new(s, "sparse", name, forms[f]);
        *of = matrix_new(n, entries, (form)f, s->seed);
        build(&k, of);
        const double products = (double)(f == DENSE ? n * n : entries) * COLUMNS, dense = (double)(n * COLUMNS * 4);
        k.row.size = n, k.row.batch = COLUMNS, k.row.inputs = entries;
        k.flops = 2 * products * (f == GRADIENT ? 2 : 1);
        k.bytes =
            (f == GRADIENT ? 3 : 2) * dense + (f == DENSE ? 4 * (double)(n * n) : (f == GRADIENT ? 12 : 8) * (double)entries);
        k.bandwidth = PROBE_COPY;
        k.expect = expect, k.ud = of;
        if (f != COO) /* the others take rows */
            k.rival = cli_format("sparse what=%s n=%lld entries=%lld columns=%d",
                                 f == DENSE ? "dense"
                                 : f == CSR ? "csr"
                                            : "gradient",
                                 (long long)n, (long long)entries, COLUMNS);
        cases[cases_n++] = k;
    }
    if (cases_n) suite_run(s, cases, cases_n);
    for (int i = 0; i < cases_n; i++) matrix_free(&m[i]);
}

static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    snprintf(buffer, n, "%s %lld, %d thread%s", r->variant, (long long)r->size, (int)r->threads, r->threads > 1 ? "s" : "");
    return buffer;
}
static double x_of(const bench_row *r) { return (double)r->inputs; }
static double y_of(const bench_row *r) { return r->median_us; }

int bench_sparse(cli *c) {
    suite s = suite_begin(c, "bench sparse");
    int64_t sizes[8];
    int n = cli_ints(c, "sizes", "1024", sizes, COUNT_OF(sizes), 1, 1 << 13);
    for (int i = 0; i < n; i++)
        for (size_t j = 0; j < COUNT_OF(permille); j++) measure(&s, sizes[i], permille[j]);
    suite_report(&s);
    rows_plot(c,
              &(chart){ .title = "A sparse matrix times a dense one",
                        .x_label = "entries",
                        .x_of = x_of,
                        .panel = { { "microseconds (median)", line_of, y_of } } },
              s.rows, s.n_rows);
    suite_end(&s);
    return CLI_OK;
}
