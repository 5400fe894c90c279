/* linalg.h - what the files of tenon_linalg.h share: matrices as [batch,m,n], loops over steps, elements by computed places. */
#ifndef TN_NN_LINALG_H
#define TN_NN_LINALG_H

#include "nn.h"

#include "tenon/tenon_linalg.h"

typedef struct matrix { /* x: [b,m,n], f32 or f64 */
    tn_tensor x;
    int64_t b, m, n;
    tn_shape given;
    tn_dtype t; /* as it was given */
} matrix;

/* False, and an error in the name of fn, where x is no float tensor of rank 2 or more with known sizes. */
bool linalg_open(tn_tensor x, const char *fn, bool square, matrix *out);
/* x [b,d..] as [..,d..] with the given leading axes, in the dtype given; rank: how many axes d there are. */
tn_tensor linalg_close(const matrix *a, tn_tensor x, int rank);

/* Calls body n times with what is carried, then the step's number i64[]; it gives what is carried on, then one slice for each
 * of ys, which become stacks [n,..]. carry is both in and out. */
void linalg_loop(tn_graph *g, int64_t n, tn_tensor *carry, int n_carry, tn_body body, void *ud, tn_tensor *ys, int n_ys);

tn_tensor linalg_eye(tn_tensor like, int64_t n);                   /* [1,n,n] */
tn_tensor linalg_iota(tn_graph *g, int64_t n, int axis, int rank); /* i64: sizes 1 but n along axis */
tn_tensor linalg_diagonal(tn_tensor x);                            /* [b,n,n] to [b,n] */
tn_tensor linalg_triangle(tn_tensor x, bool upper, bool strict);   /* zeros elsewhere */
tn_tensor linalg_part(tn_tensor x, int axis, int64_t from, int64_t n);
tn_tensor linalg_wider(tn_tensor x, int axis); /* a new axis of size 1 */
tn_tensor linalg_or_zero(tn_tensor mask, tn_tensor x);
tn_tensor linalg_root(tn_tensor squares); /* sqrt; its derivative at 0 is 0 */

#endif
