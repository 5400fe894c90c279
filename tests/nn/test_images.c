/* test_images.c - transposed convolutions, windows and their adjoint, pixel shuffles, adaptive pools, interpolation, grid
 * samples, regions and suppression against plain loops; gradients; refused calls. Labels: devices long */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/trial.h"
#include "tenon/tenon_nn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* x [n,p0,p1,p2,c], w [k0,k1,k2,c,o/groups] to y [n,d0,d1,d2,o] */
typedef struct geometry {
    int rank;
    int64_t n, p[3], c, o, k[3], stride[3], pad[3], dilation[3], more[3], groups, d[3];
} geometry;

static void transposed_by_loops(const geometry *g, const double *x, const double *w, double *y) {
    int64_t in = g->c / g->groups, out = g->o / g->groups;
    for (int64_t n = 0; n < g->n; n++)
        for (int64_t p = 0; p < g->p[0] * g->p[1] * g->p[2]; p++)
            for (int64_t k = 0; k < g->k[0] * g->k[1] * g->k[2]; k++) {
                int64_t pp[] = { p / (g->p[1] * g->p[2]), p / g->p[2] % g->p[1], p % g->p[2] }, to = n;
                int64_t kk[] = { k / (g->k[1] * g->k[2]), k / g->k[2] % g->k[1], k % g->k[2] };
                bool inside = true;
                for (int i = 0; i < 3; i++) {
                    int64_t at = pp[i] * g->stride[i] + kk[i] * g->dilation[i] - g->pad[i];
                    inside = inside && at >= 0 && at < g->d[i];
                    to = to * g->d[i] + at;
                }
                for (int64_t c = 0; inside && c < g->c; c++)
                    for (int64_t o = 0; o < out; o++)
                        y[to * g->o + c / in * out + o] +=
                            x[(n * g->p[0] * g->p[1] * g->p[2] + p) * g->c + c] * w[(k * g->c + c) * out + o];
            }
}

static void transposed_convolutions(void **state) {
    (void)state;
    static const geometry cases[] = {
        { 1, 2, { 5, 1, 1 }, 3, 4, { 3, 1, 1 }, { 1, 1, 1 }, { 0 }, { 1, 1, 1 }, { 0 }, 1, { 0 } },
        { 1, 1, { 4, 1, 1 }, 4, 6, { 3, 1, 1 }, { 2, 1, 1 }, { 1, 0, 0 }, { 2, 1, 1 }, { 1, 0, 0 }, 2, { 0 } },
        { 2, 2, { 3, 4, 1 }, 4, 2, { 3, 2, 1 }, { 2, 3, 1 }, { 1, 1, 0 }, { 1, 1, 1 }, { 1, 2, 0 }, 2, { 0 } },
        { 2, 1, { 2, 2, 1 }, 1, 1, { 2, 2, 1 }, { 1, 1, 1 }, { 0, 0, 0 }, { 3, 1, 1 }, { 4, 0, 0 }, 1, { 0 } },
        { 3, 1, { 2, 3, 2 }, 2, 3, { 2, 2, 3 }, { 2, 1, 2 }, { 0, 1, 1 }, { 1, 1, 1 }, { 1, 0, 0 }, 1, { 0 } },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        trial *t = trial_open(i + 1);
        geometry g = cases[i];
        tn_shape xs = { .rank = g.rank + 2 }, ws = xs;
        tn_nn_conv_transpose_opts o = { .groups = g.groups };
        xs.dim[0] = g.n, xs.dim[g.rank + 1] = g.c, ws.dim[g.rank] = g.c, ws.dim[g.rank + 1] = g.o / g.groups;
        for (int k = 0; k < 3; k++) {
            g.d[k] = (g.p[k] - 1) * g.stride[k] + (g.k[k] - 1) * g.dilation[k] + 1 - 2 * g.pad[k] + g.more[k];
            o.stride[k] = g.stride[k], o.dilation[k] = g.dilation[k];
            o.padding[k] = k && !g.pad[k] ? -1 : g.pad[k], o.output_padding[k] = k && !g.more[k] ? -1 : g.more[k];
            if (k < g.rank) xs.dim[k + 1] = g.p[k], ws.dim[k] = g.k[k];
        }
        tn_tensor x = trial_floats(t, xs, -1, 1);
        o.weights = trial_floats(t, ws, -1, 1);
        tn_tensor y = tn_nn_conv_transpose(x, o, NULL);
        if (!y.id) fail_msg("%s", tn_ctx_error(t->ctx));
        int64_t count = g.n * g.d[0] * g.d[1] * g.d[2] * g.o;
        double *want = ARENA_ARRAY(&t->a, double, count);
        transposed_by_loops(&g, trial_values(t, x), trial_values(t, o.weights), want);
        assert_int_equal(trial_count(y), count);
        trial_near("conv_transpose", trial_values(t, y), want, count, 1e-12);
        trial_compiled(t, &y, 1, 1e-12);
        trial_gradients(t, y, 1e-6);
        trial_close(t);
    }
    trial *t = trial_open(9); /* the layer makes its parameters */
    tn_tensor x = trial_floats(t, TN_DIMS(1, 4, 4, 3), -1, 1);
    tn_tensor y =
        tn_nn_conv_transpose(x, (tn_nn_conv_transpose_opts){ .out_channels = 5, .kernel = { 3 }, .stride = { 2 } }, "up");
    assert_int_equal(tn_tensor_shape(y).dim[1], 9), assert_int_equal(tn_tensor_shape(y).dim[3], 5);
    assert_int_equal(tn_graph_n_params(t->g), 2);
    trial_close(t);
}

