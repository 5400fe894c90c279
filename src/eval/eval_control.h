/* eval_control.h - one if, while or scan by itself, and how much roundings in its bodies change.
 *
 * In: a graph, the values of the op's operands. Out: the values of its results, in the caller's arena. */
#ifndef TN_EVAL_EVAL_CONTROL_H
#define TN_EVAL_EVAL_CONTROL_H

#include "eval/eval.h"

/* The results of control op v (if, while, scan) on operands[k]. moved (NULL: none) is called after each op of its regions that
 * gives floats, and may change its value `out`; size: of sums the sum of absolute terms, else nothing. */
typedef void (*eval_moved)(void *ud, const graph *g, val v, eval_value out, eval_value size);
const eval_value *eval_control(const graph *g, arena *a, val v, const eval_value *operands, eval_moved moved, void *ud);
bool eval_is_sum(const node *n); /* its error scales with the sum of absolute terms */

#endif
