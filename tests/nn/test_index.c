/* test_index.c - tenon_index.h against plain loops: gathers and scatters by tuples and along an axis, search, segments, unique,
 * nonzero, running sums over sizes around the blocks, special values, gradients, refused calls. Labels: devices */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/trial.h"
#include "tenon/tenon_index.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double combine(tn_scatter_mode m, double old, double x) {
    return m == TN_SCATTER_ADD   ? old + x
           : m == TN_SCATTER_SET ? x
           : m == TN_SCATTER_MUL ? old * x
           : m == TN_SCATTER_MAX ? fmax(old, x)
                                 : fmin(old, x);
}

static void gathers_and_scatters(void **state) {
    (void)state;
    for (int m = 0; m < 5; m++) {
        tn_scatter_mode mode = (tn_scatter_mode)m;
        trial *t = trial_open(10 + (uint64_t)m);
        /* x [2,4,5,3] by pairs into axes 1 and 2: [2,3,3] */
        tn_tensor x = trial_floats(t, TN_DIMS(2, 4, 5, 3), -1, 1), at = trial_ints(t, TN_I32, TN_DIMS(2, 3, 2), -1, 5);
        tn_tensor base = trial_floats(t, TN_DIMS(4, 5, 3), 0.5, 2), tuple = trial_ints(t, TN_I64, TN_DIMS(7, 2), -1, 4);
        tn_tensor rows = trial_floats(t, TN_DIMS(7, 3), 0.5, 2);
        tn_tensor plane = trial_floats(t, TN_DIMS(4, 6), 0.5, 2), where = trial_ints(t, TN_I64, TN_DIMS(9, 5), -1, 4);
        tn_tensor more = trial_floats(t, TN_DIMS(9, 5), 0.5, 2);
        tn_tensor y[] = { tn_gather_nd(x, at, 1), tn_scatter_nd(base, tuple, rows, mode),
                          tn_put_along(plane, where, more, 0, mode) };
        double *want[3], *v = trial_values(t, x);
        int64_t *i = trial_whole(t, at), n[3];
        for (int k = 0; k < 3; k++) {
            n[k] = trial_count(y[k]);
            want[k] = ARENA_ARRAY(&t->a, double, n[k]);
        }
        for (int b = 0; b < 2; b++)
            for (int p = 0; p < 3; p++) {
                int64_t r = i[(b * 3 + p) * 2], c = i[(b * 3 + p) * 2 + 1];
                r = r < 0 ? 0 : r > 3 ? 3 : r, c = c < 0 ? 0 : c > 4 ? 4 : c;
                memcpy(want[0] + (b * 3 + p) * 3, v + ((b * 4 + r) * 5 + c) * 3, 3 * sizeof *v);
            }
        memcpy(want[1], trial_values(t, base), (size_t)n[1] * sizeof *v), i = trial_whole(t, tuple), v = trial_values(t, rows);
        for (int p = 0; p < 7; p++)
            for (int k = 0; k < 3; k++) {
                if (i[2 * p] < 0 || i[2 * p] > 3 || i[2 * p + 1] < 0 || i[2 * p + 1] > 4) continue;
                double *to = &want[1][(i[2 * p] * 5 + i[2 * p + 1]) * 3 + k];
                *to = combine(mode, *to, v[p * 3 + k]);
            }
        memcpy(want[2], trial_values(t, plane), (size_t)n[2] * sizeof *v), i = trial_whole(t, where), v = trial_values(t, more);
        for (int p = 0; p < 9; p++)
            for (int k = 0; k < 5; k++) {
                if (i[p * 5 + k] < 0 || i[p * 5 + k] > 3) continue;
                double *to = &want[2][i[p * 5 + k] * 6 + k];
                *to = combine(mode, *to, v[p * 5 + k]);
            }
        for (int k = 0; k < 3; k++) trial_near("place", trial_values(t, y[k]), want[k], n[k], 1e-12);
        trial_compiled(t, y, 3, 1e-12);
        for (int k = 0; k < 3; k++) trial_gradients(t, y[k], 1e-6);
        trial_close(t);
    }
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return isnan(x) || isnan(y) ? isnan(x) - isnan(y) : (x > y) - (x < y);
}
static bool before(double a, double v, bool right) {
    if (isnan(a) || isnan(v)) return isnan(v) && (right || !isnan(a));
    return right ? a <= v : a < v;
}

