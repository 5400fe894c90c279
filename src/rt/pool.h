/* pool.h - a fixed team of threads that spin for the next region for a while, then sleep.
 *
 * In: a number of threads. Out: pool_run, which makes all of them, the caller included as tid 0, enter one function and returns
 * when the last has left it. Waking a spinning team is one store; only a sleeping one costs a system call (and, in a virtual
 * machine, some 50 us), so a step that follows within POOL_SPIN_SECONDS of the last finds everybody awake.
 *
 * Where there is a processor for each thread, a worker that keeps the caller waiting is kept off the caller's processor: it may
 * use the others of those that the process might use when the pool was opened.
 *
 * Threads: pool_run may be called from many threads; regions are run one after another. It must not be called from inside a
 * region. Workers block all signals, so handlers of the host run on the host's threads.
 *
 * fork(): a child has none of the workers. The pool notices (its mark is on a page that the kernel wipes in children) and
 * starts new ones at the first pool_run, so a device that was opened before a fork works after it, in both processes. */
#ifndef TN_RT_POOL_H
#define TN_RT_POOL_H

#include "base/base.h"

typedef struct pool pool;
typedef void (*pool_fn)(void *ud, int tid);

enum { POOL_MAX_THREADS = 512, POOL_SYNC_STRIDE = 8 /* int64s: counters are 64 bytes apart */ };
#define POOL_SPIN_SECONDS 100e-6

/* threads 0 = as many as the process may run on. */
tn_status pool_open(mem m, int threads, pool **out, err *e);
void pool_close(pool *p); /* after the last pool_run has returned; NULL is fine */
int pool_threads(const pool *p);
/* Processors this process may use (its affinity mask), at least 1. */
int pool_cpus(void);

/* Counters for barriers inside a region, one a thread: pool_sync(p)[tid * POOL_SYNC_STRIDE]. Zero at first; the regions alone
 * change them. */
int64_t *pool_sync(pool *p);

/* Fails only in a child of fork() that cannot start threads. */
tn_status pool_run(pool *p, pool_fn fn, void *ud, err *e);

#endif
