/* rows.c - `tenon bench rows`: work that is bound by memory, against a copy of as many bytes: layer norm, softmax, a
 * chain of ten elementwise ops, transpose, copy; at footprints from the first cache to main memory; on devices also in bf16. */
#include "suite.h"
#include "tenon/tenon_nn.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct row_work {
    const char *name;
    tn_tensor (*build)(tn_tensor x);
    /* out and bound f64[cols,rows] for transpose, else f64[rows,cols] */
    void (*reference)(const float *x, const float *w, int64_t rows, int64_t cols, double *out, double *bound);
    bool bf16;    /* for devices */
    bool weights; /* inputs w and b, bf16[cols]; the reference has them in one array */
} row_work;

static const double eps = FLT_EPSILON / 2;

static tn_tensor build_copy(tn_tensor x) { return x; }
static void want_copy(const float *x, const float *w, int64_t rows, int64_t cols, double *out, double *bound) {
    (void)w;
    for (int64_t i = 0; i < rows * cols; i++) out[i] = (double)x[i], bound[i] = 0;
}

static tn_tensor build_transpose(tn_tensor x) { return tn_transpose(x, 0, 1); }
static void want_transpose(const float *x, const float *w, int64_t rows, int64_t cols, double *out, double *bound) {
    (void)w;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) out[j * rows + i] = (double)x[i * cols + j], bound[j * rows + i] = 0;
    }
}

/* Ten ops. */
static tn_tensor build_chain(tn_tensor x) {
    tn_tensor a = tn_abs(tn_add_scalar(tn_mul_scalar(x, 1.25), 0.5));
    tn_tensor b = tn_max(tn_sub(tn_mul(a, x), x), tn_full(x.graph, TN_F32, TN_SCALAR, -0.25));
    tn_tensor d = tn_min(tn_add(tn_mul_scalar(b, 0.75), a), tn_full(x.graph, TN_F32, TN_SCALAR, 2));
    return tn_neg(d);
}
static void want_chain(const float *x, const float *w, int64_t rows, int64_t cols, double *out, double *bound) {
    (void)w;
    for (int64_t i = 0; i < rows * cols; i++) {
        double v = (double)x[i], a = fabs(1.25 * v + 0.5), b = fmax(a * v - v, -0.25);
        out[i] = -fmin(0.75 * b + a, 2);
        bound[i] = 10 * eps * (2 + fabs(v)) * (2 + fabs(v)); /* no value in between is larger */
    }
}

static tn_tensor build_softmax(tn_tensor x) { return tn_nn_softmax(x, -1); }
static void want_softmax(const float *x, const float *w, int64_t rows, int64_t cols, double *out, double *bound) {
    (void)w;
    ladder_problem p = { rows, cols, cols, x, NULL, NULL, NULL, NULL };
    ladder_reference("softmax", &p, out, bound);
}

static tn_tensor build_norm(tn_tensor x) { return tn_nn_layer_norm(x, 0, "norm"); }
static void want_norm(const float *x, const float *w, int64_t rows, int64_t cols, double *out, double *bound) {
    (void)w;
    for (int64_t i = 0; i < rows; i++) {
        const float *r = x + i * cols;
        double mean = 0, var = 0, top = 0;
        for (int64_t j = 0; j < cols; j++) mean += (double)r[j] / (double)cols, top = fmax(top, fabs((double)r[j]));
        for (int64_t j = 0; j < cols; j++) var += ((double)r[j] - mean) * ((double)r[j] - mean) / (double)cols;
        double scale = 1 / sqrt(var + 1e-5);
        for (int64_t j = 0; j < cols; j++) {
            out[i * cols + j] = ((double)r[j] - mean) * scale;
            /* the sums err by at most cols roundings, in any order */
            bound[i * cols + j] = eps * ((double)cols + 8) * (top * scale + fabs(out[i * cols + j]));
        }
    }
}

/* The same steps with gain and bias of bf16, which others have beside rows of bf16; parameters of tn_nn_layer_norm are f32. */
static tn_tensor build_norm_bf16(tn_tensor x) {
    const int64_t cols = tn_tensor_shape(x).dim[1];
    tn_tensor w = tn_input(x.graph, "w", TN_BF16, TN_DIMS(cols)), b = tn_input(x.graph, "b", TN_BF16, TN_DIMS(cols));
    tn_tensor d = tn_sub(x, tn_mean(x, TN_INTS(-1), 1)), var = tn_mean(tn_mul(d, d), TN_INTS(-1), 1);
    return tn_add(tn_mul(tn_mul(d, tn_rsqrt(tn_add_scalar(var, 1e-5))), w), b);
}
/* The mean of a row is a number of 16 bits, too, and so may be what the bias is added to. */
static void want_norm_bf16(const float *x, const float *w, int64_t rows, int64_t cols, double *out, double *bound) {
    want_norm(x, NULL, rows, cols, out, bound);
    for (int64_t i = 0; i < rows; i++) {
        double mean = 0, var = 0;
        for (int64_t j = 0; j < cols; j++) mean += (double)x[i * cols + j] / (double)cols;
        for (int64_t j = 0; j < cols; j++) var += ((double)x[i * cols + j] - mean) * ((double)x[i * cols + j] - mean);
        double off = 0x1p-8 * fabs(mean) / sqrt(var / (double)cols + 1e-5);
        for (int64_t j = 0; j < cols; j++) {
            double *y = &out[i * cols + j], *e = &bound[i * cols + j], gain = (double)w[j];
            *y *= gain;
            *e = (*e + off) * fabs(gain) + 0x1p-7 * fabs(*y);
            *y += (double)w[cols + j];
        }
    }
}

