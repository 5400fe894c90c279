/* fft.c - Fourier transforms of any length (tenon_signal.h).
 *
 * In: pairs f[..,2]. Out: for each factor of the length a contraction with a table (an array of the graph) and a product with
 * twiddle factors, between which nothing but views moves. Tables are made in memory of the context and copied by the graph. */
#include "signal.h"

#include <math.h>
#include <string.h>

#define TURN 6.283185307179586476925286766559

enum { DIRECT = 61 /* longest table */, MOST = 1 << 24 };

/* exp(sign i turn k / n) */
static void unit_root(int64_t k, int64_t n, int sign, double out[2]) {
    double angle = TURN * (double)(k % n) / (double)n;
    out[0] = cos(angle), out[1] = sign * sin(angle);
}

/* A constant of x's dtype made by fill(ud, i, out): pairs. shape ends with 2. */
typedef void filler(const void *ud, int64_t i, double out[2]);
static tn_tensor table(tn_tensor x, tn_shape shape, filler *fill, const void *ud) {
    tn_dtype t = tn_tensor_dtype(x);
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.dim[i];
    size_t bytes = (size_t)n * tn_dtype_size(t);
    tn_ctx *ctx = tn_graph_ctx(x.graph);
    void *data = tn_ctx_realloc(ctx, NULL, 0, bytes);
    if (!data) return nn_fail(x.graph, TN_ERR_NOMEM, "out of memory: a table of %lld numbers", (long long)n);
    for (int64_t i = 0; i < n; i += 2) {
        double pair[2];
        fill(ud, i / 2, pair);
        for (int k = 0; k < 2; k++) {
            if (t == TN_F64)
                ((double *)data)[i + k] = pair[k];
            else
                ((float *)data)[i + k] = (float)pair[k];
        }
    }
    tn_tensor y = tn_const(x.graph, t, shape, data);
    tn_ctx_realloc(ctx, data, bytes, 0);
    return y;
}

/* ---- pairs ---- */

tn_tensor signal_half(tn_tensor x, int which) { /* [..,2] to [..] */
    tn_shape s = tn_tensor_shape(x), stop = s;
    int64_t start[TN_MAX_RANK] = { 0 };
    if (s.rank < 0) return x;
    start[s.rank - 1] = which, stop.dim[s.rank - 1] = which + 1;
    x = tn_slice(x, start, stop.dim, NULL, s.rank);
    s.rank--;
    return tn_reshape(x, s);
}
static tn_tensor pair_of(tn_tensor re, tn_tensor im) { return tn_nn_stack((const tn_tensor[]){ re, im }, 2, -1); }
static tn_tensor times(tn_tensor a, tn_tensor b) {
    tn_tensor ar = signal_half(a, 0), ai = signal_half(a, 1), br = signal_half(b, 0), bi = signal_half(b, 1);
    return pair_of(tn_sub(tn_mul(ar, br), tn_mul(ai, bi)), tn_add(tn_mul(ar, bi), tn_mul(ai, br)));
}

/* ---- one factor ---- */

typedef struct roots {
    int64_t n, columns; /* of a turn; of the table */
    int sign;
    double scale;
} roots;

/* Entry (j, part of x, k): what the real or imaginary part of x[j] gives to y[k]. */
static void fill_factor(const void *ud, int64_t i, double out[2]) {
    const roots *r = ud;
    double w[2];
    int64_t k = i % r->columns, part = i / r->columns % 2, j = i / r->columns / 2;
    unit_root(j * k, r->n, r->sign, w);
    out[0] = (part ? -w[1] : w[0]) * r->scale, out[1] = (part ? w[0] : w[1]) * r->scale;
}
/* x [b,a,c,2] (or [b,a,c] of real numbers), transformed along a: [b,a,c,2]. */
static tn_tensor by_table(tn_tensor x, int64_t a, bool real, int sign, double scale) {
    roots r = { a, a, sign, scale };
    int64_t from_x[] = { 1, 3 }, from_t[] = { 0, 1 }, perm[] = { 0, 2, 1, 3 };
    tn_tensor t = table(x, TN_DIMS(a, 2, a, 2), fill_factor, &r);
    if (real) { /* without what imaginary parts give */
        int64_t start[4] = { 0 }, stop[4] = { a, 1, a, 2 };
        t = tn_reshape(tn_slice(t, start, stop, NULL, 4), TN_DIMS(a, a, 2));
    }
    return tn_permute(tn_dot(x, t, NULL, NULL, 0, from_x, from_t, real ? 1 : 2), perm, 4); /* [b,c,a,2] */
}

static void fill_twiddle(const void *ud, int64_t i, double out[2]) {
    const roots *r = ud;
    unit_root(i / r->columns * (i % r->columns), r->n, r->sign, out);
}

