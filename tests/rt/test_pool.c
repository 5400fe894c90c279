/* The pool: every share of every region is done exactly once, before team_run returns; asleep, awake, crowded, shared and after
 * fork. Labels: threads */
#include "rt_util.h"

#include "rt/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct sums {
    pool *p;
    team *team;
    int nt;
    long plain[64]; /* [share] written by the thread that has it, read by the caller after the run */
    long turn;      /* written by the caller before a run, read inside it */
    int wrong;
    int here;          /* threads that have come */
    struct sums *self; /* its address is what the team gets */
} sums;
static sums *of(const void *ud) { return *(sums *const *)ud; }

static void count_shares(const void *ud, int64_t number, pool_turn *turn) {
    sums *t = of(ud);
    (void)number;
    for (int i; (i = pool_next(turn, true)) >= 0;) t->plain[i] += t->turn;
}
static void two_regions(const void *ud, int64_t number, pool_turn *turn) {
    sums *t = of(ud);
    int i;
    (void)number;
    while ((i = pool_next(turn, false)) >= 0) t->plain[i] = i + t->turn;
    if (i == POOL_LEAVE) return;
    while (pool_next(turn, true) >= 0) {
        long sum = 0, want = 0;
        for (int i = 0; i < t->nt; i++) sum += t->plain[i], want += i + t->turn;
        if (sum != want) __atomic_fetch_add(&t->wrong, 1, __ATOMIC_RELAXED);
    }
}

static void open_on(sums *t, counted *memory, int threads, const executor *host) {
    err e = { 0 };
    memset(t, 0, sizeof *t);
    t->self = t;
    assert_int_equal(pool_open(counted_mem(memory), host, &t->p, &e), TN_OK);
    assert_int_equal(pool_want(t->p, threads, &t->nt, &e), TN_OK);
    assert_int_equal(t->nt, threads ? threads : pool_cpus());
    assert_int_equal(team_open(t->p, t->nt, &t->team, &e), TN_OK);
}
static void open_sums(sums *t, counted *memory, int threads) { open_on(t, memory, threads, NULL); }
static void close_sums(sums *t) {
    team_close(t->team);
    pool_close(t->p);
}
static tn_status run(sums *t, pool_fn fn) {
    err e = { 0 };
    return team_run(t->team, fn, &t->self, 0, &e);
}

static void test_regions(void **state) {
    (void)state;
    for (int threads = 0; threads <= 4; threads++) {
        counted memory = { 0 };
        sums t;
        err e = { 0 };
        open_sums(&t, &memory, threads);
        int64_t calls = memory.calls;
        int rounds = threads <= 2 ? 3000 : 300;
        for (int i = 1; i <= rounds; i++) {
            t.turn = i;
            assert_int_equal(run(&t, count_shares), TN_OK);
            for (int k = 0; k < t.nt; k++) assert_int_equal(t.plain[k], (long)i * (i + 1) / 2);
        }
        for (int i = 0; i < rounds / 10; i++) {
            t.turn = i;
            assert_int_equal(run(&t, two_regions), TN_OK);
        }
        assert_int_equal(t.wrong, 0);
        assert_int_equal(memory.calls, calls);
        close_sums(&t);
        assert_int_equal(memory.alive, 0);
    }
}

static void sleep_us(long us) { nanosleep(&(struct timespec){ 0, us * 1000 }, NULL); }

/* Pauses around the length of the spin, so that workers are met awake, falling asleep and asleep. */
static void test_sleep_and_wake(void **state) {
    (void)state;
    counted memory = { 0 };
    sums t;
    err e = { 0 };
    open_sums(&t, &memory, 3);
    long want = 0;
    for (int i = 0; i < 300; i++) {
        double until = now_seconds() + (double)(i % 60) * 5e-6;
        if (i % 50 == 49)
            sleep_us(3000);
        else
            while (now_seconds() < until) {
            }
        want += t.turn = i;
        assert_int_equal(run(&t, count_shares), TN_OK);
        for (int k = 0; k < t.nt; k++) assert_int_equal(t.plain[k], want);
    }
    sleep_us(5000); /* closing wakes the sleepers */
    close_sums(&t);
    assert_int_equal(memory.alive, 0);
}

