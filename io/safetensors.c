/* safetensors.c - loading and saving safetensors files: 8 bytes of header length, a JSON header, the arrays.
 *
 * In: a path or bytes, or arrays. Out: a tn_io_tensors that owns a mapping of the file, or copies; or a file written
 * atomically. Each array that is given out starts at a multiple of 64 bytes: one that does not in the file is copied when it is
 * asked for. What was checked of the contents is copied, too, for others may write to the file. */
#include "safetensors.h"

#include <stdio.h>

enum { ARRAY_ALIGN = 64, WORTH_ALIGNING = 4096 /* bytes of a file's arrays: a header is padded with up to 63 for them */ };

struct tn_io_tensors {
    tn_ctx *ctx;
    st_header header;
    tn_io_tensor *tensors; /* [header.n]; data: NULL where nobody has asked for it yet */
    void **own;            /* [header.n] copies, or NULL */
    io_mapping map;        /* all zeros: every array is a copy */
    const uint8_t *arrays; /* in the mapping */
};

/* A whole file in memory. */
typedef struct source {
    tn_ctx *ctx;
    const char *name;
    const uint8_t *bytes;
    size_t size;
} source;

/* Length of the header, checked against the limit and the size of the file. */
static tn_status read_length(const source *src, uint64_t *out) {
    if (src->size < 8)
        return io_fail(src->ctx, TN_ERR_PARSE, "%s: %llu bytes are too few for a safetensors file", src->name,
                       (unsigned long long)src->size);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | src->bytes[i];
    if (n > TN_IO_MAX_HEADER)
        return io_fail(src->ctx, TN_ERR_PARSE,
                       "%s: offset 0: the header's length is %llu, more than the limit of %d (not a safetensors file?)",
                       src->name, (unsigned long long)n, TN_IO_MAX_HEADER);
    if (n > src->size - 8)
        return io_fail(src->ctx, TN_ERR_PARSE,
                       "%s: offset 0: the header's length is %llu, the file has only %llu bytes more (truncated?)", src->name,
                       (unsigned long long)n, (unsigned long long)(src->size - 8));
    *out = n;
    return TN_OK;
}

static tn_status read_header(const source *src, uint64_t n, st_header *out) {
    *out = (st_header){ 0 };
    uint8_t *text = io_alloc(src->ctx, (size_t)n + 1); /* it is read more than once, and must stay the same */
    if (!text) return TN_ERR_NOMEM;
    if (n) memcpy(text, src->bytes + 8, (size_t)n);
    io_reader r = { .base = text, .len = (size_t)n, .ctx = src->ctx, .name = src->name, .origin = 8 };
    tn_status s = st_header_parse(&r, src->size - 8 - n, out);
    tn_io_free(src->ctx, text);
    return s;
}

static bool copy_array(tn_io_tensors *t, int i) {
    const st_entry *e = &t->header.entries[i];
    size_t n = (size_t)(e->end - e->begin);
    if (!(t->own[i] = io_room(t->ctx, n))) return false;
    if (n) memcpy(t->own[i], t->arrays + e->begin, n);
    if (t->map.bytes) io_forget(t->arrays + e->begin, n);
    t->tensors[i].data = t->own[i];
    return true;
}

/* mapped: arrays stay where they are, as far as possible. */
static tn_status place_arrays(const source *src, tn_io_tensors *t, bool mapped) {
    for (int i = 0; i < t->header.n; i++) {
        const st_entry *e = &t->header.entries[i];
        const uint8_t *at = t->arrays + e->begin;
        t->tensors[i] = (tn_io_tensor){ .name = e->name, .dtype = e->dtype, .shape = e->shape };
        if (!mapped || e->dtype == TN_BOOL || e->begin == e->end) {
            if (!copy_array(t, i)) return TN_ERR_NOMEM;
            tn_status s = e->dtype == TN_BOOL
                              ? io_check_bool(src->ctx, src->name, e->name, t->own[i], (size_t)(e->end - e->begin))
                              : TN_OK;
            if (s) return s;
        } else if ((uintptr_t)at % ARRAY_ALIGN == 0) {
            t->tensors[i].data = at;
        }
    }
    return TN_OK;
}

/* map: of src, taken over in any case; NULL: src goes away. */
static tn_status load(const source *src, io_mapping *map, tn_io_tensors **out) {
    uint64_t n = 0;
    tn_status s = TN_ERR_NOMEM;
    tn_io_tensors *t = io_alloc(src->ctx, sizeof *t);
    if (!t) goto done;
    t->ctx = src->ctx;
    if ((s = read_length(src, &n))) goto done;
    if ((s = read_header(src, n, &t->header))) goto done;
    s = TN_ERR_NOMEM;
    if (!(t->tensors = io_alloc(src->ctx, (size_t)t->header.n * sizeof *t->tensors))) goto done;
    if (!(t->own = io_alloc(src->ctx, (size_t)t->header.n * sizeof *t->own))) goto done;
    t->arrays = src->bytes + 8 + n;
    if ((s = place_arrays(src, t, map != NULL))) goto done;
    if (map) t->map = *map, *map = (io_mapping){ 0 };
    *out = t;
    t = NULL;
done:
    tn_io_tensors_free(t);
    if (map) io_unmap(map);
    return s;
}