static void searches(void **state) {
    (void)state;
    static const int sizes[] = { 1, 2, 3, 7, 8, 9, 33, 0 };
    for (size_t k = 0; k < COUNT_OF(sizes); k++) {
        trial *t = trial_open(k + 1);
        int n = sizes[k];
        tn_tensor one = trial_floats(t, TN_DIMS(n), -2, 2), rows = trial_floats(t, TN_DIMS(2, n), -2, 2);
        tn_tensor v = trial_floats(t, TN_DIMS(3, 5), -2, 2), w = trial_floats(t, TN_DIMS(2, 4), -2, 2);
        double *a = trial_values(t, one), *r = trial_values(t, rows), *x = trial_values(t, v), *z = trial_values(t, w);
        for (int i = 0; i < n; i++) a[i] = floor(2 * a[i]), r[i] = floor(r[i]);
        for (int i = 0; i < 15; i++) x[i] = floor(2 * x[i]) / 1;
        if (n > 2) a[1] = NAN, r[0] = INFINITY;
        x[3] = NAN, x[4] = INFINITY, x[5] = -INFINITY, z[0] = INFINITY;
        qsort(a, (size_t)n, sizeof *a, by_size), qsort(r, (size_t)n, sizeof *a, by_size);
        qsort(r + n, (size_t)n, sizeof *a, by_size);
        tn_tensor y[] = { tn_searchsorted(one, v, 0), tn_searchsorted(one, v, 1), tn_searchsorted(rows, w, 0) };
        double want[3][15] = { { 0 } };
        for (int i = 0; i < 15; i++)
            for (int j = 0; j < n; j++) {
                want[0][i] += before(a[j], x[i], false), want[1][i] += before(a[j], x[i], true);
                if (i < 8) want[2][i] += before(r[i / 4 * n + j], z[i], false);
            }
        for (int i = 0; i < 3; i++) trial_near("searchsorted", trial_values(t, y[i]), want[i], i < 2 ? 15 : 8, 0);
        trial_compiled(t, y, 3, 0);
        trial_close(t);
    }
}

static void segments(void **state) {
    (void)state;
    enum { N = 23, S = 6, C = 3 };
    trial *t = trial_open(4);
    tn_tensor x = trial_floats(t, TN_DIMS(N, C), 0.5, 2), ids = trial_ints(t, TN_I32, TN_DIMS(N), -1, S);
    tn_tensor whole = trial_ints(t, TN_I64, TN_DIMS(N), -9, 9), offsets = trial_ints(t, TN_I64, TN_DIMS(S + 1), 0, 0);
    int64_t *id = trial_whole(t, ids), *o = trial_whole(t, offsets), *w = trial_whole(t, whole);
    for (int i = 0; i < N; i++) id[i] = id[i] == 2 ? 3 : id[i]; /* segment 2 is empty */
    static const int64_t ends[] = { 0, 4, 4, 9, 10, 10, 20 };
    memcpy(o, ends, sizeof ends);
    tn_tensor y[9];
    double want[9][S * C], count[S] = { 0 };
    for (int m = 0; m < 5; m++) {
        y[m] = tn_segment(x, ids, S, (tn_scatter_mode)m);
        for (int i = 0; i < S * C; i++) want[m][i] = m == 2 ? 1 : m == 3 ? -INFINITY : m == 4 ? INFINITY : 0;
    }
    y[5] = tn_segment_mean(x, ids, S), y[6] = tn_segment_ids(offsets, N);
    y[7] = tn_segment(whole, ids, S, TN_SCATTER_MIN), y[8] = tn_segment(whole, tn_segment_ids(offsets, N), S, TN_SCATTER_ADD);
    for (int i = 0; i < S; i++) want[7][i] = 0x1p63, want[8][i] = 0;
    const double *v = trial_values(t, x);
    for (int i = 0; i < N; i++) {
        int s = S;
        while (s > 0 && i < ends[s]) s--;
        want[6][i < S * C ? i : 0] = i < S * C ? s : 0;
        if (s < S) want[8][s] += (double)w[i];
        if (id[i] < 0 || id[i] >= S) continue;
        count[id[i]]++;
        want[7][id[i]] = fmin(want[7][id[i]], (double)w[i]);
        for (int m = 0; m < 5; m++)
            for (int c = 0; c < C; c++) {
                double *to = &want[m][id[i] * C + c];
                *to = combine((tn_scatter_mode)m, *to, v[i * C + c]);
            }
    }
    for (int i = 0; i < S * C; i++) want[5][i] = want[0][i] / fmax(count[i / C], 1);
    for (int k = 0; k < 9; k++) trial_near("segment", trial_values(t, y[k]), want[k], k == 7 || k == 8 ? S : S * C, 1e-12);
    trial_compiled(t, y, 9, 1e-12);
    trial_gradients(t, y[0], 1e-6), trial_gradients(t, y[2], 1e-6), trial_gradients(t, y[5], 1e-6);
    trial_close(t);
}

