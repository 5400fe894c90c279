/* cuda.c - the device cuda: the first NVIDIA GPU, through its driver and NVRTC, both found at run time.
 *
 * Programs are CUDA C, compiled to a cubin that the kernel cache keeps: a machine without NVRTC runs what the cache has. One
 * stream for kernels. A list becomes a graph of explicit nodes when it is first submitted, and is replayed; launches of a graph
 * overlap where the driver lets them. Many steps are one
 * submit: a graph with a node that repeats its body (cuda_loop.h); with older drivers replays of a graph of several steps, or
 * single launches where something moves from step to step. A ticket is an event behind its submit. Copies are cuda_copy.c's.
 * The device owns context and streams. Calls may come from any thread: each makes the context current for itself. */
#include "ir/target.h"
#include "machine/machine.h"
#include "rt/cuda_device.h"
#include "rt/cache.h"
#include "rt/cuda_loop.h"
#include "rt/gpulist.h"
#include "rt/nvrtc.h"
#include "rt/pool.h"

#include <dlfcn.h>
#include <stdio.h>

enum {
    UNROLL = 16 /* steps of the long graph */,
    LOOPED = 128 /* launches of a turn of a loop, which itself takes 3 us */,
    MOVED = 512 /* .. where rings move, at most, */,
    MOVED_BYTES = 64 << 20 /* and what it keeps of them */,
    MAX_ARGS = 400, /* words of arguments, of which a map has 16: 3.2 of 4 KB */
    MAX_NODES = 4096
};

struct module { /* the parts of a program */
    int n;
    cu_object part[NVRTC_MOST_PARTS];
};

typedef struct instance { /* of a graph; kept with its graph where numbers of thread blocks may change */
    cu_object made, source;
    cu_object *nodes; /* [room], NULL: they are not kept; */
    size_t room;
    int n;          /* .. the first of them are those of the list's launches */
    uint64_t sizes; /* l.sizes that it was made or changed for */
    int copies;     /* of l.places */
    bool results;   /* likewise */
    int at_once;    /* steps of a turn of a loop */
} instance;

/* Of one step, of UNROLL steps and of a loop; the last two with a form where arguments have places of their own: what waits
 * for what is another there. That of one step waits for all that it might have to, wherever arguments are. */
enum { ONE_STEP, MANY_STEPS, LOOP, MANY_STEPS_APART, LOOP_APART, N_GRAPHS };
struct list {
    gpu_list l; /* kernels: functions; at: device addresses */
    cuda *dev;
    instance graph[N_GRAPHS]; /* for l.version == built */
    cu_pointer counter;       /* of the loop: turns left, step; behind it a step of each slot that moves */
    uint64_t built;
};

/* ---- open ---- */

static tn_status load_library(cuda *d, err *e) {
    d->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!d->library) {
        const char *why = dlerror();
        return err_set(e, TN_ERR_DEVICE, "no CUDA here: %s; install the driver of the NVIDIA GPU, version 525 or newer",
                       why ? why : "libcuda.so.1 cannot be loaded");
    }
#define X(name, symbol, parameters)                                                                                            \
    {                                                                                                                          \
        void *address = dlsym(d->library, symbol);                                                                             \
        if (!address)                                                                                                          \
            return err_set(e, TN_ERR_DEVICE, "CUDA: the driver has no %s; install version 525 (CUDA 12) or newer", symbol);    \
        memcpy(&d->cu.name, &address, sizeof address);                                                                         \
    }
    CUDA_FUNCTIONS(X)
#undef X
#define X(name, symbol, parameters)                                                                                            \
    {                                                                                                                          \
        void *address = dlsym(d->library, symbol);                                                                             \
        memcpy(&d->cu.name, &address, sizeof address);                                                                         \
    }
    CUDA_OPTIONAL(X)
#undef X
    return TN_OK;
}

static tn_status find_device(cuda *d, err *e) {
    int n = 0, rc = d->cu.cuInit(0);
    if (rc == CUDA_ERROR_NO_DEVICE) return err_set(e, TN_ERR_DEVICE, "CUDA: the driver finds no GPU in this machine");
    if (rc) return fail(d, e, "cuInit (is the driver installed for this kernel?)", rc);
    if ((rc = d->cu.cuDeviceGetCount(&n))) return fail(d, e, "cuDeviceGetCount", rc);
    if (n == 0) return err_set(e, TN_ERR_DEVICE, "CUDA: the driver finds no GPU in this machine");
    rc = d->cu.cuDeviceGet(&d->device, 0);
    return rc ? fail(d, e, "cuDeviceGet", rc) : TN_OK;
}

static int attribute(const cuda *d, int what) {
    int v = 0;
    return d->cu.cuDeviceGetAttribute(&v, what, d->device) ? 0 : v;
}

/* Nine tenths of what clock and bus could do: no kernel reaches more. */
static double memory_rate(const cuda *d) {
    double mhz = attribute(d, CU_MEMORY_CLOCK_KHZ) * 1e-3, bits = attribute(d, CU_MEMORY_BUS_BITS);
    return 0.9 * 2 * mhz * bits / 8 * 1e-3;
}

static void fill_caps(cuda *d) {
    char name[128] = "";
    int driver = 0, units = attribute(d, CU_MULTIPROCESSOR_COUNT), l2 = attribute(d, CU_L2_CACHE_SIZE),
        most = attribute(d, CU_MAX_THREADS_PER_BLOCK);
    d->cu.cuDeviceGetName(name, sizeof name - 1, d->device);
    d->cu.cuDriverGetVersion(&driver);
    d->arch = attribute(d, CU_COMPUTE_CAPABILITY_MAJOR) * 10 + attribute(d, CU_COMPUTE_CAPABILITY_MINOR);
    d->overlaps = d->arch >= 90 && d->cu.cuGraphAddDependencies; /* what the text of such kernels waits with */
    device_caps *c = &d->caps;
    *c = (device_caps){ .gpu = true,
                        .block_threads = most < 256 ? 128 : 256,
                        .max_block_threads = most < 1024 ? 0 : 1024,
                        .shared_bytes = attribute(d, CU_MAX_SHARED_MEMORY_PER_BLOCK),
                        .shared_most = attribute(d, CU_MAX_SHARED_MEMORY_OPTIN),
                        .resident_threads = (int64_t)(units ? units : 1) * 1024,
                        .buffers = MAX_ARGS,
                        .cluster = d->arch >= 90 ? 8 : 0,
                        .local_barriers = true,
                        .overlaps = true,
                        .denormals = true,
                        .matrix_units = d->arch >= 80,
                        .bulk = d->arch == 90 && d->cu.cuTensorMapEncodeTiled,
                        .clusters = units > 16 ? units / 8 - 1
                                               : 1, /* a unit of some of the parts that they may not span is left over */
                        .threads = 1,
                        .vector_bytes = 16,
                        .n_vector_regs = 64,
                        .l1_bytes = 32 << 10,
                        .l2_bytes = l2 > (64 << 10) ? l2 : 64 << 10 };
    c->l3_bytes = c->l2_bytes;
    c->ghz = attribute(d, CU_CLOCK_KHZ) * 1e-6, c->memory_rate = memory_rate(d);
    snprintf(c->name, sizeof c->name, "cuda");
    snprintf(c->isa, sizeof c->isa, "sm_%d", d->arch);
    c->machine = machine_find(c->isa, true);
    snprintf(c->code, sizeof c->code, "cuda");
    snprintf(c->detail, sizeof c->detail, "%s, sm_%d, %d multiprocessors, driver for CUDA %d.%d", name, d->arch, units,
             driver / 1000, driver % 1000 / 10);
    snprintf(d->variant, sizeof d->variant, "cuda 2; sm_%d; driver %d", d->arch, driver);
    c->id = hash_bytes(d->variant, strlen(d->variant), 0);
}

