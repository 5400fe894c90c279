/* winograd.c - convolution with 3x3 weights through Winograd's minimal filtering (Lavin and Gray, CVPR 2016): tiles of m x m
 * results, m = 2 or 4, from t x t inputs, t = m + 2. Input and weights are transformed to t^2 points, at each of which channels
 * are contracted, and a transform of those is the result: t^2 multiply-adds a tile and pair of channels instead of 9 m^2.
 *
 * In: images [N,H,W,C] and weights [3,3,C,O]. Out: compositions of builders; in the gradient, which is made of their adjoints,
 * the same contractions stand. The transforms are sums of slices: one kernel each way. */
#include "nn.h"

enum { MAX_T = 6, MAX_PARTS = MAX_T * MAX_T };

/* Transforms along one axis: of the input (BT, t x t), of the weights (G, t x 3), of the result (AT, m x t). In BT and G rows
 * 2k - 1 and 2k differ in the sign of their odd columns, in AT columns 2k - 1 and 2k in that of odd rows: sums that two of them
 * have in common are made once. */
typedef struct transforms {
    double bt[MAX_T][MAX_T], g[MAX_T][3], at[4][MAX_T];
} transforms;
static const transforms of_2 = {
    .bt = { { 1, 0, -1 }, { 0, 1, 1 }, { 0, -1, 1 }, { 0, 1, 0, -1 } },
    .g = { { 1 }, { 0.5, 0.5, 0.5 }, { 0.5, -0.5, 0.5 }, { 0, 0, 1 } },
    .at = { { 1, 1, 1 }, { 0, 1, -1, -1 } },
};
static const transforms of_4 = {
    .bt = { { 4, 0, -5, 0, 1 },
            { 0, -4, -4, 1, 1 },
            { 0, 4, -4, -1, 1 },
            { 0, -2, -1, 2, 1 },
            { 0, 2, -1, -2, 1 },
            { 0, 4, 0, -5, 0, 1 } },
    .g = { { 1 / 4.0 },
           { -1 / 6.0, -1 / 6.0, -1 / 6.0 },
           { -1 / 6.0, 1 / 6.0, -1 / 6.0 },
           { 1 / 24.0, 1 / 12.0, 1 / 6.0 },
           { 1 / 24.0, -1 / 12.0, 1 / 6.0 },
           { 0, 0, 1 } },
    .at = { { 1, 1, 1, 1, 1 }, { 0, 1, -1, 2, -2 }, { 0, 1, 1, 4, 4 }, { 0, 1, -1, 8, -8, 1 } },
};
static const transforms *transforms_of(int m) { return m == 2 ? &of_2 : &of_4; }

/* sum + k * x; a sum without terms has no graph. */
static tn_tensor plus(tn_tensor sum, double k, tn_tensor x) {
    double size = k < 0 ? -k : k;
    if (k == 0) return sum;
    tn_tensor term = size == 1 ? x : tn_mul_scalar(x, size);
    if (!sum.graph) return k < 0 ? tn_neg(term) : term;
    return k < 0 ? tn_sub(sum, term) : tn_add(sum, term);
}

/* The terms of every step-th column from `first` on, positive ones first: no negation. sign -1 turns all of them. */
static tn_tensor row_part(const double *row, const tn_tensor *x, int n, int first, int step, int sign) {
    tn_tensor sum = { 0 };
    for (int turn = 1; turn >= -1; turn -= 2)
        for (int i = first; i < n; i += step)
            if (row[i] * turn * sign > 0) sum = plus(sum, row[i] * sign, x[i]);
    return sum;
}

/* A row of BT or G times x: odd columns with the sign that the last of them has in both of two rows. */
static tn_tensor row_times(const double *row, const tn_tensor *x, int n) {
    int sign[2] = { 0, 0 };
    for (int i = 0; i < n; i++)
        if (row[i] != 0) sign[i % 2] = row[i] < 0 ? -1 : 1;
    if (!sign[0] || !sign[1]) return row_part(row, x, n, 0, 1, 1);
    tn_tensor even = row_part(row, x, n, 0, 2, sign[0]), odd = row_part(row, x, n, 1, 2, sign[1]);
    if (sign[0] < 0 && sign[1] > 0) return tn_sub(odd, even);
    return plus(sign[0] < 0 ? tn_neg(even) : even, sign[1], odd);
}

/* A row of AT times x. */
static tn_tensor row_times_pairs(const double *row, const tn_tensor *x, int n) {
    tn_tensor sum = plus((tn_tensor){ 0 }, row[0], x[0]);
    for (int i = 1; i + 1 < n; i += 2)
        sum = plus(sum, row[i], row[i] == row[i + 1] ? tn_add(x[i], x[i + 1]) : tn_sub(x[i], x[i + 1]));
    return plus(sum, row[n - 1], x[n - 1]);
}

typedef tn_tensor (*row_fn)(const double *row, const tn_tensor *x, int n);

/* out[rows][rows] = M x M^T for x[n][n], M in rows of `width`. */
static void transform(const double *m, int width, int rows, int n, row_fn times, const tn_tensor *x, tn_tensor *out) {
    tn_tensor half[MAX_PARTS], column[MAX_T];
    for (int j = 0; j < n; j++) {
        for (int i = 0; i < n; i++) column[i] = x[i * n + j];
        for (int i = 0; i < rows; i++) half[i * n + j] = times(m + i * width, column, n);
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < rows; j++) out[i * rows + j] = times(m + j * width, half + i * n, n);
}

