/* gguf.c - reading GGUF, the files of llama.cpp: metadata, descriptions of arrays, arrays of numbers or of quantised blocks.
 *
 * In: a path or bytes. Out: a tn_io_gguf that owns a mapping of the file, or a copy of it, and copies of every name and text.
 * All of the header is checked before any of it is given out; arrays lie inside the file. */
#include "io.h"

#include <math.h>
#include <stdio.h>

enum { MAX_KEYS = 65536, MAX_AXES = 4, MAX_TEXT = 1 << 20, MAX_NAMES = 64 << 20 };

/* ---- types of arrays --------------------------------------------------------------------------------------------------- */

typedef struct block_type {
    const char *name;
    int elements, bytes; /* of a block; 0: no type that is read here */
} block_type;

static block_type type_of(uint32_t type) {
    switch (type) {
    case TN_GGUF_F32:
        return (block_type){ "f32", 1, 4 };
    case TN_GGUF_F16:
        return (block_type){ "f16", 1, 2 };
    case TN_GGUF_BF16:
        return (block_type){ "bf16", 1, 2 };
    case TN_GGUF_Q4_0:
        return (block_type){ "q4_0", 32, 18 };
    case TN_GGUF_Q4_1:
        return (block_type){ "q4_1", 32, 20 };
    case TN_GGUF_Q5_0:
        return (block_type){ "q5_0", 32, 22 };
    case TN_GGUF_Q5_1:
        return (block_type){ "q5_1", 32, 24 };
    case TN_GGUF_Q5_K:
        return (block_type){ "q5_k", 256, 176 };
    case TN_GGUF_Q8_0:
        return (block_type){ "q8_0", 32, 34 };
    case TN_GGUF_Q4_K:
        return (block_type){ "q4_k", 256, 144 };
    case TN_GGUF_Q6_K:
        return (block_type){ "q6_k", 256, 210 };
    default:
        return (block_type){ 0 };
    }
}
const char *tn_io_gguf_type_name(tn_io_gguf_type type) {
    const char *name = type_of((uint32_t)type).name;
    return name ? name : "?";
}

/* ---- a file ------------------------------------------------------------------------------------------------------------ */

typedef struct pair { /* of metadata: a text, a number or an array */
    char *key, *text;
    double number;
    const uint8_t *array; /* in the file, of texts each behind its length of 8 bytes; checked */
    int64_t n_array;
    uint32_t type; /* of the array's values */
} pair;
struct tn_io_gguf {
    tn_ctx *ctx;
    io_mapping map;
    uint8_t *copy; /* of bytes in memory; NULL: the mapping is read */
    char *names;   /* every name and text, one behind the other */
    size_t n_names, room;
    pair *pairs;
    tn_io_gguf_tensor *tensors;
    int n_pairs, n_tensors;
};

/* Numbers of the file are little-endian, as this machine's are. */
static bool read_u32(io_reader *r, uint32_t *out) { return io_get(r, out, 4); }
static bool read_u64(io_reader *r, uint64_t *out) { return io_get(r, out, 8); }

static tn_status ends(io_reader *r, const char *where) { return io_parse_error(r, "the file ends in %s", where); }

/* A text of at most `limit` bytes, copied into the room that was taken for all of them. */
static tn_status read_text(io_reader *r, tn_io_gguf *g, const char *what, size_t limit, char **out) {
    uint64_t n;
    if (!read_u64(r, &n)) return ends(r, what);
    if (n > limit) return io_parse_error(r, "%s of %llu bytes; the limit is %zu", what, (unsigned long long)n, limit);
    if (n > r->len - r->pos)
        return io_parse_error(r, "%s of %llu bytes, which the file does not have", what, (unsigned long long)n);
    if (n + 1 > g->room - g->n_names) return io_parse_error(r, "names and texts of more than %zu bytes", g->room);
    char *to = g->names + g->n_names;
    if (!io_get(r, to, (size_t)n)) return ends(r, what);
    to[n] = 0;
    g->n_names += (size_t)n + 1;
    *out = to;
    return TN_OK;
}
static tn_status read_name(io_reader *r, tn_io_gguf *g, const char *what, char **out) {
    size_t from = g->n_names;
    tn_status s = read_text(r, g, what, TN_IO_MAX_NAME, out);
    if (s) return s;
    size_t n = g->n_names - from - 1;
    if (!n || strlen(*out) != n || !io_is_utf8(*out, n))
        return io_parse_error(r, "%s is empty, has a zero or is no UTF-8", what);
    return TN_OK;
}

