/* measure.h - timing: interleaved samples, ceilings of the machine, counted allocations. profile, tune and the benchmarks use
 * it. */
#ifndef TENON_CLI_MEASURE_H
#define TENON_CLI_MEASURE_H

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
double ceiling_of(probe_kind kind, int threads, size_t bytes); /* in units of 1e9 a second, over some 40 ms */
void ceiling_cpu(char *out, size_t n);                         /* the processor's name */
void ceiling_json(json *j, const ceiling *m);
void ceiling_print(FILE *f, const ceiling *m);

#endif
