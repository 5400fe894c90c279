/* attention.c - rows of two contractions with a softmax between them: online softmax in tiles of thread blocks.
 *
 * In: scalar form, whole rows. What decides: how many tiles of rows and keys there are for the multiprocessors, and what the
 * threads of those that fit one at a time wait for: arithmetic, shared memory, each other. Matrix units multiply where all
 * operands are bf16 or f16. Bits depend on the shape that is chosen. */
#include "recipe/recipe.h"
#include "loop/bind_rows.h"
#include "loop/gpu_bind.h"
#include "machine/parts.h"

#include <math.h>

typedef struct sizes {
    double outer;                       /* iterations of the loops around the rows */
    int64_t rows, keys, steps, columns; /* steps: of a score, or of several together */
    int scores, lasts;                  /* contractions that make them, and that take them */
    bool skips;                         /* a comparison of indices throws scores away */
} sizes;

typedef struct range { /* one kernel's sizes; those that a run gives at their least, in between, and at their most, which is
                          first */
    sizes at[3];
    int n;
} range;

typedef struct shape {
    int block, down, across, tile;
} shape;

/* Of the last contraction, and those before it, which make scores; false: there are none, or too many. */
static bool find_sizes(const kernel *k, sizes *out) {
    int n = gpu_outer_loops(k), found = 0;
    int64_t columns[ATTENTION_PRODUCTS], steps[ATTENTION_PRODUCTS];
    bool result[ATTENTION_PRODUCTS]; /* its nest stores what others read */
    *out = (sizes){ .outer = 1 };
    if (n < 1) return false;
    out->rows = k->ins.at[n].hi;
    for (int i = 1; i < n; i++) out->outer *= (double)k->ins.at[i].hi;
    for (int i = 1 + n; i < k->ins.n - n; i++) {
        const kins *loop = &k->ins.at[i];
        if (loop->op != K_LOOP) continue;
        int end = kernel_loop_end(k, i), inner = 0;
        bool stores = false;
        for (int j = i + 1; j < end; j++) stores |= k->ins.at[j].op == K_STORE && !kbuf_is_local(&k->bufs.at[k->ins.at[j].buf]);
        for (int j = i + 1; j < end; j++) {
            const kins *in = &k->ins.at[j];
            if (in->op == K_LOOP) inner = j;
            out->skips |= found && in->op == K_ALU && op_get((op_code)in->alu)->cls == CL_CMP &&
                          k->ins.at[in->a].op == K_INDEX && k->ins.at[in->b].op == K_INDEX;
            if (in->op != K_UPD || in->alu != OP_dot || !inner) continue;
            if (found == ATTENTION_PRODUCTS) return false;
            result[found] = stores, columns[found] = loop->hi, steps[found++] = k->ins.at[inner].hi;
        }
        i = end;
    }
    if (found < 2) return false;
    out->scores = found - 1, out->keys = steps[found - 1], out->columns = columns[found - 1];
    out->lasts = 1;
    if (found > 2 && result[found - 2] && steps[found - 2] == out->keys) /* gradients of keys and values */
        out->columns += columns[found - 2], out->scores--, out->lasts = 2;
    for (int i = 0; i < out->scores; i++) {
        if (columns[i] != out->keys) return false;
        out->steps += steps[i];
    }
    return true;
}

/* Bytes of shared memory of a thread block. */
static double bytes_of(const sizes *z, const shape *s) {
    double steps = ceil((double)z->steps / 4) * 4, each = s->across * 4, columns = ceil((double)z->columns / each) * each;
    return 4 * (s->block * (steps + 4) + s->tile * (steps + 4) + s->tile * columns + s->block * (s->tile + 4.0) +
                4 * s->down * s->across);
}

/* Instructions of a thread for a tile of scores, as if all took a cycle: products, loads from shared memory, what is computed
 * with each score and each row, copies of the tile's operands. */
static double tile_work(const sizes *z, const shape *s) {
    double rows = (double)s->block / s->down, keys = (double)s->tile / s->across,
           columns = ceil((double)z->columns / (4 * s->across)) * 4;
    double fma = rows * keys * (double)z->steps + rows * columns * s->tile,
           wide = s->across / 8.0, /* conflicts: how often the threads of a warp read each bank */
        loads = (rows + wide * keys) * (double)z->steps / 4 + (rows + wide * columns) * s->tile / 4,
           copies = (double)(z->steps + z->columns) * s->tile / 4 / (s->down * s->across);
    return fma + 1.8 * loads + 25 * rows * keys + 60 * rows + 30 * copies + 150;
}

