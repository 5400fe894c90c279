/* cmd_profile.c - `tenon profile`: where the time of a run goes, kernel by kernel, against what the machine can do. */
#include "measure.h"
#include "cli.h"

#include <stdlib.h>
#include <string.h>

typedef struct bounds { /* what this machine does at best; 0 = not measured for this device */
    double gflops, gbs;
} bounds;

typedef struct verdict {
    const char *by; /* what bounds the kernel: "compute", "memory", "latency"; "-" where the ceilings are not known */
    double ratio;   /* of the time at that ceiling to the measured one */
} verdict;

enum { FAR = 10 /* a kernel so many times slower than both ceilings allow waits for something else */ };

static verdict judge(const tn_profiled_kernel *k, bounds b) {
    if (!(b.gflops > 0 && b.gbs > 0 && k->median_us > 0)) return (verdict){ "-", 0 };
    double compute = (double)k->flops / b.gflops * 1e-3, memory = (double)(k->bytes_read + k->bytes_written) / b.gbs * 1e-3;
    double ratio = (compute > memory ? compute : memory) / k->median_us;
    return (verdict){ ratio * FAR < 1 ? "latency" : compute > memory ? "compute" : "memory", ratio };
}

static double per_us(double x, double us) { return us > 0 ? x / us * 1e-3 : 0; } /* in units of 1e9 a second */

static void print_table(const cli *c, const tn_profile *p, bounds b, const char *device) {
    tn_profile_summary s;
    tn_profiled_kernel k;
    tn_profile_get_summary(p, &s);
    printf("%s%4s %-24s %9s %6s %9s %8s %8s %8s  %s%s\n", cli_bold(c), "", "kernel", "us", "share", "best us", "KiB", "GB/s",
           "GFLOP/s", "bound by", cli_plain(c));
    for (int i = 0; i < s.kernels && !tn_profile_kernel(p, i, &k); i++) {
        verdict v = judge(&k, b);
        double bytes = (double)(k.bytes_read + k.bytes_written);
        printf("%4d %-24.24s %9.2f %5.1f%% %9.2f %8.1f %8.1f %8.1f  %s", i, k.name, k.median_us,
               s.kernels_us > 0 ? 100 * k.median_us / s.kernels_us : 0, k.best_us, bytes / 1024, per_us(bytes, k.median_us),
               per_us((double)k.flops, k.median_us), v.by);
        if (v.ratio > 0) printf(", %.0f%% of it", 100 * v.ratio);
        putchar('\n');
    }
    printf("\n%s: kernels %.2f us, a whole run %.2f us (medians of %d rounds)", device, s.kernels_us, s.run_us, s.rounds);
    if (b.gflops > 0) printf("; this machine: %.1f GFLOP/s, %.1f GB/s copy", b.gflops, b.gbs);
    putchar('\n');
}

static void print_json(const cli *c, const tn_profile *p, bounds b, const char *device) {
    tn_profile_summary s;
    tn_profiled_kernel k;
    tn_profile_get_summary(p, &s);
    json j = json_begin(stdout, "profile");
    json_text(&j, "graph", c->args[0]);
    json_text(&j, "device", device);
    json_int(&j, "rounds", s.rounds);
    json_number(&j, "run_us", s.run_us);
    json_number(&j, "kernels_us", s.kernels_us);
    json_number(&j, "peak_gflops", b.gflops);
    json_number(&j, "copy_gbs", b.gbs);
    json_array(&j, "kernels");
    for (int i = 0; i < s.kernels && !tn_profile_kernel(p, i, &k); i++) {
        verdict v = judge(&k, b);
        json_line(&j, NULL);
        json_int(&j, "kernel", i);
        json_text(&j, "name", k.name);
        json_bool(&j, "parallel", k.parallel);
        json_int(&j, "grid_blocks", k.grid_blocks);
        json_int(&j, "block_threads", k.block_threads);
        json_number(&j, "median_us", k.median_us);
        json_number(&j, "best_us", k.best_us);
        json_number(&j, "begin_us", k.begin_us);
        json_number(&j, "end_us", k.end_us);
        json_int(&j, "bytes_read", (int64_t)k.bytes_read);
        json_int(&j, "bytes_written", (int64_t)k.bytes_written);
        json_int(&j, "flops", (int64_t)k.flops);
        json_text(&j, "bound_by", v.by);
        json_number(&j, "bound_ratio", v.ratio);
        json_end(&j);
    }
    json_end(&j);
    json_finish(&j);
}

