/* test_linalg.c - tenon_linalg.h: what factors must satisfy, in double, over sizes and batches; gradients; singular and
 * indefinite matrices; refused calls.
 *
 * Labels: long */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/trial.h"
#include "tenon/tenon_linalg.h"

#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

static const int sizes[] = { 1, 2, 3, 4, 5, 8, 9, 13, 20 };

/* c [m,n] = a [m,k] b [k,n]; ta: a is [k,m], tb: b is [n,k] */
static double *product(trial *t, const double *a, bool ta, const double *b, bool tb, int m, int k, int n) {
    double *c = ARENA_ARRAY(&t->a, double, m *n + 1);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            c[i * n + j] = 0;
            for (int l = 0; l < k; l++) c[i * n + j] += (ta ? a[l * m + i] : a[i * k + l]) * (tb ? b[j * k + l] : b[l * n + j]);
        }
    return c;
}
static double *eye(trial *t, int n) {
    double *c = ARENA_ARRAY(&t->a, double, n *n + 1);
    for (int i = 0; i < n * n; i++) c[i] = i % (n + 1) == 0;
    return c;
}
/* Values of a symmetric positive definite input [batch,n,n]. */
static void make_definite(trial *t, tn_tensor x, int batch, int n) {
    double *v = trial_values(t, x);
    for (int b = 0; b < batch; b++) {
        double *a = v + b * n * n, *s = product(t, a, false, a, true, n, n, n);
        for (int i = 0; i < n * n; i++) a[i] = s[i] + (i % (n + 1) == 0 ? 0.5 : 0);
    }
}
static void make_symmetric(trial *t, tn_tensor x, int batch, int n) {
    double *v = trial_values(t, x);
    for (int b = 0; b < batch; b++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < i; j++) v[(b * n + i) * n + j] = v[(b * n + j) * n + i];
}
/* The determinant, by elimination with full pivoting of nothing but rows. */
static double determinant(trial *t, const double *a, int n) {
    double *m = arena_copy(&t->a, a, sizeof *m * (size_t)(n * n)), d = 1;
    for (int k = 0; k < n; k++) {
        int p = k;
        for (int i = k; i < n; i++)
            if (fabs(m[i * n + k]) > fabs(m[p * n + k])) p = i;
        if (m[p * n + k] == 0) return 0;
        if (p != k) d = -d;
        for (int j = 0; j < n; j++) {
            double x = m[k * n + j];
            m[k * n + j] = m[p * n + j], m[p * n + j] = x;
        }
        d *= m[k * n + k];
        for (int i = k + 1; i < n; i++)
            for (int j = n - 1; j >= k; j--) m[i * n + j] -= m[i * n + k] / m[k * n + k] * m[k * n + j];
    }
    return d;
}

static void definite_and_triangular(void **state) {
    (void)state;
    for (size_t c = 0; c < COUNT_OF(sizes); c++) {
        int n = sizes[c];
        trial *t = trial_open(c + 1);
        tn_tensor a = trial_floats(t, TN_DIMS(2, n, n), -1, 1), b = trial_floats(t, TN_DIMS(2, n, 3), -1, 1);
        make_definite(t, a, 2, n);
        tn_tensor l = tn_linalg_cholesky(a),
                  x[] = { l, tn_linalg_solve_triangular(a, b, (tn_linalg_triangular_opts){ 0 }),
                          tn_linalg_solve_triangular(a, b, (tn_linalg_triangular_opts){ .upper = 1, .transpose = 1 }),
                          tn_linalg_solve_triangular(a, b, (tn_linalg_triangular_opts){ .upper = 1 }) };
        const double *va = trial_values(t, a), *vl = trial_values(t, l), *vb = trial_values(t, b);
        for (int k = 0; k < 2; k++) {
            trial_near("L L^T", product(t, vl + k * n * n, false, vl + k * n * n, true, n, n, n), va + k * n * n, n * n, 1e-10);
            for (int i = 0; i < n; i++)
                for (int j = i + 1; j < n; j++) assert_true(vl[(k * n + i) * n + j] == 0);
            for (int way = 1; way < 4; way++) {
                double *tri = arena_copy(&t->a, va + k * n * n, sizeof *tri * (size_t)(n * n));
                for (int i = 0; i < n; i++)
                    for (int j = 0; j < n; j++)
                        if (way == 1 ? j > i : j < i) tri[i * n + j] = 0;
                const double *vx = trial_values(t, x[way]) + k * n * 3;
                trial_near("triangular", product(t, tri, way == 2, vx, false, n, n, 3), vb + k * n * 3, n * 3, 1e-6);
            }
        }
        trial_compiled(t, x, 1, 1e-9);
        if (n < 10) trial_gradients(t, l, 2e-5);
        if (n < 5) trial_gradients(t, x[1], 1e-4);
        trial_close(t);
    }
}

