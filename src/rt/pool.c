/* pool.c - implementation of pool.h.
 *
 * A caller takes a place by setting its flag in `on`, puts its team there and adds 1 to `gen`; waiting workers see that and
 * look which run is theirs. The team stays in its place when the run is over, until another caller takes the place: most often
 * the next run finds it there. A worker writes the team into its `seat` and looks whether that is still in place: team_close,
 * which takes the team out first, waits for those that have it in their seats. What a run is stands in the team under a
 * sequence number: a worker that reads the same number before and after has read one run. team_run does not wait for workers to
 * leave: regions are numbered from the team's start on, so a thread that comes or leaves late can take nothing of what is over.
 *
 * Sleep is the Dekker pattern: a worker announces itself in `sleepers` and then asks the kernel to sleep only if gen is still
 * old; the caller changes gen and then looks at `sleepers`. Both are sequentially consistent, so one of the two sees the other.
 *
 * A share's `state` is 2r while nobody has it in region r, 2r + 1 while somebody does it, and 2r + 2 when it is done. */
#include "rt/pool.h"
#include "rt/aligned.h"
#include "rt/quota.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 128 };                            /* two cache lines: processors fetch them in pairs */
enum { MARK_WIPED = 0, MARK_ALIVE, MARK_BUSY }; /* values of the page that fork wipes */
/* Pauses before a waiting thread starts to yield: some ten microseconds. Threads that run meet sooner; one that does not needs
 * this very processor when another program has its own (measured: a training step beside a busy program takes half as long as
 * with 4000). */
enum { JOIN_SPINS = 512, CROWDED_SPINS = 100 };
enum { CPU_WORDS = 128 }; /* of a mask with room for 8192 processors: the kernel refuses one smaller than its own */
enum { WORD_BITS = 8 * sizeof(unsigned long) };
enum { RUNS = 16 }; /* that workers help in; further callers work alone */

/* Pauses, some microseconds, that a share is left to its own thread. The first and every 16th time that it does not come it is
 * kept off the caller's processor. */
enum { GRACE_SPINS = 64, KEEP_OFF_EVERY = 16 };
enum { NEAR = 16 }; /* a thread less than 8 regions behind is one that comes */
/* What others lost by a thread that did not run, in seconds: from where on it counts (less is what every system does now and
 * then); how many times as long the worker is kept out, or twice as long as the last time where it lost it again soon; and the
 * longest of that. */
#define LOST_LEAST 200e-6
#define OUT_TIMES 10
#define OUT_MOST 1.0
/* How long a worker that no run wants sleeps before it looks again. */
#define NAP_LEAST 1e-3
#define NAP_MOST 16e-3
#define NAP_PULLED 20e-6 /* of a caller, so that the worker whose share it waits for gets its processor */

typedef struct worker {
    _Alignas(LINE) _Atomic(team *) seat; /* that it is in, or about to enter */
    _Atomic int64_t until;               /* kept out so long, by now_seconds() in ns; 0 = not */
    _Atomic int64_t length, back;        /* of the last time that it was kept out, and its end */
    pool *pool;
    pthread_t thread;
    clockid_t clock; /* of its processor time */
    int tid;
    _Atomic int off; /* the processor that it may not use, or -1 */
    aligned self;
} worker;

typedef struct share {
    _Alignas(LINE) _Atomic int64_t state;
    _Atomic int missed;       /* regions whose share its own thread did not come for, since it last came */
    _Atomic(worker *) holder; /* NULL: the caller */
    _Atomic(worker *) guest;  /* the worker that has this number in the team */
} share;

struct team {
    _Alignas(LINE) _Atomic uint32_t seq; /* odd while what follows is written */
    _Atomic(pool_fn) fn;
    _Atomic(const void *) ud;
    _Atomic int64_t number, region; /* region: the first */
    _Atomic clockid_t clock;        /* of the caller's processor time */
    pool *pool;
    int nt, place;  /* place: in runs, where it was last */
    uint32_t forks; /* of the pool, at the last run */
    aligned self;
    share shares[]; /* [nt] */
};

