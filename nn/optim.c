/* optim.c - optimisers as updates of states. In: a loss and parameters. Out: gradients, and assignments to the parameters and
 * to the optimiser's own states, in the loss's graph. Nothing here runs outside the graph, so a step costs what the graph
 * costs. */
#include "nn.h"

/* Owns nothing but two arrays of the context, freed by close_step. */
typedef struct step {
    tn_graph *g;
    tn_tensor *p, *grad;
    int n;
    const char *name;
} step;

static void close_step(step *s) {
    size_t bytes = (size_t)s->n * sizeof *s->p;
    if (s->p) tn_ctx_realloc(tn_graph_ctx(s->g), s->p, bytes, 0);
    if (s->grad) tn_ctx_realloc(tn_graph_ctx(s->g), s->grad, bytes, 0);
}

static bool open_step(step *s, tn_tensor loss, const tn_tensor *params, int n) {
    s->g = loss.graph;
    if (!loss.graph || tn_graph_status(loss.graph)) return false;
    s->n = params ? n : tn_graph_n_params(loss.graph);
    if (s->n <= 0) {
        nn_fail(s->g, TN_ERR_INVAL, "%s: there is no parameter to train (see tn_param)", s->name);
        return false;
    }
    size_t bytes = (size_t)s->n * sizeof *s->p;
    s->p = tn_ctx_realloc(tn_graph_ctx(s->g), NULL, 0, bytes);
    s->grad = tn_ctx_realloc(tn_graph_ctx(s->g), NULL, 0, bytes);
    if (!s->p || !s->grad) {
        nn_fail(s->g, TN_ERR_NOMEM, "%s: out of memory: a list of %d parameters", s->name, s->n);
        return false;
    }
    for (int i = 0; i < s->n; i++) {
        s->p[i] = params ? params[i] : tn_graph_param(s->g, i);
        if (tn_tensor_name(s->p[i])) continue;
        nn_fail(s->g, TN_ERR_INVAL, "%s: parameter %d is not a state", s->name, i);
        return false;
    }
    tn_status code = tn_grad(loss, s->p, s->n, s->grad);
    if (code) nn_fail(s->g, code, "%s: %s", s->name, tn_ctx_error(tn_graph_ctx(s->g)));
    return !code;
}

/* The optimiser's state that belongs to parameter i: "fc1/w/adam/m". */
static tn_tensor moment(step *s, int i, const char *suffix) {
    char name[768];
    tn_tensor p = s->p[i];
    size_t n = 0;
    const char *parts[] = { tn_tensor_name(p), "/", s->name, "/", suffix };
    for (int k = 0; k < 5; k++)
        for (const char *c = parts[k]; *c; c++) {
            if (n + 1 == sizeof name)
                return nn_fail(s->g, TN_ERR_INVAL, "%s: the name of parameter %d is too long", s->name, i);
            name[n++] = *c;
        }
    name[n] = 0;
    return tn_state(s->g, name, tn_tensor_dtype(p), tn_tensor_shape(p), NULL);
}

/* The learning rate as f64[]. */
static tn_tensor rate_of(step *s, double lr, tn_tensor rate) {
    if (!rate.graph) return tn_full(s->g, TN_F64, TN_SCALAR, lr);
    tn_shape shape = tn_tensor_shape(rate);
    if (shape.rank > 0) return nn_fail(s->g, TN_ERR_SHAPE, "%s: expected a rate of rank 0, got rank %d", s->name, shape.rank);
    return tn_cast(rate, TN_F64);
}

/* Scalars are made in f64, where 1 - beta^t does not cancel, and rounded once. */
static tn_tensor scalar_for(tn_tensor p, tn_tensor f64_scalar) { return tn_cast(f64_scalar, tn_tensor_dtype(p)); }

