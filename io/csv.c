/* csv.c - tables of numbers as text.
 *
 * In: untrusted bytes: rows of numbers with commas between, ended by line feeds (a carriage return before one is fine; the last
 * may lack). Out: a row-major array freed by tn_io_free. The locale of the host plays no part. */
#include "io.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

typedef struct table {
    io_reader r;
    locale_t c; /* the "C" locale */
    tn_dtype dtype;
    int64_t line, rows, columns;
    char *data;
} table;

static tn_status csv_error(const table *t, int64_t column, const char *what, const char *field) {
    return io_fail(t->r.ctx, TN_ERR_PARSE, "%s: line %lld, column %lld: %s%s%s", t->r.name, (long long)t->line,
                   (long long)column, what, field ? ": " : "", field ? field : "");
}

/* The grammar of a number, so that strtod's hexadecimal and "nan(...)" forms stay out: [+-] digits [. digits] [e digits], inf,
 * nan in any case. */
static bool is_number(const char *p) {
    int digits = 0;
    if (*p == '+' || *p == '-') p++;
    if (!strcasecmp(p, "inf") || !strcasecmp(p, "nan")) return true; /* NaN, Inf: as other programs write them */
    for (; *p >= '0' && *p <= '9'; p++) digits++;
    if (*p == '.')
        for (p++; *p >= '0' && *p <= '9'; p++) digits++;
    if (!digits) return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '+' || *p == '-') p++;
        if (*p < '0' || *p > '9') return false;
        while (*p >= '0' && *p <= '9') p++;
    }
    return *p == 0;
}

/* A whole number without point and exponent, exactly. */
static bool read_whole(const char *p, int64_t *out) {
    bool negative = *p == '-';
    int64_t v = 0;
    for (p += *p == '-' || *p == '+'; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(v, (int64_t)10, &v) ||
            __builtin_add_overflow(v, (int64_t)(negative ? '0' - *p : *p - '0'), &v))
            return false;
    *out = v;
    return !*p;
}

/* Stores one field as element i. */
static tn_status store(table *t, int64_t column, const char *field, int64_t i) {
    if (!is_number(field)) return csv_error(t, column, *field ? "not a number" : "an empty field", *field ? field : NULL);
    if (t->dtype == TN_F32) {
        float v = strtof_l(field, NULL, t->c); /* not by way of double: that would round twice */
        memcpy(t->data + i * 4, &v, 4);
        return TN_OK;
    }
    double v = strtod_l(field, NULL, t->c);
    if (t->dtype == TN_F64) {
        memcpy(t->data + i * 8, &v, 8);
        return TN_OK;
    }
    int64_t whole;
    if (!read_whole(field, &whole)) { /* 1e3 and 2.0 are whole numbers; beyond 2^53 a double cannot say which */
        if (!(v > -0x1p53 && v < 0x1p53) || v != floor(v)) return csv_error(t, column, "not a whole number in range", field);
        whole = (int64_t)v;
    }
    if (t->dtype == TN_I32 && (whole < INT32_MIN || whole > INT32_MAX))
        return csv_error(t, column, "not a whole number in range", field);
    int32_t narrow = (int32_t)whole;
    if (t->dtype == TN_I32)
        memcpy(t->data + i * 4, &narrow, 4);
    else
        memcpy(t->data + i * 8, &whole, 8);
    return TN_OK;
}

/* A field into text, without the blanks around it; stops before a comma, a line's end or the end. */
static tn_status read_field(table *t, int64_t column, char text[TN_IO_MAX_FIELD + 1]) {
    size_t n = 0;
    int c;
    while ((c = io_peek(&t->r)) == ' ' || c == '\t') t->r.pos++;
    for (; (c = io_peek(&t->r)) >= 0 && c != ',' && c != '\n' && c != '\r'; t->r.pos++) {
        if (n == TN_IO_MAX_FIELD) return csv_error(t, column, "a field longer than a number can be", NULL);
        if (c < 32 && c != '\t') return csv_error(t, column, "a control character", NULL);
        text[n++] = (char)c;
    }
    while (n && (text[n - 1] == ' ' || text[n - 1] == '\t')) n--;
    text[n] = 0;
    return TN_OK;
}

static bool accept_line_end(io_reader *r) {
    if (io_peek(r) < 0) return true;
    size_t at = r->pos;
    io_accept(r, '\r');
    if (io_accept(r, '\n')) return true;
    r->pos = at;
    return false;
}

