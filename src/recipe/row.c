/* row.c - rows of elementwise work and sums (softmax, norms, losses) on GPUs: how many threads a row has, such that each keeps
 * its share of it in registers from nest to nest (src/loop/register_cache.c), and how many thread blocks, where it is too long
 * for one. In: scalar form, whose rows are its outer loops. */
#include "loop/bind_rows.h"
#include "loop/gpu_bind.h"
#include "recipe/recipe.h"

#include <limits.h>

enum {
    PACKED_SHARE = 64 /* elements of a thread, two of them in a register */,
    LONG_GROUP = 256 /* threads, of a cluster */
};

/* What all rows share, such as the weights of a norm. */
static bool has_common(const kernel *k, int n_rows) {
    kvar loop = -1;
    for (int i = 1 + n_rows; i < k->ins.n - n_rows; i++) {
        const kins *in = &k->ins.at[i];
        bool rows = false;
        if (in->op == K_LOOP) loop = in->var;
        if (in->op != K_LOAD || kbuf_is_local(&k->bufs.at[in->buf])) continue;
        for (int r = 0; r < n_rows; r++) rows |= affine_coef(in->idx, k->ins.at[1 + r].var) != 0;
        if (!rows && loop >= 0 && gpu_uses(in, loop)) return true;
    }
    return false;
}

/* Rows of n elements that are too long for the registers of one thread block, or need the largest one, are shared out among the
 * thread blocks of a cluster, the smallest that hold them: several of other rows on a processor load while others compute. With
 * what rows share a large thread block is as fast. Returns the threads of one, or 0. */
static int cluster_group(const kernel *k, int n_rows, int64_t n, int lanes, const target *t, int *cluster) {
    int block_threads = t->block_threads < LONG_GROUP ? t->block_threads : LONG_GROUP,
        most = t->max_block_threads > t->block_threads ? t->max_block_threads : t->block_threads;
    int64_t large = (int64_t)most * RECIPE_CACHED_SHARE;
    if (n <= large / 2 || (n <= large && has_common(k, n_rows))) return 0;
    while (*cluster < t->cluster && n > (int64_t)*cluster * block_threads * RECIPE_CACHED_SHARE) *cluster *= 2;
    while (block_threads < most && n > (int64_t)*cluster * block_threads * RECIPE_CACHED_SHARE) block_threads *= 2;
    int64_t step = (int64_t)*cluster * block_threads * lanes;
    if (*cluster > 1 && n % step == 0 && n / step <= RECIPE_CACHED_TURNS && loop_rows_split(k, n_rows, block_threads))
        return block_threads;
    *cluster = 1;
    return 0;
}

/* Buffers that several nests load, and nothing else that threads keep; *flops: what is computed with them after the first nest.
 */
static int count_held(const kernel *k, int n_rows, int64_t *flops) {
    enum { COARSE = 3 /* times cheaper */ };
    int *nest = ARENA_ARRAY(k->a, int, k->bufs.n + 1), held = 0; /* [bufs] the first to load it; -1: of those that are held */
    *flops = 0;
    kvar loop = -1;
    for (int i = 1 + n_rows, nests = 0; i < k->ins.n - n_rows; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) loop = in->var, nests++;
        if (in->op == K_ALU && nests > 1) *flops += op_get((op_code)in->alu)->flops / (in->mode ? COARSE : 1);
        if ((in->op != K_LOAD && in->op != K_STORE) || loop < 0 || !gpu_uses(in, loop)) continue;
        int *first = &nest[in->buf];
        bool again = *first > 0 && *first != nests;
        if (again) held++;
        if (again && kbuf_is_local(&k->bufs.at[in->buf])) return INT_MAX;
        *first = again ? -1 : *first ? *first : nests;
    }
    return held;
}

/* Rows of numbers of 16 bits, of which a thread can hold twice as many where what is computed anew in each nest is little, and
 * nothing else is held: thread blocks are half as large, and two on a processor, of which one loads while the other computes.
 * Returns the threads of one, or 0. */
