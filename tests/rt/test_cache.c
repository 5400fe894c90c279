/* The kernel cache: each key gets its own code whatever memory, disk, other threads and other processes do.
 *
 * One small shared object is compiled; the image of key i is that object with its constant replaced by i, so that building is
 * quick and loading the wrong code shows. */
#include "rt_util.h"

#include "rt/cache.h"
#include "rt/cc.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

static unsigned char *base_image;
static size_t base_size, constant_at;
static char dir[64];
static const int marker = 0x5e3779b1;

static int setup_all(void **state) {
    (void)state;
    char text[256];
    snprintf(text, sizeof text, "const volatile int constant = %d; int k(void) { return constant; }", marker);
    cc *c;
    err e = { 0 };
    assert_int_equal(cc_open(mem_libc(), "cc", NULL, 0, &c, &e), TN_OK);
    assert_int_equal(cc_compile(c, NULL, text, strlen(text), &base_image, &base_size, &e), TN_OK);
    cc_close(c);
    int found = 0;
    for (size_t i = 0; i + 4 <= base_size; i++)
        if (memcmp(base_image + i, &marker, 4) == 0) constant_at = i, found++;
    return found == 1 ? 0 : -1;
}
static int teardown_all(void **state) {
    (void)state;
    mem_free(mem_libc(), base_image, base_size);
    return 0;
}
static int setup(void **state) {
    (void)state;
    char parent[64];
    scratch_dir(parent);
    snprintf(dir, sizeof dir, "%s/a", parent);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    *strrchr(dir, '/') = 0;
    scratch_remove(dir);
    return 0;
}

typedef struct builder {
    mem mem;
    int value;
    _Atomic int calls;
    long pause_us;
    tn_status fail;
} builder;
static tn_status build_image(void *ud, unsigned char **out, size_t *out_size, err *e) {
    builder *b = ud;
    atomic_fetch_add(&b->calls, 1);
    if (b->pause_us) nanosleep(&(struct timespec){ 0, b->pause_us * 1000 }, NULL);
    if (b->fail) return err_set(e, b->fail, "told to fail");
    unsigned char *image = mem_alloc(b->mem, base_size);
    if (!image) return err_set(e, TN_ERR_NOMEM, "no memory");
    memcpy(image, base_image, base_size);
    memcpy(image + constant_at, &b->value, sizeof b->value);
    *out = image;
    *out_size = base_size;
    return TN_OK;
}

typedef struct keyed { /* the key of a value */
    char text[64];
    cache_key key;
} keyed;
static cache_key *key_of(keyed *k, int value) {
    snprintf(k->text, sizeof k->text, "return %d;", value);
    k->key = (cache_key){ "test 1", k->text, strlen(k->text) };
    return &k->key;
}
static int call(const code *m) {
    int (*k)(void);
    void *p = code_symbol(m, "k");
    assert_non_null(p);
    memcpy(&k, &p, sizeof p);
    return k();
}

