/* optim.c - optimisers as updates of states. In: a loss, or gradients, and parameters. Out: assignments to the parameters and
 * to the optimiser's own states, in their graph. Nothing here runs outside the graph, so a step costs what the graph costs. */
#include "optim.h"

#include <math.h>
#include <stdio.h>

void optim_close(optim *s) {
    size_t bytes = (size_t)s->n * sizeof *s->p;
    if (s->p) tn_ctx_realloc(tn_graph_ctx(s->g), s->p, bytes, 0);
    if (s->grad) tn_ctx_realloc(tn_graph_ctx(s->g), s->grad, bytes, 0);
}

/* -0.0 (TN_NN_ZERO) says 0. */
static void fill_in(double *x, double fallback) {
    if (*x == 0) *x = signbit(*x) ? 0 : fallback;
}

/* ---- states, and how values come into them ---- */

static optim_var var(const optim *s, tn_tensor state) {
    bool random = s->o.stochastic && tn_tensor_dtype(state) == TN_BF16;
    return (optim_var){ state, random ? tn_cast(state, TN_F32) : state };
}
optim_var optim_param(const optim *s, int i) { return var(s, s->p[i]); }

optim_var optim_state(optim *s, int i, const char *suffix, tn_shape shape) {
    char name[768];
    tn_tensor p = s->p[i];
    int n = snprintf(name, sizeof name, "%s/%s/%s", tn_tensor_name(p), s->name, suffix);
    if (n < 0 || n >= (int)sizeof name)
        return var(s, nn_fail(s->g, TN_ERR_INVAL, "%s: the name of parameter %d is too long", s->fn, i));
    return var(s, tn_state(s->g, name, tn_tensor_dtype(p), shape, NULL));
}
optim_var optim_moment(optim *s, int i, const char *suffix) { return optim_state(s, i, suffix, tn_tensor_shape(s->p[i])); }

void optim_set(const optim *s, optim_var v, tn_tensor value) {
    if (s->o.stochastic && tn_tensor_dtype(v.state) == TN_BF16 && value.id)
        value = tn_nn_round_stochastic(value, s->step, nn_stream(s->g, tn_tensor_name(v.state)));
    tn_assign(v.state, s->o.when.graph ? tn_select(s->o.when, value, v.state) : value);
}

/* ---- opening ---- */

static bool take_params(optim *s) {
    size_t bytes = (size_t)s->n * sizeof *s->p;
    s->p = tn_ctx_realloc(tn_graph_ctx(s->g), NULL, 0, bytes);
    s->grad = tn_ctx_realloc(tn_graph_ctx(s->g), NULL, 0, bytes);
    if (!s->p || !s->grad) {
        nn_fail(s->g, TN_ERR_NOMEM, "%s: out of memory: a list of %d parameters", s->fn, s->n);
        return false;
    }
    for (int i = 0; i < s->n; i++) {
        s->p[i] = s->o.params ? s->o.params[i] : tn_graph_param(s->g, i);
        if (tn_tensor_name(s->p[i])) continue;
        nn_fail(s->g, TN_ERR_INVAL, "%s: parameter %d is not a state", s->fn, i);
        return false;
    }
    return true;
}

static bool same_shape(tn_shape a, tn_shape b) {
    bool same = a.rank == b.rank && a.rank >= 0;
    for (int i = 0; same && i < a.rank; i++) same = a.dim[i] == b.dim[i];
    return same;
}

static bool take_grads(optim *s, tn_tensor loss) {
    if (!s->o.grads) {
        tn_status code = tn_grad(loss, s->p, s->n, s->grad);
        if (code) nn_fail(s->g, code, "%s: %s", s->fn, tn_ctx_error(tn_graph_ctx(s->g)));
        for (int i = 0; i < s->n && !code; i++) s->grad[i] = tn_cast(s->grad[i], tn_tensor_dtype(optim_param(s, i).x));
        return !code;
    }
    for (int i = 0; i < s->n; i++) {
        tn_tensor d = s->o.grads[i];
        if (!nn_given(s->g, d, s->fn)) return false;
        if (!same_shape(tn_tensor_shape(d), tn_tensor_shape(s->p[i]))) {
            nn_fail(s->g, TN_ERR_SHAPE, "%s: the gradient of parameter %d, %s, has another shape than it", s->fn, i,
                    tn_tensor_name(s->p[i]));
            return false;
        }
        s->grad[i] = tn_cast(d, tn_tensor_dtype(optim_param(s, i).x));
    }
    return true;
}

