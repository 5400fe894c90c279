/* jacobi.c - eigenvalues of symmetric matrices and singular values by Jacobi's method (tenon_linalg.h).
 *
 * In: f[..,m,n]. Out: compositions. A round turns n/2 disjoint pairs of columns at once: the first half of the columns against
 * the second; between rounds all but the first column move on by one place in a ring, so that in n-1 rounds each meets each
 * (Brent and Luk, SIAM J. Sci. Stat. Comput. 6, 1985) and stands where it stood. So all rounds are the same step. */
#include "linalg.h"

enum { SWEEPS = 10, MORE_SWEEPS = 12 /* for f64 */, MOST_SIZE = 1 << 12 };

typedef struct turn { /* cosines and sines, [b,n/2] */
    tn_tensor c, s;
} turn;

/* The smaller angle that makes off [b,h] zero between elements (or squared lengths) that differ by apart: Golub and Van Loan,
 * Matrix Computations, 4th ed., section 8.5.2. */
static turn find_turn(tn_tensor apart, tn_tensor off) {
    tn_tensor e = tn_mul_scalar(off, 2), zero = nn_scalar(off, 0), one = nn_scalar(off, 1);
    tn_tensor squares = tn_add(tn_mul(apart, apart), tn_mul(e, e)), none = tn_eq(squares, zero);
    tn_tensor root = tn_sqrt(tn_select(none, one, squares)), sum = tn_add(tn_abs(apart), root);
    tn_tensor t = tn_select(none, zero, tn_div(tn_select(tn_lt(apart, zero), tn_neg(e), e), sum));
    tn_tensor c = tn_rsqrt(tn_add_scalar(tn_mul(t, t), 1));
    return (turn){ c, tn_mul(t, c) };
}

/* The halves of axis (1 or 2) of x turned against each other. */
static tn_tensor turned(tn_tensor x, int axis, const turn *by, int64_t h) {
    tn_tensor p = linalg_part(x, axis, 0, h), q = linalg_part(x, axis, h, h);
    tn_tensor c = linalg_wider(by->c, axis == 1 ? 2 : 1), s = linalg_wider(by->s, axis == 1 ? 2 : 1);
    tn_tensor parts[] = { tn_sub(tn_mul(c, p), tn_mul(s, q)), tn_add(tn_mul(s, p), tn_mul(c, q)) };
    return tn_concat(parts, 2, axis);
}

typedef struct ring {
    int64_t n; /* even */
    const int64_t *from;
} ring;
static tn_tensor moved_on(tn_tensor x, int axis, const ring *r) {
    return r->n == 2 ? x : tn_gather(x, tn_const(x.graph, TN_I64, TN_DIMS(r->n), r->from), axis);
}
static void fill_ring(int64_t *from, int64_t n) {
    int64_t h = n / 2;
    for (int64_t i = 0; i < n; i++) from[i] = i < 2 ? i : i < h ? i - 1 : i + 1;
    if (h > 1) from[1] = h, from[n - 1] = h - 1;
}

static void eigh_round(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    const ring *r = ud;
    int64_t h = r->n / 2;
    (void)g;
    tn_tensor d = linalg_diagonal(in[0]);
    tn_tensor off = linalg_diagonal(linalg_part(linalg_part(in[0], 1, 0, h), 2, h, h));
    turn by = find_turn(tn_sub(linalg_part(d, 1, h, h), linalg_part(d, 1, 0, h)), off);
    tn_tensor a = turned(turned(in[0], 1, &by, h), 2, &by, h);
    out[0] = moved_on(moved_on(a, 1, r), 2, r);
    out[1] = moved_on(turned(in[1], 2, &by, h), 2, r);
}

static void svd_round(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    const ring *r = ud;
    int64_t h = r->n / 2, axis = 1;
    (void)g;
    tn_tensor p = linalg_part(in[0], 2, 0, h), q = linalg_part(in[0], 2, h, h);
    tn_tensor apart = tn_sub(tn_sum(tn_mul(q, q), &axis, 1, 0), tn_sum(tn_mul(p, p), &axis, 1, 0));
    turn by = find_turn(apart, tn_sum(tn_mul(p, q), &axis, 1, 0));
    out[0] = moved_on(turned(in[0], 2, &by, h), 2, r);
    out[1] = moved_on(turned(in[1], 2, &by, h), 2, r);
}

