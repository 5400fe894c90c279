/* The compiler as a function: what it makes loads, and every way it can fail ends in a status with a text and a clean
 * directory. */
#include "rt_util.h"

#include "rt/cc.h"

#include <fcntl.h>
#include <signal.h>

static char dir[64];
static int setup(void **state) {
    (void)state;
    scratch_dir(dir);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    scratch_remove(dir);
    return 0;
}
static const char *script(const char *name, const char *body) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    write_script(path, body);
    return path;
}
/* A compiler that identifies itself and then does `body`. */
#define FAKE(body) "[ \"$1\" = --version ] && { echo fake 1.0; exit 0; }\n" body

static tn_status compile_with(const char *program, double timeout, const char *source, err *e, counted *memory) {
    mem m = counted_mem(memory);
    cc *c;
    char work[96];
    snprintf(work, sizeof work, "%s/work", dir);
    mkdir(work, 0700);
    tn_status st = cc_open(m, program, NULL, timeout, &c, e);
    if (st) return st;
    unsigned char *image;
    size_t size;
    st = cc_compile(c, work, source, strlen(source), &image, &size, e);
    assert_true((st == TN_OK) == (image != NULL));
    if (st == TN_OK) assert_true(size > 0);
    mem_free(m, image, size);
    cc_close(c);
    assert_int_equal(memory->alive, 0);
    assert_int_equal(count_files(work, ""), 0); /* nothing stays behind */
    return st;
}
static void expect(tn_status want, const char *text, const char *program, double timeout, const char *source) {
    counted memory = { 0 };
    err e = { 0 };
    tn_status st = compile_with(program, timeout, source, &e, &memory);
    if (st != want || (text && !strstr(e.text, text))) print_message("got %d: %s\n", (int)st, e.text);
    assert_int_equal(st, want);
    if (text) assert_non_null(strstr(e.text, text));
    assert_int_equal(memory.alive, 0);
}

