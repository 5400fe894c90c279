/* model.c - `tenon bench model`: what the cost model says of kernels against what they take, kernel by kernel, over the builtin
 * models at several sizes and kernels of random graphs; the rank correlation, and the median error. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct kernel_row {
    char graph[48], kernel[48];
    const char *bound;
    int threads, block_threads;
    int64_t grid_blocks;
    double predicted_us, best_us, bytes[4];
    bool random;
} kernel_row;

typedef struct model_run {
    cli *c;
    tn_compile_opts opts;
    double seconds;
    bool gpu;
    double scale; /* of the extents of random graphs */
    uint64_t seed;
    kernel_row *rows;
    int n, cap;
} model_run;

static const char *const specs[] = {
    "matmul:16",
    "matmul:64",
    "matmul:256",
    "matmul:1024",
    "matmul:300x200x1000",
    "matmul:1x2048x1024",
    "matmul:8x512x512",
    "product:128",
    "product_nt:200x300x500",
    "product_tn:300x200x100",
    "linear_softmax:64x64x64",
    "linear_softmax:256x512x512",
    "mlp:8x64",
    "mlp:4x256x16",
    "mlp:4x1024x1",
    "relu:64x64",
    "relu:1000x1000",
    "relu:4000x4000",
    "softmax:64x64",
    "softmax:64x1000",
    "softmax:1024x4096",
    "layernorm:64x256",
    "layernorm:2048x1024",
    "conv:4x8x8x8x16",
    "conv:2x28x28x32x32",
    "conv:1x14x14x256x256",
    "conv1d",
    "maxpool",
    "maxpool:16x56x56x64",
    "fractional_pool",
    "attention",
    "attention:8x256x64",
    "cnn",
    "digits-train:16",
    "classifier-train:32",
};

/* For GPUs, where the ones above take little more than a launch does. */
static const char *const large_specs[] = {
    "matmul:512x512x512",
    "matmul:1024x1024x1024",
    "matmul:2048x2048x2048",
    "matmul:4096x4096x4096",
    "matmul:64x4096x4096",
    "matmul:256x256x8192",
    "product:1024x1024x512",
    "product_nt:1024x2048x512",
    "product_tn:2048x512x1024",
    "linear_softmax:1024x1024x1024",
    "mlp:4x1024x256",
    "mlp:4x512x2048",
    "mlp:64x64x64",
    "softmax:4096x4096",
    "softmax:512x32768",
    "layernorm:8192x1024",
    "layernorm:512x16384",
    "conv:16x56x56x64x64",
    "conv:8x28x28x128x256",
    "conv1d:16x16384x4x32x9",
    "maxpool:64x112x112x64",
    "attention:16x1024x64",
    "cnn:256",
    "digits-train:256",
    "classifier-train:512",
};

enum { MOST_ELEMS = 1 << 24 /* of a random matrix */ };

/* ---- random graphs: a few ops on one or two inputs, each a kernel or two ---- */

static int pick(uint64_t *seed, int n) { return (int)(random_unit(seed) * n); }

/* From lo to scale * hi, as many small ones as large ones. */
static int64_t extent(uint64_t *seed, double lo, double hi, double scale) {
    return (int64_t)(lo * pow(scale * hi / lo, random_unit(seed)) + 0.5);
}

static tn_tensor elementwise(tn_tensor x, tn_tensor y, uint64_t *seed) {
    switch (pick(seed, 12)) {
    case 0:
        return tn_exp(tn_neg(tn_abs(x)));
    case 1:
        return tn_tanh(x);
    case 2:
        return tn_sigmoid(x);
    case 3:
        return tn_sqrt(tn_abs(x));
    case 4:
        return tn_mul(x, x);
    case 5:
        return tn_erf(x);
    case 6:
        return tn_log(tn_add_scalar(tn_abs(x), 1));
    case 7:
        return tn_mul(x, y);
    case 8:
        return tn_max(x, y);
    case 9:
        return tn_div(x, tn_add_scalar(tn_abs(y), 1));
    case 10:
        return tn_add_scalar(tn_mul_scalar(x, 0.5), 1);
    default:
        return tn_add(x, y);
    }
}

static tn_tensor chain(tn_tensor x, tn_tensor y, int n, uint64_t *seed) {
    for (int i = 0; i < n; i++) x = elementwise(x, y, seed);
    return x;
}

