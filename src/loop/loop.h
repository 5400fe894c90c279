/* loop.h - steps of a schedule: kernel to kernel, one file a step.
 *
 * A step changes how a kernel runs, never what it computes. *Exact* steps change no bit; order-changing ones combine the terms
 * of a sum in another order, the same one on every machine with as wide vectors. Steps up to tile.c work on the scalar form;
 * tile.c writes the tiled form, and those behind it work on that (ir/kernel.h). All memory comes from the kernel's arena. */
#ifndef TN_LOOP_LOOP_H
#define TN_LOOP_LOOP_H

#include "ir/kernel.h"
#include "machine/machine.h"

/* edit.c: removes instructions marked K_NIL and renumbers registers. */
void loop_compact(kernel *k);
/* Puts n instructions before instruction `at`; their operands are registers of the kernel as it becomes. */
void loop_insert(kernel *k, int at, const kins *in, int n);
/* What is pushed from here on stands before instruction `at`, until loop_insert_end. Returns how many instructions that were.
 */
typedef struct loop_insertion {
    int at, n;
    const kins *rest;
} loop_insertion;
loop_insertion loop_insert_begin(kernel *k, int at);
int loop_insert_end(kernel *k, const loop_insertion *x);
/* Dead code elimination: removes values that nothing uses. */
void loop_sweep(kernel *k);
/* Buffer b, a value in panels, takes the place of the buffer with the value as it lies, where nothing reads that any more. */
void loop_take_place(kernel *k, int b);

/* ---- scalar form ---- */

/* vectorize.c: the instructions inside of loops over v: [ins]. */
const bool *loop_inside(const kernel *k, kvar v);

/* window.c: the row along which the windows that a short contraction loop w walks through overlap, or -1. */
enum { LOOP_MOST_TAPS = 5, LOOP_SLIDING = 8 /* unrolled rows of a contraction lane by lane */ };
kvar loop_slides_along(const kernel *k, const kins *x, const kins *weight, kvar w);
int loop_sliding_rows(int64_t m); /* of m */

/* ---- from the scalar to the tiled form ---- */

/* peel.c: how evenly threads would share loop v in tiles of `step` iterations (loop_balance). */
double loop_balance_of(const kernel *k, kvar v, int64_t step, int threads);

/* tile.c: vectorize and unroll-and-jam: writes the tiled form by the roles of the loop variables; the scalar kernel stays as it
 * is. Exact, except that a vectorized or unrolled reduction has a partial sum for each copy. */
kernel *loop_tile(const kernel *k);
/* vectorize.c: the loop with lanes along which a run gives how far apart the elements of an access are, or, of elements that
 * are no neighbours, which of them a mask lets through; NULL: there is none. */
const char *loop_lanes_of_run(const kernel *k, const kins *in);
/* Lanes that loads are transposed by (rows of a square in registers become its columns): 8 of 4 bytes, 4 of 8 bytes, or what
 * the vectors in use allow. */
static inline int loop_transpose_lanes(tn_dtype t, int lanes) {
    int most = dtype_size(t) == 8 ? 4 : 8;
    return lanes < most ? (lanes < 4 ? 0 : lanes) : most;
}

/* nests.c: whether the kernel goes by blocks of rows; its nests in order, from a knest of zeros on; the n-th as a kernel of its
 * own, NULL where there are fewer; the kernel with all of them tiled ([nests]). */
typedef struct knest {
    int loop, n;       /* instruction; which of its loop over blocks */
    int all;           /* nests seen so far, with this one */
    bool inside, rest; /* rest: of the last rows, which do not fill a block */
} knest;
bool loop_has_blocks(const kernel *k);
bool loop_next_nest(const kernel *k, knest *x);
kernel *loop_nest(const kernel *k, int n);
kernel *loop_put_nests(const kernel *k, kernel *const *tiled);

/* ---- facts that steps and choices share ---- */

/* The first instruction of [from, to) with that op; 0: there is none. */
static inline int loop_find_op(const kernel *k, int from, int to, kop op) {
    while (from < to && k->ins.at[from].op != op) from++;
    return from < to ? from : 0;
}
/* How many sums of products [from, to) has: contractions. */
static inline int loop_products(const kernel *k, int from, int to) {
    int n = 0;
    for (int i = from; i < to; i++) n += k->ins.at[i].op == K_UPD && k->ins.at[i].alu == OP_dot;
    return n;
}
/* A load or store of what waits between the nests of a row; a load or store at the element that the loop over v is at. */
static inline bool loop_is_local(const kernel *k, const kins *in) {
    return (in->op == K_LOAD || in->op == K_STORE) && k->bufs.at[in->buf].kind == KB_LOCAL;
}
static inline bool loop_is_own(const kins *in, kvar v) {
    const affine *x = &in->idx;
    return x->base == 0 && x->n == 1 && x->t[0].var == v && x->t[0].coef == 1 && !in->n_mask && !in->dyn;
}

/* The variables in an index; in an instruction's index and masks. For kernels of at most MAX_LOOPS variables. */
static inline uint64_t loop_vars(affine x) {
    uint64_t m = 0;
    for (int i = 0; i < x.n; i++) m |= 1ull << x.t[i].var;
    return m;
}
static inline uint64_t loop_vars_of(const kins *in) {
    uint64_t m = loop_vars(in->idx);
    for (int i = 0; i < in->n_mask; i++) m |= loop_vars(in->mask[i].e);
    return m;
}

/* How evenly threads share a loop: 1 = all of them work all the time. `whole` steps are dealt out, the rest (a part of a step
 * that may be larger than one) is the last thread's. */
static inline double loop_balance(int64_t whole, double rest, int threads) {
    int64_t last = whole - whole * (threads - 1) / threads;
    double longest = (double)last + rest;
    return ((double)whole + rest) / (longest * threads);
}

/* How many lines `apart_bytes` apart a cache holds: lines a power of two apart share few places there. */
static inline int64_t loop_places(int64_t cache_bytes, int64_t apart_bytes) {
    int64_t lines = apart_bytes / MACHINE_LINE_BYTES, n = cache_bytes / MACHINE_LINE_BYTES;
    for (; lines && lines % 2 == 0; lines /= 2) n /= 2;
    return lines ? n : INT64_MAX;
}

#endif