typedef struct fixture {
    counted memory;
    kept_log log;
    cache *c;
    builder b;
} fixture;
static void open_cache(fixture *f, const char *at, uint64_t disk_bytes, uint64_t memory_bytes) {
    memset(f, 0, sizeof *f);
    f->b.mem = counted_mem(&f->memory);
    err e = { 0 };
    cache_opts o = { f->b.mem, at, disk_bytes, memory_bytes, keep_line, &f->log };
    assert_int_equal(cache_open(&o, &f->c, &e), TN_OK);
}
static void close_cache(fixture *f) {
    cache_close(f->c);
    assert_int_equal(f->memory.alive, 0);
}
/* Gets the kernel of a value and checks it; says whether it had to be built. */
static bool get(fixture *f, int value, bool fresh, code **out) {
    keyed k;
    err e = { 0 };
    bool hit;
    int before = f->b.calls;
    f->b.value = value;
    tn_status st = cache_get(f->c, key_of(&k, value), fresh, build_image, &f->b, out, &hit, &e);
    if (st) print_message("%s\n", e.text);
    assert_int_equal(st, TN_OK);
    assert_int_equal(call(*out), value);
    assert_true(hit == (f->b.calls == before));
    return !hit;
}
static bool use(fixture *f, int value) {
    code *m;
    bool built = get(f, value, false, &m);
    cache_drop(f->c, m);
    return built;
}
static void file_of(int value, char *path, size_t size) {
    keyed k;
    hash128 h = cache_key_hash(key_of(&k, value));
    snprintf(path, size, "%s/%016llx%016llx.kernel", dir, (unsigned long long)h.hi, (unsigned long long)h.lo);
}
static disk_stats stats(void) {
    disk_stats s;
    err e = { 0 };
    assert_int_equal(disk_get_stats(dir, &s, &e), TN_OK);
    return s;
}
/* Every file is a valid kernel or unfinished; the number of kernels is returned. */
static int check_all_files(void) {
    DIR *d = opendir(dir);
    int n = 0;
    if (!d) return 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        if (entry->d_name[0] == '.' || strncmp(entry->d_name, "tenon-", 6) == 0) continue;
        char path[512];
        err e = { 0 };
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (disk_check_file(mem_libc(), path, &e)) fail_msg("%s", e.text);
        n++;
    }
    closedir(d);
    return n;
}

static void test_memory(void **state) {
    (void)state;
    fixture f;
    open_cache(&f, NULL, 0, 1 << 30);
    code *held[40], *again, *mine;
    for (int i = 0; i < 40; i++) assert_true(get(&f, i, false, &held[i]));
    for (int i = 0; i < 40; i++) {
        assert_false(get(&f, i, false, &again));
        assert_ptr_equal(again, held[i]);
        cache_drop(f.c, again);
    }
    assert_true(get(&f, 7, true, &mine)); /* afresh: another module of the same key */
    assert_ptr_not_equal(mine, held[7]);
    cache_drop(f.c, mine);
    for (int i = 0; i < 40; i++) assert_int_equal(call(held[i]), i);
    for (int i = 0; i < 40; i++) cache_drop(f.c, held[i]);
    for (int i = 0; i < 40; i++) assert_false(use(&f, i));
    cache_drop(f.c, NULL);
    cache_counts n;
    cache_get_counts(f.c, &n);
    assert_true(n.modules == 40 && n.bytes == 40 * base_size && n.builds == 41 && n.memory_hits == 80 && n.disk_hits == 0);
    assert_null(cache_temp_dir(f.c));
    assert_int_equal(f.log.lines, 0);
    close_cache(&f);
}

static void test_memory_bound(void **state) {
    (void)state;
    fixture f;
    open_cache(&f, NULL, 0, 3 * base_size);
    code *held;
    assert_true(get(&f, 100, false, &held)); /* held: not counted in the bound */
    for (int i = 0; i < 3; i++) assert_true(use(&f, i));
    assert_false(use(&f, 0)); /* 1 is the oldest now */
    assert_true(use(&f, 3));
    assert_false(use(&f, 0));
    assert_false(use(&f, 2));
    assert_false(use(&f, 3));
    assert_true(use(&f, 1));
    assert_int_equal(call(held), 100);
    cache_counts n;
    cache_get_counts(f.c, &n);
    assert_true(n.modules == 4 && n.bytes == 4 * base_size);
    cache_drop(f.c, held);
    cache_get_counts(f.c, &n);
    assert_int_equal(n.modules, 3);
    close_cache(&f);
    open_cache(&f, NULL, 0, 0); /* nothing is kept */
    assert_true(use(&f, 1));
    assert_true(use(&f, 1));
    close_cache(&f);
}

/* Two caches of one process load different code through the same descriptor numbers at once. */
static void test_two_caches(void **state) {
    (void)state;
    fixture a, b;
    open_cache(&a, NULL, 0, 1 << 20);
    open_cache(&b, NULL, 0, 1 << 20);
    code *m[20];
    for (int i = 0; i < 20; i++) get(i & 1 ? &a : &b, i, false, &m[i]);
    for (int i = 0; i < 20; i++) assert_int_equal(call(m[i]), i);
    for (int i = 0; i < 20; i++) cache_drop(i & 1 ? a.c : b.c, m[i]);
    close_cache(&a);
    close_cache(&b);
}

