/* One list of checks for every device of the table. What a device cannot promise it does not run, by its capabilities: a device
 * that gives back what was uploaded (`keeps`) also has to compute; null only has to accept, refuse and count. */
#include "rt_util.h"

#include "rt/cache.h"
#include "rt/device.h"
#include "rt/null.h"

#include <pthread.h>
#include <sys/mman.h>

static unsigned seed = 12345;
static unsigned next_random(void) { return seed = seed * 1664525u + 1013904223u; }

typedef struct fixture {
    counted memory;
    kept_log log;
    device *d;
    device_caps caps;
    bool keeps;
} fixture;

static void open_device(fixture *f, const device_api *api, int threads) { /* on_every_device has seen that it is there */
    memset(f, 0, sizeof *f);
    err e = { 0 };
    device_opts opts = {
        .mem = counted_mem(&f->memory), .threads = threads, .compiler = "cc", .log = keep_line, .log_ud = &f->log
    };
    assert_int_equal(api->open(&opts, &f->d, &e), TN_OK);
    assert_ptr_equal(f->d->api, api);
    (api->describe ? api->describe : api->get_caps)(f->d, &f->caps);
    f->keeps = strcmp(api->name, "null") != 0;
}
static void close_device(fixture *f) {
    f->d->api->close(f->d);
    assert_int_equal(f->memory.alive, 0);
}

static void check_caps(const device_api *api) {
    fixture f;
    open_device(&f, api, 2);
    assert_string_equal(f.caps.name, api->name);
    assert_true(f.caps.detail[0] && f.caps.isa[0]);
    assert_int_equal(f.caps.threads, f.caps.gpu ? 1 : 2);
    assert_true(f.caps.vector_bytes == 16 || f.caps.vector_bytes == 32 || f.caps.vector_bytes == 64);
    assert_true(f.caps.n_vector_regs >= 16);
    assert_true(f.caps.l1_bytes > 0 && f.caps.l2_bytes >= f.caps.l1_bytes && f.caps.l3_bytes >= f.caps.l2_bytes);
    device_caps again;
    (api->describe ? api->describe : api->get_caps)(f.d, &again);
    assert_true(again.id == f.caps.id);
    api->get_caps(f.d, &again);
    assert_true(again.l1_bytes == f.caps.l1_bytes && again.l2_bytes == f.caps.l2_bytes && !strcmp(again.isa, f.caps.isa));
    close_device(&f);
}

static void check_memory(const device_api *api) {
    fixture f;
    open_device(&f, api, 1);
    const size_t sizes[] = { 0, 1, 63, 64, 1000, 65537, (2u << 20) - 1, 2u << 20, (5u << 20) + 3 };
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        err e = { 0 };
        buffer *b;
        size_t n = sizes[i];
        assert_int_equal(api->alloc(f.d, n, &b, &e), TN_OK);
        unsigned char *in = malloc(n + 1), *out = malloc(n + 1);
        memset(out, 0xee, n + 1);
        assert_int_equal(api->download(f.d, b, 0, out, n, &e), TN_OK);
        for (size_t k = 0; k < n; k++) assert_int_equal(out[k], 0);
        assert_int_equal(out[n], 0xee);
        for (size_t k = 0; k < n; k++) in[k] = (unsigned char)(next_random() >> 24);
        size_t offset = n ? next_random() % n : 0;
        assert_int_equal(api->upload(f.d, b, offset, in + offset, n - offset, &e), TN_OK);
        assert_int_equal(api->download(f.d, b, 0, out, n, &e), TN_OK);
        if (f.keeps) assert_memory_equal(out + offset, in + offset, n - offset);
        for (size_t k = 0; k < offset; k++) assert_int_equal(out[k], 0);
        if (f.caps.host_memory) {
            char *host = api->map(f.d, b);
            assert_non_null(host);
            assert_int_equal((uintptr_t)host % (n >= 2u << 20 ? 2u << 20 : 64), 0);
            assert_memory_equal(host, out, n);
        }
        assert_int_equal(api->upload(f.d, b, n, in, 1, &e), TN_ERR_INVAL);
        assert_int_equal(api->upload(f.d, b, n + 1, in, 0, &e), TN_ERR_INVAL);
        assert_int_equal(api->download(f.d, b, 1, out, SIZE_MAX, &e), TN_ERR_INVAL);
        assert_non_null(strstr(e.text, "leaves a buffer"));
        free(in), free(out);
        api->free(f.d, b);
    }
    api->free(f.d, NULL);
    close_device(&f);
}

