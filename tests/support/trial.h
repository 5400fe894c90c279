/* trial.h - a graph of f64 built through the public interface, its values by the evaluator, the same compiled for the device
 * under test, and its gradients against central differences: what tests of compositions share.
 *
 *     trial *t = trial_open(7);
 *     tn_tensor x = trial_floats(t, TN_DIMS(3, 4), -1, 1), y = tn_exp(x);
 *     const double *in = trial_values(t, x), *got = trial_values(t, y);     the evaluator's
 *     trial_gradients(t, y, 1e-6);
 *     trial_compiled(t, &y, 1, 1e-12);
 *     trial_close(t); */
#ifndef TN_TESTS_TRIAL_H
#define TN_TESTS_TRIAL_H

#include "support/support.h"
#include "tenon/tenon.h"

enum { TRIAL_INPUTS = 16 };
typedef struct trial {
    tn_ctx *ctx;
    tn_graph *g;
    guard gd;
    arena a; /* of all values */
    rng r;
    int n; /* inputs */
    tn_tensor in[TRIAL_INPUTS];
    eval_value value[TRIAL_INPUTS];
} trial;

trial *trial_open(uint64_t seed);
void trial_close(trial *t);
/* An input of random values in [lo, hi): floats, or whole numbers of lo .. hi, both included. */
tn_tensor trial_floats(trial *t, tn_shape s, double lo, double hi);
tn_tensor trial_ints(trial *t, tn_dtype dtype, tn_shape s, int64_t lo, int64_t hi);
int64_t trial_count(tn_tensor x); /* elements */
/* By the evaluator, integers as doubles; for inputs their values, which may be changed until something is evaluated. */
double *trial_values(trial *t, tn_tensor x);
int64_t *trial_whole(trial *t, tn_tensor input); /* of an integer input, to be changed */
/* got against want, relative to 1 + |want|; NaN and infinities must meet. */
void trial_near(const char *what, const double *got, const double *want, int64_t n, double tol);
/* d(sum(y w))/dx for random w, at up to 16 elements of each f64 input, against central differences of the evaluator. */
void trial_gradients(trial *t, tn_tensor y, double tol);
/* The outputs of one compiled program (test_device, by turns in graph and in compiled mode) against the evaluator. */
void trial_compiled(trial *t, const tn_tensor *ys, int n, double tol);
/* The graph has an error whose text has this in it. */
void trial_refused(trial *t, const char *text);

#endif
