/* test_bad.c - what goes wrong between a right graph and its results: compilers, cache directories, disks, parameter files,
 * names, slots, options, sizes. Each has its exact status and a text that says where and what; afterwards the same context
 * compiles and runs. */
#include "tenon/tenon.h"
#include "tenon/tenon_io.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- a disk that is full at will: this program's write() comes before libc's ---- */

static const char *full_for; /* files whose path has this in it cannot grow; NULL = room for everything */
ssize_t write(int fd, const void *data, size_t n) {
    char link[64], path[512] = "";
    if (full_for) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, full_for)) {
            errno = ENOSPC;
            return -1;
        }
    }
    return syscall(SYS_write, fd, data, n);
}

static const char *little_for; /* file systems at paths with this in them have next to no room */
int statvfs(const char *path, struct statvfs *out) {
    *out = (struct statvfs){ .f_frsize = 4096, .f_blocks = 1 << 20, .f_bavail = 1 << 19 };
    if (little_for && strstr(path, little_for)) out->f_bavail = 1;
    return 0;
}

/* ---- fixture ---- */

typedef struct fixture {
    tn_ctx *ctx;
    char dir[64], cache[96], cc[96], flag[96]; /* while the file `flag` exists, the compiler misbehaves */
    char log[1024];                            /* the last line that is no debugging */
} fixture;

static void keep_line(void *ud, tn_log_level level, const char *text) {
    fixture *f = ud;
    if (level < TN_LOG_DEBUG) snprintf(f->log, sizeof f->log, "%s", text);
}
/* Memory that has an end on every machine and under every sanitizer. */
static void *bounded_realloc(void *ud, void *ptr, size_t old_size, size_t new_size) {
    (void)ud, (void)old_size;
    if (new_size) return new_size >> 32 ? NULL : realloc(ptr, new_size);
    free(ptr);
    return NULL;
}
static void write_text(const char *path, const char *text, mode_t mode) {
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(chmod(path, mode), 0);
}
static void remove_tree(const char *path) {
    DIR *d = opendir(path);
    chmod(path, 0700);
    for (struct dirent *e; d && (e = readdir(d));) {
        char inside[512];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(inside, sizeof inside, "%s/%s", path, e->d_name);
        if (unlink(inside)) remove_tree(inside);
    }
    if (d) closedir(d);
    rmdir(path);
}
static void start_in(fixture *f, const char *cache_dir, const char *compiler) {
    tn_config cfg = { .struct_size = sizeof cfg,
                      .cpu = "c", /* what follows is about compiler and disk cache */
                      .realloc = bounded_realloc,
                      .cache_dir = cache_dir,
                      .compiler = compiler,
                      .log = keep_line,
                      .log_ud = f };
    f->ctx = tn_ctx_new(&cfg);
    assert_non_null(f->ctx);
}
static void names(fixture *f) {
    memset(f, 0, sizeof *f);
    snprintf(f->dir, sizeof f->dir, "/tmp/tenon-bad-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->cache, sizeof f->cache, "%s/cache", f->dir);
    snprintf(f->cc, sizeof f->cc, "%s/mycc", f->dir);
    snprintf(f->flag, sizeof f->flag, "%s/flag", f->dir);
}
static void stop(fixture *f) {
    tn_ctx_free(f->ctx);
    remove_tree(f->dir);
}

/* The call's status is exactly `code`, and the context's text has all the words (a list that ends with NULL). */
static void expect_at(int line, tn_ctx *ctx, tn_status got, tn_status code, const char *const *words) {
    const char *text = tn_ctx_error(ctx);
    if (got != code) fail_msg("line %d: %s instead of %s: %s", line, tn_status_name(got), tn_status_name(code), text);
    if (tn_ctx_status(ctx) != code)
        fail_msg("line %d: the context says %s: %s", line, tn_status_name(tn_ctx_status(ctx)), text);
    for (; *words; words++)
        if (!strstr(text, *words)) fail_msg("line %d: \"%s\" is not in: %s", line, *words, text);
}
#define EXPECT(ctx, code, call, ...) expect_at(__LINE__, (ctx), (call), (code), (const char *const[]){ __VA_ARGS__, NULL })

/* ---- a graph that is right ---- */

static tn_graph *good_graph(tn_ctx *ctx, double factor) {
    tn_graph *g = tn_graph_new(ctx, "good");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(3)), w = tn_state(g, "w", TN_F32, TN_DIMS(3), (const float[]){ 1, 2, 3 });
    tn_output(tn_add(tn_mul_scalar(x, factor), w), "y");
    tn_assign(w, tn_add_scalar(w, 1));
    assert_int_equal(tn_graph_status(g), TN_OK);
    return g;
}
static tn_compile_opts opts_of(tn_mode mode) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = mode, o.threads = 1;
    return o;
}
static tn_status try_compile(tn_ctx *ctx, double factor) {
    tn_graph *g = good_graph(ctx, factor);
    tn_compile_opts o = opts_of(TN_MODE_COMPILED);
    tn_program *p = (tn_program *)(uintptr_t)&o;
    tn_status code = tn_compile(g, &o, &p);
    if (code) assert_null(p);
    tn_program_free(p);
    tn_graph_free(g);
    return code;
}
/* A context that met an error is as good as new. A factor of its own makes a kernel that no cache has. */
static void works(tn_ctx *ctx, double factor) {
    tn_graph *g = good_graph(ctx, factor);
    tn_program *p;
    tn_session *s = NULL;
    float y[3];
    tn_compile_opts o = opts_of(TN_MODE_COMPILED);
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    for (int run = 0; run < 2; run++) {
        assert_int_equal(tn_run(s, TN_BIND({ "x", ((float[]){ 4, 5, -6 }) }, { "y", y })), TN_OK);
        assert_true(y[0] == 4 * (float)factor + 1 + (float)run && y[2] == -6 * (float)factor + 3 + (float)run);
    }
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
}

