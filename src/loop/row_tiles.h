/* row_tiles.h - what the files of bind_row_tiles share: the parts of rows of contractions and elementwise work, and how they
 * lie in a thread block. All memory is of the scalar kernel's arena. */
#ifndef TN_LOOP_ROW_TILES_H
#define TN_LOOP_ROW_TILES_H

#include "loop/gpu_bind.h"

enum { RT_MOST_LAST = 2 /* contractions that add up from tile to tile */ };
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
    int buf;                /* of the new kernel; matrix: -1 where it is a fragment in registers */
    int64_t rows, steps, pitch; /* rows: of the block, or columns */
    bool across;
    uint8_t dtype; /* matrix: of its numbers, .. */
    int64_t elems; /* .. how many of an iteration lie in shared memory, .. */
    bool brought;  /* .. and that another operand, the same numbers, brings them there */
} rt_operand;

typedef struct rt_nest {
    rt_kind kind;
    int loop, end;
    kvar v;               /* of the columns; RT_TILES: of the tiles */
    ext n;                /* columns: a literal; RT_TILES: tiles */
    bool vectors, placed; /* a thread has vectors of columns, else each across-th one; placed: that is decided */
    int grid_blocks;      /* vectors, or columns, of a thread */
    const bool *varies;   /* [ins] from column to column */
    int acc, inner, upd;
    rt_operand side[2]; /* of the rows, of the columns */
    int tiles;          /* the RT_TILES that it is in, + 1 */
    int store;          /* RT_COPY: its store */
} rt_nest;

typedef struct rt_number { /* matrix: f32 numbers of the columns that come with their tile, through shared memory */
    int load;              /* the first instruction that loads them */
    int nest, buf;         /* its nest, + 1; of the new kernel */
} rt_number;

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
    ext rows;                    /* of all */
    int block, down, across, tr; /* rows of a block; threads; rows of a thread */
    VEC(rt_nest) nests;
    int *nest_of; /* [ins] + 1: the innermost one */
    rt_buf *bufs; /* [bufs] */
    VEC(rt_number) numbers;
    int *number_of; /* [ins] + 1: which a load loads */
    bool matrix;    /* matrix units multiply: threads have rows and columns as kernel_fragment says */
    int wide;       /* columns of a vector */
    int skip;       /* instruction: the comparison of indices that a score needs to count; 0: all do */
} row_tiles;

static inline const kins *rt_ins(const row_tiles *w, int i) { return &w->k->ins.at[i]; }
static inline bool rt_local(const row_tiles *w, const kins *in) { return loop_is_local(w->k, in); }

/* The last rows of all may be less than a block's; columns, or tiles, at most. */
static inline bool rt_row_tail(const row_tiles *w) { return ext_divisor(w->k->params, w->rows) % w->block != 0; }
static inline int64_t rt_most(const row_tiles *w, const rt_nest *n) { return ext_hi(w->k->params, n->n); }

/* row_tiles_matrix.c: the last contractions of the tiles, which go on from one to the next; rt_n_last: how many. */
int rt_n_last(const row_tiles *w, const rt_nest *tiles);
const rt_nest *rt_last(const row_tiles *w, const rt_nest *tiles, int l);

/* ---- writing ---- */

typedef struct rt_writer {
    row_tiles *w;
    kernel *o;
    gpu_digits digits;
    int log_threads;
    int64_t apart; /* neighbours across */
    affine x, y, first_row;
    int most_blocks;    /* vectors, or columns, of a thread in a nest */
    reg **to;           /* [rows x most_blocks][ins] where a register is now */
    reg **held;         /* [bufs][rows x thread blocks] */
    bool *wrote, *read; /* [new bufs] since all threads met */
    build_copier c;
    const rt_nest *ahead;            /* the serial loop whose operands come an iteration ahead */
    int asked;                       /* those of contractions before this instruction are under way */
    reg zeros, broken[RT_MOST_LAST]; /* 0 times what skipped tiles would have multiplied with */
    const rt_nest *tiles;            /* matrix: the serial loop that is written, .. */
    affine tile, stage;              /* .. its iteration, and which of two stages has the operands */
    bool whole;                      /* the comparison that tiles are skipped by holds in all of it */
    reg *sums;                       /* [nests] matrix: of products that have begun */
} rt_writer;

static inline affine rt_bits_of(const rt_writer *w, int lo, int hi) { /* bits [lo, hi) of the thread's number */
    return gpu_digits_at(w->o, &w->digits, lo, hi);
}
static inline reg *rt_at_place(const rt_writer *w, int row, int g) { /* [ins] registers of a row, and vector g of its nests */
    return w->to[row * w->most_blocks + g];
}

/* row_tiles_write.c */
kernel *row_tiles_write(row_tiles *w);

/* row_tiles_matrix.c: whether matrix units can multiply, and what that changes of the parts; then their memory, their operands,
 * and the products. */
bool rt_matrix_read(row_tiles *w);
uint64_t rt_matrix_cuts(const row_tiles *w); /* bits of the thread's number where a digit begins */
void rt_matrix_buffers(rt_writer *w);
/* Operands that move with the serial loop, or those that do not: of iteration `tile` (bounded: which may lie behind the last),
 * to that stage. */
void rt_matrix_copy(rt_writer *w, bool moving, affine tile, bool bounded, affine stage);
reg rt_matrix_number(rt_writer *w, int load, affine column); /* two of them, of the tile that is worked on */
void rt_matrix_copy_nest(rt_writer *w, const rt_nest *n);    /* RT_COPY */
/* Sums that begin with what is computed already, if anything; their pairs are in the registers of n->acc then. Products behind
 * it begin with it where they need nothing of this tile. */
void rt_matrix_product(rt_writer *w, const rt_nest *n);
/* The contraction behind n, whose products units make beside those of n: its weights are there, too; or NULL. */
const rt_nest *rt_matrix_beside(const rt_writer *w, const rt_nest *n);

#endif
