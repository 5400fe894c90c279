/* test_norms.c - norms of channels and of weights, given and public parameters, variants of dropout: against direct
 * computations in double, gradients against central differences, masks by what must hold of them. */
#include "nn/env.h"

#include <stdlib.h>

static void test_instance_norm(void **state) {
    env *e = *state;
    open_graph(e);
    tn_tensor x = random_input(e, TN_DIMS(2, 3, 2, 4), -2, 2), y = tn_nn_instance_norm(x, 0, "n");
    expect_ok(e);
    load_states(e, 0.2);
    double want[48], *v = e->in[0].f;
    for (int n = 0; n < 2; n++)
        for (int c = 0; c < 4; c++) {
            double mean = 0, var = 0;
            for (int i = 0; i < 6; i++) mean += v[n * 24 + i * 4 + c] / 6;
            for (int i = 0; i < 6; i++) var += pow(v[n * 24 + i * 4 + c] - mean, 2) / 6;
            for (int i = 0; i < 6; i++)
                want[n * 24 + i * 4 + c] =
                    (v[n * 24 + i * 4 + c] - mean) / sqrt(var + 1e-5) * values_of(e, "n/w")[c] + values_of(e, "n/b")[c];
        }
    expect_values(e, "instance norm", y, want);
    expect_gradients(e, "instance norm", y);
}

static void test_local_response(void **state) {
    env *e = *state;
    for (int size = 1; size <= 5; size++) {
        open_graph(e);
        tn_tensor x = random_input(e, TN_DIMS(3, 7), -2, 2), y = tn_nn_local_response_norm(x, size, 0.5, 0.75, 2);
        double want[21], *v = e->in[0].f;
        for (int r = 0; r < 3; r++)
            for (int c = 0; c < 7; c++) {
                double sum = 0;
                for (int k = c - size / 2; k < c - size / 2 + size; k++)
                    if (k >= 0 && k < 7) sum += v[r * 7 + k] * v[r * 7 + k];
                want[r * 7 + c] = v[r * 7 + c] * pow(2 + 0.5 / size * sum, -0.75);
            }
        expect_values(e, "local response norm", y, want);
        expect_gradients(e, "local response norm", y);
    }
}

static void test_weight_norm(void **state) {
    env *e = *state;
    open_graph(e);
    tn_tensor x = random_input(e, TN_DIMS(4, 3), -1, 1), v = random_input(e, TN_DIMS(3, 5), -1, 1),
              b = random_input(e, TN_DIMS(5), -1, 1);
    tn_tensor y = tn_nn_linear_given(x, tn_nn_weight_norm(v, "fc"), b);
    expect_ok(e);
    load_states(e, 0.3);
    double want[20], *xv = e->in[0].f, *w = e->in[1].f;
    for (int r = 0; r < 4; r++)
        for (int o = 0; o < 5; o++) {
            double length = 0, sum = 0;
            for (int i = 0; i < 3; i++) length += w[i * 5 + o] * w[i * 5 + o], sum += xv[r * 3 + i] * w[i * 5 + o];
            want[r * 5 + o] = sum * values_of(e, "fc/g")[o] / sqrt(length) + e->in[2].f[o];
        }
    expect_values(e, "weight norm", y, want);
    expect_gradients(e, "weight norm", y);
}

/* By enough iterations the largest singular value is 1: that of diagonals is known. The gradient is that for fixed vectors. */
static void test_spectral_norm(void **state) {
    env *e = *state;
    open_graph(e);
    double diagonal[3][4] = { { 0, 0.5, 0, 0 }, { 0, 0, 3, 0 }, { -1, 0, 0, 0 } }, want[12];
    tn_tensor w = tn_const(e->g, TN_F64, TN_DIMS(3, 1, 4), diagonal), y = tn_nn_spectral_norm(w, 40, "s");
    expect_ok(e);
    load_states(e, 0);
    for (int i = 0; i < 12; i++) want[i] = diagonal[i / 4][i % 4] / 3;
    expect_shape(y, TN_DIMS(3, 1, 4));
    expect_values(e, "spectral norm", y, want);
    open_graph(e); /* without iterations: a bilinear form of the state, which stays */
    tn_tensor v = random_input(e, TN_DIMS(3, 4), -1, 1), z = tn_nn_spectral_norm(v, 0, "s"), d;
    expect_ok(e);
    load_states(e, 0);
    assert_int_equal(e->ir->outputs.n, 0);
    double *m = e->in[0].f, u[4], side[3], sigma = 0, length = 0, own[12];
    for (int j = 0; j < 4; j++) length += pow(values_of(e, "s/u")[j], 2);
    for (int j = 0; j < 4; j++) u[j] = values_of(e, "s/u")[j] / sqrt(length);
    length = 0;
    for (int i = 0; i < 3; i++) {
        side[i] = 0;
        for (int j = 0; j < 4; j++) side[i] += m[i * 4 + j] * u[j];
        length += side[i] * side[i];
    }
    sigma = sqrt(length);
    for (int i = 0; i < 12; i++) own[i] = m[i] / sigma;
    expect_values(e, "spectral norm", z, own);
    tn_tensor loss = tn_sum(tn_mul(z, z), TN_ALL_AXES, 0);
    assert_int_equal(tn_grad(loss, &v, 1, &d), TN_OK);
    double squares = 0;
    for (int i = 0; i < 12; i++) squares += m[i] * m[i];
    for (int i = 0; i < 12; i++)
        own[i] = 2 * m[i] / (sigma * sigma) - 2 * squares / pow(sigma, 3) * (side[i / 4] / sigma) * u[i % 4];
    expect_values(e, "its gradient", d, own);
}

