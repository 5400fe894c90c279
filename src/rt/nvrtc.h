/* nvrtc.h - CUDA C to a cubin by NVIDIA's run-time compiler, found at run time. No GPU and no headers are needed. Safe: several
 * threads may compile at once. */
#ifndef TN_RT_NVRTC_H
#define TN_RT_NVRTC_H

#include "base/base.h"

typedef struct nvrtc nvrtc;

/* TN_ERR_DEVICE, with what to install, when there is no library. */
tn_status nvrtc_open(mem m, nvrtc **out, err *e);
void nvrtc_close(nvrtc *n); /* NULL is fine */
/* The cubin for sm_<arch> (80, 90, ...), of `m`; free with mem_free(m, image, size). TN_ERR_BUILD has the compiler's log.
 * out_log (may be NULL) gets the log of a success, of registers and spills: free with mem_strfree. */
tn_status nvrtc_compile(nvrtc *n, const char *source, int arch, unsigned char **out_image, size_t *out_size, char **out_log,
                        err *e);
/* The same for parts of a program, each a whole text, of which up to `threads` are compiled at a time. count is at most
 * NVRTC_MOST_PARTS. All are made, or none. */
enum { NVRTC_MOST_PARTS = 64 };
tn_status nvrtc_compile_parts(nvrtc *n, const char *const *sources, int count, int arch, int threads,
                              unsigned char **out_images, size_t *out_sizes, err *e);

#endif
