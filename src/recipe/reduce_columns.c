/* reduce_columns.c - sums of columns on GPUs: how many columns and rows the threads of a block share, and which value is laid
 * out in panels. In: scalar form.
 *
 * Where a thread block has so few columns that what it reads of a row is no whole line of memory, and the value is fixed, it is
 * laid out in panels of those columns: lines are read whole, by one block. On an H200 36 products of a vector and a matrix of
 * 1024 x 1024 took 60 us before that, at 2.5 TB/s, and 36 after, at 4.2.
 *
 * Short numbers from memory are read 16 bytes at once by threads that stand side by side along a line of memory, or half of
 * one, and what a row computes is shared by 8 columns. On an H200 the sums of columns of a GPT-2's gradients, over 32 x 1024
 * rows, read 3.7 TB/s; with 2 columns a thread, and loads between divisions, it was 1.3.
 *
 * A product that multiplies by the same matrix, as dW beside the gradient of a bias, has it in shared memory. To sum it there
 * is no gain: 768 x 3072 by 32768 rows and the sums took 317 and 97 us apart; where the thread blocks of the first rows summed
 * each K block, 428 together behind its products, and 498 between them. */
#include "loop/reduce_columns.h"

#include "loop/bind_rows.h"
#include "recipe/recipe.h"

#include <math.h>

enum {
    UNROLL = 8,
    LEAST_WIDE = 8 /* columns of a thread block */,
    MANY_ROWS = 8 /* of a thread */,
    UNDER_WAY = 32 /* words of a thread that come at once, where there are few threads or a row's work has branches */,
    BRANCHES = 4 /* operations, of an op that takes branches: divisions, roots */,
    FEW_BLOCKS = 8 /* thread blocks are few if multiprocessors are that many times more */,
    LEAST_PANELS = 32 << 10 /* bytes */,
    MOST_THREADS = 256
};

/* What is read along the columns: bytes of the shortest number, elements of the largest buffer, bytes of a column in a row;
 * whether any number has more than 4 bytes, and what is computed has branches. */
typedef struct reads {
    int64_t shortest, elems, bytes, again; /* again: of bytes, those that all outer rows read */
    bool doubles, branches;
} reads;

static reads find_reads(const column *w) {
    reads r = { .shortest = 8 };
    for (int i = w->loops; i < w->end; i++) {
        const kins *in = column_at(w, i);
        r.branches |= in->op == K_ALU && op_get((op_code)in->alu)->flops >= BRANCHES;
        if (in->op != K_LOAD) continue;
        int64_t size = (int64_t)dtype_size((tn_dtype)in->src), elems = w->k->bufs.at[in->buf].elems;
        r.doubles |= size > 4;
        if (affine_coef(in->idx, w->v) != 1) continue;
        r.bytes += size;
        bool own = false;
        for (int d = 1; d < w->n_outer; d++) own |= affine_coef(in->idx, column_at(w, d)->var) != 0;
        if (!own) r.again += size;
        if (size < r.shortest) r.shortest = size;
        if (elems > r.elems) r.elems = elems;
    }
    return r;
}

/* The load of a fixed value that is read less than a line at a time; 0: there is none. */
static int choose_panels(const column *w) {
    for (int i = w->loops; i < w->end; i++) {
        if (!column_takes_panels(w, i)) continue;
        const kbuf *b = &w->k->bufs.at[column_at(w, i)->buf];
        int64_t size = (int64_t)dtype_size((tn_dtype)b->dtype);
        if (b->elems * size >= LEAST_PANELS && w->columns * size < MACHINE_GPU_LINE_BYTES) return i;
    }
    return 0;
}

