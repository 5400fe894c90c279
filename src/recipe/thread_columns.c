/* thread_columns.c - rows with contractions inside on GPUs: how many threads and rows a block has, and how many threads share a
 * sum. In: scalar form whose rows are its outer loops. */
#include <math.h>

#include "loop/bind_rows.h"
#include "loop/gpu_bind.h"
#include "machine/parts.h"
#include "recipe/columns.h"

/* ---- what they cost ---- */

static double up(double x) { return (double)(int64_t)(x + 0.999999); }

/* Nanoseconds of the nest for so many thread blocks with `rows` rows each, split_k threads a sum. */
static double columns_cost(const row_contraction *c, double grid_blocks, int rows, int block_threads, int split_k,
                           const target *t) {
    const machine *m = machine_row_of(t);
    double n = machine_units(t), turns = up(grid_blocks / n), products = (double)c->n * (double)c->depth;
    double rounds = up((double)c->n * split_k / block_threads), steps = up((double)c->depth / split_k);
    bool pads = rounds * block_threads != (double)c->n * split_k;
    double wait = rounds * rows * (part_sum(m, steps, pads) + part_exchange(m, split_k)) + part_barrier(m, block_threads);
    if (rounds > 1 || steps > ROW_WHOLE)
        wait += rounds * (steps > ROW_WHOLE ? steps / ROW_K_BLOCK * m->follow_ns : part_fetch(m));
    double lines = part_lines(m, products / m->warp * row_lines(c->apart, split_k)), work = 2 * products * rows / m->row_flops;
    return larger(wait * up(turns / 8) + turns * larger(lines, work), part_read(m, c->common, grid_blocks, turns, n));
}

double recipe_columns_least_cost(const row_contraction *c, double all_rows, int rows, const target *t) {
    double best = 1e30;
    for (int block_threads = t->block_threads < 32 ? t->block_threads : 32; block_threads <= t->block_threads;
         block_threads *= 2)
        for (int split_k = 1; split_k <= 32 && split_k <= block_threads; split_k *= 2) {
            double cost = columns_cost(c, all_rows / rows, rows, block_threads, split_k, t);
            if (cost < best) best = cost;
        }
    return best;
}

/* ---- the shape ---- */

double recipe_rest_cost(const kernel *k, int n_rows, const row_layers *l, int block_threads) {
    double sum = 0;
    int from = 1 + n_rows;
    for (int i = 0; i < l->sections.n; i++) {
        sum += loop_rows_cost(k, from, l->sections.at[i].loop, block_threads);
        from = l->sections.at[i].end + 1;
    }
    return sum + loop_rows_cost(k, from, k->ins.n - n_rows, block_threads);
}

bool recipe_thread_columns(const kernel *k, const target *t, recipe_form *out) {
    int n_rows = gpu_outer_loops(k), best_rows = 1, best_block_threads = 0, best_parts = 1;
    row_layers l = { 0 };
    for (int i = 0; i < n_rows; i++)
        if (k->ins.at[1 + i].hi < 1 || k->ins.at[1 + i].lo) return false;
    row_layers_find(k, n_rows, &l);
    if (!l.c.n) return false;
    double all_rows = 1, n = machine_units(t), count_ns = machine_row_of(t)->count_ns,
           best = l.c.n > 1 ? INFINITY : out->cost * count_ns;
    int64_t last = 1;
    for (int i = 0; i < n_rows; i++) all_rows *= (double)(last = k->ins.at[1 + i].hi);
    for (int rows = 1; rows <= ROW_MOST_ROWS; rows *= 2) {
        if (rows > 1 && (n_rows == 0 || last % rows || !row_layers_are_free(k, n_rows, &l))) break;
        for (int block_threads = t->block_threads < 32 ? t->block_threads : 32; block_threads <= t->block_threads;
             block_threads *= 2) {
            if (recipe_local_bytes(k) * rows + 16 * block_threads > t->shared_bytes) continue;
            double grid_blocks = all_rows / rows,
                   rest = recipe_rest_cost(k, n_rows, &l, block_threads) * count_ns * rows * up(up(grid_blocks / n) / 4);
            for (int split_k = 1; split_k <= 32 && split_k <= block_threads; split_k *= 2) {
                double cost = rest;
                for (int i = 0; i < l.sections.n; i++)
                    for (int j = 0; j < l.sections.at[i].n; j++)
                        cost += (double)l.sections.at[i].times *
                                columns_cost(&l.c.at[l.sections.at[i].first + j], grid_blocks, rows, block_threads, split_k, t);
                if (cost < best) best = cost, best_rows = rows, best_block_threads = block_threads, best_parts = split_k;
            }
        }
    }
    if (!best_block_threads) return false;
    str steps;
    str_init(&steps, k->a);
    str_addf(&steps, "thread_columns %d", best_block_threads);
    if (best_rows > 1) str_addf(&steps, " rows=%d", best_rows);
    if (best_parts > 1) str_addf(&steps, " split_k=%d", best_parts);
    *out = (recipe_form){ best / count_ns, steps.s };
    return true;
}
