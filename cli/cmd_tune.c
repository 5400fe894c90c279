/* cmd_tune.c - `tenon tune`: measures how the kernels of a graph are best cut on this machine, and keeps it. */
#include "cli.h"

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
           "choice");
    for (int i = 0; i < s->kernels && !tn_tuning_kernel(t, i, &k); i++)
        printf("%-28.28s %8d %10d %11.2f %11.2f %6.1f%%  %s\n", k.name, k.launches, k.candidates, k.before_us, k.after_us,
               k.after_us > 0 ? 100 * (k.before_us / k.after_us - 1) : 0, k.choice);
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
        json_text(&j, "choice", k.choice);
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

static int tune(cli *c) {
    tn_compile_opts o = cli_compile_opts(c);
    watcher w = { .shown = -1 };
    tn_tune_opts t = { .struct_size = sizeof t, .progress = watch, .progress_ud = &w };
    tn_tuning *report;
    tn_tuning_summary s;
    tn_cache_stats cache;
    t.seconds = cli_number(c, "seconds", 10, 0.01, 1e6);
    t.dry_run = cli_flag(c, "dry-run");
    tn_graph *g = model_open(c, c->args[0], (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX));
    w.line = progress_begin(c, "tune", 100);
    tn_status st = tn_tune(g, &o, &t, &report);
    progress_end(&w.line);
    cli_need(c, st);
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
    else if (!t.dry_run && s.changed)
        cli_note(c, "nothing kept: what is faster alone is slower together");
    tn_tuning_free(report);
    tn_graph_free(g);
    return CLI_OK;
}

static const cli_option options[] = {
    { "seconds", 's', "N", "time to spend (default 10)" },
    { "dry-run", 'n', NULL, "measure, but keep nothing" },
    { "seed", 0, "N", "of builtin models (default 1)" },
    CLI_COMPILE_OPTIONS,
    { NULL, 0, NULL, NULL },
};

const cli_command command_tune = {
    "tune",
    "GRAPH",
    "measure how the graph's kernels run fastest here, and keep it for later programs",
    "A model of the machine chooses tiles, panels, stretches, unrolling and threads. This command measures other choices, "
    "kernel by\n"
    "kernel, those that take longest first, and writes what is faster to tuning.txt beside the kernel cache: all programs that "
    "have\n"
    "such a kernel use it from then on. Results have the same bits whatever is chosen. Use it on an idle machine.\n\n"
    "examples:\n"
    "  tenon tune @mlp:64x256 --seconds=20 --threads=1\n"
    "  tenon tune net.tn --dry-run\n"
    "  tenon cache prune --tuning        forget all of it",
    1,
    1,
    options,
    tune,
};