/* ---- compilers ---- */

static void test_compiler_missing(void **state) {
    (void)state;
    fixture f;
    names(&f);
    start_in(&f, f.cache, f.cc);
    EXPECT(f.ctx, TN_ERR_BUILD, try_compile(f.ctx, 2), f.cc, "cannot start the C compiler", "No such file",
           "tn_config.compiler");
    write_text(f.cc, "not a program", 0600);
    EXPECT(f.ctx, TN_ERR_BUILD, try_compile(f.ctx, 2), f.cc, "Permission denied");
    write_text(f.cc, "#!/bin/sh\nexec cc \"$@\"\n", 0700); /* now it is there */
    works(f.ctx, 2);
    stop(&f);
}

/* A compiler that answers to --version, and does `deed` instead of compiling while the flag is there. $out is its -o. */
static void misbehaving(fixture *f, const char *deed) {
    char script[1024];
    names(f);
    snprintf(script, sizeof script,
             "#!/bin/sh\n[ \"$1\" = --version ] && exec cc --version\n[ -e %s ] || exec cc \"$@\"\n"
             "for a; do [ \"$last\" = -o ] && out=$a; last=$a; done\n%s\n",
             f->flag, deed);
    write_text(f->cc, script, 0700);
    write_text(f->flag, "", 0600);
    start_in(f, f->cache, f->cc);
}
static void recovers(fixture *f) {
    tn_cache_stats st;
    assert_int_equal(tn_cache_get_stats(f->ctx, &st), TN_OK);
    assert_int_equal(st.files + st.unfinished, 0); /* nothing of the failure is kept */
    assert_int_equal(unlink(f->flag), 0);
    works(f->ctx, 2);
    stop(f);
}
static void test_compiler_fails(void **state) {
    (void)state;
    fixture f;
    misbehaving(&f, "echo 'k.c:7: strange weather' >&2; exit 3");
    EXPECT(f.ctx, TN_ERR_BUILD, try_compile(f.ctx, 2), f.cc, "exit status 3", "k.c:7: strange weather");
    recovers(&f);
    misbehaving(&f, "kill -9 $$");
    EXPECT(f.ctx, TN_ERR_BUILD, try_compile(f.ctx, 2), f.cc, "killed by signal 9");
    recovers(&f);
}
static void test_compiler_output(void **state) {
    (void)state;
    fixture f;
    misbehaving(&f, "echo well done");
    EXPECT(f.ctx, TN_ERR_BUILD, try_compile(f.ctx, 2), f.cc, "left no output", "well done");
    recovers(&f);
    misbehaving(&f, ": > $out");
    EXPECT(f.ctx, TN_ERR_BUILD, try_compile(f.ctx, 2), f.cc, "left an empty output");
    recovers(&f);
    misbehaving(&f, "echo garbage > $out");
    EXPECT(f.ctx, TN_ERR_BUILD, try_compile(f.ctx, 2), f.cc, "8 bytes", "no shared object");
    recovers(&f);
    misbehaving(&f, "head -c 200 /bin/sh > $out"); /* the beginning of a right file: the loader notices */
    EXPECT(f.ctx, TN_ERR_DEVICE, try_compile(f.ctx, 2), "cannot load a kernel");
    recovers(&f);
    misbehaving(&f, "echo 'int other;' > $out.c; exec cc -shared -fPIC -o $out $out.c"); /* loads, but has no kernels */
    EXPECT(f.ctx, TN_ERR_INVAL, try_compile(f.ctx, 2), "no entry 'tn_main'");
    tn_ctx_free(f.ctx);
    remove_tree(f.dir);
}

/* ---- the cache's directory and its disk: compiling goes on without them ---- */

