/* copying.c - checks before a copy: the range in the buffer, and that the host's memory is there. */
#include "rt/copying.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LONG_BYTES = 128 << 10 /* from here on allocators map memory for one block alone, and unmap it */ };

/* msync that waits for nothing only walks the mappings; it knows ENOMEM for a hole. */
static bool is_mapped(const void *p, size_t size) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)p, from = at / page * page;
    return at + size >= at && (!msync((void *)from, at + size - from, MS_ASYNC) || errno != ENOMEM);
}

tn_status copying_check(const char *what, size_t have, size_t offset, const void *host, size_t size, err *e) {
    if (offset > have || size > have - offset)
        return err_set(e, TN_ERR_INVAL, "%s of %zu bytes at offset %zu leaves a buffer of %zu bytes", what, size, offset, have);
    if (size < LONG_BYTES || is_mapped(host, size)) return TN_OK;
    return err_set(e, TN_ERR_INVAL, "%s of %zu bytes at %p: this is no memory of the process, or no longer all of it", what,
                   size, host);
}
