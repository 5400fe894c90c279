/* io.h - what the file formats share: memory, errors, a bounded reader of untrusted bytes, whole files in, atomic files out.
 *
 * Public headers only. Every function returns a status and leaves the text in the context; cleanup is at one `done:` label. */
#ifndef IO_IO_H
#define IO_IO_H

#include "tenon/tenon_io.h"

#include <stdbool.h>
#include <string.h>

/* ---- memory and errors ---- */

/* Zeroed, 64-byte aligned, freed by tn_io_free. NULL after recording TN_ERR_NOMEM. */
void *io_alloc(tn_ctx *ctx, size_t size);
void *io_room(tn_ctx *ctx, size_t size); /* the same, not zeroed */
tn_status io_fail(tn_ctx *ctx, tn_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
tn_status io_fail_errno(tn_ctx *ctx, const char *what, const char *path); /* TN_ERR_IO with errno's text */

/* Bytes of an array; false when the product overflows, an axis is negative or the rank is out of range. */
bool io_array_bytes(tn_dtype dtype, const tn_shape *shape, size_t *out_bytes);
/* Checks that every byte of a bool array is 0 or 1: kernels rely on it. */
tn_status io_check_bool(tn_ctx *ctx, const char *file, const char *tensor, const void *data, size_t n);
bool io_is_utf8(const char *s, size_t n);

/* ---- reading ---- */

/* Untrusted bytes: base and len never change, pos only grows, no access leaves them. */
typedef struct io_reader {
    const uint8_t *base;
    size_t len, pos;
    tn_ctx *ctx;
    const char *name; /* of the file, in messages */
    size_t origin;    /* offset of base in the file, in messages */
} io_reader;
int io_peek(const io_reader *r); /* -1 at the end */
int io_next(io_reader *r);       /* -1 at the end */
bool io_accept(io_reader *r, char c);
bool io_get(io_reader *r, void *dst, size_t n); /* false (and nothing read) when fewer bytes are left */
void io_skip_blanks(io_reader *r);              /* space, tab, line feed, carriage return */
/* Records "name: offset 12: <text>". */
tn_status io_parse_error(io_reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Requires c next. */
tn_status io_expect(io_reader *r, char c, const char *where);
/* A whole number 0 .. 2^63-1 without sign, leading zero, fraction or exponent. */
tn_status io_read_int(io_reader *r, const char *what, int64_t *out);

/* A string of JSON: decoded behind the *n_text bytes of `text`, which has room for as many bytes as the reader (decoding never
 * lengthens), and ended by a zero byte. max 0: any length. */
tn_status io_read_text(io_reader *r, const char *what, size_t max, char *text, size_t *n_text, char **out);

typedef struct io_file {
    int fd;
    uint64_t size;
} io_file;
tn_status io_open(tn_ctx *ctx, const char *path, io_file *out); /* regular files only */
tn_status io_read_at(tn_ctx *ctx, const io_file *f, const char *path, uint64_t offset, void *dst, size_t n);
void io_close(io_file *f);
/* A file as it lies in the page cache: nothing is read before it is looked at. io_unmap: of a mapping, or all zeros. */
typedef struct io_mapping {
    const uint8_t *bytes; /* NULL: the file is empty */
    size_t size;
} io_mapping;
tn_status io_map(tn_ctx *ctx, const char *path, io_mapping *out);
void io_unmap(io_mapping *m);
/* These bytes of a mapping need not stay in the process: they come back when they are looked at. */
void io_forget(const uint8_t *at, size_t n);
/* A whole file of at most `limit` bytes; *out is freed with tn_io_free and has one zero byte after its end. */
tn_status io_read_all(tn_ctx *ctx, const char *path, uint64_t limit, uint8_t **out, size_t *out_size);

/* ---- writing ---- */

/* begin, write ..., then commit or abort; abort after a failure of any of them. */
typedef struct io_writer {
    tn_ctx *ctx;
    const char *path;
    char *temp; /* NULL: writing to the path itself (a device or pipe) */
    int fd;
} io_writer;
tn_status io_write_begin(tn_ctx *ctx, const char *path, io_writer *out);
tn_status io_write(io_writer *w, const void *data, size_t n);
tn_status io_write_commit(io_writer *w);
void io_write_abort(io_writer *w); /* nothing after a commit that succeeded */

#endif
