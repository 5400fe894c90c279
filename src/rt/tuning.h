/* tuning.h - the database of measured schedules: one text file in the directory of the kernel cache, shared by all processes
 * that use it. A line is one kernel: its key, its time before and after in nanoseconds, and its schedule:
 *
 *     00000000000000ff 100 90 hoist; vectorize i1 16; unroll_jam i0 8; tile; multiply_add
 *
 * In: entries that were measured. Out: tables that never change, for the compile half, which reads the schedules. What cannot
 * be read is skipped and logged: without the database, kernels are as the recipes have them, with the same results. Threads:
 * tables are safe. */
#ifndef TN_RT_TUNING_H
#define TN_RT_TUNING_H

#include "ir/target.h"
#include "rt/disk.h"

#define TUNING_FILE "tuning.txt"
enum { TUNING_TEXT = 2000 }; /* bytes of a schedule; a longer one is not stored */

typedef struct tuning_entry {
    uint64_t key;
    const char *schedule;   /* letters, digits, _ = ; { } and blanks, from a letter on; in a table: its own */
    uint64_t before, after; /* ns */
} tuning_entry;

typedef struct tuning tuning;
struct tuning {
    mem mem;
    ktuning table;         /* for target.tuning */
    tuning_entry *entries; /* [table.n], by key */
    int room;              /* of both arrays */
    tuning *older;         /* the table before, which programs may still look at; freed with this one */
};

/* `base` (may be NULL) with n entries in place of those of the same keys: a new table. */
tn_status tuning_with(mem m, const tuning *base, const tuning_entry *add, int n, tuning **out, err *e);
void tuning_free(tuning *t); /* and older ones; NULL is fine */

/* What the file holds: NULL when that is nothing, or when there is no memory. */
tuning *tuning_load(mem m, disk *d, void (*log)(void *ud, tn_log_level level, const char *text), void *log_ud);
/* Entries join what is in the file. */
tn_status tuning_store(mem m, disk *d, const tuning_entry *add, int n, err *e);
/* The same for a directory, which need not exist: how many entries it has; and removing them. */
int tuning_count(mem m, const char *dir);
tn_status tuning_clear(mem m, const char *dir, int *out_removed, err *e);

/* The text of a file: for tests. Lines that are no entries are counted in *out_skipped. */
tn_status tuning_parse(mem m, const char *text, size_t n, tuning **out, int *out_skipped, err *e);

#endif
