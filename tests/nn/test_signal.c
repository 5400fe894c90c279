/* test_signal.c - tenon_signal.h against sums over all samples: lengths of one and several factors, primes, large primes; axes
 * in all places; there and back; frames; mel filters; gradients; refused calls. Labels: devices long */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/trial.h"
#include "tenon/tenon_signal.h"

#include <math.h>
#include <stdio.h>

#define TURN 6.283185307179586476925286766559

/* x [b,n,c,2] (im NULL: all zero) along n; out [b,m,c,2] */
static void by_sums(const double *x, bool real, int b, int n, int c, int m, int sign, double *out) {
    for (int i = 0; i < b; i++)
        for (int k = 0; k < m; k++)
            for (int l = 0; l < c; l++) {
                double re = 0, im = 0;
                for (int j = 0; j < n; j++) {
                    double angle = sign * TURN * (double)((int64_t)j * k % n) / n;
                    int at = (i * n + j) * c + l;
                    double xr = real ? x[at] : x[2 * at], xi = real ? 0 : x[2 * at + 1];
                    re += xr * cos(angle) - xi * sin(angle), im += xr * sin(angle) + xi * cos(angle);
                }
                double *to = &out[2 * ((i * m + k) * c + l)];
                to[0] = sign > 0 ? re / n : re, to[1] = sign > 0 ? im / n : im;
            }
}

static void transforms(void **state) {
    (void)state;
    static const int cases[][3] = { { 1, 1, 1 },   { 2, 2, 1 },   { 1, 7, 3 },    { 2, 16, 1 },  { 1, 60, 2 },
                                    { 1, 64, 1 },  { 2, 97, 1 },  { 1, 122, 2 },  { 1, 128, 1 }, { 1, 134, 1 },
                                    { 1, 256, 1 }, { 1, 720, 1 }, { 1, 1024, 1 }, { 1, 1009, 1 } };
    int done = 0;
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        int b = cases[k][0], n = cases[k][1], c = cases[k][2], half = n / 2 + 1;
        if ((fuzz_by_c() || !test_device_is_cpu()) && n > 130) continue;
        trial *t = trial_open(k + 1);
        tn_tensor z = trial_floats(t, TN_DIMS(b, n, c, 2), -1, 1), x = trial_floats(t, TN_DIMS(b, n, c), -1, 1);
        tn_tensor r = tn_signal_rfft(x, -2),
                  y[] = { tn_signal_fft(z, 1, 0), tn_signal_fft(z, -2, 1), r, tn_signal_irfft(r, n, 1) };
        double *want[4];
        for (int i = 0; i < 3; i++) want[i] = ARENA_ARRAY(&t->a, double, 2 * b * n * c + 2);
        by_sums(trial_values(t, z), false, b, n, c, n, -1, want[0]), by_sums(trial_values(t, z), false, b, n, c, n, 1, want[1]);
        by_sums(trial_values(t, x), true, b, n, c, half, -1, want[2]), want[3] = trial_values(t, x);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(trial_count(y[i]), i < 2 ? 2 * b * n * c : i == 2 ? 2 * b * half * c : b * n * c);
            trial_near("transform", trial_values(t, y[i]), want[i], trial_count(y[i]), 1e-11);
        }
        trial_compiled(t, y, 4, 1e-10);
        if (n < 100) trial_gradients(t, y[0], 1e-5), trial_gradients(t, y[2], 1e-5), trial_gradients(t, y[3], 1e-5);
        trial_close(t);
        done += 4;
    }
    printf("count: %d Fourier transforms\n", done);
}

/* In f32 the error stays near the rounding of the type. */
static void single_precision(void **state) {
    (void)state;
    enum { N = 4096 };
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "f32");
    float *x = test_calloc(2 * N, sizeof *x), *y = test_calloc(2 * N, sizeof *y);
    rng r = rng_make(5);
    for (int i = 0; i < 2 * N; i++) x[i] = (float)rng_range(&r, -1, 1);
    tn_tensor in = tn_input(g, "x", TN_F32, TN_DIMS(N, 2));
    tn_output(tn_signal_fft(tn_signal_fft(in, 0, 0), 0, 1), "y");
    tn_program *p;
    tn_session *s;
    if (tn_compile(g, NULL, &p) || tn_session_new(p, &s) || tn_run(s, TN_BIND({ "x", x }, { "y", y })))
        fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 0; i < 2 * N; i++) assert_true(fabsf(x[i] - y[i]) < 3e-6F);
    tn_session_free(s), tn_program_free(p), tn_graph_free(g), tn_ctx_free(ctx), test_free(x), test_free(y);
}

