/* gpu_bind.h - what the steps for GPUs share: what a scalar kernel must be like to be bound to threads, in vectors or not, and
 * loops over thread blocks and threads. */
#ifndef TN_LOOP_GPU_BIND_H
#define TN_LOOP_GPU_BIND_H

#include "loop/build.h"
#include "loop/loop.h"
#include "loop/schedule.h"

/* v in its index or a mask. */
bool gpu_uses(const kins *in, kvar v);
/* The same of one of these instructions; whether a load among them lies along v in memory. */
bool gpu_any_uses(const kernel *k, const bool *among, kvar v);
bool gpu_lies_along(const kernel *k, const bool *among, kvar v);
/* Whether all loads among them have no dynamic index and can be made in vectors along v (gpu_aligned). */
bool gpu_any_vectors(const kernel *k, const bool *among, kvar v, int lanes);
/* Instructions that differ along v, of those in `among` (NULL: of all); the same of [from, to), besides those marked already.
 */
bool *gpu_varying(const kernel *k, const bool *among, kvar v);
void gpu_mark_varying(const kernel *k, int from, int to, kvar v, bool *varies);
/* Whether a LOAD or STORE of the scalar kernel with `lanes` lanes along v, starting at multiples of them, goes through memory
 * in one aligned piece, or does not move along v. */
bool gpu_aligned(const kernel *k, const kins *in, kvar v, int lanes);
/* Bytes of the largest element of memory that innermost loops move along, 2 at least; local memory does not count, nor what is
 * small and the same for all rows, if there is something else. */
int gpu_widest(const kernel *k);
/* An instruction of elementwise work: no loops, no sums, no memory of its own. */
bool gpu_is_plain(const kernel *k, const kins *in);
/* A new kernel with the scalar one's variables and buffers, for one block of `block_threads` threads. */
kernel *gpu_kernel(const kernel *k, int block_threads);

/* A buffer of a thread block. */
static inline int gpu_shared_buffer(kernel *o, uint8_t dtype, int64_t elems) {
    return build_buffer(o, dtype, KB_SHARED, elems);
}
/* The first n loops of k, but those over two variables (-1: none): an iteration is a thread block's. Returns how many. */
int gpu_open_rows(const kernel *k, kernel *o, int n, kvar but, kvar nor);
/* A loop over pieces of n iterations, one a thread block's: the first iteration of a piece. */
affine gpu_open_pieces(kernel *o, int64_t n, int64_t piece);

/* bind.c: the threads of a block as a nest of loops, whose variables are digits of the thread's number, highest first: cut at
 * each bit of `cuts`. Returns how many loops. Bits [lo, hi) of the number. */
typedef struct gpu_digits {
    struct {
        int lo;
        kvar var;
    } at[24];
    int n;
} gpu_digits;
int gpu_digits_open(kernel *o, gpu_digits *d, int bits, uint64_t cuts);
affine gpu_digits_at(kernel *o, const gpu_digits *d, int lo, int hi);
int gpu_log2(int64_t n); /* rounded down */
static inline int gpu_log2_up(int64_t n) { return n > 1 ? gpu_log2(2 * n - 1) : 0; }

/* Whether the loop at i may have no iterations; loops around the whole kernel may, in some runs. */
bool gpu_may_be_empty(const kernel *k, int i);
/* How many loops are perfectly nested from instruction i on, all reducing or none. */
int gpu_perfect_loops(const kernel *k, int i);
/* Perfectly nested loops of independent iterations from the first instruction on that hold the whole kernel. */
int gpu_outer_loops(const kernel *k);
/* Storage compaction: threads work on one row at a time, so that what waits in local memory between the nests of a row needs
 * room for one row, not for each of those that tiling would unroll. The kernel itself where nothing waits so. */
kernel *gpu_compacted(kernel *k);
/* Whether a step can bind a scalar kernel to threads: no loop is cut, none but `but` (-1: none at all) is vectorized or
 * unrolled, and `threads` are a thread block. */
bool gpu_can_bind(const kernel *k, kvar but, int64_t threads, str *why);
/* bind.c: the arguments `loop n` of a step that gives threads to a loop, which is a sum or is none: n is a power of two. */
bool gpu_take_role(const kernel *k, const loop_step *s, bool sum, kvar *v, str *why);
/* Whether loops have roles of threads (bind, split_k, pack_shared), which tile writes. */
bool gpu_has_threads(const kernel *k);
enum { GPU_MOST_THREADS = 1024 /* of a thread block */ };
static inline int64_t gpu_pieces(int64_t n, int64_t of) { return (n + of - 1) / of; }
static inline int64_t gpu_round_up(int64_t n, int64_t of) { return gpu_pieces(n, of) * of; }
static inline bool gpu_is_power(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

/* thread_tile.c: writes a contraction in tiles of thread blocks, as the roles of its loops say; false, with the reason, where
 * they do not suit. */
bool gpu_tile_contraction(kernel **k, str *why);
/* scan_rows.c: whether the kernel is running sums that scan_rows computes fastest; *terms: of each sum. */
bool gpu_has_running_rows(const kernel *k, int64_t *terms);
/* pipeline_async.c: does the step pipeline to a loop of asynchronous copies. */
bool gpu_pipeline_async(kernel **k, int64_t stages, str *why);
/* bind_grid.c: whether bind_grid can take vectors of `lanes` elements along the innermost outer loop. */
bool gpu_grid_lanes(const kernel *k, int64_t lanes, str *why);
/* transpose_tile.c: the loads that lie along another outer loop than the innermost one, at most GPU_MOST_TURNED; all along *u.
 * 0: there are none, or what else the kernel has does not suit, as *why says. */
enum { GPU_MOST_TRANSPOSED = 4 };
int gpu_transposed_loads(const kernel *k, kvar *u, int at[GPU_MOST_TRANSPOSED], str *why);
/* Whether all of its memory can be read and written in vectors of `lanes` elements. */
bool gpu_transposed_lanes(const kernel *k, int64_t lanes, str *why);

#endif