static bool check_opts(optim *s) {
    tn_tensor rate = s->o.rate, when = s->o.when;
    if (rate.graph && tn_tensor_shape(rate).rank != 0) {
        nn_fail(s->g, TN_ERR_SHAPE, "%s: expected a rate of rank 0, got rank %d", s->fn, tn_tensor_shape(rate).rank);
        return false;
    }
    if (when.graph && (tn_tensor_shape(when).rank != 0 || tn_tensor_dtype(when) != TN_BOOL)) {
        nn_fail(s->g, TN_ERR_SHAPE, "%s: expected when bool[], got %s of rank %d", s->fn, tn_dtype_name(tn_tensor_dtype(when)),
                tn_tensor_shape(when).rank);
        return false;
    }
    if (s->o.grads && !s->o.params && s->o.n_params != tn_graph_n_params(s->g)) {
        nn_fail(s->g, TN_ERR_INVAL, "%s: %d gradients are given for the graph's %d parameters", s->fn, s->o.n_params,
                tn_graph_n_params(s->g));
        return false;
    }
    return true;
}

bool optim_open(optim *s, tn_tensor loss, tn_nn_optim_opts o, tn_nn_optim_opts defaults, bool counted, const char *fn) {
    fill_in(&o.lr, defaults.lr);
    fill_in(&o.momentum, defaults.momentum);
    fill_in(&o.beta1, defaults.beta1);
    fill_in(&o.beta2, defaults.beta2);
    fill_in(&o.eps, defaults.eps);
    *s = (optim){ .g = loss.graph, .o = o, .fn = fn, .name = o.name ? o.name : defaults.name };
    if (!s->g || tn_graph_status(s->g) || !check_opts(s)) return false;
    s->n = o.params ? o.n_params : tn_graph_n_params(s->g);
    if (s->n <= 0) {
        s->n = 0;
        nn_fail(s->g, TN_ERR_INVAL, "%s: there is no parameter to train (see tn_param)", fn);
        return false;
    }
    if (!take_params(s) || !take_grads(s, loss)) return false;
    s->rate = o.rate.graph ? tn_cast(o.rate, TN_F64) : tn_full(s->g, TN_F64, TN_SCALAR, o.lr);
    if (!counted && !o.stochastic) return s->rate.id != 0;
    char name[256];
    snprintf(name, sizeof name, "%s/step", s->name);
    tn_tensor count = tn_state(s->g, name, TN_I64, TN_SCALAR, NULL), next = tn_add_scalar(count, 1);
    s->t = tn_cast(next, TN_F64);
    s->step = count;
    optim_set(s, (optim_var){ count, count }, next);
    return s->t.id != 0;
}

double optim_decay(const optim *s, int i) { return tn_tensor_shape(s->p[i]).rank >= s->o.decay_rank ? s->o.weight_decay : 0; }

tn_tensor optim_scalar(tn_tensor p, tn_tensor f64_scalar) { return tn_cast(f64_scalar, tn_tensor_dtype(p)); }

tn_tensor optim_decayed(const optim *s, int i) {
    double decay = optim_decay(s, i);
    tn_tensor p = optim_param(s, i).x;
    if (decay == 0) return p;
    tn_tensor kept = tn_add_scalar(tn_mul_scalar(s->rate, -decay), 1);
    return tn_mul(p, optim_scalar(p, kept));
}

tn_tensor optim_gradient(const optim *s, int i) {
    double decay = optim_decay(s, i);
    return decay != 0 ? tn_add(s->grad[i], tn_mul_scalar(optim_param(s, i).x, decay)) : s->grad[i];
}

tn_tensor optim_blend(tn_tensor x, double a, tn_tensor y, double b) {
    tn_tensor ax = a == 1 ? x : tn_mul_scalar(x, a);
    tn_tensor by = b == 1 ? y : tn_mul_scalar(y, b);
    return tn_add(ax, by);
}

tn_tensor optim_correction(const optim *s, double beta) {
    return tn_add_scalar(tn_neg(tn_pow(tn_full(s->g, TN_F64, TN_SCALAR, beta), s->t)), 1);
}

tn_tensor optim_norm(tn_tensor x) { return tn_sqrt(tn_sum(tn_mul(x, x), TN_ALL_AXES, 0)); }

/* ---- by element ------------------------------------------------------------------------------------------------------ */

void tn_nn_sgd(tn_tensor loss, tn_nn_optim_opts opts) {
    optim s;
    if (optim_open(&s, loss, opts, (tn_nn_optim_opts){ .lr = 0.01, .name = "sgd" }, false, "tn_nn_sgd"))
        for (int i = 0; i < s.n; i++) {
            optim_var p = optim_param(&s, i);
            tn_tensor d = opts.decoupled ? s.grad[i] : optim_gradient(&s, i);
            if (s.o.momentum != 0) {
                optim_var m = optim_moment(&s, i, "m");
                tn_tensor next = optim_blend(m.x, s.o.momentum, d, 1);
                optim_set(&s, m, next);
                d = opts.nesterov ? optim_blend(d, 1, next, s.o.momentum) : next;
            }
            tn_tensor from = opts.decoupled ? optim_decayed(&s, i) : p.x;
            optim_set(&s, p, tn_sub(from, tn_mul(d, optim_scalar(p.x, s.rate))));
        }
    optim_close(&s);
}

