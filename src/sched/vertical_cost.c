/* vertical_cost.c - implementation of vertical_fusion.h: the larger of what arithmetic, memory and waiting take. */
#include "sched/vertical_fusion.h"
#include "loop/cluster_columns.h"
#include "loop/bind_rows.h"
#include "machine/parts.h"

#include <math.h>

/* Waiting for memory: once for every nest that reads any, and again for every further round of a thread block of threads, when
 * these have to do all of it. */
static double wait_ns(const kernel *k, int from, int to, double threads, const machine *m) {
    double sum = 0;
    for (int i = from; i < to; i++) {
        if (k->ins.at[i].op != K_LOOP) continue;
        int end = kernel_loop_end(k, i), j = i;
        double n = 1;
        bool reads = false;
        for (; k->ins.at[j].op == K_LOOP; j++) n *= (double)(k->ins.at[j].hi - k->ins.at[j].lo);
        for (; j < end; j++) reads |= k->ins.at[j].op == K_LOAD && k->bufs.at[k->ins.at[j].buf].kind != KB_LOCAL;
        if (reads) sum += part_fetch(m) * larger(1, n / threads);
        i = end;
    }
    return sum;
}

/* Bytes that memory moves for what it reads (LOAD: of that only what is looked up in tables) or writes in pieces of less than a
 * sector, which come one by one. */
static double bytes_in_pieces(const kernel *k, int from, int to, kop op) {
    enum { SECTOR = 32 };
    double sum = 0, times[64] = { 1 };
    int depth = 0;
    kvar fast = -1;
    for (int i = from; i < to; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && depth < 63)
            times[depth + 1] = times[depth] * (double)(in->hi - in->lo), depth++, fast = in->var;
        if (in->op == K_END) depth -= depth > 0;
        if (in->op != op || depth == 0 || kbuf_is_local(&k->bufs.at[in->buf]) || (op == K_LOAD && !in->dyn)) continue;
        double size = (double)dtype_size((tn_dtype)k->bufs.at[in->buf].dtype),
               piece = affine_coef(in->idx, fast) == 1 ? size * (double)k->vars.at[fast].extent : size;
        if (piece < SECTOR) sum += times[depth] * size * SECTOR / piece;
    }
    return sum;
}

double vertical_alone(const kernel *k, const target *t) {
    const machine *m = machine_row_of(t);
    double results = larger((double)k->bytes_written / 4, 1), flops = (double)k->flops, n = machine_units(t);
    double flat = smaller(part_sum(m, flops / results, false), m->long_sum_ns) + flops / (n * m->plain_flops);
    double tiled = flops / (m->tiled_flops * smaller(n, larger(results / 1024, 1)));
    double bytes =
        part_read(m, ((double)(k->bytes_read + k->bytes_written) + bytes_in_pieces(k, 1, k->ins.n, K_LOAD)) / n, n, 0, n);
    return m->after_ns + wait_ns(k, 1, k->ins.n, INFINITY, m) + larger(smaller(flat, tiled), bytes);
}

double vertical_among(const kernel *k, const target *t) {
    const machine *m = machine_row_of(t);
    return m->beside_ns + (double)k->flops / (machine_units(t) * m->beside_flops);
}

double vertical_inside(const kernel *k, const kernel *near, int shared, int64_t all_rows, int rows, const target *t) {
    row_contraction c;
    int from = 1 + shared, to = k->ins.n - shared;
    if (from < to && row_contraction_find(k, shared, from, &c) && c.end == to - 1)
        return recipe_columns_least_cost(&c, (double)all_rows, rows, t);
    const machine *m = machine_row_of(t);
    double n = machine_units(t), grid_blocks = (double)all_rows / rows, turns = grid_blocks / n < 1 ? 1 : grid_blocks / n;
    double work = loop_rows_cost(near, from, to, t->block_threads) * m->count_ns * rows;
    double each = row_common_bytes(k, shared, from, to) + 2 * bytes_in_pieces(near, from, to, K_STORE); /* read, too */
    double bytes = part_read(m, each, grid_blocks, turns, n);
    return part_barrier(m, t->block_threads) + wait_ns(near, from, to, t->block_threads, m) * rows +
           larger(turns * work, bytes);
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
    const machine *m = machine_row_of(t);
    return part_barrier(m, t->block_threads) + part_fetch(m) +
           rows * loop_rows_cost(k, from, to, t->block_threads) * m->count_ns;
}
