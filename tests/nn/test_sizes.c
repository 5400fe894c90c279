/* test_sizes.c - builders of tenon_index.h, tenon_signal.h, tenon_linalg.h and tenon_nn.h with sizes that a run gives, against
 * the same builders with numbers: one program for a range, a graph for each of some sizes; the values of dims and their ranges.
 * Labels: devices */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "drive/drive.h"
#include "support/support.h"
#include "tenon/tenon_index.h"
#include "tenon/tenon_linalg.h"
#include "tenon/tenon_nn.h"
#include "tenon/tenon_signal.h"

#include <math.h>

/* N and K may be 0, M is 1 at least. */
enum { N, M, K, N_SIZES };
static const int64_t least[N_SIZES] = { 0, 1, 0 }, most[N_SIZES] = { 40, 5, 6 };
static const char *const size_names[N_SIZES] = { "n", "m", "k" };

static int64_t plus(tn_graph *g, int64_t x, int64_t y) { return x >= 0 ? x + y : tn_dim_add(g, x, y); }
static tn_tensor floats(tn_graph *g, const char *name, tn_shape s) { return tn_input(g, name, TN_F32, s); }
static tn_tensor places(tn_graph *g, const char *name, tn_shape s) { return tn_input(g, name, TN_I64, s); } /* -1 .. 7 */
static tn_tensor rising(tn_graph *g, int64_t sequences) {                                                   /* offsets */
    return tn_input(g, "offsets", TN_I64, TN_DIMS(plus(g, sequences, 1)));
}