static void cuda_close(device *base) {
    cuda *d = (cuda *)base;
    err e;
    if (!d) return;
    if (d->context && enter(d, &e) == TN_OK) {
        if (d->stream) d->cu.cuStreamSynchronize(d->stream);
        cuda_copies_close(d);
        for (int i = 0; i < PENDING; i++)
            if (d->event[i]) d->cu.cuEventDestroy(d->event[i]);
        if (d->order) d->cu.cuEventDestroy(d->order);
        if (d->stream) d->cu.cuStreamDestroy(d->stream);
        if (d->loop_module) d->cu.cuModuleUnload(d->loop_module);
        leave(d);
    }
    if (d->retained) d->cu.cuDevicePrimaryCtxRelease(d->device);
    nvrtc_close(d->nvrtc);
    if (d->library) dlclose(d->library);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->copies.lock);
    pthread_mutex_destroy(&d->watch.lock);
    mem_free(d->mem, d, sizeof *d);
}

static tn_status make_stream(cuda *d, err *e) {
    int rc = d->cu.cuDevicePrimaryCtxRetain(&d->context, d->device);
    if (rc) return fail(d, e, "cuDevicePrimaryCtxRetain", rc);
    d->retained = true;
    tn_status st = enter(d, e);
    if (st) return st;
    rc = d->cu.cuStreamCreate(&d->stream, CU_STREAM_NON_BLOCKING);
    if (!rc) rc = d->cu.cuEventCreate(&d->order, CU_EVENT_DISABLE_TIMING);
    for (int i = 0; i < PENDING && !rc; i++) rc = d->cu.cuEventCreate(&d->event[i], CU_EVENT_DISABLE_TIMING);
    if (!rc) rc = cuda_copies_open(d);
    leave(d);
    return rc ? fail(d, e, "cuStreamCreate", rc) : TN_OK;
}

static tn_status cuda_open(const device_opts *opts, device **out, err *e) {
    *out = NULL;
    cuda *d = mem_alloc(opts->mem, sizeof *d);
    if (!d) return err_set(e, TN_ERR_NOMEM, "out of memory for the device cuda");
    d->base.api = &device_cuda;
    d->mem = opts->mem;
    d->cache = opts->cache;
    d->copies.pool = opts->pool;
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->copies.lock, NULL);
    pthread_mutex_init(&d->watch.lock, NULL);
    tn_status st = load_library(d, e);
    if (st == TN_OK) st = find_device(d, e);
    if (st == TN_OK) fill_caps(d);
    if (st == TN_OK) st = make_stream(d, e);
    if (st)
        cuda_close(&d->base);
    else
        *out = &d->base;
    return st;
}

static void cuda_get_caps(const device *base, device_caps *out) { *out = ((const cuda *)base)->caps; }

/* ---- memory ---- */

static void cuda_free(device *base, buffer *b) {
    cuda *d = (cuda *)base;
    err e;
    if (!b) return;
    if (b->at && !b->adopted && enter(d, &e) == TN_OK) {
        d->cu.cuMemFree(b->at);
        leave(d);
    }
    mem_free(d->mem, b, sizeof *b);
}

static void cuda_room(device *base, size_t *out_free, size_t *out_total) {
    cuda *d = (cuda *)base;
    err e;
    *out_free = *out_total = SIZE_MAX; /* when nothing is known */
    if (enter(d, &e)) return;
    d->cu.cuMemGetInfo(out_free, out_total);
    leave(d);
}

static tn_status cuda_alloc(device *base, size_t size, buffer **out, err *e) {
    cuda *d = (cuda *)base;
    size_t room = 0, total = 0;
    *out = NULL;
    tn_status st = enter(d, e);
    if (st) return st;
    d->cu.cuMemGetInfo(&room, &total);
    if (size > total) {
        leave(d);
        return err_set(e, TN_ERR_NOMEM, "a buffer of %zu bytes is needed; the GPU has %zu, of which %zu are free", size, total,
                       room);
    }
    buffer *b = mem_alloc(d->mem, sizeof *b);
    if (!b) {
        leave(d);
        return err_set(e, TN_ERR_NOMEM, "out of memory for a buffer");
    }
    b->size = size;
    int rc = d->cu.cuMemAlloc(&b->at, size ? size : 1);
    if (!rc && size) rc = d->cu.cuMemsetD8Async(b->at, 0, size, d->stream);
    if (!rc && size) rc = cuda_copies_wait(d);
    leave(d);
    if (!rc) {
        *out = b;
        return TN_OK;
    }
    cuda_free(base, b);
    if (rc != CUDA_ERROR_OUT_OF_MEMORY) return fail(d, e, "cuMemAlloc", rc);
    return err_set(e, TN_ERR_NOMEM, "a buffer of %zu bytes is needed; the GPU has %zu, of which %zu are free", size, total,
                   room);
}

static void *cuda_map(device *base, buffer *b) {
    (void)base, (void)b;
    return NULL;
}

static tn_status cuda_adopt(device *base, uint64_t at, size_t size, buffer **out, err *e) {
    cuda *d = (cuda *)base;
    *out = mem_alloc(d->mem, sizeof **out);
    if (!*out) return err_set(e, TN_ERR_NOMEM, "out of memory for a buffer");
    **out = (buffer){ .at = at, .size = size, .adopted = true };
    return TN_OK;
}

static tn_status cuda_follow(device *base, uint64_t stream, bool behind, err *e) {
    cuda *d = (cuda *)base;
    cu_object theirs = (cu_object)(uintptr_t)stream;
    tn_status st = enter(d, e);
    if (st) return st;
    pthread_mutex_lock(&d->lock); /* of the event */
    int rc = d->cu.cuEventRecord(d->order, behind ? d->stream : theirs);
    if (!rc) rc = d->cu.cuStreamWaitEvent(behind ? theirs : d->stream, d->order, 0);
    pthread_mutex_unlock(&d->lock);
    leave(d);
    return rc ? fail(d, e, "a stream of the caller's", rc) : TN_OK;
}

/* ---- modules ---- */

static tn_status compiler(cuda *d, nvrtc **out, err *e) {
    pthread_mutex_lock(&d->lock);
    tn_status st = d->nvrtc ? TN_OK : nvrtc_open(d->mem, &d->nvrtc, e);
    *out = d->nvrtc;
    pthread_mutex_unlock(&d->lock);
    return st;
}

/* A part of a program: its text, and the code that was made of it where it came from no cache. */
typedef struct part {
    char *source;
    size_t n_source, size;
    unsigned char *image;
} part;

