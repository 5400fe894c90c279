/* loss.c - losses. In: predictions and targets. Out: scalars f[], means over rows or elements, stable for large logits. */
#include "nn.h"

static tn_tensor mean(tn_tensor x) { return tn_mean(x, TN_ALL_AXES, 0); }
static const int64_t last_axis = -1;

/* x[.., label] as a sum over a comparison with 0, 1, 2, ...: unlike a gather it fuses into the reduction that reads x. */
static tn_tensor picked(tn_tensor x, tn_tensor labels, const char *fn) {
    tn_shape s, l = tn_tensor_shape(labels);
    tn_tensor poison = { x.graph, 0 };
    if (!nn_given(x.graph, labels, fn) || !nn_check(x, fn, 1, &s)) return poison;
    tn_dtype t = tn_tensor_dtype(labels);
    if (t != TN_I32 && t != TN_I64)
        return nn_fail(x.graph, TN_ERR_DTYPE, "%s: expected labels of i32 or i64, got %s", fn, tn_dtype_name(t));
    bool same = l.rank == s.rank - 1;
    for (int i = 0; same && i < l.rank; i++) same = l.dim[i] == s.dim[i];
    if (!same)
        return nn_fail(x.graph, TN_ERR_SHAPE, "%s: expected labels of the shape of the logits without their last axis", fn);
    l.dim[l.rank++] = 1;
    tn_tensor hit = tn_eq(tn_iota(x.graph, t, s, s.rank - 1), tn_reshape(labels, l));
    return tn_sum(tn_select(hit, x, nn_scalar(x, 0)), &last_axis, 1, 0);
}

/* The maximum is subtracted before the label's logit is picked: large logits then cancel exactly. */
tn_tensor tn_nn_cross_entropy(tn_tensor logits, tn_tensor labels) {
    tn_shape s;
    if (!nn_check(logits, "tn_nn_cross_entropy", 1, &s)) return (tn_tensor){ logits.graph, 0 };
    tn_tensor d = tn_sub(logits, tn_stop_gradient(tn_reduce_max(logits, &last_axis, 1, 1)));
    tn_tensor own = picked(d, labels, "tn_nn_cross_entropy");
    return mean(tn_sub(tn_cast(tn_log(nn_row_sum(tn_exp(d), last_axis, 0)), tn_tensor_dtype(d)), own));
}

/* Which rows count as how much: weights of their classes, 0 where the label is the one to leave out. */
static tn_tensor row_weights(tn_tensor logits, tn_tensor labels, const tn_nn_cross_entropy_opts *o) {
    tn_shape s = tn_tensor_shape(labels);
    tn_tensor w = o->weights.graph ? picked(tn_expand(o->weights, tn_tensor_shape(logits)), labels, "tn_nn_cross_entropy_with")
                                   : tn_full(logits.graph, tn_tensor_dtype(logits), s, 1);
    if (!o->ignores) return w;
    return tn_select(tn_eq(labels, tn_full(labels.graph, tn_tensor_dtype(labels), TN_SCALAR, (double)o->ignored)),
                     nn_scalar(w, 0), w);
}
/* Smoothed: of each class, smoothing / C of its own loss, weighted as that class is. */
tn_tensor tn_nn_cross_entropy_with(tn_tensor logits, tn_tensor labels, tn_nn_cross_entropy_opts o) {
    tn_shape s;
    if (!nn_check(logits, "tn_nn_cross_entropy_with", 1, &s)) return (tn_tensor){ logits.graph, 0 };
    if (!(o.smoothing >= 0 && o.smoothing <= 1))
        return nn_fail(logits.graph, TN_ERR_INVAL, "tn_nn_cross_entropy_with: expected a smoothing in [0, 1], got %g",
                       o.smoothing);
    tn_tensor log_p = tn_nn_log_softmax(logits, -1), own = picked(log_p, labels, "tn_nn_cross_entropy_with");
    if (!own.id) return own;
    tn_tensor w = row_weights(logits, labels, &o), loss = tn_mul_scalar(tn_mul(w, own), o.smoothing - 1);
    if (o.smoothing > 0) {
        tn_tensor all = tn_sum(o.weights.graph ? tn_mul(log_p, o.weights) : log_p, &last_axis, 1, 0);
        if (o.ignores)
            all = tn_select(tn_ne(labels, tn_full(labels.graph, tn_tensor_dtype(labels), TN_SCALAR, (double)o.ignored)), all,
                            nn_scalar(all, 0));
        int64_t classes = s.dim[s.rank - 1];
        if (classes < 0) all = tn_div(all, nn_size_like(all, classes)); /* a run gives it */
        loss = tn_sub(loss, tn_mul_scalar(all, o.smoothing / (classes > 0 ? (double)classes : 1)));
    }
    tn_tensor total = tn_sum(w, TN_ALL_AXES, 0), none = tn_eq(total, nn_scalar(total, 0));
    return tn_div(tn_sum(loss, TN_ALL_AXES, 0), tn_select(none, nn_scalar(total, 1), total));
}

