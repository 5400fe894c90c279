/* npy.c - one array in NumPy's .npy format: a magic, a version, a header in Python's literal syntax, the elements.
 *
 * In: untrusted bytes or an array. Out: a copy freed by tn_io_free, or a file written atomically. */
#include "io.h"

#include <stdio.h>

/* What the header says. */
typedef struct npy_header {
    tn_dtype dtype;
    tn_shape shape;
    bool fortran;
} npy_header;

/* 'text' or "text" without escapes, into out[size]. */
static tn_status read_text(io_reader *r, const char *where, char *out, size_t size) {
    char quote = io_peek(r) == '"' ? '"' : '\'';
    tn_status s = io_expect(r, quote, where);
    if (s) return s;
    size_t n = 0;
    for (int c; (c = io_next(r)) != quote; out[n++] = (char)c) {
        if (c < 32 || c > 126 || c == '\\')
            return io_parse_error(r, "a text in the header has no end or holds more than plain characters");
        if (n + 1 == size) return io_parse_error(r, "a text of more than %zu characters in the header", size - 1);
    }
    out[n] = 0;
    return TN_OK;
}

static tn_status read_descr(io_reader *r, npy_header *h) {
    char text[24];
    if (io_peek(r) == '[') return io_fail(r->ctx, TN_ERR_UNSUPPORTED, "%s: arrays of records are not supported", r->name);
    tn_status s = read_text(r, "before the descr", text, sizeof text);
    if (s) return s;
    bool one_byte = strlen(text) == 3 && text[2] == '1';
    for (int i = 0; i < TN_N_DTYPES; i++) { /* one-byte elements have no byte order: any sign is right */
        const char *descr = tn_dtype_get_info((tn_dtype)i)->numpy;
        if (descr && !strcmp(descr + 1, text[0] ? text + 1 : text) &&
            (text[0] == descr[0] || (one_byte && strchr("<>=|", text[0])))) {
            h->dtype = (tn_dtype)i;
            return TN_OK;
        }
    }
    if (text[0] == '>')
        return io_fail(r->ctx, TN_ERR_UNSUPPORTED, "%s: dtype '%s' is big-endian; save it with x.astype('<%s')", r->name, text,
                       text + 1);
    return io_fail(r->ctx, TN_ERR_UNSUPPORTED, "%s: dtype '%s' has no counterpart in Tenon", r->name, text);
}

static tn_status read_fortran(io_reader *r, npy_header *h) {
    char word[6] = { 0 };
    for (int i = 0; i < 5 && io_peek(r) >= 'A' && io_peek(r) <= 'z'; i++) word[i] = (char)io_next(r);
    h->fortran = !strcmp(word, "True");
    return h->fortran || !strcmp(word, "False") ? TN_OK : io_parse_error(r, "fortran_order must be True or False");
}

/* (), (3,) or (3, 4) with an optional last comma. A tuple of one needs its comma: (3) is a number. */
static tn_status read_shape(io_reader *r, npy_header *h) {
    tn_status s;
    if ((s = io_expect(r, '(', "before the shape"))) return s;
    bool comma = true;
    h->shape.rank = 0;
    for (io_skip_blanks(r); !io_accept(r, ')'); io_skip_blanks(r)) {
        if (!comma) return io_parse_error(r, "expected ',' or ')' in the shape");
        if (h->shape.rank == TN_MAX_RANK) return io_parse_error(r, "more than %d axes", TN_MAX_RANK);
        if ((s = io_read_int(r, "an axis", &h->shape.dim[h->shape.rank++]))) return s;
        io_skip_blanks(r);
        comma = io_accept(r, ',');
    }
    return h->shape.rank == 1 && !comma ? io_parse_error(r, "a shape of one axis needs a comma, as in (3,)") : TN_OK;
}