static void by_places(tn_graph *g, const int64_t *d) {
    tn_tensor x = floats(g, "x", TN_DIMS(d[M], 4, d[M], 3)), at = places(g, "at", TN_DIMS(d[M], d[N], 2));
    tn_output(tn_gather_nd(x, at, 1), "gather");
    tn_tensor base = floats(g, "base", TN_DIMS(plus(g, d[K], 2), d[M], 3)), to = places(g, "to", TN_DIMS(d[N], 2));
    tn_output(tn_scatter_nd(base, to, floats(g, "updates", TN_DIMS(d[N], 3)), TN_SCATTER_ADD), "scatter");
    tn_tensor put = places(g, "slots", TN_DIMS(d[N], d[M]));
    tn_output(tn_put_along(floats(g, "plane", TN_DIMS(plus(g, d[K], 1), d[M])), put, floats(g, "more", TN_DIMS(d[N], d[M])), 0,
                           TN_SCATTER_MAX),
              "put");
}
static void by_search(tn_graph *g, const int64_t *d) {
    tn_tensor rows = tn_sort(floats(g, "rows", TN_DIMS(d[M], d[N])), 1, 0), values = floats(g, "values", TN_DIMS(d[M], d[K]));
    tn_output(tn_searchsorted(rows, values, 0), "left");
    tn_output(tn_searchsorted(tn_sort(floats(g, "row", TN_DIMS(d[N])), 0, 0), values, 1), "right");
}
static void segments(tn_graph *g, const int64_t *d) {
    tn_tensor x = floats(g, "x", TN_DIMS(d[N], d[M])), ids = places(g, "ids", TN_DIMS(d[N]));
    tn_output(tn_segment(x, ids, d[K], TN_SCATTER_MAX), "max");
    tn_output(tn_segment_mean(x, ids, d[K]), "mean");
    tn_output(tn_segment_ids(rising(g, d[K]), d[N]), "ids_of_rows");
}
static void sparse(tn_graph *g, const int64_t *d) {
    tn_tensor rows = places(g, "rows", TN_DIMS(d[N])), columns = places(g, "columns", TN_DIMS(d[N]));
    tn_tensor x = floats(g, "x", TN_DIMS(plus(g, d[K], 1), d[M]));
    tn_output(tn_sparse_matmul(floats(g, "values", TN_DIMS(d[N])), rows, columns, d[K], x), "y");
    tn_output(tn_sparse_matmul(floats(g, "blocks", TN_DIMS(d[N], 2, 3)), rows, columns, d[K],
                               floats(g, "wide", TN_DIMS(d[M] >= 0 ? 3 * d[M] : tn_dim_mul(g, d[M], 3), 4))),
              "z");
    tn_output(tn_sparse_matmul_csr(floats(g, "csr", TN_DIMS(d[N])), rising(g, d[K]), columns, x), "by_rows");
}
static void ragged(tn_graph *g, const int64_t *d) {
    tn_tensor x = floats(g, "x", TN_DIMS(d[N], d[M])), offsets = rising(g, d[K]);
    static const char *const modes[] = { "sum", "max", "min", "mean" };
    for (int i = 0; i < 4; i++) tn_output(tn_ragged(x, offsets, (tn_ragged_mode)i), modes[i]);
    tn_output(tn_embedding_bag(floats(g, "table", TN_DIMS(8, d[M])), places(g, "words", TN_DIMS(d[N])), offsets, TN_RAGGED_SUM),
              "bag");
    tn_output(tn_ragged_softmax(x, offsets), "softmax");
    tn_output(tn_ragged_seen(offsets, d[M]), "seen");
    tn_tensor padded = tn_ragged_pad(x, offsets, plus(g, d[M], 3), 0.5);
    tn_output(padded, "padded");
    tn_output(tn_ragged_rows(padded, offsets, d[N]), "back");
}
static void attention(tn_graph *g, const int64_t *d) {
    tn_tensor q = floats(g, "q", TN_DIMS(d[N], 2, 8)), k = floats(g, "k", TN_DIMS(d[N], 2, 8)), o = rising(g, d[K]);
    tn_output(tn_ragged_attention(q, k, floats(g, "v", TN_DIMS(d[N], 2, 4)), o, o, 40, 1), "y");
}
static void sets(tn_graph *g, const int64_t *d) {
    tn_tensor count, inverse, counts, few = tn_round(floats(g, "few", TN_DIMS(d[N], d[M])));
    tn_output(tn_unique(few, 6, &count, &inverse, &counts), "values");
    tn_output(count, "count"), tn_output(inverse, "inverse"), tn_output(counts, "counts");
    tn_output(tn_nonzero(few, plus(g, d[K], 2), &count), "nonzero");
    tn_output(count, "set");
}
static void running(tn_graph *g, const int64_t *d) {
    tn_tensor x = floats(g, "x", TN_DIMS(d[M], d[N], d[K]));
    static const char *const names[] = { "sums", "before", "from the end", "behind" };
    for (int i = 0; i < 4; i++) {
        tn_cumulative_opts o = { .exclusive = i & 1, .reverse = i >> 1 };
        tn_output(tn_cumulative(x, 1, i < 2 ? TN_SCAN_SUM : TN_SCAN_MAX, o), names[i]);
    }
    tn_output(tn_nn_cumsum(floats(g, "row", TN_DIMS(d[N])), 0), "row_sums");
}
static void batches(tn_graph *g, const int64_t *d) { /* of signals and matrices, whose own sizes are numbers */
    static const int64_t lengths[] = { 12, 96, 83 }; /* by a table, in factors, as a convolution */
    for (int i = 0; i < 3; i++) {
        tn_tensor wave = floats(g, (const char *[]){ "x", "y", "z" }[i], TN_DIMS(d[N], lengths[i], d[M]));
        tn_output(tn_signal_rfft(wave, 1), (const char *[]){ "short", "factors", "prime" }[i]);
    }
    tn_signal_stft_opts frames = { .length = 64, .step = 16, .centered = 1 };
    tn_output(tn_signal_stft(floats(g, "waves", TN_DIMS(d[N], d[M], 100)), frames), "frames");
    tn_tensor a = floats(g, "a", TN_DIMS(d[N], d[M], 3, 3)), square = tn_matmul(a, tn_transpose(a, 2, 3));
    tn_tensor eye =
        tn_reshape(tn_cast(tn_eq(tn_iota(g, TN_I64, TN_DIMS(3, 3), 0), tn_iota(g, TN_I64, TN_DIMS(3, 3), 1)), TN_F32),
                   TN_DIMS(1, 1, 3, 3));
    tn_output(tn_linalg_cholesky(tn_add(square, eye)), "root");
}
static void rearranged(tn_graph *g, const int64_t *d) { /* and statistics */
    tn_tensor x = floats(g, "x", TN_DIMS(plus(g, d[N], 3), d[M])), columns = floats(g, "columns", TN_DIMS(2, plus(g, d[K], 3)));
    tn_output(tn_nn_var(x, TN_ALL_AXES, 1, 0), "var"), tn_output(tn_nn_std(x, (int64_t[]){ 0 }, 1, 1, 1), "std");
    tn_output(tn_nn_roll(x, 2, 0), "on"), tn_output(tn_nn_roll(columns, -3, 1), "back");
    tn_output(tn_nn_tile(columns, (int64_t[]){ d[M], 2 }, 2), "tiles"), tn_output(tn_nn_repeat(x, 3, 0), "repeated");
    for (int mode = 0; mode < 3; mode++)
        tn_output(tn_nn_pad(columns, 1, 1, 2, (tn_nn_pad_mode)mode), (const char *[]){ "border0", "border1", "border2" }[mode]);
    tn_tensor parts[3];
    tn_nn_split(x, 0, (int64_t[]){ 1, d[N], 2 }, 3, parts);
    for (int i = 0; i < 3; i++) tn_output(parts[i], (const char *[]){ "part0", "part1", "part2" }[i]);
}
static void features(tn_graph *g, const int64_t *d) { /* of heads, and classes */
    int64_t head = plus(g, d[K], 1), classes = plus(g, d[M], 2);
    tn_shape s = TN_DIMS(2, 4, head);
    tn_output(tn_nn_attention(floats(g, "q", s), floats(g, "key", s), floats(g, "v", TN_DIMS(2, 4, 3)), 0), "attention");
    tn_tensor logits = floats(g, "logits", TN_DIMS(5, classes)), labels = places(g, "labels", TN_DIMS(5));
    tn_output(tn_nn_cross_entropy_with(logits, labels, (tn_nn_cross_entropy_opts){ .smoothing = 0.25 }), "loss");
}
static void images(tn_graph *g, const int64_t *d) {
    int64_t in = plus(g, d[K], 1), out = plus(g, d[N], 1), twice = d[M] >= 0 ? 2 * d[M] : tn_dim_mul(g, d[M], 2);
    tn_tensor x = floats(g, "image", TN_DIMS(2, in, d[M], 3));
    char name[32];
    for (int i = 0; i < 8; i++) {
        tn_nn_interpolate_opts o = { .out = { out, twice }, .mode = (tn_nn_interpolation)(i / 2), .align_corners = i & 1 };
        snprintf(name, sizeof name, "mode %d%s", i / 2, i & 1 ? ", corners" : "");
        tn_output(tn_nn_interpolate(x, o), name);
    }
    tn_output(tn_nn_interpolate(x, (tn_nn_interpolate_opts){ .out = { 4, d[M] }, .mode = TN_NN_LINEAR }), "to numbers");
    tn_output(tn_nn_adaptive_avg_pool(x, (int64_t[]){ 3, 1, 0 }), "means");
    tn_output(tn_nn_adaptive_max_pool(x, (int64_t[]){ 2, 2, 0 }), "largest");
    static const float weights[3 * 3 * 3 * 2] = { 1, 2, -1, 0.5, 3, 0.25, -2, 1, 1, -0.5, 4 };
    tn_tensor w = tn_const(g, TN_F32, TN_DIMS(3, 3, 3, 2), weights);
    for (int i = 0; i < 3; i++) {
        tn_nn_conv_transpose_opts o = { .weights = w, .stride = { 1 + i % 2 }, .padding = { i }, .output_padding = { i } };
        if (i == 2) o.dilation[0] = 2;
        tn_output(tn_nn_conv_transpose(x, o, "t"), (const char *[]){ "back0", "back1", "back2" }[i]);
    }
    for (int m = 2; m <= 4; m += 2) {
        tn_nn_conv_opts o = { .out_channels = 2, .kernel = { 3 }, .padding = { 1 }, .winograd = m, .weights = w };
        o.bias = tn_full(g, TN_F32, TN_DIMS(2), 0.5);
        tn_output(tn_nn_conv2d(x, o, "w"), m == 2 ? "tiles of 2" : "tiles of 4");
    }
    tn_nn_pool_opts by = { .kernel = { 2 }, .stride = { 1 }, .padding = { 1 } };
    tn_tensor parts = tn_nn_unfold(x, by);
    tn_output(parts, "parts"), tn_output(tn_nn_fold(parts, (int64_t[]){ in, d[M], 0 }, by), "whole");
    tn_tensor large = tn_nn_pixel_shuffle(floats(g, "deep", TN_DIMS(2, in, d[M], 8)), 2);
    tn_output(large, "large"), tn_output(tn_nn_pixel_unshuffle(tn_mul_scalar(large, 2), 2), "small");
}
static void sampled(tn_graph *g, const int64_t *d) {
    int64_t height = plus(g, d[K], 1);
    tn_tensor x = floats(g, "image", TN_DIMS(d[M], height, d[M], 3)), at = floats(g, "at", TN_DIMS(d[M], 2, d[N], 2));
    char name[32];
    for (int i = 0; i < 12; i++) {
        tn_nn_grid_opts o = { (tn_nn_interpolation[]){ TN_NN_NEAREST, TN_NN_LINEAR, TN_NN_CUBIC, TN_NN_LINEAR }[i / 3],
                              (tn_nn_grid_padding)(i % 3), i & 1 };
        snprintf(name, sizeof name, "grid %d", i);
        tn_output(tn_nn_grid_sample(x, at, o), name);
    }
    tn_tensor boxes = floats(g, "boxes", TN_DIMS(d[N], 4)), of = tn_input(g, "of", TN_I64, TN_DIMS(d[N]));
    of = tn_min(of, tn_sub_scalar(tn_dim_value(g, d[M]), 1)); /* clamped to the rows of all images, which are others */
    for (int i = 0; i < 2; i++) {
        tn_nn_roi_opts o = { .out = { 2, 3 }, .scale = 0.5, .samples = 2, .half_pixel = i, .max = i };
        tn_output(tn_nn_roi_align(x, boxes, tn_max_scalar(of, 0), o), i ? "largest" : "means");
    }
    tn_tensor some = tn_sort(floats(g, "some", TN_DIMS(d[M], height, 4)), 2, 0), count;
    for (int n = 3; n < 12; n += 8) {
        tn_output(tn_nn_nms(some, floats(g, n == 3 ? "few" : "many", TN_DIMS(d[M], height)), n,
                            (tn_nn_nms_opts){ .iou = 0.2, .score = -1, .has_score = 1 }, &count),
                  n == 3 ? "best" : "more");
        tn_output(count, n == 3 ? "how many" : "of them");
    }
}
static void aligned(tn_graph *g, const int64_t *d) { /* steps, sequences, labels */
    int64_t steps = plus(g, d[N], 1);
    tn_tensor log_p = tn_nn_log_softmax(floats(g, "x", TN_DIMS(steps, d[M], 9)), -1), loss;
    tn_tensor labels = tn_max_scalar(places(g, "labels", TN_DIMS(d[M], d[K])), 0),
              length = tn_max_scalar(places(g, "length", TN_DIMS(d[M])), 1), size = places(g, "size", TN_DIMS(d[M]));
    length = tn_min(length, tn_dim_value(g, steps)), size = tn_min(tn_max_scalar(size, 0), tn_dim_value(g, d[K]));
    tn_output(loss = tn_nn_ctc(log_p, labels, length, size, 8), "loss");
    tn_tensor x = tn_graph_find(g, "x"), by_x;
    if (tn_grad(loss, &x, 1, &by_x)) fail_msg("%s", tn_ctx_error(tn_graph_ctx(g)));
    tn_output(by_x, "gradient");
}
static void values(tn_graph *g, const int64_t *d) {
    int64_t lo, hi, both = d[N] >= 0 ? d[N] * d[M] : tn_dim_mul(g, d[N], d[M]);
    tn_output(tn_dim_value(g, d[N]), "n"), tn_output(tn_dim_value(g, both), "area");
    assert_int_equal(tn_dim_range(g, both, &lo, &hi), TN_OK);
    assert_int_equal(lo, d[N] >= 0 ? both : least[N] * least[M]);
    assert_int_equal(hi, d[N] >= 0 ? both : most[N] * most[M]);
}

