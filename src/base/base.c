/* base.c - implementation of base.h. */
#include "base.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* ---- host memory ---- */

/* Weights and what they become on their way: a fault for each page of 4 KiB would take longer than copying it. */
static void *libc_large(size_t size) {
    void *p;
    if (posix_memalign(&p, HUGE_PAGE, size)) return NULL;
    (void)madvise(p, size & ~(size_t)(HUGE_PAGE - 1), MADV_HUGEPAGE);
    return p;
}

static void *libc_realloc(void *ud, void *ptr, size_t old_size, size_t new_size) {
    (void)ud, (void)old_size;
    if (new_size == 0) {
        free(ptr);
        return NULL;
    }
    return !ptr && new_size >= HUGE_PAGE ? libc_large(new_size) : realloc(ptr, new_size);
}
mem mem_libc(void) { return (mem){ libc_realloc, NULL }; }

void *mem_realloc(mem m, void *ptr, size_t old_size, size_t new_size) { return m.realloc(m.ud, ptr, old_size, new_size); }

void *mem_alloc(mem m, size_t size) {
    void *p = m.realloc(m.ud, NULL, 0, size ? size : 1);
    if (p) memset(p, 0, size ? size : 1);
    return p;
}
void mem_free(mem m, void *ptr, size_t size) {
    if (ptr) m.realloc(m.ud, ptr, size ? size : 1, 0);
}
char *mem_strdup(mem m, const char *s) {
    size_t n = strlen(s) + 1;
    char *p = mem_alloc(m, n);
    if (p) memcpy(p, s, n);
    return p;
}
void mem_strfree(mem m, char *s) {
    if (s) mem_free(m, s, strlen(s) + 1);
}

/* ---- errors ---- */

tn_status err_vset(err *e, tn_status code, const char *fmt, va_list ap) {
    e->code = code;
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    return code;
}
tn_status err_set(err *e, tn_status code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    err_vset(e, code, fmt, ap);
    va_end(ap);
    return code;
}
void guard_fail(guard *gd, tn_status code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    err_vset(&gd->err, code, fmt, ap);
    va_end(ap);
    longjmp(gd->env, 1);
}

/* ---- arena ---- */

struct arena_block {
    arena_block *next;
    size_t size, used; /* bytes after the header */
    size_t pad;        /* keeps the data aligned to ARENA_ALIGN */
};
/* What has grown to ARENA_LARGE grows by whole huge pages: its pages of 4 KiB would take longer to appear than to be filled. */
enum { ARENA_ALIGN = 16, ARENA_FIRST = 4096, ARENA_LARGE = 1 << 19, ARENA_MAX_STEP = HUGE_PAGE - sizeof(arena_block) };

void arena_init(arena *a, mem m, guard *gd) { *a = (arena){ .mem = m, .gd = gd }; }

void arena_fini(arena *a) {
    for (arena_block *b = a->parent ? NULL : a->top, *next; b; b = next) {
        next = b->next;
        mem_free(a->mem, b, sizeof *b + b->size);
    }
    a->top = NULL;
    a->total = 0;
}

void arena_child(arena *a, arena *parent) { *a = (arena){ .mem = parent->mem, .gd = parent->gd, .parent = parent }; }

void arena_reset(arena *a) { /* the last block is the largest, or one for something very large; the others are small change */
    if (!a->top) return;
    a->top->next = NULL;
    a->top->used = 0;
}

