/* shape.c - statistics and rearrangements. In: tensors of any dtype the builders take. Out: compositions of movement, concat
 * and reductions. */
#include "nn.h"

/* ---- statistics ------------------------------------------------------------------------------------------------------ */

tn_tensor tn_nn_var(tn_tensor x, const int64_t *axes, int n_axes, int correction, int keep) {
    tn_tensor d = tn_sub(x, tn_mean(x, axes, n_axes, 1)), v = tn_mean(tn_mul(d, d), axes, n_axes, keep);
    tn_shape s = tn_tensor_shape(x);
    if (!v.id || !correction) return v;
    int64_t n = 1;
    for (int i = 0; i < (n_axes < 0 ? s.rank : n_axes); i++)
        n = nn_times(x.graph, n, s.dim[n_axes < 0 ? i : axes[i] < 0 ? axes[i] + s.rank : axes[i]]);
    return nn_unbiased(v, n, correction, false);
}
/* The square root of a sum of squares. At 0 the derivative of the root is infinite and that of the squares is 0: their product
 * would be NaN. It is 0 here, as in PyTorch. */
static tn_tensor root(tn_tensor s) {
    if (!s.id) return s;
    tn_tensor zero = nn_scalar(s, 0), none = tn_eq(s, zero);
    return tn_select(none, zero, tn_sqrt(tn_select(none, nn_scalar(s, 1), s)));
}
tn_tensor tn_nn_std(tn_tensor x, const int64_t *axes, int n_axes, int correction, int keep) {
    return root(tn_nn_var(x, axes, n_axes, correction, keep));
}
tn_tensor tn_nn_norm(tn_tensor x, const int64_t *axes, int n_axes, int keep) {
    return root(tn_sum(tn_mul(x, x), axes, n_axes, keep));
}

static int64_t plus(tn_graph *g, int64_t x, int64_t y) { return x >= 0 && y >= 0 ? x + y : tn_dim_add(g, x, y); }
/* count elements of axis from start. */
static tn_tensor part(tn_tensor x, int axis, int64_t start, int64_t count) {
    tn_shape s = tn_tensor_shape(x);
    int64_t from[TN_MAX_RANK] = { 0 };
    if (s.rank < 0) return x;
    if (start == 0 && count == s.dim[axis]) return x;
    from[axis] = start;
    s.dim[axis] = plus(x.graph, start, count);
    return tn_slice(x, from, s.dim, NULL, s.rank);
}

/* ---- joining and splitting ------------------------------------------------------------------------------------------- */

/* Up to 64 operands on the stack, reshaped by `fit`, then joined: more are joined 64 at a time. */
enum { CHUNK = 64 };
typedef tn_shape (*fit_fn)(tn_shape s, int axis);

static tn_graph *graph_of(const tn_tensor *xs, int n) {
    tn_graph *g = NULL;
    for (int i = 0; xs && i < n && !g; i++) g = xs[i].graph;
    return g;
}
static tn_tensor join_fitted(const tn_tensor *xs, int n, int axis, fit_fn fit, const char *fn) {
    tn_tensor done = { graph_of(xs, n), 0 }, parts[CHUNK + 1];
    for (int at = 0; at < n;) {
        int k = 0;
        if (at) parts[k++] = done;
        for (; at < n && k <= CHUNK; at++) {
            tn_shape s = tn_tensor_shape(xs[at]);
            if (!nn_given(done.graph, xs[at], fn)) return (tn_tensor){ done.graph, 0 };
            if (s.rank == TN_MAX_RANK && fit(s, axis).rank > TN_MAX_RANK)
                return nn_fail(xs[at].graph, TN_ERR_SHAPE, "%s: rank %d", fn, s.rank);
            parts[k++] = tn_reshape(xs[at], fit(s, axis));
        }
        done = tn_concat(parts, k, axis);
    }
    return done;
}

static tn_shape fit_new_axis(tn_shape s, int axis) {
    if (s.rank++ >= TN_MAX_RANK) return s;
    for (int i = s.rank - 1; i > axis; i--) s.dim[i] = s.dim[i - 1];
    s.dim[axis] = 1;
    return s;
}
/* A vector becomes a row, a scalar a 1x1 matrix. */
static tn_shape fit_rows(tn_shape s, int axis) {
    (void)axis;
    return s.rank >= 2 ? s : TN_DIMS(1, s.rank ? s.dim[0] : 1);
}
static tn_shape fit_vectors(tn_shape s, int axis) {
    (void)axis;
    return s.rank ? s : TN_DIMS(1);
}