/* Long enough idle, the workers use no processor time. */
static void test_sleepers_sleep(void **state) {
    (void)state;
    counted memory = { 0 };
    sums t;
    err e = { 0 };
    open_sums(&t, &memory, 3);
    assert_int_equal(run(&t, count_shares), TN_OK);
    sleep_us(20000);
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    for (int i = 0; i < 5; i++) sleep_us(20000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double used = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    assert_true(used < 0.05); /* spinning would use 0.2 s */
    close_sums(&t);
}

/* The worker works longer, so that the caller waits. */
typedef struct meeting {
    pid_t who; /* the worker */
    struct meeting *self;
} meeting;
static void work_there(const void *ud, int64_t number, pool_turn *turn) {
    meeting *m = *(meeting *const *)ud;
    int tid = turn->me;
    (void)number;
    while (pool_next(turn, true) >= 0) {
        if (tid) m->who = gettid();
        for (double until = now_seconds() + (tid ? 600e-6 : 200e-6); now_seconds() < until;) {
        }
    }
}
static void stay(pid_t thread, int cpu) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    assert_int_equal(sched_setaffinity(thread, sizeof only, &only), 0);
}
static bool may_use(pid_t thread, int cpu) {
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(thread, sizeof set, &set), 0);
    return CPU_ISSET(cpu, &set);
}
/* The caller runs there until the worker may not. */
static void run_there(sums *t, meeting *m, int cpu) {
    err e = { 0 };
    stay(0, cpu);
    for (double until = now_seconds() + 20; (!m->who || may_use(m->who, cpu)) && now_seconds() < until;)
        assert_int_equal(team_run(t->team, work_there, &m->self, 0, &e), TN_OK);
    assert_false(may_use(m->who, cpu));
}
/* A worker that shares the caller's processor, while another has room: once it has kept the caller waiting, it leaves. */
static void test_off_the_callers_processor(void **state) {
    (void)state;
    counted memory = { 0 };
    sums t;
    cpu_set_t all;
    meeting m = { .self = &m };
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2) skip();
    open_sums(&t, &memory, 2);
    int last = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all)) last = cpu;
    run_there(&t, &m, last);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        stay(m.who, cpu);
        run_there(&t, &m, cpu);
    }
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    close_sums(&t);
}

/* A worker that does not run while it holds a share is kept out of this run and of later ones for ten times as long, and comes
 * back. */
typedef struct sleeper {
    struct sleeper *self;
    int worker[2]; /* shares of the worker: of all; after it slept in this run */
    bool sleeps;
} sleeper;
static void sleep_inside(const void *ud, int64_t regions, pool_turn *turn) {
    sleeper *z = *(sleeper *const *)ud;
    bool slept = false;
    for (int64_t r = 1; r <= regions; r++) {
        int i;
        while ((i = pool_next(turn, r == regions)) >= 0) {
            for (double until = now_seconds() + 20e-6; now_seconds() < until;) {
            }
            if (!turn->me) continue;
            z->worker[0]++, z->worker[1] += slept;
            if (z->sleeps && !slept) slept = true, sleep_us(50000);
        }
        if (i == POOL_LEAVE) return;
    }
}
/* Once is enough: on a busy machine the caller may be the one that does not run. */
static bool is_kept_out(sums *t, sleeper *z) {
    err e = { 0 };
    *z = (sleeper){ .self = z, .sleeps = true };
    for (double until = now_seconds() + 20; !z->worker[0] && now_seconds() < until;)
        assert_int_equal(team_run(t->team, sleep_inside, &z->self, 50, &e), TN_OK);
    assert_int_not_equal(z->worker[0], 0);
    int then = z->worker[1]; /* it may have the next share before the caller knows */
    z->sleeps = false, z->worker[0] = 0;
    for (double until = now_seconds() + 0.01; now_seconds() < until;)
        assert_int_equal(team_run(t->team, sleep_inside, &z->self, 50, &e), TN_OK);
    return then <= 2 && !z->worker[0];
}
static void test_kept_out(void **state) {
    (void)state;
    counted memory = { 0 };
    sums t;
    err e = { 0 };
    sleeper z;
    open_sums(&t, &memory, 2);
    bool out = false;
    for (int i = 0; i < 50 && !out; i++) out = is_kept_out(&t, &z);
    assert_true(out);
    for (double until = now_seconds() + 20; !z.worker[0] && now_seconds() < until;)
        assert_int_equal(team_run(t.team, sleep_inside, &z.self, 50, &e), TN_OK);
    assert_int_not_equal(z.worker[0], 0);
    close_sums(&t);
}