static void sgd_update(step *s, int i, tn_tensor rate, const tn_nn_sgd_opts *o) {
    tn_tensor p = s->p[i], d = s->grad[i];
    if (o->weight_decay != 0) d = tn_add(d, tn_mul_scalar(p, o->weight_decay));
    if (o->momentum != 0) {
        tn_tensor m = moment(s, i, "m");
        tn_tensor next = tn_add(tn_mul_scalar(m, o->momentum), d);
        tn_assign(m, next);
        d = o->nesterov ? tn_add(d, tn_mul_scalar(next, o->momentum)) : next;
    }
    tn_assign(p, tn_sub(p, tn_mul(d, scalar_for(p, rate))));
}

void tn_nn_sgd(tn_tensor loss, tn_nn_sgd_opts opts) {
    step s = { .name = opts.name ? opts.name : "sgd" };
    if (open_step(&s, loss, opts.params, opts.n_params)) {
        tn_tensor rate = rate_of(&s, opts.lr != 0 ? opts.lr : 0.01, opts.rate);
        for (int i = 0; i < s.n; i++) sgd_update(&s, i, rate, &opts);
    }
    if (s.g) close_step(&s);
}

typedef struct adam_scalars { /* f64[] */
    tn_tensor rate;           /* lr / (1 - beta1^t) */
    tn_tensor root;           /* sqrt(1 - beta2^t) */
    tn_tensor decay;          /* 1 - lr * weight_decay */
} adam_scalars;

/* 1 - beta^t */
static tn_tensor correction(tn_tensor t, double beta) {
    return tn_add_scalar(tn_neg(tn_pow(tn_full(t.graph, TN_F64, TN_SCALAR, beta), t)), 1);
}

static adam_scalars adam_prepare(step *s, const tn_nn_adam_opts *o) {
    tn_tensor count = nn_counter(s->g, s->name, "step");
    tn_tensor t = tn_cast(tn_add_scalar(count, 1), TN_F64), lr = rate_of(s, o->lr, o->rate);
    adam_scalars c = { .rate = tn_div(lr, correction(t, o->beta1)), .root = tn_sqrt(correction(t, o->beta2)) };
    c.decay = tn_add_scalar(tn_mul_scalar(lr, -o->weight_decay), 1);
    return c;
}

static void adam_update(step *s, int i, const adam_scalars *c, const tn_nn_adam_opts *o) {
    tn_tensor p = s->p[i], d = s->grad[i], m = moment(s, i, "m"), v = moment(s, i, "v"), from = p;
    if (o->weight_decay != 0 && !o->decoupled) d = tn_add(d, tn_mul_scalar(p, o->weight_decay));
    if (o->weight_decay != 0 && o->decoupled) from = tn_mul(p, scalar_for(p, c->decay));
    tn_tensor next_m = tn_add(tn_mul_scalar(m, o->beta1), tn_mul_scalar(d, 1 - o->beta1));
    tn_tensor next_v = tn_add(tn_mul_scalar(v, o->beta2), tn_mul_scalar(tn_mul(d, d), 1 - o->beta2));
    tn_tensor below = tn_add_scalar(tn_div(tn_sqrt(next_v), scalar_for(p, c->root)), o->eps);
    tn_assign(m, next_m);
    tn_assign(v, next_v);
    tn_assign(p, tn_sub(from, tn_mul(scalar_for(p, c->rate), tn_div(next_m, below))));
}

void tn_nn_adam(tn_tensor loss, tn_nn_adam_opts opts) {
    step s = { .name = opts.name ? opts.name : "adam" };
    if (opts.lr == 0) opts.lr = 1e-3;
    if (opts.beta1 == 0) opts.beta1 = 0.9;
    if (opts.beta2 == 0) opts.beta2 = 0.999;
    if (opts.eps == 0) opts.eps = 1e-8;
    if (open_step(&s, loss, opts.params, opts.n_params)) {
        adam_scalars c = adam_prepare(&s, &opts);
        for (int i = 0; i < s.n; i++) adam_update(&s, i, &c, &opts);
    }
    if (s.g) close_step(&s);
}
