/* stft.c - spectra of frames, windows, mel filters (tenon_signal.h). Tables are made in memory of the context and copied by the
 * graph. */
#include "signal.h"

#include <math.h>

#define TURN 6.283185307179586476925286766559

/* Hands fill n numbers to write, and makes a constant of them. */
typedef void filler(const void *ud, double *out);
static tn_tensor numbers(tn_graph *g, tn_shape s, filler *fill, const void *ud) {
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++) n *= s.dim[i];
    size_t bytes = (size_t)(n ? n : 1) * sizeof(double);
    double *v = tn_ctx_realloc(tn_graph_ctx(g), NULL, 0, bytes);
    if (!v) return nn_fail(g, TN_ERR_NOMEM, "out of memory: %lld numbers", (long long)n);
    for (int64_t i = 0; i < n; i++) v[i] = 0;
    fill(ud, v);
    for (int64_t i = 0; i < n; i++) ((float *)v)[i] = (float)v[i]; /* in place: never ahead of what is read */
    tn_tensor y = tn_const(g, TN_F32, s, v);
    tn_ctx_realloc(tn_graph_ctx(g), v, bytes, 0);
    return y;
}

typedef struct window {
    double a, b, d, period;
    int64_t n;
} window;
static void fill_window(const void *ud, double *out) {
    const window *w = ud;
    for (int64_t i = 0; i < w->n; i++) {
        double turn = w->period > 0 ? TURN * (double)i / w->period : 0;
        out[i] = w->a - w->b * cos(turn) + w->d * cos(2 * turn);
    }
}
tn_tensor tn_signal_window(tn_graph *g, tn_signal_window_kind kind, int64_t n, int periodic) {
    static const window kinds[] = { { .a = 0.5, .b = 0.5 },
                                    { .a = 25.0 / 46, .b = 21.0 / 46 },
                                    { .a = 0.42, .b = 0.5, .d = 0.08 } };
    if ((unsigned)kind > TN_SIGNAL_BLACKMAN || n < 0 || n > 1 << 24)
        return nn_fail(g, TN_ERR_INVAL, "tn_signal_window: kind %d, length %lld", (int)kind, (long long)n);
    window w = kinds[kind];
    w.n = n, w.period = (double)(periodic ? n : n - 1);
    return numbers(g, TN_DIMS(n), fill_window, &w);
}

typedef struct mel {
    int64_t bands, length, rows;
    double rate, from, step;
} mel;
static int64_t mel_bin(const mel *m, int64_t i) {
    double hertz = 700 * (pow(10, ((double)i * m->step + m->from) / 2595) - 1);
    return (int64_t)floor((double)(m->length + 1) * hertz / m->rate);
}
static void fill_mel(const void *ud, double *out) {
    const mel *m = ud;
    for (int64_t i = 0; i < m->bands; i++) { /* rises to the next bin and falls to the one behind */
        int64_t a = mel_bin(m, i), b = mel_bin(m, i + 1), c = mel_bin(m, i + 2);
        if (a == b) out[a * m->bands + i] = 1;
        for (int64_t k = a; k <= b && a < b; k++) out[k * m->bands + i] = (double)(k - a) / (double)(b - a);
        for (int64_t k = b; k < c; k++) out[k * m->bands + i] = (double)(c - k) / (double)(c - b);
    }
}
tn_tensor tn_signal_mel(tn_graph *g, int64_t bands, int64_t length, double rate, double low, double high) {
    static const char fn[] = "tn_signal_mel";
    if (bands < 1 || bands > 1 << 16 || length < 1 || length > 1 << 20 || !(rate > 0) || (length / 2 + 1) * bands > 1 << 24 ||
        !(low >= 0 && high > low))
        return nn_fail(g, TN_ERR_INVAL, "%s: %lld bands of %lld samples at %g Hz, from %g to %g Hz", fn, (long long)bands,
                       (long long)length, rate, low, high);
    mel m = { .bands = bands, .length = length, .rows = length / 2 + 1, .rate = rate, .from = 2595 * log10(1 + low / 700) };
    m.step = (2595 * log10(1 + high / 700) - m.from) / (double)(bands + 2);
    if (mel_bin(&m, bands + 1) >= m.rows) return nn_fail(g, TN_ERR_INVAL, "%s: %g Hz is above half of %g Hz", fn, high, rate);
    return numbers(g, TN_DIMS(m.rows, bands), fill_mel, &m);
}

tn_tensor tn_signal_stft(tn_tensor x, tn_signal_stft_opts o) {
    static const char fn[] = "tn_signal_stft";
    tn_shape s;
    tn_tensor poison = { x.graph, 0 };
    if (!nn_check(x, fn, 1, &s)) return poison;
    tn_dtype t = tn_tensor_dtype(x);
    int64_t n = s.dim[s.rank - 1], step = o.step ? o.step : o.length / 4, axis = s.rank - 1, one = 1, half = o.length / 2;
    if (n < 0) return nn_fail(x.graph, TN_ERR_UNSUPPORTED, "%s: the last axis has a range of sizes", fn);
    if (o.length < 1 || step < 1 || (!o.centered && o.length > n) || (o.centered && half >= n) || s.rank + 2 > TN_MAX_RANK)
        return nn_fail(x.graph, TN_ERR_SHAPE, "%s: frames of %lld in steps of %lld over %lld samples, rank %d", fn,
                       (long long)o.length, (long long)step, (long long)n, s.rank);
    if (t == TN_F16 || t == TN_BF16) x = tn_cast(x, TN_F32);
    if (o.centered) x = tn_nn_pad(x, -1, half, half, TN_NN_PAD_REFLECT);
    x = tn_window(x, &axis, &o.length, &step, &one, 1);
    if (o.window.graph) {
        tn_shape w = tn_tensor_shape(o.window);
        if (!nn_given(x.graph, o.window, fn)) return poison;
        if (w.rank != 1 || w.dim[0] != o.length)
            return nn_fail(x.graph, TN_ERR_SHAPE, "%s: a window of rank %d and size %lld for frames of %lld", fn, w.rank,
                           (long long)(w.rank ? w.dim[0] : 1), (long long)o.length);
        x = tn_mul(x, tn_cast(o.window, tn_tensor_dtype(x)));
    }
    tn_tensor y;
    if (o.two_sided)
        y = tn_signal_fft(
            tn_nn_stack((const tn_tensor[]){ x, tn_full(x.graph, tn_tensor_dtype(x), tn_tensor_shape(x), 0) }, 2, -1), -1, 0);
    else
        y = tn_signal_rfft(x, -1);
    return tn_cast(y, t);
}
