/* tenon_signal.h - Fourier transforms, short-time transforms, windows and mel filters. Compositions of the builders of tenon.h,
 * with the gradients of those.
 *
 * Complex numbers are pairs: a last axis of size 2 with the real and the imaginary part. Any length: factors of the length are
 * done one after the other as products with tables (Cooley and Tukey 1965), which is matrix multiplication; lengths with prime
 * factors above 61 as convolutions of a power of two (Bluestein 1970). f32 and f64 as they are, f16 and bf16 in f32, rounded
 * once. Axes count from the end when negative, and are counted without the axis of pairs. Sizes must be numbers, not ranges. */
#ifndef TENON_SIGNAL_H
#define TENON_SIGNAL_H

#include "tenon.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[k] = sum of x[j] exp(-2 pi i j k / n) along axis; inverse != 0: exp(+..), divided by n. */
TN_API tn_tensor tn_signal_fft(tn_tensor x /* f[..,2] */, int axis, int inverse);
/* Of real numbers: the first n/2+1 frequencies, as pairs: f[..,n,..] -> f[..,n/2+1,..,2]. */
TN_API tn_tensor tn_signal_rfft(tn_tensor x /* f[..] */, int axis);
/* Back to n real numbers (n/2+1 frequencies are read; the imaginary parts of the first, and for even n of the last, are not):
 * f[..,n/2+1,..,2] -> f[..,n,..]. */
TN_API tn_tensor tn_signal_irfft(tn_tensor x /* f[..,2] */, int64_t n, int axis);

typedef enum { TN_SIGNAL_HANN, TN_SIGNAL_HAMMING, TN_SIGNAL_BLACKMAN } tn_signal_window_kind;
/* f32[n]; periodic != 0: as of length n + 1, without the last, for transforms. Hann 0.5 - 0.5 cos, Hamming 25/46 - 21/46 cos,
 * Blackman 0.42 - 0.5 cos + 0.08 cos(2 ..). */
TN_API tn_tensor tn_signal_window(tn_graph *g, tn_signal_window_kind kind, int64_t n, int periodic);

typedef struct {
    int64_t length;   /* of a frame */
    int64_t step;     /* 0 = length / 4 */
    tn_tensor window; /* f[length], when its graph is set */
    int centered;     /* frames are centered at multiples of step: half a frame is mirrored at both ends */
    int two_sided;    /* all `length` frequencies; 0: the first length/2+1 */
} tn_signal_stft_opts;
/* Spectra of frames of the last axis: f[..,n] -> f[..,frames,frequencies,2]. */
TN_API tn_tensor tn_signal_stft(tn_tensor x /* f[..,n] */, tn_signal_stft_opts opts);

/* f32[length/2+1,bands]: triangles between bands + 2 bins that lie at equal distances of 2595 log10(1 + f/700), from low to
 * high Hz, of a spectrum of `length` samples at `rate` Hz: a spectrum times this is one of bands. (ONNX's MelWeightMatrix.) */
TN_API tn_tensor tn_signal_mel(tn_graph *g, int64_t bands, int64_t length, double rate, double low, double high);

#if !defined(TN_NO_LOCATIONS) && !defined(TN_BUILDING)
#define tn_signal_fft(x, ...) (tn_signal_fft)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_signal_rfft(x, ...) (tn_signal_rfft)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_signal_irfft(x, ...) (tn_signal_irfft)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_signal_window(g, ...) (tn_signal_window)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_signal_stft(x, ...) (tn_signal_stft)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_signal_mel(g, ...) (tn_signal_mel)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#endif

#ifdef __cplusplus
}
#endif
#endif
