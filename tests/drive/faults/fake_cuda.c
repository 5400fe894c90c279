/* fake_cuda.c - a driver that computes nothing and fails on demand, for test_faults.sh. Device memory is the host's.
 *
 * FAKE_CUDA: words of none (no GPU), mismatch (of the kernel's part), full (memory), lost (at the first launch).
 * FAKE_CUDA_LOG: a file that gets a line for every graph launch, every loop that is made, every upload to and wait of a stream.
 * Built with OLD: without cuGraphLaunch; with NO_LOOPS: without what CUDA 12.4 brought. */
#include "rt/cuda_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAKE __attribute__((visibility("default"))) int

static int lost;
static int is(const char *word) {
    const char *all = getenv("FAKE_CUDA");
    return all && strstr(all, word);
}
static void say(const char *what) {
    const char *path = getenv("FAKE_CUDA_LOG");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    fprintf(f, "%s\n", what);
    fclose(f);
}
/* Streams are numbered in the order in which they are made. */
static char streams[64];
static void say_stream(const char *what, cu_object s) {
    char line[64];
    snprintf(line, sizeof line, "%s %d", what, s ? (int)((char *)s - streams) : -1);
    say(line);
}
static int launch(void) { return lost |= is("lost") ? 719 : 0; }

FAKE cuInit(unsigned flags) { return (void)flags, is("none") ? CUDA_ERROR_NO_DEVICE : is("mismatch") ? 803 : 0; }
FAKE cuDriverGetVersion(int *out) { return *out = 12020, 0; }
FAKE cuDeviceGetCount(int *out) { return *out = 1, 0; }
FAKE cuDeviceGet(int *out, int i) { return *out = i, 0; }
FAKE cuDeviceGetName(char *out, int n, int d) { return (void)d, snprintf(out, (size_t)n, "Fake GPU"), 0; }
FAKE cuDeviceGetAttribute(int *out, int what, int device) {
    (void)device;
    switch (what) {
    case CU_MAX_THREADS_PER_BLOCK:
        return *out = 1024, 0;
    case CU_MAX_SHARED_MEMORY_PER_BLOCK:
        return *out = 48 << 10, 0;
    case CU_CLOCK_KHZ:
        return *out = 1500000, 0;
    case CU_MULTIPROCESSOR_COUNT:
        return *out = 100, 0;
    case CU_MEMORY_CLOCK_KHZ:
        return *out = 2500000, 0;
    case CU_MEMORY_BUS_BITS:
        return *out = 5120, 0;
    case CU_L2_CACHE_SIZE:
        return *out = 50 << 20, 0;
    case CU_COMPUTE_CAPABILITY_MAJOR:
        return *out = 9, 0;
    default:
        return *out = 0, 0;
    }
}
FAKE cuGetErrorString(int code, const char **out) {
    *out = code == 719 ? "unspecified launch failure" : code == 803 ? "system has unsupported driver version" : "an error";
    return 0;
}
FAKE cuDevicePrimaryCtxRetain(cu_object *out, int d) { return (void)d, *out = &lost, 0; }
FAKE cuDevicePrimaryCtxRelease_v2(int d) { return (void)d, 0; }
FAKE cuCtxPushCurrent_v2(cu_object c) { return (void)c, 0; }
FAKE cuCtxPopCurrent_v2(cu_object *out) { return *out = &lost, 0; }
FAKE cuMemGetInfo_v2(size_t *room, size_t *total) { return *total = 1 << 30, *room = is("full") ? 1000 : 1 << 30, 0; }
FAKE cuMemAlloc_v2(cu_pointer *out, size_t size) {
    if (is("full") && size > 1000) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (cu_pointer)(uintptr_t)calloc(1, size + 1);
    return *out ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}
FAKE cuMemFree_v2(cu_pointer p) { return free((void *)(uintptr_t)p), lost; }
FAKE cuMemHostAlloc(void **out, size_t size, unsigned flags) {
    return (void)flags, *out = calloc(1, size), *out ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}
