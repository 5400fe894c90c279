/* op_conv.c - convolutions, channels first. */
#include "windows.h"

enum { EXACT_TERMS = (1 << 24) / (255 * 255) }; /* of two bytes less their zero points: sums below 2^24 */
/* An odd number of channels leaves nothing to multiply in twos or fours. Neighbouring taps are multiplied so instead where they
 * are u8 times i8 (one core of a Zen 4 with VNNI: 7 x 7, 64 channels, in ResNet-50 2.04 to 0.70 ms; 3 x 3, 32 channels, in
 * MobileNetV2 0.37 to 0.12; its AVX2 code 2.1 to 1.7 and 0.71 to 0.26). Others are added in f32, in which they are exact. Of
 * images of three channels, results have channels last then, and to put them first takes as long as some terms. */
enum { MANY_TERMS = 64 };
enum { WORD = 4, LEAST_TAPS = 3 };

/* Filters of bytes [O,C,..K..], C odd, with zeros behind the last axis up to whole words, as i32; windows reach as far then.
 * No tensor: they are others. */
static tn_tensor in_words(onnx_call *c, onnx_windows *w) {
    const onnx_steps *x = onnx_in(c, 0)->steps, *filters = onnx_in(c, 1)->steps;
    tn_shape s = onnx_shape(c, 1);
    int last = w->n - 1;
    int64_t taps = w->kernel[last], words = (taps + WORD - 1) / WORD * WORD, n = taps ? onnx_count_of(s) / taps : 0;
    if (s.dim[1] % 2 == 0 || w->n < 2 || taps < LEAST_TAPS || w->dilation[last] != 1 || !x->bytes.graph || x->elem != ELEM_U8 ||
        !filters->data || filters->elem != ELEM_I8)
        return (tn_tensor){ 0 };
    char *to = ONNX_NEW(c->im->env, char, n *words + 1);
    const char *from = filters->data;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < words; k++) to[i * words + k] = k < taps ? from[i * taps + k] : 0;
    w->after[last] += words - taps; /* what they read of an axis that a run gives lies behind its border */
    s.dim[last + 2] = w->kernel[last] = words, w->by_taps = true;
    return tn_cast(tn_const(c->g, TN_I8, s, to), TN_I32);
}

static tn_tensor add_bias(onnx_call *c, tn_tensor y) {
    tn_shape s = { .rank = tn_tensor_shape(y).rank };
    if (!onnx_has(c, 2)) return y;
    for (int i = 0; i < s.rank; i++) s.dim[i] = 1;
    s.dim[1] = onnx_count_of(onnx_shape(c, 2));
    return tn_add(y, tn_reshape(onnx_t(c, 2), s));
}
static void check_ranks(onnx_call *c) {
    if (onnx_is_open(onnx_shape(c, 1)) || (onnx_rank(c, 0) > 1 && onnx_is_dim(onnx_shape(c, 0).dim[1])))
        onnx_refuse(c, "channels or weights of a size that a run gives");
    if (onnx_rank(c, 0) != onnx_rank(c, 1)) onnx_refuse(c, "weights of rank %d for rank %d", onnx_rank(c, 1), onnx_rank(c, 0));
}

/* Channels first as channels last: [N,C,..] to [N,..,C], or back. */
static tn_tensor channels_last(tn_tensor x, int n, bool back) {
    int64_t perm[TN_MAX_RANK];
    for (int i = 0; i < n; i++) perm[i + 1 + back] = i + 2 - back;
    perm[0] = 0, perm[back ? 1 : n + 1] = back ? n + 1 : 1;
    return tn_permute(x, perm, n + 2);
}

/* ---- 3 x 3 by tiles of 2 x 2 results (tn_nn_conv_opts.winograd) ---- */

enum {
    LEAST_POSITIONS = 32,
    LEAST_CHANNELS = 24,
    MANY_CHANNELS = 30,
    LARGE_IMAGE = 1 << 18,
    POINTS = 16,
    TOGETHER = 16, /* filters that are transformed at once: a line of the cache of each point */
    FILTER_BYTES = 9 * sizeof(float)
};

