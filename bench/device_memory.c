/* device_memory.c - `tenon bench memory --device cuda|opencl`: what each level of a GPU's memory gives. Bandwidth and
 * latency by footprint, shared memory and its banks, access patterns over main memory, atomics, meetings of threads, launches.
 *
 * Kernels written by hand, one text for both languages; each leaves something that the host can compute too. Times are of
 * repetitions in one submit, less what a submit with one takes. */
#include "bench/inside/inside.h"
#include "device_rungs.h"
#include "suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LONGER = 4,             /* repetitions for each that is asked for */
    BLOCK_THREADS = 256,    /* threads */
    MANY = 2048,            /* thread blocks, where the whole device shall be busy */
    LINE = 32,              /* i32 in what one miss brings, at most */
    SHARED_WORDS = 4096,    /* of shared memory */
    STEPS = 8192,           /* one after the other in a thread */
    LEAST_BYTES = 64 << 20, /* that a launch walks: its start does not count then */
};

/* Every kernel has X i32[n] (n a power of two), Y i32[n], S i32[all threads], and P: n, passes, stride. Groups take other parts
 * in each pass, so that what they find near them is what others have read. */
static const char text[] =
    "#define X AT(const int, 0)\n"
    "#define X4 AT(const int4, 0)\n"
    "#define Y4 AT(int4, 1)\n"
    "#define S AT(int, 2)\n"
    "#define N AT(const int, 3)[0]\n"
    "#define PASSES AT(const int, 3)[1]\n"
    "#define STRIDE AT(const int, 3)[2]\n"
    "#define ID (G * 256 + T)\n"
    "#define ALL (BLOCKS * 256)\n"
    "#define SUM(v) (v.x + v.y + v.z + v.w)\n"
    "KERNEL(empty) { if (N < 0) S[0] = 1; }\n"
    "KERNEL(read4) { int n = N / 4, passes = PASSES, a = 0, b = 0;\n"
    "    for (int p = 0; p < passes; p++)\n"
    "        for (int i = (G + p) % BLOCKS * 256 + T; i < n; i += 2 * ALL) {\n"
    "            int4 u = X4[i], v = X4[i + ALL < n ? i + ALL : i];\n"
    "            a += SUM(u); b += i + ALL < n ? SUM(v) : 0; }\n"
    "    S[ID] = a + b; }\n"
    "KERNEL(write4) { int n = N / 4, passes = PASSES;\n"
    "    for (int p = 0; p < passes; p++)\n"
    "        for (int i = (G + p) % BLOCKS * 256 + T; i < n; i += ALL) { int4 v; v.x = v.y = v.z = v.w = i; Y4[i] = v; } }\n"
    "KERNEL(copy4) { int n = N / 4, passes = PASSES;\n"
    "    for (int p = 0; p < passes; p++)\n"
    "        for (int i = (G + p) % BLOCKS * 256 + T; i < n; i += ALL) Y4[i] = X4[i]; }\n"
    "KERNEL(strided) { int n = N, rows = N / STRIDE, stride = STRIDE, a = 0; /* neighbours are `stride` apart */\n"
    "    for (int i = ID; i < n; i += ALL) a += X[i % rows * stride + i / rows];\n"
    "    S[ID] = a; }\n"
    "KERNEL(random) { int n = N, a = 0; /* every place once: odd factors and a shift can be undone */\n"
    "    for (int i = ID; i < n; i += ALL) { unsigned h = (unsigned)i * 2654435761u; h ^= (h & (n - 1)) >> 9;\n"
    "        a += X[h * 0x9e3779b1u & (n - 1)]; }\n"
    "    S[ID] = a; }\n"
    "KERNEL(chase) { if (ID == 0) { int at = S[0], n = PASSES; /* on from where the last one stopped */\n"
    "    for (int i = 0; i < n; i++) at = X[at]; S[0] = at; } }\n"
    "KERNEL(chase_fast) { SHARED int t[4096]; int at = 0, n = PASSES;\n"
    "    for (int i = T; i < 4096; i += 256) t[i] = X[i];\n"
    "    SYNC; if (T == 0) { for (int i = 0; i < n; i++) at = t[at]; S[G] = at; } }\n"
    "KERNEL(banks) { SHARED int t[4096]; int at = T * STRIDE & 4095, n = PASSES, a = 0;\n"
    "    for (int i = T; i < 4096; i += 256) t[i] = X[i];\n"
    "    SYNC; for (int i = 0; i < n; i += 4) {\n"
    "        a += t[at] + t[at + 32 & 4095] + t[at + 64 & 4095] + t[at + 96 & 4095]; at = at + 128 & 4095; }\n"
    "    S[ID] = a; }\n"
    "KERNEL(barriers) { SHARED int t[256]; int n = PASSES; t[T] = T; SYNC;\n"
    "    for (int i = 0; i < n; i++) { int v = t[T + 1 & 255]; SYNC; t[T] = v; SYNC; }\n"
    "    S[ID] = t[T]; }\n"
    "KERNEL(add_one) { ADD(&S[0], 1); }\n"
    "KERNEL(add_apart) { ADD(&S[ID], 1); }\n"
    "KERNEL(add_fast) { SHARED int t[1]; int n = PASSES; if (T == 0) t[0] = 0; SYNC;\n"
    "    for (int i = 0; i < n; i++) ADD(&t[0], 1);\n"
    "    SYNC; if (T == 0) S[G] = t[0]; }\n"
    "KERNEL(multiply_add) { int n = PASSES; float a = (float)T; for (int i = 0; i < n; i++) a = FMA(a, 0.5f, 1.0f);\n"
    "    S[ID] = (int)a; }\n";
