/* prologue.c - what it costs to compute an operand of a contraction as it is packed into panels, and what to store it first: a
 * panel is packed once for as many rows as its sums fit the caches, and has an element of an image for each window over it. And
 * what it saves to store an operand for matrix units, which take operands from memory alone; or not to store what several
 * kernels read. In: sizes and the target alone, so that the decision is the same wherever the graph stands. */
#include "machine/machine.h"
#include "sched/sched.h"

enum {
    PANEL_ROWS = 512 /* that share a panel */,
    TILE_ROWS = 64 /* that share a copy in shared memory */,
    WINDOWS = 4 /* that have an element of an image, at least */,
    NEVER = 64 /* operations on an element */
};
/* Of the products' time, where copies compute. (An H200: 256 rows of 2,048 columns and terms, 10 us of 52.) */
#define WAITS 0.2
#define SMALL 0.03 /* of the contraction's time: less than that is a fair price for a temporary that is not made */

/* Of `bytes` bytes that were just written or read. */
static const machine_cache *home_of(const machine *m, int64_t bytes) {
    int level = LEVEL_L2;
    while (level < LEVEL_MEMORY && m->level[level].bytes < 2 * bytes) level++;
    return &m->level[level];
}

/* A thread block of a GPU computes what it copies to shared memory: once for the rows of its tile. Such a copy is not made
 * while the products go on, as one without work on the way is. */
static bool copies_computed(const machine *m, int64_t bytes, int64_t elems, const prologue_use *by) {
    double rows = (double)(by->work / by->elems), again = larger(rows / TILE_ROWS - 1, 0) * (double)elems,
           ops = machine_gflops(m) / 2,
           stored =
               (double)bytes / machine_rate(m, LEVEL_L2, true) + (double)bytes / machine_rate(m, LEVEL_L2, false) + m->start_ns;
    return (again * (double)(by->flops + 1) + WAITS * (double)by->work) / ops <= stored;
}

bool sched_packs_computed(const sched *s, tn_dtype t, int64_t elems, const prologue_use *by) {
    const target common = { .vector_bytes = 32, .n_vector_regs = 16, .threads = 1 };
    const machine m = machine_of(s->opts.t ? s->opts.t : &common);
    int64_t bytes;
    if (by->flops > NEVER || !size_mul(elems, (int64_t)dtype_size(t), &bytes)) return false;
    if (s->opts.rows_only) return copies_computed(&m, bytes, elems, by);
    const machine_cache *home = home_of(&m, bytes);
    double lanes = (double)m.pipe_bytes / (double)dtype_size(dtype_reg(t)), rows = (double)(by->work / by->elems),
           again =
               rows <= PANEL_ROWS ? 0 : rows / PANEL_ROWS * (double)by->elems; /* panels behind the first of the same columns */
    if (by->elems / WINDOWS > elems) again += (double)(by->elems - elems);
    double computed = again * (double)(by->flops + 1) / (lanes * m.alu_pipes * m.ghz),
           stored = (double)bytes / home->write + (double)bytes / home->read + m.start_ns,
           products = (double)by->work / (lanes * m.fma_pipes * m.ghz);
    return again <= 0 || computed <= stored + SMALL * products;
}

/* Threads multiply what is computed on the way. A tenth of the matrix units' rate is left to what else a kernel does. A
 * processor that adds the products of two bf16 at once reads words of memory for that. */
bool sched_feeds_matrix_units(const sched *s, tn_dtype t, int64_t elems, int64_t work) {
    int64_t bytes;
    if (!s->opts.t || (t != TN_BF16 && t != TN_F16)) return false;
    bool words = !s->opts.rows_only && s->opts.t->bf16_sums && t == TN_BF16;
    if (!s->opts.t->matrix_units && !words) return false;
    if (!size_mul(elems, (int64_t)dtype_size(t), &bytes)) return false;
    const machine m = machine_of(s->opts.t);
    double by_threads = machine_gflops(&m), flops = 2 * (double)work,
           units = 0.9 * (words ? 2 * by_threads : m.matrix_f16 * m.cores * m.ghz);
    if (units <= by_threads) return false;
    double stored =
        (double)bytes / machine_rate(&m, LEVEL_MEMORY, true) + (double)bytes / machine_rate(&m, LEVEL_MEMORY, false);
    return flops / by_threads - flops / units > stored + m.start_ns;
}

/* A GPU computes while memory comes: what takes longer counts. The operand is read in either case where v is computed. */
bool sched_computes_again(const sched *s, val v, int kernels) {
    const node *n = graph_get(s->g, v);
    int64_t elems = graph_elems(s->g, v), size = (int64_t)dtype_size((tn_dtype)n->dtype), of = 0;
    if (!s->opts.t || !s->opts.rows_only) return false;
    for (int i = 0; i < n->n_in; i++) {
        int64_t bytes = (int64_t)dtype_size((tn_dtype)graph_get(s->g, n->in[i])->dtype);
        if (graph_elems(s->g, n->in[i]) == elems && bytes > of) of = bytes;
    }
    const machine m = machine_of(s->opts.t);
    double count = (double)elems;
    machine_level home = (double)m.level[LEVEL_L2].bytes >= 2 * count * (double)size ? LEVEL_L2 : LEVEL_MEMORY;
    double computed = count * op_get((op_code)n->op)->flops / (machine_gflops(&m) / 2),
           operand = count * (double)of / machine_rate(&m, home, false),
           read = count * (double)size / machine_rate(&m, home, false),
           written = count * (double)size / machine_rate(&m, home, true);
    return kernels * larger(computed, operand) <= larger(computed, operand + written) + kernels * read;
}