tn_status tn_io_safetensors_load(tn_ctx *ctx, const char *path, tn_io_tensors **out_tensors) {
    if (!ctx || !out_tensors) return io_fail(ctx, TN_ERR_INVAL, "tn_io_safetensors_load: an argument is NULL");
    *out_tensors = NULL;
    io_mapping map;
    tn_status s = io_map(ctx, path, &map);
    return s ? s : load(&(source){ ctx, path, map.bytes, map.size }, &map, out_tensors);
}

tn_status tn_io_safetensors_parse(tn_ctx *ctx, const void *bytes, size_t n_bytes, const char *name,
                                  tn_io_tensors **out_tensors) {
    if (!ctx || !out_tensors || !bytes) return io_fail(ctx, TN_ERR_INVAL, "tn_io_safetensors_parse: an argument is NULL");
    *out_tensors = NULL;
    return load(&(source){ ctx, name ? name : "safetensors", bytes, n_bytes }, NULL, out_tensors);
}

void tn_io_tensors_free(tn_io_tensors *t) {
    if (!t) return;
    for (int i = 0; t->own && i < t->header.n; i++) tn_io_free(t->ctx, t->own[i]);
    st_header_free(t->ctx, &t->header);
    tn_io_free(t->ctx, t->tensors);
    tn_io_free(t->ctx, t->own);
    io_unmap(&t->map);
    tn_io_free(t->ctx, t);
}

int tn_io_tensors_count(const tn_io_tensors *t) { return t ? t->header.n : 0; }
const tn_io_tensor *tn_io_tensors_get(const tn_io_tensors *t, int i) {
    if (!t || i < 0 || i >= t->header.n) return NULL;
    bool there = t->tensors[i].data || copy_array((tn_io_tensors *)(uintptr_t)t, i); /* seen from outside nothing changes */
    return there ? &t->tensors[i] : NULL;
}
static int index_of(const tn_io_tensors *t, const char *name) { /* -1: there is none */
    int low = 0, high = t->header.n;
    while (low < high) {
        int middle = low + (high - low) / 2, i = t->header.by_name[middle];
        int order = strcmp(name, t->header.entries[i].name);
        if (order == 0) return i;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}
const tn_io_tensor *tn_io_tensors_find(const tn_io_tensors *t, const char *name) {
    return t && name ? tn_io_tensors_get(t, index_of(t, name)) : NULL;
}
bool st_find(const tn_io_tensors *t, const char *name, tn_io_tensor *out) {
    int i = index_of(t, name);
    if (i < 0) return false;
    *out = t->tensors[i];
    if (!out->data) out->data = t->arrays + t->header.entries[i].begin;
    return true;
}
const char *tn_io_tensors_metadata(const tn_io_tensors *t, const char *key) {
    for (int i = 0; t && key && i < t->header.n_metadata; i++)
        if (!strcmp(t->header.metadata[i].key, key)) return t->header.metadata[i].value;
    return NULL;
}

/* ---- saving ---- */

/* Appends text at *at of a buffer; with to NULL only counts. */
static void put(char *to, size_t *at, const char *text) {
    size_t n = strlen(text);
    if (to) memcpy(to + *at, text, n);
    *at += n;
}

static void put_string(char *to, size_t *at, const char *text) {
    put(to, at, "\"");
    for (const char *p = text; *p; p++) {
        char one[8] = { *p, 0 };
        if (*p == '"' || *p == '\\')
            one[0] = '\\', one[1] = *p;
        else if ((unsigned char)*p < 32)
            snprintf(one, sizeof one, "\\u%04x", (unsigned)*p);
        put(to, at, one);
    }
    put(to, at, "\"");
}

/* The header's text for tensors[order[0..n)], laid out in that order. Returns its length; with to NULL only that. */
static size_t put_header(char *to, const tn_io_tensor *tensors, const int *order, int n) {
    size_t at = 0;
    uint64_t offset = 0;
    char number[64];
    put(to, &at, "{");
    for (int i = 0; i < n; i++) {
        const tn_io_tensor *t = &tensors[order[i]];
        size_t bytes = 0;
        (void)io_array_bytes(t->dtype, &t->shape, &bytes); /* checked before */
        if (i) put(to, &at, ",");
        put_string(to, &at, t->name);
        put(to, &at, ":{\"dtype\":\"");
        put(to, &at, st_dtype_name(t->dtype));
        put(to, &at, "\",\"shape\":[");
        for (int k = 0; k < t->shape.rank; k++) {
            snprintf(number, sizeof number, "%s%lld", k ? "," : "", (long long)t->shape.dim[k]);
            put(to, &at, number);
        }
        snprintf(number, sizeof number, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)offset,
                 (unsigned long long)(offset + bytes));
        put(to, &at, number);
        offset += bytes;
    }
    put(to, &at, "}");
    int64_t align = offset < WORTH_ALIGNING ? 8 : ARRAY_ALIGN;
    while ((8 + at) % (size_t)align) put(to, &at, " ");
    return at;
}

