/* conv.c - `tenon bench conv`: layers of well-known networks, batch 1, forward and (for the first four) backward: the
 * gradients of input and weights. Checked in double by the plain loop nest. The arithmetic is counted as usual: every tap,
 * padded ones too. */
#include "suite.h"
#include "tenon/tenon_nn.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct layer {
    const char *name;
    int64_t n, h, w, in, out, kernel, stride, groups; /* padding kernel / 2 */
    bool backward;
    int winograd; /* 0, or the size of tiles */
} layer;

static const layer layers[] = {
    { "3x3 56x56x64", 1, 56, 56, 64, 64, 3, 1, 1, true, 0 },
    { "3x3 28x28x128", 1, 28, 28, 128, 128, 3, 1, 1, true, 0 },
    { "3x3 14x14x256", 1, 14, 14, 256, 256, 3, 1, 1, true, 0 },
    { "3x3 7x7x512", 1, 7, 7, 512, 512, 3, 1, 1, true, 0 },
    { "1x1 56x56x64-256", 1, 56, 56, 64, 256, 1, 1, 1, false, 0 },
    { "1x1 14x14x1024-256", 1, 14, 14, 1024, 256, 1, 1, 1, false, 0 },
    { "3x3/2 56x56x128", 1, 56, 56, 128, 128, 3, 2, 1, false, 0 },
    { "depthwise 3x3 56x56x144", 1, 56, 56, 144, 144, 3, 1, 144, false, 0 },
    { "depthwise 3x3 14x14x576", 1, 14, 14, 576, 576, 3, 1, 576, false, 0 },
    { "depthwise 5x5 28x28x120", 1, 28, 28, 120, 120, 5, 1, 120, false, 0 },
    { "depthwise 3x3/2 56x56x144", 1, 56, 56, 144, 144, 3, 2, 144, false, 0 },
    { "depthwise 5x5/2 28x28x120", 1, 28, 28, 120, 120, 5, 2, 120, false, 0 },
};

static int64_t out_size(const layer *l, int64_t in) { return (in + l->kernel / 2 * 2 - l->kernel) / l->stride + 1; }

/* One multiply-add of the convolution: positions in x, w, y, over all outputs and taps that are not padding. */
typedef void (*tap_fn)(void *ud, int64_t x, int64_t w, int64_t y, int64_t n_out);
/* fn gets runs over the output channels of one group: y and w advance, x stays. */
static void for_taps(const layer *l, tap_fn fn, void *ud) {
    int64_t oh = out_size(l, l->h), ow = out_size(l, l->w), pad = l->kernel / 2, cin = l->in / l->groups,
            cout = l->out / l->groups;
    for (int64_t n = 0; n < l->n; n++)
        for (int64_t i = 0; i < oh; i++)
            for (int64_t j = 0; j < ow; j++)
                for (int64_t p = 0; p < l->kernel; p++)
                    for (int64_t q = 0; q < l->kernel; q++) {
                        int64_t r = i * l->stride + p - pad, s = j * l->stride + q - pad;
                        if (r < 0 || s < 0 || r >= l->h || s >= l->w) continue;
                        int64_t x = ((n * l->h + r) * l->w + s) * l->in, y = ((n * oh + i) * ow + j) * l->out;
                        for (int64_t g = 0; g < l->groups; g++)
                            for (int64_t c = 0; c < cin; c++)
                                fn(ud, x + g * cin + c, ((p * l->kernel + q) * cin + c) * l->out + g * cout, y + g * cout,
                                   cout);
                    }
}

typedef struct tapped { /* operands, and sums with the sums of absolute values for the bounds */
    const float *x, *w, *dy;
    expected *y, *dx, *dw;
} tapped;

static void tap_forward(void *ud, int64_t x, int64_t w, int64_t y, int64_t n) {
    tapped *t = ud;
    double a = (double)t->x[x];
    for (int64_t i = 0; i < n; i++) {
        double p = a * (double)t->w[w + i];
        t->y->want[y + i] += p;
        t->y->bound[y + i] += fabs(p);
    }
}
static void tap_backward(void *ud, int64_t x, int64_t w, int64_t y, int64_t n) {
    tapped *t = ud;
    double a = (double)t->x[x], sum = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double g = (double)t->dy[y + i], p = g * (double)t->w[w + i], q = g * a;
        sum += p;
        size += fabs(p);
        t->dw->want[w + i] += q;
        t->dw->bound[w + i] += fabs(q);
    }
    t->dx->want[x] += sum;
    t->dx->bound[x] += size;
}
/* The sums of absolute values become what so many roundings may change. Winograd's way rounds what a whole tile has in common,
 * and its transforms cancel. */