static int packed_group(const kernel *k, int n_rows, int64_t n, int lanes, const target *t) {
    enum { LITTLE = 16 };
    int64_t block_threads = t->max_block_threads / 2, flops;
    if (lanes != 8 || block_threads < t->block_threads || n <= block_threads * RECIPE_CACHED_SHARE ||
        n > block_threads * PACKED_SHARE || n % (block_threads * lanes))
        return 0;
    return count_held(k, n_rows, &flops) <= 1 && flops <= LITTLE ? (int)block_threads : 0;
}

/* The same for longer rows, whose parts lie in shared memory, which has room for two of them. (Cross-entropy and its gradient,
 * 32768 rows of 50,304 numbers, an H200: one thread block a processor, in registers, 3.50 ms; two, 2.48, and 2.58 where rows
 * are fetched ahead.) Returns the threads of one, or 0. */
static int shared_group(const kernel *k, int n_rows, int64_t n, int lanes, const target *t) {
    int64_t block_threads = t->max_block_threads / 2, flops, reduced = block_threads * (int64_t)sizeof(float);
    if (lanes != 8 || block_threads < t->block_threads || n <= block_threads * RECIPE_CACHED_SHARE || n % lanes ||
        n > block_threads * lanes * RECIPE_SHARED_TURNS || 2 * (2 * n + reduced + 1024) > t->shared_most)
        return 0;
    return count_held(k, n_rows, &flops) == 1 ? (int)block_threads : 0;
}

/* Few of the threads have nothing to do in the last iteration. */
static bool comes_out(int64_t vectors, int64_t threads) {
    return threads <= vectors && 8 * vectors >= 7 * ((vectors + threads - 1) / threads * threads);
}

/* The loop over the rows of a block, whose sums of columns begin before it (sched/column_sums.c); 0: each row is by itself. */
static int block_of_rows(const kernel *k, int from, int to) {
    const kins *first = &k->ins.at[from], *in = first + 1;
    while (in->op == K_CONST) in++;
    if (first->op != K_LOOP || in->op != K_STORE || !kbuf_is_local(&k->bufs.at[in->buf])) return 0;
    int next = kernel_loop_end(k, from) + 1;
    while (next < to && k->ins.at[next].op == K_CONST) next++;
    return next < to && k->ins.at[next].op == K_LOOP && kernel_nest(k, (reg)next) == 1 ? next : 0;
}

bool recipe_row_blocks(const kernel *k, int n_rows) { return block_of_rows(k, 1 + n_rows, k->ins.n - n_rows) != 0; }

int recipe_row_threads(const kernel *k, int n_rows, const target *t, int *cluster, bool *in_shared) {
    int from = 1 + n_rows, to = k->ins.n - n_rows, nests = 0, lanes = 16 / gpu_widest(k);
    int64_t n = 0, rows = 1;
    for (int i = 0; i < n_rows; i++) rows *= k->ins.at[1 + i].hi;
    int block = block_of_rows(k, from, to);
    for (int i = from; i < to; i++) {
        if (k->ins.at[i].op != K_LOOP || i == block) continue;
        int end = kernel_loop_end(k, i);
        if (k->ins.at[i].lo != 0 || (nests++ && k->ins.at[i].hi != n)) return 0;
        n = k->ins.at[i].hi;
        for (int j = i + 1; j < end; j++)
            if (k->ins.at[j].op == K_LOOP) return 0;
        i = end;
    }
    while (lanes > 1 && n < (int64_t)lanes * machine_row_of(t)->warp) lanes /= 2;
    if (nests < 2 || n % lanes) return 0;
    int64_t vectors = n / lanes;
    int packed = packed_group(k, n_rows, n, lanes, t);
    if (packed) return packed;
    int clustered = cluster_group(k, n_rows, n, lanes, t, cluster);
    if (clustered) return clustered;
    int shared = shared_group(k, n_rows, n, lanes, t);
    *in_shared = shared > 0;
    if (shared) return shared;
    int block_threads = 32, most = t->max_block_threads > t->block_threads ? t->max_block_threads : t->block_threads;
    while (block_threads < most && block_threads * RECIPE_CACHED_SHARE < n) block_threads *= 2;
    while (block_threads < t->block_threads && comes_out(vectors, block_threads * 2) &&
           rows * block_threads < t->resident_threads)
        block_threads *= 2;
    return vectors < block_threads || vectors > (int64_t)RECIPE_CACHED_TURNS * block_threads ? 0 : block_threads;
}
