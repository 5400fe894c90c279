/* walk.h - reverse mode through the values of one region, which control.c does inside of another: what grad.c and control.c
 * share. Assumes ids in topological order below `end`. */
#ifndef TN_GRAD_WALK_H
#define TN_GRAD_WALK_H

#include "grad/grad.h"

typedef struct grad_ctx {
    graph *g;
    int region;
    val end;         /* nodes from here on are not walked over */
    uint8_t *active; /* [end] */
    val *position;   /* [end] the argmax or argmin of an active value that an integer is computed from, or 0 */
    val *adj;        /* [end] adjoint so far, 0 = none */
    val *again;      /* [end] of a checkpoint that the walk has come to: the value computed again, or itself; else 0 */
    val **results;   /* [end] of an op with several results: adjoints of all but the first, by index; NULL = none */
    void (*mark)(struct grad_ctx *c); /* grad_mark and grad_walk, which use control.c */
    void (*walk)(struct grad_ctx *c);
} grad_ctx;

grad_ctx grad_context(graph *g, int in, val end, void (*mark)(grad_ctx *c), void (*walk)(grad_ctx *c));
void grad_mark(grad_ctx *c);              /* what depends on the values that are active */
void grad_walk(grad_ctx *c);              /* hands adjoints from values to their operands */
void grad_add(grad_ctx *c, val x, val d); /* d is one more part of the adjoint of x */
/* checkpoint.c: n, which is node *v, and *v itself as the rules of its operands are to see them: computed again where it is of
 * a checkpoint. */
void grad_visit_checkpoint(grad_ctx *c, node *n, val *v);
/* control.c: an if, a scan or a proj; false for other ops. */
bool grad_visit_control(grad_ctx *c, val v);

#endif