static const char cuda_text[] = /* a value goes round the warp */
    "KERNEL(shuffle) { int n = PASSES, v = T; for (int i = 0; i < n; i++) v = __shfl_sync(~0u, v, T + 1 & 31);\n"
    "    S[ID] = v; }\n";

typedef struct probe_device {
    suite *s;
    bool cuda;
    char *source;
} probe_device;

/* What is measured: a kernel over n values of X, with these parameters. */
typedef struct device_probe {
    const char *work, *name, *entry;
    int64_t n, grid_blocks, passes, stride;
    double bytes; /* that a run moves, or .. */
    double steps; /* .. so many of them one after the other */
    bool ring;    /* X is a cycle through all lines; else small numbers */
} device_probe;

typedef struct running {
    cli *c;
    inside_kernels *kernels;
    const device_probe *p;
    int32_t *x, *y, *s;
    int64_t runs;
} running;

static double run_kernels(running *r, int64_t times) {
    double start = cli_seconds();
    cli_need(r->c, inside_kernels_run(r->kernels, times));
    r->runs += times;
    return cli_seconds() - start;
}
static double clock_kernels(void *ud, int64_t times) {
    double one = run_kernels(ud, 1), all = run_kernels(ud, LONGER * times + 1);
    return fmax(all - one, 1e-9 * (double)times) / LONGER;
}

/* One cycle through all lines in random order (Sattolo's shuffle). */
static void fill_ring(int32_t *x, int64_t n, uint64_t *seed) {
    int64_t lines = n / LINE;
    int32_t *order = cli_alloc(sizeof *order * (size_t)lines);
    for (int64_t i = 0; i < lines; i++) order[i] = (int32_t)i;
    for (int64_t i = lines - 1; i > 0; i--) {
        int64_t j = (int64_t)(random_next(seed) % (uint64_t)i);
        int32_t t = order[i];
        order[i] = order[j], order[j] = t;
    }
    for (int64_t i = 0; i < lines; i++) x[order[i] * LINE] = order[(i + 1) % lines] * LINE;
    free(order);
}

/* ---- what must come out -------------------------------------------------------------------------------------------------- */

static bool is(const device_probe *p, const char *entry) { return !strcmp(p->entry, entry); }

static bool sum_is(const running *r, int64_t passes) {
    int64_t want = 0, got = 0;
    for (int64_t i = 0; i < r->p->n; i++) want += passes * r->x[i];
    for (int64_t i = 0; i < r->p->grid_blocks * BLOCK_THREADS; i++) got += r->s[i];
    return got == want;
}

static int32_t of_thread(const running *r, int64_t t) {
    const device_probe *p = r->p;
    float a = (float)t;
    int64_t at = t * p->stride;
    int32_t sum = 0;
    if (is(p, "barriers")) return (int32_t)((t + p->passes) % BLOCK_THREADS);
    if (is(p, "shuffle")) return (int32_t)(t / 32 * 32 + (t + p->passes) % 32);
    if (is(p, "multiply_add")) {
        for (int64_t i = 0; i < p->passes; i++) a = fmaf(a, 0.5F, 1.0F);
        return (int32_t)a;
    }
    for (int64_t i = 0; i < p->passes; i++) sum += r->x[(at + 32 * i) % SHARED_WORDS]; /* banks */
    return sum;
}

