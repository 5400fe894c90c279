/* recipe.h - from the shape of a kernel and the machine to its schedule: what runs along lanes, what is unrolled, what is
 * copied into panels, what is split over threads. One file a kind of decision; cpu.c is the order of them.
 *
 * A recipe does each step to the kernel as soon as it has decided on it, so that the next decision sees what the kernel has
 * become; the list of steps is the schedule. In: scalar form. All memory comes from the kernel's arena. */
#ifndef TN_RECIPE_RECIPE_H
#define TN_RECIPE_RECIPE_H

#include "ir/target.h"
#include "loop/loop.h"
#include "loop/schedule.h"
#include "machine/machine.h"

enum { PANEL_VECTORS = 4 };
typedef struct recipe {
    kernel *k;
    const target *t;
    schedule *s;       /* what was done */
    kvar threads;      /* the loop that threads will share, or -1 */
    int rows, vectors; /* of a contraction's register tile, where they are given and fit; 0: the cheapest */
    bool laid_out;     /* weights lie in panels of PANEL_VECTORS, for any number of rows .. */
    bool lone;         /* .. and this is one */
    int join;          /* row loops whose iterations are columns of the panels, beside the one with the lanes */
} recipe;

recipe recipe_make(kernel *k, const target *t);
/* Does a step, given as text. recipe_try: returns false where it is refused; recipe_do: that is an error of the recipe, and
 * jumps with TN_ERR_INTERNAL. */
