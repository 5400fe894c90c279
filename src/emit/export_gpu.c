/* export_gpu.c - a plan for GPUs as a file of its own: kernels of CUDA C or OpenCL C, and the part of the host that launches
 * them one after the other, on a stream or queue of the host program's.
 *
 * In: an exporter whose data have their places. Out: texts and the bytes of a weights file in the plan's arena. All memory of
 * the device is one piece that the host program hands over: temporaries, states, weights, then a copy of each input and output.
 * Both languages share the functions of the host but for what `device` has of each. */
#include "emit/export.h"

enum { PLACE = 256, PIECE = 2000 /* characters of a string, which C99 allows 4095 of */ };

struct gpu_layout {
    int64_t state, weights, end; /* bytes from the begin of the memory; temporaries are at 0 */
    int64_t *io;                 /* [io.n] */
    int n_args;                  /* of a kernel, at most */
    int *number;                 /* [kernels.n] of those whose code is one of its own */
};

static int64_t place_up(int64_t n) { return (n + PLACE - 1) / PLACE * PLACE; }
static bool is_cuda(const exporter *x) { return x->f->language == GPU_CUDA; }

/* Where a call gives sizes: room for the largest. */
static gpu_layout lay_out(const exporter *x) {
    gpu_layout l = { .state = place_up(x->temp_bytes), .io = ARENA_ARRAY(x->a, int64_t, x->p->io.n + 1) };
    l.weights = l.state + place_up(x->state_bytes);
    l.end = l.weights + place_up(x->data_bytes);
    for (int i = 0; i < x->p->io.n; i++) l.io[i] = l.end, l.end += place_up(x->p->io.at[i].bytes);
    if (l.end == 0) l.end = PLACE;
    for (int i = 0; i < x->p->kernels.n; i++)
        if (x->p->kernels.at[i].k->bufs.n > l.n_args) l.n_args = x->p->kernels.at[i].k->bufs.n;
    l.number = ARENA_ARRAY(x->a, int, x->p->kernels.n + 1);
    for (int i = 0, n = 0; i < x->p->kernels.n; i++)
        if (x->p->kernels.at[i].code == i) l.number[i] = n++;
    return l;
}

