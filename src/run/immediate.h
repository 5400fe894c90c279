/* immediate.h - what the files of immediate mode share. */
#ifndef TN_RUN_IMMEDIATE_H
#define TN_RUN_IMMEDIATE_H

#include "run/run.h"

struct immediate {
    tn_ctx *ctx;
    device *dev;
    err *err; /* of whoever owns this */
    tn_compile_opts opts;
    bool queues;            /* values stay on the device, runs are not waited for */
    struct op_entry *table; /* [TABLE], linear probing within 8 places, least recently used out */
    uint64_t clock;
    tn_program_stats stats;
};

/* As immediate_run, with the places of an immediate graph's values. */
tn_status immediate_run_buffers(tn_graph *g, val v);
void immediate_fill_splat(const graph *g, val v, void *to); /* all elements of a scalar that was expanded */

static inline bool is_splat(const graph *g, val v) { return graph_get(g, v)->op == OP_const && graph_get(g, v)->splat; }

static inline bool is_update(const output *o) { return o->state && o->v != o->state; }

#endif
