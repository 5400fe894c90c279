/* opencl.c - the device opencl: the first GPU that an OpenCL 1.2 library offers, else its first device of any kind.
 *
 * The library is found at run time; without one, open says what to install. One in-order queue, and another for uploads beside
 * it; a list holds a kernel object for each launch, whose arguments stay set until a slot is bound anew or moves on with a
 * ring. A ticket is an event behind the launches of its submit. Programs are kept as binaries in the kernel cache. The device
 * owns context and queues. */
#include "machine/machine.h"
#include "rt/device.h"
#include "rt/cache.h"
#include "rt/copying.h"
#include "rt/gpulist.h"
#include "rt/opencl_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

enum {
    PENDING = 32 /* submits that may be under way */,
    QUEUED = 1 << 14 /* commands given to the driver before it must work */
};

typedef struct opencl {
    device base;
    opencl_api cl;
    mem mem;
    void *library;
    cache *cache; /* may be NULL */
    cl_object device, context, queue, copies;
    device_caps caps;
    size_t max_alloc;
    uint64_t memory;
    char options[128], variant[640];
    pthread_mutex_t lock; /* of tickets */
    uint64_t ticket, done;
    cl_object event[PENDING]; /* of ticket t at t % PENDING, or NULL */
} opencl;

struct buffer {
    cl_object object, zeroed; /* zeroed: an event */
    size_t size;
};

typedef struct entry {
    opencl *dev;
    struct module *module;
    struct entry *next;
    char name[64];
} entry;
struct module {
    cl_object program;
    entry *entries;
};

struct list {
    gpu_list l; /* handles: memory objects, kernel objects */
    opencl *dev;
};

/* ---- errors ---- */

static tn_status fail(err *e, const char *what, int32_t rc) {
    bool memory = rc == CL_MEM_OBJECT_ALLOCATION_FAILURE || rc == CL_OUT_OF_RESOURCES || rc == CL_OUT_OF_HOST_MEMORY ||
                  rc == CL_INVALID_BUFFER_SIZE;
    return err_set(e, memory ? TN_ERR_NOMEM : TN_ERR_DEVICE, "OpenCL: %s failed with error %d%s", what, rc,
                   memory ? " (out of memory)" : "");
}

/* ---- open ---- */

static tn_status load_library(opencl *d, err *e) {
    d->library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!d->library) {
        const char *why = dlerror();
        return err_set(e, TN_ERR_DEVICE,
                       "no OpenCL here: %s; install an OpenCL driver and its loader (Debian: ocl-icd-libopencl1)",
                       why ? why : "libOpenCL.so.1 cannot be loaded");
    }
