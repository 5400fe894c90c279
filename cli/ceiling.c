/* ceiling.c - the machine's ceilings, measured in the process that quotes them: multiply-add rate and copy bandwidth.
 *
 * The multiply-adds are single instructions in inline assembly on x86 (so that the compiler can neither remove nor rearrange
 * them), on 20 or 12 independent accumulators: more than latency times rate of any current core. Other machines use GNU
 * vectors. */
#include "bench.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Each function does `n` rounds and returns the flops of one round. */
typedef double (*fma_fn)(int64_t n);

#if defined(__x86_64__)
typedef float v8 __attribute__((vector_size(32)));
typedef float v16 __attribute__((vector_size(64)));
#define FMA(a) __asm__ volatile("vfmadd231ps %1, %2, %0" : "+v"(a) : "v"(x), "v"(y))
#define FMA4(a, b, c, d)                                                                                                       \
    FMA(a);                                                                                                                    \
    FMA(b);                                                                                                                    \
    FMA(c);                                                                                                                    \
    FMA(d)

__attribute__((target("avx512f"), noinline)) static double fma_avx512(int64_t n) {
    v16 x = { 0 }, y = { 0 }, a0 = { 0 }, a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0, a8 = a0, a9 = a0;
    v16 b0 = a0, b1 = a0, b2 = a0, b3 = a0, b4 = a0, b5 = a0, b6 = a0, b7 = a0, b8 = a0, b9 = a0;
    for (int64_t i = 0; i < n; i++) {
        FMA4(a0, a1, a2, a3);
        FMA4(a4, a5, a6, a7);
        FMA4(a8, a9, b0, b1);
        FMA4(b2, b3, b4, b5);
        FMA4(b6, b7, b8, b9);
    }
    return 20 * 16 * 2;
}
__attribute__((target("avx2,fma"), noinline)) static double fma_avx2(int64_t n) {
    v8 x = { 0 }, y = { 0 }, a0 = { 0 }, a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0, a8 = a0, a9 = a0,
       b0 = a0, b1 = a0;
    for (int64_t i = 0; i < n; i++) {
        FMA4(a0, a1, a2, a3);
        FMA4(a4, a5, a6, a7);
        FMA4(a8, a9, b0, b1);
    }
    return 12 * 8 * 2;
}
#endif

typedef float v4 __attribute__((vector_size(16)));
#if defined(__x86_64__)
#define KEEP(a) __asm__ volatile("" : "+x"(a))
#elif defined(__aarch64__)
#define KEEP(a) __asm__ volatile("" : "+w"(a))
#else
#define KEEP(a) __asm__ volatile("" : "+m"(a))
#endif
/* x * a + y: one instruction where the baseline has fused multiply-add, two where not; two flops either way. */
#define STEP(a)                                                                                                                \
    (a) = (a)*x + y;                                                                                                           \
    KEEP(a)
__attribute__((noinline)) static double fma_baseline(int64_t n) {
    v4 x = { 0 }, y = { 0 }, a0 = { 0 }, a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0, a8 = a0, a9 = a0,
       b0 = a0, b1 = a0;
    KEEP(x);
    KEEP(y);
    for (int64_t i = 0; i < n; i++) {
        STEP(a0);
        STEP(a1);
        STEP(a2);
        STEP(a3);
        STEP(a4);
        STEP(a5);
        STEP(a6);
        STEP(a7);
        STEP(a8);
        STEP(a9);
        STEP(b0);
        STEP(b1);
    }
    return 12 * 4 * 2;
}

static fma_fn pick(const char **out_isa) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return *out_isa = "avx512", fma_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return *out_isa = "avx2", fma_avx2;
    *out_isa = "sse2";
#elif defined(__aarch64__)
    *out_isa = "neon";
#else
    *out_isa = "generic";
#endif
    return fma_baseline;
}

typedef struct job {
    pthread_t thread;
    pthread_barrier_t *barrier;
    fma_fn fma;
    int64_t n;
    char *dst, *src; /* NULL = multiply-adds */
    size_t bytes;
    double start, stop;
} job;

static void *work(void *ud) {
    job *j = ud;
    pthread_barrier_wait(j->barrier);
    j->start = cli_seconds();
    if (j->dst) {
        for (int64_t i = 0; i < j->n; i++) {
            memcpy(j->dst, j->src, j->bytes);
            __asm__ volatile("" ::: "memory"); /* every copy happens */
        }
    } else
        j->fma(j->n);
    j->stop = cli_seconds();
    return NULL;
}

