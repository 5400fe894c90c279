/* test_nn.c - layers, losses and statistics against direct computations in double, their gradients against central differences.
 * Graphs are f64 and built through the public interface; the evaluator runs them. */
#include "nn/env.h"

/* ---- linear and convolution ------------------------------------------------------------------------------------------ */

static void test_linear(void **state) {
    env *e = *state;
    for (int bias = 0; bias < 2; bias++) {
        open_graph(e);
        tn_tensor x = random_input(e, TN_DIMS(2, 3, 4), -2, 2);
        tn_tensor y = bias ? tn_nn_linear(x, 5, "fc") : tn_nn_linear_no_bias(x, 5, "fc");
        expect_ok(e);
        load_states(e, 0.1);
        expect_shape(y, TN_DIMS(2, 3, 5));
        assert_int_equal(tn_graph_n_params(e->g), 1 + bias);
        double want[30], *xv = e->in[0].f, *w = values_of(e, "fc/w");
        for (int r = 0; r < 6; r++)
            for (int o = 0; o < 5; o++) {
                want[r * 5 + o] = bias ? values_of(e, "fc/b")[o] : 0;
                for (int i = 0; i < 4; i++) want[r * 5 + o] += xv[r * 4 + i] * w[i * 5 + o];
            }
        expect_values(e, "linear", y, want);
        expect_gradients(e, "linear", y);
    }
    open_graph(e);
    expect_shape(tn_nn_linear(tn_input(e->g, "v", TN_F32, TN_DIMS(0, 7)), 3, "fc"), TN_DIMS(0, 3));
    expect_shape(tn_nn_linear(tn_input(e->g, "u", TN_F16, TN_DIMS(7)), 3, "fc2"), TN_DIMS(3));
    expect_ok(e);
    assert_int_equal(tn_tensor_dtype(source(e, "fc2/w")), TN_F32);
}

/* Image axes padded to three, so that one loop nest is the reference of all. */
typedef struct geometry {
    int64_t d[3], k[3], s[3], p[3], l[3], out[3];
} geometry;

static geometry geometry_of(int n, const int64_t *d, const int64_t *k, const int64_t *s, const int64_t *p, const int64_t *l) {
    geometry r;
    for (int i = 0; i < 3; i++) {
        int j = i - (3 - n);
        r.d[i] = j < 0 ? 1 : d[j];
        r.k[i] = j < 0 ? 1 : k[j];
        r.s[i] = j < 0 ? 1 : s[j];
        r.p[i] = j < 0 ? 0 : p[j];
        r.l[i] = j < 0 ? 1 : l[j];
        r.out[i] = (r.d[i] + 2 * r.p[i] - (r.k[i] - 1) * r.l[i] - 1) / r.s[i] + 1;
    }
    return r;
}

/* Offset of the input pixel under position o and kernel offset q, or -1 in the border. */
static int64_t pixel(const geometry *r, const int64_t *o, const int64_t *q) {
    int64_t at = 0;
    for (int i = 0; i < 3; i++) {
        int64_t c = o[i] * r->s[i] + q[i] * r->l[i] - r->p[i];
        if (c < 0 || c >= r->d[i]) return -1;
        at = at * r->d[i] + c;
    }
    return at;
}
#define EACH3(o, n)                                                                                                            \
    for (int64_t o[3] = { 0 }; o[0] < (n)[0]; o[0]++)                                                                          \
        for (o[1] = 0; o[1] < (n)[1]; o[1]++)                                                                                  \
            for (o[2] = 0; o[2] < (n)[2]; o[2]++)

static void direct_conv(const geometry *r, int64_t batch, int64_t ci, int64_t co, int64_t groups, const double *x,
                        const double *w, const double *b, double *y) {
    int64_t pixels = r->d[0] * r->d[1] * r->d[2], gi = ci / groups, go = co / groups;
    for (int64_t n = 0; n < batch; n++) EACH3(o, r->out)
    for (int64_t c = 0; c < co; c++) {
        double sum = b ? b[c] : 0;
        int64_t tap = 0;
        EACH3(q, r->k) {
            int64_t at = pixel(r, o, q);
            for (int64_t i = 0; i < gi && at >= 0; i++)
                sum += x[(n * pixels + at) * ci + c / go * gi + i] * w[(tap * gi + i) * co + c];
            tap++;
        }
        *y++ = sum;
    }
}

typedef struct conv_case {
    int n;
    int64_t dims[5]; /* batch, image, channels */
    tn_nn_conv_opts opts;
    int64_t k[3], s[3], p[3], l[3]; /* what opts mean */
} conv_case;

static void check_conv(env *e, const conv_case *c) {
    open_graph(e);
    tn_shape xs = { .rank = c->n + 2 };
    memcpy(xs.dim, c->dims, sizeof c->dims);
    tn_tensor x = random_input(e, xs, -2, 2);
    tn_tensor y = c->n == 1   ? tn_nn_conv1d(x, c->opts, "c")
                  : c->n == 2 ? tn_nn_conv2d(x, c->opts, "c")
                              : tn_nn_conv3d(x, c->opts, "c");
    expect_ok(e);
    load_states(e, 0.1);
    geometry r = geometry_of(c->n, c->dims + 1, c->k, c->s, c->p, c->l);
    static double want[MAX_ELEMS];
    int64_t ci = c->dims[c->n + 1], co = c->opts.out_channels;
    assert_int_equal(elems(e, y), c->dims[0] * r.out[0] * r.out[1] * r.out[2] * co);
    assert_int_equal(tn_tensor_shape(y).dim[c->n + 1], co);
    direct_conv(&r, c->dims[0], ci, co, c->opts.groups ? c->opts.groups : 1, e->in[0].f, values_of(e, "c/w"),
                c->opts.no_bias ? NULL : values_of(e, "c/b"), want);
    expect_values(e, "conv", y, want);
    expect_gradients(e, "conv", y);
}