struct pool {
    _Alignas(LINE) _Atomic uint32_t gen; /* changes when a run begins; futex word of the sleepers */
    _Atomic uint8_t on[RUNS];            /* a run is on in that place */
    _Alignas(LINE) _Atomic(team *) runs[RUNS];
    _Alignas(LINE) _Atomic uint32_t sleepers;
    _Atomic uint32_t quit;         /* futex word of those that sleep for a time */
    _Alignas(LINE) _Atomic int nt; /* threads, a caller among them */
    _Atomic unsigned join_spins;
    _Atomic double spin_seconds;
    _Atomic bool roomy;     /* a processor for each thread */
    _Atomic uint32_t forks; /* how often it was taken over by a child */
    executor host;
    mem mem;
    _Atomic int *mark; /* on its own page; MARK_WIPED in a child of fork */
    size_t mark_size;
    pthread_mutex_t lock;          /* of starting threads */
    unsigned long cpus[CPU_WORDS]; /* that the process might use when the pool was opened */
    aligned self;
    worker *workers[POOL_MAX_THREADS]; /* [nt], written once before nt grows; 0 is the callers' and unused */
};

static inline void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}
static void futex_wait(_Atomic uint32_t *word, uint32_t expected, const struct timespec *most) {
    int saved = errno; /* the host's */
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, most, NULL, 0);
    errno = saved;
}
static void futex_wake(_Atomic uint32_t *word) {
    int saved = errno;
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    errno = saved;
}

/* ---- workers ---- */

/* The run that worker `tid` is to help: its place, or -1. *out_other: some run is on, but for `done`. */
static int choose(const pool *p, int tid, const team *done, int *out_me, bool *out_other) {
    int on[RUNS], n = 0;
    *out_other = false;
    for (int i = 0; i < RUNS; i++)
        if (atomic_load_explicit(&p->on[i], memory_order_relaxed)) on[n++] = i;
    for (int i = 0; i < n; i++) *out_other |= atomic_load_explicit(&p->runs[on[i]], memory_order_relaxed) != done;
    if (!n || tid > atomic_load_explicit(&p->nt, memory_order_acquire) - n) return -1;
    *out_me = 1 + (tid - 1) / n;
    return on[(tid - 1) % n];
}

/* The team of that place, which stays there until the seat is left; NULL when it has gone. */
static team *take_seat(worker *w, int place, int me) {
    team *t = atomic_load(&w->pool->runs[place]);
    if (!t) return NULL;
    __builtin_prefetch(t); /* of memory that has gone, too, they do nothing */
    __builtin_prefetch(&t->shares[me], 1);
    atomic_store(&w->seat, t);
    if (atomic_load(&w->pool->runs[place]) == t) return t;
    atomic_store_explicit(&w->seat, NULL, memory_order_release);
    return NULL;
}

/* A number in the team that no other worker in it has, most often the one that is wished for; 0 = none is left. */
static int take_number(worker *w, team *t, int wish) {
    for (int i = 0; i < t->nt - 1; i++) {
        int me = 1 + (wish - 1 + i) % (t->nt - 1);
        worker *nobody = NULL;
        if (atomic_load_explicit(&t->shares[me].guest, memory_order_relaxed)) continue;
        if (atomic_compare_exchange_strong(&t->shares[me].guest, &nobody, w)) return me;
    }
    return 0;
}

typedef struct visit { /* what a worker did last */
    team *team;
    uint32_t seq;
} visit;