/* What both languages call by the same names: failed, put, get, zero, finish. */
static const char *const device[] = {
    [GPU_CUDA] =
        "UNUSED int failed(struct @_ctx *ctx, cudaError_t error) {\n"
        "    ctx->error = error;\n    return error != cudaSuccess ? ^_DEVICE_FAILED : ^_OK;\n}\n"
        "UNUSED int put(struct @_ctx *ctx, size_t at, const void *from, size_t n) {\n"
        "    return failed(ctx, cudaMemcpyAsync(ctx->memory + at, from, n, cudaMemcpyHostToDevice, ctx->stream));\n}\n"
        "UNUSED int get(struct @_ctx *ctx, size_t at, void *to, size_t n) {\n"
        "    return failed(ctx, cudaMemcpyAsync(to, ctx->memory + at, n, cudaMemcpyDeviceToHost, ctx->stream));\n}\n"
        "UNUSED int zero(struct @_ctx *ctx, size_t at, size_t n) {\n"
        "    return failed(ctx, cudaMemsetAsync(ctx->memory + at, 0, n, ctx->stream));\n}\n"
        "UNUSED int finish(struct @_ctx *ctx) { return failed(ctx, cudaStreamSynchronize(ctx->stream)); }\n"
        "UNUSED int see(struct @_ctx *ctx, const void *from, void *to, size_t n) {\n"
        "    return failed(ctx, cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToHost, ctx->stream)) || finish(ctx);\n}\n",
    [GPU_OPENCL] =
        "UNUSED int failed(struct @_ctx *ctx, cl_int error) {\n"
        "    ctx->error = error;\n    return error != CL_SUCCESS ? ^_DEVICE_FAILED : ^_OK;\n}\n"
        "UNUSED int put(struct @_ctx *ctx, size_t at, const void *from, size_t n) {\n"
        "    return n && failed(ctx, clEnqueueWriteBuffer(ctx->queue, ctx->memory, CL_FALSE, at, n, from, 0, NULL, NULL));\n}\n"
        "UNUSED int get(struct @_ctx *ctx, size_t at, void *to, size_t n) {\n"
        "    return n && failed(ctx, clEnqueueReadBuffer(ctx->queue, ctx->memory, CL_FALSE, at, n, to, 0, NULL, NULL));\n}\n"
        "UNUSED int zero(struct @_ctx *ctx, size_t at, size_t n) {\n    const cl_uint none = 0;\n"
        "    return failed(ctx, clEnqueueFillBuffer(ctx->queue, ctx->memory, &none, sizeof none, at, n, 0, NULL, NULL));\n}\n"
        "UNUSED int finish(struct @_ctx *ctx) { return failed(ctx, clFinish(ctx->queue)); }\n"
        "UNUSED int see(struct @_ctx *ctx, struct @_place from, void *to, size_t n) {\n"
        "    return ctx->error || failed(ctx, clEnqueueReadBuffer(ctx->queue, from.memory, CL_TRUE, from.at, n, to, 0, NULL, "
        "NULL));\n}\n"
        "UNUSED struct @_place place(const struct @_ctx *ctx, size_t at) {\n"
        "    struct @_place x;\n    x.memory = ctx->memory, x.at = at;\n    return x;\n}\n"
        "UNUSED void launch(struct @_ctx *ctx, int kernel, size_t blocks, size_t threads, int n, const struct @_place *arg,\n"
        "                   int n_sizes, const cl_long *size) {\n"
        "    const size_t all = blocks * threads;\n"
        "    if (!all) return;\n"
        "    for (int i = 0; i < n && !ctx->error; i++) {\n"
        "        ctx->error = clSetKernelArg(ctx->kernel[kernel], (cl_uint)(2 * i), sizeof arg[i].memory, &arg[i].memory);\n"
        "        if (!ctx->error)\n"
        "            ctx->error = clSetKernelArg(ctx->kernel[kernel], (cl_uint)(2 * i + 1), sizeof arg[i].at, &arg[i].at);\n"
        "    }\n"
        "    for (int i = 0; i < n_sizes && !ctx->error; i++)\n"
        "        ctx->error = clSetKernelArg(ctx->kernel[kernel], (cl_uint)(2 * n + i), sizeof size[i], &size[i]);\n"
        "    if (!ctx->error)\n"
        "        ctx->error = clEnqueueNDRangeKernel(ctx->queue, ctx->kernel[kernel], 1, NULL, &all, &threads, 0, NULL, "
        "NULL);\n}\n",
};

/* ---- interface ---- */

static const char *init_arguments(const exporter *x) {
    return is_cuda(x) ? "void *memory, size_t bytes, cudaStream_t stream"
                      : "cl_context context, cl_device_id device, cl_command_queue queue, cl_mem memory, size_t bytes";
}

static void print_prototype_init(exporter *x, str *out) {
    say(x, out, "int @_init(struct @_ctx *ctx, %s,\n           const void *weights, size_t weights_bytes)", init_arguments(x));
}
static void print_prototype_enqueue(exporter *x, str *out) {
    say(x, out, "int @_enqueue(struct @_ctx *ctx, const struct @_%s *b)", is_cuda(x) ? "io" : "buffers");
}

static int n_kernels(const exporter *x) {
    int n = 0;
    for (int i = 0; i < x->p->kernels.n; i++) n += x->p->kernels.at[i].code == i;
    return n;
}

static void print_context(exporter *x, str *out) {
    if (is_cuda(x)) {
        say(x, out,
            "struct @_ctx { /* used by one thread at a time */\n    unsigned char *memory, *state;\n    cudaStream_t stream;\n"
            "    cudaError_t error; /* of the call that failed with ^_DEVICE_FAILED */\n};\n");
        return;
    }
    say(x, out,
        "struct @_ctx { /* used by one thread at a time */\n    cl_mem memory;\n    size_t state; /* where states begin in "
        "it */\n"
        "    cl_command_queue queue;\n    cl_program program;\n    cl_kernel kernel[%d];\n"
        "    cl_int error; /* of the call that failed with ^_DEVICE_FAILED */\n};\n",
        n_kernels(x) ? n_kernels(x) : 1);
    say(x, out,
        "struct @_place {\n    cl_mem memory;\n    cl_ulong at; /* bytes from its begin */\n};\n"
        "struct @_buffers { /* as the arguments of @_run, on the device */\n");
    if (x->n_dims) str_addf(out, "    int64_t dims[%d];\n", x->n_dims);
    for (int i = 0; i < x->p->io.n; i++) str_addf(out, "    struct %s_place %s;\n", x->f->name, x->param[i]);
    say(x, out, "%s};\n", x->p->io.n || x->n_dims ? "" : "    int none;\n");
}

