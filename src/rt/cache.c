/* cache.c - implementation of cache.h: the table of loaded modules, and loading. */
#include "rt/cache.h"
#include "rt/file.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BUCKETS = 1024 };

typedef enum code_state { CODE_BUILDING, CODE_READY, CODE_PRIVATE /* in no table */ } code_state;

struct code {
    hash128 key;
    code_state state;
    int refs;
    void *handle;
    size_t bytes;
    code *next;          /* in the bucket */
    code *older, *newer; /* in the list of modules that nobody holds */
};

struct cache {
    mem mem;
    disk *disk; /* may be NULL */
    uint64_t bound;
    pthread_mutex_t lock; /* of what follows, and of all fields of modules in the table */
    pthread_cond_t built; /* some CODE_BUILDING ended */
    code *bucket[BUCKETS];
    code *newest, *oldest; /* unheld modules */
    uint64_t idle_bytes;   /* of those */
    cache_counts counts;
};

/* ---- loading ---- */

/* dlopen takes two equal paths for the same object, and descriptor numbers come back. So each loaded module spells the path in
 * a way of its own: the address of its struct, unique in the process while it is loaded, in binary with "/." for 1 and "/" for
 * 0. */
static void memfd_path(int fd, const code *owner, char *out, size_t size) {
    int n = snprintf(out, size, "/proc/self/fd");
    for (uintptr_t bits = (uintptr_t)owner; bits; bits >>= 1) n += snprintf(out + n, size - (size_t)n, bits & 1 ? "/." : "/");
    snprintf(out + n, size - (size_t)n, "/%d", fd);
}

static tn_status load_from_memory(const code *owner, const unsigned char *image, size_t size, void **out, err *e) {
    int fd = memfd_create("tenon-kernel", MFD_CLOEXEC);
    if (fd < 0) return err_set(e, TN_ERR_DEVICE, "cannot make an anonymous file for a kernel: %s", strerror(errno));
    tn_status st = TN_OK;
    if (!file_write_all(fd, image, size)) {
        st = err_set(e, TN_ERR_DEVICE, "cannot write %zu bytes of a kernel to memory: %s", size, strerror(errno));
    } else {
        char path[192];
        memfd_path(fd, owner, path, sizeof path);
        *out = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!*out) {
            const char *why = dlerror();
            st = err_set(e, TN_ERR_DEVICE, "cannot load a kernel (through /proc): %s", why ? why : "no reason given");
        }
    }
    close(fd); /* the mapping keeps the file */
    return st;
}

/* Where no /proc is mounted: a file in a private directory, for as long as dlopen takes. */
static tn_status load_from_file(const code *owner, const unsigned char *image, size_t size, void **out, err *e) {
    char dir[PATH_BYTES], path[PATH_BYTES + 32];
    int next = 0;
    tn_status st = TN_OK;
    while (!*out && file_private_dir(NULL, &next, dir)) {
        snprintf(path, sizeof path, "%s/%llx.so", dir, (unsigned long long)(uintptr_t)owner);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        bool written = fd >= 0 && file_write_all(fd, image, size);
        if (!written) st = err_set(e, TN_ERR_DEVICE, "cannot write a kernel to %s: %s", dir, strerror(errno));
        if (fd >= 0) close(fd);
        if (written && !(*out = dlopen(path, RTLD_NOW | RTLD_LOCAL))) {
            const char *why = dlerror();
            st = err_set(e, TN_ERR_DEVICE, "cannot load a kernel from %s: %s", dir, why ? why : "no reason given");
        }
        file_remove_flat(AT_FDCWD, dir);
    }
    return *out ? TN_OK : st ? st : err_set(e, TN_ERR_DEVICE, "cannot load a kernel: no /proc, and no directory to write to");
}

static tn_status load_image(const code *owner, const unsigned char *image, size_t size, void **out, err *e) {
    *out = NULL;
    tn_status st = load_from_memory(owner, image, size, out, e);
    return st && access("/proc/self/fd", X_OK) ? load_from_file(owner, image, size, out, e) : st;
}