/* False: there was nothing to do, because it did all it could in this run before, or a new one begins just now. */
static bool help(worker *w, team *t, int me, uint32_t gen, visit *v) {
    uint32_t seq = atomic_load_explicit(&t->seq, memory_order_acquire);
    pool_fn fn = atomic_load_explicit(&t->fn, memory_order_relaxed);
    const void *ud = atomic_load_explicit(&t->ud, memory_order_relaxed);
    int64_t number = atomic_load_explicit(&t->number, memory_order_relaxed);
    if (me >= t->nt || (v->team == t && v->seq == seq)) return false;
    pool_turn turn = { t,  take_number(w, t, me), t->nt, -1, false, atomic_load_explicit(&t->region, memory_order_relaxed), w,
                       gen };
    atomic_thread_fence(memory_order_acquire);
    bool whole = turn.me && !(seq & 1) && seq == atomic_load_explicit(&t->seq, memory_order_relaxed);
    if (whole) fn(ud, number, &turn);
    if (turn.me) atomic_store_explicit(&t->shares[turn.me].guest, NULL, memory_order_release);
    if (whole && turn.share != POOL_LEAVE) *v = (visit){ t, seq };
    return whole;
}

/* Some pauses long; whether gen is still that. */
static bool is_old(const pool *p, uint32_t gen) {
    for (int i = 0; i < 64; i++) {
        if (atomic_load_explicit(&p->gen, memory_order_relaxed) != gen) return false;
        cpu_pause();
    }
    return true;
}

static void nap(pool *p, double seconds) {
    futex_wait(&p->quit, 0, &(struct timespec){ (time_t)seconds, (long)(fmod(seconds, 1) * 1e9) });
}

static void *worker_main(void *arg) {
    worker *w = arg;
    pool *p = w->pool;
    visit done = { 0 };
    double idle = 0, length = NAP_LEAST; /* idle: since when */
    while (!atomic_load(&p->quit)) {
        int64_t until = atomic_load_explicit(&w->until, memory_order_relaxed);
        double left = until ? 1e-9 * (double)until - now_seconds() : 0;
        if (left > 0) {
            nap(p, left);
            continue;
        }
        if (until) {
            atomic_store_explicit(&w->back, until, memory_order_relaxed);
            atomic_store_explicit(&w->until, 0, memory_order_relaxed);
        }
        uint32_t gen = atomic_load(&p->gen);
        int me;
        bool other;
        int place = choose(p, w->tid, done.team, &me, &other);
        team *t = place < 0 ? NULL : take_seat(w, place, me);
        bool helped = t && help(w, t, me, gen, &done);
        if (t) atomic_store_explicit(&w->seat, NULL, memory_order_release);
        if (helped) {
            idle = 0, length = NAP_LEAST;
            is_old(p, gen); /* what comes next is most often the next run */
            continue;
        }
        if (!is_old(p, gen) && !other) continue;
        double now = now_seconds();
        if (idle == 0) idle = now;
        if (now - idle < atomic_load_explicit(&p->spin_seconds, memory_order_relaxed)) continue;
        if (other) { /* it may be wanted when one of the callers is done */
            nap(p, length);
            length = fmin(2 * length, NAP_MOST);
            continue;
        }
        atomic_fetch_add(&p->sleepers, 1);
        while (atomic_load(&p->gen) == gen && !atomic_load(&p->quit)) futex_wait(&p->gen, gen, NULL);
        atomic_fetch_sub(&p->sleepers, 1);
        idle = 0;
    }
    return NULL;
}

static void stop_workers(pool *p) {
    atomic_store(&p->quit, 1);
    atomic_fetch_add(&p->gen, 1);
    futex_wake(&p->gen);
    futex_wake(&p->quit);
    for (int t = 1; t < atomic_load(&p->nt); t++) pthread_join(p->workers[t]->thread, NULL);
}

/* Threads have the caller's mask while they start: none of the host's signals is theirs. */
static int start(worker *w) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&w->thread, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) return rc;
    char name[24];
    snprintf(name, sizeof name, "tenon-%d", w->tid);
    pthread_setname_np(w->thread, name);
    if (pthread_getcpuclockid(w->thread, &w->clock)) w->clock = -1;
    return 0;
}

