/* cmd_tune.c - `tenon tune`: searches for faster schedules of a graph's kernels on this machine, and keeps them. */
#include "measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct watcher {
    progress line;
    int shown;
} watcher;

static int watch(void *ud, double done, const char *kernel) {
    watcher *w = ud;
    int at = (int)(done * 100);
    if (at != w->shown) progress_step(&w->line, at, kernel);
    w->shown = at;
    return 0;
}

static void print_table(const tn_tuning *t, const tn_tuning_summary *s) {
    tn_tuned_kernel k;
    printf("%-28s %8s %10s %11s %11s %7s  %s\n", "kernel", "launches", "candidates", "before us", "after us", "faster",
           "schedule");
    for (int i = 0; i < s->kernels && !tn_tuning_kernel(t, i, &k); i++)
        printf("%-28.28s %8d %10d %11.2f %11.2f %6.1f%%  %s\n", k.name, k.launches, k.candidates, k.before_us, k.after_us,
               k.after_us > 0 ? 100 * (k.before_us / k.after_us - 1) : 0, k.schedule);
    printf("\nwhole run: %.2f us before, %.2f us after; %d of %d kernels changed in %.1f s\n", s->before_us, s->after_us,
           s->changed, s->kernels, s->seconds);
}

static void print_json(const cli *c, const tn_tuning *t, const tn_tuning_summary *s, const tn_cache_stats *cache) {
    tn_tuned_kernel k;
    json j = json_begin(stdout, "tune");
    json_text(&j, "graph", c->args[0]);
    json_array(&j, "kernels");
    for (int i = 0; i < s->kernels && !tn_tuning_kernel(t, i, &k); i++) {
        json_line(&j, NULL);
        json_text(&j, "name", k.name);
        json_int(&j, "launches", k.launches);
        json_int(&j, "candidates", k.candidates);
        json_number(&j, "before_us", k.before_us);
        json_number(&j, "after_us", k.after_us);
        json_bool(&j, "changed", k.changed);
        json_text(&j, "schedule", k.schedule);
        json_end(&j);
    }
    json_end(&j);
    json_number(&j, "before_us", s->before_us);
    json_number(&j, "after_us", s->after_us);
    json_int(&j, "changed", s->changed);
    json_bool(&j, "kept", s->kept);
    json_number(&j, "seconds", s->seconds);
    json_text(&j, "dir", cache->dir);
    json_int(&j, "database", (int64_t)cache->tuned);
    json_finish(&j);
}

static tn_tuning *tune_graph(cli *c, tn_graph *g, const char *what, double seconds) {
    tn_compile_opts o = cli_compile_opts(c);
    watcher w = { .shown = -1 };
    tn_tune_opts t = { .struct_size = sizeof t, .progress = watch, .progress_ud = &w };
    tn_tuning *report;
    t.seconds = seconds;
    t.dry_run = cli_flag(c, "dry-run");
    w.line = progress_begin(c, what, 100);
    tn_status st = tn_tune(g, &o, &t, &report);
    progress_end(&w.line);
    cli_need(c, st);
    return report;
}

/* ---- the sweep: every layout, every way to do each kernel ---- */

enum { MAX_LAYOUTS = 12 };

typedef struct swept { /* one layout */
    model_layout layout;
    tn_graph *graph;
    tn_tuning *report;
    tn_tuning_summary summary;
    double flops, us; /* of a run, as counted there; of what it takes */
} swept;

typedef struct sweeper {
    cli *c;
    swept at[MAX_LAYOUTS];
    int n, fastest;
    double flops; /* of the work as it was given: padding is no work */
    double peak;  /* flops a second of as many threads, the best seen between the layouts; 0 on devices */
    bool device;
    probe *fma;
} sweeper;

static void sample_peak(sweeper *w) {
    for (int i = 0; i < 5 && w->fma; i++) w->peak = fmax(w->peak, probe_work(w->fma) * 20 / probe_clock(w->fma, 20));
}

/* On devices a run has transfers in it: there kernels count alone. */
static void measure_layout(sweeper *w, swept *x, double seconds) {
    tn_tuned_kernel k;
    x->graph = model_open(w->c, x->layout.spec, (uint64_t)cli_int(w->c, "seed", 1, 0, INT64_MAX));
    sample_peak(w);
    x->report = tune_graph(w->c, x->graph, x->layout.name, seconds);
    sample_peak(w);
    tn_tuning_get_summary(x->report, &x->summary);
    for (int i = 0; i < x->summary.kernels && !tn_tuning_kernel(x->report, i, &k); i++) {
        x->flops += k.launches * k.flops;
        tn_tuned_variant best = { .us = 0 };
        if (!tn_tuning_variant(x->report, i, 0, &best)) x->us += k.launches * best.us;
    }
    if (!w->device) x->us = x->summary.after_us;
}

static double useful_gflops(const sweeper *w, const swept *x, double flops, double us) {
    return us > 0 && x->flops > 0 ? flops * w->flops / x->flops / us * 1e-3 : 0;
}

