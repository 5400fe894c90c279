/* layer.c - layers with parameters, pooling, norms. In: activations and options. Out: compositions of
 * builders; a convolution is a dot over a window view, a pool a reduction over one. */
#include "nn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- linear, embedding ----------------------------------------------------------------------------------------------- */

static tn_tensor linear(tn_tensor x, int64_t out, const char *name, bool bias) {
    tn_shape s;
    tn_tensor poison = { x.graph, 0 };
    if (!nn_check(x, "tn_nn_linear", 1, &s)) return poison;
    tn_dtype t = tn_tensor_dtype(x);
    int64_t in = s.dim[s.rank - 1], last = s.rank - 1;
    double bound = in > 0 ? 1 / sqrt((double)in) : 0;
    tn_tensor w = nn_param(x.graph, t, name, "w", TN_DIMS(in, out), NN_UNIFORM, bound);
    tn_tensor y = tn_dot(x, w, NULL, NULL, 0, &last, (const int64_t[]){ 0 }, 1);
    return bias ? tn_add(y, nn_param(x.graph, t, name, "b", TN_DIMS(out), NN_UNIFORM, bound)) : y;
}
tn_tensor tn_nn_linear_given(tn_tensor x, tn_tensor w, tn_tensor b) {
    tn_shape s, ws;
    if (!nn_check(x, "tn_nn_linear_given", 1, &s) || !nn_check(w, "tn_nn_linear_given", 2, &ws))
        return (tn_tensor){ x.graph, 0 };
    tn_dtype t = tn_tensor_dtype(x);
    int64_t last = s.rank - 1;
    tn_tensor y = tn_dot(x, tn_cast(w, t), NULL, NULL, 0, &last, (const int64_t[]){ 0 }, 1);
    return b.graph ? tn_add(y, tn_cast(b, t)) : y;
}
tn_tensor tn_nn_linear(tn_tensor x, int64_t out, const char *name) { return linear(x, out, name, true); }
tn_tensor tn_nn_linear_no_bias(tn_tensor x, int64_t out, const char *name) { return linear(x, out, name, false); }

tn_tensor tn_nn_swiglu(tn_tensor x, int64_t hidden, const char *name) {
    char part[256];
    tn_shape s;
    if (!nn_check(x, "tn_nn_swiglu", 1, &s)) return (tn_tensor){ x.graph, 0 };
    if (!name || !*name || strlen(name) > sizeof part - 8)
        return nn_fail(x.graph, TN_ERR_INVAL, "tn_nn_swiglu: expected a name of 1 to %zu characters", sizeof part - 8);
    snprintf(part, sizeof part, "%s/gate", name);
    tn_tensor gate = tn_nn_silu(linear(x, hidden, part, false));
    snprintf(part, sizeof part, "%s/up", name);
    tn_tensor up = linear(x, hidden, part, false);
    snprintf(part, sizeof part, "%s/down", name);
    return linear(tn_mul(gate, up), s.dim[s.rank - 1], part, false);
}

tn_tensor tn_nn_embedding(tn_tensor index, int64_t n_rows, int64_t dim, const char *name) {
    if (!index.id) return index;
    return tn_gather(nn_param(index.graph, TN_F32, name, "w", TN_DIMS(n_rows, dim), NN_NORMAL, 1), index, 0);
}

/* ---- windows: convolution and pooling -------------------------------------------------------------------------------- */

typedef struct windows {
    int n; /* image axes */
    int64_t axis[3], size[3], stride[3], padding[3], dilation[3];
} windows;

/* The repeat rule of the options. */
static void per_axis(const int64_t *given, int64_t first, int n, int64_t *out) {
    for (int i = 0; i < n; i++) out[i] = given[i] ? given[i] : i ? out[i - 1] : first;
}

static bool windows_init(windows *w, tn_tensor x, const char *fn, int n, const int64_t *kernel, const int64_t *stride,
                         const int64_t *padding, const int64_t *dilation, bool stride_is_size) {
    w->n = n;
    per_axis(kernel, 1, n, w->size);
    per_axis(stride, 1, n, w->stride);
    per_axis(padding, 0, n, w->padding);
    per_axis(dilation, 1, n, w->dilation);
    for (int i = 0; i < n; i++) {
        w->axis[i] = i + 1;
        if (stride_is_size && !stride[0]) w->stride[i] = w->size[i];
        if (w->padding[i] == -1) w->padding[i] = 0;
        if (w->size[i] >= 1 && w->stride[i] >= 1 && w->dilation[i] >= 1 && w->padding[i] >= 0) continue;
        nn_fail(x.graph, TN_ERR_INVAL, "%s: image axis %d has kernel %lld, stride %lld, padding %lld, dilation %lld", fn, i,
                (long long)w->size[i], (long long)w->stride[i], (long long)w->padding[i], (long long)w->dilation[i]);
        return false;
    }
    return true;
}

