/* stats.c - interleaved timing. A sample is one clock reading around enough runs to last 2 ms; the median of samples is quoted.
 */
#include "measure.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_SAMPLES = 4000, MIN_ROUNDS = 5 };
static const double sample_seconds = 0.002;

static double timed(stats_case *k) {
    if (k->clock) {
        double spent = k->clock(k->ud, k->times);
        k->failed |= spent < 0;
        return spent;
    }
    double t = cli_seconds();
    k->run(k->ud, k->times);
    return cli_seconds() - t;
}

/* Doubles the number of runs a sample until it is long enough; these runs are the warm-up too. */
static void calibrate(stats_case *k) {
    k->times = k->least > 1 ? k->least : 1;
    if (k->slow) return;
    double t = timed(k);
    if (t < sample_seconds) t = timed(k); /* the first run pays for page faults and sleeping threads */
    while (t < sample_seconds && !k->failed) {
        double grow = sample_seconds / (t > 1e-9 ? t : 1e-9) * 1.1;
        k->times = (int64_t)((double)k->times * (grow > 8 ? 8 : grow < 1.5 ? 1.5 : grow)) + 1;
        t = timed(k);
        double again = timed(k); /* the shorter one: a thread that lost its processor for a while looks slow */
        if (again < t) t = again;
    }
    k->once = t / (double)k->times;
}

static bool slow_wants_more(const stats_case *k, double seconds) {
    int n = k->result.samples;
    return n < 2 || (k->spent < seconds && n < MAX_SAMPLES);
}

/* All but the slow cases stay together to the last round, so that each has met the same hours of the machine. */
static bool another_round(const stats_case *cases, int n, double seconds, int round) {
    double spent = 0;
    int counted = 0;
    for (int i = 0; i < n; i++) {
        if (cases[i].failed) continue;
        if (cases[i].slow && slow_wants_more(&cases[i], seconds)) return true;
        if (cases[i].slow || cases[i].companion) continue;
        spent += cases[i].spent;
        counted++;
    }
    if (!counted) return round < MIN_ROUNDS;
    if (round < MIN_ROUNDS) return round < 2 || spent < 8 * seconds * counted;
    return round < MAX_SAMPLES && spent < seconds * counted;
}

static void rest(void) {
    struct timespec t = { .tv_nsec = 1000000 };
    nanosleep(&t, NULL);
}

/* A sample of a short run starts after one untimed run: the others have used the caches since its last. */
static void sample(stats_case *k) {
    if (k->clock) rest(); /* others' threads may still spin on the processors that this one needs */
    bool warm = !k->slow && !k->clock && k->once < 0.02;
    if (warm) k->run(k->ud, 1);
    int64_t before = mallocs_count();
    double start = cli_seconds(), t = timed(k);
    if (k->failed) return;
    k->allocations += mallocs_count() - before;
    k->result.runs += k->times;
    k->sample[k->result.samples++] = t / (double)k->times;
    k->spent += cli_seconds() - start;                     /* more than t where a clock of its own leaves out transfers */
    if (t < sample_seconds / 2 && !k->slow) k->times *= 2; /* calibrated while the machine was busy */
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Linear interpolation between the order statistics. */
static double quantile(const double *sorted, int n, double q) {
    double at = q * (n - 1);
    int i = (int)at;
    return i + 1 < n ? sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]) : sorted[i];
}

void stats_measure(stats_case *cases, int n, double seconds, progress *bar) {
    for (int i = 0; i < n; i++) {
        if (bar) progress_step(bar, i, cases[i].label);
        cases[i].sample = cli_alloc(MAX_SAMPLES * sizeof(double));
        cases[i].result = (stats){ 0 };
        cases[i].spent = 0;
        cases[i].allocations = 0;
        calibrate(&cases[i]);
    }
    double told = cli_seconds();
    for (int round = 0; another_round(cases, n, seconds, round); round++) {
        for (int i = 0; i < n; i++) {
            stats_case *k = &cases[i];
            if (k->failed || k->result.samples == MAX_SAMPLES) continue;
            if (k->slow && !slow_wants_more(k, seconds)) continue;
            sample(k);
            if (bar && cli_seconds() - told > 0.2) { /* between samples, never inside one */
                progress_step(bar, i, k->label);
                told = cli_seconds();
            }
        }
    }
    for (int i = 0; i < n; i++) {
        stats_case *k = &cases[i];
        int count = k->result.samples;
        if (!count || k->failed) {
            free(k->sample);
            k->sample = NULL;
            k->result = (stats){ 0 };
            continue;
        }
        qsort(k->sample, (size_t)count, sizeof(double), by_value);
        k->result.best = k->sample[0];
        k->result.median = quantile(k->sample, count, 0.5);
        k->result.p10 = quantile(k->sample, count, 0.1);
        k->result.p90 = quantile(k->sample, count, 0.9);
        k->result.mallocs = (double)k->allocations / (double)k->result.runs;
        free(k->sample);
        k->sample = NULL;
    }
}

rate stats_rate(const stats *s, double work) {
    return (rate){ s->median > 0 ? work / s->median * 1e-9 : 0, s->best > 0 ? work / s->best * 1e-9 : 0 };
}
