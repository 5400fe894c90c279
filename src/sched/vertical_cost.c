/* vertical_cost.c - implementation of vertical_fusion.h: the larger of what arithmetic, memory and waiting take. */
#include "sched/vertical_fusion.h"
#include "loop/cluster_columns.h"
#include "loop/bind_rows.h"

#include <math.h>

#define BARRIER_NS 60.0   /* threads of a thread block meet, and what they wrote is read again */
#define FETCH_NS 300.0    /* memory comes */
#define STEP_NS 3.0       /* a step of a sum that waits for the one before */
#define FLOPS_PLAIN 60.0  /* a nanosecond and multiprocessor: operands from memory; */
#define FLOPS_TILED 300.0 /* in tiles of registers */
#define FLOPS_AMONG 75.0  /* where several kernels run at a time, */
#define NEXT_NS 250.0     /* each of which takes this at least */
#define BYTES_ALL 40.0    /* a nanosecond and multiprocessor, when all of them read, */
#define BYTES_ONE 100.0   /* when one does */

static double units(const target *t) { return t->resident_threads > 1024 ? (double)t->resident_threads / 1024 : 1; }
static double larger(double x, double y) { return x > y ? x : y; }
static double smaller(double x, double y) { return x < y ? x : y; }

/* Waiting for memory: once for every nest that reads any, and again for every further round of a thread block of threads, when
 * these have to do all of it. */
static double wait_ns(const kernel *k, int from, int to, double threads) {
    double sum = 0;
    for (int i = from; i < to; i++) {
        if (k->ins.at[i].op != K_LOOP) continue;
        int end = kernel_loop_end(k, i), j = i;
        double n = 1;
        bool reads = false;
        for (; k->ins.at[j].op == K_LOOP; j++) n *= (double)(k->ins.at[j].hi - k->ins.at[j].lo);
        for (; j < end; j++) reads |= k->ins.at[j].op == K_LOAD && k->bufs.at[k->ins.at[j].buf].kind != KB_LOCAL;
        if (reads) sum += FETCH_NS * larger(1, n / threads);
        i = end;
    }
    return sum;
}

double vertical_alone(const kernel *k, const target *t) {
    double results = larger((double)k->bytes_written / 4, 1), flops = (double)k->flops, n = units(t);
    double flat = smaller(flops / results * STEP_NS, 500) + flops / (n * FLOPS_PLAIN);
    double tiled = flops / (FLOPS_TILED * smaller(n, larger(results / 1024, 1)));
    double bytes = (double)(k->bytes_read + k->bytes_written) / (BYTES_ALL * n);
    return GPU_LAUNCH_NS + wait_ns(k, 1, k->ins.n, INFINITY) + larger(smaller(flat, tiled), bytes);
}

double vertical_among(const kernel *k, const target *t) { return NEXT_NS + (double)k->flops / (units(t) * FLOPS_AMONG); }

double vertical_inside(const kernel *k, int shared, int64_t all_rows, int rows, const target *t) {
    row_contraction c;
    int from = 1 + shared, to = k->ins.n - shared;
    if (from < to && row_contraction_find(k, shared, from, &c) && c.end == to - 1)
        return recipe_columns_least_cost(&c, (double)all_rows, rows, t);
    double n = units(t), grid_blocks = (double)all_rows / rows, turns = grid_blocks / n < 1 ? 1 : grid_blocks / n;
    double work = loop_rows_cost(k, from, to, t->block_threads) * RECIPE_UNIT_NS * rows;
    double common = row_common_bytes(k, shared, from, to),
           bytes = larger(turns * common / BYTES_ONE, grid_blocks * common / (BYTES_ALL * n));
    return BARRIER_NS + wait_ns(k, from, to, t->block_threads) * rows + larger(turns * work, bytes);
}

double vertical_clustered(const kernel *k, int shared, int64_t all_rows, const target *t, row_contraction *out) {
    int from = 1 + shared, to = k->ins.n - shared;
    *out = (row_contraction){ .n = 0 };
    if (t->cluster < 2 || t->clusters < 1 || shared > 1 || all_rows < 1) return INFINITY;
    if (from < to && row_contraction_find(k, shared, from, out) && out->end == to - 1)
        return cluster_takes(k, shared, out) ? 0 : INFINITY;
    *out = (row_contraction){ .n = 0 };
    for (int i = from; i < to; i++)
        if (k->ins.at[i].op == K_SCATTER) return INFINITY;
    double rows = larger(1, (double)all_rows / (8 * t->clusters));
    return BARRIER_NS + FETCH_NS + rows * loop_rows_cost(k, from, to, t->block_threads) * RECIPE_UNIT_NS;
}
