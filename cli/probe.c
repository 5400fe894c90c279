/* probe.c - loops of known cost, for ceilings: multiply-adds, reading, writing, copying, following pointers.
 *
 * In: a kind, a number of threads and a footprint. Out: a case for stats_measure, so that a ceiling is measured in the same
 * rounds as what is compared with it. A probe owns its memory. Threads are started for every sample and meet at a spinning
 * gate; the time is from the first start to the last stop.
 *
 * The multiply-adds are instructions in inline assembly on x86 (so that the compiler can neither remove nor rearrange them), on
 * 20 or 12 independent accumulators: more than latency times rate of any current core. */
#include "measure.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

/* fma, bf16, i8: n rounds, returns the operations of one. The others walk `bytes`, a multiple of 512. */
typedef struct kernels {
    const char *isa;
    double (*fma)(int64_t n), (*bf16)(int64_t n), (*i8)(int64_t n);
    void (*read)(const char *p, size_t bytes);
    void (*write)(char *p, size_t bytes);
    void (*stream)(char *p, size_t bytes); /* writes past the caches, where the processor can */
} kernels;

typedef uint64_t q2 __attribute__((vector_size(16)));
typedef uint64_t q4 __attribute__((vector_size(32)));
typedef uint64_t q8 __attribute__((vector_size(64)));

/* Eight independent sums; eight stores a round. `hide` keeps the compiler from knowing the value (and calling memset). */
#define WALKERS(name, target, V, reg)                                                                                          \
    target __attribute__((noinline)) static void read_##name(const char *p, size_t bytes) {                                    \
        V a0 = { 0 }, a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;                                           \
        const V *v = (const V *)(const void *)p;                                                                               \
        for (size_t n = bytes / (8 * sizeof(V)); n; n--, v += 8) {                                                             \
            a0 += v[0];                                                                                                        \
            a1 += v[1];                                                                                                        \
            a2 += v[2];                                                                                                        \
            a3 += v[3];                                                                                                        \
            a4 += v[4];                                                                                                        \
            a5 += v[5];                                                                                                        \
            a6 += v[6];                                                                                                        \
            a7 += v[7];                                                                                                        \
        }                                                                                                                      \
        a0 += a1 + a2 + a3 + a4 + a5 + a6 + a7;                                                                                \
        __asm__ volatile("" : "+" reg(a0));                                                                                    \
    }                                                                                                                          \
    target __attribute__((noinline)) static void write_##name(char *p, size_t bytes) {                                         \
        V a = { 1 }, *v = (V *)(void *)p;                                                                                      \
        __asm__ volatile("" : "+" reg(a));                                                                                     \
        for (size_t n = bytes / (8 * sizeof(V)); n; n--, v += 8) {                                                             \
            v[0] = a, v[1] = a, v[2] = a, v[3] = a, v[4] = a, v[5] = a, v[6] = a, v[7] = a;                                    \
            __asm__ volatile("" ::: "memory");                                                                                 \
        }                                                                                                                      \
    }

#if defined(__x86_64__)
typedef float v8 __attribute__((vector_size(32)));
typedef float v16 __attribute__((vector_size(64)));
#define AVX512 __attribute__((target("avx512f")))
#define AVX2 __attribute__((target("avx2,fma")))
#define FMA(a) __asm__ volatile("vfmadd231ps %1, %2, %0" : "+v"(a) : "v"(x), "v"(y))
#define FMA4(a, b, c, d)                                                                                                       \
    FMA(a);                                                                                                                    \
    FMA(b);                                                                                                                    \
    FMA(c);                                                                                                                    \
    FMA(d)

