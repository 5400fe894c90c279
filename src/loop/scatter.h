/* scatter.h - the parts of a scatter-add: what its steps and their recipe share. */
#ifndef TN_LOOP_SCATTER_H
#define TN_LOOP_SCATTER_H

#include "loop/gpu_bind.h"

enum { SCATTER_WARP = 32, SCATTER_MOST_COLUMNS = 8 };

typedef struct scatter {
    const kernel *k;
    kernel *o;
    build_copier copy;
    int n_outer;
    int base, base_loops, base_end; /* the nest that writes the base: its first loop, how many (0: it is in place), the end of
                                       the first */
    int adds, columns, end;         /* the loop over the adds; loops over columns in it; its end */
    int first, at;                  /* the body and the scatter that ends it */
    bool *of_index;                 /* [ins] the index needs it */
    const bool *varies;             /* [ins] along the innermost loop over columns */
    int64_t n_adds, n_columns, places;
    kvar place_var;          /* of the base's nest; -1: there is none */
    bool flat;               /* the base's nest is one loop over places and columns */
    int warp, block_threads; /* threads that look at indices together; threads of a block */
    int lanes;               /* columns of a thread that go through memory together */
    int64_t range, width;    /* places of a block; elements of the innermost column loop */
    int64_t ranges, blocks;
} scatter;

/* Returns false, with the reason, where the kernel is of another kind. */
bool scatter_find(scatter *w, const kernel *k, str *why);
/* Columns that make all accesses which move with the innermost loop over them aligned vectors; else 1. */
int scatter_lanes(scatter *w);

#endif
