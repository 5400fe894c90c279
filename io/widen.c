/* widen.c - numbers of few bits as f32. In: halves, or GGUF's blocks of quantised numbers (the layouts of ggml's
 * block_q4_0, block_q8_0, block_q4_K, block_q6_K and their relatives). Out: f32, one after the other. Sizes were checked by who
 * calls. */
#include "io.h"

#include <math.h>

static uint16_t u16_at(const uint8_t *at) { return (uint16_t)(at[0] | at[1] << 8); }

static float from_f16(uint16_t h) {
    int exponent = h >> 10 & 31, bits = h & 1023;
    float v = exponent == 31 ? (bits ? NAN : INFINITY)
              : exponent     ? ldexpf((float)(1024 + bits), exponent - 25)
                             : ldexpf((float)bits, -24);
    return h >> 15 ? -v : v;
}
static float from_bf16(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* ---- blocks of whole numbers: n[i] * scale of a group + its least value ---- */

typedef void read_block(const uint8_t *b, int8_t *n);

static void q8_0(const uint8_t *b, int8_t *n) { memcpy(n, b + 2, 32); } /* f16 scale, 32 bytes */
/* q4_0, q4_1, q5_0, q5_1: f16 scale; f16 least value; 32 high bits of 5-bit numbers; 16 bytes: low halves, then high halves. */
static void of_32(const uint8_t *b, bool has_least, bool five, int8_t *n) {
    const uint8_t *high = b + (has_least ? 4 : 2), *q = high + (five ? 4 : 0);
    for (int i = 0; i < 32; i++) {
        int v = q[i % 16] >> (i < 16 ? 0 : 4) & 15;
        if (five) v |= (high[i / 8] >> i % 8 & 1) << 4;
        n[i] = (int8_t)(has_least ? v : v - (five ? 16 : 8));
    }
}
static void q4_0(const uint8_t *b, int8_t *n) { of_32(b, false, false, n); }
static void q4_1(const uint8_t *b, int8_t *n) { of_32(b, true, false, n); }
static void q5_0(const uint8_t *b, int8_t *n) { of_32(b, false, true, n); }
static void q5_1(const uint8_t *b, int8_t *n) { of_32(b, true, true, n); }
/* Scale and least value of the j-th 32 numbers: 6 bits each, packed into 12 bytes. */
static void scales_of(const uint8_t *s, int j, int8_t *scale, int8_t *least) {
    *scale = (int8_t)(j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4);
    *least = (int8_t)(j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4);
}
/* q4_k, q5_k: f16 scale of scales and of leasts, which are below 0; 12 bytes of them, 32 bytes of high bits of 5-bit numbers,
 * 128 bytes. */
static void of_256(const uint8_t *b, bool five, int8_t *n) {
    const uint8_t *high = b + 16, *q = high + (five ? 32 : 0);
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 32; i++) {
            int v = j % 2 ? q[j / 2 * 32 + i] >> 4 : q[j / 2 * 32 + i] & 15;
            if (five) v |= (high[i] >> j & 1) << 4;
            n[j * 32 + i] = (int8_t)v;
        }
}
static void q4_k(const uint8_t *b, int8_t *n) { of_256(b, false, n); }
static void q5_k(const uint8_t *b, int8_t *n) { of_256(b, true, n); }
/* Low 4 bits, high 2 bits, 16 scales, f16 scale of scales. */
enum { Q6_K_SCALES = 192, Q6_K_SCALE = 208 };
static void q6_k(const uint8_t *b, int8_t *n) {
    for (int i = 0; i < 256; i++) {
        int part = i / 128, quarter = i % 128 / 32, l = i % 32;
        int low = b[part * 64 + quarter % 2 * 32 + l], high = b[128 + part * 32 + l] >> (2 * quarter) & 3;
        n[i] = (int8_t)(((quarter < 2 ? low & 15 : low >> 4) | high << 4) - 32);
    }
}

typedef struct block_form {
    int bytes, elements, group, bits; /* of a block; that share a scale; of a number */
    bool has_least;
    read_block *read;
} block_form;

static bool scales_are_whole(const block_form *f) { return f->elements > f->group; }

