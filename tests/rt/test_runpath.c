/* The run path of the device cpu: binding, submitting and waiting allocate nothing and make no system call.
 *
 * Allocation is counted twice: at the memory callback and at malloc itself, which this program replaces. System calls are
 * forbidden by a seccomp filter in a child, which the kernel kills at the first one. A parallel region may wake sleeping
 * threads, yield to preempted ones, ask how long they ran and move them; nothing else. */
#include "rt_util.h"

#include "rt/device.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

static _Atomic long heap_calls;
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

static const char *const kernels =
    KERNEL_HEAD "void add(char *const *slot, const par *p, long steps) {\n"
                "    const float *a = (const float *)slot[0]; float *out = (float *)slot[1];\n"
                "    SHARES for (int i = tid; i < 500; i += (int)p->nt) out[i] = a[i] + (float)steps; }\n";

typedef struct fixture {
    counted memory;
    device *d;
    buffer *a, *b;
    module *m;
    list *l;
    float in[500];
} fixture;

static void open_all(fixture *f, int threads, bool parallel) {
    memset(f, 0, sizeof *f);
    err e = { 0 };
    const device_api *api = &device_cpu;
    device_opts opts = { .mem = counted_mem(&f->memory), .threads = threads, .compiler = "cc" };
    void *entry;
    assert_int_equal(api->open(&opts, &f->d, &e), TN_OK);
    assert_int_equal(api->alloc(f->d, sizeof f->in, &f->a, &e), TN_OK);
    assert_int_equal(api->alloc(f->d, sizeof f->in, &f->b, &e), TN_OK);
    for (int i = 0; i < 500; i++) f->in[i] = (float)(i * 3 - 700) / 8;
    assert_int_equal(api->upload(f->d, f->a, 0, f->in, sizeof f->in, &e), TN_OK);
    assert_int_equal(api->build(f->d, kernels, strlen(kernels), false, &f->m, NULL, &e), TN_OK);
    assert_int_equal(api->find(f->d, f->m, "add", &entry, &e), TN_OK);
    assert_int_equal(api->record(f->d, 3, &f->l, &e), TN_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(api->launch(f->l, &(device_launch){ .entry = entry, .parallel = parallel, .loops = true }, &e), TN_OK);
    assert_int_equal(api->copy(f->l, 2, 0, 1, 0, sizeof f->in, &e), TN_OK);
    assert_int_equal(api->seal(f->l, &e), TN_OK);
    api->bind(f->l, 0, f->a, 0);
    api->bind(f->l, 1, f->b, 0);
}
static void close_all(fixture *f) {
    const device_api *api = f->d->api;
    api->discard(f->l);
    api->drop(f->d, f->m);
    api->free(f->d, f->a);
    api->free(f->d, f->b);
    api->close(f->d);
    assert_int_equal(f->memory.alive, 0);
}
/* 0 when every step was right. No library call that could itself allocate or enter the kernel. */
static int run_steps(fixture *f, int n) {
    static float out[500];
    err e;
    for (int step = 1; step <= n; step++) {
        uint64_t ticket;
        f->d->api->bind_host(f->l, 2, out);
        if (f->d->api->submit(f->l, step, &ticket, &e) || f->d->api->wait(f->d, ticket, &e)) return 1;
        for (int i = 0; i < 500; i++)
            if (out[i] != f->in[i] + (float)step) return 2;
    }
    return 0;
}

static void test_allocates_nothing(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        fixture f;
        open_all(&f, threads, true);
        int64_t before = f.memory.calls;
        long heap_before = heap_calls;
        int rc = run_steps(&f, 500);
        long heap_after = heap_calls;
        assert_int_equal(rc, 0);
        assert_int_equal(f.memory.calls, before);
        assert_int_equal(heap_after, heap_before);
        close_all(&f);
    }
#if !defined(SANITIZED) && defined(__GLIBC__)
    assert_true(heap_calls > 0); /* the counter counts */
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
/* From now on this thread may only leave, and, with `waking`, wake, yield, and ask how long a thread that it waits for ran. */
static bool forbid_syscalls(bool waking) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCH, 0, 6),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_exit_group, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, waking ? __NR_futex : __NR_exit_group, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, waking ? __NR_sched_yield : __NR_exit_group, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, waking ? __NR_clock_gettime : __NR_exit_group, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, waking ? __NR_sched_setaffinity : __NR_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { (unsigned short)COUNT_OF(filter), filter };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}
enum { NO_SECCOMP = 77 };

/* Wait status of a child that runs under the filter; `extra` makes one forbidden call, to see that the filter bites. */
static int run_filtered(int threads, bool parallel, bool extra) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        fixture f;
        open_all(&f, threads, parallel);
        int rc = run_steps(&f, 10);
        if (!forbid_syscalls(threads > 1)) _exit(NO_SECCOMP);
        if (extra) getppid();
        rc += run_steps(&f, 2000);
        _exit(rc);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}
static void test_makes_no_system_call(void **state) {
    (void)state;
    int status = run_filtered(1, false, true);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_SECCOMP) {
        print_message("skipped: no seccomp here\n");
        skip();
    }
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    assert_int_equal(run_filtered(1, false, false), 0);
    assert_int_equal(run_filtered(1, true, false), 0);
    assert_int_equal(run_filtered(2, false, false), 0);
    assert_int_equal(run_filtered(2, true, false), 0);
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
