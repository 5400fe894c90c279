/* immediate.h - what the files of immediate mode share. */
#ifndef TN_RUN_IMMEDIATE_H
#define TN_RUN_IMMEDIATE_H

#include "run/run.h"

enum { COPIES = 16 };

struct immediate {
    tn_ctx *ctx;
    device *dev;
    err *err; /* of whoever owns this */
    tn_compile_opts opts;
    bool queues;            /* values stay on the device, runs are not waited for */
    struct op_entry *table; /* [TABLE], linear probing within 8 places, least recently used out */
    uint64_t clock;
    tn_program_stats stats;
    struct copy_list { /* a copy of so many bytes from slot 0 to slot 1, on devices that have values of their own */
        size_t bytes;
        list *l;
    } copies[COPIES];
    int next_copy;
};

typedef struct body_nodes {
    val first, end; /* nodes of a region are in [first, end); others may be, too */
} body_nodes;
/* Of a session whose program has control flow: places behind those of nodes, two for each result of an if, while or scan. */
typedef struct bodies {
    int *first;        /* [graph.nodes.n] the first place of an op */
    body_nodes *nodes; /* [graph.regions.n] */
    size_t *bytes;     /* [n] of memory of its own, SIZE_MAX: it has none */
    int n;
} bodies;

/* immediate_control.c. *out stays NULL where there is no control flow; after errors it is to be freed, too. */
tn_status immediate_bodies(mem m, const graph *g, bodies **out, err *e);
void immediate_bodies_free(mem m, const graph *g, bodies *b);
/* The nodes of a region, 0: of the graph itself, in their order. */
tn_status immediate_run_region(tn_session *s, const graph *g, int r);

/* As immediate_run, with the places of an immediate graph's values. */
tn_status immediate_run_buffers(tn_graph *g, val v);
void immediate_fill_splat(const graph *g, val v, void *to); /* all elements of a scalar that was expanded */
tn_status immediate_put_splat(const tn_ctx *ctx, device *dev, const graph *g, val v, buffer *b, err *e);
/* Of im->queues: behind what was queued before. */
tn_status immediate_copy(immediate *im, buffer *to, size_t to_offset, buffer *from, size_t from_offset, size_t bytes);

static inline bool is_splat(const graph *g, val v) { return graph_get(g, v)->op == OP_const && graph_get(g, v)->splat; }

static inline bool is_update(const output *o) { return o->state && o->v != o->state; }

#endif
