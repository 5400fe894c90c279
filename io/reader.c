/* reader.c - the bounded reader: the only way in which io/ looks at untrusted bytes.
 *
 * In: {base, len}. Out: single bytes, copies and whole numbers; never a pointer past the end. */
#include "io.h"

#include <stdarg.h>
#include <stdio.h>

int io_peek(const io_reader *r) { return r->pos < r->len ? r->base[r->pos] : -1; }
int io_next(io_reader *r) { return r->pos < r->len ? r->base[r->pos++] : -1; }

bool io_accept(io_reader *r, char c) {
    if (io_peek(r) != (unsigned char)c) return false;
    r->pos++;
    return true;
}

bool io_get(io_reader *r, void *dst, size_t n) {
    if (n > r->len - r->pos) return false;
    memcpy(dst, r->base + r->pos, n);
    r->pos += n;
    return true;
}

void io_skip_blanks(io_reader *r) {
    for (int c = io_peek(r); c == ' ' || c == '\t' || c == '\n' || c == '\r'; c = io_peek(r)) r->pos++;
}

tn_status io_parse_error(io_reader *r, const char *fmt, ...) {
    char text[1200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return io_fail(r->ctx, TN_ERR_PARSE, "%s: offset %zu: %s", r->name, r->origin + r->pos, text);
}

tn_status io_expect(io_reader *r, char c, const char *where) {
    int got = io_peek(r);
    if (got == (unsigned char)c) {
        r->pos++;
        return TN_OK;
    }
    if (got < 0) return io_parse_error(r, "expected '%c' %s, found the end", c, where);
    if (got < 32 || got > 126) return io_parse_error(r, "expected '%c' %s, found byte 0x%02x", c, where, (unsigned)got);
    return io_parse_error(r, "expected '%c' %s, found '%c'", c, where, got);
}

tn_status io_read_int(io_reader *r, const char *what, int64_t *out) {
    int c = io_peek(r);
    if (c < '0' || c > '9') return io_parse_error(r, "%s must be a whole number that is not negative", what);
    int64_t v = 0;
    bool zero_first = c == '0';
    int digits = 0;
    for (; (c = io_peek(r)) >= '0' && c <= '9'; r->pos++, digits++) {
        if (zero_first && digits) return io_parse_error(r, "%s has a leading zero", what);
        if (__builtin_mul_overflow(v, (int64_t)10, &v) || __builtin_add_overflow(v, (int64_t)(c - '0'), &v))
            return io_parse_error(r, "%s does not fit 63 bits", what);
    }
    if (c == '.' || c == 'e' || c == 'E') return io_parse_error(r, "%s must be a whole number", what);
    *out = v;
    return TN_OK;
}