static void test_cache_unusable(void **state) {
    (void)state;
    fixture f;
    names(&f);
    tn_cache_stats st;
    assert_int_equal(mkdir(f.cache, 0700), 0);
    assert_int_equal(chmod(f.cache, 0500), 0);
    const char *const places[] = { f.cache, "/proc/self", "/dev/null/x", "/dev/null" };
    for (int i = geteuid() == 0; i < 4; i++) { /* root writes everywhere but in /proc */
        start_in(&f, places[i], NULL);
        *f.log = 0;
        works(f.ctx, 3);
        if (!strstr(f.log, places[i])) fail_msg("%s: the log says \"%s\"", places[i], f.log);
        works(f.ctx, 3);
        if (i == 0) {
            assert_int_equal(tn_cache_get_stats(f.ctx, &st), TN_OK);
            assert_int_equal(st.files + st.unfinished, 0);
        }
        tn_ctx_free(f.ctx);
    }
    remove_tree(f.dir);
}

static void test_disk_full(void **state) {
    (void)state;
    fixture f;
    names(&f);
    start_in(&f, f.cache, NULL);
    char path[128];
    tn_cache_stats st;
    snprintf(path, sizeof path, "%s/tenon-%ld-", f.cache, (long)getpid());
    full_for = path; /* kernels of this process on their way into the cache */
    works(f.ctx, 5);
    full_for = NULL;
    assert_non_null(strstr(f.log, "No space left"));
    assert_non_null(strstr(f.log, f.cache));
    assert_int_equal(tn_cache_get_stats(f.ctx, &st), TN_OK);
    assert_int_equal(st.files + st.unfinished, 0);
    full_for = "/k.c"; /* no room for the compiler's input either */
    tn_status code = try_compile(f.ctx, 6);
    full_for = NULL;
    EXPECT(f.ctx, TN_ERR_IO, code, "/k.c", "No space left");
    works(f.ctx, 6);
    stop(&f);
}

/* No room for the compiler's input in the cache's directory, or for what it makes of it: it gets another. */
static void test_compiler_without_room(void **state) {
    (void)state;
    fixture f;
    names(&f);
    start_in(&f, f.cache, NULL);
    full_for = f.cache;
    works(f.ctx, 4);
    full_for = NULL;
    assert_non_null(strstr(f.log, "No space left"));
    tn_ctx_free(f.ctx);
    write_text(f.cc, "#!/bin/sh\ncase $TMPDIR in */cache/*) echo No space left >&2; exit 1;; esac\nexec cc \"$@\"\n", 0700);
    start_in(&f, f.cache, f.cc);
    EXPECT(f.ctx, TN_ERR_BUILD, try_compile(f.ctx, 3), "No space left"); /* there is room: it failed for another reason */
    little_for = f.cache;
    works(f.ctx, 3);
    little_for = NULL;
    stop(&f);
}

/* ---- sessions ---- */

typedef struct running {
    fixture f;
    tn_program *p;
    tn_session *s;
} running;
static void run_start(running *r, tn_mode mode) {
    names(&r->f);
    start_in(&r->f, NULL, NULL);
    tn_graph *g = good_graph(r->f.ctx, 2);
    tn_compile_opts o = opts_of(mode);
    if (tn_compile(g, &o, &r->p) || tn_session_new(r->p, &r->s)) fail_msg("%s", tn_ctx_error(r->f.ctx));
    tn_graph_free(g);
}
static void run_stop(running *r) {
    works(r->f.ctx, 2);
    tn_session_free(r->s);
    tn_program_free(r->p);
    stop(&r->f);
}

