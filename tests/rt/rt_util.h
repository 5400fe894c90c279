/* rt_util.h - what the tests of src/rt share: counting memory, a log that is kept, scratch directories, small kernels. */
#ifndef RT_UTIL_H
#define RT_UTIL_H

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Memory that counts: `calls` of the callback and bytes alive, so a leak and a wrong size when freeing both show. */
typedef struct counted {
    _Atomic int64_t calls, alive;
    _Atomic int64_t fail_at; /* this call and later ones fail; 0 = none */
} counted;
static inline void *counted_realloc(void *ud, void *ptr, size_t old_size, size_t new_size) {
    counted *c = ud;
    int64_t call = atomic_fetch_add(&c->calls, 1) + 1;
    if (new_size == 0) {
        atomic_fetch_sub(&c->alive, (int64_t)old_size);
        free(ptr);
        return NULL;
    }
    if (c->fail_at && call >= c->fail_at) return NULL;
    void *p = realloc(ptr, new_size);
    if (p) atomic_fetch_add(&c->alive, (int64_t)new_size - (int64_t)old_size);
    return p;
}
static inline mem counted_mem(counted *c) { return (mem){ counted_realloc, c }; }

typedef struct kept_log {
    _Atomic int lines;
    char last[4096];
} kept_log;
static inline void keep_line(void *ud, tn_log_level level, const char *text) {
    kept_log *k = ud;
    (void)level;
    atomic_fetch_add(&k->lines, 1);
    snprintf(k->last, sizeof k->last, "%s", text);
}

static inline char *scratch_dir(char path[64]) {
    snprintf(path, 64, "/tmp/rt-test-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}
static inline void scratch_remove(const char *path) {
    char command[256];
    chmod(path, 0700);
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}
static inline int count_files(const char *dir, const char *ending) {
    DIR *d = opendir(dir);
    int n = 0;
    if (!d) return 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        size_t len = strlen(entry->d_name), end = strlen(ending);
        n += len >= end && entry->d_name[0] != '.' && strcmp(entry->d_name + len - end, ending) == 0;
    }
    closedir(d);
    return n;
}

/* What generated code starts with. */
#define KERNEL_HEAD                                                                                                            \
    "typedef struct par { long nt; int (*next)(const struct par *, long); } par;\n"                                            \
    "#define SHARES for (int tid; (tid = p->next(p, 1)) >= 0;)\n"
/* k(slot, par, steps): slot 0 [i32] = value */
static inline char *kernel_text(char *out, size_t size, int value) {
    snprintf(out, size,
             KERNEL_HEAD
             "void k(char *const *slot, const par *p, long steps) { (void)p; (void)steps; *(int *)slot[0] = %d; }\n",
             value);
    return out;
}
static inline void write_script(const char *path, const char *body) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\n%s\n", body);
    fclose(f);
    assert_int_equal(chmod(path, 0700), 0);
}

#endif