static void free_parts(cuda *d, part *p, int n) {
    for (int i = 0; i < n; i++) mem_free(d->mem, p[i].source, p[i].n_source + 1), mem_free(d->mem, p[i].image, p[i].size);
}

/* The next kernel behind `at`, or `end`. */
static const char *next_kernel(const char *at, const char *end) {
    static const char mark[] = TARGET_NEXT_KERNEL;
    const char *next = memmem(at, (size_t)(end - at), mark, sizeof mark - 1);
    return next ? next : end;
}

/* What stands before the first mark is for all kernels. A part has some thousand bytes of them, so
 * that equal texts have equal parts wherever they are compiled. Returns how many; 0: no memory. */
static int split(cuda *d, const char *source, size_t n_source, part *out) {
    enum { PART_BYTES = 16 << 10 };
    const char *end = source + n_source, *first = next_kernel(source, end);
    size_t head = (size_t)(first - source), least = (size_t)(end - first) / NVRTC_MOST_PARTS + 1;
    int n = 0;
    if (least < PART_BYTES) least = PART_BYTES;
    for (const char *from = first; from < end || n == 0;) {
        const char *to = from;
        do {
            to = to < end ? next_kernel(to + 1, end) : end;
        } while (to < end && (n + 1 == NVRTC_MOST_PARTS || (size_t)(to - from) < least));
        part *p = &out[n];
        *p = (part){ .n_source = head + (size_t)(to - from) };
        if (!(p->source = mem_alloc(d->mem, p->n_source + 1))) {
            free_parts(d, out, n);
            return 0;
        }
        memcpy(p->source, source, head);
        memcpy(p->source + head, from, (size_t)(to - from));
        p->source[p->n_source] = 0;
        from = to, n++;
    }
    return n;
}

static bool load_cached(cuda *d, const part *p, cu_object *out) {
    cache_key key = { d->variant, p->source, p->n_source };
    unsigned char *image;
    size_t size;
    if (!d->cache || !cache_load_blob(d->cache, &key, &image, &size)) return false;
    bool loaded = d->cu.cuModuleLoadData(out, image) == CUDA_SUCCESS;
    cache_free_blob(d->cache, image, size);
    if (!loaded) cache_remove_blob(d->cache, &key);
    return loaded;
}

/* Parts whose modules are NULL. */
static tn_status compile_parts(cuda *d, part *p, int n, cu_object *modules, bool no_cache, err *e) {
    const char *sources[NVRTC_MOST_PARTS];
    unsigned char *images[NVRTC_MOST_PARTS];
    size_t sizes[NVRTC_MOST_PARTS];
    int of[NVRTC_MOST_PARTS], count = 0;
    nvrtc *compile;
    for (int i = 0; i < n; i++)
        if (!modules[i]) of[count] = i, sources[count++] = p[i].source;
    if (!count) return TN_OK;
    tn_status st = compiler(d, &compile, e);
    if (!st) st = nvrtc_compile_parts(compile, sources, count, d->arch, pool_cpus(), images, sizes, e);
    if (st) return st;
    for (int i = 0; i < count; i++) p[of[i]].image = images[i], p[of[i]].size = sizes[i];
    for (int i = 0; i < count && !st; i++) {
        part *x = &p[of[i]];
        cache_key key = { d->variant, x->source, x->n_source };
        int rc = d->cu.cuModuleLoadData(&modules[of[i]], x->image);
        if (rc) st = fail(d, e, "cuModuleLoadData (is the driver older than NVRTC?)", rc);
        if (!rc && !no_cache && d->cache) cache_store_blob(d->cache, &key, x->image, x->size);
    }
    return st;
}

static void unload(cuda *d, module *m) {
    for (int i = 0; i < m->n; i++)
        if (m->part[i]) d->cu.cuModuleUnload(m->part[i]);
}

/* With the context current. */
static tn_status make_module(cuda *d, const char *source, size_t n_source, bool no_cache, module *out, bool *out_hit, err *e) {
    part parts[NVRTC_MOST_PARTS];
    out->n = split(d, source, n_source, parts);
    if (!out->n) return err_set(e, TN_ERR_NOMEM, "out of memory: the text of a program, %zu bytes", n_source);
    *out_hit = !no_cache;
    for (int i = 0; i < out->n; i++) {
        out->part[i] = NULL;
        *out_hit &= !no_cache && load_cached(d, &parts[i], &out->part[i]);
    }
    tn_status st = compile_parts(d, parts, out->n, out->part, no_cache, e);
    free_parts(d, parts, out->n);
    if (st) unload(d, out);
    return st;
}

static tn_status cuda_build(device *base, const char *source, size_t n_source, bool no_cache, module **out, bool *out_hit,
                            err *e) {
    cuda *d = (cuda *)base;
    bool hit = false;
    *out = NULL;
    module *m = mem_alloc(d->mem, sizeof *m);
    if (!m) return err_set(e, TN_ERR_NOMEM, "out of memory for a module");
    tn_status st = enter(d, e);
    if (st == TN_OK) {
        st = make_module(d, source, n_source, no_cache, m, &hit, e);
        leave(d);
    }
    if (out_hit) *out_hit = hit;
    if (st)
        mem_free(d->mem, m, sizeof *m);
    else
        *out = m;
    return st;
}

static void cuda_drop(device *base, module *m) {
    cuda *d = (cuda *)base;
    err e;
    if (!m) return;
    if (enter(d, &e) == TN_OK) {
        d->cu.cuStreamSynchronize(d->stream);
        unload(d, m);
        leave(d);
    }
    mem_free(d->mem, m, sizeof *m);
}

static tn_status cuda_find(device *base, module *m, const char *name, void **out_entry, err *e) {
    cuda *d = (cuda *)base;
    *out_entry = NULL;
    tn_status st = enter(d, e);
    if (st) return st;
    int rc = CUDA_ERROR_NOT_FOUND;
    for (int i = 0; i < m->n && rc == CUDA_ERROR_NOT_FOUND; i++) rc = d->cu.cuModuleGetFunction(out_entry, m->part[i], name);
    leave(d);
    if (rc == CUDA_ERROR_NOT_FOUND) return err_set(e, TN_ERR_INVAL, "the module has no entry '%s'", name);
    return rc ? fail(d, e, "cuModuleGetFunction", rc) : TN_OK;
}

static void cuda_usage(device *base, void *entry, int block_threads, device_usage *out) {
    cuda *d = (cuda *)base;
    int local = 0, shared = 0;
    err e;
    *out = (device_usage){ 0 };
    if (enter(d, &e)) return;
    bool known = !d->cu.cuFuncGetAttribute(&out->registers, CU_FUNCTION_REGISTERS, entry) &&
                 !d->cu.cuFuncGetAttribute(&local, CU_FUNCTION_LOCAL_BYTES, entry) &&
                 !d->cu.cuFuncGetAttribute(&shared, CU_FUNCTION_SHARED_BYTES, entry) &&
                 !d->cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&out->resident, entry, block_threads, 0);
    if (!known) *out = (device_usage){ 0 };
    if (known) out->spilled = local, out->shared = shared, out->threads = attribute(d, CU_MAX_THREADS_PER_MULTIPROCESSOR);
    leave(d);
}

