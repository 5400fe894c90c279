/* rnn.c - `tenon bench rnn`: recurrent layers over sequences: an LSTM forward, and a training step of two LSTM layers (mean
 * squared error, gradients through time, SGD). Expected results are plain loops in double precision. The floor of a forward
 * pass is what the products take at the peak rate, or, in each step, reading the weights from the cache: footprint and
 * bandwidth. */
#include "suite.h"
#include "tenon/tenon_nn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double learning_rate = 0.01;
enum { MOST_LAYERS = 2 };

typedef struct recurrence {
    const char *name;
    int64_t layers, units, steps, batch;
    bool train;
} recurrence;

static const recurrence works[] = { { "lstm 1 x 256, T 128", 1, 256, 128, 1, false },
                                    { "lstm 1 x 256, T 128", 1, 256, 128, 16, false },
                                    { "lstm training 2 x 256, T 64", 2, 256, 64, 32, true } };

/* ---- in double: gates i f g o ---- */

typedef struct layer_run { /* [T,B,..] of a layer */
    float *w_x, *w_h, *b;  /* [H,4H], [H,4H], [4H] */
    double *x, *gates, *c, *h, *d_x;
    double *d_wx, *d_wh, *d_b;
} layer_run;

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static float *get_state(cli *c, tn_session *s, int64_t layer, const char *what, int64_t n) {
    char *name = cli_format("lstm/l%lld/%s", (long long)layer, what);
    float *x = cli_alloc((size_t)n * sizeof *x);
    cli_need(c, tn_session_get(s, name, x, (size_t)n * sizeof *x));
    free(name);
    return x;
}

static void run_layer(const recurrence *r, layer_run *l) {
    int64_t h = r->units, rows = r->batch, wide = 4 * h;
    l->gates = case_array(r->steps * rows * wide);
    l->c = case_array(r->steps * rows * h), l->h = case_array(r->steps * rows * h);
    for (int64_t i = 0; i < r->steps * rows * wide; i++) l->gates[i] = (double)l->b[i % wide];
    product_double(l->x, l->w_x, r->steps * rows, wide, h, l->gates);
    for (int64_t t = 0; t < r->steps; t++) {
        if (t) product_double(l->h + (t - 1) * rows * h, l->w_h, rows, wide, h, l->gates + t * rows * wide);
        for (int64_t i = 0; i < rows * h; i++) {
            double *g = l->gates + (t * rows + i / h) * wide + i % h, before = t ? l->c[(t - 1) * rows * h + i] : 0;
            g[0] = sigmoid(g[0]), g[h] = sigmoid(g[h]), g[2 * h] = tanh(g[2 * h]), g[3 * h] = sigmoid(g[3 * h]);
            double c = g[h] * before + g[0] * g[2 * h];
            l->c[t * rows * h + i] = c;
            l->h[t * rows * h + i] = g[3 * h] * tanh(c);
        }
    }
}

/* y += xT d: x f64[n,a], d f64[n,b]. */
static void add_outer(const double *x, const double *d, int64_t n, int64_t a, int64_t b, double *y) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < a; j++)
            for (int64_t k = 0; k < b; k++) y[j * b + k] += x[i * a + j] * d[i * b + k];
}

static float *transposed(const float *w, int64_t rows, int64_t cols) {
    float *t = cli_alloc((size_t)(rows * cols) * sizeof *t);
    for (int64_t i = 0; i < rows * cols; i++) t[i % cols * rows + i / cols] = w[i];
    return t;
}

