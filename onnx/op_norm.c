/* op_norm.c - norms and losses, as compositions: finding their fast form is the compiler's work. */
#include "import.h"

static tn_dtype held(onnx_call *c, int i) { return onnx_elem_dtype(onnx_elem(c, i)); }

/* A vector a channel as [1,C,1,..] beside x [N,C,..]. */
static tn_tensor per_channel(onnx_call *c, tn_tensor v, int rank) {
    tn_shape s = { .rank = rank };
    if (rank < 2) s.rank = 1;
    for (int i = 0; i < s.rank; i++) s.dim[i] = 1;
    tn_shape own = tn_tensor_shape(v);
    s.dim[s.rank > 1 ? 1 : 0] = onnx_dim_product(c, own.dim, own.rank);
    return tn_reshape(v, s);
}

static tn_tensor normalise(tn_tensor x, tn_tensor mean, tn_tensor var, double eps) {
    return tn_mul(tn_sub(x, mean), tn_rsqrt(tn_add_scalar(var, eps)));
}
static tn_tensor mean_of(tn_tensor x, const int64_t *axes, int n) { return n ? tn_mean(x, axes, n, 1) : x; }
static tn_tensor var_of(tn_tensor x, tn_tensor mean, const int64_t *axes, int n) {
    tn_tensor d = tn_sub(x, mean);
    return mean_of(tn_mul(d, d), axes, n);
}
static tn_tensor like(onnx_call *c, int i, tn_tensor x) { return tn_cast(onnx_t(c, i), tn_tensor_dtype(x)); }

/* ---- norms ---- */

static void batch_training(onnx_call *c, tn_tensor x, double eps, double momentum) {
    int rank = onnx_rank(c, 0), n = 0;
    int64_t axes[TN_MAX_RANK];
    for (int i = 0; i < rank; i++)
        if (i != 1) axes[n++] = i;
    tn_tensor mean = mean_of(x, axes, n), var = var_of(x, mean, axes, n);
    tn_tensor y = tn_mul(normalise(x, mean, var, eps), per_channel(c, like(c, 1, x), rank));
    onnx_put(c, 0, tn_cast(tn_add(y, per_channel(c, like(c, 2, x), rank)), held(c, 0)), ELEM_NONE);
    tn_tensor now[] = { mean, var };
    for (int k = 0; k < 2; k++) {
        if (!onnx_wants(c, k + 1)) continue;
        tn_tensor old = onnx_accurate(onnx_t(c, 3 + k)),
                  fresh = tn_cast(tn_reshape(now[k], onnx_shape(c, 3 + k)), tn_tensor_dtype(old));
        tn_tensor mix = tn_add(tn_mul_scalar(old, momentum), tn_mul_scalar(fresh, 1 - momentum));
        onnx_put(c, k + 1, tn_cast(mix, held(c, 3 + k)), ELEM_NONE);
    }
}
void onnx_op_batch_normalization(onnx_call *c) {
    double eps = onnx_attr_float(c, "epsilon", (double)1e-5f), momentum = onnx_attr_float(c, "momentum", (double)0.9f);
    int rank = onnx_rank(c, 0);
    (void)onnx_attr_find(c, "consumed_inputs");
    if (!onnx_attr_int(c, "spatial", 1)) onnx_refuse(c, "statistics of single elements (spatial = 0)");
    bool training = c->opset < 7 ? !onnx_attr_int(c, "is_test", 0) : onnx_attr_int(c, "training_mode", 0);
    if (c->opset < 14 && (training || onnx_wants(c, 1))) onnx_refuse(c, "training before operator set 14");
    tn_tensor x = onnx_accurate(onnx_t(c, 0));
    if (training) {
        batch_training(c, x, eps, momentum);
        return;
    }
    tn_tensor scale = tn_mul(like(c, 1, x), tn_rsqrt(tn_add_scalar(like(c, 4, x), eps)));
    tn_tensor shift = tn_sub(like(c, 2, x), tn_mul(like(c, 3, x), scale));
    tn_tensor y = tn_add(tn_mul(x, per_channel(c, scale, rank)), per_channel(c, shift, rank));
    onnx_put(c, 0, tn_cast(y, held(c, 0)), ELEM_NONE);
}