/* ---- lists ---- */

static void drop_graph(cuda *d, instance *x) { /* with the context current */
    if (x->made) d->cu.cuGraphExecDestroy(x->made);
    if (x->source) d->cu.cuGraphDestroy(x->source);
    mem_free(d->mem, x->nodes, x->room * sizeof *x->nodes);
    *x = (instance){ 0 };
}

static void drop_loops(list *l) { /* likewise: with the memory that they share */
    drop_graph(l->dev, &l->graph[LOOP]), drop_graph(l->dev, &l->graph[LOOP_APART]);
    if (l->counter) l->dev->cu.cuMemFree(l->counter);
    l->counter = 0;
}

static void drop_graphs(list *l) { /* likewise */
    for (int i = 0; i < N_GRAPHS; i++) drop_graph(l->dev, &l->graph[i]);
    drop_loops(l);
}

static void cuda_discard(list *l) {
    err e;
    if (!l) return;
    cuda *d = l->dev;
    if (enter(d, &e) == TN_OK) {
        d->cu.cuStreamSynchronize(d->stream);
        drop_graphs(l);
        leave(d);
    }
    gpu_list_free(&l->l, sizeof *l);
}

static tn_status cuda_record(device *base, int n_slots, list **out, err *e) {
    cuda *d = (cuda *)base;
    list *l = *out = gpu_list_new(d->mem, sizeof *l, n_slots, e);
    if (!l) return e->code;
    l->dev = d;
    return TN_OK;
}

static tn_status cuda_launch(list *l, const device_launch *what, err *e) {
    gpu_node *n;
    if (what->n_args + 16 * what->n_maps + what->n_rows > MAX_ARGS || what->n_maps > DEVICE_MOST_MAPS)
        return err_set(e, TN_ERR_UNSUPPORTED, "a kernel of %d buffers and %d matrices; %d and %d are possible", what->n_args,
                       what->n_maps, MAX_ARGS, DEVICE_MOST_MAPS);
    tn_status st = gpu_list_launch(
        &l->l, what, l->dev->caps.max_block_threads ? l->dev->caps.max_block_threads : l->dev->caps.block_threads, &n, e);
    if (st == TN_OK) n->kernel = what->entry;
    if (st || !what->shared) return st;
    cuda *d = l->dev;
    if ((st = enter(d, e))) return st;
    int rc = d->cu.cuFuncSetAttribute(what->entry, CU_FUNCTION_MAX_DYNAMIC_SHARED, (int)what->shared);
    leave(d);
    return rc ? fail(d, e, "cuFuncSetAttribute", rc) : TN_OK;
}
static tn_status cuda_copy(list *l, int dst_slot, size_t dst_offset, int src_slot, size_t src_offset, size_t size, err *e) {
    return gpu_list_copy(&l->l, (device_arg){ dst_slot, dst_offset, size, true, 0 },
                         (device_arg){ src_slot, src_offset, size, false, 0 }, size, e);
}
static tn_status cuda_loop(list *l, err *e) { return gpu_list_loop(&l->l, e); }
static tn_status cuda_repeat(list *l, const device_trips *what, err *e) { return gpu_list_repeat(&l->l, what, e); }
static tn_status cuda_leave(list *l, int slot, size_t offset, err *e) { return gpu_list_leave(&l->l, slot, offset, e); }
static tn_status cuda_branch(list *l, int slot, size_t offset, err *e) { return gpu_list_branch(&l->l, slot, offset, e); }
static tn_status cuda_otherwise(list *l, err *e) { return gpu_list_otherwise(&l->l, e); }
static tn_status cuda_end(list *l, err *e) { return gpu_list_end(&l->l, e); }
static tn_status cuda_seal(list *l, err *e) { return gpu_list_seal(&l->l, e); }
static void cuda_bind(list *l, int slot, buffer *b, size_t offset) { gpu_list_bind(&l->l, slot, b, b->at + offset); }
static void cuda_ring(list *l, int slot, size_t stride, int64_t length) { gpu_list_ring(&l->l, slot, stride, length); }
static void cuda_places(list *l, const device_places *places) { gpu_list_places(&l->l, places); }
static void cuda_sizes(list *l, const int64_t *blocks, const int64_t *rows) { gpu_list_sizes(&l->l, blocks, rows); }
static void cuda_start(list *l, int64_t step) { l->l.start = step; }

/* ---- running; with the context current ---- */

typedef struct arguments {
    cu_pointer value[MAX_ARGS];
    void *at[MAX_ARGS + DEVICE_MOST_MAPS];
} arguments;

/* The map of a matrix that lies there now. */
static int write_map(const cuda *d, gpu_map *m, cu_pointer at) {
    if (m->at == at) return CUDA_SUCCESS;
    const uint64_t sizes[] = { (uint64_t)m->what.pitch, (uint64_t)m->what.rows }, strides[] = { 2 * sizes[0] };
    const uint32_t box[] = { 64, (uint32_t)m->what.box_rows }, steps[] = { 1, 1 };
    _Alignas(64) uint64_t words[COUNT_OF(m->words)];
    int rc = d->cu.cuTensorMapEncodeTiled(words, CU_TENSOR_MAP_UINT16, 2, at, sizes, strides, box, steps, 0,
                                          CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_256B, 0);
    if (rc) return rc;
    memcpy(m->words, words, sizeof words);
    m->at = at;
    return CUDA_SUCCESS;
}

/* at_once: steps of a loop, which keeps what moves; 0: it is none. */
static int fill_arguments(const list *l, const gpu_node *n, int64_t step, int at_once, arguments *a) {
    int rc = CUDA_SUCCESS;
    for (int i = 0; i < n->n_args; i++) {
        const device_arg *x = &n->args[i];
        a->value[i] = at_once && gpu_slot_moves(&l->l.slots[x->slot])
                          ? l->counter + gpu_loop_place(&l->l, x->slot, (int)step, at_once) + x->offset
                          : gpu_list_place(&l->l, x, step);
        a->at[i] = &a->value[i];
    }
    for (int i = 0; i < n->n_maps && !rc; i++) {
        rc = write_map(l->dev, &n->maps[i], a->value[n->maps[i].what.arg]);
        a->at[n->n_args + i] = n->maps[i].words;
    }
    for (int i = 0; i < n->n_rows; i++) a->at[n->n_args + n->n_maps + i] = &n->rows[i].value;
    return rc;
}

static int run_node(list *l, const gpu_node *n, int64_t step) {
    cuda *d = l->dev;
    arguments a;
    l->l.graph_steps = 0;
    int rc = fill_arguments(l, n, step, 0, &a);
    if (rc) return rc;
    if (n->kind == GPU_COPY)
        return n->size ? d->cu.cuMemcpyDtoDAsync(a.value[0], a.value[1], n->size, d->stream) : CUDA_SUCCESS;
    if (n->grid_blocks == 0) return CUDA_SUCCESS;
    return d->cu.cuLaunchKernel(n->kernel, (unsigned)n->grid_blocks, 1, 1, (unsigned)n->block_threads, 1, 1,
                                (unsigned)n->shared, d->stream, a.at, NULL);
}

