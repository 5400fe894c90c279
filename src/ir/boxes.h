/* boxes.h - what bulk copies move (LOAD_BULK): the pieces of all threads of a thread block, as boxes of a matrix in memory,
 * which one thread asks for (TMA); or, from shared memory, sends there.
 *
 * The kernel says what each thread copies, as with any other copy; boxes are found in that and proved. A run of copies, one
 * directly behind the other, fills one stage of each of its shared buffers, or empties them. Rows of 128 bytes there are rows
 * of a box, swizzled as kbuf.swizzled says. What lies beyond the matrix is 0: so masks that say where it ends need not be
 * tested. Other masks must be the same for all threads: where one fails, nothing is copied, and nothing may read that stage
 * then. Nothing is sent beyond the matrix. */
#ifndef TN_IR_BOXES_H
#define TN_IR_BOXES_H

#include "ir/kernel.h"

enum { KERNEL_MOST_MAPS = 24, KERNEL_MOST_BOXES = 16 /* of a run */ };

typedef struct kmap { /* a matrix of 2-byte elements that boxes are of */
    int buf;          /* all of it is the matrix */
    int64_t pitch, rows;
    int64_t box_rows; /* of KERNEL_MATRIX elements */
} kmap;
typedef struct kmaps { /* of a kernel; a launch has them behind its buffers */
    kmap at[KERNEL_MOST_MAPS];
    int n;
} kmaps;

typedef struct kbox {
    int map;
    affine x, y;       /* its first column and row */
    int buf;           /* shared, and where it goes there */
    int64_t at, elems; /* elems: that the run copies there in all */
} kbox;
typedef struct kboxes { /* a run of copies */
    reg end;            /* behind its last instruction */
    kbox at[KERNEL_MOST_BOXES];
    int n;
    const kmask *mask; /* [n_mask] of all threads */
    int n_mask;
    int64_t stage, bytes; /* bytes: of all boxes */
    bool sent;            /* from shared memory */
} kboxes;

static inline bool kernel_is_bulk(const kins *in) { return in->op == K_LOAD && in->mode == LOAD_BULK; }
static inline bool kernel_is_sent(const kernel *k, const kins *in) {
    return kernel_is_bulk(in) && k->bufs.at[in->buf].kind == KB_SHARED;
}
/* The run that begins with the bulk copy r; maps grow by those that it needs and are not there. False, with the reason. */
bool kernel_boxes(const kernel *k, reg r, kmaps *maps, kboxes *out, str *why);
/* All of a kernel, in order; *stages: how many there are. */
bool kernel_maps(const kernel *k, kmaps *out, int *stages, str *why);

/* What a thread block does where thread blocks take turns (kernel.turns): it asks for the first blocks of its next part when
 * all have its last products, before it writes the results of this one, which lie elsewhere then; or, where these have memory
 * of their own, as soon as the last turn of the loop is done with a stage. */
enum { KERNEL_MOST_FIRST = 8 };
typedef struct kturns {
    reg open, first, first_end; /* the nest over thread blocks; copies in [first, first_end) are those first ones */
    reg again;                  /* the barrier behind which all have the last products */
    bool apart, streams; /* results have memory of their own; the first blocks come into stages that the last turn frees */
    int64_t late;        /* not apart: where the memory of what lies late begins, instead of at 0 */
} kturns;
bool kernel_turns(const kernel *k, kturns *out, str *why);
/* The loop around run r whose last turn alone leaves it out, or 0. */
reg kernel_ends_in_last_turn(const kernel *k, reg r, const kboxes *b);

#endif
