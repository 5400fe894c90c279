/* test_quant.c - quantised convolutions against sums of whole numbers: every bit where scales are powers of two. Chains in
 * which bytes are kept between contractions, strides, groups, dilations, channels in packs of four and not, zero points of all
 * kinds; as QDQ nodes, as QLinearConv and as ConvInteger. */
#include "onnx_models.h"

#include <math.h>

enum { U8 = 2, I8 = 3, ROOM = 1 << 14 };

typedef struct conv {
    int channels, out, size, kernel, stride, pad, groups, dilation, zero_x;
    bool zero_w; /* weights have zero points, one for each output */
} conv;
static const conv convs[] = {
    { 8, 16, 9, 3, 1, 1, 1, 1, 130, false },   { 8, 16, 9, 3, 2, 1, 1, 1, 0, false },
    { 16, 20, 7, 1, 1, 0, 1, 1, 131, false },  { 16, 20, 11, 1, 2, 0, 1, 1, 0, true },
    { 3, 8, 9, 3, 2, 1, 1, 1, 127, false },    { 12, 12, 6, 3, 1, 1, 12, 1, 100, false },
    { 16, 24, 8, 3, 1, 1, 2, 1, 128, false },  { 5, 7, 10, 3, 1, 2, 1, 2, 99, true },
    { 32, 16, 17, 3, 1, 1, 1, 1, 0, false },   { 4, 1, 1, 1, 1, 0, 1, 1, 255, true },
    { 16, 16, 17, 3, 2, 1, 16, 1, 90, false }, { 8, 8, 33, 3, 2, 1, 8, 1, 0, true },
    { 6, 12, 21, 5, 1, 2, 6, 1, 255, false },  { 20, 24, 15, 3, 2, 1, 1, 1, 77, false },
    { 3, 16, 21, 7, 2, 3, 1, 1, 120, false },  { 9, 6, 11, 5, 1, 2, 3, 1, 0, true },
    { 5, 8, 9, 4, 1, 1, 1, 1, 255, false },    { 6, 6, 35, 3, 1, 1, 6, 1, 77, false },
    { 5, 10, 36, 3, 2, 1, 5, 1, 0, false },    { 4, 4, 25, 7, 1, 3, 4, 1, 9, false },
    { 4, 4, 41, 4, 2, 1, 4, 1, 130, false },   { 4, 4, 19, 3, 1, 2, 4, 2, 3, false },
};

typedef struct data {
    uint8_t x[ROOM], zero_x, zero_y;
    int8_t w[ROOM], zero_w[64];
    float plain[ROOM], bias[64], scale_x, scale_w[64], scale_y;
    int32_t bias_steps[64];
    int32_t sums[ROOM];
} data;

static int positions(const conv *c) { return (c->size + 2 * c->pad - (c->kernel - 1) * c->dilation - 1) / c->stride + 1; }

static int32_t sum_at(const conv *c, const data *d, int o, int y, int x) {
    int per = c->channels / c->groups, group = o / (c->out / c->groups), zero = c->zero_w ? d->zero_w[o] : 0;
    int32_t sum = 0;
    for (int i = 0; i < per * c->kernel * c->kernel; i++) {
        int ch = i / c->kernel / c->kernel, dy = i / c->kernel % c->kernel, dx = i % c->kernel;
        int at_y = y * c->stride + dy * c->dilation - c->pad, at_x = x * c->stride + dx * c->dilation - c->pad;
        if (at_y < 0 || at_x < 0 || at_y >= c->size || at_x >= c->size) continue;
        sum += (d->x[((group * per + ch) * c->size + at_y) * c->size + at_x] - d->zero_x) *
               (d->w[o * per * c->kernel * c->kernel + i] - zero);
    }
    return sum;
}

