/* gpu_copy.h - instructions of a scalar kernel written once more into another one, at other places and in lanes: what the forms
 * for GPUs share. */
#ifndef TN_KOPT_GPU_COPY_H
#define TN_KOPT_GPU_COPY_H

#include "kopt/kopt.h"

typedef struct gpu_copier {
    const kernel *k;
    kernel *o;
    reg *to; /* [scalar ins] where a register is now */
} gpu_copier;

typedef struct gpu_places { /* what variables become, which of them may lie behind their end, and along which lanes run */
    kvar var[64];
    affine value[64];
    int n;
    kmask mask[4]; /* of loads and stores, besides their own */
    int64_t mask_lane[4];
    int n_mask;
    kvar along;
    int lanes;          /* up to 1: none */
    const bool *varies; /* [scalar ins] from lane to lane: gpu_varying */
} gpu_places;
static inline void gpu_put(gpu_places *p, kvar v, affine value) { p->var[p->n] = v, p->value[p->n++] = value; }
static inline void gpu_bound(gpu_places *p, affine e, int64_t n, int64_t lane) {
    p->mask_lane[p->n_mask] = lane;
    p->mask[p->n_mask++] = (kmask){ e, 0, n };
}

/* Instruction i of the scalar kernel; returns its register. */
reg gpu_copy(gpu_copier *c, int i, const gpu_places *p);
/* v in its index or a mask. */
bool gpu_uses(const kins *in, kvar v);
/* Instructions that differ along v, of those in `among` (NULL: of all). */
bool *gpu_varying(const kernel *k, const bool *among, kvar v);
/* Whether a LOAD or STORE of the scalar kernel with so many lanes along v, starting at multiples of them, goes through memory
 * in one aligned piece, or does not move along v. */
bool gpu_aligned(const kernel *k, const kins *in, kvar v, int lanes);
/* Bytes of the largest element of memory that innermost loops move along, 2 at least; local memory does not count, nor what is
 * small and the same for all rows, if there is something else. */
int gpu_widest(const kernel *k);
/* An instruction of elementwise work: no loops, no sums, no memory of its own. */
bool gpu_is_plain(const kernel *k, const kins *in);
/* A new kernel with the scalar one's variables and buffers, for groups of so many threads; number of groups 1. */
kernel *gpu_kernel(const kernel *k, int group);

#endif