static int run_nodes(void *ud, int from, int to, int64_t step) {
    list *l = ud;
    int rc = CUDA_SUCCESS;
    for (int i = from; i < to && !rc; i++) rc = run_node(l, &l->l.nodes[i], step);
    return rc;
}

static int read_value(void *ud, const device_arg *a, int64_t step, void *out) {
    const list *l = ud;
    int rc = l->dev->cu.cuMemcpyDtoHAsync(out, gpu_list_place(&l->l, a, step), a->size, l->dev->stream);
    return rc ? rc : l->dev->cu.cuStreamSynchronize(l->dev->stream);
}

static int run_step(list *l, int64_t step) {
    static const gpu_walker walker = { run_nodes, read_value };
    return gpu_list_walk(&l->l, step, &walker, l);
}

static cu_kernel_node kernel_node(cu_object f, int64_t grid_blocks, int block_threads, int64_t shared, void **arguments_at) {
    return (cu_kernel_node){ .function = f,
                             .grid = { (unsigned)grid_blocks, 1, 1 },
                             .block = { (unsigned)block_threads, 1, 1 },
                             .arguments = arguments_at,
                             .shared_bytes = (unsigned)shared };
}

/* Its code waits for what is before it: it may begin as soon as all thread blocks of those have come to their end (programmatic
 * dependent launch). */
static int add_early_edges(const cuda *d, cu_object graph, const cu_object *before, int n_before, const cu_object *node) {
    static const cu_graph_edge early = { .from_port = CU_EDGE_PORT_PROGRAMMATIC, .type = CU_EDGE_PROGRAMMATIC };
    int rc = CUDA_SUCCESS;
    for (int i = 0; i < n_before && !rc; i++) rc = d->cu.cuGraphAddDependencies(graph, &before[i], node, &early, 1);
    return rc;
}

static int add_kernel(const cuda *d, cu_object graph, cu_object f, int64_t grid_blocks, int block_threads, int64_t shared,
                      void **arguments_at, const cu_object *before, int n_before, cu_object *out) {
    cu_kernel_node x = kernel_node(f, grid_blocks, block_threads, shared, arguments_at);
    return d->cu.cuGraphAddKernelNode(out, graph, n_before ? before : NULL, (size_t)n_before, &x);
}

static int add_launch(const cuda *d, cu_object graph, const gpu_node *n, void **arguments_at, const cu_object *before,
                      int n_before, cu_object *out) {
    bool early = n->waits && d->overlaps;
    int rc = add_kernel(d, graph, n->kernel, n->grid_blocks, n->block_threads, n->shared, arguments_at, before,
                        early ? 0 : n_before, out);
    return rc || !early ? rc : add_early_edges(d, graph, before, n_before, out);
}

/* What a loop on the device is made of: copies of what moves, in and out, of each step. */
typedef struct loop_moves {
    int at_once;
    cu_object *in; /* [at_once * n_slots]; NULL: the slot does not move in */
} loop_moves;

/* Those that bring what the launch reads. */
static int add_moved(const gpu_node *n, const cu_object *in, cu_object *before, int n_before) {
    for (int i = 0; i < n->n_args; i++) {
        cu_object move = in[n->args[i].slot];
        bool new = move != NULL;
        for (int b = 0; b < n_before && new; b++) new = before[b] != move;
        if (new) before[n_before++] = move;
    }
    return n_before;
}

/* A kernel node for each launch of so many steps; those that may overlap do. */
static int add_nodes(list *l, const gpu_order *order, cu_object graph, cu_object *nodes, cu_object *before,
                     const loop_moves *m) {
    cuda *d = l->dev;
    int rc = CUDA_SUCCESS;
    for (int k = 0; k < order->n && !rc; k++) {
        const gpu_node *n = &l->l.nodes[k % l->l.n_nodes];
        int n_before = 0;
        for (int i = order->first[k]; i < order->first[k + 1]; i++) before[n_before++] = nodes[order->before[i]];
        int step = k / l->l.n_nodes;
        arguments a;
        if (m) n_before = add_moved(n, m->in + step * l->l.n_slots, before, n_before);
        rc = fill_arguments(l, n, step, m ? m->at_once : 0, &a);
        if (!rc) rc = add_launch(d, graph, n, a.at, before, n_before, &nodes[k]);
    }
    return rc;
}

/* A list with repeats of known numbers of iterations: one launch behind the other, as the host would queue them. */
typedef struct chain {
    list *l;
    cu_object graph, last;
} chain;
static int add_to_chain(void *ud, int from, int to, int64_t step) {
    chain *c = ud;
    int rc = CUDA_SUCCESS;
    for (int i = from; i < to && !rc; i++) {
        const gpu_node *n = &c->l->l.nodes[i];
        arguments a;
        cu_object next;
        rc = fill_arguments(c->l, n, step, 0, &a);
        if (!rc) rc = add_launch(c->l->dev, c->graph, n, a.at, &c->last, c->last != NULL, &next);
        if (!rc) c->last = next;
    }
    return rc;
}

/* Of the graph, whose nodes these are; both are kept where the list's numbers of thread blocks may change. */
static int instantiate(list *l, instance *x, cu_object graph, cu_object *nodes, size_t room) {
    cuda *d = l->dev;
    int rc = d->cu.cuGraphInstantiate(&x->made, graph, 0);
    x->copies = l->l.places ? l->l.places->copies : 0, x->results = l->l.places && l->l.places->results;
    if (!rc && l->l.sizes) x->source = graph, x->nodes = nodes, x->room = room, x->sizes = l->l.sizes;
    return rc;
}

static tn_status make_chain(list *l, instance *out, err *e) {
    static const gpu_walker walker = { add_to_chain, NULL };
    cuda *d = l->dev;
    chain c = { .l = l };
    l->l.graph_steps = 1;
    int rc = d->cu.cuGraphCreate(&c.graph, 0);
    if (!rc) rc = gpu_list_walk(&l->l, 0, &walker, &c);
    if (!rc) rc = instantiate(l, out, c.graph, NULL, 0);
    if (c.graph && !out->source) d->cu.cuGraphDestroy(c.graph);
    return rc ? fail(d, e, "a graph of launches", rc) : TN_OK;
}

static tn_status make_graph(list *l, int steps, instance *out, err *e) {
    cuda *d = l->dev;
    cu_object graph = NULL;
    gpu_order order;
    const device_places *places = l->l.places;
    if (steps == 1) l->l.places = NULL;
    l->l.graph_steps = steps;
    tn_status st = gpu_list_order(&l->l, steps, &order, e);
    l->l.places = places;
    if (st) return st;
    size_t n = (size_t)order.n;
    cu_object *nodes = mem_alloc(d->mem, 2 * n * sizeof *nodes);
    if (!nodes) st = err_set(e, TN_ERR_NOMEM, "out of memory: a graph of %zu launches", n);
    int rc = st ? CUDA_SUCCESS : d->cu.cuGraphCreate(&graph, 0);
    if (!st && !rc) rc = add_nodes(l, &order, graph, nodes, nodes + n, NULL);
    if (!st && !rc) rc = instantiate(l, out, graph, nodes, 2 * n), out->n = order.n;
    if (graph && !out->source) d->cu.cuGraphDestroy(graph);
    if (!out->nodes) mem_free(d->mem, nodes, 2 * n * sizeof *nodes);
    gpu_order_free(&l->l, &order);
    return rc ? fail(d, e, "a graph of launches", rc) : st;
}

