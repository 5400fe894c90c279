/* test_jit.c - memory for machine code: loading, finding, dropping, imports, threads, fork, and that nothing is ever writable
 * and executable at once. The images are a few bytes of x86-64; elsewhere the test is skipped.
 *
 * Labels: threads */
#include "rt_util.h"

#include "rt/jit.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>

typedef int (*int_fn)(void);

/* mov eax, value; ret */
static tn_status load_value(jit *j, int32_t value, size_t size, jit_code **out, err *e) {
    unsigned char *bytes = calloc(1, size);
    const device_symbol fn[] = { { "helper", 0, 6 }, { "tn_main", 0, 6 } };
    bytes[0] = 0xB8, bytes[5] = 0xC3;
    memcpy(bytes + 1, &value, 4);
    tn_status st = jit_load(j, &(device_image){ .bytes = bytes, .n_bytes = size, .functions = fn, .n_functions = 2 }, out, e);
    free(bytes);
    return st;
}
static int call(const jit_code *c) {
    void *p = jit_find(c, "tn_main");
    int_fn fn;
    assert_non_null(p);
    memcpy(&fn, &p, sizeof fn);
    return fn();
}

static bool here(void) {
#if defined(__x86_64__)
    return true;
#else
    return false;
#endif
}

/* Mappings that are writable and executable, and those of a file of code that are writable. */
static int writable_code(void) {
    char line[512];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f)) n += strstr(line, " rwx") || (strstr(line, "tenon-code") && strstr(line, " rw"));
    if (f) fclose(f);
    return n;
}

static void test_load_and_drop(void **state) {
    (void)state;
    counted memory = { 0 };
    err e = { 0 };
    jit *j;
    jit_code *c[300];
    if (!here()) skip();
    assert_int_equal(jit_open(counted_mem(&memory), false, &j, &e), TN_OK);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 300; i++)
            assert_int_equal(load_value(j, i * 7 + round, 64 + (size_t)(i * 37 % 5000), &c[i], &e), TN_OK);
        for (int i = 0; i < 300; i++) assert_int_equal(call(c[i]), i * 7 + round);
        assert_null(jit_find(c[0], "tn_kernel_0"));
        assert_null(jit_find(c[0], "helper"));
        assert_int_equal(writable_code(), 0);
        for (int i = 0; i < 300; i += 2) jit_drop(j, c[i]);
        for (int i = 1; i < 300; i += 2) assert_int_equal(call(c[i]), i * 7 + round);
        for (int i = 1; i < 300; i += 2) jit_drop(j, c[i]);
    }
    assert_int_equal(load_value(j, 5, 20 << 20, &c[0], &e), TN_OK); /* more than a region holds */
    assert_int_equal(call(c[0]), 5);
    jit_drop(j, c[0]);
    jit_drop(j, NULL);
    jit_close(j);
    assert_int_equal(memory.alive, 0);
}

/* jmp [rip + 2]; two bytes; the cell */
static void test_imports(void **state) {
    (void)state;
    counted memory = { 0 };
    err e = { 0 };
    jit *j;
    jit_code *c;
    unsigned char bytes[16] = { 0xFF, 0x25, 2, 0, 0, 0 };
    device_symbol fn[] = { { "tn_main", 0, 6 } }, import[] = { { "coshf", 8, 0 } };
    device_image image = {
        .bytes = bytes, .n_bytes = sizeof bytes, .functions = fn, .n_functions = 1, .imports = import, .n_imports = 1
    };
    if (!here()) skip();
    assert_int_equal(jit_open(counted_mem(&memory), false, &j, &e), TN_OK);
    assert_int_equal(jit_load(j, &image, &c, &e), TN_OK);
    float (*cosh_fn)(float);
    void *p = jit_find(c, "tn_main");
    memcpy(&cosh_fn, &p, sizeof p);
    volatile float x = 1.25f;
    assert_true(cosh_fn(x) == coshf(x));
    jit_drop(j, c);
    import[0].name = "system";
    assert_int_equal(jit_load(j, &image, &c, &e), TN_ERR_DEVICE);
    assert_non_null(strstr(e.text, "system"));
    jit_close(j);
    assert_int_equal(memory.alive, 0);
}

static void forget_perf_map(void) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
    unlink(path);
}

