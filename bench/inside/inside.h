/* inside.h - what benchmarks measure that no user of the library can: its thread team, and kernels written by hand on its
 * devices. These files reach inside the library through its archive; they are no part of it. Errors are in the context, as
 * after calls of the library. */
#ifndef TN_BENCH_INSIDE_H
#define TN_BENCH_INSIDE_H

#include <tenon/tenon.h>

/* Runs `times` empty regions on a thread team of its own, such as devices run kernels with (threads 0 = as many as the process
 * may use), with so many barriers in each: what starting and joining threads costs. The seconds of all of them are written to
 * out_seconds. */
tn_status inside_region(tn_ctx *ctx, int threads, int64_t times, int barriers, double *out_seconds);

/* Kernels written by hand in the language of a GPU, run as those of the compiler are: what these are measured against. source:
 * CUDA C or OpenCL C. Buffer i has bytes[i], zero at first. Launches are added in order and run in that order, many times over:
 * every buffer counts as written by every launch. Parameters of an entry: a pointer a buffer (CUDA), or a __global uchar * and
 * a ulong with an offset in bytes for each (OpenCL). The context must outlive it. */
typedef struct inside_kernels inside_kernels;
tn_status inside_kernels_new(tn_ctx *ctx, const char *device, const char *source, const size_t *bytes, int n_buffers,
                             inside_kernels **out_kernels);
void inside_kernels_free(inside_kernels *k); /* NULL is fine */
tn_status inside_kernels_launch(inside_kernels *k, const char *entry, int threads, int64_t blocks);
/* All launches, so many times over; returns when they are done. No launch can be added afterwards. */
tn_status inside_kernels_run(inside_kernels *k, int64_t times);
tn_status inside_kernels_write(inside_kernels *k, int buffer, const void *data, size_t bytes);
tn_status inside_kernels_read(inside_kernels *k, int buffer, void *data, size_t bytes);

/* replay.c: bytes of kernel i of a program for the CPU that was compiled for one thread: loads and stores, then what comes into
 * each cache, by the cost model and as counted in a simulation of caches of the machine's sizes. l3_bytes: another size of the
 * last one, for kernels that need no time; 0: the machine's. TN_ERR_UNSUPPORTED where values decide what it touches. */
typedef struct inside_bytes {
    const char *name;                    /* lives as long as the program */
    int repeats;                         /* 1 = it has the code of a kernel before it */
    double predicted[4], counted[4];     /* L1: loads and stores; into L1, into L2, into L3: the last is what memory gives */
    double cold_predicted, cold_counted; /* that memory gives where caches have nothing of the kernel's yet */
} inside_bytes;
tn_status inside_replay(const tn_program *p, int i, int64_t l3_bytes, inside_bytes *out);

#endif
