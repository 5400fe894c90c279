/* mallocs.c - counts the allocations of the whole process, library included, by standing in front of glibc's allocator.
 *
 * Symbols of the program come before those of shared libraries, so every malloc of libtenon passes here. Under sanitizers,
 * which have their own allocator, and on other C libraries nothing is counted, and mallocs_method says so. */
#include "measure.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define COUNT_NOTHING
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define COUNT_NOTHING
#endif

#ifdef COUNT_NOTHING
int64_t mallocs_count(void) { return 0; }
const char *mallocs_method(void) { return "none"; }
#else

#define EXPORTED __attribute__((visibility("default"))) /* or the library would not see them */

static _Atomic int64_t count;
static void tick(void) { atomic_fetch_add_explicit(&count, 1, memory_order_relaxed); }
int64_t mallocs_count(void) { return atomic_load_explicit(&count, memory_order_relaxed); }
const char *mallocs_method(void) { return "interposed"; }

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

EXPORTED void *malloc(size_t n) {
    tick();
    return __libc_malloc(n);
}
EXPORTED void *calloc(size_t n, size_t size) {
    tick();
    return __libc_calloc(n, size);
}
EXPORTED void *realloc(void *p, size_t n) {
    tick();
    return __libc_realloc(p, n);
}
void *memalign(size_t align, size_t n);
EXPORTED void *memalign(size_t align, size_t n) {
    tick();
    return __libc_memalign(align, n);
}
EXPORTED void *aligned_alloc(size_t align, size_t n) {
    tick();
    return __libc_memalign(align, n);
}
EXPORTED int posix_memalign(void **out, size_t align, size_t n) {
    tick();
    if (!align || align % sizeof(void *) || (align & (align - 1))) return EINVAL;
    void *p = __libc_memalign(align, n);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}
EXPORTED void free(void *p) { __libc_free(p); }
#endif