static void test_conv(void **state) {
    static const conv_case cases[] = {
        { 2, { 2, 4, 5, 3 }, { .out_channels = 4, .kernel = { 3 }, .padding = { 1 } }, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } },
        { 2,
          { 1, 5, 6, 2 },
          { .out_channels = 3,
            .kernel = { 3, 2 },
            .stride = { 2, 1 },
            .padding = { 1, -1 },
            .dilation = { 1, 2 },
            .no_bias = 1 },
          { 3, 2 },
          { 2, 1 },
          { 1, 0 },
          { 1, 2 } },
        { 2, { 2, 3, 3, 4 }, { .out_channels = 6, .kernel = { 2 }, .groups = 2 }, { 2, 2 }, { 1, 1 }, { 0, 0 }, { 1, 1 } },
        { 2,
          { 1, 4, 4, 3 },
          { .out_channels = 3, .kernel = { 2 }, .stride = { 2 }, .groups = 3 },
          { 2, 2 },
          { 2, 2 },
          { 0, 0 },
          { 1, 1 } },
        { 1,
          { 2, 7, 3 },
          { .out_channels = 2, .kernel = { 3 }, .stride = { 2 }, .dilation = { 2 }, .padding = { 2 } },
          { 3 },
          { 2 },
          { 2 },
          { 2 } },
        { 1, { 2, 5, 4 }, { .out_channels = 4, .kernel = { 3 }, .groups = 4 }, { 3 }, { 1 }, { 0 }, { 1 } },
        { 3,
          { 1, 3, 2, 3, 2 },
          { .out_channels = 2, .kernel = { 2 }, .padding = { 1, -1, 1 } },
          { 2, 2, 2 },
          { 1, 1, 1 },
          { 1, 0, 1 },
          { 1, 1, 1 } },
        { 3, { 1, 2, 2, 2, 2 }, { .out_channels = 4, .groups = 2 }, { 1, 1, 1 }, { 1, 1, 1 }, { 0, 0, 0 }, { 1, 1, 1 } },
        { 2, { 0, 3, 3, 1 }, { .out_channels = 2, .kernel = { 2 } }, { 2, 2 }, { 1, 1 }, { 0, 0 }, { 1, 1 } },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) check_conv(*state, &cases[i]);
    static const int64_t images[][4] = { { 2, 4, 5, 3 }, { 1, 3, 3, 1 }, { 1, 8, 6, 2 }, { 0, 4, 4, 2 }, { 1, 1, 2, 3 } };
    for (int i = 0; i < 5 * 4; i++) { /* Winograd's way: tiles of 2 and 4, with padding and without */
        int64_t pad = i & 1 || images[i / 4][1] < 3, h = i & 2 ? 2 * pad : pad;
        conv_case c = { .n = 2, .k = { 3, 3 }, .s = { 1, 1 }, .p = { h, pad }, .l = { 1, 1 } };
        c.opts = (tn_nn_conv_opts){
            .out_channels = 2, .kernel = { 3 }, .padding = { h, pad ? pad : -1 }, .winograd = i & 2 ? 4 : 2
        };
        memcpy(c.dims, images[i / 4], sizeof images[0]);
        check_conv(*state, &c);
    }
}

static void check_pool(env *e, int n, const int64_t *dims, tn_nn_pool_opts opts, geometry r, bool max) {
    open_graph(e);
    tn_shape xs = { .rank = n + 2 };
    memcpy(xs.dim, dims, sizeof *dims * (size_t)xs.rank);
    tn_tensor x = random_input(e, xs, -2, 2), y = max ? tn_nn_max_pool(x, opts) : tn_nn_avg_pool(x, opts);
    expect_ok(e);
    static double want[MAX_ELEMS];
    int64_t c = dims[n + 1], pixels = r.d[0] * r.d[1] * r.d[2], at = 0;
    for (int64_t b = 0; b < dims[0]; b++) EACH3(o, r.out)
    for (int64_t i = 0; i < c; i++) {
        double best = -INFINITY, sum = 0;
        EACH3(q, r.k) {
            int64_t p = pixel(&r, o, q);
            if (p < 0) continue;
            double v = e->in[0].f[(b * pixels + p) * c + i];
            best = v > best ? v : best;
            sum += v;
        }
        want[at++] = max ? best : sum / (double)(r.k[0] * r.k[1] * r.k[2]);
    }
    assert_int_equal(elems(e, y), at);
    expect_values(e, max ? "max_pool" : "avg_pool", y, want);
    expect_gradients(e, max ? "max_pool" : "avg_pool", y);
}

static void test_pool(void **state) {
    for (int max = 0; max < 2; max++) {
        int64_t two[] = { 2, 5, 4, 3 }, one[] = { 1, 7, 2 }, three[] = { 1, 4, 3, 2, 2 };
        int64_t k[] = { 2, 2, 2 }, s1[] = { 1, 1, 1 }, none[] = { 0, 0, 0 }, p1[] = { 1, 1, 1 }, k3[] = { 3, 3, 3 },
                s2[] = { 2, 2, 2 };
        check_pool(*state, 2, two, (tn_nn_pool_opts){ .kernel = { 2 } }, geometry_of(2, two + 1, k, k, none, s1), max);
        check_pool(*state, 2, two, (tn_nn_pool_opts){ .kernel = { 3 }, .stride = { 2 }, .padding = { 1 } },
                   geometry_of(2, two + 1, k3, s2, p1, s1), max);
        check_pool(*state, 1, one, (tn_nn_pool_opts){ .kernel = { 3 }, .stride = { 1 }, .dilation = { 2 } },
                   geometry_of(1, one + 1, k3, s1, none, s2), max);
        check_pool(*state, 3, three, (tn_nn_pool_opts){ .kernel = { 2 }, .stride = { 1 } },
                   geometry_of(3, three + 1, k, s1, none, s1), max);
    }
}

