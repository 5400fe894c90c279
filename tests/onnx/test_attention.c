/* test_attention.c - attention, rotation and samples of regions against plain loops in double precision. */
#include "onnx_models.h"

#include <math.h>

enum { BOOL = 9 };

typedef struct attention {
    int n, h, g, t, past, keys, d, e; /* keys without the past */
    bool causal, masked;
    double softcap;
} attention;

/* q [N,H,T,d], k [N,G,S,d], v [N,G,S,e] of past and present keys together, mask [T,S]. */
static void attend(const attention *a, const float *q, const float *k, const float *v, const uint8_t *mask, double *y) {
    int s = a->past + a->keys;
    double p[64];
    for (int row = 0; row < a->n * a->h * a->t; row++) {
        int t = row % a->t, head = row / a->t, group = head / a->h * a->g + head % a->h / (a->h / a->g);
        double sum = 0;
        for (int j = 0; j < s; j++) {
            double score = 0;
            for (int i = 0; i < a->d; i++) score += (double)q[row * a->d + i] * (double)k[(group * s + j) * a->d + i];
            score /= sqrt(a->d);
            if (a->softcap > 0) score = a->softcap * tanh(score / a->softcap);
            bool seen = !(a->masked && !mask[t * s + j]) && !(a->causal && j > t + a->past);
            sum += p[j] = seen ? exp(score) : 0;
        }
        for (int i = 0; i < a->e; i++) {
            double out = 0;
            for (int j = 0; j < s; j++) out += p[j] * (double)v[(group * s + j) * a->e + i];
            y[row * a->e + i] = sum > 0 ? out / sum : 0;
        }
    }
}
/* [heads,past,d] and [heads,keys,d] together. */
static void join(float *all, const float *past, const float *now, int heads, int n_past, int n_now, int d) {
    for (int h = 0; h < heads; h++) {
        memcpy(all + h * (n_past + n_now) * d, past + h * n_past * d, (size_t)(n_past * d) * 4);
        memcpy(all + (h * (n_past + n_now) + n_past) * d, now + h * n_now * d, (size_t)(n_now * d) * 4);
    }
}

static void test_attention(void **state) {
    (void)state;
    static const attention cases[] = {
        { 1, 2, 2, 5, 0, 5, 4, 4, false, false, 0 }, { 2, 3, 3, 4, 0, 7, 5, 3, true, false, 0 },
        { 2, 4, 2, 3, 0, 6, 4, 6, false, true, 0 },  { 1, 6, 2, 3, 5, 3, 8, 4, true, false, 0 },
        { 1, 4, 1, 5, 2, 4, 3, 5, true, true, 1.5 },
    };
    uint64_t seed = 5;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const attention *a = &cases[i];
        int s = a->past + a->keys, heads = a->n * a->g;
        static float q[512], k[512], v[512], pk[512], pv[512], ak[1024], av[1024], got[1024];
        static double want[1024];
        uint8_t mask[256];
        fill(&seed, q, 512), fill(&seed, k, 512), fill(&seed, v, 512), fill(&seed, pk, 512), fill(&seed, pv, 512);
        for (int j = 0; j < a->t * s; j++) mask[j] = rnd_below(&seed, 3) > 0 && j / s != 1; /* row 1 sees nothing */
        join(ak, pk, k, heads, a->past, a->keys, a->d), join(av, pv, v, heads, a->past, a->keys, a->e);
        attend(a, q, ak, av, mask, want);
        char node[160];
        snprintf(node, sizeof node, "Attention q k v %s %s -> y ; is_causal:i=%d ; softcap:f=%g", a->masked ? "m" : "_",
                 a->past ? "pk pv" : "", a->causal, a->softcap);
        array in[] = {
            { "q", F32, 4, { a->n, a->h, a->t, a->d }, q, 0, false, false },
            { "k", F32, 4, { a->n, a->g, a->keys, a->d }, k, 0, false, false },
            { "v", F32, 4, { a->n, a->g, a->keys, a->e }, v, 0, false, false },
            { "m", BOOL, 2, { a->t, s }, mask, 0, false, false },
            { "pk", F32, 4, { a->n, a->g, a->past, a->d }, pk, 0, false, false },
            { "pv", F32, 4, { a->n, a->g, a->past, a->e }, pv, 0, false, false },
        };
        int n = a->n * a->h * a->t * a->e;
        assert_int_equal(run_model(NODES(node), in, a->past ? 6 : 4, 23, "y", F32, TN_F32, got, sizeof got), n);
        assert_near(got, want, n, 2e-5, node);
    }
}