/* {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } in any order, then blanks and a line feed. */
static tn_status read_dict(io_reader *r, npy_header *h) {
    static const char *const keys[] = { "descr", "fortran_order", "shape" };
    int seen = 0;
    bool comma = true;
    tn_status s;
    io_skip_blanks(r);
    if ((s = io_expect(r, '{', "at the start of the header"))) return s;
    for (io_skip_blanks(r); !io_accept(r, '}'); io_skip_blanks(r)) {
        char key[24];
        int k = 0;
        if (!comma) return io_parse_error(r, "expected ',' or '}' in the header");
        if ((s = read_text(r, "before a key", key, sizeof key))) return s;
        while (k < 3 && strcmp(keys[k], key)) k++;
        if (k == 3 || seen & 1 << k) return io_parse_error(r, "key '%s' is %s", key, k == 3 ? "unknown" : "there twice");
        seen |= 1 << k;
        io_skip_blanks(r);
        if ((s = io_expect(r, ':', "after a key"))) return s;
        io_skip_blanks(r);
        s = k == 0 ? read_descr(r, h) : k == 1 ? read_fortran(r, h) : read_shape(r, h);
        if (s) return s;
        io_skip_blanks(r);
        comma = io_accept(r, ',');
    }
    if (seen != 7) return io_parse_error(r, "key '%s' is missing", keys[!(seen & 1) ? 0 : !(seen & 2) ? 1 : 2]);
    io_skip_blanks(r);
    return r->pos == r->len ? TN_OK : io_parse_error(r, "text after the header's end");
}

/* Magic, version and length; leaves r at the header's text and says how long that is. */
static tn_status read_front(io_reader *r, size_t *out_len) {
    uint8_t b[8], n[4] = { 0 };
    if (!io_get(r, b, 8) || memcmp(b, "\x93NUMPY", 6))
        return io_parse_error(r, "not an npy file: it does not begin with \\x93NUMPY and a version");
    if (b[6] < 1 || b[6] > 3 || b[7])
        return io_fail(r->ctx, TN_ERR_UNSUPPORTED, "%s: npy version %d.%d; 1.0 to 3.0 are known", r->name, b[6], b[7]);
    if (!io_get(r, n, b[6] == 1 ? 2 : 4)) return io_parse_error(r, "the file ends inside its header");
    *out_len = (size_t)n[0] | (size_t)n[1] << 8 | (size_t)n[2] << 16 | (size_t)n[3] << 24;
    if (*out_len > TN_IO_MAX_NPY_HEADER)
        return io_parse_error(r, "the header's length is %zu, more than the limit of %d", *out_len, TN_IO_MAX_NPY_HEADER);
    if (*out_len > r->len - r->pos)
        return io_parse_error(r, "the header's length is %zu, the file has only %zu bytes more (truncated?)", *out_len,
                              r->len - r->pos);
    return TN_OK;
}

/* In C order and in Fortran order an array with at most one axis longer than 1, or without elements, is the same. */
static bool order_matters(const tn_shape *shape) {
    int longer = 0;
    for (int i = 0; i < shape->rank; i++) {
        if (shape->dim[i] == 0) return false;
        longer += shape->dim[i] > 1;
    }
    return longer > 1;
}

/* The header; leaves r at the elements. total: bytes of the whole file, of which r has the first. */
static tn_status read_header(io_reader *r, uint64_t total, npy_header *h, size_t *out_size) {
    size_t n_header = 0;
    tn_status s;
    if ((s = read_front(r, &n_header))) return s;
    io_reader text = { .base = r->base + r->pos, .len = n_header, .ctx = r->ctx, .name = r->name, .origin = r->pos };
    if ((s = read_dict(&text, h))) return s;
    r->pos += n_header;
    if (!io_array_bytes(h->dtype, &h->shape, out_size)) return io_parse_error(r, "the sizes multiply beyond 63 bits");
    if (*out_size != total - r->pos)
        return io_parse_error(r, "dtype and shape need %zu bytes, the file has %llu (%s)", *out_size,
                              (unsigned long long)(total - r->pos),
                              *out_size > total - r->pos ? "truncated?" : "more than one array?");
    if (h->fortran && order_matters(&h->shape))
        return io_fail(r->ctx, TN_ERR_UNSUPPORTED, "%s: the array is in Fortran order; save it with numpy.ascontiguousarray(x)",
                       r->name);
    return TN_OK;
}

/* Gives the array out, or frees it. */
static tn_status finish(const io_reader *r, const npy_header *h, void *data, size_t size, tn_dtype *out_dtype,
                        tn_shape *out_shape, void **out_data) {
    tn_status s = h->dtype == TN_BOOL ? io_check_bool(r->ctx, r->name, "array", data, size) : TN_OK;
    if (s) {
        tn_io_free(r->ctx, data);
        return s;
    }
    *out_dtype = h->dtype;
    *out_shape = h->shape;
    *out_data = data;
    return TN_OK;
}

