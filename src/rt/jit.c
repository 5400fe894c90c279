/* jit.c - implementation of jit.h: regions, blocks in them, symbols, and what debuggers and profilers are told. */
#include "rt/jit.h"
#include "rt/jit_names.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REGION_MIN = 1 << 20, REGION_MAX = 16 << 20, BLOCK_ALIGN = 64, NAME_MAX_ = 96 };

typedef struct block { /* of a region, in the order of offsets; together they cover it */
    size_t offset, size;
    bool used;
    struct block *next;
} block;

typedef struct region {
    unsigned char *run; /* an anonymous file, mapped to be run */
    int fd;             /* the file, to be written */
    dev_t dev;          /* .. while the number still stands for it: a host may close what it does not know */
    ino_t ino;
    size_t size;
    bool foreign; /* of the parent of a fork, or its file is gone */
    block *blocks;
    struct region *next;
} region;

typedef struct entry {
    char name[24];
    void *at;
} entry;

struct jit_code {
    region *region; /* NULL: pages of its own */
    block *block;
    unsigned char *at;
    size_t size;
    entry *entries; /* [n_entries] */
    int n_entries;
    jit_object told; /* to debuggers and the unwinder */
};

struct jit {
    mem mem;
    pthread_mutex_t lock; /* of the regions and their blocks */
    region *regions;
    size_t next_size;
    bool single; /* pages of its own for each module */
    bool loaded; /* the first image, which has pages of its own too */
    bool name_code;
    volatile int *alive; /* a page that is cleared in the child of a fork: then the regions belong to the parent */
};

/* ---- open ---- */

tn_status jit_open(mem m, bool name_code, jit **out, err *e) {
    *out = NULL;
    jit *j = mem_alloc(m, sizeof *j);
    if (!j) return err_set(e, TN_ERR_NOMEM, "out of memory for machine code");
    j->mem = m;
    j->next_size = REGION_MIN;
    j->name_code = name_code;
    j->single = name_code; /* perf reads the names of anonymous pages only, and a region's are a file's */
    pthread_mutex_init(&j->lock, NULL);
    *out = j;
    return TN_OK;
}

static bool is_there(const region *r) {
    struct stat s;
    return fstat(r->fd, &s) == 0 && s.st_dev == r->dev && s.st_ino == r->ino;
}

static void free_regions(jit *j) {
    for (region *r = j->regions, *next; r; r = next) {
        next = r->next;
        for (block *b = r->blocks, *after; b; b = after) {
            after = b->next;
            mem_free(j->mem, b, sizeof *b);
        }
        if (is_there(r)) close(r->fd);
        munmap(r->run, r->size);
        mem_free(j->mem, r, sizeof *r);
    }
    j->regions = NULL;
}

void jit_close(jit *j) {
    if (!j) return;
    free_regions(j);
    if (j->alive) munmap((void *)(uintptr_t)j->alive, (size_t)sysconf(_SC_PAGESIZE));
    pthread_mutex_destroy(&j->lock);
    mem_free(j->mem, j, sizeof *j);
}

/* ---- regions; called with the lock held ---- */

/* False when the system does not allow it. */
static bool map_region(region *r) {
    struct stat s;
    r->fd = memfd_create("tenon-code", MFD_CLOEXEC);
    if (r->fd < 0) return false;
    void *x = MAP_FAILED;
    if (ftruncate(r->fd, (off_t)r->size) == 0 && fstat(r->fd, &s) == 0)
        x = mmap(NULL, r->size, PROT_READ | PROT_EXEC, MAP_SHARED, r->fd, 0);
    if (x == MAP_FAILED) {
        close(r->fd);
        return false;
    }
    r->run = x, r->dev = s.st_dev, r->ino = s.st_ino;
    return true;
}

/* The page that tells of a fork. Without one, pages are not shared. */
static bool watch_forks(jit *j) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *p = j->alive ? MAP_FAILED : mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return j->alive != NULL;
    if (madvise(p, page, MADV_WIPEONFORK) != 0) {
        munmap(p, page);
        return false;
    }
    j->alive = p;
    *j->alive = 1;
    return true;
}

/* A new region at the head of the list. Where the system does not let files of memory run, none is made and j->single is set.
 * False for want of memory. */