/* Row 1 has no entries, one entry stands twice for a place, one has a row that is not there, one a column. */
static void sparse(void **state) {
    (void)state;
    static const struct {
        int k, rows, m, n, a, b;
    } sizes[] = { { 17, 5, 8, 3, 1, 1 }, { 0, 4, 3, 2, 1, 1 }, { 40, 3, 1, 1, 1, 1 },  { 9, 4, 6, 5, 2, 3 },
                  { 6, 3, 5, 2, 4, 1 },  { 5, 0, 4, 2, 1, 1 }, { 31, 7, 9, 20, 1, 1 }, { 12, 4, 6, 33, 2, 3 } };
    for (size_t c = 0; c < COUNT_OF(sizes); c++) {
        const int k = sizes[c].k, n_rows = sizes[c].rows, m = sizes[c].m, n = sizes[c].n, a = sizes[c].a, b = sizes[c].b;
        const int blocks = m / b, ordered = k * 2 / 3; /* so many are of CSR */
        trial *t = trial_open(c + 40);
        tn_tensor values = trial_floats(t, a * b == 1 ? TN_DIMS(k) : TN_DIMS(k, a, b), -1, 1),
                  x = trial_floats(t, TN_DIMS(m, n), -1, 1);
        tn_tensor rows = trial_ints(t, TN_I32, TN_DIMS(k), -1, n_rows), columns = trial_ints(t, TN_I64, TN_DIMS(k), -1, blocks);
        tn_tensor offsets = trial_ints(t, TN_I32, TN_DIMS(n_rows + 1), 0, 0);
        int64_t *row = trial_whole(t, rows), *column = trial_whole(t, columns), *o = trial_whole(t, offsets);
        for (int i = 0; i < k; i++) row[i] = row[i] == 1 ? 0 : row[i];
        if (k > 1) row[1] = row[0], column[1] = column[0];
        for (int i = 1; i <= n_rows; i++) o[i] = i == 2 ? o[1] : (int64_t)ordered * i / n_rows;
        tn_tensor y[] = { tn_sparse_matmul(values, rows, columns, n_rows, x),
                          tn_sparse_matmul_csr(values, offsets, columns, x) };
        const double *v = trial_values(t, values), *in = trial_values(t, x);
        for (int form = 0; form < 2; form++) {
            double *want = ARENA_ARRAY(&t->a, double, n_rows *a *n + 1);
            for (int i = 0; i < k; i++) {
                int64_t r = row[i], at = column[i] < 0 ? 0 : column[i] >= blocks ? blocks - 1 : column[i];
                if (form) {
                    for (r = n_rows; r >= 0 && o[r] > i; r--) {
                    }
                }
                if (r < 0 || r >= n_rows) continue;
                for (int p = 0; p < a; p++)
                    for (int q = 0; q < b; q++)
                        for (int j = 0; j < n; j++)
                            want[(r * a + p) * n + j] += v[(i * a + p) * b + q] * in[(at * b + q) * n + j];
            }
            trial_near(form ? "csr" : "sparse", trial_values(t, y[form]), want, n_rows * a * n, 1e-12);
        }
        trial_compiled(t, y, 2, 1e-12);
        trial_gradients(t, y[0], 1e-6), trial_gradients(t, y[1], 1e-6);
        trial_close(t);
    }
}