/* x padded by `border`, as windows: [N, ..positions.., rest, ..offsets..]. */
static tn_tensor windows_of(tn_tensor x, const windows *w, double border) {
    int64_t pad[TN_MAX_RANK] = { 0 };
    bool any = false;
    for (int i = 0; i < w->n; i++) {
        pad[i + 1] = w->padding[i];
        any |= w->padding[i] > 0;
    }
    if (any) x = tn_pad(x, pad, pad, tn_tensor_shape(x).rank, border);
    return tn_window(x, w->axis, w->size, w->stride, w->dilation, w->n);
}

/* v f[N,..P..,G,C/G,..K..], w f[..K..,C/G,O]: one contraction a group, as the batch of a dot; groups end next to their
 * channels. */
static tn_tensor conv_contract(tn_tensor v, tn_tensor w, int n, int64_t groups, int64_t out) {
    int64_t contract_v[4], contract_w[4], group_v = n + 1, group_w = n + 1, perm[6];
    tn_shape ws = tn_tensor_shape(w);
    if (groups > 1) {
        ws.dim[n + 1] = groups;
        ws.dim[n + 2] = out / groups;
        ws.rank = n + 3;
        w = tn_reshape(w, ws);
    }
    int channel = groups > 1 ? n + 2 : n + 1;
    contract_v[0] = channel;
    contract_w[0] = n;
    for (int i = 0; i < n; i++) {
        contract_v[i + 1] = channel + 1 + i;
        contract_w[i + 1] = i;
    }
    if (groups == 1) return tn_dot(v, w, NULL, NULL, 0, contract_v, contract_w, n + 1);
    tn_tensor y = tn_dot(v, w, &group_v, &group_w, 1, contract_v, contract_w, n + 1); /* [G, N, ..P.., O/G] */
    tn_shape s = tn_tensor_shape(y);
    if (s.rank < 0) return y;
    for (int i = 0; i <= n; i++) perm[i] = i + 1;
    perm[n + 1] = 0;
    perm[n + 2] = n + 2;
    y = tn_permute(y, perm, n + 3);
    s = tn_tensor_shape(y);
    s.dim[n + 1] = out;
    s.rank = n + 2;
    return tn_reshape(y, s);
}

/* What is given, as x's dtype, or a parameter. */
static tn_tensor given_or_param(tn_tensor x, tn_tensor given, const char *name, const char *suffix, tn_shape s, double bound,
                                const char *fn) {
    tn_dtype t = tn_tensor_dtype(x);
    if (!given.graph) return nn_param(x.graph, t, name, suffix, s, NN_UNIFORM, bound);
    tn_shape is = tn_tensor_shape(given);
    bool same = is.rank == s.rank;
    for (int i = 0; same && i < s.rank; i++) same = is.dim[i] == s.dim[i];
    if (!same && is.rank >= 0)
        return nn_fail(x.graph, TN_ERR_SHAPE, "%s: the given %s has another shape than the layer's parameter", fn, suffix);
    return tn_cast(given, t);
}

/* ws, bound: of the plain weights. */
static tn_tensor winograd(tn_tensor x, const tn_nn_conv_opts *o, const windows *w, tn_shape ws, double bound, const char *name,
                          const char *fn) {
    tn_dtype t = tn_tensor_dtype(x);
    bool fits = w->n == 2 && o->groups <= 1 && (t == TN_F32 || t == TN_F64) && (o->winograd == 2 || o->winograd == 4);
    for (int i = 0; i < w->n; i++) fits = fits && w->size[i] == 3 && w->stride[i] == 1 && w->dilation[i] == 1;
    if (!fits)
        return nn_fail(x.graph, TN_ERR_INVAL,
                       "%s: winograd is 2 or 4, for f32 or f64 images, kernel 3 x 3, stride and dilation 1, one group", fn);
    tn_tensor u = o->transformed, b = { 0 };
    if (!u.graph) u = tn_nn_winograd_weights(given_or_param(x, o->weights, name, "w", ws, bound, fn), o->winograd);
    tn_shape us = tn_tensor_shape(u);
    int64_t points = (o->winograd + 2) * (o->winograd + 2);
    if (us.rank >= 0 && (us.rank != 3 || us.dim[0] != points || us.dim[1] != ws.dim[2] || us.dim[2] != ws.dim[3]))
        return nn_fail(x.graph, TN_ERR_SHAPE, "%s: expected transformed weights [%lld,%lld,%lld]", fn, (long long)points,
                       (long long)ws.dim[2], (long long)ws.dim[3]);
    if (!o->no_bias) b = given_or_param(x, o->bias, name, "b", TN_DIMS(ws.dim[3]), bound, fn);
    return nn_winograd(x, u, b, o->winograd, w->padding);
}

