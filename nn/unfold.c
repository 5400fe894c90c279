/* unfold.c - convolutions the other way: windows as they are, windows added back, transposed convolutions, pixel shuffles.
 *
 * In: f[N,..image..,C]. Out: compositions of tn_window, its adjoint tn_fold, and one contraction. A transposed convolution is
 * the adjoint of a convolution: a product with the weights for each position, folded into the image. */
#include "nn.h"

#include <math.h>

typedef struct geometry {
    int n;
    int64_t axis[3], size[3], stride[3], padding[3], dilation[3];
} geometry;

static bool read_geometry(tn_tensor x, const char *fn, int n, const int64_t *kernel, const int64_t *stride,
                          const int64_t *padding, const int64_t *dilation, geometry *w) {
    w->n = n;
    for (int i = 0; i < n; i++) {
        w->axis[i] = i + 1;
        w->size[i] = kernel[i] ? kernel[i] : i ? w->size[i - 1] : 1;
        w->stride[i] = stride[i] ? stride[i] : i ? w->stride[i - 1] : 1;
        w->padding[i] = padding[i] || !i ? padding[i] : padding[i - 1] == -1 ? 0 : w->padding[i - 1];
        w->dilation[i] = dilation[i] ? dilation[i] : i ? w->dilation[i - 1] : 1;
        if (w->padding[i] == -1) w->padding[i] = 0;
        if (w->size[i] >= 1 && w->stride[i] >= 1 && w->dilation[i] >= 1 && w->padding[i] >= 0) continue;
        nn_fail(x.graph, TN_ERR_INVAL, "%s: image axis %d has kernel %lld, stride %lld, padding %lld, dilation %lld", fn, i,
                (long long)w->size[i], (long long)w->stride[i], (long long)w->padding[i], (long long)w->dilation[i]);
        return false;
    }
    return true;
}
static int64_t reach(const geometry *w, int i) { return (w->size[i] - 1) * w->dilation[i] + 1; }
/* The number of channels must be known; a run may give the other sizes. */
static bool check_sizes(tn_tensor x, const char *fn, int least, int most, tn_shape *s) {
    if (!nn_check(x, fn, least, s)) return false;
    bool fits = s->rank <= most && s->dim[s->rank - 1] >= 0;
    if (!fits) nn_fail(x.graph, TN_ERR_SHAPE, "%s: rank %d, or channels with a range of sizes", fn, s->rank);
    return fits;
}
static tn_tensor poisoned(tn_tensor x) { return (tn_tensor){ x.graph, 0 }; }

/* [N,..P..,C,..K..] to [N,..P..,..K..,C], or back. */
static tn_tensor move_channels(tn_tensor x, int n, bool last) {
    int64_t perm[TN_MAX_RANK];
    for (int i = 0; i <= n; i++) perm[i] = i;
    for (int i = 0; i < n; i++) perm[n + 1 + i + !last] = n + 1 + i + last;
    perm[last ? 2 * n + 1 : n + 1] = last ? n + 1 : 2 * n + 1;
    return tn_permute(x, perm, 2 * n + 2);
}

tn_tensor tn_nn_unfold(tn_tensor x, tn_nn_pool_opts o) {
    static const char fn[] = "tn_nn_unfold";
    tn_shape s;
    geometry w;
    int64_t pad[TN_MAX_RANK] = { 0 };
    if (!check_sizes(x, fn, 3, 5, &s)) return poisoned(x);
    if (!read_geometry(x, fn, s.rank - 2, o.kernel, o.stride[0] ? o.stride : o.kernel, o.padding, o.dilation, &w))
        return poisoned(x);
    for (int i = 0; i < w.n; i++) pad[i + 1] = w.padding[i];
    x = tn_window(tn_pad(x, pad, pad, s.rank, 0), w.axis, w.size, w.stride, w.dilation, w.n);
    return move_channels(x, w.n, true);
}

/* x [N,..P..,C,..K..] added up in images of `full` elements, without the padding at the front. */
static tn_tensor folded(tn_tensor x, const geometry *w, const int64_t *full, int64_t channels) {
    tn_shape s = tn_tensor_shape(x), image = { .rank = w->n + 2 };
    int64_t start[TN_MAX_RANK] = { 0 };
    if (s.rank < 0) return x;
    image.dim[0] = s.dim[0], image.dim[w->n + 1] = channels;
    for (int i = 0; i < w->n; i++) image.dim[i + 1] = full[i];
    x = tn_fold(x, w->axis, w->size, w->stride, w->dilation, w->n, image);
    for (int i = 0; i < w->n; i++) start[i + 1] = w->padding[i];
    return tn_slice(x, start, image.dim, NULL, image.rank);
}