/* ---- metadata ---------------------------------------------------------------------------------------------------------- */

enum { V_U8, V_I8, V_U16, V_I16, V_U32, V_I32, V_F32, V_BOOL, V_TEXT, V_ARRAY, V_U64, V_I64, V_F64, N_V };
static const uint8_t value_bytes[N_V] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

static double number_of(uint32_t type, const uint8_t *at) {
    union {
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        float f32;
        uint64_t u64;
        int64_t i64;
        double f64;
    } v;
    memcpy(&v, at, value_bytes[type]);
    switch (type) {
    case V_I8:
        return (int8_t)at[0];
    case V_U16:
        return v.u16;
    case V_I16:
        return v.i16;
    case V_U32:
        return v.u32;
    case V_I32:
        return v.i32;
    case V_F32:
        return (double)v.f32;
    case V_U64:
        return (double)v.u64;
    case V_I64:
        return (double)v.i64;
    case V_F64:
        return v.f64;
    default:
        return at[0];
    }
}

/* Arrays are checked and stay in the file: a vocabulary has a hundred thousand texts. */
static tn_status read_array(io_reader *r, pair *p) {
    uint32_t type;
    uint64_t n, length;
    if (!read_u32(r, &type) || !read_u64(r, &n)) return ends(r, "an array");
    if (type >= N_V || type == V_ARRAY) return io_parse_error(r, "an array of values of type %u", type);
    p->array = r->base + r->pos, p->type = type;
    if (type != V_TEXT) {
        if (n > (r->len - r->pos) / value_bytes[type]) return ends(r, "an array");
        r->pos += (size_t)n * value_bytes[type], p->n_array = (int64_t)n;
        return TN_OK;
    }
    for (uint64_t i = 0; i < n; i++, p->n_array++) {
        if (!read_u64(r, &length) || length > r->len - r->pos) return ends(r, "an array of texts");
        r->pos += (size_t)length;
    }
    return TN_OK;
}

static tn_status read_pair(io_reader *r, tn_io_gguf *g, pair *p) {
    uint32_t type;
    uint8_t bytes[8];
    tn_status s = read_name(r, g, "a key", &p->key);
    if (s) return s;
    p->number = NAN;
    if (!read_u32(r, &type)) return ends(r, "a type");
    if (type >= N_V) return io_parse_error(r, "\"%s\" is of type %u, which GGUF does not have", p->key, type);
    if (type == V_TEXT) return read_text(r, g, "a text", MAX_TEXT, &p->text);
    if (type == V_ARRAY) return read_array(r, p);
    if (!io_get(r, bytes, value_bytes[type])) return ends(r, "a number");
    p->number = number_of(type, bytes);
    return TN_OK;
}

/* ---- arrays ------------------------------------------------------------------------------------------------------------ */

/* *out_offset: from the beginning of the data. */
static tn_status read_tensor(io_reader *r, tn_io_gguf *g, tn_io_gguf_tensor *t, uint64_t *out_offset) {
    uint32_t rank, type;
    char *name;
    tn_status s = read_name(r, g, "an array's name", &name);
    if (s) return s;
    t->name = name;
    if (!read_u32(r, &rank)) return ends(r, "an array's description");
    if (rank < 1 || rank > MAX_AXES) return io_parse_error(r, "\"%s\" has %u axes; 1 to %d are possible", name, rank, MAX_AXES);
    t->shape.rank = (int)rank;
    size_t n = 1;
    for (int i = (int)rank; i--;) { /* the file has the innermost axis first */
        uint64_t d;
        if (!read_u64(r, &d)) return ends(r, "an array's description");
        if (d > INT64_MAX || __builtin_mul_overflow(n, (size_t)d, &n) || n > SIZE_MAX / 8)
            return io_parse_error(r, "\"%s\" has too many elements", name);
        t->shape.dim[i] = (int64_t)d;
    }
    if (!read_u32(r, &type) || !read_u64(r, out_offset)) return ends(r, "an array's description");
    block_type b = type_of(type);
    if (!b.bytes)
        return io_fail(r->ctx, TN_ERR_UNSUPPORTED,
                       "%s: \"%s\" has type %u; f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k and q6_k are read",
                       r->name, name, type);
    if (t->shape.dim[rank - 1] % b.elements)
        return io_parse_error(r, "\"%s\" has rows of %lld elements, which are no blocks of %d", name,
                              (long long)t->shape.dim[rank - 1], b.elements);
    t->type = (tn_io_gguf_type)type;
    if (__builtin_mul_overflow(n / (size_t)b.elements, (size_t)b.bytes, &t->bytes))
        return io_parse_error(r, "\"%s\" is too large", name);
    return TN_OK;
}