static void fill_case(const conv *c, data *d, uint64_t *seed) {
    int p = positions(c);
    d->zero_x = (uint8_t)c->zero_x, d->zero_y = 117, d->scale_x = 0.25f, d->scale_y = 32;
    for (int i = 0; i < ROOM; i++) {
        d->x[i] = (uint8_t)rnd_below(seed, 256), d->w[i] = (int8_t)((int)rnd_below(seed, 256) - 128);
        d->plain[i] = (float)(d->x[i] - d->zero_x) * d->scale_x;
    }
    for (int o = 0; o < c->out; o++) {
        d->zero_w[o] = (int8_t)((int)rnd_below(seed, 9) - 4), d->scale_w[o] = o % 2 ? 0.125f : 0.0625f;
        d->bias_steps[o] = (int32_t)rnd_below(seed, 4000) - 2000;
        d->bias[o] = (float)d->bias_steps[o] * d->scale_x * d->scale_w[o];
        for (int i = 0; i < p * p; i++) d->sums[o * p * p + i] = sum_at(c, d, o, i / p, i % p);
    }
}

static void check_bytes(const conv *c, const data *d, const uint8_t *y, bool bias, const char *form) {
    int p = positions(c);
    for (int i = 0; i < c->out * p * p; i++) {
        int o = i / p / p;
        double v = (double)(d->sums[i] + (bias ? d->bias_steps[o] : 0)) * (double)(d->scale_x * d->scale_w[o] / d->scale_y);
        double want = fmin(fmax(nearbyint(v) + d->zero_y, 0), 255);
        if (y[i] != want) fail_msg("%s, case %d [%d]: %d, expected %g", form, (int)(c - convs), i, y[i], want);
    }
}

static void test_convolutions(void **state) {
    (void)state;
    uint64_t seed = 5;
    static data d;
    static uint8_t y[ROOM];
    static int32_t sums[ROOM];
    for (size_t k = 0; k < sizeof convs / sizeof *convs; k++) {
        const conv *c = &convs[k];
        int per = c->channels / c->groups, p = positions(c), n_w = c->out * per * c->kernel * c->kernel;
        size_t n_x = (size_t)(c->channels * c->size * c->size), n_o = (size_t)c->out;
        fill_case(c, &d, &seed);
        array in[] = {
            { "x", F32, 4, { 1, c->channels, c->size, c->size }, d.plain, n_x * 4, false, false },
            { "sx", F32, 0, { 0 }, &d.scale_x, 4, true, false },
            { "zx", U8, 0, { 0 }, &d.zero_x, 1, true, false },
            { "w", I8, 4, { c->out, per, c->kernel, c->kernel }, d.w, (size_t)n_w, true, false },
            { "sw", F32, 1, { c->out }, d.scale_w, n_o * 4, true, false },
            { "zw", I8, 1, { c->out }, d.zero_w, n_o, true, false },
            { "b", F32, 1, { c->out }, d.bias, n_o * 4, true, false },
            { "sy", F32, 0, { 0 }, &d.scale_y, 4, true, false },
            { "zy", U8, 0, { 0 }, &d.zero_y, 1, true, false },
            { "q", I32, 1, { c->out }, d.bias_steps, n_o * 4, true, false },
        };
        char node[256], attrs[160];
        snprintf(attrs, sizeof attrs, "strides:l=%d,%d ; pads:l=%d,%d,%d,%d ; group:i=%d ; dilations:l=%d,%d", c->stride,
                 c->stride, c->pad, c->pad, c->pad, c->pad, c->groups, c->dilation, c->dilation);
        const char *weights =
            c->zero_w ? "DequantizeLinear w sw zw -> wf ; axis:i=0" : "DequantizeLinear w sw -> wf ; axis:i=0";
        snprintf(node, sizeof node, "Conv xf wf b -> r ; %s", attrs);
        assert_int_equal(run_model(NODES("QuantizeLinear x sx zx -> xq", "DequantizeLinear xq sx zx -> xf", weights, node,
                                         "QuantizeLinear r sy zy -> y"),
                                   in, 9, 17, "y", U8, TN_U8, y, sizeof y),
                         c->out * p * p);
        check_bytes(c, &d, y, true, "QDQ");
        array bytes[10];
        memcpy(bytes, in, sizeof in);
        bytes[0] = (array){ "x", U8, 4, { 1, c->channels, c->size, c->size }, d.x, n_x, false, false };
        if (!c->zero_w) memset(d.zero_w, 0, sizeof d.zero_w);
        snprintf(node, sizeof node, "QLinearConv x sx zx w sw zw sy zy q -> y ; %s", attrs);
        run_model(NODES(node), bytes, 10, 17, "y", U8, TN_U8, y, sizeof y);
        check_bytes(c, &d, y, true, "QLinearConv");
        for (int turn = 0; turn < 2; turn++) { /* weights known, and given by each run */
            bytes[3].weight = !turn;
            snprintf(node, sizeof node, "ConvInteger x w zx zw -> y ; %s", attrs);
            run_model(NODES(node), (array[]){ bytes[0], bytes[2], bytes[3], bytes[5] }, 4, 17, "y", I32, TN_I32, sums,
                      sizeof sums);
            assert_memory_equal(sums, d.sums, (size_t)(c->out * p * p) * 4);
        }
    }
}

