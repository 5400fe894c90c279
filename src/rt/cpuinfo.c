/* cpuinfo.c - implementation of cpuinfo.h: cpuid and sysfs, with common values where they say nothing. */
#include "machine/machine.h"
#include "rt/cpuinfo.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

/* The parts of cpuid that say what code may use and what it is tuned for, none that differ between cores (such as the APIC id).
 */
typedef struct leaves {
    unsigned word[32];
    int n;
} leaves;
/* Under a hypervisor each cpuid takes microseconds, so none is asked twice. */
static void take(leaves *l, unsigned max, unsigned leaf, unsigned sub, const char *which) {
    unsigned r[4] = { 0 }; /* a, b, c, d */
    if (leaf > max) return;
    __cpuid_count(leaf, sub, r[0], r[1], r[2], r[3]);
    for (; *which; which++) l->word[l->n++] = r[*which - 'a'];
}
static uint64_t identify(char *brand, size_t size) {
    leaves l = { .n = 0 };
    take(&l, 0, 0, 0, "abcd");
    unsigned max = l.word[0], high = (unsigned)__get_cpuid_max(0x80000000u, NULL);
    take(&l, max, 1, 0, "acd");
    take(&l, max, 7, 0, "bcd");
    take(&l, max, 7, 1, "abcd");
    take(&l, high, 0x80000001u, 0, "cd");
    unsigned text[13] = { 0 };
    for (unsigned i = 0; i < 3 && 0x80000004u <= high; i++)
        __cpuid(0x80000002u + i, text[4 * i], text[4 * i + 1], text[4 * i + 2], text[4 * i + 3]);
    const char *s = (const char *)text;
    while (*s == ' ') s++;
    snprintf(brand, size, "%s", *s ? s : "x86 processor");
    for (size_t n = strlen(brand); n && brand[n - 1] == ' '; n--) brand[n - 1] = 0;
    return hash_bytes(l.word, (size_t)l.n * sizeof l.word[0], hash_bytes(text, sizeof text, 0));
}
static void fill_isa(device_caps *c) {
    __builtin_cpu_init();
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    /* Whatever has AVX2 has F16C too. */
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
    bool bf16 = vnni && __builtin_cpu_supports("avx512bf16");
    unsigned a, b, x, d = 0; /* not all compilers know AMX by name, which AMD's have not: cpuid is asked of Intel's alone */
    if (bf16 && __builtin_cpu_is("intel")) __cpuid_count(7, 0, a, b, x, d);
    bool amx = d >> 22 & 1;
    snprintf(c->isa, sizeof c->isa, "%s",
             bf16     ? "avx512bf16"
             : vnni   ? "avx512vnni"
             : avx512 ? "avx512"
             : avx2   ? "avx2"
                      : "sse2");
    /* Beside matrix units, vdpbf16ps is slower than the multiply-adds that it stands for (Sapphire Rapids: by half). */
    snprintf(c->code, sizeof c->code, "%s", amx ? "avx512vnni" : c->isa);
    c->vector_bytes = avx512 ? 64 : avx2 ? 32 : 16;
    c->n_vector_regs = avx512 ? 32 : 16;
}
/* Maker, family and instruction set: "AuthenticAMD 26 avx512bf16". Of what the C runtime asked when the process started; a
 * family with AVX-512 that it does not know is a later one than those that it does. */
static void fill_machine(device_caps *c) {
    char identity[48];
    bool amd = __builtin_cpu_is("amd"), intel = __builtin_cpu_is("intel");
    int family = intel ? 6 : __builtin_cpu_is("amdfam19h") ? 25 : c->vector_bytes == 64 ? 26 : 23;
    snprintf(identity, sizeof identity, "%s %d %s", amd ? "AuthenticAMD" : intel ? "GenuineIntel" : "", family, c->isa);
    c->machine = machine_find(identity, false);
}
/* Data caches from cpuid: Intel's leaf 4, which AMD has under another number. */
static void fill_caches_by_cpuid(device_caps *c) {
    unsigned a, b, x, d, leaf = 4;
    __cpuid(0, a, b, x, d);
    if (a < 4 || x == 0x444d4163u || x == 0x656e6975u) leaf = 0x8000001Du; /* "cAMD", "uine" (Hygon) */
    if (leaf > 4 && (unsigned)__get_cpuid_max(0x80000000u, NULL) < leaf) return;
    for (unsigned i = 0; i < 8; i++) {
        __cpuid_count(leaf, i, a, b, x, d);
        unsigned type = a & 31, level = a >> 5 & 7;
        if (type == 0) return;
        if (type == 2) continue; /* instructions */
        int64_t bytes = (int64_t)((b >> 22) + 1) * ((b >> 12 & 1023) + 1) * ((b & 4095) + 1) * ((int64_t)x + 1);
        int64_t *const at[] = { &c->l1_bytes, &c->l2_bytes, &c->l3_bytes };
        if (level >= 1 && level <= 3) *at[level - 1] = bytes;
    }
}
#else
#include <sys/utsname.h>