/* Bytes that are no longer there are an error, not a crash, and the device goes on. */
static void check_freed(const device_api *api) {
    fixture f;
    err e = { 0 };
    buffer *b;
    size_t n = 5u << 20, hole = 4u << 20;
    open_device(&f, api, 1);
    assert_int_equal(api->alloc(f.d, n, &b, &e), TN_OK);
    unsigned char *in = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *out = malloc(n);
    assert_true(in != MAP_FAILED);
    memset(in, 7, n);
    assert_int_equal(api->upload(f.d, b, 0, in, n, &e), TN_OK);
    assert_int_equal(munmap(in + hole, n - hole), 0);
    assert_int_equal(api->upload(f.d, b, 0, in, n, &e), TN_ERR_INVAL);
    assert_non_null(strstr(e.text, "no memory of the process"));
    assert_int_equal(api->download(f.d, b, 0, in, n, &e), TN_ERR_INVAL);
    if (api->send) assert_int_equal(api->send(f.d, b, 0, in, n, &e), TN_ERR_INVAL);
    assert_int_equal(in[0] + in[hole - 1], 14);
    memset(in, 9, hole);
    assert_int_equal(api->upload(f.d, b, 0, in, hole, &e), TN_OK);
    assert_int_equal(api->download(f.d, b, 0, out, n, &e), TN_OK);
    for (size_t k = 0; k < n && f.keeps; k++) assert_int_equal(out[k], k < hole ? 9 : 7);
    munmap(in, hole);
    free(out);
    api->free(f.d, b);
    close_device(&f);
}

/* Sums by hand what each thread must have added; `steps` is passed on. */
static const char *const cpu_kernels =
    KERNEL_HEAD "void add(char *const *slot, const par *p, long steps) {\n"
                "    const int *a = (const int *)slot[0]; int *out = (int *)slot[1];\n"
                "    SHARES for (int i = tid; i < 1000; i += (int)p->nt) out[i] = a[i] + (int)steps; }\n"
                "void twice(char *const *slot, const par *p, long steps) {\n"
                "    int *out = (int *)slot[1]; (void)steps;\n"
                "    SHARES for (int i = tid; i < 1000; i += (int)p->nt) out[i] *= 2; }\n";

/* GPUs run the list so many times instead; what they add is 1. */
static const char *const opencl_kernels =
    "__kernel void add(__global uchar *p0, ulong o0, __global uchar *p1, ulong o1) { int i = get_global_id(0);\n"
    "    if (i < 1000) ((__global int *)(p1 + o1))[i] = ((__global int *)(p0 + o0))[i] + 1; }\n"
    "__kernel void twice(__global uchar *p0, ulong o0, __global uchar *p1, ulong o1) { int i = get_global_id(0);\n"
    "    if (i < 1000) ((__global int *)(p1 + o1))[i] *= 2; }\n"
    "__kernel void k(__global uchar *p0, ulong o0, __global uchar *p1, ulong o1) { *(__global int *)(p0 + o0) = 7; }\n";

static const char *const cuda_kernels = "extern \"C\" __global__ void add(const int *a, int *b) { int i = blockIdx.x * 64 + "
                                        "threadIdx.x; if (i < 1000) b[i] = a[i] + 1; }\n"
                                        "extern \"C\" __global__ void twice(const int *a, int *b) { int i = blockIdx.x * 64 + "
                                        "threadIdx.x; if (i < 1000) b[i] *= 2; }\n"
                                        "extern \"C\" __global__ void k(int *a, int *b) { *a = 7; }\n";

static const char *kernels_of(const device_caps *caps) {
    return !caps->gpu ? cpu_kernels : !strcmp(caps->code, "cuda") ? cuda_kernels : opencl_kernels;
}

static device_launch launch_of(const device_caps *caps, void *entry, bool parallel) {
    static const device_arg args[] = { { 0, 0, 4000, false }, { 1, 0, 4000, true } };
    if (!caps->gpu) return (device_launch){ .entry = entry, .parallel = parallel, .loops = parallel };
    return (device_launch){ .entry = entry, .block_threads = 64, .grid_blocks = 16, .args = args, .n_args = 2 };
}
static tn_status launch(fixture *f, list *l, void *entry, bool parallel, err *e) {
    device_launch what = launch_of(&f->caps, entry, parallel);
    return f->d->api->launch(l, &what, e);
}

