/* tenon_linalg.h - linear algebra of small and batched matrices: factorisations, solving, determinants, eigenvalues, singular
 * values. Compositions of the builders of tenon.h, with the gradients of those (also of gradients).
 *
 * Matrices are the last two axes, [..,m,n]; all axes before are batches. f32 and f64 are computed as they are, f16 and bf16 in
 * f32, rounded once. Sizes must be numbers, not ranges (tn_dim). Triangular matrices are inverted by halves in log2(n) products
 * (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 14.2.2); the other factorisations are loops
 * (tn_scan) whose compile time does not depend on n. Loops run on the CPU only; up to 8 steps are written out, for any device.
 * What such a loop keeps for its gradient grows with n^3.
 *
 * Matrices that have no such factors (singular, not positive definite) give infinities or NaNs, not errors. Errors in shapes
 * and dtypes stay in the graph, as for all builders. */
#ifndef TENON_LINALG_H
#define TENON_LINALG_H

#include "tenon.h"

#ifdef __cplusplus
extern "C" {
#endif

/* a = L L^T of a symmetric positive definite matrix, of which the lower triangle is read: L, lower, zeros above. */
TN_API tn_tensor tn_linalg_cholesky(tn_tensor a /* f[..,n,n] */);

typedef struct {
    int upper;     /* t is upper triangular; 0: lower */
    int unit;      /* its diagonal is taken for ones */
    int transpose; /* of t^T x = b */
} tn_linalg_triangular_opts;
/* x of t x = b. The other triangle of t is not read. Leading axes are equal. */
TN_API tn_tensor tn_linalg_solve_triangular(tn_tensor t /* f[..,n,n] */, tn_tensor b /* f[..,n,k] */,
                                            tn_linalg_triangular_opts opts);

/* Rows of a in the order out_rows i64[..,n] are L U, with partial pivoting: the result has U on and above its diagonal and L,
 * whose diagonal is ones, below. out_sign f[..]: 1 or -1, that of the order. Both may be NULL. */
TN_API tn_tensor tn_linalg_lu(tn_tensor a /* f[..,n,n] */, tn_tensor *out_rows, tn_tensor *out_sign);
TN_API tn_tensor tn_linalg_solve(tn_tensor a /* f[..,n,n] */, tn_tensor b /* f[..,n,k] */); /* x of a x = b, by LU */
TN_API tn_tensor tn_linalg_inverse(tn_tensor a /* f[..,n,n] */);
TN_API tn_tensor tn_linalg_det(tn_tensor a /* f[..,n,n] */); /* f[..] */
/* log |det a|, f[..]; out_sign f[..] (may be NULL): -1, 0 or 1. */
TN_API tn_tensor tn_linalg_slogdet(tn_tensor a /* f[..,n,n] */, tn_tensor *out_sign);

/* a = q r by Householder reflections: q f[..,m,k] has orthonormal columns, out_r f[..,k,n] (may be NULL) is upper triangular,
 * k = min(m, n). Signs of the diagonal of r are as they come. */
TN_API tn_tensor tn_linalg_qr(tn_tensor a /* f[..,m,n] */, tn_tensor *out_r);

/* Eigenvalues of a symmetric matrix, rising: f[..,n]; out_vectors f[..,n,n] (may be NULL): in its columns. Jacobi's method, all
 * disjoint pairs of a round together (Brent and Luk 1985), in `sweeps` sweeps (0: 10, for f64 12). Gradients of vectors do not
 * exist where eigenvalues are equal. */
TN_API tn_tensor tn_linalg_eigh(tn_tensor a /* f[..,n,n] */, int sweeps, tn_tensor *out_vectors);
/* Singular values of a, falling: f[..,k], k = min(m, n); a = u diag(s) v^T with out_u f[..,m,k] and out_v f[..,n,k] (each may
 * be NULL). One-sided Jacobi (Hestenes 1958). Columns of u (of v where m < n) for singular values of 0 are 0. */
TN_API tn_tensor tn_linalg_svd(tn_tensor a /* f[..,m,n] */, int sweeps, tn_tensor *out_u, tn_tensor *out_v);

#if !defined(TN_NO_LOCATIONS) && !defined(TN_BUILDING)
#define tn_linalg_cholesky(x) (tn_linalg_cholesky)(tn_at(x, TN_HERE))
#define tn_linalg_solve_triangular(x, ...) (tn_linalg_solve_triangular)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_linalg_lu(x, ...) (tn_linalg_lu)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_linalg_solve(x, ...) (tn_linalg_solve)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_linalg_inverse(x) (tn_linalg_inverse)(tn_at(x, TN_HERE))
#define tn_linalg_det(x) (tn_linalg_det)(tn_at(x, TN_HERE))
#define tn_linalg_slogdet(x, ...) (tn_linalg_slogdet)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_linalg_qr(x, ...) (tn_linalg_qr)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_linalg_eigh(x, ...) (tn_linalg_eigh)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_linalg_svd(x, ...) (tn_linalg_svd)(tn_at(x, TN_HERE), __VA_ARGS__)
#endif

#ifdef __cplusplus
}
#endif
#endif
