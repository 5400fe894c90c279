/* nvrtc.c - implementation of nvrtc.h. Own declarations of the few functions that are used. */
#include "rt/nvrtc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

typedef struct program *nvrtc_program;

/* X(name, parameters); all return a code, 0 for success. */
#define NVRTC_FUNCTIONS(X)                                                                                                     \
    X(nvrtcCreateProgram,                                                                                                      \
      (nvrtc_program * out, const char *source, const char *name, int n, const char *const *texts, const char *const *names))  \
    X(nvrtcDestroyProgram, (nvrtc_program * p))                                                                                \
    X(nvrtcCompileProgram, (nvrtc_program p, int n, const char *const *options))                                               \
    X(nvrtcGetProgramLogSize, (nvrtc_program p, size_t * out))                                                                 \
    X(nvrtcGetProgramLog, (nvrtc_program p, char *out))                                                                        \
    X(nvrtcGetCUBINSize, (nvrtc_program p, size_t * out))                                                                      \
    X(nvrtcGetCUBIN, (nvrtc_program p, char *out))

struct nvrtc {
    mem mem;
    void *library;
#define X(name, parameters) int(*name) parameters;
    NVRTC_FUNCTIONS(X)
#undef X
};

/* They are no part of the cache's keys: who changes them counts up the number in cuda.c's. NVRTC's version is none either, so
 * that a run whose kernels are all in the cache needs no NVRTC. */
static const char *const options[] = { "--fmad=false", "-default-device", "--ptxas-options=-v", "-w" };

void nvrtc_close(nvrtc *n) {
    if (!n) return;
    if (n->library) dlclose(n->library);
    mem_free(n->mem, n, sizeof *n);
}

static tn_status load(nvrtc *n, err *e) {
    static const char *const names[] = { "libnvrtc.so.13",
                                         "libnvrtc.so.12",
                                         "libnvrtc.so",
                                         "/usr/local/cuda/lib64/libnvrtc.so.13",
                                         "/usr/local/cuda/lib64/libnvrtc.so.12",
                                         "/usr/local/cuda/lib64/libnvrtc.so",
                                         "/usr/local/cuda-13.0/lib64/libnvrtc.so.13" };
    for (size_t i = 0; i < COUNT_OF(names) && !n->library; i++)
        n->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!n->library)
        return err_set(
            e, TN_ERR_DEVICE,
            "no compiler for CUDA here (libnvrtc.so.13, .12): install NVRTC of the CUDA toolkit (Debian: cuda-nvrtc, pip: "
            "nvidia-cuda-nvrtc) where the loader finds it");
