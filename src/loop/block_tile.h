/* block_tile.h - what the files of a contraction in tiles of thread blocks share: the parts of the scalar kernel, the shape of
 * its tiles, and the kernel that is written. bind, split_k and pack_shared say the shape; tile has thread_tile.c write it. */
#ifndef TN_LOOP_BLOCK_TILE_H
#define TN_LOOP_BLOCK_TILE_H

#include "loop/build.h"
#include "loop/gpu_bind.h"

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
    int split_k;    /* threads along the contraction */
    bool matrix;    /* matrix units multiply: a thread's tile are the fragments that it has */
    int staged;     /* and how its results go through shared memory */
    int group;      /* tiles of rows whose thread blocks are neighbours in the grid */
    bool bulk;      /* K blocks are copied in boxes */
    k_block b;
} tile_shape;

typedef struct tile_operand { /* an operand; 0 goes with m, 1 with n */
    kvar row;
    const bool *needed; /* [ins] what its value is computed from */
    int operand;        /* that value */
    int lanes;          /* of a load from shared memory */
    int vector;         /* lanes of a load from memory, or 0 */
    kvar along;         /* the variable that they run along */
    int64_t pitch;
    bool tail;
    int buf;
} tile_operand;

typedef struct tiler {
    const kernel *k;
    int n_outer, acc, loops, n_loops, upd, end; /* instructions: accumulator, contraction loops, update, end of the outermost */
    tile_operand side[2];
    tile_shape s;
} tiler;

static inline const kins *tiler_at(const tiler *w, int i) { return &w->k->ins.at[i]; }
static inline int64_t tiler_extent(const tiler *w, kvar v) { return w->k->vars.at[v].extent; }
static inline int64_t tiler_rows(const tiler *w, int x) { return (int64_t)w->s.t[x] * w->s.n[x]; } /* of a block */

/* block_tile.c: the parts of a kernel that is one contraction with what is computed before and behind it; false, with the
 * reason, where it is another kind. *needed: [2][ins] what the operands a and b are computed from. */
bool tiler_find(tiler *w, const kernel *k, bool *needed[2], str *why);
/* v[0] is a row that operand a alone depends on, v[1] one for b. The sides: threads that are neighbours store along n. */
void tiler_take_rows(tiler *w, const kvar v[2], bool *const needed[2]);
bool tiler_stores_along(const tiler *w, kvar v);
/* k_block.c: a K block of about `steps` steps. */
k_block tiler_block(const tiler *w, int64_t steps);
/* Why the threads of that shape cannot share out its copies and sums. */
typedef enum tile_problem { TILE_FITS, TILE_SUMS, TILE_SPLIT, TILE_COPIES } tile_problem;
tile_problem tiler_problem(const tile_shape *s);
/* Whether its K blocks can be pipelined (pipeline.c). */
static inline bool tiler_can_double(const tile_shape *s) { return s->b.powers && s->b.trips > 1; }
/* tensorize.c: the shape for matrix units, and how they read operands; false, with the reason, where they cannot. */
bool tiler_read_matrix(tiler *w, str *why);
bool tiler_matrix_access(tiler *w, str *why);
/* k_block.c: whether the operand can be loaded with `lanes` lanes along v: loads that move with v do so by one, in aligned
 * pieces. */
bool tiler_is_wide(const tiler *w, const tile_operand *s, kvar v, int lanes);
/* All of it, as the roles of the kernel's loops say. */
bool tiler_read(tiler *w, const kernel *k, str *why);

/* ---- the kernel that is written ---- */

enum { FIELD_TILE = -2 };
typedef struct tile_field { /* bits of a number that is a thread's and a chunk's; what they count */
    int lo, bits;
    int dim; /* of the block, or -1: the row, FIELD_TILE: the row's tile of a matrix */
    int64_t times;
} tile_field;
typedef struct tile_layout {
    tile_field field[TN_MAX_RANK + 4];
    int n, bits;
} tile_layout;

typedef struct tile_writer {
    const tiler *w;
    kernel *o;
    gpu_digits digits;
    int thread_bits;
    affine tile[2];   /* first m, n of the block */
    affine thread[2]; /* the thread's number down, across */
    affine split_k;
    build_copier c;
} tile_writer;

typedef struct tile_sums {
    reg at[MAX_SIDE][MAX_SIDE]; /* [row][vector of columns] */
} tile_sums;

/* bind.c: the nest of the threads' digits, cut wherever a field of one of the n layouts begins; returns how many loops. A field
 * more; bits [lo, lo + bits) of chunk * threads + the thread's number. */
int tiler_open_threads(tile_writer *w, const tile_layout *l, int n);
void tiler_add_field(tile_layout *l, int dim, int64_t count, int64_t times);
affine tiler_number(const tile_writer *w, int lo, int bits, int64_t chunk);

/* pack_shared.c: what the bits of a copy's number count; both operands' parts of K block s, into shared memory. */
tile_layout tiler_copy_layout(const tiler *w, int x);
void tiler_copy_blocks(tile_writer *w, affine s);

/* tensorize.c: what the bits of a thread's number count where results are staged. */
tile_layout tiler_staged_layout(void);
/* tensorize.c: the products of a K block by matrix units; acc has the thread's fragment of the sums. What comes behind the
 * contraction, from there. */
void tiler_multiply_matrices(tile_writer *w, reg acc);
void tiler_write_fragments(tile_writer *w, reg acc);

/* tile_results.c: what comes behind the contraction, for one vector of sums. */
typedef struct tile_results {
    bool *on[2]; /* [scalar ins] depends on m, n */
    affine idle; /* not 0 for threads that have none */
    int64_t n_idle;
    reg *seen; /* [scalar ins] what does not depend on both: as it was written */
} tile_results;
tile_results tiler_find_results(const tiler *w);
/* From the sum v at m, n. first_m, first_n: what does not depend on m, or on n, is written, too. */
void tiler_write_result(tile_writer *w, tile_results *r, affine m, affine n, reg v, bool first_m, bool first_n);
/* First of the rows (or columns) that the thread has as vector g. */
affine tiler_vector_at(const tile_writer *w, int x, int g);

/* split_k.c: partial tiles are added in shared memory. */
tile_layout tiler_partial_layout(const tiler *w);
void tiler_write_partials(tile_writer *w, const tile_sums *acc);

#endif
