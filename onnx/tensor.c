/* tensor.c - TensorProto: what it says of an array, and the array as Tenon holds it.
 *
 * In: a message whose data lie in it (raw or as lists of numbers) or in a file beside the model. Out: row-major elements. Raw
 * data of a type that Tenon has are not copied. Types that it lacks are held in wider ones: the table says which. */
#include "onnx.h"

typedef struct elem_row {
    const char *name;
    tn_dtype held;
    uint8_t size, list; /* bytes in a file; the field of TensorProto that has single numbers */
    bool widened, is_signed;
} elem_row;
static const elem_row elems[ELEM_N] = {
    [ELEM_NONE] = { "undefined", TN_N_DTYPES, 0, 0, false, false },
    [ELEM_F32] = { "float", TN_F32, 4, 4, false, true },
    [ELEM_U8] = { "uint8", TN_U8, 1, 5, false, false },
    [ELEM_I8] = { "int8", TN_I8, 1, 5, false, true },
    [ELEM_U16] = { "uint16", TN_I32, 2, 5, true, false },
    [ELEM_I16] = { "int16", TN_I32, 2, 5, true, true },
    [ELEM_I32] = { "int32", TN_I32, 4, 5, false, true },
    [ELEM_I64] = { "int64", TN_I64, 8, 7, false, true },
    [ELEM_STRING] = { "string", TN_N_DTYPES, 0, 6, false, false },
    [ELEM_BOOL] = { "bool", TN_BOOL, 1, 5, false, false },
    [ELEM_F16] = { "float16", TN_F16, 2, 5, false, true },
    [ELEM_F64] = { "double", TN_F64, 8, 10, false, true },
    [ELEM_U32] = { "uint32", TN_I64, 4, 11, true, false },
    [ELEM_U64] = { "uint64", TN_I64, 8, 11, true, false },
    [ELEM_C64] = { "complex64", TN_N_DTYPES, 8, 4, false, true },
    [ELEM_C128] = { "complex128", TN_N_DTYPES, 16, 10, false, true },
    [ELEM_BF16] = { "bfloat16", TN_BF16, 2, 5, false, true },
};
static const elem_row *row_of(int elem) { return &elems[elem > 0 && elem < ELEM_N ? elem : ELEM_NONE]; }
const char *onnx_elem_name(int elem) { return row_of(elem)->name; }
tn_dtype onnx_elem_dtype(int elem) { return row_of(elem)->held; }
size_t onnx_elem_size(int elem) { return row_of(elem)->size; }
bool onnx_elem_widened(int elem) { return row_of(elem)->widened; }
int onnx_elem_of(tn_dtype t) {
    for (int i = 1; i < ELEM_N; i++)
        if (elems[i].held == t && !elems[i].widened) return i;
    return ELEM_NONE;
}

void onnx_array_bytes(onnx_env *env, int elem, const tn_shape *shape, int64_t *out_n, size_t *out_bytes) {
    int64_t n = 1, bytes;
    bool empty = false;
    for (int i = 0; i < shape->rank; i++) {
        if (shape->dim[i] < 0) onnx_fail(env, TN_ERR_PARSE, "%s: an array has a negative dim", env->file);
        if (shape->dim[i] == 0) empty = true;
        if (shape->dim[i] && __builtin_mul_overflow(n, shape->dim[i], &n)) n = INT64_MAX;
    }
    int64_t wide = 16 + (int64_t)onnx_elem_size(elem);
    if (__builtin_mul_overflow(n, wide, &bytes)) onnx_fail(env, TN_ERR_PARSE, "%s: an array's dims overflow", env->file);
    *out_n = empty ? 0 : n;
    *out_bytes = (size_t)*out_n * onnx_elem_size(elem);
}

static void read_external(onnx_env *env, onnx_span s, onnx_tensor *t) {
    const char *key = "", *value = "";
    for (onnx_field f; onnx_next(env, &s, &f);) {
        if (f.number == 1) key = onnx_string(env, &f);
        if (f.number == 2) value = onnx_string(env, &f);
    }
    if (!strcmp(key, "location")) t->location = value;
    if (strcmp(key, "offset") && strcmp(key, "length")) return;
    uint64_t v = 0;
    for (const char *c = value; *c; c++)
        if (*c < '0' || *c > '9' || __builtin_mul_overflow(v, (uint64_t)10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*c - '0'), &v))
            onnx_fail(env, TN_ERR_PARSE, "%s: %s: %s of external data is '%s'", env->file, t->name, key, value);
    *(key[0] == 'o' ? &t->offset : &t->length) = v;
}

static void read_dims(onnx_env *env, const onnx_field *f, onnx_tensor *t) {
    int64_t dims[TN_MAX_RANK];
    size_t n = onnx_numbers(env, f, 0, NULL);
    if (n > (size_t)(TN_MAX_RANK - t->shape.rank))
        onnx_fail(env, TN_ERR_UNSUPPORTED, "%s: an array has more than %d dims", env->file, TN_MAX_RANK);
    onnx_numbers(env, f, 0, dims);
    for (size_t i = 0; i < n; i++) t->shape.dim[t->shape.rank++] = dims[i];
}