/* From disk, else built and stored. No lock is held, so the results go to `m`, not to `owner`, which may be in the table. */
static tn_status make_code(cache *c, const cache_key *k, bool fresh, cache_build_fn build, void *ud, const code *owner, code *m,
                           bool *out_hit, err *e) {
    unsigned char *image = NULL;
    size_t size = 0;
    *out_hit = false;
    if (!fresh && c->disk && disk_load(c->disk, k, &image, &size)) {
        *out_hit = load_image(owner, image, size, &m->handle, e) == TN_OK;
        m->bytes = size;
        mem_free(c->mem, image, size);
        if (*out_hit) return TN_OK;
        disk_remove(c->disk, k); /* intact, yet it does not load here: a library it needs has gone, for instance */
    }
    tn_status st = build(ud, &image, &size, e);
    if (st) return st;
    if ((st = load_image(owner, image, size, &m->handle, e)) == TN_OK && !fresh && c->disk) disk_store(c->disk, k, image, size);
    m->bytes = size;
    mem_free(c->mem, image, size);
    return st;
}

/* ---- the table; called with the lock held ---- */

static code **slot_of(cache *c, hash128 key) {
    code **at = &c->bucket[key.lo % BUCKETS];
    while (*at && ((*at)->key.lo != key.lo || (*at)->key.hi != key.hi)) at = &(*at)->next;
    return at;
}
static void idle_add(cache *c, code *m) {
    m->older = c->newest;
    m->newer = NULL;
    if (c->newest)
        c->newest->newer = m;
    else
        c->oldest = m;
    c->newest = m;
    c->idle_bytes += m->bytes;
}
static void idle_remove(cache *c, code *m) {
    *(m->newer ? &m->newer->older : &c->newest) = m->older;
    *(m->older ? &m->older->newer : &c->oldest) = m->newer;
    m->older = m->newer = NULL;
    c->idle_bytes -= m->bytes;
}
static void table_remove(cache *c, code *m) {
    *slot_of(c, m->key) = m->next;
    m->next = NULL;
}
/* Takes out what is over the bound; the caller frees the chain after unlocking, for unloading may take long. */
static code *evict(cache *c) {
    code *out = NULL;
    while (c->idle_bytes > c->bound) {
        code *m = c->oldest;
        idle_remove(c, m);
        table_remove(c, m);
        c->counts.modules--;
        c->counts.bytes -= m->bytes;
        m->next = out;
        out = m;
    }
    return out;
}

static void code_free_chain(cache *c, code *m) {
    for (code *next; m; m = next) {
        next = m->next;
        if (m->handle) dlclose(m->handle);
        mem_free(c->mem, m, sizeof *m);
    }
}

/* ---- the interface ---- */

tn_status cache_open(const cache_opts *o, cache **out, err *e) {
    *out = NULL;
    cache *c = mem_alloc(o->mem, sizeof *c);
    if (!c) return err_set(e, TN_ERR_NOMEM, "out of memory for the kernel cache");
    c->mem = o->mem;
    c->bound = o->memory_bytes;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->built, NULL);
    if (o->dir) c->disk = disk_open(&(disk_opts){ o->mem, o->dir, o->disk_bytes, o->log, o->log_ud });
    *out = c;
    return TN_OK;
}

void cache_close(cache *c) {
    if (!c) return;
    c->bound = 0;
    code_free_chain(c, evict(c));
    disk_close(c->disk);
    pthread_cond_destroy(&c->built);
    pthread_mutex_destroy(&c->lock);
    mem_free(c->mem, c, sizeof *c);
}

const char *cache_temp_dir(const cache *c) { return c->disk && disk_writable(c->disk) ? disk_dir(c->disk) : NULL; }

static tn_status get_private(cache *c, const cache_key *k, code *m, cache_build_fn build, void *ud, err *e) {
    bool hit;
    m->state = CODE_PRIVATE;
    tn_status st = make_code(c, k, true, build, ud, m, m, &hit, e);
    if (st) return st;
    pthread_mutex_lock(&c->lock);
    c->counts.builds++;
    c->counts.modules++;
    c->counts.bytes += m->bytes;
    pthread_mutex_unlock(&c->lock);
    return TN_OK;
}

