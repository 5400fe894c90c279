/* contraction.h - recognises a contraction whose lanes run along a row of the result: what pack.c and the recipes
 * for them ask. In: scalar form with roles. */
#ifndef TN_LOOP_CONTRACTION_H
#define TN_LOOP_CONTRACTION_H

#include "loop/operand.h"

enum { CONTRACTION_MOST_DEPTH = 5 };

/* Rows (.., m, n), an accumulator, contraction loops, an epilogue; n runs along the lanes, m is unrolled. */
typedef struct contraction {
    kernel *k;
    VEC(kvar) rows;           /* row loops but n, outermost first */
    VEC(kvar) depth;          /* contraction loops, outermost first */
    kvar m, n;                /* m: -1 where no row is unrolled */
    int acc, first, end, upd; /* instructions: accumulator, first contraction loop and its end, update */
    operand packed;           /* the operand that runs along n and not along m .. */
    reg load;                 /* .. its load; 0: there is none to pack */
} contraction;

bool contraction_find(kernel *k, contraction *out);

/* Whether it is a matrix, contiguous along n, times one vector or several (one row loop beside n): its load; NULL: it is not.
 * Either may be computed of what is loaded. The rows of the matrix may be several loops (groups of rows). */
const kins *contraction_matrix(const contraction *c);

static inline const kins *contraction_ins(const contraction *c, int i) { return &c->k->ins.at[i]; }
static inline int64_t contraction_extent(const contraction *c, kvar v) { return c->k->vars.at[v].extent; }
/* Whether the operand to pack is computed of what is loaded, and whether it depends on a loop. */
static inline bool contraction_computes(const contraction *c) { return c->packed.value != c->load; }
static inline bool contraction_runs_along(const contraction *c, kvar v) { return c->packed.vars >> v & 1; }
static inline krole contraction_role(const contraction *c, kvar v) { return c->k->vars.at[v].role; }
/* Row loops directly around row loop n along which all but `packed`, an operand of the update, walks through memory as one with
 * n; k: any scalar form. *columns (may be NULL): their iterations and n's together. */
int contraction_joinable(const kernel *k, int upd, reg packed, kvar n, int64_t *columns);
/* Rows, and columns, of the register tile. */
int contraction_tile_rows(const contraction *c);
int64_t contraction_tile_columns(const contraction *c);
/* Iterations of the row loops, or contraction loops, from the i-th on. */
int64_t contraction_rows_from(const contraction *c, int i);
int64_t contraction_depth_from(const contraction *c, int i);
int64_t contraction_full_tiles(const contraction *c); /* along n */
/* Of the operand's elements as they lie in a panel, and of the sums. */
tn_dtype contraction_dtype(const contraction *c);
int64_t contraction_elem_size(const contraction *c);
int64_t contraction_sum_size(const contraction *c);
/* Sums that wait in local memory between K blocks: a buffer for n of them. The next K block goes on from the sum (place) where
 * the one before stopped: the order of summation, and so every bit, is that of one loop. */
int contraction_sums(const contraction *c, int64_t n);
void contraction_clear_sum(const contraction *c, kernel *o, int sums, affine place); /* what an accumulator begins with */
void contraction_resume_sum(const contraction *c, reg acc, kernel *o, int sums, affine place);
void contraction_store_sum(const contraction *c, kernel *o, int sums, affine place, reg v);
reg contraction_load_sum(const contraction *c, kernel *o, int sums, affine place);
/* How a constant operand is laid out in panels before any run: all contraction loops inside, one panel after the other for the
 * rows that the operand depends on. False where the operand is not constant or cannot be. Of an operand that is computed of
 * what is loaded, which only one row may be multiplied by, what is loaded lies so, once for loops that it does not depend on.
 */
bool contraction_layout(const contraction *c, kpanels *out);
bool contraction_in_panel(const contraction *c, kvar depth); /* whether that loop is one of the panels' */

#endif
