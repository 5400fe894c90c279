/* test_executor.c - whose threads run: one pool for all sessions and thread counts of a context, the host's executor where
 * there is one, in any order and late, and processes made by fork. Results have the same bits everywhere.
 *
 * Labels: threads */
#include "tenon/tenon.h"
#include "tenon/tenon_nn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "support/support.h"

#if defined(__SANITIZE_THREAD__)
#define NO_FORK 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NO_FORK 1
#endif
#endif

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- a training step: several regions, a reduction over rows, states ---- */

enum { ROWS = 96, COLUMNS = 80, CLASSES = 10, STEPS = 12, THREADS = 4 };

static tn_graph *make_graph(tn_ctx *ctx) {
    tn_graph *g = tn_graph_new(ctx, "net");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(ROWS, COLUMNS)), t = tn_input(g, "t", TN_I32, TN_DIMS(ROWS));
    tn_tensor y = tn_nn_linear(tn_relu(tn_nn_linear(x, 64, "fc1")), CLASSES, "fc2");
    tn_tensor loss = tn_nn_cross_entropy(y, t);
    tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 1e-2 });
    tn_output(loss, "loss");
    tn_output(y, "y");
    return g;
}
typedef struct result {
    float loss, y[ROWS * CLASSES];
} result;

static bool run_program(tn_program *p, result *out) {
    float x[ROWS * COLUMNS];
    int32_t t[ROWS];
    tn_session *s;
    rng r = rng_make(5);
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)rng_range(&r, -1, 1);
    for (int i = 0; i < ROWS; i++) t[i] = i * 7 % CLASSES;
    if (tn_session_new(p, &s)) return false;
    memset(out, 0, sizeof *out);
    bool good = true;
    for (int i = 0; i < STEPS && good; i++)
        good = tn_run(s, TN_BIND({ "x", x }, { "t", t }, { "loss", &out->loss }, { "y", out->y })) == TN_OK;
    tn_session_free(s);
    return good;
}

static void run_with(const tn_config *cfg, int threads, tn_mode mode, result *out) {
    tn_ctx *ctx = tn_ctx_new(cfg);
    tn_graph *g = make_graph(ctx);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    o.threads = threads, o.mode = mode;
    if (tn_compile(g, &o, &p)) fail_msg("%s", tn_ctx_error(ctx));
    assert_true(run_program(p, out));
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* ---- executors ---- */

static void serial(void *ud, int n, void (*piece)(void *arg, int i), void *arg) {
    ++*(int *)ud;
    for (int i = 0; i < n; i++) piece(arg, i);
}
static void backwards(void *ud, int n, void (*piece)(void *arg, int i), void *arg) {
    ++*(int *)ud;
    for (int i = n; i-- > 0;) piece(arg, i);
}
typedef struct job {
    void (*piece)(void *arg, int i);
    void *arg;
    int i, late_us;
} job;
static void *job_main(void *arg) {
    const job *j = arg;
    if (j->late_us) nanosleep(&(struct timespec){ 0, j->late_us * 1000 }, NULL);
    j->piece(j->arg, j->i);
    return NULL;
}
static void run_jobs(int n, void (*piece)(void *arg, int i), void *arg, int late_us) {
    job jobs[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < n; i++) {
        jobs[i] = (job){ piece, arg, n - 1 - i, late_us * i };
        assert_int_equal(pthread_create(&threads[i], NULL, job_main, &jobs[i]), 0);
    }
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
}
static void own_threads(void *ud, int n, void (*piece)(void *arg, int i), void *arg) {
    ++*(int *)ud;
    run_jobs(n, piece, arg, 0);
}
static void late(void *ud, int n, void (*piece)(void *arg, int i), void *arg) {
    ++*(int *)ud;
    run_jobs(n, piece, arg, 150);
}

/* Threads of this process whose names begin so. */
static int count_threads(const char *prefix) {
    DIR *d = opendir("/proc/self/task");
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
        FILE *f = fopen(path, "r");
        if (!f) continue;
        n += fgets(name, sizeof name, f) && !strncmp(name, prefix, strlen(prefix));
        fclose(f);
    }
    if (d) closedir(d);
    return n;
}

static void test_executors_bits(void **state) {
    (void)state;
    static const struct {
        const char *name;
        void (*parallel_for)(void *, int, void (*)(void *, int), void *);
    } hosts[] = { { "serial", serial }, { "backwards", backwards }, { "own threads", own_threads }, { "late", late } };
    static const tn_mode modes[] = { TN_MODE_GRAPH, TN_MODE_COMPILED };
    for (size_t m = 0; m < COUNT_OF(modes); m++) {
        result want, got;
        run_with(NULL, THREADS, modes[m], &want);
        for (size_t h = 0; h < COUNT_OF(hosts); h++) {
            int calls = 0;
            tn_config cfg = { .struct_size = sizeof cfg, .parallel_for = hosts[h].parallel_for, .parallel_ud = &calls };
            run_with(&cfg, THREADS, modes[m], &got);
            if (memcmp(&want, &got, sizeof want)) fail_msg("%s: other bits", hosts[h].name);
            assert_true(calls >= STEPS);
            calls = 0;
            run_with(&cfg, 1, modes[m], &got);
            assert_int_equal(calls, 0); /* one thread is the caller */
        }
    }
}

