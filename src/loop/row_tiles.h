/* row_tiles.h - what the files of bind_row_tiles share: the parts of rows of contractions and elementwise work, and how they
 * lie in a thread block. All memory is of the scalar kernel's arena. */
#ifndef TN_LOOP_ROW_TILES_H
#define TN_LOOP_ROW_TILES_H

#include "loop/gpu_bind.h"

enum { RT_MOST_SIDE = 16 /* rows, and columns, of a thread */, RT_MOST_TILE = 128 /* elements of it */, RT_WIDE = 4 };

typedef enum rt_kind {
    RT_COPY,     /* elementwise work whose result a contraction takes: shared memory */
    RT_ELEMENTS, /* elementwise work, in registers */
    RT_REDUCE,   /* rows are combined */
    RT_PRODUCT,  /* a contraction */
    RT_TILES     /* a serial loop over such nests */
} rt_kind;

typedef struct rt_operand { /* of a contraction, in shared memory: row by row, each along the contraction, or (across) step by
                               step */
    int value;              /* instruction that computes it; 0: it lies there already */
    const bool *needed;     /* [ins] what that is computed from */
    int buf;                /* of the new kernel */
    int64_t rows, steps, pitch; /* rows: of the block, or columns */
    bool across;
} rt_operand;

typedef struct rt_nest {
    rt_kind kind;
    int loop, end;
    kvar v;               /* of the columns; RT_TILES: of the tiles */
    int64_t n;            /* columns */
    bool vectors, placed; /* a thread has vectors of columns, else each across-th one; placed: that is decided */
    int grid_blocks;      /* vectors, or columns, of a thread */
    const bool *varies;   /* [ins] from column to column */
    int acc, inner, upd;
    rt_operand side[2]; /* of the rows, of the columns */
    int tiles;          /* the RT_TILES that it is in, + 1 */
    int store;          /* RT_COPY: its store */
} rt_nest;

typedef struct rt_buf { /* a local buffer of the scalar kernel */
    bool shared;        /* a contraction takes it */
    bool held;          /* elements of it are in registers */
    bool carried;       /* .. and stay there from tile to tile */
    int stores, nest;   /* nest: whose columns it has, + 1 */
    int64_t pitch;
} rt_buf;

typedef struct row_tiles {
    const kernel *k;
    kernel *o;
    str *why;
    int n_outer, from, to;
    kvar row;
    int64_t rows;                /* of all */
    int block, down, across, tr; /* rows of a block; threads; rows of a thread */
    VEC(rt_nest) nests;
    int *nest_of; /* [ins] + 1: the innermost one */
    rt_buf *bufs; /* [bufs] */
    int skip;     /* instruction: the comparison of indices that a score needs to count; 0: all do */
} row_tiles;

static inline const kins *rt_ins(const row_tiles *w, int i) { return &w->k->ins.at[i]; }
static inline bool rt_local(const row_tiles *w, const kins *in) {
    return (in->op == K_LOAD || in->op == K_STORE) && w->k->bufs.at[in->buf].kind == KB_LOCAL;
}

/* row_tiles_write.c */
kernel *row_tiles_write(row_tiles *w);

#endif
