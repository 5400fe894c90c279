/* base.h - what everything stands on: host memory, the guard, arenas, growable arrays, strings, hashes.
 *
 * The compile half (ir .. emit, drive) allocates from arenas only and reports errors by jumping to the one guard that src/api
 * set: no function in between owns anything that the arenas do not. The run half (rt, run, io) never jumps: it returns
 * tn_status. Threads: nothing here is shared; every object is used by one thread at a time. */
#ifndef TN_BASE_H
#define TN_BASE_H

#include "tenon/tenon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define NORETURN __attribute__((noreturn))
#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

/* Host memory: the callback of tn_config. mem_alloc returns zeroed memory or NULL; freeing needs the size that was asked for.
 */
typedef struct mem {
    void *(*realloc)(void *ud, void *ptr, size_t old_size, size_t new_size);
    void *ud;
} mem;
mem mem_libc(void);
enum { HUGE_PAGE = 2 << 20 }; /* bytes; blocks from there on ask the system for such pages before they are touched */
void *mem_alloc(mem m, size_t size);
void *mem_realloc(mem m, void *ptr, size_t old_size, size_t new_size);
void mem_free(mem m, void *ptr, size_t size);
char *mem_strdup(mem m, const char *s);
void mem_strfree(mem m, char *s);

/* An error: a code and a text. The run half fills one and returns its code; the guard of the compile half holds one. */
typedef struct err {
    tn_status code;
    char text[3072];
} err;
tn_status err_set(err *e, tn_status code, const char *fmt, ...) PRINTF_LIKE(3, 4);
tn_status err_vset(err *e, tn_status code, const char *fmt, va_list ap);

/* The guard: where the compile half jumps to. Use GUARD_TRY in src/api and in tests; the parser has one of its own, to go on
 * after an error. guard gd; if (GUARD_TRY(&gd)) { ... compile half ... } else { ... gd.err ... } */
typedef struct guard {
    jmp_buf env;
    err err;
} guard;
#define GUARD_TRY(gd) (memset(&(gd)->err, 0, sizeof(tn_status)), (gd)->err.text[0] = 0, setjmp((gd)->env) == 0)
void guard_fail(guard *gd, tn_status code, const char *fmt, ...) PRINTF_LIKE(3, 4) NORETURN;

/* Arena: bump allocation, freed as a whole. arena_alloc returns zeroed memory aligned to 16 and never NULL: it jumps with
 * TN_ERR_NOMEM. The guard may be exchanged between uses (an arena lives longer than one API call). */
typedef struct arena_block arena_block;
typedef struct arena {
    mem mem;
    guard *gd;
    arena_block *top;
    size_t total;         /* bytes taken from the host */
    struct arena *parent; /* blocks come from there; NULL: from the host */
} arena;
void arena_init(arena *a, mem m, guard *gd);
void arena_fini(arena *a);
/* For what is needed for a while: a child takes its blocks from its parent, which frees them with its own, and arena_reset
 * makes a child's memory free for new use by it. */
void arena_child(arena *a, arena *parent);
void arena_reset(arena *a);
void *arena_alloc(arena *a, size_t size);
void *arena_array(arena *a, size_t n, size_t size); /* n * size, overflow-checked */
void *arena_copy(arena *a, const void *src, size_t size);
char *arena_strdup(arena *a, const char *s);
char *arena_printf(arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);
#define ARENA_NEW(a, type) ((type *)arena_alloc((a), sizeof(type)))
#define ARENA_ARRAY(a, type, n) ((type *)arena_array((a), (size_t)(n), sizeof(type)))

/* Growable arrays in an arena: declare `VEC(type) name;`, zero-initialise, push, index with name.at[i]. Pointers into `at` are
 * valid until the next push. What lies behind the last entry is not cleared. */
#define VEC(type)                                                                                                              \
    struct {                                                                                                                   \
        type *at;                                                                                                              \
        int n, cap;                                                                                                            \
    }
#define VEC_PUSH(a, v, ...)                                                                                                    \
    ((v)->n == (v)->cap ? ((v)->at = arena_grow((a), (v)->at, &(v)->cap, sizeof *(v)->at)) : (v)->at,                          \
     (v)->at[(v)->n++] = (__VA_ARGS__))
void *arena_grow(arena *a, void *at, int *cap, size_t size);
/* Room for n entries: an array that is known to become long is not copied on its way there. */
#define VEC_RESERVE(a, v, n) ((v)->at = arena_reserve((a), (v)->at, &(v)->cap, (n), sizeof *(v)->at))
void *arena_reserve(arena *a, void *at, int *cap, int n, size_t size);

/* Sorts n entries of `size` bytes; those of which neither is less stay in their order. */
void merge_sort(arena *a, void *at, int n, size_t size, bool (*less)(const void *x, const void *y, const void *ud),
                const void *ud);

/* String builder in an arena; `s` is always terminated. */
typedef struct str {
    arena *a;
    char *s;
    size_t n, cap;
} str;
void str_init(str *b, arena *a);
void str_add(str *b, const char *text);
void str_addn(str *b, const char *text, size_t n);
void str_addf(str *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void str_json(str *b, const char *text); /* quoted and escaped; bytes that are no UTF-8 become U+FFFD */
/* Bytes of the character at s (terminated), in UTF-8; 0: it is none, or a control character. */
size_t utf8_length(const char *s);
/* Numbers in texts have a decimal point, whatever the host's locale makes of snprintf and strtod. number_read takes
 * texts of up to 1099 characters; *rest (may be NULL) is where the number ends. */
void number_write(char *out, size_t size, int digits, double v); /* %.*g */
double number_read(const char *text, const char **rest);
void str_double(str *b, double v); /* shortest text that reads back as the same double: 0.5, 1e-07, inf, -inf, nan */

/* 64-bit and 128-bit hashes (XXH64 construction of Y. Collet, own code); stable across machines: they name cache files. */
typedef struct hash128 {
    uint64_t lo, hi;
} hash128;
uint64_t hash_bytes(const void *data, size_t n, uint64_t seed);
hash128 hash_bytes128(const void *data, size_t n);

/* Size arithmetic: false (and *out untouched) on overflow or a negative operand. */
bool size_mul(int64_t a, int64_t b, int64_t *out);
bool size_add(int64_t a, int64_t b, int64_t *out);

/* Half types, round to nearest even; NaN stays NaN. */
float half_to_f32(uint16_t h);
uint16_t half_from_f32(float f);
float bf16_to_f32(uint16_t h);
uint16_t bf16_from_f32(float f);

/* Philox4x32-10: 4 words from a 128-bit counter and a 64-bit key (Salmon et al., SC 2011). */
void philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]);
/* Element i of `random`: f32 in [0, 1) with 24 bits, from word 0 of counter block i (one block an element keeps
 * vector code free of shuffles). The one definition used by eval; kernels repeat it in their own language. */
float random_uniform_at(int64_t counter, int64_t stream, int64_t i);

double now_seconds(void); /* monotonic */

#endif
