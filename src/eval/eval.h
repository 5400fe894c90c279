/* eval.h - the reference meaning of graphs, slow and obvious: the oracle of every test, and what constant folding uses.
 *
 * Float dtypes are computed in double and rounded only by cast; integers and bool are exact (int64, wrapped to their dtype). */
#ifndef TN_EVAL_EVAL_H
#define TN_EVAL_EVAL_H

#include "ir/graph.h"

typedef struct eval_value { /* row-major; one of the two is set, by the dtype's kind */
    double *f;
    int64_t *i;
} eval_value;

/* Values of all nodes, indexed by val, in arena a. in[k] is the value of g->inputs.at[k] (inputs and states); a state whose entry is empty
 * takes its initial value. Jumps with TN_ERR_UNSUPPORTED for symbolic dims. */
eval_value *eval_graph(const graph *g, arena *a, const eval_value *in);
eval_value eval_load(const graph *g, arena *a, val v, const void *data);           /* typed array of v's shape and dtype -> value */
void eval_store(const graph *g, val v, eval_value x, void *data);                  /* value -> typed array, rounded */

#endif
