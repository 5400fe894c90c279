/* bench_gemm.c - `tenon bench gemm`: relu(x w + b) for cubes and thin matrices, with the weights as an input of every run and
 * as a constant of the graph (which may be packed once). Checked in double, element by element. */
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
} operands;

static operands operands_new(gemm_shape s, uint64_t seed) {
    operands o = { s,
                   case_floats(s.m * s.k, 1.7, &seed),
                   case_floats(s.k * s.n, sqrt(3.0 / (double)s.k), &seed),
                   case_floats(s.n, 0.1, &seed),
                   case_array(s.m * s.n),
                   case_array(s.m * s.n) };
    ladder_problem p = { s.m, s.n, s.k, o.x, o.w, o.b, NULL, NULL };
    ladder_reference("linear+relu", &p, o.want, o.bound);
    return o;
}
static void operands_free(operands *o) {
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

static void *copied(const float *data, int64_t n) {
    float *x = buffer_new((size_t)n * sizeof(float));
    memcpy(x, data, (size_t)n * sizeof(float));
    return x;
}

static bench_case make_case(suite *s, const operands *o, bool constant) {
    const gemm_shape *p = &o->s;
    const char *name = suite_text(s, "%lldx%lldx%lld", (long long)p->m, (long long)p->n, (long long)p->k);
    bench_case k = case_new(s, "gemm", name, constant ? "constant" : "input");
    tn_tensor x = tn_input(k.graph, "x", TN_F32, TN_DIMS(p->m, p->k));
    case_input(&k, "x", copied(o->x, p->m * p->k));
    tn_tensor w, b;
    if (constant) {
        w = tn_const(k.graph, TN_F32, TN_DIMS(p->k, p->n), o->w);
        b = tn_const(k.graph, TN_F32, TN_DIMS(p->n), o->b);
    } else {
        w = tn_input(k.graph, "w", TN_F32, TN_DIMS(p->k, p->n));
        b = tn_input(k.graph, "b", TN_F32, TN_DIMS(p->n));
        case_input(&k, "w", copied(o->w, p->k * p->n));
        case_input(&k, "b", copied(o->b, p->n));
    }
    tn_output(tn_relu(tn_add(tn_matmul(x, w), b)), "y");
    k.flops = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    if (p->m < 64) { /* thin: every weight is read for few multiply-adds */
        k.bytes = 4.0 * (double)(p->k * p->n);
        k.bandwidth = PROBE_READ;
    }
    if (p->m == p->n && p->n == p->k) k.row.size = p->m;
    k.row.batch = p->m;
    k.expect = expect;
    k.ud = o;
    k.rival = cli_format("gemm m=%lld n=%lld k=%lld constant=%d", (long long)p->m, (long long)p->n, (long long)p->k, constant);
    return k;
}

static void measure(suite *s, gemm_shape p, uint64_t seed) {
    if (!suite_wants(s, suite_text(s, "%lldx%lldx%lld", (long long)p.m, (long long)p.n, (long long)p.k))) return;
    operands o = operands_new(p, seed);
    bench_case cases[2] = { make_case(s, &o, false), make_case(s, &o, true) };
    suite_run(s, cases, 2);
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
    int64_t sizes[32];
    if (cli_text(c, "sizes", NULL)) { /* cubes only */
        int n = cli_ints(c, "sizes", NULL, sizes, COUNT_OF(sizes), 1, 8192);
        for (int i = 0; i < n; i++) measure(&s, (gemm_shape){ sizes[i], sizes[i], sizes[i] }, s.seed + (uint64_t)i);
    } else {
        for (size_t i = 0; i < COUNT_OF(shapes); i++) measure(&s, shapes[i], s.seed + i);
        if (s.device) measure(&s, (gemm_shape){ 4096, 4096, 4096 }, s.seed + COUNT_OF(shapes));
    }
    suite_report(&s);
    rows_plot(c, "relu(x w + b), n x n matrices", "n", "GFLOP/s (median)", s.rows, s.n_rows, line_of, x_of, y_of);
    suite_end(&s);
    return CLI_OK;
}
