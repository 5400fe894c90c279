/* reduce_columns.h - the parts of a kernel that sums columns: what the step and its recipe share. */
#ifndef TN_LOOP_REDUCE_COLUMNS_H
#define TN_LOOP_REDUCE_COLUMNS_H

#include "loop/gpu_bind.h"

enum { COLUMN_MOST_SUMS = 4 };
typedef struct column {
    const kernel *k;
    const reg *outer; /* [k->ins] where registers are that are made before a nest of a row; NULL: the columns are all */
    int n_outer, from, to, loops, n_loops, end; /* `end`: of the outermost reducing loop */
    kvar v;                                     /* the innermost outer loop: columns */
    int split;                                  /* the reducing loop that is shared out */
    int acc[COLUMN_MOST_SUMS], buf[COLUMN_MOST_SUMS], n_acc;
    int lanes, across, unroll, ahead;   /* ahead: rows whose loads come first */
    int64_t down, columns, grid_blocks; /* wide: columns of a thread block */
    int kept, kept_buf;                 /* of a nest: a load that was made before it, or 0; the thread's memory that has it */
    int panels, panel_buf;              /* a load of a fixed value that is in panels, or 0; the buffer that has them */
} column;

/* Returns false, with the reason, where the kernel is of another kind. */
bool column_find(column *w, const kernel *k, str *why);
/* Whether all that is summed can be read in aligned vectors of `lanes` columns. */
bool column_lanes(const column *w, int lanes);
/* The same for the nest of a row whose outermost loop, over the columns, is instruction i, shared out to `threads` threads. */
bool column_find_nest(column *w, const kernel *k, int i, int threads);
/* Loads ahead of the nest what its threads multiply with, if that is all at once; false: it is not. */
bool column_keep(column *w, kernel *o, const reg *outer);
/* Writes the nest for the threads of a block. */
void column_write_nest(column *w, kernel *o, const reg *outer);
/* Whether load i is of a fixed value that all other outer loops share, in the order of the loops. */
bool column_takes_panels(const column *w, int i);

static inline const kins *column_at(const column *w, int i) { return &w->k->ins.at[i]; }
static inline int64_t column_trips(const kins *loop) { return loop->hi - loop->lo; }

#endif