static void general(void **state) {
    (void)state;
    for (size_t c = 0; c < COUNT_OF(sizes); c++) {
        int n = sizes[c];
        trial *t = trial_open(c + 100);
        tn_tensor a = trial_floats(t, TN_DIMS(2, n, n), -1, 1), b = trial_floats(t, TN_DIMS(2, n, 2), -1, 1), rows, sign,
                  log_sign;
        double *va = trial_values(t, a), want[8];
        for (int i = 0; i < 2 * n * n; i++) va[i] += i % (n * n) % (n + 1) == 0 ? (i % 3 ? 2 : -2) : 0;
        tn_tensor y[] = { tn_linalg_lu(a, &rows, &sign),
                          tn_linalg_solve(a, b),
                          tn_linalg_inverse(a),
                          tn_linalg_det(a),
                          tn_linalg_slogdet(a, &log_sign),
                          log_sign,
                          rows };
        for (int k = 0; k < 2; k++) {
            const double *m = va + k * n * n, *x = trial_values(t, y[1]) + k * n * 2, *inv = trial_values(t, y[2]) + k * n * n;
            const double *lu = trial_values(t, y[0]) + k * n * n, *r = trial_values(t, rows) + k * n;
            double *low = eye(t, n), *up = eye(t, n), *moved = eye(t, n);
            for (int i = 0; i < n * n; i++)
                if (i % n < i / n)
                    low[i] = lu[i];
                else
                    up[i] = lu[i];
            for (int i = 0; i < n; i++)
                for (int j = 0; j < n; j++) {
                    if (j < i) up[i * n + j] = 0, assert_true(fabs(low[i * n + j]) <= 1 + 1e-12);
                    moved[i * n + j] = m[(int)r[i] * n + j];
                }
            trial_near("L U", product(t, low, false, up, false, n, n, n), moved, n * n, 1e-11);
            trial_near("A x", product(t, m, false, x, false, n, n, 2), trial_values(t, b) + k * n * 2, n * 2, 1e-9);
            trial_near("A inv", product(t, m, false, inv, false, n, n, n), eye(t, n), n * n, 1e-9);
            want[k] = determinant(t, m, n), want[2 + k] = log(fabs(want[k])), want[4 + k] = want[k] > 0 ? 1 : -1;
        }
        trial_near("det", trial_values(t, y[3]), want, 2, 1e-10);
        trial_near("log det", trial_values(t, y[4]), want + 2, 2, 1e-10);
        trial_near("sign", trial_values(t, y[5]), want + 4, 2, 0);
        trial_compiled(t, y, 7, 1e-8);
        if (n < 6) trial_gradients(t, y[1], 1e-4), trial_gradients(t, y[3], 1e-4), trial_gradients(t, y[4], 1e-4);
        trial_close(t);
    }
}

