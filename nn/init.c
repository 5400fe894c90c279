/* init.c - initial values of parameters. In: a distribution, a shape, a key made of the graph's seed and the parameter's name.
 * Out: an array of f32 or f64, the same on every machine that has the same libm. What is allocated in between is the context's.
 */
#include "nn.h"

#include <math.h>

/* Philox4x32-10 (Salmon et al., SC 2011): four words from a block number and a key. Large weights go through it, and this file
 * is compiled for size: so rounds are unrolled, in variables of their own. */
static inline void philox(uint64_t block, uint64_t key, uint32_t out[4]) {
    uint32_t a = (uint32_t)block, b = (uint32_t)(block >> 32), c = 0, d = 0, k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        uint64_t p = (uint64_t)0xd2511f53u * a, q = (uint64_t)0xcd9e8d57u * c;
        a = (uint32_t)(q >> 32) ^ b ^ k0, b = (uint32_t)q;
        c = (uint32_t)(p >> 32) ^ d ^ k1, d = (uint32_t)p;
    }
    out[0] = a, out[1] = b, out[2] = c, out[3] = d;
}

/* In (0, 1), 52 bits. */
static double unit(uint32_t hi, uint32_t lo) { return ((double)((uint64_t)hi << 20 | lo >> 12) + 0.5) * 0x1p-52; }

static double normal(uint64_t key, int64_t i) {
    uint32_t w[4];
    philox((uint64_t)i, key, w);
    return sqrt(-2 * log(unit(w[0], w[1]))) * cos(6.283185307179586 * unit(w[2], w[3]));
}
static double uniform(uint64_t key, int64_t i) {
    uint32_t w[4];
    philox((uint64_t)i, key, w);
    return 2 * unit(w[0], w[1]) - 1;
}
/* Within two standard deviations: drawn again where it is not, which one in 22 is. */
static double truncated(uint64_t key, int64_t i) {
    double v = 0;
    for (int k = 0; k < 16; k++)
        if (fabs(v = normal(key, (int64_t)((uint64_t)i + ((uint64_t)k << 48)))) <= 2) return v;
    return fmod(v, 2);
}

/* Of [.., in, out], the axes before in being a window: how many inputs an output has, and how many outputs an input. */
static void fans(tn_shape s, double *in, double *out) {
    double window = 1;
    for (int i = 0; i < s.rank - 2; i++) window *= (double)s.dim[i];
    *in = s.rank >= 2 ? window * (double)s.dim[s.rank - 2] : s.rank == 1 ? (double)s.dim[0] : 1;
    *out = s.rank >= 1 ? window * (double)s.dim[s.rank - 1] : 1;
}

/* Standard deviation of Xavier's and Kaiming's distributions, half width of the other. */
static double spread(tn_nn_init init, double scale, tn_shape s) {
    double in, out;
    fans(s, &in, &out);
    if (init == TN_NN_INIT_XAVIER_UNIFORM || init == TN_NN_INIT_XAVIER_NORMAL) in = (in + out) / 2;
    double gain = (scale != 0 ? scale : 1) * (in > 0 ? sqrt(1 / in) : 0);
    return init == TN_NN_INIT_XAVIER_UNIFORM || init == TN_NN_INIT_KAIMING_UNIFORM ? gain * sqrt(3) : gain;
}

static double value(tn_nn_init init, double scale, uint64_t key, int64_t i) {
    switch (init) {
    case TN_NN_INIT_ZEROS:
        return 0;
    case TN_NN_INIT_ONES:
        return 1;
    case TN_NN_INIT_CONSTANT:
        return scale;
    case TN_NN_INIT_UNIFORM:
    case TN_NN_INIT_XAVIER_UNIFORM:
    case TN_NN_INIT_KAIMING_UNIFORM:
        return scale * uniform(key, i);
    case TN_NN_INIT_TRUNCATED_NORMAL:
        return scale * truncated(key, i);
    default:
        return scale * normal(key, i);
    }
}

static void store(tn_dtype t, void *data, int64_t i, double v) {
    if (t == TN_F64)
        ((double *)data)[i] = v;
    else
        ((float *)data)[i] = (float)v;
}

/* Each of n vectors of length m (n <= m), stride apart, made orthogonal to those before, twice, and of length 1. */
static void orthogonalise(double *q, int64_t n, int64_t m) {
    for (int64_t i = 0; i < n; i++) {
        double *v = q + i * m, length = 0;
        for (int twice = 0; twice < 2; twice++)
            for (int64_t k = 0; k < i; k++) {
                double along = 0;
                for (int64_t j = 0; j < m; j++) along += v[j] * q[k * m + j];
                for (int64_t j = 0; j < m; j++) v[j] -= along * q[k * m + j];
            }
        for (int64_t j = 0; j < m; j++) length += v[j] * v[j];
        length = sqrt(length);
        for (int64_t j = 0; j < m; j++) v[j] = length > 0 ? v[j] / length : i == j;
    }
}
/* Rows or columns, whichever are fewer, of [.., out] as a matrix of length 1 and at right angles (Saxe et al., ICLR 2014). */
static bool orthogonal(tn_graph *g, double scale, tn_shape s, uint64_t key, tn_dtype t, void *data) {
    int64_t rows = 1, columns = s.rank ? s.dim[s.rank - 1] : 1;
    for (int i = 0; i < s.rank - 1; i++) rows *= s.dim[i];
    bool wide = columns > rows;
    int64_t n = wide ? rows : columns, m = wide ? columns : rows, bytes;
    if (__builtin_mul_overflow(n, m, &bytes) || __builtin_mul_overflow(bytes, (int64_t)sizeof(double), &bytes)) return false;
    double *q = tn_ctx_realloc(tn_graph_ctx(g), NULL, 0, (size_t)bytes);
    if (!q) return false;
    for (int64_t i = 0; i < n * m; i++) q[i] = normal(key, i);
    orthogonalise(q, n, m);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) store(t, data, i * columns + j, scale * (wide ? q[i * m + j] : q[j * m + i]));
    tn_ctx_realloc(tn_graph_ctx(g), q, (size_t)bytes, 0);
    return true;
}

bool nn_initial(tn_graph *g, tn_nn_init init, double scale, tn_shape s, uint64_t key, tn_dtype t, void *data) {
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++) n *= s.dim[i];
    if (init == TN_NN_INIT_ORTHOGONAL) return orthogonal(g, scale != 0 ? scale : 1, s, key, t, data);
    if (init >= TN_NN_INIT_XAVIER_UNIFORM) scale = spread(init, scale, s);
    for (int64_t i = 0; i < n; i++) store(t, data, i, value(init, scale, key, i));
    return true;
}