/* As wide as leaves a thread block for every processor; the rest of the threads share the rows. */
static double choose_shape(column *w, const reads *r, const target *t) {
    double cores = machine_units(t), steps = 1, others = 1;
    int64_t n = w->k->vars.at[w->v].extent, line = MACHINE_GPU_LINE_BYTES / r->shortest, least = LEAST_WIDE;
    bool wide = r->shortest < 4 && 8 * r->elems * r->shortest > t->l2_bytes; /* short numbers from memory: a line, or half */
    int block_threads = t->block_threads < MOST_THREADS ? t->block_threads : MOST_THREADS, most = r->doubles             ? 2
                                                                                                  : wide && w->n_acc < 3 ? 8
                                                                                                                         : 4;
    while (most > 1 && !column_lanes(w, most)) most /= 2;
    for (int i = 0; i < w->n_loops; i++) {
        steps *= (double)column_trips(column_at(w, w->loops + i));
        if (column_trips(column_at(w, w->loops + i)) > column_trips(column_at(w, w->loops + w->split))) w->split = i;
    }
    for (int i = 1; i < w->n_outer; i++) others *= (double)column_trips(column_at(w, i));
    if (wide) least = FEW_BLOCKS * others * (double)((n + line - 1) / line) < cores ? line / 2 : line;
    int64_t rows = column_trips(column_at(w, w->loops + w->split));
    int lanes = most < 2 || rows < MANY_ROWS * block_threads / 4 ? 1 : wide ? most : 2; /* where a block has few columns */
    for (w->lanes = most, w->across = 32; w->lanes * w->across > least;
         *(w->across > least || w->lanes <= lanes ? &w->across : &w->lanes) /= 2) {
        int64_t columns = (int64_t)w->lanes * w->across;
        if (others * (double)((n + columns - 1) / columns) >= 1.5 * cores && w->across <= block_threads) break;
    }
    while (w->across > block_threads) w->across /= 2;
    w->columns = (int64_t)w->lanes * w->across;
    for (w->down = 1; w->down * 2 * w->across <= block_threads && w->down < rows;) w->down *= 2;
    double grid_blocks = others * (double)((n + w->columns - 1) / w->columns), threads = (double)(w->down * w->across),
           waves = grid_blocks * threads / (double)t->resident_threads,
           thread = steps / (double)w->down * loop_thread_cost(w->k, w->loops + w->n_loops, w->end - w->n_loops + 1, w->v) +
                    w->n_acc * (2 * (double)w->down + 12) + 12;
    w->grid_blocks = (int64_t)grid_blocks;
    /* What all outer rows read comes from the first level, at half its rate: a product of 768 x 128 x 512 takes 14.8 us, by
     * tiles 11.3. */
    const machine *m = machine_row_of(t);
    double again = grid_blocks * steps * (double)(w->columns * r->again) / cores / (m->level[LEVEL_L1].read / 2) / m->count_ns,
           own = (waves < 1 ? 1 : waves) * thread * (w->lanes > 1 ? 0.6 * w->lanes : 1);
    return fmax(own, again) + recipe_start_cost(grid_blocks, t);
}

bool recipe_reduce_columns(const kernel *k, const target *t, recipe_form *best) {
    column w;
    str why, steps;
    str_init(&why, k->a);
    str_init(&steps, k->a);
    if (!column_find(&w, k, &why)) return false;
    reads r = find_reads(&w);
    double cost = choose_shape(&w, &r, t);
    int64_t bytes = 0;
    for (int i = 0; i < w.n_acc; i++)
        bytes += w.down * w.columns * (int64_t)dtype_size((tn_dtype)column_at(&w, w.acc[i])->dtype);
    if (!(cost < best->cost) || w.down < 2 || bytes > t->shared_bytes) return false;
    bool few = w.grid_blocks * w.down * w.across * 2 <= t->resident_threads; /* threads, which wait for memory */
    int panels = t->no_panels == PANELS_NEVER ? 0 : choose_panels(&w),
        unroll = few && w.lanes < 8 ? UNDER_WAY / w.lanes : UNROLL, ahead = 1;
    int64_t rows = column_trips(column_at(&w, w.loops + w.split)) / w.down;
    while (r.branches && 2 * ahead * r.bytes * w.lanes <= 4 * UNDER_WAY && 2 * ahead <= rows && ahead < 8) ahead *= 2;
    str_addf(&steps, "reduce_columns %s %d %s %lld unroll=%d", k->vars.at[w.v].name, w.across,
             k->vars.at[column_at(&w, w.loops + w.split)->var].name, (long long)w.down, ahead > 1 ? 1 : unroll);
    if (w.lanes > 1) str_addf(&steps, " lanes=%d", w.lanes);
    if (ahead > 1) str_addf(&steps, " ahead=%d", ahead);
    if (panels) str_addf(&steps, " panels=%d", column_at(&w, panels)->buf);
    *best = (recipe_form){ cost, steps.s };
    return true;
}
