/* worker.h - what the rivals written in C share: the line protocol of run.py, operands, checks.
 *
 * In: works on stdin. Out: answers on stdout. A rival defines prepare (which may refuse) and its jobs. */
#ifndef RIVALS_WORKER_H
#define RIVALS_WORKER_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_JOBS = 4096, LINE = 4096 };

typedef struct job {
    void (*run)(struct job *j, int64_t times);
    void (*release)(struct job *j); /* what is behind data; not data itself */
    void *data;
    double last; /* seconds of one run */
} job;

/* The rival's part: fills in *j and returns the largest error over its bound, or writes a reason and returns -1. */
static double prepare(const char *kind, const char *line, job *j, char *reason);

/* The number after " key=" in the line. */
static long long number(const char *line, const char *key) {
    char word[32];
    snprintf(word, sizeof word, " %s=", key);
    const char *at = strstr(line, word);
    return at ? atoll(at + strlen(word)) : 0;
}
static void text(const char *line, const char *key, char *out, size_t n) {
    char word[32];
    snprintf(word, sizeof word, " %s=", key);
    const char *at = strstr(line, word);
    out[0] = 0;
    if (!at) return;
    at += strlen(word);
    snprintf(out, n, "%.*s", (int)strcspn(at, " \n"), at);
}

/* Buffers start at different lines of a page. */
static void *buffer(size_t bytes) {
    static unsigned count;
    char *p = NULL;
    if (posix_memalign((void **)&p, 4096, bytes + 4096)) exit(1);
    memset(p, 0, bytes + 4096);
    return p + (count++ * 11 % 60 + 1) * 64; /* never freed: works are few */
}
static uint64_t seed = 1;
static float *uniform(size_t n, double scale) {
    float *x = buffer(n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(scale * (2 * (double)(seed >> 40) / (1 << 24) - 1));
    }
    return x;
}
static double worst_error(const float *got, const double *want, size_t n, double tolerance) {
    double top = 1e-30, worst = 0;
    for (size_t i = 0; i < n; i++) top = fmax(top, fabs(want[i]));
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - want[i]) / (tolerance * top);
        worst = e <= worst ? worst : e; /* NaN comes through */
    }
    return worst;
}

/* y = x w + b, in double, optionally relu. */
static void linear_double(const double *x, const float *w, const float *b, int64_t m, int64_t n, int64_t k, bool relu,
                          double *y) {
    for (int64_t i = 0; i < m; i++) {
        double *row = y + i * n;
        for (int64_t j = 0; j < n; j++) row[j] = (double)b[j];
        for (int64_t l = 0; l < k; l++) {
            double a = x[i * k + l];
            for (int64_t j = 0; j < n; j++) row[j] += a * (double)w[l * n + j];
        }
        for (int64_t j = 0; j < n && relu; j++) row[j] = row[j] > 0 ? row[j] : 0;
    }
}
static double *doubles(const float *x, size_t n) {
    double *d = malloc((n + 1) * sizeof(double));
    for (size_t i = 0; i < n; i++) d[i] = (double)x[i];
    return d;
}

/* A network of L and R layers with softmax at its end; the result in double. */
typedef struct network {
    int64_t size, batch;
    char layers[LINE];
    int n;
    float *x, *w[LINE], *b[LINE];
} network;
static void network_read(network *net, const char *line) {
    net->size = number(line, "size");
    net->batch = number(line, "batch");
    text(line, "layers", net->layers, sizeof net->layers);
    net->n = (int)strlen(net->layers);
    size_t n = (size_t)net->size;
    net->x = uniform(n * (size_t)net->batch, 1.7);
    for (int i = 0; i < net->n; i++) {
        if (net->layers[i] != 'L') continue;
        double gain = i && net->layers[i - 1] == 'R' ? 2 : 1;
        net->w[i] = uniform(n * n, sqrt(3 * gain / (double)n));
        net->b[i] = uniform(n, 0.1);
    }
}
static double *network_double(const network *net) {
    size_t n = (size_t)(net->size * net->batch);
    double *x = doubles(net->x, n), *y = malloc((n + 1) * sizeof(double));
    for (int i = 0; i < net->n; i++) {
        if (net->layers[i] == 'R') {
            for (size_t j = 0; j < n; j++) x[j] = x[j] > 0 ? x[j] : 0;
            continue;
        }
        linear_double(x, net->w[i], net->b[i], net->batch, net->size, net->size, false, y);
        double *t = x;
        x = y;
        y = t;
    }
    for (int64_t r = 0; r < net->batch; r++) {
        double *row = x + r * net->size, top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < net->size; j++) top = fmax(top, row[j]);
        for (int64_t j = 0; j < net->size; j++) sum += row[j] = exp(row[j] - top);
        for (int64_t j = 0; j < net->size; j++) row[j] /= sum;
    }
    free(y);
    return x;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int serve(const char *version) {
    static job jobs[MAX_JOBS];
    static char line[LINE];
    printf("ready %s\n", version);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char word[16], kind[32] = "", reason[256] = "";
        long long id = 0, times = 0;
        if (sscanf(line, "%15s %lld", word, &id) < 2 || id < 0 || id >= MAX_JOBS) {
            printf("no more than %d works\n", MAX_JOBS);
        } else if (!strcmp(word, "case")) {
            sscanf(line, "%*s %*s %31s", kind);
            jobs[id] = (job){ 0 };
            double e = prepare(kind, line, &jobs[id], reason);
            if (e >= 0 && e <= 1)
                printf("ok %.3g\n", e);
            else if (e == -1)
                printf("no %s\n", reason);
            else
                printf("no wrong result: %g times the error that is allowed\n", e);
        } else if (!strcmp(word, "run") && sscanf(line, "%*s %*s %lld", &times) == 1 && jobs[id].run) {
            job *j = &jobs[id];
            if (j->last < 0.02) j->run(j, 1);
            double start = now();
            j->run(j, times);
            double spent = now() - start;
            j->last = spent / (double)times;
            printf("t %.9f\n", spent);
        } else {
            if (jobs[id].release) jobs[id].release(&jobs[id]);
            jobs[id] = (job){ 0 };
            printf("ok\n");
        }
        fflush(stdout);
    }
    return 0;
}

#endif