/* Borders as given, or such as the seed gives: rising, from 0 to the size, steps of floor and ceil(size / out). */
static void check_fractional(env *e, int64_t h, int64_t w, tn_nn_fractional_pool_opts opts) {
    open_graph(e);
    enum { N = 2, C = 3 };
    tn_tensor x = random_input(e, TN_DIMS(N, h, w, C), -2, 2), y = tn_nn_fractional_max_pool(x, opts);
    expect_ok(e);
    expect_shape(y, TN_DIMS(N, opts.out[0], opts.out[1], C));
    const double *v = e->in[0].f, *got = evaluate(e, &e->a)[y.id].f;
    int64_t size[2] = { h, w }, border[2][16];
    for (int k = 0; k < 2; k++) { /* found from what a ramp along the axis gives, where they are not given */
        tn_graph *g = tn_graph_new(e->ctx, "ramp");
        tn_shape s = TN_DIMS(1, h, w, 1);
        float values[256];
        for (int64_t i = 0; i < h * w; i++) values[i] = (float)(k ? i % w : i / w);
        tn_nn_fractional_pool_opts apart = opts;
        apart.overlapping = 0;
        tn_tensor ends = tn_nn_fractional_max_pool(tn_const(g, TN_F32, s, values), apart);
        tn_ir_eval *ev;
        int64_t n;
        assert_int_equal(tn_ir_evaluate(g, NULL, 0, &ev), TN_OK);
        const double *last = tn_ir_eval_values(ev, ends, &n);
        border[k][0] = 0;
        for (int64_t i = 0; i < opts.out[k]; i++) {
            border[k][i + 1] = (int64_t)last[k ? i : i * opts.out[1]] + 1;
            int64_t step = border[k][i + 1] - border[k][i];
            if (opts.border[k])
                assert_int_equal(border[k][i + 1], opts.border[k][i + 1]);
            else
                assert_true(step == size[k] / opts.out[k] || step == (size[k] + opts.out[k] - 1) / opts.out[k]);
        }
        assert_int_equal(border[k][opts.out[k]], size[k]);
        tn_ir_eval_free(ev), tn_graph_free(g);
    }
    for (int64_t at = 0; at < N * opts.out[0] * opts.out[1] * C; at++) {
        int64_t c = at % C, j = at / C % opts.out[1], i = at / C / opts.out[1] % opts.out[0],
                b = at / C / opts.out[1] / opts.out[0];
        double best = -INFINITY;
        for (int64_t p = border[0][i]; p < border[0][i + 1] + opts.overlapping && p < h; p++)
            for (int64_t q = border[1][j]; q < border[1][j + 1] + opts.overlapping && q < w; q++)
                best = fmax(best, v[((b * h + p) * w + q) * C + c]);
        assert_true(got[at] == best);
    }
    expect_gradients(e, "fractional_max_pool", y);
}

static void test_fractional_pool(void **state) {
    static const int64_t rows[] = { 0, 1, 4, 6, 7 };
    for (uint64_t seed = 0; seed < 6; seed++)
        for (int overlapping = 0; overlapping < 2; overlapping++) {
            check_fractional(*state, 10, 7,
                             (tn_nn_fractional_pool_opts){ .out = { 7, 5 }, .seed = seed, .overlapping = overlapping });
            check_fractional(*state, 9, 5,
                             (tn_nn_fractional_pool_opts){ .out = { 3, 5 }, .seed = seed, .overlapping = overlapping });
        }
    check_fractional(*state, 7, 6, (tn_nn_fractional_pool_opts){ .out = { 4, 4 }, .border = { rows }, .seed = 3 });
    env *e = *state;
    for (int way = 0; way < 5; way++) {
        static const int64_t falling[] = { 0, 3, 3, 7 }, far[] = { 0, 3, 5, 8 };
        open_graph(e);
        tn_tensor x = random_input(e, way ? TN_DIMS(1, 7, 7, 2) : TN_DIMS(7, 7), 0, 1);
        tn_nn_fractional_pool_opts o = { .out = { 3, way == 1 ? 8 : 3 } };
        if (way == 2) o.out[0] = 0;
        if (way >= 3) o.border[1] = way == 3 ? falling : far;
        assert_int_equal(tn_nn_fractional_max_pool(x, o).id, 0);
        assert_int_equal(tn_graph_status(e->g), TN_ERR_SHAPE);
        assert_non_null(strstr(tn_ctx_error(e->ctx), "fractional"));
    }
}

/* ---- embedding, dropout, norms, attention ---------------------------------------------------------------------------- */

static void test_embedding(void **state) {
    env *e = *state;
    open_graph(e);
    tn_tensor ids = random_labels(e, TN_I64, TN_DIMS(2, 3), 5), y = tn_nn_embedding(ids, 5, 4, "emb");
    expect_ok(e);
    load_states(e, 0);
    double want[24];
    for (int i = 0; i < 24; i++) want[i] = values_of(e, "emb/w")[e->in[0].i[i / 4] * 4 + i % 4];
    expect_shape(y, TN_DIMS(2, 3, 4));
    expect_values(e, "embedding", y, want);
}

static void test_dropout(void **state) {
    env *e = *state;
    open_graph(e);
    tn_tensor x = random_input(e, TN_DIMS(64, 33), 1, 2), n = tn_nn_counter(e->g, "rng");
    tn_tensor y[] = { tn_nn_dropout(x, 0.25, n, "a"), tn_nn_dropout(x, 0.25, n, "b"), tn_nn_dropout(x, 0.25, n, "a"),
                      tn_nn_dropout(x, 0, n, "c") };
    expect_ok(e);
    load_states(e, 0);
    eval_value *v = evaluate(e, &e->a);
    int count = 64 * 33, zeros = 0, differ = 0, changed = 0;
    for (int i = 0; i < count; i++) {
        double got = v[y[0].id].f[i];
        zeros += got == 0;
        differ += (got == 0) != (v[y[1].id].f[i] == 0);
        if (got != 0) expect_near("dropout", i, got, e->in[0].f[i] / 0.75, 1e-12);
        assert_true(got == v[y[2].id].f[i]);
        assert_true(v[y[3].id].f[i] == e->in[0].f[i]);
    }
    assert_in_range(zeros, count / 4 - 100, count / 4 + 100); /* 5 standard deviations are 100 */
    assert_in_range(differ, 600, 1000);                       /* 2 * 0.25 * 0.75 of 2112 = 792 */
    e->in[find_source(e, "rng")].i[0] = 1;
    eval_value *w = evaluate(e, &e->a);
    for (int i = 0; i < count; i++) changed += (w[y[0].id].f[i] == 0) != (v[y[0].id].f[i] == 0);
    assert_in_range(changed, 600, 1000);
    expect_gradients(e, "dropout", tn_slice(y[0], (const int64_t[]){ 0, 0 }, (const int64_t[]){ 1, 3 }, NULL, 2));
}

