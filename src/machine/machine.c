/* machine.c - implementation of machine.h: the rows of machine.def, and what a target changes of one. */
#include "machine/machine.h"

#include "base/base.h"

/* What all processors have alike, as far as it was measured. share_work .. remote_cost: two to four cores of Zen 3 and Zen 4.
 */
#define CPU_COMMON                                                                                                             \
    .issue_shared = 3, .last_per_l2 = 24, .submit_ns = 100, .share_work = 60000, .remote_rows = 2, .remote_cost = 0.1

/* What a row of layers waits for, measured on an H200; of other GPUs nothing better is known. */
#define GPU_COMMON                                                                                                             \
    .warp_barrier_ns = 42, .step_ns = 3, .guard_ns = 3, .exchange_ns = 15, .follow_ns = 100, .long_sum_ns = 500,               \
    .count_ns = 1.3, .tile_bytes = 24, .row_flops = 200, .plain_flops = 60, .tiled_flops = 300, .beside_flops = 75,            \
    .beside_ns = 250, .after_ns = 1400, .cluster_exchange_ns = 900, .send_ns = 40, .add_ns = 2.5

#define MACHINE(id, text, ...) { .name = #id, .title = text, __VA_ARGS__ },
static const machine rows[] = {
#include "machine/machine.def"
};
#undef MACHINE

const machine *machine_rows(int *out_n) {
    *out_n = COUNT_OF(rows);
    return rows;
}

const machine *machine_row(const char *name) {
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (!strcmp(rows[i].name, name)) return &rows[i];
    return NULL;
}

const machine *machine_find(const char *identity, bool gpu) {
    const machine *common = NULL;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const machine *m = &rows[i];
        if (m->gpu != gpu) continue;
        if (!m->match) common = m;
        if (m->match && !strncmp(identity, m->match, strlen(m->match))) return m;
    }
    return common;
}

const machine *machine_row_of(const target *t) { return t->machine ? t->machine : machine_find("", t->kind == TARGET_GPU); }

enum { THREADS_OF_UNIT = 1024 }; /* of a multiprocessor, as devices count them in target.grid */

int64_t machine_last_bytes(const target *t) { return (int64_t)machine_row_of(t)->last_per_l2 * t->l2_bytes; }

/* Measured figures go before what a device tells of itself. */
static machine of_gpu(machine m, const target *t) {
    if (t->ghz > 0 && !m.measured) m.ghz = t->ghz;
    if (t->memory_rate > 0 && !m.measured)
        m.level[LEVEL_MEMORY].all = t->memory_rate * m.cores / larger(1, (double)t->resident_threads / THREADS_OF_UNIT);
    if (t->l2_bytes) m.level[LEVEL_L2].bytes = t->l2_bytes;
    if (t->shared_bytes) m.shared_bytes = m.shared_bytes > t->shared_bytes ? m.shared_bytes : t->shared_bytes;
    if (t->resident_threads >= THREADS_OF_UNIT) {
        double units = (double)t->resident_threads / THREADS_OF_UNIT, scale = units / m.cores;
        for (int l = 0; l < MACHINE_LEVELS; l++) m.level[l].all *= scale;
        m.cores = (int)units;
    }
    return m;
}

double machine_gflops(const machine *m) {
    double lanes = m->gpu ? 1 : m->pipe_bytes / 4.0;
    return 2 * m->fma_pipes * lanes * m->ghz * m->cores;
}

double machine_rate(const machine *m, machine_level l, bool write) {
    const machine_cache *at = &m->level[l];
    double rate = m->cores * (write ? at->write : at->read);
    return at->all > 0 && at->all < rate ? at->all : rate;
}

double machine_units(const target *t) {
    return t->resident_threads > THREADS_OF_UNIT ? (double)t->resident_threads / THREADS_OF_UNIT : 1;
}

machine machine_of(const target *t) {
    machine m = *machine_row_of(t);
    if (t->kind == TARGET_GPU) return of_gpu(m, t);
    if (t->threads > 0) m.cores = t->threads;
    if (t->vector_bytes) { /* of what the row has, as much as code may use */
        m.vector_bytes = t->vector_bytes;
        if (!m.match && t->vector_bytes > m.pipe_bytes) m.pipe_bytes = m.load_bytes = m.store_bytes = t->vector_bytes;
    }
    if (t->l1_bytes) m.level[LEVEL_L1].bytes = t->l1_bytes;
    if (t->l2_bytes) m.level[LEVEL_L2].bytes = t->l2_bytes;
    if (!m.level[LEVEL_L3].bytes) m.level[LEVEL_L3].bytes = (int64_t)m.last_per_l2 * m.level[LEVEL_L2].bytes;
    return m;
}
