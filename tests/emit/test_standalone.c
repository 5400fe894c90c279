/* test_standalone.c - the C files of programs, compiled in several ways and run by a generated main, against the evaluator
 * within proven bounds, or against a session where several steps are run.
 *
 * Labels: random long
 * Files for OpenCL are run by the device that there is (PoCL, a GPU); those for CUDA are compiled where there is nvcc, and run
 * where there is a GPU, too. Compilers: cc (any x86-64) and clang where there is one, which take every graph, the one with -O1
 * and the other with -O0 in turns, g++ and cc -O2 -march=native, and cc with the sanitizers for what C leaves undefined.
 * TENON_FUZZ_SEEDS: one random graph for 10 of them, one random training step for 40, and one graph for 64 by the sanitizers
 * (default 40, 10 and 25). A short campaign: each main by half of its compilers, in turns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "run/run.h"
#include "support/support.h"
#include "tenon/tenon_nn.h"

#include <limits.h>
#include <math.h>

static char dir[256];
static tn_ctx *ctx;

#define STRICT " -Wall -Wextra -Wconversion -pedantic -Werror "
static const char *const compilers[] = { "cc -std=c99 -O1" STRICT,
                                         "g++ -std=c++17 -x c++ -march=native -O0" STRICT "-Wno-psabi",
                                         "clang -std=c99 -O1 -march=native" STRICT, "cc -O2 -march=native" };

/* What C leaves undefined ends the program; so does an access outside of an array. */
static const char *const sanitizers =
    "cc -O1 -fsanitize=undefined,float-cast-overflow,address -fno-sanitize-recover=all -Wno-psabi";

static bool has_clang(void) { return system("command -v clang >/dev/null 2>&1") == 0; }

/* Of `all` compilers; sanitized, it is the exporter that is under test, and one is enough. */
static size_t some_compilers(size_t all) { return TEST_SANITIZED ? 1 : has_clang() ? all : all / 2; }
static size_t n_compilers(void) { return some_compilers(COUNT_OF(compilers)); }

/* What each exported program is like, in turns. */
static const tn_export_opts forms[] = {
    { .cpu = "native" },
    { .cpu = "scalar", .weights = "data", .train = 1 },
    { .cpu = "avx2", .threads = 3, .header = "h" },
    { .cpu = "sse2", .weights = "data", .threads = 2, .header = "h" },
    { .cpu = "neon", .train = 1, .threads = 4 },
    { .cpu = "native", .freestanding = 1 },
    { .cpu = "scalar", .freestanding = 1, .weights = "data" },
};

static const tn_export_opts opencl_forms[] = { { .target = "opencl" },
                                               { .target = "opencl", .weights = "data", .train = 1 },
                                               { .target = "opencl", .header = "h", .train = 1 } };
static const tn_export_opts cuda_forms[] = { { .target = "cuda", .header = "h" },
                                             { .target = "cuda", .weights = "data", .train = 1, .header = "h" } };
static const tn_export_opts *form_list = forms;
static size_t n_forms = COUNT_OF(forms);
static const char *form_target(const tn_export_opts *f) { return f->target ? f->target : "c"; }
static bool for_cuda(const tn_export_opts *f) { return !strcmp(form_target(f), "cuda"); }
static bool for_opencl(const tn_export_opts *f) { return !strcmp(form_target(f), "opencl"); }

static int setup(void **state) {
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/tenon-test-XXXXXX", tmp ? tmp : "/tmp");
    ctx = test_ctx();
    return !ctx || !mkdtemp(dir);
}
static int teardown(void **state) {
    (void)state;
    char command[512];
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    tn_ctx_free(ctx);
    return system(command);
}

static void shell(const char *command) {
    char *text = test_malloc(strlen(command) + sizeof dir + 16);
    sprintf(text, "cd '%s' && %s", dir, command);
    int rc = system(text);
    test_free(text);
    if (rc) fail_msg("failed: %s", command);
}

static FILE *open_file(const char *name, const char *how) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, how);
    if (!f) fail_msg("cannot open %s", path);
    return f;
}

/* ---- programs in a file each, and their main ---- */

typedef struct subject {
    const graph *g;
    tn_program *p;
    tn_export *x;
    const tn_export_opts *form;
    const char *text;
    char name[64];  /* prefix of its functions, as its first words tell; its file is name.c, or name.cu */
    bool *in_state; /* [n_states] in memory of the host */
    char *out;      /* what main wrote for it: the outputs of every step, then all states */
    size_t n_out;
} subject;

static void save_part(const subject *s, tn_export_part part, const char *end) {
    char file[80];
    size_t n;
    const void *data = tn_export_data(s->x, part, &n);
    if (!data) return;
    snprintf(file, sizeof file, "%s.%s", s->name, end);
    FILE *f = open_file(file, "wb");
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void find_states(subject *s) {
    bool set = false; /* by the host: states that nobody changes and that have no values */
    for (int i = 0; i < s->p->n_states; i++) set |= drive_is_shared(s->p, i) && !s->p->states[i].given;
    s->in_state = test_malloc((size_t)s->p->n_states + 1);
    for (int i = 0; i < s->p->n_states; i++) s->in_state[i] = set || !drive_is_shared(s->p, i);
}

static void open_form(subject *s, const graph *g, int fusion, const tn_export_opts *form) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_export_opts e = *form;
    char weights[80], header[80];
    o.fusion = fusion, o.threads = fusion % 2 + 1, o.check = 1;
    *s = (subject){ .g = g, .form = form };
    if (drive_compile(ctx, g, &o, &s->p)) fail_msg("%s", tn_ctx_error(ctx));
    find_states(s);
    e.struct_size = sizeof e;
    for (int i = 0; i < s->p->n_states; i++)
        if (!drive_is_shared(s->p, i)) goto trains;
    e.train = 0;
trains:
    if (e.freestanding && tn_program_export(s->p, &e, &s->x) == TN_ERR_UNSUPPORTED) e.freestanding = 0; /* functions of f64 */
    tn_export_free(s->x);
    assert_int_equal(tn_program_export(s->p, &e, &s->x), TN_OK);
    assert_int_equal(sscanf(tn_export_data(s->x, TN_EXPORT_CODE, NULL), "/* %63[a-zA-Z0-9_].c", s->name), 1);
    tn_export_free(s->x);
    snprintf(weights, sizeof weights, "%s.bin", s->name), snprintf(header, sizeof header, "%s.h", s->name);
    if (e.weights) e.weights = weights;
    if (e.header) e.header = header;
    assert_int_equal(tn_program_export(s->p, &e, &s->x), TN_OK);
    s->text = tn_export_data(s->x, TN_EXPORT_CODE, NULL);
    save_part(s, TN_EXPORT_CODE, for_cuda(form) ? "cu" : "c"), save_part(s, TN_EXPORT_HEADER, "h"),
        save_part(s, TN_EXPORT_WEIGHTS, "bin");
    for (int i = 0; i < s->p->n_io; i++)
        if (s->p->io[i].is_output) s->n_out += (size_t)s->p->io[i].bytes;
}

