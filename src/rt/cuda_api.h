/* cuda_api.h - what of the CUDA driver the device uses: types, constants and one table of functions, all found at run time. Own
 * declarations, so that building needs no toolkit. Names and values are those of NVIDIA's driver interface, version 12 or
 * newer. */
#ifndef TN_RT_CUDA_API_H
#define TN_RT_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef void *cu_object; /* context, stream, event, module, function, graph, node */
typedef uint64_t cu_pointer;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_NOT_FOUND = 500,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_MAX_THREADS_PER_BLOCK = 1,
    CU_MAX_SHARED_MEMORY_PER_BLOCK = 8,
    CU_CLOCK_KHZ = 13,
    CU_MULTIPROCESSOR_COUNT = 16,
    CU_MEMORY_CLOCK_KHZ = 36,
    CU_MEMORY_BUS_BITS = 37,
    CU_MAX_THREADS_PER_MULTIPROCESSOR = 39,
    CU_L2_CACHE_SIZE = 38,
    CU_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_COMPUTE_CAPABILITY_MINOR = 76,
    CU_MAX_SHARED_MEMORY_OPTIN = 97,
    CU_FUNCTION_SHARED_BYTES = 1,
    CU_FUNCTION_LOCAL_BYTES = 3,
    CU_FUNCTION_REGISTERS = 4,
    CU_FUNCTION_MAX_DYNAMIC_SHARED = 8,
    CU_TENSOR_MAP_UINT16 = 1,
    CU_TENSOR_MAP_SWIZZLE_128B = 3,
    CU_TENSOR_MAP_L2_256B = 3,
    CU_GRAPH_NODE_CONDITIONAL = 13,
    CU_CONDITION_WHILE = 1,
    CU_CONDITION_ASSIGN_DEFAULT = 1,
    CU_EDGE_PORT_PROGRAMMATIC = 1,
    CU_EDGE_PROGRAMMATIC = 1
};

typedef struct cu_kernel_node { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    cu_object function;
    unsigned grid[3], block[3], shared_bytes;
    void **arguments, **extra;
    cu_object kernel, context;
} cu_kernel_node;

/* A node with a graph inside that runs as long as a kernel in it says so. */
typedef struct cu_conditional_node {
    int type, reserved[3];
    uint64_t handle;
    int kind;
    unsigned size;
    cu_object *bodies; /* set by the driver: [size] */
    cu_object context;
    long long more[26];
} cu_conditional_node;

/* Between nodes: what the later one waits for. */
typedef struct cu_graph_edge { /* CUgraphEdgeData */
    unsigned char from_port, to_port, type, reserved[5];
} cu_graph_edge;

