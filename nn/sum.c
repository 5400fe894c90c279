/* sum.c - sums whose rounding is chosen. In: a tensor of floats (others are summed as they are). Out: compositions of slices
 * and elementwise ops: each step reads 8 parts of what is left side by side and leaves an eighth of it.
 *
 * Pairwise sums have an error that grows with log2(n), not n: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
 * section 4.2. Compensated: the rounding error of each addition, which TwoSum (Knuth, TAOCP vol. 2, section 4.2.2) gives
 * exactly, is summed beside it, as in Neumaier's variant of Kahan's sum (ZAMM 54, 1974). */
#include "nn.h"

enum { PARTS = 8 }; /* arrays read side by side: no more than a first-level cache has places for lines a page apart */

typedef struct sums { /* error.id 0: none yet */
    tn_tensor sum, error;
} sums;

/* Part i of PARTS of an axis of size n, each of size m: zeros behind the end. */
static tn_tensor part_of(tn_tensor x, int axis, int64_t n, int64_t m, int64_t i) {
    tn_shape s = tn_tensor_shape(x);
    int64_t from[TN_MAX_RANK] = { 0 }, none[TN_MAX_RANK] = { 0 }, behind[TN_MAX_RANK] = { 0 }, stop = i * m + m;
    if (s.rank < 0) return x;
    from[axis] = i * m;
    s.dim[axis] = stop < n ? stop : n;
    tn_tensor y = tn_slice(x, from, s.dim, NULL, s.rank);
    behind[axis] = stop - (stop < n ? stop : n);
    return behind[axis] ? tn_pad(y, none, behind, s.rank, 0) : y;
}

/* ((0 + 1) + (2 + 3)) + .. */
static tn_tensor add_pairwise(const tn_tensor *x, int n) {
    return n == 1 ? x[0] : tn_add(add_pairwise(x, (n + 1) / 2), add_pairwise(x + (n + 1) / 2, n / 2));
}

static tn_tensor add_or(tn_tensor x, tn_tensor y) { return !x.id ? y : !y.id ? x : tn_add(x, y); }

/* a + b, and what rounding took from it. */
static sums two_sum(tn_tensor a, tn_tensor b) {
    tn_tensor s = tn_add(a, b), t = tn_sub(s, a);
    return (sums){ s, tn_add(tn_sub(a, tn_sub(s, t)), tn_sub(b, t)) };
}

static sums add_exactly(const sums *x, int n) {
    sums all = x[0];
    for (int i = 1; i < n; i++) {
        sums next = two_sum(all.sum, x[i].sum);
        all = (sums){ next.sum, add_or(add_or(all.error, x[i].error), next.error) };
    }
    return all;
}

/* The axis gets size 1. */
static sums shorten(sums x, int axis, bool exactly) {
    for (int64_t n = tn_tensor_shape(x.sum).dim[axis]; n > 1 && tn_tensor_shape(x.sum).rank >= 0;) {
        int64_t m = (n + PARTS - 1) / PARTS;
        tn_tensor plain[PARTS];
        sums parts[PARTS];
        int k = 0;
        for (; k < PARTS && k * m < n; k++) {
            plain[k] = part_of(x.sum, axis, n, m, k);
            parts[k] = (sums){ plain[k], x.error.id ? part_of(x.error, axis, n, m, k) : x.error };
        }
        x = exactly ? add_exactly(parts, k) : (sums){ add_pairwise(plain, k), x.error };
        n = m;
    }
    return x;
}

tn_tensor tn_nn_sum(tn_tensor x, const int64_t *axes, int n_axes, int keep, tn_nn_sum_policy policy) {
    tn_shape s = tn_tensor_shape(x);
    tn_tensor plain = tn_sum(x, axes, n_axes, keep); /* whose checks and shape are those of all */
    tn_dtype t = tn_tensor_dtype(x), wide = t == TN_F16 || t == TN_BF16 ? TN_F32 : t;
    bool is_float = wide == TN_F32 || wide == TN_F64;
    if (policy < TN_NN_SUM_PLAIN || policy > TN_NN_SUM_COMPENSATED)
        return nn_fail(x.graph, TN_ERR_INVAL, "tn_nn_sum: policy %d", (int)policy);
    if (!plain.id || !is_float || policy == TN_NN_SUM_PLAIN) return plain;
    for (int i = 0; i < s.rank; i++)
        if (s.dim[i] <= 0) return plain; /* nothing to add, or as much as only a run knows */
    if (policy == TN_NN_SUM_F64) return tn_cast(tn_sum(tn_cast(x, TN_F64), axes, n_axes, keep), t);
    sums all = { tn_cast(x, wide), { x.graph, 0 } };
    for (int i = (n_axes < 0 ? s.rank : n_axes) - 1; i >= 0; i--) {
        int64_t a = n_axes < 0 ? i : axes[i] < 0 ? axes[i] + s.rank : axes[i];
        all = shorten(all, (int)a, policy == TN_NN_SUM_COMPENSATED);
    }
    if (all.error.id) /* the error of infinity is NaN */
        all.sum = tn_select(tn_eq(all.error, all.error), tn_add(all.sum, all.error), all.sum);
    return tn_reshape(tn_cast(all.sum, t), tn_tensor_shape(plain));
}