/* Rows of c values normalised: what layer, group and rms norm have in common. */
static void normalise(double *x, int n, int stride, double eps, bool centre) {
    double mean = 0, var = 0;
    for (int i = 0; i < n; i++) mean += x[i * stride] / n;
    if (!centre) mean = 0;
    for (int i = 0; i < n; i++) var += (x[i * stride] - mean) * (x[i * stride] - mean) / n;
    for (int i = 0; i < n; i++) x[i * stride] = (x[i * stride] - mean) / sqrt(var + eps);
}

static void test_norms(void **state) {
    env *e = *state;
    double want[60];
    for (int kind = 0; kind < 3; kind++) {
        open_graph(e);
        tn_tensor x = random_input(e, TN_DIMS(2, 5, 6), -2, 2);
        tn_tensor y = kind == 0   ? tn_nn_layer_norm(x, 0, "n")
                      : kind == 1 ? tn_nn_rms_norm(x, 1e-3, "n")
                                  : tn_nn_group_norm(x, 3, 0, "n");
        expect_ok(e);
        load_states(e, 0.5);
        memcpy(want, e->in[0].f, sizeof want);
        for (int r = 0; r < 10 && kind < 2; r++) normalise(want + 6 * r, 6, 1, kind ? 1e-3 : 1e-5, kind == 0);
        for (int n = 0; n < 2 && kind == 2; n++)
            for (int g = 0; g < 3; g++) {
                double group[10];
                for (int i = 0; i < 10; i++) group[i] = e->in[0].f[n * 30 + i / 2 * 6 + g * 2 + i % 2];
                normalise(group, 10, 1, 1e-5, true);
                for (int i = 0; i < 10; i++) want[n * 30 + i / 2 * 6 + g * 2 + i % 2] = group[i];
            }
        for (int i = 0; i < 60; i++)
            want[i] = want[i] * values_of(e, "n/w")[i % 6] + (kind == 1 ? 0 : values_of(e, "n/b")[i % 6]);
        expect_values(e, "norm", y, want);
        expect_gradients(e, "norm", y);
    }
}

static double *assigned(env *e, eval_value *v, const char *name) {
    val s = e->ir->inputs.at[find_source(e, name)];
    for (int i = 0; i < e->ir->outputs.n; i++)
        if (e->ir->outputs.at[i].state == s) return v[e->ir->outputs.at[i].v].f;
    fail_msg("%s is not assigned", name);
    return NULL;
}

static void test_batch_norm(void **state) {
    env *e = *state;
    for (int inference = 0; inference < 2; inference++) {
        open_graph(e);
        tn_tensor x = random_input(e, TN_DIMS(3, 4, 2), -2, 2);
        tn_tensor y = tn_nn_batch_norm(x, (tn_nn_batch_norm_opts){ .momentum = 0.2, .inference = inference }, "bn");
        expect_ok(e);
        load_states(e, 0.25);
        double want[24], *xv = e->in[0].f, *rm = values_of(e, "bn/mean"), *rv = values_of(e, "bn/var");
        memcpy(want, xv, sizeof want);
        for (int c = 0; c < 2; c++) {
            double mean = 0, var = 0;
            for (int i = 0; i < 12; i++) mean += xv[2 * i + c] / 12;
            for (int i = 0; i < 12; i++) var += (xv[2 * i + c] - mean) * (xv[2 * i + c] - mean);
            if (inference)
                for (int i = 0; i < 12; i++) want[2 * i + c] = (xv[2 * i + c] - rm[c]) / sqrt(rv[c] + 1e-5);
            else {
                normalise(want + c, 12, 2, 1e-5, true);
                eval_value *v = evaluate(e, &e->a);
                expect_near("running mean", c, assigned(e, v, "bn/mean")[c], rm[c] * 0.8 + 0.2 * mean, 1e-12);
                expect_near("running var", c, assigned(e, v, "bn/var")[c], rv[c] * 0.8 + 0.2 * var / 11, 1e-12);
            }
            for (int i = 0; i < 12; i++) want[2 * i + c] = want[2 * i + c] * values_of(e, "bn/w")[c] + values_of(e, "bn/b")[c];
        }
        assert_int_equal(tn_graph_n_params(e->g), 2);
        expect_values(e, "batch_norm", y, want);
        expect_gradients(e, "batch_norm", y);
    }
}

static void test_attention(void **state) {
    env *e = *state;
    for (int causal = 0; causal < 2; causal++) {
        open_graph(e);
        tn_tensor q = random_input(e, TN_DIMS(2, 3, 4), -2, 2), k = random_input(e, TN_DIMS(2, 5, 4), -2, 2),
                  v = random_input(e, TN_DIMS(2, 5, 2), -2, 2);
        tn_tensor y = tn_nn_attention(q, k, v, causal);
        expect_ok(e);
        double want[12];
        for (int b = 0; b < 2; b++)
            for (int t = 0; t < 3; t++) {
                double p[5], sum = 0;
                for (int s = 0; s < 5; s++) {
                    p[s] = 0;
                    for (int i = 0; i < 4; i++) p[s] += e->in[0].f[(b * 3 + t) * 4 + i] * e->in[1].f[(b * 5 + s) * 4 + i] / 2;
                    p[s] = causal && s > t ? 0 : exp(p[s]);
                    sum += p[s];
                }
                for (int o = 0; o < 2; o++) {
                    want[(b * 3 + t) * 2 + o] = 0;
                    for (int s = 0; s < 5; s++) want[(b * 3 + t) * 2 + o] += p[s] / sum * e->in[2].f[(b * 5 + s) * 2 + o];
                }
            }
        expect_values(e, "attention", y, want);
        expect_gradients(e, "attention", y);
    }
}

/* ---- activations ----------------------------------------------------------------------------------------------------- */

