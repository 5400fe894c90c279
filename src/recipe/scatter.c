/* scatter.c - scatter-adds on GPUs: with few places every thread has sums of its own, else thread blocks own places; how many
 * threads and places a block has. In: scalar form. */
#include "loop/scatter.h"

#include "recipe/recipe.h"

enum { MANY = 1 << 14 /* adds: then fewer blocks look at all of them */, LEAST_WARP = 4, MOST_THREADS = 256 };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static const kins *add_of(const scatter *w) { return &w->k->ins.at[w->at]; }

/* As many blocks as fill the device; more make each of them look at all the indices. */
static void choose_owned(scatter *w, const target *t, int64_t outer) {
    int64_t last = w->columns ? w->k->ins.at[w->adds + w->columns].hi : 1, vectors;
    w->lanes = scatter_lanes(w), vectors = last / w->lanes;
    for (w->block_threads = w->warp;
         w->block_threads < vectors && w->block_threads * 2 <= MOST_THREADS && w->block_threads * 2 <= t->block_threads;)
        w->block_threads *= 2;
    while (w->block_threads > w->warp && vectors % w->block_threads) w->block_threads /= 2;
    w->width = least(last, (vectors % w->block_threads ? 4 : 1) * (int64_t)w->block_threads * w->lanes);
    w->blocks = gpu_pieces(last, w->width);
    int64_t grid_blocks = gpu_pieces(w->n_adds < MANY ? t->resident_threads : t->resident_threads / 4, w->block_threads);
    int64_t ranges = least(gpu_pieces(grid_blocks, outer * w->blocks), w->places);
    w->range = gpu_pieces(w->places, ranges);
}

/* More threads while their sums fit and each has enough to do; the places of a block are a multiple of its warps. */
static bool choose_private(scatter *w, const target *t) {
    int64_t size = (int64_t)dtype_size(dtype_reg((tn_dtype)add_of(w)->dtype)) * w->n_columns,
            room = least(MACHINE_PRIVATE_BYTES, t->shared_bytes - 16 * SCATTER_WARP);
    if (add_of(w)->mode != SCATTER_ADD || w->n_columns > SCATTER_MOST_COLUMNS) return false;
    w->block_threads = w->warp;
    while (w->block_threads * 2 <= least(t->block_threads, MOST_THREADS) && w->block_threads * 2 * w->places * size <= room &&
           w->n_adds >= 16 * (int64_t)w->block_threads)
        w->block_threads *= 2;
    int64_t warps = w->block_threads / w->warp, most = room / (size * w->block_threads) / warps * warps;
    if (most < 1) return false;
    w->range = gpu_pieces(gpu_pieces(w->places, gpu_pieces(w->places, most)), warps) * warps;
    return true;
}

bool recipe_scatter(recipe *r) {
    const target *t = r->t;
    scatter w;
    str why, step;
    str_init(&why, r->k->a);
    str_init(&step, r->k->a);
    if (!scatter_find(&w, r->k, &why)) return false;
    int64_t outer = 1;
    for (int i = 1; i <= w.n_outer; i++) outer *= r->k->ins.at[i].hi - r->k->ins.at[i].lo;
    w.warp = t->block_threads < SCATTER_WARP ? t->block_threads : SCATTER_WARP;
    if (w.warp < LEAST_WARP) return false;
    bool private = choose_private(&w, t);
    if (!private) choose_owned(&w, t, outer);
    str_addf(&step, "%s %d %lld", private ? "scatter_private" : "scatter_owned", w.block_threads, (long long)w.range);
    if (w.warp < SCATTER_WARP) str_addf(&step, " warp=%d", w.warp);
    if (!private && w.columns) str_addf(&step, " columns=%lld", (long long)w.width);
    if (!private && w.lanes > 1) str_addf(&step, " lanes=%d", w.lanes);
    recipe_do(r, "%s", step.s);
    return true;
}
