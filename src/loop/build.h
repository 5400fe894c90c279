/* build.h - what steps write kernels with: loops, masks, sums, and instructions at other values of their loops. Everything is
 * allocated from the kernel's arena. */
#ifndef TN_LOOP_BUILD_H
#define TN_LOOP_BUILD_H

#include "ir/kernel.h"

/* A loop over a variable of its own, 0 .. n; the ends of n loops; a barrier of the thread block. */
kvar build_loop(kernel *o, const char *name, int64_t n, kpar par);
void build_ends(kernel *o, int n);
void build_barrier(kernel *o);
/* The n values, whose number is a power of two, combined by op: halves first. Changes v. */
reg build_halves(kernel *o, reg *v, int n, uint8_t op, uint8_t dtype, val of);

/* n * v; x + n * y. */
static inline affine build_times(arena *a, kvar v, int64_t n) { return affine_scale(a, affine_var(a, v), n); }
static inline affine build_plus(arena *a, affine x, affine y, int64_t n) { return affine_add(a, x, affine_scale(a, y, n)); }

/* The instruction where v has that value, in its index and its masks; with other variables (to[v] for v). */
void build_set_var(arena *a, kins *in, kvar v, affine value);
void build_rename(arena *a, kins *in, const kvar *to);
/* One mask more, behind the others. */
void build_mask(arena *a, kins *in, affine e, int64_t lo, int64_t hi);

/* Marks what the marked instructions before `end` are computed from. */
void build_mark_needed(const kernel *k, int end, bool *needed);

#endif