static void *arena_take(arena *a, size_t size) { /* not cleared */
    if (size > SIZE_MAX / 2) guard_fail(a->gd, TN_ERR_NOMEM, "out of memory: %zu bytes asked for", size);
    size = (size + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    arena_block *b = a->top;
    if (!b || b->size - b->used < size) {
        size_t step = b ? b->size * 2 : ARENA_FIRST, most = a->total / 4 < ARENA_MAX_STEP ? ARENA_MAX_STEP : a->total / 4;
        if (step >= ARENA_LARGE && step < ARENA_MAX_STEP && !a->parent) step = ARENA_MAX_STEP;
        if (step > most) step = most;
        bool alone =
            size > step && b && !a->parent; /* in a block behind the top, which keeps its room; a child would lose it */
        if (step < size) step = size;
        arena_block *fresh =
            a->parent ? arena_take(a->parent, sizeof *fresh + step) : a->mem.realloc(a->mem.ud, NULL, 0, sizeof *fresh + step);
        if (!fresh) guard_fail(a->gd, TN_ERR_NOMEM, "out of memory: %zu bytes asked for", step);
        *fresh = (arena_block){ .next = alone ? b->next : b, .size = step };
        if (alone)
            b->next = fresh;
        else
            a->top = fresh;
        a->total += step;
        b = fresh;
    }
    void *p = (char *)(b + 1) + b->used;
    b->used += size;
    return p;
}
void *arena_alloc(arena *a, size_t size) {
    void *p = arena_take(a, size);
    memset(p, 0, size);
    return p;
}
void *arena_array(arena *a, size_t n, size_t size) {
    if (size && n > SIZE_MAX / size) guard_fail(a->gd, TN_ERR_NOMEM, "out of memory: %zu x %zu bytes asked for", n, size);
    return arena_alloc(a, n * size);
}
void *arena_copy(arena *a, const void *src, size_t size) {
    void *p = arena_take(a, size);
    if (size) memcpy(p, src, size);
    return p;
}
char *arena_strdup(arena *a, const char *s) { return arena_copy(a, s, strlen(s) + 1); }

char *arena_printf(arena *a, const char *fmt, ...) {
    char small[128], *p;
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    size_t size = (size_t)vsnprintf(small, sizeof small, fmt, ap) + 1;
    va_end(ap);
    if (size <= sizeof small)
        p = arena_copy(a, small, size);
    else
        vsnprintf(p = arena_alloc(a, size), size, fmt, again);
    va_end(again);
    return p;
}
/* The last allocation grows where it is, while its block has room. */
static bool extend_last(arena *a, const char *at, size_t old, size_t grown) {
    arena_block *b = a->top;
    size_t before = (old + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    if (!at || !b || at + before != (char *)(b + 1) + b->used) return false;
    size_t more = ((grown + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1)) - before;
    if (b->size - b->used < more) return false;
    b->used += more;
    return true;
}

void *arena_grow(arena *a, void *at, int *cap, size_t size) {
    if (*cap > INT32_MAX / 2) guard_fail(a->gd, TN_ERR_NOMEM, "a list outgrew %d entries", INT32_MAX);
    return arena_reserve(a, at, cap, *cap ? *cap * 2 : 8, size);
}

void *arena_reserve(arena *a, void *at, int *cap, int bigger, size_t size) {
    if (bigger <= *cap) return at;
    if (size > SIZE_MAX / 2 / (size_t)bigger)
        guard_fail(a->gd, TN_ERR_NOMEM, "out of memory: %d x %zu bytes asked for", bigger, size);
    size_t old = (size_t)*cap * size, grown = (size_t)bigger * size;
    char *p = extend_last(a, at, old, grown) ? at : arena_take(a, grown);
    if (*cap && p != at) memcpy(p, at, old);
    *cap = bigger;
    return p;
}

/* Runs of twice the length in each round, to and fro between the array and its copy. */
void merge_sort(arena *a, void *at, int n, size_t size, bool (*less)(const void *x, const void *y, const void *ud),
                const void *ud) {
    char *from = at, *to = arena_array(a, (size_t)n, size);
    for (size_t run = 1, all = (size_t)n; run < all; run *= 2) {
        for (size_t first = 0; first < all; first += 2 * run) {
            size_t i = first, mid = all - first > run ? first + run : all, j = mid, end = all - mid > run ? mid + run : all;
            for (size_t k = first; k < end; k++) {
                bool second = i == mid || (j < end && less(from + j * size, from + i * size, ud));
                memcpy(to + k * size, from + (second ? j++ : i++) * size, size);
            }
        }
        char *t = from;
        from = to, to = t;
    }
    if (n && from != at) memcpy(at, from, (size_t)n * size);
}

/* ---- strings ---- */

void str_init(str *b, arena *a) {
    *b = (str){ .a = a, .cap = 256 };
    b->s = arena_alloc(a, b->cap);
}
static void str_reserve(str *b, size_t more) {
    if (b->n + more + 1 <= b->cap) return;
    size_t cap = b->cap * 2;
    while (cap < b->n + more + 1) cap *= 2;
    char *s = arena_alloc(b->a, cap);
    memcpy(s, b->s, b->n + 1);
    b->s = s;
    b->cap = cap;
}
void str_addn(str *b, const char *text, size_t n) {
    str_reserve(b, n);
    memcpy(b->s + b->n, text, n);
    b->n += n;
    b->s[b->n] = 0;
}
void str_add(str *b, const char *text) { str_addn(b, text, strlen(text)); }

void str_addf(str *b, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    size_t room = b->cap - b->n, n = (size_t)vsnprintf(b->s + b->n, room, fmt, ap);
    va_end(ap);
    if (n >= room) {
        b->s[b->n] = 0;
        str_reserve(b, n);
        vsnprintf(b->s + b->n, n + 1, fmt, again);
    }
    va_end(again);
    b->n += n;
}
size_t utf8_length(const char *s) {
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) return p[0] >= 0x20 && p[0] != 0x7f;
    size_t n = p[0] >= 0xc2 && p[0] < 0xe0 ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : 0;
    for (size_t k = 1; k < n; k++)
        if ((p[k] & 0xc0) != 0x80) return 0;
    bool control = p[0] == 0xc2 && p[1] < 0xa0, surrogate = p[0] == 0xed && p[1] > 0x9f;
    bool overlong = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90), beyond = p[0] == 0xf4 && p[1] > 0x8f;
    return control || surrogate || overlong || beyond ? 0 : n;
}
void str_json(str *b, const char *text) {
    str_add(b, "\"");
    for (const char *p = text; *p;) {
        size_t n = utf8_length(p);
        if (*p == '"' || *p == '\\')
            str_addf(b, "\\%c", *p);
        else if (*p == '\n')
            str_add(b, "\\n");
        else if (n)
            str_addn(b, p, n);
        else
            str_addf(b, "\\u%04x", (unsigned char)*p < 0x80 ? (unsigned)*p : 0xfffd);
        p += n ? n : 1;
    }
    str_add(b, "\"");
}
static char locale_point(void) { /* localeconv is not for many threads */
    char t[8];
    snprintf(t, sizeof t, "%.1f", 1.5);
    return t[1];
}
void number_write(char *out, size_t size, int digits, double v) {
    snprintf(out, size, "%.*g", digits, v);
    char point = locale_point(), *p = point == '.' ? NULL : strchr(out, point);
    if (p) *p = '.';
}
double number_read(const char *text, const char **rest) {
    char t[1100], *end, *p;
    size_t n = strlen(text) < sizeof t ? strlen(text) : sizeof t - 1;
    memcpy(t, text, n);
    t[n] = 0;
    if ((p = strchr(t, '.'))) *p = locale_point();
    double v = strtod(t, &end);
    if (rest) *rest = text + (end - t);
    return v;
}
void str_double(str *b, double v) {
    if (isnan(v)) {
        str_add(b, "nan");
        return;
    }
    if (isinf(v)) {
        str_add(b, v < 0 ? "-inf" : "inf");
        return;
    }
    char t[40];
    for (int digits = 1; digits <= 17; digits++) {
        number_write(t, sizeof t, digits, v);
        if (number_read(t, NULL) == v) break;
    }
    if (!strpbrk(t, ".en")) strcat(t, ".0");
    str_add(b, t);
}