static void sets(void **state) {
    (void)state;
    static const int sizes[] = { 0, 1, 5, 40 };
    for (size_t k = 0; k < COUNT_OF(sizes); k++)
        for (int most = 0; most < 12; most += 4) {
            trial *t = trial_open(k * 7 + (uint64_t)most);
            int n = sizes[k];
            tn_tensor x = trial_floats(t, TN_DIMS(n), -4, 4), z = trial_ints(t, TN_I32, TN_DIMS(2, n, 2), -1, 1), out[6];
            double *v = trial_values(t, x), sorted[41], want[6][320] = { { 0 } };
            int64_t *f = trial_whole(t, z);
            for (int i = 0; i < n; i++) v[i] = floor(v[i]), sorted[i] = v[i];
            if (n > 4) v[2] = v[4] = NAN, sorted[2] = sorted[4] = NAN;
            qsort(sorted, (size_t)n, sizeof *v, by_size);
            out[0] = tn_unique(x, most, &out[1], &out[2], &out[3]);
            out[4] = tn_nonzero(z, most, &out[5]);
            int groups = -1, found = 0;
            for (int i = 0; i < n; i++) {
                if (!i || before(sorted[i - 1], sorted[i], false)) groups++;
                if (groups < most) want[0][groups] = sorted[i], want[3][groups]++;
                for (int j = 0; j < n; j++)
                    if (v[j] == sorted[i] || (isnan(v[j]) && isnan(sorted[i]))) want[2][j] = groups;
            }
            want[1][0] = groups + 1;
            for (int i = 0; i < 3 * most; i++) want[4][i] = -1;
            for (int i = 0; i < 4 * n; i++) {
                if (!f[i]) continue;
                if (found < most)
                    want[4][found * 3] = i / (2 * n), want[4][found * 3 + 1] = i / 2 % n, want[4][found * 3 + 2] = i % 2;
                found++;
            }
            want[5][0] = found;
            for (int i = 0; i < 6; i++) trial_near("set", trial_values(t, out[i]), want[i], trial_count(out[i]), 0);
            trial_compiled(t, out, 6, 0);
            trial_close(t);
        }
}

static double neutral(int mode) { return mode == 0 ? 0 : mode == 1 ? 1 : mode == 2 ? -INFINITY : INFINITY; }

static void running_sums(void **state) {
    (void)state;
    static const int64_t shapes[][3] = { { 1, 1, 1 },   { 2, 15, 1 }, { 1, 16, 3 },   { 3, 17, 1 }, { 1, 33, 2 },
                                         { 1, 300, 1 }, { 2, 0, 3 },  { 1, 4097, 1 }, { 2, 31, 17 } };
    int checked = 0;
    for (size_t k = 0; k < COUNT_OF(shapes); k++)
        for (int mode = 0; mode < 4; mode++) {
            trial *t = trial_open(k * 4 + (uint64_t)mode);
            int64_t outer = shapes[k][0], n = shapes[k][1], inner = shapes[k][2], all = outer * n * inner;
            tn_tensor x = trial_floats(t, TN_DIMS(outer, n, inner), 0.8, 1.2), y[4];
            double *v = trial_values(t, x), *want = ARENA_ARRAY(&t->a, double, all + 1);
            if (all > 40) v[20] = NAN, v[all - 1] = -INFINITY;
            if (n == 4097 && (fuzz_by_c() || !test_device_is_cpu())) {
                trial_close(t);
                continue;
            }
            for (int how = 0; how < 4; how++) {
                y[how] = tn_cumulative(x, 1, (tn_scan_mode)mode, (tn_cumulative_opts){ how & 1, how >> 1 });
                for (int64_t o = 0; o < outer; o++)
                    for (int64_t i = 0; i < inner; i++) {
                        double sum = neutral(mode);
                        for (int64_t j = 0; j < n; j++) {
                            int64_t at = (o * n + (how >> 1 ? n - 1 - j : j)) * inner + i;
                            double old = sum, e = v[at];
                            sum = mode == 0        ? sum + e
                                  : mode == 1      ? sum * e
                                  : isnan(sum + e) ? (isnan(sum) || isnan(e) ? NAN
                                                      : mode == 2            ? fmax(sum, e)
                                                                             : fmin(sum, e))
                                  : mode == 2      ? fmax(sum, e)
                                                   : fmin(sum, e);
                            want[at] = how & 1 ? old : sum;
                        }
                    }
                trial_near("scan", trial_values(t, y[how]), want, all, 1e-12);
            }
            trial_compiled(t, y, 4, 1e-12);
            checked += 4;
            if (all <= 40 && all > 0) trial_gradients(t, y[mode < 2 ? 3 : 2], 1e-5);
            trial_close(t);
        }
    printf("count: %d running sums, products and extremes\n", checked);
    trial *t = trial_open(1);
    tn_tensor whole = trial_ints(t, TN_I64, TN_DIMS(40), -100, 100);
    double want[40];
    for (int i = 0; i < 40; i++)
        want[i] = i ? fmin(want[i - 1], (double)trial_whole(t, whole)[i]) : (double)trial_whole(t, whole)[0];
    tn_tensor y = tn_cumulative(whole, 0, TN_SCAN_MIN, (tn_cumulative_opts){ 0 });
    trial_near("i64", trial_values(t, y), want, 40, 0);
    trial_compiled(t, &y, 1, 0);
    trial_close(t);
}

