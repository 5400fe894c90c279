/* bytes.c - `tenon bench bytes`: bytes that the cost model says come from each memory level, against a simulation of the caches
 * that is given every access of the kernel (inside_replay), over kernels of random graphs; how many agree within a tenth. */
#include "bench.h"
#include "bench/inside/inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct bytes_row {
    char graph[32], kernel[48];
    inside_bytes b;
} bytes_row;

enum { LAST_CACHE = 4 << 20, LEAST = 64 << 10 /* bytes that memory gives: of less, a few lines are a tenth */ };

static bool is_near(double predicted, double counted) { return fabs(predicted - counted) <= 0.1 * counted; }

/* Kernels of one graph for which memory has something to give. Returns how many there are then. */
static int add_graph(cli *c, tn_graph *g, const char *name, int64_t last_cache, bytes_row *rows, int n, int most) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    o.threads = 1;
    cli_need(c, tn_compile(g, &o, &p));
    tn_program_stats about;
    tn_program_get_stats(p, &about);
    for (int i = 0; i < about.kernels && n < most; i++) {
        bytes_row *x = &rows[n];
        tn_status code = inside_replay(p, i, last_cache, &x->b);
        if (code && code != TN_ERR_UNSUPPORTED) cli_need(c, code);
        if (code || x->b.repeats || x->b.cold_counted < LEAST) continue;
        snprintf(x->graph, sizeof x->graph, "%s", name), snprintf(x->kernel, sizeof x->kernel, "%s", x->b.name);
        n++;
    }
    tn_program_free(p);
    tn_graph_free(g);
    return n;
}

static void report(cli *c, const bytes_row *rows, int n, int64_t last_cache) {
    static const char *const levels[] = { "touched", "into_l1", "into_l2", "memory" };
    int within[4] = { 0 }, cold = 0;
    for (int i = 0; i < n; i++) {
        for (int l = 0; l < 4; l++) within[l] += is_near(rows[i].b.predicted[l], rows[i].b.counted[l]);
        cold += is_near(rows[i].b.cold_predicted, rows[i].b.cold_counted);
    }
    if (c->json) {
        json j = json_begin(stdout, "bench bytes");
        json_int(&j, "l3_bytes", last_cache);
        json_array(&j, "rows");
        for (int i = 0; i < n; i++) {
            json_line(&j, NULL);
            json_text(&j, "graph", rows[i].graph), json_text(&j, "kernel", rows[i].kernel);
            for (int l = 0; l < 4; l++) {
                char key[32];
                snprintf(key, sizeof key, "%s_predicted", levels[l]), json_number(&j, key, rows[i].b.predicted[l]);
                snprintf(key, sizeof key, "%s_counted", levels[l]), json_number(&j, key, rows[i].b.counted[l]);
            }
            json_number(&j, "cold_predicted", rows[i].b.cold_predicted),
                json_number(&j, "cold_counted", rows[i].b.cold_counted);
            json_end(&j);
        }
        json_end(&j);
        json_line(&j, "within_a_tenth");
        json_int(&j, "kernels", n);
        for (int l = 0; l < 4; l++) json_int(&j, levels[l], within[l]);
        json_int(&j, "memory_cold", cold);
        json_end(&j);
        json_finish(&j);
        return;
    }
    printf("%-16s %-20s %10s %10s  %10s %10s %6s  %10s %10s %6s   KiB, last cache %lld KiB\n", "graph", "kernel", "into L2",
           "counted", "memory", "counted", "ratio", "cold", "counted", "ratio", (long long)last_cache / 1024);
    for (int i = 0; i < n; i++) {
        const inside_bytes *b = &rows[i].b;
        printf("%-16.16s %-20.20s %10.1f %10.1f  %10.1f %10.1f %6.3f  %10.1f %10.1f %6.3f\n", rows[i].graph, rows[i].kernel,
               b->predicted[2] / 1024, b->counted[2] / 1024, b->predicted[3] / 1024, b->counted[3] / 1024,
               b->counted[3] > 0 ? b->predicted[3] / b->counted[3] : 1, b->cold_predicted / 1024, b->cold_counted / 1024,
               b->cold_predicted / b->cold_counted);
    }
    printf("within a tenth, of %d kernels: touched %d, into L1 %d, into L2 %d, from memory %d (%.0f%%), with cold caches %d "
           "(%.0f%%)\n",
           n, within[0], within[1], within[2], within[3], n ? 100.0 * within[3] / n : 0, cold, n ? 100.0 * cold / n : 0);
}

int bench_bytes(cli *c) {
    int64_t samples = cli_int(c, "samples", 60, 1, 1 << 16), last_cache = LAST_CACHE;
    uint64_t seed = (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX);
    bytes_row *rows = cli_alloc(sizeof *rows * (size_t)samples);
    int n = 0;
    for (uint64_t i = 0; n < samples && i < 100 * (uint64_t)samples; i++) {
        char name[32];
        snprintf(name, sizeof name, "random %llu", (unsigned long long)(seed * 1000 + i));
        n = add_graph(c, model_random_graph(c, 1, seed * 1000 + i), name, last_cache, rows, n, (int)samples);
    }
    report(c, rows, n, last_cache);
    free(rows);
    return CLI_OK;
}