tn_status tn_io_npy_parse(tn_ctx *ctx, const void *bytes, size_t n_bytes, const char *name, tn_dtype *out_dtype,
                          tn_shape *out_shape, void **out_data) {
    if (!ctx || !bytes || !out_dtype || !out_shape || !out_data)
        return io_fail(ctx, TN_ERR_INVAL, "tn_io_npy_parse: an argument is NULL");
    io_reader r = { .base = bytes, .len = n_bytes, .ctx = ctx, .name = name ? name : "npy" };
    npy_header h = { 0 };
    size_t size;
    *out_data = NULL;
    tn_status s = read_header(&r, n_bytes, &h, &size);
    if (s) return s;
    void *data = io_alloc(ctx, size);
    if (!data) return TN_ERR_NOMEM;
    io_get(&r, data, size);
    return finish(&r, &h, data, size, out_dtype, out_shape, out_data);
}

/* The header is judged before memory is taken for the elements: the file may be longer than any memory. */
tn_status tn_io_npy_load(tn_ctx *ctx, const char *path, tn_dtype *out_dtype, tn_shape *out_shape, void **out_data) {
    if (!ctx || !out_dtype || !out_shape || !out_data) return io_fail(ctx, TN_ERR_INVAL, "tn_io_npy_load: an argument is NULL");
    enum { FRONT = 12 + TN_IO_MAX_NPY_HEADER };
    io_file f = { .fd = -1 };
    npy_header h = { 0 };
    uint8_t *front = NULL;
    void *data = NULL;
    size_t size;
    *out_data = NULL;
    tn_status s = io_open(ctx, path, &f);
    if (s) goto done;
    io_reader r = { .len = f.size < FRONT ? (size_t)f.size : FRONT, .ctx = ctx, .name = path };
    s = TN_ERR_NOMEM;
    if (!(r.base = front = io_alloc(ctx, FRONT))) goto done;
    s = io_read_at(ctx, &f, path, 0, front, r.len);
    if (!s) s = read_header(&r, f.size, &h, &size);
    if (s) goto done;
    s = TN_ERR_NOMEM;
    if (!(data = io_alloc(ctx, size))) goto done;
    s = io_read_at(ctx, &f, path, r.pos, data, size);
    if (s)
        tn_io_free(ctx, data);
    else
        s = finish(&r, &h, data, size, out_dtype, out_shape, out_data);
done:
    tn_io_free(ctx, front);
    io_close(&f);
    return s;
}

tn_status tn_io_npy_save(tn_ctx *ctx, const char *path, tn_dtype dtype, tn_shape shape, const void *data) {
    size_t size;
    if (!ctx || !path) return io_fail(ctx, TN_ERR_INVAL, "tn_io_npy_save: an argument is NULL");
    if (!io_array_bytes(dtype, &shape, &size) || (size && !data))
        return io_fail(ctx, TN_ERR_INVAL, "%s: dtype, shape or data is not valid", path);
    const char *descr = tn_dtype_get_info(dtype)->numpy;
    if (!descr) return io_fail(ctx, TN_ERR_UNSUPPORTED, "%s: npy has no %s; cast to f32 first", path, tn_dtype_name(dtype));

    char dims[TN_MAX_RANK * 22 + 1] = "", header[512];
    size_t at = 0;
    for (int i = 0; i < shape.rank; i++)
        at += (size_t)snprintf(dims + at, sizeof dims - at, "%s%lld%s", i ? ", " : "", (long long)shape.dim[i],
                               shape.rank == 1 ? "," : "");
    size_t n = (size_t)snprintf(header + 10, sizeof header - 10, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                                descr, dims) +
               10;
    size_t padded = (n + 1 + 63) / 64 * 64; /* the elements begin at a multiple of 64 bytes */
    memset(header + n, ' ', padded - n);
    header[padded - 1] = '\n';
    memcpy(header, "\x93NUMPY\x01", 8);
    header[8] = (char)((padded - 10) & 255), header[9] = (char)((padded - 10) >> 8);

    io_writer w = { .fd = -1 };
    tn_status s = io_write_begin(ctx, path, &w);
    if (!s) s = io_write(&w, header, padded);
    if (!s) s = io_write(&w, data, size);
    if (!s) s = io_write_commit(&w);
    io_write_abort(&w);
    return s;
}