#define X(result, name, parameters)                                                                                            \
    {                                                                                                                          \
        void *address = dlsym(d->library, #name);                                                                              \
        if (!address) return err_set(e, TN_ERR_DEVICE, "OpenCL: the library has no %s; version 1.2 is needed", #name);         \
        memcpy(&d->cl.name, &address, sizeof address);                                                                         \
    }
    OPENCL_FUNCTIONS(X)
#undef X
    return TN_OK;
}

/* The first GPU, else accelerator, else anything of any platform. */
static tn_status choose_device(opencl *d, cl_object *out_platform, err *e) {
    static const uint64_t types[] = { CL_DEVICE_TYPE_GPU, CL_DEVICE_TYPE_ACCELERATOR, CL_DEVICE_TYPE_ALL };
    cl_object platforms[16];
    uint32_t n = 0;
    int32_t rc = d->cl.clGetPlatformIDs(COUNT_OF(platforms), platforms, &n);
    if (rc && rc != CL_PLATFORM_NOT_FOUND) return fail(e, "clGetPlatformIDs", rc);
    for (size_t t = 0; t < COUNT_OF(types); t++)
        for (uint32_t p = 0; p < n && p < COUNT_OF(platforms); p++) {
            uint32_t found = 0;
            if (d->cl.clGetDeviceIDs(platforms[p], types[t], 1, &d->device, &found) == CL_SUCCESS && found) {
                *out_platform = platforms[p];
                return TN_OK;
            }
        }
    return err_set(
        e, TN_ERR_DEVICE,
        "OpenCL: %u drivers are installed and none has a device; install the driver of the GPU (for the CPU, Debian: "
        "pocl-opencl-icd)",
        n);
}

static uint64_t device_number(const opencl *d, uint32_t what) { /* of 4 or 8 bytes */
    uint64_t v = 0;
    return d->cl.clGetDeviceInfo(d->device, what, sizeof v, &v, NULL) == CL_SUCCESS ? v : 0;
}

static void device_text(const opencl *d, uint32_t what, char *out, size_t size) {
    char text[512] = "";
    if (d->cl.clGetDeviceInfo(d->device, what, sizeof text - 1, text, NULL) != CL_SUCCESS) text[0] = 0;
    snprintf(out, size, "%.*s", (int)size - 1, text);
}

static int power_below(uint64_t n, int most) {
    int p = 1;
    while (p * 2 <= most && (uint64_t)p * 2 <= n) p *= 2;
    return p;
}

static void fill_caps(opencl *d, cl_object platform) {
    char name[160], driver[80], version[128] = "";
    device_text(d, CL_DEVICE_NAME, name, sizeof name);
    device_text(d, CL_DRIVER_VERSION, driver, sizeof driver);
    d->cl.clGetPlatformInfo(platform, CL_PLATFORM_VERSION, sizeof version - 1, version, NULL);
    uint64_t units = device_number(d, CL_DEVICE_MAX_COMPUTE_UNITS), local = device_number(d, CL_DEVICE_LOCAL_MEM_SIZE),
             cached = device_number(d, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE);
    d->max_alloc = (size_t)device_number(d, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    d->memory = device_number(d, CL_DEVICE_GLOBAL_MEM_SIZE);
    device_caps *c = &d->caps;
    *c = (device_caps){ .gpu = true,
                        .block_threads = power_below(device_number(d, CL_DEVICE_MAX_WORK_GROUP_SIZE), 256),
                        .shared_bytes = (int64_t)(local < (48u << 10) ? local : 48u << 10),
                        .resident_threads = (int64_t)(units ? units : 1) * 1024,
                        .buffers = (int)(device_number(d, CL_DEVICE_MAX_PARAMETER_SIZE) / 16),
                        .threads = 1,
                        .vector_bytes = 16,
                        .n_vector_regs = 64,
                        .l1_bytes = 32 << 10,
                        .l2_bytes = cached > (64 << 10) ? (int64_t)cached : 64 << 10 };
    c->l3_bytes = c->l2_bytes;
    c->ghz = (double)device_number(d, CL_DEVICE_MAX_CLOCK_FREQUENCY) * 1e-3;
    snprintf(c->name, sizeof c->name, "opencl");
    snprintf(c->isa, sizeof c->isa, "opencl");
    if (device_number(d, CL_DEVICE_TYPE) & (CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR))
        c->machine = machine_find(c->isa, true);
    snprintf(c->code, sizeof c->code, "opencl");
    snprintf(c->detail, sizeof c->detail, "%.110s, %.80s, driver %.40s", name, version, driver);
    if (device_number(d, CL_DEVICE_SINGLE_FP_CONFIG) & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT)
        strcat(d->options, " -cl-fp32-correctly-rounded-divide-sqrt");
    if (!device_number(d, CL_DEVICE_DOUBLE_FP_CONFIG)) strcat(d->options, " -cl-single-precision-constant");
    snprintf(d->variant, sizeof d->variant, "opencl; %s; %s; %s; %s", version, name, driver, d->options);
    c->id = hash_bytes(d->variant, strlen(d->variant), 0);
}

static void opencl_close(device *base) {
    opencl *d = (opencl *)base;
    if (!d) return;
    if (d->queue) d->cl.clFinish(d->queue);
    for (int i = 0; i < PENDING; i++)
        if (d->event[i]) d->cl.clReleaseEvent(d->event[i]);
    if (d->queue) d->cl.clReleaseCommandQueue(d->queue);
    if (d->copies) d->cl.clReleaseCommandQueue(d->copies);
    if (d->context) d->cl.clReleaseContext(d->context);
    if (d->library) dlclose(d->library);
    pthread_mutex_destroy(&d->lock);
    mem_free(d->mem, d, sizeof *d);
}

static tn_status opencl_open(const device_opts *opts, device **out, err *e) {
    *out = NULL;
    opencl *d = mem_alloc(opts->mem, sizeof *d);
    if (!d) return err_set(e, TN_ERR_NOMEM, "out of memory for the device opencl");
    d->base.api = &device_opencl;
    d->mem = opts->mem;
    d->cache = opts->cache;
    pthread_mutex_init(&d->lock, NULL);
    snprintf(d->options, sizeof d->options, "-cl-std=CL1.2 -w");
    cl_object platform = NULL;
    int32_t rc = CL_SUCCESS;
    tn_status st = load_library(d, e);
    if (st == TN_OK) st = choose_device(d, &platform, e);
    if (st == TN_OK) {
        fill_caps(d, platform);
        d->context = d->cl.clCreateContext(NULL, 1, &d->device, NULL, NULL, &rc);
        if (rc) st = fail(e, "clCreateContext", rc);
    }
    if (st == TN_OK) {
        d->queue = d->cl.clCreateCommandQueue(d->context, d->device, 0, &rc);
        if (!rc) d->copies = d->cl.clCreateCommandQueue(d->context, d->device, 0, &rc);
        if (rc) st = fail(e, "clCreateCommandQueue", rc);
    }
    if (st)
        opencl_close(&d->base);
    else
        *out = &d->base;
    return st;
}

static void opencl_get_caps(const device *base, device_caps *out) { *out = ((const opencl *)base)->caps; }

/* ---- memory ---- */

static void opencl_free(device *base, buffer *b) {
    opencl *d = (opencl *)base;
    if (!b) return;
    if (b->object) d->cl.clReleaseMemObject(b->object);
    if (b->zeroed) d->cl.clReleaseEvent(b->zeroed);
    mem_free(d->mem, b, sizeof *b);
}

/* How much of it is free cannot be asked. */
static void opencl_room(device *base, size_t *out_free, size_t *out_total) {
    *out_free = *out_total = ((opencl *)base)->memory;
}

static tn_status opencl_alloc(device *base, size_t size, buffer **out, err *e) {
    opencl *d = (opencl *)base;
    int32_t rc;
    *out = NULL;
    if (size > d->max_alloc)
        return err_set(e, TN_ERR_NOMEM, "a buffer of %zu bytes is needed; %s allows %zu at once and has %llu in all", size,
                       d->caps.detail, d->max_alloc, (unsigned long long)d->memory);
    buffer *b = mem_alloc(d->mem, sizeof *b);
    if (!b) return err_set(e, TN_ERR_NOMEM, "out of memory for a buffer");
    size_t room = size ? (size + 15) / 16 * 16 : 16;
    b->size = size;
    b->object = d->cl.clCreateBuffer(d->context, CL_MEM_READ_WRITE, room, NULL, &rc);
    if (rc == CL_SUCCESS)
        rc = d->cl.clEnqueueFillBuffer(d->queue, b->object, &(uint32_t){ 0 }, sizeof(uint32_t), 0, room, 0, NULL, &b->zeroed);
    if (rc == CL_SUCCESS) {
        *out = b;
        return TN_OK;
    }
    opencl_free(base, b);
    err_set(e, TN_ERR_NOMEM, "OpenCL gave no buffer of %zu bytes (error %d); the device has %llu in all", size, rc,
            (unsigned long long)d->memory);
    return e->code;
}

static tn_status opencl_adopt(device *base, uint64_t at, size_t size, buffer **out, err *e) {
    (void)base, (void)at, (void)size;
    *out = NULL;
    return err_set(e, TN_ERR_UNSUPPORTED,
                   "the device opencl has a context of its own, which reads no memory of another one; bind host memory");
}

static void *opencl_map(device *base, buffer *b) {
    (void)base, (void)b;
    return NULL;
}

static tn_status opencl_upload(device *base, buffer *b, size_t offset, const void *src, size_t size, err *e) {
    opencl *d = (opencl *)base;
    tn_status st = copying_check("upload", b->size, offset, src, size, e);
    if (st || size == 0) return st;
    int32_t rc = d->cl.clEnqueueWriteBuffer(d->queue, b->object, 1, offset, size, src, 0, NULL, NULL);
    return rc ? fail(e, "clEnqueueWriteBuffer", rc) : TN_OK;
}
/* The host waits for it; kernels do not. */
static tn_status opencl_send(device *base, buffer *b, size_t offset, const void *src, size_t size, err *e) {
    opencl *d = (opencl *)base;
    tn_status st = copying_check("upload", b->size, offset, src, size, e);
    if (st || size == 0) return st;
    int32_t rc = d->cl.clEnqueueWriteBuffer(d->copies, b->object, 1, offset, size, src, 1, &b->zeroed, NULL);
    return rc ? fail(e, "clEnqueueWriteBuffer", rc) : TN_OK;
}
static tn_status opencl_download(device *base, const buffer *b, size_t offset, void *dst, size_t size, err *e) {
    opencl *d = (opencl *)base;
    tn_status st = copying_check("download", b->size, offset, dst, size, e);
    if (st || size == 0) return st;
    int32_t rc = d->cl.clEnqueueReadBuffer(d->queue, b->object, 1, offset, size, dst, 0, NULL, NULL);
    return rc ? fail(e, "clEnqueueReadBuffer", rc) : TN_OK;
}

/* ---- modules ---- */

static void opencl_drop(device *base, module *m) {
    opencl *d = (opencl *)base;
    if (!m) return;
    for (entry *x = m->entries, *next; x; x = next) {
        next = x->next;
        mem_free(d->mem, x, sizeof *x);
    }
    if (m->program) d->cl.clReleaseProgram(m->program);
    mem_free(d->mem, m, sizeof *m);
}

static tn_status build_log(opencl *d, cl_object program, int32_t rc, err *e) {
    char log[sizeof e->text] = "";
    size_t size = 0;
    if (rc != CL_BUILD_PROGRAM_FAILURE) return fail(e, "clBuildProgram", rc);
    d->cl.clGetProgramBuildInfo(program, d->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &size);
    char *all = mem_alloc(d->mem, size + 1);
    if (all && d->cl.clGetProgramBuildInfo(program, d->device, CL_PROGRAM_BUILD_LOG, size, all, NULL) == CL_SUCCESS)
        snprintf(log, sizeof log, "%s", all);
    mem_free(d->mem, all, size + 1);
    return err_set(e, TN_ERR_BUILD, "OpenCL refused the generated program:\n%s", log);
}

/* The program of a binary that was kept, or NULL. */
static cl_object program_of_binary(opencl *d, const unsigned char *image, size_t size) {
    int32_t rc = 0, state = 0;
    cl_object p = d->cl.clCreateProgramWithBinary(d->context, 1, &d->device, &size, &image, &state, &rc);
    if (rc || !p) return NULL;
    if (state == CL_SUCCESS && d->cl.clBuildProgram(p, 1, &d->device, d->options, NULL, NULL) == CL_SUCCESS) return p;
    d->cl.clReleaseProgram(p);
    return NULL;
}

static void keep_binary(opencl *d, cl_object program, const cache_key *key) {
    size_t size = 0;
    if (!cache_keeps_blobs(d->cache)) {
        cache_store_blob(d->cache, key, NULL, 0);
        return;
    }
    if (d->cl.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL) || size == 0) return;
    unsigned char *image = mem_alloc(d->mem, size);
    if (image && d->cl.clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof image, &image, NULL) == CL_SUCCESS)
        cache_store_blob(d->cache, key, image, size);
    mem_free(d->mem, image, size);
}