/* Transforms take as long as some products: there are 5 of 9 fewer for each pair of channels, and weights of 16 points instead
 * of 9 come from memory. One core of a Zen 3: 64 to 64 channels of 56 x 56 positions 3.1 to 1.7 ms, 512 to 512 of 7 x 7 5.2 to
 * 1.9. */
static bool pays(const onnx_windows *w, tn_shape s, int64_t images) {
    bool fits = w->n == 2;
    for (int i = 0; i < w->n; i++)
        fits = fits && w->kernel[i] == 3 && w->stride[i] == 1 && w->dilation[i] == 1 && w->before[i] == w->after[i];
    if (!fits) return false;
    int64_t positions = images * w->out[0] * w->out[1], channels = s.dim[0] + s.dim[1],
            least =
                positions * channels > LARGE_IMAGE ? MANY_CHANNELS : LEAST_CHANNELS; /* points that stay in a cache, or not */
    return positions >= LEAST_POSITIONS && s.dim[0] * s.dim[1] >= least * channels;
}

/* Filters of 3 x 3, `stride` bytes from each other, to rows of their points, `apart` elements from each other. */
static void transform_filters(const char *from, int64_t stride, int n, float *out, int64_t apart) {
    double x[9][TOGETHER], half[4][3][TOGETHER];
    for (int l = 0; l < n; l++) {
        for (int k = 0; k < 9; k++) {
            float one;
            memcpy(&one, from + l * stride + k * (int)sizeof one, sizeof one); /* it may lie anywhere in a file */
            x[k][l] = (double)one;
        }
    }
    for (int k = 0; k < 3; k++)
        for (int l = 0; l < n; l++) {
            double outer = x[k][l] + x[6 + k][l], middle = x[3 + k][l];
            half[0][k][l] = x[k][l], half[1][k][l] = (outer + middle) / 2, half[2][k][l] = (outer - middle) / 2,
            half[3][k][l] = x[6 + k][l];
        }
    for (int i = 0; i < 4; i++) {
        float *row = out + i * 4 * apart;
        for (int l = 0; l < n; l++) {
            double outer = half[i][0][l] + half[i][2][l], middle = half[i][1][l];
            row[l] = (float)half[i][0][l], row[apart + l] = (float)((outer + middle) / 2),
            row[2 * apart + l] = (float)((outer - middle) / 2), row[3 * apart + l] = (float)half[i][2][l];
        }
    }
}

/* Constant weights f32[O,C,3,3] as f32[16,C,O]: transformed here, once and for all, since no kernel computes constants. */
static tn_tensor transformed(onnx_call *c, const char *x, int64_t out, int64_t in) {
    onnx_mark mark = onnx_here(c->im->env);
    float *u = onnx_room(c->im->env, (size_t)(in * out * POINTS), sizeof *u);
    for (int64_t first = 0; first < in; first += TOGETHER) /* whose filters stay in a cache */
        for (int64_t i = first; i < in && i < first + TOGETHER; i++)
            for (int64_t o = 0; o < out; o += TOGETHER)
                transform_filters(x + (o * in + i) * FILTER_BYTES, in * FILTER_BYTES,
                                  (int)(out - o < TOGETHER ? out - o : TOGETHER), u + i * out + o, in * out);
    tn_tensor t = tn_const(c->g, TN_F32, TN_DIMS(POINTS, in, out), u);
    onnx_back(c->im->env, mark);
    return t;
}