static void open_subject(subject *s, const graph *g, int fusion) { open_form(s, g, fusion, &forms[0]); }

static void close_subject(subject *s) {
    tn_export_free(s->x);
    tn_program_free(s->p);
    test_free(s->in_state);
}

static size_t state_bytes(const subject *s, int i) {
    val v = s->p->states[i].node;
    return (size_t)graph_elems(s->p->plan->g, v) * dtype_size((tn_dtype)graph_get(s->p->plan->g, v)->dtype);
}

static void write_init(const char *name, const char *up, FILE *f) {
    fprintf(f,
            "    if (%s_init(&c, arena, sizeof arena - 1, state, %s_STATE_BYTES, weights, %s_WEIGHTS_BYTES) != %s_SMALL_ARENA) "
            "return 0;\n",
            name, up, up, up);
    fprintf(f, "    if (%s_init(&c, arena, sizeof arena, state, %s_STATE_BYTES, weights, %s_WEIGHTS_BYTES)) return 0;\n", name,
            up, up);
}

/* Memory of the device, and a context in it; states come to memory of the host. */
static void write_device(const subject *s, const char *up, FILE *f) {
    fprintf(f, "    static unsigned char state[%s_STATE_BYTES + 1];\n    DEVICE_MEMORY(%s_DEVICE_BYTES);\n", up, up);
    fprintf(f, "    if (!memory) return 0;\n");
    (void)s;
}
static void write_device_init(const subject *s, const char *up, FILE *f) {
    const char *name = s->name, *first = for_cuda(s->form) ? "" : "context, device, queue, ",
               *behind = for_cuda(s->form) ? "stream, " : "";
    fprintf(f,
            "    if (%s_init(&c, %smemory, %s_DEVICE_BYTES - 1, %sweights, %s_WEIGHTS_BYTES) != %s_SMALL_MEMORY) return 0;\n",
            name, first, up, behind, up, up);
    fprintf(f,
            "    if (%s_WEIGHTS_BYTES && %s_init(&c, %smemory, %s_DEVICE_BYTES, %sweights, 8) != %s_WRONG_WEIGHTS) return 0;\n",
            up, name, first, up, behind, up);
    fprintf(f, "    if (%s_init(&c, %smemory, %s_DEVICE_BYTES, %sweights, %s_WEIGHTS_BYTES)) return 0;\n", name, first, up,
            behind, up);
}

/* A function that reads the inputs of each step, and writes outputs, and at the end states by the table. */
static void write_steps(const subject *s, int steps, FILE *f) {
    const tn_program *p = s->p;
    const char *name = s->name;
    char up[64];
    strcpy(up, name);
    for (char *c = up; *c; c++)
        if (*c >= 'a' && *c <= 'z') *c = (char)(*c - 'a' + 'A');
    bool weights = tn_export_data(s->x, TN_EXPORT_WEIGHTS, NULL) != NULL;
    if (s->form->header)
        fprintf(f, "#include \"%s.h\"\n", name);
    else
        fprintf(f, "#define %s_INTERFACE\n#include \"%s.c\"\n", up, name);
    fprintf(f, "static size_t %s_steps(FILE *in, FILE *out) {\n    struct %s_ctx c;\n    size_t n = 0;\n    (void)in;\n", name,
            name);
    bool gpu = for_cuda(s->form) || for_opencl(s->form);
    if (gpu)
        write_device(s, up, f);
    else
        fprintf(f, "    static unsigned char arena[%s_ARENA_BYTES], state[%s_STATE_BYTES + 1];\n", up, up);
    fprintf(f, "    static uint64_t weights[%s_WEIGHTS_BYTES / 8 + 1];\n", up);
    if (weights)
        fprintf(f,
                "    FILE *w = fopen(\"%s.bin\", \"rb\");\n    if (!w || fread(weights, 1, %s_WEIGHTS_BYTES, w) != "
                "%s_WEIGHTS_BYTES) return 0;\n    fclose(w);\n",
                name, up, up);
    for (int i = 0; i < p->n_io; i++)
        fprintf(f, "    static %s a%d[%lld];\n", dtype_info((tn_dtype)p->io[i].dtype)->word, i,
                (long long)(p->io[i].bytes / (int64_t)dtype_size((tn_dtype)p->io[i].dtype)) + 1);
    if (gpu)
        write_device_init(s, up, f);
    else
        write_init(name, up, f);
    if (s->form->threads > 1) fprintf(f, "    c.parallel_for = backwards;\n");
    fprintf(f, "    for (int step = 0; step < %d; step++) {\n", steps);
    for (int i = 0; i < p->n_io; i++)
        if (!p->io[i].is_output) fprintf(f, "        n += fread(a%d, 1, %lld, in);\n", i, (long long)p->io[i].bytes);
    fprintf(f, gpu ? "        if (%s_run(&c" : "        %s_run(&c", name);
    for (int i = 0; i < p->n_io; i++) fprintf(f, ", a%d", i);
    fprintf(f, gpu ? ")) return 0;\n" : ");\n");
    for (int i = 0; i < p->n_io; i++)
        if (p->io[i].is_output) fprintf(f, "        n += fwrite(a%d, 1, %lld, out);\n", i, (long long)p->io[i].bytes);
    fprintf(f, "    }\n    for (int i = 0; i < %s_state_count; i++)\n", name);
    if (gpu)
        fprintf(f,
                "        if (%s_state_table[i].bytes) {\n"
                "            if (FROM_DEVICE(state, c.state + %s_state_table[i].offset, %s_state_table[i].bytes)) return 0;\n"
                "            n += fwrite(state, 1, %s_state_table[i].bytes, out);\n        }\n",
                name, name, name, name);
    else
        fprintf(f, "        n += fwrite(c.state + %s_state_table[i].offset, 1, %s_state_table[i].bytes, out);\n", name, name);
    fprintf(f,
            "    for (int i = 0; i < %s_state_count; i++) fprintf(out, \"%%s %%s\", %s_state_table[i].name, "
            "%s_state_table[i].dtype);\n",
            name, name, name);
    if (gpu)
        fprintf(f, for_cuda(s->form) ? "    cudaFree(memory);\n" : "    %s_free(&c);\n    clReleaseMemObject(memory);\n", name);
    fprintf(f, "    return %s_state_table[%s_state_count].name ? 0 : n + 1;\n}\n", name, name);
}

