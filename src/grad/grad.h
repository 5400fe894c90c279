/* grad.h - reverse mode as a graph-to-graph transformation. In: a scalar float loss and the values to differentiate by.
 * Out: new nodes of the same graph. Rules of elementwise ops are the grad columns of ops.def; other classes have one rule each.
 */
#ifndef TN_GRAD_GRAD_H
#define TN_GRAD_GRAD_H

#include "ir/graph.h"

/* out[i] = d loss / d xs[i], same shape and dtype as xs[i] (zeros where loss does not depend on it). Jumps with
 * TN_ERR_UNSUPPORTED and the op's name and place when an op marked NOGRAD lies between on a float path. */
void grad_build(graph *g, val loss, const val *xs, int n, val *out);

#endif
