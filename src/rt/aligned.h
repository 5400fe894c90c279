/* aligned.h - memory of the host's callback at a stricter alignment than it promises.
 *
 * The block is asked for with `align` bytes to spare; the caller keeps the struct, frees with it, and owns the memory. */
#ifndef TN_RT_ALIGNED_H
#define TN_RT_ALIGNED_H

#include "base/base.h"

#include <stdlib.h>

typedef struct aligned {
    char *data; /* aligned; NULL = nothing allocated */
    void *raw;
    size_t raw_size;
} aligned;

/* The bytes are NOT zeroed, unless *out_zeroed says so: what to do first with fresh pages is the caller's choice. align is a
 * power of two. */
static inline bool aligned_fresh(mem m, size_t size, size_t align, aligned *out, bool *out_zeroed) {
    const size_t pages = (size_t)32 << 20; /* from there on libc has it from the system: calloc knows, and clears nothing */
    *out = (aligned){ 0 };
    *out_zeroed = m.realloc == mem_libc().realloc && size >= pages;
    if (size > SIZE_MAX / 2 - align) return false;
    size_t raw_size = size + align;
    void *raw = *out_zeroed ? calloc(1, raw_size) : mem_realloc(m, NULL, 0, raw_size);
    if (!raw) return false;
    *out = (aligned){ (char *)(((uintptr_t)raw + align - 1) & ~(uintptr_t)(align - 1)), raw, raw_size };
    return true;
}
static inline bool aligned_get(mem m, size_t size, size_t align, aligned *out) {
    bool zeroed;
    return aligned_fresh(m, size, align, out, &zeroed);
}
static inline void aligned_free(mem m, aligned *a) {
    mem_free(m, a->raw, a->raw_size);
    *a = (aligned){ 0 };
}

#endif