static void print_calls(exporter *x, str *out) {
    say(x, out,
        "/* ^_OK, or what is wrong. memory: of the device, ^_DEVICE_BYTES%s, the context's until its last call. States get "
        "their\n"
        " * initial values. weights may be NULL where ^_WEIGHTS_BYTES is 0. */\n",
        is_cuda(x) ? " at a multiple of 256" : "");
    print_prototype_init(x, out);
    say(x, out, ";\n%s/* Arrays of the host: copied to the device and back. What is returned is ^_OK or ^_DEVICE_FAILED. */\n",
        is_cuda(x) ? "" : "void @_free(struct @_ctx *ctx); /* releases what @_init made */\n");
    export_print_prototype(x, out);
    say(x, out,
        ";\n/* The same on arrays that are on the device, at multiples of 16 bytes; it does not wait: what else is in the %s "
        "follows.\n */\n",
        is_cuda(x) ? "stream" : "queue");
    print_prototype_enqueue(x, out);
    str_add(out, ";\n");
    if (!x->f->loop) return;
    export_print_ring(x, out);
    say(x, out,
        "int @_run_n(struct @_ctx *ctx, size_t steps, const struct @_io *io, const struct @_ring *ring);\n"
        "/* All states through a function of the host's, which returns 0 when it has taken or given all n bytes. Nothing is "
        "known of\n"
        " * states that were loaded in part: begin again with @_init. */\n"
        "int @_save(struct @_ctx *ctx, int (*write)(void *ud, const void *data, size_t n), void *ud);\n"
        "int @_load(struct @_ctx *ctx, int (*read)(void *ud, void *data, size_t n), void *ud);\n");
}

static void print_interface(exporter *x, const gpu_layout *l, str *out) {
    say(x, out, "#ifndef ^_DECLARED\n#define ^_DECLARED\n#include <stddef.h>\n#include <stdint.h>\n%s",
        is_cuda(x) ? "#include <cuda_runtime_api.h>\n"
                   : "#ifndef CL_TARGET_OPENCL_VERSION\n#define CL_TARGET_OPENCL_VERSION 120\n#endif\n#include <CL/cl.h>\n");
    str_add(out, "#ifdef __cplusplus\nextern \"C\" {\n#endif\n");
    say(x, out,
        "/* Memory, in bytes. */\n#define ^_DEVICE_BYTES %lld /* of the device: all that follows, temporaries, inputs, outputs "
        "*/\n",
        (long long)l->end);
    say(x, out, "#define ^_STATE_BYTES %lld\n#define ^_WEIGHTS_BYTES %lld /* of the file, in memory of the host */\n",
        (long long)x->state_bytes, (long long)(x->f->weights ? x->data_bytes : 0));
    export_print_work(x, out);
    say(x, out, "enum { ^_OK, ^_SMALL_MEMORY, ^_WRONG_WEIGHTS, ^_WRONG_STATE, ^_BROKEN_STREAM, ^_DEVICE_FAILED%s };\n",
        export_size_error(x));
    print_context(x, out);
    export_print_io(x, out);
    export_print_state_struct(x, out);
    print_calls(x, out);
    str_add(out, "#ifdef __cplusplus\n}\n#endif\n#endif\n");
}

/* ---- the program at the head ---- */

