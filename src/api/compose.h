/* compose.h - what builders that are a few ops each are written with. In: values of one graph. Out: new ones; jumps on errors.
 */
#ifndef TN_API_COMPOSE_H
#define TN_API_COMPOSE_H

#include "api/api.h"

#define FAIL(g, ...) guard_fail((g)->a->gd, __VA_ARGS__)
#define ONE(text, x) (&(call){ .name = text, .in = &(x), .n_in = 1 })
#define TWO(text, x, y) (&(call){ .name = text, .in = (const tn_tensor[]){ x, y }, .n_in = 2 })

static inline tn_dtype dtype_of(const graph *g, val x) { return (tn_dtype)graph_get(g, x)->dtype; }
static inline val one(graph *g, op_code op, val x) { return graph_unary(g, op, x); }
static inline val two(graph *g, op_code op, val x, val y) { return api_add_elementwise(g, op, (const val[]){ x, y }); }
static inline val with(graph *g, op_code op, val x, double s) { return graph_binary(g, op, x, graph_splat_like(g, x, s)); }
static inline val choose(graph *g, val c, val x, val y) { return api_add_elementwise(g, OP_select, (const val[]){ c, x, y }); }

#endif
