/* lay_out.h - constant operands in the order of loops. In: scalar form. */
#ifndef TN_LOOP_LAY_OUT_H
#define TN_LOOP_LAY_OUT_H

#include "loop/loop.h"

int loop_only_load(const kernel *k, int buf); /* the only instruction that uses the buffer, a load; 0: there is none */
/* Lays the buffer out in the order of the loops around that load, `last` (-1: none of them) innermost; or says *why not. */
bool loop_lay_out(kernel *k, int buf, kvar last, str *why);

/* join_bytes.c: those panels in words of four bytes. */
const kpanels *loop_joined(arena *a, const kpanels *x);

#endif