static bool add_region(jit *j, size_t at_least) {
    region *r = mem_alloc(j->mem, sizeof *r);
    block *b = mem_alloc(j->mem, sizeof *b);
    bool mapped = false;
    if (r && b) {
        for (r->size = j->next_size; r->size < at_least;) r->size *= 2;
        mapped = watch_forks(j) && map_region(r);
        j->single |= !mapped;
    }
    if (!mapped) {
        bool ok = r && b;
        mem_free(j->mem, r, sizeof *r);
        mem_free(j->mem, b, sizeof *b);
        return ok;
    }
    b->size = r->size;
    r->blocks = b;
    r->next = j->regions;
    j->regions = r;
    if (j->next_size < REGION_MAX) j->next_size *= 2;
    return true;
}

static block *free_block(const region *r, size_t size) { /* the first that is large enough */
    block *b = r->foreign ? NULL : r->blocks;
    while (b && (b->used || b->size < size)) b = b->next;
    return b;
}

/* Takes a free block and gives back what is left of it. False for want of memory to note that. */
static bool take_block(jit *j, block *b, size_t size) {
    if (b->size > size) {
        block *rest = mem_alloc(j->mem, sizeof *rest);
        if (!rest) return false;
        *rest = (block){ b->offset + size, b->size - size, false, b->next };
        b->size = size;
        b->next = rest;
    }
    b->used = true;
    return true;
}

static void give_block(jit *j, region *r, block *b) {
    b->used = false;
    for (block *x = r->blocks; x; x = x->next)
        while (!x->used && x->next && !x->next->used) {
            block *gone = x->next;
            x->size += gone->size;
            x->next = gone->next;
            mem_free(j->mem, gone, sizeof *gone);
        }
}

/* In the child of a fork nothing is written to the parent's regions. They stay mapped: code of before the fork runs in both. */
static void notice_fork(jit *j) {
    if (!j->alive || *j->alive) return;
    for (region *r = j->regions; r; r = r->next) r->foreign = true;
    *j->alive = 1;
}

/* A place in a region, or none (c->region stays NULL) where there are no regions. False for want of memory. */
static bool find_place(jit *j, jit_code *c) {
    size_t size = (c->size + BLOCK_ALIGN - 1) & ~(size_t)(BLOCK_ALIGN - 1);
    if (!j->loaded && !j->regions) { /* a region costs more than pages of its own: many a process loads one image */
        j->loaded = true;
        return true;
    }
    for (int attempt = 0; attempt < 2 && !j->single; attempt++) {
        for (region *r = j->regions; r; r = r->next) {
            block *b = free_block(r, size);
            if (!b || (r->foreign = !is_there(r))) continue;
            if (!take_block(j, b, size)) return false;
            c->region = r, c->block = b;
            return true;
        }
        if (attempt == 0 && !add_region(j, size)) return false;
    }
    return true;
}

/* ---- symbols ---- */

