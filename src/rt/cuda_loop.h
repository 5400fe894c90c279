/* cuda_loop.h - the kernels of a graph that repeats its body: one counts, the others copy what moves from step to step. PTX,
 * because the driver alone knows the function that sets the condition; it takes a millisecond, once. */
#ifndef TN_RT_CUDA_LOOP_H
#define TN_RT_CUDA_LOOP_H

enum { CUDA_LOOP_BYTES = 6000 };
void cuda_loop_text(int arch, char *out); /* [CUDA_LOOP_BYTES] */

#endif