/* What is in no loop runs once, and the list takes no steps. A loop begins a list, or is refused. */
static void check_once(fixture *f, void *entry, buffer *b) {
    const device_api *api = f->d->api;
    uint64_t ticket;
    list *l;
    err e;
    assert_int_equal(api->record(f->d, 2, &l, &e), TN_OK);
    assert_int_equal(launch(f, l, entry, false, &e), TN_OK);
    assert_int_equal(api->loop(l, &e), TN_ERR_INVAL);
    assert_int_equal(api->seal(l, &e), TN_OK);
    assert_int_equal(api->loop(l, &e), TN_ERR_INVAL);
    api->bind(l, 0, b, 0), api->bind(l, 1, b, 0);
    assert_int_equal(api->submit(l, 3, &ticket, &e), TN_ERR_INVAL);
    assert_int_equal(api->submit(l, 1, &ticket, &e), TN_OK);
    assert_int_equal(api->wait(f->d, ticket, &e), TN_OK);
    api->discard(l);
}

/* Loops that a byte ends and branches, on devices whose lists have them: counts down from 7; odd numbers are added up in the
 * first part, even ones in the other. */
static const char *const cpu_control =
    KERNEL_HEAD "void down(char *const *slot, const par *p, long steps) {\n"
                "    int *n = (int *)slot[0]; (void)steps;\n"
                "    SHARES if (tid == 0) { n[0]--; slot[1][0] = n[0] >= 0; slot[1][1] = n[0] % 2 != 0; } }\n"
                "void odd(char *const *slot, const par *p, long steps) {\n"
                "    int *n = (int *)slot[0]; (void)steps; SHARES if (tid == 0) n[1] += n[0]; }\n"
                "void even(char *const *slot, const par *p, long steps) {\n"
                "    int *n = (int *)slot[0]; (void)steps; SHARES if (tid == 0) n[2] += n[0]; }\n"
                "void digit(char *const *slot, const par *p, long steps) {\n"
                "    int *n = (int *)slot[0]; (void)steps; SHARES if (tid == 0) n[0] = n[0] * 10 + *(int *)slot[1]; }\n";

/* The same for GPUs: what two arguments are called, and statements of one thread. */
#define GPU_CONTROL(head, type, first, second, one)                                                                            \
    head "down" type "{ int *n = " first "; char *c = " second ";\n" one                                                       \
         "{ n[0]--; c[0] = n[0] >= 0; c[1] = n[0] % 2 != 0; } }\n" head "odd" type "{ int *n = " first ";\n" one               \
         "n[1] += n[0]; }\n" head "even" type "{ int *n = " first ";\n" one "n[2] += n[0]; }\n" head "digit" type              \
         "{ int *n = " first "; char *c = " second ";\n" one "n[0] = n[0] * 10 + *(int *)c; }\n"
static const char *const cuda_control = GPU_CONTROL("extern \"C\" __global__ void ", "(char *p0, char *p1)", "(int *)p0", "p1",
                                                    "if (blockIdx.x == 0 && threadIdx.x == 0) ");
static const char *const opencl_control = "#define int __global int\n#define char __global char\n" GPU_CONTROL(
    "__kernel void ", "(__global uchar *p0, ulong o0, __global uchar *p1, ulong o1)", "(int *)(p0 + o0)", "(char *)(p1 + o1)",
    "if (get_global_id(0) == 0) ");

static const char *control_of(const device_caps *caps) {
    return !caps->gpu ? cpu_control : !strcmp(caps->code, "cuda") ? cuda_control : opencl_control;
}

/* With what is bound to slots 0 and `second` as arguments. */
static tn_status step(fixture *f, list *l, void *entry, int second, bool parallel, err *e) {
    device_arg args[] = { { 0, 0, 12, true }, { second, 0, 2, true } };
    device_launch what = launch_of(&f->caps, entry, parallel);
    if (f->caps.gpu) what.args = args;
    return f->d->api->launch(l, &what, e);
}

static void bad_control(const device_api *api, device *d) {
    list *l;
    err e;
    assert_int_equal(api->record(d, 2, &l, &e), TN_OK);
    assert_int_equal(api->leave(l, 0, 0, &e), TN_ERR_INVAL);
    assert_int_equal(api->otherwise(l, &e), TN_ERR_INVAL);
    assert_int_equal(api->end(l, &e), TN_ERR_INVAL);
    assert_int_equal(api->branch(l, 2, 0, &e), TN_ERR_INVAL);
    assert_int_equal(api->repeat(l, NULL, &e), TN_OK);
    assert_int_equal(api->leave(l, -1, 0, &e), TN_ERR_INVAL);
    assert_int_equal(api->loop(l, &e), TN_ERR_INVAL); /* a loop is all of its list */
    assert_int_equal(api->seal(l, &e), TN_ERR_INVAL);
    assert_int_equal(api->end(l, &e), TN_OK);
    assert_int_equal(api->seal(l, &e), TN_OK);
    assert_int_equal(api->repeat(l, NULL, &e), TN_ERR_INVAL);
    assert_int_equal(api->branch(l, 0, 0, &e), TN_ERR_INVAL);
    api->discard(l);
}

