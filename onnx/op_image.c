/* op_image.c - samples of images at places that are computed, boxes, and the inverse of max pooling. */
#include "windows.h"

#include <math.h>

/* ---- GridSample ---- */

void onnx_op_grid_sample(onnx_call *c) {
    tn_shape x = onnx_shape(c, 0), at = onnx_shape(c, 1);
    tn_nn_grid_opts o = { .mode = TN_NN_LINEAR, .align_corners = (int)onnx_attr_int(c, "align_corners", 0) };
    if (onnx_attr_is(c, "mode", "bilinear", "nearest"))
        o.mode = TN_NN_NEAREST;
    else if (onnx_attr_is(c, "mode", "bilinear", "bicubic") || onnx_attr_is(c, "mode", "bilinear", "cubic"))
        o.mode = TN_NN_CUBIC;
    else if (!onnx_attr_is(c, "mode", "bilinear", "bilinear") && !onnx_attr_is(c, "mode", "bilinear", "linear"))
        onnx_refuse(c, "attribute mode");
    o.padding = onnx_attr_is(c, "padding_mode", "zeros", "border")       ? TN_NN_GRID_BORDER
                : onnx_attr_is(c, "padding_mode", "zeros", "reflection") ? TN_NN_GRID_REFLECTION
                                                                         : TN_NN_GRID_ZEROS;
    if (o.padding == TN_NN_GRID_ZEROS && !onnx_attr_is(c, "padding_mode", "zeros", "zeros"))
        onnx_refuse(c, "attribute padding_mode");
    if (x.rank != 4 || at.rank != 4 || at.dim[3] != 2 || at.dim[0] != x.dim[0]) onnx_refuse(c, "its shapes");
    if (x.dim[2] < 1 || x.dim[3] < 1) onnx_refuse(c, "an empty image");
    tn_tensor y = tn_nn_grid_sample(tn_permute(onnx_t(c, 0), TN_INTS(0, 2, 3, 1)), onnx_t(c, 1), o);
    onnx_put(c, 0, tn_permute(y, TN_INTS(0, 3, 1, 2)), ELEM_NONE);
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
