/* random.c - distributions from uniform numbers that a counter of runs gives (tn_random_uniform). In: the counter, a stream,
 * parameters. Out: samples. A draw takes consecutive streams of its own, made from the one that is given, so that two draws of
 * different streams share no numbers by plan. Rejection is bounded: so many candidates, drawn all at once, of which the first
 * that is accepted counts; what happens when none is stands with each. No gradients flow but where it is said. */
#include "nn.h"

#include <math.h>

/* A stream of its own for number `i` of a draw: mixed (splitmix64's finaliser), cut to 60 bits. */
static int64_t part(int64_t stream, int i) {
    uint64_t z = (uint64_t)stream * 0x9e3779b97f4a7c15u + (uint64_t)(i + 1) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (int64_t)((z ^ z >> 31) >> 4);
}

/* In (0, 1]: 1 - uniform. */
static tn_tensor above_zero(tn_tensor counter, int64_t stream, tn_shape s) {
    tn_tensor u = tn_random_uniform(counter, stream, s);
    return tn_sub(nn_scalar(u, 1), u);
}

tn_tensor tn_nn_random_exponential(tn_tensor counter, int64_t stream, tn_shape shape) {
    return tn_neg(tn_log(above_zero(counter, stream, shape)));
}

/* u in steps of 2^-24 is moved by half of one: neither logarithm is infinite. */
tn_tensor tn_nn_random_gumbel(tn_tensor counter, int64_t stream, tn_shape shape) {
    tn_tensor u = tn_add_scalar(tn_random_uniform(counter, stream, shape), 0x1p-25);
    return tn_neg(tn_log(tn_neg(tn_log(u))));
}

/* By the inverse of the distribution function, cut to the bounds again. */
tn_tensor tn_nn_random_truncated_normal(tn_tensor counter, int64_t stream, tn_shape shape, double lo, double hi) {
    tn_tensor u = tn_add_scalar(tn_random_uniform(counter, stream, shape), 0x1p-25);
    if (!u.id) return u;
    if (!(lo < hi)) return nn_fail(u.graph, TN_ERR_INVAL, "tn_nn_random_truncated_normal: %g and %g are no bounds", lo, hi);
    double from = erf(lo / sqrt(2)), to = erf(hi / sqrt(2));
    tn_tensor x = tn_erfinv(tn_clamp(tn_add_scalar(tn_mul_scalar(u, to - from), from), -1, 1));
    return tn_clamp(tn_mul_scalar(x, sqrt(2)), lo, hi);
}

/* x is between two neighbours of bf16, whose bits are those of f32 without the lower 16. A random number of 16 bits that is
 * added to these carries as often as x is near the upper neighbour. An infinity has no lower bits; NaN is left as it is. */
tn_tensor tn_nn_round_stochastic(tn_tensor x, tn_tensor counter, int64_t stream) {
    tn_shape s;
    const char *fn = "tn_nn_round_stochastic";
    if (!nn_check(x, fn, 0, &s)) return (tn_tensor){ x.graph, 0 };
    if (tn_tensor_dtype(x) != TN_F32)
        return nn_fail(x.graph, TN_ERR_DTYPE, "%s: expected f32, which has the bits of bf16 and 16 more, got %s", fn,
                       tn_dtype_name(tn_tensor_dtype(x)));
    tn_tensor u = tn_mul_scalar(tn_random_uniform(counter, stream, s), 0x1p16);
    tn_tensor bits = tn_add(tn_bitcast(x, TN_I32), tn_cast(u, TN_I32));
    tn_tensor y = tn_bitcast(tn_and(bits, tn_full(x.graph, TN_I32, TN_SCALAR, -0x1p16)), TN_F32);
    return tn_cast(tn_select(tn_eq(x, x), y, x), TN_BF16);
}

/* ---- choices ---- */

/* The largest of log p + Gumbel noise is a draw from p; the n largest are n draws without putting back (Gumbel-max). */
tn_tensor tn_nn_random_categorical(tn_tensor logits, int64_t n, int replace, tn_tensor counter, int64_t stream) {
    tn_shape s;
    const char *fn = "tn_nn_random_categorical";
    if (!nn_check(logits, fn, 1, &s)) return (tn_tensor){ logits.graph, 0 };
    int64_t classes = s.dim[s.rank - 1];
    if (classes < 0)
        return nn_fail(logits.graph, TN_ERR_INVAL, "%s: a run gives how many classes there are: expected a number", fn);
    if (n < 1 || classes < 1 || (!replace && n > classes) || s.rank == TN_MAX_RANK)
        return nn_fail(logits.graph, TN_ERR_INVAL, "%s: %lld draws of %lld classes, rank %d", fn, (long long)n,
                       (long long)classes, s.rank);
    tn_dtype t = tn_tensor_dtype(logits);
    tn_tensor x = tn_stop_gradient(t == TN_F16 || t == TN_BF16 ? tn_cast(logits, TN_F32) : logits), index = { logits.graph, 0 };
    if (!replace) {
        tn_tensor noise = tn_cast(tn_nn_random_gumbel(counter, stream, s), tn_tensor_dtype(x));
        tn_top_k(tn_add(x, noise), n, -1, 1, &index);
        return index;
    }
    tn_shape each = s;
    each.rank++;
    each.dim[s.rank - 1] = n, each.dim[s.rank] = classes;
    tn_tensor noise = tn_cast(tn_nn_random_gumbel(counter, stream, each), tn_tensor_dtype(x));
    return tn_argmax(tn_add(tn_unsqueeze(x, TN_INTS(-2)), noise), -1, 0);
}