/* Tiles of all rows that a multiprocessor goes through, in those of a block that skips none. Where tiles are skipped, blocks
 * begin with those that skip few; those that all fit at once stay where they are. */
static double load_of(const sizes *z, double blocks, double cores, double room) {
    double most = ceil(blocks / cores), load = 0;
    if (!z->skips) return blocks <= cores * room ? most : fmax(blocks / cores * 1.05, 1);
    if (blocks > cores * room) return fmax(blocks / cores * 0.54, 1);
    for (int i = 0; i < most; i++) load += 1 - i * cores / blocks;
    return load;
}

double recipe_attention_start(const target *t) { return 2500 / machine_row_of(t)->ghz + machine_row_of(t)->after_ns; }

/* Nanoseconds; INFINITY where the shape does not fit. Measured on an H200: a multiprocessor issues 0.75 of what it could, 0.65
 * where each of its parts has one warp, which waits for itself; blocks of two warps do worse. */
static double cost_of(const sizes *z, const shape *s, const target *t) {
    double threads = s->down * s->across, rows = (double)s->block / s->down, bytes = bytes_of(z, s),
           most = (double)target_shared_most(t), keys = (double)s->tile / s->across,
           columns = ceil((double)z->columns / (4 * s->across)) * 4;
    double registers = rows * (keys + columns) + 4 * (rows + fmax(keys, columns)) + 56;
    if (bytes > most || threads > t->block_threads || threads < 32 || keys < 1 || keys > 16 || columns > 64 ||
        rows * fmax(keys, columns) > 64 || registers > 240)
        return INFINITY;
    double held = fmax((double)t->shared_most, 4 * (double)t->shared_bytes); /* of a multiprocessor */
    double room = fmax(1, fmin(fmin(floor(held / bytes), floor(65536 / (registers * threads))), floor(2048 / threads)));
    double cores = fmax(1, floor((double)t->resident_threads / 1024)), blocks = z->outer * ceil((double)z->rows / s->block);
    double tiles = ceil((double)z->keys / s->tile), work = tile_work(z, s) * tiles * (threads < 128 ? 1.3 : 1);
    double warps = fmin(room, ceil(blocks / cores)) * threads / 32;
    double alone = work / 0.65, all = load_of(z, blocks, cores, room) * work * (threads / 128) / (warps > 4 ? 0.75 : 0.65);
    return fmax(alone, all) / machine_row_of(t)->ghz + recipe_attention_start(t);
}

typedef double cost_fn(const sizes *z, const shape *s, const target *t);

/* The geometric mean over the sizes. */
static double mean_of(cost_fn *cost, const range *r, const shape *s, const target *t) {
    double logs = 0;
    for (int i = 0; i < r->n; i++) logs += log(cost(&r->at[i], s, t));
    return exp(logs / r->n);
}

/* Shapes whose threads have 4 rows, and 4 or 8 keys: with others an H200 was slower at all sizes that were tried. Fewer rows
 * only where there are so few, or shared memory has no room for more. */
static void try_rows(const range *r, const target *t, int rows, shape *best, double *out) {
    const sizes *z = &r->at[0];
    for (int down = 2; down <= 32; down *= 2)
        for (int across = 8; across <= 16; across *= 2)
            for (int keys = 2; keys <= 8; keys *= 2) {
                shape s = { rows * down, down, across, across * keys };
                if ((keys == 2 && rows == 4) || (down > 2 && s.block >= 2 * z->rows) || (keys > 2 && s.tile >= 2 * z->keys))
                    continue;
                double cost = mean_of(cost_of, r, &s, t);
                if (cost < *out) *out = cost, *best = s;
            }
}

/* *out: at the most sizes. */
static bool choose(const range *r, const target *t, shape *best, double *out) {
    *out = INFINITY;
    for (int rows = 4; rows > 0 && !isfinite(*out); rows /= 2) try_rows(r, t, rows, best, out);
    if (!isfinite(*out)) return false;
    *out = cost_of(&r->at[0], best, t);
    return true;
}

/* ---- by matrix units ---- */

/* Threads that a multiprocessor has at a time: what matters most, for tiles wait for units, memory and each other. Gradients
 * multiply with what made their scores: it is there once. */