/* The module when it is there, after waiting for whoever builds it; else NULL, and m has its place in the table. */
static code *find_or_claim(cache *c, code *m) {
    pthread_mutex_lock(&c->lock);
    code **at;
    while (*(at = slot_of(c, m->key)) && (*at)->state == CODE_BUILDING) pthread_cond_wait(&c->built, &c->lock);
    code *have = *at;
    if (have) {
        if (have->refs++ == 0) idle_remove(c, have);
        c->counts.memory_hits++;
    } else {
        *at = m;
    }
    pthread_mutex_unlock(&c->lock);
    return have;
}

tn_status cache_get(cache *c, const cache_key *k, bool fresh, cache_build_fn build, void *ud, code **out, bool *out_hit,
                    err *e) {
    bool hit = false;
    if (!out_hit) out_hit = &hit;
    *out = NULL;
    *out_hit = false;
    code *m = mem_alloc(c->mem, sizeof *m);
    if (!m) return err_set(e, TN_ERR_NOMEM, "out of memory for a kernel");
    m->key = cache_key_hash(k);
    m->refs = 1;
    tn_status st;
    if (fresh) {
        if ((st = get_private(c, k, m, build, ud, e)))
            mem_free(c->mem, m, sizeof *m);
        else
            *out = m;
        return st;
    }
    code *have = find_or_claim(c, m);
    if (have) {
        mem_free(c->mem, m, sizeof *m);
        *out_hit = true;
        *out = have;
        return TN_OK;
    }
    code made = { 0 };
    st = make_code(c, k, false, build, ud, m, &made, out_hit, e);
    pthread_mutex_lock(&c->lock);
    if (st) {
        table_remove(c, m);
    } else {
        m->state = CODE_READY;
        m->handle = made.handle;
        m->bytes = made.bytes;
        c->counts.modules++;
        c->counts.bytes += m->bytes;
        ++*(*out_hit ? &c->counts.disk_hits : &c->counts.builds);
    }
    pthread_cond_broadcast(&c->built);
    pthread_mutex_unlock(&c->lock);
    if (st)
        mem_free(c->mem, m, sizeof *m);
    else
        *out = m;
    return st;
}

void cache_drop(cache *c, code *m) {
    if (!m) return;
    code *gone = NULL;
    pthread_mutex_lock(&c->lock);
    if (--m->refs == 0) {
        if (m->state == CODE_PRIVATE) {
            c->counts.modules--;
            c->counts.bytes -= m->bytes;
            gone = m;
        } else {
            idle_add(c, m);
            gone = evict(c);
        }
    }
    pthread_mutex_unlock(&c->lock);
    code_free_chain(c, gone);
}

void *code_symbol(const code *m, const char *name) { return dlsym(m->handle, name); }

static void count(cache *c, uint64_t *counter) {
    pthread_mutex_lock(&c->lock);
    ++*counter;
    pthread_mutex_unlock(&c->lock);
}

bool cache_load_blob(cache *c, const cache_key *k, unsigned char **out_image, size_t *out_size) {
    if (!c->disk || !disk_load(c->disk, k, out_image, out_size)) return false;
    count(c, &c->counts.disk_hits);
    return true;
}
void cache_free_blob(cache *c, unsigned char *image, size_t size) { mem_free(c->mem, image, size); }
void cache_store_blob(cache *c, const cache_key *k, const unsigned char *image, size_t size) {
    count(c, &c->counts.builds);
    if (c->disk) disk_store(c->disk, k, image, size);
}
bool cache_keeps_blobs(const cache *c) { return c->disk && disk_writable(c->disk); }
void cache_remove_blob(cache *c, const cache_key *k) {
    if (c->disk) disk_remove(c->disk, k);
}

disk *cache_disk(const cache *c) { return c->disk; }

void cache_get_counts(cache *c, cache_counts *out) {
    pthread_mutex_lock(&c->lock);
    *out = c->counts;
    pthread_mutex_unlock(&c->lock);
}
