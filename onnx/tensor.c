/* tensor.c - TensorProto: what it says of an array, and the array as Tenon holds it.
 *
 * In: a message whose data lie in it (raw or as lists of numbers) or in a file beside the model. Out: row-major elements. Raw
 * data of a type that Tenon has are not copied. Types that it lacks are held in wider ones: the table says which. */
#include "onnx.h"

#include <math.h>

typedef struct elem_row {
    const char *name;
    tn_dtype held;
    uint8_t bits, list; /* of an element in a file; the field of TensorProto that has single numbers */
    bool widened, is_signed;
} elem_row;
static const elem_row elems[ELEM_N] = {
    [ELEM_NONE] = { "undefined", TN_N_DTYPES, 0, 0, false, false },
    [ELEM_F32] = { "float", TN_F32, 32, 4, false, true },
    [ELEM_U8] = { "uint8", TN_U8, 8, 5, false, false },
    [ELEM_I8] = { "int8", TN_I8, 8, 5, false, true },
    [ELEM_U16] = { "uint16", TN_U16, 16, 5, false, false },
    [ELEM_I16] = { "int16", TN_I16, 16, 5, false, true },
    [ELEM_I32] = { "int32", TN_I32, 32, 5, false, true },
    [ELEM_I64] = { "int64", TN_I64, 64, 7, false, true },
    [ELEM_STRING] = { "string", TN_I64, 0, 6, true, false },
    [ELEM_BOOL] = { "bool", TN_BOOL, 8, 5, false, false },
    [ELEM_F16] = { "float16", TN_F16, 16, 5, false, true },
    [ELEM_F64] = { "double", TN_F64, 64, 10, false, true },
    [ELEM_U32] = { "uint32", TN_U32, 32, 11, false, false },
    [ELEM_U64] = { "uint64", TN_U64, 64, 11, false, false },
    [ELEM_C64] = { "complex64", TN_N_DTYPES, 64, 4, false, true },
    [ELEM_C128] = { "complex128", TN_N_DTYPES, 128, 10, false, true },
    [ELEM_BF16] = { "bfloat16", TN_BF16, 16, 5, false, true },
    [ELEM_F8E4M3FN] = { "float8e4m3fn", TN_F8E4M3, 8, 5, false, false },
    [ELEM_F8E4M3FNUZ] = { "float8e4m3fnuz", TN_F32, 8, 5, true, false },
    [ELEM_F8E5M2] = { "float8e5m2", TN_F8E5M2, 8, 5, false, false },
    [ELEM_F8E5M2FNUZ] = { "float8e5m2fnuz", TN_F32, 8, 5, true, false },
    [ELEM_U4] = { "uint4", TN_U8, 4, 5, true, false },
    [ELEM_I4] = { "int4", TN_I8, 4, 5, true, true },
    [ELEM_F4E2M1] = { "float4e2m1", TN_F32, 4, 5, true, false },
    [ELEM_F8E8M0] = { "float8e8m0", TN_F32, 8, 5, true, false },
    [ELEM_U2] = { "uint2", TN_U8, 2, 5, true, false },
    [ELEM_I2] = { "int2", TN_I8, 2, 5, true, true },
};
static const elem_row *row_of(int elem) { return &elems[elem > 0 && elem < ELEM_N ? elem : ELEM_NONE]; }
const char *onnx_elem_name(int elem) { return row_of(elem)->name; }
tn_dtype onnx_elem_dtype(int elem) { return row_of(elem)->held; }
size_t onnx_elem_bytes(int elem, int64_t n) { return ((size_t)n * row_of(elem)->bits + 7) / 8; }
bool onnx_elem_widened(int elem) { return row_of(elem)->widened; }
int onnx_elem_of(tn_dtype t) {
    const tn_dtype_info *i = tn_dtype_get_info(t);
    return i ? i->onnx : ELEM_NONE;
}

/* ---- small floating-point types ---- */

static const onnx_minifloat minifloats[ELEM_N] = {
    [ELEM_F8E4M3FN] = { 4, 3, 7, 448, false, true, true, false },
    [ELEM_F8E4M3FNUZ] = { 4, 3, 8, 240, false, true, true, true },
    [ELEM_F8E5M2] = { 5, 2, 15, 57344, true, true, true, false },
    [ELEM_F8E5M2FNUZ] = { 5, 2, 16, 57344, false, true, true, true },
    [ELEM_F4E2M1] = { 2, 1, 1, 6, false, false, true, false },
    [ELEM_F8E8M0] = { 8, 0, 127, 0x1p127f, false, true, false, false },
};
const onnx_minifloat *onnx_minifloat_of(int elem) {
    return elem > 0 && elem < ELEM_N && minifloats[elem].exponent_bits ? &minifloats[elem] : NULL;
}

