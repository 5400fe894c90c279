/* nn.h - what the files of nn/ share: errors, axes, parameters with seeded initial values. Public headers only. */
#ifndef TN_NN_NN_H
#define TN_NN_NN_H

#ifndef TN_BUILDING
#define TN_BUILDING /* functions are defined here: no macros of their names, also for tools that know no flags */
#endif
#include "tenon/tenon_nn.h"

#include <stdbool.h>

/* Records an error in g and returns the poisoned tensor. Texts are cut at 500 characters. */
tn_tensor nn_fail(tn_graph *g, tn_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* x is a tensor of its graph; else g has an error in the name of `fn`, or had one before. */
bool nn_given(tn_graph *g, tn_tensor x, const char *fn);
/* x is a float tensor of rank min_rank or more; else records an error in the name of `fn`. */
bool nn_check(tn_tensor x, const char *fn, int min_rank, tn_shape *out_shape);
/* axis counted from the end when negative; false and an error when the tensor has no such axis. */
bool nn_axis(tn_tensor x, const char *fn, int axis, int *out_axis);

/* Short names of the initial values that layers give their parameters. */
typedef tn_nn_init nn_init;
#define NN_ZEROS TN_NN_INIT_ZEROS
#define NN_ONES TN_NN_INIT_ONES
#define NN_UNIFORM TN_NN_INIT_UNIFORM
#define NN_NORMAL TN_NN_INIT_NORMAL
/* init.c: fills an array of f32 or f64; false when memory ran out. */
bool nn_initial(tn_graph *g, tn_nn_init init, double scale, tn_shape shape, uint64_t key, tn_dtype t, void *data);
/* The parameter "<name>/<suffix>": f64 for t = f64, else f32. Values depend on the graph's seed and the name only. */
tn_tensor nn_param(tn_graph *g, tn_dtype t, const char *name, const char *suffix, tn_shape shape, tn_nn_init init,
                   double scale);
/* The same with a name of its own. */
tn_tensor nn_param_as(tn_graph *g, tn_dtype t, const char *full, tn_shape shape, tn_nn_init init, double scale);
/* A state that is no parameter, zeros or ones. */
tn_tensor nn_state(tn_graph *g, tn_dtype t, const char *name, const char *suffix, tn_shape shape, tn_nn_init init);
/* The state "<name>/<suffix>" (or "<name>") i64[] that starts at 0 and grows by 1 a run. */
tn_tensor nn_counter(tn_graph *g, const char *name, const char *suffix);
/* 64 bits that tell names apart (FNV-1a), those of the graph's scopes in front. */
uint64_t nn_hash(const tn_graph *g, const char *name);
/* A stream of random numbers for the name. */
int64_t nn_stream(const tn_graph *g, const char *name);

/* winograd.c: x f[N,H,W,C], u as tn_nn_winograd_weights makes it for tiles of m x m; a bias without a graph: none. */
tn_tensor nn_winograd(tn_tensor x, tn_tensor u, tn_tensor bias, int m, const int64_t *padding);

/* layer.c: over the last axis, without scale and shift. */
tn_tensor nn_layer_norm(tn_tensor x, double eps);
tn_tensor nn_rms_norm(tn_tensor x, double eps);
/* attention.c: softmax(q k^T / sqrt(d), where `seen` bool[..,T,S]) v; a `seen` without a graph: everywhere. */
tn_tensor nn_attention(tn_tensor q, tn_tensor k, tn_tensor v, tn_tensor seen, const char *fn);

/* attention.c: rotary positions; rate f64[d/2]: how much a position turns each pair; scale: of the result. */
tn_tensor nn_rope(tn_tensor x /* f[..,T,d] */, tn_tensor position /* i64[T] */, tn_tensor rate, double scale);
/* base f[..,S,d] with rows start .. start + T - 1 of its last axis but one replaced by x f[..,T,d]; start i64[]. */
tn_tensor nn_write_rows(tn_tensor base, tn_tensor x, tn_tensor start);

/* scan.c: what a reduction of nothing gives, but for the smallest of i64, which has no double: -1 - (the largest of -1 - x).
 */
double nn_identity(tn_dtype t, tn_scatter_mode mode);
tn_tensor nn_complement(tn_tensor x); /* -1 - x */

/* Sizes, which may be handles: products, a sum, and one as a tensor of x's dtype that broadcasts; x times a size. Immediate
 * graphs have no handles, and refuse to calculate with them. */
static inline bool nn_is_size(int64_t n) { return n >= 0 || n < INT64_MIN / 2; } /* handles are below all numbers */
int64_t nn_times(tn_graph *g, int64_t x, int64_t y);
int64_t nn_plus(tn_graph *g, int64_t x, int64_t n); /* n: a number */
int64_t nn_product(tn_graph *g, const int64_t *dims, int n);
tn_tensor nn_size_like(tn_tensor x, int64_t size);
/* A mean of n squares as that of n - correction of them; one_is_enough: of 1 at least. */
tn_tensor nn_unbiased(tn_tensor v, int64_t n, int correction, bool one_is_enough);
tn_tensor nn_by_size(tn_tensor x, int64_t size);
int64_t nn_least(tn_graph *g, int64_t size); /* that it may be */
int64_t nn_most(tn_graph *g, int64_t size);
enum { NN_SIZE_TEXT = 64 };
const char *nn_size_text(const tn_graph *g, int64_t size, char out[NN_SIZE_TEXT]); /* for messages */

/* One value as a tensor of x's dtype that broadcasts. */
tn_tensor nn_scalar(tn_tensor x, double value);
/* The sum along axis; of halves as f32: 65,505 ones would be infinite. */
tn_tensor nn_row_sum(tn_tensor x, int64_t axis, int keep);

#endif