static void test_disk(void **state) {
    (void)state;
    fixture f;
    open_cache(&f, dir, 1 << 30, 1 << 20);
    for (int i = 0; i < 10; i++) assert_true(use(&f, i));
    code *fresh;
    assert_true(get(&f, 3, true, &fresh));
    cache_drop(f.c, fresh);
    assert_true(get(&f, 50, true, &fresh)); /* not kept on disk */
    assert_string_equal(cache_temp_dir(f.c), dir);
    cache_drop(f.c, fresh);
    struct stat s;
    char path[128];
    assert_int_equal(stat(dir, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0700);
    file_of(4, path, sizeof path);
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    close_cache(&f);
    open_cache(&f, dir, 1 << 30, 1 << 20);
    for (int i = 0; i < 10; i++) assert_false(use(&f, i));
    assert_true(use(&f, 50));
    cache_counts n;
    cache_get_counts(f.c, &n);
    assert_true(n.disk_hits == 10 && n.builds == 1 && n.memory_hits == 0);
    assert_int_equal(check_all_files(), 11);
    assert_int_equal(stats().files, 11);
    assert_int_equal(stats().unfinished, 0);
    /* the key is more than the text */
    keyed k;
    bool hit;
    err e = { 0 };
    key_of(&k, 4)->variant = "test 2";
    f.b.value = 4;
    assert_int_equal(cache_get(f.c, &k.key, false, build_image, &f.b, &fresh, &hit, &e), TN_OK);
    assert_false(hit);
    cache_drop(f.c, fresh);
    assert_int_equal(f.log.lines, 0);
    close_cache(&f);
}

static void set_age(int value, long seconds) {
    char path[128];
    file_of(value, path, sizeof path);
    struct timeval now, old[2];
    gettimeofday(&now, NULL);
    old[0] = old[1] = (struct timeval){ now.tv_sec - seconds, 0 };
    assert_int_equal(utimes(path, old), 0);
}
static bool on_disk(int value) {
    char path[128];
    file_of(value, path, sizeof path);
    return access(path, F_OK) == 0;
}
static void test_disk_bound(void **state) {
    (void)state;
    fixture f;
    open_cache(&f, dir, 1 << 30, 0);
    for (int i = 0; i < 8; i++) use(&f, i);
    uint64_t one = stats().bytes / 8;
    for (int i = 0; i < 8; i++) set_age(i, 1000 - 100 * i);
    assert_false(use(&f, 0)); /* used now: the youngest */
    close_cache(&f);
    open_cache(&f, dir, 8 * one + one / 2, 0);
    assert_true(use(&f, 100)); /* one too many: down to 7/8 of the bound */
    assert_true(on_disk(0) && !on_disk(1) && !on_disk(2) && on_disk(3) && on_disk(7) && on_disk(100));
    for (int i = 200; i < 260; i++) {
        use(&f, i);
        assert_true(stats().bytes <= 8 * one + one / 2);
    }
    close_cache(&f);
    open_cache(&f, dir, one / 2, 0); /* too small for any kernel: nothing is stored, nothing is thrown out */
    assert_true(use(&f, 300));
    assert_false(on_disk(300));
    assert_true(stats().files > 0);
    close_cache(&f);
}

static void test_prune(void **state) {
    (void)state;
    fixture f;
    disk_stats s;
    err e = { 0 };
    char path[256];
    assert_int_equal(disk_prune(mem_libc(), dir, 0, &s, &e), TN_OK); /* no directory yet */
    assert_int_equal(s.files, 0);
    open_cache(&f, dir, 1 << 30, 0);
    for (int i = 0; i < 6; i++) use(&f, i);
    close_cache(&f);
    const char *const others[] = { "README", "00000000000000000000000000000000.kernel2", "tenon-young", "tenon-old" };
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, others[i]);
        close(open(path, O_CREAT | O_WRONLY, 0600));
    }
    const struct timeval old[2] = { { 1000000, 0 }, { 1000000, 0 } };
    assert_int_equal(utimes(path, old), 0);
    snprintf(path, sizeof path, "%s/tenon-dir", dir);
    mkdir(path, 0700);
    strcat(path, "/k.c");
    close(open(path, O_CREAT | O_WRONLY, 0600));
    *strrchr(path, '/') = 0;
    assert_int_equal(utimes(path, old), 0);
    for (int i = 0; i < 6; i++) set_age(i, 100 + i);
    s = stats();
    assert_true(s.files == 6 && s.unfinished == 3 && s.newest - s.oldest == 5);
    uint64_t total = s.bytes;
    assert_int_equal(disk_prune(mem_libc(), dir, total / 2, &s, &e), TN_OK);
    assert_true(s.files == 3 && s.removed_files == 3 && s.bytes + s.removed_bytes == total && s.unfinished == 1);
    assert_true(on_disk(0) && on_disk(2) && !on_disk(3) && !on_disk(5));
    assert_int_equal(s.oldest, stats().oldest);
    assert_int_equal(disk_prune(mem_libc(), dir, 0, &s, &e), TN_OK);
    assert_true(s.files == 0 && s.oldest == 0 && stats().bytes == 0);
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, others[i]);
        assert_int_equal(access(path, F_OK), 0);
    }
    snprintf(path, sizeof path, "%s/README", dir);
    assert_int_equal(disk_get_stats(path, &s, &e), TN_ERR_IO);
}

