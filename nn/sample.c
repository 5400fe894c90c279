/* sample.c - elements of images at computed places: grid sampling, regions, boxes.
 *
 * In: images [N,H,W,C] and coordinates. Out: gathers of neighbours, weighted. Coordinates of halves are computed in f32. */
#include "linalg.h"

#include <math.h>

static tn_tensor accurate(tn_tensor x) {
    tn_dtype t = tn_tensor_dtype(x);
    return t == TN_F16 || t == TN_BF16 ? tn_cast(x, TN_F32) : x;
}

/* ---- grid sampling ---- */

/* Sizes, which may be a run's: (n - less) * by, as a tensor of x's dtype that broadcasts; whether there is one at least. */
static tn_tensor of_size(tn_tensor x, int64_t n, double less, double by) {
    if (n >= 0) return nn_scalar(x, ((double)n - less) * by);
    tn_tensor v = tn_sub_scalar(nn_size_like(x, n), less);
    return by == 1 ? v : tn_mul_scalar(v, by);
}
static bool has_some(tn_tensor x, int64_t n) { return nn_is_size(n) && nn_least(x.graph, n) > 0; }

typedef struct grid {
    int64_t h, w;
    tn_nn_grid_opts o;
    tn_tensor rows; /* [N*H*W,C] */
} grid;

/* The nearest place of an axis of n elements. */
static tn_tensor between(tn_tensor x, int64_t n) { return tn_min(tn_max(x, nn_scalar(x, 0)), of_size(x, n, 1, 1)); }

/* Mirrored at the borders of an axis of n elements until it lies within. */
static tn_tensor reflect(const grid *g, tn_tensor x, int64_t n) {
    double lo = g->o.align_corners ? 0 : -0.5;
    if (n == 1 && g->o.align_corners) return tn_mul_scalar(x, 0);
    tn_tensor span = of_size(x, n, g->o.align_corners ? 1 : 0, 1);
    if (n < 0 && g->o.align_corners) span = tn_max_scalar(span, 1); /* of one element all places are its own */
    tn_tensor d = tn_abs(tn_add_scalar(x, -lo)), turns = tn_floor(tn_div(d, span)), rest = tn_sub(d, tn_mul(turns, span));
    tn_tensor odd = tn_ne(tn_mod(turns, nn_scalar(turns, 2)), nn_scalar(turns, 0));
    return between(tn_add_scalar(tn_select(odd, tn_sub(span, rest), rest), lo), n);
}
static tn_tensor within(const grid *g, tn_tensor x, int64_t n) {
    return g->o.padding == TN_NN_GRID_BORDER ? between(x, n) : g->o.padding == TN_NN_GRID_REFLECTION ? reflect(g, x, n) : x;
}

/* The elements at whole places (y, x): [N,Ho,Wo,C]; 0 outside. */
static tn_tensor pixels(const grid *g, tn_tensor y, tn_tensor x) {
    int64_t h = g->h, w = g->w;
    tn_shape s = tn_tensor_shape(x), wide = s;
    tn_tensor zero = nn_scalar(x, 0), iy, ix, at;
    if (s.rank < 0) return x;
    tn_tensor in =
        tn_and(tn_and(tn_ge(x, zero), tn_le(x, of_size(x, w, 1, 1))), tn_and(tn_ge(y, zero), tn_le(y, of_size(y, h, 1, 1))));
    iy = tn_cast(between(y, h), TN_I64), ix = tn_cast(between(x, w), TN_I64);
    at = tn_add(nn_by_size(tn_iota(x.graph, TN_I64, s, 0), nn_times(x.graph, h, w)), tn_add(nn_by_size(iy, w), ix));
    wide.dim[wide.rank++] = 1;
    tn_tensor v = tn_gather(g->rows, at, 0);
    return tn_select(tn_reshape(in, wide), v, nn_scalar(v, 0));
}
static tn_tensor weighted(tn_tensor v, tn_tensor w) {
    tn_shape s = tn_tensor_shape(w);
    if (s.rank < 0) return v;
    s.dim[s.rank++] = 1;
    return tn_mul(v, tn_reshape(w, s));
}

