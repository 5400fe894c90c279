/* device_compile.c - `tenon bench compile --device`: networks of depth 64 from a graph with its weights to a program of
 * an open device. Rows of each size: `first` in this process, which also loads the device's compiler (of the first size alone);
 * `cold`, without a cache on disk, neither Tenon's nor the driver's; `disk`, from Tenon's. compile_us is what of a compilation
 * the device's compiler took, or the cache. The cache is a folder of its own, which goes at the end. The program from the cache
 * is run and compared with the CPU's. */
#include "suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct network {
    cli *c;
    const char *device;
    int64_t size;
    tn_graph *graph;
    bool cold;
    double compiler; /* seconds of it in the last compilation */
} network;

static tn_program *compile(network *k, const char *device) {
    tn_program *p;
    tn_program_stats facts;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = TN_MODE_LOOP, o.device = device, o.no_cache = k->cold;
    cli_need(k->c, tn_compile(k->graph, &o, &p));
    tn_program_get_stats(p, &facts);
    k->compiler = facts.build_seconds;
    return p;
}

static double clock_compile(void *ud, int64_t times) {
    network *k = ud;
    double spent = 0;
    for (int64_t i = 0; i < times; i++) {
        double start = cli_seconds();
        tn_program *p = compile(k, k->device);
        spent += cli_seconds() - start;
        tn_program_free(p);
    }
    return spent;
}

/* The output for a random input. */
static value output_of(network *k, const char *device) {
    tn_session *s;
    tn_program *p = compile(k, device);
    cli_need(k->c, tn_session_new(p, &s));
    ports io = ports_new(k->c, p);
    bool quiet = k->c->quiet; /* that the inputs are random goes without saying */
    k->c->quiet = true;
    ports_fill(k->c, &io, k->graph, 1);
    k->c->quiet = quiet;
    ports_poison(&io);
    ports_bind(k->c, s, &io);
    cli_need(k->c, tn_session_run(s));
    int y = ports_find(&io, "y");
    if (y < 0) cli_fail(k->c, "the network has no output y");
    value v = io.value[y];
    io.value[y] = (value){ 0 };
    ports_free(&io);
    tn_session_free(s);
    tn_program_free(p);
    return v;
}

static void check(network *k, bench_row *r) {
    value got = output_of(k, k->device), want = output_of(k, "cpu");
    const float *x = got.data, *y = want.data;
    double top = 0;
    r->max_abs_err = 0;
    if (cli_flag(k->c, "plant-error")) *(float *)got.data += 1;
    for (size_t i = 0; i < want.bytes / sizeof *y; i++) {
        double off = fabs((double)x[i] - (double)y[i]);
        top = fmax(top, fabs((double)y[i]));
        if (!(off <= r->max_abs_err)) r->max_abs_err = off;
    }
    r->err_bound = 1e-4 * top;
    if (!(r->max_abs_err <= r->err_bound))
        cli_fail(k->c, "depth 64, size %lld: off by %g, %g is allowed", (long long)k->size, r->max_abs_err, r->err_bound);
    value_free(&got);
    value_free(&want);
}

static void add(suite *s, network *k, bench_row r, const char *variant, const stats *times, double budget_us) {
    r.variant = variant;
    row_time(&r, times, 0, (rate){ 0, 0 });
    r.compile_us = k->compiler * 1e6;
    r.budget_us = budget_us, r.budget_ratio = budget_us / r.median_us;
    suite_add(s, r);
}

static void measure(suite *s, int64_t size, bool first) {
    static const struct {
        const char *name;
        double budget_us;
    } kinds[] = { { "cold", 3e5 }, { "disk", 5e3 } };
    char *spec = cli_format("@mlp:64x%lld", (long long)size);
    network k = { .c = s->c, .device = s->device, .size = size, .graph = model_open(s->c, spec, s->seed), .cold = true };
    bench_row r = row_empty();
    r.work = "compile", r.name = "course network, depth 64", r.device = s->device, r.mode = cli_mode_name(TN_MODE_LOOP);
    r.threads = 1, r.depth = 64, r.size = r.batch = size;
    progress bar = progress_begin(s->c, spec, COUNT_OF(kinds));
    double once = clock_compile(&k, 1);
    if (first) add(s, &k, r, "first", &(stats){ once, once, once, once, 0, 1, 1 }, kinds[0].budget_us);
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        k.cold = i == 0;
        if (i) tn_program_free(compile(&k, k.device)); /* it is in the cache then */
        stats_case at = { .clock = clock_compile, .ud = &k, .label = kinds[i].name, .slow = i == 0 };
        stats_measure(&at, 1, s->seconds, &bar);
        if (i) check(&k, &r);
        add(s, &k, r, kinds[i].name, &at.result, kinds[i].budget_us);
    }
    progress_end(&bar);
    tn_graph_free(k.graph);
    free(spec);
}

/* A program of immediate mode opens the device, and compiles nothing. */
static void open_device(suite *s) {
    tn_program *p;
    tn_graph *g = tn_graph_new(s->c->ctx, "open");
    tn_output(tn_neg(tn_input(g, "x", TN_F32, TN_DIMS(1))), "y");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = TN_MODE_IMMEDIATE, o.device = s->device;
    cli_need(s->c, tn_compile(g, &o, &p));
    tn_program_free(p);
    tn_graph_free(g);
}

void bench_device_compile(suite *s) {
    int64_t sizes[16];
    int n = cli_ints(s->c, "sizes", "16,64,256", sizes, COUNT_OF(sizes), 1, 65536);
    const char *place = getenv("TMPDIR");
    char *folder = cli_format("%s/tenon-bench-XXXXXX", place && *place ? place : "/tmp");
    tn_config cfg = { .struct_size = sizeof cfg };
    setenv("CUDA_CACHE_DISABLE", "1", 1); /* NVRTC and the driver keep what they compiled, too: 47 ms, not 240, at 256 */
    if (!mkdtemp(folder)) cli_fail(s->c, "cannot make the folder %s", folder);
    tn_config_from_env(&cfg);
    cfg.cache_dir = folder, cfg.cache_subdir = NULL;
    s->c->ctx = tn_ctx_new(&cfg);
    if (!s->c->ctx) cli_fail(s->c, "out of memory");
    open_device(s);
    for (int i = 0; i < n; i++) measure(s, sizes[i], i == 0);
    cli_need(s->c, tn_cache_prune(s->c->ctx, 0, NULL, NULL));
    tn_ctx_free(s->c->ctx);
    s->c->ctx = NULL;
    rmdir(folder);
    free(folder);
}
