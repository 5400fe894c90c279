/* fake_opencl.c - an OpenCL library that computes nothing and fails on demand, for test_faults.sh. Memory is the host's.
 *
 * FAKE_OPENCL: words of none (no platform), bare (no device), small (memory of 1000 bytes), full (memory), refuse (every
 * program), lost (when a kernel is queued), gone (while it runs). Built with OLD: without what version 1.2 brought. */
#include "rt/opencl_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAKE __attribute__((visibility("default")))
#define OBJECT ((cl_object)(void *)&it)

static int it, lost, gone;
static int is(const char *word) {
    const char *all = getenv("FAKE_OPENCL");
    return all && strstr(all, word);
}
static cl_object made(int32_t *e) { return *e = lost, OBJECT; }
static int32_t event(cl_object *out) { return out ? *out = OBJECT, lost : lost; }
static int32_t text(const char *what, size_t size, void *out, size_t *out_size) {
    if (out_size) *out_size = strlen(what) + 1;
    if (out) snprintf(out, size, "%s", what);
    return 0;
}

#define X(result, name, parameters) FAKE result name parameters;
OPENCL_FUNCTIONS(X)
#undef X

int32_t clGetPlatformIDs(uint32_t n, cl_object *out, uint32_t *out_n) {
    if (is("none")) return CL_PLATFORM_NOT_FOUND;
    return (void)n, *out = OBJECT, *out_n = 1, 0;
}
int32_t clGetPlatformInfo(cl_object p, uint32_t what, size_t size, void *out, size_t *out_size) {
    return (void)p, (void)what, text("OpenCL 1.2 fake", size, out, out_size);
}
int32_t clGetDeviceIDs(cl_object p, uint64_t type, uint32_t n, cl_object *out, uint32_t *out_n) {
    if (is("bare")) return CL_DEVICE_NOT_FOUND;
    return (void)p, (void)type, (void)n, *out = OBJECT, *out_n = 1, 0;
}
int32_t clGetDeviceInfo(cl_object d, uint32_t what, size_t size, void *out, size_t *out_size) {
    uint64_t v = what == CL_DEVICE_TYPE                                                      ? CL_DEVICE_TYPE_GPU
                 : what == CL_DEVICE_MAX_WORK_GROUP_SIZE                                     ? 256
                 : what == CL_DEVICE_MAX_PARAMETER_SIZE                                      ? 1024
                 : what == CL_DEVICE_LOCAL_MEM_SIZE                                          ? 48 << 10
                 : what == CL_DEVICE_MAX_MEM_ALLOC_SIZE || what == CL_DEVICE_GLOBAL_MEM_SIZE ? 1 << 30
                 : what == CL_DEVICE_SINGLE_FP_CONFIG || what == CL_DEVICE_DOUBLE_FP_CONFIG  ? 255
                                                                                             : 1;
    (void)d;
    if (what == CL_DEVICE_NAME || what == CL_DRIVER_VERSION) return text("Fake GPU", size, out, out_size);
    if (what == CL_DEVICE_GLOBAL_MEM_SIZE && is("small")) v = 1000;
    return memcpy(out, &v, size < sizeof v ? size : sizeof v), 0;
}
cl_object clCreateContext(const intptr_t *p, uint32_t n, const cl_object *d, void (*notify)(void), void *ud, int32_t *e) {
    return (void)p, (void)n, (void)d, (void)notify, (void)ud, made(e);
}
int32_t clReleaseContext(cl_object c) { return (void)c, 0; }
cl_object clCreateCommandQueue(cl_object c, cl_object d, uint64_t properties, int32_t *e) {
    return (void)c, (void)d, (void)properties, made(e);
}
int32_t clReleaseCommandQueue(cl_object q) { return (void)q, 0; }
cl_object clCreateProgramWithSource(cl_object c, uint32_t n, const char **texts, const size_t *sizes, int32_t *e) {
    return (void)c, (void)n, (void)texts, (void)sizes, made(e);
}
cl_object clCreateProgramWithBinary(cl_object c, uint32_t n, const cl_object *d, const size_t *sizes,
                                    const unsigned char **images, int32_t *states, int32_t *e) {
    return (void)c, (void)n, (void)d, (void)sizes, (void)images, *states = 0, made(e);
}
int32_t clBuildProgram(cl_object p, uint32_t n, const cl_object *d, const char *options, void (*notify)(void), void *ud) {
    (void)p, (void)n, (void)d, (void)options, (void)notify, (void)ud;
    return is("refuse") ? CL_BUILD_PROGRAM_FAILURE : lost;
}
int32_t clGetProgramBuildInfo(cl_object p, cl_object d, uint32_t what, size_t size, void *out, size_t *out_size) {
    return (void)p, (void)d, (void)what, text("kernel.cl:3: error: a planted error", size, out, out_size);
}
int32_t clGetProgramInfo(cl_object p, uint32_t what, size_t size, void *out, size_t *out_size) {
    (void)p, (void)size, (void)out_size;
    return what == CL_PROGRAM_BINARY_SIZES ? *(size_t *)out = 16, 0 : (memset(*(char **)out, 7, 16), 0);
}
int32_t clReleaseProgram(cl_object p) { return (void)p, 0; }
cl_object clCreateKernel(cl_object p, const char *name, int32_t *e) { return (void)p, (void)name, made(e); }
int32_t clReleaseKernel(cl_object k) { return (void)k, 0; }
int32_t clSetKernelArg(cl_object k, uint32_t i, size_t size, const void *value) {
    return (void)k, (void)i, (void)size, (void)value, lost;
}
cl_object clCreateBuffer(cl_object c, uint64_t flags, size_t size, void *host, int32_t *e) {
    (void)c, (void)flags, (void)host;
    if (is("full") && size > 1000) return *e = CL_MEM_OBJECT_ALLOCATION_FAILURE, NULL;
    return *e = lost, calloc(1, size);
}
int32_t clReleaseMemObject(cl_object m) { return free(m), 0; }
int32_t clEnqueueFillBuffer(cl_object q, cl_object m, const void *pattern, size_t n_pattern, size_t offset, size_t size,
                            uint32_t n_wait, const cl_object *wait, cl_object *out) {
    (void)q, (void)pattern, (void)n_pattern, (void)n_wait, (void)wait;
    return memset((char *)m + offset, 0, size), event(out);
}
int32_t clEnqueueWriteBuffer(cl_object q, cl_object m, uint32_t blocking, size_t offset, size_t size, const void *src,
                             uint32_t n_wait, const cl_object *wait, cl_object *out) {
    return (void)q, (void)blocking, (void)n_wait, (void)wait, memcpy((char *)m + offset, src, size), event(out);
}
int32_t clEnqueueReadBuffer(cl_object q, cl_object m, uint32_t blocking, size_t offset, size_t size, void *dst, uint32_t n_wait,
                            const cl_object *wait, cl_object *out) {
    return (void)q, (void)blocking, (void)n_wait, (void)wait, memcpy(dst, (char *)m + offset, size), event(out);
}
int32_t clEnqueueCopyBuffer(cl_object q, cl_object src, cl_object dst, size_t src_offset, size_t dst_offset, size_t size,
                            uint32_t n_wait, const cl_object *wait, cl_object *out) {
    (void)q, (void)n_wait, (void)wait;
    return memmove((char *)dst + dst_offset, (char *)src + src_offset, size), event(out);
}
int32_t clEnqueueNDRangeKernel(cl_object q, cl_object k, uint32_t rank, const size_t *offset, const size_t *global,
                               const size_t *local, uint32_t n_wait, const cl_object *wait, cl_object *out) {
    (void)q, (void)k, (void)rank, (void)offset, (void)global, (void)local, (void)n_wait, (void)wait;
    if (is("lost")) lost = -36; /* CL_INVALID_COMMAND_QUEUE */
    gone |= is("gone");
    return event(out);
}
int32_t clEnqueueMarkerWithWaitList(cl_object q, uint32_t n_wait, const cl_object *wait, cl_object *out) {
    return (void)q, (void)n_wait, (void)wait, event(out);
}
int32_t clWaitForEvents(uint32_t n, const cl_object *events) { return (void)n, (void)events, lost; }
int32_t clGetEventInfo(cl_object ev, uint32_t what, size_t size, void *out, size_t *out_size) {
    (void)ev, (void)what, (void)size, (void)out_size;
    return *(int32_t *)out = gone ? -9999 : 0, lost; /* what NVIDIA's driver says of a wrong address */
}
int32_t clGetEventProfilingInfo(cl_object ev, uint32_t what, size_t size, void *out, size_t *out_size) {
    (void)ev, (void)what, (void)out_size;
    return memset(out, 0, size), lost;
}
int32_t clReleaseEvent(cl_object ev) { return (void)ev, 0; }
int32_t clFlush(cl_object q) { return (void)q, lost; }
#ifndef OLD
int32_t clFinish(cl_object q) { return (void)q, lost; }
#endif