static void check_bindings(tn_mode mode) {
    running r;
    run_start(&r, mode);
    tn_ctx *ctx = r.f.ctx;
    tn_session *s = r.s;
    float x[3] = { 1, 2, 3 }, y[3 * 4];
    const tn_binding *no_list = NULL;
    EXPECT(ctx, TN_ERR_INVAL, tn_session_run(s), "input \"x\"", "12 bytes", "not bound");
    EXPECT(ctx, TN_ERR_INVAL, tn_run(s, TN_BIND({ "y", y })), "input \"x\"", "not bound");
    EXPECT(ctx, TN_ERR_INVAL, tn_run_n(s, 2, NULL, 0, 0), "input \"x\"", "not bound");
    EXPECT(ctx, TN_ERR_INVAL, tn_run(s, TN_BIND({ "xx", x })), "tn_run: ", "named \"xx\"");
    EXPECT(ctx, TN_ERR_INVAL, tn_run(s, TN_BIND({ "w", x })), "tn_run: ", "named \"w\"");
    EXPECT(ctx, TN_ERR_INVAL, tn_run(s, TN_BIND({ NULL, x })), "tn_run: ", "(null)");
    EXPECT(ctx, TN_ERR_INVAL, tn_run(s, TN_BIND({ "x", NULL })), "tn_run: ", "data of \"x\" is NULL");
    EXPECT(ctx, TN_ERR_INVAL, tn_run(s, no_list, 2), "tn_run: ", "2 bindings");
    EXPECT(ctx, TN_ERR_INVAL, tn_run(s, no_list, -1), "tn_run: ", "-1 bindings");
    int n = tn_program_n_slots(r.p), slot_x = tn_session_slot(s, "x"), slot_y = tn_session_slot(s, "y");
    assert_int_equal(n, 2);
    assert_int_equal(tn_session_slot(s, "w"), -1);
    assert_int_equal(tn_session_slot(s, NULL), -1);
    EXPECT(ctx, TN_ERR_INVAL, tn_session_bind(s, -1, x), "tn_session_bind", "slot -1 of 2");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_bind(s, n, x), "tn_session_bind", "slot 2 of 2");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_bind_trace(s, n, x, 4), "tn_session_bind_trace", "slot 2 of 2");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_bind_trace(s, slot_x, x, 4), "tn_session_bind_trace", "input \"x\"");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_bind_trace(s, slot_y, y, 0), "tn_session_bind_trace", "0 steps");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_bind_trace(s, slot_y, NULL, 4), "tn_session_bind_trace", "4 steps");
    EXPECT(ctx, TN_ERR_INVAL, tn_program_slot(r.p, 2, NULL, NULL, NULL, NULL), "tn_program_slot", "slot 2 of 2");
    EXPECT(ctx, TN_ERR_INVAL, tn_run_n(s, -3, TN_BIND({ "x", x }), 1), "tn_run_n", "-3 steps");
    EXPECT(ctx, TN_ERR_INVAL, tn_run_n(s, 3, TN_BIND({ "x", x }), 0), "tn_run_n", "ring of 0");
    EXPECT(ctx, TN_ERR_INVAL, tn_run_n(s, 3, TN_BIND({ "q", x }), 1), "tn_run_n", "named \"q\"");
    EXPECT(ctx, TN_ERR_INVAL, tn_run_n(s, 3, TN_BIND({ "x", NULL }), 1), "tn_run_n", "data of \"x\" is NULL");
    EXPECT(ctx, TN_ERR_INVAL, tn_run_n(s, 3, no_list, 1, 1), "tn_run_n", "1 bindings");
    assert_int_equal(tn_session_bind_trace(s, slot_y, y, 4), TN_OK);
    EXPECT(ctx, TN_ERR_INVAL, tn_run_n(s, 5, TN_BIND({ "x", x }), 1), "tn_run_n", "5 steps", "\"y\" has room for 4");
    /* nothing has run so far: the state is as it began. Then four steps, traced; then one, whose output is bound plainly. */
    assert_int_equal(tn_run_n(s, 4, TN_BIND({ "x", x }), 1), TN_OK);
    assert_true(y[0] == 3 && y[3] == 4 && y[11] == 6 + 3 + 3);
    float last[4] = { 0, 0, 0, 77 };
    assert_int_equal(tn_run_n(s, 3, TN_BIND({ "x", x }, { "y", last }), 1), TN_OK);
    assert_true(last[0] == 2 + 1 + 6 && last[3] == 77);
    assert_int_equal(tn_run_n(s, 0, TN_BIND({ "x", x }), 1), TN_OK);
    run_stop(&r);
}
static void test_bindings(void **state) {
    (void)state;
    for (tn_mode mode = TN_MODE_IMMEDIATE; mode <= TN_MODE_LOOP; mode++) check_bindings(mode);
}