static double threads_at_once(const sizes *z, const shape *s, double columns, const target *t) {
    const machine *m = machine_row_of(t);
    double steps = ceil((double)z->steps / KERNEL_MATRIX) * KERNEL_MATRIX, threads = s->down * s->across,
           moved = 2.0 * s->tile * (steps + (z->scores > 1 ? 0 : fmax(columns, KERNEL_MATRIX))),
           bytes = 2 * (s->block * steps + moved), held = fmax((double)t->shared_most, 4 * (double)t->shared_bytes);
    double registers = (0.3 + 0.5 * z->scores) * s->tile + 0.4 * columns + 19,
           sums = columns / 2 + (0.5 * z->scores + 0.25) * s->tile;
    if (bytes > (double)target_shared_most(t) || threads > t->block_threads || registers > 255) return 0;
    double blocks = z->outer * ceil((double)z->rows / s->block) / fmax(1, floor((double)t->resident_threads / 1024));
    double most = fmin(floor(held / bytes), floor((double)m->registers / (registers * threads)));
    bool few = sums <= 120, some = z->lasts > 1 && sums <= 150;
    most = fmin(most, floor((few ? 512 : some ? 384 : 256) / threads)); /* as emit/gpu.c shares out registers */
    return threads * fmax(1, fmin(most, ceil(blocks)));
}

/* Nanoseconds; INFINITY where the shape does not fit. Fitted to 20 times on an H200: attention of 384 heads of 1024 positions,
 * 64 numbers each, and its three gradients, in tiles of 64 to 256 rows and 64 or 128 keys (root mean square 9 %). A tile that
 * is skipped takes a twelfth of one that is not, since what it would multiply with is looked at. */
static double matrix_cost_of(const sizes *z, const shape *s, const target *t) {
    const machine *m = machine_row_of(t);
    double columns = KERNEL_MATRIX_STEPS, threads = s->down * s->across, groups = threads / KERNEL_WARPGROUP;
    while (columns < (double)z->columns) columns *= 2;
    double at_once = threads_at_once(z, s, columns, t) / threads;
    if (at_once < 1) return INFINITY;
    double moved = 2.0 * s->tile * ((double)z->steps + (z->scores > 1 ? 0 : columns)),
           units = 2.0 * KERNEL_MATRIX * s->tile * ((double)z->steps + columns) / m->matrix_f16;
    double tiles = ceil((double)z->keys / s->tile), whole = fmin(1, 0.5 + 0.5 * s->block / (double)z->rows),
           counted = z->skips ? tiles * (whole + 0.08 * (1 - whole)) : tiles;
    double alone = 1.25 * units + moved / 2 / m->tile_bytes / groups + 160, step = alone * (1 + 1.2 / at_once);
    double cores = fmax(1, floor((double)t->resident_threads / 1024)), blocks = z->outer * ceil((double)z->rows / s->block);
    double last = tiles * alone * (1 + groups), all = ceil(blocks / cores) * groups * counted * step;
    return fmax(last, all) / m->ghz + recipe_attention_start(t);
}

static bool choose_matrix(const range *r, const target *t, shape *best, double *out) {
    *out = INFINITY;
    for (int block = KERNEL_MATRIX; block <= 4 * KERNEL_MATRIX; block *= 2)
        for (int tile = KERNEL_MATRIX; tile <= 2 * KERNEL_MATRIX; tile *= 2) {
            shape s = { block, block / 2, 4, tile };
            double cost = mean_of(matrix_cost_of, r, &s, t);
            if (cost < *out) *out = cost, *best = s;
        }
    if (!isfinite(*out)) return false;
    *out = matrix_cost_of(&r->at[0], best, t);
    return true;
}

/* ---- the steps ---- */

/* Where the kernel takes them. */
static bool take(kernel *k, const shape *s, bool matrix, double ns, const target *t, recipe_form *best) {
    str why;
    str_init(&why, k->a);
    if (ns / machine_row_of(t)->count_ns >= best->cost) return false;
    kernel *tried = kernel_clone(k, k->a);
    const char *softmax = arena_printf(k->a, "online_softmax %d%s", s->tile, matrix ? " narrow" : "");
    loop_step step = step_parse(k->a, softmax);
    if (!step_apply(&tried, &step, &why)) return false;
    for (int skip = t->local_barriers; skip >= 0; skip--) { /* a block that skips a tile has its barriers elsewhere */
        const char *text = arena_printf(k->a, "bind_row_tiles %d %d %d%s%s", s->block, s->down, s->across,
                                        skip ? " skip_masked" : "", matrix ? " matrix" : "");
        kernel *bound = kernel_clone(tried, k->a);
        step = step_parse(k->a, text);
        if (!step_apply(&bound, &step, &why)) continue;
        *best = (recipe_form){ ns / machine_row_of(t)->count_ns, arena_printf(k->a, "%s; %s", softmax, text) };
        return true;
    }
    return false;
}