/* Gradients of a layer, d_h f64[T,B,H] being those of its results. The gates become their gradients. */
static void run_back(const recurrence *r, layer_run *l, const double *d_h) {
    int64_t h = r->units, rows = r->batch, wide = 4 * h, n = rows * h;
    double *d_c = case_array(n), *d_state = case_array(n);
    float *w_hT = transposed(l->w_h, h, wide), *w_xT = transposed(l->w_x, h, wide);
    for (int64_t t = r->steps - 1; t >= 0; t--) {
        for (int64_t i = 0; i < n; i++) {
            double *g = l->gates + (t * rows + i / h) * wide + i % h, at = tanh(l->c[t * n + i]);
            double before = t ? l->c[(t - 1) * n + i] : 0, dh = d_h[t * n + i] + d_state[i];
            double dc = d_c[i] + dh * g[3 * h] * (1 - at * at), in = g[0], forget = g[h], fresh = g[2 * h], out = g[3 * h];
            d_c[i] = dc * forget;
            g[0] = dc * fresh * in * (1 - in), g[h] = dc * before * forget * (1 - forget);
            g[2 * h] = dc * in * (1 - fresh * fresh), g[3 * h] = dh * at * out * (1 - out);
        }
        memset(d_state, 0, (size_t)n * sizeof *d_state);
        product_double(l->gates + t * rows * wide, w_hT, rows, h, wide, d_state);
    }
    l->d_x = case_array(r->steps * n);
    product_double(l->gates, w_xT, r->steps * rows, h, wide, l->d_x);
    l->d_wx = case_array(h * wide), l->d_wh = case_array(h * wide), l->d_b = case_array(wide);
    add_outer(l->x, l->gates, r->steps * rows, h, wide, l->d_wx);
    add_outer(l->h, l->gates + rows * wide, (r->steps - 1) * rows, h, wide, l->d_wh);
    for (int64_t i = 0; i < r->steps * rows * wide; i++) l->d_b[i % wide] += l->gates[i];
    free(d_c), free(d_state), free(w_hT), free(w_xT);
}

static void expect_array(expected *w, const char *name, const double *x, int64_t n, double tolerance) {
    double top = 0;
    expect_output(w, name, n);
    for (int64_t i = 0; i < n; i++) top = fmax(top, fabs(w->want[i] = x[i]));
    for (int64_t i = 0; i < n; i++) w->bound[i] = tolerance * top;
}

/* A parameter after its update: what is allowed is relative to the largest step of all. */
static void expect_param(expected *w, const char *name, const float *p, const double *d, int64_t n) {
    double top = 0;
    expect_output(w, name, n);
    w->state = true;
    for (int64_t i = 0; i < n; i++) w->want[i] = (double)p[i] - learning_rate * d[i], top = fmax(top, fabs(d[i]));
    for (int64_t i = 0; i < n; i++) w->bound[i] = 1e-4 * learning_rate * top + 1e-7 * fabs((double)p[i]);
}

static int expect_training(const recurrence *r, const float *target, layer_run *l, expected *want) {
    static const char *const names[][3] = { { "lstm/l0/w_x", "lstm/l0/w_h", "lstm/l0/b" },
                                            { "lstm/l1/w_x", "lstm/l1/w_h", "lstm/l1/b" } };
    int64_t n = r->steps * r->batch * r->units, wide = 4 * r->units;
    const layer_run *last = &l[r->layers - 1];
    double loss = 0, *d = case_array(n);
    for (int64_t i = 0; i < n; i++) {
        double off = last->h[i] - (double)target[i];
        loss += off * off / (double)n, d[i] = 2 * off / (double)n;
    }
    int filled = 0;
    expect_array(&want[filled++], "loss", &loss, 1, 1e-5);
    for (int64_t i = r->layers - 1; i >= 0; i--) {
        run_back(r, &l[i], i == r->layers - 1 ? d : l[i + 1].d_x);
        expect_param(&want[filled++], names[i][0], l[i].w_x, l[i].d_wx, r->units * wide);
        expect_param(&want[filled++], names[i][1], l[i].w_h, l[i].d_wh, r->units * wide);
        expect_param(&want[filled++], names[i][2], l[i].b, l[i].d_b, wide);
        free(l[i].d_wx), free(l[i].d_wh), free(l[i].d_b);
    }
    free(d);
    for (int64_t i = 0; i < r->layers; i++) free(l[i].d_x);
    return filled;
}

static int expect(cli *c, bench_case *k, tn_session *s, expected *want) {
    const recurrence *r = k->ud;
    int64_t n = r->steps * r->batch * r->units, wide = 4 * r->units;
    layer_run l[MOST_LAYERS] = { { 0 } };
    double *x = case_array(n);
    for (int64_t i = 0; i < n; i++) x[i] = (double)((const float *)k->data[0])[i];
    for (int64_t i = 0; i < r->layers; i++) {
        l[i].w_x = get_state(c, s, i, "w_x", r->units * wide), l[i].w_h = get_state(c, s, i, "w_h", r->units * wide);
        l[i].b = get_state(c, s, i, "b", wide);
        l[i].x = i ? l[i - 1].h : x;
        run_layer(r, &l[i]);
    }
    int filled = 1;
    if (r->train)
        filled = expect_training(r, k->data[1], l, want);
    else
        expect_array(want, "y", l[r->layers - 1].h, n, 1e-5);
    for (int64_t i = 0; i < r->layers; i++) {
        free(l[i].gates), free(l[i].c), free(l[i].h);
        free(l[i].w_x), free(l[i].w_h), free(l[i].b);
    }
    free(x);
    return filled;
}