/* Rows times a matrix, with the zero point of the rows known: MatMul, and Gemm with the matrix either way. */
static void test_products(void **state) {
    (void)state;
    enum { M = 5, K = 44, N = 19 };
    uint64_t seed = 9;
    static data d;
    static uint8_t y[M * N];
    static const conv shape = { .channels = K, .out = N, .size = 1, .kernel = 1, .stride = 1, .groups = 1, .dilation = 1 };
    for (int form = 0; form < 3; form++) {
        conv c = shape;
        c.zero_x = form == 1 ? 0 : 201;
        fill_case(&c, &d, &seed);
        array in[] = {
            { "x", F32, 2, { M, K }, d.plain, M * K * 4, false, false },
            { "sx", F32, 0, { 0 }, &d.scale_x, 4, true, false },
            { "zx", U8, 0, { 0 }, &d.zero_x, 1, true, false },
            { "w", I8, 2, { form == 2 ? N : K, form == 2 ? K : N }, d.w, K * N, true, false },
            { "sw", F32, 1, { N }, d.scale_w, N * 4, true, false },
            { "b", F32, 1, { N }, d.bias, N * 4, true, false },
            { "sy", F32, 0, { 0 }, &d.scale_y, 4, true, false },
            { "zy", U8, 0, { 0 }, &d.zero_y, 1, true, false },
        };
        const char *product = form == 0 ? "MatMul xf wf -> m" : form == 1 ? "Gemm xf wf -> m" : "Gemm xf wf -> m ; transB:i=1";
        const char *weights = form == 2 ? "DequantizeLinear w sw -> wf ; axis:i=0" : "DequantizeLinear w sw -> wf ; axis:i=1";
        assert_int_equal(run_model(NODES("QuantizeLinear x sx zx -> xq", "DequantizeLinear xq sx zx -> xf", weights, product,
                                         "Add m b -> r", "QuantizeLinear r sy zy -> y"),
                                   in, 8, 17, "y", U8, TN_U8, y, sizeof y),
                         M * N);
        for (int i = 0; i < M * N; i++) {
            int32_t sum = d.bias_steps[i % N];
            for (int k = 0; k < K; k++) sum += (d.x[i / N * K + k] - d.zero_x) * d.w[form == 2 ? i % N * K + k : k * N + i % N];
            double v = (double)sum * (double)(d.scale_x * d.scale_w[i % N] / d.scale_y);
            double want = fmin(fmax(nearbyint(v) + d.zero_y, 0), 255);
            if (y[i] != want) fail_msg("%s [%d]: %d, expected %g", product, i, y[i], want);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_convolutions), cmocka_unit_test(test_products) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