static void fill_caches_by_cpuid(device_caps *c) { (void)c; }
static void fill_machine(device_caps *c) { c->machine = machine_find(c->isa, false); }

static uint64_t identify(char *brand, size_t size) {
    struct utsname u;
    snprintf(brand, size, "%s", uname(&u) == 0 ? u.machine : "processor");
    return hash_bytes(brand, strlen(brand), 0);
}
static void fill_isa(device_caps *c) {
#if defined(__aarch64__)
    snprintf(c->isa, sizeof c->isa, "neon");
    c->n_vector_regs = 32;
#else
    snprintf(c->isa, sizeof c->isa, "generic");
    c->n_vector_regs = 16;
#endif
    c->vector_bytes = 16;
}
#endif

/* One short text file of sysfs; false when there is none. */
static bool read_text(const char *path, char *out, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, out, size - 1);
    close(fd);
    if (n <= 0) return false;
    out[n] = 0;
    return true;
}
static int64_t parse_size(const char *s) { /* "32K" */
    char *end;
    long long v = strtoll(s, &end, 10);
    if (v <= 0 || v > 1 << 30) return 0;
    return *end == 'K' ? v << 10 : *end == 'M' ? v << 20 : v;
}
static void fill_caches(device_caps *c) {
    fill_caches_by_cpuid(c);
    for (int i = 0; i < 8 && !c->l1_bytes; i++) {
        char path[96], type[32], level[32], size[32];
        const char *const names[] = { "type", "level", "size" };
        char *const into[] = { type, level, size };
        bool ok = true;
        for (size_t k = 0; k < COUNT_OF(names) && ok; k++) {
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", i, names[k]);
            ok = read_text(path, into[k], 32);
        }
        if (!ok || type[0] == 'I') continue; /* Instruction */
        int64_t bytes = parse_size(size);
        int64_t *const at[] = { &c->l1_bytes, &c->l2_bytes, &c->l3_bytes };
        if (level[0] >= '1' && level[0] <= '3' && bytes) *at[level[0] - '1'] = bytes;
    }
    if (!c->l1_bytes) c->l1_bytes = 32 << 10;
    if (!c->l2_bytes) c->l2_bytes = 512 << 10;
    if (!c->l3_bytes) c->l3_bytes = 8 << 20;
}

/* The C library asked the processor when the process started. */
static void fill_caches_quickly(device_caps *c) {
#if defined(_SC_LEVEL1_DCACHE_SIZE) && defined(_SC_LEVEL2_CACHE_SIZE)
    c->l1_bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE);
    c->l2_bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    if (c->l1_bytes <= 0 || c->l2_bytes < c->l1_bytes) {
        c->l1_bytes = c->l2_bytes = 0;
        fill_caches(c);
        c->l3_bytes = 0;
    }
}

void cpuinfo_fill(device_caps *caps) {
    snprintf(caps->name, sizeof caps->name, "cpu");
    fill_isa(caps);
    fill_machine(caps);
    fill_caches_quickly(caps);
}

void cpuinfo_describe(device_caps *caps) {
    char brand[128];
    device_caps all = { 0 };
    uint64_t id = identify(brand, sizeof brand);
    fill_caches(&all);
    caps->l3_bytes = all.l3_bytes;
    snprintf(caps->detail, sizeof caps->detail, "%s, %s", brand, caps->isa);
    caps->id = hash_bytes(caps->isa, strlen(caps->isa), id);
}