tn_tensor tn_nn_fold(tn_tensor x, const int64_t image[3], tn_nn_pool_opts o) {
    static const char fn[] = "tn_nn_fold";
    tn_shape s;
    geometry w;
    int64_t of[3], full[3];
    if (!check_sizes(x, fn, 4, 8, &s)) return poisoned(x);
    if (s.rank % 2 || !image)
        return nn_fail(x.graph, TN_ERR_SHAPE, "%s: rank %d: expected batch, positions, as many offsets, channels", fn, s.rank);
    if (!read_geometry(x, fn, (s.rank - 2) / 2, o.kernel, o.stride[0] ? o.stride : o.kernel, o.padding, o.dilation, &w))
        return poisoned(x);
    for (int i = 0; i < w.n; i++) {
        of[i] = image[i] || !i ? image[i] : image[i - 1];
        full[i] = nn_plus(x.graph, of[i], 2 * w.padding[i]);
    }
    x = folded(move_channels(x, w.n, false), &w, full, s.dim[s.rank - 1]);
    tn_shape out = tn_tensor_shape(x);
    int64_t start[TN_MAX_RANK] = { 0 };
    if (out.rank < 0) return x;
    for (int i = 0; i < w.n; i++) out.dim[i + 1] = of[i];
    return tn_slice(x, start, out.dim, NULL, out.rank);
}

/* ---- transposed convolution ---- */

/* The weights, given or a parameter: [..K..,C,out/groups]. */
static tn_tensor weights_of(tn_tensor x, const tn_nn_conv_transpose_opts *o, const geometry *w, int64_t in, int64_t out,
                            int64_t groups, double bound, const char *name) {
    tn_shape ws = { .rank = w->n + 2 };
    for (int i = 0; i < w->n; i++) ws.dim[i] = w->size[i];
    ws.dim[w->n] = in, ws.dim[w->n + 1] = out / groups;
    if (!o->weights.graph) return nn_param(x.graph, tn_tensor_dtype(x), name, "w", ws, NN_UNIFORM, bound);
    return o->weights;
}

/* For each position the products with all of the kernel: x [N,..P..,C], w [..K..,C,O/G] to [N,..P..,O,..K..]. */
static tn_tensor products(tn_tensor x, tn_tensor w, int n, int64_t groups) {
    tn_shape s = tn_tensor_shape(x), ws = tn_tensor_shape(w), out;
    int64_t in = s.dim[n + 1], each = ws.dim[n + 1], group_x = n + 1, group_w = n, from_x = n + 2, from_w = n + 1;
    int64_t perm[TN_MAX_RANK];
    int at = 0;
    s.dim[n + 1] = groups, s.dim[n + 2] = in / groups, s.rank++;
    ws.dim[n] = groups, ws.dim[n + 1] = in / groups, ws.dim[n + 2] = each, ws.rank++;
    tn_tensor y = tn_dot(tn_reshape(x, s), tn_reshape(w, ws), &group_x, &group_w, 1, &from_x, &from_w, 1);
    for (int i = 0; i <= n; i++) perm[at++] = i + 1; /* [G,N,..P..,..K..,O/G] */
    perm[at++] = 0, perm[at++] = 2 * n + 2;
    for (int i = 0; i < n; i++) perm[at++] = n + 2 + i;
    y = tn_permute(y, perm, at);
    out = tn_tensor_shape(y);
    if (out.rank < 0) return y;
    for (int i = n + 1; i + 1 < out.rank; i++) out.dim[i] = out.dim[i + 1];
    out.rank--, out.dim[n + 1] = groups * each;
    return tn_reshape(y, out);
}