/* A convolution with the weights that another layer has is that layer. */
static void test_given(void **state) {
    env *e = *state;
    for (int winograd = 0; winograd <= 2; winograd += 2) {
        open_graph(e);
        tn_tensor x = random_input(e, TN_DIMS(2, 6, 5, 3), -1, 1);
        tn_nn_conv_opts o = { .out_channels = 4, .kernel = { 3 }, .padding = { 1 }, .winograd = winograd };
        tn_tensor y = tn_nn_conv2d(x, o, "conv");
        o.weights = source(e, "conv/w"), o.bias = source(e, "conv/b");
        tn_tensor again = tn_nn_conv2d(x, o, NULL);
        expect_ok(e);
        load_states(e, 0.1);
        assert_int_equal(tn_graph_n_params(e->g), 2);
        const double *want = value_of(e, y);
        for (int64_t i = 0; i < elems(e, y); i++) assert_true(value_of(e, again)[i] == want[i]);
        o.weights = x;
        tn_nn_conv2d(x, o, NULL);
        assert_int_equal(tn_graph_status(e->g), TN_ERR_SHAPE);
    }
}

/* ---- initial values ---- */

static double *fill(env *e, tn_nn_init init, double scale, tn_shape s, int64_t *n) {
    open_graph(e);
    tn_tensor p = tn_nn_param(e->g, "p", TN_F64, s, init, scale);
    expect_ok(e);
    load_states(e, 0);
    *n = elems(e, p);
    return e->in[0].f;
}
static void test_initial_values(void **state) {
    env *e = *state;
    int64_t n;
    static const struct {
        tn_nn_init init;
        double scale, variance, most;
    } rows[] = {
        { TN_NN_INIT_ONES, 9, 0, 1 },
        { TN_NN_INIT_CONSTANT, 0.25, 0, 0.25 },
        { TN_NN_INIT_UNIFORM, 3, 3, 3 },
        { TN_NN_INIT_NORMAL, 0.5, 0.25, 4 },
        { TN_NN_INIT_TRUNCATED_NORMAL, 2, 4 * 0.7737413035499231, 4 },
        { TN_NN_INIT_XAVIER_UNIFORM, 0, 2.0 / (90 + 540), 0.0976 },
        { TN_NN_INIT_XAVIER_NORMAL, 2, 8.0 / (90 + 540), 1 },
        { TN_NN_INIT_KAIMING_UNIFORM, 1, 1.0 / 90, 0.18258 },
        { TN_NN_INIT_KAIMING_NORMAL, 1.4142135623730951, 2.0 / 90, 1 },
    };
    for (size_t k = 0; k < COUNT_OF(rows); k++) {
        double *v = fill(e, rows[k].init, rows[k].scale, TN_DIMS(3, 3, 10, 60), &n), mean = 0, variance = 0, most = 0;
        for (int i = 0; i < n; i++) mean += v[i] / (double)n, most = fmax(most, fabs(v[i]));
        for (int i = 0; i < n; i++) variance += (v[i] - mean) * (v[i] - mean) / (double)n;
        if (fabs(variance - rows[k].variance) > 0.1 * rows[k].variance + 1e-12 || most > rows[k].most)
            fail_msg("row %d: variance %g, largest %g", (int)k, variance, most);
        if (rows[k].init >= TN_NN_INIT_UNIFORM) assert_true(fabs(mean) < 6 * sqrt(variance / (double)n));
    }
    static const int64_t sizes[][2] = { { 5, 8 }, { 8, 5 }, { 6, 6 }, { 1, 1 } };
    for (int k = 0; k < 4; k++) {
        int64_t rows_ = sizes[k][0], columns = sizes[k][1], few = rows_ < columns ? rows_ : columns;
        double *v = fill(e, TN_NN_INIT_ORTHOGONAL, 3, TN_DIMS(rows_, columns), &n);
        for (int64_t i = 0; i < few; i++)
            for (int64_t j = 0; j < few; j++) {
                double sum = 0;
                for (int64_t l = 0; l < rows_ + columns - few; l++)
                    sum += few == rows_ ? v[i * columns + l] * v[j * columns + l] : v[l * columns + i] * v[l * columns + j];
                assert_true(fabs(sum - (i == j ? 9 : 0)) < 1e-12);
            }
    }
    open_graph(e);
    expect_shape(tn_nn_param(e->g, "none", TN_F32, TN_DIMS(0, 3), TN_NN_INIT_ORTHOGONAL, 1), TN_DIMS(0, 3));
    expect_shape(tn_nn_param(e->g, "one", TN_F32, TN_SCALAR, TN_NN_INIT_KAIMING_NORMAL, 1), TN_SCALAR);
    expect_ok(e);
    tn_nn_param(e->g, "half", TN_F16, TN_DIMS(3), TN_NN_INIT_ONES, 1);
    assert_int_equal(tn_graph_status(e->g), TN_ERR_DTYPE);
}