/* A window over five numbers, forward and backward, all of them or as many as a count says: 12345, 321. A list of the CPU has
 * the window in slot 1. */
static void check_windows(fixture *f, module *m) {
    const device_api *api = f->d->api;
    const int stack[] = { 9, 1, 2, 3, 4, 5 };
    const int64_t counts[] = { 5, 3, 0, -7, 100 };
    const int want[2][5] = { { 12345, 123, 0, 0, 12345 }, { 54321, 321, 0, 0, 54321 } };
    void *digit;
    buffer *n, *s;
    err e = { 0 };
    assert_true(!api->find(f->d, m, "digit", &digit, &e) && !api->alloc(f->d, 12, &n, &e) && !api->alloc(f->d, 64, &s, &e));
    assert_int_equal(api->upload(f->d, s, 0, stack, sizeof stack, &e), TN_OK);
    for (int i = 0; i < 12; i++) {
        device_window w = { 1, 2, sizeof(int), sizeof(int) };
        device_trips t = {
            .times = 5, .count = i < 10 ? 3 : -1, .count_offset = 40, .backward = i % 2, .windows = &w, .n_windows = 1
        };
        int zero = 0, got;
        uint64_t ticket;
        list *l;
        if (i < 10) assert_int_equal(api->upload(f->d, s, 40, &counts[i / 2], sizeof *counts, &e), TN_OK);
        assert_true(!api->upload(f->d, n, 0, &zero, sizeof zero, &e) && !api->record(f->d, 4, &l, &e));
        w.of = 1;
        assert_int_equal(api->repeat(l, &t, &e), TN_ERR_INVAL); /* over itself */
        api->discard(l);
        assert_int_equal(api->record(f->d, 4, &l, &e), TN_OK);
        w.of = 2;
        assert_true(!api->repeat(l, &t, &e) && !step(f, l, digit, 1, false, &e) && !api->end(l, &e) && !api->seal(l, &e));
        api->bind(l, 0, n, 0), api->bind(l, 2, s, 0), api->bind(l, 3, s, 0);
        assert_int_equal(api->submit(l, 1, &ticket, &e), TN_OK);
        assert_int_equal(api->wait(f->d, ticket, &e), TN_OK);
        assert_int_equal(api->download(f->d, n, 0, &got, sizeof got, &e), TN_OK);
        if (f->keeps) assert_int_equal(got, want[i % 2][i < 10 ? i / 2 : 0]);
        api->discard(l);
    }
    api->free(f->d, n), api->free(f->d, s);
}

static void check_control(const device_api *api) {
    for (int threads = 1; threads <= 3; threads++) {
        fixture f;
        open_device(&f, api, threads);
        err e = { 0 };
        module *m;
        void *down, *odd, *even;
        list *l;
        int n[2][3] = { { 7, 0, 0 }, { 3, 1, 1 } }, out[2][3];
        uint64_t ticket;
        buffer *a, *b;
        bad_control(api, f.d);
        const char *text = control_of(&f.caps);
        if (api->build(f.d, text, strlen(text), false, &m, NULL, &e)) fail_msg("%s", e.text);
        assert_true(!api->find(f.d, m, "down", &down, &e) && !api->find(f.d, m, "odd", &odd, &e) &&
                    !api->find(f.d, m, "even", &even, &e));
        assert_true(!api->alloc(f.d, sizeof n, &a, &e) && !api->alloc(f.d, 2, &b, &e));
        assert_true(!api->upload(f.d, a, 0, n, sizeof n, &e) && !api->record(f.d, 2, &l, &e));
        assert_true(!api->loop(l, &e) && !api->repeat(l, NULL, &e) && !step(&f, l, down, 1, true, &e) &&
                    !api->leave(l, 1, 0, &e));
        assert_true(!api->branch(l, 1, 1, &e) && !step(&f, l, odd, 1, true, &e) && !api->otherwise(l, &e));
        assert_true(!step(&f, l, even, 1, false, &e) && !api->end(l, &e) && !api->end(l, &e) && !api->end(l, &e));
        assert_int_equal(api->seal(l, &e), TN_OK);
        api->bind(l, 0, a, 0), api->bind(l, 1, b, 0);
        api->ring(l, 0, sizeof *n, 2);
        assert_int_equal(api->submit(l, 2, &ticket, &e), TN_OK);
        assert_int_equal(api->wait(f.d, ticket, &e), TN_OK);
        assert_int_equal(api->download(f.d, a, 0, out, sizeof out, &e), TN_OK);
        const int want[2][3] = { { -1, 5 + 3 + 1, 6 + 4 + 2 }, { -1, 1 + 1, 1 + 2 } };
        if (f.keeps) assert_memory_equal(out, want, sizeof want);
        device_span span[3]; /* each operation once; jumps are none */
        assert_int_equal(api->profile(l, NULL, span, 3, &e), TN_OK);
        api->discard(l);
        api->free(f.d, a), api->free(f.d, b);
        check_windows(&f, m);
        api->drop(f.d, m);
        close_device(&f);
    }
}