static const struct {
    const char *name;
    void (*build)(tn_graph *g, const int64_t *d);
} groups[] = { { "by places", by_places }, { "search", by_search },      { "segments", segments },
               { "sparse", sparse },       { "ragged", ragged },         { "attention", attention },
               { "sets", sets },           { "running", running },       { "batches", batches },
               { "values", values },       { "rearranged", rearranged }, { "features", features },
               { "images", images },       { "sampled", sampled },       { "aligned", aligned } };

static tn_session *compiled(tn_ctx *ctx, int group, const int64_t *d, tn_mode mode, tn_graph **g, tn_program **p) {
    tn_session *s;
    *g = tn_graph_new(ctx, "sizes");
    int64_t of[N_SIZES];
    for (int i = 0; i < N_SIZES; i++) of[i] = d ? d[i] : tn_dim(*g, size_names[i], least[i], most[i], 1);
    groups[group].build(*g, of);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = mode, o.check = 1;
    if (!d) o.device = test_device();
    if (tn_compile(*g, &o, p) || tn_session_new(*p, &s)) fail_msg("%s: %s", groups[group].name, tn_ctx_error(ctx));
    return s;
}

static void fill(rng *r, const char *name, tn_dtype t, void *data, int64_t n) {
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        if (t == TN_F32) ((float *)data)[i] = (float)rng_range(r, -2, 2);
        if (t != TN_I64) continue;
        ((int64_t *)data)[i] = strcmp(name, "offsets") ? rng_between(r, -1, 7) : at;
        at += rng_between(r, 0, 9);
    }
}