void tn_nn_adam(tn_tensor loss, tn_nn_optim_opts opts) {
    optim s;
    tn_nn_optim_opts defaults = { .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .name = "adam" };
    if (optim_open(&s, loss, opts, defaults, true, "tn_nn_adam")) {
        tn_tensor rate = tn_div(s.rate, optim_correction(&s, s.o.beta1)), root = tn_sqrt(optim_correction(&s, s.o.beta2));
        for (int i = 0; i < s.n; i++) {
            optim_var p = optim_param(&s, i);
            tn_tensor d = opts.decoupled ? s.grad[i] : optim_gradient(&s, i);
            optim_var m = optim_moment(&s, i, "m"), v = optim_moment(&s, i, "v");
            tn_tensor next_m = optim_blend(m.x, s.o.beta1, d, 1 - s.o.beta1);
            tn_tensor next_v = optim_blend(v.x, s.o.beta2, tn_mul(d, d), 1 - s.o.beta2);
            tn_tensor below = tn_add_scalar(tn_div(tn_sqrt(next_v), optim_scalar(p.x, root)), s.o.eps);
            tn_tensor from = opts.decoupled ? optim_decayed(&s, i) : p.x;
            optim_set(&s, m, next_m);
            optim_set(&s, v, next_v);
            optim_set(&s, p, tn_sub(from, tn_mul(optim_scalar(p.x, rate), tn_div(next_m, below))));
        }
    }
    optim_close(&s);
}

void tn_nn_rmsprop(tn_tensor loss, tn_nn_optim_opts opts) {
    optim s;
    tn_nn_optim_opts defaults = { .lr = 0.01, .beta2 = 0.99, .eps = 1e-8, .name = "rmsprop" };
    if (optim_open(&s, loss, opts, defaults, false, "tn_nn_rmsprop"))
        for (int i = 0; i < s.n; i++) {
            optim_var p = optim_param(&s, i), v = optim_moment(&s, i, "v");
            tn_tensor d = optim_gradient(&s, i);
            tn_tensor next = optim_blend(v.x, s.o.beta2, tn_mul(d, d), 1 - s.o.beta2);
            optim_set(&s, v, next);
            d = tn_div(d, tn_add_scalar(tn_sqrt(next), s.o.eps));
            if (s.o.momentum != 0) {
                optim_var m = optim_moment(&s, i, "m");
                d = optim_blend(m.x, s.o.momentum, d, 1);
                optim_set(&s, m, d);
            }
            optim_set(&s, p, tn_sub(p.x, tn_mul(d, optim_scalar(p.x, s.rate))));
        }
    optim_close(&s);
}

void tn_nn_adagrad(tn_tensor loss, tn_nn_optim_opts opts) {
    optim s;
    tn_nn_optim_opts defaults = { .lr = 0.01, .eps = 1e-10, .name = "adagrad" };
    if (optim_open(&s, loss, opts, defaults, false, "tn_nn_adagrad"))
        for (int i = 0; i < s.n; i++) {
            optim_var p = optim_param(&s, i), v = optim_moment(&s, i, "v");
            tn_tensor d = optim_gradient(&s, i);
            tn_tensor next = tn_add(v.x, tn_mul(d, d));
            optim_set(&s, v, next);
            d = tn_div(d, tn_add_scalar(tn_sqrt(next), s.o.eps));
            optim_set(&s, p, tn_sub(p.x, tn_mul(d, optim_scalar(p.x, s.rate))));
        }
    optim_close(&s);
}

void tn_nn_lion(tn_tensor loss, tn_nn_optim_opts opts) {
    optim s;
    tn_nn_optim_opts defaults = { .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.99, .name = "lion" };
    if (optim_open(&s, loss, opts, defaults, false, "tn_nn_lion"))
        for (int i = 0; i < s.n; i++) {
            optim_var p = optim_param(&s, i), m = optim_moment(&s, i, "m");
            tn_tensor d = s.grad[i];
            tn_tensor turn = tn_sign(optim_blend(m.x, s.o.beta1, d, 1 - s.o.beta1));
            optim_set(&s, m, optim_blend(m.x, s.o.beta2, d, 1 - s.o.beta2));
            optim_set(&s, p, tn_sub(optim_decayed(&s, i), tn_mul(turn, optim_scalar(p.x, s.rate))));
        }
    optim_close(&s);
}
