/* pool.h - a fixed team of threads that share out regions of work, spin for the next run for a while, then sleep.
 *
 * In: a number of threads. Out: pool_run, which lets the caller (thread 0) and the workers enter one function and returns when
 * all of its work is done. The function runs through regions, the same ones in each thread:
 *
 *     for each region
 *         while ((share = pool_next(turn, whether it is the last region)) >= 0) do that share of the region's work
 *
 * Each region has as many shares as the team has threads, and each share is done once, before any share of the next region
 * begins. A thread takes the share with its own number first, whose memory is near, and then shares whose own threads have not
 * come within some microseconds: those do not run now, because other programs have their processors. So nobody waits for a
 * thread that holds no share, and who does a share must not change what it gives.
 *
 * Waking a spinning team is one store; only a sleeping one costs a system call (and, in a virtual machine, some 50 us), so a
 * step that follows within POOL_SPIN_SECONDS of the last finds everybody awake.
 *
 * Where there is a processor for each thread, a worker that does not come is kept off the caller's processor: it may use the
 * others of those that the process might use when the pool was opened.
 *
 * Threads: pool_run may be called from many threads; runs follow one after another. It must not be called from inside a
 * region. Workers block all signals, so handlers of the host run on the host's threads.
 *
 * fork(): a child has none of the workers. The pool notices (its mark is on a page that the kernel wipes in children) and
 * starts new ones at the first pool_run, so a device that was opened before a fork works after it, in both processes. */
#ifndef TN_RT_POOL_H
#define TN_RT_POOL_H

#include "base/base.h"

typedef struct pool pool;
typedef struct pool_turn { /* of one thread in one run */
    pool *pool;
    int me, nt; /* the thread, and the number of shares */
    int share;  /* that it holds, or -1 */
    int64_t region;
} pool_turn;
typedef void (*pool_fn)(void *ud, pool_turn *turn);

enum { POOL_MAX_THREADS = 512 };
#define POOL_SPIN_SECONDS 100e-6

/* threads 0 = as many as the process may run on, or fewer, where the system does not let it start so many. */
tn_status pool_open(mem m, int threads, pool **out, err *e);
void pool_close(pool *p); /* after the last pool_run has returned; NULL is fine */
int pool_threads(const pool *p);
/* Processors this process may use (its affinity mask, and the quota of its control groups), at least 1. */
int pool_cpus(void);

/* The next share of this region, done with the last one; -1 when the region is over. A worker does not wait for the end of the
 * last region: pool_run does. */
int pool_next(pool_turn *t, bool last);
/* A turn that has all shares to itself, without a pool. */
static inline pool_turn pool_alone(void) { return (pool_turn){ .nt = 1, .share = -1 }; }

/* Fails only in a child of fork() that cannot start threads. */
tn_status pool_run(pool *p, pool_fn fn, void *ud, err *e);

#endif
