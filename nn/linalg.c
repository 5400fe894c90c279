/* linalg.c - matrices as batches, loops over steps, triangular systems, and Cholesky, LU and QR (tenon_linalg.h).
 *
 * In: f[..,m,n]. Out: compositions; memory is the graph's. A step of a factorisation works on the whole matrix: masks say which
 * rows and columns it changes, and the step's own row and column are gathered. */
#include "linalg.h"

enum { WRITTEN_OUT = 8 /* steps: more are a loop */, MOST_CARRIED = 4 };

/* ---- matrices ---- */

bool linalg_open(tn_tensor x, const char *fn, bool square, matrix *out) {
    tn_shape s;
    if (!nn_check(x, fn, 2, &s)) return false;
    *out = (matrix){ .b = 1, .given = s, .t = tn_tensor_dtype(x) };
    for (int i = s.rank - 2; i < s.rank; i++)
        if (s.dim[i] < 0) {
            nn_fail(x.graph, TN_ERR_UNSUPPORTED, "%s: dim %d of the matrices has a range of sizes", fn, i);
            return false;
        }
    out->b = nn_product(x.graph, s.dim, s.rank - 2);
    out->m = s.dim[s.rank - 2], out->n = s.dim[s.rank - 1];
    if (square && out->m != out->n) {
        nn_fail(x.graph, TN_ERR_SHAPE, "%s: matrices of %lld rows and %lld columns are not square", fn, (long long)out->m,
                (long long)out->n);
        return false;
    }
    if (out->t == TN_F16 || out->t == TN_BF16) x = tn_cast(x, TN_F32);
    out->x = tn_reshape(x, TN_DIMS(out->b, out->m, out->n));
    return true;
}
tn_tensor linalg_close(const matrix *a, tn_tensor x, int rank) {
    tn_shape s = tn_tensor_shape(x), out = a->given;
    if (s.rank < 0) return x;
    out.rank = a->given.rank - 2;
    for (int i = 0; i < rank; i++) out.dim[out.rank++] = s.dim[i + 1];
    x = tn_reshape(x, out);
    return tn_tensor_dtype(x) == TN_I64 ? x : tn_cast(x, a->t);
}

void linalg_loop(tn_graph *g, int64_t n, tn_tensor *carry, int n_carry, tn_body body, void *ud, tn_tensor *ys, int n_ys) {
    tn_tensor in[MOST_CARRIED + 1], out[2 * MOST_CARRIED], slices[MOST_CARRIED][WRITTEN_OUT];
    if (n > WRITTEN_OUT) {
        tn_tensor steps = tn_iota(g, TN_I64, TN_DIMS(n), 0);
        tn_scan_opts o = { .carry = carry, .n_carry = n_carry, .xs = &steps, .n_xs = 1, .n_ys = n_ys, .length = n };
        tn_scan(g, &o, body, ud, out);
        for (int i = 0; i < n_carry; i++) carry[i] = out[i];
        for (int i = 0; i < n_ys; i++) ys[i] = out[n_carry + i];
        return;
    }
    for (int64_t k = 0; k < n; k++) {
        for (int i = 0; i < n_carry; i++) in[i] = carry[i];
        in[n_carry] = tn_full(g, TN_I64, TN_SCALAR, (double)k);
        body(g, ud, in, out);
        for (int i = 0; i < n_carry; i++) carry[i] = out[i];
        for (int i = 0; i < n_ys; i++) slices[i][k] = out[n_carry + i];
    }
    for (int i = 0; i < n_ys && n > 0; i++) ys[i] = tn_nn_stack(slices[i], (int)n, 0);
}

