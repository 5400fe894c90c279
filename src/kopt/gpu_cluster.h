/* gpu_cluster.h - contractions inside a row by clusters of groups: which, and their price. */
#ifndef TN_KOPT_GPU_CLUSTER_H
#define TN_KOPT_GPU_CLUSTER_H

#include "kopt/gpu_place.h"

/* Whether it is of the form that gpu_cluster.c writes, rows being the first n_rows loops. */
bool gpu_cluster_takes(const kernel *k, int n_rows, const contraction *c);
/* Nanoseconds of it for all rows in the best shape; INFINITY: there is none. */
double gpu_cluster_least_cost(const contraction *c, double all_rows, const target *t);

#endif
