/* eval_race.h - finds races between the threads of a GPU kernel that the interpreter runs (eval_kernel.c).
 *
 * Two accesses to one element, one of them a store, are a race unless one thread does both or a barrier stands between them:
 * a barrier of the thread block, or of the cluster where the threads are of two thread blocks of one. Thread blocks that are
 * of no cluster never wait for each other. Nothing is said of the order in which they ran here: a race is found whether it
 * showed or not. What matrix units and asynchronous copies read and write counts as the thread's own access at that place. */
#ifndef TN_EVAL_EVAL_RACE_H
#define TN_EVAL_EVAL_RACE_H

#include "ir/kernel.h"

typedef struct race_thread {            /* where a thread is */
    int32_t thread, block;              /* of the launch, from 1 */
    int32_t barriers, cluster_barriers; /* that it has passed */
} race_thread;

typedef struct race_log race_log; /* who has accessed what in one launch */

/* base[b]: where buffer b lies; buffers may overlap. In arena a. */
race_log *race_log_make(const kernel *k, unsigned char *const *base, arena *a);
/* Another thread block's shared memory begins. g: which of its cluster. */
void race_log_clear(race_log *log, int g);
/* t, of thread block g of its cluster, accesses an element. Gives the thread of an access that no barrier keeps apart, or 0. */
int64_t race_load(race_log *log, int g, int buf, int64_t at, const race_thread *t);
int64_t race_store(race_log *log, int g, int buf, int64_t at, const race_thread *t);

#endif