static tn_status make_program(opencl *d, const char *source, size_t n_source, bool no_cache, cl_object *out, bool *out_hit,
                              err *e) {
    cache_key key = { d->variant, source, n_source };
    unsigned char *image;
    size_t size;
    if (!no_cache && d->cache && cache_load_blob(d->cache, &key, &image, &size)) {
        *out = program_of_binary(d, image, size);
        cache_free_blob(d->cache, image, size);
        *out_hit = *out != NULL;
        if (*out) return TN_OK;
        cache_remove_blob(d->cache, &key);
    }
    int32_t rc;
    *out = d->cl.clCreateProgramWithSource(d->context, 1, &source, &n_source, &rc);
    if (rc) return fail(e, "clCreateProgramWithSource", rc);
    rc = d->cl.clBuildProgram(*out, 1, &d->device, d->options, NULL, NULL);
    if (rc) return build_log(d, *out, rc, e);
    if (!no_cache && d->cache) keep_binary(d, *out, &key);
    return TN_OK;
}

static tn_status opencl_build(device *base, const char *source, size_t n_source, bool no_cache, module **out, bool *out_hit,
                              err *e) {
    opencl *d = (opencl *)base;
    bool hit = false;
    *out = NULL;
    module *m = mem_alloc(d->mem, sizeof *m);
    if (!m) return err_set(e, TN_ERR_NOMEM, "out of memory for a module");
    tn_status st = make_program(d, source, n_source, no_cache, &m->program, &hit, e);
    if (out_hit) *out_hit = hit;
    if (st)
        opencl_drop(base, m);
    else
        *out = m;
    return st;
}

