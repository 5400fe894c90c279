/* safetensors_header.c - the JSON header of a safetensors file, read strictly.
 *
 * In: untrusted bytes. Out: entries whose sizes, offsets and names were all checked. Only the JSON that the format allows is
 * accepted (one object of objects; no floats, no nesting beyond it), so there is no recursion. Memory is bounded by the
 * header's length: strings go to a buffer of that size (decoding never lengthens), entries grow as they are found. */
#include "safetensors.h"

/* ---- dtypes ---- */

/* Those that the format knows, but not Tenon. */
static const char *const others[] = { "C64", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2" };
enum { N_OTHERS = sizeof others / sizeof others[0] };

const char *st_dtype_name(tn_dtype t) {
    const tn_dtype_info *i = tn_dtype_get_info(t);
    return i ? i->safetensors : NULL;
}

/* ---- sorting ---- */

static void sift_down(int *order, int i, int n, bool (*less)(const void *, int, int), const void *ud) {
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && less(ud, order[child], order[child + 1])) child++;
        if (!less(ud, order[i], order[child])) return;
        int t = order[i];
        order[i] = order[child], order[child] = t;
    }
}
void st_sort(int *order, int n, bool (*less)(const void *ud, int a, int b), const void *ud) { /* heap sort: no worst case */
    for (int i = n / 2 - 1; i >= 0; i--) sift_down(order, i, n, less, ud);
    for (int last = n - 1; last > 0; last--) {
        int t = order[0];
        order[0] = order[last], order[last] = t;
        sift_down(order, 0, last, less, ud);
    }
}

/* A string, decoded into h->text and ended by a zero byte. max 0 = only bounded by the header. */
static tn_status read_string(io_reader *r, st_header *h, const char *what, size_t max, char **out) {
    return io_read_text(r, what, max, h->text, &h->n_text, out);
}

/* ---- the parts of an entry ---- */

static tn_status read_dtype(io_reader *r, st_header *h, st_entry *e) {
    char *name;
    tn_status s = read_string(r, h, "before the dtype", 0, &name);
    if (s) return s;
    for (int i = 0; i < TN_N_DTYPES; i++)
        if (!strcmp(st_dtype_name((tn_dtype)i), name)) {
            e->dtype = (tn_dtype)i;
            return TN_OK;
        }
    for (int i = 0; i < N_OTHERS; i++)
        if (!strcmp(others[i], name))
            return io_fail(r->ctx, TN_ERR_UNSUPPORTED, "%s: %s: dtype %s has no counterpart in Tenon", r->name, e->name, name);
    return io_parse_error(r, "%s: unknown dtype \"%.40s\"", e->name, name);
}

/* [1, 2, 3] into out[0..max); *out_n says how many there were. */
static tn_status read_ints(io_reader *r, const char *what, int64_t *out, int max, int *out_n) {
    tn_status s;
    if ((s = io_expect(r, '[', what))) return s;
    *out_n = 0;
    io_skip_blanks(r);
    if (io_accept(r, ']')) return TN_OK;
    do {
        io_skip_blanks(r);
        if (*out_n == max) return io_parse_error(r, "more than %d numbers %s", max, what);
        if ((s = io_read_int(r, "a size or offset", &out[(*out_n)++]))) return s;
        io_skip_blanks(r);
    } while (io_accept(r, ','));
    return io_expect(r, ']', what);
}

/* The value behind one key of an entry. seen: bits of the keys that were there already. */
static tn_status read_field(io_reader *r, st_header *h, st_entry *e, const char *key, int *seen) {
    static const char *const keys[] = { "dtype", "shape", "data_offsets" };
    int k = 0;
    while (k < 3 && strcmp(keys[k], key)) k++;
    if (k == 3) return io_parse_error(r, "%s: unknown key \"%.40s\"", e->name, key);
    if (*seen & 1 << k) return io_parse_error(r, "%s: \"%s\" is there twice", e->name, key);
    *seen |= 1 << k;
    if (k == 0) return read_dtype(r, h, e);
    if (k == 1) return read_ints(r, "in a shape", e->shape.dim, TN_MAX_RANK, &e->shape.rank);
    int64_t offset[2];
    int n;
    tn_status s = read_ints(r, "in data_offsets", offset, 2, &n);
    if (s) return s;
    if (n != 2) return io_parse_error(r, "%s: data_offsets needs two numbers", e->name);
    if (offset[0] > offset[1]) return io_parse_error(r, "%s: data_offsets end before they begin", e->name);
    e->begin = (uint64_t)offset[0], e->end = (uint64_t)offset[1];
    return TN_OK;
}