static const row_work works[] = {
    { "layer norm", build_norm, want_norm, false, false },
    { "softmax", build_softmax, want_softmax, false, false },
    { "chain of 10", build_chain, want_chain, false, false },
    { "transpose", build_transpose, want_transpose, false, false },
    { "copy", build_copy, want_copy, false, false },
    { "layer norm bf16", build_norm_bf16, want_norm_bf16, true, true },
    { "softmax bf16", build_softmax, want_softmax, true, false },
};

/* Rows and columns: 16 KiB, 256 KiB, 8 MiB and 128 MiB read and written. */
static const int64_t sizes[][2] = { { 32, 64 }, { 128, 256 }, { 2048, 512 }, { 16384, 1024 } };
/* 256 MiB, beyond the caches of GPUs, and the square that transposes are quoted for. */
static const int64_t device_sizes[][2] = { { 32768, 1024 }, { 8192, 4096 }, { 1024, 32768 }, { 4096, 4096 } };

typedef struct matrix {
    int64_t rows, cols;
    const row_work *work;
    float *x; /* [rows,cols] what the reference starts from, */
    float *w; /* [2,cols] with that; NULL: there is none */
} matrix;

static int expect(cli *c, bench_case *k, tn_session *s, expected *want) {
    (void)c;
    (void)s;
    const matrix *m = k->ud;
    expected *w = &want[0];
    expect_output(w, "y", m->rows * m->cols);
    m->work->reference(m->x, m->w, m->rows, m->cols, w->want, w->bound);
    w->bf16 = m->work->bf16;
    /* the result is rounded to 8 bits, and so may be what it is scaled by */
    for (int64_t i = 0; i < w->n && w->bf16; i++) w->bound[i] += 0x1p-7 * (fabs(w->want[i]) + w->bound[i]);
    return 1;
}

static bench_case make_case(suite *s, matrix *m, uint64_t seed) {
    const int64_t n = m->rows * m->cols;
    const bool bf16 = m->work->bf16;
    const char *name = suite_text(s, "%s %lldx%lld", m->work->name, (long long)m->rows, (long long)m->cols);
    bench_case k = case_new(s, "rows", name, m->work->name);
    m->x = case_floats(n, 2, &seed);
    case_input(&k, "x", bf16 ? (void *)case_bf16(m->x, n) : m->x);
    if (m->work->weights) {
        m->w = case_floats(2 * m->cols, 1, &seed);
        case_input(&k, "w", case_bf16(m->w, m->cols));
        case_input(&k, "b", case_bf16(m->w + m->cols, m->cols));
    }
    tn_output(m->work->build(tn_input(k.graph, "x", bf16 ? TN_BF16 : TN_F32, TN_DIMS(m->rows, m->cols))), "y");
    k.bytes = (bf16 ? 4.0 : 8.0) * (double)n;
    k.bandwidth = PROBE_COPY;
    k.row.size = m->cols;
    k.row.batch = m->rows;
    k.expect = expect;
    k.ud = m;
    char word[32];
    snprintf(word, sizeof word, "%s", m->work->name);
    for (char *p = word; *p; p++) {
        if (*p == ' ') *p = '_';
    }
    if (!bf16) k.rival = cli_format("rows what=%s m=%lld n=%lld", word, (long long)m->rows, (long long)m->cols);
    return k;
}

static void measure(suite *s, int64_t rows, int64_t cols, uint64_t seed) {
    matrix m[COUNT_OF(works)];
    bench_case cases[COUNT_OF(works)];
    int n = 0;
    for (size_t i = 0; i < COUNT_OF(works); i++) {
        if (!suite_wants(s, works[i].name) || (works[i].bf16 && !s->device)) continue;
        m[n] = (matrix){ rows, cols, &works[i], NULL, NULL };
        cases[n] = make_case(s, &m[n], seed + i);
        n++;
    }
    if (n) suite_run(s, cases, n);
    for (int i = 0; i < n; i++)
        if (m[i].work->bf16) buffer_free(m[i].x), buffer_free(m[i].w); /* else the suite's */
}

static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    snprintf(buffer, n, "%s, %d thread%s", r->variant, (int)r->threads, r->threads > 1 ? "s" : "");
    return buffer;
}
static double x_of(const bench_row *r) { return (double)r->footprint; }
static double y_of(const bench_row *r) { return r->gbs; }

int bench_rows(cli *c) {
    suite s = suite_begin(c, "bench rows");
    int64_t given[32];
    if (cli_text(c, "sizes", NULL)) { /* n x n matrices */
        int n = cli_ints(c, "sizes", NULL, given, COUNT_OF(given), 1, 16384);
        for (int i = 0; i < n; i++) measure(&s, given[i], given[i], s.seed + 100 * (uint64_t)i);
    } else {
        for (size_t i = 0; i < COUNT_OF(sizes) && !s.device; i++) measure(&s, sizes[i][0], sizes[i][1], s.seed + 100 * i);
        for (size_t i = 0; i < COUNT_OF(device_sizes) && s.device; i++)
            measure(&s, device_sizes[i][0], device_sizes[i][1], s.seed + 100 * i);
    }
    suite_report(&s);
    rows_plot(c,
              &(chart){ .title = "Row and elementwise work",
                        .x_label = "bytes read and written",
                        .bytes = true,
                        .x_of = x_of,
                        .panel = { { "GB/s (median)", line_of, y_of } } },
              s.rows, s.n_rows);
    suite_end(&s);
    return CLI_OK;
}
