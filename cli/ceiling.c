/* ceiling.c - the machine's ceilings, measured in the process that quotes them: multiply-add rate and copy bandwidth.
 *
 * These are the best of a few short samples at the start, for the head of a report. What a row is compared with is measured
 * again in the row's own rounds (probe.c). */
#include "measure.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { COPY_BYTES = 64 << 20, MAX_THREADS = 256 };

/* Best of the rounds: a ceiling is what the machine can do when nobody disturbs it. */
double ceiling_of(probe_kind kind, int threads, size_t bytes) {
    probe *p = probe_new(kind, threads, bytes);
    stats_case k = probe_case(p, "");
    k.companion = false;
    stats_measure(&k, 1, 0.04, NULL);
    double best = stats_rate(&k.result, probe_work(p)).best;
    probe_free(p);
    return best;
}

void ceiling_cpu(char *out, size_t n) {
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
    m.isa = probe_isa();
    ceiling_cpu(m.cpu, sizeof m.cpu);
    cpu_set_t set;
    m.cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    if (threads <= 0) threads = m.cores;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    m.threads[m.n++] = 1;
    m.threads[m.n++] = 2;
    if (threads > 2) m.threads[m.n++] = threads;
    for (int i = 0; i < m.n; i++) {
        m.peak[i] = ceiling_of(PROBE_FMA, m.threads[i], 0);
        m.copy[i] = ceiling_of(PROBE_COPY, m.threads[i], (size_t)COPY_BYTES * (size_t)m.threads[i]);
    }
    return m;
}

void ceiling_json(json *j, const ceiling *m) {
    char key[16];
    json_line(j, "machine");
    json_text(j, "cpu", m->cpu);
    if (m->device) json_text(j, "device", m->device);
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
    if (m->device) fprintf(f, "rows: device %s, steps of one call of loop mode\n", m->device);
}
