/* block_tile.h - what the files of tiled contractions share: the parts of the scalar kernel and the shape of its tiles. */
#ifndef TN_LOOP_BLOCK_TILE_H
#define TN_LOOP_BLOCK_TILE_H

#include "loop/gpu_copy.h"

enum {
    MAX_SIDE = 16 /* rows and columns of a thread's tile */,
    MAX_TILE = 128 /* elements of it */,
    MAX_CHUNKS = 16 /* of a copy that one thread makes */
};

typedef struct k_block { /* steps of the contraction that shared memory holds */
    int whole;           /* innermost loops of it that are inside */
    int64_t split;       /* and this many steps of the next one */
    int64_t steps;       /* in all */
    int64_t trips;       /* of the innermost loop around a block */
    bool tail;           /* the last block is shorter */
    bool powers;         /* all sizes are powers of two */
} k_block;

typedef struct tile_shape {
    int t[2], n[2]; /* of m and n: tile of a thread, threads */
    int z;          /* threads along the contraction */
    k_block b;
    bool doubled; /* two blocks in shared memory: one is multiplied while the next one comes */
} tile_shape;

typedef struct tile_operand { /* an operand; 0 goes with m, 1 with n */
    kvar row;
    const bool *needed; /* [ins] what its value is computed from */
    int operand;        /* that value */
    int lanes;          /* of a load from shared memory */
    int wide;           /* lanes of a load from memory, or 0 */
    kvar along;         /* the variable that they run along */
    int64_t pitch;
    bool tail;
    int buf;
} tile_operand;

typedef struct tiler {
    const kernel *k;
    kernel *o;
    int n_outer, acc, loops, n_loops, upd, end; /* instructions: accumulator, contraction loops, update, end of the outermost */
    tile_operand side[2];
    tile_shape s;
} tiler;

static inline const kins *tiler_at(const tiler *w, int i) { return &w->k->ins.at[i]; }
static inline int64_t tiler_extent(const tiler *w, kvar v) { return w->k->vars.at[v].extent; }

/* block_tile.c: the parts of a kernel that is one contraction with what is computed before and behind it; false, with the
 * reason, where it is another kind. *needed: [2][ins] what the operands a and b are computed from. */
bool tiler_find(tiler *w, const kernel *k, bool *needed[2], str *why);
/* Whether one of the instructions moves with v. */
bool tiler_uses(const tiler *w, const bool *needed, kvar v);
/* About so many steps of the contraction. */
k_block tiler_block(const tiler *w, int64_t steps);
/* Why the threads of that shape cannot share out its copies and sums. */
typedef enum tile_problem { TILE_FITS, TILE_SUMS, TILE_SPLIT, TILE_COPIES } tile_problem;
tile_problem tiler_problem(const tile_shape *s);
static inline bool tiler_can_double(const tile_shape *s) { return s->b.powers && s->b.trips > 1; }

/* block_tile_write.c */
kernel *tiler_write(tiler *w);

#endif