/* In a child of fork: the first caller starts new threads, others wait for it. */
static tn_status revive(pool *p, err *e) {
    for (;;) {
        int mark = MARK_WIPED;
        if (atomic_compare_exchange_strong(p->mark, &mark, MARK_BUSY)) break;
        if (mark == MARK_ALIVE) return TN_OK;
        sched_yield();
    }
    int n = atomic_load(&p->nt), rc = 0;
    atomic_fetch_add(&p->forks, 1);
    atomic_store(&p->sleepers, 0);
    for (int i = 0; i < RUNS; i++) atomic_store(&p->on[i], 0);
    for (int t = 1; t < n; t++) {
        worker *w = p->workers[t];
        atomic_store(&w->seat, NULL), atomic_store(&w->until, 0), atomic_store(&w->off, -1);
    }
    for (int t = 1; t < n && !rc; t++) {
        if (!(rc = start(p->workers[t]))) continue;
        atomic_store(&p->nt, t); /* of those that did start */
        stop_workers(p);
        atomic_store(&p->quit, 0);
        atomic_store(&p->nt, n);
        err_set(e, TN_ERR_DEVICE, "cannot start thread %d of %d: %s", t + 1, n, strerror(rc));
    }
    atomic_store(p->mark, rc ? MARK_WIPED : MARK_ALIVE);
    return rc ? TN_ERR_DEVICE : TN_OK;
}

/* The worker may use the processors of the pool, but for `off`, or no other than `only`; -1: none such. */
static void place_worker(const pool *p, worker *w, int off, int only) {
    unsigned long mask[CPU_WORDS] = { 0 };
    if (only < 0) memcpy(mask, p->cpus, sizeof mask);
    if (off >= 0) mask[off / (int)WORD_BITS] &= ~(1ul << off % (int)WORD_BITS);
    if (only >= 0) mask[only / (int)WORD_BITS] |= 1ul << only % (int)WORD_BITS;
    pthread_setaffinity_np(w->thread, sizeof mask, (const cpu_set_t *)(const void *)mask);
}
static int this_cpu(const pool *p) { /* one that workers may use, or -1 */
    int cpu = sched_getcpu();
    return cpu >= 0 && cpu < (int)(CPU_WORDS * WORD_BITS) && p->cpus[cpu / (int)WORD_BITS] >> cpu % (int)WORD_BITS & 1 ? cpu
                                                                                                                       : -1;
}

/* A worker that keeps the caller waiting may itself be waiting for the caller's processor: beside a busy program the system
 * wakes it there as readily as elsewhere, and sees no reason to part them (measured: products by two threads then take as long
 * as by one, run after run). So it is kept off that processor. */
static void keep_off(pool *p, worker *w) {
    int cpu = atomic_load_explicit(&p->roomy, memory_order_relaxed) ? this_cpu(p) : -1;
    if (cpu < 0 || cpu == atomic_load_explicit(&w->off, memory_order_relaxed)) return;
    place_worker(p, w, cpu, -1);
    atomic_store_explicit(&w->off, cpu, memory_order_relaxed); /* where that failed, too: once is enough */
}

/* A worker that holds a share and has lost its processor to another program would be back in some milliseconds. The caller has
 * nothing else to do: so the worker ends its share here. */
static bool pull(const pool *p, worker *w) {
    int cpu = this_cpu(p);
    if (cpu >= 0) place_worker(p, w, -1, cpu);
    return cpu >= 0;
}
static void let_go(pool *p, worker *w) {
    bool roomy = atomic_load_explicit(&p->roomy, memory_order_relaxed);
    int cpu = roomy ? this_cpu(p) : -1;
    place_worker(p, w, cpu, -1);
    atomic_store_explicit(&w->off, cpu, memory_order_relaxed);
}

/* ---- runs ---- */

static void run_on_host(void *arg, int i) {
    team *t = arg;
    pool_turn turn = { .team = t, .me = i, .nt = t->nt, .share = -1, .region = atomic_load(&t->region) };
    if (i >= 0 && i < t->nt) atomic_load (&t->fn)(atomic_load(&t->ud), atomic_load(&t->number), &turn);
}