static void print_example(exporter *x, str *out) {
    if (x->f->header)
        say(x, out, " *     #include \"%s\"\n", x->f->header);
    else
        say(x, out, " *     #define ^_INTERFACE\n *     #include \"@.%s\"\n", is_cuda(x) ? "cu" : "c");
    say(x, out, " *     #include <stdio.h>\n *     int main(void) {\n");
    if (is_cuda(x))
        say(x, out, " *         void *memory;\n *         if (cudaMalloc(&memory, ^_DEVICE_BYTES)) return 1;\n");
    else
        say(x, out,
            " *         cl_platform_id platform;\n *         cl_device_id device;\n"
            " *         if (clGetPlatformIDs(1, &platform, NULL)) return 1;\n"
            " *         if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL)) return 1;\n"
            " *         cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);\n"
            " *         cl_command_queue queue = clCreateCommandQueue(context, device, 0, NULL);\n"
            " *         cl_mem memory = clCreateBuffer(context, CL_MEM_READ_WRITE, ^_DEVICE_BYTES, NULL, NULL);\n");
    int shown = export_print_example_data(x, out);
    say(x, out, " *         struct @_ctx ctx;\n *         if (@_init(&ctx, %smemory, ^_DEVICE_BYTES, %s%s)) return 1;\n",
        is_cuda(x) ? "" : "context, device, queue, ", is_cuda(x) ? "0, " : "",
        x->f->weights ? "weights, sizeof weights" : "NULL, 0");
    say(x, out, " *         if (@_run(&ctx");
    export_print_example_arguments(x, out);
    str_add(out, ")) return 1;\n");
    if (shown >= 0) str_addf(out, " *         printf(\"%%g\\n\", (double)%s[0]);\n", x->param[shown]);
    if (is_cuda(x))
        say(x, out, " *     }\n *\n *     nvcc -O3 %s main.cu @.cu\n *\n", x->f->flags);
    else
        say(x, out, " *         @_free(&ctx);\n *     }\n *\n *     cc -O2 main.c @.c -lOpenCL\n *\n");
}

static void print_head(exporter *x, str *out) {
    say(x, out,
        "/* @.%s - a tensor graph as %s with the part of the host that launches it: no library but %s. A complete\n"
        " * program:\n *\n",
        is_cuda(x) ? "cu" : "c", is_cuda(x) ? "CUDA C" : "OpenCL C", is_cuda(x) ? "CUDA's runtime" : "OpenCL 1.2");
    print_example(x, out);
    export_print_arrays(x, out);
    if (x->f->weights)
        say(x, out,
            " *\n * The weights are the bytes of %s, at an address that is a multiple of 8: @_init checks their hash.\n",
            x->f->weights);
    str_add(out, " */\n");
}

/* ---- functions ---- */

static void print_string_piece(str *out, const char *s, size_t n) {
    str_add(out, "    \"");
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\n')
            str_add(out, i + 1 < n ? "\\n\"\n    \"" : "\\n");
        else if (s[i] == '"' || s[i] == '\\')
            str_addf(out, "\\%c", s[i]);
        else
            str_addn(out, s + i, 1);
    }
    str_add(out, "\",\n");
}

/* OpenCL takes a text in pieces. */
static void print_kernels(exporter *x, str *out) {
    if (is_cuda(x)) {
        emit_gpu_named(x->p, GPU_CUDA, arena_printf(x->a, "%s_", x->f->name), out);
        return;
    }
    str text;
    str_init(&text, x->a);
    emit_gpu(x->p, GPU_OPENCL, &text);
    str_add(out, "static const char *kernels[] = {\n");
    for (size_t i = 0, n; i < text.n; i += n) {
        n = text.n - i < PIECE ? text.n - i : PIECE;
        while (n > 1 && i + n < text.n && text.s[i + n - 1] != '\n') n--; /* behind a line, if one ends here */
        if (n == 1) n = text.n - i < PIECE ? text.n - i : PIECE;
        print_string_piece(out, text.s + i, n);
    }
    str_add(out, "};\nstatic const char *const kernel_names[] = { ");
    for (int i = 0; i < x->p->kernels.n; i++)
        if (x->p->kernels.at[i].code == i) str_addf(out, "\"tn_kernel_%d\", ", i);
    str_add(out, "0 };\n");
}

static void print_place(exporter *x, int buf, str *out) {
    const pbuf *pb = &x->p->bufs.at[buf];
    const gpu_layout *l = x->gpu;
    if (pb->kind == PB_WINDOW) {
        str_addf(out, "window[%d]", pb->slot - SLOT_IO - x->p->io.n);
        return;
    }
    if (pb->kind == PB_INPUT || pb->kind == PB_OUTPUT) {
        str_addf(out, "b->%s", x->param[pb->io]);
        return;
    }
    int64_t at = pb->kind == PB_TEMP      ? pb->offset
                 : export_in_state(x, pb) ? l->state + export_state_place(x, pb)
                                          : l->weights + export_data_place(x, pb);
    str_addf(out, is_cuda(x) ? "m + %lld" : "place(ctx, %lld)", (long long)at);
}