tn_tensor tn_nn_nll(tn_tensor log_p, tn_tensor labels) { return mean(tn_neg(picked(log_p, labels, "tn_nn_nll"))); }

tn_tensor tn_nn_mse(tn_tensor x, tn_tensor target) {
    tn_tensor d = tn_sub(x, target);
    return mean(tn_mul(d, d));
}

tn_tensor tn_nn_l1(tn_tensor x, tn_tensor target) { return mean(tn_abs(tn_sub(x, target))); }

tn_tensor tn_nn_huber(tn_tensor x, tn_tensor target, double delta) {
    tn_tensor d = tn_sub(x, target), a = tn_abs(d);
    if (!d.id) return d;
    tn_tensor far = tn_mul_scalar(tn_add_scalar(a, -0.5 * delta), delta);
    return mean(tn_select(tn_le(a, nn_scalar(a, delta)), tn_mul_scalar(tn_mul(d, d), 0.5), far));
}

/* log sees 1 where p = 0, so that neither the value nor the gradient meets 0 * inf. */
tn_tensor tn_nn_kl_div(tn_tensor log_q, tn_tensor p) {
    tn_shape s;
    if (!nn_check(log_q, "tn_nn_kl_div", 1, &s) || !nn_check(p, "tn_nn_kl_div", 1, &s)) return (tn_tensor){ log_q.graph, 0 };
    tn_tensor some = tn_lt(nn_scalar(p, 0), p);
    tn_tensor log_p = tn_log(tn_select(some, p, nn_scalar(p, 1)));
    tn_tensor term = tn_select(some, tn_mul(p, tn_sub(log_p, log_q)), nn_scalar(p, 0));
    return mean(tn_sum(term, &last_axis, 1, 0));
}

/* Each softplus is accurate where its weight is not 0, so the loss of a sure and right answer is not rounded away. */
tn_tensor tn_nn_bce_with_logits(tn_tensor x, tn_tensor t) {
    tn_tensor not_t = tn_sub(nn_scalar(t, 1), t);
    return mean(tn_add(tn_mul(t, tn_softplus(tn_neg(x))), tn_mul(not_t, tn_softplus(x))));
}

tn_tensor tn_nn_smooth_l1(tn_tensor x, tn_tensor target, double beta) {
    return beta > 0 ? tn_mul_scalar(tn_nn_huber(x, target, beta), 1 / beta) : tn_nn_l1(x, target);
}

/* -log p, where p = 0 counts 100: log sees 1 there, so that no gradient is 0 / 0. */
static tn_tensor bounded_log(tn_tensor p) {
    tn_tensor none = tn_le(p, nn_scalar(p, 0)), y = tn_log(tn_select(none, nn_scalar(p, 1), p));
    return tn_select(none, nn_scalar(p, -100), tn_max_scalar(y, -100));
}
tn_tensor tn_nn_bce(tn_tensor p, tn_tensor t) {
    tn_shape s;
    if (!nn_check(p, "tn_nn_bce", 0, &s) || !nn_check(t, "tn_nn_bce", 0, &s)) return (tn_tensor){ p.graph, 0 };
    tn_tensor not_p = tn_sub(nn_scalar(p, 1), p), not_t = tn_sub(nn_scalar(t, 1), t);
    return mean(tn_neg(tn_add(tn_mul(t, bounded_log(p)), tn_mul(not_t, bounded_log(not_p)))));
}

