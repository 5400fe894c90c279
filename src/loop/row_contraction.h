/* row_contraction.h - contractions inside a row: where they are, and facts about them that steps and recipes share. In: scalar
 * form whose rows are its outer loops. */
#ifndef TN_LOOP_ROW_CONTRACTION_H
#define TN_LOOP_ROW_CONTRACTION_H

#include "ir/kernel.h"

enum {
    ROW_MOST_ROWS = 8,
    ROW_WHOLE = 32 /* steps of a sum that thread_columns writes out one by one */,
    ROW_K_BLOCK = 16 /* of longer ones, at a time */,
    ROW_SUMS = 4 /* that a thread keeps of one, so that few wait for each other */
};

typedef struct row_contraction { /* loop j { acc; loop k { load; load; update }; rest; store }: instructions of the scalar
                                    kernel */
    int loop, end;               /* of j */
    int acc, inner, last;        /* accumulator; loop and end of k */
    int load[2], update;
    int64_t n, depth; /* iterations of j and k */
    double common;    /* bytes that it reads whatever the row */
    int64_t apart[2]; /* bytes between columns and between steps, in the operand where 32 threads read most lines */
} row_contraction;

typedef struct row_section { /* a contraction, or a loop whose iterations are contractions only */
    int loop, end, first, n; /* which of them */
    kvar var;                /* of the loop, or -1 */
    int64_t times;
    int unroll;     /* iterations that are loaded ahead */
    int32_t **slot; /* [unroll * n][ahead of c] where in the thread's memory that is, plus 1 */
} row_section;
typedef struct row_layers {
    VEC(row_contraction) c;
    VEC(row_section) sections;
} row_layers;

/* All of a kernel, into an empty one. */
void row_layers_find(const kernel *k, int n_rows, row_layers *out);
/* Whether what is computed for each row outside of them is used before the next one: else a thread block is bound to one row.
 */
bool row_layers_are_free(const kernel *k, int n_rows, const row_layers *l);
/* Whether the nest at instruction i is one, rows being the first n_rows loops. */
bool row_contraction_find(const kernel *k, int n_rows, int i, row_contraction *out);
/* Bytes that instructions [from, to) read whatever the iteration of the first n_rows loops. */
double row_common_bytes(const kernel *k, int n_rows, int from, int to);
/* Lines of memory that 32 threads read at once when `parts` neighbours have every fourth step of the same column. */
double row_lines(const int64_t apart[2], int split_k);

#endif