static bool is_right(const running *r) {
    const device_probe *p = r->p;
    int64_t threads = p->grid_blocks * BLOCK_THREADS;
    if (is(p, "empty")) return r->s[0] == 0;
    if (is(p, "read4")) return sum_is(r, p->passes);
    if (is(p, "strided") || is(p, "random")) return sum_is(r, 1);
    if (is(p, "add_one")) return (uint32_t)r->s[0] == (uint32_t)(threads * r->runs);
    if (is(p, "copy4")) return !memcmp(r->x, r->y, (size_t)p->n * sizeof *r->x);
    if (is(p, "write4") || is(p, "add_apart")) {
        for (int64_t i = 0; i < (is(p, "write4") ? p->n : threads); i++)
            if (is(p, "write4") ? r->y[i] != i / 4 : r->s[i] != r->runs) return false;
        return true;
    }
    if (is(p, "chase") || is(p, "chase_fast") || is(p, "add_fast")) {
        int32_t at = 0;
        int64_t steps = p->passes * (is(p, "chase") ? r->runs : 1);
        for (int64_t i = 0; i < steps; i++) at = is(p, "add_fast") ? at + BLOCK_THREADS : r->x[at];
        for (int64_t g = 0; g < p->grid_blocks; g++)
            if (r->s[g] != at) return false;
        return true;
    }
    for (int64_t i = 0; i < threads; i++)
        if (r->s[i] != of_thread(r, i % BLOCK_THREADS)) return false;
    return true;
}

static void check(running *r) {
    const device_probe *p = r->p;
    cli_need(r->c, inside_kernels_read(r->kernels, 1, r->y, (size_t)p->n * sizeof *r->y));
    cli_need(r->c, inside_kernels_read(r->kernels, 2, r->s, (size_t)(p->grid_blocks * BLOCK_THREADS) * sizeof *r->s));
    if (cli_flag(r->c, "plant-error")) r->y[0]++, r->s[0]++;
    if (!is_right(r)) cli_fail(r->c, "%s: %s over %lld: wrong result", p->work, p->name, (long long)p->n);
}

/* ---- measuring ----------------------------------------------------------------------------------------------------------- */