static void test_compiles(void **state) {
    (void)state;
    expect(TN_OK, NULL, "cc", 0, "int f(void) { return 3; }");
    expect(TN_OK, NULL, "/usr/bin/cc", 0, "double exp(double); double f(double x) { return exp(x); }");
    expect(TN_OK, NULL, "cc", 0, "");
}
static void test_kinds(void **state) {
    (void)state;
    const char *const names[] = { "gcc", "clang" };
    for (int i = 0; i < 2; i++) {
        cc *c;
        err e = { 0 };
        if (cc_open(mem_libc(), names[i], NULL, 0, &c, &e)) {
            print_message("skipped: no %s here\n", names[i]);
            continue;
        }
        assert_int_equal(cc_is_clang(c), i);
        assert_null(strpbrk(cc_identity(c), "\n\r\t"));
        assert_non_null(strstr(cc_identity(c), i ? " -O1" : " -O2"));
        cc_close(c);
        expect(TN_OK, NULL, names[i], 0,
               "typedef float v __attribute__((vector_size(32))); v f(v a, float s) { return a * s; }");
    }
}
static void test_identity_changes_with_version(void **state) {
    (void)state;
    cc *a, *b;
    err e = { 0 };
    assert_int_equal(cc_open(mem_libc(), script("one", "echo gcc 1.0"), NULL, 0, &a, &e), TN_OK);
    assert_int_equal(cc_open(mem_libc(), script("two", "echo gcc 1.1"), NULL, 0, &b, &e), TN_OK);
    assert_string_not_equal(cc_identity(a), cc_identity(b));
    cc_close(a), cc_close(b);
}
static void test_missing(void **state) {
    (void)state;
    expect(TN_ERR_BUILD, "'no-such-compiler' (looked up in PATH): No such file", "no-such-compiler", 0, "");
    expect(TN_ERR_BUILD, "apt install gcc", "/nowhere/cc", 0, "");
    char path[128];
    snprintf(path, sizeof path, "%s/plain", dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    expect(TN_ERR_BUILD, "Permission denied", path, 0, "");
    expect(TN_ERR_BUILD, dir, dir, 0, "");
}
static void test_errors_in_source(void **state) {
    (void)state;
    expect(TN_ERR_BUILD, "surely_missing_type", "cc", 0, "surely_missing_type f(void);");
    expect(TN_ERR_BUILD, "k.c:2:", "cc", 0, "int a;\nint f( {\n");
}
static void test_failing_compilers(void **state) {
    (void)state;
    expect(TN_ERR_BUILD, "exit status 3", script("v", "exit 3"), 0, "");
    expect(TN_ERR_BUILD, "exit status 1\nsad news", script("one", FAKE("echo sad news >&2; exit 1")), 0, "");
    expect(TN_ERR_BUILD, "killed by signal 9", script("killed", FAKE("echo half > $TMPDIR/k.so; kill -9 $$")), 0, "");
    expect(TN_ERR_BUILD, "left no output", script("lazy", FAKE("exit 0")), 0, "");
    expect(TN_ERR_BUILD, "empty output", script("empty", FAKE(": > $TMPDIR/k.so")), 0, "");
    expect(TN_ERR_BUILD, "exit status 1", script("loud", FAKE("yes noise | head -c 3000000; exit 1")), 0, "");
    expect(TN_ERR_BUILD, "exit status 5", script("closed", FAKE("exec >&- 2>&-; sleep 0.1; exit 5")), 0, "");
}
static void test_time_out(void **state) {
    (void)state;
    double start = now_seconds();
    /* the compiler's own children hold its output open: the whole group must go */
    expect(TN_ERR_BUILD, "longer than 0.3 seconds", script("slow", FAKE("sleep 60 & echo began; sleep 60")), 0.3, "");
    expect(TN_ERR_BUILD, "longer than 0.3 seconds", script("mute", FAKE("exec >&- 2>&-; sleep 60")), 0.3, "");
    char path[160], line[64] = "";
    snprintf(path, sizeof path, "%s/child", dir);
    char *text = NULL; /* the compiler's child is gone with it: no process, or a dead one that nobody waited for */
    assert_true(asprintf(&text, FAKE("sleep 60 & echo $! > %s; sleep 60"), path) > 0);
    expect(TN_ERR_BUILD, "longer than 0.3 seconds", script("parent", text), 0.3, "");
    free(text);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    snprintf(path, sizeof path, "/proc/%d/stat", atoi(line));
    for (int tries = 0; tries < 100; tries++, usleep(10000)) {
        char stat[256] = "";
        if (!(f = fopen(path, "r"))) break;
        bool dead = !fgets(stat, sizeof stat, f) || strstr(stat, ") Z");
        fclose(f);
        if (dead) break;
        if (tries == 99) fail_msg("a child of the compiler lives: %s", stat);
    }
    assert_true(now_seconds() - start < 20);
}
/* The source is data: nothing in it, in the environment or in a name reaches a shell. */
static void test_no_environment(void **state) {
    (void)state;
    setenv("RT_TEST_SECRET", "leaked", 1);
    expect(TN_ERR_BUILD, "secret:,", script("env", FAKE("echo secret:$RT_TEST_SECRET,; exit 1")), 0, "");
    unsetenv("RT_TEST_SECRET");
    char odd[160];
    snprintf(odd, sizeof odd, "%s/$(touch x); cc", dir);
    write_script(odd, FAKE("echo odd; exit 1"));
    expect(TN_ERR_BUILD, "\nodd", odd, 0, "");
}
/* A host may take the exit status away; the output still tells. */
static void test_ignored_children(void **state) {
    (void)state;
    void (*old)(int) = signal(SIGCHLD, SIG_IGN);
    expect(TN_OK, NULL, "cc", 0, "int f(void) { return 3; }");
    expect(TN_ERR_BUILD, "left no output", "cc", 0, "int f( {");
    signal(SIGCHLD, old);
}
static void test_out_of_memory(void **state) {
    (void)state;
    for (int64_t k = 1;; k++) {
        counted memory = { .fail_at = k };
        err e = { 0 };
        tn_status st = compile_with("cc", 0, "int x;", &e, &memory);
        assert_int_equal(memory.alive, 0);
        if (st == TN_OK) break;
        assert_int_equal(st, TN_ERR_NOMEM);
        assert_true(k < 20);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_compiles, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kinds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_identity_changes_with_version, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_errors_in_source, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failing_compilers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_time_out, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_environment, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ignored_children, setup, teardown),
        cmocka_unit_test_setup_teardown(test_out_of_memory, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
