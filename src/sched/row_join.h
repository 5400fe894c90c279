/* row_join.h - consecutive kernels of a plan become one, where each row of a later one needs that row alone of what the earlier
 * ones made: the loops over rows are shared, and what nothing else reads is local. Which kernels is the choice of
 * vertical_fusion.c (thread blocks of a GPU) and row_block.c (blocks of rows in the caches of a processor).
 *
 * In: a plan with kernels in scalar form, after the choice of what is done in place. Everything lives in the plan's arena. */
#ifndef TN_SCHED_ROW_JOIN_H
#define TN_SCHED_ROW_JOIN_H

#include "ir/plan.h"
#include "ir/target.h"

enum {
    ROW_MOST_SHARED = 3 /* loops over rows */,
    ROW_MOST_LINKS = 160 /* kernels of a chain */,
    ROW_MOST_ARGS = 240 /* buffers of a chain */
};

typedef struct row_access { /* all that a kernel does with one plan buffer */
    int32_t buf;
    bool reads, writes, apart; /* apart: row r touches only its own `stride` elements, from r * stride on */
    bool state;                /* part of the buffer of all states, which no run changes */
    ext stride, elems;         /* stride: a literal where rows are apart, unless of_run */
    uint8_t dtype;
} row_access;

typedef struct row_link { /* a kernel that shares some loops over rows */
    row_access *at;
    int n;
    int64_t local; /* bytes of its own local buffers */
} row_link;

typedef struct row_chain { /* kernels [first, first + n) of the plan */
    plan *p;
    int first, n, shared;
    VEC(const row_link *) links; /* [n] */
    VEC(row_access) all;         /* everything they touch */
    int ins, args;               /* args: of all, those that need a buffer of their own */
    int64_t local;               /* bytes of their own local buffers */
} row_chain;

typedef struct row_uses { /* [plan bufs] kernels */
    int *first, *last;
    int *arg_of; /* scratch of row_join: all -1 */
} row_uses;

/* Loops over rows that could be shared; the extent of the i-th; iterations of the first `shared`, at most. */
int row_shared_loops(const kernel *k);
ext row_extent(const kernel *k, int i);
int64_t row_count(const kernel *k, int shared);
bool row_same(const kernel *x, const kernel *y, int shared); /* both have these loops, of equal extents */

/* of_run: a run may say how many elements of a buffer a row has. */
row_link row_link_make(const plan *p, const pkernel *pk, int shared, bool of_run);
row_uses row_find_uses(const plan *p);

row_chain row_chain_make(plan *p, int first, int shared);
/* Why the kernel cannot follow, given the room for local buffers and the most buffers; NULL: it can. */
const char *row_objection(const row_chain *c, const row_link *l, const kernel *k, int64_t room, int most_args);
void row_append(row_chain *c, const row_link *l, const kernel *k);
/* Bytes that the chain touches row by row, and the kernel reads in the same rows, `rows` in all. */
int64_t row_read_again(const row_chain *c, const row_link *l, int64_t rows);
/* Only the chain sees access x is to, and each row its own part. */
bool row_is_private(const row_chain *c, const row_uses *uses, const row_access *x);

/* row_cut.c: from a kernel on, loops over rows that it and the next ones can have outermost: numbers of pieces that their
 * outermost loops can be cut into, falling; then the kernel's own loops, one, two, .. */
typedef struct row_cuts {
    const plan *p;
    int first, next, most, whole; /* most: loops of the first kernel; whole: so many are taken as they are, 0: pieces */
    int n;                        /* loops over rows, */
    int64_t rows, extent[ROW_MOST_SHARED]; /* of so many iterations in all and each */
} row_cuts;
row_cuts row_cuts_make(const plan *p, int first);
bool row_cuts_next(row_cuts *c);
/* Kernels from c->first on, each of which reads what the one before it makes, with these loops outermost, theirs being cut and
 * changing places; returns how many, 0: none needs to. out: [ROW_MOST_LINKS] */
int row_cut(const row_cuts *c, const target *t, kernel **out);

typedef struct row_form {
    int64_t room;        /* bytes of local buffers between the kernels */
    int64_t block;       /* rows of a block of the innermost shared loop; 0: row by row */
    bool states;         /* states that no run changes become one buffer of each dtype */
    bool forward;        /* what a link stores once a row, the next ones take from its register; */
    bool halves;         /* what is stored in 16 bits, too, rounded */
    const uint8_t *kind; /* [n] local buffers are used again by kernels of the same kind only; NULL: by all */
} row_form;
/* The kernel and its arguments. */
pkernel row_join(row_chain *c, const row_uses *uses, const row_form *form);
/* It takes the place of the chain's kernels: private buffers that became local leave the plan, and explain hears why. */
void row_commit(const row_chain *c, const row_uses *uses, const pkernel *pk, const char *reason);

/* attention_fusion.c: whether kernel j writes where kernel i reads or writes. */
bool row_disturbs(const plan *p, int j, int i);
void row_decide(plan *p, val from, val to, bool fused, const char *reason);

#endif
