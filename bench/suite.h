/* suite.h - benchmarks whose cases are graphs: compiled, checked, timed in turns with ceilings and rivals, reported. */
#ifndef TENON_CLI_SUITE_H
#define TENON_CLI_SUITE_H

#include "bench.h"

enum { SUITE_MAX_CASES = 16, SUITE_MAX_PORTS = 8, SUITE_MAX_THREADS = 4 };

/* What an output, or a state after one run, must be: |got - want| <= bound for every element. */
typedef struct expected {
    const char *name;
    double *want, *bound; /* freed by the suite */
    int64_t n;
    bool state, bf16; /* bf16: of that dtype, else f32 */
} expected;

/* One line of the report. The caller fills in the first part; the suite owns the rest and frees graph, inputs and rival. */
typedef struct bench_case {
    bench_row row; /* names and sizes */
    tn_graph *graph;
    tn_mode mode;
    /* Instead of a graph: a plain loop of one thread from data[] to out, f32 (out_count elements; the only expected output). */
    void (*plain)(const struct bench_case *k, float *out);
    int64_t out_count;
    const char *input[SUITE_MAX_PORTS]; /* names, NULL at the end, and f32 or i32 data (buffer_new) */
    void *data[SUITE_MAX_PORTS];
    double flops;         /* of one run, as one would count by hand */
    probe_kind peak;      /* what does as many at the machine's best; 0: PROBE_FMA. The same for all cases of a suite_run */
    double bytes;         /* that one run must move at least; 0 = memory does not matter */
    double passes;        /* so many times over; 0 = once */
    probe_kind bandwidth; /* what moves them at the machine's best, over as many bytes */
    bool by_hand;         /* its program runs as --schedule says */
    bool fresh;           /* runs change the state: checks start from the first state again */
    /* Called once, with a session in its first state: fills in want[0 .. return value). */
    int (*expect)(cli *c, struct bench_case *k, tn_session *s, expected *want);
    const void *ud;
    char *rival; /* the work as bench/rivals understands it, or NULL */

    expected want[64];
    int n_want;
    tn_program *program;
    tn_session *session;
    const char *device; /* of the suite */
    void *slot_data[SUITE_MAX_PORTS * 4];
    int n_slots;
    void **first_state; /* values of every state before the first run */
    cli *c;
} bench_case;

typedef struct suite {
    cli *c;
    const char *device; /* NULL: the CPU */
    const char *command;
    const char *note; /* how to read the rows, or NULL */
    ceiling m;
    int64_t threads[SUITE_MAX_THREADS];
    int n_threads;
    double seconds;
    uint64_t seed;
    char *filter[32];
    bool met[32]; /* that word was part of a name */
    int n_filter;
    int by_hand;       /* programs that run as --schedule says */
    char *passed_over; /* names without any of the words, in one list; NULL = none */
    bench_row *rows;
    int n_rows, cap;
    char **texts; /* of suite_text */
    int n_texts;
    rivals *rivals[SUITE_MAX_THREADS];
} suite;

/* suite_device.c: what is different on a device with memory of its own. Times are of steps in one call of loop mode, less what
 * a call with one step takes: so the transfers of inputs and outputs are not in them. */
double device_seconds(cli *c, tn_session *s, const tn_binding *ring, int n, int64_t times);
/* The device's bandwidth, by negating an array: as many bytes read and written in all. */
typedef struct device_copy {
    cli *c;
    tn_graph *graph;
    tn_program *program;
    tn_session *session;
    float *x, *y;
    double bytes;
} device_copy;
device_copy *device_copy_new(cli *c, const char *device, double bytes);
void device_copy_free(device_copy *p);
stats_case device_copy_case(device_copy *p); /* a companion */

/* device_compile.c: rows of compiling for s->device. */
void bench_device_compile(suite *s);
/* transfer.c: rows of transfers between host and s->device, `bytes` at a time. */
void bench_transfers(suite *s, int64_t bytes);

/* Reads --threads, --seconds, --seed, --cases, --rivals and measures the machine. */
suite suite_begin(cli *c, const char *command);
/* A text that lives as long as the suite, for names in rows. */
const char *suite_text(suite *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
rivals *suite_rivals(suite *s, int which);    /* for threads[which], started at the first call; NULL unless --rivals */
bool suite_wants(suite *s, const char *name); /* --cases: some word of it is part of the name */
bench_case case_new(suite *s, const char *work, const char *name, const char *variant); /* with an empty graph */
void case_input(bench_case *k, const char *name, void *data);
float *case_floats(int64_t n, double scale, uint64_t *seed); /* uniform in +-scale; a buffer */
/* Measures the cases in turns, for each number of threads, and frees them. */
void suite_run(suite *s, bench_case *cases, int n);
/* stats_measure for cases that are no graphs, with a line of progress. */
void suite_measure(suite *s, const char *label, stats_case *cases, int n, double seconds);
void suite_add(suite *s, bench_row row);
/* Prints, writes --csv; rows stay valid until suite_end. */
void suite_report(suite *s);
void suite_end(suite *s);

/* Rounds n values of x to bf16 in place; returns them as such, to be freed with buffer_free. */
uint16_t *case_bf16(float *x, int64_t n);
double *case_array(int64_t n); /* of expected */
/* An expected output; arrays to be filled in by the caller. */
void expect_output(expected *w, const char *name, int64_t n);
/* expect: everything from the reference evaluator; tolerance is relative to the largest element of each array. */
int expect_evaluated(cli *c, bench_case *k, double tolerance, expected *want);

#endif
