/* file.c - memory and errors of io/, whole files in, atomic files out.
 *
 * In: paths and bytes. Out: a status, with the text in the context. Memory comes from the context's allocator. */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- memory and errors ---- */

enum { ALIGN = 64 };
typedef struct head { /* right before what io_alloc gives out */
    void *block;
    size_t size;
} head;

void *io_room(tn_ctx *ctx, size_t size) {
    size_t total = size + sizeof(head) + ALIGN;
    char *block = total < size ? NULL : tn_ctx_realloc(ctx, NULL, 0, total);
    if (!block) {
        (void)io_fail(ctx, TN_ERR_NOMEM, "out of memory: %zu bytes for an array", size);
        return NULL;
    }
    char *data = block + sizeof(head);
    data += (ALIGN - (uintptr_t)data % ALIGN) % ALIGN;
    memcpy(data - sizeof(head), &(head){ block, total }, sizeof(head));
    return data;
}

void *io_alloc(tn_ctx *ctx, size_t size) {
    void *data = io_room(ctx, size);
    return data ? memset(data, 0, size) : NULL;
}

void tn_io_free(tn_ctx *ctx, void *data) {
    if (!data) return;
    head h;
    memcpy(&h, (char *)data - sizeof h, sizeof h);
    (void)tn_ctx_realloc(ctx, h.block, h.size, 0);
}

tn_status io_fail(tn_ctx *ctx, tn_status code, const char *fmt, ...) {
    char text[1800];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return tn_ctx_fail(ctx, code, text);
}

tn_status io_fail_errno(tn_ctx *ctx, const char *what, const char *path) {
    char buffer[128];
    const char *reason = strerror_r(errno, buffer, sizeof buffer);
    return io_fail(ctx, TN_ERR_IO, "%s: %s: %s", path, what, reason);
}

