/* zero_tile.h - a register tile of a contraction whose products with zeros are left out: what skip_zeros.c and skip_columns.c
 * share. In: tiled form, in blocks of rows. All memory comes from the kernel's arena. */
#ifndef TN_LOOP_ZERO_TILE_H
#define TN_LOOP_ZERO_TILE_H

#include "ir/kernel.h"

enum { ZERO_TILE_ROWS = 16, ZERO_TILE_COLUMNS = 64 };

typedef struct zero_tile { /* a contraction loop and what it loads */
    int loop, end;
    int row[ZERO_TILE_ROWS], column[ZERO_TILE_COLUMNS]; /* loads: of values that are broadcast; of vectors */
    int n_rows, n_columns;
    int64_t piece; /* iterations that are left out together */
    int lanes;     /* of loads that look for zeros */
} zero_tile;

typedef struct kins_writer { /* instructions that will be put into a kernel */
    kins *at;
    int n;
    reg first; /* register of the first */
} kins_writer;
static inline reg kins_put(kins_writer *w, kins in) {
    w->at[w->n++] = in;
    return w->first + (reg)w->n - 1;
}

/* Whether the loop does nothing but multiply-adds of a value that is broadcast, which lie side by side along the loop, and a
 * vector, and has pieces. */
bool zero_tile_find(const kernel *k, int loop, zero_tile *out);
/* The loops [n] inside the blocks that the vectors depend on, outermost first. False where they depend on the rows of a block,
 * or blocks fill what they are read from: then nobody can look at them before the blocks, which begin at `first`. */
bool zero_tile_columns(const kernel *k, const zero_tile *t, int first, int *loops, int *n);
/* buffer `flag` [at] = the sum of 0 times all vectors of the tile: not 0 where they are not all finite. At most
 * ZERO_TILE_CHECK instructions. */
enum { ZERO_TILE_CHECK = 4 * ZERO_TILE_COLUMNS + 2 * MAX_LOOPS + 64 };
void zero_tile_check(kernel *k, const zero_tile *t, const int *loops, int n, int flag, int at, kins_writer *w);
/* x with loop variable v in piece `piece` of so many iterations. */
affine zero_tile_in_piece(kernel *k, affine x, kvar v, kvar piece, int64_t length);

#endif