static void windows_and_back(void **state) {
    (void)state;
    trial *t = trial_open(3);
    tn_nn_pool_opts o = { .kernel = { 3, 2 }, .stride = { 2, 1 }, .padding = { 1, -1 }, .dilation = { 1, 2 } };
    tn_tensor x = trial_floats(t, TN_DIMS(2, 6, 5, 2), -1, 1), v = tn_nn_unfold(x, o); /* [2,3,3,3,2,2] */
    tn_tensor w = trial_floats(t, TN_DIMS(2, 3, 3, 3, 2, 2), -1, 1), back = tn_nn_fold(w, (int64_t[]){ 6, 5, 0 }, o);
    const double *in = trial_values(t, x), *got = trial_values(t, v), *weight = trial_values(t, w), *f = trial_values(t, back);
    double want[216] = { 0 }, fold[120] = { 0 };
    for (int i = 0; i < 216; i++) {
        int n = i / 108, p = i / 36 % 3, q = i / 12 % 3, k = i / 4 % 3, l = i / 2 % 2, c = i % 2, row = 2 * p + k - 1,
            col = q + 2 * l;
        if (row < 0 || row >= 6) continue;
        want[i] = in[((n * 6 + row) * 5 + col) * 2 + c], fold[((n * 6 + row) * 5 + col) * 2 + c] += weight[i];
    }
    assert_int_equal(trial_count(v), 216), assert_int_equal(trial_count(back), 120);
    trial_near("unfold", got, want, 216, 0), trial_near("fold", f, fold, 120, 1e-14);
    trial_compiled(t, (tn_tensor[]){ v, back }, 2, 1e-14);
    trial_gradients(t, v, 1e-6), trial_gradients(t, back, 1e-6);
    tn_tensor wide = trial_floats(t, TN_DIMS(1, 2, 3, 8), -1, 1), y = tn_nn_pixel_shuffle(wide, 2),
              again = tn_nn_pixel_unshuffle(y, 2);
    const double *a = trial_values(t, wide), *b = trial_values(t, y);
    for (int i = 0; i < 48; i++) {
        int row = i / 24, col = i / 8 % 3, c = i / 4 % 2, p = i / 2 % 2, q = i % 2;
        assert_true(b[((2 * row + p) * 6 + 2 * col + q) * 2 + c] == a[i]);
    }
    trial_near("unshuffle", trial_values(t, again), a, 48, 0);
    trial_close(t);
}