static const char *mark(const tn_tuned_variant *y, int i) {
    return y->model   ? (i ? "model" : "model, fastest")
           : i        ? (y->taken ? "taken" : "")
           : y->taken ? "fastest, taken"
                      : "fastest";
}

static void print_sweep(const sweeper *w) {
    for (int l = 0; l < w->n; l++) {
        const swept *x = &w->at[l];
        tn_tuned_kernel k;
        printf("%s%s%s: %s\n", cli_bold(w->c), x->layout.name, cli_plain(w->c), x->layout.spec);
        for (int i = 0; i < x->summary.kernels && !tn_tuning_kernel(x->report, i, &k); i++) {
            tn_tuned_variant y;
            printf("  kernel %s, %d launch%s: %d way%s\n  %10s %10s %7s  %-15s %-44s %s\n", k.name, k.launches,
                   k.launches == 1 ? "" : "es", k.candidates + 1, k.candidates ? "s" : "", "us", "GFLOP/s", "of peak", "",
                   "schedule", "makes");
            for (int j = 0; j <= k.candidates && !tn_tuning_variant(x->report, i, j, &y); j++) {
                double gflops = useful_gflops(w, x, k.flops, y.us);
                char share[16] = "";
                if (w->peak > 0) snprintf(share, sizeof share, "%.1f%%", 100 * gflops * 1e9 / w->peak);
                printf("  %10.2f %10.2f %7s  %-15s %-44s %s\n", y.us, gflops, share, mark(&y, j), y.schedule, y.form);
            }
        }
    }
    printf("\n%-28s %10s %10s %7s\n", "layout", "us a run", "GFLOP/s", "of peak");
    for (int l = 0; l < w->n; l++) {
        const swept *x = &w->at[l];
        double gflops = useful_gflops(w, x, x->flops, x->us);
        char share[16] = "";
        if (w->peak > 0) snprintf(share, sizeof share, "%.1f%%", 100 * gflops * 1e9 / w->peak);
        printf("%-28s %10.2f %10.2f %7s%s\n", x->layout.name, x->us, gflops, share, l == w->fastest ? "  fastest" : "");
    }
    if (w->peak > 0) printf("peak of multiply-adds, measured in between: %.1f GFLOP/s\n", w->peak * 1e-9);
}

static void json_sweep(const sweeper *w) {
    json j = json_begin(stdout, "tune --sweep");
    json_text(&j, "graph", w->c->args[0]);
    if (w->peak > 0) json_number(&j, "peak_gflops", w->peak * 1e-9);
    json_array(&j, "layouts");
    for (int l = 0; l < w->n; l++) {
        const swept *x = &w->at[l];
        tn_tuned_kernel k;
        double gflops = useful_gflops(w, x, x->flops, x->us);
        json_object(&j, NULL);
        json_text(&j, "name", x->layout.name);
        json_text(&j, "graph", x->layout.spec);
        json_number(&j, "us", x->us);
        json_number(&j, "gflops", gflops);
        if (w->peak > 0) json_number(&j, "peak_ratio", gflops * 1e9 / w->peak);
        json_bool(&j, "fastest", l == w->fastest);
        json_array(&j, "kernels");
        for (int i = 0; i < x->summary.kernels && !tn_tuning_kernel(x->report, i, &k); i++) {
            tn_tuned_variant y;
            json_object(&j, NULL);
            json_text(&j, "name", k.name);
            json_int(&j, "launches", k.launches);
            json_array(&j, "ways");
            for (int n = 0; n <= k.candidates && !tn_tuning_variant(x->report, i, n, &y); n++) {
                gflops = useful_gflops(w, x, k.flops, y.us);
                json_line(&j, NULL);
                json_text(&j, "schedule", y.schedule);
                json_text(&j, "makes", y.form);
                json_number(&j, "us", y.us);
                json_number(&j, "gflops", gflops);
                if (w->peak > 0) json_number(&j, "peak_ratio", gflops * 1e9 / w->peak);
                json_bool(&j, "model", y.model);
                json_bool(&j, "taken", y.taken);
                json_end(&j);
            }
            json_end(&j);
            json_end(&j);
        }
        json_end(&j);
        json_end(&j);
    }
    json_end(&j);
    json_finish(&j);
}

static void csv_sweep(const sweeper *w, const char *path) {
    FILE *f = cli_create(w->c, path);
    fprintf(f, "layout,graph,kernel,schedule,makes,us,gflops,peak_ratio,model,taken\n");
    for (int l = 0; l < w->n; l++) {
        const swept *x = &w->at[l];
        tn_tuned_kernel k;
        for (int i = 0; i < x->summary.kernels && !tn_tuning_kernel(x->report, i, &k); i++) {
            tn_tuned_variant y;
            for (int n = 0; n <= k.candidates && !tn_tuning_variant(x->report, i, n, &y); n++) {
                double gflops = useful_gflops(w, x, k.flops, y.us);
                fprintf(f, "%s,%s,%s,\"%s\",\"%s\",%.4g,%.6g,", x->layout.name, x->layout.spec, k.name, y.schedule, y.form,
                        y.us, gflops);
                if (w->peak > 0) fprintf(f, "%.4f", gflops * 1e9 / w->peak);
                fprintf(f, ",%d,%d\n", y.model, y.taken);
            }
        }
    }
    cli_close(w->c, f, path);
}

