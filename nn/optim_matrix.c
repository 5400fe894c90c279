/* optim_matrix.c - optimisers that look at a parameter as a whole: its norm, its rows and columns, its singular values. */
#include "optim.h"

#include <math.h>

/* ---- LAMB ------------------------------------------------------------------------------------------------------------ */

/* |p| / |r|, or 1 where one of them is 0. */
static tn_tensor trust(tn_tensor p, tn_tensor r) {
    tn_tensor a = optim_norm(p), b = optim_norm(r), zero = nn_scalar(a, 0), one = nn_scalar(a, 1);
    tn_tensor some = tn_and(tn_lt(zero, a), tn_lt(zero, b));
    return tn_select(some, tn_div(a, tn_select(some, b, one)), one);
}

void tn_nn_lamb(tn_tensor loss, tn_nn_optim_opts opts) {
    optim s;
    tn_nn_optim_opts defaults = { .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6, .name = "lamb" };
    if (optim_open(&s, loss, opts, defaults, true, "tn_nn_lamb")) {
        tn_tensor first = optim_correction(&s, s.o.beta1), root = tn_sqrt(optim_correction(&s, s.o.beta2));
        for (int i = 0; i < s.n; i++) {
            optim_var p = optim_param(&s, i), m = optim_moment(&s, i, "m"), v = optim_moment(&s, i, "v");
            tn_tensor d = s.grad[i];
            tn_tensor next_m = optim_blend(m.x, s.o.beta1, d, 1 - s.o.beta1);
            tn_tensor next_v = optim_blend(v.x, s.o.beta2, tn_mul(d, d), 1 - s.o.beta2);
            tn_tensor below = tn_add_scalar(tn_div(tn_sqrt(next_v), optim_scalar(p.x, root)), s.o.eps);
            tn_tensor r = tn_div(tn_div(next_m, optim_scalar(p.x, first)), below);
            if (optim_decay(&s, i) != 0) r = optim_blend(r, 1, p.x, optim_decay(&s, i));
            tn_tensor rate = tn_mul(optim_scalar(p.x, s.rate), trust(p.x, r));
            optim_set(&s, m, next_m);
            optim_set(&s, v, next_v);
            optim_set(&s, p, tn_sub(p.x, tn_mul(r, rate)));
        }
    }
    optim_close(&s);
}

/* ---- Adafactor ------------------------------------------------------------------------------------------------------- */

static tn_tensor rms(tn_tensor x) { return tn_sqrt(tn_mean(tn_mul(x, x), TN_ALL_AXES, 0)); }
/* max(x, least), where x is f[] or more */
static tn_tensor at_least(tn_tensor x, double least) { return tn_max(x, nn_scalar(x, least)); }

/* The running mean of `value` in a state of its shape: state + (value - state) * share. */
static tn_tensor running(optim *s, int i, const char *suffix, tn_tensor value, tn_tensor share) {
    optim_var state = optim_state(s, i, suffix, tn_tensor_shape(value));
    tn_tensor next = tn_add(state.x, tn_mul(tn_sub(value, state.x), share));
    optim_set(s, state, next);
    return next;
}

/* The mean square of each gradient: of matrices as the product of means of rows and columns. */
static tn_tensor factored(optim *s, int i, tn_tensor share) {
    tn_tensor d = s->grad[i], square = tn_mul(d, d);
    if (tn_tensor_shape(d).rank < 2) return running(s, i, "v", square, share);
    tn_tensor row = running(s, i, "row", tn_mean(square, TN_INTS(-1), 1), share);
    tn_tensor column = running(s, i, "column", tn_mean(square, TN_INTS(-2), 1), share);
    return tn_div(tn_mul(row, column), at_least(tn_mean(row, TN_INTS(-2), 1), s->o.eps));
}

void tn_nn_adafactor(tn_tensor loss, tn_nn_optim_opts opts) {
    optim s;
    tn_nn_optim_opts defaults = { .lr = 0.01, .beta2 = 0.8, .eps = 0x1p-23, .name = "adafactor" };
    if (optim_open(&s, loss, opts, defaults, true, "tn_nn_adafactor")) {
        tn_tensor share = tn_pow(s.t, tn_full(s.g, TN_F64, TN_SCALAR, -s.o.beta2));
        tn_tensor rate = tn_min(s.rate, tn_rsqrt(s.t));
        for (int i = 0; i < s.n; i++) {
            optim_var p = optim_param(&s, i);
            tn_tensor v = factored(&s, i, optim_scalar(p.x, share));
            tn_tensor u = tn_mul(s.grad[i], tn_rsqrt(at_least(v, s.o.eps * s.o.eps)));
            tn_tensor step = tn_mul(at_least(rms(p.x), 1e-3), optim_scalar(p.x, rate));
            step = tn_div(step, at_least(rms(u), 1));
            optim_set(&s, p, tn_sub(optim_decayed(&s, i), tn_mul(u, step)));
        }
    }
    optim_close(&s);
}

/* ---- Muon ------------------------------------------------------------------------------------------------------------ */

/* Nearly U V^T of x = U S V^T: an odd polynomial of fifth degree, again and again, that drives singular values to about 1. */
static tn_tensor orthogonal(tn_tensor x, double eps) {
    tn_shape s = tn_tensor_shape(x);
    bool tall = s.dim[0] > s.dim[1];
    if (tall) x = tn_transpose(x, 0, 1);
    x = tn_div(x, tn_add_scalar(optim_norm(x), eps));
    for (int step = 0; step < 5; step++) {
        tn_tensor a = tn_matmul(x, tn_transpose(x, 0, 1));
        tn_tensor b = optim_blend(a, -4.7750, tn_matmul(a, a), 2.0315);
        x = tn_add(tn_mul_scalar(x, 3.4445), tn_matmul(b, x));
    }
    return tall ? tn_transpose(x, 0, 1) : x;
}

void tn_nn_muon(tn_tensor loss, tn_nn_optim_opts opts) {
    optim s;
    tn_nn_optim_opts defaults = { .lr = 0.02, .momentum = 0.95, .eps = 1e-7, .name = "muon" };
    if (optim_open(&s, loss, opts, defaults, false, "tn_nn_muon"))
        for (int i = 0; i < s.n; i++) {
            optim_var p = optim_param(&s, i), m = optim_moment(&s, i, "m");
            tn_tensor d = s.grad[i];
            tn_shape shape = tn_tensor_shape(p.state);
            if (shape.rank != 2) {
                nn_fail(s.g, TN_ERR_SHAPE,
                        "tn_nn_muon: parameter %s has rank %d; matrices alone have singular values: name them in .params and "
                        "give the others to another optimiser",
                        tn_tensor_name(p.state), shape.rank);
                break;
            }
            tn_tensor next = optim_blend(m.x, s.o.momentum, d, 1);
            optim_set(&s, m, next);
            d = opts.nesterov ? optim_blend(d, 1, next, s.o.momentum) : next;
            double ratio = shape.dim[1] > 0 ? (double)shape.dim[0] / (double)shape.dim[1] : 1;
            tn_tensor step = tn_mul_scalar(orthogonal(d, s.o.eps), ratio > 1 ? sqrt(ratio) : 1);
            optim_set(&s, p, tn_sub(optim_decayed(&s, i), tn_mul(step, optim_scalar(p.x, s.rate))));
        }
    optim_close(&s);
}