static void print_cuda_argument(const kernel *k, int b, str *out) {
    const kbuf *kb = &k->bufs.at[b];
    str_addf(out, "(%s%s *)(", kb->kind == KB_IN ? "const " : "", clike_memory_type((tn_dtype)kb->dtype));
}

/* Rows of the table of sizes that a kernel is given, behind its buffers: how many. */
static int print_sizes(exporter *x, const kernel *k, bool first, int indent, str *out) {
    int n = 0, n_rows = k->params ? k->params->at.n : 0;
    bool *used = ARENA_ARRAY(x->a, bool, n_rows + 1), *given = ARENA_ARRAY(x->a, bool, n_rows + 1);
    if (n_rows) kernel_used_rows(k, used, given);
    for (int i = 0; i < n_rows; i++) {
        if (!given[i]) continue;
        if (is_cuda(x))
            str_addf(out, "%se%d", first && !n ? "" : ", ", i);
        else
            str_addf(out, "%*ssize[%d] = e%d;\n", indent, "", n, i);
        n++;
    }
    return n;
}

static void print_grid(ext blocks, str *out) {
    if (ext_is_lit(blocks))
        str_addf(out, "%lld", (long long)blocks);
    else
        str_addf(out, "(unsigned)e%d", ext_index(blocks));
}

static void print_cuda_launch(exporter *x, const pkernel *pk, int indent, str *out) {
    const kernel *k = pk->k;
    bool first = true;
    str_addf(out, "%*s", indent, "");
    if (!ext_is_lit(k->grid_blocks)) str_addf(out, "if (e%d > 0) ", ext_index(k->grid_blocks));
    say(x, out, "@_kernel_%d<<<", pk->code);
    print_grid(k->grid_blocks, out);
    str_addf(out, ", %d, %lld, ctx->stream>>>(", k->block_threads, (long long)kernel_dynamic_shared(k));
    for (int b = 0; b < k->bufs.n; b++) {
        if (kbuf_is_local(&k->bufs.at[b])) continue;
        str_add(out, first ? "" : ", ");
        first = false;
        print_cuda_argument(k, b, out);
        print_place(x, pk->args[b].buf, out);
        str_add(out, ")");
    }
    print_sizes(x, k, first, indent, out);
    str_add(out, ");\n");
}

static void print_opencl_launch(exporter *x, const pkernel *pk, int indent, str *out) {
    const gpu_layout *l = x->gpu;
    const kernel *k = pk->k;
    int n = 0;
    for (int b = 0; b < k->bufs.n; b++) {
        if (kbuf_is_local(&k->bufs.at[b])) continue;
        str_addf(out, "%*sarg[%d] = ", indent, "", n++);
        print_place(x, pk->args[b].buf, out);
        str_add(out, ";\n");
    }
    int n_sizes = print_sizes(x, k, true, indent, out);
    str_addf(out, "%*slaunch(ctx, %d, ", indent, "", l->number[pk->code]);
    print_grid(k->grid_blocks, out);
    str_addf(out, ", %d, %d, arg, %d, %s);\n", k->block_threads, n, n_sizes, n_sizes ? "size" : "0");
}

static void print_launches(exporter *x, int i, int end, int indent, str *out) {
    for (; i < end; i++) {
        const pkernel *pk = &x->p->kernels.at[x->p->steps.at[i].kernel];
        if (!pk->k->grid_blocks) continue;
        if (is_cuda(x))
            print_cuda_launch(x, pk, indent, out);
        else
            print_opencl_launch(x, pk, indent, out);
    }
}

/* The host waits for what decides. */
static const char *value_of(exporter *x, int buf, const char *type, int step, int indent, str *out) {
    str_addf(out, "%*s%s v%d = 0;\n%*sif (see(ctx, ", indent, "", type, step, indent, "");
    print_place(x, buf, out);
    say(x, out, ", &v%d, sizeof v%d)) return ^_DEVICE_FAILED;\n", step, step);
    return arena_printf(x->a, "v%d", step);
}

