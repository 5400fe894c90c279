/* columns.h - what contractions inside rows take on GPUs: the recipes of thread_columns.c and cluster_columns.c, and vertical
 * fusion, ask it. */
#ifndef TN_RECIPE_COLUMNS_H
#define TN_RECIPE_COLUMNS_H

#include "loop/row_contraction.h"
#include "recipe/recipe.h"

/* Nanoseconds of the nest where a thread block has `rows` of all rows: in the best of its shapes. */
double recipe_columns_least_cost(const row_contraction *c, double all_rows, int rows, const target *t);
/* What else there is to do for a row, in instructions of a thread. */
double recipe_rest_cost(const kernel *k, int n_rows, const row_layers *l, int block_threads);

/* Contractions of a kernel by clusters have one shape. Fills in the nanoseconds of one contraction, for all rows, in each shape
 * that the target allows; INFINITY where it does not fit. Returns how many shapes. It reads n and depth of the contraction. */
enum { RECIPE_CLUSTER_SHAPES = 4 * 3 * 6 * 3 * 16 };
int recipe_cluster_costs(const row_contraction *c, double all_rows, const target *t,
                         double *costs /* [RECIPE_CLUSTER_SHAPES] */);

#endif