static int64_t largest_factor(int64_t n) { /* that one table does */
    for (int64_t a = DIRECT; a > 1; a--)
        if (n % a == 0) return a;
    return 0;
}
static bool has_large_prime(int64_t n) {
    for (int64_t p = 2; p <= DIRECT; p++)
        while (n % p == 0) n /= p;
    return n > 1;
}

static tn_tensor transform(tn_tensor x, int64_t b, int64_t n, int64_t c, bool real, int sign);

/* ---- Bluestein ---- */

/* exp(sign i pi j^2 / n); lengths are at most MOST, so that j^2 does not overflow */
static void chirp(int64_t j, int64_t n, int sign, double out[2]) { unit_root(j * j, 2 * n, sign, out); }
static void fill_chirp(const void *ud, int64_t i, double out[2]) {
    const roots *r = ud;
    chirp(i, r->n, r->sign, out);
}
/* The conjugate chirp round a ring of r->columns. */
static void fill_ring(const void *ud, int64_t i, double out[2]) {
    const roots *r = ud;
    int64_t j = i < r->n ? i : r->columns - i;
    out[0] = out[1] = 0;
    if (j < r->n) chirp(j, r->n, -r->sign, out);
}

/* A transform as a convolution: j k = (j^2 + k^2 - (k - j)^2) / 2. */
static tn_tensor by_convolution(tn_tensor x, int64_t b, int64_t n, int64_t c, int sign) {
    int64_t m = 1, none[4] = { 0 };
    while (m < 2 * n - 1) m *= 2;
    roots r = { n, m, sign, 1 };
    int64_t more[4] = { 0, m - n, 0, 0 }, start[4] = { 0 }, stop[4] = { b, n, c, 2 };
    tn_tensor w = table(x, TN_DIMS(1, n, 1, 2), fill_chirp, &r), ring = table(x, TN_DIMS(1, m, 1, 2), fill_ring, &r);
    tn_tensor y = transform(tn_pad(times(x, w), none, more, 4, 0), b, m, c, false, -1);
    y = transform(times(y, transform(ring, 1, m, 1, false, -1)), b, m, c, false, 1);
    return tn_mul_scalar(times(tn_slice(y, start, stop, NULL, 4), w), 1 / (double)m);
}

/* ---- all factors ---- */

/* x [b,n,c,2] (or [b,n,c]) along n, without a scale: n = a * rest, j = j1 * rest + j2, k = k2 * a + k1. */
static tn_tensor transform(tn_tensor x, int64_t b, int64_t n, int64_t c, bool real, int sign) {
    if (n <= DIRECT) return by_table(x, n, real, sign, 1);
    if (has_large_prime(n)) {
        if (real) x = pair_of(x, tn_full(x.graph, tn_tensor_dtype(x), tn_tensor_shape(x), 0));
        return by_convolution(x, b, n, c, sign);
    }
    int64_t a = largest_factor(n), rest = n / a, perm[] = { 0, 2, 1, 3, 4 }, all = nn_times(x.graph, b, a);
    roots r = { n, rest, sign, 1 };
    x = by_table(tn_reshape(x, (tn_shape){ real ? 3 : 4, { b, a, nn_times(x.graph, c, rest), 2 } }), a, real, sign, 1);
    x = tn_reshape(x, TN_DIMS(b, a, rest, c, 2));
    x = times(x, table(x, TN_DIMS(1, a, rest, 1, 2), fill_twiddle, &r));
    x = transform(tn_reshape(x, TN_DIMS(all, rest, c, 2)), all, rest, c, false, sign);
    return tn_reshape(tn_permute(tn_reshape(x, TN_DIMS(b, a, rest, c, 2)), perm, 5), TN_DIMS(b, n, c, 2));
}

/* ---- builders ---- */

typedef struct signal { /* x [b,n,c] and the axis of pairs, where there is one */
    tn_tensor x;
    tn_shape given; /* without that axis */
    int64_t b, n, c;
    int axis;
    tn_dtype t;
} signal;