bool io_array_bytes(tn_dtype dtype, const tn_shape *shape, size_t *out_bytes) {
    if ((unsigned)dtype >= TN_N_DTYPES || shape->rank < 0 || shape->rank > TN_MAX_RANK) return false;
    int64_t n = (int64_t)tn_dtype_size(dtype);
    bool empty = false;
    for (int i = 0; i < shape->rank; i++) { /* an axis of size 0 does not excuse the others from fitting */
        if (shape->dim[i] < 0) return false;
        if (shape->dim[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(n, shape->dim[i], &n))
            return false;
    }
    *out_bytes = empty ? 0 : (size_t)n;
    return true;
}

tn_status io_check_bool(tn_ctx *ctx, const char *file, const char *tensor, const void *data, size_t n) {
    const uint8_t *bytes = data;
    for (size_t i = 0; i < n; i++)
        if (bytes[i] > 1)
            return io_fail(ctx, TN_ERR_PARSE, "%s: %s: bool element %zu is %d, not 0 or 1", file, tensor, i, bytes[i]);
    return TN_OK;
}

bool io_is_utf8(const char *s, size_t n) {
    const uint8_t *p = (const uint8_t *)s;
    for (size_t i = 0; i < n;) {
        int more = p[i] < 0x80                   ? 0
                   : p[i] >= 0xC2 && p[i] < 0xE0 ? 1
                   : (p[i] & 0xF0) == 0xE0       ? 2
                   : p[i] >= 0xF0 && p[i] < 0xF5 ? 3
                                                 : -1;
        if (more < 0 || (size_t)more >= n - i) return false;
        for (int k = 1; k <= more; k++)
            if ((p[i + (size_t)k] & 0xC0) != 0x80) return false;
        if (p[i] == 0xE0 && p[i + 1] < 0xA0) return false; /* overlong */
        if (p[i] == 0xED && p[i + 1] > 0x9F) return false; /* surrogate */
        if (p[i] == 0xF0 && p[i + 1] < 0x90) return false; /* overlong */
        if (p[i] == 0xF4 && p[i + 1] > 0x8F) return false; /* beyond U+10FFFF */
        i += (size_t)more + 1;
    }
    return true;
}

/* ---- reading ---- */

tn_status io_open(tn_ctx *ctx, const char *path, io_file *out) {
    if (!path) return io_fail(ctx, TN_ERR_INVAL, "the path is NULL");
    struct stat st;
    out->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a pipe must not hang us before it is refused */
    if (out->fd < 0) return io_fail_errno(ctx, "cannot open", path);
    if (fstat(out->fd, &st)) {
        tn_status s = io_fail_errno(ctx, "cannot stat", path);
        io_close(out);
        return s;
    }
    if (!S_ISREG(st.st_mode)) {
        io_close(out);
        return io_fail(ctx, TN_ERR_IO, "%s: not a regular file", path);
    }
    out->size = (uint64_t)st.st_size;
    return TN_OK;
}

tn_status io_read_at(tn_ctx *ctx, const io_file *f, const char *path, uint64_t offset, void *dst, size_t n) {
    char *to = dst;
    while (n) {
        ssize_t got = pread(f->fd, to, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return io_fail_errno(ctx, "cannot read", path);
        if (got == 0) return io_fail(ctx, TN_ERR_IO, "%s: became shorter while it was read", path);
        to += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return TN_OK;
}

void io_close(io_file *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

tn_status io_read_all(tn_ctx *ctx, const char *path, uint64_t limit, uint8_t **out, size_t *out_size) {
    io_file f = { .fd = -1 };
    uint8_t *bytes = NULL;
    tn_status s = io_open(ctx, path, &f);
    if (s) goto done;
    if (f.size > limit) {
        s = io_fail(ctx, TN_ERR_UNSUPPORTED, "%s: %llu bytes, more than the limit of %llu", path, (unsigned long long)f.size,
                    (unsigned long long)limit);
        goto done;
    }
    s = TN_ERR_NOMEM;
    if (!(bytes = io_alloc(ctx, (size_t)f.size + 1))) goto done;
    s = io_read_at(ctx, &f, path, 0, bytes, (size_t)f.size);
    if (s) goto done;
    *out = bytes;
    *out_size = (size_t)f.size;
    bytes = NULL;
done:
    tn_io_free(ctx, bytes);
    io_close(&f);
    return s;
}

tn_status io_map(tn_ctx *ctx, const char *path, io_mapping *out) {
    io_file f = { .fd = -1 };
    *out = (io_mapping){ 0 };
    tn_status s = io_open(ctx, path, &f);
    if (s || f.size == 0) goto done;
    void *at = mmap(NULL, (size_t)f.size, PROT_READ, MAP_PRIVATE, f.fd, 0);
    if (at == MAP_FAILED)
        s = io_fail_errno(ctx, "cannot map", path);
    else
        *out = (io_mapping){ at, (size_t)f.size };
done:
    io_close(&f);
    return s;
}

void io_unmap(io_mapping *m) {
    if (m->bytes) munmap((void *)(uintptr_t)m->bytes, m->size);
    *m = (io_mapping){ 0 };
}

void io_forget(const uint8_t *at, size_t n) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)at + page - 1) / page * page,
              to = ((uintptr_t)at + n) / page * page;
    if (from < to) (void)madvise((void *)from, to - from, MADV_DONTNEED);
}

/* ---- writing ---- */

/* Opens a new file beside the target: the same directory, so that rename stays within one file system. */
static int open_temp(const char *path, char *temp, size_t n_temp, mode_t mode) {
    struct timespec t = { 0 };
    clock_gettime(CLOCK_REALTIME, &t);
    for (int attempt = 0; attempt < 100; attempt++) {
        snprintf(temp, n_temp, "%s.%lx-%lx-%d.tmp", path, (long)getpid(), (long)t.tv_nsec, attempt);
        int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

tn_status io_write_begin(tn_ctx *ctx, const char *path, io_writer *out) {
    *out = (io_writer){ .ctx = ctx, .path = path, .fd = -1 };
    if (!path || !*path) return io_fail(ctx, TN_ERR_INVAL, "the path is NULL or empty");
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode)) return io_fail(ctx, TN_ERR_IO, "%s: is a directory", path);
    if (exists && !S_ISREG(st.st_mode)) { /* renaming over a device or a pipe would replace it */
        out->fd = open(path, O_WRONLY | O_CLOEXEC);
        return out->fd < 0 ? io_fail_errno(ctx, "cannot open", path) : TN_OK;
    }
    size_t n = strlen(path) + 64;
    if (!(out->temp = io_alloc(ctx, n))) return TN_ERR_NOMEM;
    out->fd = open_temp(path, out->temp, n, 0666);
    if (out->fd < 0) {
        tn_io_free(ctx, out->temp);
        out->temp = NULL;
        return io_fail_errno(ctx, "cannot create a file beside it", path);
    }
    if (exists && fchmod(out->fd, st.st_mode & 07777)) return io_fail_errno(ctx, "cannot keep its permissions", path);
    return TN_OK;
}

tn_status io_write(io_writer *w, const void *data, size_t n) {
    const char *from = data;
    while (n) {
        ssize_t put = write(w->fd, from, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return io_fail_errno(w->ctx, "cannot write", w->path);
        from += put;
        n -= (size_t)put;
    }
    return TN_OK;
}

/* The rename itself must reach the disk too. A file system that cannot flush a directory says EINVAL: then there is no more to
 * do. */
static tn_status flush_directory(io_writer *w) {
    char *slash = strrchr(w->temp, '/');
    if (slash) slash[slash == w->temp] = 0;
    int fd = open(slash ? w->temp : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno == EACCES ? TN_OK : io_fail_errno(w->ctx, "cannot open its directory", w->path);
    tn_status s = fsync(fd) && errno != EINVAL ? io_fail_errno(w->ctx, "cannot flush its directory", w->path) : TN_OK;
    close(fd);
    return s;
}

tn_status io_write_commit(io_writer *w) {
    int fd = w->fd;
    if (w->temp && fsync(fd)) return io_fail_errno(w->ctx, "cannot flush", w->path);
    w->fd = -1; /* closed even when close reports an error */
    if (close(fd)) return io_fail_errno(w->ctx, "cannot close", w->path);
    if (!w->temp) return TN_OK;
    if (rename(w->temp, w->path)) return io_fail_errno(w->ctx, "cannot rename the new file over it", w->path);
    tn_status s = flush_directory(w);
    tn_io_free(w->ctx, w->temp);
    w->temp = NULL;
    return s;
}

void io_write_abort(io_writer *w) {
    if (w->fd >= 0) close(w->fd);
    w->fd = -1;
    if (w->temp) unlink(w->temp);
    tn_io_free(w->ctx, w->temp);
    w->temp = NULL;
}

/* ---- the public ones ---- */

tn_status tn_io_file_load(tn_ctx *ctx, const char *path, uint64_t limit, void **out_data, size_t *out_size) {
    uint8_t *bytes;
    if (!ctx) return TN_ERR_INVAL;
    if (out_data) *out_data = NULL;
    if (!path || !out_data || !out_size)
        return io_fail(ctx, TN_ERR_INVAL, "tn_io_file_load: path, out_data or out_size is NULL");
    tn_status st = io_read_all(ctx, path, limit, &bytes, out_size);
    if (!st) *out_data = bytes;
    return st;
}

tn_status tn_io_file_save(tn_ctx *ctx, const char *path, const void *data, size_t n) {
    io_writer w;
    if (!ctx) return TN_ERR_INVAL;
    if (!path || (!data && n)) return io_fail(ctx, TN_ERR_INVAL, "tn_io_file_save: path or data is NULL");
    tn_status st = io_write_begin(ctx, path, &w);
    if (st) return st;
    if (!(st = io_write(&w, data, n))) st = io_write_commit(&w);
    if (st) io_write_abort(&w);
    return st;
}