static void check_lists(const device_api *api) {
    for (int threads = 1; threads <= 3; threads++) {
        fixture f;
        open_device(&f, api, threads);
        err e = { 0 };
        module *m;
        bool hit = true;
        const char *kernels = kernels_of(&f.caps);
        assert_int_equal(api->build(f.d, kernels, strlen(kernels), false, &m, &hit, &e), TN_OK);
        assert_false(hit);
        void *add, *twice;
        assert_int_equal(api->find(f.d, m, "add", &add, &e), TN_OK);
        assert_int_equal(api->find(f.d, m, "twice", &twice, &e), TN_OK);
        if (f.keeps) {
            void *none;
            assert_int_equal(api->find(f.d, m, "none", &none, &e), TN_ERR_INVAL);
            assert_non_null(strstr(e.text, "'none'"));
        }
        int in[1000], out[1000];
        for (int i = 0; i < 1000; i++) in[i] = (int)(next_random() >> 8);
        buffer *a, *b;
        assert_int_equal(api->alloc(f.d, 256 + sizeof in, &a, &e), TN_OK);
        assert_int_equal(api->alloc(f.d, sizeof out + 512, &b, &e), TN_OK);
        assert_int_equal(api->upload(f.d, a, 256, in, sizeof in, &e), TN_OK);
        list *l;
        assert_int_equal(api->record(f.d, 3, &l, &e), TN_OK);
        bool looped = !f.caps.host_memory; /* else a launch has a loop in it */
        if (looped) {
            assert_int_equal(api->end(l, &e), TN_ERR_INVAL); /* of nothing */
            assert_int_equal(api->loop(l, &e), TN_OK);
            assert_int_equal(api->loop(l, &e), TN_ERR_INVAL);
        }
        assert_int_equal(launch(&f, l, add, true, &e), TN_OK);
        assert_int_equal(launch(&f, l, twice, false, &e), TN_OK);
        assert_int_equal(launch(&f, l, twice, true, &e), TN_OK);
        assert_int_equal(api->copy(l, 2, 4, 1, 8, 12, &e), TN_OK);
        assert_int_equal(api->copy(l, 2, 0, 1, 0, 0, &e), TN_OK);
        assert_int_equal(api->copy(l, 3, 0, 1, 0, 4, &e), TN_ERR_INVAL);
        assert_int_equal(api->copy(l, 0, 0, -1, 0, 4, &e), TN_ERR_INVAL);
        assert_int_equal(launch(&f, l, NULL, false, &e), TN_ERR_INVAL);
        uint64_t ticket;
        assert_int_equal(api->submit(l, 1, &ticket, &e), TN_ERR_INVAL); /* not sealed */
        if (looped) {
            assert_int_equal(api->seal(l, &e), TN_ERR_INVAL); /* the loop has no end */
            assert_int_equal(api->end(l, &e), TN_OK);
            assert_int_equal(api->end(l, &e), TN_ERR_INVAL);
            assert_int_equal(launch(&f, l, twice, false, &e), TN_ERR_INVAL); /* outside of the loop */
            assert_int_equal(api->copy(l, 2, 0, 1, 0, 0, &e), TN_ERR_INVAL);
        }
        assert_int_equal(api->seal(l, &e), TN_OK);
        assert_int_equal(api->seal(l, &e), TN_ERR_INVAL);
        assert_int_equal(launch(&f, l, add, false, &e), TN_ERR_INVAL);
        api->bind(l, 0, a, 256);
        api->bind(l, 1, b, 256);
        assert_int_equal(api->submit(l, 1, &ticket, &e), TN_ERR_INVAL); /* slot 2 is not bound */
        api->bind(l, 2, b, 0);
        for (int steps = 1; steps < 200; steps += 7) {
            assert_int_equal(api->submit(l, steps, &ticket, &e), TN_OK);
            assert_int_equal(api->wait(f.d, ticket, &e), TN_OK);
            assert_int_equal(api->download(f.d, b, 256, out, sizeof out, &e), TN_OK);
            int small[3];
            assert_int_equal(api->download(f.d, b, 4, small, sizeof small, &e), TN_OK);
            for (int i = 0; i < 1000 && f.keeps; i++) assert_int_equal(out[i], 4 * (in[i] + (f.caps.gpu ? 1 : steps)));
            if (f.keeps) assert_memory_equal(small, out + 2, sizeof small);
        }
        assert_int_equal(api->wait(f.d, ticket + 1, &e), TN_ERR_INVAL);
        device_span span[5];
        assert_int_equal(api->profile(l, NULL, span, 4, &e), TN_ERR_INVAL);
        assert_non_null(strstr(e.text, "4 operations of a list of 5"));
        assert_int_equal(api->profile(l, NULL, span, 5, &e), TN_OK); /* a run of one step */
        assert_int_equal(api->download(f.d, b, 256, out, sizeof out, &e), TN_OK);
        for (int i = 0; i < 1000 && f.keeps; i++) assert_int_equal(out[i], 4 * (in[i] + 1));
        for (int i = 0; i < 5; i++) {
            assert_true(span[i].begin >= (i ? span[i - 1].end : 0) && span[i].end >= span[i].begin && span[i].end < 60);
            if (f.keeps && i < 3) assert_true(span[i].end > span[i].begin);
        }
        const int repeats[5] = { 2, 3, 1, 4, 1 }; /* the first does the same again */
        assert_int_equal(api->profile(l, repeats, span, 5, &e), TN_OK);
        assert_int_equal(api->download(f.d, b, 256, out, sizeof out, &e), TN_OK);
        for (int i = 0; i < 1000 && f.keeps; i++) assert_int_equal(out[i], 16 * (in[i] + 1));
        for (int i = 0; i < 5; i++) assert_true(span[i].end >= span[i].begin && (i == 0 || span[i].begin >= span[i - 1].end));
        if (f.caps.host_memory) {
            int mine[1000];
            api->bind_host(l, 1, mine);
            assert_int_equal(api->submit(l, 5, &ticket, &e), TN_OK);
            for (int i = 0; i < 1000; i++) assert_int_equal(mine[i], 4 * (in[i] + 5));
        }
        api->discard(l);
        api->discard(NULL);
        assert_int_equal(api->record(f.d, 0, &l, &e), TN_OK); /* an empty list is legal */
        assert_int_equal(api->seal(l, &e), TN_OK);
        assert_int_equal(api->submit(l, 1, &ticket, &e), TN_OK);
        assert_int_equal(api->submit(l, 2, &ticket, &e), TN_ERR_INVAL);
        assert_non_null(strstr(e.text, "2 steps of a list without a loop"));
        api->discard(l);
        check_once(&f, twice, a);
        assert_int_equal(api->record(f.d, -1, &l, &e), TN_ERR_INVAL);
        api->free(f.d, a);
        api->free(f.d, b);
        api->drop(f.d, m);
        api->drop(f.d, NULL);
        close_device(&f);
    }
}

