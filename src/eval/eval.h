/* eval.h - the reference meaning of graphs, slow and obvious: the oracle of every test, and what constant folding uses.
 *
 * Float dtypes are computed in double and rounded only by cast and where a number is written down (const, pad, iota); integers
 * and bool are exact (int64, wrapped to their dtype). Ids need no topological order. Of an if only the taken branch is
 * computed; a while that has not ended after 100000 steps is an error. */
#ifndef TN_EVAL_EVAL_H
#define TN_EVAL_EVAL_H

#include "ir/graph.h"

typedef struct eval_value { /* row-major; one of the two is set, by the dtype's kind */
    double *f;
    int64_t *i;
} eval_value;

/* Values of all nodes, indexed by val, in arena a. in[k] is the value of g->inputs.at[k] (inputs and states); a state whose
 * entry is empty takes its initial value. Jumps with TN_ERR_UNSUPPORTED for symbolic dims. */
eval_value *eval_graph(const graph *g, arena *a, const eval_value *in);
eval_value eval_load(const graph *g, arena *a, val v, const void *data); /* typed array of v's shape and dtype -> value */
void eval_store(const graph *g, val v, eval_value x, void *data);        /* value -> typed array, rounded */

/* One element of an elementwise op: its expr column of ops.def. Unused operands are ignored; the integer form does not wrap. */
double eval_element_float(op_code op, double x, double y, double z); /* FLT, NUM, ANY; select takes its mask as 0 or 1 */
int64_t eval_element_compare(op_code op, double x, double y);        /* CMP of floats */
/* NUM, BIT, LOG, CMP, ANY of integers and bool; t: of x, u64 as its bits */
int64_t eval_element_int(op_code op, tn_dtype t, int64_t x, int64_t y, int64_t z);

/* The bits of an f32 or f64, sign-extended, and the number that has such bits. */
int64_t eval_bits_of(tn_dtype t, double x);
double eval_float_of(tn_dtype t, int64_t bits);

#endif