/* The program for a range, s, does what one for these sizes does. */
static void agree(rng *r, tn_ctx *ctx, int group, tn_session *s, const int64_t *d) {
    tn_graph *g;
    tn_program *p;
    tn_session *own = compiled(ctx, group, d, TN_MODE_GRAPH, &g, &p);
    void *data[2][48];
    for (int i = 0; i < N_SIZES; i++)
        if (tn_bind_dim(s, size_names[i], d[i])) fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 0; i < p->n_io; i++) {
        const pio *io = &p->io[i];
        data[0][i] = calloc(1, (size_t)io->bytes + 8), data[1][i] = calloc(1, (size_t)io->bytes + 8);
        if (!io->is_output) fill(r, io->name, io->dtype, data[0][i], io->bytes / (int64_t)tn_dtype_size(io->dtype));
        if (tn_session_bind(own, i, data[0][i]) || tn_session_bind(s, i, data[!!io->is_output][i]))
            fail_msg("%s", tn_ctx_error(ctx));
    }
    if (tn_session_run(own) || tn_session_run(s))
        fail_msg("%s, n %d, m %d, k %d: %s", groups[group].name, (int)d[N], (int)d[M], (int)d[K], tn_ctx_error(ctx));
    for (int i = 0; i < p->n_io; i++) {
        const pio *io = &p->io[i];
        size_t size = tn_dtype_size(io->dtype);
        for (int64_t e = 0; io->is_output && e < io->bytes / (int64_t)size; e++) {
            float x = ((float *)data[0][i])[io->dtype == TN_F32 ? e : 0],
                  y = ((float *)data[1][i])[io->dtype == TN_F32 ? e : 0];
            bool same = !memcmp((char *)data[0][i] + (size_t)e * size, (char *)data[1][i] + (size_t)e * size, size);
            if (!same && (io->dtype != TN_F32 || !(fabsf(x - y) <= 1e-5f * (1 + fabsf(x)))))
                fail_msg("%s, n %d, m %d, k %d: %s[%d] is %g with sizes of the run, %g with numbers", groups[group].name,
                         (int)d[N], (int)d[M], (int)d[K], io->name, (int)e, y, x);
        }
        free(data[0][i]), free(data[1][i]);
    }
    tn_session_free(own), tn_program_free(p), tn_graph_free(g);
}