static tn_tensor none(void) { return (tn_tensor){ 0 }; }

tn_tensor tn_nn_stack(const tn_tensor *xs, int n, int axis) {
    if (!xs || n < 1) return none();
    int rank = tn_tensor_shape(xs[0]).rank, a = axis < 0 ? axis + rank + 1 : axis;
    if (!nn_given(graph_of(xs, n), xs[0], "tn_nn_stack")) return (tn_tensor){ graph_of(xs, n), 0 };
    if (a < 0 || a > rank) return nn_fail(xs[0].graph, TN_ERR_SHAPE, "tn_nn_stack: axis %d for tensors of rank %d", axis, rank);
    for (int i = 1; i < n; i++)
        if (tn_tensor_shape(xs[i]).rank >= 0 && tn_tensor_shape(xs[i]).rank != rank)
            return nn_fail(xs[0].graph, TN_ERR_SHAPE, "tn_nn_stack: operand %d has rank %d, operand 0 rank %d", i,
                           tn_tensor_shape(xs[i]).rank, rank);
    return join_fitted(xs, n, a, fit_new_axis, "tn_nn_stack");
}
tn_tensor tn_nn_vstack(const tn_tensor *xs, int n) {
    return xs && n > 0 ? join_fitted(xs, n, 0, fit_rows, "tn_nn_vstack") : none();
}
tn_tensor tn_nn_hstack(const tn_tensor *xs, int n) {
    if (!xs || n < 1) return none();
    return join_fitted(xs, n, tn_tensor_shape(xs[0]).rank >= 2 ? 1 : 0, fit_vectors, "tn_nn_hstack");
}

void tn_nn_split(tn_tensor x, int axis, const int64_t *sizes, int n, tn_tensor *out) {
    int a = 0;
    if (n > 0 && (!sizes || !out)) {
        nn_fail(x.graph, TN_ERR_INVAL, "tn_nn_split: %s is NULL for %d parts", sizes ? "out" : "sizes", n);
        for (int i = 0; out && i < n; i++) out[i] = (tn_tensor){ x.graph, 0 };
        return;
    }
    bool fits = nn_axis(x, "tn_nn_split", axis, &a);
    int64_t at = 0, size = fits ? tn_tensor_shape(x).dim[a] : 0;
    for (int i = 0; fits && i < n; i++) {
        fits = nn_is_size(sizes[i]) && (sizes[i] < 0 || at < 0 || size < 0 || sizes[i] <= size - at);
        at = fits ? plus(x.graph, at, sizes[i]) : 0;
    }
    if (tn_tensor_shape(x).rank > 0 && (!fits || at != size))
        nn_fail(x.graph, TN_ERR_SHAPE, "tn_nn_split: the sizes do not add up to axis %d of size %lld", axis, (long long)size);
    fits = fits && at == size;
    at = 0;
    for (int i = 0; i < n; i++) {
        out[i] = fits ? part(x, a, at, sizes[i]) : (tn_tensor){ x.graph, 0 };
        at = fits ? plus(x.graph, at, sizes[i]) : 0;
    }
}

/* ---- repeating and moving -------------------------------------------------------------------------------------------- */

/* [.., d, ..] -> [.., d * reps, ..], through an axis of size reps before (whole axis repeated) or behind (each element) it. */
static tn_tensor repeated(tn_tensor x, int axis, int64_t reps, bool each, const char *fn) {
    tn_shape s = tn_tensor_shape(x), with, big;
    if (s.rank < 0 || reps == 1) return x;
    int64_t total = 0;
    bool of_run = reps < 0 || s.dim[axis] < 0;
    if (!nn_is_size(reps) || s.rank == TN_MAX_RANK || (!of_run && __builtin_mul_overflow(s.dim[axis], reps, &total)))
        return nn_fail(x.graph, TN_ERR_INVAL, "%s: %lld times axis %d of size %lld, rank %d", fn, (long long)reps, axis,
                       (long long)s.dim[axis], s.rank);
    with = fit_new_axis(s, each ? axis + 1 : axis);
    big = with;
    big.dim[each ? axis + 1 : axis] = reps;
    s.dim[axis] = of_run ? nn_times(x.graph, s.dim[axis], reps) : total;
    return tn_reshape(tn_expand(tn_reshape(x, with), big), s);
}

