/* product.c - y += x w in double, for references: fast enough for matrices that take the reference evaluator minutes. Large
 * ones are shared out by rows; every row has the same bits however many threads there are. */
#include "bench.h"

#include <math.h>
#include <pthread.h>
#include <unistd.h>

/* Blocks of w's rows stay in the cache while all of x goes by; four rows at a time. */
__attribute__((always_inline)) static inline void body(const double *x, const float *w, int64_t m, int64_t n, int64_t k,
                                                       double *y) {
    enum { BLOCK = 64 };
    for (int64_t l0 = 0; l0 < k; l0 += BLOCK) {
        int64_t end = l0 + BLOCK < k ? l0 + BLOCK : k;
        for (int64_t i = 0; i < m; i++) {
            double *row = y + i * n;
            int64_t l = l0;
            for (; l + 4 <= end; l += 4) {
                const float *w0 = w + l * n, *w1 = w0 + n, *w2 = w1 + n, *w3 = w2 + n;
                double a = x[i * k + l], b = x[i * k + l + 1], c = x[i * k + l + 2], d = x[i * k + l + 3];
                for (int64_t j = 0; j < n; j++)
                    row[j] += a * (double)w0[j] + b * (double)w1[j] + (c * (double)w2[j] + d * (double)w3[j]);
            }
            for (; l < end; l++)
                for (int64_t j = 0; j < n; j++) row[j] += x[i * k + l] * (double)w[l * n + j];
        }
    }
}

static void plain(const double *x, const float *w, int64_t m, int64_t n, int64_t k, double *y) { body(x, w, m, n, k, y); }
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void wide(const double *x, const float *w, int64_t m, int64_t n, int64_t k,
                                                     double *y) {
    body(x, w, m, n, k, y);
}
#endif

static void rows_double(const double *x, const float *w, int64_t m, int64_t n, int64_t k, double *y) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        wide(x, w, m, n, k, y);
        return;
    }
#endif
    plain(x, w, m, n, k, y);
}

enum { MAX_PARTS = 64 };
static const double PART = 2e8; /* multiply-adds of a thread, at least */

typedef struct part {
    const double *x;
    const float *w;
    int64_t m, n, k;
    double *y;
    pthread_t thread;
    bool started;
} part;
static void *run_part(void *arg) {
    part *p = arg;
    rows_double(p->x, p->w, p->m, p->n, p->k, p->y);
    return NULL;
}

void product_double(const double *x, const float *w, int64_t m, int64_t n, int64_t k, double *y) {
    part parts[MAX_PARTS];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t count = (int64_t)fmin((double)m * (double)n * (double)k / PART, (double)(cores < MAX_PARTS ? cores : MAX_PARTS));
    if (count < 1) count = 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t from = m * i / count, to = m * (i + 1) / count;
        parts[i] = (part){ x + from * k, w, to - from, n, k, .y = y + from * n };
        parts[i].started = i > 0 && !pthread_create(&parts[i].thread, NULL, run_part, &parts[i]);
        if (i > 0 && !parts[i].started) run_part(&parts[i]);
    }
    run_part(&parts[0]);
    for (int64_t i = 1; i < count; i++)
        if (parts[i].started) pthread_join(parts[i].thread, NULL);
}
