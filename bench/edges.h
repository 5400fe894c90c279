/* edges.h - the sizes of caches, from a curve of latencies by footprint. */
#ifndef TENON_CLI_EDGES_H
#define TENON_CLI_EDGES_H

enum { EDGES_DOUBLING = 8, EDGES_MAX_POINTS = 256, EDGES_PASSES = 3 };

typedef struct curve {
    int n;
    double bytes[EDGES_MAX_POINTS], ns[EDGES_MAX_POINTS]; /* EDGES_DOUBLING points to a doubling; ns is for curve_smooth */
    double passes[EDGES_MAX_POINTS][EDGES_PASSES];        /* each at another time and in other pages */
} curve;

/* Sets ns to the quietest pass, without dips. */
void curve_smooth(curve *k);
/* The next place from point `from` on where the latency climbs from one plateau to the next: the footprint at half the way up,
 * which is the cache's size whether its lines are well spread (then the step is sharp) or not. Returns the point where the next
 * plateau begins, or n (then there is no further cache, and *out_bytes is left alone). */
int curve_edge(const curve *k, int from, double *out_bytes);

#endif
