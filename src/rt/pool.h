/* pool.h - threads that share out regions of work. A pool owns the workers; each caller brings a team, in which it is thread 0.
 *
 * In: a number of threads. Out: team_run, which lets the caller and the workers enter one function and returns when all of its
 * work is done. The function runs through regions, the same ones in each thread:
 *
 *     for each region
 *         while ((share = pool_next(turn, whether it is the last region)) >= 0) do that share of the region's work
 *         if (share == POOL_LEAVE) return
 *
 * Each region has as many shares as the team has threads, and each share is done once, before any share of the next region
 * begins. A thread takes the share with its own number first, whose memory is near, and then shares whose own threads have not
 * come within some microseconds: those do not run now, because other programs have their processors. So nobody waits for a
 * thread that holds no share, and who does a share must not change what it gives. A worker that lost its processor while it
 * held a share, so that others waited, is kept out for ten times as long as that took.
 *
 * Several callers: the workers are dealt out to the runs that are on, which count as a thread each. With as many callers as
 * threads each works alone, and nobody waits for anybody.
 *
 * Waking a spinning worker is one store; only a sleeping one costs a system call (and, in a virtual machine, some 50 us), so a
 * run that follows within POOL_SPIN_SECONDS of the last finds everybody awake.
 *
 * Where there is a processor for each thread, a worker that does not come is kept off the caller's processor: it may use the
 * others of those that the process might use when it was started.
 *
 * Threads: each team is used by one thread at a time, and different teams by many. team_run must not be called from inside a
 * region. Workers block all signals, so handlers of the host run on the host's threads.
 *
 * A host that has threads of its own gives an executor: then the pool starts none, and a run is one call of it.
 *
 * fork(): a child has none of the workers. The pool notices (its mark is on a page that the kernel wipes in children) and
 * starts new ones at the first run, so a device that was opened before a fork works after it, in both processes. */
#ifndef TN_RT_POOL_H
#define TN_RT_POOL_H

#include "base/base.h"

typedef struct pool pool;
typedef struct team team;
typedef struct pool_turn { /* of one thread in one run */
    team *team;
    int me, nt; /* the thread, whose number no other in the run has; the number of shares */
    int share;  /* that it holds, or -1 */
    bool stays; /* to the end of the last region */
    int64_t region;
    struct worker *worker; /* of the pool, or NULL */
    uint32_t gen;
} pool_turn;
/* A worker may still be inside, without a share, when team_run has returned. So it is given no more than this: ud must live as
 * long as the team, and number is a copy. */
typedef void (*pool_fn)(const void *ud, int64_t number, pool_turn *turn);

/* tn_config.parallel_for. NULL: the pool's own threads. */
typedef struct executor {
    void (*parallel_for)(void *ud, int n, void (*piece)(void *arg, int i), void *arg);
    void *ud;
} executor;

enum { POOL_MAX_THREADS = 512 };
enum { POOL_LEAVE = -2 }; /* of pool_next: this thread is to leave the run at once */
#define POOL_SPIN_SECONDS 100e-6

tn_status pool_open(mem m, const executor *host, pool **out, err *e); /* host may be NULL. No thread is started yet */
void pool_close(pool *p);                                             /* after its teams; NULL is fine */
/* Sees to it that there are so many threads, the caller among them; 0 = as many as the process may run on, or fewer, where the
 * system does not let it start so many. *out_threads: how many a team that asked for so many gets. */
tn_status pool_want(pool *p, int threads, int *out_threads, err *e);
/* Processors this process may use (its affinity mask, and the quota of its control groups), at least 1. */
int pool_cpus(void);

/* threads: what pool_want gave. */
tn_status team_open(pool *p, int threads, team **out, err *e);
void team_close(team *t); /* after its last run has returned; NULL is fine */
int team_threads(const team *t);
/* Fails only in a child of fork() that cannot start threads. */
tn_status team_run(team *t, pool_fn fn, const void *ud, int64_t number, err *e);

/* The next share of this region, done with the last one; negative when the region is over. A worker does not wait for the end
 * of the last region: team_run does. */
int pool_next(pool_turn *t, bool last);
/* A turn that has all shares to itself, without a pool. */
static inline pool_turn pool_alone(void) { return (pool_turn){ .nt = 1, .share = -1 }; }

#endif
