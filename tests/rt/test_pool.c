/* The pool: every share of every region is done exactly once, before pool_run returns; asleep, awake, crowded, shared and after
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

typedef struct team {
    pool *p;
    int nt;
    long plain[64]; /* [share] written by the thread that has it, read by the caller after the run */
    long turn;      /* written by the caller before a run, read inside it */
    int wrong;
    int here; /* threads that have come */
} team;

static void count_shares(void *ud, pool_turn *turn) {
    team *t = ud;
    for (int i; (i = pool_next(turn, true)) >= 0;) t->plain[i] += t->turn;
}
static void two_regions(void *ud, pool_turn *turn) {
    team *t = ud;
    for (int i; (i = pool_next(turn, false)) >= 0;) t->plain[i] = i + t->turn;
    while (pool_next(turn, true) >= 0) {
        long sum = 0, want = 0;
        for (int i = 0; i < t->nt; i++) sum += t->plain[i], want += i + t->turn;
        if (sum != want) __atomic_fetch_add(&t->wrong, 1, __ATOMIC_RELAXED);
    }
}

static void open_team(team *t, counted *memory, int threads) {
    err e = { 0 };
    memset(t, 0, sizeof *t);
    assert_int_equal(pool_open(counted_mem(memory), threads, &t->p, &e), TN_OK);
    t->nt = pool_threads(t->p);
    assert_int_equal(t->nt, threads ? threads : pool_cpus());
}

static void test_regions(void **state) {
    (void)state;
    for (int threads = 0; threads <= 4; threads++) {
        counted memory = { 0 };
        team t;
        err e = { 0 };
        open_team(&t, &memory, threads);
        int64_t calls = memory.calls;
        int rounds = threads <= 2 ? 3000 : 300;
        for (int i = 1; i <= rounds; i++) {
            t.turn = i;
            assert_int_equal(pool_run(t.p, count_shares, &t, &e), TN_OK);
            for (int k = 0; k < t.nt; k++) assert_int_equal(t.plain[k], (long)i * (i + 1) / 2);
        }
        for (int i = 0; i < rounds / 10; i++) {
            t.turn = i;
            assert_int_equal(pool_run(t.p, two_regions, &t, &e), TN_OK);
        }
        assert_int_equal(t.wrong, 0);
        assert_int_equal(memory.calls, calls);
        pool_close(t.p);
        assert_int_equal(memory.alive, 0);
    }
}

static void sleep_us(long us) { nanosleep(&(struct timespec){ 0, us * 1000 }, NULL); }

/* Pauses around the length of the spin, so that workers are met awake, falling asleep and asleep. */
static void test_sleep_and_wake(void **state) {
    (void)state;
    counted memory = { 0 };
    team t;
    err e = { 0 };
    open_team(&t, &memory, 3);
    long want = 0;
    for (int i = 0; i < 300; i++) {
        double until = now_seconds() + (double)(i % 60) * 5e-6;
        if (i % 50 == 49)
            sleep_us(3000);
        else
            while (now_seconds() < until) {
            }
        want += t.turn = i;
        assert_int_equal(pool_run(t.p, count_shares, &t, &e), TN_OK);
        for (int k = 0; k < t.nt; k++) assert_int_equal(t.plain[k], want);
    }
    sleep_us(5000); /* closing wakes the sleepers */
    pool_close(t.p);
    assert_int_equal(memory.alive, 0);
}

