/* wire.c - the protobuf wire format, read within bounds: the only way in which onnx/ looks at a file's structure.
 *
 * In: {at, n}. Out: fields one after the other, never a byte past the end. Messages within messages are spans that the caller
 * reads in turn: nothing here recurses. Groups, which protobuf gave up, are refused. */
#include "onnx.h"

static void ONNX_NORETURN malformed(onnx_env *env, const uint8_t *at, const char *what) {
    size_t offset = env->base && at >= env->base ? (size_t)(at - env->base) : 0;
    onnx_fail(env, TN_ERR_PARSE, "%s: offset %zu: %s", env->file, offset, what);
}

static uint64_t varint(onnx_env *env, onnx_span *s) {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (!s->n) malformed(env, s->at, "the file ends within a number");
        uint8_t b = *s->at++;
        s->n--;
        if (shift == 63 && b > 1) malformed(env, s->at - 1, "a number of more than 64 bits");
        v |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) return v;
    }
    malformed(env, s->at, "a number of more than 10 bytes");
}

static uint64_t fixed(onnx_env *env, onnx_span *s, size_t n) {
    uint64_t v = 0;
    if (s->n < n) malformed(env, s->at, "the file ends within a number");
    for (size_t i = 0; i < n; i++) v |= (uint64_t)s->at[i] << 8 * i;
    s->at += n;
    s->n -= n;
    return v;
}

static onnx_span bytes(onnx_env *env, onnx_span *s) {
    const uint8_t *from = s->at;
    uint64_t n = varint(env, s);
    if (n > s->n) malformed(env, from, "a field is longer than what holds it");
    onnx_span out = { s->at, (size_t)n };
    s->at += n;
    s->n -= (size_t)n;
    return out;
}

bool onnx_next(onnx_env *env, onnx_span *s, onnx_field *out) {
    if (!s->n) return false;
    const uint8_t *from = s->at;
    uint64_t tag = varint(env, s);
    *out = (onnx_field){ .number = (uint32_t)(tag >> 3), .wire = (onnx_wire)(tag & 7) };
    if (tag >> 3 == 0 || tag >> 32) malformed(env, from, "a field without a number");
    switch (out->wire) {
    case WIRE_VARINT:
        out->value = varint(env, s);
        break;
    case WIRE_64:
        out->value = fixed(env, s, 8);
        break;
    case WIRE_32:
        out->value = fixed(env, s, 4);
        break;
    case WIRE_BYTES:
        out->bytes = bytes(env, s);
        break;
    default:
        malformed(env, from, "a field of an unknown kind: this is no ONNX file");
    }
    return true;
}

void onnx_count(onnx_env *env, onnx_span s, int *counts, int n_counts) {
    memset(counts, 0, (size_t)n_counts * sizeof *counts);
    for (onnx_field f; onnx_next(env, &s, &f);)
        if (f.number < (uint32_t)n_counts) counts[f.number]++;
}

onnx_span onnx_bytes(onnx_env *env, const onnx_field *f) {
    if (f->wire != WIRE_BYTES)
        onnx_fail(env, TN_ERR_PARSE, "%s: field %u is a number where bytes belong", env->file, (unsigned)f->number);
    return f->bytes;
}

int64_t onnx_int(onnx_env *env, const onnx_field *f) {
    if (f->wire != WIRE_VARINT)
        onnx_fail(env, TN_ERR_PARSE, "%s: field %u is not a whole number", env->file, (unsigned)f->number);
    int64_t v;
    memcpy(&v, &f->value, sizeof v);
    return v;
}

float onnx_float(onnx_env *env, const onnx_field *f) {
    if (f->wire != WIRE_32) onnx_fail(env, TN_ERR_PARSE, "%s: field %u is not a float", env->file, (unsigned)f->number);
    uint32_t bits = (uint32_t)f->value;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static bool is_utf8(const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n;) {
        int more = p[i] < 0x80                   ? 0
                   : p[i] >= 0xC2 && p[i] < 0xE0 ? 1
                   : (p[i] & 0xF0) == 0xE0       ? 2
                   : (p[i] & 0xF8) == 0xF0       ? 3
                                                 : -1;
        if (more < 0 || (size_t)more >= n - i) return false;
        for (int k = 1; k <= more; k++)
            if ((p[i + (size_t)k] & 0xC0) != 0x80) return false;
        i += (size_t)more + 1;
    }
    return true;
}

const char *onnx_string(onnx_env *env, const onnx_field *f) {
    onnx_span s = onnx_bytes(env, f);
    if (s.n > TN_ONNX_MAX_NAME) malformed(env, s.at, "a name is longer than 1024 bytes");
    if (!is_utf8(s.at, s.n) || (s.n && memchr(s.at, 0, s.n))) malformed(env, s.at, "a name that is not UTF-8 text");
    char *copy = onnx_new(env, s.n + 1, 1);
    if (s.n) memcpy(copy, s.at, s.n);
    return copy;
}

static size_t packed_varints(onnx_env *env, onnx_span s, void *out) {
    size_t n = 0;
    for (; s.n; n++) {
        uint64_t v = varint(env, &s);
        if (out) memcpy((char *)out + n * 8, &v, 8);
    }
    return n;
}

size_t onnx_numbers(onnx_env *env, const onnx_field *f, int width, void *out) {
    onnx_wire single = width == 4 ? WIRE_32 : width == 8 ? WIRE_64 : WIRE_VARINT;
    if (f->wire == single) {
        if (out) memcpy(out, &f->value, width == 4 ? 4 : 8); /* little-endian: the low half comes first */
        return 1;
    }
    onnx_span s = onnx_bytes(env, f);
    if (!width) return packed_varints(env, s, out);
    if (s.n % (size_t)width) malformed(env, s.at, "a list of numbers ends within one");
    if (out && s.n) memcpy(out, s.at, s.n);
    return s.n / (size_t)width;
}
