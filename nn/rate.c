/* rate.c - learning rates as functions of a counter of runs. In: i64[]. Out: f64[], for the .rate of optimisers. */
#include "nn.h"

#include <math.h>

static bool check(tn_tensor step, const char *fn, bool fits) {
    if (!nn_given(step.graph, step, fn)) return false;
    if (tn_tensor_shape(step).rank == 0 && tn_tensor_dtype(step) == TN_I64 && fits) return true;
    nn_fail(
        step.graph, TN_ERR_INVAL,
        "%s: expected a counter i64[] (see tn_nn_counter), a finite rate of 0 or more, and runs above 0 (warm-up: 0 or more, "
        "fewer than all)",
        fn);
    return false;
}
static tn_tensor value(tn_tensor like, double v) { return tn_full(like.graph, TN_F64, TN_SCALAR, v); }
/* (x - from) / (to - from), cut to [0, 1] */
static tn_tensor part(tn_tensor x, double from, double to) {
    tn_tensor y = tn_mul_scalar(tn_add_scalar(x, -from), to > from ? 1 / (to - from) : 0);
    y = tn_min(y, value(x, 1));
    return tn_max(y, value(x, 0));
}
/* From a to b along half a cosine, where x goes from 0 to 1. */
static tn_tensor along_cosine(tn_tensor x, double a, double b) {
    tn_tensor c = tn_cos(tn_mul_scalar(x, 3.14159265358979323846));
    return tn_add_scalar(tn_mul_scalar(c, (a - b) / 2), (a + b) / 2);
}

tn_tensor tn_nn_rate_warmup(tn_tensor rate, tn_tensor step, int64_t warmup) {
    if (!check(step, "tn_nn_rate_warmup", warmup >= 0) || !nn_given(step.graph, rate, "tn_nn_rate_warmup"))
        return (tn_tensor){ step.graph, 0 };
    if (!warmup) return tn_cast(rate, TN_F64);
    tn_tensor n = tn_cast(tn_add_scalar(step, 1), TN_F64);
    return tn_mul(tn_cast(rate, TN_F64), part(n, 0, (double)warmup));
}

tn_tensor tn_nn_rate_cosine(tn_tensor step, double lr, double least, int64_t warmup, int64_t runs) {
    bool fits = lr >= 0 && least >= 0 && isfinite(lr + least) && warmup >= 0 && warmup < runs;
    if (!check(step, "tn_nn_rate_cosine", fits)) return (tn_tensor){ step.graph, 0 };
    tn_tensor down = along_cosine(part(tn_cast(step, TN_F64), (double)warmup, (double)runs), lr, least);
    if (!warmup) return down;
    tn_tensor up = tn_mul_scalar(tn_cast(tn_add_scalar(step, 1), TN_F64), lr / (double)warmup);
    return tn_select(tn_lt(step, tn_full(step.graph, TN_I64, TN_SCALAR, (double)warmup)), up, down);
}

tn_tensor tn_nn_rate_steps(tn_tensor step, double lr, double factor, int64_t every) {
    if (!check(step, "tn_nn_rate_steps", lr >= 0 && factor >= 0 && isfinite(lr + factor) && every > 0))
        return (tn_tensor){ step.graph, 0 };
    tn_tensor done = tn_cast(tn_div(step, tn_full(step.graph, TN_I64, TN_SCALAR, (double)every)), TN_F64);
    return tn_mul_scalar(tn_pow(value(step, factor), done), lr);
}

tn_tensor tn_nn_rate_one_cycle(tn_tensor step, double lr, int64_t runs) {
    if (!check(step, "tn_nn_rate_one_cycle", lr >= 0 && isfinite(lr) && runs > 1)) return (tn_tensor){ step.graph, 0 };
    double top = 0.3 * (double)runs - 1, last = (double)runs - 1;
    tn_tensor x = tn_cast(step, TN_F64);
    tn_tensor up = along_cosine(part(x, 0, top), lr / 25, lr), down = along_cosine(part(x, top, last), lr, lr / 25 / 1e4);
    return tn_select(tn_le(x, value(step, top)), up, down);
}
