/* rival_openblas.c - OpenBLAS through cblas: sgemm into an output that starts as the bias, then relu in place. */
#include "worker.h"

#include RIVAL_CBLAS
#ifdef RIVAL_PREFIX
#define cblas_sgemm scipy_cblas_sgemm
#define openblas_get_config scipy_openblas_get_config
#endif
char *openblas_get_config(void);

typedef struct gemm {
    int m, n, k;
    float *x, *w, *b, *y;
} gemm;

static void linear(const float *x, const float *w, const float *b, int m, int n, int k, bool relu, float *y) {
    for (int i = 0; i < m; i++) memcpy(y + (size_t)i * (size_t)n, b, (size_t)n * sizeof(float));
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1, x, k, w, n, 1, y, n);
    for (size_t i = 0; i < (size_t)m * (size_t)n && relu; i++) y[i] = y[i] > 0 ? y[i] : 0;
}

static void run_gemm(job *j, int64_t times) {
    gemm *g = j->data;
    for (int64_t i = 0; i < times; i++) linear(g->x, g->w, g->b, g->m, g->n, g->k, true, g->y);
}

static double prepare_gemm(const char *line, job *j) {
    gemm *g = calloc(1, sizeof *g);
    g->m = (int)number(line, "m");
    g->n = (int)number(line, "n");
    g->k = (int)number(line, "k");
    size_t m = (size_t)g->m, n = (size_t)g->n, k = (size_t)g->k;
    g->x = uniform(m * k, 1.7);
    g->w = uniform(k * n, sqrt(3.0 / (double)k));
    g->b = uniform(n, 0.1);
    g->y = buffer(m * n * sizeof(float));
    *j = (job){ run_gemm, NULL, g, 0 };
    run_gemm(j, 1);
    double *x = doubles(g->x, m * k), *want = malloc((m * n + 1) * sizeof(double));
    linear_double(x, g->w, g->b, g->m, g->n, g->k, true, want);
    double e = worst_error(g->y, want, m * n, 1e-5);
    free(x);
    free(want);
    return e;
}

typedef struct mlp {
    network net;
    float *a, *b; /* layers' results, in turns */
    float *y;
} mlp;

static void run_mlp(job *j, int64_t times) {
    mlp *p = j->data;
    int size = (int)p->net.size, batch = (int)p->net.batch;
    for (int64_t t = 0; t < times; t++) {
        const float *x = p->net.x;
        float *to = p->a;
        for (int i = 0; i < p->net.n; i++) {
            if (p->net.layers[i] == 'R') { /* after another R: nothing changes any more */
                for (int k = 0; k < size * batch; k++) to[k] = x[k] > 0 ? x[k] : 0;
            } else
                linear(x, p->net.w[i], p->net.b[i], batch, size, size, i + 1 < p->net.n && p->net.layers[i + 1] == 'R', to);
            x = to;
            to = x == p->a ? p->b : p->a;
            while (i + 1 < p->net.n && p->net.layers[i + 1] == 'R') i++;
        }
        for (int r = 0; r < batch; r++) {
            const float *in = x + (size_t)r * (size_t)size;
            float *out = p->y + (size_t)r * (size_t)size, top = in[0], sum = 0;
            for (int k = 1; k < size; k++) top = in[k] > top ? in[k] : top;
            for (int k = 0; k < size; k++) sum += out[k] = expf(in[k] - top);
            for (int k = 0; k < size; k++) out[k] /= sum;
        }
    }
}

static double prepare_mlp(const char *line, job *j) {
    mlp *p = calloc(1, sizeof *p);
    network_read(&p->net, line);
    size_t n = (size_t)(p->net.size * p->net.batch);
    p->a = buffer(n * sizeof(float));
    p->b = buffer(n * sizeof(float));
    p->y = buffer(n * sizeof(float));
    *j = (job){ run_mlp, NULL, p, 0 };
    run_mlp(j, 1);
    double *want = network_double(&p->net), e = worst_error(p->y, want, n, 1e-4);
    free(want);
    return e;
}

static double prepare(const char *kind, const char *line, job *j, char *reason) {
    if (!strcmp(kind, "gemm")) return prepare_gemm(line, j);
    if (!strcmp(kind, "mlp")) return prepare_mlp(line, j);
    snprintf(reason, 64, "- matrix products only");
    return -1;
}

int main(void) {
    char version[64];
    snprintf(version, sizeof version, "%.*s", (int)strcspn(openblas_get_config() + 9, " "), openblas_get_config() + 9);
    return serve(version);
}