/* Where workers find the run; -1 when there are too many. */
static int enlist(pool *p, team *t) {
    for (int i = 0; i < RUNS; i++) {
        int at = (t->place + i) % RUNS;
        uint8_t off = 0;
        if (atomic_load_explicit(&p->on[at], memory_order_relaxed)) continue;
        if (!atomic_compare_exchange_strong(&p->on[at], &off, 1)) continue;
        if (atomic_load_explicit(&p->runs[at], memory_order_relaxed) != t) atomic_store(&p->runs[at], t);
        atomic_fetch_add(&p->gen, 1);
        if (atomic_load(&p->sleepers)) futex_wake(&p->gen);
        return t->place = at;
    }
    return -1;
}

tn_status team_run(team *t, pool_fn fn, const void *ud, int64_t number, err *e) {
    pool *p = t->pool;
    if (t->nt == 1) {
        pool_turn alone = pool_alone();
        fn(ud, number, &alone);
        return TN_OK;
    }
    bool host = p->host.parallel_for;
    if (!host && atomic_load_explicit(p->mark, memory_order_acquire) != MARK_ALIVE) {
        tn_status st = revive(p, e);
        if (st) return st;
    }
    uint32_t forks = atomic_load_explicit(&p->forks, memory_order_relaxed);
    for (int i = 1; t->forks != forks && i < t->nt; i++) atomic_store(&t->shares[i].guest, NULL); /* they are the parent's */
    t->forks = forks;
    clockid_t clock;
    if (pthread_getcpuclockid(pthread_self(), &clock)) clock = -1; /* no system call */
    int64_t region = atomic_load_explicit(&t->shares[0].state, memory_order_relaxed) / 2;
    uint32_t seq = atomic_load_explicit(&t->seq, memory_order_relaxed);
    atomic_store_explicit(&t->seq, seq + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&t->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&t->ud, ud, memory_order_relaxed);
    atomic_store_explicit(&t->number, number, memory_order_relaxed);
    atomic_store_explicit(&t->region, region, memory_order_relaxed);
    atomic_store_explicit(&t->clock, clock, memory_order_relaxed);
    atomic_store_explicit(&t->seq, seq + 2, memory_order_release);
    int place = host ? -1 : enlist(p, t);
    if (host) p->host.parallel_for(p->host.ud, t->nt, run_on_host, t);
    pool_turn turn = { .team = t, .nt = t->nt, .share = -1, .stays = true, .region = region }; /* after a host: sees the end */
    fn(ud, number, &turn);
    if (place >= 0) atomic_store_explicit(&p->on[place], 0, memory_order_release);
    return TN_OK;
}

/* ---- shares ---- */

static bool claim(pool_turn *t, int i) {
    share *s = &t->team->shares[i];
    int64_t nobody = 2 * t->region;
    if (!atomic_compare_exchange_strong(&s->state, &nobody, nobody + 1)) return false;
    if (atomic_load_explicit(&s->holder, memory_order_relaxed) != t->worker) /* mostly it is: others wait for this line */
        atomic_store_explicit(&s->holder, t->worker, memory_order_relaxed);
    t->share = i;
    return true;
}

