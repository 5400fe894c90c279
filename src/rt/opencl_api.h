/* opencl_api.h - what of OpenCL 1.2 the device uses: types, constants and one table of functions, all found at run time. Own
 * declarations, so that building needs no headers. Names and values are those of the Khronos specification. */
#ifndef TN_RT_OPENCL_API_H
#define TN_RT_OPENCL_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct cl_object_ *cl_object; /* platform, device, context, queue, memory, program, kernel, event */

enum {
    CL_SUCCESS = 0,
    CL_DEVICE_NOT_FOUND = -1,
    CL_MEM_OBJECT_ALLOCATION_FAILURE = -4,
    CL_OUT_OF_RESOURCES = -5,
    CL_OUT_OF_HOST_MEMORY = -6,
    CL_BUILD_PROGRAM_FAILURE = -11,
    CL_INVALID_KERNEL_NAME = -46,
    CL_INVALID_BUFFER_SIZE = -61,
    CL_PLATFORM_NOT_FOUND = -1001
};
enum {
    CL_PLATFORM_VERSION = 0x0901,
    CL_PLATFORM_NAME = 0x0902,
    CL_DEVICE_TYPE = 0x1000,
    CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C,
    CL_DEVICE_TYPE_GPU = 1 << 2,
    CL_DEVICE_TYPE_ACCELERATOR = 1 << 3,
    CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
    CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
    CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
    CL_DEVICE_MAX_PARAMETER_SIZE = 0x1017,
    CL_DEVICE_SINGLE_FP_CONFIG = 0x101B,
    CL_DEVICE_GLOBAL_MEM_CACHE_SIZE = 0x101E,
    CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F,
    CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
    CL_DEVICE_NAME = 0x102B,
    CL_DRIVER_VERSION = 0x102D,
    CL_DEVICE_DOUBLE_FP_CONFIG = 0x1032,
    CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT = 1 << 7,
    CL_MEM_READ_WRITE = 1,
    CL_PROGRAM_BINARY_SIZES = 0x1165,
    CL_PROGRAM_BINARIES = 0x1166,
    CL_PROGRAM_BUILD_LOG = 0x1183,
    CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
    CL_QUEUE_PROFILING_ENABLE = 2,
    CL_PROFILING_COMMAND_START = 0x1282,
    CL_PROFILING_COMMAND_END = 0x1283
};
#define CL_DEVICE_TYPE_ALL 0xFFFFFFFFu

/* X(result, name, parameters) */
#define OPENCL_FUNCTIONS(X)                                                                                                    \
    X(int32_t, clGetPlatformIDs, (uint32_t n, cl_object * out, uint32_t * out_n))                                              \
    X(int32_t, clGetPlatformInfo, (cl_object p, uint32_t what, size_t size, void *out, size_t *out_size))                      \
    X(int32_t, clGetDeviceIDs, (cl_object p, uint64_t type, uint32_t n, cl_object * out, uint32_t * out_n))                    \
    X(int32_t, clGetDeviceInfo, (cl_object d, uint32_t what, size_t size, void *out, size_t *out_size))                        \
    X(cl_object, clCreateContext,                                                                                              \
      (const intptr_t *properties, uint32_t n, const cl_object *devices, void (*notify)(void), void *ud, int32_t *e))          \
    X(int32_t, clReleaseContext, (cl_object c))                                                                                \
    X(cl_object, clCreateCommandQueue, (cl_object c, cl_object d, uint64_t properties, int32_t * e))                           \
    X(int32_t, clReleaseCommandQueue, (cl_object q))                                                                           \
    X(cl_object, clCreateProgramWithSource, (cl_object c, uint32_t n, const char **texts, const size_t *sizes, int32_t *e))    \
    X(cl_object, clCreateProgramWithBinary,                                                                                    \
      (cl_object c, uint32_t n, const cl_object *devices, const size_t *sizes, const unsigned char **images, int32_t *states,  \
       int32_t *e))                                                                                                            \
    X(int32_t, clBuildProgram,                                                                                                 \
      (cl_object p, uint32_t n, const cl_object *devices, const char *options, void (*notify)(void), void *ud))                \
    X(int32_t, clGetProgramBuildInfo, (cl_object p, cl_object d, uint32_t what, size_t size, void *out, size_t *out_size))     \
    X(int32_t, clGetProgramInfo, (cl_object p, uint32_t what, size_t size, void *out, size_t *out_size))                       \
    X(int32_t, clReleaseProgram, (cl_object p))                                                                                \
    X(cl_object, clCreateKernel, (cl_object p, const char *name, int32_t *e))                                                  \
    X(int32_t, clReleaseKernel, (cl_object k))                                                                                 \
    X(int32_t, clSetKernelArg, (cl_object k, uint32_t i, size_t size, const void *value))                                      \
    X(cl_object, clCreateBuffer, (cl_object c, uint64_t flags, size_t size, void *host, int32_t *e))                           \
    X(int32_t, clReleaseMemObject, (cl_object m))                                                                              \
    X(int32_t, clEnqueueFillBuffer,                                                                                            \
      (cl_object q, cl_object m, const void *pattern, size_t n_pattern, size_t offset, size_t size, uint32_t n_wait,           \
       const cl_object *wait, cl_object *out_event))                                                                           \
    X(int32_t, clEnqueueWriteBuffer,                                                                                           \
      (cl_object q, cl_object m, uint32_t blocking, size_t offset, size_t size, const void *src, uint32_t n_wait,              \
       const cl_object *wait, cl_object *out_event))                                                                           \
    X(int32_t, clEnqueueReadBuffer,                                                                                            \
      (cl_object q, cl_object m, uint32_t blocking, size_t offset, size_t size, void *dst, uint32_t n_wait,                    \
       const cl_object *wait, cl_object *out_event))                                                                           \
    X(int32_t, clEnqueueCopyBuffer,                                                                                            \
      (cl_object q, cl_object src, cl_object dst, size_t src_offset, size_t dst_offset, size_t size, uint32_t n_wait,          \
       const cl_object *wait, cl_object *out_event))                                                                           \
    X(int32_t, clEnqueueNDRangeKernel,                                                                                         \
      (cl_object q, cl_object k, uint32_t rank, const size_t *offset, const size_t *global, const size_t *local,               \
       uint32_t n_wait, const cl_object *wait, cl_object *out_event))                                                          \
    X(int32_t, clEnqueueMarkerWithWaitList, (cl_object q, uint32_t n_wait, const cl_object *wait, cl_object *out_event))       \
    X(int32_t, clWaitForEvents, (uint32_t n, const cl_object *events))                                                         \
    X(int32_t, clGetEventInfo, (cl_object ev, uint32_t what, size_t size, void *out, size_t *out_size))                        \
    X(int32_t, clGetEventProfilingInfo, (cl_object ev, uint32_t what, size_t size, void *out, size_t *out_size))               \
    X(int32_t, clReleaseEvent, (cl_object ev))                                                                                 \
    X(int32_t, clFlush, (cl_object q))                                                                                         \
    X(int32_t, clFinish, (cl_object q))

typedef struct opencl_api {
#define X(result, name, parameters) result(*name) parameters;
    OPENCL_FUNCTIONS(X)
#undef X
} opencl_api;

#endif