/* No two arrays have one name: a hash of each in a table of at least twice as many places. */
static tn_status check_names(io_reader *r, const tn_io_gguf *g) {
    size_t room = 16;
    while (room < 2 * (size_t)g->n_tensors) room *= 2;
    int *table = io_alloc(g->ctx, room * sizeof *table);
    if (!table) return TN_ERR_NOMEM;
    tn_status s = TN_OK;
    for (int i = 0; i < g->n_tensors && !s; i++) {
        uint64_t h = 0xcbf29ce484222325u;
        for (const char *c = g->tensors[i].name; *c; c++) h = (h ^ (uint8_t)*c) * 0x100000001b3u;
        size_t at = (size_t)(h ^ h >> 29) & (room - 1);
        for (; table[at] && !s; at = (at + 1) & (room - 1))
            if (!strcmp(g->tensors[table[at] - 1].name, g->tensors[i].name))
                s = io_parse_error(r, "two arrays are \"%s\"", g->tensors[i].name);
        table[at] = i + 1;
    }
    tn_io_free(g->ctx, table);
    return s;
}

/* The arrays' places: the data begins at the next multiple of the alignment behind the header. */
static tn_status place(io_reader *r, tn_io_gguf *g, const uint64_t *offsets) {
    double given = 32;
    (void)tn_io_gguf_number(g, "general.alignment", &given);
    if (!(given >= 1 && given <= 1 << 20) || given != floor(given)) return io_parse_error(r, "general.alignment is %g", given);
    size_t align = (size_t)given, begin = r->pos + (align - r->pos % align) % align;
    for (int i = 0; i < g->n_tensors; i++) {
        tn_io_gguf_tensor *t = &g->tensors[i];
        if (offsets[i] % align) return io_parse_error(r, "\"%s\" does not begin at a multiple of %zu", t->name, align);
        if (begin > r->len || offsets[i] > r->len - begin || t->bytes > r->len - begin - offsets[i])
            return io_parse_error(r, "\"%s\" has %zu bytes from %llu on, which the file does not have (truncated?)", t->name,
                                  t->bytes, (unsigned long long)offsets[i]);
        t->data = r->base + begin + offsets[i];
    }
    return TN_OK;
}

static tn_status read_all(io_reader *r, tn_io_gguf *g, uint64_t **offsets) {
    uint32_t version;
    uint64_t n_tensors, n_pairs;
    char magic[4];
    tn_status s;
    if (!io_get(r, magic, 4) || memcmp(magic, "GGUF", 4) != 0) return io_parse_error(r, "this is no GGUF file");
    if (!read_u32(r, &version) || !read_u64(r, &n_tensors) || !read_u64(r, &n_pairs)) return ends(r, "the header");
    if (version != 2 && version != 3)
        return io_fail(r->ctx, TN_ERR_UNSUPPORTED, "%s: version %u of GGUF; 2 and 3 are read", r->name, version);
    if (n_tensors > TN_IO_MAX_TENSORS || n_pairs > MAX_KEYS || n_tensors > r->len / 24 || n_pairs > r->len / 12)
        return io_parse_error(r, "%llu arrays and %llu keys; the limits are %d and %d, and the file's size",
                              (unsigned long long)n_tensors, (unsigned long long)n_pairs, TN_IO_MAX_TENSORS, MAX_KEYS);
    if (!(g->pairs = io_alloc(g->ctx, (size_t)n_pairs * sizeof *g->pairs))) return TN_ERR_NOMEM;
    if (!(g->tensors = io_alloc(g->ctx, (size_t)n_tensors * sizeof *g->tensors))) return TN_ERR_NOMEM;
    if (!(*offsets = io_alloc(g->ctx, (size_t)n_tensors * sizeof **offsets))) return TN_ERR_NOMEM;
    for (; g->n_pairs < (int)n_pairs; g->n_pairs++)
        if ((s = read_pair(r, g, &g->pairs[g->n_pairs]))) return s;
    for (; g->n_tensors < (int)n_tensors; g->n_tensors++)
        if ((s = read_tensor(r, g, &g->tensors[g->n_tensors], &(*offsets)[g->n_tensors]))) return s;
    if ((s = check_names(r, g))) return s;
    return place(r, g, *offsets);
}

