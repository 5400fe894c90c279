/* gradients.c - what is done to gradients between tn_grad and an optimiser, and to parameters after it: clipping, accumulation,
 * loss scaling, running means. In: lists of tensors. Out: the lists changed in place, and conditions for optimisers. */
#include "nn.h"

#include <math.h>
#include <stdio.h>

/* The list is one of tensors of one graph; else an error in the name of fn. */
static bool check_list(const tn_tensor *xs, int n, const char *fn, tn_graph **out_g) {
    *out_g = NULL;
    for (int i = 0; i < n && xs && !*out_g; i++) *out_g = xs[i].graph;
    if (!*out_g) return false; /* nobody to tell */
    for (int i = 0; i < n; i++)
        if (!nn_given(*out_g, xs[i], fn)) return false;
    return true;
}

static tn_tensor full(tn_graph *g, tn_dtype t, double value) { return tn_full(g, t, TN_SCALAR, value); }
static tn_tensor wide(tn_tensor x) { return tn_tensor_dtype(x) == TN_F64 ? x : tn_cast(x, TN_F32); }

tn_tensor tn_nn_norms(const tn_tensor *xs, int n) {
    tn_graph *g;
    if (!check_list(xs, n, "tn_nn_norms", &g)) return (tn_tensor){ g, 0 };
    size_t bytes = (size_t)n * sizeof *xs;
    tn_tensor *norms = tn_ctx_realloc(tn_graph_ctx(g), NULL, 0, bytes);
    if (!norms) return nn_fail(g, TN_ERR_NOMEM, "tn_nn_norms: out of memory: a list of %d tensors", n);
    for (int i = 0; i < n; i++) {
        tn_tensor x = wide(xs[i]), norm = tn_sqrt(tn_sum(tn_mul(x, x), TN_ALL_AXES, 0));
        norms[i] = tn_reshape(tn_cast(norm, TN_F32), TN_DIMS(1));
    }
    tn_tensor all = tn_concat(norms, n, 0);
    tn_ctx_realloc(tn_graph_ctx(g), norms, bytes, 0);
    return all;
}

tn_tensor tn_nn_clip_norm(tn_tensor *grads, int n, double most) {
    tn_graph *g;
    if (!check_list(grads, n, "tn_nn_clip_norm", &g)) return (tn_tensor){ g, 0 };
    if (!(most > 0)) return nn_fail(g, TN_ERR_INVAL, "tn_nn_clip_norm: expected a norm above 0, got %g", most);
    tn_tensor squares = { g, 0 };
    for (int i = 0; i < n; i++) {
        tn_tensor x = wide(grads[i]), sum = tn_cast(tn_sum(tn_mul(x, x), TN_ALL_AXES, 0), TN_F32);
        squares = i ? tn_add(squares, sum) : sum;
    }
    tn_tensor norm = tn_sqrt(squares);
    tn_tensor scale = tn_div(full(g, TN_F32, most), tn_max(norm, full(g, TN_F32, most)));
    for (int i = 0; i < n; i++) grads[i] = tn_mul(grads[i], tn_cast(scale, tn_tensor_dtype(grads[i])));
    return norm;
}

void tn_nn_clip_value(tn_tensor *grads, int n, double most) {
    tn_graph *g;
    if (!check_list(grads, n, "tn_nn_clip_value", &g)) return;
    if (!(most > 0)) {
        nn_fail(g, TN_ERR_INVAL, "tn_nn_clip_value: expected a value above 0, got %g", most);
        return;
    }
    for (int i = 0; i < n; i++) {
        tn_tensor below = tn_min(grads[i], nn_scalar(grads[i], most));
        grads[i] = tn_max(below, nn_scalar(grads[i], -most));
    }
}

/* "<name>/<i>" or "<name>/<suffix>" */
static tn_tensor named_state(tn_graph *g, const char *name, const char *suffix, int i, tn_dtype t, tn_shape shape,
                             const void *init) {
    char text[256];
    int n = suffix ? snprintf(text, sizeof text, "%s/%s", name, suffix) : snprintf(text, sizeof text, "%s/%d", name, i);
    if (n < 0 || n >= (int)sizeof text) return nn_fail(g, TN_ERR_INVAL, "the name %.40s... is too long", name);
    return tn_state(g, text, t, shape, init);
}

