/* op_image.c - samples of images at places that are computed, boxes, and the inverse of max pooling. */
#include "windows.h"

#include <math.h>

/* ---- GridSample ---- */

typedef enum { PAD_ZEROS, PAD_BORDER, PAD_REFLECTION } grid_padding;
typedef struct grid {
    tn_shape x, g; /* [N,C,H,W], [N,Ho,Wo,2] */
    grid_padding padding;
    bool align;
    tn_tensor rows; /* [N*H*W,C] */
} grid;

static tn_tensor between(tn_tensor x, double lo, double hi) {
    return tn_min(tn_max(x, onnx_scalar(x, lo)), onnx_scalar(x, hi));
}

/* Mirrored at the borders of an axis of n elements until it lies within. */
static tn_tensor reflect(const grid *g, tn_tensor x, int64_t n) {
    double lo = g->align ? 0 : -0.5, span = g->align ? (double)(n - 1) : (double)n;
    if (span == 0) return tn_mul_scalar(x, 0);
    tn_tensor d = tn_abs(tn_add_scalar(x, -lo)), turns = tn_floor(tn_div(d, onnx_scalar(d, span))),
              rest = tn_sub(d, tn_mul_scalar(turns, span));
    tn_tensor odd = tn_ne(tn_mod(turns, onnx_scalar(turns, 2)), onnx_scalar(turns, 0));
    return between(tn_add_scalar(tn_select(odd, tn_sub(onnx_scalar(rest, span), rest), rest), lo), 0, (double)(n - 1));
}
static tn_tensor within(const grid *g, tn_tensor x, int64_t n) {
    return g->padding == PAD_BORDER ? between(x, 0, (double)(n - 1)) : g->padding == PAD_REFLECTION ? reflect(g, x, n) : x;
}

/* The elements at whole places (y, x): [N,Ho,Wo,C]; 0 outside. */
static tn_tensor pixels(onnx_call *c, const grid *g, tn_tensor y, tn_tensor x) {
    int64_t h = g->x.dim[2], w = g->x.dim[3];
    tn_shape s = tn_tensor_shape(x), wide = s;
    tn_tensor zero = onnx_scalar(x, 0), iy, ix, at;
    tn_tensor in = tn_and(tn_and(tn_ge(x, zero), tn_le(x, onnx_scalar(x, (double)(w - 1)))),
                          tn_and(tn_ge(y, zero), tn_le(y, onnx_scalar(y, (double)(h - 1)))));
    iy = tn_cast(between(y, 0, (double)(h - 1)), TN_I64), ix = tn_cast(between(x, 0, (double)(w - 1)), TN_I64);
    at = tn_add(tn_mul_scalar(tn_iota(c->g, TN_I64, s, 0), (double)(h * w)), tn_add(tn_mul_scalar(iy, (double)w), ix));
    if (s.rank < 0) return x;
    wide.dim[wide.rank++] = 1;
    tn_tensor v = tn_gather(g->rows, at, 0);
    return tn_select(tn_reshape(in, wide), v, onnx_scalar(v, 0));
}
static tn_tensor weighted(tn_tensor v, tn_tensor w) {
    tn_shape s = tn_tensor_shape(w);
    if (s.rank < 0) return v;
    s.dim[s.rank++] = 1;
    return tn_mul(v, tn_reshape(w, s));
}

static tn_tensor sample_linear(onnx_call *c, const grid *g, tn_tensor y, tn_tensor x) {
    tn_tensor y0 = tn_floor(y), x0 = tn_floor(x), fy = tn_sub(y, y0), fx = tn_sub(x, x0), sum = { .graph = NULL };
    for (int i = 0; i < 4; i++) {
        tn_tensor wy = i / 2 ? fy : tn_sub(onnx_scalar(fy, 1), fy), wx = i % 2 ? fx : tn_sub(onnx_scalar(fx, 1), fx);
        tn_tensor v = weighted(pixels(c, g, tn_add_scalar(y0, i / 2), tn_add_scalar(x0, i % 2)), tn_mul(wy, wx));
        sum = i ? tn_add(sum, v) : v;
    }
    return sum;
}
/* Keys' cubic with a = -3/4, d: distance from the element. */
static tn_tensor cubic(tn_tensor d, bool near) {
    double a = -0.75;
    d = tn_abs(d);
    tn_tensor d2 = tn_mul(d, d), d3 = tn_mul(d2, d);
    if (near) return tn_add_scalar(tn_add(tn_mul_scalar(d3, a + 2), tn_mul_scalar(d2, -(a + 3))), 1);
    return tn_add_scalar(tn_add(tn_add(tn_mul_scalar(d3, a), tn_mul_scalar(d2, -5 * a)), tn_mul_scalar(d, 8 * a)), -4 * a);
}
static tn_tensor sample_cubic(onnx_call *c, const grid *g, tn_tensor y, tn_tensor x) {
    tn_tensor y0 = tn_floor(y), x0 = tn_floor(x), sum = { .graph = NULL };
    for (int i = -1; i < 3; i++)
        for (int j = -1; j < 3; j++) {
            tn_tensor ay = tn_add_scalar(y0, i), ax = tn_add_scalar(x0, j);
            tn_tensor w = tn_mul(cubic(tn_sub(y, ay), i == 0 || i == 1), cubic(tn_sub(x, ax), j == 0 || j == 1));
            tn_tensor v = weighted(pixels(c, g, within(g, ay, g->x.dim[2]), within(g, ax, g->x.dim[3])), w);
            sum = sum.graph ? tn_add(sum, v) : v;
        }
    return sum;
}