/* By the order of 48-bit numbers. */
tn_tensor tn_nn_random_permutation(tn_tensor counter, int64_t stream, int64_t n) {
    tn_shape s = TN_DIMS(n);
    tn_tensor high = tn_cast(tn_mul_scalar(tn_random_uniform(counter, part(stream, 0), s), 0x1p24), TN_I64);
    tn_tensor low = tn_cast(tn_mul_scalar(tn_random_uniform(counter, part(stream, 1), s), 0x1p24), TN_I64);
    return tn_argsort(tn_add(tn_mul_scalar(high, 0x1p24), low), 0, 0);
}

/* ---- gamma and what is made of it ---- */

enum { GAMMA_TRIES = 6, POISSON_TRIES = 12, POISSON_TERMS = 48 };

/* G. Marsaglia and W. W. Tsang, A simple method for generating gamma variables, 2000: d v with v = (1 + c x)^3, where a >= 1. A
 * candidate is refused with a probability below 0.05; the last of six counts in any case (2e-8). */
static tn_tensor gamma_above_1(tn_tensor a, tn_tensor counter, int64_t stream, tn_shape s) {
    tn_tensor d = tn_add_scalar(a, -1.0 / 3), c = tn_rsqrt(tn_mul_scalar(d, 9)), v = { a.graph, 0 };
    for (int i = GAMMA_TRIES - 1; i >= 0; i--) {
        tn_tensor x = tn_random_normal(counter, part(stream, 2 * i), s);
        tn_tensor u = above_zero(counter, part(stream, 2 * i + 1), s), w = tn_add_scalar(tn_mul(c, x), 1);
        tn_tensor inside = tn_lt(nn_scalar(w, 0), w), cube = tn_mul(tn_mul(w, w), w);
        cube = tn_select(inside, cube, nn_scalar(cube, 1));
        tn_tensor bound =
            tn_add(tn_mul_scalar(tn_mul(x, x), 0.5), tn_mul(d, tn_add(tn_sub(nn_scalar(cube, 1), cube), tn_log(cube))));
        tn_tensor accepted = tn_and(inside, tn_lt(tn_log(u), bound));
        v = v.id ? tn_select(accepted, cube, v) : cube;
    }
    return tn_mul(d, v);
}

/* Parameters are f32, and no gradient flows into them. */
static bool parameter(tn_tensor *x, const char *fn) {
    tn_shape s;
    if (!nn_check(*x, fn, 0, &s)) return false;
    *x = tn_stop_gradient(tn_cast(*x, TN_F32));
    return true;
}

/* Below 1: gamma(a) = gamma(a + 1) u^(1/a). */
tn_tensor tn_nn_random_gamma(tn_tensor a, tn_tensor counter, int64_t stream) {
    if (!parameter(&a, "tn_nn_random_gamma")) return (tn_tensor){ a.graph, 0 };
    tn_shape s = tn_tensor_shape(a);
    tn_tensor small = tn_lt(a, nn_scalar(a, 1)), one = nn_scalar(a, 1);
    tn_tensor x = gamma_above_1(tn_select(small, tn_add_scalar(a, 1), a), counter, stream, s);
    tn_tensor u = above_zero(counter, part(stream, 2 * GAMMA_TRIES), s);
    tn_tensor factor = tn_exp(tn_div(tn_log(u), tn_select(small, a, one)));
    return tn_select(small, tn_mul(x, factor), x);
}

tn_tensor tn_nn_random_beta(tn_tensor a, tn_tensor b, tn_tensor counter, int64_t stream) {
    if (!parameter(&a, "tn_nn_random_beta") || !parameter(&b, "tn_nn_random_beta")) return (tn_tensor){ a.graph, 0 };
    tn_tensor both = tn_add(a, b);
    if (!both.id) return both;
    tn_shape s = tn_tensor_shape(both);
    tn_tensor x = tn_nn_random_gamma(tn_expand(a, s), counter, part(stream, 100));
    tn_tensor y = tn_nn_random_gamma(tn_expand(b, s), counter, part(stream, 101)), sum = tn_add(x, y);
    tn_tensor none = tn_eq(sum, nn_scalar(sum, 0)); /* both tiny: one of the ends */
    tn_tensor end = tn_cast(tn_lt(tn_random_uniform(counter, part(stream, 102), s), tn_div(a, both)), TN_F32);
    return tn_select(none, end, tn_div(x, tn_select(none, nn_scalar(sum, 1), sum)));
}

