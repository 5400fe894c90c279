/* disk.h - the part of the kernel cache that outlives the process: one file a kernel in one private directory.
 *
 * A file is named by the 128-bit hash of its key and holds a header, the whole key and the image. It is written under a
 * temporary name, synced and renamed, so that a reader finds the old file, the new file or none, whatever happens to the
 * writer. A file is believed only when it belongs to the user, nobody else may write to it, and its size, its content hash and
 * its key are right; any other is removed and built again.
 * Several processes may share the directory: they replace each other's files with equal ones.
 *
 * The disk is a convenience: nothing here fails for the caller. What does not work is logged once and done without.
 * Threads: safe. */
#ifndef TN_RT_DISK_H
#define TN_RT_DISK_H

#include "rt/file.h"

/* What a kernel depends on: its text and, in one line, everything else (compiler, flags, processor, format). */
typedef struct cache_key {
    const char *variant;
    const char *text;
    size_t n_text;
} cache_key;
hash128 cache_key_hash(const cache_key *k);

typedef struct disk disk;

typedef struct disk_opts {
    mem mem;
    const char *dir; /* made, with its parents, when missing (mode 0700) */
    uint64_t bound;  /* bytes; the least recently used files go first */
    void (*log)(void *ud, tn_log_level level, const char *text);
    void *log_ud;
} disk_opts;

/* NULL, with the reason logged, when the directory cannot be used: not a directory, someone else's, or writable by others. */
disk *disk_open(const disk_opts *o);
void disk_close(disk *d); /* NULL is fine */
const char *disk_dir(const disk *d);
bool disk_writable(const disk *d);

/* The image, allocated from disk_opts.mem (free with mem_free(m, image, size)); false when there is none to be trusted. */
bool disk_load(disk *d, const cache_key *k, unsigned char **out_image, size_t *out_size);
void disk_store(disk *d, const cache_key *k, const unsigned char *image, size_t size);
void disk_remove(disk *d, const cache_key *k);

/* Programs (drive/save.c), a file each: stored whole, if it takes no more than half of the bound, which kernels and programs
 * share; opened to be mapped, and to be written to where that is allowed, -1: there is none to be trusted. What is in it the
 * caller checks. */
bool disk_store_program(disk *d, hash128 key, const file_piece *pieces, int n);
int disk_open_program(disk *d, hash128 key);

/* Other files there, by name. disk_read: memory of disk_opts.mem; false when there is none that can be read. disk_update: what
 * `edit` makes of the old text takes its place in one step, while no other process updates any; edit leaves the old one alone
 * (NULL, 0: there is none), takes the new one from disk_opts.mem, and says with *out NULL that nothing is to change. */
bool disk_read(disk *d, const char *name, size_t limit, unsigned char **out, size_t *out_size);
typedef tn_status (*disk_edit_fn)(void *ud, const unsigned char *old, size_t n_old, unsigned char **out, size_t *out_size,
                                  err *e);
tn_status disk_update(disk *d, const char *name, size_t limit, disk_edit_fn edit, void *ud, err *e);

/* Whole directories, for people: no open disk is needed. A directory that does not exist is empty. */
typedef struct disk_stats {
    uint64_t files, bytes;                 /* kernels and programs */
    uint64_t unfinished;                   /* temporary files and directories, of running or killed processes */
    int64_t oldest, newest;                /* last use, seconds since 1970; 0 when empty */
    uint64_t removed_files, removed_bytes; /* by disk_prune */
} disk_stats;
tn_status disk_get_stats(const char *dir, disk_stats *out, err *e);
/* Removes the least recently used kernels until at most max_bytes are left, and unfinished work older than an hour. */
tn_status disk_prune(mem m, const char *dir, uint64_t max_bytes, disk_stats *out, err *e);

/* One file, as disk_load judges it: TN_OK or what is wrong with it. */
tn_status disk_check_file(mem m, const char *path, err *e);

#endif