/* Threads that programs of this command line have. */
static int threads_of(cli *c, tn_graph *g) {
    tn_compile_opts o = cli_compile_opts(c);
    tn_program *p;
    tn_program_stats s;
    cli_need(c, tn_compile(g, &o, &p));
    tn_program_get_stats(p, &s);
    tn_program_free(p);
    return s.threads;
}

static int sweep(cli *c) {
    model_layout layouts[MAX_LAYOUTS];
    sweeper w = { .c = c, .device = strcmp(cli_device(c), "cpu") != 0 };
    w.n = model_layouts(c, c->args[0], layouts, MAX_LAYOUTS);
    double seconds = cli_number(c, "seconds", 10, 0.01, 1e6) / w.n;
    if (!w.device) {
        tn_graph *g = model_open(c, c->args[0], 1);
        w.fma = probe_new(PROBE_FMA, threads_of(c, g), 0);
        tn_graph_free(g);
    }
    for (int l = 0; l < w.n; l++) {
        w.at[l].layout = layouts[l];
        measure_layout(&w, &w.at[l], seconds);
        if (w.at[l].us > 0 && w.at[l].us < w.at[w.fastest].us) w.fastest = l;
    }
    w.flops = w.at[0].flops;
    const char *csv = cli_text(c, "csv", NULL);
    if (csv) csv_sweep(&w, csv);
    if (c->json)
        json_sweep(&w);
    else
        print_sweep(&w);
    for (int l = 0; l < w.n; l++) tn_tuning_free(w.at[l].report), tn_graph_free(w.at[l].graph);
    probe_free(w.fma);
    return CLI_OK;
}

static int tune(cli *c) {
    tn_tuning_summary s;
    tn_cache_stats cache;
    if (cli_flag(c, "sweep")) return sweep(c);
    tn_graph *g = model_open(c, c->args[0], (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX));
    tn_graph *at = model_sized(c, g);
    tn_tuning *report = tune_graph(c, at, "tune", cli_number(c, "seconds", 10, 0.01, 1e6));
    cli_need(c, tn_cache_get_stats(c->ctx, &cache));
    tn_tuning_get_summary(report, &s);
    if (c->json)
        print_json(c, report, &s, &cache);
    else
        print_table(report, &s);
    if (s.kept && !cache.dir)
        cli_note(c, "there is no cache directory (TENON_CACHE_DIR): what was found is forgotten");
    else if (s.kept)
        cli_note(c, "kept in %s (%llu kernels): later programs use it", cache.dir, (unsigned long long)cache.tuned);
    else if (!cli_flag(c, "dry-run") && s.changed)
        cli_note(c, "nothing kept: what is faster alone is slower together");
    tn_tuning_free(report);
    if (at != g) tn_graph_free(at);
    tn_graph_free(g);
    return CLI_OK;
}

static const cli_option options[] = {
    { "seconds", 's', "N", "time to spend (default 10)" },
    { "sweep", 0, NULL, "show everything that was measured; models with layouts in every one of them" },
    { "csv", 0, "FILE", "with --sweep: write that as CSV too" },
    { "dry-run", 'n', NULL, "measure, but keep nothing" },
    { "seed", 0, "N", "of builtin models (default 1)" },
    CLI_COMPILE_OPTIONS,
    { NULL, 0, NULL, NULL },
};

const cli_command command_tune = {
    "tune",
    "GRAPH",
    "measure how the graph's kernels run fastest here, and keep it for later programs",
    "Recipes choose tiles, panels, K blocks, unrolling and threads, as a schedule (emit --target=schedule). This command "
    "measures "
    "others,\n"
    "kernel by kernel, those that take longest first, and writes what is faster to tuning.txt beside the kernel cache: all "
    "programs that\n"
    "have such a kernel use it from then on. Results have the same bits whatever is kept. Use it on an idle machine.\n\n"
    "With --sweep every schedule is a line: its time and what the kernel is like then. Models @product, @linear, @matmul and "
    "@conv1d\n"
    "are swept in several layouts: operands as given and as their transposes, sizes padded to multiples of a block. GFLOP/s "
    "count\n"
    "the work as given. With --device the device times the kernels; there, choices are tiles of contractions.\n\n"
    "examples:\n"
    "  tenon tune @mlp:64x256 --seconds=20 --threads=1\n"
    "  tenon tune net.tn --dry-run\n"
    "  tenon tune @product:400x540x320 --sweep --csv sweep.csv\n"
    "  tenon cache prune --tuning        forget all of it",
    1,
    1,
    options,
    tune,
};
