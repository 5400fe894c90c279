/* region.h - which regions an op has, and what the attributes of a scan mean. In: graphs. */
#ifndef TN_IR_REGION_H
#define TN_IR_REGION_H

#include "ir/graph.h"

/* Regions. A body uses values of its own region only: what it needs comes in through parameters (OP_param nodes, appended to
 * `params` by graph_add in the order of their index) and leaves through results. A region belongs to one op. An if, while or
 * scan stands for its first result; OP_proj gives the others. */
int graph_region(graph *g, const char *name);
void graph_region_result(graph *g, int region_id, val v);

/* Attributes of a scan. Operands: the count, then those that are carried, then stacks, of which each iteration gets one slice,
 * then what all iterations see. Parameters of the body, and of the condition: all but the count. Results of the body: the next
 * of what is carried, then one slice each of what is stacked. */
enum { SCAN_BODY, SCAN_COND, SCAN_CARRY, SCAN_STEPS, SCAN_LENGTH, SCAN_REVERSE, SCAN_RECOMPUTE, SCAN_ATTRS };
/* How many of an op's attributes are regions: its first ones, of which that of a scan's condition may be 0. */
static inline int node_regions(const node *n) {
    return n->op == OP_if || n->op == OP_while || n->op == OP_scan ? (n->n_attr < 2 ? n->n_attr : 2) : 0;
}
/* The region whose results are the op's: then, or the body; -1 for other ops. */
static inline int64_t node_body(const node *n) {
    return n->op == OP_if || n->op == OP_scan ? n->attr[0] : n->op == OP_while ? n->attr[1] : -1;
}

/* region.c: copies. at[v - first]: what value v, of those from first up to end, is in the copy; the caller fills in parameters.
 */
typedef struct region_map {
    val *at;
    val first, end;
} region_map;
/* The values of region `from` again, in region `to`. */
void region_copy_values(graph *g, int from, int to, region_map m);
int region_copy(graph *g, int from, region_map m); /* a region like it, parameters and results included */
val region_param_like(graph *g, int in, val like);

#endif