static tn_status opencl_find(device *base, module *m, const char *name, void **out_entry, err *e) {
    opencl *d = (opencl *)base;
    int32_t rc;
    *out_entry = NULL;
    for (entry *x = m->entries; x; x = x->next)
        if (!strcmp(x->name, name)) {
            *out_entry = x;
            return TN_OK;
        }
    cl_object k = d->cl.clCreateKernel(m->program, name, &rc);
    if (rc == CL_INVALID_KERNEL_NAME) return err_set(e, TN_ERR_INVAL, "the module has no entry '%s'", name);
    if (rc) return fail(e, "clCreateKernel", rc);
    d->cl.clReleaseKernel(k); /* each launch has its own */
    entry *x = mem_alloc(d->mem, sizeof *x);
    if (!x) return err_set(e, TN_ERR_NOMEM, "out of memory for an entry");
    *x = (entry){ .dev = d, .module = m, .next = m->entries };
    snprintf(x->name, sizeof x->name, "%s", name);
    *out_entry = m->entries = x;
    return TN_OK;
}

/* ---- lists ---- */

static void opencl_discard(list *l) {
    if (!l) return;
    opencl *d = l->dev;
    for (int i = 0; i < l->l.n_nodes; i++)
        if (l->l.nodes[i].kernel) d->cl.clReleaseKernel(l->l.nodes[i].kernel);
    gpu_list_free(&l->l, sizeof *l);
}

