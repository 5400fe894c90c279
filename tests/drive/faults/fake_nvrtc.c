/* fake_nvrtc.c - a compiler whose code is a few bytes, or that refuses every program (FAKE_NVRTC=refuse), for test_faults.sh.
 */
#include <stdlib.h>
#include <string.h>

#define FAKE __attribute__((visibility("default"))) int

static const char text[] = "tenon.cu(3): error: a planted error";
static int refuse(void) { return getenv("FAKE_NVRTC") != NULL; }

FAKE nvrtcVersion(int *major, int *minor) { return *major = 12, *minor = 2, 0; }
FAKE nvrtcCreateProgram(void **out, const char *s, const char *name, int n, const char *const *a, const char *const *b) {
    static int it;
    return (void)s, (void)name, (void)n, (void)a, (void)b, *out = &it, 0;
}
FAKE nvrtcDestroyProgram(void **p) { return *p = NULL, 0; }
FAKE nvrtcCompileProgram(void *p, int n, const char *const *options) {
    return (void)p, (void)n, (void)options, refuse() ? 6 : 0;
}
FAKE nvrtcGetProgramLogSize(void *p, size_t *out) { return (void)p, *out = refuse() ? sizeof text : 0, 0; }
FAKE nvrtcGetProgramLog(void *p, char *out) { return (void)p, memcpy(out, text, sizeof text), 0; }
FAKE nvrtcGetCUBINSize(void *p, size_t *out) { return (void)p, *out = 16, 0; }
FAKE nvrtcGetCUBIN(void *p, char *out) { return (void)p, memset(out, 7, 16), 0; }