/* ---- dropout ---- */

static void test_dropout_variants(void **state) {
    env *e = *state;
    open_graph(e);
    tn_shape s = TN_DIMS(64, 3, 5, 16);
    tn_tensor x = tn_full(e->g, TN_F64, s, 2), at = tn_full(e->g, TN_I64, TN_SCALAR, 12);
    tn_tensor spatial = tn_nn_spatial_dropout(x, 0.25, at, "a"), path = tn_nn_drop_path(x, 0.25, at, "b");
    expect_ok(e);
    const double *v = value_of(e, spatial), *p = value_of(e, path);
    int dropped = 0, samples = 0;
    for (int i = 0; i < 64 * 15 * 16; i++) {
        assert_true(v[i] == 0 || fabs(v[i] - 2 / 0.75) < 1e-15);
        assert_true(v[i] == v[i / 240 * 240 + i % 16] && p[i] == p[i / 240 * 240]);
        dropped += i % 240 < 16 && v[i] == 0, samples += i % 240 == 0 && p[i] == 0;
    }
    assert_true(abs(dropped - 256) < 6 * 14 && abs(samples - 16) < 6 * 3.5);
    tn_tensor y = tn_random_normal(at, 5, TN_DIMS(1 << 14)), z = tn_nn_alpha_dropout(tn_cast(y, TN_F64), 0.3, at, "c");
    const double *a = value_of(e, z);
    double mean = 0, variance = 0;
    for (int i = 0; i < 1 << 14; i++) mean += a[i] / (1 << 14);
    for (int i = 0; i < 1 << 14; i++) variance += pow(a[i] - mean, 2) / (1 << 14);
    assert_true(fabs(mean) < 0.05 && fabs(variance - 1) < 0.06);
    tn_nn_drop_path(x, 1, at, "d");
    assert_int_equal(tn_graph_status(e->g), TN_ERR_INVAL);
}

/* Masks come back after subnets / together turns; samples of one turn that are `together` apart have the same. */
static void test_gyro(void **state) {
    env *e = *state;
    enum { RUNS = 12, N = 8, C = 40 };
    double masks[RUNS][N * C];
    for (int run = 0; run < RUNS; run++) {
        open_graph(e);
        tn_tensor x = tn_full(e->g, TN_F64, TN_DIMS(N, C), 1), at = tn_full(e->g, TN_I64, TN_SCALAR, run);
        const double *v = value_of(e, tn_nn_gyro_dropout(x, 0.5, 6, 2, 2, at, "g"));
        memcpy(masks[run], v, sizeof masks[run]);
        for (int i = 0; i < N * C; i++) assert_true(v[i] == 0 || v[i] == 2);
        for (int n = 0; n + 2 < N; n++) assert_memory_equal(v + n * C, v + (n + 2) * C, C * sizeof *v);
        assert_memory_not_equal(v, v + C, C * sizeof *v);
        if (run % 2) assert_memory_equal(masks[run], masks[run - 1], sizeof masks[run]);
        if (run % 2 == 0 && run) assert_memory_not_equal(masks[run], masks[run - 1], sizeof masks[run]);
        if (run >= 6) assert_memory_equal(masks[run], masks[run - 6], sizeof masks[run]);
    }
    open_graph(e);
    tn_nn_gyro_dropout(random_input(e, TN_DIMS(2, 2), 0, 1), 0.5, 2, 3, 1, tn_full(e->g, TN_I64, TN_SCALAR, 0), "g");
    assert_int_equal(tn_graph_status(e->g), TN_ERR_INVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instance_norm),    cmocka_unit_test(test_local_response), cmocka_unit_test(test_weight_norm),
        cmocka_unit_test(test_spectral_norm),    cmocka_unit_test(test_given),          cmocka_unit_test(test_initial_values),
        cmocka_unit_test(test_dropout_variants), cmocka_unit_test(test_gyro),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