/* Workers that do not run: they enter, but take no share before the caller is behind the last region. */
enum { REGIONS = 500 };
static void absent_workers(const void *ud, int64_t number, pool_turn *turn) {
    sums *t = of(ud);
    (void)number;
    while (turn->me && !__atomic_load_n(&t->turn, __ATOMIC_ACQUIRE)) sched_yield();
    for (int r = 1; r <= REGIONS; r++) {
        int i;
        while ((i = pool_next(turn, r == REGIONS)) >= 0) t->plain[i]++;
        if (i == POOL_LEAVE) return;
    }
    if (!turn->me) __atomic_store_n(&t->turn, 1, __ATOMIC_RELEASE);
}
static void test_absent_workers(void **state) {
    (void)state;
    counted memory = { 0 };
    sums t;
    err e = { 0 };
    open_sums(&t, &memory, 4);
    for (int i = 1; i <= 20; i++) {
        __atomic_store_n(&t.turn, 0, __ATOMIC_RELAXED);
        assert_int_equal(run(&t, absent_workers), TN_OK);
        for (int k = 0; k < t.nt; k++) assert_int_equal(t.plain[k], i * REGIONS);
        assert_int_equal(run(&t, two_regions), TN_OK); /* the next run has all of them again */
        for (int k = 0; k < t.nt; k++) assert_int_equal(t.plain[k], k + 1);
        for (int k = 0; k < t.nt; k++) t.plain[k] = (long)i * REGIONS;
    }
    assert_int_equal(t.wrong, 0);
    close_sums(&t);
}

typedef struct client {
    team *team;
    struct client *self;
    long mine[64];
    int inside[64]; /* [thread] */
    int runs, regions, wrong;
} client;
static void client_shares(const void *ud, int64_t regions, pool_turn *turn) {
    client *c = *(client *const *)ud;
    int i = 0;
    if (__atomic_fetch_add(&c->inside[turn->me], 1, __ATOMIC_ACQ_REL)) __atomic_fetch_add(&c->wrong, 1, __ATOMIC_RELAXED);
    for (int64_t r = 1; r <= regions && i != POOL_LEAVE; r++)
        while ((i = pool_next(turn, r == regions)) >= 0) c->mine[i]++;
    __atomic_fetch_sub(&c->inside[turn->me], 1, __ATOMIC_ACQ_REL);
}
static void *client_main(void *arg) {
    client *c = arg;
    err e = { 0 };
    for (int i = 1; i <= c->runs; i++) {
        int wrong = team_run(c->team, client_shares, &c->self, c->regions, &e) != TN_OK;
        for (int k = 0; k < team_threads(c->team); k++) wrong += c->mine[k] != (long)i * c->regions;
        __atomic_fetch_add(&c->wrong, wrong, __ATOMIC_RELAXED);
    }
    return NULL;
}
/* More callers than threads, than the pool keeps a list of, and with fewer threads than others. No two threads in a run have
 * one number. */
static void test_many_callers(void **state) {
    (void)state;
    enum { CLIENTS = 20 };
    counted memory = { 0 };
    sums t;
    err e = { 0 };
    for (int nt = 2; nt <= 5; nt += 3) {
        open_sums(&t, &memory, nt);
        static client clients[CLIENTS];
        pthread_t threads[CLIENTS];
        for (int i = 0; i < CLIENTS; i++) {
            client *c = &clients[i];
            *c = (client){ .self = c, .runs = 150, .regions = 1 + i % 4 * 10 };
            assert_int_equal(team_open(t.p, i % 3 ? nt : 2, &c->team, &e), TN_OK);
            assert_int_equal(pthread_create(&threads[i], NULL, client_main, c), 0);
        }
        for (int i = 0; i < CLIENTS; i++) {
            pthread_join(threads[i], NULL);
            team_close(clients[i].team);
            assert_int_equal(clients[i].wrong, 0);
        }
        close_sums(&t);
        assert_int_equal(memory.alive, 0);
    }
}

