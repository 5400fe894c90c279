/* rewrite.h - what the passes share: one loop over the graph, and small questions about nodes.
 *
 * A rule looks at one value and returns what to use instead: the same value or 0 for "no change", else a value of equal shape
 * and dtype, old or newly added. Nodes of a region are rewritten inside of it, between its parameters and its results. Rules
 * never see sources; most see no node that touches symbolic dims. */
#ifndef TN_PASS_REWRITE_H
#define TN_PASS_REWRITE_H

#include "ir/graph.h"
#include "pass/pass.h"

#define PASS(name, stage, doc, regions) bool pass_##name(graph *g, arena *scratch);
#include "pass/passes.def"
#undef PASS

typedef val (*rewrite_fn)(graph *g, val v, arena *scratch);

/* Applies rules in topological order to every node, also to those they add, and redirects uses. New nodes get the place and,
 * when they stand for a labelled node, its label. Nodes that nothing reads any more let go of their operands, so that
 * graph_n_uses and graph_used_once count readers that will be left. Returns whether anything changed. */
bool rewrite_each(graph *g, arena *scratch, rewrite_fn rule);
bool rewrite_dims(graph *g, arena *scratch, rewrite_fn rule); /* the rule sees nodes that touch symbolic dims, too */

bool touches_dims(const graph *g, val v); /* as what rewrite_each passes over */
bool is_static(const graph *g, val v);    /* no symbolic dims, nor places */
bool is_splat(const graph *g, val v);
bool splat_is(const graph *g, val v, double c);                          /* bitwise for floats: 0 is not -0 */
bool splat_same(const graph *g, val x, val y);                           /* both splats of one dtype and value, dims aside */
val splat_resize(graph *g, val v, int rank, const int64_t *dims);        /* the same splat under other dims */
val permute_known(graph *g, val x, const int64_t *perm, arena *scratch); /* 0: it is no constant, and not in order */
val zeros(graph *g, tn_dtype t, int rank, const int64_t *dims);
bool same_dims(int rank_x, const int64_t *x, int rank_y, const int64_t *y);
bool same_attr(const node *x, const node *y); /* attributes and imm */
/* The node again with other operands (its dims follow by the op's rule unless given). */
val remake(graph *g, const node *n, const val *in, int rank, const int64_t *dims);
/* map[i] = axis of x that axis i of y is, or -1 for an axis of size 1 that x may lack; false when a reshape between the two
 * does more than add and drop axes of size 1. */
bool unit_reshape(const node *x, const node *y, int map[TN_MAX_RANK]);
bool contract_in(graph *g, arena *scratch, tn_dtype t);         /* contract_bf16.c */
bool splits_large_reduce(const graph *g, val x, uint64_t axes); /* reduce_split's test, which algebra must not undo */

/* dot_split.c, for contractions without dims of a run: */
typedef struct dot_sizes {
    int64_t batch, steps, side[2]; /* steps: of the contraction; rows, and columns, of the result */
} dot_sizes;
dot_sizes dot_sizes_of(const graph *g, const node *d);
int64_t dot_tiles(const dot_sizes *s);             /* of 64 rows and columns that its result has */
int64_t dot_divisor(int64_t n, int64_t most);      /* the largest of n up to `most` */
bool dot_spreads(const graph *g, val v);           /* v is a number of each row, as often as the row is long */
bool dot_may_split(const graph *g, const node *d); /* it is one, there is room for an axis, and it is no part of attention */
/* The sums of dot v along parts of its contracted axis `which`, of operands as t: t[parts, ..as v..]. */
val dot_in_parts(graph *g, val v, int which, int64_t parts, tn_dtype t);

static inline bool mask_has(uint64_t mask, int i) { return (mask >> i & 1) != 0; }

#endif
