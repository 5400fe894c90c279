/* bench.h - what the benchmarks share: rivals, rows of results, plots, the rungs of ladders. Timing: cli/measure.h. */
#ifndef TENON_BENCH_BENCH_H
#define TENON_BENCH_BENCH_H

#include "cli/measure.h"

/* rivals.c: other programs that do the same work, each a child process limited to as many CPUs and stopped while it waits. */
enum { MAX_RIVALS = 8 };
extern const char *const rival_names[MAX_RIVALS + 1]; /* ends with NULL */
typedef struct rivals rivals;
rivals *rivals_open(cli *c, int threads); /* NULL unless --rivals */
/* For each rival that can do the work (and whose result is right): a case, and in which[] its place in rival_names. */
int rivals_prepare(rivals *r, const char *work, stats_case *out, int *which);
/* Limits this thread, and those that it starts, to the CPUs that the rivals may use; NULL is fine. */
void rivals_same_cpus(const rivals *r, bool on);
void rivals_forget(rivals *r);              /* all works prepared so far */
void rivals_json(json *j, const rivals *r); /* versions of those that are there, reasons of those that are not; NULL is fine */
void rivals_print(FILE *f, const rivals *r);
void rivals_close(rivals *r);

/* A row of a result; fields that do not apply are negative and left out. */
typedef struct bench_row {
    const char *work, *rung, *mode, *device;
    const char *cache;          /* of kernels: "on", or "off": compiled again inside the timer */
    const char *name, *variant; /* keys "case" and "variant" */
    const char *worst;          /* the argument with the largest error */
    int64_t inputs, fusion, depth, size, batch, threads, footprint, told_bytes, kernels, bytes_read, bytes_written;
    double median_us, p10_us, p90_us, best_us, compile_us, transfer_us, mallocs, gflops, peak_gflops, peak_ratio, best_ratio,
        gbs, bandwidth_gbs, bandwidth_ratio, best_bandwidth_ratio, roof_ratio, best_roof_ratio, latency_ns, told_ratio,
        max_abs_err, max_ulp, err_bound, ulp_bound, us_per_million, per_second, budget_us, budget_ratio, one_thread_ratio,
        quiet_ratio, one_session_ratio;
    double rival_us[MAX_RIVALS], rival_best_us[MAX_RIVALS], rival_ratio, rival_best_ratio; /* of rival_names */
    int samples;
} bench_row;
bench_row row_empty(void);
/* Times; with flops > 0 the rate and its ratio to the peak of the same rounds (peak may be {0}). */
void row_time(bench_row *r, const stats *s, double flops, rate peak);
/* The same for bytes moved and the bandwidth of the same rounds. */
void row_bandwidth(bench_row *r, const stats *s, double bytes, rate bandwidth);
/* Their times, and the fastest one's time over ours: above 1 we are faster. After row_time. */
void row_rivals(bench_row *r, const stats_case *cases, const int *which, int n);
void row_json(json *j, const bench_row *r);
/* max_abs_err and max_ulp of got (f32[n]) against want; false when a value is not finite. */
bool row_error(bench_row *r, const float *got, const double *want, int64_t n);
void rows_csv(cli *c, const char *path, const bench_row *rows, int n);
/* The whole answer: JSON on stdout, or a table; then --csv. note: how to read the rows, or NULL. */
void rows_report(cli *c, const char *command, const char *note, const ceiling *m, const rivals *rival, const bench_row *rows,
                 int n);
/* plot.c: log-log line plots as SVG, in panels below each other. */
enum { PLOT_PANELS = 2, PLOT_MARKS = 8 };
typedef struct plot_line {
    const char *label;
    const double *x, *y;
    int n;
} plot_line;
typedef struct plot_mark { /* a vertical line at x bytes; x <= 0: none */
    const char *label;
    double x;
    bool told; /* reported by the system, not measured */
} plot_mark;
typedef struct plot_panel {
    const char *y_label;
    const plot_line *line;
    int n;
} plot_panel;
typedef struct plot {
    const char *title, *note, *x_label; /* note: a line of small print below the title, or NULL */
    bool bytes;                         /* of the abscissa: powers of two, in KiB and MiB */
    plot_panel panel[PLOT_PANELS];
    const plot_mark *mark;
    int n_panels, n_marks;
} plot;
void plot_svg(cli *c, const char *path, const plot *p);

/* --svg (or --plot): in each panel one line for each distinct text `line_of` gives, over x_of, of y_of (a NULL line or y <= 0:
 * no point), and beside it one of the fastest rival. The second panel may have no line_of. */
typedef struct chart_panel {
    const char *y_label;
    const char *(*line_of)(const bench_row *r, char *buffer, size_t n_buffer);
    double (*y_of)(const bench_row *r);
} chart_panel;
typedef struct chart {
    const char *title, *note, *x_label;
    bool bytes;
    double (*x_of)(const bench_row *r);
    chart_panel panel[PLOT_PANELS];
    plot_mark mark[PLOT_MARKS];
    int n_marks;
} chart;
void rows_plot(cli *c, const chart *k, const bench_row *rows, int n);

/* product.c: y f64[m,n] += x f64[m,k] w f32[k,n]. */
void product_double(const double *x, const float *w, int64_t m, int64_t n, int64_t k, double *y);

/* ladder_rungs.c: the hand-written rungs. All matrices are row-major f32 and distinct; y may be x only where a rung works in
 * place.
 */
typedef struct ladder_problem {
    int64_t m, n, k; /* x f32[m,k], w f32[k,n], b f32[n], y f32[m,n]; relu and softmax have x f32[m,n] */
    const float *x, *w, *b;
    float *y;       /* the result of the last run is here, whatever the rung does */
    float *scratch; /* f32[m,n] */
} ladder_problem;
typedef struct ladder_rung {
    const char *name, *doc;
    void (*run)(ladder_problem *p); /* NULL: generated by Tenon */
} ladder_rung;
const ladder_rung *ladder_rungs(const char *work, int *out_n); /* NULL when there is no such ladder */
double ladder_flops(const char *work, const ladder_problem *p);
void ladder_reference(const char *work, const ladder_problem *p, double *y, double *bound);

int bench_modes(cli *c);
int bench_ladder(cli *c, const char *work);
int bench_device_ladder(cli *c, const char *work, const char *device);
int bench_gemm(cli *c);
int bench_conv(cli *c);
int bench_rows(cli *c);
int bench_train(cli *c);
int bench_compile(cli *c);
int bench_contention(cli *c);
int bench_memory(cli *c);
int bench_device_memory(cli *c);
int bench_exp(cli *c, const char *which);
int bench_ulp(cli *c);
int bench_sum(cli *c);
int bench_ir(cli *c);
int bench_model(cli *c);
int bench_models(cli *c);

#endif