static bool open_signal(tn_tensor x, const char *fn, int axis, bool pairs, signal *out) {
    tn_shape s;
    if (!nn_check(x, fn, pairs ? 2 : 1, &s)) return false;
    *out = (signal){ .b = 1, .c = 1, .t = tn_tensor_dtype(x) };
    if (pairs && s.dim[s.rank - 1] != 2) {
        nn_fail(x.graph, TN_ERR_SHAPE, "%s: the last axis has size %lld, and must be pairs", fn, (long long)s.dim[s.rank - 1]);
        return false;
    }
    s.rank -= pairs;
    out->axis = axis < 0 ? axis + s.rank : axis;
    if (out->axis < 0 || out->axis >= s.rank) {
        nn_fail(x.graph, TN_ERR_SHAPE, "%s: axis %d of rank %d", fn, axis, s.rank);
        return false;
    }
    out->given = s, out->n = s.dim[out->axis];
    if (out->n < 0) {
        nn_fail(x.graph, TN_ERR_UNSUPPORTED, "%s: axis %d has a range of sizes", fn, out->axis);
        return false;
    }
    if (out->n > MOST) nn_fail(x.graph, TN_ERR_UNSUPPORTED, "%s: length %lld, up to %d", fn, (long long)out->n, MOST);
    for (int i = 0; i < s.rank; i++)
        if (i < out->axis)
            out->b = nn_times(x.graph, out->b, s.dim[i]);
        else if (i > out->axis)
            out->c = nn_times(x.graph, out->c, s.dim[i]);
    if (out->t == TN_F16 || out->t == TN_BF16) x = tn_cast(x, TN_F32);
    out->x = tn_reshape(x, (tn_shape){ pairs ? 4 : 3, { out->b, out->n, out->c, 2 } });
    return out->n <= MOST;
}
/* x [b,n,c] or [b,n,c,2] in the shape given, with n along the axis. */
static tn_tensor close_signal(const signal *g, tn_tensor x, int64_t n, bool pairs) {
    tn_shape s = g->given;
    s.dim[g->axis] = n;
    if (pairs) s.dim[s.rank++] = 2;
    return tn_cast(tn_reshape(x, s), g->t);
}

tn_tensor tn_signal_fft(tn_tensor x, int axis, int inverse) {
    signal g;
    if (!open_signal(x, "tn_signal_fft", axis, true, &g)) return (tn_tensor){ x.graph, 0 };
    if (g.n == 0) return x;
    tn_tensor y = transform(g.x, g.b, g.n, g.c, false, inverse ? 1 : -1);
    return close_signal(&g, inverse ? tn_mul_scalar(y, 1 / (double)g.n) : y, g.n, true);
}
tn_tensor tn_signal_rfft(tn_tensor x, int axis) {
    signal g;
    if (!open_signal(x, "tn_signal_rfft", axis, false, &g)) return (tn_tensor){ x.graph, 0 };
    if (g.given.rank == TN_MAX_RANK || g.n == 0)
        return nn_fail(x.graph, TN_ERR_SHAPE, "tn_signal_rfft: rank %d, length %lld", g.given.rank, (long long)g.n);
    int64_t half = g.n / 2 + 1, start[4] = { 0 }, stop[4] = { g.b, half, g.c, 2 };
    return close_signal(&g, tn_slice(transform(g.x, g.b, g.n, g.c, true, -1), start, stop, NULL, 4), half, true);
}
/* The second half is the first, mirrored, with the other sign of the imaginary part. */
tn_tensor tn_signal_irfft(tn_tensor x, int64_t n, int axis) {
    static const char fn[] = "tn_signal_irfft";
    signal g;
    if (!open_signal(x, fn, axis, true, &g)) return (tn_tensor){ x.graph, 0 };
    if (n < 1 || g.n != n / 2 + 1)
        return nn_fail(x.graph, TN_ERR_SHAPE, "%s: %lld frequencies for %lld numbers: expected %lld", fn, (long long)g.n,
                       (long long)n, (long long)(n < 1 ? 1 : n / 2 + 1));
    int64_t mirrored = n - g.n, from = 1, ax = 1, start[3] = { 0, from, 0 }, stop[3] = { g.b, from + mirrored, g.c };
    tn_tensor re = signal_half(g.x, 0), im = signal_half(g.x, 1), k = tn_iota(x.graph, TN_I64, TN_DIMS(1, g.n, 1), 1);
    tn_tensor real = tn_eq(tn_mod(tn_mul_scalar(k, 2), tn_full(x.graph, TN_I64, TN_SCALAR, (double)n)),
                           tn_full(x.graph, TN_I64, TN_SCALAR, 0));
    im = tn_select(real, nn_scalar(im, 0), im);
    if (mirrored) {
        re = tn_concat((tn_tensor[]){ re, tn_flip(tn_slice(re, start, stop, NULL, 3), &ax, 1) }, 2, 1);
        im = tn_concat((tn_tensor[]){ im, tn_neg(tn_flip(tn_slice(im, start, stop, NULL, 3), &ax, 1)) }, 2, 1);
    }
    tn_tensor y = transform(pair_of(re, im), g.b, n, g.c, false, 1);
    return close_signal(&g, tn_mul_scalar(signal_half(y, 0), 1 / (double)n), n, false);
}