/* Brings the list's numbers of thread blocks, and others, to a graph that is there; one that does not take them is dropped. */
static void patch_graph(list *l, int which) {
    cuda *d = l->dev;
    instance *x = &l->graph[which];
    const device_places *p = l->l.places;
    if (x->made && p && which != ONE_STEP && (x->copies != p->copies || x->results != p->results)) drop_graph(d, x);
    if (!x->made || x->sizes == l->l.sizes) return;
    l->l.graph_steps = x->n / l->l.n_nodes;
    int rc = x->nodes && d->cu.cuGraphExecKernelNodeSetParams ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    for (int k = 0; k < x->n && !rc; k++) {
        const gpu_node *n = &l->l.nodes[k % l->l.n_nodes];
        arguments a;
        rc = fill_arguments(l, n, k / l->l.n_nodes, x->at_once, &a);
        cu_kernel_node to = kernel_node(n->kernel, n->grid_blocks, n->block_threads, n->shared, a.at);
        if (!rc) rc = d->cu.cuGraphExecKernelNodeSetParams(x->made, x->nodes[k], &to);
    }
    x->sizes = l->l.sizes;
    if (rc) drop_graph(d, x);
}

/* ---- many steps in one submit ---- */

static bool loops(cuda *d) {
    pthread_mutex_lock(&d->lock);
    if (!d->loops) {
        char text[CUDA_LOOP_BYTES];
        static const char *const names[] = { "move1", "move4", "move16" };
        cuda_loop_text(d->arch, text);
        int rc = d->cu.cuGraphConditionalHandleCreate && d->cu.cuGraphAddNode ? d->cu.cuModuleLoadData(&d->loop_module, text)
                                                                              : CUDA_ERROR_NOT_FOUND;
        if (!rc) rc = d->cu.cuModuleGetFunction(&d->loop_control, d->loop_module, "control");
        for (size_t i = 0; i < COUNT_OF(names) && !rc; i++)
            rc = d->cu.cuModuleGetFunction(&d->loop_move[i], d->loop_module, names[i]);
        d->loops = rc ? -1 : 1;
    }
    bool can = d->loops == 1;
    pthread_mutex_unlock(&d->lock);
    return can;
}

/* Copies a step of a slot into the loop's place for it, or out of it. */
static int add_move(list *l, cu_object body, int slot, int step, int at_once, bool out, const cu_object *before, int n_before,
                    cu_object *made) {
    cuda *d = l->dev;
    const gpu_slot *s = &l->l.slots[slot];
    cu_pointer here = l->counter + gpu_loop_place(&l->l, slot, step, at_once), from = out ? here : s->at,
               to = out ? s->at : here;
    uint64_t stride = s->stride, length = (uint64_t)s->length, ahead = (uint64_t)step;
    int unit = (stride | s->at) % 16 == 0 ? 2 : (stride | s->at) % 4 == 0 ? 1 : 0;
    uint64_t count = stride >> 2 * unit;
    unsigned outward = out;
    void *at[] = { &l->counter, &from, &to, &stride, &length, &count, &outward, &ahead };
    int64_t grid_blocks = (int64_t)((count + 255) / 256);
    return add_kernel(d, body, d->loop_move[unit], grid_blocks < 1024 ? grid_blocks : 1024, 256, 0, at, before, n_before, made);
}

static int add_moves_in(list *l, cu_object body, loop_moves *m) {
    int rc = CUDA_SUCCESS;
    for (int k = 0; k < m->at_once; k++)
        for (int i = 0; i < l->l.n_slots && !rc; i++) {
            if (!gpu_slot_moves(&l->l.slots[i]) || gpu_slot_written(&l->l, i) || !gpu_slot_used(&l->l, i)) continue;
            rc = add_move(l, body, i, k, m->at_once, false, NULL, 0, &m->in[k * l->l.n_slots + i]);
        }
    return rc;
}

static bool writes_slot(const gpu_node *n, int slot) {
    for (int i = 0; i < n->n_args; i++)
        if (n->args[i].slot == slot && n->args[i].written) return true;
    return false;
}

/* Of each step when all that write it have run, and behind the one before: a ring may begin again. *n_last: nodes that nothing
 * waits for, which grow by these. */
static int add_moves_out(list *l, cu_object body, const cu_object *steps, int at_once, cu_object *before, cu_object *last,
                         int *n_last) {
    int rc = CUDA_SUCCESS;
    for (int i = 0; i < l->l.n_slots; i++) {
        cu_object move = NULL;
        if (!gpu_slot_moves(&l->l.slots[i]) || !gpu_slot_written(&l->l, i)) continue;
        for (int k = 0; k < at_once && !rc; k++) {
            int n = 0;
            if (move) before[n++] = move;
            for (int x = 0; x < l->l.n_nodes; x++)
                if (writes_slot(&l->l.nodes[x], i)) before[n++] = steps[k * l->l.n_nodes + x];
            rc = add_move(l, body, i, k, at_once, true, before, n, &move);
        }
        last[(*n_last)++] = move;
    }
    return rc;
}

/* Nodes that none of the order waits for. */
static int last_ones(const gpu_order *o, const cu_object *nodes, cu_object *out) {
    int n = 0;
    for (int k = 0; k < o->n; k++) {
        bool last = true;
        for (int i = o->first[k + 1]; i < o->first[o->n] && last; i++) last = o->before[i] != k;
        if (last) out[n++] = nodes[k];
    }
    return n;
}

/* Room for the nodes of a loop's steps, for those that others wait for, and for copies in. */
static size_t loop_nodes(const list *l, int n) { return 3 * (size_t)n + 2 * (size_t)l->l.n_slots + MAX_ARGS; }

/* In, the steps, out, and the kernel that counts. nodes: [loop_nodes], the steps first; m->in: zeros. */
static int fill_body(list *l, const gpu_order *order, cu_object body, uint64_t handle, cu_object *nodes, loop_moves *m) {
    cuda *d = l->dev;
    cu_object *last = nodes + order->n, *before = last + order->n + l->l.n_slots, control;
    int rc = add_moves_in(l, body, m);
    if (!rc) rc = add_nodes(l, order, body, nodes, before, m);
    int n_last = rc ? 0 : last_ones(order, nodes, last);
    if (!rc) rc = add_moves_out(l, body, nodes, m->at_once, before, last, &n_last);
    uint64_t steps = (uint64_t)m->at_once;
    void *at[] = { &handle, &l->counter, &steps };
    return rc ? rc : add_kernel(d, body, d->loop_control, 1, 1, 0, at, last, n_last, &control);
}

