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

static void q8_0(const uint8_t *b, float *y) { /* f16 scale, 32 bytes */
    float d = from_f16(u16_at(b));
    for (int i = 0; i < 32; i++) y[i] = d * (float)(int8_t)b[2 + i];
}
/* q4_0, q4_1, q5_0, q5_1: f16 scale; f16 least value; 32 high bits of 5-bit numbers; 16 bytes: low halves, then high halves. */
static void of_32(const uint8_t *b, bool has_least, bool five, float *y) {
    float d = from_f16(u16_at(b)), least = has_least ? from_f16(u16_at(b + 2)) : 0;
    const uint8_t *high = b + (has_least ? 4 : 2), *q = high + (five ? 4 : 0);
    for (int i = 0; i < 32; i++) {
        int n = q[i % 16] >> (i < 16 ? 0 : 4) & 15;
        if (five) n |= (high[i / 8] >> i % 8 & 1) << 4;
        y[i] = has_least ? d * (float)n + least : d * (float)(n - (five ? 16 : 8));
    }
}
/* Scale and least value of the j-th 32 numbers: 6 bits each, packed into 12 bytes. */
static void scales_of(const uint8_t *s, int j, int *scale, int *least) {
    *scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    *least = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
}
/* q4_k, q5_k: f16 scale of scales and of leasts, 12 bytes of them, 32 bytes of high bits of 5-bit numbers, 128 bytes. */
static void of_256(const uint8_t *b, bool five, float *y) {
    float d = from_f16(u16_at(b)), m = from_f16(u16_at(b + 2));
    const uint8_t *high = b + 16, *q = high + (five ? 32 : 0);
    for (int j = 0; j < 8; j++) {
        int scale, least;
        scales_of(b + 4, j, &scale, &least);
        for (int i = 0; i < 32; i++) {
            int n = j % 2 ? q[j / 2 * 32 + i] >> 4 : q[j / 2 * 32 + i] & 15;
            if (five) n |= (high[i] >> j & 1) << 4;
            y[j * 32 + i] = d * (float)scale * (float)n - m * (float)least;
        }
    }
}
static void q6_k(const uint8_t *b, float *y) { /* low 4 bits, high 2 bits, 16 scales, f16 scale of scales */
    float d = from_f16(u16_at(b + 208));
    for (int i = 0; i < 256; i++) {
        int part = i / 128, quarter = i % 128 / 32, l = i % 32;
        int low = b[part * 64 + quarter % 2 * 32 + l], high = b[128 + part * 32 + l] >> (2 * quarter) & 3;
        int n = ((quarter < 2 ? low & 15 : low >> 4) | high << 4) - 32;
        y[i] = d * (float)(int8_t)b[192 + part * 8 + quarter * 2 + l / 16] * (float)n;
    }
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
    size_t count = 1;
    for (int i = 0; i < t->shape.rank; i++) count *= (size_t)t->shape.dim[i];
    if (count != n)
        return io_fail(ctx, TN_ERR_INVAL, "tn_io_gguf_read: \"%s\" has %zu elements, there is room for %zu", t->name, count, n);
    const uint8_t *at = t->data;
    switch (t->type) {
    case TN_GGUF_F32:
        return tn_io_to_f32(ctx, TN_F32, at, n, out);
    case TN_GGUF_F16:
        return tn_io_to_f32(ctx, TN_F16, at, n, out);
    case TN_GGUF_BF16:
        return tn_io_to_f32(ctx, TN_BF16, at, n, out);
    case TN_GGUF_Q4_0:
    case TN_GGUF_Q4_1:
    case TN_GGUF_Q5_0:
    case TN_GGUF_Q5_1: {
        bool least = t->type == TN_GGUF_Q4_1 || t->type == TN_GGUF_Q5_1, five = t->type >= TN_GGUF_Q5_0;
        for (size_t i = 0; i < n / 32; i++) of_32(at + (size_t)(18 + 2 * least + 4 * five) * i, least, five, out + 32 * i);
        return TN_OK;
    }
    case TN_GGUF_Q8_0:
        for (size_t i = 0; i < n / 32; i++) q8_0(at + 34 * i, out + 32 * i);
        return TN_OK;
    case TN_GGUF_Q4_K:
        for (size_t i = 0; i < n / 256; i++) of_256(at + 144 * i, false, out + 256 * i);
        return TN_OK;
    case TN_GGUF_Q5_K:
        for (size_t i = 0; i < n / 256; i++) of_256(at + 176 * i, true, out + 256 * i);
        return TN_OK;
    case TN_GGUF_Q6_K:
        for (size_t i = 0; i < n / 256; i++) q6_k(at + 210 * i, out + 256 * i);
        return TN_OK;
    }
    return io_fail(ctx, TN_ERR_INVAL, "tn_io_gguf_read: there is no type %d", (int)t->type);
}