/* Coordinate k of the grid, from -1 .. 1 to places along an axis of n elements. */
static tn_tensor coordinate(onnx_call *c, const grid *g, int k, int64_t n) {
    int64_t start[4] = { 0, 0, 0, k }, stop[4] = { g->g.dim[0], g->g.dim[1], g->g.dim[2], k + 1 };
    tn_tensor v = tn_reshape(tn_slice(onnx_accurate(onnx_t(c, 1)), start, stop, NULL, 4), onnx_dims(g->g.dim, 3));
    double size = (double)n;
    if (g->align) return tn_mul_scalar(tn_add_scalar(v, 1), (size - 1) / 2);
    return tn_mul_scalar(tn_add_scalar(tn_mul_scalar(tn_add_scalar(v, 1), size), -1), 0.5);
}

void onnx_op_grid_sample(onnx_call *c) {
    grid g = { .x = onnx_shape(c, 0), .g = onnx_shape(c, 1), .align = onnx_attr_int(c, "align_corners", 0) };
    bool nearest = onnx_attr_is(c, "mode", "bilinear", "nearest"),
         third = onnx_attr_is(c, "mode", "bilinear", "bicubic") || onnx_attr_is(c, "mode", "bilinear", "cubic");
    if (!nearest && !third && !onnx_attr_is(c, "mode", "bilinear", "bilinear") &&
        !onnx_attr_is(c, "mode", "bilinear", "linear"))
        onnx_refuse(c, "attribute mode");
    g.padding = onnx_attr_is(c, "padding_mode", "zeros", "border")       ? PAD_BORDER
                : onnx_attr_is(c, "padding_mode", "zeros", "reflection") ? PAD_REFLECTION
                                                                         : PAD_ZEROS;
    if (g.padding == PAD_ZEROS && !onnx_attr_is(c, "padding_mode", "zeros", "zeros")) onnx_refuse(c, "attribute padding_mode");
    if (g.x.rank != 4 || g.g.rank != 4 || g.g.dim[3] != 2 || g.g.dim[0] != g.x.dim[0]) onnx_refuse(c, "its shapes");
    int64_t n = g.x.dim[0], channels = g.x.dim[1], h = g.x.dim[2], w = g.x.dim[3];
    if (h < 1 || w < 1) onnx_refuse(c, "an empty image");
    g.rows = tn_reshape(tn_permute(onnx_accurate(onnx_t(c, 0)), TN_INTS(0, 2, 3, 1)), TN_DIMS(n * h * w, channels));
    tn_tensor x = coordinate(c, &g, 0, w), y = coordinate(c, &g, 1, h), v;
    if (third) {
        v = sample_cubic(c, &g, y, x);
    } else if (nearest) {
        v = pixels(c, &g, within(&g, tn_round(y), h), within(&g, tn_round(x), w));
    } else {
        v = sample_linear(c, &g, within(&g, y, h), within(&g, x, w));
    }
    v = tn_permute(v, TN_INTS(0, 3, 1, 2));
    onnx_put(c, 0, tn_cast(v, onnx_elem_dtype(onnx_elem(c, 0))), ELEM_NONE);
}

/* ---- MaxUnpool: indices count in the image that the windows say, which a given shape extends at its ends ---- */

