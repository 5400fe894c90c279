/* eval_kernel.h - runs plans without a compiler: the meaning of kernels, in both forms, on memory laid out as planned.
 *
 * f32 registers hold floats after every instruction (a fused multiply-add rounds once), so results are those of the generated
 * code up to contraction and the errors of its exp, tanh and so on. Every access is checked against its buffer: outside is
 * TN_ERR_INTERNAL with the kernel's and the instruction's name. */
#ifndef TN_EVAL_EVAL_KERNEL_H
#define TN_EVAL_EVAL_KERNEL_H

#include "ir/plan.h"

enum { EVAL_POISON = 0xCB }; /* what memory holds that nobody has written */

typedef struct eval_memory { /* one block a slot */
    unsigned char *temp, *state, *shared, *consts;
    void **io; /* [plan.io.n] of exactly the size of each input and output */
} eval_memory;

/* Temporaries and outputs poisoned, states initialised, constants filled, inputs poisoned until the caller writes them. In
 * arena a. */
eval_memory *eval_memory_make(const plan *p, arena *a);
/* The steps, as one thread; a loop over the steps of a run goes once, or so many times. lengths[k]: after how many iterations
 * the ring of input or output k begins again, 0: it does not move. What moves has room for its ring in m->io. Jumps through
 * a->gd. */
void eval_plan(const plan *p, eval_memory *m, arena *a);
void eval_plan_n(const plan *p, eval_memory *m, int64_t steps, const int64_t *lengths, arena *a);
/* One kernel. base[b] is where kernel buffer b begins; local buffers are made here (base[b] is ignored). */
void eval_kernel(const kernel *k, unsigned char *const *base, arena *a);
/* The same of a kernel with parameters, for these values of its dims. */
void eval_kernel_at(const kernel *k, const int64_t *dims, unsigned char *const *base, arena *a);

/* What threads that share out the parallel loop touch, one thread after the other, each in the order in which it does, without
 * memory and values: `bytes` side by side of buffer `buf` from byte `at` on. Prefetches are loads of one byte. */
typedef struct eval_touch {
    int buf, thread;
    int64_t at, bytes;
    bool write, nontemporal;
} eval_touch;
typedef void (*eval_touch_fn)(const eval_touch *x, void *ud);
/* Of a kernel that it is known of; of others TN_ERR_UNSUPPORTED. */
void eval_kernel_touches(const kernel *k, int threads, eval_touch_fn f, void *ud, arena *a);
const char *eval_touches_unknown(const kernel *k); /* why it is not known; NULL: it is */
double eval_kernel_steps(const kernel *k);         /* instructions that this goes through */

#endif