/* How many of the first terms of the distribution function a uniform number is above: rates to 10. */
static tn_tensor poisson_counted(tn_tensor rate, tn_tensor u) {
    tn_tensor term = tn_exp(tn_neg(rate)), sum = term, k = nn_scalar(rate, 0);
    for (int i = 1; i <= POISSON_TERMS; i++) {
        k = tn_add(k, tn_cast(tn_le(sum, u), TN_F32));
        term = tn_mul(term, tn_mul_scalar(rate, 1.0 / i));
        sum = tn_add(sum, term);
    }
    return k;
}
/* k log(rate) - rate - log(k!) by Stirling's series, k (log1p(t) - t) - log(2 pi k) / 2 - .. with t = (rate - k) / k: nothing
 * of the size of k log(k) is subtracted. */
static tn_tensor poisson_log(tn_tensor k, tn_tensor rate) {
    tn_tensor none = tn_lt(k, nn_scalar(k, 1)), n = tn_select(none, nn_scalar(k, 1), k), r = tn_div(nn_scalar(n, 1), n);
    tn_tensor t = tn_mul(tn_sub(rate, n), r), main = tn_mul(n, tn_sub(tn_log1p(t), t));
    tn_tensor rest = tn_mul(r, tn_add_scalar(tn_mul_scalar(tn_mul(r, r), -1.0 / 360), 1.0 / 12));
    tn_tensor y = tn_sub(tn_sub(main, tn_mul_scalar(tn_log(tn_mul_scalar(n, 6.283185307179586)), 0.5)), rest);
    return tn_select(none, tn_neg(rate), y);
}
/* W. Hormann, The transformed rejection method for generating Poisson random variables, 1993 (PTRS): rates from 10. Of twelve
 * candidates, each accepted with a probability above 0.7, the last counts in any case. */
static tn_tensor poisson_rejected(tn_tensor rate, tn_tensor counter, int64_t stream, tn_shape s) {
    tn_tensor b = tn_add_scalar(tn_mul_scalar(tn_sqrt(rate), 2.53), 0.931);
    tn_tensor a = tn_add_scalar(tn_mul_scalar(b, 0.02483), -0.059), far = tn_add_scalar(b, -3.4), below = tn_add_scalar(b, -2),
              k = { rate.graph, 0 };
    tn_tensor inverse = tn_add_scalar(tn_div(nn_scalar(far, 1.1328), far), 1.1239);
    tn_tensor quick = tn_sub(nn_scalar(b, 0.9277), tn_div(nn_scalar(b, 3.6224), below));
    for (int i = POISSON_TRIES - 1; i >= 0; i--) {
        tn_tensor u = tn_add_scalar(tn_random_uniform(counter, part(stream, 2 * i), s), -0.5);
        tn_tensor v = above_zero(counter, part(stream, 2 * i + 1), s), us = tn_sub(nn_scalar(u, 0.5), tn_abs(u));
        us = tn_max_scalar(us, 0x1p-25);
        tn_tensor wide = tn_add(tn_div(tn_mul_scalar(a, 2), us), b);
        tn_tensor x = tn_floor(tn_add_scalar(tn_add(tn_mul(wide, u), rate), 0.43)), there = tn_le(nn_scalar(x, 0), x);
        tn_tensor safe = tn_select(there, x, nn_scalar(x, 0));
        tn_tensor at_once = tn_and(tn_le(nn_scalar(us, 0.07), us), tn_le(v, quick));
        tn_tensor hard = tn_or(tn_and(tn_lt(us, nn_scalar(us, 0.013)), tn_lt(us, v)), tn_not(there));
        tn_tensor left = tn_log(tn_div(tn_mul(v, inverse), tn_add(tn_div(a, tn_mul(us, us)), b)));
        tn_tensor right = poisson_log(safe, rate);
        tn_tensor accepted = tn_or(at_once, tn_and(tn_not(hard), tn_le(left, right)));
        k = k.id ? tn_select(accepted, safe, k) : safe;
    }
    return k;
}

tn_tensor tn_nn_random_poisson(tn_tensor rate, tn_tensor counter, int64_t stream) {
    if (!parameter(&rate, "tn_nn_random_poisson")) return (tn_tensor){ rate.graph, 0 };
    tn_shape s = tn_tensor_shape(rate);
    tn_tensor ten = nn_scalar(rate, 10), small = tn_lt(rate, ten);
    tn_tensor few = poisson_counted(tn_select(small, rate, ten), tn_random_uniform(counter, part(stream, 200), s));
    return tn_select(small, few, poisson_rejected(tn_select(small, ten, rate), counter, stream, s));
}