void recipe_do(recipe *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
bool recipe_try(recipe *r, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* nest.c: contraction loops in the order in which their operands lie in memory. */
void recipe_order(recipe *r);
/* Then the row along which the terms of sums lie side by side as the innermost, where results lie the other way. */
void recipe_along_terms(recipe *r);
/* Then, where a result has no more columns than one vector: the taps of a window become the innermost loop, so that neighbours
 * share what they load. */
void recipe_slide(recipe *r);
/* Behind packed_dot: the taps along which neighbours of a tile share words become the innermost loop. */
void recipe_slide_words(recipe *r);
/* lay_out.c: narrow weights in panels, for any number of rows. */
void recipe_lay_out(recipe *r);
/* All pairs of nested loops that walk memory as one become one. */
void recipe_fuse_loops(recipe *r);

/* register_tile.c: which variable runs along vector lanes, which are unrolled, which is split over threads. */
void recipe_register_tile(recipe *r);
/* The same for recipe_pack, with lanes along a row of the result along which an operand lies in no way to be read as vectors,
 * which a copy can give it: along the contraction (inner products), strided, or in rows too short for whole vectors (windows of
 * images), several of which are joined then. Returns whether that is possible. */
bool recipe_register_tile_packed(recipe *r);
bool recipe_is_worth_sharing(const kernel *k, const target *t); /* among threads */
/* Cycles of one step along a contraction for a register tile of mr x nv accumulators. */
double recipe_tile_cost(const machine *m, int mr, int nv);

/* cache_block.c: whether the operand with the lanes is packed into panels, and how; only_constant: only where it is laid out
 * before any run, so that nothing is copied. Returns whether it was. */
bool recipe_pack(recipe *r, bool only_constant);
/* gemv.c: few vectors times a matrix read the matrix row by row. Returns whether the kernel is of that kind. */
bool recipe_gemv(recipe *r);
/* transpose.c: kernels that transpose what they read do so block by block. */
void recipe_transpose(recipe *r);

/* The same on GPUs, through shared memory. Returns false where nothing is transposed or too little. */
bool recipe_transpose_tile(recipe *r);

/* gpu.c: the schedule of a kernel for a GPU, and the kernel that it makes. *out may be NULL. */
kernel *recipe_gpu(kernel *k, const target *t, const schedule **out);
/* What a kernel could be on a GPU: steps, between semicolons, and what they would cost, in instructions of a thread. The
 * functions below change *best, and return true, where their steps cost less than what it has. In: scalar form. */
typedef struct recipe_form {
    double cost;
    const char *steps;
} recipe_form;
void recipe_do_all(recipe *r, const char *steps);
/* block_tile.c: a contraction in tiles of shared memory and registers. */
bool recipe_block_tile(const kernel *k, const target *t, recipe_form *best);
/* The steps for shapes that such tiles could have, all with the same order of sums, the cheapest first; at most cap. 0 where
 * there are none. */
int recipe_block_tiles(const kernel *k, const target *t, const char **out, int cap);
struct tiler; /* loop/block_tile.h */
/* Takes the row variables to tile: one that only operand a depends on and one for b; neighbours store along n. */
bool recipe_tile_rows(struct tiler *w, bool *const needed[2]);
/* Steps of its contraction; thread blocks for tiles of rows x columns. */
double recipe_tile_depth(const struct tiler *w);
double recipe_tile_blocks(const struct tiler *w, double rows, double columns);
/* tensorize.c: the same with matrix units, where the machine has them. */
bool recipe_tensorize(const kernel *k, const target *t, recipe_form *best);

/* attention.c: rows of two contractions with a softmax between them, or of several that make scores and one that takes them. */
enum { ATTENTION_PRODUCTS = 4 /* at most */ };
bool recipe_attention(const kernel *k, const target *t, recipe_form *best);
double recipe_attention_start(const target *t); /* nanoseconds of its cost that begin and end it; other forms count none */
/* short_rows.c: contractions of few steps to few columns, which are combined: whole rows in registers. */
bool recipe_short_rows(const kernel *k, const target *t, recipe_form *best);
/* kernel.c: whether a row's scores are as many as a run says (sched/attention_fusion.c): only tiles of them have room. */
bool recipe_has_scores(const kernel *k);
/* The same for few rows, such as those of one query: a thread block has a row, and several threads share each sum. */
bool recipe_row_sums(const kernel *k, const target *t, recipe_form *best);
/* Bytes of the local buffers of a scalar kernel: what a row keeps. */
int64_t recipe_local_bytes(const kernel *k);
/* thread_columns.c, cluster_columns.c: rows with contractions inside. */
bool recipe_thread_columns(const kernel *k, const target *t, recipe_form *best);
bool recipe_cluster_columns(const kernel *k, const target *t, recipe_form *best);
/* reduce_columns.c: sums of columns. */
bool recipe_reduce_columns(const kernel *k, const target *t, recipe_form *best);
/* scatter.c: does the step of a scatter-add; false where the kernel is something else. */
bool recipe_scatter(recipe *r);

/* dot_rows.c: does the steps of rows that sum products with a row of a large matrix; false where the kernel is something else.
 */
bool recipe_dot_rows(recipe *r);
/* Whether it is one vector times such a matrix, or several; the elements of the vector that a thread has then, or 0. */
int64_t recipe_dot_rows_share(const kernel *k, const target *t);
/* map.c: an iteration of the outer loops, or a vector of them, is a thread's of a GPU. */
void recipe_map(recipe *r);
/* gpu.c: threads of a block that has a row, an iteration of the outer loops, where that takes less than a thread for each; else
 * 0. */
int recipe_threads_of_rows(const kernel *k, const target *t, double *cost);
/* row.c: whether thread blocks have rows one after the other, and sums of their columns (sched/column_sums.c). */
bool recipe_row_blocks(const kernel *k, int n_rows);
/* row.c: threads of a block such that each keeps its share of a row in registers, when scalar kernel k is rows of elementwise
 * work and sums; else 0. *cluster: thread blocks that a row is too long for one of, up to 1: it is not. *in_shared: each keeps
 * it in shared memory. */
int recipe_row_threads(const kernel *k, int n_rows, const target *t, int *cluster, bool *in_shared);
enum {
    RECIPE_CACHED_TURNS = 8,  /* most iterations of a thread in a nest whose elements stay in registers, .. */
    RECIPE_SHARED_TURNS = 16, /* .. or in shared memory, .. */
    RECIPE_CACHED_SHARE = 32  /* .. and elements of it in registers, where a row has many */
};
/* Starting thread blocks costs time, too, on a machine for `grid` threads: in instructions of a thread. */
static inline double recipe_start_cost(double blocks, const target *t) {
    const machine *m = machine_row_of(t);
    return blocks * m->block_ns / m->count_ns / machine_units(t);
}

/* sparse.c: what a mask makes needless. */
void recipe_sparse(recipe *r);

/* memory.c: what is fetched ahead; what is written past the caches. */
void recipe_prefetch(recipe *r);
void recipe_prefetch_panels(recipe *r);
void recipe_nontemporal(recipe *r);

/* cpu.c: the schedule of a kernel for the processor, and the kernel that it makes. *out may be NULL. */
kernel *recipe_cpu(kernel *k, const target *t, const schedule **out);
/* params.c: kernels with sizes that are given at run time: rows of such a number become blocks, if that is all; the steps up to
 * tile of others. */
void recipe_fuse_rows(recipe *r); /* rows of rows */
void recipe_block_rows(recipe *r);
void recipe_params(recipe *r);
/* tile_nest.c: the steps up to tile. nests.c: the same for a kernel that goes by blocks of rows. */
void recipe_tile_nest(recipe *r);
void recipe_tile_in_place(recipe *r); /* without copies into panels, and up to parallel */
void recipe_nests(recipe *r);
/* tuned.c: the kernel that a text of the tuning database makes of the scalar kernel k, whose schedule by the recipe is `model`;
 * NULL, with the reason in *why, where it is no such text, a step is refused, or bits would be others. Loops may have names of
 * other letters. */
kernel *recipe_tuned(kernel *k, const target *t, const schedule *model, const char *text, const schedule **out,
                     const char **why);

/* alternatives.c: schedules that differ from one of the kernel in one decision, with the kernels they make, which have the same
 * bits; at most cap, those that promise most first. Returns how many. */
typedef struct recipe_alternative {
    const schedule *s;
    kernel *k;
} recipe_alternative;
int recipe_alternatives(const kernel *scalar, const target *t, const schedule *from, arena *a, recipe_alternative *out,
                        int cap);
/* gpu.c: the same for a GPU: other tiles of a contraction. */
int recipe_gpu_alternatives(const kernel *scalar, const target *t, const schedule *from, arena *a, recipe_alternative *out,
                            int cap);
/* difference.c: "unroll_jam i1 3; no prefetch_rows": what s has that `from` has not. */
const char *recipe_difference(const schedule *from, const schedule *s, arena *a);

/* In which order the sums of a scalar kernel take their terms: two that compute the same values and have the same here give the
 * same bits. Spoils the kernel. */
uint64_t recipe_sums_order(kernel *k, const target *t);

/* kernel.c: the kernel in its target's form: by t->schedules where the kernel has one there, else by the text of the tuning
 * database
 * (`measured`, may be NULL) where that is possible, else by recipes. *out (may be NULL): how. */
typedef struct recipe_made {
    const schedule *schedule;
    const char *tuned;   /* the measured text, where it was heeded */
    const char *ignored; /* why it was not */
} recipe_made;
kernel *recipe_kernel(kernel *k, const target *t, const char *measured, recipe_made *out);
/* Whether a kernel in scalar form has a schedule where a run gives sizes of it; one of literal sizes always has. */
bool recipe_takes(const kernel *k, const target *t);

/* candidates.c: texts next to `from` (NULL: as the recipe has it), which make other code of the scalar kernel than it and than
 * each other and give the same bits, with that code; those that promise most first. Returns how many there are, at most cap. */
typedef struct recipe_candidate {
    const char *text;
    kernel *k;
    double ns; /* predicted, by recipe_rank */
} recipe_candidate;
int recipe_candidates(const kernel *scalar, const target *t, const char *from, arena *a, recipe_candidate *out, int cap);
/* Puts candidates in the order of their predicted times. Returns how many are worth measuring, which come first: those that are
 * predicted to take less than 1.5 times as long as the first one. */
int recipe_rank(const target *t, arena *a, recipe_candidate *all, int n);
/* What a text changes about another, mostly the recipe's, for people. */
const char *recipe_change_text(const char *old, const char *text, arena *a);
#define RECIPE_ITSELF "recipe" /* the text for no other schedule than the recipe's */
/* What a kernel is like that was made: "i0 6 x 1, j1 2 x 8 of 540; copies of 24.0 KiB". */
const char *recipe_form_text(const kernel *k, arena *a);

#endif