/* Uploads beside what runs: while a list goes over one half of the memory the other half is filled, in pieces, and what is
 * submitted then finds it. A list that took a while to start would add to bytes of the next turn if it were not so. */
static void check_send(const device_api *api) {
    enum { N = 1 << 20, HALVES = 2, TURNS = 7, INTS = 1000 };
    fixture f;
    open_device(&f, api, 1);
    if (!api->send) return close_device(&f);
    err e = { 0 };
    module *m;
    void *add;
    list *l;
    buffer *a, *b;
    uint64_t ticket[TURNS];
    const char *kernels = kernels_of(&f.caps);
    int *in = malloc(N * sizeof *in * TURNS), out[INTS];
    for (int i = 0; i < N * TURNS; i++) in[i] = (int)(next_random() >> 8);
    assert_int_equal(api->build(f.d, kernels, strlen(kernels), false, &m, NULL, &e), TN_OK);
    assert_int_equal(api->find(f.d, m, "add", &add, &e), TN_OK);
    assert_int_equal(api->alloc(f.d, HALVES * N * sizeof *in, &a, &e), TN_OK);
    assert_int_equal(api->alloc(f.d, TURNS * INTS * sizeof *in, &b, &e), TN_OK);
    assert_int_equal(api->record(f.d, 2, &l, &e), TN_OK);
    assert_int_equal(launch(&f, l, add, true, &e), TN_OK);
    assert_int_equal(api->seal(l, &e), TN_OK);
    for (int i = 0; i < TURNS; i++) { /* the last thousand of each turn, which came last */
        size_t half = (size_t)(i % HALVES) * N * sizeof *in;
        if (i >= HALVES) assert_int_equal(api->wait(f.d, ticket[i - HALVES], &e), TN_OK);
        assert_int_equal(api->send(f.d, a, half, in + (size_t)i * N, N * sizeof *in, &e), TN_OK);
        api->bind(l, 0, a, half + (N - INTS) * sizeof *in);
        api->bind(l, 1, b, (size_t)i * INTS * sizeof *in);
        assert_int_equal(api->submit(l, 1, &ticket[i], &e), TN_OK);
    }
    for (int i = 0; i < TURNS; i++) {
        assert_int_equal(api->download(f.d, b, (size_t)i * sizeof out, out, sizeof out, &e), TN_OK);
        for (int k = 0; k < INTS; k++) assert_int_equal(out[k], in[(size_t)(i + 1) * N - INTS + (size_t)k] + 1);
    }
    assert_int_equal(api->send(f.d, a, HALVES * N * sizeof *in, in, 1, &e), TN_ERR_INVAL);
    assert_int_equal(api->send(f.d, a, 0, in, 0, &e), TN_OK);
    free(in);
    api->discard(l);
    api->free(f.d, a), api->free(f.d, b);
    api->drop(f.d, m);
    close_device(&f);
}