tn_tensor linalg_iota(tn_graph *g, int64_t n, int axis, int rank) {
    tn_shape s = { .rank = rank };
    for (int i = 0; i < rank; i++) s.dim[i] = i == axis ? n : 1;
    return tn_iota(g, TN_I64, s, axis);
}
tn_tensor linalg_eye(tn_tensor like, int64_t n) {
    tn_tensor same = tn_eq(linalg_iota(like.graph, n, 1, 3), linalg_iota(like.graph, n, 2, 3));
    return tn_cast(same, tn_tensor_dtype(like));
}
tn_tensor linalg_or_zero(tn_tensor mask, tn_tensor x) { return tn_select(mask, x, nn_scalar(x, 0)); }
tn_tensor linalg_part(tn_tensor x, int axis, int64_t from, int64_t n) {
    tn_shape s = tn_tensor_shape(x);
    int64_t start[TN_MAX_RANK] = { 0 };
    if (s.rank < 0 || (!from && n == s.dim[axis])) return x;
    start[axis] = from, s.dim[axis] = from + n;
    return tn_slice(x, start, s.dim, NULL, s.rank);
}
tn_tensor linalg_wider(tn_tensor x, int axis) {
    tn_shape s = tn_tensor_shape(x);
    if (s.rank < 0) return x;
    for (int i = s.rank++; i > axis; i--) s.dim[i] = s.dim[i - 1];
    s.dim[axis] = 1;
    return tn_reshape(x, s);
}
tn_tensor linalg_diagonal(tn_tensor x) {
    tn_shape s = tn_tensor_shape(x);
    if (s.rank < 0 || !s.dim[1]) return s.rank < 0 ? x : tn_reshape(x, TN_DIMS(s.dim[0], 0));
    int64_t n = s.dim[1], start[2] = { 0, 0 }, stop[2] = { s.dim[0], n * n }, step[2] = { 1, n + 1 };
    return tn_slice(tn_reshape(x, TN_DIMS(s.dim[0], n * n)), start, stop, step, 2);
}
tn_tensor linalg_triangle(tn_tensor x, bool upper, bool strict) {
    tn_shape s = tn_tensor_shape(x);
    if (s.rank < 0) return x;
    tn_tensor row = linalg_iota(x.graph, s.dim[1], 1, 3), column = linalg_iota(x.graph, s.dim[2], 2, 3);
    tn_tensor low = upper ? row : column, high = upper ? column : row;
    return linalg_or_zero(strict ? tn_lt(low, high) : tn_le(low, high), x);
}
tn_tensor linalg_root(tn_tensor squares) {
    tn_tensor zero = nn_scalar(squares, 0), none = tn_eq(squares, zero);
    return tn_select(none, zero, tn_sqrt(tn_select(none, nn_scalar(squares, 1), squares)));
}
static tn_tensor transposed(tn_tensor x) { return tn_transpose(x, 1, 2); }

/* ---- triangular ---- */

/* The blocks of `size` on the diagonal of x [b,n,n]: [b,n/size,size,size]. */
static tn_tensor diagonal_blocks(tn_tensor x, int64_t b, int64_t n, int64_t size) {
    int64_t k = n / size, perm[] = { 0, 1, 3, 2, 4 };
    if (k == 1) return tn_reshape(x, TN_DIMS(b, 1, n, n));
    x = tn_permute(tn_reshape(x, TN_DIMS(b, k, size, k, size)), perm, 5);
    int64_t start[3] = { 0 }, stop[3] = { b, k * k, size * size }, step[3] = { 1, k + 1, 1 };
    return tn_reshape(tn_slice(tn_reshape(x, TN_DIMS(b, k * k, size * size)), start, stop, step, 3), TN_DIMS(b, k, size, size));
}

/* The inverse of a lower triangular matrix: of blocks on its diagonal, of which two are put together in each step,
 * inv [A 0; C B] = [inv A  0; -inv B C inv A  inv B]. */