static tn_status make_loop(list *l, int at_once, instance *out, err *e) {
    cuda *d = l->dev;
    cu_object graph = NULL, node;
    gpu_order order;
    uint64_t handle = 0;
    l->l.graph_steps = at_once;
    tn_status st = gpu_list_order(&l->l, at_once, &order, e);
    if (st) return st;
    size_t n = loop_nodes(l, order.n), n_in = (size_t)at_once * (size_t)l->l.n_slots;
    cu_object *nodes = mem_alloc(d->mem, n * sizeof *nodes);
    loop_moves m = { at_once, mem_alloc(d->mem, n_in * sizeof *m.in) };
    if (!nodes || !m.in) st = err_set(e, TN_ERR_NOMEM, "out of memory: a graph of %d launches", order.n);
    int rc = st ? CUDA_SUCCESS : d->cu.cuGraphCreate(&graph, 0);
    if (!st && !rc && !l->counter) rc = d->cu.cuMemAlloc(&l->counter, gpu_loop_place(&l->l, l->l.n_slots, 0, at_once));
    if (!st && !rc) rc = d->cu.cuGraphConditionalHandleCreate(&handle, graph, d->context, 1, CU_CONDITION_ASSIGN_DEFAULT);
    cu_conditional_node x = {
        .type = CU_GRAPH_NODE_CONDITIONAL, .handle = handle, .kind = CU_CONDITION_WHILE, .size = 1, .context = d->context
    };
    if (!st && !rc) rc = d->cu.cuGraphAddNode(&node, graph, NULL, NULL, 0, &x);
    if (!st && !rc) rc = fill_body(l, &order, x.bodies[0], handle, nodes, &m);
    out->at_once = at_once;
    if (!st && !rc) rc = instantiate(l, out, graph, nodes, n), out->n = order.n;
    if (graph && !out->source) d->cu.cuGraphDestroy(graph);
    if (!out->nodes) mem_free(d->mem, nodes, n * sizeof *nodes);
    mem_free(d->mem, m.in, n_in * sizeof *m.in);
    gpu_order_free(&l->l, &order);
    return rc ? fail(d, e, "a graph with a loop", rc) : st;
}

/* Whether a list can be nodes of a graph: kernels that do something. */
static bool can_be_nodes(const list *l) {
    if (l->l.n_nodes > MAX_NODES || l->l.n_nodes < 1) return false;
    for (int i = 0; i < l->l.n_nodes; i++)
        if (l->l.nodes[i].kind != GPU_LAUNCH || l->l.nodes[i].grid_blocks == 0) return false;
    return true;
}

/* Steps of a turn: many, so that what each turn takes is little, and steps overlap; of a ring at most a quarter of what is to
 * be done, with all that moves in memory of its own. */
static int steps_of_turn(const list *l, int64_t steps) {
    int n = l->l.n_nodes, at_once = 1;
    if (!gpu_list_moves(&l->l)) return n * UNROLL > MAX_NODES ? 1 : n * UNROLL > LOOPED ? UNROLL : LOOPED / n;
    while (2 * at_once <= UNROLL && 2 * at_once * n <= MOVED && 8 * at_once <= steps &&
           gpu_loop_place(&l->l, l->l.n_slots, 0, 2 * at_once) <= MOVED_BYTES)
        at_once *= 2;
    return at_once;
}

/* As many steps as the loop does; 0 where there is none, or it does not pay. On an H200 a loop of one launch took 3.3 us a step
 * in turns of 16, 3.1 without a loop. */
static int64_t run_loop(list *l, int64_t steps, err *e) {
    cuda *d = l->dev;
    bool moves = gpu_list_moves(&l->l);
    if (!can_be_nodes(l)) return 0;
    int which = l->l.places ? LOOP_APART : LOOP, at_once = steps_of_turn(l, steps);
    instance *x = &l->graph[which];
    if (!x->made && moves && l->l.sizes && steps < 8 * UNROLL) return 0; /* other sizes make it anew */
    if (moves && (!x->made || x->at_once < at_once)) drop_loops(l);      /* other or more steps than they keep */
    if (x->made && moves) at_once = x->at_once;
    if (steps < (x->made && moves ? at_once : 4 * at_once) || !gpu_loop_fits(&l->l) || !loops(d)) return 0;
    patch_graph(l, which);
    if (!x->made && make_loop(l, at_once, x, e)) {
        pthread_mutex_lock(&d->lock);
        d->loops = -1; /* what cannot be made once cannot be made twice; the other ways do the work */
        pthread_mutex_unlock(&d->lock);
        return 0;
    }
    int64_t state[2] = { steps / at_once, l->l.start };
    if (d->cu.cuMemcpyHtoDAsync(l->counter, state, sizeof state, d->stream)) return 0;
    return d->cu.cuGraphLaunch(x->made, d->stream) ? 0 : state[0] * at_once;
}

/* Whether a graph pays and can be made: several kernels, no copies, none that does nothing. */
static bool wants_graph(const list *l, int64_t steps) {
    bool moves = (steps > 1 || l->l.start) && gpu_list_moves(&l->l);
    if (gpu_list_has_control(&l->l)) return !moves && gpu_list_unrolled(&l->l, MAX_NODES) > 1;
    return l->l.n_nodes * steps >= 2 && !moves && can_be_nodes(l);
}

static tn_status run_steps(list *l, int64_t steps, err *e) {
    cuda *d = l->dev;
    int rc = CUDA_SUCCESS;
    tn_status st = TN_OK;
    if (l->built != l->l.version) drop_graphs(l);
    l->built = l->l.version;
    int64_t step = run_loop(l, steps, e);
    if (step == steps) return TN_OK;
    bool control = gpu_list_has_control(&l->l);
    if (!wants_graph(l, steps)) {
        for (; step < steps && !rc; step++) rc = run_step(l, step);
        return rc ? fail(d, e, "a launch", rc) : TN_OK;
    }
    for (int i = MANY_STEPS; i >= ONE_STEP && !st; i--) { /* many steps at once, then the rest */
        int at_once = i == MANY_STEPS ? UNROLL : 1, pays = l->l.sizes && i == MANY_STEPS ? 4 * at_once : at_once;
        if (steps - step < pays || (i == MANY_STEPS && (control || l->l.n_nodes * UNROLL > MAX_NODES))) continue;
        int which = i == MANY_STEPS && l->l.places ? MANY_STEPS_APART : i;
        instance *x = &l->graph[which];
        patch_graph(l, which);
        if (!x->made) st = control ? make_chain(l, x, e) : make_graph(l, at_once, x, e);
        for (; !st && !rc && steps - step >= at_once; step += at_once) rc = d->cu.cuGraphLaunch(x->made, d->stream);
        if (rc) st = fail(d, e, "a launch", rc);
    }
    return st;
}

static tn_status wait_for(cuda *d, uint64_t ticket, err *e) { /* with the lock held */
    int i = (int)(ticket % PENDING);
    if (ticket <= d->done || !d->recorded[i]) return TN_OK;
    int rc = d->cu.cuEventSynchronize(d->event[i]);
    d->recorded[i] = false;
    d->done = ticket;
    return rc ? fail(d, e, "a run", rc) : TN_OK;
}

