/* io_test.h - what the tests of io/ share: a directory of their own, random numbers, malformed files with the message each must
 * give, mutations of a right file. */
#ifndef TESTS_IO_IO_TEST_H
#define TESTS_IO_IO_TEST_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tenon/tenon_io.h"

static inline uint64_t rnd(uint64_t *s) { /* splitmix64 */
    uint64_t z = (*s += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
static inline int rnd_below(uint64_t *s, int n) { return (int)(rnd(s) % (uint64_t)n); }

/* A directory that is removed with all in it by test_dir_remove. */
static char test_dir[64];
static inline void test_dir_make(void) {
    strcpy(test_dir, "/tmp/tenon-io-XXXXXX");
    assert_non_null(mkdtemp(test_dir));
}
static inline void test_dir_remove(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", test_dir);
    assert_int_equal(system(command), 0);
}
/* For a group of tests that shares one. */
static inline int setup_dir(void **state) { return (void)state, test_dir_make(), 0; }
static inline int teardown_dir(void **state) { return (void)state, test_dir_remove(), 0; }
static inline const char *in_dir(const char *name) { /* valid until the call after the next one */
    static char paths[2][256];
    static int turn;
    turn = !turn;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", test_dir, name);
    return paths[turn];
}

static inline void write_bytes(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The call must have failed with this status and a message that contains text and the file's name. */
static inline void assert_fails(tn_ctx *ctx, tn_status got, tn_status want, const char *text, const char *what) {
    if (got != want || !strstr(tn_ctx_error(ctx), text) || tn_ctx_status(ctx) != want)
        fail_msg("%s: got %s \"%s\", want %s \"...%s...\"", what, tn_status_name(got), tn_ctx_error(ctx), tn_status_name(want),
                 text);
}

/* An allocator that counts, and refuses from the fail_at-th request on (-1: never). What is live is known, so leaks show. */
typedef struct counting {
    long requests, fail_at;
    size_t live;
} counting;
static inline void *counting_realloc(void *ud, void *ptr, size_t old_size, size_t new_size) {
    counting *c = ud;
    if (new_size == 0) {
        c->live -= ptr ? old_size : 0;
        free(ptr);
        return NULL;
    }
    if (c->fail_at >= 0 && c->requests++ >= c->fail_at) return NULL;
    void *p = realloc(ptr, new_size);
    if (p) c->live += new_size - (ptr ? old_size : 0);
    return p;
}
static inline tn_ctx *counting_ctx(counting *c) {
    *c = (counting){ .fail_at = -1 };
    return tn_ctx_new(&(tn_config){ .struct_size = sizeof(tn_config), .realloc = counting_realloc, .realloc_ud = c });
}

/* One to four changes of a file: bytes replaced, bits flipped, runs cut out, doubled or swapped for other text. */
static inline size_t mutate(uint64_t *seed, const uint8_t *from, size_t n, uint8_t *to, size_t max) {
    static const char *const words[] = { "\"",
                                         "{",
                                         "}",
                                         "[",
                                         "]",
                                         ",",
                                         ":",
                                         "-1",
                                         "0",
                                         "18446744073709551615",
                                         "9223372036854775807",
                                         "\\u0000",
                                         "nan",
                                         "()",
                                         "'",
                                         "F64",
                                         "BOOL",
                                         "__metadata__",
                                         "\n" };
    memcpy(to, from, n);
    for (int changes = 1 + rnd_below(seed, 4); changes > 0; changes--) {
        size_t at = n ? (size_t)(rnd(seed) % n) : 0, run = 1 + (size_t)rnd_below(seed, 16);
        if (run > n - at) run = n - at;
        switch (rnd_below(seed, 6)) {
        case 0:
            if (n) to[at] = (uint8_t)rnd(seed);
            break;
        case 1:
            if (n) to[at] ^= (uint8_t)(1u << rnd_below(seed, 8));
            break;
        case 2:
            memmove(to + at, to + at + run, n - at - run), n -= run;
            break;
        case 3:
            if (n + run <= max) memmove(to + at + run, to + at, n - at), n += run;
            break;
        case 4:
            n = at;
            break;
        default: {
            const char *word = words[rnd_below(seed, (int)(sizeof words / sizeof *words))];
            size_t len = strlen(word);
            if (at + len <= n) memcpy(to + at, word, len);
        }
        }
    }
    return n;
}

#endif