static tn_tensor inverse_lower(tn_tensor l, int64_t b, int64_t n) {
    int64_t full = 1, none[3] = { 0 };
    while (full < n) full *= 2;
    int64_t more[3] = { 0, full - n, full - n };
    tn_tensor one = nn_scalar(l, 1);
    if (full > n) { /* ones on the diagonal behind */
        tn_tensor behind = tn_ge(linalg_iota(l.graph, full, 1, 3), tn_full(l.graph, TN_I64, TN_SCALAR, (double)n));
        l = tn_add(tn_pad(l, none, more, 3, 0), linalg_or_zero(behind, linalg_eye(l, full)));
    }
    tn_tensor inv = tn_reshape(tn_div(one, linalg_diagonal(l)), TN_DIMS(b, full, 1, 1));
    for (int64_t s = 1; s < full; s *= 2) {
        int64_t k = full / (2 * s);
        tn_tensor pairs = tn_reshape(inv, TN_DIMS(b, k, 2, s * s));
        tn_tensor first = tn_reshape(linalg_part(pairs, 2, 0, 1), TN_DIMS(b, k, s, s)),
                  second = tn_reshape(linalg_part(pairs, 2, 1, 1), TN_DIMS(b, k, s, s));
        tn_tensor below = linalg_part(linalg_part(diagonal_blocks(l, b, full, 2 * s), 2, s, s), 3, 0, s);
        tn_tensor corner = tn_neg(tn_matmul(second, tn_matmul(below, first)));
        int64_t right[4] = { 0, 0, 0, s };
        tn_tensor rows[] = { tn_pad(first, (int64_t[4]){ 0 }, right, 4, 0), tn_concat((tn_tensor[]){ corner, second }, 2, 3) };
        inv = tn_concat(rows, 2, 2);
    }
    return linalg_part(linalg_part(tn_reshape(inv, TN_DIMS(b, full, full)), 1, 0, n), 2, 0, n);
}
static tn_tensor inverse_triangular(tn_tensor t, int64_t b, int64_t n, bool upper, bool unit) {
    if (n == 0) return t;
    t = linalg_triangle(t, upper, unit);
    if (unit) t = tn_add(t, linalg_eye(t, n));
    return upper ? transposed(inverse_lower(transposed(t), b, n)) : inverse_lower(t, b, n);
}

static bool open_sides(tn_tensor a, tn_tensor b, const char *fn, matrix *x, matrix *y) {
    if (!linalg_open(a, fn, true, x) || !linalg_open(b, fn, false, y)) return false;
    bool fits = x->given.rank == y->given.rank && x->n == y->m && x->t == y->t;
    for (int i = 0; fits && i < x->given.rank - 2; i++) fits = x->given.dim[i] == y->given.dim[i];
    if (!fits)
        nn_fail(a.graph, TN_ERR_SHAPE,
                "%s: matrices of rank %d and %lld rows, and sides of rank %d and %lld rows, or dtypes, do "
                "not fit",
                fn, x->given.rank, (long long)x->n, y->given.rank, (long long)y->m);
    return fits;
}

tn_tensor tn_linalg_solve_triangular(tn_tensor t, tn_tensor b, tn_linalg_triangular_opts o) {
    matrix a, y;
    if (!open_sides(t, b, "tn_linalg_solve_triangular", &a, &y)) return (tn_tensor){ t.graph, 0 };
    tn_tensor inv = inverse_triangular(a.x, a.b, a.n, o.upper != 0, o.unit != 0);
    return linalg_close(&y, tn_matmul(o.transpose ? transposed(inv) : inv, y.x), 2);
}

/* ---- Cholesky ---- */

static tn_tensor outer(tn_tensor column, tn_tensor row) { return tn_mul(linalg_wider(column, 2), linalg_wider(row, 1)); }

/* Column k of what is left, over the root of its diagonal element, and what is left without it. */
static void cholesky_step(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    tn_tensor k = in[1], column = tn_gather(in[0], k, 2), pivot = linalg_wider(tn_gather(column, k, 1), 1);
    tn_tensor below = tn_ge(linalg_iota(g, *(int64_t *)ud, 1, 2), k);
    tn_tensor l = linalg_or_zero(below, tn_div(column, tn_sqrt(pivot)));
    out[0] = tn_sub(in[0], outer(l, l)), out[1] = l;
}

tn_tensor tn_linalg_cholesky(tn_tensor a) {
    matrix x;
    tn_tensor columns = { a.graph, 0 };
    if (!linalg_open(a, "tn_linalg_cholesky", true, &x)) return columns;
    if (x.n == 0) return a;
    linalg_loop(a.graph, x.n, &x.x, 1, cholesky_step, &x.n, &columns, 1);
    int64_t perm[] = { 1, 2, 0 };
    return linalg_close(&x, tn_permute(columns, perm, 3), 2);
}