/* Runs the rounds on carry, of n columns (even). False and an error where memory ran out. */
static bool run_rounds(tn_tensor carry[2], int64_t n, int sweeps, tn_body round) {
    tn_ctx *ctx = tn_graph_ctx(carry[0].graph);
    if (sweeps < 1) sweeps = tn_tensor_dtype(carry[0]) == TN_F64 ? MORE_SWEEPS : SWEEPS;
    size_t bytes = (size_t)n * sizeof(int64_t);
    int64_t *from = tn_ctx_realloc(ctx, NULL, 0, bytes);
    if (!from) {
        nn_fail(carry[0].graph, TN_ERR_NOMEM, "out of memory: %lld columns", (long long)n);
        return false;
    }
    fill_ring(from, n);
    ring r = { n, from };
    linalg_loop(carry[0].graph, n == 2 ? 1 : sweeps * (n - 1), carry, 2, round, &r, NULL, 0);
    tn_ctx_realloc(ctx, from, bytes, 0);
    return true;
}

static bool check_size(const matrix *x, const char *fn) {
    if (x->m <= MOST_SIZE && x->n <= MOST_SIZE) return true;
    nn_fail(x->x.graph, TN_ERR_UNSUPPORTED, "%s: matrices of %lld x %lld; up to %d", fn, (long long)x->m, (long long)x->n,
            MOST_SIZE);
    return false;
}

/* Columns of x [b,m,n] in the order [b,n]. */
static tn_tensor columns_by(tn_tensor x, tn_tensor order) {
    return tn_take_along(x, tn_expand(linalg_wider(order, 1), tn_tensor_shape(x)), 2);
}

tn_tensor tn_linalg_eigh(tn_tensor a, int sweeps, tn_tensor *out_vectors) {
    static const char fn[] = "tn_linalg_eigh";
    matrix x;
    if (out_vectors) *out_vectors = (tn_tensor){ a.graph, 0 };
    if (!linalg_open(a, fn, true, &x) || !check_size(&x, fn)) return (tn_tensor){ a.graph, 0 };
    int64_t n = x.n, even = n + n % 2, none[3] = { 0 }, more[3] = { 0, even - n, even - n };
    tn_tensor carry[] = { x.x, tn_expand(linalg_eye(x.x, even), TN_DIMS(x.b, even, even)) };
    if (even > n) carry[0] = tn_pad(x.x, none, more, 3, 0); /* a row and a column that nothing turns */
    if (n > 1 && !run_rounds(carry, even, sweeps, eigh_round)) return (tn_tensor){ a.graph, 0 };
    tn_tensor w = linalg_part(linalg_diagonal(carry[0]), 1, 0, n), order = tn_argsort(w, 1, 0);
    if (out_vectors) {
        tn_tensor v = linalg_part(linalg_part(carry[1], 1, 0, n), 2, 0, n);
        *out_vectors = linalg_close(&x, columns_by(v, order), 2);
    }
    return linalg_close(&x, tn_take_along(w, order, 1), 1);
}

tn_tensor tn_linalg_svd(tn_tensor a, int sweeps, tn_tensor *out_u, tn_tensor *out_v) {
    static const char fn[] = "tn_linalg_svd";
    matrix x;
    if (out_u) *out_u = (tn_tensor){ a.graph, 0 };
    if (out_v) *out_v = (tn_tensor){ a.graph, 0 };
    if (!linalg_open(a, fn, false, &x) || !check_size(&x, fn)) return (tn_tensor){ a.graph, 0 };
    bool wide = x.m < x.n;
    int64_t n = wide ? x.m : x.n, even = n + n % 2, none[3] = { 0 }, more[3] = { 0, 0, even - n };
    tn_tensor carry[] = { wide ? tn_transpose(x.x, 1, 2) : x.x, tn_expand(linalg_eye(x.x, even), TN_DIMS(x.b, even, even)) };
    if (even > n) carry[0] = tn_pad(carry[0], none, more, 3, 0);
    if (n > 1 && !run_rounds(carry, even, sweeps, svd_round)) return (tn_tensor){ a.graph, 0 };
    int64_t axis = 1;
    tn_tensor u = linalg_part(carry[0], 2, 0, n), v = linalg_part(linalg_part(carry[1], 1, 0, n), 2, 0, n);
    tn_tensor s = linalg_root(tn_sum(tn_mul(u, u), &axis, 1, 0)), order = tn_argsort(s, 1, 1);
    s = tn_take_along(s, order, 1), u = columns_by(u, order), v = columns_by(v, order);
    tn_tensor zero = tn_eq(s, nn_scalar(s, 0)), lengths = linalg_wider(tn_select(zero, nn_scalar(s, 1), s), 1);
    u = tn_div(u, lengths);
    if (out_u) *out_u = linalg_close(&x, wide ? v : u, 2);
    if (out_v) *out_v = linalg_close(&x, wide ? u : v, 2);
    return linalg_close(&x, s, 1);
}