static tn_status opencl_record(device *base, int n_slots, list **out, err *e) {
    opencl *d = (opencl *)base;
    list *l = *out = gpu_list_new(d->mem, sizeof *l, n_slots, e);
    if (!l) return e->code;
    l->dev = d;
    return TN_OK;
}

static tn_status opencl_launch(list *l, const device_launch *what, err *e) {
    opencl *d = l->dev;
    gpu_node *n;
    int32_t rc;
    tn_status st = gpu_list_launch(&l->l, what, d->caps.block_threads, &n, e);
    if (st) return st;
    const entry *x = what->entry;
    n->kernel = d->cl.clCreateKernel(x->module->program, x->name, &rc);
    return rc ? fail(e, "clCreateKernel", rc) : TN_OK;
}
static tn_status opencl_copy(list *l, int dst_slot, size_t dst_offset, int src_slot, size_t src_offset, size_t size, err *e) {
    return gpu_list_copy(&l->l, (device_arg){ dst_slot, dst_offset, size, true, 0 },
                         (device_arg){ src_slot, src_offset, size, false, 0 }, size, e);
}
static tn_status opencl_loop(list *l, err *e) { return gpu_list_loop(&l->l, e); }
static tn_status opencl_repeat(list *l, const device_trips *what, err *e) { return gpu_list_repeat(&l->l, what, e); }
static tn_status opencl_leave(list *l, int slot, size_t offset, err *e) { return gpu_list_leave(&l->l, slot, offset, e); }
static tn_status opencl_branch(list *l, int slot, size_t offset, err *e) { return gpu_list_branch(&l->l, slot, offset, e); }
static tn_status opencl_otherwise(list *l, err *e) { return gpu_list_otherwise(&l->l, e); }
static tn_status opencl_end(list *l, err *e) { return gpu_list_end(&l->l, e); }
static tn_status opencl_seal(list *l, err *e) { return gpu_list_seal(&l->l, e); }
static void opencl_bind(list *l, int slot, buffer *b, size_t offset) { gpu_list_bind(&l->l, slot, b->object, offset); }
static void opencl_ring(list *l, int slot, size_t stride, int64_t length) { gpu_list_ring(&l->l, slot, stride, length); }
static void opencl_places(list *l, const device_places *places) { gpu_list_places(&l->l, places); }
static void opencl_sizes(list *l, const int64_t *blocks, const int64_t *rows) { gpu_list_sizes(&l->l, blocks, rows); }
static void opencl_start(list *l, int64_t step) { l->l.start = step; }

/* ---- running ---- */

