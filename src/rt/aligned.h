/* aligned.h - memory of the host's callback at a stricter alignment than it promises.
 *
 * The block is asked for with `align` bytes to spare; the caller keeps the struct, frees with it, and owns the memory. */
#ifndef TN_RT_ALIGNED_H
#define TN_RT_ALIGNED_H

#include "base/base.h"

typedef struct aligned {
    char *data; /* aligned; NULL = nothing allocated */
    void *raw;
    size_t raw_size;
} aligned;

/* The bytes are NOT zeroed: what to do first with fresh pages is the caller's choice. align is a power of two. */
static inline bool aligned_get(mem m, size_t size, size_t align, aligned *out) {
    *out = (aligned){ 0 };
    if (size > SIZE_MAX / 2 - align) return false;
    size_t raw_size = size + align;
    void *raw = mem_realloc(m, NULL, 0, raw_size);
    if (!raw) return false;
    *out = (aligned){ (char *)(((uintptr_t)raw + align - 1) & ~(uintptr_t)(align - 1)), raw, raw_size };
    return true;
}
static inline void aligned_free(mem m, aligned *a) {
    mem_free(m, a->raw, a->raw_size);
    *a = (aligned){ 0 };
}

#endif