static tn_status read_entry(io_reader *r, st_header *h, st_entry *e, uint64_t n_data) {
    tn_status s;
    if ((s = io_expect(r, '{', "before a tensor's description"))) return s;
    int seen = 0;
    io_skip_blanks(r);
    if (io_peek(r) == '}') return io_parse_error(r, "%s: the description is empty", e->name);
    do {
        char *key;
        io_skip_blanks(r);
        if ((s = read_string(r, h, "before a key", TN_IO_MAX_NAME, &key))) return s;
        io_skip_blanks(r);
        if ((s = io_expect(r, ':', "after a key"))) return s;
        io_skip_blanks(r);
        if ((s = read_field(r, h, e, key, &seen))) return s;
        io_skip_blanks(r);
    } while (io_accept(r, ','));
    if ((s = io_expect(r, '}', "after a tensor's description"))) return s;
    if (seen != 7)
        return io_parse_error(r, "%s: %s is missing", e->name, !(seen & 1) ? "dtype" : !(seen & 2) ? "shape" : "data_offsets");
    size_t bytes;
    if (!io_array_bytes(e->dtype, &e->shape, &bytes))
        return io_parse_error(r, "%s: the sizes multiply beyond 63 bits", e->name);
    if (e->end > n_data)
        return io_parse_error(r, "%s: ends at byte %llu of the data, which has %llu (truncated file?)", e->name,
                              (unsigned long long)e->end, (unsigned long long)n_data);
    if (e->end - e->begin != bytes)
        return io_parse_error(r, "%s: dtype and shape need %zu bytes, data_offsets give %llu", e->name, bytes,
                              (unsigned long long)(e->end - e->begin));
    return TN_OK;
}

/* ---- the whole ---- */

/* Room for one more in a growing array. */
static bool grow(tn_ctx *ctx, void **at, int n, int *cap, size_t size) {
    if (n < *cap) return true;
    int more = *cap ? *cap * 2 : 16;
    void *bigger = io_alloc(ctx, (size_t)more * size);
    if (!bigger) return false;
    if (n) memcpy(bigger, *at, (size_t)n * size);
    tn_io_free(ctx, *at);
    *at = bigger;
    *cap = more;
    return true;
}

static tn_status read_metadata(io_reader *r, st_header *h) {
    tn_status s;
    if ((s = io_expect(r, '{', "before the metadata"))) return s;
    io_skip_blanks(r);
    if (io_accept(r, '}')) return TN_OK;
    do {
        if (h->n_metadata == TN_IO_MAX_TENSORS) return io_parse_error(r, "more than %d metadata entries", TN_IO_MAX_TENSORS);
        if (!grow(r->ctx, (void **)&h->metadata, h->n_metadata, &h->cap_metadata, sizeof *h->metadata)) return TN_ERR_NOMEM;
        st_pair *p = &h->metadata[h->n_metadata++];
        io_skip_blanks(r);
        if ((s = read_string(r, h, "before a metadata key", TN_IO_MAX_NAME, &p->key))) return s;
        io_skip_blanks(r);
        if ((s = io_expect(r, ':', "after a metadata key"))) return s;
        io_skip_blanks(r);
        if ((s = read_string(r, h, "before a metadata value (only strings are allowed)", 0, &p->value))) return s;
        io_skip_blanks(r);
    } while (io_accept(r, ','));
    return io_expect(r, '}', "after the metadata");
}

static bool name_less(const void *ud, int a, int b) {
    const st_header *h = ud;
    return strcmp(h->entries[a].name, h->entries[b].name) < 0;
}
static bool key_less(const void *ud, int a, int b) {
    const st_header *h = ud;
    return strcmp(h->metadata[a].key, h->metadata[b].key) < 0;
}
static bool offset_less(const void *ud, int a, int b) {
    const st_entry *e = ((const st_header *)ud)->entries;
    if (e[a].begin != e[b].begin) return e[a].begin < e[b].begin;
    return e[a].end != e[b].end ? e[a].end < e[b].end : a < b;
}

