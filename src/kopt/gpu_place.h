/* gpu_place.h - contractions inside a row: what gpu_place.c makes of them, and its price. */
#ifndef TN_KOPT_GPU_PLACE_H
#define TN_KOPT_GPU_PLACE_H

#include "kopt/kopt.h"

enum { PLACE_MAX_ROWS = 8 };
#define GPU_UNIT_NS 1.3 /* of what kopt_gpu_rows_cost counts */

typedef struct contraction { /* loop j { acc; loop k { load; load; update }; rest; store }: instructions of the scalar kernel */
    int loop, end;           /* of j */
    int acc, inner, last;    /* accumulator; loop and end of k */
    int load[2], update;
    int64_t n, depth; /* iterations of j and k */
    double common;    /* bytes that it reads whatever the row */
    int64_t apart[2]; /* bytes between columns and between steps, in the operand where 32 threads read most lines */
} contraction;

typedef struct section {     /* a contraction, or a loop whose iterations are contractions only */
    int loop, end, first, n; /* which of them */
    kvar var;                /* of the loop, or -1 */
    int64_t times;
    int unroll;     /* iterations that are loaded ahead */
    int32_t **slot; /* [unroll * n][ahead of c] where in the thread's memory that is, plus 1 */
} section;
typedef struct layers {
    VEC(contraction) c;
    VEC(section) sections;
} layers;

/* All of a kernel, into an empty one. */
void gpu_place_layers(const kernel *k, int n_rows, layers *out);
/* Whether what is computed for each row outside of them is used before the next one: else a group is bound to one row. */
bool gpu_place_rows_are_free(const kernel *k, int n_rows, const layers *l);
/* Whether the nest at instruction i is one, rows being the first n_rows loops. */
bool gpu_place_find(const kernel *k, int n_rows, int i, contraction *out);
/* Bytes that instructions [from, to) read whatever the iteration of the first n_rows loops. */
double gpu_place_common_bytes(const kernel *k, int n_rows, int from, int to);
/* Nanoseconds of the nest for `groups` groups of `group` threads with `rows` rows each, `parts` threads a sum. */
double gpu_place_cost(const contraction *c, double groups, int rows, int group, int parts, const target *t);
/* The least of them. */
double gpu_place_least_cost(const contraction *c, double all_rows, int rows, const target *t);

#endif