static void adaptive_pools(void **state) {
    (void)state;
    static const int cases[][2] = { { 7, 3 }, { 6, 3 }, { 5, 5 }, { 3, 7 }, { 1, 1 }, { 11, 4 } };
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        trial *t = trial_open(k + 1);
        int d = cases[k][0], out = cases[k][1];
        tn_tensor x = trial_floats(t, TN_DIMS(2, d, 4, 3), -1, 1);
        tn_tensor y[] = { tn_nn_adaptive_avg_pool(x, (int64_t[]){ out, 2, 0 }),
                          tn_nn_adaptive_max_pool(x, (int64_t[]){ out, 2, 0 }) };
        const double *v = trial_values(t, x);
        double want[2][2 * 7 * 2 * 3];
        for (int i = 0; i < 2 * out * 2 * 3; i++) {
            int n = i / (out * 6), p = i / 6 % out, q = i / 3 % 2, c = i % 3, from = p * d / out,
                to = ((p + 1) * d + out - 1) / out;
            want[0][i] = 0, want[1][i] = -INFINITY;
            for (int row = from; row < to; row++)
                for (int col = 2 * q; col < 2 * q + 2; col++) {
                    double e = v[((n * d + row) * 4 + col) * 3 + c];
                    want[0][i] += e / (2 * (to - from)), want[1][i] = fmax(want[1][i], e);
                }
        }
        for (int m = 0; m < 2; m++) trial_near("pool", trial_values(t, y[m]), want[m], 2 * out * 6, 1e-13);
        trial_compiled(t, y, 2, 1e-13);
        trial_gradients(t, y[0], 1e-6), trial_gradients(t, y[1], 1e-6);
        trial_close(t);
    }
}

static double keys(double a, double d) {
    d = fabs(d);
    return d <= 1 ? (a + 2) * d * d * d - (a + 3) * d * d + 1 : d < 2 ? a * d * d * d - 5 * a * d * d + 8 * a * d - 4 * a : 0;
}
/* One row of d elements to n, as the comments of the header say it. */
static double resized(const double *x, int d, int n, int i, const tn_nn_interpolate_opts *o) {
    double scale = (double)d / n, at = o->align_corners ? n > 1 ? i * (d - 1.0) / (n - 1) : 0 : (i + 0.5) * scale - 0.5;
    if (o->mode == TN_NN_NEAREST || o->mode == TN_NN_NEAREST_EXACT) {
        int k = (int)floor(o->align_corners ? at + 0.5 : o->mode == TN_NN_NEAREST ? i * scale : (i + 0.5) * scale);
        return x[k < 0 ? 0 : k >= d ? d - 1 : k];
    }
    double stretch = o->antialias && scale > 1 ? scale : 1, sum = 0, weights = 0;
    for (int k = -3 * d - 4; k <= 4 * d + 4; k++) {
        double far = fabs(k - at) / stretch,
               w = o->mode == TN_NN_LINEAR ? fmax(0, 1 - far) : keys(o->antialias ? -0.5 : -0.75, far);
        if (o->antialias && (k < 0 || k >= d)) continue;
        sum += w * x[k < 0 ? 0 : k >= d ? d - 1 : k], weights += w;
    }
    return o->antialias ? sum / weights : sum;
}

static void interpolations(void **state) {
    (void)state;
    static const int sizes[][2] = { { 5, 8 }, { 8, 5 }, { 4, 1 }, { 1, 3 }, { 9, 3 }, { 6, 6 } };
    int done = 0;
    for (size_t k = 0; k < COUNT_OF(sizes); k++)
        for (int mode = 0; mode < 4; mode++)
            for (int how = 0; how < 4; how++) {
                if ((how & 2) && mode < 2) continue;
                if ((how & 3) == 3 && sizes[k][0] == sizes[k][1]) continue;
                trial *t = trial_open(k * 16 + (uint64_t)(mode * 4 + how));
                int d = sizes[k][0], n = sizes[k][1];
                tn_nn_interpolate_opts o = { { n, 4, 0 }, (tn_nn_interpolation)mode, how & 1, how & 2 };
                tn_tensor x = trial_floats(t, TN_DIMS(1, d, 4, 2), -1, 1), y = tn_nn_interpolate(x, o);
                const double *v = trial_values(t, x);
                double want[64], row[16];
                for (int i = 0; i < n * 8; i++) {
                    for (int j = 0; j < d; j++) row[j] = v[j * 8 + i % 8];
                    want[i] = d == n ? row[i / 8] : resized(row, d, n, i / 8, &o);
                }
                assert_int_equal(trial_count(y), n * 8);
                trial_near("interpolate", trial_values(t, y), want, n * 8, 1e-12);
                if (k < 2) trial_compiled(t, &y, 1, 1e-12);
                trial_gradients(t, y, 1e-6);
                trial_close(t);
                done++;
            }
    printf("count: %d interpolations\n", done);
}

