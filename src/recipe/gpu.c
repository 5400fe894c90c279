/* gpu.c - the schedule of a kernel for a GPU: which loops are bound to what.
 *
 * In: the scalar kernel. Out: a kernel with block_threads > 0. The cheapest form by a count of a thread's instructions is
 * taken; it depends on shapes and the target only. */
#include "loop/bind_rows.h"
#include "loop/gpu_bind.h"
#include "machine/parts.h"
#include "recipe/recipe.h"

#include <math.h>

enum { MAX_PRIVATE = 16 /* elements of a thread's own arrays */, MANY_VARS = 40, MOST_TILES = 24 /* that tuning tries */ };

static double trips(const kernel *k, int n) {
    double p = 1;
    for (int i = 0; i < n; i++) p *= (double)(k->ins.at[1 + i].hi - k->ins.at[1 + i].lo);
    return p;
}

static int64_t private_elems(const kernel *k) {
    int64_t n = 0;
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL) n += k->bufs.at[b].elems;
    return n;
}

static double waves(double threads, const target *t) {
    double w = threads / (double)t->resident_threads;
    return w < 1 ? 1 : w;
}

/* Shared memory limits the thread blocks of a multiprocessor: how many times too few threads they have to keep it busy. */
static double crowding(const kernel *k, int block_threads, const target *t) {
    double bytes = 1 + (double)recipe_local_bytes(k);
    double threads = fmax(1, floor(4 * (double)t->shared_bytes / bytes)) * block_threads;
    return threads < 1024 ? 1024 / threads : 1;
}

/* Vectors where nests are long enough, what a thread has of a row in its registers, and nothing twice. held: short rows, too,
 * are shared out in vectors. */
static void finish(recipe *r, bool held, bool in_shared, bool blocks) {
    int lanes = 16 / gpu_widest(r->k); /* the same in all: a thread has the same elements in all */
    while (!recipe_try(r, "vectorize_nests %d", lanes) && held && lanes > 2) lanes /= 2;
    recipe_try(r, "register_cache %d packed=%d%s", in_shared ? RECIPE_SHARED_TURNS : RECIPE_CACHED_TURNS,
               blocks ? 1 : RECIPE_CACHED_SHARE,
               in_shared ? " shared"
               : blocks  ? " early"
                         : "");
    recipe_try(r, "hoist");
    recipe_do(r, "dce");
}

static void put_in_order(recipe *r) {
    recipe_order(r);
    recipe_fuse_loops(r);
    r->k = gpu_compacted(r->k); /* as steps that bind loops will see it */
    if (r->k->vars.n > MANY_VARS) recipe_do(r, "reuse_variables");
}

int recipe_gpu_alternatives(const kernel *scalar, const target *t, const schedule *from, arena *a, recipe_alternative *out,
                            int cap) {
    const char *tiles[MOST_TILES];
    recipe first = recipe_make(kernel_clone(scalar, a), t);
    put_in_order(&first);
    int n = recipe_block_tiles(first.k, t, tiles, MOST_TILES), found = 0;
    for (int i = 0; i < n && found < cap; i++) {
        recipe r = recipe_make(kernel_clone(scalar, a), t);
        str why;
        str_init(&why, a);
        put_in_order(&r);
        recipe_do_all(&r, tiles[i]);
        finish(&r, false, false, false);
        if (schedule_same_bits(scalar, from, r.s, &why)) out[found++] = (recipe_alternative){ r.s, r.k };
    }
    return found;
}