static tn_tensor contraction(tn_graph *g, double scale, uint64_t *seed) {
    int64_t m = extent(seed, 1, 400, scale), n = extent(seed, 4, 700, scale), k = extent(seed, 4, 700, scale);
    int transposed = pick(seed, 4);
    tn_tensor a = tn_input(g, "a", TN_F32, transposed == 1 ? TN_DIMS(k, m) : TN_DIMS(m, k)),
              b = tn_input(g, "b", TN_F32, transposed == 2 ? TN_DIMS(n, k) : TN_DIMS(k, n));
    tn_tensor y = tn_matmul(transposed == 1 ? tn_transpose(a, 0, 1) : a, transposed == 2 ? tn_transpose(b, 0, 1) : b);
    return pick(seed, 2) ? tn_relu(y) : y;
}

/* Rows added into places, or read from them: which ones is a constant. */
static tn_tensor by_index(tn_graph *g, double scale, uint64_t *seed) {
    int64_t rows = extent(seed, 4, 3000, scale), columns = extent(seed, 1, 300, scale), places = extent(seed, 4, 1000, scale);
    int32_t *places_of = cli_alloc(sizeof *places_of * (size_t)rows);
    for (int64_t i = 0; i < rows; i++) places_of[i] = (int32_t)pick(seed, (int)places);
    tn_tensor at = tn_const(g, TN_I32, TN_DIMS(rows), places_of);
    free(places_of);
    if (pick(seed, 2)) return tn_gather(tn_input(g, "x", TN_F32, TN_DIMS(places, columns)), at, 0);
    tn_tensor base = tn_full(g, TN_F32, TN_DIMS(places, columns), 0);
    return tn_scatter_add(base, at, tn_input(g, "x", TN_F32, TN_DIMS(rows, columns)), 0);
}

static tn_tensor on_rows(tn_graph *g, double scale, uint64_t *seed) {
    int64_t rows = extent(seed, 4, 3000, scale), columns = extent(seed, 4, 3000, scale);
    while (rows * columns > MOST_ELEMS) columns /= 2;
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(rows, columns)), y = tn_input(g, "y", TN_F32, TN_DIMS(rows, columns));
    switch (pick(seed, 8)) {
    case 0:
        return tn_sum(chain(x, y, pick(seed, 3), seed), TN_INTS(1), 0);
    case 1:
        return tn_sum(chain(x, y, pick(seed, 3), seed), TN_INTS(0), 0);
    case 2:
        return tn_reduce_max(x, TN_INTS(1), 0);
    case 3:
        return tn_div(x, tn_add_scalar(tn_sum(tn_abs(x), TN_INTS(1), 1), 1));
    case 4:
        return tn_transpose(chain(x, y, 1, seed), 0, 1);
    case 5:
        return tn_add(x, tn_sum(y, TN_INTS(0), 1));
    default:
        return chain(x, y, 1 + pick(seed, 5), seed);
    }
}

tn_graph *model_random_graph(cli *c, double scale, uint64_t seed) {
    tn_graph *g = tn_graph_new(cli_ctx(c), "random");
    random_next(&seed);
    int kind = pick(&seed, 7);
    tn_tensor y = kind < 2 ? contraction(g, scale, &seed) : kind < 3 ? by_index(g, scale, &seed) : on_rows(g, scale, &seed);
    tn_output(y, "out");
    cli_need(c, tn_graph_status(g));
    return g;
}

/* ---- measuring ---- */

#define EACH_SECONDS                                                                                                           \
    200e-6 /* a clock round a kernel of a GPU takes some microseconds itself: kernels are repeated for so long */

static bool is_listed(const model_run *r, int from, const tn_profiled_kernel *k) { /* one of the same work */
    for (int i = from; i < r->n; i++)
        if (fabs(r->rows[i].predicted_us - k->predicted_us) < 1e-9) return true;
    return false;
}