/* ---- LU ---- */

typedef struct lu_size {
    int64_t b, n;
} lu_size;

/* in: what the matrix has become [b,n,n], the order of its rows i64[b,n], its sign [b] */
static void lu_step(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    const lu_size *size = ud;
    tn_tensor k = in[3], at = linalg_iota(g, size->n, 1, 2), column = tn_gather(in[0], k, 2);
    tn_tensor left = tn_select(tn_ge(at, k), tn_abs(column), nn_scalar(column, -1));
    tn_tensor best = tn_argmax(left, 1, 1); /* [b,1] */
    tn_tensor order = tn_select(tn_eq(at, k), best, tn_select(tn_eq(at, best), k, at));
    tn_tensor a = tn_take_along(in[0], tn_expand(linalg_wider(order, 2), TN_DIMS(size->b, size->n, size->n)), 1);
    tn_tensor row = tn_gather(a, k, 1), pivot = linalg_wider(tn_gather(row, k, 1), 1), none = tn_eq(pivot, nn_scalar(pivot, 0));
    tn_tensor factor = tn_div(tn_gather(a, k, 2), tn_select(none, nn_scalar(pivot, 1), pivot));
    factor = linalg_or_zero(tn_and(tn_gt(at, k), tn_not(none)), factor);
    tn_tensor right = tn_gt(linalg_iota(g, size->n, 2, 3), k), below = tn_gt(linalg_iota(g, size->n, 1, 3), k);
    tn_tensor here = tn_and(tn_eq(linalg_iota(g, size->n, 2, 3), k), below);
    a = tn_sub(a, linalg_or_zero(right, outer(factor, row)));
    out[0] = tn_select(here, tn_expand(linalg_wider(factor, 2), tn_tensor_shape(a)), a);
    out[1] = tn_take_along(in[1], order, 1);
    tn_tensor moved = tn_ne(tn_reshape(best, TN_DIMS(size->b)), k);
    out[2] = tn_select(moved, tn_neg(in[2]), in[2]);
}

/* x->x becomes the packed factors; rows i64[b,n], sign [b]. */
static void factor_lu(matrix *x, tn_tensor *rows, tn_tensor *sign) {
    tn_graph *g = x->x.graph;
    tn_tensor carry[] = { x->x, tn_expand(linalg_iota(g, x->n, 1, 2), TN_DIMS(x->b, x->n)),
                          tn_full(g, tn_tensor_dtype(x->x), TN_DIMS(x->b), 1) };
    lu_size size = { x->b, x->n };
    linalg_loop(g, x->n, carry, 3, lu_step, &size, NULL, 0);
    x->x = carry[0], *rows = carry[1], *sign = carry[2];
}

tn_tensor tn_linalg_lu(tn_tensor a, tn_tensor *out_rows, tn_tensor *out_sign) {
    matrix x;
    tn_tensor rows = { a.graph, 0 }, sign = rows;
    bool ok = linalg_open(a, "tn_linalg_lu", true, &x);
    if (ok) factor_lu(&x, &rows, &sign);
    if (out_rows) *out_rows = ok ? linalg_close(&x, rows, 1) : rows;
    if (out_sign) *out_sign = ok ? linalg_close(&x, sign, 0) : sign;
    return ok ? linalg_close(&x, x.x, 2) : rows;
}