/* ---- as graphs ---- */

static void measure(suite *s, const recurrence *r, uint64_t seed) {
    if (!suite_wants(s, r->name)) return;
    bench_case k = case_new(s, "rnn", r->name, r->train ? "sgd" : "forward");
    int64_t n = r->steps * r->batch * r->units, weights = 8 * r->units * r->units;
    tn_shape shape = TN_DIMS(r->steps, r->batch, r->units);
    tn_graph_set_seed(k.graph, seed);
    case_input(&k, "x", case_floats(n, 1, &seed));
    tn_tensor x = tn_input(k.graph, "x", TN_F32, shape);
    tn_tensor y = tn_nn_lstm(x, r->units, "lstm", (tn_nn_rnn_opts){ .layers = (int)r->layers });
    if (r->train) {
        k.mode = TN_MODE_LOOP, k.fresh = true;
        case_input(&k, "target", case_floats(n, 1, &seed));
        tn_tensor loss = tn_nn_mse(y, tn_input(k.graph, "target", TN_F32, shape));
        tn_output(loss, "loss");
        tn_nn_sgd(loss, (tn_nn_optim_opts){ .lr = learning_rate });
    } else {
        tn_output(y, "y");
    }
    double forward = 2.0 * (double)(weights * r->layers * r->steps * r->batch);
    k.flops = r->train ? 3 * forward - forward / (double)(2 * r->layers) : forward; /* nobody needs the gradient by x */
    if (!r->train) k.bytes = (double)(weights / 2 * 4), k.passes = (double)r->steps, k.bandwidth = PROBE_READ;
    k.row.batch = r->batch, k.row.size = r->units, k.row.depth = r->layers;
    k.expect = expect;
    k.ud = r;
    k.rival = cli_format("lstm layers=%lld units=%lld steps=%lld batch=%lld train=%d", (long long)r->layers,
                         (long long)r->units, (long long)r->steps, (long long)r->batch, r->train);
    suite_run(s, &k, 1);
}

static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    snprintf(buffer, n, "%s, batch %d", r->name, (int)r->batch);
    return buffer;
}
static double x_of(const bench_row *r) { return (double)r->threads; }
static double y_of(const bench_row *r) { return r->median_us; }

int bench_rnn(cli *c) {
    suite s = suite_begin(c, "bench rnn");
    int64_t batch[8], units[8];
    int n = cli_text(c, "batch", NULL) ? cli_ints(c, "batch", NULL, batch, COUNT_OF(batch), 1, 4096) : 0;
    int m = cli_text(c, "sizes", NULL) ? cli_ints(c, "sizes", NULL, units, COUNT_OF(units), 1, 4096) : 0;
    int64_t steps = cli_int(c, "steps", 0, 1, 4096), layers = cli_int(c, "layers", 0, 1, MOST_LAYERS);
    for (size_t i = 0; i < COUNT_OF(works); i++) {
        for (int u = 0; u < (m ? m : 1); u++) {
            recurrence r = works[i];
            if (m) r.units = units[u];
            if (steps) r.steps = steps;
            if (layers) r.layers = layers;
            r.name =
                suite_text(&s, "lstm %s%d x %d, T %d", r.train ? "training " : "", (int)r.layers, (int)r.units, (int)r.steps);
            if (!n) measure(&s, &r, s.seed);
            for (int b = 0; b < n && i != 1; b++) r.batch = batch[b], measure(&s, &r, s.seed);
        }
    }
    suite_report(&s);
    rows_plot(c,
              &(chart){ .title = "Recurrent layers",
                        .x_label = "threads",
                        .x_of = x_of,
                        .panel = { { "microseconds (median)", line_of, y_of } } },
              s.rows, s.n_rows);
    suite_end(&s);
    return CLI_OK;
}