static void as_with_numbers(void **state) {
    (void)state;
    static const tn_mode modes[] = { TN_MODE_COMPILED, TN_MODE_GRAPH, TN_MODE_IMMEDIATE };
    rng r = rng_make(5);
    tn_ctx *ctx = test_ctx();
    bool all = !fuzz_by_c() && test_device_is_cpu(); /* compilers take a second for each */
    int runs = 0;
    for (int group = 0; group < (int)COUNT_OF(groups); group++)
        for (int mode = 0; mode < (all ? 3 : 1); mode++) {
            tn_graph *g;
            tn_program *p;
            tn_session *s = compiled(ctx, group, NULL, modes[mode], &g, &p);
            for (int run = 0; run < (all ? 8 : 2); run++, runs++) {
                int64_t d[N_SIZES];
                for (int i = 0; i < N_SIZES; i++)
                    d[i] = run == 0 ? most[i] : run == 1 ? least[i] : rng_between(&r, least[i], most[i]);
                agree(&r, ctx, group, s, d);
            }
            tn_session_free(s), tn_program_free(p), tn_graph_free(g);
        }
    printf("count: %d runs of %d groups of builders as with numbers\n", runs, (int)COUNT_OF(groups));
    tn_ctx_free(ctx);
}

static void what_is_never_less(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "ordered");
    int64_t n = tn_dim(g, "n", 1, 40, 1), m = tn_dim(g, "m", 1, 40, 1), more = tn_dim_add(g, n, 2), area = tn_dim_mul(g, n, m);
    assert_int_equal(tn_dim_min(g, more, tn_dim_add(g, n, 1)), tn_dim_add(g, n, 1));
    assert_int_equal(tn_dim_max(g, n, more), more);
    assert_int_equal(tn_dim_min(g, n, area), n);
    assert_int_equal(tn_dim_max(g, n, area), area);
    assert_int_equal(tn_dim_min(g, tn_dim_ceil_div(g, n, 2), n), tn_dim_ceil_div(g, n, 2));
    assert_true(tn_dim_min(g, n, m) != n && tn_dim_min(g, n, m) != m);
    int64_t size = tn_dim(g, "size", 4, 40, 1);
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(size)),
              pools = tn_window(x, (int64_t[]){ 0 }, (int64_t[]){ 2 }, (int64_t[]){ 2 }, NULL, 1);
    assert_int_equal(tn_tensor_shape(pools).dim[0], tn_dim_floor_div(g, size, 2));
    pools = tn_window(tn_pad(x, (int64_t[]){ 1 }, (int64_t[]){ 1 }, 1, 0), (int64_t[]){ 0 }, (int64_t[]){ 4 }, (int64_t[]){ 2 },
                      NULL, 1);
    assert_int_equal(tn_tensor_shape(pools).dim[0], tn_dim_floor_div(g, size, 2));
    tn_graph_free(g), tn_ctx_free(ctx);
}