float onnx_minifloat_load(int elem, uint8_t bits) {
    const onnx_minifloat *f = &minifloats[elem];
    int m = f->mantissa_bits, exponent = bits >> m & ((1 << f->exponent_bits) - 1), part = bits & ((1 << m) - 1);
    bool negative = f->zero && bits >> (m + f->exponent_bits) & 1, top = exponent == (1 << f->exponent_bits) - 1;
    if (!f->zero) return bits == 255 ? NAN : ldexpf(1, exponent - f->bias);
    if (f->unsigned_zero && negative && !exponent && !part) return NAN;
    if (top && f->has_inf) return part ? NAN : negative ? -INFINITY : INFINITY;
    if (top && f->has_nan && !f->unsigned_zero && part == (1 << m) - 1) return NAN;
    float v = exponent ? ldexpf((float)(part + (1 << m)), exponent - f->bias - m) : ldexpf((float)part, 1 - f->bias - m);
    return negative ? -v : v;
}

void onnx_array_bytes(onnx_env *env, int elem, const tn_shape *shape, int64_t *out_n, size_t *out_bytes) {
    int64_t n = 1, bytes;
    bool empty = false;
    for (int i = 0; i < shape->rank; i++) {
        if (shape->dim[i] < 0) onnx_fail(env, TN_ERR_PARSE, "%s: an array has a negative dim", env->file);
        if (shape->dim[i] == 0) empty = true;
        if (shape->dim[i] && __builtin_mul_overflow(n, shape->dim[i], &n)) n = INT64_MAX;
    }
    if (__builtin_mul_overflow(n, 256, &bytes)) onnx_fail(env, TN_ERR_PARSE, "%s: an array's dims overflow", env->file);
    *out_n = empty ? 0 : n;
    *out_bytes = onnx_elem_bytes(elem, *out_n);
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
    for (int i = 0; i < r->bits / 8; i++) v |= (uint64_t)at[i] << 8 * i;
    int shift = 64 - r->bits;
    return r->is_signed ? (int64_t)(v << shift) >> shift : (int64_t)v;
}
/* Element i of packed ones of fewer than 8 bits: the low bits of a byte come first. */
static int64_t read_packed(const uint8_t *at, const elem_row *r, int64_t i) {
    int per = 8 / r->bits, mask = (1 << r->bits) - 1, v = at[i / per] >> (i % per * r->bits) & mask;
    return r->is_signed && v > mask / 2 ? v - mask - 1 : v;
}
static void write_held(void *out, int64_t i, tn_dtype t, int64_t v) {
    memcpy((char *)out + (size_t)i * tn_dtype_size(t), &v, tn_dtype_size(t)); /* little-endian */
}
/* Elements whose bytes lie at `at`, as they are held. */
static const void *widen(onnx_env *env, const onnx_tensor *t, const uint8_t *at) {
    const elem_row *r = row_of(t->elem);
    char *out = onnx_new(env, (size_t)t->n + 1, tn_dtype_size(r->held));
    for (int64_t i = 0; i < t->n; i++) {
        int64_t v = r->bits < 8 ? read_packed(at, r, i) : read_narrow(at + (size_t)i * (r->bits / 8), r);
        if (onnx_minifloat_of(t->elem))
            ((float *)(void *)out)[i] = onnx_minifloat_load(t->elem, (uint8_t)v);
        else
            write_held(out, i, r->held, v);
    }
    return out;
}

static const void *from_raw(onnx_env *env, const onnx_tensor *t, onnx_span raw) {
    const elem_row *r = row_of(t->elem);
    size_t bytes = onnx_elem_bytes(t->elem, t->n);
    if (raw.n != bytes || t->elem == ELEM_STRING)
        onnx_fail(env, TN_ERR_PARSE, "%s: %s: %zu bytes of data, expected %zu", env->file, t->name, raw.n, bytes);
    if (t->elem == ELEM_BOOL) {
        for (size_t i = 0; i < bytes; i++)
            if (raw.at[i] > 1) onnx_fail(env, TN_ERR_PARSE, "%s: %s: bool element %zu is no bool", env->file, t->name, i);
    }
    if (!r->widened || r->bits == 64) return bytes ? raw.at : onnx_new(env, 1, 1);
    return widen(env, t, raw.at);
}

