/* disk.c - implementation of disk.h. All work goes through the descriptor of the directory, so renaming or replacing the path
 * while the process runs cannot lead it elsewhere. */
#include "rt/disk.h"
#include "rt/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { NAME_HEX = 32, NAME_BYTES = 48, FORMAT_VERSION = 1, RESCAN_STORES = 32, STALE_SECONDS = 3600 };
#define SUFFIX ".kernel"
#define PROGRAM_SUFFIX ".program"
#define MAX_FILE ((size_t)1 << 29)
static const char magic[8] = { 'T', 'N', 'K', 'E', 'R', 'N', '\r', '\n' };

/* Host byte order: the image is for this machine anyway. What follows: variant, text, image. */
typedef struct file_head {
    char magic[8];
    uint64_t version;
    uint64_t n_variant, n_text, n_image;
    hash128 content; /* of all that follows */
} file_head;

struct disk {
    mem mem;
    char *dir;
    int fd;
    uint64_t bound;
    void (*log)(void *ud, tn_log_level level, const char *text);
    void *log_ud;
    atomic_bool no_store; /* storing failed once */
    pthread_mutex_t lock; /* of what follows */
    uint64_t bytes;       /* estimate: other processes write too */
    int stores;           /* since the last look at the directory; 0 = never looked */
};

hash128 cache_key_hash(const cache_key *k) {
    hash128 v = hash_bytes128(k->variant, strlen(k->variant));
    return (hash128){ hash_bytes(k->text, k->n_text, v.lo), hash_bytes(k->text, k->n_text, v.hi) };
}
static void hash_name(hash128 h, const char *suffix, char name[NAME_BYTES]) {
    snprintf(name, NAME_BYTES, "%016llx%016llx%s", (unsigned long long)h.hi, (unsigned long long)h.lo, suffix);
}
static void key_name(const cache_key *k, char name[NAME_BYTES]) { hash_name(cache_key_hash(k), SUFFIX, name); }
/* Only files with such names are counted and removed: a foreign file in the directory is left alone. */
static bool is_kernel_name(const char *name) {
    return strspn(name, "0123456789abcdef") == NAME_HEX && strcmp(name + NAME_HEX, SUFFIX) == 0;
}
static bool is_program_name(const char *name) {
    return strspn(name, "0123456789abcdef") == NAME_HEX && strcmp(name + NAME_HEX, PROGRAM_SUFFIX) == 0;
}
static bool is_temp_name(const char *name) { return strncmp(name, FILE_TEMP_PREFIX, strlen(FILE_TEMP_PREFIX)) == 0; }

static void say(const disk *d, const char *what, const char *why) {
    char text[PATH_BYTES + 300];
    if (!d->log) return;
    snprintf(text, sizeof text, "kernel cache %.2800s: %.100s: %.300s", d->dir, what, why);
    d->log(d->log_ud, TN_LOG_WARN, text);
}

/* ---- the directory ---- */

/* mkdir -p, every new directory private. */
static void make_dirs(char *path) {
    for (char *s = path + 1;; s++) {
        if (*s != '/' && *s) continue;
        char c = *s;
        *s = 0;
        mkdir(path, 0700);
        *s = c;
        if (!c) return;
    }
}

/* Code is loaded from here: nobody else may be able to put files in, or to change one. */
static const char *distrust(int fd) {
    struct stat s;
    if (fstat(fd, &s)) return strerror(errno);
    if (s.st_uid != geteuid()) return "it belongs to another user";
    if (s.st_mode & (S_IWGRP | S_IWOTH)) return "others may write to it";
    return NULL;
}

