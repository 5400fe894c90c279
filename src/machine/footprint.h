/* footprint.h - which bytes the loops of a kernel touch, and how often they come from which memory level.
 *
 * In: a kernel in its tiled or GPU form. Out: the tree of its loops; loads and stores of one buffer that lie alike as one
 * access; for a cache of some size, the bytes that each access brings into it. A loop whose body touches no more than the cache
 * holds brings each line once; one whose body touches more brings everything again in every iteration (reuse distance by
 * footprint). Sets of lines are counted as pieces that lie apart, each as long as the loops that go through it without a gap.
 */
#ifndef TN_MACHINE_FOOTPRINT_H
#define TN_MACHINE_FOOTPRINT_H

#include "ir/kernel.h"
#include "machine/machine.h"

typedef struct fp_loop {
    int ins, end, parent; /* K_LOOP and its K_END; 0 is the kernel itself */
    kvar var;
    int64_t step;
    double trips; /* of the thread that has most */
    double runs;  /* of its body, in all */
} fp_loop;

typedef struct fp_span {
    int64_t stride; /* bytes */
    double n;
} fp_span;

enum { FP_SPANS = 8 };
typedef struct fp_access { /* loads or stores of a buffer that differ in their base only */
    int loop, ins;         /* the innermost around it; the first of them */
    int buf;
    int64_t size;            /* of an element */
    int64_t lo, hi;          /* bases, with lanes: elements */
    fp_span spans[FP_SPANS]; /* bases and lanes */
    int n_spans;
    bool store, load, nontemporal, prefetch, random;
    double bytes[MACHINE_LEVELS]; /* filled by fp_traffic: that cross the border between this level and the one before it */
} fp_access;

typedef struct footprint {
    arena *a;
    const kernel *k;
    VEC(fp_loop) loops;
    VEC(fp_access) at;
    int *loop_of; /* [ins] the innermost loop around an instruction */
    int64_t line;
} footprint;

/* threads: that share the loops over k->par_var; GPU: all loops have all their trips; cost_gpu.c says whose. */
void fp_make(const kernel *k, arena *a, int threads, int64_t line, footprint *out);
/* Bytes of an access in one run of loop l (inside: of its body). */
double fp_bytes(const footprint *f, const fp_access *x, int l, bool inside);
/* The bytes side by side that all of the kernel touches of it without a gap, and in how many pieces. */
double fp_run(const footprint *f, const fp_access *x, double *out_pieces);
/* Adds to bytes[into] of each access what a cache of such a size has to fetch. distance: [bufs] bytes that were touched since
 * the buffer was last, before the kernel; NULL: none. */
void fp_traffic(footprint *f, double cache_bytes, machine_level into, const double *distance);

#endif