static void add_row(model_run *r, const char *name, bool random, const tn_profiled_kernel *k) {
    if (r->n == r->cap) {
        kernel_row *more = cli_alloc(sizeof *more * (size_t)(r->cap * 2 + 64));
        if (r->n) memcpy(more, r->rows, sizeof *more * (size_t)r->n);
        free(r->rows);
        r->rows = more, r->cap = r->cap * 2 + 64;
    }
    kernel_row *row = &r->rows[r->n++];
    *row = (kernel_row){ .bound = k->predicted_bound, .threads = r->opts.threads, .predicted_us = k->predicted_us };
    row->best_us = k->best_us, row->random = random, row->grid_blocks = k->grid_blocks, row->block_threads = k->block_threads;
    memcpy(row->bytes, k->level_bytes, sizeof row->bytes);
    snprintf(row->graph, sizeof row->graph, "%s", name);
    snprintf(row->kernel, sizeof row->kernel, "%s", k->name);
}

static void measure(model_run *r, const char *name, tn_graph *g, bool random, int most) {
    tn_program *p;
    tn_session *s;
    tn_profile *report;
    tn_profile_summary sum;
    tn_profiled_kernel k;
    cli_need(r->c, tn_compile(g, &r->opts, &p));
    cli_need(r->c, tn_session_new(p, &s));
    ports io = ports_new(r->c, p);
    ports_fill(r->c, &io, g, r->seed);
    ports_bind(r->c, s, &io);
    cli_need(r->c, r->gpu ? tn_session_profile_repeated(s, r->seconds, EACH_SECONDS, &report)
                          : tn_session_profile(s, r->seconds, &report));
    tn_profile_get_summary(report, &sum);
    for (int i = 0, from = r->n; i < sum.kernels && r->n < most && !tn_profile_kernel(report, i, &k); i++)
        if (!is_listed(r, from, &k)) add_row(r, name, random, &k);
    tn_profile_free(report);
    ports_free(&io);
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
}

/* ---- how good it is ---- */

typedef struct quality {
    int n;
    double rank_correlation, median_error, p90_error;
} quality;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double rank(const kernel_row *rows, int n, int i, bool predicted) { /* equals share theirs */
    double x = predicted ? rows[i].predicted_us : rows[i].best_us, below = 0, same = 0;
    for (int j = 0; j < n; j++) {
        double y = predicted ? rows[j].predicted_us : rows[j].best_us;
        below += y < x, same += y == x;
    }
    return below + (same - 1) / 2;
}

static quality judge(const kernel_row *rows, int n) {
    quality q = { .n = n };
    if (n < 2) return q;
    double *error = cli_alloc(sizeof *error * (size_t)n), mean = (n - 1) / 2.0, both = 0, xx = 0, yy = 0;
    for (int i = 0; i < n; i++) {
        double x = rank(rows, n, i, true) - mean, y = rank(rows, n, i, false) - mean;
        both += x * y, xx += x * x, yy += y * y;
        error[i] = fabs(rows[i].predicted_us - rows[i].best_us) / rows[i].best_us;
    }
    qsort(error, (size_t)n, sizeof *error, by_value);
    q.rank_correlation = xx > 0 && yy > 0 ? both / sqrt(xx * yy) : 0;
    q.median_error = n % 2 ? error[n / 2] : (error[n / 2 - 1] + error[n / 2]) / 2, q.p90_error = error[n * 9 / 10];
    free(error);
    return q;
}

/* ---- the report ---- */

static void print_rows(const model_run *r) {
    printf("%-26s %-22s %7s %10s %10s %7s  %9s %9s %9s %9s  %s\n", "graph", "kernel", "threads", "model us", "best us", "ratio",
           "L1 KiB", "L2 KiB", "L3 KiB", "mem KiB", "bound by");
    for (int i = 0; i < r->n; i++) {
        const kernel_row *x = &r->rows[i];
        printf("%-26.26s %-22.22s %7d %10.3f %10.3f %7.2f  %9.1f %9.1f %9.1f %9.1f  %s\n", x->graph, x->kernel, x->threads,
               x->predicted_us, x->best_us, x->predicted_us / x->best_us, x->bytes[0] / 1024, x->bytes[1] / 1024,
               x->bytes[2] / 1024, x->bytes[3] / 1024, x->bound);
    }
}

static void print_quality(const char *what, quality q) {
    printf("%-20s %4d kernels: rank correlation %.3f, median error %.1f%%, 90%% of them within %.0f%%\n", what, q.n,
           q.rank_correlation, 100 * q.median_error, 100 * q.p90_error);
}