FAKE cuMemFreeHost(void *p) { return free(p), 0; }
FAKE cuMemsetD8Async(cu_pointer p, unsigned char v, size_t n, cu_object s) {
    return (void)s, memset((void *)(uintptr_t)p, v, n), lost;
}
FAKE cuMemcpyHtoDAsync_v2(cu_pointer to, const void *from, size_t n, cu_object s) {
    return say_stream("upload", s), memcpy((void *)(uintptr_t)to, from, n), lost;
}
FAKE cuMemcpyDtoHAsync_v2(void *to, cu_pointer from, size_t n, cu_object s) {
    return (void)s, memcpy(to, (void *)(uintptr_t)from, n), lost;
}
FAKE cuMemcpyDtoDAsync_v2(cu_pointer to, cu_pointer from, size_t n, cu_object s) {
    return (void)s, memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, n), lost;
}
FAKE cuModuleLoadData(cu_object *out, const void *image) { return (void)image, *out = &lost, lost; }
FAKE cuModuleUnload(cu_object m) { return (void)m, lost; }
FAKE cuModuleGetFunction(cu_object *out, cu_object m, const char *name) { return (void)m, (void)name, *out = &lost, 0; }
FAKE cuFuncGetAttribute(int *out, int what, cu_object f) { return (void)what, (void)f, *out = 0, 0; }
FAKE cuFuncSetAttribute(cu_object f, int what, int value) { return (void)f, (void)what, (void)value, 0; }
FAKE cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, cu_object f, int block_threads, size_t shared) {
    return (void)f, (void)block_threads, (void)shared, *out = 1, 0;
}
FAKE cuLaunchKernel(cu_object f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                    cu_object stream, void **arguments, void **extra) {
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)arguments,
        (void)extra;
    return say("kernel"), launch();
}
FAKE cuStreamCreate(cu_object *out, unsigned flags) {
    static int n;
    return (void)flags, *out = &streams[n++ % 64], 0;
}
FAKE cuStreamDestroy_v2(cu_object s) { return (void)s, 0; }
FAKE cuStreamSynchronize(cu_object s) { return (void)s, lost; }
FAKE cuStreamWaitEvent(cu_object s, cu_object ev, unsigned flags) { return say_stream("wait", s), (void)ev, (void)flags, lost; }
FAKE cuEventCreate(cu_object *out, unsigned flags) { return (void)flags, *out = &lost, 0; }
FAKE cuEventDestroy_v2(cu_object ev) { return (void)ev, 0; }
FAKE cuEventRecord(cu_object ev, cu_object s) { return (void)ev, (void)s, lost; }
FAKE cuEventElapsedTime(float *out, cu_object from, cu_object to) { return (void)from, (void)to, *out = 0.001f, lost; }
FAKE cuEventSynchronize(cu_object ev) { return (void)ev, lost; }
FAKE cuGraphCreate(cu_object *out, unsigned flags) { return (void)flags, *out = &lost, 0; }
FAKE cuGraphDestroy(cu_object g) { return (void)g, 0; }
FAKE cuGraphAddKernelNode_v2(cu_object *out, cu_object g, const cu_object *before, size_t n, const cu_kernel_node *what) {
    return (void)g, (void)before, (void)n, (void)what, *out = &lost, 0;
}
FAKE cuGraphInstantiateWithFlags(cu_object *out, cu_object g, unsigned long long flags) {
    return (void)g, (void)flags, *out = &lost, 0;
}
FAKE cuGraphExecKernelNodeSetParams_v2(cu_object x, cu_object node, const cu_kernel_node *what) {
    return (void)x, (void)node, (void)what, say("patch"), lost;
}
FAKE cuGraphExecDestroy(cu_object x) { return (void)x, 0; }
#ifndef OLD
FAKE cuGraphLaunch(cu_object x, cu_object s) { return (void)x, (void)s, say("graph"), launch(); }
#endif
#ifndef NO_LOOPS
FAKE cuGraphAddEventRecordNode(cu_object *out, cu_object g, const cu_object *before, size_t n, cu_object event) {
    return (void)g, (void)before, (void)n, (void)event, *out = &lost, 0;
}
FAKE cuGraphConditionalHandleCreate(uint64_t *out, cu_object g, cu_object context, unsigned first, unsigned flags) {
    return (void)g, (void)context, (void)first, (void)flags, *out = 1, 0;
}
FAKE cuGraphAddNode_v2(cu_object *out, cu_object g, const cu_object *before, const void *edges, size_t n,
                       cu_conditional_node *what) {
    static cu_object body = &lost;
    if (what->type != CU_GRAPH_NODE_CONDITIONAL || what->kind != CU_CONDITION_WHILE || what->handle != 1) return 1;
    return (void)g, (void)before, (void)edges, (void)n, *out = &lost, what->bodies = &body, say("loop"), 0;
}
#endif
