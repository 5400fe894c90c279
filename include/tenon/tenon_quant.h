/* tenon_quant.h - numbers of few bits: quantise, dequantise, training with quantised values, two numbers of 4 bits in a byte.
 * Compositions of the builders of tenon.h.
 *
 * A quantised number q stands for (q - zero) * scale. The scale's shape says what shares one:
 *   per tensor  a scale of one element
 *   per axis    [n]: one for each index of `axis`, which has size n
 *   per group   x's shape but for `axis`, which has size ceil(n / group): `group` neighbours along it share one
 * Numbers of 4 bits are i8 or u8 while one calculates (bits = 4) and u8 with two numbers each in memory (tn_pack_4bit): there
 * is no dtype of 4 bits.
 *
 * Errors: as for all builders, the first one stays in the graph and the result is poisoned. Sizes may have ranges (tn_dim), but
 * not that of an axis in groups. */
#ifndef TENON_QUANT_H
#define TENON_QUANT_H

#include "tenon.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    tn_tensor zero; /* zero points, when its graph is set: whole numbers of any dtype in the scale's shape; without, 0 */
    int axis;       /* of scales that are more than one; from the end when negative */
    int64_t group;  /* 0 = per axis */
    int bits;       /* 2 .. bits of the dtype: the range of q is that of so many bits; 0 = all bits of the dtype */
} tn_quantize_opts;

/* x / scale, rounded to the nearest whole number (halves to even), plus zero, clamped to the range of q; NaN gives 0. to: i8,
 * u8, i16, u16 or i32; or f8e4m3, f8e5m2, which have neither zero points nor bits: x / scale converted, which saturates.
 * Calculated in f64 for x of f64 and for i32, else in f32. No gradient flows through q, as through all whole numbers: to train
 * with quantised values, see tn_fake_quantize. Gives q of x's shape. */
TN_API tn_tensor tn_quantize(tn_tensor x /* f[..] */, tn_tensor scale, tn_dtype to, tn_quantize_opts opts);
/* (q - zero) * scale, of the scale's dtype and q's shape, q of the dtypes above; rounded once. Calculated in f64 for scales of
 * f64 and for i32, else in f32. The gradient of scale is the sum of (q - zero) times the incoming one; zero has one when it is
 * of floats. opts.bits is not read. On "cuda" a product of one row with 4 or 8 bits by groups takes numbers up to 2^43
 * (8.8e12): beyond it results are infinite, and below 2^-61 their error is 2^-85 rather than a share of them. */
TN_API tn_tensor tn_dequantize(tn_tensor q, tn_tensor scale /* f[..] */, tn_quantize_opts opts);
/* tn_dequantize of tn_quantize, of x's dtype, with a gradient: rounding has derivative 1 (straight through; Bengio, Leonard,
 * Courville 2013), so x has the incoming gradient where it is inside of the range, both ends included, and 0 outside; scale has
 * the one of Learned Step Size Quantization (Esser et al. 2020): q - zero - x/scale inside, q - zero outside. NaN stays NaN.
 * to: i8, u8, i16 or u16. */
TN_API tn_tensor tn_fake_quantize(tn_tensor x /* f[..] */, tn_tensor scale, tn_dtype to, tn_quantize_opts opts);

/* Two numbers of 4 bits in a byte, in groups of an even number of neighbours along axis, 0 = 2 (neighbours, as ONNX packs its
 * last axis): the first half of a group are the low halves of its bytes, the second half the high ones. The matrices of `tenon
 * quantize --bits=4` are packed in groups as large as those of their scales, with zero points of 8.
 * Of x, i8, u8, i16, u16, i32 or i64 [..,n,..] with n a multiple of group, the low 4 bits are kept: u8[..,n/2,..]. */
TN_API tn_tensor tn_pack_4bit(tn_tensor x, int axis, int64_t group);
/* Back: u8[..,n/2,..] to u8[..,n,..] of 0 .. 15 or, is_signed, to i8[..,n,..] of -8 .. 7 (two's complement). */
TN_API tn_tensor tn_unpack_4bit(tn_tensor packed, int axis, int64_t group, int is_signed);

#if !defined(TN_NO_LOCATIONS) && !defined(TN_BUILDING)
#define tn_quantize(x, ...) (tn_quantize)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_dequantize(q, ...) (tn_dequantize)(tn_at(q, TN_HERE), __VA_ARGS__)
#define tn_fake_quantize(x, ...) (tn_fake_quantize)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_pack_4bit(x, ...) (tn_pack_4bit)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_unpack_4bit(x, ...) (tn_unpack_4bit)(tn_at(x, TN_HERE), __VA_ARGS__)
#endif

#ifdef __cplusplus
}
#endif
#endif