AVX512 __attribute__((noinline)) static double fma_avx512(int64_t n) {
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
AVX2 __attribute__((noinline)) static double fma_avx2(int64_t n) {
    v8 x = { 0 }, y = { 0 }, a0 = { 0 }, a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0, a8 = a0, a9 = a0,
       b0 = a0, b1 = a0;
    for (int64_t i = 0; i < n; i++) {
        FMA4(a0, a1, a2, a3);
        FMA4(a4, a5, a6, a7);
        FMA4(a8, a9, b0, b1);
    }
    return 12 * 8 * 2;
}
/* Products of narrow numbers: each instruction by itself, or a product and a sum. */
#define STEP_BF16(a) __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(a) : "v"(x))
#define STEP_VNNI(a) __asm__ volatile("vpdpbusd %1, %1, %0" : "+v"(a) : "v"(x))
#define STEP_PAIRS(a) __asm__ volatile("vpmaddwd %2, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(a), "=&v"(t) : "v"(x))
#define NARROW(name, target, V, step, ops)                                                                                     \
    target __attribute__((noinline)) static double name(int64_t n) {                                                           \
        V x = { 0 }, a0 = { 0 }, a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0, a8 = a0, a9 = a0, b0 = a0,     \
          b1 = a0, t = a0;                                                                                                     \
        (void)t;                                                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                                                      \
            step(a0);                                                                                                          \
            step(a1);                                                                                                          \
            step(a2);                                                                                                          \
            step(a3);                                                                                                          \
            step(a4);                                                                                                          \
            step(a5);                                                                                                          \
            step(a6);                                                                                                          \
            step(a7);                                                                                                          \
            step(a8);                                                                                                          \
            step(a9);                                                                                                          \
            step(b0);                                                                                                          \
            step(b1);                                                                                                          \
        }                                                                                                                      \
        return 12 * 2 * (ops);                                                                                                 \
    }
NARROW(bf16_avx512, AVX512, v16, STEP_BF16, 32)
NARROW(vnni_avx512, AVX512, v16, STEP_VNNI, 64)
NARROW(pairs_avx512, AVX512, v16, STEP_PAIRS, 32)
NARROW(pairs_avx2, AVX2, v8, STEP_PAIRS, 16)
WALKERS(avx512, AVX512, q8, "v")
WALKERS(avx2, AVX2, q4, "x")
AVX512 __attribute__((noinline)) static void stream_avx512(char *p, size_t bytes) {
    __m512i a = _mm512_set1_epi32(1);
    for (size_t i = 0; i < bytes; i += 64) _mm512_stream_si512((void *)(p + i), a);
    _mm_sfence();
}
AVX2 __attribute__((noinline)) static void stream_avx2(char *p, size_t bytes) {
    __m256i a = _mm256_set1_epi32(1);
    for (size_t i = 0; i < bytes; i += 32) _mm256_stream_si256((void *)(p + i), a);
    _mm_sfence();
}
#define BASELINE_REGISTER "x"
#elif defined(__aarch64__)
#define BASELINE_REGISTER "w"
#else
#define BASELINE_REGISTER "m"
#endif
WALKERS(baseline, , q2, BASELINE_REGISTER)

/* x * a + y: one instruction where the baseline has fused multiply-add, two where not; two flops either way. */
typedef float v4 __attribute__((vector_size(16)));
#define KEEP(a) __asm__ volatile("" : "+" BASELINE_REGISTER(a))
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