/* Long enough idle, the workers use no processor time. */
static void test_sleepers_sleep(void **state) {
    (void)state;
    counted memory = { 0 };
    team t;
    err e = { 0 };
    open_team(&t, &memory, 3);
    assert_int_equal(pool_run(t.p, count_shares, &t, &e), TN_OK);
    sleep_us(20000);
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    for (int i = 0; i < 5; i++) sleep_us(20000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double used = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    assert_true(used < 0.05); /* spinning would use 0.2 s */
    pool_close(t.p);
}

/* The worker works longer, so that the caller waits. */
typedef struct meeting {
    pid_t who; /* the worker */
    int at[2]; /* where each thread was */
} meeting;
static void work_there(void *ud, pool_turn *turn) {
    meeting *m = ud;
    int tid = turn->me;
    if (tid) m->who = gettid();
    for (double until = now_seconds() + (tid ? 600e-6 : 200e-6); now_seconds() < until;) {
    }
    m->at[tid] = sched_getcpu();
}
static void stay(pid_t thread, int cpu) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    assert_int_equal(sched_setaffinity(thread, sizeof only, &only), 0);
}
/* A worker that shares the caller's processor, while another has room: once it has kept the caller waiting, it leaves. */
static void test_off_the_callers_processor(void **state) {
    (void)state;
    counted memory = { 0 };
    team t;
    err e = { 0 };
    cpu_set_t all;
    meeting m = { 0 };
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2) skip();
    open_team(&t, &memory, 2);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        stay(0, cpu); /* often: a caller that is interrupted waits for nobody, and the pool moves a worker once a processor */
        for (int i = 0; i < 20; i++) assert_int_equal(pool_run(t.p, work_there, &m, &e), TN_OK);
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        stay(0, cpu);
        stay(m.who, cpu);
        m.at[1] = cpu;
        for (int i = 0; i < 50 && m.at[1] == cpu; i++) assert_int_equal(pool_run(t.p, work_there, &m, &e), TN_OK);
        assert_int_equal(m.at[0], cpu);
        assert_int_not_equal(m.at[1], cpu);
    }
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    pool_close(t.p);
}

/* Workers that do not run: they enter, but take no share before the caller is behind the last region. */
enum { REGIONS = 500 };
static void absent_workers(void *ud, pool_turn *turn) {
    team *t = ud;
    while (turn->me && !__atomic_load_n(&t->turn, __ATOMIC_ACQUIRE)) sched_yield();
    for (int r = 1; r <= REGIONS; r++)
        for (int i; (i = pool_next(turn, r == REGIONS)) >= 0;) t->plain[i]++;
    if (!turn->me) __atomic_store_n(&t->turn, 1, __ATOMIC_RELEASE);
}
static void test_absent_workers(void **state) {
    (void)state;
    counted memory = { 0 };
    team t;
    err e = { 0 };
    open_team(&t, &memory, 4);
    for (int run = 1; run <= 20; run++) {
        t.turn = 0;
        assert_int_equal(pool_run(t.p, absent_workers, &t, &e), TN_OK);
        for (int k = 0; k < t.nt; k++) assert_int_equal(t.plain[k], run * REGIONS);
        assert_int_equal(pool_run(t.p, two_regions, &t, &e), TN_OK); /* the next run has all of them again */
        for (int k = 0; k < t.nt; k++) assert_int_equal(t.plain[k], k + 1);
        for (int k = 0; k < t.nt; k++) t.plain[k] = (long)run * REGIONS;
    }
    assert_int_equal(t.wrong, 0);
    pool_close(t.p);
}