tn_tensor tn_nn_conv_transpose(tn_tensor x, tn_nn_conv_transpose_opts o, const char *name) {
    static const char fn[] = "tn_nn_conv_transpose";
    tn_shape s, given = tn_tensor_shape(o.weights);
    geometry w;
    if (!check_sizes(x, fn, 3, 5, &s)) return poisoned(x);
    int n = s.rank - 2;
    int64_t in = s.dim[n + 1], groups = o.groups ? o.groups : 1, out = o.out_channels, full[3], fan = 1;
    if (o.weights.graph) {
        if (!nn_given(x.graph, o.weights, fn)) return poisoned(x);
        if (given.rank != n + 2 || given.dim[n] != in)
            return nn_fail(x.graph, TN_ERR_SHAPE, "%s: weights of rank %d for an image of rank %d with %lld channels", fn,
                           given.rank, s.rank, (long long)in);
        for (int i = 0; i < n; i++) o.kernel[i] = given.dim[i];
        out = given.dim[n + 1] * groups;
    }
    if (out < 1 || groups < 1 || in % groups || out % groups)
        return nn_fail(x.graph, TN_ERR_INVAL, "%s: %lld groups of %lld input and %lld output channels", fn, (long long)groups,
                       (long long)in, (long long)out);
    if (!read_geometry(x, fn, n, o.kernel, o.stride, o.padding, o.dilation, &w)) return poisoned(x);
    int64_t more[TN_MAX_RANK] = { 0 }, none[TN_MAX_RANK] = { 0 };
    for (int i = 0; i < n; i++) {
        int64_t extra = o.output_padding[i] || !i ? o.output_padding[i] : more[i] + w.padding[i - 1];
        if (extra == -1) extra = 0;
        full[i] = nn_plus(x.graph, nn_times(x.graph, s.dim[i + 1], w.stride[i]), reach(&w, i) - w.stride[i]), fan *= w.size[i];
        more[i + 1] = extra - w.padding[i]; /* what comes behind, less what is cut off there */
        int64_t size = nn_least(x.graph, s.dim[i + 1]), gives = nn_least(x.graph, full[i]);
        if (size >= 1 && extra >= 0 && gives - 2 * w.padding[i] + extra >= 1) continue;
        return nn_fail(x.graph, TN_ERR_SHAPE,
                       "%s: image axis %d of size %lld gives %lld elements, padded by %lld, and %lld more", fn, i,
                       (long long)size, (long long)gives, (long long)w.padding[i], (long long)extra);
    }
    double bound = 1 / sqrt((double)(fan * (out / groups)));
    tn_tensor y = products(x, weights_of(x, &o, &w, in, out, groups, bound, name), n, groups);
    y = folded(y, &w, full, out);
    tn_shape cut = tn_tensor_shape(y);
    if (cut.rank < 0) return y;
    for (int i = 0; i < n; i++)
        if (more[i + 1] < 0) cut.dim[i + 1] = nn_plus(x.graph, cut.dim[i + 1], more[i + 1]), more[i + 1] = 0;
    y = tn_pad(tn_slice(y, none, cut.dim, NULL, cut.rank), none, more, cut.rank, 0);
    if (o.no_bias || (o.weights.graph && !o.bias.graph)) return y;
    if (!o.bias.graph) o.bias = nn_param(x.graph, tn_tensor_dtype(x), name, "b", TN_DIMS(out), NN_UNIFORM, bound);
    return tn_add(y, o.bias);
}

/* ---- pixel shuffle ---- */

static tn_tensor shuffle(tn_tensor x, int64_t r, bool apart, const char *fn) {
    tn_shape s, parts = { .rank = 0 }, out;
    int64_t perm[TN_MAX_RANK], less[3], all = 1;
    int n, at = 0;
    if (!check_sizes(x, fn, 3, 5, &s)) return poisoned(x);
    out = s, n = s.rank - 2;
    bool fits = r >= 1 && r <= 1 << 10;
    for (int i = 0; i < n && fits; i++) all *= r;
    int64_t channels = fits ? apart ? s.dim[n + 1] / all : s.dim[n + 1] : 0;
    fits = fits && (!apart || s.dim[n + 1] % all == 0);
    for (int i = 0; i < n && !apart && fits; i++) {
        int64_t d = s.dim[i + 1];
        less[i] = d >= 0 ? d / r : tn_dim_floor_div(x.graph, d, r);
        fits = nn_times(x.graph, less[i], r) == d;
    }
    if (!fits)
        return nn_fail(x.graph, TN_ERR_SHAPE, "%s: rank %d with %lld channels by %lld", fn, s.rank, (long long)s.dim[n + 1],
                       (long long)r);
    parts.dim[parts.rank++] = s.dim[0];
    for (int i = 0; i < n; i++) {
        out.dim[i + 1] = apart ? nn_times(x.graph, s.dim[i + 1], r) : less[i];
        parts.dim[parts.rank++] = apart ? s.dim[i + 1] : out.dim[i + 1];
        if (!apart) parts.dim[parts.rank++] = r;
    }
    parts.dim[parts.rank++] = channels;
    for (int i = 0; i < n && apart; i++) parts.dim[parts.rank++] = r;
    out.dim[n + 1] = apart ? channels : channels * all;
    perm[at++] = 0;
    for (int i = 0; i < n; i++) {
        perm[at++] = apart ? 1 + i : 1 + 2 * i;
        if (apart) perm[at++] = n + 2 + i;
    }
    perm[at++] = apart ? n + 1 : 2 * n + 1;
    for (int i = 0; i < n && !apart; i++) perm[at++] = 2 + 2 * i;
    return tn_reshape(tn_permute(tn_reshape(x, parts), perm, at), out);
}
tn_tensor tn_nn_pixel_shuffle(tn_tensor x, int64_t r) { return shuffle(x, r, true, "tn_nn_pixel_shuffle"); }
tn_tensor tn_nn_pixel_unshuffle(tn_tensor x, int64_t r) { return shuffle(x, r, false, "tn_nn_pixel_unshuffle"); }