/* Of a block: its scale and its least value, or by what whole numbers are multiplied that each group of it has. */
typedef struct block_scales {
    uint16_t scale, least;
    int8_t scales[16], leasts[16];
} block_scales;
static void read_scales(const block_form *f, const uint8_t *b, block_scales *out) {
    bool at_end = f->elements == 16 * f->group; /* q6_k */
    out->scale = u16_at(b + (at_end ? Q6_K_SCALE : 0)), out->least = f->has_least ? u16_at(b + 2) : 0;
    if (scales_are_whole(f) && f->has_least) out->least ^= 0x8000;
    if (at_end) memcpy(out->scales, b + Q6_K_SCALES, sizeof out->scales);
    for (int j = 0; j < 8 && f->has_least && scales_are_whole(f); j++) scales_of(b + 4, j, &out->scales[j], &out->leasts[j]);
}
/* As f32; least: where the type has them. */
static void widen_scales(const block_form *f, const uint8_t *b, float *scale, float *least) {
    block_scales s;
    read_scales(f, b, &s);
    float d = from_f16(s.scale), m = from_f16(s.least);
    bool whole = scales_are_whole(f);
    for (int j = 0; j < f->elements / f->group; j++) {
        scale[j] = whole ? d * (float)s.scales[j] : d;
        if (f->has_least) least[j] = whole ? m * (float)s.leasts[j] : m;
    }
}

static bool form_of(tn_io_gguf_type type, block_form *out) {
    static const struct {
        tn_io_gguf_type type;
        block_form form;
    } forms[] = {
        { TN_GGUF_Q4_0, { 18, 32, 32, 4, false, q4_0 } },  { TN_GGUF_Q4_1, { 20, 32, 32, 4, true, q4_1 } },
        { TN_GGUF_Q5_0, { 22, 32, 32, 8, false, q5_0 } },  { TN_GGUF_Q5_1, { 24, 32, 32, 8, true, q5_1 } },
        { TN_GGUF_Q8_0, { 34, 32, 32, 8, false, q8_0 } },  { TN_GGUF_Q4_K, { 144, 256, 32, 4, true, q4_k } },
        { TN_GGUF_Q5_K, { 176, 256, 32, 8, true, q5_k } }, { TN_GGUF_Q6_K, { 210, 256, 16, 8, false, q6_k } },
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (forms[i].type != type) continue;
        *out = forms[i].form;
        return true;
    }
    return false;
}
tn_io_gguf_groups tn_io_gguf_groups_of(tn_io_gguf_type type) {
    block_form f;
    if (!form_of(type, &f)) return (tn_io_gguf_groups){ 0 };
    return (tn_io_gguf_groups){
        .group = f.group, .bits = f.bits, .has_least = f.has_least, .block = scales_are_whole(&f) ? f.elements : 0
    };
}

static size_t count_of(const tn_io_gguf_tensor *t) {
    size_t n = 1;
    for (int i = 0; i < t->shape.rank; i++) n *= (size_t)t->shape.dim[i];
    return n;
}

/* The first of the blocks from .. from + n - 1, or NULL. */
static const uint8_t *blocks_of(tn_ctx *ctx, const tn_io_gguf_tensor *t, size_t from, size_t n, const char *fn, bool given,
                                bool given_least, block_form *f) {
    if (!ctx || !t || !given || !form_of(t->type, f) || (f->has_least && !given_least)) {
        (void)io_fail(ctx, TN_ERR_INVAL, "%s: an argument is NULL, or the array is not in groups", fn);
        return NULL;
    }
    size_t all = count_of(t), of = (size_t)f->elements;
    if (from % of || n % of || from > all || n > all - from) {
        (void)io_fail(ctx, TN_ERR_INVAL, "%s: %zu elements from %zu on of \"%s\", which has %zu in blocks of %zu", fn, n, from,
                      t->name, all, of);
        return NULL;
    }
    return (const uint8_t *)t->data + from / of * (size_t)f->bytes;
}