static int32_t set_arguments(list *l, gpu_node *n, int64_t step) {
    opencl *d = l->dev;
    int32_t rc = CL_SUCCESS;
    bool all = n->version != l->l.version;
    for (int i = 0; i < n->n_args && !rc; i++) {
        const gpu_slot *s = &l->l.slots[n->args[i].slot];
        cl_object object = s->handle;
        uint64_t at = gpu_list_place(&l->l, &n->args[i], step);
        if (all) rc = d->cl.clSetKernelArg(n->kernel, (uint32_t)i * 2, sizeof object, &object);
        if ((all || s->stride || s->window || n->args[i].place) && !rc)
            rc = d->cl.clSetKernelArg(n->kernel, (uint32_t)i * 2 + 1, sizeof at, &at);
    }
    for (int i = 0; i < n->n_rows && !rc; i++)
        rc = d->cl.clSetKernelArg(n->kernel, (uint32_t)(2 * n->n_args + i), sizeof n->rows[i].value, &n->rows[i].value);
    n->version = rc ? 0 : l->l.version;
    return rc;
}

/* event: NULL, or where to put one that the caller releases; nothing to do makes none. */
static int32_t run_node(list *l, gpu_node *n, int64_t step, cl_object queue, cl_object *event) {
    opencl *d = l->dev;
    if (n->kind == GPU_COPY) {
        const device_arg *to = &n->args[0], *from = &n->args[1];
        if (n->size == 0) return CL_SUCCESS;
        return d->cl.clEnqueueCopyBuffer(queue, l->l.slots[from->slot].handle, l->l.slots[to->slot].handle,
                                         gpu_list_place(&l->l, from, step), gpu_list_place(&l->l, to, step), n->size, 0, NULL,
                                         event);
    }
    size_t block_threads = (size_t)n->block_threads, threads = (size_t)n->grid_blocks * block_threads;
    if (threads == 0) return CL_SUCCESS;
    int32_t rc = set_arguments(l, n, step);
    return rc ? rc : d->cl.clEnqueueNDRangeKernel(queue, n->kernel, 1, NULL, &threads, &block_threads, 0, NULL, event);
}