/* Means of more numbers than f32 counts one by one: 2^24. */
static void means_of_many(void **state) {
    (void)state;
    enum { ROWS = 5000, COLUMNS = 3500, ONES = 1000 };
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "means");
    tn_shape s = TN_DIMS(tn_dim(g, "n", 1, 8192, 1), tn_dim(g, "m", 1, 8192, 1));
    tn_output(tn_mean(tn_cast(tn_input(g, "x", TN_I8, s), TN_F32), TN_ALL_AXES, 0), "mean");
    int8_t *x = calloc(ROWS, COLUMNS);
    for (int i = 0; i < ONES * COLUMNS; i++) x[i] = 1;
    for (int mode = TN_MODE_IMMEDIATE; mode <= TN_MODE_COMPILED; mode++) {
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        tn_program *p;
        tn_session *own;
        float mean = 0;
        o.mode = (tn_mode)mode;
        if (tn_compile(g, &o, &p) || tn_session_new(p, &own)) fail_msg("%s", tn_ctx_error(ctx));
        if (tn_bind_shape(own, "x", TN_DIMS(ROWS, COLUMNS)) || tn_run(own, TN_BIND({ "x", x }, { "mean", &mean })))
            fail_msg("%s", tn_ctx_error(ctx));
        if (fabsf(mean - (float)ONES / ROWS) > 1e-6f) fail_msg("mode %d: the mean is %.9g", mode, (double)mean);
        tn_session_free(own), tn_program_free(p);
    }
    free(x);
    tn_graph_free(g), tn_ctx_free(ctx);
}

static void mistakes_are_named(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "bad");
    int64_t lo = 0, hi = 0;
    assert_int_equal(tn_dim_range(g, 7, &lo, &hi), TN_OK);
    assert_true(lo == 7 && hi == 7);
    tn_dim_value(g, INT64_MIN + 3);
    assert_non_null(strstr(tn_ctx_error(ctx), "tn_dim_value(): operand 0 is no dim of this graph"));
    tn_graph_free(g), g = tn_graph_new(ctx, "bad");
    assert_int_equal(tn_dim_range(g, INT64_MIN + 3, &lo, &hi), TN_ERR_INVAL);
    tn_graph_free(g), tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(as_with_numbers), cmocka_unit_test(what_is_never_less),
                                        cmocka_unit_test(means_of_many), cmocka_unit_test(mistakes_are_named) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