/* ---- broken files ---- */

static unsigned seed = 20240607;
static unsigned next_random(void) { return (seed = seed * 1664525u + 1013904223u) >> 4; }

static size_t read_file(const char *path, unsigned char *buf, size_t cap) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(buf, 1, cap, file);
    fclose(file);
    return n;
}
static void write_file(const char *path, const unsigned char *buf, size_t n) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(buf, 1, n, file), n);
    fclose(file);
}
/* A new process, as it were, meets the file: it must be built again, logged once, and be good afterwards. */
static void expect_rebuilt(int value) {
    fixture f;
    open_cache(&f, dir, 1 << 30, 0);
    assert_true(use(&f, value));
    assert_int_equal(f.log.lines, 1);
    assert_non_null(strstr(f.log.last, "broken"));
    assert_false(use(&f, value));
    assert_int_equal(f.log.lines, 1);
    close_cache(&f);
}
static void test_broken_files(void **state) {
    (void)state;
    static unsigned char good[1 << 20], bad[1 << 20];
    char path[128], other[128];
    fixture f;
    open_cache(&f, dir, 1 << 30, 0);
    use(&f, 1);
    use(&f, 2);
    close_cache(&f);
    file_of(1, path, sizeof path);
    file_of(2, other, sizeof other);
    size_t n = read_file(path, good, sizeof good);
    for (int round = 0; round < 60; round++) { /* one bit flipped: the header's 64 bytes, then anywhere */
        memcpy(bad, good, n);
        bad[round < 30 ? (size_t)round * 2 : next_random() % n] ^= (unsigned char)(1u << (next_random() & 7));
        write_file(path, bad, n);
        expect_rebuilt(1);
    }
    const size_t lengths[] = { 0, 1, 7, 8, 55, 56, 63, 64, 65, 100, n / 2, n - 1 };
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        write_file(path, good, lengths[i]);
        expect_rebuilt(1);
    }
    memcpy(bad, good, n);
    write_file(path, bad, n + 1); /* longer */
    expect_rebuilt(1);
    memset(bad, 0xff, n); /* sizes as large as they get */
    memcpy(bad, good, 16);
    write_file(path, bad, n);
    expect_rebuilt(1);
    size_t n_other = read_file(other, bad, sizeof bad); /* intact, but of another key */
    write_file(path, bad, n_other);
    expect_rebuilt(1);
    unlink(path);
    assert_int_equal(symlink(other, path), 0);
    expect_rebuilt(1);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_rebuilt(1);
    chmod(path, 0666);
    expect_rebuilt(1);
    if (geteuid() == 0) { /* right in all, but not ours */
        assert_int_equal(chown(path, 12345, 12345), 0);
        expect_rebuilt(1);
    }
    assert_int_equal(check_all_files(), 2);
}
/* An intact file whose image does not load. */
static tn_status build_garbage(void *ud, unsigned char **out, size_t *out_size, err *e) {
    (void)e;
    *out_size = 100;
    *out = mem_alloc(((builder *)ud)->mem, *out_size);
    return *out ? TN_OK : TN_ERR_NOMEM;
}
static void test_image_that_does_not_load(void **state) {
    (void)state;
    fixture f;
    keyed k;
    code *m;
    err e = { 0 };
    open_cache(&f, dir, 1 << 30, 0);
    assert_int_equal(cache_get(f.c, key_of(&k, 1), false, build_garbage, &f.b, &m, NULL, &e), TN_ERR_DEVICE);
    assert_non_null(strstr(e.text, "cannot load"));
    assert_null(m);
    assert_int_equal(stats().files, 0);
    disk *d = disk_open(&(disk_opts){ .mem = mem_libc(), .dir = dir, .bound = 1 << 30 });
    disk_store(d, key_of(&k, 1), (const unsigned char *)"garbage", 7);
    disk_close(d);
    assert_int_equal(stats().files, 1);
    assert_true(use(&f, 1));
    assert_false(use(&f, 1));
    close_cache(&f);
}