static void frames(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++) {
        enum { N = 50, L = 12, STEP = 5 };
        trial *t = trial_open((uint64_t)way + 1);
        int pad = way & 1 ? L / 2 : 0, count = (N + 2 * pad - L) / STEP + 1, m = way & 2 ? L : L / 2 + 1;
        tn_tensor x = trial_floats(t, TN_DIMS(2, N), -1, 1), w = tn_signal_window(t->g, TN_SIGNAL_HANN, L, 1);
        tn_tensor y = tn_signal_stft(x, (tn_signal_stft_opts){ L, STEP, w, way & 1, way & 2 });
        tn_shape s = tn_tensor_shape(y);
        assert_int_equal(s.rank, 4);
        assert_int_equal(s.dim[1], count), assert_int_equal(s.dim[2], m);
        const double *v = trial_values(t, x), *got = trial_values(t, y);
        double frame[L], want[2 * L];
        for (int b = 0; b < 2; b++)
            for (int f = 0; f < count; f++) {
                for (int i = 0; i < L; i++) {
                    int at = f * STEP + i - pad;
                    at = at < 0 ? -at : at >= N ? 2 * N - 2 - at : at;
                    frame[i] = v[b * N + at] * (double)(float)(0.5 - 0.5 * cos(TURN * i / L));
                }
                by_sums(frame, true, 1, L, 1, m, -1, want);
                trial_near("stft", got + (b * count + f) * m * 2, want, m * 2, 1e-11);
            }
        trial_compiled(t, &y, 1, 1e-11);
        trial_gradients(t, y, 1e-5);
        trial_close(t);
    }
}

static void mel_filters(void **state) {
    (void)state;
    trial *t = trial_open(1);
    tn_tensor m = tn_signal_mel(t->g, 8, 256, 8000, 100, 3000), w = tn_signal_window(t->g, TN_SIGNAL_HAMMING, 1, 0);
    const double *v = trial_values(t, m);
    assert_int_equal(trial_count(m), 129 * 8);
    for (int band = 0; band < 8; band++) {
        int peaks = 0;
        double last = 0;
        for (int i = 0; i < 129; i++) {
            double x = v[i * 8 + band];
            assert_true(x >= 0 && x <= 1);
            peaks += x == 1;
            if (band && x == 1) assert_true(v[i * 8 + band - 1] == 0 || v[i * 8 + band - 1] == 1);
            last = x;
        }
        assert_int_equal(peaks, 1);
        assert_true(last == 0);
    }
    assert_true(fabs(trial_values(t, w)[0] - 4.0 / 46) < 1e-7);
    trial_close(t);
}

static void mistakes_are_named(void **state) {
    (void)state;
    static const char *const texts[] = { "tn_signal_fft: the last axis has size 3, and must be pairs",
                                         "tn_signal_rfft: axis 1 of rank 1",
                                         "tn_signal_irfft: 3 frequencies for 8 numbers: expected 5",
                                         "tn_signal_stft: frames of 9 in steps of 2 over 3 samples",
                                         "tn_signal_mel: 4 bands of 16 samples at 8 Hz, from 3 to 1 Hz",
                                         "tn_signal_window: kind 7, length 4" };
    for (int i = 0; i < 6; i++) {
        trial *t = trial_open(1);
        tn_tensor x = trial_floats(t, TN_DIMS(3), 0, 1), z = trial_floats(t, TN_DIMS(3, 2), 0, 1);
        if (i == 0) tn_signal_fft(trial_floats(t, TN_DIMS(2, 3), 0, 1), 0, 0);
        if (i == 1) tn_signal_rfft(x, 1);
        if (i == 2) tn_signal_irfft(z, 8, 0);
        if (i == 3) tn_signal_stft(x, (tn_signal_stft_opts){ .length = 9 });
        if (i == 4) tn_signal_mel(t->g, 4, 16, 8, 3, 1);
        if (i == 5) tn_signal_window(t->g, (tn_signal_window_kind)7, 4, 0);
        trial_refused(t, texts[i]);
        trial_close(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(transforms), cmocka_unit_test(single_precision),
                                        cmocka_unit_test(frames), cmocka_unit_test(mel_filters),
                                        cmocka_unit_test(mistakes_are_named) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