static const struct {
    const char *name;
    void (*at)(void);
} helpers[] = {
#define F(name)                                                                                                                \
    { #name, (void (*)(void))name }
    F(exp),  F(logf),  F(log),  F(log1pf), F(log1p),  F(expm1f), F(expm1),  F(sinf),  F(sin),    F(cosf),
    F(cos),  F(tanf),  F(tan),  F(asinf),  F(asin),   F(acosf),  F(acos),   F(atanf), F(atan),   F(sinhf),
    F(sinh), F(coshf), F(cosh), F(tanh),   F(asinhf), F(asinh),  F(acoshf), F(acosh), F(atanhf), F(atanh),
    F(erf),  F(powf),  F(pow),  F(fmodf),  F(fmod),   F(exp2),   F(log2),   F(erfc),  F(atan2),  F(hypot),
#undef F
};

static tn_status link_image(const device_image *image, unsigned char *at, err *e) {
    memcpy(at, image->bytes, image->n_bytes);
    for (int i = 0; i < image->n_imports; i++) {
        const device_symbol *s = &image->imports[i];
        uintptr_t to = 0;
        for (size_t k = 0; k < COUNT_OF(helpers) && !to; k++)
            if (!strcmp(helpers[k].name, s->name)) to = (uintptr_t)helpers[k].at;
        if (!to) return err_set(e, TN_ERR_DEVICE, "machine code wants the function '%s', which is not known here", s->name);
        memcpy(at + s->offset, &to, sizeof to);
    }
    return TN_OK;
}

static bool is_entry(const char *name) { return !strncmp(name, "tn_", 3); }

static bool copy_entries(jit *j, const device_image *image, jit_code *c) {
    for (int i = 0; i < image->n_functions; i++) c->n_entries += is_entry(image->functions[i].name);
    c->entries = mem_alloc(j->mem, (size_t)c->n_entries * sizeof *c->entries + 1);
    if (!c->entries) return false;
    int n = 0;
    for (int i = 0; i < image->n_functions; i++) {
        const device_symbol *s = &image->functions[i];
        if (!is_entry(s->name)) continue;
        size_t length = strlen(s->name), most = sizeof c->entries[n].name - 1;
        memcpy(c->entries[n].name, s->name, length < most ? length : most);
        c->entries[n++].at = c->at + s->offset;
    }
    return true;
}

void *jit_find(const jit_code *c, const char *name) {
    int guess = !strncmp(name, "tn_kernel_", 10) ? 1 : 0; /* entries stand in order: tn_main, tn_kernel_0, .. */
    for (const char *p = name + 10; guess && *p >= '0' && *p <= '9' && guess < c->n_entries; p++)
        guess = p == name + 10 ? *p - '0' : guess * 10 + (*p - '0');
    if (!strncmp(name, "tn_kernel_", 10)) guess++;
    if (guess >= 0 && guess < c->n_entries && !strcmp(c->entries[guess].name, name)) return c->entries[guess].at;
    for (int i = 0; i < c->n_entries; i++)
        if (!strcmp(c->entries[i].name, name)) return c->entries[i].at;
    return NULL;
}

/* ---- loading ---- */

static void code_free(jit *j, jit_code *c) {
    mem_free(j->mem, c->entries, (size_t)c->n_entries * sizeof *c->entries + 1);
    mem_free(j->mem, c, sizeof *c);
}

/* Through the file: no address of code is ever writable. */
static tn_status load_shared(jit *j, const device_image *image, jit_code *c, err *e) {
    unsigned char *linked = image->n_imports ? mem_alloc(j->mem, c->size) : NULL;
    if (image->n_imports && !linked) return err_set(e, TN_ERR_NOMEM, "out of memory for machine code");
    const unsigned char *bytes = linked ? linked : image->bytes;
    tn_status st = linked ? link_image(image, linked, e) : TN_OK;
    for (size_t done = 0; !st && done < c->size;) {
        ssize_t n = pwrite(c->region->fd, bytes + done, c->size - done, (off_t)(c->block->offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) st = err_set(e, TN_ERR_NOMEM, "no memory for %zu bytes of machine code: %s", c->size, strerror(errno));
        if (n > 0) done += (size_t)n;
    }
    mem_free(j->mem, linked, c->size);
    c->at = c->region->run + c->block->offset;
    return st;
}

static tn_status load_single(const device_image *image, jit_code *c, err *e) {
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE; /* all pages are written next: faults cost more */
    void *p = mmap(NULL, c->size, PROT_READ | PROT_WRITE, how, -1, 0);
    if (p == MAP_FAILED)
        return err_set(e, TN_ERR_NOMEM, "no memory for %zu bytes of machine code: %s", c->size, strerror(errno));
    tn_status st = link_image(image, p, e);
    if (!st && mprotect(p, c->size, PROT_READ | PROT_EXEC) != 0)
        st = err_set(e, TN_ERR_DEVICE, "the system does not let machine code run: %s", strerror(errno));
    if (st)
        munmap(p, c->size);
    else
        c->at = p;
    return st;
}

tn_status jit_load(jit *j, const device_image *image, jit_code **out, err *e) {
    *out = NULL;
    jit_code *c = mem_alloc(j->mem, sizeof *c);
    if (!c) return err_set(e, TN_ERR_NOMEM, "out of memory for machine code");
    c->size = image->n_bytes;
    pthread_mutex_lock(&j->lock);
    notice_fork(j);
    bool room = find_place(j, c);
    pthread_mutex_unlock(&j->lock);
    tn_status st = !room       ? err_set(e, TN_ERR_NOMEM, "out of memory for machine code")
                   : c->region ? load_shared(j, image, c, e)
                               : load_single(image, c, e);
    if (!st && !copy_entries(j, image, c)) st = err_set(e, TN_ERR_NOMEM, "out of memory for machine code");
    if (st) {
        if (c->at || c->region)
            jit_drop(j, c);
        else
            code_free(j, c);
        return st;
    }
    if (j->name_code) {
        jit_names_perf(image, c->at);
        jit_names_add(j->mem, image, c->at, &c->told);
    }
    *out = c;
    return TN_OK;
}

void jit_drop(jit *j, jit_code *c) {
    if (!c) return;
    jit_names_remove(j->mem, &c->told);
    if (!c->region) {
        munmap(c->at, c->size);
    } else {
        pthread_mutex_lock(&j->lock);
        give_block(j, c->region, c->block); /* a note of this process only, in the child of a fork too */
        pthread_mutex_unlock(&j->lock);
    }
    code_free(j, c);
}
