/* reduce_columns.c - sums of columns on GPUs: how many columns and rows the threads of a block share, and which value is laid
 * out in panels. In: scalar form.
 *
 * Where a thread block has so few columns that what it reads of a row is no whole line of memory, and the value is fixed, it is
 * laid out in panels of those columns: lines are read whole, by one block. On an H200 36 products of a vector and a matrix of
 * 1024 x 1024 took 60 us before that, at 2.5 TB/s, and 36 after, at 4.2. */
#include "loop/reduce_columns.h"

#include "loop/bind_rows.h"
#include "recipe/recipe.h"

enum {
    UNROLL = 8,
    LEAST_WIDE = 8 /* columns of a thread block */,
    MANY_ROWS = 8 /* of a thread */,
    UNDER_WAY = 32 /* words of a thread that come at once, where there are few threads */,
    LEAST_PANELS = 32 << 10 /* bytes */,
    MOST_THREADS = 256
};

static int lanes_along(const column *w) {
    int size = 4;
    for (int i = w->loops; i < w->end; i++)
        if (column_at(w, i)->op == K_LOAD && dtype_size((tn_dtype)column_at(w, i)->src) > 4) size = 8;
    int lanes = 16 / size;
    while (lanes > 1 && !column_lanes(w, lanes)) lanes /= 2;
    return lanes;
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

/* Columns that a thread block has at least: two sectors of a row of short numbers, where most of them come from memory. */
static int64_t least_columns(const column *w, const target *t) {
    int64_t size = 8, elems = 0;
    for (int i = w->loops; i < w->end; i++) {
        const kins *in = column_at(w, i);
        if (in->op != K_LOAD || affine_coef(in->idx, w->v) != 1) continue;
        if ((int64_t)dtype_size((tn_dtype)in->src) < size) size = (int64_t)dtype_size((tn_dtype)in->src);
        if (w->k->bufs.at[in->buf].elems > elems) elems = w->k->bufs.at[in->buf].elems;
    }
    return size < 4 && 4 * elems * size > t->l2_bytes ? 2 * MACHINE_SECTOR_BYTES / size : LEAST_WIDE;
}

/* As wide as leaves a thread block for every processor; the rest of the threads share the rows. */
static double choose_shape(column *w, const target *t) {
    double cores = machine_units(t), steps = 1, others = 1;
    int most = lanes_along(w), block_threads = t->block_threads < MOST_THREADS ? t->block_threads : MOST_THREADS;
    for (int i = 0; i < w->n_loops; i++) {
        steps *= (double)column_trips(column_at(w, w->loops + i));
        if (column_trips(column_at(w, w->loops + i)) > column_trips(column_at(w, w->loops + w->split))) w->split = i;
    }
    for (int i = 1; i < w->n_outer; i++) others *= (double)column_trips(column_at(w, i));
    int64_t rows = column_trips(column_at(w, w->loops + w->split)), n = w->k->vars.at[w->v].extent;
    int lanes = most > 1 && rows >= MANY_ROWS * block_threads / 4 ? 2 : 1; /* where a block has few columns */
    int64_t least = least_columns(w, t);
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
    return (waves < 1 ? 1 : waves) * thread * (w->lanes > 1 ? 0.6 * w->lanes : 1) + recipe_start_cost(grid_blocks, t);
}

bool recipe_reduce_columns(const kernel *k, const target *t, recipe_form *best) {
    column w;
    str why, steps;
    str_init(&why, k->a);
    str_init(&steps, k->a);
    if (!column_find(&w, k, &why)) return false;
    double cost = choose_shape(&w, t);
    int64_t bytes = 0;
    for (int i = 0; i < w.n_acc; i++)
        bytes += w.down * w.columns * (int64_t)dtype_size((tn_dtype)column_at(&w, w.acc[i])->dtype);
    if (!(cost < best->cost) || w.down < 2 || bytes > t->shared_bytes) return false;
    bool few = w.grid_blocks * w.down * w.across * 2 <= t->resident_threads; /* threads, which wait for memory */
    int panels = choose_panels(&w);
    str_addf(&steps, "reduce_columns %s %d %s %lld unroll=%d", k->vars.at[w.v].name, w.across,
             k->vars.at[column_at(&w, w.loops + w.split)->var].name, (long long)w.down, few ? UNDER_WAY / w.lanes : UNROLL);
    if (w.lanes > 1) str_addf(&steps, " lanes=%d", w.lanes);
    if (panels) str_addf(&steps, " panels=%d", column_at(&w, panels)->buf);
    *best = (recipe_form){ cost, steps.s };
    return true;
}