/* ---- directories that are of no use ---- */

static void expect_without_disk(const char *at, const char *why) {
    fixture f;
    open_cache(&f, at, 1 << 30, 1 << 20);
    for (int i = 0; i < 5; i++) assert_true(use(&f, i));
    for (int i = 0; i < 5; i++) assert_false(use(&f, i)); /* memory still works */
    assert_int_equal(f.log.lines, 1);
    if (!strstr(f.log.last, why)) fail_msg("%s", f.log.last);
    close_cache(&f);
}
/* Runs a check in a child that is not root, for root may write everywhere. */
static void in_child(void (*check)(void)) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (geteuid() == 0 && (setgid(65534) || setuid(65534))) _exit(3);
        check();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}
static void check_read_only(void) {
    fixture f;
    open_cache(&f, dir, 1 << 30, 0);
    for (int i = 0; i < 3; i++) assert_false(use(&f, i)); /* what is there is used */
    for (int i = 3; i < 6; i++) assert_true(use(&f, i));
    assert_int_equal(f.log.lines, 1);
    assert_non_null(strstr(f.log.last, "Permission denied"));
    assert_null(cache_temp_dir(f.c));
    close_cache(&f);
}
static void check_cannot_create(void) {
    expect_without_disk("/proc/none/there", "No such file");
    char below[128];
    snprintf(below, sizeof below, "%s/sub", dir);
    expect_without_disk(below, "");
}
/* A limit on file sizes stands for a full disk: the long key makes the file larger than the image that is loaded. */
static void check_full_disk(void) {
    struct rlimit limit = { base_size + 1000, base_size + 1000 };
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    fixture f;
    open_cache(&f, dir, 1 << 30, 0);
    static char text[5000];
    memset(text, 'x', sizeof text);
    for (int i = 0; i < 4; i++) {
        code *m;
        bool hit;
        err e = { 0 };
        cache_key key = { "test 1", text, sizeof text - (size_t)i };
        f.b.value = i;
        assert_int_equal(cache_get(f.c, &key, false, build_image, &f.b, &m, &hit, &e), TN_OK);
        assert_int_equal(call(m), i);
        cache_drop(f.c, m);
    }
    assert_int_equal(f.log.lines, 1);
    assert_non_null(strstr(f.log.last, "File too large"));
    disk_stats s = stats();
    assert_true(s.files == 0 && s.unfinished == 0);
    close_cache(&f);
}
static void give_to_nobody(const char *path) {
    if (geteuid() == 0) assert_int_equal(chown(path, 65534, 65534), 0);
}
static void test_unusable_directories(void **state) {
    (void)state;
    char path[128], parent[64];
    snprintf(path, sizeof path, "%s-file", dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    expect_without_disk(path, "Not a directory");
    mkdir(dir, 0700);
    chmod(dir, 0777);
    expect_without_disk(dir, "others may write");
    chmod(dir, 0700);
    if (geteuid() == 0) {
        assert_int_equal(chown(dir, 12345, 12345), 0);
        expect_without_disk(dir, "another user");
        assert_int_equal(chown(dir, 0, 0), 0);
    }
    fixture f;
    open_cache(&f, dir, 1 << 30, 0);
    for (int i = 0; i < 3; i++) use(&f, i);
    close_cache(&f);
    snprintf(parent, sizeof parent, "%s", dir);
    *strrchr(parent, '/') = 0;
    give_to_nobody(parent);
    give_to_nobody(dir);
    for (int i = 0; i < 3; i++) file_of(i, path, sizeof path), give_to_nobody(path);
    chmod(dir, 0500);
    in_child(check_read_only);
    in_child(check_cannot_create);
    chmod(dir, 0700);
    for (int i = 0; i < 3; i++) file_of(i, path, sizeof path), unlink(path);
    in_child(check_full_disk);
    chmod(dir, 0700);
}

/* ---- many at once ---- */

typedef struct client {
    fixture *f;
    int value, wrong;
    tn_status st;
} client;
static void *client_main(void *arg) {
    client *c = arg;
    keyed k;
    err e = { 0 };
    code *m;
    c->st = cache_get(c->f->c, key_of(&k, c->value), false, build_image, &c->f->b, &m, NULL, &e);
    if (c->st) return NULL;
    int (*fn)(void);
    void *p = code_symbol(m, "k");
    memcpy(&fn, &p, sizeof p);
    c->wrong = fn() != c->value;
    cache_drop(c->f->c, m);
    return NULL;
}
static void run_clients(fixture *f, int value, tn_status want) {
    client clients[6];
    pthread_t threads[6];
    f->b.value = value;
    for (int i = 0; i < 6; i++) {
        clients[i] = (client){ .f = f, .value = value };
        assert_int_equal(pthread_create(&threads[i], NULL, client_main, &clients[i]), 0);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(clients[i].st, want);
        assert_int_equal(clients[i].wrong, 0);
    }
}
static void test_one_build_at_a_time(void **state) {
    (void)state;
    fixture f;
    open_cache(&f, dir, 1 << 30, 1 << 20);
    f.b.pause_us = 20000;
    run_clients(&f, 1, TN_OK);
    assert_int_equal(f.b.calls, 1);
    f.b.fail = TN_ERR_BUILD;
    f.b.pause_us = 1000;
    run_clients(&f, 2, TN_ERR_BUILD); /* each may try; none hangs */
    f.b.fail = TN_OK;
    int before = f.b.calls;
    run_clients(&f, 2, TN_OK);
    assert_int_equal(f.b.calls, before + 1);
    close_cache(&f);
}

/* Child process: values [0, n) in an order of its own. */
static void fill(int n, int step) {
    fixture f;
    open_cache(&f, dir, 1 << 30, 0);
    for (int i = 0; i < n; i++) use(&f, (i * step + 3) % n);
    if (f.log.lines) _exit(4);
    close_cache(&f);
}
static void test_many_processes(void **state) {
    (void)state;
    const int steps[] = { 1, 7, 11 };
    pid_t child[3];
    for (int i = 0; i < 3; i++) {
        assert_true((child[i] = fork()) >= 0);
        if (child[i] == 0) {
            fill(60, steps[i]);
            _exit(0);
        }
    }
    for (int i = 0; i < 3; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(check_all_files(), 60);
    assert_int_equal(stats().unfinished, 0);
    fixture f;
    open_cache(&f, dir, 1 << 30, 0);
    for (int i = 0; i < 60; i++) assert_false(use(&f, i));
    close_cache(&f);
}

static void test_killed_writers(void **state) {
    (void)state;
    int next = 0, kernels = 0;
    for (int round = 0; round < 50; round++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            fixture f;
            open_cache(&f, dir, 1 << 30, 1 << 20);
            for (int i = next;; i++) use(&f, i);
        }
        nanosleep(&(struct timespec){ 0, (long)(next_random() % 6000) * 1000 }, NULL);
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        kernels = check_all_files();
        fixture f;
        open_cache(&f, dir, 1 << 30, 0);
        use(&f, next++);
        use(&f, kernels);
        assert_int_equal(f.log.lines, 0);
        close_cache(&f);
    }
    print_message("%d kernels and %d unfinished files after 50 kills\n", check_all_files(), (int)stats().unfinished);
    assert_true(kernels >= 50);
}

static void test_out_of_memory(void **state) {
    (void)state;
    for (int from_disk = 0; from_disk < 2; from_disk++)
        for (int64_t k = 1;; k++) {
            counted memory = { .fail_at = k };
            builder b = { .mem = counted_mem(&memory), .value = 5 };
            cache *c;
            code *m = NULL;
            keyed key;
            err e = { 0 };
            cache_opts o = { .mem = b.mem, .dir = dir, .disk_bytes = 1 << 30 };
            tn_status st = cache_open(&o, &c, &e);
            if (st == TN_OK) {
                st = cache_get(c, key_of(&key, 5), false, build_image, &b, &m, NULL, &e);
                if (st == TN_OK) assert_int_equal(call(m), 5);
                cache_drop(c, m);
                cache_close(c);
            }
            assert_int_equal(memory.alive, 0);
            if (st) assert_int_equal(st, TN_ERR_NOMEM);
            if (memory.calls < k) break;
            assert_true(k < 100);
        }
    assert_int_equal(check_all_files(), 1);
}

static void test_public_view(void **state) {
    (void)state;
    tn_cache_stats s;
    uint64_t files, bytes;
    tn_ctx *ctx = tn_ctx_new(NULL);
    assert_int_equal(tn_cache_get_stats(ctx, &s), TN_OK);
    assert_true(s.dir == NULL && s.files == 0 && s.builds == 0);
    assert_int_equal(tn_cache_get_stats(ctx, NULL), TN_ERR_INVAL);
    assert_int_equal(tn_cache_prune(ctx, 0, NULL, NULL), TN_ERR_INVAL);
    assert_non_null(strstr(tn_ctx_error(ctx), "cache_dir"));
    tn_ctx_free(ctx);
    assert_int_equal(tn_cache_get_stats(NULL, &s), TN_ERR_INVAL);
    assert_int_equal(tn_cache_prune(NULL, 0, NULL, NULL), TN_ERR_INVAL);
    fixture f;
    open_cache(&f, dir, 1 << 30, 0);
    for (int i = 0; i < 4; i++) use(&f, i);
    close_cache(&f);
    tn_config cfg = { .struct_size = sizeof cfg, .cache_dir = dir, .cache_bytes = 12345 };
    ctx = tn_ctx_new(&cfg);
    assert_int_equal(tn_cache_get_stats(ctx, &s), TN_OK);
    assert_string_equal(s.dir, dir);
    assert_true(s.files == 4 && s.bytes == stats().bytes && s.limit == 12345 && s.oldest > 0 && s.newest >= s.oldest);
    assert_int_equal(tn_cache_prune(ctx, s.bytes / 2, &files, &bytes), TN_OK);
    assert_true(files == 2 && bytes == s.bytes / 2);
    assert_int_equal(tn_cache_prune(ctx, 0, NULL, NULL), TN_OK);
    assert_int_equal(tn_cache_get_stats(ctx, &s), TN_OK);
    assert_int_equal(s.files, 0);
    tn_ctx_free(ctx);
}

#define WITH_DIR(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_DIR(test_memory),
        WITH_DIR(test_memory_bound),
        WITH_DIR(test_two_caches),
        WITH_DIR(test_disk),
        WITH_DIR(test_disk_bound),
        WITH_DIR(test_prune),
        WITH_DIR(test_broken_files),
        WITH_DIR(test_image_that_does_not_load),
        WITH_DIR(test_unusable_directories),
        WITH_DIR(test_one_build_at_a_time),
        WITH_DIR(test_many_processes),
        WITH_DIR(test_killed_writers),
        WITH_DIR(test_out_of_memory),
        WITH_DIR(test_public_view),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