#define X(name, parameters)                                                                                                    \
    {                                                                                                                          \
        void *address = dlsym(n->library, #name);                                                                              \
        if (!address) return err_set(e, TN_ERR_DEVICE, "NVRTC: the library has no %s; CUDA 12 or newer is needed", #name);     \
        memcpy(&n->name, &address, sizeof address);                                                                            \
    }
    NVRTC_FUNCTIONS(X)
#undef X
    return TN_OK;
}

tn_status nvrtc_open(mem m, nvrtc **out, err *e) {
    *out = NULL;
    nvrtc *n = mem_alloc(m, sizeof *n);
    if (!n) return err_set(e, TN_ERR_NOMEM, "out of memory for NVRTC");
    n->mem = m;
    tn_status st = load(n, e);
    if (st) {
        nvrtc_close(n);
        return st;
    }
    *out = n;
    return TN_OK;
}

/* mem_strdup of the log; NULL when there is none. */
static char *get_log(nvrtc *n, nvrtc_program p) {
    size_t size = 0;
    if (n->nvrtcGetProgramLogSize(p, &size) || size == 0) return NULL;
    char *text = mem_alloc(n->mem, size + 1), *log = NULL;
    if (text && n->nvrtcGetProgramLog(p, text) == 0) log = mem_strdup(n->mem, text);
    mem_free(n->mem, text, size + 1);
    return log;
}

static tn_status begin(nvrtc *n, const char *source, nvrtc_program *out, err *e) {
    if (n->nvrtcCreateProgram(out, source, "tenon.cu", 0, NULL, NULL))
        return err_set(e, TN_ERR_NOMEM, "NVRTC took no program of %zu bytes", strlen(source));
    return TN_OK;
}

/* Allocates nothing of the host's: threads may run it side by side. */
static int compile(nvrtc *n, nvrtc_program p, int arch) {
    char option[32];
    const char *all[COUNT_OF(options) + 1];
    snprintf(option, sizeof option, "-arch=sm_%d%s", arch, arch == 90 ? "a" : ""); /* with what only that one has (wgmma) */
    memcpy(all, options, sizeof options);
    all[COUNT_OF(options)] = option;
    return n->nvrtcCompileProgram(p, (int)COUNT_OF(all), all);
}

/* What became of it. */
static tn_status collect(nvrtc *n, nvrtc_program p, int rc, int arch, unsigned char **out_image, size_t *out_size,
                         char **out_log, err *e) {
    unsigned char *image = NULL;
    size_t size = 0;
    tn_status st = TN_OK;
    char *log = get_log(n, p);
    if (rc) {
        st = err_set(e, TN_ERR_BUILD, "NVRTC refused the generated program (error %d):\n%s", rc, log ? log : "");
    } else if (n->nvrtcGetCUBINSize(p, &size) || size == 0) {
        st = err_set(e, TN_ERR_BUILD, "NVRTC made no code for sm_%d", arch);
    } else if (!(image = mem_alloc(n->mem, size))) {
        st = err_set(e, TN_ERR_NOMEM, "out of memory: %zu bytes of code", size);
    } else if (n->nvrtcGetCUBIN(p, (char *)image)) {
        st = err_set(e, TN_ERR_BUILD, "NVRTC does not give its code for sm_%d", arch);
        mem_free(n->mem, image, size);
    } else {
        *out_image = image, *out_size = size;
    }
    if (st == TN_OK && out_log)
        *out_log = log;
    else
        mem_strfree(n->mem, log);
    return st;
}

tn_status nvrtc_compile(nvrtc *n, const char *source, int arch, unsigned char **out_image, size_t *out_size, char **out_log,
                        err *e) {
    nvrtc_program p = NULL;
    *out_image = NULL, *out_size = 0;
    if (out_log) *out_log = NULL;
    tn_status st = begin(n, source, &p, e);
    if (st) return st;
    st = collect(n, p, compile(n, p, arch), arch, out_image, out_size, out_log, e);
    n->nvrtcDestroyProgram(&p);
    return st;
}

/* ---- several at a time ---- */

typedef struct work {
    nvrtc *n;
    int count, arch;
    atomic_int next;
    nvrtc_program program[NVRTC_MOST_PARTS];
    int rc[NVRTC_MOST_PARTS];
} work;

static void *compile_some(void *arg) {
    work *w = arg;
    for (int i; (i = atomic_fetch_add(&w->next, 1)) < w->count;) w->rc[i] = compile(w->n, w->program[i], w->arch);
    return NULL;
}

tn_status nvrtc_compile_parts(nvrtc *n, const char *const *sources, int count, int arch, int threads,
                              unsigned char **out_images, size_t *out_sizes, err *e) {
    work w = { .n = n, .arch = arch };
    pthread_t helper[NVRTC_MOST_PARTS];
    int helpers = 0;
    tn_status st = TN_OK;
    for (int i = 0; i < count; i++) out_images[i] = NULL, out_sizes[i] = 0;
    while (st == TN_OK && w.count < count) {
        st = begin(n, sources[w.count], &w.program[w.count], e);
        w.count += st == TN_OK;
    }
    if (st == TN_OK) {
        while (helpers < threads - 1 && helpers < count - 1 && !pthread_create(&helper[helpers], NULL, compile_some, &w))
            helpers++;
        compile_some(&w);
        for (int i = 0; i < helpers; i++) pthread_join(helper[i], NULL);
    }
    for (int i = 0; i < w.count; i++) {
        if (st == TN_OK) st = collect(n, w.program[i], w.rc[i], arch, &out_images[i], &out_sizes[i], NULL, e);
        n->nvrtcDestroyProgram(&w.program[i]);
    }
    for (int i = 0; st && i < count; i++) {
        mem_free(n->mem, out_images[i], out_sizes[i]);
        out_images[i] = NULL;
    }
    return st;
}
