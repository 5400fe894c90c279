/* register_tile.h - what the files share that choose the register tile of a kernel. */
#ifndef TN_RECIPE_REGISTER_TILE_H
#define TN_RECIPE_REGISTER_TILE_H

#include "recipe/recipe.h"

typedef struct ref { /* one memory access */
    const kins *in;
    uint64_t open; /* loops around it */
    double times;  /* iterations */
    int nest;      /* which top-level nest inside the rows; -1: directly in the rows */
} ref;

typedef struct tile_chooser {
    recipe *r;
    const kernel *k;
    const target *t;
    krole role[MAX_LOOPS]; /* by variable: what was chosen so far */
    int lanes;
    VEC(ref) refs, work; /* memory accesses; arithmetic */
    int n_nests;
    uint64_t nest_vars[64];
    uint64_t row_vars;
    const kins *dot; /* the contraction's update, if there is one */
    uint64_t dot_open;
    int64_t tile_m, tile_nvec; /* what the contraction's tile covers; 0 = there is none */
    int64_t most_nv;
    bool tile_split; /* split: bf16 without an instruction for words of it */
    bool tile_pairs; /* bytes as pairs of 16 bits, without an instruction that adds what it multiplies */
} tile_chooser;

/* vector_loop.c: reads the kernel: loops, accesses, lanes of its widest values. */
void tile_survey(tile_chooser *c);
/* The candidate along which most memory is contiguous, of a nest or (-1) the whole kernel; -1: none is worth it. */
kvar tile_vector_loop(const tile_chooser *c, uint64_t candidates, int nest, double *out_score);
/* The row whose lanes are gathered where none of those is worth it; -1: that is not, either. */
kvar tile_gathered_row(const tile_chooser *c);
/* The row along which a load that lies the wrong way for lanes along v is contiguous: squares of it can be turned in registers;
 * -1: there is none. */
kvar tile_turned_along(const tile_chooser *c, const kins *in, kvar v);

/* Vectors of n columns, with pieces of one for the last. */
static inline int64_t tile_steps(int64_t n, int lanes) {
    int64_t steps = n / lanes;
    for (int64_t rest = n % lanes; rest; rest &= rest - 1) steps++;
    return steps;
}

/* contraction_tile.c: the rows and vectors of the contraction's register tile with lanes along row vec; the same with lanes
 * along the contraction loop vec. */
/* columns: along vec, of all rows that are joined there; as many of these are then copied at a time that none is left over.
 */
void tile_contraction(tile_chooser *c, kvar vec, int64_t columns, bool joined);
void tile_inner_product(tile_chooser *c, kvar vec);
/* Whether the contraction multiplies bytes as pairs of 16 bits (target_multiplies_pairs), if its loops allow that. */
bool tile_makes_pairs(const tile_chooser *c);
/* register_tile.c: the innermost row, if all results lie along it; or -1. */
kvar recipe_result_row(const kernel *k);
/* The load that most of what an operand is computed of comes from; NULL: there is none. */
const kins *tile_operand_load(const tile_chooser *c, reg r);

#endif