static double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double ref_gelu(double x) { return x * 0.5 * erfc(-x / sqrt(2)); }
static double ref_gelu_tanh(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x))); }
static double ref_silu(double x) { return x * ref_sigmoid(x); }
static double ref_elu(double x) { return x > 0 ? x : 0.7 * expm1(x); }
static double ref_selu(double x) { return 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * expm1(x)); }
static double ref_leaky(double x) { return x > 0 ? x : 0.1 * x; }
static double ref_relu6(double x) { return fmin(fmax(x, 0), 6); }
static double ref_softplus(double x) { return x > 30 ? x : log1p(exp(x)); }
static double ref_log_sigmoid(double x) { return -ref_softplus(-x); }
static double ref_softsign(double x) { return x / (1 + fabs(x)); }
static double ref_mish(double x) { return x * tanh(ref_softplus(x)); }
static double ref_hard_tanh(double x) { return fmin(fmax(x, -1), 1); }
static double ref_hard_sigmoid(double x) { return fmin(fmax(x / 6 + 0.5, 0), 1); }
static double ref_hard_swish(double x) { return x * ref_hard_sigmoid(x); }
static tn_tensor elu(tn_tensor x) { return tn_nn_elu(x, 0.7); }
static tn_tensor leaky(tn_tensor x) { return tn_nn_leaky_relu(x, 0.1); }

static void test_activations(void **state) {
    env *e = *state;
    static const struct {
        const char *name;
        tn_tensor (*build)(tn_tensor);
        double (*ref)(double);
    } cases[] = { { "gelu", tn_nn_gelu, ref_gelu },
                  { "gelu_tanh", tn_nn_gelu_tanh, ref_gelu_tanh },
                  { "silu", tn_nn_silu, ref_silu },
                  { "elu", elu, ref_elu },
                  { "selu", tn_nn_selu, ref_selu },
                  { "leaky_relu", leaky, ref_leaky },
                  { "relu6", tn_nn_relu6, ref_relu6 },
                  { "softplus", tn_nn_softplus, ref_softplus },
                  { "log_sigmoid", tn_nn_log_sigmoid, ref_log_sigmoid },
                  { "softsign", tn_nn_softsign, ref_softsign },
                  { "mish", tn_nn_mish, ref_mish },
                  { "hard_tanh", tn_nn_hard_tanh, ref_hard_tanh },
                  { "hard_sigmoid", tn_nn_hard_sigmoid, ref_hard_sigmoid },
                  { "hard_swish", tn_nn_hard_swish, ref_hard_swish } };
    static const double far[] = { 0, 50, -50, 800, -800, 1e-9 };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        open_graph(e);
        tn_tensor x = random_input(e, TN_DIMS(3, 7), -4, 8), y = cases[c].build(x), dx;
        double want[21];
        for (int i = 0; i < 21; i++) want[i] = cases[c].ref(e->in[0].f[i]);
        expect_ok(e);
        expect_values(e, cases[c].name, y, want);
        expect_gradients(e, cases[c].name, y);
        /* Far out neither the value nor the gradient may become NaN or infinite. */
        for (int i = 0; i < 21; i++) {
            e->in[0].f[i] = far[i % 6];
            want[i] = cases[c].ref(far[i % 6]);
        }
        expect_values(e, cases[c].name, y, want);
        assert_int_equal(tn_grad(tn_sum(y, TN_ALL_AXES, 0), &x, 1, &dx), TN_OK);
        const double *d = value_of(e, dx);
        for (int i = 0; i < 21; i++)
            if (!isfinite(d[i])) fail_msg("%s: gradient %g at %g", cases[c].name, d[i], far[i % 6]);
    }
}

static void test_softmax(void **state) {
    env *e = *state;
    for (int axis = 0; axis < 3; axis++) {
        open_graph(e);
        tn_tensor x = random_input(e, TN_DIMS(2, 4, 3), -3, 3);
        tn_tensor y[4] = { tn_nn_softmax(x, axis), tn_nn_log_softmax(x, axis - 3), tn_nn_logsumexp(x, axis, 1),
                           tn_nn_logsumexp(x, axis, 0) };
        expect_ok(e);
        int dims[3] = { 2, 4, 3 }, stride = axis == 0 ? 12 : axis == 1 ? 3 : 1, n = dims[axis], row = 0;
        double soft[24], logs[24], lse[12];
        for (int i = 0; i < 24; i++) {
            if (i / stride % n) continue;
            double sum = 0;
            for (int k = 0; k < n; k++) sum += exp(e->in[0].f[i + k * stride]);
            for (int k = 0; k < n; k++) logs[i + k * stride] = e->in[0].f[i + k * stride] - log(sum);
            for (int k = 0; k < n; k++) soft[i + k * stride] = exp(logs[i + k * stride]);
            lse[row++] = log(sum);
        }
        expect_values(e, "softmax", y[0], soft);
        expect_values(e, "log_softmax", y[1], logs);
        expect_values(e, "logsumexp", y[2], lse);
        expect_values(e, "logsumexp", y[3], lse);
        for (int k = 0; k < 4; k++) expect_gradients(e, "softmax family", y[k]);
    }
    open_graph(e);
    tn_tensor x = random_input(e, TN_DIMS(4, 2), 0, 1);
    static const double extreme[8] = { 1e5, -1e5, -INFINITY, 3, -INFINITY, -INFINITY, INFINITY, 0 };
    memcpy(e->in[0].f, extreme, sizeof extreme);
    tn_tensor l = tn_nn_logsumexp(x, -1, 0), s = tn_nn_softmax(x, -1);
    expect_values(e, "logsumexp", l, (double[]){ 1e5, 3, -INFINITY, INFINITY });
    expect_values(e, "softmax", tn_slice(s, (const int64_t[]){ 0, 0 }, (const int64_t[]){ 2, 2 }, NULL, 2),
                  (double[]){ 1, 0, 0, 1 });
}

/* ---- losses ---------------------------------------------------------------------------------------------------------- */