tn_tensor tn_nn_accumulate(tn_tensor *grads, int n, int64_t runs, const char *name) {
    tn_graph *g;
    if (!check_list(grads, n, "tn_nn_accumulate", &g)) return (tn_tensor){ g, 0 };
    if (runs < 1 || !name)
        return nn_fail(g, TN_ERR_INVAL, "tn_nn_accumulate: expected a name and 1 run or more, got %lld", (long long)runs);
    tn_tensor count = named_state(g, name, "runs", 0, TN_I64, TN_SCALAR, NULL), next = tn_add_scalar(count, 1);
    tn_tensor due = tn_eq(next, full(g, TN_I64, (double)runs));
    tn_assign(count, tn_select(due, full(g, TN_I64, 0), next));
    for (int i = 0; i < n; i++) {
        tn_tensor sum = named_state(g, name, NULL, i, tn_tensor_dtype(grads[i]), tn_tensor_shape(grads[i]), NULL);
        if (!sum.id) return sum;
        grads[i] = tn_add(sum, tn_mul_scalar(grads[i], 1 / (double)runs));
        tn_assign(sum, tn_select(due, nn_scalar(sum, 0), grads[i]));
    }
    return due;
}

tn_tensor tn_nn_loss_scale(tn_graph *g, double first, const char *name) {
    float init = (float)(first != 0 ? first : 65536);
    if (!g || tn_graph_status(g)) return (tn_tensor){ g, 0 };
    if (!name || !(init > 0) || !isfinite(init))
        return nn_fail(g, TN_ERR_INVAL, "tn_nn_loss_scale: expected a name and a scale above 0, got %g", first);
    return tn_state(g, name, TN_F32, TN_SCALAR, &init);
}

tn_tensor tn_nn_unscale(tn_tensor scale, tn_tensor *grads, int n, int64_t growth) {
    tn_graph *g;
    const char *name = tn_tensor_name(scale);
    if (!check_list(grads, n, "tn_nn_unscale", &g)) return (tn_tensor){ g, 0 };
    if (!nn_given(g, scale, "tn_nn_unscale")) return (tn_tensor){ g, 0 };
    if (!name || growth < 0)
        return nn_fail(g, TN_ERR_INVAL, "tn_nn_unscale: expected the state of tn_nn_loss_scale and growth of 0 or more");
    if (!growth) growth = 2000;
    tn_tensor largest = full(g, TN_F32, 0);
    for (int i = 0; i < n; i++) {
        tn_tensor top = tn_cast(tn_reduce_max(tn_abs(grads[i]), TN_ALL_AXES, 0), TN_F32);
        largest = tn_max(largest, top);
        grads[i] = tn_div(grads[i], tn_cast(scale, tn_tensor_dtype(grads[i])));
    }
    tn_tensor fine = tn_lt(largest, full(g, TN_F32, INFINITY)); /* not for a NaN */
    tn_tensor good = named_state(g, name, "good", 0, TN_I64, TN_SCALAR, NULL), zero = full(g, TN_I64, 0);
    tn_tensor skipped = named_state(g, name, "skipped", 0, TN_I64, TN_SCALAR, NULL), next = tn_add_scalar(good, 1);
    if (!skipped.id) return skipped;
    tn_tensor grown = tn_eq(next, full(g, TN_I64, (double)growth));
    tn_tensor up = tn_min(tn_mul_scalar(scale, 2), full(g, TN_F32, 0x1p100)), down = tn_mul_scalar(scale, 0.5);
    down = tn_max(down, full(g, TN_F32, 0x1p-100));
    tn_assign(scale, tn_select(fine, tn_select(grown, up, scale), down));
    tn_assign(good, tn_select(tn_and(fine, tn_not(grown)), next, zero));
    tn_assign(skipped, tn_select(fine, skipped, tn_add_scalar(skipped, 1)));
    return fine;
}

void tn_nn_ema(const tn_tensor *params, int n, double decay, const char *name) {
    tn_graph *g;
    if (!check_list(params, n, "tn_nn_ema", &g)) return;
    if (!name || !(decay >= 0 && decay <= 1)) {
        nn_fail(g, TN_ERR_INVAL, "tn_nn_ema: expected a name and a decay in [0, 1], got %g", decay);
        return;
    }
    tn_tensor count = nn_counter(g, name, "runs"), first = tn_eq(count, full(g, TN_I64, 0));
    for (int i = 0; i < n && first.id; i++) {
        const char *own = tn_tensor_name(params[i]);
        if (!own) {
            nn_fail(g, TN_ERR_INVAL, "tn_nn_ema: parameter %d is not a state", i);
            return;
        }
        tn_tensor mean = named_state(g, own, name, 0, tn_tensor_dtype(params[i]), tn_tensor_shape(params[i]), NULL);
        if (!mean.id) return;
        tn_tensor next = tn_add(tn_mul_scalar(mean, decay), tn_mul_scalar(params[i], 1 - decay));
        tn_assign(mean, tn_select(first, params[i], next));
    }
}