typedef struct client {
    team *t;
    long mine[64];
    int runs, wrong;
} client;
static void client_shares(void *ud, pool_turn *turn) {
    client *c = ud;
    for (int i; (i = pool_next(turn, true)) >= 0;) c->mine[i]++;
}
static void *client_main(void *arg) {
    client *c = arg;
    err e = { 0 };
    for (int i = 1; i <= c->runs; i++) {
        if (pool_run(c->t->p, client_shares, c, &e)) c->wrong++;
        for (int k = 0; k < c->t->nt; k++) c->wrong += c->mine[k] != i;
    }
    return NULL;
}
static void test_many_callers(void **state) {
    (void)state;
    counted memory = { 0 };
    team t;
    open_team(&t, &memory, 2);
    client clients[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        clients[i] = (client){ .t = &t, .runs = 500 };
        assert_int_equal(pthread_create(&threads[i], NULL, client_main, &clients[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(clients[i].wrong, 0);
    }
    pool_close(t.p);
}

static void test_open_and_close_at_once(void **state) {
    (void)state;
    for (int i = 0; i < 50; i++) {
        counted memory = { 0 };
        team t;
        open_team(&t, &memory, 1 + i % 4);
        pool_close(t.p);
        assert_int_equal(memory.alive, 0);
    }
    err e = { 0 };
    pool *p;
    assert_int_equal(pool_open(mem_libc(), -1, &p, &e), TN_ERR_INVAL);
    assert_int_equal(pool_open(mem_libc(), POOL_MAX_THREADS + 1, &p, &e), TN_ERR_INVAL);
    assert_null(p);
    pool_close(NULL);
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

static int run_in_child(team *t) {
    err e = { 0 };
    memset(t->plain, 0, sizeof t->plain);
    for (int i = 1; i <= 100; i++) {
        t->turn = 1;
        if (pool_run(t->p, count_shares, t, &e)) return 1;
        for (int k = 0; k < t->nt; k++)
            if (t->plain[k] != i) return 2;
        if (pool_run(t->p, two_regions, t, &e) || t->wrong) return 3;
        memset(t->plain, 0, sizeof t->plain);
        for (int k = 0; k < t->nt; k++) t->plain[k] = i;
    }
    pool_close(t->p);
    return 0;
}
/* Returns when every thread of the pool has come. */
static void everybody(void *ud, pool_turn *turn) {
    team *t = ud;
    __atomic_fetch_add(&t->here, 1, __ATOMIC_RELAXED);
    while (__atomic_load_n(&t->here, __ATOMIC_RELAXED) < t->nt) sched_yield();
    count_shares(ud, turn);
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
    team t;
    err e = { 0 };
    open_team(&t, &memory, 3);
    assert_int_equal(pool_run(t.p, everybody, &t, &e), TN_OK);
    for (int round = 0; round < 4; round++) {
        assert_int_equal(pool_run(t.p, count_shares, &t, &e), TN_OK);
        if (round & 1) sleep_us(2000);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            alarm(20);
            int rc = round < 2 ? run_in_child(&t) : 0;
            if (round >= 2) pool_close(t.p);
            _exit(memory.alive == 0 ? rc : 9);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    assert_int_equal(pool_run(t.p, count_shares, &t, &e), TN_OK);
    pool_close(t.p);
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
        team t = { 0 };
        err e = { 0 };
        char now[64] = "";
        FILE *f = fopen("/proc/self/statm", "r");
        if (!f || !fgets(now, sizeof now, f)) _exit(1);
        rlim_t pages = strtoull(now, NULL, 10);
        if (setrlimit(RLIMIT_AS, &(struct rlimit){ (pages << 12) + (1 << 20), RLIM_INFINITY })) _exit(2);
        if (pool_open(counted_mem(&memory), 2, &t.p, &e) != TN_ERR_DEVICE || memory.alive) _exit(3);
        if (pool_open(counted_mem(&memory), 0, &t.p, &e) != TN_OK) _exit(4);
        if (pool_threads(t.p) != 1 || pool_run(t.p, count_shares, &t, &e)) _exit(5);
        pool_close(t.p);
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
    team t;
    err e = { 0 };
    open_team(&t, &memory, 2);
    static double took[501];
    for (size_t i = 0; i < COUNT_OF(took); i++) {
        double a = now_seconds();
        for (int k = 0; k < 10; k++) assert_int_equal(pool_run(t.p, count_shares, &t, &e), TN_OK);
        took[i] = (now_seconds() - a) / 10;
    }
    qsort(took, COUNT_OF(took), sizeof took[0], by_value);
    print_message("fork/join of 2 threads, us: p10 %.3f p50 %.3f p90 %.3f\n", 1e6 * took[50], 1e6 * took[250], 1e6 * took[450]);
    pool_close(t.p);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_no_more_threads),
                                        cmocka_unit_test(test_regions),
                                        cmocka_unit_test(test_sleep_and_wake),
                                        cmocka_unit_test(test_sleepers_sleep),
                                        cmocka_unit_test(test_off_the_callers_processor),
                                        cmocka_unit_test(test_absent_workers),
                                        cmocka_unit_test(test_many_callers),
                                        cmocka_unit_test(test_open_and_close_at_once),
                                        cmocka_unit_test(test_fork),
                                        cmocka_unit_test(test_print_latency) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