static void finish(const layer *l, expected *e, int64_t additions) {
    double top = 0;
    for (int64_t i = 0; i < e->n; i++) {
        e->bound[i] = e->bound[i] * ((double)additions + 2) * (FLT_EPSILON / 2) + 1e-30;
        top = fmax(top, e->bound[i]);
    }
    for (int64_t i = 0; i < e->n && l->winograd; i++) e->bound[i] = top * l->winograd * l->winograd;
}

enum { WEIGHTS = SUITE_MAX_PORTS - 1 }; /* place in a case's data of weights that its graph has in another form */
static float *weights(cli *c, const bench_case *k, tn_session *s, int64_t n) {
    float *w = cli_alloc((size_t)n * sizeof(float));
    if (k->data[WEIGHTS]) return memcpy(w, k->data[WEIGHTS], (size_t)n * sizeof(float));
    cli_need(c, tn_session_get(s, "conv/w", w, (size_t)n * sizeof(float)));
    return w;
}
static int64_t count_w(const layer *l) { return l->kernel * l->kernel * (l->in / l->groups) * l->out; }
static int64_t count_x(const layer *l) { return l->n * l->h * l->w * l->in; }
static int64_t count_y(const layer *l) { return l->n * out_size(l, l->h) * out_size(l, l->w) * l->out; }

static int expect_forward(cli *c, bench_case *k, tn_session *s, expected *want) {
    const layer *l = k->ud;
    float *w = weights(c, k, s, count_w(l)), *b = cli_alloc((size_t)l->out * sizeof(float));
    cli_need(c, tn_session_get(s, "conv/b", b, (size_t)l->out * sizeof(float)));
    expect_output(&want[0], "y", count_y(l));
    for (int64_t i = 0; i < want[0].n; i++) {
        want[0].want[i] = (double)b[i % l->out];
        want[0].bound[i] = fabs(want[0].want[i]);
    }
    tapped t = { .x = k->data[0], .w = w, .y = &want[0] };
    for_taps(l, tap_forward, &t);
    finish(l, &want[0], l->kernel * l->kernel * l->in / l->groups + 1);
    free(w);
    free(b);
    return 1;
}
static int expect_backward(cli *c, bench_case *k, tn_session *s, expected *want) {
    const layer *l = k->ud;
    float *w = weights(c, k, s, count_w(l));
    expect_output(&want[0], "dx", count_x(l));
    expect_output(&want[1], "dw", count_w(l));
    tapped t = { .x = k->data[0], .w = w, .dy = k->data[1], .dx = &want[0], .dw = &want[1] };
    for_taps(l, tap_backward, &t);
    finish(l, &want[0], l->kernel * l->kernel * l->out / l->groups);
    finish(l, &want[1], l->n * out_size(l, l->h) * out_size(l, l->w));
    free(w);
    return 2;
}

/* Weights for Winograd's way, made once: as in inference. */
static tn_tensor transformed(suite *s, bench_case *k, const layer *l, uint64_t *seed) {
    cli *c = s->c;
    float *w = case_floats(count_w(l), 1 / sqrt((double)(9 * l->in)), seed);
    int64_t points = (l->winograd + 2) * (l->winograd + 2), n = points * l->in * l->out;
    float *u = cli_alloc((size_t)n * sizeof(float));
    tn_graph *g = tn_graph_new(cli_ctx(c), "weights");
    tn_output(tn_nn_winograd_weights(tn_input(g, "w", TN_F32, TN_DIMS(3, 3, l->in, l->out)), l->winograd), "u");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *once;
    cli_need(c, tn_compile(g, &o, &p));
    cli_need(c, tn_session_new(p, &once));
    cli_need(c, tn_session_bind(once, tn_session_slot(once, "w"), w));
    cli_need(c, tn_session_bind(once, tn_session_slot(once, "u"), u));
    cli_need(c, tn_session_run(once));
    tn_session_free(once);
    tn_program_free(p);
    tn_graph_free(g);
    tn_tensor kept = tn_param(k->graph, "conv/u", TN_F32, TN_DIMS(points, l->in, l->out), u);
    free(u);
    k->data[WEIGHTS] = w;
    return kept;
}

