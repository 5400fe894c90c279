/* op_train.c - the optimisers of ai.onnx.preview.training: one step of several tensors at once.
 *
 * Operands: rate, step, then the tensors, their gradients and their moments, group after group. Results in the same order. */
#include "import.h"

typedef struct groups {
    int n, extra; /* tensors; moments of each */
    tn_tensor rate, step;
} groups;

static groups read_groups(onnx_call *c, int extra) {
    groups g = { .n = (c->n_in - 2) / (2 + extra), .extra = extra };
    if (g.n < 1 || c->n_in != 2 + g.n * (2 + extra) || c->n_out > g.n * (1 + extra)) onnx_refuse(c, "%d operands", c->n_in);
    for (int i = 2; i < c->n_in; i++)
        if (onnx_elem(c, i) != onnx_elem(c, 2) || !onnx_is_float(onnx_elem(c, i))) onnx_refuse(c, "its types");
    g.rate = tn_cast(tn_reshape(onnx_t(c, 0), TN_SCALAR), onnx_elem_dtype(onnx_elem(c, 2)));
    g.step = tn_cast(tn_reshape(onnx_t(c, 1), TN_SCALAR), onnx_elem_dtype(onnx_elem(c, 2)));
    return g;
}
static tn_tensor operand(onnx_call *c, const groups *g, int group, int i) { return onnx_t(c, 2 + group * g->n + i); }
static void result(onnx_call *c, const groups *g, int group, int i, tn_tensor t) {
    onnx_put(c, group * g->n + i, t, onnx_elem(c, 2));
}
static tn_tensor mix(tn_tensor a, double wa, tn_tensor b, double wb) {
    return tn_add(tn_mul_scalar(a, wa), tn_mul_scalar(b, wb));
}

void onnx_op_adagrad(onnx_call *c) {
    groups g = read_groups(c, 1);
    double norm = onnx_attr_float(c, "norm_coefficient", 0), eps = onnx_attr_float(c, "epsilon", (double)1e-6f);
    double decay = onnx_attr_float(c, "decay_factor", 0);
    tn_tensor rate = tn_div(g.rate, tn_add_scalar(tn_mul_scalar(g.step, decay), 1));
    for (int i = 0; i < g.n; i++) {
        tn_tensor x = operand(c, &g, 0, i), d = mix(x, norm, operand(c, &g, 1, i), 1),
                  h = tn_add(operand(c, &g, 2, i), tn_mul(d, d));
        result(c, &g, 0, i, tn_sub(x, tn_div(tn_mul(rate, d), tn_add_scalar(tn_sqrt(h), eps))));
        result(c, &g, 1, i, h);
    }
}

void onnx_op_adam(onnx_call *c) {
    groups g = read_groups(c, 2);
    double alpha = onnx_attr_float(c, "alpha", (double)0.9f), beta = onnx_attr_float(c, "beta", (double)0.999f);
    double norm = onnx_attr_float(c, "norm_coefficient", 0), after = onnx_attr_float(c, "norm_coefficient_post", 0);
    double eps = onnx_attr_float(c, "epsilon", (double)1e-6f);
    if (!onnx_attr_find(c, "epsilon")) onnx_refuse(c, "no epsilon: the schema says 1e-6, ONNX's own tests were made with 1e-2");
    tn_tensor one = onnx_scalar(g.rate, 1), zero = onnx_scalar(g.rate, 0);
    tn_tensor rest_b = tn_sub(one, tn_pow(onnx_scalar(g.step, beta), g.step)),
              rest_a = tn_sub(one, tn_pow(onnx_scalar(g.step, alpha), g.step));
    tn_tensor rate = tn_select(tn_gt(g.step, zero), tn_div(tn_mul(g.rate, tn_sqrt(rest_b)), rest_a), g.rate);
    for (int i = 0; i < g.n; i++) {
        tn_tensor x = operand(c, &g, 0, i), d = mix(x, norm, operand(c, &g, 1, i), 1);
        tn_tensor v = mix(operand(c, &g, 2, i), alpha, d, 1 - alpha),
                  h = mix(operand(c, &g, 3, i), beta, tn_mul(d, d), 1 - beta);
        tn_tensor y = tn_sub(x, tn_div(tn_mul(rate, v), tn_add_scalar(tn_sqrt(h), eps)));
        result(c, &g, 0, i, tn_mul_scalar(y, 1 - after));
        result(c, &g, 1, i, v);
        result(c, &g, 2, i, h);
    }
}

void onnx_op_momentum(onnx_call *c) {
    groups g = read_groups(c, 1);
    double alpha = onnx_attr_float(c, "alpha", 0), beta = onnx_attr_float(c, "beta", 0),
           norm = onnx_attr_float(c, "norm_coefficient", 0);
    bool nesterov = onnx_attr_is(c, "mode", "standard", "nesterov");
    if (!nesterov && !onnx_attr_is(c, "mode", "standard", "standard")) onnx_refuse(c, "attribute mode");
    tn_tensor zero = onnx_scalar(g.step, 0),
              share = tn_select(tn_gt(g.step, zero), onnx_scalar(g.step, beta), onnx_scalar(g.step, 1));
    for (int i = 0; i < g.n; i++) {
        tn_tensor x = operand(c, &g, 0, i), d = mix(x, norm, operand(c, &g, 1, i), 1);
        tn_tensor v = tn_add(tn_mul_scalar(operand(c, &g, 2, i), alpha), tn_mul(share, d));
        result(c, &g, 0, i, tn_sub(x, tn_mul(g.rate, nesterov ? tn_add(d, tn_mul_scalar(v, alpha)) : v)));
        result(c, &g, 1, i, v);
    }
}

/* Gradients of the tensor y by the tensors xs, named in the model, at the values that these have: the operands must be the same
 * tensors. Several elements of y: of their sum. */
void onnx_op_gradient(onnx_call *c) {
    const onnx_attr *xs = onnx_attr_find(c, "xs"), *y = onnx_attr_find(c, "y"), *zs = onnx_attr_find(c, "zs");
    if (!xs || xs->type != ATTR_STRINGS || !y || y->type != ATTR_STRING || xs->n > c->n_in || xs->n != c->n_out)
        onnx_refuse(c, "its attributes");
    for (int i = 0; i < c->n_in; i++) {
        const onnx_attr *from = i < xs->n ? xs : zs;
        int k = i < xs->n ? i : i - xs->n;
        if (!from || from->type != ATTR_STRINGS || k >= from->n || strlen(c->node->in[i]) != from->strings[k].n ||
            memcmp(c->node->in[i], from->strings[k].at, from->strings[k].n))
            onnx_refuse(c, "operand %d is not the tensor that it stands for", i);
    }
    onnx_val *loss = onnx_named(c, (const char *)y->s.at, y->s.n);
    tn_tensor *at = ONNX_NEW(c->im->env, tn_tensor, xs->n + 1), *out = ONNX_NEW(c->im->env, tn_tensor, xs->n + 1);
    for (int i = 0; i < xs->n; i++) at[i] = onnx_t(c, i);
    if (!loss || loss->kind != TN_ONNX_TENSOR || loss->refused) onnx_refuse(c, "its y");
    if (tn_grad(tn_sum(onnx_val_tensor(c, loss), TN_ALL_AXES, 0), at, xs->n, out)) onnx_refuse_graph(c);
    for (int i = 0; i < xs->n; i++) onnx_put(c, i, out[i], ELEM_NONE);
}