/* ---- hashes ---- */

static uint64_t rotl64(uint64_t x, int r) { return x << r | x >> (64 - r); }
static uint64_t read64(const unsigned char *p) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | p[i];
    return v;
}
static uint64_t read32(const unsigned char *p) {
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
}
static const uint64_t P1 = 0x9E3779B185EBCA87u, P2 = 0xC2B2AE3D27D4EB4Fu, P3 = 0x165667B19E3779F9u, P4 = 0x85EBCA77C2B2AE63u,
                      P5 = 0x27D4EB2F165667C5u;

uint64_t hash_bytes(const void *data, size_t n, uint64_t seed) {
    const unsigned char *p = data;
    size_t left = n;
    uint64_t h = seed + P5;
    if (n >= 32) {
        uint64_t v[4] = { seed + P1 + P2, seed + P2, seed, seed - P1 };
        for (; left >= 32; left -= 32)
            for (int i = 0; i < 4; i++, p += 8) v[i] = rotl64(v[i] + read64(p) * P2, 31) * P1;
        h = rotl64(v[0], 1) + rotl64(v[1], 7) + rotl64(v[2], 12) + rotl64(v[3], 18);
        for (int i = 0; i < 4; i++) h = (h ^ rotl64(v[i] * P2, 31) * P1) * P1 + P4;
    }
    h += n;
    for (; left >= 8; left -= 8, p += 8) h = rotl64(h ^ rotl64(read64(p) * P2, 31) * P1, 27) * P1 + P4;
    if (left >= 4) {
        h = rotl64(h ^ read32(p) * P1, 23) * P2 + P3;
        left -= 4, p += 4;
    }
    for (; left; left--, p++) h = rotl64(h ^ *p * P5, 11) * P1;
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}
hash128 hash_bytes128(const void *data, size_t n) {
    return (hash128){ hash_bytes(data, n, 0), hash_bytes(data, n, 0x74656e6f6eu) };
}