tn_status tn_io_gguf_read_groups(tn_ctx *ctx, const tn_io_gguf_tensor *t, size_t from, size_t n, int8_t *numbers, float *scales,
                                 float *least) {
    block_form f;
    const uint8_t *at = blocks_of(ctx, t, from, n, "tn_io_gguf_read_groups", numbers && scales, least, &f);
    if (!at) return TN_ERR_INVAL;
    for (size_t i = 0; i < n / (size_t)f.elements; i++, at += f.bytes) {
        size_t group = i * (size_t)(f.elements / f.group);
        f.read(at, numbers + i * (size_t)f.elements);
        widen_scales(&f, at, scales + group, f.has_least ? least + group : NULL);
    }
    return TN_OK;
}

tn_status tn_io_gguf_read_scales(tn_ctx *ctx, const tn_io_gguf_tensor *t, size_t from, size_t n, uint16_t *scales,
                                 uint16_t *least, int8_t *whole_scales, int8_t *whole_least) {
    block_form f;
    bool whole = t && tn_io_gguf_groups_of(t->type).block;
    const uint8_t *at = blocks_of(ctx, t, from, n, "tn_io_gguf_read_scales", scales && (!whole || whole_scales),
                                  least && (!whole || whole_least), &f);
    if (!at) return TN_ERR_INVAL;
    for (size_t i = 0; i < n / (size_t)f.elements; i++, at += f.bytes) {
        block_scales s;
        size_t groups = (size_t)(f.elements / f.group);
        read_scales(&f, at, &s);
        scales[i] = s.scale;
        if (f.has_least) least[i] = s.least;
        if (!whole) continue;
        memcpy(whole_scales + i * groups, s.scales, groups);
        if (f.has_least) memcpy(whole_least + i * groups, s.leasts, groups);
    }
    return TN_OK;
}

tn_status tn_io_to_f32(tn_ctx *ctx, tn_dtype dtype, const void *data, size_t n, float *out) {
    if (!ctx || (n && (!data || !out))) return io_fail(ctx, TN_ERR_INVAL, "tn_io_to_f32: an argument is NULL");
    const uint8_t *at = data;
    if (dtype != TN_F32 && dtype != TN_F16 && dtype != TN_BF16)
        return io_fail(ctx, TN_ERR_DTYPE, "tn_io_to_f32: expected f32, f16 or bf16, got %s", tn_dtype_name(dtype));
    for (size_t i = 0; i < n && dtype != TN_F32; i++) {
        uint16_t h = u16_at(at + 2 * i);
        out[i] = dtype == TN_F16 ? from_f16(h) : from_bf16(h);
    }
    if (dtype == TN_F32 && n) memcpy(out, data, n * sizeof *out);
    return TN_OK;
}

tn_status tn_io_gguf_read(tn_ctx *ctx, const tn_io_gguf_tensor *t, float *out, size_t n) {
    if (!ctx || !t || !out) return io_fail(ctx, TN_ERR_INVAL, "tn_io_gguf_read: an argument is NULL");
    size_t count = count_of(t);
    if (count != n)
        return io_fail(ctx, TN_ERR_INVAL, "tn_io_gguf_read: \"%s\" has %zu elements, there is room for %zu", t->name, count, n);
    block_form f;
    if (!form_of(t->type, &f)) {
        bool half = t->type == TN_GGUF_F16;
        if (!half && t->type != TN_GGUF_F32 && t->type != TN_GGUF_BF16)
            return io_fail(ctx, TN_ERR_INVAL, "tn_io_gguf_read: there is no type %d", (int)t->type);
        return tn_io_to_f32(ctx, half ? TN_F16 : t->type == TN_GGUF_F32 ? TN_F32 : TN_BF16, t->data, n, out);
    }
    const uint8_t *at = t->data;
    int8_t numbers[256];
    float scale[16], least[16] = { 0 };
    for (size_t i = 0; i < n; i += (size_t)f.elements, at += f.bytes) {
        f.read(at, numbers);
        widen_scales(&f, at, scale, least);
        for (int k = 0; k < f.elements; k++) out[i + (size_t)k] = scale[k / f.group] * (float)numbers[k] + least[k / f.group];
    }
    return TN_OK;
}