/* ---- trace: what Chrome's about:tracing and Perfetto read ---- */

enum { HOST = 1, DEVICE = 2, COPIES = 3, RUNS = 4, MAX_SPANS = 4096 };

static void name_track(json *j, int track, const char *name) {
    json_line(j, NULL);
    json_text(j, "ph", "M");
    json_text(j, "name", "thread_name");
    json_int(j, "pid", 1);
    json_int(j, "tid", track);
    json_line(j, "args");
    json_text(j, "name", name);
    json_end(j);
    json_end(j);
}

static void span(json *j, int track, const char *name, double begin_us, double us) {
    json_line(j, NULL);
    json_text(j, "ph", "X");
    json_text(j, "name", name);
    json_int(j, "pid", 1);
    json_int(j, "tid", track);
    json_number(j, "ts", begin_us);
    json_number(j, "dur", us);
}

/* Several steps in one call, each with inputs of its own: what the device copies while it runs. Nothing from devices that do
 * not tell. */
static int watch_steps(cli *c, tn_session *s, const ports *io, int64_t steps, tn_span *out) {
    tn_binding *rings = cli_alloc(sizeof(tn_binding) * ((size_t)io->n + 1));
    int n = 0, n_spans = 0;
    for (int i = 0; i < io->n; i++) {
        size_t bytes = io->value[i].bytes;
        if (io->kind[i] != 'i') continue;
        char *ring = cli_alloc(bytes * (size_t)steps + 1);
        for (size_t k = 0; k < (size_t)steps; k++) memcpy(ring + k * bytes, io->value[i].data, bytes);
        rings[n++] = (tn_binding){ io->name[i], ring };
    }
    tn_status code = tn_run_n_spans(s, steps, rings, n, steps, out, MAX_SPANS, &n_spans); /* once with all memory new .. */
    if (!code) code = tn_run_n_spans(s, steps, rings, n, steps, out, MAX_SPANS, &n_spans);
    if (code && code != TN_ERR_UNSUPPORTED) cli_need(c, code);
    for (int i = 0; i < n; i++) free(rings[i].data);
    free(rings);
    ports_bind(c, s, io);
    return n_spans;
}

static void write_spans(json *j, const tn_span *spans, int n, double at_us) {
    if (!n) return;
    name_track(j, COPIES, "copies");
    name_track(j, RUNS, "steps");
    for (int i = 0; i < n; i++) {
        int track = !strcmp(spans[i].what, "fill") ? HOST : !strcmp(spans[i].what, "run") ? RUNS : COPIES;
        span(j, track, spans[i].what, at_us + spans[i].begin_us, spans[i].end_us - spans[i].begin_us);
        json_line(j, "args");
        json_int(j, "bytes", (int64_t)spans[i].bytes);
        json_end(j);
        json_end(j);
    }
}

static void write_trace(const cli *c, const tn_profile *p, const tn_program_stats *compiled, const tn_span *spans, int n_spans,
                        const char *device, const char *path) {
    tn_profile_summary s;
    tn_profiled_kernel k;
    tn_profile_get_summary(p, &s);
    FILE *f = cli_create(c, path);
    double compile = compiled->compile_seconds * 1e6, build = compiled->build_seconds * 1e6;
    json j = json_begin(f, "profile");
    json_text(&j, "displayTimeUnit", "ns");
    json_array(&j, "traceEvents");
    name_track(&j, HOST, "host");
    name_track(&j, DEVICE, device);
    span(&j, HOST, "compile: graph, plan, kernels", 0, compile - build);
    json_end(&j);
    span(&j, HOST, "compile: code", compile - build, build);
    json_end(&j);
    span(&j, HOST, "run (median, with transfers)", compile, s.run_us);
    json_end(&j);
    for (int i = 0; i < s.kernels && !tn_profile_kernel(p, i, &k); i++) {
        span(&j, DEVICE, k.name, compile + k.begin_us, k.end_us - k.begin_us);
        json_line(&j, "args");
        json_int(&j, "kernel", i);
        json_int(&j, "bytes_read", (int64_t)k.bytes_read);
        json_int(&j, "bytes_written", (int64_t)k.bytes_written);
        json_int(&j, "flops", (int64_t)k.flops);
        json_end(&j);
        json_end(&j);
    }
    write_spans(&j, spans, n_spans, compile + s.run_us + (s.kernels ? k.end_us : 0));
    json_end(&j);
    json_finish(&j);
    cli_close(c, f, path);
    cli_note(c, "trace written to %s: open it in chrome://tracing or ui.perfetto.dev", path);
}

