/* parts.h - what the parts of a kernel take on a GPU, before there is the kernel: recipes and fusion add them up for forms that
 * they compare, and cost_gpu.c uses those that it shares with them, so that a barrier costs the same everywhere.
 *
 * In: a row of machine.def; numbers of threads, steps, bytes. Out: nanoseconds. `units`: multiprocessors at hand
 * (machine_units). */
#ifndef TN_MACHINE_PARTS_H
#define TN_MACHINE_PARTS_H

#include "machine/machine.h"

/* A barrier of a thread block, and the first read of what was written before it. */
static inline double part_barrier(const machine *m, double threads) {
    return threads > m->warp ? m->barrier_ns : m->warp_barrier_ns;
}

/* n neighbours, a power of two, have the sum of what each of them has. */
static inline double part_exchange(const machine *m, double n) {
    double steps = 0;
    for (; n > 1; n /= 2) steps++;
    return steps * m->exchange_ns;
}

/* Steps of a thread's own sum, each behind the one before; guarded: some threads have none. */
static inline double part_sum(const machine *m, double steps, bool guarded) {
    return steps * (m->step_ns + (guarded ? m->guard_ns : 0));
}

/* Bytes a nanosecond that each of `busy` multiprocessors reads, of `units` in all. */
static inline double part_rate(const machine *m, double busy, double units) {
    double one = m->level[LEVEL_L2].read, all = m->level[LEVEL_L2].all * units / m->cores;
    return one * busy < all ? one : all / busy;
}

/* Each thread block reads the same bytes; turns: blocks of a multiprocessor, one after the other. */
static inline double part_read(const machine *m, double bytes, double blocks, double turns, double units) {
    double one = turns * bytes / part_rate(m, 1, units), all = blocks * bytes / units / part_rate(m, units, units);
    return one > all ? one : all;
}

/* The first memory comes that was not asked for ahead. */
static inline double part_fetch(const machine *m) { return m->level[LEVEL_MEMORY].ns; }

/* A warp reads these lines. */
static inline double part_lines(const machine *m, double lines) { return lines * m->warp / m->load_pipes / m->ghz; }

#endif