/* How long a thread that others wait for did not run, while the one that waits did: the difference of their processor times. */
typedef struct watch {
    worker *who; /* NULL: the caller */
    clockid_t clock;
    double mine, used;
    bool on;
} watch;
static double seconds_used(clockid_t clock) {
    struct timespec t;
    return clock != -1 && !clock_gettime(clock, &t) ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec : NAN;
}
static void watch_begin(watch *w, const team *t, const share *s) {
    w->who = atomic_load_explicit(&s->holder, memory_order_relaxed);
    w->clock = w->who ? w->who->clock : atomic_load_explicit(&t->clock, memory_order_relaxed);
    w->mine = seconds_used(CLOCK_THREAD_CPUTIME_ID);
    w->used = seconds_used(w->clock);
    w->on = true;
}
static double watch_lost(const watch *w) {
    return seconds_used(CLOCK_THREAD_CPUTIME_ID) - w->mine - (seconds_used(w->clock) - w->used);
}
static void keep_out(worker *w, double lost) {
    int64_t now = (int64_t)(1e9 * now_seconds()), length = (int64_t)(1e9 * fmin(OUT_TIMES * lost, OUT_MOST));
    int64_t until = atomic_load_explicit(&w->until, memory_order_relaxed);
    if (now >= until) { /* else it is out already, and still does not run */
        int64_t last = atomic_load_explicit(&w->length, memory_order_relaxed);
        if (now - atomic_load_explicit(&w->back, memory_order_relaxed) < last && length < 2 * last) length = 2 * last;
        if (length > (int64_t)(1e9 * OUT_MOST)) length = (int64_t)(1e9 * OUT_MOST);
        atomic_store_explicit(&w->length, length, memory_order_relaxed);
    }
    if (now + length > until) atomic_store_explicit(&w->until, now + length, memory_order_relaxed);
}

/* The thread of share i has not come. */
static __attribute__((noinline)) void has_missed(const pool_turn *t, int i) {
    pool *p = t->team->pool;
    if (i && t->stays && !p->host.parallel_for) keep_off(p, p->workers[i]);
}

typedef enum { MINE, OVER, LEAVE, WAIT } waited;

/* What a thread that waits for share i finds. */
static inline waited look_at_share(pool_turn *t, int i, bool leave, bool graced) {
    share *s = &t->team->shares[i];
    int64_t ahead = atomic_load_explicit(&s->state, memory_order_acquire) - 2 * t->region;
    if (ahead >= 2 || (ahead == 1 && leave)) return OVER;
    if (ahead == 1) return WAIT;
    int missed = atomic_load_explicit(&s->missed, memory_order_relaxed);
    if (!missed && leave) return OVER;
    if ((!missed && !graced) || !claim(t, i)) return WAIT;
    atomic_store_explicit(&s->missed, missed < INT_MAX ? missed + 1 : missed, memory_order_relaxed);
    if (missed % KEEP_OFF_EVERY == 0) has_missed(t, i);
    return MINE;
}

/* After some ten microseconds: a thread that has the share may not run. */
static __attribute__((noinline)) waited wait_long(pool_turn *t, int i, bool leave) {
    team *m = t->team;
    pool *p = m->pool;
    unsigned join_spins = atomic_load_explicit(&p->join_spins, memory_order_relaxed), yields = 0;
    watch w = { 0 };
    bool pulled = false;
    waited found = WAIT;
    for (unsigned spins = 0; found == WAIT; spins++) {
        cpu_pause();
        if (spins % join_spins == 0) {
            bool held = atomic_load_explicit(&m->shares[i].state, memory_order_relaxed) == 2 * t->region + 1;
            if (pulled) nap(p, NAP_PULLED);
            sched_yield(); /* who has the share may be waiting for this very processor */
            if (p->host.parallel_for) {
                /* whose threads run is the host's business */
            } else if (!w.on && held) {
                watch_begin(&w, m, &m->shares[i]);
                if (t->stays && w.who) keep_off(p, w.who);
            } else if (w.on && ++yields % 8 == 0) {
                double lost = watch_lost(&w);
                if (lost > LOST_LEAST && w.who) keep_out(w.who, lost);
                if (lost > LOST_LEAST && w.who && t->stays && !pulled) pulled = pull(p, w.who);
                if (lost > LOST_LEAST && !w.who && t->worker) {
                    keep_out(t->worker, lost);
                    return LEAVE;
                }
            }
        }
        found = look_at_share(t, i, leave, true);
    }
    double lost = w.on && w.who ? watch_lost(&w) : 0;
    if (lost > LOST_LEAST) keep_out(w.who, lost);
    if (pulled) let_go(p, w.who);
    return found;
}

/* MINE: share i is now this thread's. OVER: it is done, or, where this thread need not stay, a thread that comes has it or
 * will. LEAVE: the caller has it and does not run; without this worker there is a processor for it. */