static tn_tensor conv(tn_tensor x, const tn_nn_conv_opts *o, const char *name, int n, const char *fn) {
    tn_shape s, ws = { .rank = n + 2 };
    tn_tensor poison = { x.graph, 0 };
    windows w;
    if (!nn_check(x, fn, 1, &s)) return poison;
    if (s.rank != n + 2)
        return nn_fail(x.graph, TN_ERR_SHAPE, "%s: expected rank %d (batch, image, channels), got rank %d", fn, n + 2, s.rank);
    int64_t in = s.dim[n + 1], out = o->out_channels, groups = o->groups ? o->groups : 1;
    if (out < 1 || groups < 1 || in % groups || out % groups)
        return nn_fail(x.graph, TN_ERR_INVAL, "%s: %lld groups of %lld input and %lld output channels", fn, (long long)groups,
                       (long long)in, (long long)out);
    if (!windows_init(&w, x, fn, n, o->kernel, o->stride, o->padding, o->dilation, false)) return poison;
    double fan = (double)(in / groups);
    for (int i = 0; i < n; i++) {
        ws.dim[i] = w.size[i];
        fan *= (double)w.size[i];
    }
    ws.dim[n] = in / groups;
    ws.dim[n + 1] = out;
    double bound = fan > 0 ? 1 / sqrt(fan) : 0;
    if (o->winograd) return winograd(x, o, &w, ws, bound, name, fn);
    tn_tensor weights = given_or_param(x, o->weights, name, "w", ws, bound, fn);
    if (groups > 1) {
        s.dim[n + 1] = groups;
        s.dim[n + 2] = in / groups;
        s.rank = n + 3;
        x = tn_reshape(x, s);
    }
    tn_tensor y = conv_contract(windows_of(x, &w, 0), weights, n, groups, out);
    return o->no_bias ? y : tn_add(y, given_or_param(x, o->bias, name, "b", TN_DIMS(out), bound, fn));
}
tn_tensor tn_nn_conv1d(tn_tensor x, tn_nn_conv_opts opts, const char *name) { return conv(x, &opts, name, 1, "tn_nn_conv1d"); }
tn_tensor tn_nn_conv2d(tn_tensor x, tn_nn_conv_opts opts, const char *name) { return conv(x, &opts, name, 2, "tn_nn_conv2d"); }
tn_tensor tn_nn_conv3d(tn_tensor x, tn_nn_conv_opts opts, const char *name) { return conv(x, &opts, name, 3, "tn_nn_conv3d"); }

static tn_tensor pool(tn_tensor x, const tn_nn_pool_opts *o, bool max, const char *fn) {
    tn_shape s;
    tn_tensor poison = { x.graph, 0 };
    windows w;
    if (!nn_check(x, fn, 1, &s)) return poison;
    if (s.rank < 3 || s.rank > 5)
        return nn_fail(x.graph, TN_ERR_SHAPE, "%s: expected rank 3 to 5 (batch, image, channels), got rank %d", fn, s.rank);
    if (!windows_init(&w, x, fn, s.rank - 2, o->kernel, o->stride, o->padding, o->dilation, true)) return poison;
    tn_tensor v = windows_of(x, &w, max ? -INFINITY : 0);
    int64_t axes[3];
    for (int i = 0; i < w.n; i++) axes[i] = s.rank + i;
    return max ? tn_reduce_max(v, axes, w.n, 0) : tn_mean(v, axes, w.n, 0);
}
tn_tensor tn_nn_max_pool(tn_tensor x, tn_nn_pool_opts opts) { return pool(x, &opts, true, "tn_nn_max_pool"); }
tn_tensor tn_nn_avg_pool(tn_tensor x, tn_nn_pool_opts opts) { return pool(x, &opts, false, "tn_nn_avg_pool"); }

/* ---- norms ----------------------------------------------------------------------------------------------------------- */

static tn_tensor channel_param(tn_tensor x, const char *name, const char *suffix, nn_init init) {
    tn_shape s = tn_tensor_shape(x);
    if (s.rank < 0) return x;
    return nn_param(x.graph, tn_tensor_dtype(x), name, suffix, TN_DIMS(s.dim[s.rank - 1]), init, 1);
}