void onnx_read_tensor(onnx_env *env, onnx_span s, onnx_tensor *t) {
    onnx_span rest = s;
    *t = (onnx_tensor){ .name = "", .message = s, .length = UINT64_MAX };
    for (onnx_field f; onnx_next(env, &rest, &f);) {
        int64_t v = f.number == 2 || f.number == 14 ? onnx_int(env, &f) : 0;
        switch (f.number) {
        case 1:
            read_dims(env, &f, t);
            break;
        case 2:
            t->elem = v > 0 && v < ELEM_N ? (int)v : ELEM_NONE;
            break;
        case 3:
            onnx_fail(env, TN_ERR_UNSUPPORTED, "%s: an array in segments", env->file);
        case 8:
            t->name = onnx_string(env, &f);
            break;
        case 9:
            t->raw = onnx_bytes(env, &f), t->has_raw = true;
            break;
        case 14:
            t->external = v == 1;
            break;
        default:
            break;
        }
    }
    for (onnx_field f; onnx_next(env, &s, &f);)
        if (f.number == 13) read_external(env, onnx_bytes(env, &f), t);
    size_t bytes;
    onnx_array_bytes(env, t->elem, &t->shape, &t->n, &bytes);
}

/* ---- elements ---- */

static int64_t read_narrow(const uint8_t *at, const elem_row *r) {
    uint64_t v = 0;
    for (int i = 0; i < r->size; i++) v |= (uint64_t)at[i] << 8 * i;
    int shift = 64 - 8 * r->size;
    return r->is_signed ? (int64_t)(v << shift) >> shift : (int64_t)v;
}
static void write_held(void *out, int64_t i, tn_dtype t, int64_t v) {
    memcpy((char *)out + (size_t)i * tn_dtype_size(t), &v, tn_dtype_size(t)); /* little-endian */
}

static const void *from_raw(onnx_env *env, const onnx_tensor *t, onnx_span raw) {
    const elem_row *r = row_of(t->elem);
    size_t bytes = (size_t)t->n * r->size;
    if (raw.n != bytes)
        onnx_fail(env, TN_ERR_PARSE, "%s: %s: %zu bytes of data, expected %zu", env->file, t->name, raw.n, bytes);
    if (t->elem == ELEM_BOOL) {
        for (size_t i = 0; i < bytes; i++)
            if (raw.at[i] > 1) onnx_fail(env, TN_ERR_PARSE, "%s: %s: bool element %zu is no bool", env->file, t->name, i);
    }
    if (!r->widened || r->size == 8) return bytes ? raw.at : onnx_new(env, 1, 1);
    char *out = onnx_new(env, (size_t)t->n + 1, tn_dtype_size(r->held));
    for (int64_t i = 0; i < t->n; i++) write_held(out, i, r->held, read_narrow(raw.at + (size_t)i * r->size, r));
    return out;
}

/* Lists of numbers: floats and doubles as they are; the rest are varints, of which an element has the low bytes. */
static const void *from_lists(onnx_env *env, const onnx_tensor *t) {
    const elem_row *r = row_of(t->elem);
    int width = r->list == 4 ? 4 : r->list == 10 ? 8 : 0;
    size_t n = 0, at = 0, unit = width ? (size_t)width : 8;
    onnx_span s = t->message;
    for (onnx_field f; onnx_next(env, &s, &f);)
        if (f.number == r->list) n += onnx_numbers(env, &f, width, NULL);
    if (n != (size_t)t->n)
        onnx_fail(env, TN_ERR_PARSE, "%s: %s: %zu numbers of data, expected %lld", env->file, t->name, n, (long long)t->n);
    char *list = onnx_new(env, n + 1, unit);
    s = t->message;
    for (onnx_field f; onnx_next(env, &s, &f);)
        if (f.number == r->list) at += onnx_numbers(env, &f, width, list + at * unit);
    if (width) return list;
    char *out = onnx_new(env, n + 1, tn_dtype_size(r->held));
    for (size_t i = 0; i < n; i++) {
        int64_t v = read_narrow((const uint8_t *)list + i * 8, r);
        write_held(out, (int64_t)i, r->held, t->elem == ELEM_BOOL ? v != 0 : v);
    }
    return out;
}

static onnx_span external(onnx_env *env, tn_onnx_model *m, const onnx_tensor *t) {
    if (!m || !m->folder || !t->location)
        onnx_fail(env, TN_ERR_UNSUPPORTED, "%s: %s: external data, but no folder to look in", env->file, t->name);
    const onnx_mapping *map = onnx_external_map(env, m, t->location);
    uint64_t want = (uint64_t)t->n * row_of(t->elem)->size, length = t->length == UINT64_MAX ? want : t->length;
    if (t->offset > map->size || length > map->size - t->offset || length != want)
        onnx_fail(env, TN_ERR_PARSE, "%s: %s: %llu bytes at %llu of %s, which has %zu; expected %llu", env->file, t->name,
                  (unsigned long long)length, (unsigned long long)t->offset, t->location, map->size, (unsigned long long)want);
    return (onnx_span){ map->bytes + t->offset, (size_t)length };
}

const void *onnx_tensor_data(onnx_env *env, tn_onnx_model *m, const onnx_tensor *t) {
    if (row_of(t->elem)->held == TN_N_DTYPES)
        onnx_fail(env, TN_ERR_UNSUPPORTED, "%s: %s: an array of %s", env->file, t->name, onnx_elem_name(t->elem));
    if (t->external) return from_raw(env, t, external(env, m, t));
    return t->has_raw ? from_raw(env, t, t->raw) : from_lists(env, t);
}