/* x[start .. start + count) in each axis. */
static tn_tensor part_of(tn_tensor x, tn_shape start, tn_shape count) {
    int64_t stop[TN_MAX_RANK];
    for (int i = 0; i < start.rank; i++) stop[i] = start.dim[i] + count.dim[i];
    return tn_slice(x, start.dim, stop, NULL, start.rank);
}

/* f[n,n,..] -> the n^2 of f[1,1,..]: rows first, so that in the gradient rows are put together from their elements. */
static void pieces(tn_tensor x, int n, tn_tensor *out) {
    tn_shape start = tn_tensor_shape(x), count = start;
    for (int i = 0; i < start.rank; i++) start.dim[i] = 0;
    for (int i = 0; i < n; i++) {
        tn_shape row = start, element = start, one = count;
        row.dim[0] = i, one.dim[0] = 1;
        tn_tensor r = part_of(x, row, one);
        one.dim[1] = 1;
        for (int j = 0; j < n; j++) {
            element.dim[1] = j;
            out[i * n + j] = part_of(r, element, one);
        }
    }
}
/* Back. */
static tn_tensor joined(const tn_tensor *x, int n) {
    tn_tensor row[MAX_T];
    for (int i = 0; i < n; i++) row[i] = tn_concat(x + i * n, n, 1);
    return tn_concat(row, n, 0);
}

tn_tensor tn_nn_winograd_weights(tn_tensor w, int m) {
    tn_shape s;
    if (!nn_check(w, "tn_nn_winograd_weights", 4, &s)) return (tn_tensor){ w.graph, 0 };
    if (s.rank != 4 || s.dim[0] != 3 || s.dim[1] != 3 || (m != 2 && m != 4))
        return nn_fail(w.graph, TN_ERR_SHAPE,
                       "tn_nn_winograd_weights: expected weights [3,3,C,O] and tiles of 2 or 4, got rank %d and %d", s.rank, m);
    int t = m + 2;
    tn_tensor x[9], u[MAX_PARTS];
    pieces(w, 3, x);
    transform(&transforms_of(m)->g[0][0], 3, t, 3, row_times, x, u);
    return tn_reshape(joined(u, t), TN_DIMS(t * t, s.dim[2], s.dim[3]));
}

/* y[a][b] f[N,TH,1,TW,1,O] -> f[N,TH*m,TW*m,O]: result (a, b) of all tiles -> the image. */
static tn_tensor interleaved(const tn_tensor *y, int m, tn_shape image) {
    tn_tensor row[4];
    for (int a = 0; a < m; a++) row[a] = tn_concat(y + a * m, m, 4);
    return tn_reshape(tn_concat(row, m, 2), image);
}

tn_tensor nn_winograd(tn_tensor x, tn_tensor u, tn_tensor bias, int m, const int64_t *padding) {
    tn_shape s = tn_tensor_shape(x), us = tn_tensor_shape(u);
    tn_tensor poison = { x.graph, 0 };
    if (s.rank < 0 || us.rank < 0) return poison;
    tn_graph *g = x.graph;
    int64_t n = s.dim[0], c = s.dim[3], o = us.dim[2], image[2], after[4] = { 0 };
    int t = m + 2;
    bool rest = false; /* tiles may go past the image */
    for (int i = 0; i < 2; i++) {
        int64_t own = s.dim[1 + i], least = nn_least(g, own) + 2 * padding[i] - 2;
        if (least < 1) return nn_fail(g, TN_ERR_SHAPE, "tn_nn_conv2d: the image is smaller than the kernel");
        image[i] = nn_plus(g, own, 2 * padding[i] - 2);
        rest |= own < 0 || image[i] % m;
        after[1 + i] = padding[i] + (own < 0 ? m - 1 : (m - image[i] % m) % m); /* of a run: as many as any has */
    }
    tn_tensor d[MAX_PARTS], v[MAX_PARTS], y[16];
    const int64_t before[4] = { 0, padding[0], padding[1] }, axes[2] = { 1, 2 }, size[2] = { t, t }, stride[2] = { m, m },
                  points_first[6] = { 4, 5, 0, 1, 2, 3 };
    x = tn_window(tn_pad(x, before, after, 4, 0), axes, size, stride, NULL, 2);
    tn_shape tiles = tn_tensor_shape(x);
    if (tiles.rank < 0) return x;
    int64_t th = tiles.dim[1], tw = tiles.dim[2], points = nn_product(g, tiles.dim, 3);
    pieces(tn_permute(x, points_first, 6), t, d); /* f[1,1,N,TH,TW,C]: element (i, j) of all tiles */
    transform(&transforms_of(m)->bt[0][0], MAX_T, t, t, row_times, d, v);
    const int64_t first = 0, channel_v = 2, channel_u = 1;
    v[0] = tn_reshape(joined(v, t), TN_DIMS(t * t, points, c));
    tn_tensor z = tn_dot(v[0], u, &first, &first, 1, &channel_v, &channel_u, 1); /* [t^2, points, O] */
    for (int i = 0; i < t * t; i++)
        d[i] = tn_reshape(part_of(z, TN_DIMS(i, 0, 0), TN_DIMS(1, points, o)), TN_DIMS(n, th, 1, tw, 1, o));
    transform(&transforms_of(m)->at[0][0], MAX_T, m, t, row_times_pairs, d, y);
    for (int i = 0; i < m * m && bias.graph; i++) y[i] = tn_add(y[i], bias);
    x = interleaved(y, m, TN_DIMS(n, nn_times(g, th, m), nn_times(g, tw, m), o));
    return rest ? part_of(x, TN_DIMS(0, 0, 0, 0), TN_DIMS(n, image[0], image[1], o)) : x;
}
