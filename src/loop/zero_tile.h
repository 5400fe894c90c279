/* zero_tile.h - a register tile of a contraction whose products with zeros are left out: what skip_zeros.c and skip_columns.c
 * share. In: tiled form, in blocks of rows. All memory comes from the kernel's arena. */
#ifndef TN_LOOP_ZERO_TILE_H
#define TN_LOOP_ZERO_TILE_H

#include "loop/build.h"
#include "loop/loop.h"

enum { ZERO_TILE_ROWS = 16, ZERO_TILE_COLUMNS = 64 };

typedef struct zero_tile { /* a contraction loop and what it loads */
    int loop, end;
    kvar var;
    kins *row, *column; /* loads: of values that are broadcast; of vectors */
    int n_rows, n_columns;
    kins *loops; /* inside the blocks that the vectors depend on, outermost first */
    int n_loops;
    int64_t piece; /* iterations that are left out together */
    int lanes;     /* of loads that look for zeros */
} zero_tile;

/* Whether the loop does nothing but multiply-adds of a value that is broadcast, which lie side by side along the loop, and a
 * vector, and has pieces. */
bool zero_tile_find(const kernel *k, int loop, zero_tile *out);
/* Its loops. False where they depend on the rows of a block, or blocks fill what they are read from: then nobody can look at
 * them before the blocks, which begin at `first`. */
bool zero_tile_columns(const kernel *k, zero_tile *t, int first);
/* Writes: buffer `flag` [at] = the sum of 0 times all vectors of the tile: not 0 where they are not all finite. */
void zero_tile_check(kernel *k, const zero_tile *t, int flag, int at);

/* The loop at instruction `loop` goes in pieces, over which there is a loop. What is written next says whether one of them is
 * needed, until the cut is closed. */
typedef struct piece_cut {
    loop_insertion at;
    kvar piece;
    int64_t length;
} piece_cut;
piece_cut zero_tile_cut(kernel *k, int loop, int64_t length);
void zero_tile_close(kernel *k, const piece_cut *c, reg needed);

#endif
