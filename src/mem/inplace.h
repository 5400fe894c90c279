/* inplace.h - what the files that write results over what they are computed from share. */
#ifndef TN_MEM_INPLACE_H
#define TN_MEM_INPLACE_H

#include "ir/plan.h"

/* inplace.c: which of the kernel's buffers a plan's one is, or -1. */
int inplace_arg(const pkernel *pk, int32_t buf);
/* inplace.c: kernel buffer `from` may be overwritten by what is stored to `to`. */
bool inplace_is_legal(const kernel *k, int from, int to);
/* inplace.c: all that kernel `pk` has in `from` is in `to`; drops what only copied the one to the other. */
void inplace_rebind(pkernel *pk, int32_t from, int32_t to);
/* loop_state.c: takes a launch and its kernel out. */
void inplace_drop(plan *p, int step);

#endif