/* Wall time from the first start to the last stop. */
static double run_jobs(job *jobs, int n) {
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)n);
    int started = 1;
    for (int i = 0; i < n; i++) jobs[i].barrier = &barrier;
    for (int i = 1; i < n; i++) {
        if (pthread_create(&jobs[i].thread, NULL, work, &jobs[i])) break;
        started++;
    }
    if (started < n) { /* those that did start wait at a barrier that never opens: give up */
        fprintf(stderr, "tenon: error: cannot start %d threads\n", n);
        exit(CLI_FAILED);
    }
    work(&jobs[0]);
    double start = jobs[0].start, stop = jobs[0].stop;
    for (int i = 1; i < n; i++) {
        pthread_join(jobs[i].thread, NULL);
        if (jobs[i].start < start) start = jobs[i].start;
        if (jobs[i].stop > stop) stop = jobs[i].stop;
    }
    pthread_barrier_destroy(&barrier);
    return stop - start;
}

enum { ROUNDS = 7, COPY_BYTES = 32 << 20, MAX_THREADS = 256 };

/* Best of the rounds: a ceiling is what the machine can do when nobody disturbs it. */
static double measure_peak(job *jobs, int threads, fma_fn fma) {
    double best = 0, flops = fma(1);
    int64_t n = 200000;
    for (int r = 0; r < ROUNDS; r++) {
        for (int i = 0; i < threads; i++) jobs[i] = (job){ .fma = fma, .n = n };
        double t = run_jobs(jobs, threads), rate = flops * (double)n * threads / t;
        if (rate > best) best = rate;
        if (t < 0.02) n = (int64_t)((double)n * 0.03 / (t > 1e-6 ? t : 1e-6));
    }
    return best * 1e-9;
}

static double measure_copy(job *jobs, int threads) {
    size_t one = COPY_BYTES, all = one * 2 * (size_t)threads;
    char *p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return 0;
#ifdef MADV_HUGEPAGE
    madvise(p, all, MADV_HUGEPAGE);
#endif
    memset(p, 1, all);
    double best = 0;
    for (int r = 0; r < ROUNDS; r++) {
        for (int i = 0; i < threads; i++) {
            char *base = p + 2 * one * (size_t)i;
            jobs[i] = (job){ .dst = base, .src = base + one, .bytes = one, .n = 2 };
        }
        double rate = 2.0 * 2.0 * (double)one * threads / run_jobs(jobs, threads);
        if (rate > best) best = rate;
    }
    munmap(p, all);
    return best * 1e-9;
}

static void cpu_name(char *out, size_t n) {
    snprintf(out, n, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[512];
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        snprintf(out, n, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (f) fclose(f);
}

ceiling ceiling_measure(int threads) {
    ceiling m = { 0 };
    fma_fn fma = pick(&m.isa);
    cpu_name(m.cpu, sizeof m.cpu);
    cpu_set_t set;
    m.cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    if (threads <= 0) threads = m.cores;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    m.threads[m.n++] = 1;
    m.threads[m.n++] = 2;
    if (threads > 2) m.threads[m.n++] = threads;
    job *jobs = cli_alloc(sizeof(job) * MAX_THREADS);
    for (int i = 0; i < m.n; i++) {
        m.peak[i] = measure_peak(jobs, m.threads[i], fma);
        m.copy[i] = measure_copy(jobs, m.threads[i]);
    }
    free(jobs);
    return m;
}

double ceiling_peak(const ceiling *m, int threads) {
    double peak = m->peak[0];
    for (int i = 0; i < m->n; i++) {
        if (m->threads[i] <= threads) peak = m->peak[i];
    }
    return peak;
}

void ceiling_json(json *j, const ceiling *m) {
    char key[16];
    json_line(j, "machine");
    json_text(j, "cpu", m->cpu);
    json_text(j, "isa", m->isa);
    json_int(j, "cores", m->cores);
    json_object(j, "peak_gflops");
    for (int i = 0; i < m->n; i++)
        snprintf(key, sizeof key, "%d", m->threads[i]), json_number(j, key, (double)(int64_t)(m->peak[i] * 10) / 10);
    json_end(j);
    json_object(j, "copy_gbs");
    for (int i = 0; i < m->n; i++)
        snprintf(key, sizeof key, "%d", m->threads[i]), json_number(j, key, (double)(int64_t)(m->copy[i] * 10) / 10);
    json_end(j);
    json_end(j);
}

void ceiling_print(FILE *f, const ceiling *m) {
    fprintf(f, "%s, %s, %d cores; measured now:", m->cpu, m->isa, m->cores);
    for (int i = 0; i < m->n; i++)
        fprintf(f, "%s %d thread%s %.0f GFLOP/s, %.0f GB/s copy", i ? ";" : "", m->threads[i], m->threads[i] > 1 ? "s" : "",
                m->peak[i], m->copy[i]);
    fputc('\n', f);
}