static void measure(probe_device *d, const device_probe *p) {
    suite *s = d->s;
    int32_t parameters[] = { (int32_t)p->n, (int32_t)p->passes, (int32_t)p->stride };
    size_t bytes = (size_t)p->n * sizeof(int32_t), threads = (size_t)(p->grid_blocks * BLOCK_THREADS) * sizeof(int32_t);
    size_t sizes[] = { bytes, bytes, threads, sizeof parameters, 4 };
    uint64_t seed = s->seed;
    running r = { .c = s->c, .p = p, .x = buffer_new(bytes), .y = buffer_new(bytes), .s = buffer_new(threads) };
    if (!suite_wants(s, p->work) && !suite_wants(s, p->name)) return;
    if (p->ring)
        fill_ring(r.x, p->n, &seed);
    else
        for (int64_t i = 0; i < p->n; i++) r.x[i] = (int32_t)(random_next(&seed) % 7);
    cli_need(s->c, inside_kernels_new(cli_ctx(s->c), s->device, d->source, sizes, COUNT_OF(sizes), &r.kernels));
    cli_need(s->c, inside_kernels_write(r.kernels, 0, r.x, bytes));
    cli_need(s->c, inside_kernels_write(r.kernels, 1, r.y, bytes));
    cli_need(s->c, inside_kernels_write(r.kernels, 2, r.s, threads));
    cli_need(s->c, inside_kernels_write(r.kernels, 3, parameters, sizeof parameters));
    cli_need(s->c, inside_kernels_launch(r.kernels, p->entry, BLOCK_THREADS, p->grid_blocks));
    run_kernels(&r, 1);
    check(&r);
    stats_case at = { .clock = clock_kernels, .ud = &r, .label = p->name };
    char label[96];
    snprintf(label, sizeof label, "%s, %s over %lld bytes", p->work, p->name, (long long)bytes);
    suite_measure(s, label, &at, 1, s->seconds / 3);
    check(&r);
    bench_row row = row_empty();
    row.work = p->work, row.name = p->name, row.device = s->device;
    row.footprint = (int64_t)bytes;
    if (p->stride > 1) row.size = p->stride;
    row_time(&row, &at.result, 0, (rate){ 0, 0 });
    if (p->bytes > 0) row_bandwidth(&row, &at.result, p->bytes, (rate){ 0, 0 });
    if (p->steps > 0) row.latency_ns = at.result.median / p->steps * 1e9;
    row.mallocs = -1;
    suite_add(s, row);
    inside_kernels_free(r.kernels);
    buffer_free(r.x), buffer_free(r.y), buffer_free(r.s);
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Bandwidth and latency of arrays of so many bytes. */
static void measure_footprint(probe_device *d, int64_t bytes) {
    int64_t n = bytes / 4, passes = bytes < LEAST_BYTES ? LEAST_BYTES / bytes : 1,
            grid_blocks = smaller(MANY, n / 4 / BLOCK_THREADS);
    double moved = (double)bytes * (double)passes;
    measure(d, &(device_probe){ "bandwidth", "read", "read4", n, grid_blocks, passes, 1, .bytes = moved });
    measure(d, &(device_probe){ "bandwidth", "write", "write4", n, grid_blocks, passes, 1, .bytes = moved });
    measure(d, &(device_probe){ "bandwidth", "copy", "copy4", n, grid_blocks, passes, 1, .bytes = 2 * moved });
    measure(d, &(device_probe){ "latency", "pointer chase", "chase", n, 1, STEPS, 1, .steps = STEPS, .ring = true });
}

static const char *bandwidth_line(const bench_row *r, char *buffer, size_t n) {
    (void)buffer, (void)n;
    return strcmp(r->work, "bandwidth") ? NULL : r->name;
}
static const char *latency_line(const bench_row *r, char *buffer, size_t n) {
    (void)buffer, (void)n;
    return strcmp(r->work, "latency") ? NULL : r->name;
}
static double x_of(const bench_row *r) { return (double)r->footprint; }
static double gbs_of(const bench_row *r) { return r->gbs; }
static double ns_of(const bench_row *r) { return r->latency_ns; }

int bench_device_memory(cli *c) {
    suite s = suite_begin(c, "bench memory");
    probe_device d = { .s = &s, .cuda = !strcmp(s.device, "cuda") };
    int64_t largest = cli_int(c, "largest", 256, 0, 4096) << 20, n = (largest ? largest : 65536) / 4;
    int64_t grid_blocks = smaller(MANY, n / BLOCK_THREADS), threads = grid_blocks * BLOCK_THREADS;
    if (!d.cuda && strcmp(s.device, "opencl")) cli_usage(c, "memory is measured of cpu, cuda and opencl, not of %s", s.device);
    if (largest & (largest - 1)) cli_usage(c, "--largest must be a power of two for devices");
    d.source = cli_format("%s%s%s", device_dialect(d.cuda), text, d.cuda ? cuda_text : "");
    for (int64_t bytes = 16384; bytes <= 4 * n; bytes *= 4) measure_footprint(&d, bytes);
    for (int64_t stride = 1; stride <= LINE; stride *= 2)
        measure(&d, &(device_probe){ "access", stride > 1 ? "strided" : "in order", "strided", n, grid_blocks, 1, stride,
                                     .bytes = 4 * (double)n });
    measure(&d, &(device_probe){ "access", "random", "random", n, grid_blocks, 1, 1, .bytes = 4 * (double)n });
    measure(&d, &(device_probe){ "shared memory", "pointer chase", "chase_fast", SHARED_WORDS, 1, STEPS, 1, .steps = STEPS,
                                 .ring = true });
    for (int64_t stride = 1; stride <= 32; stride *= 2) {
        double bytes = 4.0 * STEPS * (double)threads;
        measure(&d, &(device_probe){ "shared memory", stride > 1 ? "banks, strided" : "banks, in order", "banks", SHARED_WORDS,
                                     grid_blocks, STEPS, stride, .bytes = bytes });
    }
    measure(&d, &(device_probe){ "threads", "two barriers of a thread block", "barriers", SHARED_WORDS, 1, STEPS, 1,
                                 .steps = STEPS });
    if (d.cuda) measure(&d, &(device_probe){ "threads", "shuffle", "shuffle", SHARED_WORDS, 1, STEPS, 1, .steps = STEPS });
    measure(&d, &(device_probe){ "threads", "multiply-add", "multiply_add", SHARED_WORDS, 1, STEPS, 1, .steps = STEPS });
    measure(&d, &(device_probe){ "threads", "launch of an empty kernel", "empty", SHARED_WORDS, 1, 1, 1, .steps = 1 });
    double all = (double)threads;
    measure(&d, &(device_probe){ "atomics", "all at one place", "add_one", SHARED_WORDS, grid_blocks, 1, 1, .steps = all });
    measure(&d, &(device_probe){ "atomics", "each at its own", "add_apart", SHARED_WORDS, grid_blocks, 1, 1, .steps = all });
    measure(&d, &(device_probe){ "atomics", "shared memory, one a thread block", "add_fast", SHARED_WORDS, grid_blocks, 16, 1,
                                 .steps = 16 * all });
    if (suite_wants(&s, "transfer")) bench_transfers(&s, 4 * n);
    suite_report(&s);
    rows_plot(c,
              &(chart){ .title = "Bandwidth and latency by footprint",
                        .x_label = "footprint",
                        .bytes = true,
                        .x_of = x_of,
                        .panel = { { "GB/s (median)", bandwidth_line, gbs_of },
                                   { "nanoseconds a load (median)", latency_line, ns_of } } },
              s.rows, s.n_rows);
    free(d.source);
    suite_end(&s);
    return CLI_OK;
}
