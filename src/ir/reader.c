/* reader.c - the words of texts. In and out: reader.h. */
#include "ir/reader.h"

#include <stdlib.h>

reader reader_make(arena *a, const char *text, size_t n, const char *file) {
    return (reader){ .a = a, .file = file, .text = text, .at = text, .end = text + n };
}

void read_fail(const reader *p, const char *expected) {
    int line = 1, col = 1;
    for (const char *c = p->text; c < p->at; c++) {
        col = *c == '\n' ? 1 : col + 1;
        line += *c == '\n';
    }
    guard_fail(p->a->gd, TN_ERR_PARSE, "%s:%d:%d: expected %s", p->file, line, col, expected);
}

void read_blanks(reader *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r')) p->at++;
}

static bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

bool read_accept(reader *p, const char *what) {
    read_blanks(p);
    size_t n = strlen(what);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, what, n)) return false;
    if (is_word(what[n - 1]) && p->at + n < p->end && is_word(p->at[n])) return false;
    p->at += n;
    return true;
}

void read_expect(reader *p, const char *what) {
    if (!read_accept(p, what)) read_fail(p, what);
}

void read_buffer_letter(reader *p) {
    read_blanks(p);
    if (p->at == p->end || *p->at != 'b') read_fail(p, "a buffer");
    p->at++;
}

size_t read_word(reader *p, char *out, size_t size, const char *what) {
    read_blanks(p);
    size_t n = 0;
    while (p->at + n < p->end && is_word(p->at[n])) n++;
    if (n == 0 || n >= size) read_fail(p, what);
    memcpy(out, p->at, n);
    out[n] = 0;
    p->at += n;
    return n;
}

uint64_t read_digits(reader *p) {
    read_blanks(p);
    uint64_t v = 0;
    if (p->at == p->end || *p->at < '0' || *p->at > '9') read_fail(p, "a number");
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, (uint64_t)(*p->at - '0'), &v))
            read_fail(p, "a number of 64 bits");
    return v;
}

int64_t read_int(reader *p) {
    bool minus = read_accept(p, "-");
    uint64_t v = read_digits(p);
    if (v > (uint64_t)INT64_MAX + minus) read_fail(p, "a number of 64 bits");
    return (int64_t)(minus ? 0 - v : v);
}

int64_t read_int_in(reader *p, int64_t lo, int64_t hi, const char *what) {
    read_blanks(p);
    const char *from = p->at;
    int64_t v = read_int(p);
    if (v >= lo && v < hi) return v;
    p->at = from;
    read_fail(p, what);
}

double read_number(reader *p) {
    char text[64];
    read_blanks(p);
    size_t n = 0;
    while (p->at + n < p->end && n < sizeof text - 1 &&
           (is_word(p->at[n]) || p->at[n] == '.' || p->at[n] == '-' || p->at[n] == '+'))
        n++;
    memcpy(text, p->at, n);
    text[n] = 0;
    const char *rest;
    double v = number_read(text, &rest);
    if (n == 0 || *rest) read_fail(p, "a number");
    p->at += n;
    return v;
}

tn_dtype read_dtype(reader *p, int *out_lanes) {
    char name[16];
    tn_dtype t;
    size_t n = read_word(p, name, sizeof name, "a dtype");
    char *x = out_lanes ? strchr(name, 'x') : NULL;
    if (out_lanes) *out_lanes = 1;
    if (x) {
        n = (size_t)(x - name);
        long lanes = strtol(x + 1, &x, 10);
        if (*x || lanes < 2 || lanes > 128) read_fail(p, "2 to 128 lanes");
        *out_lanes = (int)lanes;
    }
    if (!dtype_find(name, n, &t)) read_fail(p, "a dtype");
    return t;
}

void read_end(reader *p) {
    read_blanks(p);
    if (p->at != p->end) read_fail(p, "the end of the text");
}