static const char opencl_host[] =
    "#define CL_TARGET_OPENCL_VERSION 120\n#include <CL/cl.h>\nstatic cl_context context;\nstatic cl_device_id device;\n"
    "static cl_command_queue queue;\n"
    "#define DEVICE_MEMORY(n) cl_mem memory = clCreateBuffer(context, CL_MEM_READ_WRITE, n, NULL, NULL)\n"
    "#define FROM_DEVICE(to, from, n) clEnqueueReadBuffer(queue, memory, CL_TRUE, from, n, to, 0, NULL, NULL)\n"
    "static int open_device(void) {\n    cl_platform_id p;\n"
    "    if (clGetPlatformIDs(1, &p, NULL) || clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &device, NULL)) return 1;\n"
    "    context = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);\n"
    "    queue = clCreateCommandQueue(context, device, 0, NULL);\n    return !queue;\n}\n";
static const char cuda_host[] = "#include <cuda_runtime_api.h>\nstatic cudaStream_t stream;\n"
                                "#define DEVICE_MEMORY(n) void *memory = NULL; if (cudaMalloc(&memory, n)) return 0\n"
                                "#define FROM_DEVICE(to, from, n) cudaMemcpy(to, from, n, cudaMemcpyDeviceToHost)\n"
                                "static int open_device(void) { return cudaStreamCreate(&stream) != cudaSuccess; }\n";

/* The steps of all subjects, one subject after the other. */
static void write_main(const subject *s, int n, int steps) {
    bool cuda = for_cuda(s->form), gpu = cuda || for_opencl(s->form);
    FILE *f = open_file(cuda ? "main.cu" : "main.c", "w");
    if (gpu) fputs(cuda ? cuda_host : opencl_host, f);
    fprintf(f,
            "#include <stdint.h>\n#include <stdio.h>\n"
            "static void backwards(void *ud, int n, void (*piece)(void *arg, int i), void *arg) {\n    (void)ud;\n"
            "    while (n > 0) piece(arg, --n);\n}\nvoid (*unused)(void *, int, void (*)(void *, int), void *) = backwards;\n");
    for (int i = 0; i < n; i++) write_steps(&s[i], steps, f);
    fprintf(f, "int main(void) {\n    FILE *in = fopen(\"in\", \"rb\"), *out = fopen(\"out\", \"wb\");\n    if (!in || !out) "
               "return 1;\n");
    if (gpu) fprintf(f, "    if (open_device()) return 77;\n");
    for (int i = 0; i < n; i++) fprintf(f, "    if (!%s_steps(in, out)) return 2;\n", s[i].name);
    fprintf(f, "    return fclose(out) != 0;\n}\n");
    assert_int_equal(fclose(f), 0);
}