static bool by_name(const void *ud, int a, int b) {
    const tn_io_tensor *t = ud;
    return strcmp(t[a].name, t[b].name) < 0;
}

static bool is_lines(const tn_io_tensor *t) {
    size_t bytes = 0;
    (void)io_array_bytes(t->dtype, &t->shape, &bytes);
    return bytes % ARRAY_ALIGN == 0;
}

/* First the arrays that leave the place behind them aligned for all others, then wide elements before narrow ones, so that
 * every array is aligned to its elements in the file; otherwise the order given. */
static void order_for_alignment(const tn_io_tensor *tensors, int n, int *order) {
    int k = 0;
    for (int i = 0; i < n; i++)
        if (is_lines(&tensors[i])) order[k++] = i;
    for (size_t size = 8; size >= 1; size /= 2)
        for (int i = 0; i < n; i++)
            if (tn_dtype_size(tensors[i].dtype) == size && !is_lines(&tensors[i])) order[k++] = i;
}

static tn_status check_tensors(tn_ctx *ctx, const char *path, const tn_io_tensor *tensors, int n, int *order) {
    uint64_t total = 0;
    for (int i = 0; i < n; i++) {
        const tn_io_tensor *t = &tensors[i];
        size_t bytes;
        if (!t->name || !*t->name || !strcmp(t->name, "__metadata__") || strlen(t->name) > TN_IO_MAX_NAME ||
            !io_is_utf8(t->name, strlen(t->name)))
            return io_fail(ctx, TN_ERR_INVAL,
                           "%s: tensor %d: the name must be UTF-8 of 1 to %d bytes, and not \"__metadata__\"", path, i,
                           TN_IO_MAX_NAME);
        if (!io_array_bytes(t->dtype, &t->shape, &bytes) || __builtin_add_overflow(total, bytes, &total))
            return io_fail(ctx, TN_ERR_INVAL, "%s: %s: dtype or shape is not valid", path, t->name);
        if (bytes && !t->data) return io_fail(ctx, TN_ERR_INVAL, "%s: %s: data is NULL", path, t->name);
        order[i] = i;
    }
    st_sort(order, n, by_name, tensors);
    for (int i = 1; i < n; i++)
        if (!by_name(tensors, order[i - 1], order[i]))
            return io_fail(ctx, TN_ERR_INVAL, "%s: two tensors have the name \"%s\"", path, tensors[order[i]].name);
    return TN_OK;
}

static tn_status write_file(io_writer *w, const char *header, size_t n_header, const tn_io_tensor *tensors, const int *order,
                            int n) {
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)n_header >> 8 * i);
    tn_status s = io_write(w, length, 8);
    if (!s) s = io_write(w, header, n_header);
    for (int i = 0; i < n && !s; i++) {
        size_t bytes = 0;
        (void)io_array_bytes(tensors[order[i]].dtype, &tensors[order[i]].shape, &bytes);
        s = io_write(w, tensors[order[i]].data, bytes);
    }
    return s ? s : io_write_commit(w);
}

tn_status tn_io_safetensors_save(tn_ctx *ctx, const char *path, const tn_io_tensor *tensors, int n) {
    if (!ctx || !path || n < 0 || (n && !tensors))
        return io_fail(ctx, TN_ERR_INVAL, "tn_io_safetensors_save: an argument is NULL or negative");
    if (n > TN_IO_MAX_TENSORS) return io_fail(ctx, TN_ERR_INVAL, "%s: %d tensors are more than %d", path, n, TN_IO_MAX_TENSORS);
    io_writer w = { .fd = -1 };
    char *header = NULL;
    size_t n_header = 0;
    tn_status s = TN_ERR_NOMEM;
    int *order = io_alloc(ctx, (size_t)n * sizeof *order);
    if (!order) goto done;
    if ((s = check_tensors(ctx, path, tensors, n, order))) goto done;
    order_for_alignment(tensors, n, order);
    n_header = put_header(NULL, tensors, order, n);
    if (n_header > TN_IO_MAX_HEADER) {
        s = io_fail(ctx, TN_ERR_INVAL, "%s: the names need a header of more than %d bytes", path, TN_IO_MAX_HEADER);
        goto done;
    }
    s = TN_ERR_NOMEM;
    if (!(header = io_alloc(ctx, n_header))) goto done;
    put_header(header, tensors, order, n);
    if ((s = io_write_begin(ctx, path, &w))) goto done;
    s = write_file(&w, header, n_header, tensors, order, n);
done:
    io_write_abort(&w);
    tn_io_free(ctx, header);
    tn_io_free(ctx, order);
    return s;
}
