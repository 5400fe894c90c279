/* bench.h - the measuring half of the program: interleaved timing, ceilings of the machine, counted allocations, plots. */
#ifndef TENON_CLI_BENCH_H
#define TENON_CLI_BENCH_H

#include "cli.h"

/* stats.c: times several variants of the same work in turns (A B C A B C ...), so that a drifting clock hits all alike. */
typedef struct stats {
    double median, p10, p90, best; /* seconds of one run */
    double mallocs;                /* allocations a timed run, over all threads */
    int samples;
    int64_t runs; /* timed runs in all */
} stats;
typedef struct stats_case {
    void (*run)(void *ud, int64_t times);     /* the work, `times` times over; nothing else is inside the timer */
    double (*clock)(void *ud, int64_t times); /* instead of run: returns the seconds itself (threads, another process) */
    void *ud;
    const char *label;
    int64_t least;  /* runs of a sample, where fewer are another thing; 0: 1 */
    bool slow;      /* a run takes seconds: no warm-up, and as few samples as give a spread */
    bool failed;    /* clock returned less than 0: it leaves the rounds, and what it gave so far does not count */
    bool companion; /* a ceiling: sampled in every round, but not what the rounds are made for */
    stats result;
    /* owned by stats_measure */
    int64_t times;
    double *sample, spent, once; /* once: about the seconds of a run */
    int64_t allocations;
} stats_case;
/* Each case is warmed up, then all are sampled in rounds until they have used `seconds` each on average (5 rounds, fewer where
 * that is much too long; a slow one leaves the rounds when it has used its own). bar may be NULL. */
void stats_measure(stats_case *cases, int n, double seconds, progress *bar);
/* What a ceiling did in those rounds: work a second, in units of 1e9. */
typedef struct rate {
    double median, best;
} rate;
rate stats_rate(const stats *s, double work);

/* mallocs.c */
int64_t mallocs_count(void); /* calls of malloc, calloc, realloc, aligned_alloc, ... of this process so far */
const char *mallocs_method(void);

/* probe.c: loops of known cost, for ceilings. PROBE_FMA, _BF16, _I8: multiply-adds of f32; of bf16 and of bytes, by the fastest
 * instructions that the processor has for them. */
typedef enum {
    PROBE_NONE,
    PROBE_FMA,
    PROBE_BF16,
    PROBE_I8,
    PROBE_READ,
    PROBE_WRITE,
    PROBE_STREAM,
    PROBE_COPY,
    PROBE_CHASE
} probe_kind;
typedef struct probe probe;
/* bytes: the footprint of all threads together, source and destination (nothing for multiply-adds). */
probe *probe_new(probe_kind kind, int threads, size_t bytes);
void probe_free(probe *p);
double probe_work(const probe *p); /* of one run: flops; bytes moved (a copy reads and writes); loads of a chase */
double probe_clock(void *ud, int64_t times);
stats_case probe_case(probe *p, const char *label); /* a companion */
const char *probe_isa(void);
/* Zeroed pages whose data starts at another line of a page each time; big ones in huge pages where the system gives them. */
void *buffer_new(size_t n);
void buffer_free(void *p);

/* ceiling.c: what this machine can do, measured now. */
typedef struct ceiling {
    const char *device; /* that the rows were measured on, when it is not the CPU; else NULL */
    char cpu[128];
    const char *isa; /* "avx512", "avx2", "sse2", "neon", "generic": the widest this machine has */
    int cores;       /* CPUs that this process may use */
    int n;           /* entries below */
    int threads[3];  /* 1, 2 and the count asked for */
    double peak[3];  /* f32 GFLOP/s of fused multiply-adds (2 each) */
    double copy[3];  /* GB/s of memcpy between buffers beyond the caches, read plus written */
} ceiling;
ceiling ceiling_measure(int threads);
void ceiling_json(json *j, const ceiling *m);
void ceiling_print(FILE *f, const ceiling *m);

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

/* ladder.c: the hand-written rungs. All matrices are row-major f32 and distinct; y may be x only where a rung works in place.
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

#endif
