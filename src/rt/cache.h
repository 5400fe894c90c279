/* cache.h - kernels that were built before: loaded modules in memory, files on disk, and at most one build of a key at a time.
 *
 * In: a key (disk.h) and a function that builds its image, the bytes of a shared object. Out: a loaded module, counted: it
 * stays loaded while anybody holds it, and afterwards for as long as the memory bound allows, least recently used out first.
 *
 * Loading: the verified bytes are copied to a memfd, an anonymous file that no other process can open by name, and dlopen loads
 * that. So what was checked is what runs, a directory mounted noexec is no hindrance and a killed process leaves nothing. Where
 * there is no /proc to name such a file by, a file in a private directory stands in for the time of dlopen.
 *
 * Threads: safe. The build function runs without a lock; others who want the same key wait for it. */
#ifndef TN_RT_CACHE_H
#define TN_RT_CACHE_H

#include "rt/disk.h"

typedef struct cache cache;
typedef struct code code; /* a loaded module */

typedef struct cache_opts {
    mem mem;
    const char *dir; /* NULL = memory only */
    uint64_t disk_bytes;
    uint64_t memory_bytes; /* of modules that nobody holds */
    void (*log)(void *ud, tn_log_level level, const char *text);
    void *log_ud;
} cache_opts;

/* Fails only for want of memory: a directory that cannot be used is logged and done without. */
tn_status cache_open(const cache_opts *o, cache **out, err *e);
void cache_close(cache *c); /* after the last module was dropped; NULL is fine */

/* Where the compiler may put its private directory, so that pruning finds what a killed process left. NULL = nowhere. */
const char *cache_temp_dir(const cache *c);

/* Writes bytes of cache_opts.mem, freed by the cache. */
typedef tn_status (*cache_build_fn)(void *ud, unsigned char **out_image, size_t *out_size, err *e);
/* fresh: builds in any case and keeps the result from others. out_hit (may be NULL): whether memory or disk had it. */
tn_status cache_get(cache *c, const cache_key *k, bool fresh, cache_build_fn build, void *ud, code **out, bool *out_hit,
                    err *e);
void cache_drop(cache *c, code *m);                 /* NULL is fine */
void *code_symbol(const code *m, const char *name); /* NULL when there is none */

/* Images that a device loads by itself. The bytes are to be freed with cache_free_blob; false when there are none. */
bool cache_load_blob(cache *c, const cache_key *k, unsigned char **out_image, size_t *out_size);
void cache_free_blob(cache *c, unsigned char *image, size_t size);
/* What was built. Without a disk only its number is kept: see cache_keeps_blobs. */
void cache_store_blob(cache *c, const cache_key *k, const unsigned char *image, size_t size);
bool cache_keeps_blobs(const cache *c);               /* else making one is in vain */
void cache_remove_blob(cache *c, const cache_key *k); /* intact, but the device did not take it */

disk *cache_disk(const cache *c); /* NULL = memory only */

typedef struct cache_counts {
    uint64_t modules, bytes; /* loaded now */
    uint64_t memory_hits, disk_hits, builds;
} cache_counts;
void cache_get_counts(cache *c, cache_counts *out);

#endif
