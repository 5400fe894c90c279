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