static int seen; /* the library's threads while the host's executor ran */
static void look(void *ud, int n, void (*piece)(void *arg, int i), void *arg) {
    seen += count_threads("tenon-");
    serial(ud, n, piece, arg);
}
static void test_executor_starts_no_threads(void **state) {
    (void)state;
    int calls = 0;
    result got;
    run_with(&(tn_config){ .struct_size = sizeof(tn_config), .parallel_for = look, .parallel_ud = &calls }, THREADS,
             TN_MODE_COMPILED, &got);
    assert_true(calls > 0);
    assert_int_equal(seen, 0);
}

/* ---- one pool ---- */

typedef struct client {
    tn_program *p;
    result got;
    bool good;
} client;
static void *client_main(void *arg) {
    client *c = arg;
    c->good = true;
    for (int i = 0; i < 10 && c->good; i++) c->good = run_program(c->p, &c->got);
    return NULL;
}
static void test_one_pool(void **state) {
    (void)state;
    enum { CLIENTS = 6 };
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_graph *g = make_graph(ctx);
    tn_program *p[3];
    for (int i = 0; i < 3; i++) {
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.threads = 2 + i;
        assert_int_equal(tn_compile(g, &o, &p[i]), TN_OK);
        tn_program_stats facts;
        tn_program_get_stats(p[i], &facts);
        assert_int_equal(facts.threads, 2 + i);
        assert_int_equal(count_threads("tenon-"), 1 + i); /* as many as the program that wants most, and the caller */
    }
    static client clients[CLIENTS];
    pthread_t threads[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        clients[i].p = p[i % 3];
        assert_int_equal(pthread_create(&threads[i], NULL, client_main, &clients[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(clients[i].good);
        assert_memory_equal(&clients[i].got, &clients[0].got, sizeof(result));
    }
    assert_int_equal(count_threads("tenon-"), 3);
    for (int i = 0; i < 3; i++) tn_program_free(p[i]);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* ---- many processes ---- */

enum { SIZE = 512, RUNS = 20, CHILDREN = 20 };

static tn_program *make_product(tn_ctx *ctx, int threads) {
    tn_graph *g = tn_graph_new(ctx, "product");
    tn_tensor a = tn_input(g, "a", TN_F32, TN_DIMS(SIZE, SIZE)), b = tn_input(g, "b", TN_F32, TN_DIMS(SIZE, SIZE));
    tn_output(tn_matmul(a, b), "c");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.threads = threads;
    tn_program *p;
    assert_int_equal(tn_compile(g, &o, &p), TN_OK);
    tn_graph_free(g);
    return p;
}
static bool run_product(tn_session *s, const float *a, float *c) {
    for (int i = 0; i < RUNS; i++)
        if (tn_run(s, TN_BIND({ "a", (void *)(uintptr_t)a }, { "b", (void *)(uintptr_t)a }, { "c", c }))) return false;
    return c[0] == (float)SIZE && c[SIZE * SIZE - 1] == (float)SIZE;
}
/* A parent and its children, all with the pool that the parent opened: together they take what their work takes on the
 * processors there are, and some. Not more than twenty times as long: whoever else uses the machine has his part of it. */
static void test_forks(void **state) {
    (void)state;
#ifdef NO_FORK
    skip(); /* the thread sanitizer cannot follow threads started after fork */
#else
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_program *one = make_product(ctx, 1), *two = make_product(ctx, 2);
    tn_session *s1, *s2;
    assert_int_equal(tn_session_new(one, &s1), TN_OK);
    assert_int_equal(tn_session_new(two, &s2), TN_OK);
    float *a = malloc(sizeof(float) * SIZE * SIZE), *c = malloc(sizeof(float) * SIZE * SIZE);
    assert_true(a && c);
    for (int i = 0; i < SIZE * SIZE; i++) a[i] = 1;
    double alone = 1e9;
    for (int i = 0; i < 3; i++) {
        double start = now();
        assert_true(run_product(s1, a, c));
        alone = now() - start < alone ? now() - start : alone;
    }
    for (double until = now() + 0.2; now() < until;) assert_true(run_product(s2, a, c)); /* its threads have started */
    double start = now();
    pid_t child[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i] == 0) {
            alarm(120);
            _exit(run_product(s2, a, c) ? 0 : 1);
        }
    }
    assert_true(run_product(s2, a, c));
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
    double took = now() - start, work = alone * (CHILDREN + 1) / 2;
    print_message("%d processes: %.2f s, their work %.2f s on two processors\n", CHILDREN + 1, took, work);
    assert_true(took < 20 * work + 1);
    tn_session_free(s1), tn_session_free(s2);
    tn_program_free(one), tn_program_free(two);
    tn_ctx_free(ctx);
    free(a), free(c);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_executors_bits),
                                        cmocka_unit_test(test_executor_starts_no_threads), cmocka_unit_test(test_one_pool),
                                        cmocka_unit_test(test_forks) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