static void test_cross_entropy(void **state) {
    env *e = *state;
    for (int s = 0; s < 3; s++) {
        open_graph(e);
        tn_shape rows = s == 0 ? TN_DIMS(6) : s == 1 ? TN_DIMS(2, 3) : TN_SCALAR, all = rows;
        all.dim[all.rank++] = 5;
        tn_tensor x = random_input(e, all, -3, 3), t = random_labels(e, s ? TN_I64 : TN_I32, rows, 5);
        tn_tensor loss = tn_nn_cross_entropy(x, t), same = tn_nn_nll(tn_nn_log_softmax(x, -1), t);
        expect_ok(e);
        expect_shape(loss, TN_SCALAR);
        double want = 0;
        int n = s == 2 ? 1 : 6;
        for (int r = 0; r < n; r++) {
            double sum = 0, *v = e->in[0].f + 5 * r;
            for (int i = 0; i < 5; i++) sum += exp(v[i]);
            want += (log(sum) - v[e->in[1].i[r]]) / n;
        }
        expect_values(e, "cross_entropy", loss, &want);
        expect_values(e, "nll", same, &want);
        expect_gradients(e, "cross_entropy", loss);
    }
    /* Large logits: the loss of a right answer is 0, of a wrong one the distance. */
    open_graph(e);
    tn_tensor x = random_input(e, TN_DIMS(2, 3), 0, 1), t = random_labels(e, TN_I32, TN_DIMS(2), 3), dx;
    memcpy(e->in[0].f, (double[]){ 1e6, 0, -1e6, 0, 2e6, 1e6 }, 48);
    e->in[1].i[0] = 0;
    e->in[1].i[1] = 2;
    tn_tensor loss = tn_nn_cross_entropy(x, t);
    expect_values(e, "cross_entropy", loss, (double[]){ 5e5 });
    assert_int_equal(tn_grad(loss, &x, 1, &dx), TN_OK);
    expect_values(e, "its gradient", dx, (double[]){ 0, 0, 0, 0, 0.5, -0.5 });
}

static void test_losses(void **state) {
    env *e = *state;
    open_graph(e);
    tn_tensor x = random_input(e, TN_DIMS(3, 4), -3, 3), t = random_input(e, TN_DIMS(3, 4), 0.05, 0.95);
    tn_tensor y[] = { tn_nn_mse(x, t), tn_nn_l1(x, t), tn_nn_huber(x, t, 1.25), tn_nn_kl_div(x, t),
                      tn_nn_bce_with_logits(x, t) };
    expect_ok(e);
    double want[5] = { 0 };
    for (int i = 0; i < 12; i++) {
        double a = e->in[0].f[i], b = e->in[1].f[i], d = fabs(a - b), p = 1 / (1 + exp(-a));
        want[0] += d * d / 12;
        want[1] += d / 12;
        want[2] += (d <= 1.25 ? d * d / 2 : 1.25 * (d - 0.625)) / 12;
        want[3] += b * (log(b) - a) / 3;
        want[4] -= (b * log(p) + (1 - b) * log(1 - p)) / 12;
    }
    static const char *const names[] = { "mse", "l1", "huber", "kl_div", "bce" };
    for (int k = 0; k < 5; k++) {
        expect_shape(y[k], TN_SCALAR);
        expect_values(e, names[k], y[k], &want[k]);
        expect_gradients(e, names[k], y[k]);
    }
    /* At the borders: p = 0 in kl_div, huge logits in bce. */
    for (int i = 0; i < 12; i++) {
        e->in[0].f[i] = i % 2 ? 1000 : -1000;
        e->in[1].f[i] = i % 2;
    }
    expect_values(e, "kl_div", y[3], (double[]){ -2000 });
    expect_values(e, "bce", y[4], (double[]){ 0 });
    tn_tensor dx[2];
    for (int k = 3; k < 5; k++) {
        assert_int_equal(tn_grad(y[k], (tn_tensor[]){ x, t }, 2, dx), TN_OK);
        eval_value *v = evaluate(e, &e->a);
        for (int i = 0; i < 12; i++) assert_true(isfinite(v[dx[0].id].f[i]) && isfinite(v[dx[1].id].f[i]));
    }
}

/* ---- statistics and shapes ------------------------------------------------------------------------------------------- */

static void test_statistics(void **state) {
    env *e = *state;
    open_graph(e);
    tn_tensor x = random_input(e, TN_DIMS(3, 5), -2, 2);
    tn_tensor y[] = { tn_nn_var(x, TN_INTS(-1), 0, 0),
                      tn_nn_var(x, TN_INTS(1), 1, 1),
                      tn_nn_std(x, TN_INTS(1), 1, 0),
                      tn_nn_norm(x, TN_INTS(1), 0),
                      tn_nn_var(x, TN_ALL_AXES, 1, 0),
                      tn_nn_cumsum(x, 1),
                      tn_nn_cumsum(x, 0),
                      tn_nn_cumprod(x, -1) };
    expect_ok(e);
    double want[8][15] = { 0 }, *v = e->in[0].f, mean_all = 0;
    for (int i = 0; i < 15; i++) mean_all += v[i] / 15;
    for (int i = 0; i < 15; i++) want[4][0] += (v[i] - mean_all) * (v[i] - mean_all) / 14;
    for (int r = 0; r < 3; r++) {
        double mean = 0, sq = 0, norm = 0, run = 0, product = 1;
        for (int i = 0; i < 5; i++) mean += v[r * 5 + i] / 5;
        for (int i = 0; i < 5; i++) {
            double a = v[r * 5 + i];
            sq += (a - mean) * (a - mean);
            norm += a * a;
            want[5][r * 5 + i] = run += a;
            want[7][r * 5 + i] = product *= a;
            want[6][r * 5 + i] = a + (r ? want[6][(r - 1) * 5 + i] : 0);
        }
        want[0][r] = sq / 5;
        want[1][r] = sq / 4;
        want[2][r] = sqrt(sq / 4);
        want[3][r] = sqrt(norm);
    }
    for (int k = 0; k < 8; k++) {
        expect_values(e, "statistic", y[k], want[k]);
        expect_gradients(e, "statistic", y[k]);
    }
    open_graph(e);
    expect_shape(tn_nn_cumsum(tn_input(e->g, "z", TN_I32, TN_DIMS(2, 0)), 1), TN_DIMS(2, 0));
    expect_ok(e);
}

