/* cost_gpu.c - implementation of cost.h for GPUs: a kernel in its GPU form is the text of one thread; blocks of threads share a
 * multiprocessor. In: what one thread issues, what a block touches, what the grid touches. */
#include "machine/cost.h"
#include "machine/footprint.h"
#include "machine/parts.h"

#include <math.h>

#define MATRIX_BUSY 0.6 /* of what its matrix units could do, a kernel of ours has */

typedef struct gpu_work {                                      /* of one thread, in the mean of all blocks */
    double instructions, fma, special, shared_bytes, products; /* products: flops of matrix units */
    double waits_ns;                                           /* of the blocks that wait longest; barriers are among it */
} gpu_work;

/* Trips of a loop that is bound to threads or blocks: of the first of a nest, for its iterations are dealt out as one. */
static double bound_trips(const kernel *k, int loop, double among) {
    if (loop > 1 && k->ins.at[loop - 1].op == K_LOOP && k->ins.at[loop - 1].par == k->ins.at[loop].par) return 1;
    return ceil((double)kernel_nest_size(k, (reg)loop) / larger(1, among));
}

/* How often a loop with a condition is done: blocks ask of every warp of places whether one is theirs, then of each of these.
 */
static double taken(const kernel *k, const footprint *f, int l) {
    double grid_blocks = larger(1, (double)k->grid_blocks), warp = smaller(1, 32 / grid_blocks);
    for (int p = f->loops.at[l].parent; p > 0; p = f->loops.at[p].parent)
        if (k->ins.at[f->loops.at[p].ins].a) return 1 / grid_blocks / warp;
    return warp;
}

/* What trips a thread has of each loop, or (block) all threads of a block together. */
static void set_trips(const kernel *k, footprint *f, bool block) {
    for (int l = 1; l < f->loops.n; l++) {
        fp_loop *x = &f->loops.at[l];
        const kins *in = &k->ins.at[x->ins];
        int64_t first,
            grid_blocks = in->par == PAR_GRID_THREADS || in->par == PAR_BLOCKS ? kernel_nest_blocks(k, (reg)x->ins, &first) : 1;
        if (in->par == PAR_BLOCK_THREADS && !block) x->trips = bound_trips(k, x->ins, k->block_threads);
        if (in->par == PAR_BLOCKS) x->trips = block ? 1 : bound_trips(k, x->ins, (double)grid_blocks);
        if (in->par == PAR_GRID_THREADS && !block) x->trips = bound_trips(k, x->ins, (double)grid_blocks * k->block_threads);
        if (in->a) x->trips *= taken(k, f, l);
        x->runs = x->trips * f->loops.at[x->parent].runs;
    }
}

/* The blocks that loop l is done by: nests that lie beside each other have some each. */
static double blocks_of(const kernel *k, const footprint *f, int l) {
    for (; l > 0; l = f->loops.at[l].parent)
        if (k->ins.at[f->loops.at[l].ins].n_blocks) return (double)k->ins.at[f->loops.at[l].ins].n_blocks;
    return (double)k->grid_blocks;
}

static bool is_special(op_code op) { return op_get(op)->flops >= 4; }

/* What a thread waits for at instruction i. reads: whether the loop at hand waits for memory. */
static double wait_ns(const kernel *k, const machine *m, const kins *in, double runs, bool reads[2]) {
    if (in->op == K_BARRIER) return runs * part_barrier(m, k->block_threads);
    if (in->op == K_SCATTER) return runs * in->lanes * m->level[LEVEL_L2].ns / 8;
    if (in->op == K_BLOCK_REDUCE || in->op == K_BLOCK_ARGREDUCE) {
        double n = in->width ? (double)in->width : k->block_threads;
        return runs * (part_exchange(m, n) + (n > m->warp ? 2 * part_barrier(m, n) : 0));
    }
    if (in->op != K_LOAD || in->mode == LOAD_HOISTED || in->mode >= LOAD_ASYNC) return 0;
    bool shared = k->bufs.at[in->buf].kind == KB_SHARED || k->bufs.at[in->buf].kind == KB_DISTRIBUTED;
    if (k->bufs.at[in->buf].kind == KB_LOCAL || reads[shared]) return 0;
    reads[shared] = true;
    return (shared ? m->shared_ns : m->level[LEVEL_L2].ns) * larger(1, runs / 8); /* eight on the way */
}