static tn_status read_row(table *t, int64_t row) {
    char text[TN_IO_MAX_FIELD + 1];
    for (int64_t column = 0;; column++) {
        if (column == t->columns) return csv_error(t, column + 1, "more fields than the first row has", NULL);
        tn_status s = read_field(t, column + 1, text);
        if (!s) s = store(t, column + 1, text, row * t->columns + column);
        if (s) return s;
        if (io_accept(&t->r, ',')) continue;
        if (!accept_line_end(&t->r)) return csv_error(t, column + 1, "a carriage return inside the line", NULL);
        return column + 1 == t->columns ? TN_OK : csv_error(t, column + 1, "fewer fields than the first row has", NULL);
    }
}

/* Counts rows and the fields of the first one: bounds of what is allocated, before anything is. Blank lines at the end are no
 * rows. */
static tn_status measure(table *t) {
    const io_reader *r = &t->r;
    size_t end = r->len;
    while (end > r->pos && strchr(" \t\r\n", r->base[end - 1]) && r->base[end - 1]) end--;
    t->r.len = end;
    t->rows = end > r->pos;
    t->columns = end > r->pos;
    for (size_t i = r->pos; i < end; i++) {
        t->columns += t->rows == 1 && r->base[i] == ',';
        t->rows += r->base[i] == '\n';
    }
    if (t->columns > TN_IO_MAX_COLUMNS) return csv_error(t, 1, "more columns than TN_IO_MAX_COLUMNS", NULL);
    /* a row has at least 2 * columns - 1 characters and a line's end, but for the last: a file that is shorter is malformed */
    if (t->rows && t->rows > (int64_t)(end - r->pos) / (2 * t->columns) + 1)
        return csv_error(t, 1, "later rows have fewer fields than the first", NULL);
    return TN_OK;
}

tn_status tn_io_csv_parse(tn_ctx *ctx, const void *bytes, size_t n_bytes, const char *name, tn_dtype dtype, int skip_lines,
                          tn_shape *out_shape, void **out_data) {
    if (!ctx || !bytes || !out_shape || !out_data || skip_lines < 0)
        return io_fail(ctx, TN_ERR_INVAL, "tn_io_csv_parse: an argument is NULL or negative");
    if (dtype != TN_F32 && dtype != TN_F64 && dtype != TN_I32 && dtype != TN_I64)
        return io_fail(ctx, TN_ERR_DTYPE, "a CSV table is f32, f64, i32 or i64, not %s", tn_dtype_name(dtype));
    table t = { .r = { .base = bytes, .len = n_bytes, .ctx = ctx, .name = name ? name : "csv" }, .dtype = dtype, .line = 1 };
    tn_status s;
    *out_data = NULL;
    if (n_bytes >= 3 && !memcmp(bytes, "\xEF\xBB\xBF", 3)) t.r.pos = 3; /* byte order mark */
    for (; t.line <= skip_lines; t.line++) {
        int c;
        while ((c = io_next(&t.r)) >= 0 && c != '\n') {
        }
        if (c < 0) return csv_error(&t, 1, "the file has no more lines than the heading that is skipped", NULL);
    }
    if ((s = measure(&t))) return s;
    if (!(t.c = newlocale(LC_ALL_MASK, "C", (locale_t)0))) return io_fail(ctx, TN_ERR_NOMEM, "out of memory: the C locale");
    s = TN_ERR_NOMEM;
    if (!(t.data = io_alloc(ctx, (size_t)(t.rows * t.columns) * tn_dtype_size(dtype)))) goto done;
    s = TN_OK;
    for (int64_t row = 0; row < t.rows && !s; row++, t.line++) s = read_row(&t, row);
    if (s) goto done;
    *out_shape = TN_DIMS(t.rows, t.columns);
    *out_data = t.data;
    t.data = NULL;
done:
    tn_io_free(ctx, t.data);
    freelocale(t.c);
    return s;
}

tn_status tn_io_csv_load(tn_ctx *ctx, const char *path, tn_dtype dtype, int skip_lines, tn_shape *out_shape, void **out_data) {
    if (!ctx || !out_data) return io_fail(ctx, TN_ERR_INVAL, "tn_io_csv_load: an argument is NULL");
    uint8_t *bytes = NULL;
    size_t n;
    *out_data = NULL;
    tn_status s = io_read_all(ctx, path, TN_IO_MAX_CSV, &bytes, &n);
    if (!s) s = tn_io_csv_parse(ctx, bytes, n, path, dtype, skip_lines, out_shape, out_data);
    tn_io_free(ctx, bytes);
    return s;
}
