/* rival_openmp.c - a plain C program with OpenMP: each layer a parallel loop over blocks of rows, vectors by the compiler. */
#include "worker.h"

#include <omp.h>

enum { ROWS = 4, COLUMNS = 64 };

/* y = x w + b, optionally relu. */
static void linear(const float *x, const float *w, const float *b, int m, int n, int k, int relu, float *y) {
#pragma omp parallel for schedule(static)
    for (int i = 0; i < m; i += ROWS)
        for (int j = 0; j < n; j += COLUMNS) {
            float sum[ROWS][COLUMNS];
            int rows = m - i < ROWS ? m - i : ROWS, columns = n - j < COLUMNS ? n - j : COLUMNS;
            for (int r = 0; r < ROWS; r++)
                for (int c = 0; c < COLUMNS; c++) sum[r][c] = c < columns ? b[j + c] : 0;
            for (int l = 0; l < k; l++) {
                const float *from = w + (size_t)l * (size_t)n + j;
                for (int r = 0; r < rows; r++) {
                    float a = x[(size_t)(i + r) * (size_t)k + l];
                    if (columns == COLUMNS)
                        for (int c = 0; c < COLUMNS; c++) sum[r][c] += a * from[c];
                    else
                        for (int c = 0; c < columns; c++) sum[r][c] += a * from[c];
                }
            }
            for (int r = 0; r < rows; r++)
                for (int c = 0; c < columns; c++)
                    y[(size_t)(i + r) * (size_t)n + j + c] = relu && sum[r][c] < 0 ? 0 : sum[r][c];
        }
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
            if (p->net.layers[i] == 'R') continue; /* part of the Linear layer before it: the first layer is one */
            linear(x, p->net.w[i], p->net.b[i], batch, size, size, p->net.layers[i + 1] == 'R', to);
            x = to;
            to = x == p->a ? p->b : p->a;
        }
#pragma omp parallel for schedule(static)
        for (int r = 0; r < batch; r++) {
            const float *in = x + (size_t)r * (size_t)size;
            float *out = p->y + (size_t)r * (size_t)size, top = in[0], sum = 0;
            for (int k = 1; k < size; k++) top = in[k] > top ? in[k] : top;
            for (int k = 0; k < size; k++) sum += out[k] = expf(in[k] - top);
            for (int k = 0; k < size; k++) out[k] /= sum;
        }
    }
}

static double prepare(const char *kind, const char *line, job *j, char *reason) {
    if (strcmp(kind, "mlp")) {
        snprintf(reason, 64, "- networks only");
        return -1;
    }
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

int main(int argc, char **argv) {
    if (argc > 1) omp_set_num_threads(atoi(argv[1]));
    char version[64];
    snprintf(version, sizeof version, "%d, gcc %s", _OPENMP, __VERSION__);
    return serve(version);
}