static void orthogonal(void **state) {
    (void)state;
    static const int shapes[][2] = { { 1, 1 }, { 3, 3 }, { 4, 2 }, { 2, 4 }, { 9, 9 }, { 12, 5 }, { 5, 12 } };
    for (size_t c = 0; c < COUNT_OF(shapes); c++) {
        int m = shapes[c][0], n = shapes[c][1], k = m < n ? m : n;
        trial *t = trial_open(c + 200);
        tn_tensor a = trial_floats(t, TN_DIMS(2, m, n), -1, 1), y[2];
        y[0] = tn_linalg_qr(a, &y[1]);
        for (int b = 0; b < 2; b++) {
            const double *q = trial_values(t, y[0]) + b * m * k, *r = trial_values(t, y[1]) + b * k * n;
            trial_near("Q R", product(t, q, false, r, false, m, k, n), trial_values(t, a) + b * m * n, m * n, 1e-12);
            trial_near("Q^T Q", product(t, q, true, q, false, k, m, k), eye(t, k), k * k, 1e-12);
            for (int i = 0; i < k; i++)
                for (int j = 0; j < i && j < n; j++) assert_true(r[i * n + j] == 0);
        }
        trial_compiled(t, y, 2, 1e-11);
        if (m < 5) trial_gradients(t, y[0], 1e-5), trial_gradients(t, y[1], 1e-5);
        trial_close(t);
    }
}

static void eigen(void **state) {
    (void)state;
    for (size_t c = 0; c < COUNT_OF(sizes); c++) {
        int n = sizes[c];
        trial *t = trial_open(c + 300);
        tn_tensor a = trial_floats(t, TN_DIMS(2, n, n), -1, 1), y[2];
        make_symmetric(t, a, 2, n);
        y[0] = tn_linalg_eigh(a, 0, &y[1]);
        for (int b = 0; b < 2; b++) {
            const double *w = trial_values(t, y[0]) + b * n, *v = trial_values(t, y[1]) + b * n * n;
            double *scaled = arena_copy(&t->a, v, sizeof *scaled * (size_t)(n * n));
            for (int i = 0; i < n * n; i++) scaled[i] *= w[i % n];
            for (int i = 1; i < n; i++) assert_true(w[i - 1] <= w[i]);
            trial_near("V W V^T", product(t, scaled, false, v, true, n, n, n), trial_values(t, a) + b * n * n, n * n, 1e-11);
            trial_near("V^T V", product(t, v, true, v, false, n, n, n), eye(t, n), n * n, 1e-12);
        }
        trial_compiled(t, y, 2, 1e-8);
        if (n < 5) { /* of a symmetric function of a */
            tn_tensor even = tn_mul_scalar(tn_add(a, tn_transpose(a, 1, 2)), 0.5), v;
            tn_tensor w = tn_linalg_eigh(even, 0, &v);
            trial_gradients(t, w, 1e-5);
            trial_gradients(t, tn_mul(v, v), 1e-4);
        }
        trial_close(t);
    }
}

static void singular_values(void **state) {
    (void)state;
    static const int shapes[][2] = { { 1, 1 }, { 2, 2 }, { 3, 3 }, { 4, 3 }, { 3, 5 }, { 10, 7 }, { 9, 14 } };
    for (size_t c = 0; c < COUNT_OF(shapes); c++) {
        int m = shapes[c][0], n = shapes[c][1], k = m < n ? m : n;
        trial *t = trial_open(c + 400);
        tn_tensor a = trial_floats(t, TN_DIMS(2, m, n), -1, 1), y[3];
        y[0] = tn_linalg_svd(a, 0, &y[1], &y[2]);
        for (int b = 0; b < 2; b++) {
            const double *s = trial_values(t, y[0]) + b * k, *u = trial_values(t, y[1]) + b * m * k,
                         *v = trial_values(t, y[2]) + b * n * k;
            double *scaled = arena_copy(&t->a, u, sizeof *scaled * (size_t)(m * k));
            for (int i = 0; i < m * k; i++) scaled[i] *= s[i % k];
            for (int i = 0; i < k; i++) assert_true(s[i] >= 0 && (!i || s[i - 1] >= s[i]));
            trial_near("U S V^T", product(t, scaled, false, v, true, m, k, n), trial_values(t, a) + b * m * n, m * n, 1e-11);
            trial_near("U^T U", product(t, u, true, u, false, k, m, k), eye(t, k), k * k, 1e-10);
            trial_near("V^T V", product(t, v, true, v, false, k, n, k), eye(t, k), k * k, 1e-10);
        }
        trial_compiled(t, y, 3, 1e-7);
        if (m < 5 && n < 5) trial_gradients(t, y[0], 1e-4), trial_gradients(t, tn_mul(y[1], y[1]), 1e-3);
        trial_close(t);
    }
}

