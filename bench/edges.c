/* edges.c - the sizes of caches, from a curve of latencies by footprint: in, points with a few samples each; out, where the
 * curve steps up. Pure. */
#include "edges.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}
static double rank_of(double *x, int n, int at) {
    qsort(x, (size_t)n, sizeof *x, ascending);
    return x[at];
}

/* Latencies never fall as footprints grow: neighbours that say so share their mean (isotonic regression). */
void curve_smooth(curve *k) {
    double middle[EDGES_MAX_POINTS], sum[EDGES_MAX_POINTS];
    int width[EDGES_MAX_POINTS], n = 0;
    for (int i = 0; i < k->n; i++) middle[i] = rank_of(k->passes[i], EDGES_PASSES, 0);
    for (int i = 0; i < k->n; i++) {
        double near[] = { middle[i > 0 ? i - 1 : 0], middle[i], middle[i + 1 < k->n ? i + 1 : i] };
        sum[n] = log(rank_of(near, 3, 1)), width[n++] = 1;
        for (; n > 1 && sum[n - 2] / width[n - 2] > sum[n - 1] / width[n - 1]; n--)
            sum[n - 2] += sum[n - 1], width[n - 2] += width[n - 1];
    }
    for (int g = 0, i = 0; g < n; g++)
        for (int w = 0; w < width[g]; w++) k->ns[i++] = exp(sum[g] / width[g]);
}

/* A climb ends in an octave that adds less than a fifth or so, and may go on later by less than a level does (no level is less
 * than twice as far as the one before it; neighbours that use a shared cache and misses in the TLB round what was sharp): then
 * the plateau is where it ends, not where it rests. */
int curve_edge(const curve *k, int from, double *out_bytes) {
    const double CLIMBS = 1.3, RESTS = 1.22, LEVEL = 1.6;
    int up, end = from;
    do {
        from = up = end;
        while (up < k->n && k->ns[up] <= CLIMBS * k->ns[from]) up++;
        if (up >= k->n) return k->n;
        for (end = up; end + EDGES_DOUBLING < k->n && k->ns[end + EDGES_DOUBLING] > RESTS * k->ns[end];) end++;
    } while (k->ns[end] < LEVEL * k->ns[from]);
    double half = (k->ns[from] + k->ns[end]) / 2;
    int at = up;
    while (at > from + 1 && k->ns[at - 1] > half) at--;
    while (at < end && k->ns[at] <= half) at++;
    double part = (half - k->ns[at - 1]) / fmax(k->ns[at] - k->ns[at - 1], 1e-9);
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    *out_bytes = k->bytes[at - 1] * pow(k->bytes[at] / k->bytes[at - 1], part);
    return end;
}