/* Compiles, runs, reads the out of each and checks the names of the states. */
static void run_main(arena *a, subject *s, int n, const char *compiler, int steps) {
    const char *end = for_cuda(s->form) ? "cu" : "c";
    char *command = arena_printf(a, "%s -o prog main.%s", compiler, end);
    for (int i = 0; i < n; i++) command = arena_printf(a, "%s %s.%s", command, s[i].name, end);
    shell(arena_printf(a, "%s %s && ./prog", command, for_opencl(s->form) ? "-lOpenCL -lm" : "-lm"));
    FILE *f = open_file("out", "rb");
    for (int k = 0; k < n; k++) {
        size_t room = s[k].n_out * (size_t)steps;
        char *names = arena_strdup(a, "");
        for (int i = 0; i < s[k].p->n_states; i++) {
            if (!s[k].in_state[i]) continue;
            room += state_bytes(&s[k], i);
            names = arena_printf(a, "%s%s %s", names, s[k].p->states[i].name,
                                 dtype_name((tn_dtype)graph_get(s[k].p->plan->g, s[k].p->states[i].node)->dtype));
        }
        s[k].out = arena_alloc(a, room + strlen(names) + 1);
        assert_int_equal(fread(s[k].out, 1, room + strlen(names), f), room + strlen(names));
        assert_memory_equal(s[k].out + room, names, strlen(names));
    }
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

/* ---- one step against the evaluator ---- */

static void compare_all(const subject *s, const eval_value *want, double **bound) {
    const char *at = s->out;
    char why_not[512];
    for (int i = 0; i < s->p->n_io; i++) {
        if (!s->p->io[i].is_output) continue;
        for (int k = 0; k < s->g->outputs.n; k++) {
            const output *w = &s->g->outputs.at[k];
            if (!w->name || strcmp(w->name, s->p->io[i].name)) continue;
            if (compare(s->g, w->v, at, want[w->v], bound ? bound[w->v] : NULL, 4, why_not, sizeof why_not) >= 0)
                fail_msg("%s of %s: %s", w->name, s->name, why_not);
        }
        at += s->p->io[i].bytes;
    }
    for (int i = 0; i < s->p->n_states; i++) {
        if (!s->in_state[i]) continue;
        const char *name = s->p->states[i].name;
        val v = 0, state = 0;
        for (int k = 0; k < s->g->inputs.n; k++)
            if (!strcmp(graph_get(s->g, s->g->inputs.at[k])->name, name)) v = state = s->g->inputs.at[k];
        assert_int_not_equal(state, 0);
        for (int k = 0; k < s->g->outputs.n; k++)
            if (s->g->outputs.at[k].state == state) v = s->g->outputs.at[k].v;
        if (compare(s->g, v, at, want[v], bound ? bound[v] : NULL, 4, why_not, sizeof why_not) >= 0)
            fail_msg("state %s of %s: %s", name, s->name, why_not);
        at += state_bytes(s, i);
    }
}

static void write_inputs(const subject *s, const sample *in, FILE *f) {
    for (int i = 0; i < s->p->n_io; i++) {
        if (s->p->io[i].is_output) continue;
        for (int k = 0; k < s->g->inputs.n; k++)
            if (!strcmp(graph_get(s->g, s->g->inputs.at[k])->name, s->p->io[i].name))
                assert_int_equal(fwrite(in->data[k], 1, in->bytes[k], f), in->bytes[k]);
    }
}

/* One step of graph i in g on inputs of seed + i, by one main for all. */
static void check_steps(arena *a, const graph *const *g, int n, uint64_t seed, int fusion, bool exact,
                        const char *const *compiler, size_t n_compilers) {
    subject *s = ARENA_ARRAY(a, subject, n);
    eval_value **want = ARENA_ARRAY(a, eval_value *, n);
    double ***bound = ARENA_ARRAY(a, double **, n);
    FILE *f = open_file("in", "wb");
    for (int i = 0; i < n; i++) {
        open_form(&s[i], g[i], (fusion + i) % 4, &form_list[(seed + (uint64_t)i) % n_forms]);
        sample in = sample_make(g[i], a, seed + (uint64_t)i);
        want[i] = eval_graph(g[i], a, in.values);
        bound[i] = exact ? NULL : bound_graph(g[i], a, want[i]);
        write_inputs(&s[i], &in, f);
    }
    assert_int_equal(fclose(f), 0);
    write_main(s, n, 1);
    static uint64_t mains; /* with several compilers: for the turns */
    if (n_compilers > 1) mains++;
    for (size_t c = 0; c < n_compilers; c++) {
        if (n_compilers > 1 && !campaign_has(mains + c, 2)) continue;
        run_main(a, s, n, compiler[c], 1);
        for (int i = 0; i < n; i++) compare_all(&s[i], want[i], bound[i]);
    }
    for (int i = 0; i < n; i++) close_subject(&s[i]);
}

static void check_step(arena *a, const graph *g, uint64_t seed, int fusion, bool exact) {
    check_steps(a, &g, 1, seed, fusion, exact, compilers, n_compilers());
}

static void check_graph(arena *a, tn_graph *g, bool exact) {
    if (tn_graph_status(g)) fail_msg("%s", tn_ctx_error(ctx));
    check_step(a, g->ir, 11, 3, exact);
}

/* ---- graphs ---- */

ARENA_TEST(test_mlp_with_softmax) {
    tn_graph *g = tn_graph_new(ctx, "mlp");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(5, 37));
    tn_tensor h = tn_relu(tn_nn_linear(x, 33, "fc1"));
    tn_output(tn_nn_softmax(tn_nn_linear(tn_tanh(tn_nn_linear(h, 19, "fc2")), 10, "fc3"), -1), "p");
    check_graph(a, g, false);
    check_step(a, g->ir, 12, 0, false);
    tn_graph_free(g);
}

ARENA_TEST(test_convolutions) {
    tn_graph *g = tn_graph_new(ctx, "cnn");
    tn_tensor x = tn_input(g, "image", TN_F32, TN_DIMS(2, 13, 11, 3));
    tn_tensor h = tn_relu(tn_nn_conv2d(x, (tn_nn_conv_opts){ .out_channels = 8, .kernel = { 3 }, .padding = { 1 } }, "c1"));
    h = tn_nn_max_pool(h, (tn_nn_pool_opts){ .kernel = { 2 } });
    h = tn_nn_gelu(tn_nn_conv2d(h, (tn_nn_conv_opts){ .out_channels = 5, .kernel = { 3 }, .stride = { 2 } }, "c2"));
    tn_tensor y = tn_nn_linear(tn_reshape(h, TN_DIMS(2, -1)), 4, "fc");
    tn_output(y, "logits");
    tn_output(tn_argmax(y, 1, 0), "class");
    check_graph(a, g, false);
    tn_graph_free(g);
}

static graph *named_graph(arena *a, uint64_t seed, const randgraph_opts *o) {
    graph *g = randgraph(a, seed, o);
    g->name = arena_printf(a, "g%llu", (unsigned long long)seed);
    return g;
}

/* Graphs first, first + 1 .. in the forms in turns, by the compilers: a main for some of them at a time. Of two sets
 * of compilers each is for every second main. */
static void check_many(arena *a, const graph *const *g, int n, uint64_t first, const char *const *compiler,
                       const char *const *other, size_t n_compilers) {
    enum { AT_ONCE = 10 };
    arena some_of;
    arena_child(&some_of, a);
    for (int i = 0; i < n; i += AT_ONCE) {
        int some = n - i < AT_ONCE ? n - i : AT_ONCE, fusion = (int)((first + (uint64_t)i / AT_ONCE) % 4);
        const char *const *how = i / AT_ONCE % 2 ? other : compiler;
        check_steps(&some_of, g + i, some, first + (uint64_t)i, fusion, false, how, n_compilers);
        arena_reset(&some_of);
    }
}

ARENA_TEST(test_random_graphs) {
    static const char *const strict[] = { "cc -std=c99 -O1" STRICT, "clang -std=c99 -O0 -march=native" STRICT };
    static const char *const turned[] = { "cc -std=c99 -O0" STRICT, "clang -std=c99 -O1 -march=native" STRICT };
    uint64_t first, n = (fuzz_seeds(400, &first) + 9) / 10, few = (n + 19) / 20;
    const graph **g = ARENA_ARRAY(a, const graph *, (int)n);
    for (uint64_t i = 0; i < n; i++) g[i] = named_graph(a, first + i, NULL);
    check_many(a, g, (int)n, first, strict, turned, some_compilers(2));
    check_many(a, g, (int)few, first + 1, compilers, compilers, n_compilers());
    print_message("count: %llu random graphs exported as C, compiled by cc%s, run and compared\n", (unsigned long long)n,
                  some_compilers(2) == 1 ? ""
                  : campaign_is_short()  ? " or clang"
                                         : " and clang");
}