static void test_rotary(void **state) {
    (void)state;
    enum { B = 2, T = 3, H = 2, D = 8, P = 9 };
    uint64_t seed = 6;
    static float x[B * T * H * D], c[P * 2], s[P * 2], y[B * T * H * D];
    int64_t at[B * T];
    double want[B * T * H * D];
    fill(&seed, x, B * T * H * D), fill(&seed, c, P * 2), fill(&seed, s, P * 2);
    for (int i = 0; i < B * T; i++) at[i] = rnd_below(&seed, P);
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        for (int r = 0; r < B * T * H; r++) { /* four of the eight features turn */
            const float *from = x + r * D;
            double *to = want + r * D;
            for (int i = 0; i < D; i++) to[i] = (double)from[i];
            for (int i = 0; i < 2; i++) {
                int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + 2;
                double cos = (double)c[at[r / H] * 2 + i], sin = (double)s[at[r / H] * 2 + i];
                to[a] = cos * (double)from[a] - sin * (double)from[b], to[b] = sin * (double)from[a] + cos * (double)from[b];
            }
        }
        char node[128];
        array in[] = { { "x", F32, 3, { B, T, H * D }, x, 0, false, false },
                       { "c", F32, 2, { P, 2 }, c, 0, false, false },
                       { "s", F32, 2, { P, 2 }, s, 0, false, false },
                       { "p", I64, 2, { B, T }, at, 0, false, false } };
        for (int form = 0; form < 2; form++) {
            snprintf(node, sizeof node, "%s -> y ; interleaved:i=%d ; num_heads:i=%d ; rotary_embedding_dim:i=4",
                     form ? "com.microsoft.RotaryEmbedding x p c s" : "RotaryEmbedding x c s p", interleaved, H);
            run_model(NODES(node), in, 4, 23, "y", F32, TN_F32, y, sizeof y);
            assert_near(y, want, B * T * H * D, 1e-5, node);
        }
    }
}

/* One element by the definition: samples of each bin, each between four elements. */
static double roi_element(const float *image, int h, int w, const float *box, int ph, int pw, int i, int j, int samples,
                          bool half) {
    double off = half ? 0.5 : 0, x0 = (double)box[0] - off, y0 = (double)box[1] - off, bw = (double)box[2] - off - x0,
           bh = (double)box[3] - off - y0, sum = 0;
    if (!half) bw = fmax(bw, 1), bh = fmax(bh, 1);
    for (int a = 0; a < samples * samples; a++) {
        double y = y0 + bh / ph * (i + (a / samples + 0.5) / samples), x = x0 + bw / pw * (j + (a % samples + 0.5) / samples);
        if (y < -1 || y > h || x < -1 || x > w) continue;
        y = fmin(fmax(y, 0), h - 1), x = fmin(fmax(x, 0), w - 1);
        int yl = (int)y, xl = (int)x, yh = yl + 1 < h ? yl + 1 : yl, xh = xl + 1 < w ? xl + 1 : xl;
        sum += (yl + 1 - y) * ((xl + 1 - x) * (double)image[yl * w + xl] + (x - xl) * (double)image[yl * w + xh]) +
               (y - yl) * ((xl + 1 - x) * (double)image[yh * w + xl] + (x - xl) * (double)image[yh * w + xh]);
    }
    return sum / (samples * samples);
}
static void test_roi_align(void **state) {
    (void)state;
    enum { C = 2, H = 7, W = 9, R = 4 };
    uint64_t seed = 9;
    static float x[2 * C * H * W], boxes[R * 4], y[R * C * 6];
    int64_t batch[R] = { 1, 0, 0, 1 };
    double want[R * C * 6];
    fill(&seed, x, 2 * C * H * W);
    for (int i = 0; i < R * 4; i++) boxes[i] = (float)(rnd_below(&seed, 1200) - 200) / 100 + (i % 4 > 1 ? 2.5f : 0);
    for (int half = 0; half < 2; half++) {
        char node[160];
        snprintf(node, sizeof node,
                 "RoiAlign x b i -> y ; output_height:i=2 ; output_width:i=3 ; sampling_ratio:i=2 ; "
                 "coordinate_transformation_mode:s=%s",
                 half ? "half_pixel" : "output_half_pixel");
        for (int e = 0; e < R * C * 6; e++) {
            int r = e / (C * 6), c = e / 6 % C;
            want[e] = roi_element(x + (batch[r] * C + c) * H * W, H, W, boxes + r * 4, 2, 3, e % 6 / 3, e % 3, 2, half);
        }
        array in[] = { { "x", F32, 4, { 2, C, H, W }, x, 0, false, false },
                       { "b", F32, 2, { R, 4 }, boxes, 0, false, false },
                       { "i", I64, 1, { R }, batch, 0, false, false } };
        run_model(NODES(node), in, 3, 16, "y", F32, TN_F32, y, sizeof y);
        assert_near(y, want, R * C * 6, 1e-4, node);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_rotary),
        cmocka_unit_test(test_roi_align),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