static tn_tensor scale_shift(tn_tensor x, const char *name) {
    tn_tensor y = tn_mul(x, channel_param(x, name, "w", NN_ONES));
    return tn_add(y, channel_param(x, name, "b", NN_ZEROS));
}

/* (x - mean) / sqrt(var + eps) over axes. The variance is the mean of squared distances: E[x^2] - E[x]^2 would cancel. */
static tn_tensor normalised(tn_tensor x, const int64_t *axes, int n, double eps) {
    tn_tensor d = tn_sub(x, tn_mean(x, axes, n, 1));
    return tn_mul(d, tn_rsqrt(tn_add_scalar(tn_mean(tn_mul(d, d), axes, n, 1), eps)));
}

tn_tensor nn_layer_norm(tn_tensor x, double eps) { return normalised(x, TN_INTS(-1), eps != 0 ? eps : 1e-5); }

tn_tensor nn_rms_norm(tn_tensor x, double eps) {
    tn_tensor mean = tn_mean(tn_mul(x, x), TN_INTS(-1), 1);
    return tn_mul(x, tn_rsqrt(tn_add_scalar(mean, eps != 0 ? eps : 1e-6)));
}

tn_tensor tn_nn_layer_norm(tn_tensor x, double eps, const char *name) {
    tn_shape s;
    if (!nn_check(x, "tn_nn_layer_norm", 1, &s)) return (tn_tensor){ x.graph, 0 };
    return scale_shift(nn_layer_norm(x, eps), name);
}

tn_tensor tn_nn_rms_norm(tn_tensor x, double eps, const char *name) {
    tn_shape s;
    if (!nn_check(x, "tn_nn_rms_norm", 1, &s)) return (tn_tensor){ x.graph, 0 };
    tn_tensor y = nn_rms_norm(x, eps);
    return tn_mul(y, channel_param(y, name, "w", NN_ONES));
}

tn_tensor tn_nn_group_norm(tn_tensor x, int64_t groups, double eps, const char *name) {
    tn_shape s, split;
    if (!nn_check(x, "tn_nn_group_norm", 2, &s)) return (tn_tensor){ x.graph, 0 };
    int64_t c = s.dim[s.rank - 1], axes[TN_MAX_RANK];
    if (groups < 1 || c % groups || s.rank == TN_MAX_RANK)
        return nn_fail(x.graph, TN_ERR_INVAL, "tn_nn_group_norm: %lld groups of %lld channels, rank %d", (long long)groups,
                       (long long)c, s.rank);
    split = s;
    split.rank++;
    split.dim[s.rank - 1] = groups;
    split.dim[s.rank] = c / groups;
    int n = 0;
    for (int i = 1; i < split.rank; i++)
        if (i != s.rank - 1) axes[n++] = i;
    return scale_shift(tn_reshape(normalised(tn_reshape(x, split), axes, n, eps != 0 ? eps : 1e-5), s), name);
}

tn_tensor tn_nn_instance_norm(tn_tensor x, double eps, const char *name) {
    tn_shape s;
    if (!nn_check(x, "tn_nn_instance_norm", 2, &s)) return (tn_tensor){ x.graph, 0 };
    return tn_nn_group_norm(x, s.dim[s.rank - 1] > 0 ? s.dim[s.rank - 1] : 1, eps, name);
}

tn_tensor tn_nn_local_response_norm(tn_tensor x, int64_t size, double alpha, double beta, double k) {
    tn_shape s;
    if (!nn_check(x, "tn_nn_local_response_norm", 1, &s)) return (tn_tensor){ x.graph, 0 };
    if (size < 1) return nn_fail(x.graph, TN_ERR_INVAL, "tn_nn_local_response_norm: %lld channels", (long long)size);
    int64_t before[TN_MAX_RANK] = { 0 }, after[TN_MAX_RANK] = { 0 }, last = s.rank - 1, one = 1;
    before[last] = size / 2, after[last] = size - 1 - size / 2;
    tn_tensor near = tn_window(tn_pad(tn_mul(x, x), before, after, s.rank, 0), &last, &size, &one, &one, 1);
    tn_tensor sum = tn_sum(near, (const int64_t[]){ s.rank }, 1, 0);
    return tn_mul(x, tn_pow_scalar(tn_add_scalar(tn_mul_scalar(sum, alpha / (double)size), k), -beta));
}

/* ---- weights that are scaled ----------------------------------------------------------------------------------------- */

