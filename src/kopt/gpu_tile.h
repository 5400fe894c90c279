/* gpu_tile.h - what the two files of tiled contractions share: the parts of the scalar kernel and the shape chosen for it. */
#ifndef TN_KOPT_GPU_TILE_H
#define TN_KOPT_GPU_TILE_H

#include "kopt/kopt.h"

enum {
    MAX_SIDE = 16 /* rows and columns of a thread's tile */,
    MAX_TILE = 128 /* elements of it */,
    MAX_CHUNKS = 16 /* of a copy that one thread makes */
};

typedef struct block { /* steps of the contraction that fast memory holds */
    int whole;         /* innermost loops of it that are inside */
    int64_t split;     /* and this many steps of the next one */
    int64_t steps;     /* in all */
    int64_t trips;     /* of the innermost loop around a block */
    bool tail;         /* the last block is shorter */
    bool powers;       /* all sizes are powers of two */
} block;

typedef struct shape {
    int t[2], n[2]; /* of m and n: tile of a thread, threads */
    int z;          /* threads along the contraction */
    block b;
    bool doubled; /* two blocks in fast memory: one is multiplied while the next one comes */
    int64_t bytes;
    double cost;
} shape;

typedef struct side { /* an operand; 0 goes with m, 1 with n */
    kvar row;
    const bool *needed; /* [ins] what its value is computed from */
    int operand;        /* that value */
    int lanes;          /* of a load from fast memory */
    int wide;           /* lanes of a load from memory, or 0 */
    kvar along;         /* the variable that they run along */
    int64_t pitch;
    bool tail;
    int buf;
} side;

typedef struct tiler {
    const kernel *k;
    kernel *o;
    const target *t;
    int n_outer, acc, loops, n_loops, upd, end; /* instructions: accumulator, contraction loops, update, end of the outermost */
    side side[2];
    shape s;
} tiler;

static inline const kins *tiler_at(const tiler *w, int i) { return &w->k->ins.at[i]; }
static inline int64_t tiler_extent(const tiler *w, kvar v) { return w->k->vars.at[v].extent; }

/* gpu_tile_write.c */
kernel *tiler_write(tiler *w);

#endif