/* Many threads on one device: each has a list of its own, all of them parallel regions of the one pool. */
typedef struct user {
    fixture *f;
    void *add;
    int index, wrong;
} user;
static void *use_device(void *arg) {
    user *u = arg;
    const device_api *api = u->f->d->api;
    err e = { 0 };
    int in[1000], out[1000];
    for (int i = 0; i < 1000; i++) in[i] = i * (u->index + 3);
    buffer *a, *b;
    list *l;
    uint64_t ticket;
    bool looped = !u->f->caps.host_memory;
    bool ok = !api->alloc(u->f->d, sizeof in, &a, &e) && !api->alloc(u->f->d, sizeof out, &b, &e) &&
              !api->upload(u->f->d, a, 0, in, sizeof in, &e) && !api->record(u->f->d, 2, &l, &e) &&
              (!looped || !api->loop(l, &e)) && !launch(u->f, l, u->add, true, &e) && (!looped || !api->end(l, &e)) &&
              !api->seal(l, &e);
    if (!ok) return u->wrong++, NULL;
    api->bind(l, 0, a, 0);
    api->bind(l, 1, b, 0);
    for (int step = 0; step < 200; step++) {
        if (api->submit(l, step, &ticket, &e) || api->wait(u->f->d, ticket, &e)) u->wrong++;
        if (api->download(u->f->d, b, 0, out, sizeof out, &e)) u->wrong++;
        for (int i = 0; i < 1000 && u->f->keeps; i++)
            u->wrong += out[i] != (u->f->caps.gpu ? (step ? in[i] + 1 : 0) : in[i] + step);
    }
    api->discard(l);
    api->free(u->f->d, a);
    api->free(u->f->d, b);
    return NULL;
}
static void check_shared(const device_api *api) {
    fixture f;
    open_device(&f, api, 2);
    err e = { 0 };
    module *m;
    user users[3] = { 0 };
    pthread_t thread[3];
    const char *kernels = kernels_of(&f.caps);
    assert_int_equal(api->build(f.d, kernels, strlen(kernels), false, &m, NULL, &e), TN_OK);
    for (int i = 0; i < 3; i++) {
        users[i] = (user){ .f = &f, .index = i };
        assert_int_equal(api->find(f.d, m, "add", &users[i].add, &e), TN_OK);
        assert_int_equal(pthread_create(&thread[i], NULL, use_device, &users[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(users[i].wrong, 0);
    }
    api->drop(f.d, m);
    close_device(&f);
}

/* Every allocation fails in turn: a status, no leak, and it works in the end. */
static tn_status short_life(const device_api *api, counted *memory, err *e) {
    device_opts opts = { .mem = counted_mem(memory), .threads = 2, .compiler = "cc" };
    device *d = NULL;
    buffer *b = NULL;
    module *m = NULL;
    list *l = NULL;
    void *entry;
    uint64_t ticket;
    char text[1024];
    kernel_text(text, sizeof text, 7);
    tn_status st = api->open(&opts, &d, e);
    if (st) return st;
    device_caps caps;
    api->get_caps(d, &caps);
    if (caps.gpu) snprintf(text, sizeof text, "%s", kernels_of(&caps));
    if (!st) st = api->alloc(d, 100, &b, e);
    if (!st) st = api->build(d, text, strlen(text), false, &m, NULL, e);
    if (!st) st = api->find(d, m, "k", &entry, e);
    if (!st) st = api->record(d, 2, &l, e);
    device_launch what = launch_of(&caps, entry, true);
    for (int i = 0; !st && i < 20; i++) st = api->launch(l, &what, e);
    if (!st) st = api->seal(l, e);
    if (!st) api->bind(l, 0, b, 0), api->bind(l, 1, b, 0);
    if (!st) st = api->submit(l, 1, &ticket, e);
    if (l) api->discard(l);
    if (m) api->drop(d, m);
    if (b) api->free(d, b);
    api->close(d);
    return st;
}
static void check_out_of_memory(const device_api *api) {
    for (int64_t k = 1;; k++) {
        counted memory = { .fail_at = k };
        err e = { 0 };
        tn_status st = short_life(api, &memory, &e);
        assert_int_equal(memory.alive, 0);
        if (st == TN_OK) {
            assert_true(k > 4);
            return;
        }
        assert_int_equal(st, TN_ERR_NOMEM);
        assert_true(k < 200);
    }
}

static void on_every_device(void (*check)(const device_api *)) {
    int n;
    const device_api *const *table = device_table(&n);
    assert_true(n >= 2);
    for (int i = 0; i < n; i++) {
        device_opts opts = { .mem = mem_libc(), .compiler = "cc" };
        device *d;
        err e = { 0 };
        tn_status st = table[i]->open(&opts, &d, &e);
        if (st == TN_OK) table[i]->close(d);
        if (st == TN_ERR_DEVICE)
            printf("skipped: device %s: %s\n", table[i]->name, e.text);
        else
            check(table[i]);
    }
}
static void test_caps(void **state) { (void)state, on_every_device(check_caps); }
static void test_memory(void **state) { (void)state, on_every_device(check_memory); }
static void test_freed(void **state) { (void)state, on_every_device(check_freed); }
static void test_lists(void **state) { (void)state, on_every_device(check_lists); }
static void test_control(void **state) { (void)state, on_every_device(check_control); }
static void test_send(void **state) { (void)state, on_every_device(check_send); }
static void test_shared(void **state) { (void)state, on_every_device(check_shared); }
static void test_out_of_memory(void **state) { (void)state, on_every_device(check_out_of_memory); }

static void test_null_counts(void **state) {
    (void)state;
    fixture f;
    open_device(&f, &device_null, 1);
    const device_api *api = f.d->api;
    err e = { 0 };
    buffer *b;
    module *m;
    list *l;
    void *entry;
    char bytes[30] = { 1 };
    uint64_t ticket;
    assert_int_equal(api->alloc(f.d, 100, &b, &e), TN_OK);
    assert_int_equal(api->upload(f.d, b, 1, bytes, 30, &e), TN_OK);
    assert_int_equal(api->build(f.d, "text", 4, false, &m, NULL, &e), TN_OK);
    assert_int_equal(api->find(f.d, m, "any", &entry, &e), TN_OK);
    assert_int_equal(api->record(f.d, 1, &l, &e), TN_OK);
    assert_int_equal(api->loop(l, &e), TN_OK);
    assert_int_equal(api->launch(l, &(device_launch){ .entry = entry, .parallel = true }, &e), TN_OK);
    assert_int_equal(api->launch(l, &(device_launch){ .entry = entry, .parallel = false }, &e), TN_OK);
    assert_int_equal(api->copy(l, 0, 0, 0, 50, 20, &e), TN_OK);
    assert_int_equal(api->end(l, &e), TN_OK);
    assert_int_equal(api->seal(l, &e), TN_OK);
    api->bind(l, 0, b, 0);
    for (int i = 0; i < 3; i++) assert_int_equal(api->submit(l, 5, &ticket, &e), TN_OK);
    null_counts c;
    null_get_counts(f.d, &c);
    const null_counts want = { .buffers = 1,
                               .bytes = 100,
                               .uploads = 1,
                               .upload_bytes = 30,
                               .builds = 1,
                               .source_bytes = 4,
                               .modules = 1,
                               .lists = 1,
                               .submits = 3,
                               .steps = 15,
                               .launches = 30,
                               .parallel_launches = 15,
                               .copies = 15,
                               .copy_bytes = 300 };
    assert_memory_equal(&c, &want, sizeof c);
    api->discard(l);
    api->drop(f.d, m);
    api->free(f.d, b);
    null_get_counts(f.d, &c);
    assert_true(c.buffers == 0 && c.bytes == 0 && c.modules == 0 && c.lists == 0 && c.submits == 3);
    close_device(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_caps),       cmocka_unit_test(test_memory),
                                        cmocka_unit_test(test_freed),      cmocka_unit_test(test_lists),
                                        cmocka_unit_test(test_control),    cmocka_unit_test(test_send),
                                        cmocka_unit_test(test_shared),     cmocka_unit_test(test_out_of_memory),
                                        cmocka_unit_test(test_null_counts) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