/* ---- sizes ---- */

bool size_mul(int64_t a, int64_t b, int64_t *out) {
    int64_t r;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
bool size_add(int64_t a, int64_t b, int64_t *out) {
    int64_t r;
    if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

/* ---- half types ---- */

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
float half_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) return float_of(sign | 0x7f800000 | rest << 13 | (rest > 0x7c00 ? 0x400000 : 0)); /* NaN is quiet */
    /* scaling by 2^112 turns half's exponent bias into float's and handles denormals */
    return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}
uint16_t half_from_f32(float f) {
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (a >= 0x47800000) return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) /* denormal: let the adder round at half's last place */
        return (uint16_t)(sign | (bits_of(float_of(a) + 0.5f) - bits_of(0.5f)));
    return (uint16_t)(sign | (((a + 0xfff + (a >> 13 & 1)) >> 13) - (112 << 10)));
}
float bf16_to_f32(uint16_t h) { return float_of((uint32_t)h << 16); }
uint16_t bf16_from_f32(float f) {
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* ---- random ---- */

void philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c[4] = { ctr[0], ctr[1], ctr[2], ctr[3] }, k0 = key[0], k1 = key[1];
    for (int r = 0; r < 10; r++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t d[4] = { (uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a };
        memcpy(c, d, sizeof c);
    }
    memcpy(out, c, sizeof c);
}
float random_uniform_at(int64_t counter, int64_t stream, int64_t i) {
    uint32_t ctr[4] = { (uint32_t)i, (uint32_t)((uint64_t)i >> 32), (uint32_t)stream, (uint32_t)((uint64_t)stream >> 32) };
    uint32_t key[2] = { (uint32_t)counter, (uint32_t)((uint64_t)counter >> 32) }, out[4];
    philox4x32(ctr, key, out);
    return (float)(out[0] >> 8) * 0x1p-24f;
}

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
