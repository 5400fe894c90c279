/* test_tuning.c - the database of measured choices: entries come back as they went in, later ones replace earlier ones, lines
 * that are no entries are skipped and counted, several processes lose nothing of each other's, a folder that cannot be written
 * says so. */
#include "rt_util.h"
#include "rt/tuning.h"
#include "support/support.h"

#include <fcntl.h>
#include <sys/wait.h>

/* The text lives as long as the process: it is one of a few. */
static const char *random_schedule(rng *r) {
    static char text[64][TUNING_TEXT + 1];
    static int made;
    int n = (int)rng_between(r, 1, rng_chance(r, 0.1) ? TUNING_TEXT : 200);
    if (made == 64) return text[rng_below(r, 64)];
    for (int i = 0; i < n; i++) text[made][i] = "abcxyzABC0123456789_=;{} "[rng_below(r, i == 0 || i == n - 1 ? 6 : 25)];
    return text[made++];
}

static tuning_entry random_entry(rng *r) {
    return (tuning_entry){
        .key = rng_next(r), .schedule = random_schedule(r), .before = rng_next(r) >> 1, .after = rng_next(r) >> 1
    };
}

static bool same(const tuning_entry *x, const tuning_entry *y) {
    return x->key == y->key && x->before == y->before && x->after == y->after && !strcmp(x->schedule, y->schedule);
}

static const tuning_entry *find(const tuning *t, uint64_t key) {
    for (int i = 0; t && i < t->table.n; i++) {
        assert_true(t->table.at[i].key == t->entries[i].key && (i == 0 || t->entries[i - 1].key < t->entries[i].key));
        assert_ptr_equal(t->table.at[i].schedule, t->entries[i].schedule);
        if (t->entries[i].key == key) return &t->entries[i];
    }
    return NULL;
}

static void write_text(const char *dir, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/" TUNING_FILE, dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_round_trip(void **state) {
    (void)state;
    char dir[64];
    counted c = { 0 };
    mem m = counted_mem(&c);
    kept_log log = { 0 };
    err e;
    rng r = rng_make(11);
    tuning_entry all[200];
    disk *d = disk_open(&(disk_opts){ .mem = m, .dir = scratch_dir(dir), .bound = 1 << 20, .log = keep_line, .log_ud = &log });
    assert_non_null(d);
    assert_null(tuning_load(m, d, keep_line, &log));
    for (int i = 0; i < 200; i++) all[i] = random_entry(&r);
    assert_int_equal(tuning_store(m, d, all, 120, &e), TN_OK);
    for (int i = 100; i < 120; i++) all[i].after = 5, all[i].schedule = "hoist; tile"; /* measured again */
    assert_int_equal(tuning_store(m, d, all + 100, 100, &e), TN_OK);
    tuning *t = tuning_load(m, d, keep_line, &log);
    assert_non_null(t);
    assert_int_equal(t->table.n, 200);
    assert_int_equal(tuning_count(m, dir), 200);
    for (int i = 0; i < 200; i++) assert_true(find(t, all[i].key) && same(find(t, all[i].key), &all[i]));
    assert_int_equal(log.lines, 0);
    tuning_free(t);
    int removed;
    assert_int_equal(tuning_clear(m, dir, &removed, &e), TN_OK);
    assert_int_equal(removed, 200);
    assert_int_equal(tuning_count(m, dir), 0);
    assert_int_equal(tuning_clear(m, "/nonexistent/folder", &removed, &e), TN_OK);
    assert_int_equal(removed, 0);
    disk_close(d);
    assert_int_equal(c.alive, 0);
    scratch_remove(dir);
}

static void test_malformed(void **state) {
    (void)state;
    static const char good[] = "00000000000000ff 100 90 hoist; tile\n";
    static char too_long[TUNING_TEXT + 64];
    memset(too_long, 'x', sizeof too_long - 1);
    memcpy(too_long, "00000000000000ff 100 90 ", 24), too_long[sizeof too_long - 2] = '\n';
    const char *const bad[] = { "hello\n",
                                "00000000000000ff 100 90\n",
                                "00000000000000ff 100 90 \n",
                                "00000000000000ff 100 90 hoist; tile \n",
                                "00000000000000ff  100 90 hoist; tile\n",
                                "00000000000000ff 100 90  hoist\n",
                                "00000000000000ff 100 hoist; tile\n",
                                "00000000000000ff -100 90 hoist; tile\n",
                                "100000000000000ff 100 90 hoist; tile\n",
                                "00000000000000FF 100 90 hoist; tile\n",
                                "00000000000000ff 100 99999999999999999999 hoist; tile\n",
                                "00000000000000ff 100 90 hoist, tile\n",
                                "00000000000000ff 100 90 hoist\ttile\n",
                                "00000000000000ff 100 90 \"hoist\"\n",
                                "00000000000000ff 6 4 2 1 256 0 0 100 90\n" /* of an older version */,
                                "00000000000000ff 100 90 hoist; tile" /* cut off */,
                                too_long,
                                " \n",
                                "\t\n",
                                "0\n" };
    mem m = mem_libc();
    tuning *t;
    int skipped;
    err e;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char text[TUNING_TEXT + 256];
        snprintf(text, sizeof text, "# head\n\n%s%s", good, bad[i]);
        assert_int_equal(tuning_parse(m, text, strlen(text), &t, &skipped, &e), TN_OK);
        if (skipped != 1 || t->table.n != 1) fail_msg("%s: %d skipped, %d entries", bad[i], skipped, t->table.n);
        assert_string_equal(t->table.at[0].schedule, "hoist; tile");
        tuning_free(t);
    }
    rng r = rng_make(3); /* anything at all */
    for (int i = 0; i < 2000; i++) {
        char text[400];
        size_t n = (size_t)rng_below(&r, sizeof text);
        for (size_t k = 0; k < n; k++)
            text[k] = (char)(rng_chance(&r, 0.9) ? "0123456789abcdef \n;{}=_"[rng_below(&r, 23)] : rng_below(&r, 256));
        assert_int_equal(tuning_parse(m, text, n, &t, &skipped, &e), TN_OK);
        tuning_free(t);
    }
    char dir[64];
    kept_log log = { 0 };
    disk *d = disk_open(&(disk_opts){ .mem = m, .dir = scratch_dir(dir), .bound = 1 << 20 });
    write_text(dir, "nonsense\n00000000000000ff 100 90 hoist; tile\n");
    t = tuning_load(m, d, keep_line, &log);
    assert_int_equal(t->table.n, 1);
    assert_int_equal(log.lines, 1);
    assert_non_null(strstr(log.last, "1 lines"));
    tuning_free(t);
    disk_close(d);
    scratch_remove(dir);
}