static tn_tensor sample_linear(const grid *g, tn_tensor y, tn_tensor x) {
    tn_tensor y0 = tn_floor(y), x0 = tn_floor(x), fy = tn_sub(y, y0), fx = tn_sub(x, x0), sum = { .graph = NULL };
    for (int i = 0; i < 4; i++) {
        tn_tensor wy = i / 2 ? fy : tn_sub(nn_scalar(fy, 1), fy), wx = i % 2 ? fx : tn_sub(nn_scalar(fx, 1), fx);
        tn_tensor v = weighted(pixels(g, tn_add_scalar(y0, i / 2), tn_add_scalar(x0, i % 2)), tn_mul(wy, wx));
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
static tn_tensor sample_cubic(const grid *g, tn_tensor y, tn_tensor x) {
    tn_tensor y0 = tn_floor(y), x0 = tn_floor(x), sum = { .graph = NULL };
    for (int i = -1; i < 3; i++)
        for (int j = -1; j < 3; j++) {
            tn_tensor ay = tn_add_scalar(y0, i), ax = tn_add_scalar(x0, j);
            tn_tensor w = tn_mul(cubic(tn_sub(y, ay), i == 0 || i == 1), cubic(tn_sub(x, ax), j == 0 || j == 1));
            tn_tensor v = weighted(pixels(g, within(g, ay, g->h), within(g, ax, g->w)), w);
            sum = sum.graph ? tn_add(sum, v) : v;
        }
    return sum;
}

/* Coordinate k of the grid [N,Ho,Wo,2], from -1 .. 1 to places along an axis of n elements. */
static tn_tensor coordinate(tn_tensor places, tn_shape s, const grid *g, int k, int64_t n) {
    int64_t start[4] = { 0, 0, 0, k }, stop[4] = { s.dim[0], s.dim[1], s.dim[2], k + 1 };
    tn_tensor v = tn_reshape(tn_slice(places, start, stop, NULL, 4), TN_DIMS(s.dim[0], s.dim[1], s.dim[2]));
    if (g->o.align_corners) return tn_mul(tn_add_scalar(v, 1), of_size(v, n, 1, 0.5));
    return tn_mul_scalar(tn_add_scalar(nn_by_size(tn_add_scalar(v, 1), n), -1), 0.5);
}

static bool check_rank(tn_tensor x, const char *fn, int rank, tn_shape *s) {
    if (!nn_check(x, fn, rank, s)) return false;
    if (s->rank != rank) nn_fail(x.graph, TN_ERR_SHAPE, "%s: expected rank %d, got rank %d", fn, rank, s->rank);
    return s->rank == rank;
}

tn_tensor tn_nn_grid_sample(tn_tensor x, tn_tensor places, tn_nn_grid_opts o) {
    static const char fn[] = "tn_nn_grid_sample";
    tn_shape s, at;
    tn_tensor poison = { x.graph, 0 }, v;
    if (!check_rank(x, fn, 4, &s) || !check_rank(places, fn, 4, &at)) return poison;
    char text[5][NN_SIZE_TEXT];
    if (at.dim[3] != 2 || at.dim[0] != s.dim[0] || !has_some(x, s.dim[1]) || !has_some(x, s.dim[2]) ||
        (unsigned)o.mode > TN_NN_CUBIC || (unsigned)o.padding > TN_NN_GRID_REFLECTION)
        return nn_fail(x.graph, TN_ERR_SHAPE, "%s: mode %d, padding %d, images of %s x %s, places [%s,..,%s] of %s images", fn,
                       (int)o.mode, (int)o.padding, nn_size_text(x.graph, s.dim[1], text[0]),
                       nn_size_text(x.graph, s.dim[2], text[1]), nn_size_text(x.graph, at.dim[0], text[2]),
                       nn_size_text(x.graph, at.dim[3], text[3]), nn_size_text(x.graph, s.dim[0], text[4]));
    grid g = { s.dim[1], s.dim[2], o, tn_reshape(accurate(x), TN_DIMS(nn_product(x.graph, s.dim, 3), s.dim[3])) };
    places = tn_cast(places, tn_tensor_dtype(g.rows));
    tn_tensor px = coordinate(places, at, &g, 0, g.w), py = coordinate(places, at, &g, 1, g.h);
    if (o.mode == TN_NN_CUBIC)
        v = sample_cubic(&g, py, px);
    else if (o.mode == TN_NN_LINEAR)
        v = sample_linear(&g, within(&g, py, g.h), within(&g, px, g.w));
    else
        v = pixels(&g, within(&g, tn_round(py), g.h), within(&g, tn_round(px), g.w));
    return tn_cast(v, tn_tensor_dtype(x));
}

/* ---- regions ---- */

typedef struct axis_sample { /* along one axis, for each region and sample */
    tn_tensor low, high;     /* i64[R,P]: the neighbours */
    tn_tensor near, far;     /* f[R,P]: their weights, 0 outside */
} axis_sample;

static axis_sample sample_axis(tn_tensor boxes, const tn_nn_roi_opts *o, int64_t n, int first, int64_t bins, int64_t size) {
    axis_sample s;
    double move = o->half_pixel ? -0.5 : 0;
    tn_tensor from = tn_add_scalar(tn_mul_scalar(linalg_part(boxes, 1, first, 1), o->scale), move);
    tn_tensor to = tn_add_scalar(tn_mul_scalar(linalg_part(boxes, 1, first + 2, 1), o->scale), move), length = tn_sub(to, from);
    if (!o->half_pixel) length = tn_max(length, nn_scalar(length, 1));
    tn_tensor step = tn_mul_scalar(length, 1 / (double)(bins * o->samples));
    tn_tensor place = tn_iota(boxes.graph, tn_tensor_dtype(from), TN_DIMS(n, bins * o->samples), 1);
    tn_tensor at = tn_add(from, tn_mul(step, tn_add_scalar(place, 0.5))), zero = nn_scalar(at, 0);
    tn_tensor in = tn_and(tn_ge(at, nn_scalar(at, -1)), tn_le(at, of_size(at, size, 0, 1))), top = of_size(at, size, 1, 1);
    at = tn_min(tn_max(at, zero), top);
    tn_tensor low = tn_floor(at), part = tn_sub(at, low);
    s.low = tn_cast(low, TN_I64), s.high = tn_cast(tn_min(tn_add_scalar(low, 1), top), TN_I64);
    s.near = tn_select(in, tn_sub(nn_scalar(part, 1), part), zero), s.far = tn_select(in, part, zero);
    return s;
}
static tn_tensor crossed(tn_tensor y, tn_tensor x, tn_tensor (*f)(tn_tensor, tn_tensor)) {
    return f(linalg_wider(y, 2), linalg_wider(x, 1));
}

tn_tensor tn_nn_roi_align(tn_tensor x, tn_tensor boxes, tn_tensor batch, tn_nn_roi_opts o) {
    static const char fn[] = "tn_nn_roi_align";
    tn_shape s, b, i = tn_tensor_shape(batch);
    tn_tensor poison = { x.graph, 0 }, v[4], sum = poison;
    char text[5][NN_SIZE_TEXT];
    if (!check_rank(x, fn, 4, &s) || !check_rank(boxes, fn, 2, &b) || !nn_given(x.graph, batch, fn)) return poison;
    if (o.scale == 0) o.scale = 1;
    if (b.dim[1] != 4 || i.rank != 1 || i.dim[0] != b.dim[0] || o.out[0] < 1 || o.out[1] < 1 || o.out[0] > 4096 ||
        o.out[1] > 4096 || o.samples < 1 || o.samples > 64 || !has_some(x, s.dim[1]) || !has_some(x, s.dim[2]))
        return nn_fail(x.graph, TN_ERR_SHAPE,
                       "%s: %s boxes of %s numbers, %s images, %lld x %lld bins of %d samples squared in images of %s x %s", fn,
                       nn_size_text(x.graph, b.dim[0], text[0]), nn_size_text(x.graph, b.dim[1], text[1]),
                       i.rank == 1 ? nn_size_text(x.graph, i.dim[0], text[2]) : "no list of", (long long)o.out[0],
                       (long long)o.out[1], o.samples, nn_size_text(x.graph, s.dim[1], text[3]),
                       nn_size_text(x.graph, s.dim[2], text[4]));
    tn_tensor rows = tn_reshape(accurate(x), TN_DIMS(nn_product(x.graph, s.dim, 3), s.dim[3]));
    boxes = accurate(boxes);
    axis_sample sy = sample_axis(boxes, &o, b.dim[0], 1, o.out[0], s.dim[1]),
                sx = sample_axis(boxes, &o, b.dim[0], 0, o.out[1], s.dim[2]);
    tn_tensor image = tn_reshape(tn_cast(batch, TN_I64), TN_DIMS(b.dim[0], 1));
    for (int k = 0; k < 4; k++) {
        tn_tensor row = tn_add(nn_by_size(image, s.dim[1]), k / 2 ? sy.high : sy.low);
        tn_tensor at = crossed(nn_by_size(row, s.dim[2]), k % 2 ? sx.high : sx.low, tn_add);
        tn_tensor w = crossed(k / 2 ? sy.far : sy.near, k % 2 ? sx.far : sx.near, tn_mul);
        v[k] = tn_mul(tn_gather(rows, at, 0), tn_cast(linalg_wider(w, 3), tn_tensor_dtype(rows)));
        sum = !k ? v[0] : o.max ? tn_max(sum, v[k]) : tn_add(sum, v[k]);
    }
    int64_t axes[] = { 2, 4 };
    sum = tn_reshape(sum, TN_DIMS(b.dim[0], o.out[0], o.samples, o.out[1], o.samples, s.dim[3]));
    return tn_cast(o.max ? tn_reduce_max(sum, axes, 2, 0) : tn_mean(sum, axes, 2, 0), tn_tensor_dtype(x));
}

/* ---- boxes ---- */

typedef struct suppression {
    tn_tensor boxes, areas; /* [B,N,4], [B,N] */
    tn_nn_nms_opts o;
    int64_t b, n;
} suppression;

static tn_tensor side(tn_tensor boxes, int k) {
    tn_shape s = tn_tensor_shape(boxes);
    return s.rank < 0 ? boxes : tn_reshape(linalg_part(boxes, 2, k, 1), TN_DIMS(s.dim[0], s.dim[1]));
}
static tn_tensor area(tn_tensor b) { return tn_mul(tn_sub(side(b, 2), side(b, 0)), tn_sub(side(b, 3), side(b, 1))); }

/* in: scores [B,N], -inf of boxes that are gone. Gives the best box of each row, or -1. */
static void nms_step(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    const suppression *k = ud;
    tn_tensor best = tn_argmax(in[0], 1, 1), score = tn_take_along(in[0], best, 1); /* [B,1] */
    tn_tensor found = tn_gt(score, nn_scalar(score, -INFINITY)), zero = nn_scalar(k->boxes, 0);
    tn_tensor box = tn_take_along(k->boxes, tn_expand(linalg_wider(best, 2), TN_DIMS(k->b, 1, 4)), 1);
    tn_tensor h = tn_sub(tn_min(side(k->boxes, 2), side(box, 2)), tn_max(side(k->boxes, 0), side(box, 0)));
    tn_tensor w = tn_sub(tn_min(side(k->boxes, 3), side(box, 3)), tn_max(side(k->boxes, 1), side(box, 1)));
    tn_tensor both = tn_mul(tn_max(h, zero), tn_max(w, zero)), all = tn_sub(tn_add(k->areas, area(box)), both);
    tn_tensor overlap = tn_gt(both, tn_mul_scalar(all, k->o.iou)); /* both / all > iou, also where all is 0 */
    tn_tensor gone = tn_or(overlap, tn_eq(linalg_iota(g, k->n, 1, 2), best));
    out[0] = tn_select(gone, nn_scalar(in[0], -INFINITY), in[0]);
    out[1] = tn_reshape(tn_select(found, best, tn_full(g, TN_I64, TN_SCALAR, -1)), TN_DIMS(k->b));
}

tn_tensor tn_nn_nms(tn_tensor boxes, tn_tensor scores, int64_t most, tn_nn_nms_opts o, tn_tensor *out_count) {
    static const char fn[] = "tn_nn_nms";
    tn_shape s, b;
    tn_tensor poison = { boxes.graph, 0 }, picked = poison;
    if (out_count) *out_count = poison;
    if (!check_rank(boxes, fn, 3, &b) || !check_rank(scores, fn, 2, &s)) return poison;
    char text[5][NN_SIZE_TEXT];
    if (b.dim[2] != 4 || s.dim[0] != b.dim[0] || s.dim[1] != b.dim[1] || most < 0 || !(o.iou >= 0 && o.iou <= 1))
        return nn_fail(boxes.graph, TN_ERR_SHAPE, "%s: boxes [%s,%s,%s], scores [%s,%s], at most %lld, overlap %g", fn,
                       nn_size_text(boxes.graph, b.dim[0], text[0]), nn_size_text(boxes.graph, b.dim[1], text[1]),
                       nn_size_text(boxes.graph, b.dim[2], text[2]), nn_size_text(boxes.graph, s.dim[0], text[3]),
                       nn_size_text(boxes.graph, s.dim[1], text[4]), (long long)most, o.iou);
    if (b.dim[1] && !has_some(boxes, b.dim[1]))
        return nn_fail(boxes.graph, TN_ERR_SHAPE, "%s: %s boxes, which may be none: a dim of boxes begins at 1", fn,
                       nn_size_text(boxes.graph, b.dim[1], text[0]));
    if (most == 0 || b.dim[1] == 0) {
        if (out_count) *out_count = tn_full(boxes.graph, TN_I64, TN_DIMS(b.dim[0]), 0);
        return tn_full(boxes.graph, TN_I64, TN_DIMS(b.dim[0], most), -1);
    }
    boxes = tn_stop_gradient(accurate(boxes)), scores = tn_stop_gradient(accurate(scores));
    suppression k = { boxes, area(boxes), o, b.dim[0], b.dim[1] };
    tn_tensor low = nn_scalar(scores, -INFINITY), nan = tn_ne(scores, scores);
    tn_tensor left = tn_select(tn_or(nan, o.has_score ? tn_le(scores, nn_scalar(scores, o.score)) : nan), low, scores);
    linalg_loop(boxes.graph, most, &left, 1, nms_step, &k, &picked, 1);
    picked = tn_transpose(picked, 0, 1);
    int64_t axis = 1;
    if (out_count) *out_count = tn_sum(tn_cast(tn_ge(picked, nn_scalar(picked, 0)), TN_I64), &axis, 1, 0);
    return picked;
}