static void test_no_memory(void **state) {
    (void)state;
    if (!here()) skip();
    for (int64_t i = 2; i < 60; i++) {
        int64_t fail = i / 2;
        bool named = i % 2 != 0;
        counted memory = { .fail_at = fail };
        err e = { 0 };
        jit *j;
        jit_code *c = NULL;
        tn_status st = jit_open(counted_mem(&memory), named, &j, &e);
        if (st == TN_OK) {
            st = load_value(j, 1, 64, &c, &e);
            if (st == TN_OK) {
                jit_code *second = NULL; /* in a region */
                assert_int_equal(call(c), 1);
                st = load_value(j, 2, 64, &second, &e);
                if (st == TN_OK) assert_int_equal(call(second), 2);
                jit_drop(j, second);
                jit_drop(j, c);
            }
            jit_close(j);
        }
        assert_true(st == TN_OK || st == TN_ERR_NOMEM);
        assert_int_equal(memory.alive, 0);
    }
    forget_perf_map();
}

/* The child loads code of its own; what both have goes on working in both. */
static void test_fork(void **state) {
    (void)state;
    err e = { 0 };
    jit *j;
    jit_code *before, *after;
    if (!here()) skip();
    assert_int_equal(jit_open(mem_libc(), false, &j, &e), TN_OK);
    assert_int_equal(load_value(j, 11, 64, &before, &e), TN_OK);
    pid_t child = fork();
    if (child == 0) {
        bool ok = call(before) == 11 && load_value(j, 22, 64, &after, &e) == TN_OK && call(after) == 22;
        jit_drop(j, before);
        ok = ok && load_value(j, 33, 64, &before, &e) == TN_OK && call(before) == 33 && call(after) == 22;
        _exit(ok ? 0 : 1);
    }
    int status = 1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(call(before), 11);
    assert_int_equal(load_value(j, 44, 64, &after, &e), TN_OK);
    assert_int_equal(call(before), 11);
    assert_int_equal(call(after), 44);
    jit_drop(j, before);
    jit_drop(j, after);
    jit_close(j);
}

/* A host may close files that it does not know, and open its own in their place: nothing is written there. */
static void test_file_gone(void **state) {
    (void)state;
    err e = { 0 };
    jit *j;
    jit_code *c[4];
    struct stat s;
    if (!here()) skip();
    assert_int_equal(jit_open(mem_libc(), false, &j, &e), TN_OK);
    for (int i = 0; i < 2; i++) assert_int_equal(load_value(j, i, 64, &c[i], &e), TN_OK); /* the second in a region */
    int mine[64];
    char path[] = "/tmp/tenon-jit-XXXXXX";
    int file = mkstemp(path);
    unlink(path);
    for (int fd = 3; fd < 64; fd++) {
        char link[64], name[64] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        mine[fd] = readlink(link, name, sizeof name - 1) > 0 && strstr(name, "tenon-code") && dup2(file, fd) == fd;
    }
    for (int i = 2; i < 4; i++) assert_int_equal(load_value(j, i, 64, &c[i], &e), TN_OK);
    for (int i = 0; i < 4; i++) assert_int_equal(call(c[i]), i);
    assert_int_equal(fstat(file, &s), 0);
    assert_int_equal(s.st_size, 0);
    for (int i = 0; i < 4; i++) jit_drop(j, c[i]);
    jit_close(j);
    int n = 0;
    for (int fd = 3; fd < 64; fd++)
        if (mine[fd]) assert_int_equal(fcntl(fd, F_GETFD) < 0, 0), n++, close(fd);
    assert_int_equal(n, 1);
    close(file);
}

static void *load_often(void *ud) {
    jit *j = ud;
    err e = { 0 };
    for (int i = 0; i < 2000; i++) {
        jit_code *c;
        if (load_value(j, i, 64 + (size_t)(i % 7) * 100, &c, &e) || call(c) != i) return j;
        jit_drop(j, c);
    }
    return NULL;
}
static void test_threads(void **state) {
    (void)state;
    err e = { 0 };
    jit *j;
    pthread_t t[4];
    if (!here()) skip();
    assert_int_equal(jit_open(mem_libc(), false, &j, &e), TN_OK);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, load_often, j), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(t[i], &bad);
        assert_null(bad);
    }
    jit_close(j);
}

/* The functions of loaded code stand in the file that perf reads. */
static void test_names(void **state) {
    (void)state;
    counted memory = { 0 };
    err e = { 0 };
    jit *j;
    jit_code *c;
    char path[64], line[256], want[64];
    int found = 0;
    if (!here()) skip();
    snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
    unlink(path);
    assert_int_equal(jit_open(counted_mem(&memory), true, &j, &e), TN_OK);
    assert_int_equal(load_value(j, 3, 64, &c, &e), TN_OK);
    assert_int_equal(call(c), 3);
    snprintf(want, sizeof want, "%lx 6 tenon:tn_main\n", (unsigned long)(uintptr_t)jit_find(c, "tn_main"));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) found += !strcmp(line, want);
    fclose(f);
    unlink(path);
    assert_int_equal(found, 1);
    jit_drop(j, c);
    jit_close(j);
    assert_int_equal(memory.alive, 0);
}