/* Networks with their gradients and an optimiser that changes states; not the largest, for the sake of the compilers. */
ARENA_TEST(test_random_training) {
    enum { MOST_VALUES = 300 };
    static const char *const strict[] = { "cc -std=c99 -O1 -march=native" STRICT, "clang -std=c99 -O0 -march=native" STRICT };
    static const char *const turned[] = { "cc -std=c99 -O0 -march=native" STRICT, "clang -std=c99 -O1 -march=native" STRICT };
    uint64_t first, n = (fuzz_seeds(400, &first) + 39) / 40;
    const graph **g = ARENA_ARRAY(a, const graph *, (int)n);
    int n_found = 0;
    for (uint64_t seed = first; n_found < (int)n; seed++) {
        int trains = 0;
        graph *net = randnet(a, seed, &trains);
        net->name = arena_printf(a, "t%llu", (unsigned long long)seed);
        if (trains && net->nodes.n <= MOST_VALUES) g[n_found++] = net;
    }
    check_many(a, g, (int)n, first, strict, turned, some_compilers(2));
    print_message("count: %llu random training steps exported as C, compiled by cc%s, run and compared\n",
                  (unsigned long long)n,
                  some_compilers(2) == 1 ? ""
                  : campaign_is_short()  ? " or clang"
                                         : " and clang");
}

/* Random graphs, every second one of integers only. */
ARENA_TEST(test_random_graphs_are_defined_c) {
    uint64_t first, n = (fuzz_seeds(1600, &first) + 63) / 64;
    const graph **g = ARENA_ARRAY(a, const graph *, (int)n);
    randgraph_opts whole = { .dtypes = 1u << TN_I8 | 1u << TN_U8 | 1u << TN_I32 | 1u << TN_I64 | 1u << TN_BOOL };
    for (uint64_t i = 0; i < n; i++) g[i] = named_graph(a, first + i, i % 2 ? &whole : NULL);
    check_steps(a, g, (int)n, first, 0, false, &sanitizers, 1);
    print_message("count: %llu random graphs as C under the sanitizers\n", (unsigned long long)n);
}

/* ---- for GPUs ---- */

static bool works(const char *command) {
    char text[1024];
    snprintf(text, sizeof text, "cd '%s' && (%s) >log 2>&1", dir, command);
    return system(text) == 0;
}

static const char *const opencl_compilers[] = { "cc -std=c99 -O1" STRICT, "clang -std=c99 -O1" STRICT };

/* What a program can be built with that finds an OpenCL device. */
static bool has_opencl(void) {
    FILE *f = open_file("probe.c", "w");
    fprintf(f, "#include <stddef.h>\n%sint main(void) { return open_device(); }\n", opencl_host);
    fclose(f);
    return works("cc -o probe probe.c -lOpenCL && ./probe");
}

/* A file for OpenCL, in each of its forms: random graphs, then one that learns. */
ARENA_TEST(test_opencl) {
    if (!has_opencl()) {
        print_message("skipped: no OpenCL device, or no headers of OpenCL\n");
        return;
    }
    uint64_t first, n = (fuzz_seeds(400, &first) + 99) / 100;
    if (n < COUNT_OF(opencl_forms)) n = COUNT_OF(opencl_forms);
    form_list = opencl_forms, n_forms = COUNT_OF(opencl_forms);
    const graph **g = ARENA_ARRAY(a, const graph *, (int)n);
    for (uint64_t i = 0; i < n; i++) g[i] = named_graph(a, first + i, NULL);
    check_steps(a, g, (int)n, first, (int)(first % 4), false, opencl_compilers, some_compilers(2));
    form_list = forms, n_forms = COUNT_OF(forms);
    print_message("count: %llu random graphs as OpenCL with a host\n", (unsigned long long)n);
}

/* Every dtype, and what integers do at their ends: states keep the operands from being folded. */
ARENA_TEST(test_dtypes) {
    static const int32_t x32[] = { INT32_MAX, INT32_MIN, -1, 46341, 65536, 7, -2147483647, 0, 123456789 };
    static const int64_t x64[] = { INT64_MAX, INT64_MIN, -1, 3037000500, 1LL << 32, 7, -INT64_MAX, 0, 9 };
    static const int8_t x8[] = { 127, -128, -1, 64, 0, 3, -7, 99, -100 };
    static const uint8_t u8[] = { 255, 0, 128, 1, 17, 254, 2, 200, 16 };
    static const struct {
        tn_dtype t;
        const void *data;
        const char *name;
    } ints[] = { { TN_I32, x32, "i32" }, { TN_I64, x64, "i64" }, { TN_I8, x8, "i8" }, { TN_U8, u8, "u8" } };
    tn_graph *g = tn_graph_new(ctx, "dtypes");
    for (size_t i = 0; i < COUNT_OF(ints); i++) {
        tn_tensor x = tn_state(g, ints[i].name, ints[i].t, TN_DIMS(9), ints[i].data);
        tn_tensor y = tn_flip(x, TN_INTS(0));
        tn_tensor results[] = { tn_add(x, y),
                                tn_sub(x, y),
                                tn_mul(x, y),
                                tn_neg(x),
                                tn_abs(x),
                                tn_sum(x, TN_ALL_AXES, 0),
                                tn_prod(tn_add_scalar(x, 3), TN_ALL_AXES, 0),
                                tn_matmul(x, y),
                                tn_div(x, y),
                                tn_mod(x, y),
                                tn_max(x, y) };
        for (size_t k = 0; k < COUNT_OF(results); k++) tn_output(results[k], arena_printf(a, "%s %zu", ints[i].name, k));
        tn_output(tn_lt(x, y), arena_printf(a, "%s less", ints[i].name));
        tn_assign(x, tn_mul(x, y));
    }
    tn_tensor rows = tn_state(g, "rows", TN_I32, TN_DIMS(3, 3), x32);
    tn_tensor index = tn_const(g, TN_I32, TN_DIMS(3), (const int32_t[]){ 1, 1, 5 });
    tn_output(tn_scatter_add(rows, index, tn_mul_scalar(rows, 3), 0), "added");
    check_graph(a, g, true);
    check_steps(a, (const graph *[]){ g->ir }, 1, 11, 3, true, &sanitizers, 1);
    tn_graph_free(g);
}