static inline waited wait_for_share(pool_turn *t, int i, bool leave) {
    waited found = look_at_share(t, i, leave, false);
    if (found != WAIT) return found;
    int join_spins = (int)atomic_load_explicit(&t->team->pool->join_spins, memory_order_relaxed);
    for (int spins = 1; spins < join_spins; spins++) {
        cpu_pause();
        if ((found = look_at_share(t, i, leave, spins > GRACE_SPINS)) != WAIT) return found;
    }
    return wait_long(t, i, leave);
}

/* Whether a worker is to go on in the run it is in: runs have begun or ended. */
static __attribute__((noinline)) bool still_wanted(pool_turn *t, uint32_t gen) {
    const pool *p = t->team->pool;
    int me;
    bool other;
    t->gen = gen;
    int place = choose(p, t->worker->tid, NULL, &me, &other);
    return place >= 0 && atomic_load_explicit(&p->runs[place], memory_order_relaxed) == t->team;
}
static inline bool goes_on(pool_turn *t) {
    if (atomic_load_explicit(&t->worker->until, memory_order_relaxed)) return false;
    uint32_t gen = atomic_load_explicit(&t->team->pool->gen, memory_order_relaxed);
    return gen == t->gen || still_wanted(t, gen);
}

int pool_next(pool_turn *t, bool last) {
    if (t->nt == 1) return t->share = -1 - t->share; /* 0, then -1 */
    if (t->share == POOL_LEAVE) return POOL_LEAVE;
    if (t->share >= 0) {
        atomic_store_explicit(&t->team->shares[t->share].state, 2 * t->region + 2, memory_order_release);
        t->share = -1;
    } else {
        share *own = &t->team->shares[t->me];
        if (t->worker && !goes_on(t)) return t->share = POOL_LEAVE;
        if (claim(t, t->me)) {
            if (atomic_load_explicit(&own->missed, memory_order_relaxed))
                atomic_store_explicit(&own->missed, 0, memory_order_relaxed);
            return t->me;
        }
        if (atomic_load_explicit(&own->missed, memory_order_relaxed) &&
            atomic_load_explicit(&own->state, memory_order_relaxed) <= 2 * t->region + NEAR) /* it is not far behind */
            atomic_store_explicit(&own->missed, 0, memory_order_relaxed);
    }
    for (int i = t->me + 1; i <= t->me + t->nt; i++) {
        waited found = wait_for_share(t, i < t->nt ? i : i - t->nt, last && !t->stays);
        if (found == MINE) return t->share;
        if (found == LEAVE) return t->share = POOL_LEAVE;
    }
    t->region++;
    return -1;
}

/* ---- teams ---- */

tn_status team_open(pool *p, int threads, team **out, err *e) {
    aligned self;
    size_t size = sizeof(team) + (size_t)threads * sizeof(share);
    *out = NULL;
    if (!aligned_get(p->mem, size, LINE, &self)) return err_set(e, TN_ERR_NOMEM, "out of memory for %d threads", threads);
    team *t = memset(self.data, 0, size);
    t->pool = p;
    t->nt = threads;
    t->self = self;
    *out = t;
    return TN_OK;
}

void team_close(team *t) {
    if (!t) return;
    pool *p = t->pool;
    bool alive = atomic_load(p->mark) == MARK_ALIVE; /* in a child of fork there is nobody to wait for */
    for (int i = 0; i < RUNS; i++) {
        team *there = t;
        atomic_compare_exchange_strong(&p->runs[i], &there, NULL);
    }
    for (int i = 1; alive && i < atomic_load(&p->nt); i++)
        while (p->workers[i] && atomic_load(&p->workers[i]->seat) == t) sched_yield();
    aligned self = t->self;
    aligned_free(p->mem, &self);
}

int team_threads(const team *t) { return t->nt; }

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