void onnx_op_max_unpool(onnx_call *c) {
    tn_shape x = onnx_shape(c, 0), big = x, out;
    onnx_windows w;
    for (int i = 2; i < big.rank; i++) big.dim[i] = INT32_MAX;
    onnx_windows_read(c, big, NULL, &w);
    out = x;
    for (int i = 0; i < w.n; i++) out.dim[i + 2] = (x.dim[i + 2] - 1) * w.stride[i] - w.before[i] - w.after[i] + w.kernel[i];
    int64_t n = onnx_count_of(out), m = onnx_count_of(x), before[TN_MAX_RANK] = { 0 }, after[TN_MAX_RANK] = { 0 };
    if (onnx_count_of(onnx_shape(c, 1)) != m) onnx_refuse(c, "its indices");
    tn_tensor y = tn_scatter_add(tn_full(c->g, onnx_elem_dtype(onnx_elem(c, 0)), TN_DIMS(n), 0),
                                 tn_reshape(onnx_t(c, 1), TN_DIMS(m)), tn_reshape(onnx_t(c, 0), TN_DIMS(m)), 0);
    y = tn_reshape(y, out);
    if (onnx_has(c, 2)) {
        int rank;
        const int64_t *want = onnx_known_ints(c, 2, "output shape", &rank);
        for (int i = 0; i < x.rank; i++) {
            if (rank != x.rank || want[i] < out.dim[i] || want[i] > INT32_MAX) onnx_refuse(c, "its output shape");
            after[i] = want[i] - out.dim[i];
        }
        y = tn_pad(y, before, after, x.rank, 0);
    }
    onnx_put(c, 0, y, ELEM_NONE);
}

/* ---- NonMaxSuppression: how many boxes stay depends on their values ---- */

typedef struct nms {
    const double *boxes, *scores;
    int64_t n_boxes, n_classes, most;
    double iou, score;
    bool has_score, center;
    int64_t *out, n_out; /* triples */
} nms;

static void corners(const nms *k, const double *b, double out[4]) { /* y1 x1 y2 x2 */
    if (k->center) {
        out[0] = b[1] - b[3] / 2, out[1] = b[0] - b[2] / 2, out[2] = b[1] + b[3] / 2, out[3] = b[0] + b[2] / 2;
        return;
    }
    for (int i = 0; i < 2; i++) out[i] = fmin(b[i], b[i + 2]), out[i + 2] = fmax(b[i], b[i + 2]);
}
static bool overlap(const nms *k, const double *p, const double *q) {
    double a[4], b[4];
    corners(k, p, a), corners(k, q, b);
    double h = fmin(a[2], b[2]) - fmax(a[0], b[0]), w = fmin(a[3], b[3]) - fmax(a[1], b[1]);
    if (h <= 0 || w <= 0) return false;
    double both = h * w, all = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both;
    return all > 0 && both / all > k->iou;
}
/* The best box that is left, against those that were taken: until there is none or enough. */
static void suppress(nms *k, int64_t batch, int64_t cls, bool *gone) {
    const double *boxes = k->boxes + batch * k->n_boxes * 4, *scores = k->scores + (batch * k->n_classes + cls) * k->n_boxes;
    int64_t first = k->n_out;
    memset(gone, 0, (size_t)k->n_boxes * sizeof *gone);
    for (;;) {
        int64_t best = -1;
        for (int64_t i = 0; i < k->n_boxes; i++)
            if (!gone[i] && (!k->has_score || scores[i] > k->score) && (best < 0 || scores[i] > scores[best])) best = i;
        if (best < 0 || k->n_out - first >= k->most) return;
        gone[best] = true;
        bool taken = true;
        for (int64_t i = first; i < k->n_out && taken; i++)
            taken = !overlap(k, boxes + best * 4, boxes + k->out[3 * i + 2] * 4);
        if (!taken) continue;
        int64_t *t = k->out + 3 * k->n_out++;
        t[0] = batch, t[1] = cls, t[2] = best;
    }
}
void onnx_op_non_max_suppression(onnx_call *c) {
    tn_shape b = onnx_shape(c, 0), s = onnx_shape(c, 1);
    int n;
    nms k = { .center = onnx_attr_int(c, "center_point_box", 0), .n_boxes = b.dim[1], .n_classes = s.dim[1] };
    if (b.rank != 3 || s.rank != 3 || b.dim[2] != 4 || b.dim[0] != s.dim[0] || b.dim[1] != s.dim[2])
        onnx_refuse(c, "its shapes");
    if (onnx_count_of(s) > 1 << 14) onnx_refuse(c, "%lld scores", (long long)onnx_count_of(s));
    k.boxes = onnx_known_floats(c, 0, "boxes", &n), k.scores = onnx_known_floats(c, 1, "scores", &n);
    k.most = onnx_has(c, 2) ? onnx_known_int(c, 2, "number of boxes") : 0;
    k.iou = onnx_has(c, 3) ? onnx_known_floats(c, 3, "IOU threshold", &n)[0] : 0;
    k.has_score = onnx_has(c, 4);
    k.score = k.has_score ? onnx_known_floats(c, 4, "score threshold", &n)[0] : 0;
    k.out = ONNX_NEW(c->im->env, int64_t, 3 * onnx_count_of(s) + 1);
    bool *gone = ONNX_NEW(c->im->env, bool, k.n_boxes + 1);
    for (int64_t i = 0; i < s.dim[0]; i++)
        for (int64_t j = 0; j < s.dim[1]; j++) suppress(&k, i, j, gone);
    onnx_put_known(c, 0, ELEM_I64, TN_DIMS(k.n_out, 3), k.out);
}