/* 1 - p_t as a sum of two sigmoids, neither of which rounds to 0 where it matters. */
tn_tensor tn_nn_focal(tn_tensor x, tn_tensor t, double alpha, double gamma) {
    tn_shape s;
    if (!nn_check(x, "tn_nn_focal", 0, &s) || !nn_check(t, "tn_nn_focal", 0, &s)) return (tn_tensor){ x.graph, 0 };
    if (!(gamma == 0 || gamma >= 1) || !(alpha <= 1))
        return nn_fail(x.graph, TN_ERR_INVAL, "tn_nn_focal: expected gamma 0 or at least 1 and alpha at most 1, got %g and %g",
                       gamma, alpha);
    tn_tensor not_t = tn_sub(nn_scalar(t, 1), t), minus = tn_neg(x);
    tn_tensor loss = tn_add(tn_mul(t, tn_softplus(minus)), tn_mul(not_t, tn_softplus(x)));
    if (gamma > 0) {
        tn_tensor wrong = tn_add(tn_mul(t, tn_sigmoid(minus)), tn_mul(not_t, tn_sigmoid(x)));
        loss = tn_mul(loss, tn_pow_scalar(wrong, gamma));
    }
    if (alpha >= 0) loss = tn_mul(loss, tn_add(tn_mul_scalar(t, alpha), tn_mul_scalar(not_t, 1 - alpha)));
    return mean(loss);
}

tn_tensor tn_nn_cosine_similarity(tn_tensor x, tn_tensor y, int axis) {
    int a = 0;
    tn_shape s;
    if (!nn_check(x, "tn_nn_cosine_similarity", 1, &s) || !nn_axis(x, "tn_nn_cosine_similarity", axis, &a))
        return (tn_tensor){ x.graph, 0 };
    int64_t at = a;
    tn_tensor length = tn_mul(tn_max_scalar(tn_nn_norm(x, &at, 1, 0), 1e-8), tn_max_scalar(tn_nn_norm(y, &at, 1, 0), 1e-8));
    return tn_div(tn_sum(tn_mul(x, y), &at, 1, 0), length);
}
tn_tensor tn_nn_cosine_embedding(tn_tensor x, tn_tensor y, tn_tensor same, double margin) {
    tn_tensor c = tn_nn_cosine_similarity(x, y, -1), zero = nn_scalar(same, 0);
    if (!c.id || !zero.id) return c;
    tn_tensor apart = tn_relu(tn_add_scalar(c, -margin));
    return mean(tn_select(tn_lt(zero, same), tn_sub(nn_scalar(c, 1), c), apart));
}

/* The distance of PyTorch: 1e-6 is added to each difference, so that equal points have a gradient. */
static tn_tensor distance(tn_tensor x, tn_tensor y) { return tn_nn_norm(tn_add_scalar(tn_sub(x, y), 1e-6), &last_axis, 1, 0); }
tn_tensor tn_nn_triplet(tn_tensor anchor, tn_tensor near, tn_tensor far, double margin) {
    tn_shape s;
    if (!nn_check(anchor, "tn_nn_triplet", 1, &s)) return (tn_tensor){ anchor.graph, 0 };
    return mean(tn_relu(tn_add_scalar(tn_sub(distance(anchor, near), distance(anchor, far)), margin)));
}

tn_tensor tn_nn_dice(tn_tensor p, tn_tensor t, double smooth) {
    tn_shape s;
    int64_t axes[TN_MAX_RANK];
    if (!nn_check(p, "tn_nn_dice", 1, &s)) return (tn_tensor){ p.graph, 0 };
    for (int i = 1; i < s.rank; i++) axes[i - 1] = i;
    tn_tensor both = tn_sum(tn_mul(p, t), axes, s.rank - 1, 0);
    tn_tensor each = tn_add(tn_sum(p, axes, s.rank - 1, 0), tn_sum(t, axes, s.rank - 1, 0));
    tn_tensor score = tn_div(tn_add_scalar(tn_mul_scalar(both, 2), smooth), tn_add_scalar(each, smooth));
    return mean(tn_sub(nn_scalar(score, 1), score));
}