static bool by_winograd(onnx_call *c, const onnx_windows *w, int64_t groups, tn_tensor *y) {
    tn_shape s = onnx_shape(c, 1);
    const onnx_val *weights = onnx_in(c, 1);
    bool fits = groups == 1 && weights->data && weights->elem == ELEM_F32 && onnx_elem(c, 0) == ELEM_F32 &&
                !c->im->opts.plain_convolutions && !c->im->opts.parameters && s.dim[1] == onnx_shape(c, 0).dim[1];
    int64_t lo, images;
    onnx_dim_range(c, onnx_shape(c, 0).dim[0], &lo, &images);
    if (!fits || onnx_is_dim(w->in[0]) || onnx_is_dim(w->in[1]) || !pays(w, s, images)) return false;
    tn_nn_conv_opts o = { .out_channels = s.dim[0], .kernel = { 3 }, .no_bias = 1, .winograd = 2 };
    for (int i = 0; i < 2; i++) o.padding[i] = w->before[i] ? w->before[i] : -1;
    o.transformed = transformed(c, weights->data, s.dim[0], s.dim[1]);
    *y = channels_last(tn_nn_conv2d(channels_last(onnx_t(c, 0), 2, false), o, NULL), 2, true);
    return true;
}

void onnx_op_conv(onnx_call *c) {
    onnx_windows w;
    check_ranks(c);
    onnx_windows_read(c, onnx_shape(c, 0), onnx_shape(c, 1).dim + 2, &w);
    tn_shape s = onnx_shape(c, 1), channels = { .rank = s.rank };
    tn_tensor x, weights, scale, y;
    onnx_zero zero;
    int64_t groups = onnx_attr_int(c, "group", 1), terms = s.dim[0] > 0 ? onnx_count_of(s) / s.dim[0] : 0;
    if (onnx_as_steps(c, 0, 1, 0, terms, &x, &weights, &scale, &zero)) {
        for (int i = 0; i < s.rank; i++) channels.dim[i] = i == 1 ? s.dim[0] : 1;
        if (tn_tensor_shape(scale).rank == 1) scale = tn_reshape(scale, channels);
        tn_tensor words = in_words(c, &w);
        if (words.graph) {
            weights = words;
        } else if (s.dim[1] % 2 && (s.dim[1] == 1 || terms >= MANY_TERMS) && terms <= EXACT_TERMS) {
            int64_t first[TN_MAX_RANK] = { 0, s.rank - 1 };
            for (int i = 2; i < s.rank; i++) first[i] = i - 1;
            x = tn_cast(x, TN_F32), weights = tn_reshape(tn_permute(tn_cast(weights, TN_F32), first, s.rank), s);
        }
        y = onnx_convolve(c, x, weights, &w, groups, zero.value);
        if (zero.less.graph) y = tn_sub(y, tn_cast(tn_reshape(zero.less, channels), tn_tensor_dtype(y)));
        y = tn_mul(tn_cast(y, TN_F32), scale);
    } else if (!by_winograd(c, &w, groups, &y)) {
        y = onnx_convolve(c, onnx_t(c, 0), onnx_t(c, 1), &w, groups, 0);
    }
    onnx_put(c, 0, add_bias(c, y), ELEM_NONE);
}
void onnx_op_conv_integer(onnx_call *c) {
    onnx_windows w;
    check_ranks(c);
    onnx_windows_read(c, onnx_shape(c, 0), onnx_shape(c, 1).dim + 2, &w);
    tn_tensor x = onnx_less_zero_point(c, 0, 2, TN_MAX_RANK), weights = onnx_filters(c, 1, 3);
    onnx_put(c, 0, onnx_convolve(c, x, weights, &w, onnx_attr_int(c, "group", 1), 0), ELEM_I32);
}

/* ---- transposed ---- */

/* What the transposed form cuts off at both ends of axis i. */
static void cut_ends(onnx_call *c, onnx_windows *w, int i, int64_t extra, const int64_t *shape) {
    int64_t more = (w->kernel[i] - 1) * w->dilation[i] + 1 + extra - w->stride[i],
            full = onnx_dim(c, '+', onnx_dim(c, '*', w->in[i], w->stride[i]), more);
    bool upper = onnx_attr_is(c, "auto_pad", "NOTSET", "SAME_UPPER"),
         lower = onnx_attr_is(c, "auto_pad", "NOTSET", "SAME_LOWER");
    if (shape && onnx_is_dim(w->in[i])) onnx_refuse(c, "output_shape, of axis %d, whose size a run gives", i + 2);
    if (shape || upper || lower) {
        int64_t total = shape ? full - shape[i] : more;
        w->before[i] = upper ? total / 2 : total - total / 2;
        if (total < 0) w->before[i] = 0; /* zeros come in at the end */
        w->after[i] = total - w->before[i];
    }
    int64_t least, most;
    w->out[i] = onnx_dim(c, '+', full, -w->before[i] - w->after[i]);
    onnx_dim_range(c, w->out[i], &least, &most);
    if (least < 1) onnx_refuse(c, "no result along axis %d", i + 2);
}