static tn_status wait_for(opencl *d, uint64_t ticket, err *e) { /* with the lock held */
    cl_object *at = &d->event[ticket % PENDING];
    int32_t state = 0;
    if (ticket <= d->done || !*at) return TN_OK;
    int32_t rc = d->cl.clWaitForEvents(1, at);
    if (!rc) rc = d->cl.clGetEventInfo(*at, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
    d->cl.clReleaseEvent(*at);
    *at = NULL;
    if (d->done < ticket) d->done = ticket;
    return rc || state < 0 ? fail(e, "a run", rc ? rc : state) : TN_OK;
}

typedef struct submitting {
    list *l;
    int queued;
} submitting;

static int queue_nodes(void *ud, int from, int to, int64_t step) {
    submitting *x = ud;
    opencl *d = x->l->dev;
    int32_t rc = CL_SUCCESS;
    for (int i = from; i < to && !rc; i++) {
        rc = run_node(x->l, &x->l->l.nodes[i], step, d->queue, NULL);
        if (!rc && ++x->queued % QUEUED == 0) rc = d->cl.clFinish(d->queue);
    }
    return rc;
}

static int read_value(void *ud, const device_arg *a, int64_t step, void *out) {
    const list *l = ((submitting *)ud)->l;
    return l->dev->cl.clEnqueueReadBuffer(l->dev->queue, l->l.slots[a->slot].handle, 1, gpu_list_place(&l->l, a, step), a->size,
                                          out, 0, NULL, NULL);
}

static tn_status opencl_submit(list *l, int64_t steps, uint64_t *out_ticket, err *e) {
    static const gpu_walker walker = { queue_nodes, read_value };
    opencl *d = l->dev;
    submitting x = { l, 0 };
    int32_t rc = CL_SUCCESS;
    tn_status st = gpu_list_ready(&l->l, steps, e);
    if (st) return st;
    for (int64_t step = 0; step < steps && !rc; step++) rc = gpu_list_walk(&l->l, step, &walker, &x);
    if (rc) return fail(e, "a launch", rc);
    pthread_mutex_lock(&d->lock);
    uint64_t ticket = d->ticket + 1;
    cl_object *at = &d->event[ticket % PENDING];
    st = *at ? wait_for(d, ticket - PENDING, e) : TN_OK;
    if (st == TN_OK) {
        rc = d->cl.clEnqueueMarkerWithWaitList(d->queue, 0, NULL, at);
        if (!rc) rc = d->cl.clFlush(d->queue);
        if (rc) st = fail(e, "clEnqueueMarkerWithWaitList", rc);
    }
    if (st == TN_OK) *out_ticket = d->ticket = ticket;
    pthread_mutex_unlock(&d->lock);
    return st;
}

static tn_status opencl_wait(device *base, uint64_t ticket, err *e) {
    opencl *d = (opencl *)base;
    pthread_mutex_lock(&d->lock);
    tn_status st = ticket > d->ticket ? err_set(e, TN_ERR_INVAL, "ticket %llu was never given out", (unsigned long long)ticket)
                                      : wait_for(d, ticket, e);
    pthread_mutex_unlock(&d->lock);
    return st;
}

/* On a queue of its own, one operation after the other. */
static int32_t profile_node(list *l, gpu_node *node, int times, cl_object queue, uint64_t *begin, uint64_t *end) {
    opencl *d = l->dev;
    cl_object first = NULL, last = NULL;
    int32_t rc = CL_SUCCESS;
    for (int i = 0; i < times && !rc; i++) rc = run_node(l, node, 0, queue, i == 0 ? &first : i == times - 1 ? &last : NULL);
    if (!rc) rc = d->cl.clFinish(queue);
    if (!rc && first) rc = d->cl.clGetEventProfilingInfo(first, CL_PROFILING_COMMAND_START, sizeof *begin, begin, NULL);
    cl_object ends = last ? last : first;
    if (!rc && ends) rc = d->cl.clGetEventProfilingInfo(ends, CL_PROFILING_COMMAND_END, sizeof *end, end, NULL);
    if (first) d->cl.clReleaseEvent(first);
    if (last) d->cl.clReleaseEvent(last);
    return rc;
}

static int32_t profile_run(list *l, const int *repeats, cl_object queue, device_span *out, int n) {
    uint64_t first = 0, last = 0;
    int32_t rc = CL_SUCCESS;
    gpu_list_rewind(&l->l, 0);
    for (int i = 0, at = 0; i < n && !rc; i++) { /* each once, whatever loops and branches are round it */
        int times = repeats ? repeats[i] : 1;
        uint64_t begin = last, end = last;
        at = gpu_next_run(&l->l, at);
        rc = profile_node(l, &l->l.nodes[at++], times, queue, &begin, &end);
        if (first == 0) first = begin;
        last = end;
        double from = (double)(begin - first) * 1e-9, to = (double)(end - first) * 1e-9;
        out[i] = (device_span){ from, times > 1 ? from + (to - from) / times : to };
    }
    return rc;
}

static tn_status opencl_profile(list *l, const int *repeats, device_span *out, int n, err *e) {
    opencl *d = l->dev;
    tn_status st = gpu_list_profile(&l->l, n, e);
    if (st) return st;
    int32_t rc = d->cl.clFinish(d->queue);
    if (rc) return fail(e, "clFinish", rc);
    cl_object queue = d->cl.clCreateCommandQueue(d->context, d->device, CL_QUEUE_PROFILING_ENABLE, &rc);
    if (rc) return fail(e, "clCreateCommandQueue for profiling", rc);
    rc = profile_run(l, repeats, queue, out, n);
    d->cl.clReleaseCommandQueue(queue);
    return rc ? fail(e, "a profile", rc) : TN_OK;
}

const device_api device_opencl = {
    .name = "opencl",
    .open = opencl_open,
    .close = opencl_close,
    .get_caps = opencl_get_caps,
    .room = opencl_room,
    .alloc = opencl_alloc,
    .free = opencl_free,
    .map = opencl_map,
    .adopt = opencl_adopt,
    .upload = opencl_upload,
    .send = opencl_send,
    .download = opencl_download,
    .build = opencl_build,
    .drop = opencl_drop,
    .find = opencl_find,
    .record = opencl_record,
    .launch = opencl_launch,
    .copy = opencl_copy,
    .loop = opencl_loop,
    .repeat = opencl_repeat,
    .leave = opencl_leave,
    .branch = opencl_branch,
    .otherwise = opencl_otherwise,
    .end = opencl_end,
    .seal = opencl_seal,
    .bind = opencl_bind,
    .ring = opencl_ring,
    .places = opencl_places,
    .sizes = opencl_sizes,
    .start = opencl_start,
    .discard = opencl_discard,
    .submit = opencl_submit,
    .wait = opencl_wait,
    .profile = opencl_profile,
};
