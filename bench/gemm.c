/* gemm.c - `tenon bench gemm`: relu(x w + b) for cubes and thin matrices, with the weights as an input of every run and
 * as a constant of the graph (which may be packed once). Checked in double, element by element. Narrow numbers (--dtype) are
 * widened in the graph: bf16 to f32; u8 (x) and i8 (w) to i32, whose sums are scaled. */
#include "suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct gemm_shape {
    int64_t m, n, k;
} gemm_shape;

static const gemm_shape shapes[] = {
    { 64, 64, 64 },    { 128, 128, 128 }, { 256, 256, 256 },  { 512, 512, 512 }, { 1024, 1024, 1024 }, { 2048, 2048, 2048 },
    { 1, 1024, 1024 }, { 8, 1024, 1024 }, { 32, 1024, 1024 }, { 1, 4096, 4096 }, { 8, 4096, 4096 },    { 32, 4096, 4096 },
};

typedef struct operands { /* one shape: what every variant computes from, and the result */
    gemm_shape s;
    float *x, *w, *b;
    double *want, *bound;
    tn_dtype of_x, of_w;
    void *dx, *dw; /* x and w in these; x is them times scale */
    double scale;
} operands;

static uint8_t *to_bytes(float *x, int64_t n, double least, double steps) { /* in place, too: whole numbers from least on */
    uint8_t *y = buffer_new((size_t)n);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)floor(least + steps * ((double)x[i] + 1) / 2);
        y[i] = (uint8_t)(int)x[i];
    }
    return y;
}

static operands operands_new(gemm_shape s, uint64_t seed, tn_dtype t) {
    operands o = { s,
                   case_floats(s.m * s.k, t == TN_I8 ? 1 : 1.7, &seed),
                   case_floats(s.k * s.n, t == TN_I8 ? 1 : sqrt(3.0 / (double)s.k), &seed),
                   case_floats(s.n, 0.1, &seed),
                   case_array(s.m * s.n),
                   case_array(s.m * s.n),
                   .of_x = t == TN_I8 ? TN_U8 : t,
                   .of_w = t,
                   .scale = t == TN_I8 ? exp2(floor(-14 - log2((double)s.k) / 2)) : 1 };
    o.dx = o.x, o.dw = o.w;
    if (t == TN_BF16) o.dx = case_bf16(o.x, s.m * s.k), o.dw = case_bf16(o.w, s.k * s.n);
    if (t == TN_I8) o.dx = to_bytes(o.x, s.m * s.k, 0, 256), o.dw = to_bytes(o.w, s.k * s.n, -128, 256);
    for (int64_t i = 0; i < s.m * s.k && t == TN_I8; i++) o.x[i] *= (float)o.scale; /* exact */
    ladder_problem p = { s.m, s.n, s.k, o.x, o.w, o.b, NULL, NULL };
    ladder_reference("linear+relu", &p, o.want, o.bound);
    return o;
}
static void operands_free(operands *o) {
    if (o->dx != o->x) buffer_free(o->dx), buffer_free(o->dw);
    buffer_free(o->x);
    buffer_free(o->w);
    buffer_free(o->b);
    free(o->want);
    free(o->bound);
}

static int expect(cli *c, bench_case *k, tn_session *s, expected *want) {
    (void)c;
    (void)s;
    const operands *o = k->ud;
    int64_t n = o->s.m * o->s.n;
    expect_output(&want[0], "y", n);
    memcpy(want[0].want, o->want, (size_t)n * sizeof(double));
    memcpy(want[0].bound, o->bound, (size_t)n * sizeof(double));
    return 1;
}

/* A copy of a matrix, or its transpose. */
static void *copied(const void *data, int64_t rows, int64_t columns, tn_dtype t, bool transposed) {
    size_t size = tn_dtype_size(t);
    char *x = buffer_new((size_t)(rows * columns) * size);
    const char *from = data;
    if (!transposed) memcpy(x, data, (size_t)(rows * columns) * size);
    for (int64_t i = 0; i < rows && transposed; i++)
        for (int64_t j = 0; j < columns; j++)
            memcpy(x + (size_t)(j * rows + i) * size, from + (size_t)(i * columns + j) * size, size);
    return x;
}

/* x or w as the program gets it: an input, or a constant; turned: given as its transpose. */
static tn_tensor operand(bench_case *k, const char *name, const void *data, int64_t rows, int64_t columns, tn_dtype t,
                         bool transposed, bool constant) {
    tn_shape shape = transposed ? TN_DIMS(columns, rows) : TN_DIMS(rows, columns);
    void *lies = copied(data, rows, columns, t, transposed);
    tn_tensor x = constant ? tn_const(k->graph, t, shape, lies) : tn_input(k->graph, name, t, shape);
    if (constant)
        buffer_free(lies);
    else
        case_input(k, name, lies);
    return transposed ? tn_transpose(x, 0, 1) : x;
}

typedef struct gemm_form { /* how operands are given: as they are, or as their transposes */
    bool x_transposed, w_transposed;
} gemm_form;