/* Casts of what the other dtype cannot hold, there and back. */
ARENA_TEST(test_casts_at_the_ends) {
    static const double x64[] = { NAN,
                                  INFINITY,
                                  -INFINITY,
                                  1e300,
                                  -1e300,
                                  9223372036854775808.0,
                                  -9223372036854775808.0,
                                  2147483648.0,
                                  -2147483649.0,
                                  128,
                                  -129,
                                  255.5,
                                  256,
                                  -0.5,
                                  -1,
                                  127.99,
                                  -128.99 };
    enum { N = COUNT_OF(x64) };
    static const int64_t i64[N] = {
        INT64_MAX, INT64_MIN, INT32_MAX, INT32_MIN, 128, -129, 255, 256, -1, 0, 1LL << 32, 1LL << 53
    };
    tn_graph *g = tn_graph_new(ctx, "casts");
    tn_tensor from[2 + TN_N_DTYPES] = { tn_state(g, "f64", TN_F64, TN_DIMS(N), x64),
                                        tn_state(g, "i64", TN_I64, TN_DIMS(N), i64) };
    int n = 2;
    for (tn_dtype t = 0; t < TN_N_DTYPES; t++)
        if (t != TN_F64 && t != TN_I64) from[n] = tn_cast(from[dtype_is_int(t)], t), n++;
    for (int i = 0; i < n; i++)
        for (tn_dtype t = 0; t < TN_N_DTYPES; t++) {
            tn_tensor y = tn_cast(from[i], t);
            tn_output(y, arena_printf(a, "%d %s", i, tn_dtype_name(t)));
            if (t != TN_BOOL && dtype_info(t)->arithmetic)
                tn_output(tn_cast(tn_mul(y, y), TN_I8), arena_printf(a, "%d %s squared", i, tn_dtype_name(t)));
        }
    if (tn_graph_status(g)) fail_msg("%s", tn_ctx_error(ctx));
    check_steps(a, (const graph *[]){ g->ir }, 1, 11, 3, false, &sanitizers, 1);
    tn_graph_free(g);
}

ARENA_TEST(test_half_types) {
    tn_graph *g = tn_graph_new(ctx, "halves");
    tn_tensor h = tn_input(g, "h", TN_F16, TN_DIMS(3, 21)), b = tn_input(g, "b", TN_BF16, TN_DIMS(3, 21)),
              d = tn_input(g, "d", TN_F64, TN_DIMS(3, 21));
    tn_tensor m = tn_input(g, "m", TN_BOOL, TN_DIMS(3, 21));
    tn_output(tn_mul(h, tn_cast(b, TN_F16)), "f16");
    tn_output(tn_exp(b), "bf16");
    tn_output(tn_select(m, tn_sin(d), tn_pow(tn_abs(d), tn_cast(h, TN_F64))), "f64");
    tn_output(tn_xor(m, tn_lt(h, tn_mul_scalar(h, 2))), "bool");
    check_graph(a, g, false);
    tn_graph_free(g);
}

/* Loops and branches, with regions that threads share inside and around them. */
ARENA_TEST(test_control) {
    static const char text[] =
        "graph @control(c bool[], x f32[128,192]) {\n  %1 = const 4 i64[]\n  %2 = floor x\n  %3 = not c\n"
        "  region @c(%ci i64[], %cx f32[128,192], %cg bool[]) {\n    %ct = gt %ci, 0\n    return %ct\n  }\n"
        "  region @yes(%p f32[128,192], %q f32[128,192]) {\n    %y = mul %p, 2.0\n    %v = flip %y axes=[0]\n    return %v\n  "
        "}\n"
        "  region @no(%s f32[128,192], %t f32[128,192]) {\n    %u = add %t, 1.0\n    return %u\n  }\n"
        "  region @b(%bi i64[], %bx f32[128,192], %bg bool[]) {\n    %bn = sub %bi, 1\n    %b1 = sum %bx axes=[0] f32[1,192]\n"
        "    %b2 = expand %b1 f32[128,192]\n    %b3 = max %b2, -64.0\n    %b4 = min %b3, 64.0\n"
        "    %b5 = if %bg, %b4, %bx then=@yes else=@no f32[128,192]\n    %bh = not %bg\n    return %bn, %b5, %bh\n  }\n"
        "  %4 = while %1, %2, %3 cond=@c body=@b i64[]\n  %5 = proj %4 index=1 f32[128,192]\n  %6 = sum %5 axes=[1]\n"
        "  return %5 as \"y\", %4 as \"n\", %6 as \"sum\"\n}\n";
    static const char *const how[] = { "cc -std=c99 -O1" STRICT };
    tn_graph *g = tn_graph_parse(ctx, text, sizeof text - 1, "control");
    if (!g) fail_msg("%s", tn_ctx_error(ctx));
    for (uint64_t form = 0; form < COUNT_OF(forms); form++)
        check_steps(a, (const graph *[]){ g->ir }, 1, form, 3, true, how, 1);
    tn_graph_free(g);
}