/* The right sides in the order of rows, then both factors. */
static tn_tensor solve(matrix *x, tn_tensor b, int64_t k) {
    tn_tensor rows, sign;
    if (x->n == 0) return b;
    factor_lu(x, &rows, &sign);
    b = tn_take_along(b, tn_expand(linalg_wider(rows, 2), TN_DIMS(x->b, x->n, k)), 1);
    b = tn_matmul(inverse_triangular(x->x, x->b, x->n, false, true), b);
    return tn_matmul(inverse_triangular(x->x, x->b, x->n, true, false), b);
}
tn_tensor tn_linalg_solve(tn_tensor a, tn_tensor b) {
    matrix x, y;
    if (!open_sides(a, b, "tn_linalg_solve", &x, &y)) return (tn_tensor){ a.graph, 0 };
    return linalg_close(&y, solve(&x, y.x, y.n), 2);
}
tn_tensor tn_linalg_inverse(tn_tensor a) {
    matrix x;
    if (!linalg_open(a, "tn_linalg_inverse", true, &x)) return (tn_tensor){ a.graph, 0 };
    tn_tensor eye = tn_expand(linalg_eye(x.x, x.n), TN_DIMS(x.b, x.n, x.n));
    return linalg_close(&x, solve(&x, eye, x.n), 2);
}
tn_tensor tn_linalg_det(tn_tensor a) {
    matrix x;
    tn_tensor rows, sign;
    int64_t axis = 1;
    if (!linalg_open(a, "tn_linalg_det", true, &x)) return (tn_tensor){ a.graph, 0 };
    factor_lu(&x, &rows, &sign);
    return linalg_close(&x, tn_mul(sign, tn_prod(linalg_diagonal(x.x), &axis, 1, 0)), 0);
}
tn_tensor tn_linalg_slogdet(tn_tensor a, tn_tensor *out_sign) {
    matrix x;
    tn_tensor rows, sign;
    int64_t axis = 1;
    if (out_sign) *out_sign = (tn_tensor){ a.graph, 0 };
    if (!linalg_open(a, "tn_linalg_slogdet", true, &x)) return (tn_tensor){ a.graph, 0 };
    factor_lu(&x, &rows, &sign);
    tn_tensor d = linalg_diagonal(x.x);
    if (out_sign) *out_sign = linalg_close(&x, tn_mul(sign, tn_prod(tn_sign(d), &axis, 1, 0)), 0);
    return linalg_close(&x, tn_sum(tn_log(tn_abs(d)), &axis, 1, 0), 0);
}

/* ---- QR ---- */

/* in: r [b,m,n], q [b,m,m]. The reflection that takes the rest of column k of r onto its first axis. */
static void qr_step(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    int64_t m = *(int64_t *)ud, axis = 1;
    tn_tensor k = in[2], at = linalg_iota(g, m, 1, 2), x = linalg_or_zero(tn_ge(at, k), tn_gather(in[0], k, 2));
    tn_tensor length = linalg_root(tn_sum(tn_mul(x, x), &axis, 1, 1)), head = linalg_wider(tn_gather(x, k, 1), 1);
    tn_tensor to = tn_select(tn_lt(head, nn_scalar(head, 0)), length, tn_neg(length));
    tn_tensor v = tn_sub(x, linalg_or_zero(tn_eq(at, k), to)), squares = tn_sum(tn_mul(v, v), &axis, 1, 1);
    tn_tensor none = tn_eq(squares, nn_scalar(squares, 0));
    tn_tensor w = linalg_or_zero(tn_not(none), tn_div(tn_mul_scalar(v, 2), tn_select(none, nn_scalar(squares, 1), squares)));
    tn_tensor row = tn_matmul(linalg_wider(v, 1), in[0]), column = tn_matmul(in[1], linalg_wider(v, 2));
    out[0] = tn_sub(in[0], tn_mul(linalg_wider(w, 2), row));
    out[1] = tn_sub(in[1], tn_mul(column, linalg_wider(w, 1)));
}

tn_tensor tn_linalg_qr(tn_tensor a, tn_tensor *out_r) {
    matrix x;
    if (out_r) *out_r = (tn_tensor){ a.graph, 0 };
    if (!linalg_open(a, "tn_linalg_qr", false, &x)) return (tn_tensor){ a.graph, 0 };
    int64_t k = x.m < x.n ? x.m : x.n, steps = x.m - 1 < k ? x.m - 1 : k;
    tn_tensor carry[] = { x.x, tn_expand(linalg_eye(x.x, x.m), TN_DIMS(x.b, x.m, x.m)) };
    if (steps > 0) linalg_loop(a.graph, steps, carry, 2, qr_step, &x.m, NULL, 0);
    if (out_r) *out_r = linalg_close(&x, linalg_triangle(linalg_part(carry[0], 1, 0, k), true, false), 2);
    return linalg_close(&x, linalg_part(carry[1], 2, 0, k), 2);
}
