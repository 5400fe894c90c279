/* optim.h - what the optimisers share: parameters with their gradients, states that belong to them, updates that a condition
 * may hold back. */
#ifndef TN_NN_OPTIM_H
#define TN_NN_OPTIM_H

#include "nn.h"

/* Owns nothing but two arrays of the context, freed by optim_close. */
typedef struct optim {
    tn_graph *g;
    tn_tensor *p, *grad; /* parameters; gradients of the dtype of optim_param(s, i).x */
    int n;
    const char *name, *fn;
    tn_nn_optim_opts o;
    tn_tensor rate; /* f64[] */
    tn_tensor t;    /* f64[] 1 in the first update, 2 in the second; where counted */
    tn_tensor step; /* i64[] updates so far; where counted */
} optim;
/* A parameter or a state of the optimiser, and what it held before the run: in f32 where it is stored in bf16 by random
 * rounding, else in its own dtype. */
typedef struct optim_var {
    tn_tensor state, x;
} optim_var;

/* o: as given. defaults: for what is 0 in it. counted: the optimiser asks for t. False: g has an error; close it all the same.
 */
bool optim_open(optim *s, tn_tensor loss, tn_nn_optim_opts o, tn_nn_optim_opts defaults, bool counted, const char *fn);
void optim_close(optim *s);
optim_var optim_param(const optim *s, int i);
/* The state "<parameter>/<optimiser>/<suffix>", zeros at first. */
optim_var optim_state(optim *s, int i, const char *suffix, tn_shape shape);
optim_var optim_moment(optim *s, int i, const char *suffix); /* of the parameter's shape */
/* v takes this value, of the dtype of v.x, at the end of a run in which opts.when holds. */
void optim_set(const optim *s, optim_var v, tn_tensor value);
double optim_decay(const optim *s, int i); /* of weights: opts.weight_decay or 0 */
/* Parameter i without what decoupled decay takes: p (1 - rate * weight_decay). */
tn_tensor optim_decayed(const optim *s, int i);
/* The gradient with weight_decay * p added where decay is not decoupled. */
tn_tensor optim_gradient(const optim *s, int i);
/* Scalars are made in f64, where 1 - beta^t does not cancel, and rounded once. */
tn_tensor optim_scalar(tn_tensor p, tn_tensor f64_scalar);
/* a x + b y */
tn_tensor optim_blend(tn_tensor x, double a, tn_tensor y, double b);
/* 1 - beta^t */
tn_tensor optim_correction(const optim *s, double beta);
/* sqrt(sum(x^2)) as f[] of x's dtype. */
tn_tensor optim_norm(tn_tensor x);

#endif