static const export_host hosts[] = {
    [GPU_CUDA] = { print_place, print_launches, value_of, "A = (unsigned char *)(size_t)(B) + (size_t)(C)" },
    [GPU_OPENCL] = { print_place, print_launches, value_of, "A = B, A.at += (cl_ulong)(C)" },
};

static void print_enqueue(exporter *x, str *out) {
    print_prototype_enqueue(x, out);
    str_add(out, " {\n");
    if (is_cuda(x))
        str_add(out, "    unsigned char *const m = ctx->memory;\n    (void)m, (void)b;\n");
    else
        say(x, out, "    struct @_place arg[%d];\n    (void)arg, (void)b;\n    ctx->error = CL_SUCCESS;\n",
            x->gpu->n_args ? x->gpu->n_args : 1);
    if (x->n_dims && !is_cuda(x)) str_addf(out, "    cl_long size[%d];\n    (void)size;\n", x->p->params->at.n);
    if (x->p->n_windows)
        say(x, out, is_cuda(x) ? "    unsigned char *window[%d];\n" : "    struct @_place window[%d];\n", x->p->n_windows);
    export_print_size_check(x, "b->", out);
    export_print_rows(x, "b", out);
    export_print_steps(x, &hosts[x->f->language], 4, out);
    str_addf(out, "    return failed(ctx, %s);\n}\n", is_cuda(x) ? "cudaGetLastError()" : "ctx->error");
}

static const char *io_bytes(exporter *x, int i) {
    const pio *io = &x->p->io.at[i];
    ext elems = plan_elems(x->p, io->buf);
    if (ext_is_lit(elems)) return arena_printf(x->a, "%lld", (long long)io->bytes);
    return arena_printf(x->a, "(size_t)e%d * %zu", ext_index(elems), dtype_size((tn_dtype)io->dtype));
}

static void print_run(exporter *x, const gpu_layout *l, str *out) {
    say(x, out, "static int run_io(struct @_ctx *ctx, const struct @_io *io) {\n    struct @_%s b;\n    (void)io;\n",
        is_cuda(x) ? "io" : "buffers");
    for (int i = 0; i < x->p->io.n; i++) {
        const pio *io = &x->p->io.at[i];
        if (is_cuda(x))
            str_addf(out, "    b.%s = (%s *)(void *)(ctx->memory + %lld);\n", x->param[i],
                     clike_memory_type((tn_dtype)io->dtype), (long long)l->io[i]);
        else
            str_addf(out, "    b.%s = place(ctx, %lld);\n", x->param[i], (long long)l->io[i]);
    }
    if (!x->p->io.n && !x->n_dims) str_add(out, "    b.none = 0;\n");
    for (int d = 0; d < x->n_dims; d++) str_addf(out, "    b.dims[%d] = io->dims[%d];\n", d, d);
    export_print_rows(x, "io", out);
    for (int outputs = 0; outputs < 2; outputs++) {
        for (int i = 0; i < x->p->io.n; i++)
            if (x->p->io.at[i].is_output == (outputs == 1) && x->p->io.at[i].bytes)
                say(x, out, "    if (%s(ctx, %lld, io->%s, %s)) return ^_DEVICE_FAILED;\n", outputs ? "get" : "put",
                    (long long)l->io[i], x->param[i], io_bytes(x, i));
        if (!outputs) say(x, out, "    if (@_enqueue(ctx, &b)) return ^_DEVICE_FAILED;\n");
    }
    say(x, out, "    return ^_OK;\n}\n");
    export_print_prototype(x, out);
    export_print_gather(x, out);
    say(x, out, "    return run_io(ctx, &io) ? ^_DEVICE_FAILED : finish(ctx);\n}\n");
}