/* What a call binds is for that call; what tn_session_bind binds stays until it is unbound. */
static void check_layers(tn_mode mode) {
    running r;
    run_start(&r, mode);
    tn_ctx *ctx = r.f.ctx;
    tn_session *s = r.s;
    float *x = malloc(12), *y = malloc(12), kept_x[3] = { 10, 20, 30 }, kept_y[6] = { 0 }, trace[12] = { 0 };
    memcpy(x, (float[]){ 1, 2, 3 }, 12);
    int slot_x = tn_session_slot(s, "x"), slot_y = tn_session_slot(s, "y");
    assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "y", y })), TN_OK);
    assert_true(y[0] == 3 && y[2] == 9);
    assert_int_equal(tn_run(s, TN_BIND({ "x", x })), TN_OK); /* without y: it is dropped */
    assert_true(y[0] == 3 && y[2] == 9);
    EXPECT(ctx, TN_ERR_INVAL, tn_run(s, NULL, 0), "tn_run: input \"x\"", "not bound");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_run(s), "tn_session_run: input \"x\"", "not bound");
    assert_int_equal(tn_run_n(s, 2, TN_BIND({ "x", x }, { "y", y }), 1), TN_OK);
    assert_true(y[0] == 2 + 1 + 3 && y[2] == 6 + 3 + 3);
    EXPECT(ctx, TN_ERR_INVAL, tn_run_n(s, 2, NULL, 0, 0), "tn_run_n: input \"x\"", "not bound");
    free(y);
    assert_int_equal(tn_run(s, TN_BIND({ "x", x })), TN_OK);
    assert_int_equal(tn_run_n(s, 2, TN_BIND({ "x", x }), 1), TN_OK);
    /* seven runs so far: w is 8, 9, 10 */
    assert_int_equal(tn_session_bind(s, slot_x, kept_x), TN_OK);
    assert_int_equal(tn_session_bind(s, slot_y, kept_y), TN_OK);
    assert_int_equal(tn_session_run(s), TN_OK);
    assert_true(kept_y[0] == 20 + 8 && kept_y[2] == 60 + 10);
    assert_int_equal(tn_run(s, TN_BIND({ "x", x })), TN_OK); /* y where it stays, x of this call */
    assert_true(kept_y[0] == 2 + 9 && kept_y[2] == 6 + 11);
    free(x);
    assert_int_equal(tn_session_run(s), TN_OK);
    assert_true(kept_y[0] == 20 + 10 && kept_y[2] == 60 + 12);
    assert_int_equal(tn_session_bind_trace(s, slot_y, trace, 4), TN_OK);
    assert_int_equal(tn_run_n(s, 2, TN_BIND({ "y", kept_y }), 1), TN_OK); /* this call's y is no trace, the next one's is */
    assert_true(kept_y[0] == 20 + 12 && trace[0] == 0);
    assert_int_equal(tn_run_n(s, 2, NULL, 0, 0), TN_OK);
    assert_true(trace[0] == 20 + 13 && trace[3] == 20 + 14 && trace[6] == 0);
    assert_int_equal(tn_session_bind(s, slot_y, NULL), TN_OK);
    assert_int_equal(tn_session_run(s), TN_OK);
    assert_true(trace[0] == 20 + 13 && kept_y[0] == 20 + 12);
    assert_int_equal(tn_session_bind(s, slot_x, NULL), TN_OK);
    EXPECT(ctx, TN_ERR_INVAL, tn_session_run(s), "input \"x\"", "not bound");
    run_stop(&r);
}
static void test_layers(void **state) {
    (void)state;
    for (tn_mode mode = TN_MODE_IMMEDIATE; mode <= TN_MODE_LOOP; mode++) check_layers(mode);
}

/* A name twice, and outputs over inputs or each other. */
static void test_overlaps(void **state) {
    (void)state;
    running r;
    run_start(&r, TN_MODE_COMPILED);
    tn_ctx *ctx = r.f.ctx;
    tn_session *s = r.s;
    float m[16] = { 1, 2, 3 };
    int slot_x = tn_session_slot(s, "x"), slot_y = tn_session_slot(s, "y");
    EXPECT(ctx, TN_ERR_INVAL, tn_run(s, TN_BIND({ "x", m }, { "y", m + 3 }, { "x", m })), "tn_run: \"x\" is bound twice");
    EXPECT(ctx, TN_ERR_INVAL, tn_run(s, TN_BIND({ "x", m }, { "y", m })), "input \"x\" and output \"y\" overlap");
    EXPECT(ctx, TN_ERR_INVAL, tn_run(s, TN_BIND({ "x", m }, { "y", m })), "input \"x\" and output \"y\" overlap");
    EXPECT(ctx, TN_ERR_INVAL, tn_run(s, TN_BIND({ "x", m + 2 }, { "y", m })), "overlap");
    EXPECT(ctx, TN_ERR_INVAL, tn_run(s, TN_BIND({ "x", m }, { "y", m + 2 })), "overlap");
    assert_int_equal(tn_run(s, TN_BIND({ "x", m }, { "y", m + 3 })), TN_OK);
    assert_true(m[3] == 3 && m[5] == 9);
    EXPECT(ctx, TN_ERR_INVAL, tn_run_n(s, 2, TN_BIND({ "x", m }, { "y", m + 3 }), 2), "tn_run_n: ", "overlap");
    assert_int_equal(tn_run_n(s, 2, TN_BIND({ "x", m }, { "y", m + 3 }), 1), TN_OK);
    assert_int_equal(tn_run_n(s, 1, TN_BIND({ "x", m }, { "y", m + 3 }), 2), TN_OK); /* the second batch is not read */
    assert_int_equal(tn_session_bind(s, slot_x, m + 8), TN_OK);
    assert_int_equal(tn_session_bind_trace(s, slot_y, m, 3), TN_OK);
    assert_int_equal(tn_run_n(s, 2, NULL, 0, 0), TN_OK);
    EXPECT(ctx, TN_ERR_INVAL, tn_run_n(s, 3, NULL, 0, 0), "overlap");
    assert_int_equal(tn_session_bind(s, slot_y, m + 9), TN_OK);
    EXPECT(ctx, TN_ERR_INVAL, tn_session_run(s), "tn_session_run: ", "input \"x\" and output \"y\" overlap");
    assert_int_equal(tn_session_bind(s, slot_x, m + 5), TN_OK); /* where both are is looked at when they are used */
    assert_int_equal(tn_session_run(s), TN_OK);
    run_stop(&r);
}

