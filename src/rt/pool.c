/* pool.c - implementation of pool.h.
 *
 * The caller publishes a run by adding 2 to `gen`; worker t enters by changing its own `at` to that number + 1, and leaves by
 * changing it to the number. What has not entered when the caller is done is written off: the caller changes `at` itself, and
 * only one of the two succeeds. Sleep is the Dekker pattern: a worker announces itself in `sleepers` and then asks the kernel
 * to sleep only if gen is still old; the caller stores gen and then looks at `sleepers`. Both are sequentially consistent, so
 * one of the two sees the other.
 *
 * A share's `state` is 2r while nobody has it in region r, 2r + 1 while somebody does it, and 2r + 2 when it is done. Regions
 * are numbered from the pool's start on, so a thread that comes late can take nothing of what is over. */
#include "rt/pool.h"
#include "rt/aligned.h"
#include "rt/quota.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINE = 128 };                            /* two cache lines: processors fetch them in pairs */
enum { MARK_WIPED = 0, MARK_ALIVE, MARK_BUSY }; /* values of the page that fork wipes */
/* Pauses before a waiting thread starts to yield: some ten microseconds. Threads that run meet sooner; one that does not needs
 * this very processor when another program has its own (measured: a training step beside a busy program takes half as long as
 * with 4000). */
enum { JOIN_SPINS = 512, CROWDED_SPINS = 100 };
enum { CPU_WORDS = 128 }; /* of a mask with room for 8192 processors: the kernel refuses one smaller than its own */
enum { WORD_BITS = 8 * sizeof(unsigned long) };

/* Pauses, some microseconds, that a share is left to its own thread; times that it did not come until it is kept off. */
enum { GRACE_SPINS = 64, KEEP_OFF_AFTER = 16 };

typedef struct share {
    _Alignas(LINE) _Atomic int64_t state;
    _Atomic int missed; /* regions whose share its own thread did not come for, since it last came */
} share;

typedef struct worker {
    _Alignas(LINE) _Atomic uint32_t at; /* the last run it has left, or was written off in; + 1: the run it is in */
    pool *pool;
    pthread_t thread;
    int tid;
    int off; /* the processor that it may not use, or -1; the caller's, under `owner` */
} worker;

struct pool {
    _Alignas(LINE) _Atomic uint32_t gen; /* number of the current run, even; futex word of the sleepers */
    pool_fn fn;                          /* of that run; published by gen */
    void *ud;
    int64_t region; /* its first */
    bool stop;
    _Alignas(LINE) _Atomic uint32_t sleepers;
    _Alignas(LINE) _Atomic uint32_t owner; /* 0 free, 1 a caller is inside, 2 and others sleep on it */
    _Alignas(LINE) mem mem;
    int nt;
    int join_spins;
    bool roomy;                    /* a processor for each thread */
    unsigned long cpus[CPU_WORDS]; /* that the process might use when the pool was opened */
    double spin_seconds;
    _Atomic int *mark; /* on its own page; MARK_WIPED in a child of fork; unused with one thread */
    size_t mark_size;
    aligned self, crew; /* crew: the shares, then the workers */
    share *shares;      /* [nt] */
    worker *workers;    /* [nt]; 0 is the caller's and unused */
};

static inline void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}
static void futex_wait(_Atomic uint32_t *word, uint32_t expected) {
    int saved = errno; /* the host's */
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
    errno = saved;
}
static void futex_wake(_Atomic uint32_t *word, int n) {
    int saved = errno;
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
    errno = saved;
}

/* ---- workers ---- */

static uint32_t wait_for_run(pool *p, uint32_t seen) {
    double until = 0;
    for (unsigned i = 1;; i++) {
        uint32_t gen = atomic_load_explicit(&p->gen, memory_order_acquire);
        if (gen != seen) return gen;
        cpu_pause();
        if (i % 64) continue; /* the clock costs as much as several pauses */
        double now = now_seconds();
        if (until == 0) until = now + p->spin_seconds;
        if (now > until) break;
    }
    uint32_t gen;
    atomic_fetch_add(&p->sleepers, 1);
    while ((gen = atomic_load(&p->gen)) == seen) futex_wait(&p->gen, seen);
    atomic_fetch_sub(&p->sleepers, 1);
    return gen;
}