/* A dim's most, what lies in between, its least; none is 0. */
static int64_t value_of(const ext_row *dim, int i) {
    int64_t least = dim->lo > dim->divisor ? dim->lo : dim->divisor, most = dim->hi > least ? dim->hi : least;
    int64_t between = (int64_t)sqrt((double)least * (double)most) / dim->divisor * dim->divisor;
    int64_t value = i == 0 ? dim->hi : i == 1 && between > least ? between : least;
    return value < dim->hi ? value : dim->hi;
}

static bool find_range(const kernel *k, const target *t, range *r) {
    r->n = k->params ? 3 : 1;
    for (int i = 0; i < r->n; i++) {
        const kernel *at = k;
        if (k->params) {
            int64_t *dims = ARENA_ARRAY(k->a, int64_t, k->params->n_dims + 1);
            for (int d = 0; d < k->params->n_dims; d++) dims[d] = value_of(exts_row(k->params, exts_dim(k->params, d)), i);
            at = kernel_at(k, dims, k->a);
        }
        if (!find_sizes(at, &r->at[i])) return false;
        r->at[i].skips = r->at[i].skips && t->local_barriers;
    }
    return true;
}

bool recipe_attention(const kernel *k0, const target *t, recipe_form *best) {
    kernel *k = gpu_compacted((kernel *)(uintptr_t)k0);
    range r;
    shape s = { 0 };
    double ns;
    if (!find_range(k, t, &r)) return false;
    if (t->matrix_units && machine_row_of(t)->matrix_f16 > 0 && choose_matrix(&r, t, &s, &ns) && take(k, &s, true, ns, t, best))
        return true;
    return r.at[0].scores == 1 && choose(&r, t, &s, &ns) && take(k, &s, false, ns, t, best);
}

/* ---- few rows ---- */

/* Bytes of memory that instructions [from, to) read for a row; *most: elements, of the load that has most. */
static double bytes_of_nest(const kernel *k, int from, int to, double *most) {
    double sum = 0;
    for (int i = from; i < to; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOAD || kbuf_is_local(&k->bufs.at[in->buf])) continue;
        double n = 1;
        for (int j = from; j < i; j++)
            if (k->ins.at[j].op == K_LOOP && affine_coef(in->idx, k->ins.at[j].var)) n *= (double)k->ins.at[j].hi;
        sum += n * (double)dtype_size((tn_dtype)in->src), *most = fmax(*most, n);
    }
    return sum;
}

/* Enough threads that each loads a few vectors. */
static int threads_for(double bytes, const target *t) {
    enum { SHARE = 128 /* bytes of a nest that a thread loads */, MOST = 512 };
    int threads = 64, most = t->max_block_threads > t->block_threads ? t->max_block_threads : t->block_threads;
    while (threads < MOST && 2 * threads <= most && bytes >= 2.0 * SHARE * threads) threads *= 2;
    return threads;
}

/* Not where a thread would load several times: it waits for each, and kernels with more thread blocks are faster. (An H200, 32
 * rows of 2048 and 4096 keys of 64 bf16, a layer: 10 and 19 us longer than three kernels; of 512 keys 2 us shorter.) */
bool recipe_row_sums(const kernel *k0, const target *t, recipe_form *best) {
    enum {
        BARRIERS = 3 /* of a nest, its sums included */,
        LEAST = 2 /* nests of sums: with one, other forms do */,
        AT_ONCE = 64 /* elements that a thread loads */
    };
    if (k0->params) return false;
    kernel *k = gpu_compacted((kernel *)(uintptr_t)k0);
    const machine *m = machine_row_of(t);
    int n = gpu_outer_loops(k), nests = 0;
    double rows = 1, units = machine_units(t), most = 0, all = 0, elements = 0;
    for (int i = 1; i <= n; i++) rows *= (double)k->ins.at[i].hi;
    for (int i = 1 + n; i < k->ins.n - n; i++) {
        if (k->ins.at[i].op != K_LOOP) continue;
        int end = kernel_loop_end(k, i);
        double bytes = bytes_of_nest(k, i, end, &elements);
        most = fmax(most, bytes), all += bytes, nests++, i = end;
    }
    int threads = threads_for(most, t);
    double turns = fmax(1, rows / units), rate = part_rate(m, fmin(rows, units), units),
           ns = m->after_ns + nests * (part_fetch(m) + BARRIERS * part_barrier(m, threads)) + turns * all / rate;
    if (elements > (double)threads * AT_ONCE) return false;
    if (n < 1 || ns / m->count_ns >= best->cost || recipe_local_bytes(k) + 40 * threads > t->shared_bytes) return false;
    if (loop_row_sums(k, n, threads) < LEAST) return false;
    *best = (recipe_form){ ns / m->count_ns, arena_printf(k->a, "bind_rows %d sums", threads) };
    return true;
}