static void test_states(void **state) {
    (void)state;
    running r;
    run_start(&r, TN_MODE_COMPILED);
    tn_ctx *ctx = r.f.ctx;
    float w[3] = { 0 };
    EXPECT(ctx, TN_ERR_INVAL, tn_session_get(r.s, "v", w, sizeof w), "tn_session_get", "\"v\"");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_get(r.s, NULL, w, sizeof w), "tn_session_get", "(null)");
    EXPECT(ctx, TN_ERR_SHAPE, tn_session_get(r.s, "w", w, 8), "tn_session_get", "8 bytes given", "\"w\" has 12");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_get(r.s, "w", NULL, 12), "tn_session_get", "NULL");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_set(r.s, "x", w, sizeof w), "tn_session_set", "\"x\"");
    EXPECT(ctx, TN_ERR_SHAPE, tn_session_set(r.s, "w", w, 16), "tn_session_set", "16 bytes given");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_set(r.s, "w", NULL, 12), "tn_session_set", "NULL");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_set_states(r.s, NULL), "tn_session_set_states", "values is NULL");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_set_states(r.s, (const void *[]){ NULL }), "tn_session_set_states", "\"w\" is NULL");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_state(r.s, 1, NULL, NULL, NULL), "tn_session_state", "1 of 1");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_state(r.s, -1, NULL, NULL, NULL), "tn_session_state", "-1 of 1");
    run_stop(&r);
}

static void test_null(void **state) {
    (void)state;
    running r;
    run_start(&r, TN_MODE_COMPILED);
    tn_ctx *ctx = r.f.ctx;
    tn_program *p;
    tn_session *s = NULL;
    tn_program_stats st = { .kernels = 9 };
    char *text;
    tn_graph *g = good_graph(ctx, 2);
    assert_int_equal(tn_compile(NULL, NULL, &p), TN_ERR_INVAL);
    EXPECT(ctx, TN_ERR_INVAL, tn_compile(g, NULL, NULL), "tn_compile", "NULL");
    assert_int_equal(tn_session_new(NULL, &s), TN_ERR_INVAL);
    EXPECT(ctx, TN_ERR_INVAL, tn_session_new(r.p, NULL), "tn_session_new", "NULL");
    EXPECT(ctx, TN_ERR_INVAL, tn_program_text(r.p, NULL, &text), "tn_program_text", "NULL");
    EXPECT(ctx, TN_ERR_INVAL, tn_program_text(r.p, "c", NULL), "tn_program_text", "NULL");
    text = (char *)(uintptr_t)&r;
    EXPECT(ctx, TN_ERR_INVAL, tn_program_text(r.p, "poem", &text), "tn_program_text", "\"poem\"", "stages are graph");
    assert_null(text);
    assert_int_equal(tn_program_text(NULL, "c", &text), TN_ERR_INVAL);
    assert_int_equal(tn_program_slot(NULL, 0, NULL, NULL, NULL, NULL), TN_ERR_INVAL);
    assert_int_equal(tn_program_n_slots(NULL) + tn_session_n_states(NULL), 0);
    assert_int_equal(tn_session_slot(NULL, "x"), -1);
    assert_int_equal(tn_run(NULL, NULL, 0), TN_ERR_INVAL);
    assert_int_equal(tn_run_n(NULL, 1, NULL, 0, 0), TN_ERR_INVAL);
    assert_int_equal(tn_session_run(NULL), TN_ERR_INVAL);
    assert_int_equal(tn_session_bind(NULL, 0, NULL), TN_ERR_INVAL);
    assert_int_equal(tn_session_bind_trace(NULL, 0, NULL, 1), TN_ERR_INVAL);
    assert_int_equal(tn_session_state(NULL, 0, NULL, NULL, NULL), TN_ERR_INVAL);
    assert_int_equal(tn_session_get(NULL, "w", NULL, 0), TN_ERR_INVAL);
    assert_int_equal(tn_session_set(NULL, "w", NULL, 0), TN_ERR_INVAL);
    assert_int_equal(tn_session_set_states(NULL, NULL), TN_ERR_INVAL);
    assert_int_equal(tn_session_copy_state(NULL, r.s, NULL), TN_ERR_INVAL);
    tn_session *none = r.s;
    EXPECT(ctx, TN_ERR_INVAL, tn_session_new_sharing(r.p, NULL, &none), "tn_session_new_sharing", "from is NULL");
    EXPECT(ctx, TN_ERR_INVAL, tn_session_new_sharing(r.p, r.s, NULL), "tn_session_new_sharing", "out_session is NULL");
    assert_int_equal(tn_session_new_sharing(NULL, r.s, &none), TN_ERR_INVAL);
    assert_null(none);
    assert_int_equal(tn_session_copy_state(r.s, NULL, NULL), TN_ERR_INVAL);
    tn_program_get_stats(NULL, &st);
    assert_int_equal(st.kernels, 0);
    tn_program_get_stats(r.p, NULL);
    tn_session_get_stats(NULL, &st);
    tn_session_get_stats(r.s, NULL);
    tn_program_free(NULL);
    tn_session_free(NULL);
    tn_graph_free(g);
    run_stop(&r);
}