/* ---- executors of the host ---- */

static void serial(void *ud, int n, void (*piece)(void *arg, int i), void *arg) {
    (void)ud;
    for (int i = 0; i < n; i++) piece(arg, i);
}
static void backwards(void *ud, int n, void (*piece)(void *arg, int i), void *arg) {
    (void)ud;
    for (int i = n; i-- > 0;) piece(arg, i);
}
typedef struct job {
    void (*piece)(void *arg, int i);
    void *arg;
    int i;
    bool late;
} job;
static void *job_main(void *arg) {
    const job *j = arg;
    if (j->late) sleep_us(300);
    j->piece(j->arg, j->i);
    return NULL;
}
/* ud: not NULL = every second piece begins late. */
static void threads_each(void *ud, int n, void (*piece)(void *arg, int i), void *arg) {
    job jobs[8];
    pthread_t threads[8];
    for (int i = 0; i < n; i++) {
        jobs[i] = (job){ piece, arg, n - 1 - i, ud && i % 2 };
        assert_int_equal(pthread_create(&threads[i], NULL, job_main, &jobs[i]), 0);
    }
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
}
/* What a host must not do: the run is right all the same. */
static void forgetful(void *ud, int n, void (*piece)(void *arg, int i), void *arg) {
    (void)ud;
    piece(arg, n - 1);
}
static void test_executors(void **state) {
    (void)state;
    char late[] = "late";
    const executor hosts[] = {
        { serial, NULL }, { backwards, NULL }, { threads_each, NULL }, { threads_each, late }, { forgetful, NULL }
    };
    for (size_t h = 0; h < COUNT_OF(hosts); h++) {
        counted memory = { 0 };
        sums t;
        open_on(&t, &memory, 4, &hosts[h]);
        for (int i = 1; i <= 40; i++) {
            t.turn = i;
            assert_int_equal(run(&t, count_shares), TN_OK);
            for (int k = 0; k < t.nt; k++) assert_int_equal(t.plain[k], (long)i * (i + 1) / 2);
        }
        for (int i = 0; i < 40; i++) {
            t.turn = i;
            assert_int_equal(run(&t, two_regions), TN_OK);
        }
        assert_int_equal(t.wrong, 0);
        close_sums(&t);
        assert_int_equal(memory.alive, 0);
    }
}

static void test_open_and_close_at_once(void **state) {
    (void)state;
    for (int i = 0; i < 50; i++) {
        counted memory = { 0 };
        sums t;
        open_sums(&t, &memory, 1 + i % 4);
        close_sums(&t);
        assert_int_equal(memory.alive, 0);
    }
    err e = { 0 };
    pool *p;
    int threads;
    assert_int_equal(pool_open(mem_libc(), NULL, &p, &e), TN_OK);
    assert_int_equal(pool_want(p, -1, &threads, &e), TN_ERR_INVAL);
    assert_int_equal(pool_want(p, POOL_MAX_THREADS + 1, &threads, &e), TN_ERR_INVAL);
    for (int n = 1; n <= 4; n++) { /* it grows, and smaller wishes are met */
        assert_int_equal(pool_want(p, n, &threads, &e), TN_OK);
        assert_int_equal(threads, n);
    }
    assert_int_equal(pool_want(p, 2, &threads, &e), TN_OK);
    assert_int_equal(threads, 2);
    pool_close(p);
    pool_close(NULL);
    team_close(NULL);
}

#if defined(__SANITIZE_THREAD__)
#define NO_FORK 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NO_FORK 1
#endif
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