void onnx_op_instance_normalization(onnx_call *c) {
    int rank = onnx_rank(c, 0);
    int64_t axes[TN_MAX_RANK];
    double eps = onnx_attr_float(c, "epsilon", (double)1e-5f);
    for (int i = 2; i < rank; i++) axes[i - 2] = i;
    if (rank < 3) onnx_refuse(c, "rank %d", rank);
    tn_tensor x = onnx_accurate(onnx_t(c, 0)), mean = mean_of(x, axes, rank - 2);
    tn_tensor y = tn_mul(normalise(x, mean, var_of(x, mean, axes, rank - 2), eps), per_channel(c, like(c, 1, x), rank));
    onnx_put(c, 0, tn_cast(tn_add(y, per_channel(c, like(c, 2, x), rank)), held(c, 0)), ELEM_NONE);
}

void onnx_op_group_normalization(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0), part = { .rank = 3 };
    int64_t groups = onnx_attr_need_int(c, "num_groups");
    double eps = onnx_attr_float(c, "epsilon", (double)1e-5f);
    (void)onnx_attr_int(c, "stash_type", 1);
    if (s.rank < 3 || groups < 1 || onnx_is_dim(s.dim[1]) || s.dim[1] % groups)
        onnx_refuse(c, "%lld groups", (long long)groups);
    part.dim[0] = s.dim[0], part.dim[1] = groups;
    part.dim[2] = onnx_dim(c, '*', s.dim[1] / groups, onnx_dim_product(c, s.dim + 2, s.rank - 2));
    tn_tensor x = tn_reshape(onnx_accurate(onnx_t(c, 0)), part), mean = mean_of(x, TN_INTS(2));
    tn_tensor y = normalise(x, mean, var_of(x, mean, TN_INTS(2)), eps), scale = like(c, 1, x), shift = like(c, 2, x);
    bool by_group = c->opset < 21;
    if (!by_group) y = tn_reshape(y, s);
    int rank = by_group ? 3 : s.rank;
    y = tn_add(tn_mul(y, per_channel(c, scale, rank)), per_channel(c, shift, rank));
    onnx_put(c, 0, tn_cast(tn_reshape(y, s), held(c, 0)), ELEM_NONE);
}

/* Over the axes from `axis` on. */
static int last_axes(onnx_call *c, int64_t *axes) {
    int rank = onnx_rank(c, 0), axis = onnx_axis(c, onnx_attr_int(c, "axis", -1), rank);
    for (int i = axis; i < rank; i++) axes[i - axis] = i;
    return rank - axis;
}
void onnx_op_layer_normalization(onnx_call *c) {
    int64_t axes[TN_MAX_RANK];
    int n = last_axes(c, axes);
    double eps = onnx_attr_float(c, "epsilon", (double)1e-5f);
    if (onnx_attr_int(c, "stash_type", 1) != 1) onnx_refuse(c, "attribute stash_type");
    tn_tensor x = onnx_accurate(onnx_t(c, 0)), mean = mean_of(x, axes, n);
    tn_tensor inverse = tn_rsqrt(tn_add_scalar(var_of(x, mean, axes, n), eps));
    tn_tensor y = tn_cast(tn_mul(tn_sub(x, mean), inverse), held(c, 0));
    y = tn_mul(y, onnx_t(c, 1));
    onnx_put(c, 0, onnx_has(c, 2) ? tn_add(y, onnx_t(c, 2)) : y, ELEM_NONE);
    onnx_put(c, 1, mean, ELEM_NONE);
    onnx_put(c, 2, inverse, ELEM_NONE);
}
void onnx_op_rms_normalization(onnx_call *c) {
    int64_t axes[TN_MAX_RANK];
    int n = last_axes(c, axes);
    double eps = onnx_attr_float(c, "epsilon", (double)1e-5f);
    if (onnx_attr_int(c, "stash_type", 1) != 1) onnx_refuse(c, "attribute stash_type");
    tn_tensor x = onnx_accurate(onnx_t(c, 0));
    x = tn_mul(x, tn_rsqrt(tn_add_scalar(mean_of(tn_mul(x, x), axes, n), eps)));
    onnx_put(c, 0, tn_mul(tn_cast(x, held(c, 0)), onnx_t(c, 1)), ELEM_NONE);
}

void onnx_op_mean_variance_normalization(onnx_call *c) {
    int n;
    const int64_t *axes = onnx_attr_ints(c, "axes", &n), standard[] = { 0, 2, 3 };
    if (!axes) axes = standard, n = 3;
    for (int i = 0; i < n; i++) (void)onnx_axis(c, axes[i], onnx_rank(c, 0));
    tn_tensor x = onnx_accurate(onnx_t(c, 0)), mean = mean_of(x, axes, n);
    tn_tensor deviation = tn_add_scalar(tn_sqrt(var_of(x, mean, axes, n)), 1e-9);
    onnx_put(c, 0, tn_cast(tn_div(tn_sub(x, mean), deviation), held(c, 0)), ELEM_NONE);
}

