/* dropout.c - dropout and its variants. In: activations, a counter of runs, a name that tells the masks of layers apart. Out:
 * selections by masks, which depend on (counter, scope and name, element). */
#include "nn.h"

#include <math.h>

/* Checks what all of them take; false and an error when it is wrong. */
static bool checked(tn_tensor x, double p, const char *name, const char *fn, int min_rank, tn_shape *s) {
    if (!nn_check(x, fn, min_rank, s)) return false;
    bool ok = p >= 0 && p < 1 && name && *name;
    if (!(p >= 0 && p < 1))
        nn_fail(x.graph, TN_ERR_INVAL, "%s: expected p in [0, 1), got %g", fn, p);
    else if (!ok)
        nn_fail(x.graph, TN_ERR_INVAL, "%s: expected a name, which tells the masks of layers apart", fn);
    return ok;
}

/* x / (1 - p) where a mask of this shape, which broadcasts, has kept it. */
static tn_tensor drop(tn_tensor x, double p, tn_tensor counter, const char *name, tn_shape mask) {
    tn_tensor kept = tn_random_bernoulli(counter, nn_stream(x.graph, name), mask, 1 - p);
    return tn_select(kept, tn_mul_scalar(x, 1 / (1 - p)), nn_scalar(x, 0));
}

tn_tensor tn_nn_dropout(tn_tensor x, double p, tn_tensor counter, const char *name) {
    tn_shape s;
    if (!checked(x, p, name, "tn_nn_dropout", 0, &s)) return (tn_tensor){ x.graph, 0 };
    return drop(x, p, counter, name, s);
}

tn_tensor tn_nn_spatial_dropout(tn_tensor x, double p, tn_tensor counter, const char *name) {
    tn_shape s;
    if (!checked(x, p, name, "tn_nn_spatial_dropout", 2, &s)) return (tn_tensor){ x.graph, 0 };
    for (int i = 1; i < s.rank - 1; i++) s.dim[i] = 1;
    return drop(x, p, counter, name, s);
}

tn_tensor tn_nn_drop_path(tn_tensor x, double p, tn_tensor counter, const char *name) {
    tn_shape s;
    if (!checked(x, p, name, "tn_nn_drop_path", 1, &s)) return (tn_tensor){ x.graph, 0 };
    for (int i = 1; i < s.rank; i++) s.dim[i] = 1;
    return drop(x, p, counter, name, s);
}

/* What is dropped becomes the value that selu saturates at, then all is scaled and shifted to mean 0 and variance 1. */
tn_tensor tn_nn_alpha_dropout(tn_tensor x, double p, tn_tensor counter, const char *name) {
    tn_shape s;
    if (!checked(x, p, name, "tn_nn_alpha_dropout", 0, &s)) return (tn_tensor){ x.graph, 0 };
    double low = -1.0507009873554805 * 1.6732632423543772, a = 1 / sqrt((1 - p) * (1 + p * low * low)), b = -a * p * low;
    tn_tensor kept = tn_random_bernoulli(counter, nn_stream(x.graph, name), s, 1 - p);
    return tn_add_scalar(tn_mul_scalar(tn_select(kept, x, nn_scalar(x, low)), a), b);
}

/* The masks of all subnetworks are one table, a row of which is chosen for each sample. */
tn_tensor tn_nn_gyro_dropout(tn_tensor x, double p, int64_t subnets, int64_t together, int64_t runs, tn_tensor counter,
                             const char *name) {
    tn_shape s;
    if (!checked(x, p, name, "tn_nn_gyro_dropout", 1, &s)) return (tn_tensor){ x.graph, 0 };
    if (subnets < 1 || together < 1 || together > subnets || runs < 1)
        return nn_fail(x.graph, TN_ERR_INVAL, "tn_nn_gyro_dropout: %lld of %lld subnetworks at once, for %lld runs",
                       (long long)together, (long long)subnets, (long long)runs);
    tn_shape table = s;
    table.dim[0] = subnets;
    tn_tensor zero = tn_full(x.graph, TN_I64, TN_SCALAR, 0), sample = tn_iota(x.graph, TN_I64, TN_DIMS(s.dim[0]), 0);
    tn_tensor turn = tn_mul_scalar(tn_div_scalar(counter, (double)runs), (double)together);
    tn_tensor n = tn_full(x.graph, TN_I64, TN_SCALAR, (double)subnets);
    tn_tensor row = tn_mod(tn_add(turn, tn_mod(sample, tn_full(x.graph, TN_I64, TN_SCALAR, (double)together))), n);
    tn_tensor masks = tn_random_bernoulli(zero, nn_stream(x.graph, name), table, 1 - p);
    return tn_select(tn_gather(masks, row, 0), tn_mul_scalar(x, 1 / (1 - p)), nn_scalar(x, 0));
}