/* What debuggers read: the list grows and shrinks with loaded code, and holds object files. */
struct gdb_entry {
    struct gdb_entry *next, *prev;
    const char *file;
    uint64_t size;
};
extern struct {
    uint32_t version, action;
    struct gdb_entry *relevant, *first;
} __jit_debug_descriptor;

static void test_debugger_list(void **state) {
    (void)state;
    counted memory = { 0 };
    err e = { 0 };
    jit *j;
    jit_code *c[3];
    if (!here()) skip();
    assert_int_equal(jit_open(counted_mem(&memory), true, &j, &e), TN_OK);
    assert_null(__jit_debug_descriptor.first);
    for (int i = 0; i < 3; i++) assert_int_equal(load_value(j, i, 64, &c[i], &e), TN_OK);
    int n = 0;
    for (const struct gdb_entry *x = __jit_debug_descriptor.first, *before = NULL; x; before = x, x = x->next, n++) {
        assert_ptr_equal(x->prev, before);
        assert_memory_equal(x->file, "\177ELF\2\1\1", 7);
        assert_non_null(memmem(x->file, x->size, "tn_main", 8));
    }
    assert_int_equal(n, 3);
    jit_drop(j, c[1]);
    assert_ptr_equal(__jit_debug_descriptor.first->next->prev, __jit_debug_descriptor.first);
    jit_drop(j, c[2]);
    jit_drop(j, c[0]);
    assert_null(__jit_debug_descriptor.first);
    jit_close(j);
    assert_int_equal(memory.alive, 0);
    forget_perf_map();
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <unwind.h>

static void test_unwind(void **state);
static int n_frames;
static bool met_main;
static _Unwind_Reason_Code count_frame(struct _Unwind_Context *context, void *ud) {
    n_frames++;
    met_main |= _Unwind_FindEnclosingFunction((void *)_Unwind_GetIP(context)) == ud;
    return n_frames < 100 ? _URC_NO_REASON : _URC_END_OF_STACK;
}
static __attribute__((noinline)) void look_around(void) {
    n_frames = 0, met_main = false;
    void (*top)(void **) = test_unwind;
    void *at;
    memcpy(&at, &top, sizeof at);
    _Unwind_Backtrace(count_frame, at);
}

/* push rbp; mov rbp,rsp; sub rsp,64; call rdi; nops; leave; ret: the unwinder finds the way through it to this test. */
static void test_unwind(void **state) {
    (void)state;
    static const unsigned char bytes[] = { 0x55, 0x48, 0x8b, 0xec, 0x48, 0x83, 0xec, 0x40, 0xff, 0xd7, 0x66, 0x90, 0x66,
                                           0x90, 0x66, 0x90, 0x66, 0x90, 0x66, 0x90, 0x66, 0x90, 0x66, 0x90, 0xc9, 0xc3 };
    device_symbol fn[] = { { "tn_main", 0, sizeof bytes } };
    err e = { 0 };
    jit *j;
    jit_code *c;
    void (*entry)(void (*)(void));
    for (int named = 0; named < 2; named++) {
        assert_int_equal(jit_open(mem_libc(), named, &j, &e), TN_OK);
        assert_int_equal(
            jit_load(j, &(device_image){ .bytes = bytes, .n_bytes = sizeof bytes, .functions = fn, .n_functions = 1 }, &c, &e),
            TN_OK);
        void *p = jit_find(c, "tn_main");
        memcpy(&entry, &p, sizeof p);
        entry(look_around);
        assert_int_equal(met_main, named);
        jit_drop(j, c);
        jit_close(j);
    }
    forget_perf_map();
}
#else
static void test_unwind(void **state) {
    (void)state;
    skip();
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_load_and_drop), cmocka_unit_test(test_imports),
                                        cmocka_unit_test(test_no_memory),     cmocka_unit_test(test_fork),
                                        cmocka_unit_test(test_file_gone),     cmocka_unit_test(test_names),
                                        cmocka_unit_test(test_debugger_list), cmocka_unit_test(test_unwind),
                                        cmocka_unit_test(test_threads) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