/* ---- the command ---- */

static bounds measure_bounds(const tn_compile_opts *o, int threads) {
    if (strcmp(o->device, "cpu")) return (bounds){ 0, 0 };
    ceiling m = ceiling_measure(threads);
    bounds b = { 0, 0 };
    for (int i = 0; i < m.n; i++)
        if (m.threads[i] == threads) b = (bounds){ m.peak[i], m.copy[i] };
    return b;
}

static int profile(cli *c) {
    uint64_t seed = (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX);
    double seconds = cli_number(c, "seconds", 1, 0, 1e6);
    const char *trace = cli_text(c, "trace", NULL);
    int64_t steps = cli_int(c, "steps", 8, 1, 1 << 20);
    if (!trace && cli_flag(c, "steps")) cli_usage(c, "--steps are those of --trace=FILE");
    tn_compile_opts o = cli_compile_opts(c);
    tn_graph *g = model_open(c, c->args[0], seed);
    tn_program *p;
    tn_session *s;
    tn_profile *report;
    tn_program_stats compiled;
    cli_need(c, tn_compile(g, &o, &p));
    cli_need(c, tn_session_new(p, &s));
    tn_program_get_stats(p, &compiled);
    ports io = ports_of(c, p, s);
    ports_fill(c, &io, g, seed);
    ports_bind(c, s, &io);
    bounds b = measure_bounds(&o, compiled.threads);
    cli_need(c, tn_session_profile(s, seconds, &report));
    if (c->json)
        print_json(c, report, b, o.device);
    else
        print_table(c, report, b, o.device);
    tn_span *spans = cli_alloc(MAX_SPANS * sizeof *spans);
    int n_spans = trace ? watch_steps(c, s, &io, steps, spans) : 0;
    if (trace) write_trace(c, report, &compiled, spans, n_spans, o.device, trace);
    free(spans);
    tn_profile_free(report);
    ports_free(&io);
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    return CLI_OK;
}

static const cli_option options[] = {
    { "seconds", 0, "N", "time to spend (default 1; at least five rounds)" },
    { "trace", 0, "FILE",
      "write the last round as a trace for chrome://tracing or Perfetto; with --device cuda also some steps in\n"
      "one call, with the copies beside them" },
    { "steps", 0, "N", "of them, each with inputs of its own (default 8)" },
    { "input", 'i', "NAME=SPEC",
      "an input, as for `tenon run`; those not given are random, numbers of rows of a table over all its rows" },
    { "seed", 's', "N", "of inputs that are not given and of builtin models (default 1)" },
    CLI_COMPILE_OPTIONS,
    { NULL, 0, NULL, NULL },
};

const cli_command command_profile = {
    "profile",
    "GRAPH",
    "measure where the time of a run goes, kernel by kernel",
    "Each kernel's time, its share, the bytes it must move and its arithmetic, against what this machine can do (measured in "
    "the\n"
    "same process, on the CPU): bound by compute or by memory, and how close; more than 100% of memory: it was in a cache;\n"
    "\"latency\" is slower than a tenth of both. `tenon explain` says what kernel N computes. A kernel on its own also pays "
    "for\n"
    "its clock and for starting threads: many small kernels take longer in the table than in a whole run.\n\n"
    "examples:\n"
    "  tenon profile @digits:32\n"
    "  tenon profile @digits-train:32 --mode loop --trace train.json\n"
    "  tenon profile net.tn --device opencl --json",
    1,
    1,
    options,
    profile,
};