static void test_joins(void **state) {
    env *e = *state;
    open_graph(e);
    tn_tensor a = random_input(e, TN_DIMS(2), 0, 1), b = random_input(e, TN_DIMS(2), 0, 1), ab[] = { a, b }, parts[3];
    const double *p = e->in[0].f, *q = e->in[1].f;
    double rows[] = { p[0], p[1], q[0], q[1] }, cols[] = { p[0], q[0], p[1], q[1] };
    expect_values(e, "stack 0", tn_nn_stack(ab, 2, 0), rows);
    expect_values(e, "stack -1", tn_nn_stack(ab, 2, -1), cols);
    expect_shape(tn_nn_stack(ab, 2, -1), TN_DIMS(2, 2));
    expect_values(e, "vstack", tn_nn_vstack(ab, 2), rows);
    expect_shape(tn_nn_vstack(ab, 2), TN_DIMS(2, 2));
    expect_values(e, "hstack", tn_nn_hstack(ab, 2), rows);
    expect_shape(tn_nn_hstack(ab, 2), TN_DIMS(4));
    tn_tensor m[] = { tn_reshape(a, TN_DIMS(2, 1)), tn_reshape(b, TN_DIMS(2, 1)) };
    expect_values(e, "hstack of columns", tn_nn_hstack(m, 2), cols);
    tn_tensor many[150];
    for (int i = 0; i < 150; i++) many[i] = i % 2 ? b : a;
    tn_tensor all = tn_nn_stack(many, 150, 0);
    expect_shape(all, TN_DIMS(150, 2));
    const double *got = value_of(e, all);
    for (int i = 0; i < 300; i++) assert_true(got[i] == (i / 2 % 2 ? q : p)[i % 2]);
    tn_nn_split(tn_nn_hstack(ab, 2), 0, (const int64_t[]){ 1, 0, 3 }, 3, parts);
    expect_values(e, "split 0", parts[0], rows);
    expect_shape(parts[1], TN_DIMS(0));
    expect_values(e, "split 2", parts[2], rows + 1);
    expect_gradients(e, "split", parts[2]);
}

static void test_moves(void **state) {
    env *e = *state;
    open_graph(e);
    tn_tensor x = random_input(e, TN_DIMS(2, 3), 0, 1);
    const double *v = e->in[0].f;
    struct {
        const char *name;
        tn_tensor y;
        int n, at[24];
    } cases[] = {
        { "tile",
          tn_nn_tile(x, TN_INTS(2, 2)),
          24,
          { 0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5, 0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5 } },
        { "repeat", tn_nn_repeat(x, 2, 1), 12, { 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5 } },
        { "repeat 0", tn_nn_repeat(x, 2, 0), 12, { 0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5 } },
        { "roll", tn_nn_roll(x, 1, 1), 6, { 2, 0, 1, 5, 3, 4 } },
        { "roll back", tn_nn_roll(x, -7, -1), 6, { 1, 2, 0, 4, 5, 3 } },
        { "pad edge", tn_nn_pad(x, 1, 2, 1, TN_NN_PAD_EDGE), 12, { 0, 0, 0, 1, 2, 2, 3, 3, 3, 4, 5, 5 } },
        { "pad reflect", tn_nn_pad(x, -1, 2, 1, TN_NN_PAD_REFLECT), 12, { 2, 1, 0, 1, 2, 1, 5, 4, 3, 4, 5, 4 } },
        { "pad wrap", tn_nn_pad(x, 1, 1, 3, TN_NN_PAD_WRAP), 14, { 2, 0, 1, 2, 0, 1, 2, 5, 3, 4, 5, 3, 4, 5 } },
        { "pad reflect 0", tn_nn_pad(x, 0, 0, 1, TN_NN_PAD_REFLECT), 9, { 0, 1, 2, 3, 4, 5, 0, 1, 2 } },
        { "pad none", tn_nn_pad(x, 0, 0, 0, TN_NN_PAD_WRAP), 6, { 0, 1, 2, 3, 4, 5 } },
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        double want[24];
        for (int i = 0; i < cases[c].n; i++) want[i] = v[cases[c].at[i]];
        expect_ok(e);
        assert_int_equal(elems(e, cases[c].y), cases[c].n);
        expect_values(e, cases[c].name, cases[c].y, want);
        expect_gradients(e, cases[c].name, cases[c].y);
    }
}

/* ---- initial values and errors --------------------------------------------------------------------------------------- */

static void test_initial_values(void **state) {
    env *e = *state;
    double first[3][60];
    for (int run = 0; run < 3; run++) {
        open_graph(e);
        tn_graph_set_seed(e->g, run == 2 ? 9 : 4);
        tn_tensor x = tn_input(e->g, "x", TN_F32, TN_DIMS(2, 4));
        if (run == 1) x = tn_nn_linear(x, 4, "before"); /* other layers do not matter */
        tn_nn_linear(x, 15, "fc");
        tn_nn_linear(x, 15, "fd");
        expect_ok(e);
        load_states(e, 0);
        memcpy(first[run], values_of(e, "fc/w"), sizeof first[run]);
        assert_memory_not_equal(values_of(e, "fc/w"), values_of(e, "fd/w"), sizeof first[run]);
        for (int i = 0; i < 60; i++) assert_true(fabs(first[run][i]) <= 0.5);
    }
    assert_memory_equal(first[0], first[1], sizeof first[0]);
    assert_memory_not_equal(first[0], first[2], sizeof first[0]);
    open_graph(e);
    tn_nn_embedding(tn_input(e->g, "i", TN_I32, TN_DIMS(2)), 100, 100, "emb");
    tn_nn_linear(tn_input(e->g, "x", TN_F32, TN_DIMS(2, 100)), 100, "fc");
    load_states(e, 0);
    double mean = 0, var = 0, mean_u = 0, var_u = 0;
    for (int i = 0; i < 10000; i++) {
        double n = values_of(e, "emb/w")[i], u = values_of(e, "fc/w")[i];
        mean += n / 1e4;
        var += n * n / 1e4;
        mean_u += u / 1e4;
        var_u += u * u / 1e4;
    }
    assert_true(fabs(mean) < 0.05 && fabs(var - 1) < 0.07);                      /* 5 standard errors: 0.05, 0.07 */
    assert_true(fabs(mean_u) < 0.003 && fabs(var_u - 0.01 / 3) < 0.01 / 3 / 20); /* uniform in +-0.1 */
}

