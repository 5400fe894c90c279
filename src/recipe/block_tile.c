/* block_tile.c - GEMM on GPUs: which tile of a contraction a thread block has, which a thread, how long a K block is, whether
 * it is double-buffered, and how many threads share a sum (split-K). In: scalar form. */
#include "loop/block_tile.h"

#include <math.h>

#include "machine/parts.h"
#include "recipe/recipe.h"

typedef struct candidate {
    tile_shape s;
    int64_t steps; /* asked for a K block */
    int64_t bytes;
    double cost;
} candidate;

typedef struct search {
    tiler w;
    const target *t;
    candidate best;
} search;

bool recipe_tile_rows(tiler *w, bool *const needed[2]) {
    double best[2] = { 0, 0 };
    kvar v[2] = { -1, -1 };
    for (int i = 1; i <= w->n_outer; i++) {
        kvar u = tiler_at(w, i)->var;
        bool a = gpu_any_uses(w->k, needed[0], u), b = gpu_any_uses(w->k, needed[1], u);
        double score = (double)(tiler_extent(w, u) < 128 ? tiler_extent(w, u) : 128) * (tiler_stores_along(w, u) ? 2 : 1);
        if (a != b && score > best[b]) best[b] = score, v[b] = u;
    }
    if (v[0] < 0 || v[1] < 0) return false;
    tiler_take_rows(w, v, needed);
    return true;
}

double recipe_tile_depth(const tiler *w) {
    double n = 1;
    for (int i = 0; i < w->n_loops; i++) n *= (double)tiler_extent(w, tiler_at(w, w->loops + i)->var);
    return n;
}

double recipe_tile_blocks(const tiler *w, double rows, double columns) {
    double n = 1;
    for (int i = 1; i <= w->n_outer; i++) {
        kvar v = tiler_at(w, i)->var;
        if (v != w->side[0].row && v != w->side[1].row) n *= (double)tiler_extent(w, v);
    }
    return n * ceil((double)tiler_extent(w, w->side[0].row) / rows) * ceil((double)tiler_extent(w, w->side[1].row) / columns);
}

/* Cycles of a processor that holds several thread blocks at once, times how often it is filled, in units of 6: about an
 * instruction of a thread where all are busy. A step of the contraction is bound by what the arithmetic, the shared memory or a
 * single thread can do. */
static double cost_of(const search *c, const candidate *x, double size) {
    const tiler *w = &c->w;
    const tile_shape *s = &x->s;
    bool double_buffer = tiler_can_double(s);
    const machine *m = machine_row_of(c->t);
    double bm = s->t[0] * s->n[0], bn = s->t[1] * s->n[1], threads = s->n[0] * s->n[1] * s->split_k, all = recipe_tile_depth(w);
    double grid_blocks = recipe_tile_blocks(w, bm, bn), warps = ceil(threads / m->warp), tile = s->t[0] * s->t[1],
           steps = (double)s->b.steps / s->split_k, loads = ceil(s->t[0] * size / 16) + ceil(s->t[1] * size / 16),
           bytes = fmax(bm * size, MACHINE_SECTOR_BYTES) + fmax(bn * size, MACHINE_SECTOR_BYTES),
           cores = floor(machine_units(c->t)), latency = part_fetch(m) * m->ghz, barrier = part_barrier(m, threads) * m->ghz;
    double room = fmin((double)m->registers / ((tile * size / 4 + 64) * threads), fmin(m->threads / threads, m->blocks));
    room = fmax(1, floor(fmin(room, 4 * (double)c->t->shared_bytes / (double)x->bytes)));
    double at_once = fmin(room, ceil(grid_blocks / cores)), busy = at_once * warps, fill = ceil(grid_blocks / (cores * room));
    double vectors = ceil((double)s->b.steps * bytes / (threads * 16)),
           registers = (tile * size / 4 + (double_buffer ? 4 * vectors : 0) + (s->t[0] + s->t[1]) * size / 2),
           full = registers > (tile * size / 4 > 80 ? 200 : 120) ? 1.06 : 1;
    double step = fmax(busy * (tile * size / 16 + 1.2 * loads + 1.5), tile * size / 4 * 1.1 + 6 * loads) * full,
           work = steps * step * (steps > 16 ? 1.08 : 1), from_memory = at_once * (double)s->b.steps * bytes / m->tile_bytes,
           copies = 0.3 * from_memory + busy * 4 * vectors;
    if (!s->b.powers) copies *= 4;
    double wait = fmax(0, latency - (double_buffer ? work : 0)),
           each = fmax(work, from_memory) + copies + (at_once < 2 ? 3.1 : 2.2) * barrier + wait / at_once;
    if (s->split_k > 1 && grid_blocks >= 2 * cores) return INFINITY; /* for results that are too few for all processors */
    double behind = at_once * bm * bn * size / 32 + (s->split_k > 1 ? 300 + at_once * bm * bn * size * s->split_k / 64 : 0);
    return (fill * (ceil(all / (double)s->b.steps) * each + behind) + 1200) / 6 + recipe_start_cost(grid_blocks, c->t);
}