/* Without the C library: functions of arguments of every size, and square roots where there is no instruction. */
ARENA_TEST(test_freestanding) {
    enum { N = 4096 };
    static float x[N], y[N];
    rng r = rng_make(7);
    for (int i = 0; i < N; i++) { /* of all exponents */
        uint32_t u = (uint32_t)rng_next(&r);
        memcpy(&x[i], &u, 4);
        y[i] = i % 2 ? x[i] * 1e-9f : (float)i - 100;
        if (!isfinite(x[i])) x[i] = (float)i * 1e6f;
        if (!isfinite(y[i])) y[i] = 3;
    }
    x[0] = INFINITY, x[1] = NAN, x[2] = -0.0f, x[3] = 1e-45f;
    static const char *const ops[] = { "sin", "cos", "tan", "exp", "tanh", "log" };
    for (int native = 0; native < 2; native++) {
        tn_graph *g = tn_graph_new(ctx, native ? "alone" : "plain");
        tn_tensor a_ = tn_state(g, "x", TN_F32, TN_DIMS(N), x), b = tn_state(g, "y", TN_F32, TN_DIMS(N), y);
        for (size_t i = 0; i < COUNT_OF(ops); i++) tn_output(tn_op(g, ops[i], &a_, 1, NULL, 0), ops[i]);
        tn_tensor wide = tn_cast(a_, TN_F64), small = tn_mul_scalar(tn_cast(b, TN_F64), 1e-3);
        tn_output(tn_exp(small), "exp64");
        tn_output(tn_log(wide), "log64");
        tn_output(tn_pow(wide, tn_select(tn_lt(tn_abs(small), tn_full(g, TN_F64, TN_DIMS(N), 4)), small, wide)), "pow64");
        tn_output(tn_pow(wide, tn_floor(small)), "power64");
        tn_assign(b, tn_neg(b));
        tn_assign(a_, tn_neg(a_));
        if (tn_graph_status(g)) fail_msg("%s", tn_ctx_error(ctx));
        uint64_t seed = 0;
        while (!forms[seed % COUNT_OF(forms)].freestanding || (!strcmp(forms[seed % COUNT_OF(forms)].cpu, "native")) != native)
            seed++;
        /* the last: no instruction for roots */
        const char *const how[] = { "cc -std=c99 -O1" STRICT, "cc -std=c99 -O2 -march=native" STRICT,
                                    "cc -std=c99 -O1 -DSQUARE_ROOTS" STRICT };
        check_steps(a, (const graph *[]){ g->ir }, 1, seed, 3, false, how, COUNT_OF(how));
        shell(native ? "cc -std=c99 -O2 -march=native -ffreestanding -c alone.c && ! nm -u alone.o | grep . >&2"
                     : "cc -std=c99 -O2 -ffreestanding -c plain.c && ! nm -u plain.o | grep . >&2");
        tn_graph_free(g);
        g = tn_graph_new(ctx, "exact");
        a_ = tn_state(g, "x", TN_F32, TN_DIMS(N), x), b = tn_state(g, "y", TN_F32, TN_DIMS(N), y);
        tn_output(tn_mod(a_, b), "mod");
        tn_output(tn_sqrt(a_), "sqrt");
        tn_output(tn_sqrt(tn_cast(a_, TN_F64)), "sqrt64");
        tn_assign(b, tn_neg(b));
        tn_assign(a_, tn_neg(a_));
        check_steps(a, (const graph *[]){ g->ir }, 1, seed, 3, true, how, COUNT_OF(how));
        tn_graph_free(g);
    }
    tn_graph *g = tn_graph_new(ctx, "double");
    tn_output(tn_erf(tn_input(g, "x", TN_F64, TN_DIMS(3))), "y");
    tn_export_opts e = TN_EXPORT_DEFAULTS;
    tn_program *p;
    tn_export *files;
    e.freestanding = 1;
    assert_int_equal(tn_compile(g, NULL, &p), TN_OK);
    assert_int_equal(tn_program_export(p, &e, &files), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_ctx_error(ctx), "op erf of f64"));
    tn_program_free(p);
    tn_graph_free(g);
}

/* Constants and initial states reach the outputs bit by bit (a NaN as a NaN). */
ARENA_TEST(test_exact_data) {
    float f[29] = { 0.0f,     -0.0f,        INFINITY, -INFINITY, NAN,       1e-45f, -1.17549421e-38f, 3.4028234663852886e38f,
                    1.0f / 3, -16777217.0f, 1e10f,    0.1f,      999999.5f, -7 };
    double d[7] = { 0.1, -0.0, 4.9406564584124654e-324, 1.7976931348623157e308, -1e15, 1e22, 123456.789 };
    tn_graph *g = tn_graph_new(ctx, "data");
    tn_tensor zero = tn_input(g, "i", TN_I64, TN_DIMS(1));
    tn_tensor row = tn_select(tn_expand(tn_lt(zero, zero), TN_DIMS(29)), tn_full(g, TN_F32, TN_DIMS(29), 5),
                              tn_const(g, TN_F32, TN_DIMS(29), f));
    tn_output(row, "f32");
    tn_output(tn_const(g, TN_F64, TN_DIMS(7), d), "f64");
    tn_output(tn_state(g, "s", TN_F32, TN_DIMS(29), f), "state");
    tn_output(tn_state(g, "zeros", TN_I32, TN_DIMS(3), NULL), "no data");
    tn_output(tn_const(g, TN_F32, TN_DIMS(0, 3), NULL), "nothing");
    tn_output(tn_full(g, TN_F64, TN_SCALAR, 0.1), "splat");
    check_graph(a, g, true);
    tn_graph_free(g);
}

ARENA_TEST(test_zero_sizes) {
    tn_graph *g = tn_graph_new(ctx, "zero");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(0, 4)), s = tn_input(g, "s", TN_F32, TN_SCALAR);
    tn_output(tn_exp(x), "empty");
    tn_output(tn_sum(x, TN_INTS(0), 0), "sum");
    tn_output(tn_matmul(tn_transpose(x, 0, 1), x), "product");
    tn_output(tn_add(s, s), "scalar");
    check_graph(a, g, false);
    tn_graph_free(g);
}

/* Names that C does not know, or knows too well, and that could end a comment or a string. */
ARENA_TEST(test_names) {
    char name[200];
    memset(name, 'n', sizeof name - 1), name[199] = 0;
    const char *const names[] = { "a b",     "a_b",    "a-b",    "a_b_2", "int",   "x-1", "",
                                  "1",       "*/ int", "\"\\\n", "linux", "f32x8", "ctx", "\xc3\xa9t\xc3\xa9",
                                  "%d%s?\?/" };
    tn_graph *g = tn_graph_new(ctx, "*/ main() {\n\\");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *n = *names[i] ? names[i] : name;
        tn_tensor x = tn_input(g, n, TN_F32, TN_DIMS(3));
        tn_tensor s = tn_state(g, arena_printf(a, "%s state", n), TN_F32, TN_DIMS(3), (const float[]){ (float)i, 2, 3 });
        tn_output(tn_add(tn_mul_scalar(x, (double)i + 2), s), arena_printf(a, "%s!", n));
        tn_assign(s, x);
    }
    check_graph(a, g, false);
    tn_graph_free(g);
    const char *const graphs[] = { "int", "7up", "_x", name };
    tn_graph *all[COUNT_OF(graphs)];
    const graph *ir[COUNT_OF(graphs)];
    for (size_t i = 0; i < COUNT_OF(graphs); i++) {
        all[i] = tn_graph_new(ctx, graphs[i]);
        tn_output(tn_neg(tn_input(all[i], "x", TN_F32, TN_DIMS(3))), "y");
        if (tn_graph_status(all[i])) fail_msg("%s", tn_ctx_error(ctx));
        ir[i] = all[i]->ir;
    }
    check_steps(a, ir, COUNT_OF(graphs), 11, 3, false, compilers, n_compilers());
    for (size_t i = 0; i < COUNT_OF(graphs); i++) tn_graph_free(all[i]);
}

