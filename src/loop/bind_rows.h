/* bind_rows.h - the writer of what a thread block does for a row, for the steps that bind rows to thread blocks; and what that
 * costs. */
#ifndef TN_LOOP_BIND_ROWS_H
#define TN_LOOP_BIND_ROWS_H

#include "ir/kernel.h"

typedef struct row_writer {
    const kernel *k;    /* scalar */
    const kernel *most; /* the same for the largest sizes, which says how nests are shared out */
    kernel *o;
    reg *to;            /* [k->ins] where a register is now */
    bool *wrote, *read; /* [bufs] touched by some thread since all met */
    int block_threads;
    bool quiet;          /* inside a scatter, which needs no barriers */
    bool sums;           /* threads share the sums of nests where they can (share_sums.c); */
    int kept_at;         /* what this nest, or 0, multiplies with, threads have loaded, */
    struct column *kept; /* as this says */
    kvar one;            /* variable of loops for one thread, or -1 */
    int n_rows;          /* of a thread block, when it has several at once; else 0: */
    kvar row;            /* this variable is row_is, and copy is which of them it is */
    affine row_is, copy;
    int cluster; /* thread blocks that share out the elements of a row; up to 1: one has all of it. Else: */
    kvar member; /* which of them it is; */
    kvar split;  /* the variable of the nest at hand, whose iterations in this thread block */
    kvar own;    /* this variable numbers */
} row_writer;

/* For a new kernel whose thread blocks have `threads` threads; local memory of a row becomes shared memory. */
row_writer gpu_row_writer(const kernel *k, int threads);
/* Each row of k, whose sizes may be symbolic, becomes a block of `threads` threads; NULL: k has no outer loops, or may have
 * more rows than a grid has blocks. */
kernel *loop_bind_rows(const kernel *k, int threads);
/* A barrier, where instructions [from, to) touch memory that other threads may have touched. */
void gpu_row_touch(row_writer *w, int from, int to);
/* A barrier in any case; gpu_row_settle: only if threads have written anything since the last one. */
void gpu_row_barrier(row_writer *w, kbarrier mode);
void gpu_row_settle(row_writer *w);
/* Instructions [from, to), which are whole nests. */
void gpu_row_range(row_writer *w, int from, int to);
/* An instruction of k for a thread block of several rows: which one it is about. */
void gpu_row_place(const row_writer *w, kins *in);

/* share_sums.c: whether the nest at i is sums that threads can share; writes it; how many such nests a row has. */
bool gpu_row_is_sums(const row_writer *w, int i);
void gpu_row_sums(row_writer *w, int i);
/* Before instructions [from, to): loads what a later nest of sums multiplies with. */
void gpu_row_sums_ahead(row_writer *w, int from, int to);
int loop_row_sums(const kernel *k, int n_rows, int threads);

/* Whether the thread blocks of a cluster can share out each row (the first n_rows loops are the rows). */
bool loop_rows_split(const kernel *k, int n_rows, int threads);
/* What a thread of such a block does for instructions [from, to), in instructions, roughly. */
double loop_rows_cost(const kernel *k, int from, int to, int threads);
/* Lines that the threads of a block go through for instructions [from, to), as loop_thread_lines has them: where nests read
 * elements that lie apart. */
double loop_rows_lines(const kernel *k, int from, int to, int threads);
/* thread_cost.c: one thread doing instructions [from, to): loads that lie apart along `fast` (neighbouring threads; -1: none)
 * cost more. */
double loop_thread_cost(const kernel *k, int from, int to, kvar fast);
/* Lines that neighbouring threads, one a warp's lane, go through in memory there: each takes the warp's multiprocessor a cycle.
 */
double loop_thread_lines(const kernel *k, int from, int to, kvar fast);

#endif