#if defined(__x86_64__)
static bool has_bf16(void) {
    unsigned a = 0, b, c, d;
    return __builtin_cpu_supports("avx512vnni") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

typedef double (*arithmetic)(int64_t n);
/* The faster one; each is warmed up first. */
static arithmetic faster(arithmetic x, arithmetic y) {
    enum { ROUNDS = 20000 };
    const arithmetic both[] = { x, y };
    double best[2] = { 0 };
    for (int i = 0; i < 6; i++) {
        double start = cli_seconds(), ops = both[i % 2](ROUNDS), speed = ops / (cli_seconds() - start);
        if (speed > best[i % 2]) best[i % 2] = speed;
    }
    return best[0] > best[1] ? x : y;
}
#endif

static kernels pick(void) {
    kernels k = { "generic", fma_baseline, fma_baseline, fma_baseline, read_baseline, write_baseline, write_baseline };
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) {
        k = (kernels){ "avx512", fma_avx512, fma_avx512, pairs_avx512, read_avx512, write_avx512, stream_avx512 };
        if (__builtin_cpu_supports("avx512vnni")) k.i8 = vnni_avx512;
        return k;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (kernels){ "avx2", fma_avx2, fma_avx2, pairs_avx2, read_avx2, write_avx2, stream_avx2 };
    k.isa = "sse2";
#elif defined(__aarch64__)
    k.isa = "neon";
#endif
    return k;
}
const char *probe_isa(void) { return pick().isa; }

/* ---- buffers ------------------------------------------------------------------------------------------------------------- */

enum { HUGE_PAGE = 2 << 20 };

/* In front of the data, in its own cache line. */
typedef struct buffer_head {
    void *base;
    size_t mapped;
} buffer_head;

void *buffer_new(size_t n) {
    static unsigned count; /* buffers start at different lines of a page: else their accesses alias in the store buffer */
    enum { LINE = 64, PAGE = 4096, HUGE = HUGE_PAGE };
    size_t offset = LINE + (size_t)(count++ * 11 % 60) * LINE, total = n + offset + PAGE;
    bool big = total >= HUGE;
    if (big) total = (total + 2 * HUGE - 1) / HUGE * HUGE;
    char *base = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *from = base;
    if (base == MAP_FAILED) {
        fprintf(stderr, "tenon: error: out of memory (%zu bytes)\n", total);
        exit(CLI_FAILED);
    }
    if (big && n + offset + HUGE <= total) from += (HUGE - (uintptr_t)base % HUGE) % HUGE;
#ifdef MADV_HUGEPAGE
    if (big) madvise(base, total, MADV_HUGEPAGE);
#endif
    char *data = from + offset;
    *(buffer_head *)(void *)(data - LINE) = (buffer_head){ base, total };
    return data;
}
void buffer_free(void *p) {
    if (!p) return;
    buffer_head h = *(buffer_head *)(void *)((char *)p - 64);
    munmap(h.base, h.mapped);
}

/* ---- the probe ----------------------------------------------------------------------------------------------------------- */

struct probe {
    probe_kind kind;
    kernels k;
    int threads;
    size_t part; /* bytes of a thread's piece of one buffer */
    char *a, *b; /* b: destination of a copy */
    void **cursor;
    double work;
};

static bool is_arithmetic(probe_kind k) { return k == PROBE_FMA || k == PROBE_BF16 || k == PROBE_I8; }

enum { FMA_ROUNDS = 2000, CHASE_STEPS = 2000, LINE = 64 };

/* One cycle through all lines in random order (Sattolo's shuffle). */
static void link_lines(char *memory, size_t bytes) {
    size_t n = bytes / LINE;
    uint32_t *order = cli_alloc(n * sizeof *order);
    uint64_t seed = 20240229;
    for (size_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    for (size_t i = n - 1; i > 0; i--) {
        size_t k = (size_t)(random_next(&seed) % i);
        uint32_t t = order[i];
        order[i] = order[k];
        order[k] = t;
    }
    for (size_t i = 0; i < n; i++)
        *(void **)(void *)(memory + LINE * (size_t)order[i]) = memory + LINE * (size_t)order[(i + 1) % n];
    free(order);
}

probe *probe_new(probe_kind kind, int threads, size_t bytes) {
    probe *p = cli_alloc(sizeof *p);
    *p = (probe){ .kind = kind, .k = pick(), .threads = threads };
#if defined(__x86_64__)
    if (kind == PROBE_BF16 && has_bf16()) p->k.bf16 = faster(fma_avx512, bf16_avx512);
#endif
    if (kind == PROBE_BF16) p->k.fma = p->k.bf16;
    if (kind == PROBE_I8) p->k.fma = p->k.i8;
    if (is_arithmetic(kind)) {
        p->work = p->k.fma(1) * FMA_ROUNDS * threads;
        return p;
    }
    p->part = bytes / (size_t)threads / (kind == PROBE_COPY ? 2 : 1) / 512 * 512;
    if (p->part < 512) p->part = 512;
    size_t all =
        p->part * (size_t)threads; /* a chase lies in huge pages: one translation, and neighbouring lines of the cache */
    p->a = buffer_new(kind == PROBE_CHASE && all < HUGE_PAGE ? HUGE_PAGE : all);
    memset(p->a, 1, p->part * (size_t)threads);
    p->work = (double)p->part * threads;
    if (kind == PROBE_COPY) {
        p->b = buffer_new(p->part * (size_t)threads);
        memset(p->b, 1, p->part * (size_t)threads);
        p->work *= 2;
    }
    if (kind == PROBE_CHASE) {
        link_lines(p->a, p->part);
        p->cursor = (void **)(void *)p->a;
        p->work = CHASE_STEPS;
    }
    return p;
}
void probe_free(probe *p) {
    if (!p) return;
    buffer_free(p->a);
    buffer_free(p->b);
    free(p);
}
double probe_work(const probe *p) { return p->work; }

static void chase(probe *p, int64_t steps) {
    void **at = p->cursor;
    for (; steps; steps--) at = *at;
    __asm__ volatile("" : "+r"(at));
    p->cursor = at;
}

static void piece(probe *p, int index, int64_t times) {
    char *a = p->a ? p->a + p->part * (size_t)index : NULL, *b = p->b ? p->b + p->part * (size_t)index : NULL;
    if (is_arithmetic(p->kind)) {
        p->k.fma(times * FMA_ROUNDS);
        return;
    }
    if (p->kind == PROBE_CHASE) {
        chase(p, times * CHASE_STEPS);
        return;
    }
    for (int64_t i = 0; i < times; i++) {
        if (p->kind == PROBE_READ) p->k.read(a, p->part);
        if (p->kind == PROBE_WRITE) p->k.write(a, p->part);
        if (p->kind == PROBE_STREAM) p->k.stream(a, p->part);
        if (p->kind == PROBE_COPY) memcpy(b, a, p->part);
        __asm__ volatile("" ::: "memory"); /* every pass happens */
    }
}

typedef struct worker {
    pthread_t thread;
    probe *p;
    int index;
    int64_t times;
    _Atomic int *ready;
    double start, stop;
} worker;

static void *work(void *ud) {
    worker *w = ud;
    atomic_fetch_add(w->ready, 1);
    for (int spins = 0; atomic_load(w->ready) < w->p->threads; spins++) {
        if (spins > 10000) sched_yield();
    }
    w->start = cli_seconds();
    piece(w->p, w->index, w->times);
    w->stop = cli_seconds();
    return NULL;
}

double probe_clock(void *ud, int64_t times) {
    probe *p = ud;
    _Atomic int ready = 0;
    worker one = { .p = p, .times = times, .ready = &ready },
           *w = p->threads > 1 ? cli_alloc(sizeof(worker) * (size_t)p->threads) : &one;
    for (int i = 0; i < p->threads; i++) w[i] = (worker){ .p = p, .index = i, .times = times, .ready = &ready };
    for (int i = 1; i < p->threads; i++) {
        if (!pthread_create(&w[i].thread, NULL, work, &w[i])) continue;
        fprintf(stderr, "tenon: error: cannot start %d threads\n",
                p->threads); /* those that did start wait for ever: give up */
        exit(CLI_FAILED);
    }
    work(&w[0]);
    double start = w[0].start, stop = w[0].stop;
    for (int i = 1; i < p->threads; i++) {
        pthread_join(w[i].thread, NULL);
        if (w[i].start < start) start = w[i].start;
        if (w[i].stop > stop) stop = w[i].stop;
    }
    if (w != &one) free(w);
    return stop - start;
}

stats_case probe_case(probe *p, const char *label) {
    /* On a machine that is busy a thread may wait for milliseconds for a processor: what its few first operations took says
     * nothing of how many a sample needs. */
    int64_t least = is_arithmetic(p->kind) ? 200 : 1;
    return (stats_case){ .clock = probe_clock, .ud = p, .label = label, .companion = true, .least = least };
}