/* X(name, symbol, parameters); all return a code. */
#define CUDA_FUNCTIONS(X)                                                                                                      \
    X(cuInit, "cuInit", (unsigned flags))                                                                                      \
    X(cuDriverGetVersion, "cuDriverGetVersion", (int *out))                                                                    \
    X(cuDeviceGetCount, "cuDeviceGetCount", (int *out))                                                                        \
    X(cuDeviceGet, "cuDeviceGet", (int *out, int i))                                                                           \
    X(cuDeviceGetName, "cuDeviceGetName", (char *out, int size, int device))                                                   \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *out, int what, int device))                                          \
    X(cuGetErrorString, "cuGetErrorString", (int code, const char **out))                                                      \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (cu_object * out, int device))                                     \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int device))                                                 \
    X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (cu_object c))                                                                  \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (cu_object * out))                                                                \
    X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t * free, size_t * total))                                                        \
    X(cuMemAlloc, "cuMemAlloc_v2", (cu_pointer * out, size_t size))                                                            \
    X(cuMemFree, "cuMemFree_v2", (cu_pointer p))                                                                               \
    X(cuMemHostAlloc, "cuMemHostAlloc", (void **out, size_t size, unsigned flags))                                             \
    X(cuMemFreeHost, "cuMemFreeHost", (void *p))                                                                               \
    X(cuMemsetD8Async, "cuMemsetD8Async", (cu_pointer p, unsigned char value, size_t n, cu_object stream))                     \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (cu_pointer to, const void *from, size_t n, cu_object stream))                \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *to, cu_pointer from, size_t n, cu_object stream))                      \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (cu_pointer to, cu_pointer from, size_t n, cu_object stream))                 \
    X(cuModuleLoadData, "cuModuleLoadData", (cu_object * out, const void *image))                                              \
    X(cuModuleUnload, "cuModuleUnload", (cu_object m))                                                                         \
    X(cuModuleGetFunction, "cuModuleGetFunction", (cu_object * out, cu_object m, const char *name))                            \
    X(cuFuncGetAttribute, "cuFuncGetAttribute", (int *out, int what, cu_object f))                                             \
    X(cuFuncSetAttribute, "cuFuncSetAttribute", (cu_object f, int what, int value))                                            \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                              \
      (int *out, cu_object f, int block_threads, size_t shared))                                                               \
    X(cuLaunchKernel, "cuLaunchKernel",                                                                                        \
      (cu_object f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,             \
       cu_object stream, void **arguments, void **extra))                                                                      \
    X(cuStreamCreate, "cuStreamCreate", (cu_object * out, unsigned flags))                                                     \
    X(cuStreamDestroy, "cuStreamDestroy_v2", (cu_object s))                                                                    \
    X(cuStreamSynchronize, "cuStreamSynchronize", (cu_object s))                                                               \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", (cu_object s, cu_object ev, unsigned flags))                                     \
    X(cuEventCreate, "cuEventCreate", (cu_object * out, unsigned flags))                                                       \
    X(cuEventDestroy, "cuEventDestroy_v2", (cu_object ev))                                                                     \
    X(cuEventRecord, "cuEventRecord", (cu_object ev, cu_object stream))                                                        \
    X(cuEventElapsedTime, "cuEventElapsedTime", (float *out_ms, cu_object from, cu_object to))                                 \
    X(cuEventSynchronize, "cuEventSynchronize", (cu_object ev))                                                                \
    X(cuGraphCreate, "cuGraphCreate", (cu_object * out, unsigned flags))                                                       \
    X(cuGraphDestroy, "cuGraphDestroy", (cu_object g))                                                                         \
    X(cuGraphAddKernelNode, "cuGraphAddKernelNode_v2",                                                                         \
      (cu_object * out, cu_object g, const cu_object *before, size_t n_before, const cu_kernel_node *what))                    \
    X(cuGraphInstantiate, "cuGraphInstantiateWithFlags", (cu_object * out, cu_object g, unsigned long long flags))             \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", (cu_object x))                                                                 \
    X(cuGraphLaunch, "cuGraphLaunch", (cu_object x, cu_object stream))

/* The first one of drivers for CUDA 11.1 and newer, the second and the third of 12.0, the others of 12.4 and newer; NULL
 * elsewhere. */
#define CUDA_OPTIONAL(X)                                                                                                       \
    X(cuGraphAddEventRecordNode, "cuGraphAddEventRecordNode",                                                                  \
      (cu_object * out, cu_object g, const cu_object *before, size_t n_before, cu_object event))                               \
    X(cuGraphExecKernelNodeSetParams, "cuGraphExecKernelNodeSetParams_v2",                                                     \
      (cu_object x, cu_object node, const cu_kernel_node *what))                                                               \
    X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                                                        \
      (void *out, int type, unsigned rank, cu_pointer at, const uint64_t *sizes, const uint64_t *strides, const uint32_t *box, \
       const uint32_t *steps, int interleave, int swizzle, int l2, int fill))                                                  \
    X(cuGraphConditionalHandleCreate, "cuGraphConditionalHandleCreate",                                                        \
      (uint64_t * out, cu_object g, cu_object context, unsigned first, unsigned flags))                                        \
    X(cuGraphAddNode, "cuGraphAddNode_v2",                                                                                     \
      (cu_object * out, cu_object g, const cu_object *before, const cu_graph_edge *edges, size_t n_before,                     \
       cu_conditional_node *what))                                                                                             \
    X(cuGraphAddDependencies, "cuGraphAddDependencies_v2",                                                                     \
      (cu_object g, const cu_object *from, const cu_object *to, const cu_graph_edge *edges, size_t n))

typedef struct cuda_api {
#define X(name, symbol, parameters) int(*name) parameters;
    CUDA_FUNCTIONS(X)
    CUDA_OPTIONAL(X)
#undef X
} cuda_api;

#endif