static void add_work(const kernel *k, const machine *m, const kins *in, double runs, gpu_work *w) {
    double lanes = in->lanes;
    if (kernel_touches(in)) {
        uint8_t kind = k->bufs.at[in->buf].kind;
        double size = (double)dtype_size((tn_dtype)k->bufs.at[in->buf].dtype);
        if (kind == KB_LOCAL) return; /* registers */
        w->instructions += runs * ceil(lanes * size / 16);
        if (kind == KB_SHARED || kind == KB_DISTRIBUTED) w->shared_bytes += runs * larger(4, lanes * size);
    } else if (in->op == K_ALU) {
        w->instructions += runs * lanes * op_get((op_code)in->alu)->flops;
        if (is_special((op_code)in->alu)) w->special += runs * lanes;
    } else if (in->op == K_UPD || in->op == K_ARGUPD) {
        w->instructions += runs * k->ins.at[in->c].lanes, w->fma += runs * k->ins.at[in->c].lanes;
    } else if (in->op == K_BLOCK_REDUCE || in->op == K_BLOCK_ARGREDUCE) {
        double n = in->width ? (double)in->width : k->block_threads;
        w->instructions += runs * 2 * log2(larger(2, smaller(n, m->warp)));
    } else if (in->op == K_PUT) {
        w->instructions += runs * lanes;
    } else if (in->op == K_MMA) { /* a thread's share of what the warpgroup reads and does */
        double rows = KERNEL_MATRIX, columns = 2 * lanes, steps = KERNEL_MATRIX_STEPS;
        w->shared_bytes += runs * (rows + columns) * steps * 2 / KERNEL_WARPGROUP;
        w->products += runs * 2 * rows * columns * steps / KERNEL_WARPGROUP;
    } else if (in->op == K_RANDOM) {
        w->instructions += runs * lanes * 60;
    } else if (in->op != K_CONST && in->op != K_LOOP && in->op != K_ACC && in->op != K_BARRIER) {
        w->instructions += runs;
    }
}

static void add_thread(const kernel *k, const machine *m, const footprint *f, gpu_work *w) {
    double waits = 0;
    bool reads[2] = { false, false };
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        double runs = f->loops.at[f->loop_of[i]].runs,
               share = blocks_of(k, f, f->loop_of[i]) / larger(1, (double)k->grid_blocks);
        if (in->op == K_LOOP) reads[0] = reads[1] = false;
        if (in->op == K_LOOP && in->n_blocks) waits = 0; /* of other blocks */
        waits += wait_ns(k, m, in, runs, reads);
        w->waits_ns = larger(w->waits_ns, waits);
        add_work(k, m, in, runs * share, w);
    }
}

/* Registers of a thread: its sums, what it loads ahead, and addresses. */
static double registers_of(const kernel *k) {
    double n = 28;
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_ACC || (k->ins.at[i].op == K_LOAD && k->ins.at[i].mode == LOAD_HOISTED))
            n += k->ins.at[i].lanes;
    return smaller(n, 255);
}

/* Instructions of a thread that do not wait for each other: of as many sums, or of two in other code. */
static double independent(const kernel *k) {
    double sums = 0;
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_ACC) sums += k->ins.at[i].lanes;
    return larger(2, sums);
}

static double resident(const kernel *k, const machine *m) {
    double n = smaller(m->blocks, floor((double)m->threads / k->block_threads)), shared = (double)kernel_shared_bytes(k);
    if (shared > 0) n = smaller(n, floor((double)m->shared_bytes / shared));
    n = smaller(n, floor((double)m->registers / (registers_of(k) * k->block_threads)));
    return larger(n, 1);
}

typedef enum reach { REACH_BLOCK, REACH_GRID } reach; /* what a block touches: all that it says, or its part of the grid's */

static reach reach_of(const kernel *k, const footprint *f, const fp_access *x) {
    for (int l = x->loop; l > 0; l = f->loops.at[l].parent)
        if (k->ins.at[f->loops.at[l].ins].par == PAR_GRID_THREADS) return REACH_GRID;
    return REACH_BLOCK;
}

/* Blocks that touch each something else: 1 where all do the same. */
static double distinct(const kernel *k, const footprint *f, const fp_access *x) {
    double n = 1;
    if (k->ins.at[x->ins].dyn) return blocks_of(k, f, x->loop);
    for (int l = x->loop; l > 0; l = f->loops.at[l].parent) {
        const kins *loop = &k->ins.at[f->loops.at[l].ins];
        if (loop->par == PAR_BLOCKS && affine_coef(k->ins.at[x->ins].idx, loop->var)) n *= (double)(loop->hi - loop->lo);
    }
    return n;
}

/* From L2: what each block brings into the first cache, where the blocks beside it have their part; what all of them read alike
 * comes once a multiprocessor. From memory: what L2 has not kept since it was last used. */
