/* The run path of programs: after a warm-up, tn_session_bind and tn_session_run of a compiled and of a graph-mode program
 * allocate nothing and, on one thread, make no system call; so does tn_run_n of a loop.
 *
 * Allocation is counted twice: at the memory callback and at malloc itself, which this program replaces. System calls are
 * forbidden by a seccomp filter in a child, which the kernel kills at the first one. */
#include "tenon/tenon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

static _Atomic long heap_calls, callback_calls;
#if !defined(SANITIZED) && defined(__GLIBC__)
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *ptr, size_t size);
extern void __libc_free(void *ptr);
void *malloc(size_t size) { return heap_calls++, __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return heap_calls++, __libc_calloc(n, size); }
void *realloc(void *ptr, size_t size) { return heap_calls++, __libc_realloc(ptr, size); }
void free(void *ptr) { heap_calls++, __libc_free(ptr); }
#endif

static void *count_realloc(void *ud, void *ptr, size_t old_size, size_t new_size) {
    (void)ud, (void)old_size;
    callback_calls++;
    if (new_size) return realloc(ptr, new_size);
    free(ptr);
    return NULL;
}

enum { RUNS = 1000, N = 40 };

typedef struct fixture {
    tn_ctx *ctx;
    tn_program *p;
    tn_session *s;
    tn_mode mode;
    int x, total, count;
    float data[2][N][N]; /* bound in turn */
    float expected[2];
    int64_t runs; /* the state counts them */
} fixture;

static void open_all(fixture *f, tn_mode mode, int threads) {
    *f = (fixture){ .mode = mode };
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU"), .realloc = count_realloc };
    f->ctx = tn_ctx_new(&cfg);
    tn_graph *g = tn_graph_new(f->ctx, "runs");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(N, N)), n = tn_state(g, "n", TN_I64, TN_SCALAR, NULL);
    tn_output(tn_sum(tn_relu(tn_matmul(x, tn_full(g, TN_F32, TN_DIMS(N, N), 1))), TN_ALL_AXES, 0), "total");
    tn_output(tn_add_scalar(n, 1), "count");
    tn_assign(n, tn_add_scalar(n, 1));
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = mode, o.threads = threads;
    if (tn_compile(g, &o, &f->p) || tn_session_new(f->p, &f->s)) fail_msg("%s", tn_ctx_error(f->ctx));
    tn_graph_free(g);
    f->x = tn_session_slot(f->s, "x"), f->total = tn_session_slot(f->s, "total"), f->count = tn_session_slot(f->s, "count");
    for (int k = 0; k < 2; k++) /* small whole numbers: every order of summation is exact */
        for (int i = 0; i < N; i++) {
            float row = 0;
            for (int j = 0; j < N; j++) row += f->data[k][i][j] = (float)((i * 7 + j * 3 + k) % 11 - 5);
            f->expected[k] += row > 0 ? row * N : 0;
        }
}
static void close_all(fixture *f) {
    tn_session_free(f->s);
    tn_program_free(f->p);
    tn_ctx_free(f->ctx);
}

/* 0 when every run was right. No library call here that could itself allocate or enter the kernel. */
static int run_many(fixture *f, int n) {
    for (int i = 0; i < n; i++) {
        float total = -1;
        int64_t count = -1;
        if (tn_session_bind(f->s, f->x, f->data[i % 2]) || tn_session_bind(f->s, f->total, &total) ||
            tn_session_bind(f->s, f->count, &count))
            return 1;
        if (f->mode == TN_MODE_LOOP) { /* ends with the batch of the last step */
            if (tn_run_n(f->s, 4, TN_BIND({ "x", f->data }), 2)) return 2;
            f->runs += 4;
            if (total != f->expected[1]) return 3;
        } else {
            if (tn_session_run(f->s)) return 2;
            f->runs++;
            if (total != f->expected[i % 2]) return 3;
        }
        if (count != f->runs) return 4;
    }
    return 0;
}

static void test_allocates_nothing(void **state) {
    (void)state;
    for (int threads = 1; threads <= 2; threads++)
        for (tn_mode mode = TN_MODE_GRAPH; mode <= TN_MODE_LOOP; mode++) {
            fixture f;
            open_all(&f, mode, threads);
            int rc = run_many(&f, 10);
            long heap_before = heap_calls, callback_before = callback_calls;
            rc = rc ? rc : run_many(&f, RUNS);
            long heap_after = heap_calls, callback_after = callback_calls;
            if (rc) fail_msg("mode %d, %d threads: run_many says %d, %s", (int)mode, threads, rc, tn_ctx_error(f.ctx));
            assert_int_equal(heap_after, heap_before);
            assert_int_equal(callback_after, callback_before);
            close_all(&f);
        }
    assert_true(callback_calls > 0); /* the counters count */
#if !defined(SANITIZED) && defined(__GLIBC__)
    assert_true(heap_calls > 0);
#else
    print_message("malloc itself is not counted under a sanitizer\n");
#endif
}

#if defined(__x86_64__)
#define THIS_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define THIS_ARCH AUDIT_ARCH_AARCH64
#endif

#if defined(THIS_ARCH) && !defined(SANITIZED)
/* From now on this process may only end. */
static bool forbid_syscalls(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCH, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { (unsigned short)(sizeof filter / sizeof filter[0]), filter };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}
enum { NO_SECCOMP = 77 };

/* Wait status of a child that runs under the filter; `extra` makes one forbidden call, to see that the filter bites. */
static int run_filtered(tn_mode mode, bool extra) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        fixture f;
        open_all(&f, mode, 1);
        int rc = run_many(&f, 10);
        if (!forbid_syscalls()) _exit(NO_SECCOMP);
        if (extra) getppid();
        rc = rc ? rc : run_many(&f, RUNS);
        _exit(rc);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}
static void test_makes_no_system_call(void **state) {
    (void)state;
    int status = run_filtered(TN_MODE_COMPILED, true);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_SECCOMP) {
        print_message("skipped: no seccomp here\n");
        skip();
    }
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    assert_int_equal(run_filtered(TN_MODE_COMPILED, false), 0);
    assert_int_equal(run_filtered(TN_MODE_GRAPH, false), 0);
    assert_int_equal(run_filtered(TN_MODE_LOOP, false), 0);
}
#else
static void test_makes_no_system_call(void **state) {
    (void)state;
    print_message("skipped: a sanitizer makes system calls of its own, or the processor is not known here\n");
    skip();
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_allocates_nothing), cmocka_unit_test(test_makes_no_system_call) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