/* Lists of numbers: floats and doubles as they are; the rest are varints, of which an element (of the types of fewer than 8
 * bits: a byte of them) has the low bytes. */
static const void *from_lists(onnx_env *env, const onnx_tensor *t) {
    const elem_row *r = row_of(t->elem);
    int width = r->list == 4 ? 4 : r->list == 10 ? 8 : 0;
    size_t n = 0, at = 0, unit = width ? (size_t)width : 8, want = r->bits < 8 ? onnx_elem_bytes(t->elem, t->n) : (size_t)t->n;
    onnx_span s = t->message;
    for (onnx_field f; onnx_next(env, &s, &f);)
        if (f.number == r->list) n += onnx_numbers(env, &f, width, NULL);
    if (n != want) onnx_fail(env, TN_ERR_PARSE, "%s: %s: %zu numbers of data, expected %zu", env->file, t->name, n, want);
    char *list = onnx_new(env, n + 1, unit);
    s = t->message;
    for (onnx_field f; onnx_next(env, &s, &f);)
        if (f.number == r->list) at += onnx_numbers(env, &f, width, list + at * unit);
    if (width) return list;
    if ((r->widened && onnx_minifloat_of(t->elem)) || r->bits < 8) {
        for (size_t i = 0; i < n; i++) list[i] = list[i * 8];
        return widen(env, t, (const uint8_t *)list);
    }
    char *out = onnx_new(env, n + 1, tn_dtype_size(r->held));
    for (size_t i = 0; i < n; i++) {
        int64_t v = read_narrow((const uint8_t *)list + i * 8, r);
        write_held(out, (int64_t)i, r->held, t->elem == ELEM_BOOL ? v != 0 : v);
    }
    return out;
}

/* The numbers of strings; where there is no model, the strings themselves: const char *[n]. */
static const void *from_strings(onnx_env *env, tn_onnx_model *m, const onnx_tensor *t) {
    int64_t n = 0, *out = ONNX_NEW(env, int64_t, t->n + 1);
    const char **texts = ONNX_NEW(env, const char *, m ? 1 : t->n + 1);
    onnx_span s = t->message;
    for (onnx_field f; onnx_next(env, &s, &f);) {
        if (f.number != 6) continue;
        onnx_span text = onnx_bytes(env, &f);
        if (n++ >= t->n) break;
        if (m)
            out[n - 1] = onnx_text_number(env, m, (const char *)text.at, text.n);
        else
            texts[n - 1] = text.n ? memcpy(onnx_new(env, text.n + 1, 1), text.at, text.n) : "";
    }
    if (n != t->n)
        onnx_fail(env, TN_ERR_PARSE, "%s: %s: not the %lld strings that it says", env->file, t->name, (long long)t->n);
    return m ? (const void *)out : (const void *)texts;
}

static onnx_span external(onnx_env *env, tn_onnx_model *m, const onnx_tensor *t) {
    if (!m || !m->folder || !t->location)
        onnx_fail(env, TN_ERR_UNSUPPORTED, "%s: %s: external data, but no folder to look in", env->file, t->name);
    const onnx_mapping *map = onnx_external_map(env, m, t->location);
    uint64_t want = onnx_elem_bytes(t->elem, t->n), length = t->length == UINT64_MAX ? want : t->length;
    if (t->offset > map->size || length > map->size - t->offset || length != want)
        onnx_fail(env, TN_ERR_PARSE, "%s: %s: %llu bytes at %llu of %s, which has %zu; expected %llu", env->file, t->name,
                  (unsigned long long)length, (unsigned long long)t->offset, t->location, map->size, (unsigned long long)want);
    return (onnx_span){ map->bytes + t->offset, (size_t)length };
}

const void *onnx_tensor_data(onnx_env *env, tn_onnx_model *m, const onnx_tensor *t) {
    if (row_of(t->elem)->held == TN_N_DTYPES)
        onnx_fail(env, TN_ERR_UNSUPPORTED, "%s: %s: an array of %s", env->file, t->name, onnx_elem_name(t->elem));
    if (t->elem == ELEM_STRING) return from_strings(env, m, t);
    if (t->external) return from_raw(env, t, external(env, m, t));
    return t->has_raw ? from_raw(env, t, t->raw) : from_lists(env, t);
}