static void add_bytes(const kernel *k, const machine *m, footprint *block, double held, double l2_rate, const double *distance,
                      arena *a, cost *out) {
    double *new = ARENA_ARRAY(a, double, k->bufs.n + 1), alike = 0; /* nothing is in the first cache when a block begins */
    for (int b = 0; b < k->bufs.n; b++) new[b] = 1e18;
    for (int i = 0; i < block->at.n; i++)
        if (reach_of(k, block, &block->at.at[i]) == REACH_BLOCK && distinct(k, block, &block->at.at[i]) == 1)
            alike += fp_bytes(block, &block->at.at[i], 0, false);
    fp_traffic(block, (double)m->level[LEVEL_L1].bytes / held + alike, LEVEL_L2, new);
    for (int i = 0; i < block->at.n; i++) {
        const fp_access *x = &block->at.at[i];
        if (kbuf_is_local(&k->bufs.at[x->buf]) || x->prefetch) continue;
        double grid_blocks = blocks_of(k, block, x->loop), sector, run = fp_run(block, x, &sector);
        double times = reach_of(k, block, x) == REACH_GRID ? 1
                       : x->store                          ? grid_blocks
                                                           : smaller(grid_blocks, distinct(k, block, x) * m->cores);
        out->bytes[LEVEL_L2] += x->bytes[LEVEL_L2] * times;
        out->level_ns[LEVEL_L2] += x->bytes[LEVEL_L2] * times * (run < 2 * MACHINE_SECTOR_BYTES ? 2 : 1) / l2_rate;
    }
    double all = (double)(k->bytes_read + k->bytes_written), l2 = (double)m->level[LEVEL_L2].bytes * m->l2_kept;
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *x = &k->bufs.at[b];
        double bytes = (double)(x->elems * (int64_t)dtype_size((tn_dtype)x->dtype));
        if (kbuf_is_local(x)) continue;
        if ((distance ? distance[b] : all) > l2) out->bytes[LEVEL_MEMORY] += smaller(bytes, all);
    }
    if (out->bytes[LEVEL_MEMORY] > out->bytes[LEVEL_L2]) out->bytes[LEVEL_L2] = out->bytes[LEVEL_MEMORY];
}

cost cost_gpu_kernel(const kernel *k, const machine *m, const double *distance, arena *a) {
    cost out = { .start_ns = m->start_ns };
    footprint thread, block;
    gpu_work w = { 0 };
    fp_make(k, a, 1, MACHINE_SECTOR_BYTES, &thread);
    fp_make(k, a, 1, MACHINE_SECTOR_BYTES, &block);
    set_trips(k, &thread, false), set_trips(k, &block, true);
    add_thread(k, m, &thread, &w);
    double grid_blocks = (double)k->grid_blocks, each = ceil(grid_blocks / m->cores), threads = each * k->block_threads,
           held = resident(k, m);
    double waves = ceil(grid_blocks / (m->cores * held)), busy = smaller(grid_blocks, m->cores);
    const machine_cache *l2 = &m->level[LEVEL_L2], *memory = &m->level[LEVEL_MEMORY];
    double l2_rate = smaller(l2->all, busy * l2->read);
    add_bytes(k, m, &block, held, l2_rate, distance, a, &out);
    double cycles = larger(threads * w.instructions / m->warp / m->issue, threads * w.fma / m->fma_pipes);
    cycles = larger(cycles, threads * w.special / m->special);
    cycles = larger(cycles, threads * w.shared_bytes / m->shared_rate);
    if (m->matrix_f16 > 0) cycles = larger(cycles, threads * w.products / m->matrix_f16 / MATRIX_BUSY);
    out.issue_ns = cycles / m->ghz;
    double alone = w.instructions * larger(1, m->alu_cycles / independent(k)) / m->ghz + w.waits_ns;
    alone += smaller(grid_blocks, m->cores * held) / m->cores * m->block_ns;
    out.latency_ns = larger(0, waves * alone - out.issue_ns);
    out.bytes[LEVEL_L1] = w.shared_bytes * k->block_threads * grid_blocks;
    out.level_ns[LEVEL_L2] = larger(out.level_ns[LEVEL_L2], out.bytes[LEVEL_L2] / l2_rate);
    out.level_ns[LEVEL_MEMORY] = out.bytes[LEVEL_MEMORY] / smaller(memory->all, busy * memory->read);
    out.memory_ns = larger(out.level_ns[LEVEL_L2], out.level_ns[LEVEL_MEMORY]);
    out.ns = out.start_ns + larger(out.issue_ns + out.latency_ns, out.memory_ns);
    return out;
}