/* No two entries and no two metadata keys with one name; fills by_name. order has room for the larger of the two counts. */
static tn_status check_names(io_reader *r, st_header *h, int *order) {
    for (int i = 0; i < h->n_metadata; i++) order[i] = i;
    st_sort(order, h->n_metadata, key_less, h);
    for (int i = 1; i < h->n_metadata; i++)
        if (!key_less(h, order[i - 1], order[i]))
            return io_parse_error(r, "metadata key \"%s\" is there twice", h->metadata[order[i]].key);
    if (!(h->by_name = io_alloc(r->ctx, (size_t)h->n * sizeof(int)))) return TN_ERR_NOMEM;
    for (int i = 0; i < h->n; i++) h->by_name[i] = i;
    st_sort(h->by_name, h->n, name_less, h);
    for (int i = 1; i < h->n; i++)
        if (!name_less(h, h->by_name[i - 1], h->by_name[i]))
            return io_parse_error(r, "two tensors have the name \"%s\"", h->entries[h->by_name[i]].name);
    return TN_OK;
}

/* One after the other, from the first byte to the last: nothing hidden between the arrays, nothing shared by two. */
static tn_status check_cover(io_reader *r, const st_header *h, uint64_t n_data, int *order) {
    for (int i = 0; i < h->n; i++) order[i] = i;
    st_sort(order, h->n, offset_less, h);
    uint64_t at = 0;
    for (int i = 0; i < h->n; i++) {
        const st_entry *e = &h->entries[order[i]];
        if (e->begin != at)
            return io_parse_error(r, "%s: begins at byte %llu of the data, %s", e->name, (unsigned long long)e->begin,
                                  e->begin < at ? "inside another tensor" : "after a gap");
        at = e->end;
    }
    if (at != n_data) return io_parse_error(r, "%llu bytes after the last tensor", (unsigned long long)(n_data - at));
    return TN_OK;
}

static tn_status read_object(io_reader *r, st_header *h, uint64_t n_data) {
    tn_status s;
    if ((s = io_expect(r, '{', "at the start of the header"))) return s;
    io_skip_blanks(r);
    bool metadata_seen = false;
    if (io_accept(r, '}')) goto end;
    do {
        char *name;
        io_skip_blanks(r);
        if ((s = read_string(r, h, "before a tensor's name", TN_IO_MAX_NAME, &name))) return s;
        if (!*name) return io_parse_error(r, "a tensor's name is empty");
        io_skip_blanks(r);
        if ((s = io_expect(r, ':', "after a tensor's name"))) return s;
        io_skip_blanks(r);
        if (!strcmp(name, "__metadata__")) {
            if (metadata_seen) return io_parse_error(r, "\"__metadata__\" is there twice");
            metadata_seen = true;
            s = read_metadata(r, h);
        } else {
            if (h->n == TN_IO_MAX_TENSORS) return io_parse_error(r, "more than %d tensors", TN_IO_MAX_TENSORS);
            if (!grow(r->ctx, (void **)&h->entries, h->n, &h->cap, sizeof *h->entries)) return TN_ERR_NOMEM;
            h->entries[h->n].name = name;
            s = read_entry(r, h, &h->entries[h->n++], n_data);
        }
        if (s) return s;
        io_skip_blanks(r);
    } while (io_accept(r, ','));
    if ((s = io_expect(r, '}', "at the end of the header"))) return s;
end:
    while (io_accept(r, ' ')) {
    } /* padding */
    return r->pos == r->len ? TN_OK : io_parse_error(r, "text after the header's end");
}

tn_status st_header_parse(io_reader *r, uint64_t n_data, st_header *out) {
    *out = (st_header){ 0 };
    int *order = NULL;
    tn_status s = TN_ERR_NOMEM;
    if (!(out->text = io_alloc(r->ctx, r->len + 8))) goto done;
    if ((s = read_object(r, out, n_data))) goto done;
    s = TN_ERR_NOMEM;
    if (!(order = io_alloc(r->ctx, (size_t)(out->n > out->n_metadata ? out->n : out->n_metadata) * sizeof(int)))) goto done;
    if ((s = check_names(r, out, order))) goto done;
    s = check_cover(r, out, n_data, order);
done:
    tn_io_free(r->ctx, order);
    return s;
}

void st_header_free(tn_ctx *ctx, st_header *h) {
    tn_io_free(ctx, h->text);
    tn_io_free(ctx, h->entries);
    tn_io_free(ctx, h->by_name);
    tn_io_free(ctx, h->metadata);
    *h = (st_header){ 0 };
}