/* Bilinear or nearest; zeros or the border outside. */
static void grids(void **state) {
    (void)state;
    for (int way = 0; way < 8; way++) {
        enum { H = 4, W = 5, C = 2, N = 2, P = 3, Q = 4 };
        trial *t = trial_open((uint64_t)way + 1);
        bool linear = way & 1, border = way & 2, align = way & 4;
        tn_nn_grid_opts o = { linear ? TN_NN_LINEAR : TN_NN_NEAREST, border ? TN_NN_GRID_BORDER : TN_NN_GRID_ZEROS, align };
        tn_tensor x = trial_floats(t, TN_DIMS(N, H, W, C), -1, 1), at = trial_floats(t, TN_DIMS(N, P, Q, 2), -1.4, 1.4);
        tn_tensor y = tn_nn_grid_sample(x, at, o), all[3] = { y };
        const double *v = trial_values(t, x), *g = trial_values(t, at);
        double want[N * P * Q * C] = { 0 };
        for (int i = 0; i < N * P * Q; i++) {
            double px = align ? (g[2 * i] + 1) * (W - 1) / 2 : ((g[2 * i] + 1) * W - 1) / 2;
            double py = align ? (g[2 * i + 1] + 1) * (H - 1) / 2 : ((g[2 * i + 1] + 1) * H - 1) / 2;
            if (border) px = fmin(fmax(px, 0), W - 1), py = fmin(fmax(py, 0), H - 1);
            for (int row = 0; row < H; row++)
                for (int col = 0; col < W; col++)
                    for (int c = 0; c < C; c++) {
                        double w = linear ? fmax(0, 1 - fabs(px - col)) * fmax(0, 1 - fabs(py - row))
                                          : rint(px) == col && rint(py) == row;
                        want[i * C + c] += w * v[((i / (P * Q) * H + row) * W + col) * C + c];
                    }
        }
        trial_near("grid", trial_values(t, y), want, N * P * Q * C, 1e-12);
        o.mode = TN_NN_CUBIC, all[1] = tn_nn_grid_sample(x, at, o), o.padding = TN_NN_GRID_REFLECTION,
        all[2] = tn_nn_grid_sample(x, at, o);
        trial_compiled(t, all, 3, 1e-12);
        if (linear) trial_gradients(t, y, 1e-4);
        trial_close(t);
    }
}

static void regions(void **state) {
    (void)state;
    for (int way = 0; way < 2; way++) {
        enum { H = 7, W = 9, C = 2, R = 3, P = 2, Q = 3, S = 2 };
        trial *t = trial_open((uint64_t)way + 5);
        tn_tensor x = trial_floats(t, TN_DIMS(2, H, W, C), -1, 1), boxes = trial_floats(t, TN_DIMS(R, 4), 0, 6);
        tn_tensor batch = trial_ints(t, TN_I64, TN_DIMS(R), 0, 1);
        double *b = trial_values(t, boxes), want[R * P * Q * C] = { 0 };
        const double *v = trial_values(t, x);
        for (int i = 0; i < R; i++) b[4 * i + 2] += b[4 * i] + 2, b[4 * i + 3] += b[4 * i + 1] + 2;
        tn_tensor y = tn_nn_roi_align(x, boxes, batch, (tn_nn_roi_opts){ { P, Q }, 0.75, S, way, 0 });
        for (int i = 0; i < R * P * Q; i++)
            for (int s = 0; s < S * S; s++) {
                const double *box = b + i / (P * Q) * 4;
                double move = way ? 0.5 : 0, x1 = box[0] * 0.75 - move, y1 = box[1] * 0.75 - move,
                       w = box[2] * 0.75 - move - x1, h = box[3] * 0.75 - move - y1;
                if (!way) w = fmax(w, 1), h = fmax(h, 1);
                double px = x1 + (i % Q + (s % S + 0.5) / S) * w / Q, py = y1 + (i / Q % P + (s / S + 0.5) / S) * h / P;
                if (px < -1 || px > W || py < -1 || py > H) continue;
                px = fmin(fmax(px, 0), W - 1), py = fmin(fmax(py, 0), H - 1);
                for (int k = 0; k < H * W * C; k++) {
                    double near = fmax(0, 1 - fabs(px - k / C % W)) * fmax(0, 1 - fabs(py - k / (C * W)));
                    want[i * C + k % C] += near * v[trial_whole(t, batch)[i / (P * Q)] * H * W * C + k] / (S * S);
                }
            }
        trial_near("roi", trial_values(t, y), want, R * P * Q * C, 1e-12);
        trial_compiled(t, &y, 1, 1e-12);
        trial_close(t);
    }
}