/* Threads of a block whose parts of sums lie where K blocks did (split_k.c), where no processor has two such blocks. (An H200,
 * 768 x 128 by 512, 96 blocks: 128 threads and 2 a sum 6.9 us, 256 and 8 a sum 6.3; 384 cubed, 144 blocks of 128, 7.5 and 8.3.)
 */
enum { LEAST_OVER = 256, MOST_OVER = 8 /* a sum */ };

static bool complete_shape(const search *c, candidate *x, int64_t size) {
    const tile_shape *s = &x->s;
    int64_t rows[2] = { (int64_t)s->t[0] * s->n[0], (int64_t)s->t[1] * s->n[1] };
    for (int i = 0; i < 2; i++)
        if (rows[i] > 8 && rows[i] >= 2 * tiler_extent(&c->w, c->w.side[i].row)) return false;
    x->bytes = (tiler_can_double(s) ? 2 : 1) * s->b.steps * (rows[0] + rows[1] + 2 * (16 / size)) * size;
    int64_t parts = s->split_k > 1 ? s->split_k * rows[0] * rows[1] * size : 0;
    bool over = parts && c->t->shared_most && s->split_k <= MOST_OVER && s->n[0] * s->n[1] * s->split_k >= LEAST_OVER &&
                recipe_tile_blocks(&c->w, (double)rows[0], (double)rows[1]) <= machine_units(c->t);
    x->bytes = over && parts < x->bytes ? x->bytes : x->bytes + parts;
    return x->bytes <= c->t->shared_bytes && tiler_problem(s) == TILE_FITS;
}

static int64_t size_of(const tiler *w) { return (int64_t)dtype_size((tn_dtype)tiler_at(w, w->acc)->dtype); }

static bool is_possible(const search *c, candidate *x) {
    const tile_shape *s = &x->s;
    int threads = s->n[0] * s->n[1] * s->split_k, least = c->t->block_threads < 64 ? c->t->block_threads : 64;
    return s->t[0] * s->t[1] <= MAX_TILE && threads >= least && threads <= c->t->block_threads &&
           complete_shape(c, x, size_of(&c->w));
}

/* Every shape that is possible, with its cost. */
static void each_shape(search *c, void (*see)(search *c, const candidate *x, void *ud), void *ud) {
    for (int64_t steps = 8; steps <= 256; steps *= 2) {
        k_block b = tiler_block(&c->w, steps);
        for (int tile = 0; tile < 25; tile++)
            for (int place = 0; place < 6 * 6 * 5; place++) {
                candidate x = { .s = { .t = { 1 << tile % 5, 1 << tile / 5 }, .b = b }, .steps = steps };
                x.s.n[0] = 1 << place % 6, x.s.n[1] = 1 << place / 6 % 6, x.s.split_k = 1 << place / 36;
                if (!is_possible(c, &x)) continue;
                x.cost = cost_of(c, &x, (double)size_of(&c->w));
                see(c, &x, ud);
            }
    }
}

