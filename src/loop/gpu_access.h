/* gpu_access.h - what neighbouring threads of a GPU touch together. */
#ifndef TN_LOOP_GPU_ACCESS_H
#define TN_LOOP_GPU_ACCESS_H

#include "ir/kernel.h"

typedef struct gpu_access {
    int buf; /* of the kernel */
    bool store, indexed /* also by a value: where is known only in a run */;
    int threads, bytes, sectors; /* of neighbours; different bytes that they touch together; sectors of 32 that these lie in */
} gpu_access;
/* The different ones of a kernel in the form of a GPU, in a; returns how many. */
int gpu_accesses(const kernel *k, arena *a, gpu_access **out);

#endif
