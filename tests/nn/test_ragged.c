/* test_ragged.c - ragged batches (tenon_index.h) against plain loops over the sequences: empty ones, rows behind the last one,
 * sequences that are cut, batches of nothing, gradients, refused calls. Labels: devices */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/trial.h"
#include "tenon/tenon_index.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 13, S = 5, C = 3, LENGTH = 4 };
static const int64_t ends[S + 1] = { 0, 3, 3, 4, 9, 11 }; /* 3, 0, 1, 5, 2; two rows behind */

static tn_tensor given(trial *t, const int64_t *o, int n) {
    tn_tensor x = trial_ints(t, TN_I64, TN_DIMS(n), 0, 0);
    memcpy(trial_whole(t, x), o, sizeof *o * (size_t)n);
    return x;
}

static void reductions(void **state) {
    (void)state;
    trial *t = trial_open(3);
    tn_tensor x = trial_floats(t, TN_DIMS(N, C), -2, 2), o = given(t, ends, S + 1), y[4];
    const double *v = trial_values(t, x);
    for (int m = 0; m < 4; m++) {
        double want[S * C];
        y[m] = tn_ragged(x, o, (tn_ragged_mode)m);
        for (int s = 0; s < S; s++)
            for (int c = 0; c < C; c++) {
                double sum = 0, top = -INFINITY, low = INFINITY, n = (double)(ends[s + 1] - ends[s]);
                for (int64_t i = ends[s]; i < ends[s + 1]; i++)
                    sum += v[i * C + c], top = fmax(top, v[i * C + c]), low = fmin(low, v[i * C + c]);
                want[s * C + c] = m == 0 ? sum : m == 1 ? top : m == 2 ? low : n > 0 ? sum / n : 0;
            }
        trial_near("ragged", trial_values(t, y[m]), want, S * C, 1e-12);
    }
    trial_compiled(t, y, 4, 1e-12);
    trial_gradients(t, y[0], 1e-6), trial_gradients(t, y[3], 1e-6);
    trial_close(t);
}

static void bags(void **state) {
    (void)state;
    trial *t = trial_open(6);
    tn_tensor table = trial_floats(t, TN_DIMS(7, C), -2, 2), at = trial_ints(t, TN_I32, TN_DIMS(N), 0, 6);
    tn_tensor y = tn_embedding_bag(table, at, given(t, ends, S + 1), TN_RAGGED_SUM);
    double want[S * C] = { 0 };
    for (int s = 0; s < S; s++)
        for (int64_t i = ends[s]; i < ends[s + 1]; i++)
            for (int c = 0; c < C; c++) want[s * C + c] += trial_values(t, table)[trial_whole(t, at)[i] * C + c];
    trial_near("bags", trial_values(t, y), want, S * C, 1e-12);
    trial_compiled(t, &y, 1, 1e-12);
    trial_gradients(t, y, 1e-6);
    trial_close(t);
}

static void softmax_and_padding(void **state) {
    (void)state;
    trial *t = trial_open(4);
    tn_tensor x = trial_floats(t, TN_DIMS(N, C), -2, 2), o = given(t, ends, S + 1);
    tn_tensor y[4] = { tn_ragged_softmax(x, o), tn_ragged_pad(x, o, LENGTH, 7) };
    y[2] = tn_ragged_rows(y[1], o, N), y[3] = tn_cast(tn_ragged_seen(o, LENGTH), TN_F64);
    double soft[N * C] = { 0 }, padded[S * LENGTH * C], rows[N * C] = { 0 }, seen[S * LENGTH] = { 0 };
    const double *v = trial_values(t, x);
    for (int i = 0; i < S * LENGTH * C; i++) padded[i] = 7;
    for (int s = 0; s < S; s++)
        for (int c = 0; c < C; c++) {
            double sum = 0;
            for (int64_t i = ends[s]; i < ends[s + 1]; i++) sum += exp(v[i * C + c]);
            for (int64_t i = ends[s]; i < ends[s + 1]; i++) {
                soft[i * C + c] = exp(v[i * C + c]) / sum;
                if (i - ends[s] >= LENGTH) continue;
                padded[(s * LENGTH + i - ends[s]) * C + c] = rows[i * C + c] = v[i * C + c];
                seen[s * LENGTH + i - ends[s]] = 1;
            }
        }
    trial_near("softmax", trial_values(t, y[0]), soft, N * C, 1e-12);
    trial_near("padded", trial_values(t, y[1]), padded, S * LENGTH * C, 0);
    trial_near("rows", trial_values(t, y[2]), rows, N * C, 0);
    trial_near("seen", trial_values(t, y[3]), seen, S * LENGTH, 0);
    trial_compiled(t, y, 4, 1e-12);
    for (int k = 0; k < 3; k++) trial_gradients(t, y[k], 1e-6);
    trial_close(t);
}

enum { HEADS = 2, D = 3, E = 2, M = 14 };
static const int64_t key_ends[S + 1] = { 0, 2, 4, 4, 9, 14 }; /* 2, 2, 0, 5, 5 */

