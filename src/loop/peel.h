/* peel.h - loop peeling, for tile.c: a loop is cut into pieces in which the masks of loads are known, so that the inner pieces
 * check no bounds. In: scalar form. */
#ifndef TN_LOOP_PEEL_H
#define TN_LOOP_PEEL_H

#include "ir/kernel.h"

typedef struct kspan { /* the least and the greatest value of a loop variable */
    int64_t lo, hi;
} kspan;
enum { MAX_CUTS = 16 };
typedef struct kcuts { /* where pieces of a loop end, ascending */
    int n;
    int64_t at[MAX_CUTS];
    bool full;
} kcuts;

/* 1: the mask holds for all lanes; -1: for none; 0: it depends. spans: [vars]. */
int loop_mask_known(const kmask *m, int64_t lane_stride, int lanes, const kspan *spans);
/* Where to cut the loop at instruction `loop`, whose tiles have `step` iterations, so that masks inside are known; open: the
 * values of the variables of open loops, with their copies. */
void loop_peel_cuts(const kernel *k, int loop, int end, int64_t step, const kspan *open, kcuts *out);
int loop_peel_main(const kcuts *c); /* the longest piece */
/* Whether threads may share that piece: each other piece, which the last thread does, is one tile. */
bool loop_peel_shared(const kcuts *c, int64_t step);
/* Whether threads share all loops over v alike, so that each finds in its local memory what it left there: false where one loop
 * leaves what another one reads and their pieces differ. */
bool loop_peel_alike(const kernel *k, kvar v);
/* Comparisons of indexes that always hold, or never do, are removed, and so are the selects that they decide. Exact. */
void loop_fold_checks(kernel *k);

#endif