static void *worker_main(void *arg) {
    worker *w = arg;
    pool *p = w->pool;
    for (;;) {
        uint32_t left = atomic_load(&w->at), gen = wait_for_run(p, left);
        if (!atomic_compare_exchange_strong(&w->at, &left, gen + 1)) continue; /* too late */
        if (p->stop) return NULL;
        pool_turn t = { p, w->tid, p->nt, -1, p->region };
        p->fn(p->ud, &t);
        atomic_store_explicit(&w->at, gen, memory_order_release);
    }
}

static void stop_workers(pool *p, int n) {
    p->stop = true;
    atomic_fetch_add(&p->gen, 2);
    futex_wake(&p->gen, INT_MAX);
    for (int t = 1; t < n; t++) pthread_join(p->workers[t].thread, NULL);
    p->stop = false;
}

/* Everything a run leaves behind goes back to its first state, then the threads start. any: fewer will do. */
static tn_status start_workers(pool *p, bool any, err *e) {
    atomic_store(&p->gen, 0);
    atomic_store(&p->sleepers, 0);
    atomic_store(&p->owner, 0);
    memset((void *)p->shares, 0, (size_t)p->nt * sizeof *p->shares);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* threads inherit the mask */
    int made = 1, rc = 0;
    for (; made < p->nt && rc == 0; made += rc == 0) {
        worker *w = &p->workers[made];
        w->pool = p;
        w->tid = made;
        w->off = -1;
        atomic_store(&w->at, 0);
        rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc) continue;
        char name[24];
        snprintf(name, sizeof name, "tenon-%d", made);
        pthread_setname_np(w->thread, name);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (any) p->nt = made;
    if (made == p->nt) return TN_OK;
    stop_workers(p, made);
    return err_set(e, TN_ERR_DEVICE, "cannot start thread %d of %d: %s", made + 1, p->nt, strerror(rc));
}

/* ---- one run at a time ---- */

static void own(pool *p) {
    for (int i = 0; i < 8 * p->join_spins; i++) { /* runs take longer than meetings, and waking up takes longest */
        uint32_t nobody = 0;
        if (atomic_compare_exchange_strong_explicit(&p->owner, &nobody, 1, memory_order_acquire, memory_order_relaxed)) return;
        cpu_pause();
    }
    while (atomic_exchange(&p->owner, 2) != 0) futex_wait(&p->owner, 2);
}
static void disown(pool *p) {
    if (atomic_exchange(&p->owner, 0) == 2) futex_wake(&p->owner, 1);
}

/* In a child of fork: the first caller starts new threads, others wait for it. */
static tn_status revive(pool *p, err *e) {
    for (;;) {
        int mark = MARK_WIPED;
        if (atomic_compare_exchange_strong(p->mark, &mark, MARK_BUSY)) break;
        if (mark == MARK_ALIVE) return TN_OK;
        sched_yield();
    }
    tn_status st = start_workers(p, false, e);
    atomic_store(p->mark, st ? MARK_WIPED : MARK_ALIVE);
    return st;
}

/* A worker that keeps the caller waiting may itself be waiting for the caller's processor: beside a busy program the system
 * wakes it there as readily as elsewhere, and sees no reason to part them (measured: products by two threads then take as long
 * as by one, run after run). So it is kept off that processor. */
static void keep_off(pool *p, worker *w) {
    int cpu = p->roomy ? sched_getcpu() : -1;
    if (cpu < 0 || cpu >= (int)(CPU_WORDS * WORD_BITS) || cpu == w->off) return;
    unsigned long mask[CPU_WORDS];
    memcpy(mask, p->cpus, sizeof mask);
    mask[cpu / (int)WORD_BITS] &= ~(1ul << cpu % (int)WORD_BITS);
    pthread_setaffinity_np(w->thread, sizeof mask, (const cpu_set_t *)(const void *)mask);
    w->off = cpu; /* where that failed, too: once is enough */
}