#define EXPECT_ERROR(e, status, text, ...)                                                                                     \
    do {                                                                                                                       \
        open_graph(e);                                                                                                         \
        tn_tensor x = tn_input((e)->g, "x", TN_F32, TN_DIMS(2, 4, 4, 3)), i = tn_input((e)->g, "i", TN_I32, TN_DIMS(2));       \
        (void)x, (void)i;                                                                                                      \
        __VA_ARGS__;                                                                                                           \
        assert_int_equal(tn_graph_status((e)->g), status);                                                                     \
        if (!strstr(tn_ctx_error((e)->ctx), text)) fail_msg("error text: %s", tn_ctx_error((e)->ctx));                         \
        if (!strstr(tn_ctx_error((e)->ctx), "test_nn.c:")) fail_msg("no place in: %s", tn_ctx_error((e)->ctx));                \
    } while (0)

static void test_errors(void **state) {
    env *e = *state;
    EXPECT_ERROR(e, TN_ERR_INVAL, "3 input", tn_nn_conv2d(x, (tn_nn_conv_opts){ .out_channels = 4, .groups = 2 }, "c"));
    EXPECT_ERROR(e, TN_ERR_SHAPE, "rank", tn_nn_conv1d(x, (tn_nn_conv_opts){ .out_channels = 4 }, "c"));
    EXPECT_ERROR(e, TN_ERR_INVAL, "winograd",
                 tn_nn_conv2d(x, (tn_nn_conv_opts){ .out_channels = 4, .kernel = { 3 }, .winograd = 3 }, "c"));
    EXPECT_ERROR(e, TN_ERR_INVAL, "winograd",
                 tn_nn_conv2d(x, (tn_nn_conv_opts){ .out_channels = 4, .kernel = { 3, 1 }, .winograd = 2 }, "c"));
    EXPECT_ERROR(
        e, TN_ERR_SHAPE, "[16,3,4]",
        tn_nn_conv2d(x,
                     (tn_nn_conv_opts){ .out_channels = 4, .kernel = { 3 }, .padding = { 1 }, .winograd = 2, .transformed = x },
                     "c"));
    EXPECT_ERROR(e, TN_ERR_SHAPE, "smaller",
                 tn_nn_conv2d(tn_input(e->g, "z", TN_F32, TN_DIMS(1, 2, 3, 1)),
                              (tn_nn_conv_opts){ .out_channels = 4, .kernel = { 3 }, .winograd = 2 }, "c"));
    EXPECT_ERROR(e, TN_ERR_SHAPE, "[3,3,C,O]", tn_nn_winograd_weights(x, 2));
    EXPECT_ERROR(e, TN_ERR_SHAPE, "", tn_nn_max_pool(x, (tn_nn_pool_opts){ .kernel = { 5 } }));
    EXPECT_ERROR(e, TN_ERR_INVAL, "stride -1", tn_nn_max_pool(x, (tn_nn_pool_opts){ .kernel = { 2 }, .stride = { -1 } }));
    EXPECT_ERROR(e, TN_ERR_DTYPE, "tn_nn_linear", tn_nn_linear(i, 3, "fc"));
    EXPECT_ERROR(e, TN_ERR_INVAL, "needs a name", tn_nn_linear(x, 3, NULL));
    EXPECT_ERROR(e, TN_ERR_SHAPE, "negative", tn_nn_linear(x, -3, "fc"));
    EXPECT_ERROR(e, TN_ERR_SHAPE, "too large", tn_nn_linear(x, INT64_MAX / 2, "fc"));
    EXPECT_ERROR(e, TN_ERR_DTYPE, "labels", tn_nn_cross_entropy(x, x));
    EXPECT_ERROR(e, TN_ERR_SHAPE, "labels", tn_nn_cross_entropy(x, i));
    EXPECT_ERROR(e, TN_ERR_SHAPE, "axis 4", tn_nn_softmax(x, 4));
    EXPECT_ERROR(e, TN_ERR_INVAL, "p in [0, 1)", tn_nn_dropout(x, 1, x, "d"));
    EXPECT_ERROR(e, TN_ERR_SHAPE, "add up", {
        tn_tensor out[2];
        tn_nn_split(x, 1, (const int64_t[]){ 1, 2 }, 2, out);
        assert_int_equal(out[0].id, 0);
    });
    EXPECT_ERROR(e, TN_ERR_INVAL, "no parameter", tn_nn_adam(tn_sum(x, TN_ALL_AXES, 0), (tn_nn_adam_opts){ 0 }));
    EXPECT_ERROR(e, TN_ERR_SHAPE, "scalar", {
        tn_tensor y = tn_nn_linear(x, 3, "fc");
        tn_nn_sgd(y, (tn_nn_sgd_opts){ 0 });
    });
    /* A poisoned tensor passes through every layer, and the first error stays. */
    EXPECT_ERROR(e, TN_ERR_SHAPE, "axis 9", {
        tn_tensor bad = tn_nn_softmax(x, 9);
        bad = tn_nn_conv2d(tn_nn_linear(bad, 3, "a"), (tn_nn_conv_opts){ .out_channels = 1 }, "b");
        bad = tn_nn_layer_norm(tn_nn_max_pool(tn_nn_gelu(bad), (tn_nn_pool_opts){ 0 }), 0, "n");
        bad = tn_nn_cumsum(
            tn_nn_roll(tn_nn_pad(tn_nn_batch_norm(bad, (tn_nn_batch_norm_opts){ 0 }, "m"), 0, 1, 1, TN_NN_PAD_WRAP), 1, 0), 0);
        bad = tn_nn_logsumexp(tn_nn_attention(bad, bad, bad, 1), 0, 0);
        bad = tn_nn_huber(tn_nn_var(bad, TN_ALL_AXES, 1, 0), bad, 1);
        tn_nn_adam(tn_nn_cross_entropy(bad, i), (tn_nn_adam_opts){ 0 });
        assert_int_equal(bad.id, 0);
    });
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),          cmocka_unit_test(test_conv),           cmocka_unit_test(test_pool),
        cmocka_unit_test(test_fractional_pool), cmocka_unit_test(test_embedding),      cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_norms),           cmocka_unit_test(test_batch_norm),     cmocka_unit_test(test_attention),
        cmocka_unit_test(test_activations),     cmocka_unit_test(test_softmax),        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_losses),          cmocka_unit_test(test_statistics),     cmocka_unit_test(test_joins),
        cmocka_unit_test(test_moves),           cmocka_unit_test(test_initial_values), cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