/* Of equals the last one, which has more columns: rows of memory are wider. But no more than 8 of a thread: on an H200 16 rows
 * of 8 columns were 5 % faster than 8 of 16, for the registers of products lie better in their banks. */
static void keep_cheapest(search *c, const candidate *x, void *ud) {
    (void)ud;
    if (x->cost < c->best.cost || (x->cost == c->best.cost && x->s.t[1] <= 8)) c->best = *x;
}

static bool begin(search *c, const kernel *k, const target *t) {
    bool *needed[2];
    str why;
    str_init(&why, k->a);
    *c = (search){ .t = t, .best = { .cost = INFINITY } };
    if (!tiler_find(&c->w, k, needed, &why) || !recipe_tile_rows(&c->w, needed)) return false;
    each_shape(c, keep_cheapest, NULL);
    return true;
}

/* The cheapest shapes, one for each tile of a thread and number of steps, in order of their cost. */
typedef struct shapes {
    candidate *at;
    int n, cap;
} shapes;

static void keep_several(search *c, const candidate *x, void *ud) {
    shapes *all = ud;
    const tile_shape *s = &x->s;
    int at = 0, old = 0;
    if (s->split_k != c->best.s.split_k || (s->split_k > 1 && s->b.steps != c->best.s.b.steps)) return;
    while (old < all->n &&
           (all->at[old].s.t[0] != s->t[0] || all->at[old].s.t[1] != s->t[1] || all->at[old].s.b.steps != s->b.steps))
        old++;
    while (at < all->n && all->at[at].cost <= x->cost) at++;
    if (at > old || at == all->cap) return;
    if (old == all->n) all->n += all->n < all->cap;
    for (int i = old < all->cap ? old : all->cap - 1; i > at; i--) all->at[i] = all->at[i - 1];
    all->at[at] = *x;
}

static const char *steps_of(const search *c, const candidate *x) {
    const kernel *k = c->w.k;
    const tile_shape *s = &x->s;
    const char *depth = k->vars.at[tiler_at(&c->w, c->w.loops + c->w.n_loops - 1)->var].name;
    str steps;
    str_init(&steps, k->a);
    for (int i = 0; i < 2; i++)
        if (s->t[i] > 1) str_addf(&steps, "unroll_jam %s %d; ", k->vars.at[c->w.side[i].row].name, s->t[i]);
    for (int i = 0; i < 2; i++) str_addf(&steps, "bind %s %d; ", k->vars.at[c->w.side[i].row].name, s->n[i]);
    if (s->split_k > 1) str_addf(&steps, "split_k %s %d; ", depth, s->split_k);
    str_addf(&steps, "pack_shared %s %lld; tile", depth, (long long)x->steps);
    if (tiler_can_double(s)) str_add(&steps, "; pipeline 2");
    return steps.s;
}

int recipe_block_tiles(const kernel *k, const target *t, const char **out, int cap) {
    search c;
    if (!begin(&c, k, t)) return 0;
    shapes all = { .at = ARENA_ARRAY(k->a, candidate, cap + 1), .cap = cap };
    each_shape(&c, keep_several, &all);
    for (int i = 0; i < all.n; i++) {
        if (all.at[i].s.b.steps == c.best.s.b.steps) all.at[i].steps = c.best.steps; /* the same block */
        out[i] = steps_of(&c, &all.at[i]);
    }
    return all.n;
}

bool recipe_block_tile(const kernel *k, const target *t, recipe_form *best) {
    search c;
    if (!begin(&c, k, t) || !(c.best.cost < best->cost)) return false;
    *best = (recipe_form){ c.best.cost, steps_of(&c, &c.best) };
    return true;
}