static void print_opencl_program(exporter *x, str *out) {
    say(x, out, "%s",
        "void @_free(struct @_ctx *ctx) {\n"
        "    for (size_t i = 0; i < sizeof ctx->kernel / sizeof *ctx->kernel; i++)\n"
        "        if (ctx->kernel[i]) clReleaseKernel(ctx->kernel[i]);\n"
        "    if (ctx->program) clReleaseProgram(ctx->program);\n"
        "    __builtin_memset(ctx->kernel, 0, sizeof ctx->kernel);\n    ctx->program = NULL;\n}\n"
        "static cl_device_fp_config roundings(cl_device_id device, cl_device_info what) {\n"
        "    cl_device_fp_config x = 0;\n"
        "    return clGetDeviceInfo(device, what, sizeof x, &x, NULL) == CL_SUCCESS ? x : 0;\n}\n"
        "static cl_int make_program(struct @_ctx *ctx, cl_context context, cl_device_id device) {\n"
        "    const int exact = (roundings(device, CL_DEVICE_SINGLE_FP_CONFIG) & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0;\n"
        "    const int f64 = roundings(device, CL_DEVICE_DOUBLE_FP_CONFIG) != 0;\n"
        "    static const char *const options[] = { \"-cl-std=CL1.2 -w -cl-single-precision-constant\", \"-cl-std=CL1.2 -w\",\n"
        "        (\"-cl-std=CL1.2 -w -cl-single-precision-constant -cl-fp32-correctly-rounded-divide-sqrt\"),\n"
        "                                           \"-cl-std=CL1.2 -w -cl-fp32-correctly-rounded-divide-sqrt\" };\n"
        "    cl_int error = CL_SUCCESS;\n"
        "    ctx->program = clCreateProgramWithSource(context, sizeof kernels / sizeof *kernels, kernels, NULL, &error);\n"
        "    if (!error) error = clBuildProgram(ctx->program, 1, &device, options[2 * exact + f64], NULL, NULL);\n"
        "    for (int i = 0; kernel_names[i] && !error; i++)\n"
        "        ctx->kernel[i] = clCreateKernel(ctx->program, kernel_names[i], &error);\n"
        "    return error;\n}\n");
}

static void print_begin(exporter *x, const gpu_layout *l, str *out) {
    say(x, out, "    if (!memory || bytes < ^_DEVICE_BYTES%s) return ^_SMALL_MEMORY;\n",
        is_cuda(x) ? " || (uintptr_t)memory % 256" : "");
    if (x->f->weights)
        export_print_weights_check(x, out);
    else
        say(x, out, "    (void)weights_bytes;\n%s", x->data_bytes ? "    weights = &data;\n" : "");
    if (is_cuda(x)) {
        say(x, out,
            "    ctx->memory = (unsigned char *)memory, ctx->state = ctx->memory + %lld;\n"
            "    ctx->stream = stream, ctx->error = cudaSuccess;\n",
            (long long)l->state);
        return;
    }
    say(x, out,
        "    __builtin_memset(ctx->kernel, 0, sizeof ctx->kernel);\n    ctx->memory = memory, ctx->state = %lld, ctx->queue = "
        "queue, ctx->program = NULL;\n"
        "    if (failed(ctx, make_program(ctx, context, device))) {\n        @_free(ctx);\n        return ^_DEVICE_FAILED;\n"
        "    }\n",
        (long long)l->state);
}

static void print_init(exporter *x, const gpu_layout *l, str *out) {
    if (x->f->weights) str_add(out, export_hash_text);
    if (!is_cuda(x)) print_opencl_program(x, out);
    print_prototype_init(x, out);
    str_add(out, " {\n");
    print_begin(x, l, out);
    str_add(out, "    int bad = 0;\n    (void)weights;\n");
    for (int i = 0; i < x->p->kernels.n && is_cuda(x); i++) {
        const pkernel *pk = &x->p->kernels.at[i];
        if (pk->code == i && kernel_dynamic_shared(pk->k))
            say(x, out,
                "    bad = bad || failed(ctx, cudaFuncSetAttribute(@_kernel_%d, cudaFuncAttributeMaxDynamicSharedMemorySize, "
                "%lld));\n",
                i, (long long)kernel_dynamic_shared(pk->k));
    }
    if (x->data_bytes)
        say(x, out, "    bad = bad || put(ctx, %lld, weights, %s);\n", (long long)l->weights,
            x->f->weights ? "^_WEIGHTS_BYTES" : "sizeof data");
    if (x->state_bytes)
        str_addf(out, "    bad = bad || zero(ctx, %lld, %lld);\n", (long long)l->state, (long long)place_up(x->state_bytes));
    for (int i = 0; i < x->items.n; i++) {
        const pbuf *pb = &x->p->bufs.at[x->items.at[i].buf];
        if (export_in_state(x, pb))
            str_addf(out, "    bad = bad || put(ctx, %lld, (const unsigned char *)weights + %lld, %lld);\n",
                     (long long)(l->state + export_state_place(x, pb)), (long long)x->items.at[i].at,
                     (long long)x->items.at[i].bytes);
    }
    if (is_cuda(x))
        say(x, out, "    return bad ? ^_DEVICE_FAILED : finish(ctx);\n}\n");
    else
        say(x, out, "    bad = bad || finish(ctx);\n    if (bad) @_free(ctx);\n    return bad ? ^_DEVICE_FAILED : ^_OK;\n}\n");
}