static tn_status cuda_submit(list *l, int64_t steps, uint64_t *out_ticket, err *e) {
    cuda *d = l->dev;
    tn_status st = gpu_list_ready(&l->l, steps, e);
    if (st || (st = enter(d, e))) return st;
    int rc;
    int64_t noted = cuda_watch_begin(d, "run", 0, d->stream);
    st = run_steps(l, steps, e);
    cuda_watch_end(d, noted, d->stream);
    pthread_mutex_lock(&d->lock);
    uint64_t ticket = d->ticket + 1;
    int i = (int)(ticket % PENDING);
    if (st == TN_OK && d->recorded[i]) st = wait_for(d, ticket - PENDING, e);
    if (st == TN_OK) {
        rc = d->cu.cuEventRecord(d->event[i], d->stream);
        if (rc) st = fail(d, e, "cuEventRecord", rc);
    }
    if (st == TN_OK) d->recorded[i] = true, *out_ticket = d->ticket = ticket;
    pthread_mutex_unlock(&d->lock);
    leave(d);
    return st;
}

static tn_status cuda_wait(device *base, uint64_t ticket, err *e) {
    cuda *d = (cuda *)base;
    tn_status st = enter(d, e);
    if (st) return st;
    pthread_mutex_lock(&d->lock);
    st = ticket > d->ticket ? err_set(e, TN_ERR_INVAL, "ticket %llu was never given out", (unsigned long long)ticket)
                            : wait_for(d, ticket, e);
    pthread_mutex_unlock(&d->lock);
    leave(d);
    return st;
}

/* ---- profiles; with the context current ---- */

/* Two events round each operation: what the GPU does with them counts as between. */
static int record_profile(list *l, const int *repeats, cu_object *events, int n) {
    cuda *d = l->dev;
    int rc = CUDA_SUCCESS;
    gpu_list_rewind(&l->l, 0);
    for (int i = 0, at = 0; i < n && !rc; i++, at++) { /* each once, whatever loops and branches are round it */
        at = gpu_next_run(&l->l, at);
        rc = d->cu.cuEventRecord(events[2 * i], d->stream);
        for (int r = 0; r < (repeats ? repeats[i] : 1) && !rc; r++) rc = run_node(l, &l->l.nodes[at], 0);
        if (!rc) rc = d->cu.cuEventRecord(events[2 * i + 1], d->stream);
    }
    return rc;
}

/* So many launches behind *last (NULL: at the begin of the graph), which is then the last of them. */
static int add_repeated(list *l, const gpu_node *node, int times, cu_object graph, cu_object *last) {
    arguments a;
    l->l.graph_steps = 1;
    int rc = fill_arguments(l, node, 0, 0, &a);
    for (int r = 0; r < times && !rc; r++) {
        cu_object next;
        rc = add_kernel(l->dev, graph, node->kernel, node->grid_blocks, node->block_threads, node->shared, a.at, last,
                        *last != NULL, &next);
        if (!rc) *last = next;
    }
    return rc;
}

/* The nodes of a graph in which everything waits for what is before it: the GPU does not wait for the host's launches. It does
 * at the begin of a graph (on an H200 for about 35 us), so the first operation is done as often before the clock starts. */
static int fill_profile(list *l, const int *repeats, const cu_object *events, int n, cu_object graph) {
    cuda *d = l->dev;
    cu_object last = NULL, next;
    int rc = add_repeated(l, &l->l.nodes[0], repeats[0], graph, &last);
    for (int i = 0; i < n && !rc; i++) {
        rc = d->cu.cuGraphAddEventRecordNode(&next, graph, &last, 1, events[2 * i]);
        last = next;
        if (!rc) rc = add_repeated(l, &l->l.nodes[i], repeats[i], graph, &last);
        if (!rc) rc = d->cu.cuGraphAddEventRecordNode(&next, graph, &last, 1, events[2 * i + 1]);
        last = next;
    }
    return rc;
}

static int launch_profile(list *l, const int *repeats, const cu_object *events, int n) {
    cuda *d = l->dev;
    cu_object graph = NULL, made = NULL;
    int rc = d->cu.cuGraphCreate(&graph, 0);
    if (!rc) rc = fill_profile(l, repeats, events, n, graph);
    if (!rc) rc = d->cu.cuGraphInstantiate(&made, graph, 0);
    if (!rc) rc = d->cu.cuGraphLaunch(made, d->stream);
    int waited = d->cu.cuStreamSynchronize(d->stream);
    if (made) d->cu.cuGraphExecDestroy(made);
    if (graph) d->cu.cuGraphDestroy(graph);
    return rc ? rc : waited;
}

static int profile_run(list *l, const int *repeats, cu_object *events, device_span *out, int n) {
    cuda *d = l->dev;
    int rc = CUDA_SUCCESS;
    for (int i = 0; i < 2 * n && !rc; i++) rc = d->cu.cuEventCreate(&events[i], 0);
    bool graph = repeats && d->cu.cuGraphAddEventRecordNode && can_be_nodes(l);
    if (!rc) rc = graph ? launch_profile(l, repeats, events, n) : record_profile(l, repeats, events, n);
    int waited = d->cu.cuStreamSynchronize(d->stream);
    if (!rc) rc = waited;
    for (int i = 0; i < n && !rc; i++) {
        float begin, took;
        rc = d->cu.cuEventElapsedTime(&begin, events[0], events[2 * i]);
        if (!rc) rc = d->cu.cuEventElapsedTime(&took, events[2 * i], events[2 * i + 1]);
        double from = (double)begin * 1e-3;
        if (!rc) out[i] = (device_span){ from, from + (double)took * 1e-3 / (repeats ? repeats[i] : 1) };
    }
    for (int i = 0; i < 2 * n; i++)
        if (events[i]) d->cu.cuEventDestroy(events[i]);
    return rc;
}

static tn_status cuda_profile(list *l, const int *repeats, device_span *out, int n, err *e) {
    cuda *d = l->dev;
    tn_status st = gpu_list_profile(&l->l, n, e);
    if (st) return st;
    cu_object *events = mem_alloc(d->mem, 2 * (size_t)n * sizeof *events);
    if (!events) return err_set(e, TN_ERR_NOMEM, "out of memory: a profile of %d operations", n);
    if ((st = enter(d, e)) == TN_OK) {
        int rc = profile_run(l, repeats, events, out, n);
        if (rc) st = fail(d, e, "a profile", rc);
        leave(d);
    }
    mem_free(d->mem, events, 2 * (size_t)n * sizeof *events);
    return st;
}

const device_api device_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .get_caps = cuda_get_caps,
    .room = cuda_room,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .map = cuda_map,
    .adopt = cuda_adopt,
    .follow = cuda_follow,
    .upload = cuda_upload,
    .send = cuda_send,
    .download = cuda_download,
    .build = cuda_build,
    .drop = cuda_drop,
    .find = cuda_find,
    .usage = cuda_usage,
    .record = cuda_record,
    .launch = cuda_launch,
    .copy = cuda_copy,
    .loop = cuda_loop,
    .repeat = cuda_repeat,
    .leave = cuda_leave,
    .branch = cuda_branch,
    .otherwise = cuda_otherwise,
    .end = cuda_end,
    .seal = cuda_seal,
    .bind = cuda_bind,
    .ring = cuda_ring,
    .places = cuda_places,
    .sizes = cuda_sizes,
    .start = cuda_start,
    .discard = cuda_discard,
    .submit = cuda_submit,
    .wait = cuda_wait,
    .profile = cuda_profile,
    .watch = cuda_watch_work,
};