static void json_quality(json *j, const char *key, quality q) {
    json_line(j, key);
    json_int(j, "kernels", q.n);
    json_number(j, "rank_correlation", q.rank_correlation);
    json_number(j, "median_error", q.median_error);
    json_number(j, "p90_error", q.p90_error);
    json_end(j);
}

static void json_rows(json *j, const model_run *r) {
    static const char *const levels[] = { "l1_bytes", "l2_bytes", "l3_bytes", "memory_bytes" };
    json_array(j, "rows");
    for (int i = 0; i < r->n; i++) {
        const kernel_row *x = &r->rows[i];
        json_line(j, NULL);
        json_text(j, "graph", x->graph);
        json_text(j, "kernel", x->kernel);
        json_int(j, "threads", x->threads);
        json_int(j, "groups", x->grid_blocks);
        json_int(j, "group", x->block_threads);
        json_bool(j, "random", x->random);
        json_number(j, "predicted_us", x->predicted_us);
        json_number(j, "best_us", x->best_us);
        json_text(j, "bound", x->bound);
        for (int l = 0; l < 4; l++) json_number(j, levels[l], x->bytes[l]);
        json_end(j);
    }
    json_end(j);
}

static void report(cli *c, const model_run *r, const ceiling *m, const int64_t *threads, const int *end, int n_threads) {
    json j;
    if (c->json) {
        j = json_begin(stdout, "bench model");
        ceiling_json(&j, m);
        json_rows(&j, r);
        json_quality(&j, "all", judge(r->rows, r->n));
    } else {
        ceiling_print(stdout, m);
        print_rows(r);
        print_quality("all", judge(r->rows, r->n));
    }
    for (int t = 0, from = 0; t < n_threads; from = end[t++]) {
        char key[32];
        snprintf(key, sizeof key, "%lld thread%s", (long long)threads[t], threads[t] > 1 ? "s" : "");
        quality q = judge(r->rows + from, end[t] - from);
        if (c->json)
            json_quality(&j, key, q);
        else
            print_quality(key, q);
    }
    if (c->json) json_finish(&j);
}

static void measure_specs(model_run *r, const char *const *at, size_t n, const char *cases) {
    for (size_t i = 0; i < n; i++) {
        char *spec = cli_format("@%s", at[i]);
        if (!cases || strstr(spec, cases)) measure(r, spec, model_open(r->c, spec, r->seed), false, INT32_MAX);
        free(spec);
    }
}

static void measure_random(model_run *r, int64_t samples) {
    for (int64_t i = 0, most = r->n + samples; r->n < most; i++) {
        char name[48];
        uint64_t seed = r->seed * 1000 + (uint64_t)i;
        snprintf(name, sizeof name, "random %llu", (unsigned long long)seed);
        measure(r, name, model_random_graph(r->c, r->scale, seed), true, (int)most);
    }
}

int bench_model(cli *c) {
    ceiling m = ceiling_measure(0);
    char all[32];
    int64_t threads[4];
    int end[4];
    snprintf(all, sizeof all, m.cores > 1 ? "1,%d" : "1", m.cores);
    int n_threads = cli_ints(c, "threads", all, threads, COUNT_OF(threads), 1, 256);
    int64_t samples = cli_int(c, "samples", 200, 0, 1 << 20);
    const char *cases = cli_text(c, "cases", NULL);
    model_run r = { .c = c, .opts = TN_COMPILE_DEFAULTS, .seconds = cli_number(c, "seconds", 0.1, 0, 60), .scale = 1 };
    r.seed = (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX), r.opts.device = cli_device(c);
    c->quiet = true; /* about inputs */
    if (strcmp(r.opts.device, "cpu")) n_threads = 1, threads[0] = 1, r.gpu = true;
    bool large = cli_flag(c, "large") || !strcmp(r.opts.device, "cuda");
    if (large) r.scale = 4;
    for (int t = 0; t < n_threads; t++) {
        r.opts.threads = (int)threads[t];
        measure_specs(&r, specs, COUNT_OF(specs), cases);
        if (large) measure_specs(&r, large_specs, COUNT_OF(large_specs), cases);
        if (!cases || !strcmp(cases, "random")) measure_random(&r, samples);
        end[t] = r.n;
    }
    if (!r.n) cli_usage(c, "no case of bench model has '%s' in its name (@models, or random)", cases ? cases : "");
    report(c, &r, &m, threads, end, n_threads);
    free(r.rows);
    return CLI_OK;
}