static bench_case make_case(suite *s, const operands *o, gemm_form f, bool constant) {
    const gemm_shape *p = &o->s;
    const char *name = suite_text(s, "%lldx%lldx%lld", (long long)p->m, (long long)p->n, (long long)p->k);
    const char *variant = constant ? "constant" : "input";
    if (f.x_transposed || f.w_transposed)
        variant = suite_text(s, "%s %c%c", variant, f.x_transposed ? 't' : 'n', f.w_transposed ? 't' : 'n');
    bench_case k = case_new(s, "gemm", name, variant);
    tn_dtype sum = o->of_w == TN_I8 ? TN_I32 : TN_F32;
    tn_tensor x = operand(&k, "x", o->dx, p->m, p->k, o->of_x, f.x_transposed, false);
    tn_tensor w = operand(&k, "w", o->dw, p->k, p->n, o->of_w, f.w_transposed, constant);
    tn_tensor b = constant ? tn_const(k.graph, TN_F32, TN_DIMS(p->n), o->b) : tn_input(k.graph, "b", TN_F32, TN_DIMS(p->n));
    if (!constant) case_input(&k, "b", copied(o->b, 1, p->n, TN_F32, false));
    tn_tensor y = o->of_w == TN_F32 ? tn_matmul(x, w) : tn_matmul(tn_cast(x, sum), tn_cast(w, sum));
    if (sum == TN_I32) y = tn_mul_scalar(tn_cast(y, TN_F32), o->scale);
    tn_output(tn_relu(tn_add(y, b)), "y");
    k.peak = o->of_w == TN_I8 ? PROBE_I8 : o->of_w == TN_BF16 ? PROBE_BF16 : PROBE_FMA;
    k.flops = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    if (p->m < 64) { /* thin: every weight is read for few multiply-adds */
        k.bytes = (double)tn_dtype_size(o->of_w) * (double)(p->k * p->n);
        k.bandwidth = PROBE_READ;
    }
    if (p->m == p->n && p->n == p->k) k.row.size = p->m;
    k.row.batch = p->m;
    k.expect = expect;
    k.ud = o;
    if (o->of_w != TN_F32 || f.x_transposed || f.w_transposed) return k; /* rivals are asked for plain f32 */
    k.rival = cli_format("gemm m=%lld n=%lld k=%lld constant=%d", (long long)p->m, (long long)p->n, (long long)p->k, constant);
    return k;
}

enum { MAX_FORMS = 4 };
/* nn,nt,tn,tt: of x and of w. */
static int forms_of(cli *c, gemm_form *out) {
    const char *list = cli_text(c, "trans", "nn");
    int n = 0;
    for (const char *at = list;; at += 3) {
        bool ok = (at[0] == 'n' || at[0] == 't') && (at[1] == 'n' || at[1] == 't') && (!at[2] || at[2] == ',') && n < MAX_FORMS;
        if (!ok) cli_usage(c, "--trans is a list of nn, nt, tn and tt (of x and of w), not %s", list);
        out[n++] = (gemm_form){ at[0] == 't', at[1] == 't' };
        if (!at[2]) return n;
    }
}

static void measure(suite *s, gemm_shape p, uint64_t seed, tn_dtype t) {
    if (!suite_wants(s, suite_text(s, "%lldx%lldx%lld", (long long)p.m, (long long)p.n, (long long)p.k))) return;
    operands o = operands_new(p, seed, t);
    gemm_form forms[MAX_FORMS];
    bench_case cases[2 * MAX_FORMS];
    int n = 0, n_forms = forms_of(s->c, forms);
    for (int i = 0; i < n_forms; i++)
        for (int constant = 0; constant < 2; constant++) cases[n++] = make_case(s, &o, forms[i], constant);
    suite_run(s, cases, n);
    operands_free(&o);
}

static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    if (r->size < 0) return NULL;
    snprintf(buffer, n, "weights %s, %d thread%s", r->variant, (int)r->threads, r->threads > 1 ? "s" : "");
    return buffer;
}
static double x_of(const bench_row *r) { return (double)r->size; }
static double y_of(const bench_row *r) { return r->gflops; }

int bench_gemm(cli *c) {
    suite s = suite_begin(c, "bench gemm");
    const char *dtype = cli_text(c, "dtype", "f32");
    tn_dtype t = !strcmp(dtype, "bf16") ? TN_BF16 : !strcmp(dtype, "i8") ? TN_I8 : TN_F32;
    if (t == TN_F32 && strcmp(dtype, "f32") != 0) cli_usage(c, "--dtype is f32, bf16 or i8, not %s", dtype);
    int64_t sizes[32];
    if (cli_text(c, "sizes", NULL)) { /* cubes only */
        int n = cli_ints(c, "sizes", NULL, sizes, COUNT_OF(sizes), 1, 8192);
        for (int i = 0; i < n; i++) measure(&s, (gemm_shape){ sizes[i], sizes[i], sizes[i] }, s.seed + (uint64_t)i, t);
    } else {
        for (size_t i = 0; i < COUNT_OF(shapes); i++) measure(&s, shapes[i], s.seed + i, t);
        if (s.device) measure(&s, (gemm_shape){ 4096, 4096, 4096 }, s.seed + COUNT_OF(shapes), t);
    }
    suite_report(&s);
    rows_plot(c,
              &(chart){ .title = "relu(x w + b), n x n matrices",
                        .x_label = "n",
                        .x_of = x_of,
                        .panel = { { "GFLOP/s (median)", line_of, y_of } } },
              s.rows, s.n_rows);
    suite_end(&s);
    return CLI_OK;
}