static bool matrix_axes(tn_tensor w, const char *fn, tn_shape *s, int64_t *axes) {
    if (!nn_check(w, fn, 2, s)) return false;
    for (int i = 0; i < s->rank - 1; i++) axes[i] = i;
    return true;
}
tn_tensor tn_nn_weight_norm(tn_tensor v, const char *name) {
    tn_shape s;
    int64_t axes[TN_MAX_RANK];
    if (!matrix_axes(v, "tn_nn_weight_norm", &s, axes)) return (tn_tensor){ v.graph, 0 };
    tn_tensor g = nn_param(v.graph, tn_tensor_dtype(v), name, "g", TN_DIMS(s.dim[s.rank - 1]), NN_ONES, 1);
    return tn_mul(v, tn_div(g, tn_nn_norm(v, axes, s.rank - 1, 1)));
}

static tn_tensor unit(tn_tensor x) { return tn_div(x, tn_max_scalar(tn_nn_norm(x, TN_ALL_AXES, 0), 1e-12)); }
/* W as [rows, out]: v = W u and u = W^T v in turn, both of length 1, tend to the singular vectors of the largest value. */
tn_tensor tn_nn_spectral_norm(tn_tensor w, int iterations, const char *name) {
    tn_shape s;
    int64_t axes[TN_MAX_RANK], rows = 1;
    if (!matrix_axes(w, "tn_nn_spectral_norm", &s, axes)) return (tn_tensor){ w.graph, 0 };
    if (iterations < 0) return nn_fail(w.graph, TN_ERR_INVAL, "tn_nn_spectral_norm: %d iterations", iterations);
    for (int i = 0; i < s.rank - 1; i++) rows *= s.dim[i];
    tn_dtype t = tn_tensor_dtype(w);
    tn_tensor state = nn_state(w.graph, t, name, "u", TN_DIMS(s.dim[s.rank - 1]), NN_NORMAL),
              flat = tn_reshape(w, TN_DIMS(rows, s.dim[s.rank - 1]));
    tn_tensor fixed = tn_stop_gradient(flat), u = unit(tn_cast(state, t)), v = unit(tn_matmul(fixed, u));
    for (int i = 0; i < iterations; i++) {
        u = unit(tn_matmul(v, fixed));
        v = unit(tn_matmul(fixed, u));
    }
    if (iterations && state.id) tn_assign(state, tn_cast(u, tn_tensor_dtype(state)));
    return tn_div(w, tn_sum(tn_mul(v, tn_matmul(flat, u)), TN_ALL_AXES, 0));
}

/* old + (new - old) * share, in the state's dtype. */
static void follow(tn_tensor state, tn_tensor value, double share) {
    tn_tensor v = tn_reshape(tn_stop_gradient(tn_cast(value, tn_tensor_dtype(state))), tn_tensor_shape(state));
    tn_assign(state, tn_add(state, tn_mul_scalar(tn_sub(v, state), share)));
}

tn_tensor tn_nn_batch_norm(tn_tensor x, tn_nn_batch_norm_opts o, const char *name) {
    tn_shape s;
    tn_tensor poison = { x.graph, 0 };
    if (!nn_check(x, "tn_nn_batch_norm", 2, &s)) return poison;
    tn_dtype t = tn_tensor_dtype(x);
    tn_shape channels = TN_DIMS(s.dim[s.rank - 1]);
    int64_t axes[TN_MAX_RANK];
    for (int i = 0; i < s.rank - 1; i++) axes[i] = i;
    double eps = o.eps != 0 ? o.eps : 1e-5, share = o.momentum != 0 ? o.momentum : 0.1;
    tn_tensor mean = nn_state(x.graph, t, name, "mean", channels, NN_ZEROS);
    tn_tensor var = nn_state(x.graph, t, name, "var", channels, NN_ONES);
    if (!mean.id || !var.id) return poison;
    if (o.inference) {
        tn_tensor d = tn_sub(x, tn_cast(mean, t));
        return scale_shift(tn_mul(d, tn_rsqrt(tn_add_scalar(tn_cast(var, t), eps))), name);
    }
    tn_tensor m = tn_mean(x, axes, s.rank - 1, 1), d = tn_sub(x, m), v = tn_mean(tn_mul(d, d), axes, s.rank - 1, 1);
    if (!v.id) return v;
    follow(mean, m, share);
    follow(var, nn_unbiased(v, nn_product(x.graph, s.dim, s.rank - 1), 1, true), share);
    return scale_shift(tn_mul(d, tn_rsqrt(tn_add_scalar(v, eps))), name);
}