static void print_loop(exporter *x, const gpu_layout *l, str *out) {
    say(x, out, "int @_run_n(struct @_ctx *ctx, size_t steps, const struct @_io *io, const struct @_ring *ring) {\n");
    export_print_size_check(x, "io->", out);
    export_print_rows(x, "io", out);
    say(x, out, "    for (size_t step = 0; step < steps; step++) {\n        struct @_io at = *io;\n");
    export_print_move(x, out);
    say(x, out, "        if (run_io(ctx, &at)) return ^_DEVICE_FAILED;\n    }\n    return finish(ctx);\n}\n");
    say(x, out, "static const uint64_t saved_head[2] = { 0x%llxu, ^_STATE_BYTES };\nenum { STATES = %d, STATE_AT = %lld };\n",
        (unsigned long long)export_layout(x), x->n_states, (long long)l->state);
    static const char *const each =
        "    for (int i = 0; i < STATES; i++)\n"
        "        for (size_t at = 0, n; at < @_state_table[i].bytes; at += n) {\n"
        "            const size_t left = @_state_table[i].bytes - at, from = STATE_AT + @_state_table[i].offset + at;\n"
        "            n = left < sizeof piece ? left : sizeof piece;\n";
    say(x, out,
        "int @_save(struct @_ctx *ctx, int (*write)(void *ud, const void *data, size_t n), void *ud) {\n"
        "    unsigned char piece[4096];\n    if (write(ud, saved_head, sizeof saved_head)) return ^_BROKEN_STREAM;\n%s"
        "            if (get(ctx, from, piece, n) || finish(ctx)) return ^_DEVICE_FAILED;\n"
        "            if (write(ud, piece, n)) return ^_BROKEN_STREAM;\n        }\n    return ^_OK;\n}\n",
        each);
    say(x, out,
        "int @_load(struct @_ctx *ctx, int (*read)(void *ud, void *data, size_t n), void *ud) {\n"
        "    unsigned char piece[4096];\n    uint64_t head[2];\n"
        "    if (read(ud, head, sizeof head)) return ^_BROKEN_STREAM;\n"
        "    if (head[0] != saved_head[0] || head[1] != saved_head[1]) return ^_WRONG_STATE;\n%s"
        "            if (read(ud, piece, n)) return ^_BROKEN_STREAM;\n"
        "            if (put(ctx, from, piece, n) || finish(ctx)) return ^_DEVICE_FAILED;\n        }\n    return ^_OK;\n}\n",
        each);
}

void export_gpu(exporter *x, export_files *out) {
    gpu_layout l = lay_out(x);
    x->gpu = &l;
    say(x, &out->header, "/* @.h - the interface of @.%s, which says how to use it. */\n", is_cuda(x) ? "cu" : "c");
    print_interface(x, &l, &out->header);
    print_head(x, &out->code);
    print_interface(x, &l, &out->code);
    say(x, &out->code, "#ifndef ^_INTERFACE\n#define UNUSED static __attribute__((unused))\n");
    print_kernels(x, &out->code);
    if (!x->f->weights) export_print_data(x, &out->code);
    export_print_states(x, &out->code);
    say(x, &out->code, "%s", device[x->f->language]);
    print_enqueue(x, &out->code);
    print_run(x, &l, &out->code);
    print_init(x, &l, &out->code);
    if (x->f->loop) print_loop(x, &l, &out->code);
    str_add(&out->code, "#endif\n");
    out->weights = x->f->weights ? x->data : NULL, out->n_weights = x->f->weights ? (size_t)x->data_bytes : 0;
}