static int run_in_child(sums *t) {
    memset(t->plain, 0, sizeof t->plain);
    for (int i = 1; i <= 100; i++) {
        t->turn = 1;
        if (run(t, count_shares)) return 1;
        for (int k = 0; k < t->nt; k++)
            if (t->plain[k] != i) return 2;
        if (run(t, two_regions) || t->wrong) return 3;
        memset(t->plain, 0, sizeof t->plain);
        for (int k = 0; k < t->nt; k++) t->plain[k] = i;
    }
    close_sums(t);
    return 0;
}
/* Returns when every thread of the pool has come. */
static void everybody(const void *ud, int64_t number, pool_turn *turn) {
    sums *t = of(ud);
    __atomic_fetch_add(&t->here, 1, __ATOMIC_RELAXED);
    while (__atomic_load_n(&t->here, __ATOMIC_RELAXED) < t->nt) sched_yield();
    count_shares(ud, number, turn);
}
/* Both processes go on with the pool, whether or not the child uses it. The workers have started before the first fork: while
 * the address sanitizer starts a thread it holds locks of its own, which a child would find held for ever. */
static void test_fork(void **state) {
    (void)state;
#ifdef NO_FORK
    print_message("skipped: the thread sanitizer cannot follow threads started after fork\n");
    skip();
#else
    counted memory = { 0 };
    sums t;
    err e = { 0 };
    open_sums(&t, &memory, 3);
    assert_int_equal(run(&t, everybody), TN_OK);
    for (int round = 0; round < 4; round++) {
        assert_int_equal(run(&t, count_shares), TN_OK);
        if (round & 1) sleep_us(2000);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            alarm(20);
            int rc = round < 2 ? run_in_child(&t) : 0;
            if (round >= 2) close_sums(&t);
            _exit(memory.alive == 0 ? rc : 9);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    assert_int_equal(run(&t, count_shares), TN_OK);
    close_sums(&t);
#endif
}

/* The first test: later ones leave stacks of threads behind that need no more memory. Where no thread can be started, as many
 * as possible is one; so many as are named is an error. */
static void test_no_more_threads(void **state) {
    (void)state;
#if defined(NO_FORK) || defined(__SANITIZE_ADDRESS__)
    skip(); /* sanitizers need address space of their own */
#else
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(20);
        counted memory = { 0 };
        sums t = { .self = &t };
        err e = { 0 };
        char now[64] = "";
        FILE *f = fopen("/proc/self/statm", "r");
        if (!f || !fgets(now, sizeof now, f)) _exit(1);
        rlim_t pages = strtoull(now, NULL, 10);
        if (setrlimit(RLIMIT_AS, &(struct rlimit){ (pages << 12) + (1 << 20), RLIM_INFINITY })) _exit(2);
        if (pool_open(counted_mem(&memory), NULL, &t.p, &e)) _exit(3);
        if (pool_want(t.p, 2, &t.nt, &e) != TN_ERR_DEVICE) _exit(7);
        if (pool_want(t.p, 0, &t.nt, &e) || t.nt != 1) _exit(4);
        if (team_open(t.p, 1, &t.team, &e) || run(&t, count_shares)) _exit(5);
        close_sums(&t);
        _exit(memory.alive ? 6 : 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
#endif
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
/* A figure to read, not a condition: other work on the machine decides it too. */
static void test_print_latency(void **state) {
    (void)state;
    counted memory = { 0 };
    sums t;
    err e = { 0 };
    open_sums(&t, &memory, 2);
    static double took[501];
    for (size_t i = 0; i < COUNT_OF(took); i++) {
        double a = now_seconds();
        for (int k = 0; k < 10; k++) assert_int_equal(run(&t, count_shares), TN_OK);
        took[i] = (now_seconds() - a) / 10;
    }
    qsort(took, COUNT_OF(took), sizeof took[0], by_value);
    print_message("fork/join of 2 threads, us: p10 %.3f p50 %.3f p90 %.3f\n", 1e6 * took[50], 1e6 * took[250], 1e6 * took[450]);
    close_sums(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_no_more_threads),
                                        cmocka_unit_test(test_regions),
                                        cmocka_unit_test(test_sleep_and_wake),
                                        cmocka_unit_test(test_sleepers_sleep),
                                        cmocka_unit_test(test_off_the_callers_processor),
                                        cmocka_unit_test(test_kept_out),
                                        cmocka_unit_test(test_absent_workers),
                                        cmocka_unit_test(test_many_callers),
                                        cmocka_unit_test(test_executors),
                                        cmocka_unit_test(test_open_and_close_at_once),
                                        cmocka_unit_test(test_fork),
                                        cmocka_unit_test(test_print_latency) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