static tn_status add_worker(pool *p, err *e, int *out_rc) {
    int tid = atomic_load(&p->nt);
    aligned self;
    *out_rc = 0;
    if (!aligned_get(p->mem, sizeof(worker), LINE, &self)) return err_set(e, TN_ERR_NOMEM, "out of memory for a thread");
    worker *w = memset(self.data, 0, sizeof *w);
    w->pool = p;
    w->tid = tid;
    atomic_store(&w->off, -1);
    w->self = self;
    if ((*out_rc = start(w))) {
        aligned_free(p->mem, &self);
        return TN_ERR_DEVICE;
    }
    p->workers[tid] = w;
    atomic_store_explicit(&p->nt, tid + 1, memory_order_release);
    return TN_OK;
}

/* With the lock held. */
static tn_status grow(pool *p, int nt, int cpus, bool any, int *out_threads, err *e) {
    tn_status st = TN_OK;
    int rc = 0;
    if (atomic_load(p->mark) != MARK_ALIVE && (st = revive(p, e))) return st;
    while (atomic_load(&p->nt) < nt && !st) st = add_worker(p, e, &rc);
    int made = atomic_load(&p->nt);
    if (st && rc && !any) err_set(e, st, "cannot start thread %d of %d: %s", made + 1, nt, strerror(rc));
    if (rc && any) st = TN_OK;
    atomic_store(&p->join_spins, made <= cpus ? JOIN_SPINS : CROWDED_SPINS);
    atomic_store(&p->spin_seconds, made <= cpus ? POOL_SPIN_SECONDS : POOL_SPIN_SECONDS / 20);
    unsigned long mask[CPU_WORDS];
    atomic_store(&p->roomy, read_cpus(mask) >= made);
    *out_threads = made < nt ? made : nt;
    return st;
}

tn_status pool_want(pool *p, int threads, int *out_threads, err *e) {
    *out_threads = 0;
    if (threads < 0 || threads > POOL_MAX_THREADS)
        return err_set(e, TN_ERR_INVAL, "%d threads asked for; 0 (all processors) to %d are possible", threads,
                       POOL_MAX_THREADS);
    int cpus = threads == 1 ? 1 : pool_cpus(), nt = threads ? threads : cpus > POOL_MAX_THREADS ? POOL_MAX_THREADS : cpus;
    *out_threads = nt;
    if (nt == 1 || p->host.parallel_for) return TN_OK;
    pthread_mutex_lock(&p->lock);
    tn_status st = grow(p, nt, cpus, threads == 0, out_threads, e);
    pthread_mutex_unlock(&p->lock);
    return st;
}

tn_status pool_open(mem m, const executor *host, pool **out, err *e) {
    aligned self;
    *out = NULL;
    if (!aligned_get(m, sizeof(pool), LINE, &self)) return err_set(e, TN_ERR_NOMEM, "out of memory for the thread pool");
    pool *p = memset(self.data, 0, sizeof *p);
    p->mem = m;
    p->self = self;
    if (host) p->host = *host;
    atomic_store(&p->nt, 1);
    atomic_store(&p->join_spins, JOIN_SPINS);
    read_cpus(p->cpus);
    p->mark_size = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, p->mark_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        aligned_free(m, &self);
        return err_set(e, TN_ERR_NOMEM, "out of memory for the thread pool");
    }
    p->mark = page;
    madvise(page, p->mark_size, MADV_WIPEONFORK); /* kernels before 4.14: a child must not use the pool */
    pthread_mutex_init(&p->lock, NULL);
    atomic_store(p->mark, MARK_ALIVE);
    *out = p;
    return TN_OK;
}

void pool_close(pool *p) {
    if (!p) return;
    if (atomic_load(p->mark) == MARK_ALIVE) stop_workers(p);
    munmap((void *)p->mark, p->mark_size);
    pthread_mutex_destroy(&p->lock);
    mem m = p->mem;
    for (int t = 1; t < atomic_load(&p->nt); t++) {
        aligned self = p->workers[t]->self;
        aligned_free(m, &self);
    }
    aligned self = p->self;
    aligned_free(m, &self);
}