/* A link or a file of gigabytes is not read; what is stored then takes its place. */
static void test_strange_files(void **state) {
    (void)state;
    char dir[64], path[128], victim[128];
    mem m = mem_libc();
    err e;
    disk *d = disk_open(&(disk_opts){ .mem = m, .dir = scratch_dir(dir), .bound = 1 << 20 });
    rng r = rng_make(5);
    tuning_entry x = random_entry(&r);
    snprintf(path, sizeof path, "%s/" TUNING_FILE, dir);
    snprintf(victim, sizeof victim, "%s/victim", dir);
    FILE *f = fopen(victim, "w");
    fputs("00000000000000ff 100 90 hoist; tile\n", f);
    fclose(f);
    assert_int_equal(symlink(victim, path), 0);
    assert_null(tuning_load(m, d, NULL, NULL));
    assert_int_equal(tuning_store(m, d, &x, 1, &e), TN_OK);
    assert_int_equal(tuning_count(m, dir), 1);
    struct stat s;
    assert_true(!lstat(path, &s) && S_ISREG(s.st_mode) && (s.st_mode & 0777) == 0600);
    assert_true(!stat(victim, &s) && s.st_size == 36);
    assert_int_equal(truncate(path, (off_t)1 << 32), 0);
    assert_null(tuning_load(m, d, NULL, NULL));
    assert_int_equal(tuning_store(m, d, &x, 1, &e), TN_OK);
    assert_int_equal(tuning_count(m, dir), 1);
    disk_close(d);
    scratch_remove(dir);
}

static void test_processes(void **state) {
    (void)state;
    enum { PROCESSES = 4, TIMES = 25 };
    char dir[64];
    mem m = mem_libc();
    scratch_dir(dir);
    for (int p = 0; p < PROCESSES; p++)
        if (fork() == 0) {
            err e;
            rng r = rng_make(100 + (uint64_t)p);
            disk *d = disk_open(&(disk_opts){ .mem = m, .dir = dir, .bound = 1 << 20 });
            int bad = 0;
            for (int i = 0; i < TIMES; i++) {
                tuning_entry x = random_entry(&r);
                bad += tuning_store(m, d, &x, 1, &e) != TN_OK;
            }
            _exit(bad);
        }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        assert_true(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(tuning_count(m, dir), PROCESSES * TIMES);
    scratch_remove(dir);
}

static void test_read_only(void **state) {
    (void)state;
    char dir[64];
    mem m = mem_libc();
    err e;
    rng r = rng_make(9);
    tuning_entry x = random_entry(&r);
    if (geteuid() == 0) { /* root may write anywhere: only a folder that is none refuses */
        assert_null(disk_open(&(disk_opts){ .mem = m, .dir = "/dev/null", .bound = 1 << 20 }));
        return;
    }
    write_text(scratch_dir(dir), "00000000000000ff 100 90 hoist; tile\n");
    chmod(dir, 0500);
    disk *d = disk_open(&(disk_opts){ .mem = m, .dir = dir, .bound = 1 << 20 });
    tuning *t = tuning_load(m, d, NULL, NULL);
    assert_int_equal(t->table.n, 1);
    assert_int_equal(tuning_store(m, d, &x, 1, &e), TN_ERR_IO);
    assert_int_equal(tuning_count(m, dir), 1);
    tuning_free(t);
    disk_close(d);
    scratch_remove(dir);
}

/* Every allocation fails once: nothing is lost. */
static void test_memory(void **state) {
    (void)state;
    char dir[64];
    counted c = { 0 };
    mem m = counted_mem(&c);
    err e;
    rng r = rng_make(21);
    tuning_entry x[3] = { random_entry(&r), random_entry(&r), random_entry(&r) };
    disk *d = disk_open(&(disk_opts){ .mem = m, .dir = scratch_dir(dir), .bound = 1 << 20 });
    int64_t alive = c.alive;
    for (int at = 1;; at++) {
        c.calls = 0, c.fail_at = at;
        tn_status st = tuning_store(m, d, x, 3, &e);
        tuning *t = st ? NULL : tuning_load(m, d, NULL, NULL);
        bool through = t != NULL && c.calls < at;
        c.fail_at = 0;
        assert_true(st == TN_OK || st == TN_ERR_NOMEM);
        tuning_free(t);
        assert_int_equal(c.alive, alive);
        if (through) break;
    }
    assert_int_equal(tuning_count(m, dir), 3);
    disk_close(d);
    scratch_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_malformed),
                                        cmocka_unit_test(test_strange_files), cmocka_unit_test(test_processes),
                                        cmocka_unit_test(test_read_only),     cmocka_unit_test(test_memory) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
