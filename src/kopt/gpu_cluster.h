/* gpu_cluster.h - contractions inside a row by clusters of groups: which, and their price. */
#ifndef TN_KOPT_GPU_CLUSTER_H
#define TN_KOPT_GPU_CLUSTER_H

#include "kopt/gpu_place.h"

/* Whether it is of the form that gpu_cluster.c writes, rows being the first n_rows loops. */
bool gpu_cluster_takes(const kernel *k, int n_rows, const contraction *c);
/* Contractions of a kernel have one shape. Adds the nanoseconds of one, for all rows, to the cost of each shape; INFINITY where
 * it does not fit. */
enum { GPU_CLUSTER_SHAPES = 4 * 3 * 6 * 3 * 16 };
void gpu_cluster_add_layer(const contraction *c, double all_rows, const target *t, double *costs /* [GPU_CLUSTER_SHAPES] */);

#endif
