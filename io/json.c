/* json.c - JSON, read strictly: strings for the other readers, and whole files as an array of values in the order of the file.
 *
 * In: untrusted bytes through the bounded reader. Out: values; before the root stands one that keeps their texts. There is no
 * recursion: the arrays and objects that are open stand in a list of TN_IO_MAX_DEPTH. */
#include "io.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- strings ---- */

static int hex_digit(int c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The four digits after \u; -1 when they are not there. */
static int32_t read_hex4(io_reader *r) {
    int32_t v = 0;
    for (int i = 0; i < 4; i++) {
        int d = hex_digit(io_next(r));
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

static size_t put_utf8(char *to, uint32_t c) {
    if (c < 0x80) return to[0] = (char)c, 1;
    if (c < 0x800) return to[0] = (char)(0xC0 | c >> 6), to[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000) {
        to[0] = (char)(0xE0 | c >> 12), to[1] = (char)(0x80 | (c >> 6 & 63)), to[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    to[0] = (char)(0xF0 | c >> 18), to[1] = (char)(0x80 | (c >> 12 & 63));
    to[2] = (char)(0x80 | (c >> 6 & 63)), to[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* An escape after its backslash, appended to the text. */
static tn_status read_escape(io_reader *r, char *text, size_t *n_text) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = io_next(r);
    const char *plain = c > 0 ? strchr(from, c) : NULL;
    if (plain) {
        text[(*n_text)++] = to[plain - from];
        return TN_OK;
    }
    if (c != 'u') return io_parse_error(r, "unknown escape in a string");
    int32_t u = read_hex4(r);
    if (u < 0) return io_parse_error(r, "\\u needs four hexadecimal digits");
    if (u == 0) return io_parse_error(r, "a string contains the zero character");
    if (u >= 0xDC00 && u < 0xE000) return io_parse_error(r, "a low surrogate without a high one before it");
    uint32_t code = (uint32_t)u;
    if (u >= 0xD800 && u < 0xDC00) {
        int32_t low = io_next(r) == '\\' && io_next(r) == 'u' ? read_hex4(r) : -1;
        if (low < 0xDC00 || low >= 0xE000) return io_parse_error(r, "a high surrogate without a low one after it");
        code = 0x10000 + (((uint32_t)u - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
    }
    *n_text += put_utf8(text + *n_text, code);
    return TN_OK;
}

tn_status io_read_text(io_reader *r, const char *what, size_t max, char *text, size_t *n_text, char **out) {
    size_t start = *n_text;
    tn_status s;
    if ((s = io_expect(r, '"', what))) return s;
    for (;;) {
        int c = io_next(r);
        if (c == '"') break;
        if (c < 0) return io_parse_error(r, "a string has no end");
        if (c < 32) return io_parse_error(r, "a control character in a string");
        if (c != '\\')
            text[(*n_text)++] = (char)c;
        else if ((s = read_escape(r, text, n_text)))
            return s;
        if (max && *n_text - start > max) return io_parse_error(r, "a name of more than %zu bytes", max);
    }
    if (!io_is_utf8(text + start, *n_text - start)) return io_parse_error(r, "a string is not UTF-8");
    text[(*n_text)++] = 0;
    *out = text + start;
    return TN_OK;
}

/* ---- values ---- */

typedef struct parser {
    io_reader r;
    locale_t c; /* numbers have a decimal point */
    tn_json *at;
    size_t n, room;
    char *text;
    size_t n_text;
    int32_t open[TN_IO_MAX_DEPTH]; /* arrays and objects that have not ended */
    int depth;
} parser;

static size_t digits(const char *p) {
    size_t n = 0;
    while (p[n] >= '0' && p[n] <= '9') n++;
    return n;
}

static tn_status read_number(parser *p, double *out) {
    char text[64] = { 0 };
    size_t n = 0, whole;
    for (int c; n + 1 < sizeof text && (c = io_peek(&p->r)) > 0 && strchr("0123456789+-.eE", c); p->r.pos++)
        text[n++] = (char)c;
    const char *at = text + (*text == '-');
    bool ok = (whole = digits(at)) && (*at != '0' || whole == 1) && n + 1 < sizeof text;
    at += whole;
    if (ok && *at == '.') whole = digits(at + 1), ok = whole > 0, at += 1 + whole;
    if (ok && (*at == 'e' || *at == 'E')) {
        at += 1 + (at[1] == '-' || at[1] == '+');
        whole = digits(at), ok = whole > 0, at += whole;
    }
    if (!ok || *at) return io_parse_error(&p->r, "expected a value, found \"%s\"", text);
    *out = strtod_l(text, NULL, p->c);
    return TN_OK;
}

static bool accept_word(io_reader *r, const char *word) {
    size_t n = strlen(word);
    if (r->len - r->pos < n || memcmp(r->base + r->pos, word, n) != 0) return false;
    r->pos += n;
    return true;
}

static tn_status add_value(parser *p, tn_json **out) {
    if (p->n == p->room) {
        size_t more = p->room ? p->room * 2 : 64;
        tn_json *bigger = io_room(p->r.ctx, more * sizeof *bigger);
        if (!bigger) return TN_ERR_NOMEM;
        if (p->n) memcpy(bigger, p->at, p->n * sizeof *bigger);
        tn_io_free(p->r.ctx, p->at);
        p->at = bigger, p->room = more;
    }
    *out = &p->at[p->n++];
    **out = (tn_json){ .all = 1 };
    return TN_OK;
}

/* A value, of an array or an object its beginning. */
static tn_status read_value(parser *p) {
    io_reader *r = &p->r;
    tn_json *v;
    tn_status s = TN_OK;
    char *text;
    bool member = p->depth && p->at[p->open[p->depth - 1]].kind == TN_JSON_OBJECT;
    if (p->depth) p->at[p->open[p->depth - 1]].n++;
    if ((s = add_value(p, &v))) return s;
    io_skip_blanks(r);
    if (member) {
        size_t from = p->n_text;
        if ((s = io_read_text(r, "before a member's name", 0, p->text, &p->n_text, &text))) return s;
        v->key = p->text + from;
        io_skip_blanks(r);
        if ((s = io_expect(r, ':', "behind a member's name"))) return s;
        io_skip_blanks(r);
    }
    int c = io_peek(r);
    if (c == '"') {
        v->kind = TN_JSON_TEXT;
        if ((s = io_read_text(r, "", 0, p->text, &p->n_text, &text))) return s;
        v->text = text, v->n = (int32_t)(p->text + p->n_text - 1 - text);
    } else if (c == '[' || c == '{') {
        v->kind = c == '[' ? TN_JSON_ARRAY : TN_JSON_OBJECT;
        if (p->depth == TN_IO_MAX_DEPTH) return io_parse_error(r, "more than %d levels of arrays and objects", TN_IO_MAX_DEPTH);
        p->open[p->depth++] = (int32_t)(p->n - 1);
        r->pos++;
    } else if (accept_word(r, "true"))
        v->kind = TN_JSON_BOOL, v->number = 1;
    else if (accept_word(r, "false"))
        v->kind = TN_JSON_BOOL;
    else if (!accept_word(r, "null"))
        v->kind = TN_JSON_NUMBER, s = read_number(p, &v->number);
    return s;
}

/* Everything that ends where the reader stands. *more: a further element or member follows. */
static tn_status end_values(parser *p, bool *more) {
    io_reader *r = &p->r;
    for (*more = false; p->depth; p->depth--) {
        tn_json *v = &p->at[p->open[p->depth - 1]];
        bool empty = !v->n;
        io_skip_blanks(r);
        if (!io_accept(r, v->kind == TN_JSON_ARRAY ? ']' : '}')) {
            *more = true;
            return empty ? TN_OK
                         : io_expect(r, ',', v->kind == TN_JSON_ARRAY ? "or ] behind an element" : "or } behind a member");
        }
        v->all = (int32_t)(&p->at[p->n] - v);
    }
    return TN_OK;
}

static tn_status read_all(parser *p) {
    tn_status s = TN_OK;
    for (bool more = true; more && !s;) {
        s = read_value(p);
        if (!s) s = end_values(p, &more);
    }
    io_skip_blanks(&p->r);
    return s ? s : p->r.pos < p->r.len ? io_parse_error(&p->r, "expected the end of the file") : TN_OK;
}

tn_status tn_io_json_parse(tn_ctx *ctx, const void *bytes, size_t n, const char *name, const tn_json **out) {
    if (!ctx || (!bytes && n) || !out) return io_fail(ctx, TN_ERR_INVAL, "tn_io_json_parse: an argument is NULL");
    *out = NULL;
    parser p = { .r = { .base = bytes, .len = n, .ctx = ctx, .name = name ? name : "json" } };
    if (n > TN_IO_MAX_JSON) return io_parse_error(&p.r, "%zu bytes of JSON; the limit is %d", n, TN_IO_MAX_JSON);
    if (!(p.c = newlocale(LC_ALL_MASK, "C", (locale_t)0))) return io_fail(ctx, TN_ERR_NOMEM, "out of memory: the C locale");
    tn_json *before; /* the root: what keeps the texts */
    tn_status s = TN_ERR_NOMEM;
    if (!(p.text = io_room(ctx, n + 1))) goto done;
    if ((s = add_value(&p, &before))) goto done;
    if ((s = read_all(&p))) goto done;
    p.at[0].text = p.text;
    *out = p.at + 1;
    p.at = NULL, p.text = NULL;
done:
    tn_io_free(ctx, p.at);
    tn_io_free(ctx, p.text);
    freelocale(p.c);
    return s;
}

tn_status tn_io_json_load(tn_ctx *ctx, const char *path, const tn_json **out) {
    if (!ctx || !path || !out) return io_fail(ctx, TN_ERR_INVAL, "tn_io_json_load: an argument is NULL");
    uint8_t *bytes = NULL;
    size_t n;
    *out = NULL;
    tn_status s = io_read_all(ctx, path, TN_IO_MAX_JSON, &bytes, &n);
    if (!s) s = tn_io_json_parse(ctx, bytes, n, path, out);
    tn_io_free(ctx, bytes);
    return s;
}

void tn_io_json_free(tn_ctx *ctx, const tn_json *root) {
    if (!root) return;
    tn_io_free(ctx, (void *)(uintptr_t)root[-1].text);
    tn_io_free(ctx, (void *)(uintptr_t)(root - 1));
}

const tn_json *tn_io_json_find(const tn_json *v, const char *key) {
    const tn_json *found = NULL;
    if (!v || v->kind != TN_JSON_OBJECT || !key) return NULL;
    for (const tn_json *m = v + 1; m < v + v->all; m += m->all)
        if (!strcmp(m->key, key)) found = m;
    return found;
}