static void refused(void (*build)(trial *t, tn_tensor x, tn_tensor i), const char *text) {
    trial *t = trial_open(1);
    build(t, trial_floats(t, TN_DIMS(2, 5), 0, 1), trial_ints(t, TN_I32, TN_DIMS(2, 3), 0, 1));
    trial_refused(t, text);
    trial_close(t);
}
static void bad_tuple(trial *t, tn_tensor x, tn_tensor i) { (void)t, tn_gather_nd(x, i, 0); }
static void bad_batch(trial *t, tn_tensor x, tn_tensor i) { (void)t, tn_gather_nd(x, i, 2); }
static void bad_dtype(trial *t, tn_tensor x, tn_tensor i) { (void)t, (void)i, tn_gather_nd(x, x, 0); }
static void bad_updates(trial *t, tn_tensor x, tn_tensor i) { (void)t, tn_scatter_nd(x, i, x, TN_SCATTER_SET); }
static void bad_put(trial *t, tn_tensor x, tn_tensor i) { (void)t, tn_put_along(x, i, x, 0, TN_SCATTER_SET); }
static void bad_mode(trial *t, tn_tensor x, tn_tensor i) { (void)t, tn_scatter(x, i, x, 0, (tn_scatter_mode)7); }
static void bad_rows(trial *t, tn_tensor x, tn_tensor i) {
    (void)i, tn_searchsorted(x, trial_floats(t, TN_DIMS(3, 5), 0, 1), 0);
}
static void bad_ids(trial *t, tn_tensor x, tn_tensor i) { (void)t, tn_segment(x, i, 4, TN_SCATTER_ADD); }
static void bad_sparse(trial *t, tn_tensor x, tn_tensor i) {
    tn_sparse_matmul(x, i, trial_ints(t, TN_I32, TN_DIMS(4), 0, 1), 4, x);
}
static void bad_mix(trial *t, tn_tensor x, tn_tensor i) {
    (void)i;
    tn_tensor at = trial_ints(t, TN_I32, TN_DIMS(4), 0, 1);
    tn_sparse_matmul(tn_full(x.graph, TN_F32, TN_DIMS(4), 1), at, at, 4, x);
}
static void bad_offsets(trial *t, tn_tensor x, tn_tensor i) { (void)t, (void)x, tn_segment_ids(i, 4); }
static void bad_most(trial *t, tn_tensor x, tn_tensor i) { (void)t, (void)i, tn_unique(x, -1, NULL, NULL, NULL); }
static void bad_scan(trial *t, tn_tensor x, tn_tensor i) {
    (void)t, (void)i, tn_cumulative(x, 0, (tn_scan_mode)4, (tn_cumulative_opts){ 0 });
}
static void bad_axis(trial *t, tn_tensor x, tn_tensor i) {
    (void)t, (void)i, tn_cumulative(x, 2, TN_SCAN_SUM, (tn_cumulative_opts){ 0 });
}

static void mistakes_are_named(void **state) {
    (void)state;
    refused(bad_tuple, "tn_gather_nd: rank 2, 0 batch axes, indices of rank 2 with 3 numbers each");
    refused(bad_batch, "tn_gather_nd: rank 2, 2 batch axes");
    refused(bad_dtype, "tn_gather_nd: indices are f64, must be i32 or i64");
    refused(bad_updates, "tn_scatter_nd: ranks 2, 2 and 2");
    refused(bad_put, "tn_put_along: indices and updates must have one shape");
    refused(bad_mode, "there is no such mode");
    refused(bad_rows, "tn_searchsorted: sorted rows of rank 2 for values of rank 2");
    refused(bad_ids, "tn_segment: 4 segments of 2 rows, with ids of rank 2");
    refused(bad_sparse, "tn_sparse_matmul: 2 values of rank 2");
    refused(bad_mix, "tn_sparse_matmul: values and x have different dtypes");
    refused(bad_offsets, "tn_segment_ids: offsets of rank 2 for 4 rows");
    refused(bad_most, "tn_unique: at most -1 results");
    refused(bad_scan, "tn_cumulative: there is no mode 4");
    refused(bad_axis, "tn_cumulative: axis 2 of a tensor of rank 2");
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(gathers_and_scatters),
                                        cmocka_unit_test(searches),
                                        cmocka_unit_test(segments),
                                        cmocka_unit_test(sparse),
                                        cmocka_unit_test(sets),
                                        cmocka_unit_test(running_sums),
                                        cmocka_unit_test(mistakes_are_named) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