/* A worker that has not entered is written off; one that has is about to leave, when it runs. */
static void join(pool *p, worker *w, uint32_t gen) {
    for (int i = 0;; i++) {
        uint32_t at = atomic_load_explicit(&w->at, memory_order_acquire);
        if (at == gen) return;
        if (at != gen + 1) {
            keep_off(p, w);
            if (atomic_compare_exchange_strong(&w->at, &at, gen)) return;
        }
        if (i < p->join_spins) {
            cpu_pause();
            continue;
        }
        if (i == p->join_spins) keep_off(p, w);
        sched_yield(); /* the worker may be waiting for this very processor */
    }
}

tn_status pool_run(pool *p, pool_fn fn, void *ud, err *e) {
    if (p->nt == 1) {
        pool_turn alone = pool_alone();
        fn(ud, &alone);
        return TN_OK;
    }
    if (atomic_load_explicit(p->mark, memory_order_acquire) != MARK_ALIVE) {
        tn_status st = revive(p, e);
        if (st) return st;
    }
    own(p);
    p->fn = fn;
    p->ud = ud;
    p->region = atomic_load_explicit(&p->shares[0].state, memory_order_relaxed) / 2;
    pool_turn turn = { p, 0, p->nt, -1, p->region };
    uint32_t gen = atomic_load_explicit(&p->gen, memory_order_relaxed) + 2;
    atomic_store(&p->gen, gen);
    if (atomic_load(&p->sleepers)) futex_wake(&p->gen, INT_MAX);
    fn(ud, &turn);
    for (int t = 1; t < p->nt; t++) join(p, &p->workers[t], gen);
    disown(p);
    return TN_OK;
}

/* ---- shares ---- */

static bool claim(pool_turn *t, int i) {
    int64_t nobody = 2 * t->region;
    if (!atomic_compare_exchange_strong(&t->pool->shares[i].state, &nobody, nobody + 1)) return false;
    t->share = i;
    return true;
}

/* False: share i is now this thread's. True: it is over, or, where this thread may leave, a thread that comes has it or will.
 */
static bool wait_for_share(pool_turn *t, int i, bool leave) {
    pool *p = t->pool;
    share *s = &p->shares[i];
    for (int spins = 1;; spins++) {
        int64_t ahead = atomic_load_explicit(&s->state, memory_order_acquire) - 2 * t->region;
        if (ahead >= 2 || (ahead == 1 && leave)) return true;
        if (ahead == 0) {
            int missed = atomic_load_explicit(&s->missed, memory_order_relaxed);
            if ((missed || spins > GRACE_SPINS) && claim(t, i)) {
                atomic_store_explicit(&s->missed, missed < INT_MAX ? missed + 1 : missed, memory_order_relaxed);
                if (i && !t->me && missed == KEEP_OFF_AFTER) keep_off(p, &p->workers[i]);
                return false;
            }
            if (!missed && leave) return true;
        }
        cpu_pause();
        if (spins % p->join_spins == 0) sched_yield(); /* who has the share may be waiting for this very processor */
    }
}

int pool_next(pool_turn *t, bool last) {
    if (t->nt == 1) return t->share = -1 - t->share; /* 0, then -1 */
    share *own = &t->pool->shares[t->me];
    if (t->share >= 0) {
        atomic_store_explicit(&t->pool->shares[t->share].state, 2 * t->region + 2, memory_order_release);
        t->share = -1;
    } else {
        if (atomic_load_explicit(&own->missed, memory_order_relaxed))
            atomic_store_explicit(&own->missed, 0, memory_order_relaxed);
        if (claim(t, t->me)) return t->me;
    }
    for (int i = t->me + 1; i <= t->me + t->nt; i++)
        if (!wait_for_share(t, i < t->nt ? i : i - t->nt, last && t->me)) return t->share;
    t->region++;
    return -1;
}