disk *disk_open(const disk_opts *o) {
    disk *d = mem_alloc(o->mem, sizeof *d);
    if (!d) return NULL;
    d->mem = o->mem;
    d->bound = o->bound;
    d->log = o->log;
    d->log_ud = o->log_ud;
    d->fd = -1;
    pthread_mutex_init(&d->lock, NULL);
    d->dir = *o->dir ? mem_strdup(o->mem, o->dir) : NULL;
    if (!d->dir) goto fail;
    d->fd = open(d->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->fd < 0 && errno == ENOENT) {
        make_dirs(d->dir);
        d->fd = open(d->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    const char *why = d->fd < 0 ? strerror(errno) : distrust(d->fd);
    if (!why) {
        if (faccessat(d->fd, ".", W_OK | X_OK, AT_EACCESS)) {
            say(d, "new kernels are not kept", strerror(errno));
            d->no_store = true;
        }
        return d;
    }
    say(d, "not used", why);
fail:
    disk_close(d);
    return NULL;
}

void disk_close(disk *d) {
    if (!d) return;
    if (d->fd >= 0) close(d->fd);
    pthread_mutex_destroy(&d->lock);
    mem_strfree(d->mem, d->dir);
    mem_free(d->mem, d, sizeof *d);
}

const char *disk_dir(const disk *d) { return d->dir; }
bool disk_writable(const disk *d) { return !d->no_store; }

/* ---- whole directories ---- */

typedef struct found {
    char name[NAME_BYTES];
    uint64_t bytes;
    int64_t sec, nsec; /* last use */
} found;
typedef struct listing {
    mem mem;
    found *at;
    size_t n, cap;
} listing;

static void listing_free(listing *l) { mem_free(l->mem, l->at, l->cap * sizeof *l->at); }

static tn_status listing_add(listing *l, const found *f, err *e) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        found *at = mem_realloc(l->mem, l->at, l->cap * sizeof *at, cap * sizeof *at);
        if (!at) return err_set(e, TN_ERR_NOMEM, "out of memory for a list of %zu files", cap);
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = *f;
    return TN_OK;
}

/* Counts kernels into out and, when l is given, lists them; removes stale unfinished work when `tidy`. */
static tn_status scan(int at, const char *path, listing *l, bool tidy, disk_stats *out, err *e) {
    *out = (disk_stats){ 0 };
    int fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return TN_OK;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        tn_status st = err_set(e, TN_ERR_IO, "kernel cache %s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return st;
    }
    tn_status st = TN_OK;
    int64_t now = (int64_t)time(NULL);
    for (struct dirent *entry; st == TN_OK && (entry = readdir(dir));) {
        bool temp = is_temp_name(entry->d_name);
        struct stat s;
        if ((!temp && !is_kernel_name(entry->d_name) && !is_program_name(entry->d_name)) ||
            fstatat(fd, entry->d_name, &s, AT_SYMLINK_NOFOLLOW))
            continue;
        if (temp) {
            if (!tidy || now - (int64_t)s.st_mtime <= STALE_SECONDS) {
                out->unfinished++;
            } else if (S_ISDIR(s.st_mode)) {
                file_remove_flat(fd, entry->d_name);
            } else {
                unlinkat(fd, entry->d_name, 0);
            }
            continue;
        }
        found f = { .bytes = (uint64_t)s.st_size, .sec = (int64_t)s.st_mtim.tv_sec, .nsec = (int64_t)s.st_mtim.tv_nsec };
        memcpy(f.name, entry->d_name, strlen(entry->d_name) + 1);
        if (out->files == 0 || f.sec < out->oldest) out->oldest = f.sec;
        if (out->files == 0 || f.sec > out->newest) out->newest = f.sec;
        out->files++;
        out->bytes += f.bytes;
        if (l) st = listing_add(l, &f, e);
    }
    closedir(dir);
    return st;
}

static int by_age(const void *a, const void *b) {
    const found *x = a, *y = b;
    if (x->sec != y->sec) return x->sec < y->sec ? -1 : 1;
    if (x->nsec != y->nsec) return x->nsec < y->nsec ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Oldest first, until at most max_bytes are left. */
static tn_status remove_oldest(int fd, const listing *l, uint64_t max_bytes, disk_stats *out, err *e) {
    for (size_t i = 0; i < l->n && out->bytes > max_bytes; i++) {
        if (unlinkat(fd, l->at[i].name, 0) && errno != ENOENT)
            return err_set(e, TN_ERR_IO, "kernel cache: cannot remove %s: %s", l->at[i].name, strerror(errno));
        out->bytes -= l->at[i].bytes;
        out->files--;
        out->removed_bytes += l->at[i].bytes;
        out->removed_files++;
        out->oldest = out->files ? l->at[i + 1].sec : 0;
        if (!out->files) out->newest = 0;
    }
    return TN_OK;
}

static tn_status prune(mem m, int at, const char *path, uint64_t max_bytes, disk_stats *out, err *e) {
    listing l = { .mem = m };
    tn_status st = scan(at, path, &l, true, out, e);
    if (st == TN_OK && l.n) {
        qsort(l.at, l.n, sizeof *l.at, by_age);
        int fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        st = fd < 0 ? err_set(e, TN_ERR_IO, "kernel cache %s: %s", path, strerror(errno))
                    : remove_oldest(fd, &l, max_bytes, out, e);
        if (fd >= 0) close(fd);
    }
    listing_free(&l);
    return st;
}

tn_status disk_get_stats(const char *dir, disk_stats *out, err *e) { return scan(AT_FDCWD, dir, NULL, false, out, e); }

tn_status disk_prune(mem m, const char *dir, uint64_t max_bytes, disk_stats *out, err *e) {
    return prune(m, AT_FDCWD, dir, max_bytes, out, e);
}

/* ---- one file ---- */

/* NULL, or what is wrong. k NULL = any key. */
static const char *judge(const unsigned char *data, size_t size, const cache_key *k, file_head *h) {
    if (size < sizeof *h) return "too short";
    memcpy(h, data, sizeof *h);
    if (memcmp(h->magic, magic, sizeof magic) != 0) return "not a kernel file";
    if (h->version != FORMAT_VERSION) return "another format version";
    if (h->n_variant > size || h->n_text > size || h->n_image > size) return "wrong sizes"; /* no sum can overflow now */
    if (h->n_variant + h->n_text + h->n_image != size - sizeof *h) return "wrong sizes";
    hash128 c = hash_bytes128(data + sizeof *h, size - sizeof *h);
    if (c.lo != h->content.lo || c.hi != h->content.hi) return "wrong content hash";
    if (!k) return NULL;
    bool same = h->n_variant == strlen(k->variant) && h->n_text == k->n_text &&
                memcmp(data + sizeof *h, k->variant, h->n_variant) == 0 &&
                (k->n_text == 0 || memcmp(data + sizeof *h + h->n_variant, k->text, k->n_text) == 0);
    return same ? NULL : "another kernel";
}

bool disk_load(disk *d, const cache_key *k, unsigned char **out_image, size_t *out_size) {
    char name[NAME_BYTES];
    key_name(k, name);
    int fd = openat(d->fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno != ELOOP) return false;
    err e = { 0 };
    unsigned char *data = NULL;
    size_t size = 0;
    file_head h;
    const char *wrong = "a symbolic link";
    if (fd >= 0) {
        wrong = distrust(fd);
        tn_status st = wrong ? TN_OK : file_read_all(d->mem, fd, MAX_FILE, &data, &size, &e);
        if (!wrong) wrong = st ? e.text : judge(data, size, k, &h);
        if (!wrong) futimens(fd, NULL); /* the last use; a read-only directory keeps the old one */
        close(fd);
        if (st == TN_ERR_NOMEM) return false; /* no fault of the file */
    }
    if (wrong) {
        say(d, "a broken file was removed", wrong);
        unlinkat(d->fd, name, 0);
        mem_free(d->mem, data, size);
        return false;
    }
    /* The image is moved to the front of the same memory, which then shrinks to it. */
    size_t n = (size_t)h.n_image;
    memmove(data, data + (size - n), n);
    unsigned char *image = mem_realloc(d->mem, data, size, n ? n : 1);
    if (!image) {
        mem_free(d->mem, data, size);
        return false;
    }
    *out_image = image;
    *out_size = n;
    return true;
}

/* The whole file in memory, so that it is hashed and written in one piece. */
static unsigned char *compose(mem m, const cache_key *k, const unsigned char *image, size_t n_image, size_t *out_size) {
    file_head h = { .version = FORMAT_VERSION, .n_variant = strlen(k->variant), .n_text = k->n_text, .n_image = n_image };
    if (n_image > MAX_FILE / 2 || k->n_text > MAX_FILE / 4 || h.n_variant > MAX_FILE / 8) return NULL;
    memcpy(h.magic, magic, sizeof magic);
    size_t n_variant = (size_t)h.n_variant, size = sizeof h + n_variant + k->n_text + n_image;
    unsigned char *data = mem_alloc(m, size);
    if (!data) return NULL;
    unsigned char *at = data + sizeof h;
    memcpy(at, k->variant, n_variant);
    if (k->n_text) memcpy(at + n_variant, k->text, k->n_text);
    if (n_image) memcpy(at + n_variant + k->n_text, image, n_image);
    h.content = hash_bytes128(at, size - sizeof h);
    memcpy(data, &h, sizeof h);
    *out_size = size;
    return data;
}

/* 0, or the errno of the step that failed. Nothing is left behind on failure. */
static int write_file(disk *d, const char *name, const unsigned char *data, size_t size) {
    int why = file_replace(d->fd, name, &(file_piece){ data, size }, 1, 0600, true);
    if (!why) fsync(d->fd); /* the name survives a power cut; when not, the kernel is built again */
    return why;
}

/* Keeps the directory within its bound. It is read only when the estimate says so and now and then, for other writers' sake. */
static void account(disk *d, uint64_t size) {
    pthread_mutex_lock(&d->lock);
    bool look = d->stores % RESCAN_STORES == 0;
    d->bytes += size;
    d->stores++;
    if (look || d->bytes > d->bound) {
        disk_stats s;
        err e;
        tn_status st = scan(d->fd, ".", NULL, false, &s, &e);
        /* An eighth less than allowed, so that a full cache is not read at every store. */
        if (st == TN_OK && s.bytes > d->bound) st = prune(d->mem, d->fd, ".", d->bound - d->bound / 8, &s, &e);
        if (st == TN_OK) d->bytes = s.bytes;
        d->stores = 1;
    }
    pthread_mutex_unlock(&d->lock);
}

void disk_store(disk *d, const cache_key *k, const unsigned char *image, size_t size) {
    if (d->no_store) return;
    char name[NAME_BYTES];
    key_name(k, name);
    size_t n = 0;
    unsigned char *data = compose(d->mem, k, image, size, &n);
    if (!data) return;
    if (n <= d->bound) { /* else it would only push everything else out */
        int why = write_file(d, name, data, n);
        if (why == 0)
            account(d, n);
        else if (!atomic_exchange(&d->no_store, true))
            say(d, "new kernels are not kept any more", strerror(why));
    }
    mem_free(d->mem, data, n);
}

bool disk_store_program(disk *d, hash128 key, const file_piece *pieces, int n) {
    char name[NAME_BYTES];
    uint64_t size = 0;
    for (int i = 0; i < n; i++) size += pieces[i].n;
    hash_name(key, PROGRAM_SUFFIX, name);
    if (d->no_store || size > d->bound / 2 || file_replace(d->fd, name, pieces, n, 0600, false)) return false;
    account(d, size);
    return true;
}

int disk_open_program(disk *d, hash128 key) {
    char name[NAME_BYTES];
    hash_name(key, PROGRAM_SUFFIX, name);
    const int how = O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    int fd = openat(d->fd, name, O_RDWR | how);
    if (fd < 0 && errno != ENOENT) fd = openat(d->fd, name, O_RDONLY | how);
    const char *wrong = fd < 0 ? NULL : distrust(fd);
    if (wrong) {
        say(d, name, wrong);
        close(fd);
        return -1;
    }
    if (fd >= 0) futimens(fd, NULL); /* the last use */
    return fd;
}

void disk_remove(disk *d, const cache_key *k) {
    char name[NAME_BYTES];
    key_name(k, name);
    unlinkat(d->fd, name, 0);
}

bool disk_read(disk *d, const char *name, size_t limit, unsigned char **out, size_t *out_size) {
    err e;
    *out = NULL, *out_size = 0;
    int fd = openat(d->fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    const char *wrong = distrust(fd);
    if (!wrong && file_read_all(d->mem, fd, limit, out, out_size, &e)) wrong = e.text;
    close(fd);
    if (wrong) say(d, name, wrong);
    return !wrong;
}

/* A descriptor of the directory that holds its lock, which goes when it is closed; -1. One who does not come to an end in ten
 * seconds is not waited for: then the worst is that one of two updates is lost. */
static int lock_directory(disk *d) {
    int fd = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int tries = 0; fd >= 0 && tries < 1000 && flock(fd, LOCK_EX | LOCK_NB); tries++) {
        if (errno != EWOULDBLOCK && errno != EINTR) break;
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    }
    return fd;
}

tn_status disk_update(disk *d, const char *name, size_t limit, disk_edit_fn edit, void *ud, err *e) {
    unsigned char *old = NULL, *data = NULL;
    size_t n_old = 0, n = 0;
    if (d->no_store) return err_set(e, TN_ERR_IO, "%s/%s cannot be written", d->dir, name);
    int lock = lock_directory(d);
    disk_read(d, name, limit, &old, &n_old);
    tn_status st = edit(ud, old, n_old, &data, &n, e);
    int why = st || !data ? 0 : write_file(d, name, data, n);
    if (why) st = err_set(e, TN_ERR_IO, "%s/%s: %s", d->dir, name, strerror(why));
    mem_free(d->mem, old, n_old);
    mem_free(d->mem, data, n);
    if (lock >= 0) close(lock);
    return st;
}

tn_status disk_check_file(mem m, const char *path, err *e) {
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return err_set(e, TN_ERR_IO, "%s: %s", path, strerror(errno));
    unsigned char *data;
    size_t size;
    tn_status st = file_read_all(m, fd, MAX_FILE, &data, &size, e);
    close(fd);
    if (st) return st;
    file_head h;
    const char *wrong = judge(data, size, NULL, &h);
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (!wrong && is_kernel_name(base)) { /* and the name is that of the key */
        char *variant = mem_alloc(m, (size_t)h.n_variant + 1);
        if (variant) {
            memcpy(variant, data + sizeof h, (size_t)h.n_variant);
            char name[NAME_BYTES];
            key_name(&(cache_key){ variant, (const char *)data + sizeof h + h.n_variant, (size_t)h.n_text }, name);
            if (strcmp(name, base) != 0) wrong = "the name of another kernel";
            mem_free(m, variant, (size_t)h.n_variant + 1);
        }
    }
    mem_free(m, data, size);
    return wrong ? err_set(e, TN_ERR_IO, "%s: %s", path, wrong) : TN_OK;
}