static void without_factors(void **state) {
    (void)state;
    trial *t = trial_open(9);
    tn_tensor a = trial_floats(t, TN_DIMS(3, 3), 0, 0), b = trial_floats(t, TN_DIMS(0, 4, 4), 0, 1), sign;
    double *v = trial_values(t, a);
    v[0] = -1, v[4] = 2;
    tn_tensor y[] = { tn_linalg_cholesky(a),       tn_linalg_det(a),
                      tn_linalg_slogdet(a, &sign), sign,
                      tn_linalg_cholesky(b),       tn_linalg_svd(a, 0, NULL, NULL),
                      tn_linalg_eigh(a, 0, NULL) };
    assert_true(isnan(trial_values(t, y[0])[0]));
    assert_true(trial_values(t, y[1])[0] == 0);
    assert_true(trial_values(t, y[2])[0] == -INFINITY && trial_values(t, sign)[0] == 0);
    assert_int_equal(trial_count(y[4]), 0);
    trial_near("svd", trial_values(t, y[5]), (double[]){ 2, 1, 0 }, 3, 1e-15);
    trial_near("eigh", trial_values(t, y[6]), (double[]){ -1, 0, 2 }, 3, 1e-15);
    trial_close(t);
}

/* f16 by way of f32; a loop of 40 steps has as many nodes as one of 20. */
static void half_types_and_size(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "size");
    assert_int_equal(tn_tensor_dtype(tn_linalg_inverse(tn_input(g, "h", TN_F16, TN_DIMS(3, 3)))), TN_F16);
    int nodes[2];
    for (int i = 0; i < 2; i++) {
        tn_graph *one = tn_graph_new(ctx, "n");
        tn_linalg_eigh(tn_input(one, "x", TN_F32, TN_DIMS(20 << i, 20 << i)), 0, NULL);
        assert_int_equal(tn_graph_status(one), TN_OK);
        nodes[i] = (int)tn_linalg_qr(tn_input(one, "y", TN_F32, TN_DIMS(20 << i, 20 << i)), NULL).id;
        tn_graph_free(one);
    }
    assert_true(abs(nodes[1] - nodes[0]) < 50);
    tn_graph_free(g), tn_ctx_free(ctx);
}

static void mistakes_are_named(void **state) {
    (void)state;
    trial *t = trial_open(1);
    tn_linalg_cholesky(trial_floats(t, TN_DIMS(2, 3), 0, 1));
    trial_refused(t, "tn_linalg_cholesky: matrices of 2 rows and 3 columns are not square");
    trial_close(t);
    t = trial_open(1);
    tn_linalg_solve(trial_floats(t, TN_DIMS(2, 3, 3), 0, 1), trial_floats(t, TN_DIMS(3, 3, 1), 0, 1));
    trial_refused(t, "tn_linalg_solve: matrices of rank 3 and 3 rows");
    trial_close(t);
    t = trial_open(1);
    tn_linalg_svd(trial_floats(t, TN_DIMS(3), 0, 1), 0, NULL, NULL);
    trial_refused(t, "tn_linalg_svd: expected rank 2 or more");
    trial_close(t);
    t = trial_open(1);
    tn_linalg_det(trial_ints(t, TN_I32, TN_DIMS(3, 3), 0, 1));
    trial_refused(t, "tn_linalg_det: expected a float tensor, got i32");
    trial_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(definite_and_triangular),
        cmocka_unit_test(general),
        cmocka_unit_test(orthogonal),
        cmocka_unit_test(eigen),
        cmocka_unit_test(singular_values),
        cmocka_unit_test(without_factors),
        cmocka_unit_test(half_types_and_size),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