/* ---- several steps against a session ---- */

static double element(tn_dtype t, const char *data, size_t i) {
    float f;
    int64_t n;
    if (t == TN_F32) return memcpy(&f, data + 4 * i, 4), (double)f;
    memcpy(&n, data + 8 * i, 8);
    return (double)n;
}

/* Rounding grows from step to step, so that no bound can be proven: 1e-4 of values about 1. */
static void expect_near(const char *name, tn_dtype t, const char *got, const char *want, size_t bytes) {
    for (size_t i = 0; i < bytes / dtype_size(t); i++) {
        double x = element(t, got, i), y = element(t, want, i);
        if (!(fabs(x - y) <= 1e-4 * fmax(1, fabs(y)))) fail_msg("%s[%zu]: got %.9g, expected %.9g", name, i, x, y);
    }
}

enum { STEPS = 5, BATCH = 7, PIXELS = 23, CLASSES = 4 };

ARENA_TEST(test_training_steps) {
    tn_graph *g = tn_graph_new(ctx, "train");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(BATCH, PIXELS)), label = tn_input(g, "label", TN_I64, TN_DIMS(BATCH));
    tn_tensor h = tn_nn_dropout(tn_relu(tn_nn_linear(x, 17, "fc1")), 0.25, tn_nn_counter(g, "runs"), "drop");
    tn_tensor loss = tn_nn_cross_entropy(tn_nn_linear(h, CLASSES, "fc2"), label);
    tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 0.01 });
    tn_output(loss, "loss");
    if (tn_graph_status(g)) fail_msg("%s", tn_ctx_error(ctx));
    float data[STEPS][BATCH * PIXELS], want[STEPS];
    int64_t labels[STEPS][BATCH];
    rng r = rng_make(5);
    subject s;
    tn_session *session;
    open_subject(&s, g->ir, 3);
    assert_int_equal(tn_session_new(s.p, &session), TN_OK);
    FILE *f = open_file("in", "wb");
    for (int step = 0; step < STEPS; step++) {
        fill_random(&r, TN_F32, data[step], BATCH * PIXELS, -1, 1);
        for (int i = 0; i < BATCH; i++) labels[step][i] = rng_below(&r, CLASSES);
        fwrite(data[step], sizeof data[step], 1, f), fwrite(labels[step], sizeof labels[step], 1, f);
        assert_int_equal(tn_run(session, TN_BIND({ "x", data[step] }, { "label", labels[step] }, { "loss", &want[step] })),
                         TN_OK);
    }
    assert_int_equal(fclose(f), 0);
    write_main(&s, 1, STEPS);
    for (size_t c = 0; c < n_compilers(); c++) {
        if (!campaign_has(c, 2)) continue;
        run_main(a, &s, 1, compilers[c], STEPS);
        expect_near("loss", TN_F32, s.out, (const char *)want, sizeof want);
        const char *at = s.out + sizeof want;
        for (int i = 0; i < s.p->n_states; i++) {
            if (!s.in_state[i]) continue;
            char *state = arena_alloc(a, state_bytes(&s, i) + 1);
            assert_int_equal(tn_session_get(session, s.p->states[i].name, state, state_bytes(&s, i)), TN_OK);
            expect_near(s.p->states[i].name, (tn_dtype)graph_get(s.p->plan->g, s.p->states[i].node)->dtype, at, state,
                        state_bytes(&s, i));
            at += state_bytes(&s, i);
        }
    }
    tn_session_free(session);
    close_subject(&s);
    tn_graph_free(g);
}

/* The program in the head comment is complete: it compiles and prints the number that the evaluator finds for zero inputs. */
ARENA_TEST(test_example_of_the_head) {
    tn_graph *g = tn_graph_new(ctx, "demo");
    tn_output(tn_sum(tn_cos(tn_input(g, "x", TN_F32, TN_DIMS(3, 5))), TN_ALL_AXES, 0), "y");
    subject s;
    open_subject(&s, g->ir, 3);
    FILE *f = open_file("main.c", "w");
    int lines = 0;
    for (const char *line = strstr(s.text, " *     #define"); line && strncmp(line, " *     ", 7) == 0;
         line = strchr(line, '\n') + 1, lines++)
        fprintf(f, "%.*s\n", (int)strcspn(line + 7, "\n"), line + 7);
    assert_int_equal(fclose(f), 0);
    assert_in_range(lines, 10, 14);
    shell("cc -O2 -march=native -Wall -Wextra -Werror -Wno-psabi -o prog main.c demo.c -lm && ./prog > out && grep -qx 15 out");
    close_subject(&s);
    tn_graph_free(g);
}

/* The text depends on the program alone; immediate programs have none. */
ARENA_TEST(test_text_is_repeatable) {
    tn_graph *g = tn_graph_new(ctx, "again");
    tn_output(tn_exp(tn_input(g, "x", TN_F32, TN_DIMS(3))), "y");
    subject s, t;
    char *text;
    open_subject(&s, g->ir, 3);
    open_subject(&t, g->ir, 3);
    assert_string_equal(s.text, t.text);
    assert_int_equal(tn_program_text(s.p, "standalone", &text), TN_OK);
    assert_string_equal(s.text, text);
    tn_string_free(ctx, text);
    close_subject(&s);
    close_subject(&t);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = TN_MODE_IMMEDIATE;
    tn_program *p;
    assert_int_equal(tn_compile(g, &o, &p), TN_OK);
    assert_int_equal(tn_program_text(p, "standalone", &text), TN_ERR_INVAL);
    tn_program_free(p);
    tn_graph_free(g);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlp_with_softmax),
        cmocka_unit_test(test_convolutions),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_casts_at_the_ends),
        cmocka_unit_test(test_half_types),
        cmocka_unit_test(test_control),
        cmocka_unit_test(test_freestanding),
        cmocka_unit_test(test_exact_data),
        cmocka_unit_test(test_zero_sizes),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_training_steps),
        cmocka_unit_test(test_example_of_the_head),
        cmocka_unit_test(test_text_is_repeatable),
        cmocka_unit_test(test_random_graphs),
        cmocka_unit_test(test_random_training),
        cmocka_unit_test(test_opencl),
        cmocka_unit_test(test_random_graphs_are_defined_c),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, setup, teardown);
}