/* base^beta of positive numbers; of the default, 0.75, by roots: a power takes as long as a dozen of them. */
static tn_tensor lrn_power(tn_tensor base, double beta, bool positive) {
    if (beta != 0.75 || !positive) return tn_pow(base, onnx_scalar(base, beta));
    tn_tensor root = tn_sqrt(base);
    return tn_mul(root, tn_sqrt(root));
}

/* x / (bias + alpha/size * sum of squares of `size` neighbouring channels)^beta */
void onnx_op_lrn(onnx_call *c) {
    int64_t size = onnx_attr_need_int(c, "size"), before[TN_MAX_RANK] = { 0 }, after[TN_MAX_RANK] = { 0 }, one = 1, axis = 1;
    double alpha = onnx_attr_float(c, "alpha", (double)1e-4f), beta = onnx_attr_float(c, "beta", 0.75),
           bias = onnx_attr_float(c, "bias", 1);
    int rank = onnx_rank(c, 0);
    if (rank < 2 || size < 1 || size > 1 << 20) onnx_refuse(c, "size %lld", (long long)size);
    tn_tensor x = onnx_accurate(onnx_t(c, 0));
    before[1] = (size - 1) / 2, after[1] = size - 1 - before[1];
    tn_tensor sums =
        tn_sum(tn_window(tn_pad(tn_mul(x, x), before, after, rank, 0), &axis, &size, &one, &one, 1), TN_INTS(rank), 0);
    tn_tensor base = tn_add_scalar(tn_mul_scalar(sums, alpha / (double)size), bias);
    onnx_put(c, 0, tn_cast(tn_div(x, lrn_power(base, beta, alpha >= 0 && bias > 0)), held(c, 0)), ELEM_NONE);
}

/* ---- losses ---- */

tn_tensor onnx_take_along(onnx_call *c, tn_tensor x, tn_tensor index, int axis);

/* log_p [N,C,d..], operand 1: classes [N,d..], operand 2: weights [C] */
static tn_tensor nll(onnx_call *c, tn_tensor log_p) {
    tn_shape s = tn_tensor_shape(log_p), t = onnx_shape(c, 1), column = s;
    bool ignores = onnx_attr_find(c, "ignore_index"), mean = onnx_attr_is(c, "reduction", "mean", "mean"),
         none = onnx_attr_is(c, "reduction", "mean", "none");
    int64_t ignored = onnx_attr_int(c, "ignore_index", 0);
    if (!mean && !none && !onnx_attr_is(c, "reduction", "mean", "sum")) onnx_refuse(c, "attribute reduction");
    if (s.rank < 2 || t.rank != s.rank - 1) onnx_refuse(c, "classes of rank %d for scores of rank %d", t.rank, s.rank);
    column.dim[1] = 1;
    tn_tensor classes = tn_cast(onnx_t(c, 1), TN_I64), zero = onnx_scalar(log_p, 0);
    tn_tensor picked = tn_reshape(onnx_take_along(c, log_p, tn_reshape(classes, column), 1), t);
    tn_tensor weight = tn_full(c->g, tn_tensor_dtype(log_p), t, 1);
    if (onnx_has(c, 2)) weight = tn_gather(like(c, 2, log_p), classes, 0);
    if (ignores) weight = tn_select(tn_eq(classes, onnx_scalar(classes, (double)ignored)), zero, weight);
    tn_tensor loss = tn_mul(tn_neg(picked), weight);
    if (ignores) loss = tn_select(tn_eq(classes, onnx_scalar(classes, (double)ignored)), zero, loss);
    if (none) return loss;
    tn_tensor sum = tn_sum(loss, TN_ALL_AXES, 0);
    return mean ? tn_div(sum, tn_sum(weight, TN_ALL_AXES, 0)) : sum;
}
void onnx_op_nll_loss(onnx_call *c) { onnx_put(c, 0, tn_cast(nll(c, onnx_accurate(onnx_t(c, 0))), held(c, 0)), ELEM_NONE); }
void onnx_op_softmax_cross_entropy_loss(onnx_call *c) {
    tn_tensor log_p = tn_nn_log_softmax(onnx_accurate(onnx_t(c, 0)), 1);
    onnx_put(c, 0, tn_cast(nll(c, log_p), held(c, 0)), ELEM_NONE);
    onnx_put(c, 1, tn_cast(log_p, held(c, 0)), ELEM_NONE);
}