static double shared(const double *a, const double *b) {
    double h = fmin(a[2], b[2]) - fmax(a[0], b[0]), w = fmin(a[3], b[3]) - fmax(a[1], b[1]), both = fmax(h, 0) * fmax(w, 0);
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both);
}
static void suppression(void **state) {
    (void)state;
    for (int most = 0; most < 14; most += 6) {
        enum { B = 2, N = 15 };
        trial *t = trial_open((uint64_t)most + 1);
        tn_tensor boxes = trial_floats(t, TN_DIMS(B, N, 4), 0, 4), scores = trial_floats(t, TN_DIMS(B, N), 0, 1), y[2];
        double *b = trial_values(t, boxes), *s = trial_values(t, scores), want[B * 12], count[B];
        for (int i = 0; i < B * N; i++) b[4 * i + 2] += b[4 * i], b[4 * i + 3] += b[4 * i + 1];
        y[0] = tn_nn_nms(boxes, scores, most, (tn_nn_nms_opts){ 0.3, 0.2, 1 }, &y[1]);
        for (int r = 0; r < B; r++) {
            bool gone[N] = { false };
            count[r] = 0;
            for (int k = 0; k < most; k++) {
                int best = -1;
                for (int i = 0; i < N; i++)
                    if (!gone[i] && s[r * N + i] > 0.2 && (best < 0 || s[r * N + i] > s[r * N + best])) best = i;
                want[r * most + k] = best, count[r] += best >= 0;
                for (int i = 0; i < N && best >= 0; i++)
                    gone[i] = gone[i] || i == best || shared(b + (r * N + i) * 4, b + (r * N + best) * 4) > 0.3;
            }
        }
        trial_near("nms", trial_values(t, y[0]), want, B * most, 0), trial_near("count", trial_values(t, y[1]), count, B, 0);
        if (most <= 8 || test_device_is_cpu()) trial_compiled(t, y, 2, 0);
        trial_close(t);
    }
}

static void mistakes_are_named(void **state) {
    (void)state;
    static const char *const texts[] = { "tn_nn_conv_transpose: 2 groups of 3 input and 4 output channels",
                                         "tn_nn_interpolate: mode 0 with antialiasing",
                                         "tn_nn_adaptive_avg_pool: rank 4, image axis 0 of size 4 to 0",
                                         "tn_nn_pixel_shuffle: rank 4 with 3 channels by 2",
                                         "tn_nn_fold: rank 5",
                                         "tn_nn_nms: expected rank 3",
                                         "tn_nn_resample: place 9 of an axis of size 4",
                                         "expected the windows of [1,4,3], which are [1,3,3,2]" };
    for (int i = 0; i < 8; i++) {
        trial *t = trial_open(1);
        tn_tensor x = trial_floats(t, TN_DIMS(1, 4, 4, 3), 0, 1);
        int64_t place = 9, axis = 1, two = 2;
        if (i == 0) tn_nn_conv_transpose(x, (tn_nn_conv_transpose_opts){ .out_channels = 4, .groups = 2 }, "c");
        if (i == 1) tn_nn_interpolate(x, (tn_nn_interpolate_opts){ .out = { 2 }, .antialias = 1 });
        if (i == 2) tn_nn_adaptive_avg_pool(x, (int64_t[]){ 0, 0, 0 });
        if (i == 3) tn_nn_pixel_shuffle(x, 2);
        if (i == 4)
            tn_nn_fold(trial_floats(t, TN_DIMS(1, 2, 2, 2, 3), 0, 1), (int64_t[]){ 6, 0, 0 },
                       (tn_nn_pool_opts){ .kernel = { 2 } });
        if (i == 5) tn_nn_nms(x, x, 3, (tn_nn_nms_opts){ 0.5, 0, 0 }, NULL);
        if (i == 6) tn_nn_resample(x, 1, 1, 1, &place, NULL);
        if (i == 7) tn_fold(x, &axis, &two, NULL, NULL, 1, TN_DIMS(1, 4, 3));
        trial_refused(t, texts[i]);
        trial_close(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transposed_convolutions),
        cmocka_unit_test(windows_and_back),
        cmocka_unit_test(adaptive_pools),
        cmocka_unit_test(interpolations),
        cmocka_unit_test(grids),
        cmocka_unit_test(regions),
        cmocka_unit_test(suppression),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