/* ---- life ---- */

/* The processors of the affinity mask and how many they are; 0 where the system does not say. */
static int read_cpus(unsigned long *mask) {
    memset(mask, 0, CPU_WORDS * sizeof *mask);
    if (sched_getaffinity(0, CPU_WORDS * sizeof *mask, (cpu_set_t *)(void *)mask) != 0) return 0;
    int n = 0;
    for (size_t i = 0; i < CPU_WORDS; i++) n += __builtin_popcountl(mask[i]);
    return n;
}

int pool_cpus(void) {
    unsigned long mask[CPU_WORDS];
    int known = read_cpus(mask), quota = quota_cpus("");
    if (quota && quota < known) return quota;
    long n = known ? known : sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : !known && n > POOL_MAX_THREADS ? POOL_MAX_THREADS : (int)n;
}

tn_status pool_open(mem m, int threads, pool **out, err *e) {
    *out = NULL;
    if (threads < 0 || threads > POOL_MAX_THREADS)
        return err_set(e, TN_ERR_INVAL, "%d threads asked for; 0 (all processors) to %d are possible", threads,
                       POOL_MAX_THREADS);
    int cpus = threads == 1 ? 1 : pool_cpus(), nt = threads ? threads : cpus > POOL_MAX_THREADS ? POOL_MAX_THREADS : cpus;
    aligned self, crew = { 0 };
    size_t crew_size = (size_t)nt * (sizeof(share) + sizeof(worker));
    if (!aligned_get(m, sizeof(pool), LINE, &self)) return err_set(e, TN_ERR_NOMEM, "out of memory for the thread pool");
    pool *p = memset(self.data, 0, sizeof *p);
    tn_status st = TN_OK;
    p->mark = MAP_FAILED;
    if (!aligned_get(m, crew_size, LINE, &crew)) {
        st = err_set(e, TN_ERR_NOMEM, "out of memory for %d threads", nt);
        goto done;
    }
    memset(crew.data, 0, crew_size);
    p->mem = m;
    p->nt = nt;
    p->self = self;
    p->crew = crew;
    p->shares = (share *)(void *)crew.data;
    p->workers = (worker *)(void *)(p->shares + nt);
    p->join_spins = nt <= cpus ? JOIN_SPINS : CROWDED_SPINS;
    p->roomy = read_cpus(p->cpus) >= nt;
    p->spin_seconds = nt <= cpus ? POOL_SPIN_SECONDS : POOL_SPIN_SECONDS / 20;
    if (nt == 1) { /* no threads, and nothing for a fork to lose */
        *out = p;
        return TN_OK;
    }
    p->mark_size = (size_t)sysconf(_SC_PAGESIZE);
    p->mark = mmap(NULL, p->mark_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p->mark == MAP_FAILED) {
        st = err_set(e, TN_ERR_NOMEM, "out of memory for the thread pool");
        goto done;
    }
    madvise((void *)p->mark, p->mark_size, MADV_WIPEONFORK); /* kernels before 4.14: a child must not use the pool */
    if ((st = start_workers(p, threads == 0, e))) goto done;
    atomic_store(p->mark, MARK_ALIVE);
    *out = p;
done:
    if (st) {
        if (p->mark != MAP_FAILED) munmap((void *)p->mark, p->mark_size);
        aligned_free(m, &crew);
        aligned_free(m, &self);
    }
    return st;
}

void pool_close(pool *p) {
    if (!p) return;
    if (p->nt > 1 && atomic_load(p->mark) == MARK_ALIVE) stop_workers(p, p->nt);
    if (p->nt > 1) munmap((void *)p->mark, p->mark_size);
    mem m = p->mem;
    aligned self = p->self;
    aligned_free(m, &p->crew);
    aligned_free(m, &self);
}

int pool_threads(const pool *p) { return p->nt; }