static bench_case make_case(suite *s, const layer *l, bool backward, uint64_t seed) {
    static const char *const names[2][5] = { { "forward", NULL, "forward, winograd 2", NULL, "forward, winograd 4" },
                                             { "backward", NULL, "backward, winograd 2", NULL, "backward, winograd 4" } };
    bench_case k = case_new(s, "conv", l->name, names[backward][l->winograd]);
    tn_graph_set_seed(k.graph, seed);
    int64_t oh = out_size(l, l->h), ow = out_size(l, l->w);
    tn_tensor x = tn_input(k.graph, "x", TN_F32, TN_DIMS(l->n, l->h, l->w, l->in));
    case_input(&k, "x", case_floats(count_x(l), 1, &seed));
    tn_nn_conv_opts o = { .out_channels = l->out,
                          .kernel = { l->kernel },
                          .stride = { l->stride },
                          .padding = { l->kernel / 2 },
                          .groups = l->groups,
                          .no_bias = backward,
                          .winograd = l->winograd };
    if (l->winograd && !backward) o.transformed = transformed(s, &k, l, &seed);
    tn_tensor y = tn_nn_conv2d(x, o, "conv");
    k.flops = 2.0 * (double)count_y(l) * (double)(l->kernel * l->kernel * l->in / l->groups) * (backward ? 2 : 1);
    if (backward) {
        tn_tensor dy = tn_input(k.graph, "dy", TN_F32, TN_DIMS(l->n, oh, ow, l->out)),
                  xs[2] = { x, tn_graph_param(k.graph, 0) }, g[2];
        case_input(&k, "dy", case_floats(count_y(l), 1, &seed));
        cli_need(s->c, tn_grad(tn_sum(tn_mul(y, dy), TN_ALL_AXES, 0), xs, 2, g));
        tn_output(g[0], "dx");
        tn_output(g[1], "dw");
    } else
        tn_output(y, "y");
    if (l->groups > 1) { /* few multiply-adds a byte */
        k.bytes = 4.0 * (double)(count_x(l) + count_y(l) + count_w(l));
        k.bandwidth = PROBE_COPY;
    }
    k.row.size = l->h;
    k.row.batch = l->n;
    k.expect = backward ? expect_backward : expect_forward;
    k.ud = l;
    k.rival = cli_format("conv n=%lld h=%lld w=%lld in=%lld out=%lld kernel=%lld stride=%lld groups=%lld backward=%d",
                         (long long)l->n, (long long)l->h, (long long)l->w, (long long)l->in, (long long)l->out,
                         (long long)l->kernel, (long long)l->stride, (long long)l->groups, backward);
    return k;
}

static void measure(suite *s, const layer *l, uint64_t seed) {
    if (!suite_wants(s, l->name)) return;
    bench_case cases[6];
    layer ways[3] = { *l, *l, *l };
    int n = 0;
    for (int i = 0; i < (l->backward ? 3 : 1); i++) {
        ways[i].winograd = 2 * i;
        cases[n++] = make_case(s, &ways[i], false, seed);
        if (l->backward) cases[n++] = make_case(s, &ways[i], true, seed);
    }
    suite_run(s, cases, n);
}

static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    snprintf(buffer, n, "%s, %d thread%s", r->variant, (int)r->threads, r->threads > 1 ? "s" : "");
    return strncmp(r->name, "3x3 ", 4) ? NULL : buffer;
}
static double x_of(const bench_row *r) { return (double)r->size; }
static double y_of(const bench_row *r) { return r->gflops; }

int bench_conv(cli *c) {
    suite s = suite_begin(c, "bench conv");
    int64_t sizes[16];
    if (cli_text(c, "sizes", NULL)) { /* 3x3 and depthwise layers n x n with 8 channels: for trying out */
        int n = cli_ints(c, "sizes", NULL, sizes, COUNT_OF(sizes), 1, 1024);
        for (int i = 0; i < n; i++) {
            layer plain = { suite_text(&s, "3x3 %lldx%lldx8", (long long)sizes[i], (long long)sizes[i]),
                            1,
                            sizes[i],
                            sizes[i],
                            8,
                            8,
                            3,
                            1,
                            1,
                            true,
                            0 },
                  deep = { suite_text(&s, "depthwise 3x3 %lldx%lldx8", (long long)sizes[i], (long long)sizes[i]),
                           1,
                           sizes[i],
                           sizes[i],
                           8,
                           8,
                           3,
                           1,
                           8,
                           false,
                           0 };
            measure(&s, &plain, s.seed);
            measure(&s, &deep, s.seed);
        }
    } else {
        for (size_t i = 0; i < COUNT_OF(layers); i++) measure(&s, &layers[i], s.seed + i);
    }
    suite_report(&s);
    rows_plot(c,
              &(chart){ .title = "3x3 convolutions of ResNet, batch 1",
                        .x_label = "height and width",
                        .x_of = x_of,
                        .panel = { { "nominal GFLOP/s (median)", line_of, y_of } } },
              s.rows, s.n_rows);
    suite_end(&s);
    return CLI_OK;
}