static void test_parameter_files(void **state) {
    (void)state;
    running r;
    run_start(&r, TN_MODE_COMPILED);
    tn_ctx *ctx = r.f.ctx;
    char path[128];
    struct stat st;
    float w[3] = { 7, 8, 9 }, now[3];
    snprintf(path, sizeof path, "%s/parameters", r.f.dir);
    EXPECT(ctx, TN_ERR_IO, tn_io_load_state(ctx, r.s, path), path, "No such file");
    assert_int_equal(tn_io_save_state(ctx, r.s, path), TN_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(tn_session_set(r.s, "w", w, sizeof w), TN_OK);
    for (off_t n = st.st_size - 1; n >= 0; n -= n > 20 ? 7 : 1) {
        assert_int_equal(truncate(path, n), 0);
        EXPECT(ctx, TN_ERR_PARSE, tn_io_load_state(ctx, r.s, path), path);
    }
    assert_int_equal(tn_session_get(r.s, "w", now, sizeof now), TN_OK);
    assert_memory_equal(now, w, sizeof w);
    full_for = r.f.dir;
    tn_status code = tn_io_save_state(ctx, r.s, path);
    full_for = NULL;
    EXPECT(ctx, TN_ERR_IO, code, path, "No space left");
    assert_int_equal(tn_io_save_state(ctx, r.s, path), TN_OK);
    assert_int_equal(tn_io_load_state(ctx, r.s, path), TN_OK);
    run_stop(&r);
}

/* ---- options and graphs ---- */

static void test_options(void **state) {
    (void)state;
    fixture f;
    names(&f);
    start_in(&f, NULL, NULL);
    tn_graph *g = good_graph(f.ctx, 2);
    tn_program *p;
    tn_compile_opts o;
#define WITH(field, value) (o = opts_of(TN_MODE_COMPILED), o.field = (value), &o)
    EXPECT(f.ctx, TN_ERR_INVAL, tn_compile(g, WITH(mode, (tn_mode)9), &p), "unknown mode 9");
    EXPECT(f.ctx, TN_ERR_INVAL, tn_compile(g, WITH(fusion, 4), &p), "fusion level 4", "0 to 3");
    EXPECT(f.ctx, TN_ERR_INVAL, tn_compile(g, WITH(fusion, -2), &p), "fusion level -2", "0 to 3");
    EXPECT(f.ctx, TN_ERR_INVAL, tn_compile(g, WITH(threads, -1), &p), "-1 threads");
    EXPECT(f.ctx, TN_ERR_INVAL, tn_compile(g, WITH(threads, 1025), &p), "1025 threads", "1024");
    EXPECT(f.ctx, TN_ERR_INVAL, tn_compile(g, WITH(struct_size, 0), &p), "struct_size is 0", "TN_COMPILE_DEFAULTS");
    EXPECT(f.ctx, TN_ERR_INVAL, tn_compile(g, WITH(struct_size, 4096), &p), "struct_size is 4096");
    EXPECT(f.ctx, TN_ERR_INVAL, tn_compile(g, WITH(device, "abacus"), &p), "no device \"abacus\"", "cpu");
    assert_null(p);
    tn_graph_free(g);
    works(f.ctx, 2);
    stop(&f);
}

static void test_graphs(void **state) {
    (void)state;
    fixture f;
    names(&f);
    start_in(&f, NULL, NULL);
    tn_program *p;
    tn_graph *g = tn_graph_new(f.ctx, "hollow");
    tn_exp(tn_input(g, "x", TN_F32, TN_DIMS(3)));
    EXPECT(f.ctx, TN_ERR_INVAL, tn_compile(g, NULL, &p), "@hollow", "no outputs", "tn_output");
    tn_graph_free(g);
    g = tn_graph_new(f.ctx, "wrong");
    tn_output(tn_add(tn_input(g, "x", TN_F32, TN_DIMS(3)), tn_input(g, "y", TN_F32, TN_DIMS(4))), "z");
    EXPECT(f.ctx, TN_ERR_SHAPE, tn_compile(g, NULL, &p), "test_bad.c:", "tn_add(x f32[3], y f32[4])");
    tn_graph_free(g);
    works(f.ctx, 2);
    stop(&f);
}

static void test_huge(void **state) {
    (void)state;
    fixture f;
    names(&f);
    start_in(&f, NULL, NULL);
    tn_program *p;
    const int64_t big = (int64_t)1 << 40;
    tn_graph *g = tn_graph_new(f.ctx, "overflow");
    tn_output(tn_input(g, "x", TN_F32, TN_DIMS(big, big)), "y");
    EXPECT(f.ctx, TN_ERR_SHAPE, tn_compile(g, NULL, &p), "test_bad.c:", "1099511627776");
    tn_graph_free(g);
    g = tn_graph_new(f.ctx, "product"); /* 2^64 elements would be 0 */
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(big, 1)), y = tn_input(g, "y", TN_F32, TN_DIMS(1, (int64_t)1 << 24));
    tn_output(tn_add(x, y), "z");
    EXPECT(f.ctx, TN_ERR_SHAPE, tn_compile(g, NULL, &p), "test_bad.c:", "tn_add");
    tn_graph_free(g);
    for (tn_mode mode = TN_MODE_IMMEDIATE; mode <= TN_MODE_LOOP; mode++) { /* a size that is a number, but no memory */
        tn_session *s = NULL;
        tn_compile_opts o = opts_of(mode);
        g = tn_graph_new(f.ctx, "too_much");
        tn_output(tn_exp(tn_input(g, "x", TN_F32, TN_DIMS((int64_t)1 << 58))), "y");
        if (tn_compile(g, &o, &p)) fail_msg("%s", tn_ctx_error(f.ctx));
        EXPECT(f.ctx, TN_ERR_NOMEM, tn_session_new(p, &s), "out of memory", "1152921504606846976 bytes", "\"y\"");
        assert_null(s);
        tn_program_free(p);
        tn_graph_free(g);
    }
    /* sizes whose work and traffic no number of 64 bits counts */
    static const char text[] = "graph @work(a f32[1073741824,1073741824], b f32[1073741824,1073741824], i i64[1073741824]) {\n"
                               "  %1 = dot a, b f32[1073741824,1073741824]\n  %2 = sum %1 axes=[0,1] f32[1,1]\n"
                               "  %3 = gather %1, i axis=0 f32[1073741824,1073741824]\n  return %2 as \"y\", %3 as \"z\"\n}\n";
    static const char *const devices[] = { "cpu", "null", "auto" };
    for (int i = 0; i < 6; i++) {
        tn_session *s = NULL;
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.device = devices[i % 3], o.fusion = i < 3 ? 3 : 0, o.check = 1;
        assert_non_null(g = tn_graph_parse(f.ctx, text, sizeof text - 1, "work.tn"));
        if (tn_compile(g, &o, &p)) fail_msg("%s: %s", o.device, tn_ctx_error(f.ctx));
        EXPECT(f.ctx, TN_ERR_NOMEM, tn_session_new(p, &s), "out of memory");
        tn_program_free(p);
        tn_graph_free(g);
    }
    works(f.ctx, 2);
    stop(&f);
}

