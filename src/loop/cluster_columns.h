/* cluster_columns.h - contractions of rows by clusters of thread blocks: which, and in which shapes. */
#ifndef TN_LOOP_CLUSTER_COLUMNS_H
#define TN_LOOP_CLUSTER_COLUMNS_H

#include "loop/row_contraction.h"
#include "loop/schedule.h"

enum {
    CLUSTER_MOST_WEIGHTS = 64 /* that a thread holds of a layer, */,
    CLUSTER_MOST_SUMS = 32 /* and sums */,
    CLUSTER_MOST_ROWS = 16,
    CLUSTER_STEPS = 4 /* of a sum, whose operands come at once */
};

typedef struct cluster_shape {
    int cluster;        /* thread blocks; */
    int rows, blocks;   /* rows of a thread, and how many threads have those of the cluster */
    int split_k, lanes; /* threads a sum; columns of a thread */
} cluster_shape;

static inline int cluster_rows_of(const cluster_shape *s) { return s->rows * s->blocks; }
static inline int64_t cluster_columns_of(const cluster_shape *s, const row_contraction *c) { return c->n / s->cluster; }
static inline int64_t cluster_across_of(const cluster_shape *s, const row_contraction *c) {
    return cluster_columns_of(s, c) / s->lanes;
}
static inline int64_t cluster_block_threads(const cluster_shape *s, const row_contraction *c) {
    return cluster_across_of(s, c) * s->split_k * s->blocks;
}

/* Whether it can be shared out so, rows being the first n_rows loops. */
bool cluster_takes(const kernel *k, int n_rows, const row_contraction *c);
/* Whether the contraction comes out in that shape. */
bool cluster_comes_out(const cluster_shape *s, const row_contraction *c);

typedef struct cluster_parts {
    const kernel *k; /* with a loop of rows */
    row_layers l;
    bool *common; /* [bufs] local ones that contractions touch: all thread blocks have them */
} cluster_parts;
/* Returns false, with the reason, where the kernel is of another kind. */
bool cluster_find(cluster_parts *p, const kernel *k, str *why);

#endif