/* Query i of sequence s and head h: what tn_ragged_attention should give. */
static void attend(const double *q, const double *k, const double *v, int64_t i, int s, int h, bool causal, double *y) {
    int64_t first = key_ends[s], stop = key_ends[s + 1];
    double sum = 0, w[M];
    if (causal && stop > i - ends[s + 1] + stop + 1) stop = i - ends[s + 1] + stop + 1;
    for (int64_t j = first; j < stop; j++) {
        w[j] = 0;
        for (int d = 0; d < D; d++) w[j] += q[(i * HEADS + h) * D + d] * k[(j * HEADS + h) * D + d] / sqrt(D);
        sum += w[j] = exp(w[j]);
    }
    for (int e = 0; e < E; e++) y[e] = 0;
    for (int64_t j = first; j < stop; j++)
        for (int e = 0; e < E; e++) y[e] += w[j] / sum * v[(j * HEADS + h) * E + e];
}

static void attention(void **state) {
    (void)state;
    for (int causal = 0; causal < 2; causal++) {
        trial *t = trial_open(5 + (uint64_t)causal);
        tn_tensor q = trial_floats(t, TN_DIMS(N, HEADS, D), -1, 1), k = trial_floats(t, TN_DIMS(M, HEADS, D), -1, 1);
        tn_tensor v = trial_floats(t, TN_DIMS(M, HEADS, E), -1, 1), o = given(t, ends, S + 1), ko = given(t, key_ends, S + 1);
        tn_tensor y = tn_ragged_attention(q, k, v, o, ko, 5, causal);
        double want[N * HEADS * E] = { 0 };
        for (int s = 0; s < S; s++)
            for (int64_t i = ends[s]; i < ends[s + 1]; i++)
                for (int h = 0; h < HEADS; h++)
                    attend(trial_values(t, q), trial_values(t, k), trial_values(t, v), i, s, h, causal,
                           want + (i * HEADS + h) * E);
        trial_near("attention", trial_values(t, y), want, N * HEADS * E, 1e-12);
        trial_compiled(t, &y, 1, 1e-12);
        trial_gradients(t, y, 1e-6);
        trial_close(t);
    }
}

static void nothing(void **state) {
    (void)state;
    trial *t = trial_open(9);
    tn_tensor none = trial_floats(t, TN_DIMS(0, C), 0, 1), x = trial_floats(t, TN_DIMS(2, C), 0, 1);
    tn_tensor one = given(t, (int64_t[]){ 0 }, 1), two = given(t, (int64_t[]){ 0, 0, 0 }, 3);
    tn_tensor y[] = { tn_ragged(none, two, TN_RAGGED_SUM), tn_ragged_pad(none, two, 2, 1), tn_ragged_softmax(x, one),
                      tn_ragged_rows(tn_ragged_pad(x, two, 0, 0), two, 2) };
    double want[12] = { 0 }, ones[12];
    for (int i = 0; i < 12; i++) ones[i] = 1;
    trial_near("sum", trial_values(t, y[0]), want, 2 * C, 0);
    trial_near("pad", trial_values(t, y[1]), ones, 4 * C, 0);
    trial_near("softmax", trial_values(t, y[2]), want, 2 * C, 0);
    trial_near("rows", trial_values(t, y[3]), want, 2 * C, 0);
    trial_compiled(t, y, 4, 0);
    trial_close(t);
}

static void refused(tn_tensor (*build)(tn_tensor x, tn_tensor o), const char *text) {
    trial *t = trial_open(1);
    build(trial_floats(t, TN_DIMS(4, 2, 3), 0, 1), given(t, ends, S + 1));
    trial_refused(t, text);
    trial_close(t);
}
static tn_tensor bad_mode(tn_tensor x, tn_tensor o) { return tn_ragged(x, o, (tn_ragged_mode)4); }
static tn_tensor bad_offsets(tn_tensor x, tn_tensor o) { return (void)o, tn_ragged(x, x, TN_RAGGED_SUM); }
static tn_tensor bad_length(tn_tensor x, tn_tensor o) { return tn_ragged_pad(x, o, -1, 0); }
static tn_tensor bad_batch(tn_tensor x, tn_tensor o) { return tn_ragged_rows(x, o, 4); }
static tn_tensor bad_bag(tn_tensor x, tn_tensor o) { return tn_embedding_bag(x, o, o, TN_RAGGED_SUM); }
static tn_tensor bad_attention(tn_tensor x, tn_tensor o) { return tn_ragged_attention(x, x, x, o, o, 0, 0); }

static void mistakes_are_named(void **state) {
    (void)state;
    refused(bad_mode, "tn_ragged: there is no mode 4");
    refused(bad_offsets, "tn_ragged: rows of rank 3 with offsets of rank 3 and dtype f64");
    refused(bad_length, "tn_ragged_pad: rows of rank 3 as sequences of length -1");
    refused(bad_batch, "tn_ragged_rows: rank 3 and 4 sequences for 6 offsets and 4 rows");
    refused(bad_bag, "tn_embedding_bag: a table of rank 3 and indices of rank 1");
    refused(bad_attention, "tn_ragged_attention: 5 sequences of queries and 5 of keys");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions), cmocka_unit_test(bags),    cmocka_unit_test(softmax_and_padding),
        cmocka_unit_test(attention),  cmocka_unit_test(nothing), cmocka_unit_test(mistakes_are_named)
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