static tn_status load(io_reader *r, tn_io_gguf *g, tn_io_gguf **out) {
    uint64_t *offsets = NULL;
    tn_status s = TN_ERR_NOMEM;
    g->room = r->len < MAX_NAMES ? r->len + 1 : MAX_NAMES; /* each text has 8 bytes before it, and needs one more here */
    if ((g->names = io_room(g->ctx, g->room))) s = read_all(r, g, &offsets);
    tn_io_free(r->ctx, offsets);
    if (s)
        tn_io_gguf_free(g);
    else
        *out = g;
    return s;
}

tn_status tn_io_gguf_load(tn_ctx *ctx, const char *path, tn_io_gguf **out) {
    if (!ctx || !path || !out) return io_fail(ctx, TN_ERR_INVAL, "tn_io_gguf_load: an argument is NULL");
    *out = NULL;
    tn_io_gguf *g = io_alloc(ctx, sizeof *g);
    if (!g) return TN_ERR_NOMEM;
    g->ctx = ctx;
    tn_status s = io_map(ctx, path, &g->map);
    if (s) {
        tn_io_free(ctx, g);
        return s;
    }
    return load(&(io_reader){ .base = g->map.bytes, .len = g->map.size, .ctx = ctx, .name = path }, g, out);
}

tn_status tn_io_gguf_parse(tn_ctx *ctx, const void *bytes, size_t n, const char *name, tn_io_gguf **out) {
    if (!ctx || !bytes || !out) return io_fail(ctx, TN_ERR_INVAL, "tn_io_gguf_parse: an argument is NULL");
    *out = NULL;
    tn_io_gguf *g = io_alloc(ctx, sizeof *g);
    if (!g) return TN_ERR_NOMEM;
    g->ctx = ctx;
    if (!(g->copy = io_room(ctx, n ? n : 1))) {
        tn_io_free(ctx, g);
        return TN_ERR_NOMEM;
    }
    memcpy(g->copy, bytes, n);
    return load(&(io_reader){ .base = g->copy, .len = n, .ctx = ctx, .name = name ? name : "gguf" }, g, out);
}

void tn_io_gguf_free(tn_io_gguf *g) {
    if (!g) return;
    tn_io_free(g->ctx, g->names);
    tn_io_free(g->ctx, g->pairs);
    tn_io_free(g->ctx, g->tensors);
    tn_io_free(g->ctx, g->copy);
    io_unmap(&g->map);
    tn_io_free(g->ctx, g);
}

int tn_io_gguf_count(const tn_io_gguf *g) { return g ? g->n_tensors : 0; }
const tn_io_gguf_tensor *tn_io_gguf_get(const tn_io_gguf *g, int i) {
    return g && i >= 0 && i < g->n_tensors ? &g->tensors[i] : NULL;
}
const tn_io_gguf_tensor *tn_io_gguf_find(const tn_io_gguf *g, const char *name) {
    for (int i = 0; g && name && i < g->n_tensors; i++)
        if (!strcmp(g->tensors[i].name, name)) return &g->tensors[i];
    return NULL;
}

static const pair *find_pair(const tn_io_gguf *g, const char *key) {
    for (int i = 0; g && key && i < g->n_pairs; i++)
        if (!strcmp(g->pairs[i].key, key)) return &g->pairs[i];
    return NULL;
}
const char *tn_io_gguf_text(const tn_io_gguf *g, const char *key) {
    const pair *p = find_pair(g, key);
    return p ? p->text : NULL;
}
int tn_io_gguf_number(const tn_io_gguf *g, const char *key, double *out) {
    const pair *p = find_pair(g, key);
    if (!p || p->text || isnan(p->number)) return 0;
    *out = p->number;
    return 1;
}
int64_t tn_io_gguf_texts(const tn_io_gguf *g, const char *key, void (*each)(void *ud, const char *text, size_t n), void *ud) {
    const pair *p = find_pair(g, key);
    if (!p || !p->array || p->type != V_TEXT) return -1;
    const uint8_t *at = p->array;
    for (int64_t i = 0; i < p->n_array && each; i++) {
        uint64_t n;
        memcpy(&n, at, sizeof n);
        each(ud, (const char *)at + sizeof n, (size_t)n);
        at += sizeof n + (size_t)n;
    }
    return p->n_array;
}
int64_t tn_io_gguf_numbers(const tn_io_gguf *g, const char *key, void (*each)(void *ud, double number), void *ud) {
    const pair *p = find_pair(g, key);
    if (!p || !p->array || p->type == V_TEXT) return -1;
    for (int64_t i = 0; i < p->n_array && each; i++) each(ud, number_of(p->type, p->array + (size_t)i * value_bytes[p->type]));
    return p->n_array;
}