/* An input without elements has nothing to bind. */
static void test_empty(void **state) {
    (void)state;
    fixture f;
    names(&f);
    start_in(&f, NULL, NULL);
    for (tn_mode mode = TN_MODE_IMMEDIATE; mode <= TN_MODE_LOOP; mode++) {
        tn_program *p;
        tn_session *s = NULL;
        float sum = -1;
        tn_compile_opts o = opts_of(mode);
        tn_graph *g = tn_graph_new(f.ctx, "empty");
        tn_output(tn_sum(tn_exp(tn_input(g, "x", TN_F32, TN_DIMS(0, 3))), TN_ALL_AXES, 0), "sum");
        if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(f.ctx));
        if (tn_run(s, TN_BIND({ "sum", &sum }))) fail_msg("%s", tn_ctx_error(f.ctx));
        assert_true(sum == 0);
        sum = -1;
        if (tn_run(s, TN_BIND({ "sum", &sum }, { "x", NULL }))) fail_msg("%s", tn_ctx_error(f.ctx));
        assert_true(sum == 0);
        if (tn_run_n(s, 3, TN_BIND({ "x", NULL }), 2)) fail_msg("%s", tn_ctx_error(f.ctx));
        tn_session_free(s);
        tn_program_free(p);
        tn_graph_free(g);
    }
    stop(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compiler_missing),
        cmocka_unit_test(test_compiler_fails),
        cmocka_unit_test(test_compiler_output),
        cmocka_unit_test(test_cache_unusable),
        cmocka_unit_test(test_disk_full),
        cmocka_unit_test(test_compiler_without_room),
        cmocka_unit_test(test_bindings),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_overlaps),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_null),
        cmocka_unit_test(test_parameter_files),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_huge),
        cmocka_unit_test(test_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
