/* api.h - what the public entry points share: taking a call in, setting the one guard, recording errors.
 *
 * Every builder is a plain function over ids, run by api_build: it checks the operands, sets the guard, runs the function and
 * turns a jump into the graph's sticky error. So no builder has a setjmp of its own, and no local variable of one survives a
 * jump. */
#ifndef TN_API_API_H
#define TN_API_API_H

#include "drive/objects.h"

/* One builder call, as error texts show it: "file.c:12: tn_add(x f32[2,3], f32[4]): <what is wrong>". */
typedef struct call {
    const char *name;    /* "tn_add" */
    const tn_tensor *in; /* operands: checked (not poisoned, same graph) before the function runs */
    int n_in;
} call;
typedef val (*build_fn)(graph *g, const val *in, const void *args);

/* Runs fn under the guard of `g` (NULL = the graph of the first operand). in: at most API_MAX_STACK_IN operands are copied to
 * the stack, more go to the graph's arena. Returns the poisoned tensor on error; computes the new nodes in an immediate graph.
 */
enum { API_MAX_STACK_IN = 8 };
tn_tensor api_build(tn_graph *g, const call *c, build_fn fn, const void *args);

/* Records the first error of a graph in it, and the text in its context. Returns code. */
tn_status api_fail(tn_graph *g, tn_status code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* The context's last error becomes e. Returns e->code. */
tn_status api_report(tn_ctx *ctx, const err *e);

/* Called after a builder appended nodes: the one place where an immediate graph computes them. */
tn_status api_built(tn_graph *g);

#endif