/* The threads of a block for rows, 0: not so, and what that costs; or one thread an iteration. */
static int choose_threads(const kernel *k, int n, const target *t, double *best) {
    int threads = 0;
    double rows = trips(k, n);
    kvar fast = n ? k->ins.at[n].var : -1;
    const machine *m = machine_row_of(t);
    double lines = rows / m->warp / machine_units(t) * part_lines(m, loop_thread_lines(k, 1 + n, k->ins.n - n, fast));
    *best = fmax(waves(rows, t) * (loop_thread_cost(k, 1 + n, k->ins.n - n, fast) + 1), lines / m->count_ns) +
            recipe_start_cost(rows / 128, t);
    if (private_elems(k) > MAX_PRIVATE || n == 0) *best = INFINITY;
    /* More than usual where so few thread blocks have room beside each other that a processor would wait. */
    int most = t->block_threads;
    while (2 * most <= t->max_block_threads && crowding(k, most, t) > 1) most *= 2;
    for (int block_threads = t->block_threads < 32 ? t->block_threads : 32; block_threads <= most; block_threads *= 2) {
        /* few instructions may go through many lines: rows whose elements lie apart, such as sums of columns */
        double apart =
            rows / m->warp / machine_units(t) * part_lines(m, loop_rows_lines(k, 1 + n, k->ins.n - n, block_threads));
        double cost = fmax(waves(rows * block_threads * crowding(k, block_threads, t), t) *
                               (loop_rows_cost(k, 1 + n, k->ins.n - n, block_threads) + 8),
                           apart / m->count_ns) +
                      recipe_start_cost(rows, t);
        if (cost < *best) *best = cost, threads = block_threads;
    }
    return threads;
}

int recipe_threads_of_rows(const kernel *k, const target *t, double *cost) {
    *cost = INFINITY;
    return recipe_local_bytes(k) > t->shared_bytes ? 0 : choose_threads(k, gpu_outer_loops(k), t, cost);
}

static void bind_rows(recipe *r, int threads, int cluster, bool held, bool in_shared) {
    /* Much earlier than when the thread blocks at work are done is worse than not at all, a little earlier does no harm: as
     * many rows later as half of what may be at work. Two thread blocks whose rows lie in shared
     * memory load in turns: they need none. */
    int64_t ahead = held && !in_shared ? r->t->resident_threads / 2 / (threads * cluster) : 0;
    if (cluster > 1)
        recipe_do(r, "bind_rows %d cluster=%d prefetch=%lld", threads, cluster, (long long)ahead);
    else if (ahead)
        recipe_do(r, "bind_rows %d prefetch=%lld", threads, (long long)ahead);
    else
        recipe_do(r, "bind_rows %d", threads);
}

/* Running sums: 16 bytes for each thread of a row. */
static bool scan_rows(recipe *r) {
    int64_t n = 0, most = r->t->max_block_threads > r->t->block_threads ? r->t->max_block_threads : r->t->block_threads;
    if (!gpu_has_running_rows(r->k, &n)) return false;
    int64_t threads = n / (16 / gpu_widest(r->k));
    if (threads < 32) threads = 32;
    while (threads > most) threads /= 2;
    return recipe_try(r, "scan_rows %lld", (long long)threads);
}

kernel *recipe_gpu(kernel *k0, const target *t, const schedule **out) {
    recipe r = recipe_make(k0, t);
    put_in_order(&r);
    if (scan_rows(&r)) {
        if (out) *out = r.s;
        recipe_try(&r, "hoist");
        recipe_do(&r, "dce");
        return r.k;
    }
    kernel *k = r.k;
    int n = gpu_outer_loops(k), cluster = 1;
    recipe_form best = { 0 };
    bool scatter = recipe_scatter(&r), in_shared = false;
    int threads = scatter ? 0 : choose_threads(k, n, t, &best.cost);
    int held = threads ? recipe_row_threads(k, n, t, &cluster, &in_shared) : 0;
    bool blocks = held && recipe_row_blocks(k, n);
    if (!scatter) { /* each is taken if it costs less than those before */
        recipe_thread_columns(k, t, &best);
        recipe_cluster_columns(k, t, &best);
        recipe_block_tile(k, t, &best);
        recipe_tensorize(k, t, &best);
        recipe_reduce_columns(k, t, &best);
        recipe_form tiles = { .cost = best.cost + recipe_attention_start(t) / machine_row_of(t)->count_ns };
        if (recipe_attention(k, t, &tiles) || recipe_short_rows(k, t, &tiles))
            best = tiles;
        else
            recipe_row_sums(k, t, &best);
    }
    if (out) *out = r.s;
    if (best.steps)
        recipe_do_all(&r, best.steps);
    else if (scatter)
        ;
    else if (threads && !held && recipe_dot_rows(&r))
        ;
    else if (!recipe_transpose_tile(&r) && threads)
        bind_rows(&r, held ? held : threads, cluster, held > 0, in_shared);
    else if (!r.k->block_threads)
        recipe_map(&r);
    finish(&r, held > 0, in_shared, blocks);
    return r.k;
}