tn_tensor tn_nn_tile(tn_tensor x, const int64_t *reps, int n_axes) {
    tn_shape s = tn_tensor_shape(x);
    if (!nn_given(x.graph, x, "tn_nn_tile")) return (tn_tensor){ x.graph, 0 };
    if (n_axes != s.rank) return nn_fail(x.graph, TN_ERR_SHAPE, "tn_nn_tile: %d numbers for rank %d", n_axes, s.rank);
    if (n_axes && !reps) return nn_fail(x.graph, TN_ERR_INVAL, "tn_nn_tile: reps is NULL");
    for (int i = 0; i < s.rank; i++) x = repeated(x, i, reps[i], false, "tn_nn_tile");
    return x;
}

tn_tensor tn_nn_repeat(tn_tensor x, int64_t reps, int axis) {
    int a = 0;
    if (!nn_axis(x, "tn_nn_repeat", axis, &a)) return (tn_tensor){ x.graph, 0 };
    return repeated(x, a, reps, true, "tn_nn_repeat");
}

tn_tensor tn_nn_roll(tn_tensor x, int64_t shift, int axis) {
    int a = 0;
    if (!nn_axis(x, "tn_nn_roll", axis, &a)) return (tn_tensor){ x.graph, 0 };
    int64_t d = tn_tensor_shape(x).dim[a], least = nn_least(x.graph, d), k = shift;
    if (d >= 0)
        k = d ? shift % d : 0;
    else if (shift > least || shift < -least)
        return nn_fail(x.graph, TN_ERR_UNSUPPORTED, "tn_nn_roll: by %lld along an axis that may have %lld elements",
                       (long long)shift, (long long)least);
    if (k == 0) return x;
    int64_t first = k > 0 ? nn_plus(x.graph, d, -k) : -k, rest = k > 0 ? k : nn_plus(x.graph, d, k);
    return tn_concat((tn_tensor[]){ part(x, a, first, rest), part(x, a, 0, first) }, 2, a);
}

tn_tensor tn_nn_pad(tn_tensor x, int axis, int64_t before, int64_t after, tn_nn_pad_mode mode) {
    int a = 0;
    if (!nn_axis(x, "tn_nn_pad", axis, &a)) return (tn_tensor){ x.graph, 0 };
    tn_shape s = tn_tensor_shape(x);
    int64_t d = s.dim[a], least = nn_least(x.graph, d), ax = a;
    int64_t most = mode == TN_NN_PAD_EDGE ? INT64_MAX - least : mode == TN_NN_PAD_WRAP ? least : least - 1;
    if (mode != TN_NN_PAD_EDGE && mode != TN_NN_PAD_REFLECT && mode != TN_NN_PAD_WRAP)
        return nn_fail(x.graph, TN_ERR_INVAL, "tn_nn_pad: there is no mode %d", (int)mode);
    if (least < 1 || before < 0 || after < 0 || before > most || after > most)
        return nn_fail(x.graph, TN_ERR_SHAPE, "tn_nn_pad: axis of size %lld padded by %lld and %lld", (long long)d,
                       (long long)before, (long long)after);
    tn_tensor l = { x.graph, 0 }, r = l;
    if (mode == TN_NN_PAD_WRAP) {
        l = part(x, a, nn_plus(x.graph, d, -before), before);
        r = part(x, a, 0, after);
    } else if (mode == TN_NN_PAD_REFLECT) {
        l = tn_flip(part(x, a, before ? 1 : 0, before), &ax, 1);
        r = tn_flip(part(x, a, after ? nn_plus(x.graph, d, -1 - after) : 0, after), &ax, 1);
    } else {
        tn_shape border = s;
        border.dim[a] = before;
        l = tn_expand(part(x, a, 0, 1), border);
        border.dim[a] = after;
        r = tn_expand(part(x, a, nn_plus(x.graph, d, -1), 1), border);
    }
    tn_tensor parts[3];
    int n = 0;
    if (before) parts[n++] = l;
    parts[n++] = x;
    if (after) parts[n++] = r;
    return n == 1 ? x : tn_concat(parts, n, a);
}