static void read_transposed(onnx_call *c, onnx_windows *w, int64_t *extra) {
    tn_shape big = onnx_shape(c, 0);
    int n_shape, n_extra;
    for (int i = 2; i < big.rank; i++) big.dim[i] = INT32_MAX; /* windows need not fit in the operand */
    check_ranks(c);
    onnx_windows_read(c, big, onnx_shape(c, 1).dim + 2, w);
    const int64_t *shape = onnx_attr_ints(c, "output_shape", &n_shape), *given = onnx_attr_ints(c, "output_padding", &n_extra);
    if (shape && n_shape == w->n + 2) shape += 2, n_shape -= 2;
    if ((shape && n_shape != w->n) || (given && n_extra != w->n)) onnx_refuse(c, "output_shape or output_padding");
    if (!onnx_attr_is(c, "auto_pad", "NOTSET", "NOTSET"))
        memset(w->before, 0, sizeof w->before), memset(w->after, 0, sizeof w->after);
    for (int i = 0; i < w->n; i++) {
        int64_t least, most;
        w->in[i] = onnx_shape(c, 0).dim[i + 2];
        onnx_dim_range(c, w->in[i], &least, &most);
        extra[i] = given ? given[i] : 0;
        if (least < 1 || extra[i] < 0) onnx_refuse(c, "an empty axis");
        cut_ends(c, w, i, extra[i], shape);
    }
}

/* [C,O/G,..] as [..,C,O/G]. */
static tn_tensor weights_last(tn_tensor w, int n) {
    int64_t perm[TN_MAX_RANK];
    for (int i = 0; i < n; i++) perm[i] = i + 2;
    perm[n] = 0, perm[n + 1] = 1;
    return tn_permute(w, perm, n + 2);
}

void onnx_op_conv_transpose(onnx_call *c) {
    onnx_windows w;
    int64_t extra[TN_MAX_RANK], more[TN_MAX_RANK] = { 0 }, none[TN_MAX_RANK] = { 0 }, start[TN_MAX_RANK] = { 0 };
    tn_nn_conv_transpose_opts o = { .groups = onnx_attr_int(c, "group", 1) };
    read_transposed(c, &w, extra);
    if (w.n > 3) onnx_refuse(c, "images of %d axes", w.n);
    for (int i = 0; i < w.n; i++) o.stride[i] = w.stride[i], o.dilation[i] = w.dilation[i];
    o.weights = weights_last(onnx_t(c, 1), w.n);
    tn_tensor y = channels_last(tn_nn_conv_transpose(channels_last(onnx_t(c, 0), w.n, false), o, NULL), w.n, true);
    tn_shape s = tn_tensor_shape(y);
    if (s.rank < 0) onnx_refuse_graph(c);
    for (int i = 0; i < w.n; i++) { /* extra elements at the end are zeros, as are those that a given shape asks for */
        start[i + 2] = w.before[i];
        int64_t stop = onnx_dim(c, '+', w.out[i], w.before[i]);
        more[i + 2] = onnx_dim(c, '>', onnx_dim(c, '-', stop, s.dim[i + 2]), 0), s.dim[i + 2] = stop;
    }
    y = tn_slice(tn_pad(y, none, more, w.n + 2, 0), start, s.dim, NULL, w.n + 2);
    onnx_put(c, 0, add_bias(c, y), ELEM_NONE);
}
